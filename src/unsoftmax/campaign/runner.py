"""Feed any learner from any oracle: the loop that drives a learner's generator.

It knows nothing about attention. Per round: what the ledger holds is taken from it, the rest is
asked for by the scheduler; each call is intended (committed), made, and recorded (committed)
before the learner sees its answers. Threads call the oracle, this thread alone writes the ledger.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from unsoftmax import errors
from unsoftmax.campaign import calls, watching
from unsoftmax.campaign.fingerprint import Fingerprint, Witnesses
from unsoftmax.campaign.ledger_file import open_ledger
from unsoftmax.campaign.limits import Budget, Retries, duration, in_seconds, whole
from unsoftmax.campaign.recovery import Recovery, versions
from unsoftmax.campaign.scheduler import Scheduler, Spending, executor
from unsoftmax.learners.compose import short, within_reach
from unsoftmax.learners.positions_named import naming_positions
from unsoftmax.learners.settings import positive
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.protocol import (
    Answers,
    Asks,
    Found,
    Learner,
    M,
    Oracle,
    Outputs,
    asks_far,
    at_all_positions,
    outputs_of,
    vocabulary_of,
)
from unsoftmax.refusals import Reason
from unsoftmax.validate.function_bound import Sampler, Sampling

R = TypeVar("R")

# Norm of a token that a target answers if it takes its dimension; 0 may be refused for itself.
_SHORT = 2.0**-10


def learn(
    oracle: Oracle,
    learner: Learner[M],
    budget: int | Budget | None = None,
    ledger: str | os.PathLike[str] | None = None,
    holdout: int = 32,
    batch: int | None = None,
    workers: int = 1,
    progress: watching.Watcher | None = None,
    retries: int | Retries = 3,
    timeout: float | None = None,
    *,
    sampler: Sampler | None = None,
    eps: float = 0.05,
    delta: float = 0.01,
    most_tokens: int | None = None,
    radius: float | None = None,
) -> Recovery[M]:
    """Recover a model by asking an oracle.

    Parameters
    ----------
    oracle : callable
        Maps sequences (B, N, d), float64, to B real numbers, or to B rows of m for a learner
        of vectors; m is fixed by the first answer. When it has an attribute ``dim`` it must be
        the learner's. A learner of ids asks (B, N), int64. It may raise `RetryLater`
        to be asked again after some seconds.
    learner : Learner
        What to learn, from `unsoftmax.learners`.
    budget : int or Budget, optional
        The most that may be spent over the ledger's life: queries, or a `Budget`.
    ledger : path, optional
        SQLite file that keeps every answer. Run the same again with the same file and
        nothing recorded is asked again. None keeps answers no longer than this process.
    holdout : int
        Queries to check the result with; 0 checks nothing, and the evidence says so. From 12 on
        they look at 512 tokens, at 32 also at large logits; the certificate says how far.
    batch : int, optional
        Sequences per call of the oracle; by default as many as fit into 16 MiB, and so few that
        no more than 2,048 are in flight over all workers. A resumed run goes on with the batch
        that it was started with unless another is given.
    workers : int
        Calls at the same time, from threads, 2,048 at most; the result does not depend on their
        order.
    progress : callable, optional
        Takes a `Progress` after every batch, and when the target asks to wait.
    retries : int or Retries
        Tries for every sequence, the first included, or a `Retries` that also says how long to
        wait. A batch that is answered in part is kept in part: only what is missing (a row that
        is not finite) is asked again.
    timeout : float, optional
        Seconds that a call may take. One that takes longer has failed: it is paid, its thread is
        left behind, and the batch is asked again like others that fail. None waits for ever.
    sampler : callable, optional
        Draws one sequence (N, d) of the user's own distribution with the
        `numpy.random.Generator` it is given. When a model is found ln(1/δ)/ε samples are asked;
        the largest miss is ``recovery.function.bound``, which all but a share ε of that
        distribution keep, with confidence 1 − δ. These queries come on top of the hold-out.
    eps, delta : float
        ε and δ, between 0 and 1.
    most_tokens : int, optional
        The most tokens of a sequence that the target takes: no longer one is asked. Fresh
        sequences are cut to that; without it, to what the target is found to answer when it
        refuses some. A learner that needs longer ones to read something ends.
    radius : float, optional
        Norm of the longest token that the target takes: no longer one is asked. Without it, and
        where the target refuses some, it is found by asking. Single heads are read within it,
        and `MultiHeadLearner` takes it for its own; fresh sequences are shortened, and the
        certificate says so. Learners of networks and layers need tokens far beyond any radius.

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
    TokensRefused
        The target refuses tokens as long as the learner needs.
    OracleError
        An answer was missing or not finite in all tries, or is not one number (or row) per
        sequence, or the target put it off for longer than is allowed.
    LedgerError, LedgerMismatch
        The file cannot be used, or belongs to another target, learner or revision.
    ValueError, TypeError
        An argument is out of range.
    KeyboardInterrupt
        After what was in flight is recorded; a target that hangs is not waited for.
    Terminated
        The same after SIGTERM or SIGHUP: a `SystemExit` of status 143 or 129.
    """
    holdout = whole("holdout", holdout, 0)
    sampling = None if sampler is None else Sampling(sampler, eps, delta)
    if sampling is not None:
        if vocabulary_of(learner) is not None:
            raise ValueError("sampler draws sequences of vectors; this learner asks ids.")
        sampling.try_out(learner.dim)
    watch = watching.CourseWatch(progress)
    learner = learner if radius is None else kept_to(learner, radius)
    settings = budget, ledger, batch, workers, watch, retries, timeout, most_tokens, radius
    with opened_campaign(oracle, learner, holdout, sampling, *settings) as campaign:
        found = campaign.recover(learner, holdout)
        return replace(found, course=watch.course(), versions=versions())


@contextmanager
def opened_campaign(
    oracle: Oracle,
    asks: Asks[Any],
    holdout: int = 0,
    sampling: Sampling | None = None,
    budget: int | Budget | None = None,
    ledger: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    workers: int = 1,
    progress: watching.Watcher | None = None,
    retries: int | Retries = 3,
    timeout: float | None = None,
    most_tokens: int | None = None,
    radius: float | None = None,
) -> Iterator[Campaign]:
    """Open a ledger and yield what answers rounds from it and from the oracle.

    The settings are those of `learn`; ``asks`` is a learner, or asks something else.
    """
    budget = budget if isinstance(budget, Budget) else Budget(queries=budget)
    workers = whole("workers", workers, 1, calls.BatchSizes().most)
    # the ledger keeps it, and SQLite no larger number
    batch = None if batch is None else min(whole("batch", batch, 1), sys.maxsize)
    retries = Retries.of(retries)
    timeout_s = float("inf") if timeout is None else duration("timeout", timeout, least_s=1e-3)
    outputs, ids = _checked(oracle, asks), vocabulary_of(asks) is not None
    run = {"learner": asks.settings(), "revision": asks.revision, "holdout": holdout}
    if most_tokens is not None:
        run["most_tokens"] = most_tokens = whole("most_tokens", most_tokens, 1)
    if radius is not None:
        run["radius"] = radius = float(radius)
    with (
        open_ledger(ledger, environment()) as opened,
        watching.interrupts() as interrupted,
        executor(workers, apart=timeout is not None) as pool,
    ):
        batch = opened.claim(run, batch, width=1 if outputs == "scalar" else None)
        answers = at_all_positions(oracle) if outputs == "positions" else oracle
        plan = asks.plan()
        limits = calls.QuestionLimits.of(plan)
        checks = holdout + (0 if sampling is None else sampling.samples)
        spending = Spending(
            ledger=opened,
            budget=budget,
            expected=None if plan.queries is None else plan.queries + checks,
            at_most=plan.at_most + checks,
            tokens=None if plan.queries is None else plan.tokens,
            checks=checks,
        )
        yield Campaign(
            ask=lambda span: calls.ask(answers, span, outputs, limits, ids=ids),
            outputs=outputs,
            ledger=opened,
            spending=spending,
            sizes=calls.BatchSizes(batch, workers=workers),
            retries=retries,
            workers=workers,
            pool=pool,
            timeout_s=timeout_s,
            interrupts=interrupted,
            progress=progress,
            sampling=sampling,
            most_tokens=most_tokens,
            radius=radius,
        )


def kept_to(learner: Learner[M], radius: float) -> Learner[M]:
    """Give a learner that has a radius of its own this one; refuse one that cannot keep to any.

    Raises
    ------
    ValueError, TypeError
        The learner asks far tokens whatever the target is, or the radius is no number above 0.
    """
    positive("radius", radius)
    if far := asks_far(learner):
        raise ValueError(
            f"{type(learner).__name__} keeps to no radius: it asks tokens {far}. Leave radius out "
            "where the target takes tokens of any length."
        )
    own = getattr(learner, "radius", np.inf)
    if own is None or own < np.inf:
        learner = replace(learner, radius=min(radius, own or radius))  # type: ignore[type-var]
    return learner


def _checked(oracle: Oracle, learner: Asks[Any]) -> Outputs:
    """Refuse what is no learner or no oracle; return what answers the learner takes."""
    if isinstance(learner, type) or not hasattr(learner, "steps"):
        raise TypeError(
            "learner must be a learner with its settings, such as "
            f"us.learners.ExactHead(dim=384); it is {learner!r}."
        )
    if not callable(oracle):
        raise TypeError(
            f"oracle must be callable, from (B, N, d) to B numbers; it is {type(oracle).__name__}."
        )
    asked, takes_ids = vocabulary_of(learner), hasattr(oracle, "vocabulary")
    dim, held = getattr(oracle, "dim", learner.dim), vocabulary_of(oracle)
    if asked is None and takes_ids:
        raise Reason.TAKES_IDS.error()
    if asked is not None:
        if not takes_ids and hasattr(oracle, "dim"):
            raise Reason.TAKES_VECTORS.error(dim=dim)
        if held is not None and asked > held:
            raise Reason.OTHER_VOCABULARY.error(held=held, asked=asked)
        return outputs_of(learner)
    if isinstance(dim, (int, np.integer)) and dim != learner.dim:
        raise Reason.OTHER_DIMENSION.error(dim=dim, asked=learner.dim)
    return outputs_of(learner)


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


@dataclass(slots=True, kw_only=True)
class Campaign(Scheduler):
    """One run of `learn`: a learner's rounds, answered from the ledger and from the oracle."""

    outputs: Outputs
    progress: watching.Watcher | None
    sampling: Sampling | None = None
    """What is asked of the user's distribution when a model is found."""
    most_tokens: int | None = None
    """No longer sequence is asked, where the caller says so."""
    radius: float | None = None
    """The same of tokens."""
    fits: bool = False
    """Whether the target answered a token of this dimension, after it refused the first batch."""
    _lost: calls.CallEnd | None = None
    """The last call that was lost."""
    noise: float = 0.0
    """Deviation of the fingerprint's answers, where a resumed run's change from call to call."""
    witnesses: Witnesses | None = None
    """Recorded questions of a resumed run, until its target is recognised by them."""

    def recover(self, learner: Learner[M], holdout: int) -> Recovery[M]:
        """Run the learner and add what it cost."""
        steps = learner.steps(holdout)
        if vocabulary_of(learner) is None:  # positions, and lengths of tokens, are those of vectors
            steps = within_reach(
                learner, lambda one: naming_positions(one.steps(holdout), one), self.radius
            )
        if self.sampling is not None:
            steps = self.sampling.after(steps, getattr(learner, "seed", 0))
        found = self.run(steps)
        return self.recovery(found, learner, self.notes())

    def recovery(
        self, found: Found[M], learner: Learner[M], noticed: Iterable[str] = ()
    ) -> Recovery[M]:
        """Return what a learner found with what the run has cost."""
        return Recovery(
            model=found.model,
            certificate=found.certificate,
            evidence=found.evidence,
            counts=self.ledger.counts(),
            notes=(*found.notes, *noticed),
            learner=learner.settings(),
            function=found.function,
        )

    def run(self, steps: Generator[Round, Answers, R]) -> R:
        """Drive a generator of rounds to its end."""
        steps = steps if self.most_tokens is None else short(steps, self.most_tokens)
        if self.ledger.answered:
            self._tell(watching.GOING_ON)
            self.witnesses = Witnesses.of(self.ledger.recorded())
        try:
            index, parts = 0, next(steps)
            while True:
                try:
                    answers = self.answer(index, parts)
                except errors.BudgetExceeded as error:
                    # a refusal that is known is said without the questions that come after it
                    index, parts = index + 1, steps.throw(error)
                except errors.OracleError as refusal:
                    told = self._explained(refusal, parts)
                    # unreachable whatever is asked, or not known to be the ledger's target
                    elsewhere = isinstance(told.__cause__, (OSError, errors.RetryLater))
                    if isinstance(told.__cause__, errors.ServerFailed):
                        elsewhere = not self._answers_short(parts)
                    if elsewhere or (self.witnesses is not None and self.witnesses.found):
                        raise told from told.__cause__
                    # most learners end here; some do without answers to their longest sequences
                    index, parts = index + 1, steps.throw(told)
                else:
                    index, parts = index + 1, steps.send(answers)
        except StopIteration as end:
            self._recognise([])
            found: R = end.value
            return found
        except (errors.NotIdentifiable, errors.ModelMismatch):
            self._recognise([])
            raise
        finally:
            steps.close()

    def answer(self, index: int, parts: Round) -> Answers:
        """Answer a round from the ledger as far as it goes, and from the oracle beyond."""
        recorded = self.ledger.begin(index, parts)
        answers = calls.RoundAnswers(parts, self.outputs)
        waiting: list[calls.Span] = []
        for part, probes in enumerate(parts):
            known: list[tuple[int, int]] = []
            for start, rows in self.ledger.known(index, part) if recorded else ():
                answers.put(part, start, rows)
                known.append((start, start + len(rows)))
                if self.witnesses is not None:
                    self.witnesses.keep(index, part, probes, start, rows)
            waiting += calls.gaps(part, probes, known)
        if waiting:
            self._recognise(waiting)
            with self.interrupts.held():
                if pending := self.ask_for(waiting, answers.put, index):
                    raise self.spending.exceeded(pending)
        return answers.for_learner(self.ledger.width)

    def _explained(self, refusal: errors.OracleError, parts: Round) -> errors.OracleError:
        """Return why a round was refused: for its dimension only if a short token is, too."""
        said_so = self._lost is None or isinstance(self._lost.result, errors.OracleError)
        if said_so or not isinstance(refusal, errors.DimensionRefused):
            return refusal
        lost = self._lost
        assert lost is not None
        if not self._answers_short(parts):
            return refusal
        self.fits = True
        explained = self.explain(lost)
        assert isinstance(explained, errors.OracleError)
        return explained

    def _answers_short(self, parts: Round) -> bool:
        """Ask a short token of a round's dimension: whether the target answers it."""
        token = np.full((1, 1, parts[0].dim), _SHORT / np.sqrt(parts[0].dim))
        span = calls.Span(0, 0, 1, Sequences(token, phase="a short token", purpose="pilot"))
        answers = dict[int, Array]()
        with suppress(errors.OracleError), self.interrupts.held():
            self.ask_for([span], lambda part, start, y: answers.update({start: y}), None)
        return bool(answers)

    def _recognise(self, waiting: list[calls.Span]) -> None:
        """Ask recorded questions again and compare, before anything new is paid."""
        witnesses = self.witnesses
        if witnesses is None or not witnesses.found:  # a salvaged ledger may begin with a gap
            return
        known = Fingerprint.of(witnesses, self.ledger.moved)
        with self.interrupts.held():
            now = self._ask_apart(known.spans(), known, waiting)
            if known.differs(now):
                # until a third answer says otherwise it is noise
                self.spending.noisy = True
                again = self._ask_apart(known.spans(alone=True), known, waiting)
                self.noise = known.noise(now, again)
        self.witnesses = None

    def _ask_apart(
        self, spans: list[calls.Span], known: Fingerprint, waiting: list[calls.Span]
    ) -> Array:
        """Ask a fingerprint outside any round: paid, not recorded."""
        answers: dict[tuple[int, int], Array] = {}

        def put(part: int, start: int, rows: Array) -> None:
            answers[part, start] = rows

        # half a fingerprint recognises nobody
        if not self.spending.covers(spans) or self.ask_for(spans, put, None):
            raise self.spending.exceeded(waiting)
        return known.in_order(answers)

    # -- what is said

    def report(self, end: calls.CallEnd) -> None:
        """Tell what came, and when the target asks to wait."""
        if end.outcome is calls.CallOutcome.PUT_OFF:
            self._tell(f"waiting {in_seconds(end.pause_s)}: the target asks to")
        elif end.rows_kept():
            self._tell(end.call.span.probes.phase)

    def _tell(self, phase: str) -> None:
        if self.progress is not None:
            answered, expected = self.ledger.answered, self.spending.expected
            # what is asked again comes on top of the plan
            most = None if expected is None else max(expected, answered)
            self.progress(watching.Progress(phase, answered, most, self.ledger.spent.queries))

    def explain(self, end: calls.CallEnd) -> BaseException:
        """Make the error of a call that was lost or interrupted."""
        batch, self._lost = self.sizes.of(end.call.span.probes, self.ledger.width), end
        return calls.failure(end, self.ledger, self.retries, batch, fits=self.fits)

    def notes(self) -> list[str]:
        """Say what happened on the way."""
        notes = []
        if doubt := self.ledger.counts().get("in doubt"):
            notes.append(
                f"{doubt:,} queries were in flight when an earlier process died: paid, never "
                "recorded, asked again."
            )
        if times := self.ledger.put_off():
            notes.append(
                f"The target put off {times:,} call{'s' if times > 1 else ''} (RetryLater), which "
                "do not count as paid."
            )
        if self.noise:
            notes.append(
                "When the run was resumed recorded questions got other answers than before, and "
                f"others again: noise of standard deviation about {self.noise:.1e}."
            )
        if self.ledger.moved:
            notes.append(
                "The recorded questions differ from those this program makes by up to "
                f"{self.ledger.moved:.1e} relative, as with another BLAS."
            )
        return notes
