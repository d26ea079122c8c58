"""Theorem 4.1: one attention head, exactly, from d + d² values.

Recovers W, v (and w, c with biases) of f(X) = Σ_i α_i x_i·v + c, α = softmax_i(x_i·(W x_N + w)),
from an oracle of exact values, with d + d² queries, (d+1)² with biases: as many as there are
parameters. Queries asked again because their logit was out of range come on top, at most 2
per query token. Determined up to nothing, unless v = 0: then W and w are free.

    f([0]) = c                                      c
    f([x]) = x·v + c                                v from x = e_1 … e_d
    f([a; 0]) = c + (a·v)·σ(a·w)                    w from a = z_1 … z_d, Z w = t
    f([a+b; b]) = b·v + c + (a·v)·σ(a·(W b + w))    W e_j from b = e_j, Z (W e_j) = t − Z w

Differences from the paper: (1) the offsets z_i are balanced, so that the shape of v does not
matter, unless ``probes`` asks for the paper's; (2) logits are scaled into range; (3) biases;
(4) a hold-out and a certificate. It may not know anything of the target but its answers.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners import holdout, offsets
from unsoftmax.learners.bilinear import Block, Split, capped, free, measure, offset_only
from unsoftmax.learners.offsets import Offsets
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Round, Sequences, Singles, UnitVectors
from unsoftmax.protocol import Answers, Certificate, Evidence, Found, Plan, Steps
from unsoftmax.theory import counts
from unsoftmax.theory.precision import FLOAT32_UNIT, KAPPA, UNIT, Precision, significant_bits
from unsoftmax.theory.two_tokens import Values

# With biases c is subtracted from every single-token answer: larger tokens save v's digits.
_SINGLE_SCALE = 2.0**10
# The coarsest arithmetic that a defect of linearity may be put down to: float32 at d = 1024.
_COARSEST_UNIT = 4 * FLOAT32_UNIT
# How much coarser than they look the answers may be to explain the hold-out: a second head
# that is 1e-5 of the first would take 10⁵ and more for float64 answers. Known formats are exact.
_MOST_UNEXPLAINED = 2.0**12
_MOST_UNEXPLAINED_COARSE = 2.0
# Heads leave residuals of up to ¼ of what their certificate allows; what leaves more gets a
# certificate wider by as much.
_STRAIN = 4.0
# Answers that change by this share of their size from call to call determine nothing.
_MOST_NOISE = 0.03
_AGAIN_PER_TOKEN = 2
_LARGEST_ANSWER = 1e100
# Numbers as short as this are no values: even 8-bit floats have more significant bits.
_LABEL_BITS = 2


@dataclass(frozen=True, slots=True)
class ExactHead:
    """Learn a single head from exact values (Theorem 4.1).

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    biases : bool
        Also learn w (what a query bias adds to the scores) and c (value and output biases).
    probes : {"balanced", "paper", "gaussian"}
        Offsets: balanced on v, so that W's accuracy does not depend on v's entries; the
        paper's e_l (e_l + e_p where v_l = 0), which lose digits where entries of v are
        small; or the paper's Gaussian ones.
    seed : int
        Decides the random offsets and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: d + d², (d+1)² with biases; asked again at most 2 per query token, typically
    fewer than 15 in all. *Determined up to* nothing; W and w are free when v = 0.
    *Source*: Theorem 4.1 of arXiv 2601.16873; the balanced offsets, the biases and the
    certificate go beyond it.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> target = us.SingleHead(rng.standard_normal((8, 8)), rng.standard_normal(8))
    >>> us.learners.ExactHead(8).plan().queries
    72
    >>> recovery = us.learn(target, us.learners.ExactHead(8))
    >>> bool(np.allclose(recovery.model.W, target.W, rtol=0, atol=1e-12))
    True
    """

    dim: int
    biases: bool = False
    probes: Literal["balanced", "paper", "gaussian"] = "balanced"
    seed: int = 0

    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, (int, np.integer)):
            raise TypeError(f"dim must be a whole number; it is {self.dim!r}.")
        if self.dim < 1:
            raise ValueError(f"dim must be 1 or more; it is {self.dim}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)):
            raise TypeError(f"seed must be a whole number; it is {self.seed!r}.")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more; it is {self.seed}.")
        if not isinstance(self.biases, (bool, np.bool_)):
            raise TypeError(f"biases must be True or False; it is {self.biases!r}.")
        if self.probes not in ("balanced", "paper", "gaussian"):
            raise ValueError(
                f'probes must be "balanced", "paper" or "gaussian"; it is {self.probes!r}.'
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        return {
            "learner": "ExactHead",
            "dim": int(self.dim),
            "biases": bool(self.biases),
            "probes": self.probes,
            "seed": int(self.seed),
        }

    def plan(self) -> Plan:
        """Say beforehand what learning costs: as many queries as free parameters."""
        d = int(self.dim)
        queries = counts.single_head(d, biases=self.biases)
        columns = singles = d + self.biases
        return Plan(
            queries=queries,
            at_most=queries + _AGAIN_PER_TOKEN * columns,
            tokens=2 * queries - singles,
            rounds=3 + 9 * (1 + self.biases),
            formula="d² + 2d + 1" if self.biases else "d + d²",
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng = np.random.default_rng(self.seed)
        share = holdout.Shares.of(checks)
        opening = holdout.opening(self.dim, share.opening, rng)
        straight = holdout.straight(self.dim, share.straight, rng)

        values, opened = yield from self._values(opening, straight, share.repeats)
        if np.linalg.norm(values.v) <= 3 * np.linalg.norm(values.v_error):
            yield from _refuse_without_value(values, opening, opened, share.closing, rng)

        Z = self._offsets(values, rng)
        w = np.zeros(self.dim)
        bias: Block | None = None
        split: Split = free
        shift: Array | None = None
        spare = _AGAIN_PER_TOKEN * (self.dim + self.biases)
        if self.biases:
            bias = yield from measure(
                values, Z.rows, np.zeros((1, self.dim)), offset_only, "w", spare
            )
            spare -= bias.again
            [shift] = bias.measured(bias.gates())
            w = Z.solve(shift[None])[:, 0]
            split = capped(_offset_limit(shift))
        block = yield from measure(values, Z.rows, UnitVectors(self.dim), split, "W", spare, shift)
        model = SingleHead(Z.solve(block.measured(block.gates())), values.v, w, values.c)

        fit = _Fit(model, values, block, bias, Z, checks, self._or_biased())
        closing = holdout.closing(model, fit.certificate(), share.closing, rng)
        closed = yield list(closing)
        fit, evidence = fit.judged([opening, *closing], [opened, *closed])
        return Found(model, fit.certificate(), evidence, fit.notes())

    def _values(
        self, opening: Sequences, straight: Sequences, repeats: int
    ) -> Generator[Round, Answers, tuple[Values, Array]]:
        """Learn v and c from single tokens, and how precise the answers are."""
        scale = _SINGLE_SCALE if self.biases else 1.0
        singles = Singles(UnitVectors(self.dim), scale, phase="v", purpose="data")
        zero = Singles(np.zeros((1, self.dim)), phase="c", purpose="data")
        first: Round = [opening, straight, *([zero] if self.biases else []), singles]
        opened, line, *constant, y = yield first
        _refuse_size(y)
        _refuse_labels(np.concatenate([opened, line]))
        precision = Precision.of_format([opened, line])
        if repeats:
            [second] = yield [holdout.repeated(opening, repeats)]
            precision = precision.with_noise(holdout.noise_of(opened[:repeats], second), repeats)
            size = np.sqrt(np.mean(np.concatenate([opened, line]) ** 2))
            if precision.noise > _MOST_NOISE * size:
                raise ModelMismatch(
                    f"The same question got different answers: they vary by {precision.noise:.1e} "
                    f"from call to call and are only {size:.1e} large. Nothing can be learned "
                    "from them as values of a function; average the answers or fix the target."
                )
        values = _read_values(y, constant, scale, precision)
        residual, tolerance = holdout.straightness(straight, line, values)
        if np.any(np.abs(residual) > tolerance(precision)):
            exact = replace(precision, unit=0.0)
            unit = 2 * float(np.max(np.abs(residual) - tolerance(exact))) / KAPPA
            if unit > max(_COARSEST_UNIT, precision.unit):
                raise ModelMismatch(
                    f"Single tokens are not answered by x·v{' + c' if self.biases else ''}: the "
                    f"answers miss it by {np.max(np.abs(residual)):.1e} of their size. The target "
                    f"is not a single attention head{self._or_biased()}."
                )
            precision = precision.with_unit(unit, "Single tokens are not answered exactly")
            values = _read_values(y, constant, scale, precision)
        return values, opened

    def _or_biased(self) -> str:
        return "" if self.biases else ", or it has biases: then ask with biases=True (--biases)"

    def _offsets(self, values: Values, rng: np.random.Generator) -> Offsets:
        if self.probes == "paper":
            return offsets.paper(values.v, values.v_error)
        if self.probes == "gaussian":
            return offsets.gaussian(self.dim, rng)
        return offsets.balanced(values.v, rng)


@dataclass(frozen=True, slots=True)
class _Fit:
    """A recovered head with everything that bounds its errors."""

    model: SingleHead
    values: Values
    block: Block
    bias: Block | None
    Z: Offsets
    checks: int
    otherwise: str
    """What else may explain a target that is not predicted."""

    def judged(self, probes: list[Sequences], answers: list[Array]) -> tuple[_Fit, Evidence]:
        """Hold the fit against the hold-out; assume coarser answers as far as allowed, or refuse.

        Returns the fit whose certificate the hold-out supports.
        """
        exact = self.values.precision == Precision()
        limit = _MOST_UNEXPLAINED if exact else _MOST_UNEXPLAINED_COARSE
        factor, fit = 1.0, self
        while True:
            certificate = fit.certificate()
            evidence, strain = holdout.judge(
                probes, answers, self.model, fit.values, certificate, self.checks
            )
            if evidence.passed or not self.checks:
                return (fit.coarser(_STRAIN * strain) if strain > 1 / _STRAIN else fit), evidence
            factor *= 2 * max(1.0, evidence.max_residual / evidence.tolerance)
            if not factor <= limit:  # also when there is nothing to compare
                break
            fit = self.coarser(factor)
        if not np.isfinite(certificate.errors["W"]) or np.isnan(evidence.max_residual):
            raise NotIdentifiable(
                "The answers are too coarse to determine W: what they leave open moves every "
                "fresh answer more than can be told apart. v is determined."
                + _why(self.values.precision),
                determined={"v": self.values.v, "c": self.values.c},
            )
        raise ModelMismatch(
            f"The recovered head misses fresh answers by {evidence.max_residual:.1e} of their size "
            f"where {evidence.tolerance:.1e} is expected. The target is not a single attention "
            f"head over {self.model.dim} dimensions{self.otherwise}."
        )

    def coarser(self, factor: float) -> _Fit:
        """Assume answers to be ``factor`` times as coarse as they look."""
        precision = self.values.precision.coarser(factor, "The hold-out is not predicted exactly")
        values = replace(self.values, precision=precision)
        block, bias = replace(self.block, values=values), self.bias
        return replace(self, values=values, block=block, bias=bias and replace(bias, values=values))

    def certificate(self) -> Certificate:
        """Bound the errors of W, v, w and c."""
        assumes = [
            "The target is a single head: what the hold-out tests, it cannot prove.",
            f"An answer is off by at most {KAPPA:.0f} × {self.values.precision.unit:.1e} × "
            "max‖x_i‖·‖v‖ from rounding, beside what is named here.",
            *self.values.precision.why,
        ]
        if not self.checks:
            assumes.append("Nothing was checked: exact float64 answers are taken for granted.")
        w_error = shift_error = 0.0
        if self.bias is not None:
            shift_error = self.bias.error(np.zeros(1), self.model.w, self.Z.largest)
            w_error = self.Z.error(shift_error, self.model.w)
        columns = np.linalg.norm(self.model.W, axis=0)
        measured = self.block.error(columns, self.model.w, self.Z.largest, shift_error)
        W_error = self.Z.error(measured, self.model.W)
        if not np.isfinite(W_error):
            margin = self.block.gates().margin
            assumes.append(
                f"No bound on W: {np.count_nonzero(~(margin > 0))} of {margin.size} answers are "
                "within their own error of b·v or (a+b)·v, so their logits are unbounded."
            )
        errors = {
            "W": W_error,
            "v": float(np.linalg.norm(self.values.v_error)),
            "w": w_error,
            "c": self.values.c_error,
        }
        return Certificate(errors, tuple(assumes))

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        notes = list(self.values.precision.why)
        longest = float(np.linalg.norm(self.model.W, axis=0).max())
        bias = float(np.linalg.norm(self.model.w))
        if bias > 10 * longest > 0:
            notes.append(
                f"The query bias is {bias / longest:.0e} times a column of W. It cannot be scaled "
                "away, so W's relative accuracy falls with the square of that ratio."
            )
        if not np.isfinite(self.certificate().errors["W"]):
            notes.append("There is no finite bound on W: see the certificate's assumptions.")
        return tuple(notes)


def _refuse_size(y: Array) -> None:
    """Refuse answers whose squares float64 cannot hold."""
    largest = float(np.max(np.abs(y)))
    if largest > _LARGEST_ANSWER or 0 < largest < 1 / _LARGEST_ANSWER:
        raise NotIdentifiable(
            f"Answers of about {largest:.0e} leave float64 no room to compute with: scale the "
            f"target's output to between {1 / _LARGEST_ANSWER:.0e} and {_LARGEST_ANSWER:.0e}.",
            determined={},
        )


def _refuse_labels(y: Array) -> None:
    """Refuse answers that are a handful of round numbers."""
    values = np.unique(y)
    if len(values) > 1 and significant_bits(y) <= _LABEL_BITS:
        raise ModelMismatch(
            f"Sequences at random are answered by {', '.join(f'{v:g}' for v in values[:6])} alone: "
            "these are labels, not values of an attention head."
        )


def _read_values(y: Array, constant: list[Array], scale: float, precision: Precision) -> Values:
    """Read v and c from f([ρe_k]) = ρv_k + c and f([0]) = c."""
    c = float(constant[0][0]) if constant else 0.0
    rounding = precision.of_one_term
    c_error = rounding * abs(c) + precision.absolute if constant else 0.0
    v = (y - c) / scale
    v_error = (rounding * np.abs(y) + precision.absolute + c_error) / scale
    if constant:  # y − c rounds; y / 1 does not
        v_error = v_error + 2 * UNIT * np.abs(v)
    return Values(v, c, v_error, c_error, precision)


def _offset_limit(shift: Array) -> float:
    """Largest offset scale that keeps the bias's part of a logit moderate."""
    rms = float(np.sqrt(np.mean(shift**2)))
    return float(np.exp2(np.floor(np.log2(max(2.0 / max(rms, 1e-100), 1e-100)))))


