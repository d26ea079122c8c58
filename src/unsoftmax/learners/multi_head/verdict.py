"""How the recovery of several heads ends: fresh sequences, a certificate, or a refusal.

Three to six tokens, some of them twice, at three sizes each: rms logits of about 2 for the
weakest, the median and the strongest head. Two single tokens could not tell (W, v) from
(−W, −v) beside a linear part, and one size not a wrong strong head from a right one.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi_head.reach import Reach
from unsoftmax.learners.multi_head.search import Heads
from unsoftmax.learners.multi_head.two_tokens import Ground
from unsoftmax.models import MultiHead, canonical
from unsoftmax.probes import Array, Purpose, Round, Sequences
from unsoftmax.protocol import Answers, Certificate, Evidence, Found, Steps

_LENGTHS = (3, 4, 5, 6)
_LOGIT = 2.0
_SIZES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
# Right models miss answers by up to 40 times what the answers' precision and random errors of the
# estimated size do (1,000 targets of low rank, spread sizes, few dimensions). So much is passed,
# up to a share of the answers: a wrong model does not pass for an imprecise one.
_MOVED, _TIMES = 3, 100.0
_MOST, _MOST_COARSE = 1e-6, 1e5
# Where answers are so coarse that more would be allowed, they confirm nothing.
_BLUNT = 1e-2
# Estimated errors are a standard deviation, roughly: in 2,000 targets the error was at most 5.2
# times that. Twice as much and more is promised.
_SAFETY = 12.0
# Sequences that a bound on the function is taken from, and how many times the most they are missed
# by; what is missed by more than FARTHEST is no attention.
PILOTS, _FURTHER, FARTHEST = 96, 60.0, 1e-3


def _fresh(
    model: MultiHead,
    reach: Reach,
    count: int,
    length: float,
    rng: np.random.Generator,
    purpose: Purpose,
) -> list[Sequences]:
    """Draw sequences of three to six tokens, the last token of about the given norm.

    Under a cap tokens that were too long are shortened together.
    """
    d = model.dim
    sequences: dict[int, list[Array]] = {}
    for n in range(count):
        size = _LENGTHS[n % len(_LENGTHS)]
        b = length * rng.standard_normal(d) / np.sqrt(d)
        offsets = rng.standard_normal((size - 1, d)) / np.sqrt(d)
        if n % 2:
            offsets[1] = offsets[0]
        stretch = _stretch(model, b, n % 3)
        X = np.concatenate([stretch * offsets + b, b[None]])
        if not stretch:  # no logits: what seems to have none at one size has some at another
            X = _SIZES[n % len(_SIZES)] * np.concatenate([offsets + b, b[None]])
        longest = float(np.max(np.linalg.norm(X, axis=1)))
        sequences.setdefault(size, []).append(reach.single(longest) / longest * X)
    phase = "hold-out" if purpose == "check" else "check"
    return [Sequences(np.array(X), phase=phase, purpose=purpose) for X in sequences.values()]


def _stretch(model: MultiHead, b: Array, which: int) -> float:
    """Return what makes logits of the weakest, median or strongest head moderate on average.

    0 where no head has any.
    """
    rms = np.linalg.norm(model.scores_of(b[None])[0], axis=1) / np.sqrt(model.dim)
    rms = np.sort(rms[rms > 0])
    if not len(rms):
        return 0.0
    return float(_LOGIT / rms[(0, len(rms) // 2, -1)[which]])


def _residuals(
    model: MultiHead, ground: Ground, probes: list[Sequences], answers: list[Array]
) -> tuple[Array, Array]:
    """Return residuals and the answers' natural sizes."""
    missed, sizes = [], []
    values = max(float(np.linalg.norm(model.v)), ground.scale)
    for family, y in zip(probes, answers, strict=True):
        longest = np.linalg.norm(family.X, axis=2).max(axis=1)
        size = longest * values / np.sqrt(model.dim) + abs(ground.c)
        missed.append(y - model(family.X))
        sizes.append(np.where(size > 0, size, 1.0))
    return np.concatenate(missed), np.concatenate(sizes)


