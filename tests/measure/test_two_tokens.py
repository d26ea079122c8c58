"""The two-token identity under hostile errors: the logit is never further off than it says.

The truth is built from the logit itself, f = βb·v + c + (αa·v)·σ(t), and then every error that
the bound allows is made at its full size: η of the answer, ν of each entry of v, ν_c of c.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

import unsoftmax as us
from unsoftmax.learners.single_head.approximate.passes import read_intervals
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.two_tokens import Gates, TwoTokenAnswers, Vectors
from unsoftmax.probes import Array

ROUNDING = 1e-12
"""Errors are made this large at least, so that the test's own rounding does not matter."""


def values(v, v_error=0.0, c=0.0, c_error=0.0, **precision):
    return Values(v, c, np.broadcast_to(v_error, v.shape), c_error, Precision(**precision))


def exact_answers(v, c, a, b, alpha, beta, logit):
    """f of every (query token, offset) whose logit is given."""
    return beta * (b @ v)[:, None] + c + alpha * (a @ v) * expit(logit)


class Scene:
    """A true v and c, offsets, query tokens, scales, and the logits that the target has."""

    def __init__(self, seed, d, biases):
        rng = np.random.default_rng([seed, d])
        self.v = rng.standard_normal(d)
        self.c = float(rng.standard_normal()) if biases else 0.0
        self.a = rng.standard_normal((6, d))
        self.b = rng.standard_normal((5, d))
        self.alpha: Array = np.exp2(rng.integers(0, 6, (5, 6)))
        self.beta: Array = np.exp2(rng.integers(-6, 1, (5, 6)))
        self.logit = rng.uniform(-9, 9, (5, 6))

    @property
    def answers(self):
        args = (self.a, self.b, self.alpha, self.beta, self.logit)
        return exact_answers(self.v, self.c, *args)

    def vectors(self, estimates):
        rows = Vectors.of(self.a, estimates), Vectors.of(self.b, estimates)
        return rows[0], rows[1].take((slice(None), None))

    def read(self, y, estimates):
        a, b = self.vectors(estimates)
        return TwoTokenAnswers(y, a, b, self.alpha, self.beta, estimates).gates()

    def allowed(self, y, estimates):
        """η: how far the answers y may be from the true ones."""
        a, b = self.vectors(estimates)
        bound = TwoTokenAnswers(y, a, b, self.alpha, self.beta, estimates).answer_error
        return bound - estimates.c_error

    def value_errors(self, nu, rng):
        """Errors of v of full size: along each offset, each query token, and at random."""
        for x in (*self.a, *self.b, *rng.standard_normal((3, len(self.v)))):
            yield nu * np.sign(x)


def worst_answers(scene, estimates, shift):
    """Answers as wrong as they may be, in the direction in which v's and c's errors push."""
    truth = scene.answers
    push = -scene.beta * (scene.b @ shift)[:, None] - (estimates.c - scene.c)
    push = push - expit(scene.logit) * scene.alpha * (scene.a @ shift)
    for sign in (np.sign(push), -np.sign(push), 1.0, -1.0):
        y = truth
        for _ in range(8):  # η may depend on y itself
            y = truth + sign * (1 - 1e-9) * scene.allowed(y, estimates)
        yield y


def assert_within(gates: Gates, logit):
    """Every logit is within its bound, where there is one; a NaN is no logit and has no bound."""
    bound = gates.logit_error
    assert not np.isnan(bound).any()
    finite = np.isfinite(bound)
    assert np.all(np.abs(gates.logit - logit)[finite] <= bound[finite])
    assert np.all(np.isfinite(gates.logit[finite]))
    np.testing.assert_array_equal(finite, gates.margin > 0)


# -- no errors


@given(st.integers(0, 2**32), st.integers(1, 6), st.booleans())
def test_exact_answers_give_the_logit(seed, d, biases):
    scene = Scene(seed, d, biases)
    gates = scene.read(scene.answers, values(scene.v, c=scene.c))
    np.testing.assert_allclose(gates.p, expit(scene.logit), rtol=0, atol=1e-6)
    assert_within(gates, scene.logit)


