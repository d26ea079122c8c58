"""Neurons found along a line or in a ball: the layer that they are, and its parameters' errors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.probes import Array, Flags, Indices

# Number of standard deviations that are certified; 2 to 3 were the most that was seen.
DEVIATIONS = 6.0
# Shares are 0 or 1 if they are off by less. Wrong layers have any share.
WHOLE = 0.1
# Equations of a larger condition determine no sides.
CONDITION = 1e12
# A linear part up to so many times its typical error is none.
ERRORS = 30.0


@dataclass(frozen=True, slots=True)
class Sides:
    """Which neurons are turned around, whether x is added, and what is left."""

    back: Flags
    residual: bool
    linear: tuple[Array, Array] | None
    """R as U (r, d_out) and V (r, d), R = UᵀV; None where it is 0."""
    known: bool
    """Whether the equations determine shares."""
    whole: Flags
    """Of which neurons, and last of the residual, they are 0 or 1."""
    added: Array
    """The ρ of the residual."""
    dropped: float = 0.0
    """Frobenius norm of what was left and is taken for errors."""

    @property
    def sure(self) -> bool:
        """Whether sides and residual are determined."""
        return self.known and bool(np.all(self.whole))


@dataclass(frozen=True, slots=True)
class ResidualPart:
    """What a residual may add to the Jacobian: Σ_i ρ_i E_i, the ρ unknown.

    Attributes
    ----------
    matrix : ndarray, shape (d_out, d)
        E; where ``rows`` is set, E_i is its i-th row alone.
    free : bool
        Whether the ρ may be any numbers, not 0 or 1 alone.
    rows : bool
        Whether each output has a ρ of its own.
    """

    matrix: Array
    free: bool = False
    rows: bool = False

    def along(self, J: Array) -> Array:
        """Return the scalar products of the E_i with a Jacobian."""
        each = np.sum(self.matrix * J, axis=1)
        return each if self.rows else np.array([np.sum(each)])

    def crossed(self, rows: Array, columns: Array) -> Array:
        """Return their products with all b_j a_jᵀ, (m, number of E_i)."""
        each = (rows @ self.matrix.T) * columns
        return each if self.rows else np.sum(each, axis=1, keepdims=True)

    def summed(self, shares: Array) -> Array:
        """Return Σ ρ_i E_i."""
        return np.asarray(np.resize(shares, len(self.matrix))[:, None] * self.matrix)


def sides_of(
    rows: Array,
    columns: Array,
    first: Array,
    error: float,
    *,
    residual: ResidualPart | None = None,
    alone: bool = False,
) -> Sides:
    """Find sides and residual.

    Parameters
    ----------
    rows, columns : ndarray, shapes (m, d) and (m, d_out)
        Neurons as they are ahead of the line.
    first : ndarray, shape (d_out, d)
        The Jacobian where none of them is active.
    error : float
        What it is typically off by, the errors of the neurons included (Frobenius norm).
    residual : ResidualPart, optional
        What the residual may be: x, or nothing where d_out is not d, unless given.
    alone : bool
        Whether there is none.
    """
    (m, d), d_out = rows.shape, columns.shape[1]
    if residual is None and d == d_out and not alone:
        residual = ResidualPart(np.eye(d))
    known, share = _shares(rows, columns, first, residual)
    whole = np.asarray(np.round(np.clip(share, 0.0, 1.0)), dtype=np.float64)
    if residual is not None and residual.free:
        whole[m:] = share[m:]
    near = np.abs(share - whole) < WHOLE
    near = np.append(near[:m], np.all(near[m:]))
    back = whole[:m] > 0
    linear: Array = first + columns[back].T @ rows[back]
    if residual is not None and residual.free and known and np.all(near):
        # with the sides settled, it is told more precisely
        share[m:] = residual.along(linear) / residual.along(residual.matrix)
        whole[m:] = share[m:]
    added = np.array(whole[m:])
    rest = linear if residual is None else linear - residual.summed(added)
    adds, left = bool(np.any(added)), float(np.linalg.norm(rest))
    if left <= ERRORS * error:
        return Sides(back, adds, None, known, near, added, left)
    if residual is not None and residual.free:
        # x may be any share of the rest, of either sign: scales are positive then
        added = np.abs(added)
        rest = linear - residual.summed(added)
    U, s, Vt = np.linalg.svd(rest)
    root = np.sqrt(s[s > ERRORS * error])[:, None]
    parts = root * U.T[: len(root)], root * Vt[: len(root)]
    left = float(np.linalg.norm(s[len(root) :]))
    return Sides(back, adds, parts, known, near, added, left)


def _shares(
    rows: Array, columns: Array, first: Array, residual: ResidualPart | None
) -> tuple[bool, Array]:
    """Solve for all f_j and ρ; tell whether the equations determine them, too."""
    size = np.linalg.norm(rows, axis=1) * np.linalg.norm(columns, axis=1)
    gram = (rows @ rows.T) * (columns @ columns.T)
    right = -np.sum((columns @ first) * rows, axis=1)
    if residual is not None:
        crossed, own = residual.crossed(rows, columns), residual.along(residual.matrix)
        gram = np.block([[gram, -crossed], [-crossed.T, np.diag(own)]])
        right = np.append(right, residual.along(first))
        size = np.append(size, np.sqrt(own))
    gram /= np.outer(size, size)
    unknown = len(size)
    known = unknown <= first.size and (not unknown or np.linalg.cond(gram) < CONDITION)
    if known:
        share = scipy.linalg.solve(gram, right / size, assume_a="pos") / size if unknown else right
    else:
        share = np.linalg.lstsq(gram, right / size, rcond=1e-9)[0] / size
    return known, np.asarray(share)


# Neurons smaller than so many of their errors are none. Those that noise of 1e-7 made had 0.2 to
# 0.5, real ones 10 or more where a line was of any use.
UNCLEAR = 1.0


@dataclass(frozen=True, slots=True)
class FoundNeurons:
    """Neurons b_j relu(a_j·x + β_j) with ‖b_j‖ = 1, all turned ahead of the line, and errors."""

    rows: Array
    """a_j (m, d)."""
    row_error: Array
    """(m,): 2-norms."""
    bias: Array
    bias_error: Array
    columns: Array
    """b_j (m, d_out)."""
    column_error: Array
    """(m,): 2-norms."""
    first: Array
    """(d_out, d): the Jacobian where no neuron is active."""
    first_error: float

    def taken(self, chosen: Flags | Indices) -> FoundNeurons:
        """Return some of the neurons, with no error elsewhere."""
        names = ("rows", "row_error", "bias", "bias_error", "columns", "column_error")
        return replace(
            self, first_error=0.0, **{name: getattr(self, name)[chosen] for name in names}
        )

    def clear_of_errors(self) -> FoundNeurons:
        """Leave out neurons smaller than so many errors: noise looks like a kink here and there."""
        size = np.linalg.norm(self.rows, axis=1)
        real = size > UNCLEAR * np.hypot(self.row_error, size * self.column_error)
        return replace(self.taken(real), first_error=self.first_error)

    def sides(self, residual: ResidualPart | None = None, alone: bool = False) -> Sides:
        """Find the sides of all neurons, and the residual unless they are alone."""
        error, rows, columns = self.jacobian_error, self.rows, self.columns
        return sides_of(rows, columns, self.first, error, residual=residual, alone=alone)

    @property
    def jacobian_error(self) -> float:
        """Error of the Jacobian anywhere (Frobenius norm)."""
        return float(np.hypot(self.first_error, self.slope_error))

    @property
    def slope_error(self) -> float:
        """Error of the sum of all b_j a_jᵀ, taken as independent (Frobenius norm)."""
        size = np.linalg.norm(self.rows, axis=1)
        return float(np.sqrt(np.sum(self.row_error**2 + (size * self.column_error) ** 2)))

    def layer(self, sides: Sides, c: Array) -> FeedForward:
        """Write the layer, each row of A as long as the column of B."""
        turn = np.where(sides.back, -1.0, 1.0)
        scale = self._scale()
        A = (turn / scale)[:, None] * self.rows
        b, B = turn / scale * self.bias, scale[:, None] * self.columns
        if sides.linear is not None:
            left, right = sides.linear
            A, B = np.vstack([A, right, -right]), np.vstack([B, left, -left])
            b = np.append(b, np.zeros(2 * len(right)))
        return FeedForward(A, b, B.T, c, sides.residual)

    def _scale(self) -> Array:
        return np.asarray(np.sqrt(np.linalg.norm(self.rows, axis=1)))

    def errors(self, c_error: float, dropped: float = 0.0) -> dict[str, float]:
        """Return standard deviations of A, b, B and c, and of the function.

        What was dropped of the linear part is certified where it is more than errors explain.
        """
        scale = self._scale()
        row = self.row_error / np.maximum(scale**2, np.finfo(float).tiny)
        A = scale * (1.5 * row + self.column_error)
        B = scale * (self.column_error + row / 2)
        b = self.bias_error / scale + np.abs(self.bias) / scale * row / 2
        constant = self.bias_error**2 + (np.abs(self.bias) * self.column_error) ** 2
        slope = max(self.jacobian_error, dropped / DEVIATIONS)
        return {
            "A": float(np.linalg.norm(A)),
            "b": float(np.linalg.norm(b)),
            "B": float(np.linalg.norm(B)),
            "c": c_error,
            "constant": float(np.sqrt(np.sum(constant) + c_error**2)),
            "slope": slope,
        }


@dataclass(frozen=True, slots=True)
class BallPart:
    """What is known of a layer within a ball: every neuron is turned to be silent at one point.

    F(t) = y₀ + J₀(t − p) + Σ_j b_j relu(a_j·t + β_j),   a_j·p + β_j < 0.

    So what is not known yet adds nothing at p, and answers less the known part are a layer of the
    other neurons. One whose hyperplane misses the ball is silent, or part of y₀ and J₀.
    """

    point: Array
    """p (k,)."""
    value: Array
    """y₀ (d_out,)."""
    found: FoundNeurons
    """Silent at p; ``first`` is J₀."""

    def __call__(self, t: Array) -> Array:
        """Evaluate at tokens (n, k): (n, d_out)."""
        z = np.maximum(t @ self.found.rows.T + self.found.bias, 0.0)
        affine = self.value + (t - self.point) @ self.found.first.T
        return np.asarray(affine + z @ self.found.columns)

    def error_at(self, size: float) -> float:
        """Return what it is typically off by at tokens of a length (2-norm)."""
        found, along = self.found, size / np.sqrt(len(self.point))
        rows = np.linalg.norm(found.rows, axis=1)
        each = (along * found.row_error) ** 2 + found.bias_error**2
        each += (np.hypot(along * rows, found.bias) * found.column_error) ** 2
        return float(np.sqrt(np.sum(each) + (along * found.first_error) ** 2))

    def upto(self, count: int) -> BallPart:
        """Return the first neurons alone."""
        some = self.found.taken(np.arange(count))
        mine = self.found
        some = replace(some, first=mine.first, first_error=mine.first_error)
        return replace(self, found=some)

    def with_neurons(self, found: FoundNeurons) -> BallPart:
        """Add neurons, turned to be silent at p."""
        sign = np.where(found.rows @ self.point + found.bias > 0, -1.0, 1.0)
        mine = self.found
        joined = FoundNeurons(
            rows=np.vstack([mine.rows, sign[:, None] * found.rows]),
            row_error=np.append(mine.row_error, found.row_error),
            bias=np.append(mine.bias, sign * found.bias),
            bias_error=np.append(mine.bias_error, found.bias_error),
            columns=np.vstack([mine.columns, found.columns]),
            column_error=np.append(mine.column_error, found.column_error),
            first=mine.first,
            first_error=mine.first_error,
        )
        return replace(self, found=joined)


def turned_to(point: Array, value: Array, found: FoundNeurons, real: Flags) -> BallPart:
    """Turn neurons to be silent at a point.

    Parameters
    ----------
    point, value : ndarray, shapes (k,) and (d_out,)
        p, and the answer there.
    found : FoundNeurons
        Along a line through p, none of them active where ``first`` was read.
    real : ndarray of bool
        Which are neurons; others count for what bends between there and p alone.
    """
    active = found.rows @ point + found.bias > 0
    first = found.first + found.columns[active].T @ found.rows[active]
    none = found.taken(np.zeros(0, dtype=np.intp))
    start = replace(none, first=first, first_error=found.jacobian_error)
    return BallPart(point, value, start).with_neurons(found.taken(real))
