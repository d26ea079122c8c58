"""Does this target serve these weights? Yes, no or undecided, from about twenty queries.

A claimed model predicts every answer. A tensor that is wrong by Δ moves the answers to random
sequences by about ‖Δ‖·‖∂f/∂θ‖/√n; a right one leaves them where they are but for what the target's
own arithmetic, format and noise do, which are measured on the spot (`questions.answer_errors`).

- ``different``: an answer misses its prediction by more than twice what these allow;
- ``same``: none misses it by more than that, identities of the class hold, and a change of any
  tensor by half would have been called different (of a bias, by half of what it is added to);
- ``undecided`` otherwise.

Where it is different, further queries find the tensor (`questions.tensor_search`): 100 in all.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from unsoftmax.campaign import Budget, Retries, Watcher
from unsoftmax.campaign.runner import opened_campaign
from unsoftmax.errors import DimensionRefused
from unsoftmax.learners.settings import as_json, changed, whole_number
from unsoftmax.models.files import SavedResult
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Oracle, Outputs, Plan
from unsoftmax.questions.answer_errors import (
    MISSED,
    NOT_SERVED,
    AnswerErrors,
    AnswerErrorTuning,
    Seen,
    power,
    seen_at,
)
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.claim_probes import ClaimProbeTuning
from unsoftmax.questions.located import Located, Search
from unsoftmax.questions.question_design import Design
from unsoftmax.questions.tensor_search import TensorSearchTuning, changed_tensor

Verdict: TypeAlias = Literal["same", "different", "undecided"]

VERIFICATION_FILE = "verification.json"

MOST = 100
NOT_FOUND = "Which tensor was changed could not be told:"
BUDGET_SPENT = "the budget is spent."
ABSOLUTE = "What changes of these would show is said as norms, of others as shares."
WITHIN_CERTIFICATE = (
    "The weights are a recovery's: answers were allowed what its certificate leaves open."
)
NO_POSITIONS = (
    "The claimed weights have no positions: a target whose scores turn with distance (rotary "
    "positions) would answer like this, and so would one with any others."
)
BY_THE_CHANGE = (
    "The target is different, and what was changed may itself be why identities are missed: then "
    "answers are more precise than is said here, and smaller changes than these would show."
)
FEW_ANSWERS = "All answers are one of a few numbers: labels, or rounded too coarsely to tell."


@dataclass(frozen=True, slots=True)
class VerificationTuning:
    """Knobs of the test."""

    probes: ClaimProbeTuning = field(default=ClaimProbeTuning())
    """What is asked."""
    errors: AnswerErrorTuning = field(default=AnswerErrorTuning())
    """How precise the answers are taken to be."""
    search: TensorSearchTuning = field(default=TensorSearchTuning())
    """How the tensor is found."""
    different: float = 2.0
    """Misses of so many times their bound make a target different; from the bound on it is
    undecided."""
    missed: float = 0.05
    """A change that the power names is missed with this probability."""
    caught: float = 0.5
    """A target is called the same where a change of any tensor by this share would have been
    caught; of a bias, by this share of what it is added to (`Claim.weighty`)."""
    least_answers: int = 4
    """With fewer different answers a target is not called different."""
    noise_rounds: int = 3
    """So often all sequences are asked again where noise alone leaves it open."""


@dataclass(frozen=True, slots=True)
class Verification(SavedResult):
    """The answer of `unsoftmax.verify`; true if and only if the verdict is "same".

    Attributes
    ----------
    verdict : {"same", "different", "undecided"}
        Whether the target serves the claimed weights.
    queries : int
        Queries paid.
    tensor : str or None
        Where it is different: what was changed, such as "W of head 3"; None where that was not
        found, and for other verdicts.
    power : dict of str to float
        For each tensor the relative change in a random direction that would have been called
        different in 95 of 100 cases; ``inf`` where none would. For a tensor that is 0, or may be
        within its bound, the norm of the change.
    precision : float
        What answers may be off by, as a share of the size of their terms: the largest one.
    largest_miss : float
        The largest miss of a prediction, in units of what that answer may be off by.
    notes : tuple of str
        What was noticed about the answers.
    """

    file_name: ClassVar[str] = VERIFICATION_FILE

    verdict: Verdict
    queries: int
    tensor: str | None
    power: Mapping[str, float]
    precision: float
    largest_miss: float
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict == "same"


@dataclass(frozen=True, slots=True)
class Verifier:
    """The questions of `unsoftmax.verify`, in the form of a learner that learns one bit.

    Parameters
    ----------
    model : SingleHead, RotaryHead, MultiHead, RotaryHeads, ReluNetwork, Transformer, \
        MultiHeadTransformer, AttentionLayer, RotaryLayer or FeedForward
        The claimed weights.
    locate : bool
        Whether to find the tensor where the target is different.
    seed : int
        Seed of the questions.
    tuning : VerificationTuning
        Knobs.
    """

    model: Any
    locate: bool = True
    seed: int = 0
    budget: Budget = field(default=Budget())
    """The search for the tensor ends before a round that would pass it."""
    errors: Mapping[str, float] | None = None
    """Bounds on the model's parameters, as in a certificate."""
    tuning: VerificationTuning = field(default=VerificationTuning(), kw_only=True)
    revision: ClassVar[int] = 4

    def __post_init__(self) -> None:
        Claim(self.model, self.errors)
        whole_number("seed", self.seed, 0)

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.model.dim)

    @property
    def outputs(self) -> Outputs:
        """Whether the weights answer with numbers or with vectors."""
        return "scalar" if self.model.outputs is None else "vector"

    def settings(self) -> dict[str, Any]:
        """Return everything that determines the questions, as nested JSON."""
        arrays = {name: as_json(array) for name, array in self.model.arrays().items()}
        # what is asked after the first rounds depends on what the bounds make of these
        bounds = {"errors": {name: float(x).hex() for name, x in (self.errors or {}).items()}}
        return {
            "learner": type(self).__name__,
            "model": {"class": type(self.model).__name__, **arrays},
            "locate": self.locate,
            "seed": self.seed,
            "tuning": changed(self.tuning, VerificationTuning()),
            **(bounds if self.errors else {}),
        }

    def plan(self) -> Plan:
        """Say what it will cost."""
        claim, tuning = Claim(self.model), self.tuning
        design = Design.of(claim, self.seed, tuning.probes.hasty)
        asked = [*design.first, *design.second]
        beside = 0 if claim.bends is None else max(0, tuning.probes.most - len(asked))
        again = tuning.noise_rounds * (len(design.first) + beside)
        first = len(asked) + beside
        most = max(MOST, first) if self.locate else first
        return Plan(
            queries=None,
            at_most=most + again,
            tokens=sum(map(len, asked)) + beside,
            rounds=3 + tuning.noise_rounds,
            most_tokens=max(map(len, asked)),
            formula=f"{first} queries, {again} more where answers are noisy; up to {most} "
            "where a tensor is to be found",
        )

    def steps(self, checks: int) -> Generator[Round, Answers, Verification]:
        """Ask, and say what the answers mean. ``checks`` counts for nothing: all are checks."""
        claim, tuning = Claim(self.model, self.errors), self.tuning
        design = Design.of(claim, self.seed, tuning.probes)
        one = yield from seen_at(claim, design.first, "random sequences")
        two = yield from seen_at(claim, design.second, "again, and in other words")
        errors = design.errors(one, two, tuning.errors)
        found = judged(claim, one, errors, tuning)
        asked = [*design.first, *design.second]
        averages = bool(errors.deviation and found.verdict == "undecided")
        if averages:
            one, errors = yield from averaged(claim, design, one, errors, tuning)
            found = judged(claim, one, errors, tuning)
            asked += tuning.noise_rounds * design.first
        if found.verdict == "different" and self.locate:
            located = Located(None)
            if not errors.strange:
                rng = np.random.default_rng([self.seed, 1])
                # the budget decides how far, not what: with a larger one a ledger goes on
                room, tunings = MOST - len(asked), (tuning.probes, tuning.search)
                sharp = errors if averages else design.errors(one, two, tuning.errors, sharp=True)
                search = changed_tensor(claim, sharp, room, rng, *tunings)
                spent = Budget(len(asked), sum(map(len, asked)))
                located = yield from _affordable(search, self.budget, spent)
            notes = (*found.notes, *([f"{NOT_FOUND} {located.why}"] if located.why else []))
            found = replace(found, tensor=located.tensor, notes=notes)
        bounds = claim.bend_bounds(one.at, tuning.different * errors.of(one))
        if unmet := design.unmet(claim, bounds):
            found = replace(found, notes=(*found.notes, unmet))
        return found


