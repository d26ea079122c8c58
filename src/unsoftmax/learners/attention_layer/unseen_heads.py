"""Whether a layer that misses fresh answers has more heads than gates of 0 and 1 show.

Heads whose [W_h w_h] are positive multiples of each other, such as W beside 2W, open and close
together where tokens are long, and pass for one. Where logits are moderate they do not: [b + a; b]
with one offset a has z = Σ_h σ(l_h) M_h a, so that a few dozen b show their number as a rank. What
is no sum of heads (a nonlinearity, a second layer) has no rank below the number of b. As many
queries as twice the heads that were found, and a few.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.learners.attention_layer.offset_questions import asked_in_pairs
from unsoftmax.learners.attention_layer.value_answers import LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models import AttentionLayer
from unsoftmax.models.arrays import TINY


def unseen_cost(heads: int, tuning: AttentionLayerTuning) -> int:
    """Return how many queries are asked where so many heads were found."""
    return 2 * heads + 3 * tuning.tested_by


def heads_at_moderate_logits(
    model: AttentionLayer,
    layer: LayerMap,
    noise: AnswerNoise,
    rng: np.random.Generator,
    tuning: AttentionLayerTuning,
) -> Asking[int]:
    """Ask for the rank of what one offset adds; 0 where it has none below the number of answers."""
    d, spare = model.dim, tuning.tested_by
    count = unseen_cost(model.H, tuning)
    a, b = rng.standard_normal(d), rng.standard_normal((count, d))
    bias, whole = model.vectors(np.zeros((1, d))), model.vectors(b)
    linear = float(np.sqrt(np.mean((bias @ a) ** 2)))
    square = float(np.sqrt(np.mean(((whole - bias) @ a) ** 2)))
    wanted = tuning.unseen_logits
    length = 2 * wanted / max(linear + np.sqrt(linear**2 + 4 * square * wanted), TINY)
    a, b = on_one_grid(length * a[None], length * b)
    y = yield from asked_in_pairs(np.repeat(a, count, axis=0), b, "heads, unseen", "pilot")
    rows = np.vstack([layer.heads @ a[0], layer.beyond(y, b)])
    floor = tuning.rank_noise * float(np.max(noise.of(y)))
    rank = int(np.count_nonzero(np.linalg.svd(rows, compute_uv=False) > floor))
    return rank if rank <= min(count - spare, rows.shape[1] - 1) else 0
