"""`unsoftmax convert`: a model's own weights as one of our models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unsoftmax.cli.console import AsJson, Refusal, show_json, show_table, with_exit_status
from unsoftmax.models import find_projections, from_projections, load_weights
from unsoftmax.models.projections import may_be_rotary


@with_exit_status
def convert(
    weights: Annotated[
        Path, typer.Argument(help="A .npz or .safetensors.", metavar="WEIGHTS", show_default=False)
    ],
    *,
    heads: Annotated[int, typer.Option(min=1, help="Number of heads.", show_default=False)],
    coordinate: Annotated[
        int | None, typer.Option(min=0, help="The output coordinate that is asked for.")
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="What the layer's names begin with, where there are several.")
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Key and value heads, where query heads share them.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the model is written.")] = Path(
        "model.safetensors"
    ),
    as_json: AsJson = False,
) -> None:
    """Turn a model's own attention weights (torch, BERT, Llama, OPT names) into a model file."""
    try:
        opened = load_weights(weights)
        arrays = find_projections(opened, layer)
        model = from_projections(**arrays, heads=heads, kv_heads=kv_heads, coordinate=coordinate)
        model.save(out)
    except (ValueError, OSError) as error:
        raise Refusal(
            str(error).replace("coordinate is missing", "--coordinate is missing")
        ) from error
    left_out = ["k_bias: no answer depends on it"] if "k_bias" in arrays else []
    if may_be_rotary(opened):
        left_out.append(
            "rotary positions: models with such names turn queries and keys by their positions, "
            "and then this model is another function than the layer"
        )
    if as_json:
        show_json({"model": repr(model), "file": str(out), "left_out": left_out})
        return
    rows = [(name, str(array.shape)) for name, array in arrays.items()]
    rows += [("model", repr(model)), *(("left out", line) for line in left_out)]
    show_table(f"{weights} as {out}", rows)
