"""A torch module as an oracle."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.oracles.layer_outputs import missing_extra, of_last_token
from unsoftmax.probes import Array


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
