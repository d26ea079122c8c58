"""How exposed is a target: what it is, what can be read out of it, and at which cost.

`audit` runs the questions of `questions.identification` like any learner's: one ledger holds the
answers of identification and of recovery, and the same call goes on with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from unsoftmax.campaign import Budget, Recovery, Retries, Watcher
from unsoftmax.campaign.limits import whole
from unsoftmax.campaign.notebook import shown
from unsoftmax.campaign.recovery import versions
from unsoftmax.campaign.runner import opened_campaign
from unsoftmax.campaign.watching import CourseWatch
from unsoftmax.learners.settings import at_least_0
from unsoftmax.learners.tokens.table_head import TokenTable
from unsoftmax.models.files import SavedResult, as_json, of_json, read_json, write_json
from unsoftmax.protocol import Course, Oracle, outputs_of, vocabulary_of
from unsoftmax.questions import target_classes
from unsoftmax.questions.answer_traits import Traits
from unsoftmax.questions.id_identification import IdIdentifier
from unsoftmax.questions.identification import NOT_RECOVERED, Certainty, Identifier, Identity
from unsoftmax.theory import counts

AUDIT_FILE = "audit.json"


@dataclass(frozen=True, slots=True)
class RecoveryCost:
    """What recovering the whole target costs.

    Attributes
    ----------
    learner : dict
        The settings of the learner that recovers it.
    queries, tokens : int
        What it typically takes, the hold-out included.
    at_most : int
        Queries that the learner never exceeds.
    money : float
        ``queries`` and ``tokens`` at the prices given; 0 without prices.
    counted : str
        What they are counted for, where it is not known how many heads there are or of which
        rank: the case, and a formula; "" where that is known.
    """

    learner: Mapping[str, Any]
    queries: int
    tokens: int
    at_most: int
    money: float
    counted: str = ""


@dataclass(frozen=True, slots=True)
class WholeCost:
    """What recovering by a learner of vectors costs: all numbers of every answer at once.

    Of a whole block its attention.

    Attributes
    ----------
    model : str
        The learner's name in `unsoftmax.learners.MODELS`.
    rotary : bool
        Whether with rotary positions.
    queries : int
        What it typically takes, the hold-out included.
    """

    model: str
    rotary: bool
    queries: int

    @property
    def of_block(self) -> bool:
        """Whether it is the attention of a whole block that is recovered."""
        return self.model == "block"

    @property
    def part(self) -> str:
        """What these queries recover."""
        return "its attention" if self.of_block else "all numbers of the answers"

    @property
    def options(self) -> tuple[str, ...]:
        """What `unsoftmax learn` takes beside the model, for all that can be had."""
        return ("--part", "block") * self.of_block + ("--rotary",) * self.rotary


@dataclass(frozen=True, slots=True)
class Audit(SavedResult):
    """The result of `unsoftmax.audit`.

    Attributes
    ----------
    target_class : str
        "constant", "linear", "single head", "several heads", "ReLU network", "network behind one
        head", "network behind several heads", "probabilities", "classes", "normalised vectors",
        "normalised tokens", "smooth feed-forward layer", "whole block", "position-dependent",
        "head behind a table", "head behind a vocabulary", "layer behind a table", "several heads
        behind a vocabulary", "tokens of its own", "none of these" or "undecided".
    certainty : {"certain", "likely", "undecided"}
        "certain": the whole target was recovered and fresh answers are predicted within the
        certificate, or an answer contradicts every other class. "likely": the same on a few
        random dimensions.
    answers : dict
        What answers are: ``kind`` ("constant", "labels", "noisy", "rounded", "float32" or
        "float64"), ``width`` (numbers per answer), ``coordinate`` (the one looked at),
        ``single_tokens`` ("affine", "bent", "smooth", "unclear"), ``tokens`` (which count),
        ``longest_token`` (a norm that is answered, where longer ones are refused; or None),
        ``residual`` (whether the last token is added), and what was noticed of their precision.
    facts : dict of str to int
        What else is known: ``heads``, ``rank`` or ``rank_at_least``, ``neurons``, ``biases``,
        ``rotary``, ``gated``, ``residual`` where the last token reaches a network behind several
        heads by itself, ``most_tokens``, the most tokens that are answered, where a sequence
        of up to 64 tokens was refused, and ``context``, how many ids a target takes that cuts
        longer sequences.
    reasons : tuple of str
        What the class rests on, and what was excluded.
    recoverable : str
        What can be had of such a target.
    cost : RecoveryCost or None
        What recovering the whole costs; None where no learner can.
    queries, tokens : int
        What was paid, recovery included.
    money : float
        The same at the prices given.
    recovery : Recovery or None
        The recovered target: asked for, or so small that identification had it.
    notes : tuple of str
        What a user should know.
    afforded : bool or None
        Whether the budget allowed the recovery that was asked for; None where none was.
    course : Course or None
        When the answers came; no part of the result, which is the same at any speed.
    versions : dict of str to str
        What computed it.
    whole : WholeCost or None
        What all numbers of vector answers cost together, ``cost`` being that of one of them.
    """

    file_name: ClassVar[str] = AUDIT_FILE

    target_class: target_classes.ClassName
    certainty: Certainty
    answers: Mapping[str, Any]
    facts: target_classes.Facts
    reasons: tuple[str, ...]
    recoverable: str
    cost: RecoveryCost | None
    queries: int
    tokens: int
    money: float
    recovery: Recovery[Any] | None = None
    notes: tuple[str, ...] = ()
    afforded: bool | None = None
    course: Course | None = field(default=None, compare=False)
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)
    whole: WholeCost | None = None

    @property
    def decided(self) -> bool:
        """Whether the target is of a class that is known."""
        return self.target_class not in target_classes.UNNAMED

    @property
    def known(self) -> tuple[tuple[str, str], ...]:
        """The facts in words."""
        flags, flagged = {0: "no", 1: "yes"}, ("biases", "rotary", "gated", "residual")
        said = ((name, flags[n] if name in flagged else f"{n:,}") for name, n in self.facts.items())
        return tuple((name.replace("_", " "), word) for name, word in said)

    def _repr_html_(self) -> str:
        costs = (
            ("" if self.whole is None else f"recovering {self.whole.part}", self.whole),
            ("recovering it", self.cost),
        )
        answers = f"{self.answers['kind']}, {self.answers['width']} per sequence"
        rows = [
            *self.known,
            ("answers", answers),
            ("recoverable", self.recoverable),
            *((what, f"about {cost.queries:,} queries") for what, cost in costs if cost),
            ("paid", f"{self.queries:,} queries, {self.tokens:,} tokens"),
        ]
        kept = "" if self.recovery is None else self.recovery._repr_html_()
        answer = f"Class of the target: {self.target_class} ({self.certainty})."
        return shown(answer, rows, (*self.reasons, *self.notes)) + kept

    def to_json(self) -> dict[str, Any]:
        """Return everything but the recovery as JSON; ``recovered`` says whether there is one."""
        apart = ("target_class", "recovery", "course", "versions")
        said = {f.name: as_json(getattr(self, f.name)) for f in fields(self) if f.name not in apart}
        kind = {"format_version": self.format_version, "class": self.target_class}
        return {**kind, **said, "recovered": self.recovery is not None}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``audit.json`` into a folder, and beside it what `Recovery.save` writes."""
        if self.recovery is not None:
            self.recovery.save(folder)
        course = {} if self.course is None else {"course": as_json(self.course)}
        content = {**self.to_json(), **course, "versions": dict(self.versions)}
        write_json(Path(folder) / AUDIT_FILE, content)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Audit:
        """Read back what `save` wrote.

        Raises
        ------
        FileNotFoundError
            The folder has no ``audit.json``, or no recovery where that speaks of one.
        ValueError
            A file is damaged, or newer than this program.
        """

        def undone(content: dict[str, Any]) -> tuple[Audit, bool]:
            found: Audit = of_json(cls, {**content, "target_class": content["class"]})
            return found, bool(content["recovered"])

        found, recovered = read_json(Path(folder) / AUDIT_FILE, cls.format_version, undone)
        return replace(found, recovery=Recovery.load(folder)) if recovered else found


