"""Logits of tokens that are farther away: exact where answers are, within their bounds always."""

import numpy as np
import pytest

import unsoftmax as us
from tests.by_hand import driven
from tests.rotary_heads import rotary_head
from unsoftmax.learners.single_head.distances import ask_spaced
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Grid, Spaced


def values_of(head, precision):
    zero = np.zeros(head.dim)
    return Values(head.v, head.c, zero, 0.0, precision)


@pytest.mark.parametrize("decimals", [None, 9])
def test_scores_at_a_distance_within_their_bounds(decimals):
    head, rng = rotary_head(6, 4, 0), np.random.default_rng(1)
    a, b = rng.standard_normal((5, 6)), rng.standard_normal((3, 6))
    a *= np.sign(a @ head.v)[:, None]
    alpha, beta = (np.full(3, scale) for scale in (2.0**40, 2.0**-40))
    precision = Precision() if decimals is None else Precision(absolute=10.0**-decimals)
    target = head if decimals is None else us.oracles.rounded(head, decimals)
    found, queries = driven(ask_spaced(a, b, alpha, beta), target)
    assert queries == 15
    true = b @ head.W_at(2).T @ a.T
    values = values_of(head, precision)

    def read(table):
        return table.logits(values, np.zeros(3)) / (alpha * beta)[:, None]

    error = read(found) - true
    # the query token's own score is 2⁻⁸⁰ of a logit here
    assert np.max(np.abs(error)) <= 1e-9
    drawn = [read(found.moved(rng, values, head)) for _ in range(20)]
    off = np.sqrt(np.mean((np.array(drawn) - read(found)) ** 2, axis=0))
    assert np.all(np.abs(error) <= 6 * off)


def test_probes_are_made_slice_by_slice():
    a, b = np.arange(6.0).reshape(3, 2) + 1, -np.arange(4.0).reshape(2, 2) - 1
    beside = Grid(a, b, np.array([2.0, 3.0]), np.array([1.0, 0.5]), phase="x", purpose="data")
    spaced = Spaced.of(beside, 2)
    assert (len(beside), beside.tokens, beside.dim) == (6, 2, 2)
    assert (len(spaced), spaced.tokens, spaced.dim) == (6, 4, 2)
    whole = spaced[:]
    assert np.array_equal(whole[4, 0], 3 * a[1] + 0.5 * b[1])
    assert np.array_equal(whole[4, 3], 0.5 * b[1])
    assert not np.any(whole[:, 1:3])
    assert np.array_equal(np.concatenate([spaced[0:2], spaced[2:6]]), whole)
    assert np.array_equal(beside.table(np.arange(6.0)), [[0, 1, 2], [3, 4, 5]])
    assert set(spaced.design()) == {
        "inner.offsets",
        "inner.queries",
        "inner.alpha",
        "inner.beta",
        "zeros",
    }
