"""eps of the norm before attention, from the lengths of keys beside a far token.

One key of nine lengths shows about where it bends; four keys at the length at which they bend most
give eps. Attention is known beside that far token, so each answer tells |n(κ)|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.block.far_tokens import UNKNOWN_EPS, FarTokens
from unsoftmax.learners.compose import Asking
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Sequences
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.drawn_models import Layer

# Lengths of one key that find eps, the longest relative to √d, and each to the one before; keys at
# the length where eps bends most, which give it.
_RUNGS, _LONGEST, _APART, _REFINED = 9, 2.0**6, 2.0**-6, 4
# Keys that are drawn for them, beside how many far tokens, and lengths at which the answers are to
# differ: strong scores leave most keys without any weight, or with all.
DRAWN_KEYS, BESIDE, _TELLING = 64, 8, np.linspace(0, 1, 5)
# Values of |n(κ)|/√d that answers are compared with first, and steps from the nearest one.
_GRID, _STEPS, _STEP = 257, 6, 2.0**-14
# A key this near to the sphere at its shortest: eps is 0.
_UNBENT = 1e-3


def cost() -> Cost:
    """Bound what is asked."""
    return Cost.of(_RUNGS + _REFINED, tokens=2, rounds=2)


@dataclass(frozen=True, slots=True)
class KeyLengths:
    """Answers to keys of chosen lengths, that eps is read from.

    Attributes
    ----------
    x, y : ndarray (Q, d)
        Keys, as they are asked, and the differences.
    b : ndarray (d,)
        The far token.
    """

    x: Array
    y: Array
    b: Array

    def bent(self, inner: Layer, tokens: FarTokens) -> Array:
        """Return |n(κ)|/√d of every key, (Q,)."""
        unit, shown = tokens.on_sphere(self.x), tokens.shown(self.b[None])[0]

        def answered(share: Array) -> Array:
            return _beside(share[..., None] * unit, self.b, inner, shown)

        grid = np.linspace(0, 1, _GRID)
        each = answered(np.repeat(grid[:, None], len(self.x), axis=1))
        share = grid[np.argmin(np.linalg.norm(each - self.y, axis=2), axis=0)]
        for _ in range(_STEPS):
            slope = (answered(share + _STEP) - answered(share - _STEP)) / (2 * _STEP)
            missed = np.sum(slope * (self.y - answered(share)), axis=1)
            share = share + missed / np.maximum(np.sum(slope**2, axis=1), TINY)
        return np.asarray(share)

    def eps(self, share: Array, tokens: FarTokens) -> Array:
        """Return the eps with which keys have these shares of √d."""
        if not np.all(share):
            raise Reason.NO_NUMBERS.error(error="no key is so short that it shows eps")
        square = np.sum(tokens.within(self.x) ** 2, axis=1) / tokens.dim
        return np.asarray(square * (1 / share**2 - 1))

    def mean_eps(self, inner: Layer, tokens: FarTokens) -> tuple[float, float]:
        """Compute eps with attention beside these keys as it is known, and its standard error."""
        each = self.eps(self.bent(inner, tokens), tokens)
        return float(np.mean(each)), float(np.std(each) / np.sqrt(max(len(each) - 1, 1)))


def read_lengths(tokens: FarTokens, inner: Layer, far: Array, units: Array) -> Asking[KeyLengths]:
    """Ask some of these keys (n, d), of all lengths, beside one of these far tokens.

    ``inner`` adds what attention does beside them.
    """
    b, units = _telling(inner, tokens, far, units)
    rungs = _LONGEST * _APART ** np.arange(_RUNGS)[:, None] * units[:1]
    lengths = yield from _asked(tokens, rungs, b)
    share = lengths.bent(inner, tokens)
    if share[-1] > 1 - _UNBENT:
        raise Reason.EPS_IS_0.error()
    rung = int(np.argmin(np.abs(share**2 - 1 / 2)))
    if not 0 < share[rung] < 1:
        raise Reason.NO_TOKEN_HALF_BENT.error()
    half = np.sqrt(lengths.eps(share, tokens)[rung]) * units[1:]
    return (yield from _asked(tokens, half, b))


def _telling(inner: Layer, tokens: FarTokens, far: Array, units: Array) -> tuple[Array, Array]:
    """Choose a far token, and keys beside it whose lengths show best."""
    keys = _TELLING[:, None, None] * units
    each = [_beside(keys, b, inner, own) for b, own in zip(far, tokens.shown(far), strict=True)]
    apart = np.linalg.norm(np.diff(each, axis=1), axis=3).min(axis=1)
    wanted = min(1 + _REFINED, len(units))
    best = int(np.argmax(np.sort(apart, axis=1)[:, -wanted]))
    return far[best], units[np.argsort(-apart[best])[:wanted]]


def _beside(keys: Array, b: Array, inner: Layer, shown: Array) -> Array:
    """Return what keys (…, d), one by one beside b, add in the coordinates that are shown."""
    X = np.stack([keys, np.broadcast_to(b, keys.shape)], axis=-2)
    flat = inner(X.reshape(-1, 2, len(b))) - inner(b[None, None])
    return np.where(shown, flat, 0.0).reshape(keys.shape)


def _asked(tokens: FarTokens, x: Array, b: Array) -> Asking[KeyLengths]:
    """Ask keys x (Q, d) as they are, one by one beside b."""
    # of this length after a norm with the eps that they are made with
    keys = x / np.sqrt(np.sum(x * x, axis=1, keepdims=True) / tokens.dim + UNKNOWN_EPS)
    X = np.stack([keys, np.broadcast_to(b, keys.shape)], axis=1)
    [y] = yield [Sequences(X, phase="eps", purpose="data")]
    return KeyLengths(x, y, b)
