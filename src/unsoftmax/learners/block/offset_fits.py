"""Gates beside offsets, fitted to their answers, and the maps M_h that follow.

Gates of the first offset are a start for all others. Enough answers to an offset determine its
gates and vectors by themselves; fewer do within the ranges that the vectors of others show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import scipy

from unsoftmax.learners.attention_layer.soft_gate_reading import CopiedAnswers, alike
from unsoftmax.learners.block.gated_fit import NOISE, Gated, GatedFit, Ranges, WithinRanges, fitted
from unsoftmax.measure.token_map import AnswerNoise, with_errors
from unsoftmax.probes import Array, Indices

# Query tokens beyond heads and coordinates. With none the equations of gates are square, in
# whatever dimension: H numbers for each token beyond H, once vectors explain the rest.
SPARE = 3
# Starts of a fit that neither the first offset's gates nor ranges find, drawn ever farther away.
_STARTS_NEAR, _NEAR, _FARTHER = 60, 0.15, 0.03
# Starts of a fit within ranges: none of these is drawn. More answers cost less time than more fits.
_STARTS_WITHIN = 2


def gated(answers: CopiedAnswers, theta: Array) -> Gated:
    """Return what is fitted to answers: gates of heads θ (H, q), each times one vector."""
    H, (T, m) = len(theta), answers.y.shape
    shift, nothing = answers.shift[:, None] * np.ones(H), np.zeros((T, H, m))
    return Gated(answers.s, shift, np.ones((T, 1)), nothing, answers.y)


def enough(theta: Array) -> int:
    """Return how many far tokens show gates of heads θ (H, q) and their vectors."""
    return int(np.sum(theta.shape)) + SPARE


def within_ranges(answers: CopiedAnswers, ranges: Ranges) -> WithinRanges:
    """Return the same answers, each head's vector in its range."""
    return WithinRanges(answers.s, answers.shift, ranges, answers.y)


@dataclass(frozen=True, slots=True)
class GatedMaps:
    """All answers that the maps M_h are computed from.

    Attributes
    ----------
    shown : ndarray
        Coordinates that are not hidden.
    frame : ndarray (k, d)
    offsets : tuple of CopiedAnswers
    theta : tuple of ndarray (H, q)
        The gates of each, heads in one order.
    ranks : tuple of int
        Of ranges, which offsets with fewer tokens are read within.
    """

    shown: Indices
    frame: Array
    offsets: tuple[CopiedAnswers, ...]
    theta: tuple[Array, ...]
    ranks: tuple[int, ...]

    def maps(self) -> Array:
        """Compute all M_h in the coordinates that are shown, (H, m, d)."""
        pairs = list(zip(self.offsets, self.theta, strict=True))
        whole = [len(one.y) >= enough(theta) for one, theta in pairs]
        free = [
            fitted(gated(*pair), pair[1]) for pair, own in zip(pairs, whole, strict=True) if own
        ]
        ranges = Ranges.of(np.array([fit.vectors[:, 0] for fit in free]), self.ranks)
        fits = iter(free)
        vectors = np.array(
            [
                (next(fits) if own else within_ranges(one, ranges).fitted(theta)).vectors[:, 0]
                for (one, theta), own in zip(pairs, whole, strict=True)
            ]
        )
        steps = np.array([one.a for one in self.offsets]) @ self.frame.T
        flat = np.linalg.lstsq(steps, vectors.reshape(len(steps), -1), rcond=None)[0]
        return np.asarray(
            np.einsum("khm,kd->hmd", flat.reshape(-1, *vectors.shape[1:]), self.frame)
        )

    @property
    def typical(self) -> float:
        """Root mean square logit of offsets of length 1, in the head where it is largest."""
        length = float(np.linalg.norm(self.offsets[0].a))
        return float(np.sqrt(np.max(np.sum(self.theta[0] ** 2, axis=1)))) / length


class Offset(NamedTuple):
    """One of the other offsets: how f and F are turned in B, e, answers so far, and their fit."""

    turn: Array
    e: Array
    answers: CopiedAnswers | None = None
    fit: GatedFit | None = None

    @property
    def read(self) -> CopiedAnswers:
        """The answers, once there are any."""
        assert self.answers is not None
        return self.answers

    @property
    def found(self) -> GatedFit:
        """The fit, once there is one."""
        assert self.fit is not None
        return self.fit

    @property
    def asked(self) -> int:
        """How many answers there are."""
        return 0 if self.answers is None else len(self.answers.y)


