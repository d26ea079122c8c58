"""Which tensor was changed? Sequences at which one tensor alone can have moved the answer.

A target that is known to be different from a claim is asked, for several heads:

- single tokens and the token 0, of which f is x·Σv_h + c: c, or some v, was changed;
- for every head three offsets on its line (`claim_probes.Lines`), at the logits 1.5, S and 1.5·S.
  Saturated answers give the two numbers of δv_h on the line, so what they leave unexplained at the
  logit 1.5 comes from the head's scores;
- with the query token 0, where no W scores: the same lines for w alone.

For a head before a network, the token that the claim pools is asked by itself: f(X) = f([p(X)])
whatever the network is, unless the scores were changed. Before several heads single tokens show
the network of Σ B_h, and the query token 0 scores by w alone.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy

from unsoftmax.models import (
    AttentionLayer,
    FeedForward,
    MultiHead,
    MultiHeadTransformer,
    ReluNetwork,
    RotaryHead,
    RotaryHeads,
    RotaryLayer,
    SingleHead,
    Transformer,
)
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.neurons import Neurons
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.questions.answer_errors import AnswerErrors, Seen, seen_at
from unsoftmax.questions.changed_part import ChangedPartTuning, changed_part
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.claim_probes import ClaimProbeTuning, Lines, lines, random_sequences
from unsoftmax.questions.located import Located, Search
from unsoftmax.questions.rotary_search import (
    OneHead,
    RotarySearchTuning,
    changed_rotary,
    with_value,
)
from unsoftmax.questions.shared_turning import (
    SharedTurningTuning,
    shared_frequencies_changed,
)
from unsoftmax.questions.turned_part import TurnedPartTuning, changed_turned_part

DIVIDED = "how B is divided among heads"
BESIDE_RESIDUAL = "how B and the residual are divided"
FAR = "W or w, by so much that it cannot be told whose"
FAR_SCORES = "scores, by so much that it cannot be told whose"
NOT_LOOKED_FOR = "of this class it is not looked for."


@dataclass(frozen=True, slots=True)
class TensorSearchTuning:
    """Knobs of the search."""

    logit: float = 1.5
    """The logit at which scores are looked at: answers depend on it most between 1 and 2."""
    further: float = 1.5
    """The second saturated logit, in units of the first: the two give two numbers of v."""
    different: float = 0.5
    """A tensor counts as changed where a miss is more than this share of its bound: that it is
    another target is known already, and right answers miss by a quarter of their bounds."""
    trusted: float = 2.0
    """Logits that moved by more may have opened gates that were taken for closed."""
    rounded: float = 1e-12
    """Share of a change that may come from the rounding of the tokens."""
    singles: int = 2
    """Single tokens that v is looked at with."""
    layers: ChangedPartTuning = field(default=ChangedPartTuning())
    """How layers of vectors are searched."""
    rotary: RotarySearchTuning = field(default=RotarySearchTuning())
    """How a head with rotary positions is,"""
    turned: TurnedPartTuning = field(default=TurnedPartTuning())
    """and a layer with them,"""
    shared: SharedTurningTuning = field(default=SharedTurningTuning())
    """and frequencies of several heads."""


def changed_tensor(
    claim: Claim,
    errors: AnswerErrors,
    room: int,
    rng: np.random.Generator,
    probes: ClaimProbeTuning,
    tuning: TensorSearchTuning,
) -> Search:
    """Find what was changed with at most ``room`` queries, or why that cannot be told."""
    if not _looked_for(claim):
        return Located(None, NOT_LOOKED_FOR)
    if isinstance(claim.model, ReluNetwork):
        return Located("the network")
    if isinstance(claim.model, AttentionLayer | FeedForward):
        found = changed_part(claim, errors.alone(), room, rng, probes=probes, tuning=tuning.layers)
        return (yield from found)
    if isinstance(claim.model, RotaryHead):
        one = OneHead(claim, claim.model)
        return (yield from changed_rotary(one, errors.alone(), room, rng, tuning.rotary))
    if isinstance(claim.model, RotaryLayer):
        found = changed_turned_part(
            claim, errors.alone(), room, rng, probes=probes, tuning=tuning.turned
        )
        return (yield from found)
    search = TensorSearch(claim, errors.alone(), room, rng, probes, tuning)
    if isinstance(claim.model, Transformer):
        return (yield from search.before_network(claim))
    if isinstance(claim.model, MultiHeadTransformer):
        return (yield from search.before_joint_network(claim))
    if isinstance(claim.model, SingleHead | MultiHead):
        return (yield from search.among_heads(claim))
    if isinstance(claim.model, RotaryHeads):
        return (yield from search.among_turning_heads(claim))
    return Located(None, NOT_LOOKED_FOR)


def _looked_for(claim: Claim) -> bool:
    """Whether a search knows all of the claim: other activations, and more norms, would mislead."""
    maps = claim.leaves.values()
    neurons = [one for one in maps if isinstance(one, Neurons)]
    turned = [one for one in maps if isinstance(one, Attention) and one.frequencies is not None]
    plain = all(one.activation == "relu" and one.G is None for one in neurons)
    return plain and not (turned and any(isinstance(one, LayerNorm) for one in maps))


@dataclass(frozen=True, slots=True)
class LogitChange:
    """By how much a logit differs from the claim's, and what that may be off by."""

    change: float
    error: float
    of: float = 0.0
    """What it is a difference of."""

    def __sub__(self, other: LogitChange) -> LogitChange:
        with np.errstate(invalid="ignore"):
            change = np.nan_to_num(self.change - other.change, nan=np.inf)
        most = max(abs(self.change), abs(other.change))
        return LogitChange(change, self.error + other.error, most)

    def beyond(self, tuning: TensorSearchTuning) -> bool:
        """Whether the scores must have been changed."""
        rounded = tuning.rounded * (1 + self.of)
        return bool(abs(self.change) > tuning.different * self.error + rounded)


