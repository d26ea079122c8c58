"""Does a change of these tensors alone explain some answers? One fit for every hypothesis.

Of tensors θ that may have changed, δ is looked for that minimises the misses of answers, in units
of what they may be off by, by Gauss and Newton on the linearisation of the claim's own maps: δ may
be large. A prior as wide as ten times the tensor keeps δ from what answers do not show. The misses
that are left are compared with what bounds on the answers let through: with J = USVᵀ the
derivative, in these units, at most the rows' sums of |1 − U S²/(S² + 1) Uᵀ|.

Sequences are chosen so that hypotheses differ (`tensor_search`): their tokens span few dimensions,
and δ counts on these alone. Each matrix is looked for in the spans of its gradients' factors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from unsoftmax.models import LayerNorm
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.linearised import Direct, Gradient, Outer, Pullback
from unsoftmax.models.model import Tensor
from unsoftmax.models.neurons import Neurons
from unsoftmax.probes import Array
from unsoftmax.questions.answer_errors import AnswerErrors, Seen
from unsoftmax.questions.claim import Claim

# What may change of heads whose W and M are opened, by the arrays that these are then.
_FACTORS = {"W": "Q", "M": "O"}
RESIDUAL = "the residual connection"
# So many numbers of a vector are looked at, those that miss most: fits take time as their cube.
_NUMBERS = 24
# How many times its own norm a tensor may have changed by. Smaller: replaced ones are not named;
# larger: directions that answers hardly show are moved so far that nothing is linear.
_FURTHEST = 10.0
# Factors' directions that are so much smaller than others, squared, come from rounding.
_NO_DIRECTION = 1e-13
# Derivatives that are so much smaller than others are their rounding.
_ROUNDED_AWAY = 1e-13
# Bounds are no smaller than this share of the largest, and misses that are larger, in their units,
# are not looked at: squares stay in float64's range.
_LEAST_BOUND, _LARGEST_MISS = 1e-20, 1e60
# Of two explanations one with so many times as much freedom says nothing, nor one by a change that
# is so many times larger: what answers hardly show explains whatever they round.
_FREER, _LARGER = 1.2, 1e3
# Steps of Gauss and Newton. True hypotheses need two to ten.
_STEPS = 48
# Each goes so far of the way, at first all of it, until less than this of the misses is left. Where
# none does the whole step is taken all the same, so often: it changes what answers hardly show, and
# the next ones mend what that did to others. If not, steps are damped less.
_PARTS, _GAIN, _UPHILL, _LESS = (1.0, 0.25, 0.0625), 0.8, 2, 1e-3
# Steps end where misses are no more than this share of what bounds let through.
_ENOUGH = 0.25
# Right answers miss by a quarter of their bounds, even where a fit leaves no room for it.
_FITTED = 0.25
# Share of the misses that may come from solving for the change: tokens are float32 numbers.
_ROUNDED = 1e-7


@dataclass(frozen=True)
class Block:
    """Sequences that were asked, and by what their answers miss the claim."""

    sequences: Sequence[Array]
    missed: Array
    """(K, q)."""
    bounds: Array
    numbers: Array
    """The numbers of the answers that are looked at, as covectors (q, m)."""

    @classmethod
    def of(cls, sequences: Sequence[Array], seen: Seen, errors: AnswerErrors) -> Block:
        """Take those numbers of the answers that miss the claim most."""
        missed, bounds = (x.reshape(len(sequences), -1) for x in (seen.missed, errors.of(seen)))
        # what is always 0 may not be off at all
        bounds = np.maximum(bounds, max(_LEAST_BOUND * bounds.max(), np.finfo(np.float64).tiny))
        most = np.argsort(-np.max(np.abs(missed) / bounds, axis=0), kind="stable")[:_NUMBERS]
        return cls(sequences, missed[:, most], bounds[:, most], np.eye(missed.shape[1])[most])

    @property
    def share(self) -> float:
        """The largest miss, as a share of its bound."""
        return float(np.max(np.abs(self.missed) / self.bounds, initial=0.0))

    @cached_property
    def stacks(self) -> list[tuple[list[int], Array]]:
        """Places, and sequences (B, N, d), of every length."""
        found: dict[int, list[int]] = {}
        for k, X in enumerate(self.sequences):
            found.setdefault(len(X), []).append(k)
        return [(found[N], np.stack([self.sequences[k] for k in found[N]])) for N in sorted(found)]

    @cached_property
    def basis(self) -> Array | None:
        """What the tokens span, (d, k), where that is less than all."""
        tokens = np.unique(np.concatenate(self.sequences), axis=0)
        return np.linalg.qr(tokens.T)[0] if len(tokens) < tokens.shape[1] else None

    def up_to(self, tokens: int) -> Block:
        """Return the sequences of up to so many tokens."""
        some = [k for k, X in enumerate(self.sequences) if len(X) <= tokens]
        kept = [self.sequences[k] for k in some]
        return replace(self, sequences=kept, missed=self.missed[some], bounds=self.bounds[some])

    def left(self, claimed: Composition, maps: Composition) -> Array:
        """Return the misses that other maps leave, in units of the bounds, (K, q)."""
        left = np.empty_like(self.missed)
        for some, X in self.stacks:
            moved = maps.answers(X) - claimed.answers(X)
            left[some] = self.missed[some] - moved[:, 0] @ self.numbers.T
        return left / self.bounds

    def pulled_back(self, maps: Composition) -> list[Pullback]:
        """Return the products of the numbers with all derivatives, by stacks."""
        q, m = self.numbers.shape
        return [
            maps.linearise(X).vjp(np.broadcast_to(self.numbers[:, None, None], (q, len(X), 1, m)))
            for _, X in self.stacks
        ]


@dataclass(frozen=True, slots=True)
class Space:
    """Where a tensor's change is looked for: δ = L p Rᵀ, or p itself, times a size."""

    tensor: Tensor
    size: float
    shape: tuple[int, ...]
    """Of p."""
    left: Array | None = None
    right: Array | None = None

    @classmethod
    def of(cls, tensor: Tensor, backs: Sequence[Pullback]) -> Space:
        """Span it by the gradients at the sequences that were asked."""
        gradients, size = [_gradient(back, tensor) for back in backs], _FURTHEST * tensor.norm
        outer = [one for one in gradients if isinstance(one, Outer)]
        if len(outer) < len(gradients):
            return cls(tensor, size, gradients[0].whole.shape[2:])
        left, right = (_span([getattr(one, side) for one in outer]) for side in ("left", "right"))
        return cls(tensor, size, (left.shape[1], right.shape[1]), left, right)

    @property
    def count(self) -> int:
        """How many numbers p has."""
        return int(np.prod(self.shape))

    def rows(self, back: Pullback) -> Array:
        """Return derivatives by p, (B, C, n)."""
        gradient = _gradient(back, self.tensor)
        if isinstance(gradient, Outer) and self.left is not None and self.right is not None:
            gradient = Outer(gradient.left @ self.left, gradient.right @ self.right)
        rows = gradient.whole.swapaxes(0, 1)
        return np.asarray(self.size * rows.reshape(*rows.shape[:2], -1))

    def change(self, p: Array) -> Array:
        """Return δ."""
        change = self.size * p.reshape(self.shape)
        if self.left is None or self.right is None:
            return change
        return np.asarray(self.left @ change @ self.right.T)


