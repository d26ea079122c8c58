"""What is asked of ids whatever the learner: lone tokens, copies, orders, and the hold-out."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.measure.bags import BagReader, added_up
from unsoftmax.measure.precision import KAPPA, Precision, why
from unsoftmax.probes import Array, Copies, Ids, Indices, Probes
from unsoftmax.refusals import Reason
from unsoftmax.validate.judge import Judgement, Residuals, hold_out

# Ids that are asked again, the first ones alone, the others in copies: positions show there, and
# what answers are off by.
COPIED, ALONE = 12, 2
# Two sequences, one of so many ids and one that fills the context, in two orders: positions in
# scores show there, and where sequences are cut. They also tell the format of answers, as values
# may be as round as they like.
MIXED, FEW = 4, 5
# What is answered otherwise by more than this share of the values is no rounding, but positions, or
# a token beside them. Smaller: targets that compute in float32 are refused.
UNLIKE = 2.0**-17
# Answers may be off by so many times what copies show.
MORE = 2.0


@dataclass(frozen=True, slots=True)
class LoneTokens:
    """Ids that were asked alone.

    Attributes
    ----------
    y : array (n,) or (n, m)
        Their answers.
    precision : Precision
        What answers are off by, relative to the size of values.
    """

    y: Array
    precision: Precision


def ask_lone(
    ids: Indices,
    fresh: Indices,
    context: int,
    rng: np.random.Generator,
    expected: Callable[[Array], tuple[Array, Array]] | None = None,
    *,
    positions: bool = False,
) -> Asking[LoneTokens]:
    """Ask ids alone, and ``fresh`` ones in copies, up to as many as the context takes.

    ``expected`` says what fresh ones are answered by what ids are, and how many times errors grow
    on the way; without it fresh ones are among the ids. With ``positions`` copies and orders
    matter: fresh ones are asked alone.

    *Queries*: as many as ids, one for each fresh one, and `MIXED`.

    Raises
    ------
    ModelMismatch
        Copies are answered otherwise, or another order, or the same id asked again.
    NotIdentifiable
        All answers are alike.
    """
    counts = np.geomspace(2, max(2, context), len(fresh)).astype(np.intp)
    counts[: None if positions else ALONE] = 1
    mixed = [rng.choice(ids, size=n) for n in (min(FEW, context), context)]
    orders = [np.array([x, x if positions else np.append(x[-2::-1], x[-1])]) for x in mixed]
    asked: list[Probes] = [
        *(Ids(both, phase="two orders", purpose="pilot") for both in orders),
        Ids(ids[:, None], phase="lone tokens", purpose="pilot"),
    ]
    asked += [
        Copies.of(Ids(k[None, None], phase="copies", purpose="pilot"), np.array([n]))
        for k, n in zip(fresh, counts, strict=True)
    ]
    short, long, y, *again = yield asked
    precision = Precision.of_format([y, short, long])
    middle = float(np.median(_sizes(y)))
    if expected is None:
        known, growth = y[np.searchsorted(ids, fresh)], np.ones(len(fresh))
    else:
        known, growth = expected(y)
    size = np.maximum(_sizes(known), middle or 1.0)
    missed = _sizes(np.concatenate([known[:0], *again]) - known)
    missed /= size * growth * added_up(counts.astype(np.float64))
    unlike, rounding = (float(np.max(x)) for x in (missed, precision.error(size, size) / size))
    most = max(UNLIKE, KAPPA * rounding)
    if np.max(missed[counts == 1]) > most:
        if expected is not None:
            raise Reason.NOT_OF_THE_TABLE.error(missed=float(np.max(missed[counts == 1])))
        noise = float(np.max(missed[:ALONE])) * middle
        raise Reason.ANSWERS_VARY.error(noise=noise, size=middle)
    if unlike > most:
        raise Reason.COPIES_DIFFER.error(unlike=unlike)
    size = np.maximum(_sizes(y), middle or 1.0)
    moved = [float(_sizes(both[1:] - both[0])[0] / size.max()) for both in (short, long)]
    if max(moved) > most:
        how = "" if moved[0] > most else f" in sequences of {context} ids, and not of {FEW}"
        raise Reason.IDS_ORDER_MATTERS.error(moved=max(moved), how=how, context=context)
    if MORE * unlike > rounding:
        said = f"Copies of an id are answered otherwise by up to {unlike:.1e} of its value"
        precision = precision.with_unit(MORE * unlike / KAPPA, said)
    if np.max(np.ptp(y, axis=0)) <= KAPPA * float(precision.error(size.max(), size.max())):
        raise Reason.VALUES_ALIKE.error(value=float(np.mean(y)), why=why(precision))
    return LoneTokens(y, precision)


def _sizes(y: Array) -> Array:
    """Return the sizes of answers: numbers (n,), or rows (n, m)."""
    return np.asarray(np.linalg.norm(y.reshape(len(y), -1), axis=1))


def fresh_bags(count: int, ids: Indices, context: int, rng: np.random.Generator) -> list[Ids]:
    """Draw sequences of ids: every other one fills the context, with few or many distinct ids."""
    lengths = [2, 3, 5, 9, 17, 33]
    families: dict[int, list[Indices]] = {}
    for n in range(count):
        N = context if n % 2 else min(context, lengths[n // 2 % len(lengths)])
        few = rng.choice(ids, size=(3, N, 4)[n % 3])
        families.setdefault(N, []).append(rng.choice(few, size=N))
    return [
        Ids(np.array(rows), phase="hold-out", purpose="check")
        for _, rows in sorted(families.items())
    ]


def held_out(
    fresh: list[Ids],
    compare: Callable[[Array, Array], Residuals],
    checks: int,
    context: int,
    reader: BagReader,
) -> Asking[tuple[Judgement, str]]:
    """Ask fresh sequences; return how a model predicted them, and what that says.

    Raises
    ------
    ModelMismatch, NotIdentifiable
        It did not; coarse answers may hide directions of the scores that it has not.
    """
    judgement = yield from hold_out(fresh, compare, checks)
    if judgement.refuses:
        missed, allowed = judgement.worst
        if reader.coarse:
            shown = f"one that predicts these misses fresh sequences by {missed:.1e} of their size"
            reader.refuse_unread(f"{shown} where {allowed:.1e} is expected")
        raise Reason.BAGS_MISSED.error(missed=missed, allowed=allowed, context=context)
    if not checks:
        return judgement, "Nothing was checked."
    said = f"{checks} fresh sequences of up to {context} ids test this but cannot prove it."
    return judgement, said
