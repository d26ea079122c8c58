"""What is shown while a run goes on, and options drawn from learners."""

import io
import re
import signal
from dataclasses import MISSING, fields
from typing import get_type_hints

import pytest
import typer
from rich.console import Console
from tests.commands import run

import unsoftmax as us
from unsoftmax.cli import console, options, targets
from unsoftmax.cli.commands import COMMANDS, PANELS


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_phase_queries_and_rate(monkeypatch, terminal):
    screen = io.StringIO()
    monkeypatch.setattr(console, "stderr", Console(file=screen, force_terminal=terminal, width=120))
    with console.watching() as watch:
        for answered in (0, 10, 50, 74):
            watch(us.Progress("W", answered, 74, answered))
        watch(us.Progress("open end", 80, None, 80))
    text = screen.getvalue()
    assert "open end" in text
    assert "80" in text


def test_a_log_has_a_line_in_ten_seconds_at_most(monkeypatch):
    screen, now = io.StringIO(), 0.0
    monkeypatch.setattr(console, "stderr", Console(file=screen, width=120))
    monkeypatch.setattr("unsoftmax.cli.console.time.monotonic", lambda: now)
    with console.watching() as watch:
        for answered in range(600):  # a minute, another phase at every event
            now = answered / 10
            watch(us.Progress(f"phase {answered}", answered, 600, answered))
    said = screen.getvalue().splitlines()
    assert [line.partition(":")[0] for line in said] == [f"phase {k}00" for k in range(1, 6)]
    assert "10/s" in said[-1]


def test_quiet_says_results_and_errors_alone(monkeypatch):
    screens = io.StringIO(), io.StringIO()
    monkeypatch.setattr(console, "stderr", console.Aside(file=screens[1], width=120))
    monkeypatch.setattr(console, "stdout", Console(file=screens[0], width=120))
    token = console.QUIET.set(True)
    try:
        with console.watching() as watch:
            watch(us.Progress("W", 1, 2, 1))
        console.say("aside", console.stderr)
        console.say_notes(["a note"])
        console.say("result", console.stdout)

        @console.with_exit_status
        def command():
            raise us.OracleError("It is gone.")

        with pytest.raises(typer.Exit):
            command()
    finally:
        console.QUIET.reset(token)
    assert screens[0].getvalue() == "result\n"
    assert screens[1].getvalue() == "OracleError: It is gone.\n"


def test_a_table_has_ten_rows_unless_all_are_wanted(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "stdout", Console(file=screen, width=120))
    rows = [(f"row {k}", "x") for k in range(12)]
    console.show_table("", rows[:10])
    assert "more" not in screen.getvalue()
    console.show_table("", rows)
    assert "row 9 " in screen.getvalue()
    assert "row 10 " not in screen.getvalue()
    assert "2 more rows: --all shows them." in screen.getvalue()
    token = console.ALL_ROWS.set(True)
    try:
        console.show_table("", rows)
    finally:
        console.ALL_ROWS.reset(token)
    assert "row 11 " in screen.getvalue()


def test_every_error_has_a_status():
    spent = us.BudgetExceeded("", spent=1, needed=1, in_doubt=0)
    refused = us.NotIdentifiable("", determined={})
    expected = {
        us.LedgerError(""): 2,
        us.LedgerMismatch(""): 2,
        us.ModelMismatch(""): 3,
        us.DimensionRefused(""): 3,
        refused: 3,
        spent: 4,
        us.OracleError(""): 5,
        KeyboardInterrupt(): 130,
    }
    for error, status in expected.items():
        assert console.status_of(error) == status


def test_a_targets_words_move_no_cursor(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "stderr", Console(file=screen, width=120))

    @console.with_exit_status
    def command(debug):
        raise us.OracleError("It says \x1b[2J\x1b]0;title\x07 é ok\r\nand\tmore.")

    for debug in (False, True):
        with pytest.raises(typer.Exit):
            command(debug=debug)
    assert "It says  [2J ]0;title  é ok \nand more." in screen.getvalue()
    assert not {"\x1b", "\x07", "\r"} & {*screen.getvalue()}


