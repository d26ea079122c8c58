"""One call of the oracle: what it carries, what comes back, and what follows from that.

Inside the runner every answer is a row: n sequences are answered by an array (n, m), m = 1 for
an oracle of numbers. Rows are stored by the place of their question. Nothing is ever reshaped:
an array of the right size and another shape is refused, never rearranged.

What may become of a call is one table::

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

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.limits import Retries, in_seconds
from unsoftmax.errors import (
    AnswerMisshapen,
    BadWait,
    DimensionRefused,
    OracleError,
    RetryLater,
    Terminated,
)
from unsoftmax.probes import Array, Probes, Round
from unsoftmax.protocol import Answers, Oracle, Outputs, Plan, as_array
from unsoftmax.validate.function_bound import SAMPLES


@dataclass(slots=True)  # two are made for every call, and a frozen one takes twice the time
class Span:
    """Some probes of one part of a round: ``start`` to ``stop``, the latter not included."""

    part: int
    start: int
    stop: int
    probes: Probes

    def __len__(self) -> int:
        return self.stop - self.start

    def within(self, start: int, stop: int) -> Span:
        """Return the probes from ``start`` to ``stop``, counted from its own first."""
        return Span(self.part, self.start + start, self.start + stop, self.probes)

    def __str__(self) -> str:
        tokens, phase = self.probes.tokens, f"“{self.probes.phase}”"
        of = f"{tokens} ids" if self.probes.of_ids else f"shape ({tokens}, {self.probes.dim})"
        if len(self) == 1:
            return f"1 sequence of {of}, number {self.start} of {phase}"
        return f"{len(self)} sequences of {of}, {self.start}–{self.stop - 1} of {phase}"


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """How many sequences a call carries."""

    given: int | None = None
    """What the caller asks for. None: as many as the limits below allow."""
    numbers: int = 2**21
    """Most numbers in the questions of a call, or in its answers: 16 MiB. It keeps d = 1024 far
    below 400 MB with everything that an oracle makes of a batch."""
    workers: int = 1
    """Calls at the same time."""
    most: int = 2048
    """Most sequences in all of these: what is in flight is paid again after kill −9."""
    assumed_width: int = 2**16
    """Numbers per answer while none has arrived, for learners of vectors: 32 sequences per call.
    Larger: smaller first calls. Smaller: the first vectors, if long, take more than 16 MiB."""

    def of(self, probes: Probes, width: int | None) -> int:
        """Return how many probes are asked at once; ``width``: numbers per answer, if known."""
        if self.given is not None:
            return self.given
        numbers = max(probes.tokens * probes.dim, width or self.assumed_width)
        return max(1, min(self.numbers // numbers, self.most // self.workers))


def gaps(part: int, probes: Probes, known: list[tuple[int, int]]) -> list[Span]:
    """Return the probes that are not in ``known``: (start, stop) of what is, in order."""
    found, at = [], 0
    for start, stop in [*known, (len(probes), len(probes))]:
        if at < start:
            found.append(Span(part, at, start, probes))
        at = stop
    return found


class OracleReply(NamedTuple):
    """What an oracle answered to a span.

    Attributes
    ----------
    rows : array (n, m)
        A row per sequence, float64. Rows that are ``missing`` hold NaN or inf somewhere.
    answered, missing : tuple of (start, stop)
        Which rows are finite and which are not, counted from the span's first.
    """

    rows: Array
    answered: tuple[tuple[int, int], ...]
    missing: tuple[tuple[int, int], ...] = ()

    @property
    def width(self) -> int:
        """Numbers per sequence, m."""
        return int(self.rows.shape[1])

    @property
    def worst(self) -> tuple[int, float]:
        """The first row that is missing, and the number in it that is not finite."""
        row = self.missing[0][0]
        return row, float(next(y for y in self.rows[row] if not np.isfinite(y)))

    def error(self) -> FloatingPointError:
        """Say what is missing, as if it had been raised."""
        return FloatingPointError("{1} in row {0} of the answer".format(*self.worst))


@dataclass(frozen=True, slots=True)
class QuestionLimits:
    """What a learner's plan says of its questions: others are not sent.

    Attributes
    ----------
    longest_token : float
        Largest 2-norm of a token.
    most_tokens : float
        Largest number of tokens.
    """

    longest_token: float = np.inf
    most_tokens: float = np.inf
    # Norms are rounded, and tokens are sums of two.
    slack: float = 1e-9

    @classmethod
    def of(cls, plan: Plan) -> QuestionLimits:
        """Take what a plan says; what it does not say has no limit."""
        given = plan.longest_token, plan.most_tokens
        return cls(*(np.inf if limit is None else limit for limit in given))

    def refuse_beyond(self, X: Array, span: Span) -> None:
        """Refuse questions that a target was never told of.

        Raises
        ------
        OracleError
            A sequence has more tokens, or a longer one.
        """
        if X.shape[1] > self.most_tokens:
            raise OracleError(
                f"{span}: the learner's plan said at most {self.most_tokens:,} tokens. Nothing "
                "was sent."
            )
        most = self.longest_token * (1 + self.slack)
        # the root of all squares is at least the longest: a pass without a copy, as a rule
        if np.vdot(X, X) > most**2:
            longest = float(np.max(np.linalg.norm(X, axis=-1)))
            if not longest <= most:
                raise OracleError(
                    f"{span}: a token would have norm {longest:.1e}, and the learner's plan said "
                    f"at most {self.longest_token:.1e}. Nothing was sent: the target's weights "
                    "are too small, or its answers too coarse, for tokens within that."
                )


def ask(
    oracle: Oracle,
    span: Span,
    outputs: Outputs,
    limits: QuestionLimits = QuestionLimits(),
    *,
    ids: bool = False,
) -> OracleReply:
    """Make the probes of a span and call the oracle once; ``ids``: it takes whole numbers (B, N).

    Raises
    ------
    OracleError
        What it returned is not one number per sequence (one row, for a learner of vectors), or
        the question is beyond the limits: then it was not asked.
    Exception
        Whatever the oracle raises.
    """
    X = span.probes[span.start : span.stop]
    if span.probes.phase != SAMPLES:  # the user's own
        limits.refuse_beyond(X, span)
    if ids:
        X = X[:, :, 0].astype(np.int64)
    try:
        raw = oracle(X)
    except Terminated:
        raise  # a signal, not the target
    except SystemExit as error:
        raise RuntimeError(f"the target called sys.exit({error.code!r})") from error
    except RetryLater as refusal:
        # a subclass may have left its seconds out, or written anything to them
        raise RetryLater(getattr(refusal, "seconds", None)) from refusal  # type: ignore[arg-type]
    except OracleError as refusal:
        refusal.refused = "" if isinstance(refusal, AnswerMisshapen) else _said(refusal)
        raise
    return checked(raw, span, outputs)


def checked(raw: Any, span: Span, outputs: Outputs) -> OracleReply:
    """Turn what an oracle returned into rows (n, m) of float64, and find those not finite.

    Raises
    ------
    OracleError
        Not n real numbers, or (for a learner of vectors) not n rows of at least one.
    """
    try:
        y = as_array(raw)
    except Exception as error:
        raise OracleError(f"The target's answer to {span} is no array: {error}.") from error
    if y.dtype.kind not in "fiub":
        raise OracleError(f"The target answered {span} with {y.dtype} instead of real numbers.")
    if outputs == "positions" and y.ndim == 3 and y.shape[:2] == (len(span), span.probes.tokens):
        y = y.reshape(len(span), -1)
    if y.shape == (len(span),):
        y = y[:, None]
    if y.ndim != 2 or len(y) != len(span) or not _fits(y.shape[1], outputs):
        raise _wrong_shape(y.shape, span, outputs)
    rows = y.astype(np.float64)
    finite = np.isfinite(rows)
    if np.count_nonzero(finite) == rows.size:
        return OracleReply(rows, answered=((0, len(rows)),))
    whole = np.asarray(finite.all(axis=1))
    return OracleReply(rows, answered=_runs(whole), missing=_runs(~whole))


def _fits(width: int, outputs: Outputs) -> bool:
    return width == 1 if outputs == "scalar" else width >= 1


def _wrong_shape(shape: tuple[int, ...], span: Span, outputs: Outputs) -> OracleError:
    n, form, wanted = len(span), f"({len(span)},)", "one number per sequence."
    if outputs != "scalar":
        every = f", or ({n}, {span.probes.tokens}, m)" if outputs == "positions" else ""
        form, wanted = f"({n}, m){every}", "one row of m numbers per sequence, or one number."
    said = f"The target answered {span} with shape {shape} instead of {form}: "
    if outputs == "scalar" and len(shape) == 2 and shape[0] == n and shape[1] > 1:
        return OracleError(
            f"{said}{shape[1]} numbers per sequence, where this learner takes one. Choose it with "
            "us.oracles.coordinate(oracle, k), or recover whole vectors: AttentionLayerLearner, "
            "FeedForwardLearner."
        )
    return OracleError(f"{said}it must give {wanted}")


def as_wide_as(reply: OracleReply, width: int | None, span: Span) -> OracleReply | OracleError:
    """Return a reply, or what is wrong where earlier answers had another number of numbers."""
    if width in (None, reply.width):
        return reply
    return OracleError(
        f"The target answered {span} with {reply.width} numbers per sequence; its first answers in "
        f"this run had {width}. All answers must have the same."
    )


def _runs(mask: NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """Return the stretches in which ``mask`` is true: (start, stop) each."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return tuple((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))


