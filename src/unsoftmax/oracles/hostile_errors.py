"""Approximate values as Theorem 6.1 means them: off by at most τ, and otherwise as they like.

AVQ(τ) of the paper promises |answer − f(X)| ≤ τ and that the same question gets the same answer.
`within` keeps to that and uses all of it: every answer is off by τ, and the sign is a hash of the
question, the caller's choice, or the one that pushes a recovery of W furthest:

    f([x]) + τ·sign(x·1)                        every entry of v comes out too large by τ
    f(X) − τ·sign(Σ_i α_i x_i·1), two and more  each pair errs the way that this pushes its logit

with the true weights α, which a test knows. To first order no signs are worse for the paper's
probes, whose offsets are unit vectors: an entry of W is off by |τ + (b + pa)·δv|/(σ'·|a·v|), and
δv = ±τ(1, …, 1) makes all of them largest at once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from unsoftmax.errors import OracleError
from unsoftmax.models import SingleHead
from unsoftmax.models.arrays import UNIT
from unsoftmax.oracles.wrapped import WrappedOracle
from unsoftmax.probes import Array
from unsoftmax.protocol import Oracle, as_array

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
    return _Within(oracle, float(tau), float(single), direction, int(seed))


@dataclass(frozen=True, slots=True)
class AgainstRecovery:
    """The direction in which errors of v, and of pairs that are read with v, add up in W."""

    errors: SingleHead
    """The truth's scores, with the errors of v instead of v."""

    def __call__(self, X: Array, /) -> Array:
        """Return v's errors for single tokens, and against what they do to longer sequences."""
        pushed = self.errors(X)
        return pushed if X.shape[1] == 1 else -pushed


@dataclass(frozen=True, eq=False)
class _Within(WrappedOracle):
    tau: float
    tau_single: float
    direction: Direction | None
    seed: int

    def __call__(self, X: Array, /) -> Any:
        questions = np.array(X, dtype=np.float64)  # the oracle may write on X
        y = as_array(self.oracle(X)).astype(np.float64)
        if y.shape[:1] != (len(questions),):
            return y  # whoever asked refuses it, as without this wrapper
        tau = self.tau_single if questions.shape[1] == 1 else self.tau
        # less what adding it rounds: the promise is kept to the last bit
        off = np.maximum(tau - 4 * UNIT * (tau + np.abs(y)), 0.0)
        return y + np.where(self._up(questions, y), off, -off)

    def _up(self, questions: Array, y: Array) -> Any:
        """Return where answers are off upwards, in the shape of y."""
        if self.direction is None:
            return _hashed(questions, y, self.seed)
        up = np.asarray(self.direction(questions)) >= 0
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
