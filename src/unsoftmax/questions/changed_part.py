"""Which tensor of a layer was changed? Each one alone would explain the misses in its own way.

All tokens lie in few planes, where a sequence [t + a; t] has pooled tokens p_h = t + σ_h a. With
Δ the change of u(X) = Σ_h M_h p_h + c from the claim's, over many sequences of one plane:

- c was changed: Δ is the same in all of them;
- M_h: Δ = δM_h p_h, linear in the two coordinates of p_h, which differ from head to head;
- W_h or w_h: Δ is a multiple of M_h a, which gives the head's share of the token t + a, and with it
  its logit: α·(δw_h + δW_h t) for offsets αa tells which.

Behind a norm y = β + γ ẑ shows u but for its size: Δ = s·ẑ − û with one free s per sequence (and
without the mean over outputs), whatever was changed. A scale moves each number by its share of ẑ, a
shift by a constant, eps the size alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from unsoftmax.models import AttentionLayer, FeedForward, LayerNorm
from unsoftmax.models.attention import softmax, token_scores
from unsoftmax.probes import Array
from unsoftmax.questions.answer_errors import AnswerErrors, Seen, seen_at
from unsoftmax.questions.changed_neurons import NeuronSearchTuning, Ray, fits
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.claim_probes import ClaimProbeTuning, random_sequences
from unsoftmax.questions.located import NEAR, Located, Search

SCALE, SHIFT, EPS = (f"{name} of the norm" for name in ("scale", "shift", "eps"))
RESIDUAL = "the residual connection"
NEURONS = "A, b or B"
SEVERAL = "no change of one tensor alone explains the answers."
VALUE_BIAS = "M of one head beside value biases, which are part of c, changes two at once."
NORM = "a norm before the layer is not looked at by itself."


@dataclass(frozen=True, slots=True)
class Behind:
    """A norm behind a layer at sums u (B, m), or none."""

    norm: LayerNorm | None
    u: Array
    z: Array
    """ẑ."""
    factors: Array
    """γ/σ, (B, m)."""
    spread: Array
    """σ, (B, 1)."""

    @classmethod
    def of(cls, norm: LayerNorm | None, u: Array) -> Behind:
        """Evaluate it."""
        if norm is None or norm.before:
            return cls(None, u, np.zeros_like(u), np.ones_like(u), np.ones((len(u), 1)))
        centred = u - u.mean(axis=1, keepdims=True) if norm.centred else u
        spread = np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + norm.eps)
        spread = np.where(spread > 0, spread, 1.0)
        return cls(norm, u, norm.normalised(u), norm.scale / spread, spread)


@dataclass(frozen=True, slots=True)
class ChangedPartTuning:
    """Knobs of the search."""

    planes: int = 3
    """Planes that tokens are taken from. More: fewer changes that one of them hardly shows."""
    scored: int = 12
    """Sequences per plane with a query token of its own,"""
    unscored: int = 6
    """and with one that W does not score;"""
    singles: int = 3
    """and single tokens, which show M and c alone."""
    factors: tuple[float, ...] = (1.0, -0.6, 0.5, -1.4, 1.7, -0.3)
    """Logits of the sequences in turn, in units of the claim's own: shares of every size."""
    nothing: float = 0.5
    """Misses up to this share of their bounds are none."""
    explained: float = 1.0
    """A change explains the misses if it leaves no more than this share of their bounds."""
    clear: float = 8.0
    """From a miss of so many times its bound on, what explains all by fewer numbers is the reason;
    below, heads might explain them too, and are tried as well."""
    rounded: float = 1e-12
    """Share of the misses that may come from solving for the change."""
    rank: float = 1e-9
    """Coordinates that are so much smaller than others count as none."""
    sure: float = 1e6
    """B alone is named from misses of so many times their bounds on: then A and b, had they been
    changed, would have been found to explain the answers."""
    widest: float = 1e60
    """Answers that differ by more, in units of their errors, are not looked at."""
    neurons: NeuronSearchTuning = field(default=NeuronSearchTuning())
    """How A, b and B are told apart."""
    most: int = 3
    """So many tensors are named where several would explain the misses alike; more say nothing."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Sequences of one plane, and where their tokens are in it."""

    sequences: list[Array]
    offsets: Array
    """Coordinates of the offset of the first token from the last, (K, n)."""
    queries: Array
    """Coordinates of the last token, (K, n)."""
    constant: Array
    """The norm's shift as one more coordinate: 1 where there is one, (K, 0) or (K, 1)."""

    @classmethod
    def drawn(
        cls,
        claim: Claim,
        rng: np.random.Generator,
        probes: ClaimProbeTuning,
        tuning: ChangedPartTuning,
    ) -> Plane:
        """Draw a plane, and points in it where the claim's heads share between two tokens."""
        if isinstance(claim.model, AttentionLayer) and claim.before is not None:
            return _on_circle(claim, rng, tuning)
        a, t = rng.standard_normal((2, claim.dim)) / np.sqrt(claim.dim)
        u, w = claim.vectors(np.array([t, 0.0 * t]))
        by_query, by_bias = np.abs((u - w) @ a), np.abs(w @ a)
        root = by_bias + np.sqrt(by_bias**2 + 4 * probes.logit * by_query)
        both = _levels(2 * probes.logit, root, tuning.scored, probes)
        alone = _levels(probes.logit, by_bias, tuning.unscored, probes)
        turns = np.resize(tuning.factors, tuning.scored)
        singles = np.median(both) * np.linspace(0, 1, tuning.singles)
        rows = [
            *zip(both * turns, both, strict=True),
            *((alpha, 0.0) for alpha in alone * turns[: len(alone)]),
            *((0.0, beta) for beta in singles),
        ]
        sequences, kept = [], []
        for alpha, beta in rows:
            alpha, beta = (float(np.float32(x)) for x in (alpha, beta))
            tokens = np.array([beta * t + alpha * a, beta * t])
            sequences.append(tokens if alpha else tokens[1:])
            kept.append((alpha, beta))
        at = np.array(kept)
        return cls(sequences, at * [1, 0], at * [0, 1], np.zeros((len(kept), 0)))


