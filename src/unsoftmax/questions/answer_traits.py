"""What a target's answers look like, before any class of models is assumed.

Some 110 questions. *Single tokens* show the kind of answers (constant, labels, rounded, float32,
noisy, vectors), and along three lines whether the target is affine, bent (piecewise linear: second
differences vanish below some step), or smooth (they fall as the square of the step). *Several
tokens* are put in another order, each sequence is asked twice over, and all but the last token are
exchanged: attention does not notice the first two. *Vectors* are normalised where tokens that are
twice as long are answered alike and answers lie on an ellipsoid Σ g_i (y_i − β_i)² = 1. *Tokens*
are, before anything else, where answers to long u, v and u + v, less a constant and perhaps the
token, add up with the tokens' lengths as weights.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from unsoftmax.errors import DimensionRefused, OracleError
from unsoftmax.learners.attention_layer.norm_search import norm_before
from unsoftmax.learners.attention_layer.prenorm_tuning import NormSearchTuning
from unsoftmax.measure.number_format import significant_bits
from unsoftmax.measure.precision import FLOAT32_BITS, Precision
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.protocol import Answers

AnswerKind: TypeAlias = Literal["constant", "labels", "noisy", "rounded", "float32", "float64"]
SingleTokenShape: TypeAlias = Literal["affine", "bent", "smooth", "unclear"]
TokensThatCount: TypeAlias = Literal["all", "the last", "one alone"]

Asked: TypeAlias = Generator[Round, Answers, list[Array]]


@dataclass(frozen=True, slots=True)
class TraitTuning:
    """Knobs of the first look at a target."""

    singles: int = 12
    """Single tokens: enough that labels and formats show."""
    again: int = 6
    """Of each family so many questions are asked twice: what answers vary by."""
    reaches: tuple[float, ...] = (2.0**30, 1e4, 1e3, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
    """Norms of the first tokens, until one is answered: some targets refuse long ones."""
    room: float = 128.0
    """With tokens of this norm none of the lengths below has to be shortened."""
    lengths: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    """Norms of tokens, in turn."""
    sequences: int = 6
    tokens: int = 6
    """Sequences, and their tokens. Permuted, they show windows and positions."""
    long_sequences: int = 2
    long_tokens: int = 64
    """The same for windows, and position biases, that begin later."""
    lines: int = 3
    """Lines of single tokens. More meet a hyperplane more surely."""
    steps: int = 12
    """Steps along each, 4 times shorter every time."""
    longest_step: float = 64.0
    """From which on: hyperplanes farther away are met by the learners."""
    bent: float = 256.0
    """A second difference that is so many times its error, and none at the next shorter step, is a
    bend: that of a smooth function falls to a sixteenth."""
    slack: float = 8.0
    """Answers differ where they differ by so many times what both may be off by,"""
    share: float = 1e-4
    """and by so large a share of the largest: the terms of an answer may be 1,000 times as large
    as the answer, and round accordingly."""
    alike: float = 1e-4
    """Normalised vectors differ by less of their spread where long tokens are half as long."""
    narrow: int = 2
    widest: int = 1024
    """Ellipsoids are looked for in vectors of more than two and up to so many numbers, by twice as
    many answers."""
    norms: NormSearchTuning = field(default=NormSearchTuning())
    """Of the look for a norm before the target."""
    largest: float = 1e100
    """Larger answers, and smaller ones than its inverse, leave float64 no room to compute with."""
    most_labels: int = 2
    one_sign: int = 10
    """So many changes of one sign are no noise: by chance they are once in 500."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What answers show by themselves.

    Attributes
    ----------
    width : int
        Numbers per answer.
    coordinate : int
        The one of them that varies most; all else is about it.
    kind : str
        What numbers answers are.
    precision : Precision
        What they may be off by.
    tokens : {"all", "the last", "one alone"}
        Which tokens count. "one alone": the target refuses several.
    ordered : bool
        Whether the order of tokens before the last one matters.
    counted : bool
        Whether a sequence means something else when it is given twice over.
    singles : {"affine", "bent", "smooth", "unclear"}
        How single tokens are answered.
    normalised : bool
        Whether vectors lie on an ellipsoid, whatever the tokens' lengths.
    after_norm : bool
        Whether answers to single tokens are linear in what a LayerNorm or RMSNorm makes of them.
    drowned : bool
        Whether answers differ by no more than when the same question is asked twice.
    radius : float or None
        A norm of tokens that is answered, where longer ones are refused.
    residual : bool
        Whether the last token itself is taken off the answers first.
    drifts : bool
        Whether the same questions are answered by more every time, or by less.
    beyond : float or None
        How large the largest answer is, where float64 has no room to compute with such numbers.
    """

    width: int
    coordinate: int
    kind: AnswerKind
    precision: Precision
    tokens: TokensThatCount = "all"
    ordered: bool = False
    counted: bool = False
    singles: SingleTokenShape = "unclear"
    normalised: bool = False
    after_norm: bool = False
    drowned: bool = False
    radius: float | None = None
    residual: bool = False
    drifts: bool = False
    beyond: float | None = None

    @property
    def coarse(self) -> bool:
        """Whether answers are so coarse that a learner should be told how much."""
        return self.kind in ("rounded", "noisy")

    @property
    def tolerance(self) -> float:
        """What answers may be off by, whatever their size."""
        return self.precision.absolute


def traits_of(
    dim: int, rng: np.random.Generator, tuning: TraitTuning
) -> Generator[Round, Answers, Traits]:
    """Ask, and say what the answers show."""
    reach = yield from _reach(dim, rng, tuning)
    shorter = min(1.0, 2.0 ** np.floor(np.log2(reach / tuning.room)))
    points = shorter * _sequences(rng, tuning.singles, 1, dim, tuning)
    lines = [shorter * _line(rng, dim, tuning) for _ in range(tuning.lines)]
    short = shorter * _sequences(rng, tuning.sequences, tuning.tokens, dim, tuning)
    long = shorter * _sequences(rng, tuning.long_sequences, tuning.long_tokens, dim, tuning)
    far = reach * _directions(rng, tuning.sequences, 1, dim)

    once, again = yield from _answers("single tokens", [points, points[-tuning.again :]])
    along = yield from _answers("single tokens along lines", lines)
    several = yield from _several_tokens(short, rng, tuning)
    width, k = once.shape[1], int(np.argmax(np.ptp(once, axis=0)))
    seen = _Seen(
        singles=once[:, k],
        again=again[:, k],
        along=[y[:, k] for y in along],
        several=None if several is None else several.of(k),
    )
    found = seen.traits(width, k, tuning)
    found = replace(found, radius=None if reach == tuning.reaches[0] else reach)
    largest = float(np.max(np.abs(once)))
    if largest and not 1 / tuning.largest <= largest <= tuning.largest:
        return replace(found, beyond=largest)
    if found.kind == "constant" or found.drowned:
        return found
    if several is not None:
        ordered = yield from _ordered(long, rng, k, _Differences(found.precision, tuning))
        found = replace(found, ordered=found.ordered or ordered)
    if width > tuning.narrow and found.radius is None:
        normalised = yield from _normalised(far, width, rng, tuning)
        found = replace(found, normalised=normalised)
    if found.singles in ("smooth", "unclear") and found.radius is None and not found.normalised:
        found = replace(found, after_norm=(yield from _after_norm(dim, rng, tuning)))
    return found


# -- what is asked


def _directions(rng: np.random.Generator, count: int, tokens: int, dim: int) -> Array:
    return np.asarray(rng.standard_normal((count, tokens, dim)) / np.sqrt(dim))


def _sequences(
    rng: np.random.Generator, count: int, tokens: int, dim: int, tuning: TraitTuning
) -> Array:
    lengths = np.resize(tuning.lengths, count)
    return np.asarray(_directions(rng, count, tokens, dim) * lengths[:, None, None])


def _line(rng: np.random.Generator, dim: int, tuning: TraitTuning) -> Array:
    """Draw x, then x ± t u for every step t: sums are float32 numbers."""
    unit = 2.0 ** -np.round(np.log2(dim) / 2)
    x = np.round(rng.standard_normal(dim) * 2.0**5) / 2.0**5 * unit
    u = rng.choice([-1.0, 1.0], dim) * unit
    t = tuning.longest_step * 4.0 ** -np.arange(tuning.steps)[:, None]
    return np.vstack([x[None], x + t * u, x - t * u])[:, None]


def _reach(
    dim: int, rng: np.random.Generator, tuning: TraitTuning
) -> Generator[Round, Answers, float]:
    """Ask how long tokens may be."""
    x = _directions(rng, 1, 1, dim)
    x /= np.linalg.norm(x)
    for length in tuning.reaches[:-1]:
        try:
            yield from _answers("how long tokens may be", [length * x])
        except DimensionRefused:
            raise
        except OracleError:
            continue
        return length
    return tuning.reaches[-1]


def _answers(phase: str, families: list[Array]) -> Asked:
    return (yield [Sequences(X, phase=phase, purpose="data") for X in families])


@dataclass(frozen=True, slots=True)
class _SeveralTokens:
    """Answers (n, m) to sequences, and to what attention takes for the same or another one."""

    once: Array
    permuted: Array
    doubled: Array
    others: Array
    again: Array

    def of(self, k: int) -> _SeveralTokens:
        some = (self.once, self.permuted, self.doubled, self.others, self.again)
        return _SeveralTokens(*(y[:, k] for y in some))


def _several_tokens(
    X: Array, rng: np.random.Generator, tuning: TraitTuning
) -> Generator[Round, Answers, _SeveralTokens | None]:
    """Ask sequences; None where the target takes single tokens alone."""
    doubled = np.concatenate([X, X], axis=1)
    others = np.concatenate([rng.permutation(X)[:, :-1] * 1.5, X[:, -1:]], axis=1)
    families = [X, _permuted(X, rng), doubled, others, X[: tuning.again]]
    try:
        found = yield from _answers("several tokens, and in other words", families)
    except DimensionRefused:
        raise
    except OracleError:
        return None
    return _SeveralTokens(*found)


def _ordered(
    X: Array, rng: np.random.Generator, k: int, differences: _Differences
) -> Generator[Round, Answers, bool]:
    """Whether long sequences are answered differently in two orders; not where they are refused."""
    try:
        once, permuted = yield from _answers("many tokens", [X, _permuted(X, rng)])
    except OracleError:
        return False
    return differences.any(once[:, k], permuted[:, k])


def _permuted(X: Array, rng: np.random.Generator) -> Array:
    """Reverse, and turn by one: no token but the last one stays in its place, as a rule."""
    order = np.roll(np.arange(X.shape[1] - 1)[::-1], 1 + int(rng.integers(2)))
    return np.concatenate([X[:, order], X[:, -1:]], axis=1)


# -- what it says


@dataclass(frozen=True, slots=True)
class _Seen:
    """Answers' one number that is looked at."""

    singles: Array
    again: Array
    along: list[Array]
    several: _SeveralTokens | None

    def traits(self, width: int, k: int, tuning: TraitTuning) -> Traits:
        """Say what they show."""
        every, changes = (
            [self.singles, *self.along],
            [self.again - self.singles[-len(self.again) :]],
        )
        several = self.several
        if several is not None:
            every.append(several.once)
            changes.append(several.again - several.once[: len(several.again)])
        y = np.concatenate(every)
        change = np.concatenate(changes)
        kind, precision = _kind(y, change, tuning)
        found = Traits(width, k, kind, precision, drowned=bool(np.std(y) < 2 * precision.noise))
        alike = abs(np.sum(np.sign(change))) == len(change) >= tuning.one_sign
        found = replace(found, drifts=kind == "noisy" and bool(alike))
        found = replace(found, singles=_shape(self.along, precision, tuning))
        if several is None:
            return replace(found, tokens="one alone")
        differ = _Differences(precision, tuning)
        # a label hides most
        count = kind == "labels" or differ.any(several.once, several.others, 0.0)
        return replace(
            found,
            tokens="all" if count else "the last",
            ordered=differ.any(several.once, several.permuted),
            counted=differ.any(several.once, several.doubled),
        )


