"""The steps of the learner of ReLU networks, each by hand on a function that is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from tests.arrangement.test_cells import answered, random_form
from unsoftmax.learners.relu_network import lifted_target, network_search
from unsoftmax.learners.relu_network.claims import NetworkClaim
from unsoftmax.learners.relu_network.far_neurons import SplitForm
from unsoftmax.learners.relu_network.lift import Circle, Lift, PiecewiseLinear
from unsoftmax.learners.relu_network.lifted_target import (
    FAR_SHARE,
    LONG_TOKENS,
    LiftedTarget,
    NoiseLevel,
    TargetLift,
    accepted_error,
    fresh_tokens,
    look,
    weights_of,
)
from unsoftmax.learners.relu_network.network_search import NetworkSearch, network_of, pruned
from unsoftmax.learners.relu_network.wide_cells import WalkedForm


def lifted(form, d, biases, seed=0):
    """Look at the network that a form is, at length scale 1."""
    steps = TargetLift(d, biases)
    return answered(steps.run(np.random.default_rng(seed)), Lift(d, biases), form)


# -- before the search


@pytest.mark.parametrize("length", [1e-6, 1e-2, 1.0, 1e3, 1e9])
def test_the_length_scale_is_where_the_slope_changes(length):
    rng = np.random.default_rng(0)
    form = random_form(rng, 7, 40)
    form.a[:, -1] *= length
    target, queries = lifted(form, 6, True)
    assert length / 10 < target.lift.length < 10 * length
    assert target.constant is None
    assert queries == 70 + 6 + 48


def test_one_answer_is_a_constant_and_confirmed():
    constant = replace(PiecewiseLinear.zero(4), g0=np.array([0.0, 0.0, 0.0, 2.5]))
    target, queries = lifted(constant, 3, True)
    assert target.constant == 2.5
    assert queries == 70 + 6 + 32


def test_an_affine_part_betrays_a_target_learned_as_if_it_had_no_biases():
    form = random_form(np.random.default_rng(0), 4, 5)

    class Shifted:
        def __call__(self, x):
            return form(x) + 1.0

    with pytest.raises(us.ModelMismatch, match="biases=True"):
        lifted(Shifted(), 4, False)


def test_noise_asks_for_longer_tokens_where_it_is_of_a_fixed_size():
    form = random_form(np.random.default_rng(0), 5, 9)
    steps = TargetLift(5, False)
    target, _ = answered(steps.run(np.random.default_rng(0)), Lift(5, False), form, 1e-6)
    assert target.lift.token_scale == LONG_TOKENS
    assert target.coarseness < 1e-14
    exact, _ = lifted(form, 5, False)
    assert exact.lift.token_scale == 1


def test_noise_that_hides_all_kinks_is_refused():
    form = random_form(np.random.default_rng(0), 6, 9)
    steps = TargetLift(5, True)
    with pytest.raises(us.NotIdentifiable, match="noise"):
        answered(steps.run(np.random.default_rng(0)), Lift(5, True), form, 1.0)


def test_an_affine_target_behind_noise_has_no_neurons_to_sum_over():
    ends = []
    for seed in range(10):
        v = np.random.default_rng(seed).standard_normal(2)
        noisy = us.oracles.noisy(lambda X, v=v: X[:, -1] @ v + 0.5, 1e-4, seed)
        try:
            recovery = us.learn(noisy, us.learners.ReluNetworkLearner(2))
        except us.NotIdentifiable:
            ends.append("refused")
        else:
            x = np.random.default_rng(99).standard_normal((20, 2))
            assert np.allclose(recovery.model(x), x @ v + 0.5, atol=1e-2)
            ends.append("recovered")
    assert "recovered" in ends


# -- fresh points


@pytest.mark.parametrize("biases", [True, False])
def test_fresh_points_see_a_missing_neuron_and_nothing_else(biases):
    rng, lift = np.random.default_rng(0), Lift(6, biases)
    form = random_form(rng, lift.D, 10)
    without = replace(form, a=form.a[1:], eps=form.eps[1:], error=form.error[1:])
    x = fresh_tokens(lift, 40, rng)
    right, _ = answered(look(lift, form, x), lift, form)
    wrong, _ = answered(look(lift, without, x), lift, form)
    assert right.share < 1e-14
    assert wrong.share > 1e-2


def test_misses_far_out_count_little_if_there_are_neurons():
    lift = Lift(2, True, length=2.0)
    x = np.array([[1.0, 1.0], [1e4, 0.0]])
    assert np.array_equal(weights_of(lift, x, 3), [1.0, FAR_SHARE])
    assert np.array_equal(weights_of(lift, x, 0), [1.0, 1.0])
    assert np.array_equal(weights_of(Lift(2, False), x, 3), [1.0, 1.0])


@pytest.mark.parametrize(
    ("deviation", "size", "limit"),
    [(0.0, 1.0, 4e-10), (1e-8, 1.0, 2e-6), (1.0, 1.0, 1e-3), (1.0, 0.0, 4e-10)],
)
def test_what_is_accepted_grows_with_the_noise_up_to_a_thousandth(deviation, size, limit):
    noise = NoiseLevel(deviation, deviation, size)
    assert accepted_error(noise, size) == pytest.approx(limit)


# -- wide cells


def walked(rng, D=6, K=9, biases=True):
    lift = Lift(D - biases, biases)
    form = random_form(rng, D, K)
    return lift, form, WalkedForm.along(form, Circle.random(lift, rng))


@pytest.mark.parametrize("biases", [True, False])
def test_a_walk_knows_who_is_active_in_each_cell(biases):
    _, form, state = walked(np.random.default_rng(0), biases=biases)
    walk = state
    cells = np.arange(len(walk.middle))
    active = walk.circle.at(walk.middle) @ form.a.T > 0
    assert np.array_equal(walk.sides(cells) > 0, active)


@pytest.mark.parametrize("biases", [True, False])
def test_neurons_that_are_off_are_corrected_where_cells_are_wide(biases, trials):
    for seed in range(trials(2, 50)):
        rng = np.random.default_rng(seed)
        lift, form, _ = walked(rng, biases=biases)
        wrong = replace(
            form,
            g0=form.g0 + 1e-6 * rng.standard_normal(6),
            a=form.a + 1e-6 * rng.standard_normal(form.a.shape),
            error=np.full(9, 3e-6),
            g_error=3e-6,
        )
        state = WalkedForm.along(wrong, Circle.random(lift, rng))
        every = np.arange(10)
        steps = state.measured(every, 1e-15)
        state, queries = answered(steps, lift, form)
        assert queries % 6 == 0
        better = state.corrected().form
        known = better.error < 1e-6
        # cells that are thin everywhere are left out
        assert np.mean(known) > 0.5
        off = np.linalg.norm(better.a - form.a, axis=1)
        assert np.all(off[known] <= 10 * better.error[known] + 1e-13)
        assert better.g_error < 1e-10


def test_what_was_corrected_is_not_corrected_again():
    rng = np.random.default_rng(0)
    lift, form, _ = walked(rng, biases=False)
    wrong = replace(form, a=form.a + 1e-6, error=np.full(9, 3e-6), g_error=1e-5)
    state = WalkedForm.along(wrong, Circle.random(lift, rng))
    state, _ = answered(state.measured(np.arange(10), 1e-15), lift, form)
    once = state.corrected()
    twice = once.corrected()
    assert np.max(np.abs(once.form.a - wrong.a)) > 1e-7
    assert np.allclose(twice.form.a, once.form.a, rtol=0, atol=1e-12)
    assert np.allclose(twice.form.g0, once.form.g0, rtol=0, atol=1e-12)


def test_only_touched_neurons_are_corrected():
    rng = np.random.default_rng(0)
    lift, form, _ = walked(rng)
    wrong = replace(form, a=form.a + 1e-6, error=np.full(9, 3e-6))
    state = WalkedForm.along(wrong, Circle.random(lift, rng))
    state, _ = answered(state.measured(np.arange(10), 1e-15), lift, form)
    touched = np.arange(9) == 4
    after = state.corrected(touched).form
    assert np.array_equal(after.a[~touched], wrong.a[~touched])


def test_nothing_is_asked_of_no_cells():
    lift, form, state = walked(np.random.default_rng(0))
    same, queries = answered(state.measured(np.zeros(0, dtype=int), 1e-15), lift, form)
    assert same is state
    assert queries == 0


# -- networks


def test_neurons_that_are_nothing_but_error_are_pruned():
    form = PiecewiseLinear(
        np.zeros(2),
        np.diag([1.0, 1.0, 1e-9, 1e-9])[:, :2] + np.array([[0, 0], [0, 0], [1e-9, 0], [1e-3, 0]]),
        np.ones(4),
        np.array([1e-12, 1e-12, 1e-9, 1e-12]),
    )
    kept, touched = pruned(form, np.array([False, True, True, False]))
    assert len(kept) == 3
    assert np.array_equal(touched, [False, True, False])


@pytest.mark.parametrize("biases", [True, False])
def test_a_form_as_a_network_is_the_same_function(biases):
    rng, lift = np.random.default_rng(0), Lift(4, biases, length=2.0 if biases else 1.0)
    form = random_form(rng, lift.D, 7)
    model, x = network_of(form, lift), rng.standard_normal((20, 4))
    assert model.A.shape == (4, 9)  # the linear part takes two
    Y = np.column_stack([x / 2.0, np.ones(20)]) if biases else x
    assert np.allclose(model(x), form(Y), rtol=0, atol=1e-13)


def test_the_search_finds_a_form_that_fresh_points_confirm():
    rng, lift = np.random.default_rng(0), Lift(8, True)
    form = random_form(rng, 9, 12)
    target, _ = lifted(form, 8, True)
    search = NetworkSearch(target, 100, False, np.random.default_rng(1))
    found, _ = answered(search.run(), lift, form)
    assert len(found) == 12


def test_where_every_error_is_refused_the_search_ends_after_its_sweeps(monkeypatch):
    rng, lift = np.random.default_rng(0), Lift(4, True)
    form = random_form(rng, 5, 6)
    target, _ = lifted(form, 4, True)
    monkeypatch.setattr(lifted_target, "ACCEPTED", 0.0)
    monkeypatch.setattr(lifted_target, "COARSE", 0.0)
    monkeypatch.setattr(network_search, "SWEEPS", 2)
    search = NetworkSearch(target, 100, False, np.random.default_rng(1))
    with pytest.raises(us.ModelMismatch, match="After 2 sweeps a network of 6 neurons"):
        answered(search.run(), lift, form)


def test_errors_of_what_is_known_are_no_structure():
    rng, lift = np.random.default_rng(0), Lift(8, True)
    form = random_form(rng, 9, 12, error=1e-6)
    target, _ = lifted(form, 8, True)
    search = NetworkSearch(target, 100, False, rng)
    circle = Circle.random(lift, rng)
    assert search.sweep(circle, form).noise.search == form.spread > target.noise.search
    assert search.sweep(circle, None).noise.search == target.noise.search


def test_a_neuron_smaller_than_its_error_is_left_out_and_its_error_kept():
    form = random_form(np.random.default_rng(0), 4, 5, error=1e-9)
    form.a[2] *= 1e-10 / np.linalg.norm(form.a[2])
    cleared = form.cleared
    assert len(cleared) == 4
    assert cleared.g_error + cleared.error.sum() == pytest.approx(form.g_error + form.error.sum())
    Y = np.random.default_rng(1).standard_normal((50, 4))
    Y /= np.linalg.norm(Y, axis=1, keepdims=True)
    assert np.all(np.abs(cleared(Y) - form(Y)) <= cleared.g_error)


# -- claims


def claimed(off, checks=32, error=1e-13, noise=1e-15):
    """Claim a form, and answer the hold-out by ``off`` times what is claimed away from it."""
    rng, lift = np.random.default_rng(0), Lift(5, True)
    form = random_form(rng, 6, 8, error=error)
    target = LiftedTarget(lift, Circle.none(lift), NoiseLevel(noise, noise, 1.0))
    claim = NetworkClaim.of(target, SplitForm.of(lift, form))
    size = float(np.linalg.norm(form.g0) + form.sizes.sum())
    away = off * (claim.bound + float(claim.precision.error(np.array(size), np.zeros(1))[0]))

    class Away:
        def __call__(self, Y):
            return form(Y) + away * np.linalg.norm(Y, axis=1)

    found, queries = answered(claim.tested(checks, rng), lift, Away())
    assert queries == checks
    return claim, found


def test_a_network_that_is_as_precise_as_claimed_passes():
    claim, found = claimed(0.11)
    assert found.evidence.passed
    assert found.certificate.errors["constant"] == claim.bound
    assert found.evidence.max_residual > 0


def test_a_certificate_is_at_least_eight_times_what_was_missed():
    claim, found = claimed(1.5)
    assert found.evidence.passed
    size = np.linalg.norm(claim.form.g0) + claim.form.sizes.sum()
    own = float(claim.precision.error(size))
    beyond = 1.5 * (claim.bound + own) - own  # answers have errors of their own
    assert found.certificate.errors["constant"] == pytest.approx(8 * beyond, rel=1e-2)
    assert any("errors are taken as" in sentence for sentence in found.certificate.assumes)


def test_a_network_missed_beyond_what_is_accepted_is_refused():
    with pytest.raises(us.ModelMismatch, match="misses fresh answers"):
        claimed(1e7)
    # whatever its certificate allows
    with pytest.raises(us.ModelMismatch, match="misses fresh answers"):
        claimed(0.9, error=1e-5)


def test_without_a_hold_out_a_claim_is_no_evidence():
    claim, found = claimed(1e7, checks=0)
    assert not found.evidence.passed
    assert found.certificate.errors["constant"] == claim.bound
    assert "Nothing was checked." in found.certificate.assumes


def test_labels_that_are_all_one_are_no_network():
    rng, lift = np.random.default_rng(0), Lift(5, True)
    target = LiftedTarget(lift, Circle.none(lift), NoiseLevel(1e-15, 1e-15, 1.0))
    form = random_form(rng, 6, 8)
    claim = NetworkClaim.of(target, SplitForm.of(lift, form))
    steps = claim.tested(16, rng)
    [part] = next(steps)
    with pytest.raises(us.ModelMismatch, match="labels"):
        steps.send([np.ones(len(part))])


def test_a_neuron_that_no_fresh_token_makes_active_is_no_label():
    rng, lift = np.random.default_rng(0), Lift(2, True)
    target = LiftedTarget(lift, Circle.none(lift), NoiseLevel(1e-15, 1e-15, 1.0))
    far = PiecewiseLinear(
        np.array([0.0, 0.0, 0.3]), np.array([[1.0, 0.0, -1e9]]), np.ones(1), np.zeros(1)
    )
    claim = NetworkClaim.of(target, SplitForm.of(lift, far))
    steps = claim.tested(8, rng)
    [part] = next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send([np.full(len(part), 0.3)])
    assert ended.value.value.evidence.passed
