"""What a model looks like: its matrices, each on a scale of its own, and their spectra.

A recovered model is drawn beside the true one, where that is known.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from unsoftmax.figures.panel import THEME, Panel, in_tens, in_whole_numbers, scientific
from unsoftmax.models import AttentionLayer, MultiHead, SingleHead
from unsoftmax.models.arrays import UNIT
from unsoftmax.probes import Array

# Pixels along a matrix: random entries do not pack, and each costs 2 bytes of a page.
SIDE = 160
# Pixels of all matrices together. Larger: a page of many heads passes a megabyte.
PIXELS = 90_000
# Matrices drawn, and spectra; a table has the norms of all.
MOST = 32
# Quantile of |entries| at which colours end. 1: one large entry makes all others white.
SATURATED = 0.995
# No spectrum is computed of a dense matrix with a longer side: it takes a minute.
LARGEST = 1536
# Entries of the products of a layer's factors that are formed: 512 MiB. Of larger layers the
# factors are shown.
PRODUCTS = 2**26
# So many matrices are drawn large; more are small beside each other.
ALONE = 3


@dataclass(frozen=True, slots=True)
class NamedMatrix:
    """A matrix of a model: one head's, where there are several."""

    name: str
    array: Array
    factors: tuple[Array, Array] | None = None
    """K and Q of W = KᵀQ."""

    @property
    def shape(self) -> str:
        """Its sizes, as people write them."""
        return " × ".join(map(str, self.array.shape))

    @property
    def norm(self) -> float:
        """Its Frobenius norm; squares of entries may leave float64."""
        largest = float(np.max(np.abs(self.array), initial=0.0))
        return largest * float(np.linalg.norm(self.array / largest)) if largest else 0.0

    def spectrum(self, largest: int) -> Array | None:
        """Return its singular values, of factors as many as their rank allows."""
        if not self.array.size or (self.factors is None and max(self.array.shape) > largest):
            return None
        if self.factors is None:
            core = self.array
        else:
            K, Q = (np.linalg.qr(factor.T)[1] for factor in self.factors)
            core = K @ Q.T
        return np.asarray(np.linalg.svd(core, compute_uv=False), dtype=np.float64)


def matrices(model: Any, products: int = PRODUCTS) -> list[NamedMatrix]:
    """Return a model's matrices: what has a capital letter, K and Q as their product W.

    Arrays of three dimensions are those of several heads, one after the other. A layer's heads have
    W, and M as the product of O and V, unless all of these are too many numbers.
    """
    if isinstance(model, AttentionLayer):
        return list(_of_heads(model, products))
    arrays: Mapping[str, Any] = model.arrays() if hasattr(model, "arrays") else {}
    factored = {"K", "Q"} <= arrays.keys() and hasattr(model, "W")
    found = {"W": model.W} if factored else {}
    for name, array in arrays.items():
        if name.rpartition(".")[2][:1].isupper() and not (factored and name in ("K", "Q")):
            found[name] = array
    return [part for name, array in found.items() for part in _parts(name, array, arrays, factored)]


def _of_heads(layer: AttentionLayer, products: int) -> Iterator[NamedMatrix]:
    whole = layer.H * layer.dim * (layer.dim + layer.outputs) <= products
    for name, left, right in (("W", "K", "Q"), ("M", "O", "V")):
        for h, head in enumerate(layer.heads):
            arrays = head.arrays()
            if name in arrays:
                yield NamedMatrix(f"{name} of head {h}", arrays[name])
            elif whole:
                first = arrays[left] if left == "K" else arrays[left].T
                factors = (first, arrays[right])
                yield NamedMatrix(f"{name} of head {h}", getattr(head, name), factors)
            else:
                for factor in (left, right):
                    yield NamedMatrix(f"{factor} of head {h}", arrays[factor])


def _parts(
    name: str, array: Any, arrays: Mapping[str, Any], factored: bool
) -> Iterator[NamedMatrix]:
    whole = np.asarray(array, dtype=np.float64)
    of_factors = factored and name == "W"
    if whole.ndim == 2:
        yield NamedMatrix(name, whole, (arrays["K"], arrays["Q"]) if of_factors else None)
    for h in range(len(whole) if whole.ndim == 3 else 0):
        factors = (arrays["K"][h], arrays["Q"][h]) if of_factors else None
        what = "group" if name in ("K", "V") and "groups" in arrays else "head"
        yield NamedMatrix(f"{name} of {what} {h}", whole[h], factors)


def matrix_panels(found: list[NamedMatrix]) -> list[Panel]:
    """Return a heat map of every matrix, on a scale of its own."""
    shown = [matrix for matrix in found if matrix.array.size][:MOST]
    side = min(SIDE, int(np.sqrt(PIXELS / max(1, len(shown)))))
    return [_heat_map(matrix, side, len(shown) > ALONE) for matrix in shown]


