"""Two tokens, [(a+b); b], in the form in which every jump counts once.

    F([(a+b); b]) = c + b·s + ½ a·s + ½ Σ_h (v_h·a) tanh(a·u_h / 2),   s = Σ v_h, u_h = W_h b + w_h

A *reduced answer* is the sum of the last terms, Σ_h (v_h·a) tanh(a·u_h / 2). It does not change
under (v_h, u_h) → (−v_h, −u_h), so heads are found up to that sign; heads W and −W are one v_h
here (the difference of theirs), heads W = 0 none. `learners.multi_head.orientation` tells them
apart.

Before the search, c and s are read from single tokens, f([x]) = x·s + c: d + 23 queries. c comes
from the zero token, s from d long ones. What moderate and very long single tokens miss x·s + c by,
and the format of the answers, give their precision; a few pairs of tokens give the size of the
values, which may cancel in s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.token_lengths import FAR, TokenLengths
from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.measure.windows import ReducedError
from unsoftmax.probes import Array, Pairs, Purpose, Round, Singles, UnitVectors

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


@dataclass(frozen=True, slots=True)
class _FirstTokens:
    """What is asked first: single tokens and pairs, all of norm 1 but for a factor."""

    near: Array
    far: Array
    b: Array
    a: Array
    lengths: TokenLengths

    @classmethod
    def random(
        cls, dim: int, lengths: TokenLengths, rng: np.random.Generator, line: int, pairs: int
    ) -> _FirstTokens:
        near, far = (_directions(dim, rng, line) for _ in range(2))
        b, a = (_directions(dim, rng, pairs) for _ in range(2))
        return cls(near, far, b, lengths.turned(a, b), lengths)

    @property
    def short(self) -> float:
        return self.lengths.short

    @property
    def long(self) -> float:
        return self.lengths.single(LONG)

    @property
    def longest(self) -> float:
        return self.lengths.single(FAR)

    @property
    def offset(self) -> float:
        """Norm of the offsets at which gates are steps."""
        return self.lengths.far(self.short)

    def pairs(self, offset: float) -> Pairs:
        n, ones = np.arange(len(self.a)), np.ones(len(self.a))
        scales = offset * ones, self.short * ones
        return Pairs(self.a, self.b, n, n, *scales, phase="scale", purpose="pilot")

    def moderate(self) -> Singles:
        return Singles(self.near, self.short, phase="linearity", purpose="pilot")

    def round(self) -> Round:
        # what depends on all parameters comes first: a run that is resumed knows its target by it
        dim = self.near.shape[1]
        return [
            self.pairs(self.short),
            Singles(np.zeros((1, dim)), phase="c", purpose="data"),
            Singles(UnitVectors(dim), self.long, phase="Σv", purpose="data"),
            self.moderate(),
            Singles(self.far, self.longest, phase="linearity", purpose="pilot"),
            self.pairs(self.offset),
        ]

    def searching(self, rng: np.random.Generator) -> _FirstTokens:
        """Return many more pairs."""
        dim, count = self.near.shape[1], SEARCHED
        b, a = (_directions(dim, rng, count) for _ in range(2))
        return replace(self, b=b, a=self.lengths.turned(a, b))


@dataclass(frozen=True, slots=True)
class _FirstAnswers:
    """What they were answered, in the order of the round, and what follows from it."""

    tokens: _FirstTokens
    gates: Array
    zero: Array
    line: Array
    moderate: Array
    straight: Array
    stepped: Array

    @property
    def c(self) -> float:
        return float(self.zero[0])

    @property
    def s(self) -> Array:
        return np.asarray((self.line - self.c) / self.tokens.long)

    @property
    def cancelling(self) -> bool:
        """Whether far answers are so small that values must have cancelled."""
        tokens = self.tokens
        near = (self.gates - self.c) / tokens.short - tokens.b @ self.s
        moderate = float(np.max(np.abs(2 * near - tokens.a @ self.s)))
        far = float(np.max(np.abs(self.stepped))) / tokens.offset
        share = CANCELLED_OPEN if tokens.lengths.soft else CANCELLED
        return max(far, float(np.linalg.norm(self.s))) <= share * moderate

    @property
    def scale(self) -> float:
        """Size of the values."""
        tokens, s = self.tokens, self.s
        rest = self.stepped - self.c - tokens.short * (tokens.b @ s)
        steps = np.abs(2 * rest / tokens.offset - tokens.a @ s)
        return float(max(np.linalg.norm(s), np.max(steps)))

    @property
    def terms(self) -> float:
        """Size of an answer's terms, for tokens of norm 1."""
        return self.scale if self.scale > 0 else 1.0

    @property
    def bent(self) -> float:
        """How much long single tokens miss x·s + c by, relative to the terms."""
        tokens, dim = self.tokens, len(self.s)
        missed = (self.straight - self.c) / tokens.longest - tokens.far @ self.s
        # under a cap c may be longer than what tokens add: its own rounding is counted with it
        of_c = 1 / tokens.longest + np.sqrt(dim) / tokens.long
        own = KAPPA * FLOAT64 * abs(self.c) * of_c
        return float(max(0.0, float(np.max(np.abs(missed))) - own) / self.terms)

    @property
    def off(self) -> Array:
        """What moderate single tokens miss x·s + c by."""
        short = self.tokens.short
        return np.asarray(self.moderate - self.c - short * (self.tokens.near @ self.s))


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
    tokens = _FirstTokens.random(dim, lengths, rng, line, pairs)
    first = _FirstAnswers(tokens, *(yield tokens.round()))
    gates = first.gates
    if first.cancelling:
        tokens = tokens.searching(rng)
        [stepped] = yield [tokens.pairs(tokens.offset)]
        first = replace(first, tokens=tokens, stepped=stepped)
    form = Precision.of_format([first.moderate, first.straight, first.stepped, gates])
    if first.scale == 0:
        form = Precision()  # one constant, which may be as round as it likes
    _refuse_bent(first.bent, form, lengths)
    yield from _refuse_repeating(form, first)
    eta = max(FLOAT64, form.relative, 2 * form.unit, BY_CHANCE * first.bent)
    absolute = _absolute(form, first, eta)
    c = first.c if biases else _without_biases(form, first, eta, absolute)
    why = form.why
    if first.bent > WORTH_A_WORD and not why:
        why = (f"Long single tokens are answered by x·v + c to {first.bent:.1e} of their size.",)
    if absolute > 0 and not biases:
        lengths = lengths.with_tiny_tokens()
    precision = Precision.relative_to_terms(eta, absolute, why)
    return ReducedAnswers(first.s, c, precision, first.scale, lengths)


