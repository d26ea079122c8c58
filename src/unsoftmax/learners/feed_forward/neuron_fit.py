"""All parameters of a layer, and the norm before it, from all answers at once.

    y = B φ(A n + b) + c,  or gated,  B (φ(G n + g) ⊙ (A n + b)) + c,
    n = v/√(|v|²/d + eps), v = x + s,  or n = x without a norm before.

What was read one after the other hands its errors on: an s that is off by 1e-11 turns inputs of
length √(d eps) by 1e-9, and so rows of A. Here s and eps are unknown as rows are. Gauss–Newton: B
and c, s and eps follow by least squares from the rows (variable projection), whose equations are
solved by LSMR, each neuron's columns nearly orthogonal among themselves. Of three numbers for each
unknown one, from tokens that are far apart. Of answers that are directions of sums each length is
one more unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.neurons import ACTIVATIONS
from unsoftmax.probes import Array, Flags

# Limit on the Gauss–Newton steps (three are usual), and on the iterations for each, which end at
# this share of what equations are made of. Fewer: directions that the tokens hardly show stay. A
# step that leaves more than this share of the misses is the last.
STEPS, ITERATIONS, ENDED, GAINED = 6, 4000, 1e-5, 0.9
# Changes of a neuron's rows that its equations show by less than this share, squared, of the one
# that they show best are not shown: its column of B explains the change along its row, for one.
_UNSHOWN = 1e-8
# No activation is steeper, but for a ReLU, whose slope is 1.
STEEPEST = 1.13
# A normalised token moves by at most so much of √d for each share that eps is off by: τ(1 − τ²)/2.
MOVED_BY_EPS = 0.2
# Draws of errors for a certificate, and how many numbers these are at least. A normal number is
# beyond six root mean squares of twelve others once in 16,000 times, of three once in a hundred.
DRAWS, DRAWN_NUMBERS = 3, 12
_NO_NORM = np.zeros(0)


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
    def of(cls, layer: FeedForward, norm: Array = _NO_NORM) -> NeuronParameters:
        """Take those of a layer of tokens that a norm has normalised, or of all tokens."""
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

    def taken(self, which: Flags) -> NeuronParameters:
        """Return those of some neurons."""
        return replace(self, rows=self.rows[:, which], B=self.B[:, which])


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
    along : ndarray (n, p), optional
        Directions of norm 1 along which answers are not known: how long a sum is that a norm
        behind normalises.
    """

    x: Array
    y: Array
    weight: Array
    activation: str
    dim: int = 0
    along: Array | None = None

    def run(self, start: NeuronParameters) -> tuple[NeuronParameters, float]:
        """Fit; return the parameters, and the misses' root mean square, weighted."""
        best, misses = start, self._misses(start)
        for _ in range(STEPS):
            [change] = self._equations(best).solved([misses])
            new = best.moved(best.of_flat(change))
            # what tokens hardly show may be led to where sums are not finite
            with np.errstate(over="ignore", invalid="ignore"):
                left = self._misses(new)
                gained = np.linalg.norm(left) / (np.linalg.norm(misses) or 1.0)
            if gained < 1:
                best, misses = new, left
            if not gained <= GAINED:
                break
        free = max(1, misses.size - best.flat.size)
        return best, float(np.linalg.norm(misses) / np.sqrt(free))

    def disturbed(
        self, found: NeuronParameters, by: Iterable[tuple[Array, Array]]
    ) -> list[NeuronParameters]:
        """Return what would have been found had tokens and answers been off by so much more."""
        misses = self._misses(found)
        moved = (replace(self, x=self.x + x, y=self.y + y)._misses(found) - misses for x, y in by)
        changes = self._equations(found).solved(moved)
        return [found.moved(found.of_flat(change)) for change in changes]

    def unseen(self, layer: NeuronParameters) -> Flags:
        """Tell which neurons bend at no token (m,), so that any scale of their rows would do."""
        values, *_ = self._equations(layer).spectra()
        # a factor between a gated neuron's row and its column is free
        return np.asarray(values[:, len(layer.rows) - 1] < _UNSHOWN * values[:, -1])

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
        misses = self.weight[:, None] * (self.y - h @ layer.B.T - layer.c)
        if self.along is not None:
            misses -= np.sum(misses * self.along, axis=1, keepdims=True) * self.along
        return np.asarray(misses)

    def _neurons(self, rows: Array, n: Array) -> tuple[Array, Array]:
        """Return what neurons answer (n, m), and their slopes along each row (q, n, m)."""
        phi, z = ACTIVATIONS[self.activation], n @ rows.swapaxes(1, 2)
        if len(rows) == 1:
            return phi.of(z[0]), phi.slope(z)
        return phi.of(z[0]) * z[1], np.stack([phi.slope(z[0]) * z[1], phi.of(z[0])])

    def _equations(self, layer: NeuronParameters) -> _Equations:
        """Return the equations of a change of all parameters that explains misses."""
        n, size = self.seen(layer.norm)
        h, slopes = self._neurons(layer.rows, _with_ones(n))
        by_norm, weight = self._by_norm(layer, n, size, slopes), self.weight[:, None]
        design = weight * _with_ones(h)
        along = np.zeros((len(n), 0)) if self.along is None else self.along
        return _Equations.of(design, weight * slopes, _with_ones(n), layer.B, by_norm, along)

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
    """Equations of changes of rows; what B, c and the norm explain is taken off.

    Attributes
    ----------
    design : ndarray (n, m + 1)
        What B and c are multiplied with, weighted.
    U : ndarray (n, r)
        Orthonormal, its range.
    back_to : ndarray (m + 1, r)
        From coordinates there to B and c.
    slopes : ndarray (q, n, m)
        Of neurons along their rows, weighted.
    x : ndarray (n, k + 1)
    B : ndarray (p, m)
    by_norm : ndarray (n, p, k + 1)
    along : ndarray (n, p)
        Along which answers are not known, or (n, 0).
    """

    design: Array
    U: Array
    back_to: Array
    slopes: Array
    x: Array
    B: Array
    by_norm: Array
    along: Array

    @classmethod
    def of(
        cls, design: Array, slopes: Array, x: Array, B: Array, by_norm: Array, along: Array
    ) -> _Equations:
        """Find the range of what B and c are multiplied with."""
        tall = _sizes(design, 0)
        U, s, Vt = np.linalg.svd(design / tall, full_matrices=False)
        seen = s > UNIT * len(x) * s[0]
        back_to = (Vt[seen].T / s[seen]) / tall[:, None]
        return cls(design, U[:, seen], back_to, slopes, x, B, by_norm, along)

    def solved(self, several: Iterable[Array]) -> list[Array]:
        """Return the changes that explain misses (n, p) best, as `NeuronParameters` has them."""
        # takes long to load, and few runs come here
        from scipy.sparse.linalg import LinearOperator, lsmr

        factors, norm = self._factors(), self._left(self.by_norm)
        shape, size = norm.shape[:2], _sizes(norm, (0, 1))
        Q, R = np.linalg.qr((norm / size).reshape(shape[0] * shape[1], -1))

        wide = factors.shape[0] * factors.shape[1]
        free = len(self.along) if self.along.size else 0

        def rows_of(change: Array) -> Array:
            """Return rows (q, m, k + 1)."""
            rows = factors @ change[:wide].reshape(len(factors), -1, 1)
            return np.asarray(rows.reshape(len(factors), len(self.slopes), -1).swapaxes(0, 1))

        def moved(change: Array) -> Array:
            """Return what rows, and lengths that are not known, change answers by, (n, p)."""
            moved = self._bent(rows_of(change))
            return moved + change[wide:, None] * self.along if free else moved

        def left(y: Array) -> Array:
            rest = self._left(y).ravel()
            return np.asarray(rest - Q @ (Q.T @ rest))

        def back(rest: Array) -> Array:
            # these are what is left already
            r = rest.reshape(shape) @ self.B
            rows = np.stack([(each * r).T @ self.x for each in self.slopes], axis=1)
            rows = factors.swapaxes(1, 2) @ rows.reshape(len(factors), -1, 1)
            lengths = np.sum(rest.reshape(shape) * self.along, axis=1) if free else []
            return np.concatenate([rows.ravel(), lengths])

        system = LinearOperator(
            (shape[0] * shape[1], wide + free),
            matvec=lambda change: left(moved(change)),
            rmatvec=back,
            dtype=np.float64,
        )
        changes = []
        for misses in several:
            found = lsmr(system, left(misses), atol=ENDED, btol=0, maxiter=ITERATIONS)
            rows = rows_of(found[0])
            rest = misses - moved(found[0])
            by = np.linalg.solve(R, Q.T @ self._left(rest).ravel()) / size
            outer = self.back_to @ (self.U.T @ (rest - self.by_norm @ by))
            changes.append(np.concatenate([rows.ravel(), by, outer[:-1].T.ravel(), outer[-1]]))
        return changes

    def _left(self, y: Array) -> Array:
        flat = y.reshape(len(y), -1)
        return np.asarray(flat - self.U @ (self.U.T @ flat)).reshape(y.shape)

    def _bent(self, rows: Array) -> Array:
        """Return what a change of rows (q, m, k + 1) does to answers, (n, p)."""
        along = sum(
            slopes * (self.x @ row.T) for slopes, row in zip(self.slopes, rows, strict=True)
        )
        return np.asarray(along @ self.B.T)

    def _factors(self) -> Array:
        """Return what makes each neuron's columns independent of each other, (m, q(k + 1), …)."""
        values, vectors, size = self.spectra()
        least = np.maximum(_UNSHOWN * values[:, -1:], TINY)
        size = size * _sizes(self.B, 0)[:, None]
        return np.asarray(vectors / np.sqrt(np.maximum(values, least))[:, None] / size[:, :, None])

    def spectra(self) -> tuple[Array, Array, Array]:
        """Return how changes of each neuron's rows show, ascending, these, and their units."""
        m, wide, q = self.B.shape[1], self.x.shape[1], len(self.slopes)
        gram = np.zeros((m, q * wide, q * wide))
        for j in range(m):
            on = np.any(self.slopes[:, :, j], axis=0)
            columns = self.slopes[:, on, j].T[:, :, None] * self.x[on, None]
            columns = columns.reshape(-1, q * wide)
            explained = self.U[on].T @ columns
            gram[j] = columns.T @ columns - explained.T @ explained
        diagonal = np.diagonal(gram, axis1=1, axis2=2)
        size = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        values, vectors = np.linalg.eigh(gram / size[:, :, None] / size[:, None])
        return np.asarray(values), np.asarray(vectors), size


