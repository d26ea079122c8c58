"""Figures, drawn with matplotlib (the `report` extra)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from unsoftmax.models import AttentionLayer, MultiHead, SingleHead
from unsoftmax.models.arrays import UNIT
from unsoftmax.probes import Array


def draw_head(truth: SingleHead, found: SingleHead, path: str | os.PathLike[str]) -> None:
    """Draw true W, recovered W, the logarithm of their difference, and both spectra.

    Parameters
    ----------
    truth, found : SingleHead
        Heads of the same dimension.
    path : path
        Where to write; the suffix decides the format.
    """
    figure = Figure(figsize=(10.5, 8.6), layout="constrained")
    axes = figure.subplots(2, 2)
    limit = _limit(truth.W)
    for axis, W, title in ((axes[0, 0], truth.W, "True W"), (axes[0, 1], found.W, "Recovered W")):
        image = axis.imshow(W, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axis.set_title(title)
        figure.colorbar(image, ax=axis, shrink=0.85)

    difference = np.abs(found.W - truth.W)
    with np.errstate(divide="ignore"):
        digits = np.log10(difference)
    shown = digits[np.isfinite(digits)]
    # equal matrices have no digits to show: the scale then is float64's roundoff
    low, high = np.quantile(shown, [0.01, 1.0]) if shown.size else (-17.0, -16.0)
    image = axes[1, 0].imshow(
        np.maximum(digits, low), cmap="magma", vmin=low, vmax=high, interpolation="nearest"
    )
    axes[1, 0].set_title("log₁₀ |recovered − true|")
    figure.colorbar(image, ax=axes[1, 0], shrink=0.85)

    spectra = axes[1, 1]
    spectra.semilogy(_spectrum(truth.W), "o", mfc="none", ms=6, label="true")
    spectra.semilogy(_spectrum(found.W), ".", ms=4, label="recovered")
    spectra.set(title="Singular values of W", xlabel="index", ylabel="singular value")
    spectra.grid(alpha=0.3)
    spectra.legend()
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": "unsoftmax"})


def draw_heads(truth: MultiHead, found: MultiHead, path: str | os.PathLike[str]) -> None:
    """Draw every recovered W_h on a scale of its own, with its norm and its relative error.

    Parameters
    ----------
    truth, found : MultiHead
        Models with the same heads, in the same order.
    path : path
        Where to write; the suffix decides the format.
    """
    columns = min(4, found.H)
    rows = -(-found.H // columns)
    figure = Figure(figsize=(2.6 * columns, 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for h, (axis, W) in enumerate(zip(axes, found.W, strict=False)):
        limit = _limit(W)
        axis.imshow(W, cmap="RdBu_r", vmin=-limit, vmax=limit)
        size = float(np.linalg.norm(truth.W[h]))
        error = float(np.linalg.norm(W - truth.W[h])) / size
        axis.set_title(f"head {h}: ‖W‖ = {size:.2g}\nerror {error:.0e}", fontsize=9)
    figure.suptitle(
        f"W of {found.H} recovered heads, each on its own scale: red above 0, blue below",
        fontsize=11,
    )
    figure.savefig(path, dpi=80, bbox_inches="tight", metadata={"Software": "unsoftmax"})


def draw_layer(truth: AttentionLayer, found: AttentionLayer, path: str | os.PathLike[str]) -> None:
    """Draw every head's W, true and recovered beside each other, and all errors on a log scale.

    Parameters
    ----------
    truth, found : AttentionLayer
        Layers in canonical form with the same heads, in the same order.
    path : path
        Where to write; the suffix decides the format.
    """
    columns = max(1, min(3, truth.H))
    rows = -(-truth.H // columns)
    figure = Figure(figsize=(4.2 * columns, 2.5 * rows + 3.0), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(2.5 * rows or 0.1, 3.0))
    pictures, below = parts
    axes = pictures.subplots(max(1, rows), columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for h, (axis, mine, its) in enumerate(zip(axes, truth.heads, found.heads, strict=False)):
        limit = _limit(mine.W)
        gap = np.full((truth.dim, 1 + truth.dim // 16), np.nan)
        both = np.hstack([mine.W, gap, its.W])
        axis.imshow(both, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axis.set_title(f"head {h}: W true, W recovered", fontsize=9)
    axis = below.subplots()
    worst = UNIT
    for name, mark in (("W", "o"), ("M", "s"), ("w", "^")):
        errors = [
            _apart(getattr(its, name), getattr(mine, name))
            for mine, its in zip(truth.heads, found.heads, strict=True)
        ]
        worst = max([worst, *errors])
        axis.semilogy(errors, mark, mfc="none", label=f"{name} of a head")
    axis.set(xlabel="head", ylabel="relative error", title="Recovered against true")
    axis.set_ylim(UNIT / 2, 10 * worst)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=90, bbox_inches="tight", metadata={"Software": "unsoftmax"})


def _apart(found: Array, true: Array) -> float:
    """Return a relative error; no error is shown as float64's roundoff."""
    size = float(np.linalg.norm(true)) or 1.0
    return max(float(np.linalg.norm(found - true)) / size, UNIT)


def _spectrum(W: Array) -> Array:
    return np.asarray(np.linalg.svd(W, compute_uv=False), dtype=np.float64)


def _limit(W: Array) -> float:
    """Return the end of the colour scale: a few larger entries may saturate, 1 of zeros."""
    return float(np.quantile(np.abs(W), 0.995)) or 1.0
