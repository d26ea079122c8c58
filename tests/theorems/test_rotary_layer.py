"""A whole layer with rotary positions: counts, accuracy, groups, certificates, refusals."""

from __future__ import annotations

import time

import numpy as np
import pytest

import unsoftmax as us
from tests.rotary_layers import (
    InFloat32,
    largest_errors,
    longest_miss,
    nearly_rotary,
    relative_errors,
    rotary_layer,
    share_of_bounds,
)
from tests.theorems.test_4_1 import hidden
from tests.truth import Counted

BASES = (1e4, 5e5, 1e6)


def learn(target, **settings):
    settings = {"rotary": True, **settings}
    return us.learn(hidden(target), us.learners.AttentionLayerLearner(target.dim, **settings))


def bound(d, H, G, r):
    """The least number of queries: free parameters over numbers of an answer."""
    return us.theory.counts.rotary_layer(d, H, G, r) / d


# -- what is promised


@pytest.mark.parametrize("residual", [False, True])
def test_a_layer_of_four_heads_in_two_groups(residual, trials, evidence):
    shape, shares, maps, scores, far, long = (64, 4, 2, 16), [], [], [], [], []
    for seed in range(trials(1, 50)):
        target = rotary_layer(*shape, seed, base=BASES[seed % 3], residual=residual)
        oracle = Counted(hidden(target))
        learner = us.learners.AttentionLayerLearner(64, rotary=True, seed=seed)
        recovery = us.learn(oracle, learner)
        assert oracle.queries == recovery.queries
        assert recovery.evidence.passed
        assert recovery.queries - 32 <= learner.plan().at_most
        assert (recovery.model.H, recovery.model.G) == (4, 2)
        assert recovery.model.residual is residual
        assert share_of_bounds(recovery, target) <= 1
        assert us.equivalent(recovery.model, target)
        M, W = relative_errors(recovery.model, target, range(21))
        shares.append((recovery.queries - 32) / bound(*shape))
        maps.append(M)
        scores.append(W)
        far.append(relative_errors(recovery.model, target, [500, 2000])[1])
        long.append(longest_miss(recovery.model, target, seed))
    assert np.median(shares) <= 1.8
    assert max(scores) <= 1e-9
    assert max(far) <= 1e-8
    assert max(long) <= 1e-9
    evidence(
        f"rotary layer, d = 64, 4 heads in 2 groups{', residual' * residual}",
        runs=len(shares),
        queries=f"median {np.median(shares):.2f}, most {max(shares):.2f} × the bound",
        M=f"{max(maps):.0e}",
        W_to_20=f"median {np.median(scores):.0e}, worst {max(scores):.0e}",
        W_to_2000=f"median {np.median(far):.0e}, worst {max(far):.0e}",
        of_512_tokens=f"{max(long):.0e}",
    )


@pytest.mark.claimed
def test_smollm2s_shape(evidence):
    shape, shares, scores, seconds = (576, 9, 3, 64), [], [], []
    for seed in range(3):
        target = rotary_layer(*shape, seed, residual=True)
        oracle = Counted(hidden(target))
        learner = us.learners.AttentionLayerLearner(576, rotary=True, seed=seed)
        start = time.process_time()
        recovery = us.learn(oracle, learner)
        seconds.append(time.process_time() - start)
        assert (recovery.model.H, recovery.model.G) == (9, 3)
        assert share_of_bounds(recovery, target) <= 1
        shares.append((recovery.queries - 32) / bound(*shape))
        scores.append(relative_errors(recovery.model, target, [0, 1, 20, 500])[1])
    assert max(shares) <= 1.45
    assert max(scores) <= 1e-8
    evidence(
        "rotary layer of SmolLM2-135M's shape, d = 576, 9 heads in 3 groups, residual",
        runs=len(shares),
        queries=f"{max(shares):.2f} × the bound",
        W=f"{max(scores):.0e}",
        seconds=f"{max(seconds):.0f}, the target's among them",
    )


