"""One search for the whole layer behind a network that is known: heads, then first layers.

1. The heads, from one wide cell (`first_cell`).
2. Their values in K other cells, K being the number of distinct neurons (`cell_values`).
3. One linear system gives all first layers B_h (`solve_layer`): in the cell of the active neurons
   S head h has the value v_h = ℓ_h + Σ_{k∈S} E_h[k], E_h[k] = ε_k B_h[k]. ℓ_h is 0 but for neurons
   that were learned the other way round, ε relu(z) = ε relu(−z) + ε z: they are turned,
   ℓ_h = −Σ_F E_h[k], where F can be told. What is left of ℓ_h takes two neurons more,
   relu(z) − relu(−z).
4. Every pooled token that was asked is put through the layer: where one left its cell, the cell is
   asked again with shorter offsets.

Heads such as W beside 2W share their hyperplane at every query token, and no half circle tells
them apart; copies of a token do (`heads_by_poles`, 350 + 2.6·H·d(d + 2) queries, by
`multi_head.pole_search`). Scores see differences of tokens alone. So in the ball around b that the
cell holds, tokens x = b + y are answered as those y by

    N(b) + Σ_h v_h·Σ_i α_hi y_i,   of scores y_i·(W_h y_N + u_h),   u_h = W_h b + w_h,

several heads with query biases u_h under a cap: all steps of that search serve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.base_points import ConeDirections, NetworkHinges
from unsoftmax.learners.compose import Asking, T, mapped
from unsoftmax.learners.multi_head.heads_conclusion import RecoveredHeads
from unsoftmax.learners.multi_head.pole_search import LINE_COPIES, separated
from unsoftmax.learners.multi_head.reduced_answers import TokenLengths
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.token_search import SoughtHeads
from unsoftmax.learners.multi_head_transformer import cell_values, first_cell
from unsoftmax.learners.multi_head_transformer.neurons_beyond_tokens import (
    cancelling_neurons,
    unseen_neuron,
)
from unsoftmax.learners.relu_network.network_search import flipped, with_linear
from unsoftmax.learners.transformer.learned_network import LearnedNetwork
from unsoftmax.models import MultiHead, MultiHeadTransformer
from unsoftmax.probes import Array, Flags, Moved, Round

# Where heads are read off poles: few lines of each cell, for others have other cells.
LINES = 2
# Query tokens are so many times as long as the farthest hyperplane on their way,
BEYOND_BIASES = 5.0
# and at least so long that the ball has this radius: what W adds to u_h within it is about as
# large as W.
LEAST_RADIUS = 3.0
# Query tokens are moved by this share of the radius.
QUERY_SHARE = 0.4

# Neurons count as turned where what they leave of ℓ is at most this share of the neurons' size:
# errors of v are 1e-10.
LEFT_OF_LINEAR = 1e-7


class DependentCells(Exception):
    """Fewer cells than neurons tell anything new: none lies between some hyperplanes."""


# For each search: intervals that half a circle begins with, and how much longer than usual the
# baselines between them are. Others begin in another cell.
STARTS = ((1, 1.0), (1, 1.0), (16, 100.0), (64, 1.0), (16, 100.0))
# Searches that follow, in the first cells again, for heads that switch together.
BY_POLES = 2
# So many searches have offsets as long as the cell allows: one may fail by chance, and shorter
# offsets cost digits of W.
WHOLE_SEARCHES = 3
# Every search after these has offsets shorter by this than the one before: the first cell may
# have been left where no ray showed it. 0.35: of Σ B_h at 1 % of B_h six of 20 were refused.
SHORTER = 0.12
# Estimated errors of the first layers are standard deviations, roughly: so many are taken.
SAFETY = 3.0
# Errors are estimated for answers whose terms are as large as the network's. Where those of all
# heads are more than so many times as large they are the larger.
CANCELLING = 3.0
# Times that cells which the recovered layer says were left are asked again.
CORRECTIONS = 6


@dataclass(frozen=True, slots=True)
class RecoveredTransformer:
    """A recovered layer, not in canonical form, and what its parts may be off by."""

    model: MultiHeadTransformer
    errors: dict[str, float]
    """Estimated errors: of W and w of the worst head; and constant + slope·‖p‖ of the network, p
    being what all heads pool."""
    linear: bool = False
    """Whether the last two neurons carry a linear part."""
    notes: tuple[str, ...] = ()

    @property
    def vagueness(self) -> float:
        """Error of W beside the smallest W_h that is not 0, per entry of a column."""
        size = np.linalg.norm(self.model.W, axis=(1, 2))
        least = float(np.min(size[size > 0], initial=np.inf))
        return float(self.errors["W"] * np.sqrt(self.model.dim) / least)


@dataclass(frozen=True, slots=True)
class LayerSearch:
    """What is searched for, behind which network."""

    learned: LearnedNetwork
    hinges: NetworkHinges
    sought: SoughtHeads
    """With biases: query tokens keep their norm, which the cell decides."""
    biases: bool
    """Whether w_h may be other than 0."""
    rng: np.random.Generator

    def run(self, number: int, together: bool = False) -> Asking[RecoveredTransformer]:
        """Search for the ``number``-th time; for heads that switch ``together`` by their poles.

        Raises
        ------
        Exception
            One of `search_outcomes.ENDINGS`: another search may do better.
        """
        cones = ConeDirections.drawn(self.hinges, self.rng)
        wide = cones.widest(len(STARTS))
        x = wide[number % len(wide)]
        share = SHORTER ** max(0, number + 1 - WHOLE_SEARCHES)
        cell = yield from first_cell.open_cell(self.hinges, x, share, self.rng)
        if together:
            found = yield from heads_by_poles(cell, self.sought, self.rng)
        else:
            found = yield from first_cell.find_heads(cell, self.sought, STARTS[number], self.rng)
        found = found if self.biases else _without_query_biases(found)
        if found.model.H < 2 and cell.residual is None:
            return self._of_one_head(found)
        length = found.length if together else cell_values.LENGTH
        points = cones.spanning(cell.active, length, self.rng)
        if points is None:
            raise DependentCells
        return (yield from self._with_values(cell, found, points, together))

    def meets_unseen_neuron(self) -> Asking[bool]:
        """Tell whether a neuron shows that single tokens do not show."""
        [x] = ConeDirections.drawn(self.hinges, self.rng).widest(1)
        return (yield from unseen_neuron(self.hinges, x, self.rng))

    def meets_cancelling_neurons(self) -> Asking[bool]:
        """Tell whether neurons show that cancel at single tokens."""
        return (yield from cancelling_neurons(self.hinges, self.rng))

    def _of_one_head(self, found: RecoveredHeads) -> RecoveredTransformer:
        """Put one head before the network that single tokens show."""
        solved = layer_of_one_head(self.hinges)
        return self._assembled(found, solved, 0.0)

    def _assembled(
        self, found: RecoveredHeads, solved: SolvedFirstLayers, slope: float
    ) -> RecoveredTransformer:
        heads, largest = found.model, found.largest
        B, residual = solved.B[: heads.H], solved.B[heads.H :]
        R = residual[0] if len(residual) else None
        model = MultiHeadTransformer(heads.W, B, solved.w_o, solved.b, heads.w, solved.c, R)
        # what cancels in the sums that single tokens show is rounded all the same
        terms = float(np.sum(np.linalg.norm(solved.B, axis=2) @ np.abs(model.w_o)))
        steep = self.hinges.steepness
        hidden = max(1.0, terms / (CANCELLING * steep))
        # where heads are read tokens are long: noise of one size counts where they are short again
        noisy = self.learned.precision.absolute / (first_cell.FLOAT64 * steep)
        hidden = max(hidden, noisy)
        errors = {
            "W": hidden * largest["W"],
            "w": hidden * largest["w"],
            "slope": float(hidden * slope + self.learned.slope),
            "constant": self.learned.constant,
        }
        return RecoveredTransformer(model, errors, solved.linear, self._notes(found, solved))

    def _with_values(
        self, cell: first_cell.FirstCell, found: RecoveredHeads, points: Array, together: bool
    ) -> Asking[RecoveredTransformer]:
        first = found.model.v
        if cell.residual is not None:
            first = np.vstack([first, cell.residual])
        residual = cell.residual is not None
        reader = cell_values.CellReader(
            self.hinges, found.model, residual, together, points, self.rng
        )
        reader = yield from self._read_cells(reader, first, cell.active)
        for _ in range(CORRECTIONS):
            v = np.concatenate([first[None], reader.v])
            active = np.concatenate([cell.active[None], reader.active])
            solved = solve_layer(self.hinges, v, active)
            left = self._left(solved, reader)
            if not left:
                break
            yield from reader.read(left, reader.every, cell_values.CHECKS, 0.5)
        else:
            raise CoincidentJumps
        slope = solved.slope(np.append(found.largest["v"], reader.error))
        return self._assembled(found, solved, SAFETY * slope)

    def _read_cells(
        self, reader: cell_values.CellReader, first: Array, at: Flags
    ) -> Asking[cell_values.CellReader]:
        """Read the values of all cells: in full, until those so far leave fewer unknowns.

        The first cell, of the active neurons ``at``, has the values ``first``.
        """
        K, done = len(reader.points), 0
        while done < K:
            ahead = min(K, done + max(1, done // cell_values.SPACE_STEPS))
            if done > reader.heads.dim + cell_values.SPARE_CELLS:  # nothing more can show
                ahead = K
            yield from reader.read(range(done, ahead), reader.every, cell_values.CHECKS)
            done, good = ahead, reader.usual
            v = np.concatenate([first[None], reader.v[good]])
            active = np.concatenate([at[None], reader.active[good]])
            weight = np.append(1.0, reader.weights[good])
            fewer = cell_values.fewer_unknowns(v, self.hinges.gradients(active), weight)
            if fewer is None or done == K:
                continue
            trial = replace(reader, cells=dict(reader.cells), shares=dict(reader.shares))
            try:
                rest = [*np.flatnonzero(~good).tolist(), *range(done, K)]
                yield from trial.read(rest, fewer, cell_values.SPACE_CHECKS)
            except CoincidentJumps:
                continue
            return trial
        return reader

    def _left(self, solved: SolvedFirstLayers, reader: cell_values.CellReader) -> list[int]:
        """Return the cells that some pooled token left, as the layer has it."""
        K = len(self.hinges)
        # neurons as they were learned: turned ones are back again
        turned = solved.turned if solved.turned is not None else np.zeros(K, dtype=np.bool_)
        left = []
        for k, one in sorted(reader.cells.items()):
            system = one.system
            z = np.einsum("nhd,hkd->nk", system.pooled(), solved.B[:, :K]) + solved.b[:K]
            active: Flags = (z > 0) != turned
            if np.any(active != system.at.active):
                left.append(k)
        return left

    def _notes(self, found: RecoveredHeads, solved: SolvedFirstLayers) -> tuple[str, ...]:
        H, K = found.model.H, len(self.hinges)
        heads = "1 head" if H == 1 else f"{H} heads"
        extra = " Two neurons more carry a linear part." if solved.linear else ""
        if len(solved.B) > H:
            extra += " The last token reaches the network by itself: a residual connection."
        d = found.model.dim
        below = found.low_rank and any(np.linalg.matrix_rank(W) < d for W in found.model.W)
        low = " Some W are of low rank." if below else ""
        return (
            f"{heads} before {K} distinct neurons; heads of equal W and w are one, whose B is the "
            f"sum of theirs.{low}{extra}",
        )


def _without_query_biases(found: RecoveredHeads) -> RecoveredHeads:
    model = found.model
    heads = MultiHead(model.W, model.v, None, model.c)
    return replace(found, model=heads, errors={**found.errors, "w": np.zeros(model.H)})


def without_heads(learned: LearnedNetwork) -> MultiHeadTransformer:
    """Return a network that is constant as a layer without heads."""
    d = learned.dim
    return MultiHeadTransformer(
        np.zeros((0, d, d)), np.zeros((0, 0, d)), np.zeros(0), None, None, learned.network.c
    )


@dataclass(frozen=True, slots=True)
class SolvedFirstLayers:
    """First layers of all heads: neurons with weights w_o, biases b, B (H, m, d), and c."""

    B: Array
    w_o: Array
    b: Array
    c: float
    inverse: Array
    """The system's inverse (K + 1, C): how errors of the cells' values reach ℓ and the E."""
    turned: Flags | None
    """Neurons that were learned the other way round, None where that cannot be told."""
    linear: bool
    """Whether the last two neurons carry a linear part."""

    def slope(self, errors: Array) -> float:
        """Return what ℓ and all neurons are off by in sum, errors of the cells being (C,)."""
        return float(np.sum(np.sqrt(self.inverse**2 @ errors**2)))


def solve_layer(hinges: NetworkHinges, v: Array, active: Flags) -> SolvedFirstLayers:
    """Solve for B from the v_h (C, H, d) of cells with active neurons (C, K), C = K + 1."""
    C, H, d = v.shape
    system = np.column_stack([np.ones(C), active])
    x = np.asarray(np.linalg.solve(system, v.reshape(C, H * d)), dtype=np.float64)
    inverse = np.asarray(np.linalg.inv(system), dtype=np.float64)
    return _in_neurons(hinges, x[0], x[1:], inverse)


def layer_of_one_head(hinges: NetworkHinges) -> SolvedFirstLayers:
    """Take the network that single tokens show for the one head's."""
    E = hinges.signs[:, None] * hinges.A
    return _in_neurons(hinges, hinges.linear, E, np.zeros((0, 0)))