@dataclass(frozen=True, slots=True)
class TensorSearch:
    """A search for the tensor of a claim that a target does not have."""

    claim: Claim
    errors: AnswerErrors
    room: int
    rng: np.random.Generator
    probes: ClaimProbeTuning
    tuning: TensorSearchTuning

    def _moved(self, seen: Seen, weights: Sequence[float]) -> bool:
        """Whether Σ c_k (y_k − f̂(X_k)) is more than the answers' errors explain."""
        c = np.array(weights)
        allowed = np.abs(c) @ self.errors.of(seen)
        return bool(abs(c @ seen.missed) > self.tuning.different * allowed)

    # -- a head before a network

    def before_network(self, claim: Claim) -> Search:
        """Tell the network from W and w."""
        random = random_sequences(claim, self.rng, self.probes)
        unqueried = [np.vstack([X[:-1], 0.0 * X[-1:]]) for X in random[: self.tuning.singles]]
        assert claim.bends is not None
        pooled = [claim.bends.given(X[None]) for X in (*random, *unqueried)]
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
        return Located.of(names)

    def before_joint_network(self, claim: Claim) -> Search:
        """Tell what single tokens show of the network, W, and w.

        B is shown by single tokens but for how it is divided among heads, which only sequences
        show where the heads pool different tokens; with a residual any of two tokens do.
        """
        random = random_sequences(claim, self.rng, self.probes)
        unqueried = [np.vstack([X[:-1], 0.0 * X[-1:]]) for X in random[: self.tuning.singles]]
        singles = [X[-1:] for X in random]
        seen = yield from seen_at(claim, [*singles, *unqueried, *random], "which tensor")
        n, k = len(singles), len(singles) + len(unqueried)
        moved = [self._moved(seen[[j]], (1.0,)) for j in range(len(seen.y))]
        if any(moved[:n]):
            return Located("the network")
        residual = claim.model.residual is not None
        biased = bool(np.any(claim.model.w))
        if any(moved[n:k]):
            divided = BESIDE_RESIDUAL if residual else DIVIDED
            return Located.of([f"w, or {divided}" if biased or residual else "w"])
        return Located.of([("W" if biased else f"W, or {DIVIDED}")] if any(moved[k:]) else [])

    # -- several heads

    def among_heads(self, claim: Claim) -> Search:
        """Tell c, the v, the W and the w from each other, head by head where lines exist."""
        singles = [_direction(claim, self.rng)[None] for _ in range(self.tuning.singles)]
        zero, H = np.zeros(claim.dim), _count(claim)
        seen = yield from seen_at(claim, [zero[None], *singles], "which tensor")
        constant = self._moved(seen[[0]], (1.0,))
        values = any(self._moved(seen[[k, 0]], (1.0, -1.0)) for k in range(1, len(seen.y)))
        names, room = ["c"] if constant else [], self.room - len(seen.y)
        query = _query(claim, self.rng, self.probes)
        flags: dict[str, list[bool]] = {}
        looked = False
        biased = bool(np.any(claim.vectors(zero[None])))
        turn = -2 * self.tuning.logit if biased and room > 4 * H + 1 else None
        found = lines(claim, query, turn, self.rng, self.probes)
        if found is None and turn is not None:
            turn = None
            found = lines(claim, query, None, self.rng, self.probes)
        if found is not None and turn is not None:
            flags, looked = (yield from self._scored(found, (zero, query), values)), True
        elif found is not None and room > 3 * (H + 1):
            looked = True
            flags = yield from self._scored(found, (query,), values)
            if first := flags.pop("first", []):
                own = "W or w" if biased else "w" if (yield from self._unscored(query)) else "W"
                flags[own] = first
        if values and not any(flags.get("v", ())):
            names.append("v")
        named = (_of_heads(claim, tensor, some) for tensor, some in flags.items() if any(some))
        names += named
        return Located.of(names) if looked else Located.of(names, _unlooked(claim, found))

    # -- several heads with rotary positions

    def among_turning_heads(self, claim: Claim) -> Search:
        """Tell c, the v and the scores head by head, and look at one head's scores alone.

        Where several heads' were changed, their frequencies may have been, which they share.
        """
        singles = [_direction(claim, self.rng)[None] for _ in range(self.tuning.singles)]
        zero, H = np.zeros(claim.dim), _count(claim)
        seen = yield from seen_at(claim, [zero[None], *singles], "which tensor")
        names = ["c"] if self._moved(seen[[0]], (1.0,)) else []
        values = any(self._moved(seen[[k, 0]], (1.0, -1.0)) for k in range(1, len(seen.y)))
        query = _query(claim, self.rng, self.probes)
        found = lines(claim, query, None, self.rng, self.probes)
        left = self.room - len(seen.y) - 3 * H - 1
        if found is None or left < 0:
            named = [*names, "v"] if values else names
            return Located.of(named, _unlooked(claim, found))
        flags = yield from self._scored(found, (query,), values)
        far = FAR in flags
        scored = flags.pop(FAR if far else "first")
        if sum(scored) > 1 and not (names or values):
            shared = shared_frequencies_changed(
                claim,
                self.errors,
                left,
                self.rng,
                probes=self.probes,
                tuning=self.tuning.shared,
            )
            if (yield from shared):
                return Located("frequencies")
        if far:
            return Located.of([*names, FAR_SCORES])
        if values and not any(flags["v"]):
            names.append("v")
        names += [_of_heads(claim, "v", flags["v"])] if any(flags["v"]) else []
        if sum(scored) == 1 and not names:
            return (yield from self._of_one(claim, scored.index(True), left))
        names += [_of_heads(claim, "scores", scored)] if any(scored) else []
        return Located.of(names)

    def _of_one(self, claim: Claim, h: int, room: int) -> Search:
        """Tell which tensor one head's scores are changed by."""
        one = OneHead(claim, with_value(claim.model.heads[h], claim.model.v[h]))
        found = yield from changed_rotary(one, self.errors, room, self.rng, self.tuning.rotary)
        if found.tensor is None or " or " in found.tensor:
            return Located(f"scores of head {h}")
        each = found.tensor.split(", ")
        return Located.of([f"{name} of head {h}" for name in each])

    # -- what lines of several heads show

    def _scored(
        self, found: Lines, queries: tuple[Array, ...], values: bool
    ) -> Generator[Round, Answers, dict[str, list[bool]]]:
        """Ask every head's line: at one query token, or at 0 and then at b.

        Returns which heads' "v" and "first" logits were changed; of two query tokens "w" and "W".
        Scores that moved far open other heads' gates as well: then no head can be named.
        """
        heads, first = range(len(found.rises)), queries[0]
        low, high = self.tuning.logit, self.tuning.further * found.saturated
        asked = [found.sequence(None, 0.0, query) for query in queries]
        asked += [found.sequence(h, low, query) for query in queries for h in heads]
        asked += [found.sequence(h, at, first) for at in (found.saturated, high) for h in heads]
        seen = yield from seen_at(self.claim, asked, "which head")
        steps = len(queries) + len(heads) * np.arange(len(queries) + 2)
        *lows, saturated, further = ([int(step) + h for h in heads] for step in steps)
        base = [k for k in range(len(queries))]
        moved = [
            any(self._moved(seen[[k, 0]], (1.0, -1.0)) for k in (saturated[h], further[h]))
            for h in heads
        ]
        # the value of the offset at the low logit, from those at S and 1.5 S
        share = (low - found.saturated) / (high - found.saturated)
        logits = []
        for k, at in zip(base, lows, strict=True):
            logits.append(
                [self._logit(seen, (at[h], k, saturated[h], further[h], 0), share) for h in heads]
            )
        if max(abs(one.change) for every in logits for one in every) > self.tuning.trusted:
            return {FAR: [True] * len(heads)}
        flags = {"v": [values and some for some in moved]}
        if len(queries) == 1:
            return flags | {"first": [changed.beyond(self.tuning) for changed in logits[0]]}
        both = zip(*logits, strict=True)
        return flags | {
            "w": [changed.beyond(self.tuning) for changed in logits[0]],
            "W": [(at_b - at_0).beyond(self.tuning) for at_0, at_b in both],
        }

    def _logit(self, seen: Seen, at: tuple[int, ...], share: float) -> LogitChange:
        """Return by how much a logit differs from the claim's, whatever v is.

        ``at`` are the places of the answer, of its base, and of the saturated answers and theirs.
        """
        errors = self.errors.of(seen)
        one, base, saturated, further, first = at

        def read(y: Array) -> tuple[float, float]:
            value = (1 - share) * y[saturated] + share * y[further] - y[first]
            return float(y[one] - y[base]), float(value)

        (taken, value), (taken_0, value_0) = read(seen.y), read(seen.at.predicted)
        own = errors[one] + errors[base]
        of_value = (1 + abs(share)) * errors[saturated] + abs(share) * errors[further]
        if not value or not value_0:
            return LogitChange(0.0, np.inf)
        with np.errstate(all="ignore"):
            weight, weight_0 = taken / value, taken_0 / value_0
            error = (own + abs(weight) * (of_value + errors[first])) / abs(value)
            # tokens are on one line but for float64's rounding
            error += self.tuning.rounded * abs(weight * (value / value_0 - 1))
            error /= weight * (1 - weight)
            change = scipy.special.logit(weight) - scipy.special.logit(weight_0)
        if not 0 < weight < 1:
            return LogitChange(np.inf, abs(float(of_value / value_0)))
        return LogitChange(float(change), float(error))

    def _unscored(self, offset: Array) -> Generator[Round, Answers, bool]:
        """Whether there is a w although the claim has none: with the query token 0 no W scores."""
        asked = [np.vstack([offset, 0.0 * offset]), offset[None], 0.0 * offset[None]]
        seen = yield from seen_at(self.claim, asked, "which tensor")
        # without w half the offset's value is seen, whatever v is
        return self._moved(seen, (1.0, -0.5, -0.5))


