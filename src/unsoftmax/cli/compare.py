"""`unsoftmax compare`: whether two model files hold the same function."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from unsoftmax.campaign import Recovery
from unsoftmax.campaign.recovery import MODEL_FILE, RECOVERY_FILE
from unsoftmax.cli.console import AsJson, Refusal, show_json, show_table, stdout, with_exit_status
from unsoftmax.cli.model_file import opened
from unsoftmax.models import Equivalence, equivalent

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
    first, second = opened(a), opened(b)
    try:
        errors = _bounds(a, b) if rtol or atol else None
    except (ValueError, OSError) as error:
        raise Refusal(str(error)) from error
    result = equivalent(first, second, rtol, atol, errors=errors)
    values = None
    if result.witness is not None:
        values = [float(model(result.witness[None])[0]) for model in (first, second)]
    if as_json:
        show_json(_as_json(result, values))
    else:
        rows = _rows(result, values)
        if first.dim != second.dim:
            rows[2] = ("dimensions", f"{first.dim} and {second.dim}")
        stdout.print(f"{a} and {b}", markup=False, highlight=False, soft_wrap=True)
        show_table("", rows)
    raise typer.Exit(_STATUS[result.verdict])


def _bounds(*paths: Path) -> dict[str, float]:
    """Add up the certificates' bounds of the models that `learn` wrote."""
    errors: dict[str, float] = {}
    for path in paths:
        if path.name == MODEL_FILE and path.with_name(RECOVERY_FILE).is_file():
            recovery = Recovery.load(path.parent)
            # without a hold-out nothing shows that the target is of the class that it is about
            if recovery.evidence.passed:
                for name, error in recovery.certificate.errors.items():
                    errors[name] = errors.get(name, 0.0) + error
    return errors


def _as_json(result: Equivalence, values: list[float] | None) -> dict[str, Any]:
    return {
        "verdict": result.verdict,
        "by": result.by,
        "share": result.share,
        "gap": result.gap if np.isfinite(result.gap) else None,
        "witness": None if result.witness is None else result.witness.tolist(),
        "answers": values,
    }


def _rows(result: Equivalence, values: list[float] | None) -> list[tuple[str, str]]:
    named = _BY_CERTIFICATE if result.by == "certificate" else {}
    said = named.get(result.verdict, result.verdict)
    rows = [
        ("verdict", said),
        ("decided by", result.by),
        ("largest relative difference", f"{result.gap:.1e}"),
    ]
    if result.share is not None:
        rows.append(("largest difference", f"{result.share:.3g} times what the certificate allows"))
    if values is not None and result.witness is not None:
        told = f"answers to a sequence of {len(result.witness)} that tells them apart"
        if result.share is not None:
            told = f"answers to a sequence of {len(result.witness)}, for illustration"
        rows.append((told, f"{values[0]:.17g} and {values[1]:.17g}"))
    return rows
