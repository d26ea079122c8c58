"""Which class a target of ids is of: a first look, then learners on a few ids, then the whole.

On ids of a part of the vocabulary a target is of the class that it is of on all. So the learner of
one head runs on twelve random ids; where these leave its rank open, on four times as many. Where
it refuses, counts of ids beside another one say whether several heads answer. With a table, ids
whose vectors span it are asked alone: answers to others follow from theirs, or it is another one.

Queries: about 110 for the first look, 220 for one head, 60 to 120 for several, D + 17 for a table
of D dimensions.

The first look, before any class of models is assumed, is some 110 questions. *Lone ids* show the
kind of answers. *Six ids* are put in another order, asked twice over, and beside others, as vectors
are (`answer_traits`). *Copies* of an id are answered as it is by every softmax, unless something
stands beside them:

    order counts                             positions
    it does not, f(n copies) has a pole      tokens of the target's own (BOS, EOS, a prompt)

Beside tokens of its own n copies have the weight n a/(n a + 1), so one number of the answer to n
is a Möbius function of n, which keeps cross-ratios; vectors of H heads are sums of H such.
*Long sequences* are put in another order, too: where that counts, and in short ones it did not,
the target cuts them. How long they may be is bisected, as where they are refused.
"""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from unsoftmax import learners
from unsoftmax.campaign import Budget
from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer.id_answers import LoneVectors, noise_beside
from unsoftmax.learners.attention_layer.id_reading import IdReading
from unsoftmax.learners.compose import Asking, limited, mapped, read_as
from unsoftmax.learners.settings import Configured, whole_number
from unsoftmax.learners.tokens.asked_ids import COPIED, ask_lone
from unsoftmax.learners.tokens.table_head import TokenTable, ask_spanning, spanning
from unsoftmax.learners.tokens.vocabulary_factors import SPARE
from unsoftmax.models import TokenHead
from unsoftmax.probes import Array, Copies, Ids, Indices, Round
from unsoftmax.protocol import Answers, Found, Learner, Outputs, Plan, outputs_of
from unsoftmax.questions import target_classes
from unsoftmax.questions.answer_traits import (
    Traits,
    differ,
    first_seen,
    on_an_ellipsoid,
    outcome_of,
    unless_refused,
)
from unsoftmax.questions.identification import (
    NOT_RECOVERED,
    RECOVERED,
    First,
    Identity,
    Paid,
    at_first_sight,
    certainty_of,
    learned,
    uncontradicted,
    unless_missed,
)
from unsoftmax.refusals import Reason
from unsoftmax.theory import counts

# Ids of the first sketch; of the next ones so many times as many, while their pairs are no larger
# share of what the whole takes at a rank that these could show.
_FEW, _MORE, _SHARE = 12, 4, 0.1
# A sketch is stopped after so many times the pairs of its ids.
_AT_MOST = 3
# Heads that are looked for, and questions that show them: of 512 copies eight ratios show five
# heads, 29 twenty-six.
_CURVES = 400


# Lone ids beyond those that an ellipsoid passes through, and how near the others are to it.
_BEYOND, _ALIKE = 24, 1e-4
_NORMALISED = (
    "Lone ids are answered on an ellipsoid: the output is normalised (LayerNorm or RMSNorm)."
)


