"""What all tests share: trial counts, and an oracle that counts on its own side."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--evidence", action="store_true", help="run the trial counts that are claimed, not a few"
    )


@pytest.fixture
def trials(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """``trials(few, claimed)``: how often to repeat in `make test` and in `make evidence`."""
    evidence = bool(request.config.getoption("--evidence"))
    return lambda few, claimed: claimed if evidence else few


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
