"""What several heads before a ReLU network cost, and how exactly they are recovered.

Prints tables and writes them, with the date and the commit, to a markdown file:

1. random targets with all biases: queries counted by the oracle over the number of parameters and
   over 4Hd² − 2H + 1, what arXiv 2608.03294 asks for the heads alone, without biases; errors;
2. targets of which there is less to know: no biases, values of a network of d inputs, low rank;
3. without biases, beside the antisymmetric way, f(X) − f(−X) through `MultiHeadLearner`;
4. with --polish, d = 8 and H = 6 to the last bit, beside what ePrint 2026/1678 reports;
5. with --layer, an encoder layer of the package anarcii, if it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

import unsoftmax as us
from measuring import ROOT, Timed, environment, publish, table
from unsoftmax.probes import Array
from unsoftmax.theory import counts

SHAPES = ((2, 4, 8), (3, 4, 16), (6, 8, 32), (4, 16, 64))
LARGE = ((8, 32, 64),)
SAME_SIZES = """Beside ePrint 2026/1678, whose experiment has these d and H: it reports errors of at
most 2^-51. Its code and its targets are not public: these are other targets, with entries of W and
B of about 0.35, of w, b and w_o of about 1."""
EXAMPLE = ROOT / "examples" / "anarcii" / "antibody_layer.py"


@dataclass(frozen=True)
class Kind:
    """What targets have, beside their sizes."""

    name: str
    rank: int | None = None
    inputs: int | None = None
    values: int | None = None
    biases: bool = True
    residual: bool = False

    def target(self, H: int, d: int, m: int, seed: int) -> us.MultiHeadTransformer:
        """Draw one."""
        rng = np.random.default_rng([H, d, m, seed])
        r, k = self.rank or d, self.inputs or m
        K, Q = rng.standard_normal((2, H, r, d)) / np.sqrt(np.sqrt(d * r))
        if self.values is None:
            V = rng.standard_normal((H, k, d)) / np.sqrt(d)
        else:
            left = rng.standard_normal((H, k, self.values))
            right = rng.standard_normal((H, self.values, d))
            V = left @ right / np.sqrt(d * self.values)
        A = np.eye(m) if self.inputs is None else rng.standard_normal((m, k)) / np.sqrt(k)
        w_o, b, w, c = rng.standard_normal(m), None, None, 0.0
        if self.biases:
            b, c = rng.standard_normal(m), float(rng.standard_normal())
            w = np.einsum("hrd,hr->hd", K, rng.standard_normal((H, r)))
        R = rng.standard_normal((m, d)) / np.sqrt(d) if self.residual else None
        return us.MultiHeadTransformer(K.swapaxes(1, 2) @ Q, A @ V, w_o, b, w, c, R)

    def parameters(self, H: int, d: int, m: int) -> int:
        """Count what there is to find."""
        return counts.multi_head_transformer(
            d,
            H,
            m,
            self.rank,
            inputs=self.inputs,
            value_rank=self.values,
            biases=self.biases,
            residual=self.residual,
        )


@dataclass(frozen=True)
class Run:
    """What one recovery cost, as counted and timed outside the library."""

    queries: int
    W: float
    w: float
    B: float
    entries: float
    """Largest error of an entry of W, w and w_o[j]·(B[j], b[j])."""
    function: float
    bound: float
    seconds: float
    oracle: float


def rows_of(model: us.MultiHeadTransformer, order: Sequence[int]) -> Array:
    """Return w_o[j]·(B_1[j], …, B_H[j], R[j], b[j]) for each neuron, heads in another order."""
    B = model.B[[*order]].transpose(1, 0, 2).reshape(len(model.b), -1)
    R = np.zeros((len(B), 0)) if model.residual is None else model.residual
    return np.asarray(model.w_o[:, None] * np.column_stack([B, R, model.b]))


def errors(found: us.MultiHeadTransformer, true: us.MultiHeadTransformer) -> dict[str, float]:
    """Compare with the truth: the largest relative error of a head, of each kind of parameter."""
    apart = np.linalg.norm((found.W[:, None] - true.W).reshape(found.H, true.H, -1), axis=2)
    i, j = linear_sum_assignment(apart)
    place = i[np.argsort(j)].tolist()
    W = np.linalg.norm(found.W[place] - true.W, axis=(1, 2)) / np.linalg.norm(true.W, axis=(1, 2))
    sizes = np.linalg.norm(true.w, axis=1)
    w = np.linalg.norm(found.w[place] - true.w, axis=1) / np.where(sizes > 0, sizes, 1.0)
    # a neuron may be turned around, at the price of two more that carry a linear part
    mine, its = rows_of(found, place), rows_of(true, range(true.H))
    apart = np.array([mine[:, None] - its, mine[:, None] + its])
    far = np.linalg.norm(apart, axis=3).min(axis=0)
    k, n = linear_sum_assignment(far)
    assert len(n) == len(its)
    entries = [found.W[place] - true.W, found.w[place] - true.w, np.abs(apart).min(axis=0)[k, n]]
    return {
        "entries": max(float(np.abs(part).max()) for part in entries),
        "W": float(W.max()),
        "w": float(w.max()),
        "B": float(np.linalg.norm(far[k, n]) / np.linalg.norm(its)),
    }


def function_error(
    found: Callable[[Array], Array], true: Callable[[Array], Array], d: int
) -> float:
    """Return the largest miss of 600 sequences of 1 to 64 tokens over their answers' size."""
    rng = np.random.default_rng(5)
    missed, answers = [], []
    for tokens in (1, 2, 4, 8, 16, 64):
        X = rng.standard_normal((100, tokens, d))
        answers.append(true(X))
        missed.append(found(X) - answers[-1])
    return float(np.max(np.abs(missed)) / np.sqrt(np.mean(np.square(answers))))


