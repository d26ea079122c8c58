"""The attention before a known network, one query per parameter, from its answers along segments.

Recovers W (and w) of T(X) = g(Σ_i α_i x_i), g known, from r(2d − r) values where W has rank r, d²
where it has full rank, and d more for g at the query tokens. Unlike the paper's reduction it
needs no antisymmetry: g may have biases, and A w_o may be 0. W is determined unless g is constant.

    u_j = W x_j + w for query tokens x_j = β_j b_j, b_j orthonormal          d logits each
    the columns of a matrix of rank r at r tokens span its range, Q          r·d logits
    then u_j = Q k_j for the other tokens, and for 0                         r logits each
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.transformer.aim import Aim, aim_from, take
from unsoftmax.learners.transformer.known import Known
from unsoftmax.learners.transformer.reading import (
    SPARE,
    Reading,
    complete,
    measure,
    most_again,
    steep,
)
from unsoftmax.measure import offsets
from unsoftmax.measure.precision import UNIT
from unsoftmax.models import Transformer
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.solve.dense import solution_error

# The common scale is found with these many tokens, in at most so many rounds.
_FIRST, _ROUNDS = 2, 7
_UNSEEN, _LOUDER, _SOFTER = 1e-6, 1e3, 1 / 8
_GOOD = (0.1, 1.0)
_WANTED = 0.5  # root mean square of logits: few are then above 6, or below 0.05
# Where w may be read, in lengths of the first query token: g may be flat or turn at 0.
_BESIDE = (0.0, -1.0, 0.5, -0.5, 2.0, -2.0, 8.0, -8.0, 64.0, -64.0)
_BIAS_REACH = 16.0  # times the same: w alone may be out of reach, W is not
_LONGEST = 1e6  # times the network's own length: further out its biases are lost


@dataclass(frozen=True, slots=True)
class Attention:
    """What was recovered, with bounds on its errors."""

    model: Transformer
    W_error: float
    w_error: float


def recover_attention(
    known: Known, rank: int | None, biases: bool, anchored: bool, rng: np.random.Generator
) -> Generator[Round, Answers, Attention]:
    """Ask for W and w.

    Parameters
    ----------
    known : Known
        The network, not constant.
    rank : int, optional
        Rank of W, of [W w] with biases; full where None.
    biases : bool
        Whether there may be a w.
    anchored : bool
        Ask g once more for every logit.
    rng : Generator
        Makes the query tokens.
    """
    dim, length = known.network.dim, known.length
    T = offsets.rotation(dim, rng)
    B = T.rows[np.arange(dim)]
    if rank == 0:
        none = np.zeros((0, dim))
        return Attention(Transformer.from_factors(none, none, known.network), 0.0, 0.0)
    full = rank is None or rank >= dim
    columns = dim if rank is None else min(rank, dim)
    bias = np.zeros(dim)
    if biases:
        bias = yield from _rough_bias(known)
    beta, reach = yield from _scale(known, B[:_FIRST], length, bias)
    each = np.ones(columns)
    reading = yield from measure(
        known, B[:columns], beta * each, reach * each, None, bias, "W", anchored
    )
    u, error = reading.solve()
    lengths = reading.aim.beta
    Q, k = None, u
    if not full:
        Q, R = np.linalg.qr((u / lengths[:, None]).T)
        # what the columns' error tilts their span by, as other tokens see it: see `LowRankHead`
        tilt = 2 * float(np.linalg.norm(error / lengths))
        # offsets within the span see √(d/r) times as much of a column
        less = np.full(dim - columns, (columns / dim) ** 0.25)
        reading = yield from measure(
            known, B[columns:], less * beta, less * reach, Q, bias, "W, rows", anchored
        )
        rows, rows_error = reading.solve()
        mixed = tilt * np.linalg.norm(np.linalg.solve(R, rows.T), axis=0)
        k = np.vstack([u @ Q, rows])
        error = np.concatenate([error, rows_error + mixed])
        lengths = np.append(lengths, reading.aim.beta)
    k_w, w_error, zero = np.zeros(k.shape[1]), 0.0, 0.0
    first, first_error = k[0] / lengths[0], error[0] / abs(lengths[0])
    if biases:
        moderate = float(np.sqrt(columns) / np.linalg.norm(k[0])) if np.any(k[0]) else length
        reading, zero = yield from _beside(
            known, B[0], float(lengths[0]), bias, moderate, Q, anchored
        )
        [k_0], [e_0] = reading.solve()
        if Q is not None:
            e_0 += tilt * float(np.linalg.norm(np.linalg.solve(R, k_0)))
        # W x_0 + w at x_0 = γ b_1, and at x_1 = β_1 b_1
        first = (k[0] - k_0) / (lengths[0] - zero)
        first_error = (error[0] + e_0) / abs(lengths[0] - zero)
        k_w, w_error = k_0, float(e_0)
        if zero:
            k_w, w_error = k_0 - zero * first, float(e_0 + abs(zero) * first_error)
    by_token = (k - k_w) / lengths[:, None]
    off = (error + w_error) / np.abs(lengths)
    by_token[0], off[0] = first, first_error
    solved = T.solve(by_token.T).T
    bound = solution_error(T, float(np.linalg.norm(off)), solved)
    if Q is None:
        return Attention(Transformer(solved, known.network, k_w), bound, w_error)
    bound += 8 * UNIT * float(np.linalg.norm(solved))
    model = Transformer.from_factors(Q.T, solved, known.network, Q @ k_w)
    return Attention(model, bound, w_error)


def most_queries(dim: int, rank: int | None, biases: bool, anchored: bool) -> int:
    """Bound the queries of `recover_attention`, all that are asked again among them."""
    full = rank is None or rank >= dim
    r = dim if rank is None else min(rank, dim)
    blocks = [(dim if full else r, dim)]  # query tokens, logits of each
    if full:
        blocks += [(1, dim)] * biases
    else:
        blocks += [(dim - r + biases, r)]
    once = sum(k * n + (k * n if anchored else k + k * n // SPARE) for k, n in blocks)
    return once + sum(most_again(k * n) for k, n in blocks) + 2 * (_FIRST + 1 + biases) * _ROUNDS


def _rough_bias(known: Known) -> Generator[Round, Answers, Array]:
    """Guess how large w is, from two offsets of the token 0: only its size matters."""
    dim = known.network.dim
    reach = known.length
    aim = aim_from(known, np.zeros((1, dim)), np.ones(1), np.array([reach]), None)
    for _ in range(_ROUNDS):
        if aim.flat:
            break
        reading = Reading(known, aim, "w, scale")
        yield from reading.ask(reading.pilots, "pilot")
        t, _ = reading.logits(reading.pilots)
        if np.all(np.isfinite(t)):
            size = float(np.sqrt(np.mean((t / aim.alpha[reading.pilots]) ** 2)))
            return np.full(dim, size)
        aim = replace(aim, alpha=_SOFTER * aim.alpha)
    return np.zeros(dim)


def _beside(
    known: Known,
    b: Array,
    beta: float,
    bias: Array,
    moderate: float,
    basis: Array | None,
    anchored: bool,
) -> Generator[Round, Answers, tuple[Reading, float]]:
    """Read W x_0 + w at x_0 = γ b, wherever on b's line answers tell most.

    Offsets of length ``moderate`` give moderate logits at γ = ``beta``.
    """
    typical = float(np.linalg.norm(bias)) / np.sqrt(len(b))
    reach = min(1 / typical if typical else np.inf, _BIAS_REACH * known.length)
    best: tuple[float, Aim, float] | None = None
    for share in _BESIDE:
        zero = share * beta
        far = moderate / max(1.0, abs(share)) if share else reach
        aim = aim_from(known, b[None], np.array([zero]), np.array([far]), basis)
        # how well offsets tell: by how far a logit moves them, and that the answer
        rows = np.arange(len(aim.alpha))
        rise = np.abs(aim.segments(known.network, rows).rise)
        tells = float(np.min(np.maximum(aim.steep, 0.0) * rise * aim.alpha))
        if best is None or tells > best[0]:
            best = tells, aim, zero
    assert best is not None
    reading = Reading(known, steep(known, best[1]), "w")
    yield from reading.ask(reading.pilots, "pilot")
    return (yield from complete(reading, anchored)), best[2]


def _scale(
    known: Known, B: Array, length: float, bias: Array
) -> Generator[Round, Answers, tuple[float, float]]:
    """Find lengths of tokens and of offsets for which logits are moderate."""
    dim = known.network.dim
    beta = reach = length
    biased = float(np.linalg.norm(bias))
    longest = np.sqrt(dim) / biased if biased else np.inf
    for _ in range(_ROUNDS):
        reach = min(reach, longest)
        each = np.ones(len(B))
        aim = steep(known, take(known, B, beta * each, reach * each, None))
        reading = Reading(known, aim, "scale")
        rows = reading.pilots
        yield from reading.ask(rows, "pilot")
        t, _ = reading.logits(rows)
        t = t - aim.alpha[rows] * (aim.offsets[rows] @ bias)
        seen = np.abs(t[np.isfinite(t)])
        size = float(np.sqrt(np.mean(seen**2))) if len(seen) > len(t) // 2 else np.inf
        if _GOOD[0] <= size <= _GOOD[1]:
            break
        if not np.isfinite(size):
            factor = _SOFTER**2
        else:
            factor = min(_WANTED / size, _LOUDER**2) if size > _UNSEEN else _LOUDER**2
        if factor > 1 and beta * np.sqrt(factor) > _LONGEST * length:
            break
        wanted = beta * reach * factor
        reach = min(float(np.sqrt(wanted)), longest)
        beta = wanted / reach
    return beta, reach
