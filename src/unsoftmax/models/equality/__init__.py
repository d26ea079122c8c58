"""Do two models compute the same function? Decided on canonical forms, shown by a witness.

A model is compared by its maps (`model.maps`): each sub-layer by its form where that is known
(`form`, `score_form`, `neuron_form`), with one matching of heads (`verdicts`) and one search for
witnesses (`witnesses`); other maps array by array. So a class, or a map, needs no rule of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from unsoftmax.models.equality.canonical_form import CANONICAL
from unsoftmax.models.equality.certificates import share_of_bounds
from unsoftmax.models.equality.neuron_form import Basis
from unsoftmax.models.equality.verdicts import NEARLY_ONE, compare
from unsoftmax.models.equality.witnesses import search
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.products import Tolerance
from unsoftmax.probes import Array

__all__ = ["Equivalence", "canonical", "equivalent"]

M = TypeVar("M", bound=FrozenModel)


# Models that differ by more than this share of their parameters are not equal by a certificate,
# however wide: it tells too little.
_VAGUE = 0.1


@dataclass(frozen=True, slots=True)
class Equivalence:
    """The answer to `equivalent`; true exactly when the verdict is "equal".

    Attributes
    ----------
    verdict : {"equal", "different", "undecided"}
        "undecided": the parameters differ by more than the tolerance, yet no sequence was
        found on which float64 tells the functions apart; or heads of one model are within
        the tolerance of each other, and only if they count as one are the models equal; or
        several heads are compared with a Transformer whose network is affine within the
        tolerance; or a certificate is so wide that it allows differences of a tenth.
    witness : ndarray, shape (N, d), or None
        A sequence on which the two functions differ; only with "different", and None even
        then when the two do not take the same sequences.
    gap : float
        The largest difference between canonical parameters, [W w] and [v c] each relative
        to the larger of the two norms, of several heads [W w] head by head and all v with c;
        of ReLU networks, between all jumps of the gradient and the affine parts, relative to
        theirs; a neuron whose hyperplane is far from 0 counts by its slope. Products W = KᵀQ
        are rounded for it: it may be 0 where they differ.
    by : {"canonical form", "cells", "certificate", "witness", "shape", "nothing"}
        What decided: equal canonical forms; a network's values in the cells at all
        hyperplanes; the bounds on one model's errors that were given; the witness; that the two
        take other sequences; or nothing.
    share : float or None
        By a certificate: the largest share of its bounds that the differences take. Above 1 the
        verdict is "different", whatever answers differ by: the witness then shows two functions,
        as it would for a recovery and its own target, and is no proof.
    reason : str
        Why the verdict is "undecided".
    """

    verdict: Literal["equal", "different", "undecided"]
    witness: Array | None
    gap: float
    by: Basis | Literal["certificate", "witness", "shape", "nothing"] = "canonical form"
    share: float | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.verdict == "equal"


def canonical(model: M) -> M:
    """Return the one model that stands for all that compute the same function.

    Parameters
    ----------
    model : SingleHead, MultiHead, ReluNetwork, Transformer, MultiHeadTransformer, …
        A head; when v = 0 its W and w have no effect and become 0; one with rotary positions has
        planes ordered and balanced, key biases without effect 0. Or several: those with equal
        W and w are merged, those with v = 0 left out, the rest is ordered; with rotary positions
        those of equal scores at all distances. Or a network:
        parallel neurons are merged, all are turned one way and ordered. Or a Transformer: its
        network's canonical form; where that is constant W and w become 0. Several heads before
        a network: both, heads that the network does not see left out. Or a layer: heads in
        factors, merged and ordered by the norm of their M; what a norm hides is put to one value;
        with rotary positions every head has keys and values of its own.
        Or a feed-forward layer: as a network, the linear part last.

    Raises
    ------
    ValueError
        No canonical form is known of one of its maps, such as neurons that are no ReLUs.
    TypeError
        It is no model, or one of sub-layers in a row: take the canonical form of each.
    """
    if not isinstance(model, FrozenModel):
        raise TypeError(_refusal("canonical takes", model))
    if type(model) not in CANONICAL:
        raise TypeError(
            f"No canonical form is known of a {type(model).__name__}: of sub-layers in a row take "
            "that of each."
        )
    found: M = CANONICAL[type(model)](model)
    return found


def equivalent(
    a: FrozenModel,
    b: FrozenModel,
    rtol: float = 1e-9,
    atol: float = 0.0,
    *,
    errors: Mapping[str, float] | None = None,
) -> Equivalence:
    """Decide whether two models compute the same function.

    Parameters
    ----------
    a, b : SingleHead, MultiHead, ReluNetwork, Transformer, MultiHeadTransformer, …
        The models; a head is compared with several as one of them, and a Transformer whose
        network is affine is a head, or several, and a plain layer of one output is several heads.
        A network takes other sequences than the others and is different from them.
    rtol, atol : float
        [W w] (Frobenius norm) and [v c] (2-norm) count as equal when they differ by at most
        ``rtol`` times the larger norm plus ``atol``. Both 0 decides exact equality of heads and
        of a Transformer's W and w, of products W = KᵀQ as real numbers, which no float64 rounds;
        of networks it decides up to the rounding of parallel neurons' sums. Several
        heads are matched by their [W w]; all v, of a layer all M, and c are then one block; a
        layer's norm counts by its scale, shift and eps, each relative to its own size. For
        networks the norm is that of all jumps of the gradient and the affine part.
    errors : dict of str to float, optional
        Bounds on the errors of one of the models, as ``recovery.certificate.errors`` has them:
        models that differ by no more count as equal, "by" the certificate; as undecided if they
        differ by a tenth, which only a certificate that tells little allows; as different, by the
        certificate too, if they differ by more, for then neither is what the other was recovered
        from. Where both are recovered, the sum of their bounds.

    Returns
    -------
    Equivalence
        With a witness when they differ: ``a(witness[None])`` is not ``b(witness[None])``.

    Examples
    --------
    >>> import numpy as np
    >>> from unsoftmax.models import SingleHead
    >>> a = SingleHead(np.eye(2), [1.0, 2.0])
    >>> b = SingleHead(2 * np.eye(2), [1.0, 2.0])
    >>> bool(equivalent(a, a)), equivalent(a, b).verdict
    (True, 'different')
    """
    for model in (a, b):
        if not isinstance(model, FrozenModel):
            raise TypeError(_refusal("equivalent compares", model))
    tolerance = Tolerance(rtol, atol)
    kinds = [(model.dim, model.maps.attends, model.outputs or 1) for model in (a, b)]
    compared = compare((a.maps, b.maps), tolerance) if kinds[0] == kinds[1] else None
    if compared is None:
        return Equivalence("different", None, float("inf"), "shape")
    found, forms = compared
    if found.by is not None:
        return Equivalence("equal", None, found.gap, found.by)
    witness = None if found.undecided is NEARLY_ONE else search((a, b), forms, found.places)
    result = Equivalence("different", witness, found.gap, "witness")
    if witness is None:
        result = Equivalence("undecided", None, found.gap, "nothing", reason=found.undecided)
    if errors and forms is not None:
        return _within_certificate(result, share_of_bounds((a, b), forms, errors))
    return result


def _within_certificate(result: Equivalence, share: float) -> Equivalence:
    """Say what the bounds of a certificate make of models that are not equal without it.

    ``share`` is the part of the bounds that the differences take; infinite where a bound is not
    there, which decides nothing.
    """
    if share <= 1:
        if result.gap <= _VAGUE:
            return Equivalence("equal", None, result.gap, "certificate", share)
        reason = "the bounds allow differences of a tenth"
        return Equivalence("undecided", None, result.gap, "certificate", share, reason)
    if result.verdict == "different" and share < float("inf"):
        return replace(result, by="certificate", share=share)
    return result


def _refusal(what: str, model: object) -> str:
    return f"{what} models; this is a {type(model).__name__}. A recovery's model is recovery.model."
