"""What an answer within ±τ says of its logit: an interval, and nothing narrower.

With the two-token identity and the names of `unsoftmax.measure.two_tokens`,

    p̂ − p = (e − βb·δv − p·αa·δv)/(αa·v̂),          |e| ≤ η, |δv_k| ≤ ν_k,

whose denominator is known exactly. So

    |p̂ − p| ≤ δ = (η + β|b|·ν + p̄·α|a|·ν)/|αa·v̂|,
    p̄ = min{σ(t̄), (p̂ + (η + β|b|·ν)/|αa·v̂|)/(1 − α|a|·ν/|αa·v̂|)},

t̄ being the largest logit possible where ‖W‖ is bounded. The logit lies between σ⁻¹(p̂ − δ)
and σ⁻¹(p̂ + δ), within ±t̄: no Lipschitz constant, no margin of v. Nothing is asked here.
Source: beyond Theorem 6.1, whose bound must hold before anything is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from unsoftmax.learners.compose import Asking
from unsoftmax.measure import offsets
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.measure.reading import Reading
from unsoftmax.measure.single_tokens import Values, size_of_terms
from unsoftmax.measure.two_tokens import TwoTokenAnswers, Vectors
from unsoftmax.probes import Array, Grid, Pairs, Probes, Purpose, Singles

# Covers float64's rounding of norms, sums and logits in bounds that are otherwise exact: far above
# d² roundoffs for any d in reach, far below what any bound is worth.
SLACK = 1 + 1e-9


# p is taken to be at least this share of its error bound away from 0 and from 1: random errors
# are well below their bound, and logits stay finite. Larger: saturated logits are estimated too
# small; smaller: they scatter more.
RESOLUTION = 0.1
# An answer off by this much of p hides the logit: ±τ cannot tell p = ¼ from ½, and a smaller
# scale would not show more.
HIDDEN = 0.25
# At a scale that suits most logits, this share may still be beyond what answers resolve. Larger:
# saturated scales are kept; smaller: scales are lowered for the sake of a few.
MOST_OPEN = 0.25


@dataclass(frozen=True, slots=True)
class LogitIntervals:
    """Logits with the intervals that they lie in."""

    logit: Array
    """The estimate: σ⁻¹(p̂), moved to where it is possible."""
    low: Array
    high: Array
    """Ends of the interval; ±inf where there is none."""
    p_error: Array
    """δ."""
    impossible: NDArray[np.bool_]
    """Where no logit agrees with the answer."""

    @property
    def open(self) -> NDArray[np.bool_]:
        """Where the logit may be anything on one side."""
        return ~(np.isfinite(self.low) & np.isfinite(self.high))

    @property
    def error(self) -> Array:
        """Bound on |t̂ − t|."""
        return np.maximum(self.high - self.logit, self.logit - self.low)


def read_intervals(answers: TwoTokenAnswers, most: Array | float = np.inf) -> LogitIntervals:
    """Read answers to two tokens as intervals of logits.

    Parameters
    ----------
    answers : TwoTokenAnswers
        The answers, how they were asked, and what they may be off by.
    most : ndarray or float
        t̄, the largest |t| possible.
    """
    p, q, delta = _gate_bounds(answers, most)
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.log(np.maximum(p - delta, 0.0) / (q + delta))
        high = np.log((p + delta) / np.maximum(q - delta, 0.0))
        least = np.where(np.isfinite(delta), RESOLUTION * delta, 0.5)
        logit = np.log(np.maximum(p, least) / np.maximum(q, least))
    known = np.isfinite(delta)
    low, high = np.where(known, low, -np.inf), np.where(known, high, np.inf)
    impossible = known & ((p + delta < 0) | (q + delta < 0))
    impossible |= known & ~impossible & ((low > most) | (high < -most))
    low = np.where(known & ~impossible, np.maximum(low, -most), -np.asarray(most))
    high = np.where(known & ~impossible, np.minimum(high, most), np.asarray(most))
    logit = np.clip(np.where(known, logit, 0.0), -most, most)
    return LogitIntervals(logit, low, high, delta, impossible)


def _gate_bounds(answers: TwoTokenAnswers, most: Array | float) -> tuple[Array, Array, Array]:
    """Return p̂, q̂ = 1 − p̂ and δ; an offset with a·v̂ = 0 says nothing, δ = ∞."""
    a, b, alpha, beta = answers.a, answers.b, answers.alpha, answers.beta
    with np.errstate(divide="ignore", invalid="ignore"):
        signal = alpha * a.value
        rest = answers.y - beta * b.value - answers.values.c
        p = rest / signal
        q = (signal - rest) / signal
        fixed = (answers.answer_error + beta * b.value_error) / abs(signal)
        share = alpha * a.value_error / np.abs(signal)
        largest = np.where(share < 1, (p + fixed) / (1 - share), 1.0)
        delta = fixed + np.clip(largest, 0.0, scipy.special.expit(most)) * share
    return p, q, np.where(signal != 0, delta, np.inf)


def saturated(without_end: NDArray[np.bool_], p_error: Array, most_open: float = MOST_OPEN) -> bool:
    """Tell whether logits are too large to read, and not merely hidden by ±τ.

    Parameters
    ----------
    without_end, p_error : ndarray
        `LogitIntervals.open` and `LogitIntervals.p_error` of the logits looked at.
    """
    hidden = np.median(p_error) >= HIDDEN
    return bool(not hidden and np.mean(without_end) > most_open)


@dataclass(frozen=True, slots=True)
class Pass:
    """Answers to every offset with every query token, once.

    Attributes
    ----------
    Z, B : ndarray (offsets, d), (query tokens, d)
        Offsets and query tokens, unscaled.
    alpha, beta, y : ndarray (query tokens, offsets)
        Their scales, and the answers.
    """

    Z: Array
    B: Array
    alpha: Array
    beta: Array
    y: Array

    def read(self, values: Values, norm_bound: float | None) -> LogitIntervals:
        """Read every answer, of a head with ‖W‖_F ≤ ``norm_bound`` if there is one."""
        a = Vectors.of(self.Z, values)
        b = Vectors.of(self.B, values).take((slice(None), None))
        most: Array | float = np.inf
        if norm_bound is not None:
            most = self.alpha * self.beta * a.norm * b.norm * norm_bound * SLACK
        answers = TwoTokenAnswers(self.y, a, b, self.alpha, self.beta, values)
        return read_intervals(answers, most)

    def measured(self, intervals: LogitIntervals) -> Array:
        """Return the readings M̂ of M = B Wᵀ Zᵀ."""
        return np.asarray(intervals.logit / (self.alpha * self.beta))

    def reading(self, intervals: LogitIntervals, W: Array, values: Values) -> Reading:
        """Return M̂ with bounds entry by entry, the rounding of scores and logits included.

        The rounding of scores depends on W, of which an estimate is enough.
        """
        tokens = self.alpha * np.linalg.norm(self.Z, axis=1)
        scores = self.beta * np.linalg.norm(self.B @ W.T, axis=1)[:, None]
        rounding = KAPPA * values.precision.unit * tokens * scores
        rounding = rounding + 4 * UNIT * abs(intervals.logit)
        error = (intervals.error + rounding) / (self.alpha * self.beta)
        return Reading.independent(self.measured(intervals), error)


# -- W from readings M_r = B_r Wᵀ Z_rᵀ in several pairs of bases, with the error that passes on
#
# Each pass r asks offsets Z_r (n, d) with query tokens B_r (d, d). With B_r⁻¹M_r = (Z_r W)ᵀ, W
# minimises Σ_r ‖Z_r W − (B_r⁻¹M_r)ᵀ‖²: the passes' errors are averaged. If |ΔM_r| ≤ E_r entry by
# entry, whatever the signs, then
#
#     ‖Ŵ − W‖_F ≤ √Σ_r (‖E_r‖_F/σ_min(B_r))² / σ_min([Z_1; Z_2; …]).
#
# Nothing is asked here. Source: beyond Theorem 6.1, which has one pass and B = 1.


@dataclass(frozen=True, slots=True)
class TwoSidedSystem:
    """Equations B_r Wᵀ Z_rᵀ = M_r for one W.

    Examples
    --------
    >>> Z, B = np.diag([1.0, 2.0]), np.eye(2)
    >>> system = TwoSidedSystem((Z,), (B,))
    >>> W = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> system.solve([B @ W.T @ Z.T]).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    >>> reading = Reading.independent(B @ W.T @ Z.T, np.full((2, 2), 0.1))
    >>> round(system.error([reading], W), 6)
    0.2
    """

    Z: tuple[Array, ...]
    B: tuple[Array, ...]

    def solve(self, measured: Sequence[Array]) -> Array:
        """Return the least-squares solution for readings M̂_r; with one square Z the solution."""
        rows = [np.linalg.solve(B, M).T for B, M in zip(self.B, measured, strict=True)]
        if len(rows) == 1 and self.Z[0].shape[0] == self.Z[0].shape[1]:
            return np.asarray(np.linalg.solve(self.Z[0], rows[0]))
        Z = np.concatenate(self.Z)
        return np.asarray(np.linalg.lstsq(Z, np.concatenate(rows), rcond=None)[0])

    def error(self, readings: Sequence[Reading], W: Array) -> float:
        """Bound ‖Ŵ − W‖_F by what the readings of M_r may be off by; ``W`` is Ŵ."""
        passed_on = [
            reading.total / np.linalg.svd(B, compute_uv=False)[-1]
            for B, reading in zip(self.B, readings, strict=True)
        ]
        singular = np.linalg.svd(np.concatenate(self.Z), compute_uv=False)
        condition = singular[0] / singular[-1]
        bound = np.linalg.norm(passed_on) / singular[-1] + 4 * UNIT * condition * np.linalg.norm(W)
        return float(bound * SLACK)


# -- How long tokens may be, and at which scales logits tell most
#
# A probe [αz+βb; βb] has the logit αβ·z·(W b), and an error ±τ moves its p by τ/(α|z·v|). So α is
# as large as it may be, and β sets the logit: under a radius α + β = R, without one α = 2⁴⁰. The
# scale αβ = 2^k comes from a bound on ‖W‖, or from pilots, which are asked again at another k
# where their logits are saturated, or hidden by ±τ. Directions are random and on a grid, so that
# tokens are exact in float32.

# Without a radius offsets are 2⁴⁰ times as long: ±τ moves p by 1e-12 τ at most, and 2⁴⁰·z +
# 2⁻⁴⁰·b is 2⁴⁰·z in float64 and in float32 alike, so no target sees other tokens than were meant.
# Smaller: answers are less precise; larger: answers near float32's largest.
STRETCH = 40
# Entries of directions are multiples of this: times scales of few bits they are exact in float32,
# where most targets compute.
GRID = 2.0**-14
# Longest query token in lengths of the radius R. An error ±τ moves small logits by τ/(α²β), which
# under α + β = R is least for β = R/3; 5/16 has few bits.
QUERY_SHARE = 5 / 16
# For shorter query tokens α = R − β, as long as that leaves α few bits: R(1 − 2⁻¹⁰).
SHORTEST = 2.0**-10
# Root mean square of logits that pilots aim at. Errors of W are least for 1 (beyond it σ' falls),
# and scales are powers of two.
WANTED = 0.9
# Pilots whose logits have a larger root mean square are asked again.
LARGEST = 1.3
# With ‖W‖_F ≤ W̄ the scale is chosen so that no logit is much beyond this, and σ' stays above
# 0.05. Larger: saturated entries; smaller: every entry less precise.
WITHIN_BOUND = 2.0
# Pilots are asked this often at most.
PILOT_ROUNDS = 4
# Octaves by which saturated pilots are lowered, try by try, under a radius. ±τ hides |t| > 5 or
# so, so steps are small, to stay in range.
LOWER = (4, 8, 16)
# The same without a radius, where only float64 hides, |t| > 30, and ranges are wide.
LOWER_STRETCHED = (20, 24, 24)
# The largest k below which steps are these: radii below 1000 or so leave logits no room for
# more octaves.
SHORT = 20.0
# Largest k without a radius; for W as small as 2⁻¹⁰⁰.
EXTREME = 100.0


@dataclass(frozen=True, slots=True)
class TokenScales:
    """Scales of tokens no longer than a radius, if there is one."""

    radius: float | None

    @property
    def single(self) -> float:
        """Norm of single tokens."""
        return 2.0**STRETCH if self.radius is None else self.radius

    @property
    def most(self) -> float:
        """Largest k."""
        if self.radius is None:
            return EXTREME
        return float(np.log2(QUERY_SHARE * (1 - QUERY_SHARE)) + 2 * np.log2(self.radius))

    def first(self, dim: int) -> float:
        """Return the scale to begin with: for ‖W‖_F ≈ √d, or the largest."""
        moderate = float(np.round(np.log2(np.sqrt(dim) * WANTED)))
        return min(moderate, self.most)

    def within(self, norm_bound: float) -> float:
        """Return a scale at which no W up to a norm has saturated logits."""
        return min(float(np.floor(np.log2(WITHIN_BOUND / norm_bound))), self.most)

    def split(self, k: float) -> tuple[float, float]:
        """Split αβ ≈ 2^k into the largest α there may be, and β."""
        if self.radius is not None:
            share = QUERY_SHARE * float(np.exp2(min(0.0, np.floor(k - self.most))))
            return self.radius * (1 - max(share, SHORTEST)), self.radius * share
        up = STRETCH + max(0.0, float(np.ceil(k / 2)))
        return float(np.exp2(up)), float(np.exp2(k - up))

    def better(self, pilots: LogitIntervals, k: float, attempt: int) -> float:
        """Suggest a scale from pilots at scale k; the same when they are in range."""
        if saturated(pilots.open, pilots.p_error):
            steps = LOWER if self.most < SHORT else LOWER_STRETCHED
            return k - steps[min(attempt, len(steps) - 1)]
        size = float(np.sqrt(np.mean(pilots.logit**2)))
        noise = float(np.median(4 * pilots.p_error))  # dt/dp = 4 at t = 0
        resolved = size > 3 * noise
        octaves = float(np.floor(np.log2(WANTED / (size if resolved else size + noise))))
        if size > LARGEST and resolved:
            return k + octaves
        return min(k + octaves, self.most) if octaves > 1 else k

    def basis(self, dim: int, rng: np.random.Generator) -> Array:
        """Draw a random basis, orthonormal up to the grid."""
        return self._on_grid(offsets.rotation(dim, rng).made())

    def balanced(self, v: Array, rng: np.random.Generator) -> Array:
        """Draw balanced offsets on the grid; see `offsets.balanced`."""
        return self._on_grid(offsets.balanced(v, rng).made())

    def _on_grid(self, rows: Array) -> Array:
        """Cut rows to the grid; none becomes longer than 1."""
        cut = np.trunc(rows / GRID) * GRID
        norms = np.linalg.norm(cut, axis=1, keepdims=True)
        return np.where(norms >= 1, cut * (1 - GRID), cut)


# -- What balanced probes ask under Theorem 6.1: v in several bases, pilots, and passes over W
#
#     f([ρx]) ≈ ρ(x·v)                                     v from orthonormal bases
#     f([αz+βb; βb]) ≈ β(b·v) + α(z·v)·σ(αβ·z·(W b))       W from offsets z and query tokens b
#
# Every pass asks in new random directions, so that errors which depend on the question alone
# (rounding) are averaged like noise. Queries: d per basis, d² per pass; where ‖W‖ is not bounded
# the first d of the first pass are pilots, which may be asked again.


def averaged_values(
    values: Values, scales: TokenScales, repeats: int, rng: np.random.Generator
) -> Asking[Values]:
    """Ask for v again in ``repeats`` − 1 new bases, and average."""
    if repeats == 1:
        return values
    d, scale = len(values.v), scales.single
    bases = [scales.basis(d, rng) for _ in range(repeats - 1)]
    answers = yield [Singles(U, scale, phase="v", purpose="data") for U in bases]
    inverses = [np.linalg.inv(U) for U in bases]
    found = [inverse @ y / scale for inverse, y in zip(inverses, answers, strict=True)]
    size = np.full(d, scale * values.norm)
    errors = [
        np.abs(inverse) @ (values.precision.error(size, y) + d * UNIT * np.abs(y)) / scale
        for inverse, y in zip(inverses, answers, strict=True)
    ]
    v = np.mean([values.v, *found], axis=0)
    # unit vectors bound each entry best, whatever the average says
    first = np.abs(v - values.v) + values.v_error + 2 * UNIT * np.abs(v)
    v_error = np.minimum(first, np.mean([values.v_error, *errors], axis=0))
    return replace(values, v=v, v_error=v_error)


# Answers whose format is looked at: a format shows in a few, more cost time.
WITNESSES = 256


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A pass with the probes whose answers it lacks."""

    known: Pass
    probes: Grid | Pairs

    def finished(self, answers: Array) -> Pass:
        """Put the answers in their places."""
        if isinstance(self.probes, Grid):
            return replace(self.known, y=self.probes.table(answers))
        y = self.known.y.copy()
        y[self.probes.j, self.probes.i] = answers
        return replace(self.known, y=y)