@pytest.mark.parametrize(
    ("profile", "most", "accuracy"), [("auto", 2.5, 1e-2), ("finest", 4.8, 1e-4)]
)
def test_inside_float32(profile, most, accuracy, trials, evidence):
    shape, shares, scores, long, refused = (64, 4, 2, 16), [], [], [], 0
    count = trials(1, 20)
    for seed in range(count):
        target = rotary_layer(*shape, seed, residual=seed % 2 == 0)
        learner = us.learners.AttentionLayerLearner(64, profile=profile, rotary_base=1e4, seed=seed)
        try:
            recovery = us.learn(InFloat32(target), learner)
        except us.ModelMismatch:
            refused += 1
            continue
        assert share_of_bounds(recovery, target) <= 1
        shares.append((recovery.queries - 32) / bound(*shape))
        scores.append(relative_errors(recovery.model, target)[1])
        long.append(longest_miss(recovery.model, target, seed))
    assert np.median(shares) <= most
    assert np.median(scores) <= accuracy
    assert refused <= count / 10 + trials(1, 0)
    evidence(
        f"rotary layer inside float32, d = 64, 4 heads in 2 groups, {profile}",
        f"{refused} of {count}",
        queries=f"median {np.median(shares):.2f}, most {max(shares):.2f} × the bound",
        W=f"median {np.median(scores):.0e}, worst {max(scores):.0e}",
        of_512_tokens=f"median {np.median(long):.0e}, worst {max(long):.0e}",
    )


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((16, 4, 1, 4), {"residual": True}),  # one group
        ((12, 2, 2, 6), {"m": 16}),  # nothing shared, more outputs than dimensions
        ((16, 2, 1, 8), {"turning": 0.5}),  # partial rotary
        ((12, 2, 2, 12), {}),  # values of full rank: more rows than dimensions
        ((10, 1, 1, 4), {"base": 1e6}),  # one head
    ],
)
def test_shapes(shape, settings):
    d, H, G, r = shape
    target = rotary_layer(d, H, G, r, 0, **settings)
    recovery = learn(target)
    assert shape[1:3] == (recovery.model.H, recovery.model.G)
    assert share_of_bounds(recovery, target) <= 1
    assert relative_errors(recovery.model, target)[1] <= 1e-9


def test_groups_of_different_sizes():
    target = rotary_layer(16, 4, 2, 4, 3)
    arrays = {**target.arrays(), "groups": np.array([0, 0, 0, 1])}
    target = us.RotaryLayer.from_arrays(arrays)
    recovery = learn(target)
    assert sorted(np.bincount(recovery.model.groups)) == [1, 3]
    assert us.equivalent(recovery.model, target)


def test_frequencies_that_are_known():
    target = rotary_layer(16, 4, 2, 4, 0, residual=True)
    for settings in ({"rotary": us.Rotary.of(1e4, 4)}, {"rotary_base": 1e4}):
        recovery = learn(target, **{"rotary": False, **settings})
        assert recovery.model.rotary == us.Rotary.of(1e4, 4)
        assert us.equivalent(recovery.model, target)
    for settings in ({"rotary": us.Rotary.of(1.01e4, 4)}, {"rotary_base": 1.01e4}):
        with pytest.raises(us.ModelMismatch, match=r"other frequencies.* without rotary_base"):
            learn(target, **{"rotary": False, **settings})


def test_a_layer_without_positions_is_said_to_have_none():
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((2, 4, 4, 12)) / 3
    heads = [us.LayerHead.from_factors(U.T, V, K, Q) for U, V, K, Q in factors]
    plain = us.AttentionLayer(heads, np.ones(12), residual=True)
    recovery = learn(plain)
    assert any("do not turn with distance" in note for note in recovery.notes)
    assert us.equivalent(recovery.model, plain)


# -- certificates


def test_the_certificate_holds(trials, evidence):
    shapes, shares = [(8, 2, 1, 4), (16, 4, 2, 4), (12, 3, 3, 4), (20, 4, 1, 6)], []
    for seed in range(trials(2, 500)):
        turning = (1.0, 0.5)[seed % 5 == 0]
        target = rotary_layer(
            *shapes[seed % 4], seed, base=BASES[seed % 3], residual=seed % 2 == 0, turning=turning
        )
        recovery = learn(target, seed=seed)
        shares.append(share_of_bounds(recovery, target))
        assert shares[-1] <= 1, seed
        same = us.equivalent(recovery.model, target, errors=recovery.certificate.errors)
        assert same.verdict == "equal"
    evidence(
        "rotary layer, certificate",
        trials=len(shares),
        broken=0,
        median_looseness=f"{1 / np.median(shares):.0f}×",
    )


# -- what is refused


@pytest.mark.few(4)
@pytest.mark.parametrize("name", nearly_rotary(rotary_layer(4, 2, 1, 2, 0)))
def test_impostors_are_refused(name, trials, evidence):
    count = trials(1, 20)
    for seed in range(count):
        target = nearly_rotary(rotary_layer(16, 4, 2, 4, seed))[name]
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            us.learn(target, us.learners.AttentionLayerLearner(16, rotary=True, seed=seed))
    evidence(f"rotary layer's impostor: {name}", refused=f"{count} of {count}")


def test_a_norm_before_is_named():
    """The block of a Llama: a norm before the layer, a residual around both."""
    layer = rotary_layer(16, 4, 2, 4, 0)
    norm = us.LayerNorm(np.linspace(0.5, 2, 16), None, 1e-5, before=True, centred=False)

    def block(X):
        return layer(norm(X)) + X[:, -1]

    with pytest.raises(us.ModelMismatch, match=r"RMSNorm.*takes the normalised tokens"):
        us.learn(block, us.learners.AttentionLayerLearner(16, rotary=True))
    with pytest.raises(us.ModelMismatch, match="depend on positions"):
        us.learn(block, us.learners.AttentionLayerLearner(16))


