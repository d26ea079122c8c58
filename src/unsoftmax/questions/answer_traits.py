"""What a target's answers look like, before any class of models is assumed.

Some 110 questions. *Single tokens* show the kind of answers (constant, labels, rounded, float32,
noisy, vectors), and along three lines whether the target is affine, bent (piecewise linear: second
differences vanish below some step), or smooth (they fall as the square of the step). *Several
tokens* are put in another order, each sequence is asked twice over, and all but the last token are
exchanged: attention does not notice the first two. *Vectors* are normalised where tokens that are
twice as long are answered alike and answers lie on an ellipsoid Σ g_i (y_i − β_i)² = 1. *Tokens*
are, before anything else, where answers to long u, v and u + v, less a constant and perhaps the
token, add up with the tokens' lengths as weights. Where one token alone counts, and smoothly,
*long tokens* tell which power of their length answers grow with. Where others count as well, and
answers have as many numbers as tokens, long tokens tell whether these are added to what depends on
their directions alone: as in a block of a Transformer, which normalises what its parts see.

A refused question says nothing of the class. Where sequences of several tokens are refused, the
most tokens that are answered are looked for, from two on, and the same is asked within that.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from unsoftmax.errors import DimensionRefused, OracleError
from unsoftmax.learners.attention_layer.norm_before import norm_before
from unsoftmax.learners.compose import Asking, T
from unsoftmax.measure.precision import FLOAT32_BITS, Precision, significant_bits
from unsoftmax.probes import Array, Sequences

# Probabilities of all classes sum to 1 within this: float16 rows and decimals do.
SUM_OFF = 1e-2

# A probability above 0 is below this where another one has come out as 0.
TAIL = 1e-3
# How long tokens are whose answers tell a power of length. Shorter: neurons may not have bent yet;
# longer: of the square float64 leaves no smaller terms.
FAR_OUT = 2.0**20
# Their numbers' size where others count: what a block adds may not turn the next norm's input. And
# what it adds changes by less than this share from one to four times as long ones; √t would by 2.
LONG, ADDED = 2.0**12, 0.03
# Differences count as 0 below this share of answers. Smaller: neurons along which tokens hardly
# move have not bent yet; larger: a power with a small factor is lost.
STRAIGHT = 1e-5
# So often at most: from 10⁴ to 0.04, where v is nearly orthogonal to the first token.
QUARTERS = 10
# A token of a limit's own length may be beyond it by a roundoff: its direction is scaled by this.
WITHIN = 1 - 2.0**-40

AnswerKind: TypeAlias = Literal["constant", "labels", "noisy", "rounded", "float32", "float64"]
SingleTokenShape: TypeAlias = Literal["bent", "smooth", "unclear", "affine"]
"""Of several lines that are answered in different shapes the first of these counts."""
Outcome: TypeAlias = Literal["softmax", "sigmoid", "classes"]
"""What a classifier answers: rows that sum to 1, numbers from 0 to 1, or the number of a class."""
TokensThatCount: TypeAlias = Literal["all", "the last", "one alone"]


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
    most_tokens : int or None
        The most tokens that are answered, where some sequence of up to 64 is refused.
    outcome : {"softmax", "sigmoid", "classes"} or None
        What of a classifier answers are; None where they are other numbers.
    growth : int or None
        With which power of their length answers to long tokens grow, beside the token itself: 0, 1
        or 2, 3 for anything else. None where that was not asked.
    added : bool
        Whether answers to long tokens are these tokens, and what their direction alone decides.
    copied : bool
        Of ids: whether copies of one are answered otherwise than it is.
    beside : bool
        Of ids: whether copies are weighed against tokens of the target's own.
    context : int or None
        Of ids: how many are answered as shorter sequences are, where more are not.
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
    most_tokens: int | None = None
    outcome: Outcome | None = None
    growth: int | None = None
    added: bool = False
    copied: bool = False
    beside: bool = False
    context: int | None = None

    @property
    def of_one_token(self) -> bool:
        """Whether vectors are a smooth function of one token."""
        return self._exact and self.singles == "smooth" and self.tokens != "all" and self.width > 1

    @property
    def may_be_a_block(self) -> bool:
        """Whether vectors are a smooth function of all tokens, and no layer's that has a name."""
        named = self.normalised or self.after_norm or self.tokens != "all"
        return self._exact and self.singles in ("smooth", "unclear") and not named

    @property
    def _exact(self) -> bool:
        return self.kind in ("float64", "float32") and not self.drowned

    @property
    def layered(self) -> bool:
        """Whether that is as of one hidden layer: it grows with no power above the second."""
        return self.of_one_token and self.growth != 3

    @property
    def classified(self) -> bool:
        """Whether answers are the numbers of classes."""
        return self.outcome == "classes"

    @property
    def probable(self) -> bool:
        """Whether answers are probabilities."""
        return self.outcome in ("softmax", "sigmoid")

    @property
    def constant(self) -> bool:
        """Whether all answers are the same."""
        return self.kind == "constant"

    @property
    def coarse(self) -> bool:
        """Whether answers are so coarse that a learner should be told how much."""
        return self.kind in ("rounded", "noisy")


