"""A ReLU network that was learned, with bounds on what it and the answers may be off by.

g is the target's network, ĝ the one that was learned from single tokens, T([x]) = g(x):

    |ĝ(x) − g(x)| ≤ constant + slope·‖x‖        from the certificate of the network's learner
    |y − T(X)| ≤ η(size, y)                     from the answers' precision

The size of an answer is what its terms may add up to at a pooled token x:
‖x‖·Σ_k |w_k|‖A_k‖ + Σ_k |w_k b_k| + |c|. Nothing here knows how the network was learned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.models import ReluNetwork
from unsoftmax.models.relu_network import typical_length
from unsoftmax.probes import Array

# Deviations of g − ĝ that its certificate is, at least.
DEVIATIONS = 6.0
# Probability that the deviation is taken for smaller than it is, by chance.
UNDERESTIMATED = 1e-2


@dataclass(frozen=True, slots=True)
class LearnedNetwork:
    """The network ĝ, and what bounds its error.

    Attributes
    ----------
    network : ReluNetwork
        ĝ.
    constant, slope : float
        ``|ĝ(x) − g(x)|`` ≤ constant + slope·‖x‖; infinite where there is no such bound.
    precision : Precision
        Of the target's answers.
    """

    network: ReluNetwork
    constant: float
    slope: float
    precision: Precision

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return self.network.dim

    @property
    def length(self) -> float:
        """A typical distance of the network's hyperplanes from 0; 1 where all contain 0.

        Where the error has a constant and a slope it is their quotient: biases that are smaller
        cannot be told from none.
        """
        if 0 < self.constant < np.inf and 0 < self.slope < np.inf:
            return self.constant / self.slope
        return 1.0 if self.constant == 0 else typical_length(self.network)

    def error(self, x: Array) -> Array:
        """Bound ``|ĝ(x) − g(x)|`` at points (n, d)."""
        return np.asarray(self.constant + self.slope * np.linalg.norm(x, axis=1))

    def answer_error(self, x: Array, y: Array) -> Array:
        """Bound what answers y (n,) to sequences whose pooled tokens are x (n, d) are off by."""
        g = self.network
        size = np.linalg.norm(x, axis=1) * float(np.abs(g.w_o) @ np.linalg.norm(g.A, axis=0))
        size = size + float(np.abs(g.w_o) @ np.abs(g.b)) + abs(g.c)
        return self.precision.error(size, y)

    def rounding(self, x: Array, y: Array) -> Array:
        """Return the deviation that rounding, noise, of answers y (n,) at points x may have.

        Terms of the neurons are rounded each by itself, evenly up to a roundoff.
        """
        g, length = self.network, np.linalg.norm(x, axis=1)[:, None]
        terms = g.w_o * (length * np.linalg.norm(g.A, axis=0) + np.abs(g.b))
        size = np.linalg.norm(terms, axis=1) + abs(g.c)
        return np.asarray(self.precision.error(size, y) / (KAPPA * np.sqrt(3)))

    def difference_error(self, x: Array, y: Array) -> Array:
        """Bound the error of ĝ(y) − ĝ(x), (n,): a smaller change says nothing about g.

        0 where ĝ has no error bound, so that every change counts.
        """
        error = self.error(x) + self.error(y)
        return np.where(np.isfinite(error), error, 0.0)

    def typical_share(self, x: Array, missed: Array, tokens: int) -> float:
        """Return the deviation of g − ĝ, as a share of `error`, that answers at points x show.

        Points beside one of so many ``tokens`` count once: the fewer there are, the smaller they
        may be by chance. ``missed`` is NaN where nothing was asked.
        """
        most, error, asked = 1 / DEVIATIONS, self.error(x), np.isfinite(missed)
        if not np.any(asked) or not np.all(error > 0):
            return most
        x, missed, error = x[asked], missed[asked], error[asked]
        tokens = min(tokens, len(x))
        square = float(np.mean((missed / error) ** 2))
        by_chance = 2 * scipy.special.gammaincinv(tokens / 2, UNDERESTIMATED)
        return min(most, float(np.sqrt(square * tokens / by_chance)))

    def moved(self, x: Array, share: float, rng: np.random.Generator) -> LearnedNetwork:
        """Draw a network that differs at points x (n, d) by a ``share`` of `error`."""
        g, error = self.network, self.error(x)
        size = np.linalg.norm(g.A, axis=0)
        if not np.all(error > 0):
            return self
        dA = size * rng.standard_normal(g.A.shape) / np.sqrt(self.dim)
        db, dc = size * rng.standard_normal(g.b.shape), float(rng.standard_normal())
        far = self.length if self.constant > 0 else 0.0
        dc *= far * float(np.abs(g.w_o) @ size)
        step = self.slope / float(np.abs(g.w_o) @ size)
        for _ in range(2):
            other = ReluNetwork(g.A + step * dA, g.w_o, g.b + step * far * db, g.c + step * dc)
            now = float(np.sqrt(np.mean(((other(x) - g(x)) / error) ** 2)))
            if now > 0:
                step *= share / now
        return replace(self, network=other)

    def gradients(self, x: Array) -> Array:
        """Return ∇ĝ at points (k, d)."""
        return network_gradients(self.network, x)

    def rows_at_once(self, numbers: int) -> int:
        """Return how many segments can be cut at once in an array of so many numbers."""
        d, m = self.network.A.shape
        return int(max(1, numbers // (m + 3 * d)))


def network_gradients(network: ReluNetwork, x: Array) -> Array:
    """Return a network's gradients at points (k, d); a neuron at its kink counts as inactive."""
    active = (x @ network.A + network.b > 0) * network.w_o
    return np.asarray(active @ network.A.T)
