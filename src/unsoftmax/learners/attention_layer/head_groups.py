"""Which heads share their keys and values: those whose values have the same row space.

M_h = O_h V_g for all heads h of a group g, so the rows of U⁺M_h span the rows of V_g.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from unsoftmax.learners.attention_layer.value_answers import HeadMaps
from unsoftmax.probes import Array
from unsoftmax.solve.leading_rows import leading_rows

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""The heads of every group."""


def groups_of(values: HeadMaps, allowed: float) -> Groups:
    """Put heads together whose values have the same row space, but for a sine of ``allowed``."""
    bases = [leading_rows(V, len(V)) for V in values.V]
    groups: list[list[int]] = []
    for h, basis in enumerate(bases):
        alike = (g for g in groups if _same(bases[g[0]], basis, allowed))
        group = next(alike, None)
        if group is None:
            groups.append([h])
        else:
            group.append(h)
    return tuple(map(tuple, groups))


def shared_rows(values: HeadMaps, group: Sequence[int]) -> Array:
    """Return an orthonormal basis (r, d) of the rows that the values of a group's heads share."""
    stacked = np.vstack([values.V[h] for h in group])
    return leading_rows(stacked, len(values.V[group[0]]))


def _same(one: Array, other: Array, allowed: float) -> bool:
    """Tell whether two row spaces of one dimension have no larger angle than allowed.

    Of values of full rank the row space tells nothing: these heads are taken to share nothing.
    """
    if len(one) != len(other) or len(one) == one.shape[1]:
        return False
    return float(np.linalg.norm(other - other @ one.T @ one, 2)) <= allowed
