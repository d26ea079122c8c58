"""An oracle around another one: what all of them share, one number of its answer, its replicas.

A wrapped oracle is a callable like any other. It knows the attribute ``dim`` when the oracle
inside does, it can be pickled when that can, and it may be wrapped again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.errors import AnswerMisshapen
from unsoftmax.first_use import from_extra
from unsoftmax.probes import Array
from unsoftmax.protocol import Oracle, as_array, at_all_positions


@dataclass(frozen=True, eq=False)
class WrappedOracle(ABC):
    """An oracle that asks another one."""

    oracle: Oracle

    def __post_init__(self) -> None:
        if not callable(self.oracle):
            raise TypeError(f"An oracle must be callable; it is {type(self.oracle).__name__}.")

    @property
    def dim(self) -> Any:
        """Dimension of a token, where the wrapped oracle knows it (AttributeError otherwise)."""
        return self.oracle.dim  # type: ignore[attr-defined]

    @property
    def vocabulary(self) -> Any:
        """Number of ids, where the wrapped oracle takes ids (AttributeError otherwise)."""
        return self.oracle.vocabulary  # type: ignore[attr-defined]

    @abstractmethod
    def __call__(self, X: Array, /) -> Any:
        """Answer a batch of sequences."""


@dataclass(frozen=True, eq=False)
class ChangedOracle(WrappedOracle):
    """An oracle whose questions or answers go through a function, which pickles by its name."""

    change: Callable[..., Any]
    """Asks the oracle, given that, sequences and ``settings``."""
    settings: tuple[Any, ...] = ()

    def __call__(self, X: Array, /) -> Any:
        """Answer a batch of sequences."""
        return self.change(self.oracle, X, *self.settings)


def from_ids(function: Oracle, vocabulary: int | None = None) -> WrappedOracle:
    """Say of a callable that it takes ids of a vocabulary, and not vectors.

    Learners of vectors then refuse it, by name, before anything is asked.

    Parameters
    ----------
    function : callable
        From whole numbers (B, N), int64, to (B,) or (B, m).
    vocabulary : int, optional
        How many ids there are, where that is known: a learner that asks others is refused.

    Raises
    ------
    TypeError, ValueError
        It is not callable, or ``vocabulary`` is no whole number above 0.

    Examples
    --------
    >>> values = np.array([0.5, 2.0, 4.0])
    >>> oracle = from_ids(lambda ids: values[ids].mean(axis=1), vocabulary=3)
    >>> oracle(np.array([[0, 1, 1]]))
    array([1.5])
    """
    if vocabulary is not None:
        if isinstance(vocabulary, bool) or not isinstance(vocabulary, (int, np.integer)):
            raise TypeError(f"vocabulary must be a whole number; it is {vocabulary!r}.")
        if vocabulary < 1:
            raise ValueError(f"vocabulary must be 1 or more; it is {vocabulary}.")
    return _FromIds(function, vocabulary)


@dataclass(frozen=True, eq=False)
class _FromIds(WrappedOracle):
    known: int | None

    @property
    def vocabulary(self) -> Any:
        return self.known

    def __call__(self, X: Array, /) -> Any:
        return self.oracle(X)


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
        return ChangedOracle(oracle, _coordinate, (int(k),))
    try:
        weights = as_array(k)
    except ValueError as error:
        raise TypeError(f"k must be an index or a vector of weights: {error}") from error
    if weights.ndim != 1 or weights.dtype.kind not in "fiu":
        raise TypeError(f"k must be an index (int) or a vector of weights; it is {k!r}.")
    if not weights.size or not np.isfinite(weights).all():
        raise ValueError("Weights must be finite numbers, at least one.")
    return ChangedOracle(oracle, _weighted_sum, (weights.astype(np.float64),))


def vectors(answers: Any, X: Array) -> Any:
    """Return answers as (B, m); (B,) is m = 1."""
    try:
        y = as_array(answers)
    except Exception as error:
        raise AnswerMisshapen(f"The target's answer is no array: {error}.") from error
    if y.shape == (len(X),):
        return y[:, None]
    if y.ndim != 2 or len(y) != len(X) or not y.shape[1]:
        raise AnswerMisshapen(
            f"The target answered {len(X)} sequences with shape {y.shape} instead of "
            f"({len(X)}, m): coordinate() needs a row of numbers per sequence."
        )
    return y


def _coordinate(oracle: Oracle, X: Array, k: int) -> Any:
    y = vectors(oracle(X), X)
    m = y.shape[1]
    if not -m <= k < m:
        raise AnswerMisshapen(
            f"The target gives {m} number{'s' if m != 1 else ''} per sequence: there is no "
            f"coordinate {k}. Choose k from {-m} to {m - 1}."
        )
    return y[:, k]


def _weighted_sum(oracle: Oracle, X: Array, weights: Array) -> Any:
    y = vectors(oracle(X), X)
    if y.shape[1] != len(weights):
        raise AnswerMisshapen(
            f"The target gives {y.shape[1]} numbers per sequence, and there are "
            f"{len(weights)} weights: give coordinate() one weight for each."
        )
    return np.sum(y * weights, axis=1)


def on_dask(client: Any, oracle: Oracle) -> DaskOracle:
    """Ask copies of an oracle, one in every worker process of a Dask cluster.

    Every call is a future; so many calls are under way as `learn` has ``workers``. A call whose
    worker dies is made again by another one: the runner does not notice, and the oracle may have
    been asked twice.

    Parameters
    ----------
    client : dask.distributed.Client
        Of a cluster of any kind, as ``Client()`` for this machine, or
        ``Client("tcp://scheduler:8786")``. unsoftmax must be installed where its workers run.
    oracle : callable
        From (B, N, d) to (B,) or (B, m); it must be possible to pickle it.

    Returns
    -------
    callable
        From (B, N, d) to (B,) or (B, m).

    Raises
    ------
    ImportError
        distributed is not installed.
    TypeError
        ``client`` is none, or the oracle is not callable.

    Examples
    --------
    >>> from dask.distributed import Client  # doctest: +SKIP
    >>> client = Client(n_workers=2)  # doctest: +SKIP
    >>> us.learn(on_dask(client, oracle), learner, workers=4)  # doctest: +SKIP
    """
    if not isinstance(client, from_extra("distributed", "dask").Client):
        raise TypeError(f"client must be a dask.distributed.Client; it is {type(client).__name__}.")
    return DaskOracle(oracle, client)


@dataclass(frozen=True, eq=False)
class DaskOracle(WrappedOracle):
    """An oracle that is asked on a cluster; see `on_dask`."""

    client: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        # sent once, not with every call
        object.__setattr__(self, "_replicas", self.client.scatter(self.oracle, broadcast=True))

    def __call__(self, X: Array, /) -> Any:
        """Answer a batch of sequences (B, N, d) on some worker."""
        return self._asked(_ask, X)

    def all(self, X: Array, /) -> Any:
        """Answer them at all positions, where the oracle does."""
        return self._asked(_ask_at_all_positions, X)

    def _asked(self, ask: Callable[[Oracle, Array], Any], X: Array) -> Any:
        # never a cached result: the same question may be asked twice on purpose
        future = self.client.submit(ask, self._replicas, X, pure=False)  # type: ignore[attr-defined]
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


def _ask(oracle: Oracle, X: Array) -> Any:
    return oracle(X)


def _ask_at_all_positions(oracle: Oracle, X: Array) -> Any:
    return at_all_positions(oracle)(X)
