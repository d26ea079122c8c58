"""Soft gates times vectors, fitted to answers: variable projection.

Every answer is a sum over heads of σ(l_h + shift_h) (V_h f + known_h), l_h = θ_h·design linear in
what is asked. Vectors V_h follow from gates by least squares, so θ alone is looked for, by damped
Gauss–Newton steps in what is left of answers.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import scipy

from unsoftmax.measure.token_map import AnswerNoise, with_errors
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array

# Singular values, and what a fit leaves, below so many times the noise are noise.
NOISE = 30.0
# Steps of a fit, and damping relative to the equations' diagonal: what it is at first, after a step
# that gained and one that did not; below the last it would not keep equations from singular.
_STEPS, _TRIED, _DAMPED, _EASED, _TIGHTENED, _LEAST_DAMPED = 80, 12, 1e-3, 0.1, 5.0, 1e-13
# Steps are no longer: a gate changes from 0.1 to 0.9 over 4.4. Steps below the second are rounding.
_LONGEST, _STILL = 2.0, 1e-13


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

    def slopes(self, gates: Array, columns: Array, vectors: Array) -> Array:
        """Return derivatives of y by θ, as far as no vectors make up for them, (H q, T m)."""
        H, p = gates.shape[1], self.features.shape[1]
        whole = np.einsum("tp,hpm->thm", self.features, vectors.reshape(H, p, -1)) + self.known
        bent = ((gates * (1 - gates))[:, :, None] * whole).swapaxes(0, 1)
        each = (bent[:, None] * self.design.T[:, :, None]).reshape(-1, *self.y.shape)
        basis = np.linalg.qr(columns)[0]
        return np.asarray((each - basis @ (basis.T @ each)).reshape(len(each), -1))

    def short(self) -> tuple[Gated, Array]:
        """Return the same in the span of the answers, where that is smaller, and its basis.

        Without known parts all vectors are in it.
        """
        if len(self.y) >= self.y.shape[1] or np.any(self.known):
            return self, np.eye(self.y.shape[1])
        basis, y = np.linalg.qr(self.y.T)
        return self._replace(y=y.T, known=self.known[:, :, : len(y)]), basis


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
    (gates, columns, vectors, left), damping = answers.left(theta), _DAMPED
    square = float(np.sum(left * left))
    for _ in range(_STEPS):
        slopes = answers.slopes(gates, columns, vectors)
        equations, right = slopes @ slopes.T, slopes @ left.ravel()
        sizes = np.sqrt(np.diag(equations))
        sizes[sizes == 0] = 1.0  # a gate that is shut beside all tokens
        unit, right = equations / np.outer(sizes, sizes), right / sizes
        for _ in range(_TRIED):
            step = np.linalg.solve(unit + damping * np.eye(len(unit)), right) / sizes
            length = float(np.abs(step).max(initial=0.0))
            moved = theta + step.reshape(theta.shape) * min(1.0, _LONGEST / max(length, TINY))
            tried = answers.left(moved)
            if (less := float(np.sum(tried[3] ** 2))) < square:
                break
            damping *= _TIGHTENED
        else:
            break
        theta, (gates, columns, vectors, left), square = moved, tried, less
        damping = max(damping * _EASED, _LEAST_DAMPED)
        if length < _STILL:
            break
    each = (vectors @ basis.T).reshape(len(theta), -1, len(basis))
    return GatedFit(theta, each, float(np.sqrt(square)))


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
