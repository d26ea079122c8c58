"""Refusals that say so where it is positions that a learner does not know.

A target whose scores depend on positions is refused by every learner without them, for as many
reasons as there are learners. One transformation around them all asks, where a learner has
refused, whether answers change when tokens change places, and what positions do.
*Queries*: 57 after a refusal, 57 more where the order matters.

It may not know why a learner has refused. Where tokens may change places the refusal stays as it
is, and so it does where these questions are not answered, or are beyond a budget.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from unsoftmax import errors
from unsoftmax.learners.compose import Asking, T
from unsoftmax.probes import FARTHEST, Array, Round, Sequences
from unsoftmax.protocol import Answers, Learner
from unsoftmax.refusals import Reason

# -- Whether answers depend on the order of tokens, and how their weights change with distance
#
# Attention without positions does not notice when the tokens before the last one change places.
# Where answers do, one token x among zeros is moved from distance to distance, the last token being
# a zero too. Scores that are products with the query token, as rotary ones are, are then 0 wherever
# x stands; a bias per distance is all that is left of other scores:
#
#     f([0 … x … 0]) − f([0 … 0]) = α(Δ) x·v      the same for all Δ     products
#                                                 falls as e^{−mΔ}       a slope m (ALiBi)
#                                                 0 from some Δ on       a window
#                                                 a multiple of x        a bias per distance (T5)
#
# Anything else depends on what x is as well: products with a query bias, positions that are added
# to tokens, or more layers than one. What answers vary by is read beside each, from tokens that are
# nearly the same. *Queries*: 57, and 57 more where the order matters.

PositionKind: TypeAlias = Literal["products", "slope", "window", "distance", "labels", "unclear"]


# Tokens of a sequence: windows and slopes that begin farther off do not show.
TOKENS = 64
# Norms of tokens, the shortest first. Biases by distance show where they are short and scores are
# small, products where they are long, whatever the size of W.
LENGTHS = (
    *(2.0**-6, 2.0**-6, 2.0**-3, 2.0**-3, 0.5, 1.0),
    *(2.0, 4.0, 8.0, 16.0, 32.0, 2.0**7, 2.0**10, 2.0**12),
)
# Tokens that are nearly the same differ by this share: more than half precision rounds.
NEAR = 2.0**-8
# The order matters where it moves answers by so many times what nearly the same tokens do, these
# or shorter ones, ...
BY_ORDER = 16.0
# ... and by this share of what tokens add to answers (what is nearly the same may be the same to a
# target of few bits), ...
SHARE = 2.0**-6
# ... and by this share of answers (sums that are rounded in another order move less), ...
ROUNDING = 2.0**-7
# ... at so many lengths.
SEVERAL = 3
# Labels hide most changes: so many sequences more are asked, of so many of the largest lengths.
FOR_LABELS, LONG = 24, 3
# Directions of a token that is alone among zeros.
DIRECTIONS = 2
# Norms of a token that is alone among zeros, in so many directions.
NORMS = (1.0, 64.0)
# A token that is nearly the same differs from it by this share.
BESIDE = 2.0**-11
# Its weight changes with distance where answers do by so many times what a token that is nearly
# the same changes. Larger: small biases pass for none, and positions for rotary ones.
BY_DISTANCE = 2.0
# Slopes, and answers per norm of a token, are the same within this share.
ALIKE = 0.01
# Answers of so few values are labels, which say nothing of weights.
MOST_LABELS = 2
# Which stream of random numbers draws tokens.
SEED = 83


@dataclass(frozen=True, slots=True)
class Positions:
    """How answers depend on positions.

    Attributes
    ----------
    kind : str
        What is left of scores where the query token is 0.
    slope : float
        What a token more of distance takes off a score, of the kind "slope".
    window : tuple of int
        A distance whose tokens count, and one whose tokens do not, of the kind "window".
    constant : float
        What tokens that are all zeros are answered, by the number that varies most.
    """

    kind: PositionKind
    slope: float = 0.0
    window: tuple[int, int] = (0, 0)
    constant: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderQuestions:
    """What a target may be asked about the order of tokens.

    Attributes
    ----------
    dim : int
        Dimension d of a token.
    longest : float
        No token is longer.
    most : float
        No sequence has more tokens.
    tolerance : float
        What answers may be off by, whatever is asked.
    """

    dim: int
    longest: float = FARTHEST
    most: float = np.inf
    tolerance: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of the sequences that are asked."""
        return int(min(TOKENS, self.most))

    def order_matters(self) -> Generator[Round, Answers, bool]:
        """Ask sequences in two orders: whether answers change. Two tokens have one order."""
        if self.tokens < 3:
            return False
        rng = np.random.default_rng(SEED)
        lengths = np.minimum(LENGTHS, self.longest / 2)
        changed, labels = yield from self._changes(rng, lengths)
        if labels:
            more = np.resize(lengths[-LONG:], FOR_LABELS)
            changed, _ = yield from self._changes(rng, more)
        return changed >= SEVERAL

    def _changes(
        self, rng: np.random.Generator, lengths: Array
    ) -> Generator[Round, Answers, tuple[int, bool]]:
        """Ask a sequence of each length in two orders: how many change; whether all are labels."""
        tokens = self.tokens
        x = rng.standard_normal((len(lengths), tokens, self.dim))
        x *= (lengths / np.linalg.norm(x, axis=2).max(axis=1))[:, None, None]
        X = x.astype(np.float32).astype(np.float64)
        near = X * (1 + NEAR * rng.choice([-1.0, 1.0], X.shape))
        order = [*range(tokens - 1)[::-1], tokens - 1]
        families = [X, near, X[:, order], near[:, order], np.zeros((1, tokens, self.dim))]
        answers = yield [_asked(x, "order of tokens") for x in families]
        *answered, nothing = _as_columns(answers)
        here, nearly, there, there_nearly = answered
        moved = np.abs(here + nearly - there - there_nearly) / 2
        varies = np.maximum(np.abs(here - nearly), np.abs(there - there_nearly))
        varies = np.maximum.accumulate(varies, axis=0)  # answers may be off whatever is asked
        size, beyond = (np.max(np.abs([y - c for y in answered]), axis=0) for c in (0.0, nothing))
        least = np.maximum(SHARE * beyond, ROUNDING * size)
        changed = (moved > BY_ORDER * varies) & (moved > least)
        changed &= moved > BY_ORDER * self.tolerance
        labels = 1 < len(np.unique(answered)) <= MOST_LABELS
        return int(np.max(np.count_nonzero(changed, axis=0))), labels

    def position_kind(self) -> Generator[Round, Answers, Positions]:
        """Ask one token at several distances among zeros: how its weight changes with distance."""
        n, dim = self.tokens, self.dim
        distances = np.unique(np.minimum(2 ** np.arange(n.bit_length()), n - 1))
        x = np.random.default_rng(SEED + 1).standard_normal((DIRECTIONS, dim))
        x = (x / np.linalg.norm(x, axis=1)[:, None]).astype(np.float32).astype(np.float64)
        lengths = np.array(NORMS) * min(1.0, self.longest / 2 / max(NORMS))
        X = np.zeros((len(x), len(lengths), len(distances), n, dim))
        places = np.arange(len(distances)), n - 1 - distances
        X[:, :, *places] = lengths[:, None, None] * x[:, None, None]
        nearly = X * (1 + BESIDE * np.where(np.arange(dim) % 2, -1.0, 1.0))
        families = [X.reshape(-1, n, dim), nearly.reshape(-1, n, dim), np.zeros((1, n, dim))]
        answers = yield [_asked(x, "one token at several distances") for x in families]
        *answered, nothing = _as_columns(answers)
        widest = int(np.argmax(np.ptp(answered[0], axis=0)))
        here, beside = ((y - nothing)[:, widest].reshape(X.shape[:3]) for y in answered)
        if len(np.unique([here, beside])) <= MOST_LABELS:
            return Positions("labels")
        # a direction at right angles to v says nothing
        told = int(np.argmax(np.max(np.abs(here), axis=(1, 2))))
        found = _read(here[told], np.abs(beside - here)[told], distances, lengths)
        return replace(found, constant=float(nothing[0, widest]))


