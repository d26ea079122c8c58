"""A layer of coarse answers, fitted to tokens that are far apart: three for every unknown.

Places along a line and steps beside it are close to each other, and what rounding does to answers
counts by 1/m of their distance. Where answers are as coarse as float32's, all parameters are
solved for once more, from fresh tokens of the length scale (`solve.hinge_fit`): A and B to 1e-6
instead of 1e-3. Errors drawn into the same equations give the certificate. A neuron that hardly any
token tells from a linear part, or from none, keeps the error that it had.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from unsoftmax.learners.feed_forward.found_neurons import FoundNeurons
from unsoftmax.learners.feed_forward.line_cells import AskTokens
from unsoftmax.learners.feed_forward.opening_look import OpeningLook
from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers

# Limit on the Gauss–Newton steps (three are usual), and on the iterations for each, which end at
# this share of what equations are made of. Fewer: directions that the tokens hardly show stay. A
# step that leaves more than this share of the misses is the last.
STEPS, ITERATIONS, ENDED, GAINED = 5, 400, 1e-5, 0.9
# How often errors are drawn.
DRAWS = 3


@dataclass(frozen=True, slots=True)
class HingeParameters:
    """A (m, d), b (m,), B (d_out, m) and c (d_out,), or what they are off by."""

    A: Array
    b: Array
    B: Array
    c: Array

    @property
    def flat(self) -> Array:
        """All numbers in a row."""
        return np.concatenate([self.A.ravel(), self.b, self.B.ravel(), self.c])

    def of_flat(self, numbers: Array) -> Self:
        """Arrange a row of numbers as these are."""
        parts = (self.A, self.b, self.B, self.c)
        ends = np.cumsum([part.size for part in parts])[:-1]
        shaped = zip(np.split(numbers, ends), parts, strict=True)
        return type(self)(*(x.reshape(part.shape) for x, part in shaped))

    def moved(self, by: Self) -> Self:
        """Add what they are off by."""
        return type(self)(self.A + by.A, self.b + by.b, self.B + by.B, self.c + by.c)

    def taken(self, which: Flags) -> Self:
        """Return some of the neurons."""
        return type(self)(self.A[which], self.b[which], self.B[:, which], self.c)

    def at(self, x: Array) -> Array:
        """Evaluate the layer, without a residual."""
        return np.asarray(np.maximum(x @ self.A.T + self.b, 0.0) @ self.B.T + self.c)


@dataclass(frozen=True, slots=True)
class HingeFit:
    """Tokens and answers that a layer is fitted to."""

    x: Array
    y: Array
    weight: Array
    """(n,): one over the errors of the answers, but for a factor."""

    def run(self, start: HingeParameters) -> tuple[HingeParameters, float]:
        """Fit; return the parameters, and the misses' root mean square, weighted."""
        best, misses = start, self._misses(start)
        for _ in range(STEPS):
            new = best.moved(best.of_flat(self._solved(best, misses)))
            left = self._misses(new)
            gained = np.linalg.norm(left) / (np.linalg.norm(misses) or 1.0)
            if gained < 1:
                best, misses = new, left
            if gained > GAINED:
                break
        free = max(1, misses.size - best.flat.size)
        return best, float(np.linalg.norm(misses) / np.sqrt(free))

    def errors(
        self,
        found: HingeParameters,
        size: float,
        rng: np.random.Generator,
    ) -> list[HingeParameters]:
        """Return what drawn errors of this weighted size do to the parameters."""
        drawn = [size * rng.standard_normal(self.y.shape) for _ in range(DRAWS)]
        return [found.of_flat(self._solved(found, one)) for one in drawn]

    def _misses(self, layer: HingeParameters) -> Array:
        return np.asarray(self.weight[:, None] * (self.y - layer.at(self.x)))

    def _solved(self, layer: HingeParameters, misses: Array) -> Array:
        """Return the change of all parameters that explains the misses best.

        B and c follow by least squares from A and b: what they explain is taken off the equations,
        which leaves a tenth of the iterations.
        """
        # takes long to load, and few runs come here
        from scipy.sparse.linalg import LinearOperator, lsmr

        z = self.x @ layer.A.T + layer.b
        w, active = self.weight[:, None], (z > 0).astype(float)
        design = np.column_stack([w * np.maximum(z, 0.0), w])
        tall = np.maximum(np.linalg.norm(design, axis=0), TINY)
        U, s, Vt = np.linalg.svd(design / tall, full_matrices=False)
        seen = s > UNIT * len(z) * s[0]
        U, back_to = U[:, seen], (Vt[seen].T / s[seen]) / tall[:, None]
        # columns of about one size
        spread = np.sqrt(np.mean((w * self.x) ** 2))
        wide = np.linalg.norm(layer.B, axis=0) * spread
        wide = np.where(wide > 0, wide, np.inf)[:, None]
        x = np.column_stack([self.x, np.ones(len(z))])

        def bent(by: Array) -> Array:
            return np.asarray(w * ((active * (x @ by.T)) @ layer.B.T))

        def left(y: Array) -> Array:
            return np.asarray(y - U @ (U.T @ y))

        def ahead(change: Array) -> Array:
            return left(bent(change.reshape(len(wide), -1) / wide)).ravel()

        def back(misses: Array) -> Array:
            # these are what is left already
            r = w * misses.reshape(self.y.shape)
            return np.asarray(((active * (r @ layer.B)).T @ x) / wide).ravel()

        system = LinearOperator(
            (misses.size, len(wide) * x.shape[1]), matvec=ahead, rmatvec=back, dtype=np.float64
        )
        rest = left(misses).ravel()
        found = lsmr(system, rest, atol=ENDED, btol=0, maxiter=ITERATIONS)
        by = found[0].reshape(len(wide), -1) / wide
        outer = back_to @ (U.T @ (misses - bent(by)))
        return HingeParameters(by[:, :-1], by[:, -1], outer[:-1].T, outer[-1]).flat


