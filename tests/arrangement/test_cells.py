"""Circles, cells and their gradients, on piecewise linear functions that are known."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.arrangement.kinks import TooManyBreakpoints
from unsoftmax.learners.relu_network.circle_sweep import CellGradients, CellLines, CircleSweep
from unsoftmax.learners.relu_network.lift import (
    Circle,
    Lift,
    PiecewiseLinear,
    PointsAround,
    WrittenPoints,
    ask_points,
)
from unsoftmax.learners.relu_network.lifted_target import (
    DOUBLE,
    SINGLE,
    NoiseLevel,
    estimate_noise,
)


def random_form(rng, D, K, error=0.0):
    a = rng.standard_normal((K, D))
    return PiecewiseLinear(
        rng.standard_normal(D), a, rng.choice([-1.0, 1.0], K), np.full(K, error), error
    )


def answered(steps, lift, form, deviation=0.0, seed=0, single=False):
    """Answer rounds by the network that a form is, h·f(λx/h) being the form; count the queries."""
    rng, queries = np.random.default_rng(seed), 0
    try:
        parts = next(steps)
        while True:
            answers = []
            for part in parts:
                x = part[0 : len(part)][:, 0]
                Y = np.column_stack([x / lift.length, np.ones(len(x))]) if lift.biases else x
                y = form(Y)
                y = y.astype(np.float32).astype(float) if single else y
                answers.append(y + deviation * rng.standard_normal(len(y)))
                queries += len(part)
            parts = steps.send(answers)
    except StopIteration as end:
        return end.value, queries


# -- the lift


@pytest.mark.parametrize("biases", [True, False])
def test_tokens_and_points_are_inverse_and_answers_scale(biases):
    rng = np.random.default_rng(0)
    lift = Lift(4, biases, length=3.0 if biases else 1.0, token_scale=1.0)
    x = rng.standard_normal((7, 4))
    Y = lift.points(x)
    assert np.allclose(np.linalg.norm(Y, axis=1), 1)
    direction = lift.tokens(Y)
    assert np.allclose(direction if biases else direction * lift.heights(x)[:, None], x)
    form = random_form(rng, lift.D, 5)
    y = form(np.column_stack([x / 3.0, np.ones(7)]) if biases else x)
    asked = y if biases else y / lift.heights(x)
    assert np.allclose(lift.answers(Y, asked), form(Y))
    assert np.allclose(lift.answers(Y, asked) * lift.heights(x), y)


def test_a_longer_token_scale_changes_tokens_and_not_the_function():
    loud, Y = Lift(3, False, token_scale=1e6), np.eye(3)
    assert np.array_equal(loud.tokens(Y), 1e6 * Y)
    assert np.array_equal(loud.answers(Y, np.full(3, 2e6)), np.full(3, 2.0))


def test_points_around_centres_are_made_from_a_small_design():
    lift, centres = Lift(3, False), np.eye(3)[:2]
    i, j, step = np.array([0, 1, 1]), np.array([1, 0, 1]), np.array([0.5, 0.25, -1.0])
    directions = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    given = PointsAround(lift, centres, directions, i, j, step)
    assert given.shape == (3, 3)
    assert np.array_equal(given[np.arange(3)], centres[i] + step[:, None] * directions[j])
    own = PointsAround(lift, centres, None, i, j, step)
    away = own.lifted(np.arange(3)) - centres[i]
    assert np.allclose(np.linalg.norm(away, axis=1), np.abs(step))
    assert np.allclose(np.sum(away * centres[i], axis=1), 0)
    assert "directions" not in own.design()


def test_nothing_is_asked_of_no_points_and_what_is_known_is_subtracted_in_parts():
    rng = np.random.default_rng(0)
    lift, form = Lift(3, False), random_form(rng, 3, 4)
    assert answered(ask_points(WrittenPoints(lift, np.zeros((0, 3))), "none"), lift, form)[1] == 0
    Y, known = rng.standard_normal((50, 3)), random_form(rng, 3, 2)
    for at_once in (1, 7, 2**22):
        steps = ask_points(WrittenPoints(lift, Y), "some", known, numbers_at_once=at_once)
        left, _ = answered(steps, lift, form)
        assert np.allclose(left, form(Y) - known(Y), rtol=0, atol=1e-14)


# -- circles


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("d", [2, 3, 8])
def test_a_circle_crosses_every_hyperplane_once(d, biases):
    rng = np.random.default_rng(d)
    circle = Circle.random(Lift(d, biases), rng)
    frame = np.vstack([circle.P, circle.Q, circle.E])
    assert np.allclose(frame @ frame.T, np.eye(len(frame)), atol=1e-14)
    a = rng.standard_normal((20, circle.lift.D))
    theta = circle.crossings(a)
    assert np.allclose(np.sum(a * circle.at(theta), axis=1), 0, atol=1e-14)
    if biases:
        inside = np.linspace(circle.low, circle.high, 9)
        assert np.all(circle.at(inside)[:, -1] > 0)


# -- noise


@pytest.mark.parametrize("deviation", [1e-12, 1e-8, 1e-3])
def test_noise_is_estimated_and_seldom_too_low(deviation, trials):
    low, lift, count = 0, Lift(6, True), trials(20, 200)
    for seed in range(count):
        rng = np.random.default_rng(seed)
        circle, form = Circle.random(lift, rng), random_form(rng, 7, 20)
        steps = estimate_noise(circle, rng)
        noise, queries = answered(steps, lift, form, deviation, seed)
        assert queries == 48
        assert noise.search >= noise.deviation
        # answers are F/h: a circle's points have heights h of 0 … 1, and as much less noise
        low += noise.deviation < 0.3 * deviation
        assert noise.deviation < 4 * deviation
    assert low <= 0.1 * count


def test_exact_answers_are_taken_as_precise_as_their_format():
    rng, lift = np.random.default_rng(0), Lift(5, False)
    circle, form = Circle.random(lift, rng), random_form(rng, 5, 9)
    exact, _ = answered(estimate_noise(circle, rng), lift, form)
    assert DOUBLE * exact.size <= exact.deviation <= 10 * DOUBLE * exact.size
    single, _ = answered(estimate_noise(circle, rng), lift, form, single=True)
    assert SINGLE * single.size <= single.deviation
    louder = exact.at_least(10 * exact.size)
    assert louder.deviation == pytest.approx(DOUBLE * 10 * exact.size)
    assert louder.search == pytest.approx(2 * louder.deviation)
    assert NoiseLevel.of_rounding(3.0).deviation == 3 * DOUBLE


# -- lines and gradients


def test_the_least_significant_kink_is_the_one_that_bends_least():
    circle = Circle.random(Lift(2, False), np.random.default_rng(0))
    theta, bend = np.array([0.5, 1.0, 2.0]), np.array([1.0, 1e-9, -0.3])

    def F(t):
        return np.sin(t) + np.maximum(0, np.sin(t[:, None] - theta)) @ bend

    ends = np.concatenate([[0.0], theta, [np.pi]])
    width = np.diff(ends)
    at = np.stack([ends[:-1] + 0.07 * width, ends[1:] - 0.07 * width])
    lines = CellLines.of(circle, theta, at, np.stack([F(at[0]), F(at[1])]))
    assert np.allclose(lines.value, F(lines.middle), atol=1e-14)
    assert np.allclose(lines.bends, bend, atol=1e-14)
    assert np.argmin(lines.significance(1e-15)) == 1
    assert lines.significance(1e-8)[1] < 1 < lines.significance(1e-8)[0]


def test_leaving_out_a_kink_keeps_the_more_accurate_of_two_cells():
    middle, error = np.arange(4.0), np.array([1.0, 0.5, 2.0, 3.0])
    cells = CellGradients(middle, np.eye(4), error, np.array([1.0, -1.0, 1.0]))
    fewer = cells.without(np.array([False, True, False]))
    assert np.array_equal(fewer.middle, [0.0, 1.0, 3.0])
    assert np.array_equal(fewer.rising, [1.0, 1.0])
    assert np.array_equal(fewer.jumps[1], [0.0, -1.0, 0.0, 1.0])
    assert fewer.jump_error[0] == np.sqrt(4 * (1.0 + 0.25))


def exact_noise(form):
    size = float(np.linalg.norm(form.g0) + form.sizes.sum())
    return NoiseLevel.of_rounding(size)


def assert_same_function(found, form, error, seed=0):
    Y = np.random.default_rng(seed).standard_normal((500, len(form.g0)))
    Y /= np.linalg.norm(Y, axis=1, keepdims=True)
    Y[:, -1] = np.abs(Y[:, -1])
    assert np.max(np.abs(found(Y) - form(Y))) <= error


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize(("d", "K"), [(2, 1), (2, 5), (5, 12), (12, 8), (3, 0)])
def test_one_circle_tells_the_whole_function(d, K, biases, trials):
    for seed in range(trials(1, 30)):
        rng = np.random.default_rng([d, K, seed])
        lift = Lift(d, biases)
        form, circle = random_form(rng, lift.D, K), Circle.random(lift, rng)
        sweep = CircleSweep(circle, None, exact_noise(form))
        swept, queries = answered(sweep.run(100), lift, form)
        assert len(swept.form) == K
        assert len(swept.middle) == K + 1
        # thin cells tell little; what they tell is within their error bars
        assert_same_function(
            swept.form, form, 20 * (swept.form.spread + swept.form.g_error) + 1e-12
        )
        retried = 3 * lift.D
        assert queries <= 160 + 14 * K + (K + 1) * (lift.D - 2) + retried + 2 * (K + 1)


def test_what_is_known_is_not_found_again():
    rng, lift = np.random.default_rng(0), Lift(6, True)
    known, circle = random_form(rng, 7, 9), Circle.random(lift, rng)
    missing = rng.standard_normal((1, 7))
    whole = PiecewiseLinear(
        known.g0,
        np.vstack([known.a, missing]),
        np.append(known.eps, 1.0),
        np.zeros(10),
    )
    sweep = CircleSweep(circle, known, exact_noise(whole))
    swept, _ = answered(sweep.run(100), lift, whole)
    assert len(swept.form) == 1
    cosine = swept.form.a[0] @ missing[0] / np.linalg.norm(swept.form.a) / np.linalg.norm(missing)
    assert abs(cosine) > 1 - 1e-12


def test_close_hyperplanes_make_thin_cells_whose_errors_are_larger():
    rng, lift = np.random.default_rng(3), Lift(5, False)
    form = random_form(rng, 5, 6)
    form.a[1] = form.a[0] + 1e-4 * form.a[1]
    circle = Circle.random(lift, rng)
    sweep = CircleSweep(circle, None, exact_noise(form))
    swept, _ = answered(sweep.run(100), lift, form)
    assert len(swept.form) == 6
    assert np.max(swept.error) > 100 * np.median(swept.error)
    widest = np.argmin(swept.error)
    assert np.array_equal(swept.rising, np.where(np.arange(6) < widest, -1.0, 1.0))


def test_a_kink_that_is_nothing_but_noise_is_left_out(trials):
    for seed in range(trials(2, 50)):
        rng, lift = np.random.default_rng(seed), Lift(5, False)
        form, circle = random_form(rng, 5, 6), Circle.random(lift, rng)
        form.a[0] *= 1e-9  # where answers are off by 1e-8
        noise = NoiseLevel(1e-8, 1e-8, 10.0)
        swept, _ = answered(CircleSweep(circle, None, noise).run(100), lift, form, 1e-8, seed)
        assert len(swept.form) <= 5


def test_too_many_neurons_are_refused():
    rng, lift = np.random.default_rng(0), Lift(4, True)
    form, circle = random_form(rng, 5, 60), Circle.random(lift, rng)
    sweep = CircleSweep(circle, None, exact_noise(form))
    with pytest.raises(TooManyBreakpoints):
        answered(sweep.run(10), lift, form)


# -- what is left out


def test_kinks_that_are_none_are_left_out_by_their_lines():
    rng, lift = np.random.default_rng(0), Lift(4, False)
    form, circle = random_form(rng, 4, 5), Circle.random(lift, rng)
    true = np.sort(circle.crossings(form.a))
    false = np.array([0.1, 1.2345, 3.0])
    sweep = CircleSweep(circle, None, exact_noise(form))
    theta = np.sort(np.append(true, false))
    ends = np.concatenate([[circle.low], theta, [circle.high]])
    at = np.stack([ends[:-1] + 0.07 * np.diff(ends), ends[1:] - 0.07 * np.diff(ends)])
    F = form(circle.at(at.ravel())).reshape(2, -1)
    lines = sweep.significant(theta, at, F, sweep.noise.search)
    assert np.array_equal(lines.theta, true)
    assert np.all(lines.width > 0)


def gradients(sizes, error, D=3):
    """Cells whose gradients jump by so much along the first axis."""
    gradient = np.zeros((len(sizes) + 1, D))
    gradient[1:, 0] = np.cumsum(sizes)
    n = len(gradient)
    return CellGradients(np.arange(n) / n, gradient, np.full(n, error), np.ones(n - 1))


def test_jumps_smaller_than_their_errors_and_than_others_are_left_out():
    rng = np.random.default_rng(0)
    circle, noise = Circle.random(Lift(3, False), rng), NoiseLevel(1.0, 1.0, 1.0)
    sweep = CircleSweep(circle, None, noise)
    cells = gradients([1.0, 1e-9, 2.0], 1e-9)
    assert np.array_equal(sweep.insignificant(np.ones(3), cells), [False, True, False])
    # small, and well measured
    cells = gradients([1.0, 1e-9, 2.0], 1e-12)
    assert not np.any(sweep.insignificant(np.ones(3), cells))


def test_far_out_a_neuron_must_show_its_weights():
    rng = np.random.default_rng(0)
    circle, noise = Circle.random(Lift(2, True), rng), NoiseLevel(1.0, 1.0, 1.0)
    sweep = CircleSweep(circle, None, noise)
    cells = gradients([1.0, 1.0], 1e-9)
    flat = CellGradients(cells.middle, cells.gradient[:, ::-1], cells.error, cells.rising)
    far, near = np.array([1e-5, 1e-6]), np.array([1.0, 2.0])
    assert not np.any(sweep.insignificant(far, cells))
    assert not np.any(sweep.insignificant(near, flat))
    assert np.all(sweep.insignificant(far, flat))


def test_errors_of_what_is_known_count_where_its_hyperplanes_cross():
    rng, lift = np.random.default_rng(0), Lift(5, False)
    form = random_form(rng, 5, 6)
    errors = []
    for error in (0.0, 1e-3):
        known = PiecewiseLinear(form.g0, form.a, form.eps, np.full(6, error))
        circle = Circle.random(lift, np.random.default_rng(1))
        sweep = CircleSweep(circle, known, exact_noise(form))
        swept, _ = answered(sweep.run(100), lift, form)
        assert len(swept.form) == 0
        errors.append(swept.error[0])
    assert errors[1] > 1e6 * errors[0]
