"""The knobs of recovering a layer after a norm, where no token is long, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from unsoftmax.solve.soft_gates import SoftGateTuning


@dataclass(frozen=True, slots=True)
class SoftReadingTuning:
    """Knobs of reading maps from soft gates."""

    gates: SoftGateTuning = field(default=SoftGateTuning())
    shares: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    """Lengths of tokens, relative to the longest, in turn until the gates are found. Each halves
    both tokens: logits are a quarter."""
    offset: float = 0.4
    """Length of offsets, relative to the longest tokens; query tokens take the rest. A step
    ``spread`` as long is added to offsets."""
    coordinates: int = 6
    """Coordinates of the query tokens, at most. With 2 of MiniLM's twelve heads the gates' columns
    have a condition of 4,000, with 4 of 800, with 6 of 400; each costs a query per offset."""
    nearest: float = 0.5
    """Shortest query tokens, relative to the longest."""
    copies: tuple[tuple[int, int], ...] = (
        (1, 1),
        (1, 32),
        (32, 1),
        (1, 2),
        (8, 1),
        (1, 8),
        (2, 1),
    )
    """Copies of b + a and of b, in turn: logits move by log m/k, 3.5 at most. More copies move
    them farther by their logarithm, and cost tokens in proportion."""
    first: int = 40
    """Query tokens beside the first offset: twelve heads, and twice as many that test them. As
    many again while the rank is nearly their number."""
    tested_by: int = 6
    """Answers beyond rank and coordinates, at least."""
    rank_noise: float = 30.0
    """Singular values below so many times an answer's noise are noise."""
    off_span: tuple[float, ...] = (10.0, 1e2, 1e3, 1e4, 1e5)
    """Gates may be so many times as far from the span as the noise is of the answers, in turn
    until there are as many as heads: a weak head is off by more, ..."""
    most_off: float = 1e-2
    """... and none farther than that."""
    explained: float = 30.0
    """What the gates found leave of the answers, at most, in multiples of the noise: one gate that
    is wrong leaves a share of the answers."""
    near_starts: int = 8
    """Heads are sought near their gates at the base first, with so many starts for each, and then
    anywhere."""
    spread: float = 0.75
    """Step between offsets, relative to the base. Larger: smaller errors of what M_h makes of
    steps; smaller: M_h a_j and logits there are nearer in direction to those of the base."""
    spare_offsets: int = 4
    """Offsets beyond the mean rank of the heads: their singular values show the rank."""
    spare_tokens: int = 4
    """Query tokens of an offset beyond H and the coordinates. Fewer: gates are more often found
    where there are none, and errors are larger."""
    again: int = 2
    """How often an offset whose gates were not found is asked beside further query tokens."""
    range_noise: float = 30.0
    """Singular values of a range so many times what drawn errors make are none of errors."""
    alone: float = 1e-6
    """A vector whose leverage on its head's range is this near to 1 is of another head: one that
    looks more like this one at that offset."""
    exchanges: int = 3
    """How often such vectors are exchanged."""
    independent: float = 1e-6
    """Smallest singular value of all ranges together with which their sum is parted."""


@dataclass(frozen=True, slots=True)
class NormSearchTuning:
    """Knobs of telling where a norm stands."""

    near: float = 2.0**20
    """Length of a long token, ..."""
    far: float = 2.0**40
    """... and of a longer one: far beyond any constant, and squares are within float32."""
    growth: float = 2.0**10
    """How many times as large the longer one's answer is, at least, where answers grow."""
    alike: float = 2.0**-30
    """Answers to opposite tokens that differ by no more do not depend on the token."""
    residual: float = 2.0**-16
    """Answers that grow as the token does, but for this share: float32 is within it."""
    long: float = 2.0**8
    """Length of the tokens that tell a norm before: eps is 2⁻¹⁶ of their variance at most, and a
    residual connection leaves of the heads' answer what rounding does."""
    off: float = 1e-4
    """What normalised tokens may miss a linear map by: an eps of 1 is 1e-5."""
    roundoffs: float = 4.0
    """And in roundoffs of the answers, by their format: with a residual connection these are of
    numbers as large as the tokens."""
    seen: float = 30.0
    """What heads add to long tokens' answers is seen where it is so many times as large."""


@dataclass(frozen=True, slots=True)
class PrenormTuning:
    """Knobs of what concerns layers after a norm alone."""

    search: NormSearchTuning = field(default=NormSearchTuning())
    reading: SoftReadingTuning = field(default=SoftReadingTuning())
    rungs: int = 9
    """Lengths at which single tokens are asked to find eps, ..."""
    longest: float = 2.0**6
    """... the longest, ..."""
    apart: float = 2.0**-6
    """... and each in proportion to the one before: eps from 1e3 down to 1e-24. The next rung
    still shows a 4,096th of the one that eps bends."""
    refined: int = 4
    """Directions in which eps is then read at the length where it bends most."""
    longer: float = 8.0
    """How many times as long the tokens are that these are held against: eps bends them by a 64th
    as much, and a residual connection adds no more than it must."""
    unlike: float = 1e-3
    """Relative differences of the eps that several directions give, at most."""
    unbent: float = 1e-3
    """Shortest single tokens that are answered as the longest are, but for this: eps is 0."""
    reach: float = 0.9
    """Longest normalised tokens, relative to √d: those of length 0.9 have 2.3√eps before."""
    mean: float = 1.0
    """Mean that tokens get in proportion to their entries: a LayerNorm takes it off, and a target
    that does not is seen."""
    drawn: float = 4.0
    """Errors of maps that are drawn to tell ranks of scores are so many times as large: one draw
    may be a tenth of the errors there are, where one direction decides."""
    fresh: float = 0.9995
    """The same for fresh sequences: tokens of 30√eps before, as good as infinitely long."""
    least_most: float = 1e-5
    """Largest relative residual of a fresh answer, whatever errors explain: layers with nearly
    dependent ranges are predicted to 1e-6, as MiniLM's last one."""
    tries: int = field(default=2, metadata={"least": 1})
    """Searches, along other tokens, before a target is refused."""
