"""Kinks along a line where only directions of the values are known: about 2.7 for each.

Behind a norm an answer is λp(t) with an unknown λ > 0, p piecewise affine. A piece spans a plane,
and three directions w₀, w₁, w₂ at evenly spaced places on one piece tell it but for one factor:

    λ₀w₀ − 2λ₁w₁ + λ₂w₂ = 0,        solvable only if no kink is between.

Two pieces p and q meet where σq(t) = p(t): outside of the plane of p this is one equation for t,
linear, and then σ > 0 is what brings both to one scale. One direction w at t between them is
on the piece between two kinks if w = a p(0) + b p'(0) + c q(0) + d q'(0): kinks are at b/a and d/c,
and ratios tell the scale of q (four columns: answers of six numbers or more tell).
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from unsoftmax.arrangement.kinks import KinkSearch, LineKinks, Piece, TooManyBreakpoints, farthest
from unsoftmax.errors import ModelMismatch
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# Errors of directions that the search allows for, in measured ones. They are alike where directions
# are near each other; a norm that is off adds others farther apart. Of random layers of 5 to 8
# dimensions 10 were too few, 50 left one spurious piece in 20, which FAINT joins.
ERRORS = 50.0
# Width of three places in half their interval. Wider: more have a kink between, and cost two
# queries again. Narrower: slopes are less precise by its square.
WIDE = 0.02
# Widths of three places that a kink was between, taken again, and how often.
NARROWER, TRIES = 0.1, 6
# Jumps of this share of the slope are none.
FAINT = 1e-10
# Error of a slope, in those of a direction, from which on a piece is read at two more places. Less:
# 0.2 queries per neuron more for ten times less.
BLUNT = 1e11
# Where they are: this share of the way from where it was seen to its kinks.
TOWARDS = 0.9
# Of so many pieces that are read again more than this share are none any more: the function bends
# everywhere. Of a ReLU layer hardly any is one that was taken for another.
MANY, BENT = 32, 0.5
# Directions jump between two pieces where they turn so many times as fast as in these. Where so
# many intervals, and half of those that are open, are jumps, the function is not continuous. A
# single one may be two large neurons that nearly cancel.
STEEP, JUMPS = 1e4, 2
# Where a thorough search looks: this share of the way from a kink to where the pieces were seen.
ASIDE = 0.05


class JumpsEverywhere(ModelMismatch):
    """Answers jump at most places where they are not affine: along another line, too."""


@dataclass(slots=True)
class DirectionPiece(Piece):
    """A piece but for a positive factor, with what it was read off."""

    points: list[tuple[float, Array]] = field(default_factory=list)
    """Places with directions of norm 1."""
    tilt_error: float = np.inf
    """Of the slope, outside of the plane that the piece spans. In it, it is ``slope_error``: only
    the angle between directions tells it."""

    sharpened: bool = False
    """Whether values at its ends were asked."""

    def tilt_at(self, t: float) -> float:
        """Return what the piece may be off by outside of its plane."""
        return self.error + self.tilt_error * abs(t - self.t)

    def turned(self, t: float) -> float:
        """Return how fast the piece moves across its own direction."""
        return float(np.linalg.norm(self.across(t))) or float(np.finfo(float).tiny)

    def tilted(self, direction: Array) -> float:
        """Return what a direction in the piece's plane may be off by outside of it."""
        size = self.turned(self.t)
        return abs(float(self.across(self.t) @ direction)) / size * self.tilt_error / size

    def across(self, t: float) -> Array:
        """Return the part of the slope across what the piece is at t."""
        at = self.at(t)
        return np.asarray(self.slope - at * float(self.slope @ at) / float(at @ at))

    def beside(self, x: Array) -> tuple[Array, Array]:
        """Divide a vector into a part in the piece's plane and one outside."""
        basis = np.linalg.qr(np.column_stack([self.value, self.slope]))[0]
        inside = basis @ (basis.T @ x)
        return inside, x - inside

    def refitted(self, noise: float) -> None:
        """Read the piece off its outermost points and the one that is most between them."""
        if len(self.points) < 3:
            return
        self.points.sort(key=lambda point: point[0])
        w = np.array([direction for _, direction in self.points])
        ways = [np.linalg.norm(w - end, axis=1) for end in (w[0], w[-1])]
        between = 1 + int(np.argmax(np.minimum(*ways)[1:-1]))
        chosen = [0, between, len(w) - 1]
        t = np.array([self.points[i][0] for i in chosen])
        read = affine_of_directions(t, w[chosen], noise)
        if read is None:
            return
        here, there = (
            piece.slope_error / float(np.linalg.norm(piece.slope)) for piece in (read, self)
        )
        if here < there:
            self.t, self.value, self.slope = read.t, read.value, read.slope
            self.error, self.slope_error = read.error, read.slope_error
            self.tilt_error = read.tilt_error


