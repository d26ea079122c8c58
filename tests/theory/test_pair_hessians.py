"""The Hessian of Appendix C: the formula is the second derivative, and what answers tell."""

from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.by_hand import driven
from tests.heads import several
from unsoftmax.measure.hessians import HessianScale, ask_excess
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import MultiHead

hessian = us.theory.pair_hessian


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
        found = hessian(model, b)
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
        assert np.allclose(A, 4 * hessian(model, b), rtol=0, atol=1e-6 * np.linalg.norm(A))


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
            H = hessian(model, b)
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
        hessian(model, b)
