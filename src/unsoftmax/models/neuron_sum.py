"""Neurons of any activation, gated or not, as one sum: what no answer shows is put to one value.

With Y = (x/λ, 1) a layer is Σ_k Φ(r_k·Y) V_k Y + P(Y). Of plain neurons V_k Y = B_k, of gated ones
B_k (U_k·Y), and P has degree 1 or 2. By `ACTIVATIONS`, a row each:

- φ(z) = share·Φ(rate·z) + offset, Φ the first of its family: quick GELU is SiLU, sigmoid is tanh;
- an odd Φ is turned around with V_k; of any other Φ(z) = z + Φ(−z), so what is turned leaves
  (r_k·Y) V_k Y in P: linear for plain neurons, quadratic for gated ones;
- a homogeneous Φ has ‖r_k‖ = 1; what no token reaches the bend of, r_k = (0, a), is part of P.
  Of plain ReLUs the gradient jumps by V_k r_k across the hyperplane r_k·Y = 0.

Of different rows, up to sign, Φ(r_k·Y) V_k Y and polynomials are linearly independent: their bends
lie on different hyperplanes, and so do, for complex tokens, the poles or branch points of SiLU,
tanh and softplus and the directions in which GELUs grow. So functions are equal exactly if rows, V
of each row, and P are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.neurons import ACTIVATIONS, Activation
from unsoftmax.models.products import Product, apart, norm_of, size_of
from unsoftmax.probes import Array, Indices

# Rows closer than this share of their length are one. Smaller: the rounding of weights splits one;
# larger: two that are close become one.
PARALLEL = 1e-12
# Rows of two models are compared if ‖r ∓ r'‖² is below this share of ‖r‖‖r'‖: 1 − |cos| = 0.01
# where they are as long. The others count as missing in the other model.
_NEAR = 2e-2
# Rounding of a sum of a row's values, in roundoffs of their sizes.
_ROUNDOFFS = 16.0


@dataclass(frozen=True, slots=True)
class NeuronSum:
    """Σ_k Φ(r_k·Y) V_k Y + l·Y + Σ (r·Y) V Y."""

    family: str
    """Φ."""
    rows: Array
    """r_k, (K, d + 1)."""
    values: tuple[Product, ...]
    """V_k, (m, d + 1), or (m, 1) where it is a constant."""
    linear: Array
    """l, (m, d + 1)."""
    squares: tuple[tuple[Array, Product], ...] = ()
    """r and V of what is quadratic."""

    @classmethod
    def of(
        cls,
        activation: str,
        rows: Array,
        B: Array,
        U: Array | None,
        linear: Array,
        most: float = np.inf,
    ) -> NeuronSum:
        """Add up B_k φ(r_k·Y), or B_k φ(r_k·Y) (U_k·Y), rows and U (K, d + 1), B (m, K).

        No token is longer than ``most``: ReLUs that none switches are part of P, or nothing.
        """
        phi = ACTIVATIONS[activation]
        family = phi.family or activation
        rows, right = phi.rate * rows, np.ones((len(rows), 1)) if U is None else U
        constant = ~np.any(rows[:, :-1], axis=1)
        # what is the same for every token is a factor of V Y
        factor = np.full(len(rows), phi.offset)
        factor[constant] += phi.share * ACTIVATIONS[family].of(rows[constant, -1])
        linear = linear.copy()
        linear[:, -right.shape[1] :] += (B * factor) @ right
        used, share = ~constant, np.full(len(rows), phi.share)
        if ACTIVATIONS[family].homogeneous:
            length = np.where(constant, 1.0, np.linalg.norm(rows, axis=1))
            rows, share = rows / length[:, None], share * length
        values = [*map(Product, (B * share).T[used, :, None], right[used, None])]
        found = cls(family, rows[used], tuple(values), linear)
        straight = np.full(len(values), family == "identity")
        if found.phi.homogeneous and np.isfinite(most):
            idle = np.abs(found.rows[:, -1]) >= most * np.linalg.norm(found.rows[:, :-1], axis=1)
            straight = idle & (found.rows[:, -1] > 0)
            found = found._left(~idle | straight)
            straight = straight[~idle | straight]
        return found._left(~straight)._plus(*found._some(straight))

    @property
    def phi(self) -> Activation:
        """Φ and what it may be turned into."""
        return ACTIVATIONS[self.family]

    @property
    def gated(self) -> bool:
        """Whether V Y depends on tokens."""
        some = [*self.values, *(V for _, V in self.squares)]
        return any(V.right.shape[1] > 1 for V in some)

    @property
    def sizes(self) -> Array:
        """‖V_k‖‖r_k‖."""
        sizes = np.array([*map(_size, self.values)])
        return np.asarray(sizes * np.linalg.norm(self.rows, axis=1))

    @property
    def hinged(self) -> bool:
        """Whether neurons are plain ReLUs, which any affine part may stand beside."""
        return self.phi.homogeneous and not self.gated

    @property
    def reach(self) -> Array:
        """What neurons can add to an answer where ‖Y‖ = 1, turned to be 0 at x = 0 if ReLUs are.

        It is next to nothing where a ReLU's hyperplane is far from 0.
        """
        if not self.hinged:
            return self.sizes
        return np.asarray(self.sizes * np.linalg.norm(self.rows[:, :-1], axis=1))

    @property
    def jumps(self) -> Array:
        """V of plain neurons, (m, K)."""
        return np.hstack([self.linear[:, :0], *(V.whole for V in self.values)])

    @property
    def norm(self) -> float:
        """Norm of what bends, of plain ReLUs and P; where nothing bends, of P.

        But for plain ReLUs it does not depend on which side is on.
        """
        beside = _size_of_polynomial(self.linear, self.squares)
        if not len(self.rows):
            return beside
        return float(np.linalg.norm([*self.sizes, beside * self.hinged]))

    @property
    def lost(self) -> float:
        """What of the linear part, without its constant, may be the rounding of the sum."""
        size = float(np.linalg.norm(self.linear[:, :-1])) + float(np.sum(self.sizes))
        return 8 * UNIT * (1 + len(self.rows)) * size

    def _some(self, which: NDArray[np.bool_]) -> tuple[Array, tuple[Product, ...]]:
        return self.rows[which], tuple(V for V, one in zip(self.values, which, strict=True) if one)

    def _left(self, which: NDArray[np.bool_]) -> NeuronSum:
        rows, values = self._some(which)
        return replace(self, rows=rows, values=values)

    def scaled(self, factor: float) -> NeuronSum:
        """Return the sum times a factor."""
        values = tuple(Product(factor * V.left, V.right) for V in self.values)
        squares = tuple((r, Product(factor * V.left, V.right)) for r, V in self.squares)
        return replace(self, values=values, linear=factor * self.linear, squares=squares)

    def turned(self, back: NDArray[np.bool_]) -> NeuronSum:
        """Turn some rows around."""
        rows = np.where(back[:, None], -self.rows, self.rows)
        if self.phi.odd:
            signed = zip(self.values, back, strict=True)
            return replace(self, rows=rows, values=tuple(-V if t else V for V, t in signed))
        return replace(self, rows=rows)._plus(*self._some(back))

    def turned_alike(self) -> NeuronSum:
        """Turn rows so that the first entry of each that is not 0 is positive."""
        first = self.rows[np.arange(len(self.rows)), np.argmax(self.rows != 0, axis=1)]
        return self.turned(np.asarray(first < 0))

    def merged(self, opposite: bool = True, parallel: float = PARALLEL) -> NeuronSum:
        """Add up neurons of one row, or of ``opposite`` ones too; drop those that cancel.

        Rows within a share of their length, ``parallel``, are one.
        """
        length = np.linalg.norm(self.rows, axis=1)
        gram = self.rows @ self.rows.T
        close = np.outer(length, length) - np.abs(gram) <= parallel * length**2
        values, size = [*self.values], [*map(_size, self.values)]
        keep, turned = np.full(len(values), True), list[int]()
        for i, j in np.transpose(np.nonzero(np.triu(close, 1))).tolist():
            turn = np.sign(gram[i, j])
            off = np.linalg.norm(self.rows[i] - turn * self.rows[j])
            if not (keep[i] and keep[j]) or off > parallel * length[i]:
                continue
            if turn < 0 and not opposite:
                continue
            values[i] = values[i] + (-values[j] if turn < 0 and self.phi.odd else values[j])
            size[i] += size[j]
            keep[j] = False
            turned += [j] if turn < 0 and not self.phi.odd else []
        # a sum this small beside its terms is their rounding
        for k in np.flatnonzero(keep).tolist():
            alone = values[k] is self.values[k]
            keep[k] = size[k] if alone else _size(values[k]) > _ROUNDOFFS * UNIT * size[k]
        left = [self.values[j] for j in turned]
        return replace(self, values=tuple(values))._left(keep)._plus(self.rows[turned], left)

    def bent_again(self) -> NeuronSum:
        """Return what is quadratic as neurons of a homogeneous Φ: r·Y > 0 for every token."""
        rows = np.vstack([self.rows, *(r for r, _ in self.squares)])
        return replace(
            self, rows=rows, values=(*self.values, *(V for _, V in self.squares)), squares=()
        )

    def of_linear(self) -> NeuronSum:
        """Return the same with every V a map of Y."""
        last = np.eye(1, self.linear.shape[1], self.linear.shape[1] - 1)

        def lifted(V: Product) -> Product:
            return V if V.right.shape[1] > 1 else Product(V.left, V.right @ last)

        return replace(self, values=tuple(map(lifted, self.values)))

    def _plus(self, rows: Array, values: Sequence[Product]) -> NeuronSum:
        """Add Σ (r_k·Y) V_k Y."""
        if not len(values):
            return self
        if values[0].right.shape[1] > 1:
            return replace(self, squares=(*self.squares, *zip(rows, values, strict=True)))
        columns = np.column_stack([V.whole[:, 0] for V in values])
        return replace(self, linear=self.linear + columns @ rows)


def _size(V: Product) -> float:
    if V.left.shape[1] > 1:
        return size_of(V)
    return norm_of(V.left) * norm_of(V.right)


def squared_distance(first: NeuronSum, second: NeuronSum) -> float:
    """Return the squared norm of the difference of all rows with their values, and of P.

    A row counts by ‖V‖‖δr‖ and ‖δV‖‖r‖, and of ReLUs for no more than both add to an answer. Rows
    are compared where each is the other's nearest, up to its sign; the others count as missing in
    the other sum, by what they add.
    """
    if first.gated != second.gated:
        first, second = first.of_linear(), second.of_linear()
    if capped := first.hinged and second.hinged:
        first, second = (one.turned(one.rows[:, -1] > 0) for one in (first, second))
    i, j, turn = _matched(first, second)
    back = np.zeros(len(second.rows), dtype=bool)
    back[j] = turn < 0
    second = second.turned(back)
    # turned around to compare, a ReLU is not 0 at x = 0
    most = np.where(capped & (turn > 0), first.reach[i] + second.reach[j], np.inf)
    squares = 0.0
    for g, h, limit in zip(i.tolist(), j.tolist(), most.tolist(), strict=True):
        off = apart(first.values[g], second.values[h])
        moved = np.linalg.norm(first.rows[g] - second.rows[h])
        length = np.linalg.norm(first.rows[g])
        change = float(np.hypot(off.difference * length, off.size * moved)) * off.unit
        squares += min(change, limit) ** 2
    for found, used in ((first, i), (second, j)):
        squares += float(np.sum(np.delete(found.reach, used) ** 2))
    beyond = _difference(first.squares, second.squares)
    return squares + _size_of_polynomial(first.linear - second.linear, beyond) ** 2


def _difference(
    first: Sequence[tuple[Array, Product]], second: Sequence[tuple[Array, Product]]
) -> list[tuple[Array, Product]]:
    """Return Σ (r·Y) V Y of the first less that of the second; equal terms cancel unrounded."""
    ours: defaultdict[tuple[bytes, ...], list[tuple[Array, Product]]] = defaultdict(list)
    for one in first:
        ours[_bits(*one)].append(one)
    beyond: list[tuple[Array, Product]] = []
    for r, V in second:
        alike = ours[_bits(r, V)]
        if alike:
            alike.pop()
        else:
            beyond.append((r, -V))
    return [*chain.from_iterable(ours.values()), *beyond]


def _bits(r: Array, V: Product) -> tuple[bytes, ...]:
    return r.tobytes(), V.left.tobytes(), V.right.tobytes()


def _matched(first: NeuronSum, second: NeuronSum) -> tuple[Indices, Indices, Array]:
    """Return rows of both that are each other's nearest, and by which sign."""
    gram = first.rows @ second.rows.T
    if first.family != second.family or not gram.size:
        return np.zeros(0, int), np.zeros(0, int), np.zeros(0)
    lengths = [np.linalg.norm(one.rows, axis=1) for one in (first, second)]
    apart_by = np.add.outer(*(n**2 for n in lengths)) - 2 * np.abs(gram)
    j = np.argmin(apart_by, axis=1)
    i = np.flatnonzero(np.argmin(apart_by, axis=0)[j] == np.arange(len(j)))
    i = i[apart_by[i, j[i]] < _NEAR * lengths[0][i] * lengths[1][j[i]]]
    j = j[i]
    return i, j, np.sign(gram[i, j])


def _size_of_polynomial(linear: Array, squares: Sequence[tuple[Array, Product]]) -> float:
    """Return the norm of the symmetric matrices of l·Y and Σ (r·Y) V Y; without squares, of l."""
    if not squares:
        return float(np.linalg.norm(linear))
    n = linear.shape[1]
    rows = np.vstack([np.repeat(r[None], len(V.right), axis=0) for r, V in squares])
    left = np.hstack([V.left for _, V in squares])
    right, total = np.vstack([V.right for _, V in squares]), 0.0
    for one, of_it in zip(linear, left, strict=True):  # one number of the answer at a time
        Q = (rows.T * of_it) @ right
        Q[n - 1] += one  # the last entry of Y is 1
        total += float(np.sum((Q + Q.T) ** 2)) / 4
    return float(np.sqrt(total))
