"""A claim computed as servers compute that round to 16 bits: every kernel's result is rounded.

Weights held in 16 bits are not all that such a server rounds. Its errors, 2⁻⁹ of every number in
between, are the same for the same weights, so a claim that is computed likewise misses hardly any
answer: of six blocks of BERT in torch 98 of 100 numbers are equal to the last bit. What is left
decides about changes that its rounding would hide.

Products sum in float32 and round once; here they sum in float64, which rounds otherwise in a few of
10,000. What a kernel is differs (`Kernels`): libraries add biases and compute norms and softmaxes
before they round, and may do all of attention so; plain code rounds after every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from unsoftmax.models import LayerNorm
from unsoftmax.models.attention import softmax
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.neurons import ACTIVATIONS, Neurons
from unsoftmax.probes import Array
from unsoftmax.questions.held_weights import Rounding, bfloat16, float16
from unsoftmax.questions.stored_tensors import StoredClaim


class Kernels(NamedTuple):
    """What is rounded in between."""

    results: bool = True
    """Every result; or the operands of products alone."""
    biases: bool = False
    """Products before biases are added."""
    norms: bool = False
    """What a LayerNorm has normalised before it is scaled and shifted; of an RMSNorm it is."""
    attention: bool = True
    """Scores before their softmax, and what that makes of them."""
    scaled: Literal["scores", "queries", "softmax"] = "scores"
    """What 1/√r multiplies; inside a softmax nothing is rounded after it."""
    planes: bool = True
    """Cosines, sines and their products, before planes are turned."""


_PLAIN = Kernels(biases=True, norms=True)
KERNELS = (
    Kernels(),
    Kernels(attention=False),
    Kernels(scaled="queries"),
    Kernels(attention=False, scaled="queries"),
    _PLAIN,
    _PLAIN._replace(scaled="softmax"),
    _PLAIN._replace(scaled="softmax", planes=False),
    Kernels(results=False),
    Kernels(results=False, scaled="queries"),
)
"""torch's, attention in steps or in one kernel; one operation after another; operands alone."""
COMPUTED: Mapping[str, tuple[Rounding, float]] = {
    "bfloat16": (bfloat16, 2.0**-7),
    "float16": (float16, 2.0**-10),
}
"""Formats with the largest step of numbers between 1 and 2."""


def computed_claims(claim: StoredClaim) -> Iterator[tuple[str, ComputedClaim]]:
    """Yield the claim in every such arithmetic, with what is said of it; none of unknown heads."""
    if not all(_by_projections(part.map) for part in claim.parts.values()):
        return
    for name, (rounding, step) in COMPUTED.items():
        for kernels in KERNELS:
            held = name if kernels.results else f"{name}, matrices alone"
            said = f"{held}, computed in {name}"
            yield said, ComputedClaim(claim, rounding, step, kernels)


def _by_projections(one: Map) -> bool:
    """Whether a map computes with projections as files have them, and nothing else."""
    if not isinstance(one, Attention):
        return not isinstance(one, Neurons) or one.A is not None
    there = one.K is not None and one.V is not None and one.O is not None
    return there and one.w is None and one.R is None


