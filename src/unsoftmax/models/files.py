"""Models on disk: safetensors with a class name and a format version.

The only module of this room that does I/O. It knows arrays, not classes.
"""

from __future__ import annotations

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
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            temporary,
            metadata={"class": kind, "format_version": str(FORMAT_VERSION)},
        )
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, Array]]:
    """Read back what `write` wrote: the class name and the arrays.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is no model of unsoftmax, or is newer than this program.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no model file at {path}.")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            arrays = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}.") from error
    if "class" not in metadata or not metadata.get("format_version", "").isdigit():
        raise ValueError(
            f"{path} holds tensors but no unsoftmax model (its metadata names no class): "
            "write it with model.save(path)."
        )
    if int(metadata["format_version"]) > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format {metadata['format_version']}, this program reads up to "
            f"{FORMAT_VERSION}: upgrade unsoftmax."
        )
    return metadata["class"], arrays
