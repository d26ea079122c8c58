"""The values v_h in other cells: (H − 1)·d + 3 queries each, H·d + 3 with a residual.

Far out, at b = t·x, every gate is a step whose side is known: W_h and w_h are. So

    f([b+a; b]) − N(b) = Σ_h γ_h v_h·a,   γ_h = σ(a·u_h),   Σ_h v_h = ∇g

is linear in the v_h; ∇g is the network's, which spares one head. A residual is another head whose
gate is always 0, at the last token. Offsets lie between neighbouring hyperplanes a·u_h = 0 of
random half circles (one at which all gates are alike tells ∇g alone), and are picked by pivoted QR;
others check. Where these disagree a pooled token left the cell, and all is asked again with shorter
offsets.

Unknown are usually (H − 1)·d numbers, as v_H is ∇g less the others. Fewer where the layer is less
than it could be:

- low value rank: v_h = U_h c_h, U_h a basis of the v_h of earlier cells. Σ_h U_h c_h = g leaves
  Σ_h r_h less the rank of [U_1 … U_H];
- value form, B_h = A V_h: v_h = V_hᵀ g in every cell, and nothing is unknown.

In these coordinates x an offset a with gates γ is answered Σ_h γ_h a·v_h = row·x + known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import scipy

from unsoftmax.arrangement.base_points import NetworkHinges, sizes
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head_transformer.first_cell import FLOAT64
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Flags, Indices, Pairs, Round, Singles

# ‖b‖: all gates are steps at offsets of a small share of it.
LENGTH = 1e5
# Offsets are this share of the distance to the nearest hyperplane.
OFFSET_SHARE = 0.4
# Times that this is halved where answers or the recovered layer say that the cell was left.
HALVINGS = 8
# Rows more than unknowns: they show that a pooled token left the cell.
CHECKS = 1
# Rows from which as many as unknowns are picked, per unknown, and so many at least.
CANDIDATES, FEWEST = 3, 256
# Range of one head's logits at offsets where gates are open: they are asked where heads have
# hyperplanes in common, and moderate logits alone tell them apart.
LOGITS = (0.3, 6.0)
# Gates that differ by less are alike.
MIXED = 0.25
# Rows that check are missed by this at most, in units of the neurons' size (∇g is known to 1e-10
# of it, and the system amplifies that).
AGREES = 1e-7
# Cells whose rows that check are missed by so many times the median were left by a little, which
# AGREES lets pass: a trained layer has 15 of 100, and they are a thousand times off. They are
# asked again. Errors alone, of cells of all widths, make 10 times.
OUTLIER = 30.0
# Cells whose median says what is usual.
ENOUGH = 8
# Times that offsets are halved for it: they become too short for gates to be steps. Cells that
# are off after that say nothing of what is unknown in the others.
SETTLINGS = 3
# A system whose last pivot is below this share of its first does not tell the values.
SINGULAR = 1e-9
# Errors of answers, of N and of ∇g are taken for so many times the root mean square of what rows
# that check are missed by, and the answers' own.
MISSES = 3.0


@dataclass(frozen=True, slots=True)
class CellPoint:
    """A base point b, the neurons that are active there, and how long offsets are."""

    b: Array
    active: Flags
    radius: float
    u: Array
    """u_h of the heads (H, d)."""
    residual: bool
    """Whether the last token is one more input of the network."""

    def gates(self, a: Array) -> Array:
        """Return γ of all heads at unit offsets (n, d), and that of the residual, 0, behind."""
        gates = scipy.special.expit(self.radius * (a @ self.u.T))
        return np.asarray(np.pad(gates, ((0, 0), (0, int(self.residual)))))


@dataclass(frozen=True, slots=True)
class CellSystem:
    """One cell's rows: unit offsets and their gates."""

    at: CellPoint
    unknown: ValueCoordinates
    a: Array
    """(n, d) unit offsets; the last ones check."""
    gates: Array
    """γ (n, H), of n inputs of the network each."""

    @classmethod
    def chosen(
        cls, at: CellPoint, unknown: ValueCoordinates, checks: int, reader: CellReader
    ) -> CellSystem:
        """Choose the rows."""
        rng = reader.rng
        count = max(CANDIDATES * unknown.count, FEWEST)
        a = _between(at.u, count, rng)
        if reader.moderate:
            a = np.concatenate([a, _opening(at, count, rng)])
        gates = at.gates(a)
        # where all gates are alike ∇g alone is told
        mixed = np.ptp(gates, axis=1) > MIXED
        a, gates = a[mixed], gates[mixed]
        picked = _picked(unknown.rows(gates, a), checks)
        return cls(at, unknown, a[picked], gates[picked])

    def solved(self, y: Array, N: float, g: Array) -> SolvedCell:
        """Solve for v_h from the rows' answers y (n,), N and the gradient g."""
        unknown, wanted = self.unknown, self.unknown.count
        right = (y - N) / self.at.radius - unknown.known(self.gates, self.a, g)
        rows = unknown.rows(self.gates, self.a)
        x, shares, size = np.zeros(0), rows[wanted:], 1.0
        if wanted:
            inverse = np.asarray(np.linalg.inv(rows[:wanted]), dtype=np.float64)
            x, shares = inverse @ right[:wanted], shares @ inverse
            size = float(np.linalg.norm(inverse))
        missed = np.abs(rows[wanted:] @ x - right[wanted:])
        # what a row misses is its own error and its share of those of the others
        each = missed / np.sqrt(1 + np.sum(shares**2, axis=1))
        return SolvedCell(
            self,
            unknown.values(x, g),
            float(np.max(missed, initial=0.0)),
            float(np.max(each, initial=0.0)),
            size,
        )

    def pooled(self) -> Array:
        """Return what each head pools at every row, (n, H, d)."""
        at = self.at
        return np.asarray(at.b + at.radius * self.gates[:, :, None] * self.a[:, None, :])


