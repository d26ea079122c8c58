"""Which tensor of a head with rotary positions was changed? Scores that must stay alike if others.

Of several heads or a layer one head alone is looked at: what the others answer is taken off.

Sequences [x; y … y] with m query tokens have two values, x·v + c and y·v + c, which single tokens
show whatever v is. So an answer gives x's weight, and between two first tokens x and x̃ the logits
differ by D = (K x − K x̃)·R(m)(Q y + b_q): neither the fillers nor b_k are in it. Then

- with Q y′ + b_q = R(1 − m)(Q y + b_q), D of y, m = 1 and of y′, m are the same for every K;
- with K x′ = R(m − 1) K x, D of x, m = 1 and of x′, m are the same for every Q and b_q;
- for x_a, x_b and y that one plane alone sees, at a right angle, D_a² + D_b² is the same for
  every frequency.

A change of K breaks the second alone, one of Q or b_q the first, of the frequencies both but not
the third. At the query token 0 b_q alone is seen, and b_k where no D has changed but a logit has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy

from unsoftmax.models import RotaryHead
from unsoftmax.probes import Array
from unsoftmax.questions.answer_errors import AnswerErrors, Seen, seen_at
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.located import Located, Search

FEWER = "keys or queries are of a lower rank than their planes: no question shows one alone."
APART = "scores changed by so much that no weight can be read."


@dataclass(frozen=True, slots=True)
class RotarySearchTuning:
    """Knobs of the search."""

    fillers: int = 8
    """m, the query tokens of the longer sequences. More: slow planes turn further, and x has a
    smaller share."""
    tries: int = 16
    """Draws of tokens, of which the one is taken whose weights are read best."""
    logit: float = 1.5
    """Logits that tokens are scaled for,"""
    scales: tuple[float, ...] = (0.5, 1.0, 2.0)
    """times one of these."""
    solved: float = 1e-6
    """Tokens that are solved for are right to this share of their keys and queries."""
    different: float = 0.5
    """Differences count from this share of their bounds on: that the target is another one is
    known already."""
    clear: float = 8.0
    """Where no D has changed, b_k is named if a logit has changed by so many times the error of
    any D. Smaller: a K that moves all D of these tokens little by chance is called b_k."""
    rounded: float = 1e-5
    """Share of a change that may come from tokens, which are float32 numbers."""


TokenNames: TypeAlias = tuple[str, str, str]
"""First token, query token, and how often that is there."""

PAIRS: Mapping[str, tuple[TokenNames, TokenNames]] = {
    "near": (("x", "y", "1"), ("0", "y", "1")),
    "other query": (("x", "y'", "m"), ("0", "y'", "m")),
    "other key": (("x'", "y", "m"), ("0", "y", "m")),
    "keys": (("x", "y", "1"), ("x'", "y", "1")),
    "unqueried": (("x", "0", "1"), ("x'", "0", "1")),
    "plane, a": (("xa", "yp", "1"), ("0", "yp", "1")),
    "plane, b": (("xb", "yp", "1"), ("0", "yp", "1")),
}
"""Each D by its two sequences."""


@dataclass(frozen=True, slots=True)
class RotaryTokens:
    """Tokens whose scores must be alike, by name."""

    tokens: Mapping[str, Array]
    fillers: int

    @classmethod
    def drawn(
        cls, head: RotaryHead, rng: np.random.Generator, tuning: RotarySearchTuning
    ) -> RotaryTokens | None:
        """Draw tokens, and take those whose weights are read best; None if none can be solved."""
        best, found = 0.0, None
        for _ in range(tuning.tries):
            x, y = rng.standard_normal((2, head.dim)) / np.sqrt(head.dim)
            plane = int(rng.integers(len(head.rotary)))
            logit = abs(x @ head.W_at(1) @ y) or 1.0
            for scale in tuning.scales:
                s = float(np.sqrt(scale * tuning.logit / logit))
                one = cls._solved(head, s * x, s * y, plane, tuning)
                if one is None:
                    return None
                if (worth := one.worth(head)) > best:
                    best, found = worth, one
        return found

    @classmethod
    def _solved(
        cls, head: RotaryHead, x: Array, y: Array, plane: int, tuning: RotarySearchTuning
    ) -> RotaryTokens | None:
        m, turned = tuning.fillers, head.rotary.turned
        query = head.Q @ y + head.q_bias
        size = float(np.linalg.norm(query))
        corner = np.zeros((2, len(head.K)))
        corner[[0, 1], [2 * plane, 2 * plane + 1]] = np.sqrt(tuning.logit)
        wanted = {
            "x'": (head.K, turned(head.K @ x, np.array(m - 1.0))),
            "xa": (head.K, corner[0]),
            "xb": (head.K, corner[1]),
            "y'": (head.Q, turned(query, np.array(1.0 - m)) - head.q_bias),
            "yp": (head.Q, corner[0] - head.q_bias),
        }
        tokens = {"0": 0 * x, "x": x, "y": y}
        for name, (matrix, product) in wanted.items():
            token = np.linalg.lstsq(matrix, product, rcond=None)[0]
            missed = float(np.linalg.norm(matrix @ token - product))
            if missed > tuning.solved * (np.linalg.norm(product) + size):
                return None
            tokens[name] = token
        rounded = {k: t.astype(np.float32).astype(np.float64) for k, t in tokens.items()}
        return cls(rounded, m)

    @property
    def sequences(self) -> dict[TokenNames, Array]:
        """Every sequence that is asked, (N, d)."""
        made = {}
        for key in dict.fromkeys(one for pair in PAIRS.values() for one in pair):
            first, last, many = key
            fillers = self.fillers if many == "m" else 1
            made[key] = np.vstack([self.tokens[first], *[self.tokens[last]] * fillers])
        return made

    def worth(self, head: RotaryHead) -> float:
        """Return how well the worst of the weights is read, as a share of what answers are."""
        worst, asked = np.inf, self.sequences
        for many in "1m":
            some = {key: X for key, X in asked.items() if key[2] == many}
            X = np.array([*some.values()])
            weights = head.attention(X)[:, 0]
            values = (X[:, 0] - X[:, -1]) @ head.v
            sizes = np.linalg.norm(X, axis=2).max(axis=1) * np.linalg.norm(head.v) + abs(head.c)
            worst = min(worst, float(np.min(weights * (1 - weights) * np.abs(values) / sizes)))
        return worst


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """By how much a logit, or a difference of logits, differs from the claim's."""

    change: float
    error: float
    claimed: float
    largest: float
    """The largest change that it is made of."""

    def __sub__(self, other: ScoreChange) -> ScoreChange:
        return ScoreChange(
            self.change - other.change,
            self.error + other.error,
            self.claimed - other.claimed,
            max(self.largest, other.largest),
        )

    def squared(self) -> ScoreChange:
        """Return what the square differs by."""
        change = self.change * (2 * self.claimed + self.change)
        error = 2 * (abs(self.claimed) + abs(self.change)) * self.error
        return ScoreChange(change, error, self.claimed**2, abs(change))

    def beyond(self, tuning: RotarySearchTuning) -> bool:
        """Whether it is more than errors explain."""
        allowed = tuning.different * self.error + tuning.rounded * self.largest
        return bool(abs(self.change) > allowed + np.finfo(np.float64).tiny)


