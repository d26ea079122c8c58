"""Connections on which a whole call ends in time, however slowly bytes come.

httpx limits the time between two bytes. A server that sends one byte of its headers a minute, or
"100 Continue" for ever, would hold a call for days: here every read and write of a call gets what
is left until the call's end. Proxies of the environment are used as httpx would.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx


class CallEnds(threading.local):
    """When the call of this thread ends."""

    at = connecting_s = float("inf")

    @contextmanager
    def after(self, seconds: float, connecting_s: float = float("inf")) -> Iterator[None]:
        """End this thread's call after so many seconds, and a connection that is not taken."""
        self.at, self.connecting_s = time.monotonic() + seconds, connecting_s
        try:
            yield
        finally:
            del self.at, self.connecting_s

    def left(self, timeout: float | None) -> float:
        """Return the seconds that a step may take."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the call took too long")
        return left if timeout is None else min(left, timeout)


class _Stream(httpcore.NetworkStream):
    """A connection whose every step ends with the call."""

    def __init__(self, stream: httpcore.NetworkStream, ends: CallEnds) -> None:
        self._stream, self._ends = stream, ends

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._ends.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._ends.left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._ends.left(timeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left), self._ends)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.SyncBackend):
    def __init__(self, ends: CallEnds) -> None:
        self._ends = ends

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *more: Any, **options: Any
    ) -> httpcore.NetworkStream:
        left = min(self._ends.left(timeout), self._ends.connecting_s)
        return _Stream(super().connect_tcp(host, port, left, *more, **options), self._ends)


class _Body(httpx.SyncByteStream):
    """A body as it comes; httpcore's own errors have httpx's names."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx():
            yield from self._stream

    def close(self) -> None:
        self._stream.close()


@contextmanager
def _as_httpx() -> Iterator[None]:
    try:
        yield
    except httpcore.ConnectTimeout as error:
        raise httpx.ConnectTimeout(str(error)) from error
    except httpcore.TimeoutException as error:
        raise httpx.ReadTimeout(str(error)) from error
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError) as error:
        kind = getattr(httpx, type(error).__name__, httpx.TransportError)
        raise kind(str(error)) from error


def _proxy_for(asked: httpx.URL) -> httpx.Proxy | None:
    """Return the proxy that the environment names for a URL, read as httpx reads it.

    Raises
    ------
    ValueError
        It speaks another protocol than HTTP: a header in clear would go to a port of that one.
    """
    named = getproxies()
    known = named.get(asked.scheme) or named.get("all")
    if not known or proxy_bypass(asked.host):
        return None
    scheme, apart, _ = known.partition("://")
    if not apart:
        return httpx.Proxy(f"http://{known}")
    if scheme not in ("http", "https"):
        raise ValueError(
            f"The environment names a proxy that speaks {scheme} ({asked.scheme}_proxy or "
            "all_proxy). Only HTTP proxies are used: nothing was sent. Name one, or put the "
            "endpoint's host into no_proxy."
        )
    return httpx.Proxy(known)


class BoundedTransport(httpx.BaseTransport):
    """A pool of such connections to one host."""

    def __init__(self, url: str, connections: int, ends: CallEnds) -> None:
        asked = httpx.URL(url)
        options: dict[str, Any] = {
            # it reads all certificates of the system
            "ssl_context": httpx.create_ssl_context() if asked.scheme == "https" else None,
            "max_connections": connections,
            "max_keepalive_connections": connections,
            "network_backend": _Backend(ends),
        }
        proxy = _proxy_for(asked)
        if proxy is None:
            self._pool = httpcore.ConnectionPool(**options)
        else:
            self._pool = httpcore.HTTPProxy(str(proxy.url), proxy.raw_auth, **options)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and take the headers of its answer."""
        with _as_httpx():
            answer = self._pool.handle_request(
                httpcore.Request(
                    request.method,
                    str(request.url),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=_Body(answer.stream),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()
