"""Do two heads with rotary positions compute the same function? They do if all W(Δ) are equal.

With complex rows κ_k = K_{2k} + iK_{2k+1} and φ_k likewise of Q, biases as their last entries,
a token x scores Re Σ_k κ̄_k·(x, 1) e^{iθ_kΔ} φ_k·(x_N, 1). So only the products κ̄_k φ_kᵀ count,
summed over planes of equal θ; where θ is 0 or π only their real part does. θ counts up to sign, by
which a plane is mirrored, and up to 2π. Where θ is 0 the key bias scores all tokens alike: it is
invisible.

The canonical form has θ in [0, π], the largest first, and each product in the factors that its
singular value decomposition gives. Two heads are compared by all W(Δ), biases included, at as many
distances as there are planes in both: sums of so many e^{iθΔ} that agree there agree everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.equality.equivalence import (
    Equivalence,
    ModelEquality,
    Tolerance,
    norm_of,
    share_of,
)
from unsoftmax.models.equality.witnesses import WitnessTuning, witness_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.scores import RotaryScores
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class RotaryHeadEquality(ModelEquality[RotaryHead]):
    """Heads are equal if all W(Δ), with biases, and [v c] are."""

    model: ClassVar[type[FrozenModel]] = RotaryHead

    roundoffs: float = 128.0
    """Rounding of an answer, in roundoffs of its terms and per dimension; see
    `SingleHeadEquality`."""
    farthest: int = 20
    """Bounds of certificates hold for W(Δ) up to this distance, and heads are compared so far."""
    witnesses: WitnessTuning = field(default=WitnessTuning())

    def canonical(self, model: RotaryHead) -> RotaryHead:
        """Return the head that stands for all that compute the same function."""
        if not np.any(model.v):
            none = np.zeros((0, model.dim))
            return RotaryHead(none, none, model.v, Rotary(np.zeros(0)), c=model.c)
        angles = model.rotary.folded
        parts, frequencies = [], []
        for angle in np.unique(angles)[::-1]:
            keys, queries = _products(model, np.flatnonzero(angles == angle), angle)
            parts.append(np.stack(_factors(keys, queries), axis=0))
            frequencies += [angle] * (parts[-1].shape[1] // 2)
        rows = np.concatenate([np.zeros((2, 0, model.dim + 1)), *parts], axis=1)
        K, Q = rows[0, :, :-1], rows[1, :, :-1]
        biases = {"k_bias": rows[0, :, -1], "q_bias": rows[1, :, -1]}
        return RotaryHead(K, Q, model.v, Rotary(frequencies), **biases, c=model.c)

    def simplest(self, model: RotaryHead) -> FrozenModel:
        """Return a head whose planes do not turn as a head without positions."""
        if np.any(model.rotary.folded):
            return model
        return SingleHead.from_factors(
            model.K, model.Q, model.v, model.K.T @ model.q_bias, c=model.c
        )

    def read(self, model: FrozenModel) -> RotaryHead | None:
        """Return a head without positions as one whose planes do not turn."""
        if isinstance(model, RotaryHead):
            return model
        if not isinstance(model, SingleHead):
            return None
        arrays, d = model.arrays(), model.dim
        K, Q = (arrays["K"], arrays["Q"]) if "K" in arrays else (np.eye(d), arrays["W"])
        odd = (len(K) + 1) % 2  # one row for w, and one more where that makes them odd
        none = np.zeros((odd, d))
        K, Q = np.vstack([K, model.w, none]), np.vstack([Q, np.zeros((1, d)), none])
        q_bias = np.zeros(len(K))
        q_bias[len(K) - 1 - odd] = 1.0
        return RotaryHead(K, Q, model.v, Rotary(np.zeros(len(K) // 2)), q_bias=q_bias, c=model.c)

    def compare(self, a: RotaryHead, b: RotaryHead, tolerance: Tolerance) -> Equivalence:
        """Compare all W(Δ), biases included, and [v c], each as one block."""
        scores, distance, apart = scores_apart(a.scores, b.scores, self.farthest)
        within = tolerance.allows(apart, scores)
        values = tolerance.compare(np.append(a.v, a.c), np.append(b.v, b.c))
        gap = max(apart / scores if scores else 0.0, values[1])
        if not (np.any(a.v) or np.any(b.v)):
            within, gap = True, values[1]
        same = within and values[0]
        if tolerance.exact:
            same = _same_arrays(self.canonical(a), self.canonical(b)) or _same_arrays(a, b)
        if same:
            return Equivalence("equal", None, gap)
        families = self.sequences(a, b, distance)
        return Equivalence.unequal(witness_of(a, b, families, self.rounding), gap)

    def share(self, a: RotaryHead, b: RotaryHead, errors: Mapping[str, float]) -> float:
        """Compare W(Δ) for distances up to ``farthest``, v and c with the bound on each."""
        several = range(self.farthest + 1)
        apart = [a.scores.whole(n) - b.scores.whole(n) for n in several] if np.any(a.v) else []
        W = max((norm_of(x[:-1, :-1]) for x in apart), default=0.0)
        biases = max((norm_of(np.append(x[-1], x[:-1, -1])) for x in apart), default=0.0)
        return max(
            share_of(W, errors, "W"),
            share_of(biases, errors, "w") if "w" in errors or biases > UNIT * W else 0.0,
            share_of(norm_of(a.v - b.v), errors, "v"),
            share_of(abs(a.c - b.c), errors, "c"),
        )

    def sequences(self, a: RotaryHead, b: RotaryHead, distance: int) -> Iterator[Array]:
        """Make sequences that tell v and c apart, then tokens at the distance that differs most."""
        rng, d = np.random.default_rng(0), a.dim
        powers = 4.0 ** np.arange(-self.witnesses.powers_of_four, self.witnesses.powers_of_four + 1)
        yield np.zeros((1, 1, d))
        yield powers[:, None, None] * _unit(a.v - b.v)
        left, _, right = np.linalg.svd(a.scores.whole(distance) - b.scores.whole(distance))
        count = self.witnesses.offsets + 4
        tokens = rng.standard_normal((2, count, d)) / np.sqrt(d)
        value, key = _unit(a.v + b.v), left[:-1, 0]
        tokens[0, :4] = [key, key + value, key - value, value]
        tokens[1, :4] = right[0, :-1]
        aimed = np.zeros((count, distance + 2, d))
        aimed[:, 1] = tokens[0]
        aimed[:, -1] = tokens[1]
        spread = rng.standard_normal((4, 24, d)) / np.sqrt(d)
        for X in (aimed[:, 1:], aimed, spread):
            yield (powers[:, None, None, None] * X).reshape(-1, *X.shape[1:])

    def rounding(self, head: RotaryHead, X: Array) -> Array:
        """Bound the rounding of answers: of values, and of scores, which move the weights."""
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        key, query = (
            longest * norm_of(matrix) + norm_of(bias)
            for matrix, bias in ((head.K, head.k_bias), (head.Q, head.q_bias))
        )
        turns = 1 + X.shape[1] * float(np.max(np.abs(head.rotary.frequencies), initial=0.0))
        size = longest * norm_of(head.v) + abs(head.c)
        size = size + np.ptp(X @ head.v, axis=1) * key * query * turns
        return np.asarray(self.roundoffs * UNIT * (head.dim + X.shape[1]) * size)


def scores_apart(a: RotaryScores, b: RotaryScores, farthest: int) -> tuple[float, int, float]:
    """Return the size of two scores W(Δ), biases included, and where they differ most, by how much.

    At distances up to ``farthest``, and at as many as tell all scores apart.
    """
    size, worst = 0.0, (0, 0.0)
    a, b = _within_ranges(a, b)
    for distance in range(max(farthest, 2 * (len(a.rotary) + len(b.rotary))) + 1):
        mine, other = a.whole(distance), b.whole(distance)
        size = max(size, norm_of(mine), norm_of(other))
        worst = max(worst, (distance, norm_of(mine - other)), key=lambda pair: pair[1])
    return size, *worst


def _within_ranges(a: RotaryScores, b: RotaryScores) -> tuple[RotaryScores, RotaryScores]:
    """Return scores of the same norms, of as many dimensions as keys and queries have together."""
    both = {name: np.vstack([a.arrays[name], b.arrays[name]]) for name in "KQ"}
    if len(both["K"]) >= both["K"].shape[1]:
        return a, b
    bases = {name: np.linalg.qr(rows.T)[0] for name, rows in both.items()}

    def seen(scores: RotaryScores) -> RotaryScores:
        arrays = {**scores.arrays, **{name: scores.arrays[name] @ bases[name] for name in "KQ"}}
        return RotaryScores(len(both["K"]), arrays, scores.rotary)

    return seen(a), seen(b)


def _products(
    model: RotaryHead, planes: NDArray[np.intp], angle: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows of K and Q of planes that turn alike, with biases; complex where they do."""
    K = np.column_stack([model.K, model.k_bias])
    Q = np.column_stack([model.Q, model.q_bias])
    if angle in (0.0, np.pi):
        rows = np.sort(np.concatenate([2 * planes, 2 * planes + 1]))
        keys = K[rows]
        keys[:, -1] *= angle != 0.0
        return keys, Q[rows]
    # a frequency that folds to its negative mirrors the plane
    signs = np.where(np.sin(model.rotary.frequencies[planes]) < 0, -1.0, 1.0)[:, None]
    return tuple(x[2 * planes] + 1j * signs * x[2 * planes + 1] for x in (K, Q))  # type: ignore[return-value]


