"""A ledger of format 1 is read and goes on; from then on it is one of format 2."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.lives import Life, account
from tests.campaign.script import Script, answers_of
from tests.truth import Counted
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


@pytest.fixture
def ledger(tmp_path):
    file = tmp_path / "ledger"
    with closing(sqlite3.connect(file)) as db:
        db.executescript(DUMP.read_text(encoding="utf-8"))
    return file


def version(file):
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def test_it_goes_on_and_becomes_format_2(ledger):
    assert version(ledger) == 1
    counted = Counted(total)
    recovery = us.learn(counted, script(), ledger=ledger, holdout=0)
    assert counted.queries == 8 + 3  # the fingerprint, and what is missing of round 1
    assert recovery.counts == {"data": 11, "failed": 2, "fingerprint": 8, "in doubt": 2}
    for known, asked in zip(answers_of(recovery), script().rounds, strict=True):
        assert np.array_equal(known[0], total(asked[0].X))
    assert version(ledger) == 2
    again = us.learn(counted, script(), ledger=ledger, holdout=0)
    assert counted.queries == (8 + 3) + 8
    assert again.counts["data"] == 11


def test_another_run_leaves_it_as_it_is(ledger):
    before = ledger.read_bytes()
    with pytest.raises(us.LedgerMismatch, match="name was 'format 1' and is now 'other'"):
        us.learn(total, script("other"), ledger=ledger, holdout=0)
    assert version(ledger) == 1
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
    assert int.from_bytes(ledger.read_bytes()[60:64], "big") == 2


@pytest.mark.parametrize("moment", range(8))
def test_killed_while_it_goes_on(moment, ledger):
    """Before and after the commit that makes it format 2, and every other one."""
    assert Life(total, script(), last=moment, holdout=0, ledger=ledger).result() is None
    recovery = us.learn(total, script(), ledger=ledger, holdout=0)
    assert recovery.counts["data"] == 11
    assert np.array_equal(answers_of(recovery)[1][0], total(probes(5, 100).X))
    assert version(ledger) == 2
