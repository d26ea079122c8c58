"""Two heads, one function or two: exact answers, and witnesses checked in 60-digit arithmetic."""

from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.models import Equivalence

PARAMETERS = ("W", "v", "w", "c")


def exact(head, x):
    """f(x) for one sequence in 60 digits."""

    def dot(left, right):
        return sum(map(Decimal.__mul__, map(Decimal, left), map(Decimal, right)), Decimal(0))

    with localcontext(Context(prec=60)):
        key = [
            dot(row.tolist(), x[-1].tolist()) + Decimal(bias)
            for row, bias in zip(head.W, head.w.tolist(), strict=True)
        ]
        scores = [dot(token.tolist(), key) for token in x]
        weights = [(score - max(scores)).exp() for score in scores]
        values = [dot(token.tolist(), head.v.tolist()) for token in x]
        return dot(weights, values) / sum(weights) + Decimal(head.c)


def assert_told_apart(result, a, b):
    """The witness separates the two, by float64 answers whose difference is no rounding."""
    assert result.verdict == "different"
    assert not result
    x = result.witness
    assert x.ndim == 2
    assert x.shape[1] == a.dim
    seen = Decimal(float(a(x[None])[0])) - Decimal(float(b(x[None])[0]))
    true = exact(a, x) - exact(b, x)
    assert seen
    assert abs(seen - true) < abs(true) / 2


def head(d, seed=0, scale=1.0, **changes):
    """A head with every parameter; ``changes`` replace some."""
    rng = np.random.default_rng([d, seed])
    parameters = {
        "W": scale * rng.standard_normal((d, d)),
        "v": rng.standard_normal(d),
        "w": scale * rng.standard_normal(d),
        "c": 0.7,
    }
    return us.SingleHead(**{**parameters, **changes})


def changed(model, name, step, seed=1):
    """The head with one parameter moved by ``step`` of its own norm in a random direction."""
    array = np.asarray(getattr(model, name))
    direction = np.random.default_rng(seed).standard_normal(array.shape)
    moved = array + step * np.linalg.norm(array) / np.linalg.norm(direction) * direction
    parameters = {other: getattr(model, other) for other in PARAMETERS}
    return us.SingleHead(**{**parameters, name: moved})


# -- equal


@given(st.integers(1, 8), st.integers(0, 2**32))
def test_a_head_is_itself_exactly(d, seed):
    result = us.equivalent(head(d, seed), head(d, seed), rtol=0, atol=0)
    assert result == Equivalence("equal", None, 0.0)
    assert result


def test_factors_and_their_product_are_one_function():
    rng = np.random.default_rng(0)
    K, Q = rng.standard_normal((2, 3, 8))
    factored = us.SingleHead.from_factors(K, Q, np.ones(8))
    product = us.SingleHead(factored.W, np.ones(8))
    assert us.equivalent(factored, product)
    # rounded, the product is another matrix: no sequence tells, and nothing else is claimed
    assert us.equivalent(factored, product, rtol=0).verdict == "undecided"
    turned = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    other = us.SingleHead.from_factors(turned @ K, turned @ Q, np.ones(8))
    assert us.equivalent(factored, other)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_without_values_the_scores_are_free(zero):
    silent = head(3, 0, v=np.full(3, zero))
    other = head(3, 1, scale=1e6, v=np.zeros(3))
    assert us.equivalent(silent, other, rtol=0)
    plain = us.canonical(silent)
    for array in (plain.W, plain.w, plain.v):
        np.testing.assert_array_equal(array, 0.0)
    assert plain.c == 0.7
    X = np.random.default_rng(0).standard_normal((5, 3, 3))
    np.testing.assert_array_equal(plain(X), silent(X))


def test_the_canonical_form_of_a_head_with_values_is_itself():
    model = head(3)
    assert us.canonical(model) is model


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_tolerance_is_relative_to_the_block(name):
    a = head(4)
    block = np.column_stack([a.W, a.w]) if name in ("W", "w") else np.append(a.v, a.c)
    # exactly 1e-6 of the block's norm, up to rounding
    size = 1e-6 * np.linalg.norm(block) / np.linalg.norm(getattr(a, name))
    b = changed(a, name, size)
    assert us.equivalent(a, b, rtol=1.001e-6)
    assert us.equivalent(a, b, rtol=0.999e-6).verdict == "different"
    assert us.equivalent(a, b).gap == pytest.approx(1e-6, rel=1e-6)
    norm = float(np.linalg.norm(block))
    assert us.equivalent(a, b, rtol=0, atol=1.001e-6 * norm)
    assert us.equivalent(a, b, rtol=0, atol=0.999e-6 * norm).verdict == "different"