@dataclass(frozen=True, slots=True)
class SolvedCell:
    """One cell's values v (H, d), and how far they may be trusted."""

    system: CellSystem
    v: Array
    missed: float
    """What rows that check are missed by."""
    row: float
    """The same as the error of one row."""
    inverse: float
    """‖inverse‖ of the system."""


@dataclass(frozen=True, slots=True)
class CellReader:
    """Reads values around base points, W and w being known."""

    hinges: NetworkHinges
    heads: MultiHead
    residual: bool
    moderate: bool
    """Whether gates may be open: where heads have hyperplanes in common."""
    points: Array
    """Base points (C, d)."""
    rng: np.random.Generator
    cells: dict[int, SolvedCell] = field(default_factory=dict)
    """What was read, by the number of the base point."""
    shares: dict[int, float] = field(default_factory=dict)
    """Shares of the usual lengths of offsets that this took."""

    @property
    def every(self) -> ValueCoordinates:
        """Coordinates in which nothing is known of the values but their sum."""
        return ValueCoordinates.every(self.heads.H + self.residual, self.heads.dim)

    # -- what was read, cells in their order

    @property
    def v(self) -> Array:
        """All v_h (C, H, d)."""
        return np.array([one.v for one in self._ordered])

    @property
    def active(self) -> Flags:
        """Active neurons (C, K)."""
        return np.array([one.system.at.active for one in self._ordered])

    @property
    def weights(self) -> Array:
        """Return 1 for cells missed by no more than the median one, less for others, (C,)."""
        usual = np.median(self._rows)
        below = usual / np.maximum(self._rows, usual) if usual > 0 else np.ones(len(self.cells))
        return np.asarray(below)

    @property
    def usual(self) -> Flags:
        """Tell which cells are missed by about as much as the others, (C,)."""
        if len(self.cells) < ENOUGH:
            return np.full(len(self.cells), True)
        usual = np.maximum(np.median(self._rows), self._rounding)
        return np.asarray(self._rows <= OUTLIER * usual)

    @property
    def error(self) -> Array:
        """Estimate the errors of all v_h of every cell, (C,)."""
        off = MISSES * float(np.sqrt(np.mean(self._rows**2)))
        inverse = np.array([one.inverse for one in self._ordered])
        return np.asarray((off + self._rounding) * inverse)

    @property
    def _ordered(self) -> list[SolvedCell]:
        return [self.cells[k] for k in sorted(self.cells)]

    @property
    def _rows(self) -> Array:
        return np.array([one.row for one in self._ordered])

    @property
    def _rounding(self) -> Array:
        """What rounding of answers leaves of a row of every cell, (C,)."""
        at = [one.system.at for one in self._ordered]
        far = np.array([float(np.linalg.norm(one.b)) / one.radius for one in at])
        return np.asarray(FLOAT64 * self.hinges.steepness * far)

    # -- reading

    def read(
        self, wanted: Iterable[int], unknown: ValueCoordinates, checks: int, share: float = 1.0
    ) -> Asking[None]:
        """Read the v_h around some base points, with offsets a ``share`` as long as before.

        Shorter ones follow where rows that check disagree; and for all cells that are missed by far
        more than the others, as long as that helps.

        Raises
        ------
        CoincidentJumps
            Rows that check disagree however short offsets are.
        """
        wrong = AGREES * self.hinges.steepness
        left = list(wanted)
        for k in left:
            self.cells.pop(k, None)
        for _ in range(HALVINGS):
            for k in left:
                self.shares[k] = share * self.shares.get(k, 1.0)
            systems = self._systems(left, unknown, checks)
            parted = _parted(systems, (yield _round_of(systems)))
            for k, one, N, y in zip(left, systems, *parted, strict=True):
                found = one.solved(y, N, self.hinges.gradients(one.at.active[None])[0])
                if k not in self.cells or found.missed <= wrong:
                    self.cells[k] = found
            order, share = np.array(sorted(self.cells)), 0.5
            again = order[~self.usual].tolist()
            left = [k for k in left if self.cells[k].missed > wrong]
            left += [k for k in again if k not in left and self.shares[k] > 0.5**SETTLINGS]
            if not left:
                return
        if any(self.cells[k].missed > wrong for k in left):
            raise CoincidentJumps

    def _systems(
        self, which: list[int], unknown: ValueCoordinates, checks: int
    ) -> list[CellSystem]:
        hinges, points = self.hinges, self.points[which]
        u, active = self.heads.scores_of(points), hinges.active(points)
        shares = np.array([self.shares[k] for k in which])
        radius = OFFSET_SHARE * shares * np.minimum(hinges.room(points), LENGTH)
        each = zip(points, active, radius.tolist(), u, strict=True)
        cells = [CellPoint(*at, self.residual) for at in each]
        return [CellSystem.chosen(at, unknown, checks, self) for at in cells]


