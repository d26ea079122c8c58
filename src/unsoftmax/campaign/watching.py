"""Progress: what a run tells while it goes on, and how it is interrupted."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

_log = logging.getLogger("unsoftmax")


@dataclass(frozen=True, slots=True)
class Progress:
    """One report, given after every batch.

    Attributes
    ----------
    phase : str
        What the learner is doing, in its own words.
    answered : int
        Answers known by now, those of earlier runs on the same ledger included.
    expected : int or None
        Answers that the plan and the hold-out need; queries asked again come on top.
    spent : int
        Queries paid over the ledger's life.
    """

    phase: str
    answered: int
    expected: int | None
    spent: int


class Watcher(Protocol):
    """Anything that takes progress reports, in the thread that called `learn`."""

    def __call__(self, report: Progress, /) -> object:
        """Take a report."""


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C back until the batch in flight is recorded; a second one is not held back.

    Yields a function that tells whether Ctrl-C was pressed. Only in the main thread and only
    where nobody else handles SIGINT.
    """
    pressed = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        _log.warning("Interrupted: waiting for the batch in flight. Ctrl-C again drops it.")

    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, hold)
    try:
        yield lambda: pressed
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
