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


def low_rank_head(dim: int, rank: int, *, biases: bool = False) -> int:
    """Count the free parameters of a head whose W, or [W w] with biases, has rank r.

    d for v and r(2d − r) for W; with biases r(2d + 1 − r) for [W w] and one for c.

    Examples
    --------
    >>> low_rank_head(384, 32), low_rank_head(384, 32, biases=True)
    (23936, 23969)
    """
    return dim + biases + rank * (2 * dim + biases - rank)
