"""What two tokens leave open: signs, heads W beside −W, heads W = 0. H + 1 queries.

Three copies of a+b and one b shift every logit by ℓ = ln 3. With v_h = α_h − β_h for heads
(W_h, α_h), (−W_h, β_h), m_h = α_h + β_h, and v₀ the value of a head W = 0,

    F − c − b·s = Σ_h [v_h·a (σ(s_h+ℓ) − σ(−s_h+ℓ))/2 + m_h·a ψ_h] + ¾ v₀·a,
    ψ_h = (σ(s_h+ℓ) + σ(−s_h+ℓ))/2,   Σ m_h + v₀ = s.

ψ_h is ½ where head h is saturated, so its own window gives m_h. One row of it tells m_h = ±v_h,
the usual case of a single head; else all d rows are asked.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.multi_head.columns import Base
from unsoftmax.learners.multi_head.two_tokens import Unsaturated
from unsoftmax.probes import Array, Indices, Round, Sequences
from unsoftmax.protocol import Answers

_COPIES = 3
# m_h is ±v_h if it is so to this accuracy, or to what answers' precision leaves.
_SIGN, _NOISES = 1e-8, 30.0
_CANDIDATES = 2000
# Logits up to this move answers by less than the search for jumps resolves.
_UNSEEN = 1e-8
# Gates that leave more open than this share of the values tell no head W = 0.
_TOO_OPEN = 1e-6
_SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Oriented:
    """Heads as they are: ``sign`` and index of the W each belongs to, and values."""

    index: list[int]
    sign: list[float]
    v: list[Array]
    constant: Array | None
    """The value of a head W = 0, if there is one."""
    v_error: float
    """Estimated error of the values (2-norm, the largest over heads)."""
    unswitched: float
    """Scores W b that the head W = 0 may have: nothing that was asked would have shown them."""


def orient(base: Base, rng: np.random.Generator) -> Generator[Round, Answers, Oriented]:
    """Tell every head's sign, and the heads that two tokens cannot see."""
    H, d = base.u.shape
    v0, v0_error = yield from _constant(base, rng)
    rows = [int(np.argmax(np.abs(base.windows[h].a @ base.v[h]))) for h in range(H)]
    a = np.array([base.windows[h].a[i] for h, i in enumerate(rows)]).reshape(H, d)
    rest, psi = yield from _shifted(base, a, v0)
    M = (a @ base.v.T) * psi
    f = np.linalg.solve(M, rest)
    noise = np.array([base.noise.of_logits(a[[h]], base.v, h, np.zeros(1))[0] for h in range(H)])
    own = np.abs(np.diag(psi)) if H else np.zeros(0)
    odd = np.flatnonzero(np.abs(np.abs(f) - 1) > np.maximum(_SIGN, _NOISES * noise / own))
    m = np.sign(f)[:, None] * base.v
    error = base.v_error if v0 is None else max(base.v_error, v0_error)
    if len(odd):
        m, m_error = yield from _both(base, odd, m, v0)
        error = max(error, m_error)
    index: list[int] = []
    sign: list[float] = []
    values: list[Array] = []
    for h in range(H):
        if h not in odd:
            index.append(h)
            sign.append(float(np.sign(f[h])))
            values.append(np.sign(f[h]) * base.v[h])
            continue
        for turned, value in ((1.0, (m[h] + base.v[h]) / 2), (-1.0, (m[h] - base.v[h]) / 2)):
            least = max(_SIGN * float(np.linalg.norm(base.v[h])), _NOISES * error)
            if float(np.linalg.norm(value)) > least:
                index.append(h)
                sign.append(turned)
                values.append(value)
    unswitched = _UNSEEN / base.ground.reach.far(float(np.linalg.norm(base.b)))
    return Oriented(index, sign, values, v0, error, unswitched)


def _ask(base: Base, a: Array) -> Generator[Round, Answers, Array]:
    X = np.repeat((a + base.b)[:, None], _COPIES + 1, axis=1)
    X[:, -1] = base.b
    [y] = yield [Sequences(X, phase="orientation", purpose="data")]
    return np.asarray(y - base.ground.c - base.b @ base.ground.s)


