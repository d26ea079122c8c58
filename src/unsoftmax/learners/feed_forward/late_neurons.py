"""Rows of neurons from tokens far apart, once all columns are known, and where each is active.

An answer less what is known is Σ b_j z_j over the neurons that are active at the token: where they
are fewer than its numbers, all z_j = a_j·t + β_j follow, and from these a_j and β_j.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.feed_forward.found_neurons import FoundNeurons
from unsoftmax.probes import Array

# Tokens where more neurons are active, in numbers of an answer, are not used.
SHARE = 0.7
# A row is solved from so many tokens per dimension, or stays as it was.
TOKENS = 1.05
# Lengths of tokens where neurons are active, in radii.
LONG = 0.9


@dataclass(frozen=True, slots=True)
class LateNeurons:
    """Tokens, and what neurons must explain of the answers."""

    tokens: Array
    """(n, k)."""
    left: Array
    """(n, d_out)."""
    found: FoundNeurons
    """The neurons as they are known so far; columns are taken as they are."""
    noise: float
    """What ``left`` is off by (2-norm)."""

    def values(self) -> tuple[Array, Array]:
        """Return z (n, h), nan where a neuron is not active or not told, and gains of errors."""
        found, d_out = self.found, self.left.shape[1]
        active = self.tokens @ found.rows.T + found.bias > 0
        z, gain = np.full(active.shape, np.nan), np.zeros(active.shape)
        for i, on in enumerate(active):
            if not 0 < np.sum(on) <= SHARE * d_out:
                continue
            inverse = np.linalg.pinv(found.columns[on].T)
            z[i, on] = inverse @ self.left[i]
            gain[i, on] = np.linalg.norm(inverse, axis=1)
        return z, gain

    def solved(self) -> FoundNeurons:
        """Return the neurons with better rows and biases."""
        z, gain = self.values()
        found, k = self.found, self.tokens.shape[1]
        rows, bias = found.rows.copy(), found.bias.copy()
        row_error, bias_error = found.row_error.copy(), found.bias_error.copy()
        for j in range(len(rows)):
            on = np.isfinite(z[:, j])
            if np.sum(on) < TOKENS * (k + 1) + 1:
                continue
            row, at, error = self._row(self.tokens[on], z[on, j], 1 / gain[on, j])
            size = float(np.linalg.norm(error[:-1]))
            if size < found.row_error[j]:
                rows[j], bias[j], row_error[j], bias_error[j] = row, at, size, error[-1]
        return replace(found, rows=rows, bias=bias, row_error=row_error, bias_error=bias_error)

    def _row(self, t: Array, z: Array, weight: Array) -> tuple[Array, float, Array]:
        """Solve z = a·t + β; return a, β and what they are off by, by what is missed."""
        k = t.shape[1]
        middle = weight @ t / np.sum(weight)
        equations = np.column_stack([t - middle, np.ones(len(t))]) * weight[:, None]
        U, s, Vt = np.linalg.svd(equations, full_matrices=False)
        solution = Vt.T @ ((U.T @ (z * weight)) / s)
        missed = float(np.linalg.norm(z * weight - equations @ solution)) / np.sqrt(len(t) - k - 1)
        typical = np.hypot(missed, self.noise / np.sqrt(self.left.shape[1]))
        error = typical * np.linalg.norm(Vt.T / s, axis=1)
        along = float(np.linalg.norm(error[:-1]) * np.linalg.norm(middle)) / np.sqrt(k)
        error[-1] = np.hypot(error[-1], along)
        return solution[:-1], float(solution[-1] - solution[:-1] @ middle), error


def where_active(found: FoundNeurons, length: float) -> Array:
    """Return a token so long at which all of some neurons are active, or as many as are found."""
    size = np.linalg.norm(found.rows, axis=1)
    units, away = found.rows / size[:, None], found.bias / size
    some = np.arange(len(size))
    while True:
        way = np.sum(units[some], axis=0)
        token = np.asarray(way * (length / np.linalg.norm(way)))
        if len(some) == 1 or np.all(units[some] @ token + away[some] > 0):
            return token
        some = some[:-1]
