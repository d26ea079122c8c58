"""Scores behind a LayerNorm: many keys in one sequence, for one query token.

[b+a_1; …; b+a_n; b] is answered with μw = K(b) + Σ_h U_h V_h A p_h, A = [a_1 … a_n] and p_h the
weights of the keys: H·n + 1 unknowns, d − 1 equations. Weights tell scores,
log(p_hi/p_h0) = a_i·(W_h b + w_h), p_h0 = 1 − Σ p_hi.

The V_h are not all known before. With U = [U_1 … U_H], V0 = U⁺P_w M and ν the null space of U,
V_h = V0_h + ν_h T for one unknown T (k, d): behind a LayerNorm k = 1 as a rule, since the U_h lose
a dimension together. Then the τ_h = T A p_h are unknowns beside the p_h; only their differences
count, and τ_h − τ_H = TA(p_h − p_H) over a few query tokens tells TA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.normalised_singles import NormalisedFrame
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedScoresTuning
from unsoftmax.learners.attention_layer.normalised_values import ValueSpaces
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.normalised import UnknownScales
from unsoftmax.probes import Array, Round, Sequences


@dataclass(frozen=True, slots=True)
class KeyRound:
    """What was asked, and its answers (the field that begins with y).

    Attributes
    ----------
    blocks : tuple of ndarray, shape (n, d)
        Keys, as rows.
    tokens : tuple of ndarray, shape (q, d)
        The query tokens of every block.
    y : tuple of ndarray, shape (q, d)
        Their answers.
    """

    blocks: tuple[Array, ...]
    tokens: tuple[Array, ...]
    y: tuple[Array, ...] = ()


def ask_keys(asked: KeyRound, phase: str) -> Asking[KeyRound]:
    """Ask every block with its tokens, in one round."""
    parts: Round = []
    for keys, tokens in zip(asked.blocks, asked.tokens, strict=True):
        others = np.concatenate([keys, np.zeros((1, keys.shape[1]))])
        parts.append(Sequences(others + tokens[:, None], phase=phase, purpose="data"))
    answers = yield parts
    return KeyRound(asked.blocks, asked.tokens, tuple(answers))


@dataclass(frozen=True, slots=True)
class NormalisedValues:
    """P_w M_h = U_h V_h of every head, and what is left open of them.

    Attributes
    ----------
    bases : tuple of ndarray, shape (d − 1, d_h)
        U_h.
    values : tuple of ndarray, shape (d_h, d)
        V_h, up to ν_h T.
    free : tuple of ndarray, shape (d_h, k)
        ν_h; of no columns where V_h is known.
    rank : int
        Of all bases together.
    """

    bases: tuple[Array, ...]
    values: tuple[Array, ...]
    free: tuple[Array, ...]
    rank: int
    least_share: ClassVar[float] = 1e6
    """Errors of weights span no more orders of magnitude than this, for the choice of keys."""

    def keys(self, share: int = 1) -> int:
        """Return how many keys one sequence may have; a share of it, 2 at least where they may."""
        H, k, smallest = len(self.bases), self.open, min(map(len, self.values))
        numbers = len(self.bases[0]) - 1
        most = int(min((min(numbers, self.rank) - (H - 1) * k) // H, smallest - k))
        return max(most // share, min(2, most))

    def most_keys(self) -> int:
        """Return how many it would be if all values were known."""
        return min(len(self.bases[0]) - 1, self.rank) // len(self.bases)

    @property
    def open(self) -> int:
        """In how many dimensions the values are open, k."""
        return int(self.free[0].shape[1])

    def frames(self) -> list[Array]:
        """Return every V_h in units of what its weights' errors are, ν_h taken off."""
        inverse = np.linalg.pinv(np.hstack(self.bases))
        cuts = np.cumsum([base.shape[1] for base in self.bases])[:-1]
        scaled = []
        for V, nu, rows in zip(self.values, self.free, np.split(inverse, cuts), strict=True):
            rest = V - nu @ np.linalg.lstsq(nu, V, rcond=None)[0] if nu.shape[1] else V
            left, s, _ = np.linalg.svd(rows, full_matrices=False)
            s = np.maximum(s, s[0] / self.least_share)
            scaled.append((left / s).T @ rest)
        return scaled

    def columns(self, keys: Array) -> Array:
        """Return what multiplies the weights of keys (n, d), then the τ_h − τ_H."""
        pairs = zip(self.bases, self.values, strict=True)
        weights = [base @ (values @ keys.T) for base, values in pairs]
        free = [base @ nu for base, nu in zip(self.bases[:-1], self.free[:-1], strict=True)]
        return np.hstack(weights + free)

    def completed(self, T: Array) -> NormalisedValues:
        """Return the values with V_h + ν_h T, none of them open."""
        values = zip(self.values, self.free, strict=True)
        return NormalisedValues(
            self.bases,
            tuple(V + nu @ T for V, nu in values),
            tuple(nu[:, :0] for nu in self.free),
            self.rank,
        )


