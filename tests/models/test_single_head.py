"""One head: products that are never formed, the ends of float64, arguments refused."""

import pickle

import numpy as np
import pytest

import unsoftmax as us

# -- the forward map


def test_factored_answers_never_form_the_matrix():
    head = us.SingleHead.from_factors(np.ones((1, 4)), np.ones((1, 4)), np.ones(4))
    head(np.ones((2, 3, 4)))
    head.scores_of(np.ones((2, 4)))
    assert "_W" not in vars(head)
    np.testing.assert_array_equal(head.W, np.ones((4, 4)))


@pytest.mark.parametrize("size", [1e3, 1e10, 1e100, 1e153])
def test_huge_logits_do_not_overflow(size):
    head = us.SingleHead(np.eye(1), [1.0])
    X = size * np.array([[[1.0], [-1.0], [0.5]], [[-1.0], [1.0], [-0.5]]])
    np.testing.assert_array_equal(head(X), [size, -size])


def test_scores_at_both_ends_of_float64():
    head = us.SingleHead(np.eye(1), [1.0])
    # scores 1.69e308 and -1.69e308: their difference is no float64
    np.testing.assert_array_equal(head(np.array([[[-1.3e154], [1.3e154]]])), [1.3e154])


# -- immutable


def test_a_product_of_factors_is_read_only():
    head = us.SingleHead.from_factors(np.eye(2), np.eye(2), [1.0, 1.0])
    with pytest.raises(ValueError, match="read-only"):
        head.W[0, 0] = 2.0


def test_a_pickle_does_not_carry_the_product():
    head = us.SingleHead.from_factors(np.ones((1, 200)), np.ones((1, 200)), np.ones(200))
    size = len(pickle.dumps(head))
    assert head.W.nbytes > 4 * size
    assert len(pickle.dumps(head)) == size


# -- refused, with the fix


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"W": np.eye(2), "v": 1.0}, r"v must have shape \(d,\)"),
        ({"W": np.zeros((0, 0)), "v": []}, "d ≥ 1"),
        ({"W": np.eye(3), "v": [1.0, 2.0]}, r"W must have shape \(2, 2\).*\(3, 3\)"),
    ],
)
def test_parameters_that_do_not_fit(arguments, says):
    with pytest.raises(ValueError, match=says):
        us.SingleHead(**arguments)


@pytest.mark.parametrize("W", [[[1j]], np.array([[1 + 2j]]), [["one"]], [[None]]])
def test_parameters_that_are_no_real_numbers(W):
    with pytest.raises(TypeError, match="W must hold real numbers"):
        us.SingleHead(W, [1.0])
