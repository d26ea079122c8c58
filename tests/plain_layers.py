"""Attention layers in plain NumPy, with a norm behind them or before, whose answers may be off."""

from collections.abc import Callable
from typing import Any

import numpy as np

import unsoftmax as us

Disturbed = Callable[[Any], Any]


def normalised(u: Any, scale: Any, shift: Any, eps: float) -> Any:
    u = u - u.mean(axis=-1, keepdims=True)
    return scale * u / np.sqrt(np.mean(u * u, axis=-1, keepdims=True) + eps) + shift


class PlainLayer:
    """Heads of random maps and scores; the last one's M is ``smallest`` of the largest one's.

    A shape is d, heads and their rank.
    """

    def __init__(
        self,
        rng: Any,
        place: str = "none",
        *,
        smallest: float = 1.0,
        eps: float = 1e-5,
        disturbed: Disturbed = lambda y: y,
        shape: tuple[int, int, int] | None = None,
    ) -> None:
        drawn = int(rng.choice([10, 12, 16])), int(rng.choice([2, 3])), int(rng.choice([2, 3]))
        d, heads, rank = shape or drawn
        self.dim = d

        def maps() -> Any:
            left, right = (
                rng.standard_normal((heads, d, rank)),
                rng.standard_normal((heads, rank, d)),
            )
            return left @ right / d

        self.M, self.W, self.w = maps(), maps(), 0.3 * rng.standard_normal((heads, d))
        sizes = np.linalg.norm(self.M, axis=(1, 2))
        if smallest < 1:
            self.M[-1] *= smallest * sizes[:-1].max() / sizes[-1]
        self.c, self.place, self.disturbed = 0.3 * rng.standard_normal(d), place, disturbed
        scale, shift = 1 + 0.3 * rng.standard_normal(d), 0.1 * rng.standard_normal(d)
        self.norm: Any = (scale, shift, eps)

    def __call__(self, X: Any) -> Any:
        Z = normalised(X, *self.norm) if self.place == "pre" else X
        u = self.c if self.place == "none" else self.c + X[:, -1]
        for M, W, w in zip(self.M, self.W, self.w, strict=True):
            scores = np.einsum("bnd,bd->bn", Z, Z[:, -1] @ W.T + w)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            u = u + np.einsum("bn,bnd->bd", weights, Z) @ M.T
        return self.disturbed(normalised(u, *self.norm) if self.place == "post" else u)

    def learner(self, seed: int) -> us.learners.AttentionLayerLearner:
        return us.learners.AttentionLayerLearner(self.dim, norm=self.place, seed=seed)

    def model(self) -> us.AttentionLayer:
        """Return the layer that it is, to compare a recovery with."""
        parts = zip(self.M, self.W, self.w, strict=True)
        heads = [us.LayerHead(M, W, w) for M, W, w in parts]
        if self.place == "none":
            return us.AttentionLayer(heads, self.c)
        scale, shift, eps = self.norm
        norm = us.LayerNorm(scale, shift, eps, before=self.place == "pre")
        return us.AttentionLayer(heads, self.c, residual=True, norm=norm)
