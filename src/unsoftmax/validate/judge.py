"""Whether to believe a model: |y − f̂(X)| ≤ own error + Σ sensitivity × bound, sequence by sequence.

A fresh answer y may differ from the prediction f̂(X) of a right model for two reasons:

- *own*: y itself is rounded, noisy or computed with round-off; so is the value part of f̂;
- *allowed*: parameters are known to a bound only; it is the sum over the parameters of what a
  unit of their error does to f̂(X) (the sensitivity), times their bound.

A model passes when every residual |y − f̂(X)| is within their sum. Three further rules are data
of a `Residuals`, because certificates are loose and some sequences say nothing:

- ``most``: no residual may be a larger share of the answer's natural size, whatever the bounds
  allow (where answers are exact a right model misses them by far less than its bounds);
- ``telling``: sequences whose answer every model of the class could give are left out;
- *strain*: the largest share of what the bounds allow that a residual takes, so that a learner
  can widen a certificate that fresh answers nearly contradict.

Every learner ends with `hold_out`: ask fresh sequences, compare, judge. What is compared, and
how the error of a parameter reaches an answer, is the learner's: see `head_comparison` for a
single attention head. This module sees plain arrays; it knows no model and no oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unsoftmax.errors import OracleError, TokensRefused
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Probes, Round, Sequences
from unsoftmax.protocol import Answers, Evidence


@dataclass(frozen=True, slots=True)
class Residuals:
    """How far answers are from a model's predictions, and how far they may be.

    All arrays are (B,), one entry per sequence, or (B, m) where answers are vectors;
    `Residuals.of` broadcasts numbers.

    Attributes
    ----------
    missed : ndarray
        y − f̂(X).
    own : ndarray
        What the answer itself may be off by, in the answer's unit.
    allowed : ndarray
        What the bounds on the parameters let f̂(X) be off by, in the answer's unit.
    size : ndarray
        Natural size of the answer, which residuals are relative to. Where it is 0 they are
        absolute.
    telling : ndarray of bool
        Whether the answer can tell a right model from a wrong one.
    most : ndarray
        Largest relative residual that passes, whatever the bounds allow.
    """

    missed: Array
    own: Array
    allowed: Array
    size: Array
    telling: NDArray[np.bool_]
    most: Array

    @classmethod
    def of(
        cls,
        missed: Array,
        *,
        own: ArrayLike = 0.0,
        allowed: ArrayLike = 0.0,
        size: ArrayLike = 1.0,
        telling: ArrayLike = True,
        most: ArrayLike = np.inf,
    ) -> Residuals:
        """Take numbers or arrays for each part.

        Examples
        --------
        >>> Residuals.of(np.array([1e-3, 0.0]), own=1e-2, size=2.0).relative
        array([0.0005, 0.    ])
        """

        def number(part: ArrayLike) -> Array:
            return np.broadcast_to(np.asarray(part, dtype=np.float64), missed.shape)

        tells = np.broadcast_to(np.asarray(telling, dtype=np.bool_), missed.shape)
        return cls(missed, number(own), number(allowed), number(size), tells, number(most))

    @classmethod
    def joined(cls, parts: Iterable[Residuals]) -> Residuals:
        """Put the residuals of several families of sequences one after the other."""
        every = [*parts] or [cls.of(np.zeros(0))]
        columns = ([getattr(part, field.name) for part in every] for field in fields(cls))
        return cls(*(np.concatenate(column) for column in columns))

    @classmethod
    def of_lengths(cls, parts: Iterable[tuple[int, Residuals]]) -> Residuals:
        """Join the residuals of sequences of so many tokens.

        Answers to single tokens do not depend on attention: they count where others tell.
        """
        every = [*parts]
        tells = any(np.any(part.telling) for tokens, part in every if tokens > 1)
        return cls.joined(
            part if tokens > 1 or tells else replace(part, telling=np.zeros_like(part.telling))
            for tokens, part in every
        )

    @property
    def relative(self) -> Array:
        """Relative residuals."""
        return self._divided(self.missed)

    @property
    def tolerance(self) -> Array:
        """What relative residuals may be."""
        return np.minimum(self._divided(self.own + self.allowed), self.most)

    @property
    def strain(self) -> float:
        """Largest share of what the bounds allow that a residual takes beside its own error."""
        beyond = np.abs(self.missed) - self.own
        strained = self.telling & (beyond > 0) & (self.allowed > 0)
        with np.errstate(over="ignore"):
            shares = beyond[strained] / self.allowed[strained]
        return float(np.max(shares, initial=0.0))

    def _divided(self, error: Array) -> Array:
        return np.asarray(error / np.where(self.size > 0, self.size, 1.0))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What fresh answers say of a model.

    Attributes
    ----------
    evidence : Evidence
        Residuals and tolerances in short, and whether all passed.
    strain : float
        `Residuals.strain`; above 1 some residual is not explained by its bounds.
    worst : tuple of float
        The relative residual that is largest beside its tolerance, and that tolerance; NaN
        where no sequence was telling.
    """

    evidence: Evidence
    strain: float
    worst: tuple[float, float]

    @property
    def refuses(self) -> bool:
        """Whether something was checked and did not pass, or could tell nothing."""
        return bool(self.evidence.queries) and not self.evidence.passed

    @property
    def blunt(self) -> bool:
        """Whether no sequence could tell a right model from a wrong one."""
        return bool(np.isnan(self.evidence.max_residual))

    @property
    def excess(self) -> float:
        """How many times its tolerance the worst residual is; 0 where nothing was compared."""
        residual, tolerance = self.worst
        return 0.0 if self.blunt else residual / max(tolerance, TINY)