def traits_of(dim: int, rng: np.random.Generator) -> Asking[Traits]:
    """Ask, and say what the answers show."""
    reach, radius = yield from _reach(dim, rng)
    points = _sequences(rng, 12, 1, dim)  # labels and formats show in as many
    lines = [_line(rng, dim) for _ in range(3)]  # more meet a hyperplane more surely
    reach, radius = yield from _in_all_directions([points, *lines], reach, radius)
    # nothing below is longer than 128
    shorter = min(1.0, 2.0 ** np.floor(np.log2(reach / 128)))
    points, lines = shorter * points, [shorter * line for line in lines]
    short = shorter * _sequences(rng, 6, 6, dim)
    long = shorter * _sequences(rng, 2, 64, dim)  # windows and position biases may begin late
    far = reach * _directions(rng, 6, 1, dim)

    singles = yield from _answers("single tokens", points, points[-6:])
    along = yield from _answers("single tokens along lines", *lines)
    most, several = None, (yield from unless_refused(_in_other_words(short, rng), [], first=True))
    if not several:
        most = yield from _most_tokens(long[:1], 2 * short.shape[1])
    if most is not None and most > 1:
        several = yield from _in_other_words(short[:, -most:], rng, most)
    found = replace(first_seen(singles, along, several), radius=radius, most_tokens=most)
    found = replace(found, outcome=outcome_of(np.concatenate([singles[0], *along]), found))
    if found.beyond is not None or found.constant or found.drowned or found.outcome:
        return found
    ordered, normalised, norm = found.ordered, False, None
    if several and most is None:
        both = yield from unless_refused(_in_two_orders(long, rng), [])
        if not both:
            most = yield from _most_tokens(long[:1], long.shape[1], 2 * short.shape[1])
            both = yield from _in_two_orders(long[:, -most:], rng)
        here, there = (y[:, found.coordinate] for y in both)
        ordered = ordered or differ(here, there, found.precision)
    if found.width > 2 and radius is None:  # two numbers lie on an ellipse too easily
        normalised = yield from unless_refused(_normalised(far, found.width, rng), False)
    if found.singles in ("smooth", "unclear") and radius is None and not normalised:
        look = norm_before(dim, int(rng.integers(2**31)))
        norm, _ = yield from unless_refused(look, (None, np.inf))
    seen = replace(found, ordered=ordered, normalised=normalised, most_tokens=most)
    seen = replace(seen, after_norm=norm is not None)
    if seen.of_one_token and radius is None and not (normalised or seen.after_norm):
        growth = yield from unless_refused(_growth(seen, dim, rng), None)
        seen = replace(seen, growth=growth)
    if seen.may_be_a_block and radius is None and seen.width == dim > 1:
        seen = replace(seen, added=(yield from unless_refused(_added(dim, rng), False)))
    return seen


