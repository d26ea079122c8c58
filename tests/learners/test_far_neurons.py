"""Scans of all lengths, and the neurons that they show where circles see none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.arrangement.test_cells import answered, random_form
from unsoftmax.learners.relu_network.far_neurons import FarSearch, SplitForm, at_length
from unsoftmax.learners.relu_network.lift import Circle, Lift
from unsoftmax.learners.relu_network.lifted_target import (
    LengthScan,
    LiftedTarget,
    NoiseLevel,
    scan_lengths,
)
from unsoftmax.learners.relu_network.network_search import NetworkSearch

# -- one line at all lengths


def scanned(form, d, seed=0, deviation=0.0, single=False):
    steps = scan_lengths(d, np.random.default_rng(seed))
    return answered(steps, Lift(d, True), form, deviation, single=single)


def test_a_scan_is_70_queries_on_both_sides_of_0():
    form = random_form(np.random.default_rng(0), 4, 5)
    scan, queries = scanned(form, 3)
    assert queries == 70 == len(scan.tokens) == len(scan.answers)
    assert np.allclose(np.linalg.norm(scan.tokens, axis=1), np.tile(scan.lengths, 2))
    assert np.allclose(scan.tokens[:35], -scan.tokens[35:])
    assert np.allclose(scan.answers, form(np.column_stack([scan.tokens, np.ones(70)])))
    assert scan.lengths[0] < 1e-8
    assert scan.farthest > 1e12


@pytest.mark.parametrize("length", 10.0 ** np.arange(-7, 11, 2))
@pytest.mark.parametrize("single", [False, True], ids=["float64", "float32"])
def test_the_length_is_among_the_distances_whatever_they_are(length, single, trials):
    for seed in range(trials(2, 50)):
        form = random_form(np.random.default_rng(seed), 5, 20)
        form.a[:, -1] *= length
        form.g0[-1] *= length
        scan, _ = scanned(form, 4, seed, single=single)
        assert length / 30 < scan.length < 30 * length, seed


@pytest.mark.parametrize("deviation", [0.0, 1e-12, 1e-8, 1e-5])
def test_noise_is_no_hyperplane(deviation, trials):
    for seed in range(trials(2, 50)):
        form = random_form(np.random.default_rng(seed), 5, 0)
        scan, _ = scanned(form, 4, seed, deviation)
        assert scan.length == 1.0, seed
        form = random_form(np.random.default_rng(seed), 5, 20)
        scan, _ = scanned(form, 4, seed, deviation)
        assert 1e-2 < scan.length < 1e2, seed


@pytest.mark.parametrize("share", [1e-15, 1e-12, 1e-9])
def test_noise_in_proportion_to_the_answers_is_no_hyperplane_far_out(share, trials):
    rng = np.random.default_rng(5)
    for seed in range(trials(2, 50)):
        form = random_form(np.random.default_rng(seed), 3, 20)
        scan, _ = scanned(form, 2, seed)
        noisy = replace(scan, y=scan.y * (1 + share * rng.standard_normal(scan.y.shape)))
        assert 1e-2 < noisy.length < 1e2, seed


@pytest.mark.parametrize("slope", [1e-10, 1.0, 1e7])
def test_a_fold_at_0_has_the_length_at_which_it_shows(slope):
    rng = np.random.default_rng(0)
    form = random_form(rng, 4, 1)
    form.g0[:-1], form.g0[-1] = 0.0, 2.0
    form.a[0] = slope * np.append(form.a[0, :-1], 0.0)
    scan, _ = scanned(form, 3)
    steep = abs(slope * form.a[0, :-1] / slope @ scan.direction)
    assert 0.5 <= scan.length * steep / 2.0 <= 2.0


def test_terms_that_cancel_are_rounded_as_what_they_are():
    """Beyond all hyperplanes the answers on one side are 1e-3 of their terms."""
    form = random_form(np.random.default_rng(0), 3, 8)
    scan, _ = scanned(form, 2)
    active = form.a[:, :-1] @ -scan.direction > 0
    slope = -scan.direction @ (form.g0[:-1] + (form.eps * active) @ form.a[:, :-1])
    form.g0[:-1] += (slope - 1e-6) * scan.direction
    scan, _ = scanned(form, 2)
    assert abs(scan.answers[-1]) < 1e-3 * abs(scan.answers[34])
    assert scan.length < 1e2


def test_nothing_is_seen_where_nothing_is_asked():
    scan = LengthScan.none()
    assert scan.farthest == np.inf
    assert scan.length == 1.0


# -- a form in two parts


def test_a_form_is_the_same_function_at_any_length_scale():
    rng = np.random.default_rng(0)
    form, one, other = random_form(rng, 4, 6, 1e-3), Lift(3, True, 2.0), Lift(3, True, 50.0)
    there = at_length(form, one, other)
    x = rng.standard_normal((9, 3)) * 10.0 ** rng.uniform(-2, 3, (9, 1))
    values = [f(lift.points(x)) * lift.heights(x) for f, lift in ((form, one), (there, other))]
    assert np.allclose(values[0], values[1], rtol=1e-13)
    back = at_length(there, other, one)
    assert np.allclose(back.a, form.a)
    # which part of a neuron an error is in is not known: it is never less
    assert np.all(there.error >= form.error)


def test_the_error_of_a_far_neuron_is_one_of_slope_alone(trials):
    for seed in range(trials(4, 200)):
        rng = np.random.default_rng(seed)
        here, there = Lift(3, True, 1.0), Lift(3, True, 10.0 ** rng.uniform(3, 9))
        far = random_form(rng, 4, 1, 1e-3)
        far.a[:, -1] = -np.abs(far.a[:, -1]) - 0.1
        off = rng.standard_normal(far.a.shape)
        wrong = replace(far, a=far.a + 1e-3 * off / np.linalg.norm(off))
        near = random_form(rng, 4, 5)
        right, split = (SplitForm.of(here, near).with_far(f, there) for f in (far, wrong))
        x = rng.standard_normal((500, 3)) * there.length * 10.0 ** rng.uniform(-9, 2, (500, 1))
        Y, height = here.points(x), here.heights(x)
        missed = np.abs(split.whole(Y) - right.whole(Y)) * height
        rounding = 1e-15 * (1 + np.linalg.norm(x, axis=1)) * np.abs(near.a).sum()
        allowed = 1.01 * split.slope_error * np.linalg.norm(x, axis=1)
        assert np.all(missed <= allowed + rounding), seed
        assert np.all(split.whole.error[-1:] == 0)


def test_neurons_beyond_a_distance_are_left_out_if_they_are_inactive_at_0():
    form = random_form(np.random.default_rng(0), 2, 4)
    form.a[:] = [[1.0, -1e5], [1.0, 1e5], [-1.0, -0.5], [0.0, -1.0]]
    left = SplitForm.of(Lift(1, True, 2.0), form).without(1e3)
    assert np.array_equal(left.near.a, form.a[1:3])


# -- the search


def far_search(form, d, seed=0):
    """Search for what a form has, with what lies within 100 of 0 known, to 1e-12."""
    lift, rng = Lift(d, True), np.random.default_rng(seed)
    scan, _ = answered(scan_lengths(d, rng), lift, form)
    circle = Circle.random(lift, rng)
    size = float(np.abs(form(circle.at(np.linspace(0.1, 3, 50)))).max())
    noise = NoiseLevel(2e-16 * size, 4e-16 * size, size)
    target = LiftedTarget(lift, circle, noise, None, scan)
    search = FarSearch(NetworkSearch(target, 100, False, rng))
    distance = np.abs(form.a[:, -1]) / np.linalg.norm(form.a[:, :-1], axis=1)
    known = replace(form.take(distance < 100), error=np.full(int(np.sum(distance < 100)), 1e-12))
    return search, known


@pytest.mark.parametrize("distance", [1e4, 1e6, 1e9, 1e11])
def test_far_neurons_are_found_where_the_scan_contradicts(distance, trials):
    for seed in range(trials(2, 40)):
        rng = np.random.default_rng(seed)
        form = random_form(rng, 6, 10)
        form.a[:3, -1] = -distance * np.linalg.norm(form.a[:3, :-1], axis=1)
        search, known = far_search(form, 5, seed)
        split, queries = answered(search.run(known), search.search.target.lift, form)
        assert len(split.far) == 3, seed
        assert queries < 400
        true, found = (a / np.abs(a[:, -1:]) for a in (form.a[:3], split.far.a))
        apart = np.linalg.norm(true[:, None, :-1] - found[:, :-1], axis=2) * distance
        assert np.all(apart.min(axis=1) < 1e-6), seed
        assert split.slope_error < 1e-8


def test_nothing_is_asked_where_the_scan_is_explained():
    form = random_form(np.random.default_rng(0), 6, 10)
    search, _ = far_search(form, 5)
    split, queries = answered(search.run(form), search.search.target.lift, form)
    assert queries == 0
    assert len(split.far) == 0
    target = replace(search.search.target, scan=LengthScan.none())
    blind = FarSearch(replace(search.search, target=target))
    assert blind.contradicted(SplitForm.of(target.lift, form.take(np.arange(10) < 3))) is None


def test_what_no_circle_shows_is_looked_for_once_with_near_neurons_measured_anew():
    """The scan bends where the network does not."""
    form = random_form(np.random.default_rng(0), 6, 10)
    search, known = far_search(form, 5)
    scan = search.search.target.scan
    y = scan.y + 1e-6 * np.maximum(0, scan.lengths - 1e6)
    target = replace(search.search.target, scan=replace(scan, y=y))
    wrong = FarSearch(replace(search.search, target=target))
    split, queries = answered(wrong.run(known), target.lift, form)
    assert len(split.far) == 0
    assert 0 < queries < 2 * 100 + 11 * 6
    assert split.near.spread < known.spread
