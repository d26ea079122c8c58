"""What errors of answers do to a recovered layer, from others computed of the same answers.

Everything that is computed from answers is computed again from the same answers with errors drawn
as large as theirs may be. How far parameters move is what is certified, a safety factor apart; how
far a prediction moves is what a fresh answer may be missed by beside errors of its own. Errors
that cancel in answers are not added up: the drawn layers predict each fresh sequence as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention_layer import AttentionLayer
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.products import Product
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.probes import Array
from unsoftmax.validate.close_heads import bounds_of_close, nearest
from unsoftmax.validate.head_comparison import mean_shift
from unsoftmax.validate.judge import Residuals

SAFETY = 12.0
"""Certified errors, and what fresh answers may be missed by, in multiples of the most that drawn
errors do."""
DRAWN = 4
"""How often errors are drawn."""
LEAST_MOST = 1e-7
"""Residuals up to this share of an answer are not refused, however precise answers are."""
ROUNDOFFS = 16.0
"""Roundoffs, or measured errors of one answer, that predictions and answers may differ by."""


Layer: TypeAlias = AttentionLayer | RotaryLayer
L = TypeVar("L", bound=Layer)


def score_norm(layer: Layer, head: int) -> float:
    """Return the largest ‖[W_h(Δ) w_h]‖_F of the distances that it is looked at."""
    return max(form.norm for form in layer.score_forms(head))


def layers_apart(a: Layer, b: Layer) -> dict[str, float]:
    """Return how far the parameters of two layers are, of the same heads the most over heads.

    Of W(Δ), and of w, what biases add to scores, at all distances that scores are looked at.
    """
    d, heads = a.dim, range(a.H)
    far = {"c": float(np.linalg.norm(a.c - b.c))}
    if a.norm is not None and b.norm is not None:
        for name in ("scale", "shift", "eps"):
            far[name] = float(np.linalg.norm(getattr(a.norm, name) - getattr(b.norm, name)))
    if a.H != b.H:
        return {**far, "M": np.inf, "W": np.inf, "w": np.inf}
    values = [(a.values_of(h) - b.values_of(h)).norm for h in heads]
    scores = [
        mine - its
        for h in heads
        for mine, its in zip(a.score_forms(h), b.score_forms(h), strict=True)
    ]
    W = [Product(off.left[:d], off.right[:, :d]).norm for off in scores]
    w = [
        np.hypot(
            np.linalg.norm(off.left[:d] @ off.right[:, d:]),
            np.linalg.norm(off.left[d:] @ off.right[:, :d]),
        )
        for off in scores
    ]
    each = {"M": values, "W": W, "w": w}
    if isinstance(a, RotaryLayer) and not a.biased:
        del each["w"]
    return far | {name: float(max(own, default=0.0)) for name, own in each.items()}


@dataclass(frozen=True, slots=True)
class DrawnModels(Generic[L]):
    """A recovered layer, and others of the same answers with drawn errors.

    Attributes
    ----------
    model : Layer
        The layer.
    others : sequence
        The others, of its class, with the same heads in the same order.
    noise : AnswerNoise
        What answers are off by. Behind a norm numbers are off one by one, by its ``relative`` part
        of themselves and of the norm's scale; else whole answers are.
    """

    model: L
    others: Sequence[Any]
    noise: AnswerNoise
    least_most: float = LEAST_MOST
    """Residuals up to this share of an answer are not refused."""

    # -- parameters

    def errors(self) -> dict[str, float]:
        """Bound every parameter's error: Frobenius norms of the worst head, 2-norms of vectors."""
        far = [layers_apart(self.model, one) for one in self.others]
        largest = {name: max(one[name] for one in far) for name in far[0]}
        heads, unit = range(self.model.H), max(ROUNDOFFS * UNIT, self.noise.relative)
        scores = max((score_norm(self.model, h) for h in heads), default=0.0)
        values = max((self.model.values_of(h).norm for h in heads), default=0.0)
        sizes = {"c": self._of_constant(), "M": values, "W": scores, "w": scores}
        return {
            name: SAFETY * moved + unit * sizes.get(name, 0.0) for name, moved in largest.items()
        }

    def _of_constant(self) -> float:
        """Return the size of what c is read from: terms of a token's size may cancel in it."""
        size, norm = float(np.linalg.norm(self.model.c)) + self.gain, self._norm
        if norm is None:
            return size
        # a c so small that the zero token is answered with the shift is taken for 0
        unseen = np.linalg.norm(np.abs(norm.shift / norm.scale) + 1) * np.sqrt(norm.eps)
        return size + float(unseen)

    @property
    def gain(self) -> float:
        """How long a token of length 1 is on average when it is mapped."""
        model = self.model
        squares = sum(model.values_of(h).norm ** 2 for h in range(model.H))
        return float(np.sqrt(squares / model.dim)) + bool(model.residual)

    def bounds(self, errors: dict[str, float]) -> tuple[dict[str, float], tuple[str, ...]]:
        """Return bounds of heads that may be close to each other, and what they assume."""
        x = np.random.default_rng(0).standard_normal((32, self.model.dim))
        rows = self.model.vectors(x).swapaxes(0, 1).reshape(self.model.H, -1) / np.sqrt(len(x))
        return bounds_of_close(errors, nearest(rows))

    # -- predictions

    @property
    def _norm(self) -> LayerNorm | None:
        norm = self.model.norm
        return None if norm is None or norm.before else norm

    def residuals(self, X: Array, y: Array, more: float = 1.0) -> Residuals:
        """Compare fresh answers (B, m): by norms, or number by number behind a norm.

        ``more``: how many times larger residuals may be where errors explain them.
        """
        predicted, most = self.model(X), self._most(more)
        size, allowed = self._size(X), SAFETY * self._moved(X, predicted)
        return Residuals.of(
            self._measured(y - predicted),
            own=self._own(X, y)[1],
            allowed=allowed,
            size=size,
            # next to nothing may be left of a single token, and errors of c be as large
            telling=(allowed < most * size) | (X.shape[1] > 1),
            most=most,
        )

    def tells(self, X: Array) -> bool:
        """Tell whether errors of the parameters leave the answer to a sequence (N, d) as it is."""
        at = self.residuals(X[None], self.model(X[None]))
        return bool(np.all(at.own + at.allowed <= at.most * at.size))

    def unseen(self, X: Array, y: Array, more: float = 1.0) -> Array:
        """Return how small every head would have to be for no answer (B, m) to show it: (H,).

        As a share of the largest M: what is missed may be so many times what the head adds.
        """
        compared, at = self.residuals(X, y, more), self.model.maps.linearise(X)
        leaves = self.model.maps.leaves.items()
        [(prefix, heads)] = ((name, one) for name, one in leaves if isinstance(one, Attention))
        name = "M" if heads.O is None else "O"
        whole = getattr(heads, name)
        norms = np.array([self.model.values_of(h).norm for h in range(self.model.H)])
        shares = np.full(self.model.H, np.inf)
        for h in range(self.model.H):
            own = np.zeros_like(whole)
            own[h] = whole[h]
            adds = self._measured(at.jvp({f"{prefix}{name}": own}, None)[:, 0]) / compared.size
            with np.errstate(divide="ignore"):
                shares[h] = np.min(compared.tolerance / adds, initial=np.inf)
        return np.asarray(shares * norms / norms.max(initial=0.0))

    def strain(self, X: Array, y: Array) -> float:
        """Return the largest miss, in multiples of one error of the parameters and the noise."""
        predicted = self.model(X)
        typical = self._own(X, y)[0] + self._moved(X, predicted)
        missed = self._measured(y - predicted)
        # neither size nor error, as of a zero token beside c = 0: nothing is told
        return float(np.max(missed / np.where(typical > 0, typical, np.inf), initial=0.0))

    def _measured(self, differences: Array) -> Array:
        by_number = self._norm is not None
        return np.asarray(np.abs(differences) if by_number else np.linalg.norm(differences, axis=1))

    def _size(self, X: Array) -> Array:
        """Return the natural size of answers: of whole ones, or of every number behind a norm."""
        if (norm := self._norm) is not None:
            size = np.abs(norm.shift) + np.abs(norm.scale)
            return np.broadcast_to(size, (len(X), len(size)))
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        return np.asarray(np.linalg.norm(self.model.c) + longest * self.gain)

    def _own(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Return what answers are off by as a rule, and at most."""
        unit, absolute = self.noise.relative, self.noise.absolute
        if (norm := self._norm) is not None:
            size = np.abs(y) + np.abs(norm.scale)
            return unit * size, max(4 * ROUNDOFFS * UNIT, unit) * size
        off = unit * (np.maximum(self._size(X), np.linalg.norm(y, axis=1)) + self._scored(X))
        return off + absolute, ROUNDOFFS * off + absolute

    def _most(self, more: float) -> float:
        """Largest relative residual, whatever errors explain.

        Answers rounded to 4 decimals leave 5e-2. Behind a norm small errors of W_h weigh at
        logits of 30.
        """
        least, noise, most = self.least_most, 1e8, 1e-2
        if self._norm is not None:
            least, noise, most = 1e-4, 1e7, 0.2
        return min(most, more * max(least, noise * self.noise.relative))

    def _moved(self, X: Array, predicted: Array) -> Array:
        """Return the most that drawn errors move a prediction by."""
        moved = np.array([self._measured(one(X) - predicted) for one in self.others])
        largest = np.max(moved, axis=0)
        if self._norm is None:
            return np.asarray(largest)
        # by chance a number moves less than all do
        size = self._size(X)
        typical = np.sqrt(np.mean((moved / size) ** 2, axis=(0, 2)))
        return np.asarray(largest + typical[:, None] * size)

    def _scored(self, X: Array) -> Array:
        """Return what scores move answers by to first order, a roundoff being 1."""
        model, moved = self.model, np.zeros(len(X))
        weights, sizes = model.attention(X), model.score_sizes(X)
        for h in range(model.H):
            M = model.values_of(h)
            values = X @ M.right.T
            mean = np.einsum("bn,bns->bs", weights[:, h], values)
            away = np.linalg.norm((values - mean[:, None]) @ M.left.T, axis=2)
            moved += mean_shift(weights[:, h], away, sizes[:, h])
        return moved
