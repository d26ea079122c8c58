"""Products of factors, exact and rounded, and the attention that is made of them."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.models.attention import largest_mean_shift, softmax
from unsoftmax.models.equality.score_form import Dyadics, _prime, same_product
from unsoftmax.models.products import Product, distances

KINDS = ("head", "heads", "transformer")


def fractions(arrays):
    """W as fractions, entry by entry."""
    if "W" in arrays:
        return [[Fraction(x) for x in row] for row in arrays["W"].tolist()]
    K, Q = (arrays[name].T.tolist() for name in "KQ")
    return [
        [
            sum((Fraction(a) * Fraction(b) for a, b in zip(k, q, strict=True)), Fraction(0))
            for q in Q
        ]
        for k in K
    ]


def product(arrays):
    """W as a product that is never rounded."""
    return Product.of(arrays["W"]) if "W" in arrays else Product(arrays["K"].T, arrays["Q"])


numbers = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-8, 8),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 5e-324, 2.0**-1022, 1.7e308, 0.1, 2.0**52]),
)


@st.composite
def scores(draw, d):
    def matrix(rows):
        return np.array(draw(st.lists(numbers, min_size=rows * d, max_size=rows * d))).reshape(
            rows, d
        )

    r = draw(st.integers(-1, 3))
    return {"W": matrix(d)} if r < 0 else {"K": matrix(r), "Q": matrix(r)}


@given(st.data())
def test_as_fractions_say(data):
    d = data.draw(st.integers(1, 3))
    a, b = data.draw(scores(d)), data.draw(scores(d))
    for mine, its in itertools.product((a, b), repeat=2):
        expected = fractions(mine) == fractions(its)
        assert same_product(product(mine), product(its)) == expected


@given(st.lists(numbers, min_size=1, max_size=6))
def test_numbers_are_split_exactly(x):
    parts = Dyadics.of(np.array([x]))
    for value, m, e in zip(x, parts.m[0].tolist(), parts.e[0].tolist(), strict=True):
        assert Fraction(value) == Fraction(m) * Fraction(2) ** e
        assert m == 0 or m % 2
        assert not m or Fraction(2) ** parts.low <= abs(Fraction(value)) < Fraction(2) ** parts.high
    p = _prime(5)
    for value, residue in zip(x, parts.modulo(p)[0].tolist(), strict=True):
        exact = Fraction(value)
        assert (int(residue) * exact.denominator - exact.numerator) % p == 0


def test_moduli_are_primes_and_all_different():
    primes = [_prime(k) for k in range(60)]
    assert len(set(primes)) == 60
    assert all(2**20 < p < 2**21 for p in primes)
    assert all(p % q for p in primes[:5] for q in range(2, 1500))


def model_of(kind, arrays, d):
    rng = np.random.default_rng(d)
    v, w, A = rng.standard_normal(d), rng.standard_normal(d), rng.standard_normal((d, 4))
    if kind == "head":
        return us.SingleHead.from_arrays({**arrays, "v": v, "w": w, "c": 0.5})
    if kind == "heads":
        both = {name: np.stack([x, x if name == "Q" else 2 * x]) for name, x in arrays.items()}
        return us.MultiHead.from_arrays(
            {**both, "v": np.stack([v, w]), "w": np.stack([w, v]), "c": 0.5}
        )
    return us.Transformer.from_arrays(
        {
            **arrays,
            "w": w,
            "network.A": A,
            "network.w_o": np.ones(4),
            "network.b": A[0],
            "network.c": 0.5,
        }
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "r"), [(1, 1), (4, 2), (9, 9), (40, 3)])
def test_the_same_products_in_other_factors_are_equal(kind, d, r, trials):
    """Another order, signs, powers of two, a row split in two: float64 rounds each otherwise."""
    for seed in range(trials(1, 50)):
        rng = np.random.default_rng([d, r, seed])
        K, Q = rng.standard_normal((2, r, d))
        order, scale = rng.permutation(r), rng.choice([-8.0, -1.0, 0.25, 2.0**30], (r, 1))
        half = np.round(Q[0] * 2**20) / 2**20  # Q = half + (Q − half), both exact
        others: dict[str, tuple[Any, Any]] = {
            "order": (K[order], Q[order]),
            "scale": (K * scale, Q / scale),
            "split": (np.vstack([K, K[:1]]), np.vstack([half, Q[1:], Q[:1] - half])),
            "cancelling": (np.vstack([K, K]), np.vstack([2 * Q, -Q])),
        }
        mine = model_of(kind, {"K": K, "Q": Q}, d)
        for name, (K_other, Q_other) in others.items():
            other = model_of(kind, {"K": K_other, "Q": Q_other}, d)
            assert us.equivalent(mine, other, rtol=0), name
            assert us.equivalent(other, mine, rtol=0), name


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_products_that_differ_are_never_called_equal_even_if_they_round_alike(kind, trials):
    hidden = 0
    for seed in range(trials(1, 500)):
        rng = np.random.default_rng(seed)
        K, Q = rng.standard_normal((2, 3, 5))
        Q[0] *= 1e-3
        moved = Q.copy()
        moved[0, 2] = np.nextafter(moved[0, 2], np.inf)
        a, b = (model_of(kind, {"K": K, "Q": x}, 5) for x in (Q, moved))
        hidden += np.array_equal(K.T @ Q, K.T @ moved)
        for result in (us.equivalent(a, b, rtol=0), us.equivalent(b, a, rtol=0)):
            assert result.verdict in ("different", "undecided")
            assert (result.witness is None) == (result.verdict == "undecided")
    assert hidden


@pytest.mark.parametrize("kind", KINDS)
def test_an_exact_product_is_its_matrix(kind):
    rng = np.random.default_rng(0)
    K, Q = rng.integers(-9, 10, (2, 3, 6)).astype(float)
    a, b = model_of(kind, {"K": K, "Q": Q}, 6), model_of(kind, {"W": K.T @ Q}, 6)
    assert us.equivalent(a, b, rtol=0)
    assert us.equivalent(b, a, rtol=0)


def test_heads_that_are_one_only_as_real_numbers_are_merged():
    """Proposition 7.1's family in factors that round differently: only the sum of v counts."""
    rng = np.random.default_rng(3)
    K, Q = rng.standard_normal((2, 4, 6))
    v, share = np.arange(1.0, 7.0), 0.25
    order = [2, 0, 3, 1]
    two = us.MultiHead.from_factors([K, K[order]], [Q, Q[order]], [share * v, (1 - share) * v])
    one = us.SingleHead.from_factors(K, Q, v)
    assert us.equivalent(two, one, rtol=0)
    assert not us.equivalent(two, us.SingleHead.from_factors(K, Q, 2 * v), rtol=0)


