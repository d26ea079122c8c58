"""Train a Transformer block on text, recover it from its hidden states, and put it back.

python trained_block.py [TEXT] [STEPS]

The model reads 16 characters and predicts the next one: fixed vectors of characters and places,
one pre-norm block of 16 dimensions (two heads, 32 ReLUs), and a linear map to characters. It is
trained here, in plain NumPy, on a text (the tutorial of these docs unless another is given). A
service then answers with the hidden state behind the block; its weights are recovered from that
alone, and the model runs on them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import unsoftmax as us

Array = NDArray[np.float64]
TUTORIAL = Path(__file__).parent.parent.parent / "docs" / "tutorial.md"
D, HEADS, NEURONS, CONTEXT, EPS = 16, 2, 32, 16, 1e-5
RATE, BATCH = 0.004, 128


def normalised(x: Array) -> tuple[Array, Array]:
    """Return a LayerNorm's answer, and the deviation that it divides by."""
    x = x - x.mean(axis=-1, keepdims=True)
    size = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS)
    return x / size, size


def norm_back(g: Array, n: Array, size: Array) -> Array:
    """Return the gradient before a LayerNorm."""
    centred = g - g.mean(axis=-1, keepdims=True)
    return np.asarray((centred - n * np.mean(g * n, axis=-1, keepdims=True)) / size)


