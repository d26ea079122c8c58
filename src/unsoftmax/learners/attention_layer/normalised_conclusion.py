"""The end behind a LayerNorm: errors by perturbed answers, fresh sequences, a certificate.

The rounds are solved again with answers moved at random by as much as they may be off. What a
parameter moves, times a safety factor, bounds its error; what a prediction moves bounds what a
fresh answer may be missed by beside its own rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.layer_comparison import layer_heads_apart
from unsoftmax.learners.attention_layer.layer_conclusion import predicted_within
from unsoftmax.learners.attention_layer.normalised_solution import (
    NormalisedRounds,
    SolvedLayer,
    perturbed,
    solved_alike,
    with_eps,
)
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedTuning
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.precision import UNIT
from unsoftmax.models import AttentionLayer, LayerNorm
from unsoftmax.probes import Array
from unsoftmax.protocol import Certificate, Found
from unsoftmax.validate.judge import (
    Answered,
    Residuals,
    fresh_answers,
    judge,
    more_than_usual,
)
from unsoftmax.validate.long_sequences import draw_long, looked_at
from unsoftmax.validate.sequences import by_length


@dataclass(frozen=True, slots=True)
class LayerScores:
    """A layer as tokens' scores see it."""

    layer: AttentionLayer

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return self.layer.dim

    def scores_of(self, queries: Array) -> Array:
        """Return the vectors W_h x + w_h of query tokens (B, d), (B, H, d)."""
        return np.stack([head.vectors(queries) for head in self.layer.heads], axis=1)

    def sequence(self, offsets: Array, query: Array, wanted: float) -> Array:
        """Scale tokens so that the largest rms of a head's logits is about the one wanted."""
        bias = self.scores_of(np.zeros((1, self.dim)))[0]
        slope = self.scores_of(query[None])[0] - bias
        square, linear = (
            float(np.sqrt(np.mean((offsets @ part.T) ** 2, axis=0)).max()) for part in (slope, bias)
        )
        if square + linear == 0:
            return np.vstack([offsets, query])
        root = np.sqrt(linear**2 + 4 * square * wanted)
        return np.asarray(2 * wanted / (linear + root) * np.vstack([offsets, query]))


@dataclass(frozen=True, slots=True)
class PerturbedLayers:
    """A solution, and others from perturbed answers.

    Attributes
    ----------
    found : AttentionLayer
        The layer.
    others : tuple of AttentionLayer
        From perturbed answers.
    unit : float
        What answers were moved by, relative to y and to the scale.
    """

    found: AttentionLayer
    others: tuple[AttentionLayer, ...]
    unit: float

    def errors(self, safety: float) -> dict[str, float]:
        """Bound every parameter: Frobenius norms of the worst head, 2-norms of vectors."""
        differences = [_apart(self.found, other) for other in self.others]
        errors = {name: safety * max(one[name] for one in differences) for name in differences[0]}
        # a c so small that the zero token is answered with the shift is taken for 0
        norm = _norm(self.found)
        unseen = np.linalg.norm(np.abs(norm.shift / norm.scale) + 1) * np.sqrt(norm.eps)
        errors["c"] += safety * self.unit * (float(unseen) + self.found.parameter_norm("c"))
        return errors

    def residuals(self, X: Array, y: Array, tuning: NormalisedTuning) -> Residuals:
        """Compare fresh answers, number by number."""
        knobs, norm, predicted = tuning.conclusion, _norm(self.found), self.found(X)
        allowed = knobs.safety * self._moved(X, predicted)
        most = max(knobs.most, min(knobs.most_noisy, self.unit * knobs.amplified))
        return Residuals.of(
            y - predicted,
            own=max(knobs.own * UNIT, self.unit) * (np.abs(y) + np.abs(norm.scale)),
            allowed=allowed,
            size=np.broadcast_to(self._size, y.shape),
            # next to nothing may be left of a single token, and errors of c be as large
            telling=(allowed < most * self._size) | (X.shape[1] > 1),
            most=most,
        )

    def strain(self, X: Array, y: Array) -> float:
        """Return the largest miss, in multiples of one perturbation's and of what y is off by."""
        predicted = self.found(X)
        own = self.unit * (np.abs(y) + np.abs(_norm(self.found).scale))
        return float(np.max(np.abs(y - predicted) / (own + self._moved(X, predicted))))

    def _moved(self, X: Array, predicted: Array) -> Array:
        """Return the most that perturbations move each number by: by chance less than all do."""
        moved = [np.abs(other(X) - predicted) for other in self.others]
        rms = np.sqrt(np.mean(np.square(moved) / self._size**2, axis=(0, 2)))
        return np.asarray(np.max(moved, axis=0) + rms[:, None] * self._size)

    @property
    def _size(self) -> Array:
        norm = _norm(self.found)
        return np.asarray(np.abs(norm.shift) + np.abs(norm.scale))


def _norm(model: AttentionLayer) -> LayerNorm:
    assert model.norm is not None
    return model.norm


def _apart(a: AttentionLayer, b: AttentionLayer) -> dict[str, float]:
    """Return how far two layers with the same order of heads are apart, by parameter."""
    if len(a.heads) != len(b.heads):
        return dict.fromkeys(("M", "W", "w", "c", "scale", "shift", "eps"), np.inf)
    heads = [*zip(a.heads, b.heads, strict=True)]
    first, second = _norm(a), _norm(b)
    return {
        "M": max((one.values - other.values).norm for one, other in heads),
        "W": max(float(np.linalg.norm(one.W - other.W)) for one, other in heads),
        "w": max(float(np.linalg.norm(one.w - other.w)) for one, other in heads),
        "c": float(np.linalg.norm(a.c - b.c)),
        "scale": float(np.linalg.norm(first.scale - second.scale)),
        "shift": float(np.linalg.norm(first.shift - second.shift)),
        "eps": abs(first.eps - second.eps),
    }


