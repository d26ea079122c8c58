"""Scores of query tokens that were asked with fewer keys than their column spaces need.

A sequence has n keys and a head's column space C r > n directions, so a query token b̃ beside a
block of keys A leaves x = Cᵀ[W_h w_h]b̃ open in r − n: x = x0 + N t, N the null space of AᵀC. Few
further tokens, affine combinations Σ_j c_j b̃_j of all query tokens beside other blocks, make one
linear system of the t's: 1 + (r − n)/n queries for each token in place of ⌈r/n⌉. Its condition is
known before anything is asked. Nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from unsoftmax.probes import Array, Indices


@dataclass(frozen=True)
class SpreadRows:
    """Query tokens, each beside one of several blocks of keys.

    Attributes
    ----------
    first : ndarray (T, d)
        Query tokens of which all is known.
    rest : ndarray (d + 1 − T, d)
        The other ones.
    further : ndarray (E, d)
        Combinations of both.
    keys : ndarray (blocks, n, d)
    block : ndarray (d + 1 − T + E,)
        Which block is asked beside ``rest`` and ``further``.
    """

    first: Array
    rest: Array
    further: Array
    keys: Array
    block: Indices

    @cached_property
    def coefficients(self) -> Array:
        """Of every further token, (E, d + 1)."""
        corners = np.vstack([self.first, self.rest])
        size = float(np.linalg.norm(corners[0]))
        known, wanted = (
            np.column_stack([rows, np.full(len(rows), size)]) for rows in (corners, self.further)
        )
        return np.asarray(np.linalg.solve(known.T, wanted.T).T)

    def condition(self, C: Array) -> float:
        """Return the condition of the system of what is open in a column space (d, r)."""
        system, _ = self._system(C)
        if not system.shape[1]:
            return 1.0
        s = np.linalg.svd(system, compute_uv=False)
        full = len(s) == system.shape[1] and s[-1] > 0
        return float(s[0] / s[-1]) if full else np.inf

    def solved(self, C: Array, known: Array, scores: Array) -> Array:
        """Return Cᵀ(W_h b + w_h) of the other query tokens, (r, d + 1 − T).

        Parameters
        ----------
        C : ndarray (d, r)
            A basis of the column space.
        known : ndarray (r, T)
            The same of the first ones.
        scores : ndarray (d + 1 − T + E, n)
            Scores of the keys that each was asked with.
        """
        R, seen = len(self.rest), self.keys @ C
        system, null = self._system(C)
        inverses = np.linalg.pinv(seen)
        parts = np.einsum("jrn,jn->rj", inverses[self.block[:R]], scores[:R])
        if not system.shape[1]:
            return np.asarray(parts)
        through = np.hstack([known, parts]) @ self.coefficients.T  # (r, E)
        missed = scores[R:] - np.einsum("enr,re->en", seen[self.block[R:]], through)
        t = np.linalg.lstsq(system, missed.ravel(), rcond=None)[0].reshape(R, -1)
        return np.asarray(parts + np.einsum("jrk,jk->rj", null[self.block[:R]], t))

    def _system(self, C: Array) -> tuple[Array, Array]:
        """Return what all t's are multiplied by in further tokens' scores, and every N."""
        seen, (R, T) = self.keys @ C, (len(self.rest), len(self.first))
        null = np.swapaxes(np.linalg.svd(seen)[2][:, seen.shape[1] :], 1, 2)  # (blocks, r, r − n)
        through = np.einsum("anr,brk->abnk", seen, null)
        asked = through[self.block[R:, None], self.block[None, :R]]  # (E, R, n, r − n)
        asked = asked * self.coefficients[:, T:, None, None]
        return asked.swapaxes(1, 2).reshape(len(self.further) * seen.shape[1], -1), null
