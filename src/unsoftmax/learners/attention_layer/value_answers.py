"""From answers of saturated heads to each head's M_h = U_h V_h: pure arithmetic, nothing is asked.

Where all gates but head h's are closed, [b_h + a; b_h] is answered by c + M b_h + M_h a, M the
map of single tokens. Some M_h a_j span U_h, and with G = [U_1 … U_H]⁺ the rest follows from the
sum M = Σ M_h that single tokens gave: V_h = G_h M. So r_h vectors per head are enough, and M need
not be invertible; but the U_h must be independent. Where they are not, M_h is read in every
direction (`whole`).

Ranges of trained heads are nearly dependent, and dividing the sum of all maps among them makes its
errors as many times larger. Where heads of a group g share one V, M_h = O_h V_g, so that the rows
of U⁺M_h span those of V_g, the sum of all maps is Σ_g (Σ_h O_h) V_g, and the V_g are well apart.
With V_g from the maps as they were read, the O_h are the least squares of

    Σ_h O_h V_g = M,    s O_h (V_g v_j) = s M_h v_j  for the offsets v_j that were asked,

s being the length of the offsets, by which their answers are worse than those of single tokens. One
design for all rows of O.

An answer tells all of u = x_N + o(X), or its direction alone, behind a norm. All that a layer's
answers are read for is linear in unknowns: z = u − K(b), K(b) = (I + M) b + c, is a sum of known
columns with unknown weights, or several z are sums of a few unknown vectors with known weights.
Where u is known up to a factor, μw, the factor is one unknown more of the same system
(`measure.normalised`), and what is left to do is what is done with answers of plain layers. So a
`LayerMap` *reads* answers: a plain one returns them as they are, and `DirectionMap`, in the d − 1
coordinates that a norm leaves, the μw that the system determines.

*Source*: beyond arXiv 2601.16873; docs/theorems/vector_answers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeAlias

import numpy as np

from unsoftmax.measure.normalised import NormedAnswers, UnknownScales
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices
from unsoftmax.refusals import Reason
from unsoftmax.solve.full_rank import solved
from unsoftmax.solve.leading_rows import leading_rows

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""The heads of every group."""


@dataclass(frozen=True, slots=True)
class LayerMap:
    """c, the map M of single tokens, and the heads' share of it."""

    c: Array
    M: Array
    """(m, d), the residual connection included."""
    residual: bool

    @classmethod
    def of(cls, answers: TokenMapAnswers, residual: bool = False) -> LayerMap:
        """Read it off single tokens."""
        return cls(answers.constant, answers.map, residual)

    @property
    def heads(self) -> Array:
        """Σ M_h, (m, d)."""
        return np.asarray(self.M - np.eye(*self.M.shape)) if self.residual else self.M

    @property
    def numbers(self) -> int:
        """How many numbers an answer has."""
        return len(self.c)

    @property
    def up_to_factor(self) -> bool:
        """Whether an answer tells a direction only, as behind a norm."""
        return False

    def beyond(self, y: Array, b: Array) -> Array:
        """Return y − c − M b: what offsets add to answers beside a query token."""
        return np.asarray(y - self.c - b @ self.M.T)

    def outputs(self, columns: Array) -> Array:
        """Return columns (m, k) as they are added to a token."""
        return columns

    # what answers tell: all, unless a norm is behind (`DirectionMap`)

    def read(self, y: Array, b: Array, columns: Array) -> Array:
        """Return answers (Q, m) in full; what is beyond b is in the span of columns (m, k)."""
        return y

    def read_weighted(self, y: Array, b: Array, weights: Array) -> Array:
        """Return answers (Q, m) in full; what is beyond b is ``weights`` (Q, k) of k vectors."""
        return y

    def read_along(self, y: Array, b: Array, expected: Array) -> Array:
        """Return answers (…, m) in full; what is beyond b is nearly what is expected (…, m)."""
        return y

    def read_shares(self, y: Array, b: Array, a: Array) -> Array:
        """Return answers (H, J, m) in full; beyond b (H, 1, d) all heads add M a_j (J, d)."""
        return y