def judge(compared: Residuals | Iterable[Residuals], queries: int) -> Judgement:
    """Say whether every telling answer is within its tolerance.

    Parameters
    ----------
    compared : Residuals or iterable of Residuals
        One per family of sequences, or all in one.
    queries : int
        Queries that the hold-out spent, for the evidence.

    Examples
    --------
    >>> y, predicted = np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-6])
    >>> right = judge(Residuals.of(y - predicted, own=1e-15, allowed=2e-6, size=2.0), 2)
    >>> right.evidence.passed, round(right.strain, 3)
    (True, 0.5)
    """
    every = compared if isinstance(compared, Residuals) else Residuals.joined(compared)
    residual, tolerance = every.relative[every.telling], every.tolerance[every.telling]
    worst = (np.nan, np.nan)
    if len(residual):
        with np.errstate(over="ignore"):
            k = int(np.argmax(np.abs(residual) / np.maximum(tolerance, TINY)))
        worst = (float(np.abs(residual[k])), float(tolerance[k]))
    return Judgement(Evidence.of(queries, residual, tolerance), every.strain, worst)


def more_than_usual(widened: float) -> tuple[str, ...]:
    """Say in a certificate by how much fresh answers made it wider, if they did.

    Examples
    --------
    >>> more_than_usual(1.0), len(more_than_usual(2.5))
    ((), 1)
    """
    if widened <= 1:
        return ()
    return (
        f"Fresh answers were missed by more than usual: errors are taken as {widened:.3g} times as "
        "large.",
    )


def from_the_side(predicted: Array, labels: NDArray[np.bool_]) -> Array:
    """Return how far predictions are from the side of 0 that labels name, 0 where on it.

    A label is an answer known to a half-line only, y > 0 or y ≤ 0: this is the distance
    |y − f̂(X)| to the nearest y that the label leaves possible, and is judged like any other.
    """
    return np.where((predicted > 0) == labels, 0.0, np.abs(predicted))


# -- asking

P = TypeVar("P", bound=Probes)
Answered = tuple[Array, Array]
"""Sequences X (B, N, d) and their answers (B,)."""


