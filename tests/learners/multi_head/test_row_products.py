"""Systems with rows g ⊗ a: dense and by conjugate gradients, and rows that do not determine v."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.multi_head import rough_heads
from unsoftmax.learners.multi_head.rough_heads import RowProducts


def drawn(heads, dim, rows, seed=0):
    rng = np.random.default_rng([heads, dim, rows, seed])
    A = rng.standard_normal((rows, dim))
    gates = np.sign(A @ rng.standard_normal((dim, heads)))
    return A, gates, rng.standard_normal((heads, dim)), rng


def condition(A, gates):
    rows = (gates[:, :, None] * A[:, None, :]).reshape(len(A), -1)
    return np.linalg.cond(rows)


@pytest.mark.parametrize("largest", [0, 10**6], ids=["conjugate gradients", "dense"])
@pytest.mark.parametrize(("heads", "dim"), [(1, 3), (4, 5), (8, 16)])
def test_values_are_solved(largest, heads, dim, monkeypatch):
    monkeypatch.setattr(rough_heads, "LARGEST_DENSE", largest)
    A, gates, v, rng = drawn(heads, dim, 4 * heads * dim)
    system = RowProducts(A, gates)
    y = system.of(v)
    found = system.solved(y)
    found = found + system.solved(y - system.of(found))
    bound = 1e-14 * condition(A, gates) * np.linalg.norm(v) * (1 if largest else 100)
    assert np.linalg.norm(found - v) < bound
    noise = 1e-6 * rng.standard_normal(len(y))
    assert np.linalg.norm(system.solved(y + noise) - v) < 1e-6 * 3 * condition(A, gates)


def test_the_adjoint_is_one():
    A, gates, v, rng = drawn(3, 4, 20)
    system, r = RowProducts(A, gates), rng.standard_normal(20)
    assert system.of(v) @ r == pytest.approx(np.sum(v * system.adjoint(r)))


def test_few_accuracy_take_few_steps(monkeypatch):
    monkeypatch.setattr(rough_heads, "LARGEST_DENSE", 0)
    A, gates, v, _ = drawn(6, 12, 100)
    system = RowProducts(A, gates)
    rough = np.linalg.norm(system.solved(system.of(v), accuracy=1e-2) - v)
    fine = np.linalg.norm(system.solved(system.of(v)) - v)
    assert fine < 1e-7
    assert fine < 1e-2 * rough < 1e-2 * np.linalg.norm(v)


def test_rows_that_do_not_determine_the_values_are_refused():
    A, gates, v, _ = drawn(3, 4, 11)
    system = RowProducts(A, gates)
    with pytest.raises(np.linalg.LinAlgError, match=r"11 rows of rank 1. do not determine 12"):
        system.solved(system.of(v))
    # two heads that switch together: only the sum of their values shows
    A, gates, v, _ = drawn(2, 4, 30)
    gates[:, 1] = gates[:, 0]
    with pytest.raises(np.linalg.LinAlgError, match="of rank 4"):
        RowProducts(A, gates).solved(A @ v[0])


def test_nothing_to_solve_is_zero(monkeypatch):
    monkeypatch.setattr(rough_heads, "LARGEST_DENSE", 0)
    A, gates, v, _ = drawn(2, 3, 10)
    system = RowProducts(A, gates)
    assert np.all(system.solved(np.zeros(10)) == np.zeros_like(v))
