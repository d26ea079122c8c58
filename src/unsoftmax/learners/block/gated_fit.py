"""Soft gates times vectors, fitted to answers: variable projection.

Every answer is a sum over heads of σ(l_h + shift_h) (V_h f + known_h), l_h = θ_h·design linear in
what is asked. Vectors V_h follow from gates by least squares, so θ alone is looked for, by damped
Gauss–Newton steps in what is left of answers.

Where the range of every head's map is known, vectors are U_h c_h. Fewer answers determine them: as
many as one head has unknowns, where ranges are independent, however many heads there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy

from unsoftmax.measure.token_map import AnswerNoise, with_errors
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices

# Singular values, and what a fit leaves, below so many times the noise are noise.
NOISE = 30.0
# Steps of a fit, and damping relative to the equations' diagonal: what it is at first, after a step
# that gained and one that did not; below the last it would not keep equations from singular.
_STEPS, _TRIED, _DAMPED, _EASED, _TIGHTENED, _LEAST_DAMPED = 80, 12, 1e-3, 0.1, 5.0, 1e-13
# Steps are no longer: a gate changes from 0.1 to 0.9 over 4.4. Steps below the second are rounding.
_LONGEST, _STILL = 2.0, 1e-13
# Normal equations of vectors within ranges are kept from singular, and solved so often, each time
# for what is left: their condition is the square of that of the vectors.
_RIDGE, _REFINED = 1e-12, 3


class Gated(NamedTuple):
    """Answers y_t = Σ_h σ(design_t·θ_h + shift_th) (Σ_p features_tp v_hp + known_th)."""

    design: Array
    """(T, q)."""
    shift: Array
    """(T, H)."""
    features: Array
    """(T, p)."""
    known: Array
    """(T, H, m)."""
    y: Array
    """(T, m)."""

    def left(self, theta: Array) -> tuple[Array, Array, Array, Array]:
        """Return gates (T, H), their columns (T, H p), vectors (H p, m) and what is left."""
        gates: Array = scipy.special.expit(self.design @ theta.T + self.shift)
        columns = (gates[:, :, None] * self.features[:, None]).reshape(len(gates), -1)
        y = self.y - np.einsum("th,thm->tm", gates, self.known)
        vectors = np.linalg.lstsq(columns, y, rcond=None)[0]
        return gates, columns, vectors, y - columns @ vectors

    def equations(
        self, gates: Array, columns: Array, vectors: Array, left: Array
    ) -> tuple[Array, Array]:
        """Return the normal equations of a step of θ, vectors following, and their right side."""
        H, p = gates.shape[1], self.features.shape[1]
        whole = np.einsum("tp,hpm->thm", self.features, vectors.reshape(H, p, -1)) + self.known
        bent = ((gates * (1 - gates))[:, :, None] * whole).swapaxes(0, 1)
        each = (bent[:, None] * self.design.T[:, :, None]).reshape(-1, *self.y.shape)
        basis = np.linalg.qr(columns)[0]
        slopes = (each - basis @ (basis.T @ each)).reshape(len(each), -1)
        return slopes @ slopes.T, slopes @ left.ravel()

    def short(self) -> tuple[Gated, Array]:
        """Return the same in the span of the answers, where that is smaller, and its basis.

        Without known parts all vectors are in it.
        """
        if len(self.y) >= self.y.shape[1] or np.any(self.known):
            return self, np.eye(self.y.shape[1])
        basis, y = np.linalg.qr(self.y.T)
        return self._replace(y=y.T, known=self.known[:, :, : len(y)]), basis


class Ranges(NamedTuple):
    """Spaces that what each head makes of tokens is in."""

    columns: Array
    """(m, R): orthonormal columns of all heads, head by head."""
    head: Indices
    """(R,): whose each column is."""
    products: Array
    """(R, R), of the columns."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of each head."""
        return tuple(map(int, np.bincount(self.head)))

    @classmethod
    def of(cls, vectors: Array, ranks: tuple[int, ...]) -> Ranges:
        """Return the leading directions of vectors (J, H, m), so many of each head."""
        each = vectors.swapaxes(0, 1)
        rows = [
            np.linalg.svd(own, full_matrices=False)[2][:rank]
            for own, rank in zip(each, ranks, strict=True)
        ]
        columns = np.vstack(rows).T
        return cls(columns, np.repeat(np.arange(len(ranks)), ranks), columns.T @ columns)