def passes_over_W(
    values: Values,
    scales: TokenScales,
    norm_bound: float | None,
    repeats: int,
    rng: np.random.Generator,
) -> Asking[list[Pass]]:
    """Ask for W, every pass with new offsets and query tokens."""
    d = len(values.v)
    bases = [(scales.balanced(values.v, rng), scales.basis(d, rng)) for _ in range(repeats)]
    unfinished: list[_Unfinished] = []
    if norm_bound is None:
        k, piloted = yield from _pilots(*bases[0], values, scales)
        unfinished.append(piloted)
    else:
        k = scales.within(norm_bound)
    alpha, beta = scales.split(k)
    for Z, B in bases[len(unfinished) :]:
        grid = Grid(Z, B, np.full(d, alpha), np.full(d, beta), phase="W", purpose="data")
        unfinished.append(_Unfinished(_blank(Z, B, alpha, beta), grid))
    asked: list[Probes] = [one.probes for one in unfinished]
    answers = yield asked
    return [one.finished(y) for one, y in zip(unfinished, answers, strict=True)]


def _pilots(
    Z: Array, B: Array, values: Values, scales: TokenScales
) -> Asking[tuple[float, _Unfinished]]:
    """Find the scale by asking offset i with query token i; these answers stay in the pass."""
    d = len(Z)
    every = np.arange(d)
    a, b = Vectors.of(Z, values), Vectors.of(B, values)
    k = scales.first(d)
    purpose: Purpose = "pilot"
    for attempt in range(PILOT_ROUNDS):
        alpha, beta = (np.full(d, scale) for scale in scales.split(k))
        phase = "W" if purpose == "pilot" else "W, again"
        [y] = yield [Pairs(Z, B, every, every, alpha, beta, phase=phase, purpose=purpose)]
        pilots = read_intervals(TwoTokenAnswers(y, a, b, alpha, beta, values))
        better = scales.better(pilots, k, attempt)
        if better == k:
            break
        # after the last attempt these pilots stay: only less precise than the rest
        k, purpose = better, "again"
    first = _blank(Z, B, *scales.split(k))
    for table, diagonal in ((first.alpha, alpha), (first.beta, beta), (first.y, y)):
        np.fill_diagonal(table, diagonal)
    j, i = np.nonzero(~np.eye(d, dtype=bool))
    rest = Pairs(Z, B, i, j, first.alpha[j, i], first.beta[j, i], phase="W", purpose="data")
    return k, _Unfinished(first, rest)


def _blank(Z: Array, B: Array, alpha: float, beta: float) -> Pass:
    shape = (len(B), len(Z))
    return Pass(Z, B, np.full(shape, alpha), np.full(shape, beta), np.zeros(shape))


def with_format(values: Values, asked: Pass, repeats: int) -> Values:
    """Widen the precision by the format of the answers, where they are far larger than τ.

    The format is read off some answers of a pass. Decimals of stretched answers look
    like significant digits: the tolerance says it better, so only binary formats are noticed.
    """
    seen = Precision.of_format([np.ravel(asked.y)[:WITNESSES]])
    precision = replace(
        values.precision,
        unit=max(seen.unit, values.precision.unit),
        relative=seen.relative,
        why=values.precision.why + (seen.why if seen.unit > UNIT else ()),
    )
    inside = replace(precision, absolute=0.0)
    v_error = values.v_error + inside.error_at_unit_vector(size_of_terms(values.v), values.v)
    if repeats > 1:  # sums of d terms, in bases whose rows' 1-norms are below √d
        v_error = v_error + np.sqrt(len(values.v)) * KAPPA * precision.unit * values.norm
    return replace(values, precision=precision, v_error=v_error)
