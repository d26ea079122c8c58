"""Heads that no half circle tells apart: all of them from the poles of one line, then fits.

W beside 2W, rank-one W_h with one column space, (W, v) beside (−W, v), any heads in one
dimension: their hyperplanes coincide for every query token, but the paper's identifiability says
they are there, and copies of a token, which shift logits, show them.

1. One line λe at one query token b: the e·u_h and e·v_h of all heads (`pole_lines`).
2. Offsets and query tokens near that line, moved by a thousandth: what they add is linear in the
   rest of the u_h, v_h and W_h, which a fit finds from there, close heads being tied at first.
3. Offsets and query tokens everywhere, at moderate logits: the same fit, now well conditioned.
   Its derivative says what the answers' precision makes of every head.

About 330 + 2.6·H·d(d + 2) queries where the first line serves, a few lines at most. What is left
of Σ v_h is the value of a head W = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.orientation import COPIES
from unsoftmax.learners.multi_head.pole_lines import (
    CopiedTokens,
    HeadLine,
    PoleLineTuning,
    read_line,
)
from unsoftmax.learners.multi_head.recovered_heads import RecoveredHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array
from unsoftmax.solve.head_equations import FittedHeads, HeadEquations, fit_heads


@dataclass(frozen=True, slots=True)
class PoleSearchTuning:
    """How many lines are tried, and what is asked beside them."""

    line: PoleLineTuning = field(default=PoleLineTuning())
    lines: int = 8
    """Lines that are tried: one may meet a head at a right angle, or two heads with equal
    logits."""
    moved: tuple[float, ...] = (1e-3, 1e-4)
    """How far offsets and query tokens are moved from the line at first, in turn until a fit
    succeeds, as shares of their norms. Larger: what is added is not linear; smaller: it drowns."""
    further: tuple[float, ...] = (0.03, 0.3)
    """How far they are moved next, where answers are so coarse, or heads so close, that a fit to
    all offsets fails from there."""
    tied: float = 0.1
    """Heads whose logits on the line are this close, relative to them, are fitted as one direction
    at first."""
    ample: float = 1.3
    """Equations per unknown,"""
    spare: int = 20
    """and so many more."""
    least_logit: float = 0.5
    """Smallest logit, of one head, at random offsets,"""
    largest_logit: float = 6.0
    """and the largest."""
    most_unknowns: int = 1200
    """Systems of more unknowns are not tried: a fit would take minutes."""
    faint: float = 1e-8
    """A head W = 0 with values below this share of the others' is none."""

    def at_most(self, heads: int, dim: int, biases: bool) -> tuple[int, int]:
        """Return how many queries, and tokens, are asked at most."""
        line = 4 * self.line.octaves + 4 + self.line.points
        unknowns = min(heads * dim * (dim + 1 + biases), self.most_unknowns)
        around = (len(self.moved + self.further) + 1) * (int(self.ample * unknowns) + self.spare)
        tokens = line * (max(self.line.copies) + 1) + around * (COPIES + 1)
        return self.lines * (line + around), self.lines * tokens


def separated(
    reduced: ReducedAnswers,
    most: int,
    copies: int,
    biases: bool,
    *,
    rng: np.random.Generator,
    tuning: PoleSearchTuning,
) -> Asking[RecoveredHeads | None]:
    """Read all heads, ``most`` at most, off one line; None where its answers do not tell them.

    Tokens of the line are sent in so many ``copies``.
    """
    tokens, d = CopiedTokens(reduced, biases), reduced.dim
    if reduced.scale == 0:
        nothing = MultiHead(np.zeros((0, d, d)), np.zeros((0, d)), c=reduced.c)
        return RecoveredHeads(nothing, dict.fromkeys("Wvw", np.zeros(0)), reduced.lengths.length)
    line = yield from read_line(tokens, most, copies, rng, tuning.line)
    if line is None or len(line.rate) * d * (d + 1 + biases) > tuning.most_unknowns:
        return None
    search = _PoleSearch(tokens, line, rng, tuning)
    if not len(line.rate):  # no logits
        none = FittedHeads(np.zeros((0, d, d + biases)), np.zeros((0, d)), 0.0)
        return search.recovered(none, line.equations)
    near = yield from search.near()
    if near is None:
        return None
    equations, found = yield from search.everywhere(near)
    if found is None:
        return None
    return search.recovered(found, equations)


