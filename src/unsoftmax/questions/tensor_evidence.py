"""Which tensor of a composition was changed? The evidence for every one, from the same answers.

An arbitrary change of one late matrix explains any misses, so the question is which prior with one
number explains them: δT ~ N(0, τ²‖T‖²/n_T) for a tensor T of n_T entries. Of random sequences,
asked once, random projections y of the misses are normal with covariance τ²K_T + s², where

    K_T = ‖T‖²/n_T · J_T J_Tᵀ,    L_T = max over τ and s of log N(y; 0, τ²K_T + s²),

J_T the derivative of the projections by T and s² at most what copies show as rough, or what a
change of that size may bend. Where T is 0 its entries count as 1. Of a matrix y = W x has
K[p, p'] = Σ_tt' (g_pt·g_p't')(x_t·x_t'), which needs no array of W's size.

Hypotheses are every tensor, every tensor scaled (J_T T alone, of rank one), and groups whose
changes are in proportion to their tensors: a kind in all blocks, all matrices of a block, queries
and values everywhere, everything. The largest evidence names it; what is within 5 nats of it is
named, too. τ̂ is the size of the change, relative to T.

Finite changes that are known exactly come first, without a question more: blocks swapped or left
out, another activation, other eps or positions, and the tensor held otherwise.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations

import numpy as np

from unsoftmax.models import LayerNorm, Rotary
from unsoftmax.models import linearised as lin
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.neurons import ACTIVATIONS, Neurons
from unsoftmax.probes import Array
from unsoftmax.questions.held_weights import OF_MATRICES, OF_VECTORS
from unsoftmax.questions.hypotheses import RESIDUAL, toggled
from unsoftmax.questions.nudged_copies import NudgedCopies
from unsoftmax.questions.stored_tensors import Place, StoredClaim

# Sequences that are asked to name a tensor, of a block and of several: more tell more apart.
OF_A_BLOCK, OF_SEVERAL = 40, 60
# Projections of each for all hypotheses, and for those that are left. More tell more apart, too;
# they cost their square, and the cube in the end.
_FIRST, _ALL = 8, {OF_A_BLOCK: 24, OF_SEVERAL: 16}
# Covectors that are pulled back at a time.
_AT_A_TIME = 8
# So many hypotheses are left, where others are not this much worse.
_LEFT, _FAR = 4, 30.0
# Evidences within so many nats do not decide.
NATS = 5.0
EVERY_EPS = "eps of every norm"
# Changes that are larger, relative to a tensor, are not linear: evidence gives them wrong names.
LARGEST = 0.1
# What a change may be worth beside what is rough, at the direction that shows it best.
_RATIOS = np.geomspace(1e-2, 1e14, 240)
# What is rough is no less than this share of what copies show. Smaller: a fit that leaves nothing.
_LEAST_ROUGH = 1e-6
# Nor less than this share of the misses, or than so many times what the change is of its tensor:
# derivatives do not tell more (2.5 times was seen). Smaller: what is free enough to follow a
# change's own bend explains it best.
_LEAST_BENT, _BENT = 1e-4, 3.0
# What people set instead: eps of norms, bases of rotary positions, factors that divide these.
_EPS, _BASES, _FACTORS = (1e-5, 1e-6, 1e-8, 1e-12), (1e4, 1e5, 5e5, 1e6), (2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A hypothesis, and how well it explains misses."""

    name: str
    evidence: float
    size: float
    """τ̂: how large the change is, relative to the tensors."""
    left: float
    """The mean square of the misses that it leaves, as a share of what may be rough."""


