"""A_FFN as a plain function: what it may ask, return and raise, and what is said of it."""

import functools
import threading
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.truth import Counted, relative

Algorithm = us.learners.NetworkAlgorithm
RNG = np.random.default_rng(0)
D = 4
NETWORK = us.ReluNetwork(np.hstack([np.eye(D), -np.eye(D)]), RNG.standard_normal(2 * D))
TARGET = us.Transformer(RNG.standard_normal((D, D)), NETWORK)


def axes(oracle, size=1.0):
    """Learn Σ_k s_k·relu(x_k) + t_k·relu(−x_k) from x = ±e_k."""
    eye = np.eye(oracle.dim)
    y = oracle(size * np.vstack([eye, -eye])) / size
    return us.ReluNetwork(np.hstack([eye, -eye]), y)


def one_by_one(oracle):
    """The same, a point at a time, in the shape of sequences."""
    eye = np.vstack([np.eye(oracle.dim), -np.eye(oracle.dim)])
    y = [float(oracle(x[None, None])[0]) for x in eye]
    return us.ReluNetwork(eye.T, y)


@pytest.mark.parametrize("attention", ["local", "antisymmetric"])
@pytest.mark.parametrize("algorithm", [axes, one_by_one, functools.partial(axes, size=2.0)])
def test_a_function_takes_the_role_of_A_FFN(algorithm, attention):
    before, oracle = threading.active_count(), Counted(TARGET)
    learner = us.learners.TransformerLearner(D, network=algorithm, attention=attention)
    recovery = us.learn(oracle, learner)
    assert relative(recovery.model.W, TARGET.W) <= 1e-12
    assert recovery.evidence.passed
    assert oracle.queries == recovery.queries
    assert recovery.certificate.W_error == np.inf or attention == "antisymmetric"
    assert threading.active_count() == before
    name = "axes" if algorithm is not one_by_one else "one_by_one"
    assert any(name in note for note in recovery.notes)
    assert learner.settings()["network"]["algorithm"].endswith(f"test_network_algorithm:{name}")


def test_with_a_stated_error_W_has_a_bound():
    learner = us.learners.TransformerLearner(D, Algorithm(D, axes, slope_error=1e-15))
    recovery = us.learn(TARGET, learner)
    assert np.linalg.norm(recovery.model.W - TARGET.W) <= recovery.certificate.W_error < 1e-6
    assert any("as stated" in sentence for sentence in recovery.certificate.assumes)


def test_a_stated_error_that_is_wrong_is_refused():
    def coarse(oracle):
        network = axes(oracle)
        return us.ReluNetwork(network.A, network.w_o * (1 + 1e-4))

    with pytest.raises(us.ModelMismatch, match=r"coarse misses fresh points.*stated"):
        us.learn(NETWORK, Algorithm(D, coarse, slope_error=1e-9))
    loose = us.learn(NETWORK, Algorithm(D, coarse, slope_error=1e-2))
    assert loose.certificate.errors == {"constant": 0.0, "slope": 1e-2}
    assert us.learn(NETWORK, Algorithm(D, coarse)).evidence.passed  # nothing was stated
    unchecked = us.learn(NETWORK, Algorithm(D, coarse), holdout=0)
    assert not unchecked.evidence.passed
    assert unchecked.certificate.assumes[-1] == "Nothing was checked."


def test_an_algorithm_that_does_not_fit_the_target_is_refused():
    rng = np.random.default_rng(1)
    other = us.ReluNetwork(rng.standard_normal((D, 9)), np.ones(9), rng.standard_normal(9))
    with pytest.raises(us.ModelMismatch, match="axes misses fresh points"):
        us.learn(other, Algorithm(D, axes))


def endless(oracle):
    while True:
        oracle(np.eye(oracle.dim))


def stubborn(oracle):
    try:
        return oracle(np.zeros((1, oracle.dim + 1)))
    except ValueError:
        return axes(oracle)