@dataclass(frozen=True, slots=True)
class IdIdentifier(Configured):
    """The questions of `unsoftmax.audit` for a target of ids, as those of `Identifier`.

    Parameters
    ----------
    vocabulary : int
        Number of ids V.
    table : TokenTable, optional
        Vectors of ids, where they are known.
    context : int
        The most ids of a sequence that are asked.
    seed : int
        Seed of the questions.
    within : Budget, optional
        Recover the target as well, within that: the same questions first, and more after them.
    """

    vocabulary: int
    table: TokenTable | None = None
    context: int = 512
    seed: int = 0
    within: Budget | None = field(default=None, kw_only=True)

    revision: ClassVar[int] = 2
    outputs: ClassVar[Outputs] = "vector"

    def __post_init__(self) -> None:
        whole_number("vocabulary", self.vocabulary, 2)
        whole_number("context", self.context, 2)
        whole_number("seed", self.seed, 0)

    @property
    def dim(self) -> int:
        """A token is one number, its id."""
        return 1

    def settings(self) -> dict[str, Any]:
        """Return what determines the questions of identification; those of recovery follow."""
        return Configured.settings(replace(self, within=None))

    def plan(self) -> Plan:
        """Say what identification costs at most; what recovery does is known after it."""
        formula = "about 110, 220 for a head, 60 to 120 for several, D + 17 for a table"
        at_most, most = 30_000, int(self.context)  # it is a few hundred
        return Plan(None, at_most, 8 * at_most, at_most, formula, most_tokens=most)

    def steps(self, checks: int) -> Generator[Round, Answers, Identity]:
        """Ask, and say what the answers mean."""
        rng, asked, first = np.random.default_rng(self.seed), Paid(), First()
        look = read_as(id_traits_of(int(self.vocabulary), int(self.context), rng), first.keep)
        identity = yield from mapped(self._identified(look, rng, asked, checks), ask=asked.count)
        return identity if identity.certainty != "certain" else self._explaining(identity, first)

    def _identified(
        self, look: Asking[Traits], rng: np.random.Generator, asked: Paid, checks: int
    ) -> Asking[Identity]:
        """Name the class, and recover the whole where that is wanted; ``asked`` is paid already."""
        traits = yield from look
        identity = at_first_sight(traits)
        if identity is None:
            identity = yield from _IdSketching(self, traits, rng).identity()
        elif traits.ordered:
            identity = self._of_positions(identity)
        if traits.context is not None and traits.most_tokens is None:
            identity = replace(identity, reasons=(*identity.reasons, _cut(traits.context)))
        if identity.learner is None or identity.found is not None or self.within is None:
            return identity
        return (yield from self._recovered(identity, asked, checks))

    def _of_positions(self, identity: Identity) -> Identity:
        """Say where positions count, and by what they are learned where they are known."""
        where = "added to tokens" if identity.traits.copied else "in scores, as rotary ones"
        reason = f"Copies of an id show where: positions are {where}."
        identity = replace(identity, reasons=(*identity.reasons, reason))
        table = self.table
        if table is None or table.positions == 1:
            return identity
        learner = learners.LowRankHead(
            table.vectors.shape[-1], table=table, context=self.context, seed=self.seed
        )
        return replace(identity, learner=learner)

    def _recovered(self, identity: Identity, asked: Paid, checks: int) -> Asking[Identity]:
        """Recover the whole target, where what that typically takes is left of the budget."""
        learner, traits = identity.learner, identity.traits
        assert learner is not None
        assert self.within is not None
        needed = target_classes.typical_cost(learner, identity.facts, traits, checks)
        if beyond := asked.beyond(self.within, needed):
            return replace(identity, beyond=beyond)
        whole = outputs_of(learner) == "vector"
        found = yield from learned(learner.steps(checks), traits, "recovery", whole=whole)
        if isinstance(found, Exception):
            reasons = (f"{NOT_RECOVERED}{found}", *identity.reasons)
            if traits.ordered or not isinstance(found, ModelMismatch):
                return replace(identity, reasons=reasons)  # it is as likely as before
            return Identity("undecided", "undecided", traits, reasons, identity.facts)
        if not target_classes.is_sharp(found):
            return replace(identity, found=found)
        name, facts = target_classes.read_of_ids(found)
        sure, reasons = certainty_of(traits, "float32"), (RECOVERED, *identity.reasons)
        return replace(
            identity, target_class=name, certainty=sure, facts=facts, reasons=reasons, found=found
        )

    def _explaining(self, identity: Identity, first: First) -> Identity:
        """Return what a target is, undecided where what was recovered misses first answers."""
        found, traits = identity.found, identity.traits
        if found is None:
            return identity
        most = traits.context or int(self.context)
        if self.table is not None and self.table.positions > 1:
            most = min(most, self.table.positions)
        told = [n for n, probes in enumerate(first.asked) if probes.tokens <= most]
        shown = First([first.asked[n] for n in told], [first.answers[n] for n in told])
        if self.table is not None and not isinstance(found.model, TokenHead):
            return uncontradicted(identity, shown, self.table.at)
        missed = []
        for probes, y in zip(shown.asked, shown.answers, strict=True):
            ids, y = probes[:], y[:, traits.coordinate]
            allowed = 2 * found.model.moved_at_most(ids, found.certificate.errors)
            missed.append(np.abs(found.model(ids) - y) > allowed + 1e-6 * np.abs(y))
        return unless_missed(identity, np.concatenate(missed))


