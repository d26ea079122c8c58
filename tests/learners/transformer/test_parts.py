"""Parts of the learner of a Transformer: its attention, its hold-out, answers to logits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

import unsoftmax as us
from tests.networks import network
from tests.truth import driven
from unsoftmax.learners.transformer import (
    attention_recovery,
    hold_out,
    learned_network,
    transformer_learner,
)
from unsoftmax.learners.transformer.attention_recovery import (
    AssumedAttention,
    RecoveredAttention,
    recover_attention,
)
from unsoftmax.learners.transformer.hold_out import HeadsBeforeNetwork, TransformerHoldOut
from unsoftmax.learners.transformer.learned_network import (
    AnsweredSegments,
    LearnedNetwork,
    logits_of,
    pooled_positions,
)
from unsoftmax.measure.precision import Precision
from unsoftmax.probes import Sequences
from unsoftmax.protocol import Certificate, Evidence, Found
from unsoftmax.validate.judge import judge


def known(g):
    return LearnedNetwork(g, 0.0, 0.0, Precision())


def recovered(model, assumed, anchored=False, seed=0):
    rng = np.random.default_rng(seed)
    steps = recover_attention(known(model.network), assumed, anchored, rng)
    return driven(steps, model)


def test_w_is_read_elsewhere_where_the_network_is_flat_at_0(monkeypatch):
    rng = np.random.default_rng(3)
    A = rng.standard_normal((4, 2))
    g = us.ReluNetwork(A, np.ones(2), -30 * np.linalg.norm(A, axis=0), 0.3)
    model = us.Transformer(rng.standard_normal((4, 4)) / 30, g, rng.standard_normal(4) / 30)
    found, _ = recovered(model, AssumedAttention(4, None, True), anchored=True)
    assert np.linalg.norm(found.model.w - model.w) <= found.w_error <= 1e-6
    monkeypatch.setattr(attention_recovery, "PLACES", (0.0,))
    with pytest.raises(us.NotIdentifiable, match="flat, or turns"):
        recovered(model, AssumedAttention(4, None, True), anchored=True)


# -- the end of a Transformer's learner: sequences that tell, and what their answers may be off by


COARSE = Precision(relative=1e-7)


def model_of(seed, d=5, m=8):
    rng = np.random.default_rng(seed)
    return us.Transformer(rng.standard_normal((d, d)), network("random", d, m, seed))


def near(model, W_off, rng):
    """Return the same Transformer with a W that is off by so much in Frobenius norm."""
    off = rng.standard_normal(model.W.shape)
    return us.Transformer(model.W + W_off * off / np.linalg.norm(off), model.network, model.w)


def sequences(model, count=24, seed=0):
    learned = LearnedNetwork(model.network, 1e-15, 1e-15, Precision())
    found = HeadsBeforeNetwork.of(model, learned, {"W": 0.0, "w": 0.0})
    return found.short(count, np.random.default_rng(seed))


def judged(model, target, W_error, precision=COARSE, **bounds):
    learned = LearnedNetwork(model.network, 1e-12, 1e-12, precision)
    errors = {"constant": 1e-12, "slope": 1e-12, "W": W_error, "w": 0.0, **bounds}
    answered = [(part.X, target(part.X)) for part in sequences(target)]
    return judge(HeadsBeforeNetwork.of(model, learned, errors).residuals(answered), 24)


@pytest.mark.parametrize("W_error", [1e-9, 1e-7, 1e-5])
def test_a_model_within_its_bounds_passes_and_one_beyond_does_not(W_error, trials):
    """Fresh answers see W's error to within the looseness of first-order bounds.

    Of 60 models a thousand times beyond their bounds 57 or more are refused at each size.
    """
    refused = 0
    for seed in range(trials(2, 60)):
        rng = np.random.default_rng(seed)
        target = model_of(seed)
        exact = Precision(unit=2.0**-53)
        assert judged(near(target, W_error, rng), target, W_error).evidence.passed
        assert judged(target, target, W_error, exact).evidence.passed
        refused += judged(near(target, 1e3 * W_error, rng), target, W_error).refuses
    assert refused >= 0.95 * trials(2, 60) - trials(1, 0)


def test_exact_answers_are_not_excused_by_loose_bounds(monkeypatch):
    """A certificate of 1 % would let a W pass that is off by 1e-3: exact answers do not."""
    rng = np.random.default_rng(0)
    target = model_of(0)
    wrong = near(target, 1e-3, rng)
    assert judged(wrong, target, 1e-2, Precision()).refuses
    monkeypatch.setattr(hold_out, "MOST_OF_SPREAD", 1.0)
    assert not judged(wrong, target, 1e-2, Precision()).refuses


@pytest.mark.parametrize(
    ("W_off", "W_error", "refusal", "said"),
    [
        (0.0, 1e9, us.NotIdentifiable, "too coarse"),
        (1.0, 1e-6, us.ModelMismatch, "misses fresh answers"),
    ],
)
def test_the_end_says_why_it_refuses(W_off, W_error, refusal, said):
    target = model_of(3)
    learned = LearnedNetwork(target.network, 1e-12, 1e-12, COARSE)
    certificate = Certificate({"constant": 1e-12, "slope": 1e-12}, ())
    network = Found(target.network, certificate, Evidence.of(0, np.zeros(0), np.zeros(0)))
    model = near(target, W_off, np.random.default_rng(0))
    attention = RecoveredAttention(model, W_error, 0.0)
    parts = transformer_learner.TransformerParts(
        attention, learned, network, AssumedAttention(5, None, False)
    )
    opening = Sequences(np.zeros((0, 3, 5)), phase="opening", purpose="check")
    held = TransformerHoldOut(opening, np.zeros(0), np.zeros(0), 16, 16)
    steps = transformer_learner.conclude_transformer(parts, held, np.random.default_rng(0))
    with pytest.raises(refusal, match=said):
        driven(steps, target)


@pytest.mark.parametrize(
    ("answer", "refusal"), [(2.0, us.NotIdentifiable), (2.0 + 1e-6, us.ModelMismatch)]
)
def test_a_constant_network_leaves_W_free_or_is_contradicted(answer, refusal):
    constant = us.ReluNetwork(np.zeros((3, 0)), [], None, 2.0)
    nothing = Evidence.of(0, np.zeros(0), np.zeros(0))
    found = Found(constant, Certificate({"constant": 1e-9, "slope": 0.0}, ()), nothing)
    with pytest.raises(refusal, match=r"constant|Single tokens"):
        transformer_learner.learned_network(found, Precision(), np.full(4, answer))


def test_closing_sequences_are_those_that_depend_on_the_attention(monkeypatch):
    """Behind a network that is constant up to distance 30 most sequences tell nothing."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((5, 2))
    g = us.ReluNetwork(A, np.ones(2), -30 * np.linalg.norm(A, axis=0), 0.3)
    target = us.Transformer(rng.standard_normal((5, 5)), g)

    def telling():
        families = sequences(target, 48)
        moved = [np.abs(target(p.X) - g(p.X.mean(axis=1))) > 1e-6 for p in families]
        return float(np.mean(np.concatenate(moved)))

    assert telling() > 0.9
    monkeypatch.setattr(hold_out, "TRIED", 1)
    assert telling() < 0.75


