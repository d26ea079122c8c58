"""Two tokens, [(a+b); b], in the form in which every jump counts once.

    F([(a+b); b]) = c + b·s + ½ a·s + ½ Σ_h (v_h·a) tanh(a·u_h / 2),   s = Σ v_h, u_h = W_h b + w_h

A *reduced answer* is the sum of the last terms, Σ_h (v_h·a) tanh(a·u_h / 2). It does not change
under (v_h, u_h) → (−v_h, −u_h), so heads are found up to that sign; heads W and −W are one v_h
here (the difference of theirs), heads W = 0 none. `learners.multi_head.orientation` tells them
apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.token_lengths import TokenLengths
from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.measure.windows import ReducedError
from unsoftmax.probes import Array, Pairs, Purpose


@dataclass(frozen=True, slots=True)
class ReducedAnswers:
    """What reduces answers: f([x]) = x·s + c, as single tokens tell, and how precise they are."""

    s: Array
    """Σ v_h (d,)."""
    c: float
    precision: Precision
    """Of answers. All that is relative is in ``unit``: it counts the size of an answer's terms,
    not of their sum."""
    scale: float
    """Size of the values: answers to tokens of norm T are about ``scale``·T large."""
    lengths: TokenLengths

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return len(self.s)

    @property
    def eta(self) -> float:
        """Relative error of an answer, in units of the size of its terms."""
        return KAPPA * self.precision.unit

    def coarser(self, eta: float) -> ReducedAnswers:
        """Take answers for no more precise than ``eta``, relative to their terms."""
        unit = max(eta, self.eta) / KAPPA
        return replace(self, precision=replace(self.precision, unit=unit))

    def of(self, y: Array, a: Array, b: Array) -> Array:
        """Turn answers to [(a+b); b] into Σ_h (v_h·a) tanh(a·u_h / 2)."""
        return np.asarray(2 * (y - self.c - b @ self.s) - a @ self.s)

    def error(self, T: float, length: float) -> float:
        """Return the error of a reduced answer in units of ``scale``·T, T and length of a and b."""
        beside = length + abs(self.c) / self.scale
        absolute = self.precision.absolute / (self.scale * T)
        return float(replace(self.precision, absolute=absolute).error(1 + beside / T))

    def errors_at(self, length: float, v_error: float, u: Array | None = None) -> ReducedError:
        """Say what reduced answers of heads u (H, d) are off by at query tokens of this norm."""
        sizes = np.zeros(0) if u is None else np.linalg.norm(u, axis=1)
        return ReducedError(self.precision, length, self.scale, self.c, v_error, sizes)

    def ask(self, a: Array, b: Array, phase: str, purpose: Purpose = "data") -> Asking[Array]:
        """Ask offsets a (n, d) of one query token b (d,); return the reduced answers."""
        if not len(a):
            return np.zeros(0)
        if not np.all(np.isfinite(a)):  # an estimate went astray
            raise CoincidentJumps
        a = self.lengths.turned(a, b)
        n = np.arange(len(a))
        ones = np.ones(len(a))
        probes = Pairs(a, b[None], n, 0 * n, ones, ones, phase=phase, purpose=purpose)
        [y] = yield [probes]
        return self.of(y, a, b)