WRONG: dict[str, tuple[Any, str]] = {
    "raises": (lambda oracle: 1 / 0, "failed: ZeroDivisionError: division by zero"),
    "exits": (lambda oracle: exec("raise SystemExit(3)"), "failed: SystemExit: 3"),
    "returns nothing": (lambda oracle: None, "must return a ReluNetwork of 4 dimensions"),
    "another dimension": (lambda oracle: us.ReluNetwork([[1.0]], [1.0]), "of 4 dimensions"),
    "asks other points": (lambda oracle: oracle([[1.0, 2.0]]), r"shape \(B, 4\)"),
    "asks NaN": (lambda oracle: oracle([[np.nan] * D]), "finite points"),
    "asks too much": (endless, r"endless asks for more than most_queries = 100"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_goes_wrong_is_named(what):
    algorithm, says = WRONG[what]
    before = threading.active_count()
    for learner in (
        Algorithm(D, algorithm, most_queries=100),
        us.learners.TransformerLearner(D, Algorithm(D, algorithm, most_queries=100)),
    ):
        with pytest.raises(us.AlgorithmError, match=says) as failure:
            us.learn(TARGET if learner.plan().tokens > 100 else NETWORK, learner)
        assert "test_network_algorithm:" in str(failure.value)
    assert threading.active_count() == before


def test_a_refused_question_may_be_caught_and_nothing_is_paid_for_it():
    oracle = Counted(NETWORK)
    recovery = us.learn(oracle, Algorithm(D, stubborn))
    assert relative(recovery.model.w_o, NETWORK.w_o) <= 1e-14
    assert oracle.queries == 2 * D + 32


def test_errors_of_unsoftmax_pass_as_they_are():
    def honest(oracle):
        raise us.ModelMismatch("This is no network of mine.")

    with pytest.raises(us.ModelMismatch, match=r"^This is no network of mine\.$"):
        us.learn(NETWORK, Algorithm(D, honest))


@pytest.mark.parametrize("budget", [0, 3, 17, 30])
def test_a_budget_ends_it_and_the_ledger_goes_on(budget, tmp_path):
    before, oracle = threading.active_count(), Counted(TARGET)
    learner = us.learners.TransformerLearner(D, network=one_by_one)
    with pytest.raises(us.BudgetExceeded):
        us.learn(oracle, learner, budget=budget, ledger=tmp_path / "ledger.sqlite")
    assert threading.active_count() == before
    recovery = us.learn(oracle, learner, ledger=tmp_path / "ledger.sqlite")
    whole = us.learn(TARGET, learner)
    assert np.array_equal(recovery.model.W, whole.model.W)
    assert oracle.queries == recovery.queries <= whole.queries + 32


def test_an_algorithm_that_asks_something_else_is_noticed_on_its_ledger(tmp_path):
    ledger, sizes = tmp_path / "ledger.sqlite", iter([1.0, 2.0])

    def moody(oracle):
        network = axes(oracle, next(sizes))
        oracle(np.ones((60, D)))
        return network

    with pytest.raises(us.BudgetExceeded):
        us.learn(NETWORK, Algorithm(D, moody), budget=20, ledger=ledger)
    with pytest.raises(us.LedgerMismatch):
        us.learn(NETWORK, Algorithm(D, moody), ledger=ledger)


def test_a_target_that_fails_ends_it():
    def dead(X):
        raise ConnectionError("the line is dead")

    before = threading.active_count()
    with pytest.raises(us.OracleError, match="the line is dead"):
        us.learn(dead, Algorithm(D, axes), retries=1)
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, us.OracleError])
def test_an_error_in_place_of_an_answer_is_not_the_algorithms(error):
    """By hand: what is thrown in at a round comes out as it is."""
    steps = Algorithm(D, axes).steps(0)
    next(steps)
    with pytest.raises(error, match=r"^the line is dead$"):
        steps.throw(error("the line is dead"))


def test_what_is_answered_belongs_to_the_algorithm():
    def vandal(oracle):
        x = np.vstack([np.eye(D), -np.eye(D)])
        y = oracle(x)
        x[:] = np.nan
        kept = y.copy()
        y[:] = 0
        return us.ReluNetwork(np.hstack([np.eye(D), -np.eye(D)]), kept)

    assert us.learn(NETWORK, Algorithm(D, vandal)).evidence.passed


@pytest.mark.parametrize(
    ("wrong", "error", "name"),
    [
        ({"dim": 0}, ValueError, "dim"),
        ({"algorithm": 3}, TypeError, "algorithm"),
        ({"algorithm": us.ReluNetwork}, TypeError, "algorithm"),
        ({"constant_error": -1.0}, ValueError, "constant_error"),
        ({"slope_error": np.nan}, ValueError, "slope_error"),
        ({"slope_error": "1"}, TypeError, "slope_error"),
        ({"most_queries": 0}, ValueError, "most_queries"),
        ({"seed": -1}, ValueError, "seed"),
    ],
)
def test_wrong_settings(wrong, error, name):
    right: dict[str, Any] = {"dim": D, "algorithm": axes}
    with pytest.raises(error, match=f"^{name} must"):
        Algorithm(**{**right, **wrong})


@pytest.mark.parametrize("network", [NETWORK, us.ReluNetwork, 3])
def test_what_is_no_algorithm(network):
    with pytest.raises(TypeError, match="a function from an oracle to a ReluNetwork"):
        us.learners.TransformerLearner(D, network=network)
