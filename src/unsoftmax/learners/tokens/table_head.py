"""One head behind a table that is known: W and w on its span, however many ids there are.

x_t are the rows of the table, or, where positions are known, those of a table for each position.
With y_t their whitened affine coordinates, D of them (383 of MiniLM's 384: outputs of a LayerNorm
lie in a hyperplane),

    u_t = y_t·v' + c'                                D + 1 lone tokens
    G_ij = (y_i − y_j)·(A y_j + a)                   r(2D + 1 − r)

are all that answers determine, so W, w and v on the span. Query tokens that span [y 1] are enough:
r + 1 of them, those of the block that finds r, beside D + 4 keys give the column space of [A a];
each other one is r unknowns, read at r + 1 keys as `vocabulary_factors` reads columns. Ids are
chosen by pivoted QR. Where positions are known keys stand at the first one, query tokens at the
second; counts are no levers then.

Bounds are those of drawn errors of the readings' size, solved again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike

from unsoftmax.learners.compose import Asking, as_planned
from unsoftmax.learners.tokens import asked_ids
from unsoftmax.learners.tokens.vocabulary_factors import (
    GROWTHS,
    MORE_AIMS,
    SPARE,
    TRIED,
    Columns,
    find_block,
    refuse_open,
)
from unsoftmax.measure.bags import BagReader
from unsoftmax.models import SingleHead
from unsoftmax.models.arrays import TINY, frozen
from unsoftmax.probes import Array, Indices
from unsoftmax.protocol import Certificate, Found, Plan, Steps
from unsoftmax.refusals import Reason
from unsoftmax.solve.token_factors import weighted
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.judge import Residuals

# Singular values of a table below this share of the largest are none: it is float32, or coarser.
FLAT = 2.0**-20
# Rows so many times as far from the median of all as usual count less where all are whitened.
# Smaller: trained tables have such rows; larger: rows of 1e6 hide what the others span.
OUTLYING = 1e3
# Ids among which lone tokens, keys and query tokens are chosen.
CANDIDATES = 3000
# Keys beside as many as there are unknowns: a share of them for pilots, so many for other columns.
# Fewer: errors grow where keys happen to span badly.
MORE_KEYS, MORE_ROWS = 0.1, 3
# Keys whose logits have errors of so many times the median are faint, and others are read, of so
# many times as many.
FAINT, KEYS = 1e4, 3
# Rows of all ids follow from those of the keys, with errors that are so many times as large.
GROWN = 3.0
# Query tokens whose logits are known so many times worse than usual are left for others, so often.
VAGUE, INSTEAD = 1e4, 6
# Errors of readings are drawn so often, and bounds are so many times the largest that they make.
DRAWN, SAFETY = 8, 4.0


class TokenTable:
    """Vectors of ids (V, d), or by position and id (P, V, d): a value, compared by its bytes."""

    def __init__(self, vectors: ArrayLike) -> None:
        self.vectors = frozen("table", vectors)
        if self.vectors.ndim not in (2, 3) or min(self.vectors.shape) < 1:
            raise ValueError(
                "table must have shape (V, d), or (P, V, d) for P positions; it has shape "
                f"{self.vectors.shape}."
            )
        if self.vectors.ndim == 3 and len(self.vectors) < 2:
            raise ValueError("table must have two positions or more where it has positions.")

    @classmethod
    def of(cls, given: ArrayLike | TokenTable, dim: int) -> Self | TokenTable:
        """Take vectors of that dimension."""
        table = given if isinstance(given, TokenTable) else cls(given)
        if table.vectors.shape[-1] != dim:
            raise ValueError(f"table holds vectors of {table.vectors.shape[-1]}; dim is {dim}.")
        if np.all(table.vectors == table.vectors[..., :1, :]):
            raise ValueError("table must hold vectors that differ: those of all ids are the same.")
        return table

    def __len__(self) -> int:
        return int(self.vectors.shape[-2])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenTable) and np.array_equal(self.vectors, other.vectors)

    def __hash__(self) -> int:
        return hash(self.vectors.tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenTable, (self.vectors,)

    @property
    def positions(self) -> int:
        """How many positions there are vectors for; 1: tokens have none."""
        return 1 if self.vectors.ndim == 2 else len(self.vectors)

    @cached_property
    def affine(self) -> Affine:
        """Coordinates of all tokens; where there are positions at the first two of them."""
        whole = self.vectors[None] if self.vectors.ndim == 2 else self.vectors[:2]
        return Affine.of(whole.reshape(-1, whole.shape[-1]))

    @cached_property
    def _ids(self) -> list[dict[bytes, int]]:
        """Ids by their vectors, at every position."""
        every = self.vectors[None] if self.vectors.ndim == 2 else self.vectors
        return [{x.tobytes(): t for t, x in enumerate(rows)} for rows in every]

    def ids_of(self, X: Array) -> Indices:
        """Return ids (B, N) whose vectors are those of sequences (B, N, d)."""
        known = self._ids
        ids = [[known[n % len(known)][x.tobytes()] for n, x in enumerate(own)] for own in X]
        return np.array(ids, dtype=np.intp)

    def at(self, ids: Indices) -> Array:
        """Return vectors of sequences of ids (B, N): (B, N, d)."""
        if self.vectors.ndim == 2:
            return np.asarray(self.vectors[ids])
        return np.asarray(self.vectors[np.arange(ids.shape[1]), ids])


@dataclass(frozen=True, slots=True)
class Affine:
    """Whitened coordinates y of vectors x on the affine space that they span.

    Attributes
    ----------
    y : array (n, D)
        Coordinates, of mean 0 and unit covariance.
    middle : array (d,)
        Mean of the vectors.
    to : array (d, D)
        y = (x − middle) to.
    x : array (n, d)
        The vectors.
    """

    y: Array
    middle: Array
    to: Array
    x: Array

    @classmethod
    def of(cls, x: Array) -> Affine:
        """Whiten vectors (n, d)."""
        far = outlying(x)
        middle = x[far <= 1].mean(axis=0)
        near = (x - middle) / np.where(far > 1, OUTLYING * far, 1.0)[:, None]
        s, V = np.linalg.svd(np.linalg.qr(near, mode="r"))[1:]
        D = int(np.sum(s > FLAT * max(s, default=0.0)))
        to = V[:D].T / s[:D] * np.sqrt(len(x))
        return cls((x - middle) @ to, middle, to, x)

    def candidates(self, rng: np.random.Generator, rows: int) -> Indices:
        """Draw ids among which all are chosen that are asked, of the first ``rows``.

        Of ids with equal vectors one is enough, and where others span as much those of another
        size are left out: all weigh 0 or 1 beside them.
        """
        drawn = np.sort(rng.choice(rows, min(rows, CANDIDATES), replace=False))
        own = np.sort(np.unique(self.x[drawn], axis=0, return_index=True)[1])
        near = drawn[own[outlying(self.x)[drawn[own]] <= 1]]
        spanned = np.linalg.matrix_rank(self.lifted[near]) == self.y.shape[1] + 1
        return near if spanned else drawn[own]

    @property
    def lifted(self) -> Array:
        """Return [y 1], (n, D + 1)."""
        return np.column_stack([self.y, np.ones(len(self.y))])

    def weights(self, lone: Indices, ids: Indices) -> Array:
        """Return weights (ids, lone) that make vectors of ids of those of lone ones that span."""
        lifted = self.lifted
        return np.asarray(np.linalg.solve(lifted[lone].T, lifted[ids].T).T)

    def predicted(self, lone: Indices, answers: Array, ids: Indices) -> Array:
        """Predict answers to ids, an affine map of vectors, by those to lone ones that span.

        Coordinates are rounded, so what weights leave of the vectors themselves counts as well:
        without it answers of MiniLM's table are off by 20 times as much.
        """
        weights, values = self.weights(lone, ids), np.linalg.solve(self.lifted[lone], answers)
        slope = self.to @ values[:-1]
        left = self.x[ids] - weights @ self.x[lone]
        beside = np.tensordot(1 - weights.sum(axis=1), values[-1] - self.middle @ slope, axes=0)
        return np.asarray(weights @ answers + left @ slope + beside)


@dataclass(frozen=True, slots=True)
class TableHead:
    """Learn a head from ids whose vectors are known; `LowRankHead` and `ExactHead` are it then."""

    table: TokenTable
    rank: int | None
    context: int
    seed: int

    def plan(self) -> Plan:
        """Say beforehand what learning costs; only a bound when the rank is not known."""
        D, V = self.table.affine.y.shape[1], len(self.table)
        r = D if self.rank is None else min(int(self.rank), D)
        k = min(V, r + SPARE)
        lone, block = D + 1 + asked_ids.COPIED + asked_ids.MIXED, k * (k + 1)
        pairs = (r + 1) * _keys(D) + (D - r) * (r + MORE_ROWS)
        most = block + (pairs if r else 0)
        cost = (
            Cost.of(lone, rounds=1)
            + Cost.of(most, tokens=2, rounds=6 * (GROWTHS + MORE_AIMS + 3), again=2 * most)
            + Cost(rounds=1 + self.table.positions)
        )
        formula = "D + 1 + r(2D + 1 − r) unknowns of a table of D dimensions, and a fifth more"
        context = min(self.context, self.table.positions) if self._placed else self.context
        plan = cost.plan(formula, max(2, context), V - 1.0, known=False)
        return replace(plan, vocabulary=V)

    @property
    def _placed(self) -> bool:
        return self.table.positions > 1

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        excess = "the target's weights are 0 or 1 nearly everywhere, or it is no single head"
        steps = self._steps(checks)
        return (yield from as_planned(steps, self.plan(), excess, "no single head"))

    def _steps(self, checks: int) -> Steps[SingleHead]:
        rng, V = np.random.default_rng(self.seed), len(self.table)
        readings = yield from self._asked(rng)
        solved = readings.solved()
        model = solved.model()
        drawn = [readings.drawn(rng).solved().model() for _ in range(DRAWN)]
        errors = {
            name: SAFETY
            * max(float(np.linalg.norm(getattr(one, name) - getattr(model, name))) for one in drawn)
            for name in ("W", "v", "w", "c")
        }
        context = self.table.positions if self._placed else self.context
        reader, hidden = readings.reader, readings.hidden
        whitened = float(np.linalg.norm(readings.affine.to, 2))
        unseen = SAFETY * hidden * whitened
        errors["W"] += unseen * whitened
        errors["w"] += unseen * (1 + whitened * float(np.linalg.norm(readings.affine.middle)))

        def allowed_of(x: Array, f: Array) -> Array:
            moved = np.max([np.abs(one(x) - f) for one in drawn], axis=0)
            return np.asarray(SAFETY * moved + np.tanh(hidden / 2) * np.ptp(x @ model.v, axis=1))

        trial = asked_ids.fresh_bags(TRIED, np.arange(V), context, np.random.default_rng(self.seed))
        shares = [_share(self.table.at(one.ids), model, allowed_of) for one in trial]
        refuse_open(reader, np.concatenate(shares))

        def compare(X: Array, y: Array) -> Residuals:
            ids = X[:, :, 0].astype(np.intp)
            x = self.table.at(ids)
            size = np.max(np.abs(x @ model.v + model.c), axis=1)
            f, own = model(x), 3 * reader.eta(np.array(ids.shape[1]), size)
            most = reader.most_missed + own / np.maximum(size, TINY)
            return Residuals.of(y - f, own=own, allowed=allowed_of(x, f), size=size, most=most)

        fresh = asked_ids.fresh_bags(checks, np.arange(V), context, rng)
        judgement, checked = yield from asked_ids.held_out(fresh, compare, checks, context, reader)
        assumes = (
            f"The target is one head behind this table: {checked}",
            f"W, w and v are determined on the span of the table, of {readings.affine.y.shape[1]} "
            "dimensions, and 0 beside it; bounds are of these.",
            f"Bounds are {SAFETY:.0f} times what {DRAWN} draws of the readings' errors make.",
        )
        notes = reader.precision.why
        return Found(model, Certificate(errors, assumes), judgement.evidence, notes)

    def _asked(self, rng: np.random.Generator) -> Asking[TableReadings]:
        """Ask lone tokens, the block, pilot columns, and the other query tokens."""
        affine, V = self.table.affine, len(self.table)
        D, lifted = affine.y.shape[1], affine.lifted
        keys = affine.candidates(rng, V)
        if len(keys) <= _keys(D):
            raise Reason.TABLE_TOO_SMALL.error(ids=V, dimension=D)
        lone = np.sort(keys[spanning(lifted[keys], D + 1)])
        context, every = 2 if self._placed else self.context, np.arange(len(lifted))
        told = yield from ask_spanning(affine, lone, keys, context, rng, positions=self._placed)
        grown = np.linalg.norm(affine.weights(lone, every), axis=1)
        u, grows = affine.predicted(lone, told.y, every), float(np.median(grown[keys]))
        precision = told.precision.with_unit(max(1.0, grows) * told.precision.unit, "")
        names = np.tile(np.arange(V), 2) if self._placed else None
        reader = BagReader(u, u, precision, context, names)
        second = V * self._placed  # query tokens stand at the second position
        order = rng.permutation(keys)
        block = yield from find_block(reader, order, order[::-1] + second, self.rank, D)
        r = block.rank
        tokens = keys + second
        pilots = block.columns[block.told.columns[: r + 1]] if r else tokens[:0]
        away = np.abs(u[keys] - np.median(u[keys]))
        far = keys[away >= np.quantile(away, 0.3)] if len(keys) > 4 * D else keys
        far = np.setdiff1d(far, pilots - second)
        rows = far[spanning(affine.y[far], min(len(far), KEYS * _keys(D)))]
        G, own = yield from _at_keys(reader, rows, pilots, _keys(D), D)
        readings = TableReadings(reader, affine, lone, told.y, rows, pilots, G, own)
        if not r:
            return replace(readings, hidden=block.hidden)
        rho = affine.y @ readings.space(r)[0]
        usual = float(np.median(own[np.isfinite(own)]))
        inverse = np.linalg.pinv(affine.y[rows[: _keys(D)]])
        leverage = np.linalg.norm(affine.y @ inverse, axis=1)
        rho_error = GROWN * usual * np.sqrt(r) * np.maximum(1.0, leverage)
        columns = Columns(reader=reader, rho=rho, rho_error=rho_error)
        anchors = columns.anchors(np.isin(np.arange(len(rho)), keys), rng)
        read = yield from _read_spanning(columns, lifted, tokens, pilots, anchors, keys)
        columns.refuse_contradictions()
        return replace(readings, columns=columns, spanning=read)


def ask_spanning(
    affine: Affine,
    lone: Indices,
    among: Indices,
    context: int,
    rng: np.random.Generator,
    *,
    positions: bool = False,
) -> Asking[asked_ids.LoneTokens]:
    """Ask ids alone whose vectors span all, and fresh ones whose answers follow from these.

    Raises
    ------
    ModelMismatch, NotIdentifiable
        They do not follow, or as `ask_lone` raises them.
    """
    fresh = rng.permutation(np.setdiff1d(among, lone))[: asked_ids.COPIED]
    grown = np.maximum(1.0, np.linalg.norm(affine.weights(lone, fresh), axis=1))

    def expected(y: Array) -> tuple[Array, Array]:
        return affine.predicted(lone, y, fresh), grown

    return (yield from asked_ids.ask_lone(lone, fresh, context, rng, expected, positions=positions))


@dataclass(frozen=True, slots=True)
class TableReadings:
    """All that was read, with errors."""

    reader: BagReader
    affine: Affine
    lone: Indices
    y: Array
    rows: Indices
    pilots: Indices
    G: Array
    error: Array
    """Of every pilot column (r + 1, rows)."""
    columns: Columns | None = None
    spanning: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    """Query tokens that span [y 1], beside the pilots."""
    hidden: float = 0.0
    """What logits may be at most where no direction of them is seen."""

    def solved(self) -> Solved:
        """Solve for v and c, and for [A a] in factors."""
        lifted = self.affine.lifted
        values: Array = np.asarray(np.linalg.solve(lifted[self.lone], self.y))
        D = self.affine.y.shape[1]
        if self.columns is None:
            return Solved(self.affine, values, np.zeros((D, 0)), np.zeros((0, D + 1)))
        C, T = self.space(self.columns.rank)
        rho, z = self.affine.y @ C, dict(zip(self.pilots.tolist(), T, strict=True))
        for places, i, G, error in self._by_count():
            gaps = rho[i] - rho[places][:, None]
            z.update(zip(places.tolist(), weighted(gaps, G, error)[0], strict=True))
        j = np.array([*z])
        Z = np.array([*z.values()]).T
        return Solved(self.affine, values, C, np.asarray(np.linalg.solve(lifted[j], Z.T).T))

    def space(self, rank: int) -> tuple[Array, Array]:
        """Return C (D, r) that spans the pilots' columns of [A a], and what each is of it."""
        y = self.affine.y
        gaps = y[self.rows] - y[self.pilots][:, None]
        every = zip(gaps, self.G, self.error, strict=True)
        solved = [weighted(*(x[None] for x in one)) for one in every]
        M = np.array([m[0] for m, _ in solved])
        # columns that were read badly, as saturated ones are, say less of what all span
        noise = np.array([[np.linalg.norm(bound)] for _, bound in solved])
        s, Vt = np.linalg.svd(M / np.maximum(noise, TINY), full_matrices=False)[1:]
        scale = s[:rank] * float(np.min(noise))
        return Vt[:rank].T * scale, M @ Vt[:rank].T / scale

    def _by_count(self) -> Iterator[tuple[Indices, Indices, Array, Array]]:
        """Yield query tokens of as many readings each, with these."""
        assert self.columns is not None
        counts: dict[int, list[int]] = {}
        for j in self.spanning.tolist():
            counts.setdefault(len(self.columns.readings[j][0]), []).append(j)
        for own in counts.values():
            read = zip(*(self.columns.readings[j] for j in own), strict=True)
            i, G, error = (np.array(x) for x in read)
            yield np.array(own), i, G, error

    def drawn(self, rng: np.random.Generator) -> TableReadings:
        """Draw errors of the readings' size."""

        def moved(x: Array, error: Array) -> Array:
            return x + rng.standard_normal(x.shape) * np.where(np.isfinite(error), error, 0.0) / 2

        columns = self.columns
        if columns is not None:
            readings = columns.readings.items()
            other = {j: (i, moved(G, error), error) for j, (i, G, error) in readings}
            columns = replace(columns, readings=other)
        y = moved(self.y, self.reader.precision.error(np.abs(self.y), self.y))
        return replace(self, y=y, G=moved(self.G, self.error), columns=columns)


