"""Which segments to ask along: where the learned network can be inverted well.

For every query token x = ±β b, and every axis of its `TiltedOffsets`, length, sign and tilt of
the offset are chosen, without a query, such that ĝ is monotone and steep along [x, x + α a]: the
first choice that is steep enough, from long to short (long offsets move logits, and answers,
most), and the steepest of all where none is. Where ĝ is flat or turns around a token, tokens of
other lengths on the same line are tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.measure.through_network.segments import SegmentPieces
from unsoftmax.measure.through_network.tilted_offsets import TiltedOffsets
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array, Indices


@dataclass(frozen=True, slots=True)
class AimTuning:
    """How segments are chosen, without a query."""

    lengths: tuple[float, ...] = (*(2.0**-k for k in range(11)), 1e-4)
    """Lengths of offsets that are tried, as shares of the longest one, from long to short. More
    of them: more segments are steep, and choosing takes longer."""
    tilts: tuple[float, ...] = (1.0, 2.0, 4.0)
    """c of the offsets c·h + Q ε. Larger: steeper, and the triangular equations for W x + w are
    worse conditioned, by about c√d."""
    steep: float = 0.25
    """Ratio of the smallest slope to the mean one at which a segment is taken at once: an answer's
    error counts up to 1/steep times."""
    flat: float = 0.02
    """The same at which a segment is not used at all: an answer's error would count 50 times."""
    other_lengths: tuple[float, ...] = (4.0, 0.25, *(4.0**k for k in range(2, 10)))
    """Lengths of the tokens that are tried instead, as multiples of β, where ĝ is flat or turns:
    a network that is constant near 0 bends only farther out, and of one neuron a line that is
    nearly orthogonal to it (cosines of 3e-5 were met in 300 lines) reaches the active side late."""
    error_share: float = 0.01
    """Largest share of a segment's rise that the network's error may be: two digits of σ."""
    numbers_at_once: int = 2**21
    """Numbers in an array while segments are cut (16 MB): bounds memory, changes nothing else."""

    @property
    def elsewhere(self) -> tuple[tuple[float, float], ...]:
        """Other tokens (side, length) on a token's line: the other side first, then the lengths."""
        return ((-1.0, 1.0), *product((1.0, -1.0), self.other_lengths))


@dataclass(frozen=True, slots=True)
class TokenLines:
    """Lines that query tokens are taken from.

    Attributes
    ----------
    b : ndarray (k, d)
        Unit vectors.
    beta : ndarray (k,)
        Signed lengths of the tokens x = β b.
    reach : ndarray (k,)
        Lengths of the longest offsets.
    """

    b: Array
    beta: Array
    reach: Array

    @classmethod
    def alike(cls, b: Array, beta: float, reach: float) -> TokenLines:
        """Return lines whose tokens, and whose offsets, all have one length."""
        ones = np.ones(len(b))
        return cls(b, beta * ones, reach * ones)

    @property
    def x(self) -> Array:
        """The query tokens, (k, d)."""
        return np.asarray(self.beta[:, None] * self.b)

    def pick(self, index: Indices | slice) -> TokenLines:
        """Return some of the lines."""
        return TokenLines(self.b[index], self.beta[index], self.reach[index])

    def scaled(self, token: float | Array, offset: float | Array) -> TokenLines:
        """Return the lines with tokens, and offsets, so many times as long."""
        return TokenLines(self.b, token * self.beta, offset * self.reach)


@dataclass(frozen=True, slots=True)
class AimedSegments:
    """Segments [x, x + α a]: query tokens with all their offsets."""

    x: Array
    """The query tokens (k, d) as they are asked."""
    beta: Array
    """Their signed lengths (k,)."""
    offsets: TiltedOffsets
    """Ordered by token, then by axis."""
    alpha: Array
    """Lengths of the offsets, (k·r,)."""
    steep: Array
    """Ratio of the smallest slope to the mean one along each, (k·r,)."""

    def usable(self, tuning: AimTuning) -> bool:
        """Whether ĝ is monotone, and not nearly flat, along every segment."""
        return not np.any(self.steep <= tuning.flat)

    def rows(self, tokens: Indices, axes: slice) -> Indices:
        """Return the row numbers of some axes of some tokens."""
        k, r = self.offsets.tokens_and_axes
        return np.arange(k * r).reshape(k, r)[tokens, axes].ravel()

    def steepest(self) -> Array:
        """Return the steepness of every token's poorest segment, (k,)."""
        return np.asarray(self.steep.reshape(self.offsets.tokens_and_axes).min(axis=1))

    def vectors(self, rows: Indices) -> tuple[Array, Array]:
        """Return where some segments begin, and their offsets: x and α a, (n, d) each."""
        return self.x[self.offsets.token[rows]], self.alpha[rows, None] * self.offsets[rows]

    def pieces(self, network: ReluNetwork, rows: Indices) -> SegmentPieces:
        """Cut a network along some segments."""
        x, a = self.vectors(rows)
        return SegmentPieces.of(network, a, x)

    def replaced(self, index: Indices, other: AimedSegments, mine: Indices) -> AimedSegments:
        """Return these with tokens ``index`` replaced by tokens ``mine`` of others."""
        rows, its = self.rows(index, slice(None)), other.rows(mine, slice(None))

        def joined(old: Array, new: Array, at: Indices, of: Indices) -> Array:
            whole = old.copy()
            whole[at] = new[of]
            return whole

        offsets = replace(
            self.offsets,
            h=joined(self.offsets.h, other.offsets.h, index, mine),
            tilt=joined(self.offsets.tilt, other.offsets.tilt, rows, its),
            sign=joined(self.offsets.sign, other.offsets.sign, rows, its),
        )
        return AimedSegments(
            joined(self.x, other.x, index, mine),
            joined(self.beta, other.beta, index, mine),
            offsets,
            joined(self.alpha, other.alpha, rows, its),
            joined(self.steep, other.steep, rows, its),
        )


