"""Theorem 4.1 as written never hides a logit that left float64: recovered within bounds or refused.

Its probes are not scaled, so a large entry of W saturates a logit, and a small entry of v loses
digits. Targets of wide families, at hold-outs down to none.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.plain_layers import normalised

SCORES: dict[str, Callable[[int, Any], Any]] = {
    "generic": lambda d, rng: rng.standard_normal((d, d)),
    "any size": lambda d, rng: 10.0 ** rng.uniform(-6, 3) * rng.standard_normal((d, d)),
    "uneven columns": lambda d, rng: rng.standard_normal((d, d)) * 10.0 ** rng.uniform(-3, 2, d),
    "uneven": lambda d, rng: rng.standard_normal((d, d)) * 10.0 ** rng.uniform(-3, 2, (d, d)),
    "permutation": lambda d, rng: np.eye(d)[rng.permutation(d)] * 10.0 ** rng.uniform(-3, 2),
    "integers": lambda d, rng: rng.integers(-3, 4, (d, d)) * rng.choice([1.0, 10.0]),
}
VALUES: tuple[Callable[[int, Any], Any], ...] = (
    lambda d, rng: rng.standard_normal(d),
    lambda d, rng: rng.choice([-1.0, 1.0], d),
    lambda d, rng: np.where(np.arange(d) * (rng.random(d) < 0.5), 0.0, rng.standard_normal(d)),
    lambda d, rng: 10.0 ** rng.uniform(-6, 0, d),
)


@pytest.mark.parametrize("scores", SCORES)
def test_recovered_within_bounds_or_refused_by_name(scores, trials, evidence):
    seen: Counter[str] = Counter()
    count = trials(4, 2000)
    for seed in range(count):
        rng = np.random.default_rng([4, seed])
        d = int(rng.choice([1, 2, 3, 5, 8]))
        target = us.SingleHead(SCORES[scores](d, rng), VALUES[seed % 4](d, rng))
        learner = us.learners.ExactHead(d, probes="paper-unit", seed=seed)
        try:
            recovery = us.learn(target, learner, holdout=int(rng.choice([0, 2, 32])))
        except us.NotIdentifiable as refusal:
            seen["refused"] += 1
            v = refusal.determined["v"]
            assert np.allclose(v, target.v, rtol=0, atol=1e-12 * np.linalg.norm(target.v))
            # what is refused has a logit that float64 cannot tell from hard attention
            assert np.max(np.abs(target.W)) > 5 or np.min(np.abs(target.v)) < 1e-3, seed
            continue
        for name, bound in recovery.certificate.errors.items():
            assert np.linalg.norm(getattr(recovery.model, name) - getattr(target, name)) <= bound
        seen["recovered"] += 1
    assert seen["recovered"] > count / 3
    evidence(
        f"Theorem 4.1 as written, unit scales, W {scores}",
        runs=count,
        broken=0,
        refused=seen["refused"],
    )


# -- feed-forward layers whose sum before a norm is known up to a factor: eps has no bound then


class PlainNeurons:
    """Norm(x + B relu(A x + b) + c + L x) in plain NumPy, L of any rank."""

    def __init__(self, seed: int, linear: bool) -> None:
        rng = np.random.default_rng([42, seed])
        self.dim = d = int(rng.choice([8, 10, 12]))
        m, rank = int(rng.choice([6, 12, 16])), int(rng.choice([1, 2, d])) if linear else 0
        self.A, self.b = rng.standard_normal((m, d)), rng.standard_normal(m)
        self.B, self.c = rng.standard_normal((d, m)) / np.sqrt(m), 0.3 * rng.standard_normal(d)
        L = rng.standard_normal((d, rank)) @ rng.standard_normal((rank, d)) / d
        self.L = rng.choice([0.1, 1.0, 3.0]) * L
        self.scale, self.shift = 1 + 0.3 * rng.standard_normal(d), 0.1 * rng.standard_normal(d)
        self.eps = 10.0 ** rng.uniform(-20, -2)

    def __call__(self, X: Any) -> Any:
        x = X[:, -1]
        u = x + np.maximum(x @ self.A.T + self.b, 0.0) @ self.B.T + self.c + x @ self.L.T
        return normalised(u, self.scale, self.shift, self.eps)


@pytest.mark.parametrize("linear", [False, True])
def test_eps_is_within_its_bound_or_has_none(linear, trials, evidence):
    """Answers are within what the certificate says of them, whatever eps and the unit are."""
    count, refused, told, loose = trials(3, 500), 0, 0, []
    for seed in range(count):
        target = PlainNeurons(seed, linear)
        try:
            learner = us.learners.FeedForwardLearner(target.dim, norm="post", seed=seed)
            recovery = us.learn(target, learner)
        except us.UnsoftmaxError:
            refused += 1
            continue
        model: Any = recovery.model
        errors = recovery.certificate.errors
        assert np.isfinite([errors[name] for name in ("eps", "c", "A")]).all() == (not linear), seed
        apart = {
            "eps": abs(model.norm.eps - target.eps),
            "c": np.linalg.norm(model.c - target.c + target.c.mean()),
            "scale": np.linalg.norm(model.norm.scale - target.scale),
            "shift": np.linalg.norm(model.norm.shift - target.shift),
        }
        assert all(apart[name] <= errors[name] for name in apart), (seed, apart, errors)
        told += bool(errors["eps"] < target.eps)
        rng = np.random.default_rng([44, seed])
        x = rng.standard_normal((100, target.dim)) * 10.0 ** rng.uniform(-9, 4, (100, 1))
        missed = np.linalg.norm(target(x[:, None]) - model(x), axis=1)
        allowed = model.moved_at_most(x, errors)
        rounding = 1e-14 * target.dim * (1 + np.abs(target.shift).max())
        assert np.all(missed <= allowed + rounding), (seed, np.max(missed / allowed))
        loose.append(np.max(missed / allowed))
    evidence(
        f"eps behind a norm, {'a linear part' if linear else 'neurons alone'}",
        runs=count,
        broken=0,
        bounded_below_its_size=told,
        largest_share_of_what_answers_may_miss=max(loose),
        refused=refused,
    )


def test_a_scale_beside_a_linear_part_is_positive():
    """More than −x is added here: x has a negative share of the sum, of which no sign is told."""
    target = PlainNeurons(435, linear=True)
    learner = us.learners.FeedForwardLearner(target.dim, norm="post", seed=435)
    recovery = us.learn(target, learner)
    norm: Any = recovery.model.norm
    apart = np.linalg.norm(norm.scale - target.scale)
    assert apart <= recovery.certificate.errors["scale"]
    assert any("mostly positive" in one for one in recovery.certificate.assumes)