class WithinRanges(NamedTuple):
    """Answers y_t = Σ_h σ(design_t·θ_h + shift_t) U_h c_h, U_h columns of the range of head h."""

    design: Array
    """(T, q)."""
    shift: Array
    """(T,)."""
    ranges: Ranges
    y: Array
    """(T, m)."""

    def left(self, theta: Array) -> tuple[Array, Any, Array, Array]:
        """Return gates (T, H), the factored equations of all c, these (R,), and what is left."""
        U, head, products = self.ranges
        gates: Array = scipy.special.expit(self.design @ theta.T + self.shift[:, None])
        each = gates[:, head]
        equations = products * (each.T @ each)
        equations[np.diag_indices_from(equations)] *= 1 + _RIDGE
        factored = scipy.linalg.cho_factor(equations)
        c, left = np.zeros(len(head)), self.y
        for _ in range(_REFINED):
            c = c + scipy.linalg.cho_solve(factored, np.sum(each * (left @ U), axis=0))
            left = self.y - (each * c) @ U.T
        return gates, factored, c, left

    def equations(self, gates: Array, factored: Any, c: Array, left: Array) -> tuple[Array, Array]:
        """Return the normal equations of a step of θ, all c following, and their right side."""
        (U, head, products), (T, H) = self.ranges, gates.shape
        own = c[:, None] * (head[:, None] == np.arange(H))
        bent = (gates * (1 - gates))[:, :, None] * self.design[:, None]
        bent, whose = bent.reshape(T, -1), np.repeat(np.arange(H), self.design.shape[1])
        along = products @ own
        both = (bent.T @ bent) * (own.T @ along)[np.ix_(whose, whose)]
        mixed = (gates.T @ bent)[head] * along[:, whose]
        right = np.sum(bent * (left @ U @ own)[:, whose], axis=0)
        return both - mixed.T @ scipy.linalg.cho_solve(factored, mixed), right

    def fitted(self, theta: Array) -> GatedFit:
        """Fit gates, from θ (H, q) on, and all c.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> design, shift = rng.standard_normal((5, 2)), rng.standard_normal(5)
        >>> ranges = Ranges.of(rng.standard_normal((4, 3, 12)), (4, 4, 4))
        >>> theta, c = rng.standard_normal((3, 2)), rng.standard_normal(12)
        >>> gates = scipy.special.expit(design @ theta.T + shift[:, None])
        >>> y = (gates[:, ranges.head] * c) @ ranges.columns.T
        >>> found = WithinRanges(design, shift, ranges, y).fitted(theta + 0.2)
        >>> bool(np.allclose(found.theta, theta))
        True
        """
        theta, (*_, c, left) = _descended(self, theta)
        own = self.ranges.head == np.arange(len(theta))[:, None]
        vectors = (own * c) @ self.ranges.columns.T
        return GatedFit(theta, vectors[:, None], float(np.linalg.norm(left)))


class GatedFit(NamedTuple):
    """Where a fit ended."""

    theta: Array
    """(H, q)."""
    vectors: Array
    """(H, p, m)."""
    missed: float
    """Norm of what is left of the answers."""


def fitted(answers: Gated, theta: Array) -> GatedFit:
    """Fit gates and vectors to answers, from θ (H, q) on: variable projection.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> design, shift = rng.standard_normal((12, 2)), rng.standard_normal((12, 2))
    >>> features, known = np.ones((12, 1)), rng.standard_normal((12, 2, 5))
    >>> theta, vectors = rng.standard_normal((2, 2)), rng.standard_normal((2, 5))
    >>> gates = scipy.special.expit(design @ theta.T + shift)
    >>> y = np.einsum("th,thm->tm", gates, known + vectors)
    >>> found = fitted(Gated(design, shift, features, known, y), theta + 0.2)
    >>> bool(np.allclose(found.theta, theta) and np.allclose(found.vectors[:, 0], vectors))
    True
    """
    answers, basis = answers.short()
    theta, (*_, vectors, left) = _descended(answers, theta)
    each = (vectors @ basis.T).reshape(len(theta), -1, len(basis))
    return GatedFit(theta, each, float(np.linalg.norm(left)))


def _descended(answers: Gated | WithinRanges, theta: Array) -> tuple[Array, tuple[Any, ...]]:
    """Step from θ on while less is left of answers; return θ and what follows from it."""
    found: tuple[Any, ...] = answers.left(theta)
    damping, square = _DAMPED, float(np.sum(found[-1] ** 2))
    for _ in range(_STEPS):
        equations, right = answers.equations(*found)
        sizes = np.sqrt(np.maximum(np.diag(equations), 0.0))
        sizes[sizes == 0] = 1.0  # a gate that is shut beside all tokens
        unit, right = equations / np.outer(sizes, sizes), right / sizes
        for _ in range(_TRIED):
            step = np.linalg.solve(unit + damping * np.eye(len(unit)), right) / sizes
            length = float(np.abs(step).max(initial=0.0))
            moved = theta + step.reshape(theta.shape) * min(1.0, _LONGEST / max(length, TINY))
            tried = answers.left(moved)
            if (less := float(np.sum(tried[-1] ** 2))) < square:
                break
            damping *= _TIGHTENED
        else:
            break
        theta, found, square = moved, tried, less
        damping = max(damping * _EASED, _LEAST_DAMPED)
        if length < _STILL:
            break
    return theta, found


class Mapped(Protocol):
    """Answers that maps are computed from."""

    def maps(self) -> Array:
        """Compute all M_h, (H, m, d)."""


def ranks_of_maps(answers: Mapped, noise: AnswerNoise, rng: np.random.Generator) -> tuple[int, ...]:
    """Count singular values of each head's map above what drawn errors make."""
    maps, counted = answers.maps(), []
    for M, error in zip(maps, with_errors(answers, noise, rng).maps() - maps, strict=True):
        floor = NOISE * float(np.linalg.norm(error, 2))
        singular = np.linalg.svd(M, compute_uv=False)
        counted.append(max(1, int(np.count_nonzero(singular > floor))))
    return tuple(counted)
