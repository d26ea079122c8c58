"""Theorem 6.1's formulas: inverse of each other, monotone, and their constants from the proof."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import unsoftmax as us
from unsoftmax.theory import error_for, tolerance_for, tolerances_for

GRID = list(itertools.product((1, 2, 16, 384), (1.0, 0.3, 1e-3), (2.0, 7.5, 100.0)))


@pytest.mark.parametrize(("dim", "margin", "norm"), GRID)
def test_they_are_inverse_to_each_other(dim, margin, norm):
    for tau in (0.0, 1e-12, 1e-6, margin / 2):
        eps_v, eps_W = error_for(tau, dim, margin, norm)
        assert tolerance_for(eps_v, eps_W, dim, margin, norm) == pytest.approx(tau, rel=1e-12)
    for eps_v, eps_W in ((1e-3, 1e-3), (1e-9, 1.0), (np.inf, 0.1), (0.1, np.inf)):
        tau = tolerance_for(eps_v, eps_W, dim, margin, norm)
        promised = error_for(tau, dim, margin, norm)
        assert promised[0] <= eps_v * (1 + 1e-12)
        assert promised[1] <= eps_W * (1 + 1e-12)
        tight = np.isclose(promised, (eps_v, eps_W), rtol=1e-12)
        assert tight.any() or tau == margin / 2


def test_their_ends():
    assert tolerance_for(0.0, 1.0, 4, 0.5, 2.0) == tolerance_for(1.0, 0.0, 4, 0.5, 2.0) == 0.0
    assert tolerance_for(np.inf, np.inf, 4, 0.5, 2.0) == 0.25
    assert error_for(0.0, 4, 0.5, 2.0) == (0.0, 0.0)
    assert error_for(0.3, 4, 0.5, 2.0) == (0.6, np.inf)
    assert error_for(np.inf, 4, 0.5, 2.0) == (np.inf, np.inf)


def test_the_paper_s_numbers():
    # μ ε_W / (80 W² d) at d=64, W=2, ε_W=0.1, μ=1/8
    assert tolerance_for(1.0, 0.1, 64, 0.125, 2.0) == 0.125 * 0.1 / (80 * 4 * 64)


def test_single_tokens_need_the_more_precise_answers():
    for dim, margin, norm in GRID:
        for eps_v, eps_W in itertools.product((1e-9, 1e-3, np.inf), (1e-6, 1.0)):
            singles, pairs = tolerances_for(eps_v, eps_W, dim, margin, norm)
            assert singles == tolerance_for(eps_v, eps_W, dim, margin, norm) <= pairs
            assert singles <= min(eps_v / np.sqrt(dim), margin / 2)
            assert pairs == margin * eps_W / (80 * norm**2 * dim)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"dim": 0}, "dim"),
        ({"margin": 0.0}, "margin"),
        ({"margin": 1.5}, "margin"),
        ({"margin": np.nan}, "margin"),
        ({"norm_bound": 1.9}, "norm_bound"),
        ({"norm_bound": np.inf}, "norm_bound"),
        ({"eps_v": -1.0}, "eps_v"),
        ({"eps_W": np.nan}, "eps_W"),
    ],
)
def test_wrong_arguments(wrong, name):
    right: dict[str, Any] = {"eps_v": 0.1, "eps_W": 0.1, "dim": 4, "margin": 0.5, "norm_bound": 2.0}
    with pytest.raises(ValueError, match=name):
        tolerance_for(**{**right, **wrong})
    with pytest.raises(ValueError, match="tau"):
        error_for(-1e-9, 4, 0.5, 2.0)


def test_the_constants_of_the_proof():
    """Both kinds of rows, worst signs, all logits in range: below 80, zero rows below 72."""
    lipschitz = 1 / (expit(0.5) * expit(-0.5))
    assert lipschitz == pytest.approx(4.2553, abs=1e-4)
    for norm in np.geomspace(2, 1e6, 30):
        p = expit(0.5)
        plain = 2 * norm * lipschitz * 2 * (1.5 * norm + p) / norm**2
        zero = np.sqrt(8) * norm * lipschitz * 2 * ((1 + 1 / np.sqrt(8)) * norm + p) / norm**2
        assert plain <= 30.9
        assert plain + zero <= 71.1


def test_reached_from_the_top():
    assert us.theory.tolerance_for is tolerance_for
    assert us.theory.error_for is error_for
