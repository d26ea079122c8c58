"""A ReLU network of one number, and how far its hyperplanes are from 0."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import Parameter, axes, points
from unsoftmax.models.composition import Composition
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.neurons import Neurons
from unsoftmax.probes import Array


class ReluNetwork(FrozenModel):
    """g(x) = Σ_j w_o[j]·max(0, x·A[:, j] + b[j]) + c.

    Parameters
    ----------
    A : array_like, shape (d, m)
        Input weights, a neuron per column; m may be 0.
    w_o : array_like, shape (m,)
        Output weights.
    b : array_like, shape (m,), optional
        Biases of the neurons; zeros by default.
    c : float, optional
        Constant added to every answer.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. Its function determines the hyperplanes
    x·a + b = 0 across which the gradient jumps, the jumps, and one affine part. Neurons are
    free beyond that: parallel ones merge, s·relu(z) = s·z + s·relu(−z) flips one at the price
    of a linear part, a positive factor moves between A, b and w_o.

    Examples
    --------
    >>> network = ReluNetwork(A=[[1.0, -1.0]], w_o=[1.0, 1.0], c=0.5)  # |x| + ½
    >>> network([[2.0], [-3.0]])
    array([2.5, 3.5])
    """

    _tensors: ClassVar[Mapping[str, str]] = {
        "A": "network.A.T",
        "w_o": "network.B",
        "b": "network.a",
        "c": "network.c",
    }
    _axes = axes(A="d≥1 m", w_o="m", b="m = 0", c="= 0")

    def __init__(
        self, A: ArrayLike, w_o: ArrayLike, b: ArrayLike | None = None, c: float = 0.0
    ) -> None:
        self._set({"A": A, "w_o": w_o, "b": b, "c": c})

    A = Parameter(np.asarray, "Input weights (d, m).")
    w_o = Parameter(np.asarray, "Output weights (m,).")
    b = Parameter(np.asarray, "Biases (m,) of the neurons.")
    c = Parameter(float, "Constant added to every answer.")

    def _composed(self) -> Composition:
        neurons = Neurons(self.A.T, self.b, self.w_o[None], np.array([self.c]))
        return Composition.of({"network": neurons})

    def __call__(self, X: ArrayLike) -> Array:
        """Map points (B, d), or sequences of one token (B, 1, d), to numbers (B,)."""
        return self._answers(points(X, self.dim, "network")[:, None])

    def _sizes(self) -> tuple[str, ...]:
        return f"d={self.dim}", f"m={self.A.shape[1]}"


def typical_length(*networks: ReluNetwork, negligible: float = 1e-6) -> float:
    """Return the typical distance of a hyperplane from 0, a power of two.

    Parameters
    ----------
    networks : ReluNetwork
        One network, or two that are compared in the same unit.
    negligible : float, optional
        Biases count as none where the largest distance in one network is at most this share of
        the largest in the other: a network without biases may be recovered with some of 1e-15.
        Too large: a network near 0 is measured in the unit 1. Too small: rounding sets the unit.

    Returns
    -------
    float
        1 where a network has no biases, or none beside the other's.
    """
    distances = []
    for network in networks:
        norm = np.linalg.norm(network.A, axis=0)
        used = (norm > 0) & (network.b != 0)
        distances.append(np.abs(network.b[used]) / norm[used])
    farthest = [float(np.max(some, initial=0.0)) for some in distances]
    if not min(farthest) > negligible * max(farthest):
        return 1.0
    return float(2.0 ** np.round(np.log2(np.median(np.concatenate(distances)))))
