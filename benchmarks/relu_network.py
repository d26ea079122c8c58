"""What a ReLU network costs and how exact it is, beside published counts and ART's extraction.

Prints two tables and writes them, with the date and the commit, to a markdown file:

1. queries counted by the oracle, and errors of the function and of the weights, for random
   networks and for scikit-learn regressors trained on its digits, which are asked by `predict`
   alone; with and without `polish`; the published figures of Carlini et al. 2020 beside them;
2. `FunctionallyEquivalentExtraction` of the Adversarial Robustness Toolbox (ART), which
   implements Jagielski et al. 2020, on networks that it can take, and ours on the same ones.

Every run has a process of its own. All numbers are medians over the seeds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from scipy.ndimage import zoom
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPRegressor

import unsoftmax as us
from measuring import ROOT, Timed, apart, environment, middle, publish, table
from unsoftmax.probes import Array

Kind = Literal["random", "is it a 3?", "which digit?"]
How = Literal["plain", "polish", "ART"]

KINDS: tuple[Kind, ...] = ("random", "is it a 3?", "which digit?")
SHAPES = ((64, 128), (784, 32), (784, 128))
# ART inverts A, and its search takes m²·800 queries: few neurons.
ART_SHAPES = ((784, 4), (64, 16), (784, 32))
OURS: tuple[How, ...] = ("plain", "polish")
ART_KINDS: tuple[Kind, ...] = ("random", "is it a 3?")
# Its search alone takes 2^21.9 at m = 128: not run. Its loops have no bound of their own.
ART_LIMIT = 2**22
STEPS = 100  # of training: R² is 0.85 to 0.98 by then
POINTS = 20_000


# -- the targets


@dataclass(frozen=True)
class Case:
    """One network to recover."""

    dim: int
    neurons: int
    kind: Kind
    how: How = "plain"
    seed: int = 0


def random_network(case: Case) -> us.ReluNetwork:
    rng = np.random.default_rng([case.dim, case.neurons, case.seed])
    A = rng.standard_normal((case.dim, case.neurons)) / np.sqrt(case.dim)
    w_o = rng.standard_normal(case.neurons) / np.sqrt(case.neurons)
    return us.ReluNetwork(A, w_o, 0.5 * rng.standard_normal(case.neurons), 0.3)


def trained(case: Case) -> Any:
    """Train a regressor on images of √d by √d pixels between 0 and 1."""
    digits = load_digits()
    side = round(case.dim**0.5)
    images = np.stack([zoom(image / 16, side / 8, order=1) for image in digits.images])
    wanted = digits.target == 3 if case.kind == "is it a 3?" else digits.target
    regressor = MLPRegressor(
        hidden_layer_sizes=(case.neurons,), max_iter=STEPS, random_state=case.seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that training has not converged
        regressor.fit(images.reshape(len(images), -1), wanted.astype(float))
    return regressor


def target_of(case: Case) -> tuple[Callable[[Array], Array], us.ReluNetwork]:
    """Return what is asked at points (B, d), and the weights to compare with."""
    if case.kind == "random":
        network = random_network(case)
        return network, network
    regressor = trained(case)
    (A, w_o), (b, c) = regressor.coefs_, regressor.intercepts_
    return regressor.predict, us.ReluNetwork(A, w_o[:, 0], b, c[0])


# -- one recovery


@dataclass(frozen=True)
class Run:
    """What one recovery cost, as counted and timed outside; no error: it gave up."""

    queries: int
    error: float | None
    size: float
    """The largest answer where the error was measured."""
    neurons: int
    weights: float
    seconds: float
    reason: str = ""


def points_of(case: Case) -> Array:
    """Return points as Carlini et al. check theirs: of all directions, ‖x‖ = 2√d."""
    rng = np.random.default_rng([1, case.seed])
    x = rng.standard_normal((POINTS, case.dim))
    return np.asarray(2 * np.sqrt(case.dim) * x / np.linalg.norm(x, axis=1, keepdims=True))


def compared(found: us.ReluNetwork, true: us.ReluNetwork) -> tuple[int, float]:
    """Count the neurons that were found, and return the largest error of their A and b.

    Neurons are matched by direction; sign and norm, which the function leaves free, are the
    true ones.
    """
    mine, other = np.vstack([found.A, found.b]), np.vstack([true.A, true.b])
    norms = np.linalg.norm(mine, axis=0), np.linalg.norm(other, axis=0)
    cosine = (other / norms[1]).T @ (mine / norms[0])
    nearest, each = np.argmax(np.abs(cosine), axis=1), np.arange(len(cosine))
    scale = np.sign(cosine[each, nearest]) * norms[1] / norms[0][nearest]
    error = np.max(np.abs(scale * mine[:, nearest] - other), axis=0)
    there = np.abs(cosine[each, nearest]) > 1 - 1e-6
    return int(there.sum()), float(np.max(error[there], initial=0.0))


def recover(case: Case) -> Run:
    predict, true = target_of(case)
    oracle = Timed(lambda X: predict(X[:, 0]))
    learner = us.learners.ReluNetworkLearner(case.dim, polish=case.how == "polish", seed=case.seed)
    start = time.perf_counter()
    try:
        recovery = us.learn(oracle, learner)
    except us.UnsoftmaxError as refusal:
        return Run(oracle.queries, None, 0, 0, 0, time.perf_counter() - start, str(refusal))
    seconds = time.perf_counter() - start
    x = points_of(case)
    answers = predict(x)
    neurons, weights = compared(recovery.model, true)
    return Run(
        queries=oracle.queries,
        error=float(np.max(np.abs(recovery.model(x) - answers))),
        size=float(np.max(np.abs(answers))),
        neurons=neurons,
        weights=weights,
        seconds=seconds,
    )


# -- ART instead


class Spent(Exception):
    """ART has asked as much as it may."""


def recover_by_art(case: Case) -> Run:
    """Let ART recover the network from its logits (f, −f) in float64; it needs two or more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that PyTorch is not installed
        from art.attacks.extraction import FunctionallyEquivalentExtraction
        from art.estimators.classification.blackbox import BlackBoxClassifierNeuralNetwork

    predict, true = target_of(case)
    asked = 0

    def logits(x: Array) -> Array:
        nonlocal asked
        asked += len(x)
        if asked > ART_LIMIT:
            raise Spent(f"more than {ART_LIMIT:,} queries")
        return np.asarray(predict(x)[:, None] * [1.0, -1.0])

    class Double(BlackBoxClassifierNeuralNetwork):  # type: ignore[misc]
        """ART's own would round answers to float32."""

        def predict(self, x: Array, batch_size: int = 128, **_: Any) -> Array:
            return logits(x)

    # ART draws from NumPy's global state
    np.random.seed(case.seed)  # noqa: NPY002
    rng = np.random.default_rng(case.seed)
    samples = rng.standard_normal((100 + 4 * case.neurons, case.dim))
    start = time.perf_counter()
    try:
        attack = FunctionallyEquivalentExtraction(
            Double(logits, (case.dim,), 2, clip_values=None), num_neurons=case.neurons
        )
        with np.errstate(all="ignore"):
            extracted = attack.extract(samples)
    except (AssertionError, ValueError, Spent) as refusal:
        return Run(asked, None, 0, 0, 0, time.perf_counter() - start, str(refusal))
    seconds, queries = time.perf_counter() - start, asked
    x = points_of(case)
    answers = predict(x)
    found = us.ReluNetwork(attack.w_0, attack.w_1[:, 0], attack.b_0[:, 0], attack.b_1[0, 0])
    neurons, weights = compared(found, true)
    return Run(
        queries=queries,
        error=float(np.max(np.abs(extracted.predict(x)[:, 0] - answers))),
        size=float(np.max(np.abs(answers))),
        neurons=neurons,
        weights=weights,
        seconds=seconds,
    )


