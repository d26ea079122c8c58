"""The real command, ended by signals at any moment: nothing lost, no traceback, the right status.

The target keeps count of what it was asked in a file, on its own side. A signal may come during
the imports, while the learner thinks, while a call is in flight or hangs, and while the command
is ending already.
"""

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.campaign.lives import account, unmeasured

pytestmark = pytest.mark.usefixtures("signals")

COMMAND = Path(sys.executable).parent / "unsoftmax"
PATIENCE_S = 60.0

TARGETS = """
import os, pathlib, time
import numpy as np

rng = np.random.default_rng(7)
W, v = rng.standard_normal((6, 6)) / 2, rng.standard_normal(6)
A, w_o, b = rng.standard_normal((6, 5)), rng.standard_normal(5), rng.standard_normal(5)
pause_s = float(os.environ.get("PAUSE_S", "0.003"))

def count(X):
    with open("asked.txt", "a") as log:
        log.write(f"{len(X)}\\n")
    time.sleep(pause_s)
    return X

def pool(X, W):
    scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("bn,bnd->bd", weights / weights.sum(axis=1, keepdims=True), X)

def head(X):
    return pool(count(X), W) @ v

def labels(X):
    return head(X) > 0

def heads(X):
    return head(X) + pool(X, W[::-1]) @ v[::-1]

def network(X):
    return np.maximum(count(X)[:, 0] @ A + b, 0) @ w_o

def layer(X):
    return np.maximum(pool(count(X), W) @ A + b, 0) @ w_o

def hanging(X):
    if asked_before() >= 40 and not os.path.exists("cured"):
        pathlib.Path("hangs").touch()
        time.sleep(3600)
    return head(X)

def asked_before():
    log = pathlib.Path("asked.txt")
    return sum(map(int, log.read_text().split())) if log.exists() else 0

def changing(X):
    y = head(X)
    if asked_before() >= 40:
        n = asked_before()
        raise (TimeoutError("slow") if n % 2 else ConnectionError("gone"))
    return y
"""

LEARNERS = [
    ("head", ["exact"]),
    ("head", ["low-rank", "--rank", "6"]),
    ("head", ["approximate", "--tolerance", "1e-6"]),
    ("labels", ["labels", "--bits", "20"]),
    ("heads", ["multi-head", "--max-heads", "3"]),
    ("network", ["relu-network"]),
    ("layer", ["transformer"]),
]
ENDINGS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -9}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(TARGETS)
    return tmp_path


def begin(folder, target, model, *words: Any, **environment: str):
    command = [COMMAND, "learn", f"mine:{target}", "--dim", 6, "--out", "o", "--model", *model]
    return subprocess.Popen(
        [str(word) for word in (*command, *words)],
        cwd=folder,
        env={**unmeasured(), "NO_COLOR": "1", "PYTHONWARNINGS": "error", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def asked(folder):
    log = folder / "asked.txt"
    return sum(map(int, log.read_text().split())) if log.exists() else 0


def until(condition, process):
    """Wait for something; a process that ends meanwhile has said why."""
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        if process.poll() is not None:
            raise AssertionError(process.communicate())
        time.sleep(0.01)
    process.kill()
    raise AssertionError("it never came")


def started(process):
    """Wait until it takes signals: Python's own start, under coverage 0.4 s long, is Python's."""

    def handles_them() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    if Path("/proc/self/status").exists():
        until(handles_them, process)
    else:
        time.sleep(1.0)
    return time.monotonic()


def end(process):
    """Return what a process said; it must not be a traceback."""
    try:
        said, told = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert "Traceback" not in told, told
    assert "exception" not in told.lower(), told
    return said + told


@pytest.mark.few(1)
@pytest.mark.parametrize(("target", "model"), LEARNERS, ids=[model[0] for _, model in LEARNERS])
def test_ended_at_any_moment_nothing_is_lost_and_nothing_paid_twice(
    target, model, folder, trials, evidence
):
    """As often as claimed: kill −9, TERM, HUP and Ctrl-C, in turn, then to the end."""
    rng = np.random.default_rng(len(target) + len(model))
    words = ["--batch", "16", "--workers", "2"]
    whole_run = [*words, "--ledger", folder / "whole"]
    once = begin(folder, target, model, *whole_run, PAUSE_S="0")
    began = started(once)
    end(once)
    assert once.returncode == 0
    whole, lengths_s, kills = asked(folder), [time.monotonic() - began], trials(4, 72)
    done = chains = 0
    while done < kills:
        home = folder / str(chains)
        home.mkdir()
        shutil.copy(folder / "mine.py", home)
        done += ended_again_and_again(home, target, [*model, *words], kills - done, rng, lengths_s)
        last = begin(home, target, model, *words)
        end(last)
        assert last.returncode == 0
        assert account(home / "o" / "ledger.sqlite").recorded == whole
        chains += 1
    evidence(
        f"the command ended by INT, TERM, HUP and KILL in turn, {model[0]}",
        endings=done,
        answers_lost=0,
        tracebacks=0,
    )


def ended_again_and_again(folder, target, model, most, rng, lengths_s):
    """End lives of one run until one comes to its end, or so many; return how many were ended.

    ``lengths_s``: how long whole runs took, to which this one is added if nothing ends it.
    """
    book, before, lost = folder / "o" / "ledger.sqlite", account(folder / "none"), 0
    for turn in range(most):
        number = [*ENDINGS][(turn + most) % len(ENDINGS)]
        process = begin(folder, target, model)
        began = started(process)
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.0, 1.0) * lengths_s[-1])
            lengths_s += [] if turn else [time.monotonic() - began]
        process.send_signal(number)
        said, now = end(process), account(book)
        # killed by the signal itself: after the program, while Python ends
        assert process.returncode in (0, ENDINGS[number], -number), said
        if number == signal.SIGKILL:
            lost += sum(now.open.values()) if now.open != before.open else 0
        else:
            assert now.open in ({}, before.open), "what flew is recorded"
            if process.returncode and now.paid > before.paid:
                assert "Run the same command to go on" in said or "Recovered" in said
        assert now.recorded >= before.recorded
        assert now.paid >= before.paid
        assert now.paid - lost <= asked(folder) <= now.paid
        before = now
        if process.returncode == 0:
            return turn
    return most


