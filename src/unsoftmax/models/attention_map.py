"""Attention: heads h in groups g, Σ_h O_h V_g Σ_i α_hi x_i + c + R x_p at position p.

α_h = softmax over i of the scores

    s_hi = (K_g x_i + b_k,g)·R(p − i)(Q_h x_p + b_q,h) + x_i·w_h,

R(Δ) turning the planes of keys against those of queries (rotary positions); the identity without.
With scales ("QK-norm") a key or query z = γ ⊙ u/√(mean u² + eps) stands in place of u.
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
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from unsoftmax.models import linearised as lin
from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention import softmax
from unsoftmax.models.products import Product
from unsoftmax.models.rotary import turned
from unsoftmax.probes import Array, Indices

# Sums over a sequence's tokens may round more than few terms do from this many tokens on.
_SHORT_SUMS = 20
_LARGEST = np.finfo(np.float64).max
# Scores of this size round by a tenth and more: where two are as close, either may have the weight.
# Larger: the rounding of answers is taken for linear where it is not.
_LOST = 2.0**44


WHOLE, BIASES = "W at any distance", "biases at any distance"


class _At(NamedTuple):
    """What heads compute of sequences; h over heads, g over groups, i over tokens, p over P."""

    X: Array
    """(B, N, d)."""
    x: Array
    """The tokens at the positions that are asked for, (B, P, d)."""
    where: Array
    """Of tokens how far behind the last one they are, (N,)."""
    last: Array
    """Of the positions, (P,)."""
    keys: Array
    """k̂, (B, G, N, r); of every head, (B, H, N, r), where the map is linearised, as values."""
    queries: Array
    """q̂, (B, H, P, r)."""
    scores: Array
    """(B, H, P, N); −inf masks a token."""
    alpha: Array
    """Their softmax."""
    values: Array
    """V_g x_i, (B, G, N, s)."""
    key_norm: _Normalised | None = None
    """Of groups, before they turn; queries' alike of heads."""
    query_norm: _Normalised | None = None


