"""From W(1), and r × r readings one token farther, to keys, queries and frequencies.

W(Δ) = Kᵀ R(Δ) Q has one range for all Δ, that of Kᵀ. With an orthonormal basis B of it, found
with W(1) = B L, and r query tokens X that span the row space,

    T = (Bᵀ W(2) X)(L X)⁻¹ = P R(1) P⁻¹,    P = (BᵀKᵀ) up to one complex number per plane,
    Kᵀ = B P,    Q = R(−1) P⁻¹ L.

*Errors*: an error δT of T moves W(Δ) = B T^{Δ−1} L by a part that grows with |Δ − 1|. Readings are
moved by as much as they may be off, in random directions, and all is found again: the bound is
several times the most that W(Δ) moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.rotary_head.turned_keys import TurnedKeys
from unsoftmax.learners.single_head.factored_reading import FactoredReading
from unsoftmax.measure.precision import why
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
    farthest: int = 20
    """The certificate's bound on W is for distances from 0 to this."""
    perturbed: int = 4
    """Readings are moved so many times to see what W(Δ) makes of it."""
    margin: float = 12.0
    """Bounds are so many times the most that W(Δ) moved: few directions were tried. With 4 what
    biases add was outside of them in 5 of 1,447 heads, by up to 2 times."""
    told_apart: float = 4.0
    """Frequencies that were told may differ from those found by so many times what these may be
    off by."""
    unknown: float = 0.1
    """Where a step of one token is known to no more than this share, nothing is known of it."""
    crooked: float = 1e-3
    """Where what is read turns no planes but for this share, it is no rotation of planes."""


@dataclass(frozen=True, slots=True)
class PositionErrors:
    """Bounds on the errors of W(Δ): ``near`` + |Δ − 1|·``turning``."""

    near: float
    turning: float
    biases: bool = False
    """Whether they are on W(Δ) with biases, for tokens (x, 1)."""

    def at(self, distances: Array) -> Array:
        """Bound ‖Ŵ(Δ) − W(Δ)‖_F."""
        return np.asarray(self.near + np.abs(distances - 1) * self.turning)


class PositionedHead(Protocol):
    """A recovered head with positions, with what bounds its errors; a dataclass."""

    @property
    def model(self) -> RotaryHead:
        """The head."""

    @property
    def values(self) -> Values:
        """v̂, ĉ and the precision of the answers; replacing it replaces what bounds assume."""

    @property
    def tuning(self) -> RotaryTuning:
        """Knobs."""

    def position_errors(self) -> PositionErrors:
        """Bound the errors of all W(Δ)."""

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""


@dataclass(frozen=True, slots=True)
class TurnedReading:
    """A head as it was read, with all that bounds its errors."""

    model: RotaryHead
    values: Values
    """v̂, ĉ and the precision of the answers; replacing it replaces what bounds assume."""
    near: FactoredReading
    """W(1)."""
    spaced: SpacedAnswers
    """A W(2) X."""
    tuning: RotaryTuning

    def position_errors(self) -> PositionErrors:
        """Bound the errors of all W(Δ), by perturbing what they are made of."""
        readings = StepReadings.of(self.near, self.spaced, self.values)
        return readings.errors(self.tuning)

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        return (*self.values.precision.why, *self.near.columns.notes, *unturned(self.model))


