"""The command line: one thin module per command, each a twin of a Python call.

Results go to stdout, progress and errors to stderr. Exit status: 0 done; 1 the answer is no
(compare, verify); 2 wrong usage or a ledger that cannot be used; 3 not identifiable, wrong model
class, undecided; 4 budget spent; 5 the target does not answer; 70 a bug in unsoftmax; 130
interrupted (129, 143 by SIGHUP, SIGTERM).

This module imports next to nothing, so that a signal finds its handler there as soon as the
program has begun, before NumPy and the commands are imported. A command's module imports what its
options and help need, and the rest when it runs: ``verify --help`` waits for no learner.
"""

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from unsoftmax.errors import Terminated, terminate

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def main() -> None:
    """Run the command line; a signal ends it with 128 and its number, wherever it hits."""
    try:
        for number in _ENDING:
            # what a parent ignores (nohup) stays ignored
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _end_early)
        from unsoftmax.cli.commands import app

        if "_UNSOFTMAX_COMPLETE" in os.environ:  # a shell asks what a word may be
            from typer import completion

            completion.completion_init()  # type: ignore[attr-defined]
        app()
    except Terminated as end:  # after a command
        leave(end.code)
    except SystemExit as end:
        if end.code in {128 + number for number in _ENDING}:
            leave(end.code)
        _flush()
        end_at_once()  # Python's own end is no place for exceptions either
        raise
    except Exception as error:
        from unsoftmax.cli.faults import tell

        status = tell(error, sys.argv[1:])
        _flush()
        end_at_once()
        sys.exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a terminal that has gone
            stream.flush()


def _end_early(number: int, frame: FrameType | None) -> None:
    """End during the imports: nothing is lost, and Python would turn an exception into others."""
    with contextlib.suppress(OSError):
        os.write(2, b"Stopped by a signal.\n")
    os._exit(128 + number)


def begin_command() -> None:
    """Let signals raise from now on, so that what a command does is ended in order."""
    for number in _ENDING:
        if signal.getsignal(number) is _end_early:
            signal.signal(number, terminate)


def end_at_once() -> None:
    """Let every further signal end the process: what is recorded is safe at any moment."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: os._exit(128 + number))


def leave(status: object) -> NoReturn:
    """End after a signal, without waiting for threads that hang in the target."""
    end_at_once()
    _flush()
    os._exit(status if isinstance(status, int) else 1)
