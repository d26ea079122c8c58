"""Does this target serve these weights? Yes, no or undecided, from about twenty queries.

A claimed model predicts every answer. A tensor that is wrong by Δ moves the answers to random
sequences by about ‖Δ‖·‖∂f/∂θ‖/√n; a right one leaves them where they are but for what the target's
own arithmetic, format and noise do, which are measured on the spot (`questions.answer_errors`).

- ``different``: an answer misses its prediction by more than twice what these allow;
- ``same``: none misses it by more than that, identities of the class hold, and a change of any
  tensor by half would have been called different (of a bias, by half of what it is added to);
- ``undecided`` otherwise.

Where it is different, further queries find the tensor (`questions.tensor_search`): 100 in all.
Whole blocks and stacks of blocks have another verdict (`questions.composition_verdict`).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from unsoftmax.campaign import Budget, Retries, Watcher
from unsoftmax.campaign.notebook import shown
from unsoftmax.campaign.runner import opened_campaign
from unsoftmax.errors import DimensionRefused
from unsoftmax.learners.compose import mapped
from unsoftmax.learners.settings import as_json, whole_number
from unsoftmax.learners.tokens.table_head import TokenTable
from unsoftmax.models import TokenHead
from unsoftmax.models.files import SavedResult
from unsoftmax.probes import Array, Copies, Ids, Round
from unsoftmax.protocol import Answers, Oracle, Outputs, Plan, vocabulary_of
from unsoftmax.questions import composition_verdict, id_claim
from unsoftmax.questions.answer_errors import MISSED, AnswerErrors, Seen, power, seen_at
from unsoftmax.questions.claim import SINGLE_TOKENS, Claim, can_be_claimed
from unsoftmax.questions.claim_probes import Design, as_float32, lengths
from unsoftmax.questions.claimed_function import ClaimedFunction
from unsoftmax.questions.nudged_copies import CLUSTERS, COPIES
from unsoftmax.questions.tensor_search import Located, Search, changed_tensor, smooth_neurons_alone
from unsoftmax.refusals import Reason

Verdict: TypeAlias = Literal["same", "different", "undecided"]

VERIFICATION_FILE = "verification.json"

MOST = 100
NOT_FOUND = "Which tensor was changed could not be told:"
BUDGET_SPENT = "the budget is spent."
ABSOLUTE = "For these, the smallest change that would show is a norm; for others it is relative."
WITHIN_CERTIFICATE = (
    "These weights were recovered: what their certificate leaves undetermined was allowed for."
)
NO_POSITIONS = (
    "The claimed weights have no positions. A target with rotary or other positions would answer "
    "like this."
)
BY_THE_CHANGE = (
    "The change itself may be the reason for that. Then the answers are more precise than stated "
    "here, and smaller changes than these would show."
)
SPANNED = (
    "The table spans {span} of {dim} dimensions: what weights do beside these is not verified."
)
FEW_ANSWERS = "The answers take only a few values: labels, or rounded too coarsely to decide."


ANSWERED = {
    "same": "The target serves these weights",
    "different": "The target does not serve these weights",
    "undecided": "Whether the target serves these weights is undecided",
}
"""Each verdict as a sentence."""

# Tensors that a notebook shows, those first whose changes show least.
_SHOWN = 6
# A tensor counts as not testable where not even a change of so many times its size would show.
UNTESTABLE = 100.0
# Misses of so many times their bound make a target different; from the bound on it is undecided.
_DIFFERENT = 2.0
# A target is called the same where a change of any tensor by this share would have been caught; of
# a bias, by this share of what it is added to (`Claim.weighty`).
_CAUGHT = 0.5
# With fewer different answers a target is not called different.
_LEAST_ANSWERS = 4
# What a target serves instead predicts its answers so much better than the claim.
_FAR_LESS = 1e-2
# So often all sequences are asked again where noise alone leaves it open.
_NOISE_ROUNDS = 3


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
    held : str or None
        Of whole blocks that are the same: how the target holds the weights, where that is not as
        they are given, such as "bfloat16".
    alternative : str or None
        Where it is different: which of the alternatives it serves instead, if any; those between
        which the answers do not decide, joined by "or".
    """

    file_name: ClassVar[str] = VERIFICATION_FILE

    verdict: Verdict
    queries: int
    tensor: str | None
    power: Mapping[str, float]
    precision: float
    largest_miss: float
    notes: tuple[str, ...] = ()
    held: str | None = None
    alternative: str | None = None

    def __bool__(self) -> bool:
        return self.verdict == "same"

    def _repr_html_(self) -> str:
        rows = [("queries", f"{self.queries:,}")]
        rows += [("changed", self.tensor)] if self.tensor is not None else []
        rows += [("serves instead", self.alternative)] if self.alternative is not None else []
        rows += [
            ("precision of the answers", f"{self.precision:.1e}"),
            ("largest miss", f"{self.largest_miss:.2g} times the allowed error"),
        ]
        changes = sorted(self.power.items(), key=lambda item: -item[1])
        for name, change in changes[:_SHOWN]:
            shows = f"{change:.1e}" if change <= UNTESTABLE else "none: not testable"
            rows.append((f"smallest change of {name} that would show", shows))
        if left := changes[_SHOWN:]:
            rows.append((f"of {len(left)} others, at most", f"{left[0][1]:.1e}"))
        return shown(f"{ANSWERED[self.verdict]}.", rows, self.notes)


