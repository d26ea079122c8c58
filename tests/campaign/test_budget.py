"""Budgets: never passed, by the oracle's own count, and told exactly when they end a run."""

import dataclasses
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests import laws
from tests.campaign.script import Script, answers_of, first_number, head, sequences
from tests.truth import Counted

HOLDOUT = 12
FINGERPRINT = 8
ALL = 32
LONGEST = 5
PLANNED = Script(
    [
        [sequences(5, tokens=3), sequences(4, tokens=1, seed=1)],
        [sequences(4, seed=2, purpose="pilot")],
        [sequences(16, seed=3)],
        [sequences(3, tokens=LONGEST, seed=4, purpose="check")],
    ],
    planned=ALL - HOLDOUT,
)
TOKENS = 5 * 3 + 4 + 4 * 2 + 16 * 2 + 3 * LONGEST


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(us.Retries, "pause", lambda self, failed: 0.0)


def spend(oracle, ledger, budget, learner=None, **settings):
    """Learn within a budget that does not suffice, and return what is said about it."""
    learner = learner or PLANNED
    with pytest.raises(us.BudgetExceeded) as caught:
        us.learn(oracle, learner, budget=budget, ledger=ledger, holdout=HOLDOUT, **settings)
    assert f"{caught.value.spent:,} queries" in str(caught.value)
    assert f"{caught.value.spent + caught.value.needed:,} queries" in str(caught.value)
    return caught.value


def finish(oracle, ledger, budget, learner=None, **settings):
    learner = learner or PLANNED
    return us.learn(oracle, learner, budget=budget, ledger=ledger, holdout=HOLDOUT, **settings)


def within_what_is_needed(counted, ledger, end, most, **settings):
    """Go on with what is said to be needed, until it suffices: ``most`` times."""
    for _ in range(most):
        budget = end.spent + end.needed
        try:
            recovery = finish(counted, ledger, budget, **settings)
        except us.BudgetExceeded as more:
            end = more
            assert counted.queries == end.spent <= budget
        else:
            assert counted.queries == recovery.queries <= budget
            return recovery
    raise AssertionError("what is needed is never enough")


@pytest.mark.parametrize("batch", [1, 3, None])
def test_what_is_spent_and_needed_is_exact_at_every_budget(batch, workers, tmp_path):
    settings = {"batch": batch, "workers": workers}
    for budget in (0, 1, 7, 8, 21, ALL - 1):
        ledger, counted = tmp_path / str(budget), Counted(first_number)
        end = spend(counted, ledger, budget, **settings)
        assert counted.queries == end.spent == budget
        first = min(FINGERPRINT, budget)
        assert end.needed == ALL - budget + first
        assert end.in_doubt == 0
        # one less is not enough, by one; that much is
        end = spend(counted, ledger, end.spent + end.needed - 1, **settings)
        assert counted.queries == end.spent == ALL + first - 1
        assert end.needed == 1 + FINGERPRINT
        recovery = finish(counted, ledger, end.spent + end.needed, **settings)
        assert counted.queries == recovery.queries == ALL + first + FINGERPRINT
        assert recovery.evidence.passed


def test_a_budget_that_is_just_enough_is_enough():
    counted = Counted(first_number)
    assert finish(counted, None, ALL).queries == counted.queries == ALL
    assert finish(first_number, None, np.int64(ALL), batch=5).queries == ALL
    assert spend(first_number, None, np.int64(ALL - 1), batch=5).needed == 1 + FINGERPRINT
    assert finish(first_number, None, us.Budget()).queries == ALL


