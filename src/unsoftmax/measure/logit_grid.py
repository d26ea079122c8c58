"""Read M_ji = z_i·(W b_j) for every offset z_i and query token b_j, one answer each.

By the two-token identity (Theorem 4.1) each answer gives one logit t = s·z_i·(W b_j), whose
digits are best for |t| near 1 and gone for |t| > 30 or so. So each query token gets its own
scale s = 2^k, found on the way with queries that count as data:

1. a pilot, asked again at most twice at another scale when its logit is out of range;
2. `STAGES`: a second offset at ⅛ of the scale that the pilot
   suggests, three more at ¼ of the scale that puts the RMS of both logits at ½, and the rest at
   the scale that puts the RMS of these five at ½;
3. again, what is still out of range or much less precise than its column.

*Queries*: query tokens × offsets; at most ``spare`` are asked again. v and c must be known, and
no offset may be orthogonal to v.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotIdentifiable, TokensRefused
from unsoftmax.measure.precision import ADVICE, advice, why
from unsoftmax.measure.reading import Reading
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.two_tokens import Gates, TwoTokenAnswers, Vectors
from unsoftmax.probes import (
    FARTHEST,
    Array,
    Grid,
    Indices,
    Pairs,
    Probes,
    Purpose,
    Round,
    Rows,
    pick,
)
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason, reworded

# -- How a logit's scale s = 2^k is divided between offset and query token: [αa + βb; βb], αβ = s
#
# An answer is off by about u·‖αa + βb‖, so ‖βb‖ ≤ ‖αa‖ always: to raise a logit the offset is
# scaled up, to lower it the query token is scaled down.

Exponents: TypeAlias = NDArray[np.int64]
Split: TypeAlias = Callable[[Exponents], tuple[Array, Array]]


def free(k: Exponents) -> tuple[Array, Array]:
    """Split s = 2^k: offsets scaled up for k > 0, query tokens scaled down for k < 0."""
    return np.exp2(np.maximum(k, 0)), np.exp2(np.minimum(k, 0))


def offset_only(k: Exponents) -> tuple[Array, Array]:
    """Split s = 2^k for the query token 0, which has no scale."""
    return np.exp2(k), np.ones(len(k))


def amplified(gain: float) -> Split:
    """Split s = 2^k with offsets scaled up by ``gain`` more, query tokens down by as much.

    Logits stay, answers grow: additive noise counts for 1/``gain`` of what it did.
    """

    def split(k: Exponents) -> tuple[Array, Array]:
        alpha, beta = free(k)
        return gain * alpha, beta / gain

    return split


def even(k: Exponents) -> tuple[Array, Array]:
    """Split s = 2^k into two factors as equal as powers of two can be."""
    return np.exp2(k - k // 2), np.exp2(k // 2)


def at_query_scale(beta: float) -> Split:
    """Split s = 2^k for query tokens whose scale is settled."""

    def split(k: Exponents) -> tuple[Array, Array]:
        return np.exp2(k) / beta, np.full(len(k), beta)

    return split


def beside_bias(shift: Array, split: Split = free, most: float = 2.0) -> Split:
    """Change a split of s = 2^k for logits that have a part α·z·w of their own.

    It grows with the offset alone, so offsets are scaled as far as it stays moderate, and
    query tokens as far as β ≤ α. Where 2^k is out of reach the largest s that is not is taken.

    Parameters
    ----------
    shift : ndarray
        z_i·w of every offset.
    split : callable
        How scales are divided where that part is small.
    most : float
        Root mean square that it may have: beyond 2 the logits around it lose digits.
    """
    rms = float(np.sqrt(np.mean(shift**2)))
    limit = float(np.exp2(np.floor(np.log2(max(most / max(rms, 1e-100), 1e-100)))))

    def beside(k: Exponents) -> tuple[Array, Array]:
        alpha = np.minimum(split(k)[0], limit)
        return alpha, np.minimum(alpha, np.exp2(k) / alpha)

    return beside


def shorter(
    alpha: Array, beta: Array, a: Array, b: Array, longest: float, *, settled: bool = False
) -> tuple[Array, Array]:
    """Divide scales αβ otherwise where tokens αa + βb would be longer; a and b are their norms.

    Offsets are at most half as long and query tokens longer instead, up to as much: beyond, or
    where query tokens' scale is settled, scales are smaller than wanted.

    Examples
    --------
    >>> shorter(np.array([64.0]), np.array([1.0]), np.ones(1), np.ones(1), 32.0)
    (array([16.]), array([4.]))
    """
    with np.errstate(divide="ignore"):
        most_alpha, most_beta = (np.exp2(np.floor(np.log2(longest / 2 / norm))) for norm in (a, b))
    beyond = alpha * a + beta * b > longest
    less = np.where(beyond, np.minimum(alpha, most_alpha), alpha)
    if settled:
        return less, beta
    more = np.minimum(np.maximum(beta, alpha * beta / less), most_beta)
    return less, np.where(beyond & (b > 0), more, beta)  # beside no query token offsets count alone


def asked_within(
    made: Callable[[float], Probes], longest: float
) -> Generator[Round, Answers, tuple[Array, float]]:
    """Ask probes that are made for a length of tokens, for a shorter one where it is refused.

    Returns the answers and that length.
    """
    while True:
        try:
            [y] = yield [made(longest)]
        except TokensRefused as refused:
            if not refused.longest < longest:
                raise
            longest = refused.longest
        else:
            return y, longest


# -- At which scale 2^k to ask for logits: suggestions from those seen so far
#
# A logit t = 2^k·M tells most digits of M when |t| is about 1, and none when |t| > 30 or so. What
# M is shows only in the answers, so the scale is a guess, corrected as logits are seen. These are
# its rules as functions of arrays; `unsoftmax.measure.logit_grid` asks.


class Stage(NamedTuple):
    """Offsets that are asked together, all at one scale per query token."""

    first: int
    """The first of them: the scale is suggested by the offsets before it."""
    last: int | None
    """The first that is not among them; all that are left where None."""
    below: int
    """Octaves by which they stay below the suggested scale."""


# After the pilot. One logit may be small by chance, and a scale that is too large costs the answers
# of its stage: so few are asked first, well below the scale they suggest.
STAGES = (Stage(1, 2, 3), Stage(2, 5, 2), Stage(5, None, 0))
# Root mean square of logits at the final scale. Few are then beyond 6, or below 0.05.
WANTED = 0.5
# A pilot beyond this is asked again: p is within 1/400 of 0 or 1, which costs its logit two to
# three digits.
LARGEST = 6.0
# With fewer offsets than this the pilot is a large share of the data: it is asked again where it is
# small, below `SMALLEST`. Below 1 the relative precision of a logit falls in proportion to it.
FEW_OFFSETS = 5
SMALLEST = 0.1
# An answer is asked again when its error is this many times its column's typical one. At 1000 the
# worst runs at d = 128 lost a digit; below 60 generic columns are asked again.
POOR = 60.0
# A logit below this many times its error is not resolved: its scale is raised so far that the error
# would be `WANTED` divided by this.
RESOLVED = 100.0
# Octaves by which a saturated pilot is lowered, once for each entry: it says only that |t| > 30, so
# a million times less is tried, then 16 million.
SATURATED = (20, 24)
# Octaves that other scales stay below one at which an answer was saturated.
SATURATED_STEP = 6
# Scales are within 2^±100: scaled tokens and their answers must stay in float32's range, 2^±126,
# for ‖v‖ up to 10⁶.
MOST_OCTAVES = 100
# A logit suggests a scale only where p is this many times its error away from 0 and 1; answers
# further outside of [0, 1] than that cannot be a head's.
TRUSTED = 3.0
# Rounds that a grid takes: its pilot, the stages, and at most three in which answers are asked
# again, for the plan; seldom more than two.
ROUNDS = 1 + len(SATURATED) + len(STAGES) + 3


@dataclass(frozen=True, slots=True)
class SeenLogits:
    """Logits that were seen, and at which scales.

    Attributes
    ----------
    logit : ndarray
        W's part of the logits, NaN where the answer is saturated.
    whole : ndarray
        The logits themselves, with w's part.
    error : ndarray
        Bounds on their errors.
    scale : ndarray
        Scales they were asked at.
    """

    logit: Array
    whole: Array
    error: Array
    scale: Array

    @classmethod
    def of(cls, asked: TwoTokenAnswers, shift: Array | float) -> SeenLogits:
        """Read answers, and take off what w adds to their logits, α times ``shift``."""
        gates = asked.gates()
        logit = gates.logit - asked.alpha * shift
        logit = np.where(gates.margin > TRUSTED * gates.p_error, logit, np.nan)
        return cls(logit, gates.logit, gates.logit_error, asked.alpha * asked.beta)


def first_scale(tokens: int, dim: int) -> Exponents:
    """Guess a scale for query tokens of norm 1: logits are moderate for the W of trained heads."""
    return np.full(tokens, int(np.round(np.log2(np.sqrt(dim) * WANTED))))


def scale_for(size: float) -> int:
    """Return the exponent of the scale that puts readings of this size where they are wanted."""
    return int(np.round(np.log2(WANTED / size))) if size else 0


def better_scale(seen: SeenLogits, k: Exponents, lowered: int, few: bool) -> Exponents:
    """Suggest a scale for pilots that are out of range; the same where they are in range.

    Parameters
    ----------
    seen : SeenLogits
        A pilot of each token.
    k : ndarray of int
        Scales they were asked at.
    lowered : int
        Octaves by which saturated ones are lowered.
    few : bool
        Whether there are so few offsets that a small logit is asked again.
    """
    size = np.abs(seen.logit)
    with np.errstate(divide="ignore", invalid="ignore"):
        at_wanted = _octaves(WANTED / size)
        step = np.where(np.abs(seen.whole) > LARGEST, at_wanted, 0.0)
        unresolved = _octaves(WANTED / RESOLVED / seen.error)
        if few:
            step = np.where(size < SMALLEST, np.maximum(step, at_wanted), step)
        # says nothing of its size, be it 0 by chance: it must not be divided by
        step = np.where(size <= RESOLVED * seen.error, unresolved, step)
    step = np.where(np.isnan(seen.logit), -lowered, step)
    return np.clip(k + step, -MOST_OCTAVES, MOST_OCTAVES).astype(np.int64)


def suggested_scale(seen: SeenLogits, k: Exponents) -> Exponents:
    """Put the RMS of each token's logits, (tokens, offsets), where it is wanted."""
    usable = np.isfinite(seen.logit)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_scale = np.where(usable, seen.logit / seen.scale, 0.0)
        spread = np.where(usable, seen.error / seen.scale, 0.0)
        rms = np.sqrt(np.sum(per_scale**2, axis=1) / np.sum(usable, axis=1))
        floor = np.sqrt(np.sum(spread**2, axis=1) / np.sum(usable, axis=1))
        suggested = _octaves(WANTED / rms)
    # nothing but rounding: W b = 0 as far as the answers tell, and any scale is as good
    suggested = np.where(rms > floor, suggested, k)
    # a saturated answer bounds the scale from above whatever the others say
    with np.errstate(invalid="ignore"):
        lowest = np.min(np.log2(np.where(usable, np.inf, seen.scale)), axis=1)
    below = np.where(np.isfinite(lowest), lowest - SATURATED_STEP, MOST_OCTAVES)
    suggested = np.minimum(suggested, below)
    return np.clip(suggested, -MOST_OCTAVES, MOST_OCTAVES).astype(np.int64)