@dataclass(frozen=True, slots=True)
class GateAnswers:
    """Answers to [b_k + a; b_k] for one long offset a, and every head's gate there.

    Attributes
    ----------
    a : ndarray (d,)
    b, y : ndarray (K, d), (K, m)
    gates : ndarray (K, H)
        Zeros and ones.
    """

    a: Array
    b: Array
    y: Array
    gates: Array

    def vectors(self, layer: LayerMap) -> Array:
        """Return all M_h a, (H, m)."""
        y = layer.read_weighted(self.y, self.b, self.gates)
        gates = np.vstack([np.ones(self.gates.shape[1]), self.gates])
        rows = np.vstack([layer.heads @ self.a, layer.beyond(y, self.b)])
        return np.asarray(np.linalg.lstsq(gates, rows, rcond=None)[0])

    def sum_share(self, layer: LayerMap) -> float:
        """Return the size of Σ M_h a beside that of the largest M_h a."""
        each = np.linalg.norm(self.vectors(layer), axis=1)
        return float(np.linalg.norm(layer.heads @ self.a) / np.max(each, initial=TINY))


# Where Σ M_h a is a smaller share of M_h a, errors of the sum are many times those of answers: of
# layers whose values cancel to a millionth about half are found in float64.
_CANCEL = 1e-3


def refuse_cancelling(share: float, cause: Exception | None = None) -> None:
    """Refuse heads whose values cancel, ``share`` being the size of their sum beside one.

    Raises
    ------
    ModelMismatch
        They do.
    """
    if share < _CANCEL:
        raise Reason.VALUES_CANCEL.error(share=share) from cause


@dataclass(frozen=True, slots=True)
class OffsetAnswers:
    """Answers to [b_h + a + s v_j; b_h], head h's gate alone open, for all heads or all but one.

    Attributes
    ----------
    base : ndarray (d,)
        The offset a, a power of two times the one of `GateAnswers`.
    steps : ndarray (J, d)
        v_j.
    share : ndarray (H − 1, J), or (H, J)
        s, 1 or a power of two below: shorter where a gate would flip.
    b : ndarray (H, d)
        One query token for each head.
    left_out : int or None
        The head that is not asked: its share is what the others leave of M a_j.
    y : ndarray (H − 1, J, m), or (H, J, m)
        Answers, in the order of the heads.
    """

    base: Array
    steps: Array
    share: Array
    b: Array
    left_out: int | None
    y: Array

    @property
    def asked(self) -> list[int]:
        """The heads that are asked."""
        return [h for h in range(len(self.b)) if h != self.left_out]

    def beside(self, layer: LayerMap, vectors: Array) -> Array:
        """Return M_h s v_j of the heads that are asked, (H − 1, J, m) or (H, J, m)."""
        # s of offsets that all heads are asked with, (J,)
        b, common = self.b[self.asked, None], self.share.min(axis=0, initial=1.0)
        y = layer.read_shares(self.y, b, self.base + common[:, None] * self.steps)
        return np.asarray(layer.beyond(y, b) - vectors[self.asked, None])

    def spans(self, layer: LayerMap, vectors: Array) -> Array:
        """Return vectors of each head's range: M_h of unit vectors, (H, J + 1, m)."""
        along = vectors / np.linalg.norm(self.base)
        beside = np.zeros((len(self.b), self.y.shape[1], len(layer.c)))
        beside[self.asked] = self.beside(layer, vectors) / self.share[..., None]
        if self.left_out is not None:
            beside[self.left_out] = self.steps @ layer.heads.T - beside.sum(axis=0)
        length = np.linalg.norm(self.steps, axis=1)
        return np.concatenate([along[:, None], beside / length[:, None]], axis=1)

    def directions(self) -> Array:
        """Return the unit vectors that `spans` maps, (J + 1, d)."""
        rows = np.vstack([self.base, self.steps])
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class SaturatedAnswers:
    """Answers to [b + a; b] where one head's gate is open: M_h a of chosen a.

    Attributes
    ----------
    head : ndarray (Q,)
    a, b, y : ndarray (Q, d), (Q, d), (Q, m)
    known : ndarray (Q, m)
        M_h a as it was known before.
    """

    head: Indices
    a: Array
    b: Array
    y: Array
    known: Array

    def beyond(self, layer: LayerMap) -> Array:
        """Return M_h a, (Q, m)."""
        return layer.beyond(layer.read_along(self.y, self.b, self.known), self.b)

    def spans(self, layer: LayerMap) -> list[Array]:
        """Return each head's vectors M_h a/‖M_h a‖, rows."""
        rows = self.beyond(layer)
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return [rows[self.head == h] for h in range(int(self.head.max()) + 1)]


