"""What ApproximateHead makes of coarse answers, beside the bound and the paper's probes.

Prints four tables and writes them, with the date and the commit, to a markdown file:

1. RMS error of W and v under Gaussian noise over the Cramér–Rao bound of the queries asked;
2. the worst case over the signs of ±τ, balanced probes over the paper's;
3. answers rounded to one decimal, by how far tokens may be stretched;
4. rounding under a cap on the tokens' norms, by the number of passes.

Everything is counted and measured outside the library.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np

import unsoftmax as us
from measuring import ROOT, environment, publish, table
from unsoftmax.learners import ApproximateHead
from unsoftmax.probes import Array, Probes
from unsoftmax.protocol import Found
from unsoftmax.theory.information import cramer_rao, jacobian

DIM = 8
NOISE = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1)
DEVIATIONS = 3.0
SIGN_DIMS = (2, 3, 4, 8, 16, 32)
SHAPES = ("Gaussian", "all equal", "one entry 100 times smaller")
RADII = (1.0, 2.0**5, 2.0**10, 2.0**20, None)
PASSES = (1, 4, 16, 64, 256)


def head(dim: int, seed: int, shape: str = "Gaussian") -> us.SingleHead:
    """Make a head with ‖W‖_F = 2 and ‖v‖ = 1."""
    rng = np.random.default_rng([dim, seed])
    W, v = rng.standard_normal((dim, dim)), rng.standard_normal(dim)
    if shape != "Gaussian":
        v = np.sign(v)
    if shape == SHAPES[2]:
        v[0] *= 0.01
    return us.SingleHead(2 * W / np.linalg.norm(W), v / np.linalg.norm(v))


class Kept:
    """An oracle that keeps the questions."""

    def __init__(self, target: us.SingleHead) -> None:
        self.target = target
        self.asked: list[Array] = []

    def __call__(self, X: Array) -> Array:
        """Answer, and note what was asked."""
        self.asked.append(X)
        return self.target(X)


def written(probes: Probes) -> Array:
    """Write probes out as two tokens: [x] is answered as [x; x] is."""
    X = probes[0 : len(probes)]
    return np.repeat(X, 2, axis=1) if probes.tokens == 1 else X


def by_hand(
    learner: ApproximateHead, oracle: Callable[[Array], Array]
) -> tuple[Array, Found[us.SingleHead]]:
    """Run a learner; return all that it asks to learn from, and what it finds."""
    steps = learner.steps(32)
    parts, asked = next(steps), []
    while True:
        asked += [written(p) for p in parts if p.purpose in ("data", "pilot")]
        try:
            parts = steps.send([oracle(p[0 : len(p)]) for p in parts])
        except StopIteration as end:
            return np.concatenate(asked), end.value


def rms(values: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


# -- 1. noise


def efficiency(seeds: int) -> str:
    rows = []
    for sigma in NOISE:
        v_ratio, W_ratio, W_errors, bounds, refused = [], [], [], [], 0
        for seed in range(seeds):
            target = head(DIM, seed)
            learner = ApproximateHead(
                DIM, DEVIATIONS * sigma, radius=1.0, norm_bound=4.0, seed=seed
            )
            try:
                asked, recovery = by_hand(learner, us.oracles.noisy(target, sigma, seed))
            except (us.NotIdentifiable, us.ModelMismatch):
                refused += 1
                continue
            v_bound, W_bound = cramer_rao(target, asked, sigma)
            W_errors.append(float(np.linalg.norm(recovery.model.W - target.W)))
            v_ratio.append(float(np.linalg.norm(recovery.model.v - target.v)) / v_bound)
            W_ratio.append(W_errors[-1] / W_bound)
            bounds.append(recovery.certificate.W_error)
        cells = ["–"] * 4
        if W_ratio:
            cells = [
                f"{rms(W_errors):.2g}",
                f"{rms(W_ratio):.2f}",
                f"{rms(v_ratio):.2f}",
                f"{np.median(bounds):.2g}",
            ]
        rows.append([f"{sigma:g}", *cells, f"{refused} of {seeds}"])
    header = ["σ", "‖ΔW‖", "/ bound", "‖Δv‖ / bound", "certificate", "refused"]
    return table(header, rows)


# -- 2. worst signs


def worst_case(J: Array, dim: int, rng: np.random.Generator) -> float:
    """Largest ‖J s‖ over signs s: all of them if few, else ascent from many starts."""
    n = J.shape[1]
    if n <= 12:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=n)))
        return float(np.linalg.norm(signs @ J.T, axis=1).max())
    starts = [rng.choice([-1.0, 1.0], n) for _ in range(8)]
    starts.append((np.arange(n) < dim).astype(float))  # the paper's probes' own worst case
    best = 0.0
    for s in starts:
        while True:
            better = np.where(J.T @ (J @ s) >= 0, 1.0, -1.0)
            if np.array_equal(better, s):
                break
            s = better
        best = max(best, float(np.linalg.norm(J @ s)))
    return best


def worst_ratio(dim: int, shape: str, seed: int) -> float:
    target, rng = head(dim, seed, shape), np.random.default_rng(seed)
    found = []
    for learner in (
        ApproximateHead(dim, 1e-9, norm_bound=2.0, radius=1.0, seed=seed),
        ApproximateHead(dim, 1e-9, norm_bound=2.0, probes="paper", seed=seed),
    ):
        # as many answers as parameters: the estimate is the inverse of asking
        inverse = np.linalg.inv(jacobian(target, by_hand(learner, target)[0]))
        found.append(worst_case(np.asarray(inverse[dim:], dtype=np.float64), dim, rng))
    return found[0] / found[1]


def signs(dims: tuple[int, ...], seeds: int) -> str:
    rows = []
    for dim in dims:
        count = seeds if dim <= 16 else 1
        ratios = [[worst_ratio(dim, shape, seed) for seed in range(count)] for shape in SHAPES]
        rows.append([str(dim), *(f"{max(found):.3f}" for found in ratios)])
    return table(["d", *(f"v {shape}" for shape in SHAPES)], rows)


# -- 3. stretching


def stretching(seeds: int) -> str:
    rows = []
    for radius in RADII:
        errors, bounds, v_errors = [], [], []
        for seed in range(seeds):
            target = head(DIM, seed)
            learner = ApproximateHead(DIM, 0.05, radius=radius, seed=seed)
            try:
                recovery = us.learn(us.oracles.rounded(target, 1), learner)
            except us.NotIdentifiable:
                continue
            errors.append(float(np.linalg.norm(recovery.model.W - target.W)))
            v_errors.append(float(np.linalg.norm(recovery.model.v - target.v)))
            bounds.append(recovery.certificate.W_error)
        name = "none" if radius is None else f"{radius:g}"
        cells = [f"{max(x):.1e}" for x in (errors, bounds, v_errors)] if errors else ["–"] * 3
        rows.append([name, *cells, f"{seeds - len(errors)} of {seeds}"])
    return table(["radius", "‖ΔW‖", "certificate", "‖Δv‖", "refused"], rows)


# -- 4. dithering


def dithering(passes: tuple[int, ...], seeds: int) -> str:
    rows = []
    for repeats in passes:
        cells, queries = [], 0
        for decimals in (2, 3, 4):
            errors = []
            for seed in range(seeds):
                target = Kept(head(DIM, seed))
                learner = ApproximateHead(
                    DIM, 0.5 * 10.0**-decimals, radius=1.0, repeats=repeats, seed=seed
                )
                capped = us.oracles.norm_capped(us.oracles.rounded(target, decimals), 1.0)
                recovery = us.learn(capped, learner)
                errors.append(float(np.linalg.norm(recovery.model.W - target.target.W)))
                queries = sum(map(len, target.asked)) - recovery.evidence.queries
            cells.append(f"{rms(errors):.2g}")
        rows.append([str(repeats), f"{queries:,}", *cells])
    return table(["passes", "queries", "2 decimals", "3 decimals", "4 decimals"], rows)


def document(seeds: int) -> str:
    return f"""# ApproximateHead: coarse answers

