"""Two tokens, [(a+b); b], in the form in which every jump counts once.

    F([(a+b); b]) = c + b·s + ½ a·s + ½ Σ_h (v_h·a) tanh(a·u_h / 2),   s = Σ v_h, u_h = W_h b + w_h

A *reduced answer* is the sum of the last terms, Σ_h (v_h·a) tanh(a·u_h / 2). It does not change
under (v_h, u_h) → (−v_h, −u_h), so heads are found up to that sign; heads W and −W are one v_h
here (the difference of theirs), heads W = 0 none. `multi_head.token_search` tells them
apart.

Before the search, c and s are read from single tokens, f([x]) = x·s + c: d + 23 queries. c comes
from the zero token, s from d long ones. What moderate and very long single tokens miss x·s + c by,
and the format of the answers, give their precision; a few pairs of tokens give the size of the
values, which may cancel in s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.measure.precision import KAPPA, Precision, why
from unsoftmax.measure.windows import ReducedError
from unsoftmax.probes import Array, Pairs, Purpose, Singles, UnitVectors
from unsoftmax.refusals import Reason

# -- How long query tokens and offsets may be, and with them how far logits go.
#
# A head's logit at [(a+b); b] is a·(W b): it grows with ‖a‖·‖b‖. Where nothing caps tokens,
# offsets are so long that every gate is a step. Under a cap R offsets are turned away from b
# (reduced answers are even in a), so that ‖a+b‖² ≤ ‖a‖² + ‖b‖², and logits reach ‖W‖R²/2.
#
# A *gate* is tanh(a·u_h/2); it is *open* where its logit is moderate and *saturated* where it is
# ±1 to float64's precision.


# ‖a‖‖b‖ of the longest offsets: saturates all gates, for heads within 10⁴ of each other.
FAR = 1e14
# Longest query token under a cap. Longer ones lose, at logits of a few, what heads add to answers
# below what b adds (by length²/20: seven digits are lost).
LONGEST = 1e3
# The same with biases: b keeps its norm after the search, and ‖W b‖ must not exceed w by so much
# that w is lost.
LONGEST_BIASED = 30.0
# ‖a‖‖b‖ below which transitions of gates are wider than a millionth of the circle that is
# searched: gates then count as open somewhere (`TokenLengths.soft`).
SOFT = 1e9
# ‖a‖‖b‖ at least, under a cap, while other heads are unknown: those within 10³ of each other, and
# not closer than a few per cent of the circle, are saturated.
SILENT = 1e6
# Angle over which slopes of pieces are read: so short that no jump falls between.
BASELINE = 1e-5
# Under a cap the angle is at least this over ‖a‖‖b‖: jumps of heads with ‖W b‖ up to 7‖b‖ are
# wider.
STEEP = 10.0
# Two jumps closer than the baseline divided by this count as one hyperplane.
NARROWEST = 100.0
# Query tokens are moved by at most this share of their norm: W b stays of its size.
MOST_MOVED = 0.5
# They are moved by at most this share of the radius: offsets lose little of their room to it.
MOST_MOVED_RADIUS = 1 / 8
# Norm of query tokens where noise has a fixed size: offsets are the longer, and the noise is
# small beside answers.
TINY = 1e-8
# Answers with a larger error, relative to their terms, may lose short offsets beside long ones:
# where the longest tokens show no heads, shorter ones are asked.
COARSE = 1e-12
# Answers as precise as this told apart all heads of random layers in 16 dimensions.
ENOUGH = 1e-5
# ‖a‖‖b‖ of these, in units of that error: what rounding moves the logit of a head with ‖W‖ = 1 by
# at the longest offsets. Float32 services of trained and random layers were recovered at the
# first; others are for larger and smaller W.
LENGTH_NOISES = (2e-2, 2e-3, 0.2, 2e-4, 2.0, 2e-5)
# Tokens stay within the cap by this share: norms are rounded in the sixteenth digit.
ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Which norms tokens may have: none longer than ``radius``."""

    radius: float = np.inf
    length: float = 1.0
    """Norm of query tokens while heads are searched for."""

    @classmethod
    def under(cls, radius: float | None, biases: bool) -> TokenLengths:
        """Choose how long query tokens are under a cap."""
        if radius is None:
            return cls()
        wanted = FAR / radius
        if biases:
            wanted = min(LONGEST_BIASED, 10 * SOFT / radius)
        return cls(float(radius))._of_length(max(1.0, wanted))

    def _of_length(self, wanted: float) -> TokenLengths:
        longest = LONGEST
        return replace(self, length=float(min(wanted, longest, self.radius * np.sqrt(0.5))))

    def with_longest_tokens(self) -> TokenLengths:
        """Return the longest query tokens, where shorter ones did not pull the heads apart."""
        return self._of_length(LONGEST)

    def with_tiny_tokens(self) -> TokenLengths:
        """Make query tokens tiny and offsets long, as far as gates stay steps."""
        least = max(TINY, 10 * SILENT / self.radius)
        return replace(self, length=min(self.length, least))

    def for_coarse(self, eta: float, biases: bool) -> Iterator[TokenLengths]:
        """Give shorter lengths for answers of error ``eta``, relative to their terms."""
        if eta <= COARSE:
            return
        for noise in LENGTH_NOISES:
            product = noise / eta
            longest = max(product / LONGEST_BIASED, 1.0)
            radius = longest if biases else np.sqrt(2 * product)
            if radius < self.radius:
                yield TokenLengths.under(radius, biases)

    @property
    def capped(self) -> bool:
        """Whether tokens are capped at all."""
        return bool(np.isfinite(self.radius))

    @property
    def room(self) -> float:
        """The longest token that may be asked, less what rounding of its norm may add."""
        return self.radius * (1 - ROUNDING)

    @property
    def soft(self) -> bool:
        """Whether gates may be open even at the longest offsets."""
        return self.length * self.far(self.length) < SOFT

    @property
    def near(self) -> float:
        """Norm of offsets below which what b adds to answers hides what heads do."""
        return self.length if self.capped else 0.0

    @property
    def silent(self) -> float:
        """Norm that offsets have at least while it is not known what saturates other heads."""
        if not self.soft:
            return self.near
        return max(self.near, min(self.far(self.length), SILENT / self.length))

    @property
    def baseline(self) -> float:
        """Angle over which slopes of pieces are read: shorter than transitions."""
        return max(BASELINE, STEEP / (self.length * self.far(self.length)))

    @property
    def narrowest(self) -> float:
        """Angle below which two jumps count as one hyperplane."""
        return self.baseline / NARROWEST

    @property
    def short(self) -> float:
        """Norm of tokens and offsets that need not be long."""
        return float(min(1.0, self.room * np.sqrt(0.5)))

    def single(self, wanted: float) -> float:
        """Return the norm of a single token: as wanted, or as long as it may be."""
        return min(wanted, self.room)

    def far(self, length: float) -> float:
        """Return the norm of offsets at which gates are steps, or are as nearly as may be."""
        return min(FAR / length, self.longest(length))

    def longest(self, length: float, moved: float = 0.0) -> float:
        """Return the norm of the longest offsets, turned away from a query token of this norm.

        ``moved`` is how far query tokens may be moved from there.
        """
        room = self.room - moved
        return float(np.sqrt(max(0.0, room - length)) * np.sqrt(room + length))

    def step(self, length: float) -> float:
        """Return how far a query token of this norm may be moved."""
        return min(MOST_MOVED * length, self.radius * MOST_MOVED_RADIUS)

    def turned(self, a: Array, b: Array) -> Array:
        """Turn offsets a (n, d) away from b (d,), where a cap asks for it."""
        if not self.capped:
            return a
        return np.asarray(np.where(np.sum(a * b, axis=-1) > 0, -1.0, 1.0)[:, None] * a)