def _in_neurons(hinges: NetworkHinges, rest: Array, E: Array, inverse: Array) -> SolvedFirstLayers:
    """Write ℓ (Hd,) and E (K, Hd) as neurons."""
    signs, size = hinges.signs, float(np.linalg.norm(E, axis=1).sum())
    turned = flipped(E, rest, LEFT_OF_LINEAR * size)
    rows = signs[:, None] * E
    B, w_o, b, c = with_linear(rows, signs, hinges.b, hinges.c, rest, turned)
    B = B.reshape(len(B), -1, hinges.dim).transpose(1, 0, 2)
    return SolvedFirstLayers(B, w_o, b, c, inverse, turned, len(w_o) > len(signs))


def heads_by_poles(
    cell: first_cell.FirstCell, sought: SoughtHeads, rng: np.random.Generator
) -> Asking[RecoveredHeads]:
    """Find the heads of a cell: W_h and w_h of the layer, v_h of the cell.

    Raises
    ------
    CoincidentJumps
        The answers along a few lines do not tell them.
    """
    reach = float(cell.hinges.reach(cell.x[None])[0])
    b = max(BEYOND_BIASES * reach, LEAST_RADIUS / cell.share) * cell.x
    steps = _around(cell, b, sought, rng)
    if cell.residual is not None:
        steps = first_cell.beside_residual(steps, cell.residual)
    return (yield from steps)


