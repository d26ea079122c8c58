"""All parameters of several heads before a ReLU network at once, from answers: Gauss and Newton.

Near a solution f(θ) is smooth wherever no neuron changes sides. With p_h what head h pools,
s_k = 1 where neuron k is active, and G_h = Σ_k w_o[k] s_k B_h[k] + ℓ_h,

    ∂f/∂B_h[k] = w_o[k] s_k p_h,   ∂f/∂b[k] = w_o[k] s_k,   ∂f/∂c = 1,   ∂f/∂ℓ_h = p_h,
    ∂f/∂w_h = q_h = Σ_i α_hi ((x_i − p_h)·G_h) x_i,   ∂f/∂W_h = q_h x_Nᵀ.

A residual is a first layer more, of what always is x_N.
Output weights stay: a positive factor may move between them and the first layers. Nothing is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy

from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models import MultiHeadTransformer
from unsoftmax.probes import Array, Indices


@dataclass(frozen=True, slots=True)
class TransformerFitTuning:
    """When a fit is believed."""

    steps: int = 8
    """Newton steps at most: two are usual, five where the first error was 10⁻⁴."""
    settled: float = 0.9
    """Steps end where the residual falls by less than this factor."""
    singular: float = 1e-11
    """A system whose smallest pivot is below this share of the largest tells too little."""
    residual: float = 4.0
    """Root mean square of what a right fit leaves, in units of what rounding of an answer may be:
    it is a tenth of that, or less."""
    safety: float = 6.0
    """Estimated errors are standard deviations: so many are promised."""


@dataclass(frozen=True, slots=True)
class FitParameters:
    """A layer as parameters that its function determines."""

    W: Array
    w: Array
    B: Array
    """(n, K, d): of H heads, and of the last token with a residual."""
    b: Array
    c: float
    rest: Array
    """ℓ (n, d)."""
    w_o: Array
    free: tuple[str, ...]
    """Names of those that are fitted."""

    @classmethod
    def of(cls, model: MultiHeadTransformer, linear: bool, biases: bool) -> Self:
        """Take a layer apart; its last two neurons are ℓ·p and −ℓ·p where it has a linear part."""
        K = len(model.b) - 2 * linear
        B = model.first_layers
        rest = B[:, K] if linear else np.zeros((len(B), model.dim))
        names = ("W", "w", "B", "b", "c") if biases else ("W", "B")
        free = (*names, "rest") if linear else names
        return cls(model.W, model.w, B[:, :K], model.b[:K], model.c, rest, model.w_o[:K], free)

    @property
    def model(self) -> MultiHeadTransformer:
        """The layer."""
        B, w_o, b = self.B, self.w_o, self.b
        if "rest" in self.free:
            B = np.concatenate([B, self.rest[:, None], -self.rest[:, None]], axis=1)
            w_o, b = np.append(w_o, [1.0, -1.0]), np.append(b, [0.0, 0.0])
        H = len(self.W)
        residual = B[H] if len(B) > H else None
        return MultiHeadTransformer(self.W, B[:H], w_o, b, self.w, self.c, residual)

    def parts(self, vector: Array) -> dict[str, Array]:
        """Divide a vector of all fitted parameters by name, in their shapes."""
        shapes = {name: np.shape(getattr(self, name)) for name in self.free}
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
        each = np.split(vector, ends)
        return {name: x.reshape(shapes[name]) for name, x in zip(shapes, each, strict=True)}

    def moved(self, vector: Array) -> Self:
        """Add a vector to the parameters."""
        step = self.parts(vector)
        arrays = {
            name: getattr(self, name) + step.get(name, 0.0)
            for name in ("W", "w", "B", "b", "c", "rest")
        }
        return type(self)(**{**arrays, "c": float(arrays["c"])}, w_o=self.w_o, free=self.free)

    def linearised(self, X: Array) -> tuple[Array, Array, Array]:
        """Return f (n,), its derivatives (n, P), and what its rounding may be, at X (n, N, d)."""
        model, n, H = self.model, len(X), len(self.W)
        alpha, given = model.attention(X), model.given(X)
        z = np.einsum("nhd,hkd->nk", given, self.B) + self.b
        active = (z > 0) * self.w_o
        G = np.einsum("nk,hkd->nhd", active, self.B[:H]) + self.rest[:H]
        away = X[:, None] - given[:, :H, None]
        q = np.einsum("nhi,nhi,nid->nhd", alpha, np.einsum("nhid,nhd->nhi", away, G), X)
        columns = {
            "W": q[..., None] * X[:, None, None, -1],
            "w": q,
            "B": active[:, None, :, None] * given[:, :, None],
            "b": active,
            "c": np.ones((n, 1)),
            "rest": given,
        }
        J = np.concatenate([columns[name].reshape(n, -1) for name in self.free], axis=1)
        sizes = np.linalg.norm(self.B, axis=2) @ np.abs(self.w_o)
        sizes = sizes + np.linalg.norm(self.rest, axis=1)
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        scores = np.abs(model.scores_of(X[:, -1]) @ X.transpose(0, 2, 1)).max(axis=2)
        terms = longest * (sizes.sum() + scores @ sizes[:H])
        noise = KAPPA * UNIT * (terms + np.abs(self.w_o) @ np.abs(self.b) + abs(self.c))
        return model(X), J, noise


@dataclass(frozen=True, slots=True)
class TransformerFit:
    """A fit, and bounds on what it may be off by."""

    parameters: FitParameters
    errors: dict[str, float]
    """Of "W" and "w", the worst head's; "slope" and "constant" of the network."""