def affine_of_directions(t: Array, w: Array, noise: float) -> DirectionPiece | None:
    """Read a piece off directions (3, m) at three places, ascending; its value at the middle is w₁.

    None where scales come out negative.
    """
    share = (t[1] - t[0]) / (t[2] - t[0])
    ends = np.column_stack([(1 - share) * w[0], share * w[2]])
    (first, last), *_ = np.linalg.lstsq(ends, w[1], rcond=None)
    if not (first > 0 and last > 0):
        return None
    values = np.array([first * w[0], w[1], last * w[2]])
    slope = (values[2] - values[0]) / (t[2] - t[0])
    # directions fix scales by their angles only
    angle = min(float(np.linalg.norm(w[1] - end)) for end in (w[0], w[2]))
    sizes = np.array([first, 1.0, last])
    tilt = 2 * noise * (first + last) / float(t[2] - t[0])
    at = int(np.argmin(sizes))
    return DirectionPiece(
        float(t[at]),
        values[at],
        slope,
        noise * float(sizes[at]),
        tilt * (1 + 1 / max(angle, noise)),
        float(t[0]),
        float(t[2]),
        ((values[0], noise), (values[2], noise)),
        points=list(zip(t.tolist(), w, strict=True)),
        tilt_error=tilt,
    )


