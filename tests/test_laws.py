"""Laws that every learner keeps."""

import json
import pickle
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.laws import every_case, kinds
from tests.truth import Counted


def same_bits(a, b):
    mine, other = a.arrays(), b.arrays()
    return mine.keys() == other.keys() and all(
        np.array_equal(mine[name], other[name]) for name in mine
    )


def same_but_for_rounding(a, b):
    """Old releases of OpenBLAS round by where an array lies in memory (SkylakeX, 0.3.23)."""
    mine, other = a.arrays(), b.arrays()
    return mine.keys() == other.keys() and all(
        np.linalg.norm(mine[name] - other[name]) <= 1e-12 * np.linalg.norm(mine[name])
        for name in mine
    )


class Watched(Counted):
    """Sees how long its questions are, and whether all are numbers of float32."""

    norm, length, single = 0.0, 0, True

    def __call__(self, X):
        tokens = X if X.ndim == 3 else X[:, :, None]  # an id is one number
        self.norm = max(self.norm, np.linalg.norm(tokens, axis=-1).max())
        self.length = max(self.length, X.shape[1])
        self.single &= np.array_equal(X.astype(np.float32).astype(np.float64), X)
        return super().__call__(X)


class Rounds:
    """A learner that counts its rounds."""

    def __init__(self, learner):
        self.learner, self.count = learner, 0

    def __getattr__(self, name):
        return getattr(self.learner, name)

    def steps(self, checks):
        steps, answers = self.learner.steps(checks), None
        while True:
            try:
                asked = steps.send(answers)
            except StopIteration as end:
                return end.value
            self.count += 1
            answers = yield asked


@cache
def recovered(case, seed):
    """What a learner recovers, the oracle that was asked, and the number of rounds."""
    watched = Watched(case.oracle(case.target(seed)))
    learner: Any = Rounds(case.learner(seed))
    return us.learn(watched, learner), watched, learner.count


@every_case
def test_a_run_is_as_planned_and_its_model_within_the_certificate(case, trials):
    for seed in range(trials(1, 3)):
        plan = case.learner(seed).plan()
        recovery, oracle, rounds = recovered(case, seed)
        counts = dict(recovery.counts)
        again = counts.pop("again", 0)
        assert counts.pop("check") == 32
        asked = sum(counts.values())
        assert plan.queries in (asked, None)
        assert oracle.queries == asked + again + 32 == recovery.queries
        assert asked + again <= plan.at_most
        assert rounds <= plan.rounds
        # at the oracle's side, the hold-out's included: neither tokens nor sequences
        assert oracle.norm <= plan.longest_token * (1 + 1e-9)
        assert oracle.length <= plan.most_tokens
        assert f"{plan.most_tokens:,} token" in plan.lengths
        # targets compute in float32; bisection and loud probes need all of float64
        assert oracle.single or not case.single
        assert recovery.evidence.passed
        assert case.within(recovery, case.target(seed))
        assert recovery.certificate.assumes
        assert case.same(recovery.model, case.target(seed), case.accuracy)


@kinds
def test_without_a_hold_out_nothing_is_claimed(case):
    recovery = us.learn(case.oracle(case.target(0)), case.learner(0), holdout=0)
    assert "check" not in recovery.counts
    assert not recovery.evidence.passed
    assert np.isnan(recovery.evidence.max_residual)
    assert any("Nothing was checked" in sentence for sentence in recovery.certificate.assumes)


@kinds
def test_batches_and_threads_change_nothing(case, trials):
    target = case.oracle(case.target(1))

    def one_by_one(X):
        # whatever the batch, every sequence is answered alone: same bits
        return np.concatenate([target(X[k : k + 1]) for k in range(len(X))])

    models = [
        us.learn(one_by_one, case.learner(1), batch=batch, workers=workers).model
        for batch, workers in ((None, 1), (5, 3), (7, 1), (1, 1))[: trials(2, 4)]
    ]
    assert all(same_bits(models[0], model) for model in models[1:])


@kinds
def test_asking_again_changes_nothing(case):
    first, again = recovered(case, 0)[0], recovered.__wrapped__(case, 0)[0]
    assert same_bits(first.model, again.model)
    assert first.to_json() == again.to_json()


