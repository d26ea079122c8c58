"""What is kept to with any endpoint: its limits, a secret that is never shown, and a pace."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any


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
