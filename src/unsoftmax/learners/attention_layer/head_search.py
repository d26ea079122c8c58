"""How many heads there are, and what each makes of one long offset.

Two tokens [b + a; b] are answered by c + M b + Σ_h σ(l_h) M_h a with l_h = a·(W_h b + w_h). For
long a and b every gate σ(l_h) is 0 or 1: the answers z_k to random b_k, and M a, where all gates
are 1, are sums of the H vectors M_h a. Their rank is H, and the columns of zeros and ones in the
span of their left singular vectors are the gates (`solve.gate_columns`); A residual connection is
a head whose gate is always 0 and whose vector is a itself. 24 queries, 8 more until columns are
unique.

Beyond 15 heads query tokens are those of half a circle, b(θ) = cos θ b₁ + sin θ b₂: a gate's logit
is a sinusoid along it and changes its sign once. So the answers are constant between H jumps of
±M_h a, in any order: intervals whose ends differ are halved until there are H of them. The signs of
the jumps are those for which they add up to M a. About H·(4 + log₂ H) queries.

Heads whose [W_h w_h] are positive multiples of each other, such as W beside 2W, open and close
together where tokens are long, and pass for one. Where logits are moderate they do not: a few dozen
b show their number as a rank. What is no sum of heads (a nonlinearity, a second layer) has no rank
below the number of b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.offset_questions import asked_beside, asked_in_pairs
from unsoftmax.learners.attention_layer.search_limits import PLAIN, Pilots
from unsoftmax.learners.attention_layer.value_answers import GateAnswers, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices
from unsoftmax.solve.gate_columns import GateColumnTuning, gate_columns
from unsoftmax.validate.layer_sequences import Layer

# Query tokens of each further round, while columns are not unique. g_1 + g_2 − g_3 is a column of
# zeros and ones with probability (3/4)^K.
_MORE_QUERIES = 8
# Further rounds of one length.
_HEAD_ROUNDS = 6
# Query tokens on half a circle per head, where heads are too many for the columns; intervals with
# jumps are halved until every jump is alone.
_HALF_CIRCLE = 4
# Halvings at most: jumps nearer than 2⁻²⁴ are those of one head.
_HALVINGS = 24
# Root mean square of logits at which heads are counted that long tokens do not tell apart: σ(l)
# and σ(2l) are then as different as they are anywhere.
_UNSEEN_LOGITS = 2.0
_COLUMNS = GateColumnTuning()


class HeadsAlike(NotIdentifiable):
    """Heads whose gates of 0 and 1 are no others', or never are."""


class HeadsStill(HeadsAlike):
    """Heads whose gates are the same beside every query token: W = 0, or a long query bias."""


class FoundHeads(NamedTuple):
    """The gates of all heads in some answers, and whether there is a residual connection."""

    gates: GateAnswers
    residual: bool


