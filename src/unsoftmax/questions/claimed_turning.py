"""Several heads with rotary positions, and whole layers of them, as claims that a target serves.

Of head h, group g, with keys k_i = K_g x_i + b_k, the turned query q_i = R(Δ_i)(Q_h x_N + b_q) and
γ_i = ∂o/∂s_hi = α_i O_h V_g (x_i − pool_h), a column for each number of an answer, the moves are

- Σ γ_i q_i x_iᵀ by K_g and Σ γ_i q_i by b_k, over all heads of the group;
- Σ γ_i R(−Δ_i) k_i x_Nᵀ by Q_h and the same without x_N by b_q;
- Σ γ_i Δ_i k_i·J q_i, plane by plane, by the frequencies; J turns a plane by a right angle;
- V_g pool_h by O_h, Σ O_h ⊗ pool_h by V_g, pool_h by v_h of heads that answer with a number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Rotary, RotaryHead, RotaryHeads, RotaryLayer
from unsoftmax.models.attention import pooled_tokens, softmax
from unsoftmax.probes import Array
from unsoftmax.questions.claimed_models import Claim, ClaimedAnswers, long_sums
from unsoftmax.questions.claimed_rotary import score_sizes


@dataclass(frozen=True, slots=True)
class TurnedAt:
    """One head at sequences X (B, N, d)."""

    weights: Array
    """α, (B, N)."""
    pooled: Array
    """(B, d)."""
    slopes: Array
    """γ, (B, N, m)."""
    queries: Array
    """q, (B, N, r)."""
    by_query: Array
    """Σ γ_i R(−Δ_i) k_i, (B, m, r)."""
    by_angles: Array
    """Moves by its frequencies, (B, m, r/2)."""
    rounded: Array
    """Σ |γ_i| times the size of what scores are made of, (B, m)."""

    @classmethod
    def of(cls, head: RotaryHead, X: Array, values: Array) -> TurnedAt:
        """Evaluate a head whose tokens are worth ``values``, (B, N, m)."""
        distances = np.arange(X.shape[1])[::-1].astype(float)
        keys = head.scores.keys(X)
        queries = head.rotary.turned(head.scores.queries(X[:, -1])[:, None], distances)
        weights = softmax(np.einsum("bnr,bnr->bn", keys, queries))
        mean = np.einsum("bn,bnm->bm", weights, values)
        slopes = weights[..., None] * (values - mean[:, None])
        across = Rotary(np.full(len(head.rotary), np.pi / 2)).turned(queries, np.array(1.0))
        planes = (keys * across).reshape(*keys.shape[:2], len(head.rotary), 2).sum(axis=3)
        columns = slopes.transpose(0, 2, 1)
        back = head.rotary.turned(keys, -distances)
        sizes = score_sizes(head, X, keys, queries)
        return cls(
            weights,
            pooled_tokens(X, weights),
            slopes,
            queries,
            columns @ back,
            columns @ (distances[:, None] * planes),
            np.einsum("bnm,bn->bm", np.abs(slopes), sizes),
        )


class ServedTurning(Claim):
    """What several heads and a layer of them have in common."""

    affine = True
    ordered = True
    heads: tuple[RotaryHead, ...]
    """Every head; its v does not count."""
    groups: tuple[tuple[int, ...], ...]
    """Heads that share their keys."""

    @abstractmethod
    def named(self, tensor: str, head: int) -> str:
        """Return what a tensor of a head is called: K and b_k are its group's."""

    def tensors(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        found = {}
        for h, head in enumerate(self.heads):
            for name in ("K", "Q", "k_bias", "q_bias", "frequencies"):
                array = head.arrays()[name]
                found[self.named(name, h)] = (float(np.linalg.norm(array)), array.size)
        return found | self.value_tensors()

    @abstractmethod
    def value_tensors(self) -> dict[str, tuple[float, int]]:
        """Return the norms and sizes of what tokens' values are made of, and of c."""

    def weighty_scores(self, valued: Sequence[int]) -> dict[str, float]:
        """Return what counts of the scores of heads whose values are not 0."""
        norms = {name: norm for name, (norm, _) in self.tensors().items()}
        found = {}
        for h in valued:
            own = {name: norms[self.named(name, h)] for name in ("K", "Q", "k_bias", "q_bias")}
            keys, queries = max(own["K"], own["k_bias"]), max(own["Q"], own["q_bias"])
            if queries:
                found[self.named("K", h)] = own["K"] or queries
            if keys:
                found[self.named("Q", h)] = own["Q"] or keys
                found[self.named("q_bias", h)] = max(keys, queries)
            if keys and queries and np.any(self.heads[h].rotary.folded):
                found[self.named("k_bias", h)] = max(keys, queries)
                angles = self.named("frequencies", h)
                found[angles] = norms[angles]
        return found

    def vectors(self, x: Array) -> Array:
        """Return Kᵀ R(1)(Q x + b_q) of every head, (B, H, d)."""
        rows = [
            head.rotary.turned(head.scores.queries(x), np.array(1.0)) @ head.K
            for head in self.heads
        ]
        return np.stack(rows, axis=1) if rows else np.zeros((len(x), 0, self.dim))

    def score_moves(self, at: Sequence[TurnedAt], X: Array) -> dict[str, Array]:
        """Return the moves by all that scores are made of, (B, m)."""
        last, squares = np.linalg.norm(X[:, -1], axis=1)[:, None], {}
        shared: dict[str, Array] = {}
        for h, one in enumerate(at):
            by_query = np.linalg.norm(one.by_query, axis=2)
            squares[self.named("q_bias", h)] = by_query
            squares[self.named("Q", h)] = by_query * last
            angles = self.named("frequencies", h)
            shared[angles] = shared.get(angles, 0.0) + one.by_angles
        for group in self.groups:
            some = [at[h] for h in group]
            slopes = np.concatenate([one.slopes for one in some], axis=1)
            queries = np.concatenate([one.queries for one in some], axis=1)
            by_bias = slopes.transpose(0, 2, 1) @ queries
            squares[self.named("k_bias", group[0])] = np.linalg.norm(by_bias, axis=2)
            tokens = np.tile(X, (1, len(group), 1))
            gram = _gram(queries) * _gram(tokens)
            by_key = np.maximum(0.0, np.sum(slopes * (gram @ slopes), axis=1))
            squares[self.named("K", group[0])] = np.sqrt(by_key)
        return squares | {name: np.linalg.norm(x, axis=2) for name, x in shared.items()}

    def scores_open(self, at: Sequence[TurnedAt], X: Array) -> Array:
        """Return what a certificate's bounds on W(Δ), biases included, leave open, (B, m)."""
        bound = float(np.hypot(self.left_open.bound("W"), self.left_open.bound("w")))
        if not bound:
            return np.zeros((len(X), 1))
        lengths = np.linalg.norm(X, axis=2)
        seen = np.hypot(lengths, 1.0) if "w" in self.left_open.errors else lengths
        met = min(1.0, self.left_open.tuning.alignment / self.dim) * bound * long_sums(X)
        each = [np.einsum("bnm,bn->bm", np.abs(one.slopes), seen) for one in at]
        squares = sum((np.square(one) for one in each), np.zeros((len(X), 1)))
        return np.asarray(met * np.sqrt(squares) * seen[:, -1:])


class ServedRotaryHeads(ServedTurning):
    """Several heads whose scores turn with distance, added up to a number."""

    def __init__(self, model: RotaryHeads) -> None:
        super().__init__(model)
        self.sum = model
        self.v, self.c, self.heads = model.v, model.c, model.heads
        self.groups = tuple((h,) for h in range(model.H))

    def named(self, tensor: str, head: int) -> str:  # noqa: D102
        return f"{tensor} of head {head}"

    def value_tensors(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        norms = {self.named("v", h): float(np.linalg.norm(v)) for h, v in enumerate(self.v)}
        return {**{name: (x, self.dim) for name, x in norms.items()}, "c": (abs(self.c), 1)}

    def weighty(self) -> dict[str, float]:  # noqa: D102
        values = np.linalg.norm(self.v, axis=1)
        valued = np.flatnonzero(values).tolist()
        found = {"c": max(abs(self.c), *values, 0.0) or 1.0}
        found |= {self.named("v", h): float(values[h]) for h in valued}
        return found | self.weighty_scores(valued)

    def at(self, X: Array) -> ClaimedAnswers:  # noqa: D102
        each = zip(self.heads, self.v, strict=True)
        at = [TurnedAt.of(head, X, (X @ v)[..., None]) for head, v in each]
        moves = {name: move[:, 0] for name, move in self.score_moves(at, X).items()}
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        for h, one in enumerate(at):
            moves[self.named("v", h)] = np.linalg.norm(one.pooled, axis=1)
        moves["c"] = np.ones(len(X))
        values = longest * float(np.sum(np.linalg.norm(self.v, axis=1))) * long_sums(X)
        rounded = sum((one.rounded[:, 0] for one in at), values + abs(self.c))
        found = self._answers(self.sum(X), rounded, moves, longest)
        return ClaimedAnswers(
            found.predicted, rounded, moves, found.open + self.scores_open(at, X)[:, 0]
        )


class ServedRotaryLayer(ServedTurning):
    """An attention layer whose scores turn with distance: vector answers, heads in groups."""

    def __init__(self, model: RotaryLayer) -> None:
        super().__init__(model)
        self.layer, self.outputs = model, model.outputs
        places = model.groups.tolist()
        self.groups = tuple(
            tuple(h for h in range(model.H) if places[h] == g) for g in range(model.G)
        )
        self._group_of = places
        self.heads = tuple(
            RotaryHead(
                model.K[g],
                model.Q[h],
                np.zeros(model.dim),
                model.rotary,
                k_bias=model.k_bias[g],
                q_bias=model.q_bias[h],
            )
            for h, g in enumerate(places)
        )

    def named(self, tensor: str, head: int) -> str:  # noqa: D102
        if tensor == "frequencies":
            return tensor
        shared = tensor in ("K", "k_bias", "V")
        return f"{tensor} of group {self._group_of[head]}" if shared else f"{tensor} of head {head}"

    def value_tensors(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        layer = self.layer
        found = {f"O of head {h}": x for h, x in enumerate(layer.O)}
        found |= {f"V of group {g}": x for g, x in enumerate(layer.V)} | {"c": layer.c}
        return {name: (float(np.linalg.norm(x)), x.size) for name, x in found.items()}

    def weighty(self) -> dict[str, float]:  # noqa: D102
        norms = {name: norm for name, (norm, _) in self.tensors().items()}
        values = [self.layer.values_of(h).norm for h in range(self.layer.H)]
        beside = float(self.layer.residual) * np.sqrt(self.dim)
        valued = np.flatnonzero(values).tolist()
        found = {"c": max(norms["c"], *values, beside, 0.0) or 1.0}
        names = [self.named(name, h) for h in valued for name in "OV"]
        return found | {name: norms[name] for name in names} | self.weighty_scores(valued)

    def separate(self, tensor: str, moves: Array) -> Array:  # noqa: D102
        # rows of O and entries of c move one number of the answer each
        by_number = tensor == "c" or tensor.startswith("O ")
        return np.asarray(moves.max(axis=0 if by_number else 1))

    def slope(self) -> Array:  # noqa: D102
        layer = self.layer
        M = sum((layer.values_of(h).whole for h in range(layer.H)), np.zeros((1, self.dim)))
        M = M + np.eye(self.dim) if layer.residual else M
        return np.asarray(M[np.argmax(np.linalg.norm(M, axis=1))])

    def at(self, X: Array) -> ClaimedAnswers:  # noqa: D102
        layer, lengths = self.layer, np.linalg.norm(X, axis=2)
        longest = lengths.max(axis=1, keepdims=True)
        at, squares, moves = [], np.zeros((len(X), layer.outputs)), {}
        for group in self.groups:
            values = X @ layer.V[self._group_of[group[0]]].T
            for h in group:
                at.append((h, TurnedAt.of(self.heads[h], X, values @ layer.O[h].T)))
        each = [one for _, one in sorted(at, key=lambda pair: pair[0])]
        for h, one in enumerate(each):
            V = layer.V[self._group_of[h]]
            rows = np.linalg.norm(layer.O[h] * np.linalg.norm(V, axis=1), axis=1)
            squares += (longest * long_sums(X) * rows + one.rounded) ** 2
            read = np.linalg.norm(one.pooled @ V.T, axis=1)
            moves[f"O of head {h}"] = np.repeat(read[:, None], layer.outputs, axis=1)
        moves |= self._value_moves(each) | self.score_moves(each, X)
        moves["c"] = np.ones_like(squares)
        added = np.abs(X[:, -1]) if layer.residual else 0.0
        rounded = np.sqrt(squares) + np.abs(layer.c) + added
        found = self._answers(layer(X), rounded, moves, longest)
        left_open = np.hypot(self.scores_open(each, X), self._values_open(each))
        return ClaimedAnswers(found.predicted, rounded, moves, found.open + left_open)

    def _value_moves(self, at: Sequence[TurnedAt]) -> dict[str, Array]:
        """Return ‖Σ_h O_hk ⊗ pool_h‖ over a group's heads, which is what V moves by."""
        found = {}
        for g, group in enumerate(self.groups):
            outputs = self.layer.O[list(group)]
            pooled = np.stack([at[h].pooled for h in group], axis=1)
            rows = np.einsum("hms,jms->mhj", outputs, outputs)
            squares = np.einsum("mhj,bhj->bm", rows, _gram(pooled))
            found[f"V of group {g}"] = np.sqrt(np.maximum(0.0, squares))
        return found

    def _values_open(self, at: Sequence[TurnedAt]) -> Array:
        """Return what a certificate's bound on M leaves open, (B, 1)."""
        bound, entries = self.left_open.bound("M"), self.layer.outputs * self.dim
        met = min(1.0, self.left_open.tuning.alignment / np.sqrt(entries)) * bound
        pooled = [np.linalg.norm(one.pooled, axis=1) for one in at]
        squares = sum((np.square(x) for x in pooled), np.zeros(1))
        return np.asarray(met * np.sqrt(squares)[:, None])


def _gram(rows: Array) -> Array:
    """Return the inner products of rows (B, n, k), (B, n, n)."""
    return np.asarray(rows @ rows.transpose(0, 2, 1))