class CharacterModel:
    """Characters to vectors, a block, and vectors to characters."""

    def __init__(self, text: str, seed: int = 0) -> None:
        self.letters = sorted(set(text))
        self.ids = np.array([self.letters.index(letter) for letter in text])
        self.rng = rng = np.random.default_rng(seed)
        self.vectors = rng.standard_normal((len(self.letters), D))
        self.places = rng.standard_normal((CONTEXT, D)) / 2
        shapes = {"Q": (D, D), "K": (D, D), "V": (D, D), "O": (D, D), "v": (D,), "o": (D,)}
        shapes |= {"A": (NEURONS, D), "a": (NEURONS,), "B": (D, NEURONS), "b": (D,)}
        shapes |= {"C": (len(self.letters), D)}
        self.weights: dict[str, Array] = {
            name: rng.standard_normal(shape) / np.sqrt(shape[-1])
            if len(shape) > 1
            else 0.1 * rng.standard_normal(shape)
            for name, shape in shapes.items()
        }

    def tokens(self, at: Any) -> Array:
        """Return what the block is given to predict the characters at these places of the text."""
        window = np.asarray(at)[:, None] - CONTEXT + np.arange(CONTEXT)
        return np.asarray(self.vectors[self.ids[window]] + self.places)

    def block(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the hidden state behind the block (B, d): the service."""
        return self._forward(X)["z"]

    def _forward(self, X: Array) -> dict[str, Array]:
        w, count = self.weights, len(X)
        n, _ = normalised(X)
        shape = (count, -1, HEADS, D // HEADS)
        q = (n[:, -1] @ w["Q"].T).reshape(count, HEADS, -1) / np.sqrt(D // HEADS)
        k, v = (n @ w["K"].T).reshape(shape), (n @ w["V"].T + w["v"]).reshape(shape)
        scores = np.einsum("bhr,bnhr->bhn", q, k)
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        p /= p.sum(axis=2, keepdims=True)
        pooled = np.einsum("bhn,bnhr->bhr", p, v).reshape(count, D)
        y = X[:, -1] + pooled @ w["O"].T + w["o"]
        m, size = normalised(y)
        h = np.maximum(m @ w["A"].T + w["a"], 0.0)
        z = y + h @ w["B"].T + w["b"]
        return {
            "n": n,
            "q": q,
            "k": k,
            "v": v,
            "p": p,
            "pooled": pooled,
            "m": m,
            "size": size,
            "h": h,
            "z": z,
        }

    def gradients(self, X: Array, wanted: Any) -> dict[str, Array]:
        """Return the gradients of the mean cross-entropy."""
        w, f, count = self.weights, self._forward(X), len(X)
        logits = f["z"] @ w["C"].T
        guess = np.exp(logits - logits.max(axis=1, keepdims=True))
        guess /= guess.sum(axis=1, keepdims=True)
        guess[np.arange(count), wanted] -= 1
        guess /= count
        dz = guess @ w["C"]
        dh = (dz @ w["B"]) * (f["h"] > 0)
        dy = dz + norm_back(dh @ w["A"], f["m"], f["size"])
        dpooled = (dy @ w["O"]).reshape(count, HEADS, -1)
        dv = np.einsum("bhn,bhr->bnhr", f["p"], dpooled).reshape(count, -1, D)
        dp = np.einsum("bhr,bnhr->bhn", dpooled, f["v"])
        ds = f["p"] * (dp - np.sum(f["p"] * dp, axis=2, keepdims=True))
        dk = np.einsum("bhn,bhr->bnhr", ds, f["q"]).reshape(count, -1, D)
        dq = np.einsum("bhn,bnhr->bhr", ds, f["k"]).reshape(count, D) / np.sqrt(D // HEADS)
        n = f["n"]
        return {
            "C": guess.T @ f["z"],
            "B": dz.T @ f["h"],
            "b": dz.sum(axis=0),
            "A": dh.T @ f["m"],
            "a": dh.sum(axis=0),
            "O": dy.T @ f["pooled"],
            "o": dy.sum(axis=0),
            "V": np.einsum("bni,bnj->ij", dv, n),
            "v": dv.sum(axis=(0, 1)),
            "K": np.einsum("bni,bnj->ij", dk, n),
            "Q": dq.T @ n[:, -1],
        }

    def train(self, steps: int) -> None:
        """Train by Adam on the first nine tenths of the text."""
        first = {name: np.zeros_like(one) for name, one in self.weights.items()}
        second = {name: np.zeros_like(one) for name, one in self.weights.items()}
        for step in range(1, steps + 1):
            at = self.rng.integers(CONTEXT, int(0.9 * len(self.ids)), BATCH)
            for name, g in self.gradients(self.tokens(at), self.ids[at]).items():
                first[name] += 0.1 * (g - first[name])
                second[name] += 0.01 * (g * g - second[name])
                mean, square = first[name] / (1 - 0.9**step), second[name] / (1 - 0.99**step)
                self.weights[name] = self.weights[name] - RATE * mean / (np.sqrt(square) + 1e-8)

    def guessed(self, block: Any) -> Array:
        """Return the logits of the last tenth's characters, with a block in the model."""
        at = np.arange(int(0.9 * len(self.ids)), len(self.ids))
        return np.asarray(block(self.tokens(at)) @ self.weights["C"].T)

    def right(self, logits: Array) -> float:
        """Return the share of these that are the text's."""
        return float(np.mean(self.ids[-len(logits) :] == np.argmax(logits, axis=1)))


def main(text: str = str(TUTORIAL), steps: int = 1500) -> None:
    """Train, recover and put back; print what it cost and how far the two models are apart."""
    model = CharacterModel(Path(text).read_text())
    model.train(steps)
    recovery = us.learn(model.block, us.learners.BlockLearner(D, part="block"))
    mine, its = model.guessed(recovery.model), model.guessed(model.block)
    numbers = sum(one.size for name, one in model.weights.items() if name != "C")
    print(f"Trained: {model.right(its):.1%} of the characters that it never saw are right.")
    print(f"Recovered: {recovery.model}, {numbers:,} weights, by {recovery.queries:,} queries.")
    print(f"Put back: {model.right(mine):.1%} right.")
    print(
        f"Logits differ by {np.abs(mine - its).max():.1e}; they are up to {np.abs(its).max():.1f}."
    )


if __name__ == "__main__":
    given = sys.argv[1:3]
    main(*given[:1], *map(int, given[1:]))
