"""A real KServe on loopback, serving the head of examples/kserve: tensors in JSON and binary."""

import os
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from tests.oracles.servers import DIM, Server, free_port, head, learned_across_a_kill
from unsoftmax.oracles.open_inference import answer, request

KSERVE = os.environ.get("KSERVE", "")
pytestmark = pytest.mark.skipif(not KSERVE, reason="KSERVE names no Python that has kserve")
httpx = pytest.importorskip("httpx", reason="the extra http")

EXAMPLE = Path(__file__).parents[2] / "examples" / "kserve" / "head_server.py"


@pytest.fixture
def server(tmp_path):
    port = free_port()
    running = Server(tmp_path, [KSERVE, str(EXAMPLE), "head.npz", str(port)], port)
    yield running
    running.kill()


def test_a_served_head_is_recovered_in_binary(server):
    """Its metadata does not name the extension: the first answer does."""
    server.serve_head(head(0))
    extensions = httpx.get(server.root).json()["extensions"]
    assert "binary_tensor_data" not in extensions
    oracle = us.oracles.from_url(server.url)
    assert oracle.dim == DIM
    assert not oracle.signature.binary
    recovery = us.learn(oracle, us.learners.ExactHead(DIM, biases=True), workers=4, batch=16)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)
    assert oracle.signature.binary
    with pytest.raises(us.OracleError, match="answered 404"):
        us.oracles.from_url(f"{server.root}/models/absent")
    with pytest.raises(us.OracleError, match="no output other, but output-0"):
        us.oracles.from_url(server.url, output="other")


def numbers(dtype):
    """Numbers of every size, as one-token sequences."""
    info, rng = np.finfo(dtype), np.random.default_rng(0)
    drawn = rng.standard_normal((64, DIM)) * 10.0 ** rng.integers(-30, 30, (64, DIM))
    drawn[0, :4] = info.max, -info.max, info.tiny, info.smallest_subnormal
    return drawn.astype(dtype)[:, None]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_bit_comes_and_goes(server, dtype):
    """W = 0 and values that are the tokens: a single token is its own answer."""
    server.serve(W=np.zeros((DIM, DIM), dtype), v=np.eye(DIM, dtype=dtype))
    oracle, X = us.oracles.from_url(server.url), numbers(dtype)
    assert oracle.signature.datatype == {np.float64: "FP64", np.float32: "FP32"}[dtype]
    plain, to = httpx.post, oracle.signature
    body, headers = request(X, to)
    in_json = plain(f"{server.url}/infer", content=body.replace(b"true", b"false"), headers=headers)
    assert "Inference-Header-Content-Length" not in in_json.headers
    asked_in_json = oracle(X)
    assert oracle.signature.binary
    asked_in_binary = oracle(X)
    for y in (answer(in_json.content, in_json.headers, to), asked_in_json, asked_in_binary):
        assert y.dtype == dtype
        assert np.array_equal(y, X[:, 0])


def test_answers_that_are_vectors(server):
    rng = np.random.default_rng(0)
    W, v = rng.standard_normal((DIM, DIM)) / 4, rng.standard_normal((DIM, 3))
    server.serve(W=W, v=v)
    oracle = us.oracles.from_url(server.url)
    recovery = us.learn(oracle, us.learners.AttentionLayerLearner(DIM))
    layer = us.AttentionLayer([us.LayerHead(v.T, W)], np.zeros(3))
    assert us.equivalent(recovery.model, layer, rtol=1e-9)
    one = us.learn(us.oracles.coordinate(oracle, 1), us.learners.ExactHead(DIM))
    assert us.equivalent(one.model, us.SingleHead(W, v[:, 1]), rtol=1e-10)


def test_a_server_that_is_killed_and_restarted_mid_run(server):
    server.serve_head(head(0))
    learned_across_a_kill(server)
