"""Runs in processes that die, against an oracle in a process that does not and keeps count.

`Served` is the oracle's process; `Remote` asks it from any process or thread; `Life` is a
process that learns and may be killed. Children come from a fork server that has loaded what
they use, so that a life takes milliseconds to begin.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import unsoftmax as us

PATIENCE_S = 30.0
"""Longest that anything here may take; a test that waits longer fails."""

# `unsoftmax` itself loads what it has when that is first used: too late for a fork server.
LOADED = [
    "pytest",
    "tests.campaign.script",
    "tests.vector_learners",
    "unsoftmax.campaign.runner",
    "unsoftmax.learners.single_head.exact",
    "unsoftmax.questions.identification",
    "unsoftmax.questions.verification",
]


def unmeasured() -> dict[str, str]:
    """Return an environment in which coverage does not start.

    A process that is killed while it writes what coverage measured leaves a damaged file.
    """
    return {name: word for name, word in os.environ.items() if name != "COVERAGE_PROCESS_CONFIG"}


@cache
def _context() -> ForkServerContext:
    """Return what lives and oracles come from: a server that has loaded all, unmeasured."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    # its path is the parent's from its first child on: the tests are to be found before
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with patch.dict(os.environ, unmeasured() | found, clear=True):
        ensure_running()
    return context


def one_by_one(target, X):
    """Answer every sequence alone, so that its bits do not depend on its batch."""
    return np.array([target(x[None])[0] for x in X])


# -- the oracle's process


def _serve(target, pause_s: float, ready: Connection) -> None:
    asked: dict[str, Counter[bytes]] = {}
    lock = threading.Lock()

    def attend(connection) -> None:
        with connection:
            try:
                while True:
                    life, X = connection.recv()
                    if X is None:
                        with lock:
                            connection.send(asked)
                        continue
                    with lock:
                        asked.setdefault(life, Counter()).update(probes_of(X))
                    time.sleep(pause_s)
                    connection.send(one_by_one(target, X))
            except (EOFError, OSError):
                return  # that life is over

    with Listener() as listener:
        ready.send(listener.address)
        while True:
            threading.Thread(target=attend, args=(listener.accept(),), daemon=True).start()


def probes_of(X) -> list[bytes]:
    """Identify every sequence by its shape and bits."""
    return [repr(x.shape).encode() + x.tobytes() for x in X]


class Served:
    """A target in a process of its own, which counts every probe by the life that asked."""

    def __init__(self, target, pause_s: float = 0.0) -> None:
        ours, theirs = _context().Pipe()
        self._process = _context().Process(
            target=_serve, args=(target, pause_s, theirs), daemon=True
        )
        self._process.start()
        assert ours.poll(PATIENCE_S)
        self.address = ours.recv()
        self._own = Client(self.address)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_) -> None:
        self._own.close()
        self._process.kill()
        self._process.join(PATIENCE_S)
        os.unlink(self.address)

    def asked(self) -> dict[str, Counter[bytes]]:
        """Return how often every probe was asked, by life."""
        self._own.send((None, None))
        assert self._own.poll(PATIENCE_S)
        asked: dict[str, Counter[bytes]] = self._own.recv()
        return asked


class Remote:
    """The oracle as seen from a life: one connection per thread."""

    def __init__(self, address: str, life: str) -> None:
        self._address, self._life = address, life
        self._local = threading.local()

    def __reduce__(self):
        return Remote, (self._address, self._life)

    def __call__(self, X):
        if not hasattr(self._local, "connection"):
            self._local.connection = Client(self._address)
        self._local.connection.send((self._life, X))
        return self._local.connection.recv()


# -- the lives


class Points:
    """Counts the moments at which a life may end, and ends it at one of them."""

    def __init__(self, last: int | None) -> None:
        self.passed = 0
        self._last = last

    def __call__(self) -> None:
        if self.passed == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed += 1

    def around(self, method):
        """Add a moment before and one after every call."""

        def call(*args, **kwargs):
            self()
            result = method(*args, **kwargs)
            self()
            return result

        return call


@dataclass(frozen=True)
class Mortal:
    """A learner with a moment before and after every yield."""

    learner: Any
    point: Points

    def __getattr__(self, name):
        return getattr(self.learner, name)

    def steps(self, checks):
        steps = self.learner.steps(checks)
        answers: Any = None
        while True:
            try:
                asked = steps.send(answers)
            except StopIteration as end:
                return end.value
            self.point()
            answers = yield asked
            self.point()


def checkpoint_once() -> None:
    """Leave all but the run's beginning in the WAL, as where the disk is slow."""
    from unsoftmax.campaign.ledger import Ledger

    checkpoint, name = Ledger.checkpoint, "checkpoint"

    def first(ledger):
        checkpoint(ledger)
        ledger._next_checkpoint = float("inf")

    setattr(Ledger, name, first)


