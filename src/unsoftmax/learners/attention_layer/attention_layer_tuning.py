"""The knobs of recovering a layer, in the order of the search, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedTuning
from unsoftmax.learners.attention_layer.position_tuning import TurnedLayerTuning
from unsoftmax.learners.attention_layer.prenorm_tuning import PrenormTuning
from unsoftmax.solve.gate_columns import GateColumnTuning
from unsoftmax.solve.key_blocks import KeyBlockTuning
from unsoftmax.validate.layer_sequences import LONG


class Effort(NamedTuple):
    """What a profile spends queries on."""

    share: int
    """Keys per query are the least rank of a map over this."""
    polish: bool
    """Whether ranges are read again."""
    whole: bool
    """Whether maps are read in all directions."""
    logits: float
    """Root mean square of the logits that W b gives keys, in the median head. Errors of a logit
    are those of its weight over the weight, so small weights spoil what is solved from them: with
    three times as much errors of W are three times as large. With less the signal fades."""
    strongest: float
    """The same, at most, in the head where they are largest."""


@dataclass(frozen=True, slots=True)
class AttentionLayerTuning:
    """Knobs of `AttentionLayerLearner`, by stage."""

    # profiles
    lean: Effort = field(default=Effort(1, False, False, 0.2, 0.4))
    """As few queries as possible: the joint least squares problem is square."""
    fine: Effort = field(default=Effort(2, True, False, 0.25, 1.0))
    """Half as many keys: their weights are overdetermined, and larger."""
    fitted: Effort = field(default=Effort(2, False, False, 0.5, 2.0))
    """Instead of "fine" where maps are fitted to all answers: larger logits pay beside such maps.
    With half of them errors of W are twice as large; with twice as many ten times: small weights
    lose their digits."""
    fitted_alone: int = 64
    """Dimensions of all heads' values up to which maps are fitted. In 384 the fit converges slowly,
    from a start as far as that; reading ranges again, a query per dimension, does better."""
    finest: Effort = field(default=Effort(4, False, True, 0.25, 1.0))
    """A quarter, and no range whose errors the others amplify."""
    exact: float = 1e-12
    """Noise up to which "auto" is lean: between float64's 1e-15 and float32's 1e-7."""

    normalised: NormalisedTuning = field(default=NormalisedTuning())
    """What concerns layers behind a LayerNorm alone."""
    prenorm: PrenormTuning = field(default=PrenormTuning())
    """What concerns layers after one."""
    turned: TurnedLayerTuning = field(default=TurnedLayerTuning())
    """What concerns layers with rotary positions."""

    # single tokens
    token_scale: float = 2.0**10
    """Length of the single tokens that read M: long beside a constant c."""
    unexplained: float = 100.0
    """How many times what format and noise of the answers explain single tokens may miss an affine
    map by: float32 inside the target, several products deep, is 5 times that."""
    affine: float = 1e-3
    """Largest share of an answer that single tokens may miss an affine map by. Coarser answers
    recover nothing: rounding to 4 decimals of numbers of 1 is 3e-5, a LayerNorm 1."""
    few_bits: float = 2.0**-7
    """What misses an affine map by no more than this share may be products of operands with 8 bits
    (autocast) or 11 (TF32), which show 6e-3 and 1e-3 at most: a norm or another layer misses by
    about all."""

    # heads
    offset_lengths: tuple[float, ...] = (2.0**24, 2.0**34, 2.0**44)
    """Lengths of the offset beside which gates are 0 or 1, in turn until they are. Gates of trained
    layers (logits of 1e-2·‖a‖‖b‖) are by the first, but for one in 10⁸."""
    shorter: float = 2.0**-8
    """Query tokens are so much shorter than offsets: what M b adds to an answer, and its errors, is
    small beside M a, and 12 bits are left of b on the grid of a."""
    head_queries: int = 24
    """Query tokens of the first round: 12 heads and as many again that test their columns."""
    more_queries: int = 8
    """Query tokens of each further round, while columns are not unique. g_1 + g_2 − g_3 is a column
    of zeros and ones with probability (3/4)^K."""
    tested_by: int = 6
    """Rank at least so much below the number of answers, or there are more heads."""
    head_rounds: int = 6
    """Further rounds of one length."""
    rank_noise: float = 30.0
    """Singular values below so many times the noise are noise: the largest of a Gaussian matrix of
    a few dozen rows is 2 to 3 times √rows of its numbers."""
    rank_share: float = 1e-12
    """Heads below this share of the largest are not seen, however small the noise."""
    columns: GateColumnTuning = field(default=GateColumnTuning())
    half_circle: int = 4
    """Query tokens on half a circle per head, where heads are too many for the columns; intervals
    with jumps are halved until every jump is alone."""
    halvings: int = 24
    """Halvings at most: jumps nearer than 2⁻²⁴ are those of one head."""
    most_heads: int = 64
    """More heads are refused unless ``max_heads`` allows them."""

    # heads whose gates of 0 and 1 do not tell them apart
    soft_length: float = 2.0**12
    """Longest tokens of a search by copies, ..."""
    soft_shares: tuple[float, ...] = tuple(4.0**-k for k in range(11))
    """... and shorter ones, in turn until gates are neither 0 nor 1: logits of 1/16 each time, of
    scores from 1e-7 to 1e5 for tokens of 1."""
    soft_widest: float = 2.0**30
    """Longest keys there: longer ones would be asked where no head has a score at all."""

    unseen_logits: float = 2.0
    """Root mean square of logits at which heads are counted that long tokens do not tell apart:
    σ(l) and σ(2l) are then as different as they are anywhere."""

    # query tokens that open one gate
    pilot_tokens: int = 32
    """Random query tokens whose logits are read, and in whose span those that open one gate lie.
    Fewer: longer query tokens and smaller margins; more: queries."""
    pilot_length: float = 2.0**6
    """Length of the offset of the first pilot; the next ones are scaled by what it shows."""
    pilot_logit: float = 0.5
    """Largest logit of the pilots: weights of heads with much smaller ones are seen as well."""
    pilot_rounds: int = 24
    """Pilots at most, to find that scale."""
    gate_off: float = 0.01
    """Gates nearer to 0 or 1 than this are saturated for pilots."""
    over_bias: float = 4.0
    """How many times as much a query token adds to a logit as the bias does."""
    saturated: float = 2.0**20
    """Logits of saturated gates, at least, at the offset that others lie around. Beside it they
    may be anything: one in 30,000 is below the 36 that leave something open in float64."""

    # maps
    spread: float = 0.5
    """Longest step between offsets that keep gates as they are, relative to the offset."""
    deviations: float = 5.0
    """How many typical logits an offset may differ by before a gate flips. Of Gaussian logits one
    in a million does; of trained heads, whose typical logits one offset may show too small, one in
    a thousand, which are seen and asked again. Larger: shorter steps and larger errors of M."""
    spare_offsets: int = 4
    """Offsets beyond the mean rank of the heads: their singular values show the rank."""
    offset_rounds: int = 6
    """Rounds of offsets at most, each twice as many, until every rank is below their number."""
    independent: float = 1.0
    """Largest error of maps, by the worst case of the ranges' errors and their condition, that is
    accepted; beyond it every map is read in all directions. Measured errors are 1e-3 of it."""
    alone: float = 1e-8
    """A vector whose leverage on its head's range is this near to 1 has a direction that no other
    has: another head's gate flipped there. By chance one of 2,000 is as near where there is one
    vector more than the range has dimensions, and none where there are two more."""
    most_flipped: float = 0.25
    """Where more of the offsets are, the range just fills its vectors."""
    nearer: float = 0.125
    """Offsets at which a gate flipped are asked again at this share of their step."""
    flip_rounds: int = 3
    """Rounds of these."""
    checked: int = 6
    """Saturated queries that test the maps."""
    checked_to: float = 300.0
    """How many times the noise these may be missed by, times the condition of the ranges."""
    tries: int = 3
    """Searches for maps, each with half the step, before a layer is refused."""

    # scores
    dependent: float = 1e-8
    """Singular values of [U_1 … U_H] below this, ..."""
    dependent_noise: float = 1e3
    """... or so many times the noise, do not count: H·n weights need H·n dimensions."""
    keys: KeyBlockTuning = field(default=KeyBlockTuning())
    from_bias: float = 0.7
    """Logits that w alone gives keys are at most this share of those that W b gives them."""
    longer_keys: float = 2.0**8
    """Keys at most so many times as long as query tokens."""
    longer_tokens: float = 2.0**12
    """Query tokens at most so many times as long as keys, where the bias keeps these short: what
    M b adds to answers hides the keys' part, and the grid their last bits."""
    score_pilots: int = 8
    """Pilots at most, to find both lengths."""
    least_weight: float = 1e-6
    """Answers with a smaller weight are asked again with shorter keys ..."""
    weight_noise: float = 200.0
    """... and those with a weight below so many times the noise."""
    again: int = 4
    """How often, each time with keys half as long."""
    spare_tokens: int = 4
    """Query tokens beyond the expected rank that read the column spaces."""
    score_noise: float = 10.0
    """Singular values of the columns below so many times what drawn errors make of them may be
    noise: the target's own, of scores for example, are larger than those drawn."""
    over_spare: float = 2.0
    """Singular values so many times the largest spare one are none of noise, whose singular values
    are within a factor of 2."""

    # ranges once more
    polished: float = 0.1
    """Largest share of an answer that the maps read first may miss: they are off by 1e-3, and a
    gate that is open by mistake adds as much as the answer."""

    # conclusion
    attempts: int = field(default=2, metadata={"least": 1})
    """Searches, along other tokens, before a target is refused. Of layers of two heads of rank 1
    in 4 dimensions one in 60 is missed by the first."""

    def effort(self, profile: str, noise: float) -> Effort:
        """Return what a profile spends, on answers of this relative noise."""
        if profile == "auto":
            profile = "lean" if noise <= self.exact else "fine"
        chosen: Effort = getattr(self, profile)
        return chosen

    def most_search(self, heads: int) -> int:
        """Bound the queries of the search for so many heads, with one length of offsets."""
        doubled = 4 * (heads + self.tested_by + self.head_queries)
        circle = heads * (self.half_circle + self.halvings) + 1
        return doubled + self.head_rounds * self.more_queries + circle

    def softly(self, after: int) -> int:
        """Bound what a search by copies takes, of what a layer after a norm takes at most."""
        # with a residual and without, of lengths that are more
        return 2 * -(-len(self.soft_shares) // len(self.prenorm.reading.shares)) * after

    @property
    def most_rounds(self) -> int:
        """Bound the rounds of a run."""
        search = len(self.offset_lengths) * (2 + self.head_rounds + self.halvings)
        maps = self.tries * (self.offset_rounds + 1)
        scores = self.score_pilots + 14 * (1 + self.again)
        every = search + 2 * self.pilot_rounds + maps + scores + 4
        return 1 + self.attempts * every + 1 + LONG.most_rounds
