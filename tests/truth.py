"""The oracle's side of a test: its own count of queries, and errors against the truth."""

import threading
from typing import Any

import numpy as np


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


def hidden(target: Any) -> Any:
    """Nothing of a target to look at but its answers."""
    return lambda X: target(X)
