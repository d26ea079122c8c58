"""Tokens whose scores by one head with rotary positions are alike, whatever K, or Q, is.

Sequences [x; y … y] with m query tokens show x's weight beside y's values, which single tokens show
by themselves. Between two first tokens x and x̃ the logits differ by (K x − K x̃)·R(m)(Q y + b_q):
neither the fillers nor b_k are in it. Then

- with Q y′ + b_q = R(1 − m)(Q y + b_q), that of y, m = 1 and of y′, m are the same for every K;
- with K x′ = R(m − 1) K x, that of x, m = 1 and of x′, m are the same for every Q and b_q;
- at the query token 0 b_q alone is seen; and x_a, x_b and y that one plane alone sees, at a right
  angle, show every frequency alike.

So each of K, Q, their biases and the frequencies explains changes that the others do not.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from unsoftmax.models import Rotary, RotaryHead
from unsoftmax.models.attention_map import Attention
from unsoftmax.probes import Array
from unsoftmax.questions.claim_probes import as_float32

FEWER = "keys or queries have a lower rank than their planes: no question shows one alone."
# m, the query tokens of the longer sequences. More: slow planes turn further, and x has a smaller
# share.
_FILLERS = 8
# Draws of tokens, of which the one is taken whose weights are read best,
_TRIES = 16
# each scaled for the logit 1.5 times one of these.
_LOGIT, _SCALES = 1.5, (0.5, 1.0, 2.0)
# Tokens that are solved for are right to this share of their keys and queries.
_SOLVED = 1e-6
# First token, query token, and whether that is there once or m times.
_SEQUENCES = (
    *(("x", "y", 1), ("0", "y", 1), ("x", "y'", _FILLERS), ("0", "y'", _FILLERS)),
    *(("x'", "y", _FILLERS), ("0", "y", _FILLERS), ("x'", "y", 1), ("x", "0", 1), ("x'", "0", 1)),
    *(("xa", "yp", 1), ("0", "yp", 1), ("xb", "yp", 1)),
)


def alike_in_scores(heads: Attention, h: int, rng: np.random.Generator) -> list[Array] | None:
    """Return such tokens one by one, then their sequences, (N, d); None if none can be solved."""
    head = _alone(heads, h)
    best, found = 0.0, None
    for x, y, plane in _drawn(head, rng):
        tokens = _solved(head, x, y, plane)
        if tokens is None:
            return None
        made = [np.vstack([tokens[one], *[tokens[last]] * m]) for one, last, m in _SEQUENCES]
        if (worth := min(_worth(head, made, N) for N in (2, 1 + _FILLERS))) > best:
            best, found = worth, [*(token[None] for token in tokens.values()), *made]
    return found


def _alone(heads: Attention, h: int) -> RotaryHead:
    """Return one head, its value the number of the answers that shows it best."""
    g = h if heads.groups is None else int(heads.groups[h])
    assert heads.O is not None
    assert heads.K is not None
    assert heads.frequencies is not None
    whole = heads.O[h] if heads.V is None else heads.O[h] @ heads.V[g]
    v = whole[0] if len(whole) == 1 else np.linalg.svd(whole, full_matrices=False)[2][0]
    k_bias = None if heads.k_bias is None else heads.k_bias[g]
    q_bias = None if heads.q_bias is None else heads.q_bias[h]
    turning = Rotary(heads.frequencies[g])
    return RotaryHead(heads.K[g], heads.Q[h], v, turning, k_bias=k_bias, q_bias=q_bias)


def _drawn(head: RotaryHead, rng: np.random.Generator) -> Iterator[tuple[Array, Array, int]]:
    for _ in range(_TRIES):
        x, y = rng.standard_normal((2, head.dim)) / np.sqrt(head.dim)
        plane = int(rng.integers(len(head.rotary)))
        logit = abs(x @ head.W_at(1) @ y) or 1.0
        for scale in _SCALES:
            s = float(np.sqrt(scale * _LOGIT / logit))
            yield s * x, s * y, plane


def _solved(head: RotaryHead, x: Array, y: Array, plane: int) -> Mapping[str, Array] | None:
    """Return the tokens by name."""
    turned, query = head.rotary.turned, head.Q @ y + head.q_bias
    corner = np.zeros((2, len(head.K)))
    corner[[0, 1], [2 * plane, 2 * plane + 1]] = np.sqrt(_LOGIT)
    wanted = {
        "x'": (head.K, turned(head.K @ x, np.array(_FILLERS - 1.0))),
        "xa": (head.K, corner[0]),
        "xb": (head.K, corner[1]),
        "y'": (head.Q, turned(query, np.array(1.0 - _FILLERS)) - head.q_bias),
        "yp": (head.Q, corner[0] - head.q_bias),
    }
    tokens = {"0": 0 * x, "x": x, "y": y}
    for name, (matrix, product) in wanted.items():
        tokens[name] = np.linalg.lstsq(matrix, product, rcond=None)[0]
        missed, size = matrix @ tokens[name] - product, [*product, *query]
        if np.linalg.norm(missed) > _SOLVED * np.linalg.norm(size):
            return None
    return {name: as_float32(token) for name, token in tokens.items()}


def _worth(head: RotaryHead, sequences: list[Array], tokens: int) -> float:
    """Return how well the worst of the weights is read, as a share of what answers are."""
    X = np.array([one for one in sequences if len(one) == tokens])
    weights, values = head.attention(X)[:, 0], (X[:, 0] - X[:, -1]) @ head.v
    sizes = np.linalg.norm(X, axis=2).max(axis=1) * np.linalg.norm(head.v)
    return float(np.min(weights * (1 - weights) * np.abs(values) / sizes))
