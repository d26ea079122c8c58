"""One number out of a vector answer: what a learner of numbers needs of an oracle of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.errors import OracleError
from unsoftmax.oracles.wrapped import WrappedOracle
from unsoftmax.probes import Array
from unsoftmax.protocol import Oracle, as_array


def coordinate(oracle: Oracle, k: int | ArrayLike) -> WrappedOracle:
    """Answer with one coordinate of an oracle's vectors, or with a weighted sum of them.

    Parameters
    ----------
    oracle : callable
        From (B, N, d) to (B, m); (B,) is taken for m = 1.
    k : int or array (m,)
        The index of a coordinate, counted from 0, or from the end if negative, as in NumPy;
        or a weight for every coordinate.

    Raises
    ------
    TypeError
        ``k`` is neither a whole number nor a vector of real numbers.
    ValueError
        A weight is not finite, or there is none.

    Notes
    -----
    How many coordinates there are shows when the oracle answers. An index or a number of weights
    that does not fit is an `OracleError` then, before any other call.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[[1.0, 2.0, 4.0]]])
    >>> last_token = lambda X: X[:, -1]
    >>> print(coordinate(last_token, -1)(X), coordinate(last_token, [1.0, 0.0, 0.5])(X))
    [4.] [3.]
    """
    if isinstance(k, (int, np.integer)) and not isinstance(k, bool):
        return _Coordinate(oracle, int(k))
    try:
        weights = as_array(k)
    except ValueError as error:
        raise TypeError(f"k must be an index or a vector of weights: {error}") from error
    if weights.ndim != 1 or weights.dtype.kind not in "fiu":
        raise TypeError(f"k must be an index (int) or a vector of weights; it is {k!r}.")
    if not weights.size or not np.isfinite(weights).all():
        raise ValueError("Weights must be finite numbers, at least one.")
    return _WeightedSum(oracle, weights.astype(np.float64))


def _vectors(answers: Any, X: Array) -> Any:
    """Return answers as (B, m); (B,) is m = 1."""
    try:
        y = as_array(answers)
    except Exception as error:
        raise OracleError(f"The target's answer is no array: {error}.") from error
    if y.shape == (len(X),):
        return y[:, None]
    if y.ndim != 2 or len(y) != len(X) or not y.shape[1]:
        raise OracleError(
            f"The target answered {len(X)} sequences with shape {y.shape} instead of "
            f"({len(X)}, m): coordinate() needs a row of numbers per sequence."
        )
    return y


@dataclass(frozen=True, eq=False)
class _Coordinate(WrappedOracle):
    k: int

    def __call__(self, X: Array, /) -> Any:
        y = _vectors(self.oracle(X), X)
        m = y.shape[1]
        if not -m <= self.k < m:
            raise OracleError(
                f"The target gives {m} number{'s' if m != 1 else ''} per sequence: there is no "
                f"coordinate {self.k}. Choose k from {-m} to {m - 1}."
            )
        return y[:, self.k]


@dataclass(frozen=True, eq=False)
class _WeightedSum(WrappedOracle):
    weights: Array

    def __call__(self, X: Array, /) -> Any:
        y = _vectors(self.oracle(X), X)
        if y.shape[1] != len(self.weights):
            raise OracleError(
                f"The target gives {y.shape[1]} numbers per sequence, and there are "
                f"{len(self.weights)} weights: give coordinate() one weight for each."
            )
        return np.sum(y * self.weights, axis=1)
