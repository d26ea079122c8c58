"""What two answers to one question differ by: its kind is told, and its size bounded."""

import numpy as np
import pytest

from unsoftmax.learners.single_head import first_round
from unsoftmax.learners.single_head.first_round import Changes
from unsoftmax.measure.precision import Precision

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
