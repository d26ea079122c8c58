"""What any endpoint has: limits, a secret that is never shown, a pace, and a client."""

import os
import threading
import time
import weakref
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from unsoftmax.oracles.model_runtimes import DescribedModel
from unsoftmax.oracles.open_inference import Signature


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
    per_minute: float | None = None
    """Questions are sent this many times a minute at most, evenly."""


USUAL = HttpLimits()


@dataclass(frozen=True, slots=True)
class Secret:
    """The Authorization header that an environment variable holds, read whenever it is sent."""

    auth: str | None
    limits: HttpLimits

    def value(self) -> str | None:
        """Return it, None where there is none.

        Raises
        ------
        ValueError
            The variable is not set, or holds what no header may.
        """
        if self.auth is None:
            return None
        value = os.environ.get(self.auth, "").strip()
        if not value:
            raise ValueError(
                f"The environment variable {self.auth}, which should hold the Authorization "
                "header, is not set."
            )
        if not (value.isascii() and value.isprintable()):
            # not told by whoever refuses it, who would say the value
            raise ValueError(
                f"The environment variable {self.auth} holds characters that no header may."
            )
        return value

    def without_scheme(self) -> str:
        """Say that the header is a token alone, which most servers refuse."""
        words = os.environ.get(self.auth, "").split() if self.auth else []
        if len(words) != 1:
            return ""
        return (
            f" It is one word, without a scheme. If it is a bearer token, write Bearer before it: "
            f'export {self.auth}="Bearer …".'
        )

    def hidden(self, said: object) -> str:
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


class Pace:
    """Turns of callers, evenly, so many times a minute."""

    def __init__(self, per_minute: float | None) -> None:
        self.per_minute = per_minute
        self._next, self._lock = 0.0, threading.Lock()

    def wait(self) -> None:
        """Wait for one's turn."""
        if self.per_minute is None:
            return
        with self._lock:
            turn = max(self._next, time.monotonic())
            self._next = turn + 60.0 / self.per_minute
        time.sleep(max(0.0, turn - time.monotonic()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.per_minute,)


@dataclass(eq=False)
class EndpointOracle(DescribedModel):
    """A model behind a URL; its client is made when it is first asked, in every process anew."""

    url: str
    auth: str | None
    input: str | None
    output: str | None
    limits: HttpLimits
    signature: Signature = field(init=False)
    _client: Any = field(init=False, default=None, repr=False)
    _lock: Any = field(init=False, default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.secret, self.pace = Secret(self.auth, self.limits), Pace(self.limits.per_minute)
        self.secret.value()

    @abstractmethod
    def _made_client(self) -> Any:
        """Make what asks, which is closed with this oracle."""

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._made_client()
                weakref.finalize(self, self._client.close)
            return self._client

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _client=None, _lock=threading.Lock())
