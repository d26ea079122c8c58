"""Layers with rotary positions whose keys and queries have biases, as Qwen2's have."""

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
    whole_error,
)
from tests.theorems.test_4_1 import hidden
from tests.truth import Counted
from unsoftmax.learners.attention_layer.key_answers import KeyAnswers
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.theory import counts

BASES = (1e4, 5e5, 1e6)
FOUND, TOLD = {"rotary": True}, {"rotary_base": 1e4}


def learn(target, **settings):
    settings = {"rotary": True, **settings}
    return us.learn(hidden(target), us.learners.AttentionLayerLearner(target.dim, **settings))


def bound(d, H, G, r):
    """The least number of queries: free parameters over numbers of an answer."""
    return counts.rotary_layer(d, H, G, r, biases=True) / d


def changed(target, **arrays):
    return us.RotaryLayer.from_arrays({**target.arrays(), **arrays})


# -- what is promised


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("biases", "settings", "most"),
    [(0.1, FOUND, 2.1), (0.5, FOUND, 2.1), (0.5, TOLD, 2.1), (1.0, FOUND, 2.7)],
    ids=["0.1", "0.5", "0.5, frequencies told", "1"],
)
def test_a_layer_of_four_heads_in_two_groups(biases, settings, most, trials, evidence):
    shape, shares, scores, far, long, refused = (64, 4, 2, 16), [], [], [], [], 0
    count = trials(1, 50)
    for seed in range(count):
        base = BASES[seed % 3] if "rotary" in settings else 1e4
        target = rotary_layer(*shape, seed, base=base, residual=seed % 2 == 1, biases=biases)
        oracle = Counted(hidden(target))
        learner = us.learners.AttentionLayerLearner(64, seed=seed, **settings)
        try:
            recovery = us.learn(oracle, learner)
        except us.ModelMismatch:
            refused += 1
            continue
        assert oracle.queries == recovery.queries
        assert recovery.queries - 32 <= learner.plan().at_most
        assert recovery.evidence.passed
        assert (recovery.model.H, recovery.model.G) == (4, 2)
        assert share_of_bounds(recovery, target) <= 1
        assert us.equivalent(recovery.model, target, errors=recovery.certificate.errors)
        shares.append((recovery.queries - 32) / bound(*shape))
        scores.append(whole_error(recovery.model, target))
        far.append(whole_error(recovery.model, target, [500, 2000]))
        long.append(longest_miss(recovery.model, target, seed))
    assert refused <= count / 10 + trials(1, 0)
    assert np.median(shares) <= most
    assert np.median(scores) <= 1e-8
    assert np.median(long) <= 1e-8
    told = ", frequencies told" * ("rotary" not in settings)
    evidence(
        f"rotary layer with biases of {biases:g}, d = 64, 4 heads in 2 groups{told}",
        f"{refused} of {count}",
        queries=f"median {np.median(shares):.2f}, most {max(shares):.2f} × the bound",
        W_to_20=f"median {np.median(scores):.0e}, worst {max(scores):.0e}",
        W_to_2000=f"median {np.median(far):.0e}, worst {max(far):.0e}",
        of_512_tokens=f"{max(long):.0e}",
    )


@pytest.mark.claimed
def test_qwen2s_shape(evidence):
    shape, shares, scores, seconds = (896, 14, 2, 64), [], [], []
    for seed in range(2):
        target = rotary_layer(*shape, seed, base=1e6, residual=True, biases=0.3)
        oracle = Counted(hidden(target))
        learner = us.learners.AttentionLayerLearner(896, rotary=True, seed=seed)
        start = time.process_time()
        recovery = us.learn(oracle, learner)
        seconds.append(time.process_time() - start)
        assert (recovery.model.H, recovery.model.G) == (14, 2)
        assert share_of_bounds(recovery, target) <= 1
        shares.append((recovery.queries - 32) / bound(*shape))
        scores.append(whole_error(recovery.model, target, [0, 1, 20, 500]))
    assert max(shares) <= 1.65
    assert max(scores) <= 1e-6
    evidence(
        "rotary layer with biases of 0.3 of Qwen2-0.5B's shape, d = 896, 14 heads in 2 groups",
        runs=len(shares),
        queries=f"{max(shares):.2f} × the bound",
        W=f"{max(scores):.0e}",
        seconds=f"{max(seconds):.0f}, the target's among them",
    )


