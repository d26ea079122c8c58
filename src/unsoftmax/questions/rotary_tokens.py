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

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Rotary, RotaryHead
from unsoftmax.probes import Array
from unsoftmax.questions.claim import Claim

FEWER = "keys or queries are of a lower rank than their planes: no question shows one alone."
# m, the query tokens of the longer sequences. More: slow planes turn further, and x has a smaller
# share.
_FILLERS = 8
# Draws of tokens, of which the one is taken whose weights are read best,
_TRIES = 16
# each scaled for the logit 1.5 times one of these.
_LOGIT, _SCALES = 1.5, (0.5, 1.0, 2.0)
# Tokens that are solved for are right to this share of their keys and queries.
_SOLVED = 1e-6

SEQUENCES = (
    *(("x", "y", "1"), ("0", "y", "1"), ("x", "y'", "m"), ("0", "y'", "m")),
    *(("x'", "y", "m"), ("0", "y", "m"), ("x'", "y", "1"), ("x", "0", "1"), ("x'", "0", "1")),
    *(("xa", "yp", "1"), ("0", "yp", "1"), ("xb", "yp", "1")),
)
"""First token, query token, and how often that is there."""


@dataclass(frozen=True, slots=True)
class RotaryTokens:
    """Tokens whose scores must be alike, by name."""

    tokens: Mapping[str, Array]
    fillers: int

    @classmethod
    def drawn(cls, head: RotaryHead, rng: np.random.Generator) -> RotaryTokens | None:
        """Draw tokens, and take those whose weights are read best; None if none can be solved."""
        best, found = 0.0, None
        for _ in range(_TRIES):
            x, y = rng.standard_normal((2, head.dim)) / np.sqrt(head.dim)
            plane = int(rng.integers(len(head.rotary)))
            logit = abs(x @ head.W_at(1) @ y) or 1.0
            for scale in _SCALES:
                s = float(np.sqrt(scale * _LOGIT / logit))
                one = cls._solved(head, s * x, s * y, plane)
                if one is None:
                    return None
                if (worth := one.worth(head)) > best:
                    best, found = worth, one
        return found

    @classmethod
    def _solved(cls, head: RotaryHead, x: Array, y: Array, plane: int) -> RotaryTokens | None:
        m, turned = _FILLERS, head.rotary.turned
        query = head.Q @ y + head.q_bias
        size = float(np.linalg.norm(query))
        corner = np.zeros((2, len(head.K)))
        corner[[0, 1], [2 * plane, 2 * plane + 1]] = np.sqrt(_LOGIT)
        wanted = {
            "x'": (head.K, turned(head.K @ x, np.array(m - 1.0))),
            "xa": (head.K, corner[0]),
            "xb": (head.K, corner[1]),
            "y'": (head.Q, turned(query, np.array(1.0 - m)) - head.q_bias),
            "yp": (head.Q, corner[0] - head.q_bias),
        }
        tokens = {"0": 0 * x, "x": x, "y": y}
        for name, (matrix, product) in wanted.items():
            token = np.linalg.lstsq(matrix, product, rcond=None)[0]
            missed = float(np.linalg.norm(matrix @ token - product))
            if missed > _SOLVED * (np.linalg.norm(product) + size):
                return None
            tokens[name] = token
        rounded = {k: t.astype(np.float32).astype(np.float64) for k, t in tokens.items()}
        return cls(rounded, m)

    @property
    def asked(self) -> list[Array]:
        """All that is asked: the tokens one by one, then the sequences."""
        return [*(x[None] for x in self.tokens.values()), *self.sequences.values()]

    @property
    def sequences(self) -> dict[tuple[str, str, str], Array]:
        """Every sequence that is asked, (N, d)."""
        made = {}
        for key in SEQUENCES:
            first, last, many = key
            fillers = self.fillers if many == "m" else 1
            made[key] = np.vstack([self.tokens[first], *[self.tokens[last]] * fillers])
        return made

    def worth(self, head: RotaryHead) -> float:
        """Return how well the worst of the weights is read, as a share of what answers are."""
        worst, asked = np.inf, self.sequences
        for many in "1m":
            some = {key: X for key, X in asked.items() if key[2] == many}
            X = np.array([*some.values()])
            weights = head.attention(X)[:, 0]
            values = (X[:, 0] - X[:, -1]) @ head.v
            sizes = np.linalg.norm(X, axis=2).max(axis=1) * np.linalg.norm(head.v) + abs(head.c)
            worst = min(worst, float(np.min(weights * (1 - weights) * np.abs(values) / sizes)))
        return worst


def scored_alone(claim: Claim, h: int) -> RotaryHead:
    """Return one head of a claim, its value the number of the answers that shows it best."""
    heads = claim.heads
    assert heads is not None
    assert heads.O is not None
    assert heads.K is not None
    assert heads.frequencies is not None
    g = h if heads.groups is None else int(heads.groups[h])
    whole = heads.O[h] if heads.V is None else heads.O[h] @ heads.V[g]
    v = whole[0] if len(whole) == 1 else np.linalg.svd(whole, full_matrices=False)[2][0]
    biases = {
        name: None if array is None else array[place]
        for name, array, place in (("k_bias", heads.k_bias, g), ("q_bias", heads.q_bias, h))
    }
    return RotaryHead(heads.K[g], heads.Q[h], v, Rotary(heads.frequencies[g]), **biases)