# -- a target that hangs


@pytest.mark.few(1)
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 1), (signal.SIGTERM, 3)])
def test_one_signal_ends_a_run_whose_target_hangs(number, workers, folder):
    process = begin(folder, "hanging", ["exact"], "--batch", 4, "--workers", workers)
    until((folder / "hangs").exists, process)
    began = time.monotonic()
    process.send_signal(number)
    said = end(process)
    assert process.returncode == ENDINGS[number], said
    assert 5 < time.monotonic() - began < 20
    assert "waiting up to 8 s for the batch in flight" in said
    now = account(folder / "o" / "ledger.sqlite")
    assert now.recorded >= 40
    assert 0 < sum(now.open.values()) <= 4 * workers
    (folder / "cured").touch()
    again = begin(folder, "hanging", ["exact"])
    assert "in doubt" in end(again)
    assert again.returncode == 0


def test_a_second_and_a_third_ctrl_c_end_it_at_once(folder):
    process = begin(folder, "hanging", ["exact"], "--batch", 4)
    until((folder / "hangs").exists, process)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        time.sleep(0.003)
    end(process)
    assert process.returncode == 130
    assert time.monotonic() - began < 7  # it has 8 s for what is in flight


def test_a_target_that_hangs_for_good_is_an_oracle_error(folder):
    words = ["--batch", 4, "--timeout", 0.3, "--retries", 2]
    process = begin(folder, "hanging", ["exact"], *words)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5
    assert "in 2 tries (TimeoutError: no answer within 0.3 s)" in told
    now = account(folder / "o" / "ledger.sqlite")
    assert (now.failed, now.open) == (8, {})


# -- before and after


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ended_during_the_imports(number, folder, trials, evidence):
    rng, endings = np.random.default_rng(number), trials(1, 60)
    for _ in range(endings):
        process = begin(folder, "head", ["exact"])
        started(process)
        time.sleep(rng.uniform(0.0, 0.65))
        process.send_signal(number)
        end(process)
        assert process.returncode in (0, ENDINGS[number], *([] if number == 2 else [-number]))
    evidence(
        f"the command ended by {signal.Signals(number).name} while it starts",
        endings=endings,
        tracebacks=0,
    )


def test_signals_that_the_parent_ignores_stay_ignored(folder):
    """As `nohup` does."""
    command = f"trap '' HUP; {COMMAND} learn mine:head --dim 6 --out o"
    process = subprocess.Popen(
        ["sh", "-c", f"{command} & echo $!; wait $!"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    number = int(process.stdout.readline())
    time.sleep(0.5)
    os.kill(number, signal.SIGHUP)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_terminal_that_is_closed_loses_nothing(folder):
    """Its SIGHUP finds nobody to tell; what flew is recorded all the same."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(folder)
        os.environ["PAUSE_S"] = "0.1"
        words = ["learn", "mine:head", "--dim", "6", "--out", "o", "--batch", "4"]
        os.execv(COMMAND, [str(COMMAND), *words])
    for _ in range(int(PATIENCE_S / 0.01)):
        if asked(folder) >= 12:
            break
        time.sleep(0.01)
    os.close(terminal)
    for _ in range(int(PATIENCE_S / 0.01)):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.01)
    assert ended, "it goes on without its terminal"
    assert os.waitstatus_to_exitcode(status) == 129
    now = account(folder / "o" / "ledger.sqlite")
    assert now.open == {}
    assert now.recorded == now.paid == asked(folder) >= 12


def test_progress_that_nobody_reads_ends_no_run(folder):
    """As under `2>&1 >result | head -1`: the first line is read, and no other."""
    process = begin(folder, "head", ["exact"], "--batch", 4, "--json")
    assert process.stderr is not None
    assert process.stdout is not None
    assert "Importing mine" in process.stderr.readline()
    process.stderr.close()
    said = process.stdout.read()
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0, said
    assert '"passed": true' in said


SCRIPT = """
import signal, time
import unsoftmax as us
from mine import head
try:
    us.learn(head, us.learners.ExactHead(6), ledger="ledger", batch=4)
finally:
    print("cleaned up")
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_python_program_ends_with_the_status_of_its_signal(number, folder):
    """With what flew recorded, and its own `finally` run."""
    (folder / "program.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "PAUSE_S": "0.2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: asked(folder) >= 8, process)
    process.send_signal(number)
    assert "cleaned up" in end(process)
    assert process.returncode == ENDINGS[number]
    now = account(folder / "ledger")
    assert now.open == {}
    assert now.recorded == now.paid == asked(folder)
