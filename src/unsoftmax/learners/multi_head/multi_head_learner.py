"""Several heads from one number per query: about H(d² + d) + H·d + 16 H queries.

Target f(X) = Σ_h softmax_i(x_i·(W_h x_N + w_h))·(X v_h) + c, H unknown, no condition on H
against d. Proposition 7.1 of arXiv 2601.16873 says what can be known: heads of equal W_h and
w_h are one. How to know it is beyond the paper, which leaves it open for heads that are not in
orthogonal subspaces. One query token b, u_h = W_h b + w_h, offsets a:

1. c, Σ v_h and the precision of answers, from single tokens (`reduced_answers`);
2. half a circle of huge a crosses every hyperplane a·u_h = 0 once (`arrangement.jumps`);
3. near each crossing one gate alone is open: u_h in the plane (`in_plane`), then out of it
   of it, then all v_h from one linear system (`rough_heads`);
4. offsets at which gate h is open and the others are saturated (`measure.windows`) give u_h to
   full precision (`window_sweeps`) and all columns of W_h in one round (`columns`);
5. three copies of a token tell W_h from −W_h;
6. fresh sequences confirm or refuse (`heads_conclusion`); heads that are right but
   not known precisely enough, as close ones are, are corrected (`newton_correction`); after a
   failure steps 2 to 5 (`token_search`) begin again with another b (`search_outcomes`);
7. where answers are coarse, as those of float32 services are, offsets at which all heads but one
   are silent take the place of steps 3 and 4 (`silent_search`), and after them shorter tokens;
8. where no half circle shows the heads one by one, as with W and 2W, or in one dimension, all are
   read off the poles of answers along one line (`pole_search`).

Under a cap on tokens (`TokenLengths`) gates may stay open at the longest offsets. Such parts of
the half circle are left out of the search, and open gates are counted with their values.

It may not know anything of the target but its answers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from unsoftmax.learners import settings
from unsoftmax.learners.compose import Asking, as_planned
from unsoftmax.learners.multi_head.distance_readings import TRIES
from unsoftmax.learners.multi_head.heads_conclusion import (
    LENGTHS,
    PILOTS,
    WORST,
    FreshResiduals,
    PositionedHeads,
    RecoveredHeads,
    concluded,
    fresh_residuals,
    predicting,
)
from unsoftmax.learners.multi_head.heads_distances import HeadDistances, refuse_query_biases
from unsoftmax.learners.multi_head.newton_correction import NoHeadsNearby, corrected, polished
from unsoftmax.learners.multi_head.pole_search import (
    LINE_COPIES,
    LINES,
    NOISES,
    POLE_LENGTHS,
    pole_cost,
    separated,
)
from unsoftmax.learners.multi_head.reduced_answers import (
    COARSE,
    ENOUGH,
    LENGTH_NOISES,
    ReducedAnswers,
    TokenLengths,
    read_head_sums,
)
from unsoftmax.learners.multi_head.search_outcomes import (
    ENDINGS,
    SEARCH_COUNTS,
    CoincidentJumps,
    Contradicted,
    Restarts,
    SearchState,
    searched,
)
from unsoftmax.learners.multi_head.silent_search import SILENT_STARTS, silent_queries, silently
from unsoftmax.learners.multi_head.token_search import MultiHeadTuning, SoughtHeads, search
from unsoftmax.measure.precision import why
from unsoftmax.models import MultiHead, Rotary, canonical
from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Plan, Steps
from unsoftmax.refusals import Reason, RefusalError
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.long_sequences import most_tokens

# -- Searches for several heads, one way after another, until a model predicts fresh answers.
#
# Each way is a search with one query token, which `search_outcomes.searched` repeats with others:
#
# 1. half circles of long offsets (`token_search`);
# 2. where answers are coarse, offsets at which all heads but one are silent (`silent_search`):
#    rounding of long tokens moves logits, and what the longest tokens hide these show, or
# 3. half circles with shorter tokens, of several lengths;
# 4. poles of answers along a line (`pole_search`): heads that no half circle tells apart.
#
# What a search found is compared with fresh answers. What is right but not known precisely enough,
# as close heads are, is corrected (`newton_correction`).


# Heads with an error larger than this, relative to them, are corrected, where that may make it
# smaller.
IMPROVED = 1e-6
# Heads with an error larger than this are none, unless a correction makes it smaller.
VAGUE = 0.01
# Precisions that answers are taken for where only the function is wanted: heads up to about a
# thirtieth of that apart become one.
PRECISIONS = (1e-9, 1e-7, 1e-5)
# Restarts at each length of tokens that is tried for coarse answers: others follow.
SHORTER = Restarts(starts=((1, 1.0), (16, 100.0)), most_unlucky=30)
# Lines are asked in one number of copies after another.
LINE_STARTS = Restarts(
    starts=tuple((LINE_COPIES[n % len(LINE_COPIES)], 1.0) for n in range(LINES)),
    most_unlucky=0,
    refuse_many=False,
)

Way = Callable[[Restarts], Asking[RecoveredHeads]]
"""One search, with what those before came to."""


@dataclass(slots=True)
class HeadSearches:
    """All searches of one recovery."""

    sought: SoughtHeads
    reduced: ReducedAnswers
    functional: bool
    rng: np.random.Generator
    restarts: Restarts
    """How half circles ended."""
    contradicted: list[tuple[float, RecoveredHeads]] = field(default_factory=list)
    """Models that were not believed, with the largest share that they miss answers by."""

    def run(self) -> Asking[RecoveredHeads | None]:
        """Search along half circles, and where answers are coarse in other ways.

        Raises
        ------
        ModelMismatch
            There are more heads than allowed.
        """
        first, coarse = self.reduced, self.reduced.eta > COARSE
        self.restarts, found = yield from self._searched(self._half_circle, self.restarts)
        if found is None and coarse and self.reduced.scale > 0 and not self.reduced.lengths.soft:
            _, found = yield from self._searched(self._silent, SILENT_STARTS)
        states, contradicted = [], self.contradicted
        main = self.reduced
        for lengths in first.lengths.for_coarse(first.eta, self.sought.biases):
            if found is not None:
                return found
            self.reduced, self.contradicted = replace(first, lengths=lengths), []
            shorter = replace(SHORTER, refuse_many=self.restarts.refuse_many)
            ended, found = yield from self._searched(self._half_circle, shorter)
            states.append(ended.state)
        if found is None:
            self.reduced, self.contradicted = main, contradicted
            # rounding of long tokens makes jumps that are none
            unsure = states and SearchState.TOO_MANY_HEADS not in states
            if self.restarts.state is SearchState.TOO_MANY_HEADS and not unsure:
                raise Reason.MORE_CHANGES_THAN_HEADS.error(
                    most=self.sought.max_heads, contrary="no sum of attention heads"
                )
        return found

    def by_poles(self) -> Asking[RecoveredHeads | None]:
        """Read all heads off the poles of lines, until a model is confirmed."""
        return (yield from self._searched(self._of_line, LINE_STARTS))[1]

    def as_if_coarser(self) -> Asking[None]:
        """Search as if answers were coarser, which do not tell close heads apart."""
        start, confirm = self.restarts.starts[0], self.sought.tuning.confirm
        for eta in PRECISIONS:
            coarser = self.reduced.coarser(eta)
            try:
                found = yield from search(self.sought, coarser, start, 0.0, self.rng)
            except tuple(ENDINGS):
                continue
            fresh = yield from self._fresh(found, confirm)
            self.contradicted.append((float(fresh.missed.max()), found))

    def _searched(
        self, way: Way, restarts: Restarts
    ) -> Asking[tuple[Restarts, RecoveredHeads | None]]:
        """Search in one way until a model is confirmed; None where none was."""

        def search(so_far: Restarts) -> Asking[RecoveredHeads]:
            return (yield from self._confirmed((yield from way(so_far))))

        return (yield from searched(search, restarts, lambda _: self.reduced.lengths.soft))

    # -- one search

    def _half_circle(self, restarts: Restarts) -> Asking[RecoveredHeads]:
        if restarts.longest_tokens:
            lengths = self.reduced.lengths.with_longest_tokens()
            self.reduced = replace(self.reduced, lengths=lengths)
        start, coarse = restarts.start, restarts.coarse
        return search(self.sought, self.reduced, start, coarse, self.rng)

    def _silent(self, _: Restarts) -> Asking[RecoveredHeads]:
        return silently(self.sought, self.reduced, self.rng)

    def _of_line(self, restarts: Restarts) -> Asking[RecoveredHeads]:
        sought, (copies, _) = self.sought, restarts.start
        steps = separated(self.reduced, sought.max_heads, copies, sought.biases, self.rng)
        found = yield from steps
        if found.above(sought.rank, NOISES):
            raise CoincidentJumps
        return found

    def _confirmed(self, found: RecoveredHeads) -> Asking[RecoveredHeads]:
        """Compare heads with fresh answers; correct those that are not precise enough."""
        # with pilots for a bound on the function, or a few sequences to believe a model
        count = PILOTS if self.functional else self.sought.tuning.confirm
        fresh = yield from self._fresh(found, count)
        imprecise = found.vague(IMPROVED) or np.any(fresh.allowed < fresh.explained)
        allowed = fresh.allowed
        if np.all(fresh.missed <= fresh.explained) and imprecise:
            # right as far as it is known, which is not far enough: close heads, coarse answers
            found, nearby = yield from self._corrected(found)
            fresh = yield from self._fresh(found, count)
            # one head in the place of two close ones is imprecise as well, and near no solution
            allowed = fresh.allowed if nearby else fresh.precise
        if not np.all(fresh.missed <= allowed) or found.vague(VAGUE):
            self.contradicted.append((float(fresh.missed.max()), found))
            raise Contradicted
        distinct = canonical(found.model).H
        if distinct > self.sought.max_heads:
            raise Reason.MORE_HEADS.error(heads=f"{distinct} distinct", most=self.sought.max_heads)
        return found

    def _corrected(self, found: RecoveredHeads) -> Asking[tuple[RecoveredHeads, bool]]:
        """Correct heads where that gains something; tell whether any heads are near them."""
        try:
            better = yield from corrected(found, self.reduced, self.sought.biases, self.rng)
        except NoHeadsNearby:
            return found, False
        return better or found, True

    def _fresh(self, found: RecoveredHeads, count: int) -> Asking[FreshResiduals]:
        alike = self.sought.tuning.alike
        steps = fresh_residuals(found, self.reduced, count, self.rng, "pilot", alike=alike)
        return (yield from steps)


# What is planned for, at most. The bulk may be asked so often: columns again where logits are lost,
# heads corrected where they are close.
TIMES = 3
# Queries per head of one search along half a circle: 20 are usual, more where heads crowd.
PER_HEAD = 200
# Rounds of one search: 90 for 64 heads in 64 dimensions.
ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class MultiHeadLearner(settings.Configured):
    """Learn several heads, their number unknown, from scalar values.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    max_heads : int
        More distinct heads than this are refused. What is asked does not grow with it, only what
        `plan` bounds.
    biases : bool
        Also learn w_h and c; with rotary positions b_k and b_q of every head instead of w_h.
    rank : int, optional
        Rank of all W_h, of [W_h w_h] with biases; with rotary positions the head size, rows of K
        and Q. Found if it is not given: that takes no more queries, but more rounds. Without
        positions the rank counts as far as answers show it, either way: a W of low
        rank that is stored as float32, say, has all of its columns read in full.
    polish : bool
        Correct all W_h at moderate logits: as many queries again, errors of 1e-14 instead of 1e-12.
        Heads of low rank, and more than H·d = 900, are left as they are.
    functional : bool
        Where no heads explain all answers, return those that predict them best, instead of a
        refusal: heads too close to be told apart become one. The certificate then bounds the
        function, not the parameters.
    radius : float, optional
        The longest token that may be asked (2-norm), the hold-out's included. Heads are found
        where their gates are steps: tokens too short for that are refused.
    seed : int
        Decides query tokens, planes and the hold-out: the same seed asks the same.
    rotary : bool or Rotary
        Scores turn with distance: the model is a `RotaryHeads`, c included; with biases those of
        keys and queries as well. More heads than dimensions are refused. The frequencies are found,
        or said by rotary_base; in Python also by a `Rotary` here.
    rotary_base : float, optional
        Says the frequencies by their base, as ``Rotary.of(rotary_base, rank)`` does: rotary need
        not be given beside it, rank must be.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: about H(d² + d) + H·d + 16H + d + 40; with rank r, given or found, about
    H(r(2d − r) + d) + H·d + 16H + d + 40. A ``radius`` of 10³ makes that 1.1 to 1.2 times as
    many, one at which heads hardly switch 2 to 7 times; close heads take twice as many; float32
    answers about 1.5 times if H·d is more than 900, else 2.5 times. With rotary positions r² more
    for each head, with biases as well r² + d + 2r. `plan` gives the maximum.
    *Determined up to* order. Heads of equal W and w count as one. Heads whose hyperplanes
    a·(W_h b + w_h) = 0 coincide for every b, such as W and 2W, and (W, v) beside (−W, v), are
    told apart by copies of a token, after the usual search failed: 330 + 2.6·H·d(d + 2) queries
    more for each of a few lines. *With rotary positions up to* order, and in each head one complex
    number per plane, by which that of K is multiplied and that of Q divided; b_k in planes that do
    not rotate; the sign of a frequency and multiples of 2π. All W_h(Δ) are determined. *Source*:
    beyond Proposition 7.1 of arXiv 2601.16873.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> target = us.MultiHead(rng.standard_normal((3, 5, 5)), rng.standard_normal((3, 5)))
    >>> recovery = us.learn(target, us.learners.MultiHeadLearner(5, max_heads=8))
    >>> bool(us.equivalent(recovery.model, target, rtol=1e-9))
    True
    """

    dim: int
    max_heads: int = 64
    biases: bool = False
    rank: int | None = None
    polish: bool = False
    functional: bool = False
    radius: float | None = None
    seed: int = 0
    rotary: bool | Rotary = field(default=False, kw_only=True)
    rotary_base: float | None = field(default=None, kw_only=True)

    revision: ClassVar[int] = 9

    def __post_init__(self) -> None:
        settings.whole_number("dim", self.dim, 1)
        settings.whole_number("max_heads", self.max_heads, 1)
        settings.whole_number("seed", self.seed, 0)
        settings.flag("biases", self.biases)
        settings.flag("polish", self.polish)
        settings.flag("functional", self.functional)
        if self.radius is not None:
            settings.positive("radius", self.radius)
        if self.rank is not None:
            settings.rank_up_to(self.dim, self.rank, 1)
        if self._positions()[0]:
            self._refuse_beside_rotary()

    def _refuse_beside_rotary(self) -> None:
        if self.dim < 2:
            raise ValueError("dim must be 2 or more beside rotary: a plane has two coordinates.")
        if self.biases and self.polish:
            raise ValueError(
                "polish is for heads without positions, or without biases: leave it out "
                "beside both."
            )
        if self.functional or self.radius is not None:
            raise ValueError(
                "functional and radius are for heads without positions: leave them out beside "
                "rotary."
            )

    def _positions(self) -> tuple[bool, Rotary | None]:
        """Say whether there are positions, and their frequencies where these are given."""
        rank = None if self.rank is None else int(self.rank)
        return settings.given_frequencies(self.rotary, self.rotary_base, rank)

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with the heads."""
        d, H = int(self.dim), int(self.max_heads)
        r = d if self.rank is None else int(self.rank)
        turns = self._positions()[0]
        shifted = self.biases and turns
        bulk = H * (r + shifted) * (2 * d + self.biases - r)
        tries = len(Restarts().starts) + len(PRECISIONS) * self.functional
        soft = TokenLengths.under(self.radius, self.biases).soft
        unlucky = Restarts().most_unlucky if soft else 0
        shorter = len(LENGTH_NOISES) * len(SHORTER.starts)  # for coarse answers
        half_circles = tries + unlucky + shorter
        searches = tries * 4 * H * d + half_circles * PER_HEAD * (H + 1)
        whole = H * d * (d + self.biases) if r < d else 0  # where W has that rank but nearly
        turned = H * r * (r + shifted) * TRIES * (tries if shifted else 1) * turns
        copies = tries * (H + 1) * (d + 2)
        at_most = tries * (TIMES * bulk + whole) + searches + bulk * self.polish
        at_most += silent_queries(H, d, bulk + whole)
        all_tries = tries + shorter + len(SILENT_STARTS.starts) + unlucky // SEARCH_COUNTS
        cost = (
            Cost.of(at_most - copies, tokens=2, rounds=ROUNDS * all_tries)
            + Cost.of(copies, tokens=6)
            + Cost.of(turned, tokens=3)
            + pole_cost(H, d, self.biases)
        )
        usual, formula = self._usual(r)
        return cost.plan(
            f"{formula}: {usual:,} for {H} of rank {r}",
            most_tokens(d, *LENGTHS, *POLE_LENGTHS),
            FARTHEST if self.radius is None else float(self.radius),
            known=False,
        )

    def _usual(self, r: int) -> tuple[int, str]:
        """Return what max_heads heads of rank r take, and how that is counted."""
        d, H = int(self.dim), int(self.max_heads)
        if not self._positions()[0]:
            entries, each = "r(2d − r)", r * (2 * d + self.biases - r)
        elif self.biases:
            entries, each = "2dr + 3r", 2 * d * r + 3 * r
        else:
            entries, each = "2dr", 2 * d * r
        again = ", and H·r(2d − r) to polish them" if self.polish else ""
        usual = H * (each + 2 * d + 16) + d + 40
        usual += H * r * (2 * d + self.biases - r) * self.polish
        return usual, f"about H({entries} + 2d + 16) + d + 40 for H heads of rank r{again}"

    def steps(self, checks: int) -> Steps[MultiHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        excess = "the target is no sum of attention heads, or its answers are too noisy"
        contrary = "no sum of attention heads"
        return (yield from as_planned(self._steps(checks), self.plan(), excess, contrary))

    def _steps(self, checks: int) -> Steps[Any]:
        rng = np.random.default_rng(self.seed)
        if self._positions()[0]:
            turned = yield from self._turned(rng)
            return (yield from concluded(turned, turned.reduced, checks, True, rng))
        searches, found = yield from self._searched(rng)
        reduced = searches.reduced
        if found is None and self.functional and self.dim > 1:
            yield from searches.as_if_coarser()
        if found is None and self.functional and searches.contradicted and reduced.scale > 0:
            share, best = min(searches.contradicted, key=lambda pair: pair[0])
            if share <= WORST:
                return (yield from predicting(best, share, reduced, checks, rng))
        if found is None:
            found = yield from searches.by_poles()
        if found is None:
            raise self._refusal(searches)
        return (yield from concluded(found, reduced, checks, self.biases, rng))

    @property
    def _tuning(self) -> MultiHeadTuning:
        """How heads are searched for."""
        if not self._positions()[0]:
            return MultiHeadTuning()
        return MultiHeadTuning().with_positions(self.biases)

    def _turned(self, rng: np.random.Generator) -> Asking[PositionedHeads]:
        """Find heads with positions, or refuse."""
        distances = HeadDistances(self._positions()[1], rng)
        if self.biases:
            sought = SoughtHeads(self.max_heads, True, self.rank, self._tuning, shifted=True)
            return (yield from distances.lifted(sought, (yield from self._sums(rng))))
        yield from refuse_query_biases(self.dim, self.seed)
        return (yield from distances.after(self._found(rng)))

    def _found(self, rng: np.random.Generator) -> Asking[tuple[ReducedAnswers, RecoveredHeads]]:
        """Find heads, or refuse; not by poles: what these tell apart no filler does."""
        searches, found = yield from self._searched(rng)
        if found is None:
            raise self._refusal(searches)
        return searches.reduced, found

    def _sums(self, rng: np.random.Generator) -> Asking[ReducedAnswers]:
        lengths, tuning = TokenLengths.under(self.radius, self.biases), self._tuning
        return read_head_sums(self.dim, self.biases, lengths, rng, tuning.line, tuning.pairs)

    def _searched(
        self, rng: np.random.Generator
    ) -> Asking[tuple[HeadSearches, RecoveredHeads | None]]:
        """Search along half circles; correct what is found where that was asked for."""
        reduced = yield from self._sums(rng)
        sought = SoughtHeads(self.max_heads, self.biases, self.rank, self._tuning)
        restarts = Restarts(refuse_many=not self.functional)
        searches = HeadSearches(sought, reduced, self.functional, rng, restarts)
        # half a circle needs a plane
        found = (yield from searches.run()) if self.dim > 1 else None
        if found is not None and self.polish:
            reduced = searches.reduced
            found = yield from polished(found, reduced, self.biases, rng)
        return searches, found

    def _refusal(self, searches: HeadSearches) -> RefusalError:
        """Say why no search found heads."""
        eta, restarts, noticed = searches.reduced.eta, searches.restarts, ""
        if eta > COARSE:
            noticed = (
                f"Tokens of {1 + len(LENGTH_NOISES)} lengths were tried, and offsets at which "
                f"other heads are silent, since answers are off by {eta:.1e} of the size of their "
                "terms"
            )
            if eta > ENOUGH:
                noticed += (
                    f", {eta / ENOUGH:.2g} times the coarsest answers that told heads apart: "
                    "they are too coarse"
                )
            noticed += "."
        noticed += why(searches.reduced.precision)
        if restarts.coarse > 0:
            if self.radius is None:
                return Reason.GATES_STAY_OPEN.error(also=noticed)
            return Reason.TOKENS_TOO_SHORT.error(also=noticed, radius=self.radius)
        positions = self._positions()[0]
        circles = f"{len(restarts.starts)} searches along half circles"
        poles = f"{LINES} for poles along lines"
        if not positions and not self.functional:
            best = "With functional=True the heads that predict answers best are returned."
            noticed = f"{best} {noticed}"
        return Reason.NO_SEARCH_FOUND_HEADS.error(
            also=noticed,
            searches=" and ".join([circles] * (self.dim > 1) + [poles] * (not positions)),
            what="heads that predict fresh answers",
            reasons="; ".join(self._reasons(restarts, positions)),
        )

    def _reasons(self, restarts: Restarts, positions: bool) -> Iterator[str]:
        """Say what may be why no search found heads."""
        yield (
            "the target is no sum of attention heads; there are more than max_heads; heads are too "
            "many or too close for the precision of these answers, such as those with the same "
            "hyperplanes for every query token (W and 2W, or columns of all W_h along one vector)"
        )
        if positions:
            yield (
                "scores change with distance otherwise than rotary ones do, as with ALiBi, learned "
                "biases or positions counted from the other end; keys or queries have biases: then "
                "biases=True"
            )
        if self.rank is not None:
            yield f"some W_h has a rank above {self.rank}: leave rank out to find it"
        if restarts.bad_luck:
            yield (
                f"tokens no longer than radius = {self.radius:g} are too short to tell the heads "
                "apart: a larger radius, if the target allows one, would"
            )
