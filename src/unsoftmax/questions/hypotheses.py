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

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from unsoftmax.models import LayerNorm
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.linearised import Direct, Gradient, Outer, Pullback
from unsoftmax.models.model import Tensor
from unsoftmax.probes import Array
from unsoftmax.questions.answer_errors import AnswerErrors, Seen
from unsoftmax.questions.claim import Claim

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
_STEPS = 32
# Each goes so far of the way, at first all of it, until less than this of the misses is left. Where
# none does the whole step is taken all the same, so often: it changes what answers hardly show, and
# the next ones mend what that did to others. If not, steps are damped less.
_PARTS, _GAIN, _UPHILL, _LESS = (1.0, 0.25, 0.0625), 0.8, 2, 1e-4
# A change explains misses that are no more than this share of what bounds let through.
_EXPLAINED = 0.25
# Right answers miss by a quarter of their bounds, even where a fit leaves no room for it.
_FITTED = 0.25
# Share of the misses that may come from solving for the change.
_ROUNDED = 1e-12


@dataclass(frozen=True, slots=True)
class Block:
    """Sequences that were asked, and by what their answers miss the claim."""

    stacks: tuple[tuple[list[int], Array], ...]
    """Places, and sequences of one length."""
    missed: Array
    """(K, q)."""
    bounds: Array
    numbers: Array
    """The numbers of the answers that are looked at, as covectors (q, m)."""

    @classmethod
    def of(cls, seen: Seen, errors: AnswerErrors, sequences: Sequence[Array]) -> Block:
        """Take those numbers of the answers that miss the claim most."""
        lengths = sorted({len(X) for X in sequences})
        places = [[k for k, X in enumerate(sequences) if len(X) == N] for N in lengths]
        stacks = [(some, np.stack([sequences[k] for k in some])) for some in places]
        missed, bounds = (x.reshape(len(sequences), -1) for x in (seen.missed, errors.of(seen)))
        # what is always 0 may not be off at all
        bounds = np.maximum(bounds, max(_LEAST_BOUND * bounds.max(), np.finfo(np.float64).tiny))
        most = np.argsort(-np.max(np.abs(missed) / bounds, axis=0), kind="stable")[:_NUMBERS]
        units = np.eye(missed.shape[1])[most]
        return cls(tuple(stacks), missed[:, most], bounds[:, most], units)

    @property
    def share(self) -> float:
        """The largest miss, as a share of its bound."""
        return self.share_of(self.missed)

    def share_of(self, missed: Array) -> float:
        """The largest of some misses, as a share of its bound."""
        return float(np.max(np.abs(missed) / self.bounds, initial=0.0))

    def by_length(self) -> Iterator[Block]:
        """Return those of up to so many tokens, of more and more."""
        for k in range(len(self.stacks)):
            stacks, start, kept = [], 0, []
            for some, X in self.stacks[: k + 1]:
                stacks.append(([*range(start, start + len(some))], X))
                start, kept = start + len(some), [*kept, *some]
            missed, bounds = self.missed[kept], self.bounds[kept]
            yield Block(tuple(stacks), missed, bounds, self.numbers)

    def answers(self, maps: Composition) -> Array:
        """Return the numbers of the answers of some maps, (K, q)."""
        found = np.empty_like(self.missed)
        for some, X in self.stacks:
            found[some] = maps.answers(X)[:, 0] @ self.numbers.T
        return found


@dataclass(frozen=True, slots=True)
class Space:
    """Where a tensor's change is looked for: δ = L p Rᵀ, or p itself, times a size."""

    tensor: Tensor
    size: float
    left: Array | None = None
    right: Array | None = None

    @classmethod
    def of(cls, tensor: Tensor, size: float, gradients: Sequence[Gradient]) -> Space:
        """Span it by the gradients at the sequences that were asked."""
        outer = [one for one in gradients if isinstance(one, Outer)]
        if len(outer) < len(gradients):
            return cls(tensor, size)
        sides = []
        for each in ([one.left for one in outer], [one.right for one in outer]):
            rows = np.concatenate([x.reshape(-1, x.shape[-1]) for x in each])
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows / np.where(lengths > 0, lengths, 1.0)
            gram = rows.T @ rows
            sizes, basis = np.linalg.eigh(gram)
            sides.append(basis[:, sizes > _NO_DIRECTION * sizes.max(initial=0.0)])
        return cls(tensor, size, *sides)

    @property
    def count(self) -> int:
        """How many numbers p has."""
        if self.left is None or self.right is None:
            return self.tensor.entries
        return self.left.shape[1] * self.right.shape[1]

    def rows(self, gradient: Gradient) -> Array:
        """Return derivatives by p, (B, C, n)."""
        if self.left is None or self.right is None or not isinstance(gradient, Outer):
            rows = gradient.whole
        else:
            left, right = gradient.left @ self.left, gradient.right @ self.right
            rows = left.swapaxes(2, 3) @ right
        return np.asarray(self.size * rows.reshape(*rows.shape[:2], -1).swapaxes(0, 1))

    def change(self, p: Array) -> Array:
        """Return δ, of the shape that the map's array has."""
        if self.left is None or self.right is None:
            return self.size * p
        whole = self.left @ p.reshape(self.left.shape[1], -1) @ self.right.T
        return np.asarray(self.size * whole)


