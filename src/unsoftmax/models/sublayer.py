"""Sub-layers: a map o with a residual connection around it, and a norm before or behind.

y = o(X) + x_N, with a norm behind y = norm(o(X) + x_N), and with one before y = o(norm(X)) + x_N.
At all positions each token x_p takes the place of x_N.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

from numpy.typing import ArrayLike

from unsoftmax.models.arrays import frozen, sequences, split
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.layer_norm import LayerNorm, sublayer
from unsoftmax.models.model import FrozenModel, Parameter
from unsoftmax.probes import Array

NORM_TENSORS = {f"{name} of the norm": f"norm.{name}" for name in ("scale", "shift", "eps")}
"""What a sub-layer's answers depend on of its norm."""


class SubLayer(FrozenModel):
    """A map with what stands around it."""

    _part: ClassVar[str]
    """What the map is called among the sub-layer's."""
    _norm: LayerNorm | None

    def _surround(self, residual: bool, norm: LayerNorm | None) -> None:
        """Keep what stands around the map, if it fits."""
        d, m = self.dim, self.outputs
        if norm is not None and not isinstance(norm, LayerNorm):
            raise TypeError(f"norm must be a LayerNorm; it is a {type(norm).__name__}.")
        if residual and m != d:
            raise ValueError(
                f"With a residual m = d; here m = {m} and d = {d}: they must be the same."
            )
        if norm is not None and norm.width != (d if norm.before else m):
            where, width = ("before", d) if norm.before else ("behind", m)
            raise ValueError(f"A norm {where} this layer has {width} numbers; it has {norm.width}.")
        self._norm = norm
        self._arrays["residual"] = frozen("residual", bool(residual))
        if norm is not None:
            self._arrays |= {f"norm.{name}": array for name, array in norm.arrays().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build the layer from what `arrays` returned; those of its norm begin with ``norm.``."""
        norm, own = split(arrays, "norm.")
        given = cls._arguments(own)
        return cls(**given, **({"norm": LayerNorm.from_arrays(norm)} if norm else {}))

    @classmethod
    @abstractmethod
    def _arguments(cls, arrays: dict[str, Any]) -> dict[str, Any]:
        """Turn arrays, without those of a norm, into arguments."""

    @classmethod
    def has_parameters(cls, names: Iterable[str]) -> bool:
        """Tell whether `from_arrays` takes arrays of these names."""
        return super().has_parameters(name for name in names if not name.startswith("norm."))

    residual = Parameter(bool, "Whether the last token is added.")

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

    @abstractmethod
    def _map(self) -> Map:
        """Return the map itself."""

    @property
    def _behind(self) -> LayerNorm | None:
        return None if self._norm is None or self._norm.before else self._norm

    @cached_property
    def _sum(self) -> Composition:
        """The sub-layer without a norm behind."""
        norm = self._norm if self._behind is None else None
        return sublayer(self._part, self._map(), self.residual, norm)

    def _composed(self) -> Composition:
        return sublayer(self._part, self._map(), self.residual, self._norm)

    def all(self, X: ArrayLike, causal: bool = False) -> Array:
        """Map sequences (B, N, d) to answers at all positions, (B, N, m).

        Parameters
        ----------
        X : array_like, shape (B, N, d)
            Sequences.
        causal : bool, optional
            Whether attention at a position sees the tokens up to it alone, or all.
        """
        X = sequences(X, self.dim, self._noun)
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
