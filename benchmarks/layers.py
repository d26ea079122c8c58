"""What whole layers cost, beside one output at a time and beside distilling a student.

Prints two tables and writes them, with the date and the commit, to a markdown file: random
attention layers and random feed-forward layers, each recovered from

1. vector answers (`AttentionLayerLearner`, `FeedForwardLearner`): queries as the oracle counts
   them, over the least that any algorithm needs, and the error of the function;
2. one output at a time (`MultiHeadLearner`, `ReluNetworkLearner`): what the first output takes,
   times their number; the error is of that output;
3. a student: a layer of the same shape, its numbers of heads, ranks and neurons told, fitted by
   L-BFGS to as many random queries as 1. took, and to ten times as many; the best of a few starts.

The error of a function is the largest of fresh answers', relative to their root mean square, at
tokens as those that the student was fitted to.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy import optimize

import unsoftmax as us
from measuring import ROOT, Timed, environment, publish, table
from unsoftmax.probes import Array
from unsoftmax.protocol import Learner
from unsoftmax.theory.information import least_queries

ATTENTION = ((1, 4, 4), (2, 4, 8), (2, 8, 16), (4, 8, 32))
FEED_FORWARD = ((4, 8), (8, 16), (16, 64), (32, 128))
TOKENS = 6
"""Of the student's sequences."""

Target = Callable[[Array], Array]
Slopes = tuple[float, list[Array]]


@dataclass(frozen=True)
class Run:
    """Queries and errors of one layer."""

    queries: int
    error: float
    single: int
    single_error: float
    student: float
    student_ten: float


@dataclass(frozen=True)
class AttentionStudent:
    """c + Σ_h O_h V_h Σ_i softmax_i(x_i·K_hᵀ(Q_h x_N + q_h)) x_i, and its derivative."""

    heads: int
    rank: int
    dim: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of O, V, K, Q, q and c."""
        H, r, d = self.heads, self.rank, self.dim
        return [(H, d, r), (H, r, d), (H, r, d), (H, r, d), (H, r), (d,)]

    def start(self, rng: np.random.Generator) -> list[Array]:
        """Draw parameters as those of targets are drawn."""
        return layer_factors(self.heads, self.rank, self.dim, rng)

    def missed(self, parameters: Sequence[Array], X: Array, y: Array) -> Slopes:
        """Return the mean of squares, and its derivative by every parameter."""
        P, V, K, Q, q, c = parameters
        x = X[:, -1]
        queries = np.einsum("bd,hrd->bhr", x, Q) + q
        scores = np.einsum("bnd,bhd->bhn", X, np.einsum("bhr,hrd->bhd", queries, K))
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        pooled = np.einsum("bhn,bnd->bhd", weights, X)
        values = np.einsum("bhd,hrd->bhr", pooled, V)
        off = np.einsum("bhr,hmr->bm", values, P) + c - y
        by_y = 2 * off / off.size
        by_values = np.einsum("bm,hmr->bhr", by_y, P)
        by_weights = np.einsum("bhd,bnd->bhn", np.einsum("bhr,hrd->bhd", by_values, V), X)
        mean = np.sum(weights * by_weights, axis=2, keepdims=True)
        by_vector = np.einsum("bhn,bnd->bhd", weights * (by_weights - mean), X)
        by_query = np.einsum("bhd,hrd->bhr", by_vector, K)
        return float(np.mean(off**2)), [
            np.einsum("bm,bhr->hmr", by_y, values),
            np.einsum("bhr,bhd->hrd", by_values, pooled),
            np.einsum("bhr,bhd->hrd", queries, by_vector),
            np.einsum("bhr,bd->hrd", by_query, x),
            by_query.sum(axis=0),
            by_y.sum(axis=0),
        ]

    def predicted(self, parameters: Sequence[Array], X: Array) -> Array:
        """Answer sequences."""
        return attention(parameters)(X)


@dataclass(frozen=True)
class NeuronStudent:
    """B relu(A x + b) + c, and its derivative."""

    neurons: int
    dim: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of A, b, B and c."""
        m, d = self.neurons, self.dim
        return [(m, d), (m,), (d, m), (d,)]

    def start(self, rng: np.random.Generator) -> list[Array]:
        """Draw parameters as those of targets are drawn."""
        return neuron_factors(self.neurons, self.dim, rng)

    def missed(self, parameters: Sequence[Array], X: Array, y: Array) -> Slopes:
        """Return the mean of squares, and its derivative by every parameter."""
        A, b, B, c = parameters
        x = X[:, -1]
        active = np.maximum(x @ A.T + b, 0)
        off = active @ B.T + c - y
        by_y = 2 * off / off.size
        by_z = (by_y @ B) * (active > 0)
        slopes = [by_z.T @ x, by_z.sum(axis=0), by_y.T @ active, by_y.sum(axis=0)]
        return float(np.mean(off**2)), slopes

    def predicted(self, parameters: Sequence[Array], X: Array) -> Array:
        """Answer sequences of one token."""
        A, b, B, c = parameters
        return us.FeedForward(A, b, B, c)(X)