@dataclass(frozen=True, slots=True)
class OneHead:
    """One head of a claim, whose other heads are taken to be right."""

    claim: Claim
    head: RotaryHead
    """With the number that is looked at as its value."""
    direction: Array | None = None
    """Of vector answers: the weights (m,) of that number."""

    def alone(self, seen: Seen, errors: AnswerErrors, asked: Sequence[Array]) -> Array:
        """Return its answers, those of the claim, and what they may be off by, (3, B)."""
        y, predicted, bounds = seen.y, seen.at.predicted, errors.of(seen)
        if self.direction is not None:
            y, predicted = y @ self.direction, predicted @ self.direction
            bounds = bounds @ np.abs(self.direction)
        own = np.array([float(self.head(X[None])[0]) for X in asked])
        return np.array([y - (predicted - own), own, bounds])


def with_value(head: RotaryHead, v: Array) -> RotaryHead:
    """Return a head of the same scores with another value vector."""
    arrays = {name: array for name, array in head.arrays().items() if name not in ("v", "c")}
    return RotaryHead.from_arrays({**arrays, "v": v})


def changed_rotary(
    one: OneHead,
    errors: AnswerErrors,
    room: int,
    rng: np.random.Generator,
    tuning: RotarySearchTuning,
) -> Search:
    """Find what was changed with at most ``room`` queries, or why that cannot be told."""
    found = RotaryTokens.drawn(one.head, rng, tuning)
    if found is None:
        return Located(None, FEWER)
    sequences = found.sequences
    asked = [*(x[None] for x in found.tokens.values()), *sequences.values()]
    if len(asked) > room:
        return Located(None, "no questions are left.")
    seen = yield from seen_at(one.claim, asked, "which tensor")
    n, alone = len(found.tokens), one.alone(seen, errors, asked)
    missed, bounds = alone[0] - alone[1], alone[2]
    each: list[Read] = [(float(y), float(at), float(bound)) for y, at, bound in alone.T]
    values = dict(zip(found.tokens, each, strict=False))
    changed = np.abs(missed[:n]) > tuning.different * bounds[:n]
    names = ["c"] if changed[0] else []
    linear = missed[1:n] - missed[0]
    if np.any(np.abs(linear) > tuning.different * (bounds[1:n] + bounds[0])):
        names.append("v")
    logits: dict[TokenNames, ScoreChange] = {}
    for of, (first, last, many) in zip(each[n:], sequences, strict=True):
        read = _read(of, values[first], values[last])
        if read is None:
            return Located.of(names, APART)
        logits[first, last, many] = read
    turns = bool(np.any(one.head.rotary.folded))
    return Located.of([*names, *_of_scores(logits, turns, tuning)])


