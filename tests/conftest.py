"""How often tests repeat: a few times in `make test`, as often as claimed in `make evidence`.

Of a test marked `few` a sample of its rows is collected, in which every value of every parameter
occurs, or as many rows as the mark says; what is marked `claimed` is not. Who names a test on the
command line (`tests/test_laws.py::test_…`) gets all of it, and so does ``--trials claimed``.
"""

import os
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.evidence_rows import COUNTED, FIELDS, PAGE, Part, joined, read_rows, renewed, write_rows

# A page takes a second, and hundreds of commands are run: the tests of the report ask for it.
os.environ["UNSOFTMAX_REPORT"] = "no"

# Folders of tests lie in memory where there is room: a run commits to its ledger hundreds of times.
# For what a killed process leaves behind it makes no difference; what a power cut does is not
# tested.
if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 2**31:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--trials", choices=["few", "claimed"], default="few", help="how often tests repeat"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "claimed: collected under `--trials claimed` alone")
    config.addinivalue_line("markers", "few(rows): a sample of rows where trials are few")
    claimed = config.getoption("--trials") == "claimed"
    settings.register_profile(
        "ours",
        max_examples=1000 if claimed else 12,
        derandomize=not claimed,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("ours")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--trials") == "claimed" or any("::" in word for word in config.args):
        return
    rows: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("claimed") is None:
            rows[item.nodeid.split("[")[0]].append(item)
    kept = {item for test in rows.values() for item in sample(test)}
    items[:] = [item for item in items if item in kept]


def sample(rows: list[Any]) -> list[Any]:
    """Return rows of a test in which every value occurs, or as many as its mark says."""
    mark = rows[0].get_closest_marker("few")
    if mark is None:
        return rows
    if mark.args:
        most = min(mark.args[0], len(rows))
        return [rows[k * len(rows) // most] for k in range(most)]
    values = {row: set(values_of(row)) for row in rows}
    unseen, chosen = set().union(*values.values()), []
    while unseen:
        # the first of those with most that is new
        chosen.append(max(rows, key=lambda row: len(values[row] & unseen)))
        unseen -= values[chosen[-1]]
    return chosen


def values_of(row: Any) -> Iterator[tuple[Any, ...]]:
    """Name what each parametrization of a test gives one of its rows."""
    for mark in row.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.replace(",", " ").split() if isinstance(names, str) else names
        yield tuple((name, id(row.callspec.params[name])) for name in names)


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
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let figures of a page be their titles and descriptions: for tests of its words."""

    def words(panel: Any, name: str) -> str:
        return f"{panel.title}. {panel.described}"

    monkeypatch.setattr("unsoftmax.report.page.svg", words)


@pytest.fixture
def trials(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """``trials(few, claimed)``: how often to repeat."""
    claimed = request.config.getoption("--trials") == "claimed"
    return lambda few, many: many if claimed else few


@pytest.fixture
def evidence(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """``evidence(claim, **figures)``: a row of docs/evidence.csv, written by `make evidence`.

    Numbers are written with three digits, or with a comma at thousands. ``refused``, how many of
    the targets were refused, has a column of its own, and so has how many cases were tried, if the
    first figure says it (`COUNTED`).
    """

    def written(figure: object) -> str:
        if isinstance(figure, float):
            return f"{figure:.3g}"
        return f"{figure:,}" if isinstance(figure, (int, np.integer)) else str(figure)

    def record(claim: str, refused: object = "", **figures: object) -> None:
        first = next(iter(figures), "")
        count = f"{written(figures.pop(first))} {first}" if first in COUNTED else ""
        said = [f"{name.replace('_', ' ')} {written(x)}" for name, x in figures.items()]
        record_property("evidence", [claim, count, ", ".join(said), written(refused)])

    return record


@pytest.fixture
def part_of_evidence(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """``part_of_evidence(claim, of, tried, figures)``: this node's part of a row.

    The row is written by a run in which all nodes together tried ``of`` targets (`Part`).
    """

    def record(claim: str, of: int, tried: int, figures: list[Any]) -> None:
        plain = [(name, how, list(map(float, each)), said) for name, how, each, said in figures]
        record_property("part of evidence", [claim, of, tried, plain])

    return record


_rows: list[list[str]] = []
_parts: dict[str, list[Part]] = defaultdict(list)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" or not report.passed:
        return
    for name, recorded in report.user_properties:
        if name == "evidence":
            _rows.append(recorded)  # type: ignore[arg-type]
        if name == "part of evidence":
            part = Part(*recorded)  # type: ignore[misc]
            _parts[part.claim].append(part)


def _git(*words: str) -> str:
    root = Path(__file__).parent.parent
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True).stdout.strip()


def pytest_sessionfinish(session: pytest.Session) -> None:
    claimed = session.config.getoption("--trials") == "claimed"
    _rows.extend(row for parts in _parts.values() if (row := joined(parts)) is not None)
    if not claimed or not _rows or hasattr(session.config, "workerinput"):
        return
    commit = _git("describe", "--always")
    if _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/evidence.*"):
        commit += "-dirty"
    # a run of some tests renews their rows alone
    rows = read_rows()
    when = [str(datetime.now(UTC).date()), commit, np.__version__]
    for row in _rows:
        rows[row[0]] = dict(zip(FIELDS, [*row, *when], strict=True))
    write_rows(rows.values())
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