class _Normalised(NamedTuple):
    """Keys or queries z = γ ⊙ n, n = u/σ with σ = √(mean u² + eps), before they turn."""

    scale: Array
    """γ, (r,)."""
    n: Array
    """(B, G or H, T, r)."""
    deviation: Array
    """σ, (B, G or H, T, 1)."""

    @classmethod
    def of(cls, u: Array, scale: Array | None, eps: float | None) -> _Normalised | None:
        """Normalise u where there is a scale."""
        if scale is None or eps is None:
            return None
        lengths = lin.lengths_of(u)[..., None] / np.sqrt(u.shape[-1])
        deviation = np.hypot(lengths, np.sqrt(eps))
        return cls(scale, u / np.where(deviation > 0, deviation, 1.0), deviation)

    def moved(self, du: Array, dscale: Array | float) -> Array:
        """Return the change of z with those of u and γ."""
        return self.scale * self._across(du) + dscale * self.n

    def pulled(self, y: Array) -> Array:
        """Return covectors of z (C, …) as covectors of u."""
        return self._across(self.scale * y)

    def _across(self, x: Array) -> Array:
        """Return ∂n/∂u x, which is symmetric: what is along n is taken off."""
        along = np.mean(self.n * x, axis=-1, keepdims=True)
        sigma = np.where(self.deviation > 0, self.deviation, 1.0)
        return np.asarray((x - self.n * along) / sigma)

    def by_scale(self, covectors: Callable[[], Array]) -> lin.Gradients:
        """Return the products of covectors of z with the derivative by γ."""
        return (lin.Direct(np.sum(covectors() * self.n, axis=(2, 3))),)


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
    k_scale: Array | None = None
    """γ of all keys, (r,); of queries alike, 1/√r inside. None: they are not normalised."""
    q_scale: Array | None = None
    qk_eps: float | None = None
    causal: bool = True
    """Whether position p attends to tokens up to p alone, where all positions are asked for."""

    @property
    def arrays(self) -> dict[str, Array]:
        """Its arrays by name."""
        outer, scores = ("O", "V", "c", "R"), ("k_bias", "q_bias", "frequencies")
        names = ("Q", "K", "w", *outer, *scores, "k_scale", "q_scale")
        return {name: x for name in names if (x := getattr(self, name)) is not None}

    def size(self, name: str) -> lin.Size:
        """Return the size of an array; W and M may be products, which are not formed."""
        if name in ("W", "M"):
            left, right = (self.K, self.Q) if name == "W" else (self.O, self.V)
            if name == "M" and left is None:
                return lin.Size((), ())
            if left is None or right is None:
                return lin.Size.of_each(right if left is None else left)
            if name == "W":
                left = left.swapaxes(1, 2)[self._places]
            else:
                right = right[self._places]
            norms = tuple(Product(*pair).norm for pair in zip(left, right, strict=True))
            return lin.Size((len(norms), left.shape[1], right.shape[2]), norms, True)
        array = self.arrays.get(name)
        shared = name in ("c", "R", "k_scale", "q_scale")
        return lin.Size.of(array) if shared else lin.Size.of_each(array)

    @property
    def _places(self) -> Indices:
        """The group of every head."""
        return np.arange(len(self.Q)) if self.groups is None else self.groups

    @property
    def _members(self) -> list[Indices]:
        """The heads of every group."""
        places = self._places
        return [np.flatnonzero(places == g) for g in range(int(places.max(initial=-1)) + 1)]

    def _each(self, stack: Array) -> Array:
        """Return what groups have, along the second axis, for every head."""
        if stack.shape[1] == 1:  # keys or values that are tokens, too
            return np.broadcast_to(stack, (len(stack), len(self.Q), *stack.shape[2:]))
        return stack if self.groups is None else stack[:, self.groups]

    def _turned(self, x: Array, positions: Array, by_group: bool = False) -> Array:
        """Turn the planes of keys or queries (…, H, T, r) by their positions (T,)."""
        if self.frequencies is None:
            return x
        theta = self.frequencies if by_group else self.frequencies[self._places]
        return turned(x, positions[:, None] * theta[:, None])

    def _at(self, X: Array, every: bool) -> _At:
        x, where = X if every else X[:, -1:], np.arange(X.shape[1]) - (X.shape[1] - 1.0)
        last = where[-x.shape[1] :]
        q, k = np.einsum("bpd,hrd->bhpr", x, self.Q, optimize=every), _projected(X, self.K)
        if self.q_bias is not None:
            q = q + self.q_bias[:, None]
        if self.k_bias is not None:
            k = k + self.k_bias[:, None]
        query_norm = _Normalised.of(q, self.q_scale, self.qk_eps)
        key_norm = _Normalised.of(k, self.k_scale, self.qk_eps)
        q = q if query_norm is None else query_norm.scale * query_norm.n
        k = k if key_norm is None else key_norm.scale * key_norm.n
        queries, keys = self._turned(q, last), self._turned(k, where, by_group=True)
        scores = self._by_heads(queries, keys.swapaxes(2, 3))
        if self.w is not None:
            scores = scores + (self.w @ X.swapaxes(1, 2))[:, :, None]
        if self.causal and scores.shape[2] > 1:
            scores = np.where(np.tri(X.shape[1], dtype=bool), scores, -np.inf)
        values = _projected(X, self.V)
        norms = key_norm, query_norm
        return _At(X, x, where, last, keys, queries, scores, softmax(scores), values, *norms)

    def _by_heads(self, left: Array, right: Array) -> Array:
        """Return products (B, H, P, u) of what heads have (B, H, P, t) and groups (B, G, t, u)."""
        B, H, P, t = left.shape
        found = np.empty((B, H, P, right.shape[3]))
        for g, heads in enumerate(self._members if right.shape[1] != 1 else [np.arange(H)]):
            of_group = left[:, heads].reshape(B, len(heads) * P, t) @ right[:, g]
            found[:, heads] = of_group.reshape(B, len(heads), P, right.shape[3])
        return found

    def _out(self, pooled: Array) -> Array:
        """Return Σ_h O_h of what heads pool, (B, H, P, s) to (B, P, m)."""
        if self.O is None:
            return np.asarray(pooled.sum(axis=1))
        B, _, P, _ = pooled.shape
        answer = np.zeros((B, P, self.O.shape[1]))
        for heads in self._members:
            own = pooled[:, heads], self.O[heads]
            answer += np.einsum("bhps,hms->bpm", *own, optimize=P > 1)
        return answer

    def entries(self, tokens: int, every: bool) -> int:
        """Return how many numbers a sequence's answer needs at a time."""
        (H, r, d), P = self.Q.shape, tokens if every else 1
        s, G = d if self.V is None else self.V.shape[1], len(self._members)
        return int(max(H * P * max(tokens, r, s), tokens * max(G * max(r, s), d)))

    def scores(self, X: Array, every: bool = False) -> Array:
        """Map sequences (B, N, d) to the scores (B, H, P, N)."""
        return self._at(X, every).scores

    def answers(self, X: Array, every: bool = False) -> Array:
        """Map sequences (B, N, d) to answers at all positions, or at the last, (B, P, m)."""
        at = self._at(X, every)
        return self._beside(self._out(self._by_heads(at.alpha, at.values)), at.x)

    def _beside(self, answer: Array, x: Array) -> Array:
        if self.R is not None:
            answer = answer + x @ self.R.T
        return answer if self.c is None else answer + self.c

    def scored(self, x: Array) -> Array:
        """Return what query tokens (B, d) score the token before them with, (B, H, d)."""
        queries = self._at(np.stack([0.0 * x, x], axis=1), False).queries
        u = queries[:, :, 0]
        if self.K is not None:
            turned_on = self._turned(queries, np.ones(1))[:, :, 0]
            u = np.einsum("bhr,hrd->bhd", turned_on, self.K[self._places])
        return np.asarray(u if self.w is None else u + self.w)

    def score_sizes(self, X: Array) -> Array:
        """Return the sizes of what scores are made of at the last position, (B, H, N)."""
        at = self._at(X, False)
        at = at._replace(keys=self._each(at.keys))
        return self._score_sizes(at, lin.lengths_of(X))[:, :, 0]

    def pooled(self, X: Array) -> Array:
        """Return what heads pool of the tokens of sequences (B, N, d), (B, H, d)."""
        return np.asarray(self._at(X, False).alpha[:, :, 0] @ X)

    def linearise(
        self, X: Array, every: bool = False, sizes: lin.Sizes | None = None
    ) -> lin.Linearised:
        """Return the map at sequences (B, N, d): at all positions, or at the last.

        ``sizes`` (B, N, d) are those of the terms that tokens are made of.
        """
        at = self._at(X, every)
        at = at._replace(keys=self._each(at.keys), values=self._each(at.values))
        value = self._beside(self._out(at.alpha @ at.values), at.x)

        @cache
        def rounding() -> Array:
            return self._rounding(at, np.abs(X if sizes is None else sizes()))

        return lin.Linearised(value, rounding, partial(self._jvp, at), partial(self._vjp, at))

    # -- forward

    def _jvp(self, at: _At, change: lin.Changes, dX: Array | None) -> Array:
        X, x, where, last, *_ = at
        norms = {"K": at.key_norm, "Q": at.query_norm}
        dX = np.zeros_like(X) if dX is None else dX
        dx = dX[:, -x.shape[1] :]

        def projected(tokens: Array, moved: Array, name: str, bias: str = "") -> Array:
            """Return how far projections move, (B, H or G, T, r); without one they are tokens."""
            own: Array | None = getattr(self, name)
            if own is None:
                return moved[:, None]
            whole = np.einsum("bnd,grd->bgnr", moved, own)
            if name in change:
                whole = whole + np.einsum("bnd,grd->bgnr", tokens, change[name])
            whole = whole + change[bias][:, None] if bias in change else whole
            norm = norms.get(name)
            if norm is not None:
                whole = norm.moved(whole, change.get(f"{name.lower()}_scale", 0.0))
            return np.asarray(whole)

        dk = self._turned(projected(X, dX, "K", "k_bias"), where, by_group=True)
        dk, dq = self._each(dk), self._turned(projected(x, dx, "Q", "q_bias"), last)
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
        dv = self._each(projected(X, dX, "V"))
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

    def _vjp(self, at: _At, y: Array) -> lin.Pullback:
        (X, x, where, last, *_), H = at, len(self.Q)
        if self.O is None:
            of_pooled = np.repeat(y[:, :, None], H, axis=2)
        else:
            of_pooled = np.einsum("cbpm,hms->cbhps", y, self.O, optimize=True)
        # γ, (C, B, H, P, N)
        worth = of_pooled @ at.values.swapaxes(2, 3)
        gamma = at.alpha * (worth - np.sum(at.alpha * worth, axis=4, keepdims=True))

        def scored() -> Array:
            return np.asarray(gamma @ X[:, None])  # Σ γ x_i, (C, B, H, P, d)

        def by_shown_queries() -> Array:
            return self._turned(gamma @ at.keys, -last)

        def by_shown_keys() -> Array:
            return self._by_group(self._turned(gamma.swapaxes(3, 4) @ at.queries, -where))

        def by_queries() -> Array:
            shown, norm = by_shown_queries(), at.query_norm
            return shown if norm is None else norm.pulled(shown)

        def by_keys() -> Array:
            shown, norm = by_shown_keys(), at.key_norm
            return shown if norm is None else norm.pulled(shown)

        def by_values() -> Array:
            return self._by_group(at.alpha.swapaxes(2, 3) @ of_pooled)

        def by_output(tokens: Array) -> lin.Gradients:
            return tuple(lin.Outer(y, (at.alpha[:, h] @ tokens[:, h])) for h in range(H))

        def by_angles() -> lin.Gradients:
            of_key = _planes(gamma.swapaxes(3, 4) @ at.queries, _right_angle(at.keys), where)
            of_query = _planes(gamma @ at.keys, _right_angle(at.queries), last)
            whole = self._by_group((of_key + of_query)[:, :, :, None])[:, :, :, 0]
            return tuple(lin.Direct(whole[:, :, g]) for g in range(whole.shape[2]))

        def at_any_distance(join: Callable[[Array, Array], Array]) -> lin.Gradients:
            lengths = lin.lengths_of(X)
            sizes = join(lengths[:, None, :], lengths[:, -len(last) :, None])
            each = np.sum(np.abs(gamma) * sizes[:, None], axis=(3, 4))
            return tuple(lin.Direct(each[:, :, [h]]) for h in range(H))

        made: dict[str, Callable[[], lin.Gradients]] = {
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
            "c": lambda: (lin.Direct(y.sum(axis=2)),),
            "R": lambda: (lin.Outer(y, x),),
        }
        if at.key_norm is not None and at.query_norm is not None:
            made["k_scale"] = partial(at.key_norm.by_scale, by_shown_keys)
            made["q_scale"] = partial(at.query_norm.by_scale, by_shown_queries)
        own = {"W", "w", "M", *self.arrays}
        if self.frequencies is not None:
            made[WHOLE] = partial(at_any_distance, np.multiply)
            made[BIASES] = partial(at_any_distance, np.hypot)
            own = own - {"W"} | {WHOLE, BIASES}
        by = lin.OnDemand({name: made[name] for name in made if name in own})

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
            whole[:, :, -x.shape[1] :] += at_x
            return np.asarray(whole)

        return lin.Pullback(by, by_tokens)

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

    @np.errstate(over="ignore")
    def _rounding(self, at: _At, made_of: Array) -> Array:
        """Return the size of what is added up: of values, and of scores, which move weights.

        Heads round one by one: errors of vectors add up as random numbers do. It is infinite where
        the scores' sizes leave float64's range and weights are not 0 or 1.
        """
        B, N, _ = made_of.shape
        lengths, long = lin.lengths_of(made_of), max(1.0, N / _SHORT_SUMS)
        longest = (long * lengths.max(axis=1))[:, None, None]
        if self.O is None and self.V is None:  # tokens are pooled number by number
            longest = long * made_of.max(axis=1)[:, None]
        m = at.values.shape[3] if self.O is None else self.O.shape[1]
        terms = np.zeros((B, at.x.shape[1], m))
        sizes = np.minimum(self._score_sizes(at, lengths), _LARGEST)
        scores, lost = at.alpha * sizes, _lost(at.scores, sizes)
        for h, g in enumerate(self._places.tolist()):
            worth, rows = at.values[:, h], np.ones(m)
            if self.V is not None:
                rows = lin.lengths_of(self.V[g])
            if self.O is not None:
                worth = worth @ self.O[h].T
                rows = lin.lengths_of(self.O[h] * (rows if self.V is not None else 1.0))
            mean = at.alpha[:, h] @ worth
            away = np.abs(worth[:, None] - mean[:, :, None])
            moved = (scores[:, h, :, None] @ away)[:, :, 0]
            if np.any(lost[:, h]):  # weights may be any
                most = np.max(away, axis=2) / UNIT
                moved = np.where(lost[:, h, :, None], np.maximum(moved, most), moved)
            own = longest * rows + moved
            # of a single number heads may round alike: their errors add up as they are
            terms = terms + own if m == 1 else np.hypot(terms, own)
        added = 0.0 if self.R is None else np.abs(at.x) @ np.abs(self.R).T
        return np.asarray(terms + added + (0.0 if self.c is None else np.abs(self.c)))

    def _score_sizes(self, at: _At, lengths: Array) -> Array:
        """Return the sizes of what scores are made of, (B, H, P, N).

        Entries of keys and queries round by themselves, and so do the angles of planes, which
        grow with positions.
        """
        P = at.x.shape[1]
        if self.frequencies is None:
            u = at.queries if self.K is None else at.queries @ self.K[self._places]
            u = u if self.w is None else u + self.w[:, None]
            given = lin.lengths_of(at.x)
            longer = np.maximum(1.0, lengths[:, -P:] / np.where(given > 0, given, np.inf))
            sizes = np.minimum(lin.lengths_of(u) * longer[:, None], _LARGEST)
            return np.asarray(sizes[..., None] * lengths[:, None, None])
        assert self.K is not None
        rows = lin.lengths_of(self.K)[:, None], lin.lengths_of(self.Q)[:, None]
        seen = lengths[:, None, :, None] * rows[0], lengths[:, None, -P:, None] * rows[1]
        key_norm, query_norm = at.key_norm, at.query_norm
        of_keys = self._each(_planes_of(seen[0], self.k_bias, key_norm))
        of_query = _planes_of(seen[1], self.q_bias, query_norm)
        key, query = _planes_of(at.keys), _planes_of(at.queries)
        angles = np.abs(self.frequencies[self._places]) * (lengths.shape[1] - 1)
        left = np.concatenate([query, of_query, angles[:, None] * query], axis=3)
        return lin.joint_lengths(left, np.concatenate([of_keys, key, key], axis=3))


