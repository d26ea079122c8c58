"""A head with positions and biases, of tokens lifted to (x, 1): asked of ordinary tokens, solved.

With key k = K a + b_k, query u_b = Q b + b_q and tokens a, b of which b·v < 0 < a·v:

    [0; b], [0; 0; b]   e^γ_Δ, γ_Δ = b_k·R(Δ)u_b − (K b + b_k)·u_b, what a zero Δ away weighs
    [a; b]              t − γ_1 = a·KᵀR(1)u_b          d offsets, r query tokens: B = qr
    [a; 0; b]           t − γ_2 = a·KᵀR(2)u_b          r offsets in the span of B: T = P R(1) P⁻¹
    γ_1, γ_2            b_k·(R(Δ) − I)u_b = γ_Δ + K b·u_b
    [a; b], other b     ((K a + b_k)·R(1) − (K b + b_k))·u_b = t, r equations for each u_b

The weights are read from y − c = (e^t a·v + b·v)/(e^t + S + 1), S being what zeros weigh. All
weights are those beside the query token's own. Where biases are, tokens cannot be as short as they
are without: all have one length, found by a few pilots, at which logits are moderate. Offsets see v
by one sign and query tokens by the other, so that the weight of every token is read well.

*Queries*: 2dr + 3r, and 4 for each length tried. Source: beyond Theorem 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.distances import PositionedReading, RotaryTuning, TurnedKeys
from unsoftmax.measure import offsets
from unsoftmax.measure.offsets import DENSE_GRID
from unsoftmax.measure.precision import KAPPA
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array, Beside, Sequences, Spaced
from unsoftmax.solve.skeleton import rank_by_gap
from unsoftmax.solve.turning_planes import turning_planes

PILOTS = 4
"""Queries for each length tried; the last of them has a zero token."""
LENGTHS = 8
"""Lengths tried at most."""
_LOWERED = 3
"""Octaves by which tokens are shortened where a pilot is saturated."""
_LARGEST = 8.0
"""Larger logits count as saturated: among thousands some are five times as large as three."""
_WANTED = 0.4
"""Root mean square of the pilots' logits. W is read within a factor of ten of its best from a
quarter of this to four times as much; larger logits of a thousand lose digits."""
_ABOVE = 4.0
"""Where it is this many times more, tokens are made shorter."""
_BELOW = 8.0
"""Where it is this many times less, tokens are made longer: a few pilots may be small by chance,
and logits that are too large cost more than those that are too small."""
_DEPENDENT = 1e-12
"""Columns of which a combination is smaller than this share of the largest depend on each other,
and the rank is below the one given,"""
_GAP = 2.0**10
"""if the next larger singular value is so many times as large: beside biases in which W drowns
several are small, whatever the rank is."""
_STRETCHES = (1.0, 0.5, 2.0)
"""Offsets beside a further query token are so many times as long: of these the one at which its
equations are conditioned best. At one length alone some token's are singular by chance."""
_LARGE = (
    "So it is with large biases: tokens that are short drown in them, long ones saturate the "
    "softmax, and no one length of tokens keeps all logits in between."
)


@dataclass(frozen=True, slots=True)
class Weighed:
    """Answers to tokens a before query tokens b, (query tokens, offsets)."""

    a: Array
    """(n, d), unscaled."""
    b: Array
    """(m, d), as asked."""
    alpha: Array
    """(m,): a is asked α times as long."""
    y: Array
    """(m, n)."""

    def logits(self, v: Array, c: float, zeros: Array | float = 0.0) -> Array:
        """Return t of e^t, what a weighs beside b; ``zeros``, (m,), is what zeros weigh."""
        Y, S = self.y - c, np.broadcast_to(zeros, len(self.b))[:, None]
        av, bv = self.alpha[:, None] * (self.a @ v), (self.b @ v)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.log((bv - Y * (1 + S)) / (Y - av)))


