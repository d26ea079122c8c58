"""Theorem 5.1 without its constants: one head of rank r from as many values as parameters.

Recovers W of rank r, v (and w, c with biases) from an oracle of exact values with
d + r(2d − r) queries, 1 + d + r(2d + 1 − r) with biases: as many as there are free
parameters. Where r is not given it is found with at most 2d queries more. Queries asked again
come on top, at most 2(r + 1). Determined up to nothing, unless v = 0.

A matrix of rank r is the product of any r of its columns and any r of its rows that span
them. With X (d × r) query tokens, A (d × r) offsets, one answer for each entry:

    C = W X                    r tokens, d offsets           its columns span W's range
    R = Aᵀ W                   r offsets, the other tokens   its rows span W's row space
    W = C (AᵀC)⁻¹ R            kept as two factors

A is chosen when C is known: Q = qr(C), a_k = Q z_k + v̂ with z balanced, so that AᵀC is well
conditioned and every a_k·v ≥ ‖v‖, whether v lies in W's range or not.

Differences from the paper: (1) adaptive queries, so dof of them instead of O(rd), and no
convex programme (`SensingHead` is the theorem as written); (2) r may be unknown: the leading
tokens are asked with a few offsets until they stop being independent, and of these the
best r are completed; (3) biases: [W w] has rank r; (4) with a ``tolerance`` one more column
measurement over the row space found, Ŵ = (W P)Pᵀ, whose error is that of the noise alone;
(5) hold-out and certificate. W stays in factors, and so do tokens and offsets: no d × d array.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from unsoftmax.learners.settings import Configured, flag, positive, whole
from unsoftmax.learners.single_head.column_space import Columns, find_columns, growths
from unsoftmax.learners.single_head.first_round import or_biased, read_opening
from unsoftmax.learners.single_head.verdict import MOST_UNEXPLAINED, conclude
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_grid import Block, common_scale, measure
from unsoftmax.measure.offsets import DENSE_GRID, Offsets
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.measure.scales import Split, beside_bias, even, loud, offset_only
from unsoftmax.measure.two_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Round, pick
from unsoftmax.protocol import Answers, Plan, Steps
from unsoftmax.solve.dense import solution_error
from unsoftmax.theory import counts

# Additive noise falls by this where nothing caps the tokens' norms; in v by more, since every
# offset sees v's error.
_LOUD, _LOUD_SINGLES = 2.0**40, 2.0**46
# Columns at r tokens say how long the others are: where r is small only roughly, and two more
# are asked two octaves below.
_CAUTION, _FEW, _ENOUGH = 2, 2, 8
# What is left out by too small a rank must not pass for coarse arithmetic: naive loops at
# d = 1024 are 8 times as coarse as is assumed.
_MOST_UNEXPLAINED = 16.0
# The largest tokens of the hold-out's opening, and how much less than usual may be seen there.
_LARGEST_OPENING, _FEW_SEE = 64.0, 1024.0
# Where v is orthogonal to W's range, as far as this, balancing on it would be arbitrary.
_ORTHOGONAL = 1e-3


@dataclass(frozen=True, slots=True)
class LowRankHead(Configured):
    """Learn a single head of low rank from as many exact values as it has parameters.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    rank : int, optional
        Rank r of W, of [W w] with biases; for a trained head its key dimension. Found where
        it is not given, with at most 2d queries more.
    biases : bool
        Also learn w (what a query bias adds to the scores) and c (value and output biases).
    tolerance : float, optional
        The answers are within ± this of the head's: probes are scaled so that it matters
        least, and d·r queries more are asked, so that W's error is the noise's alone. With
        biases they cannot be: w moves a logit with the offset's size.
    seed : int
        Decides tokens, offsets and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: d + r(2d − r); 1 + d + r(2d + 1 − r) with biases; asked again at most 2(r + 1).
    *Determined up to* nothing; W and w are free when v = 0. A rank above the given one is
    refused, never cut off. *Source*: Theorem 5.1 of arXiv 2601.16873 for what is learned;
    how, to the last query, is beyond it.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> K, Q, v = rng.standard_normal((2, 32)), rng.standard_normal((2, 32)), np.ones(32)
    >>> target = us.SingleHead.from_factors(K, Q, v)
    >>> learner = us.learners.LowRankHead(32, rank=2)
    >>> learner.plan().queries
    156
    >>> recovery = us.learn(target, learner)
    >>> bool(np.allclose(recovery.model.W, target.W, rtol=0, atol=1e-11))
    True
    """

    dim: int
    rank: int | None = None
    biases: bool = False
    tolerance: float | None = None
    seed: int = 0

    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1)
        whole("seed", self.seed, 0)
        flag("biases", self.biases)
        if self.rank is not None:
            whole("rank", self.rank, 0)
            if self.rank > self.dim:
                raise ValueError(f"rank must be at most dim = {self.dim}; it is {self.rank}.")
        if self.tolerance is not None:
            positive("tolerance", self.tolerance)

    def plan(self) -> Plan:
        """Say beforehand what learning costs; only a bound when the rank is not known."""
        d, biases = int(self.dim), bool(self.biases)
        r = d if self.rank is None else int(self.rank)
        once = counts.low_rank_head(d, r, biases=biases)
        queries = once + (d * r if self.tolerance is not None else 0)
        searched = 2 * d if self.rank is None else 0
        formula = "1 + d + r(2d + 1 − r)" if biases else "d + r(2d − r)"
        formula += " + dr" if self.tolerance is not None else ""
        formula += ", and at most 2d to find r" if self.rank is None else ""
        return Plan(
            queries=None if self.rank is None else queries,
            at_most=queries + searched + 2 * (r + 1),
            tokens=2 * (queries + searched) - d - biases,
            rounds=24 + 8 * biases + 2 * (self.rank is None) * growths(d),
            formula=formula,
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng = np.random.default_rng(self.seed)
        told = None if self.tolerance is None else Precision.declared(self.tolerance)
        scale = None if told is None else _LOUD_SINGLES
        opened = yield from read_opening(self.dim, self.biases, checks, rng, told, scale)
        values = opened.values
        Z, T = offsets.balanced(values.v, rng, DENSE_GRID), offsets.rotation(self.dim, rng)
        split = even if told is None else loud(_LOUD)
        fit: _Fit | _Nothing = _Nothing(values, _unseen(values))
        if self.rank != 0:
            columns = yield from find_columns(values, Z, T, self.rank, self.biases, split)
            fit = _Nothing(values, columns.left_out)
            if len(columns.tokens):
                fit = yield from _complete(values, columns, Z, T, split, rng)
                if told is not None:
                    fit = yield from _refined(fit, split)
        above = "" if self.rank is None else f", or its rank is above {self.rank}"
        otherwise = above + or_biased(self.biases)
        unexplained = MOST_UNEXPLAINED if self.rank is None else _MOST_UNEXPLAINED
        gain = 1.0 if told is None or self.biases else _LOUD
        return (yield from conclude(fit, opened, checks, rng, otherwise, unexplained, gain=gain))


def _unseen(values: Values) -> float:
    """Estimate the norm of a W that the hold-out would not tell from 0.

    At tokens of norm s a logit is about s²‖W‖/d, an answer moves by s‖v‖ of it. The hold-out's
    opening goes to s = 64; a few of its sequences may see less than usual.
    """
    precision, dim = values.precision, len(values.v)
    hidden = KAPPA * precision.unit + precision.relative
    hidden += precision.absolute / (_LARGEST_OPENING * values.norm)
    return _FEW_SEE * dim * hidden / _LARGEST_OPENING**2


def _complete(
    values: Values, columns: Columns, Z: Offsets, T: Offsets, split: Split, rng: np.random.Generator
) -> Generator[Round, Answers, _Fit]:
    """Ask for the rows AᵀW and join them with the columns."""
    rank, dim = len(columns.tokens), len(values.v)
    spare = 2 * (rank + 1) - columns.block.again
    C = Z.solve(columns.block.measured())
    Q = np.linalg.qr(C)[0]
    A = _offsets_in(Q, values.v, rng)
    bias, shift = None, None
    seen = A @ C
    if columns.beta:
        bias = yield from measure(
            values, A, np.zeros((1, dim)), offset_only, "w, rows", max(0, min(spare, 2))
        )
        [shift] = bias.measured()
        split = beside_bias(shift, even)
        seen = seen - shift[:, None] / columns.beta
        spare -= bias.again
    by_token = np.empty((dim, rank))
    by_token[columns.tokens] = seen.T
    rest = np.setdiff1d(np.arange(dim), columns.tokens)
    rows = None
    if len(rest):
        rows = Block(A, pick(T.rows, rest), values, split, "W, rows", shift)
        size = float(np.sqrt(np.mean(seen**2)))
        k = common_scale(rows, int(np.round(np.log2(0.5 / size))) if size else 0)
        few = min(_FEW, len(rest)) if rank < _ENOUGH else 0
        if few:
            yield from rows.ask(slice(0, few), slice(None), k[:few] - _CAUTION)
            k = common_scale(rows)
        if few < len(rest):
            yield from rows.ask(slice(few, None), slice(None), k[few:])
        yield from rows.retry(k, max(0, spare))
        by_token[rest] = rows.measured()
    right = np.linalg.solve(A @ Q, T.solve(by_token.T).T)
    w = None if shift is None else Q @ np.linalg.solve(A @ Q, shift)
    model = SingleHead.from_factors(Q.T, right, values.v, w, values.c)
    return _Fit(model, values, columns, C, Q, A, right, bias, rows, Z, T)


def _offsets_in(Q: Array, v: Array, rng: np.random.Generator) -> Array:
    """Make r offsets Q z_k + v̂: AᵀQ is well conditioned and a_k·v ≥ ‖v‖ whatever v is."""
    direction = v / np.linalg.norm(v)
    within = Q.T @ direction
    if np.linalg.norm(within) < _ORTHOGONAL:
        within = rng.standard_normal(len(within))
    rows = offsets.balanced(within, rng).made() @ Q.T + direction
    return np.asarray(np.round(rows / DENSE_GRID) * DENSE_GRID)


def _refined(fit: _Fit, split: Split) -> Generator[Round, Answers, _Fit]:
    """Measure W once more on the row space V found: Ŵ = (W Pᵀ)(V Pᵀ)⁻¹V, P being V rounded."""
    model, values = fit.model, fit.values
    V = np.linalg.qr(fit.right.T)[0].T
    P = np.round(V / DENSE_GRID) * DENSE_GRID
    shift = None
    if fit.bias is not None:
        shift = fit.Z.times(model.w)
        split = beside_bias(shift, even)
    block = Block(fit.Z.rows, P, values, split, "W on its row space", shift)
    size = float(np.linalg.norm(fit.right) / np.sqrt(block.y.size))
    k = common_scale(block, int(np.round(np.log2(0.5 / size))) if size else 0)
    yield from block.ask(slice(None), slice(None), k)
    yield from block.retry(k, 0)
    K = fit.Z.solve(block.measured()).T
    right = np.linalg.solve(V @ P.T, V)
    again = SingleHead.from_factors(K, right, values.v, model.w, values.c)
    return replace(fit, model=again, refined=block)


@dataclass(frozen=True, slots=True)
class _Nothing:
    """W = 0, w = 0: left_out is what W may be all the same."""

    values: Values
    left_out: float

    @property
    def model(self) -> SingleHead:
        none = np.zeros((0, len(self.values.v)))
        return SingleHead.from_factors(none, none, self.values.v, None, self.values.c)

    def bounds(self) -> tuple[dict[str, float], tuple[str, ...]]:
        v_error = float(np.linalg.norm(self.values.v_error))
        errors = {"W": self.left_out, "v": v_error, "w": self.left_out, "c": self.values.c_error}
        return errors, ("W has rank 0.",)

    def notes(self) -> tuple[str, ...]:
        return self.values.precision.why


@dataclass(frozen=True, slots=True)
class _Fit:
    """A recovered head of low rank with everything that bounds its errors.

    With Π = C(AᵀC)⁻¹Aᵀ, the projection onto W's range along A's complement, and W = C K,
    errors E of C and F of R give Ŵ − W = (I − Π)E K + C(AᵀC)⁻¹F, exactly.
    """

    model: SingleHead
    values: Values
    columns: Columns
    C: Array
    """The columns, (d, r)."""
    Q: Array
    """Orthonormal basis of their span, (d, r)."""
    A: Array
    right: Array
    """W = Q right, (r, d)."""
    bias: Block | None
    rows: Block | None
    Z: Offsets
    T: Offsets
    refined: Block | None = None

    def bounds(self) -> tuple[dict[str, float], tuple[str, ...]]:
        """Bound the errors of W, v, w and c."""
        values, columns, core = self.values, self.columns, self.A @ self.Q
        rank = len(core)
        stretch = float(np.linalg.norm(self.A, 2))
        inverse = float(1 / np.linalg.svd(core, compute_uv=False)[-1])
        tilt = float(np.linalg.norm(np.linalg.solve(core, self.A), 2))  # ‖Π‖ = ‖I − Π‖
        lengths = np.linalg.norm(self.C, axis=0)
        E = columns.block.reading(values, lengths, np.zeros(1), self.Z.largest).total
        E = solution_error(self.Z, E, self.C)
        F = shift_error = 0.0
        if self.bias is not None:
            shift_error = self.bias.reading(values, np.zeros(1), self.model.w, stretch).total
            F += np.sqrt(rank) * shift_error / columns.beta
        if self.rows is not None:
            lengths = np.linalg.norm(np.linalg.solve(core, self.rows.measured().T), axis=0)
            F += self.rows.reading(values, lengths, self.model.w, stretch, shift_error).total
        F = solution_error(self.T, inverse * F + tilt * E, self.right)
        spread = self._spread()
        # at (x, 1) a query token is longer than x, which is a unit vector
        longest = np.sqrt(1 + rank) if columns.beta else 1.0
        beyond = columns.left_out * tilt * (1 + longest * spread)
        w_error = (tilt * E * spread + beyond) * columns.beta + inverse * shift_error
        rounding = 8 * UNIT * tilt * float(np.linalg.norm(self.right))
        if self.refined is None:
            W_error = tilt * E * spread + F + beyond + rounding
        else:
            # the true range may tilt against the one found: its factor is doubled
            K, P = self.model.arrays()["K"], self.refined.queries[np.arange(rank)]
            narrow = 1 - DENSE_GRID * np.sqrt(P.size)
            along = self.refined.reading(
                values,
                np.linalg.norm(K, axis=1),
                self.model.w,
                self.Z.largest,
                self.Z.largest * w_error,
            ).total
            W_error = solution_error(self.Z, along, K) / narrow + 2 * F + beyond + rounding
        errors = {
            "W": float(W_error),
            "v": float(np.linalg.norm(values.v_error)),
            "w": float(w_error),
            "c": values.c_error,
        }
        further = columns.block.unbounded(values)
        further += self.rows.unbounded(values) if self.rows is not None else ()
        return errors, (
            f"W has rank {rank} or less"
            + (", but for what is below the answers' noise" if columns.left_out else "")
            + "; the row space found is close enough to the true one that it is seen through the "
            "query tokens at least half as well.",
            *further,
        )

    def _spread(self) -> float:
        """Bound ‖K‖₂ in W = C K, twice what the row space found gives."""
        rows, tokens = self.right.T, self.T.rows[self.columns.tokens]
        if self.columns.beta:  # columns of [W w/β] at (x, 1)
            w = self.Q.T @ self.model.w / self.columns.beta
            rows = np.vstack([rows, w])
            tokens = np.column_stack([tokens, np.ones(len(tokens))])
        basis = np.linalg.qr(rows)[0]
        return float(2 / np.linalg.svd(tokens @ basis, compute_uv=False)[-1])

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        return (*self.values.precision.why, *self.columns.notes)
