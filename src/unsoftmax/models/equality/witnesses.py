"""Sequences on which two models differ by more than float64's rounding: the one search."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TypeVar

import numpy as np

from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.models.equality.form import Form
from unsoftmax.models.equality.neuron_form import bent_by, points_in_cells
from unsoftmax.models.equality.score_form import Scores, scores_apart, whole_at
from unsoftmax.models.equality.verdicts import Places
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.products import Product, norm_of
from unsoftmax.models.relu_network import ReluNetwork, typical_length
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array

M = TypeVar("M", bound=Callable[[Array], Array])

# Roundoffs that an answer may be off by, per root of a sum's terms; measured up to 1.4. Too small:
# rounding passes for a difference; too large: small differences stay undecided.
_LOST = 16.0
# Pairs of heads, those that differ most, that sequences are made for. Fewer: a difference in
# another pair may stay undecided; each costs 3 seconds at d = 384 and 12 heads.
PAIRS = 4
# Random sequences of each length and size; behind heads more, for networks that differ where
# single tokens show nothing.
_DRAWS, _DRAWS_OF_NETWORKS = 16, 128
# Powers of 4 that sizes go up and down from 1, from where neurons and norms bend, and from where
# logits are about 1. A parameter that is 4¹² times smaller than others of its block still shows;
# one that is smaller may not.
_POWERS = 4.0 ** np.arange(-12, 13)
# Tokens longer than a norm lets through are put this far below the largest length.
_NEARLY_WHOLE = 1e-6
# How many sequences are asked at once: what heads compute of them is kept.
_AT_ONCE = 1024


# Steps of the power iteration that finds the direction in which scores differ most. It gains the
# ratio of the two largest singular values each; fewer leave other directions in.
_ITERATIONS = 30
# Random offsets beside the nine that are aimed, for heads that differ in no single one, and random
# query tokens beside the aimed one and 0.
_OFFSETS, _QUERIES = 4, 2


def rounding_of(model: FrozenModel, X: Array) -> Array:
    """Bound the rounding of answers, as the model's maps know it: sums of n terms err as √n."""
    terms = model.dim + X.shape[1]
    return np.asarray(_LOST * np.sqrt(terms) * UNIT * model.linearise(X).rounding)


def differences(
    models: tuple[M, M], X: Array, rounding: Callable[[M, Array], Array]
) -> tuple[Array, Array]:
    """Return how far two models' answers are apart, and how far rounding may take them, (B, m)."""
    mine, its = (np.reshape(model(X), (len(X), -1)) for model in models)
    lost = [np.reshape(rounding(model, X), (len(X), -1)) for model in models]
    return np.abs(mine - its), lost[0] + lost[1]


def search(
    models: tuple[FrozenModel, FrozenModel], forms: tuple[Form, Form] | None, places: Places
) -> Array | None:
    """Look for a witness among sequences of all sizes, and such as are aimed at heads that differ.

    ``forms`` are the two models' where they are known, ``places`` the heads that differ.
    """
    aimed = aimed_sequences(*forms, places) if forms is not None and forms[0].attends else ()
    # long sequences cost most: they come last
    short, long = (_of_all_sizes(models, forms, long) for long in (False, True))
    families = chain([np.zeros((1, 1, models[0].dim))], short, aimed, long)
    return witness_of(*models, families, rounding_of)


def aimed_sequences(a: Form, b: Form, places: Places) -> Iterator[Array]:
    """Make sequences at which the sums of values and the heads at these places differ most."""
    for one, other, distance in _aimed_at(a, b, places):
        for tokens in (x for X in candidates(one, other) for x in _placed(X, distance)):
            yield tokens if a.before is None else _let_in(tokens, a.before.eps)


