"""Defences: from oracle to oracle, each a few lines that coarsen answers or refuse questions.

They take oracles of numbers and of vectors alike; see `wrapped` for what they have in common.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unsoftmax.errors import OracleError
from unsoftmax.oracles.wrapped import WrappedOracle
from unsoftmax.probes import Array
from unsoftmax.protocol import Oracle, as_array


def rounded(oracle: Oracle, decimals: int) -> WrappedOracle:
    """Round every answer to so many decimals.

    Parameters
    ----------
    oracle : callable
        From (B, N, d) to (B,) or (B, m).
    decimals : int
        Places after the point; negative ones round to tens, hundreds …

    Raises
    ------
    TypeError
        ``decimals`` is no whole number.

    Examples
    --------
    >>> import numpy as np
    >>> defended = rounded(lambda X: X.sum(axis=(1, 2)), 1)
    >>> print(defended(np.array([[[0.26]]])))
    [0.3]
    """
    if isinstance(decimals, bool) or not isinstance(decimals, (int, np.integer)):
        raise TypeError(f"decimals must be a whole number; it is {decimals!r}.")
    return _Rounded(oracle, int(decimals))


def noisy(oracle: Oracle, scale: float, seed: int = 0) -> WrappedOracle:
    """Add Gaussian noise, drawn afresh for every answer.

    The k-th call gets the noise that ``seed`` and k decide: the same calls in the same order
    get the same answers, the same question asked twice gets two. Calls are counted under a
    lock, so threads may share it; a pickled copy goes on counting by itself.

    Parameters
    ----------
    oracle : callable
        From (B, N, d) to (B,) or (B, m).
    scale : float
        Standard deviation, 0 or more.
    seed : int, optional
        Decides the noise, together with the order of the calls.

    Raises
    ------
    ValueError
        ``scale`` is negative or not finite, or ``seed`` is negative.

    Examples
    --------
    >>> import numpy as np
    >>> defended = noisy(lambda X: X.sum(axis=(1, 2)), 0.1, seed=0)
    >>> one = np.ones((1, 1, 1))
    >>> bool(defended(one) == defended(one))
    False
    """
    if not 0 <= scale < float("inf"):
        raise ValueError(f"scale must be a finite number, 0 or more; it is {scale}.")
    if seed < 0:
        raise ValueError(f"seed must be 0 or more; it is {seed}.")
    return _Noisy(oracle, float(scale), int(seed))


def clipped(oracle: Oracle, low: float, high: float) -> WrappedOracle:
    """Move answers below ``low`` or above ``high`` to the nearer of the two.

    Raises
    ------
    ValueError
        ``low`` is not below ``high``.

    Examples
    --------
    >>> import numpy as np
    >>> defended = clipped(lambda X: X.sum(axis=(1, 2)), -1.0, 1.0)
    >>> print(defended(np.array([[[5.0]], [[0.5]]])))
    [1.  0.5]
    """
    if not low < high:
        raise ValueError(f"low must be below high; they are {low} and {high}.")
    return _Clipped(oracle, float(low), float(high))


def norm_capped(oracle: Oracle, radius: float) -> WrappedOracle:
    """Refuse sequences with a token longer than ``radius`` (2-norm).

    The refusal is an `OracleError`: asking the same again cannot help, so it is not retried
    and ends the run, with every answer so far in the ledger. The whole batch is refused, and
    none of it reaches the wrapped oracle.

    Parameters
    ----------
    oracle : callable
        From (B, N, d) to (B,) or (B, m).
    radius : float
        The longest token that is answered; lengths are compared with a slack of 1e-12 of it,
        for the rounding of norms.

    Raises
    ------
    ValueError
        ``radius`` is not above 0.

    Examples
    --------
    >>> import numpy as np
    >>> defended = norm_capped(lambda X: X.sum(axis=(1, 2)), 1.0)
    >>> defended(np.array([[[3.0, 4.0]]]))
    Traceback (most recent call last):
    unsoftmax.errors.OracleError: The target answers tokens up to norm 1; this sequence has one of \
norm 5. Ask shorter ones: give the learner the target's radius, if it takes one.
    """
    if not radius > 0:
        raise ValueError(f"radius must be above 0; it is {radius}.")
    return _NormCapped(oracle, float(radius))


def labels(oracle: Oracle) -> WrappedOracle:
    """Answer only whether the value is positive: 1.0 if it is, else 0.0; NaN where it is NaN.

    Examples
    --------
    >>> import numpy as np
    >>> print(labels(lambda X: X.sum(axis=(1, 2)))(np.array([[[2.0]], [[0.0]]])))
    [1. 0.]
    """
    return _Labels(oracle)


@dataclass(frozen=True, eq=False)
class _Rounded(WrappedOracle):
    decimals: int

    def __call__(self, X: Array, /) -> Any:
        y = as_array(self.oracle(X))
        # NumPy rounds no bools
        return np.round(y.astype(np.float64) if y.dtype.kind == "b" else y, self.decimals)


@dataclass(frozen=True, eq=False)
class _Clipped(WrappedOracle):
    low: float
    high: float

    def __call__(self, X: Array, /) -> Any:
        return np.clip(as_array(self.oracle(X)), self.low, self.high)


@dataclass(frozen=True, eq=False)
class _Labels(WrappedOracle):
    def __call__(self, X: Array, /) -> Any:
        y = as_array(self.oracle(X))
        return np.where(y > 0, 1.0, np.where(y <= 0, 0.0, np.nan))


@dataclass(frozen=True, eq=False)
class _NormCapped(WrappedOracle):
    radius: float

    def __call__(self, X: Array, /) -> Any:
        longest = float(np.max(np.linalg.norm(X, axis=-1), initial=0.0))
        if longest > self.radius * (1 + 1e-12):
            raise OracleError(
                f"The target answers tokens up to norm {self.radius:g}; this sequence has one of "
                f"norm {longest:g}. Ask shorter ones: give the learner the target's radius, if "
                "it takes one."
            )
        return self.oracle(X)


@dataclass(slots=True)
class _Calls:
    """How many there were, counted one at a time."""

    count: int = 0
    lock: Any = field(default_factory=threading.Lock, repr=False)

    def next(self) -> int:
        with self.lock:
            self.count += 1
            return self.count

    def __reduce__(self) -> tuple[Any, ...]:
        return _Calls, (self.count,)


@dataclass(frozen=True, eq=False)
class _Noisy(WrappedOracle):
    scale: float
    seed: int
    calls: _Calls = field(default_factory=_Calls)

    def __call__(self, X: Array, /) -> Any:
        call = self.calls.next()
        answers = as_array(self.oracle(X)).astype(np.float64)
        noise = np.random.default_rng([self.seed, call]).standard_normal(answers.shape)
        return answers + self.scale * noise
