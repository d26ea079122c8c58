"""The ledger: what may be opened, whose it is, and what it keeps."""

import contextlib
import json
import os
import resource
import shutil
import sqlite3
import stat
import tempfile
import threading
import zlib
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.lives import (
    PATIENCE_S,
    Life,
    Remote,
    Served,
    account,
    checkpoint_once,
    one_by_one,
)
from tests.campaign.script import Script, answers_of, first_number, head, sequences
from tests.truth import Counted
from unsoftmax.campaign.ledger import Ledger, _differences, rescued
from unsoftmax.campaign.ledger_file import open_ledger
from unsoftmax.campaign.ledger_format import Bill, Settlement, Totals
from unsoftmax.campaign.ledger_health import PaidCounter
from unsoftmax.campaign.ledger_salvage import salvage, summary
from unsoftmax.probes import Pairs, Sequences, Singles, UnitVectors
from unsoftmax.questions import Verifier
from unsoftmax.questions.identification import Identifier

DIM = 4
SETTINGS: dict[str, Any] = {"batch": 2, "holdout": 8}


@dataclass(frozen=True)
class OneByOne:
    """A target whose bits do not depend on the batch."""

    target: us.SingleHead

    def __call__(self, X):
        return one_by_one(self.target, X)


ORACLE = OneByOne(head())
LEARNER = us.learners.ExactHead(DIM)


def learn(ledger, oracle=ORACLE, learner=LEARNER, **settings):
    counted = Counted(oracle)
    return us.learn(counted, learner, ledger=ledger, **(SETTINGS | settings)), counted


def bits(recovery):
    return recovery.model.W.tobytes(), recovery.model.v.tobytes()


@pytest.fixture(scope="module")
def expected():
    return us.learn(ORACLE, LEARNER, **SETTINGS)


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A complete ledger after a clean close: one file."""
    ledger = tmp_path_factory.mktemp("closed") / "ledger"
    learn(ledger)
    assert [file.name for file in ledger.parent.iterdir()] == ["ledger"]
    return ledger.read_bytes()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A ledger after kill -9: half of the run in the file, some more in its WAL; its counter."""
    ledger = tmp_path_factory.mktemp("killed") / "ledger"
    with pytest.raises(us.BudgetExceeded):
        learn(ledger, budget=10)
    life = Life(ORACLE, LEARNER, last=40, **SETTINGS, ledger=ledger)
    assert life.result() is None
    return [ledger.with_name(name).read_bytes() for name in ("ledger", "ledger-wal", "ledger-paid")]


def refused(ledger, *words):
    """Refuse to open it, by name, and leave the folder as it is."""
    before = {file.name: file.read_bytes() for file in ledger.parent.iterdir() if file.is_file()}
    counted = Counted(ORACLE)
    with pytest.raises(us.LedgerError) as caught:
        us.learn(counted, LEARNER, ledger=ledger, **SETTINGS)
    assert not isinstance(caught.value, us.LedgerMismatch)
    for word in (str(ledger), *words):
        assert word in str(caught.value)
    assert counted.calls == 0
    after = {file.name: file.read_bytes() for file in ledger.parent.iterdir() if file.is_file()}
    assert after == before


# -- what may be opened