def _shifted(
    base: Base, a: Array, v0: Array | None
) -> Generator[Round, Answers, tuple[Array, Array]]:
    """Return Σ_h m_h·a (ψ_h − ½), one for each offset, and ψ_h − ½ (n, H)."""
    y = yield from _ask(base, a)
    s = a @ base.u.T
    up, down = _gate(s), _gate(-s)
    rest = y - np.sum((a @ base.v.T) * (up - down) / 2, axis=1) - a @ base.ground.s / 2
    if v0 is not None:
        rest -= a @ v0 / 4
    return rest, (up + down - 1) / 2


def _gate(s: Array) -> Array:
    """Return σ(s + ln 3)."""
    return np.asarray(_COPIES / (_COPIES + np.exp(-np.clip(s, -700, 700))))


def _constant(
    base: Base, rng: np.random.Generator
) -> Generator[Round, Answers, tuple[Array | None, float]]:
    """Look for a head W = 0: far out, where all gates are steps, only it feels the copies."""
    d = base.ground.dim
    far = base.ground.reach.far(float(np.linalg.norm(base.b)))
    directions = rng.standard_normal((_CANDIDATES, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    directions = base.ground.reach.turned(directions, base.b)
    size = np.linalg.norm(base.u, axis=1)
    clear = np.min(np.abs(directions @ base.u.T) / size, axis=1, initial=np.inf)
    picked = directions[np.argsort(-clear)[: 2 * d]]
    first = yield from _quarter(base, picked[:1], far)
    noise = 8 * base.ground.error(far, float(np.linalg.norm(base.b))) * base.ground.scale
    noise += base.v_error * np.sqrt(len(base.v))
    noise += _open(base, picked[: d + 1], far)
    if abs(first[0]) <= max(_SIGN * base.ground.scale, _NOISES * noise):
        return None, 0.0
    A = picked[1 : d + 1]
    v0 = np.asarray(np.linalg.solve(A, (yield from _quarter(base, A, far))), dtype=np.float64)
    return v0, float(noise * np.linalg.norm(np.linalg.inv(A)))


def _quarter(base: Base, directions: Array, far: float) -> Generator[Round, Answers, Array]:
    """Return v₀·a at unit directions."""
    y = (yield from _ask(base, far * directions)) / far
    s = far * (directions @ base.u.T)
    steps = np.sum((directions @ base.v.T) * (_gate(s) - _gate(-s)), axis=1)
    return np.asarray(4 * (y - directions @ base.ground.s / 2 - steps / 2))


def _open(base: Base, directions: Array, far: float) -> float:
    """Return what is added to v₀·a, at most, by gates that a cap leaves open."""
    s = far * (directions @ base.u.T)
    psi = np.abs(_gate(s) + _gate(-s) - 1) / 2
    added = 4 * float(np.max(np.sum(np.abs(directions @ base.v.T) * psi, axis=1), initial=0.0))
    if added > _TOO_OPEN * base.ground.scale:
        raise Unsaturated
    return added


def _both(
    base: Base, odd: Indices, m: Array, v0: Array | None
) -> Generator[Round, Answers, tuple[Array, float]]:
    """Read the whole m_h of heads that have their opposite beside them."""
    d = base.ground.dim
    a = np.concatenate([base.windows[h].a for h in odd])
    rest, psi = yield from _shifted(base, a, v0)
    m = m.copy()
    m[odd] = 0.0
    for _ in range(_SWEEPS):
        for n, h in enumerate(odd):
            rows = slice(n * d, (n + 1) * d)
            terms = (a[rows] @ m.T) * psi[rows]
            own = rest[rows] - terms.sum(axis=1) + terms[:, h]
            m[h] = np.linalg.solve(base.windows[h].a, own / psi[rows, h])
    error = 0.0
    for n, h in enumerate(odd):
        window, here = base.windows[h].a, psi[n * d : (n + 1) * d, h]
        # what moves a logit moves what is left of the answer by v_h·a/4 at most
        logits = base.noise.of_logits(window, base.v, h, np.zeros(d))
        left = logits * np.abs(window @ base.v[h]) / np.abs(here)
        error = max(error, float(np.linalg.norm(np.linalg.inv(window) * left)))
    return m, error
