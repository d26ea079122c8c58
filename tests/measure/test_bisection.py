"""Bisection on made-up thresholds: a bit per label, restarts at smaller scales, wrong answers."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.single_head.labels.bisection import read_labels


def test_labels_are_ones_and_zeros_or_minus_ones():
    assert [part.tolist() for part in read_labels([np.array([1.0, 0.0]), np.zeros(0)])] == [
        [True, False],
        [],
    ]
    signs = np.array([1.0, -1.0, 0.0])
    assert [part.tolist() for part in read_labels([signs])] == [[True, False, False]]
    for wrong in (np.array([0.0, -2.0]), np.array([2.0]), np.array([1.0, 0.5])):
        with pytest.raises(us.ModelMismatch, match=r"us\.oracles\.labels"):
            read_labels([np.ones(3), wrong])
