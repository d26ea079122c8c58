"""What is promised of heads that are as close to each other as answers leave them open.

One head may be taken for two, or two for one another, where their scores differ by less than the
bounds on these: the answers then tell the sum of their values, and no bound to first order holds
for either.
"""

from collections.abc import Mapping

import numpy as np
import scipy

from unsoftmax.probes import Array

OF_HEADS = ("W", "w", "v", "M")
"""Parameters of single heads."""


# Bounds hold for no head where they are above this share of the smallest distance between the [W w]
# of two heads: how answers depend on two heads is not linear over that. Larger: of 120 pairs of
# heads 1 % apart behind float32, some bounds were broken by up to a fifth.
CLOSE = 0.5


def bounds_of_close(
    errors: Mapping[str, float], apart: float
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return bounds on the errors of heads that are ``apart``, and what they assume.

    Examples
    --------
    >>> bounds_of_close({"W": 1e-3, "v": 1e-9, "c": 0.0}, 1.0)
    ({'W': 0.001, 'v': 1e-09, 'c': 0.0}, ())
    >>> bounds_of_close({"W": 1e-3, "v": 1e-9, "c": 0.0}, 1e-3)[0]
    {'W': inf, 'v': inf, 'c': 0.0}
    """
    if np.hypot(errors["W"], errors.get("w", 0.0)) <= CLOSE * apart:
        return dict(errors), ()
    open_ones = {name: np.inf for name in OF_HEADS if name in errors}
    return {**errors, **open_ones}, (
        f"Two heads differ by {apart:.1e} in W, about as much as the answers leave "
        "undetermined: no first-order bound holds for heads so close. They may be one head.",
    )


def nearest(scores: Array) -> float:
    """Return the smallest distance between two rows (H, n); inf of fewer than two.

    Examples
    --------
    >>> nearest(np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]]))
    1.0
    """
    return float(scipy.spatial.distance.pdist(scores).min()) if len(scores) > 1 else float("inf")
