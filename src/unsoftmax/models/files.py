"""Models on disk: safetensors with a class name and a format version; and other people's weights.

The only module of this room that does I/O. It knows arrays, not classes. Nothing in a file is
executed: no pickle is read. A file is written under another name first, `temporary_beside`, and
what a process killed in the midst left there is deleted by the next that writes the same file.
"""

import glob
import json
import math
import os
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from unsoftmax.probes import Array

T = TypeVar("T")

if sys.platform != "win32":
    import fcntl

FORMAT_VERSION = 1


def write(path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Array]) -> None:
    """Write arrays of class ``kind``, all or nothing."""
    data = save(
        {name: np.asarray(array, order="C") for name, array in arrays.items()},
        metadata={"class": kind, "format_version": str(FORMAT_VERSION)},
    )
    replace_file(path, _sorted_metadata(data))


def read_json(path: Path, newest: int, undo: Callable[[Any], T]) -> T:
    """Return what ``undo`` makes of a JSON object that names its ``format_version``.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is damaged, or newer than the format ``newest``.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no {path.name} in {path.parent}.")
    try:
        content = _parsed(path.read_text(encoding="utf-8"))
        version = content["format_version"]
        if version > newest:
            raise ValueError(f"format {version} is newer than this program: upgrade unsoftmax")
        return undo(content)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error!r}.") from error


def _parsed(text: str) -> Any:
    """Parse JSON whose numbers floats hold, and whose objects name nothing twice.

    >>> _parsed("1e999")
    Traceback (most recent call last):
    ...
    ValueError: 1e999 is no finite number
    """
    return json.loads(
        text,
        parse_float=_finite,
        parse_int=lambda digits: int(digits) if _finite(digits) else 0,
        parse_constant=_finite,
        object_pairs_hook=_named_once,
    )


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return content


class SavedResult:
    """A dataclass that is one JSON file of a folder, a key for every field.

    A number that is infinite is null there, in fields of type ``float``.
    """

    __slots__ = ()
    file_name: ClassVar[str]
    format_version: ClassVar[int] = 1

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON; what is infinite becomes null."""
        return {"format_version": self.format_version, **as_json(self)}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the result's JSON file into a folder, making it."""
        write_json(Path(folder) / self.file_name, self.to_json())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read back what `save` wrote.

        Raises
        ------
        FileNotFoundError
            The folder has no such file.
        ValueError
            It is damaged, or newer than this program.
        """
        path = Path(folder) / cls.file_name
        result: Self = read_json(path, cls.format_version, lambda content: of_json(cls, content))
        return result


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, all or nothing, into a folder that is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode())


def as_json(value: Any) -> Any:
    """Return a value as JSON has it: of a dataclass the fields by name, for infinity null."""
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): as_json(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_BEYOND = {int: 2**63, float: math.inf}


def of_json(kind: Any, value: Any) -> Any:
    """Undo `as_json`: return a value of the type that a field declares.

    Raises
    ------
    KeyError, TypeError, AttributeError, ValueError
        It is none; numbers are finite, and 0 or more.

    Examples
    --------
    >>> of_json(tuple[float, ...], [1, None])
    (1.0, inf)
    """
    parts, declared = get_args(kind), kind
    if type(None) in parts:  # the other type or None: no other unions are declared
        return None if value is None else of_json(parts[0], value)
    if get_origin(kind) is tuple:
        each = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(of_json(own, part) for own, part in zip(each, value, strict=True))
    if isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping):
        return {str(name): of_json(parts[1], part) for name, part in value.items()}
    if get_origin(kind) is Literal and value not in parts:
        raise ValueError(f"{value!r} is none of {', '.join(map(repr, parts))}")
    if is_dataclass(kind):
        optional = {f.name for f in fields(kind) if {f.default, f.default_factory} != {MISSING}}
        known = [f for f in fields(kind) if f.name in value or f.name not in optional]
        hints = get_type_hints(kind)
        return declared(**{f.name: of_json(hints[f.name], value[f.name]) for f in known})
    if kind is float and value is None:
        return math.inf
    if kind in (int, float) and (isinstance(value, bool) or not 0 <= value < _BEYOND[kind]):
        raise ValueError(f"a number of {value!r}")
    return kind(value) if kind in (str, int, float, bool) else value


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, all or nothing: a crash leaves the old file or the new."""
    target = Path(path)
    with temporary_beside(target) as temporary:
        temporary.write_bytes(data)
        temporary.chmod(0o644)
        os.replace(temporary, target)


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Make an empty file beside ``target``, mode 0600, to be written and moved or linked there.

    It is deleted at the end, where it still has that name; those of earlier processes that were
    killed are deleted now. A lock, which ends with its process, tells those from files that are
    being written.
    """
    prefix, suffix = f".{target.name}.", ".new"
    for left in target.parent.glob(f"{glob.escape(prefix)}????????{suffix}"):
        with suppress(OSError), _locked(left, wait=False):
            left.unlink()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=prefix, suffix=suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        with _locked(temporary, wait=True):
            yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Lock a file; where it may not wait, another's lock is an OSError.

    Some network file systems have no locks: there a file is written without, and none is deleted.
    """
    if sys.platform == "win32":  # there a file that is open cannot be deleted anyway
        yield
        return
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not wait:
                raise
        yield


