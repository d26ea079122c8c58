"""A subspace, the head that lives in it, and what is in no subspace.

For tokens in U_h every other head answers x·v_g = 0, so head h answers alone: Theorem 4.1 in d_h
dimensions, with query tokens from what is in no subspace as well, which W_h's rows may read. Where
U_h is off by K towards U_g, the tokens meet ‖K‖·‖v_g‖ of the other's values: a leak. Whatever
the other answers there it is no more than rounding of that size would be; and it is far less
where its logits, small by ‖K‖ twice, are.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.compose import restricted
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_grid import Block, measure
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.measure.scales import free
from unsoftmax.measure.two_tokens import Values
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.solve.dense import solution_error

AGAIN_PER_TOKEN = 2
# A query token all of whose logits are saturated is asked for at 10³ times smaller ones.
_SATURATED_STEP = 10
# Leaks of up to this share of a head's values are bounded to first order, times what is beyond it.
_SMALL_SHARE, _BEYOND_FIRST_ORDER = 0.1, 1.5


@dataclass(frozen=True, slots=True)
class Head:
    """One head, in all of R^d, with bounds on its errors."""

    W: Array
    v: Array
    W_most: float
    """Bound on ‖ΔW‖_F whatever other heads answer to what leaks to them."""
    W_beside: tuple[float, float]
    """The same where their scores are known: a bound, and what to add to it per ‖W_g‖."""
    v_error: float
    unbounded: tuple[str, ...]

    def W_error(self, others: float) -> float:
        """Bound ‖ΔW‖_F beside heads with ‖W_g‖ up to ``others``."""
        bound, more = self.W_beside
        if not np.isfinite(others):
            return self.W_most
        return min(self.W_most, bound + more * others)


@dataclass(frozen=True, slots=True)
class Rest:
    """What is in no subspace that was found."""

    basis: Array
    """Orthonormal columns (d, k): heads may read query tokens there, in W's rows."""
    v: Array
    """What of Σ v_h is there, in this basis."""
    weighs: bool
    """Whether that is more than nothing: heads with W = 0."""
    turned: float = 0.0
    """How far this space is off."""
    W_error: float = 0.0
    """What the W of heads that seem to have none may be."""
    hidden: float = 0.0
    """A head with values up to this would not be seen."""


