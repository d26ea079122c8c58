"""A function of the user's own as a claim: it predicts answers, and has no tensors to name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from unsoftmax.probes import Array
from unsoftmax.protocol import as_array, at_all_positions


@dataclass(frozen=True, eq=False)
class ClaimedFunction:
    """A function from (B, N, d) to (B,), (B, m) or (B, N, m), as its maps."""

    function: Callable[[Array], Any]
    dim: int

    @property
    def maps(self) -> ClaimedFunction:
        """The function itself: it has no parts."""
        return self

    @property
    def attends(self) -> bool:
        """Whether sequences of several tokens are asked."""
        return True

    @cached_property
    def outputs(self) -> int:
        """How many numbers it gives at a position."""
        return int(self.answers(np.ones((1, 2, self.dim))).shape[2])

    @cached_property
    def everywhere(self) -> bool:
        """Whether it answers at all positions."""
        return np.ndim(as_array(self._function(np.ones((1, 2, self.dim))))) == 3

    @property
    def _function(self) -> Callable[[Array], Any]:
        return at_all_positions(self.function)

    def answers(self, X: Array, every: bool = False) -> Array:
        """Evaluate it, (B, 1, m) at the last position, or (B, N, m) at all.

        Raises
        ------
        ValueError
            It gives something else than finite numbers of that shape.
        """
        y = np.asarray(as_array(self._function(X)))
        y = y[:, None] if y.shape == X.shape[:1] else y
        y = y[:, None] if y.ndim == 2 else y
        positions = X.shape[1] if every else 1
        if y.ndim == 3 and y.shape[:2] == X.shape[:2] and not every:
            y = y[:, -1:]
        if y.shape[:2] != (len(X), positions) or y.ndim != 3 or y.dtype.kind not in "fiu":
            raise ValueError(
                f"The claimed function answered {X.shape} with {y.dtype} of shape {y.shape}; it "
                f"must give ({len(X)},), ({len(X)}, m) or ({len(X)}, {X.shape[1]}, m) numbers."
            )
        if not np.all(np.isfinite(y)):
            raise ValueError("The claimed function answered a question with what is not finite.")
        return y.astype(np.float64)

    def arrays(self) -> dict[str, Array]:
        """Return what its questions depend on: its answers to a few sequences."""
        X = np.random.default_rng(0).standard_normal((4, 3, self.dim))
        return {"answers": self.answers(X)}
