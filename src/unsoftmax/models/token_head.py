"""One softmax attention head behind a vocabulary: a function of ids."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import Length, Parameter, axes
from unsoftmax.models.attention import softmax
from unsoftmax.models.model import FrozenModel, Tensor
from unsoftmax.probes import Array, Indices


class TokenHead(FrozenModel):
    """f(ids) = Σ_n α_n u_{t_n}, α = softmax_n(ρ_{t_n}·x_j) over ids t_1 … t_N, j = t_N the last.

    What a head computes that looks its tokens up in a table: u_t is the value of id t, and ρ_i·x_j
    the score of id i for query token j. Scores of all ids are never formed.

    Parameters
    ----------
    u : array_like, shape (V,)
        Value of every id: what it is answered alone.
    rho : array_like, shape (V, r)
        Keys.
    x : array_like, shape (V, r)
        Queries.

    Notes
    -----
    Determined by its function up to an invertible matrix between ρ and x, and a constant added to
    all ρ; ρ and x are free where all u are alike.

    Examples
    --------
    >>> head = TokenHead(u=[0.0, 1.0], rho=[[0.0], [1.0]], x=[[0.0], [0.0]])
    >>> head([[0, 1, 1, 1]])
    array([0.75])
    """

    _axes = axes(u="V≥1", rho="V r", x="V r")
    _noun = "head"

    u = Parameter(np.asarray, "Value of every id (V,).")
    rho = Parameter(np.asarray, "Keys (V, r).")
    x = Parameter(np.asarray, "Queries (V, r).")
    vocabulary = Length("V", "Number of ids.")
    rank = Length("r", "Rank of the scores, at most.")

    def __init__(self, u: ArrayLike, rho: ArrayLike, x: ArrayLike) -> None:
        self._set({"u": u, "rho": rho, "x": x})

    @property
    def dim(self) -> int:
        """A token is one number, its id."""
        return 1

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What answers depend on, by name; a constant that is added to all ρ changes nothing."""
        every = {"u": self.u, "rho": self.rho - self.rho.mean(axis=0), "x": self.x}
        return {n: Tensor(n, None, float(np.linalg.norm(a)), a.shape) for n, a in every.items()}

    def __call__(self, X: ArrayLike) -> Array:
        """Map sequences of ids (B, N), or (B, N, 1), to numbers (B,)."""
        ids: Any = self._ids(X)
        return self._sliced(self._answers, ids, ids.shape[1] * (self.rank + 1), ())

    def _answers(self, ids: Any) -> Array:
        scores = np.einsum("bnr,br->bn", self.rho[ids], self.x[ids[:, -1]])
        answers: Array = np.einsum("bn,bn->b", softmax(scores), self.u[ids])
        return answers

    def _ids(self, X: ArrayLike) -> Indices:
        given = np.asarray(X)
        given = given[:, :, 0] if given.ndim == 3 and given.shape[2] == 1 else given
        if given.ndim != 2 or not given.shape[1]:
            raise ValueError(
                f"This head takes ids of shape (B, N) with N ≥ 1; it was given shape {given.shape}."
            )
        ids = given.astype(np.intp)
        if np.any(ids != given) or np.any((ids < 0) | (ids >= self.vocabulary)):
            raise ValueError(f"Ids are whole numbers from 0 to {self.vocabulary - 1}.")
        return ids

    def moved_at_most(self, X: ArrayLike, errors: Mapping[str, Any]) -> Array:
        """Bound how far answers (B,) are from those of any head within ``errors`` of this one.

        Parameters
        ----------
        X : array_like, shape (B, N)
            Sequences of ids, of any length.
        errors : mapping
            Bounds on every u, and on every G_ij = M_ij − M_jj, as a certificate has them; or on
            those of each sequence (B,).
        """
        u = self.u[self._ids(X)]
        return np.asarray(np.tanh(np.asarray(errors["G"]) / 2) * np.ptp(u, axis=1) + errors["u"])

    def parameter_norm(self, name: str) -> float:
        """Return the size that a bound stands beside: of logits their root mean square."""
        if name != "G":
            return super().parameter_norm(name)
        centred = self.rho - self.rho.mean(axis=0)
        inner = np.einsum("rs,rs->", centred.T @ centred, self.x.T @ self.x)
        return float(np.sqrt(max(0.0, inner)) / self.vocabulary)

    def _sizes(self) -> tuple[str, ...]:
        return f"V={self.vocabulary}", f"rank ≤ {self.rank}"