@dataclass(slots=True)
class RoundAnswers:
    """The answers of a round: one array per part, made when m is known."""

    parts: Round
    outputs: Outputs
    _arrays: list[Array] = field(default_factory=list)

    def put(self, part: int, start: int, rows: Array) -> None:
        """Store the answers to the probes of a part from ``start`` on."""
        if not self._arrays:
            self._make(rows.shape[1])
        self._arrays[part][start : start + len(rows)] = rows

    def for_learner(self, width: int | None) -> Answers:
        """Return (n,) per part, (n, m) for a learner of vectors; ``width``: m, if known."""
        if not self._arrays:
            self._make(width or 0)  # a round without probes may come before any answer
        if self.outputs != "scalar":
            return self._arrays
        return [rows[:, 0] for rows in self._arrays]

    def _make(self, width: int) -> None:
        self._arrays = [np.empty((len(probes), width)) for probes in self.parts]


class CallOutcome(Enum):
    """What became of a call: what follows, and how the ledger books what did not come."""

    ANSWERED = "answered", ""
    PARTLY = "partly answered", "again"
    FAILED = "failed, may be cured", "again"
    PUT_OFF = "put off by the target", "again", "put off"
    LOST = "failed for good", "ends"
    OVERDUE = "put off for too long", "ends", "put off"
    INTERRUPTED = "interrupted", "ends"

    def __init__(
        self, words: str, follows: str, books: Literal["failed", "put off"] = "failed"
    ) -> None:
        self.again, self.ends, self.books = follows == "again", follows == "ends", books


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
    if not outcome.again:
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
    error.__cause__, error.refused = last, _refusal_in(result)
    if earlier:
        ways = [*earlier, *([last] if isinstance(last, Exception) else [])]
        error.__cause__ = ExceptionGroup("what went wrong in the tries", ways)
    return error