@dataclass(frozen=True, slots=True)
class StepReadings:
    """What the planes of one head are found from, each with a bound on its error."""

    basis: Array
    """B, (d, r)."""
    L: Array
    """W(1) = B L."""
    tokens: Array
    """X, one query token per row."""
    there: Array
    """Bᵀ W(2) X."""
    W_error: float
    """Of W(1), Frobenius."""
    there_error: float
    """Of Bᵀ W(2) X, Frobenius."""

    @classmethod
    def of(cls, near: FactoredReading, spaced: SpacedAnswers, values: Values) -> StepReadings:
        """Take W(1) as it was read, and W(2) at r query tokens."""
        skeleton, L, X = near.skeleton, near.right.matrix, spaced.queries
        near = replace(near, values=values)
        E, grows = near.bounds()[0]["W"], skeleton.amplification()
        there = skeleton.coordinates(spaced.measured(values).T)
        longest = float(np.linalg.norm(L @ X.T, axis=0).max())
        stretch = float(np.linalg.norm(skeleton.rows, 2))
        read = spaced.reading(values, spaced.beta * longest, stretch).total
        # a range that is off by E is off by as much beside W(2) X
        return cls(skeleton.basis, L, X, there, E, grows.gain * read + grows.tilt * E)

    @property
    def step(self) -> Array:
        """T = (Bᵀ W(2) X)(L X)⁻¹."""
        here = self.L @ self.tokens.T
        return np.asarray(np.linalg.solve(here.T, self.there.T).T)

    def perturbed(self, rng: np.random.Generator) -> StepReadings:
        """Move all by as much as they may be off, in random directions."""
        off, away = (rng.standard_normal(x.shape) for x in (self.L, self.there))
        return replace(
            self,
            L=self.L + self.W_error * off / np.linalg.norm(off),
            there=self.there + self.there_error * away / np.linalg.norm(away),
        )

    def errors(self, tuning: RotaryTuning) -> PositionErrors:
        """Bound what W(Δ) of `head` may be off by, planes that it takes to be still included."""
        loose, size = self._moved(0.0, tuning), float(np.linalg.norm(self.L))
        return self._moved(loose.turning / size, tuning) if size else loose

    def _moved(self, still: float, tuning: RotaryTuning) -> PositionErrors:
        """Return several times what W(Δ) moves when readings do.

        It moves from where planes that turn by less than ``still`` do not turn.
        """
        if not np.isfinite(self.W_error + self.there_error + still):
            return PositionErrors(np.inf, np.inf)
        rng = np.random.default_rng(0)
        near = turning = 0.0
        mine = _turned_to(self.L, self.step, still, tuning)
        for _ in range(tuning.perturbed):
            other = self.perturbed(rng)
            others = _turned_to(other.L, other.step, 0.0, tuning)
            moved = [float(np.linalg.norm(x - y)) for x, y in zip(mine, others, strict=True)]
            near = max(near, self.W_error, *moved[:2])
            turning = max(turning, moved[2] / (tuning.farthest - 1))
        return PositionErrors(tuning.margin * near, tuning.margin * turning)

    def head(self, values: Values, told: Rotary | None, tuning: RotaryTuning) -> RotaryHead:
        """Find the planes that T turns, and the keys and queries that they are made of."""
        size = float(np.linalg.norm(self.L))
        unsure = unsure_of(self._moved(0.0, tuning), size, values, tuning)
        planes = turning_planes(self.step, unsure)
        return self._of(planes, angles_of(planes, told, unsure, tuning), values)

    def _of(self, planes: TurningPlanes, angles: Array, values: Values) -> RotaryHead:
        """Return the head with Kᵀ = B P and R(1) Q = P⁻¹ L."""
        keys = TurnedKeys.of(self.basis, planes, angles)
        return RotaryHead(keys.K, keys.queries(self.L).T, values.v, keys.rotary, c=values.c)


def whole_errors(
    head: RotaryHead, moved: Callable[[np.random.Generator], RotaryHead], tuning: RotaryTuning
) -> PositionErrors:
    """Bound what W(Δ) with biases may be off by: several times what it moves by.

    ``moved`` draws the heads of readings that are moved by as much as they may be off, and raises
    an error where there is none.
    """
    rng, distances = np.random.default_rng(0), (0.0, 1.0, 2.0, float(tuning.farthest))
    mine = [head.scores.whole(n) for n in distances]
    near = turning = 0.0
    for _ in range(tuning.perturbed):
        try:
            others = moved(rng).scores
        except (np.linalg.LinAlgError, ValueError):
            return PositionErrors(np.inf, np.inf, True)
        away = [np.linalg.norm(x - others.whole(n)) for x, n in zip(mine, distances, strict=True)]
        near = max(near, float(max(away[:3])))
        turning = max(turning, float(away[3]) / (tuning.farthest - 1))
    return PositionErrors(tuning.margin * near, tuning.margin * turning, True)


