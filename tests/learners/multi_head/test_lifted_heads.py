"""Parts of the recovery of heads with positions and biases, each against what the target has."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.by_hand import driven
from tests.rotary_heads import biased, changed
from unsoftmax.learners.multi_head.distance_readings import (
    SHUT,
    LiftedReadings,
    UnseenValues,
    fillers,
    read_rest,
    read_second,
    search_lifted,
)
from unsoftmax.learners.multi_head.reduced_answers import TokenLengths, read_head_sums
from unsoftmax.learners.multi_head.token_search import MultiHeadTuning, SoughtHeads
from unsoftmax.learners.single_head.distances import TurnedKeys
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.windows import OffsetRoom, ReducedError, choose_windows, with_shift
from unsoftmax.solve.turning_planes import turning_planes

TUNING = MultiHeadTuning().with_positions()


def searched(target, seed=0, rank=None):
    """What one search finds, and the target's heads in its order."""

    def steps():
        rng = np.random.default_rng(seed)
        sums = read_head_sums(target.dim, True, TokenLengths(), rng, TUNING.line, TUNING.pairs)
        reduced = yield from sums
        sought = SoughtHeads(8, True, rank, TUNING, shifted=True)
        return (yield from search_lifted(sought, reduced, (1, 1.0), rng))

    found, asked = driven(steps(), target)
    order = [np.argmin(np.linalg.norm(target.v - v, axis=1)) for v in found.near.v]
    return found, [target.heads[h] for h in order], asked


def seen_by(head, b, distance=1.0):
    """u and s of a head at query tokens (m, d): what a + b weighs beside b."""
    q = b @ head.Q.T + head.q_bias
    turned = head.rotary.turned(q, np.array(distance))
    s = np.sum((b @ head.K.T + head.k_bias) * (turned - q), axis=1)
    return np.column_stack([turned @ head.K, s])


def closely(found, truth, most=1e-9):
    assert np.max(np.abs(found - truth)) <= most * np.max(np.abs(truth))


@pytest.mark.parametrize(("r", "rank", "known"), [(2, 2, 1), (2, None, 1), (6, None, 6)])
def test_a_search_finds_vectors_and_shifts_with_their_signs(r, rank, known):
    target = biased(3, 6, r, 0, 0.3)
    found, heads, _ = searched(target, rank=rank)
    assert len(found.near.directions) == known
    tokens = found.near.tokens
    for h, head in enumerate(heads):
        closely(found.near.v[h], head.v)
        closely(found.near.base[h], seen_by(head, tokens[:1])[0])
        near = seen_by(head, tokens)
        closely(found.near.columns[h].T, (near[1:] - near[0]) / found.near.t)
        # u is known wherever tokens are in the span, s near by
        b = found.near.b + found.near.directions.T @ np.linspace(1, 2, known)
        closely(found.near.at(b[None])[0, h, :-1], seen_by(head, b[None])[0, :-1])


def test_values_that_depend_on_each_other_are_asked_for_their_signs():
    like = biased(3, 6, 2, 0, 0.3)
    v = np.array(like.v)
    v[2] = v[0] + v[1]
    target = changed(like, v=v)
    asked = []

    def listening(X):
        asked.append(X)
        return target(X)

    found, heads, _ = searched(SimpleTarget(listening, target))
    # beside a second b
    assert sum(np.all(X[:, 0] == X[:, 2]) for X in asked if X.shape[1] == 3) == 1
    for h, head in enumerate(heads):
        closely(found.near.v[h], head.v)
        closely(found.near.base[h], seen_by(head, found.near.tokens[:1])[0])


def test_values_that_do_not_add_up_end_a_search():
    like = biased(2, 6, 2, 0, 0.3)

    def beside(X):
        return like(X) + X.mean(axis=1) @ np.arange(1.0, 7.0)

    with pytest.raises(UnseenValues):
        searched(SimpleTarget(beside, like))


