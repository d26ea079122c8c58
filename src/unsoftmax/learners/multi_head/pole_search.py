"""Heads that no half circle tells apart: all of them from the poles of one line, then fits.

W beside 2W, rank-one W_h with one column space, (W, v) beside (−W, v), any heads in one
dimension: their hyperplanes coincide for every query token, but the paper's identifiability says
they are there, and copies of a token, which shift logits, show them.

1. One line λe at one query token b, nine copies of each λe + b, or three, and one b: 130 queries
   find its scale, 200 show the poles of the answers, which differ on nearly every
   line. A fit (`solve.head_equations`) with as few heads as answers allow makes the e·u_h and e·v_h
   precise: heads that are equal stay one.
2. Offsets and query tokens near that line, moved by a thousandth: what they add is linear in the
   rest of the u_h, v_h and W_h, which a fit finds from there, close heads being tied at first.
3. Offsets and query tokens everywhere, at moderate logits: the same fit, now well conditioned.
   Its derivative says what the answers' precision makes of every head.

About 330 + 2.6·H·d(d + 2) queries where the first line serves, a few lines at most. What is left
of Σ v_h is the value of a head W = 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.heads_conclusion import RecoveredHeads, no_heads
from unsoftmax.learners.multi_head.reduced_answers import ROUNDING, ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.token_search import COPIES
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Indices, Sequences
from unsoftmax.solve.head_equations import FittedHeads, HeadEquations, fit_heads
from unsoftmax.theory.costs import Cost

# -- Logits of several heads along one line of offsets, from the poles of the answers.
#
# Along offsets λe, with n copies of λe + b and one b, ℓ = ln n, answers are
#
#     y(λ) = Σ_h λ w_h (σ(λ t_h + ℓ) − σ(ℓ)) + what is linear in λ,    t_h = e·u_h, w_h = e·v_h
#
# a function of one variable with poles where λ t_h = −ℓ + iπ(2k + 1). The poles of k = 0 and
# k = −1, nearest to the real axis, lie on the rays of slope ±π/ℓ; those of another k on steeper
# ones. So a pole on these rays is a head, whatever the others are:
# heads whose gates switch at the same place on every line (t and 2t, t and −t) have different
# poles. A rational approximation (AAA) of moderate logits finds the poles; nothing is saturated.
#
# Where a pole is off its ray the reading is in error by as much. Nothing is asked or refused here.
#
# Source: Nakatsukasa, Sète, Trefethen, The AAA algorithm for rational approximation, 2018.


# Accuracy of the approximation, relative to the largest value: finer ones follow rounding, with
# pairs of a pole and a zero all over the line.
FINEST = 1e-13
# The same in units of the answers' error; the larger of the two counts.
FIT_NOISES = 2.0
# Terms of the approximation at most: four heads take 15 to 30.
TERMS = 100
# A pole may be off its ray by this share of its size: those of slow heads of small values are
# rough, and those of the next k are off by 0.22.
OFF_RAY = 0.15


def read_rates(offsets: Array, y: Array, shift: float, noise: Array) -> Array:
    """Read the t_h of all heads (m,), the surest first, off answers y (n,) at offsets λ (n,).

    ``shift`` is ℓ > 0, ``noise`` (n,) what the answers may be off by.

    Examples
    --------
    >>> x = np.linspace(-12, 12, 200)
    >>> gate = lambda t: x * (3 / (3 + np.exp(-t * x)) - 0.75)
    >>> y = 2 * gate(1.0) - 5 * gate(2.0)
    >>> read_rates(x, y, np.log(3.0), np.full(200, 1e-14))[:2].round(5).tolist()
    [2.0, 1.0]
    """
    largest = float(np.max(np.abs(y)))
    if not largest > 0:
        return np.zeros(0)
    finest = max(FINEST, FIT_NOISES * float(np.median(noise)) / largest)
    poles = _poles_of(*_approximation(offsets, y, finest * largest, TERMS))
    poles = poles[(poles.imag > 0) & (poles.real != 0)]
    towards = -np.sign(poles.real) * 1j * np.pi - shift  # t times the pole, if it is a head's
    rate = np.real(towards * poles.conj()) / np.abs(poles) ** 2
    off = np.abs(towards - rate * poles) / np.abs(towards)
    return np.asarray(rate[np.argsort(off)[: np.count_nonzero(off < OFF_RAY)]])


def _approximation(x: Array, y: Array, error: float, terms: int) -> tuple[Array, Array]:
    """Return support points z and weights w of Σ w f/(x−z) / Σ w/(x−z), f being y at z (AAA)."""
    rest = np.ones(len(x), dtype=bool)
    missed = np.abs(y - np.mean(y))
    z = f = w = np.zeros(0)
    while len(z) < min(terms, len(x) // 2):
        new = int(np.argmax(missed))
        rest[new] = False
        z, f = np.append(z, x[new]), np.append(f, y[new])
        cauchy = 1 / (x[rest, None] - z)
        loewner = (y[rest, None] - f) * cauchy
        w = np.linalg.svd(loewner, full_matrices=False)[2][-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            values = (cauchy @ (w * f)) / (cauchy @ w)
        missed = np.zeros(len(x))
        missed[rest] = np.nan_to_num(np.abs(y[rest] - values), nan=np.inf)
        if np.max(missed) <= error:
            break
    return z, w


def _poles_of(z: Array, w: Array) -> NDArray[np.complex128]:
    """Return poles that are not real: roots of Σ w/(λ−z), eigenvalues of an arrowhead pencil."""
    arrow = np.diag(np.append(0.0, z))
    arrow[0, 1:], arrow[1:, 0] = w, 1.0
    finite = np.diag(np.append(0.0, np.ones(len(z))))
    top, bottom = scipy.linalg.eigvals(arrow, finite, homogeneous_eigvals=True)
    ends = np.abs(bottom) > 0
    poles = np.asarray(top[ends] / bottom[ends], dtype=np.complex128)
    return np.asarray(poles[np.isfinite(poles) & (poles.imag != 0)])


# Copies of λe + b, for one line after the other: more of them set poles further apart, which shows
# four heads of which two are 1 % apart on 60 of 100 lines instead of 35.
LINE_COPIES = (9, 3)
# Lines that are tried: one may meet a head at a right angle, or two heads with equal logits.
LINES = 8
# Tokens of the longest sequences.
POLE_LENGTHS = (max(LINE_COPIES) + 1, COPIES + 1)
# Offsets between 2⁻³² and 2³² are looked at, in both directions, in units of one over the query
# token: logits are about ‖W‖ times that.
OCTAVES = 32
# Logits show from this share of the largest change on: they are then about 1/20.
SEEN = 1e-2
# The largest logit where this is so, taken twice as large as that of a single head.
FIRST_LOGIT = 0.08
# Gates are taken for saturated where all changes by less than this share: at logits of 12, beyond
# which the nearest poles show no more.
SATURATED = 1e-5
# What is below this many times the answers' error is not seen, and no head.
NOISES = 30.0
# Logits of a few lie this much further out than those that show first; query tokens are made as
# long as these offsets, where W alone makes the logits.
MIDDLE = 40.0
# Under a cap a query token takes the first share of it, where logits need all of it, and offsets
# the second: two hundredths are left for moving both.
QUERY_SHARE, OFFSET_SHARE = 0.4, 0.58
# Offsets of the line: near 0 they are even in λ, further out in log λ.
POINTS = 200
# Two heads whose poles show as one are looked for this far apart, relative to their rate; fits from
# there find those from 0.3 to 5 % apart.
APART = 0.01
# Heads are added beyond the poles while each lowers what is missed to this share.
GAIN = 0.3
# Heads explain answers that they miss by at most this many times their error (root mean square):
# right ones miss them by 0.1 to 1.
FITS = 2.0
# How far offsets and query tokens are moved from the line at first, in turn until a fit succeeds,
# as shares of their norms. Larger: what is added is not linear; smaller: it drowns.
MOVED = (1e-3, 1e-4)
# How far they are moved next, where answers are so coarse, or heads so close, that a fit to all
# offsets fails from there.
FURTHER = (0.03, 0.3)
# Heads whose logits on the line are this close, relative to them, are fitted as one direction at
# first.
TIED = 0.1
# Equations per unknown, and so many more.
AMPLE, SPARE = 1.3, 20
# Smallest and largest logit, of one head, at random offsets.
LOGITS = (0.5, 6.0)
# Systems of more unknowns are not tried: a fit would take minutes.
MOST_UNKNOWNS = 1200
# A head W = 0 with values below this share of the others' is none.
FAINT = 1e-8


def pole_cost(heads: int, dim: int, biases: bool, lines: int = LINES) -> Cost:
    """Return what is asked at most."""
    unknowns = min(heads * dim * (dim + 1 + biases), MOST_UNKNOWNS)
    around = (len(MOVED + FURTHER) + 1) * (int(AMPLE * unknowns) + SPARE)
    on_line = Cost.of(4 * OCTAVES + 4 + POINTS, tokens=max(LINE_COPIES) + 1)
    return lines * (on_line + Cost.of(around, tokens=COPIES + 1))


def separated(
    reduced: ReducedAnswers, most: int, copies: int, biases: bool, rng: np.random.Generator
) -> Asking[RecoveredHeads]:
    """Read all heads, ``most`` at most, off one line, whose tokens are sent in so many ``copies``.

    Raises
    ------
    CoincidentJumps
        Its answers do not tell them: another line may.
    """
    d = reduced.dim
    if reduced.scale == 0:
        return no_heads(reduced)
    search = _PoleSearch(reduced, biases, rng)
    line = yield from search.read_line(most, copies)
    if len(line.rate) * d * (d + 1 + biases) > MOST_UNKNOWNS:
        raise CoincidentJumps
    if not len(line.rate):  # no logits
        none = FittedHeads(np.zeros((0, d, d + biases)), np.zeros((0, d)), 0.0)
        return search.recovered(none, line.equations, line.b)
    near = yield from search.near(line)
    equations, found = yield from search.everywhere(line, near)
    return search.recovered(found, equations, line.b)


@dataclass(frozen=True, slots=True)
class _HeadLine:
    """The line λe (d,) at query token b, out to ``far``, and what explains its answers."""

    b: Array
    direction: Array
    far: float
    equations: HeadEquations
    rate: Array
    """t_h = e·u_h (H,)."""


@dataclass(frozen=True, slots=True)
class _PoleSearch:
    """The steps of one search: answers to copies of tokens are equations for all heads."""

    reduced: ReducedAnswers
    biases: bool
    rng: np.random.Generator

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

    def read_line(self, most: int, copies: int) -> Asking[_HeadLine]:
        """Ask a random line at a random query token, and explain it by ``most`` heads.

        Where nothing shows logits there are no heads on it.
        """
        d, lengths = self.reduced.dim, self.reduced.lengths
        b, direction = self.rng.standard_normal((2, d))
        b *= min(lengths.length, QUERY_SHARE * lengths.room) / np.linalg.norm(b)
        direction /= np.linalg.norm(direction)
        wide, scale = yield from self._scale(b, direction, copies)
        if scale is None:
            return _HeadLine(b, direction, np.inf, wide, np.zeros(0))
        b, steepest, far = scale
        ends = np.arcsinh(far * steepest / 2)
        offsets = 2 / steepest * np.sinh(np.linspace(-ends, ends, POINTS))
        asked = yield from self.ask_line(b, direction, offsets, copies)
        ones = np.ones((len(offsets), 1))
        along = HeadEquations(offsets[:, None], ones, asked.shift, asked.y, asked.noise)
        return _HeadLine(b, direction, far, asked, _fewest(along, most).M.ravel())

    def _scale(
        self, b: Array, direction: Array, copies: int
    ) -> Asking[tuple[HeadEquations, tuple[Array, float, float] | None]]:
        """Find where logits show and where gates are saturated.

        Return what was asked, and a query token as long as such offsets, the largest rate and the
        farthest offset; None where no logits show.
        """
        lengths, length = self.reduced.lengths, float(np.linalg.norm(b))
        longest = (lengths.room - length) * (1 - ROUNDING)
        sizes = 2.0 ** np.arange(-OCTAVES, OCTAVES + 1) / length
        sizes = np.append(sizes[sizes < longest], longest) if lengths.capped else sizes
        both = np.concatenate([sizes, -sizes])
        answers = yield from self.ask_line(b, direction, both, copies)
        g, noise = (x.reshape(2, -1) / sizes for x in (answers.y, NOISES * answers.noise))
        largest = float(np.max(np.abs(g), where=np.abs(g) > noise, initial=0.0))
        if largest == 0:
            return answers, None
        shows = np.any(np.abs(g) > np.maximum(SEEN * largest, noise), axis=0)
        change = np.abs(g - g[:, -1:])
        moves = np.any(change > np.maximum(SATURATED * largest, noise + noise[:, -1:]), axis=0)
        first = int(np.argmax(shows))
        last = min(int(np.max(np.flatnonzero(moves), initial=first)) + 1, len(sizes) - 1)
        steepest, far = FIRST_LOGIT / float(sizes[first]), float(sizes[last])
        # noise of a fixed size is small beside long offsets and tiny query tokens
        fixed = self.biases or self.reduced.precision.absolute > 0
        share = 1.0 if fixed else np.sqrt(MIDDLE * float(sizes[first]) / length)
        if share * length + far / share > lengths.room:
            share = 1.0 if fixed else QUERY_SHARE * lengths.room / length
            far = min(far, share * OFFSET_SHARE * lengths.room)
        return answers, (share * b, share * steepest, far / share)

    def near(self, line: _HeadLine) -> Asking[FittedHeads]:
        """Find all heads from what is near the line."""
        estimates, ties = self.tied(line)
        for moved in MOVED:
            around = yield from self._around(line, moved)
            equations = line.equations.joined(around)
            tied = fit_heads(equations, estimates, ties=ties)
            found = fit_heads(equations, tied.M)
            if found.missed <= FITS:
                return found
        raise CoincidentJumps

    def tied(self, line: _HeadLine) -> tuple[Array, Array]:
        """Return the C_k (K, d, k) as far as the line tells them, and the ties T (H, K)."""
        order = np.argsort(line.rate)
        rate, clusters = line.rate[order], [[int(order[0])]]
        apart = np.diff(rate) > TIED * np.minimum(np.abs(rate[1:]), np.abs(rate[:-1]))
        for h, other in zip(order[1:], apart, strict=True):
            if other:
                clusters.append([])
            clusters[-1].append(int(h))
        ties = np.zeros((len(rate), len(clusters)))
        for k, cluster in enumerate(clusters):
            ties[cluster, k] = line.rate[cluster] / line.rate[cluster[0]]
        [q] = self.coordinates(line.b[None])
        outer = np.outer(line.direction, q / (q @ q))
        first = line.rate[[cluster[0] for cluster in clusters]]
        return first[:, None, None] * outer, ties

    def _logits(self, n: int) -> Array:
        """Draw logits of either sign."""
        sizes = self.rng.uniform(*LOGITS, n)
        return np.asarray(sizes * self.rng.choice([-1.0, 1.0], n))

    def _count(self, H: int) -> int:
        d = self.reduced.dim
        unknowns = H * d * (d + 1 + self.biases)
        return int(AMPLE * unknowns) + SPARE

    def _around(self, line: _HeadLine, moved: float) -> Asking[HeadEquations]:
        """Ask offsets and query tokens that are moved a little from the line's."""
        n = self._count(len(line.rate))
        rates = np.abs(line.rate[self.rng.integers(len(line.rate), size=n)])
        along = np.clip(self._logits(n) / rates, -line.far, line.far)
        a = along[:, None] * (line.direction + moved * self._directions(n))
        b = line.b + moved * float(np.linalg.norm(line.b)) * self._directions(n)
        # both were moved: a cap that the line keeps to may be passed
        longest = self.reduced.lengths.room - np.linalg.norm(b, axis=1)
        a *= np.minimum(1.0, longest / np.linalg.norm(a, axis=1))[:, None]
        return (yield from self.ask(a, b, 1 + np.arange(n) % 2 * (COPIES - 1), "near poles"))

    def everywhere(
        self, line: _HeadLine, near: FittedHeads
    ) -> Asking[tuple[HeadEquations, FittedHeads]]:
        """Ask random offsets and query tokens at moderate logits; fit all."""
        equations = yield from self._moderate(line, near)
        for further in (*FURTHER, None):
            found = fit_heads(equations, near.M)
            if found.missed <= FITS:
                return equations, found
            if further is not None:
                # what was read beside the line is too rough to go so far at once
                around = line.equations.joined((yield from self._around(line, further)))
                near = fit_heads(around, near.M)
        raise CoincidentJumps

    def _moderate(self, line: _HeadLine, near: FittedHeads) -> Asking[HeadEquations]:
        """Ask random offsets and query tokens at which logits of ``near`` are moderate."""
        n = self._count(len(line.rate))
        b = float(np.linalg.norm(line.b)) * self._directions(n)
        a = self._directions(n)
        M = near.M[self.rng.integers(len(near.M), size=n)]
        logits = np.einsum("ni,nij,nj->n", a, M, self.coordinates(b))
        with np.errstate(divide="ignore"):
            along = np.clip(self._logits(n) / logits, -line.far, line.far)
        a *= along[:, None]
        copies = 1 + np.arange(n) % 2 * (COPIES - 1)
        return (yield from self.ask(a, b, copies, "moderate logits"))

    def _directions(self, n: int) -> Array:
        """Draw n unit vectors."""
        x = self.rng.standard_normal((n, self.reduced.dim))
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))

    def recovered(self, found: FittedHeads, equations: HeadEquations, b: Array) -> RecoveredHeads:
        """Put the heads together, with what the answers' precision makes of each."""
        reduced, d, length = self.reduced, self.reduced.dim, float(np.linalg.norm(b))
        of_M, of_v = (max(1.0, found.missed) * x for x in found.deviations(equations))
        errors = {
            "W": np.linalg.norm(of_M[:, :, :d], axis=(1, 2)),
            "v": np.linalg.norm(of_v, axis=1),
            "w": np.linalg.norm(of_M[:, :, d:], axis=(1, 2)),
        }
        W, w, v = found.M[:, :, :d], found.M[:, :, d:].sum(axis=2), found.v
        rest, error = reduced.s - v.sum(axis=0), reduced.eta * reduced.scale
        error = float(np.hypot(error, np.linalg.norm(errors["v"])))
        faint = max(FAINT * reduced.scale, NOISES * error)
        if float(np.linalg.norm(rest)) > faint:  # a head W = 0
            W, w = np.concatenate([W, np.zeros((1, d, d))]), np.concatenate([w, np.zeros((1, d))])
            v = np.concatenate([v, rest[None]])
            unseen = self.unseen(rest, equations)
            added = {"W": unseen / length, "v": error, "w": unseen * self.biases}
            errors = {name: np.append(errors[name], added[name]) for name in errors}
        count = "1 head" if len(v) == 1 else f"{len(v)} heads"
        note = (
            f"{count}; those of equal W and w are one, whose v is the sum of theirs "
            "(Proposition 7.1). Told apart by the poles of answers along a line."
        )
        return RecoveredHeads(MultiHead(W, v, w, reduced.c), errors, length, notes=(note,))

    def unseen(self, v: Array, equations: HeadEquations) -> float:
        """Return the size of u_h that a head of values v has before its logits are seen."""
        gate = scipy.special.expit(equations.shift)
        seen = NOISES * equations.noise / (gate * (1 - gate))
        with np.errstate(divide="ignore"):
            sizes = seen / np.abs(equations.a @ v) / np.linalg.norm(equations.a, axis=1)
        return float(np.median(sizes))


