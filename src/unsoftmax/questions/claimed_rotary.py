"""A head with rotary positions as the claim that a target serves it.

With k_i = K x_i + b_k, the turned query q_i = R(Δ_i)(Q x_N + b_q) and g_i = ∂f/∂s_i the moves are
Σ g_i q_i x_iᵀ by K, Σ g_i R(−Δ_i) k_i x_Nᵀ by Q, the same without tokens by the biases, and
Σ g_i Δ_i k_i·J q_i, plane by plane, by the frequencies; J turns a plane by a right angle.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Rotary, RotaryHead
from unsoftmax.models.attention import pooled_tokens, score_gradient, softmax
from unsoftmax.probes import Array
from unsoftmax.questions.claimed_models import Claim, ClaimedAnswers, long_sums

KEYS, QUERIES = ("K", "k_bias"), ("Q", "q_bias")


class ServedRotaryHead(Claim):
    """One head whose scores turn with distance."""

    affine = True
    ordered = True

    def __init__(self, model: RotaryHead) -> None:
        super().__init__(model)
        self.head = model
        # J: a plane's (x, y) becomes (−y, x)
        self._right_angle = Rotary(np.full(len(model.rotary), np.pi / 2))

    def vectors(self, x: Array) -> Array:
        """Return Kᵀ R(1)(Q x + b_q), which score a token beside the last one, (B, 1, d)."""
        head = self.head
        turned = head.rotary.turned(head.scores.queries(x), np.array(1.0))
        return np.asarray(turned @ head.K)[:, None]

    def tensors(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        arrays = self.head.arrays()
        return {name: (float(np.linalg.norm(x)), x.size) for name, x in arrays.items()}

    def weighty(self) -> dict[str, float]:  # noqa: D102
        norms = {name: norm for name, (norm, _) in self.tensors().items()}
        found = {"c": max(norms["c"], norms["v"]) or 1.0}
        if not norms["v"]:
            return found
        keys, queries = (max(norms[name] for name in names) for names in (KEYS, QUERIES))
        found["v"] = norms["v"]
        if queries:
            found["K"] = norms["K"] or queries
        if keys:
            found |= {"Q": norms["Q"] or keys, "q_bias": max(keys, queries)}
        if keys and queries and np.any(self.head.rotary.folded):
            found |= {"k_bias": max(keys, queries), "frequencies": norms["frequencies"]}
        return found

    def at(self, X: Array) -> ClaimedAnswers:  # noqa: D102
        head, distances = self.head, np.arange(X.shape[1])[::-1].astype(float)
        keys = head.scores.keys(X)
        queries = head.rotary.turned(head.scores.queries(X[:, -1])[:, None], distances)
        weights = softmax(np.einsum("bnr,bnr->bn", keys, queries))
        g = score_gradient(weights, X @ head.v)
        back = np.einsum("bn,bnr->br", g, head.rotary.turned(keys, -distances))
        beside = keys * self._right_angle.turned(queries, np.array(1.0))
        planes = beside.reshape(*beside.shape[:2], len(head.rotary), 2).sum(axis=3)
        lengths = np.linalg.norm(X, axis=2)
        by_query, last = np.linalg.norm(back, axis=1), lengths[:, -1]
        moves = {
            "K": np.linalg.norm(np.einsum("bn,bnr,bnd->brd", g, queries, X), axis=(1, 2)),
            "Q": by_query * last,
            "k_bias": np.linalg.norm(np.einsum("bn,bnr->br", g, queries), axis=1),
            "q_bias": by_query,
            "frequencies": np.linalg.norm(np.einsum("bn,bnk->bk", g * distances, planes), axis=1),
            "v": np.linalg.norm(pooled_tokens(X, weights), axis=1),
            "c": np.ones(len(X)),
        }
        longest = lengths.max(axis=1)
        values = longest * float(np.linalg.norm(head.v)) * long_sums(X) + abs(head.c)
        roundings = values + np.sum(np.abs(g) * score_sizes(head, X, keys, queries), axis=1)
        found = self._answers(head(X), roundings, moves, longest)
        return ClaimedAnswers(
            found.predicted, roundings, moves, found.open + self._scores_open(g, lengths)
        )

    def _scores_open(self, g: Array, lengths: Array) -> Array:
        """Return what a certificate's bounds on W(Δ), biases included, leave open of answers."""
        bound = float(np.hypot(self.left_open.bound("W"), self.left_open.bound("w")))
        if not bound:
            return np.zeros(len(g))
        seen = np.hypot(lengths, 1.0) if "w" in self.left_open.errors else lengths
        met = min(1.0, self.left_open.tuning.alignment / self.dim)
        return np.asarray(met * bound * long_sums(g) * np.sum(np.abs(g) * seen, 1) * seen[:, -1])


def score_sizes(head: RotaryHead, X: Array, keys: Array, queries: Array) -> Array:
    """Return the size of what the scores of sequences (B, N, d) are made of, (B, N).

    Entries of keys and queries round by themselves, and so do the angles of planes, which grow
    with positions: their errors add up as random numbers do.

    Parameters
    ----------
    head : RotaryHead
        What scores.
    X : ndarray, shape (B, N, d)
        Its sequences.
    keys, queries : ndarray, shape (B, N, r)
        The keys of all tokens, and the query as it meets each of them.
    """
    lengths = np.linalg.norm(X, axis=2)[..., None]
    of_keys = _by_plane(lengths * np.linalg.norm(head.K, axis=1) + np.abs(head.k_bias))
    of_query = _by_plane(lengths[:, -1:] * np.linalg.norm(head.Q, axis=1) + np.abs(head.q_bias))
    key, query = _by_plane(keys), _by_plane(queries)
    angles = np.abs(head.rotary.frequencies) * (X.shape[1] - 1)
    squares = (of_keys * query) ** 2 + (key * of_query) ** 2 + (angles * key * query) ** 2
    return np.asarray(np.sqrt(squares.sum(axis=2)))


def _by_plane(rows: Array) -> Array:
    """Return the lengths of pairs of coordinates, (…, r/2)."""
    return np.asarray(np.hypot(rows[..., 0::2], rows[..., 1::2]))
