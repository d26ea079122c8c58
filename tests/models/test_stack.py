"""Stacks of sub-layers: what they answer at the last position and at all, files and refusals."""

import pickle
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models import load

D, RNG = 6, np.random.default_rng
HEAD: Any = us.SingleHead(np.eye(2), [1, 0])


def norm(before, centred=True, seed=0):
    draw = RNG(seed).standard_normal
    return us.LayerNorm(draw(D), draw(D), 1e-5, before, centred)


def heads(seed=0, outputs=D, **around):
    """Two heads, one of them in factors."""
    draw = RNG(seed).standard_normal
    first = us.LayerHead.from_factors(
        *(draw(s) for s in [(outputs, 2), (2, D), (3, D), (3, D), (D,)])
    )
    second = us.LayerHead(draw((outputs, D)), draw((D, D)), draw(D))
    return us.AttentionLayer([first, second], draw(outputs), **around)


def turning(seed=0, **around):
    """Four heads in two groups, with positions."""
    draw = RNG(seed).standard_normal
    O, V, K, Q = draw((4, D, 3)), draw((2, 3, D)), draw((2, 4, D)), draw((4, 4, D))  # noqa: E741
    biases: dict[str, Any] = {"k_bias": draw((2, 4)), "q_bias": draw((4, 4))}
    return us.RotaryLayer(O, V, K, Q, draw(D), us.Rotary([1.0, 0.2]), **biases, **around)


def neurons(seed=0, gated=False, **around):
    draw = RNG(seed).standard_normal
    gate = (draw((5, D)), draw(5)) if gated else None
    return us.FeedForward(draw((5, D)), draw(5), draw((D, 5)), draw(D), gate=gate, **around)


def bert(seed=0, causal=False):
    behind = {"residual": True, "norm": norm(False)}
    return us.Stack([heads(seed, **behind), neurons(seed, activation="gelu", **behind)], causal)


def llama(seed=0, causal=True):
    before = {"residual": True, "norm": norm(True, centred=False)}
    gated = neurons(seed, gated=True, activation="silu", **before)
    return us.Stack([turning(seed, **before), gated], causal)


def qwen3(seed=0):
    before, draw = {"residual": True, "norm": norm(True, centred=False)}, RNG(seed).standard_normal
    normed = us.QkNormLayer(turning(seed, **before), draw(4), draw(4), eps=1e-2)
    return us.Stack([normed, neurons(seed, gated=True, activation="silu", **before)], causal=True)


STACKS = {
    "bert": bert(),
    "llama": llama(),
    "qwen3": qwen3(),
    "two blocks and a norm": us.Stack([llama(0), llama(1), norm(False, False)], causal=True),
    "fewer outputs": us.Stack([heads(), heads(outputs=2)]),
    "one part": us.Stack([neurons()]),
}
every_stack = pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())


def batch(sequences=3, tokens=5):
    return RNG(7).standard_normal((sequences, tokens, D))


def one_by_one(stack, X):
    for part in stack.parts:
        if isinstance(part, us.Stack):
            X = one_by_one(part, X)
        elif isinstance(part, (us.AttentionLayer, us.RotaryLayer, us.QkNormLayer)):
            X = part.all(X, causal=stack.causal)
        else:
            X = part(X) if isinstance(part, us.LayerNorm) else part.all(X)
    return X


# -- what they answer


@every_stack
def test_parts_answer_in_order(stack):
    X = batch()
    everywhere = stack.all(X)
    np.testing.assert_allclose(everywhere, one_by_one(stack, X), rtol=1e-12)
    np.testing.assert_allclose(stack(X), everywhere[:, -1], rtol=1e-12)
    assert everywhere.shape == (3, 5, stack.outputs)


