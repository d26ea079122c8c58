"""One head behind a vocabulary whose table is unknown: its function on all sequences of ids.

A target takes ids t of a vocabulary of V and looks vectors x_t up in a table that nobody shows.
Without positions its answer depends on counts and the last id j alone:

    f = Σ_t n_t e^{M_tj} u_t / Σ_t n_t e^{M_tj},  u_t = x_t·v + c,  M_ij = x_i·(W x_j + w).

u_t and G_ij = M_ij − M_jj are determined, and nothing else: the softmax needs each column of M up
to a constant, [t] gives u_t, and [i, j], beside a reference where u_i = u_j, gives G_ij. Column j
is (ρ_i − ρ_j)·x_j, r unknowns: V + r(2V − 1 − r) queries.

    [t]                                     u            `lone_tokens`; copies: positions
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

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from unsoftmax.learners.compose import Asking, as_planned
from unsoftmax.learners.settings import Configured, whole_number
from unsoftmax.learners.tokens.lone_tokens import COPIED, MIXED, ask_lone
from unsoftmax.measure.bags import BagReader, Logits
from unsoftmax.models.token_head import TokenHead as Model
from unsoftmax.probes import Array, Flags, Ids, Indices
from unsoftmax.protocol import Certificate, Found, Plan, Steps
from unsoftmax.refusals import Reason
from unsoftmax.solve.token_factors import NOISE, BlockRank, greedy_rows, rank_of, weighted
from unsoftmax.theory import counts
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.judge import Residuals, hold_out

# A block is large enough when so many directions are within its errors.
SPARE = 3
# Anchors per direction, and at least so many.
ANCHORS, FEWEST_ANCHORS = 4, 12
# Blocks grow so many times, to 30,000 rows.
GROWTHS = 40
# Rows are read again where their errors are so many times the median, columns likewise.
BAD_ROW, BAD_COLUMN = 100.0, 100.0
# More readings of a column are aimed by what it looks like so many times, at some rows; where its
# logits are known no better than this, all anchors are read.
MORE_AIMS, SOME, UNKNOWN = 3, 4096, 1e3
# Bounds are first order: they count so many times. Of 800,000 entries of hostile targets 12 were
# off by more than the bound, by up to 3.9 times.
FIRST_ORDER = 4.0
# Query tokens that are solved for at the same time: 2²² numbers.
AT_ONCE = 2**22


@dataclass(frozen=True)  # dim is a property here, which a slotted class does not protect
class TokenHead(Configured):
    """Learn a head from ids of a vocabulary, its table unknown.

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
        V, r = int(self.vocabulary), self.vocabulary - 1 if self.rank is None else int(self.rank)
        k = min(V, r + SPARE)
        block, factors = k * (k + 1), (r + 1) * (2 * V - k - r - 2) if r else 0
        # where all ids are in the block they are rows and query tokens at once
        known = self.rank is not None and 2 * k < V
        pairs = block + factors if known else V * (V - 1)
        cost = (
            Cost.of(V + min(V, COPIED) + MIXED, rounds=1)
            + Cost.of(pairs, tokens=2, rounds=6 * (GROWTHS + MORE_AIMS + 6), again=pairs + block)
            + Cost(rounds=2)
        )
        formula = "V + 16 + (r + 3)(r + 4) + (r + 1)(2V − 2r − 5)"
        if not known:
            formula = "V + r(2V − 1 − r) unknowns, and a tenth to a third more, for the rank r found"
        plan = cost.plan(formula, int(self.context), V - 1.0, known=known)
        return replace(plan, vocabulary=V)

    def steps(self, checks: int) -> Steps[Model]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        excess = "the target's weights are 0 or 1 nearly everywhere, or it is no single head"
        contrary = "no single head"
        return (yield from as_planned(self._steps(checks), self.plan(), excess, contrary))

    def _steps(self, checks: int) -> Steps[Model]:
        rng = np.random.default_rng(self.seed)
        V, context = int(self.vocabulary), int(self.context)
        fresh = rng.choice(V, min(V, COPIED), replace=False)
        lone = yield from ask_lone(np.arange(V), fresh, context, rng)
        reader = BagReader(lone.y, lone.y, lone.precision, context)
        block = yield from find_block(reader, self._tokens(reader, rng), self.rank)
        factors = Factors(reader, block)
        yield from factors.read(rng)
        return (yield from self._conclude(factors, checks, rng))

    def _tokens(self, reader: BagReader, rng: np.random.Generator) -> Indices:
        """Return ids in the order in which a block takes them, first two whose values differ."""
        order = np.argsort(reader.keys, kind="stable")
        low, high = order[int(0.05 * (len(order) - 1))], order[int(np.ceil(0.95 * (len(order) - 1)))]
        others = rng.permutation(len(order))
        return np.concatenate([[low, high], others[(others != low) & (others != high)]])

    def _conclude(self, factors: Factors, checks: int, rng: np.random.Generator) -> Steps[Model]:
        """Ask the hold-out: bags of every length up to the context."""
        reader, model, bound = factors.reader, factors.model(), factors.bound()
        u_error = float(np.max(reader.eta(np.array(1), reader.keys)))
        errors = {"u": u_error, "G": bound}
        context = int(self.context)
        fresh = fresh_bags(checks, int(self.vocabulary), context, rng)

        def compare(X: Array, y: Array) -> Residuals:
            ids = X[:, :, 0].astype(np.intp)
            size = np.max(np.abs(reader.keys[ids]), axis=1)
            own = 3 * reader.eta(np.array(ids.shape[1]), size)
            return Residuals.of(
                y - model(ids), own=own, allowed=model.moved_at_most(ids, errors), size=size
            )

        judgement = yield from hold_out(fresh, compare, checks)
        if judgement.refuses:
            missed, allowed = judgement.worst
            raise Reason.BAGS_MISSED.error(missed=missed, allowed=allowed, context=context)
        assumes = (
            "The target is one head whose answer depends on how often each id stands before the "
            f"last one: {checks} fresh sequences of up to {context} ids test this but cannot "
            "prove it.",
            "G bounds every logit G_ij = M_ij − M_jj, u every value. The prediction for a sequence "
            "is off by at most model.moved_at_most(ids, errors), whatever its length.",
            f"Bounds are {FIRST_ORDER:.0f} times what errors of answers make of logits to first "
            "order.",
        )
        return Found(model, Certificate(errors, assumes), judgement.evidence, factors.notes())