@dataclass(frozen=True, slots=True)
class Verifier:
    """The questions of `unsoftmax.verify`, in the form of a learner that learns one bit.

    Parameters
    ----------
    model : SingleHead, RotaryHead, MultiHead, RotaryHeads, ReluNetwork, Transformer, \
        MultiHeadTransformer, AttentionLayer, RotaryLayer, FeedForward, Stack or TokenHead
        The claimed weights.
    locate : bool
        Whether to find the tensor where the target is different.
    seed : int
        Seed of the questions.
    """

    model: Any
    locate: bool = True
    seed: int = 0
    budget: Budget = field(default=Budget())
    """The search for the tensor ends before a round that would pass it."""
    errors: Mapping[str, float] | None = None
    """Bounds on the model's parameters, as in a certificate."""
    like: Any = None
    """Ordinary inputs, tokens (n, d) or sequences (n, N, d): questions are drawn among and like
    them."""
    alternatives: Mapping[str, Any] = field(default_factory=dict)
    """Other models that the target may serve, by name; they are asked nothing more."""
    table: TokenTable | None = None
    """The target takes ids, and these are their vectors."""
    revision: ClassVar[int] = 8

    def __post_init__(self) -> None:
        if not isinstance(self.model, ClaimedFunction):
            id_claim.claim_of(self.model, self.errors)
        for name, one in self.alternatives.items():
            own, other = vocabulary_of(self.model), vocabulary_of(one)
            if own != other:
                raise ValueError(
                    f"The alternative {name} has a vocabulary of {other or 'vectors'}, the claim "
                    f"of {own or 'vectors'}: leave it out."
                )
            if id_claim.claim_of(one).dim != self.dim:
                raise ValueError(
                    f"The alternative {name} takes tokens of dimension {one.dim}, the claim of "
                    f"{self.dim}: leave it out."
                )
        whole_number("seed", self.seed, 0)
        if self.table is not None and (
            self._of_vocabulary or self._by_copies or not Claim(self.model).attends
        ):
            raise ValueError("table is for heads and attention layers. Leave it out.")
        if self.like is None:
            return
        if self.table is not None or self._of_vocabulary:
            raise ValueError("Ids are asked: leave like out.")
        ordinary_inputs(self.like, self.dim)
        if self._by_copies:
            raise ValueError(
                "like=… is for single layers: whole blocks are asked nudged copies of sequences of "
                "their own. Leave it out."
            )

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.model.dim)

    @property
    def vocabulary(self) -> int | None:
        """Number of ids, where the target takes ids."""
        return vocabulary_of(self.model) if self.table is None else len(self.table)

    @property
    def _of_vocabulary(self) -> bool:
        return isinstance(self.model, TokenHead)

    @property
    def outputs(self) -> Outputs:
        """Whether the weights answer with numbers or with vectors."""
        if self._by_copies:
            return "positions"
        return "scalar" if self.model.outputs is None else "vector"

    def settings(self) -> dict[str, Any]:
        """Return everything that determines the questions, as nested JSON."""
        arrays = {name: as_json(array) for name, array in self.model.arrays().items()}
        # what is asked after the first rounds depends on what the bounds make of these
        bounds = {"errors": {name: float(x).hex() for name, x in (self.errors or {}).items()}}
        model = {"class": type(self.model).__name__, **arrays}
        # ledgers are known by these settings
        asked = {"locate": self.locate, "seed": self.seed, "tuning": {}}
        asked |= bounds if self.errors else {}
        asked |= {} if self.like is None else {"like": as_json(self._like)}
        asked |= {} if self.table is None else {"table": as_json(self.table)}
        return {"learner": type(self).__name__, "model": model, **asked}

    @property
    def _like(self) -> Array | None:
        return None if self.like is None else ordinary_inputs(self.like, self.dim)

    def plan(self) -> Plan:
        """Say what it will cost."""
        if self._by_copies:
            return self._plan_of_copies()
        if self._of_vocabulary:
            return self._plan_of_vocabulary()
        first, second = lengths(Claim(self.model))
        asked, again = len(first) + len(second), _NOISE_ROUNDS * len(first)
        beside = CLUSTERS * COPIES if smooth_neurons_alone(Claim(self.model)) else 0
        most = max(MOST, asked) if self.locate else asked + beside
        noise = f"{again} more if answers are noisy"
        formula = f"{asked} queries, {noise}; up to {most} to name a changed tensor"
        tokens, longest = sum(first) + sum(second), max(*first, *second)
        rounds = 3 + _NOISE_ROUNDS
        return Plan(None, most + again, tokens, rounds, formula, most_tokens=longest)

    def steps(self, checks: int) -> Generator[Round, Answers, Verification]:
        """Ask, and say what the answers mean. ``checks`` counts for nothing: all are checks."""
        if self._by_copies:
            return (yield from self._copies())
        if self._of_vocabulary:
            asked = self._answered(id_claim.IdClaim(self.model, self.errors), self._in_ids())
            return (yield from mapped(asked, ask=partial(_of_ids, self._numbers)))
        if (table := self.table) is None:
            claim = Claim(self.model, self.errors)
            return (yield from self._answered(claim, Design.of(claim, self.seed, self._like)))
        return (yield from mapped(self._behind(table), ask=partial(_of_ids, table)))

    def _behind(self, table: TokenTable) -> Generator[Round, Answers, Verification]:
        """Ask sequences of a table's vectors; nothing is named there."""
        claim = Claim(self.model, self.errors)
        design = Design.of_ids(claim, table, self.seed)
        found = yield from replace(self, locate=False)._answered(claim, design)
        span, notes = table.affine.y.shape[1], [*found.notes]
        if span < self.dim:
            notes.append(SPANNED.format(span=span, dim=self.dim))
        if found.verdict == "different" and self.locate and not found.alternative:
            notes.append(f"{NOT_FOUND} vectors of ids cannot be chosen.")
        return replace(found, notes=tuple(notes))

    def _answered(self, claim: Claim, design: Design) -> Generator[Round, Answers, Verification]:
        """Ask what was designed, and name what was changed."""
        one = yield from seen_at(claim, design.first, "random sequences")
        two = yield from seen_at(claim, design.second, "again, and in other words")
        one, two = design.read(claim, one, two)
        errors = design.errors(one, two)
        found = judged(claim, one, errors)
        asked = [*design.first, *design.second]
        averages = bool(errors.deviation and found.verdict == "undecided")
        if averages:
            one, errors = yield from averaged(claim, design, one, errors)
            found = judged(claim, one, errors)
            asked += _NOISE_ROUNDS * design.first
        located = Located(None)
        if found.verdict == "different" and (served := self._served(design.first, one, errors)):
            return replace(found, alternative=served)
        if smooth_neurons_alone(claim) and not claim.errors and not errors.strange:
            found, located = yield from self._beside_copies(found, asked)
        elif found.verdict == "different" and self.locate and not errors.strange:
            rng = np.random.default_rng([self.seed, 1])
            # the budget decides how far, not what: with a larger one a ledger goes on
            sharp = errors if averages else design.errors(one, two, sharp=True)
            if isinstance(claim, id_claim.IdClaim):
                search = id_claim.changed_factor(claim, sharp, design.first, one)
            else:
                search = changed_tensor(claim, sharp, MOST - len(asked), rng)
            located = yield from _affordable(search, self.budget, asked)
        different = found.verdict == "different"
        why = f"{NOT_FOUND} {located.why}" if located.why and different else ""
        unmet = design.unmet(claim, claim.bend_bounds(one.at, _DIFFERENT * errors.of(one)))
        notes = (*found.notes, *filter(None, (why, unmet)))
        return replace(found, tensor=located.tensor, notes=notes)

    def _served(self, asked: Sequence[Array], seen: Seen, errors: AnswerErrors) -> str | None:
        """Name the alternatives that predict these answers, if any do."""
        fit = []
        most, missed = _DIFFERENT * errors.of(seen), np.median(np.abs(seen.missed))
        for name, model in self.alternatives.items():
            # a target may round its inputs; a wrong claim may widen what answers hide: what is
            # served misses far less than that
            for given in (asked, [*map(as_float32, asked)]):
                y = np.stack([_last_answer(model, X) for X in given])
                alike = y.size == seen.y.size
                near = np.abs(seen.y - y.reshape(seen.y.shape)) if alike else np.full(1, np.inf)
                if np.all(near <= most) and np.median(near) < _FAR_LESS * missed:
                    fit.append(name)
                    break
        return " or ".join(fit) or None

    def _beside_copies(
        self, found: Verification, asked: Sequence[Array]
    ) -> Generator[Round, Answers, tuple[Verification, Located]]:
        """Ask nudged copies, too: they tell coarse arithmetic from other weights more sharply.

        And name what was changed. Where answers may be no more precise than they are taken to be,
        what copies show is the verdict.
        """
        doubted = found.verdict == "undecided" or BY_THE_CHANGE in found.notes
        if not doubted and (found.verdict == "same" or not self.locate):
            return found, Located(None)
        copies = composition_verdict.CopiesAsked(self.model, self.seed)
        search = copies.verdict_and_name(self.locate)
        located = yield from _affordable(search, self.budget, asked)
        if doubted and (said := copies.judged) is not None:
            found = replace(_by_copies(said), notes=(*said.notes, SINGLE_TOKENS))
        return found, located

    @property
    def _numbers(self) -> TokenTable:
        """Ids as tokens of one number."""
        return TokenTable(np.arange(self.model.vocabulary, dtype=np.float64)[:, None])

    def _in_ids(self) -> Design:
        return Design.of_vocabulary(id_claim.IdClaim(self.model), self._numbers, self.seed)

    def _plan_of_vocabulary(self) -> Plan:
        design = self._in_ids()
        sizes = [len(X) for X in (*design.first, *design.second)]
        again = _NOISE_ROUNDS * len(design.first)
        more = id_claim.most_to_name(self.model) if self.locate else 0
        formula = f"V + {len(sizes) - self.model.vocabulary} queries, {again} more if answers are "
        formula += f"noisy; up to {more} to name what was changed"
        tokens, most = sum(sizes), len(sizes) + again + more
        return Plan(
            None, most, tokens, 9, formula, most_tokens=max(sizes), vocabulary=self.vocabulary
        )

    # -- whole blocks and stacks of blocks

    @property
    def _by_copies(self) -> bool:
        """Whether nudged copies decide; single layers have a sharper verdict of their own."""
        return composition_verdict.is_composition(self.model) and not self.errors

    def _plan_of_copies(self) -> Plan:
        asked, more, tokens = composition_verdict.most_questions(self.model)
        most = asked + more if self.locate else asked
        formula = f"{asked} queries"
        formula += f"; {asked + more} to name a changed tensor" if more else ""
        return Plan(None, most, tokens * most, 2, formula, most_tokens=tokens)

    def _copies(self) -> Generator[Round, Answers, Verification]:
        asked = composition_verdict.CopiesAsked(self.model, self.seed)
        found, located = (yield from asked.verdict()), Located(None)
        served = asked.serving(self.alternatives) if found.verdict == "different" else None
        if found.verdict == "different" and self.locate and not served:
            located = yield from _affordable(asked.name(), self.budget, [*asked.copies.X])
        notes = (*found.notes, f"{NOT_FOUND} {located.why}") if located.why else found.notes
        return replace(_by_copies(found), tensor=located.tensor, notes=notes, alternative=served)


