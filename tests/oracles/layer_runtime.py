"""An MLServer runtime that serves a whole layer in float32; it runs in MLServer's own process."""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

HEADS = 12


def normalised(u, scale, shift, eps):
    """LayerNorm."""
    u = u - u.mean(axis=1, keepdims=True)
    return scale * (u / np.sqrt((u * u).mean(axis=1, keepdims=True) + eps)) + shift


class Layer(MLModel):  # type: ignore[misc]
    """Attention with its residual and LayerNorm, or a feed-forward layer, by its arrays' names."""

    async def load(self) -> bool:
        """Read the weights."""
        with np.load(self.settings.parameters.uri) as arrays:
            self.arrays = {name: np.asarray(x, dtype=np.float32) for name, x in arrays.items()}
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a batch of sequences (B, N, d) with vectors (B, d), or (B, N, d)."""
        X = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32)
        tokens = X if "every" in self.arrays else X[:, -1]
        answers = self.attention(X) if "q" in self.arrays else self.neurons(tokens)
        output = NumpyCodec.encode_output("answers", answers)
        return InferenceResponse(model_name=self.name, outputs=[output])

    def neurons(self, x):
        """B relu(A x + b) + c."""
        a = self.arrays
        return np.maximum(x @ a["A"].T + a["b"], 0) @ a["B"].T + a["c"]

    def attention(self, X):
        """The whole sub-layer at the last token."""
        a, d = self.arrays, X.shape[2]
        shape = (*X.shape[:2], HEADS, d // HEADS)
        keys = (X @ a["k"].T + a["k_bias"]).reshape(shape)
        values = (X @ a["v"].T + a["v_bias"]).reshape(shape)
        query = (X[:, -1] @ a["q"].T + a["q_bias"]).reshape(shape[0], *shape[2:])
        scores = np.einsum("bnhe,bhe->bhn", keys, query / np.float32(np.sqrt(d // HEADS)))
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        pooled = np.einsum("bhn,bnhe->bhe", weights, values).reshape(len(X), d)
        u = pooled @ a["o"].T + a["o_bias"] + X[:, -1]
        return normalised(u, a["scale"], a["shift"], a["eps"])
