"""Theorem 5.1's phase transition: how many Gaussian measurements the nuclear norm needs.

For d = 16, 24, 32 and ranks 1 to 3, the share of random heads that `SensingHead` recovers, by
the number of measurements per free parameter, r(2d − r). Every run is a whole recovery from a
black box, hold-out included: it ends with W (counted as recovered when its relative error is
at most 1e-9) or with a refusal; anything else is counted as silently wrong. Beside it stands
`LowRankHead`, which asks one query per parameter of W.

Writes a picture and, with the date and the commit, a table. One process, about three minutes.

With --large also what the theorem is about, d = 384: time, memory, the error and its bound, each
run in a process of its own. --only-large renews that table alone; without either it is kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us
from measuring import ROOT, Timed, apart, environment, peak_memory, publish, relative, table
from unsoftmax.theory import counts

DIMS = (16, 24, 32)
RANKS = (1, 2, 3)
RATIOS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 4.5, 5.0)
COLOURS = {16: "#7fb2d9", 24: "#3b7fb8", 32: "#14395f"}
RECOVERED = 1e-9
LARGE = ((128, 8), (256, 8), (384, 8))
HEADING = "## At the sizes the theorem is about"


@dataclass(frozen=True)
class Cell:
    """All runs of one dimension, rank and number of measurements."""

    dim: int
    rank: int
    ratio: float
    measurements: int
    errors: tuple[float, ...]
    """Relative errors of W where it was returned."""
    refused: int
    seconds: float
    """Of one run, the median."""

    @property
    def success(self) -> float:
        """Share of runs that recovered W."""
        good = sum(error <= RECOVERED for error in self.errors)
        return good / (len(self.errors) + self.refused)

    @property
    def wrong(self) -> int:
        """Runs that returned something else than W."""
        return sum(error > RECOVERED for error in self.errors)


def measure(dim: int, rank: int, ratio: float, seeds: int) -> Cell:
    m = min(dim * dim, round(ratio * counts.of_rank(dim, rank)))
    errors, refused, seconds = [], 0, []
    for seed in range(seeds):
        rng = np.random.default_rng([dim, rank, m, seed])
        K, Q = rng.standard_normal((2, rank, dim))
        target = us.SingleHead.from_factors(K, Q, rng.standard_normal(dim))
        start = time.perf_counter()
        try:
            learner = us.learners.SensingHead(dim, rank, measurements=m, seed=seed)
            found = us.learn(target, learner).model
            errors.append(relative(found.W, target.W))
        except (us.NotIdentifiable, us.ModelMismatch):
            refused += 1
        seconds.append(time.perf_counter() - start)
    return Cell(dim, rank, ratio, m, tuple(errors), refused, float(np.median(seconds)))


@dataclass(frozen=True)
class Large:
    """One recovery in a process of its own."""

    dim: int
    rank: int
    queries: int
    error: float
    bound: float
    """The certificate's, relative to ‖W‖_F as the error is."""
    seconds: float
    """The target's own time left out."""
    memory: int
    """The most this process ever held, in bytes."""


def measure_large(size: tuple[int, int]) -> Large:
    dim, rank = size
    rng = np.random.default_rng(size)
    K, Q = rng.standard_normal((2, rank, dim))
    target = Timed(us.SingleHead.from_factors(K, Q, rng.standard_normal(dim)))
    start = time.perf_counter()
    found = us.learn(target, us.learners.SensingHead(dim, rank))
    seconds = time.perf_counter() - start - target.seconds
    W = K.T @ Q
    bound = found.certificate.W_error / float(np.linalg.norm(W))
    error = relative(found.model.W, W)
    return Large(dim, rank, target.queries, error, bound, seconds, peak_memory())


def large(header: str) -> str:
    rows = [
        [
            str(run.dim),
            str(run.rank),
            f"{counts.of_rank(run.dim, run.rank):,}",
            f"{counts.sensing(run.dim, run.rank):,}",
            f"{run.queries:,}",
            f"{run.error:.0e}",
            f"{run.bound:.0e}",
            f"{run.seconds:,.0f}",
            f"{run.memory / 2**30:.2f}",
            f"{8 * counts.sensing(run.dim, run.rank) * run.dim**2 / 2**30:,.1f}",
        ]
        for run in apart(measure_large, LARGE)
    ]
    head = ["d", "r", "r(2d−r)", "m", "queries", "error of W", "its bound", "s", "GiB"]
    return f"""{HEADING}

{header} One head each, the default m, {os.environ.get("OMP_NUM_THREADS", "all")} BLAS thread(s).

*Queries* as the target counted them, the hold-out included; error and bound relative to ‖W‖_F;
the seconds are the learner's and the runner's, the target's own left out; *GiB* is the most that
the process ever held, *written out* what the matrix of measurements, m × d², would take.

{table([*head, "written out"], rows)}
"""


def half_way(cells: Sequence[Cell]) -> float:
    """Interpolate where half of the runs succeed."""
    return float(np.interp(0.5, [c.success for c in cells], [c.ratio for c in cells]))