# Norm of the tokens that tell s: what is constant or rounded to decimals is lost beside them; a
# power of two divides out exactly.
LONG = 2.0**40
# Pairs of tokens that tell the size of the values.
PAIRS = 3
# Single tokens of each of two norms that must be answered by x·s + c.
LINE = 8
# Pairs asked where the first ones were answered by nearly nothing: values may cancel there and
# not elsewhere.
SEARCHED = 64
# Far answers this much smaller than moderate ones come from values that cancel.
CANCELLED = 1e-6
# The same under a cap, where gates that are open leave a part of what cancels.
CANCELLED_OPEN = 0.3
# Best that float64 answers are, relative to their terms (measured: 1e-16 to 4e-16).
FLOAT64 = 4e-16
# Answers that miss x·s + c by more are mentioned in the certificate.
WORTH_A_WORD = 1e-14
# The largest defect of linearity of a few may have been small by chance: it is taken so many
# times.
BY_CHANCE = 2.0
# Coarser answers tell no jumps apart: refused.
COARSEST = 1e-4
# Answers that miss x·s + c by less than this share are called too coarse: those of bfloat16 do,
# which keep eight bits. What misses it by more is something else.
ROUNDED = 3e-2
# What is beside x·s + c, and more than this share of the values, is asked again: noise changes.
ODD = 1e-2
# Noise of a fixed size counts from here on, in units of the values' size.
ABSOLUTE = 1e-14


