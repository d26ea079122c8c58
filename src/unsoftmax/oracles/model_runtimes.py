"""Models that other libraries run, as oracles: a torch module, an ONNX file run by onnxruntime.

A layer answers with a vector per token; an oracle's answer are the last token's numbers.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.errors import OracleError, missing_extra
from unsoftmax.probes import Array


def of_last_token(y: Any, count: int, tokens: int) -> Any:
    """Return (B,) or (B, m) of what a model gave for ``count`` sequences of ``tokens`` tokens.

    A layer answers with a vector per token, (B, N, m): the last one is the query token's. Of
    several outputs the first counts: attention weights come after it.
    """
    if isinstance(y, (tuple, list)):
        y = y[0]
    elif hasattr(y, "last_hidden_state"):
        y = y.last_hidden_state
    shape = tuple(getattr(y, "shape", ()))
    if len(shape) == 3 and shape[:2] == (count, tokens):
        return y[:, -1]
    if shape[:1] == (count,) and len(shape) <= 2:
        return y
    raise OracleError(
        f"The model answered {count} sequences of {tokens} tokens with shape {shape}: it must give "
        f"({count},), ({count}, m), or a vector per token, ({count}, {tokens}, m)."
    )


def from_torch(module: Any, device: Any = None, dtype: Any = None) -> TorchOracle:
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

    Returns
    -------
    callable
        From (B, N, d) to (B,) or (B, m).

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
    return TorchOracle(module, device or first.device, dtype or first.dtype)


@dataclass(frozen=True, eq=False)
class TorchOracle:
    """A torch module that is asked as an oracle; see `from_torch`."""

    module: Any
    device: Any
    dtype: Any

    def __call__(self, X: Array, /) -> Any:
        """Answer a batch of sequences (B, N, d)."""
        torch = _torch()
        # torch takes neither negative strides nor other bytes' orders, and a module may write
        own = np.array(X, dtype=np.float64, order="C")
        with torch.inference_mode():
            y = self.module(torch.from_numpy(own).to(self.device, self.dtype))
            y = of_last_token(y, *X.shape[:2])
            # NumPy has no bfloat16; every float16 is a float64
            return y.to("cpu", torch.float64).numpy()


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise missing_extra("torch", "torch") from error
    return torch


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
        From (B, N, d) to (B,) or (B, m); of a vector per token the last token's. Its attribute
        ``dim`` is d where the file says it.

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


class OnnxOracle:
    """A model in an ONNX file that is asked as an oracle; see `from_onnx`."""

    def __init__(
        self, path: str, input: str | None, output: str | None, providers: tuple[str, ...]
    ) -> None:
        self._made_of = path, input, output, providers
        self._session = _session(path, providers)
        takes = _named(self._session.get_inputs(), input, f"{path} takes", only=True)
        gives = _named(self._session.get_outputs(), output, f"{path} gives", only=False)
        if takes.type not in _TYPES or len(takes.shape) != 3:
            raise ValueError(
                f"{path}: input {takes.name} is {takes.type} of shape {takes.shape}; it must be "
                "floats (B, N, d)."
            )
        self._input, self._output, self._dtype = takes.name, gives.name, _TYPES[takes.type]
        self._shape = [size if isinstance(size, int) else None for size in takes.shape]
        if self._shape[2] is not None:
            self.dim = self._shape[2]

    def __call__(self, X: Array, /) -> Array:
        """Answer a batch of sequences (B, N, d)."""
        batch, length, _ = self._shape
        if length not in (None, X.shape[1]):
            raise OracleError(
                f"The ONNX model takes sequences of {length} tokens alone; one of {X.shape[1]} was "
                "asked. Export it with a dynamic sequence length."
            )
        with np.errstate(over="ignore"):
            numbers = X.astype(self._dtype)
        parts = [self._run(part, batch) for part in _batches(numbers, batch)]
        return np.concatenate(parts)[: len(X)]

    def _run(self, X: Array, batch: int | None) -> Array:
        # a fixed batch is filled up, and what is too much is left out
        missing = 0 if batch is None else batch - len(X)
        padded = np.concatenate([X, np.zeros((missing, *X.shape[1:]), X.dtype)]) if missing else X
        [y] = self._session.run([self._output], {self._input: padded})
        answers: Array = of_last_token(y, *padded.shape[:2])[: len(X)]
        return answers

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of


def _batches(X: Array, size: int | None) -> list[Array]:
    step = size or max(1, len(X))
    return [X[start : start + step] for start in range(0, max(1, len(X)), step)]


def _session(path: str, providers: tuple[str, ...]) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra("onnxruntime", "onnx") from error
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