def _read(weighed: Array, varies: Array, distances: Array, lengths: Array) -> Positions:
    """Say what weights α(Δ) x·v are, (lengths, distances), that vary by so much."""
    spread = np.ptp(weighed, axis=1)
    if np.all(spread <= BY_DISTANCE * varies.max(axis=1)):
        return Positions("products")
    per_norm = weighed / lengths[:, None]
    size = float(np.max(np.abs(per_norm)))
    if not size or np.max(np.abs(per_norm - per_norm[0])) > ALIKE * size:
        return Positions("unclear")
    seen = weighed[0]
    counts = np.abs(seen) > NEAR * size * lengths[0]
    first = int(np.argmin(counts)) if not counts.all() else len(counts)
    alike = np.abs(seen[:first] - seen[:1]) <= ALIKE * np.abs(seen[:1])
    if 0 < first < len(counts) and not counts[first:].any() and alike.all():
        return Positions("window", window=(int(distances[first - 1]), int(distances[first])))
    steady = np.flatnonzero(counts & (seen * seen[0] > 0))
    slopes = -np.diff(np.log(np.abs(seen[steady]))) / np.diff(distances[steady])
    if len(slopes) > 1 and slopes[0] > 0 and np.ptp(slopes) <= ALIKE * slopes[0]:
        return Positions("slope", slope=float(slopes[0]))
    return Positions("distance")


