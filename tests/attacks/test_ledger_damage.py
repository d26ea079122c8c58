"""A flipped bit, anywhere in a ledger's files: it has no effect, or it is named before paying.

The count is the oracle's: what was asked before the damage, and what is asked after it.
"""

import errno
import json
import os
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests import commands
from tests.campaign.lives import Life, account
from tests.campaign.script import Script, answers_of, sequences
from tests.campaign.test_older_formats import DUMP
from tests.truth import Counted
from unsoftmax.campaign.fingerprint import FEWEST
from unsoftmax.campaign.fingerprint import asked as asked_again
from unsoftmax.campaign.ledger_salvage import salvage, summary

ROUNDS = [[sequences(30), sequences(6, tokens=1, seed=1)], [sequences(20, seed=2)]]
SETTINGS: dict[str, Any] = {"batch": 3, "holdout": 0}


def target(X):
    return X[:, 0, 0].copy()


def script():
    return Script([list(asked) for asked in ROUNDS])


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ledger")


def at_rest(ledger):
    us.learn(target, script(), ledger=ledger, **SETTINGS)


def killed(ledger):
    """Kill -9 in the midst, with the rounds' last answers in the WAL."""
    assert Life(target, script(), last=44, ledger=ledger, **SETTINGS).result() is None


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def put(folder, contents):
    for path in folder.iterdir():
        path.unlink()
    for name, data in contents.items():
        (folder / name).write_bytes(data)


def flipped(rng, contents):
    """Flip one bit: the file is drawn first, so that small ones have their share."""
    name = rng.choice(sorted(name for name, data in contents.items() if data))
    data = bytearray(contents[name])
    place = int(rng.integers(len(data)))
    data[place] ^= 1 << int(rng.integers(8))
    return name, {**contents, name: bytes(data)}


@pytest.mark.parametrize("state", [at_rest, killed], ids=["at rest", "killed"])
def test_a_flipped_bit_has_no_effect_or_is_named(state, folder, trials, evidence):
    ledger = folder / "ledger"
    state(ledger)
    sound, before = files(folder), account(ledger)
    if state is killed:
        sound["ledger-shm"] = bytes(range(256)) * 128
        assert len(sound) == 4
    rng, seen = np.random.default_rng(len(sound)), Counter[str]()
    for _ in range(trials(30, 500)):
        name, damaged = flipped(rng, sound)
        put(folder, damaged)
        counted = Counted(target)
        try:
            recovery = us.learn(counted, script(), ledger=ledger, **SETTINGS)
        except us.LedgerError:
            assert counted.queries == 0
            seen["named"] += 1
            if {name: data for name, data in files(folder).items() if data} != damaged:
                seen[f"changed {name}"] += 1
            continue
        seen["no effect"] += 1
        assert counted.queries == 56 - before.recorded + before.first
        assert recovery.queries == before.paid + counted.queries
        for known, asked in zip(answers_of(recovery), ROUNDS, strict=True):
            for y, probes in zip(known, asked, strict=True):
                assert np.array_equal(y, probes.X[:, 0, 0])
    assert seen["named"]
    assert seen["no effect"] + seen["named"] == sum(seen.values()), seen
    evidence(
        f"one bit of a ledger flipped, {state.__name__.replace('_', ' ')}", **seen, silent_losses=0
    )


@pytest.mark.parametrize("state", [at_rest, killed], ids=["at rest", "killed"])
def test_what_is_sound_is_salvaged_and_the_bill_never_shrinks(state, folder, trials, evidence):
    ledger, new = folder / "ledger", folder / "new"
    state(ledger)
    sound, before = files(folder), account(ledger)
    rng, flips, fewest = np.random.default_rng(1), trials(10, 250), before.recorded
    for _ in range(flips):
        put(folder, flipped(rng, sound)[1])
        copied = salvage(ledger, new)
        assert not copied.damage
        assert copied.paid >= before.paid
        fewest = min(fewest, copied.answers)
        counted = Counted(target)
        recovery = us.learn(counted, script(), ledger=new, **SETTINGS)
        assert recovery.queries == copied.paid + counted.queries
        for known, asked in zip(answers_of(recovery), ROUNDS, strict=True):
            for y, probes in zip(known, asked, strict=True):
                assert np.array_equal(y, probes.X[:, 0, 0])
    evidence(
        f"a ledger with a flipped bit salvaged, {state.__name__.replace('_', ' ')}",
        flips=flips,
        salvaged=flips,
        bills_that_shrank=0,
        answers_kept=f"{fewest} of {before.recorded} at least",
    )


