"""Models that other libraries run, as oracles: a torch module, an ONNX file run by onnxruntime.

A layer answers with a vector per token: an oracle's answer are the last token's numbers, its
``all`` has those of every token.
"""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from unsoftmax.errors import AnswerMisshapen, OracleError, from_extra
from unsoftmax.oracles.open_inference import beside_ids
from unsoftmax.probes import Array

Chosen: TypeAlias = Callable[[Any, int, int], Any]
"""What an oracle returns of what a model gave: `of_last_token` or `of_every_token`."""


def of_last_token(y: Any, count: int, tokens: int) -> Any:
    """Return (B,) or (B, m) of what a model gave for ``count`` sequences of ``tokens`` tokens.

    A layer answers with a vector per token, (B, N, m): the last one is the query token's.
    """
    y = of_every_token(y, count, tokens)
    return y[:, -1] if len(y.shape) == 3 else y


def of_every_token(y: Any, count: int, tokens: int) -> Any:
    """Return (B,), (B, m) or (B, N, m) of what a model gave; of several outputs the first.

    Attention weights come after it.
    """
    if isinstance(y, (tuple, list)):
        y = y[0]
    elif hasattr(y, "last_hidden_state"):
        y = y.last_hidden_state
    shape = tuple(getattr(y, "shape", ()))
    every = len(shape) == 3 and shape[:2] == (count, tokens)
    if every or (shape[:1] == (count,) and len(shape) <= 2):
        return y
    raise AnswerMisshapen(
        f"The model answered {count} sequences of {tokens} tokens with shape {shape}: it must give "
        f"({count},), ({count}, m), or a vector per token, ({count}, {tokens}, m)."
    )


class RunModel(ABC):
    """A model that may answer with a vector per token, as an oracle."""

    def __call__(self, X: Array, /) -> Any:
        """Answer a batch of sequences (B, N, d), or of ids (B, N), at the last token."""
        return self._asked(X, of_last_token)

    def all(self, X: Array, /) -> Any:
        """Answer them at all tokens, (B, N, m), where the model does; else as when called."""
        return self._asked(X, of_every_token)

    @abstractmethod
    def _asked(self, X: Array, chosen: Chosen) -> Any:
        """Ask the model, and return what is chosen of its answer."""


def from_torch(
    module: Any, device: Any = None, dtype: Any = None, *, ids: bool = False
) -> TorchOracle:
    """Ask a torch module, in its own arithmetic.

    Parameters
    ----------
    module : torch.nn.Module
        From a tensor (B, N, d) to (B,), (B, m), or (B, N, m), of which the last token counts; of
        several outputs the first. In evaluation mode.
    device : torch.device or str, optional
        Where sequences are sent; where the module's parameters are, by default.
    dtype : torch.dtype, optional
        What sequences are rounded to; the type of the module's parameters by default.
    ids : bool
        The module takes ids (B, N), torch.int64, and not vectors.

    Returns
    -------
    callable
        From (B, N, d) to (B,) or (B, m); its method ``all`` to (B, N, m) where the module does.

    Raises
    ------
    ImportError
        torch is not installed.
    TypeError
        ``module`` is no torch module.
    ValueError
        It is in training mode, in which dropout would make its answers random.

    Examples
    --------
    >>> import numpy as np, torch  # doctest: +SKIP
    >>> oracle = from_torch(torch.nn.Linear(4, 1).eval())  # doctest: +SKIP
    >>> oracle(np.ones((2, 3, 4))).shape  # doctest: +SKIP
    (2, 1)
    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module; it is {type(module).__name__}.")
    if module.training:
        raise ValueError(
            "The module is in training mode, in which dropout makes answers random: call "
            "module.eval() first."
        )
    tensors = itertools.chain(module.parameters(), module.buffers())
    first = next((x for x in tensors if x.is_floating_point()), torch.zeros(0))
    dtype = torch.int64 if ids else dtype or first.dtype
    return TorchOracle(module, device or first.device, dtype, ids)


@dataclass(frozen=True, eq=False)
class TorchOracle(RunModel):
    """A torch module that is asked as an oracle; see `from_torch`."""

    module: Any
    device: Any
    dtype: Any
    ids: bool = False

    @property
    def vocabulary(self) -> None:
        """Where it takes ids None, as it does not say how many there are."""
        if not self.ids:
            raise AttributeError("This module takes vectors.")

    def _asked(self, X: Array, chosen: Chosen) -> Any:
        torch = _torch()
        # torch takes neither negative strides nor other bytes' orders, and a module may write
        own = np.array(X, dtype=np.int64 if self.ids else np.float64, order="C")
        with torch.inference_mode():
            y = self.module(torch.from_numpy(own).to(self.device, self.dtype))
            y = chosen(y, *X.shape[:2])
            # NumPy has no bfloat16; every float16 is a float64
            return y.to("cpu", torch.float64).numpy()


_torch = partial(from_extra, "torch", "torch")


_IDS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}


def from_onnx(
    path: str | os.PathLike[str],
    input: str | None = None,
    output: str | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> OnnxOracle:
    """Ask a model in an ONNX file, in its own arithmetic.

    Parameters
    ----------
    path : path
        The file.
    input, output : str, optional
        Which of the model's inputs takes sequences and which of its outputs answers; the only
        input and the first output by default.
    providers : sequence of str, optional
        Where onnxruntime computes.

    Returns
    -------
    callable
        From (B, N, d) to (B,) or (B, m); of a vector per token the last token's, and its method
        ``all`` has those of every token. Its attribute ``dim`` is d where the file says it. A file
        whose input is whole numbers (B, N) takes ids; a mask and position ids beside them are
        made.

    Raises
    ------
    ImportError
        onnxruntime is not installed.
    FileNotFoundError
        There is no such file.
    ValueError
        It is no ONNX model; it lacks the input or output; or its input is no batch of sequences
        of vectors.

    Examples
    --------
    >>> oracle = from_onnx("layer.onnx")  # doctest: +SKIP
    >>> oracle.dim  # doctest: +SKIP
    384
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no ONNX file at {path}.")
    return OnnxOracle(str(path), input, output, tuple(providers))


