"""What an answer tells of u = x_N + o(X): all of it, or its direction alone, behind a norm.

All that a layer's answers are read for is linear in unknowns: z = u − K(b), K(b) = (I + M) b + c,
is a sum of known columns with unknown weights, or several z are sums of a few unknown vectors with
known weights. Where u is known up to a factor, μw, the factor is one unknown more of the same
system (`measure.normalised`), and what is left to do is what is done with answers of plain layers.
So a `LayerMap` *reads* answers: a plain one returns them as they are, and `DirectionMap`, in the
d − 1 coordinates that a norm leaves, the μw that the system determines.

*Source*: beyond arXiv 2601.16873; docs/theorems/vector_answers.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from unsoftmax.learners.attention_layer.value_answers import LayerMap
from unsoftmax.measure.normalised import NormedAnswers, UnknownScales
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class DirectionMap(LayerMap):
    """K(b) = M b + c in the coordinates of `NormedAnswers`, answers being directions there.

    Attributes
    ----------
    norm : NormedAnswers
        β, g and R.
    noise : float
        What a number of a normalised answer is off by.
    """

    norm: NormedAnswers
    noise: float

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.M.shape[1])

    @property
    def numbers(self) -> int:  # noqa: D102
        return len(self.norm.gain)

    @property
    def up_to_factor(self) -> bool:  # noqa: D102
        return True

    @property
    def heads(self) -> Array:
        """P_w Σ M_h (d − 1, d), in true units."""
        return self.M - self.norm.projection

    def known(self, tokens: Array) -> Array:
        """Return K of tokens (…, d)."""
        return np.asarray(tokens @ self.M.T + self.c)

    def directions(self, y: Array) -> Array:
        """Return the directions of answers (…, d), of norm 1."""
        w = (y - self.norm.shift) @ self.norm.basis.T
        return np.asarray(w / np.maximum(np.linalg.norm(w, axis=-1, keepdims=True), UNIT))

    def scaled(self, sigma: float) -> Self:
        """Return the map in true units, of ``sigma`` times them with the sign that g lacks."""
        s = abs(sigma)
        return replace(self, norm=self.norm.with_sign(sigma), M=self.M / s, c=self.c / s)

    def outputs(self, columns: Array) -> Array:  # noqa: D102
        return self.norm.centred(columns)

    def read(self, y: Array, b: Array, columns: Array) -> Array:  # noqa: D102
        w, known = self.directions(y), self.known(b)
        mu, _, _ = UnknownScales.beside(columns).solved(w, known)
        return np.asarray(mu[:, None] * w)

    def read_weighted(self, y: Array, b: Array, weights: Array) -> Array:  # noqa: D102
        w, known = self.directions(y), self.known(b)
        # no combination of answers whose weights cancel has anything beside K
        null = np.linalg.svd(weights)[0][:, np.linalg.matrix_rank(weights) :]
        # the same in the span of all that is there, of fewer numbers
        span = np.linalg.qr(np.vstack([w, known]).T)[0]
        system = np.einsum("km,kf->mfk", w @ span, null).reshape(-1, len(w))
        mu = np.linalg.lstsq(system, (span.T @ known.T @ null).ravel(), rcond=None)[0]
        return np.asarray(mu[:, None] * w)

    def read_along(self, y: Array, b: Array, expected: Array) -> Array:  # noqa: D102
        w, whole = self.directions(y), self.known(b) + expected
        return np.asarray(np.sum(w * whole, axis=-1, keepdims=True) * w)

    def read_shares(self, y: Array, b: Array, a: Array) -> Array:  # noqa: D102
        w, known = self.directions(y), self.known(b)
        sums = a @ self.heads.T + known.sum(axis=0)
        each = [np.linalg.lstsq(w[:, j].T, sums[j], rcond=None)[0] for j in range(len(a))]
        return np.asarray(np.reshape(each, (len(a), len(w))).T[..., None] * w)


@dataclass(frozen=True, slots=True)
class NormedNoise(AnswerNoise):
    """What answers behind a norm are off by: every number, relative to itself and to γ.

    Attributes
    ----------
    scale : ndarray, shape (d,)
        |γ|.
    """

    scale: Array = field(kw_only=True)

    def drawn(self, answers: Array, rng: np.random.Generator) -> Array:  # noqa: D102
        size = np.abs(answers) + np.abs(self.scale)
        return np.asarray(self.relative * size * rng.standard_normal(answers.shape))
