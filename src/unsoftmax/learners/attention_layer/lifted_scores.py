"""From answers to many keys to keys, queries and their biases: pure arithmetic.

Of one group of heads, with the rows κ_i = R(Δ_i)ᵀ(K a_i + b_k), the columns q = Q_h b + b_q, and
the query token's own scores σ, which are unknown, one for each column:

    L_0 = κ q − 1 σᵀ      L_m = κ R(m) q − 1 σᵀ      C takes the mean row off
    C L_0 = Z Vᵀ          T_m = Z⁺ C L_m V = P R(m) P⁻¹
    mean(L_m − L_0) V = z̄ᵀ(T_m − I)         κ = (Z + 1 z̄ᵀ)P
    R(Δ_i) κ_i = K a_i + b_k                 K and b_k from all keys
    log p_i/p_b = ((K a_i + b_k)ᵀR(Δ_i) − (K b + b_k)ᵀ)(Q_h b + b_q)     further b

Of planes that do not turn z̄ and b_k change no answer, and are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.attention_layer.group_scores import (
    GroupAnswers,
    GroupHeads,
    GroupKeys,
    GroupScores,
    columns_of_groups,
    distances_of,
    least_squares,
)
from unsoftmax.learners.attention_layer.spaced_keys import BiasedKeyAnswers
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array
from unsoftmax.solve.full_rank import solved
from unsoftmax.solve.leading_rows import leading_rows


@dataclass(frozen=True, slots=True)
class CentredScores(GroupScores):
    """Scores of one group, of which Z is what differs from the mean key."""

    lift: Array = field(kw_only=True)
    """Mean(L_m − L_0) V, (r,)."""

    @classmethod
    def of(cls, here: Array, near: Array, far: Array | None, rank: int) -> CentredScores:
        """Take L_0 (keys, columns), and of the first keys L_1 and L_m."""
        V = leading_rows(centred(here), rank).T
        Z = centred(here @ V)
        steps = [
            least_squares(centred(Z[: len(table)]), centred(table @ V))
            for table in (near, far)
            if table is not None
        ]
        last = near if far is None else far
        first = slice(len(last))
        beside = Z[first].mean(axis=0) @ (steps[-1] - np.eye(len(steps[-1])))
        lift = np.mean((last - here[first]) @ V, axis=0) - beside
        return cls(Z, V, steps[0], None if far is None else steps[1], lift=lift)

    def mean_key(self, P: Array, turning: int) -> Array:
        """Return z̄ᵀ P, (r,): the mean of κ, 0 in planes that do not turn."""
        assert self.far is not None
        turned = np.linalg.solve(P, self.far @ P)[: 2 * turning, : 2 * turning]
        mean = np.zeros(len(P))
        lifted = (self.lift @ P)[: 2 * turning]
        mean[: 2 * turning] = np.linalg.solve((turned - np.eye(2 * turning)).T, lifted)
        return mean


@dataclass(frozen=True, slots=True)
class BiasedKeys(GroupKeys):
    """What is known of a group before the other query tokens are asked."""

    bias: Array
    """b_k, (rows,)."""

    def rows(self, keys: Array, b: Array, distances: Array, rotary: Rotary) -> Array:
        """Return R(Δ_i)ᵀ(K a_i + b_k) − (K b + b_k) for keys (n, d)."""
        turned = rotary.turned(keys @ self.K.T + self.bias, -distances)
        return np.asarray(turned - (self.K @ b + self.bias))


@dataclass(frozen=True, slots=True)
class LiftedAnswers(GroupAnswers):
    """All answers that scores with biases are computed from."""

    def scores(self, layer: LayerMap, values: HeadMaps) -> list[GroupScores]:
        """Return what every group's heads score."""
        parts = [self.first, self.near, *([] if self.far is None else [self.far])]
        tables = [columns_of_groups(part.scores(layer, values), self.groups) for part in parts]
        far = [None] * len(self.groups) if self.far is None else tables[2]
        return [
            CentredScores.of(here, near, there, self.rank)
            for here, near, there in zip(tables[0], tables[1], far, strict=True)
        ]

    def base_token(self, layer: LayerMap, values: HeadMaps, least: float) -> Array:
        """Return the shortest token whose keys are opposite to the key biases, (d,).

        Directions of which keys show less than the share ``least`` are left out.
        """
        found, _ = self.keys(self.scores(layer, values))
        K = np.vstack([one.K for one in found])
        bias = np.concatenate([one.bias for one in found if isinstance(one, BiasedKeys)])
        # how long a plane's rows are is free: all alike
        planes = np.linalg.norm(K.reshape(-1, 2 * K.shape[1]), axis=1)
        sizes = np.repeat(np.where(planes > 0, planes, 1.0), 2)
        K, bias = K / sizes[:, None], bias / sizes
        return np.asarray(self.base - np.linalg.lstsq(K, bias, rcond=least)[0])

    def keys(self, seen: Sequence[GroupScores]) -> tuple[list[GroupKeys], Rotary]:
        """Return every group's K and b_k, and the queries of the first tokens."""
        planes, count = self.planes(seen), (self.rank + 1) // 2
        angles, rotary = self.common(planes)
        keys = self.first.keys.reshape(-1, self.first.keys.shape[2])
        homogeneous = np.hstack([keys, np.ones((len(keys), 1))])
        found: list[GroupKeys] = []
        for one, plane in zip(seen, planes, strict=True):
            assert isinstance(one, CentredScores)
            padded = ((0, 0), (0, 2 * count - self.rank))
            mean = one.mean_key(plane.P, len(angles))
            rows = np.pad(one.Z @ plane.P + mean, padded)
            turned = rotary.turned(rows, distances_of(self.first))
            K = solved(homogeneous, turned)
            queries = np.pad(np.linalg.solve(plane.P, one.V.T), padded[::-1])
            bias = np.where(np.arange(2 * count) < 2 * len(angles), K[-1], 0.0)
            found.append(BiasedKeys(K[:-1].T, queries, bias))
        return found, rotary

    def solved(self, layer: LayerMap, values: HeadMaps) -> GroupHeads:
        """Compute all keys and queries, and their biases."""
        assert self.further is not None
        found, rotary = self.keys(self.scores(layer, values))
        scores = self.further.scores(layer, values)  # (T₂, H, keys)
        tokens = np.vstack([self.first.tokens, self.further.tokens])
        homogeneous = np.hstack([tokens, np.ones((len(tokens), 1))])
        heads = sum(map(len, self.groups))
        K, k_bias = [], []
        queries = np.zeros((heads, 2 * len(rotary), len(tokens)))
        for group, one in zip(self.groups, found, strict=True):
            assert isinstance(one, BiasedKeys)
            others = self._further_queries(one, scores[:, list(group)], rotary)
            first = one.queries.reshape(len(one.queries), -1, len(group))
            for place, h in enumerate(group):
                queries[h] = np.hstack([first[:, :, place], others[:, :, place]])
        flat = queries.reshape(-1, len(tokens)).T
        Q = solved(homogeneous, flat).T.reshape(queries.shape)
        for group, one in zip(self.groups, found, strict=True):
            assert isinstance(one, BiasedKeys)
            # as large as each other, which no answer shows
            size = np.sqrt(np.linalg.norm(Q[list(group), :, :-1]) / np.linalg.norm(one.K))
            K.append(size * one.K)
            bias = np.where(one.bias == 0, 0.0, one.bias - one.K @ self.base)
            k_bias.append(size * bias)
            Q[list(group)] /= size
        q_bias = np.asarray(Q[:, :, -1] - Q[:, :, :-1] @ self.base, dtype=np.float64)
        return GroupHeads(np.array(K), Q[:, :, :-1], rotary, np.array(k_bias), q_bias)

    @property
    def base(self) -> Array:
        """What was added to all tokens, (d,)."""
        assert isinstance(self.first, BiasedKeyAnswers)
        return self.first.base

    def _further_queries(self, one: BiasedKeys, scores: Array, rotary: Rotary) -> Array:
        """Return the queries of a group's heads beside further tokens, (rows, T₂, heads)."""
        further = self.further
        assert further is not None
        n = further.keys.shape[1]
        distances = np.arange(n, 0, -1.0)
        found = np.zeros((len(one.K), *scores.shape[:2]))
        for k, b in enumerate(further.tokens):
            rows, right = [], []
            for q in np.flatnonzero(further.token == k):
                place = further.block[q]
                keys = further.scale[q] * further.keys[place]
                rows.append(one.rows(keys, b, distances, rotary)[:, : self.rank])
                right.append(scores[k, :, place * n : (place + 1) * n].T)
            found[: self.rank, k] = least_squares(np.vstack(rows), np.vstack(right))
        return found


def centred(table: Array) -> Array:
    """Take the mean row off."""
    return np.asarray(table - table.mean(axis=0))
