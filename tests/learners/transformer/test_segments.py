"""A known network along segments: pieces, where they can be inverted, and the inverse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.learners.transformer.learned_network import SegmentPieces

NOTHING = np.zeros(1)


def bent(*kinks):
    """A network on R: slope 1 at first, and a change of slope at each (place, change)."""
    places, changes = np.array([k for k, _ in kinks]), [change for _, change in kinks]
    A = np.append([1.0, -1.0], np.ones(len(kinks)))[None]
    return us.ReluNetwork(A, [1.0, -1.0, *changes], np.append([0.0, 0.0], -places))


def along(network, a=1.0, b=0.0):
    return SegmentPieces.of(network, np.array([[a]]), np.array([[b]]))


def increasing(seed, d, m, n, spread):
    """A network that grows along every direction with positive entries, and n such segments."""
    rng = np.random.default_rng([seed, d, m])
    A, w_o = np.abs(rng.standard_normal((d, m))) + 1e-3, 10.0 ** rng.uniform(-spread, 0, m)
    # a linear part keeps it from being flat anywhere
    A = np.column_stack([A, np.ones(d), -np.ones(d)])
    network = us.ReluNetwork(A, [*w_o, 1.0, -1.0], [*rng.standard_normal(m), 0.0, 0.0], 0.7)
    return network, np.abs(rng.standard_normal((n, d))) + 1e-3, rng.standard_normal((n, d))


@given(seed=st.integers(0, 999), d=st.integers(1, 4), m=st.integers(0, 12), spread=st.floats(0, 6))
def test_pieces_are_the_network(seed, d, m, spread):
    network, a, b = increasing(seed, d, m, 3, spread)
    pieces = SegmentPieces.of(network, a, b)
    size = np.abs(network(b)).max() + np.abs(network(b + a)).max() + 1
    for k in range(pieces.knots.shape[1]):
        at = network(b + pieces.knots[:, k, None] * a)
        assert np.abs(pieces.values[:, k] - at).max() <= 1e-13 * size * (m + 1)
    assert np.all(np.diff(pieces.knots, axis=1) >= 0)
    assert np.allclose(pieces.rise, network(b + a) - network(b), rtol=0, atol=1e-12 * size)


@given(
    seed=st.integers(0, 999),
    d=st.integers(1, 4),
    m=st.integers(0, 12),
    spread=st.floats(0, 6),
    sigma=st.floats(0, 1),
    turn=st.sampled_from((1.0, -1.0)),
)
def test_the_inverse_of_monotone_segments(seed, d, m, spread, sigma, turn):
    network, a, b = increasing(seed, d, m, 3, spread)
    network = us.ReluNetwork(network.A, turn * network.w_o, network.b, turn * network.c)
    pieces = SegmentPieces.of(network, a, b)
    steep = pieces.steepness(np.zeros(3))
    assert np.all(steep > 0)
    found, slope = pieces.invert(network(b + sigma * a))
    size = np.abs(pieces.values).max(axis=1)
    smallest = steep * np.abs(pieces.rise)
    assert np.all(np.abs(found - sigma) <= 1e-13 * (m + 1) * (1 + size / smallest))
    assert np.all(slope >= smallest * (1 - 1e-9))


def test_several_pieces_by_hand():
    pieces = along(bent((0.25, 2.0), (0.5, -1.0)))
    assert np.allclose(pieces.knots[0, :4], [0.0, 0.25, 0.5, 1.0])
    assert np.allclose(pieces.slopes[0, :3], [1.0, 3.0, 2.0])
    for y, sigma in ((0.125, 0.125), (0.25, 0.25), (0.7, 0.4), (1.0, 0.5), (1.6, 0.8)):
        assert np.isclose(pieces.invert(np.array([y]))[0][0], sigma)
    assert np.isclose(pieces.steepness(NOTHING)[0], 1 / 2.0)


def test_beyond_the_ends_the_last_slope_goes_on():
    pieces = along(bent((0.5, 1.0)))
    sigma = [pieces.invert(np.array([y]))[0][0] for y in (-0.25, 2.0)]
    assert np.allclose(sigma, [-0.25, 1.25])


@pytest.mark.parametrize(
    ("kinks", "steepness"),
    [
        ([], 1.0),
        ([(0.5, -1.0)], 0.0),  # flat at the end
        ([(0.5, -1.5)], -0.5 / 0.25),  # turns
        ([(0.5, -2.0)], 0.0),  # as high as at the start: no rise at all
        ([(0.5, 99.0)], 1 / 50.5),  # nearly flat beside its steep half
    ],
)
def test_steepness(kinks, steepness):
    assert np.isclose(along(bent(*kinks)).steepness(NOTHING)[0], steepness, rtol=1e-12)


def test_a_neuron_that_turns_on_where_the_segment_begins():
    network = us.ReluNetwork([[1.0]], [2.0])
    for a, slope in ((1.0, 2.0), (-1.0, 0.0)):
        assert np.isclose(along(network, a=a).slopes[0, 0], slope)


def test_a_constant_network_has_no_steep_segment():
    network = us.ReluNetwork(np.zeros((1, 0)), [], None, 3.0)
    assert along(network).steepness(NOTHING)[0] == 0


def test_short_pieces_are_left_out_where_the_error_hides_them():
    """A flat piece of 1e-6: it stops the inverse, unless g's error is larger than it anyway."""
    pieces = along(bent((0.5, -1.0), (0.5 + 1e-6, 1.0)))
    assert np.isclose(pieces.steepness(NOTHING)[0], 0.0, atol=1e-12)
    assert pieces.left_out(NOTHING)[0][0] == 0
    hidden = np.array([1e-5])
    assert np.isclose(pieces.steepness(hidden)[0], 1.0, rtol=1e-5)
    length, change = pieces.left_out(hidden)
    assert np.isclose(length[0], 1e-6)
    assert change[0] <= 1e-15


def test_a_rise_that_is_mostly_error_tells_nothing():
    pieces = along(bent())
    assert pieces.steepness(np.array([0.0099]))[0] == 1
    assert pieces.steepness(np.array([0.0101]))[0] == 0
