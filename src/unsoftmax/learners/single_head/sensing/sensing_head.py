"""Theorem 5.1: one attention head of low rank from Gaussian measurements and the nuclear norm.

Recovers W of rank r and v of f(X) = Σ_i α_i x_i·v, α = softmax_i(x_i·(W x_N)), from an oracle of
exact values, with d + m queries: the theorem says m = O(rd), m = 3·r(2d−r) + 4d does it in
practice. All parameters are determined, unless v = 0: then W is free.

    f([x]) = x·v                              v from x = e_1 … e_d
    f([a+b; b]) = b·v + (a·v)·σ(a·(W b))      t_k = a_k·(W b_k) for a_k, b_k ~ N(0, I), k = 1 … m
    Ŵ = argmin ‖W‖_* subject to a_k·(W b_k) = t_k, which is W with high probability

This is the theorem as written. `LowRankHead` goes beyond it: the same head from d + r(2d−r)
adaptive queries, without a convex programme. It may not know anything of the target but its
answers.

Differences from the paper: (1) all a_k and b_k share a scale that puts logits into range, found
with the first few of them; (2) measurements with |a·v| small are imprecise: they count as much
as their precision allows, and the last digits of Ŵ are a fit among matrices of its rank; (3) a
minimiser above rank r is refused, so is one that the measurements do not fix; (4) a hold-out
and a certificate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, NoReturn

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.settings import Configured, rank_up_to, whole_number
from unsoftmax.learners.single_head.conclusion import conclude
from unsoftmax.learners.single_head.distances import DRAWN
from unsoftmax.learners.single_head.first_round import (
    FirstRound,
    FirstRoundSettings,
    ask_first_round,
    or_biased,
)
from unsoftmax.learners.single_head.sensing.nuclear_norm import Minimiser, minimise
from unsoftmax.learners.single_head.sensing.rank_one import (
    MOST_UNKNOWNS,
    Measurements,
    fixed_rank_error,
)
from unsoftmax.measure.logit_grid import Exponents, asked_within, shorter
from unsoftmax.measure.precision import why
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.two_tokens import Gates, TwoTokenAnswers, Vectors
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Indices, Pairs, Purpose
from unsoftmax.protocol import Plan, Steps
from unsoftmax.refusals import Reason
from unsoftmax.theory import counts
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.drawn_models import SAFETY
from unsoftmax.validate.head_comparison import HeadBounds
from unsoftmax.validate.long_sequences import MOST_ROUNDS
from unsoftmax.validate.sequences import most_tokens

# -- Read t_k = a_k·(W b_k) for Gaussian pairs (a_k, b_k), one answer each (Theorem 5.1)
#
# By the two-token identity each answer gives one logit αβ t_k. All pairs share the scale 2^k = αβ:
# E t² = ‖W‖²_F whatever the pair. It is found on the way, with queries that count as data:
#
# 1. the first few are pilots, asked again at another scale when their logits are out of range;
# 2. the rest, at the scale that puts the pilots' RMS at ¼;
# 3. again, what is still out of range.
#
# To lower a logit the query token is scaled down, to raise it the offset is scaled up: an answer
# is off by about u·‖a+b‖ and by its rounding, so ‖b‖ ≤ ‖a‖ and a large a are best.
#
# *Queries*: one per pair; asked again `spare_of` at most. v must be known.

# Facts of float32, whose numbers have 24 bits: Gaussians are below 8, and on a grid of 2⁻¹⁰
# a + b is exact with b up to 2¹⁰ times smaller.
_GRID = 2.0**-10
_APART = 10


# So many measurements set the scale. A product of Gaussians is anywhere: fewer may all be small,
# or large, by chance.
PILOTS = 8
# Root mean square of the logits. At rank 1 they are products of two Gaussians: the largest is 12
# times that.
WANTED = 0.25
# Octaves that the pilots' scale may be off before they are asked again.
MOST_OFF = 4
# A logit beyond this has lost four digits and is asked again.
LARGEST = 8.0
# Octaves by which pilots are lowered when none can be read, once for each entry; the pilots are
# asked again as often at most.
SATURATED = (20, 24, 24)
# Octaves by which single answers that cannot be read are lowered.
LOWERED = 6
# Rounds in which answers out of range are asked again.
PASSES = 3
# Of all answers one in so many may be asked again, but as many as there are pilots.
SPARE_SHARE = 4
# Scales are within 2^±100: tokens and answers must stay in float32's range, 2^±126.
MOST_OCTAVES = 100
# A logit is read where p is this many times its error away from 0 and 1; an answer further than
# that outside of [0, 1] is no head's.
TRUSTED = 3.0
# Where p is known no better than this no scale helps: the offset is nearly orthogonal to v. Such
# answers are not asked again.
HOPELESS = 0.25
# Rounds at most.
ROUNDS = 2 + len(SATURATED) + PASSES


def spare_of(count: int) -> int:
    """Return how many of ``count`` may be asked again: pilots, and a quarter of all."""
    return len(SATURATED) * min(PILOTS, count) + max(PILOTS, count // SPARE_SHARE)


def _split(k: Exponents) -> tuple[Array, Array]:
    """Split s = 2^k: offsets scaled up, query tokens down, and both where that is too far apart."""
    size = np.abs(k)
    apart = np.where(size > _APART, _APART - (size - _APART) % 2, size)
    both = np.sign(k) * (size - apart) // 2
    return np.exp2(both + np.where(k > 0, apart, 0)), np.exp2(both - np.where(k < 0, apart, 0))


@dataclass(slots=True)
class GaussianReadings:
    """The answers to all pairs (a_k, b_k), with the scales they were asked at; NaN before."""

    a: Array
    b: Array
    values: Values
    y: Array = field(init=False)
    alpha: Array = field(init=False)
    beta: Array = field(init=False)
    longest: float = field(default=np.inf, kw_only=True)
    """The target refuses longer tokens."""

    @classmethod
    def draw(cls, count: int, values: Values, rng: np.random.Generator) -> GaussianReadings:
        """Draw the pairs; a vector of zeros, as one dimension may draw, would measure nothing."""
        drawn = np.zeros((2, count, len(values.v)))
        while not np.all(some := np.any(drawn, axis=2)):
            fresh = rng.standard_normal((np.count_nonzero(~some), len(values.v)))
            drawn[~some] = np.round(fresh / _GRID) * _GRID
        return cls(drawn[0], drawn[1], values)

    def __post_init__(self) -> None:
        self.y, self.alpha, self.beta = np.full((3, len(self.a)), np.nan)

    # -- asking

    def ask(self) -> Asking[None]:
        """Ask every pair once, and some again at another scale."""
        spare = spare_of(len(self.a))
        pilots = np.arange(min(PILOTS, len(self.a)))
        k, again = yield from self._piloted(pilots)
        spare -= again
        rest = np.arange(len(pilots), len(self.a))
        if len(rest):
            yield from self._put(rest, np.full(len(rest), k), "data")
        for _ in range(PASSES):
            which, scales = self._out_of_range()
            which, scales = which[:spare], scales[:spare]
            if not len(which):
                break
            yield from self._put(which, scales, "again")
            spare -= len(which)
        self._refuse_unreadable()

    def _piloted(self, pilots: Indices) -> Asking[tuple[int, int]]:
        """Find the scale with the pilots; return it with how many queries were asked again."""
        # a guess at ‖W‖_F = √d, as for trained heads
        k, again = int(np.round(np.log2(WANTED / np.sqrt(self.a.shape[1])))), 0
        yield from self._put(pilots, np.full(len(pilots), k), "pilot")
        for lowered in SATURATED:
            better = self._better(pilots, k, lowered)
            # asked near enough to the scale wanted, and all of them can be read
            near = abs(better - k) <= MOST_OFF
            settled = near and bool(np.all(np.isfinite(self._logits(pilots))))
            k, before = better, k
            if settled or better == before:
                return k, again
            yield from self._put(pilots, np.full(len(pilots), k), "again")
            again += len(pilots)
        return self._better(pilots, k, 0), again

    def _better(self, pilots: Indices, k: int, lowered: int) -> int:
        """Suggest a scale from the pilots asked at 2^k; ``lowered`` where none can be read."""
        logits = self._logits(pilots)
        usable = np.isfinite(logits)
        if not np.any(usable):
            return max(k - lowered, -MOST_OCTAVES)
        rms = float(np.sqrt(np.mean(logits[usable] ** 2)))
        # where W = 0 as far as the answers tell, an RMS of their error is assumed beside it
        unsure = float(np.median(self.gates().logit_error[pilots][usable]))
        octaves = int(np.round(np.log2(WANTED / (rms + unsure))))
        step = octaves if np.all(usable) else min(octaves, -LOWERED)
        return int(np.clip(k + step, -MOST_OCTAVES, MOST_OCTAVES))

    def _put(self, which: Indices, k: Exponents, purpose: Purpose) -> Asking[None]:
        """Ask some pairs at scale 2^k."""
        name = "W, again" if purpose == "again" else "W"
        a, b = (np.linalg.norm(rows[which], axis=1) for rows in (self.a, self.b))

        def made(longest: float) -> Pairs:
            self.alpha[which], self.beta[which] = alpha, beta = shorter(*_split(k), a, b, longest)
            rows = self.a, self.b, which, which
            return Pairs(*rows, alpha, beta, phase=name, purpose=purpose)

        self.y[which], self.longest = yield from asked_within(made, self.longest)
        if self.values.reread is not None:
            self.values = self.values.told_by(self.answered().telling)

    def _out_of_range(self) -> tuple[Indices, Exponents]:
        """Find answers whose logit is too large, the worst first, and better scales."""
        gates = self.gates()
        hopeful = gates.p_error < HOPELESS
        size = np.where(gates.margin > TRUSTED * gates.p_error, np.abs(gates.logit), np.inf)
        which = np.flatnonzero(hopeful & (size > LARGEST))
        which = which[np.argsort(-size[which], kind="stable")]
        k = np.log2(self.alpha[which] * self.beta[which])
        with np.errstate(divide="ignore"):
            at_one = np.round(-np.log2(size[which]))
        k += np.where(np.isfinite(size[which]), at_one, -LOWERED)
        return which, np.maximum(k, -MOST_OCTAVES).astype(np.int64)

    # -- what the answers say

    def answered(self, values: Values | None = None) -> TwoTokenAnswers:
        """Return all answers as they were asked; ``values`` may assume another precision."""
        values = values or self.values
        a, b = Vectors.of(self.a, values), Vectors.of(self.b, values)
        return TwoTokenAnswers(self.y, a, b, self.alpha, self.beta, values)

    def gates(self) -> Gates:
        """Read every answer through the two-token identity."""
        return self.answered().gates()

    def measurements(
        self, values: Values | None = None, W: SingleHead | None = None
    ) -> Measurements:
        """Return all that can be read, with bounds on their errors.

        ``values`` holds the precision that is assumed; ``W`` is the head whose scores were
        rounded, estimated by their size while there is none.
        """
        answered = self.answered(values)
        known = np.isfinite(answered.gates().logit_error)
        if W is None:  # for Gaussian b the norm ‖W b‖ is about ‖W‖_F, and that is the RMS of t
            norm = np.sqrt(np.mean(answered.measured()[known] ** 2))
        else:
            norm = np.linalg.norm(W.scores_of(self.b), axis=1)
        read = answered.reading(self.beta * norm, 0.0)
        return Measurements(self.a[known], self.b[known], read.value[known], read.error[known])

    def drawn_errors(self, values: Values, W: SingleHead, count: int) -> Array:
        """Draw errors of all that can be read, (count, m), as large as they are as a rule."""
        answered, rng = self.answered(values), np.random.default_rng(0)
        known = np.isfinite(answered.gates().logit_error)
        norm = self.beta * np.linalg.norm(W.scores_of(self.b), axis=1)
        read, drawn = answered.measured()[known], []
        for _ in range(count):
            y, other = answered.moved(rng, norm), values.moved(rng)
            drawn.append(replace(self.answered(other), y=y).measured()[known] - read)
        return np.array(drawn)

    def _logits(self, which: Indices) -> Array:
        """Return logits, NaN where an answer is out of reach."""
        gates = self.gates()
        known = gates.margin > TRUSTED * gates.p_error
        return np.asarray(np.where(known, gates.logit, np.nan)[which])

    def _refuse_unreadable(self) -> None:
        """Refuse answers outside of what any weights can give."""
        gates, values = self.gates(), self.values
        outside = np.maximum(-gates.p, gates.p - 1) > TRUSTED * gates.p_error
        if np.any(outside):
            raise Reason.WEIGHTS_BEYOND_1.error(
                outside=np.count_nonzero(outside),
                asked=outside.size,
                contrary="no single attention head",
            )
        readable = np.count_nonzero(np.isfinite(gates.logit_error))
        if readable < len(self.a) / 2:
            raise Reason.LOGITS_OUT_OF_REACH.error(
                {"v": values.v, "c": values.c},
                also=why(values.precision),
                lost=len(self.a) - readable,
                asked=len(self.a),
                cause="the answers are too coarse, or attention is hard",
                known="v",
            )


# More measurements are refused, for no more was tried: d = 384 and r = 8 have 19,776, and take
# minutes.
MOST_MEASUREMENTS = 20480
# The same where there are d² of them: then W is the solution of a dense system.
MOST_EQUATIONS = 8192


@dataclass(frozen=True, slots=True)
class SensingHead(Configured):
    """Learn a single head of low rank from Gaussian measurements (Theorem 5.1).

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    rank : int
        The largest rank r that W may have, d at most.
    measurements : int, optional
        Gaussian measurements m, r(2d−r) at least; 3·r(2d−r) + 4d, at most d², by default.
    seed : int
        Decides the measurements and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type; on learning, before anything is asked,
        if the convex programme would take too long: m above 20,480 (8,192 where m is d² or more),
        or r(2d−r) above 8,192.
    NotIdentifiable, ModelMismatch
        The matrix of least nuclear norm is not W, is not fixed by the measurements, or does not
        predict fresh answers. ``.determined["least_norm_W"]`` is that matrix, as far as it was
        found: exactly where its rank showed; else its norm is within 1e-9 of the least, as a rule.

    Notes
    -----
    *Queries*: d + m; asked again where a logit was out of range: none, or the 8 pilots,
    as a rule.
    *Determined up to* nothing; W is free when v = 0. With few measurements the matrix of least
    nuclear norm is not W: its rank shows it, and it is refused.
    *How often it fails*: with the default m for none of 2,000 random heads (d = 16 to 32, r = 1
    to 3); with 3 measurements per parameter for 6 % at r = 1 and none at r = 2 and 3; with 2 for
    15 to 98 %; with 1.5 for all. Each was refused, and nothing else.
    *Memory and time*: m×d numbers, and r(2d−r) squared for the certificate; d = 384 and r = 8
    take 1.7 GiB, and 12 minutes of one core that others use too.
    *Source*: Theorem 5.1 of arXiv 2601.16873, the guarantee from Cai and Zhang, "ROP: Matrix
    recovery via rank-one projections"; the certificate goes beyond it.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> K, Q = rng.standard_normal((2, 1, 12))
    >>> target = us.SingleHead(K.T @ Q, rng.standard_normal(12))
    >>> us.learners.SensingHead(12, rank=1).plan().queries
    129
    >>> recovery = us.learn(target, us.learners.SensingHead(12, rank=1))
    >>> bool(np.allclose(recovery.model.W, target.W, rtol=0, atol=1e-12))
    True
    """

    dim: int
    rank: int
    measurements: int | None = None
    seed: int = 0

    revision: ClassVar[int] = 3

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        rank_up_to(self.dim, self.rank, 0)
        whole_number("seed", self.seed, 0)
        if self.measurements is not None:
            whole_number("measurements", self.measurements, 1)
            parameters = counts.of_rank(int(self.dim), int(self.rank))
            if self.measurements < parameters:
                raise ValueError(
                    f"measurements must be at least {parameters}, the free parameters of a matrix "
                    f"of rank {self.rank}; it is {self.measurements}. About {self._usual} suffice."
                )

    @property
    def _usual(self) -> int:
        return counts.sensing(int(self.dim), int(self.rank))

    @property
    def _count(self) -> int:
        return self._usual if self.measurements is None else int(self.measurements)

    def plan(self) -> Plan:
        """Say beforehand what learning costs."""
        d, m = int(self.dim), self._count
        formula = "3·r(2d − r) + 5d" if m < d * d else "d + d²"
        cost = (
            Cost.of(d, rounds=3)
            + Cost.of(m, tokens=2, rounds=ROUNDS, again=spare_of(m))
            + Cost(rounds=MOST_ROUNDS)
        )
        if self.measurements is not None:
            formula = f"d + {m:,} measurements"
        return cost.plan(formula, most_tokens(d))

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        self._refuse_too_many()
        rng = np.random.default_rng(self.seed)
        ahead = self.plan().at_most + checks
        given = FirstRoundSettings(listens=True, ahead=ahead)
        first = yield from ask_first_round(self.dim, checks, rng, given)
        asked = GaussianReadings.draw(self._count, first.values, rng)
        yield from asked.ask()
        found = minimise(asked.measurements())
        try:
            return (yield from self._concluded(found, asked, first, rng))
        except (NotIdentifiable, ModelMismatch) as refusal:
            refusal.determined["least_norm_W"] = found.W
            raise

    def _concluded(
        self, found: Minimiser, asked: GaussianReadings, first: FirstRound, rng: np.random.Generator
    ) -> Steps[SingleHead]:
        """Refuse a minimiser that need not be W, or ask the hold-out whether it is."""
        if not found.determined or found.rank > self.rank:
            self._refuse(found, asked)
        head = SensedHead.of(found, asked, int(self.rank))
        otherwise = f", its W has a rank above {self.rank}{or_biased(False)}"
        try:
            return (yield from conclude(head, first, rng, otherwise))
        except ModelMismatch as error:
            # as many equations as unknowns: another matrix of that rank may solve them too
            parameters = counts.of_rank(int(self.dim), found.rank)
            if self._count > parameters or self._count >= self._usual:
                raise
            raise Reason.TOO_FEW_MEASUREMENTS.error(
                {"v": first.values.v, "c": first.values.c},
                seen=f"The matrix of least nuclear norm with the {self._count} measurements has "
                f"rank {found.rank}, but it is not W",
                usual=self._usual,
                rank=self.rank,
            ) from error

    def _refuse_too_many(self) -> None:
        """Refuse more measurements than the convex programme can take."""
        d, rank = int(self.dim), int(self.rank)
        all_of_it = self._count >= d * d
        most = MOST_EQUATIONS if all_of_it else MOST_MEASUREMENTS
        if self._count > most or counts.of_rank(d, rank) > MOST_UNKNOWNS:
            raise ValueError(
                f"{self._count:,} measurements of {counts.of_rank(d, rank):,} parameters are more "
                f"than the convex programme can take, {most:,} of {MOST_UNKNOWNS:,}. Learn with "
                f"LowRankHead, which needs {counts.low_rank_head(d, rank):,} queries and none of "
                "it."
            )

    def _refuse(self, found: Minimiser, asked: GaussianReadings) -> NoReturn:
        """Refuse a minimiser that is not determined, or not of the rank."""
        values, seen = asked.values, f"The {self._count} measurements do not fix W"
        if found.rank > self.rank:
            seen = (
                f"The matrix of least nuclear norm with the {self._count} measurements has rank "
                f"{found.rank}"
            )
        if self._count < self._usual:
            raise Reason.TOO_FEW_MEASUREMENTS.error(
                {"v": values.v, "c": values.c},
                also=why(values.precision),
                seen=f"{seen}, so it need not be W",
                usual=self._usual,
                rank=self.rank,
            )
        if not found.determined and not values.precision.exact:
            raise Reason.RANK_ABOVE_OR_COARSE.error(
                {"v": values.v, "c": values.c},
                also=why(values.precision),
                seen=seen,
                rank=self.rank,
            )
        raise Reason.RANK_ABOVE.error(
            also=why(values.precision), seen=seen, rank=self.rank, otherwise=or_biased(False)
        )


@dataclass(frozen=True, slots=True)
class SensedHead:
    """The matrix of least nuclear norm with everything that bounds its errors.

    The measurements' smallest gain among the matrices of its rank around it says how far W can be:
    see `unsoftmax.learners.single_head.sensing.rank_one`.
    """

    model: SingleHead
    values: Values
    asked: GaussianReadings
    found: int
    """Rank of the model's W."""
    rank: int
    """The largest rank that W may have."""
    _known: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    """The bound on W once it was worked out: at d = 384 it takes a minute."""

    @classmethod
    def of(cls, found: Minimiser, asked: GaussianReadings, rank: int) -> SensedHead:
        """Split the minimiser into its factors."""
        left, singular, right = np.linalg.svd(found.W)
        root = np.sqrt(singular[: found.rank])[:, None]
        K, Q = root * left[:, : found.rank].T, root * right[: found.rank]
        model = SingleHead.from_factors(K, Q, asked.values.v)
        return cls(model, asked.values, asked, found.rank, rank)

    def bounds(self) -> HeadBounds:
        """Bound the errors by the measurements' gain on matrices near Ŵ."""
        if not self._known:
            measured = self.asked.measurements(self.values, self.model)
            drawn = SAFETY * self.asked.drawn_errors(self.values, self.model, DRAWN)
            ranks, W = (self.found, self.rank), self.model.W
            self._known.append(fixed_rank_error(measured, W, *ranks, drawn))
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