@pytest.mark.parametrize("size", [0, 1, 50, 99, 100, 101, 512, 4095, 4097, "half", "less one"])
def test_a_truncated_ledger_is_refused(size, closed, ledger):
    size = {"half": len(closed) // 2, "less one": len(closed) - 1}.get(size, size)
    ledger.write_bytes(closed[:size])
    refused(ledger, "empty" if size == 0 else "ledger" if size < 100 else "damaged")


def test_a_ledger_truncated_between_pages_is_refused(closed, ledger):
    page = 4096
    assert len(closed) % page == 0
    assert len(closed) >= 8 * page
    for size in range(page, len(closed), page):
        ledger.write_bytes(closed[:size])
        refused(ledger, "damaged")


def test_a_ledger_truncated_after_a_kill_is_refused_or_whole(ledger):
    # What the WAL holds of the missing pages repairs them: then nothing is missing.
    script = Script([[sequences(1200, tokens=1)], [sequences(8, seed=1)]])
    whole = answers_of(us.learn(first_number, script))
    with pytest.raises(us.BudgetExceeded):
        us.learn(first_number, script, ledger=ledger, budget=1200)
    # 32 queries tell whether it is the same target
    assert Life(first_number, script, last=46, batch=2, ledger=ledger).result() is None
    file, wal = ledger.read_bytes(), ledger.with_name("ledger-wal").read_bytes()
    assert account(ledger).recorded > 1200

    outcomes = Counter[str]()
    for size in [0, 50, 100, 512, 4095, *range(4096, len(file) + 1, 4096), len(file) - 1]:
        ledger.write_bytes(file[:size])
        ledger.with_name("ledger-wal").write_bytes(wal)
        counted = Counted(first_number)
        try:
            recovery = us.learn(counted, script, ledger=ledger)
        except us.LedgerError as refusal:
            outcomes["refused"] += 1
            assert str(ledger) in str(refusal)  # noqa: PT017
            assert counted.calls == 0
            assert ledger.read_bytes() == file[:size]
            assert ledger.with_name("ledger-wal").read_bytes() == wal
        else:
            outcomes["whole"] += 1
            assert counted.queries < 32 + 8
            for known, answers in zip(whole, answers_of(recovery), strict=True):
                assert np.array_equal(known[0], answers[0])
    assert outcomes["whole"] >= 1
    assert outcomes["refused"] >= 8


def test_a_torn_wal_is_named_unless_nothing_is_missing(killed, expected, ledger):
    file, wal, paid = killed
    ledger.write_bytes(file)
    ledger.with_name("ledger-wal").write_bytes(wal)
    account_of_all = account(ledger)
    known: list[int] = []
    for size in np.linspace(0, len(wal), 12).astype(int):
        ledger.write_bytes(file)
        ledger.with_name("ledger-wal").write_bytes(wal[:size])
        ledger.with_name("ledger-paid").write_bytes(paid)
        now = account(ledger)
        known.append(now.recorded)
        try:
            recovery, counted = learn(ledger)
        except us.LedgerError:
            refused(ledger, "paid queries", "are not in it")
            continue
        assert now == account_of_all
        assert counted.queries == expected.queries - now.recorded + now.first
        assert bits(recovery) == bits(expected)
    assert known == sorted(known)
    assert known[0] < known[-1]


@pytest.mark.parametrize("left", [{"ledger"}, {"ledger", "ledger-wal"}, {"ledger", "ledger-paid"}])
def test_a_copy_that_lacks_a_file_is_named(left, killed, ledger, tmp_path):
    for name, data in zip(("ledger", "ledger-wal", "ledger-paid"), killed, strict=True):
        if name in left:
            (tmp_path / name).write_bytes(data)
    missing = "ledger-wal" if "ledger-paid" in left else "ledger-paid"
    refused(ledger, missing, "is missing", "--salvage")


@pytest.mark.parametrize("left", ["ledger-wal", "ledger-paid"])
def test_what_belongs_to_a_ledger_that_is_gone_is_named(left, killed, ledger, tmp_path):
    (tmp_path / left).write_bytes(killed[1])
    refused(ledger, left, "is missing")


def test_a_counter_of_another_ledger_is_named(killed, ledger, tmp_path):
    for name, data in zip(("ledger", "ledger-wal"), killed[:2], strict=True):
        (tmp_path / name).write_bytes(data)
    line = b"0" * 16 + killed[2][16:-10]
    (tmp_path / "ledger-paid").write_bytes(line + b" %08x\n" % zlib.crc32(line))
    refused(ledger, "belongs to another ledger")
    (tmp_path / "ledger-paid").unlink()
    (tmp_path / "ledger-paid").mkdir()
    refused(ledger, "ledger-paid")


def test_foreign_files_are_refused(tmp_path):
    text = tmp_path / "text"
    text.write_text("These are my notes.\n" * 50)
    refused(text, "not a ledger")

    other = tmp_path / "other"
    with closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE runs (a)")
        db.commit()
    refused(other, "another program's")

    folder = tmp_path / "folder"
    folder.mkdir()
    refused(folder, "not a file")

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused(pipe, "not a file")

    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    refused(dangling)
    with pytest.raises(us.LedgerError, match=r"No ledger can be made at .*no such folder"):
        learn(tmp_path / "no such folder" / "ledger")


def test_a_newer_ledger_is_refused(closed, ledger):
    ledger.write_bytes(closed)
    with closing(sqlite3.connect(ledger)) as db:
        db.execute("PRAGMA user_version = 4")
        db.execute("PRAGMA journal_mode = DELETE")
    refused(ledger, "format 4", "upgrade")


def test_a_read_only_ledger_is_refused(closed, ledger):
    ledger.write_bytes(closed)
    ledger.chmod(0o444)
    refused(ledger, "read-only", "chmod")


def test_a_wal_that_cannot_be_made_is_refused_and_not_called_damaged(closed, ledger, tmp_path):
    ledger.write_bytes(closed)
    (tmp_path / "ledger-wal").mkdir()
    refused(ledger, "cannot be used")


def test_a_ledger_is_readable_by_its_owner_alone(ledger, tmp_path):
    modes: set[tuple[str, int]] = set()

    def looking(X):
        modes.update((file.name, stat.S_IMODE(file.stat().st_mode)) for file in tmp_path.iterdir())
        return ORACLE(X)

    before = os.umask(0)
    try:
        learn(ledger, looking)
    finally:
        os.umask(before)
    assert modes == {(name, 0o600) for name in ("ledger", "ledger-wal", "ledger-paid")}
    assert [file.name for file in tmp_path.iterdir()] == ["ledger"]


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that is unreadable")
def test_an_unreadable_file_is_refused():
    with pytest.raises(us.LedgerError, match="/proc/self/mem cannot be read"):
        learn("/proc/self/mem")


@pytest.mark.parametrize("nameless", [True, False])
def test_another_process_may_make_it_first(nameless, ledger, tmp_path, monkeypatch, expected):
    link = os.link

    def slowly(*args, **settings):
        monkeypatch.undo()
        learn(ledger)
        return link(*args, **settings)

    monkeypatch.setattr(os, "link", slowly)
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    recovery, counted = learn(ledger)
    assert counted.queries == account(ledger).first
    assert bits(recovery) == bits(expected)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger"]


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="needs files without a name")
def test_killed_while_it_is_made_a_ledger_leaves_nothing(ledger, tmp_path, monkeypatch):
    """Nothing is there before the whole ledger is."""
    seen = []

    def look(*_, **__):
        seen.append(list(tmp_path.iterdir()))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", look)
    with pytest.raises(KeyboardInterrupt):
        learn(ledger)
    assert seen == [[]]


