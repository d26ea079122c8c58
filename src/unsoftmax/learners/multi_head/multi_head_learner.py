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
5. fresh sequences confirm or refuse (`multi.verdict`); what is right but too coarse, as close
   heads are, is corrected (`multi.polish`); what fails begins again with another b.

Under a cap on tokens (`multi.reach`) gates may be no steps: such places of the half circle are
left out, gates that stay open are counted as what they are, and where no half circle shows the
heads one by one the target is refused.

It may not know anything of the target but its answers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import limited
from unsoftmax.learners.multi_head.circle import TooMany
from unsoftmax.learners.multi_head.opening import open_heads
from unsoftmax.learners.multi_head.polish import corrected, polished
from unsoftmax.learners.multi_head.reach import Reach
from unsoftmax.learners.multi_head.search import TRIES, Heads, Sought, search
from unsoftmax.learners.multi_head.two_tokens import Coincident, Ground, OpenStart, Unsaturated
from unsoftmax.learners.multi_head.verdict import FARTHEST, PILOTS, concluded, predicting, shares_of
from unsoftmax.learners.settings import Configured, flag, positive, whole
from unsoftmax.models import MultiHead, canonical
from unsoftmax.probes import Round
from unsoftmax.protocol import Answers, Plan, Steps

# Under a cap it takes luck that no gate is open where a half circle begins, and that no two
# overlap. So many are begun; one that was searched counts for some.
_UNLUCKY, _SEARCH = 100, 3
# What is searched without luck is searched as if answers were so coarse: logits that leave less of
# a step pass for one. All that is read there is read again, with gates as they are.
_COARSER = (0.0, 1e-7, 1e-6, 1e-5)
# So many searches have to find more jumps than there may be heads.
_SURE = 2
# Fresh sequences that a model must predict before it is believed.
_CONFIRM = 6
# Precisions that answers are taken for where only the function is wanted, so that heads up to about
# a thirtieth of that apart are one.
_PRECISIONS = (1e-9, 1e-7, 1e-5)
# What is planned for: three times the bulk, as columns are asked again where logits are lost and
# heads corrected where they are close, and so many rounds per search.
_TIMES, _PER_HEAD, _ROUNDS = 3, 200, 1000


