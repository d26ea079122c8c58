"""Kinks of a continuous piecewise sinusoid F on half a great circle: 9 to 11 values each.

Two adjacent lines (pieces between kinks) cross at their kink. In each round every interval asks
what its state says (`unsoftmax.arrangement.kink_states`): is empty, is one kink, is split where
the lines cross or near its middle, or stays with what it learned. A split is in two, the three
values around the cut giving both new lines; where these three bend there is a kink among them,
and the split is in three: one that leaves out what is around the cut loses kinks there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.arrangement.breakpoints import (
    AskAngles,
    TooManyBreakpoints,
    refine,
)
from unsoftmax.arrangement.kink_lines import EndLines, KinkIntervals, KinkTuning
from unsoftmax.arrangement.kink_states import (
    AT_THE_CUT,
    SPLIT,
    KinkAnswers,
    KinkQuestions,
    KinkState,
)
from unsoftmax.arrangement.pieces import Pieces, slope
from unsoftmax.probes import Array, Flags, Round
from unsoftmax.protocol import Answers


def find_kinks(
    search: KinkSearch, low: float, high: float
) -> Generator[Round, Answers, tuple[Array, float]]:
    """Return the kinks θ in (low, high), ascending, and the noise that was found to be there.

    Raises
    ------
    TooManyBreakpoints
        There are more than ``search.most``, or so many that the function is no piecewise sinusoid.
    """
    first = yield from _opened(search, low, high)
    left = yield from refine(first, search, search.tuning.rounds)
    search.found.append((left.low + left.high) / 2)
    kinks = np.sort(np.concatenate(search.found))
    if len(kinks) > search.most:
        raise TooManyBreakpoints(search.most)
    if len(kinks):
        kinks = kinks[np.append(True, np.diff(kinks) > search.tuning.narrowest)]
    return kinks, search.noise


@dataclass(slots=True)
class KinkSearch:
    """A search for kinks along one circle; a `Cutting` of `KinkIntervals`."""

    measure: AskAngles
    noise: float
    """Standard deviation of a value's error; raised where it turns out to be larger."""
    most: int
    """More kinks are refused."""
    rng: np.random.Generator
    tuning: KinkTuning = field(default=KinkTuning(), kw_only=True)
    found: list[Array] = field(default_factory=list, init=False)
    """Kinks, as they were found in each round."""
    arc: float = field(default=np.pi, init=False)
    """Length of the arc that is searched."""

    def unfinished(self, now: KinkIntervals) -> Flags:
        """Tell which intervals are asked: all that are left."""
        return np.ones(len(now), dtype=bool)

    def cut(self, now: KinkIntervals, chosen: Flags) -> Generator[Round, Answers, KinkIntervals]:
        """Ask inside all intervals, keep the kinks that are found, return what is left."""
        self._check_crowding(now)
        share = self.rng.uniform(*self.tuning.inside, len(now))
        left, right = (
            EndLines.of(now, rows, self.noise, self.tuning) for rows in (now.left, now.right)
        )
        seen = KinkQuestions.of(now, left, right, share)
        answers = yield from seen.asked(self.measure)
        for stale, rows, near, turn in (
            (seen.stale_left, now.left, answers.near_left, seen.pair),
            (seen.stale_right, now.right, answers.near_right, -seen.pair),
        ):
            now.pieces.reread(rows[stale], near[stale], turn[stale])
        now = now.changed(value=np.where(seen.are(*AT_THE_CUT), answers.at, now.value))
        kept = self._judged(now, seen, answers)
        return KinkIntervals.joined([kept, *self._split(now, seen, answers)])

    def _check_crowding(self, now: KinkIntervals) -> None:
        """Refuse too many intervals; assume more noise where they crowd."""
        tuning, count = self.tuning, sum(len(part) for part in self.found)
        # of the two halves of an interval at least one holds a kink: at most twice as many as kinks
        covered = float(np.sum(now.width)) / self.arc
        if count > self.most or len(now) > 2 * (self.most + tuning.start):
            few = count < len(now) * tuning.everywhere
            raise TooManyBreakpoints(self.most, everywhere=few and covered > tuning.everywhere)
        if covered < tuning.crowded and len(now) > tuning.crowd + count:
            self.noise *= tuning.noise_growth

    def _judged(
        self, now: KinkIntervals, seen: KinkQuestions, answers: KinkAnswers
    ) -> KinkIntervals:
        """Keep the kinks that the values confirm; return the intervals that stay as they are."""
        off = ~seen.left.meets(seen.cut, answers.inside)
        both = seen.left.matches(seen.cut - seen.step, answers.before)
        both &= seen.right.matches(seen.cut + seen.step, answers.after)
        touching = seen.are(KinkState.TOUCHING)
        self.found.append(seen.cut[seen.are(KinkState.NARROW) | (touching & both)])
        doubted = (touching & ~both) | (seen.are(KinkState.EMPTY) & off)
        now = now.changed(doubted=now.doubted | doubted, value=np.where(doubted, np.nan, now.value))
        return now.take(seen.are(KinkState.STALE, KinkState.CROSSING) | doubted)

    def _split(
        self, now: KinkIntervals, seen: KinkQuestions, answers: KinkAnswers
    ) -> list[KinkIntervals]:
        """Split intervals in two at the cut, or in three where the values there are on no line."""
        split = seen.are(*SPLIT)
        if not np.any(split):
            return []
        part, c, step = now.take(split), seen.cut[split], seen.step[split]
        at, before, after = part.value, answers.before[split], answers.after[split]
        falling, rising = slope(at, before, -step), slope(at, after, step)
        own = self.noise + np.spacing(c) * np.maximum(np.abs(falling), np.abs(rising))
        # √6 deviations of a value are one of this difference
        bend = np.abs(before + after - 2 * np.cos(step) * at)
        bent = bend > np.sqrt(6) * self.tuning.deviations * own
        part = part.changed(doubted=np.zeros(len(c), dtype=bool), value=np.full(len(c), np.nan))

        add, two = part.pieces.add, ~bent
        halves = part.take(two).split(
            c[two],
            add(c[two], at[two], falling[two], step[two]),
            add(c[two], at[two], rising[two], step[two]),
        )
        if not np.any(bent):
            return [*halves]
        # lines from values with a kink between them are asked anew
        old = np.full(int(np.sum(bent)), np.inf)
        first, last = (c - step)[bent], (c + step)[bent]
        low = first, before[bent], falling[bent], old
        high = last, after[bent], rising[bent], old
        third, rest = part.take(bent).split(first, add(*low), add(*low))
        return [*halves, third, *rest.split(last, add(*high), add(*high))]


def _opened(
    search: KinkSearch, low: float, high: float
) -> Generator[Round, Answers, KinkIntervals]:
    """Divide the arc, with a line at both ends of each interval."""
    tuning, n = search.tuning, search.tuning.start
    search.arc = high - low
    ends = np.linspace(low, high, n + 1)
    ends[1:-1] += tuning.shifted * (ends[1] - ends[0])
    first, last = ends[:-1], ends[1:]
    h = tuning.pair * (last - first)
    y = yield from search.measure(np.concatenate([ends, first + h, last - h]))
    at, near_left, near_right = np.split(y, [n + 1, 2 * n + 1])
    pieces = Pieces.none()
    left = pieces.add(first, at[:-1], slope(at[:-1], near_left, h), h)
    right = pieces.add(last, at[1:], slope(at[1:], near_right, -h), h)
    return KinkIntervals.fresh(pieces, first, last, left, right)