def drawn_layers(layer: FeedForward, draw: Callable[[int], list[FeedForward]]) -> list[FeedForward]:
    """Return what so many draws of errors make of a layer, as many as tell how large errors are.

    Where one neuron has most of an error that is one number, or few, which a few draws may have
    small by chance.
    """
    others = draw(DRAWS)
    few = DRAWS * _independent(layer, others) < DRAWN_NUMBERS
    return others + draw(DRAWN_NUMBERS - DRAWS) if few else others


def _independent(layer: FeedForward, others: Sequence[FeedForward]) -> float:
    """Return among how many neurons errors are spread, of the array where that is least."""
    least = np.inf
    for name, mine in layer.arrays().items():
        if name in ("A", "b", "B", "G", "g"):
            off = np.array([other.arrays()[name] - mine for other in others])
            off = np.sum(np.abs(off if name != "B" else off.swapaxes(1, 2)) ** 2, axis=0)
            each = np.sum(off.reshape(len(off), -1), axis=1)
            each /= np.max(each, initial=0.0) or 1.0
            if np.any(each):
                least = min(least, np.sum(each) ** 2 / np.sum(each**2))
    return least


def layer_errors(
    layer: FeedForward,
    others: Sequence[FeedForward],
    reach: float = np.inf,
    eps: Sequence[float] = (),
) -> dict[str, float]:
    """Return what other layers differ by, root mean squares: arrays, and the function.

    ``eps`` are shares that theirs of a norm before differ by. The function is off by no more than
    constant + slope·‖x‖ at any x; where neurons are gated, up to the length ``reach``.
    """
    moved = eps or [0.0] * len(others)
    each = [_differences(layer, *other, reach) for other in zip(others, moved, strict=True)]
    squares = {name: np.mean([one[name] ** 2 for one in each]) for name in each[0]}
    errors = {name: float(np.sqrt(square)) for name, square in squares.items()}
    if eps:
        errors["eps"] = float(np.sqrt(np.mean(np.square(eps))))
    return errors