def _factors(keys: NDArray[Any], queries: NDArray[Any]) -> tuple[Array, Array]:
    """Return the rows, by singular values of κ̄φᵀ, in real numbers: two for a complex one."""
    (A, left), (B, right) = (np.linalg.qr(x.T) for x in (keys.conj(), queries))
    U, s, V = np.linalg.svd(left @ right.T)
    U, V = A @ U, (V @ B.T)
    top = U[np.argmax(np.abs(U), axis=0), np.arange(U.shape[1])]
    phase = np.where(top == 0, 1.0, top / np.where(top == 0, 1.0, np.abs(top)))
    found = (U / phase * np.sqrt(s)).T.conj(), (phase * np.sqrt(s))[:, None] * V
    if not np.iscomplexobj(U):
        odd = len(found[0]) % 2  # a plane has two rows
        K, Q = (np.pad(x, ((0, odd), (0, 0))) for x in found)
        return K, Q
    K, Q = (np.stack([x.real, x.imag], axis=1).reshape(2 * len(x), -1) for x in found)
    return K, Q


def _same_arrays(a: RotaryHead, b: RotaryHead) -> bool:
    mine, other = a.arrays(), b.arrays()
    return all(np.array_equal(mine[name], other[name]) for name in mine)


def _unit(x: Array) -> Array:
    norm = norm_of(x)
    return x / norm if norm else x
