"""Planes that a matrix turns, from exact and from slightly wrong matrices."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.solve.turning_planes import turning_planes


def turning(frequencies, odd, seed):
    """P R P⁻¹ of a random P; ``odd`` directions do not turn."""
    rng = np.random.default_rng(seed)
    r = 2 * len(frequencies) + odd
    R = np.eye(r)
    R[: r - odd, : r - odd] = us.Rotary(frequencies).turned(np.eye(r - odd), 1.0).T
    P = rng.standard_normal((r, r))
    return P @ R @ np.linalg.inv(P)


def rebuilt(found):
    """The matrix that the planes found make."""
    r, turns = len(found.P), 2 * len(found.angles)
    R = np.eye(r)
    R[:turns, :turns] = us.Rotary(found.angles).turned(np.eye(turns), 1.0).T
    return found.P @ R @ np.linalg.inv(found.P)


@pytest.mark.parametrize("odd", [0, 1, 3])
@pytest.mark.parametrize(
    "frequencies", [[1.0, 0.1, 0.01], [3.0, 2.0], [np.pi, np.pi, 0.5], [1.0, 1.0], [1e-3, 1e-5], []]
)
def test_planes_make_the_matrix_again(frequencies, odd):
    for seed in range(4):
        T = turning(frequencies, odd, seed)
        if not T.size:
            continue
        found = turning_planes(T, 1e-9)
        cond = np.linalg.cond(T) * np.linalg.cond(found.P)
        assert np.linalg.norm(rebuilt(found) - T) <= 1e-13 * cond * np.linalg.norm(T)
        assert np.allclose(found.angles, sorted(frequencies, reverse=True), rtol=0, atol=1e-7)
        assert found.off_circle <= 1e-7


def test_what_turns_too_slowly_to_tell_does_not_turn():
    T = turning([1.0, 1e-6], 0, 0)
    assert len(turning_planes(T, 0.0).angles) == 2
    assert len(turning_planes(T, 1e-3).angles) == 1


def test_what_grows_is_off_the_circle():
    assert turning_planes(1.1 * turning([1.0], 0, 0), 0.0).off_circle == pytest.approx(0.1)


def test_errors_move_planes_by_as_much():
    T, rng = turning([1.0, 0.3], 0, 2), np.random.default_rng(0)
    for size in (1e-12, 1e-8):
        off = size * rng.standard_normal(T.shape)
        assert np.linalg.norm(rebuilt(turning_planes(T + off, 0.0)) - T) <= 1e4 * size
