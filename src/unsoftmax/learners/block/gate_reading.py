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

Queries: about 2(H + s + 8) for the first offset, (k − s)(H + s + 3) with the same far tokens, and
2(s − 1)(H + s + 3) with others; k = d − 1 after a LayerNorm, d after an RMSNorm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from unsoftmax.learners.attention_layer.soft_gate_reading import CopiedAnswers, alike
from unsoftmax.learners.block.far_tokens import FarTokens, asked_copies
from unsoftmax.learners.block.gated_fit import NOISE, Gated, GatedFit, fitted
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
# ... and of the others beyond heads and coordinates. With none the equations of gates are square,
# in whatever dimension: H numbers for each token beyond H, once vectors explain the rest.
_SPARE = 3
# Starts of the first fit, and of each other one that neither the first nor ranges find, which are
# drawn ever farther away.
_STARTS, _STARTS_NEAR, _NEAR, _FARTHER = 200, 60, 0.15, 0.03
# Singular values below this share of the first one's are those of errors.
_NONE = 1e-6
# How often offsets whose gates were not found are asked again beside as many tokens more.
_AGAIN = 2


MOST_TOKENS = int(_COPIES.sum(axis=1).max())


def cost(dim: int, heads: int) -> Cost:
    """Bound the reading of maps of so many heads: every length with far tokens of its own."""
    s = hidden_coordinates(dim)
    beside = heads + s + _SPARE
    first = 2 * max(_FIRST, 2 * s + 4, 2 * beside)
    others = 2 * (1 + _AGAIN) * dim * beside
    rounds = _LENGTHS * (2 + int(np.log2(beside))) + 1 + _AGAIN
    return Cost.of(_LENGTHS * first + others, tokens=MOST_TOKENS, rounds=rounds)


