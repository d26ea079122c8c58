"""Whether a row of a ledger means anything: types, lengths, JSON of the right form.

A checksum tells what an accident has changed. Whoever makes a ledger to do harm knows how
checksums are made; what this refuses never reaches the code that believes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def makes_sense(table: str, values: Sequence[Any]) -> bool:
    """Tell whether a row's values, without its checksum, are of the form that its table has."""
    try:
        return _FORMS[table](*values)
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return False


def _file(name: Any, *numbers: Any) -> bool:
    return isinstance(name, str) and _counts(*numbers)


def _runs(run: str, batch: Any, environment: str) -> bool:
    known = (json.loads(text) for text in (run, environment))
    return all(isinstance(content, dict) for content in known) and (batch is None or batch >= 1)


def _designs(key: Any, dtype: str, shape: str, data: Any) -> bool:
    kind, sizes = np.dtype(dtype), json.loads(shape)
    return (
        isinstance(key, bytes)
        and kind.kind in "fiu"
        and _counts(*sizes)
        and len(data) == kind.itemsize * math.prod(sizes)
    )


def _parts(index: Any, part: Any, head: str, arrays: str) -> bool:
    family, *numbers, purpose = json.loads(head)
    texts = isinstance(family, str) and isinstance(purpose, str)
    hashes = [bytes.fromhex(key) for key in json.loads(arrays).values()]
    return texts and len(numbers) == 3 and _counts(index, part, *numbers) and all(hashes)


def _asked(number: Any, purpose: str, queries: Any, tokens: Any, outcome: str | None) -> bool:
    texts = purpose.isprintable() and (outcome is None or outcome.isprintable())
    return texts and _counts(queries, tokens) and isinstance(number, int)


def _answers(index: Any, part: Any, start: Any, count: Any, data: bytes, width: Any) -> bool:
    return _counts(index, part, start, count, width) and len(data) == 8 * count * width


def _counts(*numbers: Any) -> bool:
    return all(isinstance(number, int) and number >= 0 for number in numbers)


_FORMS: Mapping[str, Callable[..., bool]] = {
    "file": _file,
    "runs": _runs,
    "designs": _designs,
    "parts": _parts,
    "asked": _asked,
    "answers": _answers,
}
