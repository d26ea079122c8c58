"""An endpoint of the Open Inference Protocol v2 as an oracle, over HTTP."""

from __future__ import annotations

import email.utils
import os
import ssl
import threading
import time
import weakref
from dataclasses import dataclass, field, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

from unsoftmax.errors import OracleError, RetryLater, missing_extra
from unsoftmax.oracles.model_runtimes import of_last_token
from unsoftmax.oracles.open_inference import (
    ProtocolError,
    Signature,
    answer,
    in_binary,
    parsed,
    request,
    signature,
)
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """How long an endpoint may take, and how much it may send."""

    timeout_s: float = 60.0
    """A call takes at most this long, from the first byte sent to the last received, however
    slowly these come."""
    connect_s: float = 1.0
    """The first connection is taken within this time, or the URL is wrong; a busy server's later
    ones may take longer."""
    connections: int = 64
    """Connections at the same time; as many workers can ask."""
    bytes_per_number: int = 64
    """A number of an answer takes at most so many bytes: JSON needs 25."""
    numbers_per_vector: int = 2**16
    """Numbers of an answer per token, at most; beyond it a body is refused unread."""
    body_bytes: int = 2**28
    """And never more than 256 MiB, whatever was asked."""
    metadata_bytes: int = 2**20
    retry_after_s: float = 1.0
    """An endpoint that is busy and does not say for how long is asked again after this time."""
    said: int = 300
    """Characters of an endpoint's own message that are shown."""
    too_short: int = 7
    """Words of the Authorization header up to this length, such as Bearer, are no secret; longer
    ones are cut out of an endpoint's messages."""


def from_url(
    url: str,
    auth: str | None = None,
    input: str | None = None,
    output: str | None = None,
    limits: HttpLimits = HttpLimits(),
) -> HttpOracle:
    """Ask a model behind HTTP that speaks the Open Inference Protocol v2.

    MLServer, Triton and KServe do. Its metadata is read at once, so that what does not fit is
    said before anything is asked.

    Parameters
    ----------
    url : str
        ``http(s)://host/v2/models/NAME`` or ``…/versions/V``.
    auth : str, optional
        Name of an environment variable that holds the Authorization header, such as
        ``Bearer …``. It is read at every call, and neither logged nor stored.
    input, output : str, optional
        Which of the model's tensors takes sequences and which one answers; the only input and the
        first output by default.
    limits : HttpLimits, optional
        How long it may take and how much it may send.

    Returns
    -------
    callable
        From (B, N, d) to (B,) or (B, m); of a vector per token the last token's. Its attribute
        ``dim`` is d where the metadata says it. A model of INT64 or INT32 tensors (B, N) takes ids;
        a mask and position ids beside them are made. Several threads may ask at the same time.

    Raises
    ------
    ImportError
        httpx or orjson is not installed.
    ValueError
        ``url`` is not of this form, holds a password, or the variable ``auth`` is not set.
    OracleError
        The endpoint does not answer, has no such model, or the model takes no sequences of
        vectors.

    Notes
    -----
    429 and 503 are `unsoftmax.RetryLater`, with the seconds or the date of Retry-After. Other
    errors of the server (500 …), broken connections and answers that cannot be read may pass: the
    runner asks again. What will not pass (400, 401, 404, 422, a redirect) is an `OracleError`.
    Numbers are sent as the model's own type, FP64, FP32 or FP16: in binary where the server's
    metadata names the extension or its answers came so, else in JSON with all their digits.
    Nothing is compressed.

    Examples
    --------
    >>> oracle = from_url("http://127.0.0.1:8080/v2/models/head")  # doctest: +SKIP
    >>> oracle.dim  # doctest: +SKIP
    64
    """
    return HttpOracle(url, auth, input, output, limits)