def _asked(X: Array, phase: str) -> Sequences:
    return Sequences(X, phase=phase, purpose="check")


def _as_columns(answers: Answers) -> list[Array]:
    """Return answers (n, m), m = 1 where they are numbers."""
    return [y.reshape(len(y), -1) for y in answers]


ORDER = "Scores depend on positions: answers change when tokens before the last one change places"
WHOLE_LAYERS = "AttentionLayerLearner (whole vectors)"
NOT_HERE = "No learner here recovers that."


def naming_positions(steps: Asking[T], learner: Learner[Any]) -> Asking[T]:
    """Run a learner's steps; a refusal names the target's positions, if there are any.

    Raises
    ------
    ModelMismatch
        Instead of the learner's refusal, which is its cause: scores depend on positions.
    """
    try:
        return (yield from steps)
    except errors.DimensionRefused:
        raise
    except (errors.NotIdentifiable, errors.ModelMismatch) as refusal:
        if not np.any(refusal.determined.get("v", 1.0)):
            raise  # no answer depends on scores
        if refusal.reason in (Reason.QUERIES_HAVE_BIASES.name, Reason.BLOCK_BY_PLACE.name):
            raise  # it says already how scores depend on positions
        if refusal.reason == Reason.EPS_IS_0.name:
            raise  # tokens 0, which positions are named with, are answered by no numbers
        try:
            how = yield from _named(learner)
        except (errors.OracleError, errors.BudgetExceeded):
            how = None
        if how is None:
            raise
        raise Reason.POSITIONS_MATTER.error(refusal.determined, how=how) from refusal


def _named(learner: Learner[Any]) -> Asking[str | None]:
    """Ask, and say what positions the target has; None if none are seen that are not known."""
    plan, known = learner.plan(), _knows_rotary(learner)
    tolerance = getattr(learner, "tolerance", None) or 0.0
    ask = OrderQuestions(int(learner.dim), tolerance=float(tolerance))
    if plan.longest_token is not None:
        ask = replace(ask, longest=plan.longest_token)
    if plan.most_tokens is not None:
        ask = replace(ask, most=plan.most_tokens)
    if not known and not (yield from ask.order_matters()):
        return None
    found = yield from ask.position_kind()
    if known and found.kind in ("products", "labels", "unclear"):
        return None
    return in_words(found, learner).removeprefix(ORDER)


def _of_vectors(learner: Any) -> bool:
    return getattr(learner, "outputs", "scalar") == "vector"


def _knows_rotary(learner: Any) -> bool:
    """Whether a learner, or the one it is made of, learns rotary positions."""
    given = getattr(learner, "rotary", False) is not False
    given = given or getattr(learner, "rotary_base", None) is not None
    return given or (hasattr(learner, "of") and _knows_rotary(learner.of))


def in_words(found: Positions, learner: Any = None, *, vectors: bool = False) -> str:
    """Say what positions a target has, and what a learner, or another one, does about them.

    ``vectors``: whether the target answers with vectors, as it does where a learner asks for them.
    """
    takes, vectors = hasattr(learner, "rotary"), vectors or _of_vectors(learner)
    whose = "" if takes else " (in LowRankHead and the other learners of heads that take it)"
    of_one = (
        "LowRankHead (one head) and MultiHeadLearner (several) recover them with rotary=True and "
        "biases=True, from float64 answers"
    )
    if vectors:
        whose = "" if takes else " (in AttentionLayerLearner)"
        of_one = f"{WHOLE_LAYERS} recovers them with rotary=True, from float64 answers"
    near, far = found.window
    said = {
        "products": ", and if the last token is 0 all others weigh the same, as with rotary "
        f"positions. rotary=True{whose} recovers rotary positions.",
        "slope": f", and scores fall by {found.slope:.3g} per token of distance for all tokens, "
        f"as with ALiBi. {NOT_HERE}",
        "window": f", and a token {near} places before the last one counts, one {far} places "
        f"before it does not: a sliding window. {NOT_HERE}",
        "labels": ". No learner here recovers positions from labels.",
        "distance": ", and a token's weight depends on its distance from the last one only: "
        f"biases by distance, as T5's, or ALiBi's in several heads. {NOT_HERE} Small biases of "
        "keys and queries beside rotary positions look alike in noisy or rounded answers: from "
        "exact ones rotary=True and biases=True recover them.",
        "unclear": ". Rotary positions with biases of keys and queries may be the reason: "
        f"{of_one}. Other possible reasons, which no learner here recovers: positions added to "
        "tokens, causal masks in more than one layer, biases by distance.",
    }
    return f"{ORDER}{said[found.kind]}"