@dataclass(frozen=True, slots=True)
class _PoleSearch:
    """The steps that follow a line."""

    tokens: CopiedTokens
    line: HeadLine
    rng: np.random.Generator
    tuning: PoleSearchTuning

    @property
    def length(self) -> float:
        """Norm of the query tokens."""
        return float(np.linalg.norm(self.line.b))

    def near(self) -> Asking[FittedHeads | None]:
        """Find all heads from what is near the line."""
        line, tuning = self.line, self.tuning
        estimates, ties = self.tied()
        for moved in tuning.moved:
            around = yield from self._around(moved)
            equations = line.equations.joined(around)
            tied = fit_heads(equations, estimates, tuning.line.fit, ties=ties)
            found = fit_heads(equations, tied.M, tuning.line.fit)
            if found.missed <= tuning.line.fits:
                return found
        return None

    def tied(self) -> tuple[Array, Array]:
        """Return the C_k (K, d, k) as far as the line tells them, and the ties T (H, K)."""
        line, order = self.line, np.argsort(self.line.rate)
        rate, clusters = line.rate[order], [[int(order[0])]]
        apart = np.diff(rate) > self.tuning.tied * np.minimum(np.abs(rate[1:]), np.abs(rate[:-1]))
        for h, other in zip(order[1:], apart, strict=True):
            if other:
                clusters.append([])
            clusters[-1].append(int(h))
        ties = np.zeros((len(rate), len(clusters)))
        for k, cluster in enumerate(clusters):
            ties[cluster, k] = line.rate[cluster] / line.rate[cluster[0]]
        [q] = self.tokens.coordinates(line.b[None])
        outer = np.outer(line.direction, q / (q @ q))
        first = line.rate[[cluster[0] for cluster in clusters]]
        return first[:, None, None] * outer, ties

    def _logits(self, n: int) -> Array:
        """Draw logits of either sign."""
        sizes = self.rng.uniform(self.tuning.least_logit, self.tuning.largest_logit, n)
        return np.asarray(sizes * self.rng.choice([-1.0, 1.0], n))

    def _count(self) -> int:
        d, H = self.tokens.reduced.dim, len(self.line.rate)
        unknowns = H * d * (d + 1 + self.tokens.biases)
        return int(self.tuning.ample * unknowns) + self.tuning.spare

    def _around(self, moved: float) -> Asking[HeadEquations]:
        """Ask offsets and query tokens that are moved a little from the line's."""
        line, n = self.line, self._count()
        rates = np.abs(line.rate[self.rng.integers(len(line.rate), size=n)])
        along = np.clip(self._logits(n) / rates, -line.far, line.far)
        a = along[:, None] * (line.direction + moved * self._directions(n))
        b = line.b + moved * self.length * self._directions(n)
        # both were moved: a cap that the line keeps to may be passed
        longest = self.tokens.reduced.lengths.room - np.linalg.norm(b, axis=1)
        a *= np.minimum(1.0, longest / np.linalg.norm(a, axis=1))[:, None]
        return (yield from self.tokens.ask(a, b, 1 + np.arange(n) % 2 * (COPIES - 1), "near poles"))

    def everywhere(self, near: FittedHeads) -> Asking[tuple[HeadEquations, FittedHeads | None]]:
        """Ask random offsets and query tokens at moderate logits; fit all."""
        line, tuning = self.line, self.tuning
        equations = yield from self._moderate(near)
        found = fit_heads(equations, near.M, tuning.line.fit)
        for moved in tuning.further:
            if found.missed <= tuning.line.fits:
                return equations, found
            # what was read beside the line is too rough to go so far at once
            around = line.equations.joined((yield from self._around(moved)))
            near = fit_heads(around, near.M, tuning.line.fit)
            found = fit_heads(equations, near.M, tuning.line.fit)
        return equations, found if found.missed <= tuning.line.fits else None

    def _moderate(self, near: FittedHeads) -> Asking[HeadEquations]:
        """Ask random offsets and query tokens at which logits of ``near`` are moderate."""
        line, n = self.line, self._count()
        b = self.length * self._directions(n)
        a = self._directions(n)
        M = near.M[self.rng.integers(len(near.M), size=n)]
        logits = np.einsum("ni,nij,nj->n", a, M, self.tokens.coordinates(b))
        with np.errstate(divide="ignore"):
            along = np.clip(self._logits(n) / logits, -line.far, line.far)
        a *= along[:, None]
        copies = 1 + np.arange(n) % 2 * (COPIES - 1)
        return (yield from self.tokens.ask(a, b, copies, "moderate logits"))

    def _directions(self, n: int) -> Array:
        """Draw n unit vectors."""
        x = self.rng.standard_normal((n, self.tokens.reduced.dim))
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))

    def recovered(self, found: FittedHeads, equations: HeadEquations) -> RecoveredHeads:
        """Put the heads together, with what the answers' precision makes of each."""
        reduced, d = self.tokens.reduced, self.tokens.reduced.dim
        of_M, of_v = (max(1.0, found.missed) * x for x in found.deviations(equations))
        errors = {
            "W": np.linalg.norm(of_M[:, :, :d], axis=(1, 2)),
            "v": np.linalg.norm(of_v, axis=1),
            "w": np.linalg.norm(of_M[:, :, d:], axis=(1, 2)),
        }
        W, w, v = found.M[:, :, :d], found.M[:, :, d:].sum(axis=2), found.v
        rest, error = reduced.s - v.sum(axis=0), reduced.eta * reduced.scale
        error = float(np.hypot(error, np.linalg.norm(errors["v"])))
        faint = max(self.tuning.faint * reduced.scale, self.tuning.line.noises * error)
        if float(np.linalg.norm(rest)) > faint:  # a head W = 0
            W, w = np.concatenate([W, np.zeros((1, d, d))]), np.concatenate([w, np.zeros((1, d))])
            v = np.concatenate([v, rest[None]])
            unseen = self.unseen(rest, equations)
            added = {"W": unseen / self.length, "v": error, "w": unseen * self.tokens.biases}
            errors = {name: np.append(errors[name], added[name]) for name in errors}
        count = "1 head" if len(v) == 1 else f"{len(v)} heads"
        note = (
            f"{count}; those of equal W and w are one, whose v is the sum of theirs "
            "(Proposition 7.1). Told apart by the poles of answers along a line."
        )
        return RecoveredHeads(MultiHead(W, v, w, reduced.c), errors, self.length, notes=(note,))

    def unseen(self, v: Array, equations: HeadEquations) -> float:
        """Return the size of u_h that a head of values v has before its logits are seen."""
        gate = scipy.special.expit(equations.shift)
        seen = self.tuning.line.noises * equations.noise / (gate * (1 - gate))
        with np.errstate(divide="ignore"):
            sizes = seen / np.abs(equations.a @ v) / np.linalg.norm(equations.a, axis=1)
        return float(np.median(sizes))