def _count(claim: Claim) -> int:
    return 0 if claim.heads is None else len(claim.heads.Q)


def _unlooked(claim: Claim, found: Lines | None) -> str:
    """Say why heads were not looked at one by one."""
    if found is not None:
        return f"the questions left do not suffice to look at {_count(claim)} heads one by one."
    if _count(claim) > claim.dim:
        return "with more heads than dimensions no question shows one head alone."
    return "some heads' scores are 0, or depend on each other: no question shows one head alone."


def _of_heads(claim: Claim, tensor: str, changed: list[bool]) -> str:
    """Say which heads' tensor was changed.

    Examples
    --------
    >>> from unsoftmax.models import MultiHead
    >>> claim = Claim(MultiHead(np.ones((3, 1, 1)), np.ones((3, 1))))
    >>> _of_heads(claim, "v", [True, False, True]), _of_heads(claim, "W", [True] * 3)
    ('v of heads 0 and 2', 'W of every head')
    """
    heads = [str(h) for h in range(len(changed)) if changed[h]]
    if tensor == FAR:
        return tensor
    if len(heads) == 1:
        return tensor if tensor in claim.model.tensors else f"{tensor} of head {heads[0]}"
    if len(heads) == len(changed):
        return f"{tensor} of every head"
    return f"{tensor} of heads {', '.join(heads[:-1])} and {heads[-1]}"


def _query(claim: Claim, rng: np.random.Generator, probes: ClaimProbeTuning) -> Array:
    """Return a token of the length that query tokens of random sequences have."""
    return np.asarray(random_sequences(claim, rng, probes)[probes.random // 2][-1])


def _direction(claim: Claim, rng: np.random.Generator) -> Array:
    x = rng.standard_normal(claim.dim) / np.sqrt(claim.dim)
    return np.asarray(x.astype(np.float32), dtype=np.float64)
