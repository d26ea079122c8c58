"""Every head's map M_h, from saturated queries: what to ask, how many, and whether to believe it.

[b_h + a_j; b_h] with a_j = a + η‖a‖δ_j, δ_j orthonormal, the same for all heads: J − 1 offsets with
J = ⌈rank M/H⌉ + 4, for all heads but the one whose margin is smallest (`value_answers`). A range
that fills its vectors gets twice as many. Where another head's gate flipped its M_g a is in the
answer, or the vector is the only one with its direction: that one is asked again with an eighth of
the step. Random saturated queries then are sums of some M_h a, or all is asked again with half the
step. Where the ranges are dependent, or nearly so beside the answers' noise, all d offsets are.

Where answers are known up to a factor all heads are asked, and read by their sum. That sum does not
notice a gate that one head loses and another gains; but such an answer alone has a direction
outside of both ranges. Ranks are told by what drawn errors do. Where the values fill all dimensions
their ranges lose one together behind a LayerNorm, and V_h = V0_h + ν_h T for one unknown T. Then
τ_h = T A p_h are unknowns beside the weights.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.attention_layer import head_search
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.search_limits import PLAIN, Pilots
from unsoftmax.learners.attention_layer.value_answers import (
    GateAnswers,
    LayerMap,
    MapAnswers,
    OffsetAnswers,
    ValueAnswers,
    leading,
)
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise, with_errors
from unsoftmax.probes import Array, Flags
from unsoftmax.refusals import Reason

# Singular values of a range above so many times what drawn errors make are none of errors: these
# are about a tenth of those drawn.
_RANK = 3.0
# Directions that miss the sum of all maps by more, in the median, are of more heads than were
# found; those that miss it by so many times what others do are of other gates.
_MISSED, _APART = 1e-2, 1e3
# Ranges depend on each other where a singular value of all together is below so many times their
# error and below this.
_OVERLAP, _MOST_OVERLAP = 1e4, 1e-3
# Where fewer than 1/4 of the keys can be told apart that complete values would allow, every M_h
# is read as a whole instead.
_DENSE = 4

# Longest step between offsets that keep gates as they are, relative to the offset.
_SPREAD = 0.5
# Largest error of maps, by the worst case of the ranges' errors and their condition, that is
# accepted; beyond it every map is read in all directions. Measured errors are 1e-3 of it.
_INDEPENDENT = 1.0
# A vector whose leverage on its head's range is this near to 1 has a direction that no other has:
# another head's gate flipped there. By chance one of 2,000 is as near where there is one vector
# more than the range has dimensions, and none where there are two more.
_ALONE = 1e-8
# Where more of the offsets flip a gate, the range just fills its vectors.
_MOST_FLIPPED = 0.25
# Offsets at which a gate flipped are asked again at this share of their step.
_NEARER = 0.125
# How many times the noise saturated queries may be missed by, times the condition of the ranges.
_CHECKED_TO = 300.0


@dataclass(frozen=True, slots=True)
class MapReading:
    """What maps are read with."""

    single: MapAnswers
    layer: LayerMap
    noise: AnswerNoise
    gates: GateAnswers
    opening: head_search.OpeningTokens
    head_dim: int | None
    whole: bool
    """Whether every map is read in all directions in any case."""
    rng: np.random.Generator
    pilots: Pilots = PLAIN
    shared: bool = False
    """Whether groups of heads may share their values."""
    spare: int = 4
    """Offsets beyond the mean rank of the heads: their singular values show the rank."""

    def run(self) -> Asking[ValueAnswers]:
        """Ask offsets until the maps explain random saturated queries."""
        margins = self.opening.margins
        if self._left_out() is not None:
            margins = np.sort(margins)[1:]
        step = float(np.min(margins / self.pilots.deviations, initial=_SPREAD))
        for _ in range(limits.TRIES):
            found = yield from self._read(step)
            if (yield from self._explained(found)):
                return found
            step /= 2
        raise Reason.NO_SUMS_OF_MAPS.error()

    def _read(self, step: float) -> Asking[ValueAnswers]:
        """Ask offsets a step from the base until every range is known."""
        d, H = self.layer.M.shape[1], len(self.opening.b)
        total = int(np.linalg.matrix_rank(self.layer.heads, tol=self._map_noise(1.0)))
        counts = self._counts(total, H)
        directions = np.zeros((d, 0))
        offsets = self._none()
        for _ in range(limits.OFFSET_ROUNDS):
            count = d if self.whole else min(next(counts), d)
            fresh = self.rng.standard_normal((d, count - len(offsets.steps)))
            directions = np.linalg.qr(np.hstack([directions, fresh]))[0]
            new = directions[:, len(offsets.steps) :].T
            offsets = yield from self._asked(offsets, step * np.linalg.norm(offsets.base) * new)
            answers = yield from self._unflipped(self._ranked(offsets, step), step)
            offsets = answers.offsets
            if count == d:
                break
            if max(answers.ranks) <= count:
                if (divided := self._divided(answers, step)) is not None:
                    return divided
                counts = itertools.repeat(d)
                if self.shared and count < 2 * max(answers.ranks):
                    # as many offsets as ranks tell thin directions of a range badly
                    counts = itertools.chain([2 * count], counts)
        return replace(answers, whole=True)

    def _counts(self, total: int, heads: int) -> Iterator[int]:
        """How many offsets to ask in turn: as many as ranks there may be, then twice as many.

        ``total`` is the rank of the sum of all maps. Where heads share their values it is that of
        the groups, of which there are as many as divide the number of heads.
        """
        count = self.head_dim or -(-total // heads) + self.spare - 1
        if self.shared and self.head_dim is None:
            whole = [G for G in range(heads, 0, -1) if not heads % G and not total % G]
            yield from (total // G for G in whole)
            count = 2 * total
        while True:
            yield count
            count *= 2

    def _none(self) -> OffsetAnswers:
        opening, left_out = self.opening, self._left_out()
        H, d = opening.b.shape
        asked = H if left_out is None else H - 1
        share, y = np.ones((asked, 0)), np.zeros((asked, 0, self.layer.numbers))
        return OffsetAnswers(opening.a, np.zeros((0, d)), share, opening.b, left_out, y)

    def _left_out(self) -> int | None:
        """Return the head of the smallest margin, where what is asked of others tells of it."""
        return None if self.layer.up_to_factor else int(np.argmin(self.opening.margins))

    def _asked(self, offsets: OffsetAnswers, steps: Array) -> Asking[OffsetAnswers]:
        """Ask more offsets; steps keep their directions when they are shortened."""
        base, b = offsets.base, offsets.b[offsets.asked]
        coarser = round(-np.log2(_NEARER) * limits.FLIP_ROUNDS)
        _, steps = on_one_grid(base, steps, spare=4 + coarser)
        if not np.all(np.any(steps, axis=1)):
            raise Reason.OPENING_TOKENS_TOO_CLOSE.error()
        y = np.zeros((0, len(steps), offsets.y.shape[2]))
        if len(b):
            y = yield from head_search.asked_beside(base + steps, b, "maps")
        return replace(
            offsets,
            steps=np.vstack([offsets.steps, steps]),
            share=np.hstack([offsets.share, np.ones((len(b), len(steps)))]),
            y=np.concatenate([offsets.y, y], axis=1),
        )

    def _ranked(self, offsets: OffsetAnswers, step: float) -> ValueAnswers:
        """Count the singular values of each head's range that are above the errors."""
        answers = ValueAnswers(self.single, self.gates, offsets, (), self.whole)
        noise = self._map_noise(step)
        ranks = [
            max(1, int(np.count_nonzero(np.linalg.svd(span, compute_uv=False) > noise)))
            for span in answers.spans()
        ]
        return replace(answers, ranks=tuple(ranks))

    def _unflipped(self, answers: ValueAnswers, step: float) -> Asking[ValueAnswers]:
        """Ask again with shorter steps where another gate seems to have flipped."""
        for _ in range(limits.FLIP_ROUNDS):
            offsets = answers.offsets
            shortest = _NEARER**limits.FLIP_ROUNDS
            flipped = self._flipped(answers) | self._alone(answers)
            if self.layer.up_to_factor:
                # an answer is read beside all others to its offset
                flipped = flipped | flipped.any(axis=0)
            place = np.nonzero(flipped & (offsets.share > shortest))
            if not len(place[0]):
                break
            share, y = offsets.share.copy(), offsets.y.copy()
            share[place] *= _NEARER
            a = offsets.base + share[place][:, None] * offsets.steps[place[1]]
            b = offsets.b[offsets.asked][place[0]]
            y[place] = yield from head_search.asked_in_pairs(a, b, "maps, flips", "again")
            answers = self._ranked(replace(offsets, share=share, y=y), step)
        return answers

    def _flipped(self, answers: ValueAnswers) -> Flags:
        """Tell where answers have another head's M_g a in them, (H − 1, J)."""
        vectors = answers.vectors()
        beside = answers.offsets.beside(self.layer, vectors)
        flat = beside.reshape(-1, len(self.layer.c))
        flips = np.rint(np.linalg.lstsq(vectors.T, flat.T, rcond=None)[0].T)
        without = np.linalg.norm(flat - flips @ vectors, axis=1)
        found = flips.any(axis=1) & (without < np.linalg.norm(flat, axis=1) / 2)
        return np.asarray(found.reshape(beside.shape[:2]))

    def _alone(self, answers: ValueAnswers) -> Flags:
        """Tell which vectors alone have some direction of their head's range, (H − 1, J).

        What another head adds lies outside the range of all others: the vector's leverage is 1.
        """
        found = np.zeros(answers.offsets.share.shape, dtype=bool)
        spans = answers.spans()
        for k, h in enumerate(answers.offsets.asked):
            rank = answers.ranks[h]
            if rank < len(spans[h]):
                left = np.linalg.svd(spans[h], full_matrices=False)[0][1:, :rank]
                found[k] = 1 - np.sum(left**2, axis=1) < _ALONE
        return np.asarray(found & (found.mean(axis=1, keepdims=True) <= _MOST_FLIPPED))

    def _map_noise(self, step: float) -> float:
        """Return what errors may make of a singular value of maps, read with such a step."""
        share = max(self.noise.relative * limits.RANK_NOISE, limits.RANK_SHARE)
        return share * self._size() / step

    def _size(self) -> float:
        """Return how large maps are: where those of heads cancel their sum does not say it."""
        each = np.linalg.norm(self.gates.vectors(self.layer), axis=1) / np.linalg.norm(self.gates.a)
        return float(max(np.linalg.norm(self.layer.heads, 2), np.max(each, initial=0.0)))

    def _divided(self, answers: ValueAnswers, step: float) -> ValueAnswers | None:
        """Return the answers where their ranges divide the sum of all maps; None otherwise.

        They do where they are so independent, beside their errors, that maps are right.
        """
        if sum(answers.ranks) > len(self.layer.c):
            return None
        spans = answers.spans()
        U = [leading(s, r) for s, r in zip(spans, answers.ranks, strict=True)]
        least = float(np.linalg.svd(np.concatenate(U, axis=1), compute_uv=False)[-1])
        size = self._size()
        # an error of a vector turns the range by its share of the smallest vector
        thinnest = min(
            np.linalg.svd(s, compute_uv=False)[r - 1]
            for s, r in zip(spans, answers.ranks, strict=True)
        )
        turned = self.noise.relative * size / (step * thinnest)
        return answers if turned <= _INDEPENDENT * least else None

    def _explained(self, answers: ValueAnswers) -> Asking[bool]:
        """Ask random saturated queries, and compare them with sums of maps."""
        values = answers.solved()
        a, b = self._random(limits.CHECKED)
        y = yield from head_search.asked_in_pairs(a, b, "maps, tried", "pilot")
        z = self.layer.beyond(y, b)
        through = values.through(a)
        # what the maps may be off by, per length of a token
        U = np.concatenate(list(values.U), axis=1)
        condition = 1.0 if answers.whole else 1 / float(np.linalg.svd(U, compute_uv=False)[-1])
        size = self._size()
        errors = _CHECKED_TO * self.noise.relative * condition * size
        for k in range(limits.CHECKED):
            gates = np.linalg.lstsq(through[:, :, k], z[k], rcond=None)[0]
            missed = float(np.linalg.norm(through[:, :, k] @ np.rint(gates) - z[k]))
            if missed > errors * np.linalg.norm(a[k]) * np.sqrt(len(a[k])):
                return False
        return True

    def _random(self, count: int) -> tuple[Array, Array]:
        a, b = self.rng.standard_normal((2, count, self.layer.M.shape[1]))
        lengths = np.linalg.norm(self.gates.a), np.linalg.norm(self.gates.b, axis=1).mean()
        a, b = (
            length * x / np.linalg.norm(x, axis=1, keepdims=True)
            for length, x in zip(lengths, (a, b), strict=True)
        )
        rounded = on_one_grid(a, b)
        return rounded[0], rounded[1]


