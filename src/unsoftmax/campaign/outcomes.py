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
used up, PUT_OFF becomes OVERDUE when the target has put the batch off for too long. `failure` says
whose fault a lost call is, what to do, and what is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from unsoftmax.campaign.answers import OracleReply
from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.limits import Retries, in_seconds
from unsoftmax.campaign.spans import Span
from unsoftmax.errors import BadWait, DimensionRefused, OracleError, RetryLater
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


# The largest number of float16, and a token's norm whose square, as scores are, is within it.
_FLOAT16_LARGEST = 65504.0
_FLOAT16_NORM = 100.0


def kept(ledger: Ledger) -> str:
    """Say what becomes of the answers so far."""
    if not ledger.answered:
        return "Nothing was answered yet."
    if ledger.lasting:
        return "Every answer so far is in the ledger: run the same again to go on."
    return "The answers are lost with this process: give a ledger to keep them."


def failure(
    end: CallEnd, ledger: Ledger, retries: Retries, batch: int, *, fits: bool = False
) -> BaseException:
    """Return the error that ends a run whose call was lost or interrupted.

    ``batch`` is how many sequences a call carries, ``fits`` whether the target is known to take
    tokens of this dimension.
    """
    result = end.result
    if end.outcome is CallOutcome.INTERRUPTED:
        assert isinstance(result, BaseException)
        return result
    now = result.error() if isinstance(result, OracleReply) else result
    earlier = [error for error in end.call.errors if type(error) is not type(now)]
    if isinstance(result, OracleError) and not isinstance(result, RetryLater):
        kind = DimensionRefused if isinstance(result, DimensionRefused) else OracleError
        error = kind(f"{_said(result)}{_before(earlier)} {kept(ledger)}")
        error, last = error.with_traceback(result.__traceback__), result.__cause__
    else:
        kind, sentence = _described(end, retries, batch, fits=fits or bool(ledger.answered))
        error = kind(f"{sentence}{_before(earlier)} {kept(ledger)}")
        last = result if isinstance(result, Exception) else None
    error.__cause__ = last
    if earlier:
        ways = [*earlier, *([last] if isinstance(last, Exception) else [])]
        error.__cause__ = ExceptionGroup("what went wrong in the tries", ways)
    return error


def _before(earlier: list[Exception]) -> str:
    """Say what went wrong in earlier tries, where it was something else."""
    if not earlier:
        return ""
    kinds = "another kind" if len(earlier) == 1 else f"{len(earlier)} other kinds"
    named = "; ".join(f"{type(error).__name__}: {_said(error)}" for error in earlier)
    return f" Earlier tries failed with errors of {kinds} ({named})."


def _said(error: BaseException) -> str:
    """Return an exception's words; one that fails to say any must not end what still flies."""
    try:
        return str(error).strip()
    except Exception as failure:
        return f"its message cannot be read: {type(failure).__name__}"


def _overflow(span: Span, row: int) -> str:
    """Say that a sequence may be too long for short floats, where it is."""
    at = span.start + row
    longest = float(np.max(np.linalg.norm(span.probes[at : at + 1][0], axis=1)))
    if longest**2 <= _FLOAT16_LARGEST:
        return ""
    what = "overflow" if longest > _FLOAT16_LARGEST else "may have scores that overflow"
    return (
        f" The sequence has tokens of norm {longest:.2g}, which {what} in float16: it ends at "
        f"{_FLOAT16_LARGEST:,.0f}. Where a learner has a radius, radius={_FLOAT16_NORM:g} keeps "
        "tokens, and scores of two, within it."
    )


def _described(
    end: CallEnd, retries: Retries, batch: int, *, fits: bool
) -> tuple[type[OracleError], str]:
    """Return the kind of error for a lost call, and the sentence that says what happened."""
    span, result = end.call.span, end.result
    count = end.call.failed + 1
    tries = f"in {count} tries" if count > 1 else "in 1 try"
    if isinstance(result, OracleReply):
        row, number = result.worst
        return OracleError, (
            f"The target answered {span} with {number} (sequence {span.start + row}) {tries}: "
            f"answers must be finite.{_overflow(span, row)}"
        )
    if isinstance(result, RetryLater):
        return OracleError, (
            f"The target has put off {span} for {in_seconds(end.put_off_s)} and asks for "
            f"{in_seconds(result.seconds)} more; the limit is "
            f"{in_seconds(retries.longest_wait_s)}. Allow more with "
            "retries=us.Retries(longest_wait_s=…)."
        )
    if isinstance(result, MemoryError):
        return OracleError, (
            f"The target ran out of memory at {span}: use a smaller batch (now {batch})."
        )
    said = f"{type(result).__name__}: {_said(result)}"
    # what failed otherwise before, or in saying how long to wait, is not refused for its shape
    alike = all(type(error) is type(result) for error in end.call.errors)
    shape = isinstance(result, (ValueError, IndexError, AssertionError)) and alike
    if not shape or isinstance(result, BadWait):
        return OracleError, f"The target did not answer {span} {tries} ({said})."
    if fits:
        return OracleError, f"{said}. The target did not answer {span} {tries}. {_advice(span)}"
    return DimensionRefused, (
        f"{said}. The target refused its first batch, {span}. It must take batches (B, N, d); if "
        f"its tokens have another dimension than {span.probes.dim}, use that as dim."
    )


def _advice(span: Span) -> str:
    """Say what a refusal may be for, where it is not the dimension, and what helps then."""
    longest = float(np.max(np.linalg.norm(span.probes[span.start : span.stop], axis=2)))
    tokens = span.probes.tokens
    count = "one token" if tokens == 1 else f"{tokens} tokens"
    many = f" If it is for the number of tokens, this learner needs {tokens}." if tokens > 1 else ""
    return (
        f"Each has {count}, the longest of norm {longest:.2g}. If the refusal is for the length of "
        "tokens, MultiHeadLearner (for one head, too) and ApproximateHead keep within radius=…; "
        f"learners of networks and layers have no such limit.{many} us.audit finds what is "
        "answered."
    )
