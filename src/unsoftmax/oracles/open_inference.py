"""The Open Inference Protocol v2: tensors in JSON, or in binary behind a JSON header.

What MLServer, Triton and KServe speak. No network here: requests and answers as bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.first_use import from_extra
from unsoftmax.probes import Array

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The HTTP header that says where the JSON ends and tensors in binary begin."""

DATATYPES: Mapping[str, str] = {"FP64": "<f8", "FP32": "<f4", "FP16": "<f2", "BF16": "<u2"}
"""Types of numbers in binary. NumPy has no bfloat16, the upper half of a float32; nor has JSON."""
IDS: Mapping[str, str] = {"INT64": "<i8", "INT32": "<i4"}
NUMPY = {**DATATYPES, **IDS}


class ProtocolError(Exception):
    """What a server sent is no answer of the protocol."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Which tensors a model takes and gives, from its metadata."""

    input: str
    datatype: str
    output: str | None
    """None: the first that comes."""
    dim: int | None
    binary: bool
    """Whether the server is known to take and give tensors in binary."""
    beside: Mapping[str, str] | None = None
    """Of a model of ids the tensors beside them, by name with their types; None: of vectors."""

    def tensors(self, X: NDArray[Any]) -> list[tuple[str, str, NDArray[Any]]]:
        """Return what a question is made of: names, types and numbers."""
        beside = ((name, kind, beside_ids(name, X)) for name, kind in (self.beside or {}).items())
        return [(self.input, self.datatype, X), *beside]


def signature(
    model: Any, server: Any, input: str | None = None, output: str | None = None
) -> Signature:
    """Read a model's and its server's metadata.

    Raises
    ------
    ProtocolError
        The model takes no batch of sequences of vectors or ids, or has no such input or output.
    """
    if not isinstance(model, dict):
        raise ProtocolError("Its metadata is no JSON object.")
    takes = _tensor(_ids_among(model.get("inputs"), input), input, "input")
    gives = _tensor(model.get("outputs"), output, "output")
    shape = takes.get("shape", [-1, -1, -1])
    datatype = takes.get("datatype", "FP64")
    extensions = server.get("extensions", []) if isinstance(server, dict) else []
    binary = isinstance(extensions, list) and "binary_tensor_data" in extensions
    if isinstance(datatype, str) and datatype in IDS and isinstance(shape, list):
        if len(shape) == 2:
            beside = {
                x["name"]: x["datatype"]
                for x in model["inputs"]
                if x["name"] != takes["name"] and x.get("datatype") in IDS
            }
            return Signature(takes["name"], datatype, gives.get("name"), None, binary, beside)
        raise ProtocolError(
            f"Its input {takes['name']} has shape {shape}; sequences of ids are [-1, -1]."
        )
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise ProtocolError(
            f"Its input {takes['name']} is {datatype}; vectors are FP64, FP32, FP16 or BF16, ids "
            "INT64 or INT32."
        )
    if not isinstance(shape, list) or len(shape) != 3:
        raise ProtocolError(
            f"Its input {takes['name']} has shape {shape}; sequences of vectors are [-1, -1, d]."
        )
    dim = shape[2] if type(shape[2]) is int and shape[2] > 0 else None
    binary = binary or datatype == "BF16"
    return Signature(takes["name"], datatype, gives.get("name"), dim, binary)


def _ids_among(listed: Any, name: str | None) -> Any:
    """Return the inputs, of a model of ids these alone: what stands beside them is made."""
    if name is None and isinstance(listed, list):
        ids = [x for x in listed if isinstance(x, dict) and x.get("name") == "input_ids"]
        return ids or listed
    return listed


def beside_ids(name: str, ids: NDArray[Any]) -> NDArray[Any]:
    """Return what goes with ids (B, N) into a tensor of that name: a mask, positions, or zeros.

    Examples
    --------
    >>> beside_ids("position_ids", np.array([[7, 7, 7]]))
    array([[0, 1, 2]])
    """
    if "position" in name:
        return np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
    return np.ones_like(ids) if "mask" in name else np.zeros_like(ids)


def _tensor(listed: Any, name: str | None, what: str) -> dict[str, Any]:
    """Return the metadata of the tensor that is named, or of the only one there is."""
    if not isinstance(listed, list):
        listed = []
    known = [x for x in listed if isinstance(x, dict) and isinstance(x.get("name"), str)]
    names = ", ".join(str(x["name"]) for x in known)
    if name is None:
        if len(known) == 1 or (known and what == "output"):
            return known[0]
        if known:
            raise ProtocolError(f"It has several inputs, {names}: name one.")
        # metadata may leave tensors out; answers then come under a name of the server's
        return {"name": "X"} if what == "input" else {}
    for one in known:
        if one["name"] == name:
            return one
    if known:
        raise ProtocolError(f"It has no {what} {name}, but {names}.")
    return {"name": name}


