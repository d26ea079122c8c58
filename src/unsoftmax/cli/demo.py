"""`unsoftmax demo`: real trained heads recovered and compared with their weights."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

import unsoftmax as us
from unsoftmax.cli import console
from unsoftmax.cli.out_folder import WithReport, and_more, finish, prepare

if TYPE_CHECKING:
    from unsoftmax.probes import Array
    from unsoftmax.protocol import Learner


@console.with_exit_status
def demo(
    *,
    model: Annotated[
        Literal["exact", "low-rank", "multi-head", "layer"] | None,
        typer.Option(
            help="Recover one head this way (by default both ways), all 12 from one output, or the "
            "whole layer with residual and LayerNorm from all outputs."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the model, the numbers and a picture.")] = (
        Path("demo")
    ),
    report: WithReport = True,
    as_json: console.AsJson = False,
) -> None:
    """Recover attention heads of all-MiniLM-L6-v2 from their answers alone.

    The learner sees a function; the true weights are only compared with at the end.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise console.Refusal("The demo draws a picture: pip install 'unsoftmax[report]'")
    prepare(out, ("model.safetensors", "recovery.json", "recovery.png"))
    case = {"multi-head": _all_heads, "layer": _whole_layer}.get(model or "")
    _shown(_one_head(model) if case is None else case(), out, report, as_json)


@dataclass(frozen=True, slots=True)
class _Case:
    """What is recovered, how, and how that is drawn beside the truth."""

    title: str
    truth: Any
    learners: Mapping[str, Learner[Any]]
    """By --model; the last one's results are in the folder itself."""
    draw: Callable[[Any, Path], None]
    heads: Callable[[Any], int] | None = None
    """Counts them, where their number is a result."""


def _one_head(model: str | None) -> _Case:
    from unsoftmax.cli.minilm import minilm_head
    from unsoftmax.figures.model_panels import draw_head

    truth = minilm_head()
    learners: dict[str, Learner[us.SingleHead]] = {
        "low-rank": us.learners.LowRankHead(truth.dim, rank=len(truth.arrays()["K"]), biases=True),
        "exact": us.learners.ExactHead(truth.dim, biases=True),
    }
    return _Case(
        "layer 0, head 0, coordinate 0 (d = 384, r = 32)",
        truth,
        {name: learner for name, learner in learners.items() if model in (None, name)},
        lambda found, path: draw_head(truth, found, path),
    )


def _all_heads() -> _Case:
    from unsoftmax.cli.minilm import minilm_heads
    from unsoftmax.figures.model_panels import draw_heads

    truth = minilm_heads()
    return _Case(
        "layer 0, all 12 heads, coordinate 0 (d = 384, r = 32)",
        truth,
        {"multi-head": us.learners.MultiHeadLearner(truth.dim, max_heads=16, biases=True)},
        lambda found, path: draw_heads(truth, _in_order(found, truth), path),
        heads=lambda found: len(found.v),
    )


def _whole_layer() -> _Case:
    from unsoftmax.cli.minilm import minilm_layer
    from unsoftmax.figures.model_panels import draw_heads

    truth = minilm_layer(whole=True)
    known = us.canonical(truth)
    return _Case(
        "layer 0: attention, residual and LayerNorm (d = 384, 12 heads of 32)",
        truth,
        {"attention-layer": us.learners.AttentionLayerLearner(truth.dim)},
        lambda found, path: draw_heads(known, _beside(found, known), path),
        heads=lambda found: int(found.H),
    )


def _shown(case: _Case, out: Path, report: bool, as_json: bool) -> None:
    """Recover, write and show."""
    from unsoftmax.campaign.recovery import RECOVERY_FILE

    runs = {name: _run(case.truth, learner) for name, learner in case.learners.items()}
    first = list(runs)[-1]
    for name, run in runs.items():
        folder = out if name == first else out / name
        run.recovery.save(folder)
        case.draw(run.recovery.model, folder / "recovery.png")
        drawn = finish(folder, RECOVERY_FILE, report=report)
    heads = {} if case.heads is None else {"heads": case.heads(runs[first].recovery.model)}
    if as_json:
        beside = {name: run.to_json() for name, run in runs.items() if name != first}
        console.show_json({**runs[first].to_json(), **beside, **heads, "out": str(out)})
        return
    counted = [(f"{name} found", str(count)) for name, count in heads.items()]
    columns = {f"--model {name}": [*counted, *run.rows()] for name, run in runs.items()}
    console.show_columns(f"all-MiniLM-L6-v2, {case.title}", columns)
    for name, run in runs.items():
        console.say_notes(run.recovery.notes, "Note" if heads else f"Note ({name})")
    same = "".join(f"; {out}/{name}/ the same" for name in runs if name != first)
    files = "model.safetensors, recovery.json, recovery.png"
    console.say(f"Written: {out}/{files}{and_more(drawn)}{same}", soft_wrap=True)