class SimpleTarget(SimpleNamespace):
    def __init__(self, function, like):
        super().__init__(function=function, dim=like.dim, v=like.v, heads=like.heads)

    def __call__(self, X):
        return self.function(X)


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_keys_and_queries_follow_from_two_distances(spread):
    target = biased(3, 6, 4, 1, spread)
    found, heads, _ = searched(target)
    rng = np.random.default_rng(0)
    ranks = np.array([found.rank(h) for h in range(3)])
    assert ranks.tolist() == [4, 4, 4]
    second, _ = driven(read_second(found.near, ranks, rng), target)
    read = [LiftedReadings(found, h, *one) for h, one in enumerate(second)]
    for head, (basis, opened) in zip(heads, second, strict=True):
        twice, (there, _) = seen_by(head, opened.tokens, 2.0), opened.solved(basis)
        closely(there[:, :-1] @ basis.T, twice[:, :-1], 1e-8)
        # what is beside a·u of a token itself, not of one added to b
        own = twice[:, -1] - np.sum(opened.tokens * twice[:, :-1], axis=1)
        assert np.allclose(there[:, -1], own, rtol=0, atol=1e-8)
    sides, missed = zip(*(one.keys(0.0) for one in read), strict=True)
    assert max(missed) < 1e-8
    rest, _ = driven(read_rest(found, list(sides)), target)
    for one, head, left, side in zip(read, heads, rest, sides, strict=True):
        assert len(left.tokens) == 6 - len(found.near.directions)
        own = left.queries(side)
        for a in (left.tokens, found.near.b[None]):
            # scores are what queries show, whatever complex numbers planes are multiplied by
            scores = side.K @ a[0] @ own.T
            q = left.tokens @ head.Q.T + head.q_bias
            closely(scores, head.K @ a[0] @ q.T, 1e-7)
        model = replace(one, rest=left).head(0.0)
        for n in (0, 1, 2, 20):
            closely(model.scores.whole(n), head.scores.whole(n), 1e-6)


def test_key_biases_miss_their_equations_where_shifts_are_others():
    target = biased(2, 6, 4, 0, 0.3)
    found, _, _ = searched(target)
    rng = np.random.default_rng(0)
    [first, _], _ = driven(read_second(found.near, np.array([4, 4]), rng), target)
    wrong = replace(found.near, base=found.near.base * np.append(np.ones(6), 1.1))
    assert LiftedReadings(found, 0, *first).keys(0.0)[1] < 1e-9
    assert LiftedReadings(replace(found, near=wrong), 0, *first).keys(0.0)[1] > 1e-3


def test_a_window_of_shifted_logits_has_the_logits_it_had():
    rng = np.random.default_rng(0)
    u, v = rng.standard_normal((2, 3, 5))
    error = ReducedError(Precision.relative_to_terms(4e-16, 0.0, ()), 1.0, 1.0, 0.0, 0.0)
    windows = choose_windows((u, v), error, OffsetRoom(0.5, 1e9), rng)
    for h, window in enumerate(windows):
        shifted = np.append(u[h], 3.0)
        lifted = with_shift(window, h, shifted, v, error)
        logits = lifted.a @ shifted
        assert lifted.a.shape == (6, 6)
        assert np.allclose(logits[:5], window.a @ u[h], rtol=0, atol=1e-12)
        assert np.isclose(logits[5], logits[0])
        assert np.linalg.cond(lifted.a) < 1e5
        assert np.isfinite(lifted.error)


def test_fillers_allow_for_what_logits_are_beside():
    u = np.random.default_rng(0).standard_normal((2, 3, 6))
    beside = np.array([[1.0, -2.0, 3.0], [0.0, 5.0, -4.0]])
    z = fillers(u, np.ones(6), 0.0, SHUT, beside=beside)
    assert z is not None
    logits = np.einsum("mgd,md->mg", u, z) + beside
    assert np.allclose(logits, [[-12.0, 40.0, 40.0]] * 2)
    assert np.allclose(z @ np.ones(6), 0.0, atol=1e-9)


def test_keys_of_an_odd_number_of_rows_get_a_row_of_zeros():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((5, 3)))[0]
    turn = np.array([[np.cos(0.7), -np.sin(0.7), 0], [np.sin(0.7), np.cos(0.7), 0], [0, 0, 1]])
    P = rng.standard_normal((3, 3))
    planes = turning_planes(P @ turn @ np.linalg.inv(P), 1e-9)
    keys = TurnedKeys.of(basis, planes, planes.angles)
    seen = rng.standard_normal((3, 4))
    assert keys.K.shape == (4, 5)
    assert not np.any(keys.K[3])
    back = keys.rotary.turned(keys.queries(seen), np.array(1.0))
    assert np.allclose(back @ keys.K, (basis @ seen).T)
