"""One attention head from labels by bisection: a bit of a parameter per query.

    signs      [e_i]                          s_i = ±1; v_i = s_i|v_i|
    largest    [s_i e_i − s_j e_j]            p with |v_p| ≥ |v_i|, groups of 8 at once
    v          [s_i e_i − ρ s_p e_p]          label 1 while ρ < |v_i|/|v_p|: zeros of v fall to 0
    W          [λa − (c/λ)b; −(c/λ)b]         label 1 while λ² > c(b·v/a·v)(1 + e^{−t}),
                                              t = −c a·(W b)

1. Signs; the largest entry; the first bits of v's ratios, enough for balanced offsets a and
   balanced query tokens b (a·v and b·v all alike, so that no threshold is ill-conditioned).
2. The scale c: 16 random pairs (a, b), thresholds t = ±1.5, the largest power of 2 at which at
   most an eighth of them lie outside.
3. Every t bisected on [−4, 4] in parallel, with the rest of v's bits beside them. Entries
   found beyond ±3 after 4 bits start again at c/8.
4. Ŵ = Z_a⁻¹(−t̂/c)Z_b⁻ᵀ, t̂ through the final v̂.
5. End checks: every label just outside of what was found, by more than rounding can move it,
   must say what monotonicity says. They alone carry the certificate: two labels on either
   side of a flip prove where it is, whatever the bisection was told.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners import holdout, label_checks, offsets
from unsoftmax.learners.label_probes import Contrasts, read
from unsoftmax.learners.offsets import Offsets
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Indices, Pairs, Purpose, Round, Singles, UnitVectors
from unsoftmax.protocol import Answers, Certificate, Found, Steps
from unsoftmax.theory import counts, thresholds
from unsoftmax.theory.precision import KAPPA, UNIT

Labels: TypeAlias = NDArray[np.bool_]

# Logits are bisected on [−4, 4]: further out σ' is small and rounding moves the flip. The
# threshold is set through a v known to 1 %, so that σ(3.5) is still told from 1 and σ(4) is not:
# entries start again from ±3 on, and are lost beyond ±3.5.
_RANGE, _EDGE, _LOST = 4.0, 3.0, 3.5
_SMALLER = 8.0
# Where pilots look, and how many of them may lie outside: then few entries start again.
_PILOT, _OUTSIDE = 1.5, 8
# The rough v shifts log p by 2 % at most, so a threshold of 1.5 by 0.02/(1 − σ(1.5)).
_PILOT_ERROR = 0.15
# log₂ c is searched between these in three rounds of four: 5³ = 125.
_LOWEST, _OCTAVES = -62, 125
# v = 0 and a constant added to the answers show at a token as small as this, which float32 holds.
_TINY = 2.0**-60
# End checks stand off by twice the rounding (that of the flip, and that of the check) and by
# this share of the last interval.
_STAND_OFF = 1 / 8


@dataclass(slots=True)
class Brackets:
    """Intervals that each hold one flip, halved by labels."""

    low: Array
    high: Array

    @classmethod
    def of(cls, count: int, low: float, high: float) -> Brackets:
        """Start ``count`` intervals alike."""
        return cls(np.full(count, low), np.full(count, high))

    @property
    def middle(self) -> Array:
        """Where to ask next."""
        return (self.low + self.high) / 2

    def narrow(self, index: Indices, above: Labels) -> None:
        """Keep the half that the labels name: the flip is above the middle, or below."""
        middle = self.middle[index]
        self.low[index] = np.where(above, middle, self.low[index])
        self.high[index] = np.where(above, self.high[index], middle)


@dataclass(frozen=True, slots=True)
class Ratios:
    """The unknowns r_i = |v_i|/|v_p|."""

    signs: Array
    top: int
    brackets: Brackets
    others: Indices
    """All entries but p, as ordered in the brackets."""

    def ask(self, rho: Array, purpose: Purpose, phase: str = "v") -> Contrasts:
        """Ask whether every r_i is above ρ_i."""
        top = np.full(len(self.others), self.top)
        return Contrasts(self.signs, self.others, top, rho, phase=phase, purpose=purpose)

    def value(self) -> Array:
        """Return v with v_p = ±1; entries that no bit has set are 0."""
        ratios = np.ones(len(self.signs))
        found = np.where(self.brackets.low > 0, self.brackets.middle, 0.0)
        ratios[self.others] = found
        return self.signs * ratios


@dataclass(slots=True)
class Entries:
    """The unknowns t = −c a_i·(W b_j), all pairs, ordered by query token and then by offset."""

    a: Offsets
    b: Offsets
    ratio: Array
    """(b·v)/(a·v) of the rough v, which places the thresholds."""
    c: Array
    brackets: Brackets
    bits: Indices
    starts: Indices

    @classmethod
    def of(cls, v: Array, rng: np.random.Generator) -> Entries:
        """Choose offsets and query tokens."""
        a, b = offsets.balanced(v, rng), offsets.balanced(v, rng)
        n = len(v) ** 2
        nothing, once = np.zeros(n, dtype=np.intp), np.ones(n, dtype=np.intp)
        ratio = np.divide.outer(b.rows @ v, a.rows @ v).ravel()
        return cls(a, b, ratio, np.ones(n), Brackets.of(n, -_RANGE, _RANGE), nothing, once)

    def ask(self, k: Indices, up: Array, down: Array, phase: str, purpose: Purpose) -> Pairs:
        """Ask for entries k with offsets scaled by λ and query tokens by −c/λ."""
        j, i = np.divmod(k, len(self.a.rows))
        return Pairs(self.a.rows, self.b.rows, i, j, up, -down, phase=phase, purpose=purpose)

    def scales(self, k: Indices, t: Array, c: Array) -> tuple[Array, Array]:
        """Return λ and c/λ that put the thresholds of entries k at t."""
        return thresholds.scales(t, c, self.ratio[k])


def learn(dim: int, bits: int, checks: int, rng: np.random.Generator) -> Steps[SingleHead]:
    """Recover v up to scale and W; see `LabelHead`."""
    opening = holdout.opening(dim, checks // 4, rng)
    singles = Singles(UnitVectors(dim), phase="signs of v", purpose="data")
    opened, positive = read((yield [opening, singles]))
    signs = np.where(positive, 1.0, -1.0)
    ratios = yield from _ratios(signs, opened)

    entries = Entries.of(ratios.value(), rng)
    pilots, octave = yield from _scale(entries, ratios.value(), rng)
    entries.c[:] = 2.0**octave
    yield from _bisect(entries, ratios, bits)

    fit = _Fit.of(entries, ratios)
    _refuse_scale(fit, pilots, octave)
    certificate = fit.certificate(checks)
    closing = label_checks.closing(fit.model, certificate, checks - len(opened), rng)
    ends = fit.ends()
    labels = read((yield [*ends, *closing]))
    _refuse_contradictions(ends, labels[: len(ends)])
    evidence = label_checks.judge(
        [opening, *closing], [opened, *labels[len(ends) :]], fit.model, certificate, checks
    )
    return Found(fit.model, certificate, evidence, fit.notes(certificate))


# -- v


def _ratios(signs: Array, opened: Labels) -> Generator[Round, Answers, Ratios]:
    """Find the largest entry of v and the first bits of the others' ratios to it."""
    d = len(signs)
    top = yield from _largest(signs)
    others = np.delete(np.arange(d), top)
    ratios = Ratios(signs, top, Brackets.of(d - 1, 0.0, 1.0), others)
    token = signs[top] * np.eye(1, d, top)
    both = np.concatenate([token, -token, _TINY * token, -_TINY * token])
    tests: Round = [Singles(both, phase="largest entry of v", purpose="data")]
    for first in (True, *[False] * (counts.rough_bits(d) - 1)):
        asked: Round = [ratios.ask(ratios.brackets.middle, "data")] if d > 1 else []
        if first or asked:
            labels = read((yield [*(tests if first else []), *asked]))
        if first:
            _refuse_value(labels[0], signs, opened)
        if asked:
            ratios.brackets.narrow(np.arange(d - 1), labels[-1])
    return ratios


