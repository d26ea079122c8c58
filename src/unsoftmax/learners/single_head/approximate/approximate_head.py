"""Theorem 6.1: one attention head from answers that are within ±τ, with d + d² of them.

Recovers W and v of f(X) = Σ_i α_i x_i·v, α = softmax_i(x_i·W x_N), from an oracle whose answers
are off by at most τ, rounded, noisy or hostile; ``repeats`` times d + d² queries. Determined up
to the error that the certificate bounds; v must stand out of the errors.

    f([ρx]) ≈ ρ(x·v)                                     v from an orthonormal basis
    f([αz+βb; βb]) ≈ β(b·v) + α(z·v)·σ(αβ·z·(W b))       W from offsets z and query tokens b

Differences from the paper: (1) balanced offsets, so that ‖v‖ matters and not its smallest entry
(``probes="paper"`` asks the paper's own: `learn_by_coordinates`); (2) tokens as long as
``radius`` allows, because an error ±τ moves p by τ/(α|z·v|) only; with no radius α = 2⁴⁰ and
β = 2⁻⁴⁰ leave nothing of it; (3) ‖W‖ need not be known: pilots set αβ; (4) later passes ask in new
random bases, so that errors which depend on the question alone (rounding) are averaged like
noise; (5) the certificate is computed from the answers, for the worst signs of their errors.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.settings import Configured, one_of, positive, whole_number
from unsoftmax.learners.single_head.approximate.passes import (
    HIDDEN,
    PILOT_ROUNDS,
    SLACK,
    LogitIntervals,
    Pass,
    TokenScales,
    TwoSidedSystem,
    averaged_values,
    passes_over_W,
    saturated,
    with_format,
)
from unsoftmax.learners.single_head.conclusion import certificate_of
from unsoftmax.learners.single_head.first_round import (
    FirstRound,
    FirstRoundSettings,
    ask_first_round,
)
from unsoftmax.measure.precision import Precision, why
from unsoftmax.measure.reading import Reading
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import FARTHEST, Array, Grid, Probes, Singles, UnitVectors
from unsoftmax.protocol import Found, Plan, Steps
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost
from unsoftmax.validate import sequences
from unsoftmax.validate.head_comparison import HeadAt, HeadBounds, for_any_error
from unsoftmax.validate.judge import Residuals, fresh_answers, judge
from unsoftmax.validate.long_sequences import MOST_ROUNDS, in_rounds, looked_at

# -- What answers within ±τ say of a head: an estimate with a bound, and when it is refused
#
# Passes are read as intervals of logits, solved together and bounded whatever the signs of the
# errors. The hold-out is judged by the same standard: an answer that no head within the bounds can
# give is a refusal, not a wider bound. What the user declares (τ, a norm bound, a radius) is taken
# at face value.


@dataclass(frozen=True, slots=True)
class Declared:
    """What the user declares of the answers and of the target."""

    tolerance: float
    norm_bound: float | None
    radius: float | None
    single_tolerance: float | None = None
    """τ_v, of single tokens; the tolerance where None."""

    @property
    def of_singles(self) -> float:
        """How far answers to single tokens may be off: τ_v."""
        return self.tolerance if self.single_tolerance is None else self.single_tolerance

    @property
    def precision(self) -> Precision:
        """±tolerance, and float64 inside."""
        apart = self.of_singles < self.tolerance
        single = f", those to single tokens within ±{self.of_singles:g}" if apart else ""
        sentence = (
            f"Answers are taken to be within ±{self.tolerance:g} of the head's{single}, as "
            "declared."
        )
        return Precision(absolute=self.tolerance, why=(sentence,))

    def of_unit_tokens(self, values: Values) -> Values:
        """Bound v by the tolerance of single tokens, where e_1 … e_d were asked for it."""
        return replace(values, v_error=values.v_error - (self.tolerance - self.of_singles))

    @property
    def longest(self) -> float:
        """Norm of the longest token that may be asked."""
        return np.inf if self.radius is None else self.radius

    def first_round(self, scale: float) -> FirstRoundSettings:
        """Read v from single tokens of norm ``scale``."""
        return FirstRoundSettings(False, self.precision, scale, self.longest)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What a bound of W rests on beside the tolerance."""
        if self.norm_bound is None:
            return ()
        return (f"‖W‖_F ≤ {self.norm_bound:g}, the norm bound given.",)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Ŵ with its bound, and the readings that they come from."""

    W: Array
    W_error: float
    intervals: tuple[LogitIntervals, ...]
    readings: tuple[Reading, ...]
    """Of M = B Wᵀ Zᵀ, pass by pass."""
    values: Values


def estimate(passes: list[Pass], values: Values, declared: Declared) -> Estimate:
    """Estimate W and bound ‖Ŵ − W‖_F.

    Raises
    ------
    ModelMismatch
        Some answer agrees with no logit.
    """
    norm_bound = declared.norm_bound
    intervals = tuple(one.read(values, norm_bound) for one in passes)
    _refuse_impossible(intervals, norm_bound)
    read = list(zip(passes, intervals, strict=True))
    system = TwoSidedSystem(tuple(one.Z for one in passes), tuple(one.B for one in passes))
    W = system.solve([one.measured(logits) for one, logits in read])
    readings = tuple(one.reading(logits, W, values) for one, logits in read)
    return Estimate(W, system.error(readings, W), intervals, readings, values)


def _refuse_impossible(intervals: tuple[LogitIntervals, ...], norm_bound: float | None) -> None:
    impossible = sum(int(np.count_nonzero(read.impossible)) for read in intervals)
    if impossible:
        asked = sum(read.impossible.size for read in intervals)
        bounded = "" if norm_bound is None else f" with ‖W‖_F ≤ {norm_bound:g}"
        least = "" if norm_bound is None else ", the norm bound"
        raise Reason.BEYOND_HEAD_AND_TOLERANCE.error(
            impossible=impossible, asked=asked, bounded=bounded, least=least
        )


def refuse_unbounded(found: Estimate, declared: Declared) -> None:
    """Refuse a W that contradicts the norm bound, or logits out of the answers' reach.

    Under a radius ±τ may hide single logits, and there is no finite bound on W; without one
    only infinite logits are hidden.
    """
    size, norm_bound = float(np.linalg.norm(found.W)), declared.norm_bound
    if norm_bound is not None and size - found.W_error > norm_bound * SLACK:
        raise Reason.NORM_BOUND_EXCEEDED.error(norm=size - found.W_error, bound=norm_bound)
    if np.isfinite(found.W_error):
        return
    ends = np.stack([read.open for read in found.intervals])
    p_errors = np.stack([read.p_error for read in found.intervals])
    if declared.radius is None or saturated(ends, p_errors):
        values = found.values
        hidden = np.median(p_errors[ends]) >= HIDDEN
        cause = (
            "answers may be off by more than the weights change in them"
            if hidden
            else "attention is on one token alone, as far as answers tell, as with hard attention "
            "or where logits are very far apart"
        )
        raise Reason.LOGITS_OUT_OF_REACH.error(
            {"v": values.v, "c": 0.0},
            also=why(values.precision),
            lost=np.count_nonzero(ends),
            asked=ends.size,
            cause=f"at every scale tried {cause}",
            known="v",
        )


@dataclass(frozen=True, slots=True)
class BoundedHead:
    """A recovered head with a bound that needs no further answers."""

    model: SingleHead
    values: Values
    W_error: float
    assumes: tuple[str, ...]

    def bounds(self) -> HeadBounds:
        """Return the bounds; a single head without biases has w = 0 and c = 0."""
        return HeadBounds.of(self.values, self.W_error, 0.0, *self.assumes)

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        none = (
            "Some logits could be anything: there is no finite bound on W, and the hold-out can "
            "only say that the answers are in range."
        )
        return (*self.values.precision.why, *(() if np.isfinite(self.W_error) else (none,)))


def conclude_bounded(
    head: BoundedHead, first: FirstRound, rng: np.random.Generator, declared: Declared
) -> Steps[SingleHead]:
    """Ask the closing hold-out; return what was found, or refuse it.

    Offsets are stretched and query tokens shrunk as far as the radius allows, which leaves all
    logits as they are and makes the answers large beside ±τ.
    """
    model, certificate = head.model, certificate_of(head, first.checks)

    def compare(X: Array, y: Array) -> Residuals:
        return for_any_error(HeadAt.of(model, X), y, head.values, certificate.errors["W"])

    closing, long = sequences.closing(
        model, certificate, first.closing, rng, declared.longest, gain=GAIN, open_by=OPEN_BY
    )
    rounds = in_rounds(long)
    answered = yield from fresh_answers(closing, [first.answered], rounds)
    compared = [compare(X, y) for X, y in answered]
    judgement = judge(compared, first.checks)
    evidence = judgement.evidence
    if judgement.refuses:
        raise Reason.FRESH_ANSWERS_MISSED.error(
            model="head",
            missed=judgement.worst[0],
            allowed=judgement.worst[1],
            contrary=f"not a single attention head over {model.dim} dimensions, or it has biases, "
            "or the tolerance is too small",
        )
    shows = [
        HeadAt.of(model, X).changed_by(SHRUNK, head.values) > of.own + of.allowed
        for (X, _), of in zip(answered, compared, strict=True)
    ]
    looked = looked_at(model, answered, long, telling=shows)
    certificate = certificate_of(head, first.checks, looked)
    return Found(model, certificate, evidence, head.notes())


# What fresh sequences are asked. Where no radius forbids it their tokens are as long as the data's,
# or a wrong model's small differences would hide in ±τ. The judgement is exact in how far logits
# may move, so they may be left open by 0.5: at radius 10 and one decimal, d = 8, two heads passed
# for one in 7 of 8 runs at 0.01, in 2 at 0.5.
GAIN, OPEN_BY = 2.0**40, 0.5
# A length of tokens was looked at where an answer shows that scores are smaller by this share, as
# those of tokens shorter by as much.
SHRUNK = 0.1
# The theorem's scale of query tokens, and that of zero rows: 1/(2√2), rounded down to what
# float32 holds beside an offset.
_QUERY_SCALE, _ZERO_QUERY_SCALE = 0.5, 1448 / 4096


@dataclass(frozen=True, slots=True)
class ApproximateHead(Configured):
    """Learn a single head from answers within ±tolerance (Theorem 6.1).

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    tolerance : float
        τ: how far an answer may be off. For Gaussian noise three or four standard deviations;
        for k decimals 0.5·10⁻ᵏ.
    norm_bound : float, optional
        A bound on ‖W‖_F. Needed by the paper's probes (2 or more); others find the scale of
        the logits by themselves.
    radius : float, optional
        The longest token that may be asked (2-norm), the hold-out's included. Without it
        tokens are stretched until the errors do not matter.
    repeats : int
        Passes, each over everything afresh: averages noise that changes between calls, and
        by asking in new directions also rounding, which does not.
    probes : {"balanced", "paper"}
        Balanced offsets, or the paper's e_i and e_i + e_p, whose accuracy falls with the
        smallest entry of v; they assume ‖v‖ ≤ 1.
    single_tolerance : float, optional
        τ_v: how far answers to single tokens may be off, at most ``tolerance``, which is then the
        τ_f of Theorem 6.1 (``probes="paper"`` alone; `unsoftmax.theory.tolerances_for` has both).
    seed : int
        Decides offsets, bases and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: repeats·(d + d²); without ``norm_bound`` pilots may be asked again, at most 3d.
    *Determined up to* the certificate's bounds, which hold for any signs of the errors; v is
    refused when it does not stand out of them.
    *Source*: Theorem 6.1 of arXiv 2601.16873, with zero rows of v put right; balanced offsets,
    stretched tokens, dithering and the certificate go beyond it.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> target = us.SingleHead(rng.standard_normal((8, 8)), rng.standard_normal(8))
    >>> coarse = us.oracles.rounded(target, 1)
    >>> recovery = us.learn(coarse, us.learners.ApproximateHead(8, tolerance=0.05))
    >>> bool(np.linalg.norm(recovery.model.W - target.W) < 1e-6)
    True
    """

    dim: int
    tolerance: float
    norm_bound: float | None = None
    radius: float | None = None
    repeats: int = 1
    probes: Literal["balanced", "paper"] = "balanced"
    seed: int = 0
    single_tolerance: float | None = field(default=None, kw_only=True)

    revision: ClassVar[int] = 3

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)
        whole_number("repeats", self.repeats, 1)
        positive("tolerance", self.tolerance)
        for name in ("norm_bound", "radius", "single_tolerance"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        one_of("probes", self.probes, ("balanced", "paper"))
        if self.probes == "paper":
            self._check_paper()
        elif self.single_tolerance is not None:
            raise ValueError('single_tolerance goes with probes="paper" alone.')

    def _check_paper(self) -> None:
        if self.norm_bound is None or self.norm_bound < 2:
            raise ValueError(
                'norm_bound must be given, 2 or more, for probes="paper": Theorem 6.1 scales '
                f"its probes by it; it is {self.norm_bound}."
            )
        if self.radius is not None and self.radius < 1:
            raise ValueError(
                f'radius must be 1 or more for probes="paper"; it is {self.radius}. Balanced '
                "probes keep to any radius."
            )
        if self.single_tolerance is not None and self.single_tolerance > self.tolerance:
            raise ValueError(
                "single_tolerance must be at most the tolerance: Theorem 6.1 needs single tokens "
                f"at least as precise as pairs. They are {self.single_tolerance} and "
                f"{self.tolerance}."
            )

    def plan(self) -> Plan:
        """Say beforehand what learning costs: as many queries as free parameters, per pass."""
        d, repeats = int(self.dim), int(self.repeats)
        pilots = 0 if self.norm_bound is not None else PILOT_ROUNDS
        cost = (
            Cost.of(repeats * d, rounds=2 + (repeats > 1))
            + Cost(rounds=1)  # v again
            + Cost(rounds=pilots, again=max(0, pilots - 1) * d)
            + Cost.of(repeats * d * d, tokens=2, rounds=1)
            + Cost(rounds=MOST_ROUNDS)
        )
        return cost.plan(
            "d + d²" if repeats == 1 else "repeats·(d + d²)",
            sequences.most_tokens(d),
            FARTHEST if self.radius is None else float(self.radius),
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        d, repeats = int(self.dim), int(self.repeats)
        rng = np.random.default_rng(self.seed)
        declared = Declared(self.tolerance, self.norm_bound, self.radius, self.single_tolerance)
        if self.probes == "paper":
            return (yield from learn_by_coordinates(d, declared, repeats, checks, rng))
        scales = TokenScales(self.radius)
        given = declared.first_round(scales.single)
        first = yield from ask_first_round(d, checks, rng, given)
        values = yield from averaged_values(first.values, scales, repeats, rng)
        passes = yield from passes_over_W(values, scales, self.norm_bound, repeats, rng)
        if self.radius is None:
            values = with_format(values, passes[0], repeats)
        found = estimate(passes, values, declared)
        refuse_unbounded(found, declared)
        head = BoundedHead(SingleHead(found.W, values.v), values, found.W_error, declared.assumes)
        return (yield from conclude_bounded(head, first, rng, declared))


# -- as the paper writes it, in coordinates, with its zero rows put right
#
#     f([e_i]) ≈ v_i,   f([e_i/W̄ + e_j/2; e_j/2]) ≈ v_j/2 + (v_i/W̄)·σ(W_ij/(2W̄))
#
# for ‖W‖_F ≤ W̄, W̄ ≥ 2, ‖v‖ ≤ 1; σ̂ is clipped to [σ(−½), σ(½)]. Where v̂_i is 0 as far as the
# tolerance tells, the offset is e_i + e_p with the largest |v̂_p|, and Ŵ_pj is subtracted. Single
# tokens may be declared more precise than pairs, as the theorem has it: τ_v ≤ τ_f. Differences from
# the paper: (1) for zero rows the query token is e_j/(2√2), or logits leave the clip
# (`unsoftmax.theory.tolerances` has the proof that nothing else need change); (2) μ is not known:
# an entry counts as 0 when |v̂_i| ≤ τ_v, which is right whenever τ_v < μ/2.


def learn_by_coordinates(
    dim: int, declared: Declared, repeats: int, checks: int, rng: np.random.Generator
) -> Steps[SingleHead]:
    """Ask what Theorem 6.1 asks, ``repeats`` times, and return what was found."""
    first = yield from ask_first_round(dim, checks, rng, declared.first_round(1.0))
    values = declared.of_unit_tokens(first.values)
    if repeats > 1:
        singles = Singles(UnitVectors(dim), phase="v", purpose="data")
        further = yield [singles] * (repeats - 1)
        values = replace(values, v=np.mean([values.v, *further], axis=0))

    zero = np.abs(values.v) <= declared.of_singles
    asked = yield from _asked(values, zero, declared, repeats)
    # an entry that counts as 0 is 0, or at most |v̂_i| + τ
    counted = replace(
        values,
        v=np.where(zero, 0.0, values.v),
        v_error=values.v_error + np.where(zero, np.abs(values.v), 0.0),
    )
    found = estimate([asked], counted, declared)
    # Z⁻¹ only subtracts row p from the zero rows: entry by entry that is sharper
    errors = found.readings[0].error.T
    entrywise = errors + np.where(zero[:, None], errors[int(np.argmax(np.abs(values.v)))], 0.0)
    # the theorem's own bound takes each of these steps at its worst: it is never the smallest
    found = replace(found, W_error=min(found.W_error, float(np.linalg.norm(entrywise))))
    refuse_unbounded(found, declared)
    head = BoundedHead(SingleHead(found.W, values.v), values, found.W_error, declared.assumes)
    return (yield from conclude_bounded(head, first, rng, declared))


def _asked(
    values: Values, zero: NDArray[np.bool_], declared: Declared, repeats: int
) -> Asking[Pass]:
    """Ask for every entry of W; answers of all repetitions are averaged."""
    assert declared.norm_bound is not None
    dim = len(zero)
    Z: Array = np.eye(dim)
    Z[zero, int(np.argmax(np.abs(values.v)))] = 1.0
    alpha = np.full((dim, dim), 1 / declared.norm_bound)
    beta = np.where(zero, _ZERO_QUERY_SCALE, _QUERY_SCALE)[None, :].repeat(dim, axis=0)
    y = np.empty((dim, dim))
    kinds = [rows for rows in (~zero, zero) if rows.any()]
    grids: list[Probes] = [
        Grid(Z[rows], UnitVectors(dim), alpha[:, 0], beta[:, rows][:, 0], phase="W", purpose="data")
        for rows in kinds
    ]
    answers = yield grids * repeats
    for n, rows in enumerate(kinds):
        y[:, rows] = np.mean([part.reshape(dim, -1) for part in answers[n :: len(kinds)]], axis=0)
    return Pass(Z, np.eye(dim), alpha, beta, y)