def _refuse_without_value(
    values: Values,
    opening: Sequences,
    opened: Array,
    count: int,
    rng: np.random.Generator,
) -> Generator[Round, Answers, None]:
    """Refuse v = 0, as far as the answers tell: W is free if longer sequences say so too."""
    longer = [holdout.opening(len(values.v), count, rng)]
    answers = yield list(longer)
    y = np.concatenate([opened, *answers])
    X = np.concatenate([opening.X, *(family.X for family in longer)])
    size = np.linalg.norm(X, axis=2).max(axis=1)
    precision = values.precision
    if precision == Precision():
        # rounding to zero hides the format until something longer is not zero
        precision = Precision.of_format([y])
    v_error = np.linalg.norm(values.v_error + precision.absolute)
    bound = precision.error(size * values.norm + abs(values.c), y) + values.c_error
    bound = bound + size * (values.norm + v_error)
    if np.any(np.abs(y - values.c) > bound):
        raise ModelMismatch(
            "Single tokens are answered as if v = 0, longer sequences are not: the target is not "
            "a single attention head."
        )
    lost = " as far as the answers tell." + _why(precision)
    raise NotIdentifiable(
        "v = 0" + (lost if v_error else ".") + " The softmax weights nothing, so "
        "W is free: no query can determine it.",
        determined={"v": values.v, "c": values.c},
    )


def _why(precision: Precision) -> str:
    return "".join(f" {sentence}" for sentence in precision.why)
