"""All heads along one line of offsets: 130 queries to find its scale, 200 that show the poles.

Nine copies of each λe + b, or three, and one b. Heads that switch at the same hyperplane on every
half circle, such as W and 2W, W and −W, or all heads in one dimension, have different poles on
nearly every line (`measure.poles`). What is read there is made precise by a fit
(`solve.head_equations`) with as few heads as answers allow: heads that are equal stay one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.measure.poles import PoleTuning, read_poles
from unsoftmax.probes import Array, Indices, Sequences
from unsoftmax.solve.head_equations import FittedHeads, HeadEquations, HeadFitTuning, fit_heads


@dataclass(frozen=True, slots=True)
class PoleLineTuning:
    """Where a line is asked, and when heads explain it."""

    poles: PoleTuning = field(default=PoleTuning())
    fit: HeadFitTuning = field(default=HeadFitTuning())
    copies: tuple[int, ...] = (9, 3)
    """Copies of λe + b, for one line after the other: more of them set poles further apart, which
    shows four heads of which two are 1 % apart on 60 of 100 lines instead of 35."""
    octaves: int = 32
    """Offsets between 2⁻³² and 2³² are looked at, in both directions, in units of one over the
    query token: logits are about ‖W‖ times that."""
    seen: float = 1e-2
    """Logits show from this share of the largest change on: they are then about 1/20."""
    first_logit: float = 0.08
    """The largest logit where this is so, taken twice as large as that of a single head."""
    saturated: float = 1e-5
    """Gates are taken for saturated where all changes by less than this share: at logits of 12,
    beyond which the nearest poles show no more."""
    noises: float = 30.0
    """What is below this many times the answers' error is not seen, and no head."""
    middle: float = 40.0
    """Logits of a few lie this much further out than those that show first; query tokens are made
    as long as these offsets, where W alone makes the logits."""
    query_share: float = 0.4
    """Under a cap a query token takes this share of it, where logits need all of it,"""
    offset_share: float = 0.58
    """and offsets this one: two hundredths are left for moving both."""
    points: int = 200
    """Offsets of the line: near 0 they are even in λ, further out in log λ."""
    apart: float = 0.01
    """Two heads whose poles show as one are looked for this far apart, relative to their rate; fits
    from there find those from 0.3 to 5 % apart."""
    gain: float = 0.3
    """Heads are added beyond the poles while each lowers what is missed to this share."""
    fits: float = 2.0
    """Heads explain answers that they miss by at most this many times their error (root mean
    square): right ones miss them by 0.1 to 1."""


@dataclass(frozen=True, slots=True)
class HeadLine:
    """The line λe (d,) at query token b, out to ``far``, and what explains its answers."""

    b: Array
    direction: Array
    far: float
    equations: HeadEquations
    rate: Array
    """t_h = e·u_h (H,)."""
    weight: Array
    """e·v_h (H,)."""


@dataclass(frozen=True, slots=True)
class CopiedTokens:
    """Answers to n copies of a+b and one b, as equations for all heads."""

    reduced: ReducedAnswers
    biases: bool

    def ask_line(
        self, b: Array, direction: Array, offsets: Array, copies: int
    ) -> Asking[HeadEquations]:
        """Ask offsets along a direction at one query token."""
        n = len(offsets)
        a, b = offsets[:, None] * direction, np.repeat(b[None], n, axis=0)
        return (yield from self.ask(a, b, np.full(n, copies), "poles"))

    def ask(self, a: Array, b: Array, copies: Indices, phase: str) -> Asking[HeadEquations]:
        """Ask offsets a (n, d), query tokens b (n, d), so many copies of each (n,)."""
        reduced, groups, probes = self.reduced, [], []
        for n in np.unique(copies):
            rows = np.flatnonzero(copies == n)
            X = np.repeat((a + b)[rows, None], n + 1, axis=1)
            X[:, -1] = b[rows]
            groups.append(rows)
            probes.append(Sequences(X, phase=phase, purpose="data"))
        answers = yield list(probes)
        y = np.empty(len(a))
        for rows, answer in zip(groups, answers, strict=True):
            y[rows] = answer
        y = y - reduced.c - b @ reduced.s - (a @ reduced.s) * copies / (copies + 1)
        size = np.linalg.norm(a, axis=1) + np.linalg.norm(b, axis=1)
        noise = reduced.precision.error(reduced.scale * size + abs(reduced.c))
        return HeadEquations(a, self.coordinates(b), np.log(copies), y, noise)

    def coordinates(self, b: Array) -> Array:
        """Return what u_h is linear in: b, and 1 with biases."""
        return np.concatenate([b, np.ones((len(b), 1))], axis=1) if self.biases else b


