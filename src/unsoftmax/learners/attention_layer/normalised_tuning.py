"""Knobs of the recovery of a layer behind a LayerNorm, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from unsoftmax.solve.gate_columns import GateColumnTuning


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
class DirectionTuning:
    """Knobs of reading maps and scores from directions."""

    rank: float = 3.0
    """Singular values of a range above so many times what drawn errors make are none of errors:
    these are about a tenth of those drawn."""
    missed: float = 1e-2
    """Answers to offsets that miss the sum of all maps by more, in the median, are of more heads
    than were found."""
    apart: float = 1e3
    """Answers to an offset that miss the sum of all maps by so many times what those to others
    do, in the median, are of other gates."""
    overlap: float = 1e4
    """Ranges depend on each other where a singular value of all together is below so many times
    their error ..."""
    most_overlap: float = 1e-3
    """... and below this."""
    dense: int = 4
    """Where fewer than 1/4 of the keys can be told apart that complete values would allow, every
    M_h is read as a whole instead."""
    logits: float = 0.5
    """Root mean square of the logits that W b gives keys, in the median head: at 0.2 errors are 3
    times as large, at 1 those of W twice. ..."""
    strongest: float = 1.0
    """... The same, at most, in the head where they are largest."""
    blocks: int = 12
    """Key blocks of the rows, at most: tokens of one block lack the same directions, and a
    further token tells one number of each block."""
    extras: float = 3.0
    """Further tokens, times what the equations need: with twice errors of W are half as large
    again."""
    fewest_extras: int = 4
    """And so many at least, where any are needed."""
    dearer: float = 2.0
    """All blocks are asked with every token where that takes no more than so many times what
    further tokens do: errors of W are a fifth."""
    condition: float = 100.0
    """Further tokens are drawn until the system of missing numbers is better conditioned."""
    tries: int = 8
    """So often at most; then the best."""


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

    coarse: float = 1e-10
    """Answers that are further off, relative to the scale, are coarse, such as float32's."""
    finest: int = 3
    """Times fewer keys in a sequence for the profile "finest"."""
    tries: int = 3
    """Searches for values and scores, each with other tokens: one fails by chance in 50 small
    layers, where gates or weights happen to be extreme."""
    singles: NormalisedSinglesTuning = field(default=NormalisedSinglesTuning())
    heads: NormalisedHeadsTuning = field(default=NormalisedHeadsTuning())
    told: DirectionTuning = field(default=DirectionTuning())
    eps: EpsTuning = field(default=EpsTuning())
