"""Theorem 4.1: one attention head, exactly, from d + d² values.

Recovers W, v (and w, c with biases) of f(X) = Σ_i α_i x_i·v + c, α = softmax_i(x_i·(W x_N + w)),
from an oracle of exact values, with d + d² queries, (d+1)² with biases: as many as there are
parameters. Queries asked again because their logit was out of range come on top, at most 2
per query token. All parameters are determined, unless v = 0: then W and w are free.

    f([0]) = c                                      c
    f([x]) = x·v + c                                v from x = e_1 … e_d
    f([a; 0]) = c + (a·v)·σ(a·w)                    w from a = z_1 … z_d, Z w = t
    f([a+b; b]) = b·v + c + (a·v)·σ(a·(W b + w))    W e_j from b = e_j, Z (W e_j) = t − Z w

Differences from the paper: (1) the offsets z_i are balanced, so that the shape of v does not
matter, unless ``probes`` asks for the paper's; (2) logits are scaled into range, unless ``probes``
is "paper-unit"; (3) biases; (4) a hold-out and a certificate. It may not know anything of the
target but its answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.settings import Configured, flag, given_frequencies, one_of, whole_number
from unsoftmax.learners.single_head import first_round
from unsoftmax.learners.single_head.conclusion import conclude
from unsoftmax.learners.single_head.low_rank import LowRankHead
from unsoftmax.learners.tokens.table_head import TokenTable
from unsoftmax.measure import logit_grid, offsets
from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Rows, UnitVectors
from unsoftmax.protocol import Plan, Steps
from unsoftmax.solve.dense import DenseSolution, solve
from unsoftmax.theory import counts
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.head_comparison import HeadBounds
from unsoftmax.validate.long_sequences import MOST_ROUNDS
from unsoftmax.validate.sequences import most_tokens

# A query bias so many times the longest column of W is worth a note: it cannot be scaled away.
LARGE_BIAS = 10.0


AGAIN_PER_TOKEN = 2
"""Queries per query token that may be asked again. Generic W of up to 128 dimensions need 13 in
all; one each where columns of W differ by 10¹²."""


@dataclass(frozen=True, slots=True)
class ExactHead(Configured):
    """Learn a single head from exact values (Theorem 4.1).

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    biases : bool
        Also learn w (what a query bias adds to the scores) and c (value and output biases).
    probes : {"balanced", "paper", "gaussian", "paper-unit"}
        Offsets: balanced on v, so that W's accuracy does not depend on v's entries; the
        paper's e_l (e_l + e_p where v_l = 0), which lose digits where entries of v are
        small; or the paper's Gaussian ones. "paper-unit" asks the paper's at unit scales as
        well, as the theorem is written: W is refused where logits leave float64, beyond about 36.
    seed : int
        Decides the random offsets and the hold-out: the same seed asks the same.
    rotary : bool or Rotary
        Scores turn with distance: the model is a `RotaryHead` of K and Q (d, d). The frequencies
        are found, or said by rotary_base; in Python also by a `Rotary` here. `LowRankHead` needs
        fewer queries for a lower rank.
    rotary_base : float, optional
        Says the frequencies by their base, as ``Rotary.of(rotary_base, dim)`` does: rotary need
        not be given beside it.
    table : array_like, shape (V, d), optional
        The target takes ids of a vocabulary, and looks these vectors up: ids are asked. With
        positions an array (P, V, d), the vectors by position and id. W and w are learned on the
        span of the table (of its first two positions), and w and c whatever ``biases`` says.
    context : int
        With a table, the most ids of a sequence that the target takes.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: d + d², (d+1)² with biases; asked again at most 2 per query token, typically
    fewer than 15 in all; with rotary positions d + 2d², and 1 + 4d + 2d² with biases, where at most
    32 are asked again. *Determined up to* nothing; W and w are free when v = 0.
    *With rotary positions up to* one complex number per plane, by which that of K is multiplied and
    that of Q divided, and the sign of a frequency and multiples of 2π: all W(Δ) are determined.
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
    probes: Literal["balanced", "paper", "gaussian", "paper-unit"] = "balanced"
    seed: int = 0
    rotary: bool | Rotary = field(default=False, kw_only=True)
    rotary_base: float | None = field(default=None, kw_only=True)
    table: Any = field(default=None, kw_only=True)
    context: int = field(default=512, kw_only=True)

    revision: ClassVar[int] = 9

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)
        flag("biases", self.biases)
        one_of("probes", self.probes, ("balanced", "paper", "gaussian", "paper-unit"))
        if self.probes == "paper-unit" and self.biases:
            raise ValueError('probes="paper-unit" is Theorem 4.1 as written, without biases.')
        if self.table is not None:
            object.__setattr__(self, "table", TokenTable.of(self.table, int(self.dim)))
        if self._otherwise() is not None and self.probes != "balanced":
            raise ValueError(
                f'probes is "balanced" beside rotary and table; it is "{self.probes}".'
            )

    @property
    def vocabulary(self) -> int | None:
        """How many ids there are; None where vectors are asked."""
        return None if self.table is None else len(self.table)

    def plan(self) -> Plan:
        """Say beforehand what learning costs: as many queries as free parameters."""
        if (learner := self._otherwise()) is not None:
            return learner.plan()
        d = int(self.dim)
        queries = counts.single_head(d, biases=self.biases)
        columns = d + self.biases
        again = 0 if self.probes == "paper-unit" else AGAIN_PER_TOKEN
        rounds = logit_grid.ROUNDS * (1 + self.biases)
        cost = (
            Cost.of(columns, rounds=3)
            + Cost.of(queries - columns, tokens=2, rounds=rounds, again=again * columns)
            + Cost(rounds=MOST_ROUNDS)
        )
        formula = "d² + 2d + 1" if self.biases else "d + d²"
        return cost.plan(formula, most_tokens(d))

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        if (learner := self._otherwise()) is not None:
            return (yield from learner.steps(checks))
        rng = np.random.default_rng(self.seed)
        ahead = self.plan().at_most + checks
        given = first_round.FirstRoundSettings(bool(self.biases), listens=True, ahead=ahead)
        first = yield from first_round.ask_first_round(self.dim, checks, rng, given)
        Z = self._offsets(first.values, rng)
        head = yield from self._read(first.values, Z)
        return (yield from conclude(head, first, rng, first_round.or_biased(self.biases)))

    def _otherwise(self) -> LowRankHead | None:
        """Return the learner of keys and queries where there are positions, or a table."""
        if self.table is not None:
            beside: dict[str, Any] = {"table": self.table, "context": self.context}
            beside |= {"rotary": self.rotary, "rotary_base": self.rotary_base}
            return LowRankHead(self.dim, None, self.biases, seed=self.seed, **beside)
        if not given_frequencies(self.rotary, self.rotary_base, int(self.dim))[0]:
            return None
        positions: dict[str, Any] = {"rotary": self.rotary, "rotary_base": self.rotary_base}
        return LowRankHead(self.dim, self.dim, self.biases, seed=self.seed, **positions)

    def _offsets(self, values: Values, rng: np.random.Generator) -> Offsets:
        if self.probes in ("paper", "paper-unit"):
            return offsets.paper(values.v, values.v_error)
        if self.probes == "gaussian":
            return offsets.gaussian(self.dim, rng)
        return offsets.balanced(values.v, rng)

    def _read(self, values: Values, Z: Offsets, count: int | None = None) -> Asking[ExactReading]:
        """Read Z w, then Z W or so many of its columns, and solve for both; others count as 0."""
        rows, d = Z.made(), self.dim
        k = d if count is None else count
        tokens: Rows = UnitVectors(d) if k == d else np.eye(d)[:k]
        spare = AGAIN_PER_TOKEN * (k + self.biases)
        bias, w, shift = None, None, None
        split: logit_grid.Split = logit_grid.free
        if self.biases:
            zero = np.zeros((1, d))
            bias = logit_grid.LogitGrid(rows, zero, values, logit_grid.offset_only, "w")
            yield from logit_grid.measure(bias, spare)
            spare -= bias.again
            w = solve(Z, bias.measured())
            [shift] = bias.measured()
            split, values = logit_grid.beside_bias(shift), bias.values
        columns = logit_grid.LogitGrid(rows, tokens, values, split, "W", shift)
        if self.probes == "paper-unit":
            yield from logit_grid.measure_unscaled(columns)
        else:
            yield from logit_grid.measure(columns, spare)
        values = columns.values
        if bias is not None:
            bias.take(values)
        W = solve(Z, columns.measured())
        if k < d:
            W = replace(W, matrix=np.pad(W.matrix, ((0, 0), (0, d - k))))
        model = SingleHead(W.matrix, values.v, None if w is None else w.matrix[:, 0], values.c)
        W = replace(W, matrix=model.W)  # one array instead of two
        return ExactReading(model, values, columns, W, bias, w)


