"""`unsoftmax convert`: a model's own weights as one of our models."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import unsoftmax as us
from unsoftmax.cli.console import AsJson, Refusal, show_json, show_table, with_exit_status


@with_exit_status
def convert(
    weights: Annotated[
        Path,
        typer.Argument(
            help="A .npz or .safetensors, or a checkpoint's folder.",
            metavar="WEIGHTS",
            show_default=False,
        ),
    ],
    *,
    heads: Annotated[
        int | None, typer.Option(min=1, help="Number of heads. Needed for q, k, v and o.")
    ] = None,
    coordinate: Annotated[
        int | None,
        typer.Option(min=0, help="One output coordinate; without it, the layer with all of them."),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            help="Prefix of the layer's names, or its number in a checkpoint, if there are several."
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Of a checkpoint: block, attention or feed-forward.")
    ] = None,
    activation: Annotated[
        str | None,
        typer.Option(help="Of a feed-forward layer without config.json: gelu, silu, relu, …"),
    ] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option(min=1, help="Number of key and value heads, if query heads share them."),
    ] = None,
    norm_eps: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="eps of the layer's LayerNorm or RMSNorm: include it and the residual connection.",
        ),
    ] = None,
    norm_before: Annotated[
        bool | None,
        typer.Option(
            "--norm-before/--norm-behind", help="Where that norm is, if the names do not say."
        ),
    ] = None,
    rotary_base: Annotated[
        float | None,
        typer.Option(help="Base of rotary positions, rope_theta in a model's configuration."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(help="Rows of a rotary plane: halves (transformers) or interleaved (GGUF)."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the model is written.")] = Path(
        "model.safetensors"
    ),
    as_json: AsJson = False,
) -> None:
    """Turn weights (W and v; or torch, BERT, Llama, OPT names) into a model file.

    A layer of a checkpoint, as config.json beside its weights describes it: with --part.
    """
    from unsoftmax.models import has_parameters

    options: dict[str, Any] = {"heads": heads, "coordinate": coordinate, "kv_heads": kv_heads}
    options |= {"layer": layer, "norm_eps": norm_eps, "norm_before": norm_before}
    options |= {"rotary_base": rotary_base, "layout": layout, "activation": activation}
    try:
        if part is not None or weights.is_dir():
            model, arrays, left_out = _of_part(weights, part or "block", options)
        else:
            opened = us.load_weights(weights)
            made = _of_parameters if has_parameters(opened) else _of_projections
            model, arrays, left_out = made(opened, options)
        model.save(out)
    except (ValueError, OSError) as error:
        raise Refusal(_in_options(str(error))) from error
    if as_json:
        show_json({"model": repr(model), "file": str(out), "left_out": left_out})
        return
    rows = [("model", repr(model)), *(("left out", line) for line in left_out)]
    rows += [(name, str(getattr(array, "shape", array))) for name, array in arrays.items()]
    show_table(f"{weights} as {out}", rows)


def _in_options(said: str) -> str:
    """Name options as the command line has them."""
    for mine, theirs in (
        (
            "us.from_checkpoint takes the checkpoint's folder",
            "give the checkpoint's folder and --part attention",
        ),
        ("looked for q", "looked for W and v, for A, b, B and c, for q"),
        ("give kv_heads", "give --kv-heads"),
        ("layers are there: name one of", "layers are there: name one with --layer:"),
        ("leave coordinate out", "leave --coordinate out"),
        ("Without eps", "Without --norm-eps"),
        ("give eps with it", "give --norm-eps with --norm-before or --norm-behind"),
        ("No array says the activation:", "--activation is missing, and no array says it:"),
        (
            "before says where the norm is: give eps",
            "--norm-before is of the norm: give --norm-eps",
        ),
        ("say before, True or False", "say --norm-before or --norm-behind"),
        ("before says where", "--norm-before says where"),
        ("say before", "say --norm-before or --norm-behind"),
    ):
        said = said.replace(mine, theirs)
    return said


def _of_parameters(
    opened: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, Mapping[str, Any], list[str]]:
    """Take arrays that are a model's parameters as they are."""
    from unsoftmax.models import from_parameters

    arrays = {name: opened[name] for name in sorted(opened)}
    model = from_parameters(arrays)
    fits = ("heads",) if getattr(model, "H", 1) == options["heads"] else ()
    _refuse_needless(options, fits, f"The arrays are the parameters of {model!r}")
    return model, arrays, []


def _refuse_needless(options: Mapping[str, Any], used: Collection[str], why: str) -> None:
    for name, value in options.items():
        if value is not None and name not in used:
            raise Refusal(f"{why}: leave out --{name.replace('_', '-')}.")


def _of_part(
    weights: Path, part: str, options: Mapping[str, Any]
) -> tuple[Any, Mapping[str, Any], list[str]]:
    """Make a checkpoint's layer as its configuration says; without one, neurons by their names."""
    from unsoftmax.models.checkpoint import find_feed_forward

    layer = options["layer"]
    folder = weights if weights.is_dir() else weights.parent
    if part != "feed-forward" or weights.is_dir() or (folder / "config.json").is_file():
        _refuse_needless(options, ("layer",), "config.json says the rest")
        number = None if layer is None else layer.rstrip(".").rpartition(".")[2]
        model = us.from_checkpoint(weights, number, part)  # type: ignore[arg-type]
    else:
        used = ("layer", "activation", "norm_eps", "norm_before")
        _refuse_needless(options, used, "It is a feed-forward layer")
        names = (options[name] for name in used)
        model = find_feed_forward(us.load_weights(weights), *names)
    return model, model.arrays(), []


def _of_projections(
    opened: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, Mapping[str, Any], list[str]]:
    """Make a layer, or the heads that one of its outputs shows, of its projections."""
    from unsoftmax.models.projections import may_be_rotary

    if options["activation"] is not None:
        raise Refusal("--activation is of feed-forward layers: add --part feed-forward.")
    arrays = us.find_projections(
        opened, options["layer"], options["norm_eps"], options["norm_before"]
    )
    if options["heads"] is None:
        raise Refusal("--heads is missing: the number of heads of the layer.")
    turned = options["rotary_base"] is not None
    if options["layout"] is not None and not turned:
        raise Refusal("--layout says which rows turn: give --rotary-base with it.")
    names = ("heads", "coordinate", "kv_heads", "rotary_base", "layout")
    given = {name: options[name] for name in names if options[name] is not None}
    model = us.from_projections(**arrays, **given)
    needless = "k_bias" in arrays and not turned
    left_out = ["k_bias: no answer depends on it"] if needless else []
    if may_be_rotary(opened) and not turned:
        left_out.append(
            "rotary positions: models with such names turn queries and keys by their positions, "
            "and then this model is another function than the layer; --rotary-base takes them in"
        )
    return model, arrays, left_out
