"""`unsoftmax compare`: whether two model files hold the same function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import unsoftmax as us
from unsoftmax.cli.console import AsJson, say, show_json, show_table, with_exit_status

if TYPE_CHECKING:
    from unsoftmax.models.model import FrozenModel
    from unsoftmax.probes import Array

_BY_CERTIFICATE = {
    "equal": "the same within the certificate",
    "undecided": "undecided: the certificate is too wide to tell",
    "different": "different: further apart than the certificate allows",
}
_STATUS = {"equal": 0, "different": 1, "undecided": 3}


@with_exit_status
def compare(
    a: Annotated[Path, typer.Argument(help="A model.safetensors.", metavar="A")],
    b: Annotated[Path, typer.Argument(help="Another one.", metavar="B")],
    *,
    rtol: Annotated[float, typer.Option(min=0, help="Relative tolerance; 0 is exact.")] = 1e-9,
    atol: Annotated[float, typer.Option(min=0, help="Absolute tolerance.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Say whether two models compute the same function: 0 equal, 1 different, 3 undecided.

    Where `learn` wrote a model, the certificate beside it counts: a model that differs by no more
    than the bounds is the same, and one that differs by more is different, unless --rtol 0 asks
    for exact equality.
    """
    from unsoftmax.cli.model_files import model_of, model_path

    a, b = model_path(a), model_path(b)
    first, second = model_of(a), model_of(b)
    errors = _bounds(a, b) if rtol or atol else None
    result = us.equivalent(first, second, rtol, atol, errors=errors)
    values = None
    if result.witness is not None:
        values = _told_apart(first, second, result.witness)
    if as_json:
        show_json(_as_json(result, values))
    else:
        rows = _rows(result, values)
        if first.dim != second.dim:
            rows[2] = ("dimensions", f"{first.dim} and {second.dim}")
        elif said := _other_answers(first, second):
            rows[2] = ("answers", said)
        say(f"{a} and {b}", soft_wrap=True)
        show_table("", rows)
    raise typer.Exit(_STATUS[result.verdict])


def _told_apart(first: FrozenModel, second: FrozenModel, witness: Array) -> list[float]:
    """Return two answers to a sequence, of vectors the numbers that differ most."""
    answers = np.array([np.ravel(model(witness[None])) for model in (first, second)])
    most = int(np.argmax(np.abs(answers[0] - answers[1])))
    return [float(value) for value in answers[:, most]]


def _other_answers(*models: FrozenModel) -> str | None:
    """Say that one model answers with vectors and the other with one number, if that is so."""
    sizes = [np.shape(model(np.zeros((1, 1, model.dim))))[1:] for model in models]
    if len({*map(len, sizes)}) == 1:
        return None
    first, second = (f"vectors of {size[0]} numbers" if size else "one number" for size in sizes)
    return (
        f"{first} and {second}: a whole layer, and what may be one number of its answers. "
        "`unsoftmax convert --coordinate` makes the model of one number"
    )


def _bounds(*paths: Path) -> dict[str, float]:
    """Add up the certificates' bounds of the models that `learn` wrote."""
    from unsoftmax.cli.model_files import certified_errors

    errors: dict[str, float] = {}
    for path in paths:
        for name, error in certified_errors(path).items():
            errors[name] = errors.get(name, 0.0) + error
    return errors


def _as_json(result: us.Equivalence, values: list[float] | None) -> dict[str, Any]:
    return {
        "verdict": result.verdict,
        "by": result.by,
        "share": result.share,
        "gap": result.gap if np.isfinite(result.gap) else None,
        "witness": None if result.witness is None else result.witness.tolist(),
        "answers": values,
    }


def _rows(result: us.Equivalence, values: list[float] | None) -> list[tuple[str, str]]:
    named = _BY_CERTIFICATE if result.by == "certificate" else {}
    said = named.get(result.verdict, result.verdict)
    rows = [
        ("verdict", said),
        ("decided by", result.by),
        ("largest relative difference of parameters", f"{result.gap:.1e}"),
    ]
    if result.share is not None:
        rows.append(("largest difference", f"{result.share:.3g} times what the certificate allows"))
    if values is not None and result.witness is not None:
        told = f"answers to a sequence of {len(result.witness)} that tells them apart"
        if result.share is not None:
            told = f"answers to a sequence of {len(result.witness)}, for illustration"
        rows.append((told, f"{values[0]:.17g} and {values[1]:.17g}"))
    return rows
