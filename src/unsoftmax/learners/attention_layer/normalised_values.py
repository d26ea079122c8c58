"""Step 4 behind a LayerNorm: the subspaces that heads answer in, H(⌈(rank M + 1)/H⌉ + 3) queries.

Offsets a_j near the first beside the token that opens head h alone are answered with
μ_jh w_jh = K(b_h) + P_w M_h a_j. Their sum over h is known, P_w M a_j: H unknowns μ, d − 1
equations. U_h is the column space of what the a_j give.

That sum does not notice a gate that one head loses and another gains. But such an answer alone has
a direction outside of both subspaces: its leverage there is 1, and the offset is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.normalised_heads import NormalisedHeads
from unsoftmax.learners.attention_layer.normalised_one_hot import OneHotTokens
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedValuesTuning
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.normalised import rank_by_gap
from unsoftmax.probes import Array, Flags, Grid


@dataclass(frozen=True, slots=True)
class OffsetRound:
    """What was asked, and its answers (the field that begins with y).

    Attributes
    ----------
    offsets : ndarray, shape (J, d)
        Beside the first.
    tokens : ndarray, shape (H, d)
        The one-hot tokens.
    y : ndarray, shape (H, J, d)
        Answers.
    whole : bool
        Whether offsets are in all directions, for every P_w M_h is to be read as a whole.
    """

    offsets: Array
    tokens: Array
    y: Array
    whole: bool = False


@dataclass(frozen=True, slots=True)
class ValueSpaces:
    """Orthonormal bases of the P_w M_h, and what they leave open.

    Attributes
    ----------
    bases : tuple of ndarray, shape (d − 1, d_h)
        U_h.
    error : float
        How far they are off: singular values of what should be 0, relative.
    kept : ndarray of bool, shape (J + 1,)
        Offsets at which no gate flipped, the first one included.
    values : tuple of ndarray, shape (d_h, d), or None
        V_h, where offsets in all directions were asked.
    """

    bases: tuple[Array, ...]
    error: float
    kept: Flags
    values: tuple[Array, ...] | None = None


def find_values(
    heads: NormalisedHeads,
    one_hot: OneHotTokens,
    rng: np.random.Generator,
    tuning: NormalisedValuesTuning,
) -> Asking[OffsetRound]:
    """Ask offsets until every subspace has spare ones.

    Raises
    ------
    ModelMismatch
        Subspaces stay open.
    """
    H, d = len(heads.values), heads.frame.dim
    s = np.linalg.svd(heads.frame.values, compute_uv=False)
    rank = int(np.sum(s > tuning.rank * heads.frame.noise * np.sqrt(d) * s[0]))
    count = -(-(rank + 1) // H) - 1 + tuning.spare
    asked = OffsetRound(np.zeros((0, d)), one_hot.tokens, np.zeros((H, 0, d)))
    failure: ModelMismatch | None = None
    for _ in range(tuning.rounds):
        asked = yield from _more(asked, heads, one_hot.share, min(count, d), rng)
        try:
            read_values(heads, asked, tuning)
        except ModelMismatch as error:
            failure = error
            count = len(asked.offsets)
        else:
            return asked
    assert failure is not None
    raise failure


def find_whole_values(
    heads: NormalisedHeads,
    asked: OffsetRound,
    share: float,
    rng: np.random.Generator,
    tuning: NormalisedValuesTuning,
) -> Asking[OffsetRound]:
    """Ask offsets in all directions: H(d + 4) queries in all, where the U_h depend on each other.

    They do where H·d_h > d: then P_w M, which is known, cannot be divided among them.
    """
    missing = heads.frame.dim + tuning.spare - len(asked.offsets)
    while missing > 0:
        asked = yield from _more(asked, heads, share, min(missing, heads.frame.dim), rng)
        missing = heads.frame.dim + tuning.spare - len(asked.offsets)
    return replace(asked, whole=True)


def _more(
    asked: OffsetRound, heads: NormalisedHeads, share: float, count: int, rng: np.random.Generator
) -> Asking[OffsetRound]:
    H, d = asked.tokens.shape
    others = np.linalg.qr(rng.standard_normal((d, count)))[0].T
    offset = heads.offset
    offsets, _ = on_one_grid(offset + share * np.linalg.norm(offset) * others, asked.tokens)
    grid = Grid(offsets, asked.tokens, np.ones(H), np.ones(H), phase="offsets", purpose="data")
    [y] = yield [grid]
    return replace(
        asked,
        offsets=np.vstack([asked.offsets, offsets]),
        y=np.concatenate([asked.y, y.reshape(H, count, d)], axis=1),
    )


def read_values(
    heads: NormalisedHeads,
    asked: OffsetRound,
    tuning: NormalisedValuesTuning,
    like: ValueSpaces | None = None,
) -> ValueSpaces:
    """Read the U_h, without offsets at which a gate flipped; which, and ranks, may be given."""
    noise = heads.frame.noise * float(
        np.linalg.norm(asked.tokens, axis=1).max()
        / np.linalg.norm(asked.offsets - heads.offset, axis=1).min()
    )
    vectors, kept = _vectors(heads, asked)
    if like is not None:
        kept = like.kept
        bases = tuple(
            np.linalg.svd(one[kept].T, full_matrices=False)[0][:, : base.shape[1]]
            for one, base in zip(vectors, like.bases, strict=True)
        )
        return ValueSpaces(bases, like.error, kept, _whole(heads, asked, vectors, bases, kept))
    while True:
        if np.sum(kept) <= tuning.spare:
            raise ModelMismatch(
                "Gates that one query token opens alone do not stay open for other offsets."
            )
        spaces = [_space(one[kept].T, noise, tuning) for one in vectors]
        leverage = np.max([np.sum(right**2, axis=0) for _, right, _ in spaces], axis=0)
        flipped = leverage > 1 - tuning.leverage
        flipped[0] = False
        if not np.any(flipped):
            break
        kept[np.flatnonzero(kept)[flipped]] = False
    if any(right.shape[0] > np.sum(kept) - tuning.spare // 2 for _, right, _ in spaces):
        raise ModelMismatch("A head's values fill all that its offsets show.")
    error = max(missed for _, _, missed in spaces)
    bases = tuple(left for left, _, _ in spaces)
    return ValueSpaces(bases, error, kept, _whole(heads, asked, vectors, bases, kept))


def _whole(
    heads: NormalisedHeads,
    asked: OffsetRound,
    vectors: Array,
    bases: tuple[Array, ...],
    kept: Flags,
) -> tuple[Array, ...] | None:
    """Read V_h = U_hᵀP_w M_h from offsets in all directions, where they were asked."""
    if not asked.whole:
        return None
    moved = asked.offsets - heads.offset
    directions = np.vstack([heads.offset, moved])[kept]
    directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    if len(directions) < heads.frame.dim:
        raise ModelMismatch("Too many gates flip between offsets for heads' values to be read.")
    return tuple(
        np.linalg.lstsq(directions, one[kept] @ base, rcond=None)[0].T
        for one, base in zip(vectors, bases, strict=True)
    )


def _vectors(heads: NormalisedHeads, asked: OffsetRound) -> tuple[Array, Flags]:
    """Return P_w M_h of the first offset and of differences from it (H, J + 1, d − 1), of norm 1.

    And which of them the sum over heads bears out.
    """
    answered, misfit = _answered_alone(heads, asked)
    moved = np.linalg.norm(asked.offsets - heads.offset, axis=1)
    first = heads.values[:, None]
    scaled = np.concatenate(
        [first / np.linalg.norm(heads.offset), (answered - first) / moved[:, None]], axis=1
    )
    bound = 1e3 * np.median(misfit) + 64 * heads.frame.noise
    return scaled, np.append(True, misfit <= bound)


def _answered_alone(heads: NormalisedHeads, asked: OffsetRound) -> tuple[Array, Array]:
    """Return P_w M_h a_j (H, J, d − 1), and what the sum over heads misses for every j."""
    frame, (H, J) = heads.frame, asked.y.shape[:2]
    w = frame.directions(asked.y).reshape(H, J, -1)
    known = frame.of(asked.tokens)
    sums = asked.offsets @ frame.values.T + known.sum(axis=0)
    values, misfit = np.empty(w.shape), np.empty(J)
    for j in range(J):
        mu = np.linalg.lstsq(w[:, j].T, sums[j], rcond=None)[0]
        values[:, j] = mu[:, None] * w[:, j] - known
        misfit[j] = np.linalg.norm(mu @ w[:, j] - sums[j]) / np.linalg.norm(known)
    return values, misfit


def _space(
    vectors: Array, noise: float, tuning: NormalisedValuesTuning
) -> tuple[Array, Array, float]:
    """Return a basis of the column space, the right vectors, and what is left over, relative."""
    left, s, right = np.linalg.svd(vectors, full_matrices=False)
    least = noise * np.sqrt(len(vectors))
    floor = max(float(np.median(s[-tuning.spare + 1 :])), least)
    # a head may fill all dimensions, or more than its offsets show: then none of these is noise
    if vectors.shape[1] > len(vectors) or floor > tuning.unresolved * least:
        floor = least
    rank = rank_by_gap(s, floor, tuning.rank)
    return left[:, :rank], right[:rank], floor / float(s[rank - 1] if rank else 1.0)
