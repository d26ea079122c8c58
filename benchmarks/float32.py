"""What float32 endpoints let one recover, what is certified, and what bounds it.

Prints two tables and writes them, with the date and the commit, to a markdown file:

1. targets that compute in float32 inside: the true error, the certificate, and how long the tokens
   and how large the logits of the questions were;
2. where the error comes from: the same targets computed in float64, with the answers alone rounded
   to float32, and without any float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import unsoftmax as us
from measuring import ROOT, environment, publish, table
from unsoftmax.probes import Array

Single = NDArray[np.float32]
Arithmetic = Literal["float32 inside", "float32 answers", "float64"]
UNITS: dict[Arithmetic, float] = {
    "float32 inside": 2.0**-24,
    "float32 answers": 2.0**-24,
    "float64": 2.0**-53,
}
POINTS = 2000
"""Fresh tokens at which networks are compared with what is certified."""


def single(x: Array) -> Single:
    return x.astype(np.float32)


def stored(x: Array) -> Array:
    """Return what float32 holds of an array: the truth, where a target is stored so."""
    return single(x).astype(np.float64)


# -- targets that compute in float32


@dataclass(frozen=True)
class Heads:
    """Heads in float32: from factors where there are any, else from W."""

    true: us.MultiHead | us.SingleHead
    factors: tuple[Array, Array] | None = None

    def __call__(self, X: Array) -> Single:
        """Answer a batch of sequences."""
        v, w = (single(np.atleast_2d(x)) for x in (self.true.v, self.true.w))
        tokens = single(X)
        if self.factors is None:
            W = single(np.reshape(self.true.W, (len(v), self.true.dim, self.true.dim)))
            moved = np.einsum("hij,bj->bhi", W, tokens[:, -1]) + w
            scores = np.einsum("bni,bhi->bhn", tokens, moved)
        else:
            K, Q = map(single, self.factors)
            scores = ((tokens @ K.T) @ (tokens[:, -1] @ Q.T)[:, :, None])[:, None, :, 0]
        answers: Single = np.einsum("bhn,bnd,hd->b", softmax(scores), tokens, v)
        return answers + np.float32(self.true.c)

    def logits(self, X: Array) -> Array:
        """Return every sequence's largest difference of two scores, in float64."""
        if self.factors is None:
            W = np.reshape(self.true.W, (-1, self.true.dim, self.true.dim))
            moved = np.einsum("hij,bj->bhi", W, X[:, -1]) + np.atleast_2d(self.true.w)
            return spread(np.einsum("bni,bhi->bhn", X, moved))
        K, Q = self.factors
        return spread(np.einsum("bnr,br->bn", X @ K.T, X[:, -1] @ Q.T))


@dataclass(frozen=True)
class Network:
    """A network in float32, behind a head in float32 where it has one."""

    true: us.ReluNetwork | us.Transformer

    def __call__(self, X: Array) -> Single:
        """Answer a batch of sequences."""
        tokens = single(X)
        if isinstance(self.true, us.Transformer):
            W, w = single(self.true.W), single(self.true.w)
            scores = np.einsum("bni,bi->bn", tokens, tokens[:, -1] @ W.T + w)
            pooled, g = np.einsum("bn,bnd->bd", softmax(scores), tokens), self.true.network
        else:
            pooled, g = tokens[:, -1], self.true
        A, b, w_o = (single(x) for x in (g.A, g.b, g.w_o))
        answers: Single = np.maximum(pooled @ A + b, 0) @ w_o + np.float32(g.c)
        return answers

    def logits(self, X: Array) -> Array:
        """Return every sequence's largest difference of two scores, in float64."""
        if isinstance(self.true, us.ReluNetwork):
            return np.zeros(len(X))
        return spread(np.einsum("bni,bi->bn", X, X[:, -1] @ self.true.W.T + self.true.w))


def softmax(scores: Single) -> Single:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    share: Single = weights / weights.sum(axis=-1, keepdims=True)
    return share


def spread(scores: Array) -> Array:
    largest: Array = np.max(np.ptp(scores, axis=-1).reshape(len(scores), -1), axis=1)
    return largest


# -- what is drawn


