"""Offsets that lean towards the gradient, and the vector that logits along them determine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.learners.transformer.aimed_segments import TiltedOffsets

CASES = {
    "seed": st.integers(0, 999),
    "d": st.integers(1, 9),
    "r": st.integers(1, 9),
    "tilt": st.sampled_from((1.0, 2.0, 4.0, 64.0)),
}


def made(seed, d, r, tilt, k=3):
    """Offsets of k tokens within R^d (r ≥ d) or a subspace, and the vectors u they see."""
    rng = np.random.default_rng([seed, d, r])
    h = rng.standard_normal((k, d))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    basis = None if r >= d else np.linalg.qr(rng.standard_normal((d, r)))[0]
    offsets = TiltedOffsets.every(h, basis)
    count = len(offsets.token)
    offsets = replace(
        offsets,
        tilt=rng.choice([1.0, tilt], count),
        sign=rng.choice([1.0, -1.0], count),
    )
    within = rng.standard_normal((k, min(r, d)))
    u = within if basis is None else within @ basis.T
    return offsets, within, u, rng


def seen(offsets, u):
    return np.einsum("nd,nd->n", offsets.made(), u[offsets.token])


@given(**CASES)
def test_offsets_are_unit_vectors_that_lean_towards_the_gradient(seed, d, r, tilt):
    offsets, *_ = made(seed, d, r, tilt)
    rows = offsets.made()
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-12)
    along = offsets.sign * np.einsum("nd,nd->n", rows, offsets.h[offsets.token])
    assert np.all(along >= 1 / np.sqrt(2) - 1e-9)


@given(**CASES)
def test_logits_along_all_axes_give_the_vector(seed, d, r, tilt):
    offsets, within, u, rng = made(seed, d, r, tilt)
    order = rng.permutation(len(offsets.token))
    offsets = offsets.pick(order)
    found = offsets.solve(seen(offsets, u))
    assert np.abs(found - within).max() <= 1e-13 * tilt * d * np.abs(u).max()


@pytest.mark.parametrize("basis", [None, np.eye(4)[:, :2]])
def test_a_gradient_orthogonal_to_the_span(basis):
    """Qᵀh = 0: any axis may be the first."""
    h = np.array([[0.0, 0.0, 0.0, 1.0]])
    offsets = TiltedOffsets.every(h, basis)
    u = np.array([[3.0, -2.0, 0.0, 0.0]])
    found = offsets.solve(seen(offsets, u))
    assert np.allclose(found[0], u[0] if basis is None else u[0, :2], atol=1e-14)


def test_picked_rows_are_the_same_rows():
    offsets, *_ = made(5, 6, 3, 4.0)
    index = np.array([4, 0, 7])
    assert np.array_equal(offsets.pick(index).made(), offsets[index])
    assert offsets.pick(index).shape == (3, 6)
    assert set(offsets.design()) == {"h", "token", "l", "c", "sign", "basis"}
    assert "basis" not in made(5, 3, 6, 4.0)[0].design()
