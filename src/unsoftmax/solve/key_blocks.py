"""Which tokens to ask together as keys, so that all heads' weights and scores are read well.

A query of n keys a_1 … a_n is decoded by the joint least squares problem Σ_h M_h A p_h = z,
A = [a_1 … a_n]: with M_h = U_h V_h its errors grow by the inverses of V_h A. The scores
a_i·u_h of all blocks [A_0 A_1 …] give u_h by the inverse of [A_0 A_1 …]ᵀ. Gaussian blocks of n =
d_h keys have, among a hundred square matrices V_h A_k, some that are nearly singular (smallest
singular values of 1e-6 of the largest where 0.1 is possible); so blocks are chosen before
anything is asked, by minimising

    log( mean_{h,k} tr((V_h A_k)ᵀ V_h A_k)⁻¹ + Σ_g tr(C_gᵀ A Aᵀ C_g)⁻¹ ) + log ‖A‖_F²,

C_g an orthonormal basis of what the scores must be read on: everything, or the column space of a
head's scores. Each mean is of about 1 for orthogonal blocks. L-BFGS, a second at d = 384. Nothing
is asked here and nothing is known of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class KeyBlockTuning:
    """Knobs of choosing keys."""

    steps: int = 60
    """Steps of L-BFGS. What it gains after these is a few percent."""
    remembered: int = 10
    """Pairs of differences that L-BFGS keeps."""
    worst: float = 1e-14
    """Blocks this near to singular count as singular: the next step is a shorter one."""


@dataclass(frozen=True, slots=True)
class KeyAims:
    """What keys have to show.

    Attributes
    ----------
    frames : sequence of ndarray (r_h, d)
        Of each head: what weights are read through, V_h or the same in units of the errors.
    columns : sequence of ndarray (d, r_g), or (n, d, r_g)
        Bases C_g on which all keys together have to give scores; the identity, for example. Where
        what a key shows depends on its place in the block, one for each of the n places.
    """

    frames: Sequence[Array]
    columns: Sequence[Array]


def chosen_keys(
    aims: KeyAims, blocks: int, keys: int, rng: np.random.Generator, tuning: KeyBlockTuning
) -> Array:
    """Choose blocks of keys (blocks, keys, d); their root mean square length is 1.

    Parameters
    ----------
    aims : KeyAims
        What they have to show.
    blocks, keys : int
        How many blocks of how many keys. ``keys`` is at most the rank of every frame, and
        ``blocks``·``keys`` at least that of every basis of columns.
    rng : Generator
        Draws the keys that the search begins with.
    tuning : KeyBlockTuning
        Knobs.
    """
    frames = [np.asarray(V / np.linalg.norm(V)) for V in aims.frames]
    d = aims.frames[0].shape[1]
    start = rng.standard_normal((d, blocks * keys))

    def cost(flat: Array) -> tuple[float, Array]:
        A = flat.reshape(d, blocks, keys)
        total, slope = _cost(frames, aims.columns, A, tuning.worst)
        square = float(np.sum(A * A))
        return float(np.log(total) + np.log(square)), (slope / total + 2 * A / square).ravel()

    best = optimize.minimize(
        cost,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": tuning.steps, "maxcor": tuning.remembered},
    ).x
    chosen = best.reshape(d, blocks, keys).transpose(1, 2, 0)
    return np.asarray(chosen / np.sqrt(np.mean(np.sum(chosen**2, axis=2))))


def _cost(
    frames: Sequence[Array], columns: Sequence[Array], A: Array, worst: float
) -> tuple[float, Array]:
    """Return the sum of the means of both traces, and its gradient."""
    d, blocks, keys = A.shape
    total, slope = 0.0, np.zeros_like(A)
    for V in frames:
        seen = (V @ A.reshape(d, -1)).reshape(len(V), blocks, keys).transpose(1, 0, 2)
        inverse = _inverses(seen.transpose(0, 2, 1) @ seen, worst)
        share = len(frames) * blocks * keys * d
        total += float(np.trace(inverse, axis1=1, axis2=2).sum()) / share
        through = (seen @ (inverse @ inverse)).transpose(1, 0, 2).reshape(len(V), -1)
        slope -= (2 / share) * (V.T @ through).reshape(A.shape)
    placed = A.transpose(2, 0, 1)  # (n, d, blocks)
    for C in columns:
        # one product where all places are alike
        given = C if C.ndim == 3 else C[None]
        flat = placed if C.ndim == 3 else A.reshape(1, d, -1)
        parts = given.swapaxes(1, 2) @ flat  # (n, r, blocks), or (1, r, blocks·n)
        all_keys = parts.transpose(1, 0, 2).reshape(C.shape[-1], -1)
        inverse = _inverses((all_keys @ all_keys.T)[None], worst)[0]
        share = len(columns) * C.shape[-1] * d / (blocks * keys)
        total += float(np.trace(inverse)) / share
        back = given @ (inverse @ (inverse @ parts))
        slope -= (2 / share) * (back.transpose(1, 2, 0) if C.ndim == 3 else back.reshape(A.shape))
    return total, slope


def _inverses(grams: Array, worst: float) -> Array:
    """Invert symmetric matrices (n, k, k); those that are singular get a little more."""
    diagonal = np.einsum("nii->ni", grams)
    size = diagonal.mean(axis=1) * worst
    grams = grams + size[:, None, None] * np.eye(grams.shape[-1])
    return np.asarray(np.linalg.inv(grams))
