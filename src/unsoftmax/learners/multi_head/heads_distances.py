"""Several heads with rotary positions, from scalar answers: W_h(1), then W_h(2), then the planes.

It is what `MultiHeadLearner` does with ``rotary``.

    f([0]) = c, f([x]) = x·Σ v_h + c            c, Σ v_h
    [g a; b/g], [0 × n; −g a; b/g]              v_h and W_h(1) = B_h L_h: as heads without
                                                positions, by their own search (`one_apart`)
    [a; z; b], z shuts all heads but h          W_h(2), T_h = P R(1) P⁻¹ (`distance_readings`)
    fresh sequences of 1 to 512 tokens          whether to believe it

With biases of keys and queries two tokens have a shift beside their logit, and the second line is a
search of its own.

*Queries*: those of heads without positions, and r² for each head; with biases 2dr for each head,
r(r + 1) more where W(1) is spanned, and what finds the heads. *Determined up to*: order, one
complex number per plane and head, and b_k where a plane does not turn. Source: beyond Proposition
7.1; positions are in no paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from unsoftmax.arrangement import jumps
from unsoftmax.learners.compose import Asking, T, mapped
from unsoftmax.learners.multi_head import search_outcomes
from unsoftmax.learners.multi_head.distance_readings import (
    LiftedReadings,
    NearHeads,
    OutOfReach,
    UnseenValues,
    rank_of,
    read_rest,
    read_second,
    search_lifted,
)
from unsoftmax.learners.multi_head.heads_conclusion import MOVED, PositionedHeads, RecoveredHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.token_search import SoughtHeads
from unsoftmax.learners.single_head.distances import (
    FARTHEST_BOUNDED,
    POSITION_GAIN,
    Readings,
    StepReadings,
    errors_of,
    solved,
)
from unsoftmax.measure.precision import why
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.probes import Array, Parted, Probes, Round, Sequences, Singles, UnitVectors
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason
from unsoftmax.validate.close_heads import CLOSE, nearest
from unsoftmax.validate.drawn_models import SAFETY
from unsoftmax.validate.head_comparison import PositionErrors

# Of the tokens that show query biases, beside the learner's own.
QUERY_BIAS_SEED = 0x626961
# Answers that differ by this share of their size at most are the same, ...
ALIKE = 1e-12
# ... and are half of a single token's to this share where all tokens weigh alike.
EVENLY = 1e-6
# Key biases that miss their equations by more than this share of the shifts are none.
MISSED = 1e-3
# Nor are those that miss them by more than this share of what they miss them by once all that was
# read is moved by as much as it may be off: 0.3 at most in 201 heads, and 1 where a plane has a
# key bias and no keys.
UNEXPLAINED = 0.7
# Logits that open fillers may have moved by more were not read.
LEAKING = 1e-6
# So many searches have to end for one and the same reason that another query token hardly
# changes.
SURE = 2
# Norms of the query token of each search: biases that open no gate beside a long one may beside a
# short one.
LENGTHS = (1.0, 0.25, 1.0, 0.25, 0.0625, 1.0)
# Numbers of tokens that are made at a time.
AT_ONCE = 2**18

STILL = "Scores do not turn with distance: all frequencies are 0, heads without positions."


class Crooked(search_outcomes.CoincidentJumps):
    """Shifts that no key bias gives beside the planes that were found."""


NAMED: Mapping[type[Exception], Reason] = {
    UnseenValues: Reason.VALUES_DO_NOT_ADD_UP,
    OutOfReach: Reason.TWO_BEFORE_SATURATES,
    Crooked: Reason.SCORES_DO_NOT_TURN,
}
"""Endings that another query token hardly changes, and how they are refused."""


class TurnedHead(NamedTuple):
    """A head with positions, and what its readings leave open."""

    head: RotaryHead
    errors: PositionErrors
    others: tuple[RotaryHead, ...]
    """Heads of readings that are moved by as much as they may be off."""

    @classmethod
    def flat(cls, v: Array, unseen: float, biases: bool) -> TurnedHead:
        """Return a head whose scores are 0, or so small that they were not seen."""
        none = np.zeros((0, len(v)))
        head = RotaryHead(none, none, v, Rotary([]))
        return cls(head, PositionErrors(unseen, 0.0, biases), (head,) * MOVED)


@dataclass(frozen=True, slots=True)
class HeadDistances:
    """What is learned of positions once the heads are known at a distance of one token."""

    told: Rotary | None
    """The frequencies, where they are known."""
    rng: np.random.Generator

    # -- without biases

    def after(
        self, search: Asking[tuple[ReducedAnswers, RecoveredHeads]]
    ) -> Asking[PositionedHeads]:
        """Learn W(1) as ``search`` does of heads without positions, then how scores turn."""
        gain = POSITION_GAIN
        (reduced, found), c = yield from one_apart(search, gain)
        reduced, model, d = replace(reduced, c=c), found.model, found.model.dim
        errors = {name: found.times_off * error for name, error in found.errors.items()}
        v_error, W_error = float(np.max(errors["v"], initial=0.0)), errors["W"]
        ranks = np.array([rank_of(*one) for one in zip(model.W, W_error, strict=False)], np.intp)
        flat, scored = np.flatnonzero(ranks == 0), np.flatnonzero(ranks)
        _refuse_more_heads(len(scored), model.v, **{"W(1)": model.W})
        base, v = np.zeros((len(scored), 1, d + 1)), model.v[scored]
        columns = np.concatenate([model.W[scored], base[:, :, :d]], axis=1)
        b, rest = np.zeros(d), model.v[flat].sum(axis=0)
        near = NearHeads(
            reduced, v, base[:, 0], columns, np.eye(d), b, 1 / gain, 1 / gain, v_error, rest
        )
        try:
            second = yield from read_second(near, ranks[scored], self.rng)
        except OutOfReach:
            raise Reason.TWO_BEFORE_IS_NO_HEADS.error({"v": near.v}) from None
        read: dict[int, Readings] = {}
        for h, (basis, opened) in zip(scored, second, strict=True):
            there, off = opened.solved(basis)
            # a range that is off by as much as W_h(1) leaves as much of W_h(2) out
            longest = float(np.linalg.norm(opened.tokens, axis=1).max())
            away = float(np.linalg.norm(off)) + W_error[h] * longest
            L = basis.T @ model.W[h]
            read[int(h)] = StepReadings(
                model.v[h], 0.0, basis, L, opened.tokens, there.T, float(W_error[h]), away
            )
        v_error *= SAFETY
        values = [Values(v, 0.0, np.full(d, v_error), 0.0, reduced.precision) for v in model.v]
        unseen = SAFETY * float(np.max(W_error[flat], initial=0.0))
        heads = [
            self._solved(read[h], values[h], False)
            if h in read
            else TurnedHead.flat(model.v[h], unseen, False)
            for h in range(model.H)
        ]
        return self._recovered(heads, reduced, v_error, found.notes)

    # -- with biases

    def lifted(self, sought: SoughtHeads, reduced: ReducedAnswers) -> Asking[PositionedHeads]:
        """Search with one query token after another until one shows all heads."""
        endings: list[type[Exception]] = []

        def search(restarts: search_outcomes.Restarts) -> Asking[PositionedHeads]:
            try:
                return (yield from self._lifted(sought, reduced, restarts))
            except tuple(search_outcomes.ENDINGS) as ending:
                endings.append(type(ending))
                if endings.count(type(ending)) == SURE and type(ending) in NAMED:
                    reason, found = NAMED[type(ending)], {"c": reduced.c}
                    biased = "what biases add to them contradicts the planes"
                    noticed = why(reduced.precision)
                    raise reason.error(found, also=noticed, seen=biased) from None
                raise

        restarts, found = yield from search_outcomes.searched(search, search_outcomes.Restarts())
        if found is not None:
            return found
        if restarts.state is search_outcomes.SearchState.TOO_MANY_HEADS:
            raise Reason.MORE_CHANGES_THAN_HEADS.error(
                most=sought.max_heads, contrary="no sum of attention heads"
            )
        raise Reason.NO_SEARCH_FOUND_HEADS.error(
            also=why(reduced.precision),
            searches="the searches along half a circle",
            what="heads with rotary positions and biases",
            reasons="biases are so large that no query token opens gates one by one; two heads "
            "score as multiples of each other, or one by its key bias alone; the target is no sum "
            "of attention heads with rotary positions",
        )

    def _lifted(
        self, sought: SoughtHeads, reduced: ReducedAnswers, restarts: search_outcomes.Restarts
    ) -> Asking[PositionedHeads]:
        length = reduced.lengths.length * LENGTHS[restarts.failures % len(LENGTHS)]
        reduced = replace(reduced, lengths=replace(reduced.lengths, length=length))
        found = None
        if reduced.scale > 0:
            found = yield from search_lifted(sought, reduced, restarts.start, self.rng)
        if found is None:
            return self._unswitched(reduced)
        _refuse_more_heads(len(found.near.v), found.near.v)
        ranks = np.array([found.rank(h) for h in range(len(found.near.v))], dtype=np.intp)
        if not all(ranks):  # a head of which errors leave nothing
            raise search_outcomes.CoincidentJumps
        second = yield from read_second(found.near, ranks, self.rng)
        read = [LiftedReadings(found, h, *one) for h, one in enumerate(second)]
        sides, missed = zip(*(one.keys(0.0) for one in read), strict=True)
        if not max(missed) <= MISSED or any(one.unexplained() > UNEXPLAINED for one in read):
            raise Crooked
        rest = yield from read_rest(found, list(sides))
        read = [replace(one, rest=of) for one, of in zip(read, rest, strict=True)]
        heads = self._beside_fillers(read)
        v_error = SAFETY * found.near.v_error
        return self._recovered(heads, reduced, v_error)

    def _beside_fillers(self, read: list[LiftedReadings]) -> list[TurnedHead]:
        """Solve for all heads; what fillers turn out to leave open counts to the bounds."""

        def solved(one: LiftedReadings) -> TurnedHead:
            near = one.found.near
            off = np.full(near.reduced.dim, near.v_error)
            values = Values(near.v[one.h], near.reduced.c, off, 0.0, near.reduced.precision)
            return self._solved(one, values, True)

        first = [solved(one) for one in read]
        leaking = [one.second.leaking([turned.head for turned in first], one.h) for one in read]
        more = [second.off - one.second.off for second, one in zip(leaking, read, strict=True)]
        if not all(np.all(off <= LEAKING) for off in more):
            raise OutOfReach
        if all(np.all(off <= one.second.off) for off, one in zip(more, read, strict=True)):
            return first
        return [solved(replace(one, second=of)) for one, of in zip(read, leaking, strict=True)]

    def _unswitched(self, reduced: ReducedAnswers) -> PositionedHeads:
        """Return what is left where no gate switches: one head that weighs all tokens alike.

        Of scores it is known that they move no far answer by more than counts as a jump.
        """
        unseen = SAFETY * jumps.DEVIATIONS * reduced.eta
        heads = [TurnedHead.flat(reduced.s, unseen, True)] * (reduced.scale > 0)
        error = float(reduced.precision.error(reduced.scale))
        return self._recovered(heads, reduced, error)

    # -- both

    def _solved(self, read: Readings, values: Values, biases: bool) -> TurnedHead:
        """Find a head's planes."""
        rng = np.random.default_rng(1)
        head = solved(read, values, self.told, biases)
        errors = errors_of(head, read, biases)
        times = MOVED if np.isfinite(errors.near) else 0
        return TurnedHead(head, errors, tuple(read.moved(rng).head(0.0) for _ in range(times)))

    def _recovered(
        self,
        heads: Sequence[TurnedHead],
        reduced: ReducedAnswers,
        v_error: float,
        notes: tuple[str, ...] = (),
    ) -> PositionedHeads:
        errors, (d, c) = tuple(one.errors for one in heads), (reduced.dim, reduced.c)
        model = RotaryHeads.of([one.head for one in heads], d, c)
        moved = zip(*(one.others for one in heads), strict=False)
        others = tuple(RotaryHeads.of(each, d, c) for each in moved)
        apart = nearest(np.array([one.head.scores.whole(1).ravel() for one in heads]))
        far = max((float(one.near) for one in errors), default=0.0)
        if far > CLOSE * apart:
            errors = tuple(PositionErrors(np.inf, np.inf, one.biases) for one in errors)
        still = (STILL,) if model.H and not np.any(model.frequencies) else ()
        farthest = FARTHEST_BOUNDED
        return PositionedHeads(model, errors, others, v_error, reduced, farthest, (*notes, *still))


