"""Answers within ±τ: as far off as they may be, never further, and the same every time."""

from typing import Any

import numpy as np
import pytest

import unsoftmax as us

RNG = np.random.default_rng(0)
HEAD = us.SingleHead(RNG.standard_normal((3, 3)), [1.0, -2.0, 0.5], RNG.standard_normal(3), 0.25)
X = RNG.standard_normal((200, 4, 3))
within = us.oracles.within


def constant(X):
    return np.ones(len(X))


WORST: dict[str, Any] = {"hash": None, "truth": HEAD, "callable": constant}
ORACLES: dict[str, Any] = {
    "numbers": HEAD,
    "vectors": lambda X: X[:, -1],
    "float32": lambda X: HEAD(X).astype(np.float32),
    "large": lambda X: 1e12 * HEAD(X),
    "tiny": lambda X: 1e-30 * HEAD(X),
    "rounded": us.oracles.rounded(HEAD, 1),
    "clipped": us.oracles.clipped(HEAD, -0.5, 0.5),
    "labels": us.oracles.labels(HEAD),
    "coordinate": us.oracles.coordinate(lambda X: X[:, -1], 1),
    "capped": us.oracles.norm_capped(HEAD, 100.0),
}


@pytest.mark.parametrize("worst", WORST)
@pytest.mark.parametrize("oracle", ORACLES)
def test_off_by_tau_and_never_more(oracle, worst):
    target = ORACLES[oracle]
    for tau in (0.0, 1e-9, 0.1, 30.0):
        for N in (1, 2, 4):
            y = np.asarray(target(X[:, :N]), dtype=np.float64)
            off = np.abs(within(target, tau, worst=WORST[worst])(X[:, :N]) - y)
            assert np.all(off <= tau)
            assert np.all(off >= tau - 8 * 2.0**-53 * (tau + np.abs(y)))


def test_the_same_question_gets_the_same_answer_in_any_batch():
    liar = within(ORACLES["vectors"], 0.1, seed=4)
    whole = liar(X)
    assert np.array_equal(whole, np.concatenate([liar(X[k : k + 1]) for k in range(len(X))]))
    order = RNG.permutation(len(X))
    assert np.array_equal(whole[order], liar(X[order]))
    zero = np.zeros((1, 2, 3))
    assert np.array_equal(liar(zero), liar(-zero))
    single: Any = X.astype(np.float32)
    assert np.array_equal(liar(single.astype(np.float64)) - liar(single), np.zeros((200, 3)))


def test_hashed_signs_are_fair_and_decided_by_the_seed():
    signs = [np.sign(within(lambda X: 0 * X[:, -1], 1.0, seed=s)(X)) for s in (0, 0, 1)]
    assert np.array_equal(signs[0], signs[1])
    for pair in (signs[0], signs[0] * signs[2], signs[0][:, 0] * signs[0][:, 1]):
        assert abs(pair.mean()) < 4 / np.sqrt(pair.size)


def test_single_tokens_may_have_a_tolerance_of_their_own():
    liar = within(HEAD, 0.1, tau_single=0.001)
    for N, tau in ((1, 0.001), (2, 0.1)):
        assert np.abs(liar(X[:, :N]) - HEAD(X[:, :N])) == pytest.approx(tau, rel=1e-9)


@pytest.mark.parametrize("d", [2, 6, 32])
def test_no_signs_are_worse_for_the_papers_probes_than_the_truths(d, trials):
    """All errors of W's entries add up: hashed signs, and any pattern of v's, do less."""
    for seed in range(trials(2, 60)):
        rng = np.random.default_rng(seed)
        W, v = rng.standard_normal((d, d)), rng.choice([-1.0, 1.0], d) * rng.uniform(0.3, 1, d)
        head = us.SingleHead(1.9 * W / np.linalg.norm(W), v / np.linalg.norm(v))
        learner = us.learners.ApproximateHead(d, 1e-9, norm_bound=2.0, probes="paper", seed=seed)
        g = us.SingleHead(head.W, rng.choice([-1.0, 1.0], d))
        found = {}
        for name, worst in (
            ("truth", head),
            ("hash", None),
            ("pattern", lambda X, g=g: g(X) if X.shape[1] == 1 else -g(X)),
        ):
            liar = within(head, 1e-9, worst=worst, seed=seed)
            recovery = us.learn(lambda X, f=liar: f(X), learner)
            found[name] = float(np.linalg.norm(recovery.model.W - head.W))
        assert found["truth"] >= max(found.values()) * (1 - 1e-5)
        # of few signs drawn all may be the worst ones
        assert d == 2 or found["truth"] > 1.1 * found["hash"]


def test_a_callable_chooses_for_sequences_or_for_numbers():
    up, down = (within(lambda X: X[:, -1], 0.5, worst=w) for w in (constant, lambda X: -X[:, -1]))
    assert np.allclose(up(X) - X[:, -1], 0.5, rtol=0, atol=1e-12)
    assert np.array_equal(np.sign(down(X) - X[:, -1]), -np.sign(X[:, -1]))
    with pytest.raises(us.OracleError, match="one per sequence"):
        within(HEAD, 0.5, worst=lambda X: 1.0)(X)
    with pytest.raises(us.OracleError, match="one per sequence"):
        within(HEAD, 0.5, worst=lambda X: X[:, -1])(X)


@pytest.mark.parametrize(
    ("wrong", "error", "name"),
    [
        ({"tau": -1.0}, ValueError, "tau"),
        ({"tau": np.inf}, ValueError, "tau"),
        ({"tau": np.nan}, ValueError, "tau"),
        ({"tau": 1.0, "tau_single": -1.0}, ValueError, "tau_single"),
        ({"tau": 1.0, "seed": -1}, ValueError, "seed"),
        ({"tau": 1.0, "worst": 3}, TypeError, "worst"),
    ],
)
def test_wrong_arguments(wrong, error, name):
    with pytest.raises(error, match=name):
        within(HEAD, **wrong)
