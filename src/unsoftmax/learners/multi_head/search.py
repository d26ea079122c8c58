"""One search for all heads, from half a circle to a model: steps 1 to 4 of `multi.learner`."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.jumps import JumpSearch, SoftStart, SoftTransition, find_jumps
from unsoftmax.learners.multi_head.columns import Base, Columns, read_base, read_columns
from unsoftmax.learners.multi_head.flat import read_flat
from unsoftmax.learners.multi_head.orientation import Oriented, orient
from unsoftmax.learners.multi_head.two_tokens import Coincident, Ground, OpenStart, Unsaturated
from unsoftmax.learners.multi_head.values import Frame, read_cells, read_out_of_plane, read_values
from unsoftmax.learners.multi_head.windows import Noise, windows
from unsoftmax.learners.multi_head.zoom import InPlane, zoom
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers

# Intervals that a search begins with, one after the other, and how much longer than usual the
# baselines of pieces between them are: nothing is likely to fall between near values, and far ones
# show weak heads.
_DENSER = ((1, 1.0), (16, 100.0), (64, 1.0), (256, 100.0))
TRIES = len(_DENSER)
# Offsets in windows are this long in units of 1/‖W b‖. Where b is so many times longer still, what
# it adds to answers drowns what heads do, and a shorter one is taken.
_OFFSETS, _DROWNED = 50.0, 5.0
# Under a cap offsets in windows take this share of it, a quarter.
_SHARE = 4.0
# Values at this share of T are the same, to so many times their error, where gates are steps:
# their logits are 40 and more. So little of a step is left that it tells nothing else.
_CLOSER, _STEP = 0.8, 60.0
# With larger errors, relative to itself, a head cannot be corrected, and with errors larger than
# the second number it is none.
_HARDLY, _VAGUE = 0.3, 0.01


@dataclass(frozen=True, slots=True)
class Sought:
    """What is looked for."""

    max_heads: int
    biases: bool
    rank: int | None


@dataclass(frozen=True, slots=True)
class Heads:
    """A recovered model, not in canonical form, and what the errors of each head may be."""

    model: MultiHead
    errors: dict[str, Array]
    length: float
    """Norm of the query tokens that were asked."""
    low_rank: bool = False
    notes: tuple[str, ...] = ()

    @property
    def vague(self) -> bool:
        """Whether some head is hardly known: made of what others miss, or too quiet."""
        size = np.linalg.norm(self.model.W, axis=(1, 2))
        size = size + np.linalg.norm(self.model.w, axis=1) / self.length
        return bool(np.any((self.errors["W"][: len(size)] > _VAGUE * size) & (size > 0)))

    @property
    def largest(self) -> dict[str, float]:
        """The largest error of each parameter over heads."""
        return {name: float(np.max(error, initial=0.0)) for name, error in self.errors.items()}


def search(
    sought: Sought,
    ground: Ground,
    attempt: int,
    coarse: float,
    rng: np.random.Generator,
) -> Generator[Round, Answers, Heads]:
    """Go through all steps with one query token.

    Parameters
    ----------
    sought : Sought
        What is looked for.
    ground : Ground
        What single tokens told.
    attempt : int
        How many searches failed before: later ones begin with more intervals.
    coarse : float
        Precision that answers are taken for where it is searched for jumps, if it is coarser than
        theirs.
    rng : numpy.random.Generator
        Decides the query token and all offsets.

    Raises
    ------
    Coincident, TooManyBreakpoints
        Nothing was found; another query token may do better.
    """
    d, length = ground.dim, ground.reach.length
    if ground.scale == 0:
        nothing = MultiHead(np.zeros((0, d, d)), np.zeros((0, d)), c=ground.c)
        return Heads(nothing, dict.fromkeys("Wvw", np.zeros(0)), length)
    frame = Frame.random(d, length, rng)
    try:
        heads = yield from _searched(sought, ground, frame, attempt, coarse)
    except SoftStart:
        raise OpenStart from None
    except SoftTransition:
        raise Unsaturated from None
    if not len(heads.u):
        none = np.zeros((0, d))
        base = Base(ground, frame.b, none, none, 0.0, [])
        columns = Columns(np.zeros((0, d, d)), np.zeros(0), np.zeros(0, dtype=np.intp))
        found = _assembled(sought, base, columns, np.eye(d), (yield from orient(base, rng)))
        if not ground.reach.capped:
            return found
        hidden = yield from read_flat(found.model, ground, rng)
        # a model without heads may have lost one, whose errors these are
        errors = {name: np.full(max(1, found.model.H), bound) for name, bound in hidden.items()}
        errors["v"] = np.maximum(errors["v"], found.largest["v"])
        return replace(found, errors=errors)
    if not ground.reach.soft:
        v = ground.scale * heads.jumps.plane_vectors() @ frame.plane
    else:
        v = yield from read_cells(ground, frame, heads)
    u, readings = yield from read_out_of_plane(ground, frame, heads, v)
    values, u = yield from read_values(ground, frame, heads, readings, u, v, rng)
    share = 1.0 if sought.biases else _balanced(ground, length, u) / length
    b, u, values = share * frame.b, share * u, values.beside(share)
    noise = Noise(ground, share * length, values.error)
    base = Base(ground, b, u, values.v, values.error, windows(noise, b, u, values.v, rng))
    base, s = yield from read_base(base, values)
    towards = base.b / np.linalg.norm(base.b)
    Q, _ = np.linalg.qr(np.column_stack([towards, rng.standard_normal((d, d - 1))]))
    Q[:, 0] = towards
    # b itself last: where w = 0 its column is u, which tells nothing of the rank
    directions = np.roll(Q, -1, axis=1).T if sought.biases else Q[:, 1:].T
    columns = yield from read_columns(base, s, directions, sought.rank, rng)
    size = np.linalg.norm(columns.W, axis=(1, 2)) + np.linalg.norm(base.u, axis=1) / noise.length
    if np.any(columns.error > _HARDLY * size):
        raise Coincident
    oriented = yield from orient(base, rng)
    return _assembled(sought, base, columns, directions, oriented)


def _searched(
    sought: Sought, ground: Ground, frame: Frame, attempt: int, coarse: float
) -> Generator[Round, Answers, InPlane]:
    """Find all heads on half a circle of offsets."""
    reach = ground.reach
    length, far = reach.length, reach.far(reach.length)

    def at(theta: Array, T: Array) -> Generator[Round, Answers, Array]:
        y = yield from ground.ask(frame.offsets(theta, T), frame.b, "zoom")
        return np.asarray(y / (T * ground.scale))

    def measure(theta: Array) -> Generator[Round, Answers, Array]:
        """Where gates may be no steps, ask closer as well: only steps are the same there."""
        T = far * np.repeat([1.0, _CLOSER] if reach.soft else [1.0], len(theta))
        a = frame.offsets(np.resize(theta, len(T)), T)
        y = (yield from ground.ask(a, frame.b, "half circle")) / (T * ground.scale)
        first, last = y[: len(theta)], y[-len(theta) :]
        return np.where(np.abs(first - last) <= _STEP * tolerance, first, np.nan)

    tolerance = max(coarse, ground.error(far * _CLOSER if reach.soft else far, length))
    circle = JumpSearch(measure, tolerance, sought.max_heads, reach.baseline)
    jumps = yield from find_jumps(circle, *_DENSER[attempt])
    if not len(jumps):
        return InPlane(jumps, np.zeros((0, 2)), np.zeros(0), np.zeros(0))
    # at logits of a few, offsets are about as long as query tokens are short
    near = max(coarse, ground.error(max(1 / length, reach.near), length))
    return (yield from zoom(jumps, circle, at, near, reach))


def _balanced(ground: Ground, length: float, u: Array) -> float:
    """Return the norm that b had better have, where u are its heads' vectors at ``length``.

    Where windows' offsets are about as long as b, neither drowns the other. Noise of a fixed
    size is drowned by long offsets; under a cap b stays long enough to leave weak heads open.
    """
    size = np.linalg.norm(u, axis=1) / length
    shorter = np.sqrt(_OFFSETS / np.median(size))
    if ground.reach.capped:
        longest = ground.reach.radius / _SHARE
        if ground.absolute > 0:
            shorter = min(shorter, _OFFSETS / (np.median(size) * longest))
        shorter = max(shorter, _OFFSETS / (np.min(size) * longest))
    return float(shorter) if shorter < length / _DROWNED else length


def _assembled(
    sought: Sought, base: Base, columns: Columns, directions: Array, found: Oriented
) -> Heads:
    """Put the heads together."""
    d, length = base.ground.dim, float(np.linalg.norm(base.b))
    W = columns.W @ directions
    w = np.zeros_like(base.u)
    if sought.biases:
        w = base.u - W @ base.b
    else:
        W = W + base.u[:, :, None] * (base.b / length**2)
    sign = np.array(found.sign)
    W, w = sign[:, None, None] * W[found.index], sign[:, None] * w[found.index]
    v = np.array(found.v).reshape(len(found.index), d)
    if found.constant is not None:
        W, w = np.concatenate([W, np.zeros((1, d, d))]), np.concatenate([w, np.zeros((1, d))])
        v = np.concatenate([v, found.constant[None]])
    model = MultiHead(W, v, w, base.ground.c)
    W_error = columns.error[found.index]
    if found.constant is not None:
        W_error = np.append(W_error, found.unswitched / length)
    v_error = np.full(model.H, found.v_error)
    errors = {"W": W_error, "v": v_error, "w": W_error * length * sought.biases}
    low_rank = bool(np.any(columns.ranks < d))
    return Heads(model, errors, length, low_rank, _notes(found, columns.ranks, d))


def _notes(found: Oriented, ranks: Indices, d: int) -> tuple[str, ...]:
    heads = len(found.index) + (found.constant is not None)
    few = sorted({int(rank) for rank in ranks if rank < d})
    low = f" Ranks below {d}: {', '.join(map(str, few))}." if few else ""
    count = "1 head" if heads == 1 else f"{heads} heads"
    return (
        f"{count}; those of equal W and w are one, whose v is the sum of theirs "
        f"(Proposition 7.1).{low}",
    )
