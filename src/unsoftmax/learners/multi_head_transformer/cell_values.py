"""The values v_h in other cells: (H − 1)·d + 3 queries each.

Far out, at b = t·x, every gate is a step whose side is known: W_h and w_h are. So

    f([b+a; b]) − N(b) = Σ_h γ_h v_h·a,   γ_h = σ(a·u_h),   Σ_h v_h = ∇g

is linear in the v_h; ∇g is the network's, which spares one head. Offsets lie between neighbouring
hyperplanes a·u_h = 0 of random half circles (one at which all gates are alike tells ∇g alone), and
are picked by pivoted QR; others check. Where these disagree a pooled token left the cell, and all
is asked again with shorter offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.arrangement.base_points import NetworkHinges, sizes
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Flags, Indices, Pairs, Round, Singles


@dataclass(frozen=True, slots=True)
class CellValueTuning:
    """What is asked in a cell, and when it is believed."""

    length: float = 1e5
    """‖b‖: all gates are steps at offsets of a small share of it."""
    share: float = 0.4
    """Offsets are this share of the distance to the nearest hyperplane."""
    halvings: int = 8
    """Times that this is halved where answers or the recovered layer say that the cell was left."""
    checks: int = 1
    """Rows more than unknowns: they show that a pooled token left the cell."""
    candidates: int = 3
    few: int = 256
    """Rows from which as many as unknowns are picked, per unknown, and so many at least."""
    agrees: float = 1e-7
    """Rows that check are missed by this at most, in units of the neurons' size (∇g is known to
    1e-10 of it, and the system amplifies that)."""
    singular: float = 1e-9
    """A system whose last pivot is below this share of its first does not tell the values."""
    float64: float = 4e-16
    """Error of an answer, relative to what its terms add up to."""
    misses: float = 3.0
    """Errors of answers, of N and of ∇g are taken for so many times the root mean square of what
    rows that check are missed by, and the answers' own."""


@dataclass(frozen=True, slots=True)
class CellSystem:
    """One cell's rows: unit offsets, their gates, and which neurons are active."""

    b: Array
    active: Flags
    radius: float
    a: Array
    """(n, d) unit offsets; the last ones check."""
    gates: Array
    """γ (n, H)."""

    @classmethod
    def chosen(
        cls,
        b: Array,
        active: Flags,
        radius: float,
        u: Array,
        rng: np.random.Generator,
        tuning: CellValueTuning,
    ) -> CellSystem:
        """Choose the rows of heads whose vectors at b are u (H, d)."""
        (H, d) = u.shape
        wanted = (H - 1) * d
        a = _between(u, _count(wanted, tuning), rng) if wanted else u[:0]
        gates = scipy.special.expit(radius * (a @ u.T))
        if wanted:
            picked = _picked(_rows(gates, a), tuning)
            a, gates = a[picked], gates[picked]
        return cls(b, active, radius, a, gates)

    def solved(self, y: Array, N: float, g: Array) -> tuple[Array, float, float]:
        """Return v (H, d), how far rows that check are missed, and ‖inverse‖ of the system."""
        H, d = self.gates.shape[1], len(g)
        if H == 1:
            return g[None], 0.0, 0.0
        wanted = (H - 1) * d
        right = (y - N) / self.radius - self.gates[:, -1] * (self.a @ g)
        rows = _rows(self.gates, self.a)
        first = rows[:wanted]
        x = np.linalg.solve(first, right[:wanted])
        missed = float(np.max(np.abs(rows[wanted:] @ x - right[wanted:]), initial=0.0))
        inverse = float(np.linalg.norm(np.linalg.inv(first)))
        v = x.reshape(H - 1, d)
        return np.concatenate([v, (g - v.sum(axis=0))[None]]), missed, inverse

    def pooled(self) -> Array:
        """Return what each head pools at every row, (n, H, d)."""
        return np.asarray(self.b + self.radius * self.gates[:, :, None] * self.a[:, None, :])


@dataclass(frozen=True, slots=True)
class CellValues:
    """The v_h (C, H, d) of cells, their active neurons (C, K) and errors (C,)."""

    v: Array
    active: Flags
    error: Array
    systems: list[CellSystem]

    def with_cells(self, index: Indices, other: CellValues) -> CellValues:
        """Replace some cells."""
        v, error, systems = self.v.copy(), self.error.copy(), list(self.systems)
        v[index], error[index] = other.v, other.error
        for k, system in zip(index.tolist(), other.systems, strict=True):
            systems[k] = system
        return CellValues(v, self.active, error, systems)


