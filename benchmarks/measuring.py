"""What benchmarks share: an oracle that keeps accounts, processes apart, tables."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

import unsoftmax as us
from unsoftmax.probes import Array
from unsoftmax.protocol import Learner

ROOT = Path(__file__).parent.parent

T = TypeVar("T")
R = TypeVar("R")


class Timed:
    """An oracle's own account of its queries and its time."""

    def __init__(self, target: Callable[[Array], Array]) -> None:
        self.target = target
        self.queries = self.calls = 0
        self.seconds = 0.0

    def __call__(self, X: Array) -> Array:
        """Answer, and note how long it took."""
        self.queries += len(X)
        self.calls += 1
        start = time.perf_counter()
        answers = self.target(X)
        self.seconds += time.perf_counter() - start
        return answers


def relative(found: Array, true: Array) -> float:
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def peak_memory() -> int:
    """Return the most memory this process ever held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def peak_of_imports(learner: Learner[Any]) -> int:
    """Learn once, which imports what is imported at first use; return the peak memory then."""
    rng = np.random.default_rng(0)
    head = us.SingleHead(rng.standard_normal((learner.dim, learner.dim)), np.ones(learner.dim))
    with tempfile.TemporaryDirectory() as folder:
        us.learn(head, learner, ledger=Path(folder, "ledger.sqlite"))
    return peak_memory()


def apart(work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Do each task in a fresh process, one after the other."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as pool:
        done = []
        for number, result in enumerate(pool.map(work, tasks), 1):
            print(f"\r{number} of {len(tasks)} runs", end="", file=sys.stderr, flush=True)
            done.append(result)
    print(file=sys.stderr)
    return done


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Lay out a markdown table whose columns also line up as plain text."""
    cells = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def middle(values: Iterable[float], places: int) -> str:
    return f"{median(values):,.{places}f}"


def environment() -> str:
    """Say when and with what this was measured; no names of hosts, no paths."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", "src"], capture_output=True, text=True, check=False
    ).stdout.strip()
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name.lower())}" for name in ("NumPy", "SciPy")
    )
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} at commit {commit or 'unknown'}"
        + (" with uncommitted changes" if changed else "")
        + f"; Python {platform.python_version()}, {versions}, {platform.machine()}, "
        + f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before."
    )


def publish(text: str, out: Path) -> None:
    """Print a document and write it."""
    print(text)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
