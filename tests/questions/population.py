"""Random targets of every class that an audit names, and of none: what they are is known here."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import unsoftmax as us
from tests.heads import hostile, several
from tests.networks import KINDS
from tests.networks import network as hard_network
from tests.questions.services import network, served, transformer


class Secret(NamedTuple):
    """A target, how it is made, and the class that is right."""

    kind: str
    right: str
    target: Any
    dim: int
    heads: int | None = None


def weights(scores: Any) -> Any:
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def scores_of(X: Any, W: Any) -> Any:
    return np.einsum("bnd,hde,be->bhn", X, np.reshape(W, (-1, X.shape[2], X.shape[2])), X[:, -1])


def head(rng: Any, d: int, rank: int | None = None, biases: bool | None = None) -> Any:
    biases = bool(rng.integers(2)) if biases is None else biases
    return several(1, d, int(rng.integers(10**6)), rank, biases).heads[0]


def normalise(u: Any) -> Any:
    u = u - u.mean(axis=1, keepdims=True)
    return u / np.sqrt(np.mean(u**2, axis=1, keepdims=True) + 1e-6)


# -- targets of a class


def constant(rng: Any, d: int) -> Secret:
    c = float(rng.standard_normal())
    return Secret("constant", "constant", lambda X: np.full(len(X), c), d)


def linear(rng: Any, d: int) -> Secret:
    v, c = rng.standard_normal(d), float(rng.standard_normal())
    tokens = [lambda X: X.mean(axis=1), lambda X: X[:, -1]][int(rng.integers(2))]
    return Secret("linear", "linear", lambda X: tokens(X) @ v + c, d)


def single(rng: Any, d: int) -> Secret:
    rank = int(rng.integers(1, d + 1))
    return Secret("single head", "single head", head(rng, d, rank), d)


def in_float32(rng: Any, d: int) -> Secret:
    H = int(rng.integers(1, 4))
    model = several(H, d, int(rng.integers(10**6)))
    name = "single head" if H == 1 else "several heads"
    return Secret(f"{name}, float32", name, served(model, np.float32), d, H)


def rounded(rng: Any, d: int) -> Secret:
    model = head(rng, d, biases=False)
    decimals = int(rng.integers(1, 9))
    return Secret("single head, rounded", "single head", us.oracles.rounded(model, decimals), d)


def noisy(rng: Any, d: int) -> Secret:
    model = head(rng, d, biases=False)
    target = us.oracles.noisy(model, 10.0 ** rng.uniform(-9, -3), int(rng.integers(1000)))
    return Secret("single head, noisy", "single head", target, d)


def labelled(rng: Any, d: int) -> Secret:
    model = us.oracles.labels(head(rng, d, biases=False))
    return Secret("single head, labels", "single head", model, d)


def heads(rng: Any, d: int) -> Secret:
    H = int(rng.integers(2, 7))
    model = several(H, d, int(rng.integers(10**6)), biases=bool(rng.integers(2)))
    return Secret("several heads", "several heads", model, d, H)


def coarse_heads(rng: Any, d: int) -> Secret:
    model = several(int(rng.integers(2, 5)), d, int(rng.integers(10**6)))
    target = us.oracles.rounded(model, int(rng.integers(1, 9)))
    if rng.integers(2):
        target = us.oracles.noisy(model, 10.0 ** rng.uniform(-9, -2), int(rng.integers(1000)))
    return Secret("several heads, coarse", "several heads", target, d)


def vectors(rng: Any, d: int) -> Secret:
    H, m = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    W, V = rng.standard_normal((H, d, d)) / np.sqrt(d), rng.standard_normal((H, m, d))

    residual = bool(rng.integers(2))
    if residual:
        V = rng.standard_normal((H, d, d))

    def layer(X: Any) -> Any:
        y = np.einsum("bhn,bnd,hmd->bm", weights(scores_of(X, W)), X, V)
        return X[:, -1] + y if residual else y

    name = "several heads, vectors" + residual * " beside a residual"
    return Secret(name, "several heads", layer, d, H)


def relu(rng: Any, d: int) -> Secret:
    model = network(rng, d, int(rng.integers(2, 24)), bool(rng.integers(2)))
    last = [model, lambda X: model(X[:, -1:])][int(rng.integers(2))]
    return Secret("ReLU network", "ReLU network", last, d)


def behind(rng: Any, d: int) -> Secret:
    model: Any = transformer(rng, d, int(rng.integers(2, 24)), bool(rng.integers(2)))
    if rng.integers(8) == 0:  # two neurons
        model = us.oracles.clipped(head(rng, d), -1.0, 1.0)
    return Secret("network behind one head", "network behind one head", model, d)


def behind_several(rng: Any, d: int) -> Secret:
    H, m = int(rng.integers(2, 5)), int(rng.integers(2, 16))
    W, B = rng.standard_normal((H, d, d)) / np.sqrt(d), rng.standard_normal((H, m, d)) / np.sqrt(d)
    b, w_o = rng.standard_normal(m), rng.standard_normal(m)
    if rng.integers(4) == 0:
        one, two = head(rng, d), head(rng, d)
        name = "network behind several heads"
        return Secret(f"{name}, two neurons", name, lambda X: np.abs(one(X)) + two(X), d)

    def target(X: Any) -> Any:
        z = np.einsum("bhn,bnd,hmd->bm", weights(scores_of(X, W)), X, B)
        return np.maximum(z + b, 0) @ w_o

    return Secret("network behind several heads", "network behind several heads", target, d)


def normalised(rng: Any, d: int) -> Secret:
    d = max(d, 3)
    W, V = rng.standard_normal((2, d, d)) / np.sqrt(d), rng.standard_normal((2, d, d)) / np.sqrt(d)
    gain, shift = np.exp(rng.standard_normal(d) / 2), rng.standard_normal(d)

    def layer(X: Any) -> Any:
        pooled = np.einsum("bhn,bnd,hmd->bm", weights(scores_of(X, W)), X, V)
        return gain * normalise(X[:, -1] + pooled) + shift

    return Secret("normalised vectors", "normalised vectors", layer, d)


def after_norm(rng: Any, d: int) -> Secret:
    """A layer of today's models; of its answers all numbers, or without a residual one."""
    d = max(d, 3)
    model = several(2, d, int(rng.integers(10**6)))
    gain, shift = np.exp(rng.standard_normal(d) / 2), rng.standard_normal(d)
    V, centred = rng.standard_normal((2, d, d)) / np.sqrt(d), bool(rng.integers(2))
    one = bool(rng.integers(2))

    def layer(X: Any) -> Any:
        x = X - X.mean(axis=2, keepdims=True) * centred
        n = gain * x / np.sqrt(np.mean(x * x, axis=2, keepdims=True) + 1e-5) + shift
        if one:
            return model(n)
        return X[:, -1] + np.einsum("bhn,bnd,hmd->bm", model.attention(n), n, V)

    return Secret("normalised tokens", "normalised tokens", layer, d)


