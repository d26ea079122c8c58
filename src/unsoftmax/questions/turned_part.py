"""Which tensor of a layer with rotary positions was changed? Its share of the answers tells.

All tokens lie in few planes. In [x; y; …; y] head h pools p_h = y + σ_h (x − y), and Δ, the change
of the answer from the claim's, over many sequences of one plane says:

- c was changed: Δ is the same in all of them; the residual: Δ is the last token or its opposite;
- O_h: Δ = δO_h V p_h, linear in the two coordinates of p_h, which differ from head to head;
- V_g: Δ = Σ O_h δV p_h, linear in those of all heads of the group, and in the columns of their O;
- scores: Δ = Σ δσ_h M_h (x − y), over one head if Q_h or its bias was changed, over a group by K_g
  or its bias, over all heads by the frequencies.

Then one head alone is looked at (`rotary_search`), in a number of the answer in which the heads
whose scores were changed as well are not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.models import RotaryHead, RotaryLayer
from unsoftmax.probes import Array
from unsoftmax.questions.answer_errors import AnswerErrors, seen_at
from unsoftmax.questions.changed_part import (
    RESIDUAL,
    SEVERAL,
    ChangedPartTuning,
    Plane,
    SumChange,
)
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.claim_probes import ClaimProbeTuning
from unsoftmax.questions.located import NEAR, Located, Search
from unsoftmax.questions.rotary_search import (
    OneHead,
    RotarySearchTuning,
    changed_rotary,
)

SEVERAL_HERE = (
    f"{SEVERAL} Rows of K and Q in another layout change two tensors at once; so does one O beside "
    "value biases, which are part of c."
)


@dataclass(frozen=True, slots=True)
class TurnedPartTuning:
    """Knobs of the search."""

    planes: int = 2
    """Planes that tokens are taken from. More: fewer changes that one of them hardly shows, and
    fewer questions left for one head's scores."""
    fillers: tuple[int, ...] = (1, 8, 3)
    """So many query tokens end a sequence, in turn: slow planes turn further beside many."""
    apart: float = 1e-3
    """A head is looked at alone where so large a share of its O is outside of the others'. Smaller:
    what is left is read no better than its name can be trusted."""
    part: ChangedPartTuning = field(default=ChangedPartTuning())
    """How changes are compared with their bounds."""
    rotary: RotarySearchTuning = field(default=RotarySearchTuning())
    """How one head's scores are looked at."""


