"""A layer against its definition, in factors and whole; files, pickles, and what does not fit."""

import tracemalloc

import numpy as np
import pytest

import unsoftmax as us
from tests.models import formulas
from unsoftmax.models import has_parameters

NORMS = (None, "behind", "before", "RMS behind", "RMS before")


def head(rng, m, d, ranks):
    if ranks is None:
        M, W = rng.standard_normal((m, d)), rng.standard_normal((d, d))
        return us.LayerHead(M, W, rng.standard_normal(d))
    r, s = ranks
    O, V = rng.standard_normal((m, r)), rng.standard_normal((r, d))  # noqa: E741
    K, Q = rng.standard_normal((2, s, d))
    return us.LayerHead.from_factors(O, V, K, Q, rng.standard_normal(d))


def norm_of(kind, rng, m, d):
    if kind is None:
        return None
    n, before = (d, True) if "before" in kind else (m, False)
    scale, shift = rng.standard_normal((2, n))
    return us.LayerNorm(scale, shift, 1e-3, before=before, centred="RMS" not in kind)


def layer(seed=0, H=3, d=5, m=None, ranks=(2, 3), kind=None, residual=False):
    rng = np.random.default_rng([seed, H, d])
    m = d if m is None else m
    heads = [head(rng, m, d, ranks) for _ in range(H)]
    norm = norm_of(kind, rng, m, d)
    return us.AttentionLayer(heads, rng.standard_normal(m), residual, norm, dim=d)


# -- the forward map


def test_heads_of_different_ranks_and_kinds_beside_each_other():
    rng = np.random.default_rng(0)
    heads = [head(rng, 3, 4, ranks) for ranks in ((1, 4), None, (3, 2), (0, 0))]
    mixed = us.LayerHead.from_arrays({"M": heads[1].M, "K": np.ones((1, 4)), "Q": np.ones((1, 4))})
    model = us.AttentionLayer([*heads, mixed], np.ones(3))
    X = rng.standard_normal((6, 4, 4))
    places = [(name, h) for h in range(5) for name in "MWw"]
    products = {f"{name} of head {h}": getattr(model.heads[h], name) for name, h in places}
    products["c"] = model.c
    expected = [formulas.attention_layer(products, x, 5) for x in X]
    np.testing.assert_allclose(model(X), expected, rtol=1e-12)
    weights = model.attention(X)
    assert weights.shape == (6, 5, 4)
    np.testing.assert_allclose(weights.sum(axis=2), 1.0, rtol=1e-14)


def test_answering_never_forms_M_or_W(monkeypatch):
    model = layer(H=2, ranks=(2, 1))
    sizes = [[np.linalg.norm(getattr(h, name)) for h in model.heads] for name in "MWw"]
    for name in "MW":
        formed = property(lambda _: pytest.fail("formed a product"))
        monkeypatch.setattr(us.LayerHead, name, formed)
    model(np.zeros((2, 3, 5)))
    for name, expected in zip("MWw", sizes, strict=True):
        assert model.parameter_norm(name) == pytest.approx(min(expected), rel=1e-13)


def test_memory_is_bounded_by_the_piece_and_not_by_the_batch(monkeypatch):
    model = layer(H=16, d=64, ranks=(4, 4))
    X = np.random.default_rng(0).standard_normal((4096, 2, 64))
    monkeypatch.setattr(us.AttentionLayer, "_numbers_at_once", 2**15)
    tracemalloc.start()
    model(X)  # 2 MiB of answers; all vectors at once would be 32 MiB
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**22


# -- what it is made of


def test_parts_are_named_and_read_only():
    model = layer(kind="behind", residual=True)
    assert (model.H, model.dim, model.outputs, model.residual) == (3, 5, 5, True)
    assert repr(model) == "AttentionLayer(H=3, d=5, residual, norm behind)"
    assert repr(layer(m=2, kind="RMS before")).endswith("d=5, m=2, RMS norm before)")
    assert repr(model.heads[0]) == "LayerHead(m=5, d=5, rank M ≤ 2, rank W ≤ 3)"
    for product in (model.heads[0].M, model.heads[0].W):
        with pytest.raises(ValueError, match="read-only"):
            product[0] = 1.0
    assert layer().parameter_norm("eps") == 0.0


def test_factors_and_products_of_a_head():
    one = layer(H=1, ranks=(2, 3)).heads[0]
    whole = us.LayerHead(one.M, one.W, one.w)
    for found in (one, whole):
        np.testing.assert_allclose(found.values.whole, one.M, rtol=1e-13, atol=1e-14)
        augmented = np.column_stack([one.W, one.w])
        np.testing.assert_allclose(found.scores.whole, augmented, rtol=1e-13, atol=1e-14)
    assert one.parameter_norm("M") == pytest.approx(whole.parameter_norm("M"), rel=1e-13)


