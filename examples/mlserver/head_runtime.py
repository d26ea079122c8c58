"""An MLServer runtime that serves an attention head from an .npz of W, v and, if there, w and c."""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Head(MLModel):
    """A softmax attention head with a scalar output."""

    async def load(self) -> bool:
        """Read the weights."""
        with np.load(self.settings.parameters.uri) as arrays:
            self.W, self.v = arrays["W"], arrays["v"]
            self.w = arrays["w"] if "w" in arrays else np.zeros(len(self.v))
            self.c = float(arrays["c"]) if "c" in arrays else 0.0
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a batch of sequences (B, N, d) with B numbers."""
        X = NumpyCodec.decode_input(payload.inputs[0])
        scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ self.W.T + self.w)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        answers = np.einsum("bn,bn->b", weights, X @ self.v) / weights.sum(axis=1) + self.c
        output = NumpyCodec.encode_output("answers", answers)
        return InferenceResponse(model_name=self.name, outputs=[output])
