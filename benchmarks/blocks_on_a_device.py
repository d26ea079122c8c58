"""Whether `verify` knows right and wrong blocks where they are served: transformers' on a GPU.

Prints a table and writes it, with the date, the commit and the device, to a markdown file. Models
of random weights run as transformers runs them, from input embeddings through their blocks, in each
arithmetic that a GPU has; the claim is their saved checkpoint. A right one serves these weights,
a wrong one others: one matrix moved in a random direction by a share of its norm, a tenth of a
matrix pruned, or a matrix held as int8.

Needs torch and transformers; `--minilm` takes a folder with all-MiniLM-L6-v2's checkpoint besides.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import unsoftmax as us
from measuring import ROOT, environment, publish, table
from unsoftmax.probes import Array

Tensor = Any
FAMILIES = ("Bert", "OPT", "Llama", "Qwen3")
Task = Callable[[], dict[str, Any]]
SMALL = ((64, 4, 1), (64, 4, 3), (64, 4, 6))
"""Dimensions of a token, heads, blocks."""
MINILM = ((384, 12, 1), (384, 12, 3), (384, 12, 6))
LARGE = ((512, 8, 1),)
ARITHMETICS = {
    "float32": torch.float32,
    "TF32": torch.float32,
    "autocast": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
CHANGES: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "none": None,
    "1e-3": lambda x, drawn: x + 1e-3 * x.norm() * drawn / drawn.norm(),
    "1e-2": lambda x, drawn: x + 1e-2 * x.norm() * drawn / drawn.norm(),
    "pruned": lambda x, _: torch.where(
        x.abs() < x.abs().flatten().sort()[0][x.numel() // 10], 0, x
    ),
    "int8": lambda x, _: (x / (s := x.abs().amax(1, keepdim=True) / 127)).round() * s,
}
"""Of one matrix."""


@dataclass(frozen=True)
class Case:
    """One service: what it is, how it computes, and what of it is wrong."""

    family: str
    shape: tuple[int, int, int]
    arithmetic: str
    attention: str
    change: str
    seed: int
    device: str


def drawn_model(case: Case) -> Any:
    """Return a model with random weights and biases, and no norm behind its last block."""
    dim, heads, blocks = case.shape
    said: dict[str, Any] = {
        **{"hidden_size": dim, "num_attention_heads": heads, "num_hidden_layers": blocks},
        **{"vocab_size": 8, "attn_implementation": case.attention},
    }
    if case.family == "OPT":
        said |= {"ffn_dim": 2 * dim, "word_embed_proj_dim": dim, "_remove_final_layer_norm": True}
    else:
        said["intermediate_size"] = 2 * dim
    if case.family in ("Llama", "Qwen3"):
        said |= {"num_key_value_heads": heads // 2, "head_dim": dim // heads}
    config = getattr(transformers, f"{case.family}Config")(**said)
    model = getattr(transformers, f"{case.family}Model")(config).eval()
    generator = torch.Generator().manual_seed(case.seed)
    for name, x in model.named_parameters():
        drawn = torch.randn(x.shape, generator=generator)
        if x.ndim > 1:
            x.data = drawn / x.shape[-1] ** 0.5 if "embed" not in name else 0 * drawn
        else:
            x.data = 0.1 * drawn if name.endswith("bias") else 1 + 0.2 * drawn
    return model


def change(model: Any, case: Case) -> str:
    """Change a matrix of a block, chosen at random; return its name."""
    of = CHANGES[case.change]
    if of is None:
        return ""
    rng = np.random.default_rng([case.seed, 7])
    named = {n: x for n, x in model.named_parameters() if x.ndim == 2 and "layer" in n}
    name = sorted(named)[rng.integers(len(named))]
    drawn = torch.from_numpy(rng.standard_normal(named[name].shape)).float()
    named[name].data = of(named[name].data, drawn)
    return str(name)


def served(folder: str, case: Case) -> Callable[[Array], Array]:
    """Return the service: hidden states (B, N, d) to the last block's, at the last position."""
    inside = ARITHMETICS[case.arithmetic]
    torch.backends.cuda.matmul.allow_tf32 = case.arithmetic == "TF32"
    model: Any = transformers.AutoModel.from_pretrained(
        folder, dtype=inside, attn_implementation=case.attention
    )
    model = model.eval().to(case.device)
    if case.family in ("Llama", "Qwen3"):
        model.norm = torch.nn.Identity()
    run = model.encoder if case.family in ("Bert", "MiniLM") else partial(_from_states, model)

    def answer(X: Array) -> Array:
        given = torch.from_numpy(X).to(case.device, inside)
        half = torch.autocast(case.device, torch.bfloat16)
        with torch.no_grad(), half if case.arithmetic == "autocast" else contextlib.nullcontext():
            told: Tensor = run(given).last_hidden_state[:, -1]
        return np.asarray(told.float().cpu().numpy())

    return answer


def _from_states(model: Any, states: Tensor) -> Any:
    return model(inputs_embeds=states, use_cache=False)


