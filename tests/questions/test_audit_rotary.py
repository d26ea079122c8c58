"""`us.audit` of targets with positions: rotary heads are recovered, others are named."""

import numpy as np
import pytest

import unsoftmax as us
from tests.commands import run
from tests.nearly_rotary import answered
from tests.rotary_heads import rotary_head, within_bounds
from tests.rotary_layers import rotary_layer
from tests.truth import Counted, hidden


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
        median_queries=np.median(queries),
    )


SEVERAL = {
    "one with biases": (1, 0.3, 0.2),
    "one with a constant": (1, 0.0, 0.2),
    "four with biases": (4, 0.3, 0.2),
    "four with a constant": (4, 0.0, 0.2),
    "four alone": (4, 0.0, 0.0),
}


def several_heads(H, biases, c, seed, d=16, r=4):
    heads = [rotary_head(d, r, 100 * seed + h, biases=biases) for h in range(H)]
    return us.RotaryHeads.of(heads, d, c)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SEVERAL)
def test_heads_with_biases_and_several_are_recovered(name, trials, evidence):
    H, biases, c = SEVERAL[name]
    queries = []
    for seed in range(count := trials(1, 25)):
        target = several_heads(H, biases, c, seed)
        found = us.audit(hidden(target), 16)
        simple = not biases and not c
        assert (found.target_class, found.whole) == ("position-dependent", None)
        assert found.cost is not None
        tried = "LowRankHead" if simple else "MultiHeadLearner"
        assert found.cost.learner["learner"] == tried
        assert "if it is one head of rank 16" in found.cost.counted
        assert "H(2dr + 3r + 2d + 16) + d + 40" in found.cost.counted
        whole = us.audit(hidden(target), 16, recover=True)
        assert whole.recovery is not None
        assert whole.certainty == "certain"
        told = {"rotary": 1, "heads": H, "rank": 4, "biases": int(not simple)}
        assert (dict(whole.facts), whole.notes) == (told, ())
        assert whole.cost is not None
        assert whole.cost.counted == ""
        asked, most = whole.queries - found.queries, 3 if simple else 2  # one head is tried first
        assert whole.cost.queries / 1.4 < asked < most * whole.cost.queries
        assert us.equivalent(whole.recovery.model, target, errors=whole.recovery.certificate.errors)
        queries.append(whole.queries)
    evidence(
        f"audit, rotary heads recovered, {name}, d = 16, r = 4",
        recovered=f"{count} of {count}",
        median_queries=np.median(queries),
    )


def test_a_recovery_of_several_heads_keeps_to_its_budget():
    """One head is afforded, and refused; what several typically take is not left then."""
    found = us.audit(hidden(several_heads(4, 0.0, 0.0, 0)), 16, recover=True, budget=1200)
    assert (found.afforded, found.recovery) == (False, None)
    assert found.queries < 1200
    assert found.reasons[0].startswith("Not one head with rotary positions and without biases: ")
    assert found.cost is not None
    assert found.cost.learner["learner"] == "MultiHeadLearner"


def test_positions_that_are_not_rotary_are_refused_with_a_reason():
    rng = np.random.default_rng(0)
    head = us.SingleHead(rng.standard_normal((8, 8)) / 3, rng.standard_normal(8))
    added = 0.5 * rng.standard_normal((1024, 8))
    found = us.audit(lambda X: head(X + added[: X.shape[1]]), 8, recover=True)
    assert (found.target_class, found.certainty) == ("position-dependent", "certain")
    assert (found.recovery, found.cost) == (None, None)
    assert found.reasons[0].startswith("The whole target was not recovered")
    assert any("the first reason says why" in note for note in found.notes)


def test_coarser_answers_of_heads_with_biases_are_not_asked_in_vain():
    target = several_heads(1, 0.3, 0.2, 0)
    found = us.audit(lambda X: target(X).astype(np.float32).astype(float), 16, recover=True)
    assert (found.recovery, found.cost) == (None, None)
    assert found.queries < 200
    assert any("only from float64 answers" in note for note in found.notes)


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
        (alibi, "0.25 per token"),
        (short, "attention without positions never does"),
    ):
        found = us.audit(target, 8, recover=True)
        assert (found.target_class, found.recovery) == ("position-dependent", None)
        assert said in found.reasons[-1]
        assert any("These positions, or these answers" in note for note in found.notes)


@pytest.mark.parametrize("biases", [0.0, 0.3])
def test_a_layer_with_positions_is_left_to_the_learner_of_vectors(biases):
    layer = rotary_layer(16, 4, 2, 4, 0, biases=biases)
    found = us.audit(lambda X: layer(X), 16, recover=True)
    assert (found.target_class, found.certainty) == ("position-dependent", "certain")
    assert found.whole is not None
    assert (found.whole.model, found.whole.rotary) == ("attention-layer", True)
    assert "AttentionLayerLearner" in found.reasons[-1]
    assert "LowRankHead" not in found.reasons[-1]
    assert any("AttentionLayerLearner with rotary=True recovers" in note for note in found.notes)
    target = Counted(layer)
    us.learn(target, us.learners.AttentionLayerLearner(16, rotary=True))
    assert found.whole.queries / 2 < target.queries < 2 * found.whole.queries


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("heads", "model", "known"),
    [
        ((1, 0.0, 0.0), "low-rank --rotary", "rotary yes, rank 4"),
        ((1, 0.3, 0.2), "multi-head --rotary --biases --max-heads 16", "heads 1"),
        ((4, 0.3, 0.2), "multi-head --rotary --biases --max-heads 16", "heads 4"),
        ((4, 0.0, 0.2), "multi-head --rotary --biases --max-heads 16", "heads 4"),
    ],
)
def test_the_command_says_what_it_takes_and_does_it(heads, model, known, tmp_path):
    count, biases, c = heads
    several_heads(count, biases, c, 0).save(tmp_path / "heads.safetensors")
    words = ("audit", "heads.safetensors", "--out", "out", "--no-report")
    done = run(tmp_path, *words)
    said = " ".join(done.stdout.replace("│", " ").split())
    assert done.returncode == 0, done.stderr
    assert f"recovering it ({model})" in said
    assert "if it is one head of rank 16" in said
    assert f"Next: unsoftmax {' '.join(words)} --recover" in done.stdout
    done = run(tmp_path, *words, "--recover")
    assert done.returncode == 0, done.stderr
    assert known in " ".join(done.stdout.replace("│", " ").split())
    assert (tmp_path / "out" / "model.safetensors").is_file()
