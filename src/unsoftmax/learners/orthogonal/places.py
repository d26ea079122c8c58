"""A subspace, the head that lives in it, and what is in no subspace.

For tokens in U_h every other head answers x·v_g = 0, so head h answers alone: Theorem 4.1 in d_h
dimensions, with query tokens from what is in no subspace as well, which W_h's rows may read. Where
U_h is off by K towards U_g, the tokens meet ‖K‖·‖v_g‖ of the other's values: a leak, which is
counted as if it were rounding.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners import offsets
from unsoftmax.learners.bilinear import Block, measure
from unsoftmax.learners.restriction import restricted
from unsoftmax.learners.scales import free
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.theory.precision import KAPPA, UNIT
from unsoftmax.theory.two_tokens import Values

AGAIN_PER_TOKEN = 2


@dataclass(frozen=True, slots=True)
class Head:
    """One head, in all of R^d, with bounds on its errors."""

    W: Array
    v: Array
    W_error: float
    v_error: float
    unbounded: tuple[str, ...]


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

    @classmethod
    def of(cls, basis: Array, values: Values, leak: float, turned: float) -> Place:
        """Take from Σ v_g what is in the subspace, which is v_h."""
        v_error = np.abs(basis).T @ values.v_error
        return cls.among(basis, basis.T @ values.v, v_error, values, leak, turned)

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
        leak = leak + KAPPA * values.precision.unit * values.norm
        strange = leak / max(float(np.linalg.norm(v)), 1e-300) / KAPPA
        precision = replace(values.precision, unit=values.precision.unit + strange)
        return cls(basis, replace(values, v=v, v_error=v_error, precision=precision), leak, turned)

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
            yield from restricted(_at(strange, octave, AGAIN_PER_TOKEN * beyond), B)
            blocks.append(strange)
        W = Z.solve(np.concatenate([block.measured() for block in blocks]))
        size, none = float(np.linalg.norm(W)), np.zeros(k + beyond)
        columns = np.split(np.linalg.norm(W, axis=0), [k])
        measured = np.linalg.norm(
            [
                block.error(values, lengths, none, Z.largest)
                for block, lengths in zip(blocks, columns, strict=False)
            ]
        )
        turned = self.turned + KAPPA * UNIT * len(E)
        beyond_size = float(np.linalg.norm(W[:, k:]))
        return Head(
            E @ W @ B.T,
            E @ own.v,
            Z.error(float(measured), W) + 3 * turned * size + 2 * rest.turned * beyond_size,
            float(np.linalg.norm(own.v_error)) + self.leak + turned * own.norm,
            tuple(line for block in blocks for line in block.unbounded(values)),
        )


def _at(block: Block, octave: int, spare: int) -> Generator[Round, Answers, None]:
    """Ask for a whole block at one scale, and again what is out of range there."""
    scales = np.full(block.shape[0], octave)
    yield from block.ask(slice(None), slice(None), scales)
    yield from block.retry(scales, spare)
