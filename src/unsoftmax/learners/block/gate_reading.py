"""Every head's map M_h beside far query tokens, whose keys lie on a sphere: offset by offset.

Normalised query tokens b and keys b + a are all of length √d. Let S be s coordinates, B the span
of their unit vectors after the norm, f a direction in B, e one outside, and a = (L cos ω) f +
(L sin ω) e. All b = −β f + γ F t in B, F the rest of B, |t| = 1, β = L/(2 cos ω), have b + a on the
sphere as well, and logits a·(W_h b + w_h) are affine in t. So with m copies of b + a and k of b,

    z = Σ_h σ(α_h + β_h·t + log m/k) M_h a

is H soft gates times H vectors, in the d − s coordinates that S does not hide. One fit of all α, β
at once (variable projection: the vectors follow by least squares) finds them from anywhere at the
first offset, and from the first one's at most others, which differ from it by a small turn: e runs
through a simplex, and f turns to the rest of B. Their vectors span the ranges of maps, which part
the answers of those that are left. k offsets give M_h in k directions, the others of which follow
by least squares.

Once vectors of 3r/2 offsets show ranges of rank r, s + 4 far tokens are enough for each of the
others: within its range a head has s unknowns of its gate, and r of its vector.

Queries: about 2(H + s + 8) for the first offset, (k − s)(H + s + 3) with the same far tokens, and
2(s − 1)(H + s + 3) with others; k = d − 1 after a LayerNorm, d after an RMSNorm. By ranges, where
that is less: (3r/2)(2H + s + 3) + (k + s − 3r/2)(s + 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unsoftmax.learners.attention_layer.soft_gate_reading import CopiedAnswers
from unsoftmax.learners.block.far_tokens import FarTokens, asked_copies
from unsoftmax.learners.block.gated_fit import fitted
from unsoftmax.learners.block.offset_fits import SPARE, GatedMaps, Offset, OffsetFits, enough, gated
from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Array, Indices, Purpose
from unsoftmax.refusals import Reason, RefusalError
from unsoftmax.theory.costs import Cost
from unsoftmax.theory.counts import hidden_coordinates

# Copies of b + a and of b, in turn. Logits move by 3.5 at most.
_COPIES = np.array([(1, 1), (1, 32), (32, 1), (1, 4), (8, 1), (1, 8), (4, 1)])
# Length of the first offset relative to √d; where gates are hard, this share of it next.
_LENGTH, _SHORTER, _LENGTHS = 0.9, 0.25, 6
# Logits with a larger root mean square leave gates so hard that vectors lose digits; offsets are
# made so long that it is the second number.
_HARD, _SOFT = 3.5, 2.0
# Tangent of the angle between offsets and the directions in which maps are read. Larger: smaller
# errors of M; smaller: gates at one offset are nearer to those at another.
_TURN = 0.15
# Query tokens of the first offset at first, ...
_FIRST = 12
# Offsets that show ranges, for each of their dimensions: with as few as these have, errors of
# vectors are ten times as large in ranges.
_SHOWING = 1.5
# Starts of the first fit.
_STARTS = 200
# How often offsets whose gates were not found are asked again beside as many tokens more.
_AGAIN = 2


MOST_TOKENS = int(_COPIES.sum(axis=1).max())


def cost(dim: int, heads: int) -> Cost:
    """Bound the reading of maps of so many heads: every length with far tokens of its own."""
    s = hidden_coordinates(dim)
    beside = heads + s + SPARE
    first = 2 * max(_FIRST, 2 * s + 4, 2 * beside)
    others = 2 * (1 + _AGAIN) * dim * beside
    rounds = _LENGTHS * (2 + int(np.log2(beside))) + 3 * (1 + _AGAIN)
    return Cost.of(_LENGTHS * first + others, tokens=MOST_TOKENS, rounds=rounds)


class Plane(NamedTuple):
    """Coordinates S, and what far tokens of these are made of."""

    hidden: Indices
    """S, (s,)."""
    frame: Array
    """(k, d): orthonormal rows, the first s of which are in B."""
    sparse: Array
    """(s, d): tokens of S that the norm's mean leaves these s rows of."""
    t: Array
    """(T, s − 1): unit vectors, in the order in which they are used."""

    @classmethod
    def drawn(cls, tokens: FarTokens, rng: np.random.Generator) -> Plane:
        """Draw them."""
        d, k = tokens.dim, tokens.rank
        s = hidden_coordinates(d)
        hidden = np.sort(rng.permutation(d)[:s])
        units = tokens.within(np.eye(d)[hidden])
        turned = np.linalg.qr(rng.standard_normal((s, s)))[0]
        own = turned @ np.linalg.qr(units.T)[0].T
        others = tokens.within(rng.standard_normal((k - s, d)))
        frame = np.linalg.qr(np.vstack([own, others]).T)[0].T
        sparse = np.zeros((s, d))
        sparse[:, hidden] = np.linalg.lstsq(units.T, frame[:s].T, rcond=None)[0].T
        return cls(hidden, frame, sparse, np.zeros((0, s - 1)))

    def longer(self, count: int, rng: np.random.Generator) -> Plane:
        """Draw t until there are so many, on both sides in turn: of one coordinate there are two.

        As copies are of an odd number of kinds, every kind comes on both sides.
        """
        more = rng.standard_normal((count - len(self.t), self.t.shape[1]))
        side = (-1.0) ** np.arange(len(self.t), count)
        more[:, 0] = side * np.abs(more[:, 0])
        more /= np.linalg.norm(more, axis=1, keepdims=True)
        return self._replace(t=np.vstack([self.t, more]))