def gated(answers: CopiedAnswers, theta: Array) -> Gated:
    """Return what is fitted to answers: gates of heads θ (H, q), each times one vector."""
    H, (T, m) = len(theta), answers.y.shape
    shift, nothing = answers.shift[:, None] * np.ones(H), np.zeros((T, H, m))
    return Gated(answers.s, shift, np.ones((T, 1)), nothing, answers.y)


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
class GatedMaps:
    """All answers that the maps M_h are computed from.

    Attributes
    ----------
    shown : ndarray
        Coordinates that are not hidden.
    frame : ndarray (k, d)
    offsets : tuple of CopiedAnswers
    theta : tuple of ndarray (H, q)
        The gates of each, heads in one order.
    """

    shown: Indices
    frame: Array
    offsets: tuple[CopiedAnswers, ...]
    theta: tuple[Array, ...]

    def maps(self) -> Array:
        """Compute all M_h in the coordinates that are shown, (H, m, d)."""
        pairs = zip(self.offsets, self.theta, strict=True)
        vectors = np.array([fitted(gated(*pair), pair[1]).vectors[:, 0] for pair in pairs])
        steps = np.array([one.a for one in self.offsets]) @ self.frame.T
        flat = np.linalg.lstsq(steps, vectors.reshape(len(steps), -1), rcond=None)[0]
        return np.asarray(
            np.einsum("khm,kd->hmd", flat.reshape(-1, *vectors.shape[1:]), self.frame)
        )

    @property
    def typical(self) -> float:
        """Root mean square logit of offsets of length 1, in the head where it is largest."""
        length = float(np.linalg.norm(self.offsets[0].a))
        return float(np.sqrt(np.max(np.sum(self.theta[0] ** 2, axis=1)))) / length


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
                plane, base, found = yield from self._base(plane, length)
            except _Unfound as error:
                refusal, length = refusal or error.refusal, _SHORTER * length
                continue
            logits = float(np.sqrt(np.max(np.mean(found.theta**2, axis=1))))
            if logits <= _HARD:
                return (yield from self._others(plane, length, base, found))
            length *= _SOFT / logits
        assert refusal is not None
        raise refusal

    # -- the first offset

    def _base(self, plane: Plane, length: float) -> Asking[tuple[Plane, CopiedAnswers, GatedFit]]:
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
            heads = int(np.count_nonzero(singular > self._noise(answers)))
            if not heads:
                # closed beside all of these tokens
                raise _Unfound(Reason.NO_MODERATE_WEIGHTS.error())
            if heads > self.most:
                raise Reason.MORE_HEADS.error(heads=f"{heads} or more", most=self.most)
            if heads >= answers.y.shape[1]:
                # far tokens of the others hide one coordinate of these
                raise Reason.BLOCK_HEADS_FILL.error(heads=heads, shown=answers.y.shape[1])
            if heads + q + _SPARE <= count:
                break
            count = 2 * count
        for _ in range(_STARTS):
            start = _SOFT * self.rng.standard_normal((heads, q))
            found = fitted(gated(answers, start), start)
            if found.missed <= self._noise(answers):
                return plane, answers, found
        raise _Unfound(Reason.SOFT_GATES_UNFOUND.error(rank=heads))

    def _noise(self, answers: CopiedAnswers) -> float:
        """Return what answers together may be off by."""
        return NOISE * float(np.linalg.norm(self.tokens.noise.of(answers.y)))

    # -- the others

    def _others(
        self, plane: Plane, length: float, base: CopiedAnswers, found: GatedFit
    ) -> Asking[GatedMaps]:
        s, H = len(plane.sparse), len(found.theta)
        simplex = self._simplex(plane)
        turns: list[tuple[Array, Array]] = [(np.eye(s), e) for e in simplex[1:]]
        for i in range(1, s):
            turn = np.eye(s)
            cos, sin = 1 / np.hypot(1, _TURN), _TURN / np.hypot(1, _TURN)
            turn[[0, i]] = cos * turn[[0, i]] + sin * np.array([turn[i], -turn[0]])
            turns.append((turn, simplex[0]))
        use = np.arange(min(H + s + _SPARE, len(plane.t)))
        answers = yield from self._asked(plane, length, turns, use, "maps")
        fits = self._near(answers, found, [None] * len(turns))
        for _ in range(_AGAIN):
            lost = [j for j, fit in enumerate(fits) if fit is None]
            if not lost:
                break
            plane = plane.longer(len(plane.t) + len(use), self.rng)
            fresh = np.arange(len(plane.t) - len(use), len(plane.t))
            further = yield from self._asked(
                plane, length, [turns[j] for j in lost], fresh, "maps, again", "again"
            )
            for j, one in zip(lost, further, strict=True):
                answers[j] = answers[j].joined(one)
            fits = self._near(answers, found, fits)
        sure = [fit for fit in fits if fit is not None]
        if len(sure) < len(fits):
            raise Reason.SOFT_GATES_UNFOUND_ELSEWHERE.error(
                lost=len(fits) - len(sure), offsets=len(fits), heads=H
            )
        shown = np.setdiff1d(np.arange(self.tokens.dim), plane.hidden)
        theta = (found.theta, *(fit.theta for fit in sure))
        return GatedMaps(shown, plane.frame, (base, *answers), theta)

    def _near(
        self, answers: list[CopiedAnswers], base: GatedFit, fits: list[GatedFit | None]
    ) -> list[GatedFit | None]:
        """Fit other offsets that are lost: from the first one's gates, from ranges, from afar."""
        fits = [
            fit or self._found(one, base, [base.theta])
            for one, fit in zip(answers, fits, strict=True)
        ]
        if all(fits):
            return fits
        ranges = _ranges(base, fits)
        return [
            fit or self._found(one, base, self._starts(one, base, ranges))
            for one, fit in zip(answers, fits, strict=True)
        ]

    def _starts(
        self, answers: CopiedAnswers, base: GatedFit, ranges: list[Array]
    ) -> Iterator[Array]:
        """Return what ranges say, and gates drawn ever farther away."""
        yield _parted(answers, base, ranges)
        for n in range(1, _STARTS_NEAR):
            yield base.theta + (_NEAR + _FARTHER * n) * self.rng.standard_normal(base.theta.shape)

    def _found(
        self, answers: CopiedAnswers, base: GatedFit, starts: Iterable[Array]
    ) -> GatedFit | None:
        """Fit the gates of an offset from starts in turn, heads in the order of the first one's."""
        for start in starts:
            found = fitted(gated(answers, start), start)
            if found.missed <= self._noise(answers):
                sure = alike(base.vectors[:, 0], found.vectors[:, 0])
                sure += alike(base.theta, found.theta)
                order = scipy.optimize.linear_sum_assignment(-sure)[1]
                return GatedFit(found.theta[order], found.vectors[order], found.missed)
        return None

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


def _ranges(base: GatedFit, fits: Iterable[GatedFit | None]) -> list[Array]:
    """Return orthonormal columns that what each head makes of offsets is in, (m, r) each."""
    vectors = np.array([one.vectors[:, 0] for one in (base, *fits) if one is not None])
    ranges = []
    for own in vectors.swapaxes(0, 1):
        _, singular, Vt = np.linalg.svd(own, full_matrices=False)
        ranges.append(Vt[singular > _NONE * singular[0]].T)
    return ranges


def _parted(answers: CopiedAnswers, base: GatedFit, ranges: list[Array]) -> Array:
    """Return the gates (H, q) of each head's part of answers.

    Where ranges are independent parts are all that answers are. Else what these differ by from the
    first offset's is shared out, as little as explains it. A part is one gate times one vector.
    """
    whole, U = gated(answers, base.theta), np.hstack(ranges)
    gates = whole.left(base.theta)[0]
    pairs = zip(gates.T, base.vectors[:, 0], ranges, strict=True)
    parts = np.hstack([np.outer(gate, vector @ own) for gate, vector, own in pairs])
    parts = parts + (whole.y - parts @ U.T) @ np.linalg.pinv(U).T
    ends = np.cumsum([own.shape[1] for own in ranges])[:-1]
    found = []
    for h, part in enumerate(np.split(parts, ends, axis=1)):
        own = whole._replace(shift=whole.shift[:, [h]], known=0 * part[:, None], y=part)
        found.append(fitted(own, base.theta[[h]]).theta[0])
    return np.array(found)
