"""An oracle around another one: what all of them share.

A wrapped oracle is a callable like any other. It knows the attribute ``dim`` when the oracle
inside does, it can be pickled when that can, and it may be wrapped again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from unsoftmax.probes import Array
from unsoftmax.protocol import Oracle


@dataclass(frozen=True, eq=False)
class WrappedOracle(ABC):
    """An oracle that asks another one."""

    oracle: Oracle

    def __post_init__(self) -> None:
        if not callable(self.oracle):
            raise TypeError(f"An oracle must be callable; it is {type(self.oracle).__name__}.")

    @property
    def dim(self) -> Any:
        """Dimension of a token, where the wrapped oracle knows it (AttributeError otherwise)."""
        return self.oracle.dim  # type: ignore[attr-defined]

    @abstractmethod
    def __call__(self, X: Array, /) -> Any:
        """Answer a batch of sequences."""