@dataclass(frozen=True)
class Kernel:
    """K and J_T T of a hypothesis, at projections of a claim's answers."""

    covariance: Array
    """(n, n)."""
    along: Array
    """(n,)."""

    @classmethod
    def of(cls, gradients: Iterable[tuple[Array, lin.Gradient]], unit: float) -> Kernel:
        """Compute those of tensors T, in units of the misses."""
        whole: Array | float = 0.0
        along: Array | float = 0.0
        for T, gradient in gradients:
            whole = whole + np.mean(T**2) / unit**2 * gram(gradient)
            along = along + gradient.dot(T).ravel() / unit
        return cls(np.asarray(whole), np.asarray(along))

    def __add__(self, other: Kernel) -> Kernel:
        return Kernel(self.covariance + other.covariance, self.along + other.along)

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        w, U = np.linalg.eigh(self.covariance)
        return w, U

    def random(self, name: str, y: Array, bounds: tuple[float, float]) -> Explanation:
        """Weigh a change in random directions."""
        w, U = self._spectrum
        shares = 1 + _RATIOS[:, None] * np.maximum(w, 0.0) / (w[-1] if w[-1] > 0 else 1.0)
        squares = np.sum((U.T @ y) ** 2 / shares, axis=1)
        # what is rough, at most as much as copies show: a wrong claim makes these scatter, too
        rough = np.clip(squares / len(y), *bounds)
        logs = np.sum(np.log(shares), axis=1) + len(y) * np.log(rough)
        evidence = -0.5 * (logs + squares / rough)
        k = int(np.argmax(evidence))
        size = np.sqrt(_RATIOS[k] * rough[k] / w[-1]) if w[-1] > 0 else np.inf
        left = float(squares[k]) / len(y) / bounds[1]
        return Explanation(name, float(evidence[k]), float(size), left)

    def scaled(self, name: str, y: Array, bounds: tuple[float, float]) -> Explanation:
        """Weigh a factor: with q the misses' part along J_T T, τ²|J_T T|² = q − s² is best."""
        length = float(self.along @ self.along)
        if not length > 0:
            return Explanation(name, -np.inf, np.inf, np.inf)
        q = float(self.along @ y) ** 2 / length
        left = max(0.0, float(y @ y) - q)
        mean = left / max(1, len(y) - 1)
        rough = float(np.clip(mean, *bounds))
        own = max(q, rough)
        logs = (len(y) - 1) * np.log(rough) + np.log(own)
        return Explanation(
            name,
            -0.5 * float(logs + left / rough + q / own),
            float(np.sqrt((own - rough) / length)),
            mean / bounds[1],
        )


def gram(gradient: lin.Gradient) -> Array:
    """Return inner products (CB, CB) of derivatives by a tensor, without forming them."""
    if not isinstance(gradient, lin.Outer):
        rows = gradient.whole.reshape(gradient.whole.shape[0] * gradient.whole.shape[1], -1)
        return np.asarray(rows @ rows.T)
    (C, B, T, o), right = gradient.left.shape, gradient.right
    tokens = right.reshape(B * T, -1)
    by_tokens = (tokens @ tokens.T).reshape(B, T, 1, B, T)
    left, found = gradient.left.reshape(C, B * T, o), np.empty((C, B, C, B))
    for c in range(C):
        products = left[c] @ left[c:].reshape(-1, o).T
        some = np.sum(products.reshape(B, T, C - c, B, T) * by_tokens, axis=(1, 4))
        found[c, :, c:] = some
        found[c:, :, c] = some.transpose(1, 2, 0)
    return np.asarray(found.reshape(C * B, C * B))


def _joined(parts: Sequence[lin.Gradient]) -> lin.Gradient:
    """Return the derivatives of all covectors as those of one."""
    first = parts[0]
    if isinstance(first, lin.Outer):
        left = [one.left for one in parts if isinstance(one, lin.Outer)]
        return lin.Outer(np.concatenate(left), first.right)
    return lin.Direct(np.concatenate([one.whole for one in parts]))


