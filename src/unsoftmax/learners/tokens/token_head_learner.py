"""One head behind a vocabulary whose table is unknown: its function on all sequences of ids.

A target takes ids t of a vocabulary of V and looks vectors x_t up in a table that nobody shows.
Without positions its answer depends on counts and the last id j alone:

    f = Σ_t n_t e^{M_tj} u_t / Σ_t n_t e^{M_tj},  u_t = x_t·v + c,  M_ij = x_i·(W x_j + w).

u_t and G_ij = M_ij − M_jj are determined, and nothing else: the softmax needs each column of M up
to a constant, [t] gives u_t, and [i, j], beside a reference where u_i = u_j, gives G_ij. Column j
is (ρ_i − ρ_j)·x_j, r unknowns: V + r(2V − 1 − r) queries.

    [t]                                     u            `asked_ids`; copies: positions
    k × (k + 1) pairs                       r            `solve.token_factors.rank_of`
    r + 1 query tokens, all i               ρ            each row with its own error δ_i
    r + 1 anchors, all other query tokens   x            pivoted QR of (ρ_i − ρ_j)|u_i − u_j|

Readings and their errors are those of `measure.bags`. One more pilot column and one more anchor
than unknowns leave a choice where logits cannot be read. Rows whose pilots were read badly are read
again in columns that see them. First order, with c_j = x_j and P the weighted pseudo-inverse,

    |ΔG_ij| ≤ |ρ_i − ρ_j|·(|P| ε) + ‖x_j‖ (δ_i + δ_j),  ε = δG + (δ_i + δ_j)‖x_j‖ of each reading.

ρ and x are those of the readings themselves: ρ = A T with A the pilot columns and T any basis, so
the basis has no error of its own.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from unsoftmax.learners.compose import as_planned
from unsoftmax.learners.settings import Configured, whole_number
from unsoftmax.learners.tokens.asked_ids import COPIED, MIXED, ask_lone, fresh_bags, held_out
from unsoftmax.learners.tokens.vocabulary_factors import (
    GROWTHS,
    MORE_AIMS,
    MOST_RANK,
    SPARE,
    TRIED,
    Factors,
    find_block,
    refuse_open,
)
from unsoftmax.measure.bags import BagReader
from unsoftmax.models.arrays import TINY
from unsoftmax.models.token_head import TokenHead
from unsoftmax.probes import Array, Indices
from unsoftmax.protocol import Certificate, Found, Plan, Steps
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.judge import Residuals

# Bounds are first order: they count so many times. Of 800,000 entries of hostile targets 12 were
# off by more than the bound, by up to 3.9 times.
FIRST_ORDER = 4.0
# Where that is more, weights are off by factors of e, of which the first order says nothing.
_NO_LONGER = 1.0


@dataclass(frozen=True)  # dim is a property here, which a slotted class does not protect
class TokenHeadLearner(Configured):
    """Learn a head from ids of a vocabulary, its table unknown.

    ``us.learners.TokenHead`` is the same.

    Parameters
    ----------
    vocabulary : int
        Number of ids V: 0 to V − 1 are asked.
    rank : int, optional
        Rank r of the scores; for a trained head its key dimension. Found where it is not given.
    context : int
        The most ids of a sequence that the target takes. Logits far from 0 are read with up to as
        many copies, and half of the hold-out fills it.
    seed : int
        Decides which ids are asked beside each other, and the hold-out.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: V + 16 + (r + 3)(r + 4) + (r + 1)(2V − 2r − 5), of V + r(2V − 1 − r) unknowns; asked
    again at most as many. Where r is found, at most 256, about k² of a block instead, k up to
    1.25(r + 3). *Determined up to* an invertible matrix between ρ and x, and a constant added to
    all ρ. Targets that add positions to tokens, put tokens of their own beside them, cut sequences
    or are no single head are refused. *Source*: softmax answers determine the scores of each query
    token up to a constant; the rest is beyond the theorems of arXiv 2601.16873.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> table, head = rng.standard_normal((50, 4)), us.SingleHead(np.eye(4), np.ones(4))
    >>> oracle = us.oracles.from_ids(lambda ids: head(table[ids]), vocabulary=50)
    >>> recovery = us.learn(oracle, us.learners.TokenHead(vocabulary=50))
    >>> ids = np.array([[7, 7, 3, 21]])
    >>> bool(np.allclose(recovery.model(ids), head(table[ids]), rtol=0, atol=1e-10))
    True
    """

    vocabulary: int
    rank: int | None = None
    context: int = 512
    seed: int = 0

    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        whole_number("vocabulary", self.vocabulary, 2)
        whole_number("context", self.context, 2)
        whole_number("seed", self.seed, 0)
        if self.rank is not None:
            whole_number("rank", self.rank, 0)
            if self.rank >= self.vocabulary:
                raise ValueError(
                    f"rank must be below vocabulary = {self.vocabulary}; it is {self.rank}."
                )

    @property
    def dim(self) -> int:
        """A token is one number, its id."""
        return 1

    def plan(self) -> Plan:
        """Say beforehand what learning costs; only a bound when the rank is not known."""
        V = int(self.vocabulary)
        r = min(V - 1, MOST_RANK) if self.rank is None else int(self.rank)
        k = min(V, r + SPARE)
        block, factors = k * (k + 1), (r + 1) * (2 * V - k - r - 2) if r else 0
        # where all ids are in the block they are rows and query tokens at once
        known = self.rank is not None and 2 * k < V
        pairs = min(block + factors, V * (V - 1))
        cost = (
            Cost.of(V + min(V, COPIED) + MIXED, rounds=1)
            + Cost.of(pairs, tokens=2, rounds=6 * (GROWTHS + MORE_AIMS + 6), again=pairs + block)
            + Cost(rounds=2)
        )
        formula = "V + 16 + (r + 3)(r + 4) + (r + 1)(2V − 2r − 5)"
        if not known:
            formula = (
                "V + r(2V − 1 − r) unknowns, and a tenth to a third more, for the rank r found"
            )
        plan = cost.plan(formula, int(self.context), V - 1.0, known=known)
        return replace(plan, vocabulary=V)

    def steps(self, checks: int) -> Steps[TokenHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        excess = "the target's weights are 0 or 1 nearly everywhere, or it is no single head"
        contrary = "no single head"
        return (yield from as_planned(self._steps(checks), self.plan(), excess, contrary))

    def _steps(self, checks: int) -> Steps[TokenHead]:
        rng = np.random.default_rng(self.seed)
        V, context = int(self.vocabulary), int(self.context)
        fresh = rng.choice(V, min(V, COPIED), replace=False)
        lone = yield from ask_lone(np.arange(V), fresh, context, rng)
        reader = BagReader(lone.y, lone.y, lone.precision, context)
        tokens = self._tokens(reader, rng)
        block = yield from find_block(reader, tokens, tokens[::-1], self.rank)
        factors = Factors.of(reader, block)
        yield from factors.read(rng)
        return (yield from self._conclude(factors, checks, rng))

    def _tokens(self, reader: BagReader, rng: np.random.Generator) -> Indices:
        """Return ids in the order in which a block takes them, first two whose values differ."""
        order = np.argsort(reader.keys, kind="stable")
        last = len(order) - 1
        low, high = order[int(0.05 * last)], order[int(np.ceil(0.95 * last))]
        others = rng.permutation(len(order))
        return np.concatenate([[low, high], others[(others != low) & (others != high)]])

    def _conclude(
        self, factors: Factors, checks: int, rng: np.random.Generator
    ) -> Steps[TokenHead]:
        """Ask the hold-out: bags of every length up to the context."""
        reader, bound = factors.reader, FIRST_ORDER * factors.bound()
        bound = bound if bound <= _NO_LONGER else np.inf
        model = TokenHead(reader.keys, factors.rho, factors.x)
        u_error = float(np.max(reader.eta(np.array(1), reader.keys)))
        errors = {"u": u_error, "G": bound}
        context = int(self.context)
        known = np.flatnonzero(np.isfinite(factors.rho_error))
        fresh = fresh_bags(checks, known, context, rng)

        def allowed_of(ids: Indices) -> Array:
            beside = {"u": u_error, "G": FIRST_ORDER * factors.bounds_of(ids)}
            return model.moved_at_most(ids, beside)

        def compare(X: Array, y: Array) -> Residuals:
            ids = X[:, :, 0].astype(np.intp)
            size = np.max(np.abs(reader.keys[ids]), axis=1)
            own = 3 * reader.eta(np.array(ids.shape[1]), size)
            most = reader.most_missed + own / np.maximum(size, TINY)
            missed, allowed = y - model(ids), allowed_of(ids)
            return Residuals.of(missed, own=own, allowed=allowed, size=size, most=most)

        trial = fresh_bags(TRIED, known, context, np.random.default_rng(self.seed))
        apart = [np.maximum(np.ptp(reader.keys[one.ids], axis=1), TINY) for one in trial]
        shares = [allowed_of(one.ids) / own for one, own in zip(trial, apart, strict=True)]
        refuse_open(reader, np.concatenate(shares))

        judgement, checked = yield from held_out(fresh, compare, checks, context, reader)
        assumes = (
            "The target is one head whose answer depends on how often each id stands before the "
            f"last one: {checked}",
            "G bounds every logit G_ij = M_ij − M_jj, u every value. The prediction for a sequence "
            "is off by at most model.moved_at_most(ids, errors), whatever its length.",
            f"Bounds are {FIRST_ORDER:.0f} times what errors of answers make of logits to first "
            f"order, infinite where that is above {_NO_LONGER:g}.",
        )
        notes = (*reader.precision.why, *factors.notes())
        return Found(model, Certificate(errors, assumes), judgement.evidence, notes)