@dataclass(frozen=True, slots=True)
class PlaneChange:
    """What was answered to the sequences of one plane."""

    claim: Claim
    change: SumChange
    offsets: Array
    """x − y, (K, d)."""
    at_offsets: Array
    """Their coordinates, (K, 2),"""
    at_last: Array
    """and those of y."""
    last: Array
    """y, (K, d)."""
    shares: Array
    """σ_h by the claim, (K, H)."""
    tuning: ChangedPartTuning

    def simply(self) -> list[str]:
        """Name what is no head and explains the misses."""
        K, m = self.change.change.shape
        found = {"c": self.change.left(np.ones((K, 1)))}
        if self.claim.dim == m:
            x = -self.last if not self.claim.model.residual else self.last
            found[RESIDUAL] = (self.change + x).left(np.zeros((K, 0)))
        return self._explained(found)

    def values(self) -> list[str]:
        """Name the O and the V that explain them.

        Of one head what O explains V explains too, but in the columns of O alone.
        """
        found: dict[str, float] = {}
        for g, group in enumerate(_groups(self.claim.model)):
            pooled = [self.at_last + self.shares[:, [h]] * self.at_offsets for h in group]
            each = [self.change.left(one) for one in pooled]
            shared, within = len(group) > 1, self._within(group)
            if shared or within > self.tuning.explained:
                found |= {f"O of head {h}": left for h, left in zip(group, each, strict=True)}
            if not shared or min(each) > self.tuning.explained:
                found[f"V of group {g}"] = max(within, self.change.left(np.hstack(pooled)))
        return self._explained(found)

    def _within(self, group: tuple[int, ...]) -> float:
        """Return what is left outside of the columns of a group's O, as a share of its bounds."""
        outputs = np.hstack([self.claim.model.O[h] for h in group])
        U, sizes, _ = np.linalg.svd(outputs, full_matrices=False)
        U = U[:, sizes > self.tuning.rank * sizes.max(initial=0.0)]
        off = np.eye(len(U)) - U @ U.T
        change, errors = self.change.change, self.change.errors
        bounds = errors @ np.abs(off) + self.tuning.rounded * np.abs(change).max()
        return float(np.max(np.abs(change @ off) / bounds))

    def by_scores(self, heads: tuple[int, ...]) -> bool:
        """Whether changed scores of these heads explain them."""
        largest = 0.0
        if not self.change.usable or len(heads) >= self.change.change.shape[1]:
            return False
        directions = np.stack([self._mapped(h) for h in heads], axis=2)
        for k, (change, error) in enumerate(
            zip(self.change.change, self.change.errors, strict=True)
        ):
            columns = directions[k] / error[:, None]
            lengths = np.linalg.norm(columns, axis=0)
            columns = columns / np.where(lengths > 0, lengths, 1.0)
            inverse = np.linalg.pinv(columns, self.tuning.rank)
            scaled = change / error
            off = scaled - columns @ (inverse @ scaled)
            bounds = 1 + np.abs(columns) @ np.abs(inverse).sum(axis=1)
            bounds = bounds + self.tuning.rounded * np.abs(scaled).max()
            largest = max(largest, float(np.max(np.abs(off) / bounds)))
        return largest <= self.tuning.explained

    def _mapped(self, h: int) -> Array:
        product = self.claim.model.values_of(h)
        return np.asarray(self.offsets @ product.right.T @ product.left.T)

    def _explained(self, left: dict[str, float]) -> list[str]:
        return [name for name, share in left.items() if share <= self.tuning.explained]


def changed_turned_part(
    claim: Claim,
    errors: AnswerErrors,
    room: int,
    rng: np.random.Generator,
    *,
    probes: ClaimProbeTuning,
    tuning: TurnedPartTuning,
) -> Search:
    """Find what was changed of a layer with at most ``room`` queries, or why that is not told."""
    part = tuning.part
    planes = [Plane.drawn(claim, rng, probes, part) for _ in range(tuning.planes)]
    sequences = [_filled(plane.sequences, tuning.fillers) for plane in planes]
    every = [X for some in sequences for X in some]
    if len(every) > room:
        return Located(None, "no questions are left.")
    seen = yield from seen_at(claim, every, "which tensor")
    bounds = errors.of(seen)
    share = float(np.max(np.abs(seen.missed) / bounds))
    if share <= part.nothing:
        return Located(None, NEAR)
    asked, start = [], 0
    for plane, some in zip(planes, sequences, strict=True):
        rows = slice(start, start + len(some))
        change = SumChange(seen.missed[rows], None, bounds[rows], part)
        asked.append(_plane_change(claim, change, plane, some, part))
        start = rows.stop
    names = sorted(set.intersection(*(set(one.simply()) for one in asked)))
    if names and share > part.clear:
        return _named(names, part)
    names += sorted(set.intersection(*(set(one.values()) for one in asked)))
    heads = _scored_heads(claim, asked)
    if heads is None:
        return _named(names, part)
    if names:
        return Located(None, NEAR)
    found = yield from _of_scores(claim, heads, errors, room - len(every), rng, tuning)
    # near what answers hide fewer heads explain the answers than were changed
    told = share > part.clear or " or " not in str(found.tensor)
    return found if told else Located(None, NEAR)


def _filled(sequences: list[Array], fillers: tuple[int, ...]) -> list[Array]:
    """End sequences of two tokens with the last one so many times, in turn."""
    return [
        X if len(X) == 1 else np.vstack([X, *[X[-1:]] * (fillers[k % len(fillers)] - 1)])
        for k, X in enumerate(sequences)
    ]