def _of_all_sizes(
    models: tuple[FrozenModel, FrozenModel], forms: tuple[Form, Form] | None, long: bool
) -> Iterator[Array]:
    """Make random sequences, beside where norms and neurons bend and at all hyperplanes."""
    rng, d = np.random.default_rng(0), models[0].dim
    leaves = [leaf for model in models for leaf in model.maps.leaves.values()]
    units = {leaf.eps**0.5 or 1.0 for leaf in leaves if isinstance(leaf, LayerNorm)}
    draws, beside = _DRAWS, [np.asarray(np.zeros(d))]
    known = [_on_single_tokens(form) for form in forms or ()]
    if any(form.neurons for form in forms or ()):
        units |= {typical_length(*(ReluNetwork(A.T, np.ones(len(a)), a) for A, a in known))}
        draws = _DRAWS_OF_NETWORKS
        smooth = not all(form.neurons is None or form.neurons.relu for form in forms or ())
        if not long:
            # what is smooth differs nearly everywhere: few points show it
            for unit in sorted(units) if smooth else ():
                sizes = unit * np.repeat(_POWERS, _DRAWS)[:, None, None]
                yield sizes * np.random.default_rng(1).standard_normal((len(sizes), 1, d))
            yield points_in_cells(known, max(units), 4 * draws)[:, None]
    elif any(form.behind for form in forms or ()):  # nothing of these tokens is normalised
        beside += [np.asarray(np.linalg.lstsq(A, -a, rcond=None)[0]) for A, a in known]
    for unit in sorted({1.0, *units}):
        sizes = unit * np.repeat(_POWERS, draws)[:, None, None]
        for length in (1, 2, 3, 6, 24) if models[0].maps.attends else (1,):
            X = rng.standard_normal((len(sizes), length, d))
            # few large tokens: gates are neither all open nor all closed
            spread = 10.0 ** rng.uniform(-3, 3, (len(X), length, 1)) if length > 2 else None
            if long == (length > 2):
                yield from (token + sizes * X for token in beside[: None if length == 1 else 1])
                yield from () if spread is None else (sizes * X * spread,)


def _on_single_tokens(form: Form) -> tuple[Array, Array]:
    """Return what single tokens are mapped by, before neurons bend it and norms behind."""
    A = np.zeros((len(form.c), form.dim)) if form.last is None else form.last
    A = A + (form.residual and form.neurons is None) * np.eye(*A.shape)
    return bent_by(form, sum((M.whole for M in form.values), A), form.c)


def _aimed_at(a: Form, b: Form, places: Places) -> Iterator[tuple[SingleHead, SingleHead, int]]:
    """Return heads that differ, then what single tokens show, seen through what shows it most.

    Heads answer with numbers; with them the distance of tokens at which they differ most.
    """
    found = [(_head(a, g), _head(b, h)) for g, h in places[:PAIRS]]
    weights = [np.ones(1) if f.neurons is None else f.neurons.B[0] for f in (a, b)]
    bent = a.neurons is not None or b.neurons is not None
    if not bent:
        (flat, M), (_, N) = _head(a, -1), _head(b, -1)
        found.append(((flat, sum(a.values, M)), (flat, sum(b.values, N))))
    for (A, M), (B, N) in found:
        distance = max(1, scores_apart(A, B).distance)
        seen = [weights, [np.abs(w) for w in weights]] if bent else [[_along(M, N)] * 2]
        W, U = (whole_at(scores, distance) for scores in (A, B))
        for y, z in seen:
            one = SingleHead(W[:-1, :-1], (y @ M.left) @ M.right, W[:-1, -1], float(y @ a.c))
            other = SingleHead(U[:-1, :-1], (z @ N.left) @ N.right, U[:-1, -1], float(z @ b.c))
            yield one, other, distance


def _head(form: Form, h: int) -> tuple[Scores, Product]:
    """Return a head's scores and values, nothing where there is none."""
    if h >= 0:
        return form.scores[h], form.values[h]
    return Product.zeros(form.dim, form.dim + 1), Product.zeros(len(form.c), form.dim)


def _along(M: Product, other: Product) -> Array:
    """Return the direction of outputs in which two maps differ most, of equal ones the largest."""
    if len(M.left) == 1:
        return np.ones(1)
    difference, rounding = M - other, 8 * sum(M.left.shape) * UNIT * M.norm
    left = (difference if difference.norm > rounding else M).compact().left
    return np.asarray(left[:, 0] if left.size else np.ones(len(M.left)))


def _placed(X: Array, distance: int) -> Iterator[Array]:
    """Yield sequences; pairs at their distance, with copies and other tokens beside.

    Two tokens, each once, do not suffice: σ(t) = 1 − σ(−t), so there the head (W, w, v) is what
    (−W, −w, −v) and (0, 0, 2v) are together.
    """
    if X.shape[1] == 1:
        yield X
        return
    first, last = X[:, :1], X[:, 1:]
    between = np.zeros((len(X), distance - 1, X.shape[2]))
    # another pair's offset beside the first
    other = np.roll(first - last, _QUERIES + 2, axis=0) + last
    for ahead in (first[:, :0], first, other, *([0 * first] if distance > 1 else [])):
        yield np.concatenate([ahead, first, between, last], axis=1)


