"""Layers with rotary positions: what they answer, which are equal, files, projections."""

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import unsoftmax as us
from tests.models.test_rotary_head import times
from tests.rotary_layers import rotary_layer


def changed(model, **arrays):
    return us.RotaryLayer.from_arrays({**model.arrays(), **arrays})


def as_transformers_have_it(X, arrays, heads, kv_heads, base):
    """One sub-layer of Llama or Qwen at its last position, head by head."""
    r = len(arrays["q"]) // heads
    angles = np.arange(X.shape[1])[:, None] * base ** (-np.arange(0, r, 2) / r)
    cosine, sine = (np.tile(f(angles), 2)[:, None] for f in (np.cos, np.sin))

    def turned(z):
        half = np.concatenate([-z[..., r // 2 :], z[..., : r // 2]], axis=-1)
        return z * cosine + half * sine

    def projected(role, count):
        return (X @ arrays[role].T + arrays[f"{role}_bias"]).reshape(*X.shape[:2], count, r)

    q, k = turned(projected("q", heads)), turned(projected("k", kv_heads))
    v, mixed = projected("v", kv_heads), []
    for h in range(heads):
        g = h // (heads // kv_heads)
        scores = np.einsum("bnr,br->bn", k[:, :, g], q[:, -1, h]) / np.sqrt(r)
        e = np.exp(scores)
        mixed.append(np.einsum("bn,bnr->br", e / e.sum(axis=1, keepdims=True), v[:, :, g]))
    return np.concatenate(mixed, axis=1) @ arrays["o"].T


def projections(d, heads, kv_heads, r, seed=0):
    rng = np.random.default_rng(seed)
    rows = {"q": heads * r, "k": kv_heads * r, "v": kv_heads * r}
    arrays = {role: rng.standard_normal((n, d)) / np.sqrt(d) for role, n in rows.items()}
    arrays |= {f"{role}_bias": rng.standard_normal(n) for role, n in rows.items()}
    return arrays | {"o": rng.standard_normal((d, heads * r))}


def test_projections_answer_as_transformers_do():
    arrays, X = projections(12, 6, 2, 4), np.random.default_rng(1).standard_normal((3, 9, 12))
    layer = us.from_projections(**arrays, heads=6, kv_heads=2, rotary_base=1e4)
    assert np.allclose(layer(X), as_transformers_have_it(X, arrays, 6, 2, 1e4), atol=1e-12)
    order = np.arange(4).reshape(2, 2).T.ravel()  # rows of a plane beside each other
    for role, count in (("q", 6), ("k", 2)):
        for name in (role, f"{role}_bias"):
            whole = arrays[name].reshape(count, 4, *arrays[name].shape[1:])
            arrays[name] = whole[:, order].reshape(arrays[name].shape)
    other = us.from_projections(
        **arrays, heads=6, kv_heads=2, rotary_base=1e4, layout="interleaved"
    )
    assert np.array_equal(other(X), layer(X))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"layout": "thirds"}, "layout must be"),
        ({"coordinate": 0, "residual": True}, "leave coordinate out"),
    ],
)
def test_what_projections_with_positions_do_not_take(settings, named):
    with pytest.raises(ValueError, match=named):
        us.from_projections(
            **projections(12, 2, 1, 4), heads=2, kv_heads=1, rotary_base=1e4, **settings
        )