@dataclass(frozen=True, slots=True)
class ExactReading:
    """The readings Z W and Z w, what was solved from them, and what bounds its errors."""

    model: SingleHead
    values: Values
    columns: logit_grid.LogitGrid
    """Z W."""
    W: DenseSolution
    bias: logit_grid.LogitGrid | None
    """Z w."""
    w: DenseSolution | None

    def bounds(self) -> HeadBounds:
        """Bound the errors; see `unsoftmax.solve.dense`."""
        stretch = self.W.offsets.largest
        w, w_error, shift_error = self.model.w, 0.0, 0.0
        if self.bias is not None and self.w is not None:
            read = self.bias.reading(self.values, np.zeros(1), w, stretch)
            shift_error, w_error = read.total, self.w.error_of(read)
        lengths = np.linalg.norm(self.W.matrix, axis=0)
        measured = self.columns.reading(self.values, lengths, w, stretch, shift_error)
        W_error = self.W.error_of(measured, w_error)
        further = self.columns.unbounded(self.values)
        return HeadBounds.of(self.values, W_error, w_error, *further)

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        notes = list(self.values.precision.why)
        longest = float(np.linalg.norm(self.W.matrix, axis=0).max())
        bias = 0.0 if self.w is None else float(np.linalg.norm(self.w.matrix))
        if bias > LARGE_BIAS * longest > 0:
            notes.append(
                f"The query bias is {bias / longest:.0e} times a column of W. It cannot be scaled "
                "away, so W's relative accuracy falls with the square of that ratio."
            )
        return tuple(notes)