def _gradient(back: Pullback, tensor: Tensor) -> Gradient:
    """Return the gradient of one head or group, or of what all of them share."""
    gradients = back.by[tensor.path.removesuffix(".T")]
    if tensor.place is not None or len(gradients) == 1:
        return gradients[tensor.place or 0]
    return Direct(np.sum([one.whole for one in gradients], axis=0))


def _span(factors: Sequence[Array]) -> Array:
    """Return an orthonormal basis of what vectors (…, n) span, in columns."""
    rows = np.concatenate([x.reshape(-1, x.shape[-1]) for x in factors])
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.where(lengths > 0, lengths, 1.0)
    sizes, basis = np.linalg.eigh(rows.T @ rows)
    return np.asarray(basis[:, sizes > _NO_DIRECTION * sizes.max(initial=0.0)])


@dataclass(frozen=True, slots=True)
class Fit:
    """How well a hypothesis explains misses."""

    left: float
    """The largest miss that is left, as a share of what bounds let through."""
    freedom: float = 0.0
    """How many numbers of the change the answers show."""
    change: float = 0.0
    """Its norm, beside those of the tensors."""
    maps: Composition | None = None
    """The maps with the change."""

    def beside(self, other: Fit) -> Fit:
        """Return the fit to these answers and others."""
        change = max(self.change, other.change)
        freedom = self.freedom + other.freedom
        return Fit(max(self.left, other.left), freedom, change, other.maps)

    def simpler(self, other: Fit) -> bool:
        """Whether this is an explanation beside which the other says nothing."""
        return other.freedom > _FREER * self.freedom or other.change > _LARGER * self.change


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """What may have changed of a claim."""

    maps: Composition
    """The claim's maps, with W and M as they are where these are its tensors."""
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, claim: Claim) -> Hypotheses:
        """Begin with the claim."""
        weighty, paths = claim.weighty(), {one.path for one in claim.model.tensors.values()}
        tensors = {
            name: tensor._replace(norm=tensor.norm or weighty.get(name, 1.0))
            for name, tensor in claim.model.tensors.items()
        }
        maps = claim.model.maps.mapped(lambda prefix, one: _opened(prefix, one, paths))
        return cls(maps, tensors)

    def fit(self, block: Block, names: Sequence[str]) -> Fit:
        """Say how well changes of these tensors explain a block."""
        if RESIDUAL in names:
            left = block.left(self.maps, toggled(self.maps))
            return Fit(float(np.max(np.abs(left))))
        if not block.share < _LARGEST_MISS:
            return Fit(np.inf)
        if (basis := block.basis) is not None and (maps := _within(self.maps, basis)):
            short = [X @ basis for X in block.sequences]
            return replace(self, maps=maps)._explained(replace(block, sequences=short), names)
        return self._explained(block, names)

    def _explained(self, block: Block, names: Sequence[str]) -> Fit:
        backs = block.pulled_back(self.maps)
        spaces = [Space.of(self.tensors[name], backs) for name in names]
        fit, p = Fit(block.share), np.zeros(sum(space.count for space in spaces))
        # planes turn further in longer sequences, and fits of these may end at a multiple
        turn = any(space.tensor.path.endswith("frequencies") for space in spaces)
        lengths = [X.shape[1] for _, X in block.stacks]
        for tokens in lengths if turn else lengths[-1:]:
            fit, p = self._fitted(block.up_to(tokens), spaces, p)
        return replace(fit, maps=self._changed(spaces, p))

    def _fitted(self, block: Block, spaces: Sequence[Space], p: Array) -> tuple[Fit, Array]:
        """Minimise the misses of a block and |p|², from p on."""

        def scaled_at(p: Array) -> Array:
            return block.left(self.maps, self._changed(spaces, p)).ravel()

        least = _ROUNDED * block.share
        scaled, uphill = scaled_at(p), 0
        fit = Fit(float(np.max(np.abs(scaled), initial=0.0)))
        kept, damping = (p, scaled), max(1.0, fit.left**2)
        for _ in range(_STEPS if len(p) else 0):
            rows = _derivatives(block, spaces, self._changed(spaces, p))
            if not np.all(np.isfinite(rows)):
                break
            U, S, V = np.linalg.svd(rows, full_matrices=False)
            met = np.where(_ROUNDED_AWAY * S.max(initial=0.0) < S, S * S / (S * S + 1), 0.0)
            least_left = float(scaled @ scaled - met @ (U.T @ scaled) ** 2)
            now = float(kept[1] @ kept[1] + damping * kept[0] @ kept[0])
            if uphill == 0:
                allowed = np.abs(np.eye(len(U)) - (U * met) @ U.T).sum(axis=1) + least + _FITTED
                left, change = np.max(np.abs(scaled) / allowed), _FURTHEST * np.linalg.norm(p)
                fit = Fit(float(left), float(np.sum(met)), float(change))
                if fit.left <= _ENOUGH or least_left > _GAIN * (scaled @ scaled):
                    break
            q = V.T @ (np.where(met > 0, S / (S * S + damping), 0.0) * (U.T @ (scaled + rows @ p)))
            for part in _PARTS:
                tried = p + part * (q - p)
                moved = scaled_at(tried)
                cost = float(moved @ moved + damping * tried @ tried)
                if cost < _GAIN * now:
                    break
            else:
                tried, moved = q, scaled_at(q)
            uphill = 0 if cost < _GAIN * now else uphill + 1
            if not np.all(np.isfinite(moved)):
                uphill = _UPHILL + 1
            p, scaled = tried, moved
            if uphill == 0:
                kept = p, scaled
            elif uphill > _UPHILL:
                if damping == 1.0:
                    break
                (p, scaled), uphill = kept, 0
                damping = max(1.0, _LESS * damping)
        return fit, kept[0]

    def _changed(self, spaces: Sequence[Space], p: Array) -> Composition:
        """Return the maps with changes."""
        changes: dict[str, list[tuple[int | None, Array]]] = {}
        for space in spaces:
            own, p = p[: space.count], p[space.count :]
            path = space.tensor.path.removesuffix(".T")
            changes.setdefault(path, []).append((space.tensor.place, space.change(own)))

        def changed(prefix: str, leaf: Map) -> Map:
            names = _FACTORS if isinstance(leaf, Attention) else {}
            arrays: dict[str, Any] = {}
            for path in changes:
                before, own = path.rpartition(".")[::2]
                if (f"{before}." if before else "") != prefix:
                    continue
                own = names.get(own, own)
                arrays[own] = np.array(getattr(leaf, own), dtype=np.float64)
                for place, change in changes[path]:
                    arrays[own][... if place is None else place] += change
            if isinstance(leaf, LayerNorm):
                arrays = {**leaf.arrays(), **arrays}
                return LayerNorm.from_arrays({**arrays, "eps": np.maximum(arrays["eps"], 0.0)})
            assert isinstance(leaf, Attention | Neurons)
            return replace(leaf, **arrays)

        return self.maps.mapped(changed)


