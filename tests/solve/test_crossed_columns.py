"""Windows of columns, and readings that are off along some of them."""

import itertools

import numpy as np
import pytest

from unsoftmax.learners.feed_forward.line_cells import WindowChain, WindowColumns


def chain(width, sizes, seed):
    rng = np.random.default_rng([width, seed])
    columns = rng.standard_normal((width, sum(sizes)))
    columns /= np.linalg.norm(columns, axis=0)
    ends = np.cumsum([0, *sizes])
    windows = tuple(WindowColumns.of(columns, int(a), int(b)) for a, b in itertools.pairwise(ends))
    near = tuple(np.arange(sum(sizes)) for _ in range(len(sizes) + 1))
    return WindowChain(columns, windows, near), ends


def readings(solver, ends, directions, noise, seed):
    rng = np.random.default_rng(seed)
    width, count = solver.columns.shape
    alpha = rng.standard_normal((count, directions))
    y = [rng.standard_normal((directions, width))]
    for a, b in itertools.pairwise(ends):
        y.append(y[-1] + (solver.columns[:, a:b] @ alpha[a:b]).T)
    clean = np.array(y)
    return alpha, clean + noise * rng.standard_normal(clean.shape)


@pytest.mark.parametrize("noise", [1e-12, 1e-4])
def test_coefficients_are_found_within_their_errors(noise):
    solver, ends = chain(20, (14, 12, 15), 0)
    alpha, y = readings(solver, ends, 8, noise, 1)
    found = solver.solve(y, np.full((3, 8), np.sqrt(2) * noise))
    assert np.all(found.solved)
    assert not any(found.crossed)
    gain = np.concatenate([w.gain for w in solver.windows])
    assert np.all(np.abs(found.alpha - alpha) < 6 * np.sqrt(2) * noise * gain[:, None])
    assert np.median(found.residual) == pytest.approx(np.sqrt(2) * noise, rel=0.3)


@pytest.mark.parametrize("crossed", [[(1, 0, 0.5)], [(1, 16, 0.3), (2, 40, 2.0)], [(3, 2, 0.7)]])
def test_readings_that_are_off_along_columns_are_mended(crossed):
    solver, ends = chain(24, (16, 14, 16), 0)
    alpha, y = readings(solver, ends, 5, 1e-12, 1)
    clean = y.copy()
    for k, column, share in crossed:
        y[k, 2] += share * solver.columns[:, column]
    found = solver.solve(y, np.full((3, 5), 2e-12))
    assert np.all(found.solved)
    assert {(k, column) for k, column, _ in found.crossed[2]} == {c[:2] for c in crossed}
    np.testing.assert_allclose(found.alpha, alpha, atol=1e-9)
    np.testing.assert_allclose(found.readings, clean, atol=1e-9)


def test_what_no_few_columns_explain_is_not_solved():
    solver, ends = chain(24, (16, 14, 16), 0)
    _, y = readings(solver, ends, 3, 1e-12, 1)
    y[1, 1] += np.random.default_rng(0).standard_normal(24)
    found = solver.solve(y, np.full((3, 3), 2e-12))
    np.testing.assert_array_equal(found.solved, [True, False, True])