# -- all of them


def power(value: float) -> str:
    return f"2^{np.log2(value):.1f}"


def row_of(runs: Sequence[Run], m: int) -> list[str]:
    done = [run for run in runs if run.error is not None]
    queries = median(run.queries for run in runs)
    row = [f"{queries:,.0f}", power(queries), f"{len(done)} of {len(runs)}"]
    if not done:
        return [*row, "–", "–", "–", "–", middle((run.seconds for run in runs), 1)]
    errors = [run.error for run in done if run.error is not None]
    return [
        *row,
        power(median(errors)),
        power(median(run.error / run.size for run in done if run.error is not None)),
        f"{min(run.neurons for run in done)} of {m}",
        f"{median(run.weights for run in done):.0e}",
        middle((run.seconds for run in runs), 1),
    ]


COLUMNS = ["queries", "", "done", "error of f", "relative", "neurons", "error of A, b", "seconds"]


def accuracy(shapes: Sequence[tuple[int, int]], seeds: int) -> str:
    keys: list[tuple[int, int, Kind, How]] = [
        (d, m, kind, how) for d, m in shapes for kind in KINDS for how in OURS
    ]
    cases = [Case(*key, seed) for key in keys for seed in range(seeds)]
    runs = dict(zip(cases, apart(recover, cases), strict=True))
    rows = [
        [
            f"{d}-{m}-1",
            kind,
            how,
            *row_of([runs[Case(d, m, kind, how, s)] for s in range(seeds)], m),
        ]
        for d, m, kind, how in keys
    ]
    blank = ["–"] * 4
    rows.append(
        ["784-128-1", "trained on MNIST", "Carlini et al. 2020", "", "2^21.5", "", "2^-25", *blank]
    )
    return table(["shape", "target", "how", *COLUMNS], rows)


