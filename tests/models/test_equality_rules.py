"""The parts of equality: tolerances, hinge sums, witnesses; a new class joins by a rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models.equality import RULES
from unsoftmax.models.equality.equivalence import (
    Equivalence,
    ModelEquality,
    Tolerance,
    norm_of,
    octave,
)
from unsoftmax.models.equality.hinge_sum import HingeSum, squared_distance
from unsoftmax.models.equality.multi_head_equality import MultiHeadEquality
from unsoftmax.models.equality.relu_network_equality import ReluNetworkEquality
from unsoftmax.models.equality.witnesses import WitnessTuning, candidates, witness_of
from unsoftmax.models.model import FrozenModel


def each(rounding):
    """The same bound on the rounding of every answer."""
    return lambda model, X: np.full(len(X), rounding)


# -- a class that joins


class Linear(FrozenModel):
    """f(X) = x_N·v."""

    def __init__(self, v):
        self._arrays = {"v": np.array(v, dtype=float)}

    @property
    def dim(self):
        return len(self._arrays["v"])

    def __call__(self, X):
        return X[:, -1] @ self._arrays["v"]

    def _sizes(self):
        return (f"d={self.dim}",)


@dataclass(frozen=True)
class LinearEquality(ModelEquality[Linear]):
    """Linear maps, and heads of no scores and no values as the map 0."""

    model: ClassVar[type[FrozenModel]] = Linear

    def canonical(self, model):
        return model

    def read(self, model):
        if isinstance(model, us.SingleHead) and not (np.any(model.v) or model.c):
            return Linear(np.zeros(model.dim))
        return model if isinstance(model, Linear) else None

    def compare(self, a, b, tolerance):
        within, gap = tolerance.compare(a.arrays()["v"], b.arrays()["v"])
        if within:
            return Equivalence("equal", None, gap)
        units = [np.eye(a.dim)[:, None]]
        return Equivalence.unequal(witness_of(a, b, units, each(1e-15)), gap)


def test_a_class_joins_by_one_rule():
    rules = (*RULES, LinearEquality())
    one, other = Linear([1.0, 2.0]), Linear([1.0, 3.0])
    assert us.models.canonical(one, rules=rules) is one
    assert us.equivalent(one, Linear([1.0, 2.0]), rules=rules)
    result = us.equivalent(one, other, rules=rules)
    assert result.verdict == "different"
    np.testing.assert_array_equal(result.witness, [[0.0, 1.0]])


def test_across_classes_the_first_rule_that_reads_both_decides():
    rules = (*RULES, LinearEquality())
    silent = us.SingleHead(np.eye(2), np.zeros(2))
    assert us.equivalent(Linear([0.0, 0.0]), silent, rules=rules)
    assert us.equivalent(silent, Linear([0.0, 1.0]), rules=rules).verdict == "different"
    speaking = us.SingleHead(np.eye(2), np.ones(2))
    assert us.equivalent(Linear([0.0, 0.0]), speaking, rules=rules).by == "shape"


def test_a_class_without_a_rule_is_refused():
    with pytest.raises(TypeError, match="equivalent compares models; this is a Linear"):
        us.equivalent(Linear([1.0]), Linear([1.0]))
    with pytest.raises(TypeError, match="canonical takes models; this is a Linear"):
        us.canonical(Linear([1.0]))


def test_every_class_has_one_rule_and_its_files_load(tmp_path):
    rng = np.random.default_rng(0)
    network = us.ReluNetwork(rng.standard_normal((2, 3)), rng.standard_normal(3))
    models = [
        us.SingleHead(np.eye(2), np.ones(2)),
        us.RotaryHead(np.eye(2), np.eye(2), np.ones(2), us.Rotary([1.0])),
        us.MultiHead([np.eye(2)], [np.ones(2)]),
        us.RotaryHeads([np.eye(2)], [np.eye(2)], [np.ones(2)], us.Rotary([1.0])),
        network,
        us.Transformer(np.eye(2), network),
        us.MultiHeadTransformer([np.eye(2)], [np.ones((3, 2))], np.ones(3)),
        us.AttentionLayer([us.LayerHead(np.eye(2), np.eye(2))], np.ones(2)),
        us.RotaryLayer(
            O=np.ones((1, 2, 2)),
            V=np.ones((1, 2, 2)),
            K=np.ones((1, 2, 2)),
            Q=np.ones((1, 2, 2)),
            c=np.ones(2),
            rotary=us.Rotary([1.0]),
        ),
        us.FeedForward(np.ones((3, 2)), np.ones(3), np.ones((2, 3)), np.ones(2), True),
    ]
    assert [rule.model for rule in RULES] == [type(model) for model in models]
    for model in models:
        model.save(tmp_path / "model.safetensors")
        assert us.equivalent(us.load(tmp_path / "model.safetensors"), model, rtol=0)


# -- tolerances


def test_a_tolerance_counts_both_parts():
    tolerance = Tolerance(0.1, 1.0)
    assert tolerance.allows(2.0, 10.0)
    assert not tolerance.allows(2.0 + 1e-9, 10.0)
    assert tolerance.allows(1.5, 10.0, unit=2.0)  # 3 of 20, both divided by 2
    assert not tolerance.allows(1.6, 10.0, unit=2.0)


@pytest.mark.parametrize("size", [1e-300, 1e-20, 1.0, 1e200, 1e300])
def test_relative_differences_at_any_size(size):
    mine, other = size * np.array([3.0, 4.0]), size * np.array([3.0, 4.4])
    within, gap = Tolerance(0.1, 0.0).compare(mine, other)
    assert within
    assert gap == pytest.approx(0.4 / np.hypot(3, 4.4), rel=1e-12)
    assert norm_of(mine) == pytest.approx(5 * size, rel=1e-12)
    assert octave(size) <= size < 2 * octave(size)


def test_without_tolerance_only_equal_numbers_will_do():
    tolerance = Tolerance(0.0, 0.0)
    assert tolerance.compare(np.array([1.0, 0.0]), np.array([1.0, -0.0]))[0]
    # the difference of these norms rounds to 0
    assert not tolerance.compare(np.array([1e300, 1e-300]), np.array([1e300, 0.0]))[0]


# -- hinge sums


def network(d, m, seed):
    rng = np.random.default_rng(seed)
    A, w_o, b = rng.standard_normal((d, m)), rng.standard_normal(m), rng.standard_normal(m)
    return us.ReluNetwork(A, w_o, b, 0.4)


def value(parts, x, length):
    Y = np.column_stack([x / length, np.ones(len(x))])
    return Y @ parts.linear + np.maximum(Y @ parts.u.T, 0.0) @ parts.s


@pytest.mark.parametrize("length", [0.25, 1.0, 8.0])
def test_a_hinge_sum_is_the_network(length):
    g, rng = network(3, 7, 0), np.random.default_rng(1)
    x = 3 * rng.standard_normal((50, 3))
    parts = HingeSum.of(g, length)
    np.testing.assert_allclose(np.linalg.norm(parts.u, axis=1), 1.0, rtol=1e-15)
    turned = parts.turned(rng.random(7) < 0.5)
    for same in (parts, turned, parts.merged(1e-12), turned.merged(1e-12)):
        np.testing.assert_allclose(value(same, x, length), g(x), rtol=1e-12, atol=1e-12)


def test_parallel_neurons_merge_and_those_that_cancel_go():
    u = np.array([[0.6, 0.8], [-0.6, -0.8], [0.6, 0.8], [1.0, 0.0], [1.0, 0.0]])
    parts = HingeSum(np.zeros(2), u, np.array([1.0, 2.0, 3.0, 0.1, -0.1 - 1e-17]))
    merged = parts.merged(1e-12)
    np.testing.assert_allclose(merged.u, u[:1])
    np.testing.assert_allclose(merged.s, [6.0])
    x = np.random.default_rng(0).standard_normal((40, 1))
    np.testing.assert_allclose(value(merged, x, 1.0), value(parts, x, 1.0), atol=1e-14)


def test_distance_counts_jumps_the_affine_part_and_what_is_missing():
    parts = HingeSum.of(network(3, 6, 2), 1.0)
    assert squared_distance(parts, parts, 1e-2) == 0.0
    flipped = parts.turned(np.array([True, False, True, False, False, True]))
    assert squared_distance(parts, flipped, 1e-2) == pytest.approx(0.0, abs=1e-25)
    louder = replace(parts, s=parts.s * [1, 1, 1, 1, 1, 1.5])
    assert squared_distance(parts, louder, 1e-2) > 0
    shifted = replace(parts, linear=parts.linear + 2 * np.eye(4)[3])
    assert squared_distance(parts, shifted, 1e-2) == pytest.approx(4.0)
    fewer = replace(parts, u=parts.u[:5], s=parts.s[:5])
    none = HingeSum(parts.linear, parts.u[:0], parts.s[:0])
    assert 0 < squared_distance(parts, fewer, 1e-2) < squared_distance(parts, none, 1e-2)
    assert squared_distance(none, none, 1e-2) == 0.0


def test_jumps_may_be_vectors():
    """Of one number per answer they are what numbers are; two numbers are two networks."""
    one, other = network(3, 6, 3), network(3, 6, 4)
    shared = us.ReluNetwork(one.A, other.w_o, one.b, 0.1)
    numbers = [HingeSum.of(g, 2.0) for g in (one, shared)]
    linear = np.array([parts.linear for parts in numbers])
    jumps = np.array([one.w_o, shared.w_o]).T
    both = HingeSum.of_neurons(2.0 * one.A.T, one.b, jumps, linear)
    back = np.array([True, False, True, True, False, False])
    x = 3 * np.random.default_rng(1).standard_normal((50, 3))
    for parts in (both, both.turned(back), both.turned(back).merged(1e-12)):
        Y = np.column_stack([x / 2.0, np.ones(len(x))])
        found = Y @ parts.linear.T + np.maximum(Y @ parts.u.T, 0.0) @ parts.s
        np.testing.assert_allclose(found, np.array([one(x), shared(x)]).T, atol=1e-12)
    assert squared_distance(both, both.turned(back), 1e-2) == pytest.approx(0.0, abs=1e-25)
    ahead = both.turned(both.u[:, -1] > 0)
    moved = replace(ahead, s=ahead.s + np.array([1e-3, 2e-3]))
    assert squared_distance(ahead, moved, 1e-2) == pytest.approx(6 * 5e-6)
    assert both.scaled(2.0).norm == pytest.approx(2 * both.norm)


# -- witnesses


def test_the_witness_is_where_the_difference_is_largest_beside_rounding():
    a, b = us.SingleHead([[0.0]], [1.0]), us.SingleHead([[0.0]], [1.5])
    X = np.array([[[1.0]], [[4.0]], [[2.0]]])
    # the answers differ by 0.5, 2 and 1
    assert witness_of(a, b, [X], each(1.0)) is None
    np.testing.assert_array_equal(witness_of(a, b, [X], each(0.1)), [[4.0]])
    np.testing.assert_array_equal(witness_of(a, b, [X[:1], X], each(0.1), enough=1.0), [[1.0]])


def test_answers_out_of_range_are_no_witness():
    a, b = us.SingleHead([[0.0]], [1e200]), us.SingleHead([[0.0]], [2e200])
    X = np.array([[[1e200]]])
    assert witness_of(a, b, [X], each(0.0)) is None


@pytest.mark.parametrize("tuning", [WitnessTuning(), WitnessTuning(offsets=0, queries=0)])
def test_candidates_are_pairs_and_single_tokens(tuning):
    rng = np.random.default_rng(0)
    a, b = (us.SingleHead(rng.standard_normal((3, 3)), rng.standard_normal(3)) for _ in range(2))
    families = list(candidates(a, b, tuning))
    assert {X.shape[1:] for X in families} == {(1, 3), (2, 3)}
    pairs = families[-1]
    assert len(pairs) == (9 + tuning.offsets) * tuning.pairs_per_offset * 25


def test_rules_are_tried_with_other_knobs():
    """With hyperplanes merged up to 1e-3, two networks become one function."""
    a = us.ReluNetwork([[1.0, 1.0 + 1e-5]], [1.0, -1.0], [1.0, 1.0])
    assert us.canonical(a).A.shape[1] > 0
    coarse = [ReluNetworkEquality(parallel=1e-3)]
    assert us.models.canonical(a, rules=coarse).A.shape[1] < us.canonical(a).A.shape[1]
    heads = MultiHeadEquality(witnesses=WitnessTuning(powers_of_four=2))
    model = us.MultiHead([np.eye(2)], [[1.0, 0.0]])
    other = us.MultiHead([2 * np.eye(2)], [[1.0, 0.0]])
    assert us.equivalent(model, other, rules=[heads]).verdict == "different"