def recover(target: us.MultiHeadTransformer, learner: Any) -> Run:
    oracle = Timed(target)
    start = time.perf_counter()
    recovery = us.learn(oracle, learner)
    seconds = time.perf_counter() - start
    found = recovery.model
    assert found.H == target.H
    return Run(
        oracle.queries,
        **errors(found, target),
        function=function_error(found, target, target.dim),
        bound=recovery.certificate.W_error / float(np.linalg.norm(target.W, axis=(1, 2)).max()),
        seconds=seconds,
        oracle=oracle.seconds,
    )


COLUMNS = ["H", "d", "m", "parameters", "queries", "over the parameters", "over 4Hd² − 2H + 1",
           "error of W", "of w", "of B", "of the function", "W certified", "seconds",
           "the target's"]  # fmt: skip


def bits(error: float) -> str:
    """Write an error as a power of two, rounded up."""
    return f"2^{int(np.ceil(np.log2(error)))}"


def row_of(H: int, d: int, m: int, parameters: int, runs: Sequence[Run]) -> list[str]:
    queries = median(run.queries for run in runs)
    largest = {
        name: max(getattr(run, name) for run in runs) for name in ("W", "w", "B", "function")
    }
    return [
        str(H),
        str(d),
        str(m),
        f"{parameters:,}",
        f"{queries:,.0f}",
        f"{queries / parameters:.2f}",
        f"{queries / (4 * H * d**2 - 2 * H + 1):.2f}",
        *(f"{error:.0e}" for error in largest.values()),
        f"{median(run.bound for run in runs):.0e}",
        f"{median(run.seconds for run in runs):.1f}",
        f"{median(run.oracle for run in runs):.1f}",
    ]


def runs_of(
    kind: Kind, sizes: tuple[int, int, int], seeds: int, **settings: Any
) -> tuple[list[Run], int]:
    """Recover a target per seed; return the runs, and how many were refused."""
    H, d, m = sizes
    runs, refused = [], 0
    for seed in range(seeds):
        learner = us.learners.MultiHeadTransformerLearner(d, H + 2, seed=seed, **settings)
        try:
            runs.append(recover(kind.target(H, d, m, seed), learner))
        except (us.ModelMismatch, us.NotIdentifiable):
            refused += 1
    return runs, refused


def biased(seeds: int, large: bool) -> str:
    kind, rows = Kind("all biases"), []
    for H, d, m in (*SHAPES, *(LARGE if large else ())):
        runs, refused = runs_of(kind, (H, d, m), seeds)
        rows.append([*row_of(H, d, m, kind.parameters(H, d, m), runs), str(refused)])
    return table([*COLUMNS, "refused"], rows)


def less(seeds: int, large: bool) -> str:
    kinds = [
        Kind("all biases"),
        Kind("no biases", biases=False),
        Kind("a residual", residual=True),
        Kind("W of rank 2", rank=2),
        Kind("a network of d inputs", inputs=8),
        Kind("the same, ranks 2", rank=2, inputs=8, values=2),
    ]
    sizes = [(6, 8, 32)] * len(kinds)
    if large:
        kinds.append(Kind("a network of d inputs, ranks 8", rank=8, inputs=64, values=8))
        sizes.append((8, 64, 256))
    rows = []
    for kind, (H, d, m) in zip(kinds, sizes, strict=True):
        runs, refused = runs_of(kind, (H, d, m), seeds)
        row = row_of(H, d, m, kind.parameters(H, d, m), runs)
        rows.append([kind.name, *row, str(refused)])
    return table(["target", *COLUMNS, "refused"], rows)


def antisymmetric(seeds: int) -> str:
    """Heads alone by f(X) − f(−X), beside the same heads with all that is behind them."""
    kind, rows = Kind("no biases", biases=False), []
    for H, d, m in SHAPES[1:]:
        whole, refused = runs_of(kind, (H, d, m), seeds)
        asked, W = [], []
        for seed in range(seeds):
            target = kind.target(H, d, m, seed)
            oracle = Timed(target)
            heads = us.learners.MultiHeadLearner(d, H + 2, seed=seed)
            found = us.learn(lambda X, o=oracle: o(X) - o(-X), heads).model
            apart = np.linalg.norm((found.W[:, None] - target.W).reshape(H, H, -1), axis=2)
            i, j = linear_sum_assignment(apart)
            W.append(np.max(apart[i, j] / np.linalg.norm(target.W, axis=(1, 2))[j]))
            asked.append(oracle.queries)
        network = counts.relu_network_queries(d, m)
        rows.append(
            [str(H), str(d), str(m), f"{median(run.queries for run in whole):,.0f}",
             f"{median(run.queries for run in whole) - network:,.0f}",
             f"{max(run.W for run in whole):.0e}", f"{median(asked):,.0f}", f"{max(W):.0e}",
             str(refused)]
        )  # fmt: skip
    header = ["H", "d", "m", "queries for everything", "without the network's", "error of W",
              "antisymmetric, for W and Σ_j w_j B_h[j]", "its error of W", "refused"]  # fmt: skip
    return table(header, rows)


