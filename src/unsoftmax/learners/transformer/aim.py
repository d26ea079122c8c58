"""Where to aim: for each query token offsets along which the known network can be inverted.

The offsets of query token x with gradient h = ∇g(x)/‖∇g(x)‖ are, up to sign and length,

    c·h + Q ε_l,      l = 0 … r − 1,

Q an orthonormal basis of what u = W x + w is known to lie in (all of R^d at first), ε_0 along
Qᵀh, ε_l orthogonal to it and to each other: g is steep along them, and r logits a·u give Qᵀu by
substitution. Length, sign and c are chosen without a query.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from unsoftmax.learners.transformer.known import Known
from unsoftmax.learners.transformer.segments import Segments
from unsoftmax.measure.reflections import mirrors
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array, Design, Indices, LazyRows

# Offsets are tried from long to short: long ones move answers most.
_LENGTHS = (*(2.0 ** -np.arange(11)), 1e-4)
_TILTS = (1.0, 2.0, 4.0)
# A slope this far below the mean one costs as many times the answers' error.
_STEEP = 0.25
_FLAT = 0.02
# Where g is flat or turns around a token, others on its line are tried: sign and length.
_ELSEWHERE = ((-1.0, 1.0), *product((1.0, -1.0), (4.0, 0.25, 16.0, 64.0, 256.0, 1024.0, 4096.0)))
_CHUNK = 2**21  # numbers at once


@dataclass(frozen=True, slots=True)
class Steered(LazyRows):
    """Unit offsets s·(c·h + Q ε_l)/‖·‖ of some query tokens."""

    h: Array
    """Unit gradients (k, d), one per query token."""
    basis: Array | None
    """Q, (d, r); the identity where None."""
    token: Indices
    """Whose offset each row is, (n,)."""
    l: Indices  # noqa: E741
    c: Array
    sign: Array

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.token), self.h.shape[1]

    def pick(self, index: Indices) -> Steered:  # noqa: D102
        parts = {name: getattr(self, name)[index] for name in ("token", "l", "c", "sign")}
        return replace(self, **parts)

    def design(self) -> Design:  # noqa: D102
        basis = {} if self.basis is None else {"basis": self.basis}
        own = {name: getattr(self, name) for name in ("h", "token", "l", "c", "sign")}
        return {**own, **basis}

    def __getitem__(self, index: Indices) -> Array:
        token, l, c = self.token[index], self.l[index], self.c[index]  # noqa: E741
        rows = self.frame().axis(token, l)
        if self.basis is not None:
            rows = rows @ self.basis.T
        rows += c[:, None] * self.h[token]
        return np.asarray(rows * (self.sign[index] / self.norms(index))[:, None])

    def frame(self) -> Frame:
        """Return ε, for every query token."""
        return Frame.of(self.h if self.basis is None else self.h @ self.basis)

    def norms(self, index: Indices) -> Array:
        """Return ‖c·h + Q ε_l‖."""
        c = self.c[index]
        along = np.where(self.l[index] == 0, self.frame().size[self.token[index]], 0.0)
        return np.asarray(np.sqrt(c**2 + 1 + 2 * c * along))

    def solve(self, t: Array, error: Array) -> tuple[Array, Array]:
        """Return Qᵀu (k, r) from t = a·u at all r offsets of every token, and bounds ‖ΔQᵀu‖.

        Parameters
        ----------
        t, error : ndarray (n,)
            Logits per unit offset, and what they may be off by; rows in any order.
        """
        k, r = self.shape_of_answer
        frame, every = self.frame(), np.arange(len(self.token))
        place = self.token, self.l
        norms, c = np.empty((k, r)), np.empty((k, r))
        seen, off = np.empty((k, r)), np.empty((k, r))
        norms[place], c[place] = self.norms(every), self.c
        seen[place], off[place] = self.sign * t, error
        seen, off = norms * seen, norms * off
        # the first row sees (1 + c‖Qᵀh‖) of what lies along Qᵀh, the others c‖Qᵀh‖ of it
        seen[:, 0] /= 1 + c[:, 0] * frame.size
        off[:, 0] /= 1 + c[:, 0] * frame.size
        mixed = c[:, 1:] * frame.size[:, None]
        seen[:, 1:] -= mixed * seen[:, :1]
        off[:, 1:] += mixed * off[:, :1]
        return frame.back(seen), np.linalg.norm(off, axis=1)

    @property
    def shape_of_answer(self) -> tuple[int, int]:
        """Number of query tokens, and of offsets of each."""
        return len(self.h), self.h.shape[1] if self.basis is None else self.basis.shape[1]


@dataclass(frozen=True, slots=True)
class Frame:
    """Orthonormal ε_0 … ε_{r−1} in R^r for every query token, ε_0 along its vector."""

    mirror: Array
    """u (k, r): I − u uᵀ swaps the vector with ± the first axis."""
    turn: Array
    """That sign, (k,)."""
    size: Array
    """The vector's norm, (k,)."""

    @classmethod
    def of(cls, vectors: Array) -> Frame:
        """Make the frames of vectors (k, r)."""
        size = np.linalg.norm(vectors, axis=1)
        unit = vectors / np.where(size > 0, size, 1.0)[:, None]
        unit[size == 0, 0] = 1.0  # any will do
        return cls(mirrors(unit), np.where(unit[:, 0] >= 0, -1.0, 1.0), size)

    def axis(self, token: Indices, l: Indices) -> Array:  # noqa: E741
        """Return ε_l of some tokens, a row each."""
        u, rows = self.mirror[token], np.arange(len(token))
        axes = -u * u[rows, l][:, None]
        axes[rows, l] += 1.0
        axes *= np.where(l == 0, self.turn[token], 1.0)[:, None]
        return axes

    def back(self, x: Array) -> Array:
        """Map coordinates (k, r) along ε to vectors."""
        x = x.copy()
        x[:, 0] *= self.turn
        inner = np.einsum("kr,kr->k", self.mirror, x)
        return np.asarray(x - self.mirror * inner[:, None])


