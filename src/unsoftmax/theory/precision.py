"""How precise the answers are, read off the answers themselves.

An answer to X is off by at most

    η(X) = κ·unit·(max_i‖x_i‖·‖v‖ + |c|) + relative·|y| + absolute,

``unit`` being the roundoff of the target's arithmetic, ``relative`` and ``absolute`` the
rounding of the answers it gives and the noise on top. κ = 4 covers NumPy's dot products
(measured: 1.9 at d = 4, 0.4 at d = 384).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.probes import Array

UNIT = 2.0**-53
FLOAT32_UNIT = 2.0**-24
KAPPA = 4.0

# A float64 answer has 53 significant bits, and by chance a few less: 2⁻⁸ of all have 45.
_GENERIC_BITS = 45
# Fewer answers than this cannot establish a decimal format: they may be round by chance.
_WITNESSES = 4
_MOST_DECIMALS = 12


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
        Standard deviation of what changes from call to call, part of ``absolute``.
    why : tuple of str
        A sentence for each thing noticed.
    """

    unit: float = UNIT
    relative: float = 0.0
    absolute: float = 0.0
    noise: float = 0.0
    why: tuple[str, ...] = ()

    @classmethod
    def of_format(cls, answers: Sequence[Array]) -> Precision:
        """Recognise binary formats (float32, bfloat16 …), decimals and significant digits.

        ``answers`` must be to generic sequences: v itself may be as round as it likes.
        """
        y = np.concatenate([np.ravel(part) for part in answers])
        if len(y) < _WITNESSES or not np.any(y):
            return cls()
        bits = significant_bits(y)
        if bits <= _GENERIC_BITS:
            name = {24: "float32", 11: "float16", 8: "bfloat16"}.get(bits, f"{bits}-bit")
            return cls(
                # the last rounding is counted by itself: half covers what is inside (measured)
                unit=(FLOAT32_UNIT if bits <= 24 else 2.0**-bits) / 2,
                relative=2.0**-bits,
                why=(f"Every answer is a {name} number; arithmetic to match is assumed.",),
            )
        if (decimals := _decimals(y)) is not None:
            return cls(
                absolute=0.5 * 10.0**-decimals,
                why=(f"Every answer is rounded to {decimals} decimals.",),
            )
        if (digits := _digits(y)) is not None:
            return cls(
                relative=0.5 * 10.0 ** (1 - digits),
                why=(f"Every answer is rounded to {digits} significant digits.",),
            )
        return cls()

    def with_noise(self, deviation: float) -> Precision:
        """Add noise of the given standard deviation; six of them bound it in practice."""
        if not deviation:
            return self
        return replace(
            self,
            absolute=self.absolute + 6 * deviation,
            noise=deviation,
            why=(
                *self.why,
                f"The same question got different answers: noise of standard deviation about "
                f"{deviation:.1e} per answer is assumed, and taken as ±{6 * deviation:.1e}.",
            ),
        )

    def coarser(self, factor: float, reason: str) -> Precision:
        """Assume all but the noise to be ``factor`` times as coarse."""
        return replace(
            self,
            unit=factor * self.unit,
            relative=factor * self.relative,
            absolute=factor * self.absolute,
            why=(*self.why, f"{reason}: errors {factor:.1e} times as large are assumed."),
        )

    def with_unit(self, unit: float, reason: str) -> Precision:
        """Assume coarser arithmetic inside the target."""
        if unit <= self.unit:
            return self
        return replace(
            self, unit=unit, why=(*self.why, f"{reason}: roundoff {unit:.1e} is assumed.")
        )

    def error(self, size: Array, answers: Array) -> Array:
        """Bound η for answers of natural size max_i‖x_i‖·‖v‖ + |c|."""
        bound: Array = KAPPA * self.unit * size + self.relative * np.abs(answers) + self.absolute
        return bound


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
    mantissa, _ = np.frexp(y)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    lowest = whole & -whole
    return 53 - int(np.log2(lowest.min()))


def _decimals(y: Array) -> int | None:
    for decimals in range(_MOST_DECIMALS + 1):
        # Large numbers lie on any decimal grid that is finer than float64 itself.
        telling = y[np.abs(y) * 2.0**-48 < 10.0**-decimals]
        if len(telling) >= _WITNESSES and _same(telling, np.round(telling, decimals)):
            return decimals
    return None


def _digits(y: Array) -> int | None:
    y = y[y != 0]
    power = 10.0 ** np.floor(np.log10(np.abs(y)))
    for digits in range(1, _MOST_DECIMALS + 1):
        if _same(y, np.round(y / power, digits - 1) * power):
            return digits
    return None


def _same(y: Array, rounded: Array) -> bool:
    return bool(np.all(np.abs(y - rounded) <= 8 * UNIT * np.abs(y)))
