"""A recovered head along lines between sequences, by the ends' numbers instead of coordinates.

The hold-out of labels looks for the flips of a head on lines (1 − t)·X + t·X′, at 14 places at a
time and of up to 512 tokens. There scores and squared lengths are quadratic in t and values are
linear: three coefficients per token replace d coordinates. Also here: how far a head's answers may
be from the target's, by the coordinates of any sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.single_head.labels.bisection import Labels, read_labels
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models import SingleHead
from unsoftmax.models.attention import largest_mean_shift, softmax, token_scores
from unsoftmax.probes import Array, Flags, Indices, Sequences
from unsoftmax.protocol import Certificate
from unsoftmax.refusals import Reason
from unsoftmax.validate.head_comparison import UNBOUNDED, HeadAt, sum_rounding
from unsoftmax.validate.judge import Answered, Judgement, Residuals, from_the_side, judge
from unsoftmax.validate.long_sequences import LongSequenceTuning, draw_long, looked_at
from unsoftmax.validate.sequences import by_length


@dataclass(frozen=True, slots=True)
class FlipLines:
    """Lines from sequences with label 1 to sequences with label 0, of one length each.

    Along a line scores and squared lengths are quadratic in the place t, values are linear. So the
    head is evaluated there by the ends' few numbers per token instead of all coordinates.
    """

    ones: Array
    """(lines, N, d)."""
    zeros: Array
    numbers: Array
    """Every token's score, value, ‖x_i‖² and ‖x_i − x_N‖², as coefficients of (1 − t)², t(1 − t)
    and t²: (lines, 3, 4, N)."""
    queries: Array
    """x_N at either end, (2, lines, d)."""
    vectors: Array
    """W x_N + w there, (2, lines, d)."""
    longest: float
    """The longest token of all."""

    @classmethod
    def of(cls, model: SingleHead, ones: Array, zeros: Array) -> FlipLines:
        """Evaluate a head at the ends."""
        first, last = (model.scores_of(X[:, -1]) for X in (ones, zeros))
        mixed = token_scores(ones, last) + token_scores(zeros, first)
        square = _squares(ones, zeros)
        values = [ones @ model.v, zeros @ model.v]
        numbers = (
            (token_scores(ones, first), mixed, token_scores(zeros, last)),
            (values[0], values[0] + values[1], values[1]),
            square,
            _squares(ones - ones[:, -1:], zeros - zeros[:, -1:]),
        )
        by_line = np.array(numbers).transpose(2, 1, 0, 3)
        return cls(
            ones,
            zeros,
            by_line,
            queries=np.array([ones[:, -1], zeros[:, -1]]),
            vectors=np.array([first, last]),
            longest=float(np.sqrt(np.max(square[::2]))),
        )

    def rounding(self, roundoffs: float) -> float:
        """Return so many roundoffs of 1, and of the largest score that there may be."""
        largest = self.longest * float(np.linalg.norm(self.vectors, axis=2).max())
        return roundoffs * UNIT * (1 + largest)

    def between(self, place: Array, which: Indices) -> Array:
        """Return some points of the lines, from ``ones`` (place 0) to ``zeros`` (place 1).

        ``place`` may hold several points of every line, those of all lines together.
        """
        ones, zeros = self.ones, self.zeros
        if len(ones) > 1:  # one line is broadcast, without a copy for every point
            ones, zeros = (ends[which % len(ends)] for ends in (ones, zeros))
        share = place[which, None, None]
        points = (1 - share) * ones
        points += share * zeros
        return np.asarray(points)

    def at(self, place: Array) -> HeadOnLines:
        """Evaluate the head at such points, but for rounding."""
        t = place.reshape(-1, len(self.ones)).T[..., None]
        rest = 1 - t
        powers = np.concatenate([rest * rest, t * rest, t * t], axis=2)
        lines, _, kinds, tokens = self.numbers.shape
        numbers = powers @ self.numbers.reshape(lines, 3, kinds * tokens)
        return HeadOnLines(self, t, numbers.reshape(lines, -1, kinds, tokens))


def _squares(ones: Array, zeros: Array) -> tuple[Array, Array, Array]:
    """Return the coefficients of ‖x‖² for vectors (lines, N, d) from ``ones`` to ``zeros``."""
    pairs = ((ones, ones), (ones, zeros), (zeros, zeros))
    one, product, zero = (np.einsum("bnd,bnd->bn", *pair) for pair in pairs)
    return one, 2 * product, zero


class HeadOnLines:
    """A head at P points of every line; what belongs to tokens has the shape (lines, P, N)."""

    def __init__(self, lines: FlipLines, place: Array, numbers: Array) -> None:
        self._lines, self._place, self._numbers = lines, place, numbers
        self.weights, self.values = softmax(numbers[:, :, 0]), numbers[:, :, 1]

    def answers(self) -> Array:
        """Return f̂, the points of all lines together: (P·lines,)."""
        return np.asarray(np.einsum("lpn,lpn->pl", self.weights, self.values)).ravel()

    def uncertainty(self, certificate: Certificate) -> Array:
        """Bound how far the answers can be from the target's, as `uncertainty` does."""
        lengths = np.sqrt(np.maximum(self._numbers[:, :, 2:], 0.0))
        own, away = lengths[:, :, 0], lengths[:, :, 1]
        # by coordinates: a square that has nearly vanished would be all rounding
        query, vector = (self._length(ends) for ends in (self._lines.queries, self._lines.vectors))
        from_W = query * min(certificate.errors["W"], UNBOUNDED)
        moved = away * from_W + own * (KAPPA * 2 * UNIT * vector)
        return _open_by(self.weights, self.values, moved, own, certificate).T.ravel()

    def _length(self, ends: Array) -> Array:
        """Measure vectors (2, lines, d) on the way between the ends: (lines, P, 1)."""
        first, last = ends[:, :, None]
        between = (1 - self._place) * first + self._place * last
        return np.asarray(np.linalg.norm(between, axis=2, keepdims=True))


