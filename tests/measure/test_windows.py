"""Windows on synthetic heads: the others are saturated, rows are well conditioned, logits right."""

import numpy as np
import pytest

import unsoftmax as us
from tests.rotary_heads import rotary_head
from tests.truth import driven
from unsoftmax.learners.single_head.distances import ask_spaced
from unsoftmax.measure import windows
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.windows import (
    NoWindow,
    OffsetRoom,
    ReducedError,
    WindowedHeads,
    choose_windows,
    predicted,
)
from unsoftmax.probes import Grid, Spaced

FREE = OffsetRoom(step=0.5, longest=1e14)
ETA = 4e-16


def drawn(heads, dim, seed=0):
    """u, v (H, d) and the generator that goes on."""
    rng = np.random.default_rng([heads, dim, seed])
    return *rng.standard_normal((2, heads, dim)), rng


def error_of(v, eta=ETA, v_error=0.0):
    scale = float(np.linalg.norm(v, axis=1).max())
    return ReducedError(Precision.relative_to_terms(eta), 1.0, scale, 0.0, v_error)


def chosen(u, v, rng, room=FREE):
    error = error_of(v)
    return WindowedHeads(u, v, choose_windows((u, v), error, room, rng), error)


@pytest.mark.parametrize(("heads", "dim"), [(2, 8), (8, 8), (12, 6), (4, 32)])
def test_others_are_saturated_and_the_head_is_open(heads, dim, trials):
    for seed in range(trials(1, 30)):
        u, v, rng = drawn(heads, dim, seed)
        seen = chosen(u, v, rng)
        size = np.linalg.norm(u, axis=1)
        for h, window in enumerate(seen.windows):
            logits = window.a @ u.T
            assert np.all(np.abs(logits[:, h]) >= windows.LOGITS[0] * 0.999)
            assert np.all(np.abs(logits[:, h]) <= windows.LOGITS[1] * 1.001)
            strong = np.flatnonzero((size > windows.STRONG * size[h]) & (np.arange(heads) != h))
            # the head's own part s n may take a few units from what T z gives the others
            own = windows.LOGITS[1] * size[strong] / size[h]
            assert np.all(np.abs(logits[:, strong]) >= windows.SATURATED - own)


def test_the_error_is_what_rounded_answers_do():
    """Logits read from answers with random errors, against the window's own estimate."""
    u, v, rng = drawn(4, 8)
    seen = chosen(u, v, rng)
    for h, window in enumerate(seen.windows):
        y = predicted(v, u, window.a)
        off = seen.error.of_answers(window.a, v)
        missed = []
        for _ in range(50):
            noisy = (y + off * rng.uniform(-1, 1, len(y)))[:, None]
            s, lost = seen.logits(h, window.a, noisy, np.zeros((4, 8, 1)))
            assert not np.any(lost)
            solved = np.linalg.solve(window.a, s[:, 0] - window.a @ u[h]) / window.t
            missed.append(np.linalg.norm(solved))
        assert 0.02 * window.error < max(missed) < 3 * window.error


@pytest.mark.parametrize("apart", [1e-2, 1e-5, 1e-9])
def test_nearly_parallel_heads_cost_digits_and_say_so(apart):
    u, v, rng = drawn(2, 8)
    u[1] = u[0] + apart * u[1]
    ordinary = max(window.error for window in chosen(*drawn(2, 8)).windows)
    errors = [window.error for window in chosen(u, v, rng).windows]
    assert min(errors) > ordinary / apart / 100
    lengths = [np.linalg.norm(window.a, axis=1).max() for window in chosen(u, v, rng).windows]
    assert max(lengths) <= 2 * windows.MOST / np.linalg.norm(u, axis=1).min()


def test_a_cap_shortens_offsets_or_leaves_no_window():
    u, v, rng = drawn(3, 8)
    free = max(np.linalg.norm(w.a, axis=1).max() for w in chosen(u, v, rng).windows)
    room = OffsetRoom(step=0.1, longest=free / 2)
    for window in chosen(u, v, rng, room).windows:
        assert np.linalg.norm(window.a, axis=1).max() <= room.longest * (1 + 1e-12)
        assert window.t <= room.step
    with pytest.raises(NoWindow):
        chosen(u, v, rng, OffsetRoom(step=0.1, longest=0.1))


# -- logits of tokens that are farther away: exact where answers are, within their bounds always


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
