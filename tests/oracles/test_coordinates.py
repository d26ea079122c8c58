"""One number out of a vector answer."""

import pickle
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.truth import Counted
from tests.vector_learners import LinearMap, LinearModel

ExactHead = us.learners.ExactHead
rng = np.random.default_rng(0)
W, V, C = rng.standard_normal((3, 3)) / 2, rng.standard_normal((5, 3)), rng.standard_normal(5)
TARGET = us.AttentionLayer([us.LayerHead(V, W)], C)
X = rng.standard_normal((40, 4, 3))
Y = TARGET(X)


def as_head(weights: Any) -> us.SingleHead:
    """What a weighted sum of the target's numbers is."""
    return us.SingleHead(W, V.T @ weights, c=C @ weights)


@pytest.mark.parametrize("k", [0, 2, 4, -1, -5, np.int64(3)])
def test_an_index_counts_as_in_numpy(k):
    assert np.array_equal(us.oracles.coordinate(TARGET, k)(X), Y[:, k])


@pytest.mark.parametrize("weights", [[1, 0, 0, 0, 0], np.arange(5), np.linspace(-1, 1, 5)])
def test_weights_make_a_sum(weights):
    assert np.allclose(us.oracles.coordinate(TARGET, weights)(X), Y @ weights, rtol=1e-14)


def test_the_same_sum_in_every_batch():
    weighted = us.oracles.coordinate(lambda X: Y[: len(X)], rng.standard_normal(5))
    assert np.array_equal(weighted(X)[:7], weighted(X[:7]))


def test_what_is_learned_of_one_number_is_its_head():
    for k, weights in ((3, np.eye(5)[3]), (np.linspace(-1, 1, 5), np.linspace(-1, 1, 5))):
        recovery = us.learn(us.oracles.coordinate(TARGET, k), ExactHead(3, biases=True))
        assert us.equivalent(recovery.model, as_head(weights))


def test_an_oracle_of_numbers_has_one_coordinate():
    head = as_head(np.eye(5)[0])
    for k in (0, -1, [1.0]):
        assert np.array_equal(us.oracles.coordinate(head, k)(X), head(X))
    with pytest.raises(us.OracleError, match=r"gives 1 number per sequence: .* no coordinate 1"):
        us.oracles.coordinate(head, 1)(X)


@pytest.mark.parametrize("k", [5, 17, -6])
def test_a_wrong_index_is_told_at_the_first_call(k, tmp_path):
    oracle = Counted(TARGET)
    words = rf"gives 5 numbers per sequence: there is no coordinate {k}. Choose k from -5 to 4"
    with pytest.raises(us.OracleError, match=words) as caught:
        us.learn(us.oracles.coordinate(oracle, k), ExactHead(3))
    assert not isinstance(caught.value, us.ModelMismatch)
    assert oracle.calls == 1


def test_a_wrong_number_of_weights_is_told_at_the_first_call():
    oracle = Counted(TARGET)
    with pytest.raises(us.OracleError, match="5 numbers per sequence, and there are 4 weights"):
        us.learn(us.oracles.coordinate(oracle, np.ones(4)), ExactHead(3))
    assert oracle.calls == 1


@pytest.mark.parametrize("answers", [Y.T, Y[None], Y[:-1], Y[0, 0], Y[:, :0], Y.ravel()])
def test_other_shapes_are_no_vectors(answers):
    for k in (0, np.ones(5)):
        with pytest.raises(us.OracleError, match=r"instead of \(40, m\)"):
            us.oracles.coordinate(lambda X: answers, k)(X)


@pytest.mark.parametrize("bad", [True, 1.0, "0", None, [[1.0, 2.0]], ["a"], [1j], [[1], [1, 2]]])
def test_what_is_neither_index_nor_weights_is_a_type_error(bad):
    with pytest.raises(TypeError, match="must be an index"):
        us.oracles.coordinate(TARGET, bad)


@pytest.mark.parametrize("bad", [np.zeros(0), [1.0, np.nan], [np.inf]])
def test_weights_are_finite(bad):
    with pytest.raises(ValueError, match="finite numbers, at least one"):
        us.oracles.coordinate(TARGET, bad)


def test_coordinates_of_coordinates():
    """Of a sum or an index: it knows the dimension if its oracle does, and can be pickled."""
    for k in (2, np.linspace(0, 1, 5)):
        one = us.oracles.coordinate(TARGET, k)
        assert one.dim == 3
        assert not hasattr(us.oracles.coordinate(lambda X: TARGET(X), k), "dim")
        assert np.array_equal(pickle.loads(pickle.dumps(one))(X), one(X))
    twice = us.oracles.coordinate(us.oracles.coordinate(TARGET, 2), 0)
    assert np.array_equal(twice(X), Y[:, 2])
    with pytest.raises(TypeError, match="must be callable"):
        us.oracles.coordinate(Y, 0)  # type: ignore[arg-type]


def test_a_learner_of_vectors_takes_one_number():
    model = LinearModel(c=C, M=V)
    recovery = us.learn(us.oracles.coordinate(model, 2), LinearMap(3))
    assert np.allclose(recovery.model.M, V[2:3], rtol=0, atol=1e-13)


@pytest.mark.parametrize("k", [1, [0.0, 1.0]])
def test_what_is_no_array_is_an_oracle_error(k):
    with pytest.raises(us.OracleError, match="no array") as caught:
        us.learn(us.oracles.coordinate(lambda X: [[1.0, 2.0], [1.0]] * len(X), k), ExactHead(3))
    assert not isinstance(caught.value, us.DimensionRefused)


def test_a_masked_number_is_missing():
    def masked(X):
        return np.ma.MaskedArray(TARGET(X), mask=np.arange(5) + np.zeros((len(X), 1)) == 2)

    assert np.array_equal(us.oracles.coordinate(masked, 1)(X), Y[:, 1])
    assert np.all(np.isnan(us.oracles.coordinate(masked, 2)(X)))
    assert np.all(np.isnan(us.oracles.coordinate(masked, np.ones(5))(X)))


@pytest.mark.parametrize("dim", [None, "three", lambda: 3])
def test_an_attribute_dim_that_is_no_number_says_nothing(dim):
    class Odd:
        def __init__(self):
            self.dim = dim

        def __call__(self, X):
            return TARGET(X)

    recovery = us.learn(us.oracles.coordinate(Odd(), 0), ExactHead(3, biases=True))
    assert us.equivalent(recovery.model, as_head(np.eye(5)[0]))
