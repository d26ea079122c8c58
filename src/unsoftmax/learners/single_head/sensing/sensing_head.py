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

from dataclasses import dataclass, field
from typing import ClassVar, NoReturn

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.settings import Configured, rank_up_to, whole_number
from unsoftmax.learners.single_head.conclusion import conclude
from unsoftmax.learners.single_head.distances import DRAWN
from unsoftmax.learners.single_head.first_round import (
    FirstRound,
    FirstRoundSettings,
    ask_first_round,
    or_biased,
)
from unsoftmax.learners.single_head.sensing.gaussian_readings import (
    ROUNDS,
    GaussianReadings,
    spare_of,
)
from unsoftmax.measure.precision import why
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Plan, Steps
from unsoftmax.solve.fixed_rank import fixed_rank_error
from unsoftmax.solve.nuclear_norm import Minimiser, NuclearNormTuning, minimise
from unsoftmax.solve.tangent_space import TangentTuning
from unsoftmax.theory import counts
from unsoftmax.validate.drawn_models import SAFETY
from unsoftmax.validate.head_comparison import HeadBounds
from unsoftmax.validate.sequences import HoldoutTuning

# More measurements are refused, for no more was tried: d = 384 and r = 8 have 19,776, and take
# minutes.
MOST_MEASUREMENTS = 20480
# The same where there are d² of them: then W is the solution of a dense system.
MOST_EQUATIONS = 8192


@dataclass(frozen=True, slots=True)
class SensingTuning:
    """Knobs of `SensingHead`, those of its parts nested."""

    nuclear_norm: NuclearNormTuning = field(default=NuclearNormTuning())


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
    tuning : SensingTuning
        Knobs of the algorithm, each with its reason in the source. To change some:
        ``dataclasses.replace(learner.tuning, …)``, given to a new learner.

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
    tuning: SensingTuning = field(default=SensingTuning(), kw_only=True)

    revision: ClassVar[int] = 1

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
        holdout = HoldoutTuning()
        formula = "3·r(2d − r) + 5d" if m < d * d else "d + d²"
        return Plan(
            queries=d + m,
            at_most=d + m + spare_of(m),
            tokens=d + 2 * m,
            rounds=3 + ROUNDS + holdout.long.most_rounds,
            formula=formula if self.measurements is None else f"d + {m:,} measurements",
            longest_token=FARTHEST,
            most_tokens=holdout.long.most_tokens(d, *holdout.lengths),
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        self._refuse_too_many()
        rng = np.random.default_rng(self.seed)
        ahead = self.plan().at_most + checks
        given = FirstRoundSettings(listens=True, ahead=ahead)
        first = yield from ask_first_round(self.dim, checks, rng, given)
        asked = GaussianReadings.draw(self._count, first.values, rng)
        yield from asked.ask()
        found = minimise(asked.measurements(), self.tuning.nuclear_norm)
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
        tangent = self.tuning.nuclear_norm.fit.tangent
        head = SensedHead.of(found, asked, int(self.rank), tangent)
        otherwise = f", its W has a rank above {self.rank}{or_biased(False)}"
        try:
            return (yield from conclude(head, first, rng, otherwise))
        except ModelMismatch as error:
            # as many equations as unknowns: another matrix of that rank may solve them too
            parameters = counts.of_rank(int(self.dim), found.rank)
            if self._count > parameters or self._count >= self._usual:
                raise
            raise NotIdentifiable(
                f"The matrix of least nuclear norm with the {self._count} measurements has rank "
                f"{found.rank}, but it is not W: ask more, {self._usual} usually suffice. v is "
                "determined.",
                determined={"v": first.values.v, "c": first.values.c},
            ) from error

    def _refuse_too_many(self) -> None:
        """Refuse more measurements than the convex programme can take."""
        d, rank = int(self.dim), int(self.rank)
        all_of_it = self._count >= d * d
        most = MOST_EQUATIONS if all_of_it else MOST_MEASUREMENTS
        most_unknowns = self.tuning.nuclear_norm.fit.tangent.most_unknowns
        if self._count > most or counts.of_rank(d, rank) > most_unknowns:
            raise ValueError(
                f"{self._count:,} measurements of {counts.of_rank(d, rank):,} parameters are more "
                f"than the convex programme can take, {most:,} of {most_unknowns:,}. Learn with "
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
            raise NotIdentifiable(
                f"{seen}, so it need not be W: ask more, {self._usual} usually suffice for "
                f"rank {self.rank}. v is determined.{why(values.precision)}",
                determined={"v": values.v, "c": values.c},
            )
        if not found.determined and not values.precision.exact:
            raise NotIdentifiable(
                f"{seen}: W has a higher rank than {self.rank} (raise rank), or the "
                f"answers are too coarse. v is determined.{why(values.precision)}",
                determined={"v": values.v, "c": values.c},
            )
        raise ModelMismatch(
            f"{seen}, and they would have shown a W of rank {self.rank} or less. W has a higher "
            "rank (raise rank), or the target is not a single attention "
            f"head{or_biased(False)}.{why(values.precision)}"
        )


@dataclass(frozen=True, slots=True)
class SensedHead:
    """The matrix of least nuclear norm with everything that bounds its errors.

    The measurements' smallest gain among the matrices of its rank around it says how far W can be:
    see `unsoftmax.solve.fixed_rank`.
    """

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
            drawn = SAFETY * self.asked.drawn_errors(self.values, self.model, DRAWN)
            ranks, W = (self.found, self.rank), self.model.W
            self._known.append(fixed_rank_error(measured, W, *ranks, drawn, self.tangent))
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