def _beside(found: us.AttentionLayer, truth: us.AttentionLayer) -> us.AttentionLayer:
    """Order the canonical heads found as the true ones they are nearest to."""
    from unsoftmax.models.products import distances

    found = us.canonical(found)
    apart = distances([head.scores for head in truth.heads], [head.scores for head in found.heads])
    heads = [found.heads[h] for h in np.argmin(apart, axis=1)]
    return us.AttentionLayer(heads, found.c, found.residual, found.norm)


def _in_order(found: us.MultiHead, truth: us.MultiHead) -> us.MultiHead:
    """Order the heads found as the true ones they are nearest to."""
    W = truth.W.reshape(len(truth.v), -1)
    nearest = [int(np.argmin(np.linalg.norm(W - head.ravel(), axis=1))) for head in found.W]
    order = np.argsort(nearest, kind="stable")
    return us.MultiHead(found.W[order], found.v[order], found.w[order], found.c)


@dataclass(frozen=True, slots=True)
class _Run:
    """A recovery beside the truth, which only the demo knows."""

    recovery: us.Recovery[Any]
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
        [(_, count), *rest] = console.query_rows(self.recovery, self.formula)
        rows = [("queries", count), ("formula", self.formula), *rest]
        for name, error in self.errors.items():
            bound = self.recovery.certificate.errors[name] / self.recovery.model.parameter_norm(
                name
            )
            rows.append((f"error of {name} (certified)", f"{error:.1e} (≤ {bound:.1e})"))
        evidence = self.recovery.evidence
        passed = "passed" if evidence.passed else "not passed"
        rows.append(("hold-out error", f"{evidence.max_residual:.1e}, {passed}"))
        return [*rows, ("seconds (the target)", f"{self.seconds:.1f} ({self.seconds_target:.1f})")]


def _run(truth: us.SingleHead | us.MultiHead | us.AttentionLayer, learner: Learner[Any]) -> _Run:
    """Learn what is behind a function, and only then compare."""
    spent = 0.0

    def target(X: Array) -> Array:
        nonlocal spent
        began = time.perf_counter()
        answers = truth(X)
        spent += time.perf_counter() - began
        return answers

    began = time.perf_counter()
    with console.watching() as watcher:
        recovery = us.learn(target, learner, progress=watcher)
    seconds = time.perf_counter() - began
    return _Run(recovery, learner.plan().formula, _errors(recovery.model, truth), seconds, spent)


def _errors(found: Any, truth: Any) -> dict[str, float]:
    """Return relative errors of what the function determines, the largest over heads.

    They are infinite where a head is missing, or the norm of a layer.
    """
    layer = isinstance(truth, us.AttentionLayer)
    names = "MWwc" if layer else "Wvw"
    if isinstance(truth, us.SingleHead):
        return {name: _relative(getattr(found, name), getattr(truth, name)) for name in names}
    truth = us.canonical(truth) if layer else truth
    if found.H != truth.H or (layer and (found.norm is None) != (truth.norm is None)):
        return dict.fromkeys(names, float("inf"))
    found = _beside(found, truth) if layer else _in_order(found, truth)
    pairs = list(zip(found.heads, truth.heads, strict=True))
    errors = {
        name: max(_relative(getattr(mine, name), getattr(true, name)) for mine, true in pairs)
        for name in names[:3]
    }
    if layer:
        errors["c"] = _relative(found.c, truth.c)
        norms = () if truth.norm is None else ("scale", "shift", "eps")
        errors |= {n: _relative(found.norm.arrays()[n], truth.norm.arrays()[n]) for n in norms}
    return errors


def _relative(found: Array, true: Array) -> float:
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))
