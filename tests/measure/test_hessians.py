"""A(b) of a sum of heads, from answers that are computed here: no oracle, no learner."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.measure import hessians
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values


def drawn(d, H=2, seed=0, size=1.0):
    """A sum of heads with Σ v_h known."""
    rng = np.random.default_rng([d, H, seed])
    target = us.MultiHead(size * rng.standard_normal((H, d, d)), rng.standard_normal((H, d)))
    values = Values(target.v.sum(axis=0), 0.0, np.zeros(d), 0.0, Precision())
    return target, values


def answered(steps, target):
    """Answer every round; return what came out and how much was asked."""
    asked = 0
    try:
        parts = next(steps)
        while True:
            asked += sum(len(part) for part in parts)
            parts = steps.send([target(part[:]) for part in parts])
    except StopIteration as end:
        return end.value, asked


def hessian(target, b):
    """A(b) = Σ (u vᵀ + v uᵀ)."""
    u = target.W @ b
    A = np.einsum("hi,hj->ij", u, target.v)
    return A + A.T


def pilot(target, values, seed=0):
    rng = np.random.default_rng(seed)
    b = rng.standard_normal(len(values.v)) / np.sqrt(len(values.v))
    return answered(hessians.find_hessian_scale(values, b, rng), target)


# -- the scale


@pytest.mark.parametrize("size", [1e-6, 1e-2, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("d", [1, 3, 8])
def test_the_scale_makes_logits_small(size, d):
    target, values = drawn(d, size=size)
    scale, asked = pilot(target, values)
    assert asked == hessians.PILOT_QUERIES == 34
    b = np.random.default_rng(1).standard_normal((20, d)) / np.sqrt(d)
    z = np.random.default_rng(2).standard_normal((20, 1, d)) / np.sqrt(d)
    logits = scale.alpha * scale.beta * np.sum(z * target.scores_of(b), axis=2)
    assert 1e-5 < np.sqrt(np.mean(logits**2)) < 0.1
    assert 1e-14 < scale.noise < 1e-9
    # one of the two tokens keeps its size, the other is changed
    assert min(scale.alpha, 1 / scale.beta) == 1.0


# -- Hessians


@pytest.mark.parametrize("d", [1, 2, 5])
def test_hessians_are_read_to_their_noise(d):
    target, values = drawn(d, seed=1)
    scale, _ = pilot(target, values)
    tokens = np.linalg.qr(np.random.default_rng(3).standard_normal((d, d)))[0].T[:3]
    excess, asked = answered(hessians.ask_excess(values, tokens, scale), target)
    assert asked == len(tokens) * hessians.hessian_queries(d)
    A = excess.hessians()
    true = np.array([hessian(target, b) for b in tokens])
    allowed = 30 * scale.noise + excess.remainder(hessians.REMAINDER_MARGIN)
    assert np.abs(A - true).max() <= allowed * np.abs(true).max()
    assert excess.remainder(hessians.REMAINDER_MARGIN) < 1e-6
    np.testing.assert_array_equal(A, A.transpose(0, 2, 1))


def test_the_remainder_bounds_further_orders():
    """At logits that are not small the Hessian is off, and by no more than is said."""
    target, values = drawn(4)
    b = np.random.default_rng(0).standard_normal((1, 4))
    shares = []
    for octave in (-9, -7, -5, -3):
        scale = hessians.HessianScale.at(octave, 1e-15)
        excess, _ = answered(hessians.ask_excess(values, b, scale), target)
        true = hessian(target, b[0])
        off = np.abs(excess.hessians()[0] - true).max() / np.abs(true).max()
        shares.append(off / excess.remainder(hessians.REMAINDER_MARGIN))
    assert max(shares) < 1
    assert min(shares) > 1e-4
