"""Which layers are equal: what no answer shows makes no difference, and everything else does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from tests.models.test_attention_layer import NORMS, layer
from tests.truth import share

KINDS = [(kind, residual) for kind in NORMS for residual in (False, True)]


def changed(model, **arrays):
    """The layer with some arrays replaced, dots in their names as two underscores."""
    named = {name.replace("__", "."): array for name, array in arrays.items()}
    return us.AttentionLayer.from_arrays({**model.arrays(), **named})


def nudged(model, name, by=1e-6):
    """The layer with one array a little different."""
    array = model.arrays()[name]
    if name == "norm.eps":
        return us.AttentionLayer.from_arrays({**model.arrays(), name: array * (1 + 1e3 * by)})
    step = by * np.random.default_rng(7).standard_normal(array.shape)
    return us.AttentionLayer.from_arrays({**model.arrays(), name: array + step})


def rebuilt(head, rng):
    """The head from other factors of the same products."""
    O, V, K, Q = (head.arrays()[name] for name in "OVKQ")  # noqa: E741
    r, s = len(V), len(K)
    G, F = rng.standard_normal((r, r)) + 3 * np.eye(r), rng.standard_normal((s, s)) + 3 * np.eye(s)
    return us.LayerHead.from_factors(O @ G, np.linalg.solve(G, V), F.T @ K,
                                     np.linalg.solve(F, Q), head.w)  # fmt: skip


def hidden(model, rng):
    """Another layer of the same function: every gauge moved that there is."""
    heads = [rebuilt(head, rng) for head in model.heads]
    first, m, d = heads[0], model.outputs, model.dim
    part = rng.standard_normal((m, d))
    dead = us.LayerHead(np.zeros((m, d)), rng.standard_normal((d, d)))
    heads = [*heads[1:], us.LayerHead(part, first.W, first.w), dead,
             us.LayerHead(first.M - part, first.W, first.w)]  # fmt: skip
    c, norm = model.c, model.norm
    if norm is not None and not norm.before:
        if norm.centred:  # what all outputs share
            along = np.ones((m, 1))
            heads = [us.LayerHead(h.M + along * rng.standard_normal(d), h.W, h.w) for h in heads]
            c = c + 3.0
        if not model.residual:  # size and sign
            heads = [us.LayerHead(-2 * h.M, h.W, h.w) for h in heads]
            c, norm = (
                -2 * c,
                us.LayerNorm(-norm.scale, norm.shift, 4 * norm.eps, False, norm.centred),
            )
    if norm is not None and norm.before:
        scale, shift = rng.uniform(1, 2, d) * rng.choice([-1, 1], d), rng.standard_normal(d)
        # x̂ = Γn + β of before is D(x̃ − s) + β of the new x̃ = scale·n + shift
        D = norm.scale / scale
        b = norm.shift - D * shift
        moved = []
        for h in heads:
            c = c + h.M @ b
            moved.append(us.LayerHead(h.M * D, D[:, None] * h.W * D, D * (h.W @ b + h.w)))
        heads, norm = moved, us.LayerNorm(scale, shift, norm.eps, True, norm.centred)
        if norm.centred:  # every token x̃ has the same product with this
            same, told = 1 / scale, float(np.sum(shift / scale))
            moved = []
            for h in heads:
                a, b, o = rng.standard_normal(d), rng.standard_normal(d), rng.standard_normal(m)
                W = h.W + np.outer(same, a) + np.outer(b, same)
                c = c - told * o
                moved.append(us.LayerHead(h.M + np.outer(o, same), W, h.w - told * b))
            heads = moved
    return us.AttentionLayer(heads[::-1], c, model.residual, norm, dim=d)


# -- the canonical form


@pytest.mark.parametrize(("kind", "residual"), KINDS)
def test_all_layers_of_one_function_have_one_form(kind, residual):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        model = layer(seed, kind=kind, residual=residual)
        other = hidden(model, rng)
        X = rng.standard_normal((20, 4, 5))
        np.testing.assert_allclose(other(X), model(X), rtol=1e-9, atol=1e-9)
        forms = us.canonical(model), us.canonical(other)
        assert forms[0].H == forms[1].H == 3
        for name, array in forms[0].arrays().items():
            np.testing.assert_allclose(forms[1].arrays()[name], array, rtol=1e-8, atol=1e-9)
        result = us.equivalent(model, other)
        assert (result.verdict, result.by) == ("equal", "canonical form")
        assert result.gap < 1e-11


def test_what_a_norm_lets_nothing_through_is_a_constant():
    norm = us.LayerNorm(np.zeros(3), [1.0, 2.0, 3.0], 1e-5)
    inner = layer(d=3).heads
    flat = us.canonical(us.AttentionLayer(inner, np.ones(3), True, norm))
    assert (flat.H, flat.residual, flat.norm, list(flat.c)) == (0, False, None, [1, 2, 3])
    silent = us.AttentionLayer([], [3.0, 0.0, 0.0], False, us.LayerNorm(np.ones(3), None, 0.0))
    np.testing.assert_allclose(us.canonical(silent).c, np.array([2, -1, -1]) / np.sqrt(2))
    lone = us.AttentionLayer([us.LayerHead([[1.0]], [[1.0]])], [0.0], True,
                             us.LayerNorm([2.0], [5.0], 0.0))  # fmt: skip
    assert us.canonical(lone).c == [5.0]


def test_a_norm_before_that_no_head_looks_through_goes():
    norm = us.LayerNorm(np.ones(3), None, 1e-5, before=True)
    # every M takes the mean alone, and that is off
    blind = us.LayerHead(np.ones((3, 1)) * np.ones(3), np.eye(3))
    form = us.canonical(us.AttentionLayer([blind], np.ones(3), True, norm))
    assert (form.H, form.norm, form.residual) == (0, None, True)
    assert us.equivalent(form, us.AttentionLayer([], np.ones(3), True))


def test_heads_that_cancel_but_for_rounding_go():
    [one, other] = layer(H=2, ranks=None).heads
    parts = [us.LayerHead(share * one.M, one.W, one.w) for share in (0.1, 0.2, 0.7, -1.0)]
    assert np.any(sum(part.M for part in parts))
    assert us.canonical(us.AttentionLayer([*parts, other], np.ones(5))).H == 1
    small = us.LayerHead(1e-12 * one.M, one.W, one.w)
    assert us.canonical(us.AttentionLayer([*parts, small, other], np.ones(5))).H == 2


def test_a_constant_keeps_its_dimension():
    form = us.canonical(us.AttentionLayer([us.LayerHead(np.zeros((3, 2)), np.eye(2))], np.ones(3)))
    assert (form.H, form.dim, form.outputs) == (0, 2, 3)


# -- what is different


@pytest.mark.parametrize("kind", [None, "behind", "RMS before"])
def test_small_differences_are_looked_for_where_heads_differ(kind):
    model = layer(kind=kind, residual=True)
    for name in ("heads.1.K", "heads.2.V"):
        near = nudged(model, name, 1e-11)
        result = us.equivalent(model, near, rtol=1e-14)
        assert (result.verdict, us.equivalent(model, near).verdict) == ("different", "equal")
        assert result.witness is not None
        assert np.any(model(result.witness[None]) != near(result.witness[None]))


def test_a_head_that_adds_next_to_nothing_is_aimed_at():
    model = layer(d=24, ranks=(2, 2))
    rng = np.random.default_rng(0)
    # it matters where tokens are long along one direction, and another one is the query's
    a, b, out = rng.standard_normal((3, 24))
    small = us.LayerHead.from_factors(1e-9 * out[:, None], a[None], a[None], b[None])
    other = us.LayerHead.from_factors(1e-9 * out[:, None], a[None], a[None], -b[None])
    one, two = (us.AttentionLayer([*model.heads, h], model.c) for h in (small, other))
    assert us.equivalent(one, two, rtol=1e-12).verdict == "different"


def test_residuals_and_norms_are_told_apart():
    heads, c = layer().heads, layer().c
    norms = [None, *(us.LayerNorm(np.ones(5), None, 1e-3, before, centred)
                     for before in (False, True) for centred in (False, True))]  # fmt: skip
    models = [us.AttentionLayer(heads, c, residual, norm)
              for residual in (False, True) for norm in norms]  # fmt: skip
    for k, one in enumerate(models):
        for j, other in enumerate(models[: k + 1]):
            result = us.equivalent(one, other)
            assert result.verdict == ("equal" if j == k else "different"), (one, other)
            assert (result.gap == np.inf) == (j != k)


def test_a_missing_head_is_a_difference():
    model = layer()
    fewer = us.AttentionLayer(model.heads[:2], model.c)
    result = us.equivalent(model, fewer)
    assert result.verdict == "different"
    assert result.witness is not None
    assert np.abs(model(result.witness[None]) - fewer(result.witness[None])).max() > 1e-3


def test_heads_closer_than_the_tolerance_stay_undecided():
    model = layer(H=1, ranks=None)
    [head] = model.heads
    near = us.LayerHead(head.M, head.W * (1 + 1e-7), head.w)
    split = us.AttentionLayer([us.LayerHead(3 * head.M, head.W, head.w),
                               us.LayerHead(-2 * head.M, near.W, head.w)], model.c)  # fmt: skip
    assert us.equivalent(model, split, rtol=1e-6).verdict == "undecided"
    assert us.equivalent(model, split, rtol=1e-9).verdict == "different"


# -- exactly


def whole(rng, *shape):
    """Small integers: sums and products of these are exact."""
    return rng.integers(-4, 5, shape).astype(float)


def test_without_tolerance_sums_and_products_are_real_numbers():
    rng = np.random.default_rng(0)
    shapes = ((5, 2), (2, 4), (2, 4), (2, 4), (4,))
    heads = [us.LayerHead.from_factors(*(whole(rng, *s) for s in shapes)) for _ in range(3)]
    model, last = us.AttentionLayer(heads, whole(rng, 5)), heads[2]
    part = whole(rng, 5, 4)
    parts = [us.LayerHead(M, last.W, last.w) for M in (last.M - part, part)]
    same = us.AttentionLayer([parts[0], heads[1], heads[0], parts[1]], model.c)
    assert us.equivalent(model, same, rtol=0)
    more = us.AttentionLayer([*same.heads, us.LayerHead(np.zeros((5, 4)), np.eye(4))], model.c)
    assert us.equivalent(model, more, rtol=0)
    assert not us.equivalent(model, changed(same, c=np.nextafter(model.c, 9.0)), rtol=0)
    bit = us.LayerHead(parts[0].M * (1 + 2**-52), last.W, last.w)
    assert not us.equivalent(model, us.AttentionLayer([bit, *same.heads[1:]], model.c), rtol=0)


def test_without_tolerance_products_are_not_rounded():
    model = layer(ranks=(3, 3))
    turned = [
        us.LayerHead.from_factors(h.arrays()["O"][:, ::-1], h.arrays()["V"][::-1],
                                  h.arrays()["K"][::-1], h.arrays()["Q"][::-1], h.w)
        for h in model.heads
    ]  # fmt: skip
    assert any(np.any(h.M != g.M) for h, g in zip(model.heads, turned, strict=True))
    assert us.equivalent(model, us.AttentionLayer(turned, model.c), rtol=0)
    rounded = [us.LayerHead(h.M, h.W, h.w) for h in model.heads]
    assert not us.equivalent(model, us.AttentionLayer(rounded, model.c), rtol=0)


def test_without_tolerance_the_mean_behind_a_norm_counts_for_nothing():
    rng = np.random.default_rng(1)
    head = us.LayerHead(whole(rng, 4, 4), whole(rng, 4, 4), whole(rng, 4))
    moved = us.LayerHead(head.M + 8 * np.ones((4, 1)) * [1, 2, 0, 3], head.W, head.w)
    for centred in (True, False):
        norm = us.LayerNorm(np.ones(4), None, 1e-5, centred=centred)
        one = us.AttentionLayer([head], np.arange(4.0), True, norm)
        other = us.AttentionLayer([moved], np.arange(4.0) + 2, True, norm)
        assert us.equivalent(one, one, rtol=0)
        assert us.equivalent(one, other, rtol=0).verdict == ("equal" if centred else "different")
    larger = us.AttentionLayer([head], np.arange(4.0), True, us.LayerNorm(np.ones(4), None, 2e-5))
    assert us.equivalent(one, larger, rtol=0).verdict == "different"
    assert not us.equivalent(one, us.AttentionLayer([head], np.arange(4.0), True), rtol=0)


# -- across classes


@given(st.integers(0, 10**6), st.integers(0, 3), st.sampled_from([None, (1, 2), (2, 0)]))
def test_a_plain_layer_of_one_output_is_several_heads(seed, H, ranks):
    model = layer(seed, H, 4, 1, ranks)
    W, v, w = ([getattr(h, name) for h in model.heads] for name in "WMw")
    several = us.MultiHead(np.reshape(W, (H, 4, 4)), np.reshape(v, (H, 4)), np.reshape(w, (H, 4)),
                           float(model.c[0]))  # fmt: skip
    assert us.equivalent(model, several)
    assert us.equivalent(several, model)
    moved = us.MultiHead(several.W, several.v, several.w, several.c + 1)
    assert us.equivalent(model, moved).verdict == "different"
    residual = us.AttentionLayer([], [0.0], True)
    told = us.equivalent(residual, us.SingleHead([[0.0]], [1.0]))
    assert (told.verdict, told.by) == ("different", "witness")  # they take the same sequences


def test_a_head_without_a_partner_may_be_one_too_small_to_be_seen():
    model = layer()
    tiny = us.LayerHead(1e-10 * np.eye(5), np.eye(5))
    more = us.AttentionLayer([*model.heads, tiny], model.c)
    assert share(model, more, dict.fromkeys("MWwc", 1e-9)) == pytest.approx(
        0.1 * np.sqrt(5), rel=1e-3
    )
    assert share(model, layer(kind="behind"), dict.fromkeys("MWwc", 1.0)) == np.inf
