"""The matrix of least nuclear norm as a head, with what bounds its errors.

The measurements' smallest gain among the matrices of its rank around it says how far W can be:
see `unsoftmax.solve.fixed_rank`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.single_head.sensing.gaussian_readings import GaussianReadings
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.solve.fixed_rank import fixed_rank_error
from unsoftmax.solve.nuclear_norm import Minimiser
from unsoftmax.solve.tangent_space import TangentTuning
from unsoftmax.validate.head_comparison import HeadBounds


@dataclass(frozen=True, slots=True)
class SensedHead:
    """The matrix of least nuclear norm with everything that bounds its errors."""

    model: SingleHead
    values: Values
    asked: GaussianReadings
    found: int
    """Rank of the model's W."""
    rank: int
    """The largest rank that W may have."""
    tangent: TangentTuning
    _known: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    """The bound on W once it was worked out: at d = 384 it takes a minute."""

    @classmethod
    def of(
        cls, found: Minimiser, asked: GaussianReadings, rank: int, tangent: TangentTuning
    ) -> SensedHead:
        """Split the minimiser into its factors."""
        left, singular, right = np.linalg.svd(found.W)
        root = np.sqrt(singular[: found.rank])[:, None]
        K, Q = root * left[:, : found.rank].T, root * right[: found.rank]
        model = SingleHead.from_factors(K, Q, asked.values.v)
        return cls(model, asked.values, asked, found.rank, rank, tangent)

    def bounds(self) -> HeadBounds:
        """Bound the errors by the measurements' gain on matrices near Ŵ."""
        if not self._known:
            measured = self.asked.measurements(self.values, self.model)
            ranks = self.found, self.rank
            self._known.append(fixed_rank_error(measured, self.model.W, *ranks, self.tangent))
        unbounded = (
            "No bound on W: the measurements' errors are too large beside its singular values, or "
            "their gain is 0.",
        )
        [W_error] = self._known
        return HeadBounds.of(
            self.values,
            W_error,
            0.0,
            *(() if np.isfinite(W_error) else unbounded),
            f"W has rank {self.rank} or less, and is near the matrix of least nuclear norm: the "
            "bound comes from the measurements' smallest gain among the matrices of that rank "
            "around it.",
        )

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        return tuple(self.values.precision.why)
