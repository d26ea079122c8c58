"""What ids are answered alone, and whether copies of them are answered alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.measure.bags import added_up
from unsoftmax.measure.precision import KAPPA, Precision, why
from unsoftmax.probes import Array, Copies, Ids, Indices, Probes
from unsoftmax.refusals import Reason

# Ids that are asked again in so many copies: positions show there, and what answers are off by.
COPIED = 12
# Sequences of so many ids each tell the format of answers: values may be as round as they like.
MIXED, OF = 4, 5
# Copies that are answered otherwise by more than this share of the values are no rounding, but
# positions, or a token beside them. Smaller: targets that compute in float32 are refused.
UNLIKE = 2.0**-17
# Answers may be off by so many times what copies show.
MORE = 2.0


@dataclass(frozen=True, slots=True)
class LoneTokens:
    """Ids that were asked alone.

    Attributes
    ----------
    y : array (n,)
        Their answers.
    precision : Precision
        What answers are off by, relative to the size of values.
    """

    y: Array
    precision: Precision


def ask_lone(
    ids: Indices, fresh: Indices, context: int, rng: np.random.Generator
) -> Asking[LoneTokens]:
    """Ask ids alone, places ``fresh`` of them in copies, up to as many as the context takes.

    *Queries*: as many as ids, one for each fresh one, and `MIXED`.

    Raises
    ------
    ModelMismatch
        Copies are answered otherwise.
    NotIdentifiable
        All answers are alike.
    """
    counts = np.geomspace(2, max(2, context), len(fresh)).astype(np.intp)
    mixed = rng.choice(ids, size=(MIXED, min(OF, context)))
    asked: list[Probes] = [
        Ids(mixed, phase="format of answers", purpose="pilot"),
        Ids(ids[:, None], phase="lone tokens", purpose="pilot"),
    ]
    asked += [
        Copies.of(Ids(ids[k, None, None], phase="copies", purpose="pilot"), np.array([n]))
        for k, n in zip(fresh, counts, strict=True)
    ]
    beside, y, *again = yield asked
    precision = Precision.of_format([y, beside])
    middle = float(np.median(np.abs(y)))
    size = np.maximum(np.abs(y), middle or 1.0)
    missed = np.abs(np.concatenate([np.zeros(0), *again]) - y[fresh])
    unlike = float(np.max(missed / size[fresh] / added_up(counts), initial=0.0))
    rounding = float(np.max(precision.error(size, size) / size))
    if unlike > max(UNLIKE, KAPPA * rounding):
        raise Reason.COPIES_DIFFER.error(unlike=unlike)
    if MORE * unlike > rounding:
        said = f"Copies of an id are answered otherwise by up to {unlike:.1e} of its value"
        precision = precision.with_unit(MORE * unlike / KAPPA, said)
    if np.ptp(y) <= KAPPA * float(precision.error(size.max(), size.max())):
        raise Reason.VALUES_ALIKE.error(value=float(np.mean(y)), why=why(precision))
    return LoneTokens(y, precision)
