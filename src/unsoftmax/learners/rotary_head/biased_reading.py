"""Ask a head with rotary positions and biases what `biased_answers` solves.

Where biases are, tokens cannot be as short as they are without: all have one length, found by a
few pilots, at which logits are moderate. Offsets see v by one sign and query tokens by the other,
so that the weight of every token is read well.

*Queries*: 2dr + 3r, and 3 for each length tried. Source: beyond Theorem 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.rotary_head.biased_answers import BiasedAnswers, Weighed
from unsoftmax.learners.rotary_head.rotary_reading import (
    PositionErrors,
    RotaryTuning,
    angles_of,
    unsure_of,
    unturned,
    whole_errors,
)
from unsoftmax.measure import offsets
from unsoftmax.measure.offsets import DENSE_GRID
from unsoftmax.measure.precision import KAPPA
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array, Beside, Sequences, Spaced
from unsoftmax.solve.skeleton import rank_by_gap
from unsoftmax.solve.turning_planes import TurningPlanes

LARGE = (
    "So it is with large biases: tokens that are short drown in them, long ones saturate the "
    "softmax, and no one length of tokens keeps all logits in between."
)


@dataclass(frozen=True, slots=True)
class BiasedTuning:
    """How a head with biases is asked."""

    pilots: int = 4
    """Queries for each length tried; the last of them has a zero token."""
    lengths: int = 8
    """Lengths tried at most."""
    lowered: int = 3
    """Octaves by which tokens are shortened where a pilot is saturated."""
    largest: float = 8.0
    """Larger logits count as saturated: among thousands some are five times as large as three."""
    wanted: float = 0.4
    """Root mean square of the pilots' logits. W is read within a factor of ten of its best from a
    quarter of this to four times as much; larger logits of a thousand lose digits."""
    above: float = 4.0
    """Where it is this many times more, tokens are made shorter."""
    below: float = 8.0
    """Where it is this many times less, tokens are made longer: a few pilots may be small by
    chance, and logits that are too large cost more than those that are too small."""
    dependent: float = 1e-12
    """Columns of which a combination is smaller than this share of the largest depend on each
    other, and the rank is below the one given,"""
    gap: float = 2.0**10
    """if the next larger singular value is so many times as large: beside biases in which W drowns
    several are small, whatever the rank is."""
    stretches: tuple[float, ...] = (1.0, 0.5, 2.0)
    """Offsets beside a further query token are so many times as long: of these the one at which
    its equations are conditioned best. At one length alone some token's are singular by chance."""


@dataclass(frozen=True, slots=True)
class BiasedReading:
    """A head as it was read, with all that bounds its errors."""

    model: RotaryHead
    values: Values
    """v̂, ĉ and the precision of the answers; replacing it replaces what bounds assume."""
    answers: BiasedAnswers
    tuning: RotaryTuning

    def position_errors(self) -> PositionErrors:
        """Bound the errors of all W(Δ) with biases, by perturbing the answers."""
        return _errors(self.answers, self.model, self.values, self.tuning)

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        return (*self.values.precision.why, *unturned(self.model))


def read_biased(
    values: Values,
    rank: int,
    told: Rotary | None,
    rng: np.random.Generator,
    tunings: tuple[RotaryTuning, BiasedTuning],
) -> Asking[BiasedReading]:
    """Read the head of this rank."""
    tuning, asking = tunings
    Z = offsets.balanced(values.v, rng, DENSE_GRID).made()
    T = -offsets.balanced(values.v, rng, DENSE_GRID).made()
    scale = yield from _pilots(Z, T, values, asking)
    answers = yield from _first_tokens(Z, scale * T[:rank], scale, values)
    values = values.told_by(answers.first.y.ravel())
    _refuse_dependent(answers, asking)
    basis = answers.basis
    direction = values.v / np.linalg.norm(values.v)
    within = offsets.balanced(basis.T @ direction, rng).made() @ basis.T + direction
    rows = np.round(within / DENSE_GRID) * DENSE_GRID
    spaced = yield from _asked(rows, answers.first.b, answers.first.alpha, 1, "W(2)")
    answers = replace(answers, spaced=spaced)
    _refuse_unread(spaced.logits(values.v, values.c, answers.fillers[0]), values)
    rest = np.vstack([scale * T[rank:], np.zeros((1, len(T)))])
    stretched = scale * _stretches(answers, rows, rest, scale, asking)
    other = yield from _asked(rows, rest, stretched, 0, "W, other tokens")
    _refuse_unread(other.logits(values.v, values.c), values)
    return _solved(replace(answers, other=other), values, told, tuning)


