"""How many heads are before a LayerNorm, and P_w M_h a of one offset a; 24 to 56.

Two tokens [b+a; b], so long that every gate is 0 or 1, are answered with

    μ w = K(b) + Σ_h g_h m_h,   m_h = s P_w M_h a,   g_h ∈ {0, 1}.

The query tokens b are of a plane, so that K(b) is in T = span(K of the plane). Outside of T, H is
the rank of the answers, and their null space Z gives every μ: W Z = K diag(1/μ) Z. The sum of
all m_h is B a − σP_w a, which is in their span for one σ alone: its size is s, its sign that of g.
Gates are the 0/1 columns in the span of the rows {Σ m_h, sums}, the first entry 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.norm_behind import SingleRound
from unsoftmax.learners.attention_layer.readout import DirectionMap
from unsoftmax.learners.attention_layer.value_answers import GateAnswers
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.normalised import scales_by_null_space
from unsoftmax.probes import Array, Indices, Pairs
from unsoftmax.solve.gate_columns import GateColumnTuning, gate_columns

# Entries of offsets and query tokens, about: gates are 0 or 1.
_LENGTH = 2.0**18
# Query tokens are of a plane of so many dimensions, or a third of d. More: gates of heads differ
# more; fewer: more of an answer is outside of what the residual puts there.
_PLANE = 64
# Largest coefficient in the plane: query tokens are exactly of it.
_COEFFICIENT = 7
# Gates from sums of them: 2^(H − 1) columns are tried for H heads.
_COLUMNS = GateColumnTuning(most=18)
# Singular values below so many times the noise are noise.
_RANK = 30.0
# A share of the residual below this is none.
_RESIDUAL = 1e-6
# What the residual may miss the heads' answers by where RMSNorm's scale is of one sign: 1e-4
# behind float32; one entry of another sign is 2/√d.
_SAME_SIGNS = 1e-2


@dataclass(frozen=True)
class PatternAnswers:
    """All answers that K and γ are read off: of query tokens of a plane beside one offset.

    Attributes
    ----------
    gates : GateAnswers
        They tell a size and a sign; no gates are in it before they are known.
    plane : ndarray, shape (d, r)
    singles : SingleRound
        Answers of single tokens.
    """

    gates: GateAnswers
    plane: Array
    singles: SingleRound

    def layer(self) -> DirectionMap:
        """Return K in true units."""
        return self._layer

    @cached_property
    def _layer(self) -> DirectionMap:
        return self.read(self.singles.solved())[0]

    def read(self, frame: DirectionMap) -> tuple[DirectionMap, Array]:
        """Read K in true units and all gates, as `find_heads` asks until it can."""
        asked, gates = self.gates, self.gates.gates if len(self.gates.gates) else None
        known = frame.known(asked.b)
        w = frame.directions(asked.y)
        inside = _orthonormal(np.column_stack([frame.M @ self.plane, frame.c]), frame.noise)
        outside = w - w @ inside @ inside.T
        _, s, right = np.linalg.svd(outside.T, full_matrices=True)
        noise = frame.noise * np.sqrt(len(known) * frame.dim)
        H = int(np.sum(s > _RANK * noise)) if gates is None else gates.shape[1]
        if H == 0:
            raise ModelMismatch("No second token changes an answer: there are no heads.")
        room = len(frame.M) - inside.shape[1]
        if room <= H:
            raise too_few(frame)
        if min(_COLUMNS.most, len(known) - 2) < H:
            raise ModelMismatch(f"{H} or more heads: more than {_COLUMNS.most} are not told apart.")
        null = right[H:].T
        # an answer that no combination of others explains has a row of 0 there: its scale is free
        told = np.linalg.norm(null, axis=1) * np.linalg.norm(w, axis=1)
        if not np.all(told > _RANK * noise):
            raise ModelMismatch("A query token opens gates that no other one asked opens alike.")
        scales = scales_by_null_space(inside.T @ w.T, inside.T @ known.T, null)
        if not np.all(scales > 0):
            raise ModelMismatch("Two-token answers are no sums of gates that are 0 or 1.")
        sums = w / scales[:, None] - known
        sigma, rows = _with_total(frame, asked.a, sums, H)
        if gates is None:
            # those of the first row are all 1
            gates = gate_columns(np.linalg.svd(rows, full_matrices=False)[0][:, :H], _COLUMNS)[1:]
            if gates.shape[1] != H:
                raise ModelMismatch(
                    f"Two-token answers are sums of {H} gates, of which {gates.shape[1]} are "
                    "found: some are not 0 or 1 for the longest tokens, or something else is added "
                    "to the heads."
                )
        return frame.scaled(sigma), gates

    def answered(self, fresh: Array) -> Asking[PatternAnswers]:
        """Ask more query tokens."""
        n, known = len(fresh), self.gates
        first: Indices = np.zeros(n, dtype=np.intp)
        beside = known.a[None], fresh, first, np.arange(n), np.ones(n), np.ones(n)
        [y] = yield [Pairs(*beside, phase="heads", purpose="data")]
        b, y = np.vstack([known.b, fresh]), np.vstack([known.y, y])
        return replace(self, gates=replace(known, b=b, y=y))

    def combined(self, count: int, rng: np.random.Generator) -> Array:
        """Draw query tokens of the plane."""
        shape = (count, self.plane.shape[1])
        coefficients = rng.integers(-_COEFFICIENT, _COEFFICIENT + 1, shape)
        coefficients[:, 0] = np.where(coefficients[:, 0] == 0, 1, coefficients[:, 0])
        return np.asarray(coefficients @ self.plane.T)


def find_heads(singles: SingleRound, rng: np.random.Generator) -> Asking[PatternAnswers]:
    """Ask until there are exactly H patterns of gates.

    Raises
    ------
    NotIdentifiable
        There are too few dimensions.
    ModelMismatch
        Gates are not 0 or 1.
    """
    failure, frame = None, singles.solved()
    for longer in limits.PLANE_LONGER:
        asked = _drawn(singles, frame.dim, longer, rng)
        fresh = asked.combined(limits.PLANE_QUERIES, rng)
        for _ in range(limits.PLANE_ROUNDS):
            asked = yield from asked.answered(fresh)
            try:
                gates = replace(asked.gates, gates=asked.read(frame)[1])
                return replace(asked, gates=gates)
            except ModelMismatch as error:
                failure, fresh = error, asked.combined(limits.PLANE_MORE, rng)
    assert failure is not None
    raise failure


def too_few(frame: DirectionMap) -> NotIdentifiable:
    """Say that answers have too few numbers for the heads there are."""
    return NotIdentifiable(
        f"{frame.dim} dimensions are too few behind a LayerNorm for this number of heads: an "
        f"answer gives only {frame.dim - 1} numbers, too few to tell heads apart.",
        determined={"shift": frame.norm.shift, "scale": np.abs(1 / frame.norm.gain)},
    )


def _with_total(frame: DirectionMap, offset: Array, sums: Array, H: int) -> tuple[float, Array]:
    """Find σ; return it with Σ m_h above the rows Σ g_h m_h."""
    span = np.linalg.svd(sums.T, full_matrices=False)[0][:, :H]
    own, residual = frame.M @ offset, frame.norm.projection @ offset
    own_out, residual_out = own - span @ (span.T @ own), residual - span @ (span.T @ residual)
    sigma = float(own_out @ residual_out / (residual_out @ residual_out))
    if abs(sigma) < _RESIDUAL:
        raise NotIdentifiable(
            "No residual connection is seen: without one, the sign and the size of all M_h and c "
            "behind a LayerNorm or RMSNorm are not determined.",
            determined={"shift": frame.norm.shift},
        )
    apart = float(np.linalg.norm(own_out - sigma * residual_out) / np.linalg.norm(own_out))
    if not frame.norm.takes_mean and apart > _SAME_SIGNS:
        raise NotIdentifiable(
            "The scale of the RMSNorm behind the layer seems to have entries of both signs: "
            "answers show only their sizes, and signs are not searched for.",
            determined={"shift": frame.norm.shift, "size": 1 / frame.norm.gain},
        )
    return sigma, np.vstack([own - sigma * residual, sums])


def _drawn(
    singles: SingleRound, dim: int, longer: float, rng: np.random.Generator
) -> PatternAnswers:
    """Draw an offset and a plane of query tokens, on one coarse grid."""
    # along a line the scales of answers with open gates are known by c alone
    r = max(2 if dim > limits.PLANE_FEW else 1, min(_PLANE, (dim - 4) // 3))
    most = _COEFFICIENT
    plane = rng.integers(-most, most + 1, (dim, r)).astype(np.float64)
    size = most * (most + 1) / 3 * np.sqrt(r)  # rms of an entry of a query token
    unit = longer * 2.0 ** np.floor(np.log2(_LENGTH / size))
    offset = np.round(size * rng.standard_normal(dim)) * unit
    none = np.zeros((0, dim))
    return PatternAnswers(GateAnswers(offset, none, none, none), unit * plane, singles)


def _orthonormal(columns: Array, noise: float) -> Array:
    """Return a basis of the span of columns, those that are 0 left out."""
    columns = columns[:, np.linalg.norm(columns, axis=0) > 0]
    columns = columns / np.linalg.norm(columns, axis=0)
    left, s, _ = scipy.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, s > noise * np.sqrt(len(columns)) * s[0]])
