"""Do two multi-head models compute the same function? Decided on their heads.

With n copies of a+b and one b a head answers b·v + (a·v)·σ(t + ln n), t = a·(W b + w). In the
length of a its poles are at (±iπ − ln n)/t: for n = 2 they are others for every other t, and a
head with t = 0 has none. So heads with different (W, w) and v ≠ 0 are linearly independent
already on sequences of at most three tokens, and functions are equal exactly if the heads are:
those with equal (W, w) merged by adding up their v (Proposition 7.1), those with v = 0 dropped.
Two tokens, each once, do not suffice: σ(t) = 1 − σ(−t), so there the head (W, w, v) is what
(−W, −w, −v) and (0, 0, 2v) are together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from unsoftmax.models.attention import score_gradient
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.single_head import SingleHead
from unsoftmax.models.witnesses import candidates, largest_of, norm_of, octave
from unsoftmax.probes import Array

# Pairs of heads that differ most are tried for a witness; one that separates by this many
# times the rounding ends the search.
_TRIED = 8
_CLEAR = 2.0**10
_EPS = float(np.finfo(float).eps)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the heads of two models say; ``nearly`` if merging heads within tolerance decides."""

    equal: bool
    nearly: bool
    gap: float
    differing: list[tuple[SingleHead, SingleHead]]
    """Heads that belong together or stand alone, beside one with v = 0; the worst first."""


def as_multi_head(head: SingleHead) -> MultiHead:
    """Return the model whose only head this is."""
    arrays = head.arrays()
    return MultiHead.from_arrays({n: x if n == "c" else x[None] for n, x in arrays.items()})


def canonical_heads(model: MultiHead) -> MultiHead:
    """Return the model that stands for all that compute the same function.

    Heads with equal (W, w) are one and their v is added up, rounded once; those with v = 0 are
    left out; the rest is ordered by W, then w, entry by entry.
    """
    scores = _scores(model) + 0.0  # −0 becomes 0
    keys = _in_order(scores)
    kept: list[int] = []
    v: list[Array] = []
    group: list[int] = []
    order = sorted(range(model.H), key=keys.__getitem__)
    for here, after in zip(order, [*order, None][1:], strict=True):
        group.append(here)
        if after is not None and keys[here] == keys[after]:
            continue
        total = model.v[here] if len(group) == 1 else _sum(model.v[group])
        if np.any(total):
            kept.append(here)
            v.append(total + 0.0)
        group = []
    d = model.dim
    values = np.array(v).reshape(len(v), d)
    return MultiHead(
        scores[kept, : d * d].reshape(-1, d, d), values, scores[kept, d * d :], model.c
    )


def compare(a: MultiHead, b: MultiHead, rtol: float, atol: float) -> Comparison:
    """Match the heads of two models' canonical forms, and say how far apart they are.

    Matched heads' [W w] differ by at most ``rtol`` times the larger norm plus ``atol``. All v
    and c then count as one block, in which a head that is not matched differs by its v.
    """
    exactly = _exactly(a, b)
    a, b = canonical_heads(a), canonical_heads(b)
    relative, close = _distances(_scores(a), _scores(b), rtol, atol)
    unit = octave(max(largest_of(np.append(m.v, m.c)) for m in (a, b)))
    mine, other = a.v / unit, b.v / unit
    constant = abs(a.c / unit - b.c / unit)
    size = max(math.hypot(np.linalg.norm(v), m.c / unit) for m, v in ((a, mine), (b, other)))
    apart = np.linalg.norm(mine[:, None] - other, axis=2)
    alone, missing = np.linalg.norm(mine, axis=1), np.linalg.norm(other, axis=1)

    tolerance = rtol * size + atol / unit
    cost = np.where(close, apart**2, np.inf)
    matched = _match(cost, alone**2, missing**2)
    squares = constant**2 + sum(share for share, _, _ in matched)
    equal = math.sqrt(squares) <= tolerance if rtol or atol else exactly

    scale = size or 1.0
    best = _match(np.maximum(relative, apart / scale), alone / scale, missing / scale)
    gap = max([constant / scale, *(share for share, _, _ in best)])
    nothing = SingleHead(np.zeros((a.dim, a.dim)), np.zeros(a.dim))
    heads, others = [*a.heads, nothing], [*b.heads, nothing]
    best.sort(key=lambda found: -found[0])
    differing = [(heads[g], others[h]) for share, g, h in best if share > 0]
    return Comparison(
        equal, not equal and _merged(a, b, rtol, atol, unit) <= tolerance, gap, differing
    )


def separate(
    a: MultiHead, b: MultiHead, differing: list[tuple[SingleHead, SingleHead]]
) -> Array | None:
    """Find a sequence of at most three tokens on which float64 tells the models apart."""
    best: tuple[float, Array | None] = (1.0, None)
    # answers out of float64's range are no evidence
    with np.errstate(over="ignore", invalid="ignore"):
        for X in _sequences(a, b, differing):
            apart, noise = np.abs(a(X) - b(X)), _rounding(a, X) + _rounding(b, X)
            ratio = np.nan_to_num(apart / np.maximum(noise, np.finfo(float).tiny), posinf=0.0)
            k = int(np.argmax(ratio))
            if ratio[k] > best[0]:
                best = float(ratio[k]), X[k]
            if best[0] > _CLEAR:
                break
    return best[1]


