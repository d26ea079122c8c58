"""What may become of a call of the oracle, and what follows from it: one table.

::

    outcome        the answers that came   the others   asked again    the run
    ANSWERED       kept                    –            –              goes on
    PARTLY         kept                    failed       after a pause  goes on
    FAILED         –                       failed       after a pause  goes on
    PUT_OFF        –                       put off      when told to   goes on
    LOST           kept                    failed       no             ends: OracleError
    OVERDUE        –                       put off      no             ends: OracleError
    INTERRUPTED    –                       failed       no             ends: what was raised

"Failed" queries are paid, those "put off" are not: the target says that it answered none.
A row that is not finite is a missing answer. PARTLY and FAILED become LOST when their tries are
used up, PUT_OFF becomes OVERDUE when the target has put the batch off for too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias

from unsoftmax.campaign.answers import OracleReply
from unsoftmax.campaign.retries import Retries
from unsoftmax.campaign.spans import Span
from unsoftmax.errors import OracleError, RetryLater
from unsoftmax.probes import Array


class CallOutcome(Enum):
    """What became of a call."""

    ANSWERED = "answered"
    PARTLY = "partly answered"
    FAILED = "failed, may be cured"
    PUT_OFF = "put off by the target"
    LOST = "failed for good"
    OVERDUE = "put off for too long"
    INTERRUPTED = "interrupted"

    # by identity, for the table below: an Enum's own hash is made anew for every call
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Consequence:
    """What follows from an outcome: how the ledger books what did not come, and what is next."""

    books: Literal["failed", "put off"] = "failed"
    again: bool = False
    ends: bool = False


CONSEQUENCES = {
    CallOutcome.ANSWERED: Consequence(),
    CallOutcome.PARTLY: Consequence(again=True),
    CallOutcome.FAILED: Consequence(again=True),
    CallOutcome.PUT_OFF: Consequence("put off", again=True),
    CallOutcome.LOST: Consequence(ends=True),
    CallOutcome.OVERDUE: Consequence("put off", ends=True),
    CallOutcome.INTERRUPTED: Consequence(ends=True),
}


class PlannedCall(NamedTuple):
    """Questions to ask in one call, and what has been tried for them."""

    span: Span
    failed: int = 0
    """Calls in which they were not answered."""
    put_off_since: float | None = None
    """When the target first asked to wait."""
    errors: tuple[Exception, ...] = ()
    """Why they were not answered: the first error of every type."""

    def of(self, span: Span) -> PlannedCall:
        """Return the same for other questions, which were tried together with these."""
        return PlannedCall(span, self.failed, self.put_off_since, self.errors)

    def having_failed(self, result: OracleReply | Exception) -> PlannedCall:
        """Return the same after another try."""
        error = result.error() if isinstance(result, OracleReply) else result
        known = type(error) in map(type, self.errors)
        errors = self.errors if known else (*self.errors, error)
        return self._replace(failed=self.failed + 1, errors=errors)


Result: TypeAlias = OracleReply | BaseException


class CallEnd(NamedTuple):
    """A call that has come back."""

    call: PlannedCall
    outcome: CallOutcome
    result: Result
    again: tuple[PlannedCall, ...] = ()
    pause_s: float = 0.0
    put_off_s: float = 0.0
    """How long ago the target first asked to wait."""

    @property
    def consequence(self) -> Consequence:
        """What follows from the outcome."""
        return CONSEQUENCES[self.outcome]

    def rows_kept(self) -> list[tuple[int, Array]]:
        """Return the answers that came, by the place of their first: (start, rows)."""
        reply = self.result
        if not isinstance(reply, OracleReply):
            return []
        first = self.call.span.start
        return [(first + start, reply.rows[start:stop]) for start, stop in reply.answered]


def end_of(call: PlannedCall, result: Result, retries: Retries, now: float) -> CallEnd:
    """Find the outcome of a call, and what of it is asked again after which pause."""
    if isinstance(result, RetryLater):
        return _put_off(call, result, retries, now)
    outcome = _outcome(result, last=call.failed + 1 >= retries.tries)
    if not CONSEQUENCES[outcome].again:
        return CallEnd(call, outcome, result)
    missing = result.missing if isinstance(result, OracleReply) else ((0, len(call.span)),)
    assert not isinstance(result, BaseException) or isinstance(result, Exception)
    tried = call.having_failed(result)
    again = tuple(tried.of(call.span.within(*stretch)) for stretch in missing)
    return CallEnd(call, outcome, result, again, retries.pause(tried.failed))


def _put_off(call: PlannedCall, refusal: RetryLater, retries: Retries, now: float) -> CallEnd:
    since = now if call.put_off_since is None else call.put_off_since
    pause_s = max(refusal.seconds, retries.pause_s)
    if now - since + pause_s > retries.longest_wait_s:
        return CallEnd(call, CallOutcome.OVERDUE, refusal, put_off_s=now - since)
    again = call._replace(put_off_since=since)
    return CallEnd(call, CallOutcome.PUT_OFF, refusal, (again,), pause_s)


def _outcome(result: Result, *, last: bool) -> CallOutcome:
    if isinstance(result, OracleReply):
        if not result.missing:
            return CallOutcome.ANSWERED
        in_part = CallOutcome.PARTLY if result.answered else CallOutcome.FAILED
        return CallOutcome.LOST if last else in_part
    if not isinstance(result, Exception):
        return CallOutcome.INTERRUPTED
    # no other try helps where memory ran out or the answer is of another kind
    if last or isinstance(result, (MemoryError, OracleError)):
        return CallOutcome.LOST
    return CallOutcome.FAILED