def _largest(signs: Array) -> Generator[Round, Answers, int]:
    """Let groups of 8 entries play everyone against everyone until one is left."""
    standing = np.arange(len(signs))
    first, second = np.triu_indices(counts.GROUP, 1)
    while len(standing) > 1:
        groups = -(-len(standing) // counts.GROUP)
        start = counts.GROUP * np.arange(groups)[:, None]
        i, j = (start + first).ravel(), (start + second).ravel()
        i, j = i[j < len(standing)], j[j < len(standing)]
        probes = Contrasts(
            signs,
            standing[i],
            standing[j],
            np.ones(len(i)),
            phase="largest entry of v",
            purpose="pilot",
        )
        [larger] = read((yield [probes]))
        wins = np.bincount(np.where(larger, i, j), minlength=counts.GROUP * groups)
        wins[len(standing) :] = -1
        best = np.argmax(wins.reshape(groups, -1), axis=1)
        standing = standing[start[:, 0] + best]
    return int(standing[0])


def _refuse_value(labels: Labels, signs: Array, opened: Labels) -> None:
    """Refuse labels of x, −x, and of both scaled down, that no x·v has."""
    if np.array_equal(labels, [True, False, True, False]):
        return
    if not labels.any() and np.all(signs < 0):
        if not opened.any():
            raise NotIdentifiable(
                "Every label is 0, as with v = 0: then the softmax weights nothing, so W is free "
                "and no query can determine it. (A constant far below 0 on top of a head would "
                "look the same.)",
                determined={"v": np.zeros(len(signs))},
            )
        raise ModelMismatch(
            "Single tokens are all labelled 0, as if v = 0, but longer sequences are not: the "
            "target is not the sign of a single attention head without biases."
        )
    if labels.all():
        raise ModelMismatch(
            "A token and its negative are both labelled 1: the labels are constant, or a "
            "constant is added before the sign is taken. f([−x]) = −f([x]) for every attention "
            "head without biases."
        )
    raise ModelMismatch(
        "A token x, −x and both scaled by 2⁻⁶⁰ are labelled "
        f"{', '.join(str(int(label)) for label in labels)} instead of 1, 0, 1, 0: the labels "
        "contradict each other, or a constant is added before the sign is taken. The target is "
        "not the sign of a single attention head without biases."
    )


# -- W


def _scale(
    entries: Entries, v: Array, rng: np.random.Generator
) -> Generator[Round, Answers, tuple[Indices, int]]:
    """Find pilots, and the largest power of 2 at which few of their |t| exceed 1.5."""
    n = len(entries.c)
    k = np.sort(rng.choice(n, min(counts.PILOTS, n), replace=False))
    tried, width, lowest = counts.PROBED_SCALES // 3, _OCTAVES, _LOWEST
    while width > 1:
        width //= tried + 1
        octaves = lowest + width * np.arange(1, tried + 1)
        at = np.repeat([_PILOT, -_PILOT], tried)
        c, t, every = np.broadcast_arrays(
            np.exp2(np.tile(octaves, 2))[:, None], at[:, None], k[None]
        )
        up, down = entries.scales(every.ravel(), t.ravel(), c.ravel())
        probes = entries.ask(every.ravel(), up, down, "scale of W", "pilot")
        [labels] = read((yield [probes]))
        beyond, within = labels.reshape(2, tried, len(k))
        outside = np.count_nonzero(beyond | ~within, axis=1)
        fits = np.cumprod(outside <= len(k) // _OUTSIDE)
        lowest += width * int(np.sum(fits))
    if lowest == _LOWEST:
        raise NotIdentifiable(
            f"Logits are out of reach: tokens scaled down by 2^{_LOWEST // 2} leave them "
            f"beyond ±{_PILOT}, as with hard attention or none. v is determined up to its norm, "
            "W is not.",
            determined={"v": v / np.linalg.norm(v)},
        )
    return k, lowest


def _bisect(entries: Entries, ratios: Ratios, bits: int) -> Generator[Round, Answers, None]:
    """Halve every interval to the last bit, v's beside W's."""
    d = len(ratios.signs)
    spare = counts.label_head_again(d) // counts.FIRST_BITS
    remaining = max(bits - counts.rough_bits(d), 0) if d > 1 else 0
    while remaining or np.any(entries.bits < bits):
        parts: Round = []
        groups: list[Indices] = []
        repeated = (entries.starts > 1) & (entries.bits < counts.FIRST_BITS)
        kinds: tuple[tuple[Purpose, Labels], ...] = (("data", ~repeated), ("again", repeated))
        for purpose, chosen in kinds:
            k = np.flatnonzero(chosen & (entries.bits < bits))
            if len(k):
                up, down = entries.scales(k, entries.brackets.middle[k], entries.c[k])
                name = "W" if purpose == "data" else "W, again"
                parts.append(entries.ask(k, up, down, name, purpose))
                groups.append(k)
        if remaining:
            parts.append(ratios.ask(ratios.brackets.middle, "data"))
        labels = read((yield parts))
        for k, label in zip(groups, labels, strict=False):
            entries.brackets.narrow(k, label)
            entries.bits[k] += 1
        if remaining:
            ratios.brackets.narrow(np.arange(d - 1), labels[-1])
            remaining -= 1
        spare -= _start_again(entries, spare)
    lost = np.abs(entries.brackets.middle) > _LOST
    if np.any(lost):
        v = ratios.value()
        raise NotIdentifiable(
            f"{np.count_nonzero(lost)} of {lost.size} logits are out of reach, far larger than "
            "the others at every scale tried: try another seed. v is determined up to its norm.",
            determined={"v": v / np.linalg.norm(v)},
        )


def _start_again(entries: Entries, spare: int) -> int:
    """Give entries that lie at the end of the range another scale; return how many."""
    found = entries.brackets
    beyond = (found.low >= _EDGE) | (found.high <= -_EDGE)
    tested = (entries.bits == counts.FIRST_BITS) & (entries.starts <= counts.RESTARTS)
    k = np.flatnonzero(beyond & tested)[:spare]
    found.low[k], found.high[k] = -_RANGE, _RANGE
    entries.c[k] /= _SMALLER
    entries.bits[k] = 0
    entries.starts[k] += 1
    return len(k)


# -- what was found


@dataclass(frozen=True, slots=True)
class _Fit:
    """The recovered head and the intervals that end checks must prove."""

    model: SingleHead
    entries: Entries
    ratios: Ratios
    v: Array
    """v̂ with v̂_p = ±1."""
    ratio: Array
    """(b·v̂)/(a·v̂) of every entry."""
    low: Array
    high: Array
    """Logits at which the end checks ask."""
    logit_error: Array
    """Bound on |t̂ − t| given v̂."""
    ratio_ends: tuple[Array, Array]
    ratio_error: Array

    @classmethod
    def of(cls, entries: Entries, ratios: Ratios) -> _Fit:
        """Read the intervals through the final v̂."""
        v = ratios.value()
        norm = float(np.linalg.norm(v))
        d, found = len(v), entries.brackets
        a, b = entries.a.rows @ v / norm, entries.b.rows @ v / norm
        ratio = np.divide.outer(b, a).ravel()
        every = np.arange(d * d)
        low, high = (
            thresholds.threshold(*entries.scales(every, end, entries.c), ratio)
            for end in (found.low, found.high)
        )
        middle = (low + high) / 2
        measured = (-middle / entries.c).reshape(d, d)
        W = entries.b.solve(entries.a.solve(measured)).T

        width = high - low
        score = np.linalg.norm(W @ entries.b.rows.T, axis=0)
        sizes = [np.linalg.norm(z.rows, axis=1) for z in (entries.a, entries.b)]
        farthest = np.maximum(np.abs(low), np.abs(high)) + width
        reach = np.tile(sizes[0], d) + np.repeat(sizes[1], d) / ratio
        rounding = thresholds.logit_rounding(
            farthest, np.tile(a, d), entries.c * np.repeat(score, d), reach
        )
        stand_off = 2 * rounding + _STAND_OFF * width
        r = ratios.brackets
        r_rounding = thresholds.ratio_rounding(r.high, norm)
        r_stand_off = 2 * r_rounding + _STAND_OFF * (r.high - r.low)
        r_found = np.abs(np.delete(v, ratios.top))
        r_error = np.maximum(r.high - r_found, r_found - r.low) + r_stand_off + r_rounding
        return cls(
            SingleHead(W, v / norm),
            entries,
            ratios,
            v,
            ratio,
            low - stand_off,
            high + stand_off,
            width / 2 + stand_off + rounding,
            (r.low - r_stand_off, r.high + r_stand_off),
            r_error,
        )

    def ends(self) -> Round:
        """Ask just outside of every interval: labels 1 below, 0 above."""
        every = np.arange(len(self.ratio))
        parts: Round = []
        for t in (self.low, self.high):
            up, down = thresholds.scales(t, self.entries.c, self.ratio)
            parts.append(self.entries.ask(every, up, down, "end checks", "data"))
        if len(self.ratios.others):
            parts += [self.ratios.ask(rho, "data", "end checks") for rho in self.ratio_ends]
        return parts

    def certificate(self, checks: int) -> Certificate:
        """Bound the errors of W and v by what the end checks prove."""
        entries, W, v = self.entries, self.model.W, self.model.v
        d = len(v)
        v_error = thresholds.direction_error(self.v, self.ratio_error)
        through = thresholds.ThroughValues.of(v, v_error, entries.a.rows, entries.b.rows)
        # the largest logit that the end checks allow
        highest = ((self.low + self.high) / 2 + self.logit_error).reshape(d, d)
        measured = float(np.linalg.norm(self.logit_error / entries.c))
        measured += through.error(highest, entries.c.reshape(d, d))
        assumes = [
            "The target is the sign of a single head without biases: what the hold-out tests, it "
            "cannot prove.",
            "‖v‖ = 1: labels do not determine it, and the bounds are for v/‖v‖.",
            "Labels are those of answers off by at most "
            f"{KAPPA:.0f} × {UNIT:.1e} × max‖x_i‖·‖v‖ from rounding.",
        ]
        if not checks:
            assumes.append("Nothing was checked beyond the ends of the intervals.")
        half = entries.a.solve((-(self.low + self.high) / 2 / entries.c).reshape(d, d))
        W_error = entries.b.error(entries.a.error(measured, half), W)
        return Certificate({"W": W_error, "v": v_error}, tuple(assumes))

    def notes(self, certificate: Certificate) -> tuple[str, ...]:
        """Say what a user should know."""
        nothing = np.linalg.norm(self.model.W) <= certificate.errors["W"]
        return (
            "Labels do not determine ‖v‖: v is returned with ‖v‖ = 1.",
            *(("W is 0 as far as the labels tell: see its bound.",) if nothing else ()),
        )


def _refuse_scale(fit: _Fit, pilots: Indices, octave: int) -> None:
    """Refuse a scale that the pilots' labels chose and their logits, as found, would not."""
    logits = (fit.low + fit.high)[pilots] / 2 * 2.0**octave / fit.entries.c[pilots]
    most = len(pilots) // _OUTSIDE
    too_large = np.count_nonzero(np.abs(logits) > _PILOT + _PILOT_ERROR) > most
    too_small = np.count_nonzero(np.abs(2 * logits) > _PILOT - _PILOT_ERROR) <= most
    if too_large or (too_small and octave < _LOWEST + _OCTAVES - 1):
        raise ModelMismatch(
            "The labels contradict each other: those that chose the size of the tokens say that "
            f"logits are {'smaller' if too_large else 'larger'} than they were found to be. Some "
            "labels are wrong, or they are not the sign of a single attention head."
        )


def _refuse_contradictions(probes: Round, labels: list[Labels]) -> None:
    """Refuse labels that do not flip once, where bisection found the flip."""
    wrong = asked = 0
    for n, label in enumerate(labels):
        wrong += int(np.count_nonzero(label == bool(n % 2)))
        asked += len(probes[n])
    if wrong:
        raise ModelMismatch(
            f"The labels contradict each other: {wrong} of {asked} just outside of the intervals "
            "that bisection found say that the flip is outside. They must flip once along every "
            "line asked. Either some labels are wrong, or the target computes more coarsely than "
            "float64 (float32 supports 16 bits), or it is not the sign of a single attention head "
            "without biases."
        )