@dataclass(slots=True)
class DirectionKinkSearch(KinkSearch):
    """A search for kinks along one line, of directions (n, m) of norm 1."""

    near: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        self.noise *= ERRORS

    def _opened(self) -> Generator[Round, Answers, list[Piece]]:
        edge = np.arctan(min(self.far, farthest(self.noise)))
        t = self.length * np.tan(np.linspace(-edge, edge, self.start))
        ends = np.maximum(np.abs(t), self.length) * np.where(t < 0, -1.0, 1.0)
        values = yield from self.ask(t)
        places = np.column_stack([t, t + self._pair * ends])
        read = yield from self._read(places, list(values))
        return sorted((p for p in read if p is not None), key=lambda piece: piece.low)

    @property
    def _pair(self) -> float:
        return WIDE

    def _read(
        self, ends: Array, values: Sequence[Array]
    ) -> Generator[Round, Answers, list[Piece | None]]:
        """Ask two more directions each, closer where a kink is between."""
        found: list[Piece | None] = [None] * len(ends)
        left, step = np.arange(len(ends)), ends[:, 1] - ends[:, 0]
        for _ in range(TRIES):
            if not len(left):
                break
            t = ends[left, :1] + step[left, None] * np.array([0.5, 1.0])
            w = (yield from self.ask(t.ravel())).reshape(len(left), 2, -1)
            for i, places, more in zip(left.tolist(), t, w, strict=True):
                places, all_ = np.append(ends[i, 0], places), np.vstack([values[i], more])
                order = np.argsort(places)
                found[i] = self._piece(places[order], all_[order])
            left = np.array([i for i in left.tolist() if found[i] is None], dtype=np.intp)
            step = step * NARROWER
        return found

    def _piece(self, t: Array, w: Array) -> DirectionPiece | None:
        if not np.all(np.diff(t) > 0):
            return None
        piece = affine_of_directions(t, w, self.noise)
        if piece is None:
            return None
        # the middle one must be in the plane of the others
        share = (t[1] - t[0]) / (t[2] - t[0])
        ends = np.column_stack([(1 - share) * w[0], share * w[2]])
        both, *_ = np.linalg.lstsq(ends, w[1], rcond=None)
        miss = float(np.linalg.norm(ends @ both - w[1]))
        return piece if miss <= self._errors * 3 * self.noise else None

    def _again(self, pieces: list[Piece]) -> Generator[Round, Answers, list[Piece] | None]:
        """Read pieces again whose factors are known by small angles alone."""
        blunt: list[tuple[Piece, float, float]] = []
        meetings = [None, *(self._meeting(p, q) for p, q in pairwise(pieces)), None]
        for piece, before, after in zip(pieces, meetings[:-1], meetings[1:], strict=True):
            assert isinstance(piece, DirectionPiece)
            if piece.sharpened or piece.slope_error < BLUNT * self.noise * piece.turned(piece.t):
                continue
            piece.sharpened = True
            for seen, end in ((piece.low, before), (piece.high, after)):
                if end is not None and end != seen:
                    blunt.append((piece, self._between(seen, end, TOWARDS), end))
        more: list[Piece] | None = None
        if blunt:
            off = []
            values = yield from self.ask(np.array([t for _, t, _ in blunt]))
            for (piece, t, end), value in zip(blunt, values, strict=True):
                if self._on(piece, t, value):
                    self._extend(piece, t, value)
                else:
                    off.append((t, value, t + self._pair * (end - t)))
            if len(blunt) >= MANY and len(off) > BENT * len(blunt):
                raise TooManyBreakpoints(self.most, everywhere=True)
            more = yield from self._shown(off)
        if self.thorough:
            others = yield from self._looked_at(pieces)
            more = others if more is None else [*more, *(others or [])]
        return more

    def _apart(self, p: Piece, q: Piece, t: float) -> float:
        return ASIDE * min(t - p.high, q.low - t)

    def _overlooked(self, p: Piece, q: Piece, t: float, value: Array) -> float:
        return self._beside(p, q, t)

    # -- comparisons, all in the unit of the first piece

    def _on(self, piece: Piece, t: float, value: Array) -> bool:
        assert isinstance(piece, DirectionPiece)
        inside, outside = piece.beside(value)
        if float(np.linalg.norm(outside)) > self._errors * (self.noise + piece.tilted(value)):
            return False
        at = piece.at(t)
        own = piece.error_at(t) + self.noise * float(np.linalg.norm(at))
        if self._errors * own > float(np.linalg.norm(at)) / 2:
            return True  # which direction of its plane is at t is not known
        size = float(inside @ at) / float(inside @ inside)
        return size > 0 and float(np.linalg.norm(size * inside - at)) <= self._errors * own

    def _extend(self, piece: Piece, t: float, value: Array) -> None:
        assert isinstance(piece, DirectionPiece)
        piece.points.append((t, value))
        piece.low, piece.high = min(piece.low, t), max(piece.high, t)
        piece.refitted(self.noise)

    def _scaled(self, piece: Piece, factor: float) -> DirectionPiece:
        assert isinstance(piece, DirectionPiece)
        scaled = ("value", "slope", "error", "slope_error", "tilt_error")
        return replace(piece, **{name: factor * getattr(piece, name) for name in scaled})

    def _same(self, p: Piece, q: Piece) -> bool:
        return self._on(p, q.t, q.value / np.linalg.norm(q.value)) and self._on(
            q, p.t, p.value / np.linalg.norm(p.value)
        )

    def _alike(self, p: Piece, q: Piece) -> bool:
        """Tell whether two pieces span one plane but for jumps too small to be seen."""
        assert isinstance(p, DirectionPiece)
        assert isinstance(q, DirectionPiece)
        base, other = (p, q) if p.tilt_error < q.tilt_error else (q, p)
        at, across = other.at(other.t), other.across(other.t)
        outside = float(np.linalg.norm(base.beside(across)[1]))
        apart = float(np.linalg.norm(base.beside(at)[1]))
        reach = FAINT * float(np.linalg.norm(across))
        return outside <= reach and apart <= reach * abs(other.t - base.t)

    def _stops(self, open_: list[tuple[Piece, Piece]], pieces: list[Piece]) -> bool:
        jumps = [q.low for p, q in open_ if self._steep(p, q)]
        if len(jumps) >= max(JUMPS, len(open_) / 2):
            raise Reason.ANSWERS_JUMP.error(kind=JumpsEverywhere, place=jumps[0])
        return super(DirectionKinkSearch, self)._stops(open_, pieces)

    def _steep(self, p: Piece, q: Piece) -> bool:
        """Tell whether directions jump between two pieces, places being angles of the line."""
        assert isinstance(p, DirectionPiece)
        assert isinstance(q, DirectionPiece)
        ends, rate = [], 0.0
        for piece, t in ((p, p.high), (q, q.low)):
            at = piece.at(t)
            size = float(np.linalg.norm(at))
            ends.append(at / size)
            rate += piece.turned(t) / size * (self.length + t * t / self.length)
        low, high = np.arctan(np.array([p.high, q.low]) / self.length)
        return float(np.linalg.norm(ends[1] - ends[0])) > STEEP * rate * float(high - low)

    def _met(self, p: Piece, q: Piece) -> tuple[float, float] | None:
        """Return where σq meets p between where they were seen, and σ."""
        assert isinstance(p, DirectionPiece)
        assert isinstance(q, DirectionPiece)
        middle = (p.high + q.low) / 2
        base, other = (q, p) if p.slope_error > q.slope_error else (p, q)
        _, apart = base.beside(other.at(middle))
        _, turn = base.beside(other.slope)
        square = float(turn @ turn)
        if not square:
            return None
        t = middle - float(apart @ turn) / square
        one, two = base.at(t), other.at(t)
        inside, outside = base.beside(two)
        length = float(inside @ inside)
        factor = float(inside @ one) / length if length else 0.0
        if not factor > 0:
            return None
        tilts = base.tilt_at(t) + factor * other.tilt_at(t)
        if tilts > self.exact * float(np.linalg.norm(one)):
            return None
        if factor * float(np.linalg.norm(outside)) > self._errors * tilts:
            return None
        both = base.error_at(t) + factor * other.error_at(t)
        if float(np.linalg.norm(one - factor * inside)) > self._errors * both:
            return None
        place, off = self._sharper(base, other, t, inside)
        slack = self._errors * (off + tilts / (factor * np.sqrt(square)))
        if not p.high - slack <= place <= q.low + slack:
            return None
        return float(np.clip(place, p.high, q.low)), factor if base is p else 1 / factor

    def _sharper(
        self, base: DirectionPiece, other: DirectionPiece, t: float, common: Array
    ) -> tuple[float, float]:
        """Return the place of a common direction on the piece that tells it best, and its error."""
        basis = np.linalg.qr(np.column_stack([base.at(t), base.slope]))[0]
        one, slope, seen = basis.T @ base.at(t), basis.T @ base.slope, basis.T @ common
        # (one + s·slope) ∥ seen
        s = -(one[0] * seen[1] - one[1] * seen[0]) / (slope[0] * seen[1] - slope[1] * seen[0])
        mine, its = (piece.turned(t) for piece in (base, other))
        errors = base.error_at(t) / mine, other.error_at(t) / its
        return (t + float(s), errors[0]) if errors[0] < errors[1] else (t, errors[1])

    def _meeting(self, p: Piece, q: Piece) -> float | None:
        met = self._met(p, q)
        return None if met is None else met[0]

    def _between_kinks(self, p: Piece, q: Piece, t: float, value: Array) -> Piece | None:
        if len(value) < 5:
            return None
        half = (q.low - p.high) / 2
        columns = [p.at(t), half * p.slope, q.at(t), half * q.slope]
        sizes = [float(np.linalg.norm(column)) for column in columns]
        if not all(sizes):
            return None
        parts, *_ = np.linalg.lstsq(np.column_stack(columns) / sizes, value, rcond=1e-15)
        a, b, c, d = parts / sizes
        if not (a > 0 and c > 0):
            return None
        left, right = t + half * b / a, t + half * d / c
        if not p.high <= left < t < right <= q.low:
            return None
        miss = float(np.linalg.norm(np.column_stack(columns) @ [a, b, c, d] - value))
        width = min(t - left, right - t)
        assert isinstance(p, DirectionPiece)
        assert isinstance(q, DirectionPiece)
        tilt = a * p.tilt_at(left) + c * q.tilt_at(right) + self.noise
        own = a * p.error_at(left) + c * q.error_at(right) + self.noise
        if miss > self._errors * tilt or tilt > self.exact:
            return None
        # value = a p(left) + c q(right), so that a piece through both has the scale of value
        share = (right - t) / (right - left)
        one, two = a / share * p.at(left), c / (1 - share) * q.at(right)
        slope = (two - one) / (right - left)
        points = [(t, value)]
        return DirectionPiece(
            t,
            value,
            slope,
            self.noise,
            2 * own / width,
            t,
            t,
            ((value, self.noise), (value, self.noise)),
            points=points,
            tilt_error=2 * tilt / width,
        )

    # -- the end

    def _without_straddling(self, pieces: list[Piece]) -> list[Piece]:
        """Nothing: three places show a kink between them."""
        return pieces

    def _merged(self, pieces: list[Piece]) -> list[Piece]:
        if not pieces:  # no two places are alike: the answers bend, or change, everywhere
            raise TooManyBreakpoints(self.most, everywhere=True)
        merged = [pieces[0]]
        for piece in pieces[1:]:
            last = merged[-1]
            if last.after is piece or not (self._same(last, piece) or self._alike(last, piece)):
                merged.append(piece)
                continue
            assert isinstance(last, DirectionPiece)
            assert isinstance(piece, DirectionPiece)
            better, other = (
                (last, piece) if last.slope_error <= piece.slope_error else (piece, last)
            )
            better.points += other.points
            better.after = piece.after
            better.low, better.high = min(last.low, piece.low), max(last.high, piece.high)
            better.refitted(self.noise)
            merged[-1] = better
        return merged

    def _concluded(self, pieces: list[Piece]) -> LineKinks:
        """Bring all pieces to the scale of the first."""
        merged = self._merged(pieces)
        if len(merged) > self.most + 1:
            raise TooManyBreakpoints(self.most)
        scaled, t = [self._scaled(merged[0], 1.0)], []
        for p, q in pairwise(merged):
            met = self._met(p, q)
            if met is None:
                raise TooManyBreakpoints(self.most)
            t.append(met[0])
            now = float(np.linalg.norm(scaled[-1].at(met[0])) / np.linalg.norm(q.at(met[0])))
            scaled.append(self._scaled(q, now))
        for piece in scaled:
            piece.error /= ERRORS
            piece.slope_error /= ERRORS
        slopes = np.array([piece.slope for piece in scaled])
        return LineKinks(np.array(t), np.diff(slopes, axis=0), tuple(scaled))
