"""`us.verify` of one head, several and whole layers with rotary positions: verdicts and names."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.commands import run
from tests.nearly_rotary import nearly_rotary
from tests.oracles.http_server import METADATA, in_json, output, sequences, serving
from tests.rotary_heads import rotary_head, several_rotary
from tests.rotary_layers import rotary_layer
from tests.rotary_services import in_float32, with_change
from unsoftmax.cli.verify import _rows

SINGLES = [(6, 4), (16, 8), (8, 8), (64, 16)]
HEADS = [(2, 6, 4), (4, 16, 8), (3, 8, 8), (4, 16, 4)]
LAYERS = [(16, 4, 2, 4), (16, 4, 4, 4), (32, 4, 1, 8), (12, 1, 1, 6), (64, 4, 2, 16)]
KINDS = ["one head", "heads", "layer"]
every_kind = pytest.mark.parametrize("kind", KINDS)
SCORES = ["K", "Q", "k_bias", "q_bias", "frequencies"]
CASES = [
    *(("one head", name) for name in (*SCORES, "v", "c")),
    *(("heads", name) for name in (*SCORES, "v", "c")),
    *(("layer", name) for name in (*SCORES, "O", "V", "c")),
]


def claimed(kind, seed):
    """A model of every shape in turn, every second with biases; layers with a residual or not."""
    if kind == "one head":
        (d, r), base = SINGLES[seed % len(SINGLES)], (1e4, 5e5)[seed // 2 % 2]
        return rotary_head(d, r, seed, base=base, biases=0.4 * (seed % 2))
    biases, rng = 0.3 * (seed // 2 % 2), np.random.default_rng([seed, 9])
    if kind == "layer":
        d, H, G, r = LAYERS[seed % len(LAYERS)]
        return rotary_layer(d, H, G, r, seed, residual=seed % 2 == 0, biases=biases)
    H, d, r = HEADS[seed % len(HEADS)]
    model = several_rotary(H, d, r, seed)
    drawn = {name: biases * rng.standard_normal((H, r)) for name in ("k_bias", "q_bias")}
    return us.RotaryHeads.from_arrays({**model.arrays(), **drawn})


def named(kind):
    """How rows of evidence name a kind."""
    return "one rotary head" if kind == "one head" else f"rotary {kind}"


def one_of(model, tensor, seed):
    """Which head's or group's part of a tensor is changed, and what that is called."""
    array = np.asarray(model.arrays()[tensor])
    if array.ndim < 2 or isinstance(model, us.RotaryHead):
        return None, tensor
    place = seed % len(array)
    shared = isinstance(model, us.RotaryLayer) and tensor in ("K", "V", "k_bias")
    return place, f"{tensor} of {'group' if shared else 'head'} {place}"


@pytest.mark.few(4)
@pytest.mark.parametrize("service", ["float64", "float32", "decimals", "noise"])
@every_kind
def test_right_weights_are_never_called_different(kind, service, trials, evidence):
    same, count = 0, trials(2, 200)
    for seed in range(count):
        model = claimed(kind, seed)
        target = {
            "float64": lambda X, model=model: model(X),
            "float32": in_float32(model),
            "decimals": us.oracles.rounded(model, 4 + seed % 4),
            "noise": us.oracles.noisy(model, 10.0 ** -(4 + seed % 5), seed),
        }[service]
        verdict = us.verify(target, model, seed=seed).verdict
        assert verdict != "different"
        same += verdict == "same"
    exact, coarse = (0.9, 0.5) if kind == "one head" else (0.95, 0.6)
    assert same >= (exact if "float" in service else coarse) * count - trials(1, 0)
    evidence(f"verify, {named(kind)}: right, {service}", same=f"{same} of {count}")


@pytest.mark.few(5)
@pytest.mark.parametrize(("kind", "tensor"), CASES)
def test_a_changed_tensor_is_named(kind, tensor, trials, evidence):
    right = 0
    for seed in range(count := trials(1, 200 if kind == "one head" else 100)):
        model, size = claimed(kind, seed), (1e-2, 1e-6)[seed // 2 % 2]
        place, name = one_of(model, tensor, seed)
        found = us.verify(with_change(model, tensor, size, seed, place), model, seed=seed)
        assert found.verdict == "different"
        assert found.queries <= (40 if kind == "one head" else 78)
        told = found.tensor in (name, None)
        assert told or (kind != "one head" and "scores" in str(found.tensor)), (seed, found)
        right += found.tensor == name
    assert right >= 0.9 * count - trials(1, 0)
    evidence(f"verify, {named(kind)}: {tensor} changed", named=f"{right} of {count}")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "tensor"),
    [(kind, tensor) for kind, tensor in CASES if kind != "one head" or tensor in "KQfrequencies"],
)
def test_a_changed_tensor_of_float32_services(kind, tensor, trials, evidence):
    right, count = 0, trials(1, 100)
    for seed in range(count):
        model = claimed(kind, seed)
        place, name = one_of(model, tensor, seed)
        target = in_float32(with_change(model, tensor, 0.1, seed, place))
        found = us.verify(target, model, seed=seed)
        assert found.verdict == "different"
        told = found.tensor is None or name in found.tensor.split(" or ")
        # where a large change opens other heads' gates as well it is not told whose it is
        assert told or (kind != "one head" and "scores" in str(found.tensor)), (seed, found)
        right += found.tensor == name
    assert right >= (0.25 if kind == "heads" else 0.5) * count - trials(1, 0)
    evidence(
        f"verify, {named(kind)}: {tensor} changed by 0.1, float32", named=f"{right} of {count}"
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["heads", "layer"])
def test_one_changed_entry_is_named(kind, trials, evidence):
    right = count = 0
    for seed in range(trials(1, 50)):
        model, rng = claimed(kind, seed), np.random.default_rng(seed)
        values = ("O", "V") if kind == "layer" else ("v",)
        for tensor in ("K", "Q", "k_bias", "q_bias", *values):
            array = np.array(model.arrays()[tensor])
            entry = tuple(rng.integers(n) for n in array.shape)
            array[entry] += 1e-3
            target = type(model).from_arrays({**model.arrays(), tensor: array})
            found = us.verify(target, model, seed=seed)
            assert found.verdict == "different"
            right += found.tensor == one_of(model, tensor, entry[0])[1]
            count += 1
    assert right >= 0.95 * count - trials(1, 0)
    evidence(f"verify, {named(kind)}: one entry changed by 1e-3", named=f"{right} of {count}")


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS[::-1])
def test_a_base_one_percent_off_another_layout_and_a_missing_residual(kind, trials):
    for seed in range(trials(1, 50)):
        model = claimed(kind, seed)
        a, r = model.arrays(), model.K.shape[-2]
        other = np.broadcast_to(us.Rotary.of(1.01e4, r).frequencies, np.shape(a["frequencies"]))
        found = us.verify(
            type(model).from_arrays({**a, "frequencies": other.copy()}), model, seed=seed
        )
        assert found.verdict == "different"
        assert found.tensor == "frequencies"
        halves = np.concatenate([np.arange(0, r, 2), np.arange(1, r, 2)])
        laid_out = type(model).from_arrays({**a, **{n: a[n][..., halves, :] for n in "KQ"}})
        found = us.verify(laid_out, model, seed=seed)
        assert found.verdict == "different"
        assert found.tensor is None or "frequencies" not in found.tensor
        if kind == "layer" and found.tensor is None and "no change of one" in found.notes[-1]:
            assert "another rotary layout" in found.notes[-1]
        if kind == "layer":
            without = us.RotaryLayer.from_arrays({**a, "residual": not model.residual})
            if model.outputs == model.dim:
                found = us.verify(without, model, seed=seed)
                assert (found.verdict, found.tensor) == ("different", "the residual connection")


def with_frequencies(model, frequencies):
    every = np.broadcast_to(frequencies, model.frequencies.shape).copy()
    return us.RotaryHeads.from_arrays({**model.arrays(), "frequencies": every})


@pytest.mark.few(2)
@pytest.mark.parametrize("base", [10_001, 10_100, 11_000, 500_000])
def test_another_base_of_all_heads_is_named(base, trials):
    for seed in range(trials(1, 50)):
        model = claimed("heads", seed)
        other = with_frequencies(model, us.Rotary.of(base, model.K.shape[1]).frequencies)
        found = us.verify(other, model, seed=seed)
        assert (found.verdict, found.tensor) == ("different", "frequencies")
        if base > 10_100:
            assert us.verify(in_float32(other), model, seed=seed).tensor == "frequencies"
        # frequencies of a recovery differ in their last digits, and planes stand in an order
        assert us.verify(other, us.canonical(model), seed=seed).tensor == "frequencies"


@pytest.mark.few(1)
@pytest.mark.parametrize("H", [3, 12])
def test_other_frequencies_that_all_heads_share_are_named(H):
    model = several_rotary(H, 48, 4 if H == 12 else 16, H)
    theta = model.frequencies[0]
    ramp = np.linspace(1.0, 0.25, len(theta))
    for other in (theta / 4, theta * ramp, np.append(theta[:-1], 0.03)):
        assert us.verify(with_frequencies(model, other), model).tensor == "frequencies"
    rng = np.random.default_rng(0)
    # every head has got its own
    own = theta * (1 + 1e-3 * rng.standard_normal(model.frequencies.shape))
    assert us.verify(with_frequencies(model, own), model).tensor == "scores of every head"


def test_planes_that_are_turned_alike_at_all_distances_are_no_frequencies(trials):
    """Queries of the next position, or planes turned by any angle, in all heads."""
    for seed in range(trials(1, 4)):
        model = claimed("heads", seed)
        angles = 1e-2 * np.random.default_rng(seed).standard_normal(model.frequencies.shape[1])
        for turn in (us.Rotary(1e-2 * model.frequencies[0]), us.Rotary(angles)):
            Q = turn.turned(model.Q.transpose(0, 2, 1), np.array(1.0)).transpose(0, 2, 1)
            q_bias = turn.turned(model.q_bias, np.array(1.0))
            other = us.RotaryHeads.from_arrays({**model.arrays(), "Q": Q, "q_bias": q_bias})
            found = us.verify(other, model, seed=seed)
            assert found.verdict == "different"
            assert "frequencies" not in str(found.tensor)


def test_the_gauge_is_no_change():
    for kind in KINDS:
        model = claimed(kind, 0)
        assert us.verify(us.canonical(model), model)
        assert us.verify(lambda X, model=model: model(X), us.canonical(model))


def test_what_is_no_such_model_is_not_called_the_same():
    layer, head = rotary_layer(8, 2, 1, 4, 0), rotary_head(8, 4, 0, scale=2.0)
    for model, nearly in ((layer, nearly_rotary(layer)), (head, nearly_rotary(head))):
        for name, target in nearly.items():
            if name not in ("a window", "scaled frequencies beyond a length", "faint ALiBi"):
                found = us.verify(target, model, locate=model is layer)
                assert found.verdict == "different", name
                assert found.tensor in (None, "frequencies"), name


def test_several_changed_tensors_are_not_called_one(trials):
    layer = rotary_layer(16, 4, 2, 4, 0)
    fine_tuned = with_change(layer, "Q", 1e-3, 0)
    found = us.verify(fine_tuned, layer)
    assert (found.verdict, found.tensor) == ("different", None)
    assert any("no change of one tensor alone" in note for note in found.notes)
    alone = claimed("layer", 3)  # of one head, whose K explains in few planes what Q did
    both = with_change(with_change(alone, "K", 1e-2, 0), "Q", 1e-2, 1)
    assert us.verify(both, alone, seed=3).tensor is None
    heads = several_rotary(4, 16, 8, 0)
    for tensor in ("K", "Q"):
        for size in (1e-10, 1e-3)[:: trials(2, 1)]:
            other = with_change(heads, tensor, size, 0)
            assert us.verify(other, heads).tensor == "scores of every head"
    both = with_change(with_change(heads, "v", 1e-3, 0, 1), "c", 1e-3, 1)
    assert us.verify(us.RotaryHeads.from_arrays(both.arrays()), heads).tensor == "c, v of head 1"


def test_an_output_beside_value_biases_is_said_to_move_c_as_well():
    layer, b = rotary_layer(16, 4, 2, 4, 0), np.random.default_rng(0).standard_normal(4)
    a = layer.arrays()
    moved = np.array(a["O"])
    moved[1, 2, 3] += 1e-3
    served = us.RotaryLayer.from_arrays({**a, "O": moved, "c": a["c"] + (moved - a["O"])[1] @ b})
    found = us.verify(served, layer)
    assert (found.verdict, found.tensor) == ("different", None)
    assert "when O changed beside value biases" in found.notes[-1]


def test_plain_weights_of_a_rotary_layer_are_told_of_positions():
    layer = rotary_layer(16, 4, 4, 4, 0)
    a = layer.arrays()
    values, scores = a["O"] @ a["V"], a["K"].transpose(0, 2, 1) @ a["Q"]
    heads = [us.LayerHead(*one) for one in zip(values, scores, strict=True)]
    plain = us.AttentionLayer(heads, a["c"], residual=layer.residual)
    assert any("have no positions" in note for note in us.verify(layer, plain).notes)
    assert not any("have no positions" in note for note in us.verify(layer, layer).notes)
    assert not any("have no positions" in note for note in us.verify(plain, plain).notes)


def test_of_many_tensors_the_command_shows_those_that_show_least(tmp_path):
    layer = rotary_layer(16, 4, 4, 4, 0)
    layer.save(tmp_path / "layer.safetensors")
    words = ("verify", "layer.safetensors", "--weights", "layer.safetensors")
    said = run(tmp_path, *words).stdout
    assert said.count("smallest change of") == 6
    assert "others (--out keeps them all), at most" in " ".join(said.replace("│", " ").split())


def test_keys_and_queries_of_one_head_changed_together_are_named_both():
    head = claimed("one head", 2)
    both = with_change(with_change(head, "K", 1e-3, 0), "Q", 1e-3, 1)
    assert us.verify(both, head).tensor == "K, Q"


def test_a_head_without_positions_is_told_from_one_with_them():
    K, Q = np.random.default_rng(0).standard_normal((2, 4, 8)) / 3
    still = us.RotaryHead(K, Q, np.ones(8), us.Rotary([0.0, 0.0]))
    assert us.verify(us.SingleHead.from_factors(K, Q, np.ones(8)), still)
    turning = us.RotaryHead(K, Q, np.ones(8), us.Rotary([1.0, 0.1]))
    assert us.verify(turning, still).verdict == "different"
    assert us.verify(with_change(still, "K", 1e-3, 0), still).tensor == "K"
    square = us.RotaryHead(K[:, :4], Q[:, :4], np.ones(4), us.Rotary([0.0, 0.0]))
    assert us.verify(with_change(square, "K", 1e-3, 0), square).tensor == "K or Q"


def test_keys_of_a_lower_rank_are_not_looked_at_one_by_one():
    head = claimed("one head", 2)
    K = head.K.copy()
    K[3] = 0.0
    lower = us.RotaryHead(K, head.Q, head.v, head.rotary)
    found = us.verify(with_change(lower, "Q", 1e-3, 0), lower)
    assert (found.verdict, found.tensor) == ("different", None)
    assert any("lower rank" in note for note in found.notes)


def test_more_heads_than_dimensions_are_not_looked_at_one_by_one():
    heads = several_rotary(6, 4, 4, 1)
    assert us.verify(lambda X: heads(X), heads)
    found = us.verify(with_change(heads, "K", 1e-3, 0, 2), heads)
    assert (found.verdict, found.tensor) == ("different", None)
    assert any("more heads than dimensions" in note for note in found.notes)


def test_without_heads_only_c_is_left():
    empty = us.RotaryHeads(
        np.zeros((0, 2, 3)), np.zeros((0, 2, 3)), np.zeros((0, 3)), us.Rotary([1.0]), c=2.0
    )
    assert us.verify(lambda X: np.full(len(X), 2.0), empty).verdict != "different"
    assert us.verify(lambda X: np.full(len(X), 2.1) + 1e-3 * X[:, 0, 0], empty).verdict == (
        "different"
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [*KINDS, "biased"])
def test_a_recovery_is_verified_within_its_certificate(kind):
    L = us.learners
    pairs: dict[str, Any] = {
        "one head": (rotary_head(8, 4, 1), L.LowRankHead(8, 4, rotary=True)),
        "biased": (rotary_head(8, 4, 1, biases=0.3), L.LowRankHead(8, 4, True, rotary=True)),
        "heads": (several_rotary(2, 8, 4, 3), L.MultiHeadLearner(8, 3, rotary=True)),
        "layer": (rotary_layer(16, 4, 2, 4, 3), L.AttentionLayerLearner(16, rotary=True)),
    }
    target, learner = pairs[kind]
    recovery = us.learn(lambda X: target(X), learner)
    errors = recovery.certificate.errors
    assert us.verify(target, recovery.model, errors=errors)
    changed = with_change(target, "K", 1e-3, 0, 1 if kind in ("heads", "layer") else None)
    assert us.verify(changed, recovery.model, errors=errors).verdict == "different"


def test_the_command_through_an_endpoint(tmp_path):
    layer = rotary_layer(16, 4, 2, 4, 0, residual=True)
    heads = several_rotary(2, 6, 4, 0)
    for name, model in (("layer", layer), ("heads", heads)):
        model.save(tmp_path / f"{name}.safetensors")
        wide = model.dim if name == "layer" else None
        metadata = {
            "inputs": [{**METADATA["inputs"][0], "shape": [-1, -1, model.dim]}],
            "outputs": [{**METADATA["outputs"][0], "shape": [-1] if wide is None else [-1, wide]}],
        }
        words = ("--weights", f"{name}.safetensors", "--json")
        with serving(in_json(in_float32(model)), metadata) as (url, _):
            right = run(tmp_path, "verify", url, *words)
        assert right.returncode == 0, right.stderr
        assert json.loads(right.stdout)["verdict"] == "same"
        other = with_change(model, "Q", 1e-2, 0, 1)

        def infer(handler, body, other=other):
            handler.send(body=output(other(sequences(body))))

        with serving(infer, metadata) as (url, _):
            wrong = run(tmp_path, "verify", url, *words)
        assert wrong.returncode == 1, wrong.stderr
        assert json.loads(wrong.stdout)["tensor"] == "Q of head 1"


def test_tensors_that_answers_cannot_test_are_one_row():
    head = us.SingleHead(np.eye(3), np.ones(3))
    found = replace(us.verify(head, head), power={"W": 1e-9, "eps": 8e6})
    rows = dict(_rows(found, 1.0, kept=True))
    assert rows["not testable by these answers"] == "eps"
    assert "smallest change of eps that would show" not in rows