def _differences(
    layer: FeedForward, other: FeedForward, eps: float, reach: float
) -> dict[str, float]:
    mine, theirs = layer.arrays(), other.arrays()
    off = {
        name: theirs[name] - mine[name] for name in ("A", "b", "B", "c", "G", "g") if name in mine
    }
    errors: dict[str, float] = {name: float(np.linalg.norm(x)) for name, x in off.items()}
    nearer = MOVED_BY_EPS * reach * abs(eps) if eps else 0.0
    phi = ACTIVATIONS[layer.activation]
    steep, phi_0 = 1.0 if phi.homogeneous else STEEPEST, phi.of(np.zeros(1))[0]
    columns, column = np.linalg.norm(layer.B, axis=0), np.linalg.norm(off["B"], axis=0)

    def sums(W: Array, b: Array) -> Array:
        """Return what sums are at most, at x = 0 and more for each unit of length, (2, m)."""
        return np.array([np.abs(b), np.linalg.norm(W, axis=1)])

    z, dz = sums(layer.A, layer.b), sums(off["A"], off["b"])
    dz[0] += nearer * z[1]
    if layer.gate is None:
        value = steep * z
        value[0] += phi_0
        # errors of row and column are independent
        constant, slope = np.linalg.norm(np.hypot(column * value, steep * columns * dz), axis=1)
        constant = np.hypot(constant, errors["c"])
    else:
        t, dt = sums(*layer.gate), sums(off["G"], off["g"])
        dt[0] += nearer * t[1]
        length = np.array([[1.0, 0.0], [1.0, reach]])
        z, dz, value, dt = length @ z, length @ dz, phi_0 + steep * length @ t, length @ dt
        each = column * value * z + columns * (steep * dt * z + value * dz)
        # convex in the length, so that the chord is above
        constant, far = np.hypot(np.linalg.norm(each, axis=1), errors["c"])
        slope = (far - constant) / reach
    return errors | {"constant": float(constant), "slope": float(slope)}


def _sizes(columns: Array, axis: int | tuple[int, int]) -> Array:
    """Return norms to divide by: 1 where all is 0, as of neurons that no token activates."""
    norms = np.linalg.norm(columns, axis=axis)
    return np.asarray(np.where(norms > 0, norms, 1.0))


def _with_ones(x: Array) -> Array:
    return np.column_stack([x, np.ones(len(x))])