PAGE = 4096
FIRST_PAGES = {
    "magic": lambda data, rng: b"X" + data[1:],
    "application ID": lambda data, rng: data[:68] + b"none" + data[72:],
    "format 0": lambda data, rng: data[:60] + bytes(4) + data[64:],
    "format 99": lambda data, rng: data[:63] + b"\x63" + data[64:],
    "page size": lambda data, rng: data[:16] + b"\x01\x23" + data[18:],
    "version of SQLite": lambda data, rng: data[:18] + b"\x07\x07" + data[20:],
    "encoding": lambda data, rng: data[:59] + b"\x77" + data[60:],
    "header of zeros": lambda data, rng: bytes(100) + data[100:],
    "random header": lambda data, rng: rng.bytes(100) + data[100:],
    "page of zeros": lambda data, rng: bytes(PAGE) + data[PAGE:],
    "random page": lambda data, rng: rng.bytes(PAGE) + data[PAGE:],
    "schema": lambda data, rng: data.replace(b"CREATE TABLE", b"CREATE TALBE"),
}


@pytest.mark.parametrize("state", [at_rest, killed], ids=["at rest", "killed"])
@pytest.mark.parametrize("damage", FIRST_PAGES)
def test_a_first_page_that_cannot_be_read_loses_no_answer(damage, state, folder, evidence):
    ledger = folder / "ledger"
    state(ledger)
    before, found = account(ledger), summary(ledger)
    sound = files(folder)
    data = FIRST_PAGES[damage](sound["ledger"], np.random.default_rng(0))
    put(folder, {**sound, "ledger": data})
    counted = Counted(target)
    with pytest.raises(us.LedgerError):
        us.learn(counted, script(), ledger=ledger, **SETTINGS)
    shown = summary(ledger)
    assert shown.damage
    assert replace(shown, damage=()) == found
    copied = salvage(ledger, folder / "new")
    assert (copied.answers, copied.paid) == (before.recorded, before.paid)
    assert {name: files(folder)[name] for name in sound} == {**sound, "ledger": data}
    us.learn(counted, script(), ledger=folder / "new", **SETTINGS)
    assert counted.queries == 56 - before.recorded + before.first
    claim = f"a ledger's first page cannot be read, {damage}, {state.__name__.replace('_', ' ')}"
    evidence(claim, answers_lost=0, bill="whole")


@pytest.mark.parametrize("length", [None, 0, 50, PAGE])
def test_a_file_cut_short_or_lost_leaves_its_wal_and_its_bill(length, folder, evidence):
    ledger = folder / "ledger"
    killed(ledger)
    before, sound = account(ledger), files(folder)
    ledger.unlink()
    if length is not None:
        ledger.write_bytes(sound["ledger"][:length])
    copied = salvage(ledger, folder / "new")
    assert copied.paid == before.paid
    assert copied.answers == before.recorded  # but for the beginning, all was in the WAL
    with pytest.raises(us.LedgerError) as caught:
        us.learn(target, script(), ledger=ledger, **SETTINGS)
    assert "--salvage" in str(caught.value)
    left = "its file lost" if length is None else f"{length:,} bytes of its file left"
    evidence(f"a killed ledger, {left}", answers_lost=0, bill="whole")


