"""Designs as the ledger keeps them: arrays by hash, compared when a run is resumed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.campaign.ledger_format import Statement, insertion
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


def part_rows(index: int, part: int, probes: Probes) -> list[Statement]:
    """Return what records a part of a round: its arrays by their hash, and what they are of."""
    names, rows = {}, []
    for name, array in probes.design().items():
        kept = DesignArray.of(array)
        names[name] = kept.key.hex()
        fields = kept.key, kept.array.dtype.str, json.dumps(kept.array.shape), kept.blob
        rows.append(insertion("designs", *fields, verb="INSERT OR IGNORE"))
    return [*rows, insertion("parts", index, part, family(probes), json.dumps(names))]


def moved_since(db: sqlite3.Connection, recorded: Mapping[str, str], probes: Probes) -> float:
    """Return how far today's design is from a recorded one; infinite where that is another."""
    design, moved = probes.design(), 0.0
    if recorded.keys() != design.keys():
        return float("inf")
    for name, array in design.items():
        now = DesignArray.of(array)
        if now.key.hex() == recorded[name]:
            continue
        kept = db.execute(
            "SELECT dtype, shape, data FROM designs WHERE hash = ?",
            (bytes.fromhex(recorded[name]),),
        ).fetchone()
        if kept is None:  # a salvaged ledger may lack it
            return float("inf")
        moved = float(np.maximum(moved, now.moved_from(DesignArray.read(*kept))))
    return moved


def family(probes: Probes) -> str:
    """Describe a family of probes by everything but its arrays."""
    return json.dumps(
        [type(probes).__name__, len(probes), probes.tokens, probes.dim, probes.purpose]
    )
