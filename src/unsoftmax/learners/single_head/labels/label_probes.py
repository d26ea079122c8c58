"""What label learners ask beside two tokens: single tokens made on demand.

`Contrasts` weigh two entries of v against each other; a `Sphere` holds samples of Theorem B.1's
average, of which there may be 10²⁸: none but the slice asked for is ever in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array, Design, Indices, Probes

# Samples made by one generator: part of what "sample n of seed s" means, so it never changes. The
# runner's slices end at multiples of it (its batches are 2,048 at most): few blocks are made twice.
_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Contrasts(Probes):
    """Single tokens that weigh two entries of v: probe k is g_i e_i − ρ_k g_p e_p.

    ``signs`` are g_1 … g_d; ``i``, ``p`` and ``rho`` are per probe, i ≠ p.
    """

    signs: Array
    i: Indices
    p: Indices
    rho: Array

    @property
    def tokens(self) -> int:  # noqa: D102
        return 1

    @property
    def dim(self) -> int:  # noqa: D102
        return len(self.signs)

    def __len__(self) -> int:
        return len(self.i)

    def __getitem__(self, span: slice) -> Array:
        i, p = self.i[span], self.p[span]
        X = np.zeros((len(i), 1, self.dim))
        X[np.arange(len(i)), 0, i] = self.signs[i]
        X[np.arange(len(i)), 0, p] = -self.rho[span] * self.signs[p]
        return X

    def design(self) -> Design:  # noqa: D102
        return {"signs": self.signs, "i": self.i, "p": self.p, "rho": self.rho}


@dataclass(frozen=True, slots=True)
class Sphere(Probes):
    """Single tokens uniform on the unit sphere, ``count`` of them from number ``first`` on.

    Made block by block, each from a generator of its own, so that any slice gives the same
    tokens and none but the slice is ever in memory. ``first`` is a multiple of the block.
    """

    size: int
    seed: int
    first: int
    count: int

    @property
    def tokens(self) -> int:  # noqa: D102
        return 1

    @property
    def dim(self) -> int:  # noqa: D102
        return self.size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, span: slice) -> Array:
        start, stop, _ = span.indices(self.count)
        X = np.empty((max(0, stop - start), 1, self.size))
        done = start
        while done < stop:
            block, skip = divmod(self.first + done, _BLOCK)
            take = min(_BLOCK - skip, stop - done)
            rng = np.random.default_rng([self.seed, block])
            rows = rng.standard_normal((_BLOCK, self.size))[skip : skip + take]
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            X[done - start : done - start + take, 0] = rows
            done += take
        return X

    def design(self) -> Design:  # noqa: D102
        # halves: a sample's number may exceed what float64 holds exactly
        high, low = divmod(self.first, 2**31)
        numbers = [self.size, self.seed, high, low, self.count]
        return {"sphere": np.array(numbers, dtype=np.float64)}
