"""Do two models compute the same function? Decided on canonical forms, shown by a witness.

A model is compared by its maps (`model.maps`): each sub-layer by its form where that is known
(`form`, `score_form`, `neuron_form`), with one matching of heads (`verdicts`) and one search for
witnesses (`witnesses`); other maps array by array. So a class, or a map, needs no rule of its own.

The one model that stands for all that compute the same function is built from the form. Attention
with answers of its own in factors is brought to `form`; heads with whole W, as several heads and
those before a network, are merged where W and w are equal to the last bit and ordered by them entry
by entry. Neurons are those of `neuron_form`, each with ‖(A_j, b_j)‖ = 1 and its first weight that
is not 0 positive, ordered by their weights; what is linear follows as pairs z and −z.

Of heads behind a vocabulary scores M = ρ xᵀ count up to a constant for every query token, and not
at all where all u are alike. The one M that stands for all has columns of mean 0; its factors are
those of its singular values.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.equality.certificates import share_of_bounds
from unsoftmax.models.equality.form import Form, canonical_form, compacted, read, visible
from unsoftmax.models.equality.neuron_form import Basis, Network, around, signed_size
from unsoftmax.models.equality.score_form import as_turning
from unsoftmax.models.equality.verdicts import NEARLY_ONE, compare
from unsoftmax.models.equality.witnesses import search
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.multi_head_transformer import MultiHeadTransformer
from unsoftmax.models.products import Product, Tolerance, apart, norm_of
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.models.single_head import SingleHead
from unsoftmax.models.stack import Stack
from unsoftmax.models.token_head import TokenHead
from unsoftmax.models.transformer import Transformer
from unsoftmax.probes import Array, Indices

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
    witness : ndarray, shape (N, d), of ids (N,), or None
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
        Or a feed-forward layer: as a network, the linear part last; with gates that is a gate of
        the same value for every token. Quick GELUs become SiLUs and sigmoids tanhs. Gates but
        those of tanh stay on their side. Or a head
        behind a vocabulary: scores whose columns have mean 0, in balanced factors.

    Raises
    ------
    ValueError
        No canonical form is known of one of its maps, such as heads before neurons that are no
        ReLUs, or of neurons whose gates are "identity".
    TypeError
        It is no model, or one of sub-layers in a row: take the canonical form of each.
    """
    if not isinstance(model, FrozenModel):
        raise TypeError(_refusal("canonical takes", model))
    one: Any = canonical_head if isinstance(model, TokenHead) else CANONICAL.get(type(model))
    if one is None:
        raise TypeError(
            f"No canonical form is known of a {type(model).__name__}: of sub-layers in a row take "
            "that of each."
        )
    found: M = one(model)
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
        from. Where both are recovered, the sum of their bounds. Of a `Stack` bounds are those of
        its parts: stacks whose answers differ by less than 1e-6 of their size are undecided.

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
    if isinstance(a, TokenHead) or isinstance(b, TokenHead):
        return _of_ids(a, b, tolerance, errors)
    kinds = [(model.dim, model.maps.attends, model.outputs or 1) for model in (a, b)]
    compared = compare((a.maps, b.maps), tolerance) if kinds[0] == kinds[1] else None
    if compared is None:
        return Equivalence("different", None, float("inf"), "shape")
    found, forms = compared
    if found.by is not None:
        return Equivalence("equal", None, found.gap, found.by)
    witness = None if found.undecided is NEARLY_ONE else search((a, b), forms, found.places)
    result = _told(witness, found.gap, found.undecided)
    if errors and forms is not None:
        return _within_certificate(result, share_of_bounds((a, b), forms, errors))
    if errors and witness is not None and isinstance(a, Stack) and isinstance(b, Stack):
        y, other = a(witness[None]), b(witness[None])
        if np.linalg.norm(y - other) <= _PREDICTED * np.linalg.norm(y):
            return Equivalence("undecided", witness, found.gap, "nothing", reason=_BY_PARTS)
    return result


# Stacks that are recovered predict fresh answers to this share of their size, or are refused.
_PREDICTED = 1e-6
_BY_PARTS = (
    "bounds of a stack's errors are those of its parts, and what they make of its answers is not "
    "computed: these differ by less than a recovered stack's may. verify compares it with a target"
)


