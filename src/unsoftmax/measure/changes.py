"""What two answers to one question differ by: how much, of which kind, and whether it grows.

Answers y₁ and y₂ to n questions asked twice differ by d. What changes from call to call may be

    of the terms     d ∝ S, the natural size of the answer (sums in another order)
    of the answer    d ∝ |y| (a relative jitter)
    absolute         d does not depend on the question (noise on top)

Each kind is a normal distribution whose deviation is fitted; the likeliest is taken, and every
other that is nearly as likely on top. Questions of very different sizes tell the kinds apart; of
one size they do not, and all are assumed.

*Drift.* Where all d have one sign and nearly one size (t-statistic), answers drift. Between the
two askings lie ``apart`` questions; all of the run's are further apart, so what was seen is
scaled up to them, and goes into the precision. That takes the answers' natural sizes; where they
are not known yet, before a network is, a drift is refused: `validate.sequences.refuse_drift`.

Nothing is asked here. Source: beyond the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.measure.precision import KAPPA, Precision, PrecisionTuning
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class ChangesTuning:
    """When kinds of changes are told apart, and when they count as a drift."""

    clear: float = 10.0
    """A kind is left out where its log-likelihood is so far below the best one's. Smaller: the
    wrong kind is taken alone by chance; larger: all are assumed, and certificates are wider."""
    coherent: float = 4.0
    """Changes drift where their mean is so many times its own standard error."""
    witnesses: int = 3
    """Fewer changes show no drift."""
    largest: float = 1e150
    """Relative changes beyond this are cut: squares must stay float64 numbers."""
    margin: float = 2.0
    """A drift is taken to be so many times as fast as it was seen."""


_DEFAULT = ChangesTuning()


@dataclass(frozen=True, slots=True)
class Changes:
    """Answers to the same questions, asked twice.

    Attributes
    ----------
    first, second : ndarray (n,)
        The answers.
    size : ndarray (n,)
        Their natural sizes.
    apart : int
        Questions between the two.
    ahead : int
        Questions of the whole run.

    Examples
    --------
    >>> y = np.array([1.0, -2.0, 3.0, 4e-3, 5e-2, -60.0])
    >>> jitter = np.array([1e-9, -2e-9, 0.0, 1e-9, -1e-9, 2e-9])
    >>> found = Changes(y, y * (1 + jitter), np.abs(y), 1, 1).added_to(Precision())
    >>> 1e-9 < found.relative < 1e-7, found.absolute
    (True, 0.0)
    """

    first: Array
    second: Array
    size: Array
    apart: int = 1
    ahead: int = 1
    tuning: ChangesTuning = field(default=_DEFAULT, kw_only=True)

    @property
    def deviation(self) -> float:
        """Standard deviation of an answer, whatever it depends on."""
        return _deviation(self.second - self.first)

    def added_to(self, precision: Precision, tuning: PrecisionTuning | None = None) -> Precision:
        """Return the precision with the changes seen, as large as they may be."""
        if not self.deviation:
            return precision
        factor = (tuning or PrecisionTuning()).noise_factor(len(self.first))
        of_terms, of_answers, absolute = (self._bound(scale, factor) for scale in self._kinds())
        parts = {
            f"{of_terms:.1e} of their terms": of_terms,
            f"{of_answers:.1e} of themselves": of_answers,
            f"{absolute:.1e}": absolute,
        }
        drifts = any(self._drift(scale) for scale in self._kinds())
        sentence = (
            f"The same question got different answers: noise of standard deviation about "
            f"{self.deviation:.1e}, estimated from {len(self.first)} repeats; answers are taken "
            f"to be off by ±{', ±'.join(name for name, part in parts.items() if part)}."
        )
        drifting = (
            f"They all change the same way, as if answers drifted: {self.apart} questions lay "
            f"between, and up to {self.ahead} are counted on.",
        )
        return replace(
            precision,
            unit=precision.unit + of_terms / KAPPA,
            relative=precision.relative + of_answers,
            absolute=precision.absolute + absolute,
            noise=self.deviation,
            why=(*precision.why, sentence, *(drifting if drifts else ())),
        )

    def _kinds(self) -> tuple[Array | None, Array | None, Array | None]:
        """Return what changes are relative to, of each kind; None where it is none of that."""
        # answers keep their signs: a drift by a share of them has one sign then
        scales = (self.size, self.first, np.ones(len(self.first)))
        likely = np.array([self._likelihood(scale) for scale in scales])
        nearly = likely >= likely.max() - self.tuning.clear
        of_terms, of_answers, absolute = (
            scale if taken else None for scale, taken in zip(scales, nearly, strict=True)
        )
        return of_terms, of_answers, absolute

    def _likelihood(self, scale: Array) -> float:
        """Return the log-likelihood of changes proportional to a scale, their deviation fitted."""
        deviation = _deviation(self._relative_to(scale))
        sizes = np.maximum(np.abs(scale), TINY)
        return float(-len(scale) * np.log(deviation) - np.sum(np.log(sizes)))

    def _bound(self, scale: Array | None, factor: float) -> float:
        """Bound the changes of one kind."""
        if scale is None:
            return 0.0
        return factor * _deviation(self._relative_to(scale)) + self._drift(scale)

    def _drift(self, scale: Array | None) -> float:
        """Bound what a drift adds up to over the whole run; 0 where there is none."""
        if scale is None or len(scale) < self.tuning.witnesses:
            return 0.0
        changes = self._relative_to(scale)
        mean = float(np.mean(changes))
        error = float(np.std(changes, ddof=1)) / np.sqrt(len(changes))
        if abs(mean) <= self.tuning.coherent * error:
            return 0.0
        return self.tuning.margin * abs(mean) * max(1.0, self.ahead / self.apart)

    def _relative_to(self, scale: Array) -> Array:
        """Return the changes relative to a scale, at most so large that squares do not overflow."""
        with np.errstate(over="ignore"):
            relative = (self.second - self.first) / np.where(np.abs(scale) > TINY, scale, TINY)
        return np.clip(relative, -self.tuning.largest, self.tuning.largest)


def _deviation(changes: Array) -> float:
    """Return the deviation of one answer where two differ by ``changes``."""
    return float(np.sqrt(np.mean(changes**2) / 2)) if len(changes) else 0.0
