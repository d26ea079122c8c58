"""Vectors W x + w read through a known network: one query per logit, two where it is anchored.

Order of the questions for k query tokens with r offsets each:

    pilots            the first two offsets of every token
    again             pilots of tokens whose logits are out of range, at other lengths
    rest              the other offsets, and g at every token (anchored: without the latter)
    again             logits that are too large, with shorter offsets
    anchors           g at the pooled tokens: of all logits when ``anchored``, else of those that
                      leave most of W open, up to one query in `ThroughNetworkTuning.spare`
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.errors import NotIdentifiable
from unsoftmax.measure.through_network.aim import AimedSegments, TokenLines, aim
from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.measure.through_network.segment_answers import SegmentAnswers, ThroughNetworkTuning
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class NetworkReader:
    """Reads logits through a learned network.

    Attributes
    ----------
    learned : LearnedNetwork
        The network.
    anchored : bool
        Ask g once more for every logit.
    tuning : ThroughNetworkTuning
        What is asked, and asked again.
    """

    learned: LearnedNetwork
    anchored: bool = False
    tuning: ThroughNetworkTuning = field(default=ThroughNetworkTuning())

    def aim(self, lines: TokenLines, basis: Array | None) -> AimedSegments:
        """Choose segments; see `unsoftmax.measure.through_network.aim.aim`."""
        return self.refuse_flat(aim(self.learned, lines, basis, self.tuning.aim))

    def refuse_flat(self, aimed: AimedSegments) -> AimedSegments:
        """Return the segments.

        Raises
        ------
        NotIdentifiable
            The network is flat, or turns, along some of them.
        """
        if not aimed.usable(self.tuning.aim):
            raise NotIdentifiable(
                "The network is flat, or turns, along every segment tried from some query tokens: "
                "its answers do not tell where on them the pooled token is. The network is "
                "determined, W is not.",
                determined={"network": self.learned.network},
            )
        return aimed

    def answers(self, aimed: AimedSegments, phase: str) -> SegmentAnswers:
        """Return room for the answers along segments, under the name of a phase."""
        return SegmentAnswers(self.learned, aimed, phase, self.tuning)

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
        rest = answers.aimed.rows(tokens, slice(self.tuning.pilots, None))
        if self.anchored:  # anchors say more than g at the query tokens
            yield from answers.ask(rest)
        else:
            yield from answers.ask_with_tokens(rest)
        yield from self._shortened(answers)
        rows = answers.every
        if not self.anchored:
            left = len(rows) // self.tuning.spare - answers.again - len(tokens)
            rows = answers.least_determined(max(0, left))
        yield from answers.ask_anchors(rows)
        return answers

    def _shortened(self, answers: SegmentAnswers) -> Generator[Round, Answers, None]:
        """Ask again, with shorter offsets, where logits are too large."""
        rows, tuning = answers.every, self.tuning
        for _ in range(tuning.repeats):
            t = answers.logits(rows).value
            left = tuning.most_again(len(rows)) - answers.again
            beyond = rows[~(np.abs(t) <= tuning.largest)][:left]
            if not len(beyond):
                break
            with np.errstate(divide="ignore"):
                factor = np.where(np.isfinite(t), tuning.lowered_to / np.abs(t), tuning.saturated)
            shorter = answers.aimed.alpha.copy()
            shorter[beyond] *= factor[beyond]
            answers.aimed = replace(answers.aimed, alpha=shorter)
            yield from answers.ask(beyond, "again")

    def _rescaled(
        self, answers: SegmentAnswers, lines: TokenLines, bias: Array
    ) -> Generator[Round, Answers, SegmentAnswers]:
        """Change the lengths of tokens whose pilots are out of range, and ask these again."""
        factor = self._scale_factors(answers, bias)
        most = self.tuning.most_again(len(answers.y)) // self.tuning.pilots
        changed = np.flatnonzero(factor != 1)[:most]
        if not len(changed):
            return answers
        # logits grow as token times offset
        change = np.sqrt(factor[changed])
        other = self.aim(lines.pick(changed).scaled(change, change), answers.aimed.offsets.basis)
        aimed = answers.aimed.replaced(changed, other, np.arange(len(changed)))
        whole = self.answers(aimed, answers.phase)
        whole.y[answers.pilots] = answers.y[answers.pilots]
        again: Indices = aimed.rows(changed, slice(0, self.tuning.pilots))
        yield from whole.ask(again, "again")
        return whole

    def _scale_factors(self, answers: SegmentAnswers, bias: Array) -> Array:
        """Return what each token's logits should be multiplied by, (k,); 1 where in range."""
        aimed, pilots, tuning = answers.aimed, answers.pilots, self.tuning
        t = answers.logits(pilots).value
        from_bias = aimed.alpha[pilots] * (aimed.offsets[pilots] @ bias)
        low = tuning.pilot_low_anchored if self.anchored else tuning.pilot_low
        with np.errstate(divide="ignore", invalid="ignore"):
            size = np.abs(t - from_bias).reshape(len(aimed.x), -1).max(axis=1)
            factor = np.where(size > tuning.pilot_high, tuning.shrunk_to / size, 1.0)
            longer = np.minimum(tuning.lengthened_to / size, tuning.most_lengthened)
        factor = np.where(size < low, longer, factor)
        return np.where(np.isfinite(size), factor, tuning.saturated**2)