def layer_factors(H: int, r: int, d: int, rng: np.random.Generator) -> list[Array]:
    """Draw O, V, K, Q, q and c: scores of tokens of length √d are of about 1."""
    n = rng.standard_normal
    return [
        n((H, d, r)) / np.sqrt(H * r),
        n((H, r, d)) / np.sqrt(d),
        n((H, r, d)) / np.sqrt(d),
        n((H, r, d)) / np.sqrt(d * r),
        n((H, r)) / np.sqrt(r),
        n(d),
    ]


def neuron_factors(m: int, d: int, rng: np.random.Generator) -> list[Array]:
    """Draw A, b, B and c."""
    n = rng.standard_normal
    return [n((m, d)) / np.sqrt(d), n(m) / 2, n((d, m)) / np.sqrt(m), n(d)]


def attention(parameters: Sequence[Array]) -> us.AttentionLayer:
    """Put a layer together."""
    *factors, c = parameters
    heads = [
        us.LayerHead.from_factors(O=P, V=V, K=K, Q=Q, w=K.T @ q)
        for P, V, K, Q, q in zip(*factors, strict=True)
    ]
    return us.AttentionLayer(heads, c)


def distilled(
    student: AttentionStudent | NeuronStudent,
    target: Target,
    X: Array,
    rng: np.random.Generator,
    options: argparse.Namespace,
) -> Target:
    """Fit a student to answers, from a few starts; return the one that fits best."""
    y, cuts = target(X), np.cumsum([np.prod(shape) for shape in student.shapes])[:-1]

    def parts(flat: Array) -> list[Array]:
        pairs = zip(np.split(flat, cuts), student.shapes, strict=True)
        return [part.reshape(shape) for part, shape in pairs]

    def cost(flat: Array) -> tuple[float, Array]:
        missed, slopes = student.missed(parts(flat), X, y)
        return missed, np.concatenate([slope.ravel() for slope in slopes])

    fits = [
        optimize.minimize(
            cost,
            np.concatenate([part.ravel() for part in student.start(rng)]),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": options.steps, "maxfun": 2 * options.steps, "ftol": 0, "gtol": 0},
        )
        for _ in range(options.starts)
    ]
    best = parts(min(fits, key=lambda fit: float(fit.fun)).x)
    return lambda X: student.predicted(best, X)


def function_error(found: Target, target: Target, X: Array) -> float:
    y = target(X)
    return float(np.max(np.abs(found(X) - y)) / np.sqrt(np.mean(y**2)))


def compared(
    target: us.AttentionLayer | us.FeedForward,
    learners: tuple[Learner[Any], Learner[Any]],
    student: AttentionStudent | NeuronStudent,
    seed: int,
    options: argparse.Namespace,
) -> Run:
    """Recover one target in all ways."""
    rng, tokens = np.random.default_rng([seed, 1]), 1 + (TOKENS - 1) * hasattr(target, "heads")
    d, oracle = target.dim, Timed(target)
    fresh = rng.standard_normal((1000, tokens, d))
    recovery = us.learn(oracle, learners[0])
    first = Timed(us.oracles.coordinate(target, 0))
    one = us.learn(first, learners[1]).model
    students = [
        function_error(
            distilled(
                student,
                target,
                rng.standard_normal((times * oracle.queries, tokens, d)),
                rng,
                options,
            ),
            target,
            fresh,
        )
        for times in (1, 10)
    ]
    return Run(
        oracle.queries,
        function_error(recovery.model, target, fresh),
        first.queries * d,
        function_error(one, lambda X: target(X)[:, 0], fresh),
        *students,
    )