def _of_ids(
    a: FrozenModel, b: FrozenModel, tolerance: Tolerance, errors: Mapping[str, float] | None
) -> Equivalence:
    """Compare heads behind a vocabulary; with another model they have no sequence in common."""
    if not (isinstance(a, TokenHead) and isinstance(b, TokenHead)) or len(a.u) != len(b.u):
        return Equivalence("different", None, float("inf"), "shape")
    gap, equal = gap_between(a, b, tolerance)
    if equal:
        return Equivalence("equal", None, gap)
    result = _told(
        witness_between(a, b), gap, "no sequence was found that float64 answers otherwise"
    )
    if errors and {"u", "G"} <= {*errors}:
        return _within_certificate(result, share_of_errors(a, b, dict(errors)))
    return result


def _told(witness: Array | None, gap: float, otherwise: str) -> Equivalence:
    """Say what a witness, or that none was found, makes of models whose forms differ."""
    if witness is None:
        return Equivalence("undecided", None, gap, "nothing", reason=otherwise)
    return Equivalence("different", witness, gap, "witness")


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


def _head(model: SingleHead) -> SingleHead:
    if np.any(model.v):
        return model
    return SingleHead(np.zeros((model.dim, model.dim)), np.zeros(model.dim), None, model.c)


def _heads(model: MultiHead) -> MultiHead:
    W, w, v = _merged(model, model.v)
    kept = np.any(v, axis=1)
    return MultiHead(W[kept], v[kept], w[kept], model.c)


def _before_network(model: MultiHeadTransformer) -> MultiHeadTransformer:
    W, w, B = _merged(model, model.B)
    H, (m, d) = len(B), model.B.shape[1:]
    if model.residual is not None or not H:
        last = np.zeros((m, d)) if model.residual is None else model.residual
        B = np.concatenate([B, last[None]])
    A = B.transpose(0, 2, 1).reshape(len(B) * d, m)
    network = _network(ReluNetwork(A, model.w_o, model.b, model.c))
    B = network.A.T.reshape(len(network.b), len(B), d).transpose(1, 0, 2)
    seen = [h for h in range(H) if np.any(B[h])]
    R = B[-1] if len(B) > H and np.any(B[-1]) else None
    return MultiHeadTransformer(W[seen], B[seen], network.w_o, network.b, w[seen], network.c, R)


def _network(model: ReluNetwork) -> ReluNetwork:
    parts, d = Network.of(_form_of(model), (), 0, True).sum(1.0).merged().turned_alike(), model.dim
    order, [linear] = np.lexsort(parts.rows.T[::-1]), parts.linear
    A, b, w_o = parts.rows[order, :d], parts.rows[order, d], parts.jumps[0, order]
    norm = float(np.linalg.norm(linear[:d]))
    if norm > parts.lost:
        direction = linear[:d] / norm
        A = np.vstack([A, direction, -direction])
        b, w_o = np.append(b, [0.0, 0.0]), np.append(w_o, [norm, -norm])
    return ReluNetwork(A.T, w_o, b, float(linear[d]))


def _transformer(model: Transformer) -> Transformer:
    network = _network(model.network)
    if network.A.shape[1]:
        return model.before(network)
    return Transformer(np.zeros((model.dim, model.dim)), network)


def _feed_forward(model: FeedForward) -> FeedForward:
    form = visible(_form_of(model))
    found, d = Network.of(form, (), 0, True).sum(1.0), form.dim
    n, gated, odd = d + 1, found.gated, found.phi.odd
    if found.squares and found.phi.homogeneous:  # of neurons that are on wherever tokens are
        found = found.bent_again()
    found = found.merged(opposite=odd or not gated)
    if odd or not gated:
        found = found.turned_alike()
    if found.squares:
        raise ValueError("No canonical form is known of a quadratic function.")
    linear = np.linalg.norm(found.linear[:, :d], axis=0) > found.lost
    # no pair of odd neurons is linear, and nothing of them but the token itself is
    kept = odd and not gated and len(found.rows) > 0 and bool(np.any(linear))
    size = 0.0 if kept else signed_size(form, found)
    beside, found = around(form, size), found.scaled(1 / (size or 1.0))
    order = np.lexsort(found.rows.T[::-1])
    activation, gates, E = found.family, None, np.eye(n)[:d][linear]
    L = found.linear[:, :d][:, linear]
    if gated:
        values = [found.values[k].compact() for k in order]
        rows = np.repeat(found.rows[order], [len(V.right) for V in values], axis=0)
        B = np.hstack([found.linear[:, :0], *(V.left for V in values)])
        U = np.vstack([np.zeros((0, n)), *(V.right for V in values)])
        length = np.linalg.norm(U, axis=1)
        U, B = U / length[:, None], B * length
        # what is linear has gates that are Φ(1) for every token
        always = np.repeat(np.eye(n)[-1:], len(E), axis=0)
        rows, U = np.vstack([rows, always]), np.vstack([U, E])
        B = np.hstack([B, L / found.phi.of(np.ones(1))])
        rows, gates = U, (rows[:, :d], rows[:, d])
    else:
        rows, B = found.rows[order], found.jumps[:, order]
        activation = activation if len(rows) else "relu"
        if kept:
            beside = replace(beside, residual=True)
        else:
            rows, B = np.vstack([rows, E, -E]), np.hstack([B, L, -L])
    c, around_it = found.linear[:, d], (beside.residual, beside.norm, activation, gates)
    return FeedForward(rows[:, :d], rows[:, d], B, c, *around_it)


