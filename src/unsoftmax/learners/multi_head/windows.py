"""Windows: offsets at which head h answers and all others of its size are saturated.

Rows a_hi = (T_i z_i + s_i n) / ‖u_h‖ with n = u_h/‖u_h‖, z_i ⟂ n, s_i about ±0.8: head h's logit
is s_i at the query token b, and moves by t·a_hi·W_h q at b + t q. The z_i are pushed away from
the other heads' hyperplanes, so that moderate T_i saturate them; weaker heads stay open and
are subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.multi_head.two_tokens import Ground, Unsaturated
from unsoftmax.probes import Array

# Equal logits would make rows of heads with a common column space equal, and ranks look lower.
_LOGITS = (0.5, 1.1)
# Others add e⁻¹⁴ of what head h does: it is subtracted in two or three sweeps.
_SATURATED = 14.0
_LEAST, _MOST = 8.0, 1e8  # T: a head alone needs no silence; beyond, no digits are left
# Heads weaker than this share of h are not saturated in its window.
_STRONG = 0.1
# Margins that are tried, in units of 1/√d; pushing steps and their size.
_MARGINS = (1.0, 0.6, 0.35, 0.2)
_PUSHES, _PUSH = 60, 0.4
_BASES = 2
# Query tokens move so little that no other head's logit moves by half its distance.
_OTHERS_MOVE = 12.0


@dataclass(frozen=True, slots=True)
class Window:
    """The window of one head: offsets (d, d), the step t of query tokens, and what it costs."""

    a: Array
    t: float
    noise: float
    """Error of ``W_h q`` that answers' rounding leaves, by estimate."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What answers to [(a+b); b] may be off by, and what errors of the v_h add."""

    ground: Ground
    length: float
    """Norm of b."""
    v_error: float

    def of_answers(self, a: Array, v: Array) -> Array:
        """Return how far reduced answers at offsets a (m, d) may be off by themselves."""
        ground = self.ground
        size = np.abs(a @ v.T).sum(axis=1) + self.length * ground.scale + abs(ground.c)
        return np.asarray(2 * (ground.eta * size + ground.absolute))

    def of_logits(self, a: Array, v: Array, h: int, s: Array) -> Array:
        """Return how far all that may move logits s (m,) of head h at offsets a (m, d)."""
        answer = self.of_answers(a, v) + self.v_error * np.linalg.norm(a, axis=1)
        with np.errstate(divide="ignore"):
            return np.asarray(2 * answer * np.cosh(s / 2) ** 2 / np.abs(a @ v[h]))


def windows(noise: Noise, b: Array, u: Array, v: Array, rng: np.random.Generator) -> list[Window]:
    """Choose a window for every head."""
    chosen = [_window(noise, u, v, h, rng) for h in range(len(u))]
    reach = noise.ground.reach
    return [replace(window, a=reach.turned(window.a, b)) for window in chosen]


def _window(noise: Noise, u: Array, v: Array, h: int, rng: np.random.Generator) -> Window:
    H, d = u.shape
    size = np.linalg.norm(u, axis=1)
    n = u[h] / size[h]
    others = np.delete(np.arange(H), h)
    others = others[size[others] > _STRONG * size[h]]
    reach = u[others] / np.minimum(size[h], size[others])[:, None]
    near = np.concatenate([reach, v[h : h + 1] / np.linalg.norm(v[h])])
    near = near - np.outer(near @ n, n)
    s = rng.uniform(*_LOGITS, d) * np.where(np.arange(d) % 2, 1.0, -1.0)
    s[-1] = -s[0]
    best: Window | None = None
    for _ in range(_BASES):
        basis, _ = np.linalg.qr(np.column_stack([n, rng.standard_normal((d, d - 1))]))
        for margin in _MARGINS:
            z = _pushed(basis[:, 1:].T, near, margin / np.sqrt(d))
            found = _of(noise, u, v, h, others, np.concatenate([z, z[:1]]), s, n)
            if best is None or found.noise < best.noise:
                best = found
    assert best is not None
    return best


def _pushed(z: Array, near: Array, margin: float) -> Array:
    """Push unit rows z until every ``|z·near|`` is at least ``margin``, as far as that goes."""
    for _ in range(_PUSHES):
        along = z @ near.T
        short = np.maximum(0.0, margin - np.abs(along))
        if not np.any(short):
            break
        z = z + _PUSH * (short * np.where(along < 0, -1.0, 1.0)) @ near
        z /= np.linalg.norm(z, axis=1, keepdims=True)
    return z


def _of(
    noise: Noise,
    u: Array,
    v: Array,
    h: int,
    others: Array,
    z: Array,
    s: Array,
    n: Array,
) -> Window:
    d = len(n)
    size = np.linalg.norm(u, axis=1)
    along = np.abs(z @ u[others].T)
    weight = np.linalg.norm(v, axis=1)
    saturated = _SATURATED + np.log(np.maximum(1.0, weight[others] / weight[h]))
    with np.errstate(divide="ignore"):
        T = size[h] / np.min(along / saturated, axis=1, initial=np.inf)
        room = np.sqrt(d) * np.min(along / size[others], initial=np.inf) / _OTHERS_MOVE
    most = noise.ground.reach.step(noise.length)
    longest = noise.ground.reach.longest(noise.length, most) * size[h]
    if longest <= 2 * np.abs(s).max():
        raise Unsaturated
    T = np.minimum(np.clip(T, _LEAST, _MOST), np.sqrt(longest**2 - np.square(s).max()))
    a = (T[:, None] * z + s[:, None] * n) / size[h]
    t = min(most, noise.length * min(np.sqrt(d) / np.sqrt(np.mean(T**2)), room))
    try:
        inverse = np.linalg.inv(a)
    except np.linalg.LinAlgError:
        return Window(a, t, np.inf)
    error = noise.of_logits(a, v, h, s)
    return Window(a, t, float(np.linalg.norm(inverse * error)) / t)
