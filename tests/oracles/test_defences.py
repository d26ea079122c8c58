"""Defences: what they do to answers, and that the runner and the rest see an oracle as before."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import unsoftmax as us
from tests.truth import Counted

HEAD = us.SingleHead(np.eye(3), [1.0, -2.0, 0.5])
X = np.random.default_rng(0).standard_normal((50, 4, 3))
Y = HEAD(X)


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
    # by the runner: no second try of the same, and a learner that can keeps to what is answered
    found = us.learn(us.oracles.norm_capped(HEAD, 1e-3), us.learners.ExactHead(3))
    assert found.certificate.W_error < 1e-6
    with pytest.raises(us.TokensRefused, match=r"up to norm 0\.001"):
        us.learn(us.oracles.norm_capped(HEAD, 1e-3), us.learners.ReluNetworkLearner(3))
    for bad in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="radius"):
            us.oracles.norm_capped(HEAD, bad)


def test_what_is_missing_has_no_label_and_no_noise():
    def flawed(X):
        return np.array([np.nan, 2.0, -np.inf, np.inf])

    X = np.zeros((4, 1, 1))
    assert np.array_equal(us.oracles.labels(flawed)(X), [np.nan, 1.0, 0.0, 1.0], equal_nan=True)

    def masked(X):
        return np.ma.MaskedArray([1.0, 2.0], mask=[True, False])

    for defence in (us.oracles.labels(masked), us.oracles.noisy(masked, 0.0, 0)):
        assert np.array_equal(np.isnan(defence(X[:2])), [True, False])