@dataclass(frozen=True, slots=True)
class ReducedAnswers:
    """What reduces answers: f([x]) = x·s + c, as single tokens tell, and how precise they are."""

    s: Array
    """Σ v_h (d,)."""
    c: float
    precision: Precision
    """Of answers. All that is relative is in ``unit``: it counts the size of an answer's terms,
    not of their sum."""
    scale: float
    """Size of the values: answers to tokens of norm T are about ``scale``·T large."""
    lengths: TokenLengths

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return len(self.s)

    @property
    def eta(self) -> float:
        """Relative error of an answer, in units of the size of its terms."""
        return KAPPA * self.precision.unit

    def coarser(self, eta: float) -> ReducedAnswers:
        """Take answers for no more precise than ``eta``, relative to their terms."""
        unit = max(eta, self.eta) / KAPPA
        return replace(self, precision=replace(self.precision, unit=unit))

    def of(self, y: Array, a: Array, b: Array) -> Array:
        """Turn answers to [(a+b); b] into Σ_h (v_h·a) tanh(a·u_h / 2)."""
        return np.asarray(2 * (y - self.c - b @ self.s) - a @ self.s)

    def error(self, T: float, length: float) -> float:
        """Return the error of a reduced answer in units of ``scale``·T, T and length of a and b."""
        beside = length + abs(self.c) / self.scale
        absolute = self.precision.absolute / (self.scale * T)
        return float(replace(self.precision, absolute=absolute).error(1 + beside / T))

    def errors_at(self, length: float, v_error: float, u: Array | None = None) -> ReducedError:
        """Say what reduced answers of heads u (H, d) are off by at query tokens of this norm."""
        sizes = np.zeros(0) if u is None else np.linalg.norm(u, axis=1)
        return ReducedError(self.precision, length, self.scale, self.c, v_error, sizes)

    def ask(self, a: Array, b: Array, phase: str, purpose: Purpose = "data") -> Asking[Array]:
        """Ask offsets a (n, d) of one query token b (d,); return the reduced answers."""
        if not len(a):
            return np.zeros(0)
        if not np.all(np.isfinite(a)):  # an estimate went astray
            raise CoincidentJumps
        a = self.lengths.turned(a, b)
        n = np.arange(len(a))
        ones = np.ones(len(a))
        probes = Pairs(a, b[None], n, 0 * n, ones, ones, phase=phase, purpose=purpose)
        [y] = yield [probes]
        return self.of(y, a, b)


# -- before the search


