"""Defences: what they do to answers, and that the runner and the rest see an oracle as before."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import unsoftmax as us
from tests.truth import Counted

HEAD = us.SingleHead(np.eye(3), [1.0, -2.0, 0.5])
X = np.random.default_rng(0).standard_normal((50, 4, 3))
Y = HEAD(X)

DEFENCES = {
    "rounded": lambda oracle: us.oracles.rounded(oracle, 2),
    "noisy": lambda oracle: us.oracles.noisy(oracle, 0.1, seed=3),
    "clipped": lambda oracle: us.oracles.clipped(oracle, -0.5, 0.25),
    "norm_capped": lambda oracle: us.oracles.norm_capped(oracle, 10.0),
    "labels": lambda oracle: us.oracles.labels(oracle),
    "within": lambda oracle: us.oracles.within(oracle, 0.1),
}


def test_every_defence_is_tested_here():
    places = {"from_onnx", "from_torch", "from_url", "HttpLimits", "on_dask"}
    assert set(us.oracles.__all__) - places == {*DEFENCES, "coordinate"}


@pytest.mark.parametrize("name", DEFENCES)
def test_they_know_the_dimension_when_the_oracle_does(name):
    assert DEFENCES[name](HEAD).dim == 3
    assert not hasattr(DEFENCES[name](lambda X: HEAD(X)), "dim")
    with pytest.raises(us.DimensionRefused, match="dim=3"):
        us.learn(DEFENCES[name](HEAD), us.learners.ExactHead(4))


@pytest.mark.parametrize("name", DEFENCES)
def test_they_are_picklable_and_take_vectors_and_change_no_question(name):
    copy = pickle.loads(pickle.dumps(DEFENCES[name](HEAD)))
    assert np.array_equal(copy(X), DEFENCES[name](HEAD)(X))
    asked = X.copy()
    vectors = DEFENCES[name](lambda X: X[:, -1])(asked)
    assert vectors.shape == (50, 3)
    assert np.array_equal(asked, X)


def test_rounded():
    assert np.array_equal(us.oracles.rounded(HEAD, 1)(X), np.round(Y, 1))
    with pytest.raises(TypeError, match="decimals"):
        us.oracles.rounded(HEAD, 1.5)  # type: ignore[arg-type]


def test_clipped():
    answers = us.oracles.clipped(HEAD, -0.5, 0.25)(X)
    inside = (Y > -0.5) & (Y < 0.25)
    assert np.array_equal(answers[inside], Y[inside])
    assert set(answers[~inside]) == {-0.5, 0.25}
    with pytest.raises(ValueError, match="below high"):
        us.oracles.clipped(HEAD, 1.0, 1.0)


def test_labels():
    assert np.array_equal(us.oracles.labels(HEAD)(X), (Y > 0).astype(float))
    assert us.oracles.labels(lambda X: np.zeros(len(X)))(X[:1]) == 0.0


def test_noise_is_gaussian_and_decided_by_seed_and_order():
    first, same, other = (us.oracles.noisy(HEAD, 0.1, seed) for seed in (3, 3, 4))
    calls = [first(X) for _ in range(200)]
    assert np.array_equal(calls, [same(X) for _ in range(200)])
    assert not np.array_equal(calls[0], other(X))
    noise = (np.array(calls) - Y) / 0.1
    assert abs(noise.mean()) < 4 / np.sqrt(noise.size)
    assert abs(noise.std() - 1) < 4 / np.sqrt(2 * noise.size)
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.5
    for bad in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="scale"):
            us.oracles.noisy(HEAD, bad, 0)
    with pytest.raises(ValueError, match="seed"):
        us.oracles.noisy(HEAD, 1.0, -1)


def test_threads_never_share_noise():
    defended = us.oracles.noisy(lambda X: np.zeros(len(X)), 1.0, seed=0)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(defended, [X] * 200))
    assert len({tuple(y) for y in answers}) == 200


def test_the_norm_cap_refuses_once_and_for_all():
    target = Counted(HEAD)
    defended = us.oracles.norm_capped(target, 1.0)
    longest = X / np.linalg.norm(X, axis=2, keepdims=True)
    assert np.array_equal(defended(longest), HEAD(longest))
    asked = target.queries
    with pytest.raises(us.OracleError, match=r"up to norm 1; .* of norm 2\. Ask shorter"):
        defended(2 * longest)
    assert target.queries == asked
    # by the runner: no second try, and its own word for where it happened
    tries = Counted(us.oracles.norm_capped(HEAD, 1e-3))
    with pytest.raises(us.OracleError, match=r"up to norm 0\.001"):
        us.learn(tries, us.learners.ExactHead(3))
    assert tries.calls == 1
    for bad in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="radius"):
            us.oracles.norm_capped(HEAD, bad)


def test_defences_stack():
    both = us.oracles.rounded(us.oracles.clipped(HEAD, -1.0, 1.0), 1)
    assert np.array_equal(both(X), np.round(np.clip(Y, -1, 1), 1))
    assert both.dim == 3


def test_what_is_missing_has_no_label_and_no_noise():
    def flawed(X):
        return np.array([np.nan, 2.0, -np.inf, np.inf])

    X = np.zeros((4, 1, 1))
    assert np.array_equal(us.oracles.labels(flawed)(X), [np.nan, 1.0, 0.0, 1.0], equal_nan=True)

    def masked(X):
        return np.ma.MaskedArray([1.0, 2.0], mask=[True, False])

    for defence in (us.oracles.labels(masked), us.oracles.noisy(masked, 0.0, 0)):
        assert np.array_equal(np.isnan(defence(X[:2])), [True, False])
