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

from unsoftmax.errors import AnswerMisshapen, OracleError
from unsoftmax.first_use import from_extra
from unsoftmax.oracles.open_inference import NUMPY, ProtocolError, Signature, signature
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


class DescribedModel(RunModel):
    """A model that says itself which tensors it takes and gives."""

    def _speaks(self, signature: Signature) -> None:
        """Keep what the model takes, as it says itself."""
        self.signature = signature
        if signature.dim is not None:
            self.dim = signature.dim
        if signature.beside is not None:
            self.vocabulary = None  # it takes ids, and does not say how many there are


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


_DATATYPES = {
    **{"tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(float16)": "FP16"},
    **{"tensor(int64)": "INT64", "tensor(int32)": "INT32"},
}


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


class OnnxOracle(DescribedModel):
    """A model in an ONNX file that is asked as an oracle; see `from_onnx`."""

    def __init__(
        self, path: str, input: str | None, output: str | None, providers: tuple[str, ...]
    ) -> None:
        self._made_of = path, input, output, providers
        self._session = _session(path, providers)
        shapes = {one.name: _sizes(one) for one in self._session.get_inputs()}
        inputs = [
            {"name": one.name, "datatype": _DATATYPES.get(one.type, one.type), "shape": _sizes(one)}
            for one in self._session.get_inputs()
        ]
        outputs = [{"name": one.name} for one in self._session.get_outputs()]
        try:
            told = signature({"inputs": inputs, "outputs": outputs}, {}, input, output)
        except ProtocolError as error:
            raise ValueError(f"{path} cannot be asked. {error}") from None
        self._speaks(told)
        self._batch, self._length, *_ = shapes[told.input]

    def _asked(self, X: Array, chosen: Chosen) -> Array:
        if self._length not in (-1, X.shape[1]):
            raise OracleError(
                f"The ONNX model takes sequences of {self._length} tokens alone; one of "
                f"{X.shape[1]} was asked. Export it with a dynamic sequence length."
            )
        parts = [self._run(part, chosen) for part in _batches(X, self._batch)]
        return np.concatenate(parts)[: len(X)]

    def _run(self, X: Array, chosen: Chosen) -> Array:
        # a fixed batch is filled up, and what is too much is left out
        missing = 0 if self._batch < 0 else self._batch - len(X)
        padded = np.concatenate([X, np.zeros((missing, *X.shape[1:]), X.dtype)]) if missing else X
        with np.errstate(over="ignore"):
            given = {
                name: x.astype(NUMPY[kind]) for name, kind, x in self.signature.tensors(padded)
            }
        [y] = self._session.run([self.signature.output], given)
        answers: Array = chosen(y, *padded.shape[:2])[: len(X)]
        return answers

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of


def _batches(X: Array, size: int) -> list[Array]:
    step = size if size > 0 else max(1, len(X))
    return [X[start : start + step] for start in range(0, max(1, len(X)), step)]


def _session(path: str, providers: tuple[str, ...]) -> Any:
    onnxruntime = from_extra("onnxruntime", "onnx")
    try:
        return onnxruntime.InferenceSession(path, providers=list(providers))
    except Exception as error:  # onnxruntime's own kinds derive from RuntimeError, and others
        raise ValueError(f"{path} is no model that onnxruntime can run: {error}") from error


def _sizes(tensor: Any) -> list[int]:
    """Return how long a tensor's axes are, −1 for any length."""
    return [size if isinstance(size, int) else -1 for size in tensor.shape]