def row_of(name: str, parameters: int, least: int, runs: Sequence[Run]) -> list[str]:
    queries, single = (
        median(getattr(run, count) for run in runs) for count in ("queries", "single")
    )
    return [
        name,
        f"{parameters:,}",
        f"{least:,}",
        f"{queries:,.0f}",
        f"{queries / least:.2f}",
        f"{median(run.error for run in runs):.0e}",
        f"{single:,.0f}",
        f"{median(run.single_error for run in runs):.0e}",
        f"{median(run.student for run in runs):.0e}",
        f"{median(run.student_ten for run in runs):.0e}",
        f"{min(run.student_ten for run in runs):.0e}",
    ]


COLUMNS = ["parameters", "least", "queries", "of the least", "error", "one output at a time",
           "error", "student", "with ten times as many", "best"]  # fmt: skip


def attention_layers(options: argparse.Namespace) -> str:
    rows = []
    for H, r, d in ATTENTION:
        runs = []
        for seed in range(options.seeds):
            target = attention(layer_factors(H, r, d, np.random.default_rng([H, r, d, seed])))
            learners = (
                us.learners.AttentionLayerLearner(d, norm="none", seed=seed),
                us.learners.MultiHeadLearner(d, max_heads=H + 2, biases=True, rank=r, seed=seed),
            )
            runs.append(compared(target, learners, AttentionStudent(H, r, d), seed, options))
        parameters = sum(int(np.prod(shape)) for shape in AttentionStudent(H, r, d).shapes)
        rows.append(row_of(f"H = {H}, r = {r}, d = {d}", parameters, least_queries(target), runs))
    return table(["layer", *COLUMNS], rows)


def feed_forward_layers(options: argparse.Namespace) -> str:
    rows = []
    for d, m in FEED_FORWARD:
        runs = []
        for seed in range(options.seeds):
            A, b, B, c = neuron_factors(m, d, np.random.default_rng([d, m, seed]))
            learners = (
                us.learners.FeedForwardLearner(d, seed=seed),
                us.learners.ReluNetworkLearner(d, seed=seed),
            )
            target = us.FeedForward(A, b, B, c)
            runs.append(compared(target, learners, NeuronStudent(m, d), seed, options))
        # of every neuron a factor is free
        least = -(-(2 * m * d + d) // d)
        rows.append(row_of(f"m = {m}, d = {d}", 2 * m * d + m + d, least, runs))
    return table(["layer", *COLUMNS], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many layers (default 3)")
    parser.add_argument("--starts", type=int, default=2, help="of a student (default 2)")
    parser.add_argument("--steps", type=int, default=1000, help="of L-BFGS (default 1000)")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs" / "benchmarks" / "layers.md",
        help="markdown file to write",
    )
    options = parser.parse_args()
    text = f"""# Whole layers: vectors, one output at a time, and a student

{environment()}
Random layers, {options.seeds} of each shape, exact answers of float64. Queries include the
hold-out of 32; figures are medians over layers. `least` is what no algorithm stays below: free
parameters over numbers per answer. Errors are of the function: the largest of a thousand fresh
answers', relative to their root mean square, at Gaussian tokens. One output at a time: what
`MultiHeadLearner` and `ReluNetworkLearner` take for the first output, times their number; the
error is of that output. The student has the target's own shape, which the others are not told; it
is fitted by L-BFGS, {options.steps:,} steps from each of {options.starts} starts, to as many random
queries, or to ten times as many, and is tried at tokens like those. `best` is the best layer there.

## Attention

{attention_layers(options)}

## Feed-forward

{feed_forward_layers(options)}
"""
    publish(text, options.out)


if __name__ == "__main__":
    main()