def _attention_layer(model: AttentionLayer) -> AttentionLayer:
    form, heads = compacted(canonical_form(_form_of(model))), []
    for M, scores in zip(form.values, form.scores, strict=True):
        assert isinstance(scores, Product)
        A = scores.compact()  # of orthonormal columns of Kᵀ
        w = A.left @ A.right[:, -1]
        heads.append(LayerHead.from_factors(M.left, M.right, A.left.T, A.right[:, :-1], w))
    return AttentionLayer(heads, form.c, form.residual, form.norm, dim=form.dim)


def _rotary_layer(model: RotaryLayer) -> RotaryLayer:
    form, d = compacted(canonical_form(_form_of(model))), model.dim
    planes = [as_turning(A).canonical() for A in form.scores]
    H, s = len(planes), max((len(M.right) for M in form.values), default=0)
    O, V = np.zeros((H, model.outputs, s)), np.zeros((H, s, d))  # noqa: E741
    for h, M in enumerate(form.values):
        O[h, :, : len(M.right)], V[h, : len(M.right)] = M.left, M.right
    rotary = planes[0].rotary if planes else Rotary([])
    arrays: dict[str, Any] = {"residual": form.residual, "norm": form.norm}
    for name, last in {"K": (d,), "Q": (d,), "k_bias": (), "q_bias": ()}.items():
        each = [A.arrays[name] for A in planes]
        arrays[name] = np.reshape(each, (H, 2 * len(rotary), *last))
    return RotaryLayer(O, V, c=form.c, rotary=rotary, **arrays)


def _rotary_head(model: RotaryHead) -> RotaryHead:
    if np.any(model.v):
        arrays = model.scores.canonical().arrays
        return RotaryHead.from_arrays({**arrays, "v": model.v, "c": model.c})
    none = np.zeros((0, model.dim))
    return RotaryHead(none, none, model.v, Rotary([]), c=model.c)


def _rotary_heads(model: RotaryHeads) -> RotaryHeads:
    groups: dict[bytes, tuple[dict[str, Array], list[Array]]] = {}
    for head in model.heads:
        if np.any(head.v):
            scores = head.scores.canonical(empty=False)
            groups.setdefault(scores.numbers, (scores.arrays, []))[1].append(head.v)
    sums = [(arrays, _sum_of_rows(np.array(values))) for arrays, values in groups.values()]
    kept = [RotaryHead.from_arrays({**arrays, "v": v}) for arrays, v in sums if np.any(v)]
    return RotaryHeads.of(sorted(kept, key=_place), model.dim, model.c)


def _place(head: RotaryHead) -> tuple[float, list[float], bytes]:
    """Return what heads are ordered by; what follows the weight decides exact ties alone.

    The size of keys counts beside that of v, which heads may share.
    """
    keys = norm_of(np.column_stack([head.K, head.k_bias]))
    return -norm_of(head.v) * keys, head.v.tolist(), head.scores.numbers


def _form_of(model: FrozenModel) -> Form:
    form = read(model.maps)
    if form is None:
        raise ValueError(
            f"No canonical form is known of {model!r}: of its maps, their order, or an array."
        )
    return form


