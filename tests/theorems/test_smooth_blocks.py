"""Whole pre-norm blocks of GELUs and of SwiGLU, from hidden states alone.

Truth is plain NumPy (`tests.blocks`); queries are counted at its side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import unsoftmax as us
from tests.blocks import PlainBlock
from tests.truth import Counted

# Numbers of tokens of fresh sequences, and sizes of their entries.
TOKENS, SIZES = (1, 2, 5, 17, 32), (0.05, 0.3, 1.0, 4.0, 20.0)


def learn(block: PlainBlock, seed: int) -> tuple[Any, int]:
    oracle = Counted(block)
    learner = us.learners.BlockLearner(block.dim, part="block", seed=seed)
    recovery = us.learn(oracle, learner)
    assert oracle.queries == recovery.queries
    return recovery, recovery.queries - recovery.counts["check"]


def far_of_function(model: us.Stack, block: PlainBlock) -> float:
    """The worst error of fresh sequences, relative to the largest answer of their kind."""
    rng, worst = np.random.default_rng(3), 0.0
    for tokens in TOKENS:
        for size in SIZES:
            X = size * rng.standard_normal((8, tokens, block.dim))
            y = block(X)
            worst = max(worst, float(np.abs(model(X) - y).max() / np.abs(y).max()))
    return worst


def far_of_parameters(model: us.Stack, block: PlainBlock) -> dict[str, float]:
    """Errors of c of attention, and of what is behind it, as bounds count them."""
    d = block.dim
    P = np.eye(d) - (not block.rms) * np.ones((d, d)) / d
    (scale, shift), layer = (both[1] for both in (block.scales, block.shifts)), model.parts[1]
    assert isinstance(layer, us.FeedForward)
    A, b, B = block.A * scale @ P, block.a + block.A @ shift, block.B
    pairs = [("A", layer.A, A), ("b", layer.b, b), ("B", layer.B.T, B.T)]
    first = layer.A, A
    if layer.gate is not None:
        G, g = block.G * scale @ P, block.g + block.G @ shift
        pairs += [("G", layer.gate[0], G), ("g", layer.gate[1], g)]
        first = layer.gate[0], G
    mine, its = linear_sum_assignment(np.linalg.norm(first[0][:, None] - first[1], axis=2))
    factor = np.ones(len(b))
    if layer.gate is not None:
        factor = np.sqrt(np.linalg.norm(B, axis=0) / np.linalg.norm(A, axis=1))
        factor[its] *= np.sign(np.sum(layer.A[mine] * A[its], axis=1))
    power = {"A": 1, "b": 1, "B": -1}
    errors = {}
    for name, found, true in pairs:
        scaled = (true.T * factor ** power.get(name, 0)).T
        errors[f"{name} of part 1"] = float(np.linalg.norm(found[mine] - scaled[its]))
    assert layer.norm is not None
    errors["eps of part 1"] = abs(layer.norm.eps - block.eps)
    adds = sum(out @ (v + V @ block.shifts[0]) for out, V, v in zip(*of_values(block), strict=True))
    c = block.o_bias + adds
    errors["c of part 0"] = float(np.linalg.norm(P @ (model.parts[0].arrays()["c"] - c)))
    return errors


def of_values(block: PlainBlock) -> tuple[Any, Any, Any]:
    return block.O, block.V, block.v_bias


@pytest.mark.parametrize(
    ("F", "neurons", "activation", "few", "most"),
    [("gelu", 32, "gelu", 1, 8.0), ("swiglu", 24, "silu", 0, 9.5)],
    ids=str,
)
def test_blocks_of_smooth_neurons_are_recovered(
    F, neurons, activation, few, most, trials, evidence
):
    count, shares, functions, queries = trials(few, 20), [], [], []
    for seed in range(count):
        block = PlainBlock((16, 2, 8), seed, F=F, neurons=neurons, rms=bool(seed % 2))
        recovery, asked = learn(block, seed)
        model, bounds = recovery.model, recovery.certificate.errors
        assert isinstance(model, us.Stack)
        layer: Any = model.parts[1]
        assert (layer.activation, layer.gate is not None) == (activation, F == "swiglu")
        assert len(layer.b) == neurons
        errors = far_of_parameters(model, block)
        shares.append(max(far / bounds[name] for name, far in errors.items()))
        assert shares[-1] <= 1, (seed, errors)
        assert recovery.evidence.passed
        functions.append(far_of_function(model, block))
        assert functions[-1] <= 1e-7, seed
        d, k = block.dim, block.dim - (not block.rms)
        numbers = neurons * (1 + (F == "swiglu")) * (k + 1) + neurons * d + d
        queries.append(asked / (block.bound + numbers / d))
    if not count:
        return
    assert np.median(queries) <= most
    evidence(
        f"whole blocks of {F} (16, 2 heads, {neurons})",
        targets=count,
        broken=0,
        function=float(max(functions)),
        queries=f"{np.median(queries):.1f} × the bound",
        median_looseness=f"{1 / np.median(shares):.0f}×",
        refused=0,
    )


def test_few_neurons_and_other_eps_of_the_second_norm():
    """Eight neurons show what attention adds in few directions of one ray."""
    block = PlainBlock((8, 1, 4), 0, F="gelu", neurons=5)
    norm = block.norm

    def other(x: Any, which: int) -> Any:
        block.eps = (1e-5, 2e-3)[which]
        return norm(x, which)

    block.norm = other  # type: ignore[method-assign]
    recovery, _ = learn(block, 0)
    layer = recovery.model.parts[1]
    assert layer.norm.eps == pytest.approx(2e-3, rel=1e-9)
    assert far_of_function(recovery.model, block) <= 1e-7


def test_what_no_learner_reads_is_refused_with_the_attention_that_was(trials):
    for seed in range(trials(1, 20)):
        block = PlainBlock((8, 1, 4), seed, F="mixture")
        with pytest.raises(us.ModelMismatch) as refused:
            learn(block, seed)
        assert refused.value.reason == "BLOCK_FOLLOWED_BY_OTHER"
        attention = refused.value.determined["attention"]
        assert np.allclose(attention.heads[0].M, block.truth()["M"][0], rtol=0, atol=1e-9)