def default_signals() -> None:
    """Let signals end this process, also below `nohup` or a shell's `&`, which ignore some."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _live(oracle, learner, settings: dict[str, Any], last: int | None, result: Connection) -> None:
    default_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(oracle, "pipe_to"):
        oracle.pipe_to(result)
    point = Points(last)
    if last is not None:
        from unsoftmax.campaign.ledger import Ledger

        for name in ("claim", "intend", "settle"):
            setattr(Ledger, name, point.around(getattr(Ledger, name)))
        checkpoint_once()
        learner = Mortal(learner, point)
    result.send("begun")
    try:
        recovery = us.learn(oracle, learner, **settings)
    except BaseException as error:
        result.send(error)
    else:
        result.send((recovery, point.passed))


class Life:
    """A process that learns. ``last``: the number of the moment at which it kills itself."""

    def __init__(self, oracle, learner, last: int | None = None, **settings) -> None:
        self.pipe, theirs = _context().Pipe()
        self.process = _context().Process(
            target=_live, args=(oracle, learner, settings, last, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        assert self.hear() == "begun"

    def hear(self):
        """Return the next thing it says; EOFError when it has died instead."""
        assert self.pipe.poll(PATIENCE_S), "the child says nothing"
        return self.pipe.recv()

    def interrupt(self) -> None:
        """Press its Ctrl-C."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGINT)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it by a signal, which it may take its time to follow."""
        with suppress(ProcessLookupError):  # it has come to its end
            if self.process.is_alive() and self.process.pid is not None:
                os.kill(self.process.pid, number)
        self.end()

    def end(self) -> None:
        """Wait until it has ended, or end it."""
        self.process.join(PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(PATIENCE_S)
        self.pipe.close()

    def result(self):
        """Return what it ends with: (recovery, moments), or the error; None when it was killed."""
        try:
            return self.hear()
        except (EOFError, ConnectionResetError):
            return None
        finally:
            self.end()


# -- what a ledger says, read by another program


@dataclass(frozen=True)
class Account:
    """Sums over a ledger's tables, in queries."""

    recorded: int = 0
    paid: int = 0
    fingerprint: int = 0
    failed: int = 0
    open: Mapping[int, int] = field(default_factory=dict)
    """Queries of every intent that has no outcome."""
    first: int = 0
    """What a run that goes on asks again: one in 4 of what is recorded, 8 to 32."""


def account(ledger: Path) -> Account:
    """Read a copy of a ledger and its WAL, so that the ledger itself stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (ledger.name, ledger.name + "-wal"):
            if ledger.with_name(name).exists():
                shutil.copy(ledger.with_name(name), folder)
        copy = Path(folder, ledger.name)
        if not copy.exists():
            return Account()
        with closing(sqlite3.connect(copy)) as db:
            [(recorded,)] = db.execute("SELECT coalesce(sum(count), 0) FROM answers")
            rows = db.execute("SELECT id, purpose, queries, outcome FROM asked").fetchall()
    return Account(
        recorded=recorded,
        paid=sum(queries for _, _, queries, _ in rows),
        fingerprint=sum(n for _, why, n, end in rows if (why, end) == ("fingerprint", "answered")),
        failed=sum(n for _, _, n, end in rows if end == "failed"),
        open={number: n for number, _, n, end in rows if end is None},
        first=min(recorded, max(8, min(recorded // 4, 32))),
    )


def same_bits(recovery, expected) -> bool:
    """Compare what two runs ended with."""
    mine, other = recovery.model.arrays(), expected.model.arrays()
    return (
        mine.keys() == other.keys()
        and all(mine[name].tobytes() == other[name].tobytes() for name in mine)
        and recovery.certificate == expected.certificate
        and recovery.evidence == expected.evidence
    )


class Ghosts:
    """Follows one ledger through its lives, and checks each against the oracle's count."""

    def __init__(
        self, ledger: Path, most_in_flight: int, fingerprint: int, once: Counter[bytes]
    ) -> None:
        self.ledger = ledger
        self.most_in_flight = max(most_in_flight, fingerprint)
        self.once = once
        """What an uninterrupted run asks."""
        self.before = account(ledger)
        self.lost: dict[int, int] = {}
        """Queries in doubt, by the number of their intent."""
        self.deaths = 0

    def died(self, asked: Counter[bytes]) -> None:
        """Check a life that was killed, given what the oracle was asked in it."""
        now = self._settle(asked)
        assert sum(now.open.values()) <= self.most_in_flight
        self.lost |= now.open
        self.deaths += 1

    def finished(self, asked: Counter[bytes], recovery) -> None:
        """Check the life that was not, and the sums over all of them."""
        now = self._settle(asked)
        assert not now.open
        assert now.recorded == sum(self.once.values())
        lost = sum(self.lost.values())
        assert recovery.counts.get("in doubt", 0) == lost
        assert recovery.queries == now.paid
        notes = [note for note in recovery.notes if "in flight" in note]
        assert [note.split()[0] for note in notes] == ([f"{lost:,}"] if lost else [])

    def _settle(self, asked: Counter[bytes]) -> Account:
        """The oracle was asked what the ledger says, and what is in doubt at most on top."""
        now, count = account(self.ledger), sum(asked.values())
        unknown = sum(n for number, n in now.open.items() if number not in self.before.open)
        settled = (now.recorded - self.before.recorded) + (
            now.fingerprint - self.before.fingerprint
        )
        assert settled <= count <= settled + unknown
        # beyond what one run asks of each probe: the fingerprint, and what was in doubt
        assert sum((asked - self.once).values()) == 0
        assert now.paid >= self.before.paid
        self.before = now
        return now