def test_sub_layers_answer_at_all_positions_as_at_the_last():
    """Position p of a causal layer is the last one of the first p + 1 tokens."""
    X, before = batch(), norm(True)
    layers = (heads(residual=True, norm=norm(False)), turning(residual=True, norm=before))
    for layer in (*layers, neurons(norm=before), heads(norm=before), turning(norm=norm(False))):
        single = isinstance(layer, us.FeedForward)
        for p in range(5):
            last = layer(X[:, p] if single else X[:, : p + 1])
            np.testing.assert_allclose(layer.all(X, causal=True)[:, p], last, rtol=1e-11)


@pytest.mark.parametrize("stack", [llama(), bert(causal=True)])
def test_a_causal_stack_does_not_see_later_tokens(stack):
    X = batch()
    np.testing.assert_allclose(stack.all(X)[:, :3], stack.all(X[:, :3]), rtol=1e-12)


def test_without_causal_every_position_attends_to_all():
    """Also with positions, whose distances are then negative: scores by their definition."""
    X, layer = batch(1), turning()
    k = np.einsum("nd,grd->gnr", X[0], layer.K) + layer.k_bias[:, None]
    q = np.einsum("nd,hrd->hnr", X[0], layer.Q) + layer.q_bias[:, None]
    answer = np.tile(layer.c, (5, 1))
    for h, g in enumerate(layer.groups):
        for p in range(5):
            turned = layer.rotary.turned(q[h, p], p - np.arange(5.0))
            alpha = np.exp(np.sum(k[g] * turned, axis=1))
            answer[p] += layer.O[h] @ layer.V[g] @ (alpha @ X[0] / alpha.sum())
    np.testing.assert_allclose(layer.all(X)[0], answer, rtol=1e-12)
    shuffled = RNG(0).permutation(5)
    np.testing.assert_allclose(
        bert().all(X[:, shuffled]), bert().all(X)[:, shuffled], rtol=1e-11, atol=1e-12
    )


@every_stack
def test_memory_is_bounded_by_the_batch(stack, monkeypatch):
    X = batch(9)
    whole = stack(X), stack.all(X)
    seen, one = [], type(stack.maps).answers

    def answers(maps, X, every=False):
        seen.append(len(X))
        return one(maps, X, every)

    monkeypatch.setattr(us.Stack, "_numbers_at_once", 4 * stack.maps.entries(5, True))
    monkeypatch.setattr(type(stack.maps), "answers", answers)
    np.testing.assert_allclose(stack.all(X), whole[1], rtol=1e-13)
    assert max(seen) == 4
    np.testing.assert_allclose(stack(X), whole[0], rtol=1e-13)
    assert stack(X[:0]).shape == (0, stack.outputs)


# -- its parts


def test_plain_relus_have_the_arrays_they_had():
    assert set(neurons().arrays()) == {"A", "b", "B", "c", "residual"}
    further = set(neurons(gated=True, activation="silu").arrays())
    assert further == {"A", "b", "B", "c", "residual", "G", "g", "activation"}
    assert set(turning().arrays()) == {
        "O", "V", "K", "Q", "c", "k_bias", "q_bias", "groups", "frequencies", "residual",
    }  # fmt: skip


def test_what_a_norm_before_shows_is_what_heads_see():
    """Weights and scores are of normalised tokens; a sum of outputs is no heads then."""
    before = norm(True)
    layer, X = turning(norm=before), batch()
    np.testing.assert_array_equal(layer.attention(X), turning().attention(before(X)))
    np.testing.assert_array_equal(layer.scored(X), turning().scored(before(X)))
    with pytest.raises(ValueError, match="only where the layer has no norm"):
        layer.coordinate(np.ones(D))


# -- how they are kept


def test_arrays_and_tensors_are_named_by_their_part():
    arrays = STACKS["two blocks and a norm"].arrays()
    assert {"parts.0.parts.1.A", "parts.1.parts.0.norm.eps", "parts.2.scale", "causal"} <= {*arrays}
    assert "parts.0.heads.1.W" in bert().arrays()
    tensors = STACKS["two blocks and a norm"].tensors
    assert {"K of group 1 of part 0 of part 1", "G of part 1 of part 0", "eps of part 2"} <= {
        *tensors
    }
    assert "scale of the norm of part 1" in bert().tensors


