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

from dataclasses import dataclass

import numpy as np

from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.neurons import ACTIVATIONS
from unsoftmax.probes import Array

# Limit on the Gauss–Newton steps (three are usual), and on the iterations for each, which end at
# this share of what equations are made of. Fewer: directions that the tokens hardly show stay. A
# step that leaves more than this share of the misses is the last.
STEPS, ITERATIONS, ENDED, GAINED = 6, 400, 1e-5, 0.9
# Columns of a neuron are orthogonal to this share of the largest: others stay as they are.
_INDEPENDENT = 1e-7


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

    def errors(
        self, found: NeuronParameters, size: float, draws: int, rng: np.random.Generator
    ) -> list[NeuronParameters]:
        """Return what drawn errors of this weighted size do to the parameters."""
        drawn = (size * rng.standard_normal(self.y.shape) for _ in range(draws))
        return [found.of_flat(self._solved(found, one)) for one in drawn]

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
        # takes long to load, and few runs come here
        from scipy.sparse.linalg import LinearOperator, lsmr

        w, (n, size) = self.weight[:, None], self.seen(layer.norm)
        x = _with_ones(n)
        h, slopes = self._neurons(layer.rows, x)
        q, m, wide = layer.rows.shape
        # what B and c explain is taken off
        design = w * _with_ones(h)
        tall = np.maximum(np.linalg.norm(design, axis=0), TINY)
        U, s, Vt = np.linalg.svd(design / tall, full_matrices=False)
        seen = s > UNIT * len(x) * s[0]
        U, back_to = U[:, seen], (Vt[seen].T / s[seen]) / tall[:, None]
        # orthonormal columns of each neuron, and of the norm
        each = ((w * slopes[..., j].T)[:, :, None] * x[:, None] for j in range(m))
        sizes = np.maximum(np.linalg.norm(layer.B, axis=0), TINY)[:, None, None]
        apart = np.array([_inverse_factor(one.reshape(len(x), -1)) for one in each]) / sizes
        by_norm = self._by_norm(layer, n, size, slopes)
        of_norm = _inverse_factor(by_norm.reshape(-1, by_norm.shape[2]))

        def left(y: Array) -> Array:
            return np.asarray(y - U @ (U.T @ y))

        def bent(rows: Array, norm: Array) -> Array:
            along = np.sum(slopes * (x @ rows.swapaxes(1, 2)), axis=0)
            return np.asarray(w * (along @ layer.B.T) + by_norm @ norm)

        def parts(change: Array) -> tuple[Array, Array]:
            each = np.einsum("jab,jb->ja", apart, change[: apart[:, 0].size].reshape(m, -1))
            return each.reshape(m, q, wide).swapaxes(0, 1), of_norm @ change[apart[:, 0].size :]

        def ahead(change: Array) -> Array:
            return left(bent(*parts(change))).ravel()

        def back(misses: Array) -> Array:
            r = left(misses.reshape(self.y.shape))
            each = (slopes * ((w * r) @ layer.B)).swapaxes(1, 2) @ x
            rows = np.einsum("jab,ja->jb", apart, each.swapaxes(0, 1).reshape(m, -1))
            return np.append(rows, of_norm.T @ np.einsum("ip,ipk->k", r, by_norm))

        unknowns = apart[:, 0].size + len(layer.norm)
        shape = (misses.size, unknowns)
        system = LinearOperator(shape, matvec=ahead, rmatvec=back, dtype=np.float64)
        found = lsmr(system, left(misses).ravel(), atol=ENDED, btol=0, maxiter=ITERATIONS)
        rows, norm = parts(found[0])
        outer = back_to @ (U.T @ (misses - bent(rows, norm)))
        return NeuronParameters(rows, outer[:-1].T, outer[-1], norm).flat

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


def _with_ones(x: Array) -> Array:
    return np.column_stack([x, np.ones(len(x))])


def _inverse_factor(columns: Array) -> Array:
    """Return the matrix that makes columns (n, c) orthonormal, (c, c)."""
    gram = columns.T @ columns
    sizes = np.sqrt(np.diagonal(gram)) + TINY
    values, vectors = np.linalg.eigh(gram / sizes[:, None] / sizes)
    least = _INDEPENDENT**2 * np.max(values, initial=0.0) + TINY
    return np.asarray(vectors / np.sqrt(np.maximum(values, least)) / sizes[:, None])