def test_queries_of_a_rank_below_that_of_their_planes_are_refused():
    """Keys are seen at many distances, so theirs may be lower; queries of a group are not."""
    target = rotary_layer(16, 4, 2, 4, 0)
    K, Q = target.K.copy(), target.Q.copy()
    K[0, 2] = K[0, 0]
    lower = us.RotaryLayer.from_arrays({**target.arrays(), "K": K})
    assert us.equivalent(learn(lower).model, lower)
    Q[:2, 2] = Q[:2, 0]
    with pytest.raises(us.ModelMismatch, match=r"ranks (3, 4|4, 3).*lower rank than its planes"):
        learn(us.RotaryLayer.from_arrays({**target.arrays(), "Q": Q}))
    Q[2:, 2] = Q[2:, 0]
    with pytest.raises(us.ModelMismatch, match=r"leave the span.*lower rank than its planes"):
        learn(us.RotaryLayer.from_arrays({**target.arrays(), "Q": Q}))


@pytest.mark.parametrize("outputs", [None, 5])
def test_values_of_a_lower_rank_than_keys(outputs, trials, evidence):
    """V of five rows of eight, or an answer of five numbers: more query tokens are asked."""
    scores = []
    for seed in range(trials(1, 20)):
        target = rotary_layer(32, 4, 2, 8, seed, m=outputs)
        if outputs is None:
            V = target.V.copy()
            V[:, 5:] = V[:, :3]
            target = us.RotaryLayer.from_arrays({**target.arrays(), "V": V})
        recovery = learn(target, seed=seed)
        assert us.equivalent(recovery.model, target)
        assert share_of_bounds(recovery, target) <= 1
        scores.append(relative_errors(recovery.model, target, [*range(21), 500])[1])
    assert max(scores) <= 1e-9
    what = "values of rank 5, keys of 8" if outputs is None else "answers of 5 numbers, keys of 8"
    evidence(f"rotary layer, d = 32, {what}", runs=len(scores), W=f"{max(scores):.0e}")


def test_a_learner_without_positions_names_them():
    with pytest.raises(us.ModelMismatch, match=r"depend on positions.*rotary=True"):
        learn(rotary_layer(16, 4, 2, 4, 0), rotary=False)
    # where the order of tokens is not the reason, the refusal stays as it was
    with pytest.raises(us.ModelMismatch, match="no affine map"):
        us.learn(lambda X: np.tanh(X[:, -1]) ** 2, us.learners.AttentionLayerLearner(4))


@pytest.mark.parametrize(
    ("settings", "error", "named"),
    [
        ({"rotary": 1.0}, TypeError, "rotary"),
        ({"rotary": True, "norm": "pre"}, ValueError, "without a norm"),
        ({"rotary": False, "rotary_base": -1.0}, ValueError, "rotary_base"),
        ({"rotary": us.Rotary([1.0]), "rotary_base": 1e4}, ValueError, "beside"),
        ({"rotary": False, "rotary_base": 1e4, "head_dim": 3}, ValueError, "even"),
    ],
)
def test_wrong_settings_are_named(settings, error, named):
    with pytest.raises(error, match=named):
        us.learners.AttentionLayerLearner(8, **settings)


# -- the information bound


@pytest.mark.parametrize(("shape", "biases"), [((5, 2, 1, 2), 0.0), ((6, 4, 2, 2), 0.5)])
def test_the_count_is_the_rank_of_the_jacobian(shape, biases):
    """By differences: what the answers' derivatives span is what answers can tell."""
    d, H, G, r = shape
    target = rotary_layer(d, H, G, r, 1, biases=biases)
    names = ("O", "V", "K", "Q", "c", *(("k_bias", "q_bias") if biases else ()))
    arrays = target.arrays()
    X = [np.random.default_rng(n).standard_normal((60, n, d)) for n in (1, 2, 3, 5)]

    def answers(changed):
        layer = us.RotaryLayer.from_arrays({**arrays, **changed})
        return np.concatenate([layer(x).ravel() for x in X])

    columns = []
    for name in names:
        for place in np.ndindex(arrays[name].shape):
            step = np.zeros(arrays[name].shape)
            step[place] = 1e-5
            columns.append(
                answers({name: arrays[name] + step}) - answers({name: arrays[name] - step})
            )
    singular = np.linalg.svd(np.array(columns) / 2e-5, compute_uv=False)
    count = us.theory.counts.rotary_layer(d, H, G, r, biases=bool(biases))
    assert np.sum(singular > 1e-6 * singular[0]) == count
    assert largest_errors(target, target)["W"] == 0