# -- answers → places of pooled tokens → logits: errors in, errors out, within the bounds


def exact(network, absolute=0.0):
    """A network without error; answers off by round-off, and by ``absolute``."""
    return LearnedNetwork(network, 0.0, 0.0, Precision(absolute=absolute))


def monotone(seed, d, m):
    """A network that is steep along every direction with positive entries: slope 1 to 3."""
    rng = np.random.default_rng([seed, d, m])
    A = np.abs(rng.standard_normal((d, m))) + 1e-3
    A /= A.sum(axis=0)
    line = np.full(d, 1 / d)
    b = 0.3 * rng.standard_normal(m)
    w_o = rng.uniform(0, 2, m) / max(m, 1)
    return us.ReluNetwork(np.column_stack([A, line, -line]), [*w_o, 1, -1], [*b, 0, 0], 0.4)


def disturbed(network, constant, slope, rng):
    """A learned network that is off by constant + slope·‖x‖, or nearly, but no more."""
    d = network.dim
    direction = rng.standard_normal(d)
    direction *= slope / np.linalg.norm(direction)
    wrong = us.ReluNetwork(
        np.column_stack([network.A, direction]),
        [*network.w_o, rng.choice([-1.0, 1.0])],
        [*network.b, 0.0],
        network.c + constant * rng.choice([-1.0, 1.0]),
    )
    return LearnedNetwork(wrong, constant, slope, Precision())


def segments(rng, n, d):
    """Query tokens and offsets with positive entries, of length about 1."""
    a = np.abs(rng.standard_normal((n, d))) + 0.1
    return rng.standard_normal((n, d)), a / np.linalg.norm(a, axis=1, keepdims=True)


def answered(network, x, a, sigma, off=0.0, at_start=0.0):
    """Answers of a network where pooled tokens lie at σ, off by ``off``; no anchors."""
    n = len(x)
    y = network(x + sigma[:, None] * a) + off
    return AnsweredSegments(
        x, a, y, np.broadcast_to(at_start, (n,)).copy(), *np.full((2, n), np.nan)
    )


CASES = {"seed": st.integers(0, 9999), "d": st.integers(1, 5), "m": st.integers(0, 9)}


def drawn(seed, d, m, n=6):
    rng = np.random.default_rng([seed, 1])
    network = monotone(seed, d, m)
    x, a = segments(rng, n, d)
    return network, x, a, rng.uniform(0.02, 0.98, n), rng