def _around(
    cell: first_cell.FirstCell, b: Array, sought: SoughtHeads, rng: np.random.Generator
) -> Asking[RecoveredHeads]:
    length = float(np.linalg.norm(b))
    seen = (yield from cell.at_length(length)).seen
    radius = cell.share * length
    lengths = TokenLengths(radius, QUERY_SHARE * radius)
    precision = replace(seen.precision, absolute=seen.eta * seen.scale * length)
    reduced = replace(seen, c=seen.c + float(b @ seen.s), precision=precision, lengths=lengths)
    for copies in LINE_COPIES[:LINES]:
        steps = separated(reduced, sought.max_heads, copies, True, rng)
        try:
            return _around_zero((yield from moved_by(steps, b)), b)
        except CoincidentJumps:
            continue
    raise CoincidentJumps


def moved_by(steps: Asking[T], b: Array) -> Asking[T]:
    """Let steps see the target around b: their tokens y are asked as b + y."""

    def moved(asked: Round) -> Round:
        return [Moved.of(probes, b) for probes in asked]

    return mapped(steps, ask=moved)


def _around_zero(found: RecoveredHeads, b: Array) -> RecoveredHeads:
    """Turn query biases around b into those around 0: w_h = u_h − W_h b."""
    model, length = found.model, float(np.linalg.norm(b))
    w = model.w - model.W @ b
    errors = {**found.errors, "w": found.errors["w"] + found.errors["W"] * length}
    heads = MultiHead(model.W, model.v, w, model.c)
    return replace(found, model=heads, errors=errors, length=length)
