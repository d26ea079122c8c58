"""The tangent space of matrices of one rank: written out or not, the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.single_head.sensing import rank_one
from unsoftmax.learners.single_head.sensing.rank_one import Measurements, TangentSpace, fit_rank


@pytest.fixture
def free(monkeypatch):
    """Do not write T out."""

    def switched():
        monkeypatch.setattr(rank_one, "WRITTEN_OUT", 0)
        monkeypatch.setattr(rank_one, "CHUNK", 50)

    return switched


def scene(d, rank, ratio, seed=0):
    """A matrix, weighted Gaussian measurements of it, and the space."""
    rng = np.random.default_rng([d, rank, seed])
    W = rng.standard_normal((d, rank)) @ rng.standard_normal((rank, d))
    m = int(ratio * rank * (2 * d - rank))
    a, b = rng.standard_normal((2, m, d))
    noise = 1e-9 * np.exp(rng.standard_normal(m))
    measured = Measurements(a, b, np.einsum("kd,de,ke->k", a, W, b), noise)
    return W, measured, TangentSpace.at(measured, W, rank, measured.weights)


@pytest.mark.parametrize(("d", "rank"), [(1, 1), (5, 1), (7, 3), (6, 6)])
def test_products_are_those_of_the_matrix(d, rank):
    W, measured, space = scene(d, rank, 2)
    basis = np.eye(space.unknowns)
    T = np.array([measured.weights * measured.of(space.matrix_of(x)) for x in basis]).T
    np.testing.assert_allclose(space.rows(), T, rtol=1e-12, atol=1e-3)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(space.unknowns), rng.standard_normal(len(measured))
    tiny = 1e-12 * float(np.linalg.norm(T))
    np.testing.assert_allclose(space.of(x), T @ x, atol=tiny)
    np.testing.assert_allclose(space.adjoint(y), T.T @ y, atol=tiny)
    M = space.matrix_of(x)
    np.testing.assert_allclose(space.coordinates(M), x, atol=1e-13)
    np.testing.assert_allclose(measured.weights * measured.of(M), space.of(x), rtol=1e-9)
    # W lies in its own tangent space
    np.testing.assert_allclose(space.matrix_of(space.coordinates(W)), W, atol=1e-13)


@pytest.mark.parametrize(("d", "rank"), [(1, 1), (8, 1), (12, 3), (6, 6)])
def test_both_ways_solve_alike(d, rank, free):
    _, measured, space = scene(d, rank, 2)
    y = np.random.default_rng(1).standard_normal(len(measured))
    g = np.random.default_rng(2).standard_normal(space.unknowns)
    assert space.written_out
    (x, gain), shortest = space.least_squares(y), space.least_norm(g)
    assert space.smallest_gain() == pytest.approx(gain)
    free()
    assert not space.written_out
    other, nothing = space.least_squares(y)
    assert nothing is None
    assert np.linalg.norm(other - x) <= 1e-8 * np.linalg.norm(x)
    assert 0.8 * gain <= space.smallest_gain() <= gain * (1 + 1e-9)
    error = np.linalg.norm(space.least_norm(g) - shortest)
    assert error <= 1e-8 * np.linalg.norm(shortest)


@pytest.mark.parametrize("written_out", [True, False])
def test_what_is_not_determined_has_no_gain(written_out, free):
    if not written_out:
        free()
    W, measured, _ = scene(6, 2, 2)
    few = Measurements(measured.a[:9], measured.b[:9], measured.t[:9], measured.noise[:9])
    assert TangentSpace.at(few, W, 2, few.weights).smallest_gain() == 0
    which = np.arange(40) % 9
    same = Measurements(*(x[which] for x in (few.a, few.b, few.t, few.noise)))
    gain = TangentSpace.at(same, W, 2, same.weights).smallest_gain()
    assert gain <= 1e-6 * same.weights.max()
    assert fit_rank(same, W, 2) is None


def test_no_factorisation_no_bound(free, monkeypatch):
    """Every bound that is tried is above the smallest gain, and so nothing is proved."""
    free()
    _, _, space = scene(8, 2, 2)
    monkeypatch.setattr(rank_one, "BELOW", 3.0)
    assert space.smallest_gain() == 0


def test_too_many_unknowns_are_not_fitted(monkeypatch):
    W, measured, _ = scene(6, 1, 3)
    assert fit_rank(measured, W, 1) is not None
    monkeypatch.setattr(rank_one, "MOST_UNKNOWNS", 10)
    assert fit_rank(measured, W, 1) is None
