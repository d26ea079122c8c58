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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.probes import Array

# Steps of L-BFGS. What it gains after these is a few percent.
STEPS = 60
# Keys of more than so many numbers make a step cost minutes: steps are fewer in proportion, but so
# many at least, and begin near the best keys. Errors of scores are twice as large.
MANY, FEW = 2**20, 8
# Those do without directions that all frames together see by less than this share.
SHORTENED = 3e-2
# Frames that share so much of what they see are those of one group of values.
SAME = 0.9
# Pairs of differences that L-BFGS keeps, or as many as it takes steps.
REMEMBERED = 10
# Blocks this near to singular count as singular: the next step is a shorter one.
WORST = 1e-14


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


def chosen_keys(aims: KeyAims, blocks: int, keys: int, rng: np.random.Generator) -> Array:
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
    """
    frames = [np.asarray(V / np.linalg.norm(V)) for V in aims.frames]
    d = aims.frames[0].shape[1]
    start = rng.standard_normal((d, blocks * keys))
    if start.size > MANY:
        start = _near(frames, blocks, keys, rng)

    def cost(flat: Array) -> tuple[float, Array]:
        A = flat.reshape(d, blocks, keys)
        total, slope = _cost(frames, aims.columns, A)
        square = float(np.sum(A * A))
        return float(np.log(total) + np.log(square)), (slope / total + 2 * A / square).ravel()

    steps = min(STEPS, max(FEW, STEPS * MANY // start.size))
    best = scipy.optimize.minimize(
        cost,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": steps, "maxcor": min(steps, REMEMBERED)},
    ).x
    chosen = best.reshape(d, blocks, keys).transpose(1, 2, 0)
    return np.asarray(chosen / np.sqrt(np.mean(np.sum(chosen**2, axis=2))))


def _near(frames: Sequence[Array], blocks: int, keys: int, rng: np.random.Generator) -> Array:
    """Return keys (d, blocks·keys) with V_h A_k nearly orthogonal for all heads and blocks.

    E A = R for orthonormal bases E_g of all spaces that V_h see, one above the other, with R_gk =
    ±Q_g P_k and signs as in a Hadamard matrix, so that all of A is well-conditioned as well; where
    these leave directions, [R; R'] is orthogonal, and R' is what is seen of them.
    """
    seen = _spaces(frames)
    signs = scipy.linalg.hadamard(2 ** int(np.ceil(np.log2(max(len(seen), blocks)))))
    left = [np.linalg.qr(rng.standard_normal((len(E), keys)))[0] for E in seen]
    right = [np.linalg.qr(rng.standard_normal((keys, keys)))[0] for _ in range(blocks)]
    signed = (zip(signs[g], right, strict=False) for g in range(len(left)))
    rows = [
        np.hstack([sign * (Q @ P) for sign, P in one]) for Q, one in zip(left, signed, strict=True)
    ]
    E, R = np.vstack(seen), np.vstack(rows)
    gram = E @ E.T
    gram[np.diag_indices_from(gram)] += SHORTENED**2 * np.linalg.norm(gram, 2)
    inside = E.T @ np.linalg.solve(gram, R)
    spare = min(E.shape[1], R.shape[1]) - len(E)
    if spare <= 0:
        return np.asarray(inside)
    outside = np.linalg.qr(E.T, mode="complete")[0][:, len(E) :][:, :spare]
    others = np.linalg.qr(R.T, mode="complete")[0][:, len(R) :][:, :spare].T
    return np.asarray(inside + np.linalg.norm(R, axis=1).mean() * outside @ others)


def _spaces(frames: Sequence[Array]) -> list[Array]:
    """Return orthonormal rows of each space that frames see, once where several see the same."""
    found: list[Array] = []
    for V in frames:
        E = np.linalg.qr(V.T)[0].T
        alike = (np.sum((E @ other.T) ** 2) for other in found if len(other) == len(E))
        if all(shared < SAME * len(E) for shared in alike):
            found.append(E)
    return found


def _cost(frames: Sequence[Array], columns: Sequence[Array], A: Array) -> tuple[float, Array]:
    """Return the sum of the means of both traces, and its gradient."""
    d, blocks, keys = A.shape
    total, slope = 0.0, np.zeros_like(A)
    for V in frames:
        seen = (V @ A.reshape(d, -1)).reshape(len(V), blocks, keys).transpose(1, 0, 2)
        inverse = _inverses(seen.transpose(0, 2, 1) @ seen)
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
        inverse = _inverses((all_keys @ all_keys.T)[None])[0]
        share = len(columns) * C.shape[-1] * d / (blocks * keys)
        total += float(np.trace(inverse)) / share
        back = given @ (inverse @ (inverse @ parts))
        slope -= (2 / share) * (back.transpose(1, 2, 0) if C.ndim == 3 else back.reshape(A.shape))
    return total, slope


def _inverses(grams: Array) -> Array:
    """Invert symmetric matrices (n, k, k); those that are singular get a little more."""
    diagonal = np.einsum("nii->ni", grams)
    size = diagonal.mean(axis=1) * WORST
    grams = grams + size[:, None, None] * np.eye(grams.shape[-1])
    return np.asarray(np.linalg.inv(grams))