def _projected(X: Array, stack: Array | None) -> Array:
    """Return tokens (B, N, d) mapped by what groups have, (B, G, N, r); tokens without it."""
    if stack is None:
        return X[:, None]
    found = np.empty((len(X), len(stack), X.shape[1], stack.shape[1]))
    for g, own in enumerate(stack):
        found[:, g] = X @ own.T
    return found


def _lost(scores: Array, sizes: Array) -> Array:
    """Tell where rounding may hide which token has the weight, (B, H, P)."""
    largest = np.max(sizes, axis=3)
    with np.errstate(invalid="ignore"):
        below = np.max(scores, axis=3, keepdims=True) - scores
    alone = np.count_nonzero(below <= 8 * UNIT * largest[..., None], axis=3) == 1
    # sums of terms beyond float64's range overflow in one order, and not in another
    return np.asarray((largest > _LOST) & ~(alone & (largest < _LARGEST)))


def _per_head(left: Array, right: Array) -> lin.Gradients:
    """Return Σ_t l_t r_tᵀ of every head or group, l (C, B, H, T, o)."""
    return tuple(lin.Outer(left[:, :, h], right) for h in range(left.shape[2]))


def _summed(left: Array) -> lin.Gradients:
    return tuple(lin.Direct(left[:, :, h].sum(axis=2)) for h in range(left.shape[2]))


def _right_angle(x: Array) -> Array:
    """Turn every plane by a right angle: (a, b) becomes (−b, a)."""
    return np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)


def _planes(x: Array, other: Array, positions: Array) -> Array:
    """Return Σ_t position_t (x_t·other_t) plane by plane, (C, B, H, r/2)."""
    both = x * other
    planes = both[..., 0::2] + both[..., 1::2]
    return np.asarray(np.einsum("t,cbhtk->cbhk", positions, planes))


def _planes_of(rows: Array, bias: Array | None = None, norm: _Normalised | None = None) -> Array:
    """Return the lengths of pairs of coordinates, (…, r/2), as a norm makes them longer."""
    rows = rows if bias is None else rows + np.abs(bias)[:, None]
    if norm is not None:
        rows = np.abs(norm.scale) * rows / np.where(norm.deviation > 0, norm.deviation, 1.0)
    return np.asarray(np.hypot(rows[..., 0::2], rows[..., 1::2]))