def polished(seeds: int) -> str:
    """To the last bit: ePrint 2026/1678 reports errors of at most 2⁻⁵¹ at these sizes."""
    kind, (H, d, m) = Kind("all biases"), (6, 8, 32)
    plain, _ = runs_of(kind, (H, d, m), seeds)
    exact, refused = runs_of(kind, (H, d, m), seeds, polish=True)
    parameters = kind.parameters(H, d, m)
    rows = [
        [name, *row_of(H, d, m, parameters, runs)[3:], str(lost)]
        for name, runs, lost in (("plain", plain, 0), ("polish=True", exact, refused))
    ]
    cost = table(["settings", *COLUMNS[3:], "refused"], rows)
    beside = [["ePrint 2026/1678, as it reports", "2^-51", "", "", ""]]
    for name, runs in (("plain", plain), ("polish=True", exact)):
        worst = [max(getattr(run, part) for run in runs) for part in ("entries", "W", "w", "B")]
        beside.append([name, *(bits(error) for error in worst)])
    header = ["", "largest error of an entry", "relative, of W", "of w", "of B"]
    return f"\n## To the last bit\n\n{cost}\n\n{SAME_SIZES}\n\n{table(header, beside)}\n"


def antibody() -> str:
    spec = importlib.util.spec_from_file_location("antibody_layer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    state = example.read_state(example.package_folder().joinpath(*example.WEIGHTS))
    target = example.served(state, 0)
    H, d, m = target.H, target.dim, len(target.b)
    oracle = Timed(target)
    start = time.perf_counter()
    recovery = us.learn(oracle, us.learners.MultiHeadTransformerLearner(d, 8))
    seconds = time.perf_counter() - start
    parameters = counts.multi_head_transformer(d, H, m, 32, inputs=d, value_rank=32)
    equal = us.equivalent(recovery.model, target, rtol=1e-6)
    return (
        "\n## A trained layer\n\nOne output of feed-forward(attention(X)) of the encoder layer of "
        f"anarcii's antibody model, without\nresiduals and LayerNorms: {H} heads of 32 "
        f"dimensions, d = {d}, {m} ReLUs, all biases.\n\n"
        + table(
            ["numbers", "parameters", "queries", "error of the function", "equal", "seconds",
             "the target's"],
            [[f"{sum(x.size for x in target.arrays().values()):,}", f"{parameters:,}",
              f"{oracle.queries:,}", f"{function_error(recovery.model, target, d):.0e}",
              equal.verdict, f"{seconds:.0f}", f"{oracle.seconds:.0f}"]],
        )
        + "\n"
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds (default 5)")
    parser.add_argument("--first", type=int, help="how many of the first table (default: all)")
    parser.add_argument("--large", action="store_true", help="also eight heads of 32 dimensions")
    parser.add_argument("--polish", action="store_true", help="also to the last bit")
    parser.add_argument("--layer", action="store_true", help="also the antibody model's layer")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs" / "benchmarks" / "multi_head_transformer.md",
        help="markdown file to write",
    )
    options = parser.parse_args()
    seeds, first = options.seeds, options.first or options.seeds
    text = f"""# MultiHeadTransformerLearner: cost and exactness

{environment()}
Seeds: {first} in the first table, else {seeds}; queries (hold-out of 32 included), bounds and
seconds are medians, errors the largest over seeds. `python benchmarks/multi_head_transformer.py
--help` says how.

W_h ~ N(0, 1/d), B_h ~ N(0, 1/d), the rest ~ N(0, 1). Errors are relative, of W and w of the worst
head, of B with b over all neurons as w_o[j]·(B_1[j], …, B_H[j], b[j]), of the function the largest
of 600 sequences of 1 to 64 tokens. arXiv 2608.03294 asks 4Hd² − 2H + 1 values for the heads of a
layer without biases and has no code. A target that was refused is in the last column alone.

{biased(first, options.large)}

## Less where there is less

What is not there is not told to the learner.

{less(seeds, options.large)}

## Beside the antisymmetric way

Without biases f(X) − f(−X) is several heads with v_h = Σ_j w_o[j] B_h[j], for two queries each:
`MultiHeadLearner` finds the W_h through it, and of the network only these v_h.

{antisymmetric(seeds)}
{polished(seeds) if options.polish else ""}{antibody() if options.layer else ""}"""
    publish(text, options.out)


if __name__ == "__main__":
    main()
