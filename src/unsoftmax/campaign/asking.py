"""Ask an oracle for spans of probes: one try, checked answers, a budget to stay within."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from unsoftmax.errors import OracleError
from unsoftmax.probes import Array, Probes
from unsoftmax.protocol import Oracle

TRIES = 3
_PAUSE_S = 0.1
# A batch of 16 MiB keeps d = 1024 far below 400 MB with everything an oracle makes of it.
_BATCH_NUMBERS = 2**21
# A batch in flight is paid again after kill −9: not more than this is risked at once.
_BATCH_MOST = 2048

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a ledger may spend over its life, retries and queries in doubt included.

    Parameters
    ----------
    queries, tokens : int, optional
        Sequences asked, and tokens in them; None for no limit.
    """

    queries: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("queries", self.queries), ("tokens", self.tokens)):
            if limit is not None:
                whole(f"A budget of {name}", limit, 0)


def whole(name: str, value: Any, least: int) -> int:
    """Return an argument as an int.

    Raises
    ------
    ValueError
        It is no whole number, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number (int), {least} or more; it is {value!r}.")
    return int(value)


@dataclass(frozen=True, slots=True)
class Span:
    """Some probes of one part of a round."""

    part: int
    start: int
    stop: int
    probes: Probes

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def tokens(self) -> int:
        """Tokens in all of its sequences."""
        return len(self) * self.probes.tokens

    def first(self, count: int) -> Span:
        """Return its first probes."""
        return Span(self.part, self.start, self.start + count, self.probes)

    def rest(self, count: int) -> Span:
        """Return all but its first probes."""
        return Span(self.part, self.start + count, self.stop, self.probes)

    def __str__(self) -> str:
        return (
            f"{len(self)} sequences of shape ({self.probes.tokens}, {self.probes.dim}), "
            f"{self.start}–{self.stop - 1} of “{self.probes.phase}”"
        )


def batch_of(probes: Probes, batch: int | None) -> int:
    """Return how many probes are asked at once."""
    fits = _BATCH_NUMBERS // (probes.tokens * probes.dim)
    return batch or max(1, min(fits, _BATCH_MOST))


def unknown_spans(
    part: int, probes: Probes, known: list[tuple[int, Array]], batch: int | None
) -> list[Span]:
    """Cut what is not yet known into batches."""
    ends = [*((start, start + len(y)) for start, y in known), (len(probes), len(probes))]
    spans, at = [], 0
    for start, stop in ends:
        spans += batches(Span(part, at, start, probes), batch)
        at = stop
    return spans


def batches(span: Span, batch: int | None) -> list[Span]:
    """Cut a span into what is asked at once."""
    size = batch_of(span.probes, batch)
    return [
        Span(span.part, start, min(start + size, span.stop), span.probes)
        for start in range(span.start, span.stop, size)
    ]


def ask(oracle: Oracle, span: Span, attempt: int) -> Array:
    """Make the probes and ask once, after a pause if it is not the first attempt."""
    if attempt:
        time.sleep(_PAUSE_S * 2 ** (attempt - 1))
    try:
        raw = oracle(span.probes[span.start : span.stop])
    except SystemExit as error:
        raise RuntimeError(f"the target called sys.exit({error.code!r})") from error
    return checked(raw, span)


def checked(raw: Any, span: Span) -> Array:
    """Turn what an oracle returned into float64 (n,), or say what is wrong with it.

    Raises
    ------
    OracleError
        Not n real finite numbers.
    """
    try:
        y = np.asarray(raw)
    except Exception as error:
        raise OracleError(f"The target's answer to {span} is no array: {error}.") from error
    if y.dtype.kind not in "fiub":
        raise OracleError(f"The target answered {span} with {y.dtype} instead of real numbers.")
    if y.shape == (len(span), 1):
        y = y[:, 0]
    if y.shape != (len(span),):
        raise OracleError(
            f"The target answered {span} with shape {y.shape} instead of ({len(span)},): it must "
            "give one number per sequence."
        )
    answers = y.astype(np.float64)
    if not np.isfinite(answers).all():
        bad = int(np.flatnonzero(~np.isfinite(answers))[0])
        raise OracleError(
            f"The target answered {span} with {answers[bad]} (sequence {span.start + bad}): "
            "answers must be finite."
        )
    return answers


class Inline(Executor):
    """Calls at once, in the thread that asks: what one worker needs."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call and return a future that is done; what is no Exception passes through."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Threads(Executor):
    """Calls in threads that may be left behind: what several workers need.

    The standard pool waits for its threads when it closes and again when Python exits, so
    that an oracle that hangs could not be left by Ctrl-C.
    """

    def __init__(self, workers: int) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call in the next free thread."""
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(call)
        return future

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _ in self._threads:
            self._calls.put(None)
        if kind is None or issubclass(kind, Exception):
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