def _cut(context: int) -> str:
    return (
        f"Of sequences of more than {context} ids the order counts, and of shorter ones it does "
        "not: the target cuts them. All else is about shorter ones."
    )


@dataclass(frozen=True, slots=True)
class _IdSketching:
    """Learners on a few ids of a target, one after another."""

    asks: IdIdentifier
    traits: Traits
    rng: np.random.Generator

    @property
    def context(self) -> int:
        """The most ids that are answered as few are."""
        return self.traits.context or int(self.asks.context)

    def identity(self) -> Asking[Identity]:
        """Return what the first learner that succeeds says of the target."""
        few = min(_FEW, int(self.asks.vocabulary))
        found = yield from self._one_head(few)
        while not isinstance(found, Exception):
            facts, more = _rank(found, few), self._worth(found.model.rank, few)
            tried = found if "rank" in facts or more == few else (yield from self._one_head(more))
            if tried is found or isinstance(tried, NotIdentifiable):
                return (yield from self._head(facts, few))
            found, few = tried, more
        refusals: list[tuple[str, Exception]] = [("one head", found)]
        if self.traits.width > 1:
            behind, why = yield from self._behind_the_table()
            heads = yield from learned(self._several(behind), self.traits, "heads", whole=True)
            if not isinstance(heads, Exception):
                why = (self._curved(*heads), *why, _not("one head", found))
                return self._layer(*heads, behind, why)
            refusals.append(("several heads", heads))
            if (yield from self._normalised()):
                return Identity("normalised vectors", "likely", self.traits, (_NORMALISED,))
        reasons = tuple(_not(name, why) for name, why in refusals)
        contrary = (isinstance(why, ModelMismatch) for _, why in refusals)
        if all(contrary) and not self.traits.coarse:
            return Identity("none of these", "likely", self.traits, reasons)
        return Identity("undecided", "undecided", self.traits, reasons)

    def _worth(self, rank: int, few: int) -> int:
        """Return how many ids it is worth to look for the rank on, ``few`` if no more."""
        V, table = int(self.asks.vocabulary), self.asks.table
        more = min(_MORE * few, V)
        whole = counts.token_head(V, _MORE * rank)
        if table is not None:
            whole = counts.table_head(table.affine.y.shape[1], _MORE * rank)
        return more if more * more <= _SHARE * whole else few

    def _one_head(self, few: int) -> Asking[Found[Any] | Exception]:
        """Try the learner of one head on so many ids."""
        V = int(self.asks.vocabulary)
        names, seed = self.rng.permutation(V)[:few], int(self.rng.integers(2**31))
        learner = learners.TokenHeadLearner(few, context=self.context, seed=seed)
        most = _AT_MOST * few**2 + 100
        steps = limited(learner.steps(32), Reason.TOO_MANY_TO_FIND.error(most=most), queries=most)
        steps = mapped(steps, ask=partial(_named_ids, names))
        return (yield from learned(steps, self.traits, f"one head on {few} ids"))

    def _several(self, behind: bool) -> Asking[tuple[int, bool]]:
        """Count heads by curves of counts."""
        V = int(self.asks.vocabulary)
        ids = np.sort(self.rng.permutation(V)[:COPIED])
        told = yield from ask_lone(ids, ids, self.context, self.rng)
        noise = noise_beside(told)
        single = LoneVectors(np.eye(len(ids)), told.y, noise)
        table = self.asks.table if behind else None
        steps = IdReading(table, ids, single, noise, self.context, self.rng).few_heads()
        stopped = Reason.TOO_MANY_TO_FIND.error(most=_CURVES)
        return (yield from limited(steps, stopped, queries=_CURVES))

    def _normalised(self) -> Asking[bool]:
        """Tell whether lone ids are answered on an ellipsoid."""
        V, count = int(self.asks.vocabulary), 2 * self.traits.width + _BEYOND
        if self.traits.width < 3 or count > V:
            return False
        ids = self.rng.permutation(V)[:count, None]
        [y] = yield [Ids(ids, phase="vectors on an ellipsoid", purpose="data")]
        return on_an_ellipsoid(y, _ALIKE)

    def _head(self, facts: target_classes.Facts, few: int) -> Asking[Identity]:
        """Name one head, behind the table or not, and what learns it."""
        asks, traits = self.asks, self.traits
        reason = (
            f"On {few} random ids the learner of one head recovers it and predicts fresh sequences "
            "of these within its certificate."
        )
        behind, why = yield from self._behind_the_table()
        if behind and traits.width > 1:
            return self._layer(1, False, behind, (*why, reason))
        name: target_classes.ClassName = "head behind a vocabulary"
        learner: Learner[Any] = learners.TokenHeadLearner(
            int(asks.vocabulary), context=self.context, seed=asks.seed
        )
        if behind:
            assert asks.table is not None
            name = "head behind a table"
            dim = asks.table.vectors.shape[-1]
            learner = learners.LowRankHead(
                dim, table=asks.table, context=self.context, seed=asks.seed
            )
        return Identity(name, "likely", traits, (reason, *why), facts, learner)

    def _curved(self, heads: int, adds: bool) -> str:
        """Say what counts of ids show; heads that rounding hides are not counted."""
        some = "1 head does" if heads == 1 else f"{heads} heads do"
        some = f"{heads} or more heads do" if self.traits.coarse else some
        last = ", and the last id adds something itself, as with a residual connection" * adds
        return f"Copies of ids beside others are answered as {some}{last}."

    def _layer(self, heads: int, adds: bool, behind: bool, why: tuple[str, ...]) -> Identity:
        """Name all heads of vectors, behind the table or not, and what learns them."""
        asks, traits = self.asks, self.traits
        facts = {"heads_at_least" if traits.coarse else "heads": heads}
        if not behind and heads == 1:  # the learner of one was tried
            return Identity("undecided", "undecided", traits, why)
        if not behind:
            name: target_classes.ClassName = "several heads behind a vocabulary"
            return Identity(name, "likely", traits, why, facts)
        assert asks.table is not None
        dim = asks.table.vectors.shape[-1]
        most = max(2 * heads, learners.AttentionLayerLearner(dim).max_heads)
        learner = learners.AttentionLayerLearner(
            dim, most, table=asks.table, context=max(4, self.context), seed=asks.seed
        )
        facts |= {"residual": 1} if adds else {}
        return Identity("layer behind a table", "likely", traits, why, facts, learner)

    def _behind_the_table(self) -> Asking[tuple[bool, tuple[str, ...]]]:
        """Tell whether lone ids are answered by an affine map of the table's vectors."""
        table = self.asks.table
        if table is None or table.positions > 1:
            return False, ()
        affine = table.affine
        among = affine.candidates(self.rng, len(table))
        lone = np.sort(among[spanning(affine.lifted[among], affine.y.shape[1] + 1)])
        asked = ask_spanning(affine, lone, among, self.context, self.rng)
        told = yield from learned(asked, self.traits, "table", whole=self.traits.width > 1)
        if isinstance(told, Exception):
            return False, (f"Not behind this table: {told}",)
        return True, ("Lone ids are answered by an affine map of the table's vectors.",)


