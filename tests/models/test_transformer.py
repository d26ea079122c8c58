"""The one-layer Transformer: what does not fit, and equality."""

import numpy as np
import pytest

import unsoftmax as us
from tests.networks import network


def test_what_does_not_fit():
    g = network("random", 4, 6, 0)
    with pytest.raises(TypeError, match="ReluNetwork"):
        us.Transformer(np.eye(4), us.SingleHead(np.eye(4), np.ones(4)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="This Transformer takes sequences"):
        us.Transformer(np.eye(4), g)(np.zeros((2, 4)))
    K, Q = np.ones((2, 2, 4))
    assert repr(us.Transformer.from_factors(K, Q, g)) == "Transformer(d=4, rank ≤ 2, m=6)"


# -- equality


def test_several_heads_beside_a_network_that_is_affine_within_the_tolerance():
    """One head decides as SingleHead does; of more no witness is claimed that is none."""
    rng = np.random.default_rng(0)
    W, v, w = rng.standard_normal((3, 3)), rng.standard_normal(3), rng.standard_normal(3)
    A = np.column_stack([v, -v, np.ones(3)])
    kinked = us.Transformer(W, us.ReluNetwork(A, [1.0, -1.0, 1e-7], [0.0, 0.0, -0.5]), w)
    halves = [v / 2, v / 2]
    one = (
        us.SingleHead(W, v, w),
        us.MultiHead([W], [v], [w]),
        us.MultiHead([W] * 2, halves, [w] * 2),
    )
    for model in one:
        assert us.equivalent(model, kinked, rtol=1e-5)
        assert us.equivalent(kinked, model).verdict == "different"
    for other, verdict in ((W + 1e-12, "undecided"), (-W, "different")):
        several = us.MultiHead([W, other], halves, [w, w])
        nearly_one = us.equivalent(several, kinked, rtol=1e-5)
        assert nearly_one.verdict == verdict
        result = us.equivalent(several, kinked)
        assert result.verdict == "different"
        for found in (nearly_one, result):
            if found.witness is not None:
                assert several(found.witness[None]) != kinked(found.witness[None])
    constant = us.Transformer(W, us.ReluNetwork(A, [0.0, 0.0, 0.0], c=2.0), w)
    assert us.equivalent(us.MultiHead(np.zeros((0, 3, 3)), np.zeros((0, 3)), c=2.0), constant)
