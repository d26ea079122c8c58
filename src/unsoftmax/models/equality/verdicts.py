"""Are two sub-layers one function? Decided on their forms, and of others array by array.

Two tokens [a+b; b] are answered with c + M b + Σ_h σ(a·(W_h b + w_h)) M_h a, M = Σ M_h. With n
copies of a+b a gate is σ(t + ln n), t = a·(W_h b + w_h): in the length of a its poles are at
(±iπ − ln n)/t, for n = 2 others for every other t, and a head with t = 0 has none. So heads of
different scores and M_h ≠ 0 are linearly independent already on sequences of at most three tokens
(with positions at distance 1 alone), and plain sub-layers are equal exactly if c, the residual and
the heads are, merged and without those that add nothing (Proposition 7.1). Heads before neurons
that nothing bends are heads; before others: `neuron_form`.

With a tolerance heads are matched by their scores at the least cost in all; all values and c then
count as one block, in which a head without a partner differs by its values.
"""

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.equality import score_form
from unsoftmax.models.equality.form import Form, canonical_form, merged, read, refuse_range, visible
from unsoftmax.models.equality.neuron_form import Basis, Network, agreement, straightened
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.neurons import Neurons
from unsoftmax.models.products import Product, Tolerance, distances, norm_of, size_of, unit_of
from unsoftmax.probes import Array

Places = list[tuple[int, int]]
"""Heads of one model and of another one; −1 where there is none."""
Pair = tuple[Form, Form]
_CONSTANT = (Attention, Neurons)
"""Maps that end in a constant c."""

NEARLY_ONE = (
    "heads of one model are within the tolerance of each other, and only if they count as one are "
    "the models equal"
)
UNTOLD = "parameters differ, yet no sequence was found on which float64 tells the functions apart"
SEVERAL = "sub-layers in a row are equal if each is, and some are not: "
NO_FORM = "no canonical form is known of some maps, whose arrays differ; " + UNTOLD


class Decision(NamedTuple):
    """What two sub-layers' parameters decide without a witness."""

    by: Basis | None
    """By what they are equal; None where they are not."""
    gap: float
    places: Places = []  # noqa: RUF012 - nobody changes it
    """Heads that differ, the worst first."""
    undecided: str = UNTOLD
    """Why nothing can be said where there is no witness."""


def compare(
    maps: tuple[Composition, Composition], tolerance: Tolerance
) -> tuple[Decision, Pair | None] | None:
    """Compare two models' maps: the decision, and their forms where both are one known sub-layer.

    None where they take other sequences, or answer otherwise.
    """
    first, second = (_with_means_passed_on(_in_a_row(one)) for one in maps)
    if len(first) != len(second):
        return Decision(None, float("inf"), [], NO_FORM), None
    found = [_compare_sublayers(*pair, tolerance) for pair in zip(first, second, strict=True)]
    if len(found) == 1:
        return found[0]
    decisions = [one[0] for one in found if one is not None]
    same = len(decisions) == len(found) and _looks(maps[0]) == _looks(maps[1])
    gap = max((one.gap for one in decisions), default=float("inf"))
    if same and all(one.by for one in decisions):
        return Decision("canonical form", gap), None
    why = next((one.undecided for one in decisions if not one.by), UNTOLD)
    return Decision(None, gap, [], SEVERAL + why), None


def _in_a_row(maps: Composition) -> list[Composition]:
    """Return the sub-layers, of one that has a form itself."""
    parts = [part for _, part in maps.parts]
    inner = any(isinstance(part, Composition) for part in parts)
    norms = bool(parts) and all(isinstance(part, LayerNorm) for part in parts)
    if maps.residual or not (inner or norms):
        return [maps]
    row: list[Composition] = []
    for part in parts:
        lone = Composition((("", part),))
        for one in _in_a_row(part) if isinstance(part, Composition) else [lone]:
            row.append(one)
            # a norm belongs to the sub-layer that it follows, whichever stack it is in
            behind = len(row) > 1 and len(one.parts) == 1 and isinstance(one.parts[0][1], LayerNorm)
            if behind and not one.residual:
                joined = Composition((("", row[-2]), ("norm", one.parts[0][1])))
                row[-2:] = row[-2:] if read(joined) is None else [joined]
    return row


