"""Points of a lift as probes, made from a small design; and how F, or what is left of it, is asked.

The points of a cell's gradient are a centre and steps from it along directions: many points, few
centres.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.homogeneous import Lift, PiecewiseLinear
from unsoftmax.measure.reflections import orthogonal_to
from unsoftmax.probes import Array, Design, Indices, LazyRows, Purpose, Round, Singles
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class LiftedPoints(LazyRows):
    """Tokens for points of the lift, made when they are asked for."""

    lift: Lift

    @abstractmethod
    def lifted(self, index: Indices) -> Array:
        """Make some of the points, (n, D)."""

    def __getitem__(self, index: Indices) -> Array:
        return self.lift.tokens(self.lifted(index))

    def pick(self, index: Indices) -> Array:  # noqa: D102
        return self[index]


@dataclass(frozen=True, slots=True)
class WrittenPoints(LiftedPoints):
    """Points written out."""

    Y: Array

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.Y), self.lift.dim

    def lifted(self, index: Indices) -> Array:  # noqa: D102
        return self.Y[index]

    def design(self) -> Design:  # noqa: D102
        return {"Y": self.Y, "length": np.array([self.lift.length, self.lift.token_scale])}


@dataclass(frozen=True, slots=True)
class PointsAround(LiftedPoints):
    """Points Y_i + s·E_j, E_j of ``directions``, or where None of `orthogonal_to` (Y_i)."""

    centres: Array
    directions: Array | None
    i: Indices
    j: Indices
    step: Array

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.i), self.lift.dim

    def lifted(self, index: Indices) -> Array:  # noqa: D102
        centres, j = self.centres[self.i[index]], self.j[index]
        E = orthogonal_to(centres, j) if self.directions is None else self.directions[j]
        return np.asarray(centres + self.step[index, None] * E)

    def design(self) -> Design:  # noqa: D102
        shared = {} if self.directions is None else {"directions": self.directions}
        length = np.array([self.lift.length, self.lift.token_scale])
        return {
            "centres": self.centres,
            **shared,
            "i": self.i,
            "j": self.j,
            "step": self.step,
            "length": length,
        }


def ask_points(
    points: LiftedPoints,
    phase: str,
    known: PiecewiseLinear | None = None,
    purpose: Purpose = "data",
    numbers_at_once: int = 2**22,
) -> Generator[Round, Answers, Array]:
    """Ask F, or F − F̂ where F̂ is ``known``; no points, no round.

    ``numbers_at_once`` bounds the memory while F̂ is subtracted, here to 32 MB.
    """
    count = points.shape[0]
    if not count:
        return np.zeros(0)
    [y] = yield [Singles(points, phase=phase, purpose=purpose)]
    F = np.empty(count)
    width = max(points.lift.D, 0 if known is None else len(known), 1)
    chunk = max(1, numbers_at_once // width)
    for start in range(0, count, chunk):
        index = np.arange(start, min(start + chunk, count))
        Y = points.lifted(index)
        F[index] = points.lift.answers(Y, y[index])
        if known is not None:
            F[index] -= known(Y)
    return F
