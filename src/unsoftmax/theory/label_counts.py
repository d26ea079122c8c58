"""How many labels Theorem B.1 asks for, and how many the bisection beyond it."""

from __future__ import annotations

import math

GROUP = 8
"""Entries of v that are compared with each other at once to find the largest."""
PILOTS = 16
"""Pairs of tokens, at most, that find the scale of W."""
PROBED_SCALES = 12
"""Scales tried for them: 4 in each of 3 rounds cut 125 octaves into fifths."""
FIRST_BITS = 4
"""Bits after which an entry out of range starts again at a smaller scale."""
RESTARTS = 3
"""How often one entry may start again."""


def comparisons(dim: int) -> tuple[int, int]:
    """Count the comparisons, and their rounds, that find the largest of ``dim`` numbers.

    Groups of 8 play everyone against everyone; the winners go on.

    Examples
    --------
    >>> comparisons(1), comparisons(3), comparisons(64)
    ((0, 0), (3, 1), (252, 2))
    """
    asked = rounds = 0
    while dim > 1:
        full, rest = divmod(dim, GROUP)
        asked += full * GROUP * (GROUP - 1) // 2 + rest * (rest - 1) // 2
        dim, rounds = full + (rest > 0), rounds + 1
    return asked, rounds


def rough_bits(dim: int) -> int:
    """Say how many bits of v's ratios the offsets need: an error of about 2⁻⁷ of ‖v‖ in all."""
    return 6 + math.ceil(math.log2(dim) / 2)


def label_head(dim: int, bits: int) -> int:
    """Count the labels that bisection asks: a bit each, d² + d − 1 parameters, two checks of each.

    On top come d signs and 4 tests of them, `comparisons`, and the pilots; entries that start
    again come apart (`label_head_again`).

    Examples
    --------
    >>> label_head(64, 50) <= 1.1 * 50 * (64**2 + 64) + 500
    True
    """
    ratios = (dim - 1) * (max(bits, rough_bits(dim)) + 2)
    once = dim + 4 + comparisons(dim)[0] + label_head_pilots(dim)
    return once + ratios + dim**2 * (bits + 2)


def label_head_pilots(dim: int) -> int:
    """Count the labels that find the scale of W: two thresholds for every pair and scale."""
    return 2 * PROBED_SCALES * min(PILOTS, dim**2)


def label_head_again(dim: int) -> int:
    """Count the labels at most that entries ask which start again: a quarter of them may."""
    return FIRST_BITS * (dim**2 // 4 + PILOTS)


def label_head_rounds(dim: int, bits: int) -> int:
    """Count the rounds of bisection at most, the hold-out included."""
    before = 1 + comparisons(dim)[1] + rough_bits(dim) + 3
    return before + bits + FIRST_BITS * RESTARTS + 1


def mean_projection(dim: int) -> float:
    """Return R = E|x_1| = Γ(d/2)/(√π Γ((d+1)/2)), x uniform on the unit sphere.

    Examples
    --------
    >>> round(mean_projection(1), 4), round(mean_projection(2), 4)
    (1.0, 0.6366)
    """
    return math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)


def sphere_samples(dim: int, error: float, failure: float) -> int:
    """Count the samples that Theorem B.1 averages for ‖v̂ − v‖_∞ ≤ ``error``.

    By Hoeffding's inequality for d averages of numbers in [−1, 1], with probability
    1 − ``failure``: k = (2/(error²R²)) ln(2d/failure).
    """
    k = 2 / (error * mean_projection(dim)) ** 2 * math.log(2 * dim / failure)
    return math.ceil(k)


def label_head_paper(
    dim: int, error: float, margin: float, norm_bound: float, failure: float
) -> tuple[int, int]:
    """Count Theorem B.1's samples k and its steps of bisection per entry of W.

    k + d²·steps labels give ‖Ŵ − W‖_F ≤ ``error`` for ‖W‖_F ≤ ``norm_bound``, ‖v‖₂ = 1 and
    all |v_i| ≥ ``margin``, with probability 1 − ``failure``.

    Examples
    --------
    >>> k, steps = label_head_paper(64, 1e-6, 1 / 8, 2.0, 0.01)
    >>> f"{k:.1e}", steps
    ('1.3e+28', 40)
    """
    eps_v = label_value_error(dim, error, margin, norm_bound)
    # L = 1/(σ(½)σ(−½)) = 4.2551 (Lemma A.1) and the proof's other constants make 0.0087
    step = 0.0087 * error / dim * margin**1.5
    step /= math.sqrt(2) * norm_bound**1.5 * (1 + 4 * eps_v / margin)
    width = math.sqrt(1 / (2 * norm_bound * margin)) - math.sqrt(margin / (8 * norm_bound))
    return sphere_samples(dim, eps_v, failure), max(1, math.ceil(math.log2(width / step)))


def label_value_error(dim: int, error: float, margin: float, norm_bound: float) -> float:
    """Return ε_v = ε_W μ³/(40 W d), how well Theorem B.1 must know v."""
    return error * margin**3 / (40 * norm_bound * dim)
