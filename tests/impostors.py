"""Functions that are no single head, many of them nearly one."""

import numpy as np
from scipy.special import expit

import unsoftmax as us


def softmax_of(scores):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def impostors(d, rng, rank=None):
    """Functions that are no single head without biases, many of them nearly one of a rank."""

    def drawn():
        W = rng.standard_normal((d, rank or d))
        W = W if rank is None else W @ rng.standard_normal((rank, d))
        return us.SingleHead(W, rng.standard_normal(d))

    one, two = drawn(), drawn()
    three = us.SingleHead(one.W, one.v, rng.standard_normal(d), 0.3)
    place = rng.standard_normal((64, d))
    noise = np.random.default_rng(5)

    def scores(X):
        return np.einsum("bnd,de,be->bn", X, one.W, X[:, -1])

    def hashed(X):
        return np.array([np.random.default_rng(x.view(np.uint64)).standard_normal() for x in X])

    return {
        "two heads": lambda X: one(X) + two(X),
        "a second head of 1e-3": lambda X: one(X) + 1e-3 * two(X),
        "a second head of 1e-5": lambda X: one(X) + 1e-5 * two(X),
        "a ReLU on top": lambda X: np.maximum(one(X), 0),
        "tanh on top": lambda X: np.tanh(one(X)),
        "a value bias": lambda X: one(X) + 0.1,
        "a small value bias": lambda X: one(X) + 1e-4,
        "a query bias": lambda X: us.SingleHead(one.W, one.v, three.w)(X),
        "both biases": three,
        "no softmax": lambda X: np.einsum("bn,bn->b", scores(X), X @ one.v),
        "sigmoid attention": lambda X: np.einsum("bn,bn->b", expit(scores(X)), X @ one.v),
        "position-dependent values": lambda X: one(X * (1 + 0.1 * np.arange(X.shape[1]))[:, None]),
        "position embeddings": lambda X: one(X + 0.1 * place[: X.shape[1]]),
        "distance bias": lambda X: np.einsum(
            "bn,bn->b", softmax_of(scores(X) - 0.1 * np.arange(X.shape[1])[::-1]), X @ one.v
        ),
        "temperature by length": lambda X: np.einsum(
            "bn,bn->b", softmax_of(scores(X) * np.log(1 + X.shape[1]) / np.log(3)), X @ one.v
        ),
        "query token first": lambda X: one(X[:, ::-1]),
        "query token left out": lambda X: one(X) - 0.01 * X[:, -1] @ one.v,
        "only eight tokens read": lambda X: one(X[:, -4:]),
        "normalised tokens": lambda X: one(X / (1e-9 + np.linalg.norm(X, axis=2, keepdims=True))),
        "labels": lambda X: (one(X) > 0).astype(float),
        "signs": lambda X: np.sign(one(X)),
        "random answers": lambda X: noise.standard_normal(len(X)),
        "hashed answers": hashed,
        "clipped": lambda X: np.clip(one(X), *(np.linalg.norm(one.v) * np.array([-0.5, 0.5]))),
        "quadratic": lambda X: np.einsum("bd,bd->b", X[:, -1], X[:, -1]),
    }  # fmt: skip
