"""Do two models compute the same function? Decided on canonical forms, shown by a witness.

Every model class has one rule, a `ModelEquality` in a module of its own, which `RULES` lists. To
add a class, write its rule and list it here: `canonical`, `equivalent`, across classes too, and
`unsoftmax.load` then know it. Two models of different classes are compared by the first rule
that can read both; where there is none they are different functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from unsoftmax.models.equality.attention_layer_equality import AttentionLayerEquality
from unsoftmax.models.equality.equivalence import (
    Equivalence,
    ModelEquality,
    Tolerance,
    within_certificate,
)
from unsoftmax.models.equality.feed_forward_equality import FeedForwardEquality
from unsoftmax.models.equality.multi_head_equality import MultiHeadEquality
from unsoftmax.models.equality.multi_head_transformer_equality import MultiHeadTransformerEquality
from unsoftmax.models.equality.relu_network_equality import ReluNetworkEquality
from unsoftmax.models.equality.rotary_head_equality import RotaryHeadEquality
from unsoftmax.models.equality.rotary_heads_equality import RotaryHeadsEquality
from unsoftmax.models.equality.rotary_layer_equality import RotaryLayerEquality
from unsoftmax.models.equality.single_head_equality import SingleHeadEquality
from unsoftmax.models.equality.transformer_equality import TransformerEquality
from unsoftmax.models.model import FrozenModel

__all__ = ["RULES", "Equivalence", "canonical", "equivalent"]

M = TypeVar("M", bound=FrozenModel)
Rules = Sequence[ModelEquality[Any]]

RULES: Rules = (
    SingleHeadEquality(),
    RotaryHeadEquality(),
    MultiHeadEquality(),
    RotaryHeadsEquality(),
    ReluNetworkEquality(),
    TransformerEquality(),
    MultiHeadTransformerEquality(),
    AttentionLayerEquality(),
    RotaryLayerEquality(),
    FeedForwardEquality(),
)
"""The rule of every model class; a class comes before those that its models can be read as."""


def canonical(model: M, *, rules: Rules = RULES) -> M:
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
    rules : sequence of ModelEquality, optional
        One for each class; another one may have other tolerances for rounding.
    """
    found: M = _rule_of("canonical takes", model, rules).canonical(model)
    return found


def equivalent(
    a: FrozenModel,
    b: FrozenModel,
    rtol: float = 1e-9,
    atol: float = 0.0,
    *,
    errors: Mapping[str, float] | None = None,
    rules: Rules = RULES,
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
    rules : sequence of ModelEquality, optional
        One for each class; another one may search longer for a witness.

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
    a, b = (_rule_of("equivalent compares", model, rules).simplest(model) for model in (a, b))
    tolerance = Tolerance(rtol, atol)
    errors = _with_affine_parts(errors or {})
    if a.dim == b.dim:
        for rule in rules:
            mine, other = rule.read(a), rule.read(b)
            if mine is not None and other is not None:
                result = rule.compare(mine, other, tolerance)
                if errors and not result:
                    share = rule.share(mine, other, errors)
                    return within_certificate(result, share, tolerance)
                return result
    return Equivalence("different", None, float("inf"), "shape")


def _with_affine_parts(errors: Mapping[str, float]) -> Mapping[str, float]:
    """Add what bounds on a layer or a network say of heads alone."""
    if "M" in errors:  # a layer of one output is a sum of heads, whose v are its M
        return {"v": errors["M"], **errors}
    if "constant" in errors:  # an affine network is v·p + c: at p = 0, and far out
        return {"v": errors.get("slope", 0.0), "c": errors["constant"], **errors}
    return errors


def _rule_of(what: str, model: FrozenModel, rules: Rules) -> ModelEquality[Any]:
    for rule in rules:
        if isinstance(model, rule.model):
            return rule
    raise TypeError(
        f"{what} models; this is a {type(model).__name__}. A recovery's model is recovery.model."
    )
