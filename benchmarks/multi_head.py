"""What several heads cost and how exact they are, beside the count of arXiv 2608.03294.

Prints two tables and writes them, with the date and the commit, to a markdown file:

1. random heads of full rank and of low rank: queries counted by the oracle over the number of
   parameters H(d² + d), or H(r(2d − r) + d), and over 4Hd² − 2H + 1, what arXiv 2608.03294 asks;
   errors, the largest over heads;
2. with --layer, all twelve heads of a trained layer from one of its outputs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import linear_sum_assignment

import unsoftmax as us
from measuring import ROOT, Timed, environment, publish, table
from unsoftmax.cli.minilm import minilm_heads

SHAPES = ((2, 8, None), (6, 8, None), (4, 16, None), (8, 32, None), (8, 64, None), (24, 8, None),
          (64, 16, None), (12, 96, 8), (6, 128, 16))  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What one recovery cost, as counted and timed outside the library."""

    queries: int
    W: float
    v: float
    bound: float
    seconds: float
    oracle: float


def heads(H: int, d: int, rank: int | None, seed: int) -> us.MultiHead:
    rng = np.random.default_rng([H, d, seed])
    v = rng.standard_normal((H, d))
    if rank is None:
        return us.MultiHead(rng.standard_normal((H, d, d)) / np.sqrt(d), v)
    K, Q = rng.standard_normal((2, H, rank, d)) / np.sqrt(np.sqrt(d * rank))
    return us.MultiHead.from_factors(K, Q, v)


def recover(target: us.MultiHead, learner: us.learners.MultiHeadLearner) -> Run:
    oracle = Timed(target)
    start = time.perf_counter()
    recovery = us.learn(oracle, learner)
    seconds = time.perf_counter() - start
    found = recovery.model
    assert found.H == target.H
    mine, true = (m.W.reshape(m.H, -1) for m in (found, target))
    apart = np.linalg.norm(mine[:, None] - true, axis=2)
    i, j = linear_sum_assignment(apart)
    sizes = np.linalg.norm(true[j], axis=1)
    v = np.linalg.norm(found.v[i] - target.v[j], axis=1) / np.linalg.norm(target.v[j], axis=1)
    return Run(
        oracle.queries,
        float(np.max(apart[i, j] / sizes)),
        float(np.max(v)),
        recovery.certificate.W_error / float(sizes.max()),
        seconds,
        oracle.seconds,
    )


COLUMNS = ["queries", "over the parameters", "over 4Hd² − 2H + 1", "error of W", "of v",
           "W certified", "seconds", "the target's"]  # fmt: skip


def row_of(H: int, d: int, r: int, runs: Sequence[Run]) -> list[str]:
    queries = median(run.queries for run in runs)
    return [
        f"{queries:,.0f}",
        f"{queries / (H * (r * (2 * d - r) + d)):.3f}",
        f"{queries / (4 * H * d**2 - 2 * H + 1):.2f}",
        f"{max(run.W for run in runs):.0e}",
        f"{max(run.v for run in runs):.0e}",
        f"{median(run.bound for run in runs):.0e}",
        f"{median(run.seconds for run in runs):.1f}",
        f"{median(run.oracle for run in runs):.1f}",
    ]


def accuracy(seeds: int) -> str:
    rows = []
    for H, d, rank in SHAPES:
        runs = [
            recover(
                heads(H, d, rank, seed),
                us.learners.MultiHeadLearner(d, max_heads=H + 4, rank=rank, seed=seed),
            )
            for seed in range(seeds)
        ]
        rows.append([str(H), str(d), str(rank or d), *row_of(H, d, rank or d, runs)])
    return table(["H", "d", "r", *COLUMNS], rows)


def layer() -> str:
    target = minilm_heads()
    learner = us.learners.MultiHeadLearner(target.dim, max_heads=16, biases=True, rank=32)
    run = recover(target, learner)
    return (
        "\n## A trained layer\n\nAll twelve heads of all-MiniLM-L6-v2's layer 0, from one "
        "output coordinate, with\nquery and output biases, rank 32 given.\n\n"
        + table(["H", "d", "r", *COLUMNS], [["12", "384", "32", *row_of(12, 384, 32, [run])]])
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds (default 5)")
    parser.add_argument("--layer", action="store_true", help="also the trained layer: a minute")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs" / "benchmarks" / "multi_head.md",
        help="markdown file to write",
    )
    options = parser.parse_args()
    text = f"""# MultiHeadLearner: cost and exactness

{environment()}
Seeds: {options.seeds}; queries (hold-out of 32 included), bounds and seconds are medians, errors
the largest over seeds and heads. `python benchmarks/multi_head.py --help` says how.

W_h ~ N(0, 1/d), v_h ~ N(0, 1). Where r is d it was not given; the number of heads never is.
arXiv 2608.03294 asks exactly 4Hd² − 2H + 1 values of sequences of length up to 2H + 1, and has no
code; here sequences have two tokens, but for H + 1 of four and the hold-out.

{accuracy(options.seeds)}
{layer() if options.layer else ""}"""
    publish(text, options.out)


if __name__ == "__main__":
    main()