def one_head(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng([seed, 1])
    W, w = rng.standard_normal((32, 32)) / np.sqrt(32), rng.standard_normal(32) / np.sqrt(32)
    true = us.SingleHead(stored(W), stored(rng.standard_normal(32)), stored(w), 0.5)
    return Heads(true), us.learners.ExactHead(32, biases=True, seed=seed)


def low_rank(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng([seed, 2])
    K, Q = map(stored, rng.standard_normal((2, 8, 64)) / np.sqrt(np.sqrt(8 * 64)))
    true = us.SingleHead(K.T @ Q, stored(rng.standard_normal(64)))
    return Heads(true, (K, Q)), us.learners.LowRankHead(64, seed=seed)


def four_heads(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng([seed, 3])
    W, w = rng.standard_normal((4, 32, 32)), rng.standard_normal((4, 32))
    W, w, v = stored(W / np.sqrt(32)), stored(w / np.sqrt(32)), rng.standard_normal((4, 32))
    true = us.MultiHead(W, stored(v), w, 0.5)
    return Heads(true), us.learners.MultiHeadLearner(32, max_heads=8, biases=True, seed=seed)


def drawn_network(dim: int, neurons: int, rng: np.random.Generator) -> us.ReluNetwork:
    A, w_o = rng.standard_normal((dim, neurons)), rng.standard_normal(neurons)
    b = 0.5 * rng.standard_normal(neurons)
    return us.ReluNetwork(stored(A / np.sqrt(dim)), stored(w_o / np.sqrt(neurons)), stored(b), 0.5)


def network(seed: int) -> tuple[Any, Any]:
    true = drawn_network(16, 16, np.random.default_rng([seed, 4]))
    return Network(true), us.learners.ReluNetworkLearner(16, seed=seed)


def transformer(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng([seed, 5])
    W = stored(rng.standard_normal((8, 8)) / np.sqrt(8))
    true = us.Transformer(W, drawn_network(8, 8, rng))
    return Network(true), us.learners.TransformerLearner(8, seed=seed)


TARGETS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "one head, d = 32": one_head,
    "rank 8, d = 64": low_rank,
    "four heads, d = 32": four_heads,
    "network 16-16-1": network,
    "Transformer, d = 8, 8 neurons": transformer,
}


# -- what is asked, and what is found


class Watched:
    """An oracle that notes how long its tokens are, its logits, and how far off it is."""

    def __init__(self, served: Any, arithmetic: Arithmetic) -> None:
        self.served, self.arithmetic = served, arithmetic
        self.queries = 0
        self.lengths: list[Array] = []
        self.logits: list[Array] = []
        self.off: list[Array] = []

    def __call__(self, X: Array) -> Any:
        """Answer in this arithmetic."""
        exact = np.asarray(self.served.true(X))
        inside = self.arithmetic == "float32 inside"
        answers = self.served(X) if inside else exact
        answers = single(answers) if self.arithmetic == "float32 answers" else answers
        self.queries += len(X)
        self.lengths.append(np.max(np.linalg.norm(X, axis=2), axis=1))
        if X.shape[1] > 1:
            self.logits.append(self.served.logits(X))
        size = np.maximum(np.abs(exact), np.finfo(np.float64).tiny)
        self.off.append(np.abs(answers - exact) / size)
        return answers


@dataclass(frozen=True)
class Run:
    """What one recovery reached; errors are relative, lengths and logits (median, largest)."""

    queries: int
    error: float
    bound: float
    lengths: tuple[float, float]
    logits: tuple[float, float]
    off: float


def recover(draw: Callable[[int], tuple[Any, Any]], seed: int, how: Arithmetic) -> Run | None:
    """Recover a target; None where it is refused."""
    served, learner = draw(seed)
    oracle = Watched(served, how)
    try:
        recovery = us.learn(oracle, learner)
    except (us.NotIdentifiable, us.ModelMismatch):
        return None
    compare = of_network if isinstance(served.true, us.ReluNetwork) else of_heads
    lengths, logits, off = (
        np.concatenate(found or [np.zeros(1)])
        for found in (oracle.lengths, oracle.logits, oracle.off)
    )
    return Run(
        oracle.queries,
        *compare(recovery, served.true),
        (float(np.median(lengths)), float(np.max(lengths))),
        (float(np.median(logits)), float(np.max(logits))),
        float(np.median(off)),
    )


def of_heads(recovery: Any, true: Any) -> tuple[float, float]:
    """Relative error of W, the largest over heads, and what is certified of the same head."""
    shape = (-1, true.dim, true.dim)
    mine, wanted = np.reshape(recovery.model.W, shape), np.reshape(true.W, shape)
    assert len(mine) == len(wanted)
    apart = np.linalg.norm(mine[:, None] - wanted, axis=(2, 3))
    i, j = linear_sum_assignment(apart)
    size = np.linalg.norm(wanted[j], axis=(1, 2))
    assert np.all(apart[i, j] <= recovery.certificate.W_error)
    return float(np.max(apart[i, j] / size)), float(recovery.certificate.W_error / np.min(size))


def of_network(recovery: Any, true: us.ReluNetwork) -> tuple[float, float]:
    """Error and bound of a network's answers to fresh tokens, over the largest answer."""
    x = np.random.default_rng(0).standard_normal((POINTS, true.dim))
    errors, y = recovery.certificate.errors, true(x)
    allowed = errors["constant"] + errors["slope"] * np.linalg.norm(x, axis=1)
    missed = np.abs(recovery.model(x) - y)
    assert np.all(missed <= allowed)
    size = float(np.max(np.abs(y)))
    return float(np.max(missed)) / size, float(np.max(allowed)) / size


def measured(seeds: int, how: Arithmetic) -> dict[str, list[Run]]:
    """Recover every target with every seed; what is refused is left out."""
    runs = {
        name: [recover(draw, seed, how) for seed in range(seeds)] for name, draw in TARGETS.items()
    }
    return {name: [run for run in in_turn if run] for name, in_turn in runs.items()}


def reached(runs: dict[str, list[Run]], seeds: int) -> str:
    rows = [
        [
            name,
            f"{median(run.queries for run in found):,.0f}",
            f"{median(run.error for run in found):.0e}",
            f"{max(run.error for run in found):.0e}",
            f"{median(run.bound for run in found):.0e}",
            " to ".join(f"{max(run.lengths[k] for run in found):.0e}" for k in (0, 1)),
            " to ".join(f"{max(run.logits[k] for run in found):.0e}" for k in (0, 1)),
            f"{median(run.off for run in found) * 2**24:.1f}",
            f"{seeds - len(found)} of {seeds}",
        ]
        for name, found in runs.items()
    ]
    header = ["target", "queries", "error", "largest", "certified", "tokens", "logits"]
    return table([*header, "answers off", "refused"], rows)


def sources(runs: dict[Arithmetic, dict[str, list[Run]]]) -> str:
    rows = []
    for name in TARGETS:
        errors = {how: median(run.error for run in runs[how][name]) for how in UNITS}
        asked = {how: median(run.queries for run in runs[how][name]) for how in UNITS}
        rows.append([name, *(f"{asked[how]:,.0f}" for how in ("float64", "float32 inside"))])
        rows[-1] += [f"{errors[how] / unit:,.0f}" for how, unit in UNITS.items()]
    header = ["target", "queries, float64", "float32"]
    return table(
        [*header, "error / 2⁻²⁴, float32 inside", "answers alone", "/ 2⁻⁵³, float64"], rows
    )


def document(seeds: int) -> str:
    runs = {how: measured(seeds, how) for how in UNITS}
    return f"""# float32 endpoints: what is reached, and why

{environment()}
Seeds: {seeds}; `python benchmarks/float32.py --help` says how. Accuracy does not depend on what
else runs.

## What is reached

Targets whose weights are float32 numbers and which compute in float32 throughout, by default
settings. *error* is that of W relative to ‖W‖_F (the largest over heads), for the network that of f
over the largest answer at {POINTS:,} Gaussian tokens: the median over seeds, and the largest.
*certified* is the median of what the certificate says of the same; no error was above it. *tokens*
are norms of the longest token of a question, *logits* the largest difference of two scores in it:
the median question, and the extreme one, each the largest over seeds. *answers off*: the median
error of an answer, in units of 2⁻²⁴ of itself.

{reached(runs["float32 inside"], seeds)}

Extreme questions saturate on purpose: several heads and networks are found by tokens that are long
enough to switch every head but one, or every neuron. W itself is read from questions near the
median. `MultiHeadLearner(radius=)` bounds them, where a service refuses long tokens.
Refused are networks some of whose hyperplanes answers of 24 bits do not separate
(`NotIdentifiable`, with the figure): nothing wrong is returned instead.

## Why not better

{sources(runs)}

- *Answers.* An answer is known to 2⁻²⁴ of the terms that it is made of, and W solves equations
  between answers, which amplify that error. For one head, of full or of low rank, they do so by
  some tens, in float32 as in float64: nothing but the answers limits what is reached.
- *Scores.* The target also rounds each score x·(W b + w), relative to its terms, before any answer
  is computed. No scale of the tokens avoids that. It costs two to ten times the error.
- *Long tokens.* Several heads and networks are found by long tokens, which cost hundreds to
  thousands of units in float64. In float32 as many units would leave errors of up to 1e-3. So more
  is asked: heads are corrected by Newton's steps at short tokens
  ([note 35](../lab/0035-real-endpoints.md)), and neurons are measured again until fresh tokens are
  predicted.

The certificate allows for the worst case: for a single head the errors of all answers added up, for
several heads twelve times what independent errors do. True errors cancel, and are much smaller.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds (default 5)")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs" / "benchmarks" / "float32.md",
        help="markdown file to write",
    )
    options = parser.parse_args()
    publish(document(options.seeds), options.out)


if __name__ == "__main__":
    main()
