"""Networks with known errors, and answers along segments, without an oracle."""

import numpy as np

import unsoftmax as us
from unsoftmax.learners.transformer.learned_network import AnsweredSegments, LearnedNetwork
from unsoftmax.measure.precision import Precision


def exact(network, absolute=0.0):
    """A network without error; answers off by round-off, and by ``absolute``."""
    return LearnedNetwork(network, 0.0, 0.0, Precision(absolute=absolute))


def monotone(seed, d, m):
    """A network that is steep along every direction with positive entries: slope 1 to 3."""
    rng = np.random.default_rng([seed, d, m])
    A = np.abs(rng.standard_normal((d, m))) + 1e-3
    A /= A.sum(axis=0)
    line = np.full(d, 1 / d)
    b = 0.3 * rng.standard_normal(m)
    w_o = rng.uniform(0, 2, m) / max(m, 1)
    return us.ReluNetwork(np.column_stack([A, line, -line]), [*w_o, 1, -1], [*b, 0, 0], 0.4)


def disturbed(network, constant, slope, rng):
    """A learned network that is off by constant + slope·‖x‖, or nearly, but no more."""
    d = network.dim
    direction = rng.standard_normal(d)
    direction *= slope / np.linalg.norm(direction)
    wrong = us.ReluNetwork(
        np.column_stack([network.A, direction]),
        [*network.w_o, rng.choice([-1.0, 1.0])],
        [*network.b, 0.0],
        network.c + constant * rng.choice([-1.0, 1.0]),
    )
    return LearnedNetwork(wrong, constant, slope, Precision())


def segments(rng, n, d):
    """Query tokens and offsets with positive entries, of length about 1."""
    a = np.abs(rng.standard_normal((n, d))) + 0.1
    return rng.standard_normal((n, d)), a / np.linalg.norm(a, axis=1, keepdims=True)


def answered(network, x, a, sigma, off=0.0, at_start=0.0):
    """Answers of a network where pooled tokens lie at σ, off by ``off``; no anchors."""
    n = len(x)
    y = network(x + sigma[:, None] * a) + off
    return AnsweredSegments(
        x, a, y, np.broadcast_to(at_start, (n,)).copy(), *np.full((2, n), np.nan)
    )
