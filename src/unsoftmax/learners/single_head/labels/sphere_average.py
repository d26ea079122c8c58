"""Theorem B.1 as the paper writes it: v by averaging over the sphere, W by bisection.

    v̂ = (1/(R k)) Σ h(x_n) x_n          x_n uniform on the sphere, R = E|x_1|, h = ±1
    X(a) = [(s/a)e_i + a e_j; a e_j]     s = −sign(α)/(2W), α = v_j/v_i: scores differ by sW_ij
    a*² = σ(sW_ij)/(2W|α|)               the label flips once, in [√(μ/(8W)), √(1/(2Wμ))]
    Ŵ_ij = σ⁻¹(2W|α̂|a*²)/s               after truncation to [σ(−½), σ(½)]

k and the steps of bisection: `unsoftmax.theory.counts.label_head_paper`. As in the paper's
equation 14 h is ±1 in the average, where answers are 1 and 0: as 1 and 0 the mean is R·v/2, not
R·v. Difference from the paper: a hold-out. Needs all |v_i| ≥ μ, and ends for d = 1, 2 and a coarse
error only.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.labels.bisection import Labels, read_labels
from unsoftmax.learners.single_head.labels.flips import conclude_labels
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Design, Pairs, Probes, Sequences, UnitVectors
from unsoftmax.protocol import Certificate, Found, Steps
from unsoftmax.refusals import Reason
from unsoftmax.theory import counts
from unsoftmax.validate import sequences

# Samples per round: 8 MiB of answers. A multiple of the block that samples are made in.
SAMPLES = 2**20
# Samples that are in memory at a time to be averaged.
SLICE = 2**14


# Samples made by one generator: part of what "sample n of seed s" means, so it never changes. The
# runner's slices end at multiples of it (its batches are 2,048 at most): few blocks are made twice.
_SAMPLES_PER_SEED = 2048


@dataclass(frozen=True, slots=True)
class Sphere(Probes):
    """Single tokens uniform on the unit sphere, ``count`` of them from number ``first`` on.

    Made block by block, each from a generator of its own, so that any slice gives the same
    tokens and none but the slice is ever in memory. ``first`` is a multiple of the block.
    """

    size: int
    seed: int
    first: int
    count: int

    @property
    def tokens(self) -> int:  # noqa: D102
        return 1

    @property
    def dim(self) -> int:  # noqa: D102
        return self.size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, span: slice) -> Array:
        start, stop, _ = span.indices(self.count)
        X = np.empty((max(0, stop - start), 1, self.size))
        done = start
        while done < stop:
            block, skip = divmod(self.first + done, _SAMPLES_PER_SEED)
            take = min(_SAMPLES_PER_SEED - skip, stop - done)
            rng = np.random.default_rng([self.seed, block])
            rows = rng.standard_normal((_SAMPLES_PER_SEED, self.size))[skip : skip + take]
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            X[done - start : done - start + take, 0] = rows
            done += take
        return X

    def design(self) -> Design:  # noqa: D102
        # halves: a sample's number may exceed what float64 holds exactly
        high, low = divmod(self.first, 2**31)
        numbers = [self.size, self.seed, high, low, self.count]
        return {"sphere": np.array(numbers, dtype=np.float64)}


@dataclass(frozen=True, slots=True)
class Promise:
    """What Theorem B.1 promises, and under which conditions."""

    error: float
    """ε_W: bound on ‖ΔW‖_F."""
    margin: float
    """μ: all |v_i| ≥ μ‖v‖."""
    norm_bound: float
    """W̄: ‖W‖_F ≤ W̄, W̄ ≥ 2."""
    failure: float
    """δ: probability that the guarantee fails; k grows with ln(1/δ)."""
    share: float
    """Share of the theorem's k that is asked."""

    def counts(self, dim: int) -> tuple[int, int]:
        """Return the samples that are asked, and the steps of bisection per entry of W."""
        k, steps = counts.label_head_paper(
            dim, self.error, self.margin, self.norm_bound, self.failure
        )
        return (k if self.share == 1 else math.ceil(self.share * k)), steps

    def bounds(self, dim: int) -> tuple[float, float]:
        """Bound ‖ΔW‖_F and ‖v̂ − v‖_∞ after so many samples.

        k grows with 1/ε_v², and ε_v with ε_W: a share of k is the theorem's own k for errors
        1/√share times as large.
        """
        wider = 1 / math.sqrt(self.share)
        v_error = counts.label_value_error(dim, self.error, self.margin, self.norm_bound)
        return wider * self.error, wider * v_error

    def least_share(self, dim: int) -> float:
        """Return the share at which ε_v is μ/2: below it entries of v may be lost."""
        v_error = counts.label_value_error(dim, self.error, self.margin, self.norm_bound)
        return (2 * v_error / self.margin) ** 2


