"""Llama's block from hidden states: rotary positions, groups, RMSNorms and SwiGLU.

Attention is a model that the learner does not see, what is around it plain NumPy (`tests.blocks`);
queries are counted at its side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.blocks import LlamaBlock, in_parts, whole_figures, with_scales
from tests.nearly_rotary import nearly_rotary
from tests.rotary_layers import largest_errors
from tests.truth import Counted
from unsoftmax.theory import counts

Learner = us.learners.BlockLearner
SHAPES = {(16, 4, 2, 4): 20, (16, 2, 1, 8): 20, (32, 4, 2, 8): 10}


def shares(model: Any, bounds: Any, block: LlamaBlock) -> float:
    """The largest share of its bound that an error of attention takes."""
    errors = largest_errors(model, block.truth())
    errors |= {"eps": abs(model.norm.eps - block.eps)}
    return float(max(errors[name] / bounds[name] for name in ("M", "W", "eps")))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_recovered_whatever_follows(shape, trials, evidence):
    few = int(shape == (16, 4, 2, 4))
    count, used, sizes, ratios = trials(few, SHAPES[shape]), [], [], []
    for seed in range(count):
        block = LlamaBlock.drawn(shape, seed, base=(1e4, 5e5)[seed % 2])
        oracle = Counted(block)
        recovery: Any = us.learn(oracle, Learner(shape[0], seed=seed))
        model, bounds = recovery.model, recovery.certificate.errors
        assert oracle.queries == recovery.queries
        assert not model.norm.centred
        assert isinstance(model, us.RotaryLayer)
        assert shape[1:3] == (model.H, model.G)
        assert "w" not in bounds
        used.append(shares(model, bounds, block))
        assert used[-1] <= 1, seed
        assert bounds["c"] == np.inf
        errors = largest_errors(model, block.truth())
        sizes.append([errors["M"], errors["W"]])
        asked = recovery.queries - recovery.counts["check"]
        typical = counts.rotary_block_attention_queries(*shape)
        # a second search asks all of it again
        assert typical <= asked <= 2 * typical + 30
        ratios.append(asked * shape[0] / block.numbers())
    if not count:
        return
    assert np.median(ratios) <= 6
    M, W = np.median(sizes, axis=0)
    assert max(M / 1e-10, W / 1e-7) <= 1
    evidence(
        f"attention of blocks with rotary positions {shape}",
        targets=count,
        broken=0,
        M=float(M),
        W=float(W),
        queries=f"{np.median(ratios):.1f} × the bound",
        median_looseness=f"{1 / np.median(used):.0f}×",
        refused=0,
    )


@pytest.mark.parametrize("spread", [3.0, 8.0])
@pytest.mark.parametrize("shape", [(16, 4, 2, 4), (16, 2, 1, 8)], ids=str)
@pytest.mark.few(1)
def test_norms_whose_scales_differ_widely(shape, spread, trials, evidence):
    """Own scores of far tokens grow with the square of a scale, and so do all scores."""
    count, used, asked = trials(1, 40), [], []
    for seed in range(count):
        block = with_scales(LlamaBlock.drawn(shape, seed), spread, seed)
        recovery: Any = us.learn(block, Learner(shape[0], seed=seed))
        assert shape[2] == recovery.model.G
        used.append(shares(recovery.model, recovery.certificate.errors, block))
        assert used[-1] <= 1, seed
        asked.append(recovery.queries - recovery.counts["check"])
    evidence(
        f"attention of blocks {shape}, a norm's scales from 1/{spread:.0f} to {spread:.0f}",
        targets=count,
        broken=0,
        median_queries=int(np.median(asked)),
        median_looseness=f"{1 / np.median(used):.0f}×",
        refused=0,
    )


# the last two: more gates to a number of an answer than a key's other tokens show
@pytest.mark.parametrize("shape", [(6, 2, 1, 2), (7, 1, 1, 4), (8, 4, 2, 2), (8, 4, 4, 2)], ids=str)
def test_attention_in_few_dimensions_is_recovered(shape):
    block = LlamaBlock.drawn(shape, 0)
    recovery: Any = us.learn(block, Learner(shape[0]))
    assert shares(recovery.model, recovery.certificate.errors, block) <= 1


@pytest.mark.parametrize(
    ("shape", "neurons", "seeds", "total"),
    [
        *in_parts(((8, 2, 1, 4), 6), 20, 10, few=True),
        *in_parts(((16, 2, 1, 8), 24), 20, 5),
        *in_parts(((16, 2, 2, 8), 24), 20, 5),
    ],
)
def test_whole_blocks_are_recovered(shape, neurons, seeds, total, trials, part_of_evidence):
    seeds = seeds[: trials(1, len(seeds))]
    used, functions, ratios = [], [], []
    for seed in seeds:
        block = LlamaBlock(LlamaBlock.drawn(shape, seed).attention, seed, neurons)
        oracle = Counted(block)
        recovery: Any = us.learn(oracle, Learner(shape[0], part="block", seed=seed))
        assert oracle.queries == recovery.queries
        attention, network = recovery.model.parts
        assert (network.activation, len(network.b)) == ("silu", neurons)
        bounds = recovery.certificate.errors
        named = {name: bounds[f"{name} of part 0"] for name in ("M", "W", "eps")}
        used.append(shares(attention, named, block))
        assert used[-1] <= 1, seed
        functions.append(far_of_function(recovery.model, block))
        assert functions[-1] <= 1e-7, seed
        asked = recovery.queries - recovery.counts["check"]
        ratios.append(asked * shape[0] / block.numbers(whole=True))
    part_of_evidence(
        f"whole blocks like Llama's {shape}, {neurons} gated neurons",
        total,
        len(seeds),
        whole_figures(functions, ratios, used),
    )


def far_of_function(model: Any, block: LlamaBlock) -> float:
    """The worst error of fresh sequences, relative to the largest answer of their kind."""
    rng, worst = np.random.default_rng(3), 0.0
    for tokens in (1, 2, 5, 17, 32):
        for size in (0.05, 0.3, 1.0, 4.0, 20.0):
            X = size * rng.standard_normal((8, tokens, block.dim))
            y = block(X)
            worst = max(worst, float(np.abs(model(X) - y).max() / np.abs(y).max()))
    return worst


# on the sphere, where tokens are after a norm, normalised queries are queries with another factor
NEARLY = sorted(set(nearly_rotary(LlamaBlock.drawn((8, 2, 1, 4), 0).attention)))
NEARLY.remove("queries normalised")


class Attention:
    """A function in the place of attention."""

    def __init__(self, answer: Any, dim: int) -> None:
        self.answer, self.dim = answer, dim

    def __call__(self, n: Any) -> Any:
        return self.answer(n)


@pytest.mark.parametrize("name", [*NEARLY, "key biases"])
def test_what_is_nearly_such_attention_is_refused(name, trials, evidence):
    few = name in ("a window", "key biases")
    count = trials(few, 20)
    for seed in range(count):
        block = LlamaBlock.drawn((8, 2, 1, 4), seed)
        other = LlamaBlock.drawn((8, 2, 1, 4), seed, biases=0.3).attention
        every = {**nearly_rotary(block.attention), "key biases": other}
        nearly = LlamaBlock(Attention(every[name], 8), seed)
        with pytest.raises(us.UnsoftmaxError) as refused:
            us.learn(nearly, Learner(8, seed=seed))
        reason = getattr(refused.value, "reason", "")
        assert reason in ("BLOCK_BY_PLACE", "POSITIONS_MATTER", "FRESH_ANSWERS_MISSED"), reason
    if count:
        evidence(f"no rotary attention of a block: {name}", targets=count, accepted=0)
