"""Progress: what a run tells while it goes on, and how it is interrupted."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

_log = logging.getLogger("unsoftmax")


@dataclass(frozen=True, slots=True)
class Progress:
    """One report, given after every batch, and when the target asks to wait.

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


@dataclass(slots=True)
class Interrupts:
    """Whether Ctrl-C was pressed, and whether it is held back just now."""

    pressed: bool = False
    _held: bool = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the first Ctrl-C back until the end of the block; a second one is not."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.pressed:
            raise KeyboardInterrupt

    @contextmanager
    def released(self) -> Iterator[None]:
        """Hold nothing back during a block of `held` in which nothing is in flight."""
        self._held = False
        try:
            if self.pressed:
                raise KeyboardInterrupt
            yield
        finally:
            self._held = True

    def press(self, number: int, frame: FrameType | None) -> None:
        """Take a SIGINT."""
        if self.pressed or not self._held:
            raise KeyboardInterrupt
        self.pressed = True
        _log.warning("Interrupted: waiting for the batch in flight. Ctrl-C again drops it.")


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Take Ctrl-C over: in the main thread, and where nobody else handles SIGINT."""
    state = Interrupts()
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, state.press)
    try:
        yield state
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
