"""Theorem 5.1: one attention head of low rank from Gaussian measurements and the nuclear norm.

Recovers W of rank r and v of f(X) = Σ_i α_i x_i·v, α = softmax_i(x_i·(W x_N)), from an oracle of
exact values, with d + m queries: the theorem says m = O(rd), m = 3·r(2d−r) + 4d does it in
practice. Determined up to nothing, unless v = 0: then W is free.

    f([x]) = x·v                              v from x = e_1 … e_d
    f([a+b; b]) = b·v + (a·v)·σ(a·(W b))      t_k = a_k·(W b_k) for a_k, b_k ~ N(0, I), k = 1 … m
    Ŵ = argmin ‖W‖_* subject to a_k·(W b_k) = t_k, which is W with high probability

Differences from the paper: (1) all a_k and b_k share a scale that puts logits into range, found
with the first few of them; (2) measurements with |a·v| small are imprecise: they count as much
as their precision allows, and the last digits of Ŵ are a fit among matrices of its rank; (3) a
minimiser above rank r is refused, so is one that the measurements do not fix; (4) a hold-out
and a certificate. `LowRankHead` does the same with d + r(2d−r) queries: this is the paper's.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.nuclear_norm import Measurements, minimise
from unsoftmax.learners.opening import or_biased, read_opening, why
from unsoftmax.learners.settings import whole
from unsoftmax.learners.verdict import conclude
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Indices, Pairs, Purpose, Round
from unsoftmax.protocol import Answers, Plan, Steps
from unsoftmax.theory import counts
from unsoftmax.theory.certificates import rank_error
from unsoftmax.theory.precision import KAPPA, UNIT
from unsoftmax.theory.two_tokens import Gates, Values, Vectors, read_gates

# Gaussians below 8, on this grid: 2a + b and a + b are then exact in float32.
_GRID = 2.0**-19
# The first measurements set the scale: with fewer a product of Gaussians is anywhere.
_PILOTS = 8
# RMS of the logits. At rank 1 they are products of two Gaussians: the largest is 12 times that.
_TARGET = 0.25
# Octaves that the pilots' scale may be off before they are asked again.
_OFF = 4
# A logit beyond this has lost four digits.
_LARGEST = 8.0
# As in `bilinear`: unresolved below 100 errors; lowered so far where nothing can be read;
# within float32's range.
_RESOLVED = 100.0
_SATURATED = (-20, -24, -24, 0)
_EXTREME = 100
# Passes over the answers that are out of range, and octaves by which the unreadable are lowered.
_PASSES = 3
_LOWERED = 6


@dataclass(frozen=True, slots=True)
class SensingHead:
    """Learn a single head of low rank from Gaussian measurements (Theorem 5.1).

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    rank : int
        The largest rank r that W may have, d at most.
    measurements : int, optional
        Gaussian measurements m, r(2d−r) at least; 3·r(2d−r) + 4d, at most d², by default.
    seed : int
        Decides the measurements and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: d + m; asked again where a logit was out of range, typically fewer than m/50.
    *Determined up to* nothing; W is free when v = 0. With few measurements the matrix of least
    nuclear norm is not W: its rank shows it, and it is refused.
    *Source*: Theorem 5.1 of arXiv 2601.16873, the guarantee from Cai and Zhang, "ROP: Matrix
    recovery via rank-one projections"; the certificate goes beyond it.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> K, Q = rng.standard_normal((2, 1, 12))
    >>> target = us.SingleHead(K.T @ Q, rng.standard_normal(12))
    >>> us.learners.SensingHead(12, rank=1).plan().queries
    129
    >>> recovery = us.learn(target, us.learners.SensingHead(12, rank=1))
    >>> bool(np.allclose(recovery.model.W, target.W, rtol=0, atol=1e-12))
    True
    """

    dim: int
    rank: int
    measurements: int | None = None
    seed: int = 0

    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1)
        whole("rank", self.rank, 0)
        whole("seed", self.seed, 0)
        if self.rank > self.dim:
            raise ValueError(f"rank must be at most dim, {self.dim}; it is {self.rank}.")
        if self.measurements is not None:
            whole("measurements", self.measurements, 1)
            parameters = counts.of_rank(int(self.dim), int(self.rank))
            if self.measurements < parameters:
                raise ValueError(
                    f"measurements must be at least {parameters}, the free parameters of a matrix "
                    f"of rank {self.rank}; it is {self.measurements}. About {self._usual} suffice."
                )

    @property
    def _usual(self) -> int:
        return counts.sensing(int(self.dim), int(self.rank))

    @property
    def _count(self) -> int:
        return self._usual if self.measurements is None else int(self.measurements)

    @property
    def _spare(self) -> int:
        """How many queries may be asked again: pilots, then a quarter of all measurements."""
        return (len(_SATURATED) - 1) * min(_PILOTS, self._count) + max(_PILOTS, self._count // 4)

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        return {
            "learner": "SensingHead",
            "dim": int(self.dim),
            "rank": int(self.rank),
            "measurements": None if self.measurements is None else int(self.measurements),
            "seed": int(self.seed),
        }

    def plan(self) -> Plan:
        """Say beforehand what learning costs."""
        d, m = int(self.dim), self._count
        formula = "3·r(2d − r) + 5d" if m < d * d else "d + d²"
        return Plan(
            queries=d + m,
            at_most=d + m + self._spare,
            tokens=d + 2 * m,
            rounds=3 + len(_SATURATED) + 1 + _PASSES,
            formula=formula if self.measurements is None else f"d + {m:,} measurements",
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng = np.random.default_rng(self.seed)
        opened = yield from read_opening(self.dim, False, checks, rng)
        a, b = np.round(rng.standard_normal((2, self._count, self.dim)) / _GRID) * _GRID
        asked = _Asked(a, b, opened.values)
        yield from asked.ask(self._spare)
        measured = asked.measurements()
        found = minimise(measured)
        if not found.determined or found.rank > self.rank:
            self._refuse(found.rank, asked)
        left, values, right = np.linalg.svd(found.W)
        root = np.sqrt(values[: found.rank])[:, None]
        K, Q = root * left[:, : found.rank].T, root * right[: found.rank]
        model = SingleHead.from_factors(K, Q, opened.values.v)
        fit = _Fit(model, opened.values, asked, int(self.rank))
        otherwise = f", its W has a rank above {self.rank}{or_biased(False)}"
        try:
            return (yield from conclude(fit, opened, checks, rng, otherwise))
        except ModelMismatch as error:
            # as many equations as unknowns: another matrix of that rank may solve them too
            if (
                self._count > counts.of_rank(int(self.dim), found.rank)
                or self._count >= self._usual
            ):
                raise
            raise NotIdentifiable(
                f"The matrix of least nuclear norm with the {self._count} measurements has rank "
                f"{found.rank}, but it is not W: ask more, {self._usual} usually suffice. v is "
                "determined.",
                determined={"v": opened.values.v, "c": opened.values.c},
            ) from error

    def _refuse(self, rank: int, asked: _Asked) -> None:
        values = asked.values
        seen = (
            f"The matrix of least nuclear norm with the {self._count} measurements has rank {rank}"
            if rank > self.rank
            else f"The {self._count} measurements do not fix the matrix of least nuclear norm"
        )
        if self._count < self._usual:
            raise NotIdentifiable(
                f"{seen}, so it need not be W: ask more, {self._usual} usually suffice for "
                f"rank {self.rank}. v is determined.{why(values.precision)}",
                determined={"v": values.v, "c": values.c},
            )
        raise ModelMismatch(
            f"{seen}, and they would have shown a W of rank {self.rank} or less. W has a higher "
            "rank (raise rank, --rank), or the target is not a single attention "
            f"head{or_biased(False)}.{why(values.precision)}"
        )


@dataclass(slots=True)
class _Asked:
    """The answers to all pairs (a_k, b_k), with the scales they were asked at; NaN before."""

    a: Array
    b: Array
    values: Values
    y: Array = field(init=False)
    alpha: Array = field(init=False)
    beta: Array = field(init=False)

    def __post_init__(self) -> None:
        self.y, self.alpha, self.beta = np.full((3, len(self.a)), np.nan)

    def ask(self, spare: int) -> Generator[Round, Answers, None]:
        """Ask every pair once, and at most ``spare`` again at another scale."""
        pilots = np.arange(min(_PILOTS, len(self.a)))
        # a guess at ‖W‖_F = √d, as in `bilinear`
        k = int(np.round(np.log2(_TARGET / np.sqrt(self.a.shape[1]))))
        purpose: Purpose = "pilot"
        for lower in _SATURATED:
            yield from self._put(pilots, np.full(len(pilots), k), purpose)
            better = int(np.clip(k + self._step(pilots, lower), -_EXTREME, _EXTREME))
            settled = abs(better - k) <= _OFF and np.all(np.isfinite(self._logits(pilots)))
            k, before = better, k
            if settled or better == before or not lower:
                break
            purpose, spare = "again", spare - len(pilots)
        rest = np.arange(len(pilots), len(self.a))
        if len(rest):
            yield from self._put(rest, np.full(len(rest), k), "data")
        for _ in range(_PASSES):
            which, scales = self._out_of_range()
            which, scales = which[:spare], scales[:spare]
            if not len(which):
                break
            yield from self._put(which, scales, "again")
            spare -= len(which)
        self._refuse_unreadable()

    def _put(
        self, which: Indices, k: NDArray[np.int64], purpose: Purpose
    ) -> Generator[Round, Answers, None]:
        """Ask some pairs at scale 2^k, shared evenly: ‖b‖ ≈ ‖a‖ costs no digits."""
        self.alpha[which] = alpha = np.exp2((k + 1) // 2)
        self.beta[which] = beta = np.exp2(k // 2)
        name = "W, again" if purpose == "again" else "W"
        [y] = yield [Pairs(self.a, self.b, which, which, alpha, beta, phase=name, purpose=purpose)]
        self.y[which] = y

    def gates(self, values: Values | None = None) -> Gates:
        """Read every answer through the two-token identity."""
        values = values or self.values
        a, b = Vectors.of(self.a, values), Vectors.of(self.b, values)
        return read_gates(self.y, a, b, self.alpha, self.beta, values)

    def _logits(self, which: Indices) -> Array:
        """Return logits, NaN where an answer is out of reach."""
        gates = self.gates()
        logits = np.where(gates.margin > 3 * gates.p_error, gates.logit, np.nan)
        picked: Array = logits[which]
        return picked

    def _step(self, pilots: Indices, lower: int) -> int:
        """Say by how many octaves to move the scale that the pilots were asked at."""
        logits = self._logits(pilots)
        usable = np.isfinite(logits)
        if not np.any(usable):
            return lower
        rms = float(np.sqrt(np.mean(logits[usable] ** 2)))
        unsure = float(np.sqrt(np.mean(self.gates().logit_error[pilots][usable] ** 2)))
        # nothing but rounding: W = 0 as far as the answers tell, so look closer
        step = _TARGET / rms if rms > _RESOLVED * unsure else _TARGET / (_RESOLVED * unsure)
        octaves = int(np.round(np.log2(step)))
        return octaves if np.all(usable) else min(octaves, -_LOWERED)

    def _out_of_range(self) -> tuple[Indices, NDArray[np.int64]]:
        """Find answers whose logit is too large, the worst first, and better scales."""
        gates = self.gates()
        # where the offset is nearly orthogonal to v no scale helps
        hopeful = gates.p_error < 0.25
        size = np.where(gates.margin > 3 * gates.p_error, np.abs(gates.logit), np.inf)
        which = np.flatnonzero(hopeful & (size > _LARGEST))
        which = which[np.argsort(-size[which], kind="stable")]
        k = np.log2(self.alpha[which] * self.beta[which])
        with np.errstate(divide="ignore"):
            at_one = np.round(-np.log2(size[which]))
        k += np.where(np.isfinite(size[which]), at_one, -_LOWERED)
        return which, np.maximum(k, -_EXTREME).astype(np.int64)

    def _refuse_unreadable(self) -> None:
        """Refuse answers outside of what any weights can give."""
        gates = self.gates()
        outside = np.maximum(-gates.p, gates.p - 1) > 3 * gates.p_error
        if np.any(outside):
            raise ModelMismatch(
                f"{np.count_nonzero(outside)} of {outside.size} answers to two tokens lie outside "
                "of what any attention weights between them can give: the target is not a single "
                "attention head."
            )
        readable = np.count_nonzero(np.isfinite(gates.logit_error))
        if readable < len(self.a) / 2:
            raise NotIdentifiable(
                f"{len(self.a) - readable} of {len(self.a)} logits are out of the answers' reach: "
                "the answers are too coarse, or attention is hard. v is determined, W is not."
                + why(self.values.precision),
                determined={"v": self.values.v, "c": self.values.c},
            )

    def measurements(
        self, values: Values | None = None, W: SingleHead | None = None
    ) -> Measurements:
        """Return all that can be read, with bounds on their errors.

        ``values`` holds the precision that is assumed; ``W`` is the head whose scores were
        rounded, estimated by their size while there is none.
        """
        values = values or self.values
        gates = self.gates(values)
        scale = self.alpha * self.beta
        with np.errstate(invalid="ignore"):
            t = gates.logit / scale
            error = gates.logit_error / scale
        read = np.isfinite(error)
        t, error, a, b = t[read], error[read], self.a[read], self.b[read]
        # for Gaussian b the norm ‖W b‖ is about ‖W‖_F, and that is the RMS of t
        norm = np.sqrt(np.mean(t**2)) if W is None else np.linalg.norm(W.scores_of(b), axis=1)
        tokens = self.alpha[read] * np.linalg.norm(a, axis=1)
        tokens = tokens + self.beta[read] * np.linalg.norm(b, axis=1)
        scores = KAPPA * values.precision.unit * tokens * norm / self.alpha[read]
        return Measurements(a, b, t, error + scores + 4 * UNIT * np.abs(t))


@dataclass(frozen=True, slots=True)
class _Fit:
    """A recovered head with everything that bounds its errors."""

    model: SingleHead
    values: Values
    asked: _Asked
    rank: int

    def bounds(self) -> tuple[dict[str, float], tuple[str, ...]]:
        """Bound the errors by the measurements' gain on matrices near Ŵ."""
        measured = self.asked.measurements(self.values, self.model)
        W, weights = self.model.W, measured.weights
        left, values, right = np.linalg.svd(W)
        found = len(self.model.arrays()["K"])
        tangent = measured.tangent(left, right.T, self.rank) * weights[:, None]
        smallest, largest = np.inf, 0.0
        if self.rank:
            gains = np.linalg.svd(tangent, compute_uv=False)
            smallest = float(gains[-1]) if len(tangent) >= tangent.shape[1] else 0.0
            norms = np.linalg.norm(measured.b, axis=1).max()
            largest = float(norms * np.linalg.norm(measured.a * weights[:, None], 2))
        # in units of their bounds measurements are off by 1 each at most
        off = np.sqrt(len(measured)) + np.linalg.norm(weights * (measured.t - measured.of(W)))
        value = float(values[found - 1]) if found else np.inf
        rounding = 4 * UNIT * float(np.linalg.norm(values))
        errors = {
            "W": rank_error(float(off), smallest, largest, value) + rounding,
            "v": float(np.linalg.norm(self.values.v_error)),
            "w": 0.0,
            "c": 0.0,
        }
        return errors, (
            f"W has rank {self.rank} or less, and is near the matrix of least nuclear norm: the "
            "bound comes from the measurements' smallest gain among the matrices of that rank "
            "around it.",
        )

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        return tuple(self.values.precision.why)
