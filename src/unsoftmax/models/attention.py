"""Attention on arrays: scores, softmax, pooled tokens, and how errors move the answer.

A head gives token x_i of a sequence the score s_i = x_i·u with u = W x_N + w, the weights are
α = softmax(s), and f = Σ_i α_i y_i is the weighted mean of the tokens' values y_i = x_i·v. Then

    ∂f/∂s_i = α_i (y_i − f),    ∂f/∂W = Σ_i ∂f/∂s_i x_i x_Nᵀ,    ∂f/∂w = Σ_i ∂f/∂s_i x_i,
    ∂f/∂v = Σ_i α_i x_i.

Shapes: sequences X are (B, N, d). What belongs to one head has shape (B, d) or (B, N), what
belongs to H heads (B, H, d) or (B, H, N). Of a model's parameters `BilinearScores` know no
positions, `RotaryScores` turn with the distance from the query token; the softmax and what follows
it are the same. Nothing here knows a model class.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unsoftmax.models.arrays import FrozenArrays, Parameter, axes, declared
from unsoftmax.models.products import Product
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array

# Beyond this shift m of the scores e^{2m} leaves float64's range.
_LARGEST_SHIFT = float(np.log(np.finfo(np.float64).max)) / 2


def softmax(scores: Array, axis: int = -1) -> Array:
    """Return exp(s_i)/Σ_j exp(s_j) along an axis, at any finite scores.

    Parameters
    ----------
    scores : ndarray
        Scores; −inf masks a token, whose weight is then 0.
    axis : int, optional
        The axis that the weights sum to 1 along.

    Returns
    -------
    ndarray, as ``scores``
        Weights; all 0 where every token is masked, or where there is none.

    Examples
    --------
    >>> softmax(np.array([[0.0, 0.0], [-np.inf, 3.0], [-np.inf, -np.inf]]))
    array([[0.5, 0.5],
           [0. , 1. ],
           [0. , 0. ]])
    """
    numerators, denominators = exponentials(scores, axis)
    return numerators / np.expand_dims(denominators, axis)


def exponentials(scores: Array, axis: int = -1) -> tuple[Array, Array]:
    """Return the softmax's numerators, at most 1, and their sum, without dividing.

    A forward pass divides once per answer instead of once per token. The sum is 1 instead of 0
    where every token is masked, so that the quotients are 0.

    Parameters
    ----------
    scores : ndarray
        Scores; −inf masks a token.
    axis : int, optional
        The axis that is summed along.

    Returns
    -------
    numerators : ndarray, as ``scores``
        exp(s_i − max_j s_j).
    denominators : ndarray, as ``scores`` without the axis
        Σ_i exp(s_i − max_j s_j).
    """
    largest = scores.max(axis=axis, keepdims=True, initial=-np.inf)
    masked = largest == -np.inf
    if masked.any():
        largest[masked] = 0.0
    with np.errstate(over="ignore"):  # a score may be 2·10³⁰⁸ below the largest: weight 0
        shifted = scores - largest
    numerators = np.exp(shifted, out=shifted)
    total = numerators.sum(axis=axis)
    if masked.any():
        total = np.where(total == 0, 1.0, total)
    return numerators, total


def token_scores(X: Array, vectors: Array) -> Array:
    """Return x_i·u, (B, N), for the vectors u (B, d) that a sequence's tokens are scored with.

    For several heads' vectors (B, H, d) the scores are (B, H, N).
    """
    if vectors.ndim == 2:
        return np.asarray(np.einsum("bnd,bd->bn", X, vectors))
    return np.asarray(vectors @ X.transpose(0, 2, 1))


def pooled_tokens(X: Array, weights: Array) -> Array:
    """Return Σ_i α_i x_i, (B, d), for weights (B, N); (B, H, d) for weights (B, H, N)."""
    if weights.ndim == 2:
        return np.asarray(np.einsum("bn,bnd->bd", weights, X))
    return np.asarray(weights @ X)


def largest_mean_shift(weights: Array, deviations: Array, shift: Array) -> Array:
    """Bound how far the weighted mean f = Σ_i α_i y_i moves, for scores that move any distance.

    If every score moves by at most m, the mean moves by Σ_i α_i (e^{δ_i} − 1)(y_i − f) over
    Σ_i α_i e^{δ_i}, |δ_i| ≤ m: at most (e^m − 1)·e^m·Σ_i α_i|y_i − f|. It is a mean of the y_i
    wherever it moves to: at most max_i|y_i − f|.

    Parameters
    ----------
    weights, deviations : ndarray (..., N)
        As for `mean_shift`.
    shift : ndarray (...)
        A bound m on how far all scores of a sequence move.

    Returns
    -------
    ndarray (...)
        The smaller of the two bounds.
    """
    spread = np.sum(weights * deviations, axis=-1)
    most = np.max(deviations, axis=-1, initial=0.0)
    m = np.minimum(shift, _LARGEST_SHIFT)
    with np.errstate(over="ignore"):
        moved = np.expm1(m) * np.exp(m) * spread
    # beyond float64 a weight that has rounded to 0 may become the largest
    return np.asarray(np.where(shift < _LARGEST_SHIFT, np.minimum(moved, most), most))


BILINEAR = axes(W="d d", K="r d", Q="r d", w="d = 0")
ROTARY = axes(K="2p d", Q="2p d", k_bias="2p = 0", q_bias="2p = 0")
"""Of what axes the arrays are that score tokens, of one head."""


class BilinearScores(FrozenArrays):
    """What scores tokens with x_i·(W x_N + w), x_N the last: a head, or several.

    W is whole, or W = K.T @ Q, which is never formed unless it is asked for.
    """

    w = Parameter(np.asarray, "Score vector (d,) of the query bias, of H heads (H, d).")

    @property
    def W(self) -> Array:
        """Score matrix (d, d), of H heads (H, d, d); of factors, computed on demand."""
        return self._W

    @cached_property
    def _W(self) -> Array:
        if "W" in self._arrays:
            return self._arrays["W"]
        W: Array = self._arrays["K"].swapaxes(-1, -2) @ self._arrays["Q"]
        W.flags.writeable = False
        return W

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm, of W (Frobenius) the `least` over heads, without forming it.

        0 for what is none.
        """
        if name != "W":
            return super().parameter_norm(name)
        W = self._arrays.get("W")
        if W is None:
            K, Q = (np.linalg.qr(self._arrays[name].swapaxes(-1, -2))[1] for name in "KQ")
            W = K @ Q.swapaxes(-1, -2)
        return least(np.linalg.norm(W, axis=(-2, -1)))

    def scores_of(self, x: Array) -> Array:
        """Map query tokens (B, d) to the vectors W x + w, (B, d) or (B, H, d).

        The tokens of a sequence are scored with the vector of its query token: one product for all
        heads, and no (B, H, d, d) is formed.
        """
        arrays, d = self._arrays, x.shape[1]
        right = arrays["W"] if "W" in arrays else arrays["Q"]
        Wx = (x @ right.reshape(-1, d).T).reshape(len(x), *right.shape[:-1])
        if "K" in arrays:
            Wx = np.moveaxis(np.moveaxis(Wx, 0, -2) @ arrays["K"], -2, 0)
        return np.asarray(Wx + arrays["w"])

    def _scored(self, X: Array) -> Array:
        """Map sequences (B, N, d) to scores (B, N), or (B, H, N)."""
        return token_scores(X, self.scores_of(X[:, -1]))


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
        beside = f"{len(rotary)} frequencies and tokens of {dim} dimensions"
        self.rotary = rotary
        self.arrays = declared(matrices, ROTARY, {"2p": 2 * len(rotary), "d": dim}, beside)
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
        return self.form(distance).whole

    def form(self, distance: float) -> Product:
        """Return `whole` as a product, without forming it."""
        queries = np.column_stack([self.arrays["Q"], self.arrays["q_bias"]])
        turned = self.rotary.turned(queries.T, np.array(float(distance))).T
        keys = np.pad(self.arrays["K"].T, ((0, 1), (0, 1)))
        keys[-1, -1] = 1.0
        return Product(keys, np.vstack([turned, self.arrays["k_bias"] @ (turned - queries)]))

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

    @property
    def numbers(self) -> bytes:
        """All numbers, −0 as 0."""
        names = ("frequencies", "K", "Q", "k_bias", "q_bias")
        return b"".join((self.arrays[name] + 0.0).tobytes() for name in names)

    def canonical(self, empty: bool = True) -> RotaryScores:
        """Return planes ordered by θ, in the factors of their products; without ``empty`` ones.

        With complex rows κ_k = K_{2k} + iK_{2k+1} and φ_k likewise of Q, biases as their last
        entries, a token x scores Re Σ_k κ̄_k·(x, 1) e^{iθ_kΔ} φ_k·(x_N, 1). So only the products
        κ̄_k φ_kᵀ count, summed over planes of equal θ; where θ is 0 or π only their real part does.
        θ counts up to sign, by which a plane is mirrored, and up to 2π. Where θ is 0 the key bias
        scores all tokens alike: it is invisible. So θ is in [0, π], the largest first, and each
        product in the factors that its singular value decomposition gives.
        """
        angles, arrays = self.rotary.folded, self.arrays
        d = arrays["K"].shape[1]
        parts, frequencies = [np.zeros((2, 0, d + 1))], []
        for angle in np.unique(angles)[::-1]:
            keys, queries = _products(self, np.flatnonzero(angles == angle), angle)
            parts.append(np.stack(_factors(keys, queries), axis=0))
            frequencies += [angle] * (parts[-1].shape[1] // 2)
        rows, theta = np.concatenate(parts, axis=1), np.array(frequencies)
        if not empty:
            planes = rows.reshape(2, len(theta), 2 * d + 2)
            kept = np.all(np.any(planes != 0, axis=2), axis=0)
            rows, theta = rows[:, np.repeat(kept, 2)], theta[kept]
        K, Q = rows[:, :, :-1]
        biases = {"k_bias": rows[0, :, -1], "q_bias": rows[1, :, -1]}
        return RotaryScores(d, {"K": K, "Q": Q, **biases}, Rotary(theta))


def _products(
    scores: RotaryScores, planes: NDArray[np.intp], angle: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows of K and Q of planes that turn alike, with biases; complex where they do."""
    K = np.column_stack([scores.arrays["K"], scores.arrays["k_bias"]])
    Q = np.column_stack([scores.arrays["Q"], scores.arrays["q_bias"]])
    if angle in (0.0, np.pi):
        rows = np.sort(np.concatenate([2 * planes, 2 * planes + 1]))
        keys = K[rows]
        keys[:, -1] *= angle != 0.0
        return keys, Q[rows]
    # a frequency that folds to its negative mirrors the plane
    signs = np.where(np.sin(scores.rotary.frequencies[planes]) < 0, -1.0, 1.0)[:, None]
    return tuple(x[2 * planes] + 1j * signs * x[2 * planes + 1] for x in (K, Q))  # type: ignore[return-value]


def _factors(keys: NDArray[Any], queries: NDArray[Any]) -> tuple[Array, Array]:
    """Return the rows, by singular values of κ̄φᵀ, in real numbers: two for a complex one."""
    (A, left), (B, right) = (np.linalg.qr(x.T) for x in (keys.conj(), queries))
    U, s, V = np.linalg.svd(left @ right.T)
    U, V = A @ U, (V @ B.T)
    top = U[np.argmax(np.abs(U), axis=0), np.arange(U.shape[1])]
    phase = np.where(top == 0, 1.0, top / np.where(top == 0, 1.0, np.abs(top)))
    found = (U / phase * np.sqrt(s)).T.conj(), (phase * np.sqrt(s))[:, None] * V
    if not np.iscomplexobj(U):
        odd = len(found[0]) % 2  # a plane has two rows
        K, Q = (np.pad(x, ((0, odd), (0, 0))) for x in found)
        return K, Q
    K, Q = (np.stack([x.real, x.imag], axis=1).reshape(2 * len(x), -1) for x in found)
    return K, Q


def least(norms: Array) -> float:
    """Return the smallest norm that is not 0, or 0 where all are."""
    some = norms[norms > 0]
    return float(some.min()) if some.size else 0.0
