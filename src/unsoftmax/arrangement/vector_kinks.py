"""Kinks of a piecewise affine function R → R^m along a line: about two values for each.

Where answers are vectors, lines in R^m do not meet by accident. So two pieces (affine between
kinks) that meet strictly between the places where they were read have one kink between them, where
they meet, and no query is needed. Else one value v is asked between pieces p and q, at t:

1. v is on p, or on q: that piece reaches to t.
2. α(v − p(t)) + β(v − q(t)) = q' − p' for some α, β > 0: there are two kinks, at t − 1/α and
   t + 1/β, and the piece between them is known from its one value (m ≥ 3).
3. Else a value close to t gives a piece, with two intervals beside it.

A pair of values that straddles a kink is no piece: it meets both neighbours exactly at its own
ends. Such ones are left out, and the interval is searched again. Pieces whose jumps are parallel
do meet by accident. A thorough search asks for a value on either side of every kink: there such
pieces show, and are searched again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

import numpy as np

from unsoftmax.arrangement.breakpoints import TooManyBreakpoints
from unsoftmax.errors import ModelMismatch
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers

AskPlaces = Callable[[Array], Generator[Round, Answers, Array]]
"""Asks the function at places t (n,), one round: values (n, m)."""


@dataclass(frozen=True, slots=True)
class VectorKinkTuning:
    """How kinks along a line are searched for."""

    start: int = 24
    """Pieces asked for first, evenly in the angle arctan(t/length). Fewer: more rounds; more: more
    than one falls on a piece."""
    far: float = 1e6
    farther: float = 0.5
    """Places up to so many lengths are asked, or this power of the inverse of the answers' relative
    error: farther out errors are larger than what is looked for. A neuron whose hyperplane is
    nearly parallel to the line, or far away, is crossed far out."""
    pair: float = 0.25
    least_pair: float = 2e-3
    most_pair: float = 0.03
    """Width of a pair of values in its interval: this power of the answers' relative error, within
    these limits. Wider: more pairs straddle a kink. Narrower: slopes are less precise."""
    fine: float = 8.0
    errors: float = 5.0
    """Pieces agree, and meet, within so many of their errors; of coarse answers within fewer, as
    kinks that are close to each other hide in them."""
    rounds: int = 200
    """Limit on the rounds. 30 to 50 are usual."""
    restarts: int = 20
    """How often intervals beside pairs that straddled a kink are searched again."""
    looks: int = 60
    """Limit on how often a thorough search looks at kinks that are new."""
    sharp: float = 14.0
    exact: float = 1e-9
    """Two pieces meet only where both together are known to so many errors of a value, or to this
    share of its size. Less sharp: of coarse answers two kinks are taken for one. Sharper than 6:
    no piece ever is."""
    closest: float = 1e-4
    """Or where they were seen this close to each other, in places or lengths."""
    narrowest: float = 1e-13
    """Pieces that are no farther apart, in places or lengths, must meet."""
    aside: float = 0.05
    """Where it looks: this share of the way to where the pieces were seen."""
    tight: float = 1e-3
    """A pair straddled a kink if it meets its neighbours this close to its ends, in its widths."""


@dataclass(slots=True)
class VectorPiece:
    """A piece: its value and slope at t, and the places between which it was seen."""

    t: float
    value: Array
    slope: Array
    error: float
    """Of the value (2-norm)."""
    slope_error: float
    low: float
    high: float
    pair: bool = False
    """Whether nothing but two values says that it is a piece."""
    met: float = np.nan
    """Where it meets the next one, once values were asked there."""

    @classmethod
    def of_pair(cls, t: float, value: Array, other: float, second: Array, error: float) -> Self:
        """Read a piece off two values."""
        step = other - t
        slope, slope_error = (second - value) / step, 2 * error / abs(step)
        return cls(t, value, slope, error, slope_error, min(t, other), max(t, other), True)

    def at(self, t: float) -> Array:
        """Evaluate the piece."""
        return np.asarray(self.value + (t - self.t) * self.slope)

    def error_at(self, t: float) -> float:
        """Return what the piece may be off by."""
        return self.error + self.slope_error * abs(t - self.t)

    def extend(self, t: float, value: Array, error: float) -> None:
        """Take another value on the piece: the slope is read over the longest distance."""
        step = t - self.t
        if step and (error + self.error) / abs(step) < self.slope_error:
            self.slope = (value - self.value) / step
            self.slope_error = (error + self.error) / abs(step)
        self.low, self.high = min(self.low, t), max(self.high, t)
        self.pair = False


@dataclass(frozen=True, slots=True)
class LineKinks:
    """What was found: kinks ascending, with the jumps of the slope, and pieces between them."""

    t: Array
    jumps: Array
    pieces: tuple[VectorPiece, ...]


@dataclass(slots=True)
class VectorKinkSearch:
    """A search for kinks along one line."""

    ask: AskPlaces
    length: float
    """Typical distance of kinks from t = 0."""
    noise: float
    """Error of a value (2-norm) relative to its size."""
    most: int
    """More kinks are refused."""
    thorough: bool = False
    """Whether values are asked on both sides of every kink."""
    least_slope: float = 0.0
    """Slope of the answers in other directions: places are rounded in these too."""
    tuning: VectorKinkTuning = field(default=VectorKinkTuning(), kw_only=True)
    size: float = field(default=0.0, init=False)
    steepness: float = field(default=0.0, init=False)
    """Answers at t have about the size ``size + steepness·|t|``."""

    def run(self) -> Generator[Round, Answers, LineKinks]:
        """Return all kinks.

        Raises
        ------
        TooManyBreakpoints
            There are more than ``most``.
        """
        pieces = yield from self._opened()
        for _ in range(self.tuning.looks):
            pieces = yield from self._complete(pieces)
            more = yield from self._again(pieces)
            if not more:
                break
            pieces = sorted([*pieces, *more], key=lambda piece: piece.low)
        return self._concluded(pieces)

    def _again(self, pieces: list[VectorPiece]) -> Generator[Round, Answers, list[VectorPiece]]:
        """Ask once more of what was found; return pieces that were overlooked."""
        return (yield from self._looked_at(pieces)) if self.thorough else []

    def _complete(self, pieces: list[VectorPiece]) -> Generator[Round, Answers, list[VectorPiece]]:
        """Search until no pair is left that straddled a kink."""
        for _ in range(self.tuning.restarts):
            pieces = self._merged((yield from self._searched(pieces)))
            kept = self._without_straddling(pieces)
            # pieces that met may no longer, once they are known better
            if len(kept) == len(pieces) and not self._open_between(kept):
                break
            pieces = kept
        return pieces

    def _looked_at(self, pieces: list[VectorPiece]) -> Generator[Round, Answers, list[VectorPiece]]:
        """Ask on both sides of every kink that is new; return pieces that show there."""
        aside = self.tuning.aside
        looked: list[tuple[VectorPiece, float, float]] = []
        for p, q in pairwise(pieces):
            t = self._meeting(p, q)
            if t is None or t == p.met:
                continue
            p.met = t
            for piece, end in ((p, p.high), (q, q.low)):
                looked.append((piece, self._between(t, end, aside), end))
        if not looked:
            return []
        values = yield from self.ask(np.array([t for _, t, _ in looked]))
        off = [
            (t, value, t + self._pair * (end - t))
            for (piece, t, end), value in zip(looked, values, strict=True)
            if not self._on(piece, t, value)
        ]
        return (yield from self._overlooked(off))

    def _overlooked(
        self, off: list[tuple[float, Array, float]]
    ) -> Generator[Round, Answers, list[VectorPiece]]:
        """Read pieces at values that are on none, towards the places given."""
        if not off:
            return []
        ends = np.array([[t, u] for t, _, u in off])
        read = yield from self._read(ends, [value for _, value, _ in off])
        return [piece for piece in read if piece is not None]

    def _read(
        self, ends: Array, values: list[Array]
    ) -> Generator[Round, Answers, list[VectorPiece | None]]:
        """Read a piece between two places (n, 2) each, the value at the first being known."""
        seconds = yield from self.ask(ends[:, 1])
        return [
            VectorPiece.of_pair(float(t), value, float(u), second, self.own_error(float(u)))
            if u != t
            else None
            for (t, u), value, second in zip(ends, values, seconds, strict=True)
        ]

    # -- pieces

    def own_error(self, t: float) -> float:
        """Return what a value may be off by, but for a factor."""
        return self.noise * self._size(t)

    def _size(self, t: float) -> float:
        return self.size + self.steepness * abs(t)

    def _on(self, piece: VectorPiece, t: float, value: Array) -> bool:
        miss = float(np.linalg.norm(value - piece.at(t)))
        return miss <= self._errors * (piece.error_at(t) + self.own_error(t))

    def _opened(self) -> Generator[Round, Answers, list[VectorPiece]]:
        tuning = self.tuning
        edge = np.arctan(min(tuning.far, self.noise**-tuning.farther))
        inner = np.linspace(-edge, edge, tuning.start)
        t = self.length * np.tan(inner)
        step = self._pair * np.maximum(np.abs(t), self.length) * np.where(t < 0, -1.0, 1.0)
        values = yield from self.ask(np.concatenate([t, t + step]))
        first, second = np.split(values, 2)
        slopes = (second - first) / step[:, None]
        middle = np.argmin(np.abs(t))
        self.size = float(np.linalg.norm(first[middle]))
        self.steepness = float(max(np.linalg.norm(slopes, axis=1)))
        if self.noise <= tuning.exact:  # else the answers' own rounding is far larger
            self.steepness = max(self.steepness, self.least_slope)
        self.size += self.steepness * self.length
        return [
            VectorPiece.of_pair(float(a), x, float(a + h), y, self.own_error(float(a + h)))
            for a, x, h, y in zip(t, first, step, second, strict=True)
        ]

    @property
    def _errors(self) -> float:
        return self.tuning.errors if self.noise > self.tuning.exact else self.tuning.fine

    @property
    def _pair(self) -> float:
        tuning = self.tuning
        return float(np.clip(self.noise**tuning.pair, tuning.least_pair, tuning.most_pair))

    # -- intervals

    def _searched(self, pieces: list[VectorPiece]) -> Generator[Round, Answers, list[VectorPiece]]:
        """Search all intervals between pieces."""
        done: list[VectorPiece] = list(pieces)
        open_ = self._open_between(pieces)
        for _ in range(self.tuning.rounds):
            if not open_:
                break
            if max(len(open_), len(done) / 2) > self.most + self.tuning.start:
                raise TooManyBreakpoints(self.most, everywhere=True)
            middles = np.array([self._middle(p, q) for p, q in open_])
            values = yield from self.ask(middles)
            pairs: list[tuple[VectorPiece, VectorPiece, float, Array]] = []
            again: list[tuple[VectorPiece, VectorPiece]] = []
            for (p, q), t, value in zip(open_, middles.tolist(), values, strict=True):
                new = self._placed(p, q, t, value)
                if new is None:
                    pairs.append((p, q, t, value))
                elif new is p or new is q:
                    again += self._open_between([p, q])
                else:
                    done.append(new)
            if pairs:
                ends = np.array([[t, self._beside(p, q, t)] for p, q, t, _ in pairs])
                read = yield from self._read(ends, [value for *_, value in pairs])
                for (p, q, *_), new in zip(pairs, read, strict=True):
                    if new is not None:
                        done.append(new)
                        again += self._open_between([p, new, q])
            open_ = again
        return sorted(done, key=lambda piece: piece.low)

    def _open_between(self, pieces: list[VectorPiece]) -> list[tuple[VectorPiece, VectorPiece]]:
        """Return neighbours that neither agree nor meet once."""
        between = [
            (p, q)
            for p, q in pairwise(pieces)
            if not self._same(p, q) and self._meeting(p, q) is None
        ]
        for p, q in between:
            if q.low - p.high <= self.tuning.narrowest * max(abs(q.low), self.length):
                raise ModelMismatch(
                    f"Along a line the answers jump: pieces on both sides of {q.low:.6g} do not "
                    "meet. The target is not continuous, or its answers are coarser than they look."
                )
        return between

    def _middle(self, p: VectorPiece, q: VectorPiece) -> float:
        return self._between(p.high, q.low, 0.5)

    def _between(self, t: float, end: float, share: float) -> float:
        """Return the place a share of the way from t to an end, in angles."""
        low, high = np.arctan(t / self.length), np.arctan(end / self.length)
        return float(self.length * np.tan(low + share * (high - low)))

    def _beside(self, p: VectorPiece, q: VectorPiece, t: float) -> float:
        return t + self._pair * min(t - p.high, q.low - t)

    def _same(self, p: VectorPiece, q: VectorPiece) -> bool:
        """Tell whether two pieces are one."""
        tuning = self.tuning
        for t, piece, other in ((q.t, q, p), (p.t, p, q)):
            miss = float(np.linalg.norm(piece.value - other.at(t)))
            if miss > tuning.errors * (other.error_at(t) + self.own_error(t)):
                return False
        return True

    def _meeting(self, p: VectorPiece, q: VectorPiece) -> float | None:
        """Return where two pieces meet between the places where they were seen, if they do."""
        middle = (p.high + q.low) / 2
        apart, turn = q.at(middle) - p.at(middle), q.slope - p.slope
        square = float(turn @ turn)
        if not square:
            return None
        t = middle - float(apart @ turn) / square
        both = p.error_at(t) + q.error_at(t)
        known = max(self.tuning.sharp * self.own_error(t), self.tuning.exact * self._size(t))
        if both > known and q.low - p.high > self.tuning.closest * max(abs(t), self.length):
            return None
        error = self._errors * both
        slack = error / np.sqrt(square)
        if not p.high - slack <= t <= q.low + slack:
            return None
        if float(np.linalg.norm(apart + (t - middle) * turn)) > error:
            return None
        return float(np.clip(t, p.high, q.low))

    def _placed(self, p: VectorPiece, q: VectorPiece, t: float, value: Array) -> VectorPiece | None:
        """Return the piece that a value is on: p, q, or the one between their two kinks."""
        for piece in (p, q):
            if self._on(piece, t, value):
                piece.extend(t, value, self.own_error(t))
                return piece
        if self.thorough or len(value) < 3:
            return None
        P, Q, turn = value - p.at(t), value - q.at(t), q.slope - p.slope
        share, *_ = np.linalg.lstsq(np.column_stack([P, Q]), turn, rcond=None)
        if not np.all(share > 0):
            return None
        left, right = t - 1 / share[0], t + 1 / share[1]
        errors = p.error_at(t) + q.error_at(t) + self.own_error(t)
        width = min(t - left, right - t)
        miss = float(np.linalg.norm(turn - P * share[0] - Q * share[1])) * width
        if miss > self._errors * errors:
            return None
        if left < p.high or right > q.low:
            return None
        slope, own = p.slope + share[0] * P, self.own_error(t)
        return VectorPiece(t, value, slope, own, errors / width, t, t)

    # -- the end

    def _without_straddling(self, pieces: list[VectorPiece]) -> list[VectorPiece]:
        """Leave out pairs that meet both neighbours at their own ends."""
        kept = pieces[:1]
        for piece, after in pairwise(pieces[1:]):
            width = piece.high - piece.low
            left, right = self._meeting(kept[-1], piece), self._meeting(piece, after)
            if piece.pair and left is not None and right is not None:
                tight = self.tuning.tight * width
                if piece.low - left < tight and right - piece.high < tight:
                    continue
            kept.append(piece)
        return [*kept, *pieces[len(pieces) - 1 :]] if len(pieces) > 1 else pieces

    def _merged(self, pieces: list[VectorPiece]) -> list[VectorPiece]:
        """Join neighbours that are one piece."""
        merged = [pieces[0]]
        for piece in pieces[1:]:
            last = merged[-1]
            if not self._same(last, piece):
                merged.append(piece)
                continue
            low, high = min(last.low, piece.low), max(last.high, piece.high)
            better, other = (
                (last, piece) if last.slope_error <= piece.slope_error else (piece, last)
            )
            better.extend(other.t, other.value, other.error)
            better.low, better.high = low, high
            merged[-1] = better
        return merged

    def _concluded(self, pieces: list[VectorPiece]) -> LineKinks:
        merged = self._merged(pieces)
        t = [self._meeting(p, q) for p, q in pairwise(merged)]
        places = np.array([np.nan if place is None else place for place in t])
        if len(places) > self.most or np.any(np.isnan(places)):
            raise TooManyBreakpoints(self.most)
        slopes = np.array([piece.slope for piece in merged])
        return LineKinks(places, np.diff(slopes, axis=0), tuple(merged))
