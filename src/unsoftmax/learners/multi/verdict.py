"""How the recovery of several heads ends: fresh sequences, a certificate, or a refusal.

Three to six tokens, some of them twice, at three sizes each: rms logits of about 2 for the
weakest, the median and the strongest head. Two single tokens could not tell (W, v) from
(−W, −v) beside a linear part, and one size not a wrong strong head from a right one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from unsoftmax.learners.multi.reach import Reach
from unsoftmax.learners.multi.two_tokens import Ground
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Purpose, Sequences

_LENGTHS = (3, 4, 5, 6)
_LOGIT = 2.0
# Right models miss answers by up to 40 times what the answers' precision and random errors of the
# estimated size do (1,000 targets of low rank, spread sizes, few dimensions). So much is passed,
# up to a share of the answers: a wrong model does not pass for an imprecise one.
_MOVED, _TIMES = 3, 100.0
_MOST, _MOST_COARSE = 1e-6, 1e5
# Where answers are so coarse that more would be allowed, they confirm nothing.
_BLUNT = 1e-2


def fresh(
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
        offsets *= _stretch(model, offsets, b, n % 3)
        X = np.concatenate([offsets + b, b[None]])
        longest = float(np.max(np.linalg.norm(X, axis=1)))
        sequences.setdefault(size, []).append(reach.single(longest) / longest * X)
    phase = "hold-out" if purpose == "check" else "check"
    return [Sequences(np.array(X), phase=phase, purpose=purpose) for X in sequences.values()]


def _stretch(model: MultiHead, offsets: Array, b: Array, which: int) -> float:
    """Return what makes the logits of the weakest, median or strongest head moderate."""
    logits = offsets @ model.scores_of(b[None])[0].T
    rms = np.sqrt(np.mean(logits**2, axis=0))
    rms = np.sort(rms[rms > 0])
    if not len(rms):
        return 1.0
    return float(_LOGIT / rms[(0, len(rms) // 2, -1)[which]])


def residuals(
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


def limit(
    model: MultiHead,
    errors: Mapping[str, Array],
    ground: Ground,
    probes: list[Sequences],
    sizes: Array,
    rng: np.random.Generator,
) -> Array:
    """Return the largest residuals of a model that is right up to its estimated errors.

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
    moved = np.minimum(_TIMES * moved, max(_MOST, _MOST_COARSE * ground.eta) * sizes)
    rounding = _TIMES * (ground.eta * sizes + ground.absolute)
    return np.asarray(np.minimum(rounding + moved, _BLUNT * sizes))


def _unit(like: Array, rng: np.random.Generator) -> Array:
    """Draw an array whose every head has norm 1."""
    x = rng.standard_normal(like.shape)
    flat = np.linalg.norm(x.reshape(len(x), -1), axis=1) if len(x) else np.zeros(0)
    return np.asarray(x / flat.reshape(-1, *[1] * (x.ndim - 1)))
