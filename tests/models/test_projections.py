"""Weights as people have them: folded into heads, found by their names, read without pickles."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import unsoftmax as us


def layer(seed, d, size, heads, kv_heads, outputs):
    rng = np.random.default_rng(seed)
    rows, shared = heads * size, kv_heads * size
    shapes = {"q": (rows, d), "k": (shared, d), "v": (shared, d), "o": (outputs, rows)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return arrays | {f"{name}_bias": rng.standard_normal(len(x)) for name, x in arrays.items()}


def attend(X, arrays, heads, kv_heads):
    """What such a layer answers, written out: (B, outputs)."""
    q, k, v = (X @ arrays[n].T + arrays[f"{n}_bias"] for n in "qkv")
    size = arrays["q"].shape[0] // heads
    joined = []
    for h in range(heads):
        mine, shared = (slice(g * size, (g + 1) * size) for g in (h, h // (heads // kv_heads)))
        scores = np.einsum("bnr,br->bn", k[..., shared], q[:, -1, mine]) / np.sqrt(size)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        joined.append(np.einsum("bn,bnr->br", weights, v[..., shared]))
    return np.concatenate(joined, axis=1) @ arrays["o"].T + arrays["o_bias"]


@given(st.integers(0, 10**6), st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3), (6, 2)]))
def test_a_layer_seen_through_a_coordinate_is_several_heads(seed, counts):
    heads, kv_heads = counts
    arrays = layer(seed, 5, 3, heads, kv_heads, 4)
    X = np.random.default_rng(seed).standard_normal((6, 4, 5))
    answers = attend(X, arrays, heads, kv_heads)
    for k in (0, 3):
        one = us.from_projections(**arrays, heads=heads, kv_heads=kv_heads, coordinate=k)
        assert np.allclose(one(X), answers[:, k], rtol=1e-12, atol=1e-12)
    row = np.array([1.0, -2.0, 0.0, 0.5])
    added = us.from_projections(**arrays, heads=heads, kv_heads=kv_heads, coordinate=row)
    assert np.allclose(added(X), answers @ row, rtol=1e-12, atol=1e-11)


def test_biases_may_be_missing_and_the_keys_changes_nothing():
    arrays = layer(0, 5, 3, 2, 2, 4)
    plain = {name: array for name, array in arrays.items() if "_" not in name}
    model = us.from_projections(**plain, heads=2, coordinate=1)
    assert not model.w.any()
    assert model.c == 0
    keys = us.from_projections(**plain, k_bias=arrays["k_bias"], heads=2, coordinate=1)
    assert us.equivalent(model, keys, rtol=0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"coordinate": None}, "coordinate is missing"),
        ({"coordinate": 4}, "coordinate must be 0 to 3"),
        ({"coordinate": True}, "coordinate must have 1 dimension"),
        ({"coordinate": np.ones(3)}, r"have shape \(4,\)"),
        ({"heads": 4}, "6 rows, which 4 heads cannot share"),
        ({"heads": 0}, "heads must be a whole number"),
        ({"kv_heads": 4}, "2 query heads cannot share 4"),
        ({"kv_heads": 1}, r"k must have shape \(3, 5\)"),
        ({"k": np.ones((3, 5))}, "give kv_heads"),
        ({"q": np.ones(6)}, "q must have 2 dimensions"),
        ({"o": np.ones((4, 5))}, r"o must have shape \(m, 6\)"),
        ({"v_bias": np.ones(4)}, r"v_bias must have shape \(6,\)"),
        ({"v": np.full((6, 5), np.nan)}, "v must be finite"),
        ({"v": np.full((6, 5), "1")}, "of real numbers"),
    ],
)
def test_what_does_not_fit_is_named(change, sentence):
    given = {**layer(0, 5, 3, 2, 2, 4), "heads": 2, "coordinate": 0, **change}
    with pytest.raises(ValueError, match=sentence):
        us.from_projections(**given)


# -- names


def state(arrays, scheme, prefix):
    names = {
        "BERT": ("self.query", "self.key", "self.value", "output.dense"),
        "Llama": ("q_proj", "k_proj", "v_proj", "o_proj"),
        "OPT": ("q_proj", "k_proj", "v_proj", "out_proj"),
        "torch": (None, None, None, "out_proj"),
    }[scheme]
    found = {}
    for role, name in zip("qkvo", names, strict=True):
        if name is not None:
            found[f"{prefix}{name}.weight"] = arrays[role]
            found[f"{prefix}{name}.bias"] = arrays[f"{role}_bias"]
    if scheme == "torch":
        for ours, theirs in (("", "weight"), ("_bias", "bias")):
            found[f"{prefix}in_proj_{theirs}"] = np.concatenate([arrays[r + ours] for r in "qkv"])
    return found


def same(found, arrays):
    return found.keys() == arrays.keys() and all(np.array_equal(found[n], arrays[n]) for n in found)


@pytest.mark.parametrize("scheme", ["torch", "BERT", "Llama", "OPT"])
def test_projections_are_found_by_the_names_that_people_use(scheme):
    first, second = (layer(seed, 6, 3, 2, 2, 6) for seed in (0, 1))
    one = state(first, scheme, "model.layers.0.attention.")
    both = one | state(second, scheme, "model.layers.10.attention.") | {"other.weight": np.ones(3)}
    assert same(us.find_projections(one), first)
    assert same(us.find_projections(both, "model.layers.10"), second)
    assert same(us.find_projections(both, "model.layers.0.attention"), first)
    with pytest.raises(ValueError, match=r"2 attention layers .* model\.layers\.0\.attention"):
        us.find_projections(both)
    with pytest.raises(ValueError, match=r"that begins with .model\.layers\.1"):
        us.find_projections(both, "model.layers.1")


def test_layers_that_normalise_queries_are_refused():
    arrays = layer(0, 6, 3, 2, 2, 6)
    named = state(arrays, "Llama", "layers.0.self_attn.")
    named["layers.0.self_attn.q_norm.weight"] = np.ones(3)
    with pytest.raises(ValueError, match="normalises queries or keys"):
        us.find_projections(named)


def test_plain_names_and_what_holds_no_layer():
    arrays = layer(0, 5, 3, 2, 2, 4)
    assert same(us.find_projections(arrays), arrays)
    with pytest.raises(ValueError, match="No attention layer"):
        us.find_projections({})
    with pytest.raises(ValueError, match="equal parts"):
        us.find_projections({"in_proj_weight": np.ones((7, 4)), "out_proj.weight": np.ones((4, 4))})


# -- files


def bfloat16_file(path, numbers):
    upper = (numbers.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    entry = {"dtype": "BF16", "shape": list(numbers.shape), "data_offsets": [0, len(upper)]}
    header = json.dumps({"x": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + upper)


def test_weights_are_read_from_files(tmp_path):
    arrays = layer(0, 5, 3, 2, 2, 4)
    np.savez(tmp_path / "a.npz", **arrays)
    save_file({n: x.astype(np.float32) for n, x in arrays.items()}, tmp_path / "b.safetensors")
    assert same(us.find_projections(us.load_weights(tmp_path / "a.npz")), arrays)
    single = us.load_weights(tmp_path / "b.safetensors")
    assert len(single) == len(arrays) == len(us.load_weights(tmp_path / "a.npz"))
    assert all(np.array_equal(single[n], x.astype(np.float32)) for n, x in arrays.items())
    numbers = np.array([[1.0, -2.5, 3.25], [0.0, 1e30, -1e-30]])
    bfloat16_file(tmp_path / "c.safetensors", numbers)
    read = us.load_weights(tmp_path / "c.safetensors")["x"]
    assert read.shape == (2, 3)
    assert np.allclose(read, numbers, rtol=2**-7)


def test_files_that_are_none_are_refused_and_nothing_in_them_is_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.savez(tmp_path / "trap.npz", q=np.array([Trap()], dtype=object))
    with pytest.raises(ValueError, match="q cannot be read"):
        us.load_weights(tmp_path / "trap.npz")["q"]
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(KeyError):
        us.load_weights(tmp_path / "trap.npz")["absent"]
    for name, content in (("a.npz", b"no zip"), ("a.safetensors", b"x" * 20)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="not a readable"):
            us.load_weights(tmp_path / name)
    (tmp_path / "a.pt").write_bytes(b"pickle")
    with pytest.raises(ValueError, match="could run anything"):
        us.load_weights(tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        us.load_weights(tmp_path / "absent.npz")
