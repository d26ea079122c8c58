"""Gates of saturated heads: the columns of zeros and ones in a linear span.

Where every gate of H heads is 0 or 1, K answers z_k = Σ_h g_kh m_h, m_h ∈ R^m, have rank H, and
the span of their left singular vectors is that of the columns g_h ∈ {0, 1}^K. With one row in
which all gates are 1 (the sum of all m_h is known) and K well above H, the g_h are the only
columns of zeros and ones with a 1 in that row: all 2^(H−1) choices of H independent rows are
tried at once. Nothing is asked here and nothing is known of answers: a span in, columns out.
"""

import numpy as np
import scipy

from unsoftmax.probes import Array

# Most heads whose 2^(H−1) columns are tried: 16,384, in milliseconds. Each head more doubles it.
MOST = 15
# How far entries may be from 0 or 1. Larger: chance columns, which fail in some of a dozen rows;
# smaller: noise of weak heads, a share of noise over their share of the answers.
OFF_BY = 0.02
# Columns tried at a time: memory alone.
AT_ONCE = 4096


def gate_columns(span: Array) -> Array:
    """Return all columns of zeros and ones in a span that begin with a 1, as (K, found).

    Parameters
    ----------
    span : ndarray (K, H)
        Independent columns. The first row is the one where all gates are 1.

    Examples
    --------
    >>> gates = np.array([[1, 1], [0, 1], [1, 0], [1, 1], [0, 0], [0, 1.0]])
    >>> found = gate_columns(gates @ [[1.0, 2.0], [0.5, 3.0]])
    >>> sorted(found.T.astype(int).tolist())
    [[1, 0, 1, 1, 0, 0], [1, 1, 0, 1, 0, 1]]
    """
    K, H = span.shape
    rows = independent_rows(span)
    if rows is None:
        return np.zeros((K, 0))
    others = np.linalg.solve(span[rows].T, span.T).T  # every row from the chosen ones
    found = []
    for start in range(0, 2 ** (H - 1), AT_ONCE):
        numbers = np.arange(start, min(start + AT_ONCE, 2 ** (H - 1)))
        chosen = np.ones((H, len(numbers)))
        chosen[1:] = numbers >> np.arange(H - 1)[:, None] & 1
        entries = others @ chosen
        rounded = np.rint(entries)
        fits = (np.abs(entries - rounded) <= OFF_BY) & (rounded >= 0) & (rounded <= 1)
        found.append(rounded[:, fits.all(axis=0)])
    return np.concatenate(found, axis=1)


def independent_rows(span: Array) -> list[int] | None:
    """Choose H rows of a span (K, H) that are far from dependent, the first among them.

    None where the first row is 0 or there are too few.
    """
    K, H = span.shape
    length = float(np.linalg.norm(span[0])) if K else 0.0
    if K < H or not length:
        return None
    along = span[0] / length
    rest = span[1:] - np.outer(span[1:] @ along, along)
    _, order = scipy.linalg.qr(rest.T, mode="r", pivoting=True)
    return [0, *(1 + int(k) for k in order[: H - 1])]
