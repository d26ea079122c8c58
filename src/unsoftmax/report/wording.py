"""Numbers and bounds in words, for readers who do not know the field."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unsoftmax.figures.model_panels import matrices
from unsoftmax.figures.panel import scientific
from unsoftmax.probes import Array

PURPOSES = {
    "data": "the parameters are read from these",
    "pilot": "these too, and they set a scale first",
    "again": "asked again where a first answer taught nothing",
    "check": "the hold-out: predicted, never learned from",
    "fingerprint": "recorded questions asked again, to recognise the target",
    "failed": "paid, and nothing usable came back",
    "in doubt": "in flight when an earlier process died",
}
"""Why something was asked, by what the ledger calls it."""


def purpose_rows(counts: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Return what was asked, how often, and why."""
    names = [*(name for name in PURPOSES if name in counts), *(counts.keys() - PURPOSES.keys())]
    return tuple(
        (name, f"{counts[name]:,}", PURPOSES.get(name, "")) for name in names if counts[name]
    )


def certainty(bound: float, norm: float) -> str:
    """Say what a bound on an error means beside the size of what it bounds.

    Examples
    --------
    >>> certainty(2e-13, 4.0)
    'known to 13 digits of its norm'
    >>> certainty(5.0, 4.0), certainty(float("inf"), 4.0), certainty(0.0, 4.0)
    ('not known: it may be off by all of its size', 'not bounded', 'exact')
    """
    if not math.isfinite(bound):
        return "not bounded"
    if not bound:
        return "exact" if norm else "0, as assumed or found"
    if not norm > 0:
        return "0 as recovered, and no larger than the bound"
    size = min(norm, sys.float_info.max)  # squares of entries may leave float64
    digits = int(math.log10(size) - math.log10(bound)) if bound < size else -1
    if digits < 0:
        return "not known: it may be off by all of its size"
    if not digits:
        return "known to its size, and no digit more"
    return f"known to {digits} digit{'s' if digits > 1 else ''} of its norm"


def parameter_rows(model: Any) -> tuple[tuple[str, ...], ...]:
    """Return a model's arrays: name, shape, norm or value."""
    parts = matrices(model)
    rows: list[tuple[str, ...]] = [(x.name, x.shape, scientific(x.norm)) for x in parts]
    shown = {part.name.split(" ")[0] for part in parts}
    shown |= {"K", "Q"} if "W" in shown else set()
    shown |= {"O", "V"} if "M" in shown else set()
    arrays = model.arrays() if hasattr(model, "arrays") else {}
    rest = {name: x for name, x in arrays.items() if _own_name(name) not in shown}
    return (*rows, *array_rows(rest))


def _own_name(name: str) -> str:
    """Return the name of a head's array without the head's."""
    return name.rpartition(".")[2] if name.startswith("heads.") else name


def array_rows(arrays: Mapping[str, Array]) -> tuple[tuple[str, ...], ...]:
    """Return arrays by name, shape, and norm or value."""
    return tuple(
        (
            name,
            " × ".join(map(str, array.shape)) or "a number",
            scientific(float(np.linalg.norm(array)) if array.shape else float(array)),
        )
        for name, array in arrays.items()
    )


def setting_rows(settings: Mapping[str, Any], within: str = "") -> tuple[tuple[str, str], ...]:
    """Return nested settings by their full names."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += setting_rows(value, f"{within}{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str) and len(str(value)) > 200:
            rows.append((f"{within}{name}", f"{len(value)} values: see the file"))
        else:
            rows.append((f"{within}{name}", "not given" if value is None else str(value)))
    return tuple(rows)