@pytest.mark.parametrize(("d", "r"), [(64, 16), (16, 4)])
def test_layers_without_biases_cost_what_they_cost(d, r):
    """The search for biases asks nothing where there are none."""
    shape = d, 4, 2, r
    target = rotary_layer(*shape, seed=0)
    recovery = learn(target)
    assert 0 <= counts.rotary_layer_queries(*shape) - (recovery.queries - 32) <= 8
    assert "w" not in recovery.certificate.errors
    assert not recovery.model.k_bias.any()
    assert not recovery.model.q_bias.any()


def test_the_count_is_the_formula():
    queries = learn(rotary_layer(64, 4, 2, 16, 0, biases=0.3)).queries - 32
    assert abs(queries - counts.rotary_layer_queries(64, 4, 2, 16, biases=True)) <= 6


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((16, 4, 1, 4), {"residual": True}),  # one group
        ((12, 2, 2, 6), {"m": 16}),  # nothing shared, more outputs than dimensions
        ((16, 2, 1, 8), {"turning": 0.5}),  # partial rotary
        ((12, 2, 2, 12), {}),  # values of full rank: more rows than dimensions
        ((10, 1, 1, 4), {"base": 1e6}),  # one head
        ((12, 1, 1, 2), {}),  # one plane: a query of a single key
        ((16, 4, 4, 4), {"m": 8}),  # nothing shared, few outputs
    ],
)
def test_shapes(shape, settings):
    d, H, G, r = shape
    target = rotary_layer(d, H, G, r, 0, biases=0.3, **settings)
    recovery = learn(target)
    assert shape[1:3] == (recovery.model.H, recovery.model.G)
    assert share_of_bounds(recovery, target) <= 1
    assert whole_error(recovery.model, target) <= 1e-6


# -- which biases there are


