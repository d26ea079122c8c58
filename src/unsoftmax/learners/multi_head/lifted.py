"""Several heads with positions and biases of keys and queries, from scalar answers.

It is what `MultiHeadLearner` does with ``rotary`` and ``biases``.

    f([0]) = c, f([x]) = x·Σ v_h + c      c, Σ v_h
    [(a+b); b] at b and b + t q           v_h, and KᵀR(1) q(b) with what shifts gates, as far as
                                          W_h(1) is spanned (`shifted_search`)
    [a; z; b], z shuts all heads but h    the same at two tokens' distance: K, b_k and the planes
                                          (`shifted_steps`, `shifted_solution`)
    [(a+b); b] at the other b + t q       Q and b_q, r rows a token (`shifted_rest`)
    fresh sequences of 1 to 512 tokens    whether to believe it

*Queries*: 2dr for each head, r(r + 1) more where W(1) is spanned, and what finds the heads.
*Determined up to*: order, one complex number per plane and head, and b_k where a plane does not
turn. *Source*: beyond Proposition 7.1 of arXiv 2601.16873; positions are in no paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.arrangement.jumps import JumpTuning
from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.multi_head_tuning import MultiHeadTuning
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import (
    ENDINGS,
    CoincidentJumps,
    Restarts,
    SearchState,
    searched,
)
from unsoftmax.learners.multi_head.searches import too_many_heads
from unsoftmax.learners.multi_head.token_search import SoughtHeads
from unsoftmax.learners.multi_head.positioned_conclusion import (
    RecoveredRotaryHeads,
    conclude_heads,
)
from unsoftmax.learners.multi_head.distances import STILL
from unsoftmax.learners.multi_head.lifted_rest import read_rest
from unsoftmax.learners.multi_head.lifted_search import (
    ShiftedHeads,
    UnseenValues,
    search_shifted,
)
from unsoftmax.learners.multi_head.lifted_solution import ShiftedReadings, unexplained
from unsoftmax.learners.multi_head.second_distance import (
    OutOfReach,
    read_shifted_steps,
    shifted_ranks,
)
from unsoftmax.learners.single_head.distances import errors_of, solved
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.protocol import Found
from unsoftmax.validate.head_comparison import PositionErrors

# Rows more than its rank that a column is asked with while the rank is found: the shift is a row
# more already.
EXTRA = 1
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


NONE = (
    "No search along half a circle gave heads with rotary positions and biases. Biases may be so "
    "large that no query token opens gates one by one, two heads may score as multiples of each "
    "other, or one by its key bias alone; or the target is no sum of attention heads with rotary "
    "positions."
)
UNSEEN = (
    "The values of the heads whose scores change do not add up to what single tokens are answered "
    "by: some head scores all tokens alike, or two score oppositely. Beside biases and rotary "
    "positions these are not told apart."
)
LARGE = (
    "How a head weighs a token two before the query token was not read: no token is short enough "
    "to leave its weight between 0 and 1, or to leave the other heads to one token alone. Biases "
    "alone saturate a head there, as large ones do, or scores are very large, or the target is no "
    "sum of attention heads with rotary positions. Another seed asks other tokens, which may do."
)
CROOKED = (
    "Scores change with distance, and not as planes that turn: what biases add to them contradicts "
    "the planes. These are no rotary positions alone, or the rank is above the one given (leave "
    "rank out and it is found), or keys or queries of a plane depend on those of others and have a "
    "lower rank than their planes, which no learner here recovers."
)


def learn_biased(
    sought: SoughtHeads,
    reduced: ReducedAnswers,
    told: Rotary | None,
    checks: int,
    rng: np.random.Generator,
) -> Asking[Found[RotaryHeads]]:
    """Find the heads, or refuse; then ask fresh sequences."""
    found = yield from _BiasedSearches(sought, reduced, told, rng).run()
    tuning = sought.tuning
    return (yield from conclude_heads(found, checks, rng, tuning.holdout, tuning.conclusion))


class Crooked(CoincidentJumps):
    """Shifts that no key bias gives beside the planes that were found."""


@dataclass(frozen=True, slots=True)
class _BiasedSearches:
    """All searches of one recovery."""

    sought: SoughtHeads
    reduced: ReducedAnswers
    told: Rotary | None
    rng: np.random.Generator
    endings: list[type[Exception]] = field(default_factory=list)
    """What ended those so far."""

    @property
    def tuning(self) -> MultiHeadTuning:
        return self.sought.tuning

    def run(self) -> Asking[RecoveredRotaryHeads]:
        """Search with one query token after another until one shows all heads."""
        restarts, found = yield from searched(self._search, Restarts(self.tuning.restarts))
        if found is not None:
            return found
        if restarts.state is SearchState.TOO_MANY_HEADS:
            raise too_many_heads(self.sought.max_heads)
        raise ModelMismatch(" ".join([NONE, *self.reduced.precision.why]))

    def _search(self, restarts: Restarts) -> Asking[RecoveredRotaryHeads]:
        """Search once; refuse for a reason that other query tokens gave as well."""
        try:
            return (yield from self._searched(restarts.start, restarts.failures))
        except tuple(ENDINGS) as ending:
            self.endings.append(type(ending))
            if self.endings.count(type(ending)) == SURE:
                self._refuse_named(type(ending))
            raise

    def _refuse_named(self, ending: type[Exception]) -> None:
        """Refuse for a reason that another query token hardly changes."""
        why = " ".join(["", *self.reduced.precision.why])
        if ending is UnseenValues:
            raise NotIdentifiable(UNSEEN + why, determined={"c": self.reduced.c})
        if ending is OutOfReach:
            raise NotIdentifiable(LARGE + why, determined={"c": self.reduced.c})
        if ending is Crooked:
            raise ModelMismatch(CROOKED + why)

    def _searched(self, start: tuple[int, float], failures: int) -> Asking[RecoveredRotaryHeads]:
        lengths, each = self.reduced.lengths, LENGTHS
        lengths = replace(lengths, length=lengths.length * each[failures % len(each)])
        reduced = replace(self.reduced, lengths=lengths)
        found = None
        if reduced.scale > 0:
            found = yield from search_shifted(self.sought, reduced, start, self.rng)
        if found is None:
            return self._unswitched(reduced)
        self._refuse_more_heads(found)
        positions, ranks = self.tuning.positions, shifted_ranks(found)
        steps = yield from read_shifted_steps(found, ranks, self.rng)
        read = [ShiftedReadings(found, h, step) for h, step in enumerate(steps)]
        sides, missed = zip(*(one.keys(0.0) for one in read), strict=True)
        if not max(missed) <= MISSED or any(
            unexplained(one, positions) > UNEXPLAINED for one in read
        ):
            raise Crooked
        rest = yield from read_rest(found, list(sides), ranks)
        read = [replace(one, rest=of) for one, of in zip(read, rest, strict=True)]
        return self._recovered(self._solved(read), found)

    def _solved(self, read: list[ShiftedReadings]) -> list[tuple[RotaryHead, PositionErrors]]:
        """Solve for all heads; what fillers turn out to leave open counts to the bounds."""
        positions = self.tuning.positions

        def head_of(one: ShiftedReadings) -> tuple[RotaryHead, PositionErrors]:
            head = solved(one, _values(one.found, one.h), self.told, positions)
            return head, errors_of(head, one, positions)

        first = [head_of(one) for one in read]
        leaking = [one.step.leaking([head for head, _ in first], one.h) for one in read]
        more = [step.off - one.step.off for step, one in zip(leaking, read, strict=True)]
        if not all(np.all(off <= LEAKING) for off in more):
            raise OutOfReach
        if all(np.all(off <= one.step.off) for off, one in zip(more, read, strict=True)):
            return first
        return [head_of(replace(one, step=of)) for one, of in zip(read, leaking, strict=True)]

    def _recovered(
        self, heads: list[tuple[RotaryHead, PositionErrors]], found: ShiftedHeads
    ) -> RecoveredRotaryHeads:
        tuning, errors = self.tuning, tuple(error for _, error in heads)
        model = RotaryHeads.of([head for head, _ in heads], found.reduced.dim, found.reduced.c)
        far = max(float(one.near) for one in errors)
        if far > tuning.conclusion.close.share * _apart(model):
            errors = (PositionErrors(np.inf, np.inf, True),) * len(errors)
        return RecoveredRotaryHeads(
            model,
            errors,
            tuning.conclusion.safety * found.v_error,
            found.reduced,
            tuning.positions.farthest,
            () if np.any(model.frequencies) else (STILL,),
        )

    def _unswitched(self, reduced: ReducedAnswers) -> RecoveredRotaryHeads:
        """Return what is left where no gate switches: one head that weighs all tokens alike.

        Of scores it is known that they move no far answer by more than counts as a jump.
        """
        none, tuning = np.zeros((0, reduced.dim)), self.tuning
        heads = [RotaryHead(none, none, reduced.s, Rotary([]))] if reduced.scale > 0 else []
        model = RotaryHeads.of(heads, reduced.dim, reduced.c)
        error = float(reduced.precision.error(reduced.scale))
        unseen = tuning.conclusion.safety * JumpTuning().deviations * reduced.eta
        errors = (PositionErrors(unseen, 0.0, True),) * model.H
        return RecoveredRotaryHeads(model, errors, error, reduced, tuning.positions.farthest)

    def _refuse_more_heads(self, found: ShiftedHeads) -> None:
        heads, dim = len(found.v), self.reduced.dim
        if heads > dim:
            raise NotIdentifiable(
                f"The target has {heads} heads with scores, more than its {dim} dimensions: with "
                "rotary positions heads are opened one by one by a token that shuts the others, "
                "and there is none for so many.",
                determined={"v": found.v},
            )


def _values(found: ShiftedHeads, h: int) -> Values:
    """Return what is known of the values of one head."""
    reduced = found.reduced
    off = np.full(reduced.dim, found.v_error)
    return Values(found.v[h], reduced.c, off, 0.0, reduced.precision)


def _apart(model: RotaryHeads) -> float:
    """Return the smallest distance between two heads' W(1) with biases; inf of fewer than two."""
    whole = [head.scores.whole(1) for head in model.heads]
    distances = [
        float(np.linalg.norm(one - other)) for n, one in enumerate(whole) for other in whole[:n]
    ]
    return min(distances, default=np.inf)
