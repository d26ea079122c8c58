"""Several heads with rotary positions: what they answer, which are equal, and files."""

import pickle
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.models.test_rotary_head import times

ROTARY = us.Rotary([1.0, 0.3])


def heads(H=3, d=5, seed=0, rotary=ROTARY, biases=0.5):
    rng = np.random.default_rng([seed, H, d])
    K, Q = rng.standard_normal((2, H, 4, d)) / np.sqrt(d)
    k_bias, q_bias = biases * rng.standard_normal((2, H, 4))
    v = rng.standard_normal((H, d))
    return us.MultiHead.from_factors(K, Q, v, c=0.3, rotary=rotary, k_bias=k_bias, q_bias=q_bias)


def changed(model, **arrays):
    return us.RotaryHeads.from_arrays({**model.arrays(), **arrays})


def test_without_heads_there_is_the_constant():
    none = us.RotaryHeads.of([], 3, c=2.0)
    assert np.array_equal(none(np.ones((2, 4, 3))), [2.0, 2.0])
    assert us.equivalent(none, us.MultiHead(np.zeros((0, 3, 3)), np.zeros((0, 3)), c=2.0))


def test_what_does_not_change_the_function():
    """Order of heads, a complex number per plane, equal heads apart, a head without a value."""
    model, rng = heads(), np.random.default_rng(2)
    z = rng.standard_normal((3, 2)) + 1j * rng.standard_normal((3, 2))
    K, k_bias = (
        np.array([times(rows, by) for rows, by in zip(x, z, strict=True)])
        for x in (model.K, model.k_bias)
    )
    Q, q_bias = (
        np.array([times(rows, 1 / by.conj()) for rows, by in zip(x, z, strict=True)])
        for x in (model.Q, model.q_bias)
    )
    order = [2, 0, 1, 2, 0]
    v = np.vstack([model.v[order[:3]] * [[0.25], [1], [1]], 0.75 * model.v[2:], np.zeros((1, 5))])
    # the same numbers for heads that are one: equal scores are equal to the last bit
    other = us.RotaryHeads(
        K[order], Q[order], v, ROTARY, k_bias=k_bias[order], q_bias=q_bias[order], c=0.3
    )
    assert us.equivalent(model, other, rtol=1e-12)
    form: us.RotaryHeads = us.canonical(other)
    assert form.H == 3
    mine = us.canonical(model)
    assert all(np.allclose(form.arrays()[n], x, atol=1e-12) for n, x in mine.arrays().items())
    again = us.canonical(form)
    assert all(np.allclose(form.arrays()[n], x, atol=1e-14) for n, x in again.arrays().items())


@pytest.mark.parametrize("seed", range(10))
def test_rounding_does_not_change_the_order_of_heads(seed):
    model = heads(H=4, seed=seed)
    rng = np.random.default_rng(seed)
    off = {
        name: x * (1 + 1e-15 * rng.standard_normal(x.shape)) for name, x in model.arrays().items()
    }
    other = us.RotaryHeads.from_arrays({n: x[::-1] if x.ndim else x for n, x in off.items()})
    mine, its = us.canonical(model), us.canonical(other)
    assert all(np.allclose(its.arrays()[n], x, atol=1e-12) for n, x in mine.arrays().items())
    # values that heads share are no reason to order them by what rounds
    alike = [us.canonical(changed(one, v=np.ones((4, 5)))) for one in (model, other)]
    assert np.allclose(alike[0].K, alike[1].K, atol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("small", [{"v": 1e-8}, {"v": 1e-14}, {"c": 1e10}])
def test_heads_are_matched_by_what_a_certificate_allows(small):
    """A value that is small beside all others' is no reason to leave a head alone."""
    model, rng = heads(), np.random.default_rng(1)
    v, c = model.v.copy(), small.get("c", 0.3)
    v[1] *= small.get("v", 1.0)
    target = changed(model, v=v, c=c)
    errors = {"W": 1e-5, "w": 1e-5, "v": 1e-3 * float(np.linalg.norm(v[1])), "c": 1e-3}
    near = {n: x + 1e-7 * rng.standard_normal(x.shape) for n, x in (("K", model.K), ("Q", model.Q))}
    found = changed(target, **near)
    result = us.equivalent(found, target, rtol=0, errors=errors)
    assert (result.verdict, result.by) == ("equal", "certificate")
    assert result.share is not None
    assert 0 < result.share < 1
    far = changed(target, K=model.K + 1e-2)
    assert us.equivalent(far, target, rtol=0, errors=errors).verdict != "equal"
    # within its bound a value may be 0
    without = us.RotaryHeads.of([target.heads[0], target.heads[2]], 5, c)
    wide = {**errors, "v": 2 * float(np.linalg.norm(v[1]))}
    assert us.equivalent(without, target, rtol=0, errors=wide).share == pytest.approx(0.5)
    assert us.equivalent(target, without, rtol=0, errors=errors).verdict != "equal"


def test_other_classes():
    still = heads(rotary=us.Rotary([0.0, 0.0]))
    w = np.einsum("hrd,hr->hd", still.K, still.q_bias)
    plain = us.MultiHead.from_factors(still.K, still.Q, still.v, w, c=0.3)
    assert us.equivalent(still, plain)
    assert us.equivalent(heads(), plain).verdict == "different"
    one = heads(1)
    alone = us.RotaryHead(
        one.K[0], one.Q[0], one.v[0], ROTARY, k_bias=one.k_bias[0], q_bias=one.q_bias[0], c=0.3
    )
    assert us.equivalent(one, alone)
    assert us.equivalent(alone, one)
    assert not us.equivalent(heads(), alone)


def test_heads_of_other_frequencies_and_fewer_planes(tmp_path):
    a = us.RotaryHead(np.ones((2, 3)), np.ones((2, 3)), np.ones(3), us.Rotary([0.5]))
    b = us.RotaryHead(np.ones((4, 3)), np.eye(4, 3), np.ones(3), us.Rotary([1.0, 0.1]))
    model = us.RotaryHeads.of([a, b], 3)
    X = np.random.default_rng(3).standard_normal((4, 5, 3))
    assert np.allclose(model(X), a(X) + b(X), rtol=0, atol=1e-14)
    model.save(tmp_path / "heads.safetensors")
    for copy in (us.load(tmp_path / "heads.safetensors"), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(copy(X), model(X))
    assert us.equivalent(model, us.RotaryHeads.of([b, a], 3), rtol=0)


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"rotary": 1.0}, TypeError, "rotary"),
        ({"rotary": [1.0]}, TypeError, "rotary"),
        ({"rotary": [ROTARY]}, ValueError, "3, one for each head"),
    ],
)
def test_wrong_arrays_are_named(given, error, named):
    arrays = {name: x for name, x in heads().arrays().items() if name != "frequencies"}
    with pytest.raises(error, match=named):
        us.RotaryHeads(**{**arrays, "rotary": ROTARY, **given})


def test_from_factors_names_what_does_not_go_together():
    K = np.ones((2, 2, 3))
    make: Any = us.MultiHead.from_factors
    with pytest.raises(ValueError, match="q_bias"):
        make(K, K, np.ones((2, 3)), np.ones((2, 3)), rotary=us.Rotary([1.0]))
    with pytest.raises(ValueError, match="beside rotary"):
        make(K, K, np.ones((2, 3)), k_bias=np.ones((2, 2)))
    with pytest.raises(ValueError, match="frequencies"):
        us.RotaryHeads.from_arrays({**heads().arrays(), "frequencies": [1.0, 0.3]})