@dataclass(frozen=True, slots=True)
class Fit:
    """How well a hypothesis explains the misses."""

    left: float
    """The largest miss that is left, as a share of what bounds let through."""
    freedom: float = 0.0
    """How many numbers of the change the answers show."""
    change: float = 0.0
    """Its norm, beside those of the tensors."""

    def beside(self, other: Fit) -> Fit:
        """Return the fit to these answers and others."""
        change = max(self.change, other.change)
        return Fit(max(self.left, other.left), self.freedom + other.freedom, change)

    def simpler(self, other: Fit) -> bool:
        """Whether this is an explanation beside which the other says nothing."""
        larger = other.change > _LARGER * self.change
        return bool(other.freedom > _FREER * self.freedom or larger)


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """What may have changed of a claim."""

    claim: Claim
    maps: Composition
    """The claim's maps, with W and M as they are where these are its tensors."""
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, claim: Claim) -> Hypotheses:
        """Begin with the claim."""
        tensors = dict(claim.model.tensors)
        paths = {tensor.path for tensor in tensors.values()}
        weighty = claim.weighty()
        for name, tensor in tensors.items():
            tensors[name] = tensor._replace(norm=tensor.norm or weighty.get(name, 1.0))
        maps = _mapped(claim.model.maps, "", lambda prefix, one: _opened(prefix, one, paths))
        return cls(claim, maps, tensors)

    def left(self, block: Block, names: Sequence[str]) -> Fit:
        """Say how well changes of these tensors explain a block."""
        claimed = block.answers(self.maps)
        if RESIDUAL in names:
            moved = block.answers(_toggled(self.maps)) - claimed
            return Fit(block.share_of(block.missed - moved))
        if not block.share < _LARGEST_MISS:
            return Fit(np.inf)
        spaces = self._spaces(block, names)
        fit, p = Fit(block.share), np.zeros(sum(space.count for space in spaces))
        # planes turn further in longer sequences, and fits of these may end at a multiple
        turn = any(space.tensor.path.endswith("frequencies") for space in spaces)
        for part in block.by_length() if turn else [block]:
            fit, p = self._fitted(part, spaces, p)
        return fit

    def _fitted(self, block: Block, spaces: Sequence[Space], p: Array) -> tuple[Fit, Array]:
        """Minimise the misses of a block and |p|², from p on."""
        claimed = block.answers(self.maps)

        def scaled_at(p: Array) -> Array:
            moved = block.answers(_with(self.maps, spaces, p)) - claimed
            return ((block.missed - moved) / block.bounds).ravel()

        least = _ROUNDED * block.share
        scaled, uphill = scaled_at(p), 0
        fit = Fit(float(np.max(np.abs(scaled), initial=0.0)))
        kept, damping = (p, scaled), max(1.0, fit.left**2)
        for _ in range(_STEPS if len(p) else 0):
            rows = _rows(block, spaces, _with(self.maps, spaces, p))
            U, S, V = np.linalg.svd(rows, full_matrices=False)
            met = np.where(_ROUNDED_AWAY * S.max(initial=0.0) < S, S * S / (S * S + 1), 0.0)
            least_left = float(scaled @ scaled - met @ (U.T @ scaled) ** 2)
            now = float(kept[1] @ kept[1] + damping * kept[0] @ kept[0])
            if uphill == 0:
                allowed = np.abs(np.eye(len(U)) - (U * met) @ U.T).sum(axis=1) + least + _FITTED
                left, change = np.max(np.abs(scaled) / allowed), _FURTHEST * np.linalg.norm(p)
                fit = Fit(float(left), float(np.sum(met)), float(change))
                if fit.left <= _EXPLAINED or least_left > _GAIN * (scaled @ scaled):
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
            p, scaled = tried, moved
            if uphill == 0:
                kept = p, scaled
            elif uphill > _UPHILL:
                if damping == 1.0:
                    break
                (p, scaled), uphill = kept, 0
                damping = max(1.0, min(_LESS * damping, float(np.max(np.abs(scaled))) ** 2))
        return fit, kept[0]

    def _spaces(self, block: Block, names: Sequence[str]) -> list[Space]:
        if not names:
            return []
        backs = _backs(block, self.maps)
        tensors = [self.tensors[name] for name in names]
        return [
            Space.of(one, _FURTHEST * one.norm, [_of(back, one) for _, back in backs])
            for one in tensors
        ]


