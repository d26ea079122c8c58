"""Products of factors compared as real numbers: against fractions, and through `equivalent`."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.models.equality.score_form import Dyadics, _prime, same_product
from unsoftmax.models.products import Product

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
