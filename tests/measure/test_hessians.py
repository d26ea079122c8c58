"""A(b) of a sum of heads, from answers that are computed here: no oracle, no learner."""

from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.heads import several
from tests.truth import driven
from unsoftmax.measure import hessians
from unsoftmax.measure.hessians import HessianScale, ask_excess
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import MultiHead


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


# -- the Hessian of Appendix C: the formula is the second derivative, and what answers tell


pair_hessian = us.theory.pair_hessian


def differences(model, b, step=2.0**-6):
    """∇²F(0) by central differences of three sizes, extrapolated twice: error O(step⁶)."""
    d = model.dim

    def F(Z):
        return model(np.stack([Z + b, np.broadcast_to(b, Z.shape)], axis=1))

    def once(h):
        i, j = np.indices((d, d)).reshape(2, -1)
        x, y = h * np.eye(d)[i], h * np.eye(d)[j]
        changes = F(x + y) - F(x - y) - F(y - x) + F(-x - y)
        return changes.reshape(d, d) / (4 * h * h)

    one, two, four = (once(step * k) for k in (1, 2, 4))
    first, second = (4 * one - two) / 3, (4 * two - four) / 3
    return (16 * first - second) / 15


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("H", "d"), [(1, 1), (1, 5), (3, 4), (7, 3)])
def test_it_is_the_second_derivative(H, d, biases, trials):
    for seed in range(trials(1, 50)):
        rng = np.random.default_rng([H, d, seed])
        model: Any = several(H, d, seed, None, biases)
        if H == 1 and seed % 2:
            model = model.heads[0]
        b = rng.standard_normal(d) / np.sqrt(d)
        found = pair_hessian(model, b)
        assert np.array_equal(found, found.T)
        u = model.scores_of(b[None])[0].reshape(-1, d)
        v = model.v.reshape(-1, d)
        assert np.allclose(
            found,
            sum(np.outer(x, y) + np.outer(y, x) for x, y in zip(u, v, strict=True)) / 4,
            rtol=0,
            atol=1e-14 * np.linalg.norm(u) * np.linalg.norm(v),
        )
        numeric = differences(model, b)
        size = np.linalg.norm(u, axis=1) @ np.linalg.norm(v, axis=1)
        assert np.linalg.norm(numeric - found) <= 1e-7 * size * (1 + np.max(np.abs(u))) ** 6


def test_answers_tell_four_times_it():
    """What `OrthogonalHeads` reads off answers is this Hessian."""
    rng = np.random.default_rng(0)
    model = several(3, 5, 0, None, False)
    tokens = rng.standard_normal((4, 5))
    values = Values(model.v.sum(axis=0), 0.0, np.zeros(5), 0.0, Precision())
    excess, _ = driven(ask_excess(values, tokens, HessianScale(1.0, 2.0**-9, 1e-12)), model)
    for A, b in zip(excess.hessians(), tokens, strict=True):
        assert np.allclose(A, 4 * pair_hessian(model, b), rtol=0, atol=1e-6 * np.linalg.norm(A))


@pytest.mark.parametrize("tokens", ["unit vectors", "random"])
def test_under_assumption_C_1_it_leaves_every_subspace_invariant(tokens, trials):
    sizes = (2, 3, 4)
    for seed in range(trials(2, 100)):
        rng = np.random.default_rng(seed)
        Q = np.linalg.qr(rng.standard_normal((9, 9)))[0]
        parts = np.split(Q, np.cumsum(sizes)[:-1], axis=1)
        W = [E @ rng.standard_normal((E.shape[1],) * 2) @ E.T for E in parts]
        model = MultiHead(W, [E @ rng.standard_normal(E.shape[1]) for E in parts])
        for b in np.eye(9) if tokens == "unit vectors" else rng.standard_normal((4, 9)):
            H = pair_hessian(model, b)
            for E in parts:
                P = E @ E.T
                assert np.linalg.norm(H @ P - P @ H) <= 1e-13 * np.linalg.norm(H)


@pytest.mark.parametrize(
    ("model", "b", "error"),
    [
        (us.ReluNetwork([[1.0]], [1.0]), [1.0], TypeError),
        (us.SingleHead(np.eye(2), np.ones(2)), [1.0], ValueError),
        (us.SingleHead(np.eye(2), np.ones(2)), [1.0, np.nan], ValueError),
    ],
)
def test_wrong_arguments(model, b, error):
    with pytest.raises(error):
        pair_hessian(model, b)
