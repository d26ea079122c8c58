"""Which tensor was changed? Sequences at which one tensor alone can have moved the answer.

A target that is known to be different from a claim is asked, for several heads:

- single tokens and the token 0, of which f is x·Σv_h + c: c, or some v, was changed;
- for every head three offsets on its line (`claim_probes.Lines`), at the logits 1.5, S and 1.5·S.
  Saturated answers give the two numbers of δv_h on the line, so what they leave unexplained at the
  logit 1.5 comes from the head's scores;
- with the query token 0, where no W scores: the same lines for w alone.

For a head before a network, the token that the claim pools is asked by itself: f(X) = f([p(X)])
whatever the network is, unless the scores were changed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy

from unsoftmax.audit.answer_errors import AnswerErrors, Seen, seen_at
from unsoftmax.audit.claim_probes import ClaimProbeTuning, lines, random_sequences
from unsoftmax.audit.claims import Claim, HeadsClaim, NetworkClaim, TransformerClaim
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers

Search: TypeAlias = Generator[Round, Answers, str | None]


@dataclass(frozen=True, slots=True)
class TensorSearchTuning:
    """Knobs of the search."""

    logit: float = 1.5
    """The logit at which scores are looked at: answers depend on it most between 1 and 2."""
    further: float = 1.5
    """The second saturated logit, in units of the first: the two give two numbers of v."""
    different: float = 1.0
    """A tensor counts as changed where a miss is so many times its bound; that it is another target
    is known already."""
    hidden: float = 1e-3
    """Share of what a changed v moves answers by that changed scores may hide in: tokens are
    rounded, so that logits are not quite the ones wanted."""
    singles: int = 2
    """Single tokens that v is looked at with."""


def changed_tensor(
    claim: Claim,
    errors: AnswerErrors,
    room: int,
    rng: np.random.Generator,
    probes: ClaimProbeTuning,
    tuning: TensorSearchTuning,
) -> Search:
    """Find what was changed with at most ``room`` queries; None where that cannot be told."""
    if isinstance(claim, NetworkClaim):
        return "the network"
    search = TensorSearch(claim, errors.alone(), room, rng, probes, tuning)
    if isinstance(claim, TransformerClaim):
        return (yield from search.before_network(claim))
    if isinstance(claim, HeadsClaim):
        return (yield from search.among_heads(claim))
    return None


@dataclass(frozen=True, slots=True)
class Scored:
    """What lines at one query token show of each head."""

    values: list[bool]
    scores: list[bool]


@dataclass(frozen=True, slots=True)
class TensorSearch:
    """A search for the tensor of a claim that a target does not have."""

    claim: Claim
    errors: AnswerErrors
    room: int
    rng: np.random.Generator
    probes: ClaimProbeTuning
    tuning: TensorSearchTuning

    def _moved(self, seen: Seen, weights: Sequence[float], hidden: float = 0.0) -> bool:
        """Whether Σ c_k (y_k − f̂(X_k)) is more than the answers' errors explain.

        ``hidden`` is a share of the misses that is nothing.
        """
        c = np.array(weights)
        allowed = np.abs(c) @ (self.errors.of(seen) + hidden * np.abs(seen.missed))
        return bool(abs(c @ seen.missed) > self.tuning.different * allowed)

    # -- a head before a network

    def before_network(self, claim: TransformerClaim) -> Search:
        """Tell the network from W and w."""
        random = random_sequences(claim, self.rng, self.probes)
        unqueried = [np.vstack([X[:-1], 0.0 * X[-1:]]) for X in random[: self.tuning.singles]]
        pooled = [claim.pooled(X[None]) for X in (*random, *unqueried)]
        asked = [*random, *unqueried, *pooled]
        seen = yield from seen_at(claim, asked, "which tensor")
        n, k = len(random), len(random) + len(unqueried)
        apart = [self._moved(seen[[j, k + j]], (1.0, -1.0)) for j in range(k)]
        network = any(self._moved(seen[[k + j]], (1.0,)) for j in range(k))
        names = ["the network"] if network else []
        if any(apart[n:]):
            names.append("w")
        elif any(apart):
            names.append("W")
        return ", ".join(names) or None

    # -- several heads

    def among_heads(self, claim: HeadsClaim) -> Search:
        """Tell c, the v, the W and the w from each other, head by head where lines exist."""
        singles = [_direction(claim, self.rng)[None] for _ in range(self.tuning.singles)]
        zero = np.zeros((1, claim.dim))
        seen = yield from seen_at(claim, [zero, *singles], "which tensor")
        constant = self._moved(seen[[0]], (1.0,))
        values = any(self._moved(seen[[k, 0]], (1.0, -1.0)) for k in range(1, len(seen.y)))
        names = ["c"] if constant else []
        room = self.room - len(seen.y)
        H = len(claim.v)
        if room <= 3 * H:
            return ", ".join([*names, *(["v"] if values else [])]) or None
        scored = yield from self._scored(claim, _query(claim, self.rng, self.probes))
        by_bias = yield from self._unqueried(claim, values, room - 3 * H - 1)
        names += self._named(claim, values, scored, by_bias)
        return ", ".join(names) or None

    def _named(
        self, claim: HeadsClaim, values: bool, scored: Scored | None, by_bias: list[bool] | bool
    ) -> list[str]:
        H = len(claim.v)
        some_bias = any(by_bias) if isinstance(by_bias, list) else by_bias
        if scored is None:
            return (["v"] if values else []) + (["w"] if some_bias else [])
        # equal sums of all v say that none was changed: gates that open elsewhere move answers, too
        changed_v = [values and moved for moved in scored.values]
        scores = (
            scored.scores
            if values
            else [a or b for a, b in zip(scored.scores, scored.values, strict=True)]
        )
        bias = by_bias if isinstance(by_bias, list) else [some_bias and moved for moved in scores]
        changed_W = [moved and not by_w for moved, by_w in zip(scores, bias, strict=True)]
        names = []
        for tensor, flags in (("v", changed_v), ("W", changed_W), ("w", bias)):
            if H > 1 and all(flags):
                names.append(f"{tensor} of every head")
            else:
                names += [claim.named(tensor, h) for h in range(H) if flags[h]]
        return names

    def _scored(self, claim: HeadsClaim, query: Array) -> Generator[Round, Answers, Scored | None]:
        """Ask every head's line at a query token."""
        found = lines(claim, query, self.rng, self.probes)
        if found is None:
            return None
        logits = (self.tuning.logit, found.saturated, self.tuning.further * found.saturated)
        asked = [found.sequence(None)]
        asked += [found.sequence(h, logit) for h in range(len(claim.v)) for logit in logits]
        seen = yield from seen_at(claim, asked, "which head")
        share = float(scipy.special.expit(logits[0]))
        # δv_h on the line is A + l·B: from its values at l = S and l = 1.5 S to that at 1.5
        slope = (logits[0] - logits[1]) / (logits[2] - logits[1])
        explained = (share * (1 - slope), share * slope)
        values, scores = [], []
        for h in range(len(claim.v)):
            at = [0, 1 + 3 * h, 2 + 3 * h, 3 + 3 * h]
            line = seen[at]
            values.append(any(self._moved(line[[k, 0]], (1.0, -1.0)) for k in (2, 3)))
            weights = (sum(explained) - 1.0, 1.0, -explained[0], -explained[1])
            scores.append(self._moved(line, weights, self.tuning.hidden))
        return Scored(values, scores)

    def _unqueried(
        self, claim: HeadsClaim, values: bool, room: int
    ) -> Generator[Round, Answers, list[bool] | bool]:
        """Look at w, head by head or all together, with the query token 0 that no W scores."""
        zero = np.zeros(claim.dim)
        if lines(claim, zero, self.rng, self.probes) is not None and 3 * len(claim.v) < room:
            scored = yield from self._scored(claim, zero)
            return False if scored is None else scored.scores
        unscored = not np.any(claim.vectors(zero[None]))
        if values and not unscored:
            return False
        offset = _query(claim, self.rng, self.probes)
        asked = [np.vstack([offset, zero]), offset[None], zero[None]]
        seen = yield from seen_at(claim, asked, "which tensor")
        # without w half the offset's value is seen, whatever v is
        return self._moved(seen, (1.0, -0.5, -0.5) if unscored else (1.0, 0.0, 0.0))


def _query(claim: HeadsClaim, rng: np.random.Generator, probes: ClaimProbeTuning) -> Array:
    """Return a token of the length that query tokens of random sequences have."""
    return np.asarray(random_sequences(claim, rng, probes)[probes.random // 2][-1])


def _direction(claim: HeadsClaim, rng: np.random.Generator) -> Array:
    x = rng.standard_normal(claim.dim) / np.sqrt(claim.dim)
    return np.asarray(x.astype(np.float32), dtype=np.float64)
