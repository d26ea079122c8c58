"""How many queries each theorem promises, and how many parameters there are to find.

Every query gives one number, so the number of free parameters is the floor.
"""

from __future__ import annotations


def single_head(dim: int, *, biases: bool = False) -> int:
    """Count the free parameters of one head, which is also what Theorem 4.1 asks.

    d for v and d² for W; with biases d more for w and one for c.

    Examples
    --------
    >>> single_head(384), single_head(384, biases=True)
    (147840, 148225)
    """
    return (dim + 1) ** 2 if biases else dim * dim + dim
