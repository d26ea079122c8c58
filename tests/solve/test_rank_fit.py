"""Gauss–Newton among matrices of one rank: to rounding, or None where it cannot say."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.single_head.sensing import rank_one
from unsoftmax.learners.single_head.sensing.rank_one import (
    Measurements,
    fit_rank,
    truncated,
)


def problem(d, rank, m, seed, spread=1.0):
    """Gaussian measurements of a matrix whose singular values are spread that far."""
    rng = np.random.default_rng([d, rank, seed])
    U, V = (np.linalg.qr(rng.standard_normal((d, d)))[0][:, :rank] for _ in "UV")
    W = (U * np.geomspace(1, 1 / spread, rank)) @ V.T
    a, b = rng.standard_normal((2, m, d))
    return W, Measurements(a, b, np.einsum("kd,de,ke->k", a, W, b), np.zeros(m))


@pytest.mark.parametrize("spread", [1.0, 1e3, 1e6])
@pytest.mark.parametrize(("d", "rank"), [(3, 1), (6, 2), (9, 4), (5, 5)])
def test_from_nearby_to_rounding(d, rank, spread):
    for seed in range(3):
        W, measured = problem(d, rank, 2 * rank * (2 * d - rank), seed, spread)
        noise = np.random.default_rng(seed).standard_normal((d, d)) / d
        fitted = fit_rank(measured, W + 0.02 / spread * noise, rank)
        assert fitted is not None
        assert np.linalg.norm(fitted[0] - W) <= 1e-13 * np.linalg.norm(W)
        assert fitted[1] > 0
        assert np.linalg.matrix_rank(fitted[0], tol=1e-13) <= rank


def test_too_few_measurements_determine_nothing():
    W, measured = problem(6, 2, 19, 0)  # of 2·(12 − 2) = 20 unknowns
    assert fit_rank(measured, W, 2) is None


def test_measurements_that_repeat_determine_nothing():
    W, measured = problem(6, 1, 12, 0)
    which = np.arange(12) % 5
    a, b, t = measured.a[which], measured.b[which], measured.t[which]
    repeated = Measurements(a, b, t, measured.noise)
    assert fit_rank(repeated, W, 1) is None


def test_a_rank_that_is_too_low_does_not_fit(monkeypatch):
    W, measured = problem(6, 3, 80, 0)
    assert fit_rank(measured, W, 2) is None
    # unless what is left counts as rounding
    U, values, V = np.linalg.svd(W)
    values[2] *= 1e-13
    tiny = (U * values) @ V
    small = Measurements(measured.a, measured.b, measured.of(tiny), measured.noise)
    assert fit_rank(small, tiny, 2) is not None
    monkeypatch.setattr(rank_one, "FIT_ROUNDING", 1e-16)
    assert fit_rank(small, tiny, 2) is None


def test_rank_0_is_nothing_measured():
    _, measured = problem(4, 1, 10, 0)
    assert fit_rank(measured, np.eye(4), 0) is None
    nothing = Measurements(measured.a, measured.b, np.zeros(10), np.zeros(10))
    fitted = fit_rank(nothing, np.eye(4), 0)
    assert fitted is not None
    assert not fitted[0].any()


def test_noisy_measurements_count_by_their_precision():
    W, exact = problem(6, 1, 60, 0)
    rng = np.random.default_rng(1)
    noise = np.where(np.arange(60) < 30, 1e-9, 1e-2)
    measured = Measurements(exact.a, exact.b, exact.t + noise * rng.uniform(-1, 1, 60), noise)
    fitted = fit_rank(measured, W + 0.01, 1)
    assert fitted is not None
    assert np.linalg.norm(fitted[0] - W) <= 1e-8


def test_normalised_equations_are_the_same():
    W, measured = problem(5, 2, 30, 0)
    noisy = Measurements(measured.a, measured.b, measured.t, np.full(30, 1e-3))
    unit = noisy.normalised()
    assert np.allclose(np.linalg.norm(unit.a, axis=1), 1)
    assert np.allclose(np.linalg.norm(unit.b, axis=1), 1)
    assert np.allclose(unit.of(W), unit.t, atol=1e-14)
    shifted = W + 1e-3
    assert unit.rms_misfit(shifted, 0.0) == pytest.approx(noisy.rms_misfit(shifted, 0.0))


def test_truncated_is_the_best_of_its_rank():
    W = np.diag([3.0, 2.0, 1.0])
    assert np.allclose(truncated(W, 2), np.diag([3.0, 2.0, 0.0]))
    assert not truncated(W, 0).any()
