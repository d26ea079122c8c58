"""Measure t_k = a_k·(W b_k) for Gaussian pairs (a_k, b_k), one answer each.

By the two-token identity each answer gives one logit αβ t_k. All pairs share the scale 2^k = αβ:
E t² = ‖W‖²_F whatever the pair. It is found on the way, with queries that count as data:

1. the first few are pilots, asked again at another scale when their logits are out of range;
2. the rest, at the scale that puts the pilots' RMS at ¼;
3. again, what is still out of range.

To lower a logit the query token is scaled down, to raise it the offset is scaled up: an answer
is off by about u·‖a+b‖ and by its rounding, so ‖b‖ ≤ ‖a‖ and a large a are best.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.measure.precision import KAPPA, UNIT, why
from unsoftmax.measure.two_tokens import Gates, TwoTokenAnswers, Values, Vectors
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Indices, Pairs, Purpose, Round
from unsoftmax.protocol import Answers
from unsoftmax.solve.nuclear_norm import Measurements

# Gaussians below 8, on a grid so coarse that a + b is exact in float32 with b up to 2¹⁰ smaller.
_GRID = 2.0**-10
_APART = 10
# The first measurements set the scale: with fewer a product of Gaussians is anywhere.
_PILOTS = 8
# RMS of the logits. At rank 1 they are products of two Gaussians: the largest is 12 times that.
_TARGET = 0.25
# Octaves that the pilots' scale may be off before they are asked again.
_OFF = 4
# A logit beyond this has lost four digits.
_LARGEST = 8.0
# As in `bilinear`: lowered so far where nothing can be read; within float32's range.
_SATURATED = (-20, -24, -24, 0)
_EXTREME = 100
# Passes over the answers that are out of range, and octaves by which the unreadable are lowered.
_PASSES = 3
_LOWERED = 6


def _split(k: NDArray[np.int64]) -> tuple[Array, Array]:
    """Split s = 2^k: offsets scaled up, query tokens down, and both where that is too far apart."""
    size = np.abs(k)
    apart = np.where(size > _APART, _APART - (size - _APART) % 2, size)
    both = np.sign(k) * (size - apart) // 2
    return np.exp2(both + np.where(k > 0, apart, 0)), np.exp2(both - np.where(k < 0, apart, 0))


def spare_of(count: int) -> int:
    """Return how many of ``count`` may be asked again: pilots, and a quarter of all."""
    return (len(_SATURATED) - 1) * min(_PILOTS, count) + max(_PILOTS, count // 4)


# Rounds at most.
ROUNDS = len(_SATURATED) + 1 + _PASSES


@dataclass(slots=True)
class GaussianBlock:
    """The answers to all pairs (a_k, b_k), with the scales they were asked at; NaN before."""

    a: Array
    b: Array
    values: Values
    y: Array = field(init=False)
    alpha: Array = field(init=False)
    beta: Array = field(init=False)

    @classmethod
    def draw(cls, count: int, values: Values, rng: np.random.Generator) -> GaussianBlock:
        """Draw the pairs."""
        a, b = np.round(rng.standard_normal((2, count, len(values.v))) / _GRID) * _GRID
        return cls(a, b, values)

    def __post_init__(self) -> None:
        self.y, self.alpha, self.beta = np.full((3, len(self.a)), np.nan)

    def ask(self, spare: int) -> Generator[Round, Answers, None]:
        """Ask every pair once, and at most ``spare`` again at another scale."""
        pilots = np.arange(min(_PILOTS, len(self.a)))
        # a guess at ‖W‖_F = √d, as in `bilinear`
        k = int(np.round(np.log2(_TARGET / np.sqrt(self.a.shape[1]))))
        purpose: Purpose = "pilot"
        for lower in _SATURATED:
            yield from self._put(pilots, np.full(len(pilots), k), purpose)
            better = int(np.clip(k + self._step(pilots, lower), -_EXTREME, _EXTREME))
            settled = abs(better - k) <= _OFF and np.all(np.isfinite(self._logits(pilots)))
            k, before = better, k
            if settled or better == before or not lower:
                break
            purpose, spare = "again", spare - len(pilots)
        rest = np.arange(len(pilots), len(self.a))
        if len(rest):
            yield from self._put(rest, np.full(len(rest), k), "data")
        for _ in range(_PASSES):
            which, scales = self._out_of_range()
            which, scales = which[:spare], scales[:spare]
            if not len(which):
                break
            yield from self._put(which, scales, "again")
            spare -= len(which)
        self._refuse_unreadable()

    def _put(
        self, which: Indices, k: NDArray[np.int64], purpose: Purpose
    ) -> Generator[Round, Answers, None]:
        """Ask some pairs at scale 2^k."""
        alpha, beta = _split(k)
        self.alpha[which], self.beta[which] = alpha, beta
        name = "W, again" if purpose == "again" else "W"
        [y] = yield [Pairs(self.a, self.b, which, which, alpha, beta, phase=name, purpose=purpose)]
        self.y[which] = y

    def gates(self, values: Values | None = None) -> Gates:
        """Read every answer through the two-token identity."""
        values = values or self.values
        a, b = Vectors.of(self.a, values), Vectors.of(self.b, values)
        return TwoTokenAnswers(self.y, a, b, self.alpha, self.beta, values).gates()

    def _logits(self, which: Indices) -> Array:
        """Return logits, NaN where an answer is out of reach."""
        gates = self.gates()
        logits = np.where(gates.margin > 3 * gates.p_error, gates.logit, np.nan)
        picked: Array = logits[which]
        return picked

    def _step(self, pilots: Indices, lower: int) -> int:
        """Say by how many octaves to move the scale that the pilots were asked at."""
        logits = self._logits(pilots)
        usable = np.isfinite(logits)
        if not np.any(usable):
            return lower
        rms = float(np.sqrt(np.mean(logits[usable] ** 2)))
        # where W = 0 as far as the answers tell this looks as much closer as it may
        unsure = float(np.median(self.gates().logit_error[pilots][usable]))
        octaves = int(np.round(np.log2(_TARGET / (rms + unsure))))
        return octaves if np.all(usable) else min(octaves, -_LOWERED)

    def _out_of_range(self) -> tuple[Indices, NDArray[np.int64]]:
        """Find answers whose logit is too large, the worst first, and better scales."""
        gates = self.gates()
        # where the offset is nearly orthogonal to v no scale helps
        hopeful = gates.p_error < 0.25
        size = np.where(gates.margin > 3 * gates.p_error, np.abs(gates.logit), np.inf)
        which = np.flatnonzero(hopeful & (size > _LARGEST))
        which = which[np.argsort(-size[which], kind="stable")]
        k = np.log2(self.alpha[which] * self.beta[which])
        with np.errstate(divide="ignore"):
            at_one = np.round(-np.log2(size[which]))
        k += np.where(np.isfinite(size[which]), at_one, -_LOWERED)
        return which, np.maximum(k, -_EXTREME).astype(np.int64)

    def _refuse_unreadable(self) -> None:
        """Refuse answers outside of what any weights can give."""
        gates = self.gates()
        outside = np.maximum(-gates.p, gates.p - 1) > 3 * gates.p_error
        if np.any(outside):
            raise ModelMismatch(
                f"{np.count_nonzero(outside)} of {outside.size} answers to two tokens lie outside "
                "of what any attention weights between them can give: the target is not a single "
                "attention head."
            )
        readable = np.count_nonzero(np.isfinite(gates.logit_error))
        if readable < len(self.a) / 2:
            raise NotIdentifiable(
                f"{len(self.a) - readable} of {len(self.a)} logits are out of the answers' reach: "
                "the answers are too coarse, or attention is hard. v is determined, W is not."
                + why(self.values.precision),
                determined={"v": self.values.v, "c": self.values.c},
            )

    def measurements(
        self, values: Values | None = None, W: SingleHead | None = None
    ) -> Measurements:
        """Return all that can be read, with bounds on their errors.

        ``values`` holds the precision that is assumed; ``W`` is the head whose scores were
        rounded, estimated by their size while there is none.
        """
        values = values or self.values
        gates = self.gates(values)
        scale = self.alpha * self.beta
        with np.errstate(invalid="ignore"):
            t = gates.logit / scale
            error = gates.logit_error / scale
        read = np.isfinite(error)
        t, error, a, b = t[read], error[read], self.a[read], self.b[read]
        # for Gaussian b the norm ‖W b‖ is about ‖W‖_F, and that is the RMS of t
        norm = np.sqrt(np.mean(t**2)) if W is None else np.linalg.norm(W.scores_of(b), axis=1)
        tokens = self.alpha[read] * np.linalg.norm(a, axis=1)
        tokens = tokens + self.beta[read] * np.linalg.norm(b, axis=1)
        scores = KAPPA * values.precision.unit * tokens * norm / self.alpha[read]
        return Measurements(a, b, t, error + scores + 4 * UNIT * np.abs(t))