def _by_copies(found: composition_verdict.Judged) -> Verification:
    """Say what answers to nudged copies mean."""
    size = found.precision, found.largest_miss
    return Verification(found.verdict, 0, None, found.power, *size, found.notes, found.held)


def _of_ids(table: TokenTable, asked: Round) -> Round:
    """Ask ids in the place of their vectors; some questions are ids already."""
    return [
        one
        if isinstance(one, Ids | Copies)
        else Ids(table.ids_of(one[:]), phase=one.phase, purpose=one.purpose)
        for one in asked
    ]


def ordinary_inputs(like: Any, dim: int) -> Array:
    """Return ordinary inputs as sequences (n, N, d), tokens (n, d) as sequences of one.

    Raises
    ------
    ValueError
        They are no finite tokens of this dimension.
    """
    X = np.asarray(like, dtype=np.float64)
    X = X[:, None] if X.ndim == 2 else X
    if X.ndim != 3 or X.shape[2] != dim or not X.size or not np.all(np.isfinite(X)):
        raise ValueError(
            f"like must be finite tokens (n, {dim}) or sequences (n, N, {dim}); it has the shape "
            f"{np.shape(like)}."
        )
    return X


def _dim_of(*said: Any) -> int:
    """Return the dimension that the user, the function or the target says."""
    found = next((x for x in said if x is not None), None)
    if found is None:
        raise ValueError(
            "The claim is a function, and neither it nor the target says the dimension of a token: "
            "give dim."
        )
    whole_number("dim", found, 1)
    return int(found)


