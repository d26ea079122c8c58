"""Base and columns from synthetic window answers: exact, of low rank, disturbed, out of range."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.by_hand import driven
from tests.learners.multi_head.synthetic import Scene
from unsoftmax.learners.multi_head import window_sweeps
from unsoftmax.learners.multi_head.columns import (
    STEPS,
    ColumnTable,
    ColumnTableTuning,
    blocks,
    read_columns,
)
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.window_sweeps import (
    WindowAnswers,
    moved,
    read_base,
    settled_base,
    swept,
)
from unsoftmax.measure.windows import predicted

TUNING = ColumnTableTuning()


def directions_of(scene):
    """Directions at right angles to b (d − 1, d)."""
    towards = scene.b / scene.length
    frame = np.column_stack([towards, scene.rng.standard_normal((len(scene.b), len(scene.b) - 1))])
    return np.linalg.qr(frame)[0][:, 1:].T


def logits_at_b(token):
    return np.array([w.a @ u for w, u in zip(token.seen.windows, token.seen.u, strict=True)])


def answered(scene, token, directions):
    """Fill a table by the formula of reduced answers."""
    answers = WindowAnswers.none(token, directions)
    for h, window in enumerate(token.seen.windows):
        for k, q in enumerate(directions):
            u = token.seen.u + answers.t[h, k] * scene.model.W @ q
            answers.y[h, :, k] = predicted(token.seen.v, u, window.a)
    answers.asked[:] = True
    return answers


def columns_of(scene, directions):
    return scene.model.W @ directions.T


# -- at b


def test_rough_heads_are_read_to_full_precision():
    scene = Scene.random(4, 8)
    rough = scene.u + 1e-4 * scene.rng.standard_normal(scene.u.shape)
    token = scene.token(u=rough)
    (found, s), asked = driven(read_base(token), scene.model)
    assert asked == 4 * 8
    np.testing.assert_allclose(found.seen.u, scene.u, rtol=1e-11, atol=1e-12)
    for h, window in enumerate(found.seen.windows):
        np.testing.assert_allclose(s[h], window.a @ scene.u[h], atol=1e-10)


def test_answers_of_other_heads_are_refused():
    """Windows for heads that are not there: some gate is past its end whatever is assumed."""
    scene, other = Scene.random(2, 6), Scene.random(2, 6, seed=1)
    y = np.array([predicted(3 * other.model.v, other.u, w.a) for w in scene.token().seen.windows])
    _, _, lost = settled_base(scene.token().seen, y[:, :, None])
    assert np.any(lost)
    with pytest.raises(CoincidentJumps):
        driven(read_base(scene.token()), lambda X: 5 * other.model(X))


# -- sweeps


@pytest.mark.parametrize(
    ("moves", "sweeps"),
    [
        ([1e-3, 1e-8, 1e-15, 0.5], 3),
        ([1e-3, 1e-12, 1e-12, 0.5], 3),
        ([1e-3, 1e-12, 2e-12, 0.5], 3),
        ([1.0] * 100, 32),
    ],
    ids=["settled", "no better", "worse but small", "never"],
)
def test_sweeps_end_when_nothing_moves_or_never_will(moves, sweeps):
    todo = list(moves)
    assert swept(lambda: todo.pop(0)) == moves[sweeps - 1]
    assert len(moves) - len(todo) == sweeps


def test_sweeps_that_shrink_go_on_to_the_limit(monkeypatch):
    monkeypatch.setattr(window_sweeps, "SWEEPS", 50)
    shrinking = (0.9**n for n in itertools.count())
    assert swept(lambda: next(shrinking)) == 0.9**49


def test_the_largest_relative_change_counts():
    old = np.array([[1.0, 0.0], [100.0, 0.0]])
    new = np.array([[1.1, 0.0], [101.0, 0.0]])
    assert moved(new, old) == pytest.approx(0.1 / 1.1)


# -- columns


def test_a_logit_that_is_too_large_is_lost():
    scene = Scene.random(2, 6)
    token, directions = scene.token(), directions_of(scene)
    answers = answered(scene, token, directions)
    answers.t[0, 2] *= 1e3
    for h, window in enumerate(token.seen.windows[:1]):
        u = token.seen.u + answers.t[0, 2] * scene.model.W @ directions[2]
        answers.y[h, :, 2] = predicted(token.seen.v, u, window.a)
    table = ColumnTable.empty(answers, logits_at_b(token), TUNING)
    table.settle_all()
    assert np.any(table.lost[0, :, 2])
    assert not np.any(table.lost[:, :, :2])


# -- asked


def test_columns_are_asked_again_closer_where_logits_are_lost():
    scene = Scene.random(2, 6)
    token, directions = scene.token(), directions_of(scene)
    answers = WindowAnswers.none(token, directions)
    t = answers.t[0, 1]
    answers.t[0, 1] *= 300
    found, asked = driven(
        read_columns(answers, logits_at_b(token), None, scene.rng, TUNING), scene.model
    )
    assert answers.t[0, 1] < 300 * t
    assert asked > 2 * 6 * 5
    np.testing.assert_allclose(found.W, columns_of(scene, directions), atol=1e-6)


def test_columns_that_never_fit_are_refused():
    scene = Scene.random(2, 6)
    token, directions = scene.token(), directions_of(scene)
    steps = read_columns(
        WindowAnswers.none(token, directions), logits_at_b(token), None, scene.rng, TUNING
    )
    with pytest.raises(CoincidentJumps):
        driven(steps, lambda X: 5 * scene.model(X) + 3 * np.sign(X[:, 0, 0]) * X[:, 0, 0])


@pytest.mark.parametrize(
    ("d", "k", "rank", "expected"),
    [
        (4, 3, None, [(0, 1), (1, 2), (2, 3)]),
        (8, 8, None, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 8)]),
        (8, 8, 3, [(0, 2), (2, 8)]),
        (8, 8, 1, [(0, 8)]),
        (8, 2, 5, [(0, 2)]),
    ],
)
def test_blocks_of_columns(d, k, rank, expected):
    assert blocks(d, k, rank) == expected


def test_blocks_grow_with_what_is_known():
    every = blocks(384, 384, None)
    assert every[0][0] == 0
    assert every[-1][1] == 384
    assert all(one[1] == two[0] for one, two in itertools.pairwise(every))
    assert all(last - first <= max(1, first // STEPS) for first, last in every[:-1])
    assert len(every) < 40
