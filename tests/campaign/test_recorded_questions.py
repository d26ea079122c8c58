"""Which recorded questions are asked again."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.script import Script, head, sequences
from tests.truth import Counted
from unsoftmax.campaign.fingerprint import Fingerprint, Witness
from unsoftmax.campaign.ledger_salvage import salvage
from unsoftmax.probes import Sequences


def test_lost_answers_are_asked_anew_and_nothing_after_them_is_a_witness(ledger, tmp_path):
    script = Script([[sequences(9)], [sequences(9, seed=1)]])
    target = Counted(lambda X: X[:, 0, 0])
    us.learn(target, script, ledger=ledger, batch=3)
    with closing(sqlite3.connect(ledger)) as db:
        db.execute("DELETE FROM answers WHERE round = 0 AND start = 6")
        db.commit()
    salvage(ledger, tmp_path / "salvaged")
    us.learn(target, script, ledger=tmp_path / "salvaged")
    assert target.queries == 18 + 6 + 3


def test_a_label_of_the_zero_token_is_beside_no_flip(ledger):
    X = np.concatenate([np.zeros((1, 1, 2)), sequences(11, tokens=1).X])
    script = Script([[Sequences(X, phase="labels", purpose="data")]])
    target = Counted(lambda X: X[:, 0, 0] > 0)
    for queries in (12, 12 + 8):
        us.learn(target, script, ledger=ledger)
        assert target.queries == queries


def test_single_tokens_of_the_hold_out_are_chosen_on_both_sides_of_every_hyperplane(tmp_path):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((48, 1, 4)) * 10.0 ** rng.uniform(-1, 2, (48, 1, 1))
    script = Script([[Sequences(x, phase="hold-out", purpose="check")]])
    for seed in range(60):
        normal, ledger = np.random.default_rng(seed).standard_normal(4), tmp_path / f"{seed}"

        def target(X, normal=normal, slope=1.0):
            return 1.0 + slope * np.maximum(X[:, 0] @ normal - 3.0, 0.0)

        us.learn(target, script, ledger=ledger)
        with pytest.raises(us.LedgerMismatch):
            us.learn(lambda X, f=target: f(X, slope=1 + 1e-6), script, ledger=ledger)


# -- what is noise


def fingerprint(recorded):
    """Ask all of some recorded answers (n,) again."""
    X = np.ones((1, 1))
    asked = tuple(Witness((0, 0, k), X, np.array([y]), None) for k, y in enumerate(recorded))
    rows = np.array(recorded)[:, None]
    return Fingerprint(asked, rows, np.ones(len(rows)), False, 0.0)


def test_a_noisy_answer_that_comes_near_itself_by_chance_is_noise():
    known = fingerprint([0.2 + np.sqrt(2.0) / 1000, -0.1, 0.1])
    now, again = known.before.copy(), known.before.copy()
    now[0] += 2e-12
    again[0] += 2e-12 + 1e-13
    again[1] += 9e-13
    assert known.differs(now)
    assert 0 < known.noise(now, again) < 1e-12


@pytest.mark.parametrize("wavering", [0.0, 1e-17, 1e-14])
def test_answers_that_stay_come_from_another_target(wavering):
    known = fingerprint([0.2 + np.sqrt(2.0) / 1000, -0.1, 0.1])
    now, again = known.before.copy(), known.before.copy()
    now[0] += 2e-11
    again[0] += 2e-11
    again[1] += wavering
    with pytest.raises(us.LedgerMismatch):
        known.noise(now, again)


# -- a round that the target does not answer: a learner may do without, a dead target is no answer


DIM = 3
LEARNER = us.learners.ExactHead(DIM)
ONCE = us.Retries(tries=1, longest_wait_s=0.0)


def failing(error, beyond=20):
    """Answers up to so many tokens, and fails on more."""
    target = head(DIM)

    def answer(X):
        if X.shape[1] > beyond:
            raise error
        return target(X)

    return answer


def test_lengths_that_are_refused_are_left_out_and_said():
    recovery = us.learn(failing(ValueError("too long")), LEARNER, retries=ONCE)
    assert recovery.evidence.passed
    assert "It did not answer those of 1, 16, 64, 512 tokens." in recovery.certificate.assumes[-1]
    assert recovery.counts["failed"] > 0


@pytest.mark.parametrize("error", [ConnectionError("gone"), us.RetryLater(60.0)])
def test_a_target_that_cannot_be_reached_ends_the_run(error, ledger):
    with pytest.raises(us.OracleError, match="run the same again"):
        us.learn(failing(error), LEARNER, retries=ONCE, ledger=ledger)
    # what was answered is kept, and the rest is asked when it is back
    recovery = us.learn(head(DIM), LEARNER, ledger=ledger)
    assert "up to 512 tokens" in recovery.certificate.assumes[-1]


def test_short_sequences_are_needed():
    with pytest.raises(us.OracleError, match="two is too many"):
        us.learn(failing(RuntimeError("two is too many"), beyond=1), LEARNER, retries=ONCE)


def test_a_target_that_is_not_recognised_is_not_believed(ledger):
    """Nothing but its longest sequences is left to ask, and it answers no question again."""
    us.learn(failing(ValueError("too long")), LEARNER, retries=ONCE, ledger=ledger)
    with pytest.raises(us.OracleError, match="broken"):
        us.learn(failing(ValueError("broken"), beyond=0), LEARNER, retries=ONCE, ledger=ledger)