@dataclass(frozen=True, slots=True)
class HeadSearch:
    """The search for the gates' columns."""

    layer: LayerMap
    noise: AnswerNoise
    most: int
    rng: np.random.Generator
    pilots: Pilots = PLAIN

    def run(self) -> Asking[FoundHeads]:
        """Ask offsets of several lengths until every gate is 0 or 1."""
        refusal: ModelMismatch | NotIdentifiable | None = None
        for length in limits.OFFSET_LENGTHS:
            try:
                return (yield from self._at(length))
            except HeadsAlike:
                raise
            except (ModelMismatch, NotIdentifiable) as error:
                refusal = error
        assert refusal is not None
        raise refusal

    def _at(self, length: float) -> Asking[FoundHeads]:
        d = self.layer.M.shape[1]
        a = length * self.rng.standard_normal(d) / np.sqrt(d)
        b, y = np.zeros((0, d)), np.zeros((0, len(self.layer.c)))
        count, K = self.pilots.heads, 0
        for _ in range(1 + _HEAD_ROUNDS):
            fresh = length * limits.SHORTER * self.rng.standard_normal((count, d)) / np.sqrt(d)
            a, fresh = on_one_grid(a, fresh)
            y_fresh = yield from asked_beside(a[None], fresh, "heads")
            b, y, K = np.vstack([b, fresh]), np.vstack([y, y_fresh[:, 0]]), K + count
            span, rank = self._span(a, b, y)
            count = _MORE_QUERIES
            if rank > K - limits.TESTED_BY:
                count = K
                continue
            if rank > self.most + 1:
                raise too_many(rank - 1, self.most)
            if rank > _COLUMNS.most:
                return (yield from self._on_half_circle(a, y, b, length))
            self._refuse_uniform(span, self.layer.beyond(y, b), y)
            columns = gate_columns(span, _COLUMNS)
            if columns.shape[1] == rank:
                return self._named(a, b, y, columns[1:])
        many = f", there are more heads than an answer's {rank} numbers" * (rank == y.shape[1])
        raise ModelMismatch(
            f"Beside offsets of norm {length:.1g} the answers are no sums of {rank} vectors with "
            "weights of 0 and 1. Attention is no softmax of scores x·(W x_N + w) there (clipped "
            f"scores, a window, a nonlinearity){many}, or answers are too coarse."
        )

    def _span(self, a: Array, b: Array, y: Array) -> tuple[Array, int]:
        """Return an orthonormal basis of the gates' columns, the row of M a first."""
        z = self.layer.beyond(y, b)
        rows = np.vstack([self.layer.M @ a, z])
        left = np.linalg.svd(rows, full_matrices=False)[0]
        rank = self._rank(rows, y)
        if not rank or not self._rank(z, y):
            raise NotIdentifiable(
                "With two tokens the answer does not depend on the first: no head is seen, so no W "
                "is determined. The target is an affine map of the last token, or constant, or its "
                "heads have W = 0.",
                determined={"c": self.layer.c, "M": self.layer.M},
            )
        return left[:, :rank], rank

    def _rank(self, rows: Array, y: Array) -> int:
        """Count the singular values of differences of answers ``y`` that are above the errors."""
        singular = np.linalg.svd(rows, compute_uv=False)
        noise = limits.RANK_NOISE * float(np.max(self.noise.of(y)))
        share = limits.RANK_SHARE * float(np.linalg.norm(y))
        return int(np.count_nonzero(singular > max(noise, share)))

    def _refuse_uniform(self, span: Array, z: Array, y: Array) -> None:
        """Refuse a head whose weights are 1/2 everywhere, or two whose weights add up to 1."""
        half = np.full(len(span), 1 / 2)
        half[0] = 1.0
        half /= np.linalg.norm(half)
        if np.linalg.norm(half - span @ (span.T @ half)) <= _COLUMNS.off_by:
            alike = HeadsAlike if self._rank(z - z[0], y) else HeadsStill
            raise alike(
                "A head weighs all tokens alike (W = 0), or one head's W is the negative of "
                "another's. Sequences of two tokens do not distinguish (W, M) and an even mean "
                "from (−W, −M) and another even mean, nor such heads from each other.",
                determined={"c": self.layer.c, "M": self.layer.M},
            )

    def _on_half_circle(self, a: Array, y: Array, b: Array, length: float) -> Asking[FoundHeads]:
        """Find the gates of as many heads as open somewhere: a residual connection does not."""
        heads = self._rank(self.layer.beyond(y, b), y)
        plane = self.rng.standard_normal((2, len(a))) / np.sqrt(len(a))
        plane *= length * limits.SHORTER

        def tokens(angles: Array) -> Array:
            b = np.outer(np.cos(angles), plane[0]) + np.outer(np.sin(angles), plane[1])
            return on_one_grid(a, b)[1]

        angles = np.linspace(0, np.pi, _HALF_CIRCLE * heads + 1)
        b = tokens(angles)
        y = (yield from asked_beside(a[None], b, "heads on half a circle"))[:, 0]
        for _ in range(_HALVINGS):
            jumps = self._jumps(b, y)
            if len(jumps) >= heads:
                break
            middle = (angles[jumps] + angles[jumps + 1]) / 2
            fresh = tokens(middle)
            y_fresh = (yield from asked_beside(a[None], fresh, "heads on half a circle"))[:, 0]
            order = np.argsort(np.concatenate([angles, middle]), kind="stable")
            angles = np.concatenate([angles, middle])[order]
            b, y = np.vstack([b, fresh])[order], np.vstack([y, y_fresh])[order]
        if len(jumps) != heads:
            raise ModelMismatch(
                f"Beside one long offset answers have rank {heads}, but they jump {len(jumps)} "
                "times along half a circle of query tokens: they are no sums of heads with weights "
                "of 0 or 1."
            )
        return self._named(a, b, y, self._signed(a, b, y, jumps))

    def _jumps(self, b: Array, y: Array) -> Indices:
        """Return the intervals whose ends are answered differently."""
        z = self.layer.beyond(y, b)
        noise = limits.RANK_NOISE * float(np.max(self.noise.of(y)))
        return np.flatnonzero(np.linalg.norm(np.diff(z, axis=0), axis=1) > noise).astype(np.intp)

    def _signed(self, a: Array, b: Array, y: Array, jumps: Indices) -> Array:
        """Return every head's gate, by the signs for which the jumps add up to M a."""
        z = self.layer.beyond(y, b)
        whole = self.layer.M @ a
        steps = z[jumps + 1] - z[jumps]
        rows = [*steps, a] if len(whole) == len(a) else [*steps]  # a: a residual connection
        signs = np.linalg.lstsq(np.array(rows).T, whole, rcond=None)[0]
        opens = signs[: len(jumps)] > 0
        after = np.arange(len(b))[:, None] > jumps
        gates = np.where(opens, after, ~after).astype(np.float64)
        if len(signs) > len(jumps) and abs(signs[-1]) > 1 / 2:
            gates = np.hstack([gates, np.zeros((len(b), 1))])
        return gates

    def _named(self, a: Array, b: Array, y: Array, gates: Array) -> FoundHeads:
        """Tell heads from a residual connection; refuse heads whose gates never move."""
        still = (gates == gates[0]).all(axis=0)
        answers = GateAnswers(a, b, y, gates)
        if not still.any():
            return self._within(FoundHeads(answers, False))
        vector = answers.vectors(self.layer)[still][0]
        if not self._is_residual(a, vector, gates[0, still], y):
            raise HeadsStill(
                "A head has the same weights for every query token: its W is 0 or far below its "
                "w, so query tokens do not separate it from other heads.",
                determined={"c": self.layer.c, "M": self.layer.M},
            )
        return self._within(FoundHeads(GateAnswers(a, b, y, gates[:, ~still]), True))

    def _is_residual(self, a: Array, vector: Array, gate: Array, y: Array) -> bool:
        if len(gate) != 1 or gate[0] or len(vector) != len(a):
            return False
        allowed = limits.RANK_NOISE * float(np.max(self.noise.of(y)))
        return bool(np.linalg.norm(vector - a) <= allowed + 1e-9 * np.linalg.norm(a))

    def _within(self, found: FoundHeads) -> FoundHeads:
        if (count := found.gates.gates.shape[1]) > self.most:
            raise ModelMismatch(
                f"The target has {count} heads, more than the {self.most} that were allowed: "
                "raise max_heads."
            )
        return found


