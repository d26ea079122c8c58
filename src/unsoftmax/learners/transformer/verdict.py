"""How a Transformer's learner ends: fresh sequences, each within what the certificate allows."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.transformer.aim import gradients
from unsoftmax.learners.transformer.known import Known
from unsoftmax.learners.transformer.local import Attention
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.models import ReluNetwork, Transformer
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.protocol import Answers, Certificate, Evidence, Found

# A logit that the certificate lets move by more than this says nothing about the model.
_MOST_MOVED = 0.01
# The network may be steeper between a pooled token and its sequence's than at any of them.
_STEEPER = 2.0
# Sequences of the closing hold-out: their lengths, how long query tokens are in lengths of the
# network, root mean squares of logits, and how many are tried for each.
_LENGTHS, _SIZES, _LOGITS, _TRIED = (2, 3, 5, 8), (-1.0, 3.0), (0.5, 2.0, 6.0), 32
# Certificates are loose: where answers are exact no residual may be larger than these shares of
# what attention may move, max‖x_i − x_N‖·‖∇g‖, and of the natural size of its answer,
# max‖x_i‖·‖∇g‖ + ``|g(0)|``. Recoveries leave 1e-8 of the one and 3e-9 of the other, or less.
_MOST_UNEXPLAINED, _MOST_OF_ALL = 1e-6, 1e-8


def conclude(
    attention: Attention,
    known: Known,
    network: Found[ReluNetwork],
    opened: tuple[Sequences, Array],
    count: int,
    checks: int,
    rng: np.random.Generator,
    rank: int | None,
    biases: bool,
) -> Generator[Round, Answers, Found[Transformer]]:
    """Ask the closing hold-out and return what was found, or refuse it.

    Parameters
    ----------
    attention, known, network : Attention, Known, Found
        What was learned.
    opened : tuple
        The first sequences of the hold-out and their answers.
    count, checks : int
        Queries left, and of the whole hold-out.
    rng : Generator
        Makes the sequences.
    rank : int, optional
        The rank that W was taken to have, [W w] with biases.
    biases : bool
        Whether a w was looked for.
    """
    model = attention.model
    errors = {
        "constant": known.constant,
        "slope": known.slope,
        "W": attention.W_error,
        "w": attention.w_error,
    }
    certificate = Certificate(errors, _assumed(known, network, checks, rank, biases))
    probes, answers = [opened[0]], [opened[1]]
    if count:
        closing = _telling(model, known, count, rng)
        probes += closing
        answers += yield list(closing)
    evidence = _judged(model, known, certificate, probes, answers, checks)
    notes = network.notes
    if not np.isfinite(attention.W_error):
        notes = (*notes, "There is no finite bound on W: see the certificate's assumptions.")
    return Found(model, certificate, evidence, notes)


def _telling(
    model: Transformer, known: Known, count: int, rng: np.random.Generator
) -> list[Sequences]:
    """Make sequences whose answers depend on the attention: g must not be flat there.

    Of many around query tokens of all lengths those are taken whose answer differs most from that
    of the tokens' mean. Half of all query tokens are unit vectors, so that single columns of W
    count, and half of the offsets orthogonal to w, so that W does where w is large.
    """
    d, sequences = model.dim, dict[int, list[Array]]()
    across = model.w / (np.linalg.norm(model.w) or 1.0)
    for n in range(count):
        length = _LENGTHS[n % len(_LENGTHS)]
        X = np.empty((_TRIED, length, d))
        for k in range(_TRIED):
            direction = rng.standard_normal(d) / np.sqrt(d)
            if n % 2:
                direction = np.eye(1, d, int(rng.integers(d)))[0]
            b = known.length * 10.0 ** rng.uniform(*_SIZES) * rng.choice([-1.0, 1.0]) * direction
            offsets = rng.standard_normal((length - 1, d)) / np.sqrt(d)
            if n % 4 > 1 and d > 1:
                offsets -= np.outer(offsets @ across, across)
            rms = float(np.sqrt(np.mean((offsets @ model.scores_of(b[None])[0]) ** 2)))
            reach = max(float(np.linalg.norm(b)), known.length)
            alpha = min(_LOGITS[n % len(_LOGITS)] / rms, reach) if rms > 0 else reach
            X[k] = np.vstack([b + alpha * offsets, b])
        difference = np.abs(model(X) - known.network(X.mean(axis=1)))
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        best = X[int(np.argmax(difference / longest))]
        sequences.setdefault(length, []).append(best)
    return [
        Sequences(np.array(X), phase="hold-out, closing", purpose="check")
        for X in sequences.values()
    ]


def _assumed(
    known: Known, network: Found[ReluNetwork], checks: int, rank: int | None, biases: bool
) -> tuple[str, ...]:
    given = ["The target is one softmax head followed by the network: what the hold-out tests, it "
             "cannot prove."]  # fmt: skip
    if rank is not None:
        given.append(f"{'[W w]' if biases else 'W'} has rank {rank} or less.")
    if not np.isfinite(known.constant + known.slope):
        given.append(
            "No bound on W: the network's certificate does not bound its function by constant + "
            "slope·‖x‖."
        )
    given += known.precision.why
    if not checks:
        given.append("Nothing was checked: exact float64 answers are taken for granted.")
    return (*network.certificate.assumes, *given)


def _judged(
    model: Transformer,
    known: Known,
    certificate: Certificate,
    probes: list[Sequences],
    answers: list[Array],
    checks: int,
) -> Evidence:
    """Hold the model against fresh sequences."""
    misses, tolerances, longest, spreads, steepest = [], [], [], [], 0.0
    at_zero = float(np.abs(known.network(np.zeros((1, model.dim))))[0])
    bounded = np.isfinite(sum(certificate.errors.values()))
    exact = known.precision == Precision()
    W_error, w_error = (min(certificate.errors[name], 1e100) for name in "Ww")
    for family, y in zip(probes, answers, strict=True):
        if not len(y):
            continue
        X = family.X
        weights, vectors = model.attention(X), model.scores_of(X[:, -1])
        pooled = np.einsum("bn,bnd->bd", weights, X)
        away = np.linalg.norm(X - X[:, -1:], axis=2)
        moved = away * (np.linalg.norm(X[:, -1], axis=1) * W_error + w_error)[:, None]
        moved += away * (KAPPA * UNIT * np.linalg.norm(vectors, axis=1))[:, None]
        telling = np.full(len(X), True)
        if bounded and not exact:
            telling = np.max(moved, axis=1) <= _MOST_MOVED
        moved = np.minimum(moved, _MOST_MOVED)
        shift = np.sum(weights * np.linalg.norm(X - pooled[:, None], axis=2) * moved, axis=1)
        slope = _slope(known.network, X, pooled)
        steepest = max(steepest, float(slope.max()))
        own = known.error(pooled) if bounded else _MOST_MOVED * np.abs(y)
        allowed = own + known.rounding(pooled, y) + _STEEPER * shift * slope
        longest.append(np.linalg.norm(X, axis=2).max(axis=1)[telling])
        spreads.append(away.max(axis=1)[telling])
        misses.append((y - known.network(pooled))[telling])
        tolerances.append(allowed[telling])
    if not checks:
        return Evidence.of(0, np.zeros(0), np.zeros(0))
    miss, tolerance, length, spread = (
        np.concatenate(part) for part in (misses, tolerances, longest, spreads)
    )
    if not len(miss):
        raise _too_coarse(known)
    # g may be flat at some sequences: its steepest piece sets the size of all
    size = length * steepest + at_zero
    size = np.where(size > 0, size, 1.0)
    miss, tolerance = miss / size, tolerance / size
    if exact:
        moving = _MOST_UNEXPLAINED * spread * steepest / size
        tolerance = np.minimum(tolerance, moving + _MOST_OF_ALL)
    evidence = Evidence.of(checks, miss, tolerance)
    if not evidence.passed and not exact and not bounded:
        raise _too_coarse(known)
    if not evidence.passed:
        worst = int(np.argmax(np.abs(miss) / np.maximum(tolerance, 1e-300)))
        raise ModelMismatch(
            f"The recovered model misses fresh sequences by {np.abs(miss[worst]):.1e} of their "
            f"answers' size where {tolerance[worst]:.1e} is expected. The target is not one "
            "softmax head followed by a ReLU network, or it has query biases, or [W w] a higher "
            "rank than was said."
        )
    return evidence


def _too_coarse(known: Known) -> NotIdentifiable:
    said = "".join(f" {sentence}" for sentence in known.precision.why)
    return NotIdentifiable(
        "The answers are too coarse to determine W: what they leave open moves every fresh answer "
        f"more than can be told apart. The network is determined.{said}",
        determined={"network": known.network},
    )


def _slope(network: ReluNetwork, X: Array, pooled: Array) -> Array:
    """Return the largest ‖∇ĝ‖ at the tokens and the pooled one."""
    points = np.concatenate([X, pooled[:, None]], axis=1)
    count, tokens, d = points.shape
    norms = np.linalg.norm(gradients(network, points.reshape(-1, d)), axis=1)
    return np.asarray(norms.reshape(count, tokens).max(axis=1))