def draw(cells: Sequence[Cell], path: Path) -> None:
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    panels = figure.subplots(1, len(RANKS), sharey=True, sharex=True)
    for axis, rank in zip(panels, RANKS, strict=True):
        axis.axvline(1.0, color="#c8553d", lw=1.6)
        for dim in sorted({cell.dim for cell in cells}):
            line = [cell for cell in cells if (cell.dim, cell.rank) == (dim, rank)]
            axis.plot(
                [cell.measurements / counts.of_rank(dim, rank) for cell in line],
                [cell.success for cell in line],
                "o-",
                color=COLOURS.get(dim, "#555555"),
                ms=4,
                lw=1.6,
                label=f"SensingHead, d = {dim}",
            )
        axis.set_title(f"rank {rank}", fontsize=11)
        axis.grid(alpha=0.25)
        axis.set(ylim=(-0.04, 1.06), xlim=(0.85, max(RATIOS) + 0.15))
        axis.spines[["top", "right"]].set_visible(False)
        axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        axis.text(
            1.06,
            0.5,
            "LowRankHead",
            rotation=90,
            va="center",
            ha="left",
            color="#c8553d",
            fontsize=9,
        )
    panels[0].set_ylabel("heads recovered")
    panels[-1].legend(loc="lower right", fontsize=8.5, framealpha=0.95)
    figure.supxlabel("measurements per free parameter of W,  m / r(2d − r)", fontsize=10.5)
    figure.savefig(path, dpi=130, metadata={"Software": "unsoftmax"})


def document(cells: Sequence[Cell], seeds: int, header: str, seconds: float) -> str:
    pairs = sorted({(cell.rank, cell.dim) for cell in cells})
    shares, summary = [], []
    for rank, dim in pairs:
        line = [cell for cell in cells if (cell.dim, cell.rank) == (dim, rank)]
        parameters = counts.of_rank(dim, rank)
        shares.append(
            [str(rank), str(dim), str(parameters), *(f"{100 * cell.success:.0f}" for cell in line)]
        )
        errors = [error for cell in line for error in cell.errors]
        summary.append(
            [
                str(rank),
                str(dim),
                str(parameters),
                f"{half_way(line):.2f}",
                str(counts.sensing(dim, rank)),
                f"{counts.sensing(dim, rank) / parameters:.2f}",
                f"{np.median(errors):.0e}",
                f"{max(errors):.0e}",
                str(sum(cell.wrong for cell in line)),
                f"{np.median([cell.seconds for cell in line]):.2f}",
            ]
        )
    head = ["r", "d", "r(2d−r)"]
    told = ["half", "default m", "m/r(2d−r)", "median error", "worst", "silently wrong", "s"]
    return f"""# SensingHead: the phase transition of Theorem 5.1

{header} {seeds} random heads a cell, {seconds:.0f} s in all.

![Share of heads recovered against measurements per free parameter](sensing.png)

W = KᵀQ with Gaussian K and Q, Gaussian v. Recovered: relative error of W at most {RECOVERED:.0e}.
A run that does not recover W is refused; returning another W would be *silently wrong*.
`LowRankHead` asks r(2d − r) queries for W, one per free parameter: the line at 1.

## Heads recovered, in per cent, by measurements per free parameter

{table([*head, *(f"{ratio:.2f}" for ratio in RATIOS)], shares)}

## In short

*Half* is where every second head is recovered; *default* is what `SensingHead` asks when it is
not told how many. Errors are of what was returned, the seconds are those of a whole recovery.

{table([*head, *told], summary)}
"""


def transition(options: argparse.Namespace) -> str:
    """Measure the phase transition, and draw it."""
    header, start = environment(), time.perf_counter()
    cells = []
    for rank in RANKS:
        for dim in options.dims:
            for ratio in RATIOS:
                cells.append(measure(dim, rank, ratio, options.seeds))
            print(f"\rrank {rank}, d = {dim}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    text = document(cells, options.seeds, header, time.perf_counter() - start)
    draw(cells, options.out.with_suffix(".png"))
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS, help="dimensions d")
    parser.add_argument("--seeds", type=int, default=20, help="heads a cell (default 20)")
    parser.add_argument("--large", action="store_true", help="also d = 384: ten minutes")
    parser.add_argument("--only-large", action="store_true", help="d = 384 alone")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs" / "benchmarks" / "sensing.md",
        help="markdown file to write; the picture goes beside it",
    )
    options = parser.parse_args()
    before = options.out.read_text("utf-8") if options.out.exists() else ""
    kept, _, bottom = before.partition(HEADING)
    if options.large or options.only_large:
        bottom = large(environment()).removeprefix(HEADING)
    if not options.only_large:
        kept = transition(options)
    text = kept.rstrip() + "\n"
    publish(f"{text}\n{HEADING}{bottom}" if bottom else text, options.out)


if __name__ == "__main__":
    main()