def test_more_terms_than_float64_adds_at_once():
    rng = np.random.default_rng(0)
    K, Q = rng.standard_normal((2, 5000, 2))
    order = rng.permutation(5000)
    a, b = (product({"K": K[k], "Q": Q[k]}) for k in (np.arange(5000), order))
    assert same_product(a, b)
    K[0, 0] = np.nextafter(K[0, 0], 9)
    assert not same_product(a, product({"K": K, "Q": Q}))


# -- products of thin factors: what is computed of them is what the whole matrices have


def product_of(seed, m, d, r):
    rng = np.random.default_rng([seed, m, d, r])
    return Product(rng.standard_normal((m, r)), rng.standard_normal((r, d)))


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 8))
def test_norms_sums_and_inner_products(seed, m, d, r):
    one, other = product_of(seed, m, d, r), product_of(seed + 1, m, d, 2)
    a, b = one.whole, other.whole
    assert one.norm == pytest.approx(np.linalg.norm(a), rel=1e-12, abs=1e-12)
    assert (one - other).norm == pytest.approx(np.linalg.norm(a - b), rel=1e-12, abs=1e-12)
    assert one.inner(other) == pytest.approx(np.sum(a * b), rel=1e-12, abs=1e-10)
    np.testing.assert_allclose((one + other).whole, a + b, atol=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 8))
def test_the_compact_form_is_the_same_matrix_of_its_rank(seed, m, d, r):
    given = product_of(seed, m, d, r)
    found = given.compact()
    assert len(found.right) == min(m, d, r)
    np.testing.assert_allclose(found.whole, given.whole, atol=1e-12)
    gram = found.left.T @ found.left
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-13)
    # of another pair of factors it is the same
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((r, r)))[0]
    again = Product(given.left @ turn, turn.T @ given.right).compact()
    np.testing.assert_allclose(np.linalg.norm(again.right, axis=1),
                               np.linalg.norm(found.right, axis=1), atol=1e-11)  # fmt: skip