@every_stack
def test_linearised_at_sequences(stack):
    """Values are the answers; changes of every tensor and of tokens are finite differences."""
    X, step = batch(2, 4), 1e-6
    at = stack.linearise(X)
    np.testing.assert_allclose(at.value, stack(X), rtol=1e-12)
    dX = RNG(1).standard_normal(X.shape)
    moved = (stack(X + step * dX) - stack(X - step * dX)) / (2 * step)
    np.testing.assert_allclose(at.jvp({}, dX), moved, rtol=1e-6, atol=1e-6)
    y = RNG(2).standard_normal((1, *at.value.shape))
    back = at.vjp(y)
    np.testing.assert_allclose(
        np.sum(back.X[0] * dX, axis=(1, 2)), np.sum(y[0] * at.jvp({}, dX), axis=1), rtol=1e-9
    )
    for name, tensor in stack.tensors.items():
        change = RNG(3).standard_normal(tensor.shape)
        [gradient] = back.by[name]
        np.testing.assert_allclose(
            gradient.dot(change)[0],
            np.sum(y[0] * at.jvp({name: change}, None), axis=1),
            rtol=1e-9,
            atol=1e-9,
        )


# -- what is refused


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: us.Stack([]), ValueError, "needs a part"),
        (lambda: us.Stack([HEAD]), TypeError, "part 0 is a SingleHead"),
        (lambda: us.Stack([heads(outputs=2), neurons()]), ValueError, "Part 1 takes 6 numbers"),
        (lambda: us.Stack([llama()]), ValueError, "Part 0 has causal=True"),
        (lambda: neurons(activation="swish"), ValueError, "activation must be one of relu, gelu"),
        (lambda: neurons(norm="LayerNorm"), TypeError, "norm must be a LayerNorm"),
        (lambda: turning(norm=us.LayerNorm([1], None, 0)), ValueError, "norm behind this layer"),
        (lambda: bert()(np.zeros((1, 2, 5))), ValueError, r"This stack takes .* \(B, N, 6\)"),
    ],
)
def test_what_does_not_fit_is_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_damaged_arrays_are_refused():
    arrays = bert().arrays()
    missing = {name: x for name, x in arrays.items() if not name.startswith("parts.0.")}
    with pytest.raises(ValueError, match=r"parts must be numbered from 0; here are parts\.1"):
        us.Stack.from_arrays(missing)
    with pytest.raises(ValueError, match="No part of a stack has the arrays x"):
        us.Stack.from_arrays({"parts.0.x": np.zeros(1), "causal": np.array(0.0)})
    with pytest.raises(ValueError, match="Beside parts a stack has causal"):
        us.Stack.from_arrays({name: x for name, x in arrays.items() if name != "causal"})
    with pytest.raises(ValueError, match="more than 8 deep"):
        us.Stack.from_arrays({"parts.0." * 2000 + "A": np.zeros(1), "causal": np.array(0.0)})
    with pytest.raises(ValueError, match="activation"):
        us.FeedForward.from_arrays(neurons().arrays() | {"activation": np.array([1e9])})


def test_a_stack_that_can_be_built_can_be_saved_and_pickled(tmp_path):
    part: Any = us.FeedForward(np.eye(2), np.ones(2), np.eye(2), np.ones(2))
    for _ in range(8):
        part = us.Stack([part])
    part.save(tmp_path / "deep.safetensors")
    X = np.array([[[1.0, -2.0]]])
    for again in (load(tmp_path / "deep.safetensors"), pickle.loads(pickle.dumps(part))):
        np.testing.assert_array_equal(again(X), part(X))
    with pytest.raises(ValueError, match="more than 8 deep"):
        us.Stack([part])
