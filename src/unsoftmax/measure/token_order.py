"""Whether answers depend on the order of tokens, and how their weights change with distance.

Attention without positions does not notice when the tokens before the last one change places.
Where answers do, one token x among zeros is moved from distance to distance, the last token being
a zero too. Scores that are products with the query token, as rotary ones are, are then 0 wherever
x stands; a bias per distance is all that is left of other scores:

    f([0 … x … 0]) − f([0 … 0]) = α(Δ) x·v      the same for all Δ     products
                                                falls as e^{−mΔ}       a slope m (ALiBi)
                                                0 from some Δ on       a window
                                                a multiple of x        a bias per distance (T5)

Anything else depends on what x is as well: products with a query bias, positions that are added to
tokens, or more layers than one. What answers vary by is read beside each, from tokens that are
nearly the same. *Queries*: 57, and 57 more where the order matters.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from unsoftmax.probes import FARTHEST, Array, Round, Sequences
from unsoftmax.protocol import Answers

PositionKind: TypeAlias = Literal["products", "slope", "window", "distance", "labels", "unclear"]


@dataclass(frozen=True, slots=True)
class TokenOrderTuning:
    """Knobs of looking for positions."""

    tokens: int = 64
    """Tokens of a sequence: windows and slopes that begin farther off do not show."""
    lengths: tuple[float, ...] = (
        *(2.0**-6, 2.0**-6, 2.0**-3, 2.0**-3, 0.5, 1.0),
        *(2.0, 4.0, 8.0, 16.0, 32.0, 2.0**7, 2.0**10, 2.0**12),
    )
    """Norms of tokens, the shortest first. Biases by distance show where they are short and scores
    are small, products where they are long, whatever the size of W."""
    near: float = 2.0**-8
    """Tokens that are nearly the same differ by this share: more than half precision rounds."""
    by_order: float = 16.0
    """The order matters where it moves answers by so many times what nearly the same tokens do,
    these or shorter ones,"""
    share: float = 2.0**-6
    """and by this share of what tokens add to answers: what is nearly the same may be the same to
    a target of few bits,"""
    rounding: float = 2.0**-7
    """and by this share of answers: sums that are rounded in another order move less,"""
    several: int = 3
    """at so many lengths."""
    long: int = 3
    for_labels: int = 24
    """Labels hide most changes: so many sequences more are asked, of the largest lengths."""
    directions: int = 2
    alone: tuple[float, ...] = (1.0, 64.0)
    """Norms of a token that is alone among zeros, in so many directions."""
    beside: float = 2.0**-11
    """A token that is nearly the same differs from it by this share."""
    by_distance: float = 2.0
    """Its weight changes with distance where answers do by so many times what a token that is
    nearly the same changes. Larger: small biases pass for none, and positions for rotary ones."""
    alike: float = 0.01
    """Slopes, and answers per norm of a token, are the same within this share."""
    most_labels: int = 2
    """Answers of so few values are labels, which say nothing of weights."""
    seed: int = 83
    """Which stream of random numbers draws tokens."""


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
    tuning : TokenOrderTuning
        Knobs.
    """

    dim: int
    longest: float = FARTHEST
    most: float = np.inf
    tolerance: float = 0.0
    tuning: TokenOrderTuning = TokenOrderTuning()

    @property
    def tokens(self) -> int:
        """Tokens of the sequences that are asked."""
        return int(min(self.tuning.tokens, self.most))

    def order_matters(self) -> Generator[Round, Answers, bool]:
        """Ask sequences in two orders: whether answers change. Two tokens have one order."""
        if self.tokens < 3:
            return False
        rng, tuning = np.random.default_rng(self.tuning.seed), self.tuning
        lengths = np.minimum(tuning.lengths, self.longest / 2)
        changed, labels = yield from self._changes(rng, lengths)
        if labels:
            more = np.resize(lengths[-tuning.long :], tuning.for_labels)
            changed, _ = yield from self._changes(rng, more)
        return changed >= tuning.several

    def _changes(
        self, rng: np.random.Generator, lengths: Array
    ) -> Generator[Round, Answers, tuple[int, bool]]:
        """Ask a sequence of each length in two orders: how many change; whether all are labels."""
        tokens, tuning = self.tokens, self.tuning
        x = rng.standard_normal((len(lengths), tokens, self.dim))
        x *= (lengths / np.linalg.norm(x, axis=2).max(axis=1))[:, None, None]
        X = x.astype(np.float32).astype(np.float64)
        near = X * (1 + tuning.near * rng.choice([-1.0, 1.0], X.shape))
        order = [*range(tokens - 1)[::-1], tokens - 1]
        families = [X, near, X[:, order], near[:, order], np.zeros((1, tokens, self.dim))]
        answers = yield [_asked(x, "order of tokens") for x in families]
        *answered, nothing = _as_columns(answers)
        here, nearly, there, there_nearly = answered
        moved = np.abs(here + nearly - there - there_nearly) / 2
        varies = np.maximum(np.abs(here - nearly), np.abs(there - there_nearly))
        varies = np.maximum.accumulate(varies, axis=0)  # answers may be off whatever is asked
        size, beyond = (np.max(np.abs([y - c for y in answered]), axis=0) for c in (0.0, nothing))
        least = np.maximum(tuning.share * beyond, tuning.rounding * size)
        changed = (moved > tuning.by_order * varies) & (moved > least)
        changed &= moved > tuning.by_order * self.tolerance
        labels = 1 < len(np.unique(answered)) <= tuning.most_labels
        return int(np.max(np.count_nonzero(changed, axis=0))), labels

    def position_kind(self) -> Generator[Round, Answers, Positions]:
        """Ask one token at several distances among zeros: how its weight changes with distance."""
        n, dim, tuning = self.tokens, self.dim, self.tuning
        distances = np.unique(np.minimum(2 ** np.arange(n.bit_length()), n - 1))
        x = np.random.default_rng(tuning.seed + 1).standard_normal((tuning.directions, dim))
        x = (x / np.linalg.norm(x, axis=1)[:, None]).astype(np.float32).astype(np.float64)
        lengths = np.array(tuning.alone) * min(1.0, self.longest / 2 / max(tuning.alone))
        X = np.zeros((len(x), len(lengths), len(distances), n, dim))
        places = np.arange(len(distances)), n - 1 - distances
        X[:, :, *places] = lengths[:, None, None] * x[:, None, None]
        nearly = X * (1 + tuning.beside * np.where(np.arange(dim) % 2, -1.0, 1.0))
        families = [X.reshape(-1, n, dim), nearly.reshape(-1, n, dim), np.zeros((1, n, dim))]
        answers = yield [_asked(x, "one token at several distances") for x in families]
        *answered, nothing = _as_columns(answers)
        widest = int(np.argmax(np.ptp(answered[0], axis=0)))
        here, beside = ((y - nothing)[:, widest].reshape(X.shape[:3]) for y in answered)
        if len(np.unique([here, beside])) <= tuning.most_labels:
            return Positions("labels")
        # a direction at right angles to v says nothing
        told = int(np.argmax(np.max(np.abs(here), axis=(1, 2))))
        found = _read(here[told], np.abs(beside - here)[told], distances, lengths, tuning)
        return replace(found, constant=float(nothing[0, widest]))