@dataclass(frozen=True, slots=True)
class Solved:
    """v, c and [A a] = C R of whitened coordinates."""

    affine: Affine
    values: Array
    C: Array
    R: Array

    def model(self) -> SingleHead:
        """Return the head that takes vectors."""
        to, middle = self.affine.to, self.affine.middle
        v = to @ self.values[:-1]
        K, Q = (to @ self.C).T, self.R[:, :-1] @ to.T
        w = K.T @ (self.R[:, -1] - Q @ middle)
        return SingleHead.from_factors(K, Q, v, w, float(self.values[-1] - middle @ v))


def _share(x: Array, model: SingleHead, allowed: Callable[[Array, Array], Array]) -> Array:
    """Return by which share of what values are apart answers to sequences x may be off."""
    apart = np.maximum(np.ptp(x @ model.v, axis=1), TINY)
    return np.asarray(allowed(x, model(x)) / apart)


def _at_keys(
    reader: BagReader, rows: Indices, pilots: Indices, count: int, least: int
) -> Asking[tuple[Array, Array]]:
    """Read pilot columns at so many rows each that can be read, the first ones: (pilots, rows)."""
    G, error = np.zeros((len(pilots), len(rows))), np.full((len(pilots), len(rows)), np.inf)
    asked = np.zeros(len(pilots), dtype=np.intp)
    while len(pilots):
        usual = np.median(error[np.isfinite(error)]) if np.any(np.isfinite(error)) else np.inf
        missing = count - np.sum(error <= FAINT * usual, axis=1) * np.isfinite(usual)
        more = np.minimum(missing, len(rows) - asked).clip(0).astype(np.intp)
        if not np.any(more):
            break
        n = np.repeat(np.arange(len(pilots)), more)
        place = np.concatenate([np.arange(a, a + m) for a, m in zip(asked, more, strict=True)])
        read = yield from reader.read(rows[place], pilots[n], "columns of all rows")
        G[n, place], error[n, place] = read.G, read.error
        asked += more
    few = int(np.min(np.sum(np.isfinite(error), axis=1), initial=least))
    if few < least:
        reader.refuse_unread(f"{few} logits of a query token are read, of {least} dimensions")
    return G, error


