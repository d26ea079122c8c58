"""The oracle's side of a test: its own count of queries, and errors against the truth."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from unsoftmax.models.equality.certificates import share_of_bounds
from unsoftmax.models.equality.verdicts import compare
from unsoftmax.models.products import Tolerance


class Counted:
    """An oracle's own account: how many sequences and tokens it was asked."""

    def __init__(self, target) -> None:
        self.target = target
        self.queries = self.tokens = self.calls = 0
        self._lock = threading.Lock()

    def __call__(self, X):
        with self._lock:
            self.calls += 1
            self.queries += len(X)
            self.tokens += len(X) * X.shape[1]
        return self.target(X)


def relative(found: np.ndarray, true: np.ndarray) -> float:
    """Norm of the error over the norm of the truth."""
    size = float(np.linalg.norm(true))
    return float(np.linalg.norm(found - true)) / (size or 1.0)


def rank_of_jacobian(arrays: dict[str, np.ndarray], answers: Any, least: float) -> int:
    """How many directions of all arrays answers tell apart, of which none is far below the first.

    By differences: ``answers(name, array)`` are those with another array of that name.
    """
    columns, step = [], 1e-5
    for name, array in arrays.items():
        for place in np.ndindex(array.shape):
            move = np.zeros(array.shape)
            move[place] = step
            columns.append((answers(name, array + move) - answers(name, array - move)) / (2 * step))
    singular = np.linalg.svd(np.array(columns), compute_uv=False)
    return int(np.count_nonzero(singular > least * singular[0]))


def hidden(target: Any) -> Any:
    """Nothing of a target to look at but its answers."""
    return lambda X: target(X)


# -- a generator driven by hand: every round answered by a function, without the runner


def driven(steps, target):
    """Run a generator that asks to its end; return what it returns, and the queries asked."""
    queries, answers = 0, None
    while True:
        try:
            asked = steps.send(answers)
        except StopIteration as end:
            return end.value, queries
        queries += sum(len(probes) for probes in asked)
        answers = [target(probes[:]) for probes in asked]


# -- what share of a certificate's bounds two models' differences take


def share(found: Any, target: Any, errors: Mapping[str, float]) -> float:
    """The largest one, whatever their answers say."""
    compared = compare((found.maps, target.maps), Tolerance(1e-9, 0.0))
    if compared is None or compared[1] is None:
        return np.inf
    return share_of_bounds((found, target), compared[1], errors)
