"""Several heads from one number per query: about H(d² + d) + H·d + 16 H queries.

Target f(X) = Σ_h softmax_i(x_i·(W_h x_N + w_h))·(X v_h) + c, H unknown, no condition on H
against d. Proposition 7.1 of arXiv 2601.16873 says what can be known: heads of equal W_h and
w_h are one. How to know it is beyond the paper, which leaves it open for heads that are not in
orthogonal subspaces. One query token b, u_h = W_h b + w_h, offsets a:

1. half a circle of huge a crosses every hyperplane a·u_h = 0 once (`multi.circle`);
2. near each crossing one head alone is unsaturated: u_h in the plane (`multi.zoom`), then out
   of it, then all v_h from one linear system (`multi.values`);
3. offsets at which head h answers and the others are saturated (`multi.windows`) give
   u_h to full precision and all columns of W_h in one round (`multi.columns`);
4. three copies of a token tell W_h from −W_h (`multi.orientation`);
5. fresh sequences confirm or refuse (`multi.verdict`); what fails begins again with another b.

Under a cap on tokens (`multi.reach`) gates may be no steps: such places of the half circle are
left out, gates that stay open are counted as what they are, and where no half circle shows the
heads one by one the target is refused.

It may not know anything of the target but its answers.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi.circle import Circle, TooMany, find_jumps
from unsoftmax.learners.multi.columns import Base, Columns, read_base, read_columns
from unsoftmax.learners.multi.flat import read_flat
from unsoftmax.learners.multi.opening import open_heads
from unsoftmax.learners.multi.orientation import Oriented, orient
from unsoftmax.learners.multi.polish import LARGEST, polished
from unsoftmax.learners.multi.reach import Reach
from unsoftmax.learners.multi.two_tokens import Coincident, Ground, OpenStart, Unsaturated
from unsoftmax.learners.multi.values import Frame, read_cells, read_out_of_plane, read_values
from unsoftmax.learners.multi.verdict import fresh, limit, residuals
from unsoftmax.learners.multi.windows import Noise, windows
from unsoftmax.learners.multi.zoom import InPlane, zoom
from unsoftmax.learners.settings import flag, positive, whole
from unsoftmax.models import MultiHead, canonical
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers, Certificate, Evidence, Found, Plan, Steps

_TRIES = 4
# Under a cap it takes luck that no gate is open where a half circle begins, and that no two
# overlap. So many are begun; one that was searched counts for some.
_UNLUCKY, _SEARCH = 100, 3
# What is searched without luck is searched as if answers were so coarse: logits that leave less of
# a step pass for one. All that is read there is read again, with gates as they are.
_COARSER = (0.0, 1e-7, 1e-6, 1e-5)
# The search begins with one interval, later with several per head that there may be.
_DENSER = (1, 16, 64, 256)
_CONFIRM = 6
# Offsets in windows are this long in units of 1/‖W b‖. Where b is so many times longer still, what
# it adds to answers drowns what heads do, and a shorter one is taken.
_OFFSETS, _DROWNED = 50.0, 5.0
# Under a cap offsets in windows take this share of it, a quarter.
_SHARE = 4.0
# Values at this share of T are the same, to so many times their error, where gates are steps:
# their logits are 40 and more. So little of a step is left that it tells nothing else.
_CLOSER, _STEP = 0.8, 60.0
# What is planned for: twice the bulk, as columns are asked again where logits are lost.
_TIMES, _PER_HEAD, _ROUNDS = 2, 200, 4000
# Estimated errors are a standard deviation, roughly: in 2,500 targets the error was at most four
# times that (heads of low rank; of full rank, and for v, two). Three times as much is promised.
_SAFETY = 12.0


@dataclass(frozen=True, slots=True)
class MultiHeadLearner:
    """Learn several heads, their number unknown, from scalar values.

    Parameters
    ----------
    dim : int
        Dimension d of a token, 2 or more.
    max_heads : int
        More distinct heads than this are refused.
    biases : bool
        Also learn w_h and c.
    rank : int, optional
        Rank of all W_h, of [W_h w_h] with biases. Found if it is not given: that takes no more
        queries, but more rounds.
    polish : bool
        Correct all W_h at moderate logits: as many queries again, errors of 1e-14 instead of 1e-12.
        Heads of low rank, and more than H·d = 900, are left as they are.
    radius : float, optional
        The longest token that may be asked (2-norm), the hold-out's included. Heads are found
        where their gates are steps: tokens too short for that are refused.
    seed : int
        Decides query tokens, planes and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: about H(d² + d) + H·d + 16H + d + 40; with rank r, given or found, about
    H(r(2d − r) + d) + H·d + 16H + d + 40; H(d + 20) more under a ``radius`` of 10⁵ or less, and
    up to twice as many where heads hardly switch; `plan` gives what is never exceeded.
    *Determined up to* order; heads of equal W and w are one.
    *Refused*: heads whose hyperplanes a·(W_h b + w_h) = 0 coincide for every b, such as W and
    2W; and (W, v) beside (−W, v). *Source*: beyond Proposition 7.1 of arXiv 2601.16873.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> target = us.MultiHead(rng.standard_normal((3, 5, 5)), rng.standard_normal((3, 5)))
    >>> recovery = us.learn(target, us.learners.MultiHeadLearner(5, max_heads=8))
    >>> bool(us.equivalent(recovery.model, target, rtol=1e-9))
    True
    """

    dim: int
    max_heads: int
    biases: bool = False
    rank: int | None = None
    polish: bool = False
    radius: float | None = None
    seed: int = 0

    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        whole("dim", self.dim, 2)
        whole("max_heads", self.max_heads, 0)
        whole("seed", self.seed, 0)
        flag("biases", self.biases)
        flag("polish", self.polish)
        if self.radius is not None:
            positive("radius", self.radius)
        if self.rank is not None:
            whole("rank", self.rank, 1)
            if self.rank > self.dim:
                raise ValueError(f"rank must be at most dim = {self.dim}; it is {self.rank}.")

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        return {
            "learner": "MultiHeadLearner",
            "dim": int(self.dim),
            "max_heads": int(self.max_heads),
            "biases": bool(self.biases),
            "rank": None if self.rank is None else int(self.rank),
            "polish": bool(self.polish),
            "radius": None if self.radius is None else float(self.radius),
            "seed": int(self.seed),
        }

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with the heads."""
        d, H = int(self.dim), int(self.max_heads)
        bulk = H * (d + self.biases) * d
        tries = _TRIES + (_UNLUCKY if Reach.under(self.radius, self.biases).soft else 0)
        searches = _TRIES * 4 * H * d + tries * _PER_HEAD * (H + 1)
        at_most = _TRIES * _TIMES * bulk + searches + bulk * self.polish
        copies = _TRIES * (H + 1) * (d + 2)
        r = "d" if self.rank is None else str(self.rank)
        twice = " twice" if self.polish else ""
        return Plan(
            queries=None,
            at_most=at_most,
            tokens=2 * at_most + 4 * copies,
            rounds=_ROUNDS,
            formula=f"about H(r(2d − r) + 2d + 16) + d + 40 for H heads of rank r = {r}{twice}; "
            f"refused beyond {at_most}",
        )

    def steps(self, checks: int) -> Steps[MultiHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        return (yield from _within(self._steps(checks), self.plan()))

    def _steps(self, checks: int) -> Steps[MultiHead]:
        rng = np.random.default_rng(self.seed)
        ground = yield from open_heads(
            self.dim, self.biases, Reach.under(self.radius, self.biases), rng
        )
        failed = unlucky = 0
        while failed < _TRIES and unlucky < _UNLUCKY:
            coarse = _COARSER[unlucky * len(_COARSER) // _UNLUCKY]
            if unlucky >= _TRIES:
                ground = replace(ground, reach=ground.reach.longer())
            try:
                found = yield from _attempt(self, ground, failed, coarse, rng)
            except OpenStart:
                unlucky += 1
                continue
            except (Coincident, TooMany) as error:
                if coarse > 0 or isinstance(error, Unsaturated):
                    unlucky += _SEARCH
                    continue
                failed += 1
                # where gates are no steps, or answers coarse, a cell may look like two
                if isinstance(error, TooMany) and (not ground.reach.soft or failed == _TRIES):
                    raise
                continue
            probes = fresh(found.model, ground.reach, _CONFIRM, found.length, rng, "pilot")
            answers = yield list(probes)
            missed, sizes = residuals(found.model, ground, probes, answers)
            allowed = limit(found.model, found.errors, ground, probes, sizes, rng)
            if np.all(np.abs(missed) <= allowed):
                if self.polish:
                    found = yield from _polished(self, found, ground, rng)
                return (yield from _concluded(found, ground, checks, rng))
            if coarse > 0:
                unlucky += _SEARCH
            else:
                failed += 1
        why = "".join(f" {sentence}" for sentence in ground.why)
        if coarse > 0:
            raise ModelMismatch(
                f"Tokens no longer than radius = {self.radius:g} do not switch the heads one by "
                "one: along every half circle that was tried gates stay open, or two of them open "
                "together. Give a larger radius, if the target allows one. If that changes "
                "nothing, two heads have the same hyperplanes for every query token." + why
            )
        if unlucky:
            why = (
                f" Or tokens no longer than radius = {self.radius:g} are too short to tell the "
                "heads apart: a larger radius, if the target allows one, would." + why
            )
        raise ModelMismatch(
            f"No search of {_TRIES} gave heads that predict fresh answers. Two heads may have the "
            "same hyperplanes for every query token (W and 2W, or columns of all W_h along one "
            "vector), or be W and −W with equal v, or be too close for answers as precise as "
            "these; or the target is no sum of attention heads." + why
        )


def _within(steps: Steps[MultiHead], plan: Plan) -> Steps[MultiHead]:
    """Refuse to ask more queries or rounds than planned, the hold-out apart."""
    asked, rounds, answers = 0, 0, None
    while True:
        try:
            parts = steps.send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        asked += sum(len(part) for part in parts if part.purpose != "check")
        rounds += 1
        if asked > plan.at_most or rounds > plan.rounds:
            raise ModelMismatch(
                f"More than {plan.at_most} queries or {plan.rounds} rounds would be needed: the "
                "target is no sum of attention heads, or its answers are too noisy."
            )
        answers = yield parts


@dataclass(frozen=True, slots=True)
class _Heads:
    """A recovered model and what its errors are estimated to be."""

    model: MultiHead
    errors: dict[str, float]
    length: float
    """Norm of the query tokens that were asked."""
    low_rank: bool = False
    notes: tuple[str, ...] = ()


def _attempt(
    learner: MultiHeadLearner,
    ground: Ground,
    attempt: int,
    coarse: float,
    rng: np.random.Generator,
) -> Generator[Round, Answers, _Heads]:
    """Go through all steps with one query token."""
    d, length = learner.dim, ground.reach.length
    if ground.scale == 0:
        nothing = MultiHead(np.zeros((0, d, d)), np.zeros((0, d)), c=ground.c)
        return _Heads(nothing, dict.fromkeys("Wvwc", 0.0), length)
    frame = Frame.random(d, length, rng)
    heads = yield from _searched(learner, ground, frame, attempt, coarse)
    if not len(heads.u):
        none = np.zeros((0, d))
        base = Base(ground, frame.b, none, none, 0.0, [])
        columns = Columns(np.zeros((0, d, d)), np.zeros(0), np.zeros(0, dtype=np.intp))
        found = _assembled(learner, base, columns, np.eye(d), (yield from orient(base, rng)))
        if not ground.reach.capped:
            return found
        hidden = yield from read_flat(found.model, ground, rng)
        return replace(
            found, errors={name: max(found.errors[name], hidden[name]) for name in found.errors}
        )
    if not ground.reach.soft:
        v = ground.scale * heads.jumps.plane_vectors() @ frame.plane
    else:
        v = yield from read_cells(ground, frame, heads)
    u, readings = yield from read_out_of_plane(ground, frame, heads, v)
    values, u = yield from read_values(ground, frame, heads, readings, u, v, rng)
    share = 1.0 if learner.biases else _balanced(ground, length, u) / length
    b, u, values = share * frame.b, share * u, values.beside(share)
    noise = Noise(ground, share * length, values.error)
    base = Base(ground, b, u, values.v, values.error, windows(noise, b, u, values.v, rng))
    base, s = yield from read_base(base, values)
    towards = base.b / np.linalg.norm(base.b)
    Q, _ = np.linalg.qr(np.column_stack([towards, rng.standard_normal((d, d - 1))]))
    Q[:, 0] = towards
    # b itself last: where w = 0 its column is u, which tells nothing of the rank
    directions = np.roll(Q, -1, axis=1).T if learner.biases else Q[:, 1:].T
    columns = yield from read_columns(base, s, directions, learner.rank)
    oriented = yield from orient(base, rng)
    return _assembled(learner, base, columns, directions, oriented)


def _searched(
    learner: MultiHeadLearner, ground: Ground, frame: Frame, attempt: int, coarse: float
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
    circle = Circle(measure, tolerance, learner.max_heads, reach.baseline)
    jumps = yield from find_jumps(circle, _DENSER[attempt])
    if not len(jumps):
        return InPlane(jumps, np.zeros((0, 2)), np.zeros(0))
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
    learner: MultiHeadLearner, base: Base, columns: Columns, directions: Array, found: Oriented
) -> _Heads:
    """Put the heads together."""
    d, length = learner.dim, float(np.linalg.norm(base.b))
    W = columns.W @ directions
    w = np.zeros_like(base.u)
    if learner.biases:
        w = base.u - W @ base.b
    else:
        W = W + base.u[:, :, None] * (base.b / length**2)
    sign = np.array(found.sign)
    W, w = sign[:, None, None] * W[found.index], sign[:, None] * w[found.index]
    v = np.array(found.v).reshape(len(found.index), d)
    if found.constant is not None:
        W, w = np.concatenate([W, np.zeros((1, d, d))]), np.concatenate([w, np.zeros((1, d))])
        v = np.concatenate([v, found.constant[None]])
    W_error = float(np.max(columns.error, initial=0.0))
    rounding = base.ground.eta * abs(base.ground.c) + base.ground.absolute
    errors = {
        "W": W_error,
        "v": found.v_error,
        "w": W_error * length if learner.biases else 0.0,
        "c": rounding if learner.biases else 0.0,
    }
    model = canonical(MultiHead(W, v, w, base.ground.c))
    low_rank = bool(np.any(columns.ranks < d))
    return _Heads(model, errors, length, low_rank, _notes(found, columns.ranks, d))


def _polished(
    learner: MultiHeadLearner,
    found: _Heads,
    ground: Ground,
    rng: np.random.Generator,
) -> Generator[Round, Answers, _Heads]:
    """Correct the heads at moderate logits, where that gains something."""
    model = found.model
    if model.H * model.dim > LARGEST or found.low_rank:
        reason = "their rank is low" if found.low_rank else f"H·d is more than {LARGEST}"
        return replace(found, notes=(*found.notes, f"The heads were not polished: {reason}."))
    better = yield from polished(model, ground, found.length, learner.biases, rng)
    if better is None or better[1] > found.errors["W"]:
        return replace(found, notes=(*found.notes, "Polishing the heads gained nothing."))
    W_error = better[1]
    errors = {**found.errors, "W": W_error}
    if learner.biases:
        errors["w"] = W_error * found.length
    return replace(found, model=better[0], errors=errors)


def _concluded(
    found: _Heads, ground: Ground, checks: int, rng: np.random.Generator
) -> Steps[MultiHead]:
    """Ask the hold-out, and say how sure the heads are."""
    evidence = Evidence.of(checks, np.zeros(0), np.zeros(0))
    if checks:
        probes = fresh(found.model, ground.reach, checks, found.length, rng, "check")
        answers = yield list(probes)
        missed, sizes = residuals(found.model, ground, probes, answers)
        allowed = limit(found.model, found.errors, ground, probes, sizes, rng)
        evidence = Evidence.of(checks, missed / sizes, allowed / sizes)
        if not evidence.passed:
            raise ModelMismatch(
                f"The recovered heads miss fresh answers by {evidence.max_residual:.1e} of their "
                f"size where {evidence.tolerance:.1e} is expected: the target is no sum of "
                "attention heads, or has heads too close for these answers."
            )
    errors = {name: _SAFETY * error for name, error in found.errors.items()}
    return Found(found.model, Certificate(errors, _assumed(ground, checks)), evidence, found.notes)


def _assumed(ground: Ground, checks: int) -> tuple[str, ...]:
    absolute = f", and {ground.absolute:.1e} beside it" if ground.absolute else ""
    return (
        "The target is a sum of attention heads, and all of them were found: what the hold-out "
        "tests, it cannot prove.",
        f"Answers are precise to {ground.eta:.1e} of the size of their terms{absolute}.",
        f"Bounds are {_SAFETY:.0f} times what that precision does to first order, errors of "
        "answers being independent; each is the largest over heads.",
        *ground.why,
        *(() if checks else ("Nothing was checked.",)),
    )


def _notes(found: Oriented, ranks: Indices, d: int) -> tuple[str, ...]:
    heads = len(found.index) + (found.constant is not None)
    few = sorted({int(rank) for rank in ranks if rank < d})
    low = f" Ranks below {d}: {', '.join(map(str, few))}." if few else ""
    return (
        f"{heads} heads; those of equal W and w are one, whose v is the sum of theirs "
        f"(Proposition 7.1).{low}",
    )
