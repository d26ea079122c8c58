"""From W(1), and r × r readings one token farther, to keys, queries and frequencies.

W(Δ) = Kᵀ R(Δ) Q has one range for all Δ, that of Kᵀ. With an orthonormal basis B of it, found
with W(1) = B L, and r query tokens X that span the row space,

    T = (Bᵀ W(2) X)(L X)⁻¹ = P R(1) P⁻¹,    P = (BᵀKᵀ) up to one complex number per plane,
    Kᵀ = B P,    Q = R(−1) P⁻¹ L.

*Errors*: T is off by δT, W(1) by E; then W(Δ) by at most κ(P)·E + |Δ − 1|·‖P‖‖P⁻¹δT P‖‖P⁻¹L‖ to
first order, taken twice for what moving eigenvalues to the unit circle changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.single_head.factored_reading import FactoredReading
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.spaced_answers import SpacedAnswers
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array
from unsoftmax.solve.turning_planes import TurningPlanes, turning_planes


@dataclass(frozen=True, slots=True)
class RotaryTuning:
    """Knobs of what is learned of positions."""

    gain: float = 2.0**40
    """Offsets are so many times as long as logits ask for, query tokens as much shorter: a query
    token's own score is then 2⁻⁸⁰ of the logits, and no reading needs it."""
    still: float = 2.0
    """Planes that turn by less than so many times the bound on their turning, per token, count as
    not turning."""
    farthest: int = 20
    """The certificate's bound on W is for distances from 0 to this."""
    told: float = 4.0
    """Frequencies that were told may differ from those found by so many times their bounds."""
    crooked: float = 1e-3
    """Where what is read turns no planes but for this share, it is no rotation of planes."""


@dataclass(frozen=True, slots=True)
class PositionErrors:
    """Bounds on the errors of W(Δ): ``near`` + |Δ − 1|·``turning``."""

    near: float
    turning: float

    def at(self, distances: Array) -> Array:
        """Bound ‖Ŵ(Δ) − W(Δ)‖_F."""
        return np.asarray(self.near + np.abs(distances - 1) * self.turning)


@dataclass(frozen=True, slots=True)
class TurnedReading:
    """A head as it was read, with all that bounds its errors."""

    model: RotaryHead
    values: Values
    near: FactoredReading
    """W(1)."""
    spaced: SpacedAnswers | None
    """A W(2) X; None where W is 0."""
    planes: TurningPlanes

    def position_errors(self) -> PositionErrors:
        """Bound the errors of all W(Δ)."""
        return _errors(self.near, self.spaced, self.planes, self.values)


def turned(
    near: FactoredReading,
    spaced: SpacedAnswers,
    told: Rotary | None,
    tuning: RotaryTuning,
) -> TurnedReading:
    """Find the planes that T turns, and the keys and queries that they are made of."""
    values, L = near.values, near.right.matrix
    T = _step(near, spaced, values)
    planes = turning_planes(T, 0.0)
    errors = _errors(near, spaced, planes, values)
    size = float(np.linalg.norm(L))
    unsure = errors.turning / size if size else 0.0
    planes = turning_planes(T, tuning.still * unsure)
    if planes.off_circle > max(tuning.crooked, unsure):
        raise ModelMismatch(
            "Scores change with distance, and not as planes that turn: a step of one token "
            f"lengthens or shortens some by {planes.off_circle:.1e}. These are no rotary "
            "positions; no learner here recovers them."
        )
    found = planes.angles
    if told is not None:
        found = _as_told(found, told, tuning.told * unsure)
    return TurnedReading(_head(near, planes, found), values, near, spaced, planes)


def _step(near: FactoredReading, spaced: SpacedAnswers, values: Values) -> Array:
    """Return T = (Bᵀ W(2) X)(L X)⁻¹."""
    here = near.right.matrix @ spaced.queries.T
    there = near.skeleton.coordinates(spaced.measured(values).T)
    return np.asarray(np.linalg.solve(here.T, there.T).T)


def _head(near: FactoredReading, planes: TurningPlanes, angles: Array) -> RotaryHead:
    """Return the head with Kᵀ = B P and R(1) Q = P⁻¹ L."""
    K = (near.skeleton.basis @ planes.P).T
    turned_once = np.linalg.solve(planes.P, near.right.matrix)
    odd = len(K) % 2
    K, turned_once = (np.pad(x, ((0, odd), (0, 0))) for x in (K, turned_once))
    rotary = Rotary(np.pad(angles, (0, len(K) // 2 - len(angles))))
    Q = rotary.turned(turned_once.T, np.array(-1.0)).T
    return RotaryHead(K, Q, near.values.v, rotary, c=near.values.c)


def _as_told(found: Array, told: Rotary, unsure: float) -> Array:
    """Return the told frequencies in the order of those found; refuse others."""
    folded = np.abs(np.angle(np.exp(1j * told.frequencies)))
    folded = np.sort(folded[folded > unsure])[::-1]
    if len(found) < len(folded) or not np.all(
        np.abs(np.sort(found)[::-1][: len(folded)] - folded) <= unsure
    ):
        raise ModelMismatch(
            "Scores turn with distance at other frequencies than those of the given rotary: "
            f"{_listed(found)} radians per token were found, {_listed(folded)} were given. With "
            "rotary=True they are found."
        )
    return folded


def _listed(frequencies: Array) -> str:
    shown = ", ".join(f"{f:.4g}" for f in frequencies[:3])
    return (shown + ", …" if len(frequencies) > 3 else shown) or "none"


def _errors(
    near: FactoredReading, spaced: SpacedAnswers | None, planes: TurningPlanes, values: Values
) -> PositionErrors:
    errors, _ = near.bounds()
    E, L = errors["W"], near.right.matrix
    if spaced is None:
        return PositionErrors(E, 0.0)
    X, grows = spaced.queries, near.skeleton.amplification()
    inverse = np.linalg.pinv(L @ X.T)
    T = _step(near, spaced, values)
    longest = float(np.linalg.norm(L @ X.T, axis=0).max())
    stretch = float(np.linalg.norm(near.skeleton.rows, 2))
    read = spaced.reading(values, spaced.beta * longest, stretch).total
    of_inverse = float(np.linalg.norm(inverse, 2))
    tilted = grows.tilt * E * float(np.linalg.norm(inverse @ T @ L @ X.T, 2))
    of_step = (grows.gain * read + tilted + float(np.linalg.norm(T, 2)) * E) * of_inverse
    P, back = planes.P, np.linalg.inv(planes.P)
    kappa = float(np.linalg.norm(P, 2) * np.linalg.norm(back, 2))
    turning = 2 * kappa * of_step * float(np.linalg.norm(P, 2) * np.linalg.norm(back @ L, 2))
    return PositionErrors(kappa * E, turning)
