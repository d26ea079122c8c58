"""Attention: heads h in groups g, Σ_h O_h V_g Σ_i α_hi x_i + c + R x_p at position p.

α_h = softmax over i of the scores

    s_hi = (K_g x_i + b_k,g)·R(p − i)(Q_h x_p + b_q,h) + x_i·w_h,

R(Δ) turning the planes of keys against those of queries (rotary positions); the identity without.
Where K is not there keys are tokens and Q_h is W_h; where V is not, values are tokens and O_h is
M_h; where O is not, values are the answer. With R(p − i) = R(i)ᵀR(p), turned keys k̂_i = R(i)k_i
and queries q̂_p = R(p)q_p, and a covector y of the answer at p:

    ∂/∂s_hi = γ_hi = α_hi (y·O_h V_g x_i − mean),    ∂/∂k̂_i = Σ γ_hi q̂_p,    ∂/∂q̂_p = Σ γ_hi k̂_i,

turned back for k and q; θ_k turns plane k of each by its position times a right angle J. Gradients
by W_h and M_h are there whatever they are made of. With positions, where all W(Δ) and the biases'
part of the scores may be off by themselves, sums of sizes take the place of those by W and w: what
errors so large move an answer by at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from unsoftmax.models.attention import softmax
from unsoftmax.models.linearised import (
    Changes,
    Direct,
    Gradients,
    Linearised,
    OnDemand,
    Outer,
    Pullback,
    Size,
)
from unsoftmax.models.products import Product
from unsoftmax.probes import Array, Indices

# Sums over a sequence's tokens may round more than few terms do from this many tokens on.
_SHORT_SUMS = 20


WHOLE, BIASES = "W at any distance", "biases at any distance"


class _At(NamedTuple):
    """What heads compute of sequences; h over heads, i over tokens, p over positions."""

    keys: Array
    """k̂, (B, H, N, r)."""
    queries: Array
    """q̂, (B, H, P, r)."""
    alpha: Array
    """(B, H, P, N)."""
    values: Array
    """V_g x_i, (B, H, N, s)."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Several heads; see the module. Shapes as `RotaryLayer` has them, w (H, d), R (m, d).

    Without V values are tokens, s = d; without K keys are tokens, r = d.
    """

    Q: Array
    K: Array | None = None
    w: Array | None = None
    O: Array | None = None  # noqa: E741 - the projections' own names
    V: Array | None = None
    c: Array | None = None
    R: Array | None = None
    k_bias: Array | None = None
    q_bias: Array | None = None
    frequencies: Array | None = None
    """θ of every group, (G, r/2)."""
    groups: Indices | None = None
    """Of every head, (H,); one each where it is None."""
    causal: bool = True
    """Whether position p attends to tokens up to p alone, where all positions are asked for."""

    @property
    def arrays(self) -> dict[str, Array]:
        """Its arrays by name."""
        names = ("Q", "K", "w", "O", "V", "c", "R", "k_bias", "q_bias", "frequencies")
        return {name: x for name in names if (x := getattr(self, name)) is not None}

    def size(self, name: str) -> Size:
        """Return the size of an array; W and M may be products, which are not formed."""
        H, d = len(self.Q), self.Q.shape[2]
        if name == "W":
            if self.K is None:
                return Size.of_each(self.Q)
            norms = [
                Product(K.T, Q).norm for K, Q in zip(self.K[self._places], self.Q, strict=True)
            ]
            return Size((H, d, d), tuple(norms), True)
        if name == "M" and self.O is None:
            return Size((), ())
        if name == "M" and self.O is not None:
            if self.V is None:
                return Size.of_each(self.O)
            pairs = zip(self.O, self.V[self._places], strict=True)
            norms = [Product(*pair).norm for pair in pairs]
            return Size((H, self.O.shape[1], d), tuple(norms), True)
        array = self.arrays.get(name)
        return Size.of(array) if name in ("c", "R") else Size.of_each(array)

    @property
    def _places(self) -> Indices:
        """The group of every head."""
        return np.arange(len(self.Q)) if self.groups is None else self.groups

    def _each(self, stack: Array) -> Array:
        """Return what groups have, along the second axis, for every head."""
        return stack if self.groups is None else stack[:, self.groups]

    def _turned(self, x: Array, positions: Array) -> Array:
        """Turn the planes of keys or queries (…, H, T, r) by their positions (T,)."""
        if self.frequencies is None:
            return x
        theta = self.frequencies[self._places]
        angles = positions[:, None] * theta[:, None]
        cosine, sine = np.cos(angles), np.sin(angles)
        a, b = x[..., 0::2], x[..., 1::2]
        turned = np.empty(x.shape)
        turned[..., 0::2] = cosine * a - sine * b
        turned[..., 1::2] = sine * a + cosine * b
        return turned

    def _at(self, X: Array, every: bool) -> _At:
        B, N, d = X.shape
        H, x = len(self.Q), X if every else X[:, -1:]
        where = np.arange(N) - (N - 1.0)
        q = np.einsum("bpd,hrd->bhpr", x, self.Q, optimize=True)
        if self.q_bias is not None:
            q = q + self.q_bias[:, None]
        k = np.broadcast_to(X[:, None], (B, H, N, d)) if self.K is None else self._keys(X)
        keys, queries = self._turned(k, where), self._turned(q, where[-x.shape[1] :])
        scores = queries @ keys.swapaxes(2, 3)
        if self.w is not None:
            scores = scores + (self.w @ X.swapaxes(1, 2))[:, :, None]
        if every and self.causal:
            scores = np.where(np.tri(N, dtype=bool), scores, -np.inf)
        if self.V is None:
            values = np.broadcast_to(X[:, None], (B, H, N, d))
        else:
            values = self._each(np.einsum("bnd,gsd->bgns", X, self.V, optimize=True))
        return _At(keys, queries, softmax(scores), values)

    def _keys(self, X: Array) -> Array:
        assert self.K is not None
        k = np.einsum("bnd,grd->bgnr", X, self.K, optimize=True)
        return self._each(k if self.k_bias is None else k + self.k_bias[:, None])

    def _out(self, pooled: Array) -> Array:
        """Return Σ_h O_h of what heads pool, (B, H, P, s) to (B, P, m)."""
        if self.O is None:
            return np.asarray(pooled.sum(axis=1))
        return np.asarray(np.einsum("bhps,hms->bpm", pooled, self.O, optimize=True))

    def scored(self, x: Array) -> Array:
        """Return what query tokens (B, d) score the token before them with, (B, H, d)."""
        at = self._at(np.stack([0.0 * x, x], axis=1), False)
        u = at.queries[:, :, 0]
        if self.K is not None:
            one = np.ones(1)
            u = np.einsum(
                "bhr,hrd->bhd", self._turned(at.queries, one)[:, :, 0], self.K[self._places]
            )
        return np.asarray(u if self.w is None else u + self.w)

    def pooled(self, X: Array) -> Array:
        """Return what heads pool of the tokens of sequences (B, N, d), (B, H, d)."""
        return np.asarray(self._at(X, False).alpha[:, :, 0] @ X)

    def linearise(self, X: Array, every: bool = False, sizes: Array | None = None) -> Linearised:
        """Return the map at sequences (B, N, d): at all positions, or at the last.

        ``sizes`` (B, N, d) are those of the terms that tokens are made of.
        """
        at, x = self._at(X, every), X if every else X[:, -1:]
        value = self._out(at.alpha @ at.values)
        if self.R is not None:
            value = value + x @ self.R.T
        if self.c is not None:
            value = value + self.c
        made_of = np.abs(X) if sizes is None else sizes
        return Linearised(
            value,
            self._rounding(at, x, made_of),
            partial(self._jvp, X, at, every),
            partial(self._vjp, X, at, every),
        )

    # -- forward

    def _jvp(self, X: Array, at: _At, every: bool, change: Changes, dX: Array | None) -> Array:
        N = X.shape[1]
        x, where = X if every else X[:, -1:], np.arange(N) - (N - 1.0)
        last, dX = where[-x.shape[1] :], np.zeros_like(X) if dX is None else dX
        dx = dX if every else dX[:, -1:]
        dQ, dK, dV = (change.get(name) for name in "QKV")
        dq = np.einsum("bpd,hrd->bhpr", dx, self.Q)
        if dQ is not None:
            dq = dq + np.einsum("bpd,hrd->bhpr", x, dQ)
        if "q_bias" in change:
            dq = dq + change["q_bias"][:, None]
        dk = np.broadcast_to(dX[:, None], at.keys.shape) if self.K is None else None
        if self.K is not None:
            by_group = np.einsum("bnd,grd->bgnr", dX, self.K)
            if dK is not None:
                by_group = by_group + np.einsum("bnd,grd->bgnr", X, dK)
            if "k_bias" in change:
                by_group = by_group + change["k_bias"][:, None]
            dk = self._each(by_group)
        assert dk is not None
        dk, dq = self._turned(dk, where), self._turned(dq, last)
        if "frequencies" in change:
            rate = np.repeat(change["frequencies"][self._places], 2, axis=1)[:, None]
            dk = dk + where[:, None] * rate * _right_angle(at.keys)
            dq = dq + last[:, None] * rate * _right_angle(at.queries)
        ds = dq @ at.keys.swapaxes(2, 3) + at.queries @ dk.swapaxes(2, 3)
        if self.w is not None:
            ds = ds + (self.w @ dX.swapaxes(1, 2))[:, :, None]
        if "w" in change:
            ds = ds + (change["w"] @ X.swapaxes(1, 2))[:, :, None]
        if "W" in change:
            ds = ds + np.einsum("bpd,hed,bne->bhpn", x, change["W"], X, optimize=True)
        moved = at.alpha * (ds - np.sum(at.alpha * ds, axis=3, keepdims=True))
        if self.V is None:
            dv = np.broadcast_to(dX[:, None], at.values.shape)
        else:
            by_group = np.einsum("bnd,gsd->bgns", dX, self.V)
            if dV is not None:
                by_group = by_group + np.einsum("bnd,gsd->bgns", X, dV)
            dv = self._each(by_group)
        answer = self._out(moved @ at.values + at.alpha @ dv)
        if "O" in change:
            pooled = at.alpha @ at.values
            answer = answer + np.einsum("bhps,hms->bpm", pooled, change["O"], optimize=True)
        if "M" in change:
            pooled = at.alpha @ X[:, None]
            answer = answer + np.einsum("bhpd,hmd->bpm", pooled, change["M"], optimize=True)
        if self.R is not None:
            answer = answer + dx @ self.R.T
        if "R" in change:
            answer = answer + x @ change["R"].T
        return np.asarray(answer + change.get("c", 0.0))

    # -- back

    def _vjp(self, X: Array, at: _At, every: bool, y: Array) -> Pullback:
        N, H = X.shape[1], len(self.Q)
        x, where = X if every else X[:, -1:], np.arange(N) - (N - 1.0)
        last = where[-x.shape[1] :]
        if self.O is None:
            of_pooled = np.repeat(y[:, :, None], H, axis=2)
        else:
            of_pooled = np.einsum("cbpm,hms->cbhps", y, self.O, optimize=True)
        # γ, (C, B, H, P, N)
        worth = of_pooled @ at.values.swapaxes(2, 3)
        gamma = at.alpha * (worth - np.sum(at.alpha * worth, axis=4, keepdims=True))

        def scored() -> Array:
            return np.asarray(gamma @ X[:, None])  # Σ γ x_i, (C, B, H, P, d)

        def by_queries() -> Array:
            return self._turned(gamma @ at.keys, -last)

        def by_keys() -> Array:
            return self._by_group(self._turned(gamma.swapaxes(3, 4) @ at.queries, -where))

        def by_values() -> Array:
            return self._by_group(at.alpha.swapaxes(2, 3) @ of_pooled)

        def by_output(tokens: Array) -> Gradients:
            return tuple(Outer(y, (at.alpha[:, h] @ tokens[:, h])) for h in range(H))

        def by_angles() -> Gradients:
            of_key = _planes(gamma.swapaxes(3, 4) @ at.queries, _right_angle(at.keys), where)
            of_query = _planes(gamma @ at.keys, _right_angle(at.queries), last)
            whole = self._by_group((of_key + of_query)[:, :, :, None])[:, :, :, 0]
            return tuple(Direct(whole[:, :, g]) for g in range(whole.shape[2]))

        def at_any_distance(join: Callable[[Array, Array], Array]) -> Gradients:
            lengths = np.linalg.norm(X, axis=2)
            sizes = join(lengths[:, None, :], lengths[:, -len(last) :, None])
            each = np.sum(np.abs(gamma) * sizes[:, None], axis=(3, 4))
            return tuple(Direct(each[:, :, [h]]) for h in range(H))

        made: dict[str, Callable[[], Gradients]] = {
            "W": lambda: _per_head(scored(), x),
            "w": lambda: _summed(scored()),
            "M": lambda: by_output(np.broadcast_to(X[:, None], (len(X), H, *X.shape[1:]))),
            "Q": lambda: _per_head(by_queries(), x),
            "q_bias": lambda: _summed(by_queries()),
            "K": lambda: _per_head(by_keys(), X),
            "k_bias": lambda: _summed(by_keys()),
            "frequencies": by_angles,
            "O": lambda: by_output(at.values),
            "V": lambda: _per_head(by_values(), X),
            "c": lambda: (Direct(y.sum(axis=2)),),
            "R": lambda: (Outer(y, x),),
        }
        own = {"w", "M", *self.arrays}
        if self.frequencies is None:
            own |= {"W"}
        else:
            made[WHOLE] = partial(at_any_distance, np.multiply)
            made[BIASES] = partial(at_any_distance, np.hypot)
            own |= {WHOLE, BIASES}
        by = OnDemand({name: made[name] for name in made if name in own})

        def by_tokens() -> Array:
            at_x = np.einsum("cbhpr,hrd->cbpd", by_queries(), self.Q, optimize=True)
            if self.R is not None:
                at_x = at_x + y @ self.R
            if self.K is None:  # without positions
                whole = np.einsum("cbhpn,bhpd->cbnd", gamma, at.queries, optimize=True)
            else:
                whole = np.einsum("cbgnr,grd->cbnd", by_keys(), self.K, optimize=True)
            if self.w is not None:
                whole = whole + np.einsum("cbhpn,hd->cbnd", gamma, self.w, optimize=True)
            if self.V is None:
                whole = whole + np.einsum("bhpn,cbhpd->cbnd", at.alpha, of_pooled, optimize=True)
            else:
                whole = whole + np.einsum("cbgns,gsd->cbnd", by_values(), self.V, optimize=True)
            whole[:, :, slice(None) if every else slice(-1, None)] += at_x
            return np.asarray(whole)

        return Pullback(by, by_tokens)

    def _by_group(self, x: Array) -> Array:
        """Add up what heads of a group have, (C, B, H, …) to (C, B, G, …)."""
        if self.groups is None:
            return x
        G = int(self.groups.max(initial=-1)) + 1
        whole = np.zeros((*x.shape[:2], G, *x.shape[3:]))
        for h, g in enumerate(self.groups.tolist()):
            whole[:, :, g] += x[:, :, h]
        return whole

    # -- rounding

    def _rounding(self, at: _At, x: Array, made_of: Array) -> Array:
        """Return the size of what is added up: of values, and of scores, which move weights.

        Heads round one by one: their errors add up as random numbers do.
        """
        B, N, _ = made_of.shape
        lengths, long = np.linalg.norm(made_of, axis=2), max(1.0, N / _SHORT_SUMS)
        longest = (long * lengths.max(axis=1))[:, None, None]
        m = at.values.shape[3] if self.O is None else self.O.shape[1]
        squares = np.zeros((B, x.shape[1], m))
        scores = at.alpha * self._score_sizes(at, x, lengths)
        for h, g in enumerate(self._places.tolist()):
            worth, rows = at.values[:, h], np.ones(m)
            if self.V is not None:
                rows = np.linalg.norm(self.V[g], axis=1)
            if self.O is not None:
                worth = worth @ self.O[h].T
                rows = np.linalg.norm(self.O[h] * (rows if self.V is not None else 1.0), axis=1)
            mean = at.alpha[:, h] @ worth
            away = np.abs(worth[:, None] - mean[:, :, None])
            moved = np.einsum("bpn,bpnm->bpm", scores[:, h], away, optimize=True)
            if self.O is None and self.V is None:  # tokens are pooled number by number
                rows = made_of.max(axis=1)[:, None] / lengths.max(axis=1)[:, None, None]
            # of a single number heads may round alike: their errors add up as they are
            squares += (longest * rows + moved) ** (1 if m == 1 else 2)
        total = squares if m == 1 else np.sqrt(squares)
        added = 0.0 if self.R is None else np.abs(x) @ np.abs(self.R).T
        return np.asarray(total + added + (0.0 if self.c is None else np.abs(self.c)))

    def _score_sizes(self, at: _At, x: Array, lengths: Array) -> Array:
        """Return the sizes of what scores are made of, (B, H, P, N).

        Entries of keys and queries round by themselves, and so do the angles of planes, which
        grow with positions.
        """
        P = x.shape[1]
        if self.frequencies is None:
            u = at.queries if self.K is None else at.queries @ self.K[self._places]
            u = u if self.w is None else u + self.w[:, None]
            given = np.linalg.norm(x, axis=2)
            longer = np.maximum(1.0, lengths[:, -P:] / np.where(given > 0, given, np.inf))
            sizes = np.linalg.norm(u, axis=3) * longer[:, None]
            return np.asarray(sizes[..., None] * lengths[:, None, None])
        assert self.K is not None
        rows = np.linalg.norm(self.K, axis=2)[:, None], np.linalg.norm(self.Q, axis=2)[:, None]
        of_keys = self._each(_planes_of(lengths[:, None, :, None] * rows[0], self.k_bias))
        of_query = _planes_of(lengths[:, None, -P:, None] * rows[1], self.q_bias)
        key, query = _planes_of(at.keys), _planes_of(at.queries)
        angles = np.abs(self.frequencies[self._places]) * (lengths.shape[1] - 1)
        squares = np.square(query) @ np.square(of_keys).swapaxes(2, 3)
        squares += np.square(of_query) @ np.square(key).swapaxes(2, 3)
        squares += np.square(angles[:, None] * query) @ np.square(key).swapaxes(2, 3)
        return np.asarray(np.sqrt(squares))


def _per_head(left: Array, right: Array) -> Gradients:
    """Return Σ_t l_t r_tᵀ of every head or group, l (C, B, H, T, o)."""
    return tuple(Outer(left[:, :, h], right) for h in range(left.shape[2]))


def _summed(left: Array) -> Gradients:
    return tuple(Direct(left[:, :, h].sum(axis=2)) for h in range(left.shape[2]))


def _right_angle(x: Array) -> Array:
    """Turn every plane by a right angle: (a, b) becomes (−b, a)."""
    turned = np.empty(x.shape)
    turned[..., 0::2], turned[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    return turned


def _planes(x: Array, other: Array, positions: Array) -> Array:
    """Return Σ_t position_t (x_t·other_t) plane by plane, (C, B, H, r/2)."""
    both = x * other
    planes = both[..., 0::2] + both[..., 1::2]
    return np.asarray(np.einsum("t,cbhtk->cbhk", positions, planes))


def _planes_of(rows: Array, bias: Array | None = None) -> Array:
    """Return the lengths of pairs of coordinates, (…, r/2)."""
    rows = rows if bias is None else rows + np.abs(bias)[:, None]
    return np.asarray(np.hypot(rows[..., 0::2], rows[..., 1::2]))