def _backs(block: Block, maps: Composition) -> list[tuple[list[int], Pullback]]:
    found = []
    for some, X in block.stacks:
        q, m = block.numbers.shape
        y = np.broadcast_to(block.numbers[:, None, None], (q, len(X), 1, m))
        found.append((some, maps.linearise(X).vjp(y)))
    return found


def _rows(block: Block, spaces: Sequence[Space], maps: Composition) -> Array:
    """Return the derivatives by all p, in units of the bounds, (Kq, n)."""
    found = np.empty((*block.missed.shape, sum(space.count for space in spaces)))
    for some, back in _backs(block, maps):
        rows = [space.rows(_of(back, space.tensor)) for space in spaces]
        found[some] = np.concatenate(rows, axis=2)
    found /= block.bounds[:, :, None]
    return found.reshape(-1, found.shape[2])


def _with(maps: Composition, spaces: Sequence[Space], p: Array) -> Composition:
    """Return maps with changes."""
    changes: dict[str, list[tuple[int | None, Array]]] = {}
    for space in spaces:
        own, p = p[: space.count], p[space.count :]
        path = space.tensor.path.removesuffix(".T")
        changes.setdefault(path, []).append((space.tensor.place, space.change(own)))
    return _mapped(maps, "", lambda prefix, leaf: _changed(prefix, leaf, changes))


Changes: TypeAlias = Mapping[str, Sequence[tuple[int | None, Array]]]
"""By the path of an array, with the head or group."""


def _of(back: Pullback, tensor: Tensor) -> Gradient:
    """Return the gradient of one head or group, or of what all of them share."""
    gradients = back.by[tensor.path.removesuffix(".T")]
    if tensor.place is not None:
        return gradients[tensor.place]
    if len(gradients) == 1:
        return gradients[0]
    return Direct(np.sum([one.whole for one in gradients], axis=0))


def _mapped(maps: Composition, prefix: str, change: Callable[[str, Map], Map]) -> Composition:
    """Return a composition with its leaves changed."""
    parts = []
    for name, part in maps.parts:
        own = f"{prefix}{name}." if name else prefix
        inner = isinstance(part, Composition)
        parts.append((name, _mapped(part, own, change) if inner else change(own, part)))
    return Composition(tuple(parts), maps.residual)


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


def _changed(prefix: str, leaf: Map, changes: Changes) -> Map:
    """Add changes to a leaf's arrays."""
    own = {name[len(prefix) :]: some for name, some in changes.items() if name.startswith(prefix)}
    if not own:
        return leaf
    names = {"W": "Q", "M": "O"} if isinstance(leaf, Attention) else {}
    found = {}
    for name, some in own.items():
        kept = getattr(leaf, names.get(name, name))
        array = np.array(np.zeros(()) if kept is None else kept, dtype=np.float64)
        for place, change in some:
            part = array if place is None or not array.shape else array[place]
            if not array.ndim:
                array = array + change.reshape(())
            else:
                part += change.reshape(part.shape[-change.ndim :] if place is None else part.shape)
        found[names.get(name, name)] = array
    if isinstance(leaf, LayerNorm):
        arrays = {**leaf.arrays(), **found}
        arrays["eps"] = np.maximum(arrays["eps"], 0.0)
        return LayerNorm(**arrays)
    return replace(leaf, **found)


def _toggled(maps: Composition) -> Composition:
    """Return the maps with the residual connection about heads or neurons, or without it."""
    if any(isinstance(part, Composition) for _, part in maps.parts):
        return Composition(
            tuple((n, _toggled(x) if isinstance(x, Composition) else x) for n, x in maps.parts),
            maps.residual,
        )
    return Composition(maps.parts, not maps.residual)
