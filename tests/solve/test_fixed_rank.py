"""The bound between matrices of one rank that fit the same readings: never below the error.

W of rank r is measured along Gaussian pairs, each reading off by all that it may be; Ŵ is the
least-squares fit among matrices of that rank, or any matrix near W.
"""

import numpy as np
import pytest

from unsoftmax.learners.single_head.sensing.rank_one import Measurements, fixed_rank_error


def scene(seed, d, rank, m, noise, condition=1.0):
    """A W, readings of it, and the matrix of its rank that fits them best."""
    rng = np.random.default_rng([seed, d, rank])
    U, V = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in "UV")
    W = (U[:, :rank] * np.geomspace(1.0, 1 / condition, rank)) @ V[:rank]
    a, b = rng.standard_normal((2, m, d))
    bound = noise * np.exp(rng.standard_normal(m))
    t = np.einsum("kd,de,ke->k", a, W, b) + bound * rng.choice([-1.0, 1.0], m)
    measured = Measurements(a, b, t, bound)
    return W, measured, fitted(W, measured, rank)


def fitted(W, measured, rank):
    """Gauss–Newton from the truth, in the tangent spaces."""
    found = W
    for _ in range(8):
        left, _, right = np.linalg.svd(found)
        U, V = left[:, :rank], right[:rank].T
        weights = measured.weights[:, None]
        across = np.einsum("ki,kj->kij", measured.a @ U, measured.b).reshape(len(measured), -1)
        down = np.einsum("ki,kj->kij", measured.a, measured.b @ V).reshape(len(measured), -1)
        x = np.linalg.lstsq(
            np.hstack([across, down]) * weights,
            measured.weights * (measured.t - measured.of(found)),
            rcond=1e-12,
        )[0]
        d = len(W)
        B, C = x[: rank * d].reshape(rank, d), x[rank * d :].reshape(d, rank)
        left, values, right = np.linalg.svd(found + U @ B + C @ V.T)
        found = (left[:, :rank] * values[:rank]) @ right[:rank]
    return found


@pytest.mark.parametrize("noise", [1e-12, 1e-8, 1e-4])
@pytest.mark.parametrize(
    ("d", "rank", "condition"), [(4, 1, 1), (8, 1, 1), (8, 3, 1), (8, 3, 30), (5, 5, 1), (5, 5, 30)]
)
def test_the_fit_is_within_the_bound(d, rank, noise, condition, trials):
    looseness = []
    for seed in range(trials(2, 100)):
        m = 3 * rank * (2 * d - rank) + 4 * d
        W, measured, found = scene(seed, d, rank, m, noise, condition)
        bound = fixed_rank_error(measured, found, rank, rank)
        done = float(np.linalg.norm(found - W))
        assert done <= bound
        looseness.append(bound / done)
    if noise * condition**2 < 1e-2:  # beyond, the last singular value is not clear of the noise
        assert np.median(looseness) < 300


def test_singular_values_within_the_error_are_given_up():
    """A second singular value below the noise would leave no bound; without it there is one."""
    W, measured, found = scene(0, 8, 2, 80, 1e-4, condition=1e4)
    bound = fixed_rank_error(measured, found, 2, 2)
    assert np.linalg.norm(found - W) <= bound < 1


def test_readings_that_miss_a_direction_give_no_bound():
    """Fewer readings than free parameters, or all along one offset: something is free."""
    _, few, found = scene(2, 6, 2, 15, 1e-9)
    assert fixed_rank_error(few, found, 2, 2) > 1e6
    W, measured, _ = scene(3, 6, 1, 60, 1e-9)
    a = np.tile(measured.a[0], (60, 1))
    blind = Measurements(a, measured.b, np.einsum("kd,de,ke->k", a, W, measured.b), measured.noise)
    assert fixed_rank_error(blind, W, 1, 1) > 1e6