def balanced_parameters(layer: HingeParameters) -> HingeParameters:
    """Return the same layer with every row of A as long as its column of B."""
    scale = np.sqrt(np.linalg.norm(layer.B, axis=0) / np.linalg.norm(layer.A, axis=1))
    return replace(layer, A=scale[:, None] * layer.A, b=scale * layer.b, B=layer.B / scale)


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
        d_out = len(layer.c)
        fresh = self._tokens(layer)
        answers = yield from self.ask(fresh)
        x, y = np.vstack([fresh, asked[0]]), np.vstack([answers, asked[1]])
        fit = HingeFit(x, y - layer.residual * x if layer.residual else y, 1 / self.look.size_at(x))
        kept = np.full(len(layer.b), True)
        best = HingeParameters(layer.A, layer.b, layer.B, layer.c)
        while True:
            best, size = fit.run(best)
            best = balanced_parameters(best)
            own = self.look.noise / np.sqrt(d_out)
            drawn = fit.errors(best, DRAWN * max(size, own / 2), self.rng)
            if size > POOR * own:
                break  # something is missing or wrong: fresh answers will say so
            real = real_neurons(best, drawn)
            if np.all(real):
                break
            kept[kept] = real
            best = best.taken(real)
        unseen = np.any(self._missing(best.A, best.b, fresh), axis=0)
        errors = errors_of(best, drawn)
        for name, before in found.taken(np.flatnonzero(kept)[unseen]).errors(0.0).items():
            errors[name] = float(np.hypot(errors[name], before))
        errors["c"] = float(np.hypot(errors["c"], errors["constant"] * np.any(unseen)))
        return FeedForward(best.A, best.b, best.B, best.c, layer.residual), errors, kept

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


def real_neurons(layer: HingeParameters, drawn: list[HingeParameters]) -> Flags:
    """Tell which neurons are larger than what drawn errors make of them."""
    return np.asarray(_products(layer) > GONE * _product_errors(layer, drawn))


def _products(layer: HingeParameters) -> Array:
    """Return the norms of all B_j a_jᵀ."""
    return np.asarray(np.linalg.norm(layer.A, axis=1) * np.linalg.norm(layer.B, axis=0))


def _product_errors(layer: HingeParameters, drawn: list[HingeParameters]) -> Array:
    """Return root mean squares of what drawn errors change of them."""
    rows, columns = np.linalg.norm(layer.A, axis=1), np.linalg.norm(layer.B, axis=0)
    squares = [
        (columns * np.linalg.norm(by.A, axis=1)) ** 2 + (rows * np.linalg.norm(by.B, axis=0)) ** 2
        for by in drawn
    ]
    return np.asarray(np.sqrt(np.mean(squares, axis=0)))


def errors_of(layer: HingeParameters, drawn: list[HingeParameters]) -> dict[str, float]:
    """Return root mean squares of what drawn errors change, rows as long as columns."""
    rows, columns = np.linalg.norm(layer.A, axis=1), np.linalg.norm(layer.B, axis=0)
    squares: dict[str, list[float]] = {}
    for by in drawn:
        new = balanced_parameters(layer.moved(by))
        A, b, B, c = new.A - layer.A, new.b - layer.b, new.B - layer.B, new.c - layer.c
        row, column = np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=0)
        c_size = float(np.linalg.norm(c))
        one = {
            "A": float(np.linalg.norm(A)),
            "b": float(np.linalg.norm(b)),
            "B": float(np.linalg.norm(B)),
            "c": c_size,
            "constant": float(np.linalg.norm([*(columns * b), *(column * layer.b), c_size])),
            "slope": float(np.linalg.norm([*(columns * row), *(column * rows)])),
        }
        for name, size in one.items():
            squares.setdefault(name, []).append(size**2)
    return {name: float(np.sqrt(np.mean(each))) for name, each in squares.items()}