def _affordable(search: Search, budget: Budget, spent: Budget) -> Search:
    """Ask as far as a budget goes, of which ``spent`` is gone; say so where it ends."""
    queries, tokens = spent.queries or 0, spent.tokens or 0
    try:
        asked = next(search)
        while True:
            queries += sum(map(len, asked))
            tokens += sum(len(probes) * probes.tokens for probes in asked)
            limits = ((budget.queries, queries), (budget.tokens, tokens))
            if any(limit is not None and needed > limit for limit, needed in limits):
                return Located(None, BUDGET_SPENT)
            asked = search.send((yield asked))
    except StopIteration as end:
        found: Located = end.value
        return found
    finally:
        search.close()


def judged(
    claim: Claim, seen: Seen, errors: AnswerErrors, tuning: VerificationTuning
) -> Verification:
    """Say what answers mean."""
    bounds = np.maximum(errors.of(seen), np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):
        largest = float(np.max(np.abs(seen.missed) / bounds))
    strength = power(claim, seen, tuning.different * bounds, tuning.missed)
    told_apart = _told_apart(seen, tuning)
    verdict: Verdict = "undecided"
    unseen = _unseen(claim, strength, tuning)
    if largest > tuning.different and told_apart:
        verdict = "different"
    elif largest <= 1 and not errors.strange and not unseen:
        verdict = "same"
    doubts: list[str] = []
    if verdict == "different" and any(MISSED in note for note in errors.notes()):
        doubts.append(BY_THE_CHANGE)
    if verdict == "undecided":
        doubts += _doubts(largest, told_apart, tuning)
        doubts += _coarse(claim, seen, errors, unseen, tuning)
    return Verification(
        verdict=verdict,
        queries=0,
        tensor=None,
        power=strength,
        precision=float(np.max(errors.own(seen)) / (np.max(seen.at.roundings) or 1.0)),
        largest_miss=largest,
        notes=(*_notes(claim, errors), *doubts),
    )


