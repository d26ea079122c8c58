"""A ledger of an older format is read and goes on; from then on it is one of today's."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.lives import Life, account
from tests.campaign.script import Script, answers_of
from tests.truth import Counted
from unsoftmax.campaign.ledger_format import FORMAT_VERSION
from unsoftmax.probes import Sequences

DUMP = Path(__file__).with_name("format_1.sql")
"""6 answers of round 0 and 2 of round 1; 2 queries failed, 2 are in doubt."""


def total(X):
    return X.sum(axis=(1, 2))


def probes(count, first):
    X = (first + np.arange(count * 4.0)).reshape(count, 2, 2) / 8
    return Sequences(X, phase=f"from {first}", purpose="data")


def script(name="format 1"):
    return Script([[probes(6, 0)], [probes(5, 100)]], name=name)


@pytest.fixture(params=[1, 2])
def ledger(tmp_path, request):
    return older(tmp_path / "ledger", request.param)


def older(file, version):
    """Write the ledger in format 1, or in what became of it in format 2."""
    with closing(sqlite3.connect(file)) as db:
        db.executescript(DUMP.read_text(encoding="utf-8"))
        if version == 2:
            db.execute("ALTER TABLE answers ADD COLUMN width INTEGER NOT NULL DEFAULT 1")
            db.execute("PRAGMA user_version = 2")
            db.commit()
    return file


def version(file):
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def test_it_goes_on_and_becomes_todays(ledger):
    assert version(ledger) < FORMAT_VERSION
    counted = Counted(total)
    recovery = us.learn(counted, script(), ledger=ledger, holdout=0)
    assert counted.queries == 8 + 3  # the fingerprint, and what is missing of round 1
    assert recovery.counts == {"data": 11, "failed": 2, "fingerprint": 8, "in doubt": 2}
    for known, asked in zip(answers_of(recovery), script().rounds, strict=True):
        assert np.array_equal(known[0], total(asked[0].X))
    assert version(ledger) == FORMAT_VERSION
    again = us.learn(counted, script(), ledger=ledger, holdout=0)
    assert counted.queries == (8 + 3) + 8
    assert again.counts["data"] == 11


def test_another_run_leaves_it_as_it_is(ledger):
    before, was = ledger.read_bytes(), version(ledger)
    with pytest.raises(us.LedgerMismatch, match="name was 'format 1' and is now 'other'"):
        us.learn(total, script("other"), ledger=ledger, holdout=0)
    assert version(ledger) == was
    assert account(ledger).recorded == 8
    assert len(before) == len(ledger.read_bytes())


def test_another_target_is_noticed(ledger):
    with pytest.raises(us.LedgerMismatch, match="another target"):
        us.learn(lambda X: X[:, 0, 0], script(), ledger=ledger, holdout=0)
    assert us.learn(total, script(), ledger=ledger, holdout=0).counts["data"] == 11


def test_after_a_kill_older_programs_see_its_format_too(ledger):
    """They look into the file's header, not into the WAL."""
    assert Life(total, script(), last=4, holdout=0, ledger=ledger).result() is None
    assert ledger.with_name("ledger-wal").exists()
    assert int.from_bytes(ledger.read_bytes()[60:64], "big") == FORMAT_VERSION


@pytest.mark.parametrize("moment", range(8))
def test_killed_while_it_goes_on(moment, ledger):
    """Before and after the commit that makes it today's, and every other one."""
    assert Life(total, script(), last=moment, holdout=0, ledger=ledger).result() is None
    recovery = us.learn(total, script(), ledger=ledger, holdout=0)
    assert recovery.counts["data"] == 11
    assert np.array_equal(answers_of(recovery)[1][0], total(probes(5, 100).X))
    assert version(ledger) == FORMAT_VERSION


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE asked SET queries = 'many'",
        "UPDATE parts SET head = '['",
        "UPDATE runs SET run = 'x'",
        "UPDATE answers SET data = 'text'",
        "UPDATE answers SET count = count + 1 WHERE start = 0",
        "DROP TABLE designs",
        "CREATE TABLE file (id TEXT)",
    ],
)
def test_what_makes_no_sense_is_damage(change, ledger):
    with closing(sqlite3.connect(ledger)) as db:
        db.execute(change)
        db.commit()
    before = ledger.read_bytes()
    counted = Counted(total)
    with pytest.raises(us.LedgerError, match="damaged"):
        us.learn(counted, script(), ledger=ledger, holdout=0)
    assert counted.queries == 0
    assert ledger.read_bytes()[100:] == before[100:]
