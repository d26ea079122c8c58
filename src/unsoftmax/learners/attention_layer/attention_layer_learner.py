"""A whole attention layer from vector answers, at about one query per d unknown numbers.

Target o(X) = c + Σ_h M_h Σ_i softmax_i(x_i·(W_h x_N + w_h)) x_i, plus x_N with a residual
connection; M_h = W_o^h W_v^h, [W_h w_h] = K_hᵀ[Q_h b_q,h]/√d_h. An answer has m numbers, so d + Σ_h
(rank M_h (d + m − rank) + rank A_h (2d + 1 − rank)) unknowns take that many over m queries at
least: 1,474 for MiniLM's layers, which take 1,626 to 1,643. No paper that we know of has it.

The mathematics, with z = o − c − M b:

1. Single tokens: o([x]) = M x + c, M = Σ M_h, and the answers' noise (`measure.token_map`).
2. [b + a; b] has z = Σ_h σ(a·(W_h b + w_h)) M_h a. Saturated, its rank is H and its columns of
   zeros and ones are the gates (`head_search`); then b that open one gate.
3. Those give M_h a for some a, the range U_h, and V_h = (U⁺)_h M (`map_reading`).
4. [b + a_1; …; b + a_n; b] has z = Σ_h M_h A p_h: all weights p_h by one joint least squares
   problem, log(p_h,i/p_h,0) = a_i·(W_h b + w_h) (`score_reading`). W_h has low rank: some b are
   asked with all keys, the others with as many as its column space needs.
5. Coarse answers: maps are fitted to all of them (`range_fit`), many ranges are read once more,
   and the same answers are decoded again.
6. Fresh sequences confirm or refuse; the certificate is what drawn errors do (`validate.conclude`).

Layers behind a norm, after one, and with positions take the same path (`attention_search`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import attention_search, head_search, norm_before
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.group_reading import GivenPositions, given_positions
from unsoftmax.learners.attention_layer.search_limits import PLAIN, POSITIONED, Pilots, effort_of
from unsoftmax.learners.attention_layer.soft_gate_reading import SoftGateReading
from unsoftmax.learners.attention_layer.table_layer import TableLayer
from unsoftmax.learners.attention_layer.value_answers import (
    LayerMap,
    ValueAnswers,
    refuse_cancelling,
)
from unsoftmax.learners.compose import Asking, Recorded, as_planned, recorded
from unsoftmax.learners.normed_tokens import NormedTokens
from unsoftmax.learners.settings import Configured, one_of, rank_up_to, whole_number
from unsoftmax.learners.tokens.table_head import TokenTable
from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers
from unsoftmax.models import Rotary
from unsoftmax.old_spellings import takes_old_spellings
from unsoftmax.protocol import Found, Outputs, Plan, Steps
from unsoftmax.refusals import Reason, reworded
from unsoftmax.theory import counts
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.conclude import CONFIRMING, SHORT
from unsoftmax.validate.drawn_models import Layer
from unsoftmax.validate.long_sequences import MOST_ROUNDS, Ball, most_tokens

# Rounds in which keys and query tokens are asked, each again as often as weights are small.
_KEY_ROUNDS = 14 * (1 + limits.AGAIN)


def layer_plan(dim: int, heads: int, rank: int | None, place: str | None) -> Plan:
    """Say what a layer of so many heads costs at most; what it takes is known only with them.

    Parameters
    ----------
    dim, heads : int
        d, and H at most.
    rank : int, optional
        Of every M_h.
    place : {"none", "post", "pre", "rotary"}, optional
        Where a norm stands, or that there are positions; None if that is found.
    """
    d, H, r = dim, heads, max(1, dim // heads) if rank is None else rank
    tokens = max(d + 1, most_tokens(d, *(shape.tokens for shape in SHORT)))
    if place == "rotary":
        cost, longest = _with_positions(d, H)
        queries = counts.rotary_layer_queries(d, H, H, r)
        biased = counts.rotary_layer_queries(d, H, H, r, biases=True)
        formula = (
            "about 2d + 61 + (H − 1)r + 2⌈d/r⌉(⌈rG/H⌉ + 1) for H heads of rank r with rotary "
            f"positions that share the keys and values of G groups: {queries:,} for {H} of "
            f"rank {r} that share nothing, {biased:,} where keys and queries have biases"
        )
        tokens = max(longest, tokens)
    elif place == "post":
        cost = _behind(d, H)
        formula = (
            "about d + 24 + rank M + 8H + (r + 2)·d/n + 1.14(d − r − 1), n = (d − H − 1)/H, "
            "for H heads of rank r with exact answers, twice that behind float32: "
            f"{counts.normalised_layer_queries(d, H, r):,} for {H} of rank {r}"
        )
    elif place == "pre":
        cost = _after(d, H)
        formula = (
            "about d + 79 + (⌈rank M/H⌉ + 3)(H + 10) + (r + 4)·d/r + (d − r − 3) for H heads "
            "of rank r with exact answers: "
            f"{counts.prenorm_layer_queries(d, H, r):,} for {H} of rank {r}"
        )
    else:
        plain, behind = _plain(d, H), _behind(d, H)
        cost = plain | behind
        queries = counts.attention_layer_queries(d, H, r)
        formula = (
            "about d + 76 + (H − 1)(r + 3) + (r + 4)·d/r + (d − r − 3) for H heads of rank r with "
            f"exact answers, twice that behind float32: {queries:,} for {H} of rank {r}"
        )
        if place is None:
            behind_norm = counts.normalised_layer_queries(d, H, r)
            after_norm = counts.prenorm_layer_queries(d, H, r)
            formula += f"; {behind_norm:,} behind a norm, {after_norm:,} after one"
    return cost.plan(formula, tokens, known=False)


def _search(d: int, H: int, pilots: Pilots) -> Cost:
    """Bound one search for heads, query tokens that open one gate, and maps."""
    asked = limits.PILOT_ROUNDS * (pilots.tokens + 2) + 3 * limits.SCORE_PILOTS
    maps = limits.TRIES * (H * d + limits.CHECKED)
    rounds = 2 * limits.PILOT_ROUNDS + limits.TRIES * (limits.OFFSET_ROUNDS + 1)
    rounds += limits.SCORE_PILOTS + _KEY_ROUNDS + 4
    return head_search.search_cost(H) + Cost.of(asked + maps + CONFIRMING, tokens=2, rounds=rounds)


def _plain(d: int, H: int) -> Cost:
    """Bound a layer without a norm, or after one that is found, or searched by copies."""
    search = _search(d, H, PLAIN) + Cost.of(H * d + head_search.unseen_cost(H), tokens=2)
    search += Cost.of((2 + limits.AGAIN) * d * (d + 1), tokens=3)
    singles = Cost.of(d + 8, tokens=2, rounds=2 + MOST_ROUNDS)
    # by copies with a residual and without
    return singles + limits.ATTEMPTS * search + 2 * _after(d, H)


def _with_positions(d: int, H: int) -> tuple[Cost, int]:
    """Bound a layer with positions; return the tokens of its longest sequence as well."""
    longest = max(limits.LONGEST, limits.LONGEST_COARSE) + d + 1
    keys = Cost.of((1 + limits.AGAIN) * 4 * d * (d + 1), tokens=2 + longest)
    singles = Cost.of(d + 8, tokens=2, rounds=2 + 2 * MOST_ROUNDS)
    # as many searches again, for biases
    return singles + 2 * limits.ATTEMPTS * (_search(d, H, POSITIONED) + keys), longest


def _behind(d: int, H: int) -> Cost:
    """Bound a layer behind a norm.

    Every search may ask offsets in all directions, keys one by one for all query tokens, and as
    many additional tokens as there are corners.
    """
    lengths, tries = len(limits.PLANE_LONGER), limits.TRIES_BEHIND
    patterns = lengths * (2 * limits.PLANE_QUERIES + limits.PLANE_ROUNDS * limits.PLANE_MORE)
    gates = limits.PILOT_ROUNDS * (PLAIN.tokens + 2)
    offsets = (1 + limits.FLIP_ROUNDS) * limits.TRIES * min(H, d) * d
    keys = (2 + limits.AGAIN) * (d + 1) * d + 2 * limits.SCORE_PILOTS + 2 * d
    search = patterns + gates + offsets + keys + d + min(H, d) + limits.EPS_TOKENS + CONFIRMING
    queries = d + 16 + 2 * limits.SINGLE_PAIRS + tries * search
    maps = limits.TRIES * limits.OFFSET_ROUNDS * (1 + limits.FLIP_ROUNDS)
    asked = 2 * limits.PILOT_ROUNDS + maps + limits.SCORE_PILOTS + _KEY_ROUNDS + 2
    asked += lengths * (limits.PLANE_ROUNDS + 1) + limits.EPS_TOKENS
    rounds = 11 + tries * asked + MOST_ROUNDS + 1
    longer = Cost(tokens=(4 + limits.AGAIN) * (d + 1) ** 2)
    return Cost.of(queries, tokens=2, rounds=rounds) + tries * longer


def _after(d: int, H: int) -> Cost:
    """Bound a layer after a norm."""
    lengths, tries = 1 + limits.SOFT_LENGTHS, limits.BALL_TRIES
    beside = limits.SOFT_COORDINATES + limits.SOFT_SPARE_TOKENS
    heads = limits.SOFT_FIRST + 2 * (H + beside + limits.SOFT_TESTED_BY)
    maps = (1 + limits.SOFT_AGAIN) * d * (H + beside)
    scores = (2 + limits.AGAIN) * d * (d + 1) + 3 * limits.SCORE_PILOTS
    singles = d + 14 + limits.BALL_RUNGS + 2 * limits.BALL_REFINED + limits.SOFT_PILOTS
    offsets = (2 + limits.SOFT_AGAIN) * (1 + int(np.log2(d + 1)))
    # every length may be searched and read, and the last one once more for each try
    soft = Cost.of(
        (lengths + tries - 1) * (heads + maps),
        tokens=2 + max(map(sum, limits.SOFT_COPIES)),
        rounds=(lengths + tries - 1) * (1 + int(np.log2(H + 2)) + offsets),
    )
    search = Cost.of(scores, tokens=3, rounds=limits.SCORE_PILOTS + _KEY_ROUNDS + 4)
    search += Cost.of(CONFIRMING, tokens=2 + max(shape.tokens for shape in SHORT))
    opened = Cost.of(singles, tokens=2, rounds=6 + 2 + MOST_ROUNDS)
    return opened + soft + tries * search


# How a search for a norm behind refuses answers that are behind none.
_NO_NORM_BEHIND = (Reason.GROWS_BEHIND_NO_NORM.name, Reason.NEITHER_NORM_BEHIND.name)
# Length of the single tokens that read M: long beside a constant c.
_TOKEN_SCALE = 2.0**10
# How many times what format and noise of the answers explain single tokens may miss an affine map
# by: float32 inside the target, several products deep, is 5 times that.
_UNEXPLAINED = 100.0
# Largest share of an answer that single tokens may miss an affine map by. Coarser answers recover
# nothing: rounding to 4 decimals of numbers of 1 is 3e-5, a LayerNorm 1.
_AFFINE = 1e-3
# What misses an affine map by no more than this share may be products of operands with 8 bits
# (autocast) or 11 (TF32), which show 6e-3 and 1e-3 at most: a norm or another layer misses by
# about all.
_FEW_BITS = 2.0**-7
# Longest tokens of a search by copies, and longest keys there: longer ones would be asked where no
# head has a score at all.
_SOFT_LENGTH, _SOFT_WIDEST = 2.0**12, 2.0**30
# Longest normalised tokens, relative to √d: those of length 0.9 have 2.3√eps before.
_REACH = 0.9
# The same of fresh sequences: tokens of 30√eps before, as good as infinitely long.
_FRESH = 0.9995
# Largest relative residual of a fresh answer after a norm, whatever errors explain: layers with
# nearly dependent ranges are predicted to 1e-6, as MiniLM's last one.
_LEAST_MOST = 1e-5


# What `search_limits` calls the values of ``polish``.
_PROFILES: Mapping[bool | str | None, str] = {
    None: "auto",
    False: "lean",
    "fine": "fine",
    True: "finest",
}
NORMS = ("none", "post", "pre")


@takes_old_spellings
@dataclass(frozen=True, slots=True)
class AttentionLayerLearner(Configured):
    """Learn an attention layer, the number of its heads and their sizes unknown, from vectors.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    max_heads : int
        More distinct heads than this are refused. What is asked does not grow with it, only what
        `plan` bounds.
    rank : int, optional
        Rank of every M_h, the head size. Found if it is not given, with three queries more per
        head.
    norm : {"none", "post", "pre"}, optional
        What stands around the layer: nothing, a LayerNorm or RMSNorm behind it and its residual
        connection ("post"), or one before it ("pre"). Found if it is not given, with three queries
        more, with seven where there is one: answers of plain layers grow with single tokens, and
        those after a norm are linear in what the norm makes of them.
    polish : bool or "fine", optional
        How many queries buy how much accuracy: False as few as possible, for exact answers; "fine"
        1.3 to 2 times as many, for answers of float32; True up to six times, which pays
        for M_h, and in layers whose heads' values have more than 64 dimensions together: in
        smaller ones "fine" gives W_h as well. Where it is not given, it is False for answers of
        float64 and "fine" for coarser ones.
    seed : int
        Decides tokens and the hold-out: the same seed asks the same.
    rotary : bool or Rotary
        Scores turn with distance: the model is a `RotaryLayer`, whose heads share keys and values
        in groups where the target's do. No norm is there; keys and queries may have biases where
        answers are those of float64. The frequencies are found, or said by rotary_base; in Python
        also by a `Rotary` here.
    rotary_base : float, optional
        Says the frequencies by their base, as ``Rotary.of(rotary_base, r)`` does for the rank r
        that is found: rotary need not be given then. Others are refused.
    table : array_like, shape (V, d), optional
        The target takes ids of a vocabulary, without positions, and looks these vectors up: ids are
        asked. No norm is there, and ``polish`` is not taken. M, W and w are learned on the span of
        the table. Heads whose weights are 0 or 1 whatever the counts of tokens are refused.
    context : int
        With a table, the most ids of a sequence that the target takes, 4 or more. Counts of tokens
        tell heads apart: with more heads a longer context helps.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: for H heads of rank r and blocks of n keys, H·r ≤ d, about
    d + 76 + (H − 1)(r + 3) + (r + 4)⌈d/n⌉ + (d − r − 3)⌈r/n⌉ and up to 40 more, with n = r for
    exact answers and r/2 behind float32, and H·r more there if that is over 64: 1,626 to 1,643 for
    twelve heads of 32 at d = 384, which have 1,474·d numbers, and 2,791 to 2,808 behind float32.
    If ranges of values are dependent (H·r > d, or nearly so with coarse answers), the second
    term is (H − 1)·d; n is smaller where two heads share a range. After a norm the second term is
    (⌈d/H⌉ + 3)(H + 10): 2,007 to 2,073.
    With positions 2d + 61 + (H − 1)r + 2⌈d/r⌉(⌈rG/H⌉ + 1) for G groups: 309 for H, G, r = 4, 2, 16
    at d = 64; with key and query biases
    2d + 81 + (H − 1)r + (⌈rG/H⌉ + 1)(2⌈(d + 2)/n⌉ + ⌈(r + 1)/n⌉ − 1), n = ⌊3r/4⌋: 374 there, and
    about 100 more if biases are as large as keys and queries.
    With a table of D dimensions about D + 17 + (r + 8)(5H/3 + 6) + 4(D + 8)(r + 4)/3r +
    2(D + 21 − r): 2,835 for twelve heads of 32 at D = 383.
    *Determined up to* the order of heads, and an invertible r×r matrix between the factors of M_h
    and of W_h. M_h = O V is returned with orthonormal columns of O, W_h = KᵀQ with orthonormal
    rows of K. Key biases, and heads with M_h = 0, have no effect. Value and output biases form one
    constant c. Heads with equal [W_h w_h] count as one. The certificate's bounds on M, W and w
    hold for every head. The scale and shift of a norm before the layer are parts of M_h, W_h, w_h
    and c. Heads with W_h = 0, and W_h beside −W_h, cost some hundred queries more. Refused:
    W_h = c·W_g with c > 0 without a norm before, because they switch together.
    *With rotary positions up to* the order of heads and of planes, one complex number per plane and
    group between K and Q, and an invertible matrix per group between V and O; b_k in planes that do
    not rotate. The bound on W holds for all W_h(Δ), the bound on w for what biases add to scores.
    *Source*: beyond arXiv 2601.16873.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(0)
    >>> heads = [us.LayerHead(M, W) for M, W in rng.standard_normal((2, 2, 6, 6))]
    >>> target = us.AttentionLayer(heads, c=rng.standard_normal(6), residual=True)
    >>> recovery = us.learn(target, us.learners.AttentionLayerLearner(6))
    >>> bool(us.equivalent(recovery.model, target, rtol=1e-9)), recovery.model.residual
    (True, True)
    """

    dim: int
    max_heads: int = 64
    rank: int | None = None
    norm: str | None = None
    polish: bool | str | None = None
    seed: int = 0
    rotary: bool | Rotary = field(default=False, kw_only=True)
    rotary_base: float | None = field(default=None, kw_only=True)
    table: Any = field(default=None, kw_only=True)
    context: int = field(default=512, kw_only=True)

    revision: ClassVar[int] = 14
    outputs: ClassVar[Outputs] = "vector"

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)
        if self.polish not in _PROFILES:
            raise ValueError(f'polish must be True, False or "fine"; it is {self.polish!r}.')
        if self.norm is not None:
            one_of("norm", self.norm, NORMS)
        whole_number("max_heads", self.max_heads, 1)
        if self.rank is not None:
            rank_up_to(self.dim, self.rank, 1)
        if self.table is not None:
            object.__setattr__(self, "table", TokenTable.of(self.table, int(self.dim)))
            whole_number("context", self.context, 4)
            if self._given() is not None or self.norm not in (None, "none") or self.polish:
                raise ValueError("rotary, norm and polish are not taken beside table.")
            if self.table.positions > 1:
                raise ValueError("A layer is learned from a table without positions, (V, d).")
        if self._given() is not None and self.norm not in (None, "none"):
            raise ValueError(
                f'norm is "{self.norm}" beside rotary: layers with rotary positions are recovered '
                "without a norm."
            )

    @property
    def far(self) -> str:
        """How long tokens are, whatever the target is."""
        if self.norm == "pre":
            return "a thousand times as long as the norm makes them, to find its eps"
        return "so long that every gate is 0 or 1"

    @property
    def _wanted(self) -> attention_search.Wanted:
        return attention_search.Wanted(int(self.max_heads), self.rank, self._profile, self._given())

    @property
    def _profile(self) -> str:
        return _PROFILES[self.polish]

    def _given(self) -> GivenPositions | None:
        """Return what is known of positions, None where there are none."""
        return given_positions(self.rotary, self.rotary_base, self.rank)

    @property
    def vocabulary(self) -> int | None:
        """Number of ids, where a table is known."""
        return None if self.table is None else len(self.table)

    def _of_ids(self) -> TableLayer:
        """Return what learns from ids where a table is given."""
        context, seed = int(self.context), int(self.seed)
        return TableLayer(self.table, int(self.max_heads), self.rank, context, seed)

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with the heads."""
        if self.table is not None:
            return self._of_ids().plan()
        place = self.norm if self._given() is None else "rotary"
        rank = None if self.rank is None else int(self.rank)
        return layer_plan(int(self.dim), int(self.max_heads), rank, place)

    def steps(self, checks: int) -> Steps[Any]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        excess = "the target is no layer of softmax attention, or its answers are too noisy"
        contrary = "no layer of softmax attention"
        return (yield from as_planned(self._steps(checks), self.plan(), excess, contrary))

    def _steps(self, checks: int) -> Steps[Any]:
        d, rng = int(self.dim), np.random.default_rng(self.seed)
        wanted = self._wanted
        kept: Recorded = []
        if self.table is not None:
            return (yield from self._of_ids().steps(checks))
        if wanted.given is not None:
            tokens = yield from self._tokens(rng)
            every = attention_search.search_with_positions(tokens, wanted, rng)
            conclusion = yield from recorded(every, kept)
            return (yield from conclusion.run(checks, recorded=kept))
        found = yield from norm_before.find_norm(d, self.seed, self.norm)
        if found.kind is not None:
            normed = yield from norm_before.find_normed_tokens(d, found.kind, rng)
            inner = yield from normed.asked_of(self._on_ball(normed, rng, checks))
            return norm_before.found_before(normed, *inner)
        try:
            if found.place == "post":
                try:
                    return (yield from attention_search.steps_behind(d, wanted, rng, checks))
                except ModelMismatch as refusal:
                    # values that cancel leave single tokens' answers as short as a norm does
                    if self.norm is not None or refusal.reason not in _NO_NORM_BEHIND:
                        raise
            tokens = yield from self._tokens(rng)
            try:
                every = attention_search.tried(
                    limits.ATTEMPTS, lambda last: self._searched(tokens, rng)
                )
                conclusion = yield from recorded(every, kept)
            except head_search.HeadsAlike as refusal:
                conclusion = yield from recorded(self._softly(tokens, rng, refusal), kept)
            return (yield from conclusion.run(checks, recorded=kept))
        except (ModelMismatch, NotIdentifiable) as refusal:
            raise found.beside(refusal) from refusal.__cause__

    def _softly(
        self, tokens: TokenMapAnswers, rng: np.random.Generator, refusal: head_search.HeadsAlike
    ) -> Asking[attention_search.Concluded]:
        """Search for heads by copies of tokens, whose gates are neither 0 nor 1."""
        noise, most = tokens.noise(), int(self.max_heads)
        for residual in (False, True)[: 1 + (len(tokens.zero) == self.dim)]:
            layer = LayerMap.of(tokens, residual)
            soft = SoftGateReading(tokens, layer, noise, _SOFT_LENGTH, most, rng)
            try:
                return (yield from attention_search.soft_search(soft, self._profile, _SOFT_WIDEST))
            except attention_search.REFUSALS:
                continue
        raise reworded(refusal, str(refusal)) from refusal

    def _on_ball(
        self, normed: NormedTokens, rng: np.random.Generator, checks: int
    ) -> Asking[tuple[Found[Layer], AnswerNoise]]:
        """Recover a layer of normalised tokens; return what its answers are off by as well."""
        reach = _REACH * normed.radius
        asked = TokenMapAnswers.probes(normed.frame.shape[1], reach, rng, within=True)
        tokens = TokenMapAnswers.of(asked, (yield asked), reach)
        noise, explained = tokens.noise(), tokens.explained(normed.precision)
        if noise.relative > _AFFINE or np.any(tokens.missed > _UNEXPLAINED * explained):
            raise Reason.TOKENS_NOT_AFFINE.error(
                where=" in the normalised token",
                missed=np.max(tokens.missed),
                explained=np.max(explained),
                such=", or answers are too noisy",
            )
        soft = SoftGateReading(tokens, LayerMap.of(tokens), noise, reach, int(self.max_heads), rng)
        fresh, least = _FRESH * normed.radius, _LEAST_MOST
        ball = Ball(normed.radius, normed.least_left, not normed.kind.residual, normed.lengths)
        kept: Recorded = []
        searched = attention_search.soft_search(
            soft, self._profile, reach, fresh, ball, least_most=least
        )
        conclusion = yield from recorded(searched, kept)
        return (yield from conclusion.run(checks, recorded=kept)), noise

    def _searched(
        self, tokens: TokenMapAnswers, rng: np.random.Generator
    ) -> Asking[attention_search.Concluded]:
        """Search for all heads; what was found predicts a few fresh answers."""
        noise = tokens.noise()
        effort = effort_of(self._profile, noise.relative)
        answers = yield from attention_search.read_layer(tokens, self._wanted, effort, rng)
        conclusion = attention_search.conclusion_of(answers, noise, rng)
        try:
            yield from conclusion.confirmed()
        except ModelMismatch as refusal:
            # heads may have been taken for one, which copies of tokens may tell apart
            model, layer = conclusion.drawn.model, answers.values.layer()
            heads = yield from head_search.heads_at_moderate_logits(model, layer, noise, rng)
            if not model.H < heads <= int(self.max_heads):
                assert isinstance(answers.values, ValueAnswers)
                refuse_cancelling(answers.values.gates.sum_share(layer), refusal)
                raise
            raise Reason.HEADS_WEIGH_ALIKE.error(
                {"c": layer.c, "M": layer.M}, kind=head_search.HeadsAlike, hard=model.H, soft=heads
            ) from refusal
        return conclusion

    def _tokens(self, rng: np.random.Generator) -> Asking[TokenMapAnswers]:
        """Ask single tokens; refuse what is not affine there."""
        asked = TokenMapAnswers.probes(int(self.dim), _TOKEN_SCALE, rng)
        tokens = TokenMapAnswers.of(asked, (yield asked), _TOKEN_SCALE)
        noise = tokens.noise()
        if np.any(tokens.missed > _UNEXPLAINED * tokens.explained()):
            raise Reason.TOKENS_NOT_AFFINE.error(
                also=self._with_a_norm + self._of_few_bits(tokens),
                where="",
                missed=np.max(tokens.missed),
                explained=np.max(tokens.explained()),
                such=": a normalisation (LayerNorm, RMSNorm), a nonlinearity, another layer",
            )
        if noise.relative > _AFFINE:
            raise Reason.TOO_COARSE_FOR_A_LAYER.error(noise=noise.relative)
        return tokens

    def _of_few_bits(self, tokens: TokenMapAnswers) -> str:
        """Say what else it may be if little is missed."""
        shares = tokens.missed / np.linalg.norm(tokens.answers, axis=1)
        if not np.max(shares) <= _FEW_BITS:
            return ""
        return (
            f" Or it computes with fewer bits than it answers with, as TF32, autocast and float32 "
            f"behind float64 answers do (errors of {np.max(shares):.1e}): switch that off, or "
            "answer with as few bits."
        )

    @property
    def _with_a_norm(self) -> str:
        """Say what to do if it is a norm that stands there."""
        if self._given() is not None:
            return (
                " With rotary positions a layer is recovered only without a LayerNorm or RMSNorm: "
                "ask the part that takes the normalised tokens."
            )
        return " Leave out norm to search for one." if self.norm == "none" else ""
