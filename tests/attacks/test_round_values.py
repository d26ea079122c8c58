"""Round parameters are no reason to call answers rounded, at however small a hold-out.

v of ones, signs, decimals or sixteenths makes round answers of single tokens. Real rounding is
noticed all the same, by the answers that W is read from.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us

VALUES: dict[str, Callable[[int, Any], Any]] = {
    "ones": lambda d, rng: np.ones(d),
    "one-hot": lambda d, rng: np.eye(d)[d - 1],
    "0.3": lambda d, rng: np.full(d, 0.3),
    "1 to d": lambda d, rng: np.arange(1.0, d + 1),
    "signs": lambda d, rng: rng.choice([-1.0, 1.0], d),
    "sixteenths": lambda d, rng: rng.integers(1, 64, d) / 16,
    "decimals": lambda d, rng: np.round(rng.standard_normal(d), 2) + 0.01,
}
SCORES: dict[str, Callable[[int, Any], Any]] = {
    "generic": lambda d, rng: rng.standard_normal((d, d)),
    "identity": lambda d, rng: np.eye(d),
    "integer": lambda d, rng: rng.integers(-3, 4, (d, d)).astype(float),
    "zero": lambda d, rng: np.zeros((d, d)),
    "one entry": lambda d, rng: np.outer(np.eye(d)[0], np.eye(d)[-1]),
}
HOLDOUTS = [0, 1, 2, 3, 4, 32]


def head(d: int, v: str, W: str, seed: int, biases: bool = False) -> us.SingleHead:
    rng = np.random.default_rng([d, seed])
    more = (np.round(rng.standard_normal(d), 1), 0.5) if biases else ()
    return us.SingleHead(SCORES[W](d, rng), VALUES[v](d, rng), *more)


def learners(d: int, biases: bool, W: str) -> list[Any]:
    made = [make(d, biases=biases) for make in (us.learners.ExactHead, us.learners.LowRankHead)]
    low_rank = W in ("zero", "one entry") and not biases
    return [*made, us.learners.SensingHead(d, 1)] if low_rank else made


@pytest.mark.few(3)
@pytest.mark.parametrize("v", VALUES)
@pytest.mark.parametrize("W", SCORES)
def test_round_heads_are_recovered_as_exactly_as_others(W, v, trials, evidence):
    runs = 0
    for holdout, seed in itertools.product(HOLDOUTS[:: trials(3, 1)], range(trials(1, 10))):
        for d in (3, 5)[: trials(1, 2)] if seed % 2 else (5, 8)[: trials(1, 2)]:
            for biases in (False, True):
                target = head(d, v, W, seed, biases)
                for learner in learners(d, biases, W):
                    found = us.learn(target, learner, holdout=holdout)
                    size = max(1.0, float(np.linalg.norm(target.W)))
                    off = np.linalg.norm(found.model.W - target.W)
                    case = (learner, seed, holdout)
                    assert off <= found.certificate.W_error <= 1e-8 * size, case
                    off = np.linalg.norm(found.model.v - target.v)
                    assert off <= found.certificate.v_error, case
                    runs += 1
    evidence(f"round heads, W {W}, v {v}, hold-outs 0 to 32", runs=runs, broken=0, refused=0)


ROUNDED: dict[str, Callable[[Any], Any]] = {
    "float32": lambda f: lambda X: f(X).astype(np.float32).astype(float),
    "6 decimals": lambda f: us.oracles.rounded(f, 6),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("v", VALUES)
@pytest.mark.parametrize("rounded", ROUNDED)
def test_rounded_answers_of_round_heads_are_noticed(rounded, v, trials, evidence):
    runs = [*itertools.product(HOLDOUTS, range(trials(1, 10)))]
    for holdout, seed in runs:
        target = head(5, v, "generic", seed)
        found = us.learn(ROUNDED[rounded](target), us.learners.ExactHead(5), holdout=holdout)
        off = np.linalg.norm(found.model.W - target.W)
        assert off <= found.certificate.W_error, (holdout, seed)
        assert 1e-10 < found.certificate.W_error < 0.1 * np.linalg.norm(target.W), (holdout, seed)
    claim = f"round heads, v {v}, answers rounded to {rounded}: noticed, hold-outs 0 to 32"
    evidence(claim, runs=len(runs), broken=0, refused=0)


@pytest.mark.parametrize("holdout", [4, 8])
@pytest.mark.parametrize("v", ["ones", "one-hot", "signs"])
def test_float32_answers_of_a_head_without_scores(v, holdout):
    """No gate tells; the hold-out does."""
    target = head(5, v, "zero", 0)
    found = us.learn(ROUNDED["float32"](target), us.learners.ExactHead(5), holdout=holdout)
    assert np.linalg.norm(found.model.W) <= found.certificate.W_error < 1e-3


@pytest.mark.parametrize("grid", [1.0, 0.1, 1 / 16])
def test_round_networks_the_papers_way(grid, trials, evidence):
    runs = trials(1, 30)
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        A, w_o = (np.round(rng.standard_normal(n) / grid) * grid for n in ((4, 6), 6))
        W = rng.standard_normal((4, 4)) / 2
        target = us.Transformer(W, us.ReluNetwork(A + grid * (A == 0), w_o + grid * (w_o == 0)))
        network = us.learners.ReluNetworkLearner(4, biases=False)
        learner = us.learners.TransformerLearner(4, network=network, attention="antisymmetric")
        found = us.learn(target, learner)
        assert np.linalg.norm(found.model.W - W) <= found.certificate.W_error < 1e-6, seed
    claim = f"Transformer, antisymmetric part, weights on a grid of {grid:g}"
    evidence(claim, runs=runs, broken=0, refused=0)


def test_what_no_answer_tells_is_said():
    found = us.learn(
        us.SingleHead(np.zeros((5, 5)), np.ones(5)), us.learners.ExactHead(5), holdout=0
    )
    assert any("No answer showed" in line for line in found.certificate.assumes)


@pytest.mark.parametrize("decimals", [13, 14, 15])
def test_decimals_as_fine_as_float64_are_noticed(decimals, trials, evidence):
    """Large answers have as many digits as any float64 number; only smaller ones show it."""
    runs = trials(2, 300)
    for seed in range(runs):
        rng = np.random.default_rng([seed, 26])
        target = us.SingleHead(rng.standard_normal((4, 4)) / 2, rng.standard_normal(4))
        found = us.learn(us.oracles.rounded(target, decimals), us.learners.ExactHead(4, seed=seed))
        off = np.linalg.norm(found.model.W - target.W)
        assert off <= found.certificate.W_error <= 1e-7, seed
    evidence(f"ExactHead(4), answers rounded to {decimals} decimals", runs=runs, refused=0)
