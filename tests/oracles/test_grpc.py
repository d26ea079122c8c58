"""A real MLServer on loopback, asked over gRPC."""

import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

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


@contextmanager
def serving(model, longest, status):
    """Serve a model in this process; tokens longer than ``longest`` are refused with a status."""
    import grpc
    from tritonclient.grpc import service_pb2 as messages
    from tritonclient.grpc import service_pb2_grpc as service

    Tensor = messages.ModelMetadataResponse.TensorMetadata

    class Servicer(service.GRPCInferenceServiceServicer):  # type: ignore[misc]
        def ModelMetadata(self, request, context):
            return messages.ModelMetadataResponse(
                name=request.name,
                inputs=[Tensor(name="x", datatype="FP64", shape=[-1, -1, DIM])],
                outputs=[Tensor(name="y", datatype="FP64", shape=[-1])],
            )

        def ModelInfer(self, request, context):
            X = np.frombuffer(request.raw_input_contents[0]).reshape(request.inputs[0].shape)
            if np.linalg.norm(X, axis=2).max() > longest:
                context.abort(grpc.StatusCode[status], f"vectors longer than {longest} are refused")
            y = model(X)
            out = messages.ModelInferResponse.InferOutputTensor(
                name="y", datatype="FP64", shape=y.shape
            )
            return messages.ModelInferResponse(outputs=[out], raw_output_contents=[y.tobytes()])

    server = grpc.server(ThreadPoolExecutor(2))
    service.add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield us.oracles.from_grpc(f"grpc://127.0.0.1:{port}/head")
    finally:
        server.stop(None)


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "INTERNAL", "UNKNOWN"])
def test_a_limit_of_lengths_is_found_and_kept(status, monkeypatch):
    monkeypatch.setattr(us.Retries, "pause", lambda self, failed: 0.0)
    with serving(head(0), 3, status) as oracle:
        recovery = us.learn(oracle, us.learners.ExactHead(DIM, biases=True), retries=2)
        assert us.equivalent(recovery.model, head(0), rtol=1e-9)
        assert any("No token was longer than 3" in said for said in recovery.certificate.assumes)
        with pytest.raises(us.TokensRefused, match="vectors longer than 3 are refused"):
            us.learn(oracle, us.learners.LabelHead(DIM, 24), retries=2)
