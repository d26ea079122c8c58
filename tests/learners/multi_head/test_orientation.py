"""Signs, pairs W and −W and heads W = 0 from three copies of a token, by formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.by_hand import driven
from tests.learners.multi_head.synthetic import Scene
from unsoftmax.learners.multi_head.search_outcomes import UnsaturatedGates
from unsoftmax.learners.multi_head.token_search import OrientedHeads, orient, shifted_gate


def drawn(heads, dim, seed=0):
    rng = np.random.default_rng([heads, dim, seed])
    W = rng.standard_normal((heads, dim, dim)) / np.sqrt(dim)
    return W, rng.standard_normal((heads, dim))


def oriented(scene, u, v, **more):
    """Orient heads that two tokens found as u and v (H, d)."""
    token = scene.token(u=u, v=v, **more)
    return driven(orient(token, scene.rng), scene.model)


def test_the_gate_is_shifted_by_ln_3():
    s = np.array([-800.0, -2.0, 0.0, 1.0, 800.0])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(shifted_gate(s), 1 / (1 + np.exp(-s - np.log(3))), atol=1e-300)


@pytest.mark.parametrize(("heads", "dim"), [(1, 3), (4, 6), (8, 4)])
def test_signs(heads, dim, trials):
    for seed in range(trials(1, 30)):
        W, v = drawn(heads, dim, seed)
        scene = Scene.of(W, v, seed=seed)
        turned = np.random.default_rng(seed).choice([-1.0, 1.0], heads)
        found, asked = oriented(scene, turned[:, None] * scene.u, turned[:, None] * v)
        assert asked == heads + 1
        assert found.index == list(range(heads))
        assert found.sign == turned.tolist()
        np.testing.assert_allclose(found.v, v)
        assert found.constant is None
        assert len(found) == heads


def test_values_that_miss_their_sum_are_coarser_than_estimated():
    v = [np.array([3.0, 0.0]), np.array([0.0, 4.0])]
    found = OrientedHeads([0, 1], [1.0, 1.0], v, None, v_error=1e-6, unswitched=0.0)
    s = found.v[0] + found.v[1]
    assert found.times_off(s) == 1
    assert found.times_off(s + 1e-7) == 1  # as expected
    assert found.times_off((1 + 1e-5) * s) == pytest.approx(5e-5 / np.sqrt(2) / 1e-6)
    constant = replace(found, constant=1e-5 * s)
    assert constant.times_off((1 + 1e-5) * s) == 1
    assert replace(found, index=[], v=[]).times_off(s) == 1  # no heads have no errors


def test_a_head_beside_its_opposite():
    """(W, α) and (−W, β) look like one head of value α − β."""
    W, v = drawn(3, 6)
    W[1] = -W[0]
    scene = Scene.of(W, v)
    u = scene.u
    found, asked = oriented(scene, u[[0, 2]], np.stack([v[0] - v[1], v[2]]))
    assert found.index == [0, 0, 1]
    assert found.sign == [1.0, -1.0, 1.0]
    np.testing.assert_allclose(found.v, v, atol=1e-10)
    assert np.linalg.norm(np.array(found.v) - v, axis=1).max() <= 12 * found.v_error + 1e-14
    # what the other window sees of m₁ may make its head look odd as well: then both are asked
    assert asked in (3 + 6, 3 + 2 * 6)


def test_an_opposite_of_equal_weight_is_told_by_its_sum():
    """(W, v) and (−W, −v): two heads, seen as one of value 2v; their sum is 0."""
    W, v = drawn(2, 6)
    W[1], v[1] = -W[0], -v[0]
    scene = Scene.of(W, v)
    found, _ = oriented(scene, scene.u[:1], 2 * v[:1])
    assert found.index == [0, 0]
    assert sorted(found.sign) == [-1.0, 1.0]
    for sign, value in zip(found.sign, found.v, strict=True):
        np.testing.assert_allclose(value, sign * v[0], atol=1e-10)


@pytest.mark.parametrize("heads", [1, 3])
def test_a_head_without_logits(heads):
    W, v = drawn(heads, 5)
    W[-1] = 0
    scene = Scene.of(W, v)
    found, asked = oriented(scene, scene.u[:-1], v[:-1])
    np.testing.assert_allclose(found.constant, v[-1], atol=1e-12)
    assert np.linalg.norm(found.constant - v[-1]) <= 12 * found.v_error + 1e-14
    assert len(found) == heads
    assert asked == (heads - 1) + 1 + 5
    assert 0 < found.unswitched < 1e-20


def test_both_at_once():
    W, v = drawn(3, 6)
    W[1], W[2] = -W[0], 0
    scene = Scene.of(W, v)
    found, _ = oriented(scene, scene.u[:1], v[:1] - v[1:2])
    np.testing.assert_allclose(found.constant, v[2], atol=1e-10)
    np.testing.assert_allclose(found.v, v[:2], atol=1e-10)


def test_gates_that_a_cap_leaves_open_are_refused():
    W, v = drawn(2, 6)
    scene = Scene.of(1e-2 * W, v, radius=3.0)
    token = scene.token()
    with pytest.raises(UnsaturatedGates):
        driven(orient(token, scene.rng), scene.model)


def test_values_that_are_hardly_known_make_no_second_head():
    W, v = drawn(2, 6)
    scene = Scene.of(W, v)
    off = v + 1e-6 * scene.rng.standard_normal(v.shape) / np.sqrt(6)
    found, _ = oriented(scene, scene.u, off, v_error=1e-6)
    assert found.index == [0, 1]
    assert found.sign == [1.0, 1.0]
