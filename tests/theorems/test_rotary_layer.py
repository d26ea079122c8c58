"""A whole layer with rotary positions, with biases as Qwen2's or without: beyond the paper.

Counts, accuracy, groups, certificates, and what is refused.
"""

import time

import numpy as np
import pytest

import unsoftmax as us
from tests.nearly_rotary import nearly_rotary
from tests.rotary_layers import (
    hidden_in_float32,
    largest_errors,
    longest_miss,
    relative_errors,
    rotary_layer,
    share_of_bounds,
    whole_error,
)
from tests.truth import Counted, hidden, rank_of_jacobian
from unsoftmax.learners.attention_layer.key_answers import KeyAnswers
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.theory import counts

BASES = (1e4, 5e5, 1e6)
FOUND, TOLD = {"rotary": True}, {"rotary_base": 1e4}
with_and_without = pytest.mark.parametrize("biases", [0.0, 0.3], ids=["", "biases"])


def learn(target, **settings):
    settings = {"rotary": True, **settings}
    return us.learn(hidden(target), us.learners.AttentionLayerLearner(target.dim, **settings))


def bound(d, H, G, r, biases=True):
    """The least number of queries: free parameters over numbers of an answer."""
    return counts.rotary_layer(d, H, G, r, biases=biases) / d


def changed(target, **arrays):
    return us.RotaryLayer.from_arrays({**target.arrays(), **arrays})


# -- what is promised


@pytest.mark.few(1)
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
        # the search for biases asks nothing where there are none
        assert 0 <= counts.rotary_layer_queries(*shape) - (recovery.queries - 32) <= 8
        assert "w" not in recovery.certificate.errors
        assert not recovery.model.k_bias.any()
        assert not recovery.model.q_bias.any()
        M, W = relative_errors(recovery.model, target, range(21))
        shares.append((recovery.queries - 32) / bound(*shape, biases=False))
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
        M=max(maps),
        W_to_20=f"median {np.median(scores):.0e}, worst {max(scores):.0e}",
        W_to_2000=f"median {np.median(far):.0e}, worst {max(far):.0e}",
        of_512_tokens=max(long),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("biases", "settings", "most"),
    [(0.1, FOUND, 2.1), (0.5, FOUND, 2.1), (0.5, TOLD, 2.1), (1.0, FOUND, 2.7)],
    ids=["0.1", "0.5", "0.5, frequencies told", "1"],
)
def test_such_a_layer_with_biases(biases, settings, most, trials, evidence):
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
        of_512_tokens=max(long),
    )


