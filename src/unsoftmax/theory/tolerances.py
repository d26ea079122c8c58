"""Theorem 6.1: how precise answers must be for W and v to be as precise as one likes.

The paper asks v_i from e_i, and W_ij from the probe [a+b; b] with a = e_i/W̄, b = e_j/2, where
‖W‖_F ≤ W̄, W̄ ≥ 2, ‖v‖ ≤ 1 and |v_i| ≥ μ or v_i = 0. Answers are within ±τ, τ ≤ μ/2. Then
|t| ≤ ½, p = σ(t) ≤ 0.623, and

    |p̂ − p| ≤ (τW̄ + τW̄/2 + pτ)/|v̂_i| ≤ 3.63·W̄τ/μ       as |v̂_i| ≥ μ/2 and 1 ≤ W̄/2,
    |Ŵ_ij − W_ij| ≤ 2W̄·4.2553·|p̂ − p| ≤ 30.9·W̄²τ/μ      σ⁻¹ is 4.2553-Lipschitz on |t| ≤ ½.

Rows with v_i = 0 take a = (e_i + e_p)/W̄, v_p ≠ 0, and then subtract Ŵ_pj. |W_ij + W_pj| may be
√2·W̄, so they need b = e_j/(2√2), which the paper misses: at b = e_j/2 the logit can be 0.707,
beyond the clip. Since v̂_i = 0 is exact and b is shorter,

    |p̂ − p| ≤ (τW̄ + τW̄/(2√2) + pτ)/|v̂_p| ≤ 3.34·W̄τ/μ,
    |Ŵ_ij − W_ij| ≤ 2√2·W̄·4.2553·3.34·W̄τ/μ + 30.9·W̄²τ/μ ≤ 71.1·W̄²τ/μ,

below the 80 of the theorem: zero rows need no smaller tolerance than others, for any p.
"""

import math
from numbers import Integral, Real


def tolerance_for(eps_v: float, eps_W: float, dim: int, margin: float, norm_bound: float) -> float:
    """Return the largest error of the answers for which Theorem 6.1 promises ε_v and ε_W.

    τ = min{ε_v/√d, μ/2, μ·ε_W/(80·W̄²·d)}: one number for single tokens and pairs. The paper has
    two, and lets pairs be answered less precisely than single tokens: `tolerances_for`.

    Parameters
    ----------
    eps_v, eps_W : float
        Wanted bounds on ‖v̂ − v‖₂ and ‖Ŵ − W‖_F, 0 or more; inf where it does not matter.
    dim : int
        Dimension d of a token.
    margin : float
        μ: no entry of v but 0 is smaller; at most 1, since ‖v‖ ≤ 1.
    norm_bound : float
        W̄ ≥ ‖W‖_F, at least 2.

    Returns
    -------
    float
        τ; 0 where only exact answers do.

    Raises
    ------
    ValueError
        An argument is out of range.

    Notes
    -----
    *Source*: Theorem 6.1 of arXiv 2601.16873, with zero entries of v at the same tolerance
    (the paper halves it); the module has the proof.

    Examples
    --------
    >>> tolerance_for(0.1, 0.1, dim=4, margin=0.5, norm_bound=2.0)
    3.90625e-05
    """
    return min(tolerances_for(eps_v, eps_W, dim, margin, norm_bound))


def tolerances_for(
    eps_v: float, eps_W: float, dim: int, margin: float, norm_bound: float
) -> tuple[float, float]:
    """Return (τ_v, τ_f): how far single tokens, and pairs, may be off for ε_v and ε_W.

    τ_f = μ·ε_W/(80·W̄²·d) and τ_v = min{ε_v/√d, μ/2, τ_f}. Single tokens need the more precise
    answers: v's own error is theirs, and W is read with v.

    Parameters
    ----------
    eps_v, eps_W, dim, margin, norm_bound : float, float, int, float, float
        As for `tolerance_for`.

    Raises
    ------
    ValueError, TypeError
        An argument is out of range, or not of its type.

    Notes
    -----
    *Source*: Theorem 6.1 of arXiv 2601.16873, with zero entries of v at the same tolerances (the
    paper halves them).

    Examples
    --------
    >>> tolerances_for(1e-6, 0.1, dim=4, margin=0.5, norm_bound=2.0)
    (5e-07, 3.90625e-05)
    """
    _check(dim, margin, norm_bound, eps_v=eps_v, eps_W=eps_W)
    pairs = margin * eps_W / _gain(dim, norm_bound)
    return min(eps_v / math.sqrt(dim), margin / 2, pairs), pairs


def error_for(tau: float, dim: int, margin: float, norm_bound: float) -> tuple[float, float]:
    """Return the errors (ε_v, ε_W) that Theorem 6.1 promises for answers within ±τ.

    ε_v = √d·τ and ε_W = 80·W̄²·d·τ/μ, the inverse of `tolerance_for`; ε_W is inf for τ > μ/2,
    where an entry of v cannot be told from 0.

    Parameters
    ----------
    tau : float
        Largest error of an answer, 0 or more.
    dim, margin, norm_bound : int, float, float
        As for `tolerance_for`.

    Raises
    ------
    ValueError
        An argument is out of range.

    Examples
    --------
    >>> eps_v, eps_W = error_for(3.90625e-05, dim=4, margin=0.5, norm_bound=2.0)
    >>> eps_v, round(eps_W, 12)
    (7.8125e-05, 0.1)
    """
    _check(dim, margin, norm_bound, tau=tau)
    eps_v = math.sqrt(dim) * tau
    if tau > margin / 2:
        return eps_v, math.inf
    return eps_v, _gain(dim, norm_bound) * tau / margin


def _gain(dim: int, norm_bound: float) -> float:
    """Return 80·W̄²·d, how much larger than τ/μ Theorem 6.1 lets ‖Ŵ − W‖_F be.

    The proof above needs 71.1 instead of 80 at most.
    """
    return 80.0 * norm_bound**2 * dim


def _check(dim: int, margin: float, norm_bound: float, **errors: float) -> None:
    for name, number in {"margin": margin, "norm_bound": norm_bound, **errors}.items():
        if isinstance(number, bool) or not isinstance(number, Real):
            raise TypeError(f"{name} must be a number; it is {number!r}.")
    if isinstance(dim, bool) or not isinstance(dim, Integral):
        raise TypeError(f"dim must be a whole number; it is {dim!r}.")
    if dim < 1:
        raise ValueError(f"dim must be 1 or more; it is {dim}.")
    if not 0 < margin <= 1:
        raise ValueError(f"margin must be above 0 and at most 1, as ‖v‖ is; it is {margin}.")
    if not 2 <= norm_bound < math.inf:
        raise ValueError(
            f"norm_bound must be finite and at least 2; it is {norm_bound}. A smaller norm is "
            "bounded by 2 as well."
        )
    for name, error in errors.items():
        if not error >= 0:
            raise ValueError(f"{name} must be 0 or more; it is {error}.")
