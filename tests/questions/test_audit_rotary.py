"""`us.audit` of targets with positions: rotary heads are recovered, others are named."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from tests.rotary_heads import answered, rotary_head, within_bounds
from tests.rotary_layers import rotary_layer
from tests.theorems.test_4_1 import hidden
from tests.truth import Counted


@pytest.mark.parametrize(("d", "r"), [(16, 8), (8, 8)])
def test_a_rotary_head_is_recovered(d, r, trials, evidence):
    queries = []
    for seed in range(count := trials(1, 25)):
        target = rotary_head(d, r, seed)
        found = us.audit(hidden(target), d)
        assert (found.target_class, dict(found.facts)) == ("position-dependent", {"rotary": 1})
        assert any("rotary=True" in reason for reason in found.reasons)
        assert found.cost is not None
        assert found.cost.at_most >= us.theory.counts.rotary_head_queries(d, r)
        whole = us.audit(hidden(target), d, recover=True)
        assert (whole.certainty, dict(whole.facts)) == ("certain", {"rotary": 1, "rank": r})
        assert ("rotary", "yes") in whole.known
        assert whole.recovery is not None
        assert within_bounds(whole.recovery, target)
        queries.append(whole.queries)
    evidence(
        f"audit, a rotary head recovered, d = {d}, r = {r}",
        recovered=f"{count} of {count}",
        median_queries=f"{np.median(queries):.0f}",
    )


def test_what_is_no_single_rotary_head_stays_position_dependent():
    one, two = rotary_head(8, 8, 1), rotary_head(8, 4, 2)
    found = us.audit(lambda X: one(X) + two(X), 8, recover=True)
    assert (found.target_class, found.certainty) == ("position-dependent", "certain")
    assert (found.recovery, found.cost) == (None, None)
    assert found.reasons[0].startswith("The whole target was not recovered")


def test_other_positions_are_named():
    biased = rotary_head(8, 4, 1, biases=0.3)
    K, Q = np.random.default_rng(0).standard_normal((2, 4, 8))
    head = us.SingleHead.from_factors(K, Q, np.ones(8))

    def alibi(X):
        scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ head.W.T)
        return answered(head, scores - 0.25 * np.arange(X.shape[1])[::-1], X)

    def short(X):
        if X.shape[1] == 64 and not np.any(X[:, -1]):
            raise ValueError("no token is 0")
        return biased(X)

    for target, said in (
        (hidden(biased), "with rotary=True and biases=True"),
        (alibi, "0.25 per token"),
        (short, "no attention without positions"),
    ):
        found = us.audit(target, 8, recover=True)
        assert (found.target_class, found.recovery) == ("position-dependent", None)
        assert said in found.reasons[-1]


@pytest.mark.parametrize("biases", [0.0, 0.3])
def test_a_layer_with_positions_is_left_to_the_learner_of_vectors(biases):
    layer = rotary_layer(16, 4, 2, 4, 0, biases=biases)
    found = us.audit(lambda X: layer(X), 16, recover=True)
    assert (found.target_class, found.certainty) == ("position-dependent", "certain")
    assert found.whole is not None
    assert (found.whole.model, found.whole.rotary) == ("attention-layer", True)
    assert "AttentionLayerLearner" in found.reasons[-1]
    assert "LowRankHead" not in found.reasons[-1]
    assert any("Nothing was recovered" in note for note in found.notes)
    target = Counted(layer)
    us.learn(target, us.learners.AttentionLayerLearner(16, rotary=True))
    assert found.whole.queries / 2 < target.queries < 2 * found.whole.queries
