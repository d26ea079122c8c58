"""How a model's parameters score the tokens of a sequence against its query token.

A model class asks its scores for three things: `arrays` (the parameters), `of` (sequences to
scores) and `norm`. `BilinearScores` know no positions, `RotaryScores` turn with the distance from
the query token. Another kind of score is another class of this module with these three; the
softmax and what follows it need no change.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import frozen
from unsoftmax.models.attention import token_scores
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array


class BilinearScores:
    """Scores x_i·(W x_N + w) of the tokens of a sequence, W whole or W = K.T @ Q.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    matrix : dict of str to array_like
        Either W of shape (d, d), or K and Q of shape (r, d): then W is never formed unless
        it is asked for.
    w : array_like, shape (d,), optional
        Zeros by default.
    beside : str
        Where d comes from, to end a sentence with.
    heads : tuple of int
        (H,) for H heads at once: what all arrays' shapes begin with.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.
    """

    def __init__(
        self,
        dim: int,
        matrix: Mapping[str, ArrayLike],
        w: ArrayLike | None,
        beside: str,
        heads: tuple[int, ...] = (),
    ) -> None:
        self.arrays = {
            **{name: frozen(name, array) for name, array in matrix.items()},
            "w": frozen("w", np.zeros((*heads, dim)) if w is None else w),
        }
        if "K" in matrix and self.arrays["K"].ndim != len(heads) + 2:
            shape = ", ".join([*map(str, heads), "r", str(dim)])
            raise ValueError(f"K must have shape ({shape}); it has shape {self.arrays['K'].shape}.")
        factor = (self.arrays["K"].shape[-2], dim) if "K" in matrix else ()
        shapes = {"W": (dim, dim), "K": factor, "Q": factor, "w": (dim,)}
        for name, array in self.arrays.items():
            if array.shape != heads + shapes[name]:
                raise ValueError(
                    f"{name} must have shape {heads + shapes[name]} {beside}; "
                    f"it has shape {array.shape}."
                )

    @cached_property
    def W(self) -> Array:
        """Score matrix (d, d), or matrices (H, d, d); computed on demand from factors."""
        if "W" in self.arrays:
            return self.arrays["W"]
        W: Array = self.arrays["K"].swapaxes(-1, -2) @ self.arrays["Q"]
        W.flags.writeable = False
        return W

    @property
    def norm(self) -> float:
        """‖W‖_F, the `least` over heads, without forming W from its factors."""
        W = self.arrays.get("W")
        if W is None:
            K, Q = (np.linalg.qr(self.arrays[name].swapaxes(-1, -2))[1] for name in "KQ")
            W = K @ Q.swapaxes(-1, -2)
        return least(np.linalg.norm(W, axis=(-2, -1)))

    def vectors(self, x: Array) -> Array:
        """Map query tokens (B, d) to the vectors W x + w that every token is scored with.

        (B, d), or (B, H, d): one product for all heads; no (B, H, d, d) is formed.
        """
        arrays, d = self.arrays, x.shape[1]
        right = arrays["W"] if "W" in arrays else arrays["Q"]
        Wx = (x @ right.reshape(-1, d).T).reshape(len(x), *right.shape[:-1])
        if "K" in arrays:
            Wx = np.moveaxis(np.moveaxis(Wx, 0, -2) @ arrays["K"], -2, 0)
        return np.asarray(Wx + arrays["w"])

    def of(self, X: Array) -> Array:
        """Map sequences (B, N, d) to scores (B, N), or (B, H, N)."""
        return token_scores(X, self.vectors(X[:, -1]))


class RotaryScores:
    """Scores (K x_i + b_k)·R(Δ_i)(Q x_N + b_q), Δ_i = N − 1 − i tokens before the query token.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    matrices : dict of str to array_like
        K and Q, (r, d); perhaps k_bias and q_bias, (r,), zeros where they are not there.
    rotary : Rotary
        Frequencies of the r/2 planes that R(Δ) turns.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.
    """

    def __init__(self, dim: int, matrices: Mapping[str, ArrayLike | None], rotary: Rotary) -> None:
        r = 2 * len(rotary)
        shapes = {"K": (r, dim), "Q": (r, dim), "k_bias": (r,), "q_bias": (r,)}
        given = {name: matrices.get(name) for name in shapes}
        self.rotary = rotary
        self.arrays = {
            name: frozen(name, np.zeros(shapes[name]) if array is None else array)
            for name, array in given.items()
        }
        for name, array in self.arrays.items():
            if array.shape != shapes[name]:
                raise ValueError(
                    f"{name} must have shape {shapes[name]} beside {len(rotary)} frequencies and "
                    f"tokens of {dim} dimensions; it has shape {array.shape}."
                )
        self.arrays["frequencies"] = rotary.frequencies

    def queries(self, x: Array) -> Array:
        """Map query tokens (B, d) to queries Q x + b_q, (B, r)."""
        return np.asarray(x @ self.arrays["Q"].T + self.arrays["q_bias"])

    def keys(self, X: Array) -> Array:
        """Map tokens (…, d) to keys K x + b_k, (…, r)."""
        return np.asarray(X @ self.arrays["K"].T + self.arrays["k_bias"])

    def at(self, distance: float) -> Array:
        """Return W(Δ) = Kᵀ R(Δ) Q, (d, d)."""
        turned = self.rotary.turned(self.arrays["Q"].T, np.array(distance))
        return np.asarray(self.arrays["K"].T @ turned.T)

    def whole(self, distance: float) -> Array:
        """Return what scores (x, 1) with (x_N, 1), (d + 1, d + 1): W(Δ) with biases.

        A shift of all scores changes nothing: of key biases it has b_k·(R(Δ) − I)(Q x_N + b_q).
        """
        queries = np.column_stack([self.arrays["Q"], self.arrays["q_bias"]])
        turned = self.rotary.turned(queries.T, np.array(float(distance))).T
        return np.vstack([self.arrays["K"].T @ turned, self.arrays["k_bias"] @ (turned - queries)])

    @property
    def norm(self) -> float:
        """‖W(0)‖_F."""
        return float(np.linalg.norm(self.at(0)))

    @property
    def bias_norm(self) -> float:
        """Norm of the biases' part of `whole` at distance 1."""
        whole = self.whole(1)
        return float(np.linalg.norm(np.append(whole[:, -1], whole[-1, :-1])))

    def of(self, X: Array) -> Array:
        """Map sequences (B, N, d) to scores (B, N)."""
        distances = np.arange(X.shape[1])[::-1]
        queries = self.rotary.turned(self.queries(X[:, -1])[:, None], distances)
        return np.asarray(np.einsum("bnr,bnr->bn", self.keys(X), queries))


def least(norms: Array) -> float:
    """Return the smallest norm that is not 0, or 0 where all are."""
    some = norms[norms > 0]
    return float(some.min()) if some.size else 0.0
