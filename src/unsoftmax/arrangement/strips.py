"""Tokens beside hyperplanes: whether a function bends there as sharply as a ReLU, or nearly so.

z·[z > t], a softplus and the like differ from max(0, z) within a strip of |z| < t alone, which
random tokens miss. On either side of every hyperplane a token is put as near as a difference shows
at all: at the distance at which what is lost there, slope times distance, is twice what answers may
be missed by. A strip that is wider shows there. One that is narrower hides no more than that, which
counts in what is certified. Where answers are missed by more than usual others are asked farther
and farther away: they tell how wide the strip is, or that the model is merely imprecise.

A token is put beside many hyperplanes at once, about half as many as it has numbers, of neurons
that count with one sign, so that what they lose adds up: 2m/(d/2 + 1) tokens for m hyperplanes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.probes import Array, Flags, Indices

# Hyperplanes that one token is put beside. More: fewer tokens, and what errors of all neurons make
# there hides more.
TOGETHER = 64
# A token beside several hyperplanes is no more than so many times as long as others: hyperplanes
# that are nearly parallel meet far away.
LONGER = 8.0
# Tokens on hyperplanes are no longer than this share of the longest: others beside them are.
INNER = 0.99
# Nearer than so many roundoffs of a token it is on neither side.
ROUNDOFFS = 16.0
# Farther tokens are each so many times as far away as the one before, up to this share of the
# length scale. A larger factor: a strip between two of them is wider than it looks.
FARTHER, FARTHEST = 8.0, 0.3


@dataclass(frozen=True, slots=True)
class Hyperplanes:
    """n_j·x + o_j = 0, n_j of norm 1."""

    normals: Array
    """(m, k)."""
    offsets: Array
    """(m,)."""

    @classmethod
    def of(cls, rows: Array, biases: Array) -> Self:
        """Take those of a_j·x + b_j, no a_j being 0."""
        size = np.linalg.norm(rows, axis=1)
        return cls(rows / size[:, None], biases / size)

    def __len__(self) -> int:
        return len(self.offsets)

    def moved(self, x: Array, which: Indices, aside: Array | float) -> Array:
        """Move a token (k,) the least way to distances ``aside`` (g,) from some of them."""
        n, o = self.normals[which], self.offsets[which]
        for _ in range(2):  # once more for what rounding leaves
            x = x + np.linalg.lstsq(n, aside - (n @ x + o), rcond=None)[0]
        return x


@dataclass(frozen=True, slots=True)
class Strips:
    """Tokens on both sides of hyperplanes.

    Attributes
    ----------
    planes : Hyperplanes
        All of them.
    length, longest : float
        Typical length of a token, and the most that there is.
    bases : ndarray (n, k)
        Tokens on hyperplanes.
    members : tuple of ndarray
        On which ones each is.
    near : tuple of ndarray
        Distances from these at which it is asked.
    """

    planes: Hyperplanes
    length: float
    longest: float
    bases: Array
    members: tuple[Indices, ...]
    near: tuple[Array, ...]

    @classmethod
    def beside(
        cls,
        planes: Hyperplanes,
        signs: Array,
        noticed: Callable[[Array, Indices], Array],
        length: float,
        longest: float,
        rng: np.random.Generator,
    ) -> Self:
        """Choose tokens beside all hyperplanes.

        Parameters
        ----------
        planes : Hyperplanes
            All of them.
        signs : ndarray (m,)
            Those of one sign share tokens.
        noticed : callable
            From tokens (n, k), each on one of the hyperplanes (n,), to the distances (n,) at which
            a loss there would be noticed.
        length : float
            Typical length of a token.
        longest : float
            No token is longer.
        rng : Generator
            Draws where on hyperplanes tokens are.
        """
        k = planes.normals.shape[1]
        through_0 = not np.any(planes.offsets)
        together = min(TOGETHER, k // 2 + (not through_0)) or 1
        bases, members = [], []
        for sign in np.unique(signs):
            mine = np.flatnonzero(signs == sign)
            mine = mine[np.argsort(np.abs(planes.offsets[mine]), kind="stable")]
            groups = [mine[i : i + together] for i in range(0, len(mine), together)]
            while groups:
                group = groups.pop()
                x = length * rng.standard_normal(k) / np.sqrt(k)
                x, reach = planes.moved(x, group, 0.0), np.abs(planes.offsets[group])
                if np.linalg.norm(x) <= min(LONGER * (length + reach.min()), INNER * longest):
                    bases.append(x)
                    members.append(group)
                elif len(group) > 1:
                    half = len(group) // 2
                    groups += [group[:half], group[half:]]
                elif reach[0] < INNER * longest:
                    bases.append(-planes.offsets[group] * planes.normals[group[0]])
                    members.append(group)
        sizes = [len(group) for group in members]
        x = np.reshape(bases, (-1, k))
        each, which = np.repeat(x, sizes, axis=0), np.concatenate([*members, np.zeros(0, np.intp)])
        near = np.maximum(noticed(each, which), ROUNDOFFS * UNIT * np.linalg.norm(each, axis=1))
        parts = np.split(near, np.cumsum(sizes)[:-1]) if sizes else []
        strips = cls(planes, length, longest, x, tuple(members), tuple(parts))
        lengths = np.linalg.norm(strips.tokens, axis=1).reshape(2, -1).max(axis=0)
        return strips._taken(np.flatnonzero(lengths <= longest))

    def _taken(self, index: Indices) -> Self:
        members, near = (tuple(part[i] for i in index) for part in (self.members, self.near))
        return replace(self, bases=self.bases[index], members=members, near=near)

    def __len__(self) -> int:
        return len(self.bases)

    @property
    def tokens(self) -> Array:
        """One on either side of each base, (2n, k), those of one side first."""
        return np.vstack([self._aside(side, np.arange(len(self))) for side in (1.0, -1.0)])

    def farther(self, which: Flags) -> Array:
        """Return tokens farther and farther away where those of `tokens` (2n,) are chosen."""
        x = np.vstack([np.zeros((0, self.bases.shape[1])), *self._farther(which)])
        return np.asarray(x[np.linalg.norm(x, axis=1) <= self.longest])

    def _farther(self, which: Flags) -> Iterator[Array]:
        for side, chosen in zip((1.0, -1.0), np.split(which, 2), strict=True):
            left, factor = np.flatnonzero(chosen), FARTHER
            while len(left := self._within(left, factor)):
                yield self._aside(side * factor, left)
                factor *= FARTHER

    def _within(self, which: Indices, factor: float) -> Indices:
        most = FARTHEST * self.length
        return np.array([i for i in which if factor * self.near[i].min() <= most], dtype=np.intp)

    def _aside(self, factor: float, which: Indices) -> Array:
        x = [
            self.planes.moved(self.bases[i], self.members[i], factor * self.near[i]) for i in which
        ]
        return np.reshape(x, (-1, self.bases.shape[1]))

    @property
    def widths(self) -> Array:
        """Distances from each hyperplane within which nothing was asked, (m,): inf of some."""
        widths = np.full(len(self.planes), np.inf)
        for members, near in zip(self.members, self.near, strict=True):
            widths[members] = near
        return widths

    def hide(self, slopes: Array) -> tuple[float, float]:
        """Return a constant, and a slope, that what is hidden in strips does not exceed.

        Parameters
        ----------
        slopes : ndarray (m,)
            What neurons change answers by for each unit of the distance. No token is in more of
            their strips than it has numbers. Those of different neurons count as independent.
        """
        seen = np.isfinite(self.widths)
        lost = (self.widths * slopes)[seen]
        reach = np.abs(self.planes.offsets[seen])
        far = reach > self.length
        most = self.bases.shape[1]
        parts = lost[~far], lost[far] / reach[far]
        constant, slope = (float(np.linalg.norm(np.sort(part)[-most:])) for part in parts)
        return constant, slope

    def said(self) -> tuple[str, ...]:
        """Say in a certificate where nothing was asked."""
        widths = self.widths
        seen = widths[np.isfinite(widths)]
        beyond = len(widths) - len(seen)
        unseen = f"Beside {beyond} of {len(widths)} hyperplanes nothing was asked."
        if not len(seen):
            return (unseen,) if beyond else ()
        return (
            f"On both sides of {len(seen)} hyperplanes answers were asked at distances from "
            f"{seen.min():.0e} to {seen.max():.0e}. A function that differs from a ReLU nearer to "
            "them than that is not told from one, and what it may be off by there is part of the "
            "bounds.",
            *((unseen,) if beyond else ()),
        )
