"""Proposition C.2: the head of one subspace, as a single head of d_h dimensions.

For tokens in U_h every other head answers x·v_g = 0, so head h answers alone: Theorem 4.1 in d_h
dimensions, d_h² queries beside those for v_h. W_h's rows may read what is in no subspace, the
complement, as well: d_h more queries for each of its dimensions.

Where U_h is off by K towards U_g, its tokens meet ‖K‖·‖v_g‖ of the other's values: a *leak*.
Whatever the other answers to it is no more than an error of that size would be; and it is far
less where the other's logits, small by ‖K‖ twice, are known to be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.compose import Asking, restricted
from unsoftmax.measure import logit_grid, offsets
from unsoftmax.measure.logit_grid import LogitGrid, free, measure
from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Array
from unsoftmax.solve.dense import solution_error

# Queries that may be asked again for each query token, out of range or imprecise.
AGAIN_PER_TOKEN = 2
# A query token of the complement all of whose logits are saturated is asked for again at 2¹⁰ times
# smaller ones.
SATURATED_OCTAVES = 10
# Leaks up to this share of a head's values are bounded to first order; above it only as errors of
# the answers.
SMALL_SHARE = 0.1
# Factor of the first-order bound that covers higher orders, for leaks below that share.
BEYOND_FIRST_ORDER = 1.5
# Rounds with query tokens of the complement: one, and again what is out of range.
ROUNDS_OF_COMPLEMENT = 2 + AGAIN_PER_TOKEN


@dataclass(frozen=True, slots=True)
class SubspaceHead:
    """One head, in all of R^d, with bounds on its errors."""

    W: Array
    v: Array
    W_most: float
    """Bound on ‖ΔW‖_F whatever other heads answer to what leaks to them."""
    W_beside: tuple[float, float]
    """The same where their scores are known: a bound, and what to add to it per ‖W_g‖."""
    v_error: float
    unbounded: tuple[str, ...]
    """Why a bound is infinite, a sentence each."""

    def W_error(self, others: float) -> float:
        """Bound ‖ΔW‖_F beside heads with ‖W_g‖ up to ``others``."""
        bound, more = self.W_beside
        if not np.isfinite(others):
            return self.W_most
        return min(self.W_most, bound + more * others)


@dataclass(frozen=True, slots=True)
class Complement:
    """What is in no subspace that was found."""

    basis: Array
    """Orthonormal columns (d, k): heads may read query tokens there, in W's rows."""
    v: Array
    """What of Σ v_h is there, in this basis."""
    has_values: bool
    """Whether that is more than nothing: heads with W = 0."""
    tilt: float = 0.0
    """How far this space is off: the largest part of a unit vector that belongs to heads."""
    W_error: float = 0.0
    """Bound on ‖W‖_F of heads that seem to have W = 0."""
    hidden: float = 0.0
    """A head with values up to this would not be seen."""

    def within(self, basis: Array, tilt: float) -> Complement:
        """Return the complement in a larger space of which it was found in a part."""
        return replace(self, basis=basis @ self.basis, tilt=self.tilt + tilt)


@dataclass(frozen=True, slots=True)
class HeadSubspace:
    """A subspace, and the values of its head."""

    basis: Array
    """Orthonormal columns (d, d_h)."""
    values: Values
    """v_h in this basis; its precision counts the leak as rounding."""
    leak: float
    """How much of other heads' values its tokens may meet, per norm of a token."""
    tilt: float
    """How far the subspace is off: the largest part of a unit vector that belongs to others."""
    unit: float
    """Roundoff of the answers without the leak."""
    outside: float = 0.0
    """Bound on the part of W_h that leads out of the subspace, where that was found."""

    @classmethod
    def of(
        cls, basis: Array, total: Values, leak: float, tilt: float, unseen: float
    ) -> HeadSubspace:
        """Take from Σ v_g what is in the subspace, which is v_h.

        A(b) may lead out of it by ``unseen``: A(b)v_h/‖v_h‖² = W_h b as far as that is outside.
        """
        own = replace(total, v=basis.T @ total.v, v_error=np.abs(basis).T @ total.v_error)
        place = cls.among(basis, own, total, leak, tilt)
        return replace(place, outside=unseen / max(place.values.norm, 1e-300))

    @classmethod
    def among(
        cls, basis: Array, own: Values, total: Values, leak: float, tilt: float
    ) -> HeadSubspace:
        """Count what other heads answer to their part of the probes as if it were rounding.

        ``own`` is v_h in the basis, ``total`` is Σ v_g.
        """
        norm = max(own.norm, 1e-300)
        precision = total.precision
        leak = leak + KAPPA * precision.unit * total.norm
        leaking = replace(precision, unit=precision.unit + leak / norm / KAPPA)
        unit = precision.unit * (1 + total.norm / norm)
        return cls(basis, replace(own, precision=leaking), leak, tilt, unit)

    def within(self, basis: Array, tilt: float) -> HeadSubspace:
        """Return the subspace in a larger space of which it was found in a part."""
        return replace(self, basis=basis @ self.basis, tilt=self.tilt + tilt)

    def learn(self, complement: Complement, rng: np.random.Generator) -> Asking[SubspaceHead]:
        """Learn W_h by Theorem 4.1: offsets in the subspace, query tokens in the complement too."""
        Z = offsets.balanced(self.values.v, rng)
        B = np.hstack([self.basis, complement.basis])
        blocks = yield from restricted(self._ask(Z, complement), B)
        W = Z.solve(np.concatenate([block.measured() for block in blocks]))
        tilts = self.tilt + KAPPA * UNIT * len(self.basis), complement.tilt
        measured = _BlockReadings(self, Z, blocks, W, tilts)
        exact = replace(self.values.precision, unit=self.unit)
        first, second = measured.leaked()
        return SubspaceHead(
            self.basis @ W @ B.T,
            self.basis @ self.values.v,
            measured.error(self.values.precision, 0.0),
            (measured.error(exact, first), second / Z.smallest),
            float(np.linalg.norm(self.values.v_error)) + self.leak + tilts[0] * self.values.norm,
            measured.unbounded(self.values.precision),
        )

    def _ask(self, Z: Offsets, complement: Complement) -> Asking[list[LogitGrid]]:
        """Ask, in coordinates of subspace and complement, with query tokens of either."""
        own, k, beyond = self.values, len(self.values.v), len(complement.v)
        v_error = np.append(own.v_error, np.full(beyond, np.max(own.v_error)))
        values = replace(own, v=np.append(own.v, complement.v), v_error=v_error)
        rows, tokens = np.hstack([Z.made(), np.zeros((k, beyond))]), np.eye(k + beyond)
        spare = AGAIN_PER_TOKEN * k

        def grid(tokens: Array) -> LogitGrid:
            return LogitGrid(rows, tokens, values, free, "W")

        inside = yield from measure(grid(tokens[:k]), spare)
        if not beyond:
            return [inside]
        # at the scale of the others: W b is 0 more often than not, and no scale would show it
        octave = int(np.median(np.log2(inside.scale)))
        outside = grid(tokens[k:])
        yield from _ask_at(outside, octave, spare * beyond)
        return [inside, outside]


