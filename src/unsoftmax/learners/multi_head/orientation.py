"""What two tokens leave open: signs, heads W beside −W, heads W = 0. H + 1 queries.

Three copies of a+b and one b shift every logit by ℓ = ln 3. With v_h = α_h − β_h for heads
(W_h, α_h), (−W_h, β_h), m_h = α_h + β_h, and v₀ the value of a head W = 0,

    F − c − b·s = Σ_h [v_h·a (σ(s_h+ℓ) − σ(−s_h+ℓ))/2 + m_h·a ψ_h] + ¾ v₀·a,
    ψ_h = (σ(s_h+ℓ) + σ(−s_h+ℓ))/2,   Σ m_h + v₀ = s.

ψ_h is ½ where head h is saturated, so its own window gives m_h. One row of it tells m_h = ±v_h,
the usual case of a single head; else all d rows are asked.

What a cap on tokens may hide: heads whose logits are too small to be seen. Where no gate switches
along a half circle, heads are taken for W = 0. Without a cap that leaves nothing out. Under one,
logits may be small at the longest tokens: then v·a·a·(W b)/4 is left of each head, which is looked
for there by eight queries, and what cannot be seen is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import UnsaturatedGates
from unsoftmax.learners.multi_head.window_sweeps import TokenHeads
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Indices, Sequences

# Copies of a+b beside one b: the smallest number that shifts logits, by ln 3, and keeps all digits.
COPIES = 3

# m_h counts as ±v_h if it is so to this accuracy: a head beside its opposite is missed where the
# values of that one are smaller by this.
SIGN = 1e-8
# The same in units of what answers' precision leaves; the larger of the two counts.
NOISES = 30.0
# Random directions among which those farthest from all hyperplanes show a head W = 0.
CANDIDATES = 2000
# Logits up to this move answers by less than the search for jumps resolves.
UNSEEN = 1e-8
# Gates that leave more open than this share of the values hide a head W = 0.
TOO_OPEN = 1e-6
# Sweeps over heads that have their opposite beside them: each leaves e⁻¹⁴ of the error.
PAIR_SWEEPS = 4
# Pairs of tokens that are asked.
PAIRS = 8
# What is more than this many times the answers' error is seen.
UNSEEN_NOISES = 30.0
# a·(W b) is ‖W‖‖a‖‖b‖/d for random a and b; of eight, all are below a third of that once in 10⁶.
SMALL = 3.0


@dataclass(frozen=True, slots=True)
class OrientedHeads:
    """Heads as they are: which W each belongs to, its sign, and values."""

    index: list[int]
    sign: list[float]
    v: list[Array]
    constant: Array | None
    """The value of a head W = 0, if there is one."""
    v_error: float
    """Estimated error of the values (2-norm, the largest over heads)."""
    unswitched: float
    """Scores W b that the head W = 0 may have: nothing that was asked would have shown them."""

    def __len__(self) -> int:
        return len(self.index) + (self.constant is not None)

    def times_off(self, s: Array) -> float:
        """Return how many times more than estimated the values miss their sum s (d,), at least 1.

        s was read before all searches, the values in this one: answers that drift changed since,
        and are coarser than the first ones told.
        """
        values = self.v if self.constant is None else [*self.v, self.constant]
        expected = self.v_error * np.sqrt(len(values))
        if expected == 0:
            return 1.0
        return max(1.0, float(np.linalg.norm(np.sum(values, axis=0) - s) / expected))


def orient(token: TokenHeads, rng: np.random.Generator) -> Asking[OrientedHeads]:
    """Tell every head's sign, and the heads that two tokens cannot see."""
    v, error = token.seen.v, token.seen.error.v_error
    v0, v0_error = yield from _constant(token, rng)
    if v0 is not None:
        error = max(error, v0_error)
    f, paired = yield from _signs(token, v0)
    m = np.sign(f)[:, None] * v
    if len(paired):
        m, m_error = yield from _sums_of_pairs(token, paired, m, v0)
        error = max(error, m_error)
    index: list[int] = []
    sign: list[float] = []
    values: list[Array] = []
    for h in range(len(v)):
        if h in paired:
            found = list(_pair(m[h], v[h], error))
        else:
            found = [(float(np.sign(f[h])), np.sign(f[h]) * v[h])]
        index += [h] * len(found)
        sign += [turned for turned, _ in found]
        values += [value for _, value in found]
    unswitched = UNSEEN / token.reduced.lengths.far(token.length)
    return OrientedHeads(index, sign, values, v0, error, unswitched)


