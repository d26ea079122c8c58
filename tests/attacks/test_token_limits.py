"""A limit of tokens, or of their lengths, is no class: it is found, and kept to.

Targets in plain NumPy refuse sequences of more than 1 to 12, or 40, tokens with an exception of
their own. A refused question is no evidence: a softmax head that takes four tokens is a head.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.oracles.http_server import in_json, sequences, serving
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


# -- lengths of tokens


def capped(function: Any, longest: float, error: Any = ValueError, seen: Any = None) -> Any:
    """Refuse tokens longer than ``longest``; count in ``seen`` those that are."""

    def target(X: Any) -> Any:
        if np.linalg.norm(X, axis=2).max() > longest:
            seen.append(1) if seen is not None else None
            raise error(f"vectors longer than {longest:g} are refused")
        return function(X)

    return target


def within_a_radius(d: int) -> dict[str, tuple[str, Any]]:
    """Name learners that keep to a radius, with the class that each learns."""
    own, kept = us.learners, ("exact", "low-rank", "approximate", "multi-head", "antisymmetric")
    return {name: pair for name, pair in learners_of(d).items() if name in kept} | {
        "exact, biases": ("single head", own.ExactHead(d, biases=True)),
        "low-rank, biases": ("single head", own.LowRankHead(d, biases=True)),
        "sensing": ("single head", own.SensingHead(d, d)),
        "subspace": ("single head", own.OrthogonalHeads(d, [np.eye(d)])),
    }


@pytest.mark.few(7)
@pytest.mark.parametrize("name", within_a_radius(4))
@pytest.mark.parametrize("longest", [3.0, 100.0])  # met by the first questions, by the hold-out
def test_a_limit_of_lengths_is_found_and_kept(name, longest):
    """Met early or late: the run goes on, and says how far it looked; told, it asks no more."""
    d, rng, once = 4, np.random.default_rng([15, 1]), us.Retries(1)
    kind, learner = within_a_radius(d)[name]
    function, fresh = functions(d, rng)[kind], rng.standard_normal((20, 6, d))
    error, refused = (ValueError, RuntimeError)[int(longest) % 2], list[int]()
    found = us.learn(capped(function, longest, error, refused), learner, retries=once)
    assert refused
    refused.clear()
    told = us.learn(capped(function, longest, error, refused), learner, radius=longest)
    assert not refused
    for recovery in (found, told):
        assert recovery.evidence.passed
        expected = (
            function(fresh) - function(-fresh) if name == "antisymmetric" else function(fresh)
        )
        assert np.allclose(recovery.model(fresh), expected, atol=1e-6)
        lines = recovery.certificate.assumes
        kept = any(f"No token was longer than {longest:g} (2-norm)" in line for line in lines)
        assert kept or (recovery is told and name in ("approximate", "multi-head"))
        [said] = [line for line in lines if "Their keys had norms up to" in line]
        assert float(said.split("norms up to ")[1].split(" ")[0]) <= longest


@pytest.mark.few(4)
@pytest.mark.parametrize("status", [400, 500])
def test_an_endpoint_that_refuses_long_tokens_is_asked_shorter_ones(status, monkeypatch):
    monkeypatch.setattr(us.Retries, "pause", lambda self, failed: 0.0)
    function = functions(3, np.random.default_rng(5))["single head"]
    answered = in_json(function)

    def infer(handler: Any, body: bytes) -> None:
        longest = np.linalg.norm(sequences(body), axis=2).max()
        if longest > 30:
            handler.send(status, b"vectors longer than 30 are refused")
        else:
            answered(handler, body)

    with serving(infer) as (url, _):
        oracle = us.oracles.from_url(url)
        found = us.learn(oracle, us.learners.ExactHead(3), retries=2)
        assert found.evidence.passed
        assert any("No token was longer than 30" in line for line in found.certificate.assumes)
        with pytest.raises(us.TokensRefused) as refused:
            us.learn(oracle, us.learners.LabelHead(3, 24), retries=2)
    said = str(refused.value)
    assert f"answered {status}: vectors longer than 30 are refused. The target answers" in said
    assert said.index("vectors longer") < said.index("radius")


FAR: dict[str, Any] = {
    "labels": us.learners.LabelHead(4, 24),
    "subspaces": us.learners.OrthogonalHeads(4),
    "network": us.learners.ReluNetworkLearner(4),
    "transformer": us.learners.TransformerLearner(4),
    "heads before a network": us.learners.MultiHeadTransformerLearner(4, 2),
    "layer": us.learners.AttentionLayerLearner(4),
    "layer after a norm": us.learners.AttentionLayerLearner(4, norm="pre"),
    "feed-forward": us.learners.FeedForwardLearner(8),
    "block": us.learners.BlockLearner(16),
}


@pytest.mark.parametrize("name", FAR)
def test_a_learner_that_keeps_to_no_radius_says_so_before_it_asks(name):
    learner = FAR[name]
    target = Counted(capped(lambda X: X.sum(axis=(1, 2)), 30.0))
    with pytest.raises(ValueError, match=f"{type(learner).__name__} keeps to no radius: it asks"):
        us.learn(target, learner, radius=30.0)
    assert not target.queries
    with pytest.raises(us.OracleError) as refused:
        us.learn(target, learner, retries=us.Retries(1))
    assert not isinstance(refused.value, us.DimensionRefused)
    assert str(refused.value).startswith("ValueError: vectors longer than 30 are refused. ")
    assert "tokens up to norm 30" in str(refused.value)


def test_audit_finds_the_limit_of_lengths():
    function = functions(4, np.random.default_rng(3))["single head"]
    found = us.audit(capped(function, 30.0), 4)
    assert (found.target_class, found.answers["longest_token"]) == ("single head", 30.0)


def test_a_wrong_dimension_is_still_one():
    def of_five(X: Any) -> Any:
        if X.shape[2] != 5:
            raise ValueError(f"5 numbers per token, not {X.shape[2]}")
        return X.sum(axis=(1, 2))

    with pytest.raises(us.DimensionRefused, match=r"^ValueError: 5 numbers per token, not 4\."):
        us.learn(of_five, us.learners.ExactHead(4))


@pytest.mark.parametrize("kind", ["LowRankHead", "ExactHead"])
def test_biases_are_read_within_a_radius(kind, trials):
    for seed in range(trials(2, 100)):
        rng, d = np.random.default_rng([33, seed]), 6
        w = 0.2 * rng.standard_normal(d)
        head = us.SingleHead(rng.standard_normal((d, d)) / 2, rng.standard_normal(d), w)
        learner = getattr(us.learners, kind)(d, biases=True, seed=seed)
        recovery = us.learn(head, learner, radius=5)
        far = np.linalg.norm(recovery.model.W - head.W)
        assert far <= recovery.certificate.W_error <= 1e-9, seed