def test_recovery_errors_are_within_the_default():
    a = head(16)
    assert us.equivalent(a, changed(a, "W", 1e-13))
    assert us.equivalent(a, changed(a, "v", 1e-15))


# -- different


@given(
    st.integers(1, 6),
    st.integers(0, 2**32),
    st.sampled_from(PARAMETERS),
    st.floats(-8, 0.5),
    st.integers(-30, 8),  # beyond, tokens that give moderate logits are lost beside c
)
def test_a_difference_beyond_the_tolerance_is_shown(d, seed, name, exponent, octaves):
    a = head(d, seed, scale=2.0**octaves)
    b = changed(a, name, 10.0**exponent, seed)
    assert_told_apart(us.equivalent(a, b, rtol=1e-12), a, b)


@pytest.mark.few
@pytest.mark.parametrize("size", [1e-100, 1e-40, 1e-20, 1e-9, 1.0, 1e9, 1e20, 1e40, 1e100])
@pytest.mark.parametrize("name", PARAMETERS)
def test_heads_are_told_apart_at_any_scale(name, size):
    parameters = {"W": np.zeros((2, 2)), "v": np.ones(2), "w": np.zeros(2), "c": np.zeros(())}
    ones = size * np.ones(parameters[name].shape)
    a = us.SingleHead(**{**parameters, name: ones})
    b = us.SingleHead(**{**parameters, name: ones / 2})
    # c counts relative to v and c together
    assert_told_apart(us.equivalent(a, b, rtol=1e-9 if name != "c" else 0), a, b)


@pytest.mark.few
@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e154, 1e160, 1e300, 1e307])
@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes_whose_squares_are_no_floats(name, size):
    parameters = {"W": np.eye(2), "v": np.ones(2), "w": np.ones(2), "c": np.ones(())}
    ones = size * np.ones(parameters[name].shape)
    a = us.SingleHead(**{**parameters, name: ones})
    b = us.SingleHead(**{**parameters, name: ones / 2})
    result = us.equivalent(a, b, rtol=0)
    assert us.equivalent(a, a, rtol=0)
    assert result.verdict != "equal"
    assert 0 < result.gap < 1
    if result.verdict == "different":
        assert_told_apart(result, a, b)


def test_one_head_weighs_and_the_other_does_not():
    for size in (1e-200, 1.0, 1e200):
        a, b = us.SingleHead(np.eye(2), [size, 0.0]), us.SingleHead(np.eye(2), [0.0, 0.0])
        assert_told_apart(us.equivalent(a, b), a, b)


def test_two_constants():
    a, b = (us.SingleHead(np.eye(2), np.zeros(2), c=c) for c in (1.0, 2.0))
    result = us.equivalent(a, b)
    assert_told_apart(result, a, b)
    np.testing.assert_array_equal(result.witness, np.zeros((1, 2)))


def test_opposite_values():
    a = head(3)
    b = us.SingleHead(a.W, -a.v, a.w, a.c)
    assert_told_apart(us.equivalent(a, b), a, b)


def test_a_small_column_beside_a_large_one():
    a, b = (us.SingleHead(np.diag([1e6, x]), [1.0, 1.0]) for x in (1.0, 2.0))
    assert_told_apart(us.equivalent(a, b), a, b)


@pytest.mark.parametrize("size", [1e3, 1e8])
def test_scores_beside_a_large_query_bias(size):
    a, b = (us.SingleHead(x * np.eye(2), [1.0, 2.0], [size, size]) for x in (1.0, 2.0))
    assert_told_apart(us.equivalent(a, b, rtol=0), a, b)


def test_scores_and_query_bias_both_large():
    a, b = (us.SingleHead([[x]], [1.0], [1e8], 0.7) for x in (1e8, 2e8))
    assert_told_apart(us.equivalent(a, b), a, b)


