"""The steps of the learner of ReLU networks, each by hand on a function that is known."""

from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.relu_network import lifted_target, network_search
from unsoftmax.learners.relu_network.claims import NetworkClaim
from unsoftmax.learners.relu_network.far_neurons import SplitForm
from unsoftmax.learners.relu_network.lift import Circle, Lift, PiecewiseLinear
from unsoftmax.learners.relu_network.lifted_target import LiftedTarget, NoiseLevel, TargetLift
from unsoftmax.learners.relu_network.network_search import NetworkSearch
from unsoftmax.learners.relu_network.wide_cells import WalkedForm


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


def lifted(form, d, biases, seed=0):
    """Look at the network that a form is, at length scale 1."""
    steps = TargetLift(d, biases)
    return answered(steps.run(np.random.default_rng(seed)), Lift(d, biases), form)


# -- before the search


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


# -- wide cells


def walked(rng, D=6, K=9, biases=True):
    lift = Lift(D - biases, biases)
    form = random_form(rng, D, K)
    return lift, form, WalkedForm.along(form, Circle.random(lift, rng))


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


# -- networks


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
