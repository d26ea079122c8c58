"""Error bounds that need no ground truth: from the answers' precision to the parameters.

Source: beyond the paper, whose Theorem 4.1 is exact arithmetic. The measurements
M_ji = z_i·(W b_j) come from logits, T = s∘M, so ‖ΔM‖_F is bounded by what each answer's
error does (`two_tokens`), the part that comes from v̂ counted once for all answers that
share it. Solving Z W = M then divides by σ_min(Z).
"""

from __future__ import annotations

import numpy as np

from unsoftmax.probes import Array
from unsoftmax.theory.precision import KAPPA, UNIT
from unsoftmax.theory.two_tokens import Gates, Values, Vectors, answer_error


def measurement_error(
    gates: Gates,
    y: Array,
    a: Vectors,
    b: Vectors,
    alpha: Array,
    beta: Array,
    scale: Array,
    score_norm: Array,
    stretch: float,
    values: Values,
) -> float:
    """Bound the Frobenius norm of the error of M = logits / scale.

    Parameters
    ----------
    gates, y, alpha, beta, scale : Gates, ndarray (query tokens, offsets)
        The answers, how they were read, and the scales they were asked at.
    a, b : Vectors
        Offsets, broadcasting along the last axis, and query tokens along the first.
    score_norm : ndarray (query tokens, offsets)
        ‖βW b_j + w‖ of the scores' vectors, for the rounding of the scores themselves.
    stretch : float
        ‖Z‖₂ of the offsets.
    values : Values
        v̂, ĉ and their errors.
    """
    if not np.all(gates.margin > 0):
        return float("inf")
    with np.errstate(divide="ignore", over="ignore"):
        gain = gates.slope / (np.abs(alpha * a.value) * scale)
    answers = np.linalg.norm(gain * answer_error(y, a, b, alpha, beta, values))
    query_values = np.linalg.norm(gain * beta * b.value_error)
    # one δv for all offsets: Σ_i (z_i·δv)² ≤ ‖Z‖₂²‖δv‖²
    shared = np.sqrt(np.max(np.sum((gain * (gates.p + gates.p_error) * alpha) ** 2, axis=0)))
    offset_values = shared * stretch * np.linalg.norm(values.v_error)
    token_norm = alpha * a.norm + beta * b.norm
    scores = np.linalg.norm(KAPPA * values.precision.unit * token_norm * score_norm / scale)
    reading = 4 * UNIT * np.linalg.norm(gates.logit / scale)
    return float(answers + query_values + offset_values + scores + reading)


def solve_error(measured: float, smallest: float, largest: float, size: float) -> float:
    """Bound ‖Ŵ − W‖_F for Ŵ = Z⁻¹M̂.

    ``measured`` bounds ‖M̂ − M‖_F; ``smallest`` and ``largest`` are Z's extreme singular
    values; ``size`` is ‖Ŵ‖_F.
    """
    return measured / smallest * (1 + 1e-6) + 4 * UNIT * largest / smallest * size
