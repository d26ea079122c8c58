"""Models on disk: safetensors with a class name and a format version.

The only module of this room that does I/O. It knows arrays, not classes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from unsoftmax.probes import Array

FORMAT_VERSION = 1


def write(path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Array]) -> None:
    """Write arrays of class ``kind``, all or nothing: a crash leaves the old file or the new."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, suffix=".safetensors")
    os.close(handle)
    try:
        save_file(
            {name: np.asarray(array, order="C") for name, array in arrays.items()},
            temporary,
            metadata={"class": kind, "format_version": str(FORMAT_VERSION)},
        )
        _sort_metadata(temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _sort_metadata(path: str) -> None:
    """Give a file's metadata one order: safetensors writes it in any, and files would differ."""
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= length
        file.seek(8)
        file.write(text.ljust(length))


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, Array]]:
    """Read back what `write` wrote: the class name and the arrays.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is no model of unsoftmax, is damaged, or is newer than this program.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no model file at {path}.")
    try:
        with safe_open(path, framework="numpy") as file:
            kind = _kind(path, file.metadata() or {})
            names = list(file.keys())
            for name in names:
                # a foreign type (bfloat16, float8) may be one that NumPy does not have
                if (dtype := file.get_slice(name).get_dtype()) != "F64":
                    raise ValueError(f"{path} is damaged: {name} is {dtype} instead of F64.")
            return kind, {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}.") from error


def _kind(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> str:
    """Return the class that the metadata names, if this program can read its format."""
    version = metadata.get("format_version", "")
    if "class" not in metadata or not version.isdecimal():
        raise ValueError(
            f"{path} holds tensors but no unsoftmax model (its metadata names no class): "
            "write it with model.save(path)."
        )
    if int(version) > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format {version}, this program reads up to {FORMAT_VERSION}: upgrade "
            "unsoftmax."
        )
    return metadata["class"]
