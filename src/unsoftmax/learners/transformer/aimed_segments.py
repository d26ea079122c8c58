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

from unsoftmax.learners.transformer.learned_network import LearnedNetwork, SegmentPieces
from unsoftmax.measure.reflections import HouseholderFrames
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array, Design, Indices, LazyRows

# Lengths of offsets that are tried, as shares of the longest one, from long to short. More of them:
# more segments are steep, and choosing takes longer.
LENGTHS = (*(2.0**-k for k in range(11)), 1e-4)
# c of the offsets c·h + Q ε. Larger: steeper, and the triangular equations for W x + w are worse
# conditioned, by about c√d.
TILTS = (1.0, 2.0, 4.0)
# Ratio of the smallest slope to the mean one at which a segment is taken at once: an answer's error
# counts up to 1/STEEP times.
STEEP = 0.25
# The same at which a segment is not used at all: an answer's error would count 50 times.
FLAT = 0.02
# Lengths of the tokens that are tried instead, as multiples of β, where ĝ is flat or turns: a
# network that is constant near 0 bends only farther out, and of one neuron a line that is nearly
# orthogonal to it (cosines of 3e-5 were met in 300 lines) reaches the active side late.
OTHER_LENGTHS = (4.0, 0.25, *(4.0**k for k in range(2, 10)))
# Other tokens (side, length) on a token's line: the other side first, then the lengths.
ELSEWHERE = ((-1.0, 1.0), *product((1.0, -1.0), OTHER_LENGTHS))


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

    @property
    def usable(self) -> bool:
        """Whether ĝ is monotone, and not nearly flat, along every segment."""
        return not np.any(self.steep <= FLAT)

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


def aim(learned: LearnedNetwork, lines: TokenLines, basis: Array | None) -> AimedSegments:
    """Choose segments from the tokens ±β b, or from others on their lines where ĝ is flat there.

    Parameters
    ----------
    learned : LearnedNetwork
        The network.
    lines : TokenLines
        Unit vectors b, lengths β > 0 and those of the longest offsets.
    basis : ndarray (d, r), optional
        Q; all of R^d where None.
    """
    lines = _towards_steeper_side(learned, lines)
    aimed = aim_from(learned, lines, basis)
    for side, longer in ELSEWHERE:
        smallest = aimed.steepest()
        poor = np.flatnonzero(smallest <= STEEP)
        if not len(poor):
            break
        other_lines = lines.pick(poor).scaled(side * longer, 1 / longer)
        other = aim_from(learned, other_lines, basis)
        mine = np.flatnonzero(other.steepest() > smallest[poor])
        if len(mine):
            aimed = aimed.replaced(poor[mine], other, mine)
    return aimed


def aim_from(learned: LearnedNetwork, lines: TokenLines, basis: Array | None) -> AimedSegments:
    """Choose segments from the tokens β b themselves; see `aim`."""
    x = lines.x
    offsets = TiltedOffsets.every(_unit_gradients(learned, x), basis)
    count, step = len(offsets.token), learned.rows_at_once
    chosen = []
    for start in range(0, count, step):
        part = offsets.pick(np.arange(start, min(start + step, count)))
        chosen.append(_steep_segments(learned, x, part, lines.reach))
    tilt, sign, alpha, steep = (np.concatenate(parts) for parts in zip(*chosen, strict=True))
    return AimedSegments(x, lines.beta, replace(offsets, tilt=tilt, sign=sign), alpha, steep)


def _steep_segments(
    learned: LearnedNetwork, x: Array, offsets: TiltedOffsets, reach: Array
) -> tuple[Array, Array, Array, Array]:
    """Return tilt, sign, length and steepness of each offset: the first that is steep enough."""
    count = len(offsets.token)
    longest = reach[offsets.token]
    tilt, sign, alpha = np.ones(count), np.ones(count), longest.copy()
    steep = np.full(count, -np.inf)
    left = np.arange(count)
    for share, c, s in product(LENGTHS, TILTS, (1.0, -1.0)):
        ones = np.ones(len(left))
        tried = replace(offsets.pick(left), tilt=c * ones, sign=s * ones)
        length = share * longest[left]
        a, origin = length[:, None] * tried.made(), x[tried.token]
        pieces = SegmentPieces.of(learned.network, a, origin)
        hidden = learned.difference_error(origin, origin + a)
        found = pieces.steepness(hidden)
        better = found > steep[left]
        index = left[better]
        tilt[index], sign[index], alpha[index] = c, s, length[better]
        steep[index] = found[better]
        left = left[steep[left] <= STEEP]
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