@pytest.mark.claimed
@pytest.mark.parametrize(
    ("name", "shape", "settings", "seeds", "most", "accuracy"),
    [
        (
            "rotary layer of SmolLM2-135M's shape, d = 576, 9 heads in 3 groups, residual",
            (576, 9, 3, 64),
            {},
            3,
            1.45,
            1e-8,
        ),
        (
            "rotary layer with biases of 0.3 of Qwen2-0.5B's shape, d = 896, 14 heads in 2 groups",
            (896, 14, 2, 64),
            {"base": 1e6, "biases": 0.3},
            2,
            1.65,
            1e-6,
        ),
    ],
    ids=["SmolLM2", "Qwen2"],
)
def test_shapes_of_language_models(name, shape, settings, seeds, most, accuracy, evidence):
    shares, scores, seconds, (d, H, G, r) = [], [], [], shape
    biases = "biases" in settings
    for seed in range(seeds):
        target = rotary_layer(d, H, G, r, seed, residual=True, **settings)
        learner = us.learners.AttentionLayerLearner(shape[0], rotary=True, seed=seed)
        start = time.process_time()
        recovery = us.learn(hidden(target), learner)
        seconds.append(time.process_time() - start)
        assert shape[1:3] == (recovery.model.H, recovery.model.G)
        assert share_of_bounds(recovery, target) <= 1
        shares.append((recovery.queries - 32) / bound(d, H, G, r, biases))
        distances = [0, 1, 20, 500]
        scores.append(
            whole_error(recovery.model, target, distances)
            if biases
            else relative_errors(recovery.model, target, distances)[1]
        )
    assert max(shares) <= most
    assert max(scores) <= accuracy
    evidence(
        name,
        runs=len(shares),
        queries=f"{max(shares):.2f} × the bound",
        W=max(scores),
        seconds=f"{max(seconds):.0f}, the target's among them",
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(("polish", "most", "accuracy"), [(None, 2.5, 1e-2), (True, 4.8, 1e-4)])
def test_inside_float32(polish, most, accuracy, trials, evidence):
    shape, shares, scores, long, refused = (64, 4, 2, 16), [], [], [], 0
    count = trials(1, 20)
    for seed in range(count):
        target = rotary_layer(*shape, seed, residual=seed % 2 == 0)
        learner = us.learners.AttentionLayerLearner(64, polish=polish, rotary_base=1e4, seed=seed)
        try:
            recovery = us.learn(hidden_in_float32(target), learner)
        except us.ModelMismatch:
            refused += 1
            continue
        assert share_of_bounds(recovery, target) <= 1
        shares.append((recovery.queries - 32) / bound(*shape, biases=False))
        scores.append(relative_errors(recovery.model, target)[1])
        long.append(longest_miss(recovery.model, target, seed))
    assert np.median(shares) <= most
    assert np.median(scores) <= accuracy
    assert refused <= count / 10 + trials(1, 0)
    how = "finest" if polish else "auto"
    evidence(
        f"rotary layer inside float32, d = 64, 4 heads in 2 groups, {how}",
        f"{refused} of {count}",
        queries=f"median {np.median(shares):.2f}, most {max(shares):.2f} × the bound",
        W=f"median {np.median(scores):.0e}, worst {max(scores):.0e}",
        of_512_tokens=f"median {np.median(long):.0e}, worst {max(long):.0e}",
    )


def test_the_count_with_biases_is_the_formula():
    queries = learn(rotary_layer(64, 4, 2, 16, 0, biases=0.3)).queries - 32
    assert abs(queries - counts.rotary_layer_queries(64, 4, 2, 16, biases=True)) <= 6


@pytest.mark.few(3)
@with_and_without
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
def test_shapes(shape, settings, biases):
    d, H, G, r = shape
    target = rotary_layer(d, H, G, r, 0, biases=biases, **settings)
    recovery = learn(target)
    assert shape[1:3] == (recovery.model.H, recovery.model.G)
    assert share_of_bounds(recovery, target) <= 1
    if biases:
        assert whole_error(recovery.model, target) <= 1e-6
    else:
        assert relative_errors(recovery.model, target)[1] <= 1e-9


def test_groups_of_different_sizes():
    target = changed(rotary_layer(16, 4, 2, 4, 3), groups=np.array([0, 0, 0, 1]))
    recovery = learn(target)
    assert sorted(np.bincount(recovery.model.groups)) == [1, 3]
    assert us.equivalent(recovery.model, target)


@pytest.mark.few(1)
@with_and_without
def test_frequencies_that_are_known(biases):
    target = rotary_layer(16, 4, 2, 4, 0, biases=biases, residual=True)
    for settings in ({"rotary": us.Rotary.of(1e4, 4)}, {"rotary_base": 1e4}):
        recovery = learn(target, **{"rotary": False, **settings})
        assert recovery.model.rotary == us.Rotary.of(1e4, 4)
        assert us.equivalent(recovery.model, target)
    # biases are read before frequencies are compared, so nothing is said of their size
    for other in ({"rotary": us.Rotary.of(1.01e4, 4)}, {"rotary_base": 0.99e4}):
        with pytest.raises(us.ModelMismatch, match=r"other frequencies.* without rotary_base") as e:
            learn(target, **{"rotary": False, **other})
        assert "too large" not in str(e.value)
        assert np.allclose(e.value.determined["frequencies"], target.rotary.frequencies, rtol=1e-6)


def test_a_layer_without_positions_is_said_to_have_none():
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((2, 4, 4, 12)) / 3
    heads = [us.LayerHead.from_factors(U.T, V, K, Q) for U, V, K, Q in factors]
    plain = us.AttentionLayer(heads, np.ones(12), residual=True)
    recovery = learn(plain)
    assert any("do not turn with distance" in note for note in recovery.notes)
    assert us.equivalent(recovery.model, plain)


# -- which biases there are


SOME = {
    "keys alone": (1, 0),
    "queries alone": (0, 1),
    "queries of one head": (0, np.array([1, 0, 0, 0])[:, None]),
    "one group and two heads": (np.array([1, 0])[:, None], np.array([1, 0, 0, 1])[:, None]),
    "small": (1e-4, 1e-4),
    "below what offsets are long": (1e-9, 1e-9),
}


@pytest.mark.few(1)
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


# -- certificates


@pytest.mark.few(1)
@pytest.mark.parametrize("biased", [False, True], ids=["", "biases"])
def test_the_certificate_holds(biased, trials, evidence):
    shapes, shares = [(8, 2, 1, 4), (16, 4, 2, 4), (12, 3, 3, 4), (20, 4, 1, 6)], []
    sizes, refused = (0.1, 0.3, 0.5, 1.0), 0
    count = trials(2, 200 if biased else 500)
    for seed in range(count):
        target = rotary_layer(
            *shapes[seed % 4],
            seed,
            base=BASES[seed % 3],
            residual=seed % 2 == 0,
            turning=(1.0, 0.5)[seed % 5 == 0],
            biases=sizes[seed // 4 % 4] if biased else 0.0,
        )
        try:
            recovery = learn(target, seed=seed)
        except (us.ModelMismatch, us.NotIdentifiable):
            refused += 1
            continue
        errors, bounds = largest_errors(recovery.model, target), recovery.certificate.errors
        assert set(bounds) == {"c", "M", "W"} | ({"w"} if biased else set())
        share = max(errors[name] / bounds[name] for name in bounds)
        shares.append(share if biased else share_of_bounds(recovery, target))
        assert shares[-1] <= 1, seed
        same = us.equivalent(recovery.model, target, errors=bounds)
        assert same.verdict == "equal"
    assert refused <= (count / 20 + trials(1, 0) if biased else 0)
    evidence(
        f"rotary layer{' with biases' * biased}, certificate",
        f"{refused} of {count}" if biased else "",
        trials=len(shares),
        broken=0,
        median_looseness=f"{1 / np.median(shares):.0f}×",
    )


# -- what is refused


@pytest.mark.few(6)
@pytest.mark.parametrize("name", nearly_rotary(rotary_layer(4, 2, 1, 2, 0)))
@with_and_without
def test_impostors_are_refused(biases, name, trials, evidence):
    count = trials(1, 20)
    for seed in range(count):
        target = nearly_rotary(rotary_layer(16, 4, 2, 4, seed, biases=biases))[name]
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            us.learn(target, us.learners.AttentionLayerLearner(16, rotary=True, seed=seed))
    kind = "rotary layer with biases, impostor" if biases else "rotary layer's impostor"
    evidence(f"{kind}: {name}", refused=f"{count} of {count}")


def test_biases_that_are_too_large_are_named():
    for seed in range(3):
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable), match=r"biases.* too large"):
            learn(rotary_layer(64, 4, 2, 16, seed, biases=4.0), seed=seed)


