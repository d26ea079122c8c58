"""One output of an antibody model's encoder layer as a target: four heads before 512 ReLUs.

python antibody_layer.py FOLDER [COORDINATE]

writes FOLDER/state.safetensors, all arrays of the model, and FOLDER/target.safetensors, one output
coordinate of feed-forward(attention(X)) of its encoder layer without the residuals and LayerNorms
between, as `unsoftmax learn FOLDER/target.safetensors --model multi-head-transformer` takes it.

The weights are those of the package anarcii (pip install --no-deps anarcii==2.0.8), a language
model that numbers antibody sequences; nothing of it is imported. Its file is torch's: a ZIP archive
of a pickle and of raw numbers. A pickle may name any function to be called; this reader knows three
names, for which it has functions of its own, and refuses every other.
"""

from __future__ import annotations

import collections
import importlib.util
import io
import pickle
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

import unsoftmax as us

Array = NDArray[np.float32]

PACKAGE = "anarcii==2.0.8"
WEIGHTS = ("models", "antibody", "antibody_4_1_128_512.pt")
LAYER, HEADS = "encoder.layers.0", 4


def package_folder() -> Path:
    """Return where the model's files are installed."""
    spec = importlib.util.find_spec("anarcii")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"pip install --no-deps {PACKAGE}")
    return Path(spec.submodule_search_locations[0])


def read_state(path: Path) -> dict[str, Array]:
    """Return the float32 arrays of a state dict that torch saved, without torch.

    Raises
    ------
    ValueError
        The file names something else than tensors, or a tensor does not fit its numbers.
    """
    with zipfile.ZipFile(path) as archive:
        [program] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        found = TensorsAlone(archive, program.removesuffix("data.pkl")).load()
    if not isinstance(found, dict) or not all(isinstance(x, np.ndarray) for x in found.values()):
        raise ValueError(f"{path} holds no state dict of tensors.")
    return {str(name): array for name, array in found.items()}


class TensorsAlone(pickle.Unpickler):
    """A reader of pickles that can build dictionaries of float32 tensors and nothing else."""

    def __init__(self, archive: zipfile.ZipFile, prefix: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{prefix}data.pkl")))
        self._archive, self._prefix = archive, prefix

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name, if it is one of three."""
        known = {
            "collections.OrderedDict": collections.OrderedDict,
            "torch.FloatStorage": np.float32,
            "torch._utils._rebuild_tensor_v2": tensor,
        }
        if f"{module}.{name}" not in known:
            raise ValueError(f"The file wants {module}.{name}, which is no tensor: refused.")
        return known[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> Array:
        """Read the numbers of a storage, which have a file of their own."""
        kind, dtype, key, _, count = pid
        if kind != "storage" or dtype is not np.float32 or not str(key).isdecimal():
            raise ValueError(f"The file holds {kind} {key}, which is no float32 storage: refused.")
        numbers = np.frombuffer(self._archive.read(f"{self._prefix}data/{key}"), dtype="<f4")
        if numbers.size != count:
            raise ValueError(f"Storage {key} should have {count} numbers; it has {numbers.size}.")
        return numbers


def tensor(
    storage: Array, offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any
) -> Array:
    """Return a tensor in C order, as torch's function of this name does."""
    size = int(np.prod(shape, dtype=np.int64))
    in_order = [int(np.prod(shape[k + 1 :], dtype=np.int64)) for k in range(len(shape))]
    if list(strides) != in_order or not 0 <= offset <= storage.size - size:
        raise ValueError(f"A tensor of shape {tuple(shape)} is not in C order in its storage.")
    return np.array(storage[offset : offset + size]).reshape(tuple(shape))


def served(state: Mapping[str, Any], coordinate: int) -> us.MultiHeadTransformer:
    """Return one output of feed-forward(attention(X)) of the encoder layer as a model."""
    projections = us.find_projections(state, f"{LAYER}.self_attention.multihead_attn")
    attention = us.from_projections(**projections, heads=HEADS)
    A, b, B, c = (
        np.asarray(state[f"{LAYER}.positionwise_feedforward.{name}"], dtype=np.float64)
        for name in ("fc_1.weight", "fc_1.bias", "fc_2.weight", "fc_2.bias")
    )
    # what value and output biases add to every token goes through the first layer
    network = us.ReluNetwork(A.T, B[coordinate], b + A @ attention.c, c[coordinate])
    W, M, w = zip(*((head.W, head.M, head.w) for head in attention.heads), strict=True)
    return us.MultiHeadTransformer.from_heads(np.array(W), np.array(M), network, np.array(w))


def main(folder: str, coordinate: str = "0") -> None:
    """Write the state and the target."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    state = read_state(package_folder().joinpath(*WEIGHTS))
    save_file(state, out / "state.safetensors")
    target = served(state, int(coordinate))
    target.save(out / "target.safetensors")
    print(f"{target}: {sum(array.size for array in target.arrays().values()):,} numbers")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