def _kind(y: Array, changes: Array, tuning: TraitTuning) -> tuple[AnswerKind, Precision]:
    """Say what numbers answers are, and what they may be off by."""
    different = np.unique(y)
    if len(different) == 1:
        return "constant", Precision()
    if len(different) <= tuning.most_labels and set(np.abs(different)) <= {0.0, 1.0}:
        return "labels", Precision()
    precision = Precision.of_format([different])
    if np.any(np.abs(changes) > 2 * precision.error(float(np.max(np.abs(y))))):
        deviation = float(np.sqrt(np.mean(changes**2) / 2))
        return "noisy", precision.with_noise(deviation, len(changes))
    if not precision.relative and not precision.absolute:
        return "float64", precision
    bits = significant_bits(different)
    return ("float32" if bits == FLOAT32_BITS else "rounded"), precision


@dataclass(frozen=True, slots=True)
class _Differences:
    """When answers are not the same."""

    precision: Precision
    tuning: TraitTuning

    def any(self, one: Array, two: Array, share: float | None = None) -> bool:
        """Whether some differ by more than they may be off by."""
        size = float(max(np.max(np.abs(one)), np.max(np.abs(two))))
        off = 2 * self.tuning.slack * float(self.precision.error(size, size))
        least = (self.tuning.share if share is None else share) * size
        return bool(np.any(np.abs(one - two) > max(off, least)))