def _pair(m: Array, v: Array, error: float) -> list[tuple[float, Array]]:
    """Return signs and values of W and −W, from their sum and difference; leave out zeros."""
    both = ((1.0, (m + v) / 2), (-1.0, (m - v) / 2))
    least = max(SIGN * float(np.linalg.norm(v)), NOISES * error)
    return [(sign, value) for sign, value in both if float(np.linalg.norm(value)) > least]


def _signs(token: TokenHeads, v0: Array | None) -> Asking[tuple[Array, Indices]]:
    """Ask one row of every window; return f with m_h = f_h v_h, and the heads with |f| ≠ 1."""
    seen = token.seen
    H, d = seen.u.shape
    rows = [int(np.argmax(np.abs(seen.windows[h].a @ seen.v[h]))) for h in range(H)]
    a = np.array([seen.windows[h].a[i] for h, i in enumerate(rows)]).reshape(H, d)
    rest, psi = yield from _shifted(token, a, v0)
    f = np.asarray(np.linalg.solve((a @ seen.v.T) * psi, rest), dtype=np.float64)
    still = np.zeros(1)
    noise = np.array([seen.error.of_logits(a[[h]], seen.v, h, still)[0] for h in range(H)])
    own = np.abs(np.diag(psi)) if H else np.zeros(0)
    allowed = np.maximum(SIGN, NOISES * noise / own)
    return f, np.flatnonzero(np.abs(np.abs(f) - 1) > allowed)


def _ask(token: TokenHeads, a: Array) -> Asking[Array]:
    """Ask three copies of each a+b with one b; return F − c − b·s."""
    X = np.repeat((a + token.b)[:, None], COPIES + 1, axis=1)
    X[:, -1] = token.b
    [y] = yield [Sequences(X, phase="orientation", purpose="data")]
    return np.asarray(y - token.reduced.c - token.b @ token.reduced.s)


def _shifted(token: TokenHeads, a: Array, v0: Array | None) -> Asking[tuple[Array, Array]]:
    """Return Σ_h m_h·a (ψ_h − ½), one for each offset, and ψ_h − ½ (n, H)."""
    y = yield from _ask(token, a)
    s = a @ token.seen.u.T
    up, down = shifted_gate(s), shifted_gate(-s)
    rest = y - np.sum((a @ token.seen.v.T) * (up - down) / 2, axis=1) - a @ token.reduced.s / 2
    if v0 is not None:
        rest -= a @ v0 / 4
    return rest, (up + down - 1) / 2


def shifted_gate(s: Array) -> Array:
    """Return σ(s + ln 3)."""
    # beyond 709 float64's exp overflows
    return np.asarray(COPIES / (COPIES + np.exp(-np.clip(s, -700, 700))))