@dataclass(frozen=True, slots=True)
class DirectionMaps(MapReading):
    """Maps read from directions."""

    def _ranked(self, offsets: OffsetAnswers, step: float) -> ValueAnswers:
        """Count the singular values of each head's range that are above the errors."""
        answers = ValueAnswers(self.single, self.gates, offsets, (), self.whole)
        ranks = [
            np.count_nonzero(np.linalg.svd(span, compute_uv=False) > _RANK * np.linalg.norm(off, 2))
            for span, off in zip(answers.spans(), self._moved(answers), strict=True)
        ]
        return replace(answers, ranks=tuple(max(1, int(rank)) for rank in ranks))

    def _moved(self, answers: ValueAnswers) -> Array:
        """Return what drawn errors make of all ranges."""
        return with_errors(answers, self.noise, self.rng).spans() - answers.spans()

    def _flipped(self, answers: ValueAnswers) -> Flags:
        """Tell where answers have another head's M_g a in them, or do not add up to M a, (H, J)."""
        offsets, vectors = answers.offsets, answers.vectors()
        added = (offsets.beside(self.layer, vectors) + vectors[:, None]).sum(axis=0)
        a = offsets.base + offsets.share[:1].T * offsets.steps
        whole = a @ self.layer.heads.T
        missed = np.linalg.norm(added - whole, axis=1) / np.linalg.norm(whole, axis=1)
        if np.median(missed) > _MISSED:
            raise Reason.MAPS_DO_NOT_ADD_UP.error()
        apart = missed > _APART * (np.median(missed) + self.noise.relative)
        return np.asarray(super(DirectionMaps, self)._flipped(answers) | apart)

    def _divided(self, answers: ValueAnswers, step: float) -> ValueAnswers | None:
        """Return the answers with what their ranges leave open; None where that is too much."""
        spans = answers.spans()
        U = [leading(s, r) for s, r in zip(spans, answers.ranks, strict=True)]
        error = max(
            np.linalg.norm(off, 2) / np.linalg.svd(s, compute_uv=False)[r - 1]
            for off, s, r in zip(self._moved(answers), spans, answers.ranks, strict=True)
        )
        s = np.linalg.svd(np.concatenate(U, axis=1), compute_uv=False)
        rank = int(np.sum(s > min(_OVERLAP * error, _MOST_OVERLAP)))
        divided = replace(answers, open_in=sum(answers.ranks) - rank)
        full = min(len(self.layer.c) - 1, rank) // len(U)
        enough = _DENSE * divided.solved().keys_beside_factor() >= full
        return divided if enough else None

    def _explained(self, answers: ValueAnswers) -> Asking[bool]:
        """Return True: answers have been held against the sum of all maps, offset by offset."""
        return True
        yield []
