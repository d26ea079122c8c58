"""Query tokens so long that a block's feed-forward part cancels: attention as if it were alone.

A block answers z = y + F(norm₂ y), y = x_N + o(norm₁ X), F unknown and of any kind. Let x_N be
R x, R = 2⁵⁶ and x of few coordinates other than 0. Beside such a token o is rounded away in what
norm₂ sees: F's input is norm₂(x), bit by bit, whatever other tokens there are. So

    z([keys; R x]) − z([R x]) = o(keys, b) − o(b) = Σ_h M_h Σ_i p_h,i (κ_i − b),    b = norm₁(R x),

to a roundoff of o, in all coordinates in which x is 0; in the few others R hides it. Discontinuous
F, such as a mixture of experts, cancel as well. Nothing is known of F, and nothing is needed.

`FarTokens.differences` runs a generator that asks for these differences: it yields sequences of
normalised tokens, the last one far. Each far token is asked once by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from unsoftmax.learners.block.post_norm import without_residual
from unsoftmax.learners.compose import Asking, T, mapped
from unsoftmax.learners.normed_tokens import longer
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import (
    Array,
    Changed,
    Copies,
    Flags,
    Indices,
    Probes,
    Purpose,
    Round,
    Sequences,
    Singles,
)
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost

# Length of query tokens. Shorter than 2⁵³: F sees what attention adds; longer than 2⁶⁰: squares
# leave float32.
FAR = 2.0**56
# The eps with which keys of length √d, after the norm, are made so long that no eps counts.
UNKNOWN_EPS = 1.0
# Long keys of the first look, how many times as long they are once more, and as short: any eps but
# 0 makes nothing of them, and their squares are no subnormal numbers.
_LONG, _LONGER, _SHORTER = 2.0**20, 2.0**6, 2.0**-500
# How far they are from the far token, relative to its length, in turn until they count; 1 is
# anywhere: beside strong scores keys elsewhere may have no weight.
_NEAR = 1.0, 2.0**-3, 2.0**-6
# Share that long answers may miss what a residual connection adds by.
_RESIDUAL = 2.0**-20
# Coarser answers, relative to what attention adds, are refused: errors of scores are 1e5 times
# those of answers, or more.
COARSEST = 1e-11
# Differences of answers within so many times the noise are none.
_ALIKE = 30.0


def cost() -> Cost:
    """Bound the first look."""
    return len(_NEAR) * Cost.of(7, tokens=6, rounds=1)


@dataclass(frozen=True, slots=True)
class BlockTokens(Changed):
    """Sequences of normalised tokens as the tokens of a block, the last one far.

    Attributes
    ----------
    inner : Probes
        Tokens (…, d) of length √d at most.
    far : ndarray (Q, d)
        The query tokens, in units of R.
    eps : float
        Of the norm before attention.
    """

    far: Array
    eps: float

    def __getitem__(self, span: slice) -> Array:
        t = self.inner[span]
        X = t * longer(t, self.dim, self.eps)
        X[:, -1] = FAR * self.far[span]
        return np.asarray(X)


@dataclass(frozen=True, slots=True)
class FarTokens:
    """The far tokens that were asked, by what the norm before attention makes of them."""

    dim: int
    centred: bool
    """Whether that norm is a LayerNorm, which takes the mean off, or an RMSNorm."""
    noise: AnswerNoise
    """Of differences."""
    by_place: float = 0.0
    """Share of what attention adds that depends on where tokens are; 0 where it is noise."""
    coarse: float = 0.0
    """What differences are off by, relative to what attention adds."""
    _sparse: dict[bytes, Array] = field(default_factory=dict)
    _alone: dict[bytes, Array] = field(default_factory=dict)

    @property
    def radius(self) -> float:
        """√d."""
        return float(np.sqrt(self.dim))

    @property
    def rank(self) -> int:
        """Dimensions of normalised tokens."""
        return self.dim - self.centred

    def within(self, x: Array) -> Array:
        """Return tokens (…, d) without their mean, where the norm takes it off."""
        return x - x.mean(axis=-1, keepdims=True) if self.centred else x

    def on_sphere(self, x: Array) -> Array:
        """Return what the norm makes of long tokens (…, d)."""
        x = self.within(x)
        return np.asarray(self.radius * x / np.linalg.norm(x, axis=-1, keepdims=True))

    def of(self, x: Array) -> Array:
        """Return far tokens (Q, d) of few coordinates as the norm makes them, and keep them."""
        b = self.on_sphere(x)
        self._sparse.update((one.tobytes(), own) for one, own in zip(b, x, strict=True))
        return b

    def shown(self, b: Array) -> Flags:
        """Tell which coordinates of answers beside far tokens (Q, d) are not hidden."""
        return np.array([self._sparse[one.tobytes()] == 0 for one in b]).reshape(b.shape)

    def differences(
        self,
        steps: Asking[T],
        eps: float = UNKNOWN_EPS,
        read: Callable[[Array, Array], Array] = lambda X, difference: difference,
    ) -> Asking[T]:
        """Run a generator that asks for differences of sequences of normalised tokens.

        What it is sent is 0 in hidden coordinates, or what ``read`` makes of sequences (B, N, d)
        and such differences (B, d).
        """
        waiting: list[tuple[Array, ...]] = []

        def ask(asked: Round) -> Round:
            waiting.clear()
            made: Round = []
            new: dict[bytes, Array] = {}
            for probes in asked:
                X = probes[0 : len(probes)]
                waiting.append((X,))
                names = [b.tobytes() for b in X[:, -1]]
                far = np.array([self._sparse[name] for name in names]).reshape(-1, self.dim)
                made.append(
                    BlockTokens(probes, far, eps, phase=probes.phase, purpose=probes.purpose)
                )
                new.update(
                    (name, x) for name, x in zip(names, far, strict=True) if name not in self._alone
                )
            fresh.clear()
            fresh.extend(new)
            if new:
                x = FAR * np.array(list(new.values()))
                purpose = asked[0].purpose
                made.append(Singles(x, phase="far tokens by themselves", purpose=purpose))
            return made

        def answer(answers: Answers) -> Answers:
            answers = list(answers)
            if fresh:
                self._alone.update(zip(fresh, answers.pop(), strict=True))
            found = []
            for (X,), y in zip(waiting, answers, strict=True):
                if not len(y):
                    found.append(y)
                    continue
                alone = np.array([self._alone[b.tobytes()] for b in X[:, -1]])
                found.append(read(X, np.where(self.shown(X[:, -1]), y - alone, 0.0)))
            return found

        fresh: list[bytes] = []
        return mapped(steps, ask, answer)


def asked_copies(
    tokens: Array, copies: Indices, phase: str, purpose: Purpose = "data"
) -> Asking[Array]:
    """Ask sequences (Q, n, d) whose i-th token is there ``copies[:, i]`` times, (Q, d)."""
    y, places, families = np.zeros_like(tokens[:, -1]), list[Indices](), list[Probes]()
    for kind in np.unique(copies, axis=0):
        places.append(np.flatnonzero((copies == kind).all(axis=1)))
        families.append(
            Copies.of(Sequences(tokens[places[-1]], phase=phase, purpose=purpose), kind)
        )
    answers = yield families
    for own, one in zip(places, answers, strict=True):
        y[own] = one
    return y


class _FirstLook(NamedTuple):
    """Answers of the first look, in coordinates that are not hidden."""

    alone: Array
    beside: Array
    again: Array
    longer: Array
    shorter: Array
    moved: Array
    doubled: Array

    def apart(self, name: str) -> float:
        """Return by how much an answer differs from the one to two keys."""
        return float(np.linalg.norm(getattr(self, name) - self.beside))


def find_far_tokens(dim: int, rng: np.random.Generator) -> Asking[FarTokens]:
    """Ask seven sequences for the norm before attention, and for what is no such block.

    Where keys have no weight, as many with keys nearer to the far token.

    Raises
    ------
    ModelMismatch
        There is no residual connection, no norm before, or answers vary or are too coarse.
    NotIdentifiable
        Other tokens than the last have no effect that roundoffs leave, or eps is 0.
    """
    way = np.eye(dim)[rng.integers(dim)]
    key = np.round(16 * rng.standard_normal(dim)) / 16
    key = key + (key == 0)
    for near in _NEAR:
        # two opposite keys: no query token turns from both
        around = (near < 1) * np.rint(np.sqrt(dim)) * way
        u = _LONG * (around + near * np.array([key, -key]))
        look = yield from _looked(u, FAR * way, rng)
        scale = float(np.max(np.linalg.norm(np.array(look), axis=1)))
        format_error = Precision.of_format([np.array(look)]).error(0.0, np.array(look))
        rounding = float(np.max(np.linalg.norm(format_error, axis=1)))
        rounding = max(rounding, 2 * KAPPA * UNIT * scale)
        if not look.apart("alone") <= _ALIKE * rounding:
            return FarTokens(dim, *_judged(look, scale, rounding))
    coarse = rounding / max(look.apart("alone"), TINY)
    raise Reason.BLOCK_ATTENTION_FAINT.error(coarse=coarse, why="Other tokens change no answer.")


def _looked(u: Array, x: Array, rng: np.random.Generator) -> Asking[_FirstLook]:
    """Ask two keys (2, d) beside a far token."""
    beside = np.array([u, u, _LONGER * u, _SHORTER * u, u + _LONG])
    dim = len(x)
    queries = np.broadcast_to(x, (len(beside), 1, dim))
    # and in another order
    twice = np.repeat(np.vstack([u[::-1], x]), 2, axis=0)[None]
    first, three, six = yield [
        Singles(x[None], phase="block", purpose="pilot"),
        Sequences(np.concatenate([beside, queries], 1), phase="block", purpose="pilot"),
        Sequences(twice, phase="block", purpose="pilot"),
    ]
    if first.shape[1] != dim:
        raise Reason.BLOCK_WIDTH.error(numbers=first.shape[1], dim=dim)
    shown, own = x == 0, int(np.argmax(x))
    if not np.max(np.abs(first[0] - x)) <= _RESIDUAL * FAR:
        share = abs(float(first[0, own])) / FAR
        raise (yield from without_residual(dim, share, rng))
    return _FirstLook(*np.vstack([first, three, six])[:, shown])


def _judged(
    look: _FirstLook, scale: float, rounding: float
) -> tuple[bool, AnswerNoise, float, float]:
    """Tell whether the norm takes the mean off, how precise differences are, and the shares."""
    size, longer = look.apart("alone"), look.apart("longer")
    if look.apart("again") > _ALIKE * rounding:
        raise Reason.BLOCK_VARIES.error(apart=look.apart("again") / scale)
    if rounding > COARSEST * scale:
        raise Reason.BLOCK_TOO_COARSE.error(coarse=rounding / scale, most=COARSEST)
    places = look.apart("doubled")
    if longer > _ALIKE * rounding:
        raise Reason.BLOCK_WITHOUT_NORM.error(apart=longer / size)
    if look.apart("shorter") <= _ALIKE * rounding < size / _ALIKE:
        raise Reason.EPS_IS_0.error()
    by_place = places > _ALIKE * rounding
    noise = AnswerNoise(2 * KAPPA * UNIT, max(rounding, longer, 0.0 if by_place else places))
    centred = look.apart("moved") <= _ALIKE * rounding
    return centred, noise, by_place * places / size, rounding / size
