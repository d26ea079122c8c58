"""Fresh sequences, corrections and certificates of heads that are given, right or wrong."""

import numpy as np
import pytest

from tests.by_hand import driven
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi_head import heads_conclusion, newton_correction
from unsoftmax.learners.multi_head.newton_correction import polished
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers, TokenLengths
from unsoftmax.measure.precision import Precision
from unsoftmax.models import MultiHead


class Scene:
    """Heads, and what single tokens would have told."""

    def __init__(self, heads, dim):
        self.rng = np.random.default_rng([heads, dim, 17])
        W = self.rng.standard_normal((heads, dim, dim)) / np.sqrt(dim)
        self.model = MultiHead(W, self.rng.standard_normal((heads, dim)))
        precision = Precision.relative_to_terms(4e-16)
        scale = float(np.linalg.norm(self.model.v, axis=1).max())
        self.reduced = ReducedAnswers(
            self.model.v.sum(axis=0), 0.0, precision, scale, TokenLengths()
        )


def recovered(scene, off=0.0, claimed=1e-12, **more):
    """The scene's heads, W off by ``off`` and said to be by ``claimed``."""
    model, shape = scene.model, scene.model.W.shape
    step = scene.rng.standard_normal(shape)
    step *= off / np.linalg.norm(step, axis=(1, 2), keepdims=True)
    errors = {name: np.full(model.H, claimed) for name in "Wv"}
    errors["w"] = np.zeros(model.H)
    found = MultiHead(model.W + step, model.v, model.w, model.c)
    return heads_conclusion.RecoveredHeads(found, errors, 1.0, **more)


def test_errors_that_explain_much_confirm_no_more_than_a_share():
    scene = Scene(3, 6)
    found = recovered(scene, 1e-3, claimed=1e-3)
    steps = heads_conclusion.fresh_residuals(found, scene.reduced, 24, scene.rng, "pilot")
    residuals, _ = driven(steps, scene.model)
    assert np.all(residuals.missed <= residuals.explained)
    assert np.all(residuals.allowed <= 1.001e-6)
    assert np.any(residuals.missed > residuals.allowed)


def test_the_end_may_be_a_bound_on_the_function():
    scene = Scene(3, 6)

    def end(found, checks=16, share=0.0, function=None):
        steps = heads_conclusion.predicting(found, share, scene.reduced, checks, scene.rng)
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


def test_what_is_not_corrected_says_why(monkeypatch):
    scene = Scene(2, 4)
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