@dataclass(frozen=True, slots=True)
class HeadMaps:
    """Each head's map M_h = U_h V_h, U_h with orthonormal columns."""

    U: Sequence[Array]
    """(m, r_h) each."""
    V: Sequence[Array]
    """(r_h, d) each, up to ν_h T where they are open."""
    nu: Sequence[Array] = ()
    """ν_h, (r_h, k) each, where the ranges depend on each other; T (k, d) is one for all heads."""

    @classmethod
    def of_spans(cls, U: Sequence[Array], layer: LayerMap, open_in: int = 0) -> HeadMaps:
        """Take ranges; V_h is what they make of the sum of all maps.

        ``open_in`` is the number of dimensions k in which they depend on each other.
        """
        joint, cuts = np.concatenate(U, axis=1), np.cumsum(_sizes(U))[:-1]
        if not open_in:
            return cls(list(U), np.split(solved(joint, layer.heads), cuts))
        left, s, right = np.linalg.svd(joint)
        rank = joint.shape[1] - open_in
        through = right[:rank].T @ ((left[:, :rank].T @ layer.heads) / s[:rank, None])
        return cls(list(U), np.split(through, cuts), np.split(right[rank:].T, cuts))

    @classmethod
    def of_directions(cls, directions: Array, spans: Array, ranks: Sequence[int]) -> HeadMaps:
        """Take M_h of unit vectors (J, d) in every direction, (H, J, m)."""
        flat = spans.transpose(1, 0, 2).reshape(len(directions), -1)
        maps = np.linalg.lstsq(directions, flat, rcond=None)[0].reshape(-1, *spans.shape[::2])
        M = maps.transpose(1, 2, 0)
        U = [leading(M_h.T, r) for M_h, r in zip(M, ranks, strict=True)]
        return cls(U, [U_h.T @ M_h for U_h, M_h in zip(U, M, strict=True)])

    @property
    def ranks(self) -> list[int]:
        """r_h."""
        return _sizes(self.U)

    @property
    def open_in(self) -> int:
        """k, the number of dimensions that the V_h are open in."""
        return int(self.nu[0].shape[1]) if self.nu else 0

    def keys_beside_factor(self, share: int = 1) -> int:
        """Return how many keys a sequence may have of which an answer tells a direction.

        A factor, and what is open, take keys from it. A share of that, 2 at least where they may
        be.
        """
        H, k = len(self.U), self.open_in
        numbers = min(len(self.U[0]) - 1, sum(self.ranks) - k)
        most = min((numbers - (H - 1) * k) // H, min(self.ranks) - k)
        return max(most // share, min(2, most))

    def with_open(self, T: Array) -> HeadMaps:
        """Return all V_h + ν_h T, none of them open."""
        return HeadMaps(self.U, [V + nu @ T for V, nu in zip(self.V, self.nu, strict=True)])

    def frames(self) -> list[Array]:
        """Return what keys' weights are told by: V_h, without what is open of it."""
        if not self.open_in:
            return list(self.V)
        pairs = zip(self.V, self.nu, strict=True)
        return [V - nu @ np.linalg.lstsq(nu, V, rcond=None)[0] for V, nu in pairs]

    def columns(self, keys: Array) -> Array:
        """Return what weights of keys (n, d) multiply, head by head, (m, H n).

        Where the V_h are open τ_h = T A p_h are unknowns beside the weights, and only differences
        count: the columns of τ_1 − τ_H, …, τ_(H−1) − τ_H come last.
        """
        n = len(keys)
        through = self.through(keys).reshape(-1, len(self.U) * n)
        own = [U @ nu for U, nu in zip(self.U[:-1], self.nu[:-1], strict=bool(self.nu))]
        return np.hstack([through, *own])

    def through(self, tokens: Array) -> Array:
        """Return M_h x for tokens (n, d): (m, H, n)."""
        return np.stack([U @ (V @ tokens.T) for U, V in zip(self.U, self.V, strict=True)], axis=1)

    def divided(self, z: Array) -> list[Array]:
        """Divide vectors z (Q, m) among the heads' ranges, z = Σ_h U_h x_h: x_h, (r_h, Q) each."""
        x = solved(np.concatenate(list(self.U), axis=1), z.T)
        return np.split(x, np.cumsum(self.ranks)[:-1])


def leading(span: Array, rank: int) -> Array:
    """Return orthonormal columns (m, rank) of what rows (J, m) span."""
    return np.asarray(np.linalg.svd(span.T, full_matrices=False)[0][:, :rank])


def _sizes(U: Sequence[Array]) -> list[int]:
    return [U_h.shape[1] for U_h in U]


class MapAnswers(Protocol):
    """Answers that c and M are read off."""

    def layer(self) -> LayerMap:
        """Return c and M."""


class ReadMaps(MapAnswers, Protocol):
    """What every head's map follows from as well."""

    def solved(self) -> HeadMaps:
        """Compute them."""


@dataclass(frozen=True, slots=True)
class AffineAnswers:
    """Answers of single tokens."""

    tokens: TokenMapAnswers
    residual: bool

    def layer(self) -> LayerMap:  # noqa: D102
        return LayerMap.of(self.tokens, self.residual)


@dataclass(frozen=True, slots=True)
class ValueAnswers:
    """All answers that the maps M_h are computed from."""

    single: MapAnswers
    gates: GateAnswers
    offsets: OffsetAnswers
    ranks: tuple[int, ...]
    whole: bool
    """Whether every M_h is read in all directions."""
    open_in: int = 0
    """In how many dimensions the M_h are open, the ranges being dependent there."""
    saturated: SaturatedAnswers | None = None
    groups: Groups = ()
    """Heads that share their values, where maps are solved for once more with these."""

    def layer(self) -> LayerMap:
        """Return c and M."""
        return self.single.layer()

    def vectors(self) -> Array:
        """Return M_h a of the offset that others lie around, (H, m)."""
        longer = np.linalg.norm(self.offsets.base) / np.linalg.norm(self.gates.a)
        return np.asarray(longer * self.gates.vectors(self.layer()))

    def spans(self) -> Array:
        """Return vectors of each head's range, (H, J + 1, m)."""
        return self.offsets.spans(self.layer(), self.vectors())

    def solved(self) -> HeadMaps:
        """Compute all M_h."""
        if self.whole:
            return HeadMaps.of_directions(self.offsets.directions(), self.spans(), self.ranks)
        layer = self.layer()
        spans = list(self.spans()) if self.saturated is None else self.saturated.spans(layer)
        U = [leading(s, r) for s, r in zip(spans, self.ranks, strict=True)]
        values = HeadMaps.of_spans(U, layer, self.open_in)
        return values if self.saturated is not None else self._shared(values)

    def _shared(self, values: HeadMaps) -> HeadMaps:
        """Solve once more for maps that were divided among ranges, values being shared in groups.

        Maps that were read in all directions, or of heads that share nothing, stay as they are.
        """
        groups = self.groups
        if len(groups) in (0, len(values.U)):
            return values
        V = [shared_rows(values, group) for group in groups]
        group_of = {h: g for g, group in enumerate(groups) for h in group}
        rows = [V[group_of[h]] for h in range(len(values.U))]
        places = np.concatenate([[0], np.cumsum([len(x) for x in rows])])
        whole = np.vstack(rows)
        normal, right = whole @ whole.T, whole @ self.layer().heads.T
        spans, directions = self.spans(), self.offsets.directions()
        lengths = np.linalg.norm(self.offsets.steps, axis=1)
        share = np.append(1.0, lengths / np.linalg.norm(self.offsets.base))[:, None]
        for h in self.offsets.asked:
            own = slice(places[h], places[h + 1])
            seen = share * (directions @ rows[h].T)
            normal[own, own] += seen.T @ seen
            right[own] += seen.T @ (share * spans[h])
        joint = np.linalg.lstsq(normal, right, rcond=None)[0]
        U, within = [], []
        for h, V_g in enumerate(rows):
            Q, R = np.linalg.qr(joint[places[h] : places[h + 1]].T)
            U.append(Q)
            within.append(R @ V_g)
        return HeadMaps(U, within)


def groups_of(values: HeadMaps, allowed: float) -> Groups:
    """Put heads together whose values have the same row space, but for a sine of ``allowed``."""
    bases = [leading_rows(V, len(V)) for V in values.V]
    groups: list[list[int]] = []
    for h, basis in enumerate(bases):
        alike = (g for g in groups if _same(bases[g[0]], basis, allowed))
        group = next(alike, None)
        if group is None:
            groups.append([h])
        else:
            group.append(h)
    return tuple(map(tuple, groups))


def shared_rows(values: HeadMaps, group: Sequence[int]) -> Array:
    """Return an orthonormal basis (r, d) of the rows that the values of a group's heads share."""
    stacked = np.vstack([values.V[h] for h in group])
    return leading_rows(stacked, len(values.V[group[0]]))


def _same(one: Array, other: Array, allowed: float) -> bool:
    """Tell whether two row spaces of one dimension have no larger angle than allowed.

    Of values of full rank the row space tells nothing: these heads are taken to share nothing.
    """
    if len(one) != len(other) or len(one) == one.shape[1]:
        return False
    return float(np.linalg.norm(other - other @ one.T @ one, 2)) <= allowed


@dataclass(frozen=True, slots=True)
class DirectionMap(LayerMap):
    """K(b) = M b + c in the coordinates of `NormedAnswers`, answers being directions there.

    Attributes
    ----------
    norm : NormedAnswers
        β, g and R.
    noise : float
        What a number of a normalised answer is off by.
    """

    norm: NormedAnswers
    noise: float

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.M.shape[1])

    @property
    def numbers(self) -> int:  # noqa: D102
        return len(self.norm.gain)

    @property
    def up_to_factor(self) -> bool:  # noqa: D102
        return True

    @property
    def heads(self) -> Array:
        """P_w Σ M_h (d − 1, d), in true units."""
        return self.M - self.norm.projection

    def known(self, tokens: Array) -> Array:
        """Return K of tokens (…, d)."""
        return np.asarray(tokens @ self.M.T + self.c)

    def directions(self, y: Array) -> Array:
        """Return the directions of answers (…, d), of norm 1."""
        w = (y - self.norm.shift) @ self.norm.basis.T
        return np.asarray(w / np.maximum(np.linalg.norm(w, axis=-1, keepdims=True), UNIT))

    def scaled(self, sigma: float) -> Self:
        """Return the map in true units, of ``sigma`` times them with the sign that g lacks."""
        s = abs(sigma)
        return replace(self, norm=self.norm.with_sign(sigma), M=self.M / s, c=self.c / s)

    def outputs(self, columns: Array) -> Array:  # noqa: D102
        return self.norm.centred(columns)

    def read(self, y: Array, b: Array, columns: Array) -> Array:  # noqa: D102
        w, known = self.directions(y), self.known(b)
        mu, _, _ = UnknownScales.beside(columns).solved(w, known)
        return np.asarray(mu[:, None] * w)

    def read_weighted(self, y: Array, b: Array, weights: Array) -> Array:  # noqa: D102
        w, known = self.directions(y), self.known(b)
        # no combination of answers whose weights cancel has anything beside K
        null = np.linalg.svd(weights)[0][:, np.linalg.matrix_rank(weights) :]
        # the same in the span of all that is there, of fewer numbers
        span = np.linalg.qr(np.vstack([w, known]).T)[0]
        system = np.einsum("km,kf->mfk", w @ span, null).reshape(-1, len(w))
        mu = np.linalg.lstsq(system, (span.T @ known.T @ null).ravel(), rcond=None)[0]
        return np.asarray(mu[:, None] * w)

    def read_along(self, y: Array, b: Array, expected: Array) -> Array:  # noqa: D102
        w, whole = self.directions(y), self.known(b) + expected
        return np.asarray(np.sum(w * whole, axis=-1, keepdims=True) * w)

    def read_shares(self, y: Array, b: Array, a: Array) -> Array:  # noqa: D102
        w, known = self.directions(y), self.known(b)
        sums = a @ self.heads.T + known.sum(axis=0)
        each = [np.linalg.lstsq(w[:, j].T, sums[j], rcond=None)[0] for j in range(len(a))]
        return np.asarray(np.reshape(each, (len(a), len(w))).T[..., None] * w)


@dataclass(frozen=True, slots=True)
class NormedNoise(AnswerNoise):
    """What answers behind a norm are off by: every number, relative to itself and to γ.

    Attributes
    ----------
    scale : ndarray, shape (d,)
        |γ|.
    """

    scale: Array = field(kw_only=True)

    def drawn(self, answers: Array, rng: np.random.Generator) -> Array:  # noqa: D102
        size = np.abs(answers) + np.abs(self.scale)
        return np.asarray(self.relative * size * rng.standard_normal(answers.shape))
