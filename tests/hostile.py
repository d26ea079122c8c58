"""Who chooses the signs of answers that are off by exactly ±τ, each with its own idea of harm.

AVQ(τ) promises answers within ±τ and nothing else, so a theorem about it must survive all of
these; `us.oracles.within` takes their word. What changes from call to call ("alternating") is
allowed, too.
"""

from typing import Any

import numpy as np

import unsoftmax as us

ADVERSARIES = (
    "worst",
    "outward",
    "aligned",
    "random",
    "constant",
    "parity",
    "alternating",
    "pattern",
)


def hostile(target: us.SingleHead, tau: float, how: str, seed: int = 0, **settings: Any) -> Any:
    """f(X) ± τ with signs chosen against whoever reads it.

    - *worst*: single tokens make all errors of v alike, and every longer sequence errs in the
      direction in which these push it already, −Σ_i α_i x_i·g, g = (1, …, 1);
    - *outward*: the same with g the signs of v, so that v comes out too long;
    - *pattern*: the same with signs g at random;
    - *aligned*: the logits of all pairs err along one rank-one direction of W;
    - *random*, *constant*, *parity*: by the content of the question;
    - *alternating*: by the number of the answer, so that asking twice gives both.
    """
    directions: dict[str, Any] = {
        "worst": target,
        "outward": Pattern(target, np.where(target.v >= 0, 1.0, -1.0)),
        "pattern": Pattern(target, np.random.default_rng(seed).choice([-1.0, 1.0], target.dim)),
        "aligned": Aligned(target.v, seed),
        "random": None,
        "constant": lambda X: np.ones(len(X)),
        "parity": lambda X: (-1.0) ** np.floor(np.abs(X).sum(axis=(1, 2)) * 1e3),
        "alternating": Alternating(),
    }
    liar = us.oracles.within(target, tau, worst=directions[how], seed=seed, **settings)
    return lambda X: liar(X)  # nothing of the target to look at but its answers


class Pattern:
    """What a truth given to `within` does with g = (1, …, 1), with another g."""

    def __init__(self, target: us.SingleHead, g: Any) -> None:
        self.of_g = us.SingleHead(target.W, g, target.w)

    def __call__(self, X: Any) -> Any:
        return self.of_g(X) if X.shape[1] == 1 else -self.of_g(X)


class Aligned:
    """Pairs err along one rank-one direction of W, all else by a hash."""

    def __init__(self, v: Any, seed: int) -> None:
        self.v = v
        self.left, self.right = np.random.default_rng([seed, 2]).standard_normal((2, len(v)))

    def __call__(self, X: Any) -> Any:
        if X.shape[1] != 2:
            return np.sin(1e5 * (X @ self.left).sum(axis=1))
        a, b = X[:, 0] - X[:, 1], X[:, 1]
        return (a @ self.left) * (b @ self.right) * (a @ self.v)


class Alternating:
    """Signs by the number of the answer."""

    def __init__(self) -> None:
        self.answered = 0

    def __call__(self, X: Any) -> Any:
        numbers = self.answered + np.arange(len(X))
        self.answered += len(X)
        return (-1.0) ** numbers
