"""Step 5 behind a LayerNorm: column spaces of the scores, (d_h + 4)⌈d/n⌉ queries.

A few query tokens, d_h + 4 of the corners of a simplex, with keys that together span all
directions tell A_h b̃ = W_h b + w_h for them, and with it the column space Kt_h of A_h = [W_h w_h].
The keys are divided into blocks of n. Tokens are on a coarse grid, sums of two of them exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.normalised_keys import (
    KeyRound,
    NormalisedValues,
    ask_keys,
    close_values,
    open_values,
    weights_of,
)
from unsoftmax.learners.attention_layer.normalised_one_hot import OneHotTokens
from unsoftmax.learners.attention_layer.normalised_singles import NormalisedFrame
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedScoresTuning
from unsoftmax.learners.attention_layer.normalised_values import ValueSpaces
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.normalised import rank_by_gap
from unsoftmax.probes import Array
from unsoftmax.solve.key_blocks import KeyAims, chosen_keys


class KeyLengths(NamedTuple):
    """Of keys and of query tokens."""

    key: float
    token: float

    @classmethod
    def at(cls, slope: float, bias: float, tuning: NormalisedScoresTuning) -> KeyLengths:
        """Choose lengths for logits that are ``slope`` and ``bias`` at norms of 1."""
        product = tuning.logit / slope
        key = np.sqrt(tuning.longer * product)
        if bias > 0:
            key = min(key, tuning.bias / bias)
        return cls(float(key), float(product / key))

    def on_grid(self, rows: Array) -> Array:
        """Round keys or query tokens to one grid: their sums are exact in float32."""
        return on_one_grid(rows, np.array(self))[0]


def find_lengths(
    frame: NormalisedFrame,
    values: NormalisedValues,
    one_hot: OneHotTokens,
    rng: np.random.Generator,
    tuning: NormalisedScoresTuning,
) -> Asking[KeyLengths]:
    """Choose lengths at which logits of many keys are moderate, by a query token and its negative.

    Half the difference of their logits is the score without a bias, half the sum the bias.
    """
    d, n = frame.dim, values.keys(tuning.share)
    lengths = KeyLengths.at(one_hot.slope, one_hot.bias, tuning)
    rows = np.linalg.qr(rng.standard_normal((d, n)))[0].T
    for _ in range(tuning.shorter):
        token = rng.standard_normal(d)
        token *= lengths.token / np.linalg.norm(token)
        keys = lengths.on_grid(lengths.key * rows)
        tokens = lengths.on_grid(np.array([token, -token]))
        asked = yield from ask_keys(KeyRound((keys,), (tokens,)), "lengths")
        read = weights_of(frame, values, keys, tokens, asked.y[0])
        try:
            logits = read.logits(tuning.pilot_weight)
        except ModelMismatch:
            lengths = KeyLengths(lengths.key / 2, lengths.token / 2)
            continue
        slope, bias = (
            float(np.max(np.sqrt(np.mean(part**2, axis=1))))
            for part in ((logits[0] - logits[1]) / 2, (logits[0] + logits[1]) / 2)
        )
        return KeyLengths.at(slope / (lengths.key * lengths.token), bias / lengths.key, tuning)
    raise ModelMismatch(
        "Weights of many keys do not become moderate as tokens get shorter: they are not those "
        "of one softmax, or query biases are far larger than all else."
    )


@dataclass(frozen=True, slots=True)
class ScoreTokens:
    """Query tokens and lengths of keys.

    Attributes
    ----------
    tokens : ndarray, shape (d + 1, d)
        Corners of a simplex around 0.
    lengths : KeyLengths
        Of keys, and of these tokens.
    """

    tokens: Array
    lengths: KeyLengths

    @classmethod
    def drawn(cls, dim: int, lengths: KeyLengths, rng: np.random.Generator) -> ScoreTokens:
        """Draw corners of a simplex, turned at random."""
        # d + 1 points of R^(d+1) of mean 0, in coordinates of their hyperplane
        corners = np.linalg.svd(np.eye(dim + 1) - 1 / (dim + 1))[0][:, :dim]
        turned = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
        corners = corners / np.linalg.norm(corners[0]) @ turned
        return cls(lengths.on_grid(lengths.token * corners), lengths)

    def keys(self, rows: Array) -> Array:
        """Give unit rows the length of keys, on the grid of the tokens."""
        return self.lengths.on_grid(self.lengths.key * rows)

    def affine(self, known: Array) -> Array:
        """Return the affine map (d + 1, r) that the corners are mapped by to rows (d + 1, r)."""
        solved = np.linalg.solve(self._lifted(self.tokens), known)
        return np.vstack([solved[:-1], self.lengths.token * solved[-1:]])

    def lifted(self, tokens: Array) -> Array:
        """Return coefficients (n, d + 1) of tokens as affine combinations of the corners."""
        corners = self._lifted(self.tokens)
        return np.asarray(np.linalg.solve(corners.T, self._lifted(tokens).T).T)

    def _lifted(self, rows: Array) -> Array:
        """Add a coordinate about as large as the others."""
        return np.column_stack([rows, np.full(len(rows), self.lengths.token)])


@dataclass(frozen=True, slots=True)
class ScoreColumns:
    """Values of all heads, and column spaces of their scores.

    Attributes
    ----------
    values : NormalisedValues
        Complete.
    bases : tuple of ndarray, shape (d, r_h)
        Kt_h, orthonormal.
    scores : tuple of ndarray, shape (q, r_h)
        Kt_hᵀA_h b̃ of the query tokens asked.
    """

    values: NormalisedValues
    bases: tuple[Array, ...]
    scores: tuple[Array, ...]


def find_columns(
    frame: NormalisedFrame,
    spaces: ValueSpaces,
    tokens: ScoreTokens,
    rng: np.random.Generator,
    tuning: NormalisedScoresTuning,
) -> Asking[KeyRound]:
    """Ask all keys for the first tokens, and for more where column spaces stay open."""
    d = frame.dim
    values = open_values(frame, spaces, tuning)
    n = values.keys(tuning.share)
    aims = KeyAims(values.frames(), [np.eye(d)])
    blocks = tuple(map(tokens.keys, chosen_keys(aims, -(-d // n), n, rng, tuning.keys)))
    most = max(base.shape[1] for base in spaces.bases)
    asked = yield from _of_first(tokens, blocks, min(d + 1, most + tuning.spare))
    if len(asked.tokens[0]) <= d and not _spare(asked, frame, spaces, tuning):
        rest = yield from ask_keys(
            KeyRound(blocks, (tokens.tokens[len(asked.tokens[0]) :],) * len(blocks)), "key blocks"
        )
        y = tuple(np.vstack(pair) for pair in zip(asked.y, rest.y, strict=True))
        asked = KeyRound(blocks, (tokens.tokens,) * len(blocks), y)
    return asked


def _of_first(tokens: ScoreTokens, blocks: tuple[Array, ...], count: int) -> Asking[KeyRound]:
    asked = KeyRound(blocks, (tokens.tokens[:count],) * len(blocks))
    return (yield from ask_keys(asked, "key blocks"))


def _spare(
    asked: KeyRound, frame: NormalisedFrame, spaces: ValueSpaces, tuning: NormalisedScoresTuning
) -> bool:
    """Whether every column space is smaller than what the tokens could show."""
    read = read_columns(frame, spaces, asked, tuning)
    return all(base.shape[1] <= len(asked.tokens[0]) - 2 for base in read.bases)


def read_columns(
    frame: NormalisedFrame,
    spaces: ValueSpaces,
    asked: KeyRound,
    tuning: NormalisedScoresTuning,
    like: ScoreColumns | None = None,
) -> ScoreColumns:
    """Read V_h, Kt_h and the scores of the tokens asked; ranks may be given."""
    rank = None if like is None else like.values.rank
    values = close_values(frame, open_values(frame, spaces, tuning, rank), asked)
    logits = [
        weights_of(frame, values, keys, tokens, y).logits(tuning.least_weight)
        for keys, tokens, y in zip(asked.blocks, asked.tokens, asked.y, strict=True)
    ]
    every = np.concatenate(logits, axis=2)  # (q, H, keys)
    q, H, _ = every.shape
    keys = np.vstack(asked.blocks)
    columns = np.linalg.lstsq(keys, every.reshape(q * H, -1).T, rcond=None)[0].reshape(-1, q, H)
    bases, scores = [], []
    for h in range(H):
        left, s, _ = np.linalg.svd(columns[:, :, h], full_matrices=False)
        known = None if like is None else like.bases[h].shape[1]
        rank = _rank(s, q > frame.dim, frame.noise, tuning) if known is None else known
        bases.append(left[:, :rank])
        scores.append(columns[:, :, h].T @ left[:, :rank])
    return ScoreColumns(values, tuple(bases), tuple(scores))


def _rank(s: Array, complete: bool, noise: float, tuning: NormalisedScoresTuning) -> int:
    """Return the rank of a head's scores; where all tokens are known it does not matter."""
    floor = float(np.median(s[-tuning.spare + 1 :]))
    if complete or floor > min(tuning.most_spare, tuning.unresolved * noise) * s[0]:
        return len(s)
    return rank_by_gap(s, floor, tuning.rank)
