"""Kinks of a piecewise affine function R → R^m along a line, of numbers (m = 1) and of vectors.

A *piece* is what two values close to each other tell: a line in R^m between the outermost places
at which it was seen. Lines in R^m do not meet by accident. So two pieces that meet strictly
between the places where they were seen have one kink between them, where they meet, and no query
is needed. Else one value v is asked between pieces p and q, at t:

1. v is on p, or on q: that piece reaches to t.
2. α(v − p(t)) + β(v − q(t)) = q' − p' for some α, β > 0: there are two kinks, at t − 1/α and
   t + 1/β, and the piece between them is known from its one value (m ≥ 3).
3. Else a value close to t gives a piece, with two intervals beside it.

Numbers, and vectors whose jumps are parallel, do meet by accident. A *thorough* search asks on
either side of every kink, as near as the two pieces are told from each other: where both values
are on their pieces there is one kink; else the piece that shows there is searched for. This takes
about five values for each kink, a search that is not thorough about two.

A pair of values that straddles a kink is no piece: it meets both neighbours exactly at its own
ends. Such ones are left out, and the interval is searched again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

AskPlaces = Callable[[Array], Generator[Round, Answers, Array]]
"""Asks the function at places t (n,), one round: values (n, m)."""

# Places that are asked first are those of lines up to the power FARTHER of the inverse of the
# answers' relative error, in lengths: farther out errors are larger than what is looked for.
FARTHER = 0.5
# And no farther than so many lengths.
FAR = 1e6
# Width of a pair of values in its interval: this power of the answers' relative error, within these
# limits. Wider: more pairs straddle a kink. Narrower: slopes are less precise.
PAIR, LEAST_PAIR, MOST_PAIR = 0.25, 2e-3, 0.03
# Pieces agree, and meet, within so many of their errors; of coarse answers within fewer, as kinks
# that are close to each other hide in them.
# Of numbers within more, which looks make up for: they are rounded by more than is known of.
FINE, COARSE, NUMBERS = 8.0, 5.0, 12.0
# Limit on the rounds (30 to 50 are usual), on how often intervals beside pairs that straddled a
# kink are searched again, and on how often a thorough search looks at kinks that are new.
ROUNDS, RESTARTS, LOOKS = 200, 20, 60
# Unless a search is thorough two pieces meet only where both together are known to so many errors
# of a value. Less sharp: of coarse answers two kinks are taken for one. Sharper than 6: none is.
SHARP = 14.0
# Or where they were seen this close to each other, in places or lengths.
CLOSEST = 1e-4
# The slope of a piece of one value is known to this share of how much it turns from its neighbours:
# one that is known less well would take values beyond a kink for its own.
VAGUE = 0.1
# Vectors on pieces that are no farther apart, in places or lengths, must meet; numbers count as
# one kink there: float64 does not resolve it.
NARROWEST, NARROWEST_NUMBERS = 1e-13, 1e-9
# A thorough search looks where two pieces differ by so many times what they may be off by, but no
# farther than this share of the way to where they were seen. Smaller: two close kinks pass for
# one. Larger: more of them lie between.
APART, ROOM = 5.0, 0.3
# It looks once more, if pieces are known better then, where it did not look as near as this share
# of the way between the places where they were seen.
NEAR = 1e-3
# It looks inside a pair that meets another piece this close to its end, in widths of the pair.
WITHIN = 0.02
# It looks in the middle of an interval where values that were to be on either side of a kink left
# more than this share of it so many times: a piece of two close values meets another one anywhere.
HALVED, CREPT = 0.5, 2
# It reads a piece that was overlooked over this share of the way to its kinks, if one kink is on
# either side; where a kink was between, over this share of it.
OVERLOOKED, CLOSER = 0.5, 1 / 8
# Where so many more intervals are open than kinks were found, in less than this share of the line
# (by its angle), the noise of numbers is larger there than assumed, and is raised by this factor.
CROWD, CROWDED, LOUDER = 16, 0.01, 2.0
# Hyperplanes are taken to be no farther from 0 than this, times √d, is in the longest tokens: a
# line of random direction meets one typically at √d times its distance, and one in 120 lines at
# 100 times that. With 100 one in 2,000 networks was wrong without a word, with 30 one in 460.
ASLANT = 300.0
# Of so many kinks or more, jumps of three numbers or more that differ by less than this cosine from
# each to the next are those of a smooth function: 0.999 was seen of these, 0.4 of neurons.
MANY, NUMBERS_THAT_TURN, TURNS = 64, 3, 0.99
# Of too many kinks the function bends everywhere if fewer than this share are there at a look.
EVERYWHERE = 0.5


def farthest(noise: float) -> float:
    """Return how far out places are asked of answers with such a relative error, in lengths."""
    return float(min(FAR, noise**-FARTHER))


def aslant(dim: int) -> float:
    """Return how many times as far from 0 as its hyperplane a line meets a neuron, at most."""
    return ASLANT * float(np.sqrt(dim)) if dim > 1 else 1.0


class TooManyBreakpoints(ModelMismatch):
    """More breakpoints than were allowed.

    ``everywhere``: the function bends on most of the circle and has few breakpoints: it is smooth,
    or its values are too noisy.
    """

    def __init__(self, most: int, everywhere: bool = False) -> None:
        self.most, self.everywhere = most, everywhere
        reason = Reason.BENDS_EVERYWHERE if everywhere else Reason.MORE_KINKS
        super().__init__(str(reason.error(most=most)), reason=reason.name)


@dataclass(slots=True)
class Piece:
    """A piece: its value and slope at t, and the places between which it was seen."""

    t: float
    value: Array
    slope: Array
    error: float
    """Of the value (2-norm)."""
    slope_error: float
    low: float
    high: float
    ends: tuple[tuple[Array, float], tuple[Array, float]]
    """Values at ``low`` and ``high``, and their errors."""
    pair: bool = False
    """Whether nothing but two values says that it is a piece."""
    straddles: bool = False
    """Whether a kink was seen between them."""
    after: Piece | None = None
    """The next one, once values beside the kink between them were asked."""
    closer: float = 1.0
    """Shrinks where a pair after it straddled a kink."""
    looked: float = np.inf
    """How far from the kink after it values should have been asked, as it was known then."""
    crept: int = 0
    """How often values beside the kink after it were on one piece and hardly narrowed it down."""

    @classmethod
    def of_pair(cls, t: float, value: Array, other: float, second: Array, *errors: float) -> Self:
        """Read a piece off two values, of one error or one each."""
        own, its = errors[0], errors[-1]
        step = other - t
        slope, slope_error = (second - value) / step, (own + its) / abs(step)
        ends = (value, own), (second, its)
        low, high = min(t, other), max(t, other)
        if abs(other) < abs(t):
            t, value, own = other, second, its
        if step < 0:
            ends = ends[1], ends[0]
        return cls(t, value, slope, own, slope_error, low, high, ends, True)

    def at(self, t: float) -> Array:
        """Evaluate the piece."""
        return np.asarray(self.value + (t - self.t) * self.slope)

    def error_at(self, t: float) -> float:
        """Return what the piece may be off by."""
        return self.error + self.slope_error * abs(t - self.t)

    def extend(self, t: float, value: Array, error: float) -> None:
        """Take another value on the piece: the slope is read over the longest distance."""
        if t < self.low:
            self.low, self.ends = t, ((value, error), self.ends[1])
        elif t > self.high:
            self.high, self.ends = t, (self.ends[0], (value, error))
        self.pair = False
        (first, own), (last, other) = self.ends
        step = self.high - self.low
        if step and (own + other) / step < self.slope_error:
            self.slope, self.slope_error = (last - first) / step, (own + other) / step
            near = abs(self.low) < abs(self.high)
            self.t, (self.value, self.error) = (
                (self.low, self.ends[0]) if near else (self.high, self.ends[1])
            )

    def absorb(self, other: Self) -> None:
        """Take over what the next piece says, which is the same one."""
        if other.slope_error < self.slope_error:
            self.t, self.value, self.error = other.t, other.value, other.error
            self.slope, self.slope_error = other.slope, other.slope_error
        for t, (value, error) in zip((other.low, other.high), other.ends, strict=True):
            self.extend(t, value, error)
        self.after, self.closer, self.crept = other.after, other.closer, other.crept


@dataclass(frozen=True, slots=True)
class LineKinks:
    """What was found: kinks ascending, with the jumps of the slope, and pieces between them."""

    t: Array
    jumps: Array
    pieces: tuple[Piece, ...]

    def columns(self) -> tuple[Array, Array, Array]:
        """Return the directions of the jumps, what they are off by, and the jumps' sizes."""
        jumps = self.jumps.reshape(-1, len(self.pieces[0].value))
        size = np.linalg.norm(jumps, axis=1)
        slopes = np.array([piece.slope_error for piece in self.pieces])
        return jumps / size[:, None], np.hypot(slopes[1:], slopes[:-1]) / size, size

    @property
    def of_bends(self) -> bool:
        """Whether jumps turn step by step along the line, as the slope of a smooth function does.

        Those of neurons turn at once, or all of them have one direction.
        """
        jumps = self.jumps[np.any(self.jumps != 0, axis=1)]
        if len(jumps) < MANY or jumps.shape[1] < NUMBERS_THAT_TURN:
            return False
        columns = jumps / np.linalg.norm(jumps, axis=1, keepdims=True)
        half, count = len(jumps) // 2, len(jumps)
        next_ = np.median(np.sum(columns[1:] * columns[:-1], axis=1))
        far = np.median(np.abs(np.sum(columns[half:] * columns[: count - half], axis=1)))
        return bool(next_ > TURNS > far)


