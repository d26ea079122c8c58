"""An endpoint as an oracle, over HTTP: of the Open Inference Protocol v2, or any of JSON.

Of an endpoint of no protocol it is said where the numbers go in its request and come in its answer.
A request is JSON with {X}, a batch of sequences, or {x}, one sequence, where nested lists of
numbers go. The answer's numbers stand at a path: names of members, indices of lists, and * for
every element of a list, joined by points.
"""

from __future__ import annotations

import email.utils
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from unsoftmax.errors import AnswerMisshapen, OracleError, RetryLater, ServerFailed
from unsoftmax.first_use import from_extra
from unsoftmax.oracles.endpoint_limits import USUAL, EndpointOracle, HttpLimits
from unsoftmax.oracles.model_runtimes import Chosen
from unsoftmax.oracles.open_inference import (
    ProtocolError,
    answer,
    as_json,
    in_binary,
    parsed,
    request,
    signature,
)
from unsoftmax.probes import Array


def from_url(
    url: str,
    auth: str | None = None,
    input: str | None = None,
    output: str | None = None,
    limits: HttpLimits = USUAL,
    request: str | None = None,
    answer: str | None = None,
) -> HttpOracle:
    """Ask a model behind HTTP that speaks the Open Inference Protocol v2, or any JSON.

    MLServer, Triton and KServe speak the protocol. Its metadata is read at once, so that what does
    not fit is said before anything is asked. Any other endpoint is told by ``request`` and
    ``answer``.

    Parameters
    ----------
    url : str
        ``http(s)://host/v2/models/NAME`` or ``…/versions/V``; with ``request`` any.
    auth : str, optional
        Name of an environment variable that holds the Authorization header, such as
        ``Bearer …``. It is read at every call, and neither logged nor stored.
    input, output : str, optional
        Which of the model's tensors takes sequences and which one answers; the only input and the
        first output by default.
    limits : HttpLimits, optional
        How long it may take, how much it may send, and how often it is asked.
    request, answer : str, optional
        For an endpoint of no protocol: the JSON that is posted, with {X} where a batch of
        sequences goes as nested lists, or {x} where one sequence does, ``{"inputs": {X}}``; and
        where its answer has the numbers, ``outputs.0.hidden``: names and indices, * for all
        elements of a list. With {x} every sequence is a request.

    Returns
    -------
    callable
        From (B, N, d) to (B,) or (B, m); of a vector per token the last token's, and its method
        ``all`` has those of every token. Its attribute ``dim`` is d where the metadata says it. A
        model of INT64 or INT32 tensors (B, N) takes ids; a mask and position ids beside them are
        made. Several threads may ask at the same time.

    Raises
    ------
    ImportError
        httpx or orjson is not installed.
    ValueError
        ``url`` is not of this form, holds a password, or the variable ``auth`` is not set;
        ``request`` is no JSON around {X} or {x}, or there is one of ``request``, ``answer``.
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
    if (request is None) != (answer is None):
        raise ValueError(
            "An endpoint of no protocol needs both: request, the JSON to post with {X} where "
            "numbers go, and answer, where its numbers are."
        )
    template = JsonTemplate(request, answer) if request is not None and answer is not None else None
    return HttpOracle(url, auth, input, output, limits, template)


@dataclass(eq=False)
class HttpOracle(EndpointOracle):
    """An endpoint that is asked as an oracle; see `from_url`."""

    template: JsonTemplate | None = None

    def __post_init__(self) -> None:
        self.url = _checked(self.url, any_path=self.template is not None)
        super().__post_init__()
        if self.template is not None:
            return
        model = self._metadata(self.url)
        try:
            server = self._metadata(self.url.partition("/models/")[0])
        except OracleError:
            server = {}  # an endpoint behind a gateway may show its models alone
        try:
            self._speaks(signature(model, server, self.input, self.output))
        except ProtocolError as error:
            raise OracleError(f"{self.url} cannot be asked. {self.secret.hidden(error)}") from None

    def _asked(self, X: Array, chosen: Chosen) -> Any:
        if self.template is None:
            body, headers = request(X, self.signature)
            received, said = self._post(f"{self.url}/infer", body, headers, X)
            y = self._read(lambda: answer(received, said, self.signature))
            if not self.signature.binary and in_binary(received, said):
                self.signature = replace(self.signature, binary=True)
        elif self.template.one_by_one:
            y = self._one_by_one(X, self.template, chosen)
        else:
            y = self._told_by(X, self.template)
        return chosen(y, *X.shape[:2])

    def _told_by(self, X: Array, template: JsonTemplate) -> Array:
        headers = {"Content-Type": "application/json"}
        received, _ = self._post(self.url, template.body(X), headers, X)
        return self._read(lambda: template.numbers(received))

    def _one_by_one(self, X: Array, template: JsonTemplate, chosen: Chosen) -> Array:
        """Ask a sequence at a time; if one fails, those before it are kept, the rest NaN."""
        answers: list[Array] = []
        try:
            for x in X:
                answers.append(chosen(self._told_by(x, template)[None], 1, len(x))[0])
        except (ConnectionError, TimeoutError, RetryLater):
            if not answers:
                raise
        missing = [np.full_like(answers[0], np.nan)] * (len(X) - len(answers))
        try:
            return np.stack([*answers, *missing])
        except ValueError:
            shapes = sorted({one.shape for one in answers})
            raise AnswerMisshapen(f"{self.url} answers in several shapes: {shapes}.") from None

    def _post(self, url: str, body: bytes, headers: dict[str, str], X: Array) -> tuple[bytes, Any]:
        """Ask a question when its turn has come."""
        limits, tokens = self.limits, X.size // (X.shape[-1] if X.dtype.kind == "f" else 1)
        self.pace.wait()
        numbers = tokens * limits.numbers_per_vector
        most = min(limits.body_bytes, limits.metadata_bytes + limits.bytes_per_number * numbers)
        return self._call("POST", url, most, body, headers)

    def _read(self, reading: Callable[[], Array]) -> Array:
        try:
            return reading()
        except ProtocolError as error:
            raise ConnectionError(
                f"{self.url} sent what is no answer. {self.secret.hidden(error)}"
            ) from None

    def _metadata(self, url: str) -> Any:
        try:
            body, _ = self._call("GET", url, self.limits.metadata_bytes)
            return parsed(body)
        except ProtocolError as error:
            said = self.secret.hidden(error)
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
        # compressing answers costs more than it saves
        sent = {"Accept-Encoding": "identity"} | (headers or {})
        if (secret := self.secret.value()) is not None:
            sent["Authorization"] = secret
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
            raise ConnectionError(f"{type(error).__name__}: {self.secret.hidden(error)}.") from None

    def _refuse(self, response: Any, body: bytes) -> None:
        """Raise what a status other than 200 means."""
        status = response.status_code
        if status == 200:
            encoding = self.secret.hidden(response.headers.get("Content-Encoding", "identity"))
            if encoding != "identity":
                raise OracleError(f"{self.url} sends {encoding}, though identity was asked for.")
            return
        said = self.secret.hidden(body.decode("utf-8", "replace"))
        told = f"{self.url} answered {status}{': ' + said if said else ''}"
        if status in (429, 503):
            raise RetryLater(self._retry_after(response.headers.get("Retry-After", "")))
        if 300 <= status < 400:
            where = self.secret.hidden(_host_of(response.headers.get("Location", "")))
            raise OracleError(f"{self.url} redirects to {where}; questions go nowhere else.")
        if status in (401, 403):
            how = f"the header in ${self.auth}" if self.auth else "no Authorization header"
            raise OracleError(f"{told}. It was sent {how}.{self.secret.without_scheme()}")
        if status < 500:
            raise OracleError(f"{told}.")
        raise (ServerFailed if status == 500 else ConnectionError)(f"{told}.")

    def _retry_after(self, said: str) -> float:
        """Read seconds, or a date."""
        if said.strip().isdecimal():
            return float(said[:9])
        try:
            until = email.utils.parsedate_to_datetime(said).timestamp()
        except (TypeError, ValueError, OverflowError):
            return self.limits.retry_after_s
        return max(0.0, until - time.time())

    def _made_client(self) -> Any:
        httpx, most = _httpx(), self.limits.connections
        from unsoftmax.oracles import bounded_transport as bounded

        self._ends = bounded.CallEnds()
        transport = bounded.BoundedTransport(self.url, most, self._ends)
        # no cookies: whoever answers learns nothing of earlier calls, and stores nothing
        refuse = DefaultCookiePolicy(allowed_domains=[])
        return httpx.Client(
            transport=transport,
            timeout=self.limits.timeout_s,
            cookies=CookieJar(refuse),
            follow_redirects=False,
        )


def _checked(url: str, *, any_path: bool) -> str:
    """Return any URL, or a model's without a slash at its end; or raise ValueError."""
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
    fits = any_path or bool(fits and words[-1])
    if parts.scheme not in ("http", "https") or not parts.netloc or not fits:
        raise ValueError(
            f"{url} is no model's URL: it must be http(s)://host/v2/models/NAME, or "
            "…/NAME/versions/V. Any other endpoint that takes JSON is told by its request and "
            "where its answer is."
        )
    path = parts.path if any_path else parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


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


