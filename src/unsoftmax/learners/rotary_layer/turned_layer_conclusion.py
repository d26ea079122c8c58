"""How the recovery of a layer with positions ends: fresh sequences of 1 to 512 tokens.

They are compared as those of layers without positions are (`layer_comparison`). Long sequences look
at all distances up to their length: windows, and frequencies that change beyond one, show there or
nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.learners.attention_layer.layer_comparison import LayerComparison, invisible_share
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.rotary_layer.turned_layer_tuning import TurnedLayerTuning
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention import mean_shift
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.probes import Array, Purpose, Sequences
from unsoftmax.protocol import Certificate, Found, Steps
from unsoftmax.validate.close_heads import nearest
from unsoftmax.validate.judge import (
    Answered,
    Judgement,
    fresh_answers,
    more_than_usual,
)
from unsoftmax.validate.sequences import by_length


@dataclass(frozen=True, slots=True)
class TurnedLayerConclusion:
    """A recovered layer, what errors make of it, and how it is tried."""

    model: RotaryLayer
    samples: Sequence[RotaryLayer]
    noise: AnswerNoise
    rng: np.random.Generator
    whole: AttentionLayerTuning

    @property
    def tuning(self) -> TurnedLayerTuning:
        """Knobs of positions."""
        return self.whole.turned

    def confirmed(self) -> Asking[None]:
        """Try some sequences before the hold-out, after which nothing can be mended."""
        shapes = self.tuning.holdout.short[: self.whole.confirm]
        tried = yield from fresh_answers(self._drawn(list(shapes), "pilot"))
        self._believed(self._comparison.judged(tried, 0))

    def run(self, checks: int) -> Steps[RotaryLayer]:
        """Ask the hold-out; return the layer and how sure it is."""
        asked, holdout = self._shapes(checks), self.tuning.holdout
        families = self._drawn(asked, "check")
        near = [part for part in families if part.tokens <= holdout.together]
        far = [[part] for part in families if part.tokens > holdout.together]
        answered: list[Answered] = []
        if checks:
            answered = yield from fresh_answers(near, further=far)
        judgement = self._comparison.judged(answered, checks)
        if checks:
            self._believed(judgement)
        widened = max(1.0, self._comparison.strain(answered) / self.whole.usual)
        errors = {name: widened * bound for name, bound in self._bounds().items()}
        model = self.model
        scores = [model.scores_of(h).whole(1).ravel() for h in range(model.H)]
        apart = nearest(np.reshape(scores, (model.H, (model.dim + 1) ** 2)))
        bounds, close = self.whole.close.bounds(errors, apart)
        longest = max((part.tokens for part in families), default=0)
        unbiased = self._unbiased(judgement)
        assumed = (*self._assumed(longest), *unbiased, *close, *more_than_usual(widened))
        return Found(self.model, Certificate(bounds, assumed), judgement.evidence, self._notes())

    # -- fresh sequences

    def _shapes(self, count: int) -> list[tuple[int, float]]:
        """Return tokens and logits of fresh sequences, the longest first in every other."""
        kinds = self.tuning.holdout.long, self.tuning.holdout.short
        return [kinds[n % 2][n // 2 % len(kinds[n % 2])] for n in range(count)]

    def _drawn(self, shapes: list[tuple[int, float]], purpose: Purpose) -> list[Sequences]:
        d, holdout, drawn = self.model.dim, self.tuning.holdout, []
        most = max(holdout.together, holdout.most_numbers // d)
        for tokens, logits in shapes:
            X = self.rng.standard_normal((min(tokens, most), d)) / np.sqrt(d)
            drawn.append((self._length(X, logits) * X).astype(np.float32).astype(np.float64))
        phase = "hold-out" if purpose == "check" else "confirmation"
        return sorted(by_length(drawn, phase, purpose), key=lambda part: part.tokens)

    def _length(self, X: Array, wanted: float) -> float:
        """Return how much longer tokens have logits of the root mean square wanted, a power of 2.

        Of the head where they are largest. A score of tokens s times as long is s²A + sB + C.
        """
        if len(X) == 1:
            return 1.0
        one, minus, none = (self.model.scores(s * X[None])[0] for s in (1.0, -1.0, 0.0))
        A, B = (one + minus) / 2 - none, (one - minus) / 2
        powers = self.tuning.holdout.powers
        s = np.exp2(np.arange(-powers, powers + 1.0))[:, None, None]
        scores = s**2 * A + s * B + none
        rms = np.sqrt(np.mean((scores - scores[..., -1:]) ** 2, axis=2)).max(axis=1)
        with np.errstate(divide="ignore"):
            return float(s[np.argmin(np.abs(np.log2(rms / wanted))), 0, 0])

    # -- judging

    @property
    def _comparison(self) -> LayerComparison:
        return LayerComparison(
            self.model,
            self.samples,
            self._rounding,
            float(np.linalg.norm(self.model.c)),
            self._gain(),
            self.noise,
            self.whole,
        )

    def _gain(self) -> float:
        """Return how long a token of length 1 is on average when it is mapped."""
        model = self.model
        squares = [model.values_of(h).norm ** 2 for h in range(model.H)]
        return float(np.sqrt(sum(squares) / model.dim)) + model.residual

    def _rounding(self, X: Array) -> Array:
        """Bound what the rounding of scores inside the target moves answers by."""
        model, unit = self.model, self.whole.roundoffs * self.noise.relative
        weights, lengths = model.attention(X), np.linalg.norm(X, axis=2)
        turns = 1 + model.rotary.folded.max(initial=0.0) * np.arange(X.shape[1])[::-1]
        moved = np.zeros(len(X))
        for h, g in enumerate(model.groups):
            values = X @ model.V[g].T
            mean = np.einsum("bn,bnr->br", weights[:, h], values)
            away = np.linalg.norm(values - mean[:, None], axis=2) * np.linalg.norm(model.O[h], 2)
            key, query = (
                np.linalg.norm(matrix, 2) * lengths + np.linalg.norm(bias)
                for matrix, bias in (
                    (model.K[g], model.k_bias[g]),
                    (model.Q[h], model.q_bias[h]),
                )
            )
            scores = unit * key * query[:, -1:] * turns
            moved += mean_shift(weights[:, h], away, scores)
        return moved

    def _believed(self, judgement: Judgement) -> None:
        """Refuse a layer that fresh answers contradict."""
        if judgement.evidence.passed:
            return
        missed, allowed = judgement.worst
        raise ModelMismatch(
            f"The recovered layer of {self.model.H} heads misses a fresh answer by {missed:.1e} of "
            f"its size where {allowed:.1e} is expected: the target is no layer of softmax "
            "attention with rotary positions (others beside them, positions that change beyond "
            "some distance, a window, a nonlinearity in the values, a second layer), or its "
            "answers are too coarse"
            + ", or its key and query biases too large" * has_biases(self.model)
            + "."
        )

    # -- what is promised

    def _bounds(self) -> dict[str, float]:
        far = [_distances(self.model, one, self.tuning.positions.farthest) for one in self.samples]
        largest = {name: max(one[name] for one in far) for name in far[0]}
        heads, model = range(self.model.H), self.model
        sizes = {
            "c": float(np.linalg.norm(model.c)) + self._gain(),
            "M": max(model.values_of(h).norm for h in heads),
            "W": max(model.scores_of(h).norm for h in heads),
            "w": max(model.scores_of(h).bias_norm for h in heads),
        }
        rounding = max(self.whole.roundoffs * UNIT, self.noise.relative)
        return {
            name: self.tuning.safety * largest[name] + rounding * sizes[name] for name in largest
        }

    def _assumed(self, longest: int) -> tuple[str, ...]:
        absolute = f", and by {self.noise.absolute:.1e}" if self.noise.absolute else ""
        return (
            "The target is a layer of softmax attention heads with rotary positions, and all of "
            "them were found: what the hold-out tests, it cannot prove. A head with M = 0 is "
            f"invisible, and one with M below {invisible_share(self.noise, self.whole):.0e} of the "
            "others', or below what a large c leaves of an answer, may be.",
            f"Whole answers are off by {self.noise.relative:.1e} of their norm{absolute}, as "
            "single tokens show it; bounds are for all numbers of a head together, the largest of "
            "all heads.",
            "The bound on W is one on W(Δ) = Kᵀ R(Δ) Q of every head, for distances Δ from 0 to "
            f"{self.tuning.positions.farthest}; beyond it grows as the distance does."
            + " That on w is one on what biases add to scores there."
            * has_biases(self.model),
            f"Bounds are {self.tuning.safety:.0f} times what errors of that size, drawn at random "
            f"{self.tuning.samples} times, make of parameters.",
            f"Fresh sequences were of up to {longest} tokens: positions farther apart may be "
            "something else.",
        )

    def _unbiased(self, judgement: Judgement) -> tuple[str, ...]:
        """Say what biases may be there where none were found."""
        evidence = judgement.evidence
        if has_biases(self.model) or not evidence.queries:
            return ()
        return (
            "Keys and queries are taken to have no biases. Fresh answers may miss the model by "
            f"{evidence.tolerance:.1e} of their size and pass: biases that move answers by less "
            "are not seen, and no bound is one on them.",
        )

    def _notes(self) -> tuple[str, ...]:
        shared = f"{self.model.H} heads share the keys and values of {self.model.G} groups."
        still = "Scores do not turn with distance: all frequencies are 0."
        return (
            *((shared,) if self.model.G < self.model.H else ()),
            *(() if np.any(self.model.rotary.frequencies) else (still,)),
        )


def _distances(mine: RotaryLayer, other: RotaryLayer, farthest: int) -> dict[str, float]:
    """Return how far the parameters of another recovery are, the largest over heads."""
    heads = range(mine.H)
    apart = [
        mine.scores_of(h).whole(n) - other.scores_of(h).whole(n)
        for h in heads
        for n in (0, 1, farthest)
    ]
    errors = {
        "c": float(np.linalg.norm(mine.c - other.c)),
        "M": max((mine.values_of(h) - other.values_of(h)).norm for h in heads),
        "W": max(float(np.linalg.norm(one[:-1, :-1])) for one in apart),
    }
    if has_biases(mine):
        errors["w"] = max(float(np.linalg.norm([*one[-1], *one[:-1, -1]])) for one in apart)
    return errors


def has_biases(model: RotaryLayer) -> bool:
    """Tell whether keys or queries have biases."""
    return bool(np.any(model.k_bias) or np.any(model.q_bias))