def _heat_map(matrix: NamedMatrix, side: int, small: bool) -> Panel:
    array = matrix.array
    step = -(-max(array.shape) // side)
    shown = largest_of_blocks(array, step)
    limit = float(np.quantile(np.abs(shown), SATURATED)) or 1.0
    unit = 1.0 if limit < np.finfo(np.float64).max / 4 else limit  # colour scales are differences
    colours = f"red is above 0, blue below, full colour at ±{scientific(limit)}."
    pixel = f" A pixel is the largest of {step} × {step} entries." if step > 1 else ""

    def draw(axis: Any) -> None:
        rows, columns = array.shape
        image = axis.imshow(
            shown / unit,
            cmap="RdBu_r",
            vmin=-limit / unit,
            vmax=limit / unit,
            interpolation="none",
            extent=(0, columns, rows, 0),
            aspect="equal" if max(array.shape) <= 4 * min(array.shape) else "auto",
        )
        if not small:
            bar = axis.figure.colorbar(image, ax=axis, shrink=0.9)
            bar.solids.set_rasterized(True)
            bar.ax.yaxis.set_major_formatter(lambda share, _: scientific(share * unit))
        axis.tick_params(labelsize=8)
        axis.locator_params(nbins=4)

    return Panel(
        f"{matrix.name} as recovered"
        if not small
        else f"{matrix.name}, norm {scientific(matrix.norm)}",
        f"Heat map of {matrix.name}, {matrix.shape}, Frobenius norm {scientific(matrix.norm)}, "
        f"entries from {scientific(float(array.min()))} to {scientific(float(array.max()))}. "
        f"A square an entry: {colours}{pixel}",
        draw,
        f"Full colour at ±{scientific(limit)}.{pixel}"
        if small
        else f"Every square is a number of the copy: {colours}{pixel}",
        *((2.3, 2.4) if small else (4.6, 3.7)),
    )


def largest_of_blocks(array: Array, step: int) -> Array:
    """Shrink a matrix: of every block of step × step entries, the one of largest magnitude.

    Examples
    --------
    >>> largest_of_blocks(np.array([[1.0, -3.0, 0.0], [2.0, 0.0, 5.0]]), 2)
    array([[-3.,  5.]])
    """
    if step == 1:
        return array
    rows, columns = (-(-size // step) for size in array.shape)
    padded = np.zeros((rows * step, columns * step))
    padded[: array.shape[0], : array.shape[1]] = array
    blocks = padded.reshape(rows, step, columns, step).swapaxes(1, 2).reshape(rows, columns, -1)
    place = np.argmax(np.abs(blocks), axis=2)[..., None]
    return np.asarray(np.take_along_axis(blocks, place, axis=2)[..., 0])


def spectrum_panel(
    found: list[NamedMatrix], bounds: Mapping[str, float], largest: int = LARGEST, most: int = MOST
) -> Panel | None:
    """Return the singular values of all W, beside the certificate's bound; None without any."""
    name = next((matrix.name.split(" ")[0] for matrix in found), "")
    same = [matrix for matrix in found if matrix.name.split(" ")[0] == name]
    every = (matrix.spectrum(largest) for matrix in same[:most])
    spectra = [values for values in every if values is not None]
    positive = [values[values > 0] for values in spectra]
    if not any(map(len, positive)):
        return None
    bound = bounds.get(name, np.inf)
    known = np.isfinite(bound) and bound > 0
    told = (
        ""
        if not known
        else (f" Those below the bound on ‖Δ{name}‖, {scientific(bound)}, are not told from 0.")
    )

    def draw(axis: Any) -> None:
        for values in positive:
            style = {"lw": 1.0} if len(positive) > 1 else {"marker": ".", "ms": 4, "lw": 0}
            axis.semilogy(np.arange(1, len(values) + 1), values, color=THEME.series[0], **style)
        if known:
            axis.axhline(bound, color=THEME.series[1], ls="--", lw=1.2)
            axis.annotate(
                "certificate's bound",
                (1, bound),
                xycoords=("axes fraction", "data"),
                xytext=(-2, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8.5,
                color=THEME.series[1],
            )
        axis.set(xlabel="index", ylabel="singular value")
        axis.grid(alpha=0.6)
        in_whole_numbers(axis.xaxis)
        in_tens(axis.yaxis)

    first_of = f"the first {len(spectra)} of " if len(spectra) < len(same) else ""
    each = f" of {first_of}{len(same)} heads, a line each" if len(same) > 1 else ""
    first, last = max(v[0] for v in positive if len(v)), min(v[-1] for v in positive if len(v))
    return Panel(
        f"Singular values of {name}" + (", a line per head" if each else ""),
        f"Singular values of {name}{each}: from {scientific(first)} down to {scientific(last)}."
        f"{told}",
        draw,
        told.strip(),
    )


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


def draw_heads(
    truth: AttentionLayer | MultiHead,
    found: AttentionLayer | MultiHead,
    path: str | os.PathLike[str],
) -> None:
    """Draw every head's W, true and recovered beside each other, and all errors on a log scale.

    Parameters
    ----------
    truth, found : AttentionLayer, or MultiHead
        Models with the same heads, in the same order; layers in canonical form.
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
    worst, values = UNIT, "M" if isinstance(truth, AttentionLayer) else "v"
    for name, mark in (("W", "o"), (values, "s"), ("w", "^")):
        errors = [
            _apart(getattr(its, name), getattr(mine, name))
            for mine, its in zip(truth.heads, found.heads, strict=False)
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
