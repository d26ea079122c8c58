"""Heads of a layer that takes ids, told apart by counts of tokens: a pole for each head.

Beside one query token j, copies n_i of tokens i and n_j of j itself are answered by

    z = f − f([j]) = Σ_h Σ_i p_hi V_hi,  p_hi = n_i e_hi / (n_j + Σ_k n_k e_hk),

e_hi = exp((x_i − x_j)·(W_h x_j + w_h)) the odds of token i in head h and V_hi = M_h (x_i − x_j). Of
one token z is Σ_h V_h / (1 + ν/e_h), ν = n_j/n_i: every head has a pole in ν, and ν = 0 is known,
Σ_h V_h = M (x_i − x_j). Answers are linear in all V, so that these are projected out and the logits
l = log e alone are searched for (variable projection). Tokens whose odds are known already are
levers: beside them poles of heads lie elsewhere.

*Start*: with F the columns 1/(1 + ν/e_h), F + diag(ν) F diag(1/e) = 1. Where U spans F, the
eigenvalues of the matrix that takes diag(ν) U to −U, both without 1, are the 1/e_h.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array

# Steps of a search, its first damping relative to the equations' diagonal, and what that becomes
# after a step that gained and after one that did not.
_STEPS, _DAMPING, _EASED, _TIGHTENED = 60, 1e-3, 0.1, 8.0
# A search ends after so many steps that left more than this share of what is missed.
_GAINED, _PATIENCE = 0.99, 4
# Searches that end where other answers are missed begin again so often, so far from the best end.
# Of twelve heads a third do; with these one in twenty.
_RESTARTS, _ASIDE = 40, (0.3, 1.0)
# Logits are searched for so far beyond those that the ratios show half of.
_BEYOND = 3.0


@dataclass(frozen=True, slots=True)
class Mixtures:
    """Answers to counts of some tokens beside one query token.

    Attributes
    ----------
    counts : array (Q, S)
        Copies of every token.
    beside : array (Q, H)
        What weighs beside them: n_j, and Σ n_k e_hk of tokens that are known.
    z : array (Q, m)
    parts : array (Q, H, m)
        Σ n_k e_hk V_hk of tokens that are known; of shape (Q, 1, 1) and 0 where there are none.
    """

    counts: Array
    beside: Array
    z: Array
    parts: Array

    def reduced(self) -> Mixtures:
        """Return the same in coordinates of what answers span."""
        m = self.z.shape[1]
        rows = np.vstack([self.z, *(self.parts.reshape(-1, m) if self.parts.any() else [])])
        s, right = np.linalg.svd(rows, full_matrices=False)[1:]
        within = right[s > np.finfo(np.float64).eps * s[0]].T
        parts = self.parts @ within if self.parts.any() else self.parts
        return replace(self, z=self.z @ within, parts=parts)

    def weights(self, logits: Array) -> tuple[Array, Array]:
        """Return all p_hi (Q, H, S), and 1/(n_j + Σ n e) (Q, H), for logits (H, S)."""
        odds = self.counts[:, None] * np.exp(logits)
        whole = 1 / np.maximum(self.beside + odds.sum(axis=2), TINY)
        return odds * whole[..., None], whole

    def solved(self, logits: Array) -> MixtureFit:
        """Solve for all V."""
        Q, (H, S) = len(self.z), logits.shape
        p, whole = self.weights(logits)
        z = self.z - np.sum(self.parts * whole[..., None], axis=1)
        P = p.reshape(Q, H * S)
        left, s, right = np.linalg.svd(P, full_matrices=False)
        keep = s > _DEPENDENT * s[0]
        basis = left[:, keep]
        inverse = (right[keep].T / s[keep]) @ basis.T
        V, missed = inverse @ z, z - basis @ (basis.T @ z)
        return MixtureFit(self, logits, V.reshape(H, S, -1), missed, basis, inverse, p, whole)


# Columns of weights that are nearly dependent: smaller, and what they multiply is errors alone.
_DEPENDENT = 1e-14
# Eigenvalues of the scaled equations below this are rounding; answers that change by less with a
# logit do not change at all.
_SEEN, _FLAT = 1e-16, 1e-60


@dataclass(frozen=True, slots=True)
class MixtureFit:
    """Logits, all V that fit best beside them, and what is missed."""

    of: Mixtures
    logits: Array
    """(H, S)."""
    V: Array
    """(H, S, m)."""
    missed: Array
    """(Q, m)."""
    basis: Array
    """Orthonormal columns (Q, k) that span those of the weights, ..."""
    inverse: Array
    """... and what takes answers to V, (H·S, Q)."""
    p: Array
    whole: Array

    @property
    def misfit(self) -> float:
        """Norm of all that is missed."""
        return float(np.linalg.norm(self.missed))

    def token(self, s: int) -> MixtureFit:
        """Return what is found of one token."""
        return replace(self, logits=self.logits[:, [s]], V=self.V[:, [s]])

    def _moved(self) -> Array:
        """Return what logits change in answers with V as they are, (H·S, Q, m)."""
        pooled = np.einsum("qhs,hsm->qhm", self.p, self.V) + self.of.parts * self.whole[..., None]
        moved = self.V.swapaxes(0, 1)[:, None] - pooled
        moved = self.p.transpose(2, 0, 1)[..., None] * moved
        moved = moved.transpose(2, 0, 1, 3)
        return np.asarray(moved.reshape(self.logits.size, *self.missed.shape))

    def slopes(self) -> Array:
        """Return the same with V projected out, (H·S, Q·m)."""
        moved = self._moved()
        flat = moved - self.basis @ (self.basis.T @ moved)
        return np.asarray(flat.reshape(len(flat), -1))

    def errors(self, noise: float) -> tuple[Array, Array]:
        """Return what errors of that size of every number make of logits, and of V: (H, S) each."""
        J = self.slopes()
        scale = np.maximum(np.linalg.norm(J, axis=1), _FLAT)
        values, vectors = np.linalg.eigh((J / scale[:, None]) @ (J / scale[:, None]).T)
        root = vectors / np.sqrt(np.maximum(values, _SEEN)) / scale[:, None]
        # V follows logits, beside errors of its own
        moved = self.inverse @ np.tensordot(root.T, self._moved(), axes=1)
        square = np.sum(self.inverse**2, axis=1) * self.missed.shape[1]
        of_V = np.sqrt(square + np.sum(moved**2, axis=(0, 2)))
        both = np.linalg.norm(root, axis=1), of_V
        logits, V = (noise * x.reshape(self.logits.shape) for x in both)
        return logits, V


def fitted(of: Mixtures, start: Array) -> MixtureFit:
    """Search for logits near ``start`` (H, S) that answers miss least."""
    now, damping, waited = of.reduced().solved(start), _DAMPING, 0
    for _ in range(_STEPS):
        J = now.slopes()
        gram, right = J @ J.T, J @ now.missed.ravel()
        scale = np.sqrt(np.maximum(np.diag(gram), TINY))
        system = gram / scale / scale[:, None] + damping * np.eye(start.size)
        step = (np.linalg.solve(system, right / scale) / scale).reshape(start.shape)
        step *= min(1.0, 2.0 / max(float(np.abs(step).max()), TINY))
        tried = now.of.solved(now.logits + step)
        better, gained = (tried.misfit < share * now.misfit for share in (1.0, _GAINED))
        now, damping = (tried, damping * _EASED) if better else (now, damping * _TIGHTENED)
        waited = 0 if gained else waited + 1
        if waited == _PATIENCE:
            break
    return of.solved(now.logits)


def searched(of: Mixtures, start: Array, enough: float) -> MixtureFit:
    """Search near ``start``, and near what was found so far, until what is missed is ``enough``."""
    rng, found = np.random.default_rng(0), fitted(of, start)
    for k in range(_RESTARTS):
        if found.misfit <= enough:
            break
        aside = _ASIDE[k % len(_ASIDE)] * rng.standard_normal(start.shape)
        found = min(found, fitted(of, found.logits + aside), key=lambda fit: fit.misfit)
    return found


def pole_start(nu: Array, z: Array, heads: int) -> Array:
    """Return logits (heads,) of one token from answers (Q, m) at ratios ν (Q,)."""
    row = 1 / (1 + nu)
    U = np.linalg.svd(z, full_matrices=False)[0][:, :heads]
    one = (row / np.linalg.norm(row))[:, None]
    left, right = ((row * w)[:, None] * U for w in (nu, np.ones_like(nu)))
    left, right = (x - one @ (one.T @ x) for x in (left, right))
    B = np.linalg.lstsq(left, right, rcond=None)[0]
    poles = np.linalg.eigvals(-B)
    least, most = nu[nu > 0].min(), nu.max()
    size = np.clip(np.abs(poles), np.exp(-_BEYOND) / most, np.exp(_BEYOND) / least)
    return np.asarray(-np.log(size))


def matched(one: MixtureFit, other: MixtureFit, counts: Array, z: Array) -> Array:
    """Return the heads of ``other`` in the order of those of ``one``, (H,).

    Both are of one token; of both, with so many copies (3,), the
    last one of the query token, z (m,) is known
    as well, a sum of all V with weights that tell which heads belong together.
    """
    H = len(one.logits)
    odds = [n * np.exp(fit.logits[:, 0]) for n, fit in zip(counts[:2], (one, other), strict=True)]
    V = np.concatenate([one.V[:, 0], other.V[:, 0]])
    shares = np.linalg.lstsq(V.T, z, rcond=None)[0]
    whole = odds[0][:, None] + odds[1] + counts[2]
    apart = (shares[:H, None] - odds[0][:, None] / whole) ** 2 + (shares[H:] - odds[1] / whole) ** 2
    return np.asarray(scipy.optimize.linear_sum_assignment(apart)[1])
