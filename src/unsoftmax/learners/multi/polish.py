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
from scipy.special import expit

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
# Newton's steps end when they are rounding.
_STEPS, _SETTLED, _FLOOR = 40, 1e-14, 1e-9
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
    better = yield from corrected(found, ground, biases, rng)
    if better is None:
        return replace(found, notes=(*found.notes, "Polishing the heads gained nothing."))
    return better


def corrected(
    found: Heads, ground: Ground, biases: bool, rng: np.random.Generator
) -> Generator[Round, Answers, Heads | None]:
    """Correct the heads, or return None where that gains nothing."""
    model = found.model
    if model.H * model.dim > _LARGEST or found.low_rank:
        return None
    v_error = float(np.linalg.norm(found.errors["v"]))
    better = yield from _newton(model, v_error, ground, found.length, biases, rng)
    if better is None or better[1].max() > found.errors["W"].max():
        return None
    model, W_error = better
    errors = {**found.errors, "W": W_error, "w": W_error * found.length * biases}
    return replace(found, model=model, errors=errors)


def _newton(
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
    picked: list[tuple[Array, Array]] = []
    round_ = []
    n = np.arange(len(free) * d)
    ones = np.ones(len(n))
    for j, b in enumerate(tokens):
        a, noise = _picked(u[j], v, v_error, ground, b, rng)
        picked.append((a, noise))
        probes = Pairs(a, b[None], n, 0 * n, ones, ones, phase="polish", purpose="data")
        round_.append(probes)
    answers = yield list(round_)
    u, errors = u.copy(), np.zeros((len(tokens), len(free)))
    flat = model.v.sum(axis=0) - v.sum(axis=0)  # of heads W = 0
    for j, (b, y) in enumerate(zip(tokens, answers, strict=True)):
        a, noise = picked[j]
        rest = model.c + b @ model.v.sum(axis=0) + a @ flat / 2
        solution = _solved(u[j], v, a, y - rest, noise)
        if solution is None:
            return None
        u[j], inverse = solution
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
) -> tuple[Array, Array]:
    """Pick offsets; return them and the noise of their answers."""
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
    noise = ground.eta * (np.abs(a @ v.T).sum(axis=1) + abs(ground.c) + np.abs(b @ ground.s))
    # the v_h are not corrected: what they are off by stays
    noise += ground.absolute + v_error * np.linalg.norm(a, axis=1)
    _, pivots = qr(_jacobian(u, v, a, noise).T, mode="r", pivoting=True)
    chosen = pivots[: H * d]
    return a[chosen], noise[chosen]


def _jacobian(u: Array, v: Array, a: Array, noise: Array) -> Array:
    """Return the derivatives by all u_h (n, H·d) of the answers at a (n, d), in units of noise."""
    slope = (a @ v.T) / (4 * np.cosh(np.clip(a @ u.T, -700, 700) / 2) ** 2) / noise[:, None]
    return np.asarray((slope[:, :, None] * a[:, None, :]).reshape(len(a), -1))


def _solved(u: Array, v: Array, a: Array, y: Array, noise: Array) -> tuple[Array, Array] | None:
    """Solve Σ_h (a·v_h) σ(a·u_h) = y for the u_h by Newton's method; also return J⁻¹.

    One step does where the u_h are known well. Where two heads are close it takes some: along
    one direction the derivative is as small as they are far apart.
    """
    moved = np.inf
    for _ in range(_STEPS):
        J = _jacobian(u, v, a, noise)
        if not np.linalg.cond(J) < _SINGULAR:
            return None
        inverse = np.linalg.inv(J)
        missed = (y - np.sum((a @ v.T) * expit(a @ u.T), axis=1)) / noise
        step = (inverse @ missed).reshape(u.shape)
        last, moved = moved, float(np.linalg.norm(step) / np.linalg.norm(u))
        if not moved < 1:
            return None
        u = u + step
        if moved < _SETTLED or last <= moved < _FLOOR:
            return u, np.asarray(inverse)
    return None
