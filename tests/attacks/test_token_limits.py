"""A limit of tokens is no class: audit finds it, and names what answers within it show.

Targets in plain NumPy refuse sequences of more than 1 to 12, or 40, tokens with an exception of
their own. A refused question is no evidence: a softmax head that takes four tokens is a head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.truth import Counted

LIMITS = (1, 2, 3, 4, 5, 8, 9, 11, 12, 40)
FORMS: dict[str, Callable[[Any], Any]] = {
    "float64": lambda y: y,
    "float32": lambda y: y.astype(np.float32),
    "five decimals": lambda y: y.round(5),
}


def attention(X: Any, W: Any, V: Any) -> Any:
    """Add up heads: (B, N, d) → (B, m), V (H, m, d)."""
    y = 0.0
    for scores, values in zip(W, V, strict=True):
        s = np.einsum("bnd,de,be->bn", X, scores, X[:, -1])
        weights = np.exp(s - s.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        y = y + np.einsum("bn,bnd,md->bm", weights, X, values)
    return y


def functions(d: int, rng: Any) -> dict[str, Callable[[Any], Any]]:
    """Draw a target of every class by its name, (B, N, d) → (B,)."""
    W = rng.standard_normal((3, d, d)) * np.exp(rng.uniform(-0.7, 0.7)) / np.sqrt(d)
    v, V = rng.standard_normal((3, 1, d)), rng.standard_normal((3, d, d)) / np.sqrt(d)
    A, a, b = rng.standard_normal((8, d)), rng.standard_normal(8) / 2, rng.standard_normal(8)

    def hinges(x: Any) -> Any:
        return np.maximum(x @ A.T / np.sqrt(d) + a, 0) @ b

    return {
        "linear": lambda X: X.mean(axis=1) @ v[0, 0] + 0.3,
        "single head": lambda X: attention(X, W[:1], v[:1])[:, 0],
        "several heads": lambda X: attention(X, W, v)[:, 0],
        "ReLU network": lambda X: hinges(X[:, -1]),
        "network behind one head": lambda X: hinges(attention(X, W[:1], V[:1])),
    }


def limited(function: Any, form: Any, most: int) -> Any:
    """Refuse more tokens than ``most``."""

    def target(X: Any) -> Any:
        if X.shape[1] > most:
            raise ValueError(f"at most {most} tokens per request; got {X.shape[1]}")
        return form(function(X))

    return target


def test_a_limit_of_tokens_is_a_fact_and_no_class(trials, evidence):
    seen: Counter[str] = Counter()
    count = trials(6, 500)
    for seed in range(count):
        rng = np.random.default_rng([31, 8, seed])
        d, most = int(rng.integers(4, 11)), LIMITS[seed % len(LIMITS)]
        made = functions(d, rng)
        name = list(made)[seed // 2 % len(made)]
        form = list(FORMS)[int(rng.choice(3, p=[0.6, 0.2, 0.2]))]
        target = limited(made[name], FORMS[form], most)
        result = us.audit(target, d, recover=bool(seed % 3), seed=seed)
        said = (seed, name, form, most, result.target_class, result.reasons)
        assert result.facts["most_tokens"] == most, said
        if most == 1:  # attention answers single tokens as something else does
            assert result.certainty != "certain", said
            assert any("refuses sequences of two tokens" in note for note in result.notes), said
            continue
        if result.target_class not in (name, "undecided"):  # as without a limit: coarse networks
            free = us.audit(limited(made[name], FORMS[form], 1000), d, seed=seed)
            assert form != "float64", said
            assert result.target_class == free.target_class == "none of these", said
            seen["as_without_a_limit"] += 1
            continue
        seen["undecided" if result.target_class == "undecided" else "named"] += 1
        if result.target_class == "undecided" and form == "float64":
            assert most < 4, said
        if result.certainty == "certain":
            X, recovery = rng.standard_normal((50, most, d)), result.recovery
            assert recovery is not None, said
            asked = X[:, -1:] if name == "ReLU network" else X
            assert np.allclose(recovery.model(asked), made[name](X)), said
    assert seen["named"] > count / 2
    evidence(
        "Audit of targets that take 1 to 40 tokens",
        runs=count,
        other_class=0,
        limit_found=count,
        **seen,
    )


def learners_of(d: int) -> dict[str, tuple[str, Any]]:
    """Name learners of every kind of answer, with the class that each learns."""
    own = us.learners
    return {
        "exact": ("single head", own.ExactHead(d)),
        "low-rank": ("single head", own.LowRankHead(d)),
        "approximate": ("single head", own.ApproximateHead(d, 1e-9)),
        "labels": ("single head", own.LabelHead(d, 24)),
        "multi-head": ("several heads", own.MultiHeadLearner(d)),
        "antisymmetric": ("single head", own.Antisymmetric(own.ExactHead(d))),
        "transformer": ("network behind one head", own.TransformerLearner(d)),
    }


@pytest.mark.few(6)
@pytest.mark.parametrize("name", [*learners_of(4), "layer"])
@pytest.mark.parametrize("most", [4, 8])
def test_a_limit_that_is_met_late_shrinks_the_hold_out(name, most):
    """The run goes on and says how far it looked; told before, it asks nothing that is refused."""
    d, rng = 4, np.random.default_rng([15, most])
    made = functions(d, rng)
    if name == "layer":
        W, V = rng.standard_normal((2, 2, d, d)) / 2
        function, learner = (lambda X: attention(X, W, V)), us.learners.AttentionLayerLearner(d)
    else:
        kind, learner = learners_of(d)[name]
        function = made[kind]
    form = (lambda y: y > 0) if name == "labels" else FORMS["float64"]
    found = us.learn(Counted(limited(function, form, most)), learner)
    told = Counted(limited(function, form, most))
    within = us.learn(told, learner, most_tokens=most)
    assert told.queries == within.queries <= found.queries  # none was refused, or asked again
    for recovery in (found, within):
        assert recovery.evidence.passed
        [said] = [line for line in recovery.certificate.assumes if "Fresh sequences had" in line]
        longest = int(said.split("up to ")[1].split(" tokens")[0])
        assert 3 <= longest <= most
        assert "It did not answer those of" in said


def test_a_learner_that_needs_more_tokens_quotes_the_target_first():
    d, rng = 4, np.random.default_rng(2)
    target = limited(functions(d, rng)["several heads"], FORMS["float64"], 3)
    with pytest.raises(us.OracleError) as refused:
        us.learn(target, us.learners.MultiHeadLearner(d))
    assert str(refused.value).startswith("ValueError: at most 3 tokens per request; got 4. ")
    assert "this learner needs 4" in str(refused.value)
    with pytest.raises(us.OracleError, match="the limit is most_tokens = 3"):
        us.learn(target, us.learners.MultiHeadLearner(d), most_tokens=3)


@pytest.mark.parametrize("learner", [us.learners.ExactHead(4), us.learners.MultiHeadLearner(4)])
def test_long_tokens_that_are_refused_are_no_wrong_dimension(learner):
    rng = np.random.default_rng(3)
    function = functions(4, rng)["single head"]

    def capped(X: Any) -> Any:
        if np.linalg.norm(X, axis=2).max() > 30:
            raise ValueError("vectors longer than 30 are refused")
        return function(X)

    with pytest.raises(us.OracleError) as refused:
        us.learn(capped, learner)
    assert not isinstance(refused.value, us.DimensionRefused)
    assert str(refused.value).startswith("ValueError: vectors longer than 30 are refused. ")
    assert "radius=…" in str(refused.value)
    # the advice works
    advised = us.learners.MultiHeadLearner(4, radius=30.0)
    assert us.learn(capped, advised).evidence.passed
    found = us.audit(capped, 4)
    assert (found.target_class, found.answers["longest_token"]) == ("single head", 30.0)


def test_a_wrong_dimension_is_still_one():
    def of_five(X: Any) -> Any:
        if X.shape[2] != 5:
            raise ValueError(f"5 numbers per token, not {X.shape[2]}")
        return X.sum(axis=(1, 2))

    with pytest.raises(us.DimensionRefused, match=r"^ValueError: 5 numbers per token, not 4\."):
        us.learn(of_five, us.learners.ExactHead(4))
