"""Theorem B.1: one attention head from labels alone, by whether f(X) > 0.

Recovers W, and v up to its norm, of f(X) = Σ_i α_i x_i·v, α = softmax_i(x_i·W x_N), from an
oracle that answers 1 where f(X) > 0 and 0, or −1, elsewhere. "bisect": about one query per bit of a
parameter, (bits + 2)(d² + d) and O(d) + 400 more, in about bits + 20 rounds. "paper": k +
d²·steps, with the k of the theorem, affordable for d ≤ 2 only.

    [g_i e_i − ρ g_p e_p]        label 1 ⇔ ρ < |v_i|/|v_p|, g the signs of v    v/‖v‖
    [αa − βb; −βb], αβ = s       label 1 ⇔ α² > s(b·v/a·v)(1 + e^{s a·(W b)})   a·(W b), so W

Differences from the paper, with "bisect": (1) v by bisection of its ratios instead of averages,
zeros of v allowed, no margin; (2) W through offsets and query tokens balanced on v, no bound on
its norm; (3) all entries in the same rounds; (4) labels beside every flip are asked in the end,
so that wrong ones are noticed, and carry a certificate; (5) a hold-out at the flips of longer
sequences. "paper" is in `labels.sphere_average`; "bisect", step by step:

1. Signs of v; its largest entry; the first bits of the ratios to it, enough for balanced offsets
   a and balanced query tokens b (a·v and b·v all alike, so that no threshold is ill-conditioned):
   `value_ratios`.
2. The scale s: the largest power of 2 at which at most an eighth of 16 random pairs (a, b) have
   logits beyond ±1.5.
3. Every logit t = −s a·(W b) bisected on [−4, 4] in parallel, with the rest of v's bits beside
   them. Logits found beyond ±3 after 4 bits start again at s/8: `pair_logits`.
4. Ŵ = Z_a⁻¹(−t̂/s)Z_b⁻ᵀ, t̂ read through the final v̂; labels beside every interval prove it:
   `proved_head`.
5. The hold-out, at flips of longer sequences: `beside_flips`.
"""

import math
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

import numpy as np

from unsoftmax.learners.settings import Configured, one_of, positive, whole_number
from unsoftmax.learners.single_head.labels import bisection, sphere_average
from unsoftmax.learners.single_head.labels.flips import LENGTHS, conclude_labels
from unsoftmax.learners.single_head.labels.proved_head import ProvedHead, refuse_scale
from unsoftmax.models import SingleHead
from unsoftmax.probes import Singles, UnitVectors
from unsoftmax.protocol import Found, Plan, Steps
from unsoftmax.refusals import Reason
from unsoftmax.theory import counts
from unsoftmax.theory.costs import Cost
from unsoftmax.theory.counts import FIRST_BITS, GROUP, label_head_again
from unsoftmax.validate import sequences
from unsoftmax.validate.long_sequences import MOST_ROUNDS, most_tokens

# v = 0 and a constant added to the answers show at a token scaled down by this, which float32
# holds.
TINY = 2.0**-60

# Beyond so many bits a halved interval has no middle in float64.
_MOST_BITS = 52
# Theorem B.1's sample sizes are computed in float64: bits at most, and margin or 1/norm_bound at
# least.
_MOST_PAPER_BITS, _LEAST_MARGIN = 200, 1e-12


