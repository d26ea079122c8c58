"""How the recovery of a layer ends: fresh sequences, and a certificate or a refusal.

They are compared with the layer (`layer_comparison`) and with samples of it, computed from the same
answers with errors drawn at random (`recovered_layer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.learners.attention_layer.layer_comparison import (
    LayerComparison,
    invisible_share,
    layer_heads_apart,
)
from unsoftmax.learners.attention_layer.recovered_layer import RecoveredLayer
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models import AttentionLayer
from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.models.attention import mean_shift, softmax, token_scores
from unsoftmax.probes import Array, Purpose, Sequences
from unsoftmax.protocol import Certificate, Found, Steps
from unsoftmax.validate.judge import (
    Answered,
    Judgement,
    fresh_answers,
    more_than_usual,
)
from unsoftmax.validate.long_sequences import draw_long, looked_at
from unsoftmax.validate.sequences import by_length


@dataclass(frozen=True, slots=True)
class LayerConclusion:
    """A recovered layer, what errors make of it, and how it is tried."""

    found: RecoveredLayer
    samples: Sequence[RecoveredLayer]
    noise: AnswerNoise
    notes: tuple[str, ...]
    rng: np.random.Generator
    tuning: AttentionLayerTuning
    radius: float = np.inf
    """Tokens are no longer than this."""

    def confirmed(self) -> Asking[None]:
        """Try some sequences before the hold-out, after which nothing can be mended."""
        tried = yield from fresh_answers(self._short(self.tuning.confirm, "pilot"))
        self._believed(self._comparison(self.found.model()).judged(tried, 0))

    def run(self, checks: int) -> Steps[AttentionLayer]:
        """Ask the hold-out; return the layer and how sure it is."""
        tuning, model = self.tuning, self.found.model()
        long = self._long(checks)
        short = self._short(checks - sum(map(len, long)), "check")
        answered: list[Answered] = []
        if checks:
            answered = yield from fresh_answers(short, further=tuning.long.rounds(long))
        comparison = self._comparison(model)
        judgement = comparison.judged(answered, checks)
        if checks:
            self._believed(judgement)
        looked = looked_at(self.found, answered, long) if checks else "Nothing was checked."
        widened = max(1.0, comparison.strain(answered) / tuning.usual)
        errors = {name: widened * bound for name, bound in self._bounds(model).items()}
        bounds, close = tuning.close.bounds(errors, layer_heads_apart(model))
        assumed = (*self._assumed(looked), *close, *predicted_within(model, answered, bounds))
        certificate = Certificate(bounds, (*assumed, *more_than_usual(widened)))
        notes = (*self.notes, *self._alike(bounds))
        return Found(model, certificate, judgement.evidence, notes)

    # -- fresh sequences

    def _short(self, count: int, purpose: Purpose) -> list[Sequences]:
        """Draw sequences of a few lengths in turn, one family per length."""
        tuning, d, drawn = self.tuning, self.found.dim, []
        for k in range(count):
            tokens = self.rng.standard_normal((tuning.lengths[k % len(tuning.lengths)], d))
            drawn.append(
                self._scaled(
                    tokens[1:] / np.sqrt(d),
                    tokens[0] / np.sqrt(d),
                    tuning.logits[k % len(tuning.logits)],
                )
            )
        phase = "hold-out" if purpose == "check" else "confirmation"
        return by_length(drawn, phase, purpose)

    def _long(self, count: int) -> list[Sequences]:
        drawn = draw_long(self.found, count, self.rng, self._scaled, self.tuning.long)
        return by_length(map(self._sent, drawn), "hold-out, long")

    def _scaled(self, others: Array, query: Array, logits: float) -> Array:
        """Make a sequence whose largest logits, over heads, are as wanted: s·a·w + s²·a·W b."""
        tokens = np.vstack([others, query])
        beside = np.stack([np.zeros_like(query), query])
        bias, whole = self.found.scores_of(beside)
        linear, square = (
            float(np.max(np.sqrt(np.mean((tokens @ u.T) ** 2, axis=0))))
            for u in (bias, whole - bias)
        )
        if not linear and not square:
            return self._sent(tokens)
        root = np.sqrt(linear**2 + 4 * square * logits)
        return self._sent(2 * logits / (linear + root) * tokens)

    def _sent(self, X: Array) -> Array:
        """Keep tokens within the radius, and round them to float32 numbers."""
        longest = float(np.linalg.norm(X, axis=-1).max(initial=0.0))
        inside = self.radius / longest if longest > self.radius else 1.0
        return _in_float32(inside * X)

    # -- judging

    def _comparison(self, model: AttentionLayer) -> LayerComparison:
        return LayerComparison(
            model,
            [one.model() for one in self.samples],
            self._rounding,
            float(np.linalg.norm(model.c)),
            self._gain(),
            self.noise,
            self.tuning,
        )

    def _gain(self) -> float:
        """Return how long a token of length 1 is on average when it is mapped."""
        layer = self.found.layer
        return float(np.linalg.norm(layer.M) / np.sqrt(self.found.dim))

    def _rounding(self, X: Array) -> Array:
        """Bound what the rounding of scores inside the target moves answers by."""
        unit, found = self.tuning.roundoffs * self.noise.relative, self.found
        moved = np.zeros(len(X))
        vectors, lengths = found.scores_of(X[:, -1]), np.linalg.norm(X, axis=2)
        for h, V in enumerate(found.values.V):
            weights = softmax(token_scores(X, vectors[:, h]))
            values = X @ V.T
            mean = np.einsum("bn,bnr->br", weights, values)
            away = np.linalg.norm(values - mean[:, None], axis=2)
            scores = unit * lengths * np.linalg.norm(vectors[:, h], axis=1)[:, None]
            moved += mean_shift(weights, away, scores)
        return moved

    def _believed(self, judgement: Judgement) -> None:
        """Refuse a layer that fresh answers contradict."""
        if judgement.evidence.passed:
            return
        missed, allowed = judgement.worst
        raise ModelMismatch(
            f"The recovered layer of {len(self.found.values.U)} heads misses a fresh answer by "
            f"{missed:.1e} of its size where {allowed:.1e} is expected: the target is no layer of "
            "softmax attention with scores x·(W x_N + w) (a window, positions, a nonlinearity in "
            "the values, a second layer), or its answers are too coarse."
        )

    # -- what is promised

    def _bounds(self, model: AttentionLayer) -> dict[str, float]:
        far = [self.found.distances(one) for one in self.samples]
        largest = {name: max(one[name] for one in far) for name in far[0]}
        sizes = {
            # terms of a token's size may cancel in c
            "c": float(np.linalg.norm(model.c)) + self._gain(),
            "M": max(float(np.linalg.norm(V)) for V in self.found.values.V),
            "W": max(float(np.linalg.norm(R[:, :-1])) for R in self.found.scores.R),
            "w": max(float(np.linalg.norm(R[:, -1])) for R in self.found.scores.R),
        }
        rounding = max(self.tuning.roundoffs * UNIT, self.noise.relative)
        return {
            name: self.tuning.safety * largest[name] + rounding * sizes[name] for name in largest
        }

    def _alike(self, bounds: Mapping[str, float]) -> tuple[str, ...]:
        """Name heads that score all tokens alike, as far as the bounds say."""
        named = [
            str(h)
            for h, R in enumerate(self.found.scores.R)
            if np.linalg.norm(R[:, :-1]) <= bounds["W"] and np.linalg.norm(R[:, -1]) <= bounds["w"]
        ]
        if not named:
            return ()
        return (
            f"W and w of head {', '.join(named)} are 0 within their bounds: it weighs all tokens "
            "alike, as far as answers show. Several heads with scores so small are one here, and "
            "M is the sum of theirs.",
        )

    def _assumed(self, looked: str) -> tuple[str, ...]:
        absolute = f", and by {self.noise.absolute:.1e}" if self.noise.absolute else ""
        return (
            "The target is a layer of softmax attention heads, and all of them were found: what "
            "the hold-out tests, it cannot prove. A head with M = 0 is invisible, and one with M "
            f"below {invisible_share(self.noise, self.tuning):.0e} of the others' may be. Heads "
            "whose W and w differ by less than their bounds are one here, M the sum of theirs.",
            f"Whole answers are off by {self.noise.relative:.1e} of their norm{absolute}, as "
            "single tokens show it; bounds are for all numbers of a head together, the largest of "
            "all heads.",
            f"Bounds are {self.tuning.safety:.0f} times what errors of that size, drawn at random "
            f"{self.tuning.samples} times, make of parameters.",
            looked,
        )


def predicted_within(
    model: AttentionLayer, answered: Sequence[Answered], bounds: Mapping[str, float]
) -> tuple[str, ...]:
    """Say what the bounds allow predictions to be off by, at the fresh sequences."""
    asked = [(X, y) for X, y in answered if len(X)]
    if not asked or not np.all(np.isfinite([*bounds.values()])):
        return ()
    sizes = [np.linalg.norm(y, axis=1) for _, y in asked]
    moved = [model.moved_at_most(X, bounds) for X, _ in asked]
    shares = np.concatenate(moved) / np.maximum(np.concatenate(sizes), TINY)
    longest = max(float(np.linalg.norm(X, axis=2).max()) for X, _ in asked)
    return (
        "Predictions of a sequence X are off by no more than model.moved_at_most(X, errors): at "
        f"the fresh ones, of up to {max(X.shape[1] for X, _ in asked)} tokens up to {longest:.2g} "
        f"long, by {np.median(shares):.1e} of an answer's norm in the median, "
        f"{np.max(shares):.1e} at most.",
    )


def _in_float32(X: Array) -> Array:
    """Round tokens to float32 numbers, which every target reads alike."""
    return X.astype(np.float32).astype(np.float64)
