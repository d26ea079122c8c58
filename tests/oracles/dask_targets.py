"""What runs in the workers of a Dask cluster, which import it by name."""

import os
from pathlib import Path

import numpy as np

import unsoftmax as us

HEAD = us.SingleHead(np.arange(16.0).reshape(4, 4) / 8, [1.0, -1.0, 2.0, 0.5])


class Replica:
    """A head that notes every call in a file, and at one of them kills its own process."""

    def __init__(self, folder, dies_at=None):
        self.folder, self.dies_at = Path(folder), dies_at

    def __call__(self, X):
        with open(self.folder / f"{os.getpid()}.txt", "a") as log:
            log.write(f"{len(X)}\n")
        calls = sum(len(path.read_text().split()) for path in self.folder.glob("*.txt"))
        if calls == self.dies_at:
            os.kill(os.getpid(), 9)
        return HEAD(X)


def busy_once(folder):
    """An oracle that asks to wait at its first call."""
    mark = Path(folder) / "waited"

    def ask(X):
        if not mark.exists():
            mark.touch()
            raise us.RetryLater(0.1)
        return HEAD(X)

    return ask
