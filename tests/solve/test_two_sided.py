"""W from readings in several pairs of bases: the bound holds for any signs, however skew."""

import numpy as np
import pytest

from unsoftmax.learners.single_head.approximate.passes import TwoSidedSystem
from unsoftmax.measure.reading import Reading


def skew(d, condition, rng):
    """A random matrix of a given condition."""
    U, V = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in "UV")
    return (U * np.geomspace(1, 1 / condition, d)) @ V


def system(d, passes, condition, rng):
    Z, B = (tuple(skew(d, condition, rng) for _ in range(passes)) for _ in "ZB")
    return TwoSidedSystem(Z, B)


def readings(asked, W):
    return [B @ W.T @ Z.T for Z, B in zip(asked.Z, asked.B, strict=True)]


@pytest.mark.parametrize("passes", [1, 2, 5])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e5])
def test_the_bound_holds_whatever_the_signs(passes, condition):
    rng = np.random.default_rng(1)
    for d in (1, 2, 6):
        for _ in range(20):
            asked, W = system(d, passes, condition, rng), rng.standard_normal((d, d))
            errors = [10.0 ** rng.uniform(-9, -2, (d, d)) for _ in range(passes)]
            wrong = [
                M + E * rng.choice([-1, 1], (d, d))
                for M, E in zip(readings(asked, W), errors, strict=True)
            ]
            found = asked.solve(wrong)
            told = [Reading.independent(M, E) for M, E in zip(wrong, errors, strict=True)]
            assert np.linalg.norm(found - W) <= asked.error(told, found)
