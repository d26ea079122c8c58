"""Feed any learner from any oracle: the only loop in which answers are bought.

It knows nothing about attention. Per round: what the ledger holds is taken from it; the rest
is cut into batches; each batch is intended (committed), asked, and recorded (committed)
before the learner sees it. Threads call the oracle, this thread alone writes the ledger.
"""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unsoftmax.campaign.asking import TRIES, Budget, Inline, Span, ask, batch_of, unknown_spans
from unsoftmax.campaign.ledger import Ledger, open_ledger
from unsoftmax.campaign.recovery import Recovery
from unsoftmax.campaign.watching import Progress, Watcher, interrupts
from unsoftmax.errors import BudgetExceeded, DimensionRefused, LedgerMismatch, OracleError
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Found, Learner, Oracle
from unsoftmax.theory.precision import Precision

FINGERPRINT = 8
# A deterministic target may still answer a bit differently in another batch.
_FINGERPRINT_UNITS = 64.0


def learn(
    oracle: Oracle,
    learner: Learner,
    budget: int | Budget | None = None,
    ledger: str | os.PathLike[str] | None = None,
    holdout: int = 32,
    batch: int | None = None,
    workers: int = 1,
    progress: Watcher | None = None,
) -> Recovery:
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
    if isinstance(budget, int):
        budget = Budget(queries=budget)
    for name, value, least in (
        ("holdout", holdout, 0),
        ("workers", workers, 1),
        ("batch", batch, 1),
    ):
        if value is not None and (isinstance(value, bool) or int(value) != value or value < least):
            raise ValueError(f"{name} must be a whole number, {least} or more; it is {value!r}.")
    if not callable(oracle):
        raise TypeError(
            f"oracle must be callable, from (B, N, d) to B numbers; it is {type(oracle).__name__}."
        )
    dim = getattr(oracle, "dim", learner.dim)
    if isinstance(dim, int) and dim != learner.dim:
        raise DimensionRefused(
            f"The target takes tokens of dimension {dim}, the learner asks {learner.dim}: use "
            f"dim={dim}."
        )
    run = {"learner": learner.settings(), "revision": learner.revision, "holdout": holdout}
    with open_ledger(ledger, environment()) as book, interrupts() as interrupted:
        batch = book.claim(run, batch)
        plan = learner.plan().queries
        expected = None if plan is None else plan + holdout
        with _executor(workers) as pool:
            campaign = _Campaign(
                oracle=oracle,
                ledger=book,
                budget=budget or Budget(),
                batch=batch,
                workers=workers,
                progress=progress,
                expected=expected,
                pool=pool,
                interrupted=interrupted,
            )
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
    return Inline() if workers == 1 else ThreadPoolExecutor(workers, "unsoftmax")


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
    pool: Executor
    interrupted: Any
    noise: float = 0.0
    answered: int = field(init=False)

    def __post_init__(self) -> None:
        self.answered = self.ledger.answered()

    def run(self, learner: Learner, holdout: int) -> Found:
        """Drive the learner's generator to its end."""
        steps = learner.steps(holdout)
        try:
            index, parts = 0, next(steps)
            while True:
                answers = self.answer(index, parts)
                index, parts = index + 1, steps.send(answers)
        except StopIteration as end:
            found: Found = end.value
            return found
        finally:
            steps.close()

    def answer(self, index: int, parts: Round) -> Answers:
        """Answer a round from the ledger as far as it goes, and from the oracle beyond."""
        known = self.ledger.begin(index, parts)
        if index == 0 and self.ledger.resumed:
            self._identify(parts)
        answers = [np.empty(len(probes)) for probes in parts]
        waiting: deque[Span] = deque()
        for part, (probes, pieces) in enumerate(zip(parts, known, strict=True)):
            for start, y in pieces:
                answers[part][start : start + len(y)] = y
            waiting.extend(unknown_spans(part, probes, pieces, self.batch))
        self._buy(index, waiting, answers)
        return answers

    def _buy(self, index: int, waiting: deque[Span], answers: Answers) -> None:
        """Keep ``workers`` batches in flight until nothing waits; then say what went wrong."""
        flying: dict[Future[Array], _Flight] = {}
        trouble: BaseException | None = None

        def launch(flight: _Flight) -> None:
            flying[self.pool.submit(ask, self.oracle, flight.span, flight.attempt)] = flight

        while waiting or flying:
            if trouble is None and self.interrupted():
                trouble = KeyboardInterrupt()
            while waiting and trouble is None and len(flying) < self.workers:
                span, trouble = self._affordable(waiting)
                if span is not None:
                    launch(_Flight(span, self.ledger.intend(*_bill(span)), 0))
            if not flying:
                break
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                flight = flying.pop(future)
                error = future.exception()
                retry = error is not None and flight.attempt + 1 < TRIES and _curable(error)
                if trouble is None and self.interrupted():
                    trouble = KeyboardInterrupt()
                following: Span | None = None
                if trouble is None and (error is None or retry):
                    if retry:
                        waiting.appendleft(flight.span)
                    if waiting:
                        following, trouble = self._affordable(waiting)
                bill = None if following is None else _bill(following)
                if error is None:
                    y = future.result()
                    span = flight.span
                    answers[span.part][span.start : span.stop] = y
                    place = (index, span.part, span.start)
                    intent = self.ledger.settle(flight.intent, "answered", place, y, bill)
                    self.answered += len(span)
                    self._report(span)
                else:
                    intent = self.ledger.settle(flight.intent, "failed", following=bill)
                    if not retry and (trouble is None or isinstance(trouble, BudgetExceeded)):
                        trouble = self._failure(flight, error)
                if following is not None and intent is not None:
                    launch(_Flight(following, intent, flight.attempt + 1 if retry else 0))
        if trouble is not None:
            raise trouble

    def _affordable(self, waiting: deque[Span]) -> tuple[Span | None, BudgetExceeded | None]:
        """Take the next batch, cut to what the budget still allows."""
        span = waiting.popleft()
        count = self._allowed(span)
        if count < len(span):
            waiting.appendleft(span.rest(count))
        if count:
            return span.first(count), None
        return None, self._exceeded(sum(map(len, waiting)))

    def _allowed(self, span: Span) -> int:
        spent = self.ledger.spent
        limits = [len(span)]
        if self.budget.queries is not None:
            limits.append(self.budget.queries - spent.queries)
        if self.budget.tokens is not None:
            limits.append((self.budget.tokens - spent.tokens) // span.probes.tokens)
        return max(0, min(limits))

    def _exceeded(self, waiting: int) -> BudgetExceeded:
        counts = self.ledger.counts()
        done = sum(counts.get(purpose, 0) for purpose in ("data", "pilot", "check"))
        needed = max(waiting, (self.expected or 0) - done)
        # a resumed run asks its first questions again, to recognise the target
        needed += min(FINGERPRINT, len(self.ledger.first_answers(FINGERPRINT)))
        spent = self.ledger.spent
        limits = [
            f"{limit:,} {name}"
            for name, limit in (("queries", self.budget.queries), ("tokens", self.budget.tokens))
            if limit is not None
        ]
        doubt = f", {spent.in_doubt:,} of them in doubt" if spent.in_doubt else ""
        return BudgetExceeded(
            f"The budget of {' and '.join(limits)} is spent: {spent.queries:,} queries and "
            f"{spent.tokens:,} tokens were paid{doubt}, about {needed:,} more queries are needed. "
            f"Every answer is kept; go on with a budget of {spent.queries + needed:,} queries.",
            spent=spent.queries,
            needed=needed,
            in_doubt=spent.in_doubt,
        )

    def _failure(self, flight: _Flight, error: BaseException) -> BaseException:
        if isinstance(error, OracleError) or not isinstance(error, Exception):
            return error
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            failure = OracleError(
                f"The target ran out of memory at {flight.span}: use a smaller batch "
                f"(now {batch_of(flight.span.probes, self.batch)}). Every answer is kept."
            )
        elif not self.answered and isinstance(error, (ValueError, IndexError, AssertionError)):
            failure = DimensionRefused(
                f"The target refused its first batch, {flight.span} ({said}). If it takes tokens "
                f"of another dimension than {flight.span.probes.dim}, use that as dim."
            )
        else:
            failure = OracleError(
                f"The target did not answer {flight.span} in {flight.attempt + 1} tries "
                f"({said}). Every answer before is kept: run the same again to go on."
            )
        failure.__cause__ = error
        return failure

    def _report(self, span: Span) -> None:
        if self.progress is not None:
            self.progress(
                Progress(span.probes.phase, self.answered, self.expected, self.ledger.spent.queries)
            )

    # -- is this still the same target?

    def _identify(self, parts: Round) -> None:
        """Ask the first questions again and compare, before anything new is paid."""
        before = self.ledger.first_answers(FINGERPRINT)
        if not len(before):
            return
        span = Span(0, 0, len(before), parts[0])
        count = self._allowed(span)
        if not count:
            raise self._exceeded(0)
        span, before = span.first(count), before[:count]
        now = self._ask_apart(span)
        X = span.probes[0:count]
        size = np.linalg.norm(X, axis=2).max(axis=1)
        precision = Precision.of_format([before])
        tolerance = precision.error(
            size * np.max(np.abs(before) / np.maximum(size, 1e-300)), before
        )
        if np.all(np.abs(now - before) <= _FINGERPRINT_UNITS * tolerance):
            return
        count = self._allowed(span)
        later = self._ask_apart(span.first(count)) if count else now[:0]
        moved, wavers = _rms(now - before), _rms(later - now[:count])
        if wavers < moved / 10:
            raise LedgerMismatch(
                f"The ledger was written for another target, or the target has changed: its first "
                f"answers were {_some(before)}, now they are {_some(now)}. Start another ledger "
                "to learn the target as it is now."
            )
        self.noise = wavers / np.sqrt(2)

    def _ask_apart(self, span: Span) -> Array:
        """Ask outside any round: counted, not recorded."""
        for attempt in range(TRIES):
            intent = self.ledger.intend("fingerprint", len(span), span.tokens)
            [future] = [self.pool.submit(ask, self.oracle, span, attempt)]
            error = future.exception()
            if error is None:
                self.ledger.settle(intent, "answered")
                return future.result()
            self.ledger.settle(intent, "failed")
            if attempt + 1 == TRIES or not _curable(error):
                raise self._failure(_Flight(span, intent, attempt), error)
        raise AssertionError("the loop returns or raises")

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


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x**2))) if len(x) else 0.0


def _some(y: Array) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in y[:3]) + (", …]" if len(y) > 3 else "]")
