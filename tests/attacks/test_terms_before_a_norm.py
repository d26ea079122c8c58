"""Terms in raw tokens beside a layer after a norm: what a norm makes of tokens does not show them.

A learner of such a layer asks tokens of about √eps, whose images fill the ball that the norm maps
to. Terms that grow with the tokens themselves show only where these are long: refused, or within
what the certificate promises of predictions.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest

import unsoftmax as us

TERMS = {
    "the sum of all tokens": lambda X: X.sum(axis=1),
    "the first token": lambda X: X[:, 0],
    "squares of keys": lambda X: np.sum(X[:, :-1] ** 2, axis=1),
    "none": lambda X: 0 * X[:, 0],
}


def layer(dim: int, seed: int, share: float, term: str, residual: bool, eps: float) -> Any:
    """A layer of two heads after a LayerNorm or RMSNorm, and a term, in plain NumPy."""
    rng = np.random.default_rng([seed, 6])
    heads, rank, centred = 2, 3, bool(seed % 2)
    O, V = rng.standard_normal((heads, dim, rank)), rng.standard_normal((heads, rank, dim))  # noqa: E741
    K, Q = rng.standard_normal((2, heads, rank, dim)) / dim**0.25
    bias, c = rng.standard_normal((heads, rank)) / 3, rng.standard_normal(dim)
    scale, shift = 1 + 0.3 * rng.standard_normal(dim), 0.1 * rng.standard_normal(dim)

    def answer(X: Any) -> Any:
        x = X - X.mean(axis=2, keepdims=True) if centred else X
        x = scale * x / np.sqrt(np.mean(x**2, axis=2, keepdims=True) + eps) + shift * centred
        keys, query = np.einsum("bnd,hrd->bhnr", x, K), np.einsum("bd,hrd->bhr", x[:, -1], Q)
        scores = np.einsum("bhnr,bhr->bhn", keys, query + bias)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        pooled = (weights / weights.sum(axis=2, keepdims=True)) @ x
        y = c + np.einsum("hor,hrd,bhd->bo", O, V, pooled) / np.sqrt(dim * rank * heads)
        return y + share * TERMS[term](X) + residual * X[:, -1]

    return answer


@pytest.mark.parametrize("term", TERMS)
def test_terms_in_raw_tokens_are_refused_or_within_the_certificate(term, trials, evidence):
    ends: Counter[str] = Counter()
    for seed in range(trials(2, 500)):
        rng = np.random.default_rng([seed, 60])
        share, eps = 10 ** rng.uniform(-11, -3), 10 ** rng.uniform(-12, -4)
        target = layer(6, seed, share, term, bool(rng.integers(2)), eps)
        try:
            recovery = us.learn(target, us.learners.AttentionLayerLearner(6, norm="pre", seed=seed))
        except (us.ModelMismatch, us.NotIdentifiable):
            ends["refused"] += 1
            continue
        X = rng.standard_normal((40, 6, 6)) * 10 ** rng.uniform(-1, 1, (40, 1, 1))
        missed = np.linalg.norm(recovery.model(X) - target(X), axis=1)
        # beside what a fresh answer may be missed by, as the certificate says
        allowed = recovery.model.moved_at_most(X, recovery.certificate.errors)
        allowed += recovery.evidence.tolerance * np.linalg.norm(target(X), axis=1)
        assert np.all(missed <= allowed), seed
        ends["within"] += 1
    assert term != "none" or ends["within"] == ends.total()
    refused = ends.pop("refused", 0)
    evidence(f"a layer after a norm and a term, {term}", broken=0, refused=refused, **ends)


OF_SINGLE_TOKENS = {
    "the token": lambda x: x,
    "its square": lambda x: x * x,
    "its length": lambda x: np.linalg.norm(x, axis=1, keepdims=True),
    "none": lambda x: 0 * x,
}


def feed_forward(dim: int, seed: int, share: float, term: str, eps: float) -> Any:
    """A layer of ReLUs after a LayerNorm or RMSNorm, and a term, in plain NumPy."""
    rng = np.random.default_rng([seed, 7])
    neurons, centred, residual = dim + 3, bool(seed % 2), bool(seed // 2 % 2)
    A, b = rng.standard_normal((neurons, dim)) / np.sqrt(dim), rng.standard_normal(neurons) / 2
    B, c = rng.standard_normal((dim, neurons)) / np.sqrt(neurons), rng.standard_normal(dim)
    scale = 1 + 0.3 * rng.standard_normal(dim)

    def answer(X: Any) -> Any:
        x = X[:, -1]
        n = x - x.mean(axis=1, keepdims=True) if centred else x
        n = scale * n / np.sqrt(np.mean(n**2, axis=1, keepdims=True) + eps)
        y = np.maximum(n @ A.T + b, 0) @ B.T + c
        return y + share * OF_SINGLE_TOKENS[term](x) + residual * x

    return answer


@pytest.mark.few(2)
@pytest.mark.parametrize("term", OF_SINGLE_TOKENS)
def test_terms_beside_feed_forward_layers(term, trials, evidence):
    ends: Counter[str] = Counter()
    for seed in range(trials(1, 125)):
        rng = np.random.default_rng([seed, 70])
        share, eps = 10 ** rng.uniform(-16, -3), 10 ** rng.uniform(-12, -4)
        target = feed_forward(6, seed, share, term, eps)
        try:
            recovery = us.learn(target, us.learners.FeedForwardLearner(6, norm="pre", seed=seed))
        except (us.ModelMismatch, us.NotIdentifiable):
            ends["refused"] += 1
            continue
        x = rng.standard_normal((40, 6)) * 10 ** rng.uniform(-1, 1, (40, 1))
        missed = np.linalg.norm(recovery.model(x[:, None]) - target(x[:, None]), axis=1)
        # beside what a fresh answer may be missed by, as the certificate says
        allowed = recovery.model.moved_at_most(x, recovery.certificate.errors)
        allowed += recovery.evidence.tolerance * np.linalg.norm(target(x[:, None]), axis=1)
        # few of these tokens switch a neuron that may be missing
        assert np.mean(missed <= allowed) >= 0.9, seed
        ends["within"] += 1
    refused = ends.pop("refused", 0)
    evidence(f"neurons after a norm and a term, {term}", broken=0, refused=refused, **ends)
