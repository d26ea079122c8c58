"""At which scale 2^k to ask for logits: suggestions from those seen so far.

A logit t = 2^k·M tells most digits of M when |t| is about 1, and none when |t| > 30 or so. What
M is shows only in the answers, so the scale is a guess, corrected as logits are seen. These are
its rules as functions of arrays; `unsoftmax.measure.logit_grid` asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unsoftmax.measure.scales import Exponents
from unsoftmax.measure.two_tokens import TwoTokenAnswers
from unsoftmax.probes import Array, Indices


class Stage(NamedTuple):
    """Offsets that are asked together, all at one scale per query token."""

    first: int
    """The first of them: the scale is suggested by the offsets before it."""
    last: int | None
    """The first that is not among them; all that are left where None."""
    below: int
    """Octaves by which they stay below the suggested scale."""


@dataclass(frozen=True, slots=True)
class LogitGridTuning:
    """How scales are searched, and when an answer is asked again."""

    wanted: float = 0.5
    """Root mean square of logits at the final scale. Few are then beyond 6, or below 0.05."""
    largest: float = 6.0
    """A pilot beyond this is asked again: p is within 1/400 of 0 or 1, which costs its logit
    two to three digits."""
    few_offsets: int = 5
    """With fewer offsets than this the pilot is a large share of the data: it is asked again
    where it is below ``smallest``."""
    smallest: float = 0.1
    """Below 1 the relative precision of a logit falls in proportion to it; a pilot below this is
    small."""
    stages: tuple[Stage, ...] = (Stage(1, 2, 3), Stage(2, 5, 2), Stage(5, None, 0))
    """After the pilot. One logit may be small by chance, and a scale that is too large costs
    the answers of its stage: so few are asked first, well below the scale they suggest."""
    poor: float = 60.0
    """An answer is asked again when its error is this many times its column's typical one. At
    1000 the worst runs at d = 128 lost a digit; below 60 generic columns are asked again."""
    resolved: float = 100.0
    """A logit below this many times its error is not resolved: its scale is raised so far that
    the error would be ``wanted`` divided by this."""
    saturated: tuple[int, ...] = (20, 24)
    """Octaves by which a saturated pilot is lowered, once for each entry: it says only that
    |t| > 30, so a million times less is tried, then 16 million."""
    saturated_step: int = 6
    """Octaves that other scales stay below one at which an answer was saturated."""
    farthest: int = 100
    """Scales are within 2^±100: scaled tokens and their answers must stay in float32's range,
    2^±126, for ‖v‖ up to 10⁶."""
    trusted: float = 3.0
    """A logit suggests a scale only where p is this many times its error away from 0 and 1;
    answers further outside of [0, 1] than that cannot be a head's."""
    again: int = 3
    """Rounds in which answers are asked again, for the plan: seldom more than two."""

    @property
    def rounds(self) -> int:
        """Rounds that a grid takes: its pilot, the stages, and what is asked again."""
        return 1 + len(self.saturated) + len(self.stages) + self.again


@dataclass(frozen=True, slots=True)
class SeenLogits:
    """Logits that were seen, and at which scales.

    Attributes
    ----------
    logit : ndarray
        W's part of the logits, NaN where the answer is saturated.
    whole : ndarray
        The logits themselves, with w's part.
    error : ndarray
        Bounds on their errors.
    scale : ndarray
        Scales they were asked at.
    """

    logit: Array
    whole: Array
    error: Array
    scale: Array

    @classmethod
    def of(cls, asked: TwoTokenAnswers, shift: Array | float, trusted: float) -> SeenLogits:
        """Read answers, and take off what w adds to their logits, α times ``shift``."""
        gates = asked.gates()
        logit = gates.logit - asked.alpha * shift
        logit = np.where(gates.margin > trusted * gates.p_error, logit, np.nan)
        return cls(logit, gates.logit, gates.logit_error, asked.alpha * asked.beta)


def first_scale(tokens: int, dim: int, tuning: LogitGridTuning) -> Exponents:
    """Guess a scale for query tokens of norm 1: logits are moderate for the W of trained heads."""
    return np.full(tokens, int(np.round(np.log2(np.sqrt(dim) * tuning.wanted))))


def scale_for(size: float, tuning: LogitGridTuning) -> int:
    """Return the exponent of the scale that puts readings of this size where they are wanted."""
    return int(np.round(np.log2(tuning.wanted / size))) if size else 0