@dataclass(frozen=True, slots=True)
class Aim:
    """Query tokens and all their offsets."""

    x: Array
    """The query tokens (k, d) as they are asked."""
    beta: Array
    """Their signed lengths (k,)."""
    offsets: Steered
    """Ordered by token, then by l."""
    alpha: Array
    """Lengths of the offsets, (k·r,)."""
    steep: Array
    """Smallest slope over the mean one along each, (k·r,)."""

    @property
    def flat(self) -> bool:
        """Whether g turns, or all but stops, along some of them."""
        return bool(np.any(self.steep <= _FLAT))

    def rows(self, tokens: Indices, l: slice) -> Indices:  # noqa: E741
        """Return the numbers of some rows."""
        k, r = self.offsets.shape_of_answer
        return np.arange(k * r).reshape(k, r)[tokens, l].ravel()

    def segments(self, network: ReluNetwork, rows: Indices) -> Segments:
        """Cut g along some offsets."""
        a = self.alpha[rows, None] * self.offsets[rows]
        return Segments.of(network, a, self.x[self.offsets.token[rows]])

    def placed(self, index: Indices, other: Aim, mine: Indices) -> Aim:
        """Return this aim with tokens ``index`` replaced by tokens ``mine`` of another."""
        rows, its = self.rows(index, slice(None)), other.rows(mine, slice(None))
        x, beta, h = self.x.copy(), self.beta.copy(), self.offsets.h.copy()
        x[index], beta[index], h[index] = other.x[mine], other.beta[mine], other.offsets.h[mine]
        c, sign = self.offsets.c.copy(), self.offsets.sign.copy()
        alpha, steep = self.alpha.copy(), self.steep.copy()
        c[rows], sign[rows] = other.offsets.c[its], other.offsets.sign[its]
        alpha[rows], steep[rows] = other.alpha[its], other.steep[its]
        return Aim(x, beta, replace(self.offsets, h=h, c=c, sign=sign), alpha, steep)