SOME = {
    "keys alone": (1, 0),
    "queries alone": (0, 1),
    "queries of one head": (0, np.array([1, 0, 0, 0])[:, None]),
    "one group and two heads": (np.array([1, 0])[:, None], np.array([1, 0, 0, 1])[:, None]),
    "small": (1e-4, 1e-4),
    "below what offsets are long": (1e-9, 1e-9),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", SOME)
def test_some_biases(kind):
    """Query biases show beside long offsets, key biases alone where fresh answers are missed."""
    target = rotary_layer(16, 4, 2, 4, 1, biases=0.3)
    keys, queries = SOME[kind]
    target = changed(target, k_bias=keys * target.k_bias, q_bias=queries * target.q_bias)
    recovery = learn(target)
    assert share_of_bounds(recovery, target) <= 1
    assert us.equivalent(recovery.model, target, errors=recovery.certificate.errors)
    assert whole_error(recovery.model, target) <= 1e-7


def test_biases_that_noise_hides_are_said_to_count_to_no_bound():
    target, rng = rotary_layer(16, 4, 2, 4, 0, biases=1e-8), np.random.default_rng(0)
    target = changed(target, q_bias=0 * target.q_bias)

    def noisy(X):
        y = target(X)
        return y * (1 + 1e-9 * rng.standard_normal(y.shape))

    recovery = us.learn(noisy, us.learners.AttentionLayerLearner(16, rotary=True))
    assert not recovery.model.k_bias.any()
    assert "w" not in recovery.certificate.errors
    assert any("assumed to have no biases" in sentence for sentence in recovery.certificate.assumes)


def test_key_biases_of_slow_planes_may_be_large():
    """They add nearly the same to all scores of a sequence, as in trained models."""
    target = rotary_layer(64, 4, 2, 16, 0, base=1e6, biases=0.3)
    k_bias = target.k_bias.copy()
    k_bias[:, -4:] = 20 * np.sign(k_bias[:, -4:])
    target = changed(target, k_bias=k_bias)
    recovery = learn(target)
    assert share_of_bounds(recovery, target) <= 1
    assert whole_error(recovery.model, target) <= 1e-8
    assert recovery.queries - 32 <= 2.3 * bound(64, 4, 2, 16)


def test_biases_of_the_projections_names():
    """From Qwen2's own names to a model, and back from its answers."""
    rng = np.random.default_rng(0)
    d, H, G, r = 16, 4, 2, 4
    state = {}
    for name, rows in (("q", H * r), ("k", G * r), ("v", G * r)):
        place = f"model.layers.0.self_attn.{name}_proj."
        state[place + "weight"] = rng.standard_normal((rows, d)) / np.sqrt(d)
        state[place + "bias"] = 0.3 * rng.standard_normal(rows)
    state["model.layers.0.self_attn.o_proj.weight"] = rng.standard_normal((d, H * r)) / np.sqrt(d)
    target = us.from_projections(**us.find_projections(state), heads=H, kv_heads=G, rotary_base=1e4)
    assert isinstance(target, us.RotaryLayer)
    assert target.k_bias.any()
    assert target.q_bias.any()
    assert us.equivalent(learn(target).model, target)


def test_frequencies_that_are_known():
    target = rotary_layer(16, 4, 2, 4, 0, biases=0.3, residual=True)
    for settings in ({"rotary": us.Rotary.of(1e4, 4)}, {"rotary_base": 1e4}):
        recovery = learn(target, **{"rotary": False, **settings})
        assert recovery.model.rotary == us.Rotary.of(1e4, 4)
        assert us.equivalent(recovery.model, target)
    for base in (1.01e4, 0.99e4):
        with pytest.raises(us.ModelMismatch, match=r"other frequencies.* without rotary_base"):
            learn(target, rotary=False, rotary_base=base)


# -- certificates


def test_the_certificate_holds(trials, evidence):
    shapes, shares = [(8, 2, 1, 4), (16, 4, 2, 4), (12, 3, 3, 4), (20, 4, 1, 6)], []
    sizes, refused = (0.1, 0.3, 0.5, 1.0), 0
    count = trials(2, 200)
    for seed in range(count):
        target = rotary_layer(
            *shapes[seed % 4],
            seed,
            base=BASES[seed % 3],
            residual=seed % 2 == 0,
            turning=(1.0, 0.5)[seed % 5 == 0],
            biases=sizes[seed // 4 % 4],
        )
        try:
            recovery = learn(target, seed=seed)
        except (us.ModelMismatch, us.NotIdentifiable):
            refused += 1
            continue
        errors, bounds = largest_errors(recovery.model, target), recovery.certificate.errors
        assert set(bounds) == {"c", "M", "W", "w"}
        shares.append(max(errors[name] / bounds[name] for name in bounds))
        assert shares[-1] <= 1, seed
        same = us.equivalent(recovery.model, target, errors=bounds)
        assert same.verdict == "equal"
    assert refused <= count / 20 + trials(1, 0)
    evidence(
        "rotary layer with biases, certificate",
        f"{refused} of {count}",
        trials=len(shares),
        broken=0,
        median_looseness=f"{1 / np.median(shares):.0f}×",
    )


# -- what is refused


@pytest.mark.few(3)
@pytest.mark.parametrize("name", nearly_rotary(rotary_layer(4, 2, 1, 2, 0)))
def test_impostors_are_refused(name, trials, evidence):
    count = trials(1, 20)
    for seed in range(count):
        target = nearly_rotary(rotary_layer(16, 4, 2, 4, seed, biases=0.3))[name]
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            us.learn(target, us.learners.AttentionLayerLearner(16, rotary=True, seed=seed))
    evidence(f"rotary layer with biases, impostor: {name}", refused=f"{count} of {count}")


def test_biases_that_are_too_large_are_named():
    for seed in range(3):
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable), match=r"biases.* too large"):
            learn(rotary_layer(64, 4, 2, 16, seed, biases=4.0), seed=seed)


