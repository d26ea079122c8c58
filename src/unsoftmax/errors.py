"""Everything that can go wrong on purpose, by whose fault it is.

::

    UnsoftmaxError
    ├── OracleError          the target: no answer, or not one number (or row) per sequence
    │   ├── RetryLater       raised by an oracle: nothing of this batch was answered, ask later
    │   └── TokensRefused    it refuses long tokens, and answers shorter ones
    ├── LedgerError          the ledger file: unreadable, locked, foreign, newer, disk full
    │   └── LedgerMismatch   a good ledger, but of another target, learner or revision
    ├── BudgetExceeded       the caller's limit: the next query would pass it
    ├── AlgorithmError       a function of the caller's that learns: it raised, or returned no model
    ├── NotIdentifiable      nobody's: the answers cannot determine something
    ├── ModelMismatch        the model class: the answers contradict it
    └── DimensionRefused     both ModelMismatch and OracleError: the target takes another dim

Wrong arguments are ValueError or TypeError and name the fix. Only the command line turns
any of these into an exit status. `Terminated` is no error: a signal asked the program to end.
"""

from collections.abc import Mapping
from numbers import Real
from types import FrameType
from typing import Any


class UnsoftmaxError(Exception):
    """Base of every error that unsoftmax raises on purpose, wrong arguments apart."""


class OracleError(UnsoftmaxError):
    """The target did not answer, or its answer is not one finite number (or row) per sequence.

    Attributes
    ----------
    refused : str
        What the target said where it raised an error of its own at what was asked, as it does where
        questions have too many tokens, or too long ones; "" where something else went wrong.
    """

    refused: str = ""


class AnswerMisshapen(OracleError):
    """A target answers in another shape than is wanted, whatever it is asked."""


class ServerFailed(ConnectionError):
    """An endpoint failed at a question and said so; it may refuse that one alone."""


class BadWait(ValueError):
    """The seconds of a `RetryLater` are negative or not finite: the oracle's own mistake."""


class RetryLater(OracleError):
    """An oracle raises this to be asked again after some seconds: it did not answer the batch.

    The runner waits that long, while other workers go on, and Ctrl-C ends the wait. The batch is
    not counted as spent, nor as a failed try; `unsoftmax.Retries` bounds the waiting.

    Parameters
    ----------
    seconds : float
        How long to wait, 0 or more: an endpoint's Retry-After.

    Raises
    ------
    ValueError, TypeError
        ``seconds`` is negative, not finite, or no number.

    Examples
    --------
    >>> import unsoftmax as us
    >>> def limited(X):
    ...     raise us.RetryLater(30)
    """

    seconds: float

    def __init__(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, Real):
            raise TypeError(f"seconds must be a number; it is {seconds!r}.")
        try:
            self.seconds = float(seconds)
        except OverflowError:  # a whole number larger than any float
            self.seconds = float("inf")
        if not 0 <= self.seconds < float("inf"):
            raise BadWait(f"seconds must be a finite number, 0 or more; it is {self.seconds}.")
        super().__init__(f"The target asks to be asked again in {self.seconds:g} s.")

    def __reduce__(self) -> tuple[Any, ...]:
        return RetryLater, (self.seconds,)


class TokensRefused(OracleError):
    """The target refuses tokens as long as a learner needs, and answers shorter ones.

    Attributes
    ----------
    longest : float
        Norm of the longest token that it is known to answer, or the caller's limit.
    """

    def __init__(self, message: str, longest: float) -> None:
        super().__init__(message)
        self.longest = longest

    def __reduce__(self) -> tuple[Any, ...]:
        return TokensRefused, (str(self), self.longest)


class LedgerError(UnsoftmaxError):
    """The ledger file cannot be used; it is left as it was found."""


class LedgerMismatch(LedgerError):
    """The ledger belongs to another target, learner, setting or revision."""


class BudgetExceeded(UnsoftmaxError):
    """The next query would pass the budget; every answer so far is in the ledger, if there is one.

    Attributes
    ----------
    spent : int
        Queries paid over the ledger's life, repeated and in-doubt ones included.
    needed : int
        Queries that are still needed to finish, as far as is known now. A budget of
        ``spent + needed`` queries is enough unless some must be asked again; the message bounds
        how many.
    needed_tokens : int or None
        The same in tokens, where the budget limits them; what is not yet known of the hold-out's
        lengths comes on top, as the message says.
    in_doubt : int
        Queries that were in flight when an earlier process died: asked, perhaps answered,
        never recorded. They are part of ``spent``.
    """

    def __init__(
        self,
        message: str,
        *,
        spent: int,
        needed: int,
        in_doubt: int,
        needed_tokens: int | None = None,
    ) -> None:
        super().__init__(message)
        self.spent = spent
        self.needed = needed
        self.needed_tokens = needed_tokens
        self.in_doubt = in_doubt

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(vars(self)))


class AlgorithmError(UnsoftmaxError):
    """An algorithm that was given as a function failed, or returned no network; it is named."""


class NotIdentifiable(UnsoftmaxError):
    """No answers, however many, can determine something that was asked for.

    Attributes
    ----------
    determined : dict
        The parameters that the answers do determine, by name.
    reason : str
        Which of `unsoftmax.refusals.Reason` it is; "" for those without a name.
    """

    def __init__(self, message: str, *, determined: Mapping[str, Any], reason: str = "") -> None:
        super().__init__(message)
        self.determined = dict(determined)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(vars(self)))


class ModelMismatch(UnsoftmaxError):
    """The answers contradict the model class that the learner assumes.

    Attributes
    ----------
    determined : dict
        What the learner found all the same, by name; most find nothing.
    reason : str
        Which of `unsoftmax.refusals.Reason` it is; "" for those without a name.
    """

    def __init__(
        self, message: str, *, determined: Mapping[str, Any] | None = None, reason: str = ""
    ) -> None:
        super().__init__(message)
        self.determined = dict(determined or {})
        self.reason = reason


class DimensionRefused(ModelMismatch, OracleError):
    """The target takes sequences of another dimension than the learner asks.

    It is the target that refused (an `OracleError`), and what it refused is the assumed
    model class (a `ModelMismatch`): asking again cannot help, another ``dim`` can.
    """


class Terminated(SystemExit):
    """A signal asked the program to end, and what was in flight is recorded.

    Parameters
    ----------
    number : int
        The signal. The exit status is 128 more, as shells have it: 143 for SIGTERM, 129 for SIGHUP.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)

    def __reduce__(self) -> tuple[Any, ...]:
        return Terminated, (int(self.code or 0) - 128,)


def terminate(number: int, frame: FrameType | None) -> None:
    """Handle a signal by `Terminated`, at once."""
    raise Terminated(number)


def _rebuild(
    kind: type[BudgetExceeded | NotIdentifiable], message: str, fields: dict[str, Any]
) -> BudgetExceeded | NotIdentifiable:
    """Restore an error with keyword-only fields, so that errors cross process borders."""
    return kind(message, **fields)


def missing_extra(package: str, extra: str) -> ImportError:
    """Name the extra that a package comes with."""
    return ImportError(f"This needs {package}: pip install 'unsoftmax[{extra}]'.")
