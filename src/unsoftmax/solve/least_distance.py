"""The shortest vector y with N y ≥ 1: least distance programming.

Query tokens that open one head's gate and close all others' are such vectors: the margins of the
gates are the rows of N times y, and the shorter y the larger they are beside its length. The
problem's dual is a non-negative least squares problem (Lawson and Hanson, Solving Least Squares
Problems, chapter 23): with E = [Nᵀ; 1ᵀ], f = (0, …, 0, 1) and r = E u − f for the u ≥ 0 that
makes ‖r‖ least, y = −r_{1..K}/r_{K+1}, and r = 0 where no y exists.
"""

import numpy as np
import scipy

from unsoftmax.probes import Array


def shortest_within(N: Array, nothing: float = 1e-9) -> Array | None:
    """Return the shortest y with N y ≥ 1, or None where there is none.

    Parameters
    ----------
    N : ndarray (n, K)
        The inequalities' rows.
    nothing : float
        What is left of f when it is a combination of the columns of E, but for rounding.

    Examples
    --------
    >>> shortest_within(np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    array([0.5, 1. ])
    >>> shortest_within(np.array([[1.0], [-1.0]]))
    """
    n, K = N.shape
    E = np.vstack([N.T, np.ones((1, n))])
    f = np.zeros(K + 1)
    f[-1] = 1.0
    u, left = scipy.optimize.nnls(E, f)
    if left <= nothing:
        return None
    r = E @ u - f
    return np.asarray(-r[:K] / r[K])
