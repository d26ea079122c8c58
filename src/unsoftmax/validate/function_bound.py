"""How far a recovered model is from its target on the user's own sequences (§7.1, question (ii)).

Let p be the share of a distribution's sequences that the model misses by more than the largest of
n samples. The chance that p > ε is at most (1 − ε)^n ≤ e^{−εn}: all n samples would have to lie
in the other sequences. So from n ≥ ln(1/δ)/ε samples the largest miss seen is a bound that holds
for all but a share ε of the sequences, with confidence 1 − δ, whatever the target is.

Nothing is assumed of the model's class. The samples must be drawn independently, and not be those
that the model was learned from.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Found, FunctionBound, M, Model, Steps
from unsoftmax.theory.counts import samples_for
from unsoftmax.validate.sequences import by_length

SAMPLES = "samples"
"""The phase of the user's own sequences."""
Sampler: TypeAlias = Callable[[np.random.Generator], ArrayLike]
"""Draws one sequence (N, d) of a distribution with the generator it is given."""


# Samples in one round: they are kept in memory until they are answered.
TOGETHER = 256
# Which stream of random numbers of a seed draws them: learners draw from others.
STREAM = 71


@dataclass(frozen=True, slots=True)
class Sampling:
    """Samples of a distribution that are asked when a model has been found.

    Parameters
    ----------
    sampler : callable
        Takes a `numpy.random.Generator` and returns one sequence (N, d), N as it likes. A run is
        resumed only if it draws the same again from the same generator.
    eps : float
        ε, the share of sequences for which the bound need not hold, between 0 and 1.
    delta : float
        δ, between 0 and 1: the bound is right with confidence 1 − δ.

    Raises
    ------
    TypeError, ValueError
        ``sampler`` is not callable, or a number is out of range.
    """

    sampler: Sampler
    eps: float
    delta: float

    def __post_init__(self) -> None:
        if not callable(self.sampler):
            raise TypeError(
                "sampler must be callable, from a numpy.random.Generator to a sequence (N, d); it "
                f"is {self.sampler!r}."
            )
        for name in ("eps", "delta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
                raise TypeError(f"{name} must be a number; it is {value!r}.")
            if not 0 < value < 1:
                raise ValueError(f"{name} must be between 0 and 1; it is {value}.")

    @property
    def samples(self) -> int:
        """How many are asked."""
        return samples_for(self.eps, self.delta)

    def after(self, steps: Steps[M], seed: int) -> Steps[M]:
        """Ask the samples when a learner's steps have found a model."""
        found = yield from steps
        function = yield from self.bound(found.model, seed)
        return _with_bound(found, function)

    def bound(self, model: Model, seed: int) -> Generator[Round, Answers, FunctionBound]:
        """Ask the samples, some at a time, and return the largest miss."""
        rng = np.random.default_rng([seed, STREAM])
        left, missed = self.samples, 0.0
        while left:
            count = min(left, TOGETHER)
            drawn = by_length((self.drawn(model.dim, rng) for _ in range(count)), SAMPLES)
            answers = yield [*drawn]
            for part, y in zip(drawn, answers, strict=True):
                missed = max(missed, float(np.max(np.abs(y - model(part.X)))))
            left -= count
        return FunctionBound(missed, float(self.eps), float(self.delta), self.samples)

    def try_out(self, dim: int) -> None:
        """Draw one sequence before anything is paid; refuse a sampler that draws none."""
        self.drawn(dim, np.random.default_rng(STREAM))

    def drawn(self, dim: int, rng: np.random.Generator) -> Array:
        """Draw one sequence; refuse a sampler that draws none."""
        drawn = self.sampler(rng)
        try:
            X = np.array(drawn, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"sampler must return numbers: {error}") from error
        if X.ndim != 2 or X.shape[1] != dim or not len(X) or not np.all(np.isfinite(X)):
            raise ValueError(
                f"sampler must return one sequence of finite numbers, of shape (N, {dim}) with "
                f"N ≥ 1; it returned one of shape {X.shape}."
            )
        return X


def _with_bound(found: Found[M], function: FunctionBound) -> Found[M]:
    note = (
        f"On the distribution sampled, answers are predicted to {function.bound:.1e} for all but "
        f"a share of {function.eps:g} of its sequences, with confidence {1 - function.delta:g}. "
        f"That is the largest miss in {function.samples:,} samples."
    )
    return replace(found, function=function, notes=(*found.notes, note))
