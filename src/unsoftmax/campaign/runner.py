"""Feed any learner from any oracle: the only loop in which answers are bought.

It knows nothing about attention. Per round: what the ledger holds is taken from it; the rest
is cut into batches; each batch is intended (committed), asked, and recorded (committed)
before the learner sees it. Threads call the oracle, this thread alone writes the ledger.
"""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unsoftmax.campaign.asking import (
    TRIES,
    Budget,
    Inline,
    Span,
    Threads,
    ask,
    batch_of,
    batches,
    unknown_spans,
    whole,
)
from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.opening import open_ledger
from unsoftmax.campaign.recovery import Recovery
from unsoftmax.campaign.watching import Interrupts, Progress, Watcher, interrupts
from unsoftmax.errors import BudgetExceeded, DimensionRefused, LedgerMismatch, OracleError
from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Found, Learner, M, Oracle

FINGERPRINT = 8
# A deterministic target may still answer a bit differently in another batch.
_FINGERPRINT_UNITS = 64.0


def learn(
    oracle: Oracle,
    learner: Learner[M],
    budget: int | Budget | None = None,
    ledger: str | os.PathLike[str] | None = None,
    holdout: int = 32,
    batch: int | None = None,
    workers: int = 1,
    progress: Watcher | None = None,
) -> Recovery[M]:
    """Recover a model by asking an oracle.

    Parameters
    ----------
    oracle : callable
        Maps sequences (B, N, d), float64, to B real numbers. When it has an attribute
        ``dim`` it must be the learner's.
    learner : Learner
        What to learn, from `unsoftmax.learners`.
    budget : int or Budget, optional
        The most that may be spent over the ledger's life: queries, or a `Budget`.
    ledger : path, optional
        SQLite file that keeps every answer. Run the same again with the same file and
        nothing recorded is asked again. None keeps it in memory.
    holdout : int
        Queries to check the result with; 0 checks nothing, and the evidence says so.
    batch : int, optional
        Sequences per call of the oracle; by default as many as fit into 16 MiB. A resumed
        run goes on with the batch that it was started with unless another is given.
    workers : int
        Calls at the same time, from threads; the result does not depend on their order.
    progress : callable, optional
        Takes a `Progress` after every batch.

    Returns
    -------
    Recovery
        Model, certificate, evidence, counts and notes.

    Raises
    ------
    BudgetExceeded
        Before the query that would pass the budget; everything is kept.
    NotIdentifiable
        No answers can determine something; ``.determined`` holds what is.
    ModelMismatch
        The target is not of the learner's class.
    OracleError
        An answer was missing after 3 tries, or not finite, or not one number per sequence.
    LedgerError, LedgerMismatch
        The file cannot be used, or belongs to another target, learner or revision.
    ValueError, TypeError
        An argument is out of range.
    KeyboardInterrupt
        After what was in flight is recorded.
    """
    if budget is not None and not isinstance(budget, Budget):
        budget = Budget(queries=budget)
    holdout, workers = whole("holdout", holdout, 0), whole("workers", workers, 1)
    batch = None if batch is None else whole("batch", batch, 1)
    if isinstance(learner, type) or not hasattr(learner, "steps"):
        raise TypeError(
            "learner must be a learner with its settings, such as "
            f"us.learners.ExactHead(dim=384); it is {learner!r}."
        )
    if not callable(oracle):
        raise TypeError(
            f"oracle must be callable, from (B, N, d) to B numbers; it is {type(oracle).__name__}."
        )
    dim = getattr(oracle, "dim", learner.dim)
    if isinstance(dim, (int, np.integer)) and dim != learner.dim:
        raise DimensionRefused(
            f"The target takes tokens of dimension {dim}, the learner asks {learner.dim}: use "
            f"dim={dim}."
        )
    run = {"learner": learner.settings(), "revision": learner.revision, "holdout": holdout}
    with open_ledger(ledger, environment()) as book, interrupts() as held:
        batch = book.claim(run, batch)
        plan = learner.plan()
        expected = None if plan.queries is None else plan.queries + holdout
        with _executor(workers) as pool:
            campaign = _Campaign(
                oracle=oracle,
                ledger=book,
                budget=budget or Budget(),
                batch=batch,
                workers=workers,
                progress=progress,
                expected=expected,
                at_most=plan.at_most + holdout,
                pool=pool,
                interrupts=held,
            )
            if progress is not None and campaign.answered:
                spent = book.spent.queries
                progress(Progress("going on", campaign.answered, expected, spent))
            found = campaign.run(learner, holdout)
        return Recovery(
            model=found.model,
            certificate=found.certificate,
            evidence=found.evidence,
            counts=book.counts(),
            notes=(*found.notes, *campaign.notes()),
            learner=learner.settings(),
        )


