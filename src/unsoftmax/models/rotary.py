"""Rotary positions: keys and queries that turn against each other as tokens are apart.

At distance Δ = N − 1 − i from the query token, plane k of a query (its coordinates 2k and 2k + 1)
is turned by θ_kΔ before it meets the key. A plane whose θ is 0 knows no positions. θ counts up to
its sign and to 2π: distances are whole numbers, and a plane may be mirrored.
"""

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import frozen
from unsoftmax.probes import Array


class Rotary:
    """Frequencies θ_k of the planes that keys and queries are made of, in radians per token.

    Parameters
    ----------
    frequencies : array_like, shape (r/2,)
        One for each plane: coordinates 2k and 2k + 1 of keys and queries. 0 where a plane does
        not turn, as in partial rotary.

    Raises
    ------
    ValueError
        It has another shape, or an entry is not finite.

    Notes
    -----
    Llama's own weights pair coordinate k with k + r/2: an order of rows, which no answer shows.

    Examples
    --------
    >>> Rotary.of(10_000, 4).frequencies
    array([1.  , 0.01])
    >>> Rotary([1.0, 0.0]) == Rotary([1.0, 0.0])
    True
    """

    def __init__(self, frequencies: ArrayLike) -> None:
        self._frequencies = frozen("frequencies", frequencies)
        if self._frequencies.ndim != 1:
            raise ValueError(
                "frequencies must have shape (r/2,), one for each plane of two coordinates; they "
                f"have shape {self._frequencies.shape}."
            )

    @classmethod
    def of(cls, base: float, dim: int) -> Self:
        """Return θ_k = base^(−2k/dim), as Llama and its kin have it, for keys of ``dim`` numbers.

        Raises
        ------
        ValueError
            ``base`` is not above 0, or ``dim`` is odd or negative.
        """
        if not 0 < base < np.inf:
            raise ValueError(f"base must be a finite number above 0; it is {base}.")
        if dim < 0 or dim % 2:
            raise ValueError(f"dim must be even: planes have two coordinates; it is {dim}.")
        return cls(float(base) ** -(np.arange(0, dim, 2) / max(dim, 1)))

    @property
    def frequencies(self) -> Array:
        """θ_k, (r/2,)."""
        return self._frequencies

    @property
    def folded(self) -> Array:
        """abs(θ) with θ in (−π, π], (r/2,): what distances that are whole numbers show of it."""
        given = self._frequencies
        within = np.abs(given) <= np.pi  # as they are: taking 2π off and on would round them
        return np.where(
            within, np.abs(given), np.abs(np.remainder(given + np.pi, 2 * np.pi) - np.pi)
        )

    def turned(self, queries: ArrayLike, distances: ArrayLike) -> Array:
        """Turn queries (…, r) by distances that broadcast with (…): R(Δ) q.

        Examples
        --------
        >>> Rotary([np.pi / 2]).turned(np.array([1.0, 0.0]), np.array(1.0)).round(9)
        array([0., 1.])
        """
        angles = np.asarray(distances, dtype=np.float64)[..., None] * self._frequencies
        return turned(np.asarray(queries, dtype=np.float64), angles)

    def __iter__(self) -> Iterator[float]:
        return iter(self._frequencies.tolist())

    def __len__(self) -> int:
        return len(self._frequencies)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rotary) and np.array_equal(self.frequencies, other.frequencies)

    def __hash__(self) -> int:
        return hash(self._frequencies.tobytes())

    def __repr__(self) -> str:
        return f"Rotary({self._frequencies.tolist()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Rotary, (self._frequencies,)


def turned(x: Array, angles: Array) -> Array:
    """Turn the planes of keys or queries (…, r) by angles that broadcast with (…, r/2)."""
    cosine, sine = np.cos(angles), np.sin(angles)
    a, b = x[..., 0::2], x[..., 1::2]
    found = np.empty((*np.broadcast_shapes(a.shape, angles.shape)[:-1], x.shape[-1]))
    found[..., 0::2] = cosine * a - sine * b
    found[..., 1::2] = sine * a + cosine * b
    return found
