"""An endpoint of the Open Inference Protocol as an oracle, over gRPC: tensors go as raw bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from unsoftmax.errors import OracleError, RetryLater, ServerFailed
from unsoftmax.first_use import from_extra
from unsoftmax.oracles.endpoint_limits import USUAL, EndpointOracle, HttpLimits
from unsoftmax.oracles.model_runtimes import Chosen
from unsoftmax.oracles.open_inference import ProtocolError, signature
from unsoftmax.probes import Array

# What a status means, as for HTTP: the target is busy, it may pass, and all else will not pass.
_BUSY = ("RESOURCE_EXHAUSTED",)
_MAY_PASS = ("UNAVAILABLE", "ABORTED", "CANCELLED", "DATA_LOSS")
# What a model that raises is answered with, as HTTP's 500: it may pass, or be a limit.
_FAILED = ("INTERNAL", "UNKNOWN")
_NUMBERS: dict[str, Any] = {
    **{"FP64": np.float64, "FP32": np.float32, "FP16": np.float16, "BF16": np.float32},
    **{"INT64": np.int64, "INT32": np.int32},
}


def from_grpc(
    url: str,
    auth: str | None = None,
    input: str | None = None,
    output: str | None = None,
    limits: HttpLimits = USUAL,
) -> GrpcOracle:
    """Ask a model behind gRPC that speaks the Open Inference Protocol v2.

    MLServer, Triton and KServe do, mostly at another port than HTTP. Its metadata is read at once.

    Parameters
    ----------
    url : str
        ``grpc://host:port/NAME`` or ``…/NAME/versions/V``; ``grpcs://`` with TLS.
    auth, input, output, limits
        As `from_url` takes them; of the limits the times and the pace.

    Returns
    -------
    callable
        From (B, N, d) to (B,) or (B, m); of a vector per token the last token's, and its method
        ``all`` has those of every token. Its attribute ``dim`` is d where the metadata says it.
        Several threads may ask at the same time.

    Raises
    ------
    ImportError
        tritonclient is not installed.
    ValueError
        ``url`` is not of this form, or the variable ``auth`` is not set.
    OracleError
        The endpoint does not answer, has no such model, or the model takes no sequences of
        vectors.

    Examples
    --------
    >>> oracle = from_grpc("grpc://127.0.0.1:8081/head")  # doctest: +SKIP
    >>> oracle.dim  # doctest: +SKIP
    64
    """
    return GrpcOracle(url, auth, input, output, limits)


@dataclass(eq=False)
class GrpcOracle(EndpointOracle):
    """An endpoint that is asked as an oracle; see `from_grpc`."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        words = parts.path.strip("/").split("/")
        versioned = words[1:2] == ["versions"] and len(words) == 3
        if (
            parts.scheme not in ("grpc", "grpcs")
            or "@" in self.url
            or not parts.port
            or not (words[0] and (versioned or len(words) == 1))
        ):
            raise ValueError(
                f"{self.url} is no model's URL: it must be grpc(s)://host:port/NAME, or "
                "…/NAME/versions/V."
            )
        self.name, self.version = words[0], words[2] if versioned else ""
        super().__post_init__()
        try:
            told = self._call("get_model_metadata", self.name, self.version)
            self._speaks(signature(_as_json(told), {}, self.input, self.output))
        except ProtocolError as error:
            raise OracleError(f"{self.url} cannot be asked. {error}") from None
        except (ConnectionError, TimeoutError, RetryLater) as error:
            raise OracleError(f"{self.url} does not answer: {error}") from error

    def _asked(self, X: Array, chosen: Chosen) -> Any:
        triton, to = _triton(), self.signature
        given = to.tensors(X)
        tensors = [triton.InferInput(name, list(x.shape), kind) for name, kind, x in given]
        for tensor, (_, kind, x) in zip(tensors, given, strict=True):
            with np.errstate(over="ignore"):
                tensor.set_data_from_numpy(np.ascontiguousarray(x, dtype=_NUMBERS[kind]))
        wanted = None if to.output is None else [triton.InferRequestedOutput(to.output)]
        self.pace.wait()
        came = self._call("infer", self.name, tensors, self.version, outputs=wanted)
        names = [one.name for one in came.get_response().outputs]
        y = came.as_numpy(to.output or names[0]) if names else None
        if y is None:
            raise ConnectionError(f"{self.url} sent what is no answer: it has {names}.")
        return chosen(y, *X.shape[:2])

    def _call(self, what: str, *words: Any, **options: Any) -> Any:
        failed = from_extra("tritonclient.utils", "grpc").InferenceServerException
        secret = self.secret.value()
        headers = {} if secret is None else {"authorization": secret}
        try:
            return getattr(self._connected(), what)(
                *words, headers=headers, client_timeout=self.limits.timeout_s, **options
            )
        except failed as error:
            status = str(error.status()).removeprefix("StatusCode.")
            said = f"{self.url} answered {status}: {self.secret.hidden(error.message())}"
            if status in _BUSY:
                raise RetryLater(self.limits.retry_after_s) from None
            if status == "DEADLINE_EXCEEDED":
                raise TimeoutError(
                    f"{self.url} took longer than {self.limits.timeout_s:g} s."
                ) from None
            if status in _MAY_PASS:
                raise ConnectionError(said) from None
            raise (ServerFailed if status in _FAILED else OracleError)(said) from None

    def _made_client(self) -> Any:
        parts = urlsplit(self.url)
        return _triton().InferenceServerClient(parts.netloc, ssl=parts.scheme == "grpcs")


def _as_json(told: Any) -> dict[str, Any]:
    """Return a model's metadata as it comes over HTTP."""

    def tensors(some: Any) -> list[dict[str, Any]]:
        return [{"name": x.name, "datatype": x.datatype, "shape": [*x.shape]} for x in some]

    return {"inputs": tensors(told.inputs), "outputs": tensors(told.outputs)}


_triton = partial(from_extra, "tritonclient.grpc", "grpc")