def peers(shapes: Sequence[tuple[int, int]], seeds: int) -> str:
    header = ["shape", "target", "how", *COLUMNS]
    if importlib.util.find_spec("art") is None:
        return table(header, [["–", "–", "ART: not installed", *["–"] * len(COLUMNS)]])
    rows = []
    for d, m in shapes:
        for kind in ART_KINDS:
            cases = [Case(d, m, kind, "ART", seed) for seed in range(seeds)]
            theirs = apart(recover_by_art, cases)
            rows.append([f"{d}-{m}-1", kind, "ART", *row_of(theirs, m)])
            ours = apart(recover, [Case(d, m, kind, "plain", seed) for seed in range(seeds)])
            rows.append([f"{d}-{m}-1", kind, "plain", *row_of(ours, m)])
    return table(header, rows)


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def document(shapes: Sequence[tuple[int, int]], art: Sequence[tuple[int, int]], seeds: int) -> str:
    return f"""# ReluNetworkLearner: cost and exactness

{environment()}
scikit-learn {version("scikit-learn")}, ART {version("adversarial-robustness-toolbox")}.
Seeds: {seeds} (medians); `python benchmarks/relu_network.py --help` says how.

## Beside Carlini, Jagielski and Mironov

*random*: A is Gaussian over √d, the biases over 2, w_o over √m. The other targets are
`MLPRegressor`s of scikit-learn, trained for {STEPS} epochs by Adam on its 1,797 digits, which are
stretched to √d by √d pixels in [0, 1], and asked by `predict`. 784-128-1 has 100,480 weights.

*queries* is what the oracle counted, the hold-out included. *error of f* is the largest
``|f̂(x) − f(x)|`` over {POINTS:,} fresh points of random direction and norm 2√d, the measure of the
code that accompanies Carlini et al. 2020 (arXiv 2003.04884); *relative* divides it by the largest
``|f(x)|`` there. *neurons* counts those whose direction was found to 1e-6, in the worst seed;
*error of A, b* is the largest error of an entry of theirs, each scaled to its true norm. The
last row is what that paper's abstract says.

{accuracy(shapes, seeds)}

Trained networks have dead neurons: weight decay leaves them slopes 1e-5 of the others', or less,
and hyperplanes thousands of images away. They are what is missing among the neurons, and where
the largest errors of A and b are.

## Beside the Adversarial Robustness Toolbox

ART's `FunctionallyEquivalentExtraction` (Jagielski et al. 2020) with its default settings, told
the number of neurons, on the logits (f, −f) in float64: it takes two logits or more, and through
its own classifiers answers would be rounded to float32. *done* counts the runs that
ended with a network; the others stop because a wrong number of critical points was found, or are
stopped at {ART_LIMIT:,} queries, and count in *queries* and *seconds* with what they spent.

{peers(art, seeds)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default 3)")
    parser.add_argument("--small", action="store_true", help="the smallest shapes alone")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs" / "benchmarks" / "relu_network.md",
        help="markdown file to write",
    )
    options = parser.parse_args()
    shapes, art = (list(x)[: 1 if options.small else None] for x in (SHAPES, ART_SHAPES))
    publish(document(shapes, art, options.seeds), options.out)


if __name__ == "__main__":
    main()
