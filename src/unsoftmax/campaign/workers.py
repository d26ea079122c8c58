"""Where the oracle is called: in the thread that asks, or in threads of their own.

A future's result is what the call returned, or the error that it raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


def executor(workers: int, *, apart: bool = False) -> Executor:
    """Return where so many calls are made at the same time; ``apart``: in threads, though one."""
    return Threads(workers) if apart or workers > 1 else Inline()


class Finished(Future[T]):
    """A call that is back when it is made: a future without locks, which cost more than it does."""

    def __init__(self, result: T) -> None:
        self._kept = result

    def done(self) -> bool:
        """Return True."""
        return True

    def result(self, timeout: float | None = None) -> T:
        """Return the result, without waiting."""
        return self._kept


class Inline(Executor):
    """Calls at once, in the thread that asks: what one worker needs."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Finished[Any]:
        """Call and return what is back; what is no Exception passes through."""
        try:
            return Finished(fn(*args, **kwargs))
        except Exception as error:
            return Finished(error)


class Threads(Executor):
    """Calls in threads that may be left behind: what several workers need, and a time limit.

    The standard pool waits for its threads when it closes and again when Python exits, so
    that an oracle that hangs could not be left by Ctrl-C.
    """

    def __init__(self, workers: int) -> None:
        self._calls: SimpleQueue[Callable[[], Future[Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._callers: dict[Future[Any], threading.Thread] = {}
        """Which thread makes a call."""
        try:
            for _ in range(workers):
                self._start()
        except RuntimeError as error:
            self._dismiss()
            raise ValueError(
                f"This machine starts no more than {len(self._threads):,} threads just now: use "
                f"fewer workers than {workers:,}."
            ) from error

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call in the next free thread."""
        future: Future[T | BaseException] = Future()

        def call() -> Future[Any]:
            self._callers[future] = threading.current_thread()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_result(error)
            return future

        self._calls.put(call)
        return future

    def leave(self, future: Future[Any]) -> None:
        """Leave a call behind that hangs: another thread takes the place of its thread."""
        thread = None if future.cancel() else self._callers.pop(future, None)
        if thread is not None:
            self._threads.remove(thread)
            self._start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._dismiss()
        if kind is None or issubclass(kind, Exception):
            for thread in self._threads:
                thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _dismiss(self) -> None:
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._callers.pop(call(), None) is None:
                return  # this thread was left behind, and another has its place
