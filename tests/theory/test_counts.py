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


def test_the_papers_counts_at_known_places():
    """Its sample sizes as computed independently, by d, μ, W, ε_W, δ."""
    for (d, error, margin, failure), k in {
        (64, 1e-6, 1 / 8, 0.01): 1.3e28,
        (64, 1e-6, 0.01, 0.01): 4.9e34,
        (2, 0.9, 0.5, 0.05): 4.4e7,
        (3, 0.9, 0.5, 0.05): 1.7e8,
    }.items():
        samples, steps = counts.label_head_paper(d, error, margin, 2.0, failure)
        assert samples == pytest.approx(k, rel=0.05)
        assert 5 <= steps <= 60


def test_the_mean_projection_is_one():
    rng = np.random.default_rng(3)
    for d in (1, 2, 3, 10):
        x = rng.standard_normal((200_000, d))
        mean = np.mean(np.abs(x[:, 0]) / np.linalg.norm(x, axis=1))
        assert mean == pytest.approx(counts.mean_projection(d), abs=4e-3)


@pytest.mark.parametrize(("d", "bits"), [(1, 40), (2, 40), (64, 50), (512, 40)])
def test_labels_cost_little_more_than_a_bit_each(d, bits):
    asked = counts.label_head(d, bits) + counts.label_head_again(d)
    assert bits * (d * d + d - 1) < asked <= 1.1 * bits * (d * d + d) + 500
