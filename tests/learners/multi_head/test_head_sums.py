"""c, Σ v_h and the precision of answers, from answers that are formulas."""

from __future__ import annotations

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
from unsoftmax.measure.windows import predicted
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


def test_exact_answers():
    heads = target()
    found, asked = sums(heads)
    assert asked == D + 23
    np.testing.assert_allclose(found.s, heads.v.sum(axis=0), rtol=1e-14)
    assert found.c == 0
    assert found.eta < 2e-15
    assert found.precision.absolute == 0
    assert found.precision.why == ()
    assert 0.1 < found.scale / np.linalg.norm(heads.v, axis=1).max() < 10


def test_a_constant_is_a_bias():
    found, _ = sums(target(c=0.3), biases=True)
    assert found.c == pytest.approx(0.3)
    assert found.precision.absolute < 1e-14
    with pytest.raises(ModelMismatch, match="biases=True"):
        sums(target(c=0.3))


def test_a_radius_is_kept_and_costs_no_digits_of_s():
    heads, longest = target(c=2.0), []

    def asked(X):
        longest.append(np.linalg.norm(X, axis=2).max())
        return heads(X)

    found, _ = sums(asked, biases=True, radius=3.0)
    assert max(longest) <= 3.0
    np.testing.assert_allclose(found.s, heads.v.sum(axis=0), rtol=1e-14)


def test_float32_answers():
    found, _ = sums(lambda X: target()(X).astype(np.float32).astype(float))
    assert 1e-8 < found.eta < 1e-6
    assert any("float32" in sentence for sentence in found.precision.why)


def test_decimals_make_query_tokens_tiny():
    found, _ = sums(lambda X: np.round(target()(X), 6))
    assert 1e-7 < found.precision.absolute < 1e-5
    assert found.lengths.length == 1e-8
    # with biases b keeps its norm: c and w have no other size
    found, _ = sums(lambda X: np.round(target()(X), 6), biases=True)
    assert found.lengths.length == 1.0


@pytest.mark.parametrize("relative", [1e-12, 1e-7])
def test_noise_is_taken_for_at_least_what_was_seen(relative):
    rng = np.random.default_rng(2)
    found, _ = sums(lambda X: target()(X) * (1 + relative * rng.standard_normal(len(X))))
    assert relative < found.eta < 100 * relative
    assert bool(found.precision.why) is (relative > 1e-14)


def test_values_that_cancel_far_out_are_searched():
    """Two heads (W, v) and (W + ε, −v): nothing is left of them at long offsets but in slivers."""
    heads = target()
    W = np.stack([heads.W[0], heads.W[0] + 1e-3 * heads.W[1]])
    found, asked = sums(MultiHead(W, [heads.v[0], -heads.v[0]]))
    assert asked == D + 23 + 64
    assert found.scale >= 0


def test_nothing_at_all():
    found, _ = sums(lambda X: np.zeros(len(X)))
    assert found.scale == 0
    assert found.precision.absolute == 0


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


def test_what_changes_is_noise():
    rng = np.random.default_rng(5)
    found, asked = sums(lambda X: target()(X) + 0.1 * rng.standard_normal(len(X)))
    assert asked == D + 23 + 8
    assert found.precision.absolute > 0.1


# -- reduced answers


def reduced_of(heads, eta=4e-16, absolute=0.0):
    precision = Precision.relative_to_terms(eta, absolute)
    return ReducedAnswers(heads.v.sum(axis=0), heads.c, precision, 2.0, TokenLengths())


def test_answers_are_reduced_to_what_heads_add():
    heads, rng = target(c=0.7), np.random.default_rng(3)
    a, b = 2 * rng.standard_normal((20, D)), rng.standard_normal(D)
    y = heads(np.stack([a + b, np.broadcast_to(b, a.shape)], axis=1))
    expected = predicted(heads.v, heads.scores_of(b[None])[0], a)
    np.testing.assert_allclose(reduced_of(heads).of(y, a, b), expected, atol=1e-13)
    found, asked = driven(reduced_of(heads).ask(a, b, "a phase"), heads)
    np.testing.assert_allclose(found, expected, atol=1e-13)
    assert asked == 20


def test_the_error_counts_all_terms():
    heads = target(c=0.5)
    # relative to scale·T: offset, query token and constant; and what is absolute
    error = reduced_of(heads, 1e-10, 1e-6).error(10.0, 4.0)
    assert error == pytest.approx(1e-10 * (1 + (4.0 + 0.25) / 10) + 1e-6 / 20)
    assert reduced_of(heads, 1e-10).coarser(1e-7).eta == 1e-7
    assert reduced_of(heads, 1e-10).coarser(1e-12).eta == 1e-10
    at = reduced_of(heads, 1e-10).errors_at(4.0, 1e-8)
    assert (at.length, at.scale, at.c, at.v_error) == (4.0, 2.0, 0.5, 1e-8)
