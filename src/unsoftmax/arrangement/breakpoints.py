"""Kinks of F along half a great circle, which crosses every hyperplane through 0 once.

On X(θ) = cosθ·P + sinθ·Q and between two kinks F is one *line*: v·cos(θ−t) + s·sin(θ−t),
kept relative to a point t near by (coefficients of cosθ, sinθ would lose a factor ε/dl).
An interval knows the line at either end, from two answers at a distance dl. Where the two
lines agree it is empty; where they cross inside, and answers at the crossing and then as close
beside it as tells the lines apart are on the lines, that is its only kink; else it is split,
into three where the answers around the cut bend. All intervals ask in the same round: 9 to 11
queries per kink.

An angle is rounded too, which counts where F is steep.

Known from measurements: without renewing the lines of narrow intervals wrong ones recurse to
depth 30. Two close kinks of opposite sign have their lines cross outside them: seen from farther
away they pass for one, in every fourth search among 512 kinks. A cut at such a crossing, or at a
kink whose interval has others too, loses kinks unless what is around it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import ModelMismatch
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers

Flags = NDArray[np.bool_]
Measure = Callable[[Array], Generator[Round, Answers, Array]]

START = 32
_SHIFTED = 0.31
"""Intervals at first."""
_PAIR = 0.02  # distance of the two answers that give a line, in widths of the interval
_RENEW = 0.1  # a line from answers farther apart than this is asked anew
_TOLERANCE = 10.0  # deviations of a line's error by which answers may miss it
_MARGIN = 1e-4  # crossings closer to an end than this are not believed
_BESIDE = 1e-3  # of the interval: distance of the two answers on either side of a cut, at least
_ROOM = 0.3  # of the distance to the nearer end, at most
_TOLD = 5.0  # times the tolerance: lines so far apart are told from each other
_NARROW = 1e-9  # float64 does not separate kinks closer than this
# So many intervals in so small a share of the circle are noise that is larger there.
_MANY, _SMALL, _LOUDER = 64, 0.01, 2.0
_EVERYWHERE = 0.5
_ROUNDS = 120  # 30 halvings to the narrowest, with lines renewed and crossings seen twice, and some


@dataclass(slots=True)
class _Intervals:
    """Intervals [low, high] with the value, slope and base of the lines at both ends."""

    low: Array
    high: Array
    vl: Array
    sl: Array
    dl: Array
    vr: Array
    sr: Array
    dr: Array
    forced: Array
    """1 where an answer is not on the lines: cut next, wherever they cross."""
    at: Array
    """The answer where the lines cross; not a number before it is asked."""

    def take(self, mask: Flags) -> _Intervals:
        return _Intervals(*(getattr(self, f.name)[mask] for f in fields(self)))

    @classmethod
    def joined(cls, parts: list[_Intervals]) -> _Intervals:
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    def left(self, t: Array) -> Array:
        return np.asarray(self.vl * np.cos(t - self.low) + self.sl * np.sin(t - self.low))

    def right(self, t: Array) -> Array:
        return np.asarray(self.vr * np.cos(t - self.high) + self.sr * np.sin(t - self.high))

    def left_error(self, t: Array, noise: float) -> Array:
        own = noise + np.spacing(self.high) * np.abs(self.sl)
        return np.asarray(own * (1.5 + 2 * np.abs(t - self.low) / self.dl))

    def right_error(self, t: Array, noise: float) -> Array:
        own = noise + np.spacing(self.high) * np.abs(self.sr)
        return np.asarray(own * (1.5 + 2 * np.abs(t - self.high) / self.dr))

    def renew(self, left: Flags, near_left: Array, right: Flags, near_right: Array) -> None:
        """Draw lines anew from the ends and answers near them."""
        h = _PAIR * (self.high - self.low)
        self.sl[left] = slope(self.vl[left], near_left, h[left])
        self.sr[right] = slope(self.vr[right], near_right, -h[right])
        self.dl[left], self.dr[right] = h[left], h[right]

    def __len__(self) -> int:
        return len(self.low)


def slope(first: Array, second: Array, h: Array) -> Array:
    """Return a line's slope at the first of two points h apart."""
    return np.asarray((second - first * np.cos(h)) / np.sin(h))