def audit(
    oracle: Oracle,
    dim: int | None = None,
    *,
    vocabulary: int | None = None,
    table: Any = None,
    context: int = 512,
    recover: bool = False,
    price: float = 0.0,
    token_price: float = 0.0,
    holdout: int = 32,
    seed: int = 0,
    budget: int | Budget | None = None,
    ledger: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    workers: int = 1,
    progress: Watcher | None = None,
    retries: int | Retries = 3,
    timeout: float | None = None,
    most_tokens: int | None = None,
) -> Audit:
    """Say what a target is, what can be recovered of it, and at which cost.

    Parameters
    ----------
    oracle : callable
        The target, as `unsoftmax.learn` takes it; vectors are looked at by one coordinate.
    dim : int, optional
        Dimension d of a token, where it takes vectors.
    vocabulary : int, optional
        Number of ids, where it takes ids; by default what the target says, or the table's.
    table : array_like, shape (V, d), optional
        Vectors of ids, where they are known; by position and id, (P, V, d), with positions.
    context : int
        The most ids of a sequence that are asked.
    recover : bool
        Whether to recover it as well, where the budget allows what that typically takes.
    price, token_price : float
        What 1,000 queries, and 1,000 tokens, cost in any currency.
    holdout : int
        Queries to check a recovery with.
    seed : int
        Seed of the questions; another one asks others.
    budget, ledger, batch, workers, progress, retries, timeout, most_tokens
        As `unsoftmax.learn` takes them. The same ledger serves with and without ``recover``.

    Returns
    -------
    Audit
        Class and certainty, what is recoverable, costs, and the recovery where there is one.

    Raises
    ------
    BudgetExceeded
        Identification needs more than the budget, or recovery more than it typically takes.
    TypeError, ValueError, OracleError, LedgerError, LedgerMismatch, DimensionRefused
        As `unsoftmax.learn` raises them.

    Notes
    -----
    *Queries*: about 200 for a single head, 400 for several, 700 for networks, whatever d is; of
    ids about 250 for a head, 350 for several, and D + 17 for a table of D dimensions. With
    ``recover`` those of the learner that is named come on top.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(0)
    >>> secret = us.MultiHead(rng.standard_normal((3, 32, 32)) / 6, rng.standard_normal((3, 32)))
    >>> result = us.audit(secret, dim=32)
    >>> result.target_class, result.certainty, result.facts["heads"], result.queries < 500
    ('several heads', 'likely', 3, True)
    """
    holdout = whole("holdout", holdout, 0)
    at_least_0("price", price)
    at_least_0("token_price", token_price)
    most = budget if isinstance(budget, Budget) else Budget(queries=budget)
    within = most if recover else None
    asks = _asked_ids(oracle, dim, vocabulary, table)
    identifier = (
        Identifier(dim, seed, within=within)  # type: ignore[arg-type]
        if asks is None
        else IdIdentifier(*asks, min(context, most_tokens or context), seed, within=within)
    )
    watch = CourseWatch(progress)
    settings = most, ledger, batch, workers, watch, retries, timeout, most_tokens
    with opened_campaign(oracle, identifier, 0, None, *settings) as campaign:
        found = campaign.run(identifier.steps(holdout))
        recovery, spent = None, campaign.ledger.spent
        if found.found is not None and found.learner is not None:
            recovery = campaign.recovery(found.found, found.learner)
            recovery = replace(recovery, course=watch.course(), versions=versions())
        noticed, course = campaign.notes(), watch.course()

    def money(queries: int, tokens: int) -> float:
        return (price * queries + token_price * tokens) / 1000

    cost, traits = None, found.traits
    if (learner := found.learner) is not None:
        needed = target_classes.typical_cost(learner, found.facts, traits, holdout)
        counted = target_classes.counted_for(learner, found.facts)
        at_most = learner.plan().at_most + holdout
        cost = RecoveryCost(learner.settings(), *needed, at_most, money(*needed), counted)
    renamed = {"singles": "single_tokens", "radius": "longest_token"}
    of_vectors = () if asks else ("tokens", "singles", "radius", "residual")
    shown = ("kind", "width", "coordinate", *of_vectors)
    answers = {renamed.get(name, name): getattr(traits, name) for name in shown}
    answers["precision"] = list(traits.precision.why)
    all_numbers, by_vectors = (None, "") if asks else _whole(found, int(dim or 0), holdout)
    limits = {"most_tokens": traits.most_tokens, "context": traits.context}
    limit = {name: most for name, most in limits.items() if most is not None}
    said = found.target_class, found.certainty, answers, {**found.facts, **limit}, found.reasons
    recoverable = target_classes.RECOVERABLE[found.target_class]
    paid = spent.queries, spent.tokens, money(spent.queries, spent.tokens)
    notes = (*_notes(found, by_vectors, wanted=recover, ids=asks is not None), *noticed)
    done = recovery, notes, not found.beyond if recover else None
    return Audit(*said, recoverable, cost, *paid, *done, course, versions(), all_numbers)


