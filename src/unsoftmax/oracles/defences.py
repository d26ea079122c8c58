"""Defences: from oracle to oracle, each a few lines that coarsen answers or refuse questions.

They take oracles of numbers and of vectors alike; see `wrapped` for what they have in common.

`within` makes approximate values as Theorem 6.1 means them: off by at most τ, and otherwise as they
like. AVQ(τ) of the paper promises |answer − f(X)| ≤ τ and that the same question gets the same
answer. `within` keeps to that and uses all of it: every answer is off by τ, and the sign is a hash
of the question, the caller's choice, or the one that pushes a recovery of W furthest:

    f([x]) + τ·sign(x·1)                        every entry of v comes out too large by τ
    f(X) − τ·sign(Σ_i α_i x_i·1), two and more  each pair errs the way that this pushes its logit

with the true weights α, which a test knows. To first order no signs are worse for the paper's
probes, whose offsets are unit vectors: an entry of W is off by |τ + (b + pa)·δv|/(σ'·|a·v|), and
δv = ±τ(1, …, 1) makes all of them largest at once.
"""

import hashlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from unsoftmax.errors import OracleError
from unsoftmax.models import SingleHead
from unsoftmax.models.arrays import UNIT
from unsoftmax.oracles.wrapped import ChangedOracle, WrappedOracle
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
    return ChangedOracle(oracle, _rounded, (int(decimals),))


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
    return ChangedOracle(oracle, _noisy, (float(scale), int(seed), _Calls()))


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
    return ChangedOracle(oracle, _clipped, (float(low), float(high)))


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
    return ChangedOracle(oracle, _norm_capped, (float(radius),))


def labels(oracle: Oracle) -> WrappedOracle:
    """Answer only whether the value is positive: 1.0 if it is, else 0.0; NaN where it is NaN.

    Examples
    --------
    >>> import numpy as np
    >>> print(labels(lambda X: X.sum(axis=(1, 2)))(np.array([[[2.0]], [[0.0]]])))
    [1. 0.]
    """
    return ChangedOracle(oracle, _labels)


def _rounded(oracle: Oracle, X: Array, decimals: int) -> Any:
    y = as_array(oracle(X))
    # NumPy rounds no bools
    return np.round(y.astype(np.float64) if y.dtype.kind == "b" else y, decimals)


def _clipped(oracle: Oracle, X: Array, low: float, high: float) -> Any:
    return np.clip(as_array(oracle(X)), low, high)


def _labels(oracle: Oracle, X: Array) -> Any:
    y = as_array(oracle(X))
    return np.where(y > 0, 1.0, np.where(y <= 0, 0.0, np.nan))


def _norm_capped(oracle: Oracle, X: Array, radius: float) -> Any:
    longest = float(np.max(np.linalg.norm(X, axis=-1), initial=0.0))
    if longest > radius * (1 + 1e-12):
        raise OracleError(
            f"The target answers tokens up to norm {radius:g}; this sequence has one of norm "
            f"{longest:g}. Ask shorter ones: give the learner the target's radius, if it takes one."
        )
    return oracle(X)


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


def _noisy(oracle: Oracle, X: Array, scale: float, seed: int, calls: _Calls) -> Any:
    call = calls.next()
    answers = as_array(oracle(X)).astype(np.float64)
    noise = np.random.default_rng([seed, call]).standard_normal(answers.shape)
    return answers + scale * noise


Direction: TypeAlias = Callable[[Array], Any]
"""From (B, N, d) to numbers (B,) or (B, m): answers are off upwards where they are 0 or more."""