def _let_in(X: Array, eps: float) -> Array:
    """Return tokens that a norm maps to these, or to the longest that there are beside them."""
    most = X.shape[2] * (1 - _NEARLY_WHOLE)
    share = np.minimum(np.sum(X * X, axis=2, keepdims=True), most) / X.shape[2]
    return np.asarray(X * np.sqrt((eps or 1.0) / (1 - share)))


def witness_of(
    a: M, b: M, families: Iterable[Array], rounding: Callable[[M, Array], Array]
) -> Array | None:
    """Return a sequence whose answers differ by more than their rounding, None where none does.

    It is the one that differs most beside its rounding in the first family that has any: all
    families at d = 384 take half a minute.

    Parameters
    ----------
    a, b : callable
        The models.
    families : iterable of ndarray (B, N, d)
        Sequences to try.
    rounding : callable
        Maps a model and sequences to bounds on the rounding of its answers, (B,) or (B, m).
    """
    best, witness = 1.0, None
    # answers out of float64's range are no evidence
    with np.errstate(all="ignore"):
        for family in families:
            for start in range(0, len(family), _AT_ONCE):
                X = family[start : start + _AT_ONCE]
                off, lost = differences((a, b), X, rounding)
                ratio = np.nan_to_num(off / np.maximum(lost, TINY), nan=0.0, posinf=0.0)
                k = int(np.argmax(ratio.max(axis=1)))
                if ratio[k].max() > best:
                    best, witness = float(ratio[k].max()), X[k]
            if witness is not None:
                break
    return witness


def candidates(a: SingleHead, b: SingleHead) -> Iterator[Array]:
    """Make sequences that tell v and c apart, then pairs [u+q; q] that tell W and w apart.

    Sizes are chosen for logits near 1, which W or w alone may set, and up to 4¹² away from it.
    """
    v, c = max(norm_of(a.v), norm_of(b.v)), max(abs(a.c), abs(b.c))
    yield np.zeros((1, 1, a.dim))
    if not v:
        return  # two constants
    for size in {1.0, c / v or 1.0}:
        yield _sizes(size)[:, None, None] * _unit(a.v - b.v)
    W, w = max(norm_of(a.W), norm_of(b.W)), max(norm_of(a.w), norm_of(b.w))
    offsets, queries = _aimed(a, b)
    pairs = np.array([[u + q, q] for u in offsets for q in queries])
    for size in {W**-0.5 if W else 1.0, 1 / w if w else 1.0}:
        yield (_sizes(size)[:, None, None, None] * pairs).reshape(-1, 2, a.dim)
    for size in {1 / W if W else 1.0, 1 / w if w else 1.0}:
        sizes = _sizes(size)
        yield np.array([[s * u + q, q] for u in offsets for q in queries for s in sizes])


def _aimed(a: SingleHead, b: SingleHead) -> tuple[list[Array], list[Array]]:
    """Return offsets and query tokens in the directions in which W, w and v differ most."""
    rng = np.random.default_rng(0)
    W, v = (max(norm_of(x), norm_of(y)) for x, y in ((a.W, b.W), (a.v, b.v)))
    difference = a.W / (W or 1.0) - b.W / (W or 1.0)
    left, right = rng.standard_normal((2, a.dim))
    for _ in range(_ITERATIONS):
        left, right = _unit(difference @ right), _unit(difference.T @ left)
    value, bias = _unit(a.v / v + b.v / v), _unit(a.w)
    across = left - (left @ bias) * bias  # sees W alone, however large w is
    lines = (left, across, _unit(a.w - b.w))
    offsets = [_unit(u + s * value) for u in lines for s in (0.0, 1.0, -1.0)]
    offsets += list(rng.standard_normal((_OFFSETS, a.dim)))
    return offsets, [right, np.zeros(a.dim), *rng.standard_normal((_QUERIES, a.dim))]


def _sizes(middle: float) -> Array:
    """Return sizes around one, of which no square leaves float64's range."""
    return np.asarray(np.clip(middle * _POWERS, 2.0**-480, 2.0**480))


def _unit(x: Array) -> Array:
    norm = norm_of(x)
    return x / norm if norm else x
