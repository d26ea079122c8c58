"""Planes of one matrix beside those of another: how often they went round, and which way."""

from __future__ import annotations

import numpy as np

from unsoftmax.solve.turning_planes import TurningPlanes


def test_planes_go_round_as_often_as_those_of_another_matrix():
    shift, right = 65, np.array([1.0, 0.3, 0.02])
    rng = np.random.default_rng(0)
    P = rng.standard_normal((7, 7))
    round_trip = 2 * np.pi / shift
    # the second once too often, the third taken to turn the other way
    wrong = np.array([1.0, 0.3 + round_trip, round_trip - 0.02]) + 1e-4 / shift
    order = np.argsort(-wrong)
    found = TurningPlanes(P, wrong[order], 0.0).beside(right, shift)
    assert np.allclose(found.angles, right, atol=1e-4)
    assert np.array_equal(found.P[:, 6:], P[:, 6:])
    places = np.argsort(order)
    for k, mirrored in enumerate((False, False, True)):
        x, y = P[:, 2 * places[k]], P[:, 2 * places[k] + 1]
        assert np.array_equal(found.P[:, 2 * k], x)
        assert np.array_equal(found.P[:, 2 * k + 1], -y if mirrored else y)


def test_planes_that_agree_and_other_numbers_of_planes_stay_as_they_are():
    P = np.eye(4)
    planes = TurningPlanes(P, np.array([1.0, 0.1]), 0.0)
    same = planes.beside(np.array([1.0, 0.1]), 65)
    assert np.array_equal(same.angles, planes.angles)
    assert np.array_equal(same.P, P)
    assert planes.beside(np.array([1.0]), 65) is planes