def uncertainty(at: HeadAt, v: Array, certificate: Certificate) -> Array:
    """Bound how far a head's answers can be from what the target computes, ‖v‖ = 1."""
    # round-off twice: that of the target's scores and that of the scores as computed here
    moved = at.score_moves(2 * UNIT, min(certificate.errors["W"], UNBOUNDED))
    return _open_by(at.weights, at.X @ v, moved, at.longest[:, None], certificate)


def _open_by(
    weights: Array, values: Array, moved: Array, lengths: Array, certificate: Certificate
) -> Array:
    """Bound it by the tokens' weights, values, lengths, and how far their scores may be off."""
    mean = np.sum(weights * values, axis=-1, keepdims=True)
    shifted = largest_mean_shift(weights, np.abs(values - mean), moved.max(axis=-1))
    rounded = lengths.max(axis=-1) * (2 * KAPPA * UNIT + certificate.errors["v"])
    return np.asarray(rounded + shifted + sum_rounding(weights, values, 2 * UNIT))


# -- The hold-out of label learners: fresh sequences as close to a flip as the certificate allows
#
# A label is one bit, and far from f = 0 even a wrong model predicts it. So the target is asked
# where the recovered head's own answer is close to 0:
#
# - *opening*, a quarter of the checks, asked first: three tokens at sizes 4⁻⁴ … 4³, labelled as
#   they come. They tell this target from another when a run is resumed.
# - *closing*, the rest, last: on the line between two sequences of 2 to 7 tokens with labels 1
#   and 0, the two points on either side of f̂ = 0 that are nearest to it among those where the
#   certificate leaves no doubt about the sign.
#
# A target other than this head flips elsewhere on that line. If its flip is further away than the
# certificate allows, one of the two labels is wrong, however small the difference.

# Tokens of closing sequences, in turn.
LENGTHS = (2, 3, 5, 7)
# Root mean squares of their logits, in turn: moderate, so that W counts.
LOGIT_SIZES = (0.5, 1.0, 2.0)
# Sequences are kept so short that the certificate leaves their logits open by less: beyond it
# labels are certain only far from the flip, and tell less.
MOST_MOVED = 0.05
# Tokens are no longer than bisection's own may be.
LARGEST = 2.0**60
# Parts that a line is divided into at once, to find its flip and from there the first certain
# label. More: fewer and larger forward passes of the recovered head.
SECTIONS = 8
# How often that is done: until float64 ends, 8⁻²⁰ = 2⁻⁶⁰ of the line.
DIVISIONS = 20
# Labels are asked where f̂ is so many times what it may be off by. Below 1 right models are
# refused; larger, small differences pass.
CERTAIN = 1.01
# What sums over the ends of a line may be off by, relative to 1 + max‖x_i‖‖u‖. Larger: slower,
# for closer decisions take all coordinates. Smaller: other labels may be asked, a few roundoffs
# away.
ROUNDOFFS = 16.0
# A sequence whose answer may be off by this share of its size is left out. Without any other the
# evidence is that nothing was checked.
MOST_SHARE = 0.5
# The long sequences, but for single tokens, whose labels do not depend on W.
LONG = LongSequenceTuning()
# None is asked where W is known less well than to this share of it: at logits as small as that
# bound then asks for, labels of many tokens do not depend on W.
VAGUE = 0.1
# A bound on W below this is no vague one, however small W is.
NO_VAGUE_BOUND = 1e-6


