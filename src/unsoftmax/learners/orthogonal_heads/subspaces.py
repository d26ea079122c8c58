"""The subspaces of orthogonal heads, from values: Appendix C's conjecture, made to work.

With s = Σ v_h known from single tokens, two tokens [(z+b); b] give

    f(X) − b·s − z·s/2 = ½ Σ_h (z·v_h)·tanh(z·u_h/2) = zᵀA(b)z/8 + O(z⁴),
    A(b) = Σ_h (u_h v_hᵀ + v_h u_hᵀ),   u_h = W_h b,

the Hessian of Appendix C: at two sizes of z, which removes the next order, d(d+1) queries per b.
No A(b) leads out of a U_h. So the U_h are the finest simultaneous block diagonalisation of a
few A(b): the symmetric X with [X, A(b)] = 0 for all of them form a space of dimension H, and
the eigenspaces of one of them, taken at random, are the U_h. But for heads of rank one: with
W_h = k qᵀ is A(b) in U_h (q·b)(k v_hᵀ + v_h kᵀ), whose two eigenvectors are the same for all b.
Such a head shows as two lines, whose eigenvalues are in proportion for all b: that joins them.
From rank two on the A(b) have no subspace of their own within span(v_h, W_h).

Source: the conjecture is Appendix C's; simultaneous block diagonalisation is Murota, Kanno,
Kojima & Kojima (2010), Maehara & Murota (2011). Differences from the paper: (1) a few random
b, one at a time until H no longer changes, unless ``tokens`` asks for e_1 … e_d; (2) sizes of
z and b far apart: the logits stay small and the answers keep their digits.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.measure.precision import KAPPA
from unsoftmax.measure.two_tokens import Values
from unsoftmax.probes import Array, Grid, Round
from unsoftmax.protocol import Answers

# The pilot looks from 2⁻³² to 2³² in steps of 16, along two directions: 34 queries.
_OCTAVES = np.arange(-32.0, 33.0, 4.0)
_DIRECTIONS = 2
PILOT = len(_OCTAVES) * _DIRECTIONS
# Answers are linear in the scale where 16 times the scale changes their slope by less.
_LINEAR = 0.1
# Logits along a random direction: further orders are then 1e-11 of A, 1e-7 where a z meets a head
# that is much louder, and below rounding once they are predicted.
_LOGIT = 0.004
# Further orders may be this many times what they are on average.
_REMAINDER = 3.0
# So small are further orders meant to be where they turned out to be larger.
_SMALL_REMAINDER = 1e-6
# Scaled tokens and their answers must stay in float32's range.
_EXTREME = 100
# Beyond this nothing is left between noise and what counts.
MOST_LIMIT = 0.2
# More than this of A and the logits are not small: what is read off is no Hessian.
MOST_BENT = 0.03
# Coarse answers get the logits at which rounding, unit/t, and further orders, t⁴/30, are equal,
# where z meets a head that is this many times louder than along a random direction.
_LOUDER = 4.0
# Below this many times the answers' error there is nothing to see.
_VISIBLE = 30.0
# Largest logits show in a direction that meets v this much less than a random one.
_SATURATED = 0.1
# H and the rank must stay the same for so many b.
_UNCHANGED = 3
# Lines belong together whose profiles differ by at most this share, and by so many times what
# counts as 0 of A.
_ALIKE, _TIMES_LIMIT = 0.03, 30.0
# Draws of a symmetric matrix that commutes, of which the one with the widest gaps is taken.
_DRAWS = 32


@dataclass(frozen=True, slots=True)
class Scale:
    """How probes are scaled: z by ``alpha`` and 2·``alpha``, b by ``beta``."""

    alpha: float
    beta: float
    noise: float
    """What the answers' error makes of an entry of A, relative to A."""

    @property
    def limit(self) -> float:
        """The relative singular value half way between noise and what counts."""
        return float(np.sqrt(self.noise))

    @classmethod
    def at(cls, octave: float, noise: float) -> Scale:
        """Scale z up or b down: a token that is large beside the other keeps its digits."""
        octave = float(np.clip(np.floor(octave), -_EXTREME, _EXTREME))
        return cls(float(np.exp2(max(octave, 0.0))), float(np.exp2(min(octave, 0.0))), noise)

    def lower(self, remainder: float) -> Scale:
        """Return a scale at which further orders are small, not ``remainder``: they go as t⁴."""
        octaves = np.log2(min(remainder, 1.0) / _SMALL_REMAINDER) / 4
        return Scale.at(np.log2(self.alpha * self.beta) - octaves, self.noise * 2.0**octaves)


