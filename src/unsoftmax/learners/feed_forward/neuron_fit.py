"""All parameters of a layer, and the norm before it, from all answers at once.

    y = B φ(A n + b) + c,  or gated,  B (φ(G n + g) ⊙ (A n + b)) + c,
    n = v/√(|v|²/d + eps), v = x + s,  or n = x without a norm before.

What was read one after the other hands its errors on: an s that is off by 1e-11 turns inputs of
length √(d eps) by 1e-9, and so rows of A. Here s and eps are unknown as rows are. Gauss–Newton:
B and c follow by least squares from the others (variable projection), whose equations are solved by
LSMR, each neuron's columns orthogonal among themselves. Of three numbers for each unknown one, from
tokens that are far apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.neurons import ACTIVATIONS
from unsoftmax.probes import Array

# Limit on the Gauss–Newton steps (three are usual), and on the iterations for each, which end at
# this share of what equations are made of. Fewer: directions that the tokens hardly show stay. A
# step that leaves more than this share of the misses is the last.
STEPS, ITERATIONS, ENDED, GAINED = 6, 400, 1e-5, 0.9
# Rows of so many numbers are made independent together, of more each neuron's by themselves; and
# of how much, as a share, they are taken not to be.
_TOGETHER, _RIDGE = 6000, 1e-11


@dataclass(frozen=True, slots=True)
class NeuronParameters:
    """Parameters of a layer and the norm before it, or what they are off by.

    Attributes
    ----------
    rows : ndarray (q, m, k + 1)
        A and b; before them G and g where neurons have gates.
    B, c : ndarray (p, m), (p,)
    norm : ndarray (k + 1,)
        What is added to tokens before the norm, and log eps; empty without a norm.
    """

    rows: Array
    B: Array
    c: Array
    norm: Array

    @property
    def flat(self) -> Array:
        """All numbers in a row."""
        return np.concatenate([self.rows.ravel(), self.norm, self.B.ravel(), self.c])

    def of_flat(self, numbers: Array) -> NeuronParameters:
        """Arrange a row of numbers as these are."""
        parts = (self.rows, self.norm, self.B, self.c)
        ends = np.cumsum([part.size for part in parts])[:-1]
        shaped = zip(np.split(numbers, ends), parts, strict=True)
        rows, norm, B, c = (x.reshape(part.shape) for x, part in shaped)
        return NeuronParameters(rows, B, c, norm)

    @classmethod
    def of(cls, layer: FeedForward, norm: Array) -> NeuronParameters:
        """Take those of a layer of tokens that a norm has normalised."""
        rows = [] if layer.gate is None else [np.column_stack(layer.gate)]
        return cls(np.array([*rows, np.column_stack([layer.A, layer.b])]), layer.B, layer.c, norm)

    def layer(self, activation: str) -> FeedForward:
        """Return the layer of normalised tokens, rows as long as columns where that is free."""
        rows, B = self.rows, self.B
        if len(rows) > 1 or ACTIVATIONS[activation].homogeneous:
            lengths = np.linalg.norm(rows[-1, :, :-1], axis=1)
            scale = np.sqrt(np.linalg.norm(B, axis=0) / np.maximum(lengths, TINY))[:, None]
            rows, B = np.array([*rows[:-1], scale * rows[-1]]), B / scale.T
        (A, b), *gate = [(each[:, :-1], each[:, -1]) for each in rows[::-1]]
        return FeedForward(A, b, B, self.c, False, None, activation, gate[0] if gate else None)

    def moved(self, by: NeuronParameters) -> NeuronParameters:
        """Add what they are off by."""
        return self.of_flat(self.flat + by.flat)


@dataclass(frozen=True, slots=True)
class NeuronFit:
    """Tokens and answers that a layer is fitted to.

    Attributes
    ----------
    x, y : ndarray (n, k), (n, p)
    weight : ndarray (n,)
        One over the errors of the answers, but for a factor.
    activation : str
        Its name.
    dim : int
        d of the norm before, in which tokens are k or fewer.
    """

    x: Array
    y: Array
    weight: Array
    activation: str
    dim: int = 0

    def run(self, start: NeuronParameters) -> tuple[NeuronParameters, float]:
        """Fit; return the parameters, and the misses' root mean square, weighted."""
        best, misses = start, self._misses(start)
        for _ in range(STEPS):
            new = best.moved(best.of_flat(self._solved(best, misses)))
            left = self._misses(new)
            gained = np.linalg.norm(left) / (np.linalg.norm(misses) or 1.0)
            if gained < 1:
                best, misses = new, left
            if not gained <= GAINED:
                break
        free = max(1, misses.size - best.flat.size)
        return best, float(np.linalg.norm(misses) / np.sqrt(free))

    def disturbed(self, found: NeuronParameters, x: Array, y: Array) -> NeuronParameters:
        """Return what would have been found had tokens and answers been off by so much more."""
        other = replace(self, x=self.x + x, y=self.y + y)
        by = other._solved(found, other._misses(found) - self._misses(found))
        return found.moved(found.of_flat(by))

    def seen(self, norm: Array) -> tuple[Array, Array]:
        """Return what neurons see of tokens (n, k), and by what it was divided (n, 1)."""
        if not norm.size:
            return self.x, np.ones((len(self.x), 1))
        v = self.x + norm[:-1]
        size = np.sqrt(np.sum(v * v, axis=1, keepdims=True) / self.dim + np.exp(norm[-1]))
        return v / size, size

    def _misses(self, layer: NeuronParameters) -> Array:
        n, _ = self.seen(layer.norm)
        h, _ = self._neurons(layer.rows, _with_ones(n))
        return np.asarray(self.weight[:, None] * (self.y - h @ layer.B.T - layer.c))

    def _neurons(self, rows: Array, n: Array) -> tuple[Array, Array]:
        """Return what neurons answer (n, m), and their slopes along each row (q, n, m)."""
        phi, z = ACTIVATIONS[self.activation], n @ rows.swapaxes(1, 2)
        if len(rows) == 1:
            return phi.of(z[0]), phi.slope(z)
        return phi.of(z[0]) * z[1], np.stack([phi.slope(z[0]) * z[1], phi.of(z[0])])

    def _solved(self, layer: NeuronParameters, misses: Array) -> Array:
        """Return the change of all parameters that explains the misses best."""
        n, size = self.seen(layer.norm)
        h, slopes = self._neurons(layer.rows, _with_ones(n))
        by_norm = self._by_norm(layer, n, size, slopes)
        design = self.weight[:, None] * _with_ones(h)
        slopes = self.weight[:, None] * slopes.T
        equations = _Equations.of(design, slopes, _with_ones(n), layer.B, by_norm)
        return equations.solved(misses)

    def _by_norm(self, layer: NeuronParameters, n: Array, size: Array, slopes: Array) -> Array:
        """Return what the norm's unknowns change weighted answers by, (n, p, k + 1)."""
        if not layer.norm.size:
            return np.zeros((*self.y.shape, 0))
        J = np.einsum("qim,qmk->imk", slopes, layer.rows[..., :-1])
        J = np.einsum("pm,imk->ipk", layer.B, J)
        along = np.einsum("ipk,ik->ip", J, n)
        by_centre = (J - along[..., None] * n[:, None] / self.dim) / size[..., None]
        by_eps = -along * np.exp(layer.norm[-1]) / (2 * size**2)
        both = np.concatenate([by_centre, by_eps[..., None]], axis=2)
        return np.asarray(self.weight[:, None, None] * both)


