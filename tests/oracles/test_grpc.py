"""A real MLServer on loopback, asked over gRPC."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest

import unsoftmax as us
from tests.oracles.servers import DIM, EXAMPLE, MLSERVER, head, mlserver

pytest.importorskip("tritonclient", reason="the extra grpc")


@pytest.fixture
def served(tmp_path):
    if not MLSERVER:
        pytest.skip("MLSERVER names no installed mlserver")
    running = mlserver(shutil.copytree(EXAMPLE, tmp_path / "served"))
    running.serve_head(head(0))
    port = json.loads((running.folder / "settings.json").read_text())["grpc_port"]
    yield running, f"grpc://127.0.0.1:{port}/head"
    running.kill()


def test_a_head_is_recovered_and_verified(served):
    server, url = served
    oracle = us.oracles.from_grpc(url)
    assert oracle.dim == DIM
    over_http = us.oracles.from_url(server.url)
    X = np.random.default_rng(0).standard_normal((3, 4, DIM))
    np.testing.assert_array_equal(oracle(X), over_http(X))
    learner = us.learners.ExactHead(DIM, biases=True)
    recovery = us.learn(oracle, learner, workers=4, batch=16)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(oracle))(X), oracle(X))
    assert us.verify(oracle, head(0))


def test_what_does_not_answer_is_named(served):
    server, url = served
    with pytest.raises(us.OracleError, match="NOT_FOUND"):
        us.oracles.from_grpc(f"{url}-absent")
    oracle = us.oracles.from_grpc(url, limits=us.oracles.HttpLimits(timeout_s=5))
    with pytest.raises((us.OracleError, ConnectionError), match=r"answered [A-Z_]+: \w"):
        oracle(np.ones((1, 1, DIM + 1)))
    server.kill()
    with pytest.raises((ConnectionError, TimeoutError)):
        oracle(np.ones((1, 1, DIM)))


@pytest.mark.parametrize(
    "url", ["grpc://host/head", "grpc://host:1", "http://host:1/head", "grpc://u:p@host:1/head"]
)
def test_what_is_no_models_url_is_refused(url):
    with pytest.raises(ValueError, match="must be grpc"):
        us.oracles.from_grpc(url)