def take(
    known: Known,
    B: Array,
    beta: Array,
    reach: Array,
    basis: Array | None,
) -> Aim:
    """Aim from the tokens ±β b, at offsets as long as ``reach`` or shorter.

    Where g is flat or turns around such a token others on its line are taken.

    Parameters
    ----------
    known : Known
        The network.
    B : ndarray (k, d)
        Unit vectors b.
    beta, reach : ndarray (k,)
        Lengths of the tokens, and the longest offsets.
    basis : ndarray (d, r), optional
        Q.
    """
    aim = aim_from(known, B, _signed(known.network, B, beta), reach, basis)
    for sign, longer in _ELSEWHERE:
        k, r = aim.offsets.shape_of_answer
        smallest = aim.steep.reshape(k, r).min(axis=1)
        poor = np.flatnonzero(smallest <= _STEEP)
        if not len(poor):
            break
        first = np.sign(_signed(known.network, B[poor], beta[poor]))
        other = aim_from(
            known, B[poor], first * sign * longer * beta[poor], reach[poor] / longer, basis
        )
        better = other.steep.reshape(len(poor), r).min(axis=1) > smallest[poor]
        mine = np.flatnonzero(better)
        if len(mine):
            aim = aim.placed(poor[mine], other, mine)
    return aim


def gradients(network: ReluNetwork, x: Array) -> Array:
    """Return ∇g at points (k, d)."""
    active = (x @ network.A + network.b > 0) * network.w_o
    return np.asarray(active @ network.A.T)


def _signed(network: ReluNetwork, B: Array, beta: Array) -> Array:
    """Choose the side on which g is steeper: a network of few active neurons tells little."""
    plus, minus = (
        np.linalg.norm(gradients(network, s * beta[:, None] * B), axis=1) for s in (1, -1)
    )
    return np.asarray(np.where(plus >= minus, beta, -beta))


def aim_from(known: Known, B: Array, beta: Array, reach: Array, basis: Array | None) -> Aim:
    """Aim from the tokens β b alone; see `take`."""
    x = beta[:, None] * B
    h = gradients(known.network, x)
    norm = np.linalg.norm(h, axis=1, keepdims=True)
    # on a flat piece any direction may lead out of it
    h = np.where(norm > 0, h / np.where(norm > 0, norm, 1.0), 0.0)
    h[norm[:, 0] == 0, 0] = 1.0
    k, d = B.shape
    r = d if basis is None else basis.shape[1]
    token, l = np.repeat(np.arange(k), r), np.tile(np.arange(r), k)  # noqa: E741
    nothing = np.ones(k * r)
    offsets = Steered(h, basis, token, l, nothing, nothing)
    aim = Aim(x, beta, offsets, reach[token].copy(), np.full(k * r, -np.inf))
    c, sign, alpha, steep = (nothing.copy(), nothing.copy(), aim.alpha.copy(), aim.steep.copy())
    step = max(1, _CHUNK // (known.network.A.shape[1] + 3 * d))
    for start in range(0, k * r, step):
        left = np.arange(start, min(start + step, k * r))
        for length, tilt, turn in product(_LENGTHS, _TILTS, (1.0, -1.0)):
            same = np.full(len(left), 1.0)
            tried = Steered(h, basis, token[left], l[left], tilt * same, turn * same)
            far = length * reach[token[left]]
            a = far[:, None] * tried[np.arange(len(left))]
            origin = x[token[left]]
            pieces = Segments.of(known.network, a, origin)
            seen = pieces.steepness(known.unseen(origin, origin + a))
            better = seen > steep[left]
            index = left[better]
            c[index], sign[index], alpha[index] = tilt, turn, far[better]
            steep[index] = seen[better]
            left = left[steep[left] <= _STEEP]
            if not len(left):
                break
    return Aim(x, beta, replace(offsets, c=c, sign=sign), alpha, steep)
