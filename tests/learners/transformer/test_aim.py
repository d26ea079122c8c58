"""Which segments: monotone and steep ones where there are any, chosen without a query."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from tests.learners.transformer.synthetic import disturbed, exact
from tests.networks import KINDS, network
from unsoftmax.learners.transformer import aimed_segments
from unsoftmax.learners.transformer.aimed_segments import TokenLines, aim, aim_from


def lines(d, k, seed=0, beta=1.0, reach=1.0):
    rng = np.random.default_rng([d, k, seed])
    b = rng.standard_normal((k, d))
    return TokenLines.alike(b / np.linalg.norm(b, axis=1, keepdims=True), beta, reach)


def flat_near_0(d, distance, seed=0):
    """A network that is constant up to a distance."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((d, 2))
    return us.ReluNetwork(A, np.ones(2), -distance * np.linalg.norm(A, axis=0), 0.3)


def linear(d):
    w = np.arange(1.0, d + 1)
    return us.ReluNetwork(np.column_stack([w, -w]), [1.0, -1.0])


@given(
    d=st.integers(1, 6),
    m=st.integers(1, 12),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
    r=st.integers(1, 6),
)
def test_steepness_is_that_of_the_chosen_segments(d, m, kind, seed, r):
    learned = exact(network(kind, d, m, seed))
    rng = np.random.default_rng(seed)
    basis = None if r >= d else np.linalg.qr(rng.standard_normal((d, r)))[0]
    found = aim(learned, lines(d, 3, seed, reach=2.0), basis)
    rows = np.arange(len(found.alpha))
    assert len(rows) == 3 * min(r, d)
    steep = found.pieces(learned.network, rows).steepness(np.zeros(len(rows)))
    assert np.allclose(steep, found.steep, rtol=1e-9, atol=1e-12)
    x, a = found.vectors(rows)
    assert np.allclose(np.linalg.norm(a, axis=1), found.alpha, rtol=1e-12)
    # tokens stay on their lines
    along = np.abs(np.einsum("kd,kd->k", found.x, lines(d, 3, seed).b))
    assert np.allclose(along, np.linalg.norm(found.x, axis=1), rtol=1e-12)
    assert np.allclose(along, np.abs(found.beta), rtol=1e-12)
    if found.usable:
        values = [learned.network(x + s * a) for s in np.linspace(0, 1, 30)]
        rise = np.diff(values, axis=0) * np.sign(values[-1] - values[0])
        assert np.all(rise >= -1e-12 * (1 + np.abs(values[0])))


def test_where_all_is_linear_the_longest_offsets_are_taken():
    found = aim(exact(linear(4)), lines(4, 3, reach=7.0), None)
    assert np.all(found.alpha == 7.0)
    assert np.allclose(found.steep, 1.0)


@pytest.mark.parametrize("distance", [3.0, 30.0, 300.0])
def test_a_network_that_is_flat_near_0_is_met_farther_out(distance, monkeypatch):
    learned = exact(flat_near_0(4, distance))
    found = aim(learned, lines(4, 6), None)
    assert found.usable
    assert np.all(np.abs(found.beta) > 1.0)
    near = aim_from(learned, lines(4, 6), None)
    assert not near.usable
    monkeypatch.setattr(aimed_segments, "ELSEWHERE", ((-1.0, 1.0),))
    assert not aim(learned, lines(4, 6), None).usable


def test_a_constant_network_has_no_usable_segment():
    learned = exact(us.ReluNetwork(np.zeros((3, 0)), [], None, 1.0))
    assert not aim(learned, lines(3, 2), None).usable


def test_the_error_of_the_network_rules_out_short_offsets():
    """Rises must be 100 times the error: a network known to 1e-3 needs long offsets."""
    rng = np.random.default_rng(0)
    learned = disturbed(linear(2), 1e-3, 0.0, rng)
    for reach, usable in ((1.0, True), (1e-2, False)):
        assert aim_from(learned, lines(2, 2, reach=reach), None).usable is usable


def test_replaced_tokens_bring_all_their_offsets():
    learned = exact(network("random", 3, 9, 0))
    one = aim_from(learned, lines(3, 4, 0), None)
    two = aim_from(learned, lines(3, 2, 1, beta=5.0), None)
    mixed = one.replaced(np.array([1, 3]), two, np.array([1, 0]))
    every = np.arange(4)
    for token, source, its in ((0, one, 0), (1, two, 1), (2, one, 2), (3, two, 0)):
        rows, other = (
            mixed.rows(every[[token]], slice(None)),
            source.rows(every[[its]], slice(None)),
        )
        for mine, theirs in zip(mixed.vectors(rows), source.vectors(other), strict=True):
            assert np.array_equal(mine, theirs)
        assert np.array_equal(mixed.steep[rows], source.steep[other])
    assert np.array_equal(one.x, aim_from(learned, lines(3, 4, 0), None).x)