def learn_by_averaging(dim: int, promise: Promise, checks: int, seed: int) -> Steps[SingleHead]:
    """Recover v up to scale and W to ``promise.error``; see `LabelHead`."""
    k, steps = promise.counts(dim)
    error, v_error = promise.bounds(dim)
    rng = np.random.default_rng(seed)
    opening = sequences.opening(dim, checks // 4, rng)
    v, opened = yield from average(dim, k, seed, opening)
    _refuse_value(v, v_error, promise.margin)
    W = yield from _scores(v, promise.margin, promise.norm_bound, steps)

    model = SingleHead(W, v)
    bounds = {"W": error, "v": float(np.sqrt(dim)) * v_error}
    certificate = Certificate(bounds, _assumes(promise))
    before = opening.X, opened.astype(np.float64)
    ending = conclude_labels(model, certificate, before, checks, rng)
    certificate, evidence = yield from ending
    notes = ("Labels do not determine ‖v‖: v is returned with ‖v‖ = 1, to within its error.",)
    return Found(model, certificate, evidence, notes)


def _assumes(promise: Promise) -> tuple[str, ...]:
    fewer = (
        f"Of the theorem's samples a share of {promise.share:g} was asked: the bounds are "
        f"{1 / math.sqrt(promise.share):.3g} times those of the error asked for, "
        f"{promise.error:g}.",
    )
    return (
        "The target is the sign of a single head without biases: what the hold-out tests, it "
        "cannot prove.",
        "‖v‖ = 1: labels do not determine it, and the bounds are for v/‖v‖.",
        f"All |v_i| ≥ {promise.margin:g}·‖v‖ and ‖W‖_F ≤ {promise.norm_bound:g}, as Theorem B.1 "
        "requires.",
        f"The samples are typical: with probability {1 - promise.failure:g} over them the bounds "
        "hold.",
        *(fewer if promise.share < 1 else ()),
    )


def _refuse_value(v: Array, v_error: float, margin: float) -> None:
    """Refuse an average that is not of norm 1, or a v with entries too small for the theorem."""
    if abs(np.linalg.norm(v) - 1) > np.sqrt(len(v)) * v_error:
        raise Reason.MEAN_IS_NO_SIGN.error(norm=np.linalg.norm(v))
    if np.min(np.abs(v)) < margin - v_error:
        known = {"v": v / np.linalg.norm(v)}
        raise Reason.BELOW_MARGIN.error(known, entry=np.min(np.abs(v)), margin=margin)


def _rounds(dim: int, k: int, seed: int, most: int) -> Iterator[Sphere]:
    for first in range(0, k, most):
        count = min(most, k - first)
        yield Sphere(dim, seed, first, count, phase="v", purpose="data")


def average(dim: int, k: int, seed: int, opening: Sequences) -> Asking[tuple[Array, Labels]]:
    """Average labelled samples of the sphere."""
    total, ones, opened = np.zeros(dim), 0, np.zeros(0, dtype=bool)
    for samples in _rounds(dim, k, seed, SAMPLES):
        first = samples.first == 0
        *start, labels = read_labels((yield [*([opening] if first else []), samples]))
        opened = start[0] if first else opened
        total += weighted_sum(samples, labels)
        ones += int(np.count_nonzero(labels))
    if not ones and not opened.any():
        raise Reason.SAMPLES_ALL_0.error({"v": np.zeros(dim)}, k=k)
    if ones in (0, k):
        raise Reason.SAMPLES_ALL_ALIKE.error(k=k, label=ones // k)
    return total / (counts.mean_projection(dim) * k), opened


def weighted_sum(samples: Sphere, labels: Labels) -> Array:
    """Return Σ_n ±x_n over the samples, + where the label is 1."""
    total = np.zeros(samples.dim)
    for start in range(0, len(samples), SLICE):
        span = slice(start, min(start + SLICE, len(samples)))
        total += np.where(labels[span], 1.0, -1.0) @ samples[span][:, 0]
    return total


def _scores(v: Array, margin: float, norm_bound: float, steps: int) -> Asking[Array]:
    """Bisect for every entry of W, all in parallel."""
    d = len(v)
    j, i = np.divmod(np.arange(d * d), d)
    alpha = v[j] / v[i]
    s = -np.sign(alpha) / (2 * norm_bound)
    low = np.full(d * d, np.sqrt(margin / (8 * norm_bound)))
    high = np.full(d * d, np.sqrt(1 / (2 * norm_bound * margin)))
    for _ in range(steps):
        a = (low + high) / 2
        probes = Pairs(np.eye(d), UnitVectors(d), i, j, s / a, a, phase="W", purpose="data")
        [label] = read_labels((yield [probes]))
        above = label != (v[j] > 0)  # beyond the flip f has the sign of v_j
        low, high = np.where(above, a, low), np.where(above, high, a)
    p = 2 * norm_bound * np.abs(alpha) * ((low + high) / 2) ** 2
    entries = (
        scipy.special.logit(np.clip(p, scipy.special.expit(-0.5), scipy.special.expit(0.5))) / s
    )
    W = np.empty((d, d))
    W[i, j] = entries
    return W
