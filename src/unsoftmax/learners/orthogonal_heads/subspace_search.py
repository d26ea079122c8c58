"""Appendix C's conjecture, made to work: the subspaces U_h from Hessians A(b) at query tokens b.

No A(b) = Σ_h (u_h v_hᵀ + v_h u_hᵀ), u_h = W_h b, leads out of a U_h. So the U_h are the finest
simultaneous block diagonalisation of a few A(b):

1. A scale at which logits are small but visible, along one query token; a smaller one where
   logits along others turn out to be larger (`measure.hessians`).
2. A(b), one query token after the other, until their common blocks stay the same.
3. With the heads nearly known, the same again without the further orders of tanh.
4. Heads that are too small to be seen beside others are looked for in the complement of those.

Queries: 34 for a scale, and d(d + 1) for each of about max d_h + 2 query tokens; once more in the
complement for each level of smaller heads. Difference from the paper: a few random b, one at a
time until the blocks no longer change, unless e_1 … e_d are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import scipy

from unsoftmax.learners.compose import Asking, restricted
from unsoftmax.learners.orthogonal_heads.restricted_head import Complement, HeadSubspace
from unsoftmax.measure import hessians
from unsoftmax.measure.precision import why
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Array
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost

# -- The finest simultaneous block diagonalisation of symmetric matrices, by what commutes with
# them.
#
# Given symmetric A_1 … A_n (d, d), known up to a relative error, find the finest decomposition of
# their joint range into mutually orthogonal subspaces that every A_t leaves invariant. The
# symmetric X with [X, A_t] = 0 for all t form the *commutant*. It contains the orthogonal
# projections on the subspaces; where no two of the subspaces carry equivalent blocks these span
# it, so its dimension is the number H of subspaces, and the eigenspaces of one X taken at random
# are the subspaces.
#
# 1. The joint range: left singular vectors of [A_1 … A_n] above ``limit``.
# 2. The null space of X ↦ ([X, A_1], …, [X, A_n]) on the symmetric matrices of that range: the
#    right singular vectors at or below ``limit``. The gap around ``limit`` is returned with it.
# 3. Eigenspaces of a random element of the null space, of the draw with the widest gaps, and once
#    more of the element nearest to Σ_h h·P_h, whose gaps are 1.
#
# Time grows as n·d⁶ and memory as d⁴: step 2 is a QR of n·d(d − 1)/2 rows and d(d + 1)/2 columns,
# kept as a triangle so that a further matrix costs one update.
#
# Source: Murota, Kanno, Kojima & Kojima (2010); Maehara & Murota (2011). Used for the conjecture
# of Appendix C of arXiv 2601.16873.


@dataclass(frozen=True, slots=True)
class CommonBlocks:
    """What commutes with some symmetric matrices, within their joint range."""

    within: Array
    """Orthonormal basis (d, r) of the joint range."""
    null: Array
    """Orthonormal basis (H, r, r) of the symmetric matrices that commute."""
    zero: float
    """The largest singular value that counts as 0, of X ↦ [X, A] or of the A themselves,
    relative to the largest of its kind."""
    smallest: float
    """The smallest singular value of X ↦ [X, A] that does not, relative to the largest;
    infinity where all of them count as 0."""

    @property
    def shape(self) -> tuple[int, int]:
        """Dimension r of the joint range and number H of subspaces."""
        return self.within.shape[1], len(self.null)

    @property
    def gap(self) -> float:
        """How many times ``smallest`` is ``zero``: the decision is safe where this is large."""
        return self.smallest / self.zero if self.zero else float("inf")

    def subspaces(self, rng: np.random.Generator, draws: int) -> list[Array]:
        """Return orthonormal bases (d, d_h) of the H subspaces.

        Parameters
        ----------
        rng : Generator
            Draws elements of the null space.
        draws : int
            How many: the one whose eigenvalues have the widest gaps is taken.
        """
        H = len(self.null)
        if not H:
            return []
        best, cut, vectors = -np.inf, np.zeros(0, dtype=np.intp), np.eye(self.within.shape[1])
        for _ in range(draws):
            values, turned = np.linalg.eigh(np.tensordot(rng.standard_normal(H), self.null, 1))
            steps = np.diff(values)
            cuts = np.sort(np.argsort(-steps)[: H - 1]) + 1
            gap = np.min(steps[cuts - 1], initial=np.inf) / (values[-1] - values[0] or 1.0)
            if gap > best:
                best, cut, vectors = gap, cuts, turned
        parts = np.split(vectors, cut, axis=1)
        wanted = np.sum([h * part @ part.T for h, part in enumerate(parts, 1)], axis=0)
        nearest = np.tensordot(np.tensordot(self.null, wanted, 2), self.null, 1)
        _, vectors = np.linalg.eigh(nearest)
        return [self.within @ part for part in np.split(vectors, cut, axis=1)]


def common_blocks(A: Sequence[Array] | Array, limit: float) -> CommonBlocks:
    """Return what commutes with all of ``A``, symmetric (n, d, d).

    Relative singular values up to ``limit`` count as 0.

    Examples
    --------
    >>> A = np.zeros((2, 3, 3))
    >>> A[:, :2, :2], A[:, 2, 2] = [[[1, 2], [2, 0]], [[0, 1], [1, 3]]], [4, 5]
    >>> common_blocks(A, 1e-9).shape
    (3, 2)
    """
    commutant = Commutant(limit)
    commutant.add(A)
    return commutant.blocks()


@dataclass(slots=True)
class Commutant:
    """What commutes with symmetric matrices that come one after the other."""

    limit: float
    """Relative singular values up to this count as 0."""
    seen: list[Array] = field(default_factory=list)
    """The matrices, one by one."""
    _ranges: list[tuple[int, float]] = field(default_factory=list)
    """Dimension of the joint range and what is left outside of it, after every `add`."""
    _within: Array | None = None
    _triangle: Array | None = None
    _rows: int = 0
    """How many matrices' X ↦ [X, A] have the triangle as R of their QR decomposition."""
    _blocks: dict[int, CommonBlocks] = field(default_factory=dict)

    def add(self, A: Sequence[Array] | Array, limit: float = 0.0) -> None:
        """Take some matrices, known up to ``limit`` where that is larger than it was."""
        self.limit = max(self.limit, limit)
        self.seen += list(A)
        within, left = _joint_range(self.seen, self.limit)
        self._ranges.append((within.shape[1], left))
        if self._within is None or within.shape != self._within.shape:
            # rows of the triangle are in the coordinates of the range: another range, other rows
            self._within, self._rows, self._blocks = within, 0, {}

    def settled(self, count: int) -> bool:
        """Return whether r and H have stayed the same for the last ``count`` matrices.

        H is computed only where r has stayed the same: it is what takes time.
        """
        first = len(self.seen) - count + 1
        if first < 1 or len(self._ranges) < count:
            return False
        if len({rank for rank, _ in self._ranges[-count:]}) > 1:
            return False
        return len({self._first(n).shape for n in range(first, len(self.seen) + 1)}) == 1

    def blocks(self) -> CommonBlocks:
        """Return what commutes with all matrices."""
        return self._first(len(self.seen))

    def _first(self, count: int) -> CommonBlocks:
        """Return what commutes with the first ``count`` matrices, in the joint range of all."""
        if count not in self._blocks:
            assert self._within is not None
            size = _largest(self.seen[:count])
            triangle = self._triangle_of(count, self._within) / size
            left = self._ranges[-1][1]
            self._blocks[count] = _commuting(self._within, triangle, self.limit, left)
        return self._blocks[count]

    def _triangle_of(self, count: int, within: Array) -> Array:
        """Add rows to the triangle up to ``count`` matrices; it begins anew where it has more."""
        triangle = self._triangle
        if triangle is None or not 0 < self._rows <= count:
            r = within.shape[1]
            triangle, self._rows = np.zeros((0, r * (r + 1) // 2)), 0
        for A in self.seen[self._rows : count]:
            rows = np.vstack([triangle, _commutator(within.T @ A @ within)])
            triangle = np.asarray(np.linalg.qr(rows, mode="r"))
        self._triangle, self._rows = triangle, count
        return triangle


def _largest(A: Sequence[Array]) -> float:
    """Return the largest 2-norm; 1 where all are 0, to divide by."""
    return max(float(np.linalg.norm(x, 2)) for x in A) or 1.0


def _joint_range(A: Sequence[Array], limit: float) -> tuple[Array, float]:
    """Return a basis of the joint range, and the relative singular value left outside of it."""
    d = len(A[0])
    u, singular, _ = np.linalg.svd(np.hstack(A) / _largest(A), full_matrices=False)
    rank = int(np.count_nonzero(singular > limit))
    if rank == d:
        return np.eye(d), 0.0
    return np.asarray(u[:, :rank]), float(singular[rank])


def _commuting(within: Array, triangle: Array, limit: float, left: float) -> CommonBlocks:
    """Return the null space of a triangle of X ↦ [X, A]; ``left`` is outside of the range."""
    r = within.shape[1]
    if r <= 1:
        return CommonBlocks(within, np.ones((r, r, r)), left, np.inf)
    _, singular, right = np.linalg.svd(triangle, full_matrices=True)
    singular = np.append(singular, np.zeros(len(right) - len(singular)))
    largest = singular[0] or 1.0
    zero = singular <= limit * largest
    zero[-1] = True  # the identity commutes with everything
    null = np.tensordot(right[zero], _symmetric(r), 1)
    smallest = float(np.min(singular[~zero], initial=np.inf)) / largest
    return CommonBlocks(within, null, max(left, float(singular[zero].max()) / largest), smallest)


def _commutator(A: Array) -> Array:
    """Return the matrix of X ↦ [X, A] from symmetric matrices to antisymmetric ones."""
    r = len(A)
    product = _symmetric(r) @ A
    p, q = np.triu_indices(r, 1)
    return np.asarray((product - product.transpose(0, 2, 1))[:, p, q].T)


def _symmetric(r: int) -> Array:
    """Return an orthonormal basis of the symmetric r×r matrices."""
    p, q = np.triu_indices(r)
    basis = np.zeros((len(p), r, r))
    n = np.arange(len(p))
    basis[n, p, q] = basis[n, q, p] = np.where(p == q, 1.0, np.sqrt(0.5))
    return basis


# -- Common invariant subspaces of symmetric matrices, from nearly right ones, with error bounds.
#
# Where orthonormal bases E_g, E_h of two subspaces are nearly right, M_t = EᵀA_tE is nearly block
# diagonal, and turning E_h towards E_g by a small K, E_g towards E_h by −Kᵀ, makes its block
#
#     M_gh,t + M_gg,t·K − K·M_hh,t,
#
# which is 0 for the right K: linear equations, one for each t and entry, n times as many as
# unknowns. K is their least-squares solution. The residual estimates the noise of an entry of A_t;
# noise over the singular values of the equations is what K is off by. Each pair of subspaces is
# solved by itself, so that a small block beside a large one does not widen the bounds of others.
#
# Source: beyond the paper; first-order perturbation of invariant subspaces (Stewart & Sun 1990).


# Noise is bounded by so many standard deviations: exceeded by 2e-9 of Gaussian entries.
DEVIATIONS = 6.0
# Probability that the bound on the standard deviation is too small by chance (χ² of the residual).
UNDERESTIMATED = 1e-3
# Directions of K below this relative singular value are left as they are and have no bound: the
# equations determine them by rounding alone.
UNSEEN_SHARE = 1e-14
# Equations are taken in so many at a time, which bounds memory by that of K's unknowns.
ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class AlignedSubspaces:
    """Subspaces that were turned, and how far they may still be off."""

    bases: list[Array]
    """Orthonormal (d, d_h), that make up R^d."""
    errors: Array
    """Bounds on ‖K_gh‖_F, (H, H) with diagonal 0; at most 1, which says nothing."""
    entry_error: float
    """What an entry of A may be off by."""

    @property
    def outside_blocks(self) -> float:
        """Bound on the part of ‖A‖_F, over all A, that is outside of the diagonal blocks."""
        return self.entry_error * len(self.bases[0])


def aligned(bases: list[Array], A: Array, noise: float) -> AlignedSubspaces:
    """Turn the subspaces, and bound by how much each may still lean to each other one.

    Parameters
    ----------
    bases : list of ndarray (d, d_h)
        Orthonormal bases that make up R^d, what is in no subspace among them.
    A : ndarray (n, d, d)
        Symmetric; block diagonal in the right bases, up to noise.
    noise : float
        The most that the standard deviation of an entry of A may be, where the residual has too
        few equations to estimate it.
    """
    E = np.hstack(bases)
    M = E.T @ A @ E
    ends = np.cumsum([0, *(part.shape[1] for part in bases)])
    turn = np.zeros((E.shape[1], E.shape[1]))
    gain = np.zeros((len(bases), len(bases)))
    left, equations = 0.0, 0
    for g, h in combinations(range(len(bases)), 2):
        first, second = slice(ends[g], ends[g + 1]), slice(ends[h], ends[h + 1])
        if ends[g] == ends[g + 1] or ends[h] == ends[h + 1]:
            continue
        blocks = M[:, first, first], M[:, second, second], M[:, first, second]
        K, gain[g, h], over = _solved(*blocks)
        turn[first, second], turn[second, first] = K, -K.T
        left, equations = left + over, equations + (len(A) - 1) * K.size
    entry_error = DEVIATIONS * _deviation(left, equations, noise, UNDERESTIMATED)
    turned, _ = np.linalg.qr(E + E @ turn)
    turned *= np.sign(np.sum(turned * E, axis=0))
    gain, errors = gain + gain.T, np.ones_like(gain)
    np.multiply(entry_error, gain, where=np.isfinite(gain), out=errors)
    errors = np.minimum(errors, 1.0)
    return AlignedSubspaces(np.split(turned, ends[1:-1], axis=1), errors, float(entry_error))


def _deviation(left: float, equations: int, noise: float, underestimated: float) -> float:
    """Bound the deviation whose squares add up to ``left`` over so many spare equations."""
    if not equations:
        return noise
    chance = 2 * scipy.special.gammaincinv(equations / 2, underestimated)
    # the residual is a lower bound, whatever noise was thought to be
    return float(max(min(noise, np.sqrt(left / chance)), np.sqrt(left / equations)))


def _solved(first: Array, second: Array, between: Array) -> tuple[Array, float, float]:
    """Return K, what unit noise makes of ‖K‖_F, and the squares of the residual."""
    count, k, n = between.shape
    triangle = np.zeros((0, k * n + 1))
    step = max(1, ROWS_AT_ONCE // (k * n))
    for some in (slice(start, start + step) for start in range(0, count, step)):
        equations = np.einsum("tij,kl->tikjl", first[some], np.eye(n))
        equations -= np.einsum("ij,tkl->tikjl", np.eye(k), second[some])
        rows = np.column_stack([equations.reshape(-1, k * n), -between[some].ravel()])
        triangle = np.asarray(np.linalg.qr(np.vstack([triangle, rows]), mode="r"))
    left, singular, right = np.linalg.svd(triangle[: k * n, :-1])
    seen = singular > UNSEEN_SHARE * singular[0]
    inverse = np.where(seen, 1 / np.where(seen, singular, 1.0), 0.0)
    K = (right.T @ (inverse * (left.T @ triangle[: k * n, -1]))).reshape(k, n)
    over = float(np.sum((between + first @ K - K @ second) ** 2))
    return K, float(np.linalg.norm(inverse)) if seen.all() else np.inf, over


# Times that heads are looked for: in R^d, then smaller ones in the complement of those that were
# found. Scores of 1e±5 beside each other take two, a head W = 0 one more.
LEVELS = 3
# Scales tried on a level. A pilot may meet a head where it reads next to nothing, or hardly any of
# its values: then logits turn out larger than it showed, and a lower scale is tried.
SCALES = 3
# Further orders above this share of A, or above what counts as 0, and the scale is lowered.
BENT = 1e-3
# The same at the last scale: beyond it what is read off is no Hessian.
MOST_BENT = 0.03
# A relative singular value above this must not count as 0: nothing is left between noise and what
# counts, and the answers are refused as too coarse.
MOST_LIMIT = 0.2
# What is left of Σ v_h outside of all subspaces is a head where it exceeds so many times the error
# of Σ v_h and ``leak_margin`` times the leaks together. Smaller: errors pass for heads; larger:
# small heads are hidden, as the certificate then says.
STANDS_OUT = 3.0
# The same for what may have leaked from the heads that were found.
LEAK_MARGIN = 2.0
# The common blocks must stay the same for so many query tokens. Each costs d(d + 1) queries; with
# fewer, blocks that one more token would join or tell apart are taken for final.
UNCHANGED = 3
# Random elements of the commutant, of which the one with the widest gaps is taken.
DRAWS = 32
# Once further orders are subtracted, singular values above this many times the noise count, where
# that is lower than half way (in logarithms) between noise and 1.
CLEAR_OF_NOISE = 1e3
# The deviation of an entry of A is at most this many times what the answers' error makes.
NOISE_MARGIN = 3.0
# Times that further orders are subtracted and subspaces aligned in turn. Each time leaves 1e-2 of
# the further orders or less.
STRAIGHTENED = 3
# Two lines belong together where their unit profiles, eigenvalues over b, add up to less. Larger:
# lines of two heads that read nearly the same tokens are joined.
ALIKE = 0.03
# The same as a multiple of what counts as 0 of A, relative to the smaller profile: where profiles
# are known better than ``alike`` only lines that agree so well are joined.
TIMES_LIMIT = 30.0


def subspace_cost(dim: int, every: bool) -> Cost:
    """Bound a whole search; ``every`` query token may be asked in one round."""
    levels = [
        Cost.of(hessians.PILOT_QUERIES, tokens=2)
        + SCALES * Cost.of(hessians.hessian_queries(k) * k, tokens=2, rounds=2 if every else 1 + k)
        for k in dimensions(dim)
    ]
    return sum(levels, Cost())


def dimensions(dim: int) -> range:
    """Return the dimensions that are left on each level, at most."""
    return range(dim, max(dim - LEVELS, 0), -1)


@dataclass(frozen=True, slots=True)
class FoundSubspaces:
    """Where the heads are, and what is in no subspace."""

    places: list[HeadSubspace]
    complement: Complement
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubspaceSearch:
    """Find the subspaces of heads, given Σ v_h.

    Attributes
    ----------
    every : bool
        Ask for all of e_1 … e_d instead of random query tokens.
    rng : Generator
        Draws them.
    """

    every: bool
    rng: np.random.Generator

    def find(self, values: Values, level: int = 1, leak: float = 0.0) -> Asking[FoundSubspaces]:
        """Find subspaces, and smaller heads in their complement.

        ``values`` is Σ v_h; ``leak`` what tokens may meet of heads that were found before, on
        levels below this one.
        """
        seen = yield from self._look(values)
        if seen is None:
            return self._without_scores(values)
        found, blocks = refined(seen, values, self.rng)
        *bases, outside = found.bases
        # a tilt of a subspace lets it meet the values of all others
        parts = [float(np.linalg.norm(E.T @ values.v)) for E in found.bases]
        leaks, tilts = leak + found.errors @ parts, np.linalg.norm(found.errors, axis=1)

        def place(h: int) -> HeadSubspace:
            errors = float(leaks[h]), float(tilts[h]), found.outside_blocks
            return HeadSubspace.of(found.bases[h], values, *errors)

        places = [place(h) for h in range(len(bases))]
        note = _counted(bases, len(seen.excess.excess), blocks)
        unknown = STANDS_OUT * np.linalg.norm(values.v_error)
        hidden = float(LEAK_MARGIN * leaks[-1] + unknown)
        if parts[-1] <= hidden:
            value, tilt = outside.T @ values.v, float(tilts[-1])
            complement = Complement(outside, value, False, tilt, hidden=hidden)
            return FoundSubspaces(places, complement, (note,))
        rest = place(len(bases))
        more = yield from self._weaker(rest, outside, level + 1)
        return FoundSubspaces(
            [*places, *(place.within(outside, rest.tilt) for place in more.places)],
            more.complement.within(outside, rest.tilt),
            (note, *more.notes),
        )

    def _weaker(self, rest: HeadSubspace, outside: Array, level: int) -> Asking[FoundSubspaces]:
        """Find heads in the complement of those found, which these drowned."""
        if level > LEVELS:
            raise Reason.WEAKER_HEADS_LEFT.error(times=LEVELS)
        return (yield from restricted(self.find(rest.values, level, rest.leak), outside))

    def _without_scores(self, values: Values) -> FoundSubspaces:
        """Return the one head W = 0 that is left where no logits show."""
        if hessians.saturated_unseen(values):
            raise Reason.PART_WITHOUT_LOGIT.error(
                {"v": values.v}, also=why(values.precision), size=values.norm
            )
        note = "A part of Σ v_h is weighed by no logit: a head with W = 0."
        W_error = hessians.unseen_scores(values)
        complement = Complement(np.eye(len(values.v)), values.v, True, W_error=W_error)
        return FoundSubspaces([], complement, (note,))

    def _look(self, values: Values) -> Asking[SeenHessians | None]:
        """Ask for A(b) until nothing changes; None where there are no logits."""
        d = len(values.v)
        tokens = np.eye(d) if self.every else np.linalg.qr(self.rng.standard_normal((d, d)))[0].T
        first = tokens[self.rng.integers(d)]
        scale = yield from hessians.find_hessian_scale(values, first, self.rng)
        if scale is None:
            return None
        for attempt in range(1, SCALES + 1):
            if scale.limit > MOST_LIMIT:
                raise Reason.TOO_COARSE_FOR_SUBSPACES.error(
                    {"v": values.v}, also=why(values.precision), noise=scale.noise
                )
            last = attempt == SCALES
            most = MOST_BENT if last else max(BENT, scale.limit)
            seen, remainder = yield from self._look_at(scale, values, tokens, most)
            if seen is not None:
                return seen
            scale = scale.lower(remainder)
        raise Reason.NOT_LINEAR_IN_LOGITS.error(also=why(values.precision), missing=remainder)

    def _look_at(
        self, scale: hessians.HessianScale, values: Values, tokens: Array, most: float
    ) -> Asking[tuple[SeenHessians | None, float]]:
        """Ask at one scale; None where further orders, returned too, exceed ``most``."""
        d = len(values.v)
        step = d if self.every else 1
        commutant, excess = Commutant(scale.limit), list[Array]()
        for start in range(0, d, step):
            asked = yield from hessians.ask_excess(values, tokens[start : start + step], scale)
            remainder = asked.remainder(hessians.REMAINDER_MARGIN)
            if remainder > most:
                break
            excess.append(asked.excess)
            commutant.add(asked.hessians(), remainder)
            if commutant.settled(UNCHANGED) or start + step >= d:
                return SeenHessians(
                    hessians.Excess(scale, np.concatenate(excess)), commutant
                ), remainder
        return None, remainder


def _counted(bases: list[Array], tokens: int, blocks: CommonBlocks) -> str:
    """Say what was found, and how clear the singular values were."""
    sizes = ", ".join(str(E.shape[1]) for E in bases)
    return (
        f"{len(bases)} subspaces of dimension {sizes}, from {tokens} query tokens: singular values "
        f"of what commutes are up to {blocks.zero:.1e}, of what does not from "
        f"{blocks.smallest:.1e}."
    )


# -- to the precision of the answers, from Hessians that are nearly the subspaces'
#
# With the heads nearly known, what the finite differences leave of the further orders of tanh is
# known too. So, in turn: further orders are subtracted from A(b) and the subspaces aligned with
# what remains; the common blocks are looked for again, with a limit
# as much lower; the two lines of heads of rank one are joined. No queries.
# Source: beyond the paper, whose conjecture (Appendix C) takes exact Hessians.


@dataclass(frozen=True, slots=True)
class SeenHessians:
    """What some query tokens showed."""

    excess: hessians.Excess
    """What answers exceed, at one scale."""
    commutant: Commutant
    """A(b), further orders included, and what commutes with them."""


def refined(
    seen: SeenHessians, values: Values, rng: np.random.Generator
) -> tuple[AlignedSubspaces, CommonBlocks]:
    """Return the subspaces, by how much they lean to each other, and the common blocks.

    The last of the subspaces is what is in none of them. ``values`` is Σ v_h.
    """
    scale, A = seen.excess.scale, np.array(seen.commutant.seen)

    def split(blocks: CommonBlocks, A: Array, limit: float) -> list[Array]:
        return joined_lines(blocks.subspaces(rng, DRAWS), A, limit)

    bases = split(seen.commutant.blocks(), A, seen.commutant.limit)
    for limit in (scale.limit, min(scale.limit, CLEAR_OF_NOISE * scale.noise)):
        _, A = _straightened(bases, A, seen.excess, values)
        blocks = common_blocks(A, limit)
        bases = split(blocks, A, limit)
    bases = without_small(bases, A, scale.limit)
    found, _ = _straightened(bases, A, seen.excess, values)
    return found, blocks


def _straightened(
    bases: list[Array], A: Array, excess: hessians.Excess, values: Values
) -> tuple[AlignedSubspaces, Array]:
    """Subtract the heads' further orders and align the subspaces, in turn."""
    for _ in range(STRAIGHTENED):
        A = excess.without_orders_of(np.array([E @ (E.T @ values.v) for E in bases]), A)
        noise = NOISE_MARGIN * excess.scale.noise * float(np.max(np.abs(A)))
        found = aligned([*bases, _complement(bases)], A, noise)
        bases = found.bases[:-1]
    return found, A


def _complement(bases: list[Array]) -> Array:
    """Return an orthonormal basis of what is in no subspace."""
    E = np.hstack(bases)
    return np.asarray(np.linalg.qr(E, mode="complete")[0][:, E.shape[1] :])


# -- heads of rank one, and heads too small to be seen
#
# For a head of rank one, W_h = k qᵀ, A(b) is (q·b)(k v_hᵀ + v_h kᵀ) on U_h: its two eigenvectors
# are the same for all b, so the commutant splits U_h into two lines. Their eigenvalues are of
# opposite sign and are q·b up to a factor; lines of other heads have another q. From rank two on
# the A(b) have no common invariant subspace within basis_of(v_h, W_h).
# Source: beyond the paper, whose conjecture (Appendix C) assumes blocks that do not split.


def joined_lines(bases: list[Array], A: Array, limit: float) -> list[Array]:
    """Join the two lines of each head of rank one.

    Parameters
    ----------
    bases : list of ndarray (d, d_h)
        Orthonormal bases of subspaces that all A(b) leave invariant.
    A : ndarray (b, d, d)
        The Hessians.
    limit : float
        The part of ‖A‖₂ that counts as 0.
    """
    lines = [k for k, E in enumerate(bases) if E.shape[1] == 1]
    E = np.array([bases[k][:, 0] for k in lines]).reshape(len(lines), A.shape[1])
    profiles = np.einsum("li,kij,lj->lk", E, A, E)
    norms = np.maximum(np.linalg.norm(profiles, axis=1), 1e-300)
    units = profiles / norms[:, None]
    apart = np.linalg.norm(units[:, None] + units, axis=2)
    apart[np.tril_indices(len(lines))] = np.inf
    size = float(np.max(np.linalg.norm(A, 2, axis=(1, 2))))
    known = TIMES_LIMIT * limit * size / np.minimum.outer(norms, norms)
    close = np.minimum(ALIKE, known)
    planes, taken = list[Array](), set[int]()
    for flat in np.argsort(apart, axis=None):
        i, j = (int(k) for k in np.unravel_index(flat, apart.shape))
        if apart[i, j] <= close[i, j] and not {i, j} & taken:
            taken |= {i, j}
            planes.append(np.hstack([bases[lines[i]], bases[lines[j]]]))
    gone = {lines[i] for i in taken}
    return [*(E for k, E in enumerate(bases) if k not in gone), *planes]


def without_small(bases: list[Array], A: Array, limit: float) -> list[Array]:
    """Leave out subspaces on which A(b) is below ``limit`` of the largest block.

    What is there is read again at a scale of its own, where more of it shows.
    """
    sizes = np.array([np.max(np.linalg.norm(E.T @ A @ E, axis=(1, 2))) for E in bases])
    return [E for E, size in zip(bases, sizes, strict=True) if size > limit * sizes.max()]