def _read_spanning(
    columns: Columns,
    lifted: Array,
    tokens: Indices,
    pilots: Indices,
    anchors: Indices,
    keys: Indices,
) -> Asking[Indices]:
    """Read query tokens that span [y 1] beside the pilots; of those read badly others instead."""
    good, refused = pilots, pilots[:0]
    for _ in range(INSTEAD):
        rest = np.setdiff1d(tokens, np.concatenate([good, refused]))
        missing = min(lifted.shape[1] - len(good), len(rest))
        beside = lifted[rest] @ (np.eye(lifted.shape[1]) - _projector(lifted[good]))
        tried = rest[spanning(beside, missing)]
        yield from columns.read_columns(tried, anchors, keys, "columns", MORE_ROWS)
        bad = columns.bad(tried, VAGUE)
        good, refused = np.append(good, tried[~bad]), np.append(refused, tried[bad])
        if not np.any(bad):
            break
    if len(good) < lifted.shape[1]:
        shown = f"{len(good)} of {lifted.shape[1]} query tokens are read"
        columns.reader.refuse_unread(shown)
    return good[len(pilots) :]


def _keys(dimension: int) -> int:
    """Return how many keys pilot columns are read at."""
    return dimension + 4 + int(MORE_KEYS * dimension)


def outlying(x: Array) -> Array:
    """Return how far rows are from the median of all, above 1 where they are of another size."""
    far = np.linalg.norm(x - np.median(x, axis=0), axis=1)
    return np.asarray(far / (OUTLYING * max(float(np.median(far)), TINY)))


def spanning(rows: Array, count: int) -> Indices:
    """Choose rows that span best, by pivoted QR; then of the others those that do, and so on."""
    left, chosen = np.arange(len(rows)), np.zeros(0, dtype=np.intp)
    while len(chosen) < count:
        order = scipy.linalg.qr(rows[left].T, mode="r", pivoting=True)[1]
        best = left[order[: min(rows.shape[1], len(left), count - len(chosen))]]
        chosen, left = np.concatenate([chosen, best]), np.setdiff1d(left, best)
    return chosen


def _projector(rows: Array) -> Array:
    """Return the projector on the span of rows."""
    Q = np.linalg.qr(rows.T)[0]
    return np.asarray(Q @ Q.T)
