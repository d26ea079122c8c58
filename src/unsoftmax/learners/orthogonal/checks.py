"""The hold-out of heads in orthogonal subspaces: fresh sequences over all of R^d.

The learner asks within one subspace at a time; that the heads add up, and that there is nothing
between the subspaces, only sequences that leave them can show. The opening is a single head's
(`unsoftmax.learners.opening`); the closing has three to six tokens, at sizes that make the logits
of one head after the other moderate, from the weakest to the strongest.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.opening import Opening, why
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.protocol import Answers, Certificate, Evidence
from unsoftmax.theory.precision import KAPPA, Precision
from unsoftmax.theory.two_tokens import Values

_LENGTHS = (3, 4, 5, 6)
_LOGITS = (2.0, 0.5, 6.0)
# As for a single head: random directions meet ‖ΔW‖_F in about 1/d of its size.
_ALIGNMENT = 2.0
# A logit that the certificate lets move by more than this says nothing about the model.
_MOST_MOVED = 0.01


def certificate_of(
    errors: dict[str, float], values: Values, checks: int, further: tuple[str, ...]
) -> Certificate:
    """Return the bounds with all they assume."""
    precision = values.precision
    return Certificate(
        errors,
        (
            "The target is a sum of heads in mutually orthogonal subspaces: what the hold-out "
            "tests, it cannot prove.",
            f"An answer is off by at most {KAPPA:.0f} × {precision.unit:.1e} × "
            "max‖x_i‖·Σ‖v_h‖ from rounding, beside what is named here.",
            *precision.why,
            *(() if checks else ("Nothing was checked: exact answers are taken for granted.",)),
            *further,
        ),
    )


def judged(
    model: MultiHead,
    certificate: Certificate,
    opened: Opening,
    checks: int,
    rng: np.random.Generator,
) -> Generator[Round, Answers, Evidence]:
    """Ask the closing hold-out and return how the model stands, or refuse it."""
    families = _closing(model, opened.closing, rng)
    closed = yield list(families)
    residuals, tolerances = [np.empty(0)], [np.empty(0)]
    for family, y in zip([opened.probes, *families], [opened.answers, *closed], strict=True):
        residual, tolerance = _compare(model, certificate, opened.values.precision, family.X, y)
        residuals.append(residual)
        tolerances.append(tolerance)
    residual, tolerance = np.concatenate(residuals), np.concatenate(tolerances)
    evidence = Evidence.of(checks, residual, tolerance)
    if checks and not len(residual):
        raise NotIdentifiable(
            "No fresh sequence tells whether the heads that were found are right: their bounds, "
            f"{certificate.W_error:.0e} for W, leave all logits open."
            + why(opened.values.precision),
            determined={"v": opened.values.v},
        )
    if checks and not evidence.passed:
        worst = int(np.argmax(np.abs(residual) / tolerance))
        raise ModelMismatch(
            f"The {model.H} heads that were found miss fresh answers by "
            f"{np.abs(residual[worst]):.1e} of their size where {tolerance[worst]:.1e} is "
            "expected. The target is not a sum of heads in mutually orthogonal subspaces"
            f"{' like these' if model.H > 1 else ''}: ExactHead learns a single head, "
            f"MultiHeadLearner heads in any position.{why(opened.values.precision)}"
        )
    return evidence


def _closing(model: MultiHead, count: int, rng: np.random.Generator) -> list[Sequences]:
    """Make sequences at moderate logits of one head after the other, a family per length."""
    d = model.dim
    sequences: dict[int, list[Array]] = {}
    for n in range(count):
        length = _LENGTHS[n % len(_LENGTHS)]
        x = rng.standard_normal((length, d)) / np.sqrt(d)
        size = 1.0
        if model.H:
            W = model.W[n % model.H]
            logit = float(np.sqrt(np.mean((x[:-1] @ (W @ x[-1])) ** 2)))
            size = float(np.sqrt(_LOGITS[n % len(_LOGITS)] / logit)) if logit else 1.0
        sequences.setdefault(length, []).append(size * x)
    return [
        Sequences(np.array(X), phase="hold-out, closing", purpose="check")
        for X in sequences.values()
    ]


def _compare(
    model: MultiHead, certificate: Certificate, precision: Precision, X: Array, y: Array
) -> tuple[Array, Array]:
    """Return residuals, and what the certificate lets them be; of sequences that tell something."""
    if not len(X):
        return np.empty(0), np.empty(0)
    W_error, v_error = (min(certificate.errors[name], 1e100) for name in "Wv")
    certain = W_error < 1e100
    tokens = X.transpose(0, 2, 1)
    vectors = model.scores_of(X[:, -1])
    scores = vectors @ tokens
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    values = model.v @ tokens
    spread = weights * np.abs(values - np.sum(weights * values, axis=2, keepdims=True))

    norms = np.linalg.norm(X, axis=2)
    away = np.linalg.norm(X - X[:, -1:], axis=2)
    share = min(1.0, _ALIGNMENT / model.dim)
    moved = np.broadcast_to((share * norms[:, -1:] * away * W_error)[:, None], scores.shape)
    rounding = KAPPA * precision.unit * norms[:, None] * np.linalg.norm(vectors, axis=2)[:, :, None]
    moved = moved + rounding
    telling = np.max(moved, axis=(1, 2), initial=0.0) <= _MOST_MOVED
    # exact answers of a right model miss far less than a loose bound lets them: all count
    if not certain or precision == Precision():
        telling[:] = True
    longest = norms.max(axis=1)
    size = longest * np.sum(np.linalg.norm(model.v, axis=1))
    size = np.where(size > 0, size, 1.0)
    allowed = np.sum(spread * np.minimum(moved, _MOST_MOVED), axis=(1, 2))
    own = precision.error(size, y) + longest * model.H * v_error
    return ((y - model(X)) / size)[telling], ((own + allowed) / size)[telling]