def unless_refused(steps: Asking[T], otherwise: T, *, first: bool = False) -> Asking[T]:
    """Return what steps find, or that where the target does not answer them.

    In the ``first`` questions a target that takes tokens of another dimension says so.
    """
    try:
        return (yield from steps)
    except OracleError as refusal:
        if first and isinstance(refusal, DimensionRefused):
            raise
        return otherwise


# -- what is asked


def _directions(rng: np.random.Generator, count: int, tokens: int, dim: int) -> Array:
    return np.asarray(rng.standard_normal((count, tokens, dim)) / np.sqrt(dim))


def _sequences(rng: np.random.Generator, count: int, tokens: int, dim: int) -> Array:
    lengths = np.resize([0.5, 1.0, 2.0, 4.0, 8.0, 16.0], count)
    return np.asarray(_directions(rng, count, tokens, dim) * lengths[:, None, None])


def _line(rng: np.random.Generator, dim: int) -> Array:
    """Draw x, then x ± t u for every step t, 4 times shorter every time.

    Sums are float32 numbers. Learners meet the hyperplanes that are farther away than 64.
    """
    unit = 2.0 ** -np.round(np.log2(dim) / 2)
    x = np.round(rng.standard_normal(dim) * 2.0**5) / 2.0**5 * unit
    u = rng.choice([-1.0, 1.0], dim) * unit
    t = 64.0 * 4.0 ** -np.arange(12)[:, None]
    return np.vstack([x[None], x + t * u, x - t * u])[:, None]


def _reach(dim: int, rng: np.random.Generator) -> Asking[tuple[float, float | None]]:
    """Ask how long tokens may be; return that, and None for it where any length is answered."""
    x = _directions(rng, 1, 1, dim)
    x /= np.linalg.norm(x)
    for radius in (None, 1e4, 1e3, 300.0, 100.0, 30.0, 10.0, 3.0):
        reach = 2.0**30 if radius is None else radius
        asked = _answers("how long tokens may be", reach * x)
        if (yield from unless_refused(asked, [], first=True)):
            return reach, radius
    return 1.0, 1.0


def _in_all_directions(
    tokens: list[Array], reach: float, radius: float | None
) -> Asking[tuple[float, float | None]]:
    """Shorten a limit that tokens of these directions do not keep: a saturated output has such.

    The longest of each is asked at that length, in both directions, for a constant makes one of
    them the shorter; and again at a quarter until all are answered.
    """
    if radius is None:
        return reach, radius
    longest = [X[[int(np.argmax(np.linalg.norm(X[:, 0], axis=1)))]] for X in tokens]
    X = np.concatenate([sign * x for x in longest for sign in (1.0, -1.0)])
    X = WITHIN * X / np.linalg.norm(X, axis=2, keepdims=True)
    for factor in 0.25 ** np.arange(QUARTERS):
        asked = _answers("how long tokens may be", factor * reach * X)
        if (yield from unless_refused(asked, [])):
            return float(factor * reach), float(factor * radius)
    return reach, radius


def _answers(phase: str, *families: Array) -> Asking[list[Array]]:
    return (yield [Sequences(X, phase=phase, purpose="data") for X in families])


