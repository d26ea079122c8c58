"""Fresh sequences of a recovered layer: short and long ones, at logits of the sizes wanted.

Tokens are standard normal, as long as they must be for the largest logits, over heads, to have a
root mean square. A score of tokens s times as long is s²A + sB + C, whatever turns or biases it:
A, B and C follow from three lengths. Long sequences are those of `validate.long_sequences`; where
scores depend on distance, lengths and logits of a table, for windows, and frequencies that change
beyond some distance, show there or nowhere. Tokens are float32 numbers, which every target reads
alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from unsoftmax.models.arrays import TINY
from unsoftmax.models.attention_layer import AttentionLayer
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.validate.long_sequences import (
    LongSequenceTuning,
    Scored,
    SequenceShape,
    draw_long,
)
from unsoftmax.validate.sequences import by_length

SHORT = (
    SequenceShape(24, 1.0),
    SequenceShape(3, 3.0),
    SequenceShape(8, 1.0),
    SequenceShape(5, 6.0),
    SequenceShape(24, 3.0),
    SequenceShape(3, 0.5),
    SequenceShape(8, 3.0),
    SequenceShape(5, 1.0),
)
"""Short sequences, in turn: few tokens show one logit at a time, many how logits compete."""
FAR = (
    SequenceShape(512, 2.0),
    SequenceShape(64, 6.0),
    SequenceShape(512, 0.5),
    SequenceShape(200, 2.0),
    SequenceShape(1, 2.0),
)
"""Long sequences where scores depend on distance, the most telling first."""
LONG = LongSequenceTuning()
WITH_EPS = 8
"""A hold-out of so many sequences has a token at which the eps of a norm behind counts."""
_POWERS = np.exp2(np.arange(-440, 441) / 4)


Layer: TypeAlias = AttentionLayer | RotaryLayer


@dataclass(frozen=True, slots=True)
class LayerSequences:
    """Sequences that a layer is tried with."""

    model: Layer
    rng: np.random.Generator
    radius: float = np.inf
    """No token is longer."""
    by_distance: bool = False
    """Whether scores depend on distance."""

    def confirming(self, count: int) -> list[Sequences]:
        """Draw short sequences that are asked before the hold-out."""
        return by_length(map(self._drawn, self._short(count)), "confirmation", "pilot")

    def holdout(self, count: int) -> tuple[list[Sequences], list[Round]]:
        """Draw a hold-out: a round of short sequences, and rounds of those that are longer.

        A target may have a longest sequence, and is believed as far as it answers.
        """
        own = [self._beside_eps()] if count >= WITH_EPS and self._has_eps() else []
        left = count - len(own)
        if self.by_distance:
            shapes = [FAR[n % len(FAR)] for n in range((left + 1) // 2)]
            most = max(LONG.together, LONG.most_numbers // self.model.dim)
            long = [self._drawn(one._replace(tokens=min(one.tokens, most))) for one in shapes]
        else:
            drawn = draw_long(self.model, left, self.rng, self._at, LONG)
            long = [self._sent(X) for X in drawn]
        short = map(self._drawn, self._short(left - len(long)))
        families = by_length([*long, *own], "hold-out, long")
        return by_length(short, "hold-out"), LONG.rounds(families)

    def _short(self, count: int) -> list[SequenceShape]:
        return [SHORT[n % len(SHORT)] for n in range(count)]

    def _drawn(self, shape: SequenceShape) -> Array:
        X = self.rng.standard_normal((shape.tokens, self.model.dim)) / np.sqrt(self.model.dim)
        return self._at(X[:-1], X[-1], shape.logits)

    def _at(self, others: Array, query: Array, logits: float) -> Array:
        """Make a sequence whose largest logits, over heads, have the root mean square wanted."""
        X = np.vstack([others, query])
        return self._sent(length_for(self.model, X, logits) * X)

    def _sent(self, X: Array) -> Array:
        """Keep tokens within the radius, and round them to float32 numbers."""
        longest = float(np.linalg.norm(X, axis=1).max())
        inside = self.radius / longest if longest > self.radius else 1.0
        return np.asarray((inside * X).astype(np.float32).astype(np.float64))

    def _has_eps(self) -> bool:
        norm = self.model.norm
        return norm is not None and not norm.before and norm.eps > 0

    def _beside_eps(self) -> Array:
        """Draw a token at which what is normalised has about the variance eps.

        No other fresh sequence shows eps, nor would it show a target that has another one.
        """
        model, norm = self.model, self.model.norm
        assert norm is not None
        heads = [model.values_of(h).whole for h in range(model.H)]
        whole = norm.without_mean(np.eye(model.dim) + sum(heads), 0)
        still = -np.linalg.lstsq(whole, norm.without_mean(model.c, 0), rcond=None)[0]
        direction = self.rng.standard_normal(model.dim)
        length = np.sqrt(norm.eps / np.mean((whole @ direction) ** 2))
        return self._sent((still + length * direction)[None])


def length_for(model: Scored, X: Array, logits: float) -> float:
    """Return how much longer the tokens of X (N, d) have logits of the root mean square wanted.

    It is 1 where no length gives any. Logits are scores less that of the last token; of all heads
    the one counts where they are largest. Within a tenth.
    """
    if len(X) == 1:
        return 1.0
    scores = model.scored(np.stack([X, -X, np.zeros_like(X)]))
    scores = scores.reshape(3, -1, len(X))
    one, minus, none = scores - scores[..., -1:]
    A, B = (one + minus) / 2 - none, (one - minus) / 2
    size = max(float(np.abs(part).max(initial=0.0)) for part in (A, B))
    if not size > 0:
        return 1.0
    A, B, C = A / size, B / size, none / size
    terms = [A * A, 2 * A * B, B * B + 2 * A * C, 2 * B * C, C * C]
    squares = np.array([np.mean(term, axis=1) for term in terms])
    means = np.max(np.array([np.polyval(of_head, _POWERS) for of_head in squares.T]), axis=0)
    found = np.log2(np.sqrt(np.maximum(means, TINY))) + np.log2(size / logits)
    return float(_POWERS[np.argmin(np.abs(found))])
