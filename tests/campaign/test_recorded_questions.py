"""Which recorded questions are asked again."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np

import unsoftmax as us
from tests.campaign.script import Script, sequences
from tests.truth import Counted
from unsoftmax.campaign.ledger_salvage import salvage
from unsoftmax.probes import Sequences


def test_answers_that_were_lost_are_asked_anew_and_nothing_after_them_is_a_witness(tmp_path):
    script, ledger = Script([[sequences(9)], [sequences(9, seed=1)]]), tmp_path / "ledger"
    target = Counted(lambda X: X[:, 0, 0])
    us.learn(target, script, ledger=ledger, batch=3)
    with closing(sqlite3.connect(ledger)) as db:
        db.execute("DELETE FROM answers WHERE round = 0 AND start = 6")
        db.commit()
    salvage(ledger, tmp_path / "salvaged")
    us.learn(target, script, ledger=tmp_path / "salvaged")
    assert target.queries == 18 + 6 + 3


def test_a_label_of_the_zero_token_is_beside_no_flip(tmp_path):
    X = np.concatenate([np.zeros((1, 1, 2)), sequences(11, tokens=1).X])
    script = Script([[Sequences(X, phase="labels", purpose="data")]])
    ledger = tmp_path / "ledger"
    target = Counted(lambda X: X[:, 0, 0] > 0)
    for queries in (12, 12 + 8):
        us.learn(target, script, ledger=ledger)
        assert target.queries == queries