@dataclass(frozen=True, slots=True)
class GateReading:
    """What maps are read with."""

    tokens: FarTokens
    most: int
    """Heads at most."""
    rng: np.random.Generator

    def run(self) -> Asking[GatedMaps]:
        """Find the heads beside one offset, then read them beside all others."""
        plane = Plane.drawn(self.tokens, self.rng)
        length = _LENGTH * self.tokens.radius
        refusal = None
        for _ in range(_LENGTHS):
            try:
                plane, base = yield from self._base(plane, length)
            except _Unfound as error:
                refusal, length = refusal or error.refusal, _SHORTER * length
                continue
            logits = float(np.sqrt(np.max(np.mean(base.found.theta**2, axis=1))))
            if logits <= _HARD:
                return (yield from self._others(plane, length, base))
            length *= _SOFT / logits
        assert refusal is not None
        raise refusal

    @property
    def fits(self) -> OffsetFits:
        """What gates are fitted with."""
        return OffsetFits(self.tokens.noise, self.rng)

    # -- the first offset

    def _base(self, plane: Plane, length: float) -> Asking[tuple[Plane, Offset]]:
        """Ask one offset until there are more tokens than heads and coordinates."""
        q, turned = len(plane.sparse), (np.eye(len(plane.sparse)), self._simplex(plane)[0])
        count, answers = max(_FIRST, 2 * q + 4), None
        while True:
            if len(plane.t) < count:
                plane = plane.longer(count, self.rng)
            use = np.arange(0 if answers is None else len(answers.y), count)
            [fresh] = yield from self._asked(plane, length, [turned], use, "heads")
            answers = fresh if answers is None else answers.joined(fresh)
            singular = np.linalg.svd(answers.y, compute_uv=False)
            heads = int(np.count_nonzero(singular > self.fits.noise_of(answers)))
            if not heads:
                # closed beside all of these tokens
                raise _Unfound(Reason.NO_MODERATE_WEIGHTS.error())
            if heads > self.most:
                raise Reason.MORE_HEADS.error(heads=f"{heads} or more", most=self.most)
            if heads >= answers.y.shape[1]:
                # far tokens of the others hide one coordinate of these
                raise Reason.BLOCK_HEADS_FILL.error(heads=heads, shown=answers.y.shape[1])
            if heads + q + SPARE <= count:
                break
            count = 2 * count
        for _ in range(_STARTS):
            start = _SOFT * self.rng.standard_normal((heads, q))
            found = fitted(gated(answers, start), start)
            if found.missed <= self.fits.noise_of(answers):
                return plane, Offset(*turned, answers, found)
        raise _Unfound(Reason.SOFT_GATES_UNFOUND.error(rank=heads))

    # -- the others

    def _others(self, plane: Plane, length: float, base: Offset) -> Asking[GatedMaps]:
        s, H = len(plane.sparse), len(base.found.theta)
        simplex = self._simplex(plane)
        turns: list[tuple[Array, Array]] = [(np.eye(s), e) for e in simplex[1:]]
        for i in range(1, s):
            turn = np.eye(s)
            cos, sin = 1 / np.hypot(1, _TURN), _TURN / np.hypot(1, _TURN)
            turn[[0, i]] = cos * turn[[0, i]] + sin * np.array([turn[i], -turn[0]])
            turns.append((turn, simplex[0]))
        offsets = [base, *(Offset(*turn) for turn in turns)]
        beside, first = enough(base.found.theta), min(-(-self.tokens.dim // H) + 2, len(offsets))
        plane, offsets[:first] = yield from self._read(
            plane, length, offsets[:first], [beside] * first
        )
        rank, shown = max(self.fits.ranges(offsets)[0].ranks), base.read.y.shape[1]
        few = s + max(1, H + rank - shown) + SPARE
        showing = min(1 + int(np.ceil(_SHOWING * rank)), len(offsets))
        counts = [H + beside] * showing + [few] * (len(offsets) - showing)
        if rank >= first or sum(counts[1:]) >= beside * len(turns):
            counts = [beside] * len(offsets)
        plane, offsets = yield from self._read(plane, length, offsets, counts)
        return GatedMaps(
            np.setdiff1d(np.arange(self.tokens.dim), plane.hidden),
            plane.frame,
            tuple(one.read for one in offsets),
            tuple(one.found.theta for one in offsets),
            self.fits.ranges(offsets)[0].ranks,
        )

    def _read(
        self, plane: Plane, length: float, offsets: list[Offset], counts: list[int]
    ) -> Asking[tuple[Plane, list[Offset]]]:
        """Ask offsets beside so many tokens, and those whose gates are not found beside more.

        The first one has its answers.
        """
        phase = "maps"
        purpose: Purpose = "data"
        for _ in range(1 + _AGAIN):
            if max(counts) > len(plane.t):
                plane = plane.longer(max(counts), self.rng)
            spans = [(one.asked, count) for one, count in zip(offsets, counts, strict=True)]
            for span in sorted({span for span in spans[1:] if span[0] < span[1]}):
                own = [j for j, one in enumerate(spans) if j and one == span]
                turns = [(offsets[j].turn, offsets[j].e) for j in own]
                use = np.arange(*span)
                fresh = yield from self._asked(plane, length, turns, use, phase, purpose)
                for j, answers in zip(own, fresh, strict=True):
                    offsets[j] = self.fits.joined(offsets[j], answers)
            offsets = self.fits.near(offsets)
            lost = [one.fit is None for one in offsets]
            if not any(lost):
                return plane, offsets
            more = enough(offsets[0].found.theta)
            counts = [one.asked + more * own for one, own in zip(offsets, lost, strict=True)]
            phase, purpose = "maps, again", "again"
        raise Reason.SOFT_GATES_UNFOUND_ELSEWHERE.error(
            lost=sum(lost), offsets=len(offsets) - 1, heads=len(offsets[0].found.theta)
        )

    # -- asking

    def _simplex(self, plane: Plane) -> Array:
        """Return corners of a simplex around 0 outside B, (k − s + 1, d), of length 1; or 0."""
        s, (k, d) = len(plane.sparse), plane.frame.shape
        if k == s:
            return np.zeros((1, d))
        corners = np.linalg.svd(np.eye(k - s + 1) - 1 / (k - s + 1))[0][:, : k - s]
        return np.asarray(corners / np.linalg.norm(corners[0]) @ plane.frame[s:])

    def _asked(
        self,
        plane: Plane,
        length: float,
        turns: list[tuple[Array, Array]],
        use: Indices,
        phase: str,
        purpose: Purpose = "data",
    ) -> Asking[list[CopiedAnswers]]:
        """Ask offsets beside tokens: of each how f and F are turned in B, and e."""
        t, kinds = plane.t[use], _COPIES[use % len(_COPIES)]
        asked, made = list[tuple[Array, Array]](), list[Array]()
        for turn, e in turns:
            slant = _TURN if e.any() else 0.0
            along, across = length / np.hypot(1, slant), length * slant / np.hypot(1, slant)
            beta = length**2 / (2 * along)
            coordinates = -beta * turn[0] + np.sqrt(self.tokens.dim - beta**2) * t @ turn[1:]
            b = self.tokens.of(coordinates @ plane.sparse)
            a = along * turn[0] @ plane.frame[: len(turn)] + across * e
            asked.append((a, b))
            made.append(np.stack([b + a, b], axis=1))
        copies = np.tile(kinds, (len(turns), 1))
        y = yield from asked_copies(np.concatenate(made), copies, phase, purpose)
        shown = np.setdiff1d(np.arange(self.tokens.dim), plane.hidden)
        design = np.hstack([np.ones((len(t), 1)), t])
        parts = np.reshape(y[:, shown], (len(turns), len(t), -1))
        return [
            CopiedAnswers(a, b, design, kinds, own)
            for (a, b), own in zip(asked, parts, strict=True)
        ]


class _Unfound(Exception):
    """Gates were not found beside an offset of this length; shorter ones may show them."""

    def __init__(self, refusal: RefusalError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
