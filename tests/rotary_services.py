"""Models with rotary positions as libraries compute them in float32, and changes of a model."""

import numpy as np

import unsoftmax as us


def turned(x, positions, frequencies):
    """Turn keys or queries (…, N, r) by their own positions."""
    angles = positions[:, None] * frequencies
    cosine, sine, out = np.cos(angles), np.sin(angles), np.empty_like(x)
    out[..., ::2] = cosine * x[..., ::2] - sine * x[..., 1::2]
    out[..., 1::2] = sine * x[..., ::2] + cosine * x[..., 1::2]
    return out


def in_float32(model):
    """A rotary head, several or a layer whose keys and queries turn by their own positions."""
    if isinstance(model, us.RotaryHead):
        model = us.RotaryHeads.of([model], model.dim, model.c)
    a = {name: np.asarray(x, dtype=np.float32) for name, x in model.arrays().items()}
    layer = isinstance(model, us.RotaryLayer)
    groups = model.groups.tolist() if layer else range(model.H)

    def weights(X, h, g):
        places = np.arange(X.shape[1], dtype=np.float32)
        frequencies = a["frequencies"] if layer else a["frequencies"][h]
        keys = turned(X @ a["K"][g].T + a["k_bias"][g], places, frequencies)
        query = (X[:, -1] @ a["Q"][h].T + a["q_bias"][h])[:, None]
        scores = (keys * turned(query, places[-1:], frequencies)).sum(axis=-1)
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def answer(X):
        X = X.astype(np.float32)
        answers = np.zeros((len(X), *np.shape(a["c"])), dtype=np.float32) + a["c"]
        for h, g in enumerate(groups):
            alpha = weights(X, h, g)
            if layer:
                answers += (alpha[:, None] @ (X @ a["V"][g].T))[:, 0] @ a["O"][h].T
            else:
                answers += (alpha * (X @ a["v"][h])).sum(axis=1)
        return answers + X[:, -1] if layer and model.residual else answers

    return answer


def with_change(model, name, size, seed, place=None):
    """Change a tensor, or its part ``place``, in a random direction by a share of its norm.

    By ``size`` itself where it is 0.
    """
    array = np.array(model.arrays()[name], dtype=np.float64)
    part = array if place is None else array[place]
    by = np.random.default_rng([seed, 5]).standard_normal(np.shape(part))
    by *= size * (np.linalg.norm(part) or 1.0) / np.linalg.norm(by)
    changed = array + by if place is None else array
    if place is not None:
        changed[place] = part + by
    return type(model).from_arrays({**model.arrays(), name: changed})