def _round_of(systems: list[CellSystem]) -> Round:
    """Ask every cell's base point and rows."""
    points = np.array([one.at.b for one in systems])
    asked: Round = [Singles(points, phase="base points", purpose="data")]
    rows = _rows_of(systems)
    return [*asked, rows] if len(rows) else asked


def _parted(systems: list[CellSystem], answers: list[Array]) -> tuple[list[float], list[Array]]:
    """Return N and the rows' answers of every cell."""
    rows = answers[1] if len(answers) > 1 else np.zeros(0)
    ends = np.cumsum([len(one.a) for one in systems])[:-1]
    return [float(N) for N in answers[0]], np.split(rows, ends)


def _rows_of(systems: list[CellSystem]) -> Pairs:
    """Ask all rows of all cells."""
    each = [len(one.a) for one in systems]
    a = np.concatenate([one.a for one in systems])
    b = np.array([one.at.b for one in systems])
    cell = np.repeat(np.arange(len(systems)), each)
    scale = np.repeat([one.at.radius for one in systems], each)
    n = np.arange(len(a))
    return Pairs(a, b, n, cell, scale, np.ones(len(n)), phase="values in cells", purpose="data")


def _between(u: Array, count: int, rng: np.random.Generator) -> Array:
    """Draw unit offsets between neighbouring hyperplanes a·u_h = 0 of random half circles."""
    H, d = u.shape
    pq = rng.standard_normal((count, 2, d))
    p, q = pq[:, 0], pq[:, 1]
    angles = np.sort(np.mod(np.arctan2(-(p @ u.T), q @ u.T), np.pi), axis=1)
    n = np.arange(count)
    gap: Indices = rng.integers(0, H, count)
    ends = np.concatenate([angles, angles[:, :1] + np.pi], axis=1)
    middle = (ends[n, gap] + ends[n, gap + 1]) / 2
    a = np.cos(middle)[:, None] * p + np.sin(middle)[:, None] * q
    return np.asarray(a / np.linalg.norm(a, axis=1, keepdims=True))


def _opening(at: CellPoint, count: int, rng: np.random.Generator) -> Array:
    """Draw offsets, in units of the radius, at which one head's logit is moderate."""
    a = rng.standard_normal((count, len(at.b)))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    u = at.u[rng.integers(len(at.u), size=count)]
    wanted = rng.uniform(*LOGITS, count)
    with np.errstate(divide="ignore"):
        share = wanted / (at.radius * np.abs(np.sum(a * u, axis=1)))
    return np.asarray(np.minimum(share, 1.0)[:, None] * a)


def _picked(rows: Array, checks: int) -> Indices:
    """Pick as many rows (n, k) as unknowns, and those that check them.

    A row checks best that all of the picked ones have a share in: any of them that was answered
    from another cell shows.
    """
    wanted = rows.shape[1]
    if len(rows) < wanted + checks:
        raise CoincidentJumps
    if not wanted:
        return np.arange(checks)
    R, pivots = scipy.linalg.qr(rows.T, mode="r", pivoting=True)
    diagonal = sizes(np.asarray(R, dtype=np.float64), wanted)
    if np.min(diagonal) <= SINGULAR * np.max(diagonal):
        raise CoincidentJumps
    # rows = shares @ picked, in the order of the pivots
    shares = scipy.linalg.solve_triangular(R[:wanted, :wanted], R[:wanted, wanted:])
    least = np.min(np.abs(shares), axis=0, initial=np.inf)
    told = wanted + np.argsort(-least, kind="stable")[:checks]
    return np.concatenate([pivots[:wanted], pivots[told]])


