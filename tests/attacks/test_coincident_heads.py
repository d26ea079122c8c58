"""Heads whose hyperplanes coincide for every query token: all that no jump tells apart.

W beside cW, rank-one heads in one column space, (W, v) beside (−W, v), heads in one dimension.
Each recovery is within its certificate, or refused by name; equal heads stay one.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.attacks.test_real_endpoints import share_of_the_bounds
from tests.heads import errors, several
from tests.networks import covered
from tests.truth import hidden

Learner = us.learners.MultiHeadLearner
Arrays = tuple[Any, Any, Any]


def collinear(c: float) -> Callable[[Arrays, Any], None]:
    """Make head 1 c times head 0."""

    def change(arrays: Arrays, rng: Any) -> None:
        W, w, _ = arrays
        W[1], w[1] = c * W[0], c * w[0]

    return change


def opposite(arrays: Arrays, rng: Any) -> None:
    """Make head 1 (−W_0, v_0): two tokens see nothing of the two."""
    collinear(-1.0)(arrays, rng)
    arrays[2][1] = arrays[2][0]


def one_column_space(arrays: Arrays, rng: Any) -> None:
    """Make all W_h of rank one, their columns along one vector."""
    W, w, _ = arrays
    H, d, _ = W.shape
    k = rng.standard_normal(d)
    W[:] = k[:, None] * rng.standard_normal((H, 1, d)) / np.sqrt(d)
    w[:] = k * rng.standard_normal((H, 1)) / np.sqrt(d)


def all_collinear(arrays: Arrays, rng: Any) -> None:
    """Make all heads multiples of one."""
    W, w, _ = arrays
    factors = np.cumsum(rng.uniform(0.3, 1.0, len(W)))
    W[:], w[:] = factors[:, None, None] * W[0], factors[:, None] * w[0]


COINCIDENT: dict[str, Callable[[Arrays, Any], None]] = {
    **{f"W and {c}W": collinear(c) for c in (0.5, 0.9, 1.01, 1.1, 2.0, 3.0, -2.0)},
    "(W, v) and (−W, v)": opposite,
    "one column space": one_column_space,
    "all collinear": all_collinear,
}
CLOSE = ("W and 1.01W",)
SERVED: dict[str, Callable[[Any], Any]] = {
    "float32": lambda oracle: lambda X: oracle(X).astype(np.float32).astype(float),
    "6 decimals": lambda oracle: us.oracles.rounded(oracle, 6),
    "jitter 1e-12": lambda oracle: lambda X: oracle(X) * (1 + 1e-12 * np.sin(1e6 * X.sum((1, 2)))),
}


def target(kind: str, heads: int, dim: int, seed: int, biases: bool = False) -> us.MultiHead:
    rng = np.random.default_rng([heads, dim, seed])
    W = rng.standard_normal((heads, dim, dim)) / np.sqrt(dim)
    w = rng.standard_normal((heads, dim)) / np.sqrt(dim)
    v = rng.standard_normal((heads, dim))
    COINCIDENT[kind]((W, w, v), rng)
    return us.MultiHead(W, v, biases * w, 0.3 * biases)


def held(recovery: Any, truth: us.MultiHead) -> bool:
    apart = errors(recovery.model, truth)
    return all(apart[f"|{name}|"] <= recovery.certificate.errors[name] for name in "Wvw")


def attacked(
    runs: int,
    drawn: Callable[[int], us.MultiHead],
    served: Callable[[us.MultiHead], Any] = hidden,
    heads: int = 8,
    **settings: Any,
) -> tuple[int, float]:
    """Recover targets of seeds, each within its certificate or refused: how many, and W's error."""
    refused, worst = 0, 0.0
    for seed in range(runs):
        truth = drawn(seed)
        try:
            recovery = us.learn(served(truth), Learner(truth.dim, heads, seed=seed, **settings))
        except us.ModelMismatch:
            refused += 1
            continue
        assert held(recovery, truth), seed
        assert recovery.evidence.passed
        worst = max(worst, errors(recovery.model, truth)["W"])
    return refused, worst


@pytest.mark.few(4)
@pytest.mark.parametrize("biases", [False, True], ids=["", "biases"])
@pytest.mark.parametrize("kind", COINCIDENT)
def test_coincident_heads_are_recovered_within_the_certificate(kind, biases, trials, evidence):
    runs = trials(1, 100)
    refused, worst = attacked(
        runs, lambda seed: target(kind, 2 + seed % 3, 2 + seed % 7, seed, biases), biases=biases
    )
    assert refused <= (0.1 if kind in CLOSE else 0.02) * runs + trials(1, 0)
    assert worst <= 1e-8
    evidence(
        f"coincident heads, {kind}{', biases' * biases}, 2 to 4 in 2 to 8 dimensions, {runs}",
        refused=refused,
        broken=0,
        W=worst,
    )


@pytest.mark.parametrize("biases", [False, True], ids=["", "biases"])
def test_heads_in_one_dimension(biases, trials, evidence):
    def drawn(seed):
        rng, heads = np.random.default_rng(seed), 2 + seed % 3
        W, v = rng.standard_normal((heads, 1, 1)), rng.standard_normal((heads, 1))
        return us.MultiHead(W, v, rng.standard_normal((heads, 1)) if biases else None, 0.3 * biases)

    runs = trials(2, 200)
    refused, worst = attacked(runs, drawn, heads=6, biases=biases)
    assert refused <= 0.05 * runs + trials(1, 0)
    evidence(
        f"2 to 4 heads in one dimension{', biases' * biases}, {runs} targets",
        refused=refused,
        broken=0,
        W=worst,
    )