def _on_circle(claim: Claim, rng: np.random.Generator, tuning: ChangedPartTuning) -> Plane:
    """Draw tokens that a norm before leaves where they are: two directions without a mean."""
    norm, d = claim.before, claim.dim
    assert norm is not None
    drawn = rng.standard_normal((2, d))
    drawn -= float(norm.centred) * drawn.mean(axis=1, keepdims=True)
    basis = np.linalg.qr(drawn.T)[0].T * np.sqrt(d)
    angles = rng.uniform(0, 2 * np.pi, (tuning.scored, 2))
    # near tokens too: heads share between them
    angles[1::2, 0] = angles[1::2, 1] + rng.uniform(-0.5, 0.5, len(angles[1::2]))
    sequences = [_points(one, basis) for one in angles]
    sequences += [
        np.vstack([_points(one[:1], basis), np.zeros(d)]) for one in angles[: tuning.unscored]
    ]
    sequences += [_points(one[1:], basis) for one in angles[: tuning.singles]]
    first, last = (np.array([norm.normalised(X[[k]])[0] for X in sequences]) for k in (0, -1))
    into = np.linalg.pinv(basis)
    shifted = np.ones((len(sequences), int(bool(np.any(norm.shift)))))
    return Plane(sequences, (first - last) @ into, last @ into, shifted)


def _points(angles: Array, basis: Array) -> Array:
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1) @ basis


