"""Bisection on made-up thresholds: a bit per label, restarts at smaller scales, wrong answers."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.single_head.labels.bisection import (
    SMALLER,
    Brackets,
    Question,
    ScaledBrackets,
    halve,
    read_labels,
)
from unsoftmax.probes import Sequences
from unsoftmax.theory.counts import FIRST_BITS, RESTARTS


def probes(places):
    return Sequences(np.asarray(places)[:, None, None], phase="made up", purpose="data")


def answered(steps, label):
    """Drive a generator, every probe answered by itself; return the result and the rounds."""
    rounds = [next(steps)]
    while True:
        answers = [np.array([float(label(x)) for x in p[:].ravel()]) for p in rounds[-1]]
        try:
            rounds.append(steps.send(answers))
        except StopIteration as end:
            return end.value, rounds


def test_every_label_is_a_bit():
    truth = np.random.default_rng(0).random(50)
    brackets = Brackets.of(50, 0.0, 1.0)
    for bit in range(1, 53):
        brackets.narrow(np.arange(50), truth > brackets.middle)
        assert np.all((brackets.low <= truth) & (truth <= brackets.high))
        assert np.all(brackets.high - brackets.low == 2.0**-bit)
        assert np.all(brackets.bits == bit)


def test_only_what_was_asked_is_narrowed():
    brackets = Brackets.of(3, -1.0, 1.0)
    brackets.narrow(np.array([2, 0]), np.array([True, False]))
    assert brackets.low.tolist() == [-1, -1, 0]
    assert brackets.high.tolist() == [0, 1, 1]
    assert brackets.bits.tolist() == [1, 0, 1]
    brackets.start(np.array([2]), -4.0, 4.0)
    assert (brackets.low[2], brackets.high[2], brackets.bits[2]) == (-4, 4, 0)


def test_several_questions_are_one_round():
    truth = np.array([0.3, 0.9]), np.array([-2.0])
    some, others = Brackets.of(2, 0.0, 1.0), Brackets.of(1, -4.0, 4.0)

    def ask():
        return [
            Question(probes(brackets.middle - t), brackets, np.arange(len(t)))
            for brackets, t in zip((some, others), truth, strict=True)
        ]

    for _ in range(20):
        beside, rounds = answered(halve(ask(), beside=[probes([1.0, -1.0])]), lambda x: x < 0)
        assert [label.tolist() for label in beside] == [[False, True]]
        assert [len(part) for part in rounds[0]] == [2, 2, 1]
    assert np.allclose(some.middle, truth[0], atol=2.0**-20)
    assert np.allclose(others.middle, truth[1], atol=8 * 2.0**-20)
    assert answered(halve([]), bool)[0] == []


def bisected(truth, spare, bits=20):
    """Bisect t = s·m for unknowns m; return the brackets and how many labels were asked."""
    unknown, asked = ScaledBrackets.of(len(truth), 1.0), 0
    while np.any(due := unknown.brackets.bits < bits):
        k = np.flatnonzero(due)
        asked += len(k)
        above = unknown.scale[k] * truth[k] > unknown.brackets.middle[k]
        unknown.brackets.narrow(k, above)
        spare -= unknown.start_again(spare)
    return unknown, asked


def test_what_is_out_of_range_starts_again_at_a_smaller_scale():
    truth = np.array([0.1, -2.9, 3.5, -30.0, 100.0, 1500.0])
    unknown, asked = bisected(truth, 100)
    assert unknown.starts.tolist() == [1, 1, 2, 3, 3, 4]
    assert np.all(unknown.scale == SMALLER ** (1.0 - unknown.starts))
    found = unknown.brackets.middle / unknown.scale
    assert np.all(np.abs(found - truth) <= 8 * 2.0**-20 / unknown.scale)
    assert not unknown.lost.any()
    assert asked == 20 * len(truth) + FIRST_BITS * int(np.sum(unknown.starts - 1))


def test_what_is_out_of_every_reach_is_lost():
    unknown, _ = bisected(np.array([1.0, np.inf, -np.inf]), 100)
    assert unknown.lost.tolist() == [False, True, True]
    assert unknown.starts.tolist() == [1, 1 + RESTARTS, 1 + RESTARTS]


def test_no_more_start_again_than_are_paid_for():
    unknown, _ = bisected(np.full(9, 10.0), 4)
    assert np.sum(unknown.starts - 1) == 4
    assert unknown.lost.tolist() == [False] * 4 + [True] * 5


def test_bits_that_are_asked_again_are_told_from_others():
    unknown = ScaledBrackets.of(2, 1.0)
    for _ in range(FIRST_BITS):
        assert not unknown.repeating.any()
        unknown.brackets.narrow(np.arange(2), np.array([True, False]) & True)
    assert unknown.start_again(1) == 1
    assert unknown.repeating.tolist() == [True, False]
    for _ in range(FIRST_BITS):
        unknown.brackets.narrow(np.array([0]), np.array([False]))
    assert not unknown.repeating.any()


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
