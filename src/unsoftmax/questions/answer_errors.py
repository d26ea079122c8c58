"""What a target's answers may be off by, and what changes of a claim that leaves visible.

Both are measured without trusting the claim's numbers: a claim that is wrong is no reason to
believe that answers are coarse. Three sources, of which each answer's bound is made:

- the format of the answers (`measure.precision`);
- the target's own arithmetic: what it misses identities by that hold for every model of the class,
  in roundoffs of the terms that are added up;
- noise, where sequences asked twice are answered differently: Student's t of the deviation.

A fourth source shows in no identity: TF32 and autocast round the operands of products to 11 or 8
bits and add up in float32, which leaves another model of the class. But inputs are operands, too:
of a token x of 8 bits and x + δ, x + 8δ beside it, 11 bits hold no δ and 8 bits no 8δ. Then answers
to these are those to x, whatever the weights are.

With operands of k bits answers miss a head's by up to 0.32 κ 2^−k/√d of their terms' size, whatever
d is (measured: 400 targets with 1 or 4 heads, d = 4 to 128): the roundings of d products add up as
random numbers do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import scipy

from unsoftmax.measure.precision import (
    FLOAT32_BITS,
    FLOAT32_UNIT,
    KAPPA,
    UNIT,
    Precision,
    significant_bits,
)
from unsoftmax.probes import Array, Indices, Round, Sequences
from unsoftmax.protocol import Answers
from unsoftmax.questions.claim import Claim, ClaimedAnswers
from unsoftmax.refusals import Reason, RefusalError

MISSED = (
    "The endpoint is not consistent with this model class: either it computes with only a few "
    "digits, or it is a different kind of model (a larger block?)"
)
STRANGE = (
    "The endpoint is not consistent with this model class: it misses identities that hold for "
    "every such model by more than the rounding of its answers explains, so it computes something "
    "else as well."
)


@dataclass(frozen=True, slots=True)
class Seen:
    """Answers y, (B,) or (B, m), to sequences, with what the claim says there."""

    y: Array
    at: ClaimedAnswers

    @property
    def missed(self) -> Array:
        """How far answers are from the predictions, y − f̂(X)."""
        return self.y - self.at.predicted

    def __getitem__(self, some: list[int] | Indices | slice) -> Seen:
        return _each(lambda x: x[some], self)

    def beside(self, other: Seen) -> Seen:
        """Return both, one after the other."""
        return _each(lambda x, y: np.concatenate([x, y]), self, other)


def _each(change: Callable[..., Array], *seen: Seen) -> Seen:
    """Change answers, and what is claimed of them, array by array."""
    ats = [one.at for one in seen]
    moves = {name: change(*(at.moves[name] for at in ats)) for name in ats[0].moves}
    arrays = ((one.y, one.at.predicted, one.at.roundings, one.at.open) for one in seen)
    y, predicted, roundings, left_open = (change(*some) for some in zip(*arrays, strict=True))
    return Seen(y, ClaimedAnswers(predicted, roundings, moves, left_open))


def seen_at(
    claim: Claim, sequences: Sequence[Array], phase: str
) -> Generator[Round, Answers, Seen]:
    """Ask sequences (N, d) of any lengths in one round; return what is seen, in their order.

    Raises
    ------
    DimensionRefused
        The target answers with vectors of another length than the claim.
    """
    lengths = np.array([len(X) for X in sequences])
    places = [np.flatnonzero(lengths == N).tolist() for N in np.unique(lengths)]
    stacks = [np.stack([sequences[k] for k in some]) for some in places]
    answers = yield [Sequences(X, phase=phase, purpose="check") for X in stacks]
    width = answers[0].shape[1:]
    if claim.outputs is not None and width != (claim.outputs,):
        raise not_as_wide(width[0], claim.outputs)
    y = np.concatenate(answers)[np.argsort(np.concatenate(places))]
    return seen_of(claim, sequences, y)


def seen_of(claim: Claim, sequences: Sequence[Array], y: Array) -> Seen:
    """Return answers to sequences (N, d) of any lengths, with what the claim says there."""
    lengths = np.array([len(X) for X in sequences])
    places = [np.flatnonzero(lengths == N).tolist() for N in np.unique(lengths)]
    stacks = [np.stack([sequences[k] for k in some]) for some in places]
    by_length = [Seen(y[some], claim.at(X)) for X, some in zip(stacks, places, strict=True)]
    return reduce(Seen.beside, by_length)[np.argsort(np.concatenate(places))]


def not_as_wide(width: int, claimed: int, tokens: int = 1) -> RefusalError:
    """Say that answers have another number of numbers than those of the claim.

    ``tokens``: where they may be of so many positions.
    """
    numbers = "1 number" if width == 1 else f"{width} numbers"
    if tokens > 1 and width % tokens == 0:
        numbers += f" ({width // tokens} at each position, if at all {tokens})"
    return Reason.SERVES_OTHER_NUMBERS.error(numbers=numbers, claimed=claimed)


# The arithmetic's roundoff is taken so many times as large as identities show it.
_SAFETY = 8.0
# Float64 arithmetic is taken to be so many times as coarse as it is: what a target holds may have
# come there by another conversion than the claim (factors multiplied, a canonical form).
_CONVERTED = 2.0
# A roundoff is told where it is so many times the format's own: `_SAFETY` times 4. Smaller: every
# note speaks of rounding, which misses identities by a few units everywhere.
_TOLD = 32.0
# No arithmetic shows a larger roundoff, bfloat16 included (its own is 2⁻⁹, of terms that are rarely
# all as large as their bound): identities that are missed by more do not hold. Where answers are
# float64 numbers they come from float32 arithmetic at the coarsest.
_COARSEST, _COARSEST_FLOAT64 = 2.0**-11, 2.0**-24
# What holds nearly shows so much of the roundoff of rounded operands, in steps that these do not
# hold. Larger: a wrong claim misses by less than twice what it is allowed itself.
_NEARLY = 4.0
# Probability with which noise alone passes its bound, per answer.
_FALSE_ALARM = 1e-9
# Fewer different answers establish no format (`measure.precision`).
_WITNESSES = 4
# A change that the power names is missed with this probability.
_UNNOTICED = 0.05
# Significant bits of float16 and TF32, and of bfloat16: what does not hold δ, and 8δ.
OPERAND_BITS = (11, 8)
# δ, as a share of the power of two below a token's entries.
_STEP = 2.0**-12
# The roundoff that is assumed, in units of 2^−k/√d: as large as identities show it in the median.
# Smaller: right weights are called different; larger: changes go unseen.
_SHARE = 0.25
# By the claim answers must change by so many times their rounding, and change by less than this
# part of it.
_CLEARLY = 8.0


@dataclass(frozen=True, slots=True)
class Defect:
    """What a target misses Σ c_k f(X_k) = 0 by, and how large the terms are."""

    weights: Sequence[float]
    seen: Seen
    """Answers to the identity's sequences."""
    curved: bool = False
    """Whether it holds but for what curves within short steps: what a function is off by there for
    the claim it is off by for the target, so misses y − f̂ are added up."""

    @property
    def value(self) -> Array:
        """How far the sum is from 0."""
        seen = self.seen
        return np.asarray(np.abs(np.array(self.weights) @ (seen.missed if self.curved else seen.y)))

    def roundoffs(self, precision: Precision, hidden: Array) -> float:
        """Return the roundoff that explains it, beyond what the answers' format does."""
        c, y = np.abs(self.weights), self.seen.y
        by_format = c @ (precision.relative * np.abs(y) + precision.absolute)
        size = KAPPA * (c @ (self.seen.at.roundings + hidden))
        beyond = np.maximum(0.0, self.value - by_format)
        return float(np.max(beyond / np.where(size > 0, size, np.inf)))

    def standard(self, hidden: Array) -> tuple[float, float]:
        """Return the deviation of one answer, were the defect noise; and as a share of its size."""
        sizes = np.linalg.norm((self.seen.at.roundings + hidden).T * self.weights, axis=-1)
        shares = self.value / np.where(sizes > 0, sizes, 1.0)
        return _root(self.value / np.linalg.norm(self.weights)), _root(shares)