def _refusal_in(result: Result) -> str:
    """Return what the target said, where it raised an error of its own at these questions."""
    if isinstance(result, OracleError):
        return result.refused
    other = isinstance(getattr(result, "__context__", None), (SystemExit, RetryLater))
    if other or isinstance(result, (OracleReply, MemoryError)):
        return ""
    return f"{type(result).__name__}: {_said(result)}"


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
        f"{_FLOAT16_LARGEST:,.0f}. Tokens, and scores of two, are within it with "
        f"radius={_FLOAT16_NORM:g}."
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
    said = said.removesuffix(".")
    if fits:
        return OracleError, f"{said}. The target did not answer {span} {tries}. {_advice(span)}"
    refused = f"{said}. The target refused its first batch, {span}. It must take batches"
    if span.probes.of_ids:
        return OracleError, f"{refused} (B, N) of ids, whole numbers of the vocabulary."
    return DimensionRefused, (
        f"{refused} (B, N, d); if its tokens have another dimension than {span.probes.dim}, use "
        "that as dim."
    )


def _advice(span: Span) -> str:
    """Say what a refusal may be for, where it is not the dimension, and what helps then."""
    tokens, word = span.probes.tokens, "id" if span.probes.of_ids else "token"
    count = f"one {word}" if tokens == 1 else f"{tokens} {word}s"
    many = f" If it is for the number of {word}s, this learner needs {tokens}."
    longest = float(np.max(np.linalg.norm(span.probes[span.start : span.stop], axis=2)))
    length = "" if span.probes.of_ids else f", the longest of norm {longest:.2g}"
    return f"Each has {count}{length}.{many * (tokens > 1)} us.audit finds what is answered."
