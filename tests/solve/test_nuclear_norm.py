"""The nuclear-norm solver against CVXPY, and against what it must find."""

import itertools
from typing import Any

import cvxpy
import numpy as np
import pytest

from unsoftmax.learners.single_head.sensing import nuclear_norm, rank_one
from unsoftmax.learners.single_head.sensing.nuclear_norm import minimise
from unsoftmax.learners.single_head.sensing.rank_one import (
    Measurements,
    TangentSpace,
    fixed_rank_error,
)

# CVXPY's stubs leave out most of its atoms
cp: Any = cvxpy


@pytest.fixture(params=["written out", "matrix-free"])
def way(request, monkeypatch):
    """Matrix-free: nothing n×n and no matrix of measurements is written out, however small."""
    if request.param == "matrix-free":
        monkeypatch.setattr(nuclear_norm, "INVERTED", 0)
        monkeypatch.setattr(rank_one, "WRITTEN_OUT", 0)
        monkeypatch.setattr(rank_one, "CHUNK", 100)
    return request.param


def problem(d, rank, ratio, seed):
    """Gaussian measurements of a random W of that rank, ``ratio`` times as many as parameters."""
    rng = np.random.default_rng([d, rank, seed])
    W = rng.standard_normal((d, rank)) @ rng.standard_normal((rank, d))
    m = int(ratio * rank * (2 * d - rank))
    a, b = rng.standard_normal((2, m, d))
    return W, Measurements(a, b, np.einsum("kd,de,ke->k", a, W, b), np.zeros(m))


def nuclear(W):
    return np.linalg.norm(W, "nuc")


def reference(measured, mu=None):
    """Solve the same programme with an interior-point method."""
    X = cp.Variable((measured.dim, measured.dim))
    missed = measured.matrix() @ cp.vec(X, order="C") - measured.t
    if mu is None:
        programme = cp.Problem(cp.Minimize(cp.normNuc(X)), [missed == 0])
    else:
        cost = cp.normNuc(X) + cp.sum_squares(cp.multiply(1 / np.sqrt(2 * mu), missed))
        programme = cp.Problem(cp.Minimize(cost))
    programme.solve(solver=cp.CLARABEL)
    return X.value, programme.value


GRID = list(itertools.product([(4, 1), (6, 2), (8, 1), (10, 2)], (1.0, 1.6, 2.3), (0, 1)))


def test_the_optimum_is_cvxpys(way, trials, evidence):
    """Also where it is not the W that was measured: polishing must not hide a wrong optimum."""
    recovered, values, matrices = 0, [], []
    problems = GRID[:: trials(5, 1)]
    for (d, rank), ratio, seed in problems:
        W, measured = problem(d, rank, ratio, seed)
        found = minimise(measured)
        X, value = reference(measured)
        values.append(abs(nuclear(found.W) / value - 1))
        matrices.append(np.linalg.norm(found.W - X) / np.linalg.norm(X))
        assert np.linalg.norm(measured.of(found.W) - measured.t) <= 1e-9 * np.linalg.norm(
            measured.t
        )
        assert nuclear(found.W) <= nuclear(W) * (1 + 1e-9)
        assert found.gap <= 1e-8
        recovered += np.linalg.norm(found.W - W) <= 1e-9 * np.linalg.norm(W)
    # what an interior-point method reaches
    assert max(values) <= 1e-6
    assert max(matrices) <= 1e-3
    assert len(problems) / 4 <= recovered <= 3 * len(problems) / 4
    evidence(
        f"nuclear norm against CVXPY (Clarabel), d = 4 to 10, {way}",
        problems=len(problems),
        of_these_recover_W=recovered,
        value_differs_by=max(values),
        minimiser_by=max(matrices),
    )


@pytest.mark.parametrize("spread", [1e2, 1e3, 1e5, 1e9])
def test_singular_values_that_are_far_apart(spread):
    """Recovered to rounding, though thresholding may not see the last of them; the gap says so."""
    rng = np.random.default_rng(3)
    U, V = (np.linalg.qr(rng.standard_normal((12, 12)))[0][:, :2] for _ in "UV")
    W = (U * [1.0, 1 / spread]) @ V.T
    a, b = rng.standard_normal((2, 140, 12))
    found = minimise(Measurements(a, b, np.einsum("kd,de,ke->k", a, W, b), np.zeros(140)))
    assert found.determined
    assert found.rank == 2
    assert found.gap <= 2 / spread
    assert np.linalg.norm(found.W - W) <= 1e-14


# -- noise


def noisy(d, rank, ratio, size, seed):
    W, exact = problem(d, rank, ratio, seed)
    rng = np.random.default_rng([9, seed])
    noise = size * 10.0 ** rng.uniform(-0.5, 0.5, len(exact))
    off = noise * rng.uniform(-1, 1, len(exact))
    return W, Measurements(exact.a, exact.b, exact.t + off, noise)


def test_noise_is_penalised_as_cvxpy_would(way):
    """Before the polish: the penalised optimum, within what noise costs of it."""
    for seed in range(4):
        _, measured = noisy(7, 1, 1.5, 1e-2, seed)
        scale = np.linalg.norm(measured.a, axis=1) * np.linalg.norm(measured.b, axis=1)
        unit = Measurements(
            measured.a / np.linalg.norm(measured.a, axis=1, keepdims=True),
            measured.b / np.linalg.norm(measured.b, axis=1, keepdims=True),
            measured.t / scale,
            measured.noise / scale,
        )
        mu = nuclear_norm._penalty(unit) * unit.noise**2
        _, value = reference(unit, mu)
        found = minimise(measured)
        cost = nuclear(found.W) + np.sum((unit.of(found.W) - unit.t) ** 2 / (2 * mu))
        assert value * (1 - 1e-6) <= cost <= value * (1 + 2 * found.gap + 1e-6)


@pytest.mark.parametrize("size", [1e-10, 1e-7, 1e-4])
def test_noise_costs_what_it_must(size, way):
    """The fit is the best of its rank: as good as if the rank had been known."""
    for seed in range(5):
        W, measured = noisy(10, 2, 2.6, size, seed)
        found = minimise(measured)
        assert found.determined
        assert found.rank == 2
        assert np.linalg.norm(found.W - W) <= 2 * size
        residual = measured.weights * (measured.t - measured.of(found.W))
        tangent = TangentSpace.at(measured, found.W, 2, measured.weights).rows()
        # normal equations of the weighted fit
        gradient = np.linalg.norm(tangent.T @ residual)
        assert gradient <= 1e-3 * np.linalg.norm(tangent, 2) * np.linalg.norm(residual)


# -- the bound between matrices of one rank that fit the same readings: never below the error


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
