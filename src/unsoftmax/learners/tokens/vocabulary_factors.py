"""ρ and x of all ids of a vocabulary, read row by row and column by column.

Column j of the logits is G_ij = (ρ_i − ρ_j)·x_j. A block of few rows and query tokens tells the
rank r; of its columns those that span best are the pilots, r + 1 of them, in which all rows are
read: ρ = A T with A these columns and T any basis, so that the basis has no error of its own. Every
other column is r unknowns, read at r + 1 anchors. Rows that were read badly are read again in
columns that see them, and columns at rows that see these best.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.measure.bags import UNREAD, BagReader, Logits
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Flags, Indices
from unsoftmax.refusals import Reason
from unsoftmax.solve.token_factors import NOISE, BlockRank, greedy_rows, rank_of, weighted

# No higher rank is looked for where none is given: several heads have no low rank at all.
MOST_RANK = 256
# A block is large enough when so many directions are within its errors.
SPARE = 3
# Anchors per direction, and at least so many.
ANCHORS, FEWEST_ANCHORS = 4, 12
# Of a block of coarse answers this share of the logits is read, or none is worth reading. Smaller:
# what is read is asked again and again, up to all that is planned.
READ = 0.5
# Blocks grow so many times, to `MOST_RANK`.
GROWTHS = 20
# Rows are read again where their errors are so many times the median, columns likewise.
BAD_ROW, BAD_COLUMN = 100.0, 100.0
# More readings of a column are aimed by what it looks like so many times, at some rows; where its
# logits are known no better than this, all anchors are read.
MORE_AIMS, SOME, UNKNOWN = 3, 4096, 1e3
# Query tokens that are solved for at the same time: 2²² numbers.
AT_ONCE = 2**22
# Readings contradict the rank where they miss the factors by so many times their errors; of a right
# target none misses them by more than its error.
STRAIN = 3.0
# Where half of all fresh sequences may be answered otherwise by more than this share of what their
# values are apart nothing was learned. Larger: several heads pass for one; smaller: heads are
# refused whose predictions are of use.
OPEN = 0.5
# Sequences that are drawn to see that; none is asked.
TRIED = 64


def find_block(
    reader: BagReader, rows: Indices, columns: Indices, rank: int | None, most: int = MOST_RANK
) -> Asking[LogitBlock]:
    """Read blocks of k rows and k + 1 query tokens until their rank is below their size.

    ``most`` is the highest rank that there can be.

    Raises
    ------
    ModelMismatch, NotIdentifiable
        The rank is above the given one; or no logit of the block is read.
    """
    found = LogitBlock(rows, columns, np.zeros((0, 0)), np.zeros((0, 0)), BlockRank(0, 0, rows[:0]))
    V, k = len(rows), 4 if rank is None else rank + SPARE
    while True:
        k = min(k, V, 2 * most + SPARE)
        found = yield from found.grown(reader, k)
        if reader.coarse and np.mean(np.isfinite(found.error)) < READ:
            reader.refuse_unread(found.shown)
        enough = found.told.spare >= SPARE or found.told.rank >= most
        if rank is not None or enough or k == min(V, 2 * most + SPARE):
            break
        k = max(k + 2, int(1.25 * k))
    if not (found.told.rank or found.told.spare):
        reader.refuse_unread(found.shown)
    above = most if rank is None else rank
    if found.told.rank > above:
        raise Reason.VOCABULARY_RANK_ABOVE.error(rank=above, found=found.told.rank)
    return found


def refuse_open(reader: BagReader, share: Array) -> None:
    """Refuse logits whose bounds leave open most of what weights can do in fresh sequences.

    Any head is within such bounds, and many a target of several.

    Parameters
    ----------
    reader : BagReader
        What logits were read with.
    share : array
        By which share of what values are apart fresh answers may be off.
    """
    if reader.coarse and (left := float(np.median(share))) > OPEN:
        shown = f"bounds on logits leave {min(left, 1.0):.0%} of what weights can do undecided"
        reader.refuse_unread(shown)


@dataclass(frozen=True, slots=True)
class LogitBlock:
    """Logits of some ids for some query tokens."""

    rows: Indices
    columns: Indices
    """All ids, in the order in which they are taken."""
    G: Array
    error: Array
    told: BlockRank

    @property
    def rank(self) -> int:
        """Rank of the scores."""
        return self.told.rank

    @property
    def shown(self) -> str:
        """Say how many logits are read."""
        read = int(np.sum(np.isfinite(self.error)))
        return f"{read} of {self.error.size} logits are read to ±{UNREAD:g}"

    @property
    def hidden(self) -> float:
        """Bound logits whose directions are all within their errors."""
        read = self.error[np.isfinite(self.error)]
        return float(NOISE * np.sqrt(len(self.G)) * read.max(initial=0.0))

    def grown(self, reader: BagReader, k: int) -> Asking[LogitBlock]:
        """Read what is missing of k rows and k + 1 query tokens."""
        rows, columns = self.rows[:k], self.columns[: k + 1]
        G, error = np.zeros((k, len(columns))), np.full((k, len(columns)), np.inf)
        known = self.G.shape
        G[: known[0], : known[1]], error[: known[0], : known[1]] = self.G, self.error
        missing = np.ones(G.shape, bool)
        missing[: known[0], : known[1]] = False
        a, b = np.nonzero(missing)
        read = yield from reader.read(rows[a], columns[b], "rank")
        G[a, b], error[a, b] = read.G, read.error
        return replace(self, G=G, error=error, told=rank_of(G, error))


@dataclass(slots=True, kw_only=True)
class Columns:
    """ρ of rows that are known, and x of query tokens as far as they are read."""

    reader: BagReader
    rho: Array
    rho_error: Array
    """Bounds on the 2-norm of errors (V,), infinite for rows that are not known."""
    x: Array = field(init=False)
    x_error: Array = field(init=False)
    """Bounds entry by entry (V, r)."""
    strain: float = 0.0
    """The largest share of its error by which a reading misses the factors."""
    readings: dict[int, tuple[Indices, Array, Array]] = field(default_factory=dict)
    """Of every query token the rows of its readings, these, and their errors."""

    def __post_init__(self) -> None:
        self.x, self.x_error = np.zeros_like(self.rho), np.zeros_like(self.rho)

    @property
    def rank(self) -> int:
        """Rank of the scores."""
        return int(self.rho.shape[1])

    def refuse_contradictions(self) -> None:
        """Refuse readings that miss the factors.

        Raises
        ------
        ModelMismatch, NotIdentifiable
            One misses them by more than its error; coarse answers may hide the direction it has.
        """
        if self.strain <= STRAIN:
            return
        if self.reader.coarse:
            missed = f"logits of rank {self.rank} miss others by {self.strain:.0f} times their"
            self.reader.refuse_unread(f"{missed} errors, which hide smaller directions")
        raise Reason.LOGITS_CONTRADICT.error(rank=self.rank, strain=self.strain)

    def _solve(self, j: Indices, i: Indices, G: Array, error: Array) -> None:
        """Solve for x_j of query tokens (c,) by logits of rows i (c, m)."""
        size = np.linalg.norm(self.x[j], axis=1)[:, None]
        if not np.any(size):
            seen = np.linalg.norm(self.x, axis=1)
            size = np.full((len(j), 1), np.median(seen[seen > 0]) if np.any(seen) else 1.0)
        for _ in range(2):
            with np.errstate(invalid="ignore"):  # nothing is known of a row that is not known
                own = error + (self.rho_error[i] + self.rho_error[j][:, None]) * size
            own = np.where(np.isnan(own), np.inf, own)
            self.x[j], self.x_error[j] = weighted(self.rho[i] - self.rho[j][:, None], G, own)
            size = np.linalg.norm(self.x[j], axis=1)[:, None]
        missed = np.einsum("cmr,cr->cm", self.rho[i] - self.rho[j][:, None], self.x[j]) - G
        shares = np.abs(missed[np.isfinite(own)]) / np.maximum(own[np.isfinite(own)], TINY)
        self.strain = max(self.strain, float(np.max(shares, initial=0.0)))

    def anchors(self, well: Flags, rng: np.random.Generator) -> Indices:
        """Choose rows that span, some of the smallest and largest values, and others."""
        usual = np.median(self.rho_error[well])
        good = np.flatnonzero(well & (self.rho_error <= 4 * usual))
        good = rng.permutation(good)
        wanted = min(len(good), max(FEWEST_ANCHORS, ANCHORS * self.rank))
        by_value = good[np.argsort(self.reader.keys[good], kind="stable")]
        quarter = max(1, wanted // 4)
        some = good[:SOME]
        spans = some[greedy_rows(self.rho[some][None], min(len(some), 2 * self.rank))[0]]
        chosen = np.concatenate([spans, by_value[:quarter], by_value[-quarter:], good])
        _, first = np.unique(chosen, return_index=True)
        return chosen[np.sort(first)][:wanted]

    def read_columns(
        self, j: Indices, anchors: Indices, rows: Indices, phase: str, more: int = 1
    ) -> Asking[None]:
        """Read query tokens at r + ``more`` anchors each; those read badly at ``rows``, too."""
        if not len(j):
            return
        well = rows[self.rho_error[rows] <= BAD_ROW * np.median(self.rho_error[rows])]
        well = well[:: max(1, len(well) // SOME)]
        count = min(self.rank + more, len(anchors) - 1)
        aimed = [self._aimed(j[own], anchors, count) for own in self._parts(len(j), len(anchors))]
        chosen = np.concatenate(aimed)
        every = yield from self.reader.read(chosen.ravel(), np.repeat(j, count), phase)
        G, error = every.G.reshape(chosen.shape), every.error.reshape(chosen.shape)
        self._solve_all(j, chosen, G, error)
        half = len(anchors) // 2
        for turn in range(MORE_AIMS):
            bad = self.bad(j)
            if not np.any(bad):
                return
            j, chosen, G, error = j[bad], chosen[bad], G[bad], error[bad]
            others = np.roll(anchors, -turn * half)[:half]
            best = np.array([self._best_rows(token, others, well) for token in j])
            at = np.repeat(j, best.shape[1])
            expected = self._logits(best.ravel(), at)
            read = yield from self.reader.read(best.ravel(), at, f"{phase}, again", expected)
            chosen = np.concatenate([chosen, best], axis=1)
            G = np.concatenate([G, read.G.reshape(best.shape)], axis=1)
            own = np.where(best == j[:, None], np.inf, read.error.reshape(best.shape))
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
        for own in self._parts(len(j), i.shape[1]):
            self._solve(j[own], i[own], G[own], error[own])
        self.readings.update(zip(j.tolist(), zip(i, G, error, strict=True), strict=True))

    def _parts(self, columns: int, rows: int) -> list[slice]:
        """Divide columns so that what is computed of each part stays small."""
        step = max(1, AT_ONCE // (rows * self.rank))
        return [slice(start, start + step) for start in range(0, columns, step)]

    def bad(self, j: Indices, times: float = BAD_COLUMN) -> Flags:
        """Say which query tokens have bounds so many times above the usual."""
        every = self._column_bounds(np.flatnonzero(np.any(self.x_error, axis=1)))
        usual = np.median(every[np.isfinite(every)]) if np.any(np.isfinite(every)) else 0.0
        return ~(self._column_bounds(j) <= times * usual)

    def _aimed(self, j: Indices, anchors: Indices, count: int) -> Indices:
        """Choose anchors for query tokens that span, by pivoted QR of (ρ_i − ρ_j)|u_i − u_j|."""
        apart = self.reader.apart(anchors, j[:, None]) * (anchors != j[:, None])
        A = (self.rho[anchors] - self.rho[j][:, None]) * apart[:, :, None]
        return np.asarray(anchors[greedy_rows(A, count)])

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


@dataclass(slots=True, kw_only=True)
class Factors(Columns):
    """ρ and x of all ids, from their logits alone."""

    block: LogitBlock

    @classmethod
    def of(cls, reader: BagReader, block: LogitBlock) -> Factors:
        """Begin with a block that tells the rank."""
        V = len(reader.keys)
        return cls(reader=reader, rho=np.zeros((V, block.rank)), rho_error=np.zeros(V), block=block)

    def read(self, rng: np.random.Generator) -> Asking[None]:
        """Read rows in pilot columns, then the other columns at anchors, then rows read badly."""
        if not self.rank:
            return
        block, pilots = self.block, self.block.told.columns[: self.rank + 1]
        p = block.columns[pilots]
        A, error = yield from self._pilots(block, pilots)
        well = self._rows(A, error)
        self._solve_pilots(p[well[p]], p, A, error, well)
        anchors = self.anchors(well, rng)
        others, every = np.setdiff1d(np.flatnonzero(well), p), np.arange(len(well))
        yield from self.read_columns(others, anchors, every, "columns")
        if not np.all(well):
            late = np.flatnonzero(~well)
            yield from self._repaired(late, np.flatnonzero(well))
            self._solve_pilots(np.intersect1d(late, p), p, A, error, well)
            yield from self.read_columns(
                np.setdiff1d(late, p), anchors, every, "columns of repaired rows"
            )
        self.refuse_contradictions()

    def _pilots(self, block: LogitBlock, pilots: Indices) -> Asking[tuple[Array, Array]]:
        """Read all rows of the pilot columns."""
        V, p, rows = len(self.reader.keys), block.columns[pilots], block.rows[: len(block.G)]
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
            self.reader.refuse_unread(f"{finite.sum()} rows are read in all pilot columns")
        well = finite & (worst <= BAD_ROW * np.median(worst[finite]))
        if well.sum() <= 2 * self.rank + 1:
            well = finite
        middle = A[well].mean(axis=0)
        T = np.linalg.svd(A[well] - middle, full_matrices=False)[2][: self.rank].T
        self.rho = (np.where(well[:, None], A, middle) - middle) @ T
        self.rho_error = np.where(well, np.linalg.norm(error, axis=1), np.inf)
        return np.asarray(well, dtype=np.bool_)

    def _solve_pilots(self, of: Indices, p: Indices, A: Array, error: Array, well: Flags) -> None:
        """Fit some of the pilot columns themselves, over all rows that were read well."""
        rows = np.flatnonzero(well)
        for j in of:
            [n], i = np.flatnonzero(p == j), rows[rows != j]
            self._solve(np.array([j]), i[None], A[i, n][None], error[i, n][None])

    def _repaired(self, i: Indices, known: Indices) -> Asking[None]:
        """Read rows in query tokens that see them: ρ_i·x_j = G_ij + ρ_j·x_j."""
        bound = self._column_bounds(known)
        order = known[np.argsort(bound, kind="stable")]
        columns = order[: max(FEWEST_ANCHORS, ANCHORS * self.rank)]
        count = min(len(columns), self.rank + 1)
        apart = self.reader.apart(i[:, None], columns)
        chosen = columns[greedy_rows(self.x[columns] * apart[:, :, None], count)]
        references = self._known(np.unique(columns))
        for step, j in enumerate((chosen, np.broadcast_to(columns, (len(i), len(columns))))):
            rows = np.arange(len(i)) if not step else np.flatnonzero(self._lost(i))
            if not len(rows):
                return
            at = j[rows]
            read = yield from self.reader.read(
                np.repeat(i[rows], at.shape[1]),
                at.ravel(),
                "rows, again",
                np.zeros(at.size),
                references,
            )
            G = read.G.reshape(at.shape)
            y = G + np.einsum("cmr,cmr->cm", self.rho[at], self.x[at])
            error = read.error.reshape(at.shape)
            error = error + self.x_error[at] @ np.ptp(self.rho, axis=0)
            error = error + np.linalg.norm(self.x[at], axis=2) * self.rho_error[at]
            self.rho[i[rows]], own = weighted(self.x[at], y, error)
            self.rho_error[i[rows]] = np.linalg.norm(own, axis=1)

    def _known(self, j: Indices) -> Logits:
        """Return logits of query tokens that follow from factors, of rows that are read well."""
        i = np.flatnonzero(self.rho_error <= np.median(self.rho_error))
        i, j = (x.ravel() for x in np.meshgrid(i[:: max(1, len(i) // 64)], j))
        gap = self.rho[i] - self.rho[j]
        with np.errstate(invalid="ignore"):  # nothing is known of some
            error = np.einsum("mr,mr->m", np.abs(gap), self.x_error[j])
            error += np.linalg.norm(self.x[j], axis=1) * (self.rho_error[i] + self.rho_error[j])
        error = np.where(np.isnan(error), np.inf, error)
        return Logits(i, j, np.einsum("mr,mr->m", gap, self.x[j]), error)

    def _lost(self, i: Indices) -> Flags:
        finite = self.rho_error[np.isfinite(self.rho_error)]
        return ~(self.rho_error[i] <= BAD_ROW**2 * np.median(finite))

    def bound(self) -> float:
        """Bound every logit, to first order."""
        if not self.rank:
            return self.block.hidden
        if not np.all(np.isfinite(self.rho_error)):
            return np.inf
        every = self._column_bounds(np.arange(len(self.rho)))
        return float(np.max(every))

    def bounds_of(self, ids: Indices) -> Array:
        """Bound the logits of sequences of ids (B, N) for their own query tokens: (B,)."""
        if not self.rank:
            return np.full(len(ids), self.bound())
        j = ids[:, -1]
        gap = np.abs(self.rho[ids] - self.rho[j][:, None])
        error = np.einsum("bnr,br->bn", gap, self.x_error[j])
        size, own = np.linalg.norm(self.x[j], axis=1)[:, None], self.rho_error
        with np.errstate(invalid="ignore"):
            every = error + size * (own[ids] + own[j][:, None])
        known = np.where(ids == j[:, None], 0.0, np.nan_to_num(every, nan=np.inf))
        return np.asarray(np.minimum(known.max(axis=1), UNKNOWN))

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        lost = int(np.sum(~np.isfinite(self.rho_error)))
        if not lost:
            return ()
        return (
            f"Logits of {lost:,} of {len(self.rho):,} ids could not be read: weights are 0 or 1 "
            "wherever they were asked. Sequences with these ids are not predicted.",
        )