@pytest.mark.parametrize("place", [32 + 24 + PAGE // 2, 32, 35], ids=["page", "far", "number"])
def test_answers_behind_a_flipped_bit_of_the_wal_are_kept(place, folder):
    """In its first page, or the number of that page: SQLite ignores all of it."""
    ledger = folder / "ledger"
    killed(ledger)
    before, wal = account(ledger), folder / "ledger-wal"
    data = bytearray(wal.read_bytes())
    data[place] ^= 0x10
    wal.write_bytes(data)
    with pytest.raises(us.LedgerError, match="were recorded are not in it"):
        us.learn(target, script(), ledger=ledger, **SETTINGS)
    copied = salvage(ledger, folder / "new")
    assert (copied.answers, copied.paid) == (before.recorded, before.paid)


def test_what_no_row_is_left_of_is_said_to_be_lost(folder):
    (folder / "text").write_text("These are my notes.\n" * 500)
    for read in (summary, lambda file: salvage(file, folder / "new")):
        with pytest.raises(us.LedgerError, match=r"no sound row .*nothing can be salvaged"):
            read(folder / "text")
    at_rest(folder / "ledger")
    with closing(sqlite3.connect(folder / "ledger")) as db:
        db.execute("CREATE TABLE notes (text)")
        db.execute("PRAGMA user_version = 4")
        db.commit()
    with pytest.raises(us.LedgerError, match="upgrade"):
        summary(folder / "ledger")


@pytest.mark.parametrize("state", [at_rest, killed], ids=["at rest", "killed"])
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_what_may_not_be_written_is_shown_and_salvaged_all_the_same(
    closed, state, folder, tmp_path
):
    ledger = folder / "ledger"
    state(ledger)
    found, sound = summary(ledger), files(folder)
    (folder if closed == "folder" else ledger).chmod(0o555)
    before = folder.stat().st_mtime_ns
    try:
        assert summary(ledger) == found
        assert run(ledger).returncode == 0
        copied = salvage(ledger, tmp_path / "new")
        assert folder.stat().st_mtime_ns == before, "something was written in it"
    finally:
        folder.chmod(0o755)
    assert (copied.answers, copied.paid) == (found.answers, found.paid)
    assert files(folder) == sound


@pytest.mark.parametrize("name", ["ledger", "ledger-wal"])
def test_a_disk_that_gives_no_bytes_is_named(name, folder, monkeypatch):
    """As the system says it; what it gives of the other files is not lost."""
    killed(folder / "ledger")
    (folder / "ledger").write_bytes(b"?" + (folder / "ledger").read_bytes()[1:])
    sound, read_bytes = files(folder), Path.read_bytes

    def broken_sector(path):
        if path.name == name:
            raise OSError(errno.EIO, "Input/output error")
        return read_bytes(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", broken_sector)
        with pytest.raises(us.LedgerError, match=f"{name} cannot be read: Input/output error"):
            summary(folder / "ledger")
    assert files(folder) == sound


def test_a_ledger_that_changes_while_it_is_read_is_in_use(folder, monkeypatch):
    """Where it cannot be locked."""
    ledger = folder / "ledger"
    at_rest(ledger)
    ledger.chmod(0o444)
    times = iter([(1, 1), (1, 2)])
    monkeypatch.setattr("unsoftmax.campaign.ledger_salvage._state", lambda path: next(times))
    with pytest.raises(us.LedgerError, match="in use"):
        summary(ledger)


def test_a_lost_wal_costs_its_answers_and_not_the_bill(folder):
    ledger = folder / "ledger"
    killed(ledger)
    before = account(ledger)
    (folder / "ledger-wal").unlink()
    with pytest.raises(us.LedgerError, match="ledger-wal, which belongs to it, is missing"):
        us.learn(target, script(), ledger=ledger, **SETTINGS)
    found = summary(ledger)
    assert found.paid == before.paid
    assert salvage(ledger, folder / "new").paid == before.paid


def run(*words):
    return commands.run(Path.cwd(), "ledger", *words)


def test_the_command_shows_and_salvages(folder):
    ledger = folder / "ledger"
    at_rest(ledger)
    done = run(ledger)
    assert done.returncode == 0, done.stderr
    for word in ("sound", "Script", "56"):
        assert word in done.stdout
    shutil.copy(ledger, folder / "sound")
    data = ledger.read_bytes()
    place = data.index(target(ROUNDS[0][0].X[:3]).tobytes())
    ledger.write_bytes(data[:place] + b"\x00" + data[place + 1 :])
    done = run(ledger)
    assert done.returncode == 2
    assert "1 row does not match the checksum" in done.stdout
    assert "--salvage" in done.stderr
    done = run(ledger, "--salvage", folder / "new", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert not told["sound"]
    assert told["salvaged"]["answers"] == 53
    assert told["salvaged"]["paid"] == told["paid"] == 56
    assert run(ledger, "--salvage", folder / "new").returncode == 2
    done = run(folder / "nowhere", "--json")
    assert done.returncode == 2
    assert "no ledger" in done.stderr


def test_pages_of_nothing(folder):
    """Every page but the first: what lies on the others is kept."""
    ledger, script = folder / "ledger", Script([[sequences(300)]])
    us.learn(target, script, ledger=ledger, batch=1)
    data, kept = ledger.read_bytes(), []
    for page in range(4096, len(data), 4096):
        ledger.write_bytes(data[:page] + b"\xff" * 4096 + data[page + 4096 :])
        counted = Counted(target)
        with pytest.raises(us.LedgerError, match="damaged"):
            us.learn(counted, script, ledger=ledger)
        assert counted.calls == 0
        found = salvage(ledger, folder / f"{page}")
        assert found.paid >= 300
        kept.append(found.answers)
        recovery = us.learn(target, script, ledger=folder / f"{page}")
        assert np.array_equal(answers_of(recovery)[0][0], script.rounds[0][0].X[:, 0, 0])
    assert any(0 < count < 300 for count in kept)


def test_a_part_without_its_questions_is_asked_again(folder):
    ledger = folder / "ledger"
    at_rest(ledger)
    with closing(sqlite3.connect(ledger)) as db:
        db.execute("UPDATE parts SET head = 'x' WHERE part = 1")
        db.commit()
    assert salvage(ledger, folder / "new").answers == 50


def broken(ledger, which):
    """Give answers or other rows a checksum that is wrong, and salvage the ledger."""
    with closing(sqlite3.connect(ledger)) as db:
        db.execute(f"UPDATE {which.replace(' ', ' SET crc = crc + 1 ', 1)}")
        db.commit()
    new = ledger.with_name("new")
    return new, salvage(ledger, new)


@pytest.mark.parametrize(
    ("which", "left"), [("answers WHERE round = 0", 20), ("answers WHERE start < 12", 26)]
)
def test_rounds_that_begin_with_a_gap_are_recognised_all_the_same(which, left, folder):
    at_rest(folder / "ledger")
    new, copied = broken(folder / "ledger", which)
    assert copied.answers == left
    shutil.copy(new, folder / "copy")
    with pytest.raises(us.LedgerMismatch, match="another target"):
        us.learn(lambda X: X[:, 0, 1], script(), ledger=folder / "copy", **SETTINGS)
    recovery = us.learn(target, script(), ledger=new, **SETTINGS)
    assert recovery.counts["data"] == 56 + 56 - left - recovery.counts.get("in doubt", 0)


def test_answers_whose_run_is_not_known_belong_to_who_asks_the_same(folder):
    at_rest(folder / "ledger")
    new, copied = broken(folder / "ledger", "runs WHERE 1")
    assert copied.learner is None
    assert copied.answers == 56
    counted = Counted(target)
    with pytest.raises(us.LedgerMismatch, match="other questions in round 0"):
        us.learn(counted, Script([[sequences(30, seed=9)]]), ledger=new, **SETTINGS)
    assert counted.queries == 0
    us.learn(counted, script(), ledger=new, **SETTINGS)
    assert counted.queries == asked_again(56)
    assert summary(new).learner == {"learner": "Script", "name": "script"}


@pytest.mark.parametrize(
    ("change", "answers"),
    [
        *((f"DROP TABLE {table}", 56) for table in ("file", "runs", "designs", "asked")),
        ("DROP TABLE parts", 0),
        ("DROP TABLE answers", 0),
        ("DELETE FROM file", 56),
        ("INSERT INTO file SELECT * FROM file", 56),
        ("UPDATE answers SET data = 'text' WHERE start = 0", 47),
        ("UPDATE answers SET data = CAST(data AS TEXT) WHERE start = 0", 47),
        ("UPDATE answers SET count = 'three' WHERE start = 0", 47),
        ("UPDATE designs SET data = 'text'", 56),
        ("UPDATE designs SET data = NULL", 56),
        ("UPDATE parts SET head = x'ff' WHERE part = 1", 50),
        ("UPDATE asked SET queries = 'many'", 56),
        ("UPDATE asked SET outcome = CAST(x'ff' AS TEXT) WHERE id = 5", 56),
        ("UPDATE asked SET queries = -1", 56),
        ("UPDATE file SET queries = x'00'", 56),
        ("CREATE TABLE notes (text)", 56),
        ("CREATE TRIGGER t AFTER INSERT ON asked BEGIN DELETE FROM answers; END", 56),
        ("PRAGMA user_version = 2", 56),
        ("PRAGMA user_version = 1", 56),
    ],
)
def test_tables_that_were_meddled_with_are_named_and_salvaged(change, answers, folder):
    at_rest(folder / "ledger")
    with closing(sqlite3.connect(folder / "ledger")) as db:
        db.execute(change)
        db.commit()
    counted = Counted(target)
    with pytest.raises(us.LedgerError, match=r"damaged.*--salvage"):
        us.learn(counted, script(), ledger=folder / "ledger", **SETTINGS)
    assert counted.queries == 0
    assert summary(folder / "ledger").damage
    copied = salvage(folder / "ledger", folder / "new")
    assert not copied.damage
    assert copied.answers == answers
    assert copied.paid == 56
    us.learn(counted, script(), ledger=folder / "new", **SETTINGS)
    again = counted.queries - (56 - answers)
    # of a round that lost answers fewer are recorded when they are asked again
    assert min(FEWEST, answers) <= again <= asked_again(answers)


def test_calls_put_off_are_not_paid(folder):
    calls: list[int] = []

    def slow(X):
        calls.append(len(X))
        if len(calls) == 2:
            raise us.RetryLater(0)
        return target(X)

    us.learn(slow, script(), ledger=folder / "ledger", **SETTINGS)
    assert summary(folder / "ledger").paid == 56
    assert salvage(folder / "ledger", folder / "new").paid == 56


def test_a_ledger_of_format_1_is_shown_and_salvaged(folder):
    with closing(sqlite3.connect(folder / "ledger")) as db:
        db.executescript(DUMP.read_text(encoding="utf-8"))
    assert summary(folder / "ledger").paid == 12
    assert salvage(folder / "ledger", folder / "new").in_doubt == 2


def test_a_copy_that_cannot_be_written_is_named(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    at_rest(folder / "ledger")
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(us.LedgerError, match=r"new.*No space left"):
        salvage(folder / "ledger", folder / "new")
    assert [path.name for path in folder.iterdir()] == ["ledger"]