def _sorted_metadata(data: bytes) -> bytes:
    """Give a file's metadata one order: safetensors writes it in any, and files would differ."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(text) <= end - 8
    return data[:8] + text.ljust(end - 8) + data[end:]


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
        raise FileNotFoundError(f"There is no model file at {path}. Check the path.")
    with _opened(path) as file:
        kind = _kind(path, file.metadata() or {})
        names = list(file.keys())
        for name in names:
            # a foreign type (bfloat16, float8) may be one that NumPy does not have
            if (dtype := file.get_slice(name).get_dtype()) != "F64":
                raise ValueError(f"{path} is damaged: {name} is {dtype} instead of F64.")
        return kind, {name: file.get_tensor(name) for name in names}


def is_model(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file is a model that `write` wrote, of whatever format."""
    try:
        with _opened(path) as file:
            return "class" in (file.metadata() or {})
    except ValueError:
        return False


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a safetensors file; what makes it unreadable is a ValueError."""
    try:
        with safe_open(path, framework="numpy") as file:
            # of a name that is there twice, the library reads one and says nothing
            _header(path)
            yield file
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}.") from error


def _header(path: str | os.PathLike[str]) -> tuple[int, dict[str, Any]]:
    """Return where the tensors of a safetensors file begin, and what its header says of them."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        try:
            return 8 + length, _parsed(file.read(length).decode())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {error}.") from error