def common_scale(asked: TwoTokenAnswers, measured: Array, k: int | None) -> int:
    """Suggest one scale for all query tokens from every reading so far.

    For tokens that are random to W: then all columns W b are about equally long. ``k`` is
    taken where no logit was asked; where none can be told from 0 the scale stays.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = asked.alpha * asked.beta
        error = asked.gates().logit_error / scale
        usable = np.isfinite(measured) & np.isfinite(error)
        seen = np.isfinite(asked.y)
        octaves = np.log2(scale)
    suggested = int(np.median(octaves[seen])) if k is None else k
    if np.any(usable):
        rms = float(np.sqrt(np.mean(measured[usable] ** 2)))
        if rms > np.sqrt(np.mean(error[usable] ** 2)):
            suggested = int(_octaves(np.array(WANTED / rms)))
    if np.any(saturated := seen & ~np.isfinite(error)):
        suggested = min(suggested, int(np.min(octaves[saturated])) - SATURATED_STEP)
    return suggested


def poor_readings(
    seen: SeenLogits, asked: NDArray[np.bool_], weight: Array, k: Exponents
) -> tuple[Indices, Indices, Exponents]:
    """Find readings (tokens, offsets) far less precise than their token's, worst first.

    Returns their places and better scales. ``weight`` is |a·v̂|/‖a‖ of the offsets: how much
    less an offset tells by its direction is not the scale's fault.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        blame = seen.error / seen.scale * weight
        blame = np.where(np.isfinite(seen.logit), blame, np.inf)
        # by the lower quartile: finite even where half of a column is saturated
        quartile = np.count_nonzero(asked, axis=1) // 4
        typical = np.take_along_axis(np.sort(blame, axis=1), quartile[:, None], axis=1)
        j, i = np.nonzero(asked & (blame > POOR * typical))
        at_one = _octaves(seen.scale[j, i] / np.abs(seen.logit[j, i]))
        lower = _octaves(seen.scale[j, i]) - SATURATED_STEP
    better = np.where(np.isfinite(seen.logit[j, i]), np.minimum(at_one, k[j]), lower)
    worst_first = np.argsort(-blame[j, i], kind="stable")
    return j[worst_first], i[worst_first], better[worst_first].astype(np.int64)


