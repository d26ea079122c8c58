"""c, Σ v_h and the precision of answers, from answers that are formulas."""

from __future__ import annotations

import numpy as np
import pytest

from tests.by_hand import driven
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi_head.reduced_answers import (
    TokenLengths,
    read_head_sums,
)
from unsoftmax.models import MultiHead

D = 6


def target(seed=0, c=0.0):
    rng = np.random.default_rng([seed, D])
    W = rng.standard_normal((3, D, D)) / np.sqrt(D)
    return MultiHead(W, rng.standard_normal((3, D)), c=c)


def sums(function, biases=False, radius=None):
    lengths = TokenLengths.under(radius, biases)
    steps = read_head_sums(D, biases, lengths, np.random.default_rng(1))
    return driven(steps, function)


@pytest.mark.parametrize("relative", [1e-12, 1e-7])
def test_noise_is_taken_for_at_least_what_was_seen(relative):
    rng = np.random.default_rng(2)
    found, _ = sums(lambda X: target()(X) * (1 + relative * rng.standard_normal(len(X))))
    assert relative < found.eta < 100 * relative
    assert bool(found.precision.why) is (relative > 1e-14)


@pytest.mark.parametrize(
    ("beside", "match"),
    [
        (lambda x: np.minimum(x[:, 0], 1e6), "clips tokens or answers"),
        (lambda x: 3 * np.tanh(x[:, 0]), "each time the same"),
    ],
)
def test_what_is_no_sum_of_heads_is_refused(beside, match):
    with pytest.raises(ModelMismatch, match=match):
        sums(lambda X: target()(X) + beside(X[:, -1]))