def _shape(along: list[Array], precision: Precision, tuning: TraitTuning) -> SingleTokenShape:
    """Say how single tokens are answered along lines: y of x, x + t u for all t, x − t u."""
    n, shapes = tuning.steps, []
    for y in along:
        off = 4 * tuning.slack * float(precision.error(np.max(np.abs(y)), np.max(np.abs(y))))
        second = np.abs(y[1 : n + 1] + y[n + 1 :] - 2 * y[0])
        shapes.append(_shape_of_one(second, off, tuning))
    for shape in ("bent", "smooth"):
        if shape in shapes:
            return "bent" if shape == "bent" else "smooth"
    return "unclear" if "unclear" in shapes else "affine"


def _shape_of_one(second: Array, off: float, tuning: TraitTuning) -> SingleTokenShape:
    """Read one line's second differences, at steps that are 4 times shorter every time."""
    visible = np.flatnonzero(second > off)
    if not len(visible):
        return "affine"
    last = int(visible[-1])
    if last + 1 < len(second) and second[last] > tuning.bent * off:
        return "bent"
    before = second[max(0, last - 2) : last + 1]
    squares = before[:-1] / before[1:]
    # three steps in a row fall by 16, within what the visible ones may be off by
    if len(squares) == 2 and np.all(np.abs(squares - 16) < 6):
        return "smooth"
    return "unclear"