Read: TypeAlias = tuple[float, float, float]
"""An answer, the claim's, and what the answer may be off by."""


def _read(answer: Read, first: Read, last: Read) -> ScoreChange | None:
    """Return the change of the logit of the first token's weight; None where that is none."""
    weights = []
    for k in (0, 1):
        apart = first[k] - last[k]
        weights.append((answer[k] - last[k]) / apart if apart else np.nan)
    now, claimed = (float(p) for p in weights)
    if not (0 < now < 1 and 0 < claimed < 1):
        return None
    off = answer[2] + now * first[2] + (1 - now) * last[2]
    error = float(off / abs(first[0] - last[0]) / (now * (1 - now)))
    t = scipy.special.logit([now, claimed])
    change = float(t[0] - t[1])
    return ScoreChange(change, error, float(t[1]), abs(change))


def _of_scores(
    logits: Mapping[TokenNames, ScoreChange], turns: bool, tuning: RotarySearchTuning
) -> Sequence[str]:
    """Name what explains the changes of the logits; of planes that do not turn, all that may."""
    D = {name: logits[one] - logits[two] for name, (one, two) in PAIRS.items()}
    by_query = (D["near"] - D["other query"]).beyond(tuning)
    by_key = (D["near"] - D["other key"]).beyond(tuning)
    if by_query and by_key:
        a, b = D["plane, a"].squared(), D["plane, b"].squared()
        largest = max(one.largest for one in (a, b, *D.values()))
        both = ScoreChange(a.change + b.change, a.error + b.error, 0.0, largest)
        return ["K", "Q"] if both.beyond(tuning) else ["frequencies"]
    if by_key:
        return ["K"]
    if by_query:
        by_token = (D["keys"] - D["unqueried"]).beyond(tuning)
        by_bias = D["unqueried"].beyond(tuning)
        return [name for name, found in (("Q", by_token), ("q_bias", by_bias)) if found]
    if any(one.beyond(tuning) for one in D.values()):
        return [] if turns else ["K, Q or q_bias"]
    changes = [abs(one.change) for one in logits.values() if one.beyond(tuning)]
    # a change of K or Q that moves a logit so far would have to show beside the errors of D
    shown = max(changes, default=0.0) > tuning.clear * max(one.error for one in D.values())
    return ["k_bias"] if shown else []