def _refuse_more_heads(heads: int, v: Array, **beside: Array) -> None:
    dim = v.shape[1]
    if heads > dim:
        raise Reason.MORE_HEADS_THAN_DIMENSIONS.error(
            {"v": v, **beside},
            also="What they are at a distance of one token is known, not how they turn."
            * bool(beside),
            heads=heads,
            dim=dim,
        )


def refuse_query_biases(dim: int, seed: int) -> Asking[None]:
    """Refuse query biases by five questions: a long offset beside short query tokens b and −b.

    Gates σ(±a·W(1) b) are unlike, but beside a query bias both are the same step.
    """
    rng = np.random.default_rng([seed, QUERY_BIAS_SEED])
    a, b = rng.standard_normal((2, dim)) / np.sqrt(dim)
    gain = POSITION_GAIN
    pairs = np.array([[gain * a, b / gain], [gain * a, -b / gain]])
    asked = [
        Sequences(pairs, phase="query biases", purpose="pilot"),
        Singles(gain * np.stack([a, 0 * a]), phase="query biases", purpose="pilot"),
    ]
    pair, single = yield asked
    here, there, alone = (float(y - single[1]) for y in (*pair, single[0]))
    size = max(abs(here), abs(there), abs(alone))
    alike = abs(here - there) <= ALIKE * size
    evenly = abs(here - alone / 2) <= EVENLY * size
    if not size or not alike or evenly:
        return
    [half] = yield [Singles(gain / 2 * a[None], phase="query biases", purpose="pilot")]
    if abs(float(half[0] - single[1]) - alone / 2) <= EVENLY * size:  # not clipped
        raise Reason.QUERIES_HAVE_BIASES.error()


