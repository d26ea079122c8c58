"""What recovering a layer may take."""

from __future__ import annotations

from typing import NamedTuple


class LayerCost(NamedTuple):
    """What recovery takes at most."""

    queries: int
    tokens: int
    rounds: int