@pytest.mark.parametrize("name", us.learners.MODULES)
def test_the_source_says_of_a_learner_what_its_class_does(name):
    learner = getattr(us.learners, name)
    hints = get_type_hints(learner)
    kinds = {field.name: options._kind(hints[field.name]) for field in fields(learner)}
    kinds |= {name: str for name in kinds if name in (*options._FUNCTIONS, *options._ARRAYS)}
    described = options._described(name)
    found = {setting.name: setting for setting in described.settings}
    assert {name: setting.kind for name, setting in found.items()} == {
        name: kind for name, kind in kinds.items() if kind in options._WRITTEN
    }
    for field in fields(learner):
        if field.name in found and field.default not in (MISSING, None, False):
            assert f"[default: {field.default}]" in found[field.name].text
        if kinds[field.name] is bool and field.default is not False:
            assert options._flags(field.name).endswith(f"/--no-{field.name}")
    parts = [kind.__name__ for kinds in getattr(learner, "parts", {}).values() for kind in kinds]
    assert described.parts == parts


@pytest.mark.usefixtures("signals")
def test_interrupts_are_ours_again_afterwards():
    console.with_exit_status(lambda: None)()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_settings_in_messages_are_named_as_options():
    said = "Raise max_heads, or raise rank; tolerance= helps LowRankHead. A bias is no flag."
    assert options.in_flags(said, {"us.x": "--x"}) == (
        "On the command line rank is --rank, tolerance is --tolerance, max_heads is --max-heads, "
        "LowRankHead is --model low-rank."
    )
    assert options.in_flags("use us.x(1)", {"us.x": "--x"}) == "On the command line us.x is --x."
    assert options.in_flags("The rank is high.", {}) == ""
    assert options.in_flags("Leave out norm.", {}) == "On the command line norm is --norm."


@pytest.mark.parametrize("cause", ["raise", "from", "within"])
def test_a_signal_amid_the_targets_import_is_no_failed_import(cause, tmp_path, monkeypatch):
    """Python 3.11 makes a RuntimeError of what is raised while a class is made."""
    body = {
        "raise": "raise us.Terminated(15)",
        "from": "raise RuntimeError from us.Terminated(15)",
        "within": "try:\n    raise us.Terminated(15)\nfinally:\n    raise RuntimeError",
    }[cause]
    (tmp_path / f"signalled_{cause}.py").write_text(f"import unsoftmax as us\n{body}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(us.Terminated) as caught:
        targets.resolve(f"signalled_{cause}:f")
    assert caught.value.code == 143


@pytest.mark.parametrize(("end", "status"), [(KeyboardInterrupt(), 130), (us.Terminated(1), 129)])
def test_what_a_signal_became_has_the_signals_status(end, status, monkeypatch, capsys):
    monkeypatch.setattr("unsoftmax.cli.end_at_once", lambda: None)

    @console.with_exit_status
    def command(error):
        raise error from end

    with pytest.raises(typer.Exit) as caught:
        command(RuntimeError("Error calling __set_name__"))
    assert caught.value.exit_code == status
    assert "Stopped by" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="own"):
        console.with_exit_status(lambda: (_ for _ in ()).throw(RuntimeError("own")))()


def test_options_are_in_groups_of_a_dozen(tmp_path):
    """Every command's help: its own options first, what is rarely used last."""
    for command in COMMANDS:
        told = run(tmp_path, command, "--help").stdout
        panels = re.split(r"^╭─ (\w[\w -]*?) ─+╮$", told, flags=re.MULTILINE)[1:]
        options = {
            name: re.findall(r"^│ [* ]*(--[\w-]+)", panel, flags=re.MULTILINE)
            for name, panel in zip(panels[::2], panels[1::2], strict=True)
        }
        assert any("--help" in names for names in options.values()), command
        assert max(map(len, options.values())) <= 12, (command, options)
        order = [name for name in options if name in PANELS]
        assert order == [name for name in PANELS if name in options]