# -- who has it


class Waiting:
    """An oracle that says when it is asked, and waits until it may answer."""

    def __init__(self):
        self.asked, self.go = threading.Event(), threading.Event()

    def __call__(self, X):
        self.asked.set()
        assert self.go.wait(PATIENCE_S)
        return ORACLE(X)


class Telling:
    """The same over the pipe of a `Life`."""

    def pipe_to(self, pipe):
        self.pipe = pipe

    def __call__(self, X):
        if self.pipe is not None:
            self.pipe.send("asked")
            assert self.pipe.poll(PATIENCE_S)
            self.pipe.recv()
            self.pipe = None
        return ORACLE(X)


def test_a_ledger_in_use_by_another_process_is_refused(ledger, expected):
    life = Life(Telling(), LEARNER, **SETTINGS, ledger=ledger)
    try:
        assert life.hear() == "asked"
        refused(ledger, "in use")
        life.pipe.send("go")
        recovery, _ = life.hear()
    finally:
        life.kill()
    assert bits(recovery) == bits(expected)
    recovery, counted = learn(ledger)
    assert counted.queries <= 8
    assert bits(recovery) == bits(expected)


def test_a_ledger_in_use_by_this_process_is_refused_and_stays_locked(ledger, expected):
    oracle, results = Waiting(), []
    thread = threading.Thread(target=lambda: results.append(learn(ledger, oracle)[0]))
    thread.start()
    try:
        assert oracle.asked.wait(PATIENCE_S)
        refused_here = ledger.with_name("alias")
        os.link(ledger, refused_here)
        for name in (ledger, refused_here):
            with pytest.raises(us.LedgerError, match="in use"):
                us.learn(ORACLE, LEARNER, ledger=name, **SETTINGS)
        # that attempt must not have opened the door to others
        error = Life(ORACLE, LEARNER, **SETTINGS, ledger=ledger).result()
        assert isinstance(error, us.LedgerError)
        assert "in use" in str(error)
    finally:
        oracle.go.set()
        thread.join(PATIENCE_S)
    [recovery] = results
    assert bits(recovery) == bits(expected)


class Failing:
    """A connection that can do nothing any more."""

    in_transaction = True

    def __init__(self, connection):
        self.close = getattr(connection, "close", None)

    def execute(self, *_):
        raise sqlite3.OperationalError("disk I/O error")


# -- its files, taken away while it is in use


