"""Smooth and gated layers, GELU to SwiGLU: 11 queries for each neuron, 22 for each gated one.

Target F(x) = B φ(A x + a) + c (+ x), or B (φ(G x + g) ⊙ (A x + a)) + c (+ x), at single tokens.

1. The length of tokens at which it bends, from the opening's line. No queries.
2. Base points of about that length, and a small step from each along the first n directions of
   seven or more: points are added until the Jacobians' span has a gap, whose place is the number of
   rows. (1.18·rows + 1)(n + 1) queries.
3. Steps along the other directions at a few of them. 1.3(rows/d_out + 1)(d − n) queries.
4. Rows, weights, activation, scales, biases, sides (`jacobian_readings`), three times: differences
   are corrected by what the layer found says.
5. Errors drawn of the size that the differences miss the layer by, through the same equations.
6. The hold-out confirms or refuses.

After a norm whose eps is known but for a factor, all base points have one length, in a subspace
that steps are orthogonal to; the other directions' equations give eps (`NormBefore`). Of coarse
answers, and of neurons that hardly bend, steps are long and taken both ways, which doubles the
queries.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.feed_forward.found_neurons import DEVIATIONS, ResidualPart
from unsoftmax.learners.feed_forward.jacobian_readings import (
    FAMILIES,
    FAMILY_OF,
    GATE_FAMILIES,
    GATE_FAMILY_OF,
    JacobianReadings,
    NormBefore,
    Rows,
    corrected_layer,
    fades,
    layer_from,
    rank_of,
    renamed,
    rivals,
    span_of,
)
from unsoftmax.learners.feed_forward.layer_claim import NEAR, LayerClaim
from unsoftmax.learners.feed_forward.neuron_fit import drawn_layers, layer_errors
from unsoftmax.learners.feed_forward.opening_look import LINE, OpeningLook, drawn_directions
from unsoftmax.learners.feed_forward.rank_one_members import find_members
from unsoftmax.learners.feed_forward.search_steps import asks
from unsoftmax.learners.normed_tokens import INSIDE
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers, Steps
from unsoftmax.refusals import Reason

# Directions of steps at every base point, at least; more where rows are more than such a share of
# (n − 1)(d_out − 1), beyond which there are other members of rank one.
DIRECTIONS, FULL = 7, 0.82
# And at most, where no gap is seen and answers are as wide as tokens: a refusal should not take too
# long.
MOST_DIRECTIONS = 16
# Base points at first.
FIRST_POINTS = 24
# No gap is expected beyond so many times as many as there are numbers of differences at each, and
# some.
ROOM, SOME = 1.25, 24
# Lengths of base points, in units of tokens whose entries are standard normal.
LENGTHS = (0.5, 2.0)
# After a norm base points have one length: the square is this share of the ball's. They are in a
# subspace of half the dimensions, of fewer where so many would not be left for steps.
SHARE, LEFT = 0.8, 8
# Steps, in units, and whether they are taken both ways, which doubles the queries: differences are
# off by their square then. Longer: differences are no derivatives; shorter: rounding shows in them.
# The second is tried where neurons of very unlike sizes did not show with the first, the third
# where neurons that hardly bend did not: of small weights a gated layer is nearly quadratic.
STEPS = (1e-4, False), (1e-5, False), (1e-3, True)
COARSE_STEPS = (0.04, True), (0.02, True)
# Shorter steps than some that failed are noisier: unless the layer that they show explains answers
# but for this share, others are taken. 5e-8 at most was seen of right layers, 1e-7 of wrong ones.
EXPLAINED = 1e-7
UNSEEN = ("MEMBERS_MISSING", "NO_ACTIVATION_SUITS", "NEURONS_UNLIKE", "JACOBIAN_FADES")
# Base points of the other directions, for as many as there are unknowns; draws of which the best
# conditioned is taken.
EQUATIONS, CHOICES = 1.3, 6
# Passes that solve with drawn errors. What is one number alone may be small in a few draws by
# chance.
AGAIN, OF_ONE = 2, 3.0
NORMED = (
    "constant, slope: ``‖F̂(x) − F(x)‖₂`` ≤ constant + slope·‖n(x)‖ for every x. n(x) is the "
    "normalised token, of norm below √d. A and b contain the scale and the shift of that LayerNorm "
    "or RMSNorm."
)
OF_GATES = ("Rows of A have the norms of columns of B; errors of gates are those of G and g.",)
# Fresh answers of coarse targets may be missed by so many times their own error.
AMPLIFIED = 1e4
# Fresh tokens are up to so many length scales long.
PLAIN_REACH, GATED_REACH, COARSE_GATED_REACH = 1e3, 8.0, 3.0


@dataclass(frozen=True, slots=True)
class AddedPoints:
    """How base points are added.

    Attributes
    ----------
    share, more : float, int
        So many are enough: share·rows + more.
    growth : float
        So many times as many are asked next where a gap is missing.
    """

    share: float
    more: int
    growth: float


ADDED = AddedPoints(share=1.18, more=1, growth=1.06)
# Of coarse answers more points than are needed make errors smaller.
COARSELY_ADDED = AddedPoints(share=1.1, more=8, growth=1.25)


def bending_length(look: OpeningLook) -> float:
    """Return the length of tokens at which answers along a line bend, as a rule.

    What is even in t grows as t² before, and slower beyond; where all of it is t² (gates without
    biases), what is odd goes from t³ to t². Changes of the ratios tell where, in logarithms.

    Raises
    ------
    NotIdentifiable
        All along the line answers are quadratic.
    """
    half = len(LINE) // 2
    t, y = LINE[half + 1 :], look.answers
    ahead, behind, at = y[half + 1 :], y[:half][::-1], y[half]
    size = np.maximum(np.linalg.norm(ahead, axis=1), np.linalg.norm(behind, axis=1))
    noise = 64 * look.rounding * np.maximum.accumulate(size + np.linalg.norm(at))
    odd, even = ahead - behind, ahead + behind - 2 * at
    quadratic = size[-1] > 20 * size[-2]

    def changes(ratio: Array, error: Array) -> Array:
        change = np.linalg.norm(np.diff(ratio, axis=0), axis=1)
        least = 1e-8 * np.max(np.linalg.norm(ratio[4:], axis=1))
        return np.where(change > error[1:] + error[:-1] + least, change, 0.0)

    slopes, middle = odd / t[:, None], np.sqrt(t[1:] * t[:-1])
    change, linear = changes(even / t[:, None] ** 2, noise / t**2), changes(slopes, noise / t)
    if not np.any(change):
        change = linear
        if quadratic and not np.any(linear):
            raise Reason.LAYER_IS_QUADRATIC.error({"c": at})
        if quadratic:
            rise, error = np.diff(slopes, axis=0) / middle[:, None], noise[1:] / t[1:] ** 2
            change, middle = changes(rise, 8 * error), t[2:]
    if not np.any(change):
        return look.length
    return float(2.0 ** np.average(np.log2(middle), weights=change))


@dataclass(frozen=True, slots=True)
class SmoothSearch:
    """Searches for a smooth layer."""

    dim: int
    unit: float
    """Entries of tokens of the natural length have this size."""
    most: int
    """More neurons are refused."""
    activation: str | None
    gated: bool | None
    rng: np.random.Generator
    square: float | None = None
    """Of the radius of the ball of tokens, where a norm is before."""
    differences: tuple[tuple[float, bool], ...] = STEPS
    """Steps that are tried, in units, and whether they are taken both ways."""
    added: ResidualPart | None = None
    """What x adds to all Jacobians, where answers are known but for a factor, or some."""

    def steps(self, checks: int) -> Steps[FeedForward]:
        """Find the layer, draw its errors, test it."""
        claim, _ = yield from self.found()
        return (yield from claim.tested(checks, self.rng))

    def found(self) -> Generator[Round, Answers, tuple[SmoothClaim, float]]:
        """Find the layer, and draw its errors; return eps of a norm before, in guesses, too."""
        layer, readings = yield from self.read()
        ratio = 1.0 if readings.norm is None else readings.norm.ratio
        claim = SmoothClaim.of(layer, readings, self.rng)
        if self.activation is None and (others := rivals(layer, readings)):
            note = f"Answers hardly tell {layer.activation} from {' or '.join(others)}."
            claim = replace(claim, notes=(*claim.notes, note))
        return claim, ratio

    def read(self) -> Generator[Round, Answers, tuple[FeedForward, JacobianReadings]]:
        """Find the layer by steps that show it."""
        steps, failed = [*self.differences], False
        while True:
            size, central = steps.pop(0)
            try:
                layer, readings = yield from self._searched(size * self.unit, central)
                if not (failed and steps) or readings.missed(layer) <= EXPLAINED:
                    return layer, readings
            except ModelMismatch as error:
                if not steps or error.reason not in UNSEEN:
                    raise
                if error.reason == Reason.JACOBIAN_FADES.name:
                    del steps[:-1]  # forward differences hide it, however long
            failed = True

    @property
    def _held(self) -> int:
        """How many directions are those of base points alone."""
        d = self.dim
        return 0 if self.square is None else min(d // 2, max(4, d - LEFT))

    def _searched(
        self, step: float, central: bool
    ) -> Generator[Round, Answers, tuple[FeedForward, JacobianReadings]]:
        readings, rank = yield from self._with_gap(step, central)
        span, tolerance = span_of(readings, rank)
        members = find_members(span, tolerance, self.rng)
        m, q, _ = members.E.shape
        if m * q != rank:
            raise Reason.MEMBERS_MISSING.error(found=m, rows=rank, each=q)
        if self.gated is not None and self.gated != (q == 2):
            raise Reason.OTHER_GATES.error(said="gated" if self.gated else "not gated", each=q)
        names: tuple[str, ...]
        names, family = (FAMILIES, FAMILY_OF) if q == 1 else (GATE_FAMILIES, GATE_FAMILY_OF)
        if self.activation is not None:
            names = (family.get(self.activation, self.activation),)
        rows = Rows.of(readings, members)
        few = self._few(rows, readings)
        others = readings.ways[readings.along.shape[2] :]
        if len(others):
            x, y = readings.x[few], readings.y[few]
            across = yield from self._differences(x, y, others, step, central, "other directions")
        else:
            across = readings.along[few, :, :0]
        readings = replace(readings, few=few, across=across)
        better = readings.with_eps(rows)
        layer, _ = layer_from(better, rows, names)
        layer, readings = corrected_layer(replace(readings, norm=better.norm), layer, names)
        return renamed(layer, self.activation), readings

    def _with_gap(
        self, step: float, central: bool
    ) -> Generator[Round, Answers, tuple[JacobianReadings, int]]:
        """Ask base points and steps from them until the number of rows shows."""
        d, none, norm = self.dim - self._held, np.zeros(0, int), None
        ways = np.linalg.qr(self.rng.standard_normal((self.dim, self.dim)))[0].T
        if self.square is not None:
            norm = NormBefore(self.square, SHARE)
        adding = COARSELY_ADDED if central else ADDED
        n, count, readings = min(d, DIRECTIONS), FIRST_POINTS, None
        while True:
            x = self.points(count - (0 if readings is None else len(readings.x)), ways)
            y = yield from asks("base points")(x)
            along = yield from self._differences(x, y, ways[:n], step, central, "steps")
            if readings is not None:
                x, y = np.vstack([readings.x, x]), np.vstack([readings.y, y])
                along = np.concatenate([readings.along, along])
            readings = JacobianReadings(
                x, y, ways, step, along, none, along[:0], norm, central, self.added
            )
            rank, width = rank_of(readings), y.shape[1]
            most = d if rank else min(d, -(-MOST_DIRECTIONS * max(d, width) // width))
            # without a gap more are needed where rows may be more than differences have numbers
            needed = 1 + int(np.ceil(rank / (FULL * (width - 1)))) if rank else 1 + count // width
            if n < min(needed, most):
                wider = min(needed, most)
                more = yield from self._differences(x, y, ways[n:wider], step, central, "steps")
                n, along = wider, np.concatenate([along, more], axis=2)
                readings = replace(readings, along=along)
                rank = rank_of(readings)
            wanted = (
                int(adding.share * rank) + adding.more if rank else int(adding.growth * count) + 1
            )
            if rank and count >= wanted:
                return readings, rank
            room, enough = ROOM * n * width, 2 * adding.share * self.most
            if wanted > min(room, enough) + SOME:
                reason = Reason.JACOBIAN_FADES if fades(readings) else Reason.JACOBIAN_WITHOUT_GAP
                raise reason.error(points=count, room=n * width)
            count = max(count, wanted)

    def points(self, count: int, ways: Array) -> Array:
        """Draw base points."""
        if self.square is not None:
            length = np.sqrt(SHARE * self.square)
            return np.asarray(
                length * drawn_directions(count, self._held, self.rng) @ ways[-self._held :]
            )
        low, high = np.log(LENGTHS)
        lengths = np.exp(self.rng.uniform(low, high, count)) * self.unit
        return np.asarray(lengths[:, None] * self.rng.standard_normal((count, self.dim)))

    def _differences(
        self, x: Array, y: Array, ways: Array, step: float, central: bool, phase: str
    ) -> Generator[Round, Answers, Array]:
        """Ask a step from each point along each direction; return slopes (X, p, directions)."""
        steps = step * (np.concatenate([ways, -ways]) if central else ways)
        moved = yield from asks(phase)((x[:, None] + steps).reshape(-1, self.dim))
        answers = moved.reshape(len(x), len(steps), -1)
        ahead, behind = answers[:, : len(ways)], answers[:, len(ways) :]
        slopes = (ahead - behind) / (2 * step) if central else (ahead - y[:, None]) / step
        return np.asarray(slopes.transpose(0, 2, 1))

    def _few(self, rows: Rows, readings: JacobianReadings) -> Indices:
        """Choose base points at which all rows show."""
        p, r = readings.y.shape[1], rows.weights.shape[1]
        count = min(len(readings.x), int(EQUATIONS * (r + p) / p) + 2)
        draws = [self.rng.choice(len(readings.x), count, replace=False) for _ in range(CHOICES)]
        least = [np.linalg.svd(rows.equations(few), compute_uv=False)[-1] for few in draws]
        return np.asarray(draws[int(np.argmax(least))])


@dataclass(frozen=True, slots=True)
class SmoothClaim(LayerClaim):
    """A smooth layer with its errors."""

    reach: float = np.inf
    """Fresh tokens are no longer."""
    normed: bool = False
    contrary: ClassVar[str] = (
        "no feed-forward layer of one hidden layer, or its activation is not quite one that is "
        "known, or its answers are too noisy"
    )

    @classmethod
    def of(
        cls, layer: FeedForward, readings: JacobianReadings, rng: np.random.Generator
    ) -> SmoothClaim:
        """Draw errors of the size that differences miss the layer by, and solve with them again."""
        y, norm, seen = readings.y, readings.norm, readings.seeing(layer)
        x = readings.x if norm is None else readings.x / norm.unit(norm.share)
        length = float(np.median(np.linalg.norm(x, axis=1)))
        gated = COARSE_GATED_REACH if readings.central else GATED_REACH
        reach = (gated if layer.gate else PLAIN_REACH) * length
        if norm is not None:
            reach = float(np.sqrt(norm.square))
        sigma, eps = readings.noise(layer), []

        def draw(count: int) -> list[FeedForward]:
            others = []
            for _ in range(count):
                disturbed = readings.disturbed(sigma, rng)
                other, found = corrected_layer(disturbed, layer, (layer.activation,), AGAIN)
                others.append(found.seeing(other))
                if norm is not None and found.norm is not None:
                    eps.append(OF_ONE * (found.norm.ratio / norm.ratio - 1))
            return others

        errors = layer_errors(seen, drawn_layers(seen, draw), reach, eps)
        norms = np.linalg.norm(y, axis=1)
        size = float(np.median(norms))
        look = OpeningLook(
            length=length,
            size=size,
            steepness=size / length,
            noise=sigma * np.sqrt(y.shape[1]) / size,
            tokens=x,
            answers=y,
            why=(),
        )
        notes, normed = notes_of_layer(layer, norm), norm is not None
        claim = cls(seen, look, errors, notes, True, reach=reach, normed=normed)
        return replace(claim, amplified=AMPLIFIED) if readings.central else claim

    def tested(self, checks: int, rng: np.random.Generator) -> Steps[FeedForward]:
        """Ask the hold-out; return the layer and how sure it is, or refuse it."""
        return (yield from self._held_out(checks, rng))

    def _tokens(self, count: int, rng: np.random.Generator) -> Array:
        """Return tokens of many lengths, up to the reach."""
        x = drawn_directions(count, self.model.dim, rng)
        near = self.look.length * np.array(NEAR)[np.arange(count) % len(NEAR)]
        far = np.exp(rng.uniform(np.log(near), np.log(np.maximum(near, self.reach)), count))
        lengths = np.where(np.arange(count) % 2, far, near)
        most = (INSIDE if self.normed else 1.0) * self.reach
        return np.asarray(np.minimum(lengths, most)[:, None] * x)

    def bounds(self) -> dict[str, float]:
        """Return what is certified; beyond the reach, gated neurons are off by a square."""
        errors = LayerClaim.bounds(self)
        if self.model.gate is None or self.normed:
            return errors
        # off by constant + p·‖x‖ + q·‖x‖²: the slope is p + q·reach, and q no more than this
        return errors | {"square": errors["slope"] / self.reach}

    def within(self) -> tuple[str, ...]:  # noqa: D102
        farther = " Farther out square·‖x‖² is in the place of slope·‖x‖." * bool(self.model.gate)
        return (
            NORMED
            if self.normed
            else "constant, slope: ``‖F̂(x) − F(x)‖₂`` ≤ constant + slope·‖x‖ for every x of norm "
            f"up to {self.reach:.2g}. Tokens up to that norm were asked.{farther}",
            "A neuron whose part in the Jacobian hardly changes among tokens of norm "
            f"{self.look.length:.2g} may be missing.",
        )

    def _assumed(self, checks: int) -> tuple[str, ...]:
        bound, missing = self.within()
        return (
            "Errors of A, b, B and c are for neurons in the order of the model. Two nearly alike, "
            "in row and column, may count as one that answers within the bound as both do: A, b "
            "and B have no bounds then.",
            *(OF_GATES if self.model.gate else ()),
            bound,
            "Only single tokens were asked: about sequences of several tokens (attention) nothing "
            "is known.",
            "The target is one hidden layer of neurons of one activation, and all were found: the "
            f"hold-out tests this but cannot prove it. {missing}",
            f"Answers are off by {self.look.noise:.1e} of their size (one standard deviation), as "
            f"differences miss the layer; {DEVIATIONS:g} deviations are taken.",
            *(() if checks else ("Nothing was checked.",)),
        )


def notes_of_layer(layer: FeedForward, norm: NormBefore | None = None) -> tuple[str, ...]:
    """Say what is determined."""
    residual = "x is added" if layer.residual else "x is not added"
    gated = layer.gate is not None
    free = "their order" + (
        " and a factor, sign included, between row of A and column of B, which are returned with "
        "equal norms, are free"
        if gated
        else " and the sign of each are free"
        if layer.activation in ("tanh", "sigmoid")
        else " is free"
    )
    other = {
        "silu": "quick GELU, z σ(1.702 z), is the same of another scale",
        "tanh": "a sigmoid is the same of another scale, and a constant",
    }.get(layer.activation)
    names = f"The activation is {layer.activation}" + (f" ({other})." if other else ".")
    kind = "gated neurons" if gated else "neurons"
    found = f"{len(layer.b)} {kind} were found; {free}.", names
    return found if norm else (*found, f"That {residual} is determined.")