def fresh_answers(
    fresh: Sequence[Probes],
    earlier: Iterable[Answered] = (),
    further: Iterable[Sequence[Probes]] = (),
) -> Generator[Round, Answers, list[Answered]]:
    """Ask fresh sequences; return them with their answers, ``earlier`` ones first.

    For learners that judge the same answers more than once; others end with `hold_out`.

    Parameters
    ----------
    fresh : sequence of Probes
        Families of sequences, one length each; asked in one round, none if there are none.
    earlier : iterable of (ndarray, ndarray)
        Sequences that were asked before, with their answers.
    further : iterable of rounds
        What is asked after them, round by round. A round that the target does not answer (the
        runner throws its `OracleError` in) is left out: there may be a longest sequence.
        Where the target does not even answer ``fresh``, all are cut to the most tokens it answers.
        Where it refuses the length of tokens, all are shortened.
    """
    answered, most, longest = [*earlier], None, np.inf
    rounds = [[*fresh], *map(list, further)]
    step = 0
    while step < len(rounds):
        asked = [shortened(part, longest) for part in rounds[step]]
        asked = asked if most is None else [cut(part, most) for part in asked]
        try:
            answers = (yield asked) if asked else []
        except TokensRefused as refusal:
            if not refusal.longest < longest:
                raise
            longest = refusal.longest
            continue
        except OracleError as refusal:
            if not step:
                if most is not None:
                    raise
                most = yield from _most_tokens(asked, refusal)
                continue
        else:
            answered += [(_written_out(part), y) for part, y in zip(asked, answers, strict=True)]
        step += 1
    return answered


def shortened(probes: P, longest: float) -> P | Sequences:
    """Shorten sequences with a longer token, each as a whole and by a power of two.

    Examples
    --------
    >>> X = np.array([[[4.0, 0.0], [1.0, 0.0]], [[0.5, 0.0], [0.0, 1.0]]])
    >>> shortened(Sequences(X, phase="hold-out", purpose="check"), 3.0)[:][:, 0, 0]
    array([2. , 0.5])
    """
    if longest == np.inf:
        return probes
    X = _written_out(probes)
    norms = np.linalg.norm(X, axis=2).max(axis=1)
    if not np.any(norms > longest):
        return probes
    with np.errstate(divide="ignore"):
        octaves = np.ceil(np.log2(np.maximum(norms / longest, 1.0)))
    X = X * np.exp2(-octaves)[:, None, None]
    return Sequences(X, phase=probes.phase, purpose=probes.purpose)


def cut(probes: Probes, most: int) -> Probes:
    """Leave out all but the last tokens, ``most`` of them."""
    if probes.tokens <= most:
        return probes
    X = _written_out(probes)[:, -most:]
    return Sequences(X, phase=probes.phase, purpose=probes.purpose)


def _most_tokens(
    families: Sequence[Probes], refusal: OracleError
) -> Generator[Round, Answers, int]:
    """Ask how many tokens are answered, of the lengths of families of which some are refused.

    Raises
    ------
    OracleError
        The refusal: it is not for the number of tokens.
    """
    longest = max(families, key=lambda probes: probes.tokens)
    lengths = sorted({2, *(probes.tokens for probes in families if probes.tokens > 2)})
    answered, refused = -1, len(lengths) - 1
    while refused - answered > 1:
        tried = (answered + refused) // 2
        asked = Sequences(longest[:1], phase=longest.phase, purpose=longest.purpose)
        try:
            yield [cut(asked, lengths[tried])]
        except OracleError:
            refused = tried
        else:
            answered = tried
    if answered < 0:
        raise refusal
    return lengths[answered]


def _written_out(probes: Probes) -> Array:
    """Return all sequences, without a copy where there is an array of them."""
    return probes.X if isinstance(probes, Sequences) else probes[:]


def hold_out(
    fresh: Sequence[Probes],
    compare: Callable[[Array, Array], Residuals],
    queries: int,
    earlier: Iterable[Answered] = (),
) -> Generator[Round, Answers, Judgement]:
    """Ask fresh sequences and judge a model by them: the last round of every learner.

    Parameters
    ----------
    fresh : sequence of Probes
        Families of sequences, one length each; asked in one round, none if there are none.
    compare : callable
        Maps sequences (B, N, d) and answers (B,) to the model's `Residuals` there.
    queries : int
        Queries of the whole hold-out, those of ``earlier`` rounds included.
    earlier : iterable of (ndarray, ndarray)
        Sequences of the hold-out that were asked before, with their answers.
    """
    answered = yield from fresh_answers(fresh, earlier)
    return judge([compare(X, y) for X, y in answered], queries)
