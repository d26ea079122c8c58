"""The closing hold-out of a Transformer: fresh sequences whose answers depend on the attention.

g may be flat where tokens are short, so lengths of query tokens span four decades, and of many
sequences tried those are asked whose answer differs most from that of the tokens' mean. Half of
all query tokens are ±e_j, so that single columns of W count, and half of the offsets are
orthogonal to w, so that W counts where w is large. The long sequences of
`unsoftmax.validate.long_sequences` are chosen alike. No query is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.models import Transformer
from unsoftmax.probes import Array, Sequences
from unsoftmax.validate.long_sequences import LongSequenceTuning, draw_long, second_score
from unsoftmax.validate.sequences import by_length


@dataclass(frozen=True, slots=True)
class ClosingSequenceTuning:
    """Which sequences are drawn, in turn."""

    tokens: tuple[int, ...] = (2, 3, 5, 8)
    """Numbers of tokens. Two alone do not tell several heads from one."""
    log_lengths: tuple[float, float] = (-1.0, 3.0)
    """Range of log₁₀ of the query tokens' lengths, in lengths of the network: hyperplanes far from
    0 bend g only out there."""
    logits: tuple[float, ...] = (0.5, 2.0, 6.0)
    """Root mean squares of the logits: even, moderate and nearly hard attention."""
    tried: int = 32
    """Sequences drawn for each that is asked: of networks that are flat near 0 few depend on the
    attention."""
    tried_long: int = 8
    """The same for each long one: of many tokens some are where the network is not flat."""
    long: LongSequenceTuning = field(default=LongSequenceTuning())
    """The long sequences."""


def telling_sequences(
    model: Transformer,
    learned: LearnedNetwork,
    count: int,
    rng: np.random.Generator,
    tuning: ClosingSequenceTuning,
) -> list[Sequences]:
    """Draw ``count`` sequences whose answers depend on the attention, one family per length."""
    sequences = []
    for n in range(count):
        tried = [_drawn(model, learned, n, rng, tuning) for _ in range(tuning.tried)]
        sequences.append(_most_telling(model, learned, tried))
    return by_length(sequences, "hold-out, closing")


def long_sequences(
    model: Transformer,
    learned: LearnedNetwork,
    count: int,
    rng: np.random.Generator,
    tuning: ClosingSequenceTuning,
) -> list[Sequences]:
    """Draw the long sequences of a closing of ``count``, one family per length."""

    def scaled(offsets: Array, query: Array, logits: float) -> Array:
        size = 10.0 ** rng.uniform(*tuning.log_lengths)
        return _scaled(model, learned, offsets, size * query, logits)

    shapes = tuning.long.of(count, model.dim)
    tried = [
        draw_long(model, count, rng, scaled, tuning.long)
        for _ in range(tuning.tried_long if shapes else 0)
    ]
    chosen = []
    for shape, *some in zip(shapes, *tried, strict=True):
        high = some
        if tuning.long.shown <= shape.logits and shape.tokens > 1:
            high = [X for X in some if second_score(model, X) >= tuning.long.shown] or some
        chosen.append(_most_telling(model, learned, high))
    return by_length(chosen, "hold-out, long")


def _most_telling(model: Transformer, learned: LearnedNetwork, tried: list[Array]) -> Array:
    """Return the sequence whose answer differs most from that of the tokens' mean."""
    X = np.array(tried)
    difference = np.abs(model(X) - learned.network(X.mean(axis=1)))
    longest = np.linalg.norm(X, axis=2).max(axis=1)
    return np.asarray(X[int(np.argmax(difference / longest))])


def _drawn(
    model: Transformer,
    learned: LearnedNetwork,
    n: int,
    rng: np.random.Generator,
    tuning: ClosingSequenceTuning,
) -> Array:
    """Draw a candidate for the n-th sequence, (N, d)."""
    d, tokens = model.dim, tuning.tokens[n % len(tuning.tokens)]
    direction = rng.standard_normal(d) / np.sqrt(d)
    if n % 2:
        direction = np.eye(1, d, int(rng.integers(d)))[0]
    size = 10.0 ** rng.uniform(*tuning.log_lengths) * rng.choice([-1.0, 1.0])
    offsets = rng.standard_normal((tokens - 1, d)) / np.sqrt(d)
    if n % 4 > 1 and d > 1:
        across = model.w / (np.linalg.norm(model.w) or 1.0)
        offsets -= np.outer(offsets @ across, across)
    wanted = tuning.logits[n % len(tuning.logits)]
    return _scaled(model, learned, offsets, size * direction, wanted)


def _scaled(
    model: Transformer, learned: LearnedNetwork, offsets: Array, query: Array, wanted: float
) -> Array:
    """Make a sequence with logits of an rms, or of less where offsets would be longer than b."""
    b = learned.length * query
    rms = float(np.sqrt(np.mean((offsets @ model.scores_of(b[None])[0]) ** 2)))
    reach = max(float(np.linalg.norm(b)), learned.length)
    alpha = min(wanted / rms, reach) if rms > 0 else reach
    return np.vstack([b + alpha * offsets, b])
