"""Model files that commands are given, and the certificates that `learn` wrote beside them."""

from pathlib import Path
from typing import Any, cast

import numpy as np

from unsoftmax.campaign import Recovery
from unsoftmax.campaign.recovery import MODEL_FILE, RECOVERY_FILE
from unsoftmax.cli.console import Refusal
from unsoftmax.models import FeedForward, from_checkpoint, has_parameters, load, load_weights
from unsoftmax.models.checkpoint import PARTS, Part
from unsoftmax.models.files import is_model


def numbers_in(path: Path, flag: str) -> Any:
    """Read the array of an .npy file that an option names."""
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Refusal(f"{flag} {path} is no .npy file of numbers: {error}") from error


def model_path(path: Path) -> Path:
    """Return a file, or the model that a folder holds."""
    inside = path / MODEL_FILE
    return inside if path.is_dir() and inside.is_file() else path


def model_of(path: Path) -> Any:
    """Load a model.

    Raises
    ------
    Refusal
        It is no model of unsoftmax.
    """
    if path.is_dir():
        raise Refusal(f"{path} is a folder without a {MODEL_FILE}.")
    try:
        if path.suffix == ".npz":
            raise Refusal(_how(path))
        return load(path)
    except (ValueError, OSError) as error:
        raise Refusal(str(error)) from error


def claimed_model(path: Path, layers: str | None, part: str | None) -> Any:
    """Load what a target should serve: a model, or blocks of a checkpoint.

    Raises
    ------
    Refusal
        It is neither a model of unsoftmax nor a checkpoint whose blocks are known.
    """
    folder = path if path.is_dir() else path.parent
    if (folder / "config.json").is_file() and not is_model(path):
        try:
            return from_checkpoint(path, layers, cast(Part, part or "block"))
        except (ValueError, OSError) as error:
            raise Refusal(str(error)) from error
    if layers is not None or part is not None:
        raise Refusal(
            f"--layers and --part choose blocks of a checkpoint, and {folder} has no config.json: "
            "leave them out, or name the checkpoint's folder."
        )
    return model_of(path)


def other_parts(model: Any, path: Path, layers: str | None, part: str | None) -> dict[str, Any]:
    """Return what else an endpoint of one block of a checkpoint may compute, by name."""
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").is_file() or is_model(path):
        return {}
    block = model if part in (None, "block") else claimed_model(path, layers, "block")
    if [type(one) for one in block.parts].count(FeedForward) != 1:
        return {}  # several blocks
    parts = dict(zip(PARTS, (block, *block.parts), strict=True))
    return {name: one for name, one in parts.items() if name != (part or "block")}


def certified_errors(path: Path) -> dict[str, float]:
    """Return the certificate's bounds on a model that `learn` wrote; none on others.

    Raises
    ------
    Refusal
        The recovery beside it cannot be read.
    """
    if path.name != MODEL_FILE or not path.with_name(RECOVERY_FILE).is_file():
        return {}
    try:
        recovery = Recovery.load(path.parent)
    except (ValueError, OSError) as error:
        raise Refusal(str(error)) from error
    # without a hold-out nothing shows that the target is of the class that it is about
    return dict(recovery.certificate.errors) if recovery.evidence.passed else {}


def _how(path: Path) -> str:
    """Say how a file of arrays becomes a model."""
    if has_parameters(load_weights(path)):
        what, options = "parameters", ""
    else:
        what, options = "own arrays", " --heads H"
    return (
        f"{path} holds a model's {what}. Make a model file of them: unsoftmax convert {path}"
        f"{options} --out model.safetensors"
    )