def load_weights(path: str | os.PathLike[str]) -> Mapping[str, Array]:
    """Open a file of named arrays, ``.npz`` or ``.safetensors``; each is read when it is taken.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is neither, is damaged, or holds pickled objects.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file of weights at {path}.")
    suffix = Path(path).suffix
    if suffix in (".npz", ".safetensors"):
        return _Npz(path) if suffix == ".npz" else _Safetensors(path)
    raise ValueError(
        f"{path} is no .npz or .safetensors. A .pt or .bin is a pickle, which could run anything: "
        "write its state dict with safetensors.torch.save_file, or numpy.savez."
    )


# An array of an .npz may be unpacked to 256 MiB whatever it is: zeros, which biases and masks are,
# pack a thousandfold, as a bomb does. Beyond that to so many times its size: weights pack less.
FREE, MOST_PACKED = 2**28, 50.0


# What NumPy and zipfile raise for files that are damaged or made to do harm: too large for memory,
# encrypted, packed in another way, cut short.
_DAMAGED = (ValueError, TypeError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
_UNREADABLE = (*_DAMAGED, MemoryError, RuntimeError, OverflowError)


class _Stored(Mapping[str, Array]):
    """The arrays of a file by name, each read when it is taken."""

    _names: Mapping[str, Any]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
    """Open a model's folder, or a file of its weights: its configuration, and named arrays.

    Raises
    ------
    FileNotFoundError
        There are no weights, or no ``config.json`` beside them.
    ValueError
        One of the files is damaged.
    """
    given = Path(path)
    folder = given if given.is_dir() else given.parent
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"There is no config.json in {folder}: it says what no weights show, such as heads."
        )
    config = _object(folder / "config.json")
    if given.is_file():
        return config, load_weights(given)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return config, _Shards(index)
    for name in ("model.safetensors", "weights.npz"):
        if (folder / name).is_file():
            return config, load_weights(folder / name)
    raise FileNotFoundError(
        f"There are no weights in {folder}: looked for {index.name}, model.safetensors and "
        "weights.npz."
    )


def _object(path: Path) -> Mapping[str, Any]:
    """Read a JSON object."""
    try:
        content = _parsed(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error
    return content


class _Shards(_Stored):
    """Arrays in several files of a folder, as the index there says."""

    def __init__(self, index: Path) -> None:
        shards = _object(index).get("weight_map")
        # a name with a path in it would be a file elsewhere
        if not isinstance(shards, dict) or any(Path(str(x)).name != x for x in shards.values()):
            raise ValueError(f"{index} is damaged: its weight_map names no files of the folder.")
        self._names = shards
        self._files = {file: load_weights(index.parent / file) for file in set(shards.values())}

    def __getitem__(self, name: str) -> Array:
        return self._files[self._names[name]][name]


class _Npz(_Stored):
    """The arrays of an ``.npz``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        try:
            with self._opened() as file:
                self._names = dict.fromkeys(file.files)
        except _UNREADABLE as error:
            raise ValueError(f"{path} is not a readable .npz: {error}.") from error

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        try:
            with self._opened() as file:
                self._refuse_bomb(file.zip, name)
                array: Array = file[name]
            if not isinstance(array, np.ndarray):
                raise ValueError("it is no array")
        except _UNREADABLE as error:
            raise ValueError(f"{self._path}: {name} cannot be read: {error}.") from error
        return array

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        # where NumPy opens the file itself, it leaves one open that it cannot read
        with open(self._path, "rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise ValueError("it is one array")
            with loaded:
                yield loaded

    def _refuse_bomb(self, packed: Any, name: str) -> None:
        member = packed.getinfo(name if name in packed.namelist() else f"{name}.npy")
        size = member.file_size
        if size > FREE and size > MOST_PACKED * member.compress_size:
            raise ValueError(f"it unpacks {size:,} bytes out of {member.compress_size:,}")


class _Safetensors(_Stored):
    """The tensors of a ``.safetensors``; bfloat16, which NumPy lacks, as float32."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        with _opened(path) as file:
            self._names = {name: file.get_slice(name).get_dtype() for name in list(file.keys())}

    def __getitem__(self, name: str) -> Array:
        if self._names[name] == "BF16":
            return self._bfloat16(name)
        try:
            with safe_open(self._path, framework="numpy") as file:
                tensor: Array = file.get_tensor(name)
        except (SafetensorError, OSError, TypeError, AttributeError) as error:
            kind = self._names[name]
            raise ValueError(f"{self._path}: {name}, {kind}, cannot be read: {error}.") from error
        return tensor

    def _bfloat16(self, name: str) -> Array:
        """Read a tensor whose numbers are the upper halves of float32 numbers."""
        start, header = _header(self._path)
        entry = header[name]
        first, last = entry["data_offsets"]
        with open(self._path, "rb") as file:
            file.seek(start + first)
            upper = np.frombuffer(file.read(last - first), dtype="<u2")
        numbers: Array = (upper.astype(np.uint32) << 16).view(np.float32)
        return numbers.reshape(entry["shape"])


def _kind(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> str:
    """Return the class that the metadata names, if this program can read its format."""
    version = metadata.get("format_version", "")
    if "class" not in metadata or not version.isdecimal():
        raise ValueError(
            f"{path} holds tensors but no unsoftmax model (its metadata names no class): "
            "write it with model.save(path). Blocks of a checkpoint: us.from_checkpoint(folder)."
        )
    if len(version) > 9 or int(version) > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format {version[:9]}, this program reads up to {FORMAT_VERSION}: upgrade "
            "unsoftmax."
        )
    return metadata["class"]
