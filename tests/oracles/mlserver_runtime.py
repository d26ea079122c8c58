"""An MLServer runtime that answers as `other_side` does; it runs in MLServer's own process."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from other_side import OtherSide


class Noting(MLModel):  # type: ignore[misc]
    """The other side, whose account is in the folder that the settings name."""

    async def load(self) -> bool:
        """Make it."""
        parameters = self.settings.parameters
        self.other = OtherSide(parameters.uri, parameters.extra["kind"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a batch of sequences."""
        answers = self.other(NumpyCodec.decode_input(payload.inputs[0]))
        output = NumpyCodec.encode_output("answers", answers)
        return InferenceResponse(model_name=self.name, outputs=[output])
