"""From answers to many keys, to all keys and queries of a layer with positions: pure arithmetic.

A block of n keys beside a query token b scores (K a_i)·R(Δ_i) q_h with q_h = Q_h b and distances
Δ = n … 1; with m zero tokens in between (K a_i)·R(Δ_i) R(m) q_h. Of one group of heads, which share
K, with the rows κ_i = R(Δ_i)ᵀ K a_i of all keys and the columns q of all first query tokens:

    L_0 = κ q = Z Vᵀ,  V orthonormal       L_m = κ R(m) q
    T_m = Z⁺ L_m V = P R(m) P⁻¹            the planes P, and mθ but for multiples of 2π
    T_1, of one block                      θ to fewer digits: how often mθ goes round
    κ = Z P,  K a_i = R(Δ_i) κ_i           K from all keys
    q = P⁻¹ Vᵀ                             and Q_h b of further b from r scores of one block

A long shift reads slow planes better, as often as it is long.

With biases κ_i = R(Δ_i)ᵀ(K a_i + b_k), q = Q_h b + b_q, and the query token's own scores σ are
unknown, one for each column:

    L_0 = κ q − 1 σᵀ      L_m = κ R(m) q − 1 σᵀ      C takes the mean row off
    C L_0 = Z Vᵀ          T_m = Z⁺ C L_m V = P R(m) P⁻¹
    mean(L_m − L_0) V = z̄ᵀ(T_m − I)         κ = (Z + 1 z̄ᵀ)P
    R(Δ_i) κ_i = K a_i + b_k                 K and b_k from all keys
    log p_i/p_b = ((K a_i + b_k)ᵀR(Δ_i) − (K b + b_k)ᵀ)(Q_h b + b_q)     further b

Of planes that do not turn z̄ and b_k change no answer, and are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.attention_layer.key_answers import KeyAnswers
from unsoftmax.learners.attention_layer.value_answers import Groups, HeadMaps, LayerMap
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array, Indices
from unsoftmax.solve.full_rank import solved
from unsoftmax.solve.leading_rows import leading_rows
from unsoftmax.solve.turning_planes import TurningPlanes, turning_planes


@dataclass(frozen=True, slots=True)
class GroupScores:
    """Scores of one group's heads beside the first query tokens."""

    Z: Array
    """(keys, r)."""
    V: Array
    """(columns, r): columns are pairs of a query token and a head."""
    near: Array
    """T_1, (r, r)."""
    far: Array
    """T_m."""
    table: Array | None = None
    """L_1 of the first keys; None where there are biases."""
    lift: Array | None = None
    """Mean(L_m − L_0) V, (r,), where there are."""

    @classmethod
    def of(cls, here: Array, near: Array, far: Array, rank: int, biased: bool) -> GroupScores:
        """Take L_0 (keys, columns), and of the first keys L_1 and L_m."""
        read = centred if biased else np.asarray
        V = leading_rows(read(here), rank).T
        Z = read(here @ V)
        step, long = (
            least_squares(read(Z[: len(table)]), read(table @ V)) for table in (near, far)
        )
        if not biased:
            return cls(Z, V, step, long, table=near)
        first = slice(len(far))
        beside = Z[first].mean(axis=0) @ (long - np.eye(rank))
        return cls(Z, V, step, long, lift=np.mean((far - here[first]) @ V, axis=0) - beside)

    def mean_key(self, P: Array, turning: int) -> Array:
        """Return z̄ᵀ P, (r,): the mean of κ that was taken off, 0 in planes that do not turn."""
        mean = np.zeros(len(P))
        if self.lift is None:
            return mean
        turned = np.linalg.solve(P, self.far @ P)[: 2 * turning, : 2 * turning]
        lifted = (self.lift @ P)[: 2 * turning]
        mean[: 2 * turning] = np.linalg.solve((turned - np.eye(2 * turning)).T, lifted)
        return mean

    @property
    def long_angles(self) -> Array:
        """What planes turn by in m tokens, without sign and whole rounds, sorted."""
        return np.asarray(np.sort(np.abs(np.angle(np.linalg.eigvals(self.far)))))

    def still_beside(self, count: int) -> float:
        """Return what all but ``count`` planes turn by at most."""
        values = np.linalg.eigvals(self.far)
        apart = np.sort(np.abs(values[values.imag >= 0] - 1))[::-1]
        return float(apart[count]) if count < len(apart) else 0.0

    def planes(self, shift: int, still: float) -> TurningPlanes:
        """Find the planes, and their angles; ``shift`` is m."""
        found = turning_planes(self.far, still)
        P, count = found.P.copy(), len(found.angles)
        x, y = np.arange(0, 2 * count, 2), np.arange(1, 2 * count, 2)
        rough = self._one_step(P, count)
        mirrored = rough < 0  # mθ is beyond π, the plane was taken to turn the other way
        P[:, y[mirrored]] *= -1
        turned = np.where(mirrored, -found.angles, found.angles)
        rounds = np.rint((shift * np.abs(rough) - turned) / (2 * np.pi))
        angles = (turned + 2 * np.pi * rounds) / shift
        order = np.argsort(-angles, kind="stable")
        columns = np.stack([x[order], y[order]], axis=1).ravel()
        P[:, : 2 * count] = P[:, columns]
        return replace(found, P=P, angles=angles[order])

    def _one_step(self, P: Array, count: int) -> Array:
        """Return what the first ``count`` planes of P turn by in one token, in (−π, π].

        With κ = Z P and q = P⁻¹ Vᵀ known, L_1 = Σ cos θ (κ_x q_x + κ_y q_y) + sin θ (κ_y q_x −
        κ_x q_y) has two unknown numbers a plane: far fewer than the entries of T_1.
        """
        x, y = np.arange(0, 2 * count, 2), np.arange(1, 2 * count, 2)
        if self.table is None:
            seen = np.linalg.solve(P, self.near @ P)
            return np.asarray(np.arctan2(seen[y, x] - seen[x, y], seen[x, x] + seen[y, y]))
        keys, q = self.Z[: len(self.table)] @ P, np.linalg.solve(P, self.V.T)
        left = self.table - keys[:, 2 * count :] @ q[2 * count :]

        def products(one: Indices, other: Indices) -> Array:
            each = np.einsum("ik,kc->kic", keys[:, one], q[other])
            return np.asarray(each.reshape(count, left.size))

        by_cosine = products(x, x) + products(y, y)
        by_sine = products(y, x) - products(x, y)
        terms = np.concatenate([by_cosine, by_sine])
        cosine, sine = np.split(least_squares(terms.T, left.ravel()), 2)
        return np.asarray(np.arctan2(sine, cosine))