def find_kinks(
    measure: Measure,
    low: float,
    high: float,
    noise: float,
    most: int,
    rng: np.random.Generator,
) -> Generator[Round, Answers, tuple[Array, float]]:
    """Return the kinks θ in (low, high), ascending, and the noise that was found to be there.

    Parameters
    ----------
    measure : generator function
        Asks F at X(θ) for many θ, one round.
    noise : float
        Standard deviation of an answer's error.
    most : int
        Kinks at most.

    Raises
    ------
    ModelMismatch
        There are more, or so many that the function is not piecewise linear.
    """
    state = yield from _opened(measure, low, high)
    found: list[Array] = []
    for _ in range(_ROUNDS):
        if not len(state):
            break
        count = sum(len(part) for part in found)
        # every interval but one in two, the other half of its parent, holds a kink
        covered = float(np.sum(state.high - state.low)) / (high - low)
        if count > most or len(state) > 2 * (most + START):
            raise _too_many(count, len(state), covered, most)
        if covered < _SMALL and len(state) > _MANY + count:
            noise *= _LOUDER
        state, kinks = yield from _round(state, measure, noise, rng)
        found.append(kinks)
    # what is left after so many rounds is as good as narrow
    found.append((state.low + state.high) / 2)
    kinks = np.sort(np.concatenate(found))
    if len(kinks) > most:
        raise _too_many(len(kinks), 0, 0.0, most)
    return _merged(kinks), noise


def _opened(measure: Measure, low: float, high: float) -> Generator[Round, Answers, _Intervals]:
    ends = np.linspace(low, high, START + 1)
    # kinks at 0 lie half-way in one dimension: no interval may end there
    ends[1:-1] += _SHIFTED * (ends[1] - ends[0])
    first, last = ends[:-1], ends[1:]
    h = _PAIR * (last - first)
    F = yield from measure(np.concatenate([ends, first + h, last - h]))
    vl, vr, sl = F[:START], F[1 : START + 1], slope(F[:START], F[START + 1 : 2 * START + 1], h)
    sr = slope(vr, F[2 * START + 1 :], -h)
    return _Intervals(
        first, last, vl, sl, h, vr, sr, h.copy(), np.zeros(START), np.full(START, np.nan)
    )


def _round(
    now: _Intervals, measure: Measure, noise: float, rng: np.random.Generator
) -> Generator[Round, Answers, tuple[_Intervals, Array]]:
    """One round of questions for every interval; returns those left, and the kinks found."""
    w = now.high - now.low
    dv, ds = now.right(now.low) - now.vl, _slope_at_left(now) - now.sl
    crossing = now.low + np.mod(np.arctan2(-dv, ds), np.pi)
    inside = (crossing > now.low + _MARGIN * w) & (crossing < now.high - _MARGIN * w)

    narrow = w < _NARROW
    kinks = [np.where(inside, crossing, (now.low + now.high) / 2)[narrow]]
    old_left, old_right = (now.dl > _RENEW * w) & ~narrow, (now.dr > _RENEW * w) & ~narrow
    ready = ~(narrow | old_left | old_right)
    agree = np.abs(dv) < _TOLERANCE * (now.right_error(now.low, noise) + noise)
    agree &= np.abs(now.vr - now.left(now.high)) < _TOLERANCE * (
        now.left_error(now.high, noise) + noise
    )
    empty = ready & agree & (now.forced == 0)
    rest = ready & ~empty

    # how far from the crossing the lines are told from each other
    size = np.maximum(np.hypot(dv, ds), np.finfo(float).tiny)
    error = np.maximum(now.left_error(crossing, noise), now.right_error(crossing, noise))
    with np.errstate(over="ignore", invalid="ignore"):
        told = _TOLD * _TOLERANCE * error / size
    room = _ROOM * np.minimum(crossing - now.low, now.high - crossing)
    tried = rest & inside & (now.forced == 0)
    asked = tried & ~np.isnan(now.at)
    on_line = asked & (
        np.abs(now.at - now.left(crossing)) < _TOLERANCE * now.left_error(crossing, noise)
    )
    split = rest & (~tried | (asked & ~on_line))
    beside = split | on_line

    share = rng.uniform(0.35, 0.65, len(w))
    c = np.where(tried, crossing, now.low + share * w)
    step = np.where(tried, np.minimum(np.maximum(_BESIDE * w, told), room), _PAIR * w)
    step = np.where(on_line, np.minimum(told, room), step)
    first = (rest & ~tried) | (tried & ~asked)

    sets = [
        (now.low + _PAIR * w)[old_left],
        (now.high - _PAIR * w)[old_right],
        c[empty],
        c[first],
        (c - step)[beside],
        (c + step)[beside],
    ]
    F = yield from measure(np.concatenate(sets))
    near_left, near_right, between, at, before, after = np.split(
        F, np.cumsum([len(part) for part in sets])[:-1]
    )

    now.renew(old_left, near_left, old_right, near_right)
    now.at[first] = at
    waiting = old_left | old_right | (tried & ~asked)
    off = np.abs(between - now.left(c)[empty]) > (
        _TOLERANCE * (now.left_error(c, noise) + noise)[empty]
    )
    sure = np.zeros(len(w), dtype=bool)
    sure[beside] = _beside(now.take(beside), c[beside], step[beside], before, after, noise)
    sure &= on_line
    doubted = on_line & ~sure
    doubted[np.flatnonzero(empty)[off]] = True
    now.forced[doubted], now.at[doubted] = 1.0, np.nan
    kinks.append(c[sure])

    cut = split[beside]
    halves = _halves(now.take(split), c[split], step[split], before[cut], after[cut], noise)
    return _Intervals.joined([now.take(waiting | doubted), *halves]), np.concatenate(kinks)


