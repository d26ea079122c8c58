"""Tokens that a norm before a layer maps to chosen ones: a ball of radius √d.

n(x) = Px/√(|Px|²/d + eps), P = I − 11ᵀ/d, or P = I of RMSNorm, takes any value of the open ball
|n| < √d in the range of P, at x = n √(eps/(1 − |n|²/d)). So with an orthonormal basis E of that
range a layer o(n(x)) is a plain layer of t = Eᵀn, |t| < √d, in d − 1 or d dimensions, and its
learner asks tokens t; its answers are those of the target, less x_N where there is a residual.
"""

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking, T, mapped, read_as
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.models import AttentionLayer, LayerHead, LayerNorm
from unsoftmax.probes import Array, Changed, Probes, Round
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class NormedKind:
    """What stands around the heads of a layer after a norm."""

    residual: bool
    centred: bool


# Tokens are at most so many times as long as after the norm, and their squares short of the rim's
# by a few roundoffs at least.
LONGEST, ROUNDOFF = 2.0**10, 2.0**-54
# The longest normalised tokens that are asked afresh, beside what none of them reaches.
INSIDE = 0.9995


def longer(t: Array, dim: int, eps: float) -> Array:
    """Return how many times longer than t (…, k) a token is that the norm maps to it, (…, 1)."""
    left = 1 - np.sum(t * t, axis=-1, keepdims=True) / dim
    return np.asarray(np.sqrt(eps / np.maximum(left, ROUNDOFF)))


@dataclass(frozen=True, slots=True)
class TokensBefore(Changed):
    """Probes of tokens t, as the tokens x that a norm maps to them.

    Attributes
    ----------
    inner : Probes
        Tokens t (…, k), |t| < √d.
    basis : ndarray (d, k)
        E, and a mean for every token, which the norm takes off.
    eps : float
    """

    basis: Array
    eps: float

    @property
    def dim(self) -> int:  # noqa: D102
        return len(self.basis)

    def __getitem__(self, span: slice) -> Array:
        t = self.inner[span]
        return np.asarray(t @ self.basis.T * longer(t, self.dim, self.eps))


@dataclass(frozen=True, slots=True)
class NormedTokens:
    """How tokens t of the ball are asked, and a layer of them is one of tokens x.

    Attributes
    ----------
    kind : NormedKind
    eps, eps_spread : float
        And by how much several directions differ about it, relatively.
    eps_per_noise : float
        By how much of itself it is off where answers are off by all of theirs.
    frame : ndarray (d, k)
        E.
    means : ndarray (d, k)
        What is added to E: the same number in every row of a column.
    precision : Precision
        Of the target's answers, by their format; less x_N they have none.
    """

    kind: NormedKind
    eps: float
    eps_spread: float
    eps_per_noise: float
    frame: Array
    means: Array
    precision: Precision

    @property
    def radius(self) -> float:
        """√d."""
        return float(np.sqrt(len(self.frame)))

    @property
    def least_left(self) -> float:
        """What the squares of the longest tokens t are short of the rim's by, as a share."""
        return float(max(self.eps / LONGEST**2, 4 * ROUNDOFF))

    def lengths(self, t: Array) -> Array:
        """Return the norms of the tokens that tokens t (…, k) are made of, (…)."""
        times = longer(t, len(self.frame), self.eps)[..., 0]
        return np.asarray(np.linalg.norm(t, axis=-1) * times)

    def eps_error(self, noise: float) -> float:
        """Return what eps may be off by, relatively, of answers this much off.

        A drift is alike in all directions.
        """
        return max(self.eps_spread, self.eps_per_noise * max(KAPPA * UNIT, noise))

    def asked_of(self, steps: Asking[T]) -> Asking[T]:
        """Run a learner of tokens t on the target."""

        def before(asked: Round) -> Round:
            return [self._before(probes) for probes in asked]

        def heads_alone(asked: Round, answers: Answers) -> Answers:
            pairs = zip(asked, answers, strict=True)
            return [self._heads_alone(self._before(probes), y) for probes, y in pairs]

        return mapped(read_as(steps, heads_alone), before)

    def _before(self, probes: Probes) -> TokensBefore:
        basis = self.frame + self.means
        return TokensBefore(probes, basis, self.eps, phase=probes.phase, purpose=probes.purpose)

    def _heads_alone(self, probes: TokensBefore, y: Array) -> Array:
        """Take the residual off; what was not answered stays so."""
        if not self.kind.residual or not len(y):
            return y
        return np.asarray(y - probes[0 : len(probes)][:, -1])

    def layer(self, plain: AttentionLayer) -> AttentionLayer:
        """Return the layer of tokens x whose layer of tokens t is ``plain``."""
        E, heads = self.frame, []
        for head in plain.heads:
            own = head.arrays()
            V, K, Q = (own[name] @ E.T for name in "VKQ")
            heads.append(LayerHead.from_factors(O=own["O"], V=V, K=K, Q=Q, w=E @ head.w))
        norm = LayerNorm(np.ones(len(E)), None, self.eps, before=True, centred=self.kind.centred)
        return AttentionLayer(heads, plain.c, self.kind.residual, norm)
