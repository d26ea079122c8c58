"""LayerNorm and RMSNorm against their definitions, at any size, as values that nobody changes."""

import pickle

import numpy as np
import pytest

import unsoftmax as us


def norm(seed, m, **given):
    rng = np.random.default_rng([seed, m])
    return us.LayerNorm(rng.standard_normal(m), rng.standard_normal(m), **{"eps": 1e-5, **given})


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e-12, 1.0, 2.0**48, 1e200, 1e307])
def test_tokens_of_any_size(size):
    u = np.array([3.0, -4.0, 1.0])
    plain = us.LayerNorm(np.ones(3), None, eps=0.0)
    np.testing.assert_allclose(plain(size * u), plain(u), rtol=1e-14)
    small = us.LayerNorm(np.ones(3), None, eps=1e-12)
    expected = u * (size / np.sqrt(np.mean(u**2) * min(size, 1e150) ** 2 + 1e-12))
    if size <= 1e150:
        np.testing.assert_allclose(small(size * u), expected, rtol=1e-12)
    else:
        np.testing.assert_allclose(small(size * u), plain(u), rtol=1e-14)


def test_large_tokens_differ_by_powers_of_two_alone():
    model = norm(0, 6, eps=0.0)
    u = np.random.default_rng(0).standard_normal((4, 6))
    np.testing.assert_array_equal(model(2.0**48 * u), model(u))


def test_what_has_no_deviation_gives_the_shift():
    for centred, u in ((True, np.full((1, 4), 7.0)), (False, np.zeros((1, 4)))):
        model = norm(1, 4, eps=0.0, centred=centred)
        np.testing.assert_array_equal(model(u), model.shift[None])


def test_arrays_and_pickles_keep_everything():
    for model in (norm(0, 3), norm(1, 3, before=True, centred=False), us.LayerNorm([1.0], None, 0)):
        for copy in (us.LayerNorm.from_arrays(model.arrays()), pickle.loads(pickle.dumps(model))):
            assert copy.arrays().keys() == model.arrays().keys()
            for name, array in copy.arrays().items():
                np.testing.assert_array_equal(array, model.arrays()[name])
                assert not array.flags.writeable
            assert (copy.before, copy.centred) == (model.before, model.centred)
            assert (copy.eps, copy.width) == (model.eps, model.width)


def test_repr_says_what_it_is():
    assert repr(norm(0, 3)) == "LayerNorm(m=3, eps=1e-05)"
    assert repr(norm(0, 3, before=True, centred=False)).endswith("before, centred=False)")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([[1.0]], None, 0.0), r"scale must have shape \(m,\)"),
        (([], None, 0.0), "m ≥ 1"),
        (([1.0, 2.0], [1.0], 0.0), "shift must have shape"),
        (([1.0], None, -1.0), "eps must be 0 or more"),
        (([1.0], None, [1.0]), "eps must have shape"),
        (([np.nan], None, 1.0), "scale must be finite"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        us.LayerNorm(*arguments)


def test_arrays_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"shape \(…, 3\); it was given shape \(2, 4\)"):
        norm(0, 3)(np.zeros((2, 4)))
