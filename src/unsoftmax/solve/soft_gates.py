"""Gates between 0 and 1: the columns σ(S θ + s) in a linear span.

Where gates are σ(l_h), l_h = S θ_h + s affine in a few coordinates, K answers z_k = Σ_h g_kh m_h,
m_h ∈ R^m, have rank H, and the span of their left singular vectors is that of the columns
g_h = σ(S θ_h + s). So every head is found by itself: the θ whose column, with a 1 in front (in the
first row all gates are 1), lies in the span. With known shifts s, the logarithms of how many
copies of a token there are, and K above H + dim θ, no other column does, as in subspace methods
for sinusoids (MUSIC). Damped Gauss-Newton steps from many starts at once: nothing is combinatorial
in H. Nothing is asked here: a span in, θ out.
"""

from typing import NamedTuple

import numpy as np
import scipy

from unsoftmax.probes import Array

# Steps of a search at most. From good starts 5 are enough.
STEPS = 40
# Damping of the first step, relative to the equations' diagonal, and what that becomes after a step
# that gained and after one that did not.
DAMPING, EASED, TIGHTENED = 1e-2, 0.2, 4.0
# Steps are no longer: a gate changes from 0.1 to 0.9 over 4.4.
LONGEST = 2.0
# The search ends where no start moves by more than that, so many times in a row: a step that did
# not gain is tried again shorter.
STILL, PATIENCE = 1e-13, 4
# Ends nearer to each other than this are one.
APART = 1e-3
# Full steps that settle gates.
SETTLED = 3


class Ends(NamedTuple):
    """Where a search ended."""

    theta: Array
    """(B, q)."""
    missed: Array
    """How far their columns are from the span, as sines, (B,)."""


def columns_at(theta: Array, design: Array, shift: Array) -> Array:
    """Return the columns of θ (B, q): (B, K + 1), each with a 1 in front."""
    gates = scipy.special.expit(theta @ design.T + shift)
    return np.concatenate([np.ones((len(gates), 1)), gates], axis=1)


def nearest_gates(span: Array, design: Array, shift: Array, starts: Array) -> Ends:
    """Move each start to where its column is nearest to the span.

    Parameters
    ----------
    span : ndarray (K + 1, H)
        Orthonormal columns; the first row is the one where all gates are 1.
    design : ndarray (K, q)
        S: logits are S θ + s.
    shift : ndarray (K,)
        s.
    starts : ndarray (B, q)
        Where to begin.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> design, shift = np.column_stack([np.ones(12), rng.standard_normal(12)]), np.arange(12) - 6.0
    >>> theta = np.array([[0.5, -1.0], [-0.3, 0.8]])
    >>> span = np.linalg.qr(columns_at(theta, design, shift).T)[0]
    >>> ends = nearest_gates(span, design, shift, theta + 0.3)
    >>> bool(np.allclose(ends.theta, theta))
    True
    """
    theta, damping = starts, np.full(len(starts), DAMPING)
    r, J = _residuals(span, design, shift, theta)
    waited = 0
    for _ in range(STEPS):
        equations = np.swapaxes(J, 1, 2) @ J
        damped = damping[:, None] * np.einsum("bqq->bq", equations) + np.finfo(float).tiny
        equations = equations + damped[:, None] * np.eye(design.shape[1])
        step = _solved(equations, (r[:, None] @ J)[:, 0])
        length = np.linalg.norm(step, axis=1, keepdims=True)
        step = step * np.minimum(1.0, LONGEST / np.maximum(length, LONGEST))
        tried = theta - step
        other, J_other = _residuals(span, design, shift, tried)
        better = np.sum(other**2, axis=1) < np.sum(r**2, axis=1)
        theta = np.where(better[:, None], tried, theta)
        r, J = np.where(better[:, None], other, r), np.where(better[:, None, None], J_other, J)
        damping = damping * np.where(better, EASED, TIGHTENED)
        moving = bool(np.any(better & (length[:, 0] > STILL)))
        waited = 0 if moving else waited + 1
        if waited >= PATIENCE:
            break
    return Ends(theta, np.linalg.norm(r, axis=1))


def settled(span: Array, design: Array, shift: Array, theta: Array) -> Array:
    """Take full Gauss-Newton steps from gates θ (H, q) that answers show up to their errors.

    Where logits are small all gates are nearly straight lines: what is missed falls by less than it
    is rounded by, long before θ is as near as answers tell. The steps themselves are exact.

    Examples
    --------
    >>> design, shift = np.column_stack([np.ones(9), np.arange(9.0) % 4]), np.arange(9) - 4.0
    >>> theta = 1e-3 * np.array([[0.5, -1.0], [-0.3, 0.8]])
    >>> span = np.linalg.qr(columns_at(theta, design, shift).T)[0]
    >>> bool(np.allclose(settled(span, design, shift, 1.0001 * theta), theta, rtol=1e-7, atol=0))
    True
    """
    for _ in range(SETTLED):
        r, J = _residuals(span, design, shift, theta)
        theta = theta - (np.linalg.pinv(J) @ r[..., None])[..., 0]
    return np.asarray(theta)


def distinct(ends: Ends, most: float) -> Array:
    """Return the different θ whose columns are in the span, up to ``most``, the nearest first."""
    found: list[Array] = []
    for k in np.argsort(ends.missed):
        if not ends.missed[k] <= most:
            break
        if all(np.linalg.norm(ends.theta[k] - one) > APART for one in found):
            found.append(ends.theta[k])
    return np.array(found).reshape(-1, ends.theta.shape[1])


def _residuals(span: Array, design: Array, shift: Array, theta: Array) -> tuple[Array, Array]:
    """Return what unit columns miss the span by, (B, K + 1), and its derivatives (B, K + 1, q)."""
    columns = columns_at(theta, design, shift)
    size = np.linalg.norm(columns, axis=1, keepdims=True)
    unit = columns / size
    slopes = (columns * (1 - columns) / size)[:, 1:, None] * design
    slopes = np.concatenate([np.zeros((len(theta), 1, design.shape[1])), slopes], axis=1)
    slopes = slopes - unit[..., None] * (unit[:, None] @ slopes)
    return unit - (unit @ span) @ span.T, slopes - span @ (span.T @ slopes)


def _solved(equations: Array, right: Array) -> Array:
    """Solve the damped equations; where they are singular, do not move."""
    diagonal = np.einsum("bqq->bq", equations)
    scale = 1 / np.sqrt(np.maximum(diagonal, np.finfo(float).tiny))
    unit = equations * scale[:, :, None] * scale[:, None] + 1e-14 * np.eye(right.shape[1])
    solution = np.linalg.solve(unit, (scale * right)[..., None])[..., 0]
    return np.asarray(np.where(np.isfinite(solution), scale * solution, 0.0))
