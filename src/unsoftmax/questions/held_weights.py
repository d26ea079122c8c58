"""How a server may hold weights: rounded to 16 bits, to 8 with a scale, to 4 in blocks.

Every way is a function of a stored tensor (`stored_tensors`), as libraries round it; the claim
computed so is another claim. A fixed rounding of weights moves answers smoothly, as any other
change of weights does, so it is a difference unless it is tried.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array

Rounding = Callable[[Array], Array]


def bfloat16(x: Array) -> Array:
    """Round float32 numbers to 8 significant bits, to even where two are as near.

    Examples
    --------
    >>> bfloat16(np.array([1.0 + 2**-9, 3.14159, -0.0])).tolist()
    [1.0, 3.140625, -0.0]
    """
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return np.asarray(rounded.astype(np.uint32).view(np.float32), dtype=np.float64)


def float16(x: Array) -> Array:
    """Round to float16; what is beyond its range stays as large as it can be."""
    most = float(np.finfo(np.float16).max)
    return np.asarray(np.clip(x, -most, most).astype(np.float16), dtype=np.float64)


def int8_rows(x: Array) -> Array:
    """Round to 8 bits with a scale for every row (output channel), |row| up to 127."""
    return _steps(x, np.abs(x).max(axis=1, keepdims=True) / 127)


def int8_whole(x: Array) -> Array:
    """Round to 8 bits with one scale for a matrix."""
    return _steps(x, np.abs(x).max(keepdims=True) / 127)


def q8_blocks(x: Array) -> Array:
    """Round as GGUF's Q8_0 does: 32 numbers share a scale, which is a float16."""
    return _in_blocks(
        x, 32, lambda own: _steps(own, float16(np.abs(own).max(-1, keepdims=True) / 127))
    )


def q4_blocks(x: Array) -> Array:
    """Round as GGUF's Q4_0 does: 32 numbers share a scale, the one furthest from 0 is −8 of it."""

    def rounded(own: Array) -> Array:
        furthest = np.take_along_axis(own, np.abs(own).argmax(-1)[..., None], -1)
        scale = furthest / -8
        with np.errstate(divide="ignore", invalid="ignore"):
            whole = np.where(scale != 0, np.clip(np.floor(own / scale + 8.5), 0, 15) - 8, 0.0)
        return np.asarray(float16(scale) * whole)

    return _in_blocks(x, 32, rounded)


def nf4_blocks(x: Array) -> Array:
    """Round as bitsandbytes' NF4 does: of 64 numbers the largest is 1 of sixteen levels."""

    def rounded(own: Array) -> Array:
        largest = np.abs(own).max(-1, keepdims=True)
        share = own / np.where(largest > 0, largest, 1.0)
        nearest = np.searchsorted((_NF4[1:] + _NF4[:-1]) / 2, share)
        return np.asarray(_NF4[nearest] * largest)

    return _in_blocks(x, 64, rounded)


_NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
])  # fmt: skip


def _steps(x: Array, step: Array) -> Array:
    """Round to multiples of a step in float32, as libraries do.

    Weights that were of 4 bits before are half a step from two multiples often: float64 would
    round some of these to the other one.
    """
    steps, numbers = np.float32(step), np.float32(x)
    whole = np.round(numbers / np.where(steps > 0, steps, np.float32(1)))
    return np.asarray(steps * whole, dtype=np.float64)


def _in_blocks(x: Array, size: int, rounded: Rounding) -> Array:
    """Round so many numbers at a time, row by row; what is left at a row's end is a block too."""
    rows, columns = x.shape
    blocks = np.pad(x, ((0, 0), (0, -columns % size))).reshape(rows, -1, size)
    return np.asarray(rounded(blocks).reshape(rows, -1)[:, :columns])


@dataclass(frozen=True, slots=True)
class Holding:
    """What becomes of matrices, and then of all tensors, biases and norms among them."""

    matrices: Rounding | None = None
    all: Rounding | None = None

    def of(self, x: Array) -> Array:
        """Return a tensor as it is held."""
        x = self.matrices(x) if self.matrices is not None and x.ndim == 2 else x
        return x if self.all is None else self.all(x)


OF_VECTORS: Mapping[str, Rounding] = {"bfloat16": bfloat16, "float16": float16}
OF_MATRICES: Mapping[str, Rounding] = {
    **OF_VECTORS,
    "int8 per channel": int8_rows,
    "int8 per tensor": int8_whole,
    "Q8_0 blocks": q8_blocks,
    "Q4_0 blocks": q4_blocks,
    "NF4 blocks": nf4_blocks,
}
"""What may become of one tensor."""

HELD: Mapping[str, Holding] = {
    "bfloat16": Holding(all=bfloat16),
    "bfloat16, matrices alone": Holding(bfloat16),
    "float16": Holding(all=float16),
    "float16 or TF32, matrices alone": Holding(float16),
    **{name: Holding(way) for name, way in OF_MATRICES.items() if name not in OF_VECTORS},
    "int8 per channel, the rest float16": Holding(int8_rows, float16),
    "int8 per channel, the rest bfloat16": Holding(int8_rows, bfloat16),
}
"""What may become of all, by what is said of it: "same, held as bfloat16"."""