@dataclass(frozen=True)
class ComputedClaim:
    """The claim in such arithmetic, which answers as its maps do."""

    claim: StoredClaim
    operands: Rounding
    step: float
    """Of numbers between 1 and 2, to which they are rounded."""
    kernels: Kernels

    def rounding(self, x: Array) -> Array:
        """Round a result."""
        return self.operands(x) if self.kernels.results else x

    def answers(self, X: Array, every: bool = False) -> Array:
        """Map sequences (B, N, d) to answers at all positions, or at the last, (B, P, m)."""
        y = self._of_composition(self.claim.maps, "", self.rounding(X))
        return y if every else y[:, -1:]

    def _of_composition(self, maps: Composition, prefix: str, X: Array) -> Array:
        value = X
        for name, part in maps.parts:
            own = f"{prefix}{name}." if name else prefix
            if isinstance(part, Composition):
                value = self._of_composition(part, own, value)
            else:
                value = self._of_map(part, self._tensors(own), value)
        return self.rounding(value + X) if maps.residual else value

    def _tensors(self, prefix: str) -> Callable[[str], Array | None]:
        part = self.claim.parts[prefix]
        stored = ({} if part.key_bias is None else {"k_bias": part.key_bias}) | part.tensors
        return {name: self.rounding(x) for name, x in stored.items()}.get

    def _of_map(self, one: Map, held: Callable[[str], Array | None], X: Array) -> Array:
        if isinstance(one, LayerNorm):
            return self._normalised(one, held, X)
        if isinstance(one, Neurons):
            h = self._product(X, held("A"), held("b"))
            act = ACTIVATIONS[one.activation].of
            if one.G is None:
                h = self.rounding(act(h))
            else:
                gate = self.rounding(act(self._product(X, held("G"), held("g"))))
                h = self.rounding(gate * h)
            return self._product(h, held("B"), held("c"))
        assert isinstance(one, Attention)
        return self._attended(one, held, X)

    def _product(self, x: Array, T: Array | None, bias: Array | None) -> Array:
        y = x if T is None else self.operands(x) @ self.operands(T).T
        if bias is None:
            return self.rounding(y)
        return self.rounding((self.rounding(y) if self.kernels.biases else y) + bias)

    def _normalised(self, one: LayerNorm, held: Callable[[str], Array | None], X: Array) -> Array:
        scale, shift = held("scale"), held("shift")
        inside = one.centred and not self.kernels.norms
        y = one.normalised(X)
        y = (y if inside else self.rounding(y)) * (0.0 if scale is None else scale)
        if shift is None:
            return self.rounding(y)
        return self.rounding((y if inside else self.rounding(y)) + shift)

    def _scaled(self, x: Array, scale: Array | None) -> Array:
        return self.rounding(x * (0.0 if scale is None else scale))

    def _attended(self, one: Attention, held: Callable[[str], Array | None], X: Array) -> Array:
        H, r = one.Q.shape[:2]
        places = np.arange(H) if one.groups is None else one.groups
        rows = {name: self._product(X, held(name), held(bias)) for name, bias in _BIASES.items()}
        q, k, v = (
            y.reshape(*y.shape[:2], -1, y.shape[2] // count).swapaxes(1, 2)
            for y, count in zip(rows.values(), (H, *2 * [1 + int(places.max())]), strict=True)
        )
        if one.qk_eps is not None:
            norm = LayerNorm(np.ones(r), None, one.qk_eps, centred=False)
            q, k = (
                self._scaled(self.rounding(norm.normalised(u)), held(scale))
                for u, scale in ((q, "q_scale"), (k, "k_scale"))
            )
        if one.frequencies is not None:
            angles = np.arange(X.shape[1])[:, None] * one.frequencies[:, None]
            q, k = self._turned(q, angles[places]), self._turned(k, angles)
        k, v = k[:, places], v[:, places]
        between = self.rounding if self.kernels.attention else np.asarray
        if self.kernels.scaled == "queries":
            q = self.rounding(q / np.sqrt(r))
        s = between(self.operands(q) @ self.operands(k).swapaxes(2, 3))
        if self.kernels.scaled != "queries":
            s = s / np.sqrt(r)
            s = between(s) if self.kernels.scaled == "scores" else s
        if one.causal:
            s = np.where(np.tri(X.shape[1], dtype=bool), s, -np.inf)
        weights, whole = softmax(s), 1.0
        if not self.kernels.attention:  # the sum is divided by at the end
            whole = weights.max(axis=-1, keepdims=True)
        pooled = whole * (self.operands(weights / whole) @ self.operands(v))
        pooled = self.rounding(pooled).swapaxes(1, 2).reshape(*X.shape[:2], -1)
        return self._product(pooled, held("O"), held("c"))

    def _turned(self, x: Array, angles: Array) -> Array:
        """Turn planes (…, H, T, r)."""
        r = self.rounding if self.kernels.planes else np.asarray
        cosine, sine, found = r(np.cos(angles)), r(np.sin(angles)), np.empty_like(x)
        a, b = x[..., 0::2], x[..., 1::2]
        found[..., 0::2] = r(cosine * a) - r(sine * b)
        found[..., 1::2] = r(sine * a) + r(cosine * b)
        return self.rounding(found)


_BIASES = {"Q": "q_bias", "K": "k_bias", "V": "v_bias"}