@dataclass(frozen=True, slots=True)
class _BlockReadings:
    """What was measured of a head, and what its W may be off by."""

    place: HeadSubspace
    Z: Offsets
    blocks: list[LogitGrid]
    """Query tokens of the subspace, and those of the complement where there are any."""
    W: Array
    """(d_h, d_h + k) in coordinates of the subspace and the complement."""
    tilts: tuple[float, float]
    """How far subspace and complement are off."""

    def unbounded(self, precision: Precision) -> tuple[str, ...]:
        """Say how many logits have no bound for answers of a precision."""
        return tuple(
            line
            for block in self.blocks
            for line in block.unbounded(replace(block.values, precision=precision))
        )

    def error(self, precision: Precision, leaked: float) -> float:
        """Bound ‖ΔW‖_F for answers of a precision, beside a leak in the logits."""
        place, W, k = self.place, self.W, len(self.W)
        no_bias = np.zeros(W.shape[1])
        each = [
            block.reading(
                replace(block.values, precision=precision), lengths, no_bias, self.Z.largest
            ).total
            for block, lengths in zip(
                self.blocks, np.split(np.linalg.norm(W, axis=0), [k]), strict=False
            )
        ]
        size, beyond = float(np.linalg.norm(W)), float(np.linalg.norm(W[:, k:]))
        # the basis is off on both sides of W, and so are offsets
        turned = 3 * self.tilts[0] * size + 2 * self.tilts[1] * beyond + place.outside
        return solution_error(self.Z, float(np.linalg.norm([*each, leaked])), W) + turned

    def leaked(self) -> tuple[float, float]:
        """Bound what other heads add to the measurements, in two parts.

        A tilt of the subspace lets the share r of z·v̂ be another head's. To first order that head
        weighs its two tokens equally: the answer is read as p̂ = (1 − r)·p + r/2, whence
        tanh(t̂/2) = (1 − r)·tanh(t/2) and |t̂ − t| ≤ r·sinh|t|: the first part. Its own logit t_g
        moves p̂ by r·t_g/4, and t_g itself is small, since token and offset both meet W_g through
        tilts alone: the second part, per ‖W_g‖.
        """
        first = second = 0.0
        own, leak = self.tilts[0], self.place.leak
        for block, tilt in zip(self.blocks, self.tilts, strict=False):
            gates = block.gates()
            share = np.broadcast_to(leak * block.a.norm / np.abs(block.a.value), block.shape)
            if not np.max(share, initial=0.0) <= SMALL_SHARE:
                return np.inf, np.inf
            with np.errstate(over="ignore"):
                first += float(np.sum((share * np.sinh(np.abs(gates.logit)) / block.scale) ** 2))
            others = share * gates.slope / 4 * block.a.norm * own * (own + tilt)
            second += float(np.sum(others**2))
        return BEYOND_FIRST_ORDER * np.sqrt(first), np.sqrt(second)


def _ask_at(block: LogitGrid, octave: int, spare: int) -> Asking[None]:
    """Ask for a whole block at one scale, and again what is out of range there."""
    scales = np.full(block.shape[0], octave)
    yield from block.ask(slice(None), slice(None), scales)
    for _ in range(AGAIN_PER_TOKEN):
        gates = block.gates()
        saturated = ~np.any(gates.margin > logit_grid.TRUSTED * gates.p_error, axis=1)
        j, i = np.nonzero(np.broadcast_to(saturated[:, None], block.shape))
        if not len(j):
            break
        scales[saturated] -= SATURATED_OCTAVES
        yield from block.ask_some(j, i, scales[j], "again")
    yield from block.retry(scales, spare)