@dataclass(frozen=True, slots=True)
class _Equations:
    """Equations of changes of rows and of the norm; what B and c explain is taken off.

    Attributes
    ----------
    U : ndarray (n, r)
        Orthonormal, the range of what B and c are multiplied with.
    back_to : ndarray (m + 1, r)
        From coordinates there to B and c.
    slopes : ndarray (m, n, q)
        Of neurons along their rows, weighted.
    x : ndarray (n, k + 1)
    B : ndarray (p, m)
    by_norm : ndarray (n, p, k + 1)
    """

    U: Array
    back_to: Array
    slopes: Array
    x: Array
    B: Array
    by_norm: Array

    @classmethod
    def of(cls, design: Array, slopes: Array, x: Array, B: Array, by_norm: Array) -> _Equations:
        """Take what B and c are multiplied with, (n, m + 1), off all others."""
        tall = np.maximum(np.linalg.norm(design, axis=0), TINY)
        U, s, Vt = np.linalg.svd(design / tall, full_matrices=False)
        seen = s > UNIT * len(x) * s[0]
        back_to = (Vt[seen].T / s[seen]) / tall[:, None]
        return cls(U[:, seen], back_to, slopes, x, B, by_norm)

    def solved(self, misses: Array) -> Array:
        """Return the changes that explain misses (n, p) best, as `NeuronParameters` has them."""
        # takes long to load, and few runs come here
        from scipy.linalg import solve_triangular
        from scipy.sparse.linalg import LinearOperator, lsmr

        m, _, q = self.slopes.shape
        wide, count = self.x.shape[1], self.by_norm.shape[2]
        size = m * q * wide
        each = m if size <= _TOGETHER else 1
        factors = [self._factor(slice(j, j + each)) for j in range(0, m, each)]
        norm = _factor(self.by_norm.reshape(-1, count).T @ self.by_norm.reshape(-1, count))

        def parts(change: Array, trans: Literal["N", "T"]) -> Array:
            rows = change[:size].reshape(len(factors), -1)
            pairs = [*zip(factors, rows, strict=True), (norm, change[size:])]
            solved = [solve_triangular(L, part, trans=trans, lower=True) for L, part in pairs]
            return np.concatenate(solved)

        def ahead(change: Array) -> Array:
            return self._left(self._bent(parts(change, "T"))).ravel()

        def back(misses: Array) -> Array:
            r = self._left(misses.reshape(-1, len(self.B)))
            rows = (self.slopes * (r @ self.B).T[..., None]).swapaxes(1, 2) @ self.x
            return parts(np.append(rows, np.einsum("ip,ipk->k", r, self.by_norm)), "N")

        shape = (misses.size, size + count)
        system = LinearOperator(shape, matvec=ahead, rmatvec=back, dtype=np.float64)
        found = lsmr(system, self._left(misses).ravel(), atol=ENDED, btol=0, maxiter=ITERATIONS)
        change = parts(found[0], "T")
        outer = self.back_to @ (self.U.T @ (misses - self._bent(change)))
        rows = change[:size].reshape(m, q, wide).swapaxes(0, 1)
        return np.concatenate([rows.ravel(), change[size:], outer[:-1].T.ravel(), outer[-1]])

    def _left(self, y: Array) -> Array:
        return np.asarray(y - self.U @ (self.U.T @ y))

    def _bent(self, change: Array) -> Array:
        """Return what a change of rows (m, q, k + 1) and of the norm does to answers, (n, p)."""
        m, _, q = self.slopes.shape
        rows = change[: m * q * self.x.shape[1]].reshape(m, q, -1)
        along = np.sum(self.slopes * (self.x @ rows.swapaxes(1, 2)), axis=2)
        return np.asarray(along.T @ self.B.T + self.by_norm @ change[rows.size :])

    def _factor(self, which: slice) -> Array:
        """Return the factor of what some neurons' columns have with each other."""
        slopes, B = self.slopes[which], self.B[:, which]
        columns = slopes[..., None] * self.x[:, None]
        columns = columns.transpose(1, 0, 2, 3).reshape(len(self.x), -1)
        left = self._left(columns)
        gram = (left.T @ left).reshape(len(slopes), -1, len(slopes), left.shape[1] // len(slopes))
        return _factor((gram * (B.T @ B)[:, None, :, None]).reshape(left.shape[1], -1))


def _with_ones(x: Array) -> Array:
    return np.column_stack([x, np.ones(len(x))])


def _factor(gram: Array) -> Array:
    """Return a triangular L with L Lᵀ nearly a matrix of products: a little is on its diagonal."""
    diagonal = np.diagonal(gram)
    size = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))[:, None]
    L = np.linalg.cholesky(gram / size / size.T + _RIDGE * np.eye(len(gram)))
    return np.asarray(size * L)
