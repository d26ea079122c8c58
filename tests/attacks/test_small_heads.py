"""Heads that no answer shows: a certificate says how small they are."""

import re
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.plain_layers import PlainLayer


def in_float32(y: Any) -> Any:
    return y.astype(np.float32).astype(np.float64)


ANSWERS: dict[str, Any] = {
    "float64": (lambda y: y, (-14.0, -10.0)),
    "float32": (in_float32, (-7.5, -3.5)),
}


def stated(recovery: us.Recovery[Any]) -> float:
    """Return the share of the others' M below which a head may be missed."""
    [size] = re.findall(r"is below (\S+) of the others'", " ".join(recovery.certificate.assumes))
    return float(size)


@pytest.mark.parametrize("place", ["none", "post"])
@pytest.mark.parametrize("answers", ANSWERS)
def test_a_head_that_is_lost_is_below_the_limit(answers, place, trials, evidence):
    count, refused, lost, sizes = trials(1, 150), 0, [0.0], []
    disturbed, decades = ANSWERS[answers]
    for seed in range(count):
        rng = np.random.default_rng([311, seed])
        smallest = 10.0 ** rng.uniform(*decades)
        target = PlainLayer(rng, place, smallest=smallest, disturbed=disturbed)
        try:
            recovery = us.learn(target, target.learner(seed))
        except us.UnsoftmaxError:
            refused += 1
            continue
        sizes.append(stated(recovery))
        missed = len(target.M) - recovery.model.H
        if missed:
            lost.append(smallest / sizes[-1])
            assert lost[-1] <= 1, (seed, smallest, sizes[-1])
    evidence(
        f"a small head, {answers} answers, norm {place}",
        runs=count,
        lost=len(lost) - 1,
        of_the_limit_at_most=max(lost),
        limit_in_the_median=float(np.median(sizes)),
        refused=refused,
    )


@pytest.mark.parametrize("size", [7e-9, 1e-3])
def test_heads_of_no_scores_after_a_norm_are_named(size):
    """Tokens after a norm have a longest length: scores stay small, and weights those of a mean."""
    target = PlainLayer(np.random.default_rng(9), "pre")
    target.W *= size / np.linalg.norm(target.W, axis=(1, 2), keepdims=True)
    target.w *= 0
    with pytest.raises(us.NotIdentifiable, match="weigh all tokens nearly alike") as refused:
        us.learn(target, target.learner(0))
    assert {"c", "M"} <= {*refused.value.determined}
