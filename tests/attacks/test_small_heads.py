"""Heads and neurons that no answer shows: a certificate says how small they are."""

import re
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.plain_layers import PlainLayer


def in_float32(y: Any) -> Any:
    return y.astype(np.float32).astype(np.float64)


ANSWERS: dict[str, Any] = {
    "float64": (lambda y: y, (-14.0, -10.0)),
    "float32": (in_float32, (-7.5, -3.5)),
}


def stated(recovery: us.Recovery[Any]) -> float:
    """Return the share of the others' M below which a head may be missed."""
    [size] = re.findall(r"is below (\S+) of the others'", " ".join(recovery.certificate.assumes))
    return float(size)


@pytest.mark.parametrize("place", ["none", "post"])
@pytest.mark.parametrize("answers", ANSWERS)
def test_a_head_that_is_lost_is_below_the_limit(answers, place, trials, evidence):
    count, refused, lost, sizes = trials(1, 150), 0, [0.0], []
    disturbed, decades = ANSWERS[answers]
    for seed in range(count):
        rng = np.random.default_rng([311, seed])
        smallest = 10.0 ** rng.uniform(*decades)
        target = PlainLayer(rng, place, smallest=smallest, disturbed=disturbed)
        try:
            recovery = us.learn(target, target.learner(seed))
        except us.UnsoftmaxError:
            refused += 1
            continue
        sizes.append(stated(recovery))
        missed = len(target.M) - recovery.model.H
        if missed:
            lost.append(smallest / sizes[-1])
            assert lost[-1] <= 1, (seed, smallest, sizes[-1])
    evidence(
        f"a small head, {answers} answers, norm {place}",
        runs=count,
        lost=len(lost) - 1,
        of_the_limit_at_most=max(lost),
        limit_in_the_median=float(np.median(sizes)),
        refused=refused,
    )


@pytest.mark.parametrize("size", [7e-9, 1e-3])
def test_heads_of_no_scores_after_a_norm_are_named(size):
    """Tokens after a norm have a longest length: scores stay small, and weights those of a mean."""
    target = PlainLayer(np.random.default_rng(9), "pre")
    target.W *= size / np.linalg.norm(target.W, axis=(1, 2), keepdims=True)
    target.w *= 0
    with pytest.raises(us.NotIdentifiable, match="weigh all tokens nearly alike") as refused:
        us.learn(target, target.learner(0))
    assert {"c", "M"} <= {*refused.value.determined}


SMALL: dict[str, Any] = {
    "all, behind float32": (np.float32, (-7.0, -2.0), slice(None)),
    "one, behind float32": (np.float32, (-7.0, -2.0), slice(1)),
    "one, in float64": (np.float64, (-15.0, -7.0), slice(1)),
}
# Layers whose lost neurons come closest to the bound.
CLOSEST = (68, 161)


@pytest.mark.parametrize("case", SMALL)
def test_what_neurons_that_are_lost_add_is_within_the_bound(case, trials, evidence):
    """All or one of the ReLUs beside x add little, and most along their own rows."""
    seeds, refused, lost, share = {*CLOSEST, *range(trials(4, 500))}, 0, 0, 0.0
    kind, decades, small = SMALL[case]
    for seed in seeds:
        rng = np.random.default_rng([312, seed])
        d, m = rng.integers(3, 14), rng.integers(2, 24)
        A, B = rng.standard_normal((m, d)) / np.sqrt(d), rng.standard_normal((d, m)) / np.sqrt(m)
        B[:, small] *= 10.0 ** rng.uniform(*decades)
        arrays = A, rng.standard_normal(m) / 2, B, rng.standard_normal(d) / 10

        def answers(X, kind, arrays=arrays):
            A, b, B, c = (array.astype(kind) for array in arrays)
            x = X.reshape(len(X), -1).astype(kind)
            return np.asarray(x + np.maximum(x @ A.T + b, 0) @ B.T + c, dtype=np.float64)

        try:
            learner = us.learners.FeedForwardLearner(int(d), seed=seed)
            recovery = us.learn(lambda X, ask=answers: ask(X, kind), learner)
        except us.UnsoftmaxError:
            refused += 1
            continue
        if len(recovery.model.b) < m:
            lost += 1
            said = " ".join(recovery.certificate.assumes)
            assert "less than constant and slope allow may be missing" in said
        x = np.vstack([rng.standard_normal((200, d)), A, -A])
        x = np.vstack([size * x for size in (0.1, 1.0, 10.0, 1000.0)])
        held = tuple(array.astype(kind) for array in arrays)
        missed = np.linalg.norm(recovery.model(x) - answers(x, np.float64, held), axis=1)
        errors = recovery.certificate.errors
        bound = errors["constant"] + errors["slope"] * np.linalg.norm(x, axis=1)
        share = max(share, float(np.max(missed / bound)))
        assert share <= 1, (seed, share)
    evidence(
        f"small neurons: {case}",
        runs=len(seeds),
        lost=lost,
        of_bound_at_most=share,
        refused=refused,
    )


@pytest.mark.parametrize("sums", [False, True])
def test_where_all_neurons_are_lost_their_sum_is_within_the_bound(sums, trials, evidence):
    """Few neurons in few dimensions, of about the size at which float32 sums hide them."""
    seeds, refused, lost, share = {144, 973, *range(trials(0, 500))}, 0, 0, 0.0
    for seed in seeds:
        rng = np.random.default_rng([seed, 903])
        d = int(rng.integers(3, 13))
        m = int(rng.integers(1, 2 * d))
        A, b = rng.standard_normal((m, d)) / np.sqrt(d), 0.5 * rng.standard_normal(m)
        B, c = rng.standard_normal((d, m)) / np.sqrt(m), rng.standard_normal(d) * rng.choice([0, 1])
        size = 10.0 ** rng.uniform(-6, -3)
        c *= size if rng.random() < 0.7 else 1.0
        single = [x.astype(np.float32) for x in (A, b, size * B, c)]
        held_A, held_b, held_B, held_c = (x.astype(np.float64) for x in single)
        true = us.FeedForward(held_A, held_b, held_B, held_c, True)

        def target(X, single=single, true=true):
            A, b, B, c = single
            x = X[:, -1].astype(np.float32)
            y = true(X) if sums else np.maximum(x @ A.T + b, np.float32(0)) @ B.T + c + x
            return y.astype(np.float32)

        try:
            learner = us.learners.FeedForwardLearner(d, activation="relu", seed=seed)
            found = us.learn(target, learner)
        except us.ModelMismatch:
            refused += 1
            continue
        lost += len(found.model.b) < m
        x = np.vstack([rng.standard_normal((200, d)), *(k * A for k in (-100, -1, 1, 10, 100))])
        missed = np.linalg.norm(found.model(x[:, None]) - true(x[:, None]), axis=1)
        share = max(
            share, float(np.max(missed / found.model.moved_at_most(x, found.certificate.errors)))
        )
        assert share <= 1, (seed, share)
    assert lost
    evidence(
        f"neurons of about the size that float32 hides, sums {'once' if sums else 'often'} rounded",
        refused,
        runs=len(seeds),
        lost=lost,
        of_bound_at_most=share,
    )
