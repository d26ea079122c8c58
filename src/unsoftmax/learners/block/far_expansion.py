"""What attention's constant adds to the input of a smooth F: its expansion far out.

G(u) = F(norm₂(u + c)) + constant is asked at any u (`behind_keys`), and c is not known. Along a ray
u = r w − ĉ, |w| = 1, the norm makes of the input

    √d w + √d P_w (c − ĉ)/r + O(1/r²),    P_w = 1 − w wᵀ,

and were ĉ exact, G would depend on r by 1/r² alone, whatever F is. So the coefficient of 1/r is
F's derivative along the sphere times c − ĉ. Differences on the sphere far out give the derivative;
two rays show all of c. Twice, the second time nearer: c to 1e-9. It is known better once F is
(`neuron_fit`).

The length at which G has gone half the way from far out to 0 shows eps but for a factor.
4k + 29 queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.block.behind_keys import BehindKeys
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.precision import UNIT
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost

# Rays at first, and each time F does not show c in all directions along them, as where neurons are
# fewer than these; and most of them. Of one ray the component of c along it does not show.
_RAYS, _MOST_RAYS = 2, 12
# Length of inputs whose differences are derivatives, and their angle: c turns them by 1e-6, and
# rounding leaves 1e-7 of a difference.
_FAR, _ANGLE = 2.0**20, 2.0**-9
# Lengths along rays, and powers of 1/r that are fitted: c is some 1 at first, then 1e-5.
_LENGTHS = 2.0 ** np.array([18.0, 16.0, 14.0, 12.0, 10.0]), 2.0 ** np.array([16.0, 13.0, 10.0, 7.0])
_POWERS = 4, 3
# Lengths, in units of √d, among which is the one at which the norm bends, and a share of the way.
_BENDING, _HALF = 2.0 ** np.arange(2.0, -26.0, -2.0), 0.5
# F shows c in a direction by this share of what it does in another, at least.
_SHOWN = 1e-4


def cost(dim: int) -> Cost:
    """Bound what is asked."""
    rays = 2 * (dim - 1) + sum(map(len, _LENGTHS))
    rounds = _MOST_RAYS // _RAYS + len(_LENGTHS) + 1
    return Cost.of(_MOST_RAYS * rays + len(_BENDING) + 1, rounds=rounds)


@dataclass(frozen=True, slots=True)
class FarExpansion:
    """Rays of inputs, along which c is looked for.

    Attributes
    ----------
    keys : BehindKeys
    frame : ndarray (d, k)
        Orthonormal columns, the range of what the norm sees.
    rng : Generator
    """

    keys: BehindKeys
    frame: Array
    rng: np.random.Generator

    def run(self) -> Asking[tuple[Array, float]]:
        """Return c in the frame (k,), and about eps."""
        k = self.frame.shape[1]
        ways = np.linalg.qr(self.rng.standard_normal((k, k)))[0]
        rays, slopes, shown = ways[:0], np.zeros((0, len(self.frame), k)), 0.0
        while not shown > _SHOWN:
            more = ways[len(rays) : min(len(rays) + _RAYS, _MOST_RAYS)]
            if not len(more):
                raise Reason.BLOCK_CENTRE_OPEN.error(cells=len(rays), dim=k)
            further = yield from self._slopes(more)
            rays, slopes = np.vstack([rays, more]), np.concatenate([slopes, further])
            s = np.linalg.svd(slopes.reshape(-1, k), compute_uv=False)
            shown = s[-1] / (s[0] + TINY) if len(s) == k else 0.0
        c = np.zeros(k)
        for lengths, powers in zip(_LENGTHS, _POWERS, strict=True):
            c = yield from self._nearer(rays, slopes, c, lengths, powers)
        eps = yield from self._bending(rays[0], c)
        return c, eps

    def _asked(self, u: Array, phase: str) -> Asking[tuple[Array, Array]]:
        """Ask inputs (…, k); return answers (…, d), and what these are off by (…)."""
        found = yield from self.keys.asked(u.reshape(-1, u.shape[-1]) @ self.frame.T, phase)
        return found.y.reshape(*u.shape[:-1], -1), UNIT * found.size.reshape(u.shape[:-1])

    def _slopes(self, rays: Array) -> Asking[Array]:
        """Return derivatives by the direction of inputs on each ray, (rays, d, k)."""
        k = rays.shape[1]
        sides = np.array([np.linalg.qr(np.column_stack([w, np.eye(k)]))[0][:, 1:].T for w in rays])
        turned = np.cos(_ANGLE) * rays[:, None] + np.sin(_ANGLE) * np.stack([sides, -sides])
        y, _ = yield from self._asked(_FAR * turned, "directions of inputs")
        return np.asarray(np.einsum("rtp,rtk->rpk", y[0] - y[1], sides) / (2 * _ANGLE))

    def _nearer(
        self, rays: Array, slopes: Array, c: Array, lengths: Array, powers: int
    ) -> Asking[Array]:
        """Ask rays about c; return what is a better c."""
        y, off = yield from self._asked(lengths[:, None, None] * rays - c, "lengths of inputs")
        rows, odd = [], []
        for answers, error, slope in zip(y.swapaxes(0, 1), off.T, slopes, strict=True):
            design = (lengths[-1] / lengths[:, None]) ** np.arange(powers) / error[:, None]
            U, s, Vt = np.linalg.svd(design, full_matrices=False)
            inverse = (Vt.T / s) @ U.T
            size = np.linalg.norm(inverse[1])
            odd.append(lengths[-1] * (inverse[1] @ (answers / error[:, None])) / size)
            rows.append(slope / size)
        nearer = np.linalg.lstsq(np.vstack(rows), np.concatenate(odd), rcond=None)[0]
        return np.asarray(c + nearer)

    def _bending(self, ray: Array, c: Array) -> Asking[float]:
        """Return about eps: by where answers are between those far out and that to 0."""
        d = self.keys.tokens.dim
        lengths = np.append(_BENDING, 0.0)
        y, _ = yield from self._asked(np.sqrt(d) * lengths[:, None] * ray - c, "eps of the norm")
        share = np.linalg.norm(y - y[0], axis=1)
        share /= share[-1] + TINY
        beyond = int(np.argmax(share > _HALF))
        if not beyond:
            raise Reason.BLOCK_NOTHING_FOLLOWS.error()
        a, b = share[beyond - 1 : beyond + 1]
        way = (_HALF - a) / (b - a)
        near = max(lengths[beyond], _BENDING[-1])
        square = lengths[beyond - 1] ** (2 * (1 - way)) * near ** (2 * way)
        # √d/2 is what the norm makes of such an input
        return float(square * (1 / _HALF**2 - 1))
