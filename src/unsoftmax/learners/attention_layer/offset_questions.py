"""Questions of two tokens, [b + a; b], and their answers as arrays."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Array, Purpose, Sequences


def asked_beside(a: Array, b: Array, phase: str) -> Asking[Array]:
    """Ask all offsets (J, d) beside all query tokens (K, d): answers (K, J, m)."""
    X = np.empty((len(b), len(a), 2, b.shape[1]))
    X[:, :, 0] = b[:, None] + a
    X[:, :, 1] = b[:, None]
    [y] = yield [Sequences(X.reshape(-1, 2, b.shape[1]), phase=phase, purpose="data")]
    return np.asarray(y.reshape(len(b), len(a), -1))


def asked_in_pairs(a: Array, b: Array, phase: str, purpose: Purpose = "data") -> Asking[Array]:
    """Ask each offset (K, d) beside the query token (K, d) of its own: answers (K, m)."""
    [y] = yield [Sequences(np.stack([b + a, b], axis=1), phase=phase, purpose=purpose)]
    return np.asarray(y)