def request(X: Array, to: Signature) -> tuple[bytes, dict[str, str]]:
    """Write a batch of sequences (B, N, d), or of ids (B, N): the body and its headers.

    An answer in binary is asked for in JSON as well. A server without the extension passes over
    the parameter; one that heeds it speaks the extension, whether its metadata says so or not.
    """
    tensors, blobs = list[dict[str, Any]](), []
    for name, datatype, x in to.tensors(X):
        numbers = _as_datatype(x, datatype)
        tensor: dict[str, Any] = {"name": name, "shape": list(x.shape), "datatype": datatype}
        if to.binary:
            tensor["parameters"] = {"binary_data_size": numbers.nbytes}
            blobs.append(numbers.tobytes())
        else:
            # orjson knows float32 and float64; either is written so that it is read back as it was
            data = numbers.astype(np.float32) if datatype == "FP16" else numbers
            tensor["data"] = data.ravel()
        tensors.append(tensor)
    content: dict[str, Any] = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    if to.output is not None:
        content["outputs"] = [{"name": to.output, "parameters": {"binary_data": True}}]
    if not to.binary:
        return as_json(content), {"Content-Type": "application/json"}
    header = as_json(content)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
    return b"".join([header, *blobs]), headers


def as_json(content: Any) -> bytes:
    """Write JSON; arrays of NumPy are nested lists, numbers have all their digits."""
    orjson = _orjson()
    body: bytes = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return body


def _as_datatype(X: Array, datatype: str) -> Array:
    """Round to a model's type, bfloat16 to the nearest even."""
    with np.errstate(over="ignore"):
        if datatype != "BF16":
            return np.ascontiguousarray(X, dtype=NUMPY[datatype])
        bits = np.ascontiguousarray(X, dtype="<f4").view("<u4").astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def in_binary(body: bytes, headers: Mapping[str, str]) -> bool:
    """Whether tensors in binary follow the JSON of an answer that could be read."""
    return int(headers.get(HEADER_LENGTH, len(body))) < len(body)


def answer(body: bytes, headers: Mapping[str, str], to: Signature) -> Array:
    """Read an answer's tensor.

    Raises
    ------
    ProtocolError
        It is no answer of the protocol, or is damaged.
    """
    length = headers.get(HEADER_LENGTH)
    if length is not None and not (length.isdecimal() and int(length) <= len(body)):
        raise ProtocolError(f"Its {HEADER_LENGTH} is {length!r}, of {len(body)} bytes.")
    end = len(body) if length is None else int(length)
    content = parsed(body[:end])
    tensors = content.get("outputs") if isinstance(content, dict) else None
    try:
        start = end
        for tensor in tensors or ():
            # KServe writes null for what it leaves out
            stop = start + int((tensor.get("parameters") or {}).get("binary_data_size", 0))
            if to.output is None or tensor["name"] == to.output:
                return _numbers(tensor, body[start:stop])
            start = stop
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"Its answer's tensor cannot be read: {error}.") from error
    raise ProtocolError(f"Its answer has no output {to.output or 'at all'}.")


def parsed(body: bytes) -> Any:
    """Read JSON; what is none, or nested too deeply, is a `ProtocolError`."""
    try:
        return _orjson().loads(body)
    except ValueError as error:
        raise ProtocolError(f"Its answer is no JSON: {error}.") from error


def _numbers(tensor: Mapping[str, Any], binary: bytes) -> Array:
    """Return a tensor's numbers in its shape, which may be told by nested lists as well."""
    datatype = DATATYPES.get(tensor["datatype"])
    if tensor.get("data") is not None:
        of_json = np.float64 if datatype in (None, "<u2") else datatype
        flat = np.array(tensor["data"], dtype=of_json)
    else:
        if datatype is None:
            raise ValueError(f"binary numbers of type {tensor['datatype']}")
        flat = np.frombuffer(binary, dtype=datatype)
        if tensor["datatype"] == "BF16":
            flat = (flat.astype("<u4") << 16).view("<f4")
    numbers: Array = flat.reshape(tensor["shape"])
    return numbers


_orjson = partial(from_extra, "orjson", "http")
