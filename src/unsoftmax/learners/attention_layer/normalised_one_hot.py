"""Step 3 behind a LayerNorm: query tokens at which one head alone looks at the offset; 43 queries.

At moderate lengths [b+a; b] tells every gate σ(l_h), l_h = a·(W_h b + w_h): the m_h are known, so
the answer's scale and the H gates are H + 1 unknowns of d − 1 equations. Gates at the corners of
a simplex in a plane of b's give l_h as an affine function there, and the shortest b_h with
l_h > 0 > l_g for all g ≠ h opens head h alone once it is long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.normalised_heads import NormalisedHeads
from unsoftmax.learners.attention_layer.normalised_tuning import OneHotTuning
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.normalised import UnknownScales
from unsoftmax.probes import Array, Indices, Pairs, Purpose
from unsoftmax.solve.least_distance import shortest_within


@dataclass(frozen=True, slots=True)
class OneHotTokens:
    """What the gates of moderate tokens told.

    Attributes
    ----------
    tokens : ndarray, shape (H, d)
        b_h, of entries about as large as the first offset's.
    share : float
        How much of its length a further offset may differ from the first by.
    slope : float
        rms of l_h for an offset and a query token of norm 1, of the head where it is largest.
    bias : float
        The same of a·w_h for an offset of norm 1.
    """

    tokens: Array
    share: float
    slope: float
    bias: float


def find_one_hot(
    heads: NormalisedHeads, rng: np.random.Generator, tuning: OneHotTuning
) -> Asking[OneHotTokens]:
    """Ask gates at moderate lengths, and choose the tokens.

    Raises
    ------
    ModelMismatch
        Gates do not open at any length, or no token opens one alone.
    """
    d = heads.frame.dim
    r = min(tuning.plane, d)
    plane = np.linalg.qr(rng.standard_normal((d, r)))[0]
    # corners of a simplex around 0, none of them 0
    corners = np.vstack([np.eye(r), -np.ones((1, r)) / np.sqrt(r)])
    [tokens] = on_one_grid(corners @ plane.T)
    # a power of two, so that m_h is known along with it
    direction = heads.offset / 2.0 ** np.round(np.log2(np.linalg.norm(heads.offset)))
    lengths = np.array(tuning.pilots)
    pilots = np.zeros(len(lengths), dtype=np.intp)
    [y] = yield [_pairs(direction, tokens[-1:], pilots, lengths, "pilot")]
    known = lengths[:, None] * tokens[-1]
    gates = _gates(heads, direction, lengths, known, y)
    moderate = np.all((gates > tuning.least_gate) & (gates < 1 - tuning.least_gate), axis=1)
    if not np.any(moderate):
        raise ModelMismatch(
            "Gates between two tokens do not go from open to half open as tokens get shorter: no "
            "softmax attention, or query biases far larger than all else."
        )
    length = float(lengths[moderate].max()) / 2
    every = np.arange(len(tokens))
    [y] = yield [_pairs(direction, tokens, every, np.full(len(tokens), length), "data")]
    p = _gates(heads, direction, np.full(len(tokens), length), length * tokens, y)
    p = np.clip(p, tuning.least_gate**2, 1 - tuning.least_gate**2)
    logits = np.log(p / (1 - p))
    affine = np.column_stack([corners * length, np.ones(len(corners))])
    solved = np.linalg.lstsq(affine, logits, rcond=None)[0] / length
    return _chosen(heads, plane, solved, tuning)


def _chosen(
    heads: NormalisedHeads, plane: Array, affine: Array, tuning: OneHotTuning
) -> OneHotTokens:
    """Choose the shortest tokens of one open gate, from slopes (r, H) and biases (H,)."""
    slopes, biases = affine[:-1].T, affine[-1]
    typical = np.linalg.norm(slopes, axis=1) / np.sqrt(slopes.shape[1])
    if not np.all(typical > 0):
        raise ModelMismatch("A head's gate does not depend on the query token: W_h = 0.")
    signs = 2 * np.eye(len(slopes)) - 1
    found = [shortest_within(row[:, None] * slopes / typical[:, None]) for row in signs]
    shortest = np.array([one for one in found if one is not None])
    if len(shortest) < len(found):
        raise ModelMismatch(
            "No query token opens the gate of one head alone: two heads' gates always agree, or "
            "their scores are multiples of each other."
        )
    norms = np.linalg.norm(shortest, axis=1)
    tokens = shortest @ plane.T
    unit = 2.0 ** (np.floor(np.log2(tuning.length / np.abs(tokens).max(axis=1))))
    share = min(tuning.largest_share, 1 / (tuning.safety * float(norms.max())))
    return OneHotTokens(
        on_one_grid(tokens * unit[:, None], heads.offset)[0],
        share,
        float(typical.max()),
        float(np.sqrt(np.mean(biases**2))),
    )


def _gates(
    heads: NormalisedHeads, direction: Array, lengths: Array, tokens: Array, y: Array
) -> Array:
    """Return σ(l_h) at offsets of some lengths and query tokens, as rows."""
    along = (heads.offset @ heads.offset) / (heads.offset @ direction)
    columns = UnknownScales.beside(heads.values.T / along)
    frame = heads.frame
    _, gates, _ = columns.solved(frame.directions(y), frame.of(tokens))
    return np.asarray(gates / lengths[:, None])


def _pairs(direction: Array, tokens: Array, j: Indices, lengths: Array, purpose: Purpose) -> Pairs:
    i = np.zeros(len(j), dtype=np.intp)
    return Pairs(
        direction[None],
        tokens,
        i,
        j,
        lengths,
        lengths,
        phase="one-hot query tokens",
        purpose=purpose,
    )
