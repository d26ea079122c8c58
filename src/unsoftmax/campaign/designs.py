"""Designs as the ledger keeps them: arrays by hash, compared when a run is resumed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.probes import Probes


@dataclass(frozen=True, slots=True)
class DesignArray:
    """An array of a design.

    Attributes
    ----------
    array : array
        Contiguous.
    blob : bytes
        Its bytes.
    key : bytes
        Hash of its type, shape and bytes.
    """

    array: NDArray[Any]
    blob: bytes
    key: bytes

    @classmethod
    def of(cls, array: NDArray[Any]) -> DesignArray:
        """Make it contiguous and hash it."""
        data = np.ascontiguousarray(array)
        blob = data.tobytes()
        kind = hashlib.sha256(f"{data.dtype.str} {data.shape}".encode())
        kind.update(blob)
        return cls(data, blob, kind.digest())

    @classmethod
    def read(cls, dtype: str, shape: str, blob: bytes) -> DesignArray:
        """Take it from a row of the table."""
        return cls.of(np.frombuffer(blob, dtype=dtype).reshape(json.loads(shape)))

    def moved_from(self, was: DesignArray) -> float:
        """Return the largest relative difference; infinite for another type or shape.

        Entries of a row move together, in proportion to its norm; scales and indices alone.
        """
        before, now = was.array, self.array
        if before.dtype != now.dtype or before.shape != now.shape:
            return float("inf")
        size = np.abs(before)
        if now.ndim > 1:
            size = np.linalg.norm(before, axis=-1, keepdims=True)
        moved, size = np.broadcast_arrays(np.abs(before - now), size)
        # a zero that is no longer one is another question, however small
        share = np.where(moved == 0, 0.0, np.inf)
        return float(np.max(np.divide(moved, size, out=share, where=size > 0)))


def family(probes: Probes) -> str:
    """Describe a family of probes by everything but its arrays."""
    return json.dumps(
        [type(probes).__name__, len(probes), probes.tokens, probes.dim, probes.purpose]
    )