@dataclass(frozen=True, slots=True)
class MultiHeadLearner(Configured):
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
    functional : bool
        Where no heads explain all answers, return those that predict them best, instead of a
        refusal: heads too close to be told apart become one. The certificate then bounds the
        function, not the parameters.
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
    H(r(2d − r) + d) + H·d + 16H + d + 40; 1.1 to 1.2 times that under a ``radius`` of 10³, 2 to 7
    times where heads hardly switch; as many again where heads are close. `plan` gives what is
    never exceeded.
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
    functional: bool = False
    radius: float | None = None
    seed: int = 0

    revision: ClassVar[int] = 2

    def __post_init__(self) -> None:
        whole("dim", self.dim, 2)
        whole("max_heads", self.max_heads, 0)
        whole("seed", self.seed, 0)
        flag("biases", self.biases)
        flag("polish", self.polish)
        flag("functional", self.functional)
        if self.radius is not None:
            positive("radius", self.radius)
        if self.rank is not None:
            whole("rank", self.rank, 1)
            if self.rank > self.dim:
                raise ValueError(f"rank must be at most dim = {self.dim}; it is {self.rank}.")

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with the heads."""
        d, H = int(self.dim), int(self.max_heads)
        r = d if self.rank is None else int(self.rank)
        bulk = H * r * (2 * d + self.biases - r)
        tries = TRIES + len(_PRECISIONS) * self.functional
        unlucky = _UNLUCKY if Reach.under(self.radius, self.biases).soft else 0
        searches = tries * 4 * H * d + (tries + unlucky) * _PER_HEAD * (H + 1)
        at_most = tries * _TIMES * bulk + searches + bulk * self.polish
        copies = tries * (H + 1) * (d + 2)
        usual = bulk * (1 + self.polish) + H * (2 * d + 16) + d + 40
        return Plan(
            queries=None,
            at_most=at_most,
            tokens=2 * at_most + 4 * copies,
            rounds=_ROUNDS * (tries + unlucky // _SEARCH),
            formula=f"about H(r(2d − r) + 2d + 16) + d + 40 for H heads of rank r: {usual:,} for "
            f"{H} of rank {r}",
        )

    def steps(self, checks: int) -> Steps[MultiHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        plan = self.plan()
        error = ModelMismatch(
            f"More than {plan.at_most:,} queries or {plan.rounds:,} rounds would be needed: "
            "the target is no sum of attention heads, or its answers are too noisy."
        )
        steps = self._steps(checks)
        return (yield from limited(steps, error, queries=plan.at_most, rounds=plan.rounds))

    def _steps(self, checks: int) -> Steps[MultiHead]:
        rng = np.random.default_rng(self.seed)
        sought = Sought(self.max_heads, self.biases, self.rank)
        reach = Reach.under(self.radius, self.biases)
        ground = yield from open_heads(self.dim, self.biases, reach, rng)
        others: list[tuple[float, Heads]] = []
        failed = unlucky = many = 0
        while failed < TRIES and unlucky < _UNLUCKY:
            coarse = _COARSER[unlucky * len(_COARSER) // _UNLUCKY]
            if unlucky >= TRIES:
                ground = replace(ground, reach=ground.reach.longer())
            try:
                found = yield from search(sought, ground, failed, coarse, rng)
            except OpenStart:
                unlucky += 1
                continue
            except (Coincident, TooMany) as error:
                if coarse > 0 or isinstance(error, Unsaturated):
                    unlucky += _SEARCH
                    continue
                # where jumps are close, or gates no steps, a cell may look like two
                many += isinstance(error, TooMany)
                if many == (TRIES if ground.reach.soft else _SURE) and not self.functional:
                    raise ModelMismatch(str(error)) from None
                failed += 1
                continue
            count = PILOTS if self.functional else _CONFIRM
            shares, allowed, explained = yield from shares_of(found, ground, count, rng, "pilot")
            if np.all(shares <= explained) and (found.vague or np.any(allowed < explained)):
                # right as far as it is known, which is not far enough: close heads, as a rule
                found = (yield from corrected(found, ground, self.biases, rng)) or found
                shares, allowed, _ = yield from shares_of(found, ground, count, rng, "pilot")
            if np.all(shares <= allowed) and not found.vague:
                distinct = canonical(found.model).H
                if distinct > self.max_heads:
                    raise ModelMismatch(
                        f"The target has {distinct} distinct heads, more than max_heads = "
                        f"{self.max_heads}: raise max_heads (--max-heads)."
                    )
                if self.polish:
                    found = yield from polished(found, ground, self.biases, rng)
                return (yield from concluded(found, ground, checks, self.biases, rng))
            others.append((float(shares.max()), found))
            if coarse > 0:
                unlucky += _SEARCH
            else:
                failed += 1
        if self.functional:
            others += yield from _taken_for_coarser(sought, ground, rng)
        if self.functional and others and ground.scale > 0:
            share, found = min(others, key=lambda pair: pair[0])
            if share <= FARTHEST:
                return (yield from predicting(found, share, ground, checks, rng))
        raise ModelMismatch(" ".join([*self._reasons(coarse > 0, unlucky > 0), *ground.why]))

    def _reasons(self, open_gates: bool, unlucky: bool) -> Iterator[str]:
        """Say why nothing was found, in sentences."""
        if open_gates:
            yield (
                f"Tokens no longer than radius = {self.radius:g} do not switch the heads one by "
                "one: along every half circle that was tried gates stay open, or two of them open "
                "together. Give a larger radius, if the target allows one. If that changes "
                "nothing, two heads have the same hyperplanes for every query token, or there are "
                "more than max_heads."
            )
            return
        yield (
            f"No search of {TRIES} gave heads that predict fresh answers. Two heads may have the "
            "same hyperplanes for every query token (W and 2W, or columns of all W_h along one "
            "vector), or be W and −W with equal v, or be too close for answers as precise as "
            "these; or there are more than max_heads, or the target is no sum of attention heads."
        )
        if not self.functional:
            yield "With functional=True (--functional) what predicts answers well is returned."
        if self.rank is not None:
            yield f"Or some W_h has a rank above {self.rank}: leave rank out to find it."
        if unlucky:
            yield (
                f"Or tokens no longer than radius = {self.radius:g} are too short to tell the "
                "heads apart: a larger radius, if the target allows one, would."
            )


def _taken_for_coarser(
    sought: Sought, ground: Ground, rng: np.random.Generator
) -> Generator[Round, Answers, list[tuple[float, Heads]]]:
    """Search as if answers were coarser, which do not tell close heads apart."""
    others = []
    for eta in _PRECISIONS:
        coarse = replace(ground, eta=max(eta, ground.eta))
        try:
            found = yield from search(sought, coarse, 0, 0.0, rng)
        except (Coincident, TooMany):
            continue
        shares, *_ = yield from shares_of(found, ground, _CONFIRM, rng, "pilot")
        others.append((float(shares.max()), found))
    return others