def _not(name: str, why: Exception) -> str:
    """Say why something was not found: answers contradict it, or do not decide."""
    return f"{'Not' if isinstance(why, ModelMismatch) else 'Not decided,'} {name}: {why}"


def _rank(found: Found[Any], few: int) -> dict[str, int]:
    """Return the rank as far as so many ids show it."""
    rank = int(found.model.rank)
    return {"rank" if rank + SPARE <= few else "rank_at_least": rank}


def _named_ids(names: Indices, asked: Round) -> Round:
    """Ask ids by their names in the whole vocabulary."""

    def named(probes: Any) -> Any:
        if isinstance(probes, Copies):
            return replace(probes, inner=named(probes.inner))
        assert isinstance(probes, Ids)
        return replace(probes, ids=names[probes.ids])

    return [named(probes) for probes in asked]


# Ids that are asked alone, and how many of them again.
_LONE, _AGAIN = 24, 6
# Sequences of so many ids each that are asked in other words, as many of them.
_SHORT = 6
# Ids that are asked in copies, and how often each.
_COPIED, _COPIES = 4, (2, 4, 8, 16, 32, 64, 128)
# (1, 2; 4, 8) as a cross-ratio, and by which share those of answers may be another one.
_CROSS_RATIO, _CROSSED = 9 / 7, 1e-2
# Curves of vectors of more heads than this are not told from any others.
_MOST_POLES = 5