def positional(rng: Any, d: int) -> Secret:
    model = head(rng, d)
    kind = int(rng.integers(3))
    width, slope = int(rng.choice([2, 3, 4, 32])), float(rng.uniform(0.2, 1))

    def alibi(X: Any) -> Any:
        scores = scores_of(X, model.W)[:, 0] - slope * np.arange(X.shape[1])[::-1]
        return np.einsum("bn,bnd,d->b", weights(scores), X, model.v)

    steps = rng.standard_normal((512, d))
    kinds = (lambda X: model(X[:, -width:]), alibi, lambda X: model(X + steps[: X.shape[1]]))
    return Secret("position-dependent", "position-dependent", kinds[kind], d)


FAMILIES = (
    *("one head", "more heads than dimensions", "a plane", "equal W", "W and −W"),
    *("(W, v) and (−W, −v)", "(W, v) and (−W, v)", "W and 2W", "W = 0", "W = 0 alone", "rank 1"),
    *("rank 2", "symmetric", "antisymmetric", "W spread", "v spread", "W and v spread"),
    *("equal v", "v sum to zero", "two heads, v sum to zero", "sparse v", "whole numbers"),
    "large W",
)


def hard_heads(rng: Any, d: int) -> Secret:
    kind = FAMILIES[int(rng.integers(len(FAMILIES)))]
    model = hostile(kind, int(rng.integers(10**6)))
    merged = us.canonical(model)
    name = "several heads" if merged.H > 1 else "single head"
    if merged.H == 1 and not np.any(merged.W):
        name = "linear"
    return Secret(f"heads: {kind}", name, model, model.dim, merged.H)


def scaled(rng: Any, d: int) -> Secret:
    H = int(rng.integers(1, 4))
    model = several(H, d, int(rng.integers(10**6)), biases=bool(rng.integers(2)))
    s, t = 10.0 ** rng.uniform(-4, 4, 2)
    target = us.MultiHead(s * model.W, t * model.v, s * model.w, t * model.c)
    name = "single head" if H == 1 else "several heads"
    return Secret(f"{name}, scaled", name, target, d, H)


def hard_networks(rng: Any, d: int) -> Secret:
    kind, m = KINDS[int(rng.integers(len(KINDS)))], int(rng.integers(3, 40))
    model = hard_network(kind, d, m, int(rng.integers(10**6)), bool(rng.integers(2)))
    if rng.integers(2):
        return Secret(f"network, {kind}", "ReLU network", model, d)
    W = rng.standard_normal((d, d)) / np.sqrt(d)
    target = us.Transformer(W, model)
    return Secret(f"network behind one head, {kind}", "network behind one head", target, d)


OF_A_CLASS: tuple[Callable[[Any, int], Secret], ...] = (
    *(constant, linear, single, in_float32, rounded, noisy, labelled, heads, coarse_heads),
    *(vectors, relu, behind, behind_several, normalised, after_norm, positional, hard_heads),
    *(scaled, hard_networks),
)


# -- targets of no class


