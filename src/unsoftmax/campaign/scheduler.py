"""The scheduler: which call is made next and when, as far as the budget goes.

There are as many slots as workers. A slot has one call in flight, or rests, or is free. A call
that must be made again stays in its slot: the slot rests for the pause and then makes it, while
the other slots go on. So a target that asks to wait gets less to do, not the same from another
worker, and a budget that ends meanwhile counts what rests as still needed. `Spending` says what
is left of it, and what would be enough.

What becomes of a call is the business of `calls`; this module knows no answer and no error.
It runs in one thread, which alone writes the ledger; the calls may be in others (`Threads`). A
future's result is what the call returned, or the error that it raised.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from unsoftmax.campaign.calls import (
    BatchSizes,
    CallEnd,
    OracleReply,
    PlannedCall,
    Result,
    Span,
    as_wide_as,
    end_of,
    kept,
)
from unsoftmax.campaign.fingerprint import asked
from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.ledger_format import Bill, Place, Settlement
from unsoftmax.campaign.limits import Budget, Retries, in_seconds
from unsoftmax.campaign.watching import Interrupts
from unsoftmax.errors import BudgetExceeded
from unsoftmax.probes import Array, Probes


@dataclass(slots=True)
class Spending:
    """A budget beside the ledger that it limits."""

    ledger: Ledger
    budget: Budget
    expected: int | None
    """Queries of the plan and the hold-out; None where the plan knows only a bound."""
    at_most: int
    """The same with everything that the plan may ask again."""
    tokens: int | None
    """Tokens of the plan, without the hold-out; None like ``expected``."""
    checks: int
    """Queries of the hold-out."""
    noisy: bool = False
    """Whether the questions by which a resumed run recognises its target were answered otherwise
    than before: then they are asked twice."""

    def allowed(self, count: int, probes: Probes) -> int:
        """Return how many of so many probes the budget still allows."""
        budget = self.budget
        if budget.queries is not None:
            count = min(count, budget.queries - self.ledger.spent.queries)
        if budget.tokens is not None:
            count = min(count, (budget.tokens - self.ledger.spent.tokens) // probes.tokens)
        return max(0, count)

    def covers(self, spans: Iterable[Span]) -> bool:
        """Whether the budget still allows all of several spans."""
        cost = [(len(span), len(span) * span.probes.tokens) for span in spans]
        queries, tokens = map(sum, zip(*cost, strict=True))
        budget, spent = self.budget, self.ledger.spent
        return (budget.queries is None or spent.queries + queries <= budget.queries) and (
            budget.tokens is None or spent.tokens + tokens <= budget.tokens
        )

    def exceeded(self, pending: list[Span]) -> BudgetExceeded:
        """Say that ``pending`` cannot be paid, and what would be enough."""
        spent, needed, tokens = self.ledger.spent, self._needed(pending), None
        doubt = f", {spent.in_doubt:,} of them in doubt" if spent.in_doubt else ""
        enough = f"With a budget of {spent.queries + needed:,} queries"
        if self.budget.tokens is not None:
            tokens = self._needed_tokens(pending)
            enough += f" and {spent.tokens + tokens:,} tokens{self._unknown_tokens(pending)}"
        if self.expected is None:
            wanted = f"{needed:,} more queries are needed for the next step"
            enough += (
                " that step can be asked; how many follow depends on the target, and the plan "
                f"allows {self.at_most:,} in all. Every start asks {self._to_recognise()} recorded "
                "questions again: a budget well above this one saves them."
            )
        else:
            wanted = f"about {needed:,} more queries are needed"
            again = self._may_be_repeated(pending)
            enough += " it can be finished" + (
                f", unless some must be asked again, {again:,} at most." if again else "."
            )
        return BudgetExceeded(
            f"The budget of {self.budget} is spent: {spent.queries:,} queries and "
            f"{spent.tokens:,} tokens were paid{doubt}, {wanted}. {kept(self.ledger)} {enough}",
            spent=spent.queries,
            needed=needed,
            needed_tokens=tokens,
            in_doubt=spent.in_doubt,
        )

    def _needed(self, pending: list[Span]) -> int:
        counts = self.ledger.counts()
        done = sum(counts.get(purpose, 0) for purpose in ("data", "pilot", "check"))
        now = sum(map(len, pending))
        # what is asked again comes on top of the plan
        needed = max(now, (self.expected or 0) - done + _repeats(pending))
        return needed + self._to_recognise()

    def _needed_tokens(self, pending: list[Span]) -> int:
        """Count the tokens of the plan that are left, and of what is known of the hold-out."""
        done = self.ledger.tokens()
        asked = {"check": 0, "again": 0, "data": 0, "pilot": 0}
        for span in pending:
            asked[span.probes.purpose] += len(span) * span.probes.tokens
        planned = (self.tokens or 0) - done.get("data", 0) - done.get("pilot", 0)
        left = max(asked["data"] + asked["pilot"], planned) + asked["again"] + asked["check"]
        return left + self._to_recognise() * self.ledger.longest()

    def _unknown_tokens(self, pending: list[Span]) -> str:
        """Name the sequences of the hold-out that are not made yet: of any length."""
        made = sum(len(span) for span in pending if span.probes.purpose == "check")
        left = self.checks - self.ledger.counts().get("check", 0) - made
        known = self.expected is None or left <= 0
        return "" if known else f", with those of {left:,} more sequences of the hold-out,"

    def _to_recognise(self) -> int:
        """Return how many questions a resumed run asks again: twice if the target is noisy."""
        again = asked(self.ledger.answered)
        return 2 * again if self.noisy else again

    def _may_be_repeated(self, pending: list[Span]) -> int:
        """Bound how many queries may yet be asked again beyond those that are ``pending``."""
        again = self.ledger.counts().get("again", 0) + _repeats(pending)
        return max(0, self.at_most - (self.expected or 0) - again)


def _repeats(pending: list[Span]) -> int:
    return sum(len(span) for span in pending if span.probes.purpose == "again")


@dataclass(slots=True)
class WorkerSlot:
    """One of the calls that may be made at the same time."""

    own: deque[PlannedCall] = field(default_factory=deque)
    """What it asks before it takes from the common queue: what failed here."""
    due: float = 0.0
    """It rests until this moment."""
    busy: bool = False
    """Whether a call of it is in flight."""


class RunningCall(NamedTuple):
    """A call that was made: in which slot, at what cost, under which intent, and when."""

    slot: WorkerSlot
    call: PlannedCall
    bill: Bill
    intent: int
    began: float


@dataclass(slots=True, kw_only=True)
class RoundState:
    """What is asked for, where the answers go, and how far it has come."""

    waiting: deque[PlannedCall]
    """What no slot has taken yet."""
    put: Callable[[int, int, Array], None]
    """Takes rows by part and start."""
    index: int | None
    """The round that the ledger records them in; None: the fingerprint, paid and not recorded."""
    slots: list[WorkerSlot]
    flying: dict[Future[Result], RunningCall] = field(default_factory=dict)
    trouble: BaseException | None = None
    """What ends it: nothing new is asked, and what flies is waited for."""

    def pending(self) -> list[Span]:
        """Return what is not answered and not in flight."""
        own = [call for slot in self.slots for call in slot.own]
        return [call.span for call in (*own, *self.waiting)]

    def rest_s(self, now: float) -> float | None:
        """Return in how many seconds the next resting slot is due; None where none rests."""
        if self.trouble is not None:
            return None
        dues = [slot.due for slot in self.slots if slot.own and not slot.busy and slot.due > now]
        return min(dues) - now if dues else None

    def bill(self, span: Span) -> Bill:
        """Say what a call costs."""
        purpose = "fingerprint" if self.index is None else span.probes.purpose
        return Bill(purpose, len(span), span.probes.tokens)


@dataclass(slots=True, kw_only=True)
class Scheduler(ABC):
    """Makes the calls of a round."""

    ask: Callable[[Span], OracleReply]
    pool: Executor
    workers: int
    timeout_s: float
    """How long a call may take; infinite where nobody said."""
    sizes: BatchSizes
    retries: Retries
    ledger: Ledger
    spending: Spending
    interrupts: Interrupts

    @abstractmethod
    def report(self, end: CallEnd) -> None:
        """Tell the caller's watcher."""

    @abstractmethod
    def explain(self, end: CallEnd) -> BaseException:
        """Make the error of a call that was lost or interrupted."""

    def ask_for(
        self, waiting: Iterable[Span], put: Callable[[int, int, Array], None], index: int | None
    ) -> list[Span]:
        """Ask for spans of the round ``index``; return what the budget does not allow.

        Raises
        ------
        BaseException
            What ended it early, after everything in flight is recorded.
        """
        slots = [WorkerSlot() for _ in range(self.workers)]
        calls = deque(PlannedCall(span) for span in waiting)
        state = RoundState(waiting=calls, put=put, index=index, slots=slots)
        while True:
            now = time.monotonic()
            self._notice_interrupts(state)
            self._launch_all(state, now)
            if state.flying:
                self._end_all(state, now)
            elif (rest_s := state.rest_s(now)) is not None:
                with self.interrupts.released():
                    time.sleep(rest_s)
            else:
                break
        if state.trouble is not None:
            raise state.trouble
        return state.pending()

    def _end_all(self, state: RoundState, began: float) -> None:
        """Wait until a call is back, or late, or a slot has rested; end all that are.

        ``began`` is the moment at which the slots that had rested were given work.
        """
        # with one worker every call is back by now
        back = {future for future in state.flying if future.done()} or self._wait(state, began)
        now = time.monotonic()
        for future in [*state.flying]:
            if future in back:
                self._end(state, state.flying.pop(future), future.result())
            elif now - state.flying[future].began >= self.timeout_s:
                assert isinstance(self.pool, Threads)
                self.pool.leave(future)
                late = TimeoutError(f"no answer within {in_seconds(self.timeout_s)}")
                self._end(state, state.flying.pop(future), late)

    def _wait(self, state: RoundState, began: float) -> Collection[Future[Result]]:
        """Wait until a call is back, or may be late, or a slot has rested; return what is back."""
        rest_s = state.rest_s(began)
        due = min(running.began for running in state.flying.values()) + self.timeout_s
        left_s = min(due - time.monotonic(), float("inf") if rest_s is None else rest_s)
        limit_s = None if left_s == float("inf") else max(0.0, left_s)
        return wait(state.flying, limit_s, FIRST_COMPLETED).done

    def _notice_interrupts(self, state: RoundState) -> None:
        if state.trouble is None and self.interrupts.number is not None:
            state.trouble = self.interrupts.ending()

    def _launch_all(self, state: RoundState, now: float) -> None:
        """Make a call in every free slot that has one which the budget allows."""
        for slot in state.slots:
            if slot.busy or slot.due > now:
                continue
            if (call := self._next(state, slot)) is not None:
                bill = state.bill(call.span)
                self._launch(state, slot, call, bill, self.ledger.intend(bill))

    def _launch(
        self, state: RoundState, slot: WorkerSlot, call: PlannedCall, bill: Bill, intent: int
    ) -> None:
        slot.busy = True
        running = RunningCall(slot, call, bill, intent, time.monotonic())
        state.flying[self.pool.submit(self.ask, call.span)] = running

    def _next(self, state: RoundState, slot: WorkerSlot) -> PlannedCall | None:
        """Take the next call of a slot, cut to what the budget allows; None if that is nothing."""
        source = slot.own or state.waiting
        if state.trouble is not None or not source:
            return None
        span, left = source[0].span, len(source[0].span)
        size = min(left, self.sizes.of(span.probes, self.ledger.width))
        count = self.spending.allowed(size, span.probes)
        # half a fingerprint recognises nobody
        if not count or (state.index is None and count < size):
            return None
        call = source.popleft()
        if count < left:
            source.appendleft(call.of(span.within(count, left)))
            call = call.of(span.within(0, count))
        return call

    def _end(self, state: RoundState, running: RunningCall, result: Result) -> None:
        """Record what became of a call, and make the next one of its slot."""
        now, slot = time.monotonic(), running.slot
        self.interrupts.note(now - running.began)
        if isinstance(result, OracleReply):
            result = as_wide_as(result, self.ledger.width, running.call.span)
        end = end_of(running.call, result, self.retries, now)
        ends = end.outcome.ends
        slot.own.extendleft(reversed(end.again))
        slot.due, slot.busy = now + end.pause_s, False
        self._notice_interrupts(state)
        following = None if end.again or ends else self._next(state, slot)
        bill = None if following is None else state.bill(following.span)
        settlement = self._settlement(state, end, running.bill)
        intent = self.ledger.settle(running.intent, settlement, bill)
        if ends and state.trouble is None:
            state.trouble = self.explain(end)
        try:
            self.report(end)
        except Exception as failure:  # the caller's own; what flies is paid for
            state.trouble = state.trouble or failure
        if following is not None and bill is not None and intent is not None:
            self._launch(state, slot, following, bill, intent)

    def _settlement(self, state: RoundState, end: CallEnd, bill: Bill) -> Settlement:
        """Hand over the rows that came, and say what the ledger books."""
        span, index, answered = end.call.span, state.index, 0
        recorded: list[tuple[Place, Array]] = []
        for start, rows in end.rows_kept():
            state.put(span.part, start, rows)
            answered += len(rows)
            if index is not None:
                recorded.append(((index, span.part, start), rows))
        return Settlement(bill, answered, end.outcome.books, recorded)


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
