"""What share of a certificate's bounds two models' differences take."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from unsoftmax.models.equality.certificates import share_of_bounds
from unsoftmax.models.equality.verdicts import compare
from unsoftmax.models.products import Tolerance


def share(found: Any, target: Any, errors: Mapping[str, float]) -> float:
    """The largest one, whatever their answers say."""
    compared = compare((found.maps, target.maps), Tolerance(1e-9, 0.0))
    if compared is None or compared[1] is None:
        return np.inf
    return share_of_bounds((found, target), compared[1], errors)
