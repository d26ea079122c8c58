"""Parts of the verdict of whole blocks: stored tensors, their gradients, held weights, rounds."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.block_services import ARITHMETICS, HEADS, claimed, draw, served
from unsoftmax.questions.composition_verdict import computed_claims
from unsoftmax.questions.held_weights import HELD, OF_MATRICES
from unsoftmax.questions.stored_tensors import StoredClaim
from unsoftmax.questions.tensor_evidence import gram

WIDTH = 32


def in_planes(name, x):
    """Put the two rows of every plane beside each other, as maps with positions have them."""
    if not name.startswith("layers.") or ("q_proj" not in name and "k_proj" not in name):
        return x
    half = WIDTH // HEADS // 2
    return x.reshape(-1, 2, half, x.shape[1]).swapaxes(1, 2).reshape(x.shape)


@pytest.mark.parametrize("kind", ["bert", "opt", "llama"])
def test_stored_tensors_are_the_files_and_their_gradients_are_right(kind, trials, tmp_path):
    rng, state = np.random.default_rng(0), draw(kind, 2, 0)
    model = claimed(kind, state, tmp_path)
    claim = StoredClaim.of(model)
    blind = {name for name in state if "key.bias" in name or "k_proj.bias" in name}
    assert claim.places.keys() == state.keys() - blind
    X = rng.standard_normal((2, 4, model.dim))
    at = claim.maps.linearise(X, every=True)
    assert np.allclose(at.value, model.all(X), rtol=0, atol=1e-12)
    y = rng.standard_normal((3, *at.value.shape))
    back = at.vjp(y)
    for name, [place] in [*claim.places.items()][:: trials(4, 1)]:
        T = claim.array(place)
        assert np.allclose(T, in_planes(name, state[name]), rtol=1e-9, atol=1e-12), name
        change = rng.standard_normal(T.shape)
        # what the file with a changed tensor is, and the claim with that tensor changed
        other = claimed(kind, state | {name: state[name] + change}, tmp_path)
        change = in_planes(name, change)
        changed = claim.changed(partial(np.add, change), [name])
        assert np.allclose(changed.answers(X, True), other.all(X), rtol=0, atol=1e-11), name
        step = 1e-6
        ends = [
            claim.changed(partial(np.add, by * change), [name]).answers(X, True)
            for by in (step, -step)
        ]
        moved = np.einsum("cbpm,bpm->cb", y, (ends[0] - ends[1]) / (2 * step))
        [(_, gradient)] = claim.gradients(back, name)
        assert np.allclose(gradient.dot(change), moved, rtol=1e-4, atol=1e-5), name
        rows = gradient.whole.reshape(6, -1)
        assert np.allclose(gram(gradient), rows @ rows.T, rtol=1e-9, atol=1e-9), name


def test_a_tensor_that_holds_several_is_one(tmp_path):
    rng, d = np.random.default_rng(0), 8
    shapes: dict[str, tuple[int, ...]] = {
        "attn.c_attn": (d, 3 * d),
        "attn.c_proj": (d, d),
        "mlp.c_fc": (d, 16),
        "mlp.c_proj": (16, d),
    }
    shapes = {f"{name}.weight": shape for name, shape in shapes.items()} | {
        f"{name}.bias": shape[1:] for name, shape in shapes.items()
    }
    shapes |= {f"ln_{k}.{end}": (d,) for k in (1, 2) for end in ("weight", "bias")}
    state: dict[str, Any] = {f"h.0.{name}": rng.standard_normal(x) for name, x in shapes.items()}
    (tmp_path / "config.json").write_text(
        '{"model_type": "gpt2", "n_head": 2, "activation_function": "gelu_new",'
        ' "layer_norm_epsilon": 1e-5}'
    )
    np.savez(tmp_path / "model.npz", **state)
    claim = us.from_checkpoint(tmp_path / "model.npz")
    assert StoredClaim.of(claim).places.keys() == state.keys()
    changed = state | {"h.0.attn.c_attn.weight": 1.001 * state["h.0.attn.c_attn.weight"]}
    np.savez(tmp_path / "model.npz", **changed)
    result = us.verify(us.from_checkpoint(tmp_path / "model.npz"), claim)
    assert result.tensor == "h.0.attn.c_attn.weight"


def test_held_weights_are_rounded_as_formats_are():
    x = np.random.default_rng(0).standard_normal((6, 70))
    for name, way in OF_MATRICES.items():
        held = way(x)
        assert held.shape == x.shape
        assert np.allclose(way(held), held, rtol=2e-3, atol=1e-3), name
        assert 0 < np.abs(held - x).max() < 0.5, name
    levels = {"int8 per channel": 255, "Q4_0 blocks": 16, "NF4 blocks": 16}
    for name, most in levels.items():
        for block in OF_MATRICES[name](x)[:, :32]:
            assert len(np.unique(block)) <= most, name
    bits = OF_MATRICES["bfloat16"](x).astype(np.float32).view(np.uint32)
    assert not np.any(bits & 0xFFFF)
    assert np.array_equal(HELD["int8 per channel"].of(x[0]), x[0])


@pytest.mark.parametrize("kind", ["bert", "opt", "llama", "qwen3"])
@pytest.mark.parametrize("how", ["bfloat16", "float16", "bfloat16 operands"])
def test_a_claim_is_computed_as_a_service_computes(kind, how, tmp_path):
    """One of the arithmetics gives the service's own numbers, and no other does."""
    state = draw(kind, 2, 0)
    claim = StoredClaim.of(claimed(kind, state, tmp_path))
    X = np.random.default_rng(0).standard_normal((40, 5, WIDTH))
    y = served(kind, state, ARITHMETICS[how])(X)
    near = 2.0**-12 if "operands" in how else 0.0
    alike = {}
    for name, one in computed_claims(claim):
        off = np.abs(one.answers(X)[:, 0] - y)
        alike[name, one.kernels] = float(np.mean(off <= near * np.abs(y)))
    best = max(alike, key=lambda key: alike[key])
    others = [share for key, share in alike.items() if key[0] != best[0]]
    assert alike[best] > 0.9 > 0.6 > max(others)
    assert best[0].startswith(how.split()[0])
    assert ("matrices alone" in best[0]) == ("operands" in how)


