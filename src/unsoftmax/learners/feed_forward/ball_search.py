"""All neurons of a layer within a ball.

1. A chord is searched and read as a line is: of random layers it shows about two neurons in three.
2. So are others, of answers less what is known, while they show many new neurons.
3. The rest is found by tokens all over the ball: where an answer shows another neuron, the chord
   through it is searched for columns alone, and rows follow from values (`known_neurons`).
4. The search ends when many tokens in a row show nothing new. Neurons that hardly any token of the
   ball shows are not found: the certificate says so.

After 1, 2 and 3 all new hyperplanes are crossed once more (`ball_chords`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.feed_forward.ball_chords import END, BallChords, crossed_again, read_chord
from unsoftmax.learners.feed_forward.found_neurons import BallPart
from unsoftmax.learners.feed_forward.known_neurons import (
    APART,
    CLEAR,
    LONG,
    HiddenNeurons,
    KnownNeurons,
    where_active,
)
from unsoftmax.learners.feed_forward.opening_look import OpeningLook, drawn_directions
from unsoftmax.learners.feed_forward.search_steps import asks
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# How far the point of all chords is from the middle, in radii: hyperplanes of a layer without
# biases meet there.
OFF = 0.1
# A chord that shows fewer new neurons than this, in dimensions, is not read: a reading costs two
# queries per dimension, and hidden neurons are read several chords' together.
FEW = 0.45
# Hidden neurons are no more than this, in numbers of an answer, which must tell all.
HIDDEN = 0.8
# A chord may be misread that makes what is known so many times less precise, and less precise than
# this share of answers: a value beyond a kink that passes for one before it does. The first one is
# left out. Close pairs of neurons do so, too, on every chord.
SPOILED, ROUGH = 300.0, 1e-6
# The search ends when so many tokens, and this share of the neurons, show no other one.
QUIET, QUIET_SHARE = 80, 0.12
# So many of them are asked at a time.
BATCH = 8
# Chords in a row that show nothing new where a token did, before the search is given up.
IDLE = 6
# Length of a token that others are asked around, in radii.
AROUND = 0.93
# Rounds of questions for each hidden neuron, at most.
ROWS = 4
# How often neurons are asked for again whose rows are known less well than others.
STRENGTHENED = 6


@dataclass(frozen=True, slots=True)
class BallNeurons:
    """What was found, and what was asked on the way (without the chords)."""

    part: BallPart
    tokens: Array
    answers: Array
    quiet: int
    """So many tokens in a row showed no other neuron."""


@dataclass(frozen=True, slots=True)
class BallSearch:
    """A search for all neurons whose hyperplanes meet a ball."""

    look: OpeningLook
    radius: float
    """No token is as long."""
    most: int
    """More neurons are refused."""
    thorough: bool
    rng: np.random.Generator

    def run(self) -> Generator[Round, Answers, BallNeurons]:
        """Find all, and read them again.

        Raises
        ------
        ModelMismatch, TooManyBreakpoints
            The target is another, or another chord may do.
        """
        chords = BallChords(self.look, self.radius, self.most, self.thorough)
        point = self._units(1)[0] * OFF * self.radius
        [value] = yield from asks("line")(point[None])
        known = KnownNeurons(point, value, chords)
        first = yield from chords.along(
            self._units(1)[0], point, None, known.columns, self.rng, size=chords.size
        )
        known.add_chord((yield from read_chord(first, None, 0)))
        yield from self._crossed(known)
        while (yield from self._along(known, self._units(1)[0])) is None:
            pass
        quiet = yield from self._until_quiet(known)
        yield from self._strengthened(known)
        tokens = np.vstack([known.tokens, known.crossed.tokens])
        answers = np.vstack([known.answers, known.crossed.answers])
        return BallNeurons(known.part, tokens, answers, quiet)

    def _units(self, count: int) -> Array:
        return drawn_directions(count, self.look.tokens.shape[1], self.rng)

    def _ask(
        self, known: KnownNeurons, t: Array, phase: str = "others"
    ) -> Generator[Round, Answers, HiddenNeurons]:
        """Ask tokens, and return what they say of hidden neurons."""
        y = yield from asks(phase)(t)
        known.tokens, known.answers = np.vstack([known.tokens, t]), np.vstack([known.answers, y])
        return known.shown(len(known.tokens) - len(t))

    def _crossed(self, known: KnownNeurons) -> Generator[Round, Answers, None]:
        """Cross all hyperplanes that are new, and solve for all rows again."""
        known.solve()
        known.crossed = yield from crossed_again(
            known.crossed, known.part, self.look, self.radius, self.rng
        )
        for i, chord in enumerate(known.chords):
            known.chords[i] = yield from chord.settled(known.crossed)
        known.solve()

    def _along(self, known: KnownNeurons, u: Array) -> Generator[Round, Answers, int | None]:
        """Search along a chord; return how many columns are new, None if it was read at once."""
        p, chords = known.point, known.asking
        root = np.sqrt((p @ u) ** 2 + (END * self.radius) ** 2 - p @ p)
        ends = np.array([p + (sign * root - p @ u) * u for sign in (-1.0, 1.0)])
        shown = yield from self._ask(known, ends)
        size = float(np.max(np.linalg.norm(shown.left, axis=1)))
        if size <= CLEAR * shown.noise:
            return 0
        part, hidden = known.part, known.columns
        chord = yield from chords.along(u, p, part, hidden, self.rng, size=size)
        count = len(chord.kinks.t)
        room = HIDDEN * len(known.value) - len(hidden)
        if count <= min(FEW * len(p), room):
            columns, error = yield from chords.columns(chord, part)
            return known.add_columns(columns, error)
        if len(hidden):
            chord = yield from chords.along(u, p, part, hidden[:0], self.rng, size=size)
        before = known.copied()
        known.add_chord((yield from read_chord(chord, part, len(part.found.rows))))
        yield from self._crossed(known)
        spoiled = known.noise > max(SPOILED * before.noise, ROUGH * chords.size)
        if spoiled and not known.doubted:
            known.back_to(before)
            known.doubted = True
        return None

    def _until_quiet(self, known: KnownNeurons) -> Generator[Round, Answers, int]:
        """Ask tokens until they show nothing that is not known; return how many did."""
        while True:
            quiet = yield from self._hidden_columns(known)
            if not len(known.columns):
                return quiet
            yield from self._hidden_rows(known)

    def _hidden_columns(self, known: KnownNeurons) -> Generator[Round, Answers, int]:
        """Find the columns of all hidden neurons."""
        quiet, idle = 0, 0
        wanted = max(QUIET, int(QUIET_SHARE * len(known.part.found.rows)))
        while quiet < wanted:
            t = END * self.radius * self._units(min(BATCH, wanted - quiet))
            others = (yield from self._ask(known, t)).values().others
            if not np.any(others):
                quiet += len(t)
                continue
            quiet = 0
            u = t[int(np.argmax(others))] - known.point
            new = yield from self._along(known, u / np.linalg.norm(u))
            idle = idle + 1 if new == 0 else 0
            if idle > IDLE:
                raise Reason.TOKENS_SHOW_OTHER_NEURONS.error()
        return quiet

    def _hidden_rows(self, known: KnownNeurons) -> Generator[Round, Answers, None]:
        """Ask until the rows of all hidden neurons are told."""
        for _ in range(ROWS * (1 + len(known.columns))):
            found, told = known.shown().told()
            left = np.setdiff1d(np.arange(len(known.columns)), told)
            if not len(left):
                known.add_hidden(found)
                yield from self._crossed(known)
                return
            yield from self._around(known, left)
        raise Reason.NEURONS_SHOW_AT_NO_TOKEN.error(neurons=len(left))

    def _around(self, known: KnownNeurons, left: Indices) -> Generator[Round, Answers, None]:
        """Ask around the token at which most of those that are left show."""
        yield from self._ask(known, known.shown().towards(left, self.rng), "candidates")
        token, lacking = known.shown().widest(left)
        most = AROUND * self.radius
        token = token * min(1.0, most / float(np.linalg.norm(token)))
        yield from self._ask(known, self._beside(token, lacking), "rows")

    def _strengthened(self, known: KnownNeurons) -> Generator[Round, Answers, None]:
        """Ask where neurons are active that are known less well than others."""
        for _ in range(STRENGTHENED):
            weak = known.strengthen()
            if not len(weak):
                return
            length = LONG * self.radius
            token = where_active(known.part.found.taken(weak), length)
            yield from self._ask(known, self._beside(token, len(token)), "rows")
        known.strengthen()

    def _beside(self, token: Array, count: int) -> Array:
        """Return a token and others around it, hardly longer."""
        Q = np.linalg.qr(self.rng.standard_normal((len(token), len(token))))[0].T
        Q *= np.where(Q @ token > 0, -1.0, 1.0)[:, None]
        step = APART * self.radius
        return np.vstack([token[None], token + step * Q[:count]])
