"""The counts that theorems promise are the numbers of parameters there are."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.theory import counts


@pytest.mark.parametrize("dim", [1, 2, 3, 16, 384])
def test_a_single_head_costs_its_parameters(dim):
    head = us.SingleHead(np.eye(dim), np.ones(dim), np.ones(dim), 1.0)
    sizes = {name: array.size for name, array in head.arrays().items()}
    assert counts.single_head(dim) == sizes["W"] + sizes["v"] == dim**2 + dim
    assert counts.single_head(dim, biases=True) == sum(sizes.values()) == (dim + 1) ** 2


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 7, 64])
def test_the_plan_says_the_same(dim, biases):
    plan = us.learners.ExactHead(dim, biases=biases).plan()
    assert plan.queries == counts.single_head(dim, biases=biases)
    assert plan.queries <= plan.at_most
    singles = dim + biases
    assert plan.tokens == singles + 2 * (plan.queries - singles)