# -- heads with positions asked as if they had none: W_h(1) stands in for W_h
#
# Two tokens far apart in length, g = 2⁴⁰, have one score that is not nearly 0:
#
#     f([g a; b/g]) = c + g·Σ_h (a·v_h) σ(a·W_h(1) b)
#     f([0 × (n−1); −g a; b/g]) = c − g·Σ_h (a·v_h) σ(−a·W_h(1) b − ln n)
#
# since zero tokens score exactly 0; and f([0]) = c. A learner of heads without positions asks
# [a+b; b], and n copies of a+b with one b. With s = Σ v_h, which single tokens tell whatever the
# positions, it would be answered
#
#     f([a+b; b]) = b·s + Σ_h (a·v_h) σ(a·W_h b)
#     f([(a+b) × n; b]) = b·s + Σ_h (a·v_h) σ(a·W_h b + ln n),
#
# and σ(t) = 1 − σ(−t) makes the second of the second: one query for one.


def one_apart(steps: Asking[T], gain: float) -> Asking[tuple[T, float]]:
    """Let a learner of heads without positions and biases learn W_h(1) of heads with positions.

    It is shown answers without c; what it found is returned with c.
    """
    view = _OneApart(gain)
    found = yield from mapped(steps, ask=view.asked, answer=view.answered)
    return found, view.c