def aim(
    learned: LearnedNetwork, lines: TokenLines, basis: Array | None, tuning: AimTuning
) -> AimedSegments:
    """Choose segments from the tokens ±β b, or from others on their lines where ĝ is flat there.

    Parameters
    ----------
    learned : LearnedNetwork
        The network.
    lines : TokenLines
        Unit vectors b, lengths β > 0 and those of the longest offsets.
    basis : ndarray (d, r), optional
        Q; all of R^d where None.
    tuning : AimTuning
        Lengths, tilts and thresholds.
    """
    lines = _towards_steeper_side(learned, lines)
    aimed = aim_from(learned, lines, basis, tuning)
    for side, longer in tuning.elsewhere:
        smallest = aimed.steepest()
        poor = np.flatnonzero(smallest <= tuning.steep)
        if not len(poor):
            break
        other_lines = lines.pick(poor).scaled(side * longer, 1 / longer)
        other = aim_from(learned, other_lines, basis, tuning)
        mine = np.flatnonzero(other.steepest() > smallest[poor])
        if len(mine):
            aimed = aimed.replaced(poor[mine], other, mine)
    return aimed


def aim_from(
    learned: LearnedNetwork, lines: TokenLines, basis: Array | None, tuning: AimTuning
) -> AimedSegments:
    """Choose segments from the tokens β b themselves; see `aim`."""
    x = lines.x
    offsets = TiltedOffsets.every(_unit_gradients(learned, x), basis)
    count, step = len(offsets.token), learned.rows_at_once(tuning.numbers_at_once)
    chosen = []
    for start in range(0, count, step):
        part = offsets.pick(np.arange(start, min(start + step, count)))
        chosen.append(_steep_segments(learned, x, part, lines.reach, tuning))
    tilt, sign, alpha, steep = (np.concatenate(parts) for parts in zip(*chosen, strict=True))
    return AimedSegments(x, lines.beta, replace(offsets, tilt=tilt, sign=sign), alpha, steep)


def _steep_segments(
    learned: LearnedNetwork, x: Array, offsets: TiltedOffsets, reach: Array, tuning: AimTuning
) -> tuple[Array, Array, Array, Array]:
    """Return tilt, sign, length and steepness of each offset: the first that is steep enough."""
    count = len(offsets.token)
    longest = reach[offsets.token]
    tilt, sign, alpha = np.ones(count), np.ones(count), longest.copy()
    steep = np.full(count, -np.inf)
    left = np.arange(count)
    for share, c, s in product(tuning.lengths, tuning.tilts, (1.0, -1.0)):
        ones = np.ones(len(left))
        tried = replace(offsets.pick(left), tilt=c * ones, sign=s * ones)
        length = share * longest[left]
        a, origin = length[:, None] * tried.made(), x[tried.token]
        pieces = SegmentPieces.of(learned.network, a, origin)
        hidden = learned.difference_error(origin, origin + a)
        found = pieces.steepness(hidden, tuning.error_share)
        better = found > steep[left]
        index = left[better]
        tilt[index], sign[index], alpha[index] = c, s, length[better]
        steep[index] = found[better]
        left = left[steep[left] <= tuning.steep]
        if not len(left):
            break
    return tilt, sign, alpha, steep


def _unit_gradients(learned: LearnedNetwork, x: Array) -> Array:
    """Return ∇ĝ/‖∇ĝ‖ at points (k, d); e_0 on a flat piece, which any direction may lead out of."""
    h = learned.gradients(x)
    norm = np.linalg.norm(h, axis=1, keepdims=True)
    h = np.where(norm > 0, h / np.where(norm > 0, norm, 1.0), 0.0)
    h[norm[:, 0] == 0, 0] = 1.0
    return h


def _towards_steeper_side(learned: LearnedNetwork, lines: TokenLines) -> TokenLines:
    """Choose between β and −β: ĝ says more where its gradient is larger."""
    plus, minus = (
        np.linalg.norm(learned.gradients(side * lines.x), axis=1) for side in (1.0, -1.0)
    )
    return lines.scaled(np.where(plus >= minus, 1.0, -1.0), 1.0)
