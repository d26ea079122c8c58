"""At which lengths of tokens and offsets logits through a network are moderate.

A logit αa·(W βb + w) grows as αβ, and its part from w as α alone. A few pilots of two query
tokens find lengths β and α at which the logits' part from W is near 1: far below, answers hardly
depend on it; far above, softmax saturates. How large w is, is guessed before from two offsets of
the token 0.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from unsoftmax.measure.through_network.aim import TokenLines, aim_from
from unsoftmax.measure.through_network.network_reader import NetworkReader
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers

# Query tokens that are asked. One alone may be nearly in W's kernel; more cost queries.
SCALED_TOKENS = 2
# Rounds at most. Each makes saturated logits 64 times as small, or invisible ones a million times
# as large: 16 reach down to 1e-28, where hyperplanes are 1e10 away and tokens start out as long
# (seven, to 1e-13, refused one in 15 of those), and up to the longest tokens.
SCALE_ROUNDS = 16
# Root mean square of the logits at which the search ends. Wider: other tokens' scales have to be
# changed one by one.
GOOD = (0.1, 1.0)
# Where the logits' root mean square is brought to: few are then above 6 or below 0.05.
WANTED = 0.5
# A smaller root mean square may be rounding alone: only the largest step is taken then.
UNSEEN = 1e-6
# Factor on tokens and offsets at most, in one round.
LARGEST_STEP = 1e3
# Factor on tokens and offsets where half of the pilots or more are saturated.
SATURATED = 1 / 8
# Offsets stay so many times as long as the network's error at the token 0 needs; tokens are
# shortened instead, whose lengths no answer depends on but by the logit.
READABLE = 10.0
# Tokens of so many lengths of the network are near 0; at 0 itself neurons may bend.
NEAR = 1e-6
# Longest tokens, in lengths of the network: its biases are 1e-6 of an answer out there.
LONGEST = 1e6


def guess_bias(reader: NetworkReader) -> Generator[Round, Answers, Array]:
    """Guess how large w is from two offsets of the token 0: a vector of its typical entry.

    Only its norm matters to `find_token_lengths`. 0 where the network is flat around 0, or where
    all offsets tried saturate.
    """
    learned = reader.learned
    dim, reach = learned.dim, np.array([learned.length])
    at_zero = TokenLines(np.zeros((1, dim)), np.ones(1), reach)
    aimed = aim_from(learned, at_zero, None, reader.tuning.aim)
    for _ in range(SCALE_ROUNDS):
        if not aimed.usable(reader.tuning.aim):
            break
        answers = reader.answers(aimed, "w, scale")
        yield from answers.ask(answers.pilots, "pilot")
        t = answers.logits(answers.pilots).value
        if np.all(np.isfinite(t)):
            size = float(np.sqrt(np.mean((t / aimed.alpha[answers.pilots]) ** 2)))
            return np.full(dim, size)
        aimed = replace(aimed, alpha=SATURATED * aimed.alpha)
    return np.zeros(dim)


def find_token_lengths(
    reader: NetworkReader, B: Array, bias: Array
) -> Generator[Round, Answers, tuple[float, float]]:
    """Find lengths of tokens and of offsets for which logits are moderate.

    Parameters
    ----------
    reader : NetworkReader
        Reads the logits.
    B : ndarray (k, d)
        Unit vectors of the query tokens that are asked.
    bias : ndarray (d,)
        w as far as it is known: its part of a logit does not grow with the token, so offsets are
        no longer than it allows.
    """
    length = reader.learned.length
    beta = reach = length
    biased = float(np.linalg.norm(bias))
    longest = np.sqrt(reader.learned.dim) / biased if biased else np.inf
    shortest = min(reach, _readable(reader, B))
    for _ in range(SCALE_ROUNDS):
        reach = min(reach, longest)
        size = yield from _logit_size(reader, TokenLines.alike(B, beta, reach), bias)
        if GOOD[0] <= size <= GOOD[1]:
            break
        factor = _scale_factor(size)
        if factor > 1 and beta * np.sqrt(factor) > LONGEST * length:
            break
        wanted = beta * reach * factor
        reach = min(max(float(np.sqrt(wanted)), shortest), longest)
        beta = wanted / reach
    return beta, reach


def _readable(reader: NetworkReader, B: Array) -> float:
    """Return how long offsets of short tokens must be to show in answers; 0 where none would."""
    learned = reader.learned
    near = NEAR * learned.length * B
    slope = float(np.linalg.norm(learned.gradients(near), axis=1).max())
    least = float(learned.difference_error(near, near).max()) / reader.tuning.aim.error_share
    needed = READABLE * least / slope if slope else np.inf
    # flat but for rounding
    return needed if needed <= learned.length else 0.0


def _logit_size(
    reader: NetworkReader, lines: TokenLines, bias: Array
) -> Generator[Round, Answers, float]:
    """Ask pilots; return the root mean square of the logits' part from W, inf where saturated."""
    aimed = reader.aim(lines, None)
    answers = reader.answers(aimed, "scale")
    rows = answers.pilots
    yield from answers.ask(rows, "pilot")
    t = answers.logits(rows).value
    t = t - aimed.alpha[rows] * (aimed.offsets[rows] @ bias)
    seen = np.abs(t[np.isfinite(t)])
    return float(np.sqrt(np.mean(seen**2))) if len(seen) > len(t) // 2 else np.inf


def _scale_factor(size: float) -> float:
    """Return what logits of a root mean square should be multiplied by."""
    if not np.isfinite(size):
        return SATURATED**2
    if size <= UNSEEN:
        return LARGEST_STEP**2
    return min(WANTED / size, LARGEST_STEP**2)
