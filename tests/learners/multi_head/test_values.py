"""Heads out of the plane and their values, from formulas: with gates as steps, and under a cap."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from tests.by_hand import driven
from tests.learners.multi_head.synthetic import ETA, Scene
from unsoftmax.arrangement.jumps import JumpSearch, SoftStart, find_jumps
from unsoftmax.learners.multi_head import rough_heads
from unsoftmax.learners.multi_head.in_plane import measure_in_plane
from unsoftmax.learners.multi_head.rough_heads import (
    SearchPlane,
    read_cells,
    read_out_of_plane,
    read_values,
)
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps, UnsaturatedGates


def in_plane(scene):
    """Measure the heads of a scene in a random plane in which no gate is open at the start."""
    for _ in range(20):
        with suppress(SoftStart):
            return in_a_plane(scene)
    raise AssertionError


def in_a_plane(scene):
    """Measure the heads of a scene in a random plane, by the formula of its model."""
    reduced, lengths = scene.reduced, scene.reduced.lengths
    plane = SearchPlane.random(scene.model.dim, lengths.length, scene.rng)
    far = lengths.far(lengths.length)

    def ask(theta, T):
        y = yield from reduced.ask(plane.offsets(theta, T), plane.b, "zoom")
        return y / (T * reduced.scale)

    def steps(theta):
        """Return values; NaN where a gate is open, which the formula knows."""
        T = np.full(len(theta), far)
        g = yield from ask(theta, T)
        logits = plane.offsets(theta, T) @ of_plane(scene, plane).T
        return np.where(np.all(np.abs(logits) > 45, axis=1), g, np.nan)

    circle = JumpSearch(steps, reduced.error(far, lengths.length), 20, lengths.baseline)

    def measured():
        jumps = yield from find_jumps(circle, 16)
        eta = reduced.error(max(1 / lengths.length, lengths.near), lengths.length)
        return (yield from measure_in_plane(jumps, circle, ask, eta, lengths))

    found, _ = driven(measured(), scene.model)
    return plane, found


def of_plane(scene, plane):
    """The true u_h at the plane's query token."""
    return scene.model.scores_of(plane.b[None])[0]


def signs(found, true):
    """Match found heads (H, d) with true ones, up to sign."""
    apart = [[min(np.linalg.norm(x - y), np.linalg.norm(x + y)) for y in true] for x in found]
    order = np.argmin(apart, axis=1)
    assert sorted(order) == list(range(len(true)))
    turned = np.sign(np.sum(found * true[order], axis=1))
    return order, turned[:, None]


@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (2, 8), (5, 4)])
def test_vectors_out_of_the_plane_then_values_then_better_vectors(heads, dim):
    scene = Scene.random(heads, dim)
    plane, crossings = in_plane(scene)
    v = scene.reduced.scale * crossings.jumps.plane_vectors() @ plane.plane
    (u, readings), asked = driven(
        read_out_of_plane(scene.reduced, plane, crossings, v), scene.model
    )
    true = of_plane(scene, plane)
    order, turned = signs(u, true)
    assert heads * (dim - 2) <= asked <= 2 * heads * (dim - 2)
    assert np.linalg.norm(turned * u - true[order]) < 2e-2 * np.linalg.norm(true)
    (values, better), asked = driven(
        read_values(scene.reduced, crossings, (u, v, readings), scene.rng), scene.model
    )
    assert asked == heads * dim + rough_heads.CHECKS
    expected = turned * scene.model.v[order]
    assert np.linalg.norm(values.v - expected) < 1e-12 * np.linalg.norm(expected)
    assert np.linalg.norm(turned * better - true[order]) < 1e-8 * np.linalg.norm(true)
    np.testing.assert_allclose(values.equations.solved(better), values.v, atol=1e-12)


def test_a_large_system_is_solved_by_conjugate_gradients(monkeypatch):
    scene = Scene.random(4, 8)
    plane, crossings = in_plane(scene)
    v = scene.reduced.scale * crossings.jumps.plane_vectors() @ plane.plane
    (u, readings), _ = driven(read_out_of_plane(scene.reduced, plane, crossings, v), scene.model)
    monkeypatch.setattr(rough_heads, "LARGEST_DENSE", 0)
    monkeypatch.setattr(rough_heads, "SPARE", 2.0)
    (values, better), asked = driven(
        read_values(scene.reduced, crossings, (u, v, readings), scene.rng), scene.model
    )
    order, turned = signs(better, of_plane(scene, plane))
    expected = turned * scene.model.v[order]
    assert np.linalg.norm(values.v - expected) < 1e-10 * np.linalg.norm(expected)
    assert asked >= 2 * 4 * 8


def test_values_whose_answers_disagree_are_refused():
    scene = Scene.random(3, 6)
    plane, crossings = in_plane(scene)
    v = scene.reduced.scale * crossings.jumps.plane_vectors() @ plane.plane
    (u, readings), _ = driven(read_out_of_plane(scene.reduced, plane, crossings, v), scene.model)
    with pytest.raises(CoincidentJumps):
        driven(
            read_values(scene.reduced, crossings, (u, v, readings), scene.rng),
            lambda X: scene.model(X) + 1e-3 * np.abs(X[:, 0, 0]),
        )


def test_no_usable_reading_out_of_the_plane_is_refused():
    scene = Scene.random(2, 6)
    plane, crossings = in_plane(scene)
    v = scene.reduced.scale * crossings.jumps.plane_vectors() @ plane.plane
    with pytest.raises(CoincidentJumps):
        driven(
            read_out_of_plane(scene.reduced, plane, crossings, v),
            lambda X: 3 * scene.model(X),
        )


@pytest.mark.parametrize(("heads", "dim", "radius"), [(1, 8, 30.0), (2, 6, 60.0)])
def test_under_a_cap_values_come_from_cells(heads, dim, radius):
    """Unknown values are not small beside such offsets: the cells' gradients give them."""
    scene = Scene.random(heads, dim, radius=radius)
    plane, crossings = in_plane(scene)
    v, asked = driven(read_cells(scene.reduced, plane, crossings), scene.model)
    assert asked == heads * (dim - 2)
    (u, readings), _ = driven(read_out_of_plane(scene.reduced, plane, crossings, v), scene.model)
    (values, better), _ = driven(
        read_values(scene.reduced, crossings, (u, v, readings), scene.rng), scene.model
    )
    order, turned = signs(better, of_plane(scene, plane))
    expected = turned * scene.model.v[order]
    assert np.linalg.norm(v - expected) < 0.5 * np.linalg.norm(expected)
    assert np.linalg.norm(values.v - expected) < 1e-9 * np.linalg.norm(expected)


def test_tokens_too_short_to_leave_the_plane_are_refused():
    scene = Scene.random(1, 6, radius=30.0)
    plane, crossings = in_plane(scene)
    weak = replace(crossings, u=1e-9 * crossings.u)
    with pytest.raises(UnsaturatedGates):
        driven(read_out_of_plane(scene.reduced, plane, weak, scene.model.v), scene.model)
    assert scene.reduced.eta == pytest.approx(ETA)
