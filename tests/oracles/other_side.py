"""What is asked in the laws of oracles, and its own account of it: NumPy alone, no unsoftmax.

It runs wherever an oracle asks: here, in a server, in the workers of a cluster.
"""

import os
from pathlib import Path

import numpy as np

DIM, WIDTH = 4, 3
_rng = np.random.default_rng(7)
W = _rng.standard_normal((DIM, DIM)) / 2
V = _rng.standard_normal((WIDTH, DIM))

# What it may do: one number, a row of numbers, a number too many, or fail at every third call.
KINDS = ("number", "vectors", "too many", "failing")


class OtherSide:
    """Three numbers of a head, or the first; every call is noted in a folder before anything."""

    def __init__(self, folder, kind="number"):
        self.folder, self.kind = Path(folder), kind

    def __call__(self, X):
        self.note(*X.shape[:2])
        return self.answers(X, W, V, np)

    def note(self, count, tokens):
        """Write a call into the account, and fail if that is due."""
        with open(self.folder / f"{os.getpid()}.txt", "a") as account:
            account.write(f"{count} {tokens}\n")
        if self.kind == "failing" and self.calls % 3 == 2:
            raise RuntimeError("out of memory")

    def answers(self, X, W, V, library):
        """Compute in NumPy or torch, whichever the arrays are of."""
        scores = (X @ (X[:, -1] @ W.T)[:, :, None])[:, :, 0]
        weights = library.exp(scores - library.amax(scores, 1)[:, None])[:, :, None]
        y = (weights * (X @ V.T)).sum(1) / weights.sum(1)
        if self.kind == "vectors":
            return y
        return y[[*range(len(X)), 0], 0] if self.kind == "too many" else y[:, 0]

    @property
    def calls(self):
        return len(self._noted())

    @property
    def queries(self):
        return sum(count for count, _ in self._noted())

    @property
    def tokens(self):
        return sum(count * tokens for count, tokens in self._noted())

    def _noted(self):
        lines = [x for file in self.folder.glob("*.txt") for x in file.read_text().splitlines()]
        return [tuple(map(int, line.split())) for line in lines]