def id_traits_of(vocabulary: int, context: int, rng: np.random.Generator) -> Asking[Traits]:
    """Ask sequences of up to ``context`` ids, and say what the answers show."""
    ids = rng.permutation(vocabulary)[:_LONE]
    lone = yield from _answers("lone ids", ids[:, None], ids[-_AGAIN:, None])
    short = rng.choice(ids, (_SHORT, min(_SHORT, context)))
    several = yield from unless_refused(_in_other_words(short, ids, rng), [], first=True)
    found = first_seen(lone, [], several)
    if not several:
        return replace(found, most_tokens=1)
    outcome = outcome_of(lone[0], found)
    # values of ids may lie between 0 and 1 by themselves
    found = replace(found, outcome=None if outcome == "sigmoid" else outcome)
    if found.beyond is not None or found.constant or found.drowned or found.outcome:
        return found
    if found.counted or found.ordered:
        look = _of_copies(ids[:_COPIED], lone[0][:_COPIED], found)
        return (yield from unless_refused(look, found))
    return (yield from _with_context(found, ids, context, rng))


def _answers(phase: str, *families: Indices) -> Asking[list[Array]]:
    return (yield [Ids(one, phase=phase, purpose="data") for one in families])


def _in_other_words(short: Indices, ids: Indices, rng: np.random.Generator) -> Asking[list[Array]]:
    """Ask sequences, in another order, twice over, beside other ids, and again."""
    others = np.hstack([rng.choice(ids, short[:, :-1].shape), short[:, -1:]])
    families = (short, _reordered(short), np.hstack([short, short]), others, short)
    return (yield from _answers("several ids, and in other words", *families))


def _reordered(ids: Indices) -> Indices:
    """Reverse, and turn by two, all ids but the last one: others are first, too."""
    order = np.roll(np.arange(ids.shape[1] - 1)[::-1], 2)
    return np.hstack([ids[:, order], ids[:, -1:]])


def _of_copies(ids: Indices, alone: Array, found: Traits) -> Asking[Traits]:
    """Ask ids in copies: something may stand beside them, or positions be added to them."""
    asked: Round = [
        Copies.of(Ids(ids[:, None], phase="copies", purpose="data"), np.array([n])) for n in _COPIES
    ]
    answers = yield asked
    every = np.stack([alone, *answers])
    copied = differ(every[1:], every[:1], found.precision)
    return replace(found, copied=copied, beside=not found.ordered and _have_poles(every, found))


def _have_poles(every: Array, found: Traits) -> bool:
    """Tell whether answers (counts, ids, m) are those of copies beside something else."""
    y = every[:4, :, found.coordinate]
    size = float(np.max(np.abs(y)))
    off = 64 * float(found.precision.error(size, size))
    # in an average, or a sum, that counts tokens there is no pole
    curved = np.abs((y[2] - y[1]) - 2 * (y[1] - y[0])) > off
    below = (y[0] - y[3]) * (y[1] - y[2])
    ratios = (y[0] - y[2]) * (y[1] - y[3]) / np.where(below == 0, np.inf, below)
    # one of the ids may be what stands beside them
    if np.sum(curved) < _COPIED - 1:
        return False
    if np.all(np.abs(ratios[curved] - _CROSS_RATIO) < _CROSSED):
        return True
    curves = np.swapaxes(every[1:] - every[0], 0, 1)
    ranks = np.sum(np.linalg.svd(curves, compute_uv=False) > off, axis=1)
    return bool(1 < np.max(ranks) <= _MOST_POLES < min(curves.shape[1:]))


def _with_context(
    found: Traits, ids: Indices, context: int, rng: np.random.Generator
) -> Asking[Traits]:
    """Find how many ids are answered as few are, and whether more are refused."""
    # two halves of the ids in turn: of the first ones in one order none is first in the other
    halves = np.array_split(ids, 2)
    few = np.where(np.arange(context) % 2, *(rng.choice(half, context) for half in halves))
    good, bad, tried, refused = min(_SHORT, context), context + 1, context, False
    while tried > good:
        once = few[None, -tried:]
        other = np.hstack([once[:, 1:-1:2], once[:, :-1:2], once[:, -1:]])
        both = yield from unless_refused(_answers("many ids", once, other), [])
        if both and not differ(both[0], both[1], found.precision):
            good = tried
        else:
            bad, refused = tried, refused or not both
        tried = (good + bad) // 2
    if bad > context:
        return found
    return replace(found, context=good, most_tokens=good if refused else None)
