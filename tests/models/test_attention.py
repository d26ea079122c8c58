"""Attention on arrays: softmax at the ends of float64, derivatives, and bounds that are kept."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models.attention import (
    exponentials,
    largest_mean_shift,
    mean_shift,
    pooled_tokens,
    score_gradient,
    score_rounding,
    score_shift,
    softmax,
    token_scores,
)

INF = np.inf


def exact(scores):
    """Softmax of a few numbers by exact sums of exponentials."""
    terms = [math.exp(s - max(scores)) if s > -INF else 0.0 for s in scores]
    return [term / math.fsum(terms) for term in terms]


def mean(scores, values):
    return np.sum(softmax(scores) * values, axis=-1)


# -- softmax


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1e-300, 1e-8, 1.0, 30.0, 1e5])
def test_softmax_is_its_definition(seed, scale):
    scores = scale * np.random.default_rng(seed).standard_normal((4, 6))
    expected = [exact(row) for row in scores.tolist()]
    np.testing.assert_allclose(softmax(scores), expected, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_any_axis(axis):
    scores = np.random.default_rng(0).standard_normal((2, 3, 4))
    expected = np.apply_along_axis(exact, axis, scores)
    np.testing.assert_allclose(softmax(scores, axis=axis), expected, rtol=1e-14)
    numerators, denominators = exponentials(scores, axis)
    assert denominators.shape == tuple(np.delete(scores.shape, axis))
    np.testing.assert_array_equal(numerators.max(axis=axis), 1.0)
    np.testing.assert_array_equal(denominators, numerators.sum(axis=axis))


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


def test_not_a_number_stays_one():
    assert np.isnan(softmax(np.array([np.nan, 1.0]))).all()


def test_a_masked_row_pools_to_zero():
    numerators, denominators = exponentials(np.array([[-INF, -INF], [-INF, 2.0]]))
    np.testing.assert_array_equal(denominators, [1.0, 1.0])
    np.testing.assert_array_equal(numerators, [[0.0, 0.0], [0.0, 1.0]])


def test_arguments_are_left_alone():
    scores = np.array([[1.0, 2.0]])
    softmax(scores)
    np.testing.assert_array_equal(scores, [[1.0, 2.0]])


# -- scores and pooled tokens


def test_several_heads_are_each_head():
    rng = np.random.default_rng(1)
    X, vectors = rng.standard_normal((3, 5, 4)), rng.standard_normal((3, 2, 4))
    scores = token_scores(X, vectors)
    weights = softmax(scores)
    pooled = pooled_tokens(X, weights)
    assert (scores.shape, pooled.shape) == ((3, 2, 5), (3, 2, 4))
    for h in range(2):
        np.testing.assert_allclose(scores[:, h], token_scores(X, vectors[:, h]), atol=1e-14)
        np.testing.assert_allclose(pooled[:, h], pooled_tokens(X, weights[:, h]), atol=1e-14)
        np.testing.assert_allclose(
            score_rounding(X, vectors, 1e-16)[:, h], score_rounding(X, vectors[:, h], 1e-16)
        )


def test_a_model_pools_as_the_parts_do():
    rng = np.random.default_rng(2)
    head = us.SingleHead(
        rng.standard_normal((4, 4)), rng.standard_normal(4), rng.standard_normal(4)
    )
    X = rng.standard_normal((6, 5, 4))
    np.testing.assert_array_equal(
        head.attention(X), softmax(token_scores(X, head.scores_of(X[:, -1])))
    )
    np.testing.assert_allclose(pooled_tokens(X, head.attention(X)) @ head.v, head(X), atol=1e-13)


# -- derivatives, against finite differences


def test_the_score_gradient_is_the_derivative():
    rng = np.random.default_rng(3)
    scores, values, h = rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 3, 5)), 1e-6
    numeric = np.stack(
        [
            (mean(scores + h * e, values) - mean(scores - h * e, values)) / (2 * h)
            for e in np.eye(5)
        ],
        axis=-1,
    )
    np.testing.assert_allclose(score_gradient(softmax(scores), values), numeric, atol=1e-9)


def test_the_score_gradient_sums_to_zero():
    """Softmax ignores what all scores share."""
    rng = np.random.default_rng(4)
    gradient = score_gradient(softmax(rng.standard_normal((50, 7))), rng.standard_normal((50, 7)))
    np.testing.assert_allclose(gradient.sum(axis=-1), 0.0, atol=1e-15)


@pytest.mark.parametrize("size", [1e-6, 1e-3])
def test_the_first_order_shift_is_reached(size):
    """With every score moved against its value's side, the mean moves by the bound."""
    rng = np.random.default_rng(5)
    scores, values = rng.standard_normal((20, 6)), rng.standard_normal((20, 6))
    m = size * rng.uniform(0, 1, (20, 6))
    deviations = values - mean(scores, values)[:, None]
    moved = mean(scores + m * np.sign(deviations), values) - mean(scores, values)
    bound = mean_shift(softmax(scores), np.abs(deviations), m)
    np.testing.assert_allclose(moved, bound, rtol=10 * size)


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


def test_equal_values_do_not_move():
    np.testing.assert_array_equal(
        largest_mean_shift(np.full((1, 3), 1 / 3), np.zeros((1, 3)), np.array([INF])), 0.0
    )


@pytest.mark.parametrize("seed", range(5))
def test_errors_of_W_and_w_move_scores_within_the_bound(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((9, 5, 3)) * 10.0 ** rng.uniform(-3, 3, (9, 5, 1))
    dW, dw = rng.standard_normal((3, 3)), rng.standard_normal(3)
    moved = token_scores(X - X[:, -1:], X[:, -1] @ dW.T + dw)
    bound = score_shift(X, np.linalg.norm(dW, 2), np.linalg.norm(dw))
    assert np.all(np.abs(moved) <= bound * (1 + 1e-12))
    np.testing.assert_array_equal(bound[:, -1], 0.0)


def test_the_score_shift_is_reached_by_the_worst_error():
    X = np.array([[[3.0, 4.0], [0.0, 2.0]]])
    away, query = X[:, 0] - X[:, 1], X[:, 1]
    dW = 0.1 * np.outer(away[0], query[0]) / np.linalg.norm(away) / np.linalg.norm(query)
    moved = away[0] @ dW @ query[0]
    np.testing.assert_allclose(score_shift(X, 0.1)[0, 0], moved, rtol=1e-15)


def test_the_score_shift_of_several_heads_and_sequences():
    X = np.random.default_rng(7).standard_normal((3, 4, 2))
    per_head = score_shift(X, np.array([[1.0, 2.0]]), 0.5)
    assert per_head.shape == (3, 2, 4)
    np.testing.assert_array_equal(per_head[:, 1], score_shift(X, 2.0, 0.5))
    per_sequence = score_shift(X, np.array([1.0, 0.0, 2.0]))
    np.testing.assert_array_equal(per_sequence[2], score_shift(X, 2.0)[2])
    np.testing.assert_array_equal(per_sequence[1], 0.0)


def test_rounding_of_scores_is_within_its_bound():
    rng = np.random.default_rng(8)
    X, vectors = rng.standard_normal((200, 3, 8)), rng.standard_normal((200, 8))
    scores = token_scores(X, vectors)
    true = np.einsum("bnd,bd->bn", X.astype(np.longdouble), vectors.astype(np.longdouble))
    assert np.all(np.abs(scores - true) <= score_rounding(X, vectors, 4 * 2.0**-53))
