"""Parts of verification on synthetic input: sides of neurons, operands of few bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.questions.services import network
from unsoftmax.measure.precision import FLOAT32_UNIT, Precision
from unsoftmax.questions.answer_errors import operand_bits, to_bits, with_steps
from unsoftmax.questions.claim import NeuronSides


def sides_of(g):
    return NeuronSides.of(g.A.T, g.b, g.w_o)


@pytest.mark.parametrize("d", [1, 2, 16, 64])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_points_lie_on_the_side_that_is_wanted(d, size):
    rng = np.random.default_rng(d)
    sides = sides_of(network(rng, d, 40))
    for k in rng.integers(80, size=10):
        wanted = np.arange(80) == k
        points = sides.aimed(wanted, size, rng)
        assert np.all(sides.met(points)[:, k])
        assert np.all(np.linalg.norm(points, axis=1) <= 4 * (size + 4 * np.abs(sides.distances[k])))
    assert sides.aimed(np.zeros(80, dtype=bool), size, rng).shape == (0, d)


def test_a_neuron_is_on_one_of_its_two_sides():
    rng = np.random.default_rng(0)
    g = network(rng, 5, 30)
    sides, x = sides_of(g), rng.standard_normal((50, 5))
    on, off = np.split(sides.depths(x), 2, axis=1)
    np.testing.assert_array_equal(on, -off)
    np.testing.assert_allclose(on * np.linalg.norm(g.A, axis=0), x @ g.A + g.b, atol=1e-12)
    shown = np.abs(g.w_o) * np.maximum(x @ g.A + g.b, 0)
    hidden = sides.hidden(x, np.full(50, 0.5))
    np.testing.assert_array_equal(hidden[:30], np.all(shown <= 0.5, axis=0))


@pytest.mark.parametrize("bits", [8, 11, 24])
@pytest.mark.parametrize("d", [1, 3, 32, 384])
def test_bits_of_operands_are_told(bits, d):
    rng, precision = np.random.default_rng(d), Precision(FLOAT32_UNIT, FLOAT32_UNIT)
    for scale in (2.0**-20, 1.0, 2.0**20):
        v = rng.standard_normal(d)
        x = scale * rng.choice([-1.0, 1.0], d) * rng.uniform(1, 2, d)
        tokens = np.array(with_steps(x, scale, v))
        assert np.all(np.abs(tokens[1:]) >= np.abs(tokens[0]))
        np.testing.assert_array_equal(tokens, tokens.astype(np.float32))
        y = (to_bits(tokens, bits) @ v).astype(np.float32).astype(float)
        size = float(np.linalg.norm(tokens[0]) * np.linalg.norm(v))
        found = operand_bits(y, tokens @ v, size, precision)
        # few dimensions may leave 8 bits untold from 11; never the other way round
        assert found == (None if bits == 24 else bits) or (bits == 8 and found == 11)
