"""What is softmax attention on a few tokens, and something else on many, is refused by name.

One learner per kind of answer is attacked, in `make evidence` every learner of `tests.laws` whose
target attends: register a learner there and it is attacked here. An impostor may be accepted only
where the certificate says that nobody looked so far, or where it is within the certificate.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.laws import CASES, KINDS, cases
from unsoftmax.models.attention import exponentials, token_scores

ATTEND = [case for case in CASES if hasattr(case.target(0), "W")]
FEW = (*KINDS, "LowRankHead, rank unknown", "TransformerLearner", "MultiHeadTransformerLearner")
attacked = cases(ATTEND, few=FEW)
without_labels = cases([case for case in ATTEND if not case.name.startswith("Label")], few=FEW)
drifted = cases([case for case in ATTEND if not case.name.startswith(("Label", "Approx"))], few=FEW)


def behind(target: Any, pooled: Any) -> Any:
    """What a target does with its pooled tokens (B, H, d)."""
    if isinstance(target, us.Transformer):
        return target.network(pooled[:, 0])
    if isinstance(target, us.MultiHeadTransformer):
        return target.network(pooled.reshape(len(pooled), -1))
    if isinstance(target, (us.SingleHead, us.MultiHead)):
        return np.einsum("bhd,hd->b", pooled, np.atleast_2d(target.v)) + target.c
    return pooled[:, 0] @ target.V.T + target.c


def scored(target: Any, X: Any) -> Any:
    """Scores (B, H, N)."""
    scores = token_scores(X, target.scores_of(X[:, -1]))
    return scores.reshape(len(X), -1, X.shape[1])


def attending(target: Any, change: Callable[[Any], Any], sink: float = -np.inf) -> Any:
    """The target with changed scores, and a token without a value at a score."""

    def answer(X: Any) -> Any:
        scores = change(scored(target, X))
        weights, total = exponentials(scores)
        rest = np.exp(np.minimum(sink - scores.max(axis=-1), 700.0))
        return behind(target, (weights / (total + rest)[..., None]) @ X)

    return answer


def window(width: int) -> Callable[[Any], Any]:
    def change(scores: Any) -> Any:
        far = np.arange(scores.shape[-1])[::-1] >= width
        return np.where(far, -np.inf, scores)

    return change


def largest(k: int) -> Callable[[Any], Any]:
    def change(scores: Any) -> Any:
        least = np.sort(scores, axis=-1)[..., -min(k, scores.shape[-1])]
        return np.where(scores < least[..., None], -np.inf, scores)

    return change


def alibi(scores: Any) -> Any:
    return scores - 0.1 * np.maximum(0, np.arange(scores.shape[-1])[::-1] - 8)


def hotter(scores: Any) -> Any:
    return scores * (1 + 0.1 * np.log(max(scores.shape[-1] / 32, 1.0)))


IMPOSTORS: dict[str, Callable[[Any], Any]] = {
    "window of 32": window(32),
    "window of 500": window(500),
    "largest 24": largest(24),
    "largest 400": largest(400),
    "temperature from token 33 on": hotter,
    "ALiBi from token 9 on": alibi,
    "scores clipped at 30": lambda scores: np.clip(scores, -30.0, 30.0),
}


def looked(recovery: Any) -> tuple[int, float]:
    """Up to which length, and up to which logits there, a certificate says that it was looked."""
    said = " ".join(recovery.certificate.assumes)
    found = re.search(r"had up to (\d+) tokens, and logits up to ([^:]+):", said)
    assert found, said
    return int(found[1]), float(found[2])


def vague(recovery: Any) -> bool:
    """A W that is hardly known tells no model from another: labels of one bit per parameter."""
    return bool(recovery.certificate.errors["W"] > 0.1 * np.linalg.norm(recovery.model.W))


@pytest.mark.few
@pytest.mark.parametrize("name", IMPOSTORS)
@attacked
def test_what_is_something_else_on_long_sequences_is_refused(case, name, trials, evidence):
    ends: Counter[str] = Counter()
    for seed in range(trials(1, 100)):
        impostor = case.oracle(attending(case.target(seed), IMPOSTORS[name]))
        try:
            recovery = us.learn(impostor, case.learner(seed))
        except (us.ModelMismatch, us.NotIdentifiable):
            ends["refused"] += 1
            continue
        one_bit = any("A label is one bit" in line for line in recovery.certificate.assumes)
        far = looked(recovery)[1] >= 30 and not one_bit
        assert vague(recovery) or ("clipped" in name and not far), seed
        ends["out_of_reach"] += 1
    evidence(f"not attention on long sequences: {name}, {case.name}", accepted=0, **ends)


@pytest.mark.few(4)
@pytest.mark.parametrize("sink", [-20.0, -25.0, -30.0])
@without_labels
def test_an_attention_sink_is_refused(case, sink, trials, evidence):
    """Or it takes nothing that answers show, as where no token's score comes near the sink's.

    A share that is taken from every token changes no label.
    """
    ends: Counter[str] = Counter()
    for seed in range(trials(1, 100)):
        target = case.target(seed)
        impostor = attending(target, lambda scores: scores, sink)
        try:
            recovery = us.learn(case.oracle(impostor), case.learner(seed))
        except (us.ModelMismatch, us.NotIdentifiable):
            ends["refused"] += 1
            continue
        X = np.random.default_rng(seed).standard_normal((100, 3, target.dim))
        X /= np.linalg.norm(X, axis=2).max()
        missed = np.max(np.abs(impostor(X) - target(X))) / np.max(np.abs(target(X)))
        assert missed < 1e-8, seed
        # single tokens scatter by what the sink takes: no less is assumed of the answers
        if "same share of the softmax" in recovery.certificate.assumes[0]:
            v = impostor(np.eye(target.dim)[:, None])
            target = us.SingleHead(target.W, v, target.w, target.c)
        # the toys of the tests say that answers are exact: nothing else is held to account
        exact = "Answers are rounded by float64 alone." in recovery.certificate.assumes
        assert exact or case.within(recovery, target), seed
        ends["unseen"] += 1
    evidence(f"attention sink at {sink:g}, {case.name}", broken=0, **ends)


def drifting(oracle: Any, share: float) -> Any:
    """Every answer is larger than the one before by a share."""
    asked = 0

    def answer(X: Any) -> Any:
        nonlocal asked
        y = np.asarray(oracle(X))
        numbers = asked + np.arange(len(X)).reshape(-1, *[1] * (y.ndim - 1))
        asked += len(X)
        return y * (1 + share * numbers)

    return answer


@pytest.mark.few
@pytest.mark.parametrize("share", [1e-14, 1e-12, 1e-10, 1e-8])
@drifted
def test_a_slow_drift_is_refused_or_within_the_certificate(case, share, trials, evidence):
    """Labels do not drift; answers that drift are not within a tolerance, nor exact as toys say."""
    ends: Counter[str] = Counter()
    for seed in range(trials(1, 50)):
        target = case.target(seed)
        try:
            recovery = us.learn(drifting(case.oracle(target), share), case.learner(seed))
        except (us.ModelMismatch, us.NotIdentifiable):
            ends["refused"] += 1
            continue
        said = any("do not drift" in line for line in recovery.certificate.assumes)
        assert said or case.within(recovery, target), seed
        ends["said" if said else "within"] += 1
    evidence(f"answers drift by {share:.0e} a query, {case.name}", broken=0, **ends)


def no_longer_than(oracle: Any, tokens: int) -> Any:
    """A target with a longest sequence, which says so."""

    def answer(X: Any) -> Any:
        if X.shape[1] > tokens:
            raise ValueError(f"maximal sequence length is {tokens}")
        return oracle(X)

    return answer


@pytest.mark.few
@pytest.mark.parametrize("tokens", [20, 64])
@attacked
def test_a_target_with_a_longest_sequence_is_learned(case, tokens, tmp_path, evidence):
    target = case.target(0)
    oracle = no_longer_than(case.oracle(target), tokens)
    ledger = tmp_path / "ledger"
    recovery = us.learn(oracle, case.learner(0), ledger=ledger, retries=1)
    assert recovery.evidence.passed
    assert case.within(recovery, target)
    assert looked(recovery)[0] <= tokens
    said = " ".join(recovery.certificate.assumes)
    assert vague(recovery) or "It did not answer those of" in said
    assert vague(recovery) or "512 tokens" in said
    again = us.learn(oracle, case.learner(0), ledger=ledger, retries=1)
    assert again.certificate == recovery.certificate
    evidence(f"a target of {tokens} tokens at most, {case.name}", refused=0, broken=0)


@pytest.mark.few(3)
@attacked
def test_the_hold_out_looks_as_far_as_it_says(case):
    """At 32 queries; at 0 it says that nothing was checked."""
    seen: list[Any] = []

    def watched(X: Any) -> Any:
        seen.append(X)
        return oracle(X)

    oracle = case.oracle(case.target(1))
    recovery = us.learn(watched, case.learner(1))
    tokens, logits = looked(recovery)
    assert tokens == max(X.shape[1] for X in seen)
    assert tokens == 512 or vague(recovery)
    assert logits > 0
    blind = us.learn(oracle, case.learner(1), holdout=0)
    assert "Fresh sequences" not in " ".join(blind.certificate.assumes)
