"""A block that does not return a long token: the norm behind it, if there is one (post-norm).

z = β + γ ⊙ n(y + F(y)), y = norm₁(x_N + o(X)), as in BERT. Beside long single tokens y is on an
ellipsoid, whatever attention and F are, so z − β is of all directions that n leaves: orthogonal to
g = 1/γ. 2d + 16 of them give γ but for one factor, to roundoffs. β and the factor follow from |n|²
= d, which holds but for n's eps: they are off by a few times eps over the variance of n's input.
(n, γ) and (−n, −γ) answer alike: most of γ is taken to be positive. An RMSNorm leaves all
directions: Σ (z_i/γ_i)² = d is linear in 1/γ², and every number of γ is off as the factor is, and
taken to be positive: its sign does not show.

The *centre* of the norm before is where its input is none: y = norm₁(C(x − x*)) beside single
tokens, for C = P(1 + Σ M_h). An answer goes with the direction of C(x − x*) alone where tokens are
long, so that R(z(x + Rδ) − z(∞δ)) = J(x − x*) + k/R, and J is what ∞(δ + h e_j) shows. Answers at R
and 2R take k/R off, which eps adds, two directions δ show all of x*, and three steps give it to
roundoffs: from 2d + 14 answers, whatever F is.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.feed_forward.norm_opening import LONG, ORTHOGONAL
from unsoftmax.measure.normalised import gain_of, shift_of, uncentred_gain_of
from unsoftmax.probes import Array, Singles
from unsoftmax.refusals import Reason, RefusalError
from unsoftmax.theory.costs import Cost

# Tokens beyond two for each coordinate.
_MORE = 16
# |n|² of a norm differs by less than this share of it from token to token: by its eps alone.
_UNLIKE = 1e-2
# So far away no answer goes with the centre; tokens of 2⁵⁶ were asked before.
_ENDLESS = 2.0**55
# Differences for J: their roundoffs, and what is of second order, are about 1e-8 of it.
_APART = 2.0**-26
# Each step's distance: the first is off by the square of the centre over it, and roundoffs are
# those of answers times the last.
_DISTANCES = (2.0**20, 2.0**9, 2.0**8)
# J shows nothing of a direction below this, and of the one that a mean takes off less than the
# second; between them it is not known.
_SHOWN, _NONE = 1e-6, 1e-7
# What differences at the centre leave that no step explains, relative to answers, times the last
# distance: thousands of its roundoffs.
_ALIKE = 1e-9
# Where the last step is longer answers are too coarse.
_STILL = 1e-6


def cost(dim: int) -> Cost:
    """Bound what is asked."""
    centre = Cost.of(2 * (dim + 1), rounds=1) + Cost.of(4 * len(_DISTANCES), rounds=len(_DISTANCES))
    return Cost.of(2 * dim + _MORE, rounds=1) + centre


def without_residual(dim: int, share: float, rng: np.random.Generator) -> Asking[RefusalError]:
    """Return why a block is refused that returns this share of a long token, and what is known."""
    x = LONG * np.where(rng.standard_normal((2 * dim + _MORE, dim)) < 0, -1.0, 1.0)
    [y] = yield [Singles(x, phase="norm behind the block", purpose="pilot")]
    plain, mean = Reason.BLOCK_WITHOUT_RESIDUAL.error(share=share), y.mean(axis=0)
    if not np.all(np.ptp(y, axis=0)):
        return plain
    found, shift = gain_of(y - mean), np.zeros(dim)
    if found.missed <= ORTHOGONAL < found.next:
        off, factor = shift_of(y - mean, found)
        gain, shift = factor * found.gain, mean + off
    else:
        gain = uncentred_gain_of(y).gain
    apart = float(np.max(np.abs(np.mean((gain * (y - shift)) ** 2, axis=1) - 1)))
    if not (apart <= _UNLIKE and np.all(gain)):
        return plain
    scale = np.copysign(1 / gain, gain * gain.sum())
    known = {"scale_behind": scale, "shift_behind": shift, "lengths_apart": apart}
    known |= yield from _centre(dim, rng)
    return Reason.BLOCK_POST_NORM.error(known, apart=apart)


def _centre(dim: int, rng: np.random.Generator) -> Asking[dict[str, Array | float]]:
    """Find the centre of the norm before the feed-forward part, of all the one nearest to 0.

    Nothing is found where answers do not show it, or agree with none.
    """
    δ = rng.standard_normal((2, 1, dim))
    δ /= np.linalg.norm(δ, axis=2, keepdims=True)
    beside = np.concatenate([δ, δ + _APART * np.eye(dim)], axis=1).reshape(-1, dim)
    [y] = yield [Singles(_ENDLESS * beside, phase="norm before", purpose="pilot")]
    y = y.reshape(2, dim + 1, -1)
    endless = y[:, 0]
    J = (y[:, 1:] - y[:, :1]).transpose(0, 2, 1).reshape(-1, dim) / _APART
    U, s, Vt = np.linalg.svd(J, full_matrices=False)
    shown = s > _SHOWN * s[0]
    if np.sum(shown) < dim - 1 or np.any((s > _NONE * s[0]) & ~shown):
        return {}
    x, moved, left = np.zeros(dim), np.inf, np.inf
    for distance in _DISTANCES:
        R = distance * max(1.0, float(np.linalg.norm(x))) * np.array([[[1.0]], [[2.0]]])
        asked = (x + R * δ[:, 0]).reshape(-1, dim)
        [z] = yield [Singles(asked, phase="norm before", purpose="pilot")]
        at_R, at_2R = R * (z.reshape(2, 2, -1) - endless)
        turned = (2 * at_2R - at_R).ravel()
        step = Vt[shown].T @ (turned @ U[:, shown] / s[shown])
        left = float(np.linalg.norm(turned - J @ step))
        x, moved = x - step, float(np.linalg.norm(step))
    size = max(1.0, float(np.linalg.norm(x)))
    if moved > _STILL * size or left > _ALIKE * size * float(np.linalg.norm(endless)):
        return {}
    return {"centre": x, "centre_moved": moved}