def _beside(
    now: _Intervals, c: Array, step: Array, before: Array, after: Array, noise: float
) -> Flags:
    """Tell whether answers before and after c are on the left and on the right line."""
    left = np.abs(before - now.left(c - step)) < _TOLERANCE * now.left_error(c - step, noise)
    right = np.abs(after - now.right(c + step)) < _TOLERANCE * now.right_error(c + step, noise)
    return np.asarray(left & right)


def _halves(
    part: _Intervals, c: Array, step: Array, before: Array, after: Array, noise: float
) -> list[_Intervals]:
    """Split intervals at c; where the three answers there are on no line, leave out its middle."""
    at, none, unasked = part.at, np.zeros(len(c)), np.full(len(c), np.nan)
    sr, sl = slope(at, before, -step), slope(at, after, step)
    lefts = _Intervals(part.low, c, part.vl, part.sl, part.dl, at, sr, step, none, unasked)
    rights = _Intervals(c, part.high, at, sl, step, part.vr, part.sr, part.dr, none, unasked)
    own = noise + np.spacing(c) * np.maximum(np.abs(sr), np.abs(sl))
    # √6 deviations of an answer are one of this difference
    bent = np.abs(before + after - 2 * np.cos(step) * at) > np.sqrt(6) * _TOLERANCE * own
    # lines from answers with a kink between them are asked anew
    old = np.full(len(c), np.inf)
    thirds = (
        _Intervals(part.low, c - step, part.vl, part.sl, part.dl, before, sr, old, none, unasked),
        _Intervals(c - step, c + step, before, sr, old, after, sl, old, none, unasked),
        _Intervals(c + step, part.high, after, sl, old, part.vr, part.sr, part.dr, none, unasked),
    )
    return [half.take(~bent) for half in (lefts, rights)] + [third.take(bent) for third in thirds]


def _slope_at_left(now: _Intervals) -> Array:
    t = now.low - now.high
    return np.asarray(-now.vr * np.sin(t) + now.sr * np.cos(t))


def _merged(kinks: Array) -> Array:
    """Leave one of kinks that are as good as one."""
    if not len(kinks):
        return kinks
    return np.asarray(kinks[np.concatenate([[True], np.diff(kinks) > _NARROW])])


def _too_many(count: int, left: int, covered: float, most: int) -> ModelMismatch:
    if covered > _EVERYWHERE and count < left * _EVERYWHERE:
        return ModelMismatch(
            "Along a line the answers bend everywhere and have no kinks: the target is smooth "
            "(GELU, tanh, attention), no ReLU network of one hidden layer, or its answers are too "
            "noisy to tell."
        )
    return ModelMismatch(
        f"Along one line the answers have more than {most} kinks: the target has more neurons "
        "(raise max_neurons), is no ReLU network of one hidden layer, or its answers are too "
        "noisy to tell kinks from noise."
    )
