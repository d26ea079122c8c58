"""The tangent space of matrices of one rank: written out or not, the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unsoftmax.solve.rank_fit import RankFitTuning, fit_rank
from unsoftmax.solve.rank_one_measurements import Measurements
from unsoftmax.solve.tangent_space import TangentSpace, TangentTuning

FREE = TangentTuning(dense=0, chunk=50)


def scene(d, rank, ratio, seed=0):
    """A matrix, weighted Gaussian measurements of it, and the space with T written out and not."""
    rng = np.random.default_rng([d, rank, seed])
    W = rng.standard_normal((d, rank)) @ rng.standard_normal((rank, d))
    m = int(ratio * rank * (2 * d - rank))
    a, b = rng.standard_normal((2, m, d))
    noise = 1e-9 * np.exp(rng.standard_normal(m))
    measured = Measurements(a, b, np.einsum("kd,de,ke->k", a, W, b), noise)
    spaces = [
        TangentSpace.at(measured, W, rank, tuning, measured.weights)
        for tuning in (TangentTuning(), FREE)
    ]
    return W, measured, spaces


@pytest.mark.parametrize(("d", "rank"), [(1, 1), (5, 1), (7, 3), (6, 6)])
def test_products_are_those_of_the_matrix(d, rank):
    W, measured, [space, _] = scene(d, rank, 2)
    T = measured.tangent(space.U, space.V, rank) * measured.weights[:, None]
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
def test_both_ways_solve_alike(d, rank):
    _, measured, [dense, free] = scene(d, rank, 2)
    assert dense.written_out
    assert not free.written_out
    y = np.random.default_rng(1).standard_normal(len(measured))
    (x, gain), (other, nothing) = dense.least_squares(y), free.least_squares(y)
    assert nothing is None
    assert np.linalg.norm(other - x) <= 1e-8 * np.linalg.norm(x)
    assert 0.8 * gain <= free.smallest_gain() <= gain * (1 + 1e-9)
    assert dense.smallest_gain() == pytest.approx(gain)
    g = np.random.default_rng(2).standard_normal(dense.unknowns)
    shortest = dense.least_norm(g)
    error = np.linalg.norm(free.least_norm(g) - shortest)
    assert error <= 1e-8 * np.linalg.norm(shortest)


@pytest.mark.parametrize("tuning", [TangentTuning(), FREE])
def test_what_is_not_determined_has_no_gain(tuning):
    W, measured, _ = scene(6, 2, 2)
    few = Measurements(measured.a[:9], measured.b[:9], measured.t[:9], measured.noise[:9])
    assert TangentSpace.at(few, W, 2, tuning, few.weights).smallest_gain() == 0
    which = np.arange(40) % 9
    same = Measurements(*(x[which] for x in (few.a, few.b, few.t, few.noise)))
    gain = TangentSpace.at(same, W, 2, tuning, same.weights).smallest_gain()
    assert gain <= 1e-6 * same.weights.max()
    assert fit_rank(same, W, 2, RankFitTuning(tangent=tuning)) is None


def test_no_factorisation_no_bound():
    """Every bound that is tried is above the smallest gain, and so nothing is proved."""
    _, _, [_, free] = scene(8, 2, 2)
    hopeful = replace(FREE, below=3.0)
    assert replace(free, tuning=hopeful).smallest_gain() == 0


def test_too_many_unknowns_are_not_fitted():
    W, measured, _ = scene(6, 1, 3)
    assert fit_rank(measured, W, 1, RankFitTuning()) is not None
    most = RankFitTuning(tangent=TangentTuning(most_unknowns=10))
    assert fit_rank(measured, W, 1, most) is None
