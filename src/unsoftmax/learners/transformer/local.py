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
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners import offsets
from unsoftmax.learners.offsets import Offsets
from unsoftmax.learners.transformer.reading import Known, Reading, aimed, measure, most_again
from unsoftmax.models import Transformer
from unsoftmax.models.relu_equality import length_of
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.theory.precision import UNIT

# The common scale is found with these many tokens, in at most so many rounds.
_FIRST, _ROUNDS = 4, 7
_UNSEEN, _LOUDER, _SOFTER = 1e-6, 1e3, 1 / 8
_GOOD = (0.2, 4.0)
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
    dim = known.network.dim
    T = offsets.rotation(dim, rng)
    B = T.rows[np.arange(dim)]
    length = length_of(known.network)
    nothing = np.zeros((1, dim))
    one = np.ones(1)
    bias, w, w_error = nothing[0], nothing[0], 0.0
    full = rank is None or rank >= dim
    if biases:
        reach = yield from _bias_scale(known, length)
        if full:
            reading = yield from measure(
                known, nothing, one, reach * one, None, bias, "w", anchored
            )
            u, error = reading.solve()
            w, w_error = u[0], float(error[0])
            bias = w
        else:
            bias = yield from _rough_bias(known, reach)
    if rank == 0:
        none = np.zeros((0, dim))
        return Attention(Transformer.from_factors(none, none, known.network), 0.0, 0.0)
    beta, reach = yield from _scale(known, B[:_FIRST], length, bias)
    columns = dim if full else int(rank or 0)
    reading = yield from measure(
        known, B[:columns], beta * np.ones(columns), reach * np.ones(columns), None, bias, "W",
        anchored,
    )  # fmt: skip
    u, error = reading.solve()
    lengths = reading.aim.beta
    if full:
        by_token = (u - w) / lengths[:, None]
        off = float(np.linalg.norm((error + w_error) / lengths))
        W = T.solve(by_token.T).T
        bound = T.error(off, W)
        return Attention(Transformer(W, known.network, w if biases else None), bound, w_error)
    return (yield from _rest(known, T, B, reading, u, error, bias, (beta, reach), biases, anchored))


def most_queries(dim: int, rank: int | None, biases: bool, anchored: bool) -> int:
    """Bound the queries of `recover_attention`, all that are asked again among them."""
    full = rank is None or rank >= dim
    r = dim if rank is None else min(rank, dim)
    blocks = [(dim if full else r, dim)]  # query tokens, logits of each
    if full:
        blocks += [(1, dim)] * biases
    else:
        blocks += [(dim - r + biases, r)]
    once = sum(k * n * (1 + anchored) + k for k, n in blocks)
    return once + sum(most_again(k * n) for k, n in blocks) + 2 * (_FIRST + 1 + biases) * _ROUNDS


def _rest(
    known: Known,
    T: Offsets,
    B: Array,
    columns: Reading,
    u: Array,
    error: Array,
    bias: Array,
    scale: tuple[float, float],
    biases: bool,
    anchored: bool,
) -> Generator[Round, Answers, Attention]:
    """Ask for the other tokens within the span of the columns."""
    rank, dim = u.shape
    Q, R = np.linalg.qr((u / columns.aim.beta[:, None]).T)
    rest = dim - rank
    tokens = np.vstack([B[rank:], np.zeros((int(biases), dim))])
    beta, reach = (np.append(np.full(rest, s), np.full(int(biases), o))
                   for s, o in zip(scale, (1.0, scale[1]), strict=True))  # fmt: skip
    k, k_error = np.zeros((len(tokens), rank)), np.zeros(len(tokens))
    lengths = np.zeros(0)
    if len(tokens):
        reading = yield from measure(known, tokens, beta, reach, Q, bias, "W, rows", anchored)
        k, k_error = reading.solve()
        lengths = reading.aim.beta
    k_w, w_error = np.zeros(rank), 0.0
    # what the columns' error tilts their span by, as other tokens see it: see `LowRankHead`
    off = error / np.abs(columns.aim.beta)
    tilt = float(np.linalg.norm(off))
    mixed = np.linalg.norm(np.linalg.solve(R, k.T), axis=0)
    k_error = k_error + 2 * tilt * mixed
    if biases:
        k_w, w_error = k[-1], float(k_error[-1])
    by_token = np.vstack([
        (u @ Q - k_w) / columns.aim.beta[:, None],
        (k[:rest] - k_w) / lengths[:rest, None],
    ])  # fmt: skip
    each = np.concatenate([off, k_error[:rest] / np.abs(lengths[:rest])])
    each += w_error / np.abs(np.concatenate([columns.aim.beta, lengths[:rest]]))
    right = T.solve(by_token.T).T
    bound = T.error(float(np.linalg.norm(each)), right) + 8 * UNIT * float(np.linalg.norm(right))
    w = Q @ k_w if biases else None
    return Attention(Transformer.from_factors(Q.T, right, known.network, w), bound, w_error)


def _bias_scale(known: Known, length: float) -> Generator[Round, Answers, float]:
    """Find how long offsets from the token 0 should be."""
    reach = length
    dim = known.network.dim
    for _ in range(_ROUNDS):
        reading = aimed(known, np.zeros((1, dim)), np.ones(1), np.array([reach]), None, "w, scale")
        yield from reading.ask(np.arange(min(2, dim)), "pilot")
        t, _ = reading.logits(np.arange(min(2, dim)))
        size = float(np.max(np.abs(t)))
        if not np.isfinite(size):
            reach *= _SOFTER
        elif size > _GOOD[1] or (size < _GOOD[0] and reach < _BIAS_REACH * length):
            reach = float(min(reach / max(size, _UNSEEN), _BIAS_REACH * length))
        else:
            break
    return reach


def _rough_bias(known: Known, reach: float) -> Generator[Round, Answers, Array]:
    """Guess w's part in logits from two offsets: only its size matters."""
    dim = known.network.dim
    reading = aimed(known, np.zeros((1, dim)), np.ones(1), np.array([reach]), None, "w, scale")
    rows = np.arange(min(2, dim))
    yield from reading.ask(rows, "pilot")
    t, _ = reading.logits(rows)
    size = float(np.sqrt(np.mean((t / reading.aim.alpha[rows]) ** 2)))
    return np.full(dim, size)


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
        reading = aimed(known, B, beta * each, reach * each, None, "scale")
        rows = reading.aim.rows(np.arange(len(B)), slice(0, 2))
        yield from reading.ask(rows, "pilot")
        t, _ = reading.logits(rows)
        aim = reading.aim
        t = t - aim.alpha[rows] * (aim.offsets[rows] @ bias)
        seen = np.abs(t[np.isfinite(t)])
        size = float(np.sqrt(np.mean(seen**2))) if len(seen) > len(t) // 2 else np.inf
        if _GOOD[0] <= size <= _GOOD[1]:
            break
        if not np.isfinite(size):
            factor = _SOFTER**2
        else:
            factor = min(1 / size, _LOUDER**2) if size > _UNSEEN else _LOUDER**2
        if factor > 1 and beta * np.sqrt(factor) > _LONGEST * length:
            break
        wanted = beta * reach * factor
        reach = min(float(np.sqrt(wanted)), longest)
        beta = wanted / reach
    return beta, reach
