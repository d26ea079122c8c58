"""What a certificate's bounds make of two models: the largest share that the differences take.

Heads are matched by the shares of the bounds that they differ by; a head without a partner may be
one whose values are within their bound, or one whose scores the bounds do not tell from another's:
then the sum of their values counts. Of neurons bounds are on the function, and so they are for
heads where there is none on W.
"""

from collections.abc import Mapping

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention import RotaryScores, token_scores
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.equality.form import Form, canonical_form
from unsoftmax.models.equality.neuron_form import Network, points
from unsoftmax.models.equality.score_form import FARTHEST, Scores, score_distances, whole_at
from unsoftmax.models.equality.verdicts import HeadMatching, beside, match, networks, paired, placed
from unsoftmax.models.equality.witnesses import aimed_sequences, differences, rounding_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.neurons import function_bound
from unsoftmax.models.products import Product, Tolerance, apart, norm_of
from unsoftmax.models.relu_network import typical_length
from unsoftmax.probes import Array

Errors = Mapping[str, float]

# A bound on the function holds for nearly all sequences of a kind, not for those that are chosen to
# differ most: at these, targets passed the bounds of their recoveries by up to 4.4 (12 runs with
# heads 1e-9 apart). Other models pass them by millions.
_AIMED = 64.0
# It says nothing of logits beyond those of hold-outs, where heads 1e-9 apart may open and close at
# different tokens.
_REACH = 30.0
# A bound that allows any difference, for the matching alone.
_AMPLE = 1e300


def share_of_bounds(
    models: tuple[FrozenModel, FrozenModel], forms: tuple[Form, Form], errors: Errors
) -> float:
    """Return the largest share of a certificate's bounds that the differences take.

    At most 1 if either can be what the other was recovered from. ``inf`` where a bound that is
    needed is not there.
    """
    a, b = forms
    if "constant" in errors and a.neurons is None and b.neurons is None:
        # an affine network is v·p + c: at p = 0, and far out
        errors = {"v": errors.get("slope", 0.0), "c": errors["constant"], **errors}
    if a.neurons is not None or b.neurons is not None:
        places, _ = placed(score_distances(a.scores, b.scores, Tolerance())[0])
        shares = [_share_of_networks(models, *networks(a, b, places), errors)]
        pairs = paired(places, len(a.scores))
        shares += [_score_share(a.scores[g], b.scores[h], errors) for g, h in pairs]
        return max(shares)
    a, b = canonical_form(a), canonical_form(b)
    turning = any(isinstance(A, RotaryScores) for A in (*a.scores, *b.scores))
    on_function = {"constant", "slope"} & errors.keys() and "W" not in errors
    if on_function and not (a.vector or b.vector) and not turning:
        return _share_of_function(models, a, b, errors)
    return _share_of_heads(a, b, errors)


def _share_of_heads(a: Form, b: Form, errors: Errors) -> float:
    """Compare canonical heads with the bounds on W, w and values, c and a norm with theirs."""
    if a.kind != b.kind:
        return float("inf")
    off = np.subtract(*beside(a, b))
    moved = {"c": off[:, 0], "v" if "v" in errors else "M": off[:, 1:]}
    moved |= {name: x - b.of_norm[name] for name, x in a.of_norm.items()}
    shares = [_share_of(norm_of(x), errors, name) for name, x in moved.items()]
    given = {**dict.fromkeys("WwM", _AMPLE), **errors}  # a bound that is not there matches all
    shape = len(a.scores), len(b.scores)
    scores = np.reshape([_score_share(A, B, given) for A in a.scores for B in b.scores], shape)
    values = np.reshape([_value_share(M, N, given) for M in a.values for N in b.values], shape)
    lone = [np.array([_value_share(M, M.nothing, given) for M in f.values]) for f in (a, b)]
    # one share above 1 weighs more than any number below; beyond, shares differ by many orders
    count, most = 1.0 + sum(shape), np.finfo(float).max
    shared = np.maximum(scores, values), *lone
    costs = (np.where(x <= 1, x / count, 1 + np.log(np.clip(x, 1, most))) for x in shared)
    partners: list[list[int]] = [[] for _ in a.scores]
    for _, g, h in match(*costs):
        if g < 0 and len(scores):
            nearest = int(np.argmin(scores[:, h]))
            alike = _score_share(a.scores[nearest], b.scores[h], errors) <= 1
            g = nearest if alike else g
        if g < 0:
            shares.append(_value_share(b.values[h], b.values[h].nothing, errors))
        elif h >= 0:
            partners[g].append(h)
    for A, M, several in zip(a.scores, a.values, partners, strict=True):
        total = sum((b.values[h] for h in several), M.nothing)
        shares.append(_value_share(M, total, errors))
        shares += [_score_share(A, b.scores[h], errors) for h in several]
    return max(shares)


