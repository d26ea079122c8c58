"""What a search may spend: profiles, and how often steps are repeated, which bounds its plan."""

from typing import NamedTuple


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
    spare_offsets: int = 4
    """Offsets beyond the mean rank of the heads: their singular values show the rank."""
    spare_tokens: int = 4
    """Query tokens beyond the expected rank that read the column spaces, for the same reason."""


# As few queries as possible: the joint least squares problem is square.
LEAN = Effort(1, False, False, 0.2, 0.4)
# Half as many keys: their weights are overdetermined, and larger.
FINE = Effort(2, True, False, 0.25, 1.0)
# Instead of "fine" where maps are fitted to all answers: larger logits pay beside such maps. With
# half of them errors of W are twice as large; with twice as many ten times: small weights lose
# their digits.
FITTED = Effort(2, False, False, 0.5, 2.0)
# A quarter, and no range whose errors the others amplify.
FINEST = Effort(4, False, True, 0.25, 1.0)
# Instead of "finest" without a norm or positions: beside such maps larger logits pay as they do
# beside fitted ones, and half as many keys as with "fine" are no longer needed for W.
WHOLE = Effort(2, False, True, 0.5, 2.0)
# Behind a norm at logits of 0.2 errors are 3 times as large, at 1 those of W twice.
LEAN_BEHIND = Effort(1, False, False, 0.5, 1.0)
# Exact answers show ranks by fewer spare ones. With two offsets errors of maps and of W are twice
# as large in the median, with one query token those of W. Where scores of one head are four times
# as large as others', as in MiniLM's first layer, logits of 1 give it weights of 1e-6, and errors
# of its W are 5 to 60 times as large.
EXACT_BEHIND = LEAN_BEHIND._replace(strongest=0.5, spare_offsets=3, spare_tokens=2)
FINE_BEHIND = Effort(2, True, False, 0.5, 1.0)
FINEST_BEHIND = Effort(6, True, False, 0.5, 1.0)
# Answers behind a norm that are further off, relative to the scale, are coarse, as float32's.
COARSE_BEHIND = 1e-10
# Noise up to which "auto" is lean: between float64's 1e-15 and float32's 1e-7.
EXACT = 1e-12


def effort_of(profile: str, noise: float) -> Effort:
    """Return what a profile spends, on answers of this relative noise."""
    if profile == "auto":
        profile = "lean" if noise <= EXACT else "fine"
    return {"lean": LEAN, "fine": FINE, "finest": FINEST}[profile]


def effort_behind(profile: str, noise: float) -> Effort:
    """Return the same behind a norm: exact answers have square systems enough."""
    if noise <= COARSE_BEHIND:
        return EXACT_BEHIND
    if profile == "lean":
        return LEAN_BEHIND
    return FINEST_BEHIND if profile == "finest" else FINE_BEHIND


class Pilots(NamedTuple):
    """How heads are looked for, and how far offsets may move from where one gate alone is open."""

    heads: int
    """Query tokens of the first round."""
    tokens: int
    """Random query tokens whose logits are read, and in whose span those that open one gate lie.
    Fewer: longer query tokens and smaller margins; more: queries."""
    deviations: float
    """How many typical logits an offset may differ by before a gate flips. Of Gaussian logits one
    in a million does at 5; of trained heads, whose typical logits one offset may show too small,
    one in a thousand, which are seen and asked again. Larger: shorter steps and larger errors of
    M."""
    gate_off: float = 0.01
    """Gates nearer to 0 or 1 than this are saturated for pilots."""
    mirrored: bool = False
    """Whether offsets are asked with both signs."""
    first: int = 0
    """Query tokens asked first, if not all; ..."""
    more: int = 0
    """... so many others, again and again, where margins are small."""


# 24 query tokens: 12 heads and as many again that test their columns.
PLAIN = Pilots(heads=24, tokens=32, deviations=5.0)
# With positions 16: for 9 heads and a residual connection, and 6 that test their columns; more
# heads get as many again. With 16 pilots one layer of 24 flips so many gates that it takes a fifth
# more queries. Of shared values just as many offsets are asked as ranks there are: one gate that
# flips and shows in no other vector doubles them. With 5 deviations one layer of 100 took a fifth
# more queries, with 6.7 none.
POSITIONED = Pilots(heads=16, tokens=20, deviations=7.0)
# With biases each pilot costs twice as much; few leave small margins, and shorter steps worse
# maps. Key and query bias alone make logits, which no length of tokens takes away.
BIASED = Pilots(heads=16, tokens=12, deviations=5.0, gate_off=1e-9, mirrored=True)