@dataclass(frozen=True, slots=True)
class GroupHeads:
    """K of every group and Q of every head, with common frequencies."""

    K: Array
    """(G, rows, d)."""
    Q: Array
    """(H, rows, d)."""
    rotary: Rotary
    k_bias: Array | None = None
    """(G, rows); None where there are no biases, as `q_bias`."""
    q_bias: Array | None = None
    """(H, rows)."""

    @property
    def arrays(self) -> Sequence[Array]:
        """All of them that are computed from logits."""
        return self.K, self.Q


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """What is known of a group before the other query tokens are asked."""

    K: Array
    """(rows, d)."""
    queries: Array
    """Q_h b + b_q of the first query tokens, (rows, T·heads)."""
    bias: Array
    """b_k, (rows,), 0 where there are no biases."""

    def rows(self, keys: Array, distances: Array, rotary: Rotary, b: Array | None = None) -> Array:
        """Return R(Δ_i)ᵀ(K a_i + b_k) of keys (n, d), beside b less the query token's K b + b_k."""
        turned = rotary.turned(keys @ self.K.T + self.bias, -distances)
        return np.asarray(turned if b is None else turned - (self.K @ b + self.bias))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswers:
    """All answers that scores are computed from."""

    groups: Groups
    """The heads of each group."""
    rank: int
    """r."""
    far: KeyAnswers
    """All blocks, m zero tokens between; before that is asked, those near."""
    further: KeyAnswers | None = None
    """Other blocks beside the other query tokens, once they are asked."""
    first: KeyAnswers
    """All blocks beside the first query tokens."""
    near: KeyAnswers
    """The first block, one zero token between."""
    still: float = 0.0
    """Planes whose mθ is less are taken not to turn."""
    turning: int | None = None
    """How many planes turn, once that is known."""
    angles: Array | None = None
    """Frequencies of the planes that turn, where they were told."""

    @property
    def base(self) -> Array | None:
        """What was added to all tokens where there are biases, (d,)."""
        return self.first.base

    def scores(self, layer: LayerMap, values: HeadMaps) -> list[GroupScores]:
        """Return what every group's heads score."""
        parts = self.first, self.near, self.far
        tables = [columns_of_groups(part.scores(layer, values), self.groups) for part in parts]
        biased = self.base is not None
        return [
            GroupScores.of(here, near, far, self.rank, biased)
            for here, near, far in zip(*tables, strict=True)
        ]

    def base_token(self, layer: LayerMap, values: HeadMaps, least: float) -> Array:
        """Return the shortest token whose keys are opposite to the key biases, (d,).

        Directions of which keys show less than the share ``least`` are left out.
        """
        found, _ = self.keys(self.scores(layer, values))
        K = np.vstack([one.K for one in found])
        bias = np.concatenate([one.bias for one in found])
        # how long a plane's rows are is free: all alike
        planes = np.linalg.norm(K.reshape(-1, 2 * K.shape[1]), axis=1)
        sizes = np.repeat(np.where(planes > 0, planes, 1.0), 2)
        K, bias = K / sizes[:, None], bias / sizes
        return np.asarray(self.base - np.linalg.lstsq(K, bias, rcond=least)[0])

    def planes(self, seen: Sequence[GroupScores]) -> list[TurningPlanes]:
        """Return every group's planes."""
        between, count = self.far.between, self.turning
        stills = [self.still if count is None else one.still_beside(count) for one in seen]
        found = [one.planes(between, still) for one, still in zip(seen, stills, strict=True)]
        clearest = min(found, key=lambda one: one.off_circle)
        return [one.beside(clearest.angles, between) for one in found]

    def common(self, planes: Sequence[TurningPlanes]) -> tuple[Array, Rotary]:
        """Return the angles of planes that turn, and the frequencies of all."""
        if len({len(one.angles) for one in planes}) > 1:
            raise np.linalg.LinAlgError("other planes turn in one group than in another")
        angles = common_angles(planes) if self.angles is None else self.angles
        return angles, Rotary(np.pad(angles, (0, (self.rank + 1) // 2 - len(angles))))

    def keys(self, seen: Sequence[GroupScores]) -> tuple[list[GroupKeys], Rotary]:
        """Return every group's K and b_k, and the queries of the first tokens."""
        planes, count = self.planes(seen), (self.rank + 1) // 2
        angles, rotary = self.common(planes)
        keys = self._lifted(self.first.keys.reshape(-1, self.first.keys.shape[2]))
        found, padded = [], ((0, 0), (0, 2 * count - self.rank))
        for one, plane in zip(seen, planes, strict=True):
            rows = np.pad(one.Z @ plane.P + one.mean_key(plane.P, len(angles)), padded)
            K = solved(keys, rotary.turned(rows, distances_of(self.first))).T
            queries = np.pad(np.linalg.solve(plane.P, one.V.T), padded[::-1])
            bias = np.zeros(2 * count)
            if self.base is not None:
                bias = np.where(np.arange(2 * count) < 2 * len(angles), K[:, -1], 0.0)
            found.append(GroupKeys(K[:, : self.first.keys.shape[2]], queries, bias))
        return found, rotary

    def _lifted(self, tokens: Array) -> Array:
        """Return tokens (n, d) as biases see them: (x, 1)."""
        return tokens if self.base is None else np.hstack([tokens, np.ones((len(tokens), 1))])

    def solved(self, layer: LayerMap, values: HeadMaps) -> GroupHeads:
        """Compute all keys and queries, and their biases."""
        assert self.further is not None
        found, rotary = self.keys(self.scores(layer, values))
        scores = self.further.scores(layer, values)  # (T₂, H, keys)
        tokens = np.vstack([self.first.tokens, self.further.tokens])
        d, base = tokens.shape[1], self.base
        queries = np.zeros((sum(map(len, self.groups)), 2 * len(rotary), len(tokens)))
        for group, one in zip(self.groups, found, strict=True):
            others = self._further_queries(one, scores[:, list(group)], rotary)
            first = one.queries.reshape(len(one.queries), -1, len(group))
            queries[list(group)] = np.concatenate([first, others], axis=1).transpose(2, 0, 1)
        flat = queries.reshape(-1, len(tokens)).T
        Q = solved(self._lifted(tokens), flat).T.reshape(*queries.shape[:2], -1)
        K, k_bias = [], []
        for group, one in zip(self.groups, found, strict=True):
            # as large as each other, which no answer shows
            size = np.sqrt(np.linalg.norm(Q[list(group), :, :d]) / np.linalg.norm(one.K))
            K.append(size * one.K)
            if base is not None:
                k_bias.append(size * np.where(one.bias == 0, 0.0, one.bias - one.K @ base))
            Q[list(group)] /= size
        if base is None:
            return GroupHeads(np.array(K), Q, rotary)
        q_bias = np.asarray(Q[:, :, d] - Q[:, :, :d] @ base)
        return GroupHeads(np.array(K), Q[:, :, :d], rotary, np.array(k_bias), q_bias)

    def _further_queries(self, one: GroupKeys, scores: Array, rotary: Rotary) -> Array:
        """Return the queries of a group's heads beside further tokens, (rows, T₂, heads)."""
        further = self.further
        assert further is not None
        count, heads, _ = scores.shape
        found, distances = np.zeros((len(one.K), count, heads)), distances_of(further)
        if self.base is None:
            rows = one.rows(further.keys.reshape(-1, further.keys.shape[2]), distances, rotary)
            flat = least_squares(rows[:, : self.rank], scores.reshape(count * heads, len(rows)).T)
            found[: self.rank] = flat.reshape(self.rank, count, heads)
            return found
        n = further.keys.shape[1]
        for k, b in enumerate(further.tokens):
            each, right = [], []
            for q in np.flatnonzero(further.token == k):
                place = further.block[q]
                keys = further.scale[q] * further.keys[place]
                each.append(one.rows(keys, distances[:n], rotary, b)[:, : self.rank])
                right.append(scores[k, :, place * n : (place + 1) * n].T)
            found[: self.rank, k] = least_squares(np.vstack(each), np.vstack(right))
        return found


def columns_of_groups(scores: Array, groups: Groups) -> list[Array]:
    """Return every group's scores (keys, query tokens × heads) of scores (T, H, keys)."""
    return [
        scores[:, list(group)].transpose(2, 0, 1).reshape(scores.shape[2], -1) for group in groups
    ]


def common_angles(planes: Sequence[TurningPlanes]) -> Array:
    """Return the mean of the groups' angles."""
    return np.asarray(np.mean([one.angles for one in planes], axis=0))


def distances_of(answers: KeyAnswers) -> Array:
    """Return Δ of every key, block after block, without the tokens in between: n … 1."""
    blocks, n, _ = answers.keys.shape
    return np.tile(np.arange(n, 0, -1.0), blocks)


def least_squares(A: Array, y: Array) -> Array:
    """Solve A x = y by least squares."""
    return np.asarray(np.linalg.lstsq(A, y, rcond=None)[0])


def centred(table: Array) -> Array:
    """Take the mean row off."""
    return np.asarray(table - table.mean(axis=0))
