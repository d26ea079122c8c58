"""All parameters once more, from moderate sequences: about 1.1 queries for each.

Far out, where heads switch within a cell, offsets that open one head are lost in part beside the
query tokens. Once the layer is nearly known, sequences of moderate logits and tokens about as long
as the hyperplanes are far tell all parameters together, by Newton's steps on the layer's own
derivatives: it is smooth wherever no neuron changes sides. The sequences are picked by pivoted QR
among two to four times as many. Output weights stay, as a positive factor may move between them
and the first layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head_transformer.layer_search import RecoveredTransformer
from unsoftmax.learners.transformer.hold_out import at_logits
from unsoftmax.learners.transformer.learned_network import LearnedNetwork
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models import MultiHeadTransformer
from unsoftmax.probes import Array, Indices
from unsoftmax.validate.judge import Answered, fresh_answers
from unsoftmax.validate.sequences import by_length

_PATHS = {
    "W": "heads.W",
    "w": "heads.w",
    "B": "heads.M",
    "residual": "heads.R",
    "b": "heads.c",
    "c": "network.c",
}
"""Where the derivatives of what is fitted are, …"""
_OF_HEADS = ("W", "w", "B")
"""… of each head by itself for these."""


# Parameters of one fit: choosing sequences takes time as their cube, 20 seconds for these.
LARGEST = 2500
# Numbers of tokens, in turn.
TOKENS = (2, 3, 4)
# Root mean squares of one head's logits, in turn: its softmax neither flat nor a step.
LOGITS = (1.0, 2.0, 3.0)
# Range of log₁₀ of the query tokens' lengths, in typical distances of hyperplanes: on both sides
# of each.
SIZES = (-1.0, 1.5)
# Sequences that are drawn per parameter, and from so many parameters on: fewer are chosen from in
# less time, and leave errors a few times as large.
CANDIDATES, FEWER, MANY = 4, 2, 1000
# Sequences that are asked per parameter.
SPARE = 1.1
# Newton steps at most: two are usual, five where the first error was 10⁻⁴.
STEPS = 8
# Steps end where the residual falls by less than this factor.
SETTLED = 0.9
# A system whose smallest pivot is below this share of the largest tells too little.
SINGULAR = 1e-11
# Root mean square of what a right fit leaves, in units of what rounding of an answer may be: it
# is a tenth of that, or less.
RESIDUAL = 4.0
# Estimated errors are standard deviations: so many are promised.
SAFETY = 6.0


def polished_layer(
    found: RecoveredTransformer, learned: LearnedNetwork, biases: bool, rng: np.random.Generator
) -> Asking[RecoveredTransformer | None]:
    """Correct all parameters; None where they are too many, or answers do not tell them."""
    layer = FreeLayer(found.model, found.linear, biases)
    count = layer.count
    if count > LARGEST or not found.model.H:
        return None
    each = CANDIDATES if count <= MANY else FEWER
    drawn = by_length(_drawn(found.model, learned, each * count, rng), "polish")
    picked = best_rows(layer, [part.X for part in drawn], int(SPARE * count))
    every = [X for part in drawn for X in part.X]
    asked = by_length([every[n] for n in np.sort(picked)], "polish", "data")
    fit = fitted(layer, (yield from fresh_answers(asked)))
    if fit is None:
        return None
    return RecoveredTransformer(*fit, found.linear, found.notes)


@dataclass(frozen=True, slots=True)
class FreeLayer:
    """A layer as parameters that its function determines.

    Of two neurons ℓ·p and −ℓ·p that carry a linear part ℓ is free, and their biases stay 0.
    """

    model: MultiHeadTransformer
    linear: bool
    """Whether the last two neurons carry a linear part."""
    biases: bool
    """Whether w, b and c are free."""

    @property
    def count(self) -> int:
        """Number of free parameters."""
        return sum(x.size for x in self.free(self.model.arrays()).values())

    def free(self, each: Mapping[str, Array]) -> dict[str, Array]:
        """Return what belongs to free parameters, (…, shape), of what belongs to all arrays."""
        names = _PATHS if self.biases else ("W", "B", "residual")
        found = {name: np.asarray(each[name]) for name in names if name in each}
        if self.linear:
            for name in {"B", "residual"} & set(found):
                x = found[name]
                found[name] = np.concatenate(
                    [x[..., :-2, :], x[..., -2:-1, :] - x[..., -1:, :]], axis=-2
                )
            if self.biases:
                found["b"] = found["b"][..., :-2]
        return found

    def parts(self, vector: Array) -> dict[str, Array]:
        """Divide a vector of all free parameters by name, in their shapes."""
        shapes = {name: x.shape for name, x in self.free(self.model.arrays()).items()}
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
        each = np.split(vector, ends)
        return {name: x.reshape(shapes[name]) for name, x in zip(shapes, each, strict=True)}

    def moved(self, vector: Array) -> FreeLayer:
        """Add a vector to the free parameters."""
        step = self.parts(vector)
        if self.linear:
            for name in {"B", "residual"} & set(step):
                x = step[name]
                step[name] = np.concatenate([x, -x[..., -1:, :]], axis=-2)
            if self.biases:
                step["b"] = np.append(step["b"], [0.0, 0.0])
        arrays = {name: x + step.get(name, 0.0) for name, x in self.model.arrays().items()}
        return replace(self, model=MultiHeadTransformer.from_arrays(arrays))

    def linearised(self, X: Array) -> tuple[Array, Array, Array]:
        """Return f (n,), its derivatives (n, P), and what its rounding may be, at X (n, N, d)."""
        model, at, columns = self.model, self.model.maps.linearise(X), {}
        by = at.every.by
        for name in self.free(model.arrays()):
            each = [gradient.whole[0] for gradient in by[_PATHS[name]]]
            columns[name] = np.stack(each, axis=1) if name in _OF_HEADS else each[0]
        J = np.concatenate([x.reshape(len(X), -1) for x in self.free(columns).values()], axis=1)
        return model(X), J, KAPPA * UNIT * at.rounding[:, 0, 0]


def best_rows(layer: FreeLayer, families: Sequence[Array], count: int) -> Indices:
    """Choose ``count`` of the sequences of all families that tell most, by pivoted QR."""
    rows = []
    for X in families:
        _, J, noise = layer.linearised(X)
        rows.append(J / noise[:, None])
    J = np.concatenate(rows)
    size = np.linalg.norm(J, axis=0)
    J /= np.where(size > 0, size, 1.0)
    _, pivots = scipy.linalg.qr(J.T, mode="r", pivoting=True, overwrite_a=True)
    return np.asarray(pivots[:count], dtype=np.intp)


def fitted(
    layer: FreeLayer, answered: Sequence[Answered]
) -> tuple[MultiHeadTransformer, dict[str, float]] | None:
    """Fit to answers; None where these do not tell all free parameters, or contradict them.

    Errors are those of "W" and "w" of the worst head, and "slope" and "constant" of the network.
    """
    best, last = None, np.inf
    for _ in range(STEPS):
        J, missed = _weighted(layer, answered)
        residual = float(np.sqrt(np.mean(missed**2)))
        size = np.linalg.norm(J, axis=0)
        if not np.isfinite(residual) or not np.all(size > 0):
            return None
        Q, R = np.linalg.qr(J / size)
        pivots = np.abs(np.diag(R))
        if np.min(pivots) <= SINGULAR * np.max(pivots):
            return None
        if residual >= last:
            break
        best = layer, R, size, residual
        if residual > SETTLED * last and residual < RESIDUAL:
            break
        last = residual
        step = scipy.linalg.solve_triangular(R, Q.T @ missed) / size
        layer = layer.moved(np.asarray(step, dtype=np.float64))
    if best is None or best[3] > RESIDUAL:
        return None
    layer, R, size, residual = best
    inverse = scipy.linalg.solve_triangular(R, np.eye(len(R)))
    deviation = SAFETY * residual * np.linalg.norm(inverse, axis=1) / size
    return layer.model, _errors(layer.parts(deviation))


def _weighted(layer: FreeLayer, answered: Sequence[Answered]) -> tuple[Array, Array]:
    """Return derivatives and residuals in units of what rounding may be."""
    rows, missed = [], []
    for X, y in answered:
        f, J, noise = layer.linearised(X)
        rows.append(J / noise[:, None])
        missed.append((y - f) / noise)
    return np.concatenate(rows), np.concatenate(missed)


def _errors(off: dict[str, Array]) -> dict[str, float]:
    """Add up what the parameters are off by."""
    per_head = {name: off.get(name, np.zeros((1, 1))) for name in ("W", "w")}
    first = np.concatenate([off["B"], *([off["residual"][None]] if "residual" in off else [])])
    rows = np.sqrt(np.sum(first**2, axis=(0, 2)))
    worst = {
        name: float(np.max(np.linalg.norm(x.reshape(len(x), -1), axis=1), initial=0.0))
        for name, x in per_head.items()
    }
    constant = sum(float(np.sum(off[name])) for name in "bc" if name in off)
    return {**worst, "slope": float(rows.sum()), "constant": constant}


def _drawn(
    model: MultiHeadTransformer, learned: LearnedNetwork, count: int, rng: np.random.Generator
) -> list[Array]:
    """Draw sequences at which each head in turn has moderate logits."""
    drawn, d = [], model.dim
    for n in range(count):
        size = 10.0 ** rng.uniform(*SIZES)
        b = learned.length * size * rng.standard_normal(d) / np.sqrt(d)
        offsets = rng.standard_normal((TOKENS[n % len(TOKENS)] - 1, d)) / np.sqrt(d)
        u = model.scores_of(b[None])[0, n % model.H]
        wanted = LOGITS[(n // model.H) % len(LOGITS)]
        drawn.append(at_logits(u, learned.length, offsets, b, wanted))
    return drawn