def _with_means_passed_on(row: list[Composition]) -> list[Composition]:
    """Take off every constant the mean that the next norm does not see, and add it to the next one.

    y and y − m are one input of a centred norm; where y is added behind it only m is missing.
    """
    row = list(row)
    for k, (part, following) in enumerate(pairwise(row)):
        (*before, (name, last)), after = row[k].parts, following.parts
        if not (after and following.residual and isinstance(norm := after[0][1], LayerNorm)):
            continue
        (*inner, (its_name, its_last)) = after
        if not (norm.before and norm.centred and part.residual):
            continue
        if not (isinstance(last, _CONSTANT) and isinstance(its_last, _CONSTANT)):
            continue
        if last.c is None or its_last.c is None or last.c.shape != its_last.c.shape:
            continue
        mean = np.mean(_constant(before, last))
        lesser = replace(last, c=np.asarray(last.c - mean))
        more = replace(its_last, c=np.asarray(its_last.c + mean))
        row[k] = replace(row[k], parts=(*before, (name, lesser)))
        row[k + 1] = replace(following, parts=(*inner, (its_name, more)))
    return row


def _constant(before: Sequence[tuple[str, Map]], last: Attention | Neurons) -> Array:
    """Return what is added to every answer: c, and what heads make of the shift before them."""
    if isinstance(last, Neurons) or not (before and isinstance(norm := before[0][1], LayerNorm)):
        return np.asarray(last.c)
    return np.asarray(last.answers(norm.shift[None, None])[0, -1])


def _looks(maps: Composition) -> list[bool]:
    """Return which heads look at tokens up to their own position alone.

    Of the last ones no answer shows it: they are asked at the last position.
    """
    return [leaf.causal for leaf in maps.leaves.values() if isinstance(leaf, Attention)][:-1]


def _compare_sublayers(
    a: Composition, b: Composition, tolerance: Tolerance
) -> tuple[Decision, Pair | None] | None:
    forms = read(a), read(b)
    if forms[0] is None or forms[1] is None:
        return _arrays_alike(a, b, tolerance), None
    first, second = straightened(forms[0], tolerance), straightened(forms[1], tolerance)
    if (first.attends, first.outputs) != (second.attends, second.outputs):
        return None
    return decide(first, second, tolerance), (first, second)


def decide(a: Form, b: Form, tolerance: Tolerance) -> Decision:
    """Compare two sub-layers that take the same sequences and answer alike."""
    for form in (a, b) if a.vector or b.vector else ():
        refuse_range(form)
    if a.neurons is not None or b.neurons is not None:
        return _networks(a, b, tolerance)
    first, second = canonical_form(a), canonical_form(b)
    matching = HeadMatching(first, second, tolerance)
    gap, places = matching.gap()
    alike, norm_gap = first.compare_norms(second, tolerance)
    gap, within = max(gap, norm_gap), alike and matching.allows(matching.distance())
    if equal_exactly(a, b) if tolerance.exact else within:
        return Decision("canonical form", gap)
    if alike and not matching.lone and matching.allows(matching.distance_merged()):
        return Decision(None, gap, places, NEARLY_ONE)
    return Decision(None, gap, places)


def _networks(a: Form, b: Form, tolerance: Tolerance) -> Decision:
    """Match the heads, then compare the networks on what all of them pool."""
    a, b = (visible(x) if tolerance.exact else merged(visible(x)) for x in (a, b))
    scores = [*a.scores, *b.scores]
    relative, close = score_form.score_distances(a.scores, b.scores, tolerance)
    if tolerance.exact:
        places, worst = score_form.places_exactly(scores), 0.0
    else:
        places, worst = placed(np.where(close, relative, np.inf))
    by, gap = agreement(*networks(a, b, places), tolerance)
    if by is not None:
        return Decision(by, max(gap, worst))
    joined = places_nearly(scores, tolerance).tolist()
    fewer = not tolerance.exact and len({*joined}) < len({*places})
    if fewer and agreement(*networks(a, b, joined), tolerance)[0]:
        return Decision(None, max(gap, worst), [], NEARLY_ONE)
    nearest, worst = placed(relative)
    if nearest != places:
        gap = agreement(*networks(a, b, nearest), Tolerance())[1]
    return Decision(None, max(gap, worst), paired(nearest, len(a.scores)))