@dataclass(frozen=True, slots=True)
class AnswerErrors:
    """What answers may be off by."""

    precision: Precision
    hidden: Array | float = 0.0
    """Size of terms that cancel in every answer, (m,) where answers are vectors."""
    deviation: float = 0.0
    """Standard deviation of an answer's noise."""
    share: float = 0.0
    """The same as a share of the answer's size: noise may be of one size, or grow with it."""
    freedom: int = 0
    """Degrees of freedom of its estimate."""
    averaged: int = 1
    """Askings that every answer is the mean of."""
    few: bool = False
    """Whether answers are too few different ones for their format to be known."""
    strange: bool = False
    """Whether identities are missed by more than arithmetic of the answers' format explains."""

    @property
    def _quantile(self) -> float:
        """How many deviations noise may move an answer by."""
        if not self.freedom:
            return 0.0
        quantile = scipy.stats.t.isf(_FALSE_ALARM / 2, self.freedom)
        return float(quantile / np.sqrt(self.averaged))

    def of(self, seen: Seen) -> Array:
        """Bound what each answer to a right claim may miss it by, (B,)."""
        return np.asarray(self.own(seen) + seen.at.open)

    def own(self, seen: Seen) -> Array:
        """Bound what each answer may be off by, (B,)."""
        sizes = seen.at.roundings + self.hidden
        noise = np.maximum(self.deviation, self.share * sizes)
        return np.asarray(self.precision.error(sizes, seen.y) + self._quantile * noise)

    def alone(self) -> AnswerErrors:
        """Return the errors of answers that are asked once."""
        return replace(self, averaged=1)

    def with_operands(self, seen: Seen, dim: int) -> AnswerErrors:
        """Assume that operands are rounded where answers to three tokens show it."""
        if seen.y.ndim > 1:  # the number that should change most
            k = int(np.argmax(np.abs(seen.at.predicted[1] - seen.at.predicted[0])))
            seen = _each(lambda x: x[:, k], seen)
        size = float(seen.at.roundings.max())
        inside = replace(self.precision, unit=max(self.precision.relative, UNIT))
        bits = operand_bits(seen.y, seen.at.predicted, size, inside)
        # what is rounded by a format that too few answers show loses small changes, too
        if bits is None or self.deviation or self.few:
            return self
        unit = _SHARE * 2.0**-bits / float(np.sqrt(dim))
        reason = f"The target rounds the inputs of its products to {bits} bits"
        return replace(self, precision=self.precision.with_unit(unit, reason))

    def notes(self) -> tuple[str, ...]:
        """Say what was noticed."""
        if self.strange:
            return (*self.precision.why, STRANGE)
        if not self.deviation:
            return self.precision.why
        noisy = (
            f"The same question got different answers (standard deviation {self.deviation:.1e}); "
            f"{self._quantile:.0f} times that is allowed."
        )
        return (*self.precision.why, noisy)


