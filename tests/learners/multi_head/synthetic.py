"""Heads whose answers are formulas: what the parts of the learner are tested with, no oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers, TokenLengths
from unsoftmax.learners.multi_head.window_sweeps import TokenHeads
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.windows import OffsetRoom, WindowedHeads, choose_windows
from unsoftmax.models import MultiHead

ETA = 4e-16


@dataclass(frozen=True)
class Scene:
    """Heads W, v (and w), a query token b, and what single tokens would have told."""

    model: MultiHead
    b: np.ndarray
    reduced: ReducedAnswers
    rng: np.random.Generator

    @classmethod
    def of(cls, W, v, w=None, seed=0, radius=None):
        rng = np.random.default_rng([seed, len(v)])
        model, lengths = MultiHead(W, v, w), TokenLengths.under(radius, w is not None)
        b = rng.standard_normal(model.dim)
        scale = float(np.linalg.norm(model.v, axis=1).max(initial=0.0)) or 1.0
        precision = Precision.relative_to_terms(ETA)
        reduced = ReducedAnswers(model.v.sum(axis=0), 0.0, precision, scale, lengths)
        return cls(model, lengths.length * b / np.linalg.norm(b), reduced, rng)

    @classmethod
    def random(cls, heads, dim, seed=0, rank=None, **more):
        rng = np.random.default_rng([heads, dim, seed, 17])
        W = rng.standard_normal((heads, dim, dim)) / np.sqrt(dim)
        if rank is not None:
            left, right = rng.standard_normal((2, heads, dim, rank))
            W = left @ right.transpose(0, 2, 1) / np.sqrt(dim * rank)
        return cls.of(W, rng.standard_normal((heads, dim)), seed=seed, **more)

    @property
    def u(self):
        """The u_h = W_h b + w_h (H, d)."""
        return self.model.scores_of(self.b[None])[0]

    @property
    def length(self):
        return float(np.linalg.norm(self.b))

    def token(self, u=None, v=None, v_error=0.0):
        """Return the heads seen from b, with windows made from u and v."""
        u, v = (self.u if u is None else u), (self.model.v if v is None else v)
        error = self.reduced.errors_at(self.length, v_error)
        room = OffsetRoom(0.5 * self.length, 1e14)
        windows = choose_windows((u, v), error, room, self.rng)
        return TokenHeads(self.reduced, self.b, WindowedHeads(u, v, windows, error))
