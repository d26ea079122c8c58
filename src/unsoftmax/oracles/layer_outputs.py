"""What a layer answers, as an oracle's answer: the last token's numbers."""

from __future__ import annotations

from typing import Any

from unsoftmax.errors import OracleError


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


def missing_extra(package: str, extra: str) -> ImportError:
    """Name the extra that a package comes with."""
    return ImportError(f"This needs {package}: pip install 'unsoftmax[{extra}]'.")
