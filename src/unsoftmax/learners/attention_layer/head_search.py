"""How many heads there are, and what each makes of one long offset.

Two tokens [b + a; b] are answered by c + M b + Σ_h σ(l_h) M_h a with l_h = a·(W_h b + w_h). For
long a and b every gate σ(l_h) is 0 or 1: the answers z_k to random b_k, and M a, where all gates
are 1, are sums of the H vectors M_h a. Their rank is H, and the columns of zeros and ones in the
span of their left singular vectors are the gates (`solve.gate_columns`); beyond 15 heads the
gates come from half a circle of query tokens (`half_circle`). A residual connection is a head
whose gate is always 0 and whose vector is a itself. 24 queries, 8 more until columns are unique.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.learners.attention_layer.half_circle import HalfCircle
from unsoftmax.learners.attention_layer.offset_questions import asked_beside
from unsoftmax.learners.attention_layer.value_answers import GateAnswers, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.probes import Array
from unsoftmax.solve.gate_columns import gate_columns


class HeadsAlike(NotIdentifiable):
    """Heads whose gates of 0 and 1 are no others', or never are."""


class HeadsStill(HeadsAlike):
    """Heads whose gates are the same beside every query token: W = 0, or a long query bias."""


@dataclass(frozen=True, slots=True)
class FoundHeads:
    """How many heads there are, and their gates in some answers."""

    gates: GateAnswers
    residual: bool

    @property
    def count(self) -> int:
        """H."""
        return int(self.gates.gates.shape[1])


@dataclass(frozen=True, slots=True)
class HeadSearch:
    """The search for the gates' columns."""

    layer: LayerMap
    noise: AnswerNoise
    most: int
    rng: np.random.Generator
    tuning: AttentionLayerTuning

    def run(self) -> Asking[FoundHeads]:
        """Ask offsets of several lengths until every gate is 0 or 1."""
        refusal: ModelMismatch | NotIdentifiable | None = None
        for length in self.tuning.offset_lengths:
            try:
                return (yield from self._at(length))
            except HeadsAlike:
                raise
            except (ModelMismatch, NotIdentifiable) as error:
                refusal = error
        assert refusal is not None
        raise refusal

    def _at(self, length: float) -> Asking[FoundHeads]:
        d, tuning = self.layer.M.shape[1], self.tuning
        a = length * self.rng.standard_normal(d) / np.sqrt(d)
        b, y = np.zeros((0, d)), np.zeros((0, len(self.layer.c)))
        count, K = tuning.head_queries, 0
        for _ in range(1 + tuning.head_rounds):
            fresh = length * tuning.shorter * self.rng.standard_normal((count, d)) / np.sqrt(d)
            a, fresh = on_one_grid(a, fresh)
            y_fresh = yield from asked_beside(a[None], fresh, "heads")
            b, y, K = np.vstack([b, fresh]), np.vstack([y, y_fresh[:, 0]]), K + count
            span, rank = self._span(a, b, y)
            count = tuning.more_queries
            if rank > K - tuning.tested_by:
                count = K
                continue
            self._refuse_many(rank)
            if rank > tuning.columns.most:
                return (yield from self._on_half_circle(a, y, b, length))
            self._refuse_uniform(span, self.layer.beyond(y, b), y)
            columns = gate_columns(span, tuning.columns)
            if columns.shape[1] == rank:
                return self._named(a, b, y, columns[1:])
        many = f", there are more heads than an answer's {rank} numbers" * (rank == y.shape[1])
        raise ModelMismatch(
            f"Beside offsets of length {length:.1g} the answers are no sums of {rank} vectors with "
            "weights of 0 and 1: attention is no softmax of scores x·(W x_N + w) there (clipped "
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
                "Of two tokens the first adds nothing to an answer, whatever the query token is: "
                "no head is seen, so no W is determined. The target is an affine map of the last "
                "token, or constant, or its heads have W = 0.",
                determined={"c": self.layer.c, "M": self.layer.M},
            )
        return left[:, :rank], rank

    def _rank(self, rows: Array, y: Array) -> int:
        """Count the singular values of differences of answers ``y`` that are above the errors."""
        singular = np.linalg.svd(rows, compute_uv=False)
        noise = self.tuning.rank_noise * float(np.max(self.noise.of(y)))
        share = self.tuning.rank_share * float(np.linalg.norm(y))
        return int(np.count_nonzero(singular > max(noise, share)))

    def _refuse_many(self, rank: int) -> None:
        if rank > self.most + 1:
            raise ModelMismatch(
                f"The target has {rank - 1} heads or more, beyond the {self.most} that were "
                "allowed: raise max_heads."
            )

    def _refuse_uniform(self, span: Array, z: Array, y: Array) -> None:
        """Refuse a head whose weights are 1/2 everywhere, or two whose weights add up to 1."""
        half = np.full(len(span), 1 / 2)
        half[0] = 1.0
        half /= np.linalg.norm(half)
        if np.linalg.norm(half - span @ (span.T @ half)) <= self.tuning.columns.off_by:
            alike = HeadsAlike if self._rank(z - z[0], y) else HeadsStill
            raise alike(
                "A head weighs all tokens alike (W = 0), or one head's W is the negative of "
                "another's: two tokens do not tell (W, M) and an even mean from (−W, −M) and "
                "another, nor such heads from each other.",
                determined={"c": self.layer.c, "M": self.layer.M},
            )

    def _on_half_circle(self, a: Array, y: Array, b: Array, length: float) -> Asking[FoundHeads]:
        """Find the gates of as many heads as open somewhere: a residual connection does not."""
        heads = self._rank(self.layer.beyond(y, b), y)
        circle = HalfCircle(self.layer, self.noise, self.rng, self.tuning)
        b, y, gates = yield from circle.gates(a, length, heads)
        return self._named(a, b, y, gates)

    def _named(self, a: Array, b: Array, y: Array, gates: Array) -> FoundHeads:
        """Tell heads from a residual connection; refuse heads whose gates never move."""
        still = (gates == gates[0]).all(axis=0)
        answers = GateAnswers(a, b, y, gates)
        if not still.any():
            return self._within(FoundHeads(answers, False))
        vector = answers.vectors(self.layer)[still][0]
        if not self._is_residual(a, vector, gates[0, still], y):
            raise HeadsStill(
                "A head gives the same weights beside every query token: its W is 0 or far below "
                "its w, and query tokens cannot tell it from others.",
                determined={"c": self.layer.c, "M": self.layer.M},
            )
        return self._within(FoundHeads(GateAnswers(a, b, y, gates[:, ~still]), True))

    def _is_residual(self, a: Array, vector: Array, gate: Array, y: Array) -> bool:
        if len(gate) != 1 or gate[0] or len(vector) != len(a):
            return False
        allowed = self.tuning.rank_noise * float(np.max(self.noise.of(y)))
        return bool(np.linalg.norm(vector - a) <= allowed + 1e-9 * np.linalg.norm(a))

    def _within(self, found: FoundHeads) -> FoundHeads:
        if found.count > self.most:
            raise ModelMismatch(
                f"The target has {found.count} heads, more than the {self.most} that were allowed: "
                "raise max_heads."
            )
        return found