def _levels(wanted: float, sizes: Array, count: int, probes: ClaimProbeTuning) -> Array:
    """Return scales at which one head after the other has the logit wanted, (count,)."""
    scales = np.sort(wanted / sizes[sizes > 0]) if np.any(sizes > 0) else np.ones(1)
    picked = scales[np.arange(count) * len(scales) // count]
    return np.asarray(np.clip(picked, 1 / probes.longest, probes.longest))


@dataclass(frozen=True, slots=True)
class SumChange:
    """The change Δ (K, m) of the sums u from a claim's, Δ + t·ẑ for some t (K,) behind a norm."""

    change: Array
    along: Array | None
    errors: Array
    """What Δ may be off by."""
    tuning: ChangedPartTuning

    @property
    def usable(self) -> bool:
        """Whether squares of all numbers, in units of their errors, stay in float64's range."""
        least = float(np.min(self.errors, initial=np.inf))
        along = 0.0 if self.along is None else float(np.max(np.abs(self.along), initial=0.0))
        most = max(float(np.max(np.abs(self.change), initial=0.0)), along)
        most = max(most, float(np.max(self.errors, initial=0.0)))
        return bool(least > 0 and np.isfinite(most / least) and most / least < self.tuning.widest)

    def left(self, coordinates: Array) -> float:
        """Return what is left where Δ is linear in coordinates (K, n), as a share of its bounds."""
        if not self.usable:
            return np.inf
        rows = np.median(self.errors, axis=1, keepdims=True)
        units = self.errors / rows
        columns = np.median(units, axis=0)
        U, sizes, _ = np.linalg.svd(coordinates / rows, full_matrices=False)
        U = U[:, sizes > self.tuning.rank * sizes.max(initial=0.0)]
        off = np.eye(len(U)) - U @ U.T
        change, bounds = self.change / rows / columns, np.abs(off) @ (units / columns)
        if self.along is not None:
            z = self.along / rows / columns
            wanted = -np.sum(off * (z @ change.T), axis=1)
            t = np.linalg.lstsq(off * (z @ z.T), wanted, rcond=None)[0]
            change = change + t[:, None] * z
        bounds = bounds + self.tuning.rounded * np.abs(change).max()
        return float(np.max(np.abs(off @ change) / bounds))

    def along_directions(self, directions: Array) -> tuple[float, Array, Array]:
        """Explain every Δ by a multiple of its direction, (K, m).

        Returns the share of the bounds that is left, the multiples, and what they may be off by.
        """
        if not self.usable:
            return np.inf, *np.zeros((2, len(self.change)))
        largest, found = 0.0, []
        for k, (change, error) in enumerate(zip(self.change, self.errors, strict=True)):
            free = [directions[k]] + ([] if self.along is None else [self.along[k]])
            columns = np.stack(free, axis=1) / error[:, None]
            lengths = np.linalg.norm(columns, axis=0)
            columns = columns / np.where(lengths > 0, lengths, 1.0)
            inverse = np.linalg.pinv(columns, self.tuning.rank)
            solved, scaled = inverse @ (change / error), change / error
            passed_on = np.abs(inverse).sum(axis=1)
            bounds = 1 + np.abs(columns) @ passed_on
            bounds = bounds + self.tuning.rounded * np.abs(scaled).max()
            largest = max(largest, float(np.max(np.abs(scaled - columns @ solved) / bounds)))
            unit = lengths[0] if lengths[0] > 0 else np.inf
            found.append((solved[0] / unit, passed_on[0] / unit))
        multiples, apart = np.array(found).T
        return largest, multiples, apart

    def __add__(self, further: Array) -> SumChange:
        return replace(self, change=self.change + further)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was answered to the sequences of one plane, or to single tokens."""

    claim: Claim
    sequences: list[Array]
    seen: Seen
    errors: Array
    tuning: ChangedPartTuning

    @property
    def last(self) -> Array:
        """The last tokens, (K, d)."""
        return np.array([X[-1] for X in self.sequences])

    def behind(self) -> Behind:
        """Return the claim's norm behind, at the claim's sums."""
        inside = self.claim.model.maps
        if self.claim.behind is not None:
            inside = inside.parts[0][1]
        sums = [inside.linearise(X[None]).value[0, 0] for X in self.sequences]
        return Behind.of(self.claim.behind, np.array(sums))

    def change(self) -> SumChange:
        """Take answers back through the claim's norm."""
        norm = self.claim.behind
        if norm is None:
            return SumChange(self.seen.missed, None, self.errors, self.tuning)
        used, behind = norm.scale != 0, self.behind()
        z = (self.seen.y - norm.shift)[:, used] / norm.scale[used]
        back = behind.spread * (z - behind.z[:, used])
        errors = behind.spread * self.errors[:, used] / np.abs(norm.scale[used])
        return SumChange(back, z, errors, self.tuning)

    def mapped(self, h: int, offsets: Array) -> Array:
        """Return what a head makes of offsets (K, d), as far as a norm behind shows it, (K, m)."""
        layer, norm = self.claim.model, self.claim.behind
        assert isinstance(layer, AttentionLayer)
        values = layer.heads[h].mapped(offsets)
        if norm is None:
            return values
        values = values - values.mean(axis=1, keepdims=True) if norm.centred else values
        return np.asarray(values[:, norm.scale != 0])

    def simply(self) -> list[str]:
        """Name what is neither a head nor a neuron and explains the misses."""
        plain = SumChange(self.seen.missed, None, self.errors, self.tuning)
        change, none = self.change(), np.zeros((len(self.sequences), 0))
        found, ones = {"c": change.left(np.ones((len(self.sequences), 1)))}, none[:, :0]
        layer = self.claim.model
        if layer.residual or self.claim.dim == len(layer.c):
            found[RESIDUAL] = (change + self._residual()).left(none)
        if self.claim.behind is not None:
            found[EPS] = change.left(ones)
            found[SHIFT] = plain.left(np.ones((len(self.sequences), 1)))
            found[SCALE] = self._by_scale(plain)
        return [name for name, left in found.items() if left <= self.tuning.explained]

    def _residual(self) -> Array:
        """Return what a residual connection adds to the claim, or a missing one takes off."""
        norm, x = self.claim.behind, self.last
        if norm is not None:
            x = x - x.mean(axis=1, keepdims=True) if norm.centred else x
            x = x[:, norm.scale != 0]
        return x if self.claim.model.residual else -x

    def _by_scale(self, plain: SumChange) -> float:
        """Return what is left where every number moved by a share of its own ẑ."""
        z = self.behind().z
        squares = np.maximum(np.sum(z * z, axis=0), np.finfo(np.float64).tiny)
        share = np.sum(z * plain.change, axis=0) / squares
        passed_on = np.sum(np.abs(z) * plain.errors, axis=0) / squares
        bounds = plain.errors + np.abs(z) * passed_on
        bounds = bounds + self.tuning.rounded * np.abs(plain.change).max()
        return float(np.max(np.abs(plain.change - z * share) / bounds))


def changed_part(
    claim: Claim,
    errors: AnswerErrors,
    room: int,
    rng: np.random.Generator,
    *,
    probes: ClaimProbeTuning,
    tuning: ChangedPartTuning,
) -> Search:
    """Find what was changed of a layer with at most ``room`` queries, or why that is not told."""
    if isinstance(claim.model, FeedForward):
        found = _among_neurons(claim, errors, room, rng, probes=probes, tuning=tuning)
        return (yield from found)
    assert isinstance(claim.model, AttentionLayer)
    planes = [Plane.drawn(claim, rng, probes, tuning) for _ in range(tuning.planes)]
    while sum(len(plane.sequences) for plane in planes) > room:
        planes.pop()
    if not planes:
        return Located(None, "no questions are left.")
    every = [X for plane in planes for X in plane.sequences]
    seen = yield from seen_at(claim, every, "which tensor")
    bounds, start, asked = errors.of(seen), 0, []
    for plane in planes:
        part = slice(start, start + len(plane.sequences))
        asked.append(Asked(claim, plane.sequences, seen[part], bounds[part], tuning))
        start = part.stop
    if np.all(np.abs(seen.missed) <= tuning.nothing * bounds):
        return Located(None, NEAR)
    names = sorted(set.intersection(*(set(one.simply()) for one in asked)))
    if names and np.max(np.abs(seen.missed) / bounds) > tuning.clear:
        return _named(names, claim, tuning)
    for h in range(claim.model.H):
        heads = [HeadChange.of(one, plane, h) for one, plane in zip(asked, planes, strict=True)]
        if all(one.scores_left <= tuning.explained for one in heads):
            names.append(_scores_named(heads, h, claim))
        if all(one.values_left <= tuning.explained for one in heads):
            names.append(f"M of head {h}")
    return _named(names, claim, tuning)


@dataclass(frozen=True, slots=True)
class HeadChange:
    """Whether a change of one head explains the answers to one plane."""

    values_left: float
    """What a change of M leaves, as a share of the bounds."""
    scores_left: float
    """What one of W or w leaves."""
    changed: tuple[bool, bool]
    """Whether w, and W, changed the logits."""

    @classmethod
    def of(cls, asked: Asked, plane: Plane, h: int) -> HeadChange:
        """Explain what was answered."""
        change = asked.change()
        shares, offsets = _shares(asked, h)
        pooled = plane.queries + shares[:, None] * plane.offsets
        values_left = change.left(np.hstack([pooled, plane.constant]))
        scores_left, moved, apart = change.along_directions(asked.mapped(h, offsets))
        two = np.array([len(X) == 2 for X in asked.sequences])
        changed = _logits(shares[two], moved[two], apart[two], plane, two)
        return cls(values_left, scores_left, changed)


def _shares(asked: Asked, h: int) -> tuple[Array, Array]:
    """Return the shares of the first tokens by the claim, and the offsets as seen, (K, d)."""
    assert isinstance(asked.claim.model, AttentionLayer)
    shares, offsets = [], []
    for X in asked.sequences:
        seen = asked.claim.seen_tokens(X[None])
        u = asked.claim.model.heads[h].vectors(seen[:, -1])
        weights = softmax(token_scores(seen, u))[0]
        shares.append(weights[0] if len(X) == 2 else 0.0)
        offsets.append(seen[0, 0] - seen[0, -1])
    return np.array(shares), np.array(offsets)


def _logits(
    shares: Array, moved: Array, apart: Array, plane: Plane, two: NDArray[np.bool_]
) -> tuple[bool, bool]:
    """Say of w and of W whether it changed the logits, a·(δw + δW t)."""
    new = shares + moved
    sound = (new > 0) & (new < 1) & (shares > 0) & (shares < 1)
    sound &= apart < np.minimum(new, 1 - new) / 2
    if not np.any(sound):
        return True, True
    new, apart = new[sound], apart[sound]
    change = scipy.special.logit(new) - scipy.special.logit(shares[sound])
    errors = 2 * apart / (new * (1 - new)) + 1e-15 / np.minimum(new, 1 - new)
    offsets, queries = plane.offsets[two][sound], plane.queries[two][sound]
    both = np.einsum("ki,kj->kij", offsets, queries).reshape(len(offsets), -1)
    terms = np.hstack([offsets, both]) / errors[:, None]
    inverse = np.linalg.pinv(terms)
    solved, passed_on = inverse @ (change / errors), np.abs(inverse).sum(axis=1)
    beyond, n = np.abs(solved) > passed_on, offsets.shape[1]
    return bool(np.any(beyond[:n])), bool(np.any(beyond[n:]))


def _scores_named(heads: list[HeadChange], h: int, claim: Claim) -> str:
    """Say whether W or w of a head was changed, or both."""
    by_w, by_W = (any(one.changed[k] for one in heads) for k in (0, 1))
    # a norm's shift goes through W as w does
    shifted = claim.before is not None and bool(np.any(claim.before.shift))
    if by_W and (shifted or not by_w):
        return f"W of head {h}"
    return f"w of head {h}" if by_w and not by_W else f"W of head {h}, w of head {h}"


def _among_neurons(
    claim: Claim,
    errors: AnswerErrors,
    room: int,
    rng: np.random.Generator,
    *,
    probes: ClaimProbeTuning,
    tuning: ChangedPartTuning,
) -> Search:
    """Tell c and a norm behind from the neurons."""
    asked = [X for _ in range(tuning.planes) for X in random_sequences(claim, rng, probes)]
    seen = yield from seen_at(claim, asked, "which tensor")
    bounds = errors.of(seen)
    if np.all(np.abs(seen.missed) <= tuning.nothing * bounds):
        return Located(None, NEAR)
    clear = np.max(np.abs(seen.missed) / bounds) > tuning.clear
    if names := Asked(claim, asked, seen, bounds, tuning).simply():
        return _named(names, claim, tuning) if clear else Located(None, NEAR)
    ray = _ray(claim, room - len(asked), rng, tuning) if clear else None
    if ray is None:
        return Located(NEURONS if claim.before is None else f"{NEURONS}, or the norm")
    asked = list(ray.tokens[:, None])
    seen = yield from seen_at(claim, asked, "which tensor")
    change = Asked(claim, asked, seen, errors.of(seen), tuning).change()
    # across a hyperplane a change of A shows by one neuron's share
    apart = tuning.clear * np.sqrt(len(claim.model.b))
    clearness = np.max(np.abs(seen.missed) / errors.of(seen)) if change.usable else 0.0
    names = _of_neurons(claim, ray, change, tuning) if clearness > apart else []
    # what A cannot be fitted to may look like B, in coarse answers and with a free size per answer
    doubted = names == ["B"] and (claim.behind is not None or clearness < tuning.sure)
    return Located(NEURONS if doubted or not names else " or ".join(names))


def _ray(
    claim: Claim, room: int, rng: np.random.Generator, tuning: ChangedPartTuning
) -> Ray | None:
    """Draw tokens that tell A, b and B apart; None where none do."""
    knobs, layer = tuning.neurons, claim.model
    tokens, n = knobs.along + knobs.cells * knobs.per_cell, len(layer.b)
    few = tokens * len(layer.c) < knobs.least * n
    if claim.before is not None or few or n > knobs.most or tokens > room:
        return None
    return Ray.drawn(claim, rng, knobs)


def _of_neurons(claim: Claim, ray: Ray, change: SumChange, tuning: ChangedPartTuning) -> list[str]:
    """Name which of A, b and B explain what was answered along a ray."""
    none, names = np.zeros((len(ray.places), 0)), []
    for name, fit in fits(claim, ray, tuning.neurons).items():
        explained = fit.explained(change.change, change.along)
        if (change + -explained).left(none) <= tuning.explained:
            names.append(name)
    near = replace(
        change,
        change=change.change[ray.near],
        along=None if change.along is None else change.along[ray.near],
        errors=change.errors[ray.near],
    )
    z = ray.tokens[ray.near] @ claim.model.A.T + claim.model.b
    if near.left(np.maximum(z, 0.0)) <= tuning.explained:
        names.append("B")
    return names


def _named(names: list[str], claim: Claim, tuning: ChangedPartTuning) -> Located:
    """Name what explains the misses; a norm before is not looked at by itself."""
    if len(names) > tuning.most:
        return Located(None, NEAR)
    if not names:
        here = f"{SEVERAL[:-1]}; {NORM}" if claim.before is not None else SEVERAL
        return Located(
            None, f"{here} {VALUE_BIAS}" if isinstance(claim.model, AttentionLayer) else here
        )
    return Located(" or ".join(names))
