"""Fresh sequences, corrections and certificates of heads that are given, right or wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.by_hand import driven
from tests.learners.multi_head.synthetic import Scene
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi_head import newton_correction
from unsoftmax.learners.multi_head.heads_conclusion import (
    RecoveredHeads,
    concluded,
    fresh_residuals,
    predicting,
)
from unsoftmax.learners.multi_head.newton_correction import corrected, polished, token_frame
from unsoftmax.learners.multi_head.token_search import bound_unseen_logits
from unsoftmax.models import MultiHead


def recovered(scene, off=0.0, claimed=1e-12, **more):
    """The scene's heads, W off by ``off`` and said to be by ``claimed``."""
    model, shape = scene.model, scene.model.W.shape
    step = scene.rng.standard_normal(shape)
    step *= off / np.linalg.norm(step, axis=(1, 2), keepdims=True)
    errors = {name: np.full(model.H, claimed) for name in "Wv"}
    errors["w"] = np.zeros(model.H)
    found = MultiHead(model.W + step, model.v, model.w, model.c)
    return RecoveredHeads(found, errors, scene.length, **more)


def fresh(found, scene, count=24, function=None, purpose="pilot"):
    steps = fresh_residuals(found, scene.reduced, count, scene.rng, purpose)
    return driven(steps, function or scene.model)


@pytest.mark.parametrize("off", [0.0, 1e-12, 1e-9])
def test_right_heads_miss_by_less_than_their_errors_explain(off):
    scene = Scene.random(3, 6)
    residuals, asked = fresh(recovered(scene, off, claimed=max(off, 1e-14)), scene)
    assert asked == 24
    assert np.all(residuals.missed <= residuals.allowed)
    assert np.all(residuals.allowed <= residuals.explained)


@pytest.mark.parametrize("off", [1e-7, 1e-3, 1.0])
def test_wrong_heads_miss_by_more(off):
    scene = Scene.random(3, 6)
    residuals, _ = fresh(recovered(scene, off), scene)
    assert np.any(residuals.missed > residuals.allowed)


def test_errors_that_explain_much_confirm_no_more_than_a_share():
    scene = Scene.random(3, 6)
    residuals, _ = fresh(recovered(scene, 1e-3, claimed=1e-3), scene)
    assert np.all(residuals.missed <= residuals.explained)
    assert np.all(residuals.allowed <= 1.001e-6)
    assert np.any(residuals.missed > residuals.allowed)


def test_nothing_is_asked_of_no_sequences():
    scene = Scene.random(2, 4)
    residuals, asked = fresh(recovered(scene), scene, count=0)
    assert asked == 0
    assert not len(residuals.missed)
    assert np.all(residuals.missed <= residuals.allowed)


def test_sequences_keep_to_a_radius_and_have_several_sizes():
    scene = Scene.random(3, 6, radius=20.0)
    seen = []

    def answered(X):
        seen.append(X)
        return scene.model(X)

    fresh(recovered(scene), scene, function=answered)
    assert sorted({X.shape[1] for X in seen}) == [3, 4, 5, 6]
    longest = np.concatenate([np.linalg.norm(X, axis=2).max(axis=1) for X in seen])
    assert longest.max() <= 20.0
    repeated = [np.any(np.all(X[:, 0] == X[:, 1], axis=1)) for X in seen]
    assert any(repeated)


def test_the_end_is_a_certificate_or_a_refusal():
    scene = Scene.random(3, 6)

    def end(found, checks=16):
        return driven(concluded(found, scene.reduced, checks, False, scene.rng), scene.model)

    found, asked = end(recovered(scene, 1e-13))
    assert asked == 16
    assert found.evidence.passed
    assert found.certificate.errors["W"] == pytest.approx(12e-12)
    assert found.certificate.errors["c"] == 0
    unchecked, asked = end(recovered(scene), checks=0)
    assert (asked, unchecked.evidence.passed) == (0, False)
    assert "Nothing was checked." in unchecked.certificate.assumes
    with pytest.raises(ModelMismatch, match="misses fresh answers by"):
        end(recovered(scene, 1e-2))