@pytest.mark.parametrize("t", [-30.0, -20.0, -1e-3, 0.0, 1e-9, 0.5, 20.0, 30.0])
def test_both_ends_of_the_sigmoid_keep_their_digits(t):
    """With b = 0 and t < 0 the answer is p itself; for t > 0 it is q that must not be lost."""
    estimates = values(np.array([1.0]))
    zero = Vectors(np.zeros(1), np.zeros(1), np.zeros(1))
    one = Vectors(np.ones(1), np.zeros(1), np.ones(1))
    y = np.array([expit(t)])
    gates = TwoTokenAnswers(y, one, zero, np.ones(1), np.ones(1), estimates).gates()
    assert abs(gates.logit[0] - t) <= max(1e-15, 2.0**-53 / min(expit(t), expit(-t)))
    assert abs(gates.logit[0] - t) <= gates.logit_error[0]


# -- hostile errors


@pytest.mark.few
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("nu", [0.0, ROUNDING, 1e-6, 1e-3])
@pytest.mark.parametrize(
    "eta",
    [
        {"absolute": ROUNDING},
        {"absolute": 1e-4},
        {"absolute": 0.05},
        {"relative": 2.0**-24},
        {"relative": 1e-2},
        {"unit": 2.0**-24},
        {"unit": 2.0**-11, "relative": 2.0**-8, "absolute": 1e-3},
    ],
    ids=str,
)
def test_the_true_logit_is_within_its_bound(eta, nu, d, biases, trials):
    rng = np.random.default_rng(0)
    bounded = False
    for seed in range(trials(1, 30)):
        scene = Scene(seed, d, biases)
        for shift in scene.value_errors(nu, rng):
            for c_shift in (nu, -nu) if biases else (0.0,):
                c_error = nu if biases else 0.0
                v, c = scene.v + shift, scene.c + c_shift
                estimates = values(v, nu + 1e-15, c, c_error + 1e-15, **eta)
                for y in worst_answers(scene, estimates, shift):
                    gates = scene.read(y, estimates)
                    assert_within(gates, scene.logit)
                    bounded |= bool(np.any(gates.margin > 0))
    assert bounded


def test_the_bound_is_not_far_from_the_worst(trials):
    """At moderate logits a hostile target can do almost all that the bound allows."""
    for nu, eta in itertools.product((0.0, 1e-6), (1e-9, 1e-6)):
        ratios = []
        for seed in range(trials(2, 100)):
            scene = Scene(seed, 3, biases=False)
            scene.logit = np.clip(scene.logit, -2, 2)
            shift = nu * np.sign(scene.a[0])
            estimates = values(scene.v + shift, nu, absolute=eta)
            worst = np.max(
                [
                    np.abs(scene.read(y, estimates).logit - scene.logit)
                    for y in worst_answers(scene, estimates, shift)
                ],
                axis=0,
            )
            ratios.append(scene.read(scene.answers, estimates).logit_error / worst)
        assert 0.99 < np.median(ratios) < 2


@given(st.integers(0, 2**32), st.integers(2, 12), st.sampled_from([1e-3, 1.0, 1e3]))
def test_float64_answers_are_within_their_bound(seed, d, scale):
    """A real head that weighs both tokens alike, t = 0: what it is off by is its own rounding."""
    rng = np.random.default_rng(seed)
    v, a, b = np.round(rng.standard_normal((3, d)) * 2.0**20) / 2.0**20  # so that a + b is exact
    head = us.SingleHead(np.zeros((d, d)), scale * v / 3)
    estimates = values(head.v, 2.0**-53 * np.abs(head.v))
    offset, query = Vectors.of(a[None], estimates), Vectors.of(b[None], estimates)
    one = np.ones(1)
    gates = TwoTokenAnswers(
        head(np.array([[a + b, b]])), offset, query, one, one, estimates
    ).gates()
    assert_within(gates, np.zeros(1))


# -- no bound


@pytest.mark.parametrize(
    ("logit", "why"),
    [(40.0, "p is 1 as far as η tells"), (-40.0, "p is 0"), (800.0, "p is 1 in float64")],
)
def test_saturated_answers_have_no_bound(logit, why):
    scene = Scene(0, 3, biases=False)
    scene.logit = np.full((5, 6), logit)
    gates = scene.read(scene.answers, values(scene.v, absolute=1e-9))
    assert np.all(np.isinf(gates.logit_error)), why
    assert np.all(gates.margin <= 0)


