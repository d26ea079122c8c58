"""Parts of the search for several heads: sums of heads, outcomes, conclusions."""

import itertools

import numpy as np
import pytest

from tests.truth import driven
from unsoftmax.arrangement.kinks import TooManyBreakpoints
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi_head import heads_conclusion, newton_correction
from unsoftmax.learners.multi_head.newton_correction import polished
from unsoftmax.learners.multi_head.reduced_answers import (
    ReducedAnswers,
    TokenLengths,
    read_head_sums,
)
from unsoftmax.learners.multi_head.search_outcomes import (
    ENDINGS,
    CoincidentJumps,
    Restarts,
    SearchState,
    UnsaturatedGates,
    searched,
)
from unsoftmax.measure.precision import Precision
from unsoftmax.models import MultiHead

D = 6


def target():
    rng = np.random.default_rng([0, D])
    return MultiHead(rng.standard_normal((3, D, D)) / np.sqrt(D), rng.standard_normal((3, D)))


def sums(function):
    steps = read_head_sums(D, False, TokenLengths(), np.random.default_rng(1))
    return driven(steps, function)


@pytest.mark.parametrize("relative", [1e-12, 1e-7])
def test_noise_is_taken_for_at_least_what_was_seen(relative):
    rng = np.random.default_rng(2)
    found, _ = sums(lambda X: target()(X) * (1 + relative * rng.standard_normal(len(X))))
    assert relative < found.eta < 100 * relative
    assert bool(found.precision.why) is (relative > 1e-14)


@pytest.mark.parametrize(
    ("beside", "match"),
    [
        (lambda x: np.minimum(x[:, 0], 1e6), "clips tokens or answers"),
        (lambda x: 3 * np.tanh(x[:, 0]), "each time the same"),
    ],
)
def test_what_is_no_sum_of_heads_is_refused(beside, match):
    with pytest.raises(ModelMismatch, match=match):
        sums(lambda X: target()(X) + beside(X[:, -1]))


def test_the_error_counts_all_terms():
    """Relative to scale·T: offset, query token and constant; and what is absolute."""

    def reduced(eta, absolute=0.0):
        precision = Precision.relative_to_terms(eta, absolute)
        return ReducedAnswers(np.ones(D), 0.5, precision, 2.0, TokenLengths())

    error = reduced(1e-10, 1e-6).error(10.0, 4.0)
    assert error == pytest.approx(1e-10 * (1 + (4.0 + 0.25) / 10) + 1e-6 / 20)
    at = reduced(1e-10).errors_at(4.0, 1e-8)
    assert (at.length, at.scale, at.c, at.v_error) == (4.0, 2.0, 0.5, 1e-8)


# -- fresh sequences, corrections and certificates of heads that are given, right or wrong


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


# -- the table of endings: each one, with answers as they are and as if they were coarser


def counts(restarts):
    return restarts.failures, restarts.bad_luck, restarts.too_many


# (failures, bad luck, too many) that one ending adds, with answers as they are and as if coarser


@pytest.mark.parametrize(("soft", "needed"), [(False, 2), (True, 4)])
def test_too_many_jumps_are_believed_when_seen_often_enough(soft, needed):
    restarts = Restarts()
    for n in range(needed):
        assert restarts.state is SearchState.SEARCHING, n
        restarts = restarts.after(TooManyBreakpoints, soft)
    assert restarts.state is SearchState.TOO_MANY_HEADS


@pytest.mark.parametrize("refuse_many", [False, True])
def test_every_sequence_of_endings_ends(refuse_many):
    """Any state within reach leads on to a counted one; the longest way is bad luck."""
    todo, seen = [Restarts(most_unlucky=8, refuse_many=refuse_many)], set()
    while todo:
        restarts = todo.pop()
        if restarts in seen:
            continue
        seen.add(restarts)
        if restarts.state is not SearchState.SEARCHING:
            continue
        for ending, soft in itertools.product(ENDINGS, (False, True)):
            after = restarts.after(ending, soft)
            assert sum(counts(after)) > sum(counts(restarts))
            todo.append(after)
    states = {restarts.state for restarts in seen}
    never = set() if refuse_many else {SearchState.TOO_MANY_HEADS}
    assert states == set(SearchState) - never - {SearchState.FOUND}
    assert all(restarts.failures <= len(Restarts().starts) for restarts in seen)


def test_searches_end_with_what_one_of_them_finds():
    starts, ended = [], [TooManyBreakpoints(3), UnsaturatedGates(), CoincidentJumps()]

    def search(restarts):
        starts.append(restarts.start)
        if ended:
            raise ended.pop()
        return "heads"
        yield

    with pytest.raises(StopIteration) as end:
        next(searched(search, Restarts()))
    restarts, found = end.value.value
    assert found == "heads"
    assert restarts.state is SearchState.FOUND
    assert counts(restarts) == (2, 3, 1)
    assert starts == [Restarts().starts[n] for n in (0, 1, 1, 2)]