def _in_other_words(
    short: Array, rng: np.random.Generator, most: int | None = None
) -> Asking[list[Array]]:
    """Ask sequences, and in other words; within ``most`` tokens where that is known.

    Attention answers a sequence, the same permuted, and twice over alike; with other tokens but
    the last it does not; and again, for noise. Where twice over is too long, fewer tokens are.
    """
    others = np.concatenate([rng.permutation(short)[:, :-1] * 1.5, short[:, -1:]], axis=1)
    once = short if most is None else short[:, -(most // 2) :]
    families = [short, _permuted(short, rng), np.concatenate([once, once], axis=1), others, short]
    families += [] if most is None else [once]
    return (yield from _answers("several tokens, and in other words", *families))


def _in_two_orders(long: Array, rng: np.random.Generator) -> Asking[list[Array]]:
    return (yield from _answers("many tokens", long, _permuted(long, rng)))


def _most_tokens(X: Array, refused: int, answered: int = 1) -> Asking[int]:
    """Ask how many tokens are answered: X (1, N, d) cut, N at least ``refused``.

    Two are asked first where one is all that was answered.
    """
    while refused - answered > 1:
        tried = 2 if answered == 1 else (answered + refused) // 2
        asked = _answers("how many tokens are answered", X[:, -tried:])
        if (yield from unless_refused(asked, [])):
            answered = tried
        else:
            refused = tried
    return answered


def _permuted(X: Array, rng: np.random.Generator) -> Array:
    """Reverse, and turn by one: no token but the last one stays in its place, as a rule."""
    order = np.roll(np.arange(X.shape[1] - 1)[::-1], 1 + int(rng.integers(2)))
    return np.concatenate([X[:, order], X[:, -1:]], axis=1)


# -- what it says


def first_seen(singles: list[Array], along: list[Array], several: list[Array]) -> Traits:
    """Say what answers show: to single tokens, along lines, and to several tokens."""
    largest, width = float(np.max(np.abs(singles[0]))), singles[0].shape[1]
    k = int(np.argmax(np.ptp(singles[0], axis=0)))
    singles, along, several = ([y[:, k] for y in some] for some in (singles, along, several))
    y, repeated = np.concatenate([singles[0], *along, *several[:1]]), [singles, several[::4]]
    change = np.concatenate([ys[1] - ys[0][-len(ys[1]) :] for ys in repeated if ys])
    kind, precision = _kind(y, change)
    # so many changes of one sign are no noise: by chance they are once in 500
    drifts = bool(kind == "noisy" and abs(np.sum(np.sign(change))) == len(change) >= 10)
    # beyond these float64 has no room to compute with
    beyond = largest if largest and not 1e-100 <= largest <= 1e100 else None
    shapes: tuple[SingleTokenShape, ...] = get_args(SingleTokenShape)
    shape: SingleTokenShape = "unclear"
    if along:
        shape = min((_shape_along(y, precision) for y in along), key=shapes.index)
    found = Traits(width, k, kind, precision, singles=shape, drifts=drifts, beyond=beyond)
    found = replace(found, drowned=bool(np.std(y) < 2 * precision.noise))
    if not several:
        return replace(found, tokens="one alone")
    once, permuted, doubled, others, _, *fewer = several
    # a label hides most
    count = kind == "labels" or differ(once, others, precision, share=0.0)
    ordered = differ(once, permuted, precision)
    counted = differ(fewer[0] if fewer else once, doubled, precision)
    return replace(found, tokens="all" if count else "the last", ordered=ordered, counted=counted)


def _kind(y: Array, changes: Array) -> tuple[AnswerKind, Precision]:
    """Say what numbers answers are, and what they may be off by."""
    different = np.unique(y)
    if len(different) == 1:
        return "constant", Precision()
    if len(different) == 2 and set(np.abs(different)) <= {0.0, 1.0}:
        return "labels", Precision()
    precision = Precision.of_format([different])
    if np.any(np.abs(changes) > 2 * precision.error(float(np.max(np.abs(y))))):
        deviation = float(np.sqrt(np.mean(changes**2) / 2))
        return "noisy", precision.with_noise(deviation, len(changes))
    if not precision.relative and not precision.absolute:
        return "float64", precision
    bits = significant_bits(different)
    return ("float32" if bits == FLOAT32_BITS else "rounded"), precision


def outcome_of(y: Array, found: Traits) -> Outcome | None:
    """Say whether answers (n, m) to single tokens, short ones and long ones, are a classifier's."""
    if found.kind in ("constant", "labels"):
        return None
    different = np.unique(y)
    whole = y.shape[1] == 1 and np.array_equal(different, np.round(different))
    # those of a rounded head are as often negative, and as different as tokens
    if whole and different[0] >= 0 and 2 < len(different) <= len(y) // 4:
        return "classes"
    if different[0] < 0 or different[-1] > 1 or found.singles == "affine":
        return None
    # a sigmoid nears 0 before it is there; what is cut off does not
    if different[0] == 0 and different[1] > TAIL:
        return None
    # float16 and decimals are off by no more
    if y.shape[1] > 1 and np.all(np.abs(y.sum(axis=1) - 1) < SUM_OFF):
        return "softmax"
    return "sigmoid"


def differ(one: Array, two: Array, precision: Precision, share: float = 1e-4) -> bool:
    """Whether some answers differ by more than eight times what both may be off by.

    And by that share of the largest: the terms of an answer may be 1,000 times as large as the
    answer, and round accordingly.
    """
    size = float(max(np.max(np.abs(one)), np.max(np.abs(two))))
    off = 16 * float(precision.error(size, size))
    return bool(np.any(np.abs(one - two) > max(off, share * size)))


def _shape_along(y: Array, precision: Precision) -> SingleTokenShape:
    """Say how single tokens are answered along a line: y of x, x + t u for all t, x − t u.

    Its second differences say so, at steps that are 4 times shorter every time.
    """
    off = 32 * float(precision.error(np.max(np.abs(y)), np.max(np.abs(y))))
    plus, minus = np.split(y[1:], 2)
    second = np.abs(plus + minus - 2 * y[0])
    visible = np.flatnonzero(second > off)
    if not len(visible):
        return "affine"
    last = int(visible[-1])
    # one so large, and none at the next step, is a bend: a smooth function's falls to a sixteenth
    if last + 1 < len(second) and second[last] > 256 * off:
        return "bent"
    before = second[max(0, last - 2) : last + 1]
    squares = before[:-1] / before[1:]
    # three steps in a row fall by 16, within what the visible ones may be off by
    if len(squares) == 2 and np.all(np.abs(squares - 16) < 6):
        return "smooth"
    return "unclear"


def _normalised(far: Array, width: int, rng: np.random.Generator) -> Asking[bool]:
    """Whether tokens half as long are answered alike, and answers lie on an ellipsoid.

    Twice as many answers as numbers are asked for that, so of up to 1,024 numbers.
    """
    alike = 1e-4  # of the answers' spread: what eps inside a norm moves them by, of long tokens
    once, half = yield from _answers("long tokens", far, far / 2)
    spread = float(np.max(np.ptp(once, axis=0)))
    if not spread or np.max(np.abs(once - half)) > alike * spread or width > 1024:
        return False
    X = _sequences(rng, 2 * width + len(far), 1, far.shape[2])
    [y] = yield from _answers("vectors on an ellipsoid", X)
    return on_an_ellipsoid(y, alike)


def _growth(found: Traits, dim: int, rng: np.random.Generator) -> Asking[int]:
    """Say with which power of their length answers to long tokens grow."""
    u, steps = _directions(rng, 3, 1, dim), np.arange(1.0, 5.0)
    X = FAR_OUT * steps[:, None, None, None] * u
    [y] = yield from _answers("long tokens", X.reshape(-1, 1, dim))
    along = y.reshape(len(steps), -1)
    straight = max(STRAIGHT, 64 * float(found.precision.relative))
    size = np.max(np.abs(along))
    for power in range(3):
        if power == 0 and found.width == dim:  # the token itself counts for nothing
            beside = (y - X.reshape(-1, dim)).reshape(along.shape)
            far = np.max(np.abs(np.diff(beside, axis=0)))
            rounded = 64 * float(found.precision.error(size, size))
            if far <= straight * np.max(np.abs(beside)) + rounded:
                return 0
        if np.max(np.abs(np.diff(along, power + 1, axis=0))) <= straight * size:
            return power
    return 3


def _added(dim: int, rng: np.random.Generator) -> Asking[bool]:
    """Tell whether long tokens are added to what depends on their direction alone."""
    u = LONG * np.sqrt(dim) * _directions(rng, 3, 1, dim)
    X = np.arange(1.0, 5.0)[:, None, None, None] * u
    [y] = yield from _answers("long tokens", X.reshape(-1, 1, dim))
    beside = y.reshape(len(X), -1) - X.reshape(len(X), -1)
    size = np.max(np.abs(beside))
    # float32 answers of this size leave a tenth of a thousandth
    return bool(np.max(np.abs(beside - beside[0])) <= ADDED * size <= ADDED**2 * LONG)


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
