"""A KServe server of one attention head: python head_server.py head.npz [PORT].

The file holds W (d, d), v (d,) or, for answers that are vectors, (d, m), and, if there, w and c;
their type, float64 or float32, is what the server takes, computes in and answers.
"""

import asyncio
import sys

import numpy as np
from kserve import Model
from kserve.model_repository import ModelRepository
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.infer_type import InferRequest, InferResponse
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.protocol.rest.server import RESTServer
from kserve.utils.numpy_codec import from_np_dtype
from kserve.utils.utils import get_predict_response


class Head(Model):
    """A softmax attention head."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        with np.load(path) as arrays:
            self.W, self.v = arrays["W"], arrays["v"]
            self.w = arrays["w"] if "w" in arrays else np.zeros_like(self.W[0])
            self.c = arrays["c"].astype(self.v.dtype) if "c" in arrays else self.v.dtype.type(0)
        self.ready = True

    def get_input_types(self) -> list[dict]:
        """Sequences of vectors."""
        datatype = from_np_dtype(self.W.dtype)
        return [{"name": "X", "datatype": datatype, "shape": [-1, -1, len(self.W)]}]

    def get_output_types(self) -> list[dict]:
        """One number per sequence, or m; KServe's own helper names the tensor so."""
        shape = [-1, *self.v.shape[1:]]
        return [{"name": "output-0", "datatype": from_np_dtype(self.v.dtype), "shape": shape}]

    async def predict(
        self, payload: InferRequest, headers: object = None, response_headers: object = None
    ) -> InferResponse:
        """Answer a batch of sequences (B, N, d)."""
        X = payload.inputs[0].as_numpy()
        scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ self.W.T + self.w)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        answers = np.einsum("bn,bnd->bd", weights, X) @ self.v + self.c
        return get_predict_response(payload, answers, self.name)


def serve(path: str, port: int) -> None:
    """Serve the head on this machine alone: kserve.ModelServer would listen on all addresses."""
    models = ModelRepository()
    models.update(Head("head", path))
    app, extension = "kserve.model_server:app", ModelRepositoryExtension(models)
    server = RESTServer(app, DataPlane(models), extension, port)
    server.config.host = "127.0.0.1"
    asyncio.run(server.start())


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8080)
