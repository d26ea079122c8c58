"""The hold-out of heads in orthogonal subspaces, by hand: models that are right, off, or wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.orthogonal_heads import closing_heads
from unsoftmax.learners.orthogonal_heads.closing_heads import BoundedHeads, judged
from unsoftmax.learners.single_head.first_round import FirstRound
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.validate import sequences as holdout
from unsoftmax.validate.long_sequences import LongSequenceTuning


def drawn(d=2, H=2, seed=0):
    rng = np.random.default_rng([d, H, seed])
    return us.MultiHead(rng.standard_normal((H, d, d)), rng.standard_normal((H, d)))


def moved(target, size, seed=0):
    """The target's parameters off by ``size`` (Frobenius, 2-norm), and these as bounds."""
    rng = np.random.default_rng(seed)
    W, v = (rng.standard_normal(x.shape) for x in (target.W, target.v))
    W *= size / np.linalg.norm(W, axis=(1, 2), keepdims=True)
    v *= size / np.linalg.norm(v, axis=1, keepdims=True)
    bounds = np.full(target.H, size * (1 + 1e-9))
    return BoundedHeads(us.MultiHead(target.W + W, target.v + v), bounds, bounds)


def opened(target, precision, checks=32):
    """A first round that was answered by the target."""
    three = holdout.opening(target.dim, checks // 4, np.random.default_rng(7))
    values = Values(target.v.sum(axis=0), 0.0, np.zeros(target.dim), 0.0, precision)
    return FirstRound(values, three, target(three.X), checks - checks // 4, checks)


EXACT = Precision()


def evidence(found, target, precision=EXACT, seed=0, checks=32):
    """Run the hold-out; return what came out and the sequences that were asked."""
    first = opened(target, precision, checks)
    steps = judged(found, first, np.random.default_rng(seed))
    asked = []
    try:
        parts = next(steps)
        while True:
            asked += parts
            parts = steps.send([target(part[:]) for part in parts])
    except StopIteration as end:
        said, looked = end.value
        assert not checks or looked.startswith("Fresh sequences had up to")
        return said, asked


@pytest.mark.parametrize("size", [1e-9, 1e-4, 1e-2, 0.3, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_what_the_bounds_allow_is_a_bound(size, seed):
    """In two dimensions nothing is left to luck: every residual is within its tolerance."""
    target, rng = drawn(seed=seed), np.random.default_rng(seed)
    found = moved(target, size, seed)
    coarse = Precision(absolute=1e-12)  # exact answers would be capped
    for scale in (0.1, 1.0, 10.0):
        X = scale * rng.standard_normal((50, 4, 2))
        residuals, telling = found.compared(X, target(X), coarse)
        assert np.all(np.abs(residuals.relative) <= residuals.tolerance)
        assert telling.shape == (50, 2)
        if size == 1e-9 and scale <= 1:
            assert telling.mean() > 0.9
        if size == 10.0:
            assert not telling.any()


def test_infinite_bounds_allow_all_that_weights_can_do():
    target = drawn()
    found = BoundedHeads(moved(target, 1.0).model, np.full(2, np.inf), np.zeros(2))
    X = np.random.default_rng(0).standard_normal((50, 4, 2))
    residuals, telling = found.compared(X, found.model(X), Precision(absolute=1e-12))
    assert np.isfinite(residuals.tolerance).all()
    assert not telling.any()


def test_exact_answers_must_agree_whatever_the_bounds_say():
    target = drawn(5)
    found = moved(target, 1e-4)
    with pytest.raises(us.ModelMismatch, match="times what is expected"):
        evidence(found, target)
    right = BoundedHeads(target, found.W_error, found.v_error)
    said, _ = evidence(right, target)
    assert said.passed
    assert said.tolerance <= 1.01 * closing_heads.AGREES


def test_sequences_are_at_moderate_logits_of_every_head(monkeypatch):
    target = us.MultiHead(np.array([1e3, 1e-3])[:, None, None] * drawn(6).W, drawn(6).v)
    found = BoundedHeads(target, np.full(2, 1e-15), np.full(2, 1e-15))
    monkeypatch.setattr(closing_heads, "LONG", LongSequenceTuning(shapes=()))
    said, asked = evidence(found, target, checks=64)
    assert said.queries == 64
    assert sum(len(part) for part in asked) == 48
    assert sorted(part.tokens for part in asked) == [3, 4, 5, 6]
    logits = np.concatenate(
        [
            np.sqrt(np.mean(((part[:] @ target.W[h] @ part[:][:, -1:].mT)[:, :-1, 0]) ** 2, axis=1))
            for part in asked
            for h in range(2)
        ]
    )
    for wanted in closing_heads.LOGITS:
        # a third of the sequences, each for one of two heads
        assert np.sum(np.isclose(logits, wanted)) == 16


def test_a_head_that_coarse_answers_do_not_show_is_named():
    """The bound of one of two heads leaves everything open: nothing is confirmed of it."""
    target = us.MultiHead(drawn(4).W, np.array([[1.0], [1e-2]]) * drawn(4).v)
    found = BoundedHeads(target, np.array([1e-6, 1e3]), np.full(2, 1e-6))
    coarse = Precision(absolute=1e-6, why=("Answers look rounded.",))
    with pytest.raises(us.NotIdentifiable, match="too coarse for 1 of 2 heads") as refused:
        evidence(found, target, coarse)
    np.testing.assert_array_equal(refused.value.determined["v"], target.v.sum(axis=0))
    assert "rounded" in str(refused.value)
    known = replace(found, W_error=np.full(2, 1e-6))
    assert evidence(known, target, coarse)[0].passed


def test_a_wrong_class_is_wrong_with_coarse_answers_too():
    target = drawn(4)
    wrong = BoundedHeads(drawn(4, seed=1), np.full(2, 1e-3), np.full(2, 1e-3))
    with pytest.raises(us.ModelMismatch, match="not a sum of heads in mutually orthogonal"):
        evidence(wrong, target, Precision(absolute=1e-6))


def test_heads_without_scores_are_seen_at_any_size():
    target = us.MultiHead(np.zeros((1, 3, 3)), np.ones((1, 3)))
    found = BoundedHeads(target, np.full(1, 1e-15), np.full(1, 1e-15))
    said, asked = evidence(found, target)
    assert said.passed
    assert sum(len(part) for part in asked) == 24


def test_nothing_is_asked_where_nothing_is_checked():
    target = drawn(3)
    found = moved(target, 1e-9)
    said, asked = evidence(found, target, checks=0)
    assert asked == []
    assert not said.passed
