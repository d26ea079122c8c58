"""What is softmax attention on a few tokens, and something else on many, is refused by name.

Every learner of `tests.laws` whose target attends is attacked: register a learner there and it is
attacked here. An impostor may be accepted only where the certificate says that nobody looked so
far, or where it is within the certificate all the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.laws import CASES
from unsoftmax.models.attention import exponentials, token_scores

ATTEND = [case for case in CASES if hasattr(case.target(0), "W")]
attacked = pytest.mark.parametrize("case", ATTEND, ids=lambda case: case.name)


def behind(target: Any, pooled: Any) -> Any:
    """What a target does with its pooled tokens (B, H, d)."""
    if isinstance(target, us.Transformer):
        return target.network(pooled[:, 0])
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
    found = re.search(r"of up to (\d+) tokens, logits there of up to ([^:]+):", said)
    assert found, said
    return int(found[1]), float(found[2])


@pytest.mark.parametrize("name", IMPOSTORS)
@attacked
def test_what_is_something_else_on_long_sequences_is_refused(case, name, trials, evidence):
    ends: Counter[str] = Counter()
    for seed in range(trials(2, 100)):
        impostor = case.oracle(attending(case.target(seed), IMPOSTORS[name]))
        try:
            recovery = us.learn(impostor, case.learner(seed))
        except (us.ModelMismatch, us.NotIdentifiable):
            ends["refused"] += 1
            continue
        assert "clipped" in name, seed
        assert looked(recovery)[1] < 30, seed
        ends["out_of_reach"] += 1
    evidence(f"{name}, {case.name}", **ends)
