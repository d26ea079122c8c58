"""All that is known of the neurons in a ball, and how it is solved again when more is.

Neurons come from chords, and from tokens at which hidden ones showed, in this order: what was found
first is taken off what was found later. Columns come from the crossings, where these agreed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.learners.feed_forward.ball_chords import BallChords, ChordReadings, CrossedNeurons
from unsoftmax.learners.feed_forward.found_neurons import UNCLEAR, BallPart, FoundNeurons, turned_to
from unsoftmax.probes import Array, Flags, Indices

# What is left of an answer counts from so many errors on.
CLEAR = 10.0
# Columns are one neuron's if they differ by no more than this, or by CLEAR errors, of which
# no more than the other counts; those that are off by more are looked for on another chord.
ALIKE, CLOSE = 1e-6, 1e-2
# Steps around a token, in radii. Longer: more of them leave a neuron silent; shorter: less
# precise.
APART = 0.06
# Tokens that span less than this share of a step, in some direction, do not tell a row.
FLAT = 0.1
# Tokens that the one to step around is chosen from, no more than one for four dimensions.
CANDIDATES = 8
# Their lengths, in radii, and those of tokens where neurons are active.
LONG = 0.9
# Weight of a neuron's bias, in radii, in the first estimate of its row.
ESTIMATED = 0.1
# Tokens where more neurons are active, in numbers of an answer, tell no rows that are known late.
SHARE = 0.7
# Such a row is solved from so many tokens per dimension, or stays as it was.
TOKENS = 1.05


@dataclass(frozen=True, slots=True)
class ShownValues:
    """The values z of hidden neurons at tokens."""

    z: Array
    """(n, h): max(0, z_j), but for errors."""
    error: Array
    """(n, h)."""
    shown: Flags
    """(n, h): where each shows."""
    others: Flags
    """(n,): at which tokens other neurons do; nothing counts as shown there."""


@dataclass(frozen=True, slots=True)
class HiddenNeurons:
    """Columns of hidden neurons, and what answers say of them."""

    tokens: Array
    """(n, k)."""
    left: Array
    """(n, d_out): answers less what is known."""
    columns: Array
    """b_j (h, d_out), of norm 1."""
    column_error: Array
    noise: float
    """What ``left`` is off by (2-norm)."""
    radius: float

    def values(self) -> ShownValues:
        """Solve for all values."""
        inverse = np.linalg.pinv(self.columns.T)
        z = self.left @ inverse.T
        miss = np.linalg.norm(self.left - z @ self.columns, axis=1)
        off = np.hypot(self.noise, np.linalg.norm(np.abs(z) * self.column_error, axis=1))
        error = np.linalg.norm(inverse, axis=1) * off[:, None]
        others = (miss > CLEAR * off) | np.any(z < -CLEAR * error, axis=1)
        return ShownValues(z, error, (z > CLEAR * error) & ~others[:, None], np.asarray(others))

    def told(self) -> tuple[FoundNeurons, Indices]:
        """Return all neurons that the tokens tell, and which they are."""
        values, k = self.values(), self.tokens.shape[1]
        rows, which = [np.zeros((0, k + 3))], []
        least = FLAT * APART * self.radius
        for j in range(len(self.columns)):
            on = values.shown[:, j]
            t, z = self.tokens[on], values.z[on, j]
            if len(t) <= k:
                continue
            middle = t.mean(axis=0)
            U, s, Vt = np.linalg.svd(t - middle, full_matrices=False)
            if s[-1] < least:
                continue
            row = Vt.T @ ((U.T @ (z - z.mean())) / s)
            own = float(np.median(values.error[on, j]))
            error = own * float(np.linalg.norm(1 / s))
            bias_error = error * float(np.linalg.norm(middle)) / np.sqrt(k) + own
            rows.append(np.array([[*row, z.mean() - row @ middle, error, bias_error]]))
            which.append(j)
        solved, chosen = np.vstack(rows), np.array(which, dtype=np.intp)
        found = FoundNeurons(
            rows=solved[:, :k],
            row_error=solved[:, k + 1],
            bias=solved[:, k],
            bias_error=solved[:, k + 2],
            columns=self.columns[chosen],
            column_error=self.column_error[chosen],
            first=np.zeros((self.left.shape[1], k)),
            first_error=0.0,
        )
        return found, chosen

    def of(self, columns: Array, error: Array) -> Indices:
        """Return which of these neurons columns are of, −1 of none."""
        if not len(self.columns):
            return np.full(len(columns), -1)
        apart = np.linalg.norm(columns[:, None] - self.columns, axis=2)
        limit = CLEAR * np.minimum(error[:, None] + self.column_error, CLOSE)
        nearest = np.argmin(apart, axis=1)
        own = np.arange(len(columns)), nearest
        return np.where(apart[own] < np.maximum(ALIKE, limit[own]), nearest, -1)

    def towards(self, wanted: Indices, rng: np.random.Generator) -> Array:
        """Return tokens at which many of the wanted neurons may show."""
        values = self.values()
        ways, weight = [], ESTIMATED * self.radius
        for j in wanted:
            t, z = self.tokens[values.shown[:, j]], values.z[values.shown[:, j], j]
            equations = np.column_stack([t, np.full(len(t), weight)])
            row = np.linalg.lstsq(equations, z, rcond=1e-6)[0][:-1]
            ways.append(row / (np.linalg.norm(row) or 1.0))
        count = min(CANDIDATES, 1 + self.tokens.shape[1] // 4)
        x = []
        for c in range(count):
            some = rng.permutation(len(ways))[: max(1, -(-len(ways) * (count - c) // count))]
            way = np.sum(np.array(ways)[some], axis=0)
            x.append(LONG * self.radius * way / (np.linalg.norm(way) or 1.0))
        return np.array(x)

    def widest(self, wanted: Indices) -> tuple[Array, int]:
        """Return the token at which most of the wanted neurons show, and what they still lack.

        The latter is how many tokens more one of them takes.
        """
        values = self.values()
        shown = values.shown[:, wanted]
        count = np.sum(shown, axis=1)
        best = np.flatnonzero(count == np.max(count))
        least = [np.min(values.z[i, wanted][shown[i]], initial=np.inf) for i in best]
        at = best[int(np.argmax(least))]
        seen = np.sum(values.shown[:, wanted[shown[at]]], axis=0)
        dim = self.tokens.shape[1]
        return self.tokens[at], int(np.clip(dim + 2 - np.min(seen, initial=dim), 2, dim))


@dataclass(frozen=True, slots=True)
class LateNeurons:
    """Tokens far apart, and what neurons must explain of the answers, once all columns are known.

    An answer less what is known is Σ b_j z_j over the neurons that are active at the token: where
    they are fewer than its numbers, all z_j = a_j·t + β_j follow, and from these a_j and β_j.
    """

    tokens: Array
    """(n, k)."""
    left: Array
    """(n, d_out)."""
    found: FoundNeurons
    """The neurons as they are known so far; columns are taken as they are."""
    noise: float
    """What ``left`` is off by (2-norm)."""

    def values(self) -> tuple[Array, Array]:
        """Return z (n, h), nan where a neuron is not active or not told, and gains of errors."""
        found, d_out = self.found, self.left.shape[1]
        active = self.tokens @ found.rows.T + found.bias > 0
        z, gain = np.full(active.shape, np.nan), np.zeros(active.shape)
        for i, on in enumerate(active):
            if not 0 < np.sum(on) <= SHARE * d_out:
                continue
            inverse = np.linalg.pinv(found.columns[on].T)
            z[i, on] = inverse @ self.left[i]
            gain[i, on] = np.linalg.norm(inverse, axis=1)
        return z, gain

    def solved(self) -> FoundNeurons:
        """Return the neurons with better rows and biases."""
        z, gain = self.values()
        found, k = self.found, self.tokens.shape[1]
        rows, bias = found.rows.copy(), found.bias.copy()
        row_error, bias_error = found.row_error.copy(), found.bias_error.copy()
        for j in range(len(rows)):
            on = np.isfinite(z[:, j])
            if np.sum(on) < TOKENS * (k + 1) + 1:
                continue
            row, at, error = self._row(self.tokens[on], z[on, j], 1 / gain[on, j])
            size = float(np.linalg.norm(error[:-1]))
            if size < found.row_error[j]:
                rows[j], bias[j], row_error[j], bias_error[j] = row, at, size, error[-1]
        return replace(found, rows=rows, bias=bias, row_error=row_error, bias_error=bias_error)

    def _row(self, t: Array, z: Array, weight: Array) -> tuple[Array, float, Array]:
        """Solve z = a·t + β; return a, β and what they are off by, by what is missed."""
        k = t.shape[1]
        middle = weight @ t / np.sum(weight)
        equations = np.column_stack([t - middle, np.ones(len(t))]) * weight[:, None]
        U, s, Vt = np.linalg.svd(equations, full_matrices=False)
        solution = Vt.T @ ((U.T @ (z * weight)) / s)
        missed = float(np.linalg.norm(z * weight - equations @ solution)) / np.sqrt(len(t) - k - 1)
        typical = np.hypot(missed, self.noise / np.sqrt(self.left.shape[1]))
        error = typical * np.linalg.norm(Vt.T / s, axis=1)
        along = float(np.linalg.norm(error[:-1]) * np.linalg.norm(middle)) / np.sqrt(k)
        error[-1] = np.hypot(error[-1], along)
        return solution[:-1], float(solution[-1] - solution[:-1] @ middle), error


def where_active(found: FoundNeurons, length: float) -> Array:
    """Return a token so long at which all of some neurons are active, or as many as are found."""
    size = np.linalg.norm(found.rows, axis=1)
    units, away = found.rows / size[:, None], found.bias / size
    some = np.arange(len(size))
    while True:
        way = np.sum(units[some], axis=0)
        token = np.asarray(way * (length / np.linalg.norm(way)))
        if len(some) == 1 or np.all(units[some] @ token + away[some] > 0):
            return token
        some = some[:-1]


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
    doubted: bool = False
    """Whether a chord was left out."""
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

    def copied(self) -> KnownNeurons:
        """Return neurons as they are known, without tokens, for `back_to`."""
        same = KnownNeurons(self.point, self.value, self.asking)
        same.back_to(self)
        return same

    def back_to(self, before: KnownNeurons) -> None:
        """Forget what was read since, but for tokens."""
        self.chords, self.hidden = [*before.chords], [*before.hidden]
        self.crossed, self.part = before.crossed, before.part
        self.columns, self.column_error = before.columns, before.column_error

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
