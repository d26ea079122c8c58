"""Are two sub-layers one function? Decided on their forms, and of others array by array.

Two tokens [a+b; b] are answered with c + M b + Σ_h σ(a·(W_h b + w_h)) M_h a, M = Σ M_h. With n
copies of a+b a gate is σ(t + ln n), t = a·(W_h b + w_h): in the length of a its poles are at
(±iπ − ln n)/t, for n = 2 others for every other t, and a head with t = 0 has none. So heads of
different scores and M_h ≠ 0 are linearly independent already on sequences of at most three tokens
(with positions at distance 1 alone), and plain sub-layers are equal exactly if c, the residual and
the heads are, merged and without those that add nothing (Proposition 7.1). Heads before neurons
that nothing bends are heads; before others: `neuron_form`.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.equality.equivalence import Basis, Tolerance, largest_of
from unsoftmax.models.equality.form import (
    Form,
    canonical_form,
    compare_norms,
    let_through,
    merged,
    read,
    seen_through,
)
from unsoftmax.models.equality.matching import HeadMatching, Places, equal_exactly, match
from unsoftmax.models.equality.matching import places_nearly as nearly
from unsoftmax.models.equality.neuron_form import Network, agreement, bends, straightened
from unsoftmax.models.equality.score_form import places_exactly, score_distances
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.neurons import Neurons
from unsoftmax.models.products import Product
from unsoftmax.probes import Array

Pair = tuple[Form, Form]

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

    @property
    def nearly_one(self) -> bool:
        """Whether no witness is looked for."""
        return self.undecided is NEARLY_ONE


def compare(
    maps: tuple[Composition, Composition], tolerance: Tolerance
) -> tuple[Decision, Pair | None] | None:
    """Compare two models' maps: the decision, and their forms where both are one known sub-layer.

    None where they take other sequences, or answer otherwise.
    """
    first, second = (_in_a_row(one) for one in maps)
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
    first, second = simplest(forms[0], tolerance), simplest(forms[1], tolerance)
    if first.kind != second.kind:
        return None
    return decide(first, second, tolerance), (first, second)


def simplest(form: Form, tolerance: Tolerance) -> Form:
    """Return heads before neurons as heads, where they are; else as few heads as there need be."""
    if form.neurons is None or not form.attends or form.norm is not None:
        return form
    return straightened(form if tolerance.exact else merged(form))


def decide(a: Form, b: Form, tolerance: Tolerance) -> Decision:
    """Compare two sub-layers that take the same sequences and answer alike."""
    for form in (a, b) if a.vector or b.vector else ():
        _refuse_range(form)
    if bends(a) or bends(b):
        return _networks(a, b, tolerance)
    first, second = canonical_form(a), canonical_form(b)
    matching = HeadMatching(first, second, tolerance)
    gap, places = matching.gap()
    alike, norm_gap = compare_norms(first, second, tolerance)
    gap = max(gap, norm_gap)
    within = alike and matching.allows(matching.distance())
    if equal_exactly(a, b) if tolerance.exact else within:
        return Decision("canonical form", gap)
    if alike and not matching.lone and matching.allows(matching.distance_merged()):
        return Decision(None, gap, places, NEARLY_ONE)
    return Decision(None, gap, places)


def _networks(a: Form, b: Form, tolerance: Tolerance) -> Decision:
    """Match the heads, then compare the networks on what all of them pool."""
    a, b = (let_through(seen_through(form)) for form in (a, b))
    if not tolerance.exact:
        a, b = merged(a), merged(b)
    scores, worst = [*a.scores, *b.scores], 0.0
    relative, close = score_distances(a.scores, b.scores, tolerance)
    if tolerance.exact:
        places = places_exactly(scores)
    else:
        places, worst = placed(np.where(close, relative, np.inf))
    by, gap = agreement(*networks(a, b, places), tolerance)
    if by is not None:
        return Decision(by, max(gap, worst))
    joined = nearly(scores, tolerance).tolist()
    fewer = not tolerance.exact and len({*joined}) < len({*places})
    if fewer and agreement(*networks(a, b, joined), tolerance)[0]:
        return Decision(None, max(gap, worst), [], NEARLY_ONE)
    nearest, worst = placed(relative)
    if nearest != places:
        gap = agreement(*networks(a, b, nearest), Tolerance(0.0, 0.0))[1]
    return Decision(None, max(gap, worst), pairs_of(nearest, len(a.scores)))


def networks(a: Form, b: Form, places: list[int]) -> tuple[Network, Network]:
    """Return both networks on the heads of both, put where ``places`` says: first a's.

    Where one is given the query token itself, that follows in both.
    """
    last, H = any(f.last is not None or f.residual for f in (a, b)), len(a.scores)
    count = 1 + max([-1, *places])
    return Network.of(a, places[:H], count, last), Network.of(b, places[H:], count, last)


def placed(cost: Array) -> tuple[list[int], float]:
    """Place the heads of two models, and return the largest cost of a pair.

    A pair that costs more than two heads without a partner is none.
    """
    rows, columns = cost.shape
    places, worst = list(range(rows)) + [-1] * columns, 0.0
    fresh = rows
    for share, g, h in match(cost, np.ones(rows), np.ones(columns)):
        if h >= 0:
            places[rows + h] = fresh if g < 0 else g
            fresh, worst = fresh + (g < 0), worst if g < 0 else max(worst, share)
    return places, worst


def pairs_of(places: list[int], rows: int) -> Places:
    """Return the heads of the first model with those of the second in the same place."""
    return [(g, h) for h, g in enumerate(places[rows:]) if g < rows]


def _refuse_range(form: Form) -> None:
    """Refuse parameters whose squares, summed, leave float64's range, with a norm before taken in.

    Raises
    ------
    ValueError
        One is larger than 1e145.
    """
    with np.errstate(over="ignore"):
        seen, norm = seen_through(form), form.norm
    parts = {"c": [seen.c, *(seen.neurons or ())], "A": [] if seen.last is None else [seen.last]}
    parts |= {} if norm is None else {"scale": [norm.scale], "shift": [norm.shift]}
    sizes = {name: max(map(largest_of, some), default=0.0) for name, some in parts.items()}
    for name, some in (("M", seen.values), ("W", seen.scores)):
        each = [largest_of(x.left) * largest_of(x.right) for x in some if isinstance(x, Product)]
        sizes[name] = max(each, default=0.0)
    for name, size in sizes.items():
        if not size <= 1e145:
            raise ValueError(
                f"{name} is as large as {size:.0e}: beyond 1e+145 sums of squares leave float64's "
                "range, and layers are not compared. Scale both layers' weights."
            )


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
        first, second = _fields(mine), _fields(its)
        for field, value in first.items():
            within, off = _compare(value, second[field], tolerance)
            alike, gap = alike and within, max(gap, off)
    return Decision("canonical form", gap) if alike else Decision(None, gap, [], NO_FORM)


def _fields(leaf: Map) -> dict[str, Any]:
    if is_dataclass(leaf):
        return {field.name: getattr(leaf, field.name) for field in fields(leaf)}
    # a norm stands where it stands, whatever it says
    return {name: x for name, x in vars(leaf)["_arrays"].items() if name != "before"}


def _compare(value: Any, other: Any, tolerance: Tolerance) -> tuple[bool, float]:
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        if value.shape == other.shape:
            return tolerance.compare(np.atleast_1d(value), np.atleast_1d(other))
        return False, float("inf")
    alike = type(value) is type(other) and bool(np.all(value == other))
    return alike, 0.0 if alike else float("inf")
