"""Which recorded questions show best whether a target is still the same.

Hold-out sequences come first, those of the last round before all and the long ones before the
short: they are generic, so that every parameter of a model moves their answers. Of single tokens
those come first that are least alike, since a neuron sleeps on one side of its hyperplane. Where
they are fewer than wanted a spread over all that is recorded follows. Labels move only at a flip:
beside the last hold-out the recorded questions serve that are nearest to one of the other label,
but not so near that another order of summation flips them.

The questions of a resumed run are known only as its learner is replayed, round by round. So their
places are chosen from the ledger beforehand, and each is kept as its round comes by. Purposes,
places, tokens and answers are all that is used: nothing is known here of models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, zip_longest

import numpy as np

from unsoftmax.campaign.ledger_format import Place, RecordedPart
from unsoftmax.probes import Array, Indices, Probes

# Questions asked again: one in so many of those recorded, ``fewest`` to ``most``. More cost more on
# every resume; fewer may miss a neuron that few questions see. With 8 of 76 one of 200 changed
# heads was taken for its own target: one entry of a factor, 100 times as small as the others, had
# changed by 1e-6.
ONE_IN = 4
# Fewest questions asked again.
FEWEST = 8
# Most questions asked again.
MOST = 32
# Recorded questions that are looked at beside the hold-out, spread over all. More take more memory.
SPREAD = 256
# And the last ones, where a bisection is nearest to its flips.
LAST = 768
# Most numbers in the questions that are looked at: 16 MiB.
NUMBERS = 2**21
# Distance, relative to the tokens, within which a label may flip by rounding: 2¹² roundoffs.
# Smaller: good targets are refused. Larger: smaller changes pass.
FLIP = 2.0**-40
# Questions with one label that are nearer to each other, relative to the tokens, are beside the
# same flip. Larger: flips are taken for one. Smaller: one flip is asked about many times.
APART = 2.0**-7
# One in so many labels asked again is beside a flip, however many the hold-out has: of a bisection
# of a few steps none is asked otherwise. Smaller: fewer of the hold-out's are.
AT_FLIPS = 4
# Fewer answers of two values are no labels: they may be two by chance.
LABELS = 8


def asked(recorded: int) -> int:
    """Return how many questions are asked again where so many are recorded."""
    return min(recorded, max(FEWEST, min(recorded // ONE_IN, MOST)))


@dataclass(frozen=True, slots=True)
class Witness:
    """A recorded question.

    Attributes
    ----------
    place : (round, part, row)
        Where it was recorded.
    X : array (N, d)
        Its tokens, as they are asked today.
    y : array (m,)
        Its answer.
    turn : int or None
        Its turn among the hold-out, first the one that shows most; None for the others.
    """

    place: Place
    X: Array
    y: Array
    turn: int | None

    @property
    def size(self) -> float:
        """Length of the longest token."""
        return float(np.linalg.norm(self.X, axis=1).max())


@dataclass(slots=True)
class Witnesses:
    """The recorded questions that are looked at, collected as their rounds come by."""

    rows: dict[tuple[int, int], Indices]
    """Which to keep, in order, by round and part."""
    turns: dict[Place, int]
    """Turns of those of the hold-out."""
    closing: bool
    """Whether the hold-out comes last: then it was chosen to tell most."""
    count: int
    """How many are asked again."""
    found: list[Witness] = field(default_factory=list)

    @classmethod
    def of(cls, recorded: list[RecordedPart]) -> Witnesses:
        """Choose places among what is recorded."""
        total = sum(part.answered for part in recorded)
        count = asked(total)
        turns = _turns(recorded, count)
        largest = max((part.tokens * part.dim for part in recorded), default=1)
        share = min(1.0, NUMBERS / largest / (SPREAD + LAST))
        spread = np.linspace(0, max(0, total - 1), max(count, int(share * SPREAD)))
        last = np.arange(max(0, total - int(share * LAST)), total)
        numbers = np.union1d(spread.astype(np.intp), last)
        rows: dict[tuple[int, int], Indices] = {}
        before = 0
        for part in recorded:
            own = numbers[(numbers >= before) & (numbers < before + part.answered)] - before
            held = [row for *where, row in turns if tuple(where) == (part.round, part.part)]
            rows[part.round, part.part] = np.union1d(part.rows(own), np.array(held, dtype=np.intp))
            before += part.answered
        closing = bool(turns) and turns[0][0] == recorded[-1].round
        return cls(rows, {place: k for k, place in enumerate(turns)}, closing, count)

    def keep(self, index: int, part: int, probes: Probes, start: int, y: Array) -> None:
        """Keep what is wanted of a recorded piece of answers."""
        rows = self.rows.get((index, part), np.zeros(0, dtype=np.intp))
        for row in rows[(rows >= start) & (rows < start + len(y))].tolist():
            place = (index, part, row)
            X = probes[row : row + 1][0]
            self.found.append(Witness(place, X, y[row - start].copy(), self.turns.get(place)))

    def labels(self) -> bool:
        """Say whether the answers are labels: two values and no more."""
        y = self.answers()
        return len(y) >= LABELS and len(np.unique(y)) == 2

    def answers(self) -> Array:
        """Return the answers of all that is looked at: (n, m)."""
        return np.array([witness.y for witness in self.found])

    def chosen(self) -> list[Witness]:
        """Choose what is asked again, in the order of their places."""
        held = sorted((w for w in self.found if w.turn is not None), key=lambda w: w.turn or 0)
        labels = self.labels()
        near = self._nearest_flips() if labels else []
        held = held if labels else self._least_alike(held)
        late = len(held) if self.closing or not near else 0
        if near:  # the flips that a model was read from show what the hold-out leaves open
            late = min(late, self.count - self.count // AT_FLIPS)
        spread = (self.found[k] for k in evenly(len(self.found)))
        picked: dict[Place, Witness] = {}
        for witness in chain(held[:late], near, held[late:], spread):
            if len(picked) < self.count:
                picked[witness.place] = witness
        return [picked[place] for place in sorted(picked)]

    def _least_alike(self, held: list[Witness]) -> list[Witness]:
        """Exchange single tokens of the hold-out for others of their part, far from each other."""
        parts: dict[tuple[int, ...], list[Witness]] = {}
        for witness in self.found:
            if len(witness.X) == 1:
                parts.setdefault(witness.place[:2], []).append(witness)
        lines = {
            part: iter([family[k] for k in _far_apart(np.concatenate([w.X for w in family]))])
            for part, family in parts.items()
        }
        return [next(lines[w.place[:2]]) if len(w.X) == 1 else w for w in held]

    def _nearest_flips(self) -> list[Witness]:
        """Order labelled questions by their distance to the nearest of the other label.

        Of those beside one flip, with one label, the nearest comes first and the others last.
        """
        families: dict[tuple[int, ...], list[Witness]] = {}
        for witness in self.found:
            families.setdefault(witness.X.shape, []).append(witness)
        first: list[list[Witness]] = []
        others: list[Witness] = []
        for _, family in sorted(families.items(), key=lambda pair: pair[0], reverse=True):
            X = np.stack([witness.X.ravel() for witness in family])
            label = np.array([witness.y[0] for witness in family])
            alone: list[int] = []
            for k in _by_distance(X, label, FLIP):
                beside = [j for j in alone if label[j] == label[k]]
                apart = np.linalg.norm(X[beside] - X[k], axis=1)
                if np.all(apart > APART * np.linalg.norm(X[k])):
                    alone.append(k)
                else:
                    others.append(family[k])
            first.append([family[k] for k in alone])
        lines = chain.from_iterable(zip_longest(*first))
        return [witness for witness in lines if witness is not None] + others


def _by_distance(X: Array, label: Array, safe: float) -> list[int]:
    """Order rows by their distance to the nearest of the other label; too near ones are left."""
    found = []
    for k, x in enumerate(X):
        other, size = X[label != label[k]], float(np.linalg.norm(x))
        if len(other) and size:
            distance = float(np.linalg.norm(other - x, axis=1).min()) / size
            found.append((distance, k))
    return [k for distance, k in sorted(found) if distance >= safe]


def _far_apart(x: Array) -> list[int]:
    """Order tokens (n, d), the longest one first, each as far as may be from those before.

    Hyperplanes are as far from 0 as tokens are long: (x, typical length) says which side it is on.
    """
    length = np.linalg.norm(x, axis=1)
    typical = float(np.median(length)) or 1.0
    lifted = np.column_stack([x, np.full(len(x), typical)])
    lifted /= np.linalg.norm(lifted, axis=1, keepdims=True)
    order = [int(np.argmax(length))]
    nearest = lifted @ lifted[order[0]]
    while len(order) < len(x):
        nearest[order[-1]] = np.inf
        order.append(int(np.argmin(nearest)))
        nearest = np.maximum(nearest, lifted @ lifted[order[-1]])
    return order


def evenly(count: int) -> Indices:
    """Order ``count`` places so that the first few, however many, are spread over all."""
    golden = (np.sqrt(5.0) - 1) / 2
    return np.argsort(np.arange(count) * golden % 1.0, kind="stable")


def _turns(recorded: list[RecordedPart], count: int) -> list[Place]:
    """Order hold-out questions: the last round first; in it long ones, family by family."""
    turns: list[Place] = []
    for index in sorted({part.round for part in recorded}, reverse=True):
        families = [p for p in recorded if p.round == index and p.purpose == "check"]
        families.sort(key=lambda part: -part.tokens)
        rows = [part.rows(evenly(part.answered)[:count]).tolist() for part in families]
        for line in zip_longest(*rows):
            asked = zip(families, line, strict=True)
            turns += [(index, part.part, row) for part, row in asked if row is not None]
    return turns[:count]
