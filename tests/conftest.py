"""How often tests repeat: a few times in `make test`, as often as claimed in `make evidence`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# A page takes a second, and hundreds of commands are run: the tests of the report ask for it.
os.environ["UNSOFTMAX_REPORT"] = "no"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--trials", choices=["few", "claimed"], default="few", help="how often tests repeat"
    )


def pytest_configure(config: pytest.Config) -> None:
    claimed = config.getoption("--trials") == "claimed"
    settings.register_profile(
        "ours",
        max_examples=1000 if claimed else 100,
        derandomize=not claimed,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("ours")


@pytest.fixture
def signals() -> Iterator[None]:
    """Python's own handlers, for the test and what it starts, whatever the parent ignores.

    `nohup` ignores SIGHUP, and a script's `&` SIGINT; processes inherit that.
    """
    given: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in given.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def trials(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """``trials(few, claimed)``: how often to repeat."""
    claimed = request.config.getoption("--trials") == "claimed"
    return lambda few, many: many if claimed else few


@pytest.fixture
def evidence(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """``evidence(claim, **figures)``: a row of docs/evidence.md, written by `make evidence`.

    ``refused``, how many of the targets were refused, has a column of its own.
    """

    def record(claim: str, refused: object = "", **figures: object) -> None:
        text = ", ".join(f"{name.replace('_', ' ')} {figure}" for name, figure in figures.items())
        record_property("evidence", [claim, text, str(refused)])

    return record


_rows: list[list[str]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        rows: list[Any] = [v for name, v in report.user_properties if name == "evidence"]
        _rows.extend(rows)


def _git(*words: str) -> str:
    root = Path(__file__).parent.parent
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True).stdout.strip()


def pytest_sessionfinish(session: pytest.Session) -> None:
    claimed = session.config.getoption("--trials") == "claimed"
    if not claimed or not _rows or hasattr(session.config, "workerinput"):
        return
    root = session.config.rootpath
    page = root / "docs" / "evidence.md"
    commit = _git("describe", "--always")
    if _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/evidence.md"):
        commit += "-dirty"
    # a run of some tests renews their rows alone
    kept = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    rows = {line.split(" | ")[0]: line for line in kept if line.startswith("| ")}
    rows.pop("| claim", None)
    measured = f"{datetime.now(UTC).date()}, {commit}, NumPy {np.__version__}"
    for claim, figures, refused in _rows:
        rows[f"| {claim}"] = f"| {claim} | {figures} | {refused} | {measured} |"
    lines = [
        "# Evidence",
        "",
        "Written by `make evidence`. Each row is a test that passed at the claimed number of "
        "trials, at the date and commit beside it, with the NumPy named there (2.4.6 where none "
        "is). *Refused* is how many of them were refused by name; empty where a refusal would "
        "fail the test.",
        "",
        "| claim | measured | refused | when |",
        "|---|---|---|---|",
        *(rows[claim] for claim in sorted(rows)),
        "",
    ]
    page.write_text("\n".join(lines), encoding="utf-8")