@pytest.mark.parametrize("taken", ["", "-wal", "-paid"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_taken_away_is_noticed_and_nothing_is_lost(
    taken, replaced, ledger, tmp_path, expected
):
    calls: list[int] = []

    def oracle(X):
        calls.append(len(X))
        if len(calls) == 6:
            (tmp_path / f"ledger{taken}").unlink()
            if replaced:
                (tmp_path / f"ledger{taken}").write_bytes(b"other")
        return ORACLE(X)

    with pytest.raises(us.LedgerError, match="deleted, moved or replaced") as caught:
        us.learn(oracle, LEARNER, ledger=ledger, **SETTINGS)
    assert str(ledger) + taken in str(caught.value)
    assert len(calls) == 6
    kept = ledger if taken else tmp_path / "ledger-rescued"
    now = account(kept)
    assert now.recorded == sum(calls)
    recovery, counted = learn(kept)
    assert counted.queries == expected.queries - now.recorded + now.first
    assert bits(recovery) == bits(expected)


def test_a_ledger_may_be_a_link_and_the_target_may_change_the_folder(
    tmp_path, monkeypatch, expected
):
    for name in ("real", "links", "elsewhere"):
        (tmp_path / name).mkdir()
    with pytest.raises(us.BudgetExceeded):
        learn(tmp_path / "real" / "ledger", budget=4)
    (tmp_path / "links" / "ledger").symlink_to("../real/ledger")
    monkeypatch.chdir(tmp_path / "links")

    def oracle(X):
        os.chdir(tmp_path / "elsewhere")
        return ORACLE(X)

    recovery = us.learn(oracle, LEARNER, ledger="ledger", **SETTINGS)
    assert bits(recovery) == bits(expected)
    os.chdir(tmp_path / "links")
    _, counted = learn("ledger")
    assert counted.queries == account(tmp_path / "real" / "ledger").first
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")}
    assert found == {"real/ledger", "links/ledger"}


@pytest.mark.parametrize("anywhere", [True, False])
def test_a_ledger_whose_folder_is_gone_is_kept_elsewhere(anywhere, tmp_path, monkeypatch, expected):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    calls = []

    def oracle(X):
        calls.append(len(X))
        if len(calls) == 6:
            shutil.rmtree(folder, ignore_errors=True)
            if not anywhere:
                elsewhere.rmdir()
        return ORACLE(X)

    folder.mkdir()
    with pytest.raises(us.LedgerError, match=f"copied.*{'elsewhere' if anywhere else 'No such'}"):
        us.learn(oracle, LEARNER, ledger=folder / "ledger", **SETTINGS)
    if anywhere:
        recovery, _ = learn(elsewhere / "ledger-rescued")
        assert bits(recovery) == bits(expected)


def test_a_ledger_deleted_at_the_very_end_is_kept_elsewhere(ledger, tmp_path, caplog, expected):
    (tmp_path / "ledger-rescued").write_text("an older one")
    with open_ledger(ledger, {}) as book:
        book.claim({}, None)
        number = book.intend(Bill("data", 1, 1))
        book.settle(number, Settlement(Bill("data", 1, 1), 0))
        ledger.unlink()
    assert "ledger-rescued-2" in caplog.text
    assert account(tmp_path / "ledger-rescued-2").paid == 1
    assert stat.S_IMODE((tmp_path / "ledger-rescued-2").stat().st_mode) == 0o600


def test_a_copy_that_does_not_fit_leaves_nothing(ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failing: Any = Failing(None)
    said = rescued(failing, ledger)
    assert said.count("disk I/O error") == 2
    assert list(tmp_path.iterdir()) == []


# -- a full disk


@dataclass(frozen=True)
class Cramped:
    """An oracle whose process may not write files beyond a size."""

    remote: Remote
    most_bytes: int
    wal: bool
    """Whether everything stays in the WAL, as where the disk is slow."""

    def pipe_to(self, pipe):
        if self.wal:
            checkpoint_once()
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.most_bytes, resource.RLIM_INFINITY))

    def __call__(self, X):
        return self.remote(X)


@pytest.mark.few
@pytest.mark.parametrize("wal", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_full_disk_keeps_what_was_recorded(workers, wal, tmp_path, expected, trials):
    failed = Counter[str]()
    with Served(head()) as served:
        for most_kb in (1, 8, 40, 60, 80, 120, 160, 200, 240)[:: trials(2, 1)]:
            ledger = tmp_path / str(most_kb)
            oracle = Cramped(Remote(served.address, str(most_kb)), most_kb * 1024, wal)
            life = Life(oracle, LEARNER, **SETTINGS, workers=workers, ledger=ledger)
            error = life.result()
            asked = sum(served.asked().get(str(most_kb), Counter()).values())
            now = account(ledger)
            if not isinstance(error, us.LedgerError):
                assert bits(error[0]) == bits(expected)
                failed["no"] += 1
                continue
            assert not isinstance(error, us.LedgerMismatch)
            assert str(ledger) in str(error)
            failed["with nothing" if not now.recorded else "midway"] += 1
            # beyond what is in doubt, one intent and its answers may have failed to be written
            assert now.recorded <= asked <= now.recorded + sum(now.open.values())

            recovery, counted = learn(ledger)
            assert counted.queries == expected.queries - now.recorded + now.first
            assert bits(recovery) == bits(expected)
            assert recovery.counts.get("in doubt", 0) == sum(now.open.values())
    assert failed["with nothing"]
    assert failed["midway"] >= 2 * wal
    assert [file for file in tmp_path.iterdir() if ".new" in file.name] == []


@contextlib.contextmanager
def files_of_at_most(most_bytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_for_a_while(ledger, tmp_path, monkeypatch, expected):
    monkeypatch.setattr(Ledger, "checkpoint", lambda self: None)  # the WAL grows
    with files_of_at_most(1024), pytest.raises(us.LedgerError, match="No ledger can be made"):
        learn(ledger)
    assert list(tmp_path.iterdir()) == []
    counted = Counted(ORACLE)
    with files_of_at_most(80 * 1024), pytest.raises(us.LedgerError, match="free some disk space"):
        us.learn(counted, LEARNER, ledger=ledger, **SETTINGS)
    now = account(ledger)
    assert 0 < now.recorded <= counted.queries <= now.recorded + sum(now.open.values())
    recovery, counted = learn(ledger)
    assert counted.queries == expected.queries - now.recorded + now.first
    assert bits(recovery) == bits(expected)


def test_a_commit_that_is_interrupted_is_undone(ledger, monkeypatch, expected):
    """A second Ctrl-C in the midst of recording: that batch is in doubt, all others are kept."""
    intend, left = Ledger._intend, iter(range(8))

    def interrupted(self, *args):
        number = intend(self, *args)
        if next(left, None) is None:
            raise KeyboardInterrupt
        return number

    monkeypatch.setattr(Ledger, "_intend", interrupted)
    counted = Counted(ORACLE)
    with pytest.raises(KeyboardInterrupt):
        us.learn(counted, LEARNER, ledger=ledger, **SETTINGS)
    monkeypatch.undo()
    now = account(ledger)
    assert sum(now.open.values()) == 2
    assert now.recorded == counted.queries - 2 == now.paid - 2
    recovery, _ = learn(ledger)
    assert recovery.counts["in doubt"] == 2
    assert bits(recovery) == bits(expected)


# -- whose it is


def test_another_run_is_a_mismatch_that_names_both(closed, ledger, monkeypatch, expected):

    def mismatch(learner, *words, **settings):
        ledger.write_bytes(closed)
        counted = Counted(ORACLE)
        with pytest.raises(us.LedgerMismatch) as caught:
            us.learn(counted, learner, ledger=ledger, **(SETTINGS | settings))
        for word in (str(ledger), *words):
            assert word in str(caught.value)
        assert counted.calls == 0
        assert account(ledger).paid == expected.queries

    exact = us.learners.ExactHead
    mismatch(exact(DIM, biases=True), "biases was False and is now True")
    mismatch(exact(DIM, probes="gaussian"), "probes was 'balanced' and is now 'gaussian'")
    mismatch(exact(DIM, seed=1), "seed was 0 and is now 1")
    mismatch(exact(DIM), "holdout was 8 and is now 12", holdout=12)
    mismatch(Script([[sequences(3)]], dim=DIM), "'ExactHead'", "'Script'")
    mismatch(Identifier(DIM), "the questions of ExactHead, not an audit's", "ExactHead goes on")
    mismatch(Verifier(head(DIM)), "the questions of ExactHead, not a verification's")
    mismatch(exact(DIM, context=99), "learner.context was its default and is now 99")
    was = exact.revision
    monkeypatch.setattr(exact, "revision", 99)
    mismatch(exact(DIM), f"revision was {was} and is now 99")


def test_settings_that_differ_are_named_in_full():
    before = {"of": {"dim": 3, "tuning": {"grid": {"a": 1, "b": 2}}}, "rank": None}
    now = {"of": {"dim": 3, "tuning": {"grid": {"a": 2}}}, "rank": 2}
    assert _differences(before, now) == (
        "of.tuning.grid.a was 1 and is now 2; of.tuning.grid.b was 2 and is now its default; "
        "rank was None and is now 2"
    )
    assert _differences(now, {**now, "of": {"dim": 3}}) == (
        "of.tuning.grid.a was 2 and is now its default"
    )
    assert _differences({"of": None}, {"of": {"dim": 3}}) == "of was None and is now {'dim': 3}"


def test_another_dim_is_a_mismatch_where_the_target_does_not_say_its_own(closed, ledger):
    ledger.write_bytes(closed)
    with pytest.raises(us.LedgerMismatch, match="dim was 4 and is now 5"):
        us.learn(OneByOne(head(5)), us.learners.ExactHead(5), ledger=ledger, **SETTINGS)


def test_a_ledger_without_answers_belongs_to_nobody(ledger, expected):
    """A first try with the wrong dim, say, does not spoil the file; it was paid all the same.

    A short token is asked as well: it tells a wrong dimension from tokens that are too long.
    """
    for dim in (5, 3):
        with pytest.raises(us.DimensionRefused):
            learn(ledger, ORACLE.target.W.__matmul__, us.learners.ExactHead(dim))
    failed = account(ledger).failed
    recovery, counted = learn(ledger, budget=failed + expected.queries)
    assert recovery.counts["failed"] == failed == 2 * 3 * (2 + 1)
    assert counted.queries == expected.queries
    with pytest.raises(us.LedgerMismatch, match=r"learner\.dim was 4 and is now 5"):
        learn(ledger, OneByOne(head(5)), us.learners.ExactHead(5))


def other_targets(dim):
    truth = head(dim)
    one = truth.W.copy()
    one[dim // 2, 0] *= 1 + 1e-6
    v = truth.v.copy()
    v[-1] *= 1 + 1e-6
    return {
        "W": us.SingleHead(head(dim, 1).W, truth.v),
        "v": us.SingleHead(truth.W, head(dim, 1).v),
        "one entry of W": us.SingleHead(one, truth.v),
        "one entry of v": us.SingleHead(truth.W, v),
        "w": us.SingleHead(truth.W, truth.v, w=1e-6 * np.ones(dim)),
    }


@pytest.mark.parametrize("change", ["W", "v", "one entry of W", "one entry of v", "w"])
@pytest.mark.parametrize(("dim", "holdout", "batch"), [(2, 4, 1), (4, 8, 2), (8, 32, None)])
def test_another_target_is_a_mismatch(change, dim, holdout, batch, ledger):
    learner = us.learners.ExactHead(dim)
    settings: dict[str, Any] = {"holdout": holdout, "batch": batch, "ledger": ledger}
    with pytest.raises(us.BudgetExceeded):
        us.learn(head(dim), learner, budget=dim**2, **settings)
    known = account(ledger)
    other = Counted(other_targets(dim)[change])
    with pytest.raises(us.LedgerMismatch, match=r"question \d+ was .* and is .*another ledger"):
        us.learn(other, learner, **settings)
    assert other.queries <= 2 * known.first
    now = account(ledger)
    assert now.recorded == known.recorded
    assert now.paid == known.paid + other.queries
    # the right one goes on
    recovery = us.learn(head(dim), learner, **settings)
    assert recovery.counts["fingerprint"] == other.queries + other.queries // 2


def test_another_target_is_noticed_wherever_the_first_answers_are(tmp_path):
    """No hold-out in round 0, or its first batch lost: other answers serve as well."""
    ledger = tmp_path / "ledger"
    with pytest.raises(us.BudgetExceeded):
        us.learn(head(), LEARNER, ledger=ledger, holdout=0, budget=DIM)
    with pytest.raises(us.LedgerMismatch):
        us.learn(head(seed=1), LEARNER, ledger=ledger, holdout=0)

    lost = Script([[sequences(4, seed=1), sequences(6, seed=2)]])
    ledger = tmp_path / "lost"

    def failing_first(X):
        if np.array_equal(X, lost.rounds[0][0].X):
            raise MemoryError
        return X[:, 0, 0]

    with pytest.raises(us.OracleError):
        us.learn(failing_first, lost, ledger=ledger, workers=2)
    assert account(ledger).recorded == 6
    with pytest.raises(us.LedgerMismatch):
        us.learn(lambda X: X[:, 0, 1], lost, ledger=ledger)
    answers = answers_of(us.learn(first_number, lost, ledger=ledger))
    assert np.array_equal(answers[0][0], lost.rounds[0][0].X[:, 0, 0])


@pytest.mark.parametrize("form", ["float32", "bfloat16", "2 decimals", "short by chance"])
def test_a_target_is_recognised_at_the_precision_of_its_answers(form, ledger):
    """One that is rounded may move by a step and no more."""
    probes = sequences(8)
    script = Script([[probes], [sequences(1, seed=1)]])
    exact = probes.X.sum(axis=(1, 2))
    step = {
        "float32": np.spacing(exact.astype(np.float32)).astype(float),
        "bfloat16": 2.0 ** (np.floor(np.log2(np.abs(exact))) - 7),
        "2 decimals": np.full(8, 0.01),
        "short by chance": np.full(8, 1.0),
    }[form]
    rounded = np.round(exact / step) * step
    if form == "2 decimals":
        rounded = np.round(rounded, 2)

    def answering(y):
        known = {X.tobytes(): answer for X, answer in zip(probes.X, y, strict=True)}
        return lambda X: np.array([known.get(question.tobytes(), 0.0) for question in X])

    with pytest.raises(us.BudgetExceeded):
        us.learn(answering(rounded), script, ledger=ledger, budget=8)
    if form != "short by chance":
        moved = rounded + step * (np.arange(8) == 3)
        if form == "2 decimals":
            moved = np.round(moved, 2)
        with pytest.raises(us.BudgetExceeded):  # recognised: this is about the next round
            us.learn(answering(moved), script, ledger=ledger, budget=16)
    steps = 400 if form == "float32" else 4  # arithmetic in float32 may lose more than a step
    with pytest.raises(us.LedgerMismatch):
        us.learn(answering(rounded + steps * step), script, ledger=ledger)


# -- the questions


def test_a_design_may_move_in_its_last_bits_only(ledger):
    probes = sequences(5)

    def script(factor):
        moved = Sequences(probes.X * factor, phase="part 0", purpose="data")
        return Script([[moved], [sequences(2, seed=1)]])

    def oracle(X):
        return X.sum(axis=(1, 2))

    with pytest.raises(us.BudgetExceeded):
        us.learn(oracle, script(1), ledger=ledger, budget=5)
    recovery = us.learn(oracle, script(1 + 1e-12), ledger=ledger)
    [note] = [note for note in recovery.notes if "recorded questions differ" in note]
    assert "1.0e-12" in note
    assert recovery.counts == {"data": 7, "fingerprint": 5}
    counted = Counted(oracle)
    with pytest.raises(us.LedgerMismatch) as caught:
        us.learn(counted, script(1 + 1e-6), ledger=ledger)
    assert counted.calls == 0
    for word in (str(ledger), "round 0", "numpy", np.__version__, "blas", "threads"):
        assert word in str(caught.value)


def pairs(**changed):
    arrays = {
        "offsets": np.random.default_rng(0).standard_normal((3, 2)),
        "queries": np.random.default_rng(1).standard_normal((3, 2)),
        "i": np.array([0, 1, 2, 0]),
        "j": np.array([2, 1, 0, 1]),
        "alpha": np.array([1.0, 2.0**-40, 2.0**20, 1.0]),
        "beta": np.ones(4),
    } | changed
    return Pairs(**arrays, phase="pairs", purpose="data")


@pytest.mark.parametrize(
    "other",
    [
        [pairs(alpha=np.array([1.0, 2.0**-41, 2.0**20, 1.0]))],
        [pairs(i=np.array([0, 1, 2, 1]))],
        [pairs(queries=UnitVectors(2), j=np.array([1, 1, 0, 1]))],
        [pairs(offsets=np.zeros((3, 2)))],
        [pairs(offsets=np.full((3, 2), np.nan))],
        [pairs(offsets=np.zeros((4, 2)))],
        [pairs(i=np.array([0, 1, 2, 0], dtype=np.int32))],
        [pairs(), pairs()],
        [Pairs(**pairs().design(), phase="pairs", purpose="pilot")],
        [Sequences(pairs()[0:4], phase="pairs", purpose="data")],
        [],
    ],
    ids=lambda _: "",
)
def test_other_questions_are_a_mismatch(other, ledger):
    second = [sequences(2, seed=1)]

    def oracle(X):
        return X.sum(axis=(1, 2))

    us.learn(oracle, Script([[pairs()], second]), ledger=ledger)
    us.learn(oracle, Script([[pairs()], second]), ledger=ledger)
    if other:
        with pytest.raises(us.LedgerMismatch, match="round 0"):
            us.learn(oracle, Script([other, second]), ledger=ledger)
    with pytest.raises(us.LedgerMismatch, match="round 1"):
        us.learn(oracle, Script([[pairs()], other]), ledger=ledger)


def test_the_same_array_in_two_shapes_is_two_designs(ledger):
    """Zeros of any type and shape have the same bytes: each is still compared with its own."""

    def script(size):
        rows = np.array([[size, 0.0]])
        zeros = Singles(np.zeros((2, 2)), phase="c", purpose="data")
        i = np.zeros(4, dtype=np.intp)
        again = Pairs(rows, rows, i, i, np.full(4, size), np.ones(4), phase="w", purpose="data")
        return Script([[zeros, Singles(np.zeros((1, 4)), phase="z", purpose="data"), again]])

    def oracle(X):
        return X.sum(axis=(1, 2))

    us.learn(oracle, script(1.0), ledger=ledger)
    assert us.learn(oracle, script(1.0 + 1e-12), ledger=ledger).notes
    with closing(sqlite3.connect(ledger)) as db:
        rows = db.execute("SELECT dtype, shape FROM designs").fetchall()
    shapes = {(dtype, *json.loads(shape)) for dtype, shape in rows}
    assert {("<f8", 2, 2), ("<f8", 1, 4), ("<i8", 4)} <= shapes


# -- what it keeps


def test_a_complete_run_asks_only_the_fingerprint_and_returns_the_same_bits(tmp_path, expected):
    ledger = tmp_path / "ledger"
    first, _ = learn(ledger)
    known = account(ledger).first
    assert 4 <= known <= 8
    for _ in range(2):
        again, counted = learn(ledger)
        assert counted.queries == known
        assert bits(again) == bits(first) == bits(expected)
        assert again.certificate == first.certificate
        assert again.evidence == first.evidence
    assert again.counts == {**first.counts, "fingerprint": 2 * known}
    for count in (1, 8, 20):
        script, ledger = Script([[sequences(count)]]), tmp_path / str(count)
        us.learn(first_number, script, ledger=ledger)
        counted = Counted(first_number)
        us.learn(counted, script, ledger=ledger)
        assert counted.queries == min(8, count)


def test_answers_are_there_for_a_second_connection(ledger):
    script = Script([[sequences(5), sequences(3, tokens=1, seed=1)], [sequences(4, seed=2)]])
    recovery = us.learn(first_number, script, ledger=ledger, batch=2)
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT round, part, start, count, data FROM answers").fetchall()
        [(run, batch)] = db.execute("SELECT run, batch FROM runs")
        outcomes = db.execute("SELECT DISTINCT outcome FROM asked").fetchall()
    assert sum(row[3] for row in rows) == 12
    for index, part, start, count, data in rows:
        y = np.frombuffer(data, dtype="<f8")
        assert len(y) == count
        assert np.array_equal(y, answers_of(recovery)[index][part][start : start + count])
        assert np.array_equal(y, script.rounds[index][part].X[start : start + count, 0, 0])
    assert json.loads(run)["learner"] == script.settings()
    assert batch == 2
    assert outcomes == [("answered",)]


def test_a_run_goes_on_in_its_own_batches_or_in_others(tmp_path):
    script = Script([[sequences(5)], [sequences(20, seed=1)]])
    first = tmp_path / "first"
    with pytest.raises(us.BudgetExceeded):
        us.learn(first_number, script, ledger=first, batch=3, budget=7)
    for batch in (None, 1, 7):
        ledger = tmp_path / str(batch)
        shutil.copy(first, ledger)
        sizes: list[int] = []

        def oracle(X, sizes=sizes):
            sizes.append(len(X))
            return X[:, 0, 0]

        recovery = us.learn(oracle, script, ledger=ledger, batch=batch)
        assert max(sizes) == (batch or 3)
        assert sum(sizes) == 25 - 7 + 7
        assert np.array_equal(answers_of(recovery)[1][0], script.rounds[1][0].X[:, 0, 0])


def test_questions_asked_twice_on_purpose_are_asked_twice(ledger):
    same = sequences(4)
    counted = Counted(first_number)
    us.learn(counted, Script([[same, same], [same]]), ledger=ledger)
    assert counted.queries == 12


def test_without_a_ledger_nothing_is_written(tmp_path, monkeypatch, expected):
    monkeypatch.chdir(tmp_path)
    recovery, counted = learn(None)
    assert recovery.queries == counted.queries == expected.queries
    assert list(tmp_path.iterdir()) == []


def test_a_batch_may_be_larger_than_any_number_that_sqlite_keeps(tmp_path):
    for ledger in (tmp_path / "ledger", None):
        recovery = us.learn(first_number, Script([[sequences(5)]]), ledger=ledger, batch=10**30)
        assert recovery.counts == {"data": 5}


# -- what its parts say when they fail


def test_a_checkpoint_that_fails_is_named_and_costs_nothing(ledger, tmp_path):
    with open_ledger(ledger, {}) as book:
        book.claim({}, None)
        vars(book).update(_db=Failing(book._db), _next_checkpoint=float("-inf"))
        with pytest.raises(us.LedgerError, match=r"-wal and .*-paid"):
            book.checkpoint()
    recovery, _ = learn(ledger)
    assert recovery.queries
    assert [file.name for file in tmp_path.iterdir()] == ["ledger"]


def test_a_counter_that_cannot_be_written_is_named(ledger, tmp_path):
    counter = PaidCounter(tmp_path / "nowhere" / "ledger")
    with pytest.raises(us.LedgerError, match="ledger-paid cannot be written"):
        counter.begin("0", Totals())
    counter = PaidCounter(ledger)
    counter.begin("0", Totals())
    line = vars(counter)["_line"]
    vars(counter)["_line"] = os.open(tmp_path / "ledger-paid", os.O_RDONLY)
    with pytest.raises(us.LedgerError, match="ledger-paid cannot be written"):
        counter.count(Totals())
    os.close(line)
    counter.end(closed=True)


@pytest.mark.parametrize("begun", [False, True], ids=["new", "closed"])
def test_ended_between_making_and_writing_the_counter(
    begun, closed, expected, ledger, tmp_path, monkeypatch
):
    """Then nothing was paid, and the next run goes on; that of a ledger in use may not be empty."""
    if begun:
        ledger.write_bytes(closed)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learn(ledger)
    assert ledger.with_name("ledger-paid").read_bytes() == b""
    assert not summary(ledger).damage
    recovery, _ = learn(ledger)
    assert bits(recovery) == bits(expected)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger"]


def test_an_empty_counter_of_a_ledger_in_use_is_named(killed, ledger, tmp_path):
    for name, data in zip(("ledger", "ledger-wal", "ledger-paid"), (*killed[:2], b""), strict=True):
        (tmp_path / name).write_bytes(data)
    refused(ledger, "ledger-paid is missing or empty", "--salvage")


def test_a_folder_in_the_place_of_the_counter_is_named(closed, ledger, tmp_path):
    ledger.write_bytes(closed)
    (tmp_path / "ledger-paid").mkdir()
    with pytest.raises(us.LedgerError, match=r"ledger-paid: .*directory"):
        learn(ledger)


def test_headers_that_mislead_sqlite_are_named(killed, ledger, tmp_path):
    for place, value, word in ((63, 0, "format is 0"), (19, 1, "belongs to it")):
        data = bytearray(killed[0])
        data[place] = value
        for name, content in zip(("", "-wal", "-paid"), (data, *killed[1:]), strict=True):
            (tmp_path / f"ledger{name}").write_bytes(content)
        refused(ledger, word)


@pytest.mark.parametrize("place", ["_designs_1", "_parts_1", "asked", "answers"])
def test_sqlite_words_that_are_no_text_are_quoted(place, closed, ledger, tmp_path):
    """A flipped bit in a table's name is in what SQLite says, and Python cannot read that."""
    data = bytearray(closed)
    data[data.index(place.encode())] ^= 0x80
    ledger.write_bytes(data)
    refused(ledger, "is damaged", "\N{REPLACEMENT CHARACTER}")
    assert not salvage(ledger, tmp_path / "new").damage


def test_a_ledger_that_lacks_a_row_about_itself_is_named(closed, ledger):
    ledger.write_bytes(closed)
    with closing(sqlite3.connect(ledger)) as db:
        db.execute("DELETE FROM file")
        db.commit()
    refused(ledger, "0 rows instead of 1")


def test_a_design_that_moved_and_is_not_kept_is_a_mismatch(ledger):
    X = sequences(5).X

    def script(factor):
        return Script([[Sequences(X * factor, phase="a", purpose="data")]])

    us.learn(first_number, script(1), ledger=ledger)
    with closing(sqlite3.connect(ledger)) as db:
        db.execute("DELETE FROM designs")
        db.commit()
    with pytest.raises(us.LedgerMismatch, match="round 0"):
        us.learn(first_number, script(1 + 1e-12), ledger=ledger)
    us.learn(first_number, script(1), ledger=ledger)
