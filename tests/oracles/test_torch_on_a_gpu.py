"""Layers of torch on a GPU: what float32 and TF32 arithmetic there leave of a recovery."""

from typing import Any

import numpy as np
import pytest

import unsoftmax as us

torch = pytest.importorskip("torch", reason="the extra torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)


class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Attention of torch with random weights and biases."""

    def __init__(self, d, heads, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.attention = torch.nn.MultiheadAttention(d, heads, batch_first=True)
        torch.nn.init.normal_(self.attention.in_proj_weight, std=1.5 / np.sqrt(d))
        for bias in (self.attention.in_proj_bias, self.attention.out_proj.bias):
            torch.nn.init.normal_(bias, std=0.1)

    def forward(self, X):
        return self.attention(X[:, -1:], X, X, need_weights=False)[0][:, -1]


def drawn(d, heads, seed):
    """A layer, and what it is."""
    layer = Layer(d, heads, seed).eval()
    arrays = us.find_projections(layer.state_dict())
    exact: Any = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}
    return layer, us.from_projections(**exact, heads=heads)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("d", "heads"), [(16, 2), (64, 4)])
def test_layers_on_a_gpu_are_recovered_within_their_certificates(d, heads, dtype, trials, evidence):
    shares, off, queries, count = [], [], [], trials(1, 40)
    for seed in range(count):
        module, truth = drawn(d, heads, seed)
        oracle = us.oracles.from_torch(module.to("cuda", getattr(torch, dtype)))
        recovery = us.learn(oracle, us.learners.AttentionLayerLearner(d, seed=seed))
        X = np.random.default_rng(seed).standard_normal((200, 12, d)) / 2
        y = truth(X)
        missed = np.linalg.norm(recovery.model(X) - y, axis=1)
        allowed = recovery.model.moved_at_most(X, recovery.certificate.errors)
        shares.append(np.max(missed / (allowed + 1e-13)))
        off.append(np.max(missed / np.linalg.norm(y, axis=1)))
        queries.append(recovery.queries)
    assert max(shares) < 1
    assert max(off) < (1e-2 if dtype == "float32" else 1e-9)
    evidence(
        f"a layer of {heads} heads of torch on a GPU, d = {d}, {dtype}",
        layers=count,
        queries=np.median(queries),
        sequences=f"{np.median(off):.0e}, at most {max(off):.0e}",
        of_what_bounds_allow=max(shares),
        gpu=torch.cuda.get_device_name(0),
    )


def test_tf32_is_named():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        module, _ = drawn(64, 4, 0)
        with pytest.raises(us.ModelMismatch, match="fewer bits than it answers with, as TF32"):
            us.learn(
                us.oracles.from_torch(module.to("cuda")), us.learners.AttentionLayerLearner(64)
            )
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
