"""The one judgement, on synthetic residuals: what passes, what does not, what is left out."""

import numpy as np
import pytest

from unsoftmax.errors import OracleError
from unsoftmax.probes import Sequences, Singles
from unsoftmax.validate.judge import Residuals, fresh_answers, from_the_side, hold_out, judge


def finished(steps, *answers):
    """Drive a generator by hand; return what it asked and what it returned."""
    asked = []
    try:
        asked.append(next(steps))
        for y in answers:
            asked.append(steps.send(y))
    except StopIteration as end:
        return asked, end.value
    raise AssertionError("it asks for more")


def test_exact_predictions_pass_without_any_tolerance():
    judgement = judge(Residuals.of(np.zeros(5)), 5)
    assert judgement.evidence.passed
    assert not judgement.refuses
    assert judgement.evidence.max_residual == judgement.evidence.tolerance == 0
    assert judgement.strain == judgement.excess == 0


@pytest.mark.parametrize("size", [1e-200, 1e-3, 1.0, 1e8, 1e200])
def test_an_error_as_large_as_its_bound_passes_and_a_little_more_does_not(size):
    rng = np.random.default_rng(0)
    sensitivity = size * 10.0 ** rng.uniform(-3, 3, 50)
    own, bound = 1e-9 * size, 1e-6
    signs = rng.choice([-1.0, 1.0], 50)
    for times, passes in ((1 - 1e-12, True), (1 + 1e-12, False)):
        missed = np.zeros(50)
        missed[17] = (times * signs * (own + sensitivity * bound))[17]
        judgement = judge(Residuals.of(missed, own=own, allowed=sensitivity * bound, size=size), 50)
        assert judgement.evidence.passed == passes
        assert judgement.refuses == (not passes)
        assert judgement.excess == pytest.approx(1, rel=1e-11)
        assert judgement.strain == pytest.approx(1, rel=1e-4)
        residual, tolerance = judgement.worst
        assert residual == pytest.approx(np.abs(missed[17]) / size)
        assert tolerance == pytest.approx((own + sensitivity[17] * bound) / size)


def test_the_worst_is_beside_its_own_tolerance_and_not_the_largest():
    judgement = judge(Residuals.of(np.array([1.0, 1e-3]), own=np.array([2.0, 1e-4])), 2)
    assert judgement.worst == (1e-3, 1e-4)
    assert judgement.excess == pytest.approx(10)
    assert judgement.evidence.max_residual == 1.0
    assert judgement.evidence.tolerance == 2.0


def test_strain_is_what_is_left_to_the_bounds():
    missed, own = np.array([0.5, -0.5, 3.0, 0.0]), 0.4
    allowed = np.array([1.0, 0.2, 0.0, 1e-9])
    # the third has no bound that could explain it, the fourth is exact
    assert Residuals.of(missed, own=own, allowed=allowed).strain == pytest.approx(0.5)
    telling = np.array([True, False, True, True])
    strain = Residuals.of(missed, own=own, allowed=allowed, telling=telling).strain
    assert strain == pytest.approx(0.1)


def test_a_bound_of_next_to_nothing_is_not_divided_by_in_vain():
    judgement = judge(Residuals.of(np.array([1e150]), allowed=5e-324), 1)
    assert judgement.strain == np.inf
    assert judgement.refuses
    assert judgement.excess == np.inf


def test_infinite_bounds_pass_anything_unless_capped():
    missed = np.array([0.3, 1e-9])
    free = judge(Residuals.of(missed, allowed=np.inf), 2)
    assert free.evidence.passed
    assert free.evidence.tolerance == np.inf
    assert free.strain == free.excess == 0
    capped = judge(Residuals.of(missed, allowed=np.inf, most=1e-2), 2)
    assert capped.refuses
    assert capped.worst == (0.3, 1e-2)


def test_the_cap_is_relative_to_the_size():
    missed, size = np.array([1e-3]), np.array([1e6])
    assert not judge(Residuals.of(missed, allowed=1.0, size=size, most=1e-8), 1).refuses
    assert judge(Residuals.of(missed, allowed=1.0, size=size, most=1e-10), 1).refuses
    # a cap above the tolerance changes nothing
    assert judge(Residuals.of(missed, allowed=1e-4, size=size, most=1.0), 1).refuses


def test_without_a_size_residuals_are_absolute():
    both = Residuals.of(np.array([0.5, 0.5]), own=0.6, size=np.array([0.0, 2.0]))
    assert both.relative.tolist() == [0.5, 0.25]
    assert both.tolerance.tolist() == [0.6, 0.3]