def test_biases_behind_float32_are_named():
    single = hidden_in_float32(rotary_layer(16, 4, 2, 4, 0, biases=0.3))
    with pytest.raises(us.NotIdentifiable, match=r"biases.*coarse.*not recovered"):
        us.learn(single, us.learners.AttentionLayerLearner(16, rotary=True))


def test_values_of_one_dimension_are_named():
    """One more unknown than values have dimensions: what tokens weigh that are no keys."""
    rng = np.random.default_rng(0)
    target = rotary_layer(12, 3, 3, 4, 0, biases=0.3)
    with pytest.raises(us.NotIdentifiable, match="so few dimensions"):
        learn(changed(target, O=rng.standard_normal((3, 12, 1)), V=target.V[:, :1]))


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
    lower = changed(target, K=K)
    assert us.equivalent(learn(lower).model, lower)
    Q[:2, 2] = Q[:2, 0]
    with pytest.raises(us.ModelMismatch, match=r"ranks (3, 4|4, 3).*lower rank than its planes"):
        learn(changed(target, Q=Q))
    Q[2:, 2] = Q[2:, 0]
    with pytest.raises(us.ModelMismatch, match=r"leave the span.*lower rank than its planes"):
        learn(changed(target, Q=Q))


@pytest.mark.few(1)
@pytest.mark.parametrize("outputs", [None, 5])
def test_values_of_a_lower_rank_than_keys(outputs, trials, evidence):
    """V of five rows of eight, or an answer of five numbers: more query tokens are asked."""
    scores = []
    for seed in range(trials(1, 20)):
        target = rotary_layer(32, 4, 2, 8, seed, m=outputs)
        if outputs is None:
            V = target.V.copy()
            V[:, 5:] = V[:, :3]
            target = changed(target, V=V)
        recovery = learn(target, seed=seed)
        assert us.equivalent(recovery.model, target)
        assert share_of_bounds(recovery, target) <= 1
        scores.append(relative_errors(recovery.model, target, [*range(21), 500])[1])
    assert max(scores) <= 1e-9
    what = "values of rank 5, keys of 8" if outputs is None else "answers of 5 numbers, keys of 8"
    evidence(f"rotary layer, d = 32, {what}", runs=len(scores), W=max(scores))


def test_where_the_order_of_tokens_is_not_the_reason_the_refusal_stays_as_it_was():
    with pytest.raises(us.ModelMismatch, match="are not affine"):
        us.learn(lambda X: np.tanh(X[:, -1]) ** 2, us.learners.AttentionLayerLearner(4))


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


def test_relative_errors_see_no_biases_and_whole_ones_do():
    """The measure that promises are made in is not blind to what this file is about."""
    target = rotary_layer(16, 4, 2, 4, 0, biases=0.3)
    other = changed(target, k_bias=target.k_bias + 1e-3)
    assert relative_errors(other, target)[1] == 0
    assert whole_error(other, target) > 1e-5


# -- the information bound


@pytest.mark.parametrize(("shape", "biases"), [((5, 2, 1, 2), 0.0), ((6, 4, 2, 2), 0.5)])
def test_the_count_is_the_rank_of_the_jacobian(shape, biases):
    """What the answers' derivatives span is what answers can tell."""
    d, H, G, r = shape
    target = rotary_layer(d, H, G, r, 1, biases=biases)
    names = ("O", "V", "K", "Q", "c", *(("k_bias", "q_bias") if biases else ()))
    arrays = target.arrays()
    X = [np.random.default_rng(n).standard_normal((60, n, d)) for n in (1, 2, 3, 5)]

    def answers(name, array):
        layer = changed(target, **{name: array})
        return np.concatenate([layer(x).ravel() for x in X])

    count = counts.rotary_layer(d, H, G, r, biases=bool(biases))
    assert rank_of_jacobian({name: arrays[name] for name in names}, answers, 1e-6) == count
    assert largest_errors(target, target)["W"] == 0