@dataclass(frozen=True, slots=True)
class KeySide:
    """Keys with biases, and queries of some tokens: all that the other tokens' are read with."""

    K: Array
    k_bias: Array
    rotary: Rotary
    queries: Array
    """u_b, (m, rows of K)."""

    def rows(self, a: Array, b: Array) -> Array:
        """Return M of t = M u_b for tokens a (n, d) before b."""
        keys = self.rotary.turned(a @ self.K.T + self.k_bias, np.array(-1.0))
        return np.asarray(keys - (self.K @ b + self.k_bias))


@dataclass(frozen=True, slots=True)
class LiftedAnswers:
    """All that the head is solved from; ``spaced`` and ``other`` are None until they are asked."""

    values: Values
    first: Weighed
    """[a; b], all offsets, r query tokens."""
    zeros: Array
    """[0; b] and [0; 0; b], (2, r)."""
    spaced: Weighed | None = None
    """[a; 0; b]."""
    other: Weighed | None = None
    """[a; b], the other query tokens and 0, which is the last."""

    def logits(self, of: Weighed, zeros: Array | float = 0.0) -> Array:
        """Return logits as `Weighed` does."""
        return of.logits(self.values.v, self.values.c, zeros)

    @property
    def fillers(self) -> Array:
        """What a zero token weighs at Δ = 1 and 2, (2, r)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            one, two = self.first.b @ self.values.v / (self.zeros - self.values.c) - 1
        return np.array([one, two - one])

    @property
    def gammas(self) -> Array:
        """γ of the first query tokens at Δ = 1 and 2, (2, r); NaN where no zero weighs so."""
        fillers = self.fillers
        return np.log(np.where(fillers > 0, fillers, np.nan))

    @property
    def columns(self) -> Array:
        """KᵀR(1)u_b of the first query tokens, (d, r)."""
        t = self.logits(self.first) - self.gammas[0][:, None]
        return np.asarray(np.linalg.solve(self.first.a, (t / self.first.alpha[:, None]).T))

    @property
    def basis(self) -> Array:
        """An orthonormal basis B of the span of Kᵀ, (d, r)."""
        return np.asarray(np.linalg.qr(self.columns)[0])

    @property
    def turn(self) -> Array:
        """T, (r, r)."""
        assert self.spaced is not None
        basis, spaced = self.basis, self.spaced
        t = self.logits(spaced, self.fillers[0]) - self.gammas[1][:, None]
        there = np.linalg.solve(spaced.a @ basis, (t / spaced.alpha[:, None]).T)
        return np.asarray(np.linalg.solve((basis.T @ self.columns).T, there.T).T)

    def keys(self, still: float, given: Array | None = None) -> KeySide:
        """Return K, the frequencies, b_k, and the queries of the first tokens."""
        basis, planes = self.basis, turning_planes(self.turn, still)
        keys = TurnedKeys.of(basis, planes, planes.angles if given is None else given)
        queries = keys.queries(basis.T @ self.columns)
        own = np.sum((self.first.b @ keys.K.T) * queries, axis=1)
        turns = [keys.rotary.turned(queries, np.array(n)) - queries for n in (1.0, 2.0)]
        k_bias = np.linalg.lstsq(np.vstack(turns), (self.gammas + own).ravel(), rcond=None)[0]
        return KeySide(keys.K, k_bias, keys.rotary, queries)

    def head(self, still: float, given: Array | None = None) -> RotaryHead:
        """Return the head."""
        assert self.other is not None
        side, other, t = self.keys(still, given), self.other, self.logits(self.other)
        solved = [
            np.linalg.lstsq(side.rows(alpha * other.a, b), y, rcond=None)[0]
            for alpha, b, y in zip(other.alpha, other.b, t, strict=True)
        ]
        *queries, q_bias = [*side.queries, *solved]
        tokens = np.vstack([self.first.b, other.b[:-1]])
        Q = np.linalg.solve(tokens, np.array(queries) - q_bias).T
        biases = {"k_bias": side.k_bias, "q_bias": q_bias}
        return RotaryHead(side.K, Q, self.values.v, side.rotary, **biases, c=self.values.c)

    def _answer_error(self) -> float:
        """Bound what an answer may be off by."""
        values, arrays = self.values, self.head(0.0).scores.arrays
        longest = float(np.max(np.linalg.norm(self.first.b, axis=1))) * 2
        key, query = (
            longest * np.linalg.norm(arrays[x], 2) + np.linalg.norm(arrays[bias])
            for x, bias in (("K", "k_bias"), ("Q", "q_bias"))
        )
        size = longest * values.norm + abs(values.c)
        rounded = KAPPA * values.precision.unit * float(key * query) * longest * values.norm / 4
        return rounded + float(np.max(values.precision.error(size, self.first.y)))

    def moved(self, rng: np.random.Generator) -> LiftedAnswers:
        """Move all answers, v and c by as much as they may be off, of either sign."""
        assert self.spaced is not None
        assert self.other is not None
        off, shared = self._answer_error(), self.values.among_others

        def by(x: Array, size: Array | float) -> Array:
            return np.asarray(x + size * rng.choice([-1.0, 1.0], np.shape(x)))

        first = replace(self.first, y=by(self.first.y, off))
        zeros = by(self.zeros, off)
        values = replace(self.values, v=by(self.values.v, shared.v))
        values = replace(values, c=float(by(np.array(values.c), shared.c)))
        spaced = replace(self.spaced, y=by(self.spaced.y, off))
        return LiftedAnswers(
            values, first, zeros, spaced, replace(self.other, y=by(self.other.y, off))
        )


def read_lifted(
    values: Values,
    rank: int,
    given: Rotary | None,
    rng: np.random.Generator,
    tuning: RotaryTuning,
) -> Asking[PositionedReading]:
    """Read the head of this rank."""
    Z = offsets.balanced(values.v, rng, DENSE_GRID).made()
    T = -offsets.balanced(values.v, rng, DENSE_GRID).made()
    scale = yield from _pilots(Z, T, values)
    answers = yield from _first_tokens(Z, scale * T[:rank], scale, values)
    answers = replace(answers, values=values.told_by(answers.first.y.ravel()))
    _refuse_dependent(answers)
    v, basis = answers.values.v, answers.basis
    direction = v / np.linalg.norm(v)
    within = offsets.balanced(basis.T @ direction, rng).made() @ basis.T + direction
    rows = np.round(within / DENSE_GRID) * DENSE_GRID
    spaced = yield from _asked(rows, answers.first.b, answers.first.alpha, 1, "W(2)")
    answers = replace(answers, spaced=spaced)
    _refuse_unread(answers.logits(spaced, answers.fillers[0]), answers.values)
    rest = np.vstack([scale * T[rank:], np.zeros((1, len(T)))])
    stretched = scale * _stretches(answers.keys(0.0), rows, rest, scale)
    other = yield from _asked(rows, rest, stretched, 0, "W, other tokens")
    answers = replace(answers, other=other)
    _refuse_unread(answers.logits(other), answers.values)

    def read(values: Values) -> LiftedAnswers:
        return replace(answers, values=values)

    try:
        return PositionedReading.of(answers.values, read, given, True, tuning)
    except NotIdentifiable as refused:
        raise NotIdentifiable(f"{refused} {_LARGE}", determined=refused.determined) from None


# -- asking


def _pilots(Z: Array, T: Array, values: Values) -> Asking[float]:
    """Find the length, a power of two, at which logits are moderate."""
    # logits of a random W of norm √d are s²/√d
    power = int(np.round(np.log2(_WANTED * np.sqrt(len(Z))) / 2))
    places, before = np.arange(PILOTS) % len(Z), np.inf
    for tried in count(1):
        scale = 2.0**power
        a, b = scale * Z[places], scale * T[places]
        a[-1] = 0.0
        [y] = yield [Sequences(np.stack([a, b], axis=1), phase="length of tokens", purpose="pilot")]
        Y = y - values.c
        with np.errstate(invalid="ignore", divide="ignore"):
            t = np.log((b @ values.v - Y) / (Y - a @ values.v))
        if tried == LENGTHS:
            return scale
        largest = float(np.max(np.where(np.isfinite(t), np.abs(t), np.inf)))
        if largest > _LARGEST:
            if largest > before / 2:  # biases alone make it so
                return scale * 2.0**_LOWERED
            before, power = largest, power - _LOWERED
            continue
        ratio = max(float(np.sqrt(np.mean(t**2))), 2.0**-40) / _WANTED
        if 1 / _BELOW <= ratio <= _ABOVE:
            return scale
        # logits are quadratic in the length of tokens, or less
        power -= int(np.ceil(np.log2(ratio) / 2))
    raise AssertionError


def _first_tokens(Z: Array, b: Array, scale: float, values: Values) -> Asking[LiftedAnswers]:
    """Ask all offsets with the first query tokens, and what zeros weigh beside these."""
    alpha, ones = np.full(len(b), scale), np.ones(len(b))
    one = Beside(np.zeros((1, len(Z))), b, alpha, ones, phase="zeros", purpose="data")
    first = Beside(Z, b, alpha, ones, phase="W(1), columns", purpose="data")
    y, at_one, at_two = yield [first, one, Spaced.of(one, 1)]
    read = Weighed(Z, b, alpha, first.table(y))
    answers = LiftedAnswers(values, read, np.array([at_one, at_two]))
    _refuse_unread(np.append(answers.logits(read), answers.gammas), values)
    return answers


def _refuse_dependent(answers: LiftedAnswers) -> None:
    """Refuse a rank above that of the columns, where logits are read well enough to tell."""
    if np.max(np.abs(answers.logits(answers.first))) > _LARGEST:
        return
    singular = np.asarray(np.linalg.svd(answers.columns, compute_uv=False))
    rank = rank_by_gap(singular, share=_DEPENDENT)
    if 0 < rank < len(singular) and singular[rank - 1] > _GAP * singular[rank]:
        raise ModelMismatch(
            f"Keys and queries have rank {rank} together, below the {len(singular)} assumed: "
            f"LowRankHead with rank={rank}, biases=True and rotary=True is for these. "
            "Keys or queries that have a lower rank than their planes are recovered by none."
        )


def _asked(rows: Array, b: Array, alpha: Array, zeros: int, phase: str) -> Asking[Weighed]:
    """Ask some offsets with some query tokens."""
    beside = Beside(rows, b, alpha, np.ones(len(b)), phase=phase, purpose="data")
    [y] = yield [Spaced.of(beside, zeros) if zeros else beside]
    return Weighed(rows, b, alpha, beside.table(y))


def _stretches(side: KeySide, rows: Array, rest: Array, scale: float) -> Array:
    """Choose how long offsets are beside each further query token."""

    def weakest(stretch: float, b: Array) -> float:
        M = side.rows(stretch * scale * rows, b) / stretch
        return float(np.linalg.norm(np.linalg.pinv(M), 2))

    return np.array([min(_STRETCHES, key=lambda s: weakest(s, b)) for b in rest])


def _refuse_unread(t: Array, values: Values) -> None:
    """Refuse weights out of the answers' reach."""
    lost = np.count_nonzero(~np.isfinite(t))
    if lost > t.size // 2:
        raise ModelMismatch(
            f"{lost} of {t.size} answers lie outside of what any attention weights can give "
            "beside the values that single tokens have: no single attention head with rotary "
            "positions answers so."
        )
    if lost:
        raise NotIdentifiable(
            f"{lost} of {t.size} logits are out of the answers' reach: with biases as large as "
            "these no one length of tokens keeps all in range. v is determined, W is not.",
            determined={"v": values.v, "c": values.c},
        )
