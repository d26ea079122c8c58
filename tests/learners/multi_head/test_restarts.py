"""The restart table: every outcome, with answers as they are and as if they were coarser."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from unsoftmax.arrangement.breakpoints import TooManyBreakpoints
from unsoftmax.arrangement.jumps import SoftStart, SoftTransition
from unsoftmax.learners.multi_head.restarts import (
    COUNTED,
    Precise,
    Restarts,
    RestartTuning,
    SearchState,
)
from unsoftmax.learners.multi_head.search_outcomes import (
    ENDINGS,
    CoincidentJumps,
    SearchOutcome,
    UnsaturatedGates,
)
from unsoftmax.measure.windows import NoWindow

TUNING = RestartTuning()
Outcome = SearchOutcome
COARSE = Restarts(bad_luck=25)


def counts(restarts):
    return restarts.failures, restarts.bad_luck, restarts.too_many


# (failures, bad luck, too many) that one outcome adds
EXACT = {
    Outcome.CONFIRMED: (0, 0, 0),
    Outcome.CONTRADICTED: (1, 0, 0),
    Outcome.COINCIDENT: (1, 0, 0),
    Outcome.TOO_MANY: (1, 0, 1),
    Outcome.UNSATURATED: (0, 3, 0),
    Outcome.OPEN_START: (0, 1, 0),
}
COARSER = {
    Outcome.CONFIRMED: (0, 0, 0),
    Outcome.CONTRADICTED: (0, 3, 0),
    Outcome.COINCIDENT: (0, 3, 0),
    Outcome.TOO_MANY: (0, 3, 0),
    Outcome.UNSATURATED: (0, 3, 0),
    Outcome.OPEN_START: (0, 1, 0),
}


def test_the_table_says_what_every_outcome_counts_for():
    assert set(COUNTED) == set(Outcome)
    assert all(set(row) == set(Precise) for row in COUNTED.values())


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize(("start", "expected"), [(Restarts(), EXACT), (COARSE, COARSER)])
@pytest.mark.parametrize("soft", [False, True])
def test_what_every_outcome_counts_for(outcome, start, expected, soft):
    after = start.after(outcome, soft)
    assert counts(after) == tuple(np.add(counts(start), expected[outcome]))
    found = outcome is Outcome.CONFIRMED
    assert after.state is (SearchState.FOUND if found else SearchState.SEARCHING)


def test_precision_is_coarser_after_each_quarter_of_the_bad_luck():
    levels = [Restarts(bad_luck=luck).coarse for luck in range(101)]
    assert levels == [0.0] * 25 + [1e-7] * 25 + [1e-6] * 25 + [1e-5] * 26
    assert Restarts(bad_luck=24).precise is Precise.AS_THEY_ARE
    assert COARSE.precise is Precise.COARSER


def test_query_tokens_are_longest_after_some_bad_luck():
    assert not Restarts(bad_luck=3).longest_tokens
    assert Restarts(bad_luck=4).longest_tokens


def test_later_searches_begin_with_more_intervals_and_then_again():
    starts = [Restarts(failures=n).start for n in range(len(TUNING.starts))]
    assert tuple(starts) == TUNING.starts
    assert [start[0] for start in starts[:4]] == sorted(start[0] for start in starts[:4])
    assert set(starts[4:]) <= set(starts[:4]) | {(64, 100.0)}


@pytest.mark.parametrize("outcome", [Outcome.CONTRADICTED, Outcome.COINCIDENT])
def test_as_many_failures_as_starts_exhaust(outcome):
    restarts = Restarts()
    for _ in range(len(TUNING.starts) - 1):
        restarts = restarts.after(outcome, False)
        assert restarts.state is SearchState.SEARCHING
    assert restarts.after(outcome, False).state is SearchState.EXHAUSTED


@pytest.mark.parametrize(
    ("outcome", "searches"), [(Outcome.OPEN_START, 100), (Outcome.UNSATURATED, 34)]
)
def test_bad_luck_exhausts(outcome, searches):
    restarts, n = Restarts(), 0
    while restarts.state is SearchState.SEARCHING:
        restarts, n = restarts.after(outcome, True), n + 1
    assert restarts.state is SearchState.EXHAUSTED
    assert n == searches
    assert restarts.precise is Precise.COARSER


@pytest.mark.parametrize(("soft", "needed"), [(False, 2), (True, 4)])
def test_too_many_jumps_are_believed_when_seen_often_enough(soft, needed):
    restarts = Restarts()
    for n in range(needed):
        assert restarts.state is SearchState.SEARCHING, n
        restarts = restarts.after(Outcome.TOO_MANY, soft)
    assert restarts.state is SearchState.TOO_MANY_HEADS


def test_where_the_function_is_wanted_too_many_jumps_are_failures_like_others():
    restarts = Restarts(refuse_many=False)
    for _ in TUNING.starts:
        assert restarts.state is SearchState.SEARCHING
        restarts = restarts.after(Outcome.TOO_MANY, False)
    assert restarts.state is SearchState.EXHAUSTED


def test_too_many_jumps_between_other_failures():
    restarts = Restarts()
    for outcome in (Outcome.TOO_MANY, Outcome.COINCIDENT, Outcome.TOO_MANY):
        restarts = restarts.after(outcome, False)
    assert restarts.state is SearchState.TOO_MANY_HEADS


@pytest.mark.parametrize("refuse_many", [False, True])
def test_every_sequence_of_outcomes_ends(refuse_many):
    """Any state within reach leads on to a counted one; the longest way is bad luck."""
    todo, seen = [Restarts(replace(TUNING, most_unlucky=8), refuse_many)], set()
    while todo:
        restarts = todo.pop()
        if restarts in seen:
            continue
        seen.add(restarts)
        if restarts.state is not SearchState.SEARCHING:
            continue
        for outcome, soft in itertools.product(Outcome, (False, True)):
            after = restarts.after(outcome, soft)
            assert sum(counts(after)) > sum(counts(restarts)) or after.state is SearchState.FOUND
            todo.append(after)
    states = {restarts.state for restarts in seen}
    assert states == set(SearchState) - ({SearchState.TOO_MANY_HEADS} if not refuse_many else set())
    assert all(restarts.failures <= len(TUNING.starts) for restarts in seen)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TooManyBreakpoints(3), Outcome.TOO_MANY),
        (CoincidentJumps(), Outcome.COINCIDENT),
        (np.linalg.LinAlgError(), Outcome.COINCIDENT),
        (UnsaturatedGates(), Outcome.UNSATURATED),
        (NoWindow(), Outcome.UNSATURATED),
        (SoftTransition(), Outcome.UNSATURATED),
        (SoftStart(), Outcome.OPEN_START),
    ],
)
def test_what_ends_a_search_has_an_outcome(error, outcome):
    assert ENDINGS[type(error)] is outcome
    assert len(ENDINGS) == 7
