"""Logits of one head among several: a token between shuts all others.

Three tokens [α a; z; b], a two before the query token and the *filler* z one before it, both far
longer than b. With u_g = W_g(1) b known for all heads, z is chosen so that

    z·u_g ≫ 0 for g ≠ h:            the head weighs z alone and answers z·v_g,
    z·u_h = −s, and z·v_h = 0:      head h weighs a, z and b by e^t, e⁻ˢ and 1, t = α a·W_h(2) b.

So f − Σ_{g≠h} z·v_g = (e^t α a·v_h + e⁻ˢ z·v_h)/(e^t + 1 + e⁻ˢ), but for e⁻⁴⁰. Such z exist where
the u_g are linearly independent: at most d heads; z·v_h = 0 takes one dimension more. A head whose
scores are all 0 weighs all three alike. Pure arrays; nothing is asked here. *Queries*: one per
logit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class FillerTuning:
    """How far a filler shuts heads."""

    shut: float = 40.0
    """Logits of the filler at heads that it shuts: what it leaves, e⁻⁴⁰, is below a roundoff."""
    closed: float = 12.0
    """s: what is not known of W_h(1) moves the filler's weight at head h, which is e⁻ˢ. Larger: a
    longer filler."""
    reach: float = 1.5
    """They are larger by so many times ‖α a‖‖u_g‖, since a has a logit as well, a·W_g(2) b, which
    is not known: among 16 dimensions it was up to 0.4 of that. More costs digits."""
    dependent: float = 1e-6
    """Where the filler's logits miss those wanted by more than this share, there is none."""


def fillers(
    u: Array,
    v: Array,
    lengths: Array | float,
    tuning: FillerTuning = FillerTuning(),
    *,
    beside: Array | float = 0.0,
) -> Array | None:
    """Return the shortest tokens z, (m, d), that shut all heads but the first; None if some cannot.

    Parameters
    ----------
    u : ndarray (m, G, d)
        W_g(1) b of all heads at m query tokens, none 0.
    v : ndarray (d,)
        Value vector of the first head.
    lengths : float or ndarray (m,)
        Norms of the offsets asked beside them.
    tuning : FillerTuning
        Knobs.
    beside : float or ndarray (m, G)
        What a filler's logits are beside z·u_g, as with biases.

    Examples
    --------
    >>> fillers(np.eye(3)[None, :2], np.ones(3), 0.0).round(9).tolist()
    [[-12.0, 40.0, -28.0]]
    """
    wanted = tuning.shut + tuning.reach * np.linalg.norm(u, axis=2) * np.reshape(lengths, (-1, 1))
    wanted[:, 0] = -tuning.closed
    wanted = wanted - beside
    rows = u
    if u.shape[1] < u.shape[2]:
        size = np.linalg.norm(u[:, 0], axis=1) / np.linalg.norm(v)
        rows = np.concatenate([u, size[:, None, None] * v], axis=1)
        wanted = np.pad(wanted, ((0, 0), (0, 1)))
    # of length 1: heads of all sizes count alike
    norms = np.linalg.norm(rows, axis=2)
    z = np.einsum("mdg,mg->md", np.linalg.pinv(rows / norms[:, :, None]), wanted / norms)
    missed = np.abs(np.einsum("mgd,md->mg", u, z) - wanted[:, : u.shape[1]])
    return None if np.any(missed > tuning.dependent * tuning.shut) else z


@dataclass(frozen=True, slots=True)
class OpenedAnswers:
    """Answers, over the gain, to [α_j a_i; z_j; b_j] for all i and j, head h alone being open."""

    offsets: Array
    """a, (n, d)."""
    alpha: Array
    """(m,)."""
    fillers: Array
    """z, (m, d)."""
    y: Array
    """(m, n)."""
    v: Array
    """Of all heads with scores, (G, d)."""
    h: int
    constant: Array
    """Values of heads whose scores are 0, (d,)."""
    left: float
    """e⁻ˢ, the filler's weight at head h."""

    @property
    def _own(self) -> tuple[Array, Array, Array]:
        """Return what head h answers, (m, n), and α a·v_h and z·v_h."""
        others = np.sum(self.v, axis=0) - self.v[self.h]
        rest = (self.fillers @ (others + self.constant / 3))[:, None]
        rest = rest + np.outer(self.alpha, self.offsets @ self.constant) / 3
        a, z = np.outer(self.alpha, self.offsets @ self.v[self.h]), self.fillers @ self.v[self.h]
        return self.y - rest, a, z[:, None]

    @property
    def logits(self) -> Array:
        """t, (m, n); NaN where an answer is no head's."""
        own, a, z = self._own
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.log(((1 + self.left) * own - self.left * z) / (a - own)))

    @property
    def scores(self) -> Array:
        """a·W_h(2) b, (m, n)."""
        return np.asarray(self.logits / self.alpha[:, None])

    def error(self, precision: Precision, v_error: float) -> float:
        """Estimate the error of all `scores`, Frobenius; ``v_error`` is that of each v_g.

        Terms are rounded in proportion to their own size, each independently, and errors of v have
        no direction.
        """
        _, seen, shut = self._own
        e = np.exp(self.logits)
        per_logit = e * (seen * (1 + self.left) - self.left * shut) / (e + 1 + self.left) ** 2
        z, a = np.linalg.norm(self.fillers, axis=1), np.linalg.norm(self.offsets, axis=1)
        lengths = z[:, None] + np.outer(self.alpha, a)
        values = np.hypot(np.linalg.norm(self.v), np.linalg.norm(self.constant))
        off = KAPPA * precision.unit * float(values) + v_error * np.sqrt(
            len(self.v) / self.v.shape[1]
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            each = off * lengths / np.abs(per_logit) / self.alpha[:, None]
        return float(np.linalg.norm(np.nan_to_num(each, nan=np.inf)))
