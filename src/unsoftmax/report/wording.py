"""Numbers and settings in words, for readers who do not know the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unsoftmax.figures.model_panels import matrices
from unsoftmax.figures.panel import scientific
from unsoftmax.models import RotaryHead, RotaryHeads, RotaryLayer
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


def parameter_rows(model: Any) -> tuple[tuple[str, ...], ...]:
    """Return a model's arrays: name, shape, norm or value."""
    parts = matrices(model)
    rows: list[tuple[str, ...]] = [(x.name, x.shape, scientific(x.norm)) for x in parts]
    shown = {part.name.split(" ")[0] for part in parts}
    shown |= {"K", "Q"} if "W" in shown else set()
    shown |= {"O", "V"} if "M" in shown else set()
    arrays = model.arrays() if hasattr(model, "arrays") else {}
    rest = {name: x for name, x in arrays.items() if _own_name(name) not in shown}
    if isinstance(model, RotaryLayer):
        groups = ", ".join(map(str, model.groups.tolist())) or "none"
        rows.append(("groups", str(rest.pop("groups").size), f"{groups}, of each head in turn"))
    if isinstance(model, (RotaryHead, RotaryLayer)):
        listed = rest.pop("frequencies")
        values = ", ".join(map(scientific, listed.tolist())) or "none"
        rows.append(("frequencies", str(listed.size), f"{values}, in radians per token"))
    elif isinstance(model, RotaryHeads):
        listed = rest.pop("frequencies")
        ends = [scientific(end) for end in (listed.min(initial=np.inf), listed.max(initial=0.0))]
        values = f"{' to '.join(ends)}, in radians per token" if listed.size else "none"
        rows.append(("frequencies", " × ".join(map(str, listed.shape)), values))
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
