"""Model files that commands are given, and what to do with those that are none yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unsoftmax.cli.console import Refusal
from unsoftmax.models import has_parameters, load, load_weights


def opened(path: Path) -> Any:
    """Load a model; of a file of arrays say how it becomes one."""
    try:
        if path.suffix == ".npz":
            raise Refusal(_how(path))
        return load(path)
    except (ValueError, OSError) as error:
        raise Refusal(str(error)) from error


def _how(path: Path) -> str:
    if has_parameters(load_weights(path)):
        what, options = "parameters", ""
    else:
        what, options = "own arrays", " --heads H --coordinate k"
    return (
        f"{path} holds a model's {what}. Make a model file of them: unsoftmax convert {path}"
        f"{options} --out model.safetensors"
    )
