"""All parameters once more, from moderate sequences: about 1.1 queries for each.

Far out, where heads switch within a cell, offsets that open one head are lost in part beside the
query tokens. Once the layer is nearly known, sequences of moderate logits and tokens about as long
as the hyperplanes are far tell all parameters together, by Newton's steps
(`solve.transformer_fit`). They are picked by pivoted QR among two to four times as many.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head_transformer.layer_search import RecoveredTransformer
from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.models import MultiHeadTransformer
from unsoftmax.probes import Array
from unsoftmax.solve.transformer_fit import (
    FitParameters,
    TransformerFitTuning,
    best_rows,
    fitted,
)
from unsoftmax.validate.judge import fresh_answers
from unsoftmax.validate.sequences import by_length


@dataclass(frozen=True, slots=True)
class LayerPolishTuning:
    """What is asked for a polish, and where none is tried."""

    fit: TransformerFitTuning = field(default=TransformerFitTuning())
    largest: int = 2500
    """Parameters of one fit: choosing sequences takes time as their cube, 20 seconds for these."""
    tokens: tuple[int, ...] = (2, 3, 4)
    """Numbers of tokens, in turn."""
    logits: tuple[float, ...] = (1.0, 2.0, 3.0)
    """Root mean squares of one head's logits, in turn: its softmax neither flat nor a step."""
    sizes: tuple[float, float] = (-1.0, 1.5)
    """Range of log₁₀ of the query tokens' lengths, in typical distances of hyperplanes: on both
    sides of each."""
    candidates: int = 4
    fewer: int = 2
    many: int = 1000
    """Sequences that are drawn per parameter, and from so many parameters on: fewer are chosen
    from in less time, and leave errors a few times as large."""
    spare: float = 1.1
    """Sequences that are asked per parameter."""


def polished_layer(
    found: RecoveredTransformer,
    learned: LearnedNetwork,
    biases: bool,
    rng: np.random.Generator,
    tuning: LayerPolishTuning,
) -> Asking[RecoveredTransformer | None]:
    """Correct all parameters; None where they are too many, or answers do not tell them."""
    parameters = FitParameters.of(found.model, found.linear, biases)
    count = sum(np.size(getattr(parameters, name)) for name in parameters.free)
    if count > tuning.largest or not found.model.H:
        return None
    each = tuning.candidates if count <= tuning.many else tuning.fewer
    drawn = by_length(_drawn(found.model, learned, each * count, rng, tuning), "polish")
    picked = best_rows(parameters, [part.X for part in drawn], int(tuning.spare * count))
    every = [X for part in drawn for X in part.X]
    asked = by_length([every[n] for n in np.sort(picked)], "polish", "data")
    answered = yield from fresh_answers(asked)
    fit = fitted(parameters, answered, tuning.fit)
    if fit is None:
        return None
    return RecoveredTransformer(fit.parameters.model, fit.errors, found.linear, found.notes)


def _drawn(
    model: MultiHeadTransformer,
    learned: LearnedNetwork,
    count: int,
    rng: np.random.Generator,
    tuning: LayerPolishTuning,
) -> list[Array]:
    """Draw sequences at which each head in turn has moderate logits."""
    drawn, d = [], model.dim
    for n in range(count):
        size = 10.0 ** rng.uniform(*tuning.sizes)
        b = learned.length * size * rng.standard_normal(d) / np.sqrt(d)
        offsets = rng.standard_normal((tuning.tokens[n % len(tuning.tokens)] - 1, d)) / np.sqrt(d)
        u = model.scores_of(b[None])[0, n % model.H]
        rms = float(np.sqrt(np.mean((offsets @ u) ** 2)))
        reach = max(float(np.linalg.norm(b)), learned.length)
        wanted = tuning.logits[(n // model.H) % len(tuning.logits)]
        stretch = min(wanted / rms, reach) if rms > 0 else reach
        drawn.append(np.vstack([b + stretch * offsets, b]))
    return drawn
