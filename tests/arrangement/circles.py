"""Piecewise sinusoids that are known, and how a search for their breakpoints is driven by hand."""

import numpy as np

from unsoftmax.arrangement.kinks import NARROWEST_NUMBERS, KinkSearch


def angles(theta):
    """A `AskAngles` that yields the angles themselves: who drives the search answers them."""
    return (yield theta)


def driven(steps, function):
    """Answer a search by a function of angles; return what it found, and all angles it asked."""
    asked = []
    try:
        theta = next(steps)
        while True:
            asked.append(np.array(theta))
            theta = steps.send(function(theta))
    except StopIteration as end:
        return end.value, np.concatenate([*asked, np.zeros(0)])
    finally:
        steps.close()


def counted(function):
    """A function of angles, and the numbers of angles it was asked for."""
    asked: list[int] = []

    def counting(theta):
        asked.append(len(theta))
        return function(theta)

    return counting, asked


def jumping(theta, size, slope=None):
    """An even function, half a jump being size·cos(t − θ_k) + slope·sin(t − θ_k) on each side."""
    theta, size = np.atleast_1d(theta), np.atleast_1d(size)
    slope = np.zeros(len(theta)) if slope is None else slope

    def function(t):
        away = np.asarray(t)[:, None] - theta
        value = size * np.cos(away) + slope * np.sin(away)
        return np.sum(np.sign(np.sin(away)) * value, axis=1)

    return function


def bending(theta, bend, base=(0.0, 0.0)):
    """A continuous function with kinks θ_k, where the slope grows by ``bend``_k."""
    theta, bend = np.atleast_1d(theta), np.atleast_1d(bend)

    def function(t):
        t = np.asarray(t)
        relu = np.maximum(0, np.sin(t[:, None] - theta)) @ bend
        return base[0] * np.cos(t) + base[1] * np.sin(t) + relu

    return function


def noisy(function, deviation, seed=0):
    """Add noise, another one each time."""
    rng = np.random.default_rng(seed)
    return lambda t: function(t) + deviation * rng.standard_normal(len(t))


def circle_kinks(measure, noise, most=100, far=1e9):
    """Search for the kinks of a piecewise sinusoid: affine along t = −cot θ, times √(1 + t²).

    Returns the kinks θ, and the noise that was found to be there.
    """

    def ask(t):
        y = yield from measure(np.arctan(t) + np.pi / 2)
        return (y * np.hypot(1.0, t))[:, None]

    search = KinkSearch(ask, 1.0, noise, most, True, scale=(1.0, 1.0), start=48, far=far)
    kinks = yield from search.run()
    theta = np.arctan(kinks.t) + np.pi / 2
    return theta[np.diff(theta, prepend=-1.0) > NARROWEST_NUMBERS], search.noise
