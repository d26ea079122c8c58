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

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from unsoftmax.learners.settings import Configured, flag, one_of, whole
from unsoftmax.learners.single_head.first_round import or_biased, read_opening
from unsoftmax.learners.single_head.verdict import conclude
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_grid import Block, measure
from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.scales import Split, beside_bias, free, offset_only
from unsoftmax.measure.two_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, UnitVectors
from unsoftmax.protocol import Plan, Steps
from unsoftmax.solve.dense import solution_error
from unsoftmax.theory import counts

_AGAIN_PER_TOKEN = 2


@dataclass(frozen=True, slots=True)
class ExactHead(Configured):
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

    revision: ClassVar[int] = 2

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1)
        whole("seed", self.seed, 0)
        flag("biases", self.biases)
        one_of("probes", self.probes, ("balanced", "paper", "gaussian"))

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
        opened = yield from read_opening(self.dim, self.biases, checks, rng)
        values = opened.values
        Z = self._offsets(values, rng)
        rows = Z.made()
        w = np.zeros(self.dim)
        bias: Block | None = None
        split: Split = free
        shift: Array | None = None
        spare = _AGAIN_PER_TOKEN * (self.dim + self.biases)
        if self.biases:
            bias = yield from measure(
                values, rows, np.zeros((1, self.dim)), offset_only, "w", spare
            )
            spare -= bias.again
            [shift] = bias.measured()
            w = Z.solve(shift[None])[:, 0]
            split = beside_bias(shift)
        block = yield from measure(values, rows, UnitVectors(self.dim), split, "W", spare, shift)
        model = SingleHead(Z.solve(block.measured()), values.v, w, values.c)

        fit = _Fit(model, values, block, bias, Z)
        return (yield from conclude(fit, opened, checks, rng, or_biased(self.biases)))

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

    def bounds(self) -> tuple[dict[str, float], tuple[str, ...]]:
        """Bound the errors; see `unsoftmax.solve.dense`."""
        w_error = shift_error = 0.0
        if self.bias is not None:
            zero = np.zeros(1)
            shift = self.bias.reading(self.values, zero, self.model.w, self.Z.largest)
            shift_error = shift.total
            w_error = solution_error(self.Z, shift_error, self.model.w)
        columns = np.linalg.norm(self.model.W, axis=0)
        measured = self.block.reading(
            self.values, columns, self.model.w, self.Z.largest, shift_error
        ).total
        errors = {
            "W": solution_error(self.Z, measured, self.model.W),
            "v": float(np.linalg.norm(self.values.v_error)),
            "w": w_error,
            "c": self.values.c_error,
        }
        return errors, self.block.unbounded(self.values)

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
        return tuple(notes)
