"""Windows on synthetic heads: the others are saturated, rows are well conditioned, logits right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unsoftmax.measure import windows
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.windows import (
    NoWindow,
    OffsetRoom,
    ReducedError,
    WindowedHeads,
    choose_windows,
    predicted,
)

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


@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (2, 8), (6, 8), (8, 32)])
def test_rows_are_well_conditioned(heads, dim):
    """A logit error passes on to W_h q by cond(A)/‖A‖: all rows but one along n are T long."""
    u, v, rng = drawn(heads, dim)
    for window in chosen(u, v, rng).windows:
        longest = np.linalg.norm(window.a, axis=1).max()
        size = np.linalg.norm(window.a, 2) / longest
        assert np.linalg.cond(window.a) < 30 * dim * size * longest
        assert np.isfinite(window.error)
        assert window.error < 1e-8


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


def test_a_query_token_may_move_by_its_step():
    """No saturated head comes near 0, and the head's own logits stay readable, at b + t q."""
    u, v, rng = drawn(6, 12)
    W = rng.standard_normal((6, 12, 12)) / np.sqrt(12)
    seen = chosen(u, v, rng)
    for h, window in enumerate(seen.windows):
        assert 0 < window.t <= FREE.step
        q = rng.standard_normal(12)
        q /= np.linalg.norm(q)
        moved = u + window.t * W @ q
        y = predicted(v, moved, window.a)[:, None]
        shifts = (window.t * W @ q)[:, :, None]
        s, lost = seen.logits(h, window.a, y, shifts)
        assert not np.any(lost)
        np.testing.assert_allclose(s[:, 0], window.a @ moved[h], atol=1e-6)


def test_logits_need_the_others_only_roughly():
    """Saturated heads: what is wrong about their u does not reach the logit."""
    u, v, rng = drawn(3, 8)
    seen = chosen(u, v, rng)
    for h, window in enumerate(seen.windows):
        wrong = u + 1e-2 * rng.standard_normal(u.shape)
        wrong[h] = u[h]
        y = predicted(v, u, window.a)[:, None]
        s, _ = replace(seen, u=wrong).logits(h, window.a, y, np.zeros((3, 8, 1)))
        np.testing.assert_allclose(s[:, 0], window.a @ u[h], atol=1e-3)


def test_a_gate_past_its_end_is_lost_and_keeps_the_last_estimate():
    u, v, rng = drawn(2, 4)
    seen = chosen(u, v, rng)
    window = seen.windows[0]
    y = predicted(v, u, window.a)[:, None]
    y[1] += 5 * np.abs(window.a[1] @ v[0])
    s, lost = seen.logits(0, window.a, y, np.zeros((2, 4, 1)))
    assert lost[:, 0].tolist() == [False, True, False, False]
    np.testing.assert_allclose(s[1, 0], window.a[1] @ u[0])


def test_weak_heads_come_first_and_stay_open():
    u, v, rng = drawn(3, 8)
    u[1] *= 1e-3
    seen = chosen(u, v, rng)
    assert seen.order[0] == 1
    # the strong heads do not spend length on saturating the weak one
    assert np.linalg.norm(seen.windows[0].a, axis=1).max() < 1e3


@pytest.mark.parametrize("apart", [1e-2, 1e-5, 1e-9])
def test_nearly_parallel_heads_cost_digits_and_say_so(apart):
    u, v, rng = drawn(2, 8)
    u[1] = u[0] + apart * u[1]
    ordinary = max(window.error for window in chosen(*drawn(2, 8)).windows)
    errors = [window.error for window in chosen(u, v, rng).windows]
    assert min(errors) > ordinary / apart / 100
    lengths = [np.linalg.norm(window.a, axis=1).max() for window in chosen(u, v, rng).windows]
    assert max(lengths) <= 2 * windows.MOST / np.linalg.norm(u, axis=1).min()


def test_parallel_heads_have_rows_of_limited_length():
    """2u beside u: no z saturates one and leaves the other; T ends at its limit."""
    u, v, rng = drawn(2, 4)
    u[1] = 2 * u[0]
    for window in chosen(u, v, rng).windows:
        assert np.all(np.isfinite(window.a))
        # n is along both heads, z across: the other one's logit is as open as the head's own
        assert np.abs(window.a @ u.T).max() <= 2 * windows.LOGITS[1] * 1.01 + 1e-6
        assert window.error > 1


def test_a_cap_shortens_offsets_or_leaves_no_window():
    u, v, rng = drawn(3, 8)
    free = max(np.linalg.norm(w.a, axis=1).max() for w in chosen(u, v, rng).windows)
    room = OffsetRoom(step=0.1, longest=free / 2)
    for window in chosen(u, v, rng, room).windows:
        assert np.linalg.norm(window.a, axis=1).max() <= room.longest * (1 + 1e-12)
        assert window.t <= room.step
    with pytest.raises(NoWindow):
        chosen(u, v, rng, OffsetRoom(step=0.1, longest=0.1))


def test_values_errors_count_for_logits():
    u, v, rng = drawn(2, 8)
    window = chosen(u, v, rng).windows[0]
    s = window.a @ u[0]
    exact = error_of(v).of_logits(window.a, v, 0, s)
    rough = error_of(v, v_error=1e-6).of_logits(window.a, v, 0, s)
    assert np.all(rough > 1e3 * exact)
    doubled = error_of(v, eta=2 * ETA).of_answers(window.a, v)
    np.testing.assert_allclose(doubled, 2 * error_of(v).of_answers(window.a, v))


def test_larger_logits_of_the_others_take_longer_offsets(monkeypatch):
    u, v, _ = drawn(3, 8)
    monkeypatch.setattr(windows, "LEAST", 1.0)
    near = chosen(u, v, np.random.default_rng(1))
    monkeypatch.setattr(windows, "SATURATED", 40.0)
    far = chosen(u, v, np.random.default_rng(1))
    for one, other in zip(far.windows, near.windows, strict=True):
        assert np.linalg.norm(one.a) > 1.5 * np.linalg.norm(other.a)