def _turned_to(
    L: Array, T: Array, still: float, tuning: RotaryTuning
) -> tuple[Array, Array, Array]:
    """Return Bᵀ W(Δ) at Δ = 0, 2 and ``farthest``, T being taken to turn planes alone."""
    planes = turning_planes(T, still)
    Q = np.linalg.solve(planes.P, L)
    turn = _padded(planes.angles, len(Q))
    rotary, odd = Rotary(turn), len(Q) % 2
    Q = np.pad(Q, ((0, odd), (0, 0)))
    P = np.pad(planes.P, ((0, 0), (0, odd)))
    there = (rotary.turned(Q.T, np.array(n)).T for n in (-1.0, 1.0, tuning.farthest - 1.0))
    first, second, far = (np.asarray(P @ turned) for turned in there)
    return first, second, far


def turned(
    near: FactoredReading, spaced: SpacedAnswers, told: Rotary | None, tuning: RotaryTuning
) -> TurnedReading:
    """Find the head that W(1) and one step make."""
    model = StepReadings.of(near, spaced, near.values).head(near.values, told, tuning)
    return TurnedReading(model, near.values, near, spaced, tuning)


def unsure_of(errors: PositionErrors, size: float, values: Values, tuning: RotaryTuning) -> float:
    """Return what may be off in the turning per token, as a share of the scores.

    Raises
    ------
    NotIdentifiable
        It is so much that nothing is known of it.
    """
    unsure = errors.turning / size if size else 0.0
    if not unsure <= tuning.unknown:
        raise NotIdentifiable(
            "The answers do not determine how scores turn with distance: what they leave open is "
            f"{unsure:.1e} of the scores per token. v is determined."
            + why(values.precision)
            + ("" if values.precision.exact else " Ask for float64 answers."),
            determined={"v": values.v, "c": values.c},
        )
    return unsure


def angles_of(
    planes: TurningPlanes, told: Rotary | None, unsure: float, tuning: RotaryTuning
) -> Array:
    """Return the angles of planes that turn, as told where they were; ``unsure`` by as much.

    Raises
    ------
    ModelMismatch
        These are no rotations, or not those that were told.
    """
    if planes.off_circle > max(tuning.crooked, unsure):
        raise ModelMismatch(
            "Scores change with distance, and not as planes that turn: a step of one token "
            f"lengthens or shortens some by {planes.off_circle:.1e}. These are no rotary "
            "positions, or the rank is above the one given (leave rank out and it is found), or "
            "keys or queries of a plane depend on those of others and have a lower rank than "
            "their planes, which no learner here recovers."
        )
    if told is None:
        return planes.angles
    return _as_told(planes.angles, told, tuning.told_apart * unsure)


def unturned(head: RotaryHead) -> tuple[str, ...]:
    """Say that a head has no positions, if it has none."""
    if np.any(head.rotary.frequencies):
        return ()
    return ("Scores do not turn with distance: all frequencies are 0, a head without positions.",)


def _padded(angles: Array, rank: int) -> Array:
    """Return the angles of all planes of ``rank`` rows: 0 for those that do not turn."""
    return np.pad(angles, (0, (rank + 1) // 2 - len(angles)))


def _as_told(found: Array, told: Rotary, unsure: float) -> Array:
    """Return the told frequencies in the order of those found; refuse others."""
    folded = np.sort(told.folded)[::-1]
    size = max(len(found), len(folded))
    mine, given = (np.pad(x, (0, size - len(x))) for x in (found, folded))
    if not np.all(np.abs(mine - given) <= unsure):
        if not len(found):
            raise ModelMismatch(
                "Scores do not turn with distance, as they would at the given frequencies, "
                f"{_listed(folded)} radians per token: the head has no rotary positions. Leave out "
                "rotary and rotary_base."
            )
        raise ModelMismatch(
            "Scores turn with distance at other frequencies than those of the given rotary: "
            f"{_listed(found)} radians per token were found, {_listed(folded)} were given. "
            "rotary=True without rotary_base finds them.",
            determined={"frequencies": found},
        )
    return np.asarray(given[: len(found)])


def _listed(frequencies: Array) -> str:
    shown = ", ".join(f"{f:.4g}" for f in frequencies[:3])
    return (shown + ", …" if len(frequencies) > 3 else shown) or "none"