def read_line(
    tokens: CopiedTokens,
    most: int,
    copies: int,
    rng: np.random.Generator,
    tuning: PoleLineTuning,
) -> Asking[HeadLine | None]:
    """Ask a random line at a random query token; None where no ``most`` heads explain it.

    Where nothing shows logits there are no heads on it.
    """
    d, lengths = tokens.reduced.dim, tokens.reduced.lengths
    b, direction = rng.standard_normal((2, d))
    b *= min(lengths.length, tuning.query_share * lengths.room) / np.linalg.norm(b)
    direction /= np.linalg.norm(direction)
    wide, scale = yield from _scale(tokens, b, direction, copies, tuning)
    if scale is None:
        return HeadLine(b, direction, np.inf, wide, *np.zeros((2, 0)))
    b, steepest, far = scale
    ends = np.arcsinh(far * steepest / 2)
    offsets = 2 / steepest * np.sinh(np.linspace(-ends, ends, tuning.points))
    equations = yield from tokens.ask_line(b, direction, offsets, copies)
    along = HeadEquations(
        offsets[:, None],
        np.ones((len(offsets), 1)),
        equations.shift,
        equations.y,
        equations.noise,
    )
    found = _fewest(along, most, tuning)
    if found is None:
        return None
    return HeadLine(b, direction, far, equations, found.M.ravel(), found.v.ravel())


def _scale(
    tokens: CopiedTokens, b: Array, direction: Array, copies: int, tuning: PoleLineTuning
) -> Asking[tuple[HeadEquations, tuple[Array, float, float] | None]]:
    """Find where logits show and where gates are saturated.

    Return what was asked, and a query token as long as such offsets, the largest rate and the
    farthest offset; None where no logits show.
    """
    lengths, length = tokens.reduced.lengths, float(np.linalg.norm(b))
    longest = (lengths.room - length) * (1 - lengths.tuning.rounding)
    sizes = 2.0 ** np.arange(-tuning.octaves, tuning.octaves + 1) / length
    sizes = np.append(sizes[sizes < longest], longest) if lengths.capped else sizes
    both = np.concatenate([sizes, -sizes])
    answers = yield from tokens.ask_line(b, direction, both, copies)
    g, noise = (x.reshape(2, -1) / sizes for x in (answers.y, tuning.noises * answers.noise))
    largest = float(np.max(np.abs(g), where=np.abs(g) > noise, initial=0.0))
    if largest == 0:
        return answers, None
    shows = np.any(np.abs(g) > np.maximum(tuning.seen * largest, noise), axis=0)
    change = np.abs(g - g[:, -1:])
    moves = np.any(change > np.maximum(tuning.saturated * largest, noise + noise[:, -1:]), axis=0)
    first = int(np.argmax(shows))
    last = min(int(np.max(np.flatnonzero(moves), initial=first)) + 1, len(sizes) - 1)
    steepest, far = tuning.first_logit / float(sizes[first]), float(sizes[last])
    # noise of a fixed size is small beside long offsets and tiny query tokens
    fixed = tokens.biases or tokens.reduced.precision.absolute > 0
    share = 1.0 if fixed else np.sqrt(tuning.middle * float(sizes[first]) / length)
    if share * length + far / share > lengths.room:
        share = 1.0 if fixed else tuning.query_share * lengths.room / length
        far = min(far, share * tuning.offset_share * lengths.room)
    return answers, (share * b, share * steepest, far / share)


def _fewest(line: HeadEquations, most: int, tuning: PoleLineTuning) -> FittedHeads | None:
    """Return the fewest heads that explain a line.

    One more head at a time: the next pole, or one of the heads so far taken for two, since the
    poles of close heads may show as one.
    """
    offsets, shift = line.a[:, 0], float(line.shift[0])
    poles = read_poles(offsets, line.y, shift, line.noise, tuning.poles)
    best: FittedHeads | None = None
    for count in range(1, most + 1):
        starts = [] if best is None else list(_split(best.M[:, 0, 0], tuning.apart))
        if count <= len(poles):
            starts.insert(0, poles.rate[:count])
        if not starts:
            return None
        fits = (fit_heads(line, rates[:, None, None], tuning.fit) for rates in starts)
        last, best = best, _first(fits, tuning.fits)
        if best.missed <= tuning.fits:
            return _without_poles_that_are_none(best, line, tuning)
        if last is not None and count > len(poles) and best.missed > tuning.gain * last.missed:
            return None
    return None


def _first(fits: Iterator[FittedHeads], enough: float) -> FittedHeads:
    """Return the first fit that misses by no more than ``enough``, or the best."""
    best = next(fits)
    for found in fits:
        if best.missed <= enough:
            break
        best = min(best, found, key=lambda one: one.missed)
    return best


def _split(rates: Array, apart: float) -> Iterator[Array]:
    """Take each of the heads for two, this far apart."""
    for h in range(len(rates)):
        pair = rates[h] * np.array([1 - apart / 2, 1 + apart / 2])
        yield np.concatenate([np.delete(rates, h), pair])


def _without_poles_that_are_none(
    found: FittedHeads, line: HeadEquations, tuning: PoleLineTuning
) -> FittedHeads | None:
    """Leave out heads whose values are in the noise."""
    _, deviation = found.deviations(line)
    heads = np.abs(found.v[:, 0]) > tuning.noises * deviation[:, 0]
    if np.all(heads):
        return found
    if not np.any(heads):
        return None
    fewer = fit_heads(line, found.M[heads], tuning.fit)
    return fewer if fewer.missed <= tuning.fits else None
