"""As many queries again, at moderate logits: errors of W from 10⁻¹² to 10⁻¹⁴, or close heads.

Windows pay for silence: their offsets are long and query tokens close together, and where two
heads are close no digits are left. Once all heads are nearly known, none need be silent. At query
tokens b_j of an orthonormal basis all u_h = W_h b_j + w_h are solved for together,

    F(a, b_j) − c − b_j·s = Σ_h (a·v_h) σ(a·u_h)

from H·d answers each by Newton's method, and four more to check. The offsets are picked among
random ones of moderate logits by pivoted QR.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import qr
from scipy.special import expit

from unsoftmax.learners.multi_head.search import Heads
from unsoftmax.learners.multi_head.two_tokens import Ground
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Pairs, Round
from unsoftmax.protocol import Answers

# One system has H·d unknowns: beyond, solving d of them takes longer than asking.
_LARGEST = 900
_CANDIDATES, _FEWER, _MANY = 6, 2, 200
_LOGITS = (1.0, 2.0, 3.0)
# Worse systems than this correct nothing.
_SINGULAR = 1e9
# Equations more than unknowns, for each query token: of two solutions one must fit these so many
# times better. One that is further away than this share of ‖u‖ is none.
_CHECKS, _TOLD, _BEND_MOST = 4, 10.0, 0.5
_POWERS, _BEND = 8, 1e-3
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
    better = yield from _corrected(model, v_error, ground, found.length, biases, rng)
    if better is None or better[1].max() > found.errors["W"].max():
        return None
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
    P = _frame(d, biases, rng)
    tokens = length * P
    free = np.flatnonzero(np.linalg.norm(model.W, axis=(1, 2)) + np.linalg.norm(model.w, axis=1))
    if not len(free):
        return None
    u = model.scores_of(tokens)[:, free]
    v = model.v[free]
    picked: list[tuple[Array, Array]] = []
    round_ = []
    for j, b in enumerate(tokens):
        a, noise = _picked(u[j], v, v_error, ground, b, rng)
        picked.append((a, noise))
        n, ones = np.arange(len(a)), np.ones(len(a))
        probes = Pairs(a, b[None], n, 0 * n, ones, ones, phase="polish", purpose="data")
        round_.append(probes)
    answers = yield list(round_)
    u, errors = u.copy(), np.zeros((len(tokens), len(free)))
    flat = model.v.sum(axis=0) - v.sum(axis=0)  # of heads W = 0
    for j, (b, y) in enumerate(zip(tokens, answers, strict=True)):
        a, noise = picked[j]
        rest = ground.c + b @ ground.s + a @ flat / 2  # Σ v_h is known better than all v_h
        solution = _solved(_Equations(v, a, y - rest, noise), u[j])
        if solution is None:
            return None
        u[j], errors[j] = solution
    W, w = model.W.copy(), model.w.copy()
    if biases:
        w[free] = u.mean(axis=0)
    W[free] = u.transpose(1, 2, 0) @ np.linalg.pinv(P).T / length
    W_error = np.zeros(model.H)
    W_error[free] = _TWICE * np.linalg.norm(errors, axis=0) / length
    return MultiHead(W, model.v, w, model.c), W_error


def _frame(d: int, biases: bool, rng: np.random.Generator) -> Array:
    """Return d unit vectors at right angles; with biases d + 1 whose sum is 0, evenly spread.

    The query token 0 would tell w alone, and nothing where w is 0.
    """
    if not biases:
        return np.linalg.qr(rng.standard_normal((d, d)))[0]
    Q, _ = np.linalg.qr(np.column_stack([np.ones(d + 1), rng.standard_normal((d + 1, d))]))
    return np.asarray(Q[:, 1:] * np.sqrt((d + 1) / d))


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
    beside = float(np.linalg.norm(b)) * ground.scale + abs(ground.c)
    noise = ground.eta * (np.abs(a @ v.T).sum(axis=1) + beside)
    # the v_h are not corrected: what they are off by stays
    noise += ground.absolute + v_error * np.linalg.norm(a, axis=1)
    _, pivots = qr(_Equations(v, a, a, noise).jacobian(u).T, mode="r", pivoting=True)
    chosen = pivots[: H * d + _CHECKS]
    return a[chosen], noise[chosen]


@dataclass(frozen=True, slots=True)
class _Equations:
    """Σ_h (a·v_h) σ(a·u_h) = y for the u_h (H, d), the last of them to check a solution."""

    v: Array
    a: Array
    y: Array
    noise: Array

    def of(self, u: Array) -> Array:
        """Return the left side, in units of noise."""
        return np.asarray(np.sum((self.a @ self.v.T) * expit(self.a @ u.T), axis=1) / self.noise)

    def missed(self, u: Array) -> Array:
        """Return how far u is off, in units of noise."""
        return np.asarray(self.y / self.noise - self.of(u))

    def jacobian(self, u: Array) -> Array:
        """Return the derivatives by all u_h (n, H·d), in units of noise."""
        slope = (self.a @ self.v.T) / (4 * np.cosh(np.clip(self.a @ u.T, -700, 700) / 2) ** 2)
        slope /= self.noise[:, None]
        return np.asarray((slope[:, :, None] * self.a[:, None, :]).reshape(len(self.a), -1))


def _solved(equations: _Equations, u: Array) -> tuple[Array, Array] | None:
    """Solve by Newton's method; return the u_h and their errors (H,).

    Where two heads are close, the derivative along one direction n is as small as they are far
    apart, and as far again from the solution lies another: where σ_min t + ½ (w·F'')t² is 0 once
    more, w being where n leads to. The two equations that are left over tell which is right.
    """
    first = _newton(equations, u)
    if first is None:
        return None
    u, inverse = first
    errors = np.linalg.norm(inverse.reshape(len(u), -1), axis=1)
    w = np.ones(u.size)
    for _ in range(_POWERS):
        w = inverse.T @ (inverse @ w)
        w /= np.linalg.norm(w)
    n = inverse @ w
    smallest = 1 / float(np.linalg.norm(n))
    n = smallest * n.reshape(u.shape)
    h = _BEND * float(np.linalg.norm(u))
    bend = equations.of(u + h * n) - 2 * equations.of(u) + equations.of(u - h * n)
    bent = float(w @ bend[: u.size]) / h**2
    if not 2 * smallest < _BEND_MOST * abs(bent) * float(np.linalg.norm(u)):
        return u, errors
    second = _newton(equations, u - 2 * smallest / bent * n)
    if second is None:
        return u, errors
    left = [float(np.linalg.norm(equations.missed(x)[u.size :])) for x in (u, second[0])]
    if _TOLD * left[1] < left[0]:
        u, inverse = second
        return u, np.linalg.norm(inverse.reshape(len(u), -1), axis=1)
    if left[1] < _TOLD * left[0]:
        errors = np.hypot(errors, np.linalg.norm(second[0] - u, axis=1))
    return u, errors


def _newton(equations: _Equations, u: Array) -> tuple[Array, Array] | None:
    """Return a solution and the inverse of the derivative there."""
    moved, size = np.inf, u.size
    for _ in range(_STEPS):
        J = equations.jacobian(u)[:size]
        try:
            inverse = np.linalg.inv(J)
        except np.linalg.LinAlgError:
            return None
        with np.errstate(over="ignore"):
            if not np.linalg.norm(J) * np.linalg.norm(inverse) < _SINGULAR:
                return None
        step = (inverse @ equations.missed(u)[:size]).reshape(u.shape)
        last, moved = moved, float(np.linalg.norm(step) / np.linalg.norm(u))
        if not moved < 1:
            return None
        u = u + step
        if moved < _SETTLED or last <= moved < _FLOOR:
            return u, np.asarray(inverse)
    return None