def fresh_bags(count: int, vocabulary: int, context: int, rng: np.random.Generator) -> list[Ids]:
    """Draw sequences of ids: every other one fills the context, with few or many distinct ids."""
    lengths = [2, 3, 5, 9, 17, 33]
    families: dict[int, list[Indices]] = {}
    for n in range(count):
        N = context if n % 2 else min(context, lengths[n // 2 % len(lengths)])
        few = rng.integers(vocabulary, size=(3, N, 4)[n % 3])
        families.setdefault(N, []).append(rng.choice(few, size=N))
    return [
        Ids(np.array(rows), phase="hold-out", purpose="check") for _, rows in sorted(families.items())
    ]


def find_block(reader: BagReader, tokens: Indices, rank: int | None) -> Asking[Block]:
    """Read blocks of k rows and k + 1 query tokens until their rank is below their size."""
    V = len(tokens)
    found = Block(tokens, np.zeros((0, 0)), np.zeros((0, 0)), BlockRank(0, 0, tokens[:0]))
    k = 4 if rank is None else rank + SPARE
    while True:
        k = min(k, V)
        found = yield from found.grown(reader, k)
        if found.told.spare >= SPARE or k == V or (rank is not None):
            break
        k = max(k + 2, int(1.25 * k))
    if rank is not None and found.told.rank > rank:
        raise Reason.VOCABULARY_RANK_ABOVE.error(rank=rank, found=found.told.rank)
    return found


@dataclass(frozen=True, slots=True)
class Block:
    """Logits of the first ids as rows, of the last ones as query tokens."""

    tokens: Indices
    G: Array
    error: Array
    told: BlockRank

    @property
    def rank(self) -> int:
        """Rank of the scores."""
        return self.told.rank

    @property
    def columns(self) -> Indices:
        """Query tokens."""
        return self.tokens[::-1][: self.G.shape[1]]

    def grown(self, reader: BagReader, k: int) -> Asking[Block]:
        """Read what is missing of k rows and k + 1 query tokens."""
        rows, columns = self.tokens[:k], self.tokens[::-1][: k + 1]
        G, error = np.zeros((k, len(columns))), np.full((k, len(columns)), np.inf)
        known = self.G.shape
        G[: known[0], : known[1]], error[: known[0], : known[1]] = self.G, self.error
        missing = np.ones(G.shape, bool)
        missing[: known[0], : known[1]] = False
        a, b = np.nonzero(missing)
        read = yield from reader.read(rows[a], columns[b], "rank")
        G[a, b], error[a, b] = read.G, read.error
        return Block(self.tokens, G, error, rank_of(G, error))


@dataclass(slots=True)
class Factors:
    """ρ and x of all ids as far as they are read, with what their errors may be."""

    reader: BagReader
    block: Block
    rho: Array = field(init=False)
    rho_error: Array = field(init=False)
    """Bounds on the 2-norm of errors (V,)."""
    x: Array = field(init=False)
    x_error: Array = field(init=False)
    """Bounds entry by entry (V, r)."""

    def __post_init__(self) -> None:
        shape = len(self.reader.keys), self.rank
        self.rho, self.x, self.x_error = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.rho_error = np.zeros(len(self.rho))

    @property
    def rank(self) -> int:
        """Rank of the scores."""
        return self.block.rank

    def read(self, rng: np.random.Generator) -> Asking[None]:
        """Read rows in pilot columns, then the other columns at anchors, then rows read badly."""
        if not self.rank:
            return
        block, pilots = self.block, self.block.told.columns[: self.rank + 1]
        p = block.columns[pilots]
        A, error = yield from self._pilots(block, pilots)
        well = self._rows(A, error)
        self._solve_pilots(p[well[p]], p, A, error, well)
        anchors = self._anchors(well, rng)
        others = np.setdiff1d(np.flatnonzero(well), p)
        yield from self._columns(others, anchors, "columns")
        if not np.all(well):
            late = np.flatnonzero(~well)
            yield from self._repaired(late, np.flatnonzero(well))
            self._solve_pilots(np.intersect1d(late, p), p, A, error, well)
            yield from self._columns(np.setdiff1d(late, p), anchors, "columns of repaired rows")

    def _pilots(self, block: Block, pilots: Indices) -> Asking[tuple[Array, Array]]:
        """Read all rows of the pilot columns."""
        V, p, rows = len(self.reader.keys), block.columns[pilots], block.tokens[: len(block.G)]
        A, error = np.zeros((V, len(p))), np.full((V, len(p)), np.inf)
        A[rows], error[rows] = block.G[:, pilots], block.error[:, pilots]
        left = np.ones((V, len(p)), bool)
        left[rows] = False
        i, n = np.nonzero(left)
        read = yield from self.reader.read(i, p[n], "rows")
        A[i, n], error[i, n] = read.G, read.error
        return A, error

    def _rows(self, A: Array, error: Array) -> Flags:
        """Take ρ = A T, T from the rows that were read well; return which these are."""
        worst = error.max(axis=1)
        finite = np.isfinite(worst)
        if finite.sum() <= self.rank:
            raise Reason.BAGS_SATURATED.error()
        well = finite & (worst <= BAD_ROW * np.median(worst[finite]))
        if well.sum() <= 2 * self.rank + 1:
            well = finite
        middle = A[well].mean(axis=0)
        T = np.linalg.svd(A[well] - middle, full_matrices=False)[2][: self.rank].T
        self.rho = (np.where(well[:, None], A, middle) - middle) @ T
        self.rho_error = np.where(well, np.linalg.norm(error, axis=1), np.inf)
        return well

    def _solve_pilots(self, of: Indices, p: Indices, A: Array, error: Array, well: Flags) -> None:
        """Fit some of the pilot columns themselves, over all rows that were read well."""
        rows = np.flatnonzero(well)
        for j in of:
            [n], i = np.flatnonzero(p == j), rows[rows != j]
            self._solve(np.array([j]), i[None], A[i, n][None], error[i, n][None])

    def _solve(self, j: Indices, i: Indices, G: Array, error: Array) -> None:
        """Solve for x_j of query tokens (c,) by logits of rows i (c, m)."""
        size = np.linalg.norm(self.x[j], axis=1)[:, None]
        if not np.any(size):
            seen = np.linalg.norm(self.x, axis=1)
            size = np.full((len(j), 1), np.median(seen[seen > 0]) if np.any(seen) else 1.0)
        for _ in range(2):
            own = error + (self.rho_error[i] + self.rho_error[j][:, None]) * size
            self.x[j], self.x_error[j] = weighted(self.rho[i] - self.rho[j][:, None], G, own)
            size = np.linalg.norm(self.x[j], axis=1)[:, None]

    def _anchors(self, well: Flags, rng: np.random.Generator) -> Indices:
        """Choose rows that span, some of the smallest and largest values, and others."""
        usual = np.median(self.rho_error[well])
        good = np.flatnonzero(well & (self.rho_error <= 4 * usual))
        good = rng.permutation(good)
        wanted = min(len(good), max(FEWEST_ANCHORS, ANCHORS * self.rank))
        by_value = good[np.argsort(self.reader.keys[good], kind="stable")]
        quarter = max(1, wanted // 4)
        spans = good[:4096][greedy_rows(self.rho[good[:4096]][None], min(len(good[:4096]), 2 * self.rank))[0]]
        chosen = np.concatenate([spans, by_value[:quarter], by_value[-quarter:], good])
        _, first = np.unique(chosen, return_index=True)
        return chosen[np.sort(first)][:wanted]

    def _chunks(self, j: Indices, rows: int) -> list[Indices]:
        step = max(1, AT_ONCE // (rows * self.rank))
        return [j[start : start + step] for start in range(0, len(j), step)]

    def _columns(self, j: Indices, anchors: Indices, phase: str) -> Asking[None]:
        """Read query tokens at r + 1 anchors each; more for those that come out badly."""
        if not len(j):
            return
        well = np.flatnonzero(self.rho_error <= BAD_ROW * np.median(self.rho_error))
        well = well[:: max(1, len(well) // SOME)]
        count = min(self.rank + 1, len(anchors) - 1)
        chosen = np.concatenate([self._aimed(own, anchors, count) for own in self._chunks(j, len(anchors))])
        every = yield from self.reader.read(chosen.ravel(), np.repeat(j, count), phase)
        G, error = every.G.reshape(chosen.shape), every.error.reshape(chosen.shape)
        self._solve_all(j, chosen, G, error)
        half = len(anchors) // 2
        for turn in range(MORE_AIMS):
            bad = self._bad(j)
            if not np.any(bad):
                return
            j, chosen, G, error = j[bad], chosen[bad], G[bad], error[bad]
            others = np.roll(anchors, -turn * half)[:half]
            more = np.array([self._best_rows(token, others, well) for token in j])
            at = np.repeat(j, more.shape[1])
            expected = self._logits(more.ravel(), at)
            read = yield from self.reader.read(more.ravel(), at, f"{phase}, again", expected)
            chosen = np.concatenate([chosen, more], axis=1)
            G = np.concatenate([G, read.G.reshape(more.shape)], axis=1)
            own = np.where(more == j[:, None], np.inf, read.error.reshape(more.shape))
            error = np.concatenate([error, own], axis=1)
            self._solve_all(j, chosen, G, error)

    def _best_rows(self, j: int, anchors: Indices, well: Indices) -> Indices:
        """Choose rows whose logits for a query token are expected to be read best, as it looks.

        Where its logits are not known at all these are the anchors.
        """
        if not self._column_bounds(np.array([j]))[0] < UNKNOWN:
            return anchors
        G = self._logits(well, np.array([j]))
        A = (self.rho[well] - self.rho[j]) * self.reader.clearness(well, j, G)[:, None]
        return np.asarray(well[greedy_rows(A[None], len(anchors))[0]])

    def _logits(self, i: Indices, j: Indices) -> Array:
        return np.asarray(np.sum((self.rho[i] - self.rho[j]) * self.x[j], axis=1))

    def _solve_all(self, j: Indices, i: Indices, G: Array, error: Array) -> None:
        step = max(1, AT_ONCE // (i.shape[1] * self.rank))
        for start in range(0, len(j), step):
            own = slice(start, start + step)
            self._solve(j[own], i[own], G[own], error[own])

    def _bad(self, j: Indices) -> Flags:
        """Say which query tokens have bounds far above the usual."""
        every = self._column_bounds(np.flatnonzero(np.any(self.x_error, axis=1)))
        usual = np.median(every[np.isfinite(every)]) if np.any(np.isfinite(every)) else 0.0
        return ~(self._column_bounds(j) <= BAD_COLUMN * usual)

    def _aimed(self, j: Indices, anchors: Indices, count: int) -> Indices:
        """Choose anchors for query tokens: (ρ_i − ρ_j)|u_i − u_j| as far from each other as can be."""
        keys = self.reader.keys
        apart = np.abs(keys[anchors] - self.reader.queries[j][:, None]) / self.reader.spread
        apart = np.minimum(np.maximum(apart, 0.05), 2.0) * (anchors != j[:, None])
        A = (self.rho[anchors] - self.rho[j][:, None]) * apart[:, :, None]
        return np.asarray(anchors[greedy_rows(A, count)])

    def _repaired(self, i: Indices, known: Indices) -> Asking[None]:
        """Read rows in query tokens that see them: ρ_i·x_j = G_ij + ρ_j·x_j."""
        bound = self._column_bounds(known)
        order = known[np.argsort(bound, kind="stable")]
        columns = order[: max(FEWEST_ANCHORS, ANCHORS * self.rank)]
        count = min(len(columns), self.rank + 1)
        apart = np.abs(self.reader.keys[i][:, None] - self.reader.queries[columns])
        apart = np.minimum(np.maximum(apart / self.reader.spread, 0.05), 2.0)
        chosen = columns[greedy_rows(self.x[columns] * apart[:, :, None], count)]
        references = self._known(np.unique(columns))
        for step, j in enumerate((chosen, np.broadcast_to(columns, (len(i), len(columns))))):
            rows = np.arange(len(i)) if not step else np.flatnonzero(self._lost(i))
            if not len(rows):
                return
            at = j[rows]
            read = yield from self.reader.read(
                np.repeat(i[rows], at.shape[1]), at.ravel(), "rows, again", np.zeros(at.size), references
            )
            G = read.G.reshape(at.shape)
            y = G + np.einsum("cmr,cmr->cm", self.rho[at], self.x[at])
            error = read.error.reshape(at.shape)
            gap = np.abs(self.rho[at]).max(axis=(0, 1))
            error = error + self.x_error[at] @ gap + np.linalg.norm(self.x[at], axis=2) * self.rho_error[at]
            self.rho[i[rows]], own = weighted(self.x[at], y, error)
            self.rho_error[i[rows]] = np.linalg.norm(own, axis=1)

    def _known(self, j: Indices) -> Logits:
        """Return logits of query tokens that follow from factors, of rows that are read well."""
        i = np.flatnonzero(self.rho_error <= np.median(self.rho_error))
        i, j = (x.ravel() for x in np.meshgrid(i[:: max(1, len(i) // 64)], j))
        gap = self.rho[i] - self.rho[j]
        error = np.einsum("mr,mr->m", np.abs(gap), self.x_error[j])
        error += np.linalg.norm(self.x[j], axis=1) * (self.rho_error[i] + self.rho_error[j])
        return Logits(i, j, np.einsum("mr,mr->m", gap, self.x[j]), error)

    def _lost(self, i: Indices) -> Flags:
        finite = self.rho_error[np.isfinite(self.rho_error)]
        return ~(self.rho_error[i] <= BAD_ROW**2 * np.median(finite))

    def _column_bounds(self, j: Indices) -> Array:
        """Bound the logits of query tokens, the largest over rows."""
        known = np.isfinite(self.rho_error)
        high, low = self.rho[known].max(axis=0), self.rho[known].min(axis=0)
        farthest = np.maximum(high - self.rho[j], self.rho[j] - low)
        worst = self.rho_error[known].max()
        with np.errstate(invalid="ignore"):
            bound = np.einsum("cr,cr->c", farthest, self.x_error[j])
            bound = bound + np.linalg.norm(self.x[j], axis=1) * (self.rho_error[j] + worst)
        return np.where(np.isnan(bound), np.inf, bound)

    def bound(self) -> float:
        """Bound every logit, with the factor that first order takes."""
        if not self.rank:
            read = self.block.error[np.isfinite(self.block.error)]
            return FIRST_ORDER * NOISE * np.sqrt(len(self.block.G)) * float(read.max(initial=0.0))
        return FIRST_ORDER * float(np.max(self._column_bounds(np.arange(len(self.rho)))))

    def model(self) -> Model:
        """Return the model."""
        return Model(self.reader.keys, self.rho, self.x)

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        return self.reader.precision.why
