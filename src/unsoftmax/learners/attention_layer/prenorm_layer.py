"""A layer of attention after a LayerNorm or RMSNorm: y = o(n(X)) (+ x_N), from vector answers.

In normalised tokens it is a plain layer, on a ball (`normed_tokens`): no token is long, so no gate
is 0 or 1. Scores are read as in a plain layer; what differs is how the heads are found:

1. single tokens: eps, c, M = Σ M_h and the answers' noise;
2. copies of two tokens: H, and M_h of a few offsets, from gates that are all open
   (`soft_gate_reading`);
3. all [W_h w_h], from queries of many keys within the ball (`score_reading`);
4. fresh sequences of the ball, a certificate, and the layer in tokens as they are asked.

*Queries*: about d + 76 + (⌈rank M/H⌉ + 3)(H + 10) + (r + 4)⌈d/r⌉ + (d − r − 3) for H ≥ 6 heads of
rank r: MiniLM (12 heads of 32): 2,007 to 2,073. *Determined up to* the norm's scale and shift,
which are parts of the heads (M_hΓP, PΓW_hΓP, PΓ(W_hβ + w_h), c + M_hβ with P = I − 11ᵀ/d, or I of
RMSNorm), and to what is free in a plain layer. It may not know anything of the target but its
answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.learners.attention_layer.layer_cost import LayerCost
from unsoftmax.learners.attention_layer.normed_tokens import (
    NormedKind,
    NormedTokens,
    find_normed_tokens,
)
from unsoftmax.learners.attention_layer.soft_gate_reading import SoftGateReading
from unsoftmax.learners.attention_layer.soft_search import soft_search
from unsoftmax.learners.attention_layer.value_answers import LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers
from unsoftmax.models import AttentionLayer
from unsoftmax.probes import Sequences, Singles, UnitVectors
from unsoftmax.protocol import Certificate, Found
from unsoftmax.validate.conclude import CONFIRMING
from unsoftmax.validate.drawn_models import SAFETY
from unsoftmax.validate.layer_sequences import LONG, SHORT


def prenorm_steps(
    dim: int,
    kind: NormedKind,
    seed: int,
    checks: int,
    *,
    tuning: AttentionLayerTuning,
    most_heads: int,
    profile: str = "auto",
) -> Asking[Found[AttentionLayer]]:
    """Recover a layer after a norm of this kind.

    Raises
    ------
    ModelMismatch
        The target is none.
    NotIdentifiable
        The answers cannot determine it: eps is 0, or no head is seen.
    """
    rng = np.random.default_rng(seed)
    normed = yield from find_normed_tokens(dim, kind, rng, tuning.prenorm)
    inner = _BallLayer(normed, most_heads, profile, rng, tuning)
    found, noise = yield from normed.asked_of(inner.steps(checks))
    certificate = _widened(found, SAFETY * normed.eps_error(noise.relative), normed.eps)
    return replace(found, model=normed.layer(found.model), certificate=certificate)


def prenorm_cost(dim: int, most_heads: int, tuning: AttentionLayerTuning) -> LayerCost:
    """Bound queries, tokens and rounds, the hold-out's apart."""
    d, H, own = dim, most_heads, tuning.prenorm
    reading = own.reading
    beside = reading.coordinates + reading.spare_tokens
    heads = len(reading.shares) * (reading.first + 2 * (H + beside + reading.tested_by))
    maps = heads + (1 + reading.again) * d * (H + beside)
    scores = (2 + tuning.again) * d * (d + 1) + 3 * tuning.score_pilots
    queries = d + 6 + 8 + own.rungs + 2 * own.refined
    queries += own.tries * (maps + scores + CONFIRMING)
    most_copies = max(map(sum, reading.copies))
    tokens = 2 * queries + own.tries * (most_copies * maps + scores)
    tokens += own.tries * CONFIRMING * max(shape.tokens for shape in SHORT)
    offsets = (2 + reading.again) * (1 + int(np.log2(d + 1)))
    searched = len(reading.shares) * (1 + int(np.log2(H + 2))) + offsets
    asked = tuning.score_pilots + 14 * (1 + tuning.again) + 4
    rounds = 6 + own.tries * (searched + asked) + 1 + LONG.most_rounds
    return LayerCost(queries, tokens, rounds)