def read_head_sums(
    dim: int,
    biases: bool,
    lengths: TokenLengths,
    rng: np.random.Generator,
    line: int = LINE,
    pairs: int = PAIRS,
) -> Asking[ReducedAnswers]:
    """Learn c, Σ v_h and the precision of answers; choose the norm of query tokens.

    Where answers are rounded to decimals or carry noise of a fixed size, query tokens are tiny
    and offsets huge: logits stay, values grow, and what is absolute in the noise vanishes.
    """
    short, long, longest = lengths.short, lengths.single(LONG), lengths.single(FAR)
    offset = lengths.far(short)  # gates are steps there
    near, far = (_directions(dim, rng, line) for _ in range(2))
    b, a = _pairs(dim, pairs, lengths, rng)
    beside = Singles(near, short, phase="linearity", purpose="pilot")
    # what depends on all parameters comes first: a run that is resumed knows its target by it
    gates, zero, along, moderate, straight, stepped = yield [
        _asked(b, a, short, short),
        Singles(np.zeros((1, dim)), phase="c", purpose="data"),
        Singles(UnitVectors(dim), long, phase="Σv", purpose="data"),
        beside,
        Singles(far, longest, phase="linearity", purpose="pilot"),
        _asked(b, a, short, offset),
    ]
    c = float(zero[0])
    s = np.asarray((along - c) / long)
    open_by = float(np.max(np.abs(2 * ((gates - c) / short - b @ s) - a @ s)))
    share = CANCELLED_OPEN if lengths.soft else CANCELLED
    if max(float(np.max(np.abs(stepped))) / offset, float(np.linalg.norm(s))) <= share * open_by:
        b, a = _pairs(dim, SEARCHED, lengths, rng)
        [stepped] = yield [_asked(b, a, short, offset)]
    steps = np.abs(2 * (stepped - c - short * (b @ s)) / offset - a @ s)
    scale = float(max(np.linalg.norm(s), np.max(steps)))
    # one constant may be as round as it likes
    form = Precision.of_format([moderate, straight, stepped, gates]) if scale > 0 else Precision()
    terms = scale if scale > 0 else 1.0  # of an answer to tokens of norm 1
    missed = float(np.max(np.abs((straight - c) / longest - far @ s)))
    # under a cap c may be longer than what tokens add: its own rounding is counted with it
    own = KAPPA * FLOAT64 * abs(c) * (1 / longest + np.sqrt(dim) / long)
    bent = float(max(0.0, missed - own) / terms)
    _refuse_bent(bent, form, lengths)
    off = float(np.max(np.abs(moderate - c - short * (near @ s))))
    more = off - BY_CHANCE * form.absolute
    if more > ODD * terms * short:
        [again] = yield [beside]
        _refuse_repeating(more, terms * short, short, np.abs(again - moderate))
    eta = max(FLOAT64, form.relative, 2 * form.unit, BY_CHANCE * bent)
    # what answers may be off by however small they are
    of_c = KAPPA * eta * abs(c)
    absolute = max(form.absolute, BY_CHANCE * off - KAPPA * eta * terms)
    absolute = absolute if absolute > ABSOLUTE * terms + of_c else of_c
    if not biases:
        if abs(c) > BY_CHANCE * (absolute + (of_c + form.absolute)):
            raise Reason.ZERO_IS_NOT_ANSWERED_BY_0.error(c=c)
        c = 0.0
    why = form.why
    if bent > WORTH_A_WORD and not why:
        why = (f"Long single tokens are answered by x·v + c to {bent:.1e} of their size.",)
    if absolute > 0 and not biases:
        lengths = lengths.with_tiny_tokens()
    precision = Precision.relative_to_terms(eta, absolute, why)
    return ReducedAnswers(s, c, precision, scale, lengths)


def _pairs(
    dim: int, count: int, lengths: TokenLengths, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw query tokens b and offsets a (count, d) of norm 1."""
    b, a = (_directions(dim, rng, count) for _ in range(2))
    return b, lengths.turned(a, b)


def _asked(b: Array, a: Array, length: float, offset: float) -> Pairs:
    n, ones = np.arange(len(a)), np.ones(len(a))
    return Pairs(a, b, n, n, offset * ones, length * ones, phase="scale", purpose="pilot")


def _refuse_bent(bent: float, form: Precision, lengths: TokenLengths) -> None:
    """Refuse a target whose long single tokens are not answered by x·s + c, or too coarsely."""
    bent = max(bent, form.relative) if form.relative > COARSEST else bent
    if bent < COARSEST:
        return
    if bent < ROUNDED:
        raise Reason.TOO_COARSE_FOR_HEADS.error(
            also=why(form), missed=bent, times=bent / COARSEST, most=COARSEST
        )
    short = ", or these are too coarse for tokens so short" if lengths.capped else ""
    raise Reason.TOKENS_NOT_LINEAR.error(
        form="x·v + c", missed=bent, otherwise=f", or it clips tokens or answers{short}"
    )


def _refuse_repeating(more: float, size: float, norm: float, change: Array) -> None:
    """Refuse what moderate single tokens miss x·v + c by, if it is large and the same each time."""
    if np.max(change) < more / 2:
        raise Reason.TOKENS_NOT_LINEAR_NEAR_0.error(norm=norm, missed=more, size=size)


def _directions(dim: int, rng: np.random.Generator, count: int) -> Array:
    x = rng.standard_normal((count, dim))
    if dim == 1:  # answers to ±1 are as round as v
        return np.asarray(np.sign(x) * rng.uniform(0.5, 1.0, x.shape))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
