"""Answers: checked as they arrive, and laid out as the learner reads them.

Inside the runner every answer is a row: n sequences are answered by an array (n, m), m = 1 for
an oracle of numbers. Rows are stored by the place of their question. Nothing is ever reshaped:
an array of the right size and another shape is refused, never rearranged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unsoftmax.campaign.spans import Span
from unsoftmax.errors import OracleError, RetryLater, Terminated
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Oracle, Outputs, Plan, as_array
from unsoftmax.validate.function_bound import SAMPLES


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
    oracle: Oracle, span: Span, outputs: Outputs, limits: QuestionLimits = QuestionLimits()
) -> OracleReply:
    """Make the probes of a span and call the oracle once.

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
    try:
        raw = oracle(X)
    except Terminated:
        raise  # a signal, not the target
    except SystemExit as error:
        raise RuntimeError(f"the target called sys.exit({error.code!r})") from error
    except RetryLater as refusal:
        # a subclass may have left its seconds out, or written anything to them
        raise RetryLater(getattr(refusal, "seconds", None)) from refusal  # type: ignore[arg-type]
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
    n = len(span)
    if outputs != "scalar":
        every = f", or ({n}, {span.probes.tokens}, m)" if outputs == "positions" else ""
        return OracleError(
            f"The target answered {span} with shape {shape} instead of ({n}, m){every}: it must "
            "give one row of m numbers per sequence, or one number."
        )
    if len(shape) == 2 and shape[0] == n and shape[1] > 1:
        return OracleError(
            f"The target answered {span} with shape {shape} instead of ({n},): {shape[1]} numbers "
            "per sequence, where this learner takes one. Choose it with "
            "us.oracles.coordinate(oracle, k), or recover whole vectors: AttentionLayerLearner, "
            "FeedForwardLearner."
        )
    return OracleError(
        f"The target answered {span} with shape {shape} instead of ({n},): it must give one number "
        "per sequence."
    )


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