def test_biases_behind_float32_are_named():
    class Biased(InFloat32):
        """Any coarse layer with biases: they are those of the layer, answers float32's."""

        def __call__(self, X):
            return self.layer(X.astype(np.float32)).astype(np.float32).astype(np.float64)

    with pytest.raises(us.NotIdentifiable, match=r"biases.*coarse.*not recovered"):
        us.learn(
            Biased(rotary_layer(16, 4, 2, 4, 0, biases=0.3)),
            us.learners.AttentionLayerLearner(16, rotary=True),
        )


def test_values_of_one_dimension_are_named():
    """One more unknown than values have dimensions: what tokens weigh that are no keys."""
    rng = np.random.default_rng(0)
    target = rotary_layer(12, 3, 3, 4, 0, biases=0.3)
    with pytest.raises(us.NotIdentifiable, match="so few dimensions"):
        learn(changed(target, O=rng.standard_normal((3, 12, 1)), V=target.V[:, :1]))


# -- the parts


@pytest.mark.parametrize("between", [0, 3])
def test_weights_are_those_of_the_target(between):
    """Answers to keys beside query tokens, around a base token, give back every head's scores."""
    target = rotary_layer(16, 4, 2, 4, 0, biases=0.5)
    rng = np.random.default_rng(1)
    M = [target.values_of(h) for h in range(4)]
    values = HeadMaps([one.left for one in M], [one.right for one in M])
    whole = sum(one.left @ one.right for one in M)
    layer = LayerMap(target.c, whole, False)
    keys, tokens = rng.standard_normal((2, 3, 16)) / 4, rng.standard_normal((5, 16)) / 4
    block, token = np.array([0, 1, 0, 1, 0]), np.arange(5)
    scale, base = np.array([1.0, -1.0, 0.5, 1.0, -0.5]), rng.standard_normal(16) / 4
    asked = KeyAnswers(keys, tokens, block, token, scale, np.zeros((5, 16)), between, base=base)
    probes = asked.asked(np.arange(5), "keys", "data")
    X = probes[0:5]
    assert X.shape == (5, 4 + between, 16) == (len(probes), probes.tokens, probes.dim)
    assert set(probes.design()) == {"keys", "queries", "places", "scale", "between", "base"}
    answered = asked.replaced(np.arange(5), scale, target(X))
    scores = answered.scores(layer, values).reshape(5, 4, 2, 3)
    wanted = target.scored(X)
    for k in range(5):
        expected = wanted[k, :, :3] - wanted[k, :, -1:]
        assert np.allclose(scores[k, :, block[k]], expected, rtol=0, atol=1e-8)
        assert np.isnan(scores[k, :, 1 - block[k]]).all()


def test_relative_errors_see_biases():
    """The measure that promises are made in is not blind to what this file is about."""
    target = rotary_layer(16, 4, 2, 4, 0, biases=0.3)
    other = changed(target, k_bias=target.k_bias + 1e-3)
    assert relative_errors(other, target)[1] == 0
    assert whole_error(other, target) > 1e-5


def test_another_base_is_named_alone():
    """Biases are read before frequencies are compared, so nothing is said of their size."""
    target = rotary_layer(16, 4, 2, 4, 0, biases=0.3)
    with pytest.raises(us.ModelMismatch, match="other frequencies") as refusal:
        learn(target, rotary=False, rotary_base=1.1e4)
    assert "too large" not in str(refusal.value)
    found = refusal.value.determined["frequencies"]
    assert np.allclose(found, target.rotary.frequencies, rtol=1e-6)
