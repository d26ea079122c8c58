"""Maps one after the other, with what is added beside: sub-layers, blocks, heads and a network.

f = f_K ∘ … ∘ f_1, each f_k(X) + X where it has a residual: the chain rule, and no mathematics of
its own. The last map answers at the last position unless all are asked for; those before it answer
at all positions where a later one attends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np

from unsoftmax.models import linearised as lin
from unsoftmax.models.attention_map import Attention
from unsoftmax.probes import Array


class Map(Protocol):
    """What is composed: `Attention`, `Neurons`, `LayerNorm`, and compositions."""

    def linearise(
        self, X: Array, every: bool = False, sizes: lin.Sizes | None = None
    ) -> lin.Linearised:
        """Return the map at sequences (B, N, d)."""
        ...

    def answers(self, X: Array, every: bool = False) -> Array:
        """Map sequences (B, N, d) to answers at all positions, or at the last, (B, P, m)."""
        ...

    def entries(self, tokens: int, every: bool) -> int:
        """Return how many numbers a sequence's answer needs at a time."""
        ...

    def size(self, name: str) -> lin.Size:
        """Return the size of an array by its name."""
        ...


@dataclass(frozen=True)
class Composition:
    """Named maps in order; with ``residual`` the tokens that came in are added to the answer."""

    parts: tuple[tuple[str, Map], ...]
    residual: bool = False

    @classmethod
    def of(cls, parts: Mapping[str, Map | None], residual: bool = False) -> Composition:
        """Compose the maps that are there."""
        return cls(tuple((name, one) for name, one in parts.items() if one is not None), residual)

    @property
    def attends(self) -> bool:
        """Whether answers depend on more than the position they are asked at."""
        return any(_attends(part) for _, part in self.parts)

    @cached_property
    def leaves(self) -> dict[str, Map]:
        """The maps that are no compositions, by what their arrays' names begin with."""
        found: dict[str, Map] = {}
        for name, part in self.parts:
            prefix = f"{name}." if name else ""
            inner = part.leaves if isinstance(part, Composition) else {"": part}
            found |= {prefix + own: leaf for own, leaf in inner.items()}
        return found

    @property
    def shape(self) -> tuple[Any, ...]:
        """What it is but for arrays: names and kinds of maps in order, and residuals."""
        inner = (
            (name, part.shape if isinstance(part, Composition) else type(part))
            for name, part in self.parts
        )
        return (self.residual, *inner)

    def size(self, name: str) -> lin.Size:
        """Return the size of an array by its path, such as ``heads.W``."""
        prefix, _, own = name.rpartition(".")
        leaf = self.leaves.get(f"{prefix}." if prefix else "")
        return lin.Size((), ()) if leaf is None else leaf.size(own)

    def mapped(self, change: Callable[[str, Map], Map], prefix: str = "") -> Composition:
        """Return the composition of changed leaves, each given with what its arrays begin with."""
        parts: list[tuple[str, Map]] = []
        for name, part in self.parts:
            own = f"{prefix}{name}." if name else prefix
            if isinstance(part, Composition):
                parts.append((name, part.mapped(change, own)))
            else:
                parts.append((name, change(own, part)))
        return Composition(tuple(parts), self.residual)

    def attending(self, causal: bool) -> Composition:
        """Return the same maps, positions attending to those up to them alone, or to all."""
        return self.mapped(
            lambda _, one: replace(one, causal=causal) if isinstance(one, Attention) else one
        )

    def _wide(self, every: bool) -> Iterator[tuple[str, Map, bool]]:
        """Yield every part, and whether it answers at all positions."""
        for k, (name, part) in enumerate(self.parts):
            yield name, part, every or any(_attends(later) for _, later in self.parts[k + 1 :])

    def entries(self, tokens: int, every: bool) -> int:
        """Return how many numbers a sequence's answer needs at a time."""
        return max((part.entries(tokens, wide) for _, part, wide in self._wide(every)), default=1)

    def answers(self, X: Array, every: bool = False) -> Array:
        """Map sequences (B, N, d) to answers at all positions, or at the last, (B, P, m)."""
        value = X
        for _, part, wide in self._wide(every):
            value = part.answers(value, wide)
        beside = X if every else X[:, -1:]
        value = value if self.parts else beside
        return value + beside if self.residual else value

    def linearise(
        self, X: Array, every: bool = False, sizes: lin.Sizes | None = None
    ) -> lin.Linearised:
        """Return the composition at sequences (B, N, d): at all positions, or at the last."""
        value, made_of, steps = X, sizes, list[tuple[str, lin.Linearised]]()
        for name, part, wide in self._wide(every):
            at = part.linearise(value, wide, made_of)
            steps.append((f"{name}." if name else "", at))
            value, made_of = at.value, at.sizes
        beside = X if every else X[:, -1:]
        value = value if steps else beside

        @cache
        def rounding() -> Array:
            own = np.abs(beside) if sizes is None else sizes()[:, -beside.shape[1] :]
            inside = steps[-1][1].rounding if steps else own
            return inside + own if self.residual else inside

        if self.residual:
            value = value + beside

        def jvp(change: lin.Changes, dX: Array | None = None) -> Array:
            moved = dX if steps or every or dX is None else dX[:, -1:]
            for name, at in steps:
                own = {n[len(name) :]: x for n, x in change.items() if n.startswith(name)}
                moved = at.jvp(own, moved)
            beside = 0.0 if dX is None or not self.residual else dX if every else dX[:, -1:]
            if moved is None:
                return np.zeros_like(value) + beside
            return np.asarray(moved + beside)

        def vjp(y: Array) -> lin.Pullback:
            made: dict[str, Callable[[], lin.Gradients]] = {}
            back = lin.Pullback({}, lambda: y)
            for name, at in reversed(steps):
                # a part answers at the positions that the next one is given
                back = at.vjp(back.X[:, :, -at.value.shape[1] :])
                made |= {name + own: _of(back, own) for own in back.by}

            def by_tokens() -> Array:
                whole = np.array(back.X) if steps else lin.at_last(y, X.shape[1])
                if self.residual:
                    whole[:, :, -y.shape[2] :] += y
                return whole

            return lin.Pullback(lin.OnDemand(made), by_tokens)

        return lin.Linearised(value, rounding, jvp, vjp)


def _of(back: lin.Pullback, name: str) -> Callable[[], lin.Gradients]:
    return lambda: back.by[name]


def _attends(part: Map) -> bool:
    if isinstance(part, Attention):
        return True
    return isinstance(part, Composition) and part.attends


def chain(parts: Sequence[Map]) -> Composition:
    """Compose maps without names of their own."""
    return Composition(tuple((str(k), part) for k, part in enumerate(parts)))
