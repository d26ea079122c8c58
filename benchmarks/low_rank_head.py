"""What LowRankHead costs and how exact it is, rank given or not, up to the sizes of real models.

Prints two tables and writes them, with the date and the commit, to a markdown file:

1. queries counted by the oracle beside the number of parameters, queries to find the rank,
   and the relative error of W over seeds, for random W and four kinds of v;
2. with --large, d = 4096 and r = 128 against a target in factors: time, and memory beyond the
   imports.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import unsoftmax as us
from measuring import ROOT, Timed, apart, environment, peak_memory, peak_of_imports, publish, table
from unsoftmax.probes import Array
from unsoftmax.theory import counts

SHAPES = ((64, 4), (128, 16), (384, 32), (512, 16))
LARGE = (4096, 128)


@dataclass(frozen=True)
class Case:
    """One recovery to measure."""

    dim: int
    rank: int
    known: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """What one recovery cost, as counted and timed outside the library."""

    queries: int
    again: int
    checks: int
    error: float
    bound: float
    oracle_s: float
    rest_s: float
    peak: int


def head(case: Case) -> us.SingleHead:
    """Make a random head whose v is dense, orthogonal to W's range, in it, or one-hot."""
    rng = np.random.default_rng([case.dim, case.rank, case.seed])
    K, Q = rng.standard_normal((2, case.rank, case.dim)) / np.sqrt(case.dim)
    v = rng.standard_normal(case.dim)
    basis = np.linalg.qr(K.T)[0]
    within = basis @ (basis.T @ v)
    unit = np.zeros(case.dim)
    unit[case.seed % case.dim] = 1.0
    return us.SingleHead.from_factors(K, Q, (v, v - within, within, unit)[case.seed % 4])


def norm(K: Array, Q: Array) -> float:
    """Return ‖KᵀQ‖_F without forming it."""
    return float(np.linalg.norm(np.linalg.qr(K.T)[1] @ np.linalg.qr(Q.T)[1].T))


def recover(case: Case) -> Run:
    imported = peak_of_imports(us.learners.LowRankHead(4))
    target = head(case)
    oracle = Timed(target)
    rank = case.rank if case.known else None
    start = time.perf_counter()
    recovery = us.learn(oracle, us.learners.LowRankHead(case.dim, rank, seed=case.seed))
    seconds = time.perf_counter() - start
    mine, true = recovery.model.arrays(), target.arrays()
    difference = norm(np.vstack([mine["K"], -true["K"]]), np.vstack([mine["Q"], true["Q"]]))
    size = norm(true["K"], true["Q"])
    return Run(
        queries=oracle.queries,
        again=recovery.counts.get("again", 0),
        checks=recovery.evidence.queries,
        error=difference / size,
        bound=recovery.certificate.W_error / size,
        oracle_s=oracle.seconds,
        rest_s=seconds - oracle.seconds,
        peak=peak_memory() - imported,
    )


def accuracy(seeds: int) -> str:
    rows = []
    for dim, rank in SHAPES:
        promised = counts.low_rank_head(dim, rank)
        known = [recover(Case(dim, rank, True, seed)) for seed in range(seeds)]
        found = [recover(Case(dim, rank, False, seed)) for seed in range(seeds)]
        more = max(run.queries - run.again - run.checks - promised for run in found)
        exactly = {run.queries - run.again - run.checks for run in known}
        assert exactly == {promised}, exactly
        rows.append(
            [
                str(dim),
                str(rank),
                f"{promised:,}",
                f"{sorted(run.again for run in known)[seeds // 2]} – "
                f"{max(run.again for run in known)}",
                f"{more} (≤ {2 * dim})",
                *(
                    f"{statistic(run.error for run in runs):.0e}"
                    for runs in (known, found)
                    for statistic in (median, max)
                ),
                f"{median(run.bound for run in known):.0e}",
                f"{median(run.rest_s for run in known):.2f}",
                f"{median(run.oracle_s for run in known):.2f}",
            ]
        )
    header = ["d", "r", "d + r(2d − r), asked", "again: median – most", "more to find r"]
    errors = ["median error", "worst", "median, r unknown", "worst, r unknown", "certified"]
    return table([*header, *errors, "own s", "oracle s"], rows)


def large() -> str:
    [run] = apart(recover, [Case(*LARGE)])
    row = [
        *map(str, LARGE),
        f"{run.queries - run.again - run.checks:,}",
        f"{run.error:.0e}",
        f"{run.bound:.0e}",
        f"{run.rest_s:.0f}",
        f"{run.oracle_s:.0f}",
        f"{run.peak / 2**20:.0f}",
    ]
    header = ["d", "r", "asked", "error", "certified", "own s", "oracle s", "peak MiB"]
    return f"""
## The size of real models

Target and learner in factors; no d × d array (128 MiB) is ever made. Peak memory is beyond the
imports.

{table(header, [row])}
"""


def document(seeds: int, with_large: bool) -> str:
    return f"""# LowRankHead: exactness and cost

{environment()}
{seeds} seeds for each row. W = KᵀQ with Gaussian K and Q; v is dense, orthogonal to W's range,
in it, or one-hot. The error is relative, in the Frobenius norm; *certified* is the bound that
the learner gives without knowing W, relative too, in the median.

{accuracy(seeds)}
{large() if with_large else ""}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=60, help="how many seeds (default 60)")
    parser.add_argument("--large", action="store_true", help=f"also d, r = {LARGE}: 5 minutes")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs" / "benchmarks" / "low_rank_head.md",
        help="markdown file to write",
    )
    options = parser.parse_args()
    publish(document(options.seeds, options.large), options.out)


if __name__ == "__main__":
    main()
