"""What LabelHead costs and how exact it is, beside Theorem B.1's own algorithm.

Prints three tables and writes them, with the date and the commit, to a markdown file:

1. labels counted by the oracle, rounds, errors and bounds by dimension and bits, with the
   number of labels that the theorem asks for the same error;
2. the theorem's algorithm where it ends, and bisection beside it;
3. what happens to wrong labels.

Errors are medians over the seeds. Timings mean something only when nothing else runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import unsoftmax as us
from measuring import ROOT, environment, relative, table
from unsoftmax.probes import Array

SIZES = ((1, 50), (2, 50), (3, 50), (8, 50), (24, 48), (64, 16), (64, 32), (64, 50), (128, 50))
NORM_BOUND = 2.0
FINITE = ((1, 1.0, 1), (1, 1.0, 3), (2, 0.7, 1))
RATES = (0.0, 1e-4, 1e-3, 1e-2)
FLIPPED = ((3, 50), (8, 50), (24, 48))
RUNS = 40


class Labels:
    """An oracle of labels with its own account of queries and rounds."""

    def __init__(self, target: us.SingleHead, rate: float = 0.0, seed: int = 0) -> None:
        self.target, self.rate = target, rate
        self.coin = np.random.default_rng(seed)
        self.queries = self.flips = 0

    def __call__(self, X: Array) -> Array:
        """Answer whether f(X) > 0, now and then wrongly."""
        self.queries += len(X)
        wrong = self.coin.random(len(X)) < self.rate
        self.flips += int(np.count_nonzero(wrong))
        return np.asarray((self.target(X) > 0) ^ wrong, dtype=np.float64)


@dataclass(frozen=True)
class Run:
    """One recovery, counted and compared outside the library."""

    queries: int
    rounds: int
    W_error: float
    v_error: float
    bound: float
    seconds: float


def head(dim: int, seed: int) -> us.SingleHead:
    rng = np.random.default_rng([dim, seed])
    W, v = rng.standard_normal((dim, dim)), rng.standard_normal(dim)
    return us.SingleHead(NORM_BOUND * W / np.linalg.norm(W), v)


def level(dim: int, seed: int) -> us.SingleHead:
    """Make a head whose entries of v are all alike, as the theorem's margin wants."""
    rng = np.random.default_rng([dim, seed])
    W, v = rng.standard_normal((dim, dim)), rng.choice([-1.0, 1.0], dim)
    return us.SingleHead(NORM_BOUND * W / np.linalg.norm(W), v)


def recover(target: us.SingleHead, learner: us.learners.LabelHead) -> Run:
    """Drive the learner by hand, to count its rounds."""
    oracle, steps, rounds = Labels(target), learner.steps(32), 1
    start = time.perf_counter()
    parts = next(steps)
    while True:
        answers = [
            np.concatenate([oracle(probes[k : k + 2048]) for k in range(0, len(probes), 2048)])
            for probes in parts
        ]
        try:
            parts, rounds = steps.send(answers), rounds + 1
        except StopIteration as end:
            found = end.value
            break
    seconds = time.perf_counter() - start
    size = float(np.linalg.norm(target.W))
    return Run(
        oracle.queries,
        rounds,
        relative(found.model.W, target.W),
        float(np.linalg.norm(found.model.v - target.v / np.linalg.norm(target.v))),
        found.certificate.W_error / size,
        seconds,
    )


def middle(runs: list[Run], what: Callable[[Run], float]) -> str:
    return f"{median(what(run) for run in runs):.1e}"


