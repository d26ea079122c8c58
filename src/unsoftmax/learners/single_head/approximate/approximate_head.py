"""Theorem 6.1: one attention head from answers that are within ±τ, with d + d² of them.

Recovers W and v of f(X) = Σ_i α_i x_i·v, α = softmax_i(x_i·W x_N), from an oracle whose answers
are off by at most τ, rounded, noisy or hostile; ``repeats`` times d + d² queries. Determined up
to the error that the certificate bounds; v must stand out of the errors.

    f([ρx]) ≈ ρ(x·v)                                     v from an orthonormal basis
    f([αz+βb; βb]) ≈ β(b·v) + α(z·v)·σ(αβ·z·(W b))       W from offsets z and query tokens b

Differences from the paper: (1) balanced offsets, so that ‖v‖ matters and not its smallest entry
(``probes="paper"`` asks the paper's own, `approximate.paper`); (2) tokens as long as ``radius``
allows: an error ±τ moves p by τ/(α|z·v|) only. With no radius α = 2⁴⁰ and β = 2⁻⁴⁰ leave nothing
of it; (3) ‖W‖ need not be known: pilots set αβ; (4) later passes ask in new random bases, so
that errors which depend on the question alone (rounding) are averaged like noise; (5) the
certificate is computed from the answers, for the worst signs of their errors.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from unsoftmax.learners.settings import Configured, one_of, positive, whole
from unsoftmax.learners.single_head.approximate import paper
from unsoftmax.learners.single_head.approximate.reach import PILOTS, Reach, balanced, basis
from unsoftmax.learners.single_head.approximate.tolerated import (
    Bounded,
    Pass,
    Terms,
    refuse,
    solve,
    verify,
)
from unsoftmax.learners.single_head.first_round import FirstRoundSettings, ask_first_round
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.measure.two_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Grid, Indices, Pairs, Purpose, Round, Singles
from unsoftmax.protocol import Answers, Plan, Steps
from unsoftmax.theory import counts

# Answers whose format is looked at.
_WITNESSES = 256


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

    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1)
        whole("seed", self.seed, 0)
        whole("repeats", self.repeats, 1)
        positive("tolerance", self.tolerance)
        for name in ("norm_bound", "radius"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        one_of("probes", self.probes, ("balanced", "paper"))
        if self.probes == "paper":
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

    def plan(self) -> Plan:
        """Say beforehand what learning costs: as many queries as free parameters, per pass."""
        d, repeats = int(self.dim), int(self.repeats)
        queries = repeats * counts.single_head(d)
        again = 0 if self.norm_bound is not None else (PILOTS - 1) * d
        return Plan(
            queries=queries,
            at_most=queries + again,
            tokens=2 * queries - repeats * d,
            # opening and repeats; v again; pilots and the rest; hold-out
            rounds=2 + (repeats > 1) + 1 + (0 if self.norm_bound is not None else PILOTS) + 1,
            formula="d + d²" if repeats == 1 else "repeats·(d + d²)",
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng = np.random.default_rng(self.seed)
        terms = Terms(self.tolerance, self.norm_bound, self.radius)
        if self.probes == "paper":
            return (yield from paper.learn(self.dim, terms, self.repeats, checks, rng))
        reach = Reach(self.radius)
        given = FirstRoundSettings(False, terms.precision, reach.single, terms.cap)
        opened = yield from ask_first_round(self.dim, checks, rng, given)
        values = yield from self._averaged(opened.values, reach.single, rng)
        passes = yield from self._passes(values, reach, rng)
        values = self._as_answered(values, passes)
        W, W_error = solve(passes, values, self.norm_bound)
        refuse(passes, W, W_error, values, terms)
        fit = Bounded(SingleHead(W, values.v), values, W_error, terms.assumes)
        return (yield from verify(fit, opened, checks, rng, terms))

    def _averaged(
        self, values: Values, scale: float, rng: np.random.Generator
    ) -> Generator[Round, Answers, Values]:
        """Ask for v again in new bases, and average."""
        if self.repeats == 1:
            return values
        bases = [basis(self.dim, rng) for _ in range(self.repeats - 1)]
        answers = yield [Singles(U, scale, phase="v", purpose="data") for U in bases]
        inverses = [np.linalg.inv(U) for U in bases]
        found = [inverse @ y / scale for inverse, y in zip(inverses, answers, strict=True)]
        size = np.full(self.dim, scale * values.norm)
        errors = [
            np.abs(inverse)
            @ (values.precision.error(size, y) + self.dim * UNIT * np.abs(y))
            / scale
            for inverse, y in zip(inverses, answers, strict=True)
        ]
        v = np.mean([values.v, *found], axis=0)
        # unit vectors bound each entry best, whatever the average says
        first = np.abs(v - values.v) + values.v_error + 2 * UNIT * np.abs(v)
        v_error = np.minimum(first, np.mean([values.v_error, *errors], axis=0))
        return replace(values, v=v, v_error=v_error)

    def _passes(
        self, values: Values, reach: Reach, rng: np.random.Generator
    ) -> Generator[Round, Answers, list[Pass]]:
        """Ask for W, every pass with new offsets and query tokens."""
        bases = [(balanced(values.v, rng), basis(self.dim, rng)) for _ in range(self.repeats)]
        passes, grids = [], []
        if self.norm_bound is None:
            k, piloted, others = yield from self._pilots(*bases[0], values, reach)
            passes, grids = [piloted], [others]
        else:
            k = reach.bounded(self.norm_bound)
        alpha, beta = reach.split(k)
        every = np.full(self.dim, alpha), np.full(self.dim, beta)
        whole_passes = [
            Grid(Z, B, *every, phase="W", purpose="data") for Z, B in bases[len(passes) :]
        ]
        answers = yield [*grids, *whole_passes]
        if grids:
            piloted.y[grids[0].j, grids[0].i] = answers.pop(0)
        scales = np.full((2, self.dim, self.dim), [[[alpha]], [[beta]]])
        for grid, y, (Z, B) in zip(whole_passes, answers, bases[len(passes) :], strict=True):
            passes.append(Pass(Z, B, scales[0], scales[1], grid.table(y)))
        return passes

    def _pilots(
        self, Z: Array, B: Array, values: Values, reach: Reach
    ) -> Generator[Round, Answers, tuple[float, Pass, Pairs]]:
        """Find the scale by asking offset i with query token i; return it with the first pass.

        The pass lacks the answers to the pairs that are returned with it.
        """
        d = self.dim
        k = reach.first(d)
        purpose: Purpose = "pilot"
        for attempt in range(PILOTS):
            alpha, beta = (np.full((d, d), scale) for scale in reach.split(k))
            asked = Pass(Z, B, alpha, beta, np.zeros((d, d)))
            every = np.arange(d)
            [y] = yield [_pairs(asked, every, every, purpose)]
            np.fill_diagonal(asked.y, y)
            better = reach.better(asked, values, k, attempt)
            if better == k:
                break
            # after the last attempt these pilots stay: only less precise than the rest
            k, purpose = better, "again"
        rest = ~np.eye(d, dtype=bool)
        asked.alpha[rest], asked.beta[rest] = reach.split(k)
        j, i = np.nonzero(rest)
        return k, asked, _pairs(asked, j, i, "data")

    def _as_answered(self, values: Values, passes: list[Pass]) -> Values:
        """Widen the precision by the format of the answers, which counts where they are large."""
        if self.radius is not None:
            return values
        seen = Precision.of_format([np.ravel(passes[0].y)[:_WITNESSES]])
        # decimals of stretched answers look like digits of them: the tolerance says it better
        noticed = seen.why if seen.unit > UNIT else ()
        precision = replace(
            values.precision,
            unit=max(seen.unit, values.precision.unit),
            relative=seen.relative,
            why=values.precision.why + noticed,
        )
        v_error = values.v_error + precision.of_one_term * np.abs(values.v)
        if self.repeats > 1:  # sums of d terms, in bases whose rows' 1-norms are below √d
            v_error = v_error + np.sqrt(self.dim) * KAPPA * precision.unit * values.norm
        return replace(values, precision=precision, v_error=v_error)


def _pairs(asked: Pass, j: Indices, i: Indices, purpose: Purpose) -> Pairs:
    """Ask query token j[n] with offset i[n] at the scales that the pass has for them."""
    scales = asked.alpha[j, i], asked.beta[j, i]
    phase = "W, again" if purpose == "again" else "W"
    return Pairs(asked.Z, asked.B, i, j, *scales, phase=phase, purpose=purpose)