def concluded(
    found: SolvedLayer,
    asked: NormalisedRounds,
    noise: float,
    checks: int,
    earlier: list[Answered],
    *,
    rng: np.random.Generator,
    tuning: NormalisedTuning,
) -> Asking[Found[AttentionLayer]]:
    """Perturb, ask fresh sequences, and return the layer with its certificate.

    ``noise`` is what a number of a normalised answer is off by.

    Raises
    ------
    ModelMismatch
        Fresh answers are not what the layer predicts.
    """
    knobs = tuning.conclusion
    layers = _perturbed_layers(found, asked, noise, rng, tuning)
    scores = LayerScores(found.model)
    late = checks - sum(len(y) for _, y in earlier)
    long = draw_long(scores, late, rng, scores.sequence, knobs.long)
    small = int(_norm(found.model).eps > 0 and late >= knobs.with_eps)
    short = [_short(scores, n, rng, tuning) for n in range(late - len(long) - small)]
    families = by_length(_single_precision(long), "hold-out, long")
    closing = by_length(_single_precision(short), "hold-out, closing")
    further = knobs.long.rounds(families)
    if small:
        beside = _single_precision([_beside_eps(found.model, rng)])
        further.append([*by_length(beside, "hold-out, eps")])
    answered = yield from fresh_answers(closing, earlier, further)
    compared = [(X.shape[1], layers.residuals(X, y, tuning)) for X, y in answered if len(y)]
    judgement = judge(Residuals.of_lengths(compared), checks)
    if judgement.refuses:
        raise ModelMismatch(
            f"The recovered layer misses fresh answers by {judgement.worst[0]:.1e} of their size "
            f"where {judgement.worst[1]:.1e} is expected: the target is not one layer of softmax "
            "attention with a residual and a LayerNorm or RMSNorm behind."
        )
    looked = looked_at(scores, answered, families) if checks else "Nothing was checked."
    strain = max((layers.strain(X, y) for X, y in answered if len(y)), default=0.0)
    widened = max(1.0, strain / knobs.usual)
    widest = {name: widened * error for name, error in layers.errors(knobs.safety).items()}
    errors, close = knobs.close.bounds(widest, layer_heads_apart(found.model))
    assumed = (
        *_assumed(layers.unit, looked, _norm(found.model).centred, tuning),
        *close,
        *predicted_within(found.model, answered, errors),
        *more_than_usual(widened),
    )
    certificate = Certificate(errors, assumed)
    return Found(found.model, certificate, judgement.evidence)


def _perturbed_layers(
    found: SolvedLayer,
    asked: NormalisedRounds,
    noise: float,
    rng: np.random.Generator,
    tuning: NormalisedTuning,
) -> PerturbedLayers:
    """Solve the rounds again with answers moved by what they may be off."""
    knobs = tuning.conclusion
    off = noise * np.sqrt(found.model.dim)
    unit = off if off > knobs.noisy * UNIT else knobs.roundoffs * UNIT
    scale = _norm(found.model).scale
    others = []
    for _ in range(knobs.perturbed):
        other = solved_alike(perturbed(asked, scale, unit, rng), found, tuning).model
        moved = found.eps_error * float(rng.standard_normal())
        others.append(with_eps(other, _norm(other).eps + moved))
    return PerturbedLayers(found.model, tuple(others), unit)


def _assumed(unit: float, looked: str, centred: bool, tuning: NormalisedTuning) -> tuple[str, ...]:
    """Say what the bounds rest on."""
    knobs = tuning.conclusion
    return (
        "The target is a layer of softmax attention, with a residual and a norm behind: what "
        "the hold-out tests, it cannot prove.",
        f"Answers are off by {unit:.1e} of themselves and of the scale, each by itself; bounds "
        f"are {knobs.safety:g} times what {knobs.perturbed} such perturbations move.",
        "M and c are meant without the part that is the same in all outputs: a LayerNorm takes it "
        "off."
        if centred
        else "The norm behind is RMSNorm, its scale of one sign, as answers to two tokens agree.",
        looked,
    )


def _short(
    scores: LayerScores, n: int, rng: np.random.Generator, tuning: NormalisedTuning
) -> Array:
    """Draw the n-th short sequence."""
    knobs = tuning.conclusion
    length = knobs.lengths[n % len(knobs.lengths)]
    tokens = rng.standard_normal((length, scores.dim)) / np.sqrt(scores.dim)
    return scores.sequence(tokens[:-1], tokens[-1], knobs.logits[n % len(knobs.logits)])


def _beside_eps(model: AttentionLayer, rng: np.random.Generator) -> Array:
    """Draw a token, (1, d), at which what is normalised has about the variance eps.

    No other fresh sequence shows eps, nor would it show a target that has another one.
    """
    norm, whole, c = _norm(model), np.eye(model.dim) + sum(h.M for h in model.heads), model.c
    if norm.centred:
        whole, c = whole - np.mean(whole, axis=0), c - np.mean(c)
    still = -np.linalg.lstsq(whole, c, rcond=None)[0]
    direction = rng.standard_normal(model.dim)
    length = np.sqrt(norm.eps / np.mean((whole @ direction) ** 2))
    return np.asarray(still + length * direction)[None]


def _single_precision(sequences: list[Array]) -> list[Array]:
    return [X.astype(np.float32).astype(np.float64) for X in sequences]