class OnnxOracle(RunModel):
    """A model in an ONNX file that is asked as an oracle; see `from_onnx`."""

    def __init__(
        self, path: str, input: str | None, output: str | None, providers: tuple[str, ...]
    ) -> None:
        self._made_of = path, input, output, providers
        self._session = _session(path, providers)
        inputs = self._session.get_inputs()
        ids = [one for one in inputs if one.name == "input_ids" and input is None]
        takes = _named(ids or inputs, input, f"{path} takes", only=True)
        self._beside: dict[str, Any] = {}
        if takes.type in _IDS and len(takes.shape) == 2:
            self.vocabulary = None  # it takes ids, and does not say how many there are
            self._beside = {x.name: _IDS[x.type] for x in inputs if x.type in _IDS}
            self._beside.pop(takes.name)
        elif takes.type not in _TYPES or len(takes.shape) != 3:
            raise ValueError(
                f"{path}: input {takes.name} is {takes.type} of shape {takes.shape}; it must be "
                "floats (B, N, d), or ids (B, N)."
            )
        gives = _named(self._session.get_outputs(), output, f"{path} gives", only=False)
        self._input, self._output = takes.name, gives.name
        self._dtype = {**_TYPES, **_IDS}[takes.type]
        self._shape = [size if isinstance(size, int) else None for size in takes.shape]
        if self._shape[2:] not in ([], [None]):
            self.dim = self._shape[2]

    def _asked(self, X: Array, chosen: Chosen) -> Array:
        batch, length = self._shape[:2]
        if length not in (None, X.shape[1]):
            raise OracleError(
                f"The ONNX model takes sequences of {length} tokens alone; one of {X.shape[1]} was "
                "asked. Export it with a dynamic sequence length."
            )
        with np.errstate(over="ignore"):
            numbers = X.astype(self._dtype)
        parts = [self._run(part, batch, chosen) for part in _batches(numbers, batch)]
        return np.concatenate(parts)[: len(X)]

    def _run(self, X: Array, batch: int | None, chosen: Chosen) -> Array:
        # a fixed batch is filled up, and what is too much is left out
        missing = 0 if batch is None else batch - len(X)
        padded = np.concatenate([X, np.zeros((missing, *X.shape[1:]), X.dtype)]) if missing else X
        beside = {x: beside_ids(x, padded).astype(kind) for x, kind in self._beside.items()}
        [y] = self._session.run([self._output], {self._input: padded, **beside})
        answers: Array = chosen(y, *padded.shape[:2])[: len(X)]
        return answers

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of


def _batches(X: Array, size: int | None) -> list[Array]:
    step = size or max(1, len(X))
    return [X[start : start + step] for start in range(0, max(1, len(X)), step)]


def _session(path: str, providers: tuple[str, ...]) -> Any:
    onnxruntime = from_extra("onnxruntime", "onnx")
    try:
        return onnxruntime.InferenceSession(path, providers=list(providers))
    except Exception as error:  # onnxruntime's own kinds derive from RuntimeError, and others
        raise ValueError(f"{path} is no model that onnxruntime can run: {error}") from error


def _named(those: Sequence[Any], name: str | None, what: str, *, only: bool) -> Any:
    """Return the one that is named; else the first, or the only one."""
    names = ", ".join(one.name for one in those) or "nothing"
    if name is None and (not those or (only and len(those) > 1)):
        raise ValueError(f"{what} {names}: name one of them.")
    if name is None:
        return those[0]
    for one in those:
        if one.name == name:
            return one
    raise ValueError(f"{what} {names}, not {name}.")