@dataclass(eq=False)
class HttpOracle:
    """An endpoint that is asked as an oracle; see `from_url`."""

    url: str
    auth: str | None
    input: str | None
    output: str | None
    limits: HttpLimits
    signature: Signature = field(init=False)
    _client: Any = field(init=False, default=None, repr=False)
    _lock: Any = field(init=False, default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.url = _checked(self.url)
        self._headers()
        model = self._metadata(self.url)
        try:
            server = self._metadata(self.url.partition("/models/")[0])
        except OracleError:
            server = {}  # an endpoint behind a gateway may show its models alone
        try:
            self.signature = signature(model, server, self.input, self.output)
        except ProtocolError as error:
            raise OracleError(f"{self.url} cannot be asked. {self._shown(error)}") from None
        if self.signature.dim is not None:
            self.dim = self.signature.dim
        if self.signature.beside is not None:
            self.vocabulary = None  # it takes ids, and does not say how many there are

    def __call__(self, X: Array, /) -> Any:
        """Answer a batch of sequences (B, N, d)."""
        body, headers = request(X, self.signature)
        limits, (count, tokens) = self.limits, X.shape[:2]
        numbers = count * tokens * limits.numbers_per_vector
        most = min(limits.body_bytes, limits.metadata_bytes + limits.bytes_per_number * numbers)
        received, said = self._call("POST", f"{self.url}/infer", most, body, headers)
        try:
            y = answer(received, said, self.signature)
        except ProtocolError as error:
            raise ConnectionError(
                f"{self.url} sent what is no answer. {self._shown(error)}"
            ) from None
        if not self.signature.binary and in_binary(received, said):
            self.signature = replace(self.signature, binary=True)
        return of_last_token(y, count, tokens)

    def _metadata(self, url: str) -> Any:
        try:
            body, _ = self._call("GET", url, self.limits.metadata_bytes)
            return parsed(body)
        except ProtocolError as error:
            said = self._shown(error)
            raise OracleError(f"{url} is no endpoint of the protocol. {said}") from None
        except RetryLater as busy:
            raise OracleError(f"{url} is busy: try again in {busy.seconds:g} s.") from busy
        except (ConnectionError, TimeoutError) as error:
            raise OracleError(f"{url} does not answer: {error}") from error

    def _call(
        self,
        method: str,
        url: str,
        most: int,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[bytes, Any]:
        """Send a request and read its whole answer, in time and size limited."""
        httpx = _httpx()
        ends = time.monotonic() + self.limits.timeout_s
        connecting_s = self.limits.connect_s if method == "GET" else self.limits.timeout_s
        sent = self._headers() | (headers or {})
        client = self._connected()
        try:
            with (
                self._ends.after(self.limits.timeout_s, connecting_s),
                client.stream(method, url, content=body, headers=sent) as response,
            ):
                received = bytearray()
                for part in response.iter_raw():
                    received += part
                    if len(received) > most:
                        raise OracleError(f"{url} sent more than {most:,} bytes: it was left.")
                    if time.monotonic() > ends:
                        raise TimeoutError(f"{url} took longer than {self.limits.timeout_s:g} s.")
                self._refuse(response, bytes(received))
                return bytes(received), response.headers
        except httpx.ConnectTimeout as error:
            host = urlsplit(url).netloc
            raise TimeoutError(
                f"{host} took no connection in time. Check the host and the port."
            ) from error
        except httpx.TimeoutException as error:
            raise TimeoutError(f"{url} took longer than {self.limits.timeout_s:g} s.") from error
        except httpx.HTTPError as error:
            if _without_tls(error):
                plain = self.url.replace("https://", "http://", 1)
                clear = ", where the Authorization header would go in clear" if self.auth else ""
                raise ConnectionError(
                    f"the server does not speak TLS there; try {plain}{clear}."
                ) from None
            # the message alone: the request that the error carries holds the header
            raise ConnectionError(f"{type(error).__name__}: {self._shown(error)}.") from None

    def _refuse(self, response: Any, body: bytes) -> None:
        """Raise what a status other than 200 means."""
        status = response.status_code
        if status == 200:
            encoding = self._shown(response.headers.get("Content-Encoding", "identity"))
            if encoding != "identity":
                raise OracleError(f"{self.url} sends {encoding}, though identity was asked for.")
            return
        said = self._shown(body.decode("utf-8", "replace"))
        told = f"{self.url} answered {status}{': ' + said if said else ''}"
        if status in (429, 503):
            raise RetryLater(self._retry_after(response.headers.get("Retry-After", "")))
        if 300 <= status < 400:
            where = self._shown(_host_of(response.headers.get("Location", "")))
            raise OracleError(f"{self.url} redirects to {where}; questions go nowhere else.")
        if status in (401, 403):
            how = f"the header in ${self.auth}" if self.auth else "no Authorization header"
            raise OracleError(f"{told}. It was sent {how}.{self._without_scheme()}")
        if status < 500:
            raise OracleError(f"{told}.")
        raise ConnectionError(f"{told}.")

    def _without_scheme(self) -> str:
        """Say that the header is a token alone, which most servers refuse."""
        words = os.environ.get(self.auth, "").split() if self.auth else []
        if len(words) != 1:
            return ""
        return (
            f" It is one word, without a scheme. If it is a bearer token, write Bearer before it: "
            f'export {self.auth}="Bearer …".'
        )

    def _shown(self, said: object) -> str:
        """Return a server's words as a message may show them.

        Some of them alone, without what a terminal would obey, and without the secret, which a
        server knows and may send back.
        """
        secret = os.environ.get(self.auth, "").strip() if self.auth else ""
        text = str(said)
        for part in sorted({secret, *secret.split()}, key=len, reverse=True):
            text = text.replace(part, "…") if len(part) > self.limits.too_short else text
        printable = "".join(c if c.isprintable() else " " for c in text[: 4 * self.limits.said])
        return " ".join(printable.split())[: self.limits.said]

    def _retry_after(self, said: str) -> float:
        """Read seconds, or a date."""
        if said.strip().isdecimal():
            return float(said[:9])
        try:
            until = email.utils.parsedate_to_datetime(said).timestamp()
        except (TypeError, ValueError, OverflowError):
            return self.limits.retry_after_s
        return max(0.0, until - time.time())

    def _headers(self) -> dict[str, str]:
        # compressing answers costs more than it saves
        headers = {"Accept-Encoding": "identity"}
        if self.auth is not None:
            value = os.environ.get(self.auth, "")
            if not value.strip():
                raise ValueError(
                    f"The environment variable {self.auth}, which should hold the Authorization "
                    "header, is not set."
                )
            if not (value.strip().isascii() and value.strip().isprintable()):
                # not told by whoever refuses it, who would say the value
                raise ValueError(
                    f"The environment variable {self.auth} holds characters that no header may."
                )
            headers["Authorization"] = value.strip()
        return headers

    def _connected(self) -> Any:
        """Return the pool of connections; a copy of another process makes its own."""
        with self._lock:
            if self._client is None:
                httpx, most = _httpx(), self.limits.connections
                from unsoftmax.oracles import bounded_transport as bounded

                self._ends = bounded.CallEnds()
                transport = bounded.BoundedTransport(self.url, most, self._ends)
                # no cookies: whoever answers learns nothing of earlier calls, and stores nothing
                refuse = DefaultCookiePolicy(allowed_domains=[])
                self._client = httpx.Client(
                    transport=transport,
                    timeout=self.limits.timeout_s,
                    cookies=CookieJar(refuse),
                    follow_redirects=False,
                )
                # nobody closes an oracle: its connections end with it
                weakref.finalize(self, self._client.close)
            return self._client

    def __getstate__(self) -> dict[str, Any]:
        return {n: x for n, x in self.__dict__.items() if n not in ("_client", "_lock", "_ends")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _client=None, _lock=threading.Lock())


def _checked(url: str) -> str:
    """Return the URL of a model without a slash at its end, or raise ValueError."""
    parts = urlsplit(url)
    if "@" in url or parts.query or parts.fragment:
        raise ValueError(
            "The URL holds a user, a password or a query (…@…, …?…), which would be logged: put "
            "the Authorization header into an environment variable, and name it (auth)."
        )
    if not url.isascii() or not url.isprintable() or " " in url or parts.port == 0:
        raise ValueError(f"{url!r} is no URL: write what is not ASCII as %XX.")
    words = parts.path.rstrip("/").split("/")
    fits = words[-3:-1] == ["v2", "models"] or (
        words[-5:-3] == ["v2", "models"] and words[-2] == "versions"
    )
    if parts.scheme not in ("http", "https") or not parts.netloc or not (fits and words[-1]):
        raise ValueError(
            f"{url} is no model's URL: it must be http(s)://host/v2/models/NAME, or "
            "…/NAME/versions/V."
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _without_tls(error: BaseException) -> bool:
    """Tell whether bytes came that are no TLS where it was to begin, as a plain HTTP server's."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError) and seen.reason == "WRONG_VERSION_NUMBER":
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _host_of(location: str) -> str:
    """Return where a redirect goes."""
    try:
        return urlsplit(location).netloc or "another place"
    except ValueError:
        return "another place"


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise missing_extra("httpx", "http") from error
    return httpx