def test_differences_do_not_cancel():
    one = product_of(0, 40, 50, 3)
    near = Product(one.left, one.right * (1 + 1e-12))
    assert (one - near).norm == pytest.approx(1e-12 * one.norm, rel=1e-2)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_a_whole_matrix_is_a_product(shape):
    matrix = np.random.default_rng(0).standard_normal(shape)
    np.testing.assert_array_equal(Product.of(matrix).whole, matrix)
    assert Product.of(matrix).right.shape[0] == min(shape)
    assert len(Product.of(np.zeros(shape)).compact().right) == 0


def test_distances_of_all_pairs():
    far = [product_of(seed, 6, 7, 2) for seed in range(3)]
    near = [Product(p.left, p.right * (1 + 1e-9 * k)) for k, p in enumerate(far)]
    expected = [[np.linalg.norm(p.whole - q.whole) for q in near] for p in far]
    np.testing.assert_allclose(distances(far, near), expected, rtol=1e-5, atol=1e-14)
    among = distances(far, far)
    np.testing.assert_array_equal(among, among.T)
    assert not among.diagonal().any()
    assert distances(far, []).shape == (3, 0)


# -- attention on arrays: softmax at the ends of float64, derivatives, and bounds that are kept


INF = np.inf


def mean(scores, values):
    return np.sum(softmax(scores) * values, axis=-1)


# -- softmax


@pytest.mark.parametrize(
    ("scores", "weights"),
    [
        ([0.0], [1.0]),
        ([1e308, -1e308, 0.0], [1.0, 0.0, 0.0]),
        ([-1e308, -1e308], [0.5, 0.5]),
        ([-INF, 5.0, -INF], [0.0, 1.0, 0.0]),
        ([-INF, 700.0, 700.0], [0.0, 0.5, 0.5]),
        ([-INF], [0.0]),
        ([-INF, -INF, -INF], [0.0, 0.0, 0.0]),
        ([], []),
    ],
)
def test_ends_of_float64_and_masks(scores, weights):
    """Warnings are errors: none may be raised either."""
    np.testing.assert_array_equal(softmax(np.array(scores)), weights)


# -- bounds


@pytest.mark.parametrize("m", [1e-12, 1e-3, 0.3, 2.0, 40.0, 1e3, 1e300, INF])
def test_no_move_of_scores_exceeds_the_bound(m):
    rng = np.random.default_rng(6)
    for scale in (0.1, 3.0, 100.0):
        scores, values = scale * rng.standard_normal((30, 4)), rng.standard_normal((30, 4))
        before = mean(scores, values)
        deviations = np.abs(values - before[:, None])
        bound = largest_mean_shift(softmax(scores), deviations, np.full(30, m))
        for signs in itertools.product((-1.0, 1.0), repeat=4):
            after = mean(scores + min(m, 1e6) * np.array(signs), values)
            assert np.all(np.abs(after - before) <= bound * (1 + 1e-12) + 1e-14)


def test_the_bound_is_tight_for_small_moves_and_for_large():
    scores, values = np.zeros((1, 2)), np.array([[-1.0, 1.0]])
    deviations = np.abs(values)
    small = np.tanh(1e-6)
    np.testing.assert_allclose(
        largest_mean_shift(softmax(scores), deviations, np.array([1e-6])), small, rtol=1e-5
    )
    for m in (800.0, INF):
        np.testing.assert_array_equal(
            largest_mean_shift(softmax(scores), deviations, np.array([m])), 1.0
        )


def test_a_weight_that_rounded_to_zero_may_come_back():
    weights, deviations = np.array([[0.0, 1.0]]), np.array([[5.0, 0.0]])
    np.testing.assert_array_equal(largest_mean_shift(weights, deviations, np.array([1e3])), 5.0)
    np.testing.assert_array_equal(largest_mean_shift(weights, deviations, np.array([1.0])), 0.0)


def test_rounding_of_scores_is_within_its_bound():
    rng = np.random.default_rng(8)
    X, head = rng.standard_normal((200, 3, 8)), us.SingleHead(np.eye(8), np.ones(8))
    true = np.einsum("bnd,bd->bn", *(x.astype(np.longdouble) for x in (X, X[:, -1])))
    off = np.abs(head.scored(X) - true)
    assert np.all(off <= 4 * 2.0**-53 * head.score_sizes(X)[:, 0])
