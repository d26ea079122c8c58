"""What TARGET on the command line means."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unsoftmax as us
from unsoftmax.cli.console import Refusal, say, signal_behind, stderr

if TYPE_CHECKING:
    from unsoftmax.protocol import Oracle

HELP = (
    "What to ask: a model.safetensors, a model.onnx, an endpoint of the Open Inference Protocol "
    "(http(s)://host/v2/models/NAME, grpc(s)://host:port/NAME), any URL with --request, or "
    "module:function (imports the module from the current folder or the environment, and runs it)."
)

NUMBERS, PROBABILITIES = "numbers", "probabilities"
"""What --answers says a target's answers are."""


def resolve(
    target: str,
    coordinate: int | None = None,
    answers: str = NUMBERS,
    endpoint: Mapping[str, Any] | None = None,
) -> Oracle:
    """Return the oracle that TARGET names, or log-ratios of its probabilities, or one coordinate.

    ``endpoint`` says how a URL is asked, as `us.oracles.from_url` takes it.
    """
    if answers not in (NUMBERS, PROBABILITIES):
        raise Refusal(f"--answers is {NUMBERS} or {PROBABILITIES}; it is {answers}.")
    oracle = _named(target, endpoint or {})
    if answers == PROBABILITIES:
        oracle = us.oracles.log_ratios(oracle)
    return oracle if coordinate is None else us.oracles.coordinate(oracle, coordinate)


def _named(target: str, endpoint: Mapping[str, Any]) -> Oracle:
    http, grpc = (
        target.startswith(("http://", "https://")),
        target.startswith(("grpc://", "grpcs://")),
    )
    if http or grpc:
        try:
            return (us.oracles.from_grpc if grpc else us.oracles.from_url)(target, **endpoint)
        except (ValueError, ImportError, TypeError) as error:
            raise Refusal(str(error)) from error
    if "/v2/models/" in target and "://" not in target:
        raise Refusal(f"{target} is no URL: did you mean http://{target}?")
    opened = {".safetensors": us.load, ".onnx": us.oracles.from_onnx}.get(Path(target).suffix)
    if opened is not None:
        try:
            model: Oracle = opened(target)
            return model
        except (ValueError, OSError, ImportError) as error:
            raise Refusal(str(error)) from error
    if Path(target).suffix == ".npz":
        raise Refusal(
            f"{target} holds arrays, not a model: `unsoftmax convert {target}` makes one of them."
        )
    if (Path(target) / "model.safetensors").is_file():
        raise Refusal(f"{target} is a folder: did you mean {target}/model.safetensors?")
    module, colon, name = target.partition(":")
    if module.endswith(".py"):
        raise Refusal(f"A module is named without .py: {module.removesuffix('.py')}:{name}")
    if not colon or "/" in target or not name or not module:
        raise Refusal(
            f"{target!r} is no target: give a .safetensors or .onnx model, "
            "http(s)://host/v2/models/NAME, grpc(s)://host:port/NAME, any URL with --request, or "
            "module:function for a function that maps sequences (B, N, d) to B numbers, or to B "
            "rows of numbers."
        )
    return imported(target)


def imported(target: str) -> Callable[..., Any]:
    """Import what module:function names, from the current folder or the environment."""
    found = found_at(target, "function")
    if not callable(found):
        raise Refusal(f"{target} is {type(found).__name__}, not a function.")
    function: Callable[..., Any] = found
    return function


def found_at(target: str, what: str) -> Any:
    """Import what module:name names; ``what`` it should be is said where it names nothing."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise Refusal(f"{target!r} names no {what}: give module:{what}.")
    say(f"Importing {module} and calling {name}.", stderr)
    sys.path.insert(0, os.getcwd())
    try:
        with redirect_stdout(sys.stderr):
            found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        if (end := signal_behind(error)) is not None:
            raise end from error
        said = f"{target} cannot be imported: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            said += ". Modules are looked for in the current folder and in the environment."
        raise Refusal(said) from error
    finally:
        sys.path.pop(0)
    return found
