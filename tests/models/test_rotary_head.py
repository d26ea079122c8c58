"""Heads with rotary positions: what they answer, which are equal, and files."""

import numpy as np
import pytest

import unsoftmax as us

FREQUENCIES = [
    [1, 0.1, 0.01, 0.001],
    [1, 1, 0.1, 0],
    [0, 0, np.pi, 0.2],
    [-1, 1, -0.3, 7.0],
    [0, 0, 0, 0],
    [2.5, 4, 5, 6],
]


def head(frequencies, seed=0, d=6):
    rng = np.random.default_rng(seed)
    r = 2 * len(frequencies)
    K, Q = rng.standard_normal((2, r, d)) / np.sqrt(d)
    k_bias, q_bias = rng.standard_normal((2, r))
    v = rng.standard_normal(d)
    return us.SingleHead.from_factors(
        K, Q, v, c=0.3, rotary=us.Rotary(frequencies), k_bias=k_bias, q_bias=q_bias
    )


def changed(model, **arrays):
    return us.RotaryHead.from_arrays({**model.arrays(), **arrays})


def times(rows, z):
    """Multiply every plane of rows (r, …) by its complex number."""
    plane = (rows[0::2] + 1j * rows[1::2]) * z.reshape(-1, *[1] * (rows.ndim - 1))
    return np.stack([plane.real, plane.imag], axis=1).reshape(rows.shape)


def test_scores_are_W_at_their_distance():
    model = changed(head([1.0, 0.3]), k_bias=np.zeros(4), q_bias=np.zeros(4))
    X = np.random.default_rng(2).standard_normal((1, 5, 6))
    by_W = [X[0, i] @ model.W_at(4 - i) @ X[0, -1] for i in range(5)]
    assert np.allclose(model.scores.of(X)[0], by_W, atol=1e-13)


def test_frequencies_of_a_base():
    assert np.allclose(us.Rotary.of(1e4, 8).frequencies, [1, 0.1, 0.01, 0.001])
    for wrong in ((0.0, 8), (1e4, 7), (np.inf, 8)):
        with pytest.raises(ValueError, match=r"base|dim"):
            us.Rotary.of(*wrong)
    with pytest.raises(ValueError, match="frequencies"):
        us.Rotary([[1.0]])


# -- equality


@pytest.mark.parametrize("frequencies", FREQUENCIES)
def test_the_canonical_form_is_the_same_function_and_the_same_for_all(frequencies):
    model, rng = head(frequencies), np.random.default_rng(3)
    X = rng.standard_normal((4, 40, 6))
    form = us.canonical(model)
    assert np.allclose(form(X), model(X), rtol=0, atol=1e-12)
    assert np.all(np.diff(form.rotary.frequencies) <= 0)
    assert np.all(form.rotary.frequencies >= 0)
    z = rng.uniform(0.5, 2, len(frequencies)) * np.exp(1j * rng.uniform(0, 6, len(frequencies)))
    arrays = {name: times(getattr(model, name), z) for name in ("K", "k_bias")}
    arrays |= {name: times(getattr(model, name), 1 / z.conj()) for name in ("Q", "q_bias")}
    gauged = changed(model, **arrays)
    assert us.equivalent(gauged, model)
    assert us.equivalent(us.canonical(gauged), form)
    for name, array in form.arrays().items():
        assert np.allclose(us.canonical(gauged).arrays()[name], array, rtol=0, atol=1e-12)


def test_planes_of_any_order_are_equal():
    model, order = head([1.0, 0.3, 0.1]), [2, 0, 1]
    rows = [place for k in order for place in (2 * k, 2 * k + 1)]
    names = ("K", "Q", "k_bias", "q_bias")
    arrays = {name: getattr(model, name)[rows] for name in names}
    other = changed(model, **arrays, frequencies=model.rotary.frequencies[order])
    assert us.equivalent(model, other)
    assert us.equivalent(changed(model, c=0.0), changed(other, c=0.1)).verdict == "different"


def moved(array, by, at=(0,)):
    array = np.array(array, dtype=float)
    array[at if array.ndim == len(at) else (*at, 0)] += by
    return array


def test_what_no_answer_shows_makes_no_difference():
    model = head([1.0, 0.0])
    hidden_bias = changed(model, k_bias=moved(model.k_bias, 5.0, (2,)))
    assert us.equivalent(model, hidden_bias)
    nothing = changed(model, v=np.zeros(6))
    assert us.equivalent(nothing, changed(nothing, K=0 * model.K))
    assert len(us.canonical(nothing).K) == 0


def test_a_head_whose_planes_do_not_turn_is_one_without_positions():
    model = head([0.0, 0.0])
    plain = us.SingleHead(model.K.T @ model.Q, model.v, model.K.T @ model.q_bias, model.c)
    factored = us.SingleHead.from_factors(model.K, model.Q, model.v, plain.w, model.c)
    for other in (plain, factored):
        assert us.equivalent(model, other)
        turning = head([1.0, 0.1])
        assert us.equivalent(turning, other).verdict == "different"
        assert us.equivalent(other, turning).verdict == "different"


def test_exact_equality_is_of_the_numbers_given():
    model = head([1.0, 0.3])
    assert us.equivalent(model, changed(model), rtol=0)
    assert not us.equivalent(model, changed(model, K=moved(model.K, 1e-15)), rtol=0)


# -- files, and wrong arguments


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"rotary": us.Rotary([1.0])}, "K must have shape"),
        ({"rotary": us.Rotary([1.0, 0.1]), "w": np.zeros(5)}, "w is no parameter"),
        ({"k_bias": np.zeros(4)}, "beside rotary"),
    ],
)
def test_wrong_arguments_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        us.SingleHead.from_factors(np.ones((4, 5)), np.ones((4, 5)), np.ones(5), **arguments)


def test_other_wrong_arguments():
    K = np.ones((2, 3))
    with pytest.raises(TypeError, match="rotary must be a Rotary"):
        us.RotaryHead(K, K, np.ones(3), [1.0])  # type: ignore[list-item]