def _merged(model: MultiHead | MultiHeadTransformer, values: Array) -> tuple[Array, Array, Array]:
    """Return W, w and summed values of heads of distinct [W w], ordered by these entry by entry."""
    d, shape = model.dim, values.shape[1:]
    rows = np.column_stack([model.W.reshape(model.H, d * d), model.w]) + 0.0  # −0 becomes 0
    groups: dict[bytes, list[int]] = {}
    for head in sorted(range(model.H), key=lambda h: rows[h].tolist()):
        groups.setdefault(rows[head].tobytes(), []).append(head)
    flat = values.reshape(model.H, math.prod(shape))
    totals = [_sum_of_rows(flat[group]) + 0.0 for group in groups.values()]
    kept = rows[[group[0] for group in groups.values()]]
    whole = np.reshape(totals, (len(groups), *shape))
    return kept[:, : d * d].reshape(-1, d, d), kept[:, d * d :], whole


def _sum_of_rows(v: Array) -> Array:
    """Add up rows, exactly but for one rounding: in any order the same."""
    if len(v) == 1:
        return np.asarray(v[0])
    return np.array([math.fsum(column) for column in v.T.tolist()])


CANONICAL: dict[type[FrozenModel], Callable[[Any], Any]] = {
    SingleHead: _head,
    RotaryHead: _rotary_head,
    MultiHead: _heads,
    RotaryHeads: _rotary_heads,
    ReluNetwork: _network,
    Transformer: _transformer,
    MultiHeadTransformer: _before_network,
    AttentionLayer: _attention_layer,
    RotaryLayer: _rotary_layer,
    FeedForward: _feed_forward,
}
"""What builds the canonical model of each class from its parts."""


# Numbers of logits that are looked at together: 32 MiB.
AT_ONCE = 2**22
# Query tokens whose logits are compared in search of a witness.
LOOKED_AT = 256
# Answers that differ by more roundoffs of the values differ.
ROUNDOFFS = 2.0**8


def canonical_head(model: TokenHead) -> TokenHead:
    """Return the head of the same function with centred scores and balanced factors."""
    M = _centred(model).compact()
    root = np.sqrt(np.linalg.norm(M.right, axis=1))
    return TokenHead(model.u, root * M.left, M.right.T / root)


def gap_between(a: TokenHead, b: TokenHead, tolerance: Tolerance) -> tuple[float, bool]:
    """Return the largest difference of values and centred scores, relative; whether it is none."""
    alike, gap = tolerance.compare(a.u, b.u)
    M = apart(_centred(a), _centred(b))
    return max(gap, M.relative), alike and tolerance.allows(M.difference, M.size, M.unit)


def witness_between(a: TokenHead, b: TokenHead) -> Array | None:
    """Return ids (N,) that two heads answer otherwise, beyond rounding; None if none are found."""
    j = np.linspace(0, a.vocabulary - 1, min(a.vocabulary, LOOKED_AT)).astype(np.intp)
    at = [np.argmax(np.abs(part), axis=0) for part in _differences(a, b, j)]
    pairs = np.column_stack([np.concatenate(at), j])
    far = np.argmax(np.abs(a.u - a.u[pairs[:, 0]][:, None]), axis=1)
    tried: list[Indices] = [np.arange(a.vocabulary)[:, None], pairs]
    tried.append(np.column_stack([far, pairs]))
    for ids in tried:
        off = np.abs(a(ids) - b(ids))
        n = int(np.argmax(off))
        if off[n] > ROUNDOFFS * UNIT * max(np.abs(a.u).max(), np.abs(b.u).max()):
            return np.asarray(ids[n])
    return None


def share_of_errors(a: TokenHead, b: TokenHead, errors: dict[str, float]) -> float:
    """Return the largest share of the bounds on u and on all G that the differences take."""
    every = np.arange(a.vocabulary)
    G = max(float(np.max(np.abs(part))) for part in _differences(a, b, every))
    off = {"u": float(np.max(np.abs(a.u - b.u))), "G": G}
    return max((off[n] / errors[n] if errors[n] else np.inf) if off[n] else 0.0 for n in off)


def _differences(a: TokenHead, b: TokenHead, j: Indices) -> Iterator[Array]:
    """Yield how far all logits G_ij = M_ij − M_jj of some query tokens are from each other."""
    step = max(1, AT_ONCE // a.vocabulary)
    for start in range(0, len(j), step):
        own = j[start : start + step]
        M = a.rho @ a.x[own].T - b.rho @ b.x[own].T
        yield M - M[own, np.arange(len(own))]


def _centred(model: TokenHead) -> Product:
    """Return the part of M that counts."""
    if np.ptp(model.u) == 0:
        return Product.zeros(model.vocabulary, model.vocabulary)
    return Product(model.rho - model.rho.mean(axis=0), model.x.T)