def _unseen(claim: Claim, strength: Mapping[str, float], tuning: VerificationTuning) -> list[str]:
    """Name the tensors of which not even a change that counts would have shown."""
    units = claim.units()
    shown = {name: tuning.caught * size / units[name] for name, size in claim.weighty().items()}
    return [name for name, share in shown.items() if not strength[name] <= share]


def _told_apart(seen: Seen, tuning: VerificationTuning) -> bool:
    """Whether answers are more than labels, or a few numbers that rounding may have made."""
    different = np.unique(seen.y)
    if len(different) >= tuning.least_answers:
        return True
    some = np.abs(different[different != 0])
    labels = len(some) > 0 and np.all(some == 1)
    # what is rounded to multiples of a step moves by less than the smallest of them
    return bool(len(some) and not labels and np.max(np.abs(seen.missed)) > np.min(some))


def _notes(claim: Claim, errors: AnswerErrors) -> tuple[str, ...]:
    """Say what was noticed, whatever the verdict."""
    certified = [WITHIN_CERTIFICATE] if claim.errors else []
    tensors = claim.model.tensors.items()
    zeros = [name for name, tensor in tensors if 0 < tensor.norm <= claim.bound(name)]
    if zeros:
        certified.append(f"May be 0 within the bounds: {', '.join(zeros)}. {ABSOLUTE}")
    if errors.strange and claim.attends and not claim.ordered:
        certified.append(NO_POSITIONS)
    return (*errors.notes(), *claim.notes, *certified)


def _doubts(largest: float, told_apart: bool, tuning: VerificationTuning) -> list[str]:
    """Say why a verdict is undecided; that a target is strange has been noticed."""
    notes = [] if told_apart else [FEW_ANSWERS]
    if 1 < largest <= tuning.different:
        notes.append(
            f"An answer misses its prediction by {largest:.2g} times what is allowed for: up to 1 "
            f"is the same, above {tuning.different:.2g} is different."
        )
    return notes


def _coarse(
    claim: Claim, seen: Seen, errors: AnswerErrors, unseen: list[str], tuning: VerificationTuning
) -> list[str]:
    """Say whether answers or a certificate hide changes of some tensors."""
    own = np.maximum(errors.own(seen), np.finfo(np.float64).tiny)
    strength = power(claim, seen, tuning.different * own, tuning.missed)
    by_answers = [name for name in _unseen(claim, strength, tuning) if name in unseen]
    by_bounds = [name for name in unseen if name not in by_answers]
    return [
        f"{what} to show a change of {', '.join(some)}."
        for what, some in (
            ("Answers are too coarse", by_answers),
            ("The certificate leaves too much open", by_bounds),
        )
        if some
    ]


