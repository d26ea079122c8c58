"""Attention on arrays: softmax at the ends of float64, derivatives, and bounds that are kept."""

import itertools

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models.attention import largest_mean_shift, softmax

INF = np.inf


def mean(scores, values):
    return np.sum(softmax(scores) * values, axis=-1)


# -- softmax


@pytest.mark.parametrize(
    ("scores", "weights"),
    [
        ([0.0], [1.0]),
        ([1e308, -1e308, 0.0], [1.0, 0.0, 0.0]),
        ([-1e308, -1e308], [0.5, 0.5]),
        ([-INF, 5.0, -INF], [0.0, 1.0, 0.0]),
        ([-INF, 700.0, 700.0], [0.0, 0.5, 0.5]),
        ([-INF], [0.0]),
        ([-INF, -INF, -INF], [0.0, 0.0, 0.0]),
        ([], []),
    ],
)
def test_ends_of_float64_and_masks(scores, weights):
    """Warnings are errors: none may be raised either."""
    np.testing.assert_array_equal(softmax(np.array(scores)), weights)


# -- bounds


@pytest.mark.parametrize("m", [1e-12, 1e-3, 0.3, 2.0, 40.0, 1e3, 1e300, INF])
def test_no_move_of_scores_exceeds_the_bound(m):
    rng = np.random.default_rng(6)
    for scale in (0.1, 3.0, 100.0):
        scores, values = scale * rng.standard_normal((30, 4)), rng.standard_normal((30, 4))
        before = mean(scores, values)
        deviations = np.abs(values - before[:, None])
        bound = largest_mean_shift(softmax(scores), deviations, np.full(30, m))
        for signs in itertools.product((-1.0, 1.0), repeat=4):
            after = mean(scores + min(m, 1e6) * np.array(signs), values)
            assert np.all(np.abs(after - before) <= bound * (1 + 1e-12) + 1e-14)


def test_the_bound_is_tight_for_small_moves_and_for_large():
    scores, values = np.zeros((1, 2)), np.array([[-1.0, 1.0]])
    deviations = np.abs(values)
    small = np.tanh(1e-6)
    np.testing.assert_allclose(
        largest_mean_shift(softmax(scores), deviations, np.array([1e-6])), small, rtol=1e-5
    )
    for m in (800.0, INF):
        np.testing.assert_array_equal(
            largest_mean_shift(softmax(scores), deviations, np.array([m])), 1.0
        )


def test_a_weight_that_rounded_to_zero_may_come_back():
    weights, deviations = np.array([[0.0, 1.0]]), np.array([[5.0, 0.0]])
    np.testing.assert_array_equal(largest_mean_shift(weights, deviations, np.array([1e3])), 5.0)
    np.testing.assert_array_equal(largest_mean_shift(weights, deviations, np.array([1.0])), 0.0)


def test_rounding_of_scores_is_within_its_bound():
    rng = np.random.default_rng(8)
    X, head = rng.standard_normal((200, 3, 8)), us.SingleHead(np.eye(8), np.ones(8))
    true = np.einsum("bnd,bd->bn", *(x.astype(np.longdouble) for x in (X, X[:, -1])))
    off = np.abs(head.scored(X) - true)
    assert np.all(off <= 4 * 2.0**-53 * head.score_sizes(X)[:, 0])