_httpx = partial(from_extra, "httpx", "http")


BATCH, ONE = "{X}", "{x}"


@dataclass(frozen=True, slots=True)
class JsonTemplate:
    """What is sent, and where in the answer its numbers are.

    Raises
    ------
    ValueError
        ``request`` is no JSON around one {X} or {x}, or ``answer`` names nothing.
    """

    request: str
    answer: str

    def __post_init__(self) -> None:
        here = [place for place in (BATCH, ONE) if place in self.request]
        whole = self.request
        try:
            # a string that holds the place would be sent as text
            known = len(here) == 1 and _lists(parsed(whole.replace(here[0], "[]").encode())) == (
                1 + _lists(parsed(whole.replace(here[0], "0").encode()))
            )
        except ProtocolError:
            known = False
        if not known:
            raise ValueError(
                f"The request {whole!r} must be JSON with {BATCH} (a batch of sequences) or {ONE} "
                f'(one sequence) once where numbers go, such as {{"inputs": {BATCH}}}.'
            )
        if not all(self.answer.split(".")):
            raise ValueError(
                f"The answer's place is {self.answer!r}; it must be names and indices joined by "
                "points, such as outputs.0.hidden."
            )

    @property
    def one_by_one(self) -> bool:
        """Whether a request takes one sequence."""
        return ONE in self.request

    def body(self, X: Array) -> bytes:
        """Write a batch (B, N, d), or one sequence (N, d), with all digits."""
        place = ONE if self.one_by_one else BATCH
        return self.request.encode().replace(place.encode(), as_json(np.ascontiguousarray(X)))

    def numbers(self, received: bytes) -> Array:
        """Read the numbers of an answer.

        Raises
        ------
        ProtocolError
            There is nothing at the path, or no numbers in equal rows.
        """
        found = _at(parsed(received), self.answer.split("."), "")
        try:
            return np.array(found, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"What is at {self.answer} is no array of numbers.") from error


def _at(content: Any, path: list[str], before: str) -> Any:
    if not path:
        return content
    [step, *rest] = path
    here = f"{before}.{step}".lstrip(".")
    if step == "*" and isinstance(content, list):
        return [_at(element, rest, here) for element in content]
    try:
        inside = content[int(step) if isinstance(content, list) else step]
    except (KeyError, IndexError, ValueError, TypeError):
        known = (
            ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        )
        raise ProtocolError(
            f"It has nothing at {here}; at {before or 'its top'} is {known}."
        ) from None
    return _at(inside, rest, here)


def _lists(content: Any) -> int:
    """Count lists in JSON."""
    if isinstance(content, dict):
        return sum(map(_lists, content.values()))
    return 1 + sum(map(_lists, content)) if isinstance(content, list) else 0
