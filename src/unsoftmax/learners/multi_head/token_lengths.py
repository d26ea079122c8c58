"""How long query tokens and offsets may be, and with them how far logits go.

A head's logit at [(a+b); b] is a·(W b): it grows with ‖a‖·‖b‖. Where nothing caps tokens,
offsets are so long that every gate is a step. Under a cap R offsets are turned away from b
(reduced answers are even in a), so that ‖a+b‖² ≤ ‖a‖² + ‖b‖², and logits reach ‖W‖R²/2.

A *gate* is tanh(a·u_h/2); it is *open* where its logit is moderate and *saturated* where it is
±1 to float64's precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.probes import Array

# ‖a‖‖b‖ of the longest offsets: saturates all gates, for heads within 10⁴ of each other.
FAR = 1e14
# Longest query token under a cap. Longer ones lose, at logits of a few, what heads add to answers
# below what b adds (by length²/20: seven digits are lost).
LONGEST = 1e3
# The same with biases: b keeps its norm after the search, and ‖W b‖ must not exceed w by so much
# that w is lost.
LONGEST_BIASED = 30.0
# ‖a‖‖b‖ below which transitions of gates are wider than a millionth of the circle that is
# searched: gates then count as open somewhere (`TokenLengths.soft`).
SOFT = 1e9
# ‖a‖‖b‖ at least, under a cap, while other heads are unknown: those within 10³ of each other, and
# not closer than a few per cent of the circle, are saturated.
SILENT = 1e6
# Angle over which slopes of pieces are read: so short that no jump falls between.
BASELINE = 1e-5
# Under a cap the angle is at least this over ‖a‖‖b‖: jumps of heads with ‖W b‖ up to 7‖b‖ are
# wider.
STEEP = 10.0
# Two jumps closer than the baseline divided by this count as one hyperplane.
NARROWEST = 100.0
# Query tokens are moved by at most this share of their norm: W b stays of its size.
MOST_MOVED = 0.5
# They are moved by at most this share of the radius: offsets lose little of their room to it.
MOST_MOVED_RADIUS = 1 / 8
# Norm of query tokens where noise has a fixed size: offsets are the longer, and the noise is
# small beside answers.
TINY = 1e-8
# Answers with a larger error, relative to their terms, may lose short offsets beside long ones:
# where the longest tokens show no heads, shorter ones are asked.
COARSE = 1e-12
# Answers as precise as this told apart all heads of random layers in 16 dimensions.
ENOUGH = 1e-5
# ‖a‖‖b‖ of these, in units of that error: what rounding moves the logit of a head with ‖W‖ = 1 by
# at the longest offsets. Float32 services of trained and random layers were recovered at the
# first; others are for larger and smaller W.
NOISES = (2e-2, 2e-3, 0.2, 2e-4, 2.0, 2e-5)
# Tokens stay within the cap by this share: norms are rounded in the sixteenth digit.
ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Which norms tokens may have: none longer than ``radius``."""

    radius: float = np.inf
    length: float = 1.0
    """Norm of query tokens while heads are searched for."""

    @classmethod
    def under(cls, radius: float | None, biases: bool) -> TokenLengths:
        """Choose how long query tokens are under a cap."""
        if radius is None:
            return cls()
        wanted = FAR / radius
        if biases:
            wanted = min(LONGEST_BIASED, 10 * SOFT / radius)
        return cls(float(radius))._of_length(max(1.0, wanted))

    def _of_length(self, wanted: float) -> TokenLengths:
        longest = LONGEST
        return replace(self, length=float(min(wanted, longest, self.radius * np.sqrt(0.5))))

    def with_longest_tokens(self) -> TokenLengths:
        """Return the longest query tokens, where shorter ones did not pull the heads apart."""
        return self._of_length(LONGEST)

    def with_tiny_tokens(self) -> TokenLengths:
        """Make query tokens tiny and offsets long, as far as gates stay steps."""
        least = max(TINY, 10 * SILENT / self.radius)
        return replace(self, length=min(self.length, least))

    def for_coarse(self, eta: float, biases: bool) -> Iterator[TokenLengths]:
        """Give shorter lengths for answers of error ``eta``, relative to their terms."""
        if eta <= COARSE:
            return
        for noise in NOISES:
            product = noise / eta
            longest = max(product / LONGEST_BIASED, 1.0)
            radius = longest if biases else np.sqrt(2 * product)
            if radius < self.radius:
                yield TokenLengths.under(radius, biases)

    @property
    def capped(self) -> bool:
        """Whether tokens are capped at all."""
        return bool(np.isfinite(self.radius))

    @property
    def room(self) -> float:
        """The longest token that may be asked, less what rounding of its norm may add."""
        return self.radius * (1 - ROUNDING)

    @property
    def soft(self) -> bool:
        """Whether gates may be open even at the longest offsets."""
        return self.length * self.far(self.length) < SOFT

    @property
    def near(self) -> float:
        """Norm of offsets below which what b adds to answers hides what heads do."""
        return self.length if self.capped else 0.0

    @property
    def silent(self) -> float:
        """Norm that offsets have at least while it is not known what saturates other heads."""
        if not self.soft:
            return self.near
        return max(self.near, min(self.far(self.length), SILENT / self.length))

    @property
    def baseline(self) -> float:
        """Angle over which slopes of pieces are read: shorter than transitions."""
        return max(BASELINE, STEEP / (self.length * self.far(self.length)))

    @property
    def narrowest(self) -> float:
        """Angle below which two jumps count as one hyperplane."""
        return self.baseline / NARROWEST

    @property
    def short(self) -> float:
        """Norm of tokens and offsets that need not be long."""
        return float(min(1.0, self.room * np.sqrt(0.5)))

    def single(self, wanted: float) -> float:
        """Return the norm of a single token: as wanted, or as long as it may be."""
        return min(wanted, self.room)

    def far(self, length: float) -> float:
        """Return the norm of offsets at which gates are steps, or are as nearly as may be."""
        return min(FAR / length, self.longest(length))

    def longest(self, length: float, moved: float = 0.0) -> float:
        """Return the norm of the longest offsets, turned away from a query token of this norm.

        ``moved`` is how far query tokens may be moved from there.
        """
        room = self.room - moved
        return float(np.sqrt(max(0.0, room - length)) * np.sqrt(room + length))

    def step(self, length: float) -> float:
        """Return how far a query token of this norm may be moved."""
        return min(MOST_MOVED * length, self.radius * MOST_MOVED_RADIUS)

    def turned(self, a: Array, b: Array) -> Array:
        """Turn offsets a (n, d) away from b (d,), where a cap asks for it."""
        if not self.capped:
            return a
        return np.asarray(np.where(np.sum(a * b, axis=-1) > 0, -1.0, 1.0)[:, None] * a)