def test_what_is_not_telling_neither_convicts_nor_acquits():
    missed, telling = np.array([1e9, 1e-9]), np.array([False, True])
    assert judge(Residuals.of(missed, own=1e-8, telling=telling), 2).evidence.passed
    blunt = judge(Residuals.of(missed, own=1e10, telling=False), 2)
    assert blunt.blunt
    assert blunt.refuses
    assert not blunt.evidence.passed
    assert np.isnan(blunt.worst).all()
    assert blunt.excess == blunt.strain == 0


def test_nothing_asked_is_no_evidence_and_no_refusal():
    nothing = Residuals.of(np.zeros(0))
    for judgement in (judge([], 0), judge(nothing, 0), judge([nothing, nothing], 0)):
        assert judgement.blunt
        assert not judgement.evidence.passed
        assert not judgement.refuses


def test_a_tolerance_that_is_not_a_number_does_not_pass():
    assert judge(Residuals.of(np.zeros(1), own=np.nan), 1).refuses


def test_families_are_judged_as_one():
    rng = np.random.default_rng(1)
    missed, own, size = rng.standard_normal(9), 5 * rng.random(9), rng.random(9)
    whole = judge(Residuals.of(missed, own=own, size=size), 9)
    spans = (slice(0, 2), slice(2, 2), slice(2, 9))
    parts = judge((Residuals.of(missed[s], own=own[s], size=size[s]) for s in spans), 9)
    assert parts == whole


def test_answers_that_are_vectors_are_judged_entry_by_entry():
    missed = np.zeros((4, 3))
    missed[2, 1] = 2e-3
    assert judge(Residuals.of(missed, own=1e-3), 4).refuses
    judgement = judge([Residuals.of(missed, own=3e-3)], 4)
    assert judgement.evidence.passed
    assert judgement.worst == (2e-3, 3e-3)


def test_a_label_is_an_answer_known_to_a_half_line():
    predicted = np.array([2.0, 2.0, -3.0, -3.0, 0.0, 0.0])
    labels = np.array([True, False, True, False, True, False])
    assert from_the_side(predicted, labels).tolist() == [0, 2, 3, 0, 0, 0]


# -- asking


def test_the_hold_out_is_one_round_and_judges_earlier_answers_too():
    fresh = [
        Sequences(np.full((n, n, 2), float(n)), phase="hold-out", purpose="check") for n in (1, 3)
    ]
    seen = []

    def compare(X, y):
        seen.append(X.shape)
        return Residuals.of(y - X[:, 0, 0], own=0.25)

    earlier = [(np.full((2, 2, 2), 2.0), np.array([2.0, 2.25]))]
    asked, judgement = finished(
        hold_out(fresh, compare, 9, earlier), [np.array([1.0]), np.array([3.0, 3.0, 3.5])]
    )
    assert asked == [fresh]
    assert seen == [(2, 2, 2), (1, 1, 2), (3, 3, 2)]
    assert judgement.evidence.queries == 9
    assert judgement.worst == (0.5, 0.25)
    assert judgement.refuses


def test_nothing_fresh_asks_no_round():
    earlier = [(np.ones((1, 1, 1)), np.ones(1))]
    asked, answered = finished(fresh_answers([], earlier))
    assert asked == []
    assert answered == earlier


def test_single_tokens_are_compared_as_sequences():
    probes = Singles(np.eye(3), 2.0, phase="hold-out", purpose="check")
    _, [(X, y)] = finished(fresh_answers([probes]), [np.arange(3.0)])
    assert X.shape == (3, 1, 3)
    assert np.array_equal(X[:, 0], 2 * np.eye(3))
    assert y.tolist() == [0, 1, 2]


def test_a_further_round_that_is_not_answered_is_left_out():
    first, *further = [
        [Sequences(np.ones((2, n, 2)), phase="hold-out", purpose="check")] for n in (3, 64, 512)
    ]
    steps = fresh_answers(first, further=further)
    assert next(steps) == first
    assert steps.send([np.zeros(2)]) == further[0]
    assert steps.throw(OracleError("too long")) == further[1]
    with pytest.raises(StopIteration) as end:
        steps.send([np.ones(2)])
    assert [(X.shape[1], y.tolist()) for X, y in end.value.value] == [(3, [0, 0]), (512, [1, 1])]


def test_a_first_round_that_is_not_answered_is_an_error():
    probes = Singles(np.eye(3), phase="hold-out", purpose="check")
    steps = fresh_answers([probes])
    next(steps)
    with pytest.raises(OracleError, match="gone"):
        steps.throw(OracleError("gone"))


@pytest.mark.parametrize(("telling", "counts"), [(True, True), (False, False)])
def test_single_tokens_count_where_others_tell(telling, counts):
    alone, several = Residuals.of(np.ones(2)), Residuals.of(np.zeros(3), telling=telling)
    joined = Residuals.of_lengths([(1, alone), (5, several)])
    assert joined.telling.tolist() == [counts] * 2 + [telling] * 3
    assert judge(joined, 5).blunt is not telling