def _strange(rng: Any, d: int) -> dict[str, Any]:
    one, two = head(rng, d), head(rng, d)
    more = several(3, d, int(rng.integers(10**6)))
    W, v, u = one.W, one.v, rng.standard_normal(d)
    A = rng.standard_normal((d, 8)) / np.sqrt(d)
    w_o, small = rng.standard_normal(8), 10.0 ** rng.uniform(-6, 0)
    calls = [0]

    def counting(X: Any) -> Any:
        calls[0] += 1
        return one(X) + small * calls[0]

    def score(X: Any) -> Any:
        return scores_of(X, W)[:, 0]

    def pooled(X: Any, attention: Any) -> Any:
        return np.einsum("bn,bnd,d->b", attention, X, v)

    def sink(X: Any) -> Any:
        s = np.concatenate([score(X), np.zeros((len(X), 1))], axis=1)
        return pooled(X, weights(s)[:, :-1])

    def largest(X: Any) -> Any:
        s, k = score(X), min(2, X.shape[1])
        least = np.sort(s, axis=1)[:, -k][:, None]
        return pooled(X, weights(np.where(s < least, -np.inf, s)))

    def sigmoid(X: Any) -> Any:
        return pooled(X, 1 / (1 + np.exp(-np.clip(score(X), -500, 500))))

    def mean_network(X: Any) -> Any:
        return np.tanh(X.mean(axis=1) @ A) @ w_o

    def gelu(X: Any) -> Any:
        z = np.einsum("bn,bnd,dm->bm", weights(score(X)), X, A)
        return (z / (1 + np.exp(-1.7 * np.clip(z, -300, 300)))) @ w_o

    def kernel(X: Any) -> Any:
        far = np.sum((X - X[:, -1:]) ** 2, axis=2)
        return pooled(X, weights(-far))

    return {
        "attention sink": sink,
        "two largest": largest,
        "sigmoid attention": sigmoid,
        "tanh network of the mean": mean_network,
        "GELU network behind a head": gelu,
        "a kernel of distances": kernel,
        "temperature by length": lambda X: pooled(X, weights(score(X) * np.log(X.shape[1] + 1))),
        "temperature from 9 tokens on": lambda X: pooled(
            X, weights(score(X) * (1 if X.shape[1] < 9 else 1.2))
        ),
        "maximum of the tokens": lambda X: (X @ v).max(axis=1),
        "a head plus a small square": lambda X: one(X) + small * (X[:, -1] @ u) ** 2,
        "heads plus a small square": lambda X: more(X) + small * (X.mean(axis=1) @ u) ** 2,
        "two heads by a sign": lambda X: np.where(X[:, -1] @ u > 0, one(X), two(X)),
        "two heads by the first token": lambda X: np.where((X @ u).sum(axis=1) > 0, one(X), two(X)),
        "tanh of a head": lambda X: np.tanh(one(X)),
        "a head cut off by its square": lambda X: np.where(one(X) ** 2 < 1, one(X), one(X) ** 2),
        "product of heads": lambda X: one(X) * two(X),
        "counts its calls": counting,
        "a hash": lambda X: np.sin(1e4 * np.sum(X * np.cos(np.arange(d)), axis=(1, 2))),
        "random answers": lambda X: rng.standard_normal(len(X)),
        "length of the last token": lambda X: np.linalg.norm(X[:, -1], axis=1),
        "a polynomial": lambda X: (X.mean(axis=1) @ u) ** 3 - (X[:, -1] @ v) ** 2,
        "scores clipped at 5": lambda X: pooled(X, weights(np.clip(score(X), -5, 5))),
        "sum of the tokens": lambda X: (X @ v).sum(axis=1),
        "softmax without the last token": lambda X: pooled(
            X, weights(np.where(np.arange(X.shape[1]) < X.shape[1] - 1, score(X), -30.0))
        ),
        "temperature from 33 tokens on": lambda X: pooled(
            X, weights(score(X) * (1 if X.shape[1] < 33 else 1.2))
        ),
        "a small sink": lambda X: one(X) * (1 - 1e-5 * np.exp(-np.max(np.abs(X), axis=(1, 2)))),
        "a head times a network of another": lambda X: np.abs(one(X)) * two(X),
        "a head and the last token": lambda X: one(X) + X[:, -1] @ u,
        "larger for long tokens": lambda X: one(X) * np.where(np.max(np.abs(X)) > 50, 1.1, 1.0),
        "the square of attention": lambda X: pooled(X, weights(score(X)) ** 2),
    }


def strange(rng: Any, d: int, which: int) -> Secret:
    """Return a target of no class that has a name."""
    every = _strange(rng, d)
    kind = list(every)[which % len(every)]
    return Secret(kind, "none of these", every[kind], d)


def population(seed: int) -> Secret:
    """Draw a target of a class; each class comes in turn."""
    rng = np.random.default_rng([seed, 46])
    d = int(rng.choice([2, 3, 4, 6, 12, 24]))
    return OF_A_CLASS[seed % len(OF_A_CLASS)](rng, d)


def strangers(seed: int) -> Secret:
    """Draw a target of no class; each kind comes in turn."""
    rng = np.random.default_rng([seed, 47])
    return strange(rng, int(rng.choice([2, 3, 4, 6, 12, 24])), seed)
