"""LayerNorm and RMSNorm, and sub-layers: a map o with a residual around it, and such a norm.

y = o(X) + x_N, with a norm behind y = norm(o(X) + x_N), and with one before y = o(norm(X)) + x_N.
At all positions each token x_p takes the place of x_N.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import arrays
from unsoftmax.models import linearised as lin
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.model import FrozenModel, Tensor
from unsoftmax.probes import Array


class LayerNorm(arrays.FrozenArrays):
    """n(u) = shift + scale ⊙ (u − mean u)/√(var u + eps), of a sub-layer; or RMSNorm.

    Parameters
    ----------
    scale : array_like, shape (m,)
        γ, of any signs; entries may be 0.
    shift : array_like, shape (m,), or None
        β; None means zeros, as RMSNorm has it.
    eps : float
        What is added to the variance; 0 or more.
    before : bool, optional
        Whether the sub-layer sees normalised tokens (pre-LN; a residual connection then adds
        the token as it came), or its answer is normalised, residual included (post-LN, the
        default).
    centred : bool, optional
        Whether the mean is taken off. False is RMSNorm: shift + scale ⊙ u/√(mean u² + eps).

    Raises
    ------
    ValueError
        Shapes do not fit, an entry is not finite, or ``eps`` is negative.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. Where ``eps`` is 0, a u without any
    deviation gives ``shift``. What a sub-layer's function determines of it: `AttentionLayer`.

    Examples
    --------
    >>> norm = LayerNorm(scale=[1.0, 1.0, 2.0], shift=[0.0, 0.0, 5.0], eps=0.0)
    >>> norm([[3.0, 0.0, 3.0], [7.0, 7.0, 7.0]]).round(3)
    array([[ 0.707, -1.414,  6.414],
           [ 0.   ,  0.   ,  5.   ]])
    >>> LayerNorm([1.0, 1.0], None, eps=0.0, centred=False)([[3.0, 3.0]])
    array([[1., 1.]])
    """

    _axes = arrays.axes(scale="m≥1", shift="m = 0", eps="", before="= none", centred="= none")

    def __init__(
        self,
        scale: ArrayLike,
        shift: ArrayLike | None,
        eps: float,
        before: bool = False,
        centred: bool = True,
    ) -> None:
        flags = {"before": bool(before), "centred": bool(centred)}
        self._set({"scale": scale, "shift": shift, "eps": eps, **flags})

    def _set(self, given: Mapping[str, ArrayLike | None]) -> None:
        super()._set({"before": False, "centred": True, **given})
        if self.eps < 0:
            raise ValueError(f"eps must be 0 or more; it is {self.eps}.")

    width = arrays.Length("m", "How many numbers are normalised together, m.")
    outputs = width

    @property
    def dim(self) -> int:
        """How many numbers a token has, m."""
        return self.width

    @property
    def maps(self) -> LayerNorm:
        """The map that it is: itself."""
        return self

    scale = arrays.Parameter(np.asarray, "γ (m,).")
    shift = arrays.Parameter(np.asarray, "β (m,).")
    eps = arrays.Parameter(float, "What is added to the variance.")
    before = arrays.Parameter(bool, "Whether tokens are normalised before a sub-layer sees them.")
    centred = arrays.Parameter(bool, "Whether the mean is taken off; False is RMSNorm.")

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What its answers depend on, by name."""
        each = ((name, self._arrays[name]) for name in ("scale", "shift", "eps"))
        return {name: Tensor(name, None, float(np.linalg.norm(x)), x.shape) for name, x in each}

    def __call__(self, u: ArrayLike) -> Array:
        """Map (…, m), such as answers (B, m) or sequences (B, N, m), to the same shape."""
        u = np.asarray(u, dtype=np.float64)
        if u.shape[-1:] != self.scale.shape:
            raise ValueError(
                f"This {type(self).__name__} takes arrays of shape (…, {self.width}); "
                f"it was given shape {u.shape}."
            )
        return np.asarray(self.shift + self.scale * self.normalised(u))

    def normalised(self, u: Array) -> Array:
        """Return (u − mean u)/√(var u + eps), without scale and shift."""
        return self._deviations(u)[0]

    def _deviations(self, u: Array) -> tuple[Array, Array, Array]:
        """Return ẑ, the mean that is taken off, and σ; 1 where it is 0."""
        # in units of a power of two, which is exact, no square leaves float64's range
        largest = np.maximum(np.abs(u).max(axis=-1, keepdims=True), np.sqrt(self.eps))
        unit = np.ldexp(1.0, np.frexp(largest)[1] - 1)
        z, mean = u / unit, np.zeros_like(unit)
        if self.centred:
            mean = z.mean(axis=-1, keepdims=True)
            z = z - mean
        variance = np.mean(z * z, axis=-1, keepdims=True) + self.eps / unit / unit
        spread = np.sqrt(np.where(variance > 0, variance, 1.0))
        sigma = np.maximum(spread * unit, np.nextafter(0.0, 1.0))
        return np.asarray(z / spread), mean * unit, np.where(variance > 0, sigma, 1.0)

    def without_mean(self, x: Array, axis: int) -> Array:
        """Take the mean along an axis off, where the norm does: no answer shows it."""
        return x - x.mean(axis=axis, keepdims=True) if self.centred else x

    @property
    def sign(self) -> float:
        """Sign of the first entry of scale that is not 0."""
        return float(np.sign(self.scale[np.argmax(self.scale != 0)]))

    def behind_share(self, size: float) -> LayerNorm:
        """Return the norm behind a sum that is divided by a size with a sign."""
        scale = np.sign(size) * self.scale
        return LayerNorm(scale, self.shift, self.eps / size / size, self.before, self.centred)

    def size(self, name: str) -> lin.Size:
        """Return the size of an array."""
        return lin.Size.of(self._arrays.get(name))

    def entries(self, tokens: int, every: bool) -> int:
        """Return how many numbers a sequence's answer needs at a time."""
        return (tokens if every else 1) * self.width

    def answers(self, X: Array, every: bool = False) -> Array:
        """Map sequences (B, N, m) to answers at all positions, or at the last, (B, P, m)."""
        return self(X if every else X[:, -1:])

    def linearise(
        self, X: Array, every: bool = False, sizes: lin.Sizes | None = None
    ) -> lin.Linearised:
        """Return the map at sequences (B, N, m): at all positions, or at the last.

        With ẑ = (u − mean u)/σ and σ² = var u + eps, ∂n/∂u = diag(γ)/σ·(1 − 11ᵀ/m − ẑẑᵀ/m), without
        11ᵀ/m for RMSNorm. ``sizes`` (B, N, m) are those of the terms that tokens are made of.
        """
        u = X if every else X[:, -1:]
        z, mean, sigma = self._deviations(u)

        def through(g: Array) -> Array:
            """Return (1 − 11ᵀ/m − ẑẑᵀ/m)/σ·g."""
            g = g - g.mean(axis=-1, keepdims=True) if self.centred else g
            with np.errstate(over="ignore"):  # σ may be 5e-324
                return np.asarray((g - z * np.mean(g * z, axis=-1, keepdims=True)) / sigma)

        def jvp(change: lin.Changes, dX: Array | None = None) -> Array:
            moved = np.zeros_like(u)
            if dX is not None:
                moved = self.scale * through(dX if every else dX[:, -1:])
            moved = moved + change.get("scale", 0.0) * z + change.get("shift", 0.0)
            if "eps" in change:
                with np.errstate(over="ignore"):
                    moved = moved - self.scale * z * change["eps"] / (2 * sigma) / sigma
            return np.asarray(moved)

        def vjp(y: Array) -> lin.Pullback:
            least = sigma.min(axis=1, keepdims=True)
            by_eps = -np.sum(y * self.scale * z * (least / sigma) ** 2, axis=(2, 3))
            with np.errstate(over="ignore"):
                by_eps = by_eps / (2 * least[:, 0, 0]) / least[:, 0, 0]
            by: dict[str, lin.Gradients] = {
                "scale": (lin.Direct(np.sum(y * z, axis=2)),),
                "shift": (lin.Direct(y.sum(axis=2)),),
                "eps": (lin.Direct(by_eps),),
            }

            def by_tokens() -> Array:
                of_x = through(y * self.scale)
                return of_x if every else lin.at_last(of_x, X.shape[1])

            return lin.Pullback(by, by_tokens)

        @cache
        def rounding() -> Array:
            if sizes is None:  # tokens are given exactly
                with np.errstate(over="ignore"):
                    terms = np.abs(z) + np.abs(mean) / sigma
            else:
                made_of, own = sizes()[:, -u.shape[1] :], np.abs(z)
                common = float(self.centred) * made_of.mean(axis=2, keepdims=True)
                along = own * np.mean(own * made_of, axis=2, keepdims=True)
                with np.errstate(over="ignore"):
                    terms = (made_of + common + along) / sigma + 2 * own
            return np.asarray(np.abs(self.scale) * terms + np.abs(self.shift))

        return lin.Linearised(self.shift + self.scale * z, rounding, jvp, vjp)

    def moved_at_most(self, u: Array, moved: Array, errors: Mapping[str, float]) -> Array:
        """Bound how far normalised answers are off (2-norms, (B,)) where u (B, m) is by ``moved``.

        ``errors`` are 2-norms: of ``scale``, ``shift`` and ``eps``. Without a finite bound on eps
        u is known up to a factor, by whose square eps goes: ``moved`` counts both.
        """
        root = np.sqrt(self.width)
        u = u - u.mean(axis=1, keepdims=True) if self.centred else u
        deviation = np.sqrt(np.mean(u * u, axis=1) + self.eps)
        eps_error = errors["eps"] if np.isfinite(errors["eps"]) else 0.0
        with np.errstate(divide="ignore"):
            # directions are at most opposite to each other
            turned = np.minimum(moved / deviation + eps_error * root / deviation**2, 2 * root)
        largest = float(np.max(np.abs(self.scale)))
        return np.asarray(largest * turned + root * errors["scale"] + errors["shift"])

    def _sizes(self) -> tuple[str, ...]:
        return (
            f"m={self.width}",
            f"eps={self.eps:g}",
            *(("before",) if self.before else ()),
            *(() if self.centred else ("centred=False",)),
        )


