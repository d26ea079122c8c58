"""eps of a norm behind a layer, from tokens at which what is normalised is small: 16 queries.

‖n‖²/d = v/(v + eps), v the variance of u = x + F(x): so eps = v(d/‖n‖² − 1), which tells most where
v is about eps. A token with Pu = 0, or with as small a Pu as is found, comes of Newton's method on
the recovered layer; others go away from it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.feed_forward.line_cells import AskTokens
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers

# Newton's method: starts, steps from each, of which ten are usual, and how often a step is halved.
STARTS, STEPS, HALVINGS = 4, 40, 8
# Number of tokens, and range of log10 of their variances.
TOKENS, DECADES = 16, (-14.0, 1.0)
# An eps below so many of its errors is 0.
TOLD = 3.0


@dataclass(frozen=True, slots=True)
class SmallSums:
    """Asks such tokens."""

    layer: FeedForward
    """The recovered one, without its norm."""
    norm: LayerNorm
    """With an eps of 0."""
    error_at: Callable[[Array], Array]
    """What u is off by at tokens (n, d), 2-norms."""
    noise: float
    """What n is off by, relative."""
    rng: np.random.Generator

    def run(self, ask: AskTokens, length: float) -> Generator[Round, Answers, tuple[float, float]]:
        """Return eps and what it may be off by."""
        d = self.layer.dim
        x = self._smallest(length)
        way = self.rng.standard_normal(d)
        moved = np.sqrt(np.mean((self._jacobian(x) @ way) ** 2)) or 1.0
        variances = 10.0 ** np.linspace(*DECADES, TOKENS)
        tokens = x + (np.sqrt(variances) / moved)[:, None] * way
        y = yield from ask(tokens)
        n = (y - self.norm.shift) / self.norm.scale
        share = np.mean(n * n, axis=1)
        v = np.mean(self._sums(tokens) ** 2, axis=1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            eps = v * (1 / share - 1)
            off = self.error_at(tokens) / np.sqrt(d * v)
            error = 2 * off * (np.abs(eps) + off * v) + 2 * self.noise * (v + np.abs(eps))
        error = np.where(np.isfinite(eps) & np.isfinite(error), error, np.inf)
        best = int(np.argmin(error))
        told = eps[best] > TOLD * error[best]
        return float(eps[best]) if told else 0.0, float(error[best])

    def _sums(self, x: Array) -> Array:
        u = self.layer(x)
        return u - u.mean(axis=1, keepdims=True) if self.norm.centred else u

    def _jacobian(self, x: Array) -> Array:
        f = self.layer
        active = (f.A @ x + f.b) > 0
        J = np.eye(f.dim) * f.residual + f.B[:, active] @ f.A[active]
        return np.asarray(J - J.mean(axis=0) if self.norm.centred else J)

    def _smallest(self, length: float) -> Array:
        """Return a token at which u is as small as is found."""
        best, least = np.zeros(self.layer.dim), np.inf
        for _ in range(STARTS):
            x = self.rng.standard_normal(self.layer.dim)
            x *= length / np.linalg.norm(x)
            x, size = self._descended(x)
            if size < least:
                best, least = x, size
            if least < np.sqrt(self.layer.dim) * 10.0 ** DECADES[0]:
                break
        return best

    def _descended(self, x: Array) -> tuple[Array, float]:
        u = self._sums(x[None])[0]
        size = float(np.linalg.norm(u))
        for _ in range(STEPS):
            step = -np.linalg.lstsq(self._jacobian(x), u, rcond=1e-10)[0]
            for halved in range(HALVINGS):
                new = x + step / 2**halved
                there = self._sums(new[None])[0]
                if np.linalg.norm(there) < size:
                    break
            else:
                break
            x, u, size = new, there, float(np.linalg.norm(there))
        return x, size