@dataclass(frozen=True, slots=True)
class OffsetFits:
    """What gates are fitted with."""

    noise: AnswerNoise
    rng: np.random.Generator

    def noise_of(self, answers: CopiedAnswers) -> float:
        """Return what answers together may be off by."""
        return NOISE * float(np.linalg.norm(self.noise.of(answers.y)))

    def joined(self, offset: Offset, answers: CopiedAnswers) -> Offset:
        """Put further answers of an offset behind its own; its gates are fitted to all of them."""
        if offset.answers is not None:
            answers = offset.answers.joined(answers)
        fit = offset.fit and fitted(gated(answers, offset.fit.theta), offset.fit.theta)
        if fit and fit.missed > self.noise_of(answers):
            fit = None
        return offset._replace(answers=answers, fit=fit)

    def near(self, offsets: list[Offset]) -> list[Offset]:
        """Fit offsets that are lost: from the first one's gates, within ranges, from afar."""
        base = offsets[0].found
        offsets = [
            one._replace(fit=self._found(one.read, base, [base.theta]))
            if one.fit is None and one.asked >= enough(base.theta)
            else one
            for one in offsets
        ]
        if all(one.fit for one in offsets):
            return offsets
        ranges, off = self.ranges(offsets)
        return [one if one.fit else self._lost(one, base, ranges, off) for one in offsets]

    def ranges(self, offsets: list[Offset]) -> tuple[Ranges, float]:
        """Return the ranges of maps that offsets show, and what vectors in them are off by, about.

        What drawn errors of answers explain is no direction of a range.
        """
        least = enough(offsets[0].found.theta)
        free = [one for one in offsets if one.fit and one.asked >= least]
        vectors, moved = [], []
        for one in free:
            answers = with_errors(one.read, self.noise, self.rng)
            vectors.append(one.found.vectors[:, 0])
            moved.append(fitted(gated(answers, one.found.theta), one.found.theta).vectors[:, 0])
        each = np.array(vectors)
        errors = np.linalg.norm((np.array(moved) - each).swapaxes(0, 1), 2, axis=(1, 2))
        singular = np.linalg.svd(each.swapaxes(0, 1), compute_uv=False)
        ranks = np.maximum(1, np.sum(singular > NOISE * errors[:, None], axis=1))
        return Ranges.of(each, tuple(map(int, ranks))), float(errors.max())

    def _lost(self, offset: Offset, base: GatedFit, ranges: Ranges, off: float) -> Offset:
        """Fit an offset by itself, or within ranges whose vectors are off by so much."""
        starts = self._starts(offset.read, base, ranges)
        if offset.asked >= enough(base.theta):
            return offset._replace(fit=self._found(offset.read, base, starts))
        answers = within_ranges(offset.read, ranges)
        for start in islice(starts, _STARTS_WITHIN):
            fit = answers.fitted(start)
            # every gate is 1 at most
            of_ranges = NOISE * off * np.sqrt(offset.asked)
            if fit.missed <= self.noise_of(offset.read) + of_ranges:
                return offset._replace(fit=fit)
        return offset

    def _starts(self, answers: CopiedAnswers, base: GatedFit, ranges: Ranges) -> Iterator[Array]:
        """Return the first offset's gates, what ranges say, and gates drawn ever farther away."""
        yield base.theta
        yield _parted(answers, base, ranges)
        for n in range(1, _STARTS_NEAR):
            yield base.theta + (_NEAR + _FARTHER * n) * self.rng.standard_normal(base.theta.shape)

    def _found(
        self, answers: CopiedAnswers, base: GatedFit, starts: Iterable[Array]
    ) -> GatedFit | None:
        """Fit the gates of an offset from starts in turn, heads in the order of the first one's."""
        for start in starts:
            found = fitted(gated(answers, start), start)
            if found.missed <= self.noise_of(answers):
                sure = alike(base.vectors[:, 0], found.vectors[:, 0])
                sure += alike(base.theta, found.theta)
                order = scipy.optimize.linear_sum_assignment(-sure)[1]
                return GatedFit(found.theta[order], found.vectors[order], found.missed)
        return None


def _parted(answers: CopiedAnswers, base: GatedFit, ranges: Ranges) -> Array:
    """Return the gates (H, q) of each head's part of answers.

    Where ranges are independent parts are all that answers are. Else what these differ by from the
    first offset's is shared out, as little as explains it. A part is one gate times one vector.
    """
    whole, (U, head, _) = gated(answers, base.theta), ranges
    gates, vectors = whole.left(base.theta)[0], base.vectors[:, 0]
    parts = gates[:, head] * np.sum(vectors[head].T * U, axis=0)
    parts = parts + (whole.y - parts @ U.T) @ np.linalg.pinv(U).T
    found = []
    for h, theta in enumerate(base.theta):
        part, shift = parts[:, head == h], whole.shift[:, [h]]
        own = whole._replace(shift=shift, known=0 * part[:, None], y=part)
        found.append(fitted(own, theta[None]).theta[0])
    return np.array(found)
