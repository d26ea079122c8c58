"""Were the frequencies of all heads changed together? Then others explain every answer.

Where the scores of several heads have changed, no head can be looked at alone as in
`rotary_search`: what the others answer is not known. Heads share their frequencies as a rule, so
one hypothesis has few unknowns, and answers that it leaves none of unexplained decide:

- θ′ = a·θˢ, two unknowns: another base is another s, positions divided by a number another a;
- θ′ = θ + δ with δ for each plane, the same in all heads: r/2 unknowns.

Tokens at distances of 1 and more are asked, so that a K or Q whose planes are turned is told apart:
it turns them alike at every distance. A change of anything else leaves answers unexplained, of
which there are more than unknowns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.models import Rotary
from unsoftmax.models.attention import softmax
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.questions.answer_errors import AnswerErrors, seen_at
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.claim_probes import ClaimProbeTuning, random_sequences


@dataclass(frozen=True, slots=True)
class SharedTurningTuning:
    """Knobs of the search."""

    tokens: tuple[int, ...] = (2, 3, 5, 2, 4, 8)
    """Lengths of sequences, in turn. Longer: planes turn so far that a search for their
    frequencies ends elsewhere."""
    spare: int = 12
    """Answers that are asked beside as many as there are unknowns."""
    least: int = 8
    """With fewer to spare nothing is asked, or no δ looked for. Fewer: another change may be
    explained by chance."""
    clear: float = 2.0
    """Half of the answers must miss the claim by so many of their bounds. Smaller: what answers
    hide leaves any change explained. Larger: a base 1 % off is named
    less often behind float32."""
    alike: float = 1e-3
    """Frequencies of heads are shared where they differ by no more: those of a recovery."""
    exponents: tuple[float, float] = (0.5, 2.0)
    """s, from a base of 100 to 10⁸ where the claim's is 10,000,"""
    factors: float = 32.0
    """and a, up to so much or its inverse."""
    steps: int = 61
    """Values of each that a search begins with the best of. Fewer: a search ends elsewhere."""
    rounded: float = 1e-13
    """Share of the largest miss that the rounding of a search may leave."""


def shared_frequencies_changed(
    claim: Claim,
    errors: AnswerErrors,
    room: int,
    rng: np.random.Generator,
    *,
    probes: ClaimProbeTuning,
    tuning: SharedTurningTuning,
) -> Generator[Round, Answers, bool]:
    """Tell whether other frequencies, shared by all heads, explain all of some more answers."""
    theta = claim.model.frequencies
    shared = theta.size and np.ptp(theta, axis=0).max() <= tuning.alike
    count = min(room, theta.shape[1] + tuning.spare)
    if not shared or count < 2 + tuning.least:
        return False
    asked = random_sequences(claim, rng, replace(probes, random=count, tokens=tuning.tokens))
    seen = yield from seen_at(claim, asked, "which tensor")
    bounds = errors.of(seen) + tuning.rounded * np.abs(seen.missed).max()
    if not np.median(np.abs(seen.missed) / bounds) > tuning.clear:
        return False
    turned = AnswersByTurning.of(claim, asked)

    def missed(other: Array) -> Array:
        return np.asarray((turned.at(other) - seen.y) / bounds)

    start = _of_family(theta, missed, tuning)
    if np.abs(missed(start)).max() <= 1:
        return True
    if count < theta.shape[1] + tuning.least:
        return False
    return any(np.abs(missed(_of_planes(one, missed))).max() <= 1 for one in (start, theta))


@dataclass(frozen=True, slots=True)
class AnswersByTurning:
    """What heads answer to some sequences, their frequencies being any."""

    stacks: tuple[tuple[list[int], Array, Array, Array], ...]
    """Of the sequences of one length: places, keys (H, B, N, r), queries (H, B, r) and what tokens
    are worth, (H, B, N)."""
    c: float

    @classmethod
    def of(cls, claim: Claim, asked: list[Array]) -> AnswersByTurning:
        """Take what does not depend on frequencies."""
        stacks = []
        for N in sorted({len(X) for X in asked}):
            places = [k for k, X in enumerate(asked) if len(X) == N]
            X = np.stack([asked[k] for k in places])
            keys = np.stack([head.scores.keys(X) for head in claim.model.heads])
            queries = np.stack([head.scores.queries(X[:, -1]) for head in claim.model.heads])
            stacks.append((places, keys, queries, np.einsum("bnd,hd->hbn", X, claim.model.v)))
        return cls(tuple(stacks), claim.model.c)

    def at(self, frequencies: Array) -> Array:
        """Return the answers by frequencies (H, r/2)."""
        found = np.full(sum(len(places) for places, *_ in self.stacks), self.c)
        rotaries = [Rotary(theta) for theta in frequencies]
        for places, keys, queries, values in self.stacks:
            distances = np.arange(keys.shape[2])[::-1].astype(float)
            for h, rotary in enumerate(rotaries):
                turned = rotary.turned(queries[h][:, None], distances)
                weights = softmax(np.einsum("bnr,bnr->bn", keys[h], turned))
                found[places] += np.einsum("bn,bn->b", weights, values[h])
        return found


def _of_family(
    theta: Array, missed: Callable[[Array], Array], tuning: SharedTurningTuning
) -> Array:
    """Return the a·θˢ that leaves least of the answers."""
    low, high = tuning.exponents
    far = np.log(tuning.factors)

    def other(x: Array) -> Array:
        # a frequency of 0 stays 0
        powers = np.sign(theta) * np.abs(theta) ** np.clip(x[1], low, high)
        return np.asarray(np.exp(np.clip(x[0], -far, far)) * powers)

    starts = [
        *((0.0, s) for s in np.linspace(low, high, tuning.steps)),
        *((x, 1.0) for x in np.linspace(-far, far, tuning.steps)),
    ]
    best = min(starts, key=lambda x: float(np.linalg.norm(missed(other(np.array(x))))))
    return other(_solved(lambda x: missed(other(x)), np.array(best)))


def _of_planes(theta: Array, missed: Callable[[Array], Array]) -> Array:
    """Return the θ + δ that leaves least of the answers."""
    return np.asarray(theta + _solved(lambda x: missed(theta + x), np.zeros(theta.shape[1])))


def _solved(missed: Callable[[Array], Array], start: Array) -> Array:
    # imported here: SciPy's optimisers take longer to load than all of this package
    from scipy.optimize import least_squares

    found = least_squares(
        missed, start, x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=None, max_nfev=80
    )
    return np.asarray(found.x)