@dataclass(slots=True)
class KinkSearch:
    """A search for kinks along one line.

    Attributes
    ----------
    ask : AskPlaces
        Asks the function.
    length : float
        Typical distance of kinks from t = 0.
    noise : float
        Error of a value (2-norm) relative to its size.
    most : int
        More kinks are refused.
    thorough : bool
        Whether values are asked on both sides of every kink; of numbers they must be.
    least_slope : float
        Slope of the answers in other directions: places are rounded in these too.
    scale : tuple of float, optional
        Answers at t have about the size scale[0] + scale[1]·|t|; measured unless given.
    start : int
        Pieces asked for first, evenly in the angle arctan(t/length). Fewer: more rounds, and of
        numbers kinks that cancel are missed; more: more than one falls on a piece.
    far : float
        Places up to so many lengths are asked. A hyperplane that is nearly parallel to the line, or
        far away, is crossed far out.
    exact : float
        Of vectors pieces may meet where they are known to this share of a value.
    tight : float
        A pair straddled a kink if it meets its neighbours this close to its ends, in its widths.
    """

    ask: AskPlaces
    length: float
    noise: float
    most: int
    thorough: bool = False
    least_slope: float = 0.0
    scale: tuple[float, float] | None = field(default=None, kw_only=True)
    start: int = field(default=24, kw_only=True)
    far: float = field(default=FAR, kw_only=True)
    exact: float = field(default=1e-9, kw_only=True)
    tight: float = field(default=1e-3, kw_only=True)
    near: ClassVar[float] = NEAR
    size: float = field(default=0.0, init=False)
    steepness: float = field(default=0.0, init=False)

    def run(self) -> Generator[Round, Answers, LineKinks]:
        """Return all kinks.

        Raises
        ------
        TooManyBreakpoints
            There are more than ``most``.
        """
        pieces = yield from self._opened()
        for _ in range(LOOKS):
            pieces = yield from self._complete(pieces)
            more = yield from self._again(pieces)
            if more is None:
                break
            pieces = yield from self._closer([*pieces, *more])
        return self._concluded(pieces)

    def _closer(self, pieces: list[Piece]) -> Generator[Round, Answers, list[Piece]]:
        """Leave out pairs in which a kink was seen; read closer there, and at the line's ends."""
        first, *inner, last = sorted(pieces, key=lambda piece: piece.low)
        kept = [first]
        for piece in inner:
            if piece.straddles:
                kept[-1].closer *= CLOSER
                kept[-1].after = None
            else:
                kept.append(piece)
        kept.append(last)
        outer = (0, first, first.low, first.high), (-1, last, last.high, last.low)
        for i, piece, out, towards in outer:
            if piece.straddles:
                ends = np.array([[out, self._between(out, towards, CLOSER)]])
                [new] = yield from self._read(ends, [piece.ends[i][0]])
                kept[i] = new or piece
        return kept

    def _complete(self, pieces: list[Piece]) -> Generator[Round, Answers, list[Piece]]:
        """Search until no pair is left that straddled a kink."""
        for _ in range(RESTARTS):
            pieces = self._merged((yield from self._searched(pieces)))
            kept = self._without_straddling(pieces)
            # pieces that met may no longer, once they are known better
            if len(kept) == len(pieces) and not self._open_between(kept):
                break
            pieces = kept
        return pieces

    def _again(self, pieces: list[Piece]) -> Generator[Round, Answers, list[Piece] | None]:
        """Ask once more of what was found; return pieces that were overlooked, None if all is."""
        return (yield from self._looked_at(pieces)) if self.thorough else None

    def _looked_at(self, pieces: list[Piece]) -> Generator[Round, Answers, list[Piece] | None]:
        """Ask on both sides of every kink that is new; return pieces that show there."""
        looked: list[tuple[Piece, Piece, float, float]] = []
        for p, q in pairwise(pieces):
            if p.after is q:
                continue
            t = self._meeting(p, q)
            if t is None or self._narrow(p, q):
                p.after = q
                continue
            step = min(self._apart(p, q, t), ROOM * min(t - p.high, q.low - t))
            a, b = self._inside(p, t, -step), self._inside(q, t, step)
            if p.crept >= CREPT:
                middle = self._between(p.high, q.low, 0.5)
                a, b = (middle, b) if middle < t else (a, middle)
            looked.append((p, q, a, b))
        if self._too_many(0, pieces) and not looked:
            raise TooManyBreakpoints(self.most, everywhere=True)
        if not looked:
            return None
        values = yield from self.ask(np.array([[a, b] for *_, a, b in looked]).ravel())
        off: list[tuple[float, Array, float]] = []
        missed: list[tuple[Piece, Piece]] = []
        for (p, q, a, b), (left, right) in zip(
            looked, values.reshape(len(looked), 2, -1), strict=True
        ):
            on = self._on(p, a, left), self._on(q, b, right)
            if all(on):
                apart = self._apart(p, q, (a + b) / 2)
                # far from the kink others may hide: once pieces are known better it looks nearer
                if b - a <= self.near * (q.low - p.high) or apart > p.looked / 2:
                    p.after = q
                p.looked = apart
                self._extend(p, a, left)
                self._extend(q, b, right)
                continue
            missed.append((p, q))
            p.straddles |= a < p.high and not on[0]
            q.straddles |= b > q.low and not on[1]
            if p.straddles or q.straddles:
                continue
            room = q.low - p.high
            for t, value in ((a, left), (b, right)):
                if self._placed(p, q, t, value) is None:
                    off.append((t, value, self._overlooked(p, q, t, value)))
                    break
            else:
                p.crept = p.crept + 1 if q.low - p.high > HALVED * room else 0
        if self._too_many(len(missed), pieces):
            few = len(missed) > EVERYWHERE * len(looked)
            raise TooManyBreakpoints(self.most, everywhere=few)
        self._allow_for_noise(missed, pieces)
        return (yield from self._shown(off))

    def _shown(
        self, off: list[tuple[float, Array, float]]
    ) -> Generator[Round, Answers, list[Piece]]:
        """Read pieces at values that are on none, towards the places given."""
        if not off:
            return []
        ends = np.array([[t, u] for t, _, u in off])
        read = yield from self._read(ends, [value for _, value, _ in off])
        return [piece for piece in read if piece is not None]

    def _inside(self, piece: Piece, t: float, step: float) -> float:
        """Return where a piece is looked at beside t: inside of a pair that may straddle a kink."""
        if piece.pair:
            low, high, at = np.arctan(np.array([piece.low, piece.high, t + step]) / self.length)
            away = low - at if step > 0 else at - high
            if away <= WITHIN * (high - low):
                return self._between(piece.low, piece.high, 0.5)
        return t + step

    def _apart(self, p: Piece, q: Piece, t: float) -> float:
        """Return how far from their meeting two pieces are told from each other."""
        both = max(p.error_at(t), q.error_at(t)) + self.own_error(t)
        turn = _norm(q.slope - p.slope)
        return APART * self._errors * both / turn if turn else np.inf

    def _overlooked(self, p: Piece, q: Piece, t: float, value: Array) -> float:
        """Return where a piece is read that shows between two that seemed to meet.

        With one kink on either side that bend alike, these are away/turn from t at least.
        """
        aside = self._beside(p, q, t) - t
        turn = _norm(q.slope - p.slope)
        if turn:
            away = min(_norm(value - piece.at(t)) for piece in (p, q))
            aside = min(aside, p.closer * OVERLOOKED * away / turn)
        return t + aside

    def _read(
        self, ends: Array, values: Sequence[Array]
    ) -> Generator[Round, Answers, list[Piece | None]]:
        """Read a piece between two places (n, 2) each, the value at the first being known."""
        seconds = yield from self.ask(ends[:, 1])
        return [
            Piece.of_pair(t, value, u, second, self.own_error(t), self.own_error(u))
            if u != t
            else None
            for (t, u), value, second in zip(ends.tolist(), values, seconds, strict=True)
        ]

    # -- pieces

    def own_error(self, t: float) -> float:
        """Return what a value may be off by, but for a factor."""
        return self.noise * self._size(t)

    def _size(self, t: float) -> float:
        return self.size + self.steepness * abs(t)

    def _on(self, piece: Piece, t: float, value: Array) -> bool:
        miss = _norm(value - piece.at(t))
        return miss <= self._errors * (piece.error_at(t) + self.own_error(t))

    def _extend(self, piece: Piece, t: float, value: Array) -> None:
        piece.extend(t, value, self.own_error(t))

    def _opened(self) -> Generator[Round, Answers, list[Piece]]:
        far = self.far if self.scale else min(self.far, farthest(self.noise))
        edge = np.arctan(far)
        t = self.length * np.tan(np.linspace(-edge, edge, self.start))
        step = self._pair * np.maximum(np.abs(t), self.length) * np.where(t < 0, -1.0, 1.0)
        if self.scale:
            # inwards: at the ends a pair would be too narrow
            inner = np.linspace(-edge, edge, self.start)
            inner -= np.sign(inner) * self._pair * (inner[1] - inner[0])
            step = self.length * np.tan(inner) - t
        values = yield from self.ask(np.concatenate([t, t + step]))
        first, second = np.split(values, 2)
        slopes = (second - first) / step[:, None]
        if self.scale is not None:
            self.size, self.steepness = self.scale
        else:
            self.size = float(np.linalg.norm(first[np.argmin(np.abs(t))]))
            self.steepness = float(max(np.linalg.norm(slopes, axis=1)))
            if self.noise <= self.exact:  # else the answers' own rounding is far larger
                self.steepness = max(self.steepness, self.least_slope)
            self.size += self.steepness * self.length
        return [
            Piece.of_pair(a, x, b, y, self.own_error(a), self.own_error(b))
            for a, x, b, y in zip(t.tolist(), first, (t + step).tolist(), second, strict=True)
        ]

    @property
    def _errors(self) -> float:
        if self.scale is not None:
            return NUMBERS
        return COARSE if self.noise > self.exact else FINE

    @property
    def _pair(self) -> float:
        least = LEAST_PAIR if self.scale is None else MOST_PAIR
        return float(np.clip(self.noise**PAIR, least, MOST_PAIR))

    # -- intervals

    def _searched(self, pieces: list[Piece]) -> Generator[Round, Answers, list[Piece]]:
        """Search all intervals between pieces."""
        done = list(pieces)
        open_ = self._open_between(pieces)
        for _ in range(ROUNDS):
            if not open_ or self._stops(open_, done):
                break
            middles = np.array([self._between(p.high, q.low, 0.5) for p, q in open_])
            values = yield from self.ask(middles)
            pairs: list[tuple[Piece, Piece, float, Array]] = []
            again: list[tuple[Piece, Piece]] = []
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

    def _stops(self, open_: list[tuple[Piece, Piece]], pieces: list[Piece]) -> bool:
        """Tell whether intervals are left to looks; raise where these would not tell either."""
        if not self._too_many(len(open_), pieces):
            return False
        if len(pieces[0].value) == 1:
            return True  # looks tell kinks from what bends everywhere
        raise TooManyBreakpoints(self.most, everywhere=True)

    def _too_many(self, open_: int, pieces: list[Piece]) -> bool:
        return max(open_, len(pieces) / 2) > self.most + self.start

    def _allow_for_noise(self, missed: list[tuple[Piece, Piece]], pieces: list[Piece]) -> None:
        """Assume more noise where kinks that are none crowd."""
        found = sum(piece.after is not None for piece in pieces)
        if len(missed) <= CROWD + found:
            return
        ends = np.array([(p.high, q.low) for p, q in missed]) / self.length
        if float(np.sum(np.diff(np.arctan(ends)))) < CROWDED * np.pi:
            self.noise *= LOUDER
            for piece in pieces:
                piece.error, piece.slope_error = LOUDER * piece.error, LOUDER * piece.slope_error
                first, last = ((value, LOUDER * error) for value, error in piece.ends)
                piece.ends = first, last

    def _open_between(self, pieces: list[Piece]) -> list[tuple[Piece, Piece]]:
        """Return neighbours that neither agree nor meet once."""
        between = [
            (p, q)
            for p, q in pairwise(pieces)
            if p.after is not q and not self._same(p, q) and self._meeting(p, q) is None
        ]
        for p, q in between:
            if self._narrow(p, q):
                raise Reason.ANSWERS_JUMP.error(place=q.low)
        return between

    def _narrow(self, p: Piece, q: Piece) -> bool:
        """Tell whether two pieces are as close to each other as places are resolved."""
        least = NARROWEST if len(p.value) > 1 else NARROWEST_NUMBERS
        return q.low - p.high <= least * max(abs(q.low), self.length)

    def _between(self, t: float, end: float, share: float) -> float:
        """Return the place a share of the way from t to an end, in angles."""
        low, high = np.arctan(t / self.length), np.arctan(end / self.length)
        return float(self.length * np.tan(low + share * (high - low)))

    def _beside(self, p: Piece, q: Piece, t: float) -> float:
        return t + p.closer * self._pair * min(t - p.high, q.low - t)

    def _same(self, p: Piece, q: Piece) -> bool:
        """Tell whether two pieces are one: also at their far ends, for they may meet between."""
        same = COARSE if self.scale is None else NUMBERS
        places = (q.t, q, p), (p.t, p, q), (q.high, q, p), (p.low, p, q)
        for t, piece, other in places:
            miss = _norm(piece.at(t) - other.at(t))
            if miss > same * (other.error_at(t) + self.own_error(t)):
                return False
        return True

    def _meeting(self, p: Piece, q: Piece) -> float | None:
        """Return where two pieces meet between the places where they were seen, if they do."""
        middle = (p.high + q.low) / 2
        one = middle if len(p.value) == 1 and self._narrow(p, q) else None
        apart, turn = q.at(middle) - p.at(middle), q.slope - p.slope
        square = float(turn @ turn)
        if not square:
            return one
        t = middle - float(apart @ turn) / square
        both = p.error_at(t) + q.error_at(t)
        known = max(SHARP * self.own_error(t), self.exact * self._size(t))
        far_apart = q.low - p.high > CLOSEST * max(abs(t), self.length)
        if both > known and far_apart and not self.thorough:
            return one
        error = self._errors * both
        slack = error / np.sqrt(square)
        if not p.high - slack <= t <= q.low + slack:
            return one
        if len(turn) > 1 and float(np.linalg.norm(apart + (t - middle) * turn)) > error:
            return None
        return min(max(t, p.high), q.low)

    def _placed(self, p: Piece, q: Piece, t: float, value: Array) -> Piece | None:
        """Return the piece that a value is on: p, q, or the one between their two kinks."""
        for piece in (p, q):
            if self._on(piece, t, value):
                self._extend(piece, t, value)
                return piece
        return None if self.thorough else self._between_kinks(p, q, t, value)

    def _between_kinks(self, p: Piece, q: Piece, t: float, value: Array) -> Piece | None:
        """Return the piece that a value is on between one kink with p and one with q."""
        if len(value) < 3:
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
        if errors > VAGUE * width * min(_norm(P) * share[0], _norm(Q) * share[1]):
            return None
        slope, end = p.slope + share[0] * P, (value, self.own_error(t))
        return Piece(t, value, slope, end[1], errors / width, t, t, (end, end))

    # -- the end

    def _without_straddling(self, pieces: list[Piece]) -> list[Piece]:
        """Leave out pairs that meet both neighbours at their own ends."""
        kept = pieces[:1]
        for piece, after in pairwise(pieces[1:]):
            if piece.pair:
                tight = self.tight * (piece.high - piece.low)
                left, right = self._meeting(kept[-1], piece), self._meeting(piece, after)
                straddles = left is not None and piece.low - left < tight
                if straddles and right is not None and right - piece.high < tight:
                    continue
            kept.append(piece)
        return [*kept, *pieces[len(pieces) - 1 :]] if len(pieces) > 1 else pieces

    def _merged(self, pieces: list[Piece]) -> list[Piece]:
        """Join neighbours that are one piece."""
        merged = [pieces[0]]
        for piece in pieces[1:]:
            last = merged[-1]
            if last.after is piece or not self._same(last, piece):
                merged.append(piece)
            else:
                last.absorb(piece)
        return merged

    def _concluded(self, pieces: list[Piece]) -> LineKinks:
        merged = self._merged(pieces)
        t = [self._meeting(p, q) for p, q in pairwise(merged)]
        if len(merged[0].value) == 1:
            # what is between two pieces that do not meet counts as one kink
            ends = [(p.high + q.low) / 2 for p, q in pairwise(merged)]
            t = [middle if place is None else place for place, middle in zip(t, ends, strict=True)]
        places = np.array([np.nan if place is None else place for place in t])
        if len(places) > self.most or np.any(np.isnan(places)):
            raise TooManyBreakpoints(self.most)
        places = np.maximum.accumulate(places)  # pieces that are made of noise may overlap
        slopes = np.array([piece.slope for piece in merged])
        kinks = LineKinks(places, np.diff(slopes, axis=0), tuple(merged))
        if kinks.of_bends:
            raise TooManyBreakpoints(self.most, everywhere=True)
        return kinks


def _norm(x: Array) -> float:
    return abs(float(x[0])) if len(x) == 1 else float(np.linalg.norm(x))