@dataclass(frozen=True, slots=True)
class Place:
    """A subspace, and the values of its head."""

    basis: Array
    """Orthonormal columns (d, d_h)."""
    values: Values
    """v_h in this basis."""
    leak: float
    """How much of other heads' values its tokens may meet, as a share of the tokens' norm."""
    turned: float
    """How far the subspace is off: the largest part of a unit vector that belongs to others."""
    unit: float
    """Roundoff of the answers without the leak."""
    outside: float = 0.0
    """What of W_h may lead out of the subspace, where that was found."""

    @classmethod
    def of(cls, basis: Array, values: Values, leak: float, turned: float, unseen: float) -> Place:
        """Take from Σ v_g what is in the subspace, which is v_h.

        A(b) may lead out of it by ``unseen``: A(b)v_h/‖v_h‖² = W_h b as far as that is outside.
        """
        v_error = np.abs(basis).T @ values.v_error
        place = cls.among(basis, basis.T @ values.v, v_error, values, leak, turned)
        return replace(place, outside=unseen / max(place.values.norm, 1e-300))

    @classmethod
    def among(
        cls,
        basis: Array,
        v: Array,
        v_error: Array,
        values: Values,
        leak: float,
        turned: float,
    ) -> Place:
        """Count what other heads answer to their part of the probes as if it were rounding."""
        norm = max(float(np.linalg.norm(v)), 1e-300)
        rounding = values.precision.unit * (1 + values.norm / norm)
        leak = leak + KAPPA * values.precision.unit * values.norm
        precision = replace(values.precision, unit=values.precision.unit + leak / norm / KAPPA)
        values = replace(values, v=v, v_error=v_error, precision=precision)
        return cls(basis, values, leak, turned, rounding)

    def within(self, basis: Array, turned: float) -> Place:
        """Return the place in a larger space of which this one was found in a part."""
        return replace(self, basis=basis @ self.basis, turned=self.turned + turned)

    def learn(
        self, rest: Rest, rng: np.random.Generator, number: int
    ) -> Generator[Round, Answers, Head]:
        """Learn W_h by Theorem 4.1: offsets in the subspace, query tokens there and in the rest."""
        (_, k), (_, beyond) = self.basis.shape, rest.basis.shape
        E, B = self.basis, np.hstack([self.basis, rest.basis])
        own = self.values
        v_error = np.append(own.v_error, np.full(beyond, np.max(own.v_error)))
        values = replace(own, v=np.append(own.v, rest.v), v_error=v_error)
        Z = offsets.balanced(own.v, rng)
        rows, tokens = np.hstack([Z.made(), np.zeros((k, beyond))]), np.eye(k + beyond)
        phase, spare = f"W of head {number}", AGAIN_PER_TOKEN * k
        asking = measure(values, rows, tokens[:k], free, phase, spare)
        blocks = [(yield from restricted(asking, B))]
        if beyond:
            # at the scale of the others: W b is 0 more often than not, and no scale would show it
            octave = int(np.median(np.log2(blocks[0].scale)))
            strange = Block(rows, tokens[k:], values, free, phase)
            yield from restricted(_at(strange, octave, AGAIN_PER_TOKEN * k * beyond), B)
            blocks.append(strange)
        W = Z.solve(np.concatenate([block.measured() for block in blocks]))
        size, none = float(np.linalg.norm(W)), np.zeros(k + beyond)
        columns = np.split(np.linalg.norm(W, axis=0), [k])
        turned = self.turned + KAPPA * UNIT * len(E)
        beyond_size = float(np.linalg.norm(W[:, k:]))
        moved = 3 * turned * size + 2 * rest.turned * beyond_size + self.outside

        def bound(values: Values, leaked: float) -> float:
            each = [
                block.reading(values, lengths, none, Z.largest).total
                for block, lengths in zip(blocks, columns, strict=False)
            ]
            return solution_error(Z, float(np.linalg.norm([*each, leaked])), W) + moved

        exact = replace(values, precision=replace(own.precision, unit=self.unit))
        first, second = self._leaked(blocks, turned, rest.turned)
        return Head(
            E @ W @ B.T,
            E @ own.v,
            bound(values, 0.0),
            (bound(exact, first), second / Z.smallest),
            float(np.linalg.norm(own.v_error)) + self.leak + turned * own.norm,
            tuple(line for block in blocks for line in block.unbounded(values)),
        )

    def _leaked(self, blocks: list[Block], turned: float, beyond: float) -> tuple[float, float]:
        """Bound what a leak makes of the measurements, and what per ‖W_g‖ of the others.

        Another head answers its part of z by ½ + t_g/4 at most, not by σ(t): with the share r of
        z·v̂ that is not v_h's, tanh(t̂/2) = (1 − r)·tanh(t/2) but for t_g, and t_g is small twice.
        """
        first = second = 0.0
        for block, tilt in zip(blocks, (turned, beyond), strict=False):
            gates = block.gates()
            share = np.broadcast_to(self.leak * block.a.norm / np.abs(block.a.value), block.shape)
            if not np.max(share, initial=0.0) <= _SMALL_SHARE:
                return np.inf, np.inf
            with np.errstate(over="ignore"):
                first += float(np.sum((share * np.sinh(np.abs(gates.logit)) / block.scale) ** 2))
            others = share * gates.slope / 4 * block.a.norm * turned * (turned + tilt)
            second += float(np.sum(others**2))
        return _BEYOND_FIRST_ORDER * np.sqrt(first), np.sqrt(second)


def _at(block: Block, octave: int, spare: int) -> Generator[Round, Answers, None]:
    """Ask for a whole block at one scale, and again what is out of range there."""
    scales = np.full(block.shape[0], octave)
    yield from block.ask(slice(None), slice(None), scales)
    for _ in range(AGAIN_PER_TOKEN):
        gates = block.gates()
        saturated = ~np.any(gates.margin > 3 * gates.p_error, axis=1)
        j, i = np.nonzero(np.broadcast_to(saturated[:, None], block.shape))
        if not len(j):
            break
        scales[saturated] -= _SATURATED_STEP
        yield from block.ask_some(j, i, scales[j], "again")
    yield from block.retry(scales, spare)
