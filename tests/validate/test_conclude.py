"""The one conclusion of layers, driven by hand: what it asks, believes, widens and refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.errors import ModelMismatch, OracleError
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.validate.conclude import WITH_EPS, Conclusion, LayerSequences, Said
from unsoftmax.validate.drawn_models import DRAWN, SAFETY, DrawnModels, layers_apart
from unsoftmax.validate.long_sequences import length_for

OFF = 1e-9
"""How far the models of these tests are from their targets, relatively."""


def plain(rng, off=0.0, other=None):
    """A layer of two heads; or a copy of one whose arrays are off."""
    if other is None:
        M, W = rng.standard_normal((2, 2, 5, 5)) / 2
        heads = [us.LayerHead(*pair) for pair in zip(M, W, strict=True)]
        return us.AttentionLayer(heads, rng.standard_normal(5))
    heads = [us.LayerHead(moved(h.M, off, rng), moved(h.W, off, rng)) for h in other.heads]
    return us.AttentionLayer(heads, moved(other.c, off, rng), norm=other.norm)


def behind(rng, off=0.0, other=None):
    """The same behind a LayerNorm."""
    own = plain(rng, off, other)
    norm = us.LayerNorm(np.array([1.0, -2.0, 1e-3, 1.0, 3.0]), np.arange(5.0), 1e-3)
    return us.AttentionLayer(own.heads, own.c, norm=norm)


def turning(rng, off=0.0, other=None):
    """A layer of two heads with positions."""
    if other is None:
        arrays = [rng.standard_normal(s) / 2 for s in ((2, 5, 4), (1, 4, 5), (1, 4, 5), (2, 4, 5))]
        c = rng.standard_normal(5)
    else:
        own = (other.O, other.V, other.K, other.Q)
        arrays, c = [moved(x, off, rng) for x in own], other.c
    O, V, K, Q = arrays  # noqa: E741 - the projections' own names
    return us.AttentionLayer.from_factors(O, V, K, Q, c, rotary=us.Rotary([1.0, 0.1]))


KINDS = {"plain": plain, "behind a norm": behind, "with positions": turning}


def moved(x, off, rng):
    return x + off * np.linalg.norm(x) * rng.standard_normal(x.shape) / np.sqrt(x.size)


def concluding(kind, target, rng, off=OFF):
    """Conclude on a model that is off by as much as its drawn ones are."""
    make = KINDS[kind]
    model = make(rng, off, target)
    drawn = DrawnModels(model, [make(rng, off, model) for _ in range(DRAWN)], AnswerNoise(1e-15))
    fresh = LayerSequences(model, rng, by_distance=kind == "with positions")
    return Conclusion(drawn, fresh, Said("layer", "anything else"))


def driven(steps, answer):
    """Answer rounds until the generator ends; OracleErrors are thrown in."""
    asked = []
    try:
        round_ = next(steps)
        while True:
            asked.append(round_)
            try:
                answers = [answer(part[:]) for part in round_]
            except OracleError as error:
                round_ = steps.throw(error)
            else:
                round_ = steps.send(answers)
    except StopIteration as end:
        return asked, end.value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checks", [4, 9, 32])
def test_a_model_within_its_errors_is_believed_and_its_bounds_hold(kind, checks, trials):
    for seed in range(trials(2, 20)):
        rng = np.random.default_rng(seed)
        target = KINDS[kind](rng)
        conclusion = concluding(kind, target, rng)
        driven(conclusion.confirmed(), target)
        asked, found = driven(conclusion.run(checks), target)
        assert found.evidence.passed
        assert found.evidence.queries == checks == sum(len(part) for r in asked for part in r)
        far = layers_apart(found.model, target)
        assert all(far[name] <= found.certificate.errors[name] for name in far)
        assert found.certificate.errors["W"] <= 100 * SAFETY * max(far["W"], OFF)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_off_by_more_than_its_errors_is_refused(kind):
    rng = np.random.default_rng(0)
    target = KINDS[kind](rng)
    conclusion = concluding(kind, target, rng)
    wrong = KINDS[kind](rng, 1e-3, conclusion.drawn.model)
    with pytest.raises(ModelMismatch, match=r"misses fresh answers.*no layer"):
        driven(conclusion.run(16), wrong)
    with pytest.raises(ModelMismatch, match="misses fresh answers"):
        driven(conclusion.confirmed(), wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_grow_with_what_fresh_answers_are_missed_by(kind):
    rng = np.random.default_rng(5)
    target = KINDS[kind](rng)
    conclusion = concluding(kind, target, rng)
    off = KINDS[kind](rng, 5 * OFF, conclusion.drawn.model)
    _, found = driven(conclusion.run(32), off)
    assert any("missed by more than usual" in line for line in found.certificate.assumes)
    assert found.certificate.errors["W"] > 1.1 * conclusion.drawn.errors()["W"]


def test_without_checks_nothing_is_asked_and_that_is_said():
    rng = np.random.default_rng(2)
    conclusion = concluding("plain", plain(rng), rng)
    asked, found = driven(conclusion.run(0), None)
    assert not asked
    assert "Nothing was checked." in found.certificate.assumes
    assert not found.evidence.passed


def test_a_target_with_a_longest_sequence_is_believed_that_far():
    rng = np.random.default_rng(3)
    target = plain(rng)

    def answer(X):
        if X.shape[1] > 100:
            raise OracleError("too long")
        return target(X)

    _, found = driven(concluding("plain", target, rng).run(32), answer)
    assert found.evidence.passed
    assert any("did not answer those of 512 tokens" in line for line in found.certificate.assumes)


def test_eps_of_a_norm_behind_is_seen():
    """One token of a hold-out has about the variance eps: another eps is refused."""
    rng = np.random.default_rng(4)
    target = behind(rng)
    norm = us.LayerNorm(target.norm.scale, target.norm.shift, 2 * target.norm.eps)
    other = us.AttentionLayer(target.heads, target.c, norm=norm)
    with pytest.raises(ModelMismatch):
        driven(concluding("behind a norm", target, rng).run(WITH_EPS), other)


@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from([*KINDS]),
    logits=st.sampled_from([0.1, 2.0, 30.0]),
    size=st.floats(-8, 8),
)
def test_logits_have_the_size_wanted(seed, kind, logits, size):
    rng = np.random.default_rng(seed)
    model = KINDS[kind](rng)
    X = 10.0**size * rng.standard_normal((9, 5))
    scores = model.scored(length_for(model, X, logits) * X[None])[0]
    rms = np.sqrt(np.mean((scores - scores[:, -1:]) ** 2, axis=1)).max()
    assert abs(np.log2(rms / logits)) < 0.3


def test_tokens_stay_within_a_radius_and_are_float32_numbers():
    rng = np.random.default_rng(5)
    fresh = LayerSequences(plain(rng), rng, radius=0.5)
    short, rounds = fresh.holdout(32, tells=lambda X: True)
    for part in [*short, *(part for one in rounds for part in one)]:
        assert np.linalg.norm(part[:], axis=2).max() <= 0.5 * (1 + 1e-6)
        assert np.array_equal(part[:], part[:].astype(np.float32))
