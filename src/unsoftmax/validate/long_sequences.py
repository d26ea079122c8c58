"""The far fresh sequences that every learner of attention asks: long ones, and of long tokens.

Attention that is softmax on a few tokens may be something else on many, or where scores are
large: a sliding window, the k largest scores, a temperature that depends on N, a bias by
position, clipped scores, a sink that takes what no token gets. So a part of each hold-out is

- *fresh*: tokens drawn one by one, logits of an rms from 0.1 to 30;
- *repeats*: a few tokens many times, so that counts and not values decide;
- *near*: tokens that are nearly alike;
- *permuted*: all tokens but the last of the sequence before in another order: the same answer;
- one token by itself whose own score is about −30: single tokens do not depend on W unless
  something else takes part in the softmax.

Scores may also saturate with the *lengths* of tokens, which logits do not show: keys as long as
query tokens are short have the same. Another part (`LongTokens`) has long keys or long query
tokens at moderate logits, as long as the errors of the model allow.

What a sequence looks like is here; how tokens are scaled so that the recovered model has the
logits wanted is the learner's, and so is the judgement (`validate.judge`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple, Protocol

import numpy as np

from unsoftmax.models.arrays import TINY
from unsoftmax.models.attention import softmax
from unsoftmax.probes import Array, Flags, Probes, Round
from unsoftmax.validate.judge import Answered

LONGEST = 2.0**110
"""No token is longer: squares of tokens and their answers must stay in float32's range."""


class SequenceShape(NamedTuple):
    """One long sequence."""

    tokens: int
    logits: float
    """Root mean square of its logits, or more of them (`SHOWN`); of a single
    token, what its own score falls below 0."""
    kind: Literal["fresh", "repeats", "near", "permuted"] = "fresh"


FAR = (
    SequenceShape(512, 2.0),
    SequenceShape(64, 6.0),
    SequenceShape(512, 0.5),
    SequenceShape(200, 2.0),
    SequenceShape(1, 2.0),
)
"""Long sequences where scores depend on distance, the most telling first: frequencies that change,
and windows, show beyond their length alone."""


SHAPES = (
    SequenceShape(512, 2.0),
    SequenceShape(64, 30.0),
    SequenceShape(1, 30.0),
    SequenceShape(512, 30.0),
    SequenceShape(16, 6.0, "repeats"),
    SequenceShape(64, 0.5),
    SequenceShape(64, 0.5, "permuted"),
    SequenceShape(16, 0.1, "near"),
)
"""What is asked, the most telling first: few lengths, for each is a family of its own."""
# One in so many queries of a hold-out's end is one of these, until all are asked once.
SHARE = 2
# With fewer queries none is: their answers average more away than those of short ones.
LEAST = 4
# Entries of one sequence, 2 MiB: from 513 dimensions on long sequences have fewer tokens.
MOST_NUMBERS = 2**18
# Different tokens among repeats.
DISTINCT = 4
# How far apart near tokens are, relative to their length: float32 still tells them apart.
APART = 2.0**-10
# Directions tried for the token by itself: the shortest whose score is low enough is asked.
TRIED = 32
SHOWN = 30.0
"""Two tokens of fresh sequences at logits of this size have scores above it: of scores that are
clipped there, a single one changes no answer."""
# Factors of the logits tried for it in turn, offsets turned round where they are negative. The
# first that suffices is asked, or else the one that comes nearest.
STRETCHED = (1.0, -1.0, 2.0, -2.0, 4.0, -4.0)
# One in so many of the other sequences has long tokens (`LongTokens`).
LONG_SHARE = 3
TOGETHER = 64
"""Families of up to so many tokens are asked in one round, and each longer one in a round of its
own: a target may have a longest sequence, and is believed as far as it answers."""
MOST_ROUNDS = len({max(shape.tokens, TOGETHER) for shape in SHAPES})
"""Into how many rounds all are divided."""