def at_flips(
    model: SingleHead, certificate: Certificate, count: int, rng: np.random.Generator
) -> list[Sequences]:
    """Draw ``count`` sequences next to the recovered head's flips, one family per length."""
    lengths = LENGTHS
    asked = np.bincount(np.arange(count) % len(lengths), minlength=len(lengths))
    families = []
    for length, wanted in zip(lengths, asked, strict=True):
        if not wanted:
            continue
        pairs = (int(wanted) + 1) // 2
        drawn = [rng.standard_normal((pairs, length, model.dim)) for _ in range(2)]
        logits = np.resize(LOGIT_SIZES, pairs)
        ends = np.stack([_sized(model, certificate, X, logits) for X in drawn])
        X = _beside_the_flip(model, certificate, ends)
        families.append(Sequences(X[: int(wanted)], phase="hold-out, closing", purpose="check"))
    return families


def long_at_flips(
    model: SingleHead, certificate: Certificate, count: int, rng: np.random.Generator
) -> list[Sequences]:
    """Draw the long sequences of a closing of ``count``, two next to each flip."""
    if certificate.errors["W"] > max(VAGUE * model.parameter_norm("W"), NO_VAGUE_BOUND):
        return []

    def sized(offsets: Array, query: Array, logits: float) -> Array:
        X = np.sqrt(model.dim) * np.vstack([offsets, query])
        return np.asarray(_sized(model, certificate, X[None], np.array([logits]))[0])

    drawn = [draw_long(model, count // 2, rng, sized, LONG) for _ in range(2)]
    flips: list[Array] = []
    for shape, *ends in zip(LONG.of(count // 2, model.dim), *drawn, strict=True):
        if shape.kind == "permuted":
            order = [*rng.permutation(shape.tokens - 1), shape.tokens - 1]
            flips += [X[order] for X in flips[-2:]]
        elif shape.tokens > 1:
            flips += [*_beside_the_flip(model, certificate, np.array(ends)[:, None])]
    return by_length(flips, "hold-out, long")


def _sized(model: SingleHead, certificate: Certificate, drawn: Array, wanted: Array) -> Array:
    """Scale normal sequences (pairs, N, d) to an rms of logits, as far as the bounds know them."""
    X = drawn / np.sqrt(model.dim)
    query = X[:, -1]
    scores = np.einsum("bnd,bd->bn", X[:, :-1], model.scores_of(query))
    with np.errstate(divide="ignore"):
        size = wanted / np.sqrt(np.mean(scores**2, axis=1))
        reach = np.linalg.norm(X, axis=2).max(axis=1) * np.linalg.norm(query, axis=1)
        known = MOST_MOVED / (2 * reach * min(certificate.errors["W"], UNBOUNDED))
    size = np.minimum(np.minimum(size, known), LARGEST)
    X[:, :-1] += query[:, None]
    return np.asarray(X * np.sqrt(size)[:, None, None])


def _beside_the_flip(model: SingleHead, certificate: Certificate, ends: Array) -> Array:
    """Return sequences on the lines from ``ends[0]`` to ``ends[1]``, in pairs around f̂ = 0."""
    # f(−X) = −f(X): every sequence can be made to have either label
    signs = np.where(model(ends.reshape(-1, *ends.shape[2:])) > 0, 1.0, -1.0)
    signs = signs.reshape(ends.shape[:2]) * np.array([[1.0], [-1.0]])
    lines = FlipLines.of(model, *(signs[..., None, None] * ends))
    count, rounded = len(lines.ones), lines.rounding(ROUNDOFFS)

    # The ends' numbers decide far from a flip. Next to it all coordinates do, as for the target.
    def below(place: Array) -> Flags:
        answers = lines.at(place).answers()
        near = _near(answers, rounded * lines.longest)
        if len(near):
            answers[near] = model(lines.between(place, near))
        return answers <= 0

    def certain(place: Array) -> Flags:
        at = lines.at(place)
        far, off = np.abs(at.answers()), CERTAIN * at.uncertainty(certificate)
        near = _near(far - off, rounded * lines.longest)
        if len(near):
            far[near] = np.abs(model(lines.between(place, near)))
            near = _near(far - off, rounded * off)
        if len(near):
            at_near = HeadAt.of(model, lines.between(place, near))
            off[near] = CERTAIN * uncertainty(at_near, model.v, certificate)
        return far >= off

    flip = _first(below, np.zeros(count), np.ones(count))
    # from the flip outwards, to either end
    far = _first(certain, np.tile(flip, 2), np.repeat([0.0, 1.0], count))
    every = np.arange(count)
    pairs = np.stack([lines.between(place, every) for place in np.split(far, 2)], axis=1)
    return pairs.reshape(2 * count, *lines.ones.shape[1:])


def _first(holds: Callable[[Array], Flags], start: Array, stop: Array) -> Array:
    """Return the first place from ``start`` on where a condition holds, as it does at ``stop``.

    Where it holds and ends several times between two places that are looked at, one of the places
    where it begins to hold.
    """
    shares, lines = np.linspace(0, 1, SECTIONS + 1)[:, None], np.arange(len(start))
    held = np.ones((SECTIONS, len(start)), dtype=bool)
    for _ in range(DIVISIONS):
        if np.all(np.nextafter(start, stop) == stop):  # nothing is between them
            break
        places = (1 - shares) * start + shares * stop
        held[:-1] = holds(places[1:-1].ravel()).reshape(-1, len(start))
        first = np.argmax(held, axis=0)
        start, stop = places[first, lines], places[first + 1, lines]
    return stop


def _near(numbers: Array, within: Array | float) -> Indices:
    """Return which numbers are so near to 0, none or two at least.

    BLAS takes the sums of a single sequence in another order than those of several.
    """
    near = np.flatnonzero(np.abs(numbers) <= within)
    return np.resize(near, 2) if len(near) == 1 else near


def compare_labels(
    model: SingleHead, certificate: Certificate, X: Array, label: Labels
) -> Residuals:
    """Compare labels with the recovered head's.

    A residual is how far from 0, relative to max_i‖x_i‖, the head's answer is where the label
    says that it has the other sign, and 0 where they agree. Its tolerance is what the
    certificate lets the head be off by.
    """
    at = HeadAt.of(model, X)
    allowed = uncertainty(at, model.v, certificate)
    return Residuals.of(
        from_the_side(at.predicted, label),
        allowed=allowed,
        size=at.longest,
        telling=allowed / at.longest < MOST_SHARE,
    )


def judge_labels(
    model: SingleHead, certificate: Certificate, answered: list[Answered], checks: int
) -> Judgement:
    """Judge a head by its hold-out's labels; refuse one that some label contradicts.

    Raises
    ------
    ModelMismatch
        By more than its certificate allows.
    """
    labels = read_labels([y for _, y in answered])
    judgement = judge(
        (
            compare_labels(model, certificate, X, label)
            for (X, _), label in zip(answered, labels, strict=True)
        ),
        checks,
    )
    refuse_wrong_labels(judgement, model.dim)
    return judgement


def refuse_wrong_labels(judgement: Judgement, dim: int) -> None:
    """Refuse a head that some label contradicts by more than its certificate allows."""
    evidence = judgement.evidence
    if not judgement.blunt and not evidence.passed:
        raise Reason.LABELS_UNPREDICTED.error(missed=evidence.max_residual, dim=dim)


def with_lengths(
    certificate: Certificate, model: SingleHead, answered: list[Answered], long: list[Sequences]
) -> Certificate:
    """Say in a certificate up to which length and size of logits labels were looked at."""
    if not any(len(y) for _, y in answered):
        return certificate
    looked = looked_at(model, answered, long)
    bit = (
        "A label is one bit: what differs at large logits alone, as clipped scores do, may answer "
        "the few sequences asked there with the same labels."
    )
    return replace(certificate, assumes=(*certificate.assumes, looked, bit))