@pytest.mark.parametrize("biases", [False, True], ids=["", "biases"])
@pytest.mark.parametrize(
    ("W", "v", "heads"),
    [
        ([1.0, 1.0], [2.0, 1.0], 1),
        ([1.0, 1.0, -1.0], [2.0, -1.0, 1.0], 2),
        ([1.0, 0.0], [2.0, 1.0], 2),
        ([0.0], [2.0], 1),
        ([1.0], [0.0], 0),
        ([1e6, 2e6], [2.0, 1.0], 2),
        ([1e-6, 2e-6], [2.0, 1.0], 2),
        ([1.0, -1.0], [2.0, -2.0], 2),
    ],
)
def test_equal_heads_stay_one_and_idle_ones_are_none(W, v, heads, biases):
    truth = us.MultiHead(np.reshape(W, (-1, 1, 1)), np.reshape(v, (-1, 1)))
    recovery = us.learn(truth, Learner(1, 4, biases=biases))
    assert heads == recovery.model.H
    assert held(recovery, truth)
    assert max(recovery.certificate.errors.values()) > 0 or not heads


def test_equal_heads_beside_collinear_ones_stay_one(trials):
    for seed in range(trials(1, 40)):
        drawn = target("W and 2.0W", 3, 2 + seed % 6, seed)
        truth = us.MultiHead([*drawn.W, drawn.W[0]], [*drawn.v, drawn.v[2]])
        recovery = us.learn(truth, Learner(truth.dim, 8, seed=seed))
        assert recovery.model.H == 3
        assert held(recovery, truth), seed


def test_closer_and_closer_heads_are_told_apart_or_said_to_be_missing(trials, evidence):
    ends = Counter[str]()
    for power in np.linspace(-7, -1, trials(2, 25)):
        for seed in range(trials(1, 10)):
            drawn = target("W and 2.0W", 2, 2 + seed % 6, seed)
            c = 1 + 10.0**power
            truth = us.MultiHead([drawn.W[0], c * drawn.W[0]], drawn.v)
            try:
                recovery = us.learn(truth, Learner(truth.dim, 8, seed=seed))
            except us.ModelMismatch:
                ends["refused"] += 1
                continue
            if recovery.model.H == 2:
                assert held(recovery, truth), (power, seed)
                ends["told_apart"] += 1
            else:
                assert "may be missing" in recovery.certificate.assumes[0]
                assert 10.0**power <= 1e-6
                ends["said_to_be_missing"] += 1
    assert ends["told_apart"]
    evidence("W beside (1 + ε)W, ε from 1e-7 to 0.1", runs=ends.total(), broken=0, **ends)


@pytest.mark.few
@pytest.mark.parametrize("served", SERVED)
@pytest.mark.parametrize("kind", ["W and 2.0W", "(W, v) and (−W, v)", "one column space"])
def test_answers_of_few_digits(kind, served, trials, evidence):
    runs = trials(1, 60)
    refused, _ = attacked(runs, lambda seed: target(kind, 2, 1 + seed % 5, seed), SERVED[served])
    assert refused <= 0.1 * runs + trials(1, 0)
    evidence(f"coincident heads, {kind}, {served}", runs=runs, broken=0, refused=refused)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["W and 2.0W", "(W, v) and (−W, v)", "all collinear"])
def test_short_tokens_are_enough(kind, trials, evidence):
    runs = trials(1, 20)

    def capped(truth):
        return us.oracles.norm_capped(truth, 10.0)

    refused, _ = attacked(
        runs, lambda seed: target(kind, 4, 4 + seed % 5, seed), capped, radius=10.0
    )
    assert not refused
    evidence(f"coincident heads, four, {kind}, tokens no longer than 10", runs=runs, broken=0)


def test_a_rank_that_is_given_is_kept_to():
    truth = target("W and 2.0W", 2, 5, 0)
    with pytest.raises(us.ModelMismatch, match="rank above 3"):
        us.learn(truth, Learner(5, 8, rank=3))


def test_more_coincident_heads_than_allowed_are_refused():
    truth = target("all collinear", 4, 3, 0)
    with pytest.raises(us.ModelMismatch, match="max_heads"):
        us.learn(truth, Learner(3, 3))


# -- certificates of close heads hold, with biases that are tiny beside W as well


def close(heads, seed, size):
    """Draw heads with biases, two of them 1e-4 to 1e-1 apart, W of about ``size``."""
    rng = np.random.default_rng([heads, seed, 21])
    drawn = several(heads, int(rng.integers(4, 9)), seed, biases=True)
    W, w, apart = size * drawn.W, drawn.w.copy(), 10.0 ** rng.uniform(-4, -1)
    W[1] = W[0] + apart * W[1]
    if rng.integers(2):
        w[1] = w[0] + apart * w[1]
    return us.MultiHead(W, drawn.v, w, drawn.c)


@pytest.mark.few
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("heads", [2, 3])
def test_certificates_of_close_heads_hold_whatever_their_size(heads, size, trials, evidence):
    def share_at(seed):
        target = close(heads, seed, size)
        learner = Learner(target.dim, heads + 3, biases=True, seed=seed)
        return share_of_the_bounds(us.learn(hidden(target), learner), target)

    count = trials(1, 400)
    claim = f"MultiHeadLearner, {heads} heads, two of them close, biases, W times {size:g}, {count}"
    refused = covered(claim, count, share_at, evidence, us.ModelMismatch)
    assert len(refused) <= 0.25 * count + trials(1, 0)
