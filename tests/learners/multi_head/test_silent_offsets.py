"""Silent offsets on synthetic heads: one head answers, rows are well conditioned, logits right."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.multi_head.silent_search import (
    LOGIT,
    SATURATED,
    SilentFrame,
    silent_windows,
)
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.windows import ReducedError, WindowedHeads, predicted


def drawn(heads, dim, seed=0):
    rng = np.random.default_rng([heads, dim, seed, 5])
    return *rng.standard_normal((2, heads, dim)), rng


def chosen(heads, dim, eta=4e-16, seed=0, spread=1.0):
    u, v, rng = drawn(heads, dim, seed)
    u[0] *= spread
    scale = float(np.linalg.norm(v, axis=1).max())
    error = ReducedError(Precision.relative_to_terms(eta), 1.0, scale, 0.0, 0.0)
    windows = silent_windows(u, SilentFrame.of(v, rng), error, 0.5)
    return WindowedHeads(u, v, windows, error), rng


@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (3, 4), (4, 16), (12, 48)])
def test_the_frame_sees_one_value_each_and_nothing_across(heads, dim):
    _, v, rng = drawn(heads, dim)
    frame = SilentFrame.of(v, rng)
    np.testing.assert_allclose(frame.duals @ v.T, np.eye(heads), atol=1e-10)
    np.testing.assert_allclose(frame.Z @ v.T, 0, atol=1e-12)
    np.testing.assert_allclose(frame.Z @ frame.Z.T, np.eye(dim - heads), atol=1e-12)
    np.testing.assert_allclose(frame.length, np.linalg.norm(frame.duals, axis=1))


@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (2, 8), (4, 16), (12, 48)])
def test_others_are_silent_or_saturated(heads, dim, trials):
    for seed in range(trials(1, 30)):
        seen, _ = chosen(heads, dim, seed=seed, spread=(1.0, 10.0, 0.1)[seed % 3])
        for h, window in enumerate(seen.windows):
            values, logits = window.a @ seen.v.T, window.a @ seen.u.T
            assert np.all(np.abs(logits[:, h]) <= 1.01 * LOGIT)
            # rows across all values have logits of one size
            across = np.abs(logits[: dim - heads, h])
            np.testing.assert_allclose(across, LOGIT, rtol=1e-6)
            others = np.delete(np.arange(heads), h)
            heard = np.abs(values[:, others]) > 1e-8 * np.linalg.norm(window.a, axis=1)[:, None]
            assert np.all(np.sum(heard, axis=1) <= 1)
            assert np.sum(heard) == heads - 1
            np.testing.assert_allclose(logits[:, others][heard], SATURATED, rtol=1e-6)


@pytest.mark.parametrize(("heads", "dim"), [(2, 8), (4, 16), (12, 48)])
def test_logits_are_read_though_other_gates_are_unknown(heads, dim):
    """Other heads may have any logits at silent rows: their u are wrong here."""
    seen, rng = chosen(heads, dim)
    for h, window in enumerate(seen.windows):
        wrong = rng.standard_normal(seen.u.shape)
        wrong[h] = seen.u[h]
        silent = window.a[: dim - heads + 1]
        y = predicted(seen.v, wrong, silent)[:, None]
        s, lost = seen.logits(h, silent, y, np.zeros((heads, dim, 1)))
        assert not np.any(lost)
        np.testing.assert_allclose(s[:, 0], silent @ seen.u[h], atol=1e-6)


def test_rows_are_short_and_well_conditioned():
    """No row is many times as long as what a logit takes: coarse scores lose little."""
    for heads, dim in [(2, 8), (4, 16), (12, 48)]:
        seen, _ = chosen(heads, dim)
        for h, window in enumerate(seen.windows):
            unit = np.sqrt(dim) / np.linalg.norm(seen.u[h])
            assert np.linalg.norm(window.a, axis=1).max() < 20 * unit
            assert np.linalg.cond(window.a) < 100 * np.sqrt(dim)
            assert 0 < window.t <= 0.5


def test_the_error_is_what_coarse_answers_do():
    seen, rng = chosen(4, 16, eta=1e-7)
    for h, window in enumerate(seen.windows):
        y = predicted(seen.v, seen.u, window.a)
        off, missed = seen.error.of_answers(window.a, seen.v), []
        for _ in range(20):
            noisy = (y + off * rng.uniform(-1, 1, len(y)))[:, None]
            s, _ = seen.logits(h, window.a, noisy, np.zeros((4, 16, 1)))
            solved = np.linalg.solve(window.a, s[:, 0] - window.a @ seen.u[h]) / window.t
            missed.append(np.linalg.norm(solved))
        assert 0.02 * window.error < max(missed) < 3 * window.error