# -- asking


def _pilots(Z: Array, T: Array, values: Values, tuning: BiasedTuning) -> Asking[float]:
    """Find the length, a power of two, at which logits are moderate."""
    # logits of a random W of norm √d are s²/√d
    power = int(np.round(np.log2(tuning.wanted * np.sqrt(len(Z))) / 2))
    places, before = np.arange(tuning.pilots) % len(Z), np.inf
    for tried in count(1):
        scale = 2.0**power
        a, b = scale * Z[places], scale * T[places]
        a[-1] = 0.0
        [y] = yield [Sequences(np.stack([a, b], axis=1), phase="length of tokens", purpose="pilot")]
        each = [Weighed(a[k : k + 1], b[k : k + 1], np.ones(1), y[k : k + 1, None]) for k in places]
        t = np.array([one.logits(values.v, values.c)[0, 0] for one in each])
        if tried == tuning.lengths:
            return scale
        largest = float(np.max(np.where(np.isfinite(t), np.abs(t), np.inf)))
        if largest > tuning.largest:
            if largest > before / 2:  # biases alone make it so
                return scale * 2.0**tuning.lowered
            before, power = largest, power - tuning.lowered
            continue
        ratio = max(float(np.sqrt(np.mean(t**2))), 2.0**-40) / tuning.wanted
        if 1 / tuning.below <= ratio <= tuning.above:
            return scale
        # logits are quadratic in the length of tokens, or less
        octaves = np.log2(ratio) / 2
        power -= int(np.ceil(octaves))
    raise AssertionError


def _first_tokens(Z: Array, b: Array, scale: float, values: Values) -> Asking[BiasedAnswers]:
    """Ask all offsets with the first query tokens, and what zeros weigh beside these."""
    alpha = np.full(len(b), scale)
    one = Beside(np.zeros((1, len(Z))), b, alpha, np.ones(len(b)), phase="zeros", purpose="data")
    first = Beside(Z, b, alpha, np.ones(len(b)), phase="W(1), columns", purpose="data")
    y, at_one, at_two = yield [first, one, Spaced.of(one, 1)]
    read = Weighed(Z, b, alpha, first.table(y))
    answers = BiasedAnswers(read, at_one, at_two, values.v, values.c)
    gammas = np.array([[np.nan if x <= 0 else np.log(x) for x in of] for of in answers.fillers])
    _refuse_unread(
        np.concatenate([read.logits(values.v, values.c).ravel(), gammas.ravel()]), values
    )
    return answers


def _refuse_dependent(answers: BiasedAnswers, tuning: BiasedTuning) -> None:
    """Refuse a rank above that of the columns, where logits are read well enough to tell."""
    first = answers.first
    if np.max(np.abs(first.logits(answers.v, answers.c))) > tuning.largest:
        return
    singular = np.asarray(np.linalg.svd(answers.columns, compute_uv=False))
    rank = rank_by_gap(singular, share=tuning.dependent)
    if 0 < rank < len(singular) and singular[rank - 1] > tuning.gap * singular[rank]:
        raise ModelMismatch(
            f"Keys and queries have rank {rank} together, below the {len(singular)} assumed: "
            f"LowRankHead with rank={rank}, biases=True and rotary=True is for these. "
            "Keys or queries that have a lower rank than their planes are recovered by none."
        )


