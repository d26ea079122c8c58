"""As many queries again, at moderate logits: errors of W from 10⁻¹² to 10⁻¹⁴.

Windows pay for silence: their offsets are long and query tokens close together. Once all heads
are known, none need be silent. At query tokens b_j of an orthonormal basis all W_h b_j + w_h are
corrected together, from the differences between H·d answers each and the model's:

    δF(a, b_j) = Σ_h (a·v_h) σ'(a·u_h) a·δu_h

The offsets are picked among random ones of moderate logits by pivoted QR.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np
from scipy.linalg import qr

from unsoftmax.learners.multi.search import Heads
from unsoftmax.learners.multi.two_tokens import Ground
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Pairs, Round
from unsoftmax.protocol import Answers

# One system has H·d unknowns: beyond, solving d of them takes longer than asking.
_LARGEST = 900
_CANDIDATES, _FEWER, _MANY = 6, 2, 200
_LOGITS = (1.0, 2.0, 3.0)
# Worse systems than this correct nothing.
_SINGULAR = 1e9
# Estimated errors were exceeded by a few per cent of heads: twice.
_TWICE = 2.0


def polished(
    found: Heads, ground: Ground, biases: bool, rng: np.random.Generator
) -> Generator[Round, Answers, Heads]:
    """Correct the heads where that gains something; notes say where it does not."""
    model = found.model
    if model.H * model.dim > _LARGEST or found.low_rank:
        reason = "their rank is low" if found.low_rank else f"H·d is more than {_LARGEST}"
        return replace(found, notes=(*found.notes, f"The heads were not polished: {reason}."))
    v_error = float(np.linalg.norm(found.errors["v"]))
    better = yield from _corrected(model, v_error, ground, found.length, biases, rng)
    if better is None or better[1].max() > found.errors["W"].max():
        return replace(found, notes=(*found.notes, "Polishing the heads gained nothing."))
    model, W_error = better
    errors = {**found.errors, "W": W_error, "w": W_error * found.length * biases}
    return replace(found, model=model, errors=errors)


def _corrected(
    model: MultiHead,
    v_error: float,
    ground: Ground,
    length: float,
    biases: bool,
    rng: np.random.Generator,
) -> Generator[Round, Answers, tuple[MultiHead, Array] | None]:
    """Correct all W_h (and w_h); return the model with each head's estimated error, or None.

    ``v_error`` is what a sum over all v_h is off by, at offsets of norm 1.
    """
    d = model.dim
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    tokens = length * Q.T
    if biases:
        tokens = np.concatenate([tokens, np.zeros((1, d))])
    free = np.flatnonzero(np.linalg.norm(model.W, axis=(1, 2)) + np.linalg.norm(model.w, axis=1))
    if not len(free):
        return None
    u = model.scores_of(tokens)[:, free]
    v = model.v[free]
    picked, round_ = [], []
    n = np.arange(len(free) * d)
    ones = np.ones(len(n))
    for j, b in enumerate(tokens):
        a, J, noise = _picked(u[j], v, v_error, ground, b, rng)
        picked.append((a, J, noise))
        probes = Pairs(a, b[None], n, 0 * n, ones, ones, phase="polish", purpose="data")
        round_.append(probes)
    answers = yield list(round_)
    u, errors = u.copy(), np.zeros((len(tokens), len(free)))
    for j, (probes, y) in enumerate(zip(round_, answers, strict=True)):
        _, J, noise = picked[j]
        missed = (y - model(probes[:])) / noise
        inverse = np.linalg.inv(J)
        if np.linalg.norm(J) * np.linalg.norm(inverse) > _SINGULAR:
            return None
        u[j] += (inverse @ missed).reshape(-1, d)
        errors[j] = np.linalg.norm(inverse.reshape(len(free), -1), axis=1)
    W, w = model.W.copy(), model.w.copy()
    if biases:
        w[free] = u[-1]
    W[free] = (u[:d] - w[free]).transpose(1, 2, 0) @ tokens[:d] / length**2
    total = np.hypot(np.linalg.norm(errors[:d], axis=0), np.sqrt(d * biases) * errors[-1])
    W_error = np.zeros(model.H)
    W_error[free] = _TWICE * total / length
    return MultiHead(W, model.v, w, model.c), W_error


def _picked(
    u: Array, v: Array, v_error: float, ground: Ground, b: Array, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Pick offsets; return them, their Jacobian in units of the noise, and that noise."""
    H, d = u.shape
    count = H * d * (_CANDIDATES if H * d <= _MANY else _FEWER)
    a = rng.standard_normal((count, d))
    n = np.arange(count)
    a *= (np.array(_LOGITS)[(n // H) % len(_LOGITS)] / np.abs(np.sum(a * u[n % H], axis=1)))[
        :, None
    ]
    longest = ground.reach.longest(float(np.linalg.norm(b)))
    a *= np.minimum(1.0, longest / np.linalg.norm(a, axis=1))[:, None]
    a = ground.reach.turned(a, b)
    s, values = a @ u.T, a @ v.T
    noise = ground.eta * (np.abs(values).sum(axis=1) + abs(ground.c) + np.abs(b @ ground.s))
    # the v_h are not corrected: what they are off by stays
    noise += ground.absolute + v_error * np.linalg.norm(a, axis=1)
    slope = values / (4 * np.cosh(np.clip(s, -700, 700) / 2) ** 2) / noise[:, None]
    J = (slope[:, :, None] * a[:, None, :]).reshape(count, H * d)
    _, pivots = qr(J.T, mode="r", pivoting=True)
    chosen = pivots[: H * d]
    return a[chosen], J[chosen], noise[chosen]