@dataclass(frozen=True, slots=True)
class LabelHead(Configured):
    """Learn a single head from labels: 1 where f(X) > 0, else 0 or −1 (Theorem B.1).

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    bits : int
        Accuracy. With "bisect" every parameter's interval is halved so often, 4 to 52 times:
        50 exhaust float64 labels, 16 those of a float32 target. With "paper" the error
        allowed is ‖ΔW‖_F ≤ norm_bound·2^-bits, unless ``error`` says it.
    norm_bound : float, optional
        Bound on ‖W‖_F. "paper" needs it, 2 or more as Theorem B.1 assumes (a smaller norm is
        bounded by 2 as well); with "bisect" it is only checked in the end.
    margin : float, optional
        No entry of v is smaller than margin·‖v‖. "paper" needs it; "bisect" checks it.
    method : {"bisect", "paper"}
        Bisection of everything, or the paper's averages and bisection.
    error : float, optional
        ε_W, the error allowed of W, below norm_bound ("paper" alone; instead of ``bits``).
    failure : float
        δ, the probability that the guarantee fails ("paper" alone).
    sample_share : float
        Share of the theorem's k samples that is asked ("paper" alone). Below 1 the algorithm ends
        where k is out of reach; what is certified is what the theorem promises for so many
        samples, 1/√share times the error.
    seed : int
        Decides offsets, query tokens, samples and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, missing, or not of its type.

    Notes
    -----
    *Queries*: "bisect" (bits + 2)(d² + d) and O(d) + 400 more, at most d² + 64 of them again;
    "paper" k + d²·steps, see `unsoftmax.theory.counts.label_head_paper`. *Determined up to*
    ‖v‖, which is returned as 1; W is free when v = 0. *Source*: Theorem B.1 of arXiv
    2601.16873; "bisect" goes beyond it.

    Refused: labels that are always 0 (`NotIdentifiable`: as with v = 0, W is free); labels that
    are always 1, that contradict each other, or that are not those of one head without
    biases (`ModelMismatch`). The evidence's residuals are how far from 0, relative to
    max_i‖x_i‖, the recovered head is where a fresh label says that its sign is wrong: 0 as
    long as all labels are predicted; the tolerance is what the certificate lets it be off by.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> target = us.SingleHead(rng.standard_normal((4, 4)), rng.standard_normal(4))
    >>> learner = us.learners.LabelHead(4, bits=40)
    >>> recovery = us.learn(lambda X: target(X) > 0, learner)
    >>> bool(np.allclose(recovery.model.W, target.W, rtol=0, atol=1e-9))
    True
    >>> bool(np.allclose(recovery.model.v, target.v / np.linalg.norm(target.v), atol=1e-9))
    True
    """

    dim: int
    bits: int | None = None
    norm_bound: float | None = None
    margin: float | None = None
    method: Literal["bisect", "paper"] = "bisect"
    seed: int = 0
    error: float | None = field(default=None, kw_only=True)
    failure: float = field(default=0.01, kw_only=True)
    sample_share: float = field(default=1.0, kw_only=True)

    revision: ClassVar[int] = 1
    far: ClassVar[str] = "at scales of W from the largest down"

    def __post_init__(self) -> None:
        for name, least in (("dim", 1), ("bits", 1), ("seed", 0)):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), least)
        one_of("method", self.method, ("bisect", "paper"))
        for name in ("norm_bound", "margin", "error", "failure", "sample_share"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.method == "paper":
            self._check_paper()
        else:
            self._check_bisect()
        if min(float(self.margin or 1), 1 / float(self.norm_bound or 1)) < _LEAST_MARGIN:
            raise ValueError(
                f"margin must be at least {_LEAST_MARGIN:.0e} and norm_bound at most "
                f"{1 / _LEAST_MARGIN:.0e}; they are {self.margin} and {self.norm_bound}."
            )
        largest = 1 / math.sqrt(self.dim)
        if float(self.margin or 0) > largest:
            raise ValueError(
                f"margin must be at most 1/√d = {largest:.3g}: the smallest |v_i| of a vector with "
                f"‖v‖ = 1 is no larger. It is {self.margin!r}."
            )
        if self.method == "paper":
            self._check_share()

    def _check_bisect(self) -> None:
        # the first bits tell whether a logit is in range
        fewest = FIRST_BITS
        if self.bits is None:
            raise ValueError(f"bits must be given for bisection, {fewest} to {_MOST_BITS}.")
        if not fewest <= self.bits <= _MOST_BITS:
            raise ValueError(
                f"bits must be {fewest} to {_MOST_BITS} for bisection; it is {self.bits}."
            )
        of_paper = [one for one in fields(self) if one.name in ("error", "failure", "sample_share")]
        if any(getattr(self, one.name) != one.default for one in of_paper):
            raise ValueError('error, failure and sample_share go with method="paper" alone.')

    def _check_paper(self) -> None:
        for name in ("norm_bound", "margin"):
            if getattr(self, name) is None:
                raise ValueError(f'method="paper" needs {name}.')
        if float(self.norm_bound or 0) < 2:
            raise ValueError(
                'norm_bound must be 2 or more for method="paper": Theorem B.1 assumes it, and a '
                f"smaller norm is bounded by 2 as well. It is {self.norm_bound}."
            )
        if (self.bits is None) == (self.error is None):
            raise ValueError('method="paper" needs either bits or error: give one.')
        if self.bits is not None and self.bits > _MOST_PAPER_BITS:
            raise ValueError(f"bits must be at most {_MOST_PAPER_BITS}; it is {self.bits}.")
        least = math.ldexp(1.0, -_MOST_PAPER_BITS)
        if self.error is not None and not least <= self.error / float(self.norm_bound or 1) < 1:
            raise ValueError(
                "error must be below norm_bound, where W = 0 is as near, and at least "
                f"2^-{_MOST_PAPER_BITS} of it; it is {self.error}."
            )
        if self.failure >= 1:
            raise ValueError(f"failure must be below 1; it is {self.failure}.")

    def _check_share(self) -> None:
        least = self._promise().least_share(int(self.dim))
        if not least <= self.sample_share <= 1:
            raise ValueError(
                f"sample_share must be {least:.1e} to 1: with fewer samples entries of v are lost "
                f"in their errors, and nothing is promised. It is {self.sample_share}."
            )

    def plan(self) -> Plan:
        """Say beforehand what learning costs; with "paper" also where k is astronomic."""
        d = int(self.dim)
        if self.method == "paper":
            return self._paper_plan()
        assert self.bits is not None
        bits = int(self.bits)
        queries = counts.label_head(d, bits)
        two_tokens = d * d * (bits + 2) + counts.label_head_pilots(d)
        again, rounds = counts.label_head_again(d), counts.label_head_rounds(d, bits)
        cost = (
            Cost.of(queries - two_tokens, rounds=rounds, again=again)
            + Cost.of(two_tokens, tokens=2)
            + Cost(rounds=MOST_ROUNDS)
        )
        formula = f"(bits + 2)(d² + d − 1) + {queries - (bits + 2) * (d * d + d - 1)}"
        return cost.plan(formula, most_tokens(d, *LENGTHS))

    def _paper_plan(self) -> Plan:
        d, promise = int(self.dim), self._promise()
        k, steps = promise.counts(d)
        share = f" = {promise.share:g} of the theorem's" if promise.share < 1 else ""
        cost = (
            Cost.of(k, rounds=-(-k // sphere_average.SAMPLES))
            + Cost.of(d * d * steps, tokens=2, rounds=steps)
            + Cost(rounds=1 + MOST_ROUNDS)
        )
        formula = (
            "k + d²·steps, k = 2/(ε_v²R²)·ln(2d/δ), ε_v = ε_W μ³/(40Wd), "
            f"δ = {promise.failure:g}: k = {k:.3g}{share}, steps = {steps}"
        )
        return cost.plan(formula, most_tokens(d, *LENGTHS))

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        d, seed = int(self.dim), int(self.seed)
        if self.method == "paper":
            return (yield from sphere_average.learn_by_averaging(d, self._promise(), checks, seed))
        assert self.bits is not None
        found = yield from learn_by_bisection(d, int(self.bits), checks, seed)
        self._refuse_beyond(found)
        return found

    def _refuse_beyond(self, found: Found[SingleHead]) -> None:
        """Refuse what contradicts the bounds that bisection does not need, where they are given."""
        W, v = np.linalg.norm(found.model.W), np.min(np.abs(found.model.v))
        errors = found.certificate.errors
        if self.norm_bound is not None and W - errors["W"] > self.norm_bound:
            raise Reason.ABOVE_NORM_BOUND.error(norm=W, bound=self.norm_bound)
        if self.margin is not None and v + errors["v"] < self.margin:
            raise Reason.CONTRARY_TO_MARGIN.error(entry=v, margin=self.margin)

    def _promise(self) -> sphere_average.Promise:
        assert self.norm_bound is not None
        assert self.margin is not None
        norm_bound = float(self.norm_bound)
        error = self.error
        if error is None:
            assert self.bits is not None
            error = math.ldexp(norm_bound, -int(self.bits))
        return sphere_average.Promise(
            error=float(error),
            margin=float(self.margin),
            norm_bound=norm_bound,
            failure=float(self.failure),
            share=float(self.sample_share),
        )


def learn_by_bisection(dim: int, bits: int, checks: int, seed: int) -> Steps[SingleHead]:
    """Recover v up to scale and W; see `LabelHead`."""
    rng = np.random.default_rng(seed)
    opening = sequences.opening(dim, checks // 4, rng)
    singles = Singles(UnitVectors(dim), phase="signs of v", purpose="data")
    opened, positive = bisection.read_labels((yield [opening, singles]))
    signs = np.where(positive, 1.0, -1.0)
    ratios = yield from bisection.first_ratios(signs, opened, TINY, GROUP)

    v = ratios.value()
    pairs = bisection.TokenPairs.balanced(v, rng)
    pilots, octave = yield from bisection.find_threshold_scale(pairs, v, rng)
    logits = bisection.ScaledBrackets.of(len(pairs), 2.0**octave)
    spare = label_head_again(dim) // FIRST_BITS
    yield from bisection.bisect_all(pairs, logits, ratios, bits, spare)

    found = ProvedHead.of(pairs, logits, ratios)
    if octave < bisection.HIGHEST_OCTAVE:
        refuse_scale(found, pilots, 2.0**octave)
    before, ends = (opening.X, opened.astype(np.float64)), found.end_checks()
    certificate, evidence = yield from conclude_labels(
        found.model, found.certificate(checks), before, checks, rng, ends
    )
    return Found(found.model, certificate, evidence, found.notes(certificate))
