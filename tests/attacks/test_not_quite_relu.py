"""Functions that are a ReLU but beside its kink: refused, or covered by what is certified.

Every target of `tests.laws` that has neurons is asked with another function in the place of
max(0, ·), written here in plain NumPy. It differs from it within a strip beside each hyperplane
alone, which is from 1e-12 to 1e-2 of a length scale wide.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.laws import CASES

Phi = Callable[[Any, Any], Any]
"""From z (…, m), and the strip's half width in its unit, to what takes the place of max(0, z)."""


def smooth(z, t):
    """Softplus: off by t ln 2 on the hyperplane, by 1e-4 of that 10 widths away."""
    return np.maximum(z, 0.0) + t * np.log1p(np.exp(-np.abs(z) / t))


STRIPS: dict[str, Phi] = {
    "z [z > t]": lambda z, t: z * (z > t),
    "z [z > −t]": lambda z, t: z * (z > -t),
    "z [|z| > t] + t": lambda z, t: np.where(np.abs(z) > t, np.maximum(z, 0.0), t),
    "softplus": lambda z, t: smooth(z, t / 10),
    "rounded": lambda z, t: np.where(
        np.abs(z) < t, np.square(np.clip(z + t, 0, 2 * t)) / (4 * t), np.maximum(z, 0.0)
    ),
}


def pooled(X, W, w):
    """What one head pools: (B, d)."""
    scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T + w)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("bn,bnd->bd", weights, X) / weights.sum(axis=1, keepdims=True)


def normalised(x, norm):
    x = x - norm.centred * x.mean(axis=1, keepdims=True)
    return norm.shift + norm.scale * x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + norm.eps)


class Neurons:
    """A target with another function in the place of max(0, ·)."""

    def __init__(self, model: Any, phi: Phi, width: float) -> None:
        self.model, self.phi, self.width = model, phi, width

    def given(self, X: Any) -> Any:
        """What neurons add up: z (B, m)."""
        f = self.model
        if isinstance(f, us.ReluNetwork):
            return X[:, -1] @ f.A + f.b
        if isinstance(f, us.Transformer):
            return pooled(X, f.W, f.w) @ f.network.A + f.network.b
        if isinstance(f, us.MultiHeadTransformer):
            last = 0.0 if f.residual is None else X[:, -1] @ f.residual.T
            heads = zip(f.W, f.w, f.B, strict=True)
            return last + f.b + sum(pooled(X, W, w) @ B.T for W, w, B in heads)
        x = X[:, -1]
        x = normalised(x, f.norm) if f.norm is not None and f.norm.before else x
        return x @ f.A.T + f.b

    @property
    def steep(self) -> Any:
        """‖∇z‖ of every neuron (m,), of single tokens."""
        f = self.model
        if isinstance(f, us.ReluNetwork):
            return np.linalg.norm(f.A, axis=0)
        if isinstance(f, us.Transformer):
            return np.linalg.norm(f.network.A, axis=0)
        if isinstance(f, us.MultiHeadTransformer):
            return np.linalg.norm(f.on_single_tokens.A, axis=0)
        return np.linalg.norm(f.A, axis=1)

    def __call__(self, X: Any) -> Any:
        f, t = self.model, self.width * self.steep
        h = self.phi(self.given(X), t)
        if isinstance(f, us.FeedForward):
            y = h @ f.B.T + f.c + (X[:, -1] if f.residual else 0.0)
            return normalised(y, f.norm) if f.norm is not None and not f.norm.before else y
        network = f.network if isinstance(f, us.Transformer) else f
        return h @ network.w_o + network.c

    def in_strips(self, rng: Any, each: int) -> Any:
        """Return single tokens in the strip of each neuron, (n, d)."""
        d, m = self.model.dim, len(self.steep)
        ends = rng.standard_normal((2, 40 * each, d)) * 10.0 ** rng.uniform(
            -1, 1, (2, 40 * each, 1)
        )
        z = [self.given(x[:, None]) for x in ends]
        tokens = []
        for j in range(m):
            across = np.flatnonzero(z[0][:, j] * z[1][:, j] < 0)[:each]
            if not len(across):
                continue
            level = self.width * self.steep[j] * rng.uniform(-1, 1, len(across))
            low, high = np.zeros((2, len(across), 1))
            high += 1
            p, q = ends[0][across], ends[1][across]
            rises = z[1][across, j] > 0
            for _ in range(60):
                middle = (low + high) / 2
                above = self.given((p + middle * (q - p))[:, None])[:, j] > level
                low, high = (
                    np.where((above == rises)[:, None], low, middle),
                    np.where((above == rises)[:, None], middle, high),
                )
            tokens.append(p + low * (q - p))
        return np.vstack(tokens) if tokens else np.zeros((0, d))


