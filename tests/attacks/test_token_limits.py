"""A limit of tokens is no class: audit finds it, and names what answers within it show.

Targets in plain NumPy refuse sequences of more than 1 to 12, or 40, tokens with an exception of
their own. A refused question is no evidence: a softmax head that takes four tokens is a head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import unsoftmax as us

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
    count = trials(10, 500)
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
            assert form == "five decimals", said
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