def asked(case: Case, minilm: str | None) -> dict[str, Any]:
    """Verify one service; of the matrix that was changed say whether it is named."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    blocks = case.shape[2]
    if case.family == "MiniLM":
        claim = us.from_checkpoint(str(minilm), slice(blocks))
        model = transformers.BertModel.from_pretrained(minilm)
        model.encoder.layer, model.config.num_hidden_layers = model.encoder.layer[:blocks], blocks
    else:
        model = drawn_model(case)
    with tempfile.TemporaryDirectory() as folder:
        if case.family != "MiniLM":
            model.save_pretrained(folder)
            claim = us.from_checkpoint(folder)
        name = change(model, case)
        model.save_pretrained(folder)
        result = us.verify(served(folder, case), claim, seed=case.seed)
    names = [one.partition(" held as ")[0] for one in (result.tensor or "").split(" or ")]
    return {
        **vars(case),
        **{"verdict": result.verdict, "held": result.held, "tensor": result.tensor},
        **{"changed": name, "named": name in names},
        **{"power": result.power.get(name), "queries": result.queries},
        "median power": float(np.median([x for x in result.power.values() if np.isfinite(x)])),
    }


def main() -> None:
    """Ask all services, or read what they said, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=2, help="models of each small kind")
    parser.add_argument("--minilm", help="a folder with its checkpoint")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--said", type=Path, default=ROOT / "build/blocks_on_a_device.jsonl")
    parser.add_argument("--read", action="store_true", help="the page from what was said alone")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/benchmarks/blocks_on_a_device.md")
    given = parser.parse_args()
    if not given.read:
        given.said.parent.mkdir(exist_ok=True)
        name = torch.cuda.get_device_name() if given.device == "cuda" else "the processor"
        where = (
            f"On one {name}, torch {torch.__version__}, transformers {transformers.__version__}."
        )
        tasks = tasks_of(given.device, given.seeds, given.minilm)
        with (
            given.said.open("w") as file,
            ProcessPoolExecutor(given.processes, get_context("spawn")) as pool,
        ):
            print(json.dumps(f"{environment()} {where}"), file=file)
            for one in as_completed([pool.submit(task) for task in tasks]):
                said = one.exception() or json.dumps(one.result())
                print(said, file=sys.stderr if one.exception() else file, flush=True)
    where, *found = map(json.loads, given.said.read_text().splitlines())
    right = [one for one in found if not one["changed"]]
    parts = [TITLE, where, ABOUT, "## Right weights", table(("served", *FIRST), rows_of(right))]
    parts += ["## One matrix is wrong", table(("matrix", "arithmetic", *SECOND), by_change(found))]
    publish("\n\n".join((*parts, READ)) + "\n", given.out)


def tasks_of(device: str, seeds: int, minilm: str | None) -> list[Task]:
    """Return what is asked: small models first, of larger ones fewer."""
    every = {
        shape: [
            Case(family, shape, arithmetic, attention, change, seed, device)
            for seed in range(seeds if shape in SMALL else 1)
            for family in (("MiniLM",) if shape in MINILM else FAMILIES)
            for arithmetic in ARITHMETICS
            for attention in ("eager", "sdpa")
            for change in (CHANGES if shape in SMALL else ("none", "1e-2"))
        ]
        for shape in (*SMALL, *(MINILM if minilm else ()), *LARGE)
    }
    return [partial(asked, case, minilm) for of in every.values() for case in of]


VERDICTS = ("same", "undecided", "different")
FIRST = ("arithmetic", *VERDICTS, "computed likewise", "power")
SECOND = (*VERDICTS, "named", "misnamed", "same beyond its power")


def rows_of(found: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each shape and arithmetic, of right services."""
    rows: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for one in sorted(
        found, key=lambda one: (one["shape"], list(ARITHMETICS).index(one["arithmetic"]))
    ):
        dim, _, blocks = one["shape"]
        kind = "MiniLM" if one["family"] == "MiniLM" else "random"
        many = f"{blocks} block{'s' * (blocks > 1)}"
        rows[f"{kind}, d = {dim}, {many}", one["arithmetic"]].append(one)
    told = []
    for key, of in rows.items():
        counts = Counter(one["verdict"] for one in of)
        likewise = sum("computed" in (one["held"] or "") for one in of)
        power = np.median([one["median power"] for one in of])
        cells = [*(counts[verdict] for verdict in VERDICTS), likewise]
        told.append([*key, *map(str, cells), f"{power:.1e}"])
    return told


def by_change(found: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each change and arithmetic, of wrong services."""
    told = []
    for change, arithmetic in product(list(CHANGES)[1:], ARITHMETICS):
        of = [one for one in found if (one["change"], one["arithmetic"]) == (change, arithmetic)]
        counts = Counter(one["verdict"] for one in of)
        names = Counter(one["named"] for one in of if one["tensor"])
        step = float(change) if change[0].isdecimal() else 0.0
        beyond = sum(one["verdict"] == "same" and one["power"] < step for one in of)
        cells = [*(counts[verdict] for verdict in VERDICTS), names[True], names[False], beyond]
        told.append([change, arithmetic, *map(str, cells)])
    return told


TITLE = "# Whole blocks on a GPU: `verify` of transformers' own modules"
ABOUT = """\
Random models like Bert, OPT, Llama and Qwen3, and trained all-MiniLM-L6-v2, with attention "eager"
and "sdpa", from input embeddings to the last block's hidden states. A cell counts services, 20
questions each and up to 60 more for a name. *TF32*: float32 with `allow_tf32`; *autocast*: float32
weights under `torch.autocast` to bfloat16. *power*: the median over tensors of the relative change
that would have shown. `python benchmarks/blocks_on_a_device.py --help` says how."""
READ = """\
*One matrix is wrong*: moved in a random direction by a share of its norm, its smallest tenth set to
0, or held as int8 per channel. No right service is different; six blocks of MiniLM in 16 bits stay
undecided, as on a processor. No wrong one is the same with a `power` below its change, and every
name is right. Behind bfloat16 changes of 1 %, int8 and a tenth pruned of one matrix hide: `power`
says so."""

if __name__ == "__main__":
    main()