@kinds
def test_another_seed_finds_an_equal_model(case):
    target = case.target(0)
    found = us.learn(case.oracle(target), case.learner(1)).model
    assert case.same(found, target, case.accuracy)


@kinds
def test_answers_are_taken_by_value(case):
    """The oracle may do what it likes with the array it was given."""
    target = case.oracle(case.target(0))

    def vandal(X):
        y = target(X)
        X[:] = np.nan if X.dtype.kind == "f" else -1
        return y

    assert same_bits(us.learn(vandal, case.learner(0)).model, recovered(case, 0)[0].model)


@every_case
def test_learners_are_values(case):
    learner = case.learner(4)
    assert learner == case.learner(4)
    assert hash(learner) == hash(case.learner(4))
    assert pickle.loads(pickle.dumps(learner)) == learner
    assert json.loads(json.dumps(learner.settings())) == learner.settings()
    # what is keyword-only is named only where it was given
    named = {field.name for field in fields(learner) if not field.kw_only}
    assert named <= set(learner.settings())
    assert "tuning" not in learner.settings()  # named only where a knob was changed
    with pytest.raises(AttributeError):
        learner.dim = 3
    assert case.learner(5).settings() != learner.settings()


@every_case
def test_the_same_seed_asks_the_same_and_another_asks_other(case):
    def opening(seed):
        return [p[0 : len(p)] for p in next(case.learner(seed).steps(32))]

    for mine, other in zip(opening(0), opening(0), strict=True):
        assert np.array_equal(mine, other)
    assert not np.array_equal(opening(0)[0], opening(1)[0])


@kinds
def test_a_run_that_stopped_goes_on_and_nothing_is_asked_twice(case, tmp_path):
    together = case.oracle(case.target(5))

    def target(X):
        # a budget ends within a batch: every sequence is answered alone, to the same bits
        return np.concatenate([together(x[None]) for x in X])

    whole = us.learn(target, case.learner(5))
    ledger = tmp_path / "ledger.sqlite"
    counted = Counted(target)
    for part in (0.2, 0.6):
        with pytest.raises(us.BudgetExceeded):
            us.learn(counted, case.learner(5), budget=int(part * whole.queries), ledger=ledger)
    again = us.learn(counted, case.learner(5), ledger=ledger)
    assert same_but_for_rounding(again.model, whole.model)
    assert counted.queries == again.queries <= whole.queries + 2 * 32


HOSTILE = {
    "huge": lambda y: np.full_like(y, 1e300),
    "largest": lambda y: np.full_like(y, np.finfo(float).max),
    "huge multiples": lambda y: 1e290 * y,
    "tiny": lambda y: 1e-300 * y,
    "zero": lambda y: 0.0 * y,
    "equal": lambda y: np.full_like(y, 1.5),
    "alternating": lambda y: (-1.0) ** np.arange(y.size).reshape(y.shape),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@kinds
def test_hostile_answers_end_in_a_refusal_of_ours(case, trials, evidence):
    """From any round on, or in that round alone: no error of a solver leaves a learner.

    What is found beside hostile answers in one round is not judged here.
    """
    oracle, ends = case.oracle(case.target(0)), dict.fromkeys(("refused", "found"), 0)

    def learned(first, last, changed):
        """Let answers of rounds from ``first`` to ``last`` be hostile; return the rounds asked."""
        steps, answers, number = case.learner(0).steps(32), None, 0
        while True:
            try:
                asked = steps.send(answers)
            except StopIteration:
                ends["found"] += 1
                return number
            except us.UnsoftmaxError:
                ends["refused"] += 1
                return number
            answers = [np.asarray(oracle(part[:]), dtype=float) for part in asked]
            if first <= number <= last:
                answers = [changed(y) for y in answers]
            number += 1

    rounds, rng = learned(1, 0, None), np.random.default_rng(len(case.name))
    every = [
        (first, last, name)
        for first in range(rounds)
        for last in (first, rounds)
        for name in HOSTILE
    ]
    for k in rng.permutation(len(every))[: trials(2, len(every))]:
        first, last, name = every[k]
        learned(first, last, HOSTILE[name])
    evidence(f"hostile answers at every round, {case.name}", errors_of_solvers=0, **ends)