def test_offsets_that_may_be_orthogonal_to_v_have_no_bound():
    scene = Scene(0, 3, biases=False)
    scene.a[2] = np.cross(scene.v, scene.b[0])  # a·v = 0
    scene.a[3] = scene.v / 1e3  # a·v is there, but v's errors could hide it
    estimates = values(scene.v, 0.1 * np.abs(scene.v).max())
    gates = scene.read(scene.answers, estimates)
    room = np.abs(scene.a @ scene.v) - np.abs(scene.a) @ estimates.v_error
    np.testing.assert_array_equal(np.isinf(gates.p_error), np.broadcast_to(room <= 0, (5, 6)))
    assert np.all(np.isinf(gates.logit_error[:, 2]))


def test_answers_outside_the_two_values_have_no_bound():
    """p < 0 or p > 1: no logit gives that, and NaN is not silently trusted."""
    estimates = values(np.array([1.0]))
    zero = Vectors(np.zeros(1), np.zeros(1), np.zeros(1))
    one = Vectors(np.ones(1), np.zeros(1), np.ones(1))
    for y in (-0.5, 1.5):
        gates = TwoTokenAnswers(np.array([y]), one, zero, np.ones(1), np.ones(1), estimates).gates()
        assert np.isnan(gates.logit[0])
        assert np.isinf(gates.logit_error[0])


# -- intervals of logits under every sign of every error: the truth is inside, and not by much


SIGNS = list(itertools.product((-1.0, 1.0), repeat=5))


def read(t, a, b, v, tau, nu, signs, alpha=2.0, beta=0.5, most=np.inf):
    """Read one answer whose errors all have the signs given; d = 4."""
    wrong = v + nu * np.array(signs[:4])
    y = beta * (b @ v) + alpha * (a @ v) * expit(t) + tau * signs[4]
    values = Values(wrong, 0.0, np.full(4, nu), 0.0, Precision(unit=0.0, absolute=tau))
    seen_a, seen_b = (Vectors.of(x[None], values).take(0) for x in (a, b))
    scales = np.array(alpha), np.array(beta)
    return read_intervals(TwoTokenAnswers(np.array(y), seen_a, seen_b, *scales, values), most)


@pytest.mark.parametrize(("tau", "nu"), [(1e-6, 1e-6), (1e-3, 0.0), (1e-2, 1e-2), (0.2, 0.1)])
def test_the_truth_is_inside_whatever_the_signs(tau, nu, trials):
    shares = []
    for seed in range(trials(10, 200)):
        rng = np.random.default_rng(seed)
        a, b, v = rng.standard_normal((3, 4))
        t = rng.uniform(-3, 3)
        far = 0.0
        for signs in SIGNS:
            for most in (np.inf, 3.0):
                found = read(t, a, b, v, tau, nu, signs, most=most)
                assert not found.impossible
                assert found.low - 1e-12 <= t <= found.high + 1e-12
                assert abs(found.logit - t) <= found.error + 1e-12
                assert abs(found.logit) <= most
            far = max(far, abs(found.logit - t))
        shares.append(far / found.error)
    # one combination of signs is as bad as the bound, or nearly
    assert np.median(shares) > (0.4 if tau > 0.1 else 0.7)


def test_an_answer_that_no_logit_gives_is_impossible():
    v, tau = np.ones(4), 1e-3
    for y, most, impossible in (
        (2.0 + 8.0 * expit(0.5), np.inf, False),
        (2.0 + 8.0 + 3e-3, np.inf, True),
        (2.0 - 3e-3, np.inf, True),
        (2.0 + 8.0 * expit(1.0), 0.5, True),
        (2.0 + 8.0 * expit(-1.0), 0.5, True),
        (2.0 + 8.0 * expit(0.5) + 0.9e-3, 0.5, False),
    ):
        values = Values(v, 0.0, np.zeros(4), 0.0, Precision(unit=0.0, absolute=tau))
        seen = Vectors.of(v[None], values).take(0)
        scales = np.array(2.0), np.array(0.5)
        answers = TwoTokenAnswers(np.array(y), seen, seen, *scales, values)
        found = read_intervals(answers, most)
        assert bool(found.impossible) is impossible
        assert np.isfinite(found.logit)