def _plane_change(
    claim: Claim,
    change: SumChange,
    plane: Plane,
    sequences: list[Array],
    tuning: ChangedPartTuning,
) -> PlaneChange:
    shares = np.array([claim.model.attention(X[None])[0, :, 0] * (len(X) > 1) for X in sequences])
    last = np.array([X[-1] for X in sequences])
    offsets = np.array([X[0] - X[-1] for X in sequences])
    return PlaneChange(claim, change, offsets, plane.offsets, plane.queries, last, shares, tuning)


def _scored_heads(claim: Claim, asked: list[PlaneChange]) -> tuple[int, ...] | None:
    """Return the fewest heads whose changed scores explain all: one, a group or all; or None."""
    every = tuple(range(claim.model.H))
    candidates = [*((h,) for h in every), *_groups(claim.model), every]
    return next((some for some in candidates if all(one.by_scores(some) for one in asked)), None)


def _of_scores(
    claim: Claim,
    heads: tuple[int, ...],
    errors: AnswerErrors,
    room: int,
    rng: np.random.Generator,
    tuning: TurnedPartTuning,
) -> Search:
    """Tell which tensor the scores of heads were changed by."""
    names = _candidates(claim, heads)
    # what moves the scores of several groups may be more than one tensor: frequencies must show
    unclear = (
        Located(" or ".join(names)) if names != ["frequencies"] else Located(None, SEVERAL_HERE)
    )
    one = _alone(claim, heads, tuning)
    if one is None:
        return unclear
    found = yield from changed_rotary(one, errors, room, rng, tuning.rotary)
    if found.tensor is None:
        return unclear
    told = [_named_of(claim.model, name, heads[0]) for name in found.tensor.split(", ")]
    if len(heads) > 1 and not set(told) <= set(names):
        return Located(None, SEVERAL_HERE)
    return Located(", ".join(told))


def _candidates(claim: Claim, heads: tuple[int, ...]) -> list[str]:
    """List what changes the scores of these heads and of no others."""
    every, h = len(heads) == claim.model.H, heads[0]
    names = ["Q", "q_bias"] if len(heads) == 1 else []
    if heads in _groups(claim.model):
        names += ["K", "k_bias"]
    return [
        _named_of(claim.model, name, h) for name in (*names, *(["frequencies"] if every else []))
    ]


def _alone(claim: Claim, heads: tuple[int, ...], tuning: TurnedPartTuning) -> OneHead | None:
    """Choose a number of the answer in which the first of some heads is seen, and no other."""
    layer, h = claim.model, heads[0]
    product = layer.values_of(h)
    seen = product.left @ np.linalg.qr(product.right.T)[1].T
    whole = float(np.linalg.norm(seen))
    if len(heads) > 1:
        others = np.hstack([layer.O[other] for other in heads[1:]])
        U, sizes, _ = np.linalg.svd(others, full_matrices=False)
        U = U[:, sizes > tuning.part.rank * sizes.max(initial=0.0)]
        seen = seen - U @ (U.T @ seen)
        seen = seen - U @ (U.T @ seen)
    if not float(np.linalg.norm(seen)) > tuning.apart * whole:
        return None
    direction = np.linalg.svd(seen, full_matrices=False)[0][:, 0]
    value = (direction @ product.left) @ product.right
    return OneHead(claim, _head(claim.model, h, value), direction)


def _named(names: list[str], tuning: ChangedPartTuning) -> Located:
    if len(names) > tuning.most:
        return Located(None, NEAR)
    return Located(" or ".join(names)) if names else Located(None, SEVERAL_HERE)


def _groups(layer: RotaryLayer) -> list[tuple[int, ...]]:
    places = layer.groups.tolist()
    return [tuple(h for h in range(layer.H) if places[h] == g) for g in range(layer.G)]


def _head(layer: RotaryLayer, h: int, v: Array) -> RotaryHead:
    g = layer.groups[h]
    biases = {"k_bias": layer.k_bias[g], "q_bias": layer.q_bias[h]}
    return RotaryHead(layer.K[g], layer.Q[h], v, layer.rotary, **biases)


def _named_of(layer: RotaryLayer, tensor: str, head: int) -> str:
    if tensor == "frequencies":
        return tensor
    shared = tensor in ("K", "k_bias", "V")
    return f"{tensor} of group {layer.groups[head]}" if shared else f"{tensor} of head {head}"
