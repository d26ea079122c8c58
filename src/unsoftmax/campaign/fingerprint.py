"""Is this still the same target? Some recorded questions, asked again on every resume.

`Witnesses` chooses those that show it best. Hold-out sequences come first, those of the last round
before all and the long ones before the short: they are generic, so that every parameter of a model
moves their answers. Of single tokens those come first that are least alike, since a neuron sleeps
on one side of its hyperplane. Where they are fewer than wanted a spread over all that is recorded
follows. Labels move only at a flip: beside the last hold-out the recorded questions serve that are
nearest to one of the other label, but not so near that another order of summation flips them.

The questions of a resumed run are known only as its learner is replayed, round by round. So their
places are chosen from the ledger beforehand, and each is kept as its round comes by. Purposes,
places, tokens and answers are all that is used: nothing is known here of models.

`Fingerprint` compares their answers. Each may differ by what the target's arithmetic allows at
that question's own size, and by the format of all answers. Where some differ by more, all are
asked a third time, each alone: answers that change from call to call are noise, whose size goes
into the notes; answers that stay come from another target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, zip_longest

import numpy as np

from unsoftmax.campaign.calls import Span
from unsoftmax.campaign.ledger_format import Place, RecordedPart
from unsoftmax.errors import LedgerMismatch
from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.probes import Array, Flags, Indices, Probes, Sequences

# Questions asked again: one in so many of those recorded, ``fewest`` to ``most``. More cost more on
# every resume; fewer may miss a neuron that few questions see. With 8 of 76 one of 200 changed
# heads was taken for its own target: one entry of a factor, 100 times as small as the others, had
# changed by 1e-6.
ONE_IN = 4
# Fewest questions asked again.
FEWEST = 8
# Most questions asked again.
MOST_ASKED = 32
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
    return min(recorded, max(FEWEST, min(recorded // ONE_IN, MOST_ASKED)))


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
    ids : bool
        Whether tokens are ids, which have no length.
    """

    place: Place
    X: Array
    y: Array
    turn: int | None
    ids: bool = False

    @property
    def size(self) -> float:
        """Length of the longest token; of ids all have the same."""
        return 1.0 if self.ids else float(np.linalg.norm(self.X, axis=1).max())


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
            own, turn = y[row - start].copy(), self.turns.get(place)
            self.found.append(Witness(place, X, own, turn, ids=probes.of_ids))

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


