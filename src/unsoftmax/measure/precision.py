"""What answers may be off by, read off the answers themselves: the one statement of it.

An answer y of natural size S (for a head S = max_i‖x_i‖·‖v‖ + |c|, the size of its terms) is
off by at most

    η = κ·unit·(S + hidden) + relative·|y| + absolute,

``unit`` being the roundoff of the target's arithmetic, ``hidden`` the size of terms that cancel
in every answer (value biases against an output bias), ``relative`` and ``absolute`` the rounding
of the answers it gives and the noise on top. κ = 4 covers NumPy's dot products (measured: 1.9 at
d = 4, 0.4 at d = 384).

Three ways to a `Precision`: `of_format` recognises how answers are rounded, `declared` takes the
user's bound, `relative_to_terms` takes measured figures. `with_noise`, `with_unit`, `with_hidden`
and `coarser` add what was noticed later. Nothing is known here of heads, networks or probes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import scipy

from unsoftmax.models.arrays import UNIT as UNIT
from unsoftmax.probes import Array, Indices

# -- How round numbers are: significant bits, shortest decimals, their digits and decimals
#
# Facts of given numbers; `unsoftmax.measure.precision` says what they mean for answers.


def significant_bits(y: Array) -> int:
    """Count the significant bits that every number of ``y`` fits into (0 for none).

    Examples
    --------
    >>> significant_bits(np.array([0.5, 3.0, 10.0])), significant_bits(np.array([0.1]))
    (3, 52)
    """
    y = y[y != 0]
    if not len(y):
        return 0
    return int(np.max(np.frexp(y)[1] - np.log2(_last_bits(y))))


def _last_bits(y: Array) -> Array:
    """Return the power of two that each number but 0 is an odd multiple of."""
    mantissa, exponent = np.frexp(y)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    return np.asarray(np.ldexp((whole & -whole).astype(float), exponent - 53))


def shortest(y: Array, compared: int, zeros: int) -> list[Decimal]:
    """Write float64 numbers with the fewest digits that mean them, last bits aside.

    Multiples of 0.1 are decimals but for their last bits: where all numbers have ``zeros``
    zeros at the end of ``compared`` digits they are taken for what these say.
    """
    nearly = [Decimal(f"{number:.{compared}g}") for number in y.tolist()]
    if int(digits_of(nearly).max()) <= compared - zeros:
        return nearly
    return [Decimal(repr(number)) for number in y.tolist()]


def shortest_float32(y: Array) -> list[Decimal]:
    """Write float32 numbers with the fewest digits that mean them."""
    return [Decimal(str(number)) for number in y.astype(np.float32)]


def digits_of(numbers: list[Decimal]) -> Indices:
    """Count significant digits."""
    return np.array([len(number.normalize().as_tuple().digits) for number in numbers])


def decimals_of(numbers: list[Decimal]) -> Indices:
    """Count decimals; fewer than 0 for multiples of ten."""
    return -np.array([int(number.normalize().as_tuple().exponent) for number in numbers])


# Unit roundoff of float32; float64's, UNIT, is the models'.
FLOAT32_UNIT = 2.0**-24
# Roundoffs of the size of its terms that a sum of products is off by at most.
KAPPA = 4.0

# Facts of the formats: significant bits, and the step of float16's smallest numbers.
FLOAT32_BITS, _FLOAT16_BITS = 24, 11
_FLOAT16_TINY = 2.0**-24


# Answers that need more significant bits are generic float64 numbers. They have 53, and by chance
# a few less: 2⁻⁸ of all have 45.
GENERIC_BITS = 45
# Answers that need as many decimal digits are generic: half of all float64 numbers need 17,
# nearly all others 16.
GENERIC_DIGITS = 16
# The same for float32 numbers, which need 8 or 9.
GENERIC_DIGITS_FLOAT32 = 8
# Multiples of 0.1 are decimals but for their last bits: they are compared to 13 digits.
COMPARED_DIGITS = 13
# So many of these digits must be 0 at the end of every answer.
ZEROS = 3
# Fewer answers establish no format: they may be round by chance.
WITNESSES = 4
# Rounding to digits is told from rounding to decimals where one leaves so many more zeros at the
# end than the other: each is there by chance once in ten. Decimals are told from generic numbers
# where small answers lack so many digits.
ZEROS_APART = 6
# Multiples of a step end in 1 zero more than they must in the mean, by chance; numbers that end
# in more than this, all or the ``largest`` of them, are no such multiples alone.
ZEROS_BY_CHANCE = 2.0
# So many multiples of a step end in 2 zeros more than they must once in a thousand times, and in 3
# more hardly ever; as many powers of two end in 7 more.
MANY_MULTIPLES = 16
# So many of the largest answers end in as few zeros as others, if all are multiples.
LARGEST = 3
# What is left of two gaps is something where it is so many times its error. Lower: steps by chance;
# higher: fine steps are missed.
STEP_SEEN = 2.0**7
# Gaps that a step is sought in. More: finer steps are found, and more time is taken.
STEP_GAPS = 24
# Bits by which all numbers together are nearer to steps than chance: 50 for the steps there may be,
# and 30 more.
STEP_BITS = 80


def common_step(y: Array, roundoff: float) -> float:
    """Return the step s with all numbers c + ks, k whole, but for their roundoff; 0 for none.

    Euclid's algorithm on gaps between neighbours, an error beside every gap: the largest becomes
    what the next one leaves of it, so that errors grow by the 12th root of what gaps shrink by.

    Examples
    --------
    >>> k = np.array([-5, 0, 2, 9, 400, 401, 1000, 12345])
    >>> round(common_step(0.7 + k / 3000, 2.0**-53) * 3000, 9)
    1.0
    >>> common_step(np.sqrt(np.arange(9.0)), 2.0**-53)
    0.0
    """
    y = np.unique(y)
    # where k s cancels c a number is rounded as both are: its last bits are 0
    least = np.min(_last_bits(y[y != 0]), initial=np.inf)
    rounded = np.maximum(roundoff * np.abs(y), least)
    gaps, errors = np.diff(y), 4 * np.maximum(rounded[1:], rounded[:-1])
    order = np.argsort(gaps)
    order = order[gaps[order] > errors[order]]
    if len(order) < WITNESSES - 1:
        return 0.0
    gaps, errors = gaps[order], errors[order]
    few = slice(None, None, -(-len(gaps) // STEP_GAPS))
    multiples = _multiples(gaps[few].tolist(), errors[few].tolist())
    if not multiples:
        return 0.0
    step, off = (float(np.sum(x[few])) / sum(multiples) for x in (gaps, errors))
    times = np.rint(gaps / step)
    near = bool(np.all(np.abs(gaps - times * step) <= errors + times * off))
    nearer = np.log2(step / (2 * errors))
    seen = float(np.sum(nearer) - np.max(nearer)) >= STEP_BITS
    # whatever is asked in powers of two is answered in steps of what the shortest is
    by_chance = ZEROS_BY_CHANCE + (len(times) >= MANY_MULTIPLES)
    asked = np.mean(np.log2(_last_bits(np.maximum(times, 1.0)))) > by_chance
    return step if near and seen and not asked else 0.0


def _multiples(gaps: list[float], errors: list[float]) -> list[int]:
    """Return how many times each gap is what all have in common; nothing if errors hide that."""
    left, off, taken = [*gaps], [*errors], []
    while True:
        *_, b, a = sorted(range(len(left)), key=left.__getitem__)
        if not left[b]:
            break
        times = round(left[a] / left[b])
        rest = left[a] - times * left[b]
        taken.append((a, b, times, 1 if rest > 0 else -1))
        left[a], off[a] = abs(rest), off[a] + times * off[b]
        if left[a] <= off[a]:
            left[a] = 0.0
        elif left[a] < STEP_SEEN * off[a]:
            return []
    multiples = [int(size > 0) for size in left]
    for a, b, times, sign in reversed(taken):
        multiples[a] = times * multiples[b] + sign * multiples[a]
    return multiples


# Noise is bounded by four standard deviations.
NOISE_DEVIATIONS = 4.0
# The deviation is taken so large that its estimate is lower by chance with this probability.
NOISE_UNDERESTIMATED = 1e-3


def small_by_chance(numbers: float, probability: float = NOISE_UNDERESTIMATED) -> float:
    """Return how many times too small a root mean square of so many normal numbers may be.

    Examples
    --------
    >>> [round(small_by_chance(n), 1) for n in (1, 8, 64, 1000)]
    [797.9, 3.1, 1.4, 1.1]
    """
    return float(np.sqrt(numbers / 2 / scipy.special.gammaincinv(numbers / 2, probability)))


def noise_factor(repeats: int) -> float:
    """Return how many times a deviation, estimated from so many repeats, noise may be."""
    return NOISE_DEVIATIONS * small_by_chance(repeats)


# How to learn from coarse answers all the same.
ADVICE = (
    " Where answers are rounded or noisy, LowRankHead and ApproximateHead take the size of their "
    "errors (tolerance=) and ask so that they matter less."
)


@dataclass(frozen=True, slots=True)
class Precision:
    """What an answer may be off by, and why.

    Attributes
    ----------
    unit : float
        Unit roundoff of the arithmetic inside the target.
    relative : float
        Rounding of the answer, relative to itself.
    absolute : float
        Rounding and noise of the answer, in the answer's own unit.
    noise : float
        Standard deviation of what changes from call to call, which the others cover.
    hidden : float
        Size of terms that are in every answer and cancel there.
    why : tuple of str
        A sentence for each thing noticed.
    """

    unit: float = UNIT
    relative: float = 0.0
    absolute: float = 0.0
    noise: float = 0.0
    hidden: float = 0.0
    why: tuple[str, ...] = ()

    @classmethod
    def of_format(cls, answers: Sequence[Array]) -> Precision:
        """Recognise binary formats (float32, bfloat16 …), decimals and significant digits.

        ``answers`` must be to generic sequences: v itself may be as round as it likes.
        """
        y = np.concatenate([np.ravel(part) for part in answers])
        if len(y) < WITNESSES or not np.any(y):
            return cls()
        y = y[y != 0]
        bits, found = significant_bits(y), cls()
        if bits <= GENERIC_BITS:
            found = cls._of_binary_format(y, bits)
            if bits != FLOAT32_BITS:  # far from 0, steps leave few bits too
                return found._with_common_step(y, UNIT)
        single = bits == FLOAT32_BITS
        numbers = shortest_float32(y) if single else shortest(y, COMPARED_DIGITS, ZEROS)
        digits = digits_of(numbers)
        if single and digits.max() >= GENERIC_DIGITS_FLOAT32:
            return found._with_common_step(y, FLOAT32_UNIT)
        decimals = decimals_of(numbers)
        if digits.max() >= GENERIC_DIGITS:
            found = cls._of_many_decimals(numbers, digits, decimals)
            # a step of 15 digits may be of 16 decimals, and so is all that comes in it
            stepped = cls()._with_common_step(y, UNIT)
            return max(found, stepped, key=lambda one: one.absolute)
        # a whole unit of the last place: answers may be cut off as well as rounded; and the
        # unit may be a multiple of it, as with quantised answers
        unit = Decimal(10) ** -int(decimals.max())
        step = math.gcd(*(int(number / unit) for number in numbers)) * unit
        return found._with_steps(
            (digits, 10.0 ** (1 - int(digits.max())), "significant digits"),
            (decimals, float(step), "decimals"),
        )

    @classmethod
    def _of_binary_format(cls, y: Array, bits: int) -> Precision:
        """Tell floats of few bits from multiples of a power of two."""
        names = {
            FLOAT32_BITS: "float32 numbers",
            _FLOAT16_BITS: "float16 numbers",
            8: "bfloat16 numbers",
        }
        half = bits in (_FLOAT16_BITS, 8)
        finer = " A replica that answers in float32 would decide what these leave open." * half
        unnamed = f"numbers of {bits} significant bits, rounded to them or made of round numbers"
        each = np.array([significant_bits(number) for number in y[:, None]])
        places = each - np.frexp(y)[1]
        step, zeros = 2.0 ** -int(places.max()), places.max() - places
        multiples = f"Answers are multiples of {step:.3g}."
        both = False
        if np.sum(zeros) < np.sum(bits - each):
            # sums of rounded numbers that cancel are multiples of what these are rounded to; but
            # where they do not cancel they are rounded themselves, and end in more zeros
            largest = np.argsort(-np.abs(y), kind="stable")[:LARGEST]
            most = max(np.mean(zeros), np.mean(zeros[largest]))
            nearly = FLOAT32_BITS - ZEROS_BY_CHANCE <= bits <= FLOAT32_BITS
            both = bits in names or nearly or bool(most > ZEROS_BY_CHANCE)
            if not both:
                return cls(absolute=step, why=(multiples,))
        # the last rounding is counted by itself: half covers what is inside (measured).
        # float32 rounds to nearest; shorter formats are often cut off instead.
        return cls(
            unit=(FLOAT32_UNIT if bits <= FLOAT32_BITS else 2.0**-bits) / 2,
            relative=2.0**-bits if bits >= FLOAT32_BITS else 2.0 ** (1 - bits),
            absolute=(_FLOAT16_TINY if bits == _FLOAT16_BITS else 0.0) + (step if both else 0.0),
            why=(
                f"Answers are {names.get(bits, unnamed)}; arithmetic to match is assumed.{finer}",
                *((multiples,) if both else ()),
            ),
        )

    @classmethod
    def _of_many_decimals(
        cls, numbers: list[Decimal], digits: Indices, decimals: Indices
    ) -> Precision:
        """Tell decimals that large answers have no room for from generic float64 numbers.

        What is rounded to 14 decimals has 16 digits where it is 10 or more, as generic numbers
        have; but all that is smaller lacks digits, the more the smaller it is.
        """
        lacking = digits < GENERIC_DIGITS
        if not np.any(lacking):
            return cls()
        places = int(decimals[lacking].max())
        sizes = np.array([number.adjusted() for number in numbers])
        missing = np.maximum(GENERIC_DIGITS - 1 - sizes - places, 0)
        # where decimals are finer than float64 itself its rounding adds a digit, nowhere else
        beyond = decimals > np.where(missing > 0, places, places + 1)
        if np.any(beyond) or np.sum(missing) < ZEROS_APART:
            return cls()
        sentence = f"Answers look rounded to {places} decimals."
        return cls(absolute=10.0**-places, why=(sentence,))

    def _with_common_step(self, y: Array, roundoff: float) -> Precision:
        """Add what answers in steps of any other size are off by."""
        if not (step := common_step(y, roundoff)):
            return self
        sentence = f"Answers come in steps of {step:.3g}."
        return replace(self, absolute=self.absolute + step, why=(*self.why, sentence))

    def _with_steps(
        self, digits: tuple[Indices, float, str], decimals: tuple[Indices, float, str]
    ) -> Precision:
        """Add rounding to digits or to decimals: whichever leaves fewer zeros at the end."""
        slack = [int(np.sum(places.max() - places)) for places, _, _ in (digits, decimals)]
        sentences = [
            f"Answers look rounded to {places.max()} {name}."
            for places, _, name in (digits, decimals)
        ]
        # answers of one magnitude fit both alike: then both are assumed
        relative = digits[1] if slack[0] <= slack[1] + ZEROS_APART else 0.0
        absolute = decimals[1] if slack[1] <= slack[0] + ZEROS_APART else 0.0
        why = (sentences[0],) * (relative > 0) + (sentences[1],) * (absolute > 0)
        return replace(
            self,
            relative=self.relative + relative,
            absolute=self.absolute + absolute,
            why=self.why + why,
        )

    @classmethod
    def declared(cls, tolerance: float) -> Precision:
        """Take the user's word that answers are within ``tolerance``, arithmetic apart."""
        # rounding to decimals is itself off by a few units in the last place of large answers
        return cls(
            relative=4 * UNIT,
            absolute=tolerance,
            why=(f"Answers are within ±{tolerance:.3g}, as declared.",),
        )

    @classmethod
    def relative_to_terms(
        cls, eta: float, absolute: float = 0.0, why: tuple[str, ...] = ()
    ) -> Precision:
        """State that answers are off by ``eta`` times the size of their terms, and ``absolute``.

        Examples
        --------
        >>> float(Precision.relative_to_terms(1e-9, 1e-3).error(5.0))
        0.001000005
        """
        return cls(unit=eta / KAPPA, absolute=absolute, why=why)

    def with_noise(self, deviation: float, repeats: int) -> Precision:
        """Add noise whose deviation was estimated from so many repeated questions."""
        if not deviation:
            return self
        bound = noise_factor(repeats) * deviation
        sentence = (
            f"The same question got different answers: noise of standard deviation about "
            f"{deviation:.1e}, estimated from {repeats} repeats, is taken as ±{bound:.1e}."
        )
        return replace(
            self, absolute=self.absolute + bound, noise=deviation, why=(*self.why, sentence)
        )

    def coarser(self, factor: float, reason: str) -> Precision:
        """Assume all errors to be ``factor`` times as large."""
        return replace(
            self,
            unit=factor * self.unit,
            relative=factor * self.relative,
            absolute=factor * self.absolute,
            why=(*self.why, f"{reason}: errors {factor:.3g} times as large are assumed."),
        )

    def with_unit(self, unit: float, reason: str) -> Precision:
        """Assume coarser arithmetic inside the target; without a reason, without a word."""
        if unit <= self.unit:
            return self
        digits = f"about {-np.log10(unit):.0f} digits are assumed (roundoff {unit:.1e})"
        said = (f"{reason}; {digits}.",) if reason else ()
        return replace(self, unit=unit, why=(*self.why, *said))

    def with_hidden(self, size: float, reason: str) -> Precision:
        """Assume terms of this size in every answer, whatever the answer's own size."""
        if not size:
            return self
        return replace(self, hidden=size, why=(*self.why, f"{reason} are taken to be {size:.1e}."))

    @property
    def exact(self) -> bool:
        """Whether nothing but float64's own rounding was noticed."""
        return replace(self, hidden=0.0, why=()) == Precision()

    def error(self, size: Array | float, answers: Array | float = 0.0) -> Array:
        """Bound η for answers of natural size ``size``; they count where ``relative`` is not 0."""
        inside = KAPPA * self.unit * (size + self.hidden)
        return np.asarray(inside + self.relative * np.abs(answers) + self.absolute)

    def deviation(self, size: Array | float, answers: Array | float = 0.0) -> Array:
        """Return what answers are off by as a rule, and not at most.

        Sums are off by half a roundoff of their terms (measured: 0.4 to 0.7, at 3 to 384
        dimensions), roundings and noise by a quarter of what they may be.
        """
        half = self.unit / 2 * (size + self.hidden)
        return np.asarray(self.error(size, answers) / KAPPA - half)

    def error_at_unit_vector(self, size: Array | float, answers: Array | float) -> Array:
        """Return the usual η of answers to tokens ρe_k, of which no sum over d entries is taken.

        Half of κ covers the sums that are left, over the entries of a value, as a rule.
        """
        spared = KAPPA / 2 * self.unit * (size + self.hidden)
        return np.asarray(self.error(size, answers) - spared)

    def share_of(self, size: float) -> float:
        """Return η as a share of an answer that is as large as its terms, ``size``."""
        inside = KAPPA * self.unit * (1 + self.hidden / size)
        return inside + self.relative + self.absolute / size


def advice(precision: Precision) -> str:
    """Say how to learn from coarse answers all the same; nothing where answers look exact."""
    return "" if precision.exact else ADVICE


def why(precision: Precision) -> str:
    """Say what was noticed about the answers, to end a sentence with."""
    return "".join(f" {sentence}" for sentence in precision.why)