class _Spent(Exception):
    """The next round would pass the budget."""


def _last_answer(model: Any, X: Array) -> Array:
    """Answer one sequence (N, d); a part of a block answers at the last position, as the block."""
    return np.asarray(
        model(X[None])[0] if isinstance(model, TokenHead) else model.maps.answers(X[None])[0, 0]
    )


def _affordable(search: Search, budget: Budget, asked: Sequence[Array]) -> Search:
    """Ask as far as a budget goes after what was asked; say so where it ends."""
    queries, tokens = len(asked), sum(map(len, asked))

    def counted(more: Round) -> Round:
        nonlocal queries, tokens
        queries += sum(map(len, more))
        tokens += sum(len(probes) * probes.tokens for probes in more)
        limits = ((budget.queries, queries), (budget.tokens, tokens))
        if any(limit is not None and needed > limit for limit, needed in limits):
            raise _Spent
        return more

    try:
        return (yield from mapped(search, ask=counted))
    except _Spent:
        return Located(None, BUDGET_SPENT)


def judged(claim: Claim, seen: Seen, errors: AnswerErrors) -> Verification:
    """Say what answers mean."""
    own, least = errors.own(seen), np.finfo(np.float64).tiny
    bounds = np.maximum(errors.of(seen), least)
    with np.errstate(over="ignore"):
        largest = float(np.max(np.abs(seen.missed) / bounds))
    strength = power(claim, seen, _DIFFERENT * bounds)
    unseen, told_apart = _unseen(claim, strength), _told_apart(seen)
    verdict: Verdict = "undecided"
    notes = _notes(claim, errors)
    if largest > _DIFFERENT and told_apart:
        verdict = "different"
        notes += [BY_THE_CHANGE] if any(MISSED in note for note in errors.notes()) else []
    elif largest <= 1 and not errors.strange and not unseen:
        verdict = "same"
    else:
        notes += [] if told_apart else [FEW_ANSWERS]
        if 1 < largest <= _DIFFERENT:
            notes.append(
                f"An answer misses its prediction by {largest:.2g} times the allowed error: up to "
                f"1 counts as the same, above {_DIFFERENT:.2g} as different."
            )
        by_answers = _unseen(claim, power(claim, seen, _DIFFERENT * np.maximum(own, least)))
        hidden = {
            "Answers are too coarse": True,
            "The certificate leaves too much undetermined": False,
        }
        for what, hides in hidden.items():
            some = [name for name in unseen if (name in by_answers) == hides]
            notes += [f"{what} to show a change of {', '.join(some)}."] if some else []
    precision = float(np.max(own) / (np.max(seen.at.roundings) or 1.0))
    return Verification(verdict, 0, None, strength, precision, largest, tuple(notes))


