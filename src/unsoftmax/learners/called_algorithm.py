"""A function that asks by calling, run as a generator that is asked.

An algorithm written as ``algorithm(ask) → result`` calls ``ask(question)`` and waits for the
answer. Learners are generators: they yield questions and are sent the answers. `as_generator`
joins the two: the function runs in a thread of its own, and exactly one of the two sides runs at
a time, so this is a coroutine in a thread's clothes: no two things happen at once, and what is
asked does not depend on timing.

However the generator ends, the function ends with it: it is told at its next question, by an
exception that is no `Exception`, so that ``except Exception`` does not swallow it. A function
that computes on and asks nothing cannot be stopped; it is left behind after some seconds and
ends with the process.
"""

import contextvars
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")
CallingFunction: TypeAlias = Callable[[Callable[[Q], A]], T]
"""A function of ``ask``, which it calls with a question for an answer."""


class NoMoreAnswers(BaseException):
    """Raised in a function at its next question: nobody is there to answer."""


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    """How something ended: with a value or an error."""

    value: T | None = None
    error: BaseException | None = None

    def unwrapped(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


@dataclass(slots=True)
class _Meeting(Generic[Q, A, T]):
    """Where the function and the generator meet: one waits while the other runs."""

    told: SimpleQueue[tuple[Q] | _Outcome[T]] = field(default_factory=SimpleQueue)
    """A question, or how the function ended."""
    replies: SimpleQueue[_Outcome[A]] = field(default_factory=SimpleQueue)
    over: threading.Event = field(default_factory=threading.Event)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    """The function may ask from threads of its own."""

    def ask(self, question: Q) -> A:
        """Ask, from the function's side."""
        with self.one_at_a_time:
            if self.over.is_set():
                raise NoMoreAnswers
            self.told.put((question,))
            return self.replies.get().unwrapped()

    def run(self, function: CallingFunction[Q, A, T]) -> None:
        """Run the function to its end."""
        try:
            end: _Outcome[T] = _Outcome(function(self.ask))
        except BaseException as error:
            end = _Outcome(error=error)
        self.over.set()
        self.told.put(end)

    def end(self) -> None:
        """End the function at the question it waits at, or at its next one."""
        self.over.set()
        self.replies.put(_Outcome(error=NoMoreAnswers()))


def as_generator(function: CallingFunction[Q, A, T], patience_s: float) -> Generator[Q, A, T]:
    """Yield what a function asks, send it the answers, and return what it returns.

    Parameters
    ----------
    function : callable
        Takes ``ask``. Its errors are raised here, with the function's own traceback.
    patience_s : float
        For how long a function that was told to end is waited for.
    """
    meeting: _Meeting[Q, A, T] = _Meeting()
    # settings of this context, NumPy's error state among them, are the function's too
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(meeting.run, function), daemon=True)
    thread.start()
    try:
        while not isinstance(told := meeting.told.get(), _Outcome):
            try:
                answer = yield told[0]
            except Exception as error:
                meeting.replies.put(_Outcome(error=error))
            else:
                meeting.replies.put(_Outcome(answer))
        return told.unwrapped()
    finally:
        meeting.end()
        thread.join(patience_s)
