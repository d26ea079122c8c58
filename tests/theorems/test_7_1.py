"""Proposition 7.1: of heads with equal scores only the sum of their values is determined."""

import numpy as np
import pytest

import unsoftmax as us


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
