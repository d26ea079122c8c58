"""What a certificate bounds, beside the size of it, and in words."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from unsoftmax.models import MultiHeadTransformer, RotaryHead, RotaryHeads, RotaryLayer
from unsoftmax.protocol import Model

FUNCTION = {
    "constant": "the function at x = 0",
    "slope": "the function, more per ‖x‖",
    "square": "the function far out, more per ‖x‖²",
}
NETWORK = {"constant": "the network at p = 0", "slope": "the network, more per ‖p‖"}
"""What certificates bound that is no parameter; of several heads p is what all of them pool."""

TURNED = {"W": "W(Δ)"}
"""Names of parameters of which there are many, one for each distance."""

AT_HAND = {"W": "the norm of W(0)"}
"""What their bounds stand beside, instead of their own norms."""

BESIDE = {"w": ("W",), "b": ("A",), "c": ("v", "M", "B"), "shift": ("scale",)}
"""What a bias is added to: beside this a bound on it is large or small."""

WITHIN = "0 within the bound"


@dataclass(frozen=True, slots=True)
class CertifiedBound:
    """A bound of a certificate."""

    label: str
    bound: float
    norm: float | None
    """Of the parameter; None of a function."""
    words: str
    beside: str = "its norm"
    """Which norm that is."""


def certified_bounds(model: Model, errors: Mapping[str, float]) -> tuple[CertifiedBound, ...]:
    """Return what a certificate says of a model, in its order."""
    functions = NETWORK if isinstance(model, MultiHeadTransformer) else FUNCTION
    found = []
    for name, bound in errors.items():
        if name in functions:
            words = "" if math.isfinite(bound) else certainty(bound, 0.0)
            found.append(CertifiedBound(functions[name], bound, None, words))
            continue
        norm = model.parameter_norm(name)
        beside = [model.parameter_norm(one) for one in BESIDE.get(name, ()) if one in errors]
        words = certainty(bound, norm, max(beside, default=0.0))
        if isinstance(model, (RotaryHead, RotaryHeads, RotaryLayer)) and name in TURNED:
            words = words.replace("its norm", AT_HAND[name]).replace("its size", AT_HAND[name])
            found.append(CertifiedBound(TURNED[name], bound, norm, words, AT_HAND[name]))
        else:
            found.append(CertifiedBound(name, bound, norm, words))
    return tuple(found)


def certainty(bound: float, norm: float, beside: float = 0.0) -> str:
    """Say what a bound on an error means beside the size of what it bounds.

    Where ``beside`` is larger, the norm of what it is added to, a bound above its own size
    leaves it known: as 0.

    Examples
    --------
    >>> certainty(2e-13, 4.0)
    'known to 13 digits of its norm'
    >>> certainty(5.0, 4.0), certainty(float("inf"), 4.0), certainty(0.0, 4.0)
    ('not known: it may be off by all of its size', 'not bounded', 'exact')
    >>> certainty(2e-13, 1e-13, beside=4.0)
    '0 within the bound'
    """
    if not math.isfinite(bound):
        return "not bounded"
    if not bound:
        return "exact" if norm else "0, as assumed or found"
    if not norm > 0:
        return "0 as recovered, and no larger than the bound"
    size = min(norm, sys.float_info.max)  # squares of entries may leave float64
    digits = int(math.log10(size) - math.log10(bound)) if bound < size else -1
    if digits < 0:
        return WITHIN if bound < beside else "not known: it may be off by all of its size"
    if not digits:
        return "known to its size, and no digit more"
    return f"known to {digits} digit{'s' if digits > 1 else ''} of its norm"