def certified(recovery: us.Recovery[Any], x: Any) -> Any:
    """What answers to single tokens (n, d) may be missed by."""
    errors, model = recovery.certificate.errors, recovery.model
    if isinstance(model, us.FeedForward):
        return model.moved_at_most(x, errors)
    return errors["constant"] + errors["slope"] * np.linalg.norm(x, axis=1)


def looked_down_to(recovery: us.Recovery[Any]) -> float:
    """Return how short tokens were asked, which is said where hyperplanes contain 0."""
    said = " ".join(recovery.certificate.assumes)
    shortest = re.findall(r"tokens of lengths from (\S+) to", said)
    return float(shortest[0]) if shortest else 0.0


def without_missing_neurons(recovery: us.Recovery[Any], target: Neurons, x: Any, rng: Any) -> Any:
    """Return the tokens (n, d) that a layer's certificate speaks of: they switch no missing neuron.

    A neuron may be missing if fewer tokens switch it than is said; of those that as many switch
    one in 20 is missed, of those that twice as many switch one in 400.
    """
    f, found = target.model, recovery.model
    said = " ".join(recovery.certificate.assumes)
    stated = re.findall(r"fewer than (\S+)% of such tokens switch may be missing", said)
    if not stated or not isinstance(f, us.FeedForward):
        return x
    X = 1e3 * rng.standard_normal((20_000, 1, f.dim))
    sums = target.given(X)
    own, known = sums, Neurons(found, target.phi, target.width).given(X)
    own, known = (z / np.linalg.norm(z, axis=0) for z in (own, known))
    missing = np.abs(own.T @ known).max(axis=1, initial=0.0) < 1 - 1e-9
    usual = np.mean(sums[:, missing] > 0, axis=0)
    assert np.all(np.minimum(usual, 1 - usual) < 2 * float(stated[0]) / 100), usual
    sides = target.given(x[:, None])[:, missing] > 0
    return x[np.all(sides == (usual > 0.5), axis=1)]


def missed_share(recovery: us.Recovery[Any], target: Neurons, rng: Any) -> float:
    """Return the largest share of what is certified by which answers in strips are missed."""
    x = np.vstack([target.in_strips(rng, 20), rng.standard_normal((50, target.model.dim))])
    x = x[np.linalg.norm(x, axis=1) >= looked_down_to(recovery)]
    x = without_missing_neurons(recovery, target, x, rng)
    y = target(x[:, None])
    off = np.abs(recovery.model(x[:, None]) - y).reshape(len(x), -1)
    size = np.abs(target.given(x[:, None])).max() + np.abs(y).max() + np.linalg.norm(x, axis=1)
    return float(np.max(np.linalg.norm(off, axis=1) / (certified(recovery, x) + 1e-14 * size)))


LAYERS = (us.ReluNetwork, us.Transformer, us.MultiHeadTransformer, us.FeedForward)


def with_neurons(case: Any) -> bool:
    return type(case.target(0)).__name__ in {layer.__name__ for layer in LAYERS}


BENDING = [case for case in CASES if with_neurons(case)]


def test_every_learner_of_neurons_is_attacked():
    """A target of another class with a network, or neurons, needs its own line in `given`."""
    for case in CASES:
        tensors = " ".join(getattr(case.target(0), "_tensors", {}).values())
        bends = "neurons" in tensors or "network" in tensors
        assert bends == (case in BENDING), case.name


@pytest.mark.parametrize("law", STRIPS)
def test_what_is_no_relu_within_a_strip_is_refused_or_covered(law, trials, evidence):
    """Learner and width are drawn by seed; no answer within a strip breaks a bound."""
    runs, refused, worst, wide = trials(1, 100), 0, 0.0, 0.0
    number = [*STRIPS].index(law)
    for seed in range(runs):
        rng = np.random.default_rng([seed, number, 31])
        case = BENDING[(7 * seed + 3 * number) % len(BENDING)]
        width = 10.0 ** rng.uniform(-12, -2)
        target: Any = Neurons(case.target(seed), STRIPS[law], width)
        try:
            recovery = us.learn(case.oracle(target), case.learner(seed))
        except us.UnsoftmaxError:
            refused += 1
            continue
        share = missed_share(recovery, target, rng)
        assert share <= 1, (seed, case.name, width, share)
        worst, wide = max(worst, share), max(wide, width)
    evidence(
        f"no ReLU within a strip of 1e-12 to 1e-2, {law}",
        runs=runs,
        refused=refused,
        broken=0,
        widest_accepted=wide,
        largest_share_of_the_certificate=worst,
    )