def measured(
    y: Array,
    generic: Seen,
    twice: tuple[Seen, Seen],
    defects: Sequence[Defect],
    nearly: Sequence[Defect] = (),
) -> AnswerErrors:
    """Read format, arithmetic and noise off answers.

    Parameters
    ----------
    y : ndarray
        All answers, whose format is looked for; one number given again and again is no witness.
    generic : Seen
        Answers to random sequences.
    twice : (Seen, Seen)
        Sequences that were asked twice.
    defects : sequence of Defect
        What identities are missed by.
    nearly : sequence of Defect
        What sums are missed by that are nearly the same for every model; none is strange.
    """
    found = Precision.of_format([np.unique(y)])
    # inside, a target is taken to be no more precise than its answers; and terms that cancel in
    # the claim need not cancel there: value and output biases, say
    single = FLOAT32_UNIT if significant_bits(y) <= FLOAT32_BITS else 0.0
    hidden = np.asarray(np.median(generic.at.roundings, axis=0))
    converted = _CONVERTED * UNIT
    found = replace(found, unit=max(found.unit, found.relative, single, converted))
    roundoff = max((d.roundoffs(found, hidden) for d in defects), default=0.0)
    # float64 answers come from float64 or float32 arithmetic, not from any that is coarser
    strange = roundoff > (_COARSEST if single else _COARSEST_FLOAT64)
    # a neuron that switches within a step shows in some of these, rounded operands in all
    each = [_NEARLY * d.roundoffs(found, hidden) for d in nearly]
    shown = float(np.median(each)) if each else 0.0
    # and no arithmetic is as coarse as that: then the target is no model of the class
    roundoff = roundoff if roundoff <= _COARSEST else 0.0
    roundoff = _SAFETY * max(roundoff, min(shown, _COARSEST))
    one, two = twice
    changes = np.abs(two.y - one.y)
    # multiples of 2^-k are what sums that cancel end with, after several of their terms rounded
    binary = found.absolute and np.frexp(found.absolute)[0] == 0.5
    precision = replace(found, absolute=found.absolute * (_SAFETY if binary else 1.0))
    if np.all(changes <= 2 * precision.error(one.at.roundings + hidden, one.y)):
        # what float64's own rounding explains is no news
        reason = MISSED if roundoff > _TOLD * found.unit else ""
        precision = precision.with_unit(roundoff, reason)
        few = len(np.unique(y[y != 0])) < _WITNESSES
        return AnswerErrors(precision, hidden, few=few, strange=strange)
    # noise hides what the arithmetic does: identities are repeats, too. Of a vector's numbers all
    # may have the same noise: it counts once
    sizes = one.at.roundings + hidden
    pairs = zip(changes, sizes, strict=True)
    repeats = [(_root(change), _root(change / size)) for change, size in pairs]
    standard = np.array([d.standard(hidden) for d in defects])
    squares = np.vstack([np.square(repeats) / 2, np.square(standard)])
    deviation, share = np.sqrt(np.mean(squares, axis=0))
    return AnswerErrors(precision, hidden, float(deviation), float(share), len(squares))