def better_scale(
    seen: SeenLogits, k: Exponents, lowered: int, few: bool, tuning: LogitGridTuning
) -> Exponents:
    """Suggest a scale for pilots that are out of range; the same where they are in range.

    Parameters
    ----------
    seen : SeenLogits
        A pilot of each token.
    k : ndarray of int
        Scales they were asked at.
    lowered : int
        Octaves by which saturated ones are lowered.
    few : bool
        Whether there are so few offsets that a small logit is asked again.
    tuning : LogitGridTuning
        Knobs.
    """
    size = np.abs(seen.logit)
    with np.errstate(divide="ignore", invalid="ignore"):
        at_wanted = _octaves(tuning.wanted / size, tuning)
        step = np.where(np.abs(seen.whole) > tuning.largest, at_wanted, 0.0)
        unresolved = _octaves(tuning.wanted / tuning.resolved / seen.error, tuning)
        if few:
            step = np.where(size < tuning.smallest, np.maximum(step, at_wanted), step)
        # says nothing of its size, be it 0 by chance: it must not be divided by
        step = np.where(size <= tuning.resolved * seen.error, unresolved, step)
    step = np.where(np.isnan(seen.logit), -lowered, step)
    return np.clip(k + step, -tuning.farthest, tuning.farthest).astype(np.int64)


def suggested_scale(seen: SeenLogits, k: Exponents, tuning: LogitGridTuning) -> Exponents:
    """Put the RMS of each token's logits, (tokens, offsets), where it is wanted."""
    usable = np.isfinite(seen.logit)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_scale = np.where(usable, seen.logit / seen.scale, 0.0)
        spread = np.where(usable, seen.error / seen.scale, 0.0)
        rms = np.sqrt(np.sum(per_scale**2, axis=1) / np.sum(usable, axis=1))
        floor = np.sqrt(np.sum(spread**2, axis=1) / np.sum(usable, axis=1))
        suggested = _octaves(tuning.wanted / rms, tuning)
    # nothing but rounding: W b = 0 as far as the answers tell, and any scale is as good
    suggested = np.where(rms > floor, suggested, k)
    # a saturated answer bounds the scale from above whatever the others say
    with np.errstate(invalid="ignore"):
        lowest = np.min(np.log2(np.where(usable, np.inf, seen.scale)), axis=1)
    below = np.where(np.isfinite(lowest), lowest - tuning.saturated_step, tuning.farthest)
    suggested = np.minimum(suggested, below)
    return np.clip(suggested, -tuning.farthest, tuning.farthest).astype(np.int64)


def common_scale(
    asked: TwoTokenAnswers, measured: Array, k: int | None, tuning: LogitGridTuning
) -> int:
    """Suggest one scale for all query tokens from every reading so far.

    For tokens that are random to W: then all columns W b are about equally long. ``k`` is
    taken where no logit was asked; where none can be told from 0 the scale stays.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = asked.alpha * asked.beta
        error = asked.gates().logit_error / scale
        usable = np.isfinite(measured) & np.isfinite(error)
        seen = np.isfinite(asked.y)
        octaves = np.log2(scale)
    suggested = int(np.median(octaves[seen])) if k is None else k
    if np.any(usable):
        rms = float(np.sqrt(np.mean(measured[usable] ** 2)))
        if rms > np.sqrt(np.mean(error[usable] ** 2)):
            suggested = int(_octaves(np.array(tuning.wanted / rms), tuning))
    if np.any(saturated := seen & ~np.isfinite(error)):
        suggested = min(suggested, int(np.min(octaves[saturated])) - tuning.saturated_step)
    return suggested


def poor_readings(
    seen: SeenLogits, asked: NDArray[np.bool_], weight: Array, k: Exponents, tuning: LogitGridTuning
) -> tuple[Indices, Indices, Exponents]:
    """Find readings (tokens, offsets) far less precise than their token's, worst first.

    Returns their places and better scales. ``weight`` is |a·v̂|/‖a‖ of the offsets: how much
    less an offset tells by its direction is not the scale's fault.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        blame = seen.error / seen.scale * weight
        blame = np.where(np.isfinite(seen.logit), blame, np.inf)
        # by the lower quartile: finite even where half of a column is saturated
        quartile = np.count_nonzero(asked, axis=1) // 4
        typical = np.take_along_axis(np.sort(blame, axis=1), quartile[:, None], axis=1)
        j, i = np.nonzero(asked & (blame > tuning.poor * typical))
        at_one = _octaves(seen.scale[j, i] / np.abs(seen.logit[j, i]), tuning)
        lower = _octaves(seen.scale[j, i], tuning) - tuning.saturated_step
    better = np.where(np.isfinite(seen.logit[j, i]), np.minimum(at_one, k[j]), lower)
    worst_first = np.argsort(-blame[j, i], kind="stable")
    return j[worst_first], i[worst_first], better[worst_first].astype(np.int64)


def _octaves(ratio: Array, tuning: LogitGridTuning) -> Array:
    """Round log₂ to an integer, within what scales can be."""
    octaves: Array = np.round(np.clip(np.log2(ratio), -tuning.farthest, tuning.farthest))
    return octaves
