"""A(b) of a sum of heads, from answers that are computed here: no oracle, no learner."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.measure.hessians import (
    LOGIT,
    OCTAVES,
    PILOT_QUERIES,
    REMAINDER_MARGIN,
    HessianScale,
    ask_excess,
    find_hessian_scale,
    hessian_queries,
    saturated_unseen,
    scale_of,
    unseen_scores,
)
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
    return answered(find_hessian_scale(values, b, rng), target)


# -- the scale


@pytest.mark.parametrize("size", [1e-6, 1e-2, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("d", [1, 3, 8])
def test_the_scale_makes_logits_small(size, d):
    target, values = drawn(d, size=size)
    scale, asked = pilot(target, values)
    assert asked == PILOT_QUERIES == 34
    b = np.random.default_rng(1).standard_normal((20, d)) / np.sqrt(d)
    z = np.random.default_rng(2).standard_normal((20, 1, d)) / np.sqrt(d)
    logits = scale.alpha * scale.beta * np.sum(z * target.scores_of(b), axis=2)
    assert 1e-5 < np.sqrt(np.mean(logits**2)) < 0.1
    assert 1e-14 < scale.noise < 1e-9
    # one of the two tokens keeps its size, the other is changed
    assert min(scale.alpha, 1 / scale.beta) == 1.0


def test_no_logits_no_scale():
    target, values = drawn(4)
    nothing = us.MultiHead(0 * target.W, target.v)
    assert pilot(nothing, values)[0] is None
    tiny = us.MultiHead(1e-25 * target.W, target.v)
    assert pilot(tiny, values)[0] is None
    bound = unseen_scores(values)
    assert np.linalg.norm(tiny.W, axis=(1, 2)).max() < bound < 1e-20


def test_coarse_answers_get_larger_logits():
    target, values = drawn(4)
    coarse = replace(values, precision=Precision(absolute=1e-6))
    exact, _ = pilot(target, values)
    rounded, _ = pilot(lambda X: np.round(target(X), 6), coarse)
    assert rounded.alpha * rounded.beta > 4 * exact.alpha * exact.beta
    assert rounded.noise > 1e3 * exact.noise
    assert rounded.limit == np.sqrt(rounded.noise)


def test_precision_that_hides_saturated_logits():
    _, values = drawn(4)
    assert not saturated_unseen(values)
    hidden = replace(values, precision=Precision(absolute=0.1 * values.norm))
    assert saturated_unseen(hidden)


def test_the_scale_from_known_answers():
    """½ z·v tanh(t/2) along two directions, at every octave."""
    _, values = drawn(4)
    along = np.array([0.3, -0.4]) * values.norm
    for logit in (1e-4, 1.0, 1e4):  # at scale 1
        t = logit * np.exp2(OCTAVES)
        excess = along * np.tanh(t / 2)[:, None] / 2
        scale = scale_of(excess, values)
        assert scale is not None
        assert 0.1 < logit * scale.alpha * scale.beta / LOGIT < 10
    assert scale_of(0 * excess, values) is None


def test_a_lower_scale_leaves_smaller_orders():
    scale = HessianScale.at(3.0, 1e-12)
    assert (scale.alpha, scale.beta) == (8.0, 1.0)
    lower = scale.lower(1e-2)
    # orders go as t⁴: from 1e-2 to 1e-6 is a factor of 10, 3.3 octaves, rounded down to 4
    assert lower.alpha * lower.beta == 8.0 / 16
    assert lower.noise == pytest.approx(10 * scale.noise)
    far = HessianScale.at(1e9, 1e-12)
    assert (far.alpha, far.beta) == (2.0**100, 1.0)


# -- Hessians


@pytest.mark.parametrize("d", [1, 2, 5])
def test_hessians_are_read_to_their_noise(d):
    target, values = drawn(d, seed=1)
    scale, _ = pilot(target, values)
    tokens = np.linalg.qr(np.random.default_rng(3).standard_normal((d, d)))[0].T[:3]
    excess, asked = answered(ask_excess(values, tokens, scale), target)
    assert asked == len(tokens) * hessian_queries(d)
    A = excess.hessians()
    true = np.array([hessian(target, b) for b in tokens])
    allowed = 30 * scale.noise + excess.remainder(REMAINDER_MARGIN)
    assert np.abs(A - true).max() <= allowed * np.abs(true).max()
    assert excess.remainder(REMAINDER_MARGIN) < 1e-6
    np.testing.assert_array_equal(A, A.transpose(0, 2, 1))


def test_the_remainder_bounds_further_orders():
    """At logits that are not small the Hessian is off, and by no more than is said."""
    target, values = drawn(4)
    b = np.random.default_rng(0).standard_normal((1, 4))
    shares = []
    for octave in (-9, -7, -5, -3):
        scale = HessianScale.at(octave, 1e-15)
        excess, _ = answered(ask_excess(values, b, scale), target)
        true = hessian(target, b[0])
        off = np.abs(excess.hessians()[0] - true).max() / np.abs(true).max()
        shares.append(off / excess.remainder(REMAINDER_MARGIN))
    assert max(shares) < 1
    assert min(shares) > 1e-4


def test_orders_of_known_heads_are_subtracted():
    """Heads in orthogonal subspaces: v_h alone gives u_h, and that all orders."""
    rng = np.random.default_rng(0)
    E = np.split(np.linalg.qr(rng.standard_normal((6, 6)))[0], 2, axis=1)
    W = [e @ rng.standard_normal((3, 3)) @ e.T for e in E]
    target = us.MultiHead(W, [e @ rng.standard_normal(3) for e in E])
    values = Values(target.v.sum(axis=0), 0.0, np.zeros(6), 0.0, Precision())
    b = rng.standard_normal((2, 6)) / np.sqrt(6)
    scale = HessianScale.at(-2.0, 1e-15)
    excess, _ = answered(ask_excess(values, b, scale), target)
    true = np.array([hessian(target, one) for one in b])
    A = excess.hessians()
    errors = [np.abs(A - true).max()]
    for _ in range(8):
        A = excess.without_orders_of(target.v, A)
        errors.append(np.abs(A - true).max())
    assert errors[0] > 1e-5
    assert all(after < before / 10 for before, after in pairwise(errors[:3]))
    assert errors[-1] < 1e-12
