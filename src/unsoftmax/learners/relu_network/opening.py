"""Before the search: a typical length, whether there is anything, how precise answers are."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.cells import DOUBLE, Circle, Noise, estimate_noise
from unsoftmax.arrangement.lift import Lift, Written, ask
from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.probes import Array, Round, Singles
from unsoftmax.protocol import Answers

# Lengths at which the slope is read, from two tokens so far apart: biases 10⁵ times as large as
# weights are still seen.
_TIMES = 10.0 ** np.arange(-3, 5.5, 0.5)
_STEP = 1e-3
_EPS = float(np.finfo(float).eps)
# Answers of a constant spread in their rounding; six of them are confirmed by so many more.
_CONSTANT, _MORE = 1e-14, 32
# Where answers carry more than float64's rounding, a network without biases is asked this much
# louder: what is absolute in the noise vanishes.
_NOISY, _LOUD, _HELPS = 1e-14, 1e12, 0.1
_COARSEST = 1e-4  # noisier answers than this, relative to their size, show no kinks
# Beyond so many length scales misses count so much.
_FAR_OUT, _FAR_SHARE = 1e3, 1 / 250
# A network without biases grows as its token does, but for this share.
_SCALED, _OFF = 100.0, 1e-4


@dataclass(frozen=True, slots=True)
class Opened:
    """What is known before the search."""

    lift: Lift
    circle: Circle
    noise: Noise
    constant: float | None
    """The only answer there is, if there is only one."""


def open_network(
    dim: int, biases: bool, rng: np.random.Generator
) -> Generator[Round, Answers, Opened]:
    """Ask for the length scale, for what is constant, and for the noise."""
    length = 1.0
    if biases:
        length = yield from _length(dim, rng)
    lift = Lift(dim, biases, length)
    constant, size = yield from _constant(lift, rng)
    if dim + biases == 1 or constant is not None:
        nothing = np.zeros((0, lift.D))
        circle = Circle(lift, np.zeros(lift.D), np.zeros(lift.D), nothing, 0.0, np.pi)
        return Opened(lift, circle, Noise(DOUBLE * size, 2 * DOUBLE * size, size), constant)
    circle = Circle.random(lift, rng)
    noise = yield from estimate_noise(circle, rng)
    if not biases and noise.bars > _NOISY * noise.size:
        louder = replace(lift, loud=_LOUD)
        again = replace(circle, lift=louder)
        quiet = yield from estimate_noise(again, rng)
        if quiet.bars * noise.size < _HELPS * noise.bars * quiet.size:
            lift, circle, noise = louder, again, quiet
    # a circle may have little to say: answers elsewhere are larger, and so are their errors
    noise = Noise(
        max(noise.bars, DOUBLE * size),
        max(noise.search, 2 * DOUBLE * size),
        max(noise.size, size),
    )
    if noise.bars > _COARSEST * noise.size:
        raise NotIdentifiable(
            f"Answers to tokens close together differ by {noise.bars / noise.size:.0e} of their "
            "size: that is noise, or the target jumps (labels), and no kinks are told from it.",
            determined={},
        )
    return Opened(lift, circle, noise, None)


def _length(dim: int, rng: np.random.Generator) -> Generator[Round, Answers, float]:
    """Return the distance from 0 at which the slope varies, in the geometric mean: 68 queries."""
    v = rng.standard_normal(dim)
    v /= np.linalg.norm(v)
    t = np.concatenate([_TIMES, _TIMES * (1 + _STEP)])
    [y] = yield [Singles(np.outer(np.concatenate([t, -t]), v), phase="length", purpose="data")]
    near, far, near_back, far_back = np.split(y, 4)
    h = _TIMES * _STEP
    slopes = np.array([(far - near) / h, (near_back - far_back) / h])
    rounding = 8 * _EPS * np.maximum(np.abs(near), np.abs(near_back)) / h
    varied = np.abs(np.diff(slopes, axis=1)).sum(axis=0)
    varied = np.where(varied > 4 * (rounding[1:] + rounding[:-1]), varied, 0.0)
    # of the slope's jumps large ones tend to be near: their root does not hide the far ones
    weight = np.sqrt(varied)
    if not np.any(weight):  # straight, or bent at 0, which is no length
        return 1.0
    return float(np.exp(np.sum(weight * np.log(_TIMES[1:])) / np.sum(weight)))


def _constant(
    lift: Lift, rng: np.random.Generator
) -> Generator[Round, Answers, tuple[float | None, float]]:
    """Tell a constant from 6 points; without biases it is 0, and answers grow with the token.

    Returns the constant, if there is one, and the largest |F| at points of norm 1.
    """
    x = rng.standard_normal((3, lift.dim)) / np.sqrt(lift.dim)
    x[1] = -x[0]  # where neurons are much alike, half of all tokens make none active
    if lift.biases:
        scales = lift.length * np.array([[1e2, 1e3, 1e4], [-1.0, -3.0, -30.0]])
    else:
        scales = _SCALED * np.array([[_SCALED] * 3, [1.0] * 3])
    tokens = (scales[:, :, None] * x).reshape(6, lift.dim)
    [y] = yield [Singles(tokens, phase="constant?", purpose="data")]
    if np.ptp(y) <= _CONSTANT * np.abs(y).max() and (lift.biases or not np.any(y)):
        # a network may be dead nearly everywhere
        x = fresh_points(lift, _MORE, rng)
        [more] = yield [Singles(x, phase="constant?", purpose="data")]
        if np.ptp(np.append(y, more)) <= _CONSTANT * np.abs(y).max():
            return float(np.median(y)), float(np.abs(y).max())
        return None, float(np.max(np.abs(more)))
    if not lift.biases and np.any(np.abs(y[:3] - _SCALED * y[3:]) > _OFF * np.abs(y[:3]).max()):
        raise ModelMismatch(
            f"A token {_SCALED:g} times as long is not answered {_SCALED:g} times as large: the "
            "target is no ReLU network without biases; learn it with biases=True."
        )
    grows = np.linalg.norm(tokens, axis=1)
    if lift.biases:
        grows = np.hypot(grows / lift.length, 1.0)
    return None, float(np.max(np.abs(y) / grows))


def fresh_points(lift: Lift, count: int, rng: np.random.Generator) -> Array:
    """Return tokens of many lengths: neurons that are dead near 0 show only far out.

    Half of them are near, a quarter up to 10³ length scales away, a quarter up to 10⁸.
    """
    x = rng.standard_normal((count, lift.dim)) / np.sqrt(lift.dim)
    if not lift.biases:
        return np.asarray(lift.loud * 10.0 ** rng.uniform(-1, 2, (count, 1)) * x)
    near = np.array([0.3, 1.0, 3.0])[np.arange(count) % 3]
    first, last = np.where(np.arange(count) % 4 == 1, [[0.5], [3.0]], [[3.0], [8.0]])
    far = 10.0 ** rng.uniform(first, last)
    return np.asarray(lift.length * np.where(np.arange(count) % 2, far, near)[:, None] * x)


def strictness(lift: Lift, x: Array, neurons: int) -> Array:
    """Return what misses at tokens count beside neurons: far out a share, 1 elsewhere.

    Weight decay leaves neurons with slopes of 1e-8 of the others' and hyperplanes 10⁶ length
    scales away. They cannot be told from the others' errors, and do not matter; a neuron that
    does is a thousand times as large.
    """
    if not lift.biases or not neurons:
        return np.ones(len(x))
    return np.where(np.linalg.norm(x, axis=1) > _FAR_OUT * lift.length, _FAR_SHARE, 1.0)


def residuals(lift: Lift, x: Array, phase: str) -> Generator[Round, Answers, tuple[Array, Array]]:
    """Ask F at points of norm 1 where ``x`` points to; return them and the answers."""
    Y = lift.points(x)
    F = yield from ask(Written(lift, Y), phase)
    return Y, F
