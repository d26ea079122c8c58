"""Functions that are no head or layer with rotary positions, many of them nearly one."""

import numpy as np

import unsoftmax as us


def softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def answered(model, scores, X):
    """What a head or a layer answers if its tokens have these scores, (B, N) or (B, H, N)."""
    weights = softmax(scores)
    if isinstance(model, (us.RotaryHead, us.SingleHead)):
        return np.einsum("bn,bn->b", weights, X @ model.v) + model.c
    answers = np.tile(model.c, (len(X), 1))
    for h, g in enumerate(model.groups):
        answers += np.einsum("bn,bns->bs", weights[:, h], X @ model.V[g].T) @ model.O[h].T
    return answers + X[:, -1] if model.residual else answers


def layer_from_the_start(layer, X):
    """Scores of keys at their distance from the start."""
    places, scores = np.arange(X.shape[1]), layer.scored(X)
    for h, g in enumerate(layer.groups):
        keys = layer.rotary.turned(X @ layer.K[g].T + layer.k_bias[g], places)
        query = X[:, -1] @ layer.Q[h].T + layer.q_bias[h]
        scores[:, h] = np.einsum("bnr,br->bn", keys, query)
    return scores


def head_from_the_start(head, X):
    """The same of a head."""
    keys = head.rotary.turned(head.scores.keys(X), np.arange(X.shape[1]))
    query = head.rotary.turned(head.scores.queries(X[:, -1]), np.array(0.0))
    return np.einsum("bnr,br->bn", keys, query)


def nearly_rotary(model):
    """Functions that are nearly a rotary head, or a layer, by name."""
    d = model.dim
    slower = type(model).from_arrays(
        {**model.arrays(), "frequencies": model.rotary.frequencies / 4}
    )
    layer = isinstance(model, us.RotaryLayer)
    slopes = 2.0 ** -np.arange(1, model.H + 1)[:, None] if layer else 0.1

    def scored(X, of=model):
        return of.scored(X) if layer else of.scores.of(X)

    def from_the_start(X):
        scores = layer_from_the_start(model, X) if layer else head_from_the_start(model, X)
        return answered(model, scores, X)

    def far(X):
        return np.arange(X.shape[1])[::-1]

    def scaled_beyond(X, length=256):
        scores, beyond = scored(X), max(0, X.shape[1] - length)
        scores[..., :beyond] = scored(X, slower)[..., :beyond]
        return answered(model, scores, X)

    def windowed(X, length=100):
        scores = scored(X)
        scores[..., : max(0, X.shape[1] - length)] = -np.inf
        return answered(model, scores, X)

    def learned(X):
        table = np.random.default_rng(d).standard_normal(1024)
        return answered(model, scored(X) + 0.1 * table[: X.shape[1]][::-1], X)

    def normalised(X):
        lengths = 1e-9 + np.linalg.norm(X[:, -1], axis=1)
        scores, size = scored(X), 1 if layer else len(model.K)
        return answered(model, size * scores / lengths.reshape(-1, *[1] * (scores.ndim - 1)), X)

    found = {
        "ALiBi beside rotary": lambda X: answered(model, scored(X) - slopes * far(X), X),
        "faint ALiBi": lambda X: answered(model, scored(X) - 1e-4 * far(X), X),
        "a learned bias per distance": learned,
        "scaled frequencies beyond a length": scaled_beyond,
        "scaled frequencies in long sequences": lambda X: (slower if X.shape[1] > 100 else model)(
            X
        ),
        "a window": windowed,
        "positions counted from the other end": from_the_start,
        "tanh in the values": lambda X: answered(model, scored(X), np.tanh(X)),
        "keys that decay": lambda X: answered(model, scored(X) * 0.99 ** far(X), X),
        "queries normalised": normalised,
        "a temperature by length": lambda X: answered(model, scored(X) * np.log(1 + X.shape[1]), X),
    }
    if not layer:
        beside = us.SingleHead(np.eye(d), model.v)
        found["a plain head beside it"] = lambda X: model(X) + 1e-3 * beside(X)
    return found