def shapes_of(count: int, dim: int) -> list[SequenceShape]:
    """Return what an end of ``count`` queries asks of a target of ``dim`` dimensions."""
    asked = SHAPES[: count // SHARE if count >= LEAST else 0]
    return [shape._replace(tokens=min(shape.tokens, most_at(dim))) for shape in asked]


def most_at(dim: int) -> int:
    """Return how many tokens a sequence of ``dim`` dimensions may have."""
    return max(TOGETHER, MOST_NUMBERS // dim)


def in_rounds(families: Iterable[Probes]) -> list[Round]:
    """Divide families into the rounds in which they are asked, shorter ones first."""
    rounds: dict[int, Round] = {}
    for family in families:
        rounds.setdefault(max(family.tokens, TOGETHER), []).append(family)
    return [rounds[tokens] for tokens in sorted(rounds)]


def most_tokens(dim: int, *beside: int) -> int:
    """Return how many tokens a hold-out's sequences have at most, in ``dim`` dimensions.

    ``beside`` are the lengths of its other sequences; opening ones have three tokens.
    """
    return max([3, *beside, *(min(shape.tokens, most_at(dim)) for shape in SHAPES)])


class Scored(Protocol):
    """A model whose tokens have scores: one head's, or several heads'."""

    @property
    def dim(self) -> int:
        """Dimension d of a token."""

    def scored(self, X: Array) -> Array:
        """Return the scores of tokens of sequences (B, N, d), (B, N) or of H heads (B, H, N)."""


def draw_long(
    model: Scored,
    count: int,
    rng: np.random.Generator,
    scaled: Callable[[Array, Array, float], Array],
) -> list[Array]:
    """Draw the long part of a hold-out's end of ``count`` queries: sequences (N, d).

    Parameters
    ----------
    model : Scored
        The recovered model.
    count : int
        Queries of the hold-out's end, what is not drawn here included.
    rng : Generator
        Makes the sequences.
    scaled : callable
        Makes a sequence of offsets (N − 1, d), a query token (d,), each of norm about 1, and an
        rms of logits.
    """
    drawn: list[Array] = []
    for shape in shapes_of(count, model.dim):
        if shape.kind == "permuted":
            X = np.vstack([rng.permutation(drawn[-1][:-1]), drawn[-1][-1:]])
        elif shape.tokens == 1:
            X = _alone(model, shape.logits, rng)[None]
        else:
            query = rng.standard_normal(model.dim) / np.sqrt(model.dim)
            offsets = _offsets(shape, model.dim, rng)
            stretched = (
                scaled(np.copysign(1.0, by) * offsets, query, abs(by) * shape.logits)
                for by in STRETCHED
            )
            first = next(stretched)
            X = _highest(model, first, stretched) if shape.logits >= SHOWN else first
        drawn.append(X)
    return drawn


def _offsets(shape: SequenceShape, dim: int, rng: np.random.Generator) -> Array:
    """Draw offsets (N − 1, d) of norm about 1."""
    count = shape.tokens - 1
    if shape.kind == "repeats":
        few = rng.standard_normal((DISTINCT, dim)) / np.sqrt(dim)
        return np.asarray(few[rng.integers(DISTINCT, size=count)])
    drawn: Array = rng.standard_normal((count, dim)) / np.sqrt(dim)
    if shape.kind == "near":
        drawn = rng.standard_normal(dim) / np.sqrt(dim) + APART * drawn
    return drawn


def _highest(model: Scored, first: Array, others: Iterable[Array]) -> Array:
    """Return the first sequence two of whose tokens have a score of `SHOWN`, or the nearest."""
    best, most = first, -np.inf
    for X in chain([first], others):
        second = second_score(model, X)
        if second > most:
            best, most = X, second
        if most >= SHOWN:
            break
    return best


def second_score(model: Scored, X: Array) -> float:
    """Return the largest number that two tokens of a sequence (N, d) reach with their scores."""
    scores = model.scored(X[None])
    return float(np.max(np.partition(scores, -2, axis=-1)[..., -2], initial=-np.inf))


def _alone(model: Scored, below: float, rng: np.random.Generator) -> Array:
    """Return the shortest token found whose own score is −``below``, or ``below`` if none is.

    A token βq of unit q has the score β²·q·(W q) + β·q·w. Where scores are too small for that, or
    there are none, its norm is 1.
    """
    q = rng.standard_normal((TRIED, model.dim))
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    there, opposite = (model.scored(x[:, None]).reshape(len(q), -1) for x in (q, -q))
    linear, square = (there - opposite) / 2, (there + opposite) / 2
    for score in (-below, below):
        # β > 0 with square·β² + linear·β = score: the root that needs no difference
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            root = np.sqrt(linear**2 + 4 * square * score)
            beta = 2 * score / (linear + np.copysign(root, score))
        length = np.where((beta > 0) & (beta <= LONGEST), beta, np.inf)
        if np.isfinite(length).any():
            best = np.unravel_index(np.argmin(length), length.shape)
            return np.asarray(length[best] * q[best[0]])
    return np.asarray(q[0])


# -- sequences of long tokens

# Keys and query tokens, in turn, are so many times as long as tokens of 1, or as tokens with
# logits of about 1, whichever are longer; else half as long, until the errors of the model leave
# answers nearly as they are.
# Errors of W move logits with the square of a query token's length, for keys follow it: shorter.
REACH, QUERY_REACH = 2.0**10, 2.0**6
# Tokens of such a sequence, and root mean squares of its logits, in turn.
LONG_TOKENS, LONG_LOGITS = 12, (1.0, 3.0)
# Directions that keys are made of, unless heads are more: all of them where there are fewer.
DIRECTIONS = 32
# A key counts as looked at where it has a weight between this and the rest of 1, a query token
# where some key does: what is done to their scores shows there.
SEEN_WEIGHT = 1e-3
# Heads whose scores of keys differ by less than this share count as one; so does what is left of a
# direction where heads score all.
SAME_SCORES = 1e-6
# Tokens near a ball's rim are those whose squares are short of its square by less than this share.
RIM = 1e-3
_POWERS = np.exp2(np.arange(-440, 441) / 4)


class Ball(NamedTuple):
    """Tokens of a model that a norm makes of the target's: the longest are near the rim."""

    radius: float
    least: float
    """The squares of tokens are short of the radius' by this share at least."""
    queries: bool
    """Whether query tokens may be long: with a residual connection answers contain them."""
    lengths: Callable[[Array], Array]
    """Maps tokens (…, d) to the lengths that they have before the norm, (…)."""


@dataclass(frozen=True, slots=True)
class LongTokens:
    """Sequences of long keys, and of long query tokens, at moderate logits.

    Attributes
    ----------
    model : Scored
        The recovered model.
    tells : callable
        Whether a model with the errors of this one answers a sequence (N, d) nearly alike.
    longest : float
        No token is longer.
    ball : Ball, optional
        Where a norm stands before the model: tokens are long there, at the model's own logits.
    """

    model: Scored
    tells: Callable[[Array], bool]
    longest: float = LONGEST
    ball: Ball | None = None

    def among(
        self, count: int, rng: np.random.Generator, ordinary: Callable[[int], Array]
    ) -> list[Array]:
        """Draw ``count`` sequences (N, d): one in `LONG_SHARE` has long tokens."""
        drawn, long = list[Array](), 0
        for n in range(count):
            X = self.drawn(n // LONG_SHARE, rng) if n % LONG_SHARE == LONG_SHARE // 2 else None
            long += X is not None
            drawn.append(ordinary(n - long) if X is None else X)
        return drawn

    def drawn(self, n: int, rng: np.random.Generator) -> Array | None:
        """Draw the n-th: long keys, a long query token in turn; None where none would tell."""
        X = rng.standard_normal((LONG_TOKENS, self.model.dim)) / np.sqrt(self.model.dim)
        if self.ball is not None:
            return self._at_the_rim(self.ball, X, rng)
        natural = length_for(self.model, X, 1.0)
        unit = X / np.linalg.norm(X, axis=1, keepdims=True)
        logits = LONG_LOGITS[n // 2 % len(LONG_LOGITS)] * rng.standard_normal(LONG_TOKENS - 1)
        # from the longest to the natural ones, some of each: one alone may meet drawn errors or not
        shares = np.arange(LONG_TOKENS - 1) // 3 / 4 + rng.uniform(0, 0.1, LONG_TOKENS - 1)
        shares[0] = 0.0
        basis = np.linalg.qr(rng.standard_normal((self.model.dim, self._directions(X))))[0].T
        long = (QUERY_REACH if n % 2 else REACH) * max(natural, 1.0)
        long = min(long, self.longest / 2)
        while long > natural:
            # keys along what scores them are as long as a query token is short
            query = (long if n % 2 else natural**2 / long) * unit[-1]
            lengths = long * (natural / long) ** shares
            made = self._with_logits(query, logits, lengths, unit[:-1] @ basis.T, basis)
            if np.linalg.norm(made, axis=1).max() <= self.longest:
                made = made.astype(np.float32).astype(np.float64)
                if self.tells(made):
                    return made
            long /= 2
        return None

    def _at_the_rim(self, ball: Ball, X: Array, rng: np.random.Generator) -> Array | None:
        """Make tokens whose squares are short of the radius' by shares down to the least."""
        left = RIM * (ball.least / RIM) ** rng.uniform(size=(len(X), 1))
        left[-1] = left[-1] if ball.queries else RIM
        X *= ball.radius * np.sqrt(1 - left) / np.linalg.norm(X, axis=1, keepdims=True)
        return X if self.tells(X) else None

    def _directions(self, X: Array) -> int:
        heads = self.model.scored(X[None]).size // len(X)
        return min(self.model.dim, max(DIRECTIONS, 2 * heads))

    def _with_logits(
        self, query: Array, logits: Array, lengths: Array, fill: Array, basis: Array
    ) -> Array:
        """Make keys with logits, alike in all heads, and of lengths, or longer if they must be.

        A key scores affinely: of the keys with the logits wanted the shortest is found, and what is
        missing of its length is added along a direction that changes no score.
        """
        asked = np.zeros((len(basis) + 1, len(lengths) + 1, len(query)))
        asked[1:, :-1] = basis[:, None]
        asked[:, -1] = query
        scores = self.model.scored(asked).reshape(len(asked), -1, len(lengths) + 1)
        none, each = scores[0], scores[1:, :, :-1] - scores[0, :, :-1]
        missing = logits + none[:, -1:] - none[:, :-1]
        sizes = np.linalg.norm(each, axis=0)
        sizes[sizes == 0] = 1.0
        made = np.vstack([np.zeros((len(lengths), len(query))), query])
        for i, length in enumerate(lengths):
            scored_by = (each[:, :, i] / sizes[:, i]).T
            inverse = np.linalg.pinv(scored_by, rcond=SAME_SCORES)
            key = inverse @ (missing[:, i] / sizes[:, i])
            own = float(np.linalg.norm(key))
            if own < length:
                beside = fill[i] - inverse @ (scored_by @ fill[i])
                beside -= inverse @ (scored_by @ beside)
                if (left := float(np.linalg.norm(beside))) > SAME_SCORES * np.linalg.norm(fill[i]):
                    key += np.sqrt(length**2 - own**2) / left * beside
            made[i] = key @ basis
        return made


def length_for(model: Scored, X: Array, logits: float) -> float:
    """Return how much longer the tokens of X (N, d) have logits of the root mean square wanted.

    It is 1 where no length gives any. Logits are scores less that of the last token; of all heads
    the one counts where they are largest. Within a tenth.
    """
    if len(X) == 1:
        return 1.0
    scores = model.scored(np.stack([X, -X, np.zeros_like(X)]))
    scores = scores.reshape(3, -1, len(X))
    one, minus, none = scores - scores[..., -1:]
    A, B = (one + minus) / 2 - none, (one - minus) / 2
    size = max(float(np.abs(part).max(initial=0.0)) for part in (A, B))
    if not size > 0:
        return 1.0
    A, B, C = A / size, B / size, none / size
    terms = [A * A, 2 * A * B, B * B + 2 * A * C, 2 * B * C, C * C]
    squares = np.array([np.mean(term, axis=1) for term in terms])
    means = np.max(np.array([np.polyval(of_head, _POWERS) for of_head in squares.T]), axis=0)
    found = np.log2(np.sqrt(np.maximum(means, TINY))) + np.log2(size / logits)
    return float(_POWERS[np.argmin(np.abs(found))])


# -- asking, and saying what was looked at


def looked_at(
    model: Scored,
    answered: Sequence[Answered],
    long: Iterable[Probes],
    ball: Ball | None = None,
    telling: Sequence[Flags] | None = None,
) -> str:
    """Say up to which lengths and size of logits fresh sequences were answered.

    ``long`` are the families of long sequences, those that were not answered included; ``ball``
    says how long tokens of the model are before a norm. Lengths are those of sequences that are
    ``telling``: any scores may be behind an answer that errors of the model leave open.
    """
    longest = max((X.shape[1] for X, y in answered if len(y)), default=0)
    most = max((_largest_logit(model, X) for X, _ in answered if X.shape[1] == longest), default=0)
    lost = sorted({part.tokens for part in long} - {X.shape[1] for X, _ in answered})
    refused = f" It did not answer those of {', '.join(map(str, lost))} tokens." if lost else ""
    shown = [X for X, y in answered if len(y)]
    if telling is not None:
        shown = [X[tells] for (X, _), tells in zip(answered, telling, strict=True)]
    keys, queries = _longest_seen(model, [X for X in shown if len(X)], ball)
    return (
        f"Fresh sequences had up to {longest} tokens, and logits up to {most:.2g}: beyond that the "
        f"target may be something else.{refused} Their keys had norms up to {keys:.2g} and their "
        f"query tokens up to {queries:.2g}: longer ones may score otherwise."
    )


def _longest_seen(model: Scored, asked: Iterable[Array], ball: Ball | None) -> tuple[float, float]:
    """Return the norms of the longest keys, and query tokens, on whose scores answers depend."""
    keys = queries = 0.0
    for X in asked:
        scores = model.scored(X).reshape(len(X), -1, X.shape[1])
        if X.shape[1] > 1 and scores.size:
            weights = softmax(scores)[..., :-1]
            counts = np.any((weights > SEEN_WEIGHT) & (weights < 1 - SEEN_WEIGHT), axis=1)
            lengths = np.linalg.norm(X, axis=2) if ball is None else ball.lengths(X)
            keys = max(keys, float(np.max(lengths[:, :-1], where=counts, initial=0.0)))
            counted = np.any(counts, axis=1)
            queries = max(queries, float(np.max(lengths[:, -1], where=counted, initial=0.0)))
    return keys, queries


def _largest_logit(model: Scored, X: Array) -> float:
    scores = model.scored(X)
    return float(np.max(np.abs(scores - scores[..., -1:]), initial=0.0))
