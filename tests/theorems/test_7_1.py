"""Proposition 7.1: of heads with equal scores only the sum of their values is determined."""

import json

import numpy as np
import pytest

import unsoftmax as us
from tests.laws import kinds
from tests.truth import Counted
from unsoftmax.theory.counts import samples_for
from unsoftmax.validate import function_bound
from unsoftmax.validate.function_bound import Sampling


@pytest.mark.parametrize(("H", "d"), [(2, 2), (3, 5), (8, 4)])
@pytest.mark.parametrize("biases", [False, True])
def test_weights_between_heads_of_equal_scores_are_free(trials, evidence, H, d, biases):
    """The proposition's family: v_h = λ_h·v, Σλ = 1, computes the same for every λ."""
    rng = np.random.default_rng([H, d])
    runs, worst = trials(8, 1000), 0.0
    for _ in range(runs):
        W, v = rng.standard_normal((d, d)), rng.standard_normal(d)
        w, c = (rng.standard_normal(d), 0.5) if biases else (np.zeros(d), 0.0)
        one, other = (
            us.MultiHead([W] * H, weights[:, None] * v, [w] * H, c)
            for weights in (x / x.sum() for x in rng.uniform(0.1, 1, (2, H)))
        )
        single = us.SingleHead(W, v, w, c)
        assert not np.allclose(one.v, other.v, rtol=1e-6)  # other parameters
        for model in (other, single):
            assert us.equivalent(one, model)
        assert us.canonical(one).H == 1
        X = rng.standard_normal((20, rng.integers(1, 8), d))
        apart = np.abs(one(X) - other(X)) / np.linalg.norm(X, axis=2).max(axis=1)
        worst = max(worst, float(apart.max() / np.linalg.norm(v)))
    assert worst < 1e-14
    evidence(
        f"Proposition 7.1: equal scores, other weights, one function, H={H}, d={d}"
        f"{', biases' * biases}",
        runs=runs,
        largest_difference=worst,
    )


def test_the_sum_is_determined(trials):
    """Another sum is another function, shown by a witness; so are scores that are not equal."""
    rng = np.random.default_rng(0)
    for _ in range(trials(20, 1000)):
        W, v, moved = rng.standard_normal((3, 3)), rng.standard_normal((2, 3)), 1e-6
        a = us.MultiHead([W, W], v)
        apart = moved * rng.standard_normal((3, 3))
        for b in (
            us.MultiHead([W, W], v + moved * rng.standard_normal((2, 3))),
            us.MultiHead([W + apart, W - apart], v),
        ):
            result = us.equivalent(a, b)
            assert result.verdict == "different"
            assert result.witness is not None
            x = result.witness[None]
            scale = np.linalg.norm(x, axis=2).max() * np.linalg.norm(v)
            assert abs(a(x) - b(x))[0] > 1e-12 * scale


# -- question (ii) of section 7.1: a bound on the function, on a distribution of one's own


def normal(dim, longest=9):
    """Sequences of 1 to ``longest`` tokens."""
    return lambda rng: rng.standard_normal((int(rng.integers(1, longest + 1)), dim))


class Nothing:
    """A model that answers 0."""

    dim = 2

    def __call__(self, X):
        return np.zeros(len(X))


def bounded(sampling, target, seed):
    """Drive the samples by hand."""
    steps = sampling.bound(Nothing(), seed)
    try:
        parts = next(steps)
        while True:
            parts = steps.send([target(part[:]) for part in parts])
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize(("eps", "delta"), [(0.1, 0.1), (0.02, 0.05), (0.05, 0.01)])
def test_the_bound_holds_with_the_confidence_stated(eps, delta, trials, evidence):
    """Misses are uniform on [0, 1]: a share 1 − bound is beyond."""
    runs = trials(300, 10_000)
    sampling = Sampling(lambda rng: np.array([[rng.random(), 0.0]]), eps, delta)
    bounds = [bounded(sampling, lambda X: X[:, 0, 0], seed).bound for seed in range(runs)]
    wrong = np.mean(1 - np.array(bounds) > eps)
    assert wrong <= delta + 4 * np.sqrt(delta / runs)
    evidence(f"bound on the function, ε = {eps}, δ = {delta}, {runs} runs", wrong=wrong)


