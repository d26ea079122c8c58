"""The tensors of a composition as files keep them: all heads' rows in one matrix, by their names.

A map keeps what it computes with: heads one by one, queries times 1/√r, value biases added up in a
constant. People keep, round and train W_q (H r, d), W_k, W_v, W_o (m, H s), A, B, biases and norms'
scales. With stored tensors T a map's arrays are

    Q_h = W_q,h/√r,   b_q,h = b̃_q,h/√r,   w_h = K_hᵀ b_q,h,   c = b_o + Σ_h O_h b_v,

(rows of queries and keys in the order of their planes where positions turn these; with QK-norm the
scale of normalised queries has the 1/√r, and W_q is Q), so gradients by
T follow from the map's own: by W_o that of O_h with b_v beside what is pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from unsoftmax.models import LayerNorm
from unsoftmax.models import linearised as lin
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.neurons import Neurons
from unsoftmax.models.stack import Origin
from unsoftmax.probes import Array

# What is left of w beyond the span of its head's keys, as a share: more is no query bias.
_NO_QUERY_BIAS = 1e-9
_OF_NEURONS = {"A": "A", "b": "a", "B": "B", "c": "c", "G": "G", "g": "g"}
"""What a neurons' array is called by people, and in its map."""


@dataclass(frozen=True)
class Stored:
    """The stored tensors of one map."""

    map: Map
    value_bias: Array | None = None
    """b_v of all groups, (G s,), where it is known: a part of c."""
    key_bias: Array | None = None
    """b_k of all groups, where it is known and moves no answer, (G r,)."""

    @classmethod
    def of(cls, one: Map, biases: Mapping[str, Array] | None = None) -> Stored:
        """Read w as query biases where it comes from these."""
        if isinstance(one, Attention) and one.K is not None and one.w is not None:
            K = one.K if one.groups is None else one.K[one.groups]
            rows = [np.linalg.lstsq(k.T, w, rcond=None)[0] for k, w in zip(K, one.w, strict=True)]
            q_bias = np.array(rows).reshape(one.Q.shape[:2])
            left = one.w - np.einsum("hr,hrd->hd", q_bias, K)
            if one.q_bias is None and np.all(
                np.abs(left) <= _NO_QUERY_BIAS * np.max(np.abs(one.w), initial=0)
            ):
                one = replace(one, w=None, q_bias=q_bias)
        biases = biases or {}
        return cls(one, biases.get("v_bias"), biases.get("k_bias"))

    @property
    def _roots(self) -> dict[str, float]:
        """What stored tensors of queries are divided by: √r, where there are keys.

        Normalised ones take no notice of factors: then what multiplies them is.
        """
        assert isinstance(self.map, Attention)
        if self.map.K is None:
            return {}
        of_queries = ("Q", "q_bias") if self.map.q_scale is None else ("q_scale",)
        return dict.fromkeys(of_queries, float(np.sqrt(self.map.Q.shape[1])))

    @cached_property
    def tensors(self) -> dict[str, Array]:
        """The tensors by role; those that are 0 are not there."""
        return {name: x for name, x in self.every.items() if np.any(x)}

    @cached_property
    def every(self) -> dict[str, Array]:
        """The tensors by role, those that are 0 as well."""
        one = self.map
        if isinstance(one, LayerNorm):
            found = {"scale": one.scale, "shift": one.shift}
        elif isinstance(one, Neurons):
            arrays = one.arrays
            found = {ours: arrays[own] for ours, own in _OF_NEURONS.items() if own in arrays}
        else:
            assert isinstance(one, Attention)
            found = {
                name: _rows(name, x) for name, x in one.arrays.items() if name != "frequencies"
            }
            found |= {name: x * found[name] for name, x in self._roots.items() if name in found}
            if self.value_bias is not None:
                found |= {
                    "v_bias": self.value_bias,
                    "c": found["c"] - self._by_values(one, self.value_bias),
                }
        return {name: np.asarray(x) for name, x in found.items()}

    @staticmethod
    def _by_values(one: Attention, value_bias: Array) -> Array:
        """Return Σ_h O_h b_v."""
        assert one.O is not None
        of_groups = value_bias.reshape(-1, one.O.shape[2])
        own = of_groups if one.groups is None else of_groups[one.groups]
        return np.asarray(np.einsum("hms,hs->m", one.O, own))

    def changed(self, tensors: Mapping[str, Array]) -> Map:
        """Return the map with some of the tensors replaced."""
        one = self.map
        if isinstance(one, LayerNorm):
            return LayerNorm.from_arrays({**one.arrays(), **tensors})
        if isinstance(one, Neurons):
            own: dict[str, Any] = {_OF_NEURONS[name]: x for name, x in tensors.items()}
            return replace(one, **own)
        assert isinstance(one, Attention)
        value_bias = tensors.get("v_bias", self.value_bias)
        arrays: dict[str, Any] = {}
        for name, x in tensors.items():
            if name == "v_bias":
                continue
            x = x / self._roots.get(name, 1.0)
            arrays[name] = _from_rows(name, x, getattr(one, name))
        if value_bias is not None:
            beside = arrays.get("c", self.tensors.get("c", 0.0))
            O = arrays.get("O", one.O)  # noqa: E741 - the projections' own names
            arrays["c"] = beside + self._by_values(replace(one, O=O), value_bias)
        return replace(one, **arrays)

    def gradient(self, name: str, back: Callable[[str], lin.Gradients]) -> lin.Gradient:
        """Return products of covectors with the derivative by a tensor, of those by the arrays."""
        one = self.map
        if not isinstance(one, Attention):
            return back(_OF_NEURONS[name] if isinstance(one, Neurons) else name)[0]
        if name == "v_bias":
            assert one.O is not None
            own = np.einsum("cbm,hms->cbhs", back("c")[0].whole, one.O)
            places = [*range(len(one.O))] if one.groups is None else one.groups.tolist()
            whole = np.zeros((*own.shape[:2], max(places) + 1, own.shape[3]))
            for h, g in enumerate(places):
                whole[:, :, g] += own[:, :, h]
            return lin.Direct(whole.reshape(*whole.shape[:2], -1))
        each, root = back(name), self._roots.get(name, 1.0)
        outer = [x for x in each if isinstance(x, lin.Outer)]
        if not outer:
            return lin.Direct(np.concatenate([x.whole for x in each], axis=2) / root)
        if name != "O":
            left = np.concatenate([x.left for x in outer], axis=3)
            return lin.Outer(left / root, outer[0].right)
        right = np.concatenate([x.right for x in outer], axis=2)
        if self.value_bias is not None:  # beside what is pooled
            assert one.O is not None
            rows = self.value_bias.reshape(-1, one.O.shape[2])
            right = right + (rows if one.groups is None else rows[one.groups]).ravel()
        return lin.Outer(outer[0].left, right)


