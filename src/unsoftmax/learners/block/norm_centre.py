"""The norm after attention: what attention's constant adds to its input, and its eps.

G(u) = F(norm₂(u + c)) + constant is asked at any u (`behind_keys`), and c is not known. Where no
neuron of F switches, G = g + J n(u + c), n(v) = v/√(|v|²/d + eps). So

1. Far out, |u| = 2²⁰, n is the direction of u: k + 6 inputs about one direction show g and J of a
   cell of F, and the last five that it is one.
2. The same direction of four cells is asked at shorter and shorter lengths r. What c turns it by
   grows as 1/r, so c is known ever better: to 1e-11 at r = 8, where what is wrong with the known
   attention begins to show.
3. Behind another key (`BehindKeys.with_key`) that is a constant, too, a part of c. From 32√(d eps)
   inwards c is known to 1e-14, and eps to 1e-12, until a neuron switches.

All answers are fitted at once by c and eps, g and J of every cell following by least squares
(variable projection). 4(k + 6) queries, as many again for cells that are none, and about 60.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from unsoftmax.learners.block.behind_keys import COPIES, BehindKeys
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.drawn_models import Layer

# Length at which cells are found: c turns directions by 1e-6 there.
_FAR = 2.0**20
# Answers that do not change with their length are those of a layer after a norm: by this share.
_BOUNDED = 1e-4
# Cells, and most of them: where few neurons are active c hardly shows. A fit may end elsewhere
# then, no length on the way in being in a cell; a c that is off by more than this is not believed.
_CELLS, _MOST_CELLS, _OPEN = 4, 12, 2.0**-10
# Half the width of a cell at first, on a sphere of radius √d, and the least: a smooth F is affine
# within roundoff on smaller ones.
_WIDTH, _LEAST_WIDTH = 0.1, 2.0**-12
# A smooth F: the angle of second differences, and by what share those of half the step differ from
# a quarter. Too much: a hinge at a third of the angle counts as smooth, and is searched twice.
_BEND, _SMOOTHLY = 2.0**-6, 0.02
# Inputs beyond the k that are affinely independent, which tell that a cell is one.
_CHECKED = 4
# Lengths on the way in, while the known attention's errors vary; and then, in units of √(d eps),
# the first, the ratio of each to the one before, and the last.
_LENGTHS, _NEAR, _RATIO, _NEAREST = 2.0 ** np.array([17.0, 12.0, 7.0, 3.0]), 32.0, 2**-0.5, 0.35
# Answers are off by so many of their errors; others, and the last ones of a cell, are beyond it.
_MISSED = 3.0
# Steps of the fit, halvings of one, the share of misses below which it has ended, and eigenvalues
# that are 0.
_STEPS, _HALVINGS, _ENDED, _NO_VALUE = 12, 8, 1e-3, 1e-16
# An eps that is known less well than this is not used.
_UNKNOWN = 0.3


def cost(dim: int) -> Cost:
    """Bound what is asked: cells of which one in three is one, and lengths of each."""
    lengths = len(_LENGTHS) + int(np.log(_NEAREST / _NEAR) / np.log(_RATIO)) + 2
    halvings = int(np.log2(_WIDTH / _LEAST_WIDTH)) + 1
    cells = 3 * _MOST_CELLS + halvings
    asked = 4 + 9 + cells * (dim + 2 + _CHECKED) + 4 * _MOST_CELLS * lengths
    return Cost.of(asked, tokens=COPIES + 1, rounds=1 + cells + 4 * lengths)


@dataclass(frozen=True, slots=True)
class Cell:
    """Answers at inputs at which the same neurons are active.

    Attributes
    ----------
    way : ndarray (k,)
        The direction that it is about.
    u, y : ndarray (n, k), (n, d)
        Inputs in the frame, and answers.
    error : ndarray (n,)
        What answers are off by.
    steepness : float
        What a step of n changes answers by, at most.
    """

    way: Array
    u: Array
    y: Array
    error: Array
    steepness: float

    def joined(self, u: Array, y: Array, error: float) -> Cell:
        """Add an answer."""
        return replace(
            self,
            u=np.vstack([self.u, u]),
            y=np.vstack([self.y, y]),
            error=np.append(self.error, error),
        )

    def upto(self, count: int) -> Cell:
        """Return the first answers alone."""
        return replace(self, u=self.u[:count], y=self.y[:count], error=self.error[:count])


class CentreFit(NamedTuple):
    """c and eps that explain answers best."""

    c: Array
    """(k,)."""
    eps: float
    missed: float
    """Root mean square of what is left, in errors of answers."""
    spread: Array
    """What c and log eps are off by is this (k + 1, k + 1) times normal numbers."""

    @property
    def c_error(self) -> float:
        """What c is off by."""
        return float(np.linalg.norm(self.spread[:-1]))

    @property
    def eps_error(self) -> float:
        """What eps is off by, relatively."""
        return float(np.linalg.norm(self.spread[-1]))


@dataclass(frozen=True, slots=True)
class NormCentre:
    """The norm after attention, and what reaches its inputs.

    Attributes
    ----------
    keys : BehindKeys
        Behind which c is what it is.
    frame : ndarray (d, k)
        Orthonormal columns, the range of what the norm sees.
    fit : CentreFit
    """

    keys: BehindKeys
    frame: Array
    fit: CentreFit

    @property
    def c(self) -> Array:
        """What is added to an input before the norm, (d,)."""
        return np.asarray(self.frame @ self.fit.c)


@dataclass(frozen=True, slots=True)
class CentreSearch:
    """What c and eps are found with."""

    keys: BehindKeys
    others: Sequence[Layer]
    """Attention as other errors of answers would give it."""
    rng: np.random.Generator

    def opened(self) -> Asking[tuple[bool, Array]]:
        """Tell whether the norm is a LayerNorm; return a frame of what it sees, (d, k), too.

        Raises
        ------
        ModelMismatch
            What follows attention is behind no norm.
        NotIdentifiable
            It does not show.
        """
        centred = yield from self._kind()
        d = self.keys.tokens.dim
        drawn = self.rng.standard_normal((d, d - centred))
        frame = np.linalg.qr(np.column_stack([np.ones((d, int(centred))), drawn]))[0]
        return centred, frame[:, int(centred) :]

    def run(self, frame: Array) -> Asking[NormCentre]:
        """Find the norm after attention, whose range is that of the frame.

        Raises
        ------
        ModelMismatch
            What follows attention is no layer of ReLUs after a norm.
        NotIdentifiable
            It shows c in some directions alone.
        """
        d = self.keys.tokens.dim
        k = frame.shape[1]
        start = CentreFit(np.zeros(k), self.keys.eps, 0.0, np.full((k + 1, k + 1), np.inf))
        cells, width, fit = list[Cell](), _WIDTH, start
        while not fit.c_error <= _OPEN:
            if len(cells) == _MOST_CELLS:
                raise Reason.BLOCK_CENTRE_OPEN.error(cells=len(cells), dim=k)
            for _ in range(_CELLS):
                cell, width = yield from self._cell(frame, width)
                cells.append(cell)
            fit = yield from self._inwards(self.keys, frame, list(cells), start, _LENGTHS)
        if not fit.eps_error < _UNKNOWN:
            fit = fit._replace(eps=self.keys.eps)
        keys = self.keys.with_key(frame @ fit.c, self.rng)
        unit = np.sqrt(d * fit.eps)
        steps = np.arange(1 + np.log(_NEAREST / _NEAR) / np.log(_RATIO))
        fit = yield from self._inwards(
            keys, frame, cells, fit, unit * _NEAR * _RATIO**steps, near=True
        )
        return NormCentre(keys, frame, fit)

    def bends_everywhere(self, frame: Array) -> Asking[bool]:
        """Tell whether F is smooth, and no affine function, about one direction far out.

        Second differences along two tangents differ by nothing if it is affine there, and by four
        times less at half the step if it is smooth.
        """
        way, *sides = frame.T[:3]
        angles = _BEND * np.array([1.0, -1.0, 0.5, -0.5])
        n = [np.cos(angles)[:, None] * way + np.sin(angles)[:, None] * side for side in sides]
        u = _FAR * np.vstack([way, *n])
        y, error = yield from self._asked(self.keys, u, "kind of feed-forward part")
        bent = y[1:].reshape(2, 2, 2, -1).sum(axis=2)
        apart = bent[0] - bent[1]
        whole, half = np.linalg.norm(apart, axis=1)
        left = np.linalg.norm(apart[0] - 4 * apart[1])
        return bool(half > KAPPA**3 * error.max() and left < _SMOOTHLY * whole)

    def _asked(self, keys: BehindKeys, u: Array, phase: str) -> Asking[tuple[Array, Array]]:
        """Ask inputs; return answers, and what these are off by."""
        found = yield from keys.asked(u, phase)
        return found.y, UNIT * found.size

    def _unsure(self, keys: BehindKeys, u: Array) -> Array:
        """Return what errors of the known attention make of inputs, (Q,)."""
        return np.asarray(np.linalg.norm(keys.apart(u, self.others), axis=2).max(axis=0))

    def _kind(self) -> Asking[bool]:
        """Tell whether the norm takes the mean off; refuse what grows."""
        d = self.keys.tokens.dim
        x = self.rng.standard_normal(d) * _FAR / np.sqrt(d)
        y, error = yield from self._asked(
            self.keys, np.array([x, 2 * x, x + _FAR / np.sqrt(d), -x]), "norm after attention"
        )
        off = np.linalg.norm(y - y[0], axis=1)
        noise = KAPPA * float(error[1])
        if not off[3] > noise / _BOUNDED:
            raise Reason.BLOCK_NOTHING_FOLLOWS.error()
        if off[1] > _BOUNDED * off[3] + noise:
            raise Reason.GROWS_AFTER_NO_NORM.error()
        return bool(off[2] <= _BOUNDED * off[3] + noise)

    def _cell(self, frame: Array, width: float) -> Asking[tuple[Cell, float]]:
        """Find a cell about a drawn direction; return it, and its width."""
        radius, k = self.keys.tokens.radius, frame.shape[1]
        while width >= _LEAST_WIDTH:
            drawn = self.rng.standard_normal((k, k + _CHECKED))
            axes = np.linalg.qr(drawn[:, :k])[0].T
            way, tangents = axes[0], axes[1:]
            mixed = drawn[:, k:].T @ tangents.T @ tangents
            mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
            n = radius * way + width * np.vstack([np.zeros(k), tangents, mixed])
            u = _FAR * n / np.linalg.norm(n, axis=1, keepdims=True)
            y, error = yield from self._asked(self.keys, u @ frame.T, "cells")
            steps = n[1:] - n[0]
            design = np.column_stack([np.ones(len(n)), (n - n[0]) @ tangents.T / width])
            # on a sphere, to second order
            bent = np.append(0.0, np.full(len(steps), 1.0))
            basis = np.linalg.qr(np.column_stack([design, bent]))[0]
            left = y - basis @ (basis.T @ y)
            if np.linalg.norm(left) <= _MISSED * KAPPA * np.linalg.norm(error):
                steep = np.linalg.norm(y[1:] - y[0], axis=1).max() * np.sqrt(k) / width
                return Cell(way, u, y, error, float(steep)), width
            width /= 2
        raise Reason.BLOCK_NO_CELL.error()

    def _inwards(
        self,
        keys: BehindKeys,
        frame: Array,
        cells: list[Cell],
        fit: CentreFit,
        lengths: Array,
        *,
        near: bool = False,
    ) -> Asking[CentreFit]:
        """Ask the directions of cells at shorter and shorter lengths, while these are in the cell.

        ``cells`` are changed. Near, attention's errors are a part of c.
        """
        live = set(range(len(cells)))
        for length in lengths:
            if not live:
                break
            which = sorted(live)
            ways = np.array([cells[i].way for i in which])
            u = length * ways - fit.c
            y, error = yield from self._asked(keys, u @ frame.T, "centre")
            off = error + (0.0 if near else self._unsure(keys, u @ frame.T))
            for i, own, answer, plain, turned in zip(which, u, y, error, off, strict=True):
                turn = cells[i].steepness * np.sqrt(keys.tokens.dim) / length
                cells[i] = cells[i].joined(own, answer, plain + turn * turned)
            before, fit = fit, fitted(cells, fit)
            live = set(which)
            while fit.missed > _MISSED and live:
                without = {i: self._without(cells, i, before) for i in live}
                worst = min(without, key=lambda i: without[i].missed)
                cells[worst], fit = cells[worst].upto(-1), without[worst]
                live.remove(worst)
        if fit.missed > _MISSED:
            raise Reason.BLOCK_NO_CELL.error()
        return fit

    def _without(self, cells: list[Cell], which: int, fit: CentreFit) -> CentreFit:
        """CentreFit all but the last answer of a cell."""
        some = [cell.upto(-1) if i == which else cell for i, cell in enumerate(cells)]
        return fitted(some, fit)


def fitted(cells: Sequence[Cell], start: CentreFit) -> CentreFit:
    """CentreFit c and eps to cells' answers: Gauss and Newton.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> c, eps, cells = np.array([0.3, -0.2, 0.1]), 1e-3, []
    >>> for way in np.eye(3):
    ...     far = 1e3 * (way + 0.1 * np.eye(3))
    ...     v = np.vstack([far, np.outer([0.1, 0.2, 0.5, 2.0], way)]) + 0.01 * c
    ...     n = v / np.sqrt(np.sum(v * v, axis=1, keepdims=True) / 3 + eps)
    ...     y = n @ rng.standard_normal((3, 3)) + 1
    ...     cells.append(Cell(way, v - c, y, np.full(7, 1e-12), 1.0))
    >>> found = fitted(cells, CentreFit(0.99 * c, 1.1 * eps, 0.0, np.zeros((4, 4))))
    >>> bool(np.allclose(found.c, c, atol=1e-8)), bool(np.isclose(found.eps, eps, rtol=1e-5))
    (True, True)
    """
    at = np.append(start.c, np.log(start.eps))
    left, slope = _misses(cells, at)
    square = float(left @ left)
    for _ in range(_STEPS):
        values, vectors, sizes = _values(slope)
        kept = values > _NO_VALUE * values[-1]
        step = vectors[:, kept] @ ((vectors[:, kept].T @ (slope.T @ left / sizes)) / values[kept])
        step = -step / sizes
        step[-1] = np.clip(step[-1], -1, 1)
        for halved in range(_HALVINGS):
            new = at + step / 4.0**halved
            there = _misses(cells, new)
            if (less := float(there[0] @ there[0])) < square:
                break
        else:
            break
        ended = less > (1 - _ENDED) * square
        at, (left, slope), square = new, there, less
        if ended:
            break
    values, vectors, sizes = _values(slope)
    missed = float(np.sqrt(np.mean(left**2)))
    spread = vectors / np.sqrt(np.maximum(values, TINY)) / sizes[:, None]
    return CentreFit(at[:-1], float(np.exp(at[-1])), missed, spread)


def _values(slope: Array) -> tuple[Array, Array, Array]:
    """Return eigenvalues and vectors of the equations, columns of one size, and their sizes."""
    sizes = np.linalg.norm(slope, axis=0) + TINY
    values, vectors = np.linalg.eigh((slope / sizes).T @ (slope / sizes))
    return values, vectors, sizes


def _misses(cells: Sequence[Cell], at: Array) -> tuple[Array, Array]:
    """Return what g and J of every cell leave of answers, in their errors, and its derivatives."""
    c, eps = at[:-1], float(np.exp(at[-1]))
    left, slopes = [], []
    for cell in cells:
        d = cell.y.shape[1]
        weight = 1 / cell.error[:, None]
        v = cell.u + c
        size = np.sqrt(np.sum(v * v, axis=1, keepdims=True) / d + eps)
        n = v / size
        design = np.column_stack([np.ones(len(n)), n - np.sqrt(d) * cell.way]) * weight
        wide = np.linalg.norm(design, axis=0) + TINY
        U, s, Vt = np.linalg.svd(design / wide, full_matrices=False)
        kept = s > UNIT * len(n) * s[0]
        U, y = U[:, kept], weight * cell.y
        inside = U.T @ y
        left.append((y - U @ inside).ravel())
        J = ((Vt[kept].T / s[kept]) @ inside / wide[:, None])[1:]
        # derivatives of n by c, and by log eps, times J
        by_c = (J[None] - (n[:, :, None] / d) * (n @ J)[:, None]) / size[:, :, None]
        by_eps = -(n @ J) * eps / (2 * size**2)
        moved = weight[:, :, None] * np.concatenate([by_c, by_eps[:, None]], axis=1)
        flat = moved.reshape(len(n), -1)
        flat = flat - U @ (U.T @ flat)
        slopes.append(-flat.reshape(moved.shape).transpose(0, 2, 1).reshape(-1, len(at)))
    return np.concatenate(left), np.vstack(slopes)
