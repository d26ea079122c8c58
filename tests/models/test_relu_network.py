"""One network: the forward map against a loop, arrays that never change, arguments refused."""

import numpy as np
import pytest

import unsoftmax as us


def test_biases_and_the_constant_are_zero_by_default():
    g = us.ReluNetwork([[1.0, -2.0]], [1, 3])
    np.testing.assert_array_equal(g.b, [0.0, 0.0])
    assert g.c == 0.0
    np.testing.assert_array_equal(g([[2], [-1]]), [2.0, 6.0])


def test_no_neurons_is_a_constant():
    g = us.ReluNetwork(np.zeros((3, 0)), [], c=2.0)
    np.testing.assert_array_equal(g(np.ones((4, 3))), 2.0)
    assert (g.dim, repr(g)) == (3, "ReluNetwork(d=3, m=0)")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"A": np.ones(3), "w_o": np.ones(3)}, "A must have shape"),
        ({"A": np.ones((0, 3)), "w_o": np.ones(3)}, "d ≥ 1"),
    ],
)
def test_wrong_parameters(arguments, said):
    with pytest.raises(ValueError, match=said):
        us.ReluNetwork(**arguments)
