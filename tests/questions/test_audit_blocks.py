"""Audit names whole pre-norm blocks, and nothing else so; the services are written apart."""

import numpy as np
import pytest

import unsoftmax as us
from tests.block_services import claimed, draw, served
from tests.commands import run

D = 32


def block(kind, blocks, seed, folder, precise):
    """A block, or a few, of OPT's, Llama's or Qwen3's, in float64 or in float32."""
    state = draw(kind, blocks, seed)
    return claimed(kind, state, folder) if precise else served(kind, state)


@pytest.mark.few
@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("kind", ["opt", "llama", "qwen3"])
def test_whole_blocks_are_named(kind, blocks, precise, trials, evidence, tmp_path):
    count = trials(2, 50)
    for seed in range(count):
        found = us.audit(block(kind, blocks, seed, tmp_path, precise), D, seed=seed)
        assert (found.target_class, found.certainty) == ("whole block", "likely"), seed
        assert found.queries <= 160
        ordered = "order of tokens counts" in found.reasons[0]
        assert ordered == (kind != "opt" or blocks > 1)
        assert (found.whole is not None) == (precise and not ordered)
    what = "float64" if precise else "float32"
    of = f"{blocks} whole block{'s' * (blocks > 1)} like {kind}'s"
    evidence(f"audit, {of}, {what}, named", runs=count, named=count)


def parts(seed):
    """What is no whole block, and what it is called."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape) / np.sqrt(shape[-1])

    norm = us.LayerNorm(np.exp(normal(6) / 2), normal(6), 1e-5, before=True)
    heads = [us.LayerHead(normal(6, 6), normal(6, 6)) for _ in range(2)]
    plain = us.FeedForward(normal(12, 6), normal(12), normal(6, 12), normal(6), True, None, "gelu")
    tanh = us.FeedForward(normal(12, 6), normal(12), normal(6, 12), normal(6), True, None, "tanh")
    behind = us.LayerNorm(np.ones(6), np.zeros(6), 1e-5)
    attention = us.AttentionLayer(heads, normal(6), residual=True)
    before = us.AttentionLayer(heads, normal(6), residual=True, norm=norm)
    bare = us.AttentionLayer(heads, normal(6), residual=False, norm=norm)
    return {
        "attention": attention,
        "attention after a norm": before,
        "the same without a residual": bare,
        "attention before neurons without norms": us.Stack([attention, plain]),
        "the same with tanh": us.Stack([attention, tanh]),
        "a block with its norms behind": us.Stack([before, behind]),
        "neurons": plain,
        "a square root": lambda X: X[:, -1] * (1 + np.abs(X.mean(axis=(1, 2)))[:, None]) ** -0.5,
    }


def test_nothing_else_is_called_a_block(trials):
    for seed in range(trials(1, 50)):
        for name, target in parts(seed).items():
            found = us.audit(target, 6, seed=seed)
            assert found.target_class != "whole block", (seed, name)


def test_the_commands_for_a_block_are_named(tmp_path):
    for kind, learned in (("opt", True), ("llama", False)):
        claimed(kind, draw(kind, 1, 0), tmp_path / kind)
        path = tmp_path / kind / "model.safetensors"
        us.from_checkpoint(tmp_path / kind / "model.npz").save(path)
        done = run(tmp_path, "audit", path, "--out", tmp_path / f"{kind}.out")
        assert done.returncode == 0, done.stderr
        lines = {line.partition(" unsoftmax ")[0]: line for line in done.stdout.splitlines()}
        assert ("Next:" in lines) == learned
        if learned:
            assert "--model block --dim 32 --part block" in lines["Next:"]
        words = lines["Does it serve your weights?"].partition(" unsoftmax ")[2].split()
        weights = tmp_path / kind / "model.npz"
        given = {"CHECKPOINT": weights, "K": "0"}
        done = run(tmp_path, *(given.get(word, word) for word in words))
        assert done.returncode == 0, done.stderr