def _absolute(form: Precision, first: _FirstAnswers, eta: float) -> float:
    """Return what answers may be off by however small they are."""
    of_c = KAPPA * eta * abs(first.c)
    beside = BY_CHANCE * float(np.max(np.abs(first.off))) - KAPPA * eta * first.terms
    absolute = max(form.absolute, beside)
    return absolute if absolute > ABSOLUTE * first.terms + of_c else of_c


def _without_biases(form: Precision, first: _FirstAnswers, eta: float, absolute: float) -> float:
    """Return c = 0, or refuse a constant that is no error of answers."""
    constant = KAPPA * eta * abs(first.c) + form.absolute
    if abs(first.c) > BY_CHANCE * (absolute + constant):
        raise ModelMismatch(
            f"The zero token is answered by {first.c:.3g}: the target has biases; learn with "
            "biases=True."
        )
    return 0.0


def _refuse_bent(bent: float, form: Precision, lengths: TokenLengths) -> None:
    """Refuse a target whose long single tokens are not answered by x·s + c, or too coarsely."""
    bent = max(bent, form.relative) if form.relative > COARSEST else bent
    if bent < COARSEST:
        return
    if bent < ROUNDED:
        raise ModelMismatch(
            f"Answers are too coarse: those to single tokens miss x·v + c by {bent:.1e} of their "
            f"size, {bent / COARSEST:.0f} times more than the {COARSEST:.0e} up to "
            "which several heads are looked for"
            + " ".join([".", *form.why])
            + " Or the target is no sum of attention heads, or clips tokens or answers."
        )
    raise ModelMismatch(
        "Single tokens are not answered by x·v + c: answers to long ones miss it by "
        f"{bent:.1e} of their size. The target is no sum of attention heads, or it clips "
        "tokens or answers"
        + (", or these are too coarse for tokens so short." if lengths.capped else ".")
    )


def _refuse_repeating(form: Precision, first: _FirstAnswers) -> Asking[None]:
    """Refuse what moderate single tokens miss x·v + c by, if it is large and the same each time."""
    tokens = first.tokens
    more = float(np.max(np.abs(first.off))) - BY_CHANCE * form.absolute
    if more <= ODD * first.terms * tokens.short:
        return
    [again] = yield [tokens.moderate()]
    if np.max(np.abs(again - first.moderate)) < more / 2:
        raise ModelMismatch(
            f"Single tokens of norm {tokens.short:g} are not answered by x·v + c: it is missed by "
            f"up to {more:.1e}, each time the same, beside values of "
            f"{first.terms * tokens.short:.1e}. The target is no sum of attention heads, or adds "
            "something to one."
        )


def _directions(dim: int, rng: np.random.Generator, count: int) -> Array:
    x = rng.standard_normal((count, dim))
    if dim == 1:  # answers to ±1 are as round as v
        return np.asarray(np.sign(x) * rng.uniform(0.5, 1.0, x.shape))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