def best_rows(parameters: FitParameters, families: Sequence[Array], count: int) -> Indices:
    """Choose ``count`` of the sequences of all families that tell most, by pivoted QR."""
    rows = []
    for X in families:
        _, J, noise = parameters.linearised(X)
        rows.append(J / noise[:, None])
    J = np.concatenate(rows)
    size = np.linalg.norm(J, axis=0)
    J /= np.where(size > 0, size, 1.0)
    _, pivots = scipy.linalg.qr(J.T, mode="r", pivoting=True, overwrite_a=True)
    return np.asarray(pivots[:count], dtype=np.intp)


def fitted(
    parameters: FitParameters, answered: Sequence[tuple[Array, Array]], tuning: TransformerFitTuning
) -> TransformerFit | None:
    """Fit all parameters to answers; None where these do not tell them, or contradict them."""
    best, last = None, np.inf
    for _ in range(tuning.steps):
        J, missed = _weighted(parameters, answered)
        residual = float(np.sqrt(np.mean(missed**2)))
        if not np.isfinite(residual):
            return None
        size = np.linalg.norm(J, axis=0)
        if not np.all(size > 0):
            return None
        Q, R = np.linalg.qr(J / size)
        pivots = np.abs(np.diag(R))
        if np.min(pivots) <= tuning.singular * np.max(pivots):
            return None
        if residual >= last:
            break
        best = parameters, R / 1.0, size, residual
        if residual > tuning.settled * last and residual < tuning.residual:
            break
        last = residual
        step = scipy.linalg.solve_triangular(R, Q.T @ missed) / size
        parameters = parameters.moved(np.asarray(step, dtype=np.float64))
    if best is None or best[3] > tuning.residual:
        return None
    return _with_errors(*best, tuning)


def _weighted(
    parameters: FitParameters, answered: Sequence[tuple[Array, Array]]
) -> tuple[Array, Array]:
    """Return derivatives and residuals in units of what rounding may be."""
    rows, missed = [], []
    for X, y in answered:
        f, J, noise = parameters.linearised(X)
        rows.append(J / noise[:, None])
        missed.append((y - f) / noise)
    return np.concatenate(rows), np.concatenate(missed)


def _with_errors(
    parameters: FitParameters, R: Array, size: Array, residual: float, tuning: TransformerFitTuning
) -> TransformerFit:
    inverse = scipy.linalg.solve_triangular(R, np.eye(len(R)))
    deviation = tuning.safety * residual * np.linalg.norm(inverse, axis=1) / size
    off = parameters.parts(deviation)
    per_head = {name: off.get(name, np.zeros((1, 1))) for name in ("W", "w")}
    rows = np.sqrt(np.sum(off["B"] ** 2, axis=(0, 2)))
    errors = {
        name: float(np.max(np.linalg.norm(x.reshape(len(x), -1), axis=1), initial=0.0))
        for name, x in per_head.items()
    }
    slope = float(rows.sum() + np.linalg.norm(off.get("rest", np.zeros(1))))
    constant = float(np.sum(off.get("b", np.zeros(1))) + np.sum(off.get("c", np.zeros(1))))
    return TransformerFit(parameters, {**errors, "slope": slope, "constant": constant})