@given(**CASES, exponent=st.integers(-12, -3))
def test_errors_of_answers(seed, d, m, exponent):
    network, x, a, sigma, rng = drawn(seed, d, m)
    eta = 10.0**exponent
    off = eta * rng.choice([-1.0, 1.0, 0.3], len(x))
    learned = exact(network, eta)
    found, bound = pooled_positions(learned, answered(network, x, a, sigma, off))
    assert np.all(np.abs(found - sigma) <= bound)
    # slopes along segments of length 1 are 1/√d or more
    assert bound.max() <= 2 * np.sqrt(d) * eta * 10


@given(**CASES, exponent=st.integers(-12, -4))
def test_errors_of_the_network(seed, d, m, exponent):
    """ĝ is off by constant + slope·‖x‖, by nearly as much at many points.

    The bound is to first order: it divides by ĝ's smallest slope, not g's.
    """
    network, x, a, sigma, rng = drawn(seed, d, m)
    small = 10.0**exponent
    learned, second_order = disturbed(network, small, small, rng), 1 + 4 * np.sqrt(d) * small
    segment = answered(network, x, a, sigma)
    found, bound = pooled_positions(learned, segment)
    assert np.all(np.abs(found - sigma) <= second_order * bound)
    at_start = network(x) - learned.network(x)
    found, bound = pooled_positions(learned, replace(segment, at_start=at_start))
    assert np.all(np.abs(found - sigma) <= second_order * bound)


def test_g_at_the_query_token_takes_off_a_constant_error():
    network, x, a, sigma, rng = drawn(3, 4, 6)
    learned = disturbed(network, 1e-4, 0.0, rng)
    segment = answered(network, x, a, sigma)
    plain, _ = pooled_positions(learned, segment)
    corrected, _ = pooled_positions(
        learned, replace(segment, at_start=network(x) - learned.network(x))
    )
    assert np.abs(plain - sigma).min() > 1e-5
    assert np.abs(corrected - sigma).max() < 1e-14


@given(**CASES, exponent=st.integers(-9, -5))
def test_anchors_leave_an_error_of_second_order(seed, d, m, exponent):
    network, x, a, sigma, rng = drawn(seed, d, m)
    small = 10.0**exponent
    learned = disturbed(network, small, small, rng)
    segment = answered(network, x, a, sigma)
    first, first_bound = pooled_positions(learned, segment)
    at = x + first[:, None] * a
    anchored = replace(segment, anchor=first, at_anchor=network(at) - learned.network(at))
    found, bound = pooled_positions(learned, anchored)
    # ĝ's slopes are right to 1e-3 as the tuning says: the added neuron has slope 1e-5 at most
    assert np.all(np.abs(found - sigma) <= bound)
    # a kink beside the anchor: the correction itself is the bound
    assert np.all(bound <= np.maximum(1e-13 + 2e-3 * first_bound, 30 * np.abs(found - first)))


@pytest.mark.parametrize("flat", [1e-2, 1e-5, 1e-8])
def test_nearly_flat_pieces_cost_as_much_as_they_are_flat(flat):
    """Slope 1, then ``flat``: the bound follows the smallest slope."""
    network = us.ReluNetwork([[1.0, -1.0, 1.0]], [1.0, -1.0, flat - 1.0], [0.0, 0.0, -0.5])
    x, a, eta = np.zeros((2, 1)), np.ones((2, 1)), 1e-12
    sigma = np.array([0.25, 0.75])
    segment = answered(network, x, a, sigma, np.array([eta, -eta]))
    found, bound = pooled_positions(exact(network, eta), segment)
    assert np.all(np.abs(found - sigma) <= bound)
    assert np.all(bound >= eta / flat)
    assert np.all(bound <= 1e-15 + 3 * eta / flat)


# -- from σ to logits


@given(t=st.floats(-12, 12), exponent=st.floats(-15, 0), sign=st.sampled_from((-1.0, 1.0, 0.5)))
def test_errors_of_logits(t, exponent, sign):
    bound = np.array([10.0**exponent])
    sigma = np.clip(expit(np.array([t])) + sign * bound, 0.0, 1.0)
    read = logits_of(sigma, bound)
    if np.isfinite(read.error[0]):
        rounding = 4e-16 / min(sigma[0], 1 - sigma[0])
        assert abs(read.value[0] - t) <= read.error[0] + 1e-15 * abs(t) + rounding
    else:
        assert min(sigma[0], 1 - sigma[0]) <= bound[0]


@pytest.mark.parametrize("sigma", [-1e-3, 1 + 1e-3])
def test_what_no_attention_weights_give_is_refused(sigma, monkeypatch):
    at = np.array([0.5, sigma])
    with pytest.raises(us.ModelMismatch, match="attention weights"):
        logits_of(at, np.array([1e-6, 1e-6]))
    # within three times its error it is rounding
    logits_of(at, np.array([1e-6, 4e-4]))
    monkeypatch.setattr(learned_network, "OUTSIDE_ROUNDING", 1e-2)
    logits_of(at, np.array([1e-6, 1e-6]))