def _value_share(M: Product, N: Product, errors: Errors) -> float:
    found = apart(M, N)
    return _share_of(found.difference * found.unit, errors, "v" if "v" in errors else "M")


def _score_share(A: Scores, B: Scores, errors: Errors) -> float:
    """Compare W and w with the bounds; of planes that turn at distances up to `FARTHEST`."""
    turning = isinstance(A, RotaryScores) or isinstance(B, RotaryScores)
    most = 0.0
    for distance in (1, 0, *range(2, FARTHEST + 1)) if turning else (1,):
        off = whole_at(A, distance) - whole_at(B, distance)
        W, w = norm_of(off[:-1, :-1]), norm_of(np.append(off[-1], off[:-1, -1]))
        biased = "w" in errors or w > UNIT * W or not turning
        most = max(most, _share_of(W, errors, "W"), _share_of(w, errors, "w") if biased else 0.0)
        if most > 1:  # other distances need not be looked at
            break
    return most


def _share_of_function(
    models: tuple[FrozenModel, FrozenModel], a: Form, b: Form, errors: Errors
) -> float:
    """Compare answers to sequences aimed at heads with constant + slope·max‖x_i‖."""
    constant, slope = (errors.get(name, 0.0) for name in ("constant", "slope"))
    places, worst = HeadMatching(a, b, Tolerance()).gap()[1], 0.0
    with np.errstate(all="ignore"):
        for X in aimed_sequences(a, b, places):
            off, lost = (x[:, 0] for x in differences(models, X, rounding_of))
            allowed = constant + slope * np.linalg.norm(X, axis=2).max(axis=1)
            told = (off > lost) & np.all([_logits(model, X) < _REACH for model in models], axis=0)
            share = np.where(told, (off - lost) / (_AIMED * allowed), 0.0)
            worst = max(worst, float(np.max(np.nan_to_num(share, nan=0.0), initial=0.0)))
    return worst


def _logits(model: FrozenModel, X: Array) -> Array:
    """Return the largest differences between scores of one sequence, (B,)."""
    heads = [leaf for leaf in model.maps.leaves.values() if isinstance(leaf, Attention)]
    each = [np.ptp(token_scores(X, leaf.scored(X[:, -1])), axis=2) for leaf in heads]
    return np.asarray(np.max(np.concatenate(each, axis=1), axis=1, initial=0.0))


def _share_of_networks(
    models: tuple[FrozenModel, FrozenModel], a: Network, b: Network, errors: Errors
) -> float:
    """Compare values in the cells at all hyperplanes with what errors do to answers at most."""
    vector, norm = a.form.vector or b.form.vector, a.form.behind
    needed = {"constant", "slope"} if vector else set()
    needed |= {"scale", "shift", "eps"} if norm is not None else set()
    if not needed <= errors.keys() or a.form.outputs != b.form.outputs:
        return float("inf")
    x = points(a, b, typical_length(a.hyperplanes, b.hyperplanes))
    off, lost = np.abs(a(x) - b(x)), a.rounding(x) + b.rounding(x)
    if vector:
        off, lost = differences(models, x[:, None], rounding_of)
    beyond = np.linalg.norm(off, axis=1) - np.linalg.norm(lost, axis=1)
    if not np.any(beyond > 0):
        return 0.0
    bounds = {"constant": 0.0, "slope": 0.0, **errors}
    if not np.isfinite(bounds["constant"] + bounds["slope"]):
        return float("inf")
    seen = x if a.form.before is None else a.form.before(x)
    allowed = function_bound(bounds, np.linalg.norm(seen, axis=1))
    if norm is not None:
        allowed = norm.moved_at_most(a(x), allowed, errors)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max((beyond / allowed)[beyond > 0]))


def _share_of(difference: float, errors: Mapping[str, float], name: str) -> float:
    """Return a difference over its bound; 0 where nothing differs.

    A bound that is not finite says nothing: no difference is within it.
    """
    if not difference:
        return 0.0
    bound = errors.get(name, 0.0)
    return difference / bound if 0 < bound < float("inf") else float("inf")