def _octaves(ratio: Array) -> Array:
    """Round log₂ to an integer, within what scales can be."""
    octaves: Array = np.round(np.clip(np.log2(ratio), -MOST_OCTAVES, MOST_OCTAVES))
    return octaves


Ask: TypeAlias = Generator[Round, Answers, None]


@dataclass(slots=True)
class LogitGrid:
    """Answers to (query tokens, offsets), with the scales they were asked at; NaN before that."""

    offsets: Rows
    """z_i, (n_a, d); none with z·v = 0."""
    queries: Rows
    """b_j, (n_b, d)."""
    values: Values
    """v̂ and ĉ."""
    split: Split
    """How a scale s = 2^k becomes α (offset) and β (query token); see above."""
    phase: str
    """Name of the progress shown."""
    shift: Array | None = None
    """z_i·w, the part of a logit per unit offset that is not the query token's."""
    longest: float = field(default=FARTHEST, kw_only=True)
    """The target refuses longer tokens."""
    settled: bool = field(default=False, kw_only=True)
    """Whether query tokens have one scale, which no length of tokens changes."""
    y: Array = field(init=False)
    alpha: Array = field(init=False)
    beta: Array = field(init=False)
    a: Vectors = field(init=False)
    b: Vectors = field(init=False)
    again: int = field(init=False, default=0)
    """Queries that were asked again."""

    def __post_init__(self) -> None:
        self.y, self.alpha, self.beta = np.full((3, *self.shape), np.nan)
        self.take(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of query tokens and of offsets."""
        return self.queries.shape[0], self.offsets.shape[0]

    def widened(self, queries: Rows) -> LogitGrid:
        """Return the grid with room for more query tokens; these begin with the old ones."""
        wider = replace(self, queries=queries)
        for mine, its in ((self.y, wider.y), (self.alpha, wider.alpha), (self.beta, wider.beta)):
            its[: len(mine)] = mine
        wider.again = self.again
        return wider

    def kept(self, tokens: Indices) -> LogitGrid:
        """Return the grid of some query tokens alone."""
        kept = replace(self, queries=pick(self.queries, tokens))
        kept.y, kept.alpha, kept.beta = (x[tokens] for x in (self.y, self.alpha, self.beta))
        kept.again = self.again
        return kept

    def moved(
        self, rng: np.random.Generator, values: Values, columns: Array, w: Array | float = 0.0
    ) -> LogitGrid:
        """Return the grid with all answers moved by about as much as they are off.

        ``values`` are moved alike; ``columns`` are the norms ‖W b_j‖.
        """
        score_norm = self.beta * columns[:, None] + np.linalg.norm(w)
        moved = replace(self, values=values)
        moved.y = self.answered().moved(rng, score_norm)
        moved.alpha, moved.beta = self.alpha, self.beta
        return moved

    @property
    def scale(self) -> Array:
        """The scales s = αβ of all answers."""
        return self.alpha * self.beta

    def take(self, values: Values) -> None:
        """Assume other errors of v and c, and another precision."""
        self.values = values
        self.a = Vectors.of(self.offsets, values)
        self.b = Vectors.of(self.queries, values).take((slice(None), None))

    def _listen(self) -> None:
        """Let the answers tell their precision where single tokens left it open."""
        if self.values.reread is not None:
            self.take(self.values.told_by(self.answered().telling))

    # -- what the answers say

    def answered(self, values: Values | None = None) -> TwoTokenAnswers:
        """Return all answers as they were asked; ``values`` may assume other errors."""
        if values is None:
            return TwoTokenAnswers(self.y, self.a, self.b, self.alpha, self.beta, self.values)
        a, b = Vectors.of(self.offsets, values), Vectors.of(self.queries, values)
        b = b.take((slice(None), None))
        return TwoTokenAnswers(self.y, a, b, self.alpha, self.beta, values)

    def gates(self, values: Values | None = None) -> Gates:
        """Read every answer through the two-token identity."""
        return self.answered(values).gates()

    def measured(self) -> Array:
        """Return M̂, (query tokens, offsets)."""
        return self.answered().measured(0.0 if self.shift is None else self.shift)

    def reading(
        self, values: Values, columns: Array, w: Array, stretch: float, shift_error: float = 0.0
    ) -> Reading:
        """Return M̂ with its errors; see `TwoTokenAnswers.reading`.

        ``values`` holds the precision that is assumed, ``columns`` are the norms ‖W b_j‖,
        ``stretch`` is ‖Z‖₂, and ``shift_error`` bounds ‖Δshift‖₂.
        """
        score_norm = self.beta * columns[:, None] + np.linalg.norm(w)
        shift = 0.0 if self.shift is None else self.shift
        return self.answered(values).reading(score_norm, stretch, shift, shift_error)

    def unbounded(self, values: Values) -> tuple[str, ...]:
        """Say how many logits have no bound."""
        margin = self.gates(values).margin
        lost = np.count_nonzero(~(margin > 0))
        if not lost:
            return ()
        return (
            f"No bound on W: {lost} of {margin.size} answers are within their own error of b·v or "
            "(a+b)·v, so their logits are unbounded.",
        )

    def seen(self, tokens: Indices | slice, offsets: int | slice) -> SeenLogits:
        """Return the logits of some answers and what is known of them."""
        rows = (tokens, slice(None)) if isinstance(offsets, slice) else (tokens, 0)
        asked = TwoTokenAnswers(
            self.y[tokens, offsets],
            self.a.take(offsets),
            self.b.take(rows),
            self.alpha[tokens, offsets],
            self.beta[tokens, offsets],
            self.values,
        )
        shift = 0.0 if self.shift is None else self.shift[offsets]
        return SeenLogits.of(asked, shift)

    def common_scale(self, k: int | None = None) -> Exponents:
        """Suggest one scale for all query tokens; see the function `common_scale`."""
        suggested = common_scale(self.answered(), self.measured(), k)
        return np.full(self.shape[0], suggested)

    def first_scale(self) -> Exponents:
        """Guess a scale before anything is asked; see the function `first_scale`."""
        return first_scale(self.shape[0], self.offsets.shape[1])

    # -- asking

    def ask(self, tokens: slice, offsets: slice, k: Exponents) -> Ask:
        """Ask for some query tokens, at a scale each, with some offsets."""
        rows = np.arange(*tokens.indices(self.shape[0]))
        columns = np.arange(*offsets.indices(self.shape[1]))
        a, b = float(np.max(self.a.norm[columns], initial=0.0)), self.b.norm[rows, 0]

        def made(longest: float) -> Grid:
            scales = self.split(k)
            alpha, beta = shorter(*scales, np.full(len(rows), a), b, longest, settled=self.settled)
            self.alpha[tokens, offsets], self.beta[tokens, offsets] = alpha[:, None], beta[:, None]
            picked = pick(self.offsets, columns), pick(self.queries, rows)
            return Grid(*picked, alpha, beta, phase=self.phase, purpose="data")

        y, self.longest = yield from asked_within(made, self.longest)
        self.y[tokens, offsets] = made(self.longest).table(y)
        self._listen()

    def _scales(self, j: Indices, i: Indices, k: Exponents, longest: float) -> tuple[Array, Array]:
        """Divide a scale for each pair of a query token and an offset, within a length."""
        norms = self.a.norm[i], self.b.norm[j, 0]
        return shorter(*self.split(k), *norms, longest, settled=self.settled)

    def ask_some(self, j: Indices, i: Indices, k: Exponents, purpose: Purpose) -> Ask:
        """Ask for single pairs of a query token and an offset, at a scale each."""
        name = f"{self.phase}, again" if purpose == "again" else self.phase

        def made(longest: float) -> Pairs:
            self.alpha[j, i], self.beta[j, i] = alpha, beta = self._scales(j, i, k, longest)
            rows = self.offsets, self.queries, i, j
            return Pairs(*rows, alpha, beta, phase=name, purpose=purpose)

        self.y[j, i], self.longest = yield from asked_within(made, self.longest)
        self._listen()
        self.again += len(j) if purpose == "again" else 0

    def pilot(self, tokens: Indices, k: Exponents, spare: int) -> Ask:
        """Ask for the first offset, again where the logit is out of range; ``k`` is adjusted."""
        few = self.shape[1] < FEW_OFFSETS
        yield from self.ask_some(tokens, np.zeros_like(tokens), k[tokens], "pilot")
        for lowered in SATURATED:
            better = better_scale(self.seen(tokens, 0), k[tokens], lowered, few)
            first = np.zeros_like(tokens)
            now, then = (
                self._scales(tokens, first, one, self.longest) for one in (better, k[tokens])
            )
            changed = np.not_equal(now, then).any(axis=0)
            tokens = tokens[changed][: spare - self.again]
            if not len(tokens):
                break
            k[tokens] = better[changed][: len(tokens)]
            yield from self.ask_some(tokens, np.zeros_like(tokens), k[tokens], "again")

    def retry(self, k: Exponents, spare: int) -> Ask:
        """Ask again what is out of range or much less precise than its column, worst first."""
        while self.again < spare:
            j, i, better = (x[: spare - self.again] for x in self._poor(k))
            if not len(j):
                break
            yield from self.ask_some(j, i, better, "again")
        self._refuse_unreadable()

    def _poor(self, k: Exponents) -> tuple[Indices, Indices, Exponents]:
        """Find answers to ask again, worst first, and the scales that change something."""
        seen, weight = self.seen(slice(None), slice(None)), np.abs(self.a.value) / self.a.norm
        j, i, better = poor_readings(seen, np.isfinite(self.y), weight, k)
        alpha, beta = self._scales(j, i, better, self.longest)
        changes = (alpha != self.alpha[j, i]) | (beta != self.beta[j, i])
        return j[changes], i[changes], better[changes]

    def _refuse_unreadable(self) -> None:
        """Refuse answers outside what any weights can give, and logits still out of range."""
        gates, values = self.gates(), self.values
        asked = np.isfinite(self.y)
        outside = np.maximum(-gates.p, gates.p - 1) > TRUSTED * gates.p_error
        if np.any(outside) and values.reread is not None:
            raise Reason.WEIGHTS_BEYOND_1_OR_ROUNDED.error(
                {"v": values.v, "c": values.c},
                also=ADVICE,
                outside=np.count_nonzero(outside),
                asked=outside.size,
            )
        if np.any(outside):
            raise Reason.WEIGHTS_BEYOND_1.error(
                outside=np.count_nonzero(outside),
                asked=outside.size,
                contrary="no single attention head",
            )
        if lost := np.count_nonzero(asked & ~np.isfinite(gates.logit)):
            # with errors of half their range and more no answer has a logit, whatever it is
            drowned = np.median(gates.p_error[asked & ~np.isfinite(gates.logit)]) >= 1 / 2
            cause = (
                "answers may be off by more than the weights change in them"
                if drowned
                else "answers equal b·v or (a+b)·v as far as they tell, as with hard attention or "
                "where logits are too far apart to be in range together"
            )
            raise Reason.LOGITS_OUT_OF_REACH.error(
                {"v": values.v, "c": values.c},
                also=why(values.precision) + advice(values.precision),
                lost=lost,
                asked=outside.size,
                cause=f"at every scale tried {cause}",
                known="v",
            )


def measure(grid: LogitGrid, spare: int) -> Generator[Round, Answers, LogitGrid]:
    """Ask for every (query token, offset) once, at most ``spare`` again; return the grid.

    Raises
    ------
    ModelMismatch
        Answers lie outside of what any attention weights can give.
    NotIdentifiable
        Logits are out of the answers' reach at every scale tried; or answers lie outside of what
        exact ones allow while their format is open (`Values.reread`).
    """
    tokens, count = grid.shape
    k = grid.first_scale()
    yield from grid.pilot(np.arange(tokens), k, spare)
    for stage in STAGES:
        if stage.first < count:
            seen = grid.seen(slice(None), slice(0, stage.first))
            k = suggested_scale(seen, k) - stage.below
            yield from grid.ask(slice(None), slice(stage.first, stage.last), k)
    yield from grid.retry(k, spare)
    return grid


def measure_unscaled(grid: LogitGrid) -> Generator[Round, Answers, LogitGrid]:
    """Ask for every (query token, offset) once, at scale 1, whatever the logits are.

    Raises
    ------
    ModelMismatch, NotIdentifiable
        As `measure` does; logits may be out of reach here that another scale would bring back.
    """
    k = np.zeros(grid.shape[0], dtype=np.int64)
    yield from grid.ask(slice(None), slice(None), k)
    try:
        yield from grid.retry(k, 0)
    except NotIdentifiable as error:
        raise reworded(
            error, f"{error} Only unit scales were allowed: others may bring them into range."
        ) from error
    return grid