def _asked(rows: Array, b: Array, alpha: Array, zeros: int, phase: str) -> Asking[Weighed]:
    """Ask some offsets with some query tokens."""
    beside = Beside(rows, b, alpha, np.ones(len(b)), phase=phase, purpose="data")
    [y] = yield [Spaced.of(beside, zeros) if zeros else beside]
    return Weighed(rows, b, alpha, beside.table(y))


def _stretches(
    answers: BiasedAnswers, rows: Array, rest: Array, scale: float, tuning: BiasedTuning
) -> Array:
    """Choose how long offsets are beside each further query token."""
    side = answers.keys(0.0)

    def weakest(stretch: float, b: Array) -> float:
        M = side.rows(stretch * scale * rows, b) / stretch
        return float(np.linalg.norm(np.linalg.pinv(M), 2))

    return np.array([min(tuning.stretches, key=lambda s: weakest(s, b)) for b in rest])


def _refuse_unread(t: Array, values: Values) -> None:
    """Refuse weights out of the answers' reach."""
    lost = np.count_nonzero(~np.isfinite(t))
    if lost > t.size // 2:
        raise ModelMismatch(
            f"{lost} of {t.size} answers lie outside of what any attention weights can give "
            "beside the values that single tokens have: no single attention head with rotary "
            "positions answers so."
        )
    if lost:
        raise NotIdentifiable(
            f"{lost} of {t.size} logits are out of the answers' reach: with biases as large as "
            "these no one length of tokens keeps all in range. v is determined, W is not.",
            determined={"v": values.v, "c": values.c},
        )


# -- solving


def _solved(
    answers: BiasedAnswers, values: Values, told: Rotary | None, tuning: RotaryTuning
) -> BiasedReading:
    """Solve the answers, planes that turn too slowly to tell taken not to."""
    answers = replace(answers, v=values.v, c=values.c)
    head = answers.head(0.0)
    errors = _errors(answers, head, values, tuning)
    size = float(np.linalg.norm(head.W_at(1)))
    try:
        unsure = unsure_of(errors, size, values, tuning)
    except NotIdentifiable as refused:
        raise NotIdentifiable(f"{refused} {LARGE}", determined=refused.determined) from None
    planes: TurningPlanes = answers.planes(answers.basis, unsure)[0]
    angles = angles_of(planes, told, unsure, tuning)
    given = None if told is None else angles
    model = answers.head(unsure, given)
    return BiasedReading(model, values, answers, tuning)


def _errors(
    answers: BiasedAnswers, head: RotaryHead, values: Values, tuning: RotaryTuning
) -> PositionErrors:
    """Bound what the head's W(Δ) with biases may be off by.

    Several times what is between it and those of answers that are moved, whose planes all turn.
    """
    first, scores = answers.first, head.scores
    longest = float(np.max(np.linalg.norm(first.b, axis=1))) * 2
    size = longest * values.norm + abs(values.c)
    key, query = (
        longest * np.linalg.norm(scores.arrays[x], 2) + np.linalg.norm(scores.arrays[bias])
        for x, bias in (("K", "k_bias"), ("Q", "q_bias"))
    )
    off = float(np.max(values.precision.error(size, first.y)))
    off += KAPPA * values.precision.unit * float(key * query) * longest * values.norm / 4
    shared = values.among_others

    def moved(rng: np.random.Generator) -> RotaryHead:
        with np.errstate(invalid="ignore", divide="ignore"):
            other = answers.moved(rng, off, shared.v, shared.c)
            fillers = np.array(other.fillers)
            if not np.all(np.isfinite(fillers) & (fillers > 0)):
                raise ValueError("Zeros weigh nothing that a head gives them.")
            return other.head(0.0)

    return whole_errors(head, moved, tuning)
