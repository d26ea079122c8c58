"""The long fresh sequences that every learner of attention asks: 1 to 512 tokens, logits to 30.

Attention that is softmax on a few tokens may be something else on many, or where scores are
large: a sliding window, the k largest scores, a temperature that depends on N, a bias by
position, clipped scores, a sink that takes what no token gets. So a part of each hold-out is

- *fresh*: tokens drawn one by one, logits of an rms from 0.1 to 30;
- *repeats*: a few tokens many times, so that counts and not values decide;
- *near*: tokens that are nearly alike;
- *permuted*: all tokens but the last of the sequence before in another order: the same answer;
- one token by itself whose own score is about −30: single tokens do not depend on W unless
  something else takes part in the softmax.

What a sequence looks like is here; how tokens are scaled so that the recovered model has the
logits wanted is the learner's, and so is the judgement (`validate.judge`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple, Protocol

import numpy as np

from unsoftmax.probes import Array, Probes, Round
from unsoftmax.validate.judge import Answered


class SequenceShape(NamedTuple):
    """One long sequence."""

    tokens: int
    logits: float
    """Root mean square of its logits, or more of them (`LongSequenceTuning.shown`); of a single
    token, what its own score falls below 0."""
    kind: Literal["fresh", "repeats", "near", "permuted"] = "fresh"


@dataclass(frozen=True, slots=True)
class LongSequenceTuning:
    """Knobs of long sequences."""

    shapes: tuple[SequenceShape, ...] = (
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
    share: int = 2
    """One in so many queries of a hold-out's end is one of these, until all are asked once."""
    most_numbers: int = 2**18
    """Entries of one sequence, 2 MiB: from 513 dimensions on long sequences have fewer tokens."""
    least: int = 4
    """With fewer queries none is: their answers average more away than those of short ones."""
    distinct: int = 4
    """Different tokens among repeats."""
    apart: float = 2.0**-10
    """How far apart near tokens are, relative to their length: float32 still tells them apart."""
    tried: int = 32
    """Directions tried for the token by itself: the shortest whose score is low enough is asked."""
    shown: float = 30.0
    """Two tokens of fresh sequences at logits of this size have scores above it: of scores that
    are clipped there, a single one changes no answer."""
    stretched: tuple[float, ...] = (1.0, -1.0, 2.0, -2.0, 4.0, -4.0)
    """Factors of the logits tried for it in turn, offsets turned round where they are negative.
    The first that suffices is asked, or else the one that comes nearest."""
    longest: float = 2.0**110
    """No token is longer: squares of tokens and their answers must stay in float32's range."""
    together: int = 64
    """Families of up to so many tokens are asked in one round, and each longer one in a round of
    its own: a target may have a longest sequence, and is believed as far as it answers."""

    def of(self, count: int, dim: int) -> list[SequenceShape]:
        """Return what an end of ``count`` queries asks of a target of ``dim`` dimensions."""
        most = max(self.together, self.most_numbers // dim)
        asked = self.shapes[: count // self.share if count >= self.least else 0]
        return [shape._replace(tokens=min(shape.tokens, most)) for shape in asked]

    def rounds(self, families: Iterable[Probes]) -> list[Round]:
        """Divide families into the rounds in which they are asked, shorter ones first."""
        rounds: dict[int, Round] = {}
        for family in families:
            rounds.setdefault(max(family.tokens, self.together), []).append(family)
        return [rounds[tokens] for tokens in sorted(rounds)]

    def most_tokens(self, dim: int, *beside: int) -> int:
        """Return how many tokens a hold-out's sequences have at most, in ``dim`` dimensions.

        ``beside`` are the lengths of its other sequences; opening ones have three tokens.
        """
        most = max(self.together, self.most_numbers // dim)
        return max([3, *beside, *(min(shape.tokens, most) for shape in self.shapes)])

    @property
    def most_rounds(self) -> int:
        """Into how many rounds all are divided."""
        return len({max(shape.tokens, self.together) for shape in self.shapes})


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
    tuning: LongSequenceTuning,
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
    tuning : LongSequenceTuning
        Knobs.
    """
    drawn: list[Array] = []
    for shape in tuning.of(count, model.dim):
        if shape.kind == "permuted":
            X = np.vstack([rng.permutation(drawn[-1][:-1]), drawn[-1][-1:]])
        elif shape.tokens == 1:
            X = _alone(model, shape.logits, rng, tuning)[None]
        else:
            query = rng.standard_normal(model.dim) / np.sqrt(model.dim)
            offsets = _offsets(shape, model.dim, rng, tuning)
            stretched = (
                scaled(np.copysign(1.0, by) * offsets, query, abs(by) * shape.logits)
                for by in tuning.stretched
            )
            first = next(stretched)
            X = _highest(model, first, stretched, tuning) if shape.logits >= tuning.shown else first
        drawn.append(X)
    return drawn


def _offsets(
    shape: SequenceShape, dim: int, rng: np.random.Generator, tuning: LongSequenceTuning
) -> Array:
    """Draw offsets (N − 1, d) of norm about 1."""
    count = shape.tokens - 1
    if shape.kind == "repeats":
        few = rng.standard_normal((tuning.distinct, dim)) / np.sqrt(dim)
        return np.asarray(few[rng.integers(tuning.distinct, size=count)])
    drawn: Array = rng.standard_normal((count, dim)) / np.sqrt(dim)
    if shape.kind == "near":
        drawn = rng.standard_normal(dim) / np.sqrt(dim) + tuning.apart * drawn
    return drawn


def _highest(
    model: Scored, first: Array, others: Iterable[Array], tuning: LongSequenceTuning
) -> Array:
    """Return the first sequence two of whose tokens have a score of ``shown``, or the nearest."""
    best, most = first, -np.inf
    for X in chain([first], others):
        second = second_score(model, X)
        if second > most:
            best, most = X, second
        if most >= tuning.shown:
            break
    return best


def second_score(model: Scored, X: Array) -> float:
    """Return the largest number that two tokens of a sequence (N, d) reach with their scores."""
    scores = model.scored(X[None])
    return float(np.max(np.partition(scores, -2, axis=-1)[..., -2], initial=-np.inf))


def _alone(
    model: Scored, below: float, rng: np.random.Generator, tuning: LongSequenceTuning
) -> Array:
    """Return the shortest token found whose own score is −``below``, or ``below`` if none is.

    A token βq of unit q has the score β²·q·(W q) + β·q·w. Where scores are too small for that, or
    there are none, its norm is 1.
    """
    q = rng.standard_normal((tuning.tried, model.dim))
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    there, opposite = (model.scored(x[:, None]).reshape(len(q), -1) for x in (q, -q))
    linear, square = (there - opposite) / 2, (there + opposite) / 2
    for score in (-below, below):
        # β > 0 with square·β² + linear·β = score: the root that needs no difference
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            root = np.sqrt(linear**2 + 4 * square * score)
            beta = 2 * score / (linear + np.copysign(root, score))
        length = np.where((beta > 0) & (beta <= tuning.longest), beta, np.inf)
        if np.isfinite(length).any():
            best = np.unravel_index(np.argmin(length), length.shape)
            return np.asarray(length[best] * q[best[0]])
    return np.asarray(q[0])


# -- asking, and saying what was looked at


def looked_at(model: Scored, answered: Sequence[Answered], long: Iterable[Probes]) -> str:
    """Say up to which length and size of logits fresh sequences were answered.

    ``long`` are the families of long sequences, those that were not answered included.
    """
    longest = max((X.shape[1] for X, y in answered if len(y)), default=0)
    most = max((_largest_logit(model, X) for X, _ in answered if X.shape[1] == longest), default=0)
    lost = sorted({part.tokens for part in long} - {X.shape[1] for X, _ in answered})
    refused = f" It did not answer those of {', '.join(map(str, lost))} tokens." if lost else ""
    return (
        f"Fresh sequences had up to {longest} tokens, and logits up to {most:.2g}: beyond that the "
        f"target may be something else.{refused}"
    )


def _largest_logit(model: Scored, X: Array) -> float:
    scores = model.scored(X)
    return float(np.max(np.abs(scores - scores[..., -1:]), initial=0.0))