# -- heads matched with heads
class HeadMatching:
    """How far the heads of two canonical forms are apart; values and c in units of 2^k.

    Matched heads' scores differ by at most the tolerance. All values and c then count as one block.
    Two models of one head each have nothing to match: where the scores differ, they do.
    """

    def __init__(self, a: Form, b: Form, tolerance: Tolerance) -> None:
        self.scores, self.tolerance = (a.scores, b.scores), tolerance
        self.lone = a.heads == b.heads == 1
        own = beside(a, b)
        self.unit = unit_of(*own, *a.values, *b.values)
        self.values = [[Product(M.left / self.unit, M.right) for M in f.values] for f in (a, b)]
        first, second = (x / self.unit for x in own)
        self.alone, self.missing = (np.array([size_of(M) for M in some]) for some in self.values)
        sums = (first, self.alone), (second, self.missing)
        self.size = max(math.hypot(norm_of(x), norm_of(values)) for x, values in sums)
        self.constant = norm_of(first - second)
        self.relative, self.close = score_form.score_distances(a.scores, b.scores, tolerance)
        self.apart = distances(*self.values)

    def allows(self, distance: float) -> bool:
        """Tell whether a distance between all values and c is within the tolerance."""
        return self.tolerance.allows(distance, self.size, self.unit)

    def distance(self) -> float:
        """Return the norm of what differs in values and c, heads beyond the tolerance unmatched."""
        if self.lone:
            matched_up = len(self.alone) == len(self.missing) and self.close.all()
            return math.hypot(norm_of(self.apart), self.constant) if matched_up else math.inf
        cost = np.where(self.close, self.apart**2, np.inf)
        matched = match(cost, self.alone**2, self.missing**2)
        return math.sqrt(self.constant**2 + sum(share for share, _, _ in matched))

    def gap(self) -> tuple[float, Places]:
        """Return the largest relative difference, and the heads that differ, the worst first."""
        scale = self.size or 1.0
        cost = np.maximum(self.relative, self.apart / scale)
        best = match(cost, *(np.maximum(x / scale, self.lone) for x in (self.alone, self.missing)))
        for k, (share, g, h) in enumerate(best):
            if min(g, h) >= 0 and self.relative[g, h] > score_form.FAR:  # at all distances
                in_full = score_form.scores_apart(self.scores[0][g], self.scores[1][h]).relative
                best[k] = max(share, in_full), g, h
        best.sort(key=lambda found: -found[0])
        gap = max([self.constant / scale, *(share for share, _, _ in best)])
        return gap, [(g, h) for share, g, h in best if share > 0]

    def distance_merged(self) -> float:
        """Return what differs when all heads whose scores are within tolerance are merged."""
        label = places_nearly([*self.scores[0], *self.scores[1]], self.tolerance)
        signed = [*self.values[0], *(-M for M in self.values[1])]
        groups = [np.flatnonzero(label == group) for group in np.unique(label)]
        sums = [sum((signed[h] for h in group), signed[0].nothing) for group in groups]
        return norm_of(np.array([*map(size_of, sums), self.constant]))


def places_nearly(scores: Sequence[score_form.Scores], tolerance: Tolerance) -> NDArray[np.intp]:
    """Return numbers of scores: those that a chain of steps within the tolerance joins have one."""
    close = score_form.score_distances(scores, scores, tolerance)[1]
    label = np.arange(len(scores))
    for _ in label:  # as many steps as a chain of neighbours can have
        label = np.min(np.where(close, label, len(label)), axis=1)
    return label


def equal_exactly(a: Form, b: Form) -> bool:
    """Decide whether two forms' heads and c are equal as real numbers; norms entry by entry.

    Neither sums of M nor products are rounded. False does not say that the functions differ: a
    norm before may share its scale with the heads in other ways.
    """
    if not a.compare_norms(b, Tolerance())[0]:
        return False
    first, second = (Product.of(x) for x in beside(a, b))
    groups = {-1: first - second}
    signed = [*a.values, *(-M for M in b.values)]
    for place, M in zip(score_form.places_exactly([*a.scores, *b.scores]), signed, strict=True):
        groups[place] = groups[place] + M if place in groups else M
    sums = list(groups.values())
    if a.behind is not None and a.behind.centred:  # what all rows share is not seen
        sums = [M - Product(np.repeat(M.left[:1], len(M.left), axis=0), M.right) for M in sums]
    return all(score_form.same_product(total, total.nothing) for total in sums)


