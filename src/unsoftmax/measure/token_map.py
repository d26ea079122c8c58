"""What single tokens say of a target with vector answers: f([x]) = M x + c, and its noise.

The softmax of one token is 1, so a layer answers [x] with M x + c, M the sum of all heads' maps
(and the identity, with a residual connection). Two further tokens, one long and one short, are
answered by M x + c but for the answers' errors: how much they are off in proportion to an answer,
and by how much at least. Both are asked twice: what neither the format of the answers nor their
noise explains is no error, but another function. d + 5 queries.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar, cast

import numpy as np

from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.probes import Array, Round, Sequences, Singles, UnitVectors

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AnswerNoise:
    """What vector answers are off by: norms of errors of whole answers."""

    relative: float
    """Per norm of the answer."""
    absolute: float = 0.0

    def of(self, answers: Array) -> Array:
        """Return the norms of the errors of answers (…, m)."""
        return np.asarray(self.relative * np.linalg.norm(answers, axis=-1) + self.absolute)

    def drawn(self, answers: Array, rng: np.random.Generator) -> Array:
        """Draw errors of answers (…, m): independent numbers, of these norms."""
        errors = rng.standard_normal(answers.shape) / np.sqrt(answers.shape[-1])
        return np.asarray(errors * self.of(answers)[..., None])


def with_errors(answers: T, noise: AnswerNoise, rng: np.random.Generator) -> T:
    """Return a dataclass of answers with errors drawn as large as theirs may be.

    Answers are arrays whose names begin with y, in it and in all dataclasses that it holds, alone
    or in tuples; one that has a method of this name is asked for it.

    Examples
    --------
    >>> @dataclass
    ... class Pair:
    ...     tokens: Array
    ...     y: Array
    >>> rng, noise = np.random.default_rng(0), AnswerNoise(1e-3)
    >>> moved = with_errors(Pair(np.ones(2), np.ones(2)), noise, rng)
    >>> moved.tokens, np.round(moved.y, 4)
    (array([1., 1.]), array([1.0001, 0.9999]))
    """
    if isinstance(answers, tuple):
        return cast(T, tuple(with_errors(one, noise, rng) for one in answers))
    if hasattr(answers, "with_errors"):
        return cast(T, answers.with_errors(noise, rng))
    if not is_dataclass(answers):
        return answers
    moved = {}
    for part in fields(answers):
        value = getattr(answers, part.name)
        if part.name.startswith("y") and isinstance(value, np.ndarray):
            moved[part.name] = value + noise.drawn(value, rng)
        else:
            moved[part.name] = with_errors(value, noise, rng)
    return cast(T, replace(answers, **moved))  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class TokenMapAnswers:
    """Answers to the zero token, to ρe_1 … ρe_d, and to two tokens more.

    Attributes
    ----------
    zero : ndarray (m,)
        f([0]).
    units : ndarray (d, m)
        f([ρe_k]).
    scale : float
        ρ.
    checked, answers : ndarray (2, d), (2, m)
        The further tokens, and their answers.
    repeats : ndarray (2, m)
        Their answers once more.
    """

    zero: Array
    units: Array
    scale: float
    checked: Array
    answers: Array
    repeats: Array

    @staticmethod
    def probes(dim: int, scale: float, rng: np.random.Generator, within: bool = False) -> Round:
        """Return what to ask: a long token and a short one, the zero token, and ρe_1 … ρe_d.

        ``within``: no token is longer than ρ.
        """
        directions = rng.standard_normal((2, dim))
        if within:
            directions /= np.linalg.norm(directions, axis=1, keepdims=True)
            [checked] = on_one_grid(np.array([[scale], [scale / 8]]) * directions)
        else:
            directions /= np.sqrt(dim)
            [long], [short] = on_one_grid(scale * directions[0]), on_one_grid(directions[1])
            checked = np.array([long, short])
        checked = checked[:, None]
        return [
            Sequences(checked, phase="single tokens, errors", purpose="pilot"),
            Sequences(checked, phase="single tokens, repeats", purpose="pilot"),
            Singles(np.zeros((1, dim)), phase="constant", purpose="data"),
            Singles(UnitVectors(dim), scale, phase="single tokens", purpose="data"),
        ]

    @classmethod
    def of(cls, asked: Round, answers: list[Array], scale: float) -> TokenMapAnswers:
        """Take the answers to `probes`."""
        further, repeats, zero, units = answers
        return cls(zero[0], units, scale, asked[0][0:2][:, 0], further, repeats)

    def with_errors(self, noise: AnswerNoise, rng: np.random.Generator) -> TokenMapAnswers:
        """Return the same answers, with errors drawn as large as theirs may be."""
        zero, units = (y + noise.drawn(y, rng) for y in (self.zero, self.units))
        return replace(self, zero=zero, units=units)

    @property
    def constant(self) -> Array:
        """c, (m,)."""
        return self.zero

    @property
    def map(self) -> Array:
        """M, (m, d)."""
        return np.asarray((self.units - self.zero).T / self.scale)

    def noise(self) -> AnswerNoise:
        """Estimate what answers are off by, from the two further tokens."""
        long, short = self.missed
        sizes = np.linalg.norm(self.answers, axis=1)
        # κ roundoffs of an answer, and as many of terms that cancel in it
        relative = max(2 * KAPPA * UNIT, float(long / sizes[0]) if sizes[0] else 0.0)
        beyond = float(short - 4 * relative * max(sizes[1], np.linalg.norm(self.zero)))
        return AnswerNoise(relative, beyond if beyond > 0 else 0.0)

    @property
    def missed(self) -> Array:
        """By how much both tokens miss M x + c, (2,)."""
        missed = self.answers - self.zero - self.checked @ self.map.T
        return np.asarray(np.linalg.norm(missed, axis=1))

    def explained(self, precision: Precision | None = None) -> Array:
        """How much both may miss it by the answers' format and by what changes between two askings.

        Rounding inside the target adds up over the d products of M x. ``precision`` is that of the
        target's own answers, where these are not.
        """
        precision = precision or Precision.of_format([self.answers, self.zero])
        size = np.linalg.norm(self.checked, axis=1) * np.linalg.norm(self.map)
        size = (size + np.linalg.norm(self.zero)) / np.sqrt(self.answers.shape[1])
        error = precision.error(size[:, None], self.answers)
        noise = np.linalg.norm(self.answers - self.repeats, axis=1)
        return np.asarray(np.linalg.norm(error, axis=1) + noise.max())
