"""Offsets along which a network is steep, and the vector that logits along them determine.

The unit offsets of query token x with gradient h = ∇g(x)/‖∇g(x)‖ are

    a_l = s_l (c_l·h + Q ε_l)/‖c_l·h + Q ε_l‖,      s_l = ±1,  c_l > 0,  l = 0 … r − 1,

Q an orthonormal basis of the space that u = W x + w is known to lie in (all of R^d at first),
ε_0 along Qᵀh, ε_l orthogonal to it and to each other. All of them lean towards h, so g is steep
along them. With t_l = a_l·u·s_l·‖c_l·h + Q ε_l‖ and y_l = ε_l·Qᵀu, the equations

    t_0 = (1 + c_0‖Qᵀh‖)·y_0,      t_l = y_l + c_l‖Qᵀh‖·y_0

are triangular: r logits give Qᵀu by substitution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.measure.reflections import HouseholderFrames
from unsoftmax.probes import Array, Design, Indices, LazyRows


@dataclass(frozen=True, slots=True)
class TiltedOffsets(LazyRows):
    """Unit offsets s·(c·h + Q ε_l)/‖·‖ of some query tokens, made when they are asked for."""

    h: Array
    """Unit gradients (k, d), one per query token."""
    basis: Array | None
    """Q, (d, r); the identity where None."""
    token: Indices
    """Whose offset each row is, (n,)."""
    axis: Indices
    """l of each row, (n,)."""
    tilt: Array
    """c of each row, (n,)."""
    sign: Array
    """s of each row, (n,)."""

    @classmethod
    def every(cls, h: Array, basis: Array | None) -> TiltedOffsets:
        """Return all r offsets of every token, by token, then by axis, with s = c = 1."""
        r = h.shape[1] if basis is None else basis.shape[1]
        token, axis = np.repeat(np.arange(len(h)), r), np.tile(np.arange(r), len(h))
        return cls(h, basis, token, axis, np.ones(len(token)), np.ones(len(token)))

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.token), self.h.shape[1]

    @property
    def tokens_and_axes(self) -> tuple[int, int]:
        """Number k of query tokens, and r of offsets of each."""
        return len(self.h), self.h.shape[1] if self.basis is None else self.basis.shape[1]

    def pick(self, index: Indices) -> TiltedOffsets:  # noqa: D102
        parts = {name: getattr(self, name)[index] for name in ("token", "axis", "tilt", "sign")}
        return replace(self, **parts)

    def design(self) -> Design:  # noqa: D102
        design: Design = {"h": self.h, "token": self.token, "l": self.axis}
        design |= {"c": self.tilt, "sign": self.sign}
        return design if self.basis is None else {**design, "basis": self.basis}

    def __getitem__(self, index: Indices) -> Array:
        token = self.token[index]
        rows = self._frames().axes(token, self.axis[index])
        if self.basis is not None:
            rows = rows @ self.basis.T
        rows += self.tilt[index, None] * self.h[token]
        return np.asarray(rows * (self.sign[index] / self._norms(index))[:, None])

    def made(self) -> Array:
        """Make all rows at once."""
        return self[np.arange(len(self.token))]

    def solve(self, t: Array) -> Array:
        """Return Qᵀu of every token, (k, r), from its logits per unit offset, a·u, (k·r,)."""
        k, r = self.tokens_and_axes
        frames, place = self._frames(), (self.token, self.axis)
        norms, tilt, y = np.empty((3, k, r))
        norms[place], tilt[place] = self._norms(np.arange(len(self.token))), self.tilt
        y[place] = self.sign * t
        y = norms * y
        y[:, 0] /= 1 + tilt[:, 0] * frames.size
        y[:, 1:] -= tilt[:, 1:] * frames.size[:, None] * y[:, :1]
        return frames.combine(y)

    def _frames(self) -> HouseholderFrames:
        """Return ε, for every query token."""
        return HouseholderFrames.of(self.h if self.basis is None else self.h @ self.basis)

    def _norms(self, index: Indices) -> Array:
        """Return ‖c·h + Q ε_l‖."""
        tilt = self.tilt[index]
        along = np.where(self.axis[index] == 0, self._frames().size[self.token[index]], 0.0)
        return np.asarray(np.sqrt(tilt**2 + 1 + 2 * tilt * along))
