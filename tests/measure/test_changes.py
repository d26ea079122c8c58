"""What two answers to one question differ by: its kind is told, and its size bounded."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.single_head import first_round
from unsoftmax.learners.single_head.first_round import Changes
from unsoftmax.measure.precision import KAPPA, UNIT, Precision

SIZES = 4.0 ** np.array([0, -1, 1, -2, 2, -3, 3, -4])
KINDS = ["terms", "answer", "absolute"]


def drawn(kind, seed, deviation=1e-9, sizes=SIZES):
    """Draw answers of these natural sizes, twice."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    y = sizes * rng.uniform(-1, 1, len(sizes))
    scale = {"terms": sizes, "answer": np.abs(y), "absolute": np.ones(len(sizes))}[kind]
    return y, *(y + deviation * scale * x for x in rng.standard_normal((2, len(sizes)))), scale


@pytest.mark.parametrize("kind", KINDS)
def test_further_answers_are_within_the_bound(kind, trials):
    outside, count = 0.0, trials(100, 2000)
    for seed in range(count):
        y, first, second, scale = drawn(kind, seed)
        found = Changes(first, second, SIZES).added_to(Precision())
        further = 1e-9 * scale * np.random.default_rng(seed).standard_normal((50, len(y)))
        outside += np.mean(np.abs(further) > found.error(SIZES, y))
        assert found.noise > 0
        assert "standard deviation" in found.why[0]
    assert outside / count < 1e-3


def test_kinds_are_told_apart_by_sizes_that_differ():
    alone = 0
    for seed in range(50):
        _, first, second, _ = drawn("absolute", seed)
        found = Changes(first, second, SIZES).added_to(Precision())
        assert found.absolute > 0
        alone += found.relative == 0 and found.unit == UNIT
        _, first, second, _ = drawn("answer", seed)
        found = Changes(first, second, SIZES).added_to(Precision())
        assert found.relative + KAPPA * found.unit > 1e-9
        alone += found.absolute == 0
    assert alone > 90


def test_of_one_size_all_kinds_are_assumed():
    y, first, second, _ = drawn("absolute", 0, sizes=np.ones(8))
    found = Changes(first, second, np.abs(y)).added_to(Precision())
    assert min(found.absolute, found.relative, found.unit - UNIT) > 0


@pytest.mark.parametrize("rate", [1e-14, 1e-11, 1e-8])
def test_a_drift_goes_on(rate, monkeypatch):
    for seed in range(20):
        y = SIZES * np.random.default_rng(seed).uniform(-1, 1, 8)
        changes = Changes(y, y * (1 + 25 * rate), SIZES, apart=25, ahead=1000)
        found = changes.added_to(Precision())
        assert found.relative >= 1000 * rate
        assert "drifted" in found.why[1]
        with monkeypatch.context() as patched:
            patched.setattr(first_round, "TELLING", 9)
            assert len(changes.added_to(Precision()).why) == 1


def test_answers_that_do_not_change_change_nothing():
    y, precision = np.array([1.0, 0.0]), Precision(absolute=1.0)
    assert Changes(y, y, np.ones(2)).added_to(precision) is precision
    assert Changes(y[:0], y[:0], y[:0]).added_to(precision) is precision


def test_an_answer_of_zero_is_no_scale():
    first, second = np.array([0.0, 1.0, 2.0]), np.array([1e-3, 1.0, 2.0])
    found = Changes(first, second, np.ones(3)).added_to(Precision())
    assert np.isfinite(found.error(1.0, 1.0))
    assert found.relative == 0