class Place(NamedTuple):
    """Where a stored tensor is: what its map's arrays begin with, and its role there."""

    prefix: str
    role: str


Change: TypeAlias = Callable[[Array], Array]
"""What a stored tensor becomes."""


@dataclass(frozen=True)
class StoredClaim:
    """A claimed composition by its stored tensors."""

    parts: Mapping[str, Stored]
    maps: Composition
    places: Mapping[str, tuple[Place, ...]]
    """By the tensors' names: one may hold several, as GPT-2's ``c_attn.weight`` does."""
    eps: Mapping[str, tuple[Place, ...]]
    """Those of norms, which files of weights do not hold."""
    zeros: Mapping[str, tuple[Place, ...]]
    """Tensors that are 0, which files may not hold either."""

    @classmethod
    def of(cls, model: Any) -> StoredClaim:
        """Open a model; names are those of the file that it comes from, where there is one."""
        origin: Origin | None = getattr(model, "origin", None)
        names, biases = origin or ({}, {})
        leaves = model.maps.leaves.items()
        parts = {prefix: Stored.of(one, biases.get(prefix)) for prefix, one in leaves}
        places: dict[str, tuple[Place, ...]] = {}
        zeros: dict[str, tuple[Place, ...]] = {}
        for prefix, one in parts.items():
            for role in one.every:
                name = names.get(prefix + role) or _called(prefix, role)
                own = places if role in one.tensors else zeros
                own[name] = (*own.get(name, ()), Place(prefix, role))
        eps = {
            _called(prefix, "eps"): (Place(prefix, "eps"),)
            for prefix, one in parts.items()
            if isinstance(one.map, LayerNorm) and one.map.eps
        }
        maps = model.maps.mapped(lambda prefix, _: parts[prefix].map)
        return cls(parts, maps, places, eps, zeros)

    def array(self, place: Place) -> Array:
        """Return a stored tensor, or eps; of one that is 0, which has no size, all 1."""
        one = self.parts[place.prefix]
        if isinstance(one.map, LayerNorm) and place.role == "eps":
            return np.asarray(one.map.eps)
        tensor = one.every[place.role]
        return tensor if np.any(tensor) else np.ones_like(tensor)

    @property
    def changeable(self) -> dict[str, tuple[Place, ...]]:
        """All that may have been changed by itself."""
        return {**self.zeros, **self.places, **self.eps}

    def changed(self, change: Change, names: Collection[str] | None = None) -> Composition:
        """Return the maps with all stored tensors changed, or those of some names."""
        some = [one for name in names or self.places for one in self.places[name]]

        def of_map(prefix: str, one: Map) -> Map:
            own = [place for place in some if place.prefix == prefix]
            tensors = self.parts[prefix].tensors if own else {}
            new = {place.role: change(tensors[place.role]) for place in own}
            return self.parts[prefix].changed(new) if new else one

        return self.maps.mapped(of_map)

    def gradients(self, back: lin.Pullback, name: str) -> list[tuple[Place, lin.Gradient]]:
        """Return products of covectors with the derivative by a name's tensors."""
        found = []
        for place in self.changeable[name]:
            own = lin.OnDemand({
                array.removeprefix(place.prefix): partial(back.by.__getitem__, array)
                for array in back.by
                if array.startswith(place.prefix)
            })  # fmt: skip
            found.append((place, self.parts[place.prefix].gradient(place.role, own.__getitem__)))
        return found


def _called(prefix: str, role: str) -> str:
    """Say which tensor it is where no file has a name for it.

    Examples
    --------
    >>> _called("1.0.heads.", "Q"), _called("2.norm.", "scale"), _called("2.", "scale")
    ('Q of part 0 of part 1', 'scale of the norm of part 2', 'scale of part 2')
    """
    *path, _ = prefix.split(".")
    parts = [f"part {name}" for name in reversed(path) if name.isdecimal()]
    norm = ["the norm"] if "norm" in path else []
    return " of ".join([role, *norm, *parts])


def _rows(name: str, x: Array) -> Array:
    """Return what heads have one by one as files have it."""
    if name == "O":
        return np.asarray(x.swapaxes(0, 1).reshape(x.shape[1], -1))
    return x if name in ("c", "R", "k_scale", "q_scale") else x.reshape(-1, *x.shape[2:])


def _from_rows(name: str, x: Array, like: Array) -> Array:
    if name == "O":
        H, m, s = like.shape
        return np.asarray(x.reshape(m, H, s).swapaxes(0, 1))
    return np.asarray(x.reshape(like.shape))
