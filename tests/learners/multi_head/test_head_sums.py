"""c, Σ v_h and the precision of answers, from answers that are formulas."""

import numpy as np
import pytest

from tests.by_hand import driven
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi_head.reduced_answers import (
    ReducedAnswers,
    TokenLengths,
    read_head_sums,
)
from unsoftmax.measure.precision import Precision
from unsoftmax.models import MultiHead

D = 6


def target():
    rng = np.random.default_rng([0, D])
    return MultiHead(rng.standard_normal((3, D, D)) / np.sqrt(D), rng.standard_normal((3, D)))


def sums(function):
    steps = read_head_sums(D, False, TokenLengths(), np.random.default_rng(1))
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


def test_the_error_counts_all_terms():
    """Relative to scale·T: offset, query token and constant; and what is absolute."""

    def reduced(eta, absolute=0.0):
        precision = Precision.relative_to_terms(eta, absolute)
        return ReducedAnswers(np.ones(D), 0.5, precision, 2.0, TokenLengths())

    error = reduced(1e-10, 1e-6).error(10.0, 4.0)
    assert error == pytest.approx(1e-10 * (1 + (4.0 + 0.25) / 10) + 1e-6 / 20)
    at = reduced(1e-10).errors_at(4.0, 1e-8)
    assert (at.length, at.scale, at.c, at.v_error) == (4.0, 2.0, 0.5, 1e-8)
