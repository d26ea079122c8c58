"""Coarse answers behind a LayerNorm: the value subspaces once more, Σ d_h queries.

Once scores are known, a query token can be found for every offset a that opens one head alone, and
so a may be a right singular vector of that head's values. It is asked much longer than the token:
the answer's direction is that of M_h a, but for K(b), which is small and known well enough. All
these directions span U_h, with errors of one answer each; before, differences of near offsets did.
Key answers are then decoded again, as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.attention_layer.normalised_scores import ScoreColumns, ScoreTokens
from unsoftmax.learners.attention_layer.normalised_singles import NormalisedFrame
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedPolishTuning
from unsoftmax.learners.attention_layer.normalised_values import ValueSpaces
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.probes import Array, Pairs
from unsoftmax.solve.least_distance import shortest_within


@dataclass(frozen=True, slots=True)
class PolishRound:
    """What was asked, and its answers (the field that begins with y).

    Attributes
    ----------
    offsets, tokens : ndarray, shape (Σ d_h, d)
        One query token for each offset, head by head.
    lengths : ndarray, shape (Σ d_h,)
        About ‖P_w M_h a‖.
    ranks : tuple of int
        d_h.
    y : ndarray, shape (Σ d_h, d)
        Answers.
    """

    offsets: Array
    tokens: Array
    lengths: Array
    ranks: tuple[int, ...]
    y: Array


def find_polish(
    columns: ScoreColumns,
    tokens: ScoreTokens,
    scores: tuple[Array, ...],
    tuning: NormalisedPolishTuning,
) -> Asking[PolishRound | None]:
    """Ask every head's right singular vectors; None where some have no token of their own."""
    maps = [
        base @ tokens.affine(known)[:-1].T
        for base, known in zip(columns.bases, scores, strict=True)
    ]  # W_h
    chosen, offsets, lengths = [], [], []
    for h, (U, V) in enumerate(zip(columns.values.bases, columns.values.values, strict=True)):
        _, s, right = np.linalg.svd(U @ V, full_matrices=False)
        for direction, size in zip(right[: U.shape[1]], s, strict=False):
            token = _opening(direction, maps, h, tuning)
            if token is None:
                return None
            chosen.append(token)
            offsets.append(direction)
            lengths.append(size)
    far = tuning.length * np.array(offsets)
    own, far = on_one_grid(tuning.length * tuning.shorter * np.array(chosen), far)
    every, ones = np.arange(len(far)), np.ones(len(far))
    [y] = yield [Pairs(far, own, every, every, ones, ones, phase="polish", purpose="data")]
    ranks = tuple(base.shape[1] for base in columns.values.bases)
    return PolishRound(far, own, tuning.length * np.array(lengths), ranks, y)


def _opening(
    direction: Array, maps: list[Array], h: int, tuning: NormalisedPolishTuning
) -> Array | None:
    """Return a query token of norm 1 that opens head h alone for an offset."""
    slopes = np.array([W.T @ direction for W in maps])
    sizes = np.array([np.linalg.norm(W) for W in maps]) / np.sqrt(len(direction))
    if not np.all(sizes > 0):
        return None
    slopes /= sizes[:, None]
    signs = np.where(np.arange(len(maps)) == h, 1.0, -1.0)
    shortest = shortest_within(signs[:, None] * slopes)
    if shortest is None or np.linalg.norm(shortest) > tuning.longest:
        return None
    return np.asarray(shortest / np.linalg.norm(shortest))


def polished_spaces(frame: NormalisedFrame, spaces: ValueSpaces, asked: PolishRound) -> ValueSpaces:
    """Return the subspaces that the answers' directions span."""
    w, known = frame.directions(asked.y), frame.of(asked.tokens)
    # μ from ‖μw − k‖ = ‖M_h a‖, k being short
    along = np.sum(w * known, axis=1)
    rest = np.maximum(asked.lengths**2 - np.sum(known**2, axis=1) + along**2, 0.0)
    vectors = (along + np.sqrt(rest))[:, None] * w - known
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cuts = np.cumsum(asked.ranks)[:-1]
    bases = tuple(np.linalg.qr(part.T)[0] for part in np.split(vectors, cuts))
    return replace(spaces, bases=bases)
