"""From scores one and two tokens apart to keys, queries and frequencies.

W(Δ) = Kᵀ R(Δ) Q has one range for all Δ, that of Kᵀ. With an orthonormal basis B of it, found
with W(1) = B L, and r query tokens X that span the row space,

    T = (Bᵀ W(2) X)(L X)⁻¹ = P R(1) P⁻¹,    P = (BᵀKᵀ) up to one complex number per plane,
    Kᵀ = B P,    Q = R(−1) P⁻¹ L.

*Errors*: an error δT of T moves W(Δ) = B T^{Δ−1} L by a part that grows with |Δ − 1|. Answers are
moved by what they are off by as a rule, at random, and all is read again: the bound is several
times the root mean square of what W(Δ) moved by.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import scipy

from unsoftmax.learners.single_head.factored_reading import FactoredReading
from unsoftmax.measure.logit_grid import LogitGrid
from unsoftmax.measure.precision import why
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models.arrays import TINY
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array, Grid, Round, Rows, Spaced
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason
from unsoftmax.solve.turning_planes import TurningPlanes, turning_planes
from unsoftmax.validate.drawn_models import SAFETY
from unsoftmax.validate.head_comparison import HeadBounds, PositionErrors

# -- Logits of tokens one and two before the query token
#
# [αa + b; b] and [αa + b; 0; b], b as it is asked: with t the score of the first token and ζ that
# of the zero token, each less b's own, the answers are b·v + σ(t)·αa·v and, with β = σ(ζ),
#
#     (1 − β)b·v + p·(αa·v + β b·v),   p = e^t/(e^t + 1 + e^ζ),   t = log p/(1 − p) − log(1 − β).
#
# Where offsets are far longer than query tokens ζ is 0. *Queries*: one per logit.


@dataclass(frozen=True, slots=True)
class Table:
    """Answers to all offsets a with all query tokens b, [αa + b; 0, if any; b]."""

    a: Array
    """(n, d)."""
    b: Array
    """(m, d), as asked."""
    alpha: Array
    """(m,)."""
    y: Array
    """(m, n)."""

    @classmethod
    def of(cls, grid: LogitGrid) -> Table:
        """Take the answers of a grid with one scale for each query token."""
        a, b = (rows[np.arange(rows.shape[0])] for rows in (grid.offsets, grid.queries))
        return cls(a, grid.beta[:, :1] * b, grid.alpha[:, 0], grid.y)

    def logits(self, values: Values, zeta: Array | None = None) -> Array:
        """Return t, (m, n); a zero token between scores ``zeta`` (m,) more than b."""
        between = 0.0 if zeta is None else scipy.special.expit(zeta)[:, None]
        bv = (self.b @ values.v)[:, None]
        rest = self.y - values.c - (1 - between) * bv
        signal = self.alpha[:, None] * (self.a @ values.v) + between * bv
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.log(rest / (signal - rest)) - np.log1p(-between))

    def solved(self, t: Array, basis: Array | None = None) -> tuple[Array, Array]:
        """Return u and s of t = αa·u + s, (d, m) and (m,); of u in a basis its coordinates."""
        a = self.a if basis is None else self.a @ basis
        both = np.linalg.solve(np.column_stack([a, np.ones(len(a))]), t.T)
        return both[:-1] / self.alpha, both[-1]

    def moved(self, rng: np.random.Generator, values: Values, head: RotaryHead) -> Table:
        """Move all answers by about as much as they are off, rounding of scores included."""
        offsets, scores = self.alpha[:, None, None] * self.a, head.scores
        tokens = offsets + self.b[:, None]
        keys, queries = scores.keys(tokens), scores.queries(self.b)
        size = np.linalg.norm(tokens, axis=2) * values.norm + abs(values.c)
        of_scores = np.linalg.norm(keys, axis=2) * np.linalg.norm(queries, axis=1)[:, None]
        off = values.precision.deviation(size, self.y)
        off = off + values.precision.unit * of_scores * np.abs(offsets @ values.v) / 8
        return replace(self, y=self.y + off * rng.standard_normal(self.y.shape))


def ask_spaced(
    offsets: Rows, queries: Rows, alpha: Array, beta: Array
) -> Generator[Round, Answers, Table]:
    """Ask every offset with every query token once, a zero token between, at a scale each."""
    grid = Grid(offsets, queries, alpha, beta, phase="W(2)", purpose="data")
    [y] = yield [Spaced.of(grid, 1)]
    a, b = (rows[np.arange(rows.shape[0])] for rows in (offsets, queries))
    return Table(a, beta[:, None] * b, alpha, grid.table(y))


LOOSE = 0.01
"""From this share of W(Δ) on, a note says how much of it answers leave open."""


# Offsets are so many times as long as logits ask for, query tokens as much shorter: a query
# token's own score is then 2⁻⁸⁰ of the logits, and no reading needs it.
POSITION_GAIN = 2.0**40
# The certificate's bound on W is for distances from 0 to this.
FARTHEST_BOUNDED = 20
# Readings are moved so many times to see what W(Δ) makes of it. With half as many a head whose
# errors all come from one answer is beyond the bound by chance once in 2,000 times.
DRAWN = 8
# Frequencies that were told may differ from those found by so many times what these may be off
# by.
TOLD_APART = 4.0
# Where a step of one token is known to no more than this share, nothing is known of it.
UNKNOWN = 0.1
# Where what is read turns no planes but for this share, it is no rotation of planes.
CROOKED = 1e-3


class Readings(Protocol):
    """All that a head with positions is solved from, and by how much it may be off."""

    @property
    def turn(self) -> Array:
        """T, (r, r): what one token more of distance does."""

    def head(self, still: float, given: Array | None = None) -> RotaryHead:
        """Return the head.

        Planes that turn by less than ``still`` do not turn, others by ``given`` angles if given.
        """

    def at(self, distances: Sequence[float]) -> list[Array]:
        """Return W(Δ) with biases, (d + 1, d + 1), as it was read: T need not turn planes."""

    def moved(self, rng: np.random.Generator) -> Readings:
        """Move all by about as much as it is off, in random directions."""


@dataclass(frozen=True, slots=True)
class PositionedReading:
    """A head with positions as it was read, with all that bounds its errors."""

    model: RotaryHead
    values: Values
    """v̂, ĉ and the precision of the answers; replacing it replaces what bounds assume."""
    read: Callable[[Values], Readings]
    """What the head was solved from, with errors as these values assume them."""
    biases: bool
    further: tuple[str, ...] = ()
    """What a user should know."""

    @classmethod
    def of(
        cls, values: Values, read: Callable[[Values], Readings], given: Rotary | None, biases: bool
    ) -> PositionedReading:
        """Solve the readings; ``given`` frequencies are those of the planes, if they fit."""
        model = solved(read(values), values, given, biases)
        return cls(model, values, read, biases)

    def bounds(self) -> HeadBounds:
        """Bound the errors of W(Δ) at distances up to FARTHEST_BOUNDED, of v and of c."""
        values, farthest, biases = self.values, FARTHEST_BOUNDED, self.biases
        errors = errors_of(self.model, self.read(values), biases)
        # errors grow the faster the farther: between the ends of the range they are no larger
        W_error = max(errors.near, (farthest - 1) * errors.turning)
        of_w = " The bound on w is one on Kᵀ R(Δ) b_q and on (Q, b_q)ᵀ (R(−Δ) − I) b_k."
        bounds = HeadBounds.of(
            values,
            W_error,
            W_error if biases else None,
            f"The bound on W is one on W(Δ) = Kᵀ R(Δ) Q for distances Δ from 0 to {farthest}; "
            f"beyond it grows by {errors.turning:.1e} a token." + of_w * biases,
            f"It is {SAFETY:.0f} times what W(Δ) moves by when answers move at random by what they "
            "are off by as a rule.",
        )
        return bounds._replace(
            positions=errors, notes=undetermined([self.model], [errors], farthest)
        )

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        still = "Scores do not turn with distance: all frequencies are 0, a head without positions."
        turns = np.any(self.model.rotary.frequencies)
        return (*self.values.precision.why, *self.further, *(() if turns else (still,)))


def undetermined(
    heads: Sequence[RotaryHead], errors: Sequence[PositionErrors], farthest: int
) -> tuple[str, ...]:
    """Say how much of W(Δ) is not known, where that is much: answers to fresh ones do not show it.

    A bound of half of W(Δ) is no error of the bound, and yet nothing to predict with.
    """
    ends = np.array([0.0, farthest])
    shares = [
        float(error.at(ends).max()) / max(float(np.linalg.norm(head.scores.whole(1))), TINY)
        for head, error in zip(heads, errors, strict=True)
    ]
    if max(shares, default=0.0) <= LOOSE:
        return ()
    return (
        f"Answers leave {max(shares):.1%} of W(Δ) undetermined at distances up to {farthest}, and "
        "more beyond: they are coarse for positions, which need float64. Other sequences, long "
        "ones above all, may be predicted much worse than the fresh ones.",
    )


# -- solving


@dataclass(frozen=True, slots=True)
class StepScores:
    """Scores (x, 1)·W(Δ)(x_N, 1) of keys B and b_k, and of queries that go on by T a token."""

    basis: Array
    """B, (d, r)."""
    turn: Array
    """T, (r, r)."""
    queries: Array
    """Of (x_N, 1), (r, d + 1)."""
    k_bias: Array | None = None

    def at(self, steps: float) -> Array:
        """Return it after a whole number of steps, (d + 1, d + 1)."""
        with np.errstate(over="ignore", invalid="ignore"):
            turned = np.linalg.matrix_power(self.turn, int(steps)) @ self.queries
            shift = np.zeros(turned.shape[1])
            if self.k_bias is not None:
                shift = self.k_bias @ (turned - self.queries)
            return np.vstack([self.basis @ turned, shift])


@dataclass(frozen=True, slots=True)
class StepReadings:
    """What a head without biases is solved from, each with a bound on its error."""

    v: Array
    c: float
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

    @property
    def turn(self) -> Array:
        """T = (Bᵀ W(2) X)(L X)⁻¹."""
        here = self.L @ self.tokens.T
        return np.asarray(np.linalg.solve(here.T, self.there.T).T)

    def head(self, still: float, given: Array | None = None) -> RotaryHead:
        """Return the head with Kᵀ = B P and R(1) Q = P⁻¹ L."""
        planes = turning_planes(self.turn, still)
        keys = TurnedKeys.of(self.basis, planes, planes.angles if given is None else given)
        Q = keys.queries(self.L).T
        return RotaryHead(keys.K, Q, self.v, keys.rotary, c=self.c)

    def at(self, distances: Sequence[float]) -> list[Array]:
        """Return W(Δ) = B T^{Δ−1} L."""
        scores = StepScores(self.basis, self.turn, np.pad(self.L, ((0, 0), (0, 1))))
        return [scores.at(n - 1) for n in distances]

    def moved(self, rng: np.random.Generator) -> StepReadings:
        """Move all by as much as they may be off, in random directions."""
        off, away = (rng.standard_normal(x.shape) for x in (self.L, self.there))
        return replace(
            self,
            L=self.L + self.W_error * off / np.linalg.norm(off),
            there=self.there + self.there_error * away / np.linalg.norm(away),
        )


@dataclass(frozen=True, slots=True)
class StepAnswers(StepReadings):
    """The same with the answers that they were read from."""

    near: FactoredReading
    spaced: Table

    @classmethod
    def assuming(cls, near: FactoredReading, spaced: Table, values: Values) -> StepAnswers:
        """Read W(1) and W(2) at r query tokens, assuming other values and another precision."""
        skeleton, L = near.skeleton, near.right.matrix
        there = spaced.logits(values, np.zeros(len(spaced.b))) / spaced.alpha[:, None]
        read = skeleton.basis, L, spaced.b, skeleton.coordinates(there.T), 0.0, 0.0
        return cls(values.v, values.c, *read, replace(near, values=values), spaced)

    def moved(self, rng: np.random.Generator) -> StepAnswers:
        """Move all answers by about as much as they are off, and read all again."""
        spaced = self.spaced.moved(rng, self.near.values, self.head(0.0))
        near = self.near.moved(rng)
        return self.assuming(near, spaced, near.values)


def solved(read: Readings, values: Values, given: Rotary | None, biases: bool = True) -> RotaryHead:
    """Return the head of these readings, planes that turn too slowly to tell taken not to."""
    head = read.head(0.0)
    errors = errors_of(head, read, biases)
    unsure = unsure_of(errors, float(np.linalg.norm(head.W_at(1))), values)
    angles = angles_of(turning_planes(read.turn, unsure), given, unsure)
    return read.head(unsure, None if given is None else angles)


def errors_of(head: RotaryHead, read: Readings, biases: bool = True) -> PositionErrors:
    """Bound what W(Δ) with biases may be off by: several times what reading it again moves it by.

    What was read is moved by about as much as it is off, and W(Δ) is read from that without taking
    T for turned planes: planes that hardly turn are not told from those that do not. How far the
    head itself is from what was read comes on top. There is no bound where nothing is read.
    """
    rng, distances = np.random.default_rng(0), (0.0, 1.0, 2.0, float(FARTHEST_BOUNDED))
    try:
        mine = read.at(distances)
        drawn = [read.moved(rng).at(distances) for _ in range(DRAWN)]
    except (np.linalg.LinAlgError, ValueError):
        return PositionErrors(np.inf, np.inf, biases)
    with np.errstate(over="ignore", invalid="ignore"):
        away = [[np.linalg.norm(x - y) for x, y in zip(mine, d, strict=True)] for d in drawn]
        own = [head.scores.whole(n) for n in distances]
        kept = [np.linalg.norm(x - y) for x, y in zip(mine, own, strict=True)]
        most = SAFETY * np.sqrt(np.mean(np.square(away), axis=0)) + kept
    if not np.all(np.isfinite(most)):
        return PositionErrors(np.inf, np.inf, biases)
    return PositionErrors(float(most[:3].max()), float(most[3]) / (FARTHEST_BOUNDED - 1), biases)


@dataclass(frozen=True, slots=True)
class TurnedKeys:
    """K (rows, d), an even number of rows, and the frequencies of its planes."""

    K: Array
    rotary: Rotary
    planes: TurningPlanes

    @classmethod
    def of(cls, basis: Array, planes: TurningPlanes, angles: Array) -> TurnedKeys:
        """Return the keys of these planes, a row of zeros added to an odd number.

        Planes beyond the ``angles`` do not turn.
        """
        K = (basis @ planes.P).T
        rotary = Rotary(np.pad(angles, (0, (len(K) + 1) // 2 - len(angles))))
        return cls(np.pad(K, ((0, len(K) % 2), (0, 0))), rotary, planes)

    def queries(self, seen: Array) -> Array:
        """Return q (m, rows) of Bᵀ u (r, m)."""
        once = np.linalg.solve(self.planes.P, seen)
        once = np.pad(once, ((0, len(self.K) - len(once)), (0, 0)))
        return self.rotary.turned(once.T, np.array(-1.0))


def unsure_of(errors: PositionErrors, size: float, values: Values) -> float:
    """Return what may be off in the turning per token, as a share of the scores.

    Raises
    ------
    NotIdentifiable
        It is so much that nothing is known of it.
    """
    unsure = errors.turning / size if size else 0.0
    if not unsure <= UNKNOWN:
        raise Reason.TURNING_UNKNOWN.error(
            {"v": values.v, "c": values.c},
            also="v is determined."
            + why(values.precision)
            + ("" if values.precision.exact else " Ask for float64 answers."),
            does=f"is {unsure:.1e} of the scores per token",
        )
    return unsure


def angles_of(planes: TurningPlanes, told: Rotary | None, unsure: float) -> Array:
    """Return the angles of planes that turn, as told where they were; ``unsure`` by as much.

    Raises
    ------
    ModelMismatch
        These are no rotations, or not those that were told.
    """
    if planes.off_circle > max(CROOKED, unsure):
        raise Reason.SCORES_DO_NOT_TURN.error(
            seen=f"a step of one token lengthens or shortens some by {planes.off_circle:.1e}"
        )
    if told is None:
        return planes.angles
    return _as_told(planes.angles, told, TOLD_APART * unsure)


def _as_told(found: Array, told: Rotary, unsure: float) -> Array:
    """Return the told frequencies in the order of those found; refuse others."""
    folded = np.sort(told.folded)[::-1]
    size = max(len(found), len(folded))
    mine, given = (np.pad(x, (0, size - len(x))) for x in (found, folded))
    if not np.all(np.abs(mine - given) <= unsure):
        if not len(found):
            raise Reason.GIVEN_FREQUENCIES_UNSEEN.error(given=_listed(folded))
        raise Reason.OTHER_FREQUENCIES.error(
            {"frequencies": found}, found=_listed(found), given=_listed(folded)
        )
    return np.asarray(given[: len(found)])


def _listed(frequencies: Array) -> str:
    shown = ", ".join(f"{f:.4g}" for f in frequencies[:3])
    return (shown + ", …" if len(frequencies) > 3 else shown) or "none"
