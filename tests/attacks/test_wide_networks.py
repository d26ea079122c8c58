"""Networks and Transformers whose weights are round, sparse or spread over six decades.

A right target is refused in 1 of 500 cases at most, and no certificate is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.networks import attack, worst_share
from tests.truth import Counted

# -- networks: A (d, m), w_o and b over six decades, by neuron or by entry; round numbers

Parts = tuple[Any, Any, Any]


def spread(rng: Any, *shape: int) -> Any:
    return 10.0 ** rng.uniform(-3, 3, shape)


def by_neuron(rng: Any, d: int, m: int) -> Parts:
    A = rng.standard_normal((d, m)) * spread(rng, m)
    return A, rng.standard_normal(m) * spread(rng, m), rng.standard_normal(m)


def by_entry(rng: Any, d: int, m: int) -> Parts:
    A = rng.standard_normal((d, m)) * spread(rng, d, m)
    return A, rng.standard_normal(m) * spread(rng, m), rng.standard_normal(m)


def by_bias(rng: Any, d: int, m: int) -> Parts:
    A, (w_o, b) = rng.standard_normal((d, m)), rng.standard_normal((2, m))
    return A, w_o, b * spread(rng, m)


def integers(rng: Any, d: int, m: int) -> Parts:
    A, (w_o, b) = rng.integers(-3, 4, (d, m)), rng.integers(-3, 4, (2, m))
    return A.astype(float), w_o.astype(float), b * 10.0 ** rng.integers(0, 6)


def signs(rng: Any, d: int, m: int) -> Parts:
    A = rng.choice([-1.0, 1.0], (d, m)) * (rng.random((d, m)) < 0.7)
    return A, rng.choice([-1.0, 1.0], m), rng.choice([-1.0, 0.0, 1.0], m)


NETWORKS: dict[str, Callable[[Any, int, int], Parts]] = {
    family.__name__: family for family in (by_neuron, by_entry, by_bias, integers, signs)
}


@pytest.mark.parametrize("biases", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("name", NETWORKS)
def test_wide_networks(name, biases, trials, evidence):
    def share_at(seed: int) -> float:
        rng = np.random.default_rng([seed, biases, *map(ord, name)])
        d, m = int(rng.integers(1, 18)), int(rng.integers(1, 21))
        A, w_o, b = NETWORKS[name](rng, d, m)
        target = us.ReluNetwork(A, w_o, b if biases else None, 0.3 * biases)
        learner = us.learners.ReluNetworkLearner(d, biases=biases, seed=seed)
        recovery = us.learn(lambda X: target(X), learner)
        return worst_share(recovery, target, 1e12)

    family = f"wide, {name.replace('_', ' ')}"
    claim = f"ReLU network, {family}, {'with' if biases else 'without'} biases"
    attack(claim, trials(15, 2000), share_at, evidence)


# -- Transformers: W of every shape, beside a query bias and without


SCORES: dict[str, Callable[[Any, int], Any]] = {
    "zero": lambda rng, d: np.zeros((d, d)),
    "one entry": lambda rng, d: np.outer(*np.eye(d)[rng.integers(d, size=2)]),
    "permutation": lambda rng, d: np.eye(d)[rng.permutation(d)],
    "nilpotent": lambda rng, d: np.eye(d, k=1),
    "skew": lambda rng, d: (lambda M: M - M.T)(rng.standard_normal((d, d))),
    "rank 1": lambda rng, d: np.outer(*rng.standard_normal((2, d))) / d,
    "tiny": lambda rng, d: 1e-6 * rng.standard_normal((d, d)),
    "huge": lambda rng, d: 1e6 * rng.standard_normal((d, d)),
}


def attacked(target: us.Transformer, learner: Any) -> float:
    """Return the largest share of its bound that any part takes."""
    recovery = us.learn(Counted(lambda X: target(X)), learner)
    errors, model = recovery.certificate.errors, recovery.model
    missed = {
        name: float(np.linalg.norm(getattr(model, name) - getattr(target, name))) for name in "Ww"
    }
    shares = [missed[name] / errors[name] for name in "Ww" if missed[name]]
    network = us.Recovery(model.network, *_rest_of(recovery))
    shares.append(float(worst_share(network, target.network, 1e12)))
    return max(shares)


def _rest_of(recovery: Any) -> tuple[Any, ...]:
    return tuple(getattr(recovery, name) for name in recovery.__dataclass_fields__)[1:]


@pytest.mark.parametrize("biases", [True, False], ids=["query biases", "no query biases"])
@pytest.mark.parametrize("name", SCORES)
def test_W_of_any_shape(name, biases, trials, evidence):
    def share_at(seed: int) -> float:
        rng = np.random.default_rng([seed, biases, *map(ord, name)])
        d, m = int(rng.integers(1, 8)), int(rng.integers(2, 14))
        A, (w_o, b) = rng.standard_normal((d, m)) / np.sqrt(d), rng.standard_normal((2, m))
        w = 10.0 ** rng.uniform(-2, 1) * rng.standard_normal(d) if biases else None
        target = us.Transformer(SCORES[name](rng, d), us.ReluNetwork(A, w_o, b, 0.3), w)
        head = us.learners.ExactHead(d, biases=biases)
        learner = us.learners.TransformerLearner(
            d, head=head, anchored=bool(rng.integers(2)), seed=seed
        )
        return attacked(target, learner)

    claim = f"Transformer, W {name}, {'with' if biases else 'without'} query biases"
    attack(claim, trials(10, 500), share_at, evidence)


@pytest.mark.parametrize("name", ["by_neuron", "by_entry"])
def test_transformers_over_six_decades(name, trials, evidence):
    def share_at(seed: int) -> float:
        rng = np.random.default_rng([seed, 7, *map(ord, name)])
        d, m = int(rng.integers(1, 8)), int(rng.integers(1, 14))
        W = 10.0 ** rng.uniform(-3, 3) * rng.standard_normal((d, d)) / np.sqrt(d)
        target = us.Transformer(W, us.ReluNetwork(*NETWORKS[name](rng, d, m), 0.3))
        learner = us.learners.TransformerLearner(d, anchored=bool(rng.integers(2)), seed=seed)
        return attacked(target, learner)

    claim = f"Transformer, network over six decades {name.replace('_', ' ')}"
    attack(claim, trials(15, 2000), share_at, evidence)