def _derivatives(block: Block, spaces: Sequence[Space], maps: Composition) -> Array:
    """Return the derivatives by all p, in units of the bounds, (Kq, n)."""
    found = np.empty((*block.missed.shape, sum(space.count for space in spaces)))
    for (some, _), back in zip(block.stacks, block.pulled_back(maps), strict=True):
        found[some] = np.concatenate([space.rows(back) for space in spaces], axis=2)
    return (found / block.bounds[:, :, None]).reshape(-1, found.shape[2])


def _opened(prefix: str, leaf: Map, paths: Collection[str]) -> Map:
    """Multiply W and M out, where these are what may change."""
    if not isinstance(leaf, Attention):
        return leaf
    if f"{prefix}W" in paths and leaf.K is not None:
        Q = np.einsum("hrd,hre->hde", leaf.K, leaf.Q, optimize=True)
        leaf = replace(leaf, Q=Q, K=None)
    if f"{prefix}M" in paths and leaf.V is not None:
        assert leaf.O is not None
        leaf = replace(leaf, O=leaf.O @ leaf.V, V=None)
    return leaf


def _within(maps: Composition, basis: Array) -> Composition | None:
    """Return maps of tokens' coordinates (N, k) to the same answers; None of other than heads.

    Few tokens span few dimensions: a fit of heads in them takes as long for a large model.
    """
    (name, first), *rest = maps.parts
    if isinstance(first, Composition):
        inner = _within(first, basis)
        return None if inner is None else replace(maps, parts=((name, inner), *rest))
    if not isinstance(first, Attention) or first.O is None or rest:
        return None
    Q, O, R = first.Q @ basis, first.O, first.R  # noqa: E741
    beside = [basis] * maps.residual + ([] if R is None else [R @ basis])
    heads = replace(
        first,
        Q=Q if first.K is not None else basis.T @ Q,
        K=None if first.K is None else first.K @ basis,
        w=None if first.w is None else first.w @ basis,
        O=O @ basis if first.V is None else O,
        V=None if first.V is None else first.V @ basis,
        R=sum(beside[1:], beside[0]) if beside else None,
    )
    return Composition(((name, heads),))


def toggled(maps: Composition) -> Composition:
    """Return the maps with the residual connection about heads or neurons, or without it."""
    inner = tuple((n, toggled(x)) for n, x in maps.parts if isinstance(x, Composition))
    if not inner:
        return Composition(maps.parts, not maps.residual)
    return Composition(tuple((n, dict(inner).get(n, x)) for n, x in maps.parts), maps.residual)
