"""Every head's map M_h, from saturated queries: what to ask, how many, and whether to believe it.

[b_h + a_j; b_h] with a_j = a + η‖a‖δ_j, δ_j orthonormal, the same for all heads: J − 1 offsets with
J = ⌈rank M/H⌉ + 4, for all heads but the one whose margin is smallest (`value_answers`). A range
that fills its vectors gets twice as many. Random saturated queries then are sums of some M_h a: a
gate that flipped shows there, and all is asked again with half the step. Where the ranges are
dependent, or nearly so beside the answers' noise, all d offsets are asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.learners.attention_layer.offset_questions import asked_beside, asked_in_pairs
from unsoftmax.learners.attention_layer.opening_tokens import OpeningTokens
from unsoftmax.learners.attention_layer.value_answers import (
    GateAnswers,
    HeadValues,
    LayerMap,
    OffsetAnswers,
    ValueAnswers,
    leading,
)
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers
from unsoftmax.probes import Array, Indices


@dataclass(frozen=True, slots=True)
class MapReading:
    """What maps are read with."""

    tokens: TokenMapAnswers
    layer: LayerMap
    noise: AnswerNoise
    gates: GateAnswers
    opening: OpeningTokens
    head_dim: int | None
    whole: bool
    """Whether every map is read in all directions in any case."""
    rng: np.random.Generator
    tuning: AttentionLayerTuning

    def run(self) -> Asking[ValueAnswers]:
        """Ask offsets until the maps explain random saturated queries."""
        tuning = self.tuning
        margins = np.sort(self.opening.margins)[1:]  # the smallest is not asked
        step = float(np.min(margins / tuning.deviations, initial=tuning.spread))
        for _ in range(tuning.tries):
            found = yield from self._read(step)
            if found is not None and (yield from self._explained(found)):
                return found
            step /= 2
        raise ModelMismatch(
            "Where gates are 0 or 1 the answers are no sums of the maps that were read there: they "
            "are not linear in the tokens (a tanh, a clipped or quantised answer), or two heads "
            "are too close to be told apart."
        )

    def _read(self, step: float) -> Asking[ValueAnswers | None]:
        """Ask offsets a step from the base until every range is known."""
        d, H, tuning = self.layer.M.shape[1], len(self.opening.b), self.tuning
        total = int(np.linalg.matrix_rank(self.layer.heads, tol=self._map_noise(1.0)))
        count = -(-total // H) + tuning.spare_offsets - 1
        if self.head_dim is not None:
            count = self.head_dim
        directions = np.zeros((d, 0))
        offsets = self._none()
        for _ in range(tuning.offset_rounds):
            count = d if self.whole else min(count, d)
            fresh = self.rng.standard_normal((d, count - len(offsets.a)))
            directions = np.linalg.qr(np.hstack([directions, fresh]))[0]
            offsets = yield from self._asked(offsets, directions[:, len(offsets.a) :].T, step)
            answers = yield from self._unflipped(self._ranked(offsets, step), step)
            offsets = answers.offsets
            if count == d:
                break
            if max(answers.ranks) <= count:
                if self._independent(answers, step):
                    return answers
                count = d
            count *= 2
        return ValueAnswers(
            self.tokens, self.layer.residual, self.gates, offsets, answers.ranks, True
        )

    def _none(self) -> OffsetAnswers:
        opening, m = self.opening, len(self.layer.c)
        H, d = opening.b.shape
        left_out = int(np.argmin(opening.margins))
        return OffsetAnswers(
            opening.a, np.zeros((0, d)), opening.b, left_out, np.zeros((H - 1, 0, m))
        )

    def _asked(
        self, offsets: OffsetAnswers, directions: Array, step: float
    ) -> Asking[OffsetAnswers]:
        base, b = offsets.base, offsets.b
        beside = base + step * np.linalg.norm(base) * directions
        _, _, beside = on_one_grid(base, b, beside)
        asked = [h for h in range(len(b)) if h != offsets.left_out]
        fresh = np.zeros((0, len(beside), offsets.y.shape[2]))
        if asked:
            fresh = yield from asked_beside(beside, b[asked], "maps")
        y = np.concatenate([offsets.y, fresh], axis=1)
        return OffsetAnswers(base, np.vstack([offsets.a, beside]), b, offsets.left_out, y)

    def _ranked(self, offsets: OffsetAnswers, step: float) -> ValueAnswers:
        """Count the singular values of each head's range that are above the errors."""
        answers = ValueAnswers(
            self.tokens, self.layer.residual, self.gates, offsets, (), self.whole
        )
        noise = self._map_noise(step)
        ranks = [
            max(1, int(np.count_nonzero(np.linalg.svd(span, compute_uv=False) > noise)))
            for span in answers.spans()
        ]
        return ValueAnswers(
            self.tokens, self.layer.residual, self.gates, offsets, tuple(ranks), self.whole
        )

    def _unflipped(self, answers: ValueAnswers, step: float) -> Asking[ValueAnswers]:
        """Ask offsets again, nearer to the base, at which a gate seems to have flipped.

        What another head adds to a vector lies outside the range of all others: the vector is the
        only one with that direction, its leverage is 1.
        """
        for _ in range(self.tuning.flip_rounds):
            flipped = self._flipped(answers)
            if not len(flipped):
                break
            offsets = answers.offsets
            nearer = offsets.base + self.tuning.nearer * (offsets.a[flipped] - offsets.base)
            nearer = on_one_grid(offsets.base, nearer)[1]
            asked = [h for h in range(len(offsets.b)) if h != offsets.left_out]
            a, y = offsets.a.copy(), offsets.y.copy()
            a[flipped] = nearer
            y[:, flipped] = yield from asked_beside(nearer, offsets.b[asked], "maps, flips")
            answers = self._ranked(replace(offsets, a=a, y=y), step)
        return answers

    def _flipped(self, answers: ValueAnswers) -> Indices:
        """Return the offsets whose vectors alone have some direction of a range."""
        found = np.zeros(len(answers.offsets.a), dtype=bool)
        for span, rank in zip(answers.spans(), answers.ranks, strict=True):
            if rank < len(span):
                left = np.linalg.svd(span, full_matrices=False)[0][1:, :rank]
                found |= 1 - np.sum(left**2, axis=1) < self.tuning.alone
        if found.sum() > self.tuning.most_flipped * len(found):
            return np.zeros(0, dtype=np.intp)
        return np.flatnonzero(found).astype(np.intp)

    def _map_noise(self, step: float) -> float:
        """Return what errors may make of a singular value of maps, read with such a step."""
        size = float(np.linalg.norm(self.layer.heads, 2))
        share = max(self.noise.relative * self.tuning.rank_noise, self.tuning.rank_share)
        return share * size / step

    def _independent(self, answers: ValueAnswers, step: float) -> bool:
        """Whether the ranges are so independent, beside their errors, that maps are right."""
        if sum(answers.ranks) > len(self.layer.c):
            return False
        spans = answers.spans()
        U = [leading(s, r) for s, r in zip(spans, answers.ranks, strict=True)]
        least = float(np.linalg.svd(np.concatenate(U, axis=1), compute_uv=False)[-1])
        size = float(np.linalg.norm(self.layer.heads, 2))
        # an error of a vector turns the range by its share of the smallest vector
        thinnest = min(
            np.linalg.svd(s, compute_uv=False)[r - 1]
            for s, r in zip(spans, answers.ranks, strict=True)
        )
        turned = self.noise.relative * size / (step * thinnest)
        return bool(turned <= self.tuning.independent * least)

    def _explained(self, answers: ValueAnswers) -> Asking[bool]:
        """Ask random saturated queries, and compare them with sums of maps."""
        tuning, d = self.tuning, self.layer.M.shape[1]
        values = answers.solved()
        a, b = self._random(tuning.checked)
        y = yield from asked_in_pairs(a, b, "maps, tried", "pilot")
        z = self.layer.beyond(y, b)
        through = values.through(a)
        errors = self._errors(values)
        for k in range(tuning.checked):
            gates = np.linalg.lstsq(through[:, :, k], z[k], rcond=None)[0]
            missed = float(np.linalg.norm(through[:, :, k] @ np.rint(gates) - z[k]))
            if missed > errors * np.linalg.norm(a[k]) * np.sqrt(d):
                return False
        return True

    def _random(self, count: int) -> tuple[Array, Array]:
        a, b = self.rng.standard_normal((2, count, self.layer.M.shape[1]))
        lengths = np.linalg.norm(self.gates.a), np.linalg.norm(self.gates.b, axis=1).mean()
        a, b = (
            length * x / np.linalg.norm(x, axis=1, keepdims=True)
            for length, x in zip(lengths, (a, b), strict=True)
        )
        rounded = on_one_grid(a, b)
        return rounded[0], rounded[1]

    def _errors(self, values: HeadValues) -> float:
        """Return what the maps may be off by, per length of a token."""
        U = np.concatenate(list(values.U), axis=1)
        condition = 1.0 if self.whole else 1 / float(np.linalg.svd(U, compute_uv=False)[-1])
        size = float(np.linalg.norm(self.layer.heads, 2))
        return self.tuning.checked_to * self.noise.relative * condition * size
