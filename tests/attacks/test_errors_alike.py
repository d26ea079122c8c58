"""Errors that answers have in common, or one coordinate alone, are covered or refused.

Noise is drawn as a normal number for every answer and every coordinate; these are not. Targets are
written in plain NumPy.
"""

from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.attacks.test_certificates import LEARNERS, held
from tests.plain_layers import PlainLayer
from tests.truth import share


class PlainHead:
    """One head with answers of a share ``errors(X)`` more than they should be."""

    def __init__(self, seed: int, biases: bool, errors: Any) -> None:
        rng = np.random.default_rng([51, seed])
        self.dim = d = int(rng.choice([2, 3, 4, 5, 8, 16]))
        self.W, self.v = rng.standard_normal((d, d)) / np.sqrt(d), rng.standard_normal(d)
        self.w, self.c = biases * rng.standard_normal(d) / 3, biases * rng.standard_normal()
        self.errors, self.size = errors(rng), 10.0 ** rng.uniform(-15, -7)

    def __call__(self, X: Any) -> Any:
        scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ self.W.T + self.w)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        values = X @ self.v
        y = np.sum(weights * values, axis=1) / np.sum(weights, axis=1) + self.c
        return y * (1 + self.size * self.errors(X))


def _of_sums(rng: Any) -> Any:
    phase = rng.uniform(0, 2 * np.pi)
    return lambda X: np.sin(1e7 * X.sum(axis=(1, 2)) + phase)


def _of_single_tokens(rng: Any) -> Any:
    return lambda X: 1.0 if X.shape[1] == 1 else rng.standard_normal(len(X))


ALIKE: dict[str, Any] = {
    # the same for all unit vectors, and the same when asked again
    "a wave of the sum": _of_sums,
    "one for all single tokens": _of_single_tokens,
    "one per call": lambda rng: lambda X: rng.standard_normal(),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("alike", ALIKE)
@pytest.mark.parametrize("name", LEARNERS)
def test_relative_errors_that_single_tokens_share(name, alike, trials, evidence):
    count, refused, loose = trials(8, 600), 0, []
    for seed in range(count):
        target = PlainHead(seed, "biases" in name, ALIKE[alike])
        try:
            recovery = us.learn(target, LEARNERS[name](target.dim, seed))
        except us.UnsoftmaxError:
            refused += 1
            continue
        shares = held(recovery, {name: getattr(target, name) for name in "Wvwc"})
        assert all(share >= 1 for share in shares.values()), (seed, shares)
        if "v" in shares:  # it may be exact
            loose.append(shares["v"])
    evidence(
        f"relative errors, {alike}, {name}",
        runs=count,
        broken=0,
        median_looseness_of_v=f"{np.median(loose):.0f}×",
        refused=refused,
    )


@pytest.mark.parametrize(
    ("name", "seed"), [("ExactHead", 374), ("LowRankHead", 461), ("ExactHead with biases", 57)]
)
def test_errors_that_few_single_tokens_show(name, seed):
    """By chance single tokens miss little; v's bound counts what others miss, and W's does too."""
    target = PlainHead(seed, "biases" in name, ALIKE["a wave of the sum"])
    recovery = us.learn(target, LEARNERS[name](target.dim, seed))
    shares = held(recovery, {name: getattr(target, name) for name in "Wvwc"})
    assert min(shares.values()) >= 1
    # relative errors are not taken for steps
    assert shares["W"] < 1000


def test_answers_in_steps(trials, evidence):
    """Short tokens are all answered by c as it is rounded: they do not show by how much."""
    count, refused, loose, d = trials(4, 80), 0, [], 6
    for seed in range(count):
        rng = np.random.default_rng(seed)
        W, v, w = (rng.standard_normal(shape) for shape in ((d, d), d, d))
        target = us.SingleHead(W / 3, v, w / 3, 0.3)
        step = rng.uniform(2e-4, 2e-3)

        def answer(X: Any, target: Any = target, step: float = step) -> Any:
            return step * np.round(target(X) / step)

        try:
            recovery = us.learn(answer, us.learners.ExactHead(d, biases=True, seed=seed))
        except us.UnsoftmaxError:
            refused += 1
            continue
        shares = held(recovery, {name: getattr(target, name) for name in "Wvwc"})
        assert min(shares.values()) >= 1, (seed, shares)
        loose.append(min(shares.values()))
    evidence(
        "answers in steps of no decimals, ExactHead with biases",
        runs=count,
        broken=0,
        median_looseness=f"{np.median(loose):.0f}×",
        refused=refused,
    )


def _of_one_coordinate(rng: Any) -> Any:
    size, place = 10.0 ** rng.uniform(-12, -6), rng.uniform()

    def disturbed(y: Any) -> Any:
        errors = np.zeros_like(y)
        errors[:, int(place * y.shape[1])] = rng.standard_normal(len(y))
        return y + size * np.linalg.norm(y, axis=1, keepdims=True) * errors

    return disturbed


def _of_one_answer_in_a_hundred(rng: Any) -> Any:
    size, own = 10.0 ** rng.uniform(-12, -6), np.random.default_rng(int(rng.integers(2**32)))

    def disturbed(y: Any) -> Any:
        size_of_each = size * (own.uniform(size=len(y)) < 0.01) * np.linalg.norm(y, axis=1)
        return y + size_of_each[:, None] * own.standard_normal(y.shape)

    return disturbed


UNLIKE = {"one coordinate": _of_one_coordinate, "one answer in 100": _of_one_answer_in_a_hundred}


@pytest.mark.few(2)
@pytest.mark.parametrize("of", UNLIKE)
def test_errors_of_a_few_numbers(of, trials, evidence):
    """Two single tokens tell little of them; all answers that were paid tell more."""
    count, refused, unbounded, shares = trials(1, 500), 0, 0, [0.0]
    for seed in range(1, 1 + count):
        disturbed = UNLIKE[of](np.random.default_rng([72, seed]))
        target = PlainLayer(np.random.default_rng([71, seed]), disturbed=disturbed)
        try:
            recovery = us.learn(target, target.learner(seed))
        except us.UnsoftmaxError:
            refused += 1
            continue
        if np.isinf(recovery.certificate.W_error):
            # nothing is certified, as it says itself: no difference is outside of that, or within
            assert any("no first-order bound" in line for line in recovery.certificate.assumes)
            unbounded += 1
            continue
        shares.append(share(recovery.model, target.model(), recovery.certificate.errors))
        assert shares[-1] <= 1, seed
    assert unbounded <= count / 100
    evidence(
        f"a layer with errors of {of}",
        runs=count,
        broken=0,
        largest_share_of_the_certificate=max(shares),
        without_bounds=unbounded,
        refused=refused,
    )
