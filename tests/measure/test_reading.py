"""A reading: numbers with their errors, one by one and together."""

from __future__ import annotations

import numpy as np

from unsoftmax.measure.reading import Reading


def test_independent_errors_add_up_as_a_norm():
    read = Reading.independent(np.arange(4.0).reshape(2, 2), np.full((2, 2), 0.5))
    assert read.total == 1.0
    assert read.bounded


def test_one_number_without_a_bound_leaves_none_for_all():
    read = Reading.independent(np.zeros(3), np.array([0.1, np.inf, 0.1]))
    assert read.total == np.inf
    assert not read.bounded