def test_tokens_are_a_budget_too(workers, tmp_path):
    for tokens in (0, 1, 10, TOKENS // 2, TOKENS - 1):
        ledger, counted = tmp_path / str(tokens), Counted(first_number)
        budget = us.Budget(tokens=tokens)
        end = spend(counted, ledger, budget, batch=3, workers=workers)
        assert counted.tokens <= tokens
        assert tokens - counted.tokens < LONGEST
        assert end.spent == counted.queries
        assert f"{tokens:,} tokens" in str(end)
        assert f"{counted.tokens + end.needed_tokens:,} tokens" in str(end)
        finish(counted, ledger, None, batch=3, workers=workers)
        assert counted.tokens <= TOKENS + 3 * FINGERPRINT
    counted = Counted(first_number)
    assert finish(counted, None, us.Budget(tokens=TOKENS)).queries == ALL
    assert counted.tokens == TOKENS


def test_a_figure_of_tokens_is_enough_where_the_plan_is_right(tmp_path):
    """By the oracle's own count: with the hold-out's tokens on top, until those are known."""
    checks = 3 * LONGEST
    script = dataclasses.replace(PLANNED, planned=29, tokens=TOKENS - checks, at_most=29)
    settings: dict[str, Any] = {"learner": script, "holdout": 3, "batch": 3}
    for tokens in (0, 9, 40, TOKENS - checks, TOKENS - 1):
        ledger, counted = tmp_path / str(tokens), Counted(first_number)
        with pytest.raises(us.BudgetExceeded) as caught:
            us.learn(counted, budget=us.Budget(tokens=tokens), ledger=ledger, **settings)
        assert caught.value.needed_tokens is not None
        enough, said = counted.tokens + caught.value.needed_tokens, str(caught.value)
        assert f"{enough:,} tokens" in said
        unknown = "with those of 3 more sequences of the hold-out, it can be finished" in said
        assert unknown == (tokens < TOKENS - checks)
        budget = us.Budget(tokens=enough + checks * unknown)
        recovery = us.learn(counted, budget=budget, ledger=ledger, **settings)
        assert counted.tokens <= enough + checks * unknown
        assert recovery.evidence.passed


def test_what_may_be_asked_again_is_said():
    """With a budget of 1,088 it could be finished: 1,089 were needed."""
    again = [[sequences(4)], [sequences(6, seed=1, purpose="again")], [sequences(5, seed=2)]]
    script = Script(again, planned=9, at_most=15)
    for budget, left in ((3, 6), (6, 0)):
        with pytest.raises(us.BudgetExceeded) as caught:
            us.learn(first_number, script, budget=budget, holdout=0)
        said = f"it can be finished, unless some must be asked again, {left} at most."
        assert (said in str(caught.value)) == (left > 0)
        assert "it can be finished" in str(caught.value)
        allowed = caught.value.spent + caught.value.needed
        assert us.learn(first_number, script, budget=allowed + left, holdout=0).queries == 15


@pytest.mark.parametrize("case", laws.CASES, ids=lambda case: case.name)
def test_the_plans_bound_is_the_messages(case):
    """Every learner: what is needed and what may be repeated on top."""
    learner = case.learner(0)
    plan = learner.plan()
    with pytest.raises(us.BudgetExceeded) as caught:
        us.learn(first_number, learner, budget=0, holdout=0)
    if plan.queries is not None and plan.at_most > plan.queries:
        assert f"{plan.at_most - plan.queries:,} at most" in str(caught.value)


def test_the_tighter_of_two_limits_counts():
    counted = Counted(first_number)
    end = spend(counted, None, us.Budget(queries=7, tokens=10_000), batch=2)
    assert (counted.queries, end.spent) == (7, 7)
    assert "7 queries and 10,000 tokens" in str(end)
    counted = Counted(first_number)
    spend(counted, None, us.Budget(queries=1_000, tokens=7), batch=2)
    assert counted.tokens <= 7


def test_a_spent_budget_asks_nothing_more(ledger):
    counted = Counted(first_number)
    first = spend(counted, ledger, 15)
    for budget in (15, 3, 0, us.Budget(tokens=0)):
        again = spend(counted, ledger, budget)
        assert (again.spent, again.needed) == (first.spent, first.needed)
    assert counted.queries == 15
    recovery = finish(counted, ledger, 15 + first.needed)
    # a complete run, too, is recognised before it is told again
    end = spend(counted, ledger, recovery.queries)
    assert end.needed == FINGERPRINT
    assert counted.queries == recovery.queries


@pytest.mark.parametrize("biases", [False, True])
def test_a_head_is_learned_within_what_is_needed(workers, biases, tmp_path):
    """What has to be asked again for its logit cannot be known: it may take another round."""
    learner = us.learners.ExactHead(4, biases=biases)
    for budget in (0, 3, 30):
        ledger, counted = tmp_path / str(budget), Counted(head())
        settings = {"learner": learner, "workers": workers, "batch": 3}
        end = spend(counted, ledger, budget, **settings)
        assert counted.queries == end.spent == budget
        assert end.needed >= (25 if biases else 20) + HOLDOUT - budget
        recovery = within_what_is_needed(counted, ledger, end, 9, **settings)
        assert recovery.evidence.passed


@pytest.mark.parametrize("budget", [1, 2, 5, 17, 40, 63])
def test_repeated_queries_are_paid_from_the_budget(budget, workers, ledger):
    """Every batch fails once: each is paid twice, by the ledger as by the oracle."""
    seen = set()

    def failing_once(X):
        if X.tobytes() not in seen:
            seen.add(X.tobytes())
            raise ConnectionError("try again")
        return first_number(X)

    counted = Counted(failing_once)
    settings = {"batch": 2, "workers": workers}
    end = spend(counted, ledger, budget, **settings)
    assert counted.queries == end.spent == budget
    recovery = within_what_is_needed(counted, ledger, end, 20, **settings)
    assert recovery.counts["failed"] > 0


def test_what_fails_as_the_budget_ends_is_still_needed(ledger):
    """Three batches in flight, none affordable after them: those that fail count as needed."""
    script = Script([[sequences(12)]], planned=None)

    def oracle(X):
        if X[0, 0, 0] != script.rounds[0][0].X[4, 0, 0]:
            raise ConnectionError
        return X[:, 0, 0]

    end = spend(oracle, ledger, 6, script, batch=2, workers=3)
    assert (end.spent, end.needed) == (6, 10 + 2)
    recovery = finish(first_number, ledger, 6 + end.needed, script)
    assert recovery.queries == 18


def test_what_follows_the_next_step_is_not_promised(ledger):
    """A learner that does not know beforehand: a budget for one step is no budget for all."""
    script = Script([[sequences(5)], [sequences(20, seed=1)]], planned=None)
    end = spend(first_number, ledger, 3, script)
    assert "for the next step" in str(end)
    assert "how many follow depends on the target" in str(end)
    assert "finished" not in str(end)


def test_what_is_in_doubt_is_paid_and_said(ledger):
    counted = Counted(first_number)

    def dying(X):
        answers = counted(X)
        if len(X) == 4:
            raise KeyboardInterrupt
        return answers

    with pytest.raises(KeyboardInterrupt):
        finish(dying, ledger, 99, batch=5)
    paid = counted.queries
    end = spend(counted, ledger, paid + 5 + 3)
    assert end.in_doubt == 4
    assert end.spent == counted.queries == paid + 5 + 3
    assert "4 of them in doubt" in str(end)
    recovery = finish(counted, ledger, end.spent + end.needed)
    assert recovery.counts["in doubt"] == 4
    assert recovery.queries == counted.queries == end.spent + end.needed


def test_asking_again_comes_on_top_of_the_plan(ledger):
    rounds = [[sequences(4)], [sequences(6, seed=1, purpose="again")], [sequences(5, seed=2)]]
    script = Script(rounds, planned=9 - HOLDOUT)
    assert spend(first_number, ledger, 3, script).needed == 6 + 3
    end = spend(first_number, ledger, 3 + 3 + 1 + 2, script)
    assert end.needed == 4 + 5 + 6
    recovery = finish(first_number, ledger, end.spent + end.needed, script)
    assert recovery.counts == {"again": 6, "data": 9, "fingerprint": 3 + 6}


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_half_a_fingerprint_is_not_paid(batch, workers, ledger):
    """In whatever batches: 7 queries, or 14 tokens, are too few to recognise the target."""
    script = Script([[sequences(8)], [sequences(9, seed=1)]])
    settings: dict[str, Any] = {"batch": batch, "workers": workers}
    spend(first_number, ledger, 8, script, **settings)
    for budget in (15, us.Budget(tokens=31)):
        counted = Counted(first_number)
        end = spend(counted, ledger, budget, script, **settings)
        assert (counted.queries, end.spent) == (0, 8)
    counted = Counted(first_number)
    assert spend(counted, ledger, 16, script, **settings).spent == 16
    assert counted.queries == 8


def test_retries_of_the_fingerprint_stay_within_the_budget(ledger):
    script = Script([[sequences(8)], [sequences(8, seed=1)]])
    spend(first_number, ledger, 8, script)

    @Counted
    def down(X):
        raise ConnectionError

    end = spend(down, ledger, 8 + 8 + 7, script)
    assert (down.queries, end.spent) == (8, 16)
    with pytest.raises(us.OracleError):
        finish(down, ledger, 100, script)
    assert down.queries == 8 + 3 * 8
    assert finish(first_number, ledger, 40 + 8 + 8, script).queries == 56


@pytest.mark.parametrize("first", [1, 5, 12])
def test_a_noisy_target_comes_to_its_end_within_what_is_needed(first, ledger):
    """Its fingerprint is asked twice: what is needed says so as soon as that is known."""
    script = Script([[sequences(12)], [sequences(9, seed=1)]], planned=21 - HOLDOUT)
    rng = np.random.default_rng(0)

    @Counted
    def noisy(X):
        return X[:, 0, 0] + 1e-3 * rng.standard_normal(len(X))

    end = spend(noisy, ledger, first, script)
    recovery = within_what_is_needed(noisy, ledger, end, 3, learner=script)
    assert len(answers_of(recovery)[1][0]) == 9


def test_the_budget_decides_before_noise_is_told_from_change(ledger):
    """With nothing left for a third answer a target that differs is not called another."""
    script = Script([[sequences(8)], [sequences(3, seed=1)]])
    spend(first_number, ledger, 8, script)
    other = Counted(lambda X: X[:, 0, 1])
    end = spend(other, ledger, 16, script)
    assert other.queries == 8
    with pytest.raises(us.LedgerMismatch):
        finish(other, ledger, end.spent + end.needed, script)
    assert other.queries == 8 + 16


@pytest.mark.parametrize(
    "bad", [-1, True, 1.5, 1e6, np.nan, np.inf, "10", [3], {"queries": 3}, Fraction(3), object()]
)
def test_a_bad_budget_is_a_value_error(bad, ledger):
    counted = Counted(first_number)
    for make in (
        lambda: finish(counted, ledger, bad),
        lambda: us.Budget(queries=bad),
        lambda: us.Budget(tokens=bad),
    ):
        with pytest.raises(ValueError, match=r"budget of \w+ must be a whole number.*0 or more"):
            make()
    assert counted.calls == 0
    assert not (ledger).exists()


def test_the_error_crosses_process_borders():
    end = spend(first_number, None, 10)
    other = pickle.loads(pickle.dumps(end))
    assert type(other) is us.BudgetExceeded
    assert (str(other), vars(other)) == (str(end), vars(end))
