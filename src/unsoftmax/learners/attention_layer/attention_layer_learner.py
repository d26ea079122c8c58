"""A whole attention layer from vector answers, at about one query per d unknown numbers.

Target o(X) = c + Σ_h M_h Σ_i softmax_i(x_i·(W_h x_N + w_h)) x_i, plus x_N with a residual
connection; M_h = W_o^h W_v^h, [W_h w_h] = K_hᵀ[Q_h b_q,h]/√d_h. An answer has m numbers, so d + Σ_h
(rank M_h (d + m − rank) + rank A_h (2d + 1 − rank)) unknowns take that many over m queries at
least: 1,474 for MiniLM's layers, which take 1,626 to 1,643. No paper that we know of has it.

The mathematics, with z = o − c − M b:

1. Single tokens: o([x]) = M x + c, M = Σ M_h, and the answers' noise (`measure.token_map`).
2. [b + a; b] has z = Σ_h σ(a·(W_h b + w_h)) M_h a. Saturated, its rank is H and its columns of
   zeros and ones are the gates (`head_search`); then b that open one gate (`opening_tokens`).
3. Those give M_h a for some a, the range U_h, and V_h = (U⁺)_h M (`map_reading`).
4. [b + a_1; …; b + a_n; b] has z = Σ_h M_h A p_h: all weights p_h by one joint least squares
   problem, log(p_h,i/p_h,0) = a_i·(W_h b + w_h) (`score_reading`). W_h has low rank: some b are
   asked with all keys, the others with as many as its column space needs.
5. Coarse answers: maps are fitted to all of them (`range_fit`), many ranges are read once more
   (`range_polish`), and the same answers are decoded again.
6. Fresh sequences confirm or refuse; the certificate is what drawn errors do (`validate.conclude`).

With ``rotary`` scores turn with distance: `positioned_layer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.learners.attention_layer.given_positions import ToldTurning, told_turning
from unsoftmax.learners.attention_layer.head_search import HeadsAlike, HeadSearch
from unsoftmax.learners.attention_layer.layer_cost import LayerCost
from unsoftmax.learners.attention_layer.map_reading import MapReading
from unsoftmax.learners.attention_layer.norm_search import find_norm
from unsoftmax.learners.attention_layer.normalised_layer import normalised_cost, normalised_steps
from unsoftmax.learners.attention_layer.opening_tokens import OpeningSearch
from unsoftmax.learners.attention_layer.positioned_layer import TurnedLayerTask, turned_plan
from unsoftmax.learners.attention_layer.prenorm_layer import prenorm_cost, prenorm_steps
from unsoftmax.learners.attention_layer.range_polish import polished
from unsoftmax.learners.attention_layer.recovered_layer import SAID, LayerAnswers
from unsoftmax.learners.attention_layer.score_reading import ScoreReading, keys_of
from unsoftmax.learners.attention_layer.soft_gate_reading import SoftGateReading
from unsoftmax.learners.attention_layer.soft_search import soft_search
from unsoftmax.learners.attention_layer.unseen_heads import heads_at_moderate_logits, unseen_cost
from unsoftmax.learners.attention_layer.value_answers import (
    AffineAnswers,
    HeadMaps,
    LayerMap,
)
from unsoftmax.learners.compose import Asking, as_planned
from unsoftmax.learners.settings import Configured, one_of, whole_number
from unsoftmax.measure.token_map import TokenMapAnswers
from unsoftmax.models import AttentionLayer, Rotary
from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Outputs, Plan, Steps
from unsoftmax.theory import counts
from unsoftmax.validate.conclude import CONFIRMING, Conclusion
from unsoftmax.validate.layer_sequences import LONG, SHORT, LayerSequences

PROFILES = ("auto", "lean", "fine", "finest")
NORMS = ("none", "post", "pre")


@dataclass(frozen=True, slots=True)
class AttentionLayerLearner(Configured):
    """Learn an attention layer, the number of its heads and their sizes unknown, from vectors.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    max_heads : int, optional
        More distinct heads than this are refused; 64 by default.
    head_dim : int, optional
        Rank of every M_h. Found if it is not given, with three queries more per head.
    norm : {"none", "post", "pre"}, optional
        What stands around the layer: nothing, a LayerNorm or RMSNorm behind it and its residual
        connection ("post"), or one before it ("pre"). Found if it is not given, with three queries
        more, with seven where there is one: answers of plain layers grow with single tokens, and
        those after a norm are linear in what the norm makes of them.
    profile : {"auto", "lean", "fine", "finest"}
        How many queries buy how much accuracy: "lean" as few as possible, for exact answers; "fine"
        1.3 to 2 times as many, for answers of float32; "finest" two to eight times, which pays
        for M_h, and in layers whose heads' values have more than 64 dimensions together: in
        smaller ones "fine" gives W_h as well. "auto" is lean where answers are of float64 and fine
        where they are coarser.
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
    tuning : AttentionLayerTuning
        Knobs of the algorithm, each with its reason in the source. To change some:
        ``dataclasses.replace(learner.tuning, …)``, given to a new learner.

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
    Where ranges of values are dependent (H·r > d, or nearly so beside coarse answers), (H − 1)·d
    in the second place. After a norm (⌈d/H⌉ + 3)(H + 10) there: 2,007 to 2,073. With positions
    2d + 61 + (H − 1)r + 2⌈d/r⌉(⌈rG/H⌉ + 1) for G groups: 309 for H, G, r = 4, 2, 16 at d = 64;
    with key and query biases 2d + 81 + (H − 1)r + (⌈rG/H⌉ + 1)(2⌈(d + 2)/n⌉ + ⌈(r + 1)/n⌉ − 1),
    n = ⌊3r/4⌋: 374 there, and about 100 more where biases are as large as keys and queries.
    *Determined up to* the order of heads, and an invertible r×r matrix between factors of M_h and
    of W_h: returned are M_h = O V with orthonormal columns of O, and W_h = KᵀQ with orthonormal
    rows of K. Key biases, and heads with M_h = 0, change no answer; value and output biases are
    one constant c; heads with equal [W_h w_h] are one. The certificate's bounds on M, W and w hold
    for every head. A norm before is part of its heads: its scale and shift are not told apart
    from M_h, W_h, w_h and c. Heads with W_h = 0, and W_h beside −W_h, cost some hundred queries
    more. Refused: W_h = c·W_g, c > 0, without a norm before, which switch alike; an RMSNorm behind
    whose scale has entries of both signs. *With rotary positions up to* the order of heads and of
    planes, one complex number per plane and group between K and Q, and an invertible matrix per
    group between V and O; b_k where planes do not turn. The bound on W is one on all W_h(Δ), that
    on w one on what biases add to scores.
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
    max_heads: int | None = None
    head_dim: int | None = None
    norm: str | None = None
    profile: str = "auto"
    seed: int = 0
    rotary: bool | Rotary = field(default=False, kw_only=True)
    rotary_base: float | None = field(default=None, kw_only=True)
    tuning: AttentionLayerTuning = field(default=AttentionLayerTuning(), kw_only=True)

    revision: ClassVar[int] = 6
    outputs: ClassVar[Outputs] = "vector"

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)
        one_of("profile", self.profile, PROFILES)
        if self.norm is not None:
            one_of("norm", self.norm, NORMS)
        for name, value in (("max_heads", self.max_heads), ("head_dim", self.head_dim)):
            if value is not None:
                whole_number(name, value, 1)
        if self.head_dim is not None and self.head_dim > self.dim:
            raise ValueError(f"head_dim must be at most dim = {self.dim}; it is {self.head_dim}.")
        if self._turning() is not None and self.norm not in (None, "none"):
            raise ValueError(
                f'norm is "{self.norm}" beside rotary: layers with rotary positions are recovered '
                "without a norm."
            )

    @property
    def _most(self) -> int:
        return self.tuning.most_heads if self.max_heads is None else int(self.max_heads)

    def _turning(self) -> ToldTurning | None:
        """Return what is said of positions, None where there are none."""
        return told_turning(self.rotary, self.rotary_base, self.head_dim)

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with the heads."""
        if self._turning() is not None:
            return turned_plan(int(self.dim), self._most, self.head_dim, self.tuning)
        if self.norm == "post":
            return self._plan_behind()
        after = prenorm_cost(int(self.dim), self._most, self.tuning)
        if self.norm == "pre":
            return self._plan_after(after)
        d, H, tuning = int(self.dim), self._most, self.tuning
        r = max(1, d // H) if self.head_dim is None else int(self.head_dim)
        searches = len(tuning.offset_lengths) * tuning.most_search(H)
        pilots = tuning.pilot_rounds * (tuning.pilot_tokens + 2) + 3 * tuning.score_pilots
        maps = tuning.tries * (H * d + tuning.checked) + H * d
        scores = (2 + tuning.again) * d * (d + 1)
        search = searches + pilots + maps + scores + CONFIRMING + unseen_cost(H, tuning)
        behind = normalised_cost(d, H, tuning)
        plain = d + 8 + tuning.attempts * search + tuning.softly(after.queries)
        at_most = max(plain, behind.queries)
        queries = counts.attention_layer_queries(d, H, r)
        formula = (
            "about d + 76 + (H − 1)(r + 3) + (r + 4)·d/r + (d − r − 3) for H heads of rank r with "
            f"exact answers, twice that behind float32: {queries:,} for {H} of rank {r}"
        )
        if self.norm is None:
            behind_norm = counts.normalised_layer_queries(d, H, r)
            after_norm = counts.prenorm_layer_queries(d, H, r)
            formula += f"; {behind_norm:,} behind a norm, {after_norm:,} after one"
        return Plan(
            queries=None,
            at_most=at_most,
            tokens=max(
                2 * at_most + tuning.attempts * scores + tuning.softly(after.tokens),
                behind.tokens,
            ),
            rounds=max(tuning.most_rounds + tuning.softly(after.rounds), behind.rounds),
            formula=formula,
            longest_token=FARTHEST,
            most_tokens=max(d + 1, LONG.most_tokens(d, *(shape.tokens for shape in SHORT))),
        )

    def _plan_behind(self) -> Plan:
        """Say what a layer behind a LayerNorm costs."""
        d, H = int(self.dim), self._most
        r = max(1, d // H) if self.head_dim is None else int(self.head_dim)
        behind = normalised_cost(d, H, self.tuning)
        return Plan(
            queries=None,
            at_most=behind.queries,
            tokens=behind.tokens,
            rounds=behind.rounds,
            formula=(
                "about d + 83 + rank M + 4H + (r + 4)·d/n + 1.14(d − r − 3), n = (d − H − 1)/H, "
                "for H heads of rank r with exact answers, twice that behind float32: "
                f"{counts.normalised_layer_queries(d, H, r):,} for {H} of rank {r}"
            ),
            longest_token=FARTHEST,
            most_tokens=max(d + 1, LONG.most_tokens(d, *(shape.tokens for shape in SHORT))),
        )

    def _plan_after(self, after: LayerCost) -> Plan:
        """Say what a layer after a norm costs."""
        d, H = int(self.dim), self._most
        r = max(1, d // H) if self.head_dim is None else int(self.head_dim)
        return Plan(
            queries=None,
            at_most=after.queries,
            tokens=after.tokens,
            rounds=after.rounds,
            formula=(
                "about d + 79 + (⌈rank M/H⌉ + 3)(H + 10) + (r + 4)·d/r + (d − r − 3) for H heads "
                "of rank r with exact answers: "
                f"{counts.prenorm_layer_queries(d, H, r):,} for {H} of rank {r}"
            ),
            longest_token=FARTHEST,
            most_tokens=max(d + 1, LONG.most_tokens(d, *(shape.tokens for shape in SHORT))),
        )

    def steps(self, checks: int) -> Steps[Any]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        excess = "the target is no layer of softmax attention, or its answers are too noisy"
        contrary = "no layer of softmax attention"
        return (yield from as_planned(self._steps(checks), self.plan(), excess, contrary))

    def _steps(self, checks: int) -> Steps[Any]:
        d, tuning = int(self.dim), self.tuning
        if (told := self._turning()) is not None:
            rng = np.random.default_rng(self.seed)
            tokens = yield from self._tokens(rng)
            task = TurnedLayerTask(
                tokens, self._most, self.head_dim, self.profile, told, tuning, rng
            )
            return (yield from task.steps(checks))
        found = yield from find_norm(d, self.seed, self.norm, tuning.prenorm.search)
        if found.place == "post":
            behind = normalised_steps(
                d,
                self.seed,
                checks,
                tuning=tuning,
                max_heads=self.max_heads,
                head_dim=self.head_dim,
                profile=self.profile,
            )
            return (yield from behind)
        if found.kind is not None:
            after = prenorm_steps(
                d,
                found.kind,
                self.seed,
                checks,
                tuning=tuning,
                most_heads=self._most,
                profile=self.profile,
            )
            return (yield from after)
        rng = np.random.default_rng(self.seed)
        tokens = yield from self._tokens(rng)
        for again in reversed(range(self.tuning.attempts)):
            try:
                conclusion = yield from self._searched(tokens, rng)
            except HeadsAlike as refusal:
                conclusion = yield from self._softly(tokens, rng, refusal)
                break
            except (ModelMismatch, np.linalg.LinAlgError):
                if not again:
                    raise
            else:
                break
        return (yield from conclusion.run(checks))

    def _softly(
        self, tokens: TokenMapAnswers, rng: np.random.Generator, refusal: HeadsAlike
    ) -> Asking[Conclusion[AttentionLayer]]:
        """Search for heads by copies of tokens, whose gates are neither 0 nor 1."""
        tuning, noise = self.tuning, tokens.noise()
        reading = replace(tuning.prenorm.reading, shares=tuning.soft_shares)
        for residual in (False, True)[: 1 + (len(tokens.zero) == self.dim)]:
            layer = LayerMap.of(tokens, residual)
            soft = SoftGateReading(
                tokens, layer, noise, tuning.soft_length, self._most, rng, reading
            )
            try:
                base = yield from soft.base()
                soft = replace(soft, radius=tuning.soft_widest)
                return (
                    yield from soft_search(
                        soft, base, profile=self.profile, fresh=np.inf, tuning=tuning
                    )
                )
            except (ModelMismatch, NotIdentifiable, np.linalg.LinAlgError):
                continue
        raise NotIdentifiable(str(refusal), determined=refusal.determined) from refusal

    def _searched(
        self, tokens: TokenMapAnswers, rng: np.random.Generator
    ) -> Asking[Conclusion[AttentionLayer]]:
        """Search for all heads; what was found predicts a few fresh answers."""
        tuning, noise = self.tuning, tokens.noise()
        effort = tuning.effort(self.profile, noise.relative)
        found = yield from HeadSearch(LayerMap.of(tokens), noise, self._most, rng, tuning).run()
        layer = LayerMap.of(tokens, found.residual)
        opening = yield from OpeningSearch(layer, noise, found.gates, rng, tuning).run()
        single = AffineAnswers(tokens, found.residual)
        maps = yield from MapReading(
            single, layer, noise, found.gates, opening, self.head_dim, effort.whole, rng, tuning
        ).run()
        values = maps.solved()
        fit = effort.polish and not maps.whole and sum(values.ranks) <= tuning.fitted_alone
        effort = tuning.fitted if fit else effort
        n = keys_of(values, noise.relative, effort.share, tuning)
        typical = float(opening.typical.max()), float(opening.bias.max())

        def redrawn(rng: np.random.Generator) -> tuple[LayerMap, HeadMaps]:
            other = maps.with_errors(noise, rng)
            return other.layer(), other.solved()

        reading = ScoreReading(
            layer, values, noise, n, effort, typical, rng, tuning, redrawn=redrawn
        )
        answers = LayerAnswers(maps, (yield from reading.run()))
        if fit:
            answers = yield from _fitted(answers, reading)
        elif effort.polish and not maps.whole:
            length = float(np.linalg.norm(opening.a))
            answers = yield from polished(answers, reading, length)
        drawn = answers.drawn(noise, rng)
        conclusion = Conclusion(drawn, LayerSequences(drawn.model, rng), SAID)
        try:
            yield from conclusion.confirmed()
        except ModelMismatch as refusal:
            # heads may have been taken for one, which copies of tokens may tell apart
            seen = drawn.model.H
            heads = yield from heads_at_moderate_logits(drawn.model, layer, noise, rng, tuning)
            if not seen < heads <= self._most:
                raise
            raise HeadsAlike(
                f"Where weights are 0 or 1 the answers show {seen} heads, and {heads} where they "
                "are between: some weigh tokens so much alike (W beside 2W, for example) that two "
                "tokens do not tell which is which.",
                determined={"c": layer.c, "M": layer.M},
            ) from refusal
        return conclusion

    def _tokens(self, rng: np.random.Generator) -> Asking[TokenMapAnswers]:
        """Ask single tokens; refuse what is not affine there."""
        scale = self.tuning.token_scale
        asked = TokenMapAnswers.probes(int(self.dim), scale, rng)
        tokens = TokenMapAnswers.of(asked, (yield asked), scale)
        noise = tokens.noise()
        if np.any(tokens.missed > self.tuning.unexplained * tokens.explained()):
            raise ModelMismatch(
                "Single tokens are answered by no affine map: one misses it by "
                f"{np.max(tokens.missed):.1e}, where the rounding of answers explains "
                f"{np.max(tokens.explained()):.1e}. Something else is added or stands behind: a "
                "normalisation (LayerNorm, RMSNorm), a nonlinearity, another layer."
                + self._with_a_norm
                + self._of_few_bits(tokens)
            )
        if noise.relative > self.tuning.affine:
            raise ModelMismatch(
                f"Answers are off by {noise.relative:.1e} of their size, as single tokens show it: "
                "they are too coarse or too noisy to recover a layer from, or the target is no "
                "affine map of single tokens."
            )
        return tokens

    def _of_few_bits(self, tokens: TokenMapAnswers) -> str:
        """Say what else it may be if little is missed."""
        shares = tokens.missed / np.linalg.norm(tokens.answers, axis=1)
        if not np.max(shares) <= self.tuning.few_bits:
            return ""
        return (
            f" Or it computes with fewer bits than it answers with, as TF32, autocast and float32 "
            f"behind float64 answers do (a share of {np.max(shares):.1e} is missed): switch that "
            "off where you can, or answer with as few bits."
        )

    @property
    def _with_a_norm(self) -> str:
        """Say what to do if it is a norm that stands there."""
        if self._turning() is not None:
            return (
                " With rotary positions a layer is recovered by itself alone: ask what takes the "
                "tokens behind the norm."
            )
        return " Leave out norm, and one is looked for." if self.norm == "none" else ""


def _fitted(answers: LayerAnswers, reading: ScoreReading) -> Asking[LayerAnswers]:
    """Fit maps to all answers, and ask again what has small weights beside them."""
    answers = replace(answers, fitted=reading.noise)
    layer, values = answers.maps()
    reading = replace(reading, layer=layer, values=values)
    return replace(answers, scores=(yield from reading.mended(answers.scores)))