def within(
    oracle: Oracle,
    tau: float,
    *,
    tau_single: float | None = None,
    worst: SingleHead | Direction | None = None,
    seed: int = 0,
) -> WrappedOracle:
    """Answer with values that are off by ``tau``, deterministic and hostile.

    Parameters
    ----------
    oracle : callable
        From (B, N, d) to (B,) or (B, m).
    tau : float
        τ, 0 or more: no answer is further off, and none is nearer but for rounding.
    tau_single : float, optional
        The same for single tokens (N = 1): Theorem 6.1 has τ_v for these and τ_f for others.
        ``tau`` where None.
    worst : SingleHead or callable, optional
        Who chooses the signs. A `SingleHead` is taken for the truth: signs that add up in the
        recovery of W from single tokens and pairs. A callable is asked with the sequences: up
        where it is 0 or more, else down. Where None signs are a hash of the question, a row of
        X as float64 numbers, so that the same question always gets the same answer.
    seed : int
        Decides the hash.

    Raises
    ------
    ValueError, TypeError
        An argument is out of range, or not of its type.

    Notes
    -----
    *Source*: the oracle AVQ(τ) of Theorem 6.1, arXiv 2601.16873.

    Examples
    --------
    >>> import numpy as np
    >>> defended = within(lambda X: X.sum(axis=(1, 2)), 0.5)
    >>> X = np.arange(6.0).reshape(3, 1, 2)
    >>> y = defended(X)
    >>> print(np.abs(y - X.sum(axis=(1, 2))), bool(np.all(y == defended(X))))
    [0.5 0.5 0.5] True
    """
    single = tau if tau_single is None else tau_single
    for name, error in (("tau", tau), ("tau_single", single)):
        if not 0 <= error < math.inf:
            raise ValueError(f"{name} must be a finite number, 0 or more; it is {error}.")
    if seed < 0:
        raise ValueError(f"seed must be 0 or more; it is {seed}.")
    direction: Direction | None
    if isinstance(worst, SingleHead):
        direction = AgainstRecovery(SingleHead(worst.W, np.ones(worst.dim), worst.w))
    elif worst is None or callable(worst):
        direction = worst
    else:
        raise TypeError(f"worst must be a SingleHead or a callable; it is {worst!r}.")
    return ChangedOracle(oracle, _within, (float(tau), float(single), direction, int(seed)))


@dataclass(frozen=True, slots=True)
class AgainstRecovery:
    """The direction in which errors of v, and of pairs that are read with v, add up in W."""

    errors: SingleHead
    """The truth's scores, with the errors of v instead of v."""

    def __call__(self, X: Array, /) -> Array:
        """Return v's errors for single tokens, and against what they do to longer sequences."""
        pushed = self.errors(X)
        return pushed if X.shape[1] == 1 else -pushed


def _within(
    oracle: Oracle, X: Array, tau: float, tau_single: float, direction: Direction | None, seed: int
) -> Any:
    questions = np.array(X, dtype=np.float64)  # the oracle may write on X
    y = as_array(oracle(X)).astype(np.float64)
    if y.shape[:1] != (len(questions),):
        return y  # whoever asked refuses it, as without this wrapper
    most = tau_single if questions.shape[1] == 1 else tau
    # less what adding it rounds: the promise is kept to the last bit
    off = np.maximum(most - 4 * UNIT * (most + np.abs(y)), 0.0)
    up = _hashed(questions, y, seed) if direction is None else _chosen(direction, questions, y)
    return y + np.where(up, off, -off)


def _chosen(direction: Direction, questions: Array, y: Array) -> Any:
    """Return where answers are off upwards, in the shape of y."""
    up = np.asarray(direction(questions)) >= 0
    if up.shape != y.shape[: up.ndim] or not up.ndim:
        raise OracleError(
            f"worst chose signs of shape {up.shape} for answers of shape {y.shape}: one per "
            "sequence, or one per number."
        )
    return up.reshape(up.shape + (1,) * (y.ndim - up.ndim))


def _hashed(questions: Array, y: Array, seed: int) -> Any:
    """Return a bit per answer that the question alone decides; 0.0 and −0.0 are the same."""
    size = math.prod(y.shape[1:])
    head = repr((seed, questions.shape[1:])).encode()
    digests = [
        hashlib.shake_128(head + row.tobytes()).digest(-(-size // 8)) for row in questions + 0.0
    ]
    bits = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), -1)
    return np.unpackbits(bits, axis=1, count=size).reshape(y.shape) > 0
