"""A feed-forward layer after a norm, y = F(n(x)) (+ x): about nine queries for each neuron.

n(x) = Px/√(|Px|²/d + eps) reaches all of the ball |n| < √d, and any point of it may be asked
(`normed_tokens`). There F is a plain layer, but no line is infinite: a chord
crosses about two hyperplanes in three.

1. Which norm it is, whether x is added, and eps (`ball_opening`). 126 queries, with a look at how
   large and how precise answers are.
2. Neurons along chords, each of answers less what is known; the few that are left by their values
   at tokens where they show (`ball_search`). Every hyperplane is crossed once more. 8.8m queries
   where m is 4d.
3. Sides, constant, hold-out: as without a norm.

*Determined up to* what a plain layer is, the norm's scale and shift being part of A and b (AΓP,
b + Aβ; P = I − 11ᵀ/d, or I of RMSNorm). A neuron whose hyperplane misses the ball never switches:
it is part of a linear part, or silent. One that hardly any token of the ball shows is not found.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.feed_forward.ball_search import AROUND, BallNeurons, BallSearch
from unsoftmax.learners.feed_forward.found_neurons import DEVIATIONS, Sides
from unsoftmax.learners.feed_forward.layer_claim import BESIDE, LayerClaim
from unsoftmax.learners.feed_forward.opening_look import (
    OpeningLook,
    TargetOpening,
    drawn_directions,
)
from unsoftmax.learners.feed_forward.search_steps import asks, notes_of
from unsoftmax.learners.feed_forward.smooth_layer import SmoothClaim, SmoothSearch
from unsoftmax.learners.normed_tokens import INSIDE, NormedTokens
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Certificate, Found
from unsoftmax.refusals import Reason

# Tokens that tell how large answers are.
LOOKS = 8
# Answers with larger relative errors are refused: what is known is taken off, and what is left of
# it must be small beside neurons that are not known.
COARSE = 1e-12


@dataclass(frozen=True, slots=True)
class BallClaim(LayerClaim):
    """A layer of normalised tokens, with its errors."""

    radius: float = np.inf
    quiet: int = 0
    """So many tokens near the boundary in a row showed no other neuron."""

    @property
    def longest(self) -> float:  # type: ignore[override]
        """No normalised token is longer."""
        return INSIDE * self.radius

    def _tokens(self, count: int, rng: np.random.Generator) -> Array:
        """Return tokens all over the ball, half of them near its boundary."""
        n = np.arange(count)
        t = drawn_directions(count, self.model.dim, rng)
        inside = rng.uniform(size=count) ** (1 / self.model.dim)
        inside = np.where(n % 4 == 0, rng.uniform(size=count), inside)
        most = INSIDE * self.radius
        t = np.asarray(most * np.where(n % 2, 1.0, inside)[:, None] * t)
        moved = self._moved_beside(t, n % BESIDE == 0, rng)
        short = np.linalg.norm(moved, axis=1) <= most
        return np.where(short[:, None], moved, t)

    def _assumed(self, checks: int) -> tuple[str, ...]:
        return (
            "Tokens are normalised before the neurons: A and b contain the scale and the shift of "
            "that LayerNorm or RMSNorm.",
            *LayerClaim._assumed(self, checks),
        )

    def within(self) -> tuple[str, ...]:  # noqa: D102
        share = 3 / max(self.quiet, 1)
        return (
            "constant, slope: ``‖F̂(x) − F(x)‖₂`` ≤ constant + slope·‖n(x)‖ for every x that "
            "switches no missing neuron (see below). n(x) is the normalised token, of norm below "
            "√d.",
            f"The last {self.quiet} long tokens of random directions showed no other neuron. A "
            f"neuron that fewer than {share:.1%} of such tokens switch may be missing (of those "
            "that more switch, 19 in 20 would have shown). One that never switches is part of the "
            "linear part.",
        )


@dataclass(frozen=True, slots=True)
class AfterNorm:
    """Searches for a layer of normalised tokens."""

    normed: NormedTokens
    most: int
    """More neurons are refused."""
    rng: np.random.Generator
    attempts: int
    """Points of chords before a target is refused."""

    def steps(self, checks: int) -> Asking[Found[FeedForward]]:
        """Find the layer; return it as one of tokens x."""
        found, error = yield from self.normed.asked_of(self._within(checks))
        return self._of_tokens(found, DEVIATIONS * error)

    def smoothly(
        self, activation: str | None, gated: bool | None, checks: int
    ) -> Asking[Found[FeedForward]]:
        """Find a smooth layer, and eps, which is known but for a factor."""
        claim, normed = yield from self.smoothly_claimed(activation, gated)
        found = yield from normed.asked_of(claim.tested(checks, self.rng))
        return replace(self, normed=normed)._of_tokens(found, found.certificate.errors["eps"])

    def smoothly_claimed(
        self, activation: str | None, gated: bool | None
    ) -> Asking[tuple[SmoothClaim, NormedTokens]]:
        """Find a smooth layer that fresh tokens were not compared with, and the norm's eps."""
        width = self.normed.frame.shape[1]
        square = self.normed.radius**2
        search = SmoothSearch(width, 1.0, self.most, activation, gated, self.rng, square)
        claim, ratio = yield from self.normed.asked_of(search.found())
        return claim, replace(self.normed, eps=ratio * self.normed.eps)

    def _of_tokens(self, found: Found[FeedForward], error: float) -> Found[FeedForward]:
        """Return a layer of tokens of the ball as one of tokens x; eps is off by a share."""
        E, kind, plain = self.normed.frame, self.normed.kind, found.model
        norm = LayerNorm(np.ones(len(E)), None, self.normed.eps, True, kind.centred)
        gate = None if plain.gate is None else (plain.gate[0] @ E.T, plain.gate[1])
        inside = plain.A @ E.T, plain.b, plain.B, plain.c
        model = FeedForward(*inside, kind.residual, norm, plain.activation, gate)
        errors = {**found.certificate.errors, "eps": error * self.normed.eps}
        certificate = Certificate(errors, found.certificate.assumes)
        named = "LayerNorm" if kind.centred else "RMSNorm"
        added = "x is added" if kind.residual else "x is not added"
        seen = f"The layer sees tokens after a {named} of eps {self.normed.eps:.6g}, and {added}."
        return replace(found, model=model, certificate=certificate, notes=(seen, *found.notes))

    def _within(self, checks: int) -> Asking[tuple[Found[FeedForward], float]]:
        """Find a layer of tokens of the ball; return what eps may be off by, relatively, too."""
        claim = yield from self.claimed()
        found = yield from claim.tested(checks, self.rng)
        return found, self.normed.eps_error(claim.look.noise)

    def claimed(self) -> Asking[BallClaim]:
        """Find a layer of tokens of the ball, which fresh ones were not compared with."""
        look = yield from self._look()
        attempts = self.attempts
        for again in range(1, attempts + 1):
            try:
                return (yield from self._searched(look, again > 1))
            except (ModelMismatch, np.linalg.LinAlgError):
                if again == attempts:
                    raise
        raise AssertionError("there is at least one attempt")

    def _look(self) -> Generator[Round, Answers, OpeningLook]:
        """Measure sizes and errors of answers within the ball."""
        k, radius = self.normed.frame.shape[1], self.normed.radius
        t = self.rng.standard_normal((LOOKS, k))
        t *= AROUND * radius / np.linalg.norm(t, axis=1, keepdims=True)
        t[0] = 0.0
        y = yield from asks("opening")(t)
        size = float(np.max(np.linalg.norm(y, axis=1)))
        steepness = float(np.max(np.linalg.norm(y[1:] - y[0], axis=1))) / radius
        precision = self.normed.precision
        look = OpeningLook(radius / 4, size, steepness, 0.0, t, y, precision.why)
        opening = TargetOpening(k, asks("opening"), self.rng)
        look = yield from opening.measured(look, precision)
        if look.noise > COARSE:
            raise Reason.TOO_COARSE_FOR_NEURONS.error(
                what="The answers are",
                noise=look.noise,
                purpose="for a layer after a norm",
                most=COARSE,
            )
        return look

    def _searched(self, look: OpeningLook, thorough: bool) -> Generator[Round, Answers, BallClaim]:
        """Search once; compare what was asked."""
        radius = self.normed.radius
        search = BallSearch(look, radius, self.most, thorough, self.rng)
        neurons = yield from search.run()
        sides = neurons.part.found.sides(alone=True)
        model, errors = self._with_constant(neurons, sides, look)
        claim = BallClaim(
            model,
            look,
            errors,
            notes_of(sides, after_norm=True),
            sides.sure and sides.linear is None,
            radius=radius,
            quiet=neurons.quiet,
        )
        tokens = np.vstack([look.tokens, neurons.tokens])
        answers = np.vstack([look.answers, neurons.answers])
        claim, judgement = claim.judged(tokens, answers, len(tokens))
        claim.refuse(judgement)
        return claim

    def _with_constant(
        self, neurons: BallNeurons, sides: Sides, look: OpeningLook
    ) -> tuple[FeedForward, dict[str, float]]:
        """Return the layer with its constant, and standard DEVIATIONS."""
        found, t, y = neurons.part.found, neurons.tokens, neurons.answers
        c = np.mean(y - found.layer(sides, np.zeros(y.shape[1]))(t), axis=0)
        errors = found.errors(0.0, sides.dropped)
        along = self.normed.radius / np.sqrt(t.shape[1])
        errors = found.errors(errors["constant"] + errors["slope"] * along, sides.dropped)
        # an error of eps moves tokens along themselves, by half of it at most
        moved = self.normed.eps_error(look.noise) * self.normed.radius / 2
        errors["constant"] += moved * look.steepness
        return found.layer(sides, c), errors