# -- along the line


def _fewest(line: HeadEquations, most: int) -> FittedHeads:
    """Return the fewest heads that explain a line.

    One more head at a time: the next pole, or one of the heads so far taken for two, since the
    poles of close heads may show as one.
    """
    offsets, shift = line.a[:, 0], float(line.shift[0])
    rates = read_rates(offsets, line.y, shift, line.noise)
    best: FittedHeads | None = None
    for count in range(1, most + 1):
        starts = [] if best is None else list(_split(best.M[:, 0, 0]))
        if count <= len(rates):
            starts.insert(0, rates[:count])
        if not starts:
            break
        last, best = best, _first(fit_heads(line, start[:, None, None]) for start in starts)
        if best.missed <= FITS:
            return _without_poles_that_are_none(best, line)
        if last is not None and count > len(rates) and best.missed > GAIN * last.missed:
            break
    raise CoincidentJumps


def _first(fits: Iterator[FittedHeads]) -> FittedHeads:
    """Return the first fit that misses by little enough, or the best."""
    best = next(fits)
    for found in fits:
        if best.missed <= FITS:
            break
        best = min(best, found, key=lambda one: one.missed)
    return best


def _split(rates: Array) -> Iterator[Array]:
    """Take each of the heads for two, ``APART`` apart."""
    for h in range(len(rates)):
        pair = rates[h] * np.array([1 - APART / 2, 1 + APART / 2])
        yield np.concatenate([np.delete(rates, h), pair])


def _without_poles_that_are_none(found: FittedHeads, line: HeadEquations) -> FittedHeads:
    """Leave out heads whose values are in the noise."""
    _, deviation = found.deviations(line)
    heads = np.abs(found.v[:, 0]) > NOISES * deviation[:, 0]
    if np.all(heads):
        return found
    if np.any(heads):
        fewer = fit_heads(line, found.M[heads])
        if fewer.missed <= FITS:
            return fewer
    raise CoincidentJumps