def _unseen(claim: Claim, strength: Mapping[str, float]) -> list[str]:
    """Name the tensors of which not even a change that counts would have shown."""
    units = claim.units()
    shown = {name: _CAUGHT * size / units[name] for name, size in claim.weighty().items()}
    return [name for name, share in shown.items() if not strength[name] <= share]


def _told_apart(seen: Seen) -> bool:
    """Whether answers are more than labels, or a few numbers that rounding may have made."""
    different = np.unique(seen.y)
    if len(different) >= _LEAST_ANSWERS:
        return True
    some = np.abs(different[different != 0])
    # all are 1 of labels; what is rounded to multiples of a step moves by less than the smallest
    return bool(not np.all(some == 1) and np.max(np.abs(seen.missed)) > np.min(some))


def _notes(claim: Claim, errors: AnswerErrors) -> list[str]:
    """Say what was noticed, whatever the verdict."""
    notes = [*errors.notes(), *([] if claim.attends else [SINGLE_TOKENS])]
    notes += [WITHIN_CERTIFICATE] if claim.errors else []
    tensors = claim.model.tensors.items()
    if zeros := [name for name, one in tensors if 0 < one.norm <= claim.bound(name)]:
        notes.append(f"May be 0 within their bounds: {', '.join(zeros)}. {ABSOLUTE}")
    unordered = claim.attends and not claim.ordered
    return [*notes, NO_POSITIONS] if errors.strange and unordered else notes