def test_samples_are_asked_some_at_a_time_and_all_count(monkeypatch):
    monkeypatch.setattr(function_bound, "TOGETHER", 10)
    asked = []

    def target(X):
        asked.append(len(X))
        return np.where(len(asked) == 2, 7.0, 1.0) * np.ones(len(X))

    sampling = Sampling(lambda rng: np.ones((3, 2)), 0.1, 0.1)
    found = bounded(sampling, target, 0)
    assert asked == [10, 10, 4]
    assert (found.bound, found.samples) == (7.0, samples_for(0.1, 0.1)) == (7.0, 24)


@kinds
def test_every_learner_has_a_bound_on_the_function(case):
    target = case.target(0)
    longest = 9 if hasattr(target, "W") else 1
    oracle = Counted(case.oracle(target))
    recovery = us.learn(
        oracle,
        case.learner(0),
        sampler=lambda rng: _short(target, longest, rng),
        eps=0.1,
        delta=0.1,
    )
    function = recovery.function
    assert function is not None
    assert function.samples == 24
    assert recovery.counts["check"] == 32 + 24
    assert oracle.queries == recovery.queries
    assert 0 <= function.bound < 2
    assert any("all but a share of 0.1" in note for note in recovery.notes)
    assert json.loads(json.dumps(recovery.to_json()))["function"]["eps"] == 0.1
    # the model is the same as without
    plain = us.learn(case.oracle(target), case.learner(0))
    assert plain.function is None
    assert "function" not in plain.to_json()
    assert plain.certificate == recovery.certificate


def _short(target, longest, rng):
    """Tokens of norm at most 1."""
    X = normal(target.dim, longest)(rng)
    return X / np.linalg.norm(X, axis=1).max()


def test_a_recovered_head_predicts_ones_own_sequences():
    rng = np.random.default_rng(0)
    target = us.SingleHead(rng.standard_normal((4, 4)), rng.standard_normal(4))
    found = us.learn(target, us.learners.ExactHead(4), sampler=normal(4), eps=0.01, delta=1e-6)
    assert found.function is not None
    assert found.function.samples == 1382
    assert found.function.bound < 1e-12


def test_samples_are_added_to_a_finished_ledger_and_paid_once(tmp_path):
    target, learner = us.SingleHead(np.eye(3), np.ones(3)), us.learners.ExactHead(3)
    ledger = tmp_path / "ledger"
    first = us.learn(target, learner, ledger=ledger)
    with_samples = us.learn(target, learner, ledger=ledger, sampler=normal(3), eps=0.1, delta=0.1)
    assert with_samples.counts["check"] == first.counts["check"] + 24
    again = us.learn(target, learner, ledger=ledger, sampler=normal(3), eps=0.1, delta=0.1)
    assert again.function == with_samples.function
    assert again.counts["check"] == with_samples.counts["check"]
    with pytest.raises(us.LedgerMismatch, match="other questions"):
        us.learn(target, learner, ledger=ledger, sampler=normal(3, 5), eps=0.1, delta=0.1)


def test_a_budget_counts_samples(tmp_path):
    target, learner = us.SingleHead(np.eye(3), np.ones(3)), us.learners.ExactHead(3)
    with pytest.raises(us.BudgetExceeded):
        us.learn(target, learner, budget=12 + 32 + 3, sampler=normal(3))


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"sampler": 3}, TypeError, "sampler must be callable"),
        ({"eps": 0.0}, ValueError, "eps must be between 0 and 1"),
        ({"delta": 1}, ValueError, "delta must be between 0 and 1"),
        ({"eps": "small"}, TypeError, "eps must be a number"),
        ({"delta": True}, TypeError, "delta must be a number"),
        ({"sampler": lambda rng: np.ones((2, 4))}, ValueError, r"of shape \(N, 3\)"),
        ({"sampler": lambda rng: np.full((2, 3), np.nan)}, ValueError, "finite"),
    ],
)
def test_what_is_wrong_is_said(settings, error, said):
    target = us.SingleHead(np.eye(3), np.ones(3))
    with pytest.raises(error, match=said):
        us.learn(target, us.learners.ExactHead(3), **{"sampler": normal(3), **settings})