@dataclass(slots=True)
class _OneApart:
    """Turns rounds, and their answers back."""

    gain: float
    asked_last: Round = field(default_factory=list)
    s: Array = field(default_factory=lambda: np.zeros(0))
    c: float = 0.0

    def asked(self, given: Round) -> Round:
        """Part the tokens of all sequences of more than one."""
        self.asked_last = [
            probes if probes.tokens == 1 else Parted.of(probes, self.gain) for probes in given
        ]
        return self.asked_last

    def answered(self, answers: Answers) -> Answers:
        """Return what would have been answered without positions."""
        pairs = list(zip(self.asked_last, answers, strict=True))
        singles = [(probes, y) for probes, y in pairs if isinstance(probes, Singles)]
        for probes, y in singles:
            if not isinstance(probes.rows, UnitVectors) and not np.any(probes[:]):
                self.c = float(y[0])
        for probes, y in singles:
            if isinstance(probes.rows, UnitVectors):
                self.s = np.asarray((y - self.c) / probes.scale)
        return [self._seen(probes, y - self.c) for probes, y in pairs]

    def _seen(self, probes: Probes, y: Array) -> Array:
        if not isinstance(probes, Parted):
            return y
        found, step = y / self.gain, max(1, AT_ONCE // probes.dim)
        for start in range(0, len(y), step):
            span = slice(start, start + step)
            a, b = probes.parts(span)
            found[span] += (b if probes.tokens == 2 else a + b) @ self.s
        return found
