"""Attention that is something else where keys, or query tokens, are long: refused, or said.

Scores saturate with the length of a token: a longer one scores as if it had that length, a cousin
of QK-norm. Logits alone do not show it: keys as long as query tokens are short have the same. An
impostor may be accepted only where the certificate says that no token so long was looked at.
"""

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.attacks.test_sequences_that_are_longer import ATTEND, FEW, behind
from tests.laws import cases
from unsoftmax.models.attention import exponentials, token_scores

without_labels = cases([case for case in ATTEND if not case.name.startswith("Label")], few=FEW)
LAYERS = ("plain", "residual", "post", "rotary")


def shortened(X: Any, most: float) -> Any:
    """Tokens, those longer than ``most`` as long as that."""
    length = np.linalg.norm(X, axis=-1, keepdims=True)
    return X / np.maximum(1, length / most)


def looked(recovery: Any, learner: Any) -> dict[str, float]:
    """How long keys and query tokens were, as a certificate says; of ids all their vectors."""
    if (table := getattr(learner, "table", None)) is not None:
        longest = float(np.linalg.norm(table.vectors, axis=1).max())
        return {"keys": longest, "queries": longest}
    said = " ".join(recovery.certificate.assumes)
    found = re.search(r"keys had norms up to (\S+) and their query tokens up to (\S+):", said)
    assert found, said
    return {"keys": float(found[1]), "queries": float(found[2])}


def of_case(target: Any, most: float, which: str) -> Any:
    """A target of `tests.laws` whose scores saturate with the length of keys, or of queries."""

    def answer(X: Any) -> Any:
        keys = shortened(X, most) if which == "keys" else X
        query = shortened(X[:, -1], most) if which == "queries" else X[:, -1]
        scores = token_scores(keys, target.scores_of(query))
        weights, total = exponentials(scores.reshape(len(X), -1, X.shape[1]))
        return behind(target, (weights / total[..., None]) @ X)

    return answer


def layer(kind: str, dim: int, seed: int, most: float, which: str) -> Any:
    """A layer of two heads in plain NumPy."""
    rng = np.random.default_rng([seed, 31])
    heads, rank = 2, 4 if kind == "rotary" else 3
    O, V = rng.standard_normal((heads, dim, rank)), rng.standard_normal((heads, rank, dim))  # noqa: E741
    K, Q = 2**0.5 * rng.standard_normal((2, heads, rank, dim)) / (dim * rank) ** 0.25
    bias, c = rng.standard_normal((heads, rank)) / 3, rng.standard_normal(dim)
    scale, shift = 1 + 0.3 * rng.standard_normal(dim), 0.1 * rng.standard_normal(dim)

    def turned(x: Any, place: Any) -> Any:
        angle = np.multiply.outer(place, [1.0, 0.01])
        x, y = x[..., :2], x[..., 2:]
        c, s = np.cos(angle), np.sin(angle)
        return np.concatenate([x * c - y * s, x * s + y * c], axis=-1)

    def answer(X: Any) -> Any:
        keys = shortened(X, most) if which == "keys" else X
        query = shortened(X[:, -1], most) if which == "queries" else X[:, -1]
        k, q = np.einsum("bnd,hrd->bhnr", keys, K), np.einsum("bd,hrd->bhr", query, Q)
        if kind == "rotary":
            k, q = turned(k, np.arange(X.shape[1])), turned(q, X.shape[1] - 1)
        else:
            q = q + bias
        scores = np.einsum("bhnr,bhr->bhn", k, q)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        pooled = (weights / weights.sum(axis=2, keepdims=True)) @ X
        y = c + np.einsum("hor,hrd,bhd->bo", O, V, pooled) / np.sqrt(dim * rank * heads)
        if kind in ("residual", "post"):
            y = y + X[:, -1]
        if kind == "post":
            y = y - y.mean(axis=1, keepdims=True)
            y = scale * y / np.sqrt(np.mean(y**2, axis=1, keepdims=True) + 1e-12) + shift
        return y

    return answer


def tried(ends: Counter[str], impostor: Any, learner: Any, most: float, which: str) -> None:
    """Learn an impostor; count how it ends."""
    try:
        recovery = us.learn(impostor, learner)
    except (us.ModelMismatch, us.NotIdentifiable):
        ends["refused"] += 1
        return
    # the longest looked at is a little longer than what it shows of a limit
    reach = looked(recovery, learner)
    assert most > 0.9 * reach[which], (most, reach)
    ends["out_of_reach"] += 1


@pytest.mark.few
@pytest.mark.parametrize("which", ["keys", "queries"])
@without_labels
def test_scores_that_saturate_with_lengths_are_refused_or_said(case, which, trials, evidence):
    ends: Counter[str] = Counter()
    for seed in range(trials(1, 100)):
        most = float(10 ** np.random.default_rng([seed, 8]).uniform(0, 4))
        impostor = case.oracle(of_case(case.target(seed), most, which))
        tried(ends, impostor, case.learner(seed), most, which)
    evidence(f"scores saturate with the length of {which}, {case.name}", accepted=0, **ends)


@pytest.mark.parametrize("which", ["keys", "queries"])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_whose_scores_saturate_are_refused_or_said(kind, which, trials, evidence):
    ends: Counter[str] = Counter()
    for seed in range(trials(1, 500)):
        most = float(10 ** np.random.default_rng([seed, 9]).uniform(0.5, 4))
        dim = 16 if kind == "post" else 8
        settings = {"rotary": True} if kind == "rotary" else {"norm": "none"}
        settings = {"norm": "post"} if kind == "post" else settings
        learner = us.learners.AttentionLayerLearner(dim, seed=seed, **settings)
        if not seed:
            # the same layer whose scores do not saturate is one
            assert us.learn(layer(kind, dim, seed, np.inf, which), learner).evidence.passed
        tried(ends, layer(kind, dim, seed, most, which), learner, most, which)
    evidence(f"scores saturate with the length of {which}, {kind} layer", accepted=0, **ends)


@pytest.mark.parametrize("learner", [us.learners.LowRankHead, us.learners.ApproximateHead])
def test_small_scores_that_saturate_far_out_are_not_taken_for_none(learner, trials, evidence):
    """Answers within a tolerance are asked for at keys of 10³⁰, where such scores are 0."""
    count, refused = trials(10, 500), 0
    for seed in range(count):
        rng = np.random.default_rng([seed, 66])
        d, tolerance, most = rng.integers(2, 9), 10 ** rng.uniform(-9, -2), 10 ** rng.uniform(4, 12)
        W = 10 ** rng.uniform(-16, -10) * rng.standard_normal((d, d)) / d
        v = rng.standard_normal(d)

        def impostor(
            X: Any, W: Any = W, v: Any = v, most: Any = most, unit: Any = tolerance
        ) -> Any:
            scores = np.einsum("bnd,bd->bn", shortened(X, most), X[:, -1] @ W.T)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            return 2 * unit * np.round(np.sum(weights * (X @ v), axis=1) / (2 * unit))

        try:
            recovery = us.learn(impostor, learner(int(d), tolerance=float(tolerance), seed=seed))
        except us.UnsoftmaxError:
            refused += 1
            continue
        assert np.linalg.norm(recovery.model.W - W) <= recovery.certificate.errors["W"], seed
    name = learner.__name__
    evidence(f"small scores that saturate far out, {name}", runs=count, broken=0, refused=refused)
