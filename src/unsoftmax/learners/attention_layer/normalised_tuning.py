"""Knobs of the recovery of a layer behind a LayerNorm, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unsoftmax.solve.gate_columns import GateColumnTuning
from unsoftmax.solve.key_blocks import KeyBlockTuning


@dataclass(frozen=True, slots=True)
class NormalisedSinglesTuning:
    """Knobs of the single tokens."""

    far: float = 2.0**52
    """Length of tokens at which c and eps no longer change an answer: c is 2⁻⁵² of them. Longer:
    squares leave float32's range."""
    drawn: int = 32
    """Two tokens ξ with entries ±1 are asked: d − 2 more equations than there are columns. So many
    are drawn for the second, which is nearly orthogonal to the first."""
    pairs: int = 7
    """Pairs ±ξ asked beside them where answers are coarse."""
    mixed: int = 2
    """Sequences of two tokens. They tell γ too: where I + M is singular, single tokens do not."""
    mixed_length: float = 2.0**40
    """Length of those tokens: their answers are one token's values or a few heads' mixture."""
    steps: tuple[float, ...] = (2.0**-6, 2.0**-2, 2.0**2, 2.0**6)
    """Lengths of the tokens that c is weighed against: one is within a factor of 4 of |c|, where
    |c| is between 2⁻⁸ and 2⁸."""
    zero: float = 16.0
    """The zero token's answer is β but for so many roundoffs where c is 0."""
    least_spread: float = 1e-10
    """A coordinate that moves by a smaller share of the one that moves most is taken for one of
    scale 0."""
    gap: float = 1e-3
    """The least singular value of answers that have a norm behind is a smaller share of the
    next."""
    ellipsoid: float = 1e-4
    """Squared lengths of answers behind RMSNorm are off by no more, in units of the norm's scale:
    float32's are by 1e-6, those of other functions by as much as there is."""
    most_noise: float = 1e-5
    """Answers that are further from a normalised affine map are none. float32: 1e-6."""
    affine: float = 1e3
    """Single tokens of any length are answered by that map to so many times the noise."""


@dataclass(frozen=True, slots=True)
class NormalisedHeadsTuning:
    """Knobs of finding the heads from gates that are 0 or 1."""

    queries: int = 24
    """Two-token queries asked first: 24 rows tell up to 12 heads from their sums."""
    more: int = 8
    """Queries added while there are not exactly H patterns."""
    rounds: int = 4
    """So often; then tokens are made longer."""
    length: float = 2.0**18
    """Entries of offsets and query tokens, about: gates are 0 or 1."""
    longer: tuple[float, ...] = (1.0, 16.0, 256.0)
    """Factors tried in turn."""
    plane: int = 64
    """Query tokens are of a plane of so many dimensions, or a third of d. More: gates of heads
    differ more; fewer: more of an answer is outside of what the residual puts there."""
    few: int = 6
    """With no more dimensions than this the plane is a line: there is no room for two."""
    coefficient: int = 7
    """Largest coefficient in the plane: query tokens are exactly of it."""
    columns: GateColumnTuning = field(default=GateColumnTuning(most=18))
    """Gates from sums of them: 2^(H − 1) columns are tried for H heads."""
    rank: float = 30.0
    """Singular values below so many times the noise are noise."""
    residual: float = 1e-6
    """A share of the residual below this is none."""
    same_signs: float = 1e-2
    """What the residual may miss the heads' answers by where RMSNorm's scale is of one sign: 1e-4
    behind float32; one entry of another sign is 2/√d."""


@dataclass(frozen=True, slots=True)
class OneHotTuning:
    """Knobs of query tokens that open one head's gate and close the others'."""

    plane: int = 32
    """Query tokens are combinations of so many. More: shorter ones, more queries."""
    pilots: tuple[float, ...] = tuple(2.0**k for k in (8, 6, 4, 2, 0, -2, -4, -6, -8, -10))
    """Lengths at which gates are looked at."""
    least_gate: float = 0.01
    """A gate between this and 1 less it tells its logit."""
    largest_share: float = 0.5
    """Offsets differ from the first by at most so much of it."""
    safety: float = 7.0
    """And by so many times less than would close a gate by a typical logit."""
    length: float = 2.0**18
    """Entries of saturating offsets and query tokens, about."""


@dataclass(frozen=True, slots=True)
class NormalisedValuesTuning:
    """Knobs of the value subspaces."""

    spare: int = 4
    """Offsets beyond a basis: they show ranks, and gates that flipped."""
    leverage: float = 1e-6
    """An offset whose own share of a subspace misses 1 by less has a flipped gate."""
    rank: float = 100.0
    """Singular values above so many times the spare ones' may be of the subspace."""
    unresolved: float = 1e5
    """Spare singular values that are so many times what noise makes are none: the head is larger
    than its offsets show. 100 times is usual, for gates are not quite as independent as noise."""
    rounds: int = 4
    """Rounds of offsets, each doubling them, for heads of different sizes."""


