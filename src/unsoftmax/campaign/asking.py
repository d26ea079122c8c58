"""Ask an oracle for spans of probes: one try, checked answers, a budget to stay within."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from unsoftmax.errors import OracleError
from unsoftmax.probes import Array, Probes
from unsoftmax.protocol import Oracle

TRIES = 3
_PAUSE_S = 0.1
# A batch of 16 MiB keeps d = 1024 far below 400 MB with everything an oracle makes of it.
_BATCH_NUMBERS = 2**21

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a ledger may spend over its life, retries and queries in doubt included.

    Parameters
    ----------
    queries, tokens : int, optional
        Sequences asked, and tokens in them; None for no limit.
    """

    queries: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("queries", self.queries), ("tokens", self.tokens)):
            if limit is not None and (isinstance(limit, bool) or int(limit) != limit or limit < 0):
                raise ValueError(f"A budget of {name} is a whole number, 0 or more, not {limit!r}.")


@dataclass(frozen=True, slots=True)
class Span:
    """Some probes of one part of a round."""

    part: int
    start: int
    stop: int
    probes: Probes

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def tokens(self) -> int:
        """Tokens in all of its sequences."""
        return len(self) * self.probes.tokens

    def first(self, count: int) -> Span:
        """Return its first probes."""
        return Span(self.part, self.start, self.start + count, self.probes)

    def rest(self, count: int) -> Span:
        """Return all but its first probes."""
        return Span(self.part, self.start + count, self.stop, self.probes)

    def __str__(self) -> str:
        return (
            f"{len(self)} sequences of shape ({self.probes.tokens}, {self.probes.dim}), "
            f"{self.start}–{self.stop - 1} of “{self.probes.phase}”"
        )


def batch_of(probes: Probes, batch: int | None) -> int:
    """Return how many probes are asked at once."""
    return batch or max(1, _BATCH_NUMBERS // (probes.tokens * probes.dim))


def unknown_spans(
    part: int, probes: Probes, known: list[tuple[int, Array]], batch: int | None
) -> list[Span]:
    """Cut what is not yet known into batches."""
    size = batch_of(probes, batch)
    ends = [*((start, start + len(y)) for start, y in known), (len(probes), len(probes))]
    spans, at = [], 0
    for start, stop in ends:
        spans += [
            Span(part, begin, min(begin + size, start), probes) for begin in range(at, start, size)
        ]
        at = stop
    return spans


def ask(oracle: Oracle, span: Span, attempt: int) -> Array:
    """Make the probes and ask once, after a pause if it is not the first attempt."""
    if attempt:
        time.sleep(_PAUSE_S * 2 ** (attempt - 1))
    return checked(oracle(span.probes[span.start : span.stop]), span)


def checked(raw: Any, span: Span) -> Array:
    """Turn what an oracle returned into float64 (n,), or say what is wrong with it.

    Raises
    ------
    OracleError
        Not n real finite numbers.
    """
    try:
        y = np.asarray(raw)
    except Exception as error:
        raise OracleError(f"The target's answer to {span} is no array: {error}.") from error
    if y.dtype.kind not in "fiub":
        raise OracleError(f"The target answered {span} with {y.dtype} instead of real numbers.")
    if y.shape == (len(span), 1):
        y = y[:, 0]
    if y.shape != (len(span),):
        raise OracleError(
            f"The target answered {span} with shape {y.shape} instead of ({len(span)},): it must "
            "give one number per sequence."
        )
    answers = y.astype(np.float64)
    if not np.isfinite(answers).all():
        bad = int(np.flatnonzero(~np.isfinite(answers))[0])
        raise OracleError(
            f"The target answered {span} with {answers[bad]} (sequence {span.start + bad}): "
            "answers must be finite."
        )
    return answers


class Inline(Executor):
    """Calls at once, in the thread that asks: what one worker needs."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call and return a future that is done; what is no Exception passes through."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
