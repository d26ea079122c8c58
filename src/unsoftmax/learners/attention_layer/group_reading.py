"""All keys and queries of a layer with positions: which keys and tokens are asked.

1. ⌈rG/H⌉ query tokens and one more beside all blocks of keys; the first block once more with a
   zero token between, which says how planes turn; then all with m zero tokens between, m chosen so
   that no two planes turn alike.
2. Every other query token once, beside ⌈r/n⌉ blocks that show the queries of all groups.

Heads share keys and values in groups, which the row spaces of their values show. What is solved
from the answers is `group_scores`.

With biases of keys and queries tokens cannot be short and long: keys a_i and query tokens b have
lengths at which all weights are moderate. A query token's own score and what
zero tokens weigh are unknown, so a query of the first part has fewer keys than values have
dimensions; afterwards the own score follows from the queries that are asked for. Query tokens are
d + 1, the corners of a simplex, which show Q_h and b_q alike.

Where biases alone decide the weights, tokens are asked around a base token x₀ with K x₀ ≈ −b_k for
all groups at once, found from the first part: as if key biases were next to 0. Own scores and
weights of zero tokens are then moderate, and keys may be as short as b_q wants them.

*Queries*: T⌈(d + 2)/n⌉ twice and T⌈(r + 1)/n⌉ with T = ⌈rG/H⌉ + 1 query tokens and n = ⌊3r/4⌋ keys,
d + 1 − T for the other query tokens, 3 for each length tried; around a base token those of the
first part once more.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.group_scores import (
    GroupAnswers,
    GroupKeys,
    GroupScores,
    centred,
    columns_of_groups,
    common_angles,
)
from unsoftmax.learners.attention_layer.key_answers import KeyAnswers, decoding_growth
from unsoftmax.learners.attention_layer.score_reading import KeyAsking, Lengths
from unsoftmax.learners.attention_layer.value_answers import Groups, HeadMaps, LayerMap, shared_rows
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.settings import refuse_contrary
from unsoftmax.learners.single_head.distances import CROOKED, TOLD_APART, UNKNOWN, angles_of
from unsoftmax.measure.token_map import with_errors
from unsoftmax.models.arrays import TINY
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array
from unsoftmax.refusals import Reason
from unsoftmax.solve.key_blocks import KeyAims, chosen_keys
from unsoftmax.solve.turning_planes import TurningPlanes
from unsoftmax.validate.drawn_models import SAFETY


@dataclass(frozen=True, slots=True)
class GivenPositions:
    """The frequencies or their base, or neither: then they are found."""

    rotary: Rotary | None = None
    base: float | None = None

    def of(self, rank: int) -> Rotary | None:
        """Return the frequencies of keys of so many rows, None where nothing was said."""
        if self.base is None:
            return self.rotary
        if rank % 2:
            raise Reason.RANK_IS_ODD.error(rank=rank)
        return Rotary.of(self.base, rank)


def given_positions(
    rotary: bool | Rotary, base: float | None, head_dim: int | None
) -> GivenPositions | None:
    """Return what is said of positions, None where there are none.

    Raises
    ------
    ValueError, TypeError
        Settings are out of range, not of their type, or do not go together.
    """
    refuse_contrary(rotary, base, "rank", head_dim)
    if base is not None:
        return GivenPositions(base=float(base))
    given = rotary if isinstance(rotary, Rotary) else None
    return GivenPositions(given) if given is not None or rotary else None


# First query tokens beyond those that the rank of a group needs. Fewer: the rank is not seen;
# each costs two queries a block.
_SPARE_TOKENS = 1
# Spare singular values of so many times what may be noise are scores: values have a lower rank
# than keys and queries, and more query tokens are asked.
_SCORED = 30.0
# Where answers are coarse singular values above so many times the largest spare one count: drawn
# errors make noise of a trained layer's scores twenty times as large as it is.
_BESIDE_SPARE = 8.0
# Where answers are coarse planes that turn, in m tokens, by no more than so many times what drawn
# errors move planes as slow by are taken not to turn. Measured by the worst plane, half of the
# planes of a trained layer would stand still: scores off by a tenth.
_SLOW = 4.0
# Scores farther away may leave the span of those nearer by for this share: errors of float32
# answers make it a hundredth, queries of a lower rank than their planes a tenth and more.
_LEFT_SPAN = 0.05
# Planes whose angles differ by no more at one token are taken to turn alike, which does no harm:
# they need not be apart.
_ALIKE = 1e-8
# The shortest shift that keeps planes so much apart as the best one is taken.
_NEARLY = 0.9
# Planes whose turning differs from none by so many times the noise turn.
_UNREAD = 1e3


@dataclass(frozen=True, slots=True)
class GroupReading(KeyAsking):
    """What keys and queries are read with."""

    groups: Groups = field(kw_only=True)
    given: GivenPositions = field(kw_only=True)

    lift: ClassVar[int] = 0
    """How many numbers more a token has with biases, (x, 1)."""

    def run(self) -> Asking[GroupAnswers]:
        """Ask all parts."""
        d, n = self.layer.M.shape[1], self.keys
        aims = KeyAims(self._frames(), [np.eye(d)])
        units = chosen_keys(aims, -(-(d + 2 * self.lift) // n), n, self.rng)
        directions = self._directions(d)
        reading, lengths, answers = yield from self._begun(units, directions)
        between = reading._shift(answers)
        far = reading.grid(answers.first.keys, answers.first.tokens, between)
        answers = replace(answers, far=(yield from reading.asked(far, "turned farther")))
        seen = answers.scores(self.layer, self.values)
        answers = reading._turning(answers, seen)
        rest = directions[len(answers.first.tokens) :]
        keys = reading._aimed(answers, seen) if len(rest) else np.zeros((0, n, d))
        further = reading._paired(answers, seen, *self.tokens(keys, rest, lengths))
        return replace(answers, further=(yield from reading.asked(further, "queries")))

    def _directions(self, d: int) -> Array:
        """Choose query tokens that show Q_h, of norm 1."""
        return np.linalg.qr(self.rng.standard_normal((d, d)))[0]

    def _begun(self, units: Array, directions: Array) -> Asking[tuple[Self, Lengths, GroupAnswers]]:
        """Ask the first query tokens at lengths at which logits are moderate."""
        lengths = yield from self.piloted(units, directions)
        return self, lengths, (yield from self._first(units, directions, lengths))

    def _paired(
        self, answers: GroupAnswers, seen: list[GroupScores], keys: Array, tokens: Array
    ) -> KeyAnswers:
        """Pair every other query token with blocks of keys."""
        return self.grid(keys, tokens)

    @property
    def _otherwise(self) -> str:
        """What else the target may be."""
        large = "biases are too large; "
        hidden = "; keys have biases, which exact answers show unless they are large"
        coarse = (
            " Or answers are too coarse for scores at a distance (errors of "
            f"{self.noise.relative:.1e}); polish=True asks more."
        )
        return (
            f"Possible reasons: {large * self.lift}something beside rotary positions depends on "
            "the distance (ALiBi, a learned bias, keys that decay) or on the number of tokens; the "
            "queries of all heads of a group together have a lower rank than its planes"
            f"{hidden * (1 - self.lift)}. No learner here recovers these with positions."
            f"{coarse * (self._coarse and not self.lift)}"
        )

    @property
    def _coarse(self) -> bool:
        """Whether answers are coarser than those of float64."""
        return self.noise.relative > limits.EXACT

    def _frames(self) -> list[Array]:
        """Return what weights are read through: the values of each group once."""
        frames = []
        for group in self.groups:
            rows = shared_rows(self.values, group)
            within = np.vstack([self.values.V[h] @ rows.T for h in group])
            frames.append(np.linalg.qr(within)[1] @ rows)
        return frames

    # -- the first query tokens

    def _first(self, units: Array, directions: Array, lengths: Lengths) -> Asking[GroupAnswers]:
        """Ask query tokens beside all blocks until every group's rank is below their number."""
        d, least = units.shape[2], min(map(len, self.groups))
        count = -(-max(self.values.ranks) // least) + _SPARE_TOKENS
        while True:
            count = min(count, d)
            keys, tokens = self.tokens(units, directions[:count], lengths)
            first = yield from self.asked(self.grid(keys, tokens), "keys")
            # beside all query tokens none is spare
            most = count if count == d else count - _SPARE_TOKENS
            ranks = self._ranks(first, most)
            if max(ranks) <= most * least:
                break
            count *= 2
        if len(set(ranks)) > 1 or not ranks[0]:
            raise Reason.GROUPS_OF_OTHER_RANKS.error(
                groups=len(self.groups), ranks=", ".join(map(str, ranks)), otherwise=self._otherwise
            )
        some = keys[: -(-(ranks[0] + self.lift) // self.keys)]
        near = yield from self.asked(self.grid(some, tokens, 1), "turned by one token")
        return GroupAnswers(groups=self.groups, rank=ranks[0], first=first, near=near, far=near)

    def _columns(self, answers: KeyAnswers, layer: LayerMap, values: HeadMaps) -> list[Array]:
        """Return every group's scores, whose rank is that of its queries."""
        columns = columns_of_groups(answers.scores(layer, values), self.groups)
        return [centred(x) for x in columns] if self.lift else columns

    def _ranks(self, first: KeyAnswers, most: int) -> tuple[int, ...]:
        """Count the singular values of every group's scores that are no errors."""
        parts = self._columns(first, self.layer, self.values)
        off = with_errors(first, self.noise, self.rng)
        other = self._columns(off, *self.redrawn())
        ranks = []
        for part, moved, group in zip(parts, other, self.groups, strict=True):
            singular = np.linalg.svd(part, compute_uv=False)
            noise = limits.SCORE_NOISE * float(np.linalg.norm(moved - part, 2))
            spare = singular[most * len(group) :]
            if len(spare) and noise < spare[0] <= _SCORED * noise:
                noise = limits.OVER_SPARE * float(spare[0])
            if len(spare) and self._coarse:
                noise = min(noise, _BESIDE_SPARE * float(spare[0]))
            ranks.append(int(np.count_nonzero(singular > noise)))
        return tuple(ranks)

    # -- how planes turn

    def _shift(self, answers: GroupAnswers) -> int:
        """Choose how many zero tokens to put between, so that planes are well apart."""
        steps = [one.near for one in answers.scores(self.layer, self.values)]
        angles = [np.asarray(np.angle(np.linalg.eigvals(step))) for step in steps]
        longest = limits.LONGEST_COARSE if self._coarse else limits.LONGEST
        shifts = np.arange(1, longest + 1, 2)
        apart = np.array([min(_apart(one, m) for one in angles) for m in shifts.tolist()])
        enough = apart >= _NEARLY * apart.max()
        return int(shifts[np.argmax(enough)])

    def _turning(self, answers: GroupAnswers, seen: list[GroupScores]) -> GroupAnswers:
        """Find the angles that all groups have, or compare them with those that were told."""
        self._refuse_dependent(answers, seen)
        moved, between = self._moved(answers, seen), answers.far.between
        unsure = self._unsure(moved, between)
        still = self._slow(seen, moved) if self._coarse else unsure * between
        answers = replace(answers, still=still)
        planes = answers.planes(seen)
        if self._coarse:  # errors may make the slowest planes of one group look still
            answers = replace(answers, turning=min(len(one.angles) for one in planes))
            planes = answers.planes(seen)
        alike = len({len(one.angles) for one in planes}) == 1
        apart = np.ptp([one.angles for one in planes], axis=0) if alike else np.inf
        if not np.all(apart <= TOLD_APART * unsure):
            raise Reason.GROUPS_TURN_DIFFERENTLY.error(otherwise=self._otherwise)
        off_circle = max(one.off_circle for one in planes)
        if off_circle > max(CROOKED, unsure * between):
            raise Reason.DISTANCE_CHANGES_NORMS.error(
                distance=between, changed=off_circle, otherwise=self._otherwise
            )
        every = TurningPlanes(planes[0].P, common_angles(planes), off_circle / between)
        told = self.given.of(answers.rank)
        angles = angles_of(every, told, unsure)
        answers = replace(answers, turning=len(planes[0].angles))
        return replace(answers, angles=None if told is None else angles)

    def _refuse_dependent(self, answers: GroupAnswers, seen: list[GroupScores]) -> None:
        """Refuse queries that do not span their planes: turned farther they leave their span."""
        tables = self._columns(answers.far, self.layer, self.values)
        for one, table in zip(seen, tables, strict=True):
            within = np.linalg.qr(one.Z)[0]
            left = float(np.linalg.norm(table - within @ (within.T @ table)))
            if left > _LEFT_SPAN * float(np.linalg.norm(table)):
                raise Reason.FARTHER_KEYS_LEAVE_SPAN.error(
                    rank=answers.rank, otherwise=self._otherwise
                )

    def _moved(self, answers: GroupAnswers, seen: list[GroupScores]) -> list[Array]:
        """Return by how much drawn errors move what planes turn by in m tokens, the slowest first.

        One array for each group; two entries a plane.
        """
        off = with_errors(answers, self.noise, self.rng).scores(*self.redrawn())
        pairs = zip(seen, off, strict=True)
        return [np.abs(x.long_angles - y.long_angles) for x, y in pairs]

    def _slow(self, seen: list[GroupScores], moved: list[Array]) -> float:
        """Return the largest angle in m tokens that errors of planes as slow may make of 0."""
        still = _UNREAD * self.noise.relative
        for one, by in zip(seen, moved, strict=True):
            hidden = one.long_angles <= _SLOW * np.maximum.accumulate(by)
            first = np.cumprod(hidden).astype(bool)
            still = max(still, float(np.max(one.long_angles[first], initial=0.0)))
        return still

    def _unsure(self, moved: list[Array], between: int) -> float:
        """Return by how much angles of planes may be off, per token."""
        largest = max(float(np.max(one, initial=0.0)) for one in moved)
        unsure = SAFETY * largest + _UNREAD * self.noise.relative
        if not unsure / between <= UNKNOWN:
            raise Reason.TURNING_UNKNOWN.error(
                {"c": self.layer.c, "M": self.layer.M},
                does=f"changes angles by {unsure:.1e} (errors of {self.noise.relative:.1e} of an "
                "answer)",
            )
        return unsure / between

    # -- the other query tokens

    def _aimed(self, answers: GroupAnswers, seen: list[GroupScores]) -> Array:
        """Choose as few blocks of keys as show the queries of all groups."""
        n, r = self.keys, answers.rank
        found, rotary = answers.keys(seen)
        aims = [_turned_back(one.K, rotary, n)[:, :, :r] for one in found]
        return chosen_keys(KeyAims(self._frames(), aims), -(-r // n), n, self.rng)


def _turned_back(K: Array, rotary: Rotary, n: int) -> Array:
    """Return (R(−Δ) K)ᵀ for Δ = n … 1, (n, d, rows), of one size."""
    back = rotary.turned(K.T[None], -np.arange(n, 0, -1)[:, None])
    return np.asarray(back * np.sqrt(n * K.shape[0]) / np.linalg.norm(back))


def _apart(angles: Array, shift: int) -> float:
    """Return how far the nearest two eigenvalues are apart after so many steps."""
    turned = np.exp(1j * shift * angles)
    far = np.abs(turned[:, None] - turned)
    # what turns alike at one token stays together: planes that do not turn, or turn alike
    once = np.exp(1j * angles)
    together = np.abs(once[:, None] - once) <= _ALIKE
    return float(np.min(far[~together], initial=2.0))


# Keys of a query of the first part, as a share of those that it could have at most. More: fewer
# queries, by a tenth, and weights that are read ten times worse.
_KEY_SHARE = 0.75
# Query tokens that lengths are found with.
_PILOTS = 3
# Standard deviation of the scores of one query's keys, of the head where it is largest. With half
# of it the signal fades and a few layers are read ten times worse; with twice as much some
# weights are so small that their errors show.
_SPREAD = 1.2
# So many times that may be the biases' own: keys so many times shorter tell, as they do where
# scores are hardly apart.
_MUCH, _CHANGED = 1.5, 4.0
# Biases that alone make scores differ by more decide the weights.
_ALONE = 1.3
# Tokens around which others are asked, each found from answers around the one before.
_BASES = 3
# Planes that turn less in one token are left out of that one, and directions of which keys show
# less than this share.
_ROUGH, _SHOWN = 1e-6, 0.03
# Sets of key blocks for further query tokens, which each of them takes the best of at one of these
# lengths: one system in a hundred is nearly singular by chance.
_SETS, _SCALES = 2, (1.0, -1.0, 0.5, -0.5)


@dataclass(frozen=True, slots=True)
class LiftedReading(GroupReading):
    """What keys and queries with biases are read with."""

    lift: ClassVar[int] = 1

    @staticmethod
    def _most_keys(layer: LayerMap, values: HeadMaps, noise: float, share: int) -> int:
        most = KeyAsking._most_keys(layer, values, noise, share)
        if most < 2:
            raise Reason.VALUES_TOO_FEW_FOR_BIASES.error({"c": layer.c, "M": layer.M})
        return max(1, int(_KEY_SHARE * most))

    def _directions(self, d: int) -> Array:
        """Choose the d + 1 corners of a regular simplex around 0, of length 1, randomly turned."""
        turned = np.linalg.qr(self.rng.standard_normal((d + 1, d + 1)))[0]
        # a basis of what is orthogonal to (1, …, 1)
        around = np.linalg.qr(np.column_stack([np.ones(d + 1), turned[:, :d]]))[0][:, 1:]
        return np.asarray(around / np.linalg.norm(around, axis=1, keepdims=True))

    def _begun(self, units: Array, directions: Array) -> Asking[tuple[Self, Lengths, GroupAnswers]]:
        """Ask the first query tokens, around a base token where biases alone decide weights."""
        around = replace(self, base=np.zeros(units.shape[2]))
        for left in reversed(range(1 + _BASES)):
            lengths, decided = yield from around._found_lengths(units, directions)
            answers = yield from around._first(units, directions, lengths)
            if not (decided and left):
                break
            around = replace(around, base=(yield from around._base(answers)))
        return around, lengths, answers

    # -- biases that alone decide the weights

    def _base(self, answers: GroupAnswers) -> Asking[Array]:
        """Return a token whose keys are about 0, by some keys asked farther away as well."""
        far = self.grid(answers.near.keys, answers.first.tokens, self._shift(answers))
        rough = replace(answers, far=(yield from self.asked(far, "base token")), still=_ROUGH)
        return rough.base_token(self.layer, self.values, _SHOWN)

    # -- further query tokens

    @property
    def _whole(self) -> int:
        """Keys of a query whose own score follows from its queries."""
        share = self.effort.share
        return KeyAsking._most_keys(self.layer, self.values, self.noise.relative, share)

    def _aimed(self, answers: GroupAnswers, seen: list[GroupScores]) -> Array:
        """Return blocks of keys that show queries of all groups, several sets of them."""
        whole = replace(self, keys=self._whole)
        sets = [super(LiftedReading, whole)._aimed(answers, seen) for _ in range(_SETS)]
        return np.concatenate(sets)

    def _paired(
        self, answers: GroupAnswers, seen: list[GroupScores], keys: Array, tokens: Array
    ) -> KeyAnswers:
        """Pair every query token with the blocks and the sign and length that show most of it.

        A square system whose rows have a row taken off may be singular, by chance.
        """
        blocks = -(-answers.rank // self._whole)
        sets = np.arange(len(keys)).reshape(-1, blocks)
        found, rotary = answers.keys(seen)
        options = [(k, s) for k in range(len(sets)) for s in _SCALES]
        growth = np.zeros((len(options), len(tokens)))
        for place, (k, s) in enumerate(options):
            asked = s * keys[sets[k]]
            for block in asked:
                decoding = decoding_growth(self.values, block, tokens)
                growth[place] = np.maximum(growth[place], decoding)
            growth[place] *= _rows_growth(found, rotary, asked, tokens, answers.rank)
        best = np.argmin(growth, axis=0)
        chosen = np.array([options[k][0] for k in best], dtype=np.intp)
        block = sets[chosen].ravel()
        scale = np.repeat([options[k][1] for k in best], blocks)
        token = np.repeat(np.arange(len(tokens)), blocks)
        nothing = np.zeros((len(block), len(self.layer.c)))
        return KeyAnswers(keys, tokens, block, token, scale, nothing, base=self.base)

    # -- lengths

    def _found_lengths(self, units: Array, corners: Array) -> Asking[tuple[Lengths, bool]]:
        """Find lengths at which weights are moderate; tell whether biases alone decide them."""
        wanted = _SPREAD
        for _ in range(limits.SCORE_PILOTS):
            spread = yield from self._spread(units, corners, self._lengths(wanted))
            if not np.isfinite(spread):
                wanted /= _CHANGED
            elif spread > _MUCH * _SPREAD:
                fewer = wanted / _CHANGED
                less = yield from self._spread(units, corners, self._lengths(fewer))
                # squares of what shrinks with keys, and of what does not
                shrinking = max(0.0, (spread**2 - less**2) / (1 - _CHANGED**-2))
                if spread**2 - shrinking > _ALONE**2:
                    return self._lengths(wanted), True
                return self._lengths(wanted * _SPREAD / np.sqrt(shrinking)), False
            else:
                longer = min(_SPREAD / spread, _CHANGED) if spread else _CHANGED
                wanted *= longer
                if longer < _CHANGED:
                    return self._lengths(wanted), False
        raise Reason.BIASES_DECIDE_WEIGHTS.error(otherwise=self._otherwise)

    def _spread(self, units: Array, corners: Array, lengths: Lengths) -> Asking[float]:
        """Return how much one query's scores differ, in the head where they do most."""
        few = self.tokens(units[:1], corners[:_PILOTS], lengths)
        asked = yield from self._answered(self.grid(*few), "pilot")
        if len(self._small(asked, limits.WEIGHT_NOISE * self.noise.relative)):
            return np.inf
        scores = asked.scores(self.layer, self.values)
        # a query token's own score is common to all keys, where there are several
        spread = np.std(scores, axis=2) if scores.shape[2] > 1 else np.abs(scores[..., 0])
        return float(spread.mean(axis=0).max())

    def _lengths(self, wanted: float) -> Lengths:
        """Return the length of keys L whose logits √(w²L² + (slope·L²)²) are so large.

        Query tokens are as long: shorter ones let the query bias hide Q b.
        """
        slope, bias = self.typical
        both = np.hypot(bias**2, 2 * slope * wanted)
        length = wanted * float(np.sqrt(2 / (bias**2 + both)))
        return Lengths(length, length)

    # -- asking

    def mended_part(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        """Refuse weights that are not positive: with shorter keys all scores would be others."""
        yield from ()
        if len(self._small(answers, 0.0)):
            raise Reason.WEIGHTS_BELOW_0_WITH_BIASES.error(otherwise=self._otherwise)
        return answers


def _rows_growth(
    found: list[GroupKeys], rotary: Rotary, keys: Array, tokens: Array, rank: int
) -> Array:
    """Return how much errors of scores grow in queries, the most of all groups, (T,)."""
    growth, n = np.zeros(len(tokens)), keys.shape[1]
    distances = np.tile(np.arange(n, 0, -1.0), len(keys))
    for one in found:
        for k, b in enumerate(tokens):
            rows = one.rows(keys.reshape(-1, keys.shape[2]), distances, rotary, b)[:, :rank]
            least = float(np.linalg.svd(rows, compute_uv=False)[-1])
            growth[k] = max(growth[k], 1 / max(least, TINY))
    return growth
