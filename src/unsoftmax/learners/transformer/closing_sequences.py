"""The closing hold-out of a Transformer: fresh sequences whose answers depend on the attention.

g may be flat where tokens are short, so lengths of query tokens span four decades, and of many
sequences tried those are asked whose answer differs most from that of the tokens' mean. Half of
all query tokens are ±e_j, so that single columns of W count, and half of the offsets are
orthogonal to w, so that W counts where w is large. No query is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.models import Transformer
from unsoftmax.probes import Array, Sequences
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
        X = np.array([_drawn(model, learned, n, rng, tuning) for _ in range(tuning.tried)])
        difference = np.abs(model(X) - learned.network(X.mean(axis=1)))
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        sequences.append(X[int(np.argmax(difference / longest))])
    return by_length(sequences, "hold-out, closing")


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
    b = learned.length * size * direction
    offsets = rng.standard_normal((tokens - 1, d)) / np.sqrt(d)
    if n % 4 > 1 and d > 1:
        across = model.w / (np.linalg.norm(model.w) or 1.0)
        offsets -= np.outer(offsets @ across, across)
    rms = float(np.sqrt(np.mean((offsets @ model.scores_of(b[None])[0]) ** 2)))
    reach = max(float(np.linalg.norm(b)), learned.length)
    alpha = min(tuning.logits[n % len(tuning.logits)] / rms, reach) if rms > 0 else reach
    return np.vstack([b + alpha * offsets, b])
