"""The parts of equality: tolerances, witnesses; a new class joins by its maps."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition
from unsoftmax.models.equality.witnesses import witness_of
from unsoftmax.models.layer_norm import sublayer
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.neurons import Neurons
from unsoftmax.models.products import Tolerance


def each(rounding):
    """The same bound on the rounding of every answer."""
    return lambda model, X: np.full(len(X), rounding)


# -- a class that joins


class Chained(FrozenModel):
    """Sub-layers in a row, each known by its maps alone."""

    def __init__(self, *parts, every=None):
        self.parts, self._arrays = parts, {}

    @property
    def dim(self):
        return self.parts[0].dim

    @property
    def outputs(self):
        return self.parts[-1].outputs

    def _composed(self):
        return Composition.of({str(k): part.maps for k, part in enumerate(self.parts)})

    def __call__(self, X):
        return self.maps.linearise(X).value[:, 0]

    def _sizes(self):
        return (f"d={self.dim}",)


class Built(Chained):
    """One sub-layer of maps that are given."""

    def __init__(self, maps, d):
        self._maps, self._d, self._arrays = maps, d, {}

    @property
    def dim(self):
        return self._d

    @property
    def outputs(self):
        return self._d

    def _composed(self):
        return self._maps


def attention(seed, d=4, residual=True, norm=None):
    rng = np.random.default_rng(seed)
    heads = [us.LayerHead(rng.standard_normal((d, d)), rng.standard_normal((d, d))) for _ in "ab"]
    return us.AttentionLayer(heads, rng.standard_normal(d), residual, norm)


def neurons(seed, d=4, m=5):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((m, d)), rng.standard_normal((d, m))
    return us.FeedForward(A, rng.standard_normal(m), B, rng.standard_normal(d), True)


def shown(result, a, b):
    assert result.verdict == "different"
    assert np.any(a(result.witness[None]) != b(result.witness[None]))


def test_sublayers_in_a_row_are_equal_part_by_part():
    one, two = attention(0), neurons(1)
    model = Chained(one, two)
    swapped = us.AttentionLayer(one.heads[::-1], one.c, True)
    order = [3, 0, 4, 1, 2]
    scaled = us.FeedForward(2 * two.A[order], 2 * two.b[order], two.B[:, order] / 2, two.c, True)
    same = Chained(swapped, scaled)
    result = us.equivalent(model, same)
    assert (result.verdict, result.by) == ("equal", "canonical form")
    assert us.equivalent(Chained(Chained(one, two), one), Chained(swapped, Chained(scaled, one)))
    off = us.FeedForward(two.A, two.b, two.B * (1 + 1e-6), two.c, True)
    for other in (Chained(one, off), Chained(two, one), Chained(one, two, two)):
        shown(us.equivalent(model, other), model, other)
    # a norm at the end is one more sub-layer, or the norm behind the last, whatever it says
    rng, before = np.random.default_rng(3), us.LayerNorm(np.ones(4), None, 1e-5, True)
    last = us.LayerNorm(rng.uniform(1, 2, 4), None, 1e-5, before=True)
    normed, moved = attention(0, norm=before), us.LayerNorm(last.scale + 1e-6, None, 1e-5)
    again = us.AttentionLayer(normed.heads[::-1], normed.c, True, before)
    for parts in ((normed, swapped), (normed, again), (one, swapped)):
        ends = zip((*parts, parts[0]), (last, last, moved), strict=True)
        rows = [Built(Composition.of({"0": part.maps, "1": end}), 4) for part, end in ends]
        if parts[0] is normed and parts[1] is swapped:
            shown(us.equivalent(rows[0], rows[1]), rows[0], rows[1])
        else:
            assert us.equivalent(rows[0], rows[1])
        shown(us.equivalent(rows[0], rows[2]), rows[0], rows[2])
    behind = attention(0, norm=us.LayerNorm(last.scale, None, 1e-5))
    assert us.equivalent(Built(Composition.of({"0": one.maps, "1": last}), 4), behind)
    # in a row of one there is nothing to chain
    assert us.equivalent(Chained(one), swapped)
    assert us.equivalent(Chained(one, two), attention(0, 3)).by == "shape"
    assert us.equivalent(Chained(neurons(0), neurons(1)), model).by == "shape"
    # f = x/2 twice is x/4, which no part by itself says
    quarter = Chained(*(us.AttentionLayer([], [0.0, 0.0], True) for _ in range(3)))
    fewer = Chained(*(us.AttentionLayer([], [0.0, 0.0], True) for _ in range(2)))
    undecided = us.equivalent(quarter, fewer)
    assert undecided.verdict == "undecided"
    assert "no canonical form is known" in undecided.reason
    with pytest.raises(
        TypeError, match="No canonical form is known of a Chained: of sub-layers in a row"
    ):
        us.canonical(model)


def test_positions_beside_a_norm_follow_from_the_parts():
    rng, d = np.random.default_rng(0), 6
    shapes = {"Q": (2, 4, d), "K": (2, 4, d), "O": (2, d, 3), "V": (2, 3, d)}
    arrays: dict[str, Any] = {n: rng.standard_normal(shape) for n, shape in shapes.items()}
    biases: dict[str, Any] = {
        "k_bias": rng.standard_normal((2, 4)),
        "q_bias": rng.standard_normal((2, 4)),
    }
    theta = np.tile([1.0, 0.3], (2, 1))
    heads: Any = Attention(**arrays, **biases, c=rng.standard_normal(d), frequencies=theta)
    X = rng.standard_normal((5, 7, d))
    for before in (True, False):
        for centred in (True, False):
            scale, shift = rng.uniform(0.5, 2, d), rng.standard_normal(d)
            norm = us.LayerNorm(scale, shift, 1e-3, before, centred)
            model = Built(sublayer("heads", heads, before, norm), d)
            if before:  # scale and shift are part of the projections
                moved: dict[str, Any] = {name: arrays[name] * scale for name in "QKV"}
                moved |= {f"{n.lower()}_bias": biases[f"{n.lower()}_bias"] + arrays[n] @ shift
                          for n in "KQ"}  # fmt: skip
                c = heads.c + np.einsum("hms,hsd,d", heads.O, heads.V, shift)
                through = us.LayerNorm(np.ones(d), None, 1e-3, True, centred)
            else:  # the size of the sum, and its mean, do not show
                moved = {"O": -2 * arrays["O"] + centred * rng.standard_normal((2, 1, 3))}
                c, through = -2 * heads.c + centred * 3.0, us.LayerNorm(-scale, shift, 4e-3, False,
                                                                        centred)  # fmt: skip
            other = Built(sublayer("heads", replace(heads, **moved, c=c), before, through), d)
            np.testing.assert_allclose(other(X), model(X), rtol=1e-10, atol=1e-10)
            assert us.equivalent(model, other)
            for name in ("Q", "k_bias", "frequencies", "O"):
                near = replace(heads, **{name: getattr(heads, name) * (1 + 1e-6)})
                off = Built(sublayer("heads", near, before, norm), d)
                shown(us.equivalent(model, off), model, off)


@pytest.mark.parametrize("gated", [False, True])
def test_neurons_without_a_form_are_compared_as_they_are(gated):
    rng, d, m = np.random.default_rng(0), 4, 6
    A, B, a = rng.standard_normal((m, d)), rng.standard_normal((d, m)), rng.standard_normal(m)
    gate: dict[str, Any] = (
        {"G": rng.standard_normal((m, d)), "g": rng.standard_normal(m)} if gated else {}
    )
    map_ = Neurons(A, a, B, np.ones(d), "silu", **gate)
    heads = Attention(O=np.eye(d)[None], Q=rng.standard_normal((1, d, d)))

    def behind_heads(neurons):
        return Built(Composition((("heads", heads), ("neurons", neurons))), d)

    model = behind_heads(map_)
    order = rng.permutation(m)
    moved: dict[str, Any] = {name: x[order] for name, x in {"A": A, "a": a, **gate}.items()}
    other = behind_heads(replace(map_, **moved, B=B[:, order]))
    assert us.equivalent(model, other)
    assert us.equivalent(model, Built(other.maps, d), rtol=0)
    near = behind_heads(replace(map_, B=B * (1 + 1e-6)))
    shown(us.equivalent(model, near), model, near)
    gelu = behind_heads(replace(map_, activation="gelu"))
    shown(us.equivalent(model, gelu), model, gelu)
    # a neuron in two halves: the same function, which no form says
    halves: dict[str, Any] = {
        n: np.concatenate([x, x[:1]]) for n, x in {"A": A, "a": a, **gate}.items()
    }
    parts = np.column_stack([B, B[:, 0] / 2])
    parts[:, 0] /= 2
    split = behind_heads(replace(map_, **halves, B=parts))
    result = us.equivalent(model, split)
    assert result.verdict == "undecided"
    assert "no canonical form is known" in result.reason


@dataclass(frozen=True)
class Sloped(Attention):
    """Scores with a slope per head and token of distance: a term that no form knows."""

    slopes: np.ndarray | None = None

    @property
    def arrays(self):
        return {**super().arrays, "slopes": self.slopes}


def test_a_score_term_that_no_form_knows_is_compared_as_an_array():
    maps = attention(0).maps
    heads: Any = maps.leaves["heads."]
    known = {field.name: getattr(heads, field.name) for field in fields(Attention)}
    sloped = [Built(sublayer("heads", Sloped(**known, slopes=np.array(slopes)), True, None), 4)
              for slopes in ([1.0, 0.5], [1.0, 0.5], [1.0, 0.4])]  # fmt: skip
    assert us.equivalent(sloped[0], sloped[1])
    # its answers, as this class has them, do not show the slopes
    assert us.equivalent(sloped[0], sloped[2]).verdict == "undecided"
    assert us.equivalent(sloped[0], attention(0)).verdict == "undecided"
    shown(us.equivalent(sloped[0], attention(1)), sloped[0], attention(1))


def test_what_is_no_model_is_refused():
    one: Any = [1.0]
    with pytest.raises(TypeError, match="equivalent compares models; this is a list"):
        us.equivalent(one, us.SingleHead([[1.0]], [1.0]))
    with pytest.raises(TypeError, match="canonical takes models"):
        us.canonical(one)


# -- tolerances


def test_a_tolerance_counts_both_parts():
    tolerance = Tolerance(0.1, 1.0)
    assert tolerance.allows(2.0, 10.0)
    assert not tolerance.allows(2.0 + 1e-9, 10.0)
    assert tolerance.allows(1.5, 10.0, unit=2.0)  # 3 of 20, both divided by 2
    assert not tolerance.allows(1.6, 10.0, unit=2.0)


def test_without_tolerance_only_equal_numbers_will_do():
    tolerance = Tolerance(0.0, 0.0)
    assert tolerance.compare(np.array([1.0, 0.0]), np.array([1.0, -0.0]))[0]
    # the difference of these norms rounds to 0
    assert not tolerance.compare(np.array([1e300, 1e-300]), np.array([1e300, 0.0]))[0]


# -- witnesses


def test_the_witness_is_where_the_difference_is_largest_beside_rounding():
    a, b = us.SingleHead([[0.0]], [1.0]), us.SingleHead([[0.0]], [1.5])
    X = np.array([[[1.0]], [[4.0]], [[2.0]]])
    # the answers differ by 0.5, 2 and 1
    assert witness_of(a, b, [X], each(1.0)) is None
    np.testing.assert_array_equal(witness_of(a, b, [X], each(0.1)), [[4.0]])
    np.testing.assert_array_equal(witness_of(a, b, [X[:1], X], each(0.1)), [[1.0]])


def test_answers_out_of_range_are_no_witness():
    a, b = us.SingleHead([[0.0]], [1e200]), us.SingleHead([[0.0]], [2e200])
    X = np.array([[[1e200]]])
    assert witness_of(a, b, [X], each(0.0)) is None


def test_one_number_may_be_a_vector_of_one():
    constant = us.AttentionLayer([], [2.0], dim=1)
    head = us.LayerHead(M=[[1.0]], W=[[2.0]])
    norm = us.LayerNorm([1.0], [2.0], 1e-5)  # lets nothing through: of one number the mean is all
    layer = us.AttentionLayer([head], [0.0], norm=norm)
    assert us.equivalent(layer, constant)
    assert us.equivalent(layer, us.canonical(layer))
    added = us.AttentionLayer([head], [0.0], True)
    shown(us.equivalent(added, constant), added, constant)
    doubled = us.FeedForward([[1.0]], [0.0], [[1.0]], [0.0], residual=True)
    network = us.ReluNetwork([[1.0, 1.0, -1.0]], [1.0, 1.0, -1.0], np.zeros(3), 0.0)
    assert us.equivalent(doubled, network)
    assert us.equivalent(network, doubled)
    steeper = us.ReluNetwork([[1.0, 1.0, -1.0]], [1.0, 1.1, -1.0], np.zeros(3), 0.0)
    shown(us.equivalent(doubled, steeper), doubled, steeper)
    near = us.ReluNetwork([[1.0, 1.0, -1.0]], [1.0, 1.0 + 1e-8, -1.0], np.zeros(3), 0.0)
    bounds = {"constant": 1e-6, "slope": 1e-6}
    assert us.equivalent(doubled, near, errors=bounds).by == "certificate"
    assert us.equivalent(near, doubled, errors=bounds)
    assert not us.equivalent(doubled, steeper, errors=bounds)


def test_witnesses_of_neurons_without_a_form_have_one_token():
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((3, 2)), rng.standard_normal((2, 3))
    model = us.FeedForward(A, np.ones(3), B, np.ones(2), activation="tanh")
    near = us.FeedForward(A, np.ones(3), B * (1 + 1e-15), np.ones(2), activation="tanh")
    assert us.equivalent(model, near, rtol=0).verdict == "undecided"
    assert us.equivalent(us.Stack([model, model]), us.Stack([near, model]), rtol=0).by == "nothing"


def test_stacks_in_stacks_are_the_row_of_their_parts():
    rng, d = np.random.default_rng(0), 3

    def norm(before):
        return us.LayerNorm([1.0, 2.0, 3.0], [0.0, 1.0, 0.0], 1e-5, before)

    def heads():
        M, W = rng.standard_normal((2, d, d))
        return us.AttentionLayer([us.LayerHead(M=M, W=W)], np.ones(d), True)

    A, B = rng.standard_normal((4, d)), rng.standard_normal((d, 4))
    gated = us.FeedForward(A, np.ones(4), B, np.ones(d), True, activation="silu", gate=(A, None))
    one, two, last = heads(), heads(), norm(False)
    behind = us.AttentionLayer(one.heads, one.c, True, last)
    flat = us.Stack([one, last, gated, last, last])
    for parts in (
        [us.Stack([one, last]), gated, last, last],
        [one, us.Stack([last, gated]), us.Stack([last, last])],
        [us.Stack([behind, gated]), norm(True), last],
        [us.Stack([us.Stack([one, last, gated, last])]), last],
    ):
        assert us.equivalent(flat, us.Stack(parts))
        assert us.equivalent(us.Stack(parts), flat)
    fewer = us.Stack([one, last, gated, last])
    shown(us.equivalent(flat, fewer), flat, fewer)
    # of the last heads, asked at the last position, no answer shows what others look at
    assert us.equivalent(us.Stack([one, gated]), us.Stack([one, gated], causal=True))
    both = us.Stack([one, two]), us.Stack([one, two], causal=True)
    shown(us.equivalent(*both), *both)


@pytest.mark.parametrize("size", [1e-300, 1e200, 1e300])
def test_coincident_heads_of_any_size_are_added_up(size):
    W, v = np.array([[1.0, -2.0], [0.5, 0.0]]), np.array([1.0, -3.0])

    def heads(first, second):
        return us.MultiHead([W, W], [first * size * v, second * size * v], np.zeros((2, 2)), 0.0)

    assert us.equivalent(heads(1, 2), heads(3, 0))
    shown(us.equivalent(heads(1, 2), heads(1, 2.001)), heads(1, 2), heads(1, 2.001))