def _constant(token: TokenHeads, rng: np.random.Generator) -> Asking[tuple[Array | None, float]]:
    """Look for a head W = 0: far out, where all gates are steps, copies change it alone."""
    reduced, seen = token.reduced, token.seen
    d, far = reduced.dim, reduced.lengths.far(token.length)
    directions = rng.standard_normal((CANDIDATES, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    directions = reduced.lengths.turned(directions, token.b)
    size = np.linalg.norm(seen.u, axis=1)
    clear = np.min(np.abs(directions @ seen.u.T) / size, axis=1, initial=np.inf)
    picked = directions[np.argsort(-clear)[: 2 * d]]
    first = yield from _quarter(token, picked[:1], far)
    noise = 8 * reduced.error(far, token.length) * reduced.scale
    noise += seen.error.v_error * np.sqrt(len(seen.v))
    noise += _open(token, picked[: d + 1], far)
    if abs(first[0]) <= max(SIGN * reduced.scale, NOISES * noise):
        return None, 0.0
    A = picked[1 : d + 1]
    v0 = np.asarray(np.linalg.solve(A, (yield from _quarter(token, A, far))), dtype=np.float64)
    return v0, float(noise * np.linalg.norm(np.linalg.inv(A)))


def _quarter(token: TokenHeads, directions: Array, far: float) -> Asking[Array]:
    """Return v₀·a at unit directions."""
    y = (yield from _ask(token, far * directions)) / far
    s = far * (directions @ token.seen.u.T)
    gates = shifted_gate(s) - shifted_gate(-s)
    steps = np.sum((directions @ token.seen.v.T) * gates, axis=1)
    return np.asarray(4 * (y - directions @ token.reduced.s / 2 - steps / 2))


def _open(token: TokenHeads, directions: Array, far: float) -> float:
    """Return what is added to v₀·a, at most, by gates that a cap leaves open."""
    s = far * (directions @ token.seen.u.T)
    psi = np.abs(shifted_gate(s) + shifted_gate(-s) - 1) / 2
    values = np.abs(directions @ token.seen.v.T)
    added = 4 * float(np.max(np.sum(values * psi, axis=1), initial=0.0))
    if added > TOO_OPEN * token.reduced.scale:
        raise UnsaturatedGates
    return added


def _sums_of_pairs(
    token: TokenHeads, paired: Indices, m: Array, v0: Array | None
) -> Asking[tuple[Array, float]]:
    """Read the whole m_h of heads that have their opposite beside them, and its error."""
    seen, d = token.seen, token.reduced.dim
    a = np.concatenate([seen.windows[h].a for h in paired])
    rest, psi = yield from _shifted(token, a, v0)
    m = m.copy()
    m[paired] = 0.0
    for _ in range(PAIR_SWEEPS):
        for n, h in enumerate(paired):
            rows = slice(n * d, (n + 1) * d)
            terms = (a[rows] @ m.T) * psi[rows]
            own = rest[rows] - terms.sum(axis=1) + terms[:, h]
            m[h] = np.linalg.solve(seen.windows[h].a, own / psi[rows, h])
    error = 0.0
    for n, h in enumerate(paired):
        window, here = seen.windows[h].a, psi[n * d : (n + 1) * d, h]
        # what moves a logit moves what is left of the answer by v_h·a/4 at most
        logits = seen.error.of_logits(window, seen.v, h, np.zeros(d))
        left = logits * np.abs(window @ seen.v[h]) / np.abs(here)
        error = max(error, float(np.linalg.norm(np.linalg.inv(window) * left)))
    return m, error


def bound_unseen_logits(
    model: MultiHead, reduced: ReducedAnswers, rng: np.random.Generator
) -> Asking[dict[str, float]]:
    """Look for logits that the model has not; return bounds on its errors.

    Raises
    ------
    UnsaturatedGates
        There are some.
    """
    d, lengths = model.dim, reduced.lengths
    length = lengths.length
    far = lengths.far(length)
    b, a = (rng.standard_normal((PAIRS, d)) for _ in range(2))
    total = model.v.sum(axis=0)
    if np.any(total):  # heads show in their values: half of a along them
        a = a / np.linalg.norm(a, axis=1, keepdims=True) + total / np.linalg.norm(total)
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    a, b = far * lengths.turned(a, b), length * b
    X = np.stack([a + b, b], axis=1)
    [y] = yield [Sequences(X, phase="hidden heads", purpose="pilot")]
    size = reduced.scale * (far + length) + abs(reduced.c)
    allowed = UNSEEN_NOISES * float(reduced.precision.error(size))
    if np.any(np.abs(y - model(X)) > allowed):
        raise UnsaturatedGates
    values = max(float(np.median(np.abs(a @ total))), allowed)
    logit = 4 * allowed / values
    error = SMALL * d * logit / far
    v = float(allowed / far * np.sqrt(d) + logit * reduced.scale)
    return {"W": error / length, "v": v, "w": error}