# Roundoffs, times `KAPPA`, by which answers of the same target may differ: in a batch of another
# size it adds up in another order. Smaller refuses good targets.
UNITS = 64.0
# Relative difference that is always allowed. Where tokens are long and W x is short, the terms of a
# score cancel, and their rounding moves the answer: by 1.6e-12 (measured). Smaller refuses good
# targets; larger takes a changed target for the same.
LEAST = 2.0**-37
# The coarsest format that answers are taken to have: bfloat16. A few answers may be short numbers
# by chance, and a changed target would pass for a rounded one.
COARSEST = 2.0**-8
# Numbers off which that format is read, evenly spaced over the coordinates. A decimal number takes
# 10 µs to read: all of 8 vectors of 10⁶ would take a minute on every resume.
FORMAT_NUMBERS = 2**14
# Share of the first difference below which a third answer counts as the second one again.
STEADY = 0.1
# Answers that may differ by at most so many times as much as those that do differ show noise, too:
# where few differ, one in 16 is as near itself by chance. Larger: a changed target passes whose
# larger answers waver in proportion.
ALIKE = 64.0
# Share of the answers that differ of which more must stay where they are, in another target. Noise
# comes as near to itself in 6 of 100.
MOST = 0.5


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Recorded questions that are asked again, and what is known of their answers.

    Attributes
    ----------
    asked : tuple of Witness
        The questions, those of one shape beside each other.
    recorded : array (n, m)
        Answers to all questions that were looked at.
    sizes : array (n,)
        Longest tokens of those questions.
    labels : bool
        Whether answers are labels.
    moved : float
        Largest relative difference between the recorded questions and those asked now.
    """

    asked: tuple[Witness, ...]
    recorded: Array
    sizes: Array
    labels: bool
    moved: float

    @classmethod
    def of(cls, known: Witnesses, moved: float) -> Fingerprint:
        """Read it off what is recorded."""
        asked = tuple(sorted(known.chosen(), key=lambda witness: witness.X.shape))
        sizes = np.array([witness.size for witness in known.found])
        return cls(asked, known.answers(), sizes, known.labels(), moved)

    @property
    def before(self) -> Array:
        """Recorded answers to what is asked: (k, m)."""
        return np.array([witness.y for witness in self.asked])

    def spans(self, *, alone: bool = False) -> list[Span]:
        """Return the questions, one family per shape; ``alone``: one per call.

        One that is alone of its shape is asked beside itself then: in another batch than before.
        """
        found = []
        for family, shape in enumerate(sorted({witness.X.shape for witness in self.asked})):
            X = np.stack([witness.X for witness in self.asked if witness.X.shape == shape])
            probes = Sequences(X, phase="fingerprint", purpose="check")
            if alone and len(X) == 1:
                twice = Sequences(np.repeat(X, 2, axis=0), phase="fingerprint", purpose="check")
                found.append(Span(family, 0, 2, twice))
                continue
            step = 1 if alone else len(X)
            found += [Span(family, k, k + step, probes) for k in range(0, len(X), step)]
        return found

    def in_order(self, answers: dict[tuple[int, int], Array]) -> Array:
        """Arrange rows, by family and start of their piece, in the order of the questions."""
        pieces = [answers[place] for place in sorted(answers)]
        families = [family for family, _ in sorted(answers)]
        alone = [len(y) == 2 and self._sizes[f] == 1 for f, y in zip(families, pieces, strict=True)]
        return np.concatenate([y[:1] if one else y for one, y in zip(alone, pieces, strict=True)])

    @property
    def _sizes(self) -> list[int]:
        """How many questions each family has."""
        shapes = [witness.X.shape for witness in self.asked]
        return [shapes.count(shape) for shape in sorted({*shapes})]

    def differs(self, now: Array) -> bool:
        """Whether any answer differs by more than one target's may."""
        return bool(np.any(self._excess(now) > 1))

    def noise(self, now: Array, again: Array) -> float:
        """Return the deviation of answers that change from call to call.

        Raises
        ------
        LedgerMismatch
            They do not: this is another target.
        """
        excess, changes = self._excess(now), np.abs(again - now)
        differs = excess > 1
        moved, wavers = np.abs(now - self.before)[differs], changes[differs]
        # one large answer decides the mean, and may come near itself by chance: ask the others
        stays = np.mean(wavers < STEADY * moved) > MOST
        least = STEADY * rms(moved)
        if stays and rms(wavers) < least and self._wavering(now, changes, differs) < least:
            question, number = np.unravel_index(np.argmax(excess), now.shape)
            which = f", number {number}" if now.shape[1] > 1 else ""
            raise LedgerMismatch(
                "The ledger was written for another target, or the target has changed: the answer "
                f"to its question {question}{which} was {self.before[question, number]} and is "
                f"{now[question, number]}. Start another ledger to learn the target as it is now."
            )
        return float(rms(changes) / np.sqrt(2))

    def _wavering(self, now: Array, changes: Array, differs: Flags) -> float:
        """Return by how much answers change that are not much larger than those that differ.

        Rounding is no such change, and noise may be in proportion to the answers. Of a few answers
        that differ by noise all come near themselves by chance.
        """
        allowed, rounding = self._allowed(now), self._allowed(now, 0.0)
        alike = allowed <= ALIKE * np.max(allowed[differs])
        wavers = alike & (changes > rounding) & (not self.labels)
        return float(np.max(changes[wavers], initial=0.0))

    def _excess(self, now: Array) -> Array:
        excess: Array = np.abs(now - self.before) / np.maximum(self._allowed(now), 1e-300)
        return excess

    def _allowed(self, now: Array, least: float | None = None) -> Array:
        """Bound how far each second answer (k, m) of one target may be from the first.

        ``least`` is a relative difference that is always allowed, if not `LEAST`.

        Questions that moved by a few bits move their answers as coarser arithmetic would. Answers
        that are finer now than those recorded come from a target that does not round as it did.
        """
        if self.labels:
            return np.zeros_like(now)
        numbers = [self.recorded, now]
        every = max(1, -(-sum(y.size for y in numbers) // FORMAT_NUMBERS))
        precision = Precision.of_format([y.ravel()[::every] for y in numbers])
        arithmetic = UNITS * KAPPA * max(precision.unit, self.moved)
        arithmetic = max(arithmetic, LEAST if least is None else least)
        # Two numbers that are nearly the same are rounded to neighbours at most.
        relative = min(precision.relative, COARSEST)
        bound: Array = arithmetic * self._natural_sizes()
        return bound + 2 * (relative * np.abs(self.before) + precision.absolute)

    def _natural_sizes(self) -> Array:
        """Bound the size of the terms of each answer (k, m) from below, by recorded answers.

        Terms grow with the longest token, at most in proportion but for a constant. So an answer
        to shorter tokens is a bound as it is, and one to longer tokens in proportion to the
        lengths. Every coordinate has its own, as if it were asked for alone.
        """
        found = []
        for witness in self.asked:
            size = max(witness.size, np.finfo(float).tiny)
            share = size / np.maximum(self.sizes, size)
            found.append(np.max(share[:, None] * np.abs(self.recorded), axis=0))
        return np.array(found)


def rms(x: Array) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(x**2)))
