"""A layer of coarse answers, fitted to tokens that are far apart: three for every unknown.

Places along a line and steps beside it are close to each other, and what rounding does to answers
counts by 1/m of their distance. Where answers are as coarse as float32's, all parameters are
solved for once more, from fresh tokens of the length scale (`neuron_fit`): A and B to 1e-6
instead of 1e-3. Errors drawn into the same equations give the certificate. A neuron that hardly any
token tells from a linear part, or from none, keeps the error that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.feed_forward.found_neurons import FoundNeurons
from unsoftmax.learners.feed_forward.line_cells import AskTokens
from unsoftmax.learners.feed_forward.neuron_fit import (
    NeuronFit,
    NeuronParameters,
    drawn_layers,
    layer_errors,
)
from unsoftmax.learners.feed_forward.opening_look import OpeningLook
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers

# Relative error of answers from which on layers are fitted. Below, 5.7 queries for each neuron
# give ten digits.
COARSE = 1e-11
# Numbers asked for, per unknown one. With 2 the equations are nearly singular.
PER_UNKNOWN = 3.0
# Lengths of the tokens, in lengths at which a random line through 0 crosses a neuron's
# hyperplane, each neuron's in turn.
LENGTHS = (0.5, 2.0, 5.0)
# Layers of more parameters are not fitted: it takes minutes.
MOST = 300_000
# How many times as large errors are drawn as the misses are: rounding is no chance, and of 100
# layers of 8 neurons one was off by 10 standard deviations of drawn ones.
DRAWN = 3.0
# Misses of so many errors of the answers are those of a wrong layer, and prove nothing.
POOR = 30.0
# Neurons whose product of row and column is below so many of its errors are none: of coarse
# answers a line shows kinks that are not there.
GONE = 4.0
# Tokens on either side of its hyperplane that tell a neuron, per dimension.
SEEN = 1.75


@dataclass(frozen=True, slots=True)
class FittedLayer:
    """A layer of ReLUs that is fitted to answers, without neurons that these do not show."""

    layer: FeedForward
    errors: dict[str, float]
    """Standard deviations of its parameters and of the function."""
    kept: Flags
    """Which neurons are left."""

    @classmethod
    def to(
        cls, x: Array, y: Array, layer: FeedForward, look: OpeningLook, rng: np.random.Generator
    ) -> FittedLayer:
        """Fit a layer that is nearly right to tokens (n, k) and answers (n, p); x is not added."""
        weight, own = 1 / look.size_at(x), look.noise / np.sqrt(y.shape[1])
        fit, kept = NeuronFit(x, y, weight, layer.activation), np.full(len(layer.b), True)
        best = NeuronParameters.of(layer)
        while True:
            best, size = fit.run(best)
            drawn = DRAWN * max(size, own / 2) / weight[:, None]
            found, draw = best.layer(layer.activation), cls._drawing(fit, best, drawn, rng)
            others = drawn_layers(found, draw)
            shown = shown_neurons(found, others)
            # more misses: something is missing or wrong, and fresh answers will say so
            if np.all(shown) or size > POOR * own:
                return cls(found, layer_errors(found, others), kept)
            kept[kept] = shown
            best = best.taken(shown)

    @staticmethod
    def _drawing(
        fit: NeuronFit, best: NeuronParameters, drawn: Array, rng: np.random.Generator
    ) -> Callable[[int], list[FeedForward]]:
        def draw(count: int) -> list[FeedForward]:
            by = ((0 * fit.x, drawn * rng.standard_normal(fit.y.shape)) for _ in range(count))
            return [one.layer(fit.activation) for one in fit.disturbed(best, by)]

        return draw


@dataclass(frozen=True, slots=True)
class LayerFitting:
    """Asks fresh tokens, and fits a layer to them."""

    look: OpeningLook
    ask: AskTokens
    rng: np.random.Generator

    def wanted(self, layer: FeedForward) -> bool:
        """Tell whether a layer gains by it."""
        size = sum(array.size for array in layer.arrays().values())
        return self.look.noise > COARSE and len(layer.b) > 0 and size <= MOST

    def run(
        self, layer: FeedForward, found: FoundNeurons, asked: tuple[Array, Array]
    ) -> Generator[Round, Answers, tuple[FeedForward, dict[str, float], Flags]]:
        """Return the layer, standard deviations of its parameters, and which neurons are left.

        Parameters
        ----------
        layer : FeedForward
            Without a linear part.
        found : FoundNeurons
            Its neurons, with the errors that they had.
        asked : tuple of ndarray
            Tokens that were asked already, and their answers.
        """
        fresh = self._tokens(layer)
        answers = yield from self.ask(fresh)
        x, y = np.vstack([fresh, asked[0]]), np.vstack([answers, asked[1]])
        y = y - layer.residual * x if layer.residual else y
        fitted = FittedLayer.to(x, y, layer, self.look, self.rng)
        best, errors = fitted.layer, fitted.errors
        unseen = np.any(self._missing(best.A, best.b, fresh), axis=0)
        for name, before in found.taken(np.flatnonzero(fitted.kept)[unseen]).errors(0.0).items():
            errors[name] = float(np.hypot(errors[name], before))
        errors["c"] = float(np.hypot(errors["c"], errors["constant"] * np.any(unseen)))
        best = FeedForward(best.A, best.b, best.B, best.c, layer.residual)
        return best, errors, fitted.kept

    def _tokens(self, layer: FeedForward) -> Array:
        """Return tokens that see both sides of every hyperplane, float32 numbers."""
        m, d = layer.A.shape
        count = int(PER_UNKNOWN * (m * (d + 1 + len(layer.c)) / len(layer.c) + 1))
        size = np.linalg.norm(layer.A, axis=1)
        crossed = np.maximum(np.sqrt(d) * np.abs(layer.b) / size, self.look.length)
        tokens = self._drawn(np.resize(crossed, count))
        missing = self._missing(layer.A, layer.b, tokens)
        aimed = [tokens]
        for side, wanted in zip((1.0, -1.0), missing, strict=True):
            which = np.repeat(np.arange(m), wanted)
            x = self._drawn(crossed[which])
            # as far beyond the hyperplane as tokens usually are from it
            beyond = side * np.abs(self.rng.standard_normal(len(x))) * crossed[which] / np.sqrt(d)
            n = layer.A[which] / size[which, None]
            z = np.sum(n * x, axis=1) + (layer.b / size)[which]
            aimed.append(x + (beyond - z)[:, None] * n)
        return np.vstack(aimed).astype(np.float32).astype(np.float64)

    def _drawn(self, lengths: Array) -> Array:
        x = self.rng.standard_normal((len(lengths), self.look.tokens.shape[1]))
        lengths = lengths * self.rng.choice(LENGTHS, len(lengths))
        return np.asarray(x * (lengths / np.linalg.norm(x, axis=1))[:, None])

    def _missing(self, A: Array, b: Array, tokens: Array) -> Indices:
        """Return how many tokens each neuron lacks where it is active, and where it is not."""
        active = np.sum(tokens @ A.T + b > 0, axis=0)
        wanted = int(SEEN * A.shape[1]) + 1
        return np.asarray(np.maximum(wanted - np.array([active, len(tokens) - active]), 0))


def shown_neurons(layer: FeedForward, others: Sequence[FeedForward]) -> Flags:
    """Tell whose products B_j a_jᵀ are larger than what drawn errors make of them."""
    rows, columns = np.linalg.norm(layer.A, axis=1), np.linalg.norm(layer.B, axis=0)
    squares = [
        (columns * np.linalg.norm(by.A - layer.A, axis=1)) ** 2
        + (rows * np.linalg.norm(by.B - layer.B, axis=0)) ** 2
        for by in others
    ]
    return np.asarray(rows * columns > GONE * np.sqrt(np.mean(squares, axis=0)))
