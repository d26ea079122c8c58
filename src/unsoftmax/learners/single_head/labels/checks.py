"""The hold-out of label learners: fresh sequences as close to a flip as the certificate allows.

A label is one bit, and far from f = 0 every model of about the right sign predicts it. So the
recovered head is asked where its own answer is next to nothing:

- *opening*, a quarter of the checks, asked first: three tokens at sizes 4⁻⁴ … 4³, labelled as
  they come. They tell this target from another when a run is resumed.
- *closing*, the rest, last: two sequences of 2 to 7 tokens with labels 1 and 0, and on the
  line between them the two points on either side of f̂ = 0 where the label is just certain.

What is not this head has its flip elsewhere on that line, so one of the two labels is wrong,
however small the difference, as long as it is larger than the certificate's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import ModelMismatch
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Certificate, Evidence
from unsoftmax.validate.head_comparison import UNBOUNDED, HeadAt
from unsoftmax.validate.judge import Residuals, from_the_side
from unsoftmax.validate.judge import judge as verdict

_LENGTHS = (2, 3, 5, 7)
_LOGITS = (0.5, 1.0, 2.0)
# Logits that the certificate leaves open by more say little; sequences are kept shorter.
_MOST_MOVED = 0.05
# Sizes that bisection itself may have asked.
_LARGEST = 2.0**60
# Both halve a line until float64 ends: 2⁻⁶⁰ of it.
_HALVINGS = 60
# Labels are asked where f̂ is so many times what it may be off by.
_CERTAIN = 1.01
# Scores open by more leave the weights open: no use for so large a bound.
_NOTHING_KNOWN = 1.0
# A sequence whose answer may be off by this share of its size says nothing. Without any other
# the evidence is that nothing was checked.
_TELLING = 0.5


def closing(
    model: SingleHead, certificate: Certificate, count: int, rng: np.random.Generator
) -> list[Sequences]:
    """Make ``count`` sequences next to the recovered head's flips, one family per length."""
    asked = np.bincount(np.arange(count) % len(_LENGTHS), minlength=len(_LENGTHS))
    families = []
    for length, wanted in zip(_LENGTHS, asked, strict=True):
        if not wanted:
            continue
        pairs = (int(wanted) + 1) // 2
        ends = np.stack([_sequences(model, certificate, pairs, length, rng) for _ in range(2)])
        # f(−X) = −f(X): every sequence can be made to have either label
        signs = np.where(model(ends.reshape(-1, length, model.dim)) > 0, 1.0, -1.0)
        ends *= (signs.reshape(2, pairs) * np.array([[1.0], [-1.0]]))[..., None, None]
        X = _beside_the_flip(model, certificate, *ends)
        families.append(Sequences(X[: int(wanted)], phase="hold-out, closing", purpose="check"))
    return families


def _sequences(
    model: SingleHead, certificate: Certificate, count: int, length: int, rng: np.random.Generator
) -> Array:
    """Make random sequences whose logits are moderate and known."""
    d = model.dim
    X = rng.standard_normal((count, length, d)) / np.sqrt(d)
    query = X[:, -1]
    scores = np.einsum("bnd,bd->bn", X[:, :-1], model.scores_of(query))
    wanted = np.resize(_LOGITS, count)
    with np.errstate(divide="ignore"):
        size = wanted / np.sqrt(np.mean(scores**2, axis=1))
        reach = np.linalg.norm(X, axis=2).max(axis=1) * np.linalg.norm(query, axis=1)
        known = _MOST_MOVED / (2 * reach * min(certificate.errors["W"], 1e100))
    size = np.minimum(np.minimum(size, known), _LARGEST)
    X[:, :-1] += query[:, None]
    return np.asarray(X * np.sqrt(size)[:, None, None])


def _beside_the_flip(
    model: SingleHead, certificate: Certificate, ones: Array, zeros: Array
) -> Array:
    """Return sequences on the lines from ``ones`` to ``zeros``, in pairs around f̂ = 0."""
    count = len(ones)

    def at(place: Array) -> Array:
        return (1 - place[:, None, None]) * ones + place[:, None, None] * zeros

    low, high = np.zeros(count), np.ones(count)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = model(at(middle)) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    # from the flip outwards, to either end
    near, far = np.tile((low + high) / 2, 2), np.repeat([0.0, 1.0], count)
    ones, zeros = np.tile(ones, (2, 1, 1)), np.tile(zeros, (2, 1, 1))
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        X = at(middle)
        certain = np.abs(model(X)) >= _CERTAIN * uncertainty(model, certificate, X)
        near, far = np.where(certain, near, middle), np.where(certain, middle, far)
    return np.stack(np.split(at(far), 2), axis=1).reshape(2 * count, *ones.shape[1:])


def uncertainty(model: SingleHead, certificate: Certificate, X: Array) -> Array:
    """Bound how far the model's answer can be from what the target computes, ‖v‖ = 1.

    Scores that move by at most m each move the weighted mean of numbers y_i by at most
    (e^m − 1)e^m Σ α_i|y_i − f|.
    """
    at = HeadAt.of(model, X)
    values = X @ model.v
    mean = np.sum(at.weights * values, axis=1)
    spread = np.sum(at.weights * np.abs(values - mean[:, None]), axis=1)
    moved = at.away * (at.query_norm * min(certificate.errors["W"], UNBOUNDED))[:, None]
    moved += 2 * KAPPA * UNIT * at.norms * at.score_size[:, None]
    m, size = moved.max(axis=1), at.longest
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = np.where(m < _NOTHING_KNOWN, np.expm1(m) * np.exp(m) * spread, 2 * size)
    bound: Array = size * (2 * KAPPA * UNIT + certificate.errors["v"]) + shifted
    return bound


def compare(
    model: SingleHead, certificate: Certificate, X: Array, label: NDArray[np.bool_]
) -> Residuals:
    """Compare labels with the recovered head's."""
    predicted, size = model(X), np.linalg.norm(X, axis=2).max(axis=1)
    allowed = uncertainty(model, certificate, X)
    return Residuals.of(
        from_the_side(predicted, label),
        allowed=allowed,
        size=size,
        telling=allowed / size < _TELLING,
    )


def judge(
    probes: list[Sequences],
    labels: list[NDArray[np.bool_]],
    model: SingleHead,
    certificate: Certificate,
    queries: int,
) -> Evidence:
    """Compare labels with the recovered head's.

    A residual is how far from 0, relative to max_i‖x_i‖, the head's answer is where the label
    says that it has the other sign, and 0 where they agree. Its tolerance is what the
    certificate lets the head be off by.

    Raises
    ------
    ModelMismatch
        A label contradicts the head by more than that.
    """
    evidence = verdict(
        (
            compare(model, certificate, family.X, label)
            for family, label in zip(probes, labels, strict=True)
        ),
        queries,
    ).evidence
    if np.isfinite(evidence.max_residual) and not evidence.passed:
        raise ModelMismatch(
            "The recovered head gives fresh sequences the wrong label where its answer, up to "
            f"{evidence.max_residual:.1e} of their size, is certain to have the right sign. The "
            "target is not the sign of a single attention head without biases over "
            f"{model.dim} dimensions, or some labels are wrong, or it computes more coarsely than "
            "float64 (float32 supports 16 bits)."
        )
    return evidence
