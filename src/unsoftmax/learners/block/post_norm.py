"""A block that does not return a long token: the norm behind it, if there is one (post-norm).

z = β + γ ⊙ n(y + F(y)), y = norm₁(x_N + o(X)), as in BERT. Beside long single tokens y is on an
ellipsoid, whatever attention and F are, so z − β is of all directions that n leaves: orthogonal to
g = 1/γ. 2d + 16 of them give γ but for one factor, to roundoffs. β and the factor follow from |n|²
= d, which holds but for n's eps: they are off by a few times eps over the variance of n's input.
(n, γ) and (−n, −γ) answer alike: most of γ is taken to be positive. An RMSNorm leaves all
directions: Σ (z_i/γ_i)² = d is linear in 1/γ², and every number of γ is off as the factor is, and
taken to be positive: its sign does not show.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.feed_forward.norm_opening import LONG, ORTHOGONAL
from unsoftmax.measure.normalised import gain_of, shift_of, uncentred_gain_of
from unsoftmax.probes import Singles
from unsoftmax.refusals import Reason, RefusalError
from unsoftmax.theory.costs import Cost

# Tokens beyond two for each coordinate.
_MORE = 16
# |n|² of a norm differs by less than this share of it from token to token: by its eps alone.
_UNLIKE = 1e-2


def cost(dim: int) -> Cost:
    """Bound what is asked."""
    return Cost.of(2 * dim + _MORE, rounds=1)


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
    return Reason.BLOCK_POST_NORM.error(known, apart=apart)