def environment() -> dict[str, Any]:
    """Describe what decides the last bits of a design: NumPy, its BLAS, threads."""
    config: Mapping[str, Any] = np.show_config(mode="dicts") or {}
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return {
        "numpy": np.__version__,
        "blas": f"{blas.get('name')} {blas.get('version')}",
        "machine": platform.machine(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
    }


def _executor(workers: int) -> Executor:
    return Inline() if workers == 1 else Threads(workers)


@dataclass(slots=True)
class _Flight:
    """A batch that was sent: which, under which intent, and for the how manieth time."""

    span: Span
    intent: int
    attempt: int


@dataclass(slots=True)
class _Campaign:
    oracle: Oracle
    ledger: Ledger
    budget: Budget
    batch: int | None
    workers: int
    progress: Watcher | None
    expected: int | None
    at_most: int
    pool: Executor
    interrupts: Interrupts
    noise: float = 0.0
    answered: int = field(init=False)

    def __post_init__(self) -> None:
        self.answered = self.ledger.answered()

    def run(self, learner: Learner[M], holdout: int) -> Found[M]:
        """Drive the learner's generator to its end."""
        steps = learner.steps(holdout)
        try:
            index, parts = 0, next(steps)
            while True:
                answers = self.answer(index, parts)
                index, parts = index + 1, steps.send(answers)
        except StopIteration as end:
            found: Found[M] = end.value
            return found
        finally:
            steps.close()

    def answer(self, index: int, parts: Round) -> Answers:
        """Answer a round from the ledger as far as it goes, and from the oracle beyond."""
        known = self.ledger.begin(index, parts)
        answers = [np.empty(len(probes)) for probes in parts]
        waiting: deque[Span] = deque()
        for part, (probes, pieces) in enumerate(zip(parts, known, strict=True)):
            for start, y in pieces:
                answers[part][start : start + len(y)] = y
            waiting.extend(unknown_spans(part, probes, pieces, self.batch))
        with self.interrupts.held():
            if index == 0 and self.ledger.resumed:
                self._identify(parts, waiting)
            self._buy(index, waiting, answers)
        return answers

    def _buy(self, index: int, waiting: deque[Span], answers: Answers) -> None:
        """Keep ``workers`` batches in flight until nothing waits; then say what went wrong."""
        flying: dict[Future[Array], _Flight] = {}
        trouble: BaseException | None = None

        def launch(flight: _Flight) -> None:
            flying[self.pool.submit(ask, self.oracle, flight.span, flight.attempt)] = flight

        while waiting or flying:
            if trouble is None and self.interrupts.pressed:
                trouble = KeyboardInterrupt()
            while trouble is None and len(flying) < self.workers:
                span = self._affordable(waiting)
                if span is None:
                    break
                launch(_Flight(span, self.ledger.intend(*_bill(span)), 0))
            if not flying:
                break
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                flight = flying.pop(future)
                error = future.exception()
                again = error is not None and flight.attempt + 1 < TRIES and _curable(error)
                if again:
                    waiting.appendleft(flight.span)
                if trouble is None and self.interrupts.pressed:
                    trouble = KeyboardInterrupt()
                if trouble is None and error is not None and not again:
                    trouble = self._failure(flight, error)
                following = self._affordable(waiting) if trouble is None else None
                bill = None if following is None else _bill(following)
                if error is None:
                    y = future.result()
                    span = flight.span
                    answers[span.part][span.start : span.stop] = y
                    place = (index, span.part, span.start)
                    intent = self.ledger.settle(flight.intent, "answered", place, y, bill)
                    self.answered += len(span)
                    try:
                        self._report(span)
                    except Exception as failure:  # the caller's own; what flies is paid for
                        trouble = failure if trouble is None else trouble
                else:
                    intent = self.ledger.settle(flight.intent, "failed", following=bill)
                if following is not None and intent is not None:
                    launch(_Flight(following, intent, flight.attempt + 1 if again else 0))
        if trouble is not None:
            raise trouble
        if waiting:
            raise self._exceeded(waiting)

    def _affordable(self, waiting: deque[Span]) -> Span | None:
        """Take the next batch, cut to what the budget still allows; None if that is nothing."""
        if not waiting or not (count := self._allowed(waiting[0])):
            return None
        span = waiting.popleft()
        if count < len(span):
            waiting.appendleft(span.rest(count))
        return span.first(count)

    def _allowed(self, span: Span) -> int:
        spent = self.ledger.spent
        limits = [len(span)]
        if self.budget.queries is not None:
            limits.append(self.budget.queries - spent.queries)
        if self.budget.tokens is not None:
            limits.append((self.budget.tokens - spent.tokens) // span.probes.tokens)
        return max(0, int(min(limits)))

    def _exceeded(self, waiting: Iterable[Span]) -> BudgetExceeded:
        counts = self.ledger.counts()
        done = sum(counts.get(purpose, 0) for purpose in ("data", "pilot", "check"))
        now = sum(map(len, waiting))
        # what is asked again comes on top of the plan
        again = sum(len(span) for span in waiting if span.probes.purpose == "again")
        needed = max(now, (self.expected or 0) - done + again)
        # a resumed run asks its first questions again, to recognise the target: twice if it wavers
        first = sum(len(y) for _, _, y in self.ledger.first_answers(FINGERPRINT))
        needed += 2 * first if self.noise else first
        spent = self.ledger.spent
        limits = [
            f"{limit:,} {name}"
            for name, limit in (("queries", self.budget.queries), ("tokens", self.budget.tokens))
            if limit is not None
        ]
        doubt = f", {spent.in_doubt:,} of them in doubt" if spent.in_doubt else ""
        more = " and more tokens" if self.budget.tokens is not None else ""
        allowed = f"With a budget of {spent.queries + needed:,} queries{more}"
        if self.expected is None:
            wanted = f"{needed:,} more queries are needed for the next step"
            enough = f"{allowed} that can be asked; how many follow the target decides, " + (
                f"the plan allows {self.at_most:,} in all."
            )
        else:
            wanted = f"about {needed:,} more queries are needed"
            enough = f"{allowed} it can be finished."
        return BudgetExceeded(
            f"The budget of {' and '.join(limits)} is spent: {spent.queries:,} queries and "
            f"{spent.tokens:,} tokens were paid{doubt}, {wanted}. {self._kept()} {enough}",
            spent=spent.queries,
            needed=needed,
            in_doubt=spent.in_doubt,
        )

    def _failure(self, flight: _Flight, error: BaseException) -> BaseException:
        if isinstance(error, OracleError):
            kind = DimensionRefused if isinstance(error, DimensionRefused) else OracleError
            failure = kind(f"{error} {self._kept()}").with_traceback(error.__traceback__)
            failure.__cause__ = error.__cause__
            return failure
        if not isinstance(error, Exception):
            return error
        said = f"{type(error).__name__}: {str(error).strip()}"
        if isinstance(error, MemoryError):
            failure = OracleError(
                f"The target ran out of memory at {flight.span}: use a smaller batch "
                f"(now {batch_of(flight.span.probes, self.batch)}). {self._kept()}"
            )
        elif not self.answered and isinstance(error, (ValueError, IndexError, AssertionError)):
            failure = DimensionRefused(
                f"The target refused its first batch, {flight.span} ({said}). It must take "
                f"batches (B, N, d); if its tokens have another dimension than "
                f"{flight.span.probes.dim}, use that as dim."
            )
        else:
            failure = OracleError(
                f"The target did not answer {flight.span} in {flight.attempt + 1} tries "
                f"({said}). {self._kept()}"
            )
        failure.__cause__ = error
        return failure

    def _kept(self) -> str:
        """Say what is safe."""
        if not self.answered:
            return "Nothing was answered yet."
        if self.ledger.lasting:
            return "Every answer so far is in the ledger: run the same again to go on."
        return "The answers are lost with this process: give a ledger to keep them."

    def _report(self, span: Span) -> None:
        if self.progress is not None:
            # what is asked again comes on top of the plan
            expected = None if self.expected is None else max(self.expected, self.answered)
            spent = self.ledger.spent.queries
            self.progress(Progress(span.probes.phase, self.answered, expected, spent))

    # -- is this still the same target?

    def _identify(self, parts: Round, waiting: Iterable[Span]) -> None:
        """Ask the first questions again and compare, before anything new is paid."""
        pieces = self.ledger.first_answers(FINGERPRINT)
        if not pieces:
            return
        spans = [Span(part, start, start + len(y), parts[part]) for part, start, y in pieces]
        before = np.concatenate([y for _, _, y in pieces])
        size = np.concatenate([_sizes(span) for span in spans])
        now = self._ask_apart(spans, waiting)
        bound = _same_answer(before, size, self.ledger.moved)
        excess = np.abs(now - before) / np.maximum(bound, 1e-300)
        if np.all(excess <= 1):
            return
        # Known to differ: until a third answer says otherwise it is noise, for `_exceeded`.
        moved = self.noise = _rms(now - before)
        wavers = _rms(self._ask_apart(spans, waiting) - now)
        if wavers < moved / 10:
            worst = int(np.argmax(excess))
            raise LedgerMismatch(
                "The ledger was written for another target, or the target has changed: the answer "
                f"to its question {worst} was {before[worst]} and is {now[worst]}. Start another "
                "ledger to learn the target as it is now."
            )
        self.noise = wavers / np.sqrt(2)

    def _ask_apart(self, spans: Iterable[Span], waiting: Iterable[Span]) -> Array:
        """Ask outside any round: counted, not recorded."""
        cut = [batch for span in spans for batch in batches(span, self.batch)]
        return np.concatenate([self._ask_one(span, waiting) for span in cut])

    def _ask_one(self, span: Span, waiting: Iterable[Span]) -> Array:
        attempt = 0
        while True:
            if self.interrupts.pressed:
                raise KeyboardInterrupt
            if self._allowed(span) < len(span):
                raise self._exceeded(waiting)
            intent = self.ledger.intend("fingerprint", len(span), span.tokens)
            future = self.pool.submit(ask, self.oracle, span, attempt)
            error = future.exception()
            self.ledger.settle(intent, "answered" if error is None else "failed")
            if error is None:
                return future.result()
            if attempt + 1 == TRIES or not _curable(error):
                raise self._failure(_Flight(span, intent, attempt), error)
            attempt += 1

    def notes(self) -> list[str]:
        """Say what happened on the way."""
        notes = []
        counts = self.ledger.counts()
        if doubt := counts.get("in doubt"):
            notes.append(
                f"{doubt:,} queries were in flight when an earlier process died: paid, never "
                "recorded, asked again."
            )
        if self.noise:
            notes.append(
                "When the run was resumed the first questions got other answers than before, and "
                f"others again: noise of standard deviation about {self.noise:.1e}."
            )
        if self.ledger.moved:
            notes.append(
                "The recorded questions differ from those this program makes by up to "
                f"{self.ledger.moved:.1e} relative, as with another BLAS."
            )
        return notes


def _bill(span: Span) -> tuple[str, int, int]:
    return span.probes.purpose, len(span), span.tokens


def _curable(error: BaseException) -> bool:
    """Whether asking again may help: not when memory ran out or the answer itself is wrong."""
    return isinstance(error, Exception) and not isinstance(error, (MemoryError, OracleError))


def _sizes(span: Span) -> Array:
    """Measure the largest token of every sequence."""
    size: Array = np.linalg.norm(span.probes[span.start : span.stop], axis=2).max(axis=1)
    return size


def _same_answer(before: Array, size: Array, moved: float) -> Array:
    """Bound how far a second answer of one target may be from the first.

    Questions that moved by a few bits move their answers as coarser arithmetic would.
    """
    precision = Precision.of_format([before])
    scale = np.max(np.abs(before) / np.maximum(size, 1e-300))
    arithmetic = _FINGERPRINT_UNITS * KAPPA * max(precision.unit, moved) * scale * size
    # Two numbers that are nearly the same are rounded to neighbours at most. A few answers may
    # be short numbers by chance: no format is taken to be coarser than bfloat16.
    step = 2 * (min(precision.relative, 2.0**-8) * np.abs(before) + precision.absolute)
    bound: Array = arithmetic + step
    return bound


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x**2))) if len(x) else 0.0