def sublayer(name: str, inside: Map, residual: bool, norm: LayerNorm | None) -> Composition:
    """Compose a sub-layer: a norm before, the map inside, the residual, a norm behind."""
    before = norm if norm is not None and norm.before else None
    whole = Composition.of({"norm": before, name: inside}, residual)
    return whole if norm is before else Composition.of({"": whole, "norm": norm})


NORM_TENSORS = {f"{name} of the norm": f"norm.{name}" for name in ("scale", "shift", "eps")}
"""What a sub-layer's answers depend on of its norm."""


class SubLayer(FrozenModel):
    """A map with what stands around it."""

    _part: ClassVar[str]
    """What the map is called among the sub-layer's."""
    _norm: LayerNorm | None
    _inner: ClassVar[tuple[str, ...]] = ("norm.",)

    def _set(self, given: Mapping[str, Any], norm: LayerNorm | None = None) -> None:
        """Keep the map's arrays and what stands around it, if that fits."""
        of_norm, own = arrays.split(given, "norm.")
        norm = LayerNorm.from_arrays(of_norm) if of_norm else norm
        self._norm, self._arrays = norm, self._inside(own)
        d, m = self.dim, self.outputs
        if norm is not None and not isinstance(norm, LayerNorm):
            raise TypeError(f"norm must be a LayerNorm; it is a {type(norm).__name__}.")
        if self.residual and m != d:
            raise ValueError(
                f"With a residual m = d; here m = {m} and d = {d}: they must be the same."
            )
        if norm is not None and norm.width != (d if norm.before else m):
            where, width = ("before", d) if norm.before else ("behind", m)
            raise ValueError(f"A norm {where} this layer has {width} numbers; it has {norm.width}.")
        if norm is not None:
            self._arrays |= {f"norm.{name}": array for name, array in norm.arrays().items()}

    def _inside(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """Return the arrays of the map itself, and whether there is a residual."""
        return arrays.declared(given, self._axes)

    residual = arrays.Parameter(bool, "Whether the last token is added.")

    @property
    def norm(self) -> LayerNorm | None:
        """The norm behind or before, if there is one."""
        return self._norm

    @property
    def outputs(self) -> int:
        """How many numbers an answer has."""
        return len(self._arrays["c"])

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm; of ``scale``, ``shift`` and ``eps`` it is the norm's.

        0 for what is no parameter (a bound on the function).
        """
        if self._norm is not None and name in ("scale", "shift", "eps"):
            return self._norm.parameter_norm(name)
        return super().parameter_norm(name)

    @cached_property
    def _map(self) -> Map:
        """The map itself."""
        raise NotImplementedError

    @property
    def _behind(self) -> LayerNorm | None:
        return None if self._norm is None or self._norm.before else self._norm

    @cached_property
    def _sum(self) -> Composition:
        """The sub-layer without a norm behind."""
        norm = self._norm if self._behind is None else None
        return sublayer(self._part, self._map, self.residual, norm)

    def _composed(self) -> Composition:
        return sublayer(self._part, self._map, self.residual, self._norm)

    def all(self, X: ArrayLike, causal: bool = False) -> Array:
        """Map sequences (B, N, d) to answers at all positions, (B, N, m).

        Parameters
        ----------
        X : array_like, shape (B, N, d)
            Sequences.
        causal : bool, optional
            Whether attention at a position sees the tokens up to it alone, or all.
        """
        X = arrays.sequences(X, self.dim, self._noun)
        return self._everywhere(self.maps.attending(causal), X)

    def _seen(self, X: Array) -> Array:
        """Return the tokens as the map sees them."""
        return X if self._norm is None or not self._norm.before else self._norm(X)

    def _around(self) -> tuple[str, ...]:
        """Return what `repr` shows of a residual and a norm."""
        residual = ("residual",) if self.residual else ()
        if self._norm is None:
            return residual
        kind, place = ("norm", "RMS norm"), ("behind", "before")
        return (*residual, f"{kind[not self._norm.centred]} {place[self._norm.before]}")