@given(st.integers(1, 5), st.integers(0, 2**32), st.sampled_from(PARAMETERS), st.floats(-17, 0))
def test_the_order_of_the_two_does_not_matter(d, seed, name, exponent):
    a = head(d, seed)
    b = changed(a, name, 10.0**exponent)
    one, other = us.equivalent(a, b), us.equivalent(b, a)
    assert (one.verdict, one.gap) == (other.verdict, other.gap)


# -- undecided


@given(st.integers(1, 6), st.integers(0, 2**32), st.sampled_from(PARAMETERS), st.booleans())
def test_one_last_bit_is_never_called_equal_exactly(d, seed, name, up):
    a = head(d, seed)
    array = np.array(getattr(a, name))
    k = np.random.default_rng(seed).integers(array.size)
    array.flat[k] = np.nextafter(array.flat[k], np.inf if up else -np.inf)
    b = us.SingleHead(**{**{other: getattr(a, other) for other in PARAMETERS}, name: array})
    assert us.equivalent(a, b)
    result = us.equivalent(a, b, rtol=0)
    assert result.verdict != "equal"
    assert result.gap > 0
    if result.verdict == "different":
        assert_told_apart(result, a, b)


def test_what_float64_cannot_tell_is_undecided():
    a = head(32)
    result = us.equivalent(a, changed(a, "W", 1e-15), rtol=0)
    assert result.verdict == "undecided"
    assert result.witness is None
    assert not result
    assert result.gap == pytest.approx(1e-15, rel=0.2)


def test_scores_out_of_reach_are_undecided():
    a = us.SingleHead([[0.0]], [1.0], w=[1e-200])
    b = us.SingleHead([[0.0]], [1.0], w=[2e-200])
    assert us.equivalent(a, b).verdict == "undecided"


# -- refused


@pytest.mark.parametrize("tolerance", [{"rtol": -1e-9}, {"atol": -1.0}, {"rtol": float("nan")}])
def test_tolerances_are_not_negative(tolerance):
    with pytest.raises(ValueError, match="rtol and atol must be 0 or more"):
        us.equivalent(head(2), head(2), **tolerance)


# -- within a certificate


def nudged(model, name, norm, seed=0):
    """The same model with one parameter moved by so much."""
    arrays = dict(model.arrays())
    step = np.random.default_rng(seed).standard_normal(np.shape(arrays[name]))
    arrays[name] = arrays[name] + norm * step / np.linalg.norm(step)
    return type(model).from_arrays(arrays)


def trained(kind):
    rng = np.random.default_rng(3)
    if kind == "single":
        return us.SingleHead(rng.standard_normal((5, 5)), rng.standard_normal(5), np.ones(5), 0.3)
    return us.MultiHead(rng.standard_normal((3, 5, 5)), rng.standard_normal((3, 5)))


@pytest.mark.parametrize("kind", ["single", "several"])
@pytest.mark.parametrize("name", ["W", "v", "w", "c"])
def test_models_within_a_certificate_are_the_same(kind, name):
    model, errors = trained(kind), {"W": 1e-3, "v": 1e-4, "w": 1e-5, "c": 1e-6}
    near = nudged(model, name, 0.9 * errors[name])
    far = nudged(model, name, (1.1 if kind == "single" else 3) * errors[name])
    assert us.equivalent(model, near).verdict == "different"
    result = us.equivalent(model, near, errors=errors)
    assert (result.verdict, result.by) == ("equal", "certificate")
    beyond = us.equivalent(model, far, errors=errors)
    # the answers' difference is small, and no proof: the bounds are
    assert (beyond.verdict, beyond.by) == ("different", "certificate")
    assert result.share is not None
    assert beyond.share is not None
    assert result.share <= 1 < beyond.share < 4
    without = {key: bound for key, bound in errors.items() if key != name}
    assert us.equivalent(model, near, errors=without).verdict == "different"
    assert us.equivalent(model, near, 1e-2, errors=errors).by == "canonical form"


@pytest.mark.parametrize("kind", ["single", "several"])
def test_a_bound_that_is_infinite_makes_nothing_equal(kind):
    model, errors = trained(kind), {"W": np.inf, "v": np.inf, "w": np.inf, "c": np.inf}
    for name in errors:
        other = nudged(model, name, 1.0)
        assert us.equivalent(model, other, errors=errors).verdict == "different"
    network = us.ReluNetwork(np.eye(2), np.ones(2))
    far = us.ReluNetwork(np.eye(2), 2 * np.ones(2))
    for bound in ("constant", "slope"):
        assert us.equivalent(network, far, errors={bound: np.inf}).verdict == "different"


