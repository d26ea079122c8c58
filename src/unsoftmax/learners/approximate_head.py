"""Theorem 6.1: one attention head from answers that are within ±τ, with d + d² of them.

Recovers W and v of f(X) = Σ_i α_i x_i·v, α = softmax_i(x_i·W x_N), from an oracle whose answers
are off by at most τ, rounded, noisy or hostile; ``repeats`` times d + d² queries. Determined up
to the error that the certificate bounds; v must stand out of the errors.

    f([ρx]) ≈ ρ(x·v)                                     v from an orthonormal basis
    f([αz+βb; βb]) ≈ β(b·v) + α(z·v)·σ(αβ·z·(W b))       W from offsets z and query tokens b

Differences from the paper: (1) balanced offsets, so that ‖v‖ matters and not its smallest entry
(``probes="paper"`` asks the paper's own, `approximate_paper`); (2) tokens as long as ``radius``
allows: an error ±τ moves p by τ/(α|z·v|) only. With no radius α = 2⁴⁰ and β = 2⁻⁴⁰ leave nothing
of it; (3) ‖W‖ need not be known: pilots set αβ; (4) later passes ask in new random bases, so
that errors which depend on the question alone (rounding) are averaged like noise; (5) the
certificate is computed from the answers, for the worst signs of their errors.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.fft

from unsoftmax.learners import approximate_paper, offsets
from unsoftmax.learners.opening import read_opening
from unsoftmax.learners.settings import one_of, positive, whole
from unsoftmax.learners.tolerated import Bounded, Pass, Terms, refuse_norm, solve, verify
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Grid, Indices, Pairs, Purpose, Round, Singles
from unsoftmax.protocol import Answers, Plan, Steps
from unsoftmax.theory import counts
from unsoftmax.theory.precision import Precision
from unsoftmax.theory.two_tokens import Values

# Without a radius: ±τ moves nothing by more than 1e-12 τ, and 2⁴⁰·z + 2⁻⁴⁰·b is 2⁴⁰·z in float64
# and in float32 alike, so that no target sees other tokens than were meant.
_STRETCH = 40
# Tokens on this grid, times scales of few bits, are exact in float32, where most targets compute.
_GRID = 2.0**-14
# Below this share of the radius query tokens leave the rest to the offset all the same: 2⁻¹⁰
# keeps α = R(1 − 2⁻¹⁰) short.
_SHORTEST = 2.0**-10
# Errors of W are least for logits of RMS 1 (σ' falls beyond); scales are powers of two, so
# pilots are kept between a quarter of that and a bit more.
_TARGET, _LARGEST = 0.9, 1.3
# With ‖W‖_F ≤ W̄ no logit is beyond this, and σ' ≥ 0.1.
_BOUNDED = 2.0
# Pilots are asked this often at most: lower by so many octaves where they are saturated (±τ
# hides |t| > 5 or so, float64 |t| > 30).
_PILOTS = 4
_LOWER = (4, 8, 16)
_LOWER_STRETCHED = (20, 24, 24)
_EXTREME = 100.0
# Answers whose format is looked at.
_WITNESSES = 256


@dataclass(frozen=True, slots=True)
class ApproximateHead:
    """Learn a single head from answers within ±tolerance (Theorem 6.1).

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    tolerance : float
        τ: how far an answer may be off. For Gaussian noise three or four standard deviations;
        for k decimals 0.5·10⁻ᵏ.
    norm_bound : float, optional
        A bound on ‖W‖_F. Needed by the paper's probes (2 or more); others find the scale of
        the logits by themselves.
    radius : float, optional
        The longest token that may be asked (2-norm), the hold-out's included. Without it
        tokens are stretched until the errors do not matter.
    repeats : int
        Passes, each over everything afresh: averages noise that changes between calls, and
        by asking in new directions also rounding, which does not.
    probes : {"balanced", "paper"}
        Balanced offsets, or the paper's e_i and e_i + e_p, whose accuracy falls with the
        smallest entry of v; they assume ‖v‖ ≤ 1.
    seed : int
        Decides offsets, bases and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: repeats·(d + d²); without ``norm_bound`` pilots may be asked again, at most 3d.
    *Determined up to* the certificate's bounds, which hold for any signs of the errors; v is
    refused when it does not stand out of them.
    *Source*: Theorem 6.1 of arXiv 2601.16873, with zero rows of v put right; balanced offsets,
    stretched tokens, dithering and the certificate go beyond it.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> target = us.SingleHead(rng.standard_normal((8, 8)), rng.standard_normal(8))
    >>> coarse = us.oracles.rounded(target, 1)
    >>> recovery = us.learn(coarse, us.learners.ApproximateHead(8, tolerance=0.05))
    >>> bool(np.linalg.norm(recovery.model.W - target.W) < 1e-6)
    True
    """

    dim: int
    tolerance: float
    norm_bound: float | None = None
    radius: float | None = None
    repeats: int = 1
    probes: Literal["balanced", "paper"] = "balanced"
    seed: int = 0

    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1)
        whole("seed", self.seed, 0)
        whole("repeats", self.repeats, 1)
        positive("tolerance", self.tolerance)
        for name in ("norm_bound", "radius"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        one_of("probes", self.probes, ("balanced", "paper"))
        if self.probes == "paper":
            if self.norm_bound is None or self.norm_bound < 2:
                raise ValueError(
                    'norm_bound must be given, 2 or more, for probes="paper": Theorem 6.1 scales '
                    f"its probes by it; it is {self.norm_bound}."
                )
            if self.radius is not None and self.radius < 1:
                raise ValueError(
                    f'radius must be 1 or more for probes="paper"; it is {self.radius}. Balanced '
                    "probes keep to any radius."
                )

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        return {
            "learner": "ApproximateHead",
            "dim": int(self.dim),
            "tolerance": float(self.tolerance),
            "norm_bound": None if self.norm_bound is None else float(self.norm_bound),
            "radius": None if self.radius is None else float(self.radius),
            "repeats": int(self.repeats),
            "probes": self.probes,
            "seed": int(self.seed),
        }

    def plan(self) -> Plan:
        """Say beforehand what learning costs: as many queries as free parameters, per pass."""
        d, repeats = int(self.dim), int(self.repeats)
        queries = repeats * counts.single_head(d)
        again = 0 if self.norm_bound is not None else (_PILOTS - 1) * d
        return Plan(
            queries=queries,
            at_most=queries + again,
            tokens=2 * queries - repeats * d,
            # opening and repeats; v again; pilots and the rest; hold-out
            rounds=2 + (repeats > 1) + 1 + (0 if self.norm_bound is not None else _PILOTS) + 1,
            formula="d + d²" if repeats == 1 else "repeats·(d + d²)",
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng = np.random.default_rng(self.seed)
        terms = Terms(self.tolerance, self.norm_bound, self.radius)
        if self.probes == "paper":
            return (yield from approximate_paper.learn(self.dim, terms, self.repeats, checks, rng))
        scale = 2.0**_STRETCH if self.radius is None else self.radius
        opened = yield from read_opening(
            self.dim, False, checks, rng, terms.precision, scale, terms.cap
        )
        values = yield from self._averaged(opened.values, scale, rng)
        passes = yield from self._passes(values, rng)
        values = self._as_answered(values, passes)
        W, W_error = solve(passes, values, self.norm_bound)
        refuse_norm(W, W_error, self.norm_bound)
        fit = Bounded(SingleHead(W, values.v), values, W_error, terms.assumes)
        return (yield from verify(fit, opened, checks, rng, terms))

    def _averaged(
        self, values: Values, scale: float, rng: np.random.Generator
    ) -> Generator[Round, Answers, Values]:
        """Ask for v again in new bases, and average."""
        if self.repeats == 1:
            return values
        bases = [_orthogonal(self.dim, rng) for _ in range(self.repeats - 1)]
        answers = yield [Singles(U, scale, phase="v", purpose="data") for U in bases]
        inverses = [np.linalg.inv(U) for U in bases]
        found = [inverse @ y / scale for inverse, y in zip(inverses, answers, strict=True)]
        errors = [
            np.abs(inverse) @ (values.precision.of_one_term * np.abs(y) + self.tolerance) / scale
            for inverse, y in zip(inverses, answers, strict=True)
        ]
        v = np.mean([values.v, *found], axis=0)
        # unit vectors bound each entry best, whatever the average says
        first = np.abs(v - values.v) + values.v_error
        v_error = np.minimum(first, np.mean([values.v_error, *errors], axis=0))
        return replace(values, v=v, v_error=v_error)

    def _passes(
        self, values: Values, rng: np.random.Generator
    ) -> Generator[Round, Answers, list[Pass]]:
        """Ask for W, every pass with new offsets and query tokens."""
        bases = [
            (_on_grid(offsets.balanced(values.v, rng).rows), _orthogonal(self.dim, rng))
            for _ in range(self.repeats)
        ]
        passes, grids = [], []
        if self.norm_bound is None:
            k, piloted, others = yield from self._pilots(*bases[0], values)
            passes, grids = [piloted], [others]
        else:
            k = min(float(np.floor(np.log2(_BOUNDED / self.norm_bound))), self._most)
        alpha, beta = self._split(k)
        every = np.full(self.dim, alpha), np.full(self.dim, beta)
        whole_passes = [
            Grid(Z, B, *every, phase="W", purpose="data") for Z, B in bases[len(passes) :]
        ]
        answers = yield [*grids, *whole_passes]
        if grids:
            piloted.y[grids[0].j, grids[0].i] = answers.pop(0)
        scales = np.full((2, self.dim, self.dim), [[[alpha]], [[beta]]])
        for grid, y, (Z, B) in zip(whole_passes, answers, bases[len(passes) :], strict=True):
            passes.append(Pass(Z, B, scales[0], scales[1], grid.table(y)))
        return passes

    def _pilots(
        self, Z: Array, B: Array, values: Values
    ) -> Generator[Round, Answers, tuple[float, Pass, Pairs]]:
        """Find the scale by asking offset i with query token i; return it with the first pass.

        The pass lacks the answers to the pairs that are returned with it.
        """
        d = self.dim
        diagonal = np.arange(d)
        k = self._most if self.radius else float(np.round(np.log2(np.sqrt(d) * _TARGET)))
        purpose: Purpose = "pilot"
        for attempt in range(_PILOTS):
            alpha, beta = self._split(k)
            phase = "W" if purpose == "pilot" else "W, again"
            [y] = yield [self._pairs(Z, B, diagonal, diagonal, k, phase, purpose)]
            asked = Pass(Z, B, np.full((d, d), alpha), np.full((d, d), beta), np.diag(y))
            better = self._better(asked, values, k, attempt)
            if better == k:
                break
            last, k, purpose = k, better, "again"
        else:
            # the pilots stay as they are, only less precise
            assert last != k
        alpha, beta = self._split(k)
        rest = ~np.eye(d, dtype=bool)
        asked.alpha[rest], asked.beta[rest] = alpha, beta
        j, i = np.nonzero(rest)
        return k, asked, self._pairs(Z, B, j, i, k, "W", "data")

    def _pairs(
        self, Z: Array, B: Array, j: Indices, i: Indices, k: float, phase: str, purpose: Purpose
    ) -> Pairs:
        alpha, beta = self._split(k)
        every = np.full(len(j), alpha), np.full(len(j), beta)
        return Pairs(Z, B, i, j, *every, phase=phase, purpose=purpose)

    def _better(self, asked: Pass, values: Values, k: float, attempt: int) -> float:
        """Suggest a scale; the same when pilots are in range."""
        within = asked.read(values, None)
        t, noise = np.diag(within.logit), float(np.median(4 * np.diag(within.p_error)))
        unbounded = ~np.isfinite(np.diag(within.low)) | ~np.isfinite(np.diag(within.high))
        if noise < 1 and np.mean(unbounded) > 0.25:
            steps = _LOWER if self.radius else _LOWER_STRETCHED
            return k - steps[min(attempt, len(steps) - 1)]
        size = float(np.sqrt(np.mean(t**2)))
        resolved = size > 3 * noise
        octaves = float(np.floor(np.log2(_TARGET / (size if resolved else size + noise))))
        if size > _LARGEST and resolved:
            return k + octaves
        return min(k + octaves, self._most) if octaves > 1 else k

    @property
    def _most(self) -> float:
        """Largest log₂(αβ): query tokens of a quarter of the radius."""
        return _EXTREME if self.radius is None else 2 * float(np.log2(self.radius)) - 2

    def _split(self, k: float) -> tuple[float, float]:
        """Split αβ ≈ 2^k into the largest α there may be, and β."""
        if self.radius is not None:
            beta = min(float(np.exp2(k)) / self.radius, self.radius / 4)
            return self.radius - max(beta, _SHORTEST * self.radius), beta
        up = _STRETCH + max(0.0, float(np.ceil(k / 2)))
        return float(np.exp2(up)), float(np.exp2(k - up))

    def _as_answered(self, values: Values, passes: list[Pass]) -> Values:
        """Widen the precision by the format of the answers, which counts where they are large."""
        if self.radius is not None:
            return values
        seen = Precision.of_format([np.ravel(passes[0].y)[:_WITNESSES]])
        precision = replace(
            values.precision,
            unit=max(seen.unit, values.precision.unit),
            relative=seen.relative,
            why=values.precision.why + (seen.why if seen.relative else ()),
        )
        v_error = values.v_error + precision.of_one_term * np.abs(values.v)
        return replace(values, precision=precision, v_error=v_error)


def _orthogonal(dim: int, rng: np.random.Generator) -> Array:
    """Make a random basis, orthonormal up to the grid: a cosine transform, signs, a reflection.

    As in `offsets.balanced`, the same bits whatever the BLAS.
    """
    if dim == 1:
        return np.ones((1, 1))
    U = scipy.fft.dct(np.diag(rng.choice([-1.0, 1.0], dim)), axis=0, norm="ortho")
    for _ in range(2):
        mirror = rng.standard_normal(dim)
        U = U - 2 / (mirror @ mirror) * np.outer(U @ mirror, mirror)
        U = U[rng.permutation(dim)]
    return _on_grid(U)


def _on_grid(rows: Array) -> Array:
    """Cut rows to the grid; none becomes longer than 1."""
    cut: Array = np.trunc(rows / _GRID) * _GRID
    norms = np.linalg.norm(cut, axis=1, keepdims=True)
    return np.where(norms > 1, cut * (1 - _GRID), cut)
