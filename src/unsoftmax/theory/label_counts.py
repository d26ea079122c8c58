"""How many labels Theorem B.1 asks for, and how many the bisection beyond it."""

from __future__ import annotations

import math

# Entries of v that are compared with each other at once to find the largest. Larger: fewer rounds,
# but group·(group − 1)/2 labels for every group.
GROUP = 8
# Pairs of tokens, at most, that find the scale of W. Fewer: their entries of W may all be far below
# the others, and the scale is wrong for those.
PILOTS = 16
# Scales tried for each pair in each of 3 rounds: 4 a round cut 125 octaves into fifths three times,
# down to one octave. n scales a round cover (n + 1)³ octaves.
SCALES_AT_ONCE = 4
# Bits after which an entry is tested for being out of range, and starts again at a smaller scale.
# More: a wrong scale wastes more labels; fewer: rounding may look out of range.
FIRST_BITS = 4
# How often one entry may start again. More: entries of W as much as 8 times larger each time are
# still found, at up to four labels each.
RESTARTS = 3


def comparisons(dim: int) -> tuple[int, int]:
    """Count the comparisons, and their rounds, that find the largest of ``dim`` numbers.

    In every group of 8 all are compared with all; the largest of each group go on.

    Examples
    --------
    >>> comparisons(1), comparisons(3), comparisons(64)
    ((0, 0), (3, 1), (252, 2))
    """
    asked, rounds, group = 0, 0, GROUP
    while dim > 1:
        full, rest = divmod(dim, group)
        asked += full * group * (group - 1) // 2 + rest * (rest - 1) // 2
        dim, rounds = full + (rest > 0), rounds + 1
    return asked, rounds


def rough_bits(dim: int) -> int:
    """Say how many bits of v's ratios the offsets need: an error of about 2⁻⁷ of ‖v‖ in all."""
    return 6 + math.ceil(math.log2(dim) / 2)


def label_head(dim: int, bits: int) -> int:
    """Count the labels that bisection asks: ``bits`` and two checks for each of d² + d − 1 numbers.

    On top come d signs and 4 tests of them, `comparisons`, and the pilots; entries that start
    again are counted apart (`label_head_again`).

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
    return 6 * SCALES_AT_ONCE * min(PILOTS, dim**2)


def label_head_again(dim: int) -> int:
    """Count the labels spent on entries that start again, a quarter of all entries at most."""
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
    # L = 1/(σ(½)σ(−½)) = 4.2553 (Lemma A.1) and the proof's other constants make 0.0087
    step = 0.0087 * error / dim * margin**1.5
    step /= math.sqrt(2) * norm_bound**1.5 * (1 + 4 * eps_v / margin)
    width = math.sqrt(1 / (2 * norm_bound * margin)) - math.sqrt(margin / (8 * norm_bound))
    return sphere_samples(dim, eps_v, failure), max(1, math.ceil(math.log2(width / step)))


def label_value_error(dim: int, error: float, margin: float, norm_bound: float) -> float:
    """Return ε_v = ε_W μ³/(40 W d), how well Theorem B.1 must know v."""
    return error * margin**3 / (40 * norm_bound * dim)