def averaged(
    claim: Claim, design: Design, one: Seen, errors: AnswerErrors, tuning: VerificationTuning
) -> Generator[Round, Answers, tuple[Seen, AnswerErrors]]:
    """Ask the first questions again and again; return the means, and the smaller noise."""
    every = [one.y]
    for _ in range(tuning.noise_rounds):
        more = yield from seen_at(claim, design.first, "again, for the noise")
        every.append(more.y)
    answers, sizes = np.array(every), one.at.roundings + errors.hidden
    apart = answers - answers.mean(axis=0)
    # numbers of one vector may have the same noise: they count as one
    more_freedom = (len(every) - 1) * len(one.y)
    freedom = more_freedom + errors.freedom

    def pooled(before: float, again: Array) -> float:
        squares = np.sum(again**2) / (one.y.size / len(one.y))
        return float(np.sqrt((squares + errors.freedom * before**2) / freedom))

    better = replace(
        errors,
        deviation=pooled(errors.deviation, apart),
        share=pooled(errors.share, apart / sizes),
        freedom=freedom,
        averaged=len(every),
    )
    return Seen(answers.mean(axis=0), one.at), better


def verify(
    oracle: Oracle,
    model: Any,
    *,
    errors: Mapping[str, float] | None = None,
    locate: bool = True,
    seed: int = 0,
    budget: int | Budget | None = None,
    ledger: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    workers: int = 1,
    progress: Watcher | None = None,
    retries: int | Retries = 3,
    timeout: float | None = None,
) -> Verification:
    """Say whether a target serves these weights: the same, different, or undecided.

    Parameters
    ----------
    oracle : callable
        The target, as `unsoftmax.learn` takes it.
    model : SingleHead, RotaryHead, MultiHead, RotaryHeads, ReluNetwork, Transformer, \
        MultiHeadTransformer, AttentionLayer, RotaryLayer or FeedForward
        The weights that it is claimed to serve.
    errors : mapping of str to float, optional
        Absolute bounds on the errors of the model's parameters, as `Certificate.errors` has them,
        where it was recovered: "same" then means within these.
    locate : bool
        Whether to find what was changed where it is different: 100 queries in all at most, or as
        many as the budget allows, otherwise 20, and 39 more where answers are noisy.
    seed : int
        Seed of the questions; another one asks others.
    budget, ledger, batch, workers, progress, retries, timeout
        As `unsoftmax.learn` takes them.

    Returns
    -------
    Verification
        True if and only if the verdict is "same".

    Raises
    ------
    TypeError, ValueError
        ``model`` is of no class that is known, or a setting is out of range.
    DimensionRefused
        The target takes tokens of another dimension, or answers with another number of numbers: it
        does not serve these weights. The command line's status is that of "different".
    BudgetExceeded, OracleError, LedgerError, LedgerMismatch
        As `unsoftmax.learn` raises them.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> model = us.SingleHead(W=np.eye(3), v=[1.0, 2.0, 3.0])
    >>> bool(us.verify(model, model))
    True
    >>> other = us.SingleHead(W=1.001 * np.eye(3), v=[1.0, 2.0, 3.0])
    >>> us.verify(other, model).tensor
    'W'
    """
    budget = budget if isinstance(budget, Budget) else Budget(budget)
    _refuse_dimension(oracle, model)
    verifier = Verifier(model, locate, seed, budget, errors)
    with opened_campaign(
        oracle,
        verifier,
        budget=budget,
        ledger=ledger,
        batch=batch,
        workers=workers,
        progress=progress,
        retries=retries,
        timeout=timeout,
    ) as campaign:
        try:
            found = campaign.run(verifier.steps(0))
        except DimensionRefused as error:
            if not str(error).endswith(NOT_SERVED):
                said = str(error).replace("use that as dim.", "it does not serve these weights.")
                error.args = (said,)
                error.add_note(f"These weights take tokens of dimension {model.dim}.")
            raise
        return replace(
            found,
            queries=sum(campaign.ledger.counts().values()),
            notes=(*found.notes, *campaign.notes()),
        )


def _refuse_dimension(oracle: Oracle, model: Any) -> None:
    """Refuse weights of another dimension than a target that says its own."""
    mine, its = getattr(model, "dim", None), getattr(oracle, "dim", None)
    if isinstance(mine, Integral) and isinstance(its, Integral) and mine != its:
        raise DimensionRefused(
            f"These weights take tokens of dimension {mine}, the target of {its}: they are not "
            "what it serves."
        )