# Lengths of the offset beside which gates are 0 or 1, in turn until they are. Gates of trained
# layers (logits of 1e-2·‖a‖‖b‖) are by the first, but for one in 10⁸.
OFFSET_LENGTHS = (2.0**24, 2.0**34, 2.0**44)
# Query tokens are so much shorter than offsets: what M b adds to an answer, and its errors, is
# small beside M a, and 12 bits are left of b on the grid of a.
SHORTER = 2.0**-8
# The rank is at least so much below the number of answers, or there are more heads.
TESTED_BY = 6
# Singular values below so many times the noise are noise: the largest of a Gaussian matrix of a
# few dozen rows is 2 to 3 times √rows of its numbers. Heads below this share of the largest are not
# seen, however small the noise.
RANK_NOISE, RANK_SHARE = 30.0, 1e-12
# Pilots at most that find the scale at which gates are between 0 and 1, and lengths of keys and
# query tokens at which logits are moderate.
PILOT_ROUNDS, SCORE_PILOTS = 24, 8
# How many times as much a query token adds to a logit as the bias does.
OVER_BIAS = 4.0
# Logits of saturated gates, at least, at the offset that others lie around. Beside it they may be
# anything: one in 30,000 is below the 36 that leave something open in float64.
SATURATED = 2.0**20
# Rounds of offsets at most, each twice as many, until every rank is below their number; and rounds
# of those at which a gate flipped.
OFFSET_ROUNDS, FLIP_ROUNDS = 6, 3
# Saturated queries that test the maps, and searches for maps, each with half the step.
CHECKED, TRIES = 6, 3
# Answers with a weight below so many times the noise are asked again, so often, each time with keys
# half as long.
WEIGHT_NOISE, AGAIN = 200.0, 4
# Singular values of the columns below so many times what drawn errors make of them may be noise:
# the target's own, of scores for example, are larger than those drawn. Those so many times the
# largest spare one are none, whose singular values are within a factor of 2.
SCORE_NOISE, OVER_SPARE = 10.0, 2.0

# Searches, along other tokens, before a target is refused. Of layers of two heads of rank 1 in 4
# dimensions one in 60 is missed by the first.
ATTEMPTS = 2

# -- behind a norm

# Searches for values and scores, each with other tokens: one fails by chance in 50 small layers,
# where gates or weights happen to be extreme.
TRIES_BEHIND = 3
# Pairs ±ξ of single tokens asked where answers are coarse.
SINGLE_PAIRS = 7
# Query tokens of a plane: 24 rows tell up to 12 heads from their sums; those added while there are
# not exactly H patterns of gates, and how often.
PLANE_QUERIES, PLANE_MORE, PLANE_ROUNDS = 24, 8, 5
# Those of a first search in exact answers, and how many more for each head, while that is fewer.
# Gates of two heads are alike by chance beside all of 12 in 2 % of layers with d = 16; fresh
# answers tell, and another search asks 24.
PLANE_FEWEST, PLANE_BESIDE = 10, 2
# How many times as long tokens then are, in turn.
PLANE_LONGER = (1.0, 16.0, 256.0)
# With no more dimensions than this the plane is a line: there is no room for two.
PLANE_FEW = 6
# Tokens that show eps, at most: each where it is known best, by those before.
EPS_TOKENS = 4
# Query tokens whose logits are read first in exact answers, for each head, and then where margins
# are small. Margins are smaller, so offsets differ by 4 typical logits: in one of a thousand layers
# a gate flips, and is asked again.
OPENING_FIRST, OPENING_MORE, OPENING_DEVIATIONS = 3, 2, 4.0

# -- by copies of tokens, after a norm above all

# Searches along other tokens before a target is refused.
BALL_TRIES = 2
# Lengths at which single tokens are asked to find eps, and directions in which it is then read at
# the length where it bends most.
BALL_RUNGS, BALL_REFINED = 9, 4
# Lengths at which one query token each shows where weights are moderate, each half of the one
# before: scores may be 10¹² times as large as in the longest tokens they would be moderate in. And
# at so many of these, in turn, gates are sought.
SOFT_PILOTS, SOFT_LENGTHS = 20, 3
# Coordinates of the query tokens, at most. With 2 of MiniLM's twelve heads the gates' columns
# have a condition of 4,000, with 4 of 800, with 6 of 400; each costs a query per offset.
SOFT_COORDINATES = 6
# Copies of b + a and of b, in turn: logits move by log m/k, 3.5 at most. More copies move them
# farther by their logarithm, and cost tokens in proportion.
SOFT_COPIES = ((1, 1), (1, 32), (32, 1), (1, 2), (8, 1), (1, 8), (2, 1))
# Query tokens beside the first offset: twelve heads, and twice as many that test them. As many
# again while the rank is nearly their number; answers beyond rank and coordinates, at least.
SOFT_FIRST, SOFT_TESTED_BY = 40, 6
# Query tokens of an offset beyond H and the coordinates. Fewer: gates are more often found where
# there are none, and errors are larger. How often an offset whose gates were not found is asked
# beside further ones.
SOFT_SPARE_TOKENS, SOFT_AGAIN = 4, 2

# -- with positions

# Most tokens between keys and query token, and where answers are coarser than those of float64:
# slow planes, which errors hide first, are read so many times better. More make queries longer, and
# fast planes go round more often than the first step tells.
LONGEST, LONGEST_COARSE = 65, 257