def _limit(
    model: MultiHead,
    errors: Mapping[str, Array],
    ground: Ground,
    probes: list[Sequences],
    sizes: Array,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Return the largest residuals that confirm a model, and those that its errors explain.

    What those would do is seen by moving the parameters at random, each head by its own errors.
    """
    moved = np.zeros(len(sizes))
    for _ in range(_MOVED):
        W, v, w = (
            array + (errors[name] * _unit(array, rng).T).T
            for name, array in (("W", model.W), ("v", model.v), ("w", model.w))
        )
        other = MultiHead(W, v, w, model.c)
        difference = np.concatenate([other(part.X) - model(part.X) for part in probes])
        moved = np.maximum(moved, np.abs(difference))
    rounding = _TIMES * (ground.eta * sizes + ground.absolute)
    telling = np.minimum(_TIMES * moved, max(_MOST, _MOST_COARSE * ground.eta) * sizes)
    return np.minimum(rounding + telling, _BLUNT * sizes), rounding + _TIMES * moved


def _unit(like: Array, rng: np.random.Generator) -> Array:
    """Draw an array whose every head has norm 1."""
    x = rng.standard_normal(like.shape)
    flat = np.linalg.norm(x.reshape(len(x), -1), axis=1) if len(x) else np.zeros(0)
    return np.asarray(x / flat.reshape(-1, *[1] * (x.ndim - 1)))


def shares_of(
    found: Heads, ground: Ground, count: int, rng: np.random.Generator, purpose: Purpose
) -> Generator[Round, Answers, tuple[Array, Array, Array]]:
    """Ask fresh sequences; return how far a model misses them and may, in shares of their size.

    The third are what its errors explain, which may be more than tells it from a wrong one.
    """
    probes = _fresh(found.model, ground.reach, count, found.length, rng, purpose)
    missed, sizes = _residuals(found.model, ground, probes, (yield list(probes)))
    allowed, explained = _limit(found.model, found.errors, ground, probes, sizes, rng)
    return np.abs(missed) / sizes, allowed / sizes, explained / sizes


def concluded(
    found: Heads,
    ground: Ground,
    checks: int,
    biases: bool,
    rng: np.random.Generator,
) -> Steps[MultiHead]:
    """Ask the hold-out, and say how sure the heads are."""
    evidence = Evidence.of(checks, np.zeros(0), np.zeros(0))
    if checks:
        shares, allowed, _ = yield from shares_of(found, ground, checks, rng, "check")
        evidence = Evidence.of(checks, shares, allowed)
        if not evidence.passed:
            worst = int(np.argmax(shares / allowed))
            raise ModelMismatch(
                f"The recovered heads miss a fresh answer by {shares[worst]:.1e} of its size "
                f"where {allowed[worst]:.1e} is expected: the target is no sum of attention "
                "heads, or has heads too close for these answers."
            )
    rounding = float(ground.eta * abs(ground.c) + ground.absolute) * biases
    largest = {**found.largest, "c": rounding}
    errors = {name: _SAFETY * error for name, error in largest.items()}
    certificate = Certificate(errors, _assumed(ground, evidence))
    return Found(canonical(found.model), certificate, evidence, found.notes)


def predicting(
    found: Heads,
    share: float,
    ground: Ground,
    checks: int,
    rng: np.random.Generator,
) -> Steps[MultiHead]:
    """Ask the hold-out, and bound the function: question (iii) of the paper's section 7.1.

    ``share`` is the most that fresh answers were missed by, in shares of their size.
    """
    shares, *_ = yield from shares_of(found, ground, PILOTS, rng, "pilot")
    share = max(share, float(shares.max()))
    if share > FARTHEST:
        raise ModelMismatch(
            f"The heads that predict best miss a fresh answer by {share:.1e} of its size: the "
            "target is no sum of attention heads, or has heads whose hyperplanes are the same for "
            "every query token."
        )
    bound, evidence = _FURTHER * share, Evidence.of(checks, np.zeros(0), np.zeros(0))
    if checks:
        shares, *_ = yield from shares_of(found, ground, checks, rng, "check")
        evidence = Evidence.of(checks, shares, np.full(len(shares), bound))
        if not evidence.passed:
            raise ModelMismatch(
                f"The heads that predicted {PILOTS} answers to {share:.1e} of their size miss "
                f"fresh ones by {evidence.max_residual:.1e}."
            )
    model = canonical(found.model)
    size = max(float(np.linalg.norm(model.v)), ground.scale) / np.sqrt(model.dim)
    shorter = ", shortened together where they are longer than the radius"
    assumes = (
        "``|f̂(X) − f(X)|`` ≤ constant + slope·max‖x_i‖ for sequences drawn like the hold-out's: "
        f"three to six tokens, the last normal of norm about {found.length:.1e}, the others at "
        "random distances that give one head logits of about 2"
        f"{shorter if ground.reach.capped else ''}.",
        f"The bounds are {_FURTHER:.0f} times the most that {PILOTS} such sequences "
        "were missed by. The parameters have none.",
        *(() if checks else ("Nothing else was checked.",)),
    )
    notes = (
        "Not the target's own heads: some of those are too close to be told apart, or too quiet "
        f"to be seen, or it has others. These {model.H} predict its answers.",
    )
    errors = {"constant": float(bound * abs(model.c)), "slope": float(bound * size)}
    return Found(model, Certificate(errors, assumes), evidence, notes)


def _assumed(ground: Ground, evidence: Evidence) -> tuple[str, ...]:
    absolute = f", and {ground.absolute:.1e} beside it" if ground.absolute else ""
    unseen = ""
    if evidence.queries:
        unseen = (
            f" Heads that add less than {evidence.tolerance:.1e} of their size to answers like the "
            "hold-out's, or change them by as little when they are one with others, may be missing."
        )
    return (
        "The target is a sum of attention heads, and all of them were found: what the hold-out "
        "tests, it cannot prove." + unseen,
        f"Answers are precise to {ground.eta:.1e} of the size of their terms{absolute}.",
        f"Bounds are {_SAFETY:.0f} times what that precision does to first order, errors of "
        "answers being independent; each is the largest over heads.",
        *ground.why,
        *(() if evidence.queries else ("Nothing was checked.",)),
    )