def read_cell_values(
    hinges: NetworkHinges,
    heads: MultiHead,
    directions: Array,
    shares: Array,
    rng: np.random.Generator,
    tuning: CellValueTuning,
) -> Asking[tuple[CellValues, Array]]:
    """Read the v_h in the cones of ``directions`` (C, d); return them, and the shares they took.

    ``shares`` (C,) multiply the usual lengths of offsets.
    """
    shares = shares.copy()
    left = np.arange(len(directions))
    found: dict[int, tuple[CellSystem, Array, float, float]] = {}
    for _ in range(tuning.halvings):
        systems = _systems(hinges, heads, directions[left], shares[left], rng, tuning)
        answers = yield _round_of(systems)
        again: list[int] = []
        for k, one, N, y in zip(left.tolist(), systems, *_parted(systems, answers), strict=True):
            g = hinges.gradients(one.active[None])[0]
            v, missed, inverse = one.solved(y, N, g)
            if missed > tuning.agrees * hinges.steepness:
                again.append(k)
            else:
                found[k] = one, v, missed, inverse
        left = np.array(again, dtype=np.intp)
        if not len(left):
            return _together([found[k] for k in range(len(directions))], hinges, tuning), shares
        shares[left] /= 2
    raise CoincidentJumps


def _together(
    cells: list[tuple[CellSystem, Array, float, float]],
    hinges: NetworkHinges,
    tuning: CellValueTuning,
) -> CellValues:
    """Put cells together: each one's system, v, what checks are missed by, and ‖inverse‖."""
    missed = np.array([missed for _, _, missed, _ in cells])
    off = tuning.misses * float(np.sqrt(np.mean(missed**2))) if len(missed) else 0.0
    errors = []
    for one, _, _, inverse in cells:
        own = tuning.float64 * hinges.steepness * float(np.linalg.norm(one.b)) / one.radius
        errors.append((off + own) * inverse)
    return CellValues(
        np.array([v for _, v, _, _ in cells]),
        np.array([one.active for one, _, _, _ in cells]),
        np.array(errors),
        [one for one, _, _, _ in cells],
    )


def _round_of(systems: list[CellSystem]) -> Round:
    """Ask every cell's base point and rows."""
    points = np.array([one.b for one in systems])
    asked: Round = [Singles(points, phase="base points", purpose="data")]
    rows = _rows_of(systems)
    return [*asked, rows] if len(rows) else asked


def _parted(systems: list[CellSystem], answers: list[Array]) -> tuple[list[float], list[Array]]:
    """Return N and the rows' answers of every cell."""
    rows = answers[1] if len(answers) > 1 else np.zeros(0)
    ends = np.cumsum([len(one.a) for one in systems])[:-1]
    return [float(N) for N in answers[0]], np.split(rows, ends)


def _systems(
    hinges: NetworkHinges,
    heads: MultiHead,
    directions: Array,
    shares: Array,
    rng: np.random.Generator,
    tuning: CellValueTuning,
) -> list[CellSystem]:
    b = tuning.length * directions
    u = heads.scores_of(b)
    radius = tuning.share * shares * np.minimum(hinges.room(b), tuning.length)
    active = hinges.active(b)
    return [
        CellSystem.chosen(b[k], active[k], float(radius[k]), u[k], rng, tuning)
        for k in range(len(b))
    ]


def _rows_of(systems: list[CellSystem]) -> Pairs:
    """Ask all rows of all cells."""
    each = [len(one.a) for one in systems]
    a = np.concatenate([one.a for one in systems])
    b = np.array([one.b for one in systems])
    cell = np.repeat(np.arange(len(systems)), each)
    scale = np.repeat([one.radius for one in systems], each)
    n = np.arange(len(a))
    return Pairs(a, b, n, cell, scale, np.ones(len(n)), phase="values in cells", purpose="data")


def _rows(gates: Array, a: Array) -> Array:
    """Return the rows of all heads but the last, whose values are ∇g less the others."""
    differences = gates[:, :-1] - gates[:, -1:]
    return np.asarray((differences[:, :, None] * a[:, None, :]).reshape(len(a), -1))


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


def _count(wanted: int, tuning: CellValueTuning) -> int:
    """Return how many rows are drawn for so many unknowns."""
    return max(tuning.candidates * wanted, tuning.few)


def _picked(rows: Array, tuning: CellValueTuning) -> Indices:
    """Pick as many rows (n, k) as unknowns, and those that check them.

    A row checks best that all of the picked ones have a share in: any of them that was answered
    from another cell shows.
    """
    wanted = rows.shape[1]
    R, pivots = scipy.linalg.qr(rows.T, mode="r", pivoting=True)
    diagonal = sizes(np.asarray(R, dtype=np.float64), wanted)
    if np.min(diagonal) <= tuning.singular * np.max(diagonal):
        raise CoincidentJumps
    # rows = shares @ picked, in the order of the pivots
    shares = scipy.linalg.solve_triangular(R[:wanted, :wanted], R[:wanted, wanted:])
    least = np.min(np.abs(shares), axis=0, initial=np.inf)
    checks = wanted + np.argsort(-least, kind="stable")[: tuning.checks]
    return np.concatenate([pivots[:wanted], pivots[checks]])
