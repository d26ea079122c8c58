"""Weights as people have them: folded into heads, found by their names, read without pickles."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import unsoftmax as us
from tests.commands import run
from tests.models.test_attention_layer import NORMS, norm_of


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


@given(
    st.integers(0, 10**6),
    st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    st.sampled_from(NORMS),
    st.booleans(),
)
def test_a_layer_with_all_its_outputs(seed, counts, kind, residual):
    heads, kv_heads = counts
    arrays = layer(seed, 5, 3, heads, kv_heads, 5 if residual else 4)
    rng = np.random.default_rng(seed)
    norm = norm_of(kind, rng, 5 if residual else 4, 5)
    model = us.from_projections(
        **arrays, heads=heads, kv_heads=kv_heads, residual=residual, norm=norm
    )
    X = rng.standard_normal((6, 4, 5))
    seen = norm(X) if norm is not None and norm.before else X
    answers = attend(seen, arrays, heads, kv_heads) + (X[:, -1] if residual else 0)
    if norm is not None and not norm.before:
        answers = norm(answers)
    np.testing.assert_allclose(model(X), answers, rtol=1e-10, atol=1e-10)


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
        ({"residual": True}, "leave coordinate out"),
        ({"norm": us.LayerNorm(np.ones(4), None, 0.0)}, "leave coordinate out"),
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


def test_arrays_of_conv1d_are_transposed_and_never_written():
    arrays = layer(0, 6, 3, 2, 2, 6)
    named = {"h.0.attn.bias": np.tril(np.ones((4, 4))), "h.0.mlp.c_proj.weight": np.ones((4, 6))}
    for ours, theirs in (("", "weight"), ("_bias", "bias")):
        fused = np.concatenate([arrays[role + ours] for role in "qkv"])
        named |= {
            f"h.0.attn.c_attn.{theirs}": fused.T,
            f"h.0.attn.c_proj.{theirs}": arrays["o" + ours].T,
        }
    assert same(us.find_projections(named), arrays)
    scale, shift = np.random.default_rng(1).standard_normal((2, 6))
    norm = us.find_projections(
        named | {"h.0.ln_1.weight": scale, "h.0.ln_1.bias": shift}, eps=1e-5
    )["norm"]
    assert np.array_equal([norm.scale, norm.shift], [scale, shift])
    assert norm.before
    with pytest.raises(ValueError, match="it is 'GPT-2'"):
        us.to_projections(us.from_projections(**arrays, heads=2), names="GPT-2")


@pytest.mark.parametrize("norm", ["q_norm", "k_norm", "q_layernorm"])
def test_layers_that_normalise_queries_are_refused_and_their_families_named(norm, tmp_path):
    arrays = layer(0, 6, 3, 2, 2, 6)
    named = state(arrays, "Llama", "layers.0.self_attn.")
    named[f"layers.0.self_attn.{norm}.weight"] = np.ones(3)
    with pytest.raises(ValueError, match=r"normalises queries or keys.* Of Qwen3 .*OLMo 2"):
        us.find_projections(named)
    np.savez(tmp_path / "layer.npz", **named)
    done = run(tmp_path, "convert", "layer.npz", "--heads", 2)
    assert done.returncode == 2
    assert "give the checkpoint's folder and --part attention" in done.stderr


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


# -- back


@given(
    st.integers(0, 10**6),
    st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3), (6, 2)]),
    st.sampled_from(NORMS),
    st.booleans(),
)
def test_a_layer_goes_back_to_projections_of_the_same_function(seed, counts, kind, residual):
    heads, kv_heads = counts
    m = 10 if residual else 7
    arrays = layer(seed, 10, 3, heads, kv_heads, m)
    norm = norm_of(kind, np.random.default_rng(seed), m, 10)
    given = {"heads": heads, "kv_heads": kv_heads, "residual": residual, "norm": norm}
    model = us.from_projections(**arrays, **given)
    for found in (model, us.canonical(model)):
        for shared in (None, kv_heads):
            back = us.to_projections(found, kv_heads=shared)
            for name in (*"qo", *(() if shared is None else "kv")):
                assert back[name].shape == arrays[name].shape
            assert us.equivalent(us.from_projections(**back), model)


def test_factors_are_balanced():
    model = us.from_projections(**layer(0, 8, 3, 2, 2, 8), heads=2)
    back = us.to_projections(model)
    for h in (slice(0, 3), slice(3, 6)):
        q = np.column_stack([back["q"][h], back["q_bias"][h]])
        np.testing.assert_allclose(q @ q.T, back["k"][h] @ back["k"][h].T, atol=1e-12)
        np.testing.assert_allclose(back["o"][:, h].T @ back["o"][:, h],
                                   back["v"][h] @ back["v"][h].T, atol=1e-12)  # fmt: skip


def test_heads_and_rows_that_are_not_needed_are_zeros():
    model = us.from_projections(**layer(0, 8, 3, 2, 2, 8), heads=2)
    back = us.to_projections(model, heads=4, head_dim=5)
    assert (back["q"].shape, back["o"].shape, back["heads"]) == ((20, 8), (8, 20), 4)
    assert us.equivalent(us.from_projections(**back), model)
    assert np.count_nonzero(back["k"].any(axis=1)) == 6
    none = us.to_projections(us.AttentionLayer([], np.ones(3)))
    assert (none["heads"], none["q"].shape) == (1, (1, 3))
    assert us.equivalent(us.from_projections(**none), us.AttentionLayer([], np.ones(3)))


def test_merged_heads_go_apart_again():
    arrays = layer(0, 9, 3, 2, 2, 9)
    for role in ("q", "k", "q_bias"):
        arrays[role][3:] = arrays[role][:3]
    model = us.from_projections(**arrays, heads=2)
    merged = us.canonical(model)
    assert (merged.H, np.linalg.matrix_rank(merged.heads[0].M)) == (1, 6)
    back = us.to_projections(merged, head_dim=3)
    assert (back["heads"], back["q"].shape) == (2, (6, 9))
    assert us.equivalent(us.from_projections(**back), model)
    assert us.to_projections(merged)["q"].shape == (6, 9)  # one head of six rows


def test_what_errors_add_to_a_rank_is_cut_off():
    model = us.canonical(us.from_projections(**layer(0, 8, 2, 2, 2, 8), heads=2))
    rng = np.random.default_rng(0)
    noisy = us.AttentionLayer(
        [us.LayerHead(h.M + 1e-11 * rng.standard_normal((8, 8)),
                      h.W + 1e-11 * rng.standard_normal((8, 8)), h.w) for h in model.heads],
        model.c,
    )  # fmt: skip
    back = us.to_projections(noisy, head_dim=2, rtol=1e-9)
    assert us.equivalent(us.from_projections(**back), model)
    with pytest.raises(ValueError, match="Head 0 has scores of rank 8, which heads of 2 cannot"):
        us.to_projections(noisy, head_dim=2, rtol=1e-14)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"heads": 1}, "The layer needs 2 heads of 3; the arrays have 1"),
        ({"head_dim": 2}, "scores of rank 3, which heads of 2 cannot hold"),
        ({"kv_heads": 1}, "do not share keys and values in groups of 2, as 1 key"),
        ({"heads": 3, "kv_heads": 2}, "3 query heads cannot share 2"),
        ({"head_dim": 0}, "head_dim must be a whole number"),
        ({"names": "torch"}, r"torch has layers of d outputs .* d = 8, m = 8 .* 2 heads of 3"),
        ({"names": "GPT"}, "names must be one of torch, BERT, Llama, OPT; it is 'GPT'"),
    ],
)
def test_what_the_arrays_cannot_hold_is_named(options, sentence):
    model = us.from_projections(**layer(0, 8, 3, 2, 2, 8), heads=2)
    if options.get("names") == "torch":
        options = {**options, "head_dim": 3}
    with pytest.raises(ValueError, match=sentence):
        us.to_projections(model, **options)


@pytest.mark.parametrize("own", ["k", "v"])
def test_heads_that_share_keys_alone_or_values_alone_do_not_share(own):
    arrays = layer(0, 8, 3, 2, 1, 8)
    for role in "kv":
        arrays[role] = np.concatenate([arrays[role]] * 2)
        arrays[f"{role}_bias"] = np.concatenate([arrays[f"{role}_bias"]] * 2)
    model = us.from_projections(**arrays, heads=2)
    assert us.to_projections(model, kv_heads=1)["k"].shape == (3, 8)
    arrays[own][:3] = np.random.default_rng(1).standard_normal((3, 8))
    with pytest.raises(ValueError, match="do not share keys and values"):
        us.to_projections(us.from_projections(**arrays, heads=2), kv_heads=1)


def test_only_layers_go_back():
    with pytest.raises(TypeError, match="takes an AttentionLayer; this is a SingleHead"):
        us.to_projections(us.SingleHead([[1.0]], [1.0]))  # type: ignore[arg-type]
    q = np.ones((2, 2))
    turned = us.from_projections(q, q, q, q, heads=1, rotary_base=1e4)
    with pytest.raises(TypeError, match=r"a RotaryLayer, whose own arrays, \.arrays\(\)"):
        us.to_projections(turned)


# -- whole sub-layers by their names


PLACES = {
    "torch": ("model.norm1.", False, None),
    "BERT": ("model.attention.output.LayerNorm.", False, None),
    "Llama": ("model.input_layernorm.", True, None),
    "OPT": ("model.attention_layer_norm.", True, True),
}


@pytest.mark.parametrize("scheme", PLACES)
def test_a_sub_layer_is_found_and_named_as_people_name_it(scheme):
    arrays = layer(0, 6, 3, 2, 2, 6)
    place, before, told = PLACES[scheme]
    scale, shift = np.random.default_rng(1).standard_normal((2, 6))
    named = state(arrays, scheme, "model.attention.") | {f"{place}weight": scale}
    if scheme != "Llama":
        named[f"{place}bias"] = shift
    found = us.find_projections(named, "model", 1e-6, told)
    norm = found.pop("norm")
    assert found.pop("residual") is True
    assert same(found, arrays)
    assert (norm.before, norm.centred, norm.eps) == (before, scheme != "Llama", 1e-6)
    np.testing.assert_array_equal(norm.scale, scale)
    np.testing.assert_array_equal(norm.shift, 0 if scheme == "Llama" else shift)

    model = us.from_projections(**found, heads=2, residual=True, norm=norm)
    again = us.to_projections(us.canonical(model), names=scheme, prefix="model.attention")
    assert again.keys() <= named.keys()
    shapes = {name: array.shape for name, array in named.items()}
    assert all(shapes[name] == array.shape for name, array in again.items())
    back = us.from_projections(**us.find_projections(again, None, 1e-6, told), heads=2)
    assert us.equivalent(back, model)


def test_biases_that_are_zero_are_left_out_where_models_have_none():
    arrays = layer(0, 6, 3, 2, 1, 6)
    plain = {name: array for name, array in arrays.items() if "_" not in name}
    model = us.from_projections(**plain, heads=2, kv_heads=1)
    named = us.to_projections(model, kv_heads=1, names="Llama", prefix="layers.0.self_attn")
    assert {n: x.shape for n, x in named.items()} == {
        "layers.0.self_attn.q_proj.weight": (6, 6),
        "layers.0.self_attn.k_proj.weight": (3, 6),
        "layers.0.self_attn.v_proj.weight": (3, 6),
        "layers.0.self_attn.o_proj.weight": (6, 6),
    }


def test_norms_of_plain_names():
    arrays = layer(0, 5, 3, 2, 2, 5)
    both = arrays | {"norm_scale": np.ones(5), "norm_shift": np.zeros(5)}
    found = us.find_projections(both, eps=1e-3, before=False)
    assert repr(found["norm"]) == "LayerNorm(m=5, eps=0.001)"
    assert same(us.find_projections(both), arrays)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eps": 1e-6}, r"layer\.norm1\.weight\. Without eps none"),
        ({"before": True}, "give eps with it"),
    ],
)
def test_norms_that_are_not_there_are_named(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        us.find_projections(state(layer(0, 6, 3, 2, 2, 6), "torch", "layer.attn."), **options)


def test_places_of_norms_that_names_do_not_say():
    named = state(layer(0, 6, 3, 2, 2, 6), "OPT", "self_attn.")
    named["self_attn_layer_norm.weight"] = np.ones(6)
    with pytest.raises(ValueError, match="is not known: say before"):
        us.find_projections(named, eps=1e-5)
    model = layer_of(us.LayerNorm(np.ones(6), None, 1e-5, before=True))
    with pytest.raises(ValueError, match="BERT has its norm behind the heads"):
        us.to_projections(model, names="BERT")
    assert "norm1.weight" in us.to_projections(model, names="torch", prefix="self_attn")


def layer_of(norm):
    return us.from_projections(**layer(0, 6, 3, 2, 2, 6), heads=2, residual=True, norm=norm)