def _normalised(
    far: Array, width: int, rng: np.random.Generator, tuning: TraitTuning
) -> Generator[Round, Answers, bool]:
    """Whether tokens half as long are answered alike, and answers lie on an ellipsoid."""
    try:
        once, half = yield from _answers("long tokens", [far, far / 2])
        spread = float(np.max(np.ptp(once, axis=0)))
        if not spread or np.max(np.abs(once - half)) > tuning.alike * spread:
            return False
        if width > tuning.widest:
            return False
        count, dim = 2 * width + len(far), far.shape[2]
        X = _sequences(rng, count, 1, dim, tuning)
        [y] = yield from _answers("vectors on an ellipsoid", [X])
    except OracleError:
        return False
    return on_an_ellipsoid(y, tuning.alike)


def _after_norm(
    dim: int, rng: np.random.Generator, tuning: TraitTuning
) -> Generator[Round, Answers, bool]:
    """Whether a norm stands before whatever else the target does."""
    try:
        kind, _ = yield from norm_before(dim, int(rng.integers(2**31)), tuning.norms)
    except OracleError:
        return False
    return kind is not None


def on_an_ellipsoid(y: Array, alike: float) -> bool:
    """Whether rows (n, m) satisfy Σ_i g_i (y_i − β_i)² = 1 with all g_i > 0, n > 2m + 1.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((20, 4))
    >>> on_an_ellipsoid(3 + x / np.linalg.norm(x, axis=1)[:, None], 1e-6), on_an_ellipsoid(x, 1e-6)
    (True, False)
    """
    centred = (y - y.mean(axis=0)) / np.maximum(y.std(axis=0), np.finfo(np.float64).tiny)
    # least squares of 1 = Σ g z² + Σ h z: a plane through the mean, where there is one, is no 1
    columns = np.column_stack([centred**2, centred])
    solution, *_ = np.linalg.lstsq(columns, np.ones(len(y)), rcond=alike**2)
    missed = float(np.max(np.abs(columns @ solution - 1)))
    return bool(missed < np.sqrt(alike) and np.all(solution[: y.shape[1]] > 0))
