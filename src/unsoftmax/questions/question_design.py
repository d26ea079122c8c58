"""What is asked of every target that is said to serve a claim, in two rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.probes import Array
from unsoftmax.questions.answer_errors import (
    AnswerErrors,
    AnswerErrorTuning,
    Defect,
    Seen,
    measured,
)
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.claim_probes import (
    ClaimProbeTuning,
    Identities,
    additive,
    beside,
    in_other_words,
    random_sequences,
    straight,
)


@dataclass(frozen=True, slots=True)
class Design:
    """The questions that are asked of every target, and which of them say the same."""

    random: list[Array]
    again: int
    """So many of the random sequences are asked twice."""
    words: list[Array]
    """Wordings of the first random sequences, in turn."""
    reworded: int
    """Of how many."""
    within: list[Identities]
    """Single tokens whose answers satisfy identities."""
    beside: list[Array]
    """Single tokens at neurons that nothing else meets."""

    @classmethod
    def of(cls, claim: Claim, seed: int, tuning: ClaimProbeTuning) -> Design:
        """Draw them."""
        rng = np.random.default_rng(seed)
        random = random_sequences(claim, rng, tuning)
        if not claim.attends:  # the last are asked again: an answer of 0 shows no noise
            random = [random[k] for k in np.argsort(_shares(claim, random), kind="stable")]
        reworded = tuning.words if claim.attends and not claim.ordered else 0
        words = in_other_words(random[:reworded])
        if claim.affine:
            within = [additive(claim, random, rng, tuning)]
        else:
            within = []
            for share in (1 / 3, 2 / 3):
                asked = [*random, *(X for some in within for X in some.sequences)]
                within.append(straight(claim, asked, rng, share, tuning))
        design = cls(random, tuning.again, words, reworded, within, [])
        room = tuning.most - len(design.first) - len(design.second)
        more = beside(claim, design.first, room, rng, tuning)
        return replace(design, beside=more)

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.random[0].shape[1])

    @property
    def first(self) -> list[Array]:
        """Random sequences, then single tokens."""
        return [*self.random, *(X for some in self.within for X in some.sequences), *self.beside]

    @property
    def second(self) -> list[Array]:
        """What is asked again, and in other words."""
        return [*self.random[-self.again :], *self.words]

    def unmet(self, claim: Claim, bounds: Array) -> str:
        """Say how many neurons could be others without a miss beyond ``bounds``; "" if none."""
        if (bends := claim.bends) is None:
            return ""
        points = np.array([bends.given(X[None])[0] for X in self.first])
        off, on = (int(np.sum(some)) for some in np.split(bends.sides.hidden(points, bounds), 2))
        said = [
            f"{count} of {bends.sides.neurons} neurons are {where} at all sequences that were "
            f"asked, or hardly {other}: a change that shows only where they are {other} is not "
            "seen."
            for count, where, other in ((off, "off", "on"), (on, "on", "off"))
            if count
        ]
        return " ".join([*said, "Another seed asks others."] if said else [])

    def errors(
        self, one: Seen, two: Seen, tuning: AnswerErrorTuning, sharp: bool = False
    ) -> AnswerErrors:
        """Measure what answers may be off by; ``sharp``, without what a wrong claim may add."""
        defects, start, steps = [], len(self.random), []
        nearly: list[Defect] = []
        for some in self.within:
            stop = start + len(some.sequences)
            steps += [start + k for k in some.steps]
            within = one[start:stop]
            defects += [Defect.of(row, within, some.curved) for row in some.coefficients]
            nearly += [Defect.of(row, within, curved=True) for row in some.nearly if not sharp]
            start = stop
        for n in range(len(self.words)):
            both = one[[n % self.reworded]].beside(two[[self.again + n]])
            defects.append(Defect.of((1, -1), both))
        generic, last = one[: len(self.random)], len(self.random) - self.again
        twice = generic[last:], two[: self.again]
        found = measured(one.y, generic, twice, defects, tuning, nearly)
        return found.with_operands(one[steps], self.dim) if steps else found


def _shares(claim: Claim, tokens: list[Array]) -> Array:
    """Return how large answers to single tokens are beside their terms, (B,)."""
    at = claim.at(np.array(tokens))
    sizes = at.roundings.reshape(len(tokens), -1)
    answers = np.abs(at.predicted).reshape(len(tokens), -1)
    return np.asarray(np.max(answers / np.where(sizes > 0, sizes, 1.0), axis=1))