def bisection(seeds: int) -> str:
    rows = []
    for dim, bits in SIZES:
        runs = [
            recover(head(dim, seed), us.learners.LabelHead(dim, bits, seed=seed))
            for seed in range(seeds)
        ]
        margin = 0.5 / np.sqrt(dim)
        paper = us.learners.LabelHead(dim, bits, NORM_BOUND, margin, "paper").plan().queries
        queries = max(run.queries for run in runs)
        rows.append(
            [
                str(dim),
                str(bits),
                f"{queries:,}",
                f"{1.1 * bits * (dim * dim + dim) + 500:,.0f}",
                f"{queries / bits / (dim * dim + dim):.3f}",
                str(max(run.rounds for run in runs)),
                middle(runs, lambda run: run.W_error),
                middle(runs, lambda run: run.v_error),
                middle(runs, lambda run: run.bound),
                f"{median(run.seconds for run in runs):.2f}",
                f"{float(paper or 0):.1e}",
            ]
        )
    header = ["d", "bits", "labels", "allowed", "per bit", "rounds", "error of W", "error of v"]
    return table([*header, "certified W", "seconds", "Theorem B.1"], rows)


def theorem(seeds: int) -> str:
    rows = []
    for dim, margin, bits in FINITE:
        paper, ours = [], []
        for seed in range(seeds):
            literal = us.learners.LabelHead(dim, bits, NORM_BOUND, margin, "paper", seed)
            paper.append(recover(level(dim, seed), literal))
            ours.append(recover(level(dim, seed), us.learners.LabelHead(dim, 20, seed=seed)))
        for name, runs in (("paper", paper), ("bisect, 20 bits", ours)):
            promised = 2.0**-bits if name == "paper" else median(run.bound for run in runs)
            rows.append(
                [
                    str(dim),
                    name,
                    f"{max(run.queries for run in runs):,}",
                    f"{promised:.1e}",
                    middle(runs, lambda run: run.W_error),
                    f"{median(run.seconds for run in runs):.2f}",
                ]
            )
    return table(["d", "method", "labels", "promised", "error of W", "seconds"], rows)


def wrong_labels(runs: int) -> str:
    rows = []
    for dim, bits in FLIPPED:
        for rate in RATES:
            refused = changed = harmless = 0
            for seed in range(runs):
                target = head(dim, seed)
                oracle = Labels(target, rate, seed)
                try:
                    found = us.learn(oracle, us.learners.LabelHead(dim, bits, seed=seed)).model
                except (us.ModelMismatch, us.NotIdentifiable):
                    refused += 1
                    continue
                changed += relative(found.W, target.W) > 20 * 2.0**-bits
                harmless += oracle.flips > 0
            cells = (dim, bits, f"{rate:g}", runs, refused, harmless, changed)
            rows.append([str(cell) for cell in cells])
    header = ["d", "bits", "rate", "runs", "refused", "flips without effect", "wrong recoveries"]
    return table(header, rows)


def document(seeds: int, runs: int) -> str:
    return f"""# LabelHead: a head from labels alone

{environment()}
Medians over {seeds} seeds; `python benchmarks/label_head.py --help` says how.

## A query per bit and parameter

W is Gaussian with ‖W‖_F = {NORM_BOUND:g}, v is Gaussian. *allowed* is 1.1·bits·(d² + d) + 500;
*per bit* is labels/(bits·(d² + d)); the two checks of every parameter and the hold-out of 32 are
counted, so that fewer than 24 bits cost more than allowed; *certified W* is the bound on ‖Ŵ − W‖_F
over ‖W‖_F. The last column is what Theorem B.1 asks for the error ‖W‖·2^-bits with μ = ½/√d.

{bisection(seeds)}

## The theorem's algorithm where it ends

All |v_i| alike, μ = 1 or 0.7, ε_W = W·2^-bits (relative to ‖W‖ in the table).

{theorem(seeds)}

## Wrong labels

Labels are flipped at random. *Flips without effect*: recoveries in spite of flips, right to
20·2^-bits; *wrong recoveries* are not.

{wrong_labels(runs)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default 3)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"with flips (default {RUNS})")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs" / "benchmarks" / "label_head.md",
        help="markdown file to write",
    )
    options = parser.parse_args()
    text = document(options.seeds, options.runs)
    print(text)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
