"""Progress: what a run tells while it goes on, and how it is interrupted."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from unsoftmax.campaign.limits import in_seconds
from unsoftmax.errors import Terminated, terminate
from unsoftmax.protocol import Course

_log = logging.getLogger("unsoftmax")

GOING_ON = "going on"
"""The phase of the first report of a run whose ledger holds answers."""


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
class CourseWatch:
    """Notes when answers came, and passes every report on."""

    watcher: Watcher | None = None
    """Who else is told."""
    most: int = 256
    """Points kept; when there are more every other one goes. Larger: files grow."""
    _began: float = field(default_factory=time.monotonic)
    _points: list[tuple[float, int, str]] = field(default_factory=list)
    _phases: dict[str, tuple[int, float]] = field(default_factory=dict)
    _recorded: int = 0
    _paid: int = 0
    _last: tuple[float, int, str] | None = None
    _every: int = 1
    _seen: int = 0

    def __call__(self, report: Progress) -> None:
        """Take a report."""
        self._paid = report.spent
        if report.phase == GOING_ON and self._last is None:
            self._recorded = report.answered
        else:
            self._note(report)
        if self.watcher is not None:
            self.watcher(report)

    def _note(self, report: Progress) -> None:
        before_s, before, _ = self._last or (0.0, self._recorded, "")
        if report.answered <= before:  # the target asks to wait
            return
        now_s = time.monotonic() - self._began
        count, spent_s = self._phases.get(report.phase, (0, 0.0))
        sums = count + report.answered - before, spent_s + now_s - before_s
        self._phases[report.phase] = sums
        self._last = now_s, report.answered, report.phase
        if self._seen % self._every == 0:
            self._points.append(self._last)
        self._seen += 1
        if len(self._points) > self.most:
            self._points, self._every = self._points[::2], 2 * self._every

    def course(self) -> Course:
        """Return what was noted so far."""
        ends = [] if self._last is None or self._last in self._points[-1:] else [self._last]
        return Course((*self._points, *ends), dict(self._phases), self._recorded, self._paid)


@dataclass(slots=True)
class Interrupts:
    """Whether a signal asked the run to end, and whether it is held back just now.

    The first signal waits for what is in flight, but not for ever: a call that has taken much
    longer than any before hangs. A second signal does not wait.
    """

    times: float = 3.0
    """What flies has so many times as long as the longest call so far. Smaller: batches that are
    merely slow stay in doubt. Larger: one Ctrl-C takes longer to end a run whose target hangs."""
    least_s: float = 8.0
    """It has at least so many seconds: before any call came back nothing is known of their length.
    Docker kills 10 s after SIGTERM."""
    longest_call_s: float = 0.0
    """The longest call so far, as the scheduler notes it."""
    number: int | None = None
    """The signal that asked first."""
    _held: bool = False
    _over: threading.Event = field(default_factory=threading.Event)

    def ending(self) -> BaseException:
        """Return what ends the run: KeyboardInterrupt for Ctrl-C, an exit for other signals."""
        return _ending(self.number or signal.SIGINT)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the first signal back until the end of the block; a second one is not."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.number is not None:
            raise self.ending()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Hold nothing back during a block of `held` in which nothing is in flight."""
        self._held = False
        try:
            if self.number is not None:
                raise self.ending()
            yield
        finally:
            self._held = True

    def press(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if self.number is not None or not self._held:
            raise _ending(number)
        self.number = number
        patience_s = max(self.least_s, self.times * self.longest_call_s)
        threading.Thread(target=self._press_again, args=(patience_s,), daemon=True).start()
        _log.warning(
            "%s: waiting up to %s for the batch in flight. Ctrl-C again drops it.",
            "Interrupted" if number == signal.SIGINT else signal.Signals(number).name,
            in_seconds(patience_s),
        )

    def note(self, call_s: float) -> None:
        """Note how long a call took."""
        self.longest_call_s = max(self.longest_call_s, call_s)

    def close(self) -> None:
        """Send no more signals."""
        self._over.set()

    def _press_again(self, patience_s: float) -> None:
        """Send the signal to the main thread, whatever it waits for, when patience ends."""
        if not self._over.wait(patience_s) and self._held:
            main = threading.main_thread().ident
            assert main is not None
            assert self.number is not None
            signal.pthread_kill(main, self.number)


def _ending(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Take SIGINT, SIGTERM and SIGHUP over: in the main thread, where nobody else handles them."""
    state = Interrupts()
    with ExitStack() as before:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)  # Windows has no SIGHUP
                if number is not None and _is_nobodys(number):
                    before.callback(signal.signal, number, signal.signal(number, state.press))
        before.callback(state.close)
        yield state


def _is_nobodys(number: int) -> bool:
    """Whether a signal has the handler that Python gives it, or the command line."""
    given = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return signal.getsignal(number) in (given, terminate)
