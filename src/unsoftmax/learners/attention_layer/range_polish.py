"""Ranges read once more, where errors of answers are large: one query per direction of a value.

With all [W_h w_h] known, a query token that opens head h's gate alone can be made for any offset.
Offsets along the right singular vectors of V_h are mapped to vectors that span U_h as well as
possible, while those that were asked first differ by a small part of their length only. The new
U_h gives a new V_h, and the answers about scores are decoded again. Σ r_h queries; errors of maps
of float32 layers fall from 3e-4 to 2e-5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.key_answers import HeadScores
from unsoftmax.learners.attention_layer.offset_questions import asked_in_pairs
from unsoftmax.learners.attention_layer.score_reading import ScoreAnswers, ScoreReading
from unsoftmax.learners.attention_layer.value_answers import (
    HeadMaps,
    LayerMap,
    SaturatedAnswers,
    ValueAnswers,
)
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.probes import Array
from unsoftmax.solve.least_distance import shortest_within

# Largest share of an answer that the maps read first may miss: they are off by 1e-3, and a gate
# that is open by mistake adds as much as the answer.
_POLISHED = 0.1


@dataclass(frozen=True, slots=True)
class RangePolish:
    """What ranges are read again with."""

    layer: LayerMap
    values: HeadMaps
    scores: HeadScores
    length: float
    """Of offsets."""

    def run(self) -> Asking[SaturatedAnswers | None]:
        """Ask one query for each direction; None where a gate cannot be opened alone."""
        asked = [
            (h, *self._opened(a, h))
            for h, V in enumerate(self.values.V)
            for a in np.linalg.svd(V, full_matrices=False)[2]
        ]
        pairs = [(h, a, b) for h, a, b in asked if b is not None]
        if len(pairs) < len(asked):
            return None
        a, b = on_one_grid(*(np.array(part) for part in list(zip(*pairs, strict=True))[1:]))
        y = yield from asked_in_pairs(a, b, "maps, again")
        head = np.array([h for h, _, _ in pairs], dtype=np.intp)
        U, V = self.values.U, self.values.V
        known = np.array([U[h] @ (V[h] @ one) for h, one in zip(head, a, strict=True)])
        answers = SaturatedAnswers(head, a, b, y, known)
        # every answer is what the maps make of it so far: no gate was taken wrongly
        z = answers.beyond(self.layer)
        missed = np.linalg.norm(z - known, axis=1)
        return answers if np.all(missed <= _POLISHED * np.linalg.norm(z, axis=1)) else None

    def _opened(self, direction: Array, h: int) -> tuple[Array, Array | None]:
        """Return the offset, and the query token beside which it opens head h's gate alone."""
        best: tuple[float, Array, Array | None] = (np.inf, direction, None)
        for a in (direction, -direction):
            along = [
                (a @ C) @ R for C, R in zip(self.scores.C, self.scores.R, strict=True)
            ]  # a·[W_g w_g]
            signs = np.where(np.arange(len(along)) == h, 1.0, -1.0)
            rows = signs[:, None] * np.array(along)
            size = np.linalg.norm(rows[:, :-1], axis=1)
            if not size.all():
                continue
            basis, core = np.linalg.qr((rows[:, :-1] / size[:, None]).T)
            y = shortest_within(core.T)
            if y is not None and np.linalg.norm(y) < best[0]:
                b = self._long_enough(basis @ y, rows)
                best = (float(np.linalg.norm(y)), a, b)
        return self.length * best[1], best[2]

    def _long_enough(self, b: Array, rows: Array) -> Array:
        """Make a query token so long that biases matter little and gates are saturated."""
        margins, biases = rows[:, :-1] @ b, np.abs(rows[:, -1])
        over_bias = limits.OVER_BIAS * float(np.max(biases / margins))
        saturated = 2 * limits.SATURATED / (self.length * float(margins.min()))
        shorter = self.length * limits.SHORTER / float(np.linalg.norm(b))
        return b * max(over_bias, saturated, shorter)


def polished(
    maps: ValueAnswers, scores: ScoreAnswers, reading: ScoreReading, length: float
) -> Asking[tuple[ValueAnswers, ScoreAnswers]]:
    """Read ranges again, and what keys weigh beside the new ones; offsets are of this length."""
    layer = reading.layer
    values = scores.first.closed(layer, maps.solved())
    again = yield from RangePolish(layer, values, scores.solved(layer, values), length).run()
    if again is not None:
        maps = replace(maps, saturated=again)
        values = scores.first.closed(layer, maps.solved())
        scores = yield from replace(reading, values=values).mended(scores)
    return maps, scores