def test_the_norm_of_a_layer_with_positions():
    """Llama's, read with its names, is before the heads and takes no mean off."""
    arrays, scale = projections(12, 6, 2, 4), np.linspace(0.5, 2.0, 12)
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
    state = {f"self_attn.{name}.weight": arrays[own] for own, name in names.items()}
    state["input_layernorm.weight"] = scale
    q, k, v, o = (arrays[own] for own in "qkvo")
    found = us.find_projections(state, eps=1e-6)
    layer = us.from_projections(**found, heads=6, kv_heads=2, rotary_base=1e4)
    plain = us.from_projections(q, k, v, o, heads=6, kv_heads=2, rotary_base=1e4)
    X = np.random.default_rng(0).standard_normal((3, 5, 12))
    seen = X / np.sqrt(np.mean(X**2, axis=2, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(layer(X), X[:, -1] + plain(seen), rtol=1e-12, atol=1e-12)


def test_names_of_llama_and_qwen(tmp_path):
    arrays = projections(12, 6, 2, 4)
    state = {}
    for name, array in arrays.items():
        role, _, bias = name.partition("_")
        state[f"model.layers.0.self_attn.{role}_proj.{bias or 'weight'}"] = array
    save_file(state, tmp_path / "model.safetensors")
    found = us.find_projections(us.load_weights(tmp_path / "model.safetensors"))
    layer = us.from_projections(**found, heads=6, kv_heads=2, rotary_base=1e4)
    assert us.equivalent(
        layer, us.from_projections(**arrays, heads=6, kv_heads=2, rotary_base=1e4), rtol=0
    )


def test_equal_layers_have_one_canonical_form():
    model = rotary_layer(8, 4, 2, 4, 0, biases=0.5, residual=True)
    rng = np.random.default_rng(0)
    gauge = rng.standard_normal((2, 2)) + 1j * rng.standard_normal((2, 2))  # plane by group

    arrays = {name: array.copy() for name, array in model.arrays().items()}
    mixing = rng.standard_normal((2, 4, 4))
    for g in range(2):
        arrays["K"][g] = times(model.K[g], gauge[g])
        arrays["k_bias"][g] = times(model.k_bias[g], gauge[g])
        arrays["V"][g] = mixing[g] @ model.V[g]
    for h, g in enumerate(model.groups):
        arrays["Q"][h] = times(model.Q[h], 1 / gauge[g].conj())
        arrays["q_bias"][h] = times(model.q_bias[h], 1 / gauge[g].conj())
        arrays["O"][h] = model.O[h] @ np.linalg.inv(mixing[g])
    order = [2, 0, 3, 1]
    for name in ("O", "Q", "q_bias", "groups"):
        arrays[name] = arrays[name][order]
    other = us.RotaryLayer.from_arrays(arrays)
    X = rng.standard_normal((5, 7, 8))
    assert np.allclose(other(X), model(X), atol=1e-12)
    assert us.equivalent(other, model)
    forms = us.canonical(other), us.canonical(model)
    assert forms[0].G == forms[0].H == 4
    for name, array in forms[0].arrays().items():
        assert np.allclose(array, forms[1].arrays()[name], atol=1e-10), name
    assert np.allclose(forms[0](X), model(X), atol=1e-12)


def test_residuals_outputs_and_heads_count():
    model = rotary_layer(8, 4, 2, 4, 2)
    assert us.equivalent(model, changed(model, residual=True)).verdict == "different"
    wider = rotary_layer(8, 4, 2, 4, 2, m=9)
    assert us.equivalent(model, wider).by == "shape"
    fewer = changed(
        model, **{name: model.arrays()[name][1:] for name in ("O", "Q", "q_bias", "groups")}
    )
    assert us.equivalent(model, fewer).verdict == "different"
    silent = changed(model, O=np.concatenate([0 * model.O[:1], model.O[1:]]))
    assert us.equivalent(fewer, silent)
    none = us.canonical(changed(model, O=0 * model.O))
    assert none.H == 0
    assert np.array_equal(none(np.ones((1, 2, 8))), model.c[None])
    twice = [0, 0, 1, 2, 3]
    doubled = changed(
        model,
        O=(np.array([0.5, 0.5, 1, 1, 1])[:, None, None] * model.O[twice]),
        **{name: model.arrays()[name][twice] for name in ("Q", "q_bias", "groups")},
    )
    assert us.equivalent(doubled, model)
    assert us.canonical(doubled).H == 4


def test_planes_that_do_not_turn_are_a_layer_without_positions():
    still = rotary_layer(8, 4, 2, 4, 3, biases=0.5, turning=0.0, residual=True)
    heads = [
        us.LayerHead.from_factors(U, still.V[g], still.K[g], Q, still.K[g].T @ b_q)
        for U, g, Q, b_q in zip(still.O, still.groups, still.Q, still.q_bias, strict=True)
    ]
    plain = us.AttentionLayer(heads, still.c, residual=True)
    X = np.random.default_rng(0).standard_normal((3, 5, 8))
    assert np.allclose(still(X), plain(X), atol=1e-12)
    assert us.equivalent(still, plain)
    turning = changed(still, frequencies=np.array([1.0, 0.1]))
    assert us.equivalent(plain, turning).verdict == "different"
    assert us.equivalent(plain, us.AttentionLayer(heads, still.c)).verdict == "different"


def test_one_output_is_several_heads():
    arrays: dict[str, Any] = {**projections(12, 6, 2, 4), "heads": 6, "kv_heads": 2}
    layer = us.from_projections(**arrays, rotary_base=1e4)
    heads = us.from_projections(**arrays, rotary_base=1e4, coordinate=3)
    X = np.random.default_rng(1).standard_normal((3, 9, 12))
    assert np.allclose(heads(X), layer(X)[:, 3], atol=1e-12)
    one = rotary_layer(6, 4, 2, 2, 0, m=1, biases=0.5)
    assert us.equivalent(one, one.coordinate([1.0]))


def test_one_head_with_one_output_is_a_rotary_head():
    layer = rotary_layer(6, 1, 1, 4, 0, m=1, biases=0.5)
    head = us.RotaryHead(
        layer.K[0],
        layer.Q[0],
        (layer.O[0] @ layer.V[0])[0],
        layer.rotary,
        k_bias=layer.k_bias[0],
        q_bias=layer.q_bias[0],
        c=layer.c[0],
    )
    assert us.equivalent(layer, head)


def test_names_weights_and_norms():
    model = rotary_layer(8, 4, 2, 4, 5, biases=0.5, residual=True)
    X = np.random.default_rng(0).standard_normal((2, 5, 8))
    assert repr(model) == "RotaryLayer(H=4, G=2, d=8, residual, rotary)"
    assert repr(rotary_layer(8, 4, 2, 4, 5, m=3)) == "RotaryLayer(H=4, G=2, d=8, m=3, rotary)"
    assert model.attention(X).shape == (2, 4, 5)
    assert np.allclose(model.attention(X).sum(axis=2), 1)
    norms = [np.linalg.norm(model.O[h] @ model.V[g]) for h, g in enumerate(model.groups)]
    assert model.parameter_norm("M") == pytest.approx(min(norms))
    assert model.parameter_norm("w") > 0


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"groups": np.array([0, 0, 0, 0])}, "groups must name each"),
        ({"residual": True, "O": np.ones((4, 3, 4)), "c": np.ones(3)}, "With a residual"),
    ],
)
def test_wrong_arrays_are_named(arrays, named):
    with pytest.raises(ValueError, match=named):
        changed(rotary_layer(8, 4, 2, 4, 0), **arrays)


def test_frequencies_must_be_a_rotary():
    ones = np.ones((1, 2, 2))
    with pytest.raises(TypeError, match="rotary must be a Rotary"):
        us.AttentionLayer.from_factors(ones, ones, ones, ones, np.ones(2), rotary=[1.0])  # type: ignore[arg-type]
