"""A server right for float32 numbers alone does not serve the weights; one that rounds inputs does.

`verify` asks half of its questions with all bits of float64. A service may round its inputs to
float32 and is right all the same; a deceiver recognises inputs that float32 holds exactly, answers
these with the claimed weights, and all others with weights of its own.
"""

from collections import Counter
from typing import Any

import numpy as np

import unsoftmax as us
from tests.questions import layer_services, services
from tests.rotary_layers import rotary_layer

CLAIMS: dict[str, Any] = {
    "heads": lambda rng: services.heads(rng, wide=1.0),
    "network": services.network,
    "before a network": services.transformer,
    "layer": lambda rng: layer_services.any_layer(rng, wide=1.0),
    "feed-forward": lambda rng: layer_services.any_feed_forward(rng, wide=1.0),
    "rotary layer": lambda rng: rotary_layer(8, 4, 2, 4, int(rng.integers(2**31))),
}


def single(X: Any) -> Any:
    """Round to float32 numbers."""
    return X.astype(np.float32).astype(np.float64)


def in_float32(model: Any) -> Any:
    """Inputs and answers are float32 numbers; between them float64, or float32 where a test can."""
    if isinstance(model, (us.SingleHead, us.MultiHead)):
        return services.served(model, np.float32)
    if isinstance(model, (us.AttentionLayer, us.FeedForward)):
        return layer_services.served(model, np.float32)
    return lambda X: model(single(X)).astype(np.float32)


SERVICES: dict[str, Any] = {
    "float64": lambda model: model,
    "inputs rounded to float32": lambda model: lambda X: model(single(X)),
    "float32": in_float32,
}


def deceiver(right: Any, wrong: Any) -> Any:
    """Answer what float32 holds exactly by one function, everything else by another."""

    def answer(X: Any) -> Any:
        exact = np.all(single(X) == X, axis=(1, 2))
        y = np.array(right(X))
        if not exact.all():
            y[~exact] = wrong(X[~exact])
        return y

    return answer


def drawn(seed: int) -> tuple[str, str, Any, Any]:
    rng = np.random.default_rng([31, 9, seed])
    name, how = list(CLAIMS)[seed % len(CLAIMS)], list(SERVICES)[seed // len(CLAIMS) % 3]
    return name, how, CLAIMS[name](rng), rng


def ordinary(claim: Any, rng: Any, seed: int) -> Any:
    """Inputs as a user has them, for every other seed."""
    return rng.standard_normal((40, 6, claim.dim)) if seed % 2 else None


def test_right_services_are_never_different(trials, evidence):
    seen: Counter[str] = Counter()
    count = trials(18, 600)
    for seed in range(count):
        name, how, claim, rng = drawn(seed)
        like = ordinary(claim, rng, seed // 18)
        found = us.verify(SERVICES[how](claim), claim, locate=False, seed=seed, like=like)
        assert found.verdict != "different", (seed, name, how, found)
        seen[found.verdict] += 1
    assert seen["same"] > 0.8 * count
    evidence("Verify, right services that round inputs or do not", runs=count, different=0, **seen)


def test_who_is_right_for_float32_inputs_alone_is_different(trials, evidence):
    count = trials(12, 510)
    for seed in range(count):
        name, how, claim, rng = drawn(seed)
        like = ordinary(claim, rng, seed // 18)
        arrays = claim.arrays().items()
        # where W is 0 a share of it is nothing
        matrices = tuple(part for part, x in arrays if x.ndim > 1 and np.any(x)) or ("v",)
        other = services.changed(claim, matrices, services.moved(0.3), rng)
        right, wrong = SERVICES[how](claim), SERVICES[how](other)
        found = us.verify(deceiver(right, wrong), claim, locate=False, seed=seed, like=like)
        assert found.verdict == "different", (seed, name, how, found)
    evidence("Verify, right for float32 inputs alone", runs=count, different=count)