@dataclass(frozen=True)
class Naming:
    """The sequences that are asked to name a tensor, and the projections of their answers."""

    claim: StoredClaim
    X: Array
    """(B, N, d)."""
    covectors: Array
    """(C, B, P, m), of norm 1."""

    @classmethod
    def of(cls, claim: StoredClaim, asked: NudgedCopies, P: int, m: int, seed: int) -> Naming:
        """Draw them, of the size of those asked before."""
        rng = np.random.default_rng([seed, 2])
        count = sequences(claim)
        X = asked.size * rng.standard_normal((count, *asked.X.shape[1:]))
        # the same for all sequences: what these have in common is seen as often as there are some
        y = rng.standard_normal((P * m, _ALL[count]))
        y = np.linalg.qr(y)[0].T if len(y) >= _ALL[count] else (y / np.linalg.norm(y, axis=0)).T
        every = np.broadcast_to(y.reshape(-1, 1, P, m), (_ALL[count], count, P, m))
        return cls(claim, X, every)

    def explanations(self, missed: Array, s2: float) -> list[Explanation]:
        """Weigh all hypotheses by the misses (B, P, m) of the answers; the best first."""
        names, groups = [*self.claim.changeable], self._groups()
        first = replace(self, covectors=self.covectors[:_FIRST])._weighed(missed, s2, names, groups)
        left = [one.name for one in first[:_LEFT] if one.evidence >= first[0].evidence - _FAR]
        if len(left) == 1:
            return first
        names, groups = (
            [name for name in names if name in left],
            {g: x for g, x in groups.items() if g in left},
        )
        return self._weighed(missed, s2, names, groups)

    def _weighed(
        self, missed: Array, s2: float, names: Sequence[str], groups: Mapping[str, set[str]]
    ) -> list[Explanation]:
        """Weigh changes of tensors, and of groups of them."""
        y = np.einsum("cbpm,bpm->cb", self.covectors, missed).ravel()
        # evidence is in units of the misses
        unit = float(np.sqrt(np.mean(y**2))) or 1.0
        y, s2 = y / unit, s2 / unit**2
        needed = {*names}.union(*groups.values())
        alone, together = dict[str, Kernel](), dict[str, Kernel]()
        every = [one for one in self.claim.changeable if one in needed]
        for name, gradients in self._gradients(every):
            kernel = Kernel.of(gradients, unit)
            if name in names:
                alone[name] = kernel
            for group in (group for group, members in groups.items() if name in members):
                together[group] = together[group] + kernel if group in together else kernel

        def weighed(bent: float) -> list[Explanation]:
            bounds = max(_LEAST_ROUGH * s2, bent**2), max(s2, bent**2)
            found = [kernel.random(group, y, bounds) for group, kernel in together.items()]
            for name, kernel in alone.items():
                both = kernel.random(name, y, bounds), kernel.scaled(name, y, bounds)
                found.append(max(both, key=lambda one: one.evidence))
            return sorted(found, key=lambda one: -one.evidence)

        found = weighed(_LEAST_BENT)
        if found[0].name in {*self.claim.eps, EVERY_EPS}:
            return found
        return weighed(float(np.clip(_BENT * found[0].size, _LEAST_BENT, LARGEST)))

    def _gradients(
        self, names: Sequence[str]
    ) -> Iterator[tuple[str, list[tuple[Array, lin.Gradient]]]]:
        """Go through tensors, by name, and the derivatives of all projections by them."""
        at = self.claim.maps.linearise(self.X, every=self.covectors.shape[2] > 1)
        parts = range(0, len(self.covectors), _AT_A_TIME)
        backs = (at.vjp(self.covectors[start : start + _AT_A_TIME]) for start in parts)
        kept: dict[str, list[list[tuple[Place, lin.Gradient]]]] = {name: [] for name in names}
        if len(parts) == 1:  # one tensor after the other, on demand
            [back] = backs
            for name in names:
                yield name, [(self.claim.array(p), x) for p, x in self.claim.gradients(back, name)]
            return
        for back in backs:
            for name in names:
                kept[name].append(self.claim.gradients(back, name))
        for name in names:
            each = zip(*kept.pop(name), strict=True)
            yield name, [(self.claim.array(x[0][0]), _joined([g for _, g in x])) for x in each]

    def _groups(self) -> dict[str, set[str]]:
        """Return the groups of several tensors that may have changed together."""
        kinds, blocks = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        attention, everything, called = set[str](), set[str](), blocks_of(self.claim)
        for name, places in self.claim.places.items():
            matrix = any(self.claim.array(place).ndim == 2 for place in places)
            block = block_of(places[0])
            if block:
                kinds[everywhere(name)].add(name)
            if matrix:
                blocks[block].add(name)
                everything.add(name)
            if any(place.role in "QV" for place in places):
                attention.add(name)
        found = {kind: names for kind, names in kinds.items()}
        found |= {
            f"all matrices of {called[int(block)]}": names
            for block, names in blocks.items()
            if block
        }
        found["query and value projections"] = attention
        found[EVERY_EPS] = {*self.claim.eps}
        found["all matrices"] = everything
        return {group: names for group, names in found.items() if len(names) > 1}


def sequences(claim: StoredClaim) -> int:
    """Return how many sequences are asked to name a tensor."""
    several = len({block_of(places[0]) for places in claim.places.values()}) > 1
    return OF_SEVERAL if several else OF_A_BLOCK


def block_of(place: Place) -> str:
    """Return the number of the block that a tensor is in; "" where there is only one.

    Examples
    --------
    >>> block_of(Place("3.0.heads.", "Q")), block_of(Place("0.heads.", "Q"))
    ('3', '')
    """
    numbers = [part for part in place.prefix.split(".") if part.isdecimal()]
    return numbers[0] if len(numbers) > 1 else ""


