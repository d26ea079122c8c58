"""The heads, from one wide cell of the network: about H(d² + 4d) + 16H + d queries.

With query tokens t·x, x in the middle of a wide cone, offsets up to a share of t switch all heads
without leaving the cell: there the steps of `learners.multi_head` find u_h and v_h. At shorter
query tokens ℓ·x, where a moderate logit takes an offset that is not lost beside ℓ, they read the
u_h and all columns of W_h; what grows with the length of the token is W_h x, the rest is w_h.

Within the cell the layer is several heads with a scalar answer. While every pooled token stays in
the cell of the base point b, S being its active neurons,

    f([b+a; b]) = N(b) + Σ_h σ(a·u_h)·v_h·a,   u_h = W_h b + w_h,   N(b) = g(b),

with v_h = ℓ_h + Σ_{k∈S} E_h[k] and Σ_h v_h = ∇g. That is `multi_head`'s target with c + b·s = N(b)
and s = ∇g, so its steps serve here, with offsets no longer than a share of ‖b‖. A residual, the
last token as one more input of the network, adds r·x_N within the cell; without it s = ∇g − r.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.learners.compose import Asking, T, read_as
from unsoftmax.learners.multi_head.columns import ColumnTableTuning, read_columns
from unsoftmax.learners.multi_head.heads_conclusion import RecoveredHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers, TokenLengths
from unsoftmax.learners.multi_head.rough_heads import SearchPlane
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.token_search import (
    MultiHeadTuning,
    OrientedHeads,
    SoughtHeads,
    TokenSearch,
    assembled,
    orient,
)
from unsoftmax.learners.multi_head.window_sweeps import TokenHeads, WindowAnswers
from unsoftmax.measure.precision import Precision
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Flags, Pairs, Probes, Round, Singles
from unsoftmax.protocol import Answers


class NothingPooled(CoincidentJumps):
    """Within the cell answers change with the last token alone."""


# How the heads are found. Column spaces are made of more columns than heads alone
# need: answers are coarser by what the network adds. Of eight heads of rank 8 in 64 dimensions W
# came out to 5e-9 with 1.5, to 8e-9 with this and to 3e-7 with 1, for 9,088, 8,192 and 7,296
# queries.
HEADS = MultiHeadTuning(columns=ColumnTableTuning(ample=1.25))
# Offsets are this share of the cell's inradius: pooled tokens are moved by each head's own
# values, whose neurons may be steeper than their sum.
INRADIUS_SHARE = 0.4
# Times that this is halved until answers along random rays are linear.
HALVINGS = 8
# Number of these rays, beside the first one's opposite: together they show a residual.
RAYS = 2
# Answers are linear along a ray if they miss it by so many times their error at most.
BENT = 1e3
# ‖a‖‖b‖ of the longest offsets while heads are searched for: gates are steps there.
LONGEST_PRODUCT = 1e9
# Query tokens are between these while heads are searched for. Longer: moderate logits take
# offsets that are lost beside them; shorter: gates are no steps.
SHORTEST, LONGEST = 1e4, 1e6
# Error of an answer, relative to what its terms add up to (measured: 1e-16 to 4e-16).
FLOAT64 = 4e-16
# Where answers miss lines by more, their error is so many times what they typically do.
NOISY = 4.0
# Shorter query tokens are so many times as long as the farthest hyperplane is on their way.
BEYOND_BIASES = 5.0
# Logits that they allow the median head to have at the longest offsets, at least, and so many
# times √d: room to saturate the others.
LOGITS_ALLOWED, PER_ROOT = 250.0, 100.0
# The head with the smallest W_h x has this share of them, at least.
LEAST_SHARE = 0.25
# All u_h are read at query tokens so many times as long as well: W_h x is their difference, to
# many more digits than from tokens that differ by a step within the cell.
DOUBLED = 2.0
# Sequences that are made at a time to subtract what a residual adds to their answers.
AT_ONCE = 4096
# Where w_h hides the heads there, they are read first at tokens so many times as long: W_h x,
# which is known from before, tells where they are but for a few per cent.
LONGER_FIRST = 20.0


@dataclass(frozen=True, slots=True)
class FirstCell:
    """The cone of one direction, seen by answers.

    Attributes
    ----------
    hinges : NetworkHinges
        The network.
    x : ndarray, shape (d,)
        The direction.
    active : ndarray of bool, shape (K,)
        Active neurons.
    share : float
        ‖a‖ over ‖b‖, at most.
    residual : ndarray, shape (d,), or None
        r, if the last token adds r·x_N here.
    seen : ReducedAnswers
        How answers are reduced at query tokens of the norm at which heads are searched for.
    """

    hinges: NetworkHinges
    x: Array
    active: Flags
    share: float
    residual: Array | None
    seen: ReducedAnswers

    def at_length(self, length: float) -> Asking[FirstCell]:
        """Measure N at ℓ·x; return the cell as it is seen from there."""
        b = length * self.x
        [y] = yield [Singles(b[None], phase="base point", purpose="data")]
        lengths = replace(self.seen.lengths, length=length)
        seen = replace(self.seen, c=float(y[0] - b @ self.seen.s), lengths=lengths)
        return replace(self, seen=seen)

    def search(self, sought: SoughtHeads, rng: np.random.Generator, turn: Array) -> TokenSearch:
        """Return the steps of a search with ℓ·x, in the plane of the first two rows of ``turn``."""
        plane = SearchPlane(self.seen.lengths.length * self.x, turn[:2], turn[2:])
        return TokenSearch(sought, self.seen, plane, 0.0, rng)


def open_cell(
    hinges: NetworkHinges, x: Array, share: float, rng: np.random.Generator
) -> Asking[FirstCell]:
    """Look at the cone of ``x``: N and ∇g there, how far it reaches, the size of the values.

    Opposite offsets have complementary gates, so f([b+a; b]) − f([b−a; b]) = Σ_h v_h·a. Without
    a residual that is ∇g·a.

    Raises
    ------
    CoincidentJumps
        Answers are linear along no rays, or do not change with other tokens than the last.
    """
    d = hinges.dim
    margin = min(1.0, float(hinges.margin(x[None])[0]))
    share = INRADIUS_SHARE * share * margin
    for _ in range(HALVINGS):
        length = float(np.clip(np.sqrt(LONGEST_PRODUCT / share), SHORTEST, LONGEST))
        b, r = length * x, share * length
        rays = rng.standard_normal((RAYS, d))
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        rays = np.concatenate([rays, -rays[:1]])
        n = np.repeat(np.arange(len(rays)), 2)
        scales = np.tile([r, r / 2], len(rays))
        asked = Pairs(
            rays, b[None], n, 0 * n, scales, np.ones(len(n)), phase="rays", purpose="pilot"
        )
        points = np.concatenate([b[None], b + r * np.eye(d)])
        N, y = yield [Singles(points, phase="base point", purpose="data"), asked]
        g = (N[1:] - N[0]) / r
        seen = y.reshape(-1, 2) - N[0]
        eta = FLOAT64 * hinges.steepness
        missed = np.abs(seen[:, 0] - 2 * seen[:, 1])
        if np.all(missed <= BENT * eta * length):
            break
        share /= 2
    else:
        raise CoincidentJumps
    noise = float(np.sqrt(np.mean(missed**2) / 6)) / length  # of y₁ − 2y₂ + N(b)
    if noise > eta:
        eta = NOISY * noise
    c, residual = float(N[0] - b @ g), None
    if abs(seen[0, 0] - seen[-1, 0] - r * (rays[0] @ g)) > BENT * eta * length:
        s = yield from _sum_of_values(b, r)
        residual, g = g - s, s
    steps = np.abs(2 * seen[:, 0] / r - rays @ g)
    scale = float(max(np.linalg.norm(g), np.max(steps)))
    if scale <= BENT * eta / share:
        if residual is not None:
            raise NothingPooled
        raise CoincidentJumps  # no neuron is active, or what they add up to is nothing
    lengths = CellLengths(length=length, share=share)
    precision = Precision.relative_to_terms(eta / scale)
    reduced = ReducedAnswers(g, c, precision, scale, lengths)
    active = hinges.active(b[None])[0]
    return FirstCell(hinges, x, active, share, residual, reduced)


def _sum_of_values(b: Array, r: float) -> Asking[Array]:
    """Measure Σ_h v_h (d,) at a query token b, by offsets of length ``r``."""
    d = len(b)
    a = np.concatenate([np.eye(d), -np.eye(d)])
    n, ones = np.arange(2 * d), np.ones(2 * d)
    [y] = yield [Pairs(a, b[None], n, 0 * n, r * ones, ones, phase="residual", purpose="data")]
    return np.asarray((y[:d] - y[d:]) / r)


def find_heads(
    cell: FirstCell, sought: SoughtHeads, start: tuple[int, float], rng: np.random.Generator
) -> Asking[RecoveredHeads]:
    """Find the heads of a cell: W_h and w_h of the layer, v_h of the cell.

    Raises
    ------
    Exception
        One of `multi_head.search_outcomes.ENDINGS`: another cell may do better.
    """
    steps = _find_heads(cell, sought, start, rng)
    if cell.residual is not None:
        steps = beside_residual(steps, cell.residual)
    return (yield from steps)


def _find_heads(
    cell: FirstCell, sought: SoughtHeads, start: tuple[int, float], rng: np.random.Generator
) -> Asking[RecoveredHeads]:
    d, length = len(cell.x), cell.seen.lengths.length
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0].T
    search = cell.search(sought, rng, turn)
    crossings = yield from search.crossings(*start)
    if not len(crossings.u):
        return (yield from search.without_crossings())
    values, u = yield from search.values(crossings)
    shorter = min(length / DOUBLED, _shorter(cell, u / length))

    def read(length: float, u: Array) -> Asking[tuple[TokenSearch, TokenHeads, Array]]:
        """Read the u_h at ``length``·x, where they are about u (H, d); and the logits measured."""
        there = yield from cell.at_length(length)
        search = there.search(sought, rng, turn)
        token, s = yield from search.base(values, u)
        return search, token, s

    longer = DOUBLED * shorter
    try:
        _, far, _ = yield from read(longer, u * longer / length)
    except CoincidentJumps:
        # w_h moves the logits too far
        first = min(length, shorter * LONGER_FIRST)
        _, there, _ = yield from read(first, u * first / length)
        w = there.seen.u - first * u / length
        _, far, _ = yield from read(longer, u * longer / length + w)
    w = far.seen.u - longer * u / length
    search, near, s = yield from read(shorter, u * shorter / length + w)
    directions = search.directions(near)[:-1]
    answers = WindowAnswers.none(near, directions)
    columns = yield from read_columns(answers, s, sought.rank, rng, HEADS.columns)
    search.refuse_vague(near, columns)
    oriented = yield from orient(near, rng)
    found = assembled(near, columns, directions, oriented, biases=False)
    return _with_query_biases(found, oriented, near, far)


def _with_query_biases(
    found: RecoveredHeads, oriented: OrientedHeads, near: TokenHeads, far: TokenHeads
) -> RecoveredHeads:
    """Divide u_h at ℓ·x into ℓ W_h x and w_h, by u_h at a longer token.

    ``found`` has all of u_h as W_h.
    """
    step = far.length - near.length
    share = near.length / step
    w = near.seen.u - share * (far.seen.u - near.seen.u)
    off = np.array(
        [[window.error * window.t for window in token.seen.windows] for token in (near, far)]
    )
    w_error, along = off.T @ [1 + share, share], off.sum(axis=0) / step
    model, count = found.model, len(oriented.index)
    turned, every = np.zeros((model.H, model.dim)), np.zeros((2, model.H))
    turned[:count] = np.array(oriented.sign)[:, None] * w[oriented.index]
    every[:, :count] = along[oriented.index], w_error[oriented.index]
    W = model.W - turned[:, :, None] * (near.b / near.length**2)
    errors = {**found.errors, "W": np.hypot(found.errors["W"], every[0]), "w": every[1]}
    return replace(found, model=MultiHead(W, model.v, turned, model.c), errors=errors)


def _shorter(cell: FirstCell, slopes: Array) -> float:
    """Return ℓ for heads whose u_h grow by about ``slopes`` (H, d) per unit of length."""
    hinges = cell.hinges
    size = np.linalg.norm(slopes, axis=1)
    length = BEYOND_BIASES * float(hinges.reach(cell.x[None])[0])
    most = max(LOGITS_ALLOWED, PER_ROOT * float(np.sqrt(hinges.dim)))
    for logits, one in ((most, np.median(size)), (LEAST_SHARE * most, np.min(size))):
        length = max(length, float(np.sqrt(logits / (cell.share * one))))
    return length


@dataclass(frozen=True, slots=True)
class CellLengths(TokenLengths):
    """Norms of tokens in a cone: offsets and steps up to ``share`` of the query token's."""

    share: float = 1.0

    @property
    def soft(self) -> bool:
        """Gates count as steps at the longest offsets: tokens are chosen so long that they are."""
        return False

    def far(self, length: float) -> float:
        """Return the norm of offsets at which gates are steps."""
        return self.share * length

    def longest(self, length: float, moved: float = 0.0) -> float:
        """Return the norm of the longest offsets."""
        return self.share * length - moved

    def step(self, length: float) -> float:
        """Return how far a query token may be moved: half of the room, the rest is for offsets."""
        return self.share * length / 2

    def turned(self, a: Array, b: Array) -> Array:
        """Leave offsets as they are: the cell holds both of a and −a."""
        return np.asarray(a)


def beside_residual(steps: Asking[T], r: Array) -> Asking[T]:
    """Let steps see answers less r·x_N, x_N being the last token of each sequence."""

    def less(asked: Round, answers: Answers) -> Answers:
        return [y - last_tokens(probes) @ r for probes, y in zip(asked, answers, strict=True)]

    return read_as(steps, less)


def last_tokens(probes: Probes) -> Array:
    """Return the last tokens of all sequences, (n, d)."""
    parts = [probes[i : i + AT_ONCE][:, -1] for i in range(0, len(probes), AT_ONCE)]
    return np.concatenate(parts) if parts else np.zeros((0, probes.dim))
