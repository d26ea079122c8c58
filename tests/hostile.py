"""Oracles that know the truth and lie by exactly ±τ, each with its own idea of what hurts.

AVQ(τ) promises answers within ±τ and nothing else, so a theorem about it must survive all of
these. What changes from call to call ("alternating") is allowed, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit

ADVERSARIES = ("worst", "outward", "aligned", "random", "constant", "parity", "alternating")


class Hostile:
    """f(X) ± τ with signs chosen against whoever reads it.

    - *worst*: single tokens make the errors of v a random pattern g; every pair then errs in the
      direction in which this pattern pushes its logit already, −(b·g + p·a·g);
    - *outward*: the same with g = v, so that v comes out too long;
    - *aligned*: the logits of all pairs err along one rank-one direction of W;
    - *random*, *constant*, *parity*: by the content of the question;
    - *alternating*: by the number of the answer, so that asking twice gives both.
    """

    def __init__(
        self, target: Callable[[Any], Any], v: Any, W: Any, tau: float, how: str, seed: int = 0
    ) -> None:
        rng = np.random.default_rng([seed, ADVERSARIES.index(how)])
        self.target, self.v, self.W, self.tau, self.how = target, v, W, tau, how
        self.g = rng.choice([-1.0, 1.0], len(v))
        if how == "outward":
            self.g = np.where(v >= 0, 1.0, -1.0)
        self.left, self.right = rng.standard_normal((2, len(v)))
        self.answered = 0

    def __call__(self, X: Any) -> Any:
        y = self.target(X)
        signs = self.signs(X)
        assert set(np.unique(signs)) <= {-1.0, 1.0}
        self.answered += len(X)
        # less what adding it rounds
        return y + signs * (self.tau * (1 - 1e-12) - 4e-16 * np.abs(y)).clip(0)

    def signs(self, X: Any) -> Any:
        how = self.how
        if how == "constant":
            return np.ones(len(X))
        if how == "alternating":
            return (-1.0) ** (self.answered + np.arange(len(X)))
        if how == "random" or (X.shape[1] > 2 and how != "parity"):
            return _sign(np.sin(1e5 * (X @ self.left).sum(axis=1)))
        if how == "parity":
            return (-1.0) ** np.floor(np.abs(X).sum(axis=(1, 2)) * 1e3)
        if X.shape[1] == 1:
            return _sign(X[:, 0] @ self.g)
        a, b = X[:, 0] - X[:, 1], X[:, 1]
        if how == "aligned":
            return _sign((a @ self.left) * (b @ self.right) * (a @ self.v))
        p = expit(np.einsum("bd,de,be->b", a, self.W, b))
        return _sign(-(b @ self.g) - p * (a @ self.g))


def _sign(x: Any) -> Any:
    return np.where(x >= 0, 1.0, -1.0)
