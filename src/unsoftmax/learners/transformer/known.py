"""A network that was learned, and how far it may be from the target's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.precision import Precision
from unsoftmax.models import ReluNetwork
from unsoftmax.models.relu_network import typical_length
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class Known:
    """The network, and how far its answers may be from g's: constant + slope·‖x‖."""

    network: ReluNetwork
    constant: float
    slope: float
    precision: Precision

    @property
    def length(self) -> float:
        """A typical distance of the network's hyperplanes from 0; 1 where all contain 0."""
        if 0 < self.constant < np.inf and 0 < self.slope < np.inf:
            return self.constant / self.slope  # biases below the network's error are none
        return 1.0 if self.constant == 0 else typical_length(self.network)

    def error(self, x: Array) -> Array:
        """Bound ``|ĝ(x) − g(x)|``."""
        return np.asarray(self.constant + self.slope * np.linalg.norm(x, axis=1))

    def rounding(self, x: Array, y: Array) -> Array:
        """Bound what an answer is off by."""
        g = self.network
        size = np.linalg.norm(x, axis=1) * float(np.abs(g.w_o) @ np.linalg.norm(g.A, axis=0))
        size = size + float(np.abs(g.w_o) @ np.abs(g.b)) + abs(g.c)
        return self.precision.error(size, y)

    def unseen(self, x: Array, y: Array) -> Array:
        """Return the change of ĝ between x and y below which it tells nothing of g's."""
        error = self.error(x) + self.error(y)
        return np.where(np.isfinite(error), error, 0.0)
