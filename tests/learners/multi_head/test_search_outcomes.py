"""The table of endings: each one, with answers as they are and as if they were coarser."""

import itertools

import pytest

from unsoftmax.arrangement.kinks import TooManyBreakpoints
from unsoftmax.learners.multi_head.search_outcomes import (
    ENDINGS,
    CoincidentJumps,
    Restarts,
    SearchState,
    UnsaturatedGates,
    searched,
)


def counts(restarts):
    return restarts.failures, restarts.bad_luck, restarts.too_many


# (failures, bad luck, too many) that one ending adds, with answers as they are and as if coarser


@pytest.mark.parametrize(("soft", "needed"), [(False, 2), (True, 4)])
def test_too_many_jumps_are_believed_when_seen_often_enough(soft, needed):
    restarts = Restarts()
    for n in range(needed):
        assert restarts.state is SearchState.SEARCHING, n
        restarts = restarts.after(TooManyBreakpoints, soft)
    assert restarts.state is SearchState.TOO_MANY_HEADS


@pytest.mark.parametrize("refuse_many", [False, True])
def test_every_sequence_of_endings_ends(refuse_many):
    """Any state within reach leads on to a counted one; the longest way is bad luck."""
    todo, seen = [Restarts(most_unlucky=8, refuse_many=refuse_many)], set()
    while todo:
        restarts = todo.pop()
        if restarts in seen:
            continue
        seen.add(restarts)
        if restarts.state is not SearchState.SEARCHING:
            continue
        for ending, soft in itertools.product(ENDINGS, (False, True)):
            after = restarts.after(ending, soft)
            assert sum(counts(after)) > sum(counts(restarts))
            todo.append(after)
    states = {restarts.state for restarts in seen}
    never = set() if refuse_many else {SearchState.TOO_MANY_HEADS}
    assert states == set(SearchState) - never - {SearchState.FOUND}
    assert all(restarts.failures <= len(Restarts().starts) for restarts in seen)


def test_searches_end_with_what_one_of_them_finds():
    starts, ended = [], [TooManyBreakpoints(3), UnsaturatedGates(), CoincidentJumps()]

    def search(restarts):
        starts.append(restarts.start)
        if ended:
            raise ended.pop()
        return "heads"
        yield

    with pytest.raises(StopIteration) as end:
        next(searched(search, Restarts()))
    restarts, found = end.value.value
    assert found == "heads"
    assert restarts.state is SearchState.FOUND
    assert counts(restarts) == (2, 3, 1)
    assert starts == [Restarts().starts[n] for n in (0, 1, 1, 2)]
