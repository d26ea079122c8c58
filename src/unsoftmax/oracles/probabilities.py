"""A target before a classifier: its probabilities as numbers, its classes as labels.

A softmax over k classes answers p_j = e^{z_j}/Σ e^{z_i}, and log(p_j/p_k) = z_j − z_k is linear in
the logits z; a sigmoid answers p, and log(p/(1 − p)) is the logit itself. Every learner of numbers
serves such differences, if tokens are so short that no probability comes out as 0 or 1.

A class is the index of the largest logit. Where only classes 0 and j are answered it is the sign of
z_j − z_0: a label, for learners of labels.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import OracleError
from unsoftmax.measure.precision import FLOAT32_BITS, FLOAT32_UNIT, significant_bits
from unsoftmax.models.arrays import UNIT
from unsoftmax.oracles.wrapped import ChangedOracle, WrappedOracle, vectors
from unsoftmax.probes import Array
from unsoftmax.protocol import Oracle, as_array

# Rows of probabilities sum to 1 within this. Lower: float16 rows fail, whose rounding is the
# better reason; higher: independent sigmoids pass by chance.
SUM_OFF = 1e-2
# A sigmoid's p and 1 − p are at least this: the logit's error is 1/(1 − p) roundoffs.
LEAST_OF_SIGMOID = 2.0**-5
# Probabilities of so few bits are float16, bfloat16 or coarser.
FEW_BITS = 16
# Probabilities that have no more decimals are rounded; of float64 and of float32 numbers. More: a
# few float32 numbers end there by chance.
DECIMALS = (10, 5)
# A logit of a sigmoid is off by so many roundoffs where 1 − p is 1.
SIGMOID_ROUNDOFFS = 8.0
# Logits of up to log 31 that are multiples of less do not show it: they have 45 bits and more.
FINEST_STEP = 2.0**-42


def log_ratios(oracle: Oracle) -> WrappedOracle:
    """Answer log(p_j/p_k) for a softmax over k classes, log(p/(1 − p)) for a sigmoid.

    These are differences of logits, which the softmax or sigmoid hides. Of k classes there are
    k − 1 numbers, each class against the last one; `coordinate` chooses one of them.

    Parameters
    ----------
    oracle : callable
        From (B, N, d) to probabilities: (B, k) in rows that sum to 1, or (B,) in (0, 1).

    Raises
    ------
    TypeError
        The oracle is not callable.

    Notes
    -----
    A probability of 0 or 1 has no log-ratio: the question is refused (`OracleError`) with the norm
    of its longest token. Give the learner a radius below it: MultiHeadLearner takes one, for one
    head too. `audit` finds it by itself. Float32 probabilities make float32 answers. Those of a
    sigmoid are rounded to the accuracy that is left of them where p is 1/32 or 31/32; beyond, they
    count as 0 and 1. Probabilities of fewer bits or of few decimals are refused.

    Examples
    --------
    >>> import numpy as np
    >>> softmax = lambda X: np.exp(X[:, -1]) / np.exp(X[:, -1]).sum(axis=1, keepdims=True)
    >>> print(log_ratios(softmax)(np.array([[[3.0, 2.5, 1.0]]])).round(12))
    [[2.  1.5]]
    """
    return ChangedOracle(oracle, _log_ratios)


def one_against(oracle: Oracle, k: int) -> tuple[WrappedOracle, ...]:
    """Make k classes k − 1 oracles of labels: class j, for j = 1 to k − 1, against class 0.

    The label is 1 where the answer is class j and 0 where it is class 0: the sign of z_j − z_0.

    Parameters
    ----------
    oracle : callable
        From (B, N, d) to the numbers of classes, (B,), 0 to k − 1.
    k : int
        How many classes there are, 2 or more.

    Raises
    ------
    ValueError, TypeError
        ``k`` is no whole number of 2 or more, or the oracle is not callable.

    Notes
    -----
    A question that is answered by a third class is refused (`OracleError`): that class hides the
    sign of z_j − z_0. Of two classes there is none. Of more, ask tokens of a subspace on which no
    third class is largest.

    Examples
    --------
    >>> import numpy as np
    >>> largest = lambda X: X[:, -1].argmax(axis=1)
    >>> [label] = one_against(largest, 2)
    >>> print(label(np.array([[[3.0, 2.5]], [[1.0, 4.0]]])))
    [0. 1.]
    """
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise TypeError(f"k must be a whole number; it is {k!r}.")
    if k < 2:
        raise ValueError(f"k must be 2 or more; it is {k}.")
    return tuple(ChangedOracle(oracle, _one_against, (j, int(k))) for j in range(1, int(k)))


def _one_against(oracle: Oracle, X: Array, j: int, k: int) -> Any:
    answers = as_array(oracle(X))
    known = {*range(k)}
    if answers.shape != (len(X),) or not all(y in known or y != y for y in answers.tolist()):
        raise OracleError(
            f"The target's answers are no classes: for {len(X)} sequences they must be "
            f"{len(X)} whole numbers from 0 to {k - 1}."
        )
    label = np.where(answers == j, 1.0, np.where(answers == 0, 0.0, np.nan))
    if len(others := answers[np.isnan(label) & (answers == answers)]):
        raise OracleError(
            f"The answer is class {int(others[0])}: it hides whether class {j} or class 0 has the "
            "larger logit. Ask tokens of a subspace on which no third class is largest."
        )
    return label


def _log_ratios(oracle: Oracle, X: Array) -> Any:
    given = as_array(oracle(X))
    p = vectors(given, X)
    if p.dtype.kind not in "fiub" or np.any((p < 0) | (p > 1)):
        raise OracleError(
            "The target's answers are no probabilities: they must be numbers from 0 to 1. "
            "Other answers have no log-ratios: ask for the numbers themselves."
        )
    there = ~np.isnan(p).any(axis=1)
    of = _of_sigmoid if p.shape[1] == 1 else _of_softmax
    some = of(p[there], X[there])
    y = np.full((len(p), some.shape[1]), np.nan, some.dtype)  # a missing answer stays missing
    y[there] = some
    return y[:, 0] if given.ndim == 1 else y


def _of_softmax(p: Array, X: Array) -> Array:
    unit = _unit(p)
    sums = p.sum(axis=1, dtype=np.float64)
    if (off := float(np.max(np.abs(sums - 1), initial=0.0))) > SUM_OFF:
        raise OracleError(
            f"The target's {p.shape[1]} numbers are no probabilities of classes: their sum is off "
            f"1 by {off:.2g}. Where each is a probability by itself, choose one: "
            "us.oracles.log_ratios(us.oracles.coordinate(oracle, j))."
        )
    kept = np.float32 if unit > UNIT else np.float64
    _refuse_saturated(X, p >= np.finfo(kept).tiny)
    logs = np.log(p.astype(np.float64))
    return np.asarray(logs[:, :-1] - logs[:, -1:], dtype=kept)


def _of_sigmoid(p: Array, X: Array) -> Array:
    off = max(_unit(p) * SIGMOID_ROUNDOFFS / LEAST_OF_SIGMOID, FINEST_STEP)
    step = 2.0 ** np.ceil(np.log2(off))
    _refuse_saturated(X, np.minimum(p, 1 - p) >= LEAST_OF_SIGMOID)
    p = p.astype(np.float64)
    return np.asarray(np.round((np.log(p) - np.log1p(-p)) / step) * step)


def _unit(p: Array) -> float:
    """Return the roundoff of probabilities; refuse those that are coarser than float32."""
    inner = p[(p > 0) & (p < 1)].astype(np.float64)
    bits = significant_bits(inner)
    single = p.dtype == np.float32 or bits <= FLOAT32_BITS
    # a few round ones, as where all classes are as likely, say nothing of a format
    telling = len(np.unique(inner)) > 3 * p.shape[1]
    kept = np.float32 if single else np.float64
    decimals = np.round(inner, DECIMALS[single]).astype(kept)
    why = {
        "are float16 numbers": p.dtype == np.float16,
        f"have {bits} significant bits": telling and bits <= FEW_BITS,
        "are rounded to decimals": telling and np.array_equal(decimals, inner.astype(kept)),
    }
    if coarse := [said for said, so in why.items() if so]:
        raise OracleError(
            f"The target's probabilities {coarse[0]}, which leave too little of the logits: no "
            "learner takes them. A replica that answers in float32 would decide."
        )
    return FLOAT32_UNIT if single else UNIT


def _refuse_saturated(X: Array, fine: NDArray[np.bool_]) -> None:
    if np.all(fine):
        return
    longest = np.linalg.norm(X[~fine.all(axis=1)], axis=-1).max()
    raise OracleError(
        f"A probability is 0 or 1 to the last bit that counts: tokens of norm {longest:.4g} are "
        "too long, and nothing is left of the logits. Give the learner a smaller radius "
        "(MultiHeadLearner takes one, for one head too); us.audit finds one that is answered."
    )