def _asked_ids(
    oracle: Oracle, dim: int | None, vocabulary: int | None, table: Any
) -> tuple[int, TokenTable | None] | None:
    """Return how many ids there are, and their table; None where vectors are asked."""
    if table is not None:
        vectors = np.asarray(table, dtype=np.float64)
        known = TokenTable.of(vectors, dim or vectors.shape[-1])
        if vocabulary not in (None, len(known)):
            raise ValueError(f"table holds {len(known)} ids; vocabulary is {vocabulary}.")
        return len(known), known
    V = vocabulary if vocabulary is not None else vocabulary_of(oracle)
    if V is not None:
        return V, None
    if hasattr(oracle, "vocabulary"):
        raise ValueError("The target takes ids and does not say how many: give vocabulary.")
    if dim is None:
        raise TypeError("audit needs dim, the dimension of a token; of ids vocabulary or table.")
    return None


# The fewest dimensions of `BlockLearner`, and for heads of which size its queries are counted.
_SMALLEST_BLOCK, _USUAL_RANK = 4, 16


def _whole(found: Identity, dim: int, holdout: int) -> tuple[WholeCost | None, str]:
    """Say what all numbers at once cost, where one of them shows what they are of; and by what."""
    width, heads = found.traits.width, found.facts.get("heads", 1)
    if found.traits.radius is not None:
        return None, ""  # learners of vectors ask long tokens
    if found.target_class == "whole block":
        if found.traits.ordered or found.traits.kind != "float64" or dim < _SMALLEST_BLOCK:
            return None, ""
        rank = min(dim, _USUAL_RANK)
        queries = counts.block_attention_queries(dim, max(1, dim // rank), rank)
        return WholeCost("block", False, queries + holdout), ""
    if found.of_vectors:
        # heads of a size of two, d numbers in all: others, or shared keys, change it little
        several, biases = max(1, dim // 2), found.turning == "unclear"
        queries = counts.rotary_layer_queries(dim, several, several, 2, biases=biases)
        return WholeCost("attention-layer", True, queries + holdout), ""
    if width > 1 and found.target_class == "ReLU network":
        neurons = found.facts["neurons"]
        model, queries = "feed-forward", counts.feed_forward_queries(dim, neurons, width)
        said = f"network: FeedForwardLearner(dim={dim}) takes about six queries per neuron."
    elif 1 < width >= heads and found.target_class in ("single head", "several heads"):
        rank = found.facts.get("rank", max(1, min(dim, width) // heads))
        model, queries = "attention-layer", counts.attention_layer_queries(dim, heads, rank)
        said = f"layer: AttentionLayerLearner(dim={dim}) takes about {queries:,} queries if it has "
        said += f"heads of rank {rank}, {heads} in all."
    else:
        return None, ""
    both = f"All {width} numbers together give the whole {said}"
    return WholeCost(model, False, queries + holdout), both


def _limit(traits: Traits) -> str:
    """Say what a limit of tokens leaves open."""
    if traits.tokens == "one alone":
        return (
            "The target refuses sequences of two tokens. Attention would answer single tokens "
            "like this, too: the class is that of single tokens."
        )
    return (
        f"The target answers up to {traits.most_tokens} tokens and refuses more. That is no "
        "evidence of a class: this audit holds for sequences of so many."
    )


def _notes(found: Identity, by_vectors: str, *, wanted: bool, ids: bool) -> list[str]:
    """Say what a user should know of one number of the answers, and of a recovery's end."""
    traits = found.traits
    if found.reasons[0].startswith(NOT_RECOVERED):
        why = "the first reason says why."
    elif traits.probable:
        why = "audit reads numbers as they are. Audit us.oracles.log_ratios(oracle) to recover it."
    elif found.target_class == "whole block":
        why = "audit itself recovers no blocks. BlockLearner recovers the attention of one without "
        why += (
            'positions, or with rotary ones after an RMSNorm; with part="block" all of it, if it '
        )
        why += "knows the feed-forward part."
    elif found.of_vectors:
        why = "audit recovers one number of each answer. AttentionLayerLearner with rotary=True "
        why += "recovers all numbers of such a layer together."
    elif ids:
        why = "no learner recovers it from ids as they are asked. What is recoverable says of what "
        why += "there is one."
    elif traits.ordered:
        why = "audit recovers rotary positions only, and biases or several heads only from "
        why += "float64 answers. These positions, or these answers, are different."
    else:
        why = "audit recovers one number of each answer, and no learner does that for this class."
    named = found.target_class not in ("constant", *target_classes.UNNAMED)
    nothing = named and found.found is None and found.learner is None
    takes = "; ".join(found.beyond)
    of_all = found.learner is not None and outputs_of(found.learner) == "vector"
    of_all |= found.target_class == "several heads behind a vocabulary"
    notes = {
        f"Answers are vectors of {traits.width} numbers; this audit is about number "
        f"{traits.coordinate}, which varies most. us.oracles.coordinate chooses "
        "another one.": traits.width > 1 and not of_all,
        "The last token is added to the answers: a layer with a residual connection. The audit is "
        "about the rest.": traits.residual,
        by_vectors: by_vectors,
        _limit(traits): traits.most_tokens,
        f"It was not recovered: {why}": wanted and nothing,
        f"Recovery would exceed the budget and was not begun: it typically takes {takes}.": takes,
    }
    return [note for note, so in notes.items() if so]
