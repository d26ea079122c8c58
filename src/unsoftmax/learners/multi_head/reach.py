"""How long query tokens and offsets may be, and with them how far logits go.

A head's logit at [(a+b); b] is a·(W b): it grows with ‖a‖·‖b‖. Where nothing caps tokens,
offsets are so long that every gate is a step. Under a cap R they are turned away from b
(reduced answers are even in a), so that ‖a+b‖² ≤ ‖a‖² + ‖b‖², and logits reach ‖W‖R²/2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.probes import Array

# Offsets of this norm make steps of all gates, for heads within 10⁴ of each other.
FAR = 1e14
# Under a cap query tokens are as long as offsets, up to this: longer ones drown, at logits of a
# few, what heads do (by length²/20: seven digits are lost).
_LONGEST = 1e3
# With biases b stays as long as it was for the search, and ‖W b‖ should not drown w.
_LONGEST_BIASED = 30.0
# ‖a‖‖b‖ below which gates are no steps somewhere on the circle that is searched: transitions are
# wider than a millionth of it.
_SOFT = 1e9
# There ‖a‖‖b‖ is not less than this, while others are not known: within 10³ of each other, and
# not closer than a few per cent of the circle, they are silent.
_SILENT = 1e6
# Short enough that no jump falls between; under a cap jumps are wider than 10/‖a‖‖b‖, for heads
# of ‖W b‖ up to 7 ‖b‖.
_BASELINE, _STEEP = 1e-5, 10.0
# Query tokens are moved by at most this share of them, or of an eighth of the radius.
_MOST_MOVED = 0.5
# Where noise is of a fixed size, query tokens are of this norm, offsets the longer.
_TINY = 1e-8
# Norms are rounded: tokens stay within the cap by more than the sixteen digits of them.
_WITHIN = 1 - 1e-13


@dataclass(frozen=True, slots=True)
class Reach:
    """What tokens may be asked: none longer than ``radius``."""

    radius: float = np.inf
    length: float = 1.0
    """Norm of query tokens, where heads are searched for."""

    @classmethod
    def under(cls, radius: float | None, biases: bool) -> Reach:
        """Choose how long query tokens are under a cap."""
        if radius is None:
            return cls()
        wanted = min(_LONGEST_BIASED, 10 * _SOFT / radius) if biases else FAR / radius
        return cls(float(radius))._of_length(max(1.0, wanted))

    def _of_length(self, wanted: float) -> Reach:
        return replace(self, length=float(min(wanted, _LONGEST, self.radius * np.sqrt(0.5))))

    def longer(self) -> Reach:
        """Return the longest query tokens, where shorter ones did not pull the heads apart."""
        return self._of_length(_LONGEST)

    @property
    def capped(self) -> bool:
        """Whether tokens are capped at all."""
        return bool(np.isfinite(self.radius))

    @property
    def soft(self) -> bool:
        """Whether gates may be no steps even at the longest offsets."""
        return self.length * self.far(self.length) < _SOFT

    @property
    def near(self) -> float:
        """Return the norm below which what b adds to answers drowns what heads do."""
        return self.length if self.capped else 0.0

    @property
    def silent(self) -> float:
        """Return the norm that offsets have at least while it is not known what silences others."""
        far = self.far(self.length)
        return max(self.near, min(far, _SILENT / self.length)) if self.soft else self.near

    @property
    def baseline(self) -> float:
        """Return the angle over which slopes of pieces are read: shorter than transitions."""
        return max(_BASELINE, _STEEP / (self.length * self.far(self.length)))

    @property
    def short(self) -> float:
        """Return the norm of tokens and offsets that need not be long."""
        return float(min(1.0, self.radius * _WITHIN * np.sqrt(0.5)))

    def stretched(self) -> Reach:
        """Make query tokens tiny and offsets long, as far as gates stay steps."""
        return replace(self, length=min(self.length, max(_TINY, 10 * _SILENT / self.radius)))

    @property
    def narrowest(self) -> float:
        """Return the angle at which two jumps are one hyperplane."""
        return self.baseline / 100

    def single(self, wanted: float) -> float:
        """Return the norm of a single token: as wanted, or as long as it may be."""
        return min(wanted, self.radius * _WITHIN)

    def far(self, length: float) -> float:
        """Return the norm of offsets at which gates are steps, or are as nearly as may be."""
        return min(FAR / length, self.longest(length))

    def longest(self, length: float, moved: float = 0.0) -> float:
        """Return the norm of the longest offsets, turned away from a query token of this norm.

        ``moved`` is how far query tokens may be moved from there.
        """
        room = self.radius * _WITHIN - moved
        return float(np.sqrt(max(0.0, room - length)) * np.sqrt(room + length))

    def step(self, length: float) -> float:
        """Return how far a query token of this norm may be moved."""
        return min(_MOST_MOVED * length, self.radius / 8)

    def turned(self, a: Array, b: Array) -> Array:
        """Turn offsets a (n, d) away from b (d,), where a cap asks for it."""
        if not self.capped:
            return a
        return np.asarray(np.where(np.sum(a * b, axis=-1) > 0, -1.0, 1.0)[:, None] * a)