def too_many(heads: int, most: int) -> ModelMismatch:
    """Say that there are more heads than were allowed."""
    return ModelMismatch(
        f"The target has {heads} heads or more, beyond the {most} that were allowed: "
        "raise max_heads."
    )


def search_cost(heads: int) -> tuple[int, int]:
    """Bound the queries of the search for so many heads, and its rounds."""
    lengths = len(limits.OFFSET_LENGTHS)
    doubled = 4 * (heads + limits.TESTED_BY + PLAIN.heads)
    circle = heads * (_HALF_CIRCLE + _HALVINGS) + 1
    queries = doubled + _HEAD_ROUNDS * _MORE_QUERIES + circle
    return lengths * queries, lengths * (2 + _HEAD_ROUNDS + _HALVINGS)


def unseen_cost(heads: int) -> int:
    """Return how many queries are asked where so many heads were found."""
    return 2 * heads + 3 * limits.TESTED_BY


def heads_at_moderate_logits(
    model: Layer, layer: LayerMap, noise: AnswerNoise, rng: np.random.Generator
) -> Asking[int]:
    """Ask for the rank of what one offset adds; 0 where it has none below the number of answers."""
    d, spare = model.dim, limits.TESTED_BY
    count = unseen_cost(model.H)
    a, b = rng.standard_normal(d), rng.standard_normal((count, d))
    bias, whole = model.vectors(np.zeros((1, d))), model.vectors(b)
    linear = float(np.sqrt(np.mean((bias @ a) ** 2)))
    square = float(np.sqrt(np.mean(((whole - bias) @ a) ** 2)))
    wanted = _UNSEEN_LOGITS
    length = 2 * wanted / max(linear + np.sqrt(linear**2 + 4 * square * wanted), TINY)
    a, b = on_one_grid(length * a[None], length * b)
    y = yield from asked_in_pairs(np.repeat(a, count, axis=0), b, "heads, unseen", "pilot")
    rows = np.vstack([layer.heads @ a[0], layer.beyond(y, b)])
    floor = limits.RANK_NOISE * float(np.max(noise.of(y)))
    rank = int(np.count_nonzero(np.linalg.svd(rows, compute_uv=False) > floor))
    return rank if rank <= min(count - spare, rows.shape[1] - 1) else 0
