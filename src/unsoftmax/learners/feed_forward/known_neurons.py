"""All that is known of the neurons in a ball, and how it is solved again when more is.

Neurons come from chords, and from tokens at which hidden ones showed, in this order: what was found
first is taken off what was found later. Columns come from the crossings, where these agreed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.learners.feed_forward.ball_chords import BallChords, ChordReadings
from unsoftmax.learners.feed_forward.crossed_neurons import CrossedNeurons
from unsoftmax.learners.feed_forward.found_neurons import UNCLEAR, BallPart, FoundNeurons, turned_to
from unsoftmax.learners.feed_forward.hidden_neurons import CLOSE, HiddenNeurons, LateNeurons
from unsoftmax.probes import Array, Indices

# Neurons whose rows are off by so many times what is usual are known less well than others.
WEAK = 10.0


@dataclass(slots=True)
class KnownNeurons:
    """Readings of neurons, and the tokens that were asked for hidden ones."""

    point: Array
    """p (k,), where all are silent."""
    value: Array
    """The answer there (d_out,)."""
    asking: BallChords
    chords: list[ChordReadings] = field(default_factory=list)
    hidden: list[FoundNeurons] = field(default_factory=list)
    """Neurons that showed at tokens, as they were solved for."""
    crossed: CrossedNeurons = field(init=False)
    part: BallPart = field(init=False)
    tokens: Array = field(init=False)
    answers: Array = field(init=False)
    columns: Array = field(init=False)
    column_error: Array = field(init=False)
    """Of hidden neurons whose rows are not known (h, d_out)."""

    def __post_init__(self) -> None:
        k, d_out = len(self.point), len(self.value)
        self.tokens, self.answers = np.zeros((0, k)), np.zeros((0, d_out))
        self.columns, self.column_error = np.zeros((0, d_out)), np.zeros(0)
        self.crossed = CrossedNeurons.none(d_out, k)

    @property
    def noise(self) -> float:
        """What answers less what is known are off by (2-norm)."""
        return self.asking.noise_of(self.part)

    def shown(self, since: int = 0) -> HiddenNeurons:
        """Return what tokens say of hidden neurons, those asked from some number on."""
        t = self.tokens[since:]
        return HiddenNeurons(
            t,
            self.answers[since:] - self.part(t),
            self.columns,
            self.column_error,
            self.noise,
            self.asking.radius,
        )

    def add_chord(self, told: ChordReadings) -> None:
        """Take over a chord's neurons; hidden ones among them are hidden no more."""
        found = told.first_found()
        size = np.linalg.norm(found.rows, axis=1)
        real = np.asarray(size > UNCLEAR * found.row_error)
        self.chords.append(replace(told, real=real))
        self.crossed = self.crossed.with_neurons(found.columns[real], found.column_error[real])
        if len(self.columns):
            seen = self.shown().of(found.columns, found.column_error)
            left = np.setdiff1d(np.arange(len(self.columns)), seen)
            self.columns, self.column_error = self.columns[left], self.column_error[left]

    def add_columns(self, columns: Array, error: Array) -> int:
        """Take over the columns of hidden neurons that are new; return how many are."""
        new = error < CLOSE
        new &= self.shown().of(columns, error) < 0
        self.columns = np.vstack([self.columns, columns[new]])
        self.column_error = np.append(self.column_error, error[new])
        return int(np.sum(new))

    def add_hidden(self, found: FoundNeurons) -> None:
        """Take over the rows of all hidden neurons."""
        self.hidden.append(found)
        self.crossed = self.crossed.with_neurons(self.columns, self.column_error)
        self.columns, self.column_error = self.columns[:0], self.column_error[:0]

    def solve(self) -> None:
        """Solve for all rows and biases with the best columns."""
        part: BallPart | None = None
        for chord in self.chords:
            found = chord.neurons(self.crossed, part, self.asking.noise_of(None))
            if part is None:
                part = turned_to(self.point, self.value, found, chord.real)
            else:
                part = part.with_neurons(found.taken(chord.real))
            part = replace(part, found=self.crossed.placed(part.found))
        assert part is not None
        self.part = part
        for i, before in enumerate(self.hidden):
            start = len(self.part.found.rows)
            self.hidden[i] = self._again(before, np.arange(start, start + len(before.rows)))
            part = self.part.with_neurons(self.hidden[i])
            self.part = replace(part, found=self.crossed.placed(part.found))

    def _again(self, before: FoundNeurons, which: Indices) -> FoundNeurons:
        """Solve for hidden neurons once more; what comes out less precise stays."""
        columns, error = self.crossed.columns[which], self.crossed.error[which]
        shown = replace(self.shown(), columns=columns, column_error=error)
        found, told = shown.told()
        better = found.row_error < before.row_error[told]
        new = {}
        for name in ("rows", "row_error", "bias", "bias_error"):
            new[name] = getattr(before, name).copy()
            new[name][told[better]] = getattr(found, name)[better]
        return replace(before, columns=columns, column_error=error, **new)

    def strengthen(self) -> Indices:
        """Solve once more for neurons that the first chord did not show, over long distances.

        Return those of them that are known less well than is usual.
        """
        first, every = self.chords[0].count, self.part.found
        late = np.arange(first, len(every.rows))
        if not len(late):
            return late
        part = self.part.upto(first)
        tokens = np.vstack([self.tokens, self.crossed.tokens])
        left = np.vstack([self.answers, self.crossed.answers]) - part(tokens)
        own = self.asking.noise_of(part)
        told = LateNeurons(tokens, left, every.taken(late), own).solved()
        part = part.with_neurons(told)
        self.part = replace(part, found=self.crossed.placed(part.found))
        error = self.part.found.row_error
        return late[error[late] > WEAK * np.median(error)]