# -- Offsets along which a network is steep, and the vector that logits along them determine.
#
# The unit offsets of query token x with gradient h = ∇g(x)/‖∇g(x)‖ are
#
#     a_l = s_l (c_l·h + Q ε_l)/‖c_l·h + Q ε_l‖,      s_l = ±1,  c_l > 0,  l = 0 … r − 1,
#
# Q an orthonormal basis of the space that u = W x + w is known to lie in (all of R^d at first),
# ε_0 along Qᵀh, ε_l orthogonal to it and to each other. All of them lean towards h, so g is steep
# along them. With t_l = a_l·u·s_l·‖c_l·h + Q ε_l‖ and y_l = ε_l·Qᵀu, the equations
#
#     t_0 = (1 + c_0‖Qᵀh‖)·y_0,      t_l = y_l + c_l‖Qᵀh‖·y_0
#
# are triangular: r logits give Qᵀu by substitution.


@dataclass(frozen=True, slots=True)
class TiltedOffsets(LazyRows):
    """Unit offsets s·(c·h + Q ε_l)/‖·‖ of some query tokens, made when they are asked for."""

    h: Array
    """Unit gradients (k, d), one per query token."""
    basis: Array | None
    """Q, (d, r); the identity where None."""
    token: Indices
    """Whose offset each row is, (n,)."""
    axis: Indices
    """l of each row, (n,)."""
    tilt: Array
    """c of each row, (n,)."""
    sign: Array
    """s of each row, (n,)."""

    @classmethod
    def every(cls, h: Array, basis: Array | None) -> TiltedOffsets:
        """Return all r offsets of every token, by token, then by axis, with s = c = 1."""
        r = h.shape[1] if basis is None else basis.shape[1]
        token, axis = np.repeat(np.arange(len(h)), r), np.tile(np.arange(r), len(h))
        return cls(h, basis, token, axis, np.ones(len(token)), np.ones(len(token)))

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.token), self.h.shape[1]

    @property
    def tokens_and_axes(self) -> tuple[int, int]:
        """Number k of query tokens, and r of offsets of each."""
        return len(self.h), self.h.shape[1] if self.basis is None else self.basis.shape[1]

    def pick(self, index: Indices) -> TiltedOffsets:  # noqa: D102
        parts = {name: getattr(self, name)[index] for name in ("token", "axis", "tilt", "sign")}
        return replace(self, **parts)

    def design(self) -> Design:  # noqa: D102
        design: Design = {"h": self.h, "token": self.token, "l": self.axis}
        design |= {"c": self.tilt, "sign": self.sign}
        return design if self.basis is None else {**design, "basis": self.basis}

    def __getitem__(self, index: Indices) -> Array:
        token = self.token[index]
        rows = self._frames().axes(token, self.axis[index])
        if self.basis is not None:
            rows = rows @ self.basis.T
        rows += self.tilt[index, None] * self.h[token]
        return np.asarray(rows * (self.sign[index] / self._norms(index))[:, None])

    def made(self) -> Array:
        """Make all rows at once."""
        return self[np.arange(len(self.token))]

    def solve(self, t: Array) -> Array:
        """Return Qᵀu of every token, (k, r), from its logits per unit offset, a·u, (k·r,)."""
        k, r = self.tokens_and_axes
        frames, place = self._frames(), (self.token, self.axis)
        norms, tilt, y = np.empty((3, k, r))
        norms[place], tilt[place] = self._norms(np.arange(len(self.token))), self.tilt
        y[place] = self.sign * t
        y = norms * y
        y[:, 0] /= 1 + tilt[:, 0] * frames.size
        y[:, 1:] -= tilt[:, 1:] * frames.size[:, None] * y[:, :1]
        return frames.combine(y)

    def _frames(self) -> HouseholderFrames:
        """Return ε, for every query token."""
        return HouseholderFrames.of(self.h if self.basis is None else self.h @ self.basis)

    def _norms(self, index: Indices) -> Array:
        """Return ‖c·h + Q ε_l‖."""
        tilt = self.tilt[index]
        along = np.where(self.axis[index] == 0, self._frames().size[self.token[index]], 0.0)
        return np.asarray(np.sqrt(tilt**2 + 1 + 2 * tilt * along))