def test_no_heads():
    X = np.random.default_rng(0).standard_normal((4, 3, 2))
    np.testing.assert_array_equal(us.AttentionLayer([], [1.0, 2.0], True)(X), X[:, -1] + [1.0, 2.0])
    constant = us.AttentionLayer([], [1.0, 2.0, 3.0], dim=2)
    np.testing.assert_array_equal(constant(X), np.tile([1.0, 2.0, 3.0], (4, 1)))
    assert constant.parameter_norm("W") == 0.0
    assert constant.attention(X).shape == (4, 0, 3)
    assert us.AttentionLayer.from_arrays(constant.arrays()).dim == 2


def test_names_of_a_layers_arrays():
    assert has_parameters(layer(kind="behind").arrays())
    assert not has_parameters(["c"])
    assert not has_parameters(["c", "heads.0.M", "other"])
    arrays = layer().arrays()
    with pytest.raises(ValueError, match=r"numbered from 0; here are heads\.0, heads\.2, heads\.7"):
        us.AttentionLayer.from_arrays(
            {name.replace("heads.1", "heads.7"): x for name, x in arrays.items()}
        )
    del arrays["heads.0.O"]
    with pytest.raises(ValueError, match=r"M, or O and V, beside W, or K and Q.* K, Q, V, w"):
        us.AttentionLayer.from_arrays(arrays)


# -- what does not fit


SQUARE = np.eye(2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((SQUARE[0], SQUARE), "M must have two axes"), ((np.zeros((0, 2)), SQUARE), "m ≥ 1 outputs")],
)
def test_heads_that_do_not_fit_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        us.LayerHead(*arguments)


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ((np.ones((2, 1)), SQUARE, SQUARE, SQUARE), r"O must have shape \(m, 2\) beside V"),
        ((SQUARE, np.ones(2), SQUARE, SQUARE), "V must have two axes"),
    ],
)
def test_factors_that_do_not_fit_are_refused(factors, said):
    with pytest.raises(ValueError, match=said):
        us.LayerHead.from_factors(*factors)


PLAIN = us.LayerHead(np.ones((3, 2)), SQUARE)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (([PLAIN], [1.0, 2.0]), ValueError, r"Head 0 has M of shape \(3, 2\); beside c"),
        (([PLAIN, us.LayerHead(np.ones((3, 4)), np.eye(4))], np.ones(3)), ValueError, "Head 1"),
        (([PLAIN], np.ones(3), True), ValueError, "With a residual m = d; here m = 3 and d = 2"),
        (([PLAIN], np.ones(3), False, None, 3), ValueError, "dim must be that of the heads"),
        (([], np.ones(3), False, None, 0), ValueError, "at least 1"),
        (([SQUARE], np.ones(2)), TypeError, "heads must be LayerHeads; one is a ndarray"),
        (([PLAIN], np.ones(3), False, "post"), TypeError, "norm must be a LayerNorm; it is a str"),
        (
            ([PLAIN], np.ones(3), False, us.LayerNorm([1, 1], None, 0)),
            ValueError,
            "behind .* 3 num",
        ),
        (
            ([PLAIN], np.ones(3), False, us.LayerNorm([1, 1, 1], None, 0, True)),
            ValueError,
            "before this layer has 2 numbers; it has 3",
        ),
    ],
)
def test_layers_that_do_not_fit_are_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        us.AttentionLayer(*arguments)


# -- what errors of parameters do


@pytest.mark.parametrize("place", ["none", "behind", "before"])
def test_predictions_are_off_by_no_more_than_the_parameters_say(place):
    """Errors of exactly the size of the bounds, drawn 40 times, small ones and large ones."""
    rng = np.random.default_rng(3)
    H, d = 3, 6

    def norm(scale, shift, eps):
        before = place == "before"
        return None if place == "none" else us.LayerNorm(scale, shift, eps, before=before)

    M, W = rng.standard_normal((2, H, d, d)) / 2
    w, c, scale, shift = rng.standard_normal((H, d)), *rng.standard_normal((3, d))
    heads = [us.LayerHead(*each) for each in zip(M, W, w, strict=True)]
    layer = us.AttentionLayer(heads, c, True, norm(scale, shift, 0.1))
    shares = []
    for draw in range(40):
        size = 10.0 ** rng.uniform(-9, 0)
        bounds = {name: size * rng.uniform() for name in ("M", "W", "w", "c")}

        def off(array, name, bounds=bounds):
            error = rng.standard_normal(array.shape)
            return array + bounds[name] * error / np.linalg.norm(error)

        moved = [us.LayerHead(off(h.M, "M"), off(h.W, "W"), off(h.w, "w")) for h in layer.heads]
        other = us.AttentionLayer(moved, off(layer.c, "c"), True, layer.norm)
        if place == "behind":
            bounds |= {"scale": size / 3, "shift": size / 5, "eps": 0.01 * size}
            behind = norm(off(scale, "scale"), off(shift, "shift"), 0.1 + bounds["eps"])
            other = us.AttentionLayer(moved, other.c, True, behind)
        X = 10.0 ** rng.uniform(-2, 1) * rng.standard_normal((6, 1 + draw % 9, d))
        apart = np.linalg.norm(other(X) - layer(X), axis=1)
        shares.extend(apart / (layer.moved_at_most(X, bounds) + 1e-13 * np.linalg.norm(X)))
    assert max(shares) <= 1
    assert np.median(shares) > 0.02
