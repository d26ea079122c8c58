"""Before the search: c and Σ v_h from single tokens, how precise answers are: d + 23 queries."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi_head.reach import FAR, Reach
from unsoftmax.learners.multi_head.two_tokens import Ground
from unsoftmax.measure.precision import Precision
from unsoftmax.probes import Array, Pairs, Round, Singles, UnitVectors
from unsoftmax.protocol import Answers

# Single tokens are long: what is constant or rounded to decimals is lost beside them.
_LONG = 2.0**40
_RANDOM, _LINE, _SEARCHED = 3, 8, 64
# Far answers this much smaller than moderate ones come from values that cancel; not as well
# where a cap leaves gates open.
_CANCELLED, _CANCELLED_OPEN = 1e-6, 0.3
# Best that float64 answers are, relative to their terms (measured: 1e-16 to 4e-16).
_FLOAT64 = 4e-16
# Coarser answers than this are worth a word.
_SEEN = 1e-14
# The largest defect of linearity there is, of a few, may have been small by chance.
_BY_CHANCE = 2.0
# Coarser answers tell no jumps apart.
_COARSEST = 1e-4
# What is beside x·v + c, and more than this share of it, is noise only if it changes.
_ODD = 1e-2
# Noise of a fixed size counts from here on.
_ABSOLUTE = 1e-14


def open_heads(
    dim: int, biases: bool, reach: Reach, rng: np.random.Generator
) -> Generator[Round, Answers, Ground]:
    """Learn c, Σ v_h and the precision of answers; choose the norm of query tokens.

    Where answers are rounded to decimals or carry noise of a fixed size, query tokens are tiny
    and offsets huge: logits stay, values grow, and what is absolute in the noise vanishes.
    """
    near, far = (_random(dim, rng, _LINE) for _ in range(2))
    b, a = _random(dim, rng), _random(dim, rng)
    a = reach.turned(a, b)
    n, ones = np.arange(_RANDOM), np.ones(_RANDOM)
    short, long, longest = reach.short, reach.single(_LONG), reach.single(FAR)
    far_offset = reach.far(short)
    # what depends on all parameters comes first: a run that is resumed knows its target by it
    gates, zero, line, moderate, straight, stepped = yield [
        Pairs(a, b, n, n, short * ones, short * ones, phase="scale", purpose="pilot"),
        Singles(np.zeros((1, dim)), phase="c", purpose="data"),
        Singles(UnitVectors(dim), long, phase="Σv", purpose="data"),
        Singles(near, short, phase="linearity", purpose="pilot"),
        Singles(far, longest, phase="linearity", purpose="pilot"),
        Pairs(a, b, n, n, far_offset * ones, short * ones, phase="scale", purpose="pilot"),
    ]
    c = float(zero[0])
    s = (line - c) / long
    moderately = float(np.max(np.abs(2 * ((gates - c) / short - b @ s) - a @ s)))
    largest = max(float(np.max(np.abs(stepped))) / far_offset, float(np.linalg.norm(s)))
    if (
        largest <= (_CANCELLED_OPEN if reach.soft else _CANCELLED) * moderately
    ):  # values may cancel here and not elsewhere
        b, a = _random(dim, rng, _SEARCHED), _random(dim, rng, _SEARCHED)
        a = reach.turned(a, b)
        n, ones = np.arange(_SEARCHED), np.ones(_SEARCHED)
        [stepped] = yield [
            Pairs(a, b, n, n, far_offset * ones, short * ones, phase="scale", purpose="pilot")
        ]
    steps = np.abs(2 * (stepped - c - short * (b @ s)) / far_offset - a @ s)
    scale = float(max(np.linalg.norm(s), np.max(steps)))
    terms = scale if scale > 0 else 1.0
    bent = float(np.max(np.abs((straight - c) / longest - far @ s)))
    # under a cap c may be longer than what tokens add: its own rounding is counted with it
    bent = max(0.0, bent - 4 * _FLOAT64 * abs(c) * (1 / longest + np.sqrt(dim) / long)) / terms
    if not bent < _COARSEST:
        raise ModelMismatch(
            "Single tokens are not answered by x·v + c: answers to long ones miss it by "
            f"{bent:.1e} of their size. The target is no sum of attention heads, or it clips "
            "tokens or answers"
            + (", or these are too coarse for tokens so short." if reach.capped else ".")
        )
    form = Precision.of_format([moderate, straight, stepped, gates])
    eta = max(_FLOAT64, form.relative, 2 * form.unit, _BY_CHANCE * bent)
    off = moderate - c - short * (near @ s)
    yield from _refuse_more(form, off, moderate, near, short, terms)
    constant = 4 * eta * abs(c) + form.absolute
    absolute = max(form.absolute, _BY_CHANCE * float(np.max(np.abs(off))) - 4 * eta * terms)
    if absolute <= _ABSOLUTE * terms + 4 * eta * abs(c):
        absolute = 4 * eta * abs(c)
    if not biases and abs(c) > _BY_CHANCE * (absolute + constant):
        raise ModelMismatch(
            f"The zero token is answered by {c:.3g}: the target has biases; learn with "
            "biases=True (--biases)."
        )
    if not biases:
        c = 0.0
    why = form.why
    if bent > _SEEN and not why:
        why = (f"Long single tokens are answered by x·v + c to {bent:.1e} of their size.",)
    if absolute > 0 and not biases:
        reach = reach.stretched()
    return Ground(s, c, eta, absolute, scale, why, reach)


def _refuse_more(
    form: Precision, off: Array, moderate: Array, near: Array, short: float, terms: float
) -> Generator[Round, Answers, None]:
    """Refuse what moderate single tokens miss x·v + c by, if it is large and the same each time."""
    more = float(np.max(np.abs(off))) - _BY_CHANCE * form.absolute
    if more <= _ODD * terms * short:
        return
    [again] = yield [Singles(near, short, phase="linearity", purpose="pilot")]
    if np.max(np.abs(again - moderate)) < more / 2:
        raise ModelMismatch(
            f"Single tokens of norm {short:g} are not answered by x·v + c: it is missed by up to "
            f"{more:.1e}, each time the same, beside values of {terms * short:.1e}. The target is "
            "no sum of attention heads, or adds something to one."
        )


def _random(dim: int, rng: np.random.Generator, count: int = _RANDOM) -> Array:
    x = rng.standard_normal((count, dim))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
