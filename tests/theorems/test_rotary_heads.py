"""Several heads with rotary positions: counts, accuracy, certificates, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.rotary_heads import longest_miss, nearly_rotary, several_rotary
from tests.theorems.test_4_1 import hidden
from tests.truth import Counted
from unsoftmax.models.equality.verdicts import match


def learn(target, **settings) -> us.Recovery[Any]:
    settings = {"max_heads": 8, "rotary": True, **settings}
    return us.learn(hidden(target), us.learners.MultiHeadLearner(target.dim, **settings))


def apart(found, target, distances):
    """Largest error of W_h(Δ), heads matched by W_h(1), over their size."""
    cost = [
        [np.linalg.norm(one.W_at(1) - other.W_at(1)) for other in target.heads]
        for one in found.heads
    ]
    pairs = match(np.array(cost), np.full(found.H, np.inf), np.full(target.H, np.inf))
    return max(
        np.linalg.norm(found.heads[g].W_at(n) - target.heads[h].W_at(n))
        / np.linalg.norm(target.heads[h].W_at(1))
        for _, g, h in pairs
        for n in distances
    )


def by_certificate(recovery, target):
    """Whether the target is within the certificate, which has no tolerance beside it."""
    return us.equivalent(recovery.model, target, rtol=0, errors=recovery.certificate.errors)


# -- what is promised


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("H", "d", "r", "given", "most"),
    [(4, 16, 16, None, 1.2), (4, 16, 4, 4, 1.3), (4, 16, 4, None, 1.33)],
)
def test_nearly_as_many_queries_as_parameters(H, d, r, given, most, trials, evidence):
    near, far, long, shares = [], [], [], []
    for seed in range(trials(1, 40)):
        target = several_rotary(H, d, r, seed, base=(1e4, 5e5, 1e6)[seed % 3])
        oracle = Counted(hidden(target))
        learner = us.learners.MultiHeadLearner(d, 8, rank=given, seed=seed, rotary=True)
        recovery = us.learn(oracle, learner)
        assert oracle.queries == recovery.queries
        assert recovery.evidence.passed
        assert recovery.queries - 32 <= learner.plan().at_most
        assert by_certificate(recovery, target).verdict == "equal"
        shares.append((oracle.queries - 32) / us.theory.counts.rotary_heads(d, H, r))
        near.append(apart(recovery.model, target, range(21)))
        far.append(apart(recovery.model, target, (100, 500, 2000)))
        long.append(longest_miss(recovery.model, target, seed))
    assert np.median(shares) <= most
    assert max(near) <= 1e-8
    assert max(far) <= 1e-6
    assert max(long) <= 1e-7
    found = "" if given is None else " given"
    evidence(
        f"{H} rotary heads, d = {d}, r = {r}{found}",
        runs=len(near),
        queries=f"{np.median(shares):.3f} × the parameters, at most {max(shares):.3f}",
        W_0_to_20=f"{np.median(near):.1e}, at most {max(near):.1e}",
        W_to_2000=f"at most {max(far):.1e}",
        of_512_tokens=f"at most {max(long):.1e}",
    )


def test_the_certificate_holds(trials, evidence):
    looseness, shapes = [], [(1, 8, 4), (3, 5, 2), (3, 6, 6), (3, 12, 4), (6, 6, 4)]
    for seed in range(trials(1, 500)):
        H, d, r = shapes[seed % len(shapes)]
        target = several_rotary(H, d, r, seed, turning=(1.0, 0.5)[seed % 3 == 0])
        recovery = learn(target, seed=seed)
        found = by_certificate(recovery, target)
        assert found.verdict == "equal", (H, d, r, seed)
        assert found.share is not None
        looseness.append(1 / found.share)
    evidence(
        "rotary heads, certificate",
        trials=len(looseness),
        broken=0,
        looseness=f"{np.median(looseness):.0f}×, at least {min(looseness):.0f}×",
    )


def test_frequencies_that_are_known():
    target = several_rotary(3, 8, 4, 0)
    for settings in ({"rotary": us.Rotary.of(1e4, 4)}, {"rotary": False, "rotary_base": 1e4}):
        model = learn(target, rank=4, **settings).model
        assert us.equivalent(model, target)
        folded = np.sort(model.frequencies, axis=1)[:, ::-1]
        assert np.array_equal(folded, target.frequencies)
    with pytest.raises(us.ModelMismatch, match=r"other frequencies.* without rotary_base"):
        learn(target, rank=4, rotary=us.Rotary.of(1.01e4, 4))


def test_the_plan_counts_what_the_second_distance_takes():
    with_positions, without = (
        us.learners.MultiHeadLearner(16, 4, rank=4, rotary=rotary).plan()
        for rotary in (True, False)
    )
    assert "760 for 4 of rank 4" in with_positions.formula
    assert "696 for 4 of rank 4" in without.formula
    assert with_positions.at_most > without.at_most


def groups(target):
    """Two heads that share keys: one group."""
    K = np.array(target.K)
    K[1] = K[0]
    return {"K": K}


def still(target):
    return {"frequencies": np.zeros_like(target.frequencies)}


def of_their_own(target):
    return {"frequencies": [[1.0, 0.1], [0.7, 0.2], [3.0, 0.0]]}


def without_scores(target):
    K = np.array(target.K)
    K[1] = 0
    return {"K": K}


@pytest.mark.parametrize(
    "changes",
    [groups, still, of_their_own, without_scores],
    ids=["groups", "no positions", "frequencies of their own", "a head without scores"],
)
def test_special_heads(changes):
    like = several_rotary(3, 6, 4, 0)
    target = us.RotaryHeads.from_arrays({**like.arrays(), "c": 2.5, **changes(like)})
    recovery = learn(target)
    assert us.equivalent(recovery.model, target, rtol=1e-8)
    assert by_certificate(recovery, target).verdict == "equal"
    still = not np.any(target.frequencies)
    assert still == any("do not turn with distance" in note for note in recovery.notes)


def test_no_heads_and_heads_without_positions_beside():
    none = us.RotaryHeads.of([], 4, c=0.5)
    assert us.equivalent(learn(none).model, none)
    turning = several_rotary(2, 6, 4, 0)
    plain = us.SingleHead(np.diag([1.0, 2.0, -1.0, 0.0, 0.0, 0.0]), np.ones(6))
    model = learn(lambda_of(lambda X: turning(X) + plain(X), 6)).model
    assert model.H == 3
    X = np.random.default_rng(0).standard_normal((5, 9, 6))
    assert np.allclose(model(X), turning(X) + plain(X), rtol=0, atol=1e-8)


def lambda_of(function, dim):
    """A function that has a dimension."""

    class Target:
        def __init__(self):
            self.dim = dim

        def __call__(self, X):
            return function(X)

    return Target()


def test_rounded_answers():
    target = several_rotary(3, 6, 4, 0)
    oracle = lambda_of(us.oracles.rounded(target, 8), 6)
    assert us.equivalent(learn(oracle).model, target, rtol=1e-8)


# -- what is refused


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name",
    # a plain head beside them is one more head
    [name for name in nearly_rotary(several_rotary(1, 4, 2, 0).heads[0]) if "plain" not in name],
)
def test_impostors_are_refused(name, trials, evidence):
    count = trials(1, 20)
    for seed in range(count):
        d = 4 + 2 * (seed % 2)
        heads = several_rotary(2, d, 2 + 2 * (seed % 2), seed, scale=2.0).heads
        each = [nearly_rotary(head)[name] for head in heads]
        target = lambda_of(lambda X, each=each: sum(one(X) for one in each), d)
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            learn(target, max_heads=2, seed=seed)
    evidence(f"impostor of rotary heads: {name}", refused=f"{count} of {count}")


def test_heads_that_no_token_tells_apart_are_refused_by_name():
    with pytest.raises(us.NotIdentifiable, match="5 heads with scores, more than its 3 dim") as e:
        learn(several_rotary(5, 3, 2, 0))
    assert len(e.value.determined["v"]) == 5
    like = several_rotary(2, 6, 4, 0)
    K, Q = np.array(like.K), np.array(like.Q)
    K[1], Q[1] = K[0], -Q[0]
    with pytest.raises(us.NotIdentifiable, match="No token shuts all heads but one"):
        learn(us.RotaryHeads.from_arrays({**like.arrays(), "K": K, "Q": Q}))


def test_answers_in_float32_are_recovered_within_bounds_or_refused():
    for H, d, seed in ((2, 12, 0), (3, 8, 0)):
        target = several_rotary(H, d, 4, seed)
        oracle = lambda_of(lambda X, target=target: target(X).astype(np.float32), d)
        try:
            recovery = learn(oracle, seed=seed)
        except us.NotIdentifiable:
            continue
        assert by_certificate(recovery, target).verdict == "equal"


def test_a_learner_without_positions_names_them():
    with pytest.raises(us.ModelMismatch, match=r"depend on positions.*rotary=True"):
        learn(several_rotary(2, 4, 2, 0), rotary=False, max_heads=2)
    with pytest.raises(us.ModelMismatch) as refused:
        learn(lambda_of(lambda X: np.tanh(X.sum(axis=(1, 2))), 4), rotary=False)
    assert "positions" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "error", "named"),
    [
        ({"rotary": 1.0}, TypeError, "rotary"),
        (
            {"biases": True, "polish": True},
            ValueError,
            "polish is for heads without positions, or without biases",
        ),
        ({"functional": True}, ValueError, "functional"),
        ({"radius": 100.0}, ValueError, "radius"),
        ({"dim": 1}, ValueError, "dim"),
        ({"rotary_base": 1e4}, ValueError, "rank"),
        ({"rotary": us.Rotary([1.0]), "rank": 4}, ValueError, "too few"),
    ],
)
def test_wrong_settings_are_named(settings, error, named):
    with pytest.raises(error, match=named):
        us.learners.MultiHeadLearner(**{"dim": 8, "max_heads": 4, "rotary": True, **settings})