def test_six_blocks_in_16_bits_are_the_same(tmp_path):
    state = draw("bert", 6, 0)
    claim, service = (
        claimed("bert", state, tmp_path),
        served("bert", state, ARITHMETICS["bfloat16"]),
    )
    result = us.verify(service, claim)
    assert (result.verdict, result.held) == ("same", "bfloat16, computed in bfloat16")
    least = 2.0**-9  # of its size an answer is rounded by
    assert result.precision > least / 4


@pytest.mark.parametrize("kind", ["opt", "llama"])
@pytest.mark.parametrize("step", [1e-5, 1e-4])
def test_answers_in_float32_are_not_taken_for_16_bits(kind, step, tmp_path):
    """Whose rounding would hide the change: they scatter by less than 16 bits leave."""
    state, rng = draw(kind, 1, 1), np.random.default_rng(5)
    claim = claimed(kind, state, tmp_path)
    for name in [name for name, x in state.items() if x.ndim == 2]:
        change = step * rng.standard_normal(state[name].shape) * state[name].std()
        changed = claimed(kind, state | {name: state[name] + change}, tmp_path)
        result = us.verify(lambda X, of=changed: of(X).astype(np.float32), claim, locate=False)
        assert result.verdict == "different", (name, result.notes)


def test_answers_at_all_positions_are_used_whole(tmp_path):
    state = draw("opt", 1, 0)
    claim, name = claimed("opt", state, tmp_path), "decoder.layers.0.fc1.weight"
    assert us.verify(served("opt", state, every=True), claim)
    result = us.verify(served("opt", state | {name: 1.01 * state[name]}, every=True), claim)
    assert (result.verdict, result.tensor) == ("different", name)

    def only_the_first(X):
        y = served("opt", state, every=True)(X)
        y[:, 1:-1] += 1e-2 * X[:, 1:-1]
        return y

    assert us.verify(only_the_first, claim, locate=False).verdict == "different"


def test_the_plan_the_budget_and_the_ledger(tmp_path):
    state = draw("llama", 1, 0)
    claim = claimed("llama", state, tmp_path)
    wrong = served("llama", state | {"layers.0.mlp.up_proj.weight": draw("llama", 1, 1)[
        "layers.0.mlp.up_proj.weight"]})  # fmt: skip
    asked = []

    def counted(X):
        asked.append(len(X))
        return wrong(X)

    verifier = us.questions.Verifier(claim)
    assert (verifier.plan().at_most, verifier.plan().most_tokens) == (60, 6)
    ledger = tmp_path / "ledger.sqlite"
    short = us.verify(counted, claim, budget=30, ledger=ledger)
    assert (short.verdict, short.tensor, short.queries, sum(asked)) == ("different", None, 20, 20)
    assert "budget" in short.notes[-1]
    whole = us.verify(counted, claim, ledger=ledger)
    assert whole.verdict == "different"
    assert whole.queries == sum(asked)