def test_the_end_may_be_a_bound_on_the_function():
    scene = Scene.random(3, 6)

    def end(found, checks=16, share=0.0, function=None):
        steps = predicting(found, share, scene.reduced, checks, scene.rng)
        return driven(steps, function or scene.model)

    found, asked = end(recovered(scene, 1e-7))
    assert asked == 96 + 16
    assert found.evidence.passed
    assert set(found.certificate.errors) == {"constant", "slope"}
    assert found.certificate.errors["slope"] > 0
    assert "Nothing else was checked." in end(recovered(scene), checks=0)[0].certificate.assumes
    with pytest.raises(ModelMismatch, match="predict best miss"):
        end(recovered(scene, 1.0))
    with pytest.raises(ModelMismatch, match="predict best miss"):
        end(recovered(scene), share=0.1)
    asked_before = []

    def changing(X):
        """Another target once the pilots were asked."""
        asked_before.append(len(X))
        return scene.model(X) * (1 if sum(asked_before) <= 96 else 1.5)

    with pytest.raises(ModelMismatch, match="miss fresh ones"):
        end(recovered(scene, 1e-9), function=changing)


# -- corrections


@pytest.mark.parametrize("biases", [False, True])
def test_heads_are_corrected_to_rounding(biases):
    w = np.random.default_rng(1).standard_normal((3, 5)) if biases else None
    drawn = Scene.random(3, 5)
    scene = Scene.of(drawn.model.W, drawn.model.v, w)
    found = recovered(scene, 1e-6, claimed=1e-6)
    found = replace(found, errors={**found.errors, "v": np.full(3, 1e-16)})
    better, asked = driven(corrected(found, scene.reduced, biases, scene.rng), scene.model)
    assert asked == (5 + biases) * (3 * 5 + 4)
    missed = np.linalg.norm(better.model.W - scene.model.W, axis=(1, 2))
    assert np.all(missed < 1e-12)
    assert np.all(missed < 5 * better.errors["W"])
    np.testing.assert_allclose(better.model.w, scene.model.w, atol=1e-12)


def test_what_is_not_corrected_says_why(monkeypatch):
    scene = Scene.random(2, 4)
    found = recovered(scene, low_rank=True)
    same, asked = driven(polished(found, scene.reduced, False, scene.rng), scene.model)
    assert asked == 0
    assert "their rank is low" in same.notes[-1]
    monkeypatch.setattr(newton_correction, "LARGEST", 7)
    same, _ = driven(polished(recovered(scene), scene.reduced, False, scene.rng), scene.model)
    assert "H·d is more than 7" in same.notes[-1]
    monkeypatch.undo()
    precise = recovered(scene, claimed=1e-30)
    same, asked = driven(polished(precise, scene.reduced, False, scene.rng), scene.model)
    assert asked > 0
    assert "gained nothing" in same.notes[-1]
    assert same.model is precise.model


def test_heads_without_logits_are_left_out():
    drawn = Scene.random(2, 4)
    W = drawn.model.W.copy()
    W[1] = 0
    scene = Scene.of(W, drawn.model.v)
    found = recovered(scene)
    nothing = RecoveredHeads(MultiHead(0 * W, drawn.model.v), found.errors, scene.length)
    assert driven(corrected(nothing, scene.reduced, False, scene.rng), scene.model) == (
        None,
        0,
    )
    better, asked = driven(
        corrected(
            replace(found, errors={**found.errors, "W": np.full(2, 1e-5)}),
            scene.reduced,
            False,
            scene.rng,
        ),
        scene.model,
    )
    assert asked == 4 * (4 + 4)
    assert np.all(better.model.W[1] == 0)


def test_query_tokens_of_a_correction_are_evenly_spread():
    rng = np.random.default_rng(0)
    for biases in (False, True):
        P = token_frame(5, biases, rng)
        np.testing.assert_allclose(np.linalg.norm(P, axis=1), 1)
        across = (P @ P.T)[~np.eye(len(P), dtype=bool)]
        np.testing.assert_allclose(across, -0.2 if biases else 0.0, atol=1e-12)
    np.testing.assert_allclose(P.sum(axis=0), 0, atol=1e-12)


# -- what a cap hides, and vagueness


def test_logits_that_are_not_seen_are_bounded():
    v = np.random.default_rng(0).standard_normal((1, 5))
    scene = Scene.of(np.zeros((1, 5, 5)), v, radius=1.0)
    bounds, asked = driven(
        bound_unseen_logits(scene.model, scene.reduced, scene.rng),
        scene.model,
    )
    assert asked == 8
    assert 0 < bounds["W"] < 1e-10
    assert all(np.isfinite(bound) for bound in bounds.values())


def test_vague_heads_are_those_of_large_errors():
    scene = Scene.random(2, 4)
    assert not recovered(scene, claimed=1e-3).vague(0.01)
    assert recovered(scene, claimed=1.0).vague(0.01)
    assert recovered(scene, claimed=1e-3).largest == {"W": 1e-3, "v": 1e-3, "w": 0.0}
