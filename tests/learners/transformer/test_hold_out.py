"""The end of a Transformer's learner: sequences that tell, and what their answers may be off by."""

import numpy as np
import pytest

import unsoftmax as us
from tests.by_hand import driven
from tests.networks import network
from unsoftmax.learners.transformer import hold_out, transformer_learner
from unsoftmax.learners.transformer.attention_recovery import AssumedAttention, RecoveredAttention
from unsoftmax.learners.transformer.hold_out import HeadsBeforeNetwork, TransformerHoldOut
from unsoftmax.learners.transformer.learned_network import LearnedNetwork
from unsoftmax.measure.precision import Precision
from unsoftmax.probes import Sequences
from unsoftmax.protocol import Certificate, Evidence, Found
from unsoftmax.validate.judge import judge

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