def _sequences(
    a: MultiHead, b: MultiHead, differing: list[tuple[SingleHead, SingleHead]]
) -> Iterator[Array]:
    """Make sequences at scales where the heads that differ weigh: one token, two, and three."""
    nothing = np.zeros((a.dim, a.dim))
    sums = [SingleHead(nothing, m.v.sum(axis=0), None, m.c) for m in (a, b)]
    for mine, other in [(sums[0], sums[1]), *differing[:_TRIED]]:
        for X in candidates(mine, other):
            yield X
            if X.shape[1] == 2:
                yield X[:, [0, 0, 1]]
                # another offset beside the first, from another pair of the same size
                beside = np.roll(X[:, 0] - X[:, 1], 4, axis=0) + X[:, 1]
                yield np.stack([X[:, 0], beside, X[:, 1]], axis=1)


def _rounding(model: MultiHead, X: Array) -> Array:
    """Bound the rounding of answers: of values, and of scores, which move the weights."""
    d, (_, length, _) = model.dim, X.shape
    norms = np.linalg.norm(X, axis=2)
    longest = norms.max(axis=1)
    sums = 4 * (d + length + model.H + 8) * _EPS
    heads = np.array([norm_of(v) for v in model.v])
    noise: Array = sums * (longest * heads.sum() + abs(model.c))
    values = model.v @ X.transpose(0, 2, 1)
    spread = np.abs(score_gradient(model.attention(X), values)).sum(axis=2)
    arrays = model.arrays()
    product = np.ones(model.H)
    for name in "WKQ":
        if name in arrays:
            product = product * [norm_of(x) for x in arrays[name]]
    vectors = np.outer(norms[:, -1], product) + [norm_of(w) for w in model.w]
    moved = sums * longest[:, None] * vectors
    # to first order; scores that rounding moves further say nothing
    noise = noise + np.sum(np.where(moved < 0.1, 3 * moved * spread, np.inf), axis=1)
    return noise


def _scores(model: MultiHead) -> Array:
    """Return [W w] of every head as a row."""
    return np.column_stack([model.W.reshape(model.H, model.dim**2), model.w])


def _in_order(rows: Array) -> list[bytes]:
    """Return what sorts as the rows do: floats as integers of the same order, highest byte first.

    Rows may be long: 10⁵ entries and more.
    """
    bits = np.ascontiguousarray(rows).view(np.uint64)
    sign = np.uint64(2**63)
    return [row.tobytes() for row in np.where(bits < sign, bits + sign, ~bits).astype(">u8")]


def _sum(v: Array) -> Array:
    """Add up rows, exactly but for one rounding: in any order the same."""
    return np.array([math.fsum(column) for column in v.T.tolist()])


def _exactly(a: MultiHead, b: MultiHead) -> bool:
    """Decide whether a − b is 0, without rounding."""
    difference = MultiHead(
        np.concatenate([a.W, b.W]), np.concatenate([a.v, -b.v]), np.concatenate([a.w, b.w])
    )
    return a.c == b.c and not canonical_heads(difference).H


def _distances(mine: Array, other: Array, rtol: float, atol: float) -> tuple[Array, Array]:
    """Return how far rows are apart relative to the larger, and whether that is within tolerance.

    Norms are taken in units that are powers of two, so that no square leaves float64.
    """
    relative = np.zeros((len(mine), len(other)))
    close = np.full(relative.shape, True)
    for g, h in np.ndindex(relative.shape):
        unit = octave(max(largest_of(mine[g]), largest_of(other[h])))
        x, y = mine[g] / unit, other[h] / unit
        difference = float(np.linalg.norm(x - y))
        size = float(max(np.linalg.norm(x), np.linalg.norm(y)))
        close[g, h] = difference <= rtol * size + atol / unit
        relative[g, h] = difference / size if size else 0.0
    return relative, close


def _match(cost: Array, alone: Array, missing: Array) -> list[tuple[float, int, int]]:
    """Match rows with columns, or leave them alone, at the least cost in all.

    Returns each match's cost, row and column; −1 for what a row or column lacks.
    """
    rows, columns = cost.shape
    whole = np.zeros((rows + columns, rows + columns))
    whole[:rows, :columns] = cost
    whole[:rows, columns:] = alone[:, None]
    whole[rows:, :columns] = missing
    return [
        (float(whole[g, h]), int(g) if g < rows else -1, int(h) if h < columns else -1)
        for g, h in zip(*linear_sum_assignment(whole), strict=True)
        if g < rows or h < columns
    ]


def _merged(a: MultiHead, b: MultiHead, rtol: float, atol: float, unit: float) -> float:
    """Return the norm of what differs when heads whose [W w] are within tolerance are merged."""
    scores = np.concatenate([_scores(a), _scores(b)])
    _, close = _distances(scores, scores, rtol, atol)
    label = np.arange(len(scores))
    for _ in label:  # as many steps as a chain of neighbours can have
        label = np.min(np.where(close, label, len(label)), axis=1)
    total = np.zeros((len(scores), a.dim))
    np.add.at(total, label, np.concatenate([a.v, -b.v]) / unit)
    return math.hypot(np.linalg.norm(total), a.c / unit - b.c / unit)
