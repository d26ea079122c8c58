"""A round that the target does not answer: a learner may do without, a dead target is no answer."""

import pytest

import unsoftmax as us
from tests.campaign.script import head

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