@pytest.mark.parametrize("kind", ["single", "several"])
@pytest.mark.parametrize("name", ["W", "v"])
def test_a_certificate_that_tells_little_leaves_models_undecided(kind, name):
    model = trained(kind)
    size = float(np.linalg.norm(getattr(model, name)))
    other = nudged(model, name, size)
    result = us.equivalent(model, other, errors={name: 8 * size})
    assert (result.verdict, result.by) == ("undecided", "certificate")
    near = nudged(model, name, 1e-3 * size)
    assert us.equivalent(model, near, errors={name: 8 * size}).verdict == "equal"


def test_a_head_too_small_to_be_found_is_within_the_bound_on_v():
    model = trained("several")
    more = us.MultiHead(
        np.append(model.W, np.eye(5)[None], axis=0), np.append(model.v, np.full((1, 5), 1e-6), 0)
    )
    assert us.equivalent(model, more, errors={"v": 1e-5}).by == "certificate"
    assert us.equivalent(model, more, errors={"v": 1e-6}).verdict == "different"


def test_networks_and_what_stands_before_them_within_a_certificate():
    rng = np.random.default_rng(0)
    A, b, w_o = rng.standard_normal((4, 6)), rng.standard_normal(6), rng.standard_normal(6)
    network = us.ReluNetwork(A, w_o, b)
    near = us.ReluNetwork(A, w_o, b + 1e-6)
    off = 1e-6 * np.abs(w_o).sum()
    assert us.equivalent(network, near, errors={"constant": off}).by == "certificate"
    assert us.equivalent(network, near, errors={"slope": 1e-9}).verdict == "different"
    W = rng.standard_normal((4, 4))
    first, second = us.Transformer(W, network), us.Transformer(W + 1e-6, near)
    errors = {"constant": off, "slope": 0.0, "W": 4.1e-6, "w": 0.0}
    assert us.equivalent(first, second, errors=errors).by == "certificate"
    assert us.equivalent(first, second, errors=errors | {"W": 3.9e-6}).verdict == "different"
    several = us.MultiHead(np.stack([W, -W]), np.ones((2, 4)))
    assert us.equivalent(first, several, errors=errors).verdict == "different"


def test_gated_layers_within_a_certificate_at_any_length():
    rng = np.random.default_rng(0)
    A, B, G = rng.standard_normal((3, 4, 4))
    b, c, g = rng.standard_normal((3, 4))

    def layer(by: float, constant: float = 0.0) -> us.FeedForward:
        own = A + by, b, B, c + constant
        return us.FeedForward(*own, activation="softplus", gate=(G, g))

    model, off, reach = layer(0.0), 1e-8, 10.0
    # gates are φ(t) ≤ φ(0) + |t|, and a change of all A moves z by off·Σx_i ≤ 2 off·‖x‖
    gates = np.log(2) * 2 + np.linalg.norm(g) + np.linalg.norm(G) * reach
    slope = 2 * off * np.linalg.norm(B) * gates
    errors = {"constant": 1e-9, "slope": slope, "square": slope / reach}
    assert us.equivalent(model, layer(off), errors=errors).verdict == "equal"
    assert us.equivalent(model, layer(30 * off), errors=errors).verdict == "different"
    # near 0 the square allows no more
    assert us.equivalent(model, layer(0.0, 4e-9), errors=errors).verdict == "different"


def test_a_bound_on_the_function_alone_is_no_bound_on_W():
    """The target of such a recovery must not be told from it by a sequence of our choice."""
    rng = np.random.default_rng(0)
    W, v = rng.standard_normal((4, 4)), rng.standard_normal((2, 4))
    target = us.MultiHead(np.stack([W, W + 1e-5 * rng.standard_normal((4, 4))]), v)
    merged = us.MultiHead(W[None], v.sum(axis=0)[None])
    assert us.equivalent(target, merged).verdict == "different"
    errors = {"constant": 0.0, "slope": 2e-5}
    within = us.equivalent(merged, target, errors=errors)
    assert (within.verdict, within.by) == ("undecided", "certificate")
    other = us.MultiHead(W[None] + 1.0, v.sum(axis=0)[None])
    beyond = us.equivalent(merged, other, errors=errors)
    assert (beyond.verdict, beyond.by) == ("different", "certificate")
