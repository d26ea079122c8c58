"""A known ReLU network along segments: where it can be inverted, and the inverse.

    T([a+b; b]) = g(b + σ(t)·a),      t = a·(W b + w)

For every offset a and query token b, g is piecewise linear in σ on [0, 1]. Where all its slopes
have one sign an answer y has exactly one σ; its error is the answer's over the smallest slope.
Everything is vectorised over n segments; m neurons give m + 1 pieces each, some of them empty.
No query is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class SegmentPieces:
    """g(b + σa) on [0, 1], as linear pieces.

    Attributes
    ----------
    knots : ndarray (n, m + 2)
        Where pieces begin and end, from 0 to 1.
    values : ndarray (n, m + 2)
        g there.
    slopes : ndarray (n, m + 1)
        dg/dσ between them.
    """

    knots: Array
    values: Array
    slopes: Array

    @classmethod
    def of(cls, network: ReluNetwork, a: Array, b: Array) -> SegmentPieces:
        """Cut the segments from b to b + a, both (n, d), at the network's hyperplanes."""
        start, change = b @ network.A + network.b, a @ network.A
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = -start / change
        inside = (crossing > 0) & (crossing < 1)
        active = (start > 0) | ((start == 0) & (change > 0))
        first = (network.w_o * change * active).sum(axis=1, keepdims=True)
        # a neuron that turns on, or off, adds this to the slope
        jump = np.where(inside, network.w_o * np.abs(change), 0.0)
        crossing = np.where(inside, crossing, 1.0)
        order = np.argsort(crossing, axis=1)
        knots = np.pad(np.take_along_axis(crossing, order, axis=1), ((0, 0), (1, 1)))
        knots[:, -1] = 1.0
        slopes = first + np.cumsum(np.take_along_axis(jump, order, axis=1), axis=1)
        slopes = np.concatenate([first, slopes], axis=1)
        values = np.empty_like(knots)
        values[:, 0] = np.maximum(start, 0.0) @ network.w_o + network.c
        values[:, 1:] = values[:, :1] + np.cumsum(slopes * np.diff(knots, axis=1), axis=1)
        return cls(knots, values, slopes)

    @property
    def rise(self) -> Array:
        """g(b + a) − g(b), (n,)."""
        return np.asarray(self.values[:, -1] - self.values[:, 0])

    def steepness(self, hidden: Array, error_share: float) -> Array:
        """Return the smallest slope over the mean one: 1 where g is linear, ≤ 0 where it turns.

        Parameters
        ----------
        hidden : ndarray (n,)
            Changes of g that are within its error. Pieces that are too short to show more are
            left out.
        error_share : float
            The largest share of the whole rise that the error may be. Where it is more the
            segment says nothing: steepness 0.

        Returns
        -------
        ndarray (n,)
        """
        rise = self.rise
        along = self.slopes * np.sign(rise)[:, None]
        seen = (np.diff(self.knots, axis=1) > 0) & ~self._short(hidden)
        smallest = np.where(seen, along, np.inf).min(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = np.where(np.isfinite(smallest), smallest / np.abs(rise), 0.0)
        return np.where(np.abs(rise) > hidden / error_share, steep, 0.0)

    def left_out(self, hidden: Array) -> tuple[Array, Array]:
        """Return the length of all short pieces, and what g changes by along them, (n,) each.

        These are the pieces that `steepness` does not count: σ may be off by their length.
        """
        width = np.where(self._short(hidden), np.diff(self.knots, axis=1), 0.0)
        return np.asarray(width.sum(axis=1)), np.asarray((width * np.abs(self.slopes)).sum(axis=1))

    def _short(self, hidden: Array) -> NDArray[np.bool_]:
        """Tell pieces on which g, and a line from end to end, change by less than ``hidden``."""
        width = np.diff(self.knots, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(hidden > 0, hidden / np.abs(self.rise), 0.0)
        return np.asarray(
            (width <= share[:, None]) & (width * np.abs(self.slopes) <= hidden[:, None])
        )

    def invert(self, y: Array) -> tuple[Array, Array]:
        """Return σ with g(b + σa) = y for monotone segments, and |dg/dσ| there, (n,) each.

        Beyond the ends of a segment the slope of its first or last piece goes on.
        """
        sign = np.sign(self.rise)[:, None]
        below = sign * self.values[:, 1:-1] <= sign * y[:, None]
        piece = np.count_nonzero(below, axis=1)
        at = np.arange(len(y)), piece
        sigma = self.knots[at] + (y - self.values[at]) / self.slopes[at]
        return np.asarray(sigma), np.abs(self.slopes[at])