def test_other_widths_and_few_values_are_no_verdict(tmp_path):
    claim = claimed("bert", draw("bert", 1, 0), tmp_path)
    with pytest.raises(us.DimensionRefused, match="does not serve them"):
        us.verify(lambda X: X[:, -1, :5], claim)
    result = us.verify(lambda X: np.sign(X[:, -1]), claim)
    assert result.verdict == "undecided"
    assert "few values" in result.notes[0]


def test_weights_of_few_bits_are_held_as_float32_rounds_them():
    """Many of 16 levels lie half a step from two multiples: there float64 rounds otherwise."""
    rng = np.random.default_rng(0)
    levels = rng.standard_normal((64, 16)).astype(np.float32)
    x = np.take_along_axis(levels, rng.integers(0, 16, (64, 256)), axis=1)
    x[:, 0] = np.abs(levels).max(1) * np.float32(254 / 3)
    x[:, 1] = x[:, 0] * np.float32(1.5 / 127)
    steps = np.abs(x).max(1, keepdims=True) / np.float32(127)
    np.testing.assert_array_equal(
        HELD["int8 per channel"].of(x.astype(float)), np.round(x / steps) * steps
    )
    apart = np.round(x.astype(float) / (np.abs(x).max(1, keepdims=True) / 127.0)) * steps
    assert np.any(apart != np.round(x / steps) * steps)


@pytest.mark.parametrize(
    ("sizes", "act", "before", "changed", "name"),
    [
        ((5, 40, 1), "silu", False, "b", "b"),  # of 0, one entry
        ((8, 1, 8), "gelu", False, "A", "A"),
        ((3, 40, 3), "silu", True, "norm.scale", "scale of the norm"),
        ((2, 4, 2), "tanh", True, "b", "b"),  # n(x) takes two values, mostly
    ],
)
def test_a_change_that_bends_has_no_other_name(sizes, act, before, changed, name, trials):
    (d, m, p), size, others = sizes, 3e-4, 0
    for seed in range(trials(4, 100)):
        rng = np.random.default_rng([seed, *sizes])
        A, B, b = rng.standard_normal((m, d)), rng.standard_normal((p, m)), rng.standard_normal(m)
        b *= changed != "b"
        norm = us.LayerNorm(np.exp(rng.standard_normal(d)), None, 1e-6, True) if before else None
        claim = us.FeedForward(A, b, B, rng.standard_normal(p), p == d, norm, act)
        arrays = dict(claim.arrays())
        moved = size * rng.standard_normal(arrays[changed].shape)
        arrays[changed] = arrays[changed] * (1 + moved)
        if changed == "b":
            arrays[changed] = moved * (np.arange(m) == rng.integers(m))
        found = us.verify(us.FeedForward.from_arrays(arrays), claim, seed=seed)
        assert found.verdict == "different"
        others += found.tensor is not None and name not in found.tensor.split(" or ")
    assert others <= 0.1 * trials(4, 100)


def test_a_change_that_no_tensor_alone_explains_has_no_tensors_name():
    rng = np.random.default_rng(0)
    A, b, B, c = (rng.standard_normal(n) for n in ((6, 5), 6, (4, 6), 4))
    scale = np.exp(rng.standard_normal(4))
    claim = us.FeedForward(A, b, B, c, False, us.LayerNorm(scale, None, 1e-6), "silu")
    scale[0] = 0.0
    other = us.FeedForward(A, b * 1.01, B, c, False, us.LayerNorm(scale, None, 1e-6), "silu")
    found = us.verify(other, claim)
    assert (found.verdict, found.tensor) == ("different", None)
    assert "could not be told" in found.notes[-1] + found.notes[0]


def test_a_shift_that_the_claim_has_not_is_named():
    rng, d, m = np.random.default_rng(0), 8, 6
    A, b, B = rng.standard_normal((m, d)), rng.standard_normal(m), rng.standard_normal((d, m))
    scale, shift = np.exp(rng.standard_normal(d)), 0.1 * np.eye(d)[0]

    def layer(shift):
        norm = us.LayerNorm(scale, shift, 1e-5, centred=False)
        return us.FeedForward(A, b, B, np.zeros(d), True, norm, "gelu")

    found = us.verify(layer(shift), layer(None))
    assert (found.verdict, found.tensor) == ("different", "shift of the norm")