def everywhere(name: str) -> str:
    """Return a tensor's name in any block.

    Examples
    --------
    >>> everywhere("layers.3.mlp.up_proj.weight"), everywhere("Q of part 0 of part 3")
    ('layers.*.mlp.up_proj.weight', 'Q of part 0 of part *')
    """
    if " of part " in name:
        return re.sub(r"(of part )\d+$", r"\1*", name)
    return re.sub(r"(^|\.)\d+(?=\.)", r"\1*", name, count=1)


def _common(names: Iterable[str]) -> str:
    """Return what the names of a block's tensors begin with, without its last dot."""
    first, last = min(names := [*names]), max(names)
    same = next((k for k in range(len(first)) if first[: k + 1] != last[: k + 1]), len(first))
    return first[:same].rpartition(".")[0]


# -- finite changes, known exactly


def templates(claim: StoredClaim) -> Iterator[tuple[str, Composition]]:
    """Go through the maps that a target may compute instead of the claim's."""
    maps, names = claim.maps, blocks_of(claim)
    for i, j in combinations(range(len(names)), 2):
        if _alike(maps.parts[i][1], maps.parts[j][1]):
            order = [{i: j, j: i}.get(k, k) for k in range(len(maps.parts))]
            yield f"{names[i]} and {names[j]} swapped", _in_order(maps, order)
    for i, name in enumerate(names):
        if len(names) > 1:
            order = [k for k in range(len(maps.parts)) if k != i]
            yield f"{name} left out", _in_order(maps, order)
    leaves = maps.leaves.values()
    here = {one.activation for one in leaves if isinstance(one, Neurons)}
    for name in ACTIVATIONS if here else ():
        if here != {name}:
            yield f"activation {name}", maps.mapped(partial(_activated, name))
    norms = {float(one.eps) for one in leaves if isinstance(one, LayerNorm)}
    for eps in _EPS if norms else ():
        if norms != {eps}:
            yield f"eps {eps:g}", maps.mapped(partial(_with_eps, eps))
    inner = [one for one in leaves if not isinstance(one, LayerNorm)]
    if len(inner) == 1 and _square(inner[0]):
        yield RESIDUAL, toggled(maps)
    if any(isinstance(one, Attention) and one.frequencies is not None for one in leaves):
        for base in _BASES:
            yield f"rope_theta {base:g}", maps.mapped(partial(_turning, base, 1.0))
        for by in _FACTORS:
            yield f"positions divided by {by:g}", maps.mapped(partial(_turning, None, by))


def blocks_of(claim: StoredClaim) -> list[str]:
    """Return what blocks are called, in order; none where there is only one."""
    members = defaultdict[int, set[str]](set)
    for name, places in claim.places.items():
        if block := block_of(places[0]):
            members[int(block)].add(name)
    return [_common(members[k]) or f"part {k}" for k in sorted(members)]


def _square(one: Map) -> bool:
    """Whether neurons answer with as many numbers as tokens have."""
    return isinstance(one, Neurons) and one.A is not None and one.A.shape[1] == len(one.c)


def _activated(name: str, _: str, one: Map) -> Map:
    return replace(one, activation=name) if isinstance(one, Neurons) else one


def _with_eps(eps: float, _: str, one: Map) -> Map:
    if isinstance(one, Attention) and one.qk_eps is not None:
        return replace(one, qk_eps=eps)
    if not isinstance(one, LayerNorm):
        return one
    return LayerNorm.from_arrays({**one.arrays(), "eps": eps})


def _turning(base: float | None, by: float, _: str, one: Map) -> Map:
    if not isinstance(one, Attention) or one.frequencies is None:
        return one
    theta = one.frequencies
    if base is not None:
        theta = np.broadcast_to(Rotary.of(base, 2 * theta.shape[1]).frequencies, theta.shape)
    return replace(one, frequencies=theta / by)


def _alike(one: object, other: object) -> bool:
    return (
        isinstance(one, Composition) and isinstance(other, Composition) and one.shape == other.shape
    )


def _in_order(maps: Composition, order: list[int]) -> Composition:
    """Return the same blocks in another order, or some of them."""
    return replace(maps, parts=tuple((str(k), maps.parts[i][1]) for k, i in enumerate(order)))


def held_alone(claim: StoredClaim, names: Iterable[str]) -> Iterator[tuple[str, Composition]]:
    """Go through the claim with one of these tensors held otherwise."""
    for name in names:
        matrix = all(claim.array(place).ndim == 2 for place in claim.places.get(name, ()))
        for kind, way in (OF_MATRICES if matrix else OF_VECTORS).items():
            if name in claim.places:
                yield f"{name} held as {kind}", claim.changed(way, [name])