def power(claim: Claim, seen: Seen, bounds: Array) -> dict[str, float]:
    """Return the relative change of each tensor that all answers together would show.

    A change in a random direction by ε‖θ‖ moves answer k by a normal number of deviation
    ε‖θ‖·‖∂f_k/∂θ‖/√n. It goes unnoticed while all stay within their ``bounds``: with the
    probability `_UNNOTICED` at the ε returned. ``inf`` where no answer depends on θ. Where θ may be
    0 it is the norm of the change instead.
    """
    found, units = {}, claim.units()
    for name, tensor in claim.model.tensors.items():
        moves = units[name] * seen.at.moves[name] / np.sqrt(max(1, tensor.entries))
        with np.errstate(divide="ignore", invalid="ignore"):
            shown = np.where((moves > 0) & np.isfinite(moves), moves / bounds, 0.0)
        found[name] = _visible(claim.separate(name, shown))
    return found


def _root(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


# No bound is smaller, no change larger: their exponentials stay in float64.
_LEAST = 1e-200


def _visible(moves: Array) -> float:
    """Return the ε of `power`; ``moves`` are in units of what each answer must move by."""
    used = moves[np.isfinite(moves) & (moves > 0)]
    if not len(used):
        return np.inf
    if moves.size == 1:  # one number that changes by so much, not a random one
        return float(1 / used[0])
    with np.errstate(over="ignore"):
        units = np.clip(1 / used, _LEAST, 1 / _LEAST)

    def excess(log: float) -> float:
        shares = scipy.special.erf(units / (np.exp(log) * np.sqrt(2)))
        logs = np.log(np.maximum(shares, np.finfo(np.float64).tiny))
        return float(np.sum(logs) - np.log(_UNNOTICED))

    least = np.log(units.min())
    return float(np.exp(scipy.optimize.brentq(excess, least - 5, least + 30, xtol=1e-3)))


# -- operands of few bits


def to_bits(x: Array, bits: int) -> Array:
    """Round to so many significant bits.

    Examples
    --------
    >>> to_bits(np.array([1.001, -3.0]), 8).tolist()
    [1.0, -3.0]
    """
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits))


def with_steps(x: Array, scale: float, slope: Array) -> tuple[Array, Array, Array]:
    """Return x or −x to 8 bits, and x + δ and x + 8δ, away from 0 and to larger answers.

    Entries of x are ``scale`` to twice that; single tokens are answered with x·slope by the claim.
    """
    short = to_bits(np.sign(x) * np.minimum(np.abs(x), scale * (2 - 2.0**-7)), min(OPERAND_BITS))
    rising = short * slope >= 0
    if 2 * np.sum(rising) < len(rising):
        short, rising = -short, short * slope <= 0
    step = scale * _STEP * np.sign(short) * rising
    return short, short + step, short + 8 * step


def operand_bits(y: Array, predicted: Array, size: float, precision: Precision) -> int | None:
    """Say to how many bits operands are rounded; None where nothing shows that they are.

    Parameters
    ----------
    y, predicted : ndarray, shape (3,)
        Answers to the three tokens, and those that the claim foresees.
    size : float
        The size of their terms.
    """
    largest = float(np.abs(y).max())
    rounding = precision.unit * size + precision.relative * largest + precision.absolute
    foreseen, changes = (np.abs(some[1:] - some[0]) for some in (predicted, y))
    told = foreseen > _CLEARLY * rounding
    # values of 11 bits may be lost where those of 8 bits are
    told[1] &= foreseen[1] > 2 * 2.0 ** -OPERAND_BITS[0] * largest
    lost = told & (changes < foreseen / _CLEARLY)
    found = [bits for bits, gone in zip(OPERAND_BITS, lost, strict=True) if gone]
    return min(found, default=None)
