"""`us.verify` of layers that answer with vectors: right ones are never called different."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import unsoftmax as us
from tests import feed_forward
from tests.attention_layers import layer, normalised
from tests.questions.layer_services import (
    any_feed_forward,
    any_layer,
    changed_array,
    in_tensor_cores,
    served,
)
from tests.questions.services import LADDER
from tests.rotary_layers import rotary_layer
from tests.truth import Counted
from unsoftmax.cli.commands import app
from unsoftmax.cli.minilm import minilm_layer


def jitter(model, rng):
    size = 10.0 ** rng.uniform(-15, -4)
    return lambda X: model(X) * (1 + size * rng.standard_normal((len(X), 1)))


def noisy(model, rng):
    return us.oracles.noisy(model, 10.0 ** rng.uniform(-12, -4), int(rng.integers(1000)))


SERVICES: dict[str, Any] = {
    "float64": lambda m, rng: served(m, np.float64),
    "float32": lambda m, rng: served(m, np.float32),
    "float32 inside": lambda m, rng: lambda X: served(m, np.float32)(X).astype(np.float64),
    "float64, value biases": lambda m, rng: served(m, np.float64, bias=10.0 ** rng.uniform(-1, 1)),
    "float32, value biases": lambda m, rng: served(m, np.float32, bias=10.0 ** rng.uniform(-1, 1)),
    "float16": lambda m, rng: served(m, np.float16),
    "decimals": lambda m, rng: us.oracles.rounded(m, int(rng.integers(1, 9))),
    "noise": noisy,
    "jitter": jitter,
}


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("drawn", [any_layer, any_feed_forward])
def test_right_layers_are_never_called_different(drawn, service, trials, evidence):
    runs, verdicts, most = trials(1, 500), Counter[str](), 0
    for seed in range(runs):
        rng = np.random.default_rng([seed, 31])
        model = drawn(rng, 0.5 if service == "float16" else 2.0)
        oracle = Counted(SERVICES[service](model, rng))
        with np.errstate(all="ignore"):
            try:
                result = us.verify(oracle, model, seed=seed)
            except us.OracleError:
                assert service == "float16", "float16 overflows"
                verdicts["no answer"] += 1
                continue
        assert result.verdict != "different", (seed, model, result)
        assert result.queries == oracle.queries <= 80
        verdicts[result.verdict] += 1
        most = max(most, oracle.queries)
    evidence(
        f"verify, right weights of {drawn.__name__[4:].replace('_', '-')}s, service: {service}",
        verdicts["undecided"] + verdicts["no answer"],
        runs=runs,
        called_different=0,
        called_the_same=verdicts["same"],
        queries=most,
    )


def normed(model, where, seed):
    if where == "none":
        return model
    rng, d = np.random.default_rng([seed, 3]), model.dim
    scale, shift = 1 + 0.3 * rng.standard_normal(d), 0.1 * rng.standard_normal(d)
    norm = us.LayerNorm(scale, shift, 1e-5, where == "before", where != "RMS behind")
    arrays = {**model.arrays(), **{f"norm.{name}": x for name, x in norm.arrays().items()}}
    return type(model).from_arrays(arrays)


def attention(where, seed, H=3, d=16):
    """A layer with a residual connection, M and W as they are."""
    drawn = layer(H, d // 2, d, seed, residual=True)
    heads = [us.LayerHead(head.M, head.W, head.w) for head in drawn.heads]
    return normed(us.AttentionLayer(heads, drawn.c, residual=True), where, seed)


def neurons(where, seed, d=16):
    return normed(feed_forward.layer(d, 2 * d, d, seed, residual=True), where, seed)


PLACES = ("none", "behind", "RMS behind", "before")


@pytest.mark.parametrize("bits", [8, 11])
@pytest.mark.parametrize("where", ["none", "behind", "before"])
@pytest.mark.parametrize("kind", [attention, neurons])
def test_operands_of_few_bits(kind, where, bits, trials, evidence):
    runs, verdicts = trials(1, 300), Counter[str]()
    for seed in range(runs):
        d = int(np.random.default_rng([seed, 77]).choice([16, 32, 64]))
        model = kind(where, seed, d=d)
        result = us.verify(in_tensor_cores(model, bits), model, seed=seed, locate=False)
        verdicts[result.verdict] += 1
        assert result.verdict != "different", (seed, result)
    evidence(
        f"verify, right {kind.__name__} layers, norm: {where}, operands of {bits} bits",
        verdicts["undecided"],
        runs=runs,
        called_different=0,
        called_the_same=verdicts["same"],
    )


# -- wrong weights


def parameters(model, h):
    """Name the arrays of a layer, of one head, and what a search calls them."""
    for name in model.arrays():
        place, _, own = name.rpartition(".")
        if own in ("residual", "before", "centred", "eps"):
            continue
        if place == "norm":
            yield name, f"{own} of the norm"
        elif not place:
            yield name, own
        elif place == f"heads.{h}":
            yield name, f"{own} of head {h}"


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("where", PLACES)
def test_the_tensor_of_an_attention_layer_is_named(where, dtype, trials, evidence):
    runs, asked, named, most = trials(1, 100), 0, Counter[str](), 0
    size = 1e-4 if dtype == "float64" else 1e-2
    for seed in range(runs):
        model, h = attention(where, seed), seed % 3
        for name, said in [*parameters(model, h)][:: trials(2, 1)]:
            target = changed_array(model, name, size, np.random.default_rng([seed, 5]))
            oracle = Counted(served(target, np.dtype(dtype)))
            result = us.verify(oracle, model, seed=seed)
            assert result.verdict == "different", (seed, name)
            # a norm before is part of M and W
            wanted = None if where == "before" and name.startswith("norm") else said
            assert result.tensor in (wanted, None), (seed, name, result.tensor)
            asked, most = asked + 1, max(most, oracle.queries)
            named["right"] += result.tensor == said
            named["not told"] += result.tensor is None
    assert most <= 100
    evidence(
        f"verify names the tensor of an attention layer, norm: {where}, {dtype}",
        named["not told"],
        runs=asked,
        named_right=named["right"],
        named_wrong=0,
        queries=most,
    )
    assert named["right"] >= (1 if where != "before" else 0.6) * asked - 0.05 * asked - trials(1, 0)


@pytest.mark.few(2)
@pytest.mark.parametrize("where", PLACES)
def test_the_tensor_of_a_feed_forward_layer_is_named(where, trials, evidence):
    runs, asked, named, most = trials(1, 100), 0, Counter[str](), 0
    for seed in range(runs):
        model = neurons(where, seed)
        for name, said in [*parameters(model, None)][:: trials(2, 1)]:
            target = changed_array(model, name, 1e-4, np.random.default_rng([seed, 5]))
            oracle = Counted(target)
            result = us.verify(oracle, model, seed=seed)
            if result.verdict != "different":
                assert result.verdict == "undecided"
                assert result.power[said] > 1e-4  # and was said not to show
                named["silent"] += 1
                continue
            inside = name in "AbB" or name.startswith("norm")
            wanted = "A, b or B, or the norm" if where == "before" and inside else said
            # alone, or beside another that would explain the answers as well, or not at all
            listed = str(result.tensor).replace(", ", " or ").split(" or ")
            assert wanted in (result.tensor, *listed) or not result.tensor, (seed, name, result)
            named["silent"] += not result.tensor
            asked, most = asked + 1, max(most, oracle.queries)
            named["alone"] += result.tensor == said
    assert most <= 100
    assert named["silent"] <= 0.01 * asked + trials(1, 0)
    assert named["alone"] >= (0.15 if where == "before" else 0.6) * asked - trials(1, 0)
    evidence(
        f"verify names the tensor of a feed-forward layer, norm: {where}",
        asked - named["alone"],
        runs=asked,
        named_alone=named["alone"],
        named_wrong=0,
        queries=most,
    )


@pytest.mark.claimed
@pytest.mark.parametrize(("whole", "dtype"), [(True, "float64"), (False, "float32")])
def test_a_ladder_of_changes_of_trained_layers(whole, dtype, evidence):
    """What a float32 service hides is as small as its own rounding."""
    model, runs = minilm_layer(0, whole=whole), 20
    noticed, named, most = Counter[str](), Counter[str](), 0
    hidden = ("1e-4", "1e-5", "1e-6", "2⁻¹⁵", "one entry") if dtype == "float32" else ()
    for seed in range(runs):
        for rung in (*LADDER, "unchanged"):
            rng = np.random.default_rng([seed, 19])
            arrays = {name: np.array(x) for name, x in model.arrays().items()}
            only, change = LADDER.get(rung, ((), None))
            only = only and tuple("O" if name == "v" else name for name in only)
            of_head = f"heads.{seed % 12}." if rung.startswith("one entry") else ""
            for name in arrays:
                own = name.rpartition(".")[2]
                if own in "OVKQw" and name.startswith(of_head) and (only is None or own in only):
                    arrays[name] = change(arrays[name], rng)
            oracle = Counted(served(us.AttentionLayer.from_arrays(arrays), np.dtype(dtype)))
            result = us.verify(oracle, model, seed=seed, locate=bool(of_head))
            noticed[rung] += result.verdict == "different"
            named[rung] += result.tensor == f"W of head {seed % 12}"
            most = max(most, oracle.queries)
            assert result.verdict == "same" or rung != "unchanged"
            if not of_head:
                assert oracle.queries <= 20
    assert most <= 100
    what = "as served" if whole else "attention alone"
    for rung in LADDER:
        share = f"{noticed[rung] / runs:.0%}".replace("%", " %")
        evidence(f"verify, a layer of MiniLM, {what}, {dtype}: {rung}", runs=runs, noticed=share)
        if not any(word in rung for word in hidden):
            assert noticed[rung] == runs, rung
    if dtype == "float64":
        assert named["one entry of W by 1 %"] == runs


def test_power_is_what_is_caught(trials, evidence):
    """Changes as large as the power are caught in most cases; a fiftieth of it in none."""
    runs, caught, asked = trials(1, 100), Counter[str](), 0
    for seed in range(runs):
        model = (attention, neurons)[seed % 2](PLACES[seed % 4], seed)
        weighed = dict(parameters(model, 1))
        result = us.verify(us.oracles.rounded(model, 7), model, seed=seed, locate=False)
        for name, said in weighed.items():
            asked += 1
            for share in (1.0, 0.02):
                rng = np.random.default_rng([seed, 23])
                target = changed_array(model, name, share * result.power[said], rng)
                oracle = us.oracles.rounded(target, 7)
                verdict = us.verify(oracle, model, seed=seed, locate=False).verdict
                caught[str(share)] += verdict == "different"
    assert caught["1.0"] >= 0.8 * asked
    assert caught["0.02"] <= 0.02 * asked
    evidence(
        "verify, changes of layers as large as its power",
        runs=asked,
        caught=f"{caught['1.0'] / asked:.0%}".replace("%", " %"),
    )


def hidden_by_the_gauge(model, rng):
    """The same function in other parameters."""
    yield us.canonical(model)
    if isinstance(model, us.FeedForward):
        units = 2.0 ** rng.integers(-5, 5, len(model.b))
        norm, A, b = model.norm, model.A * units[:, None], model.b * units
        yield us.FeedForward(A, b, model.B / units, model.c, model.residual, norm)
        return
    heads = list(model.heads)[::-1]
    if model.norm is not None and model.norm.centred and not model.norm.before:
        common = np.ones((model.outputs, 1)) @ rng.standard_normal((1, model.dim))
        heads = [us.LayerHead(head.M + common, head.W, head.w) for head in heads]
    yield us.AttentionLayer(heads, model.c, model.residual, model.norm)
    if model.norm is None:  # K against Q, V against O
        R = rng.standard_normal((4, 4)) + 4 * np.eye(4)
        q, k, v, o = rng.standard_normal((4, 8, 8)) / 2
        yield us.from_projections(q, k, v, o, heads=2)
        k, q = (
            np.vstack([some[:4], S @ some[4:]]) for some, S in ((k, R), (q, np.linalg.inv(R).T))
        )
        yield us.from_projections(q, k, v, o, heads=2)


@pytest.mark.few(2)
@pytest.mark.parametrize("where", PLACES)
def test_what_the_gauge_hides_is_the_same(where):
    rng = np.random.default_rng(0)
    for model in (attention(where, 0), neurons(where, 0)):
        for other in hidden_by_the_gauge(model, rng):
            if other.dim == model.dim:
                assert us.verify(other, model).verdict == "same", other
                assert us.verify(model, other).verdict == "same", other
    first, second = [m for m in hidden_by_the_gauge(attention("none", 0), rng) if m.dim == 8]
    assert us.verify(first, second)


def test_what_a_certificate_leaves_open_is_the_same(trials):
    for seed in range(trials(1, 20)):
        for target, learner in (
            (layer(2, 4, 12, seed, residual=True), us.learners.AttentionLayerLearner(12)),
            (feed_forward.layer(8, 12, 8, seed), us.learners.FeedForwardLearner(8)),
        ):
            found = us.learn(target, learner)
            errors = found.certificate.errors
            assert us.verify(target, found.model, errors=errors, seed=seed)


IMPOSTORS: dict[str, Any] = {
    "a sliding window": lambda m: lambda X: m(X[:, -3:]),
    "tanh behind": lambda m: lambda X: np.tanh(m(X)),
    "no residual": lambda m: lambda X: m(X) - X[:, -1],
    "another seed": lambda m: attention("none", 1000),
    "one number negated": lambda m: lambda X: m(X) * np.where(np.arange(m.dim) == 3, -1, 1),
}


@pytest.mark.parametrize("impostor", IMPOSTORS)
def test_what_is_no_such_layer_is_not_the_same(impostor, trials):
    for seed in range(trials(1, 50)):
        model = attention("none", seed)
        result = us.verify(IMPOSTORS[impostor](model), model, seed=seed)
        assert result.verdict == "different"
        assert impostor != "no residual" or result.tensor == "the residual connection"


# -- how it is run


def test_another_width_is_a_sentence():
    model = attention("none", 0)
    with pytest.raises(us.OracleError, match="answers with 5 numbers, these weights with 16"):
        us.verify(lambda X: model(X)[:, :5], model)


def test_the_command(tmp_path):
    model = attention("behind", 0)
    model.save(tmp_path / "claimed.safetensors")
    changed_array(model, "heads.1.M", 1e-3, np.random.default_rng(0)).save(
        tmp_path / "other.safetensors"
    )
    weights = ["--weights", str(tmp_path / "claimed.safetensors"), "--json"]
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "other.safetensors"), *weights])
    assert (done.exit_code, json.loads(done.stdout)["tensor"]) == (1, "M of head 1")


@pytest.mark.parametrize("where", ["behind", "RMS behind"])
def test_another_eps_is_named(where, trials):
    for seed in range(trials(3, 100)):
        rng, eps = np.random.default_rng([seed, 8]), float((1e-5, 1e-12)[seed % 2])
        of = {**neurons(where, seed, 8).arrays(), "norm.eps": np.array(eps)}
        plain = us.FeedForward.from_arrays({**of, "activation": np.array([*map(ord, "gelu")])})
        factor = 2.0 if seed % 2 else 1 + 10.0 ** rng.uniform(-5, -2)
        other = us.FeedForward.from_arrays({**plain.arrays(), "norm.eps": np.array(factor * eps)})
        found = us.verify(other, plain, seed=seed)
        assert (found.verdict, found.tensor) == ("different", "eps of the norm"), seed


@pytest.mark.parametrize("where", ["none", "behind"])
def test_a_column_of_b_that_is_0_is_no_change_of_a_or_b_alone(where, trials):
    for seed in range(trials(4, 200)):
        d = 5 + seed % 8
        model = normed(feed_forward.layer(d, d - 1, d, seed, residual=True), where, seed)
        B = np.array(model.B)
        B[:, 0] = 0.0
        found = us.verify(us.FeedForward.from_arrays({**model.arrays(), "B": B}), model, seed=seed)
        assert found.verdict == "different"
        assert "B" in (found.tensor or "B"), (seed, found.tensor)


def test_what_one_neuron_writes_is_not_told_from_the_scale_behind_it():
    rng, d = np.random.default_rng(0), 8
    A, B = rng.standard_normal((1, d)), rng.standard_normal((d, 1))
    norm = us.LayerNorm(np.exp(rng.standard_normal(d)), rng.standard_normal(d), 1e-12)

    def layer(B):
        return us.FeedForward(A, np.zeros(1), B, np.zeros(d), False, norm)

    found = us.verify(layer(B * (1 + 0.1 * rng.standard_normal(B.shape))), layer(B))
    assert (found.verdict, found.tensor) == ("different", "scale of the norm or B")


def test_changed_weights_are_not_laid_to_the_arithmetic_alone():
    target = normalised(2, 4, 8, eps=1e-5)
    arrays = target.arrays() | {"residual": np.array(False)}
    other = us.AttentionLayer.from_arrays(arrays)
    result = us.verify(other, target, locate=False)
    assert result.verdict == "different"
    assert "missed by the target's arithmetic" not in " ".join(result.notes)
    assert "roundoff" not in " ".join(us.verify(target, target).notes)


def test_the_command_calls_other_shapes_different(tmp_path):
    claimed, narrow = rotary_layer(8, 2, 2, 4, 0), rotary_layer(6, 2, 2, 4, 0)
    claimed.save(tmp_path / "claimed.safetensors")
    narrow.save(tmp_path / "narrow.safetensors")
    arrays = claimed.arrays()
    arrays |= {"O": arrays["O"][:, :5], "c": arrays["c"][:5], "residual": np.array(False)}
    us.RotaryLayer.from_arrays(arrays).save(tmp_path / "fewer.safetensors")
    weights = ["--weights", str(tmp_path / "claimed.safetensors"), "--json"]
    for other in ("narrow", "fewer"):
        done = CliRunner().invoke(app, ["verify", str(tmp_path / f"{other}.safetensors"), *weights])
        said = json.loads(done.stdout)
        assert (done.exit_code, said["status"], said["verdict"]) == (1, 1, "different"), other


def test_an_m_beside_value_biases_is_said_to_move_c_as_well():
    model, rng = attention("none", 0), np.random.default_rng(0)
    changed, b = changed_array(model, "heads.1.M", 1e-3, rng), rng.standard_normal(model.dim)
    a = changed.arrays()
    moved = (a["heads.1.M"] - model.arrays()["heads.1.M"]) @ b
    found = us.verify(us.AttentionLayer.from_arrays({**a, "c": a["c"] + moved}), model)
    assert (found.verdict, found.tensor) == ("different", None)
    assert "With value biases" in found.notes[-1]


def test_missed_identities_of_a_changed_layer_may_be_the_change():
    model, rng = feed_forward.layer(32, 16, 16, 0), np.random.default_rng(0)
    A = np.array(model.A)
    A[rng.integers(16), rng.integers(32)] += 1e-3
    found = us.verify(us.FeedForward.from_arrays({**model.arrays(), "A": A}), model, locate=False)
    assert found.verdict == "different"
    assert any("change itself may be the reason" in note for note in found.notes)
    unchanged = us.verify(model, model)
    assert not any("change itself may be the reason" in note for note in unchanged.notes)
