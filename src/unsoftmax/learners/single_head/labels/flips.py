"""The hold-out of label learners: fresh sequences as close to a flip as the certificate allows.

A label is one bit, and far from f = 0 even a wrong model predicts it. So the target is asked
where the recovered head's own answer is close to 0:

- *opening*, a quarter of the checks, asked first: three tokens at sizes 4⁻⁴ … 4³, labelled as
  they come. They tell this target from another when a run is resumed.
- *closing*, the rest, last: on the line between two sequences of 2 to 7 tokens with labels 1
  and 0, the two points on either side of f̂ = 0 that are nearest to it among those where the
  certificate leaves no doubt about the sign.

A target other than this head flips elsewhere on that line. If its flip is further away than the
certificate allows, one of the two labels is wrong, however small the difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.labels.bisection import Labels, read_labels
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models import SingleHead
from unsoftmax.models.attention import largest_mean_shift
from unsoftmax.probes import Array, Flags, Probes, Sequences
from unsoftmax.protocol import Certificate, Evidence
from unsoftmax.refusals import Reason
from unsoftmax.validate.head_comparison import UNBOUNDED, HeadAt, sum_rounding
from unsoftmax.validate.judge import (
    Answered,
    Judgement,
    Residuals,
    fresh_answers,
    from_the_side,
    judge,
)
from unsoftmax.validate.long_sequences import draw_long, in_rounds, looked_at, shapes_of
from unsoftmax.validate.sequences import by_length

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
# A sequence whose answer may be off by this share of its size is left out. Without any other the
# evidence is that nothing was checked.
MOST_SHARE = 0.5
# Long sequences are asked but for single tokens, whose labels do not depend on W; none where W is
# known less well than to this share of it: at logits as small as that bound then asks for, labels
# of many tokens do not depend on W.
VAGUE = 0.1
# A bound on W below this is no vague one, however small W is.
NO_VAGUE_BOUND = 1e-6


def uncertainty(at: HeadAt, v: Array, certificate: Certificate) -> Array:
    """Bound how far a head's answers can be from what the target computes, ‖v‖ = 1."""
    # round-off twice: that of the target's scores and that of the scores as computed here
    moved = at.score_moves(2 * UNIT, min(certificate.errors["W"], UNBOUNDED))
    values = at.X @ v
    mean = np.sum(at.weights * values, axis=1, keepdims=True)
    shifted = largest_mean_shift(at.weights, np.abs(values - mean), moved.max(axis=1))
    rounded = at.longest * (2 * KAPPA * UNIT + certificate.errors["v"])
    return np.asarray(rounded + shifted + sum_rounding(at.weights, values, 2 * UNIT))


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

    drawn = [draw_long(model, count // 2, rng, sized) for _ in range(2)]
    flips: list[Array] = []
    for shape, *ends in zip(shapes_of(count // 2, model.dim), *drawn, strict=True):
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
    ones, zeros = signs[..., None, None] * ends
    count = len(ones)

    def between(place: Array) -> Array:
        """Return points of the lines at some places of all of them, (places of one · lines,)."""
        share = place.reshape(-1, count, 1, 1)
        points = (1 - share) * ones + share * zeros
        return np.asarray(points.reshape(-1, *ones.shape[1:]))

    def below(place: Array) -> Flags:
        return np.asarray(model(between(place)) <= 0)

    def certain(place: Array) -> Flags:
        at = HeadAt.of(model, between(place))
        off = uncertainty(at, model.v, certificate)
        return np.asarray(np.abs(at.predicted) >= CERTAIN * off)

    flip = _first(below, np.zeros(count), np.ones(count))
    # from the flip outwards, to either end
    far = between(_first(certain, np.tile(flip, 2), np.repeat([0.0, 1.0], count)))
    pairs = np.stack(np.split(far, 2), axis=1)
    return pairs.reshape(2 * count, *ones.shape[1:])


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


def conclude_labels(
    model: SingleHead,
    certificate: Certificate,
    opened: Answered,
    checks: int,
    rng: np.random.Generator,
    ends: Sequence[Probes] = (),
) -> Asking[tuple[Certificate, Evidence]]:
    """Ask the rest of the hold-out, ``opened`` being its first sequences with their labels.

    ``ends`` are asked beside it, in turn below flips, where labels are 1, and above.

    Raises
    ------
    ModelMismatch
        Some label contradicts the head by more than its certificate allows, or a flip.
    """
    left = checks - len(opened[1])
    long = long_at_flips(model, certificate, left, rng)
    closing = at_flips(model, certificate, left - sum(map(len, long)), rng)
    fresh = yield from fresh_answers([*ends, *closing])
    labels = read_labels([y for _, y in fresh])
    _refuse_contradictions(labels[: len(ends)])
    read = [(X, y.astype(np.float64)) for (X, _), y in zip(fresh, labels, strict=True)]
    answered = yield from fresh_answers([], [opened, *read[len(ends) :]], in_rounds(long))
    labels = read_labels([y for _, y in answered])
    each = zip(answered, labels, strict=True)
    compared = (compare_labels(model, certificate, X, label) for (X, _), label in each)
    judgement = judge(compared, checks)
    refuse_wrong_labels(judgement, model.dim)
    return _with_lengths(certificate, model, answered, long), judgement.evidence


def _refuse_contradictions(labels: list[Labels]) -> None:
    """Refuse labels of the end checks that say that a flip is outside of its interval."""
    wrong = sum(int(np.count_nonzero(y == bool(n % 2))) for n, y in enumerate(labels))
    if wrong:
        raise Reason.FLIPS_CONTRADICT.error(wrong=wrong, asked=sum(map(len, labels)))


def refuse_wrong_labels(judgement: Judgement, dim: int) -> None:
    """Refuse a head that some label contradicts by more than its certificate allows."""
    evidence = judgement.evidence
    if not judgement.blunt and not evidence.passed:
        raise Reason.LABELS_UNPREDICTED.error(missed=evidence.max_residual, dim=dim)


def _with_lengths(
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