# Values of earlier cells span no dimension more where singular values are below this share of the
# largest (values are known to 1e-10 of it).
DEPENDENT = 1e-7
# A direction that all heads' spaces together reach by less than this share of the others is read
# in every cell: the gradient tells it with its errors over this share. A trained layer's weakest
# is 4e-4: its function came out to 6e-5 of its size without, to 4e-7 with this.
FLAT = 3e-3
# So many more cells than dimensions have to agree.
SPARE_CELLS = 2
# Where there are such directions, spaces are made of so many times as many cells as they have
# dimensions: the weakest direction of as few as span them is a hundred times coarser.
AMPLE = 1.5
# Spaces are used where they leave at most this share of the unknowns.
SPACE_GAIN = 0.8
# While spaces may still close cells are asked in groups of those known over this: few rounds, and
# at most an eighth more queries.
SPACE_STEPS = 8
# Rows that check, in each cell, that nothing is left beside the spaces.
SPACE_CHECKS = 2


@dataclass(frozen=True, slots=True)
class ValueCoordinates:
    """How the values of a cell are written: v_h = P_h g + Z_h x, g being ∇g there, x unknown."""

    P: Array
    """(H, d, d)."""
    Z: Array
    """(H, d, number of unknowns)."""

    @classmethod
    def every(cls, heads: int, dim: int) -> ValueCoordinates:
        """Nothing is known but that the v_h add up to ∇g: all but the last are unknown."""
        unit, unknown = np.eye(dim), heads - 1
        Z = np.eye(unknown * dim).reshape(unknown, dim, unknown * dim)
        P = np.zeros((heads, dim, dim))
        P[-1] = unit
        return cls(P, np.concatenate([Z, -np.tile(unit, unknown)[None]]))

    @property
    def count(self) -> int:
        """Number of unknowns."""
        return int(self.Z.shape[2])

    def rows(self, gates: Array, a: Array) -> Array:
        """Return the rows (n, count) of offsets a (n, d) at gates (n, H)."""
        rows = np.zeros((len(a), self.count))
        for gate, Z in zip(gates.T, self.Z, strict=True):
            rows += gate[:, None] * (a @ Z)
        return rows

    def known(self, gates: Array, a: Array, g: Array) -> Array:
        """Return what is known of their answers (n,), the gradient being g."""
        return np.asarray(np.sum(gates * (a @ (self.P @ g).T), axis=1))

    def values(self, x: Array, g: Array) -> Array:
        """Return v (H, d)."""
        return np.asarray(self.P @ g + self.Z @ x)


def fewer_unknowns(v: Array, g: Array, weight: Array) -> ValueCoordinates | None:
    """Return coordinates with fewer unknowns that all cells so far bear out, None without any.

    v (C, H, d) are the values of C cells, g (C, d) the network's gradients there. ``weight`` (C,)
    is 1 of cells that are as exact as usual, less of others.
    """
    C, H, d = v.shape
    if SPARE_CELLS + 1 > C:
        return None
    size = np.linalg.svd(g, compute_uv=False)
    rank = int(np.sum(size > DEPENDENT * size[0]))
    if rank + SPARE_CELLS <= C:
        V = np.array([np.linalg.lstsq(g, v[:, h], rcond=DEPENDENT)[0] for h in range(H)])
        missed = np.abs(np.einsum("cd,hde->che", g, V) - v).max()
        if rank == d and missed <= DEPENDENT * np.abs(v).max():
            return ValueCoordinates(V.transpose(0, 2, 1), np.zeros((H, d, 0)))
    bases = list[Array]()
    for h in range(H):
        _, s, right = np.linalg.svd(weight[:, None] * v[:, h], full_matrices=False)
        r = int(np.sum(s > DEPENDENT * s[0]))
        if r + SPARE_CELLS - 1 > C:
            return None
        bases.append(right[:r].T)
    # v_h = U_h c_h, and the c_h of all heads are a solution of [U_1 … U_H] c = g
    every = np.concatenate(bases, axis=1)
    _, sizes_of_every, right = np.linalg.svd(every)
    rank = int(np.sum(sizes_of_every > FLAT * sizes_of_every[0]))
    widest = max(basis.shape[1] for basis in bases)
    if rank < len(sizes_of_every) and AMPLE * widest + SPARE_CELLS - 1 > C:
        return None
    if every.shape[1] - rank > SPACE_GAIN * (H - 1) * d:
        return None
    solved = np.asarray(np.linalg.pinv(every, rcond=FLAT), dtype=np.float64)
    ends = np.cumsum([basis.shape[1] for basis in bases])[:-1]
    parts = zip(bases, np.split(solved, ends), np.split(right[rank:].T, ends), strict=True)
    P, Z = zip(*((U @ of_g, U @ free) for U, of_g, free in parts), strict=True)
    return ValueCoordinates(np.array(P), np.array(Z))