def beside(a: Form, b: Form) -> tuple[Array, Array]:
    """Return c, and what the query token adds where it adds anything, (k, 1) or (k, 1 + d)."""
    if a.last is None and b.last is None:
        return a.c[:, None], b.c[:, None]
    both = [np.zeros((len(f.c), f.dim)) if f.last is None else f.last for f in (a, b)]
    return np.column_stack([a.c, both[0]]), np.column_stack([b.c, both[1]])


def match(cost: Array, alone: Array, missing: Array) -> list[tuple[float, int, int]]:
    """Match rows with columns, or leave them alone, at the least cost in all.

    Returns each match's cost, row and column; −1 for what a row or column lacks.
    """
    # imported here: SciPy's optimisers take longer to load than all of this package
    from scipy.optimize import linear_sum_assignment

    rows, columns = cost.shape
    whole = np.zeros((rows + columns, rows + columns))
    whole[:rows, :columns] = cost
    whole[:rows, columns:] = alone[:, None]
    whole[rows:, :columns] = missing
    pairs = np.transpose(linear_sum_assignment(whole)).tolist()
    matched = [(whole[g, h].item(), g, h) for g, h in pairs if g < rows or h < columns]
    return [(x, g if g < rows else -1, h if h < columns else -1) for x, g, h in matched]


def networks(a: Form, b: Form, places: list[int]) -> tuple[Network, Network]:
    """Return both networks on the heads of both, put where ``places`` says: first a's.

    Where one is given the query token itself, that follows in both.
    """
    last, H = any(f.last is not None or f.residual for f in (a, b)), len(a.scores)
    count = 1 + max(places, default=-1)
    return Network.of(a, places[:H], count, last), Network.of(b, places[H:], count, last)


def placed(cost: Array) -> tuple[list[int], float]:
    """Place the heads of two models, and return the largest cost of a pair.

    A pair that costs more than two heads without a partner is none.
    """
    rows, columns = cost.shape
    places, worst, fresh = list(range(rows)) + [-1] * columns, 0.0, rows
    for share, g, h in match(cost, np.ones(rows), np.ones(columns)):
        if h >= 0:
            places[rows + h] = fresh if g < 0 else g
            fresh, worst = fresh + (g < 0), worst if g < 0 else max(worst, share)
    return places, worst


def paired(places: list[int], rows: int) -> Places:
    """Return the heads of the first model with those of the second in the same place."""
    return [(g, h) for h, g in enumerate(places[rows:]) if g < rows]


# -- maps without a form


def _arrays_alike(a: Composition, b: Composition, tolerance: Tolerance) -> Decision:
    """Compare what two compositions are made of, field by field; neurons have no order."""
    if a.shape != b.shape:
        return Decision(None, float("inf"), [], NO_FORM)
    gap, alike = 0.0, True
    for name, mine in a.leaves.items():
        its = b.leaves[name]
        if isinstance(mine, Neurons) and isinstance(its, Neurons):
            its = its.in_order_of(mine)
        for value, other in zip(_fields(mine), _fields(its), strict=True):
            within, off = _compare(value, other, tolerance)
            alike, gap = alike and within, max(gap, off)
    return Decision("canonical form", gap) if alike else Decision(None, gap, [], NO_FORM)


def _fields(leaf: Map) -> list[Any]:
    if is_dataclass(leaf):
        return [getattr(leaf, field.name) for field in fields(leaf)]
    # a norm stands where it stands, whatever it says
    return [x for name, x in vars(leaf)["_arrays"].items() if name != "before"]


def _compare(value: Any, other: Any, tolerance: Tolerance) -> tuple[bool, float]:
    alike = type(value) is type(other) and np.shape(value) == np.shape(other)
    if alike and isinstance(value, np.ndarray):
        return tolerance.compare(np.atleast_1d(value), np.atleast_1d(other))
    return (True, 0.0) if alike and value == other else (False, float("inf"))
