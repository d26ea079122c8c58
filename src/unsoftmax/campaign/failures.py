"""What is said when a call is lost: whose fault, what to do, and what is kept."""

from __future__ import annotations

import numpy as np

from unsoftmax.campaign.answers import OracleReply
from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.outcomes import CallEnd, CallOutcome
from unsoftmax.campaign.retries import Retries, in_seconds
from unsoftmax.campaign.spans import Span
from unsoftmax.errors import BadWait, DimensionRefused, OracleError, RetryLater

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


def failure(end: CallEnd, ledger: Ledger, retries: Retries, batch: int) -> BaseException:
    """Return the error that ends a run whose call was lost or interrupted.

    ``batch`` is how many sequences a call carries.
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
        kind, sentence = _described(end, ledger, retries, batch)
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
    end: CallEnd, ledger: Ledger, retries: Retries, batch: int
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
    if shape and not ledger.answered and not isinstance(result, BadWait):
        return DimensionRefused, (
            f"The target refused its first batch, {span} ({said}). It must take batches "
            f"(B, N, d); if its tokens have another dimension than {span.probes.dim}, use that as "
            "dim."
        )
    return OracleError, f"The target did not answer {span} {tries} ({said})."