def averaged(
    claim: Claim, design: Design, one: Seen, errors: AnswerErrors
) -> Generator[Round, Answers, tuple[Seen, AnswerErrors]]:
    """Ask the first questions again and again; return the means, and the smaller noise."""
    every = [one.y]
    for _ in range(_NOISE_ROUNDS):
        more = yield from seen_at(claim, design.first, "again, for the noise")
        every.append(more.y)
    answers, sizes = np.array(every), one.at.roundings + errors.hidden
    apart = answers - answers.mean(axis=0)
    # numbers of one vector may have the same noise: they count as one
    freedom = (len(every) - 1) * len(one.y) + errors.freedom

    def pooled(before: float, again: Array) -> float:
        squares = np.sum(again**2) / (one.y.size / len(one.y))
        return float(np.sqrt((squares + errors.freedom * before**2) / freedom))

    deviation, share = pooled(errors.deviation, apart), pooled(errors.share, apart / sizes)
    better = replace(errors, deviation=deviation, share=share, freedom=freedom)
    return Seen(answers.mean(axis=0), one.at), replace(better, averaged=len(every))


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
    like: Any = None,
    alternatives: Mapping[str, Any] | None = None,
    dim: int | None = None,
    table: Any = None,
) -> Verification:
    """Say whether a target serves these weights: the same, different, or undecided.

    Parameters
    ----------
    oracle : callable
        The target, as `unsoftmax.learn` takes it.
    model : SingleHead, RotaryHead, MultiHead, RotaryHeads, ReluNetwork, Transformer, \
        MultiHeadTransformer, AttentionLayer, RotaryLayer, FeedForward, Stack or TokenHead
        The weights that it is claimed to serve; or any function of yours, from (B, N, d) to
        answers, such as `unsoftmax.oracles.from_torch` and `from_onnx` make: then nothing is named.
    errors : mapping of str to float, optional
        Absolute bounds on the errors of the model's parameters, as `Certificate.errors` has them,
        where it was recovered: "same" then means within these.
    locate : bool
        Whether to find what was changed where it is different: 100 queries in all at most, or as
        many as the budget allows, otherwise 20, and 39 more where answers are noisy. Of a `Stack`
        60, or 80 for several blocks, otherwise 20. Of a `TokenHead` of V ids V + 19, every id once
        as the last one, and up to 1,000 more (ranks up to 16) to name u, rho or x.
    seed : int
        Seed of the questions; another one asks others.
    budget, ledger, batch, workers, progress, retries, timeout
        As `unsoftmax.learn` takes them.
    like : array_like, optional
        Ordinary inputs of the target, tokens (n, d) or sequences (n, N, d): half of the questions
        are drawn among them and like them, so that the target cannot tell them from its traffic.
    alternatives : mapping of str to model, optional
        What it may serve instead, by name, such as an earlier revision: where it is different,
        that one is named, without a question more.
    dim : int, optional
        Dimension of a token, where the claim is a function; by default the target's.
    table : array_like, shape (V, d), optional
        Of heads and attention layers: the target takes ids, and these are their vectors, by
        position and id (P, V, d) where there are positions. Ids are asked; nothing is named.

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
    mine, its = getattr(model, "dim", None), getattr(oracle, "dim", None)
    if isinstance(mine, Integral) and isinstance(its, Integral) and mine != its:
        raise Reason.SERVES_OTHER_DIMENSION.error(dim=its, claimed=mine)
    if isinstance(model, TokenHead) and vocabulary_of(oracle) not in (None, model.vocabulary):
        asked = model.vocabulary
        raise Reason.OTHER_VOCABULARY.error(held=vocabulary_of(oracle), asked=asked)
    if not can_be_claimed(model) and callable(model):
        model = ClaimedFunction(model, _dim_of(dim, mine, its))
    if table is not None and isinstance(model, TokenHead):
        raise ValueError(
            "A TokenHead is verified by ids alone, whose vectors it has: leave table out."
        )
    rows = None if table is None else TokenTable.of(np.float64(table), int(model.dim))
    verifier = Verifier(model, locate, seed, budget, errors, like, alternatives or {}, rows)
    settings = budget, ledger, batch, workers, progress, retries, timeout
    with opened_campaign(oracle, verifier, 0, None, *settings) as campaign:
        try:
            found = campaign.run(verifier.steps(0))
        except DimensionRefused as error:
            if error.reason != Reason.SERVES_OTHER_NUMBERS.name:
                said = str(error).replace("use that as dim.", "it does not serve these weights.")
                error.args = (said,)
                error.add_note(f"These weights take tokens of dimension {model.dim}.")
            raise
        paid = sum(campaign.ledger.counts().values())
        return replace(found, queries=paid, notes=(*found.notes, *campaign.notes()))