def _widened(found: Found[AttentionLayer], off: float, eps: float) -> Certificate:
    """Add what an error of eps, relative, does: it moves tokens by half of it, relatively."""
    bounds = dict(found.certificate.errors)
    for name in ("M", "W", "w"):
        sizes = [head.parameter_norm(name) for head in found.model.heads]
        bounds[name] += off * max(sizes)
    bounds["eps"] = off * eps
    assumed = (
        "Tokens are normalised before the heads see them: M, W, w and c contain the scale and the "
        "shift of that norm.",
    )
    return Certificate(bounds, (*found.certificate.assumes, *assumed))


@dataclass(frozen=True, slots=True)
class _BallLayer:
    """A plain layer that answers tokens of a ball."""

    normed: NormedTokens
    most_heads: int
    profile: str
    rng: np.random.Generator
    tuning: AttentionLayerTuning

    @property
    def dim(self) -> int:
        """Dimension of normalised tokens."""
        return int(self.normed.frame.shape[1])

    @property
    def radius(self) -> float:
        """√d, which no token reaches."""
        return self.normed.radius

    def steps(self, checks: int) -> Asking[tuple[Found[AttentionLayer], AnswerNoise]]:
        """Ask single tokens, then search, with other tokens if that fails.

        Says what answers are off by as well.
        """
        tokens = yield from self._tokens()
        reading = self._reading(tokens)
        for again in reversed(range(self.tuning.prenorm.tries)):
            base = yield from reading.base()
            try:
                conclusion = yield from soft_search(
                    reading,
                    base,
                    profile=self.profile,
                    fresh=self.tuning.prenorm.fresh * self.radius,
                    tuning=self.tuning,
                    least_most=self.tuning.prenorm.least_most,
                )
            except (ModelMismatch, np.linalg.LinAlgError):
                if not again:
                    raise
            else:
                break
        return (yield from conclusion.run(checks)), reading.noise

    def _tokens(self) -> Asking[TokenMapAnswers]:
        """Ask single tokens; refuse what is not affine there."""
        reach = self.tuning.prenorm.reach * self.radius
        directions = self.rng.standard_normal((2, self.dim))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        lengths = np.array([[reach], [reach / 8]])
        [checked] = on_one_grid(lengths * directions)
        few = Sequences(checked[:, None], phase="single tokens, errors", purpose="pilot")
        answers, repeats, zero, units = yield [
            few,
            replace(few, phase="single tokens, repeats"),
            Singles(np.zeros((1, self.dim)), phase="constant", purpose="data"),
            Singles(UnitVectors(self.dim), reach, phase="single tokens", purpose="data"),
        ]
        tokens = TokenMapAnswers(zero[0], units, reach, checked, answers, repeats)
        noise, explained = tokens.noise(), tokens.explained(self.normed.precision)
        if noise.relative > self.tuning.affine or np.any(
            tokens.missed > self.tuning.unexplained * explained
        ):
            raise ModelMismatch(
                "Single tokens are answered by no affine map of normalised tokens: one misses it "
                f"by {np.max(tokens.missed):.1e}, where the rounding of answers explains "
                f"{np.max(explained):.1e}. Something else is added or stands behind, or "
                "answers are too noisy."
            )
        return tokens

    def _reading(self, tokens: TokenMapAnswers) -> SoftGateReading:
        reach, tuning = self.tuning.prenorm.reach * self.radius, self.tuning.prenorm.reading
        layer, noise = LayerMap.of(tokens), tokens.noise()
        return SoftGateReading(tokens, layer, noise, reach, self.most_heads, self.rng, tuning)