{environment()}
‖W‖_F = 2, ‖v‖ = 1; `python benchmarks/approximate_head.py --help` says how.

## Noise, against the Cramér–Rao bound

d = {DIM}, tokens up to norm 1, tolerance {DEVIATIONS:g}σ, RMS over {10 * seeds} runs. The bound is
that of the very queries asked, from the Jacobian of the true head. *Certificate* (median) bounds
the error for answers within ±tolerance, whatever their signs. Refused: v does not stand out of
{DEVIATIONS:g}σ, or an answer to the hold-out was off by more.

{efficiency(10 * seeds)}

## Worst signs, against the paper's probes

Largest ‖ΔW‖ over all signs of ±τ, balanced over the paper's probes, same number of queries and
tokens up to norm 1 for both; to first order in τ. All signs for d = 2, else ascent; the largest
over {seeds} heads (d > 16: one).

{signs(SIGN_DIMS, seeds)}

## One decimal

d = {DIM}, answers rounded to one decimal, by the longest token allowed; the largest over {seeds}
heads.

{stretching(seeds)}

## Rounding under a cap

d = {DIM}, tokens up to norm 1, RMS of ‖ΔW‖ over {seeds} heads. Rounding is the same for the same
question: passes ask in other directions.

{dithering(PASSES, seeds)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many seeds (default 10)")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs" / "benchmarks" / "approximate_head.md",
        help="markdown file to write",
    )
    options = parser.parse_args()
    publish(document(options.seeds), options.out)


if __name__ == "__main__":
    main()