def _read(
    weighed: Array, varies: Array, distances: Array, lengths: Array, tuning: TokenOrderTuning
) -> Positions:
    """Say what weights α(Δ) x·v are, (lengths, distances), that vary by so much."""
    spread = np.ptp(weighed, axis=1)
    if np.all(spread <= tuning.by_distance * varies.max(axis=1)):
        return Positions("products")
    per_norm = weighed / lengths[:, None]
    size = float(np.max(np.abs(per_norm)))
    if not size or np.max(np.abs(per_norm - per_norm[0])) > tuning.alike * size:
        return Positions("unclear")
    seen = weighed[0]
    counts = np.abs(seen) > tuning.near * size * lengths[0]
    first = int(np.argmin(counts)) if not counts.all() else len(counts)
    alike = np.abs(seen[:first] - seen[:1]) <= tuning.alike * np.abs(seen[:1])
    if 0 < first < len(counts) and not counts[first:].any() and alike.all():
        return Positions("window", window=(int(distances[first - 1]), int(distances[first])))
    steady = np.flatnonzero(counts & (seen * seen[0] > 0))
    slopes = -np.diff(np.log(np.abs(seen[steady]))) / np.diff(distances[steady])
    if len(slopes) > 1 and slopes[0] > 0 and np.ptp(slopes) <= tuning.alike * slopes[0]:
        return Positions("slope", slope=float(slopes[0]))
    return Positions("distance")


def _asked(X: Array, phase: str) -> Sequences:
    return Sequences(X, phase=phase, purpose="check")


def _as_columns(answers: Answers) -> list[Array]:
    """Return answers (n, m), m = 1 where they are numbers."""
    return [y.reshape(len(y), -1) for y in answers]