def open_values(
    frame: NormalisedFrame,
    spaces: ValueSpaces,
    tuning: NormalisedScoresTuning,
    rank: int | None = None,
) -> NormalisedValues:
    """Divide P_w M among the value subspaces, as far as they determine it.

    ``rank`` is that of all of them together, where it is known.
    """
    joint = np.hstack(spaces.bases)
    left, s, right = np.linalg.svd(joint)
    if rank is None:
        rank = int(np.sum(s > min(tuning.overlap * spaces.error, tuning.most_overlap)))
    if spaces.values is not None:
        free = tuple(np.zeros((len(V), 0)) for V in spaces.values)
        return NormalisedValues(spaces.bases, spaces.values, free, rank)
    inverse = right[:rank].T @ (left[:, :rank].T / s[:rank, None])
    cuts = np.cumsum([base.shape[1] for base in spaces.bases])[:-1]
    values = np.split(inverse @ frame.values, cuts)
    free = tuple(np.split(right[rank:].T, cuts))
    return NormalisedValues(spaces.bases, tuple(values), free, rank)


@dataclass(frozen=True, slots=True)
class KeyWeights:
    """Weights of one block's keys, and what is left open of values there.

    Attributes
    ----------
    weights : ndarray, shape (q, H, n)
        p_h.
    free : ndarray, shape (q, H − 1, k)
        τ_h − τ_H.
    """

    weights: Array
    free: Array

    def logits(self, least: float) -> Array:
        """Return log(p_hi/p_h0), (q, H, n)."""
        rest = 1 - self.weights.sum(axis=2, keepdims=True)
        if not (np.all(self.weights > least) and np.all(rest > least)):
            raise ModelMismatch(
                "Weights of keys are not between 0 and 1: several keys are not weighed by one "
                "softmax, as pairs of tokens suggest."
            )
        return np.asarray(np.log(self.weights / rest))


def weights_of(
    frame: NormalisedFrame, values: NormalisedValues, keys: Array, tokens: Array, y: Array
) -> KeyWeights:
    """Read the weights of one block's keys for its tokens."""
    H, n, q = len(values.bases), len(keys), len(tokens)
    columns = UnknownScales.beside(values.columns(keys))
    _, unknowns, _ = columns.solved(frame.directions(y), frame.of(tokens))
    k = values.open
    return KeyWeights(
        unknowns[:, : H * n].reshape(q, H, n), unknowns[:, H * n :].reshape(q, H - 1, k)
    )


def close_values(
    frame: NormalisedFrame, values: NormalisedValues, asked: KeyRound
) -> NormalisedValues:
    """Find T from how the weights of all blocks leave it."""
    if not values.open:
        return values
    parts = []
    for keys, tokens, y in zip(asked.blocks, asked.tokens, asked.y, strict=True):
        read = weights_of(frame, values, keys, tokens, y)
        differences = (read.weights[:, :-1] - read.weights[:, -1:]).reshape(-1, len(keys))
        free = read.free.reshape(len(differences), -1)
        parts.append(np.linalg.lstsq(differences, free, rcond=None)[0])
    T = np.linalg.lstsq(np.vstack(asked.blocks), np.vstack(parts), rcond=None)[0].T
    return values.completed(T)
