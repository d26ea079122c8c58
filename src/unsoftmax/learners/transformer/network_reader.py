"""Vectors W x + w read through a known network: one query per logit, two where it is anchored.

Order of the questions for k query tokens with r offsets each:

    pilots            the first two offsets of every token
    again             pilots of tokens whose logits are out of range, at other lengths
    rest              the other offsets, and g at every token (anchored: without the latter)
    again             logits that are too large, with shorter offsets
    anchors           g at the pooled tokens: of all logits when ``anchored``, else of those that
                      leave most of W open, up to one query in `SPARE`
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.learners.transformer.aimed_segments import (
    AimedSegments,
    TiltedOffsets,
    TokenLines,
    aim,
)
from unsoftmax.learners.transformer.learned_network import (
    AnsweredSegments,
    LearnedNetwork,
    logits_of,
    pooled_positions,
)
from unsoftmax.measure.reading import Reading
from unsoftmax.probes import Array, Design, Indices, LazyRows, Pairs, Purpose, Round, Singles
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# -- Answers along aimed segments: asking for them, and the logits read from them.
#
#     T([x+αa; x]) = g(x + σ(t)·αa),      t = αa·u,   u = W x + w        one query per logit
#     T([x]) = g(x)                                                     one per query token
#     T([x + σ̂αa]) = g(x + σ̂αa)                                         one per anchored logit


# Offsets of every query token that are asked first and may change its scale. One alone may be
# nearly orthogonal to W x + w, so that its logit says nothing of the scale.
PILOTS = 2
# A larger pilot logit shrinks the token: others may be larger still and saturate.
PILOT_HIGH = 4.0
# A smaller one lengthens it: an answer's error counts 1/t times relative to the logit t. And the
# same for anchored logits, whose errors are far smaller.
PILOT_LOW, PILOT_LOW_ANCHORED = 0.05, 0.005
# Where too large a pilot is brought to, and too small a one: less, for it may have been small by
# chance.
SHRUNK_TO, LENGTHENED_TO = 1.5, 0.5
# How much larger a token's logits are made at most in one step: 30 times token and offset.
MOST_LENGTHENED = 900.0
# Factor on an offset along which only the sign of the logit is seen.
SATURATED = 1 / 16
# A larger logit is asked again with a shorter offset: σ(6) has lost two and a half digits.
LARGEST = 6.0
# Where such a logit is brought to.
LOWERED_TO = 2.0
# Rounds of such questions: 16⁻⁴ times an offset is as far as they go.
REPEATS = 4
# Rounds at most: pilots, and again; the rest, and again; anchors.
MOST_ROUNDS = 4 + REPEATS
# Besides d² logits every so many-th query is spent in any case: on g at the query tokens, on what
# is asked again, and the rest on anchors for the logits that leave most of W open.
SPARE = 7


def most_again(rows: int) -> int:
    """Return how many of so many logits are asked again at most."""
    return 2 * PILOTS + rows // 2


@dataclass(frozen=True, slots=True)
class PooledTokens(LazyRows):
    """The tokens x + σ̂αa that two-token probes pool, made when they are asked for."""

    x: Array
    offsets: TiltedOffsets
    step: Array
    """σ̂α, (n,)."""

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.step), self.x.shape[1]

    def pick(self, index: Indices) -> PooledTokens:  # noqa: D102
        return PooledTokens(self.x, self.offsets.pick(index), self.step[index])

    def design(self) -> Design:  # noqa: D102
        return {"x": self.x, **self.offsets.design(), "step": self.step}

    def __getitem__(self, index: Indices) -> Array:
        return self.x[self.offsets.token[index]] + self.step[index, None] * self.offsets[index]


@dataclass(slots=True)
class SegmentAnswers:
    """Answers along segments, NaN where not asked, and what they say."""

    learned: LearnedNetwork
    aimed: AimedSegments
    phase: str
    y: Array = field(init=False)
    """Answers, (k·r,)."""
    at_start: Array = field(init=False)
    """``g(x) − ĝ(x)`` at the query tokens, 0 where not asked, (k,)."""
    anchor: Array = field(init=False)
    """σ̂ of the anchors, (k·r,)."""
    at_anchor: Array = field(init=False)
    """``g − ĝ`` at the anchors, (k·r,)."""
    again: int = field(init=False, default=0)
    """Queries that were asked again."""

    def __post_init__(self) -> None:
        self.y, self.anchor, self.at_anchor = np.full((3, len(self.aimed.alpha)), np.nan)
        self.at_start = np.zeros(len(self.aimed.x))

    @property
    def every(self) -> Indices:
        """All rows."""
        return np.arange(len(self.y))

    @property
    def pilots(self) -> Indices:
        """The first offsets of every token."""
        return self.aimed.rows(np.arange(len(self.aimed.x)), slice(0, PILOTS))

    def ask(self, rows: Indices, purpose: Purpose = "data") -> Generator[Round, Answers, None]:
        """Ask along some segments."""
        if not len(rows):
            return
        [self.y[rows]] = yield [self._pairs(rows, purpose)]
        self.again += len(rows) if purpose == "again" else 0

    def ask_with_tokens(self, rows: Indices) -> Generator[Round, Answers, None]:
        """Ask along some segments, and every query token by itself."""
        alone = Singles(self.aimed.x, phase=f"{self.phase}, g at its tokens", purpose="data")
        parts = [self._pairs(rows, "data")] if len(rows) else []
        [*y, g] = yield [*parts, alone]
        if len(rows):
            [self.y[rows]] = y
        self.at_start = g - self.learned.network(self.aimed.x)

    def ask_anchors(self, rows: Indices) -> Generator[Round, Answers, None]:
        """Ask g where the answers say that the pooled tokens of some rows lie."""
        if not len(rows):
            return
        self.anchor[rows] = np.clip(self.positions(rows)[0], 0.0, 1.0)
        step = self.anchor[rows] * self.aimed.alpha[rows]
        pooled = PooledTokens(self.aimed.x, self.aimed.offsets.pick(rows), step)
        [g] = yield [Singles(pooled, phase=f"{self.phase}, anchors", purpose="data")]
        for part in self._chunks(len(g)):
            self.at_anchor[rows[part]] = g[part] - self.learned.network(pooled[part])

    def positions(self, rows: Indices) -> tuple[Array, Array]:
        """Return σ̂ along some segments and bounds on its error."""
        sigma, bound = np.empty((2, len(rows)))
        for part in self._chunks(len(rows)):
            sigma[part], bound[part] = pooled_positions(self.learned, self._answered(rows[part]))
        return sigma, bound

    def logits(self, rows: Indices) -> Reading:
        """Return the logits of some rows, ±inf where saturated, and bounds on their errors."""
        return logits_of(*self.positions(rows))

    def least_determined(self, count: int) -> Indices:
        """Return the rows whose logits leave most of W open, in rising order."""
        error = self.logits(self.every).error
        length = np.abs(self.aimed.beta)[self.aimed.offsets.token]
        share = error / (self.aimed.alpha * np.where(length > 0, length, 1.0))
        return np.sort(np.argsort(-share, kind="stable")[:count])

    def vectors(self) -> Array:
        """Return Qᵀu for all query tokens (k, r).

        Raises
        ------
        NotIdentifiable
            A logit is saturated.
        """
        t = self.logits(self.every).value
        if lost := int(np.count_nonzero(~np.isfinite(t))):
            raise Reason.LOGITS_OUT_OF_REACH.error(
                {"network": self.learned.network},
                lost=lost,
                asked=len(self.y),
                cause="as far as they tell attention is on one token alone at every scale tried, "
                "as with hard attention or logits that are very far apart",
                known="The network",
            )
        return self.aimed.offsets.solve(t / self.aimed.alpha)

    def alone(self) -> tuple[Array, Array]:
        """Return query and pooled tokens (n, d), and g − ĝ where g was asked there by itself.

        NaN where not, (n,).
        """
        anchored = np.flatnonzero(np.isfinite(self.at_anchor))
        x, a = self.aimed.vectors(anchored)
        points = np.concatenate([self.aimed.x, x + self.anchor[anchored, None] * a])
        asked = np.where(self.at_start != 0, self.at_start, np.nan)
        return points, np.append(asked, self.at_anchor[anchored])

    def drawn(self, learned: LearnedNetwork, rng: np.random.Generator) -> SegmentAnswers:
        """Return the same answers with errors drawn as large as theirs may be, of another ĝ."""
        x, a = self.aimed.vectors(self.every)
        pooled = x + np.clip(np.nan_to_num(self.positions(self.every)[0]), 0, 1)[:, None] * a
        at = x + np.nan_to_num(self.anchor)[:, None] * a

        def noise(x: Array) -> Array:
            size = self.learned.rounding(x, self.learned.network(x))
            return np.asarray(size * rng.standard_normal(len(x)))

        def away(x: Array) -> Array:
            return np.asarray(self.learned.network(x) - learned.network(x))

        start = self.aimed.x
        other = replace(self, learned=learned)
        other.y, other.anchor = self.y + noise(pooled), self.anchor
        moved = self.at_start + away(start) + noise(start)
        other.at_start = np.where(self.at_start != 0, moved, 0.0)
        other.at_anchor = self.at_anchor + away(at) + noise(at)
        return other

    def _answered(self, rows: Indices) -> AnsweredSegments:
        x, a = self.aimed.vectors(rows)
        at_start = self.at_start[self.aimed.offsets.token[rows]]
        return AnsweredSegments(
            x, a, self.y[rows], at_start, self.anchor[rows], self.at_anchor[rows]
        )

    def _pairs(self, rows: Indices, purpose: Purpose) -> Pairs:
        name = f"{self.phase}, again" if purpose == "again" else self.phase
        return Pairs(
            self.aimed.offsets.pick(rows),
            self.aimed.x,
            np.arange(len(rows)),
            self.aimed.offsets.token[rows],
            self.aimed.alpha[rows],
            np.ones(len(rows)),
            phase=name,
            purpose=purpose,
        )

    def _chunks(self, count: int) -> Iterator[Indices]:
        """Divide rows so that what is cut at once stays within memory."""
        step = self.learned.rows_at_once
        for start in range(0, count, step):
            yield np.arange(start, min(start + step, count))


# -- in which order


@dataclass(frozen=True, slots=True)
class NetworkReader:
    """Reads logits through a learned network.

    Attributes
    ----------
    learned : LearnedNetwork
        The network.
    anchored : bool
        Ask g once more for every logit.
    """

    learned: LearnedNetwork
    anchored: bool = False

    def aim(self, lines: TokenLines, basis: Array | None) -> AimedSegments:
        """Choose segments; see `unsoftmax.learners.transformer.aimed_segments.aim`."""
        return self.refuse_flat(aim(self.learned, lines, basis))

    def refuse_flat(self, aimed: AimedSegments) -> AimedSegments:
        """Return the segments.

        Raises
        ------
        NotIdentifiable
            The network is flat, or turns, along some of them.
        """
        if not aimed.usable:
            raise Reason.NETWORK_IS_FLAT.error({"network": self.learned.network})
        return aimed

    def answers(self, aimed: AimedSegments, phase: str) -> SegmentAnswers:
        """Return room for the answers along segments, under the name of a phase."""
        return SegmentAnswers(self.learned, aimed, phase)

    def read(
        self, lines: TokenLines, basis: Array | None, bias: Array, phase: str
    ) -> Generator[Round, Answers, SegmentAnswers]:
        """Read Qᵀ(W x + w) for query tokens x = ±β b: r queries each, and one for g there.

        Parameters
        ----------
        lines : TokenLines
            Unit vectors b with lengths of tokens and of the longest offsets.
        basis : ndarray (d, r), optional
            Q; all of R^d where None.
        bias : ndarray (d,)
            w as far as it is known: the part of a logit that does not grow with x.
        phase : str
            Name of the progress shown.
        """
        answers = self.answers(self.aim(lines, basis), phase)
        yield from answers.ask(answers.pilots, "pilot")
        answers = yield from self._rescaled(answers, lines, bias)
        return (yield from self.complete(answers))

    def complete(self, answers: SegmentAnswers) -> Generator[Round, Answers, SegmentAnswers]:
        """Ask all that is left to ask after the pilots."""
        tokens = np.arange(len(answers.aimed.x))
        rest = answers.aimed.rows(tokens, slice(PILOTS, None))
        if self.anchored:  # anchors say more than g at the query tokens
            yield from answers.ask(rest)
        else:
            yield from answers.ask_with_tokens(rest)
        yield from self._shortened(answers)
        rows = answers.every
        if not self.anchored:
            left = len(rows) // SPARE - answers.again - len(tokens)
            rows = answers.least_determined(max(0, left))
        yield from answers.ask_anchors(rows)
        return answers

    def _shortened(self, answers: SegmentAnswers) -> Generator[Round, Answers, None]:
        """Ask again, with shorter offsets, where logits are too large."""
        rows = answers.every
        for _ in range(REPEATS):
            t = answers.logits(rows).value
            left = most_again(len(rows)) - answers.again
            beyond = rows[~(np.abs(t) <= LARGEST)][:left]
            if not len(beyond):
                break
            with np.errstate(divide="ignore"):
                factor = np.where(np.isfinite(t), LOWERED_TO / np.abs(t), SATURATED)
            shorter = answers.aimed.alpha.copy()
            shorter[beyond] *= factor[beyond]
            answers.aimed = replace(answers.aimed, alpha=shorter)
            yield from answers.ask(beyond, "again")

    def _rescaled(
        self, answers: SegmentAnswers, lines: TokenLines, bias: Array
    ) -> Generator[Round, Answers, SegmentAnswers]:
        """Change the lengths of tokens whose pilots are out of range, and ask these again."""
        factor = self._scale_factors(answers, bias)
        most = most_again(len(answers.y)) // PILOTS
        changed = np.flatnonzero(factor != 1)[:most]
        if not len(changed):
            return answers
        # logits grow as token times offset
        change = np.sqrt(factor[changed])
        other = self.aim(lines.pick(changed).scaled(change, change), answers.aimed.offsets.basis)
        aimed = answers.aimed.replaced(changed, other, np.arange(len(changed)))
        whole = self.answers(aimed, answers.phase)
        whole.y[answers.pilots] = answers.y[answers.pilots]
        again: Indices = aimed.rows(changed, slice(0, PILOTS))
        yield from whole.ask(again, "again")
        return whole

    def _scale_factors(self, answers: SegmentAnswers, bias: Array) -> Array:
        """Return what each token's logits should be multiplied by, (k,); 1 where in range."""
        aimed, pilots = answers.aimed, answers.pilots
        t = answers.logits(pilots).value
        from_bias = aimed.alpha[pilots] * (aimed.offsets[pilots] @ bias)
        low = PILOT_LOW_ANCHORED if self.anchored else PILOT_LOW
        with np.errstate(divide="ignore", invalid="ignore"):
            size = np.abs(t - from_bias).reshape(len(aimed.x), -1).max(axis=1)
            factor = np.where(size > PILOT_HIGH, SHRUNK_TO / size, 1.0)
            longer = np.minimum(LENGTHENED_TO / size, MOST_LENGTHENED)
        factor = np.where(size < low, longer, factor)
        return np.where(np.isfinite(size), factor, SATURATED**2)