@dataclass(slots=True)
class Commutant:
    """The symmetric X that commute with all A(b) seen so far."""

    limit: float
    """Relative singular values up to this count as 0."""
    seen: list[Array] = field(default_factory=list)
    """A(b), one by one."""
    _ranges: list[tuple[int, float]] = field(default_factory=list)
    _within: Array | None = None
    _triangle: Array | None = None
    _blocks: dict[int, Blocks] = field(default_factory=dict)

    def see(self, found: Array, limit: float = 0.0) -> None:
        """Take some A(b), known up to ``limit`` if that is larger than it was."""
        self.limit = max(self.limit, limit)
        self.seen += list(found)
        within, left = _range(self.seen, self.limit)
        self._ranges.append((within.shape[1], left))
        if self._within is None or within.shape != self._within.shape:
            # other directions: everything anew
            self._within, self._triangle, self._blocks = within, None, {}

    @property
    def settled(self) -> bool:
        """Whether the joint rank and H have stayed the same for the last A(b)."""
        if len({rank for rank, _ in self._ranges[-_UNCHANGED:]}) > 1:
            return False
        first = len(self.seen) - _UNCHANGED + 1
        if first < 1 or len(self._ranges) < _UNCHANGED:
            return False
        return len({self.blocks(n).shape for n in range(first, len(self.seen) + 1)}) == 1

    def blocks(self, count: int) -> Blocks:
        """Return the blocks that the first ``count`` A(b) have in common."""
        if count in self._blocks:
            return self._blocks[count]
        assert self._within is not None
        within, triangle = self._within, self._triangle
        new = self.seen[max(self._blocks, default=0) : count]
        if triangle is None:
            triangle = np.zeros((0, within.shape[1] * (within.shape[1] + 1) // 2))
        for x in new:
            rows = np.vstack([triangle, _commutator(within.T @ x @ within)])
            triangle = np.asarray(np.linalg.qr(rows, mode="r"))
        self._triangle = triangle
        size = max(float(np.linalg.norm(x, 2)) for x in self.seen[:count])
        found = _blocks(within, triangle / size, self.limit, self._ranges[-1][1])
        self._blocks[count] = found
        return found


@dataclass(frozen=True, slots=True)
class Blocks:
    """What commutes with all A(b) within their joint range."""

    within: Array
    """Basis (d, r) of the joint range."""
    null: Array
    """Symmetric matrices (H, r, r) that commute."""
    singular: tuple[float, float]
    """The largest singular value that counts as 0, of X ↦ [X, A(b)] or of the A(b) themselves,
    and the smallest of the former that does not; relative to the largest."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rank r and number of subspaces H."""
        return self.within.shape[1], len(self.null)

    def bases(self, rng: np.random.Generator) -> list[Array]:
        """Return orthonormal bases (d, d_h) of the subspaces."""
        draws = []
        for _ in range(_DRAWS):
            weights = rng.standard_normal(len(self.null))
            values, vectors = np.linalg.eigh(np.tensordot(weights, self.null, 1))
            steps = np.diff(values)
            cut = np.sort(np.argsort(-steps)[: len(self.null) - 1]) + 1
            gap = np.min(steps[cut - 1], initial=np.inf) / (values[-1] - values[0] or 1.0)
            draws.append((gap, cut, vectors))
        _, cut, vectors = max(draws, key=lambda draw: draw[0])
        # once more with eigenvalues 1 … H: the nearest matrix in the space, with gaps of 1
        parts = np.split(vectors, cut, axis=1)
        wanted = np.sum([h * part @ part.T for h, part in enumerate(parts, 1)], axis=0)
        nearest = np.tensordot(np.tensordot(self.null, wanted, 2), self.null, 1)
        _, vectors = np.linalg.eigh(nearest)
        return [self.within @ part for part in np.split(vectors, cut, axis=1)]


def joined(bases: list[Array], seen: Array, limit: float) -> list[Array]:
    """Put the two lines together as which a head of rank one shows.

    Their eigenvalues are of opposite sign, and q·b for all b up to a factor; lines of other heads
    have another q.
    """
    lines = [k for k, E in enumerate(bases) if E.shape[1] == 1]
    E = np.array([bases[k][:, 0] for k in lines]).reshape(len(lines), seen.shape[1])
    profiles = np.einsum("li,kij,lj->lk", E, seen, E)
    norms = np.maximum(np.linalg.norm(profiles, axis=1), 1e-300)
    units = profiles / norms[:, None]
    apart = np.linalg.norm(units[:, None] + units, axis=2)
    apart[np.tril_indices(len(lines))] = np.inf
    size = float(np.max(np.linalg.norm(seen, 2, axis=(1, 2))))
    close = np.minimum(_ALIKE, _TIMES_LIMIT * limit * size / np.minimum.outer(norms, norms))
    together, taken = list(bases), set[int]()
    for flat in np.argsort(apart, axis=None):
        i, j = (int(k) for k in np.unravel_index(flat, apart.shape))
        if apart[i, j] <= close[i, j] and not {i, j} & taken:
            taken |= {i, j}
            together.append(np.hstack([bases[lines[i]], bases[lines[j]]]))
    return [E for k, E in enumerate(together) if k not in {lines[i] for i in taken}]


def loud(bases: list[Array], seen: Array, limit: float) -> list[Array]:
    """Leave out subspaces in which A(b) is small beside the rest: their own scale shows more."""
    sizes = np.array([np.max(np.linalg.norm(E.T @ seen @ E, axis=(1, 2))) for E in bases])
    return [E for E, size in zip(bases, sizes, strict=True) if size > limit * sizes.max()]


def hessian_queries(dim: int) -> int:
    """Count the queries for one A(b)."""
    return dim * (dim + 1)


def find_scale(
    values: Values, b: Array, rng: np.random.Generator
) -> Generator[Round, Answers, Scale | None]:
    """Find the scale at which logits are small, but not lost; None where there are no logits."""
    z = rng.standard_normal((_DIRECTIONS, len(b)))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    alpha, beta = np.exp2(np.maximum(_OCTAVES, 0)), np.exp2(np.minimum(_OCTAVES, 0))
    queries = np.tile(b, (len(alpha), 1))
    grid = Grid(z, queries, alpha, beta, phase="scale of the logits", purpose="pilot")
    [y] = yield [grid]
    bent = _bent(grid.table(y), z, queries, alpha, beta, values)
    error = relative_error(values) * values.norm * (1 + beta / alpha)
    slope = bent / (alpha * beta)[:, None]
    visible = np.linalg.norm(bent, axis=1) > _VISIBLE * error
    if not visible.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.linalg.norm(np.diff(slope, axis=0), axis=1)
        change /= np.linalg.norm(slope[:-1], axis=1)
    straight = visible[:-1] & (change <= _LINEAR)
    k = int(np.argmax(straight if straight.any() else visible))
    while k + 1 < len(straight) and straight[k] and straight[k + 1]:
        k += 1
    k = min(k, len(change) - 1)
    # tanh(t/2)·2/t = 1 − t²/12 + …
    logit = np.sqrt(12 * np.clip(change[k], 1e-6, 1.0))
    size = np.exp2(_OCTAVES[k + 1])
    unit = relative_error(values)
    wanted = max(_LOGIT, (30 * unit) ** 0.2 / _LOUDER)
    # along a random z is z·v_h about ‖v‖/√d, and less where heads of large logits weigh little
    weighed = 4 * float(np.sqrt(np.mean(bent[k + 1] ** 2))) / logit
    quiet = max(1.0, values.norm / np.sqrt(len(b)) / max(weighed, 1e-300))
    return Scale.at(float(np.log2(size * wanted / logit)), float(unit / wanted * quiet))


def blind(values: Values) -> bool:
    """Return whether even the largest logits would not show: by them z·v/2 is told from 0."""
    largest = 1 / (2 * np.sqrt(len(values.v)))
    return bool(relative_error(values) * _VISIBLE > _SATURATED * largest)


def unscored(values: Values) -> float:
    """Bound ‖W‖_F of heads that show no logit at the largest scale: z·v·t/4 is invisible there."""
    d = len(values.v)
    logit = 4 * _VISIBLE * relative_error(values) * np.sqrt(d)
    return float(d * logit * np.exp2(-_OCTAVES[-1]))


def relative_error(values: Values) -> float:
    """Return what answers are off by, relative to a token's norm times ‖v‖."""
    precision = values.precision
    return KAPPA * precision.unit + precision.relative + precision.absolute / values.norm


@dataclass(frozen=True, slots=True)
class Curves:
    """What single query tokens showed: ½ Σ (z·v_h)·tanh(z·u_h/2) for every z, at two sizes."""

    scale: Scale
    bent: Array
    """(tokens, 2, z), over the size of z."""

    def hessians(self) -> Array:
        """Return A(b) of every token, (tokens, d, d), without the order after it."""
        scale = self.scale.alpha * self.scale.beta
        form = (8 * self.bent[:, 0] - self.bent[:, 1]) / (6 * scale)
        count, number = form.shape
        d = int(np.sqrt(2 * number))  # d(d+1)/2 of them
        i, j = np.triu_indices(d, 1)
        A = np.zeros((count, d, d))
        own = form[:, :d]
        A[:, np.arange(d), np.arange(d)] = 8 * own
        A[:, i, j] = A[:, j, i] = 4 * (form[:, d:] - own[:, i] - own[:, j])
        return A

    def remainder(self) -> float:
        """Bound what further orders make of A(b), relative to it."""
        small, large = self.bent[:, 0], self.bent[:, 1] / 2
        # t²/12 at one size, four times as much at the other, and t⁴/30 is what is left of both
        change = np.max(np.abs(large - small)) / max(float(np.max(np.abs(small))), 1e-300)
        return _REMAINDER * min(float(4 * change), 1e100) ** 2 / 30

    def straightened(self, v: Array, A: Array) -> Array:
        """Return A(b) without the further orders that heads with values ``v`` (H, d) have.

        From A(b) follow u_h = (A v_h − v_h (u_h·v_h))/‖v_h‖², and from those all orders: what the
        finite differences make of them is taken away.
        """
        square = np.maximum(np.sum(v**2, axis=1), 1e-300)[:, None]
        seen = np.einsum("kde,he->khd", A, v) / square
        u = seen - v * np.sum(seen * v, axis=2, keepdims=True) / (2 * square)
        z = _offsets(v.shape[1])
        logits = self.scale.alpha * self.scale.beta * (u @ z.T)
        values = v @ z.T
        predicted = np.stack(
            [np.sum(values * np.tanh(size * logits / 2) / 2, axis=1) for size in (1, 2)], axis=1
        )
        own = np.einsum("khd,he->kde", u, v)
        rest = Curves(self.scale, self.bent - predicted)
        return np.asarray(own + own.transpose(0, 2, 1) + rest.hessians())


def ask_curves(values: Values, tokens: Array, scale: Scale) -> Generator[Round, Answers, Curves]:
    """Ask for all that A(b) needs, for every query token b."""
    d, count = tokens.shape[1], len(tokens)
    z = _offsets(d)
    alpha = scale.alpha * np.tile([1.0, 2.0], count)
    beta = np.full(2 * count, scale.beta)
    queries = np.repeat(tokens, 2, axis=0)
    grid = Grid(z, queries, alpha, beta, phase="subspaces", purpose="data")
    [y] = yield [grid]
    bent = _bent(grid.table(y), z, queries, alpha, beta, values)
    return Curves(scale, bent.reshape(count, 2, len(z)))


def _offsets(d: int) -> Array:
    """Return e_i and e_i + e_j."""
    i, j = np.triu_indices(d, 1)
    return np.concatenate([np.eye(d), np.eye(d)[i] + np.eye(d)[j]])


def _bent(y: Array, z: Array, b: Array, alpha: Array, beta: Array, values: Values) -> Array:
    """Return ½ Σ (z·v_h)·tanh(t_h/2) for answers (scales, z)."""
    flat = beta * (np.atleast_2d(b) @ values.v)
    return np.asarray((y - flat[:, None]) / alpha[:, None] - z @ values.v / 2)


def _range(seen: list[Array], limit: float) -> tuple[Array, float]:
    """Return a basis of the joint range of all A(b), and what is left outside of it."""
    d = len(seen[0])
    size = max(float(np.linalg.norm(x, 2)) for x in seen)
    u, singular, _ = np.linalg.svd(np.hstack(seen) / size, full_matrices=False)
    rank = int(np.count_nonzero(singular > limit))
    if rank == d:
        return np.eye(d), 0.0
    return np.asarray(u[:, :rank]), float(singular[rank])


def _commutator(A: Array) -> Array:
    """Return the matrix of X ↦ [X, A] from symmetric matrices to antisymmetric ones."""
    r = len(A)
    basis = _symmetric(r)
    product = basis @ A
    p, q = np.triu_indices(r, 1)
    return np.asarray((product - product.transpose(0, 2, 1))[:, p, q].T)


def _symmetric(r: int) -> Array:
    """Return an orthonormal basis of the symmetric r×r matrices."""
    p, q = np.triu_indices(r)
    basis = np.zeros((len(p), r, r))
    n = np.arange(len(p))
    basis[n, p, q] = basis[n, q, p] = np.where(p == q, 1.0, np.sqrt(0.5))
    return basis


def _blocks(within: Array, triangle: Array, limit: float, left: float) -> Blocks:
    r = within.shape[1]
    if r == 1:
        return Blocks(within, np.ones((1, 1, 1)), (left, np.inf))
    basis = _symmetric(r)
    _, singular, right = np.linalg.svd(triangle, full_matrices=True)
    singular = np.append(singular, np.zeros(len(right) - len(singular)))
    largest = singular[0] or 1.0
    zero = singular <= limit * largest
    zero[-1] = True  # the identity commutes with everything
    null = np.tensordot(right[zero], basis, 1)
    smallest = float(np.min(singular[~zero], initial=np.inf)) / largest
    return Blocks(within, null, (max(left, float(singular[zero].max()) / largest), smallest))