@dataclass(frozen=True, slots=True)
class NormalisedScoresTuning:
    """Knobs of reading the scores, many keys in one sequence."""

    spare: int = 4
    """Query tokens beyond a basis of the column spaces: they show ranks."""
    logit: float = 0.35
    """rms of the logits of the head where it is largest. Larger: the least weight drowns, and W_h
    of MiniLM's layers is off by twice as much at 1; smaller, from 0.15 on: all are alike."""
    bias: float = 0.25
    """The same of what query biases add."""
    longer: float = 16.0
    """Keys are at most so many times as long as query tokens."""
    share: int = 1
    """One in so many of the keys that can be told apart is asked; with more than 1, all blocks with
    all query tokens."""
    shorter: int = 6
    """Lengths tried: each half of the one before."""
    pilot_weight: float = 1e-6
    """A key's weight below this asks for shorter tokens."""
    keys: KeyBlockTuning = field(default=KeyBlockTuning(steps=25))
    """How keys are chosen: what more steps gain is less than a factor of 2."""
    rank: float = 100.0
    """Singular values above so many times the spare ones' may be of the column space."""
    dense: int = 4
    """Where fewer than 1/4 of the keys can be told apart that complete values would allow, every
    M_h is read as a whole instead."""
    most_spare: float = 0.03
    """Spare singular values that are a larger share of the first are none ..."""
    unresolved: float = 1e10
    """... nor are those of so many times the answers' noise: all is asked for all tokens."""
    overlap: float = 1e4
    """Value subspaces depend on each other where a singular value is below so many times their
    error ..."""
    most_overlap: float = 1e-3
    """... and below this."""
    blocks: int = 12
    """Key blocks of the rows, at most: tokens of one block lack the same directions, and an
    additional token tells one number of each block."""
    extras: float = 2.0
    """Additional tokens, times what the equations need: 1.6 leave errors a seventh larger."""
    fewest_extras: int = 4
    """And so many at least, where any are needed."""
    condition: float = 100.0
    """Additional tokens are drawn until the system of missing numbers is better conditioned."""
    tries: int = 8
    """So often at most; then the best."""
    least_weight: float = 1e-9
    """A weight below this tells no score."""


@dataclass(frozen=True, slots=True)
class NormalisedPolishTuning:
    """Knobs of reading value subspaces again."""

    asked: bool = False
    """Whether they are: coarse answers gain a factor of 10, exact ones nothing."""
    length: float = 2.0**24
    """Length of offsets."""
    shorter: float = 2.0**-10
    """Query tokens are so much shorter: what they add to an answer is small beside M_h a."""
    longest: float = 1e3
    """A token that opens a gate alone only where it is so many times as long as a typical one is
    too near to one that opens another."""


@dataclass(frozen=True, slots=True)
class EpsTuning:
    """Knobs of reading eps."""

    variances: tuple[float, ...] = tuple(10.0**k for k in range(-14, 5, 2))
    """Variances of u at which it is read: eps is a few orders from one of them."""
    told: float = 16.0
    """An eps of fewer times what it may be off by is 0."""


@dataclass(frozen=True, slots=True)
class NormalisedTuning:
    """Knobs of the recovery of a layer behind a LayerNorm, by step."""

    coarse: float = 1e-11
    """Answers that are further off, relative to the scale, are coarse, such as float32's."""
    coarse_scores: NormalisedScoresTuning = field(
        default=NormalisedScoresTuning(share=2, logit=0.6, bias=0.3, rank=3.0)
    )
    """Half as many keys: weights' errors fall by more than the root of it. Logits
    are smaller, since the least weight is read from as coarse answers. Spare singular values are
    nearer to those of the heads."""
    finest: int = 3
    """Times fewer keys in a sequence for the profile "finest"."""
    tries: int = 3
    """Searches for values and scores, each with other tokens: one fails by chance in 50 small
    layers, where gates or weights happen to be extreme."""
    singles: NormalisedSinglesTuning = field(default=NormalisedSinglesTuning())
    heads: NormalisedHeadsTuning = field(default=NormalisedHeadsTuning())
    one_hot: OneHotTuning = field(default=OneHotTuning())
    values: NormalisedValuesTuning = field(default=NormalisedValuesTuning())
    scores: NormalisedScoresTuning = field(default=NormalisedScoresTuning())
    polish: NormalisedPolishTuning = field(default=NormalisedPolishTuning())
    eps: EpsTuning = field(default=EpsTuning())

    def beside(self, noise: float, profile: str) -> NormalisedTuning:
        """Return the knobs for answers that are off by so much, relative to the scale.

        A profile, one of `AttentionLayerLearner`, may decide instead where answers are coarse:
        exact ones have square systems enough.
        """
        if profile == "lean" or noise <= self.coarse:
            return self
        scores = self.coarse_scores
        if profile == "finest":
            scores = replace(scores, share=self.finest * scores.share)
        return replace(self, scores=scores, polish=replace(self.polish, asked=True))
