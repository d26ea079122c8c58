"""A ReLU network of one hidden layer from its values: about one query per parameter.

Target g(x) = Σ_j w_o[j]·relu(x·A_j + b_j) + c, asked at single tokens. This is the role of
A_FFN in Section 4.1 of arXiv 2601.16873, for which the paper takes Milli et al. 2019 (linearly
independent A_j) or Daniely and Granot 2023 (general position); the number m of neurons need
not be known. Queries: about m·d + 6m + 300 + m²d/4000, m(d+2) + 1 being the free parameters:
1.05 to 1.5 times these, and 2 times in the worst case, from 32 dimensions and 64 neurons up.

The mathematics: lifted to Y = (x, h), F(Y) = h·g(λx/h) is linear between hyperplanes through 0
(`lift`).

1. A line through 0, asked at lengths from 4·10⁻⁹ to 10¹², crosses every hyperplane: it tells the
   length scale λ (`lifted_target`).
2. Half a great circle crosses each hyperplane once: F has a kink there (`arrangement.kinks`).
3. The gradient's jumps across them are the neurons, J_k = ε_k a_k, and come from one query per
   cell and direction (`circle_sweep`).
4. Neurons from cells that were thin are measured again where these are wide (`wide_cells`).
5. What fresh points miss is swept again, and merged (`network_search`).
6. What the line contradicts far out is searched for there (`far_neurons`).
7. Fresh tokens are tried, some beside each hyperplane: where they are missed all is searched again.
8. The hold-out confirms or refuses.

Differences from the sources: (1) parallel rounds, float64 answers with errors that are
estimated; (2) neither linear independence nor general position is assumed: parallel neurons
merge, close ones are separated as far as the answers allow, and what is not is refused by
fresh points; (3) biases and no biases are one algorithm; (4) hold-out and certificate.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from unsoftmax.arrangement.kinks import TooManyBreakpoints
from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import limited, read_as
from unsoftmax.learners.relu_network.claims import NetworkClaim
from unsoftmax.learners.relu_network.far_neurons import FarSearch, SplitForm
from unsoftmax.learners.relu_network.lift import PiecewiseLinear, WrittenPoints, ask_points
from unsoftmax.learners.relu_network.lifted_target import LiftedTarget, NoiseLevel, TargetLift
from unsoftmax.learners.relu_network.network_search import NetworkSearch
from unsoftmax.learners.settings import Configured, flag, whole_number
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Round
from unsoftmax.protocol import Answers, Plan, Steps
from unsoftmax.refusals import Reason
from unsoftmax.theory import counts
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.judge import Answered

# Limit on the queries: so many per free parameter, as residuals are swept again; per neuron, as the
# search of a kink takes 9 to 15; and for small networks.
TIMES, PER_NEURON, OPENING = 8, 64, 4096


# Two answers that differ by less than this share of their size may be one that was rounded.
_APART = 1e-3


# Searches from scratch before a target is refused: of networks over six decades the first is in
# vain in one of 150 cases, where a neuron is hidden by the errors of another, or by another far
# one; the second in one of five of these.
ATTEMPTS = 3
# Limit on the rounds: three searches, nine sweeps each of up to five circles, 120 rounds each, and
# 20 around every one. Often it is 60.
ROUNDS = 18900


class Fresh(NamedTuple):
    """Fresh tokens that a network is tried at."""

    first: int = 16
    """After the first sweep, of which most show a missing neuron."""
    later: int = 32
    """After later ones."""
    rehearsed: int = 32
    """Before the hold-out, after which nothing can be mended: of networks over many decades one in
    150 was found with far neurons wrong that lie close together, and another search finds them
    right."""


def usual_limit(dim: int) -> int:
    """Return ``max_neurons`` where it is not given: a smooth target shows more kinks."""
    return 16 * dim + 1024


@dataclass(frozen=True, slots=True)
class ReluNetworkLearner(Configured):
    """Learn a two-layer ReLU network, the number of its neurons unknown, from its values.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    biases : bool
        The network has biases b and c; without them it is asked a little less.
    max_neurons : int, optional
        More distinct neurons than this are refused; 16·dim + 1024 by default.
    polish : bool
        Measure every neuron once more where its cells are wide: as many queries again, errors
        of about 1e-13 instead of 1e-10.
    seed : int
        Decides circles and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: about m·d + 6m + 300 + m²d/4000 for m neurons; `plan` gives numbers for
    ``max_neurons``, and what is never exceeded.
    *Determined up to* the function: neurons may be flipped, parallel ones are one, and what
    that leaves of the affine part takes up to two neurons more. *Certificate*:
    ``|ĝ(x) − g(x)|`` ≤ constant + slope·‖x‖ for every x, as long as no hyperplane is farther from
    0 than 3·10⁹/√d. *Tokens* are up to 10¹² long, or 10⁵ times the distance of a typical
    hyperplane; without biases norms of about 1, or 10¹² where answers are noisy.
    *Source*: Section 4.1 of arXiv 2601.16873, A_FFN; how is beyond it.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(0)
    >>> target = us.ReluNetwork(rng.standard_normal((4, 9)), np.ones(9), rng.standard_normal(9))
    >>> recovery = us.learn(target, us.learners.ReluNetworkLearner(4))
    >>> x = rng.standard_normal((5, 4))
    >>> bool(np.allclose(recovery.model(x), target(x), rtol=1e-9, atol=1e-9))
    True
    """

    dim: int
    biases: bool = True
    max_neurons: int | None = None
    polish: bool = False
    seed: int = 0

    revision: ClassVar[int] = 8
    far: ClassVar[str] = "beyond every bend of the network"
    _fresh: ClassVar[Fresh] = Fresh()

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)
        flag("biases", self.biases)
        flag("polish", self.polish)
        if self.max_neurons is not None:
            whole_number("max_neurons", self.max_neurons, 0)

    @property
    def _most(self) -> int:
        return usual_limit(int(self.dim)) if self.max_neurons is None else int(self.max_neurons)

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with the neurons."""
        m = self._most
        free = counts.relu_network(int(self.dim), m, bool(self.biases))
        at_most = TIMES * free + PER_NEURON * m + OPENING
        formula = f"{self._typical()}; refused beyond {TIMES}·{free} + {PER_NEURON}·{m} + {OPENING}"
        return Cost.of(at_most, rounds=ROUNDS).plan(formula, 1, known=False)

    def _typical(self) -> str:
        own = "6m + 300" if self.biases else "5m + 230"
        again = " + m(d+1)" if self.polish else ""
        formula = f"about m·d + {own} + m²d/4000{again} for m neurons"
        if not self.max_neurons:
            return formula
        d, m, biases = int(self.dim), int(self.max_neurons), bool(self.biases)
        queries = counts.relu_network_queries(d, m, biases, bool(self.polish))
        free = counts.relu_network(d, m, biases)
        parameters = "m(d+2) + 1" if biases else "m·d + m"
        return (
            f"{formula}, {queries:,} for {m:,}: {queries / free:.1f} times their "
            f"{parameters} = {free:,} parameters"
        )

    def steps(self, checks: int) -> Steps[ReluNetwork]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        most = self.plan().at_most
        error = Reason.MORE_THAN_PLANNED.error(
            limit=f"{most:,} queries",
            why="the target has more neurons (raise max_neurons), or is no ReLU network of one "
            "hidden layer",
        )
        seen: set[float] = set()

        def counted(asked: Round, answers: Answers) -> Answers:
            if len(seen) < 3:
                seen.update(np.unique(np.concatenate([y.ravel() for y in answers])).tolist())
            return answers

        steps: Steps[ReluNetwork] = read_as(self._steps(checks), counted)
        found = yield from limited(steps, error, queries=most)
        # between two plateaus of a network there is a slope, and places on it were asked
        if len(seen) == 2 and max(seen) - min(seen) > _APART * max(map(abs, seen)):
            raise Reason.ANSWERS_ARE_LABELS.error(
                values=" and ".join(f"{y:g}" for y in sorted(seen)), what="a ReLU network"
            )
        return found

    def _steps(self, checks: int) -> Steps[ReluNetwork]:
        rng = np.random.default_rng(self.seed)
        target = yield from self._lifted(rng)
        if target.constant is not None:
            form = PiecewiseLinear.zero(target.lift.D)
            if self.biases:
                form.g0[-1] = target.constant
                form = replace(form, g_error=target.noise.deviation)
            claim = NetworkClaim.of(target, SplitForm.of(target.lift, form)).scanned()
        elif target.lift.D == 1:
            target, form = yield from _on_a_line(target)
            scanned = NetworkClaim.of(target, SplitForm.of(target.lift, form)).scanned()
            claim = yield from scanned.rehearsed(rng, 0)
        else:
            claim = yield from self._searched(target, rng)
        if (count := len(claim.form)) > self._most:
            raise Reason.MORE_NEURONS.error(neurons=count, most=self._most)
        return (yield from claim.tested(checks, rng))

    def _lifted(self, rng: np.random.Generator) -> Generator[Round, Answers, LiftedTarget]:
        """Look at the target before the search."""
        return (yield from TargetLift(int(self.dim), bool(self.biases)).run(rng))

    def _searched(
        self, target: LiftedTarget, rng: np.random.Generator
    ) -> Generator[Round, Answers, NetworkClaim]:
        """Search for all neurons, far ones last; along other lines again if in vain."""
        earlier: list[Answered] = []
        first, later, rehearsed = self._fresh
        for again in reversed(range(ATTEMPTS)):
            search = NetworkSearch(target, self._most, bool(self.polish), rng, first, later)
            try:
                form = yield from search.run()
                split = yield from FarSearch(search).run(form)
                scanned = NetworkClaim.of(target, split).scanned()
                claim = yield from scanned.rehearsed(rng, rehearsed, earlier)
            except TooManyBreakpoints:
                raise
            except (ModelMismatch, NotIdentifiable):
                if not again:
                    raise
                earlier += target.first_answers
                target = yield from self._lifted(rng)
                if target.constant is not None:  # on other lines nothing is to be seen
                    raise
            else:
                break
        return claim


def _wavering(target: LiftedTarget, right: float, left: float) -> float:
    """Estimate what answers for tokens of length 1 are off by: a side has one slope."""
    x, y = (part.ravel() for part in target.opening or (np.zeros(0), np.zeros(0)))
    x, y = np.append(x, [1.0, -1.0]), np.append(y, [right, left])
    slope, side = y / x, x > 0
    off = slope - np.where(side, slope[side].mean(), slope[~side].mean())
    return float(np.sqrt(np.sum(off**2) / max(len(off) - 2, 1)))


def _on_a_line(
    target: LiftedTarget,
) -> Generator[Round, Answers, tuple[LiftedTarget, PiecewiseLinear]]:
    """Read a network of one dimension without biases from g(1) and g(−1)."""
    points = WrittenPoints(target.lift, np.array([[1.0], [-1.0]]))
    right, left = yield from ask_points(points, "both sides")
    noise = NoiseLevel.of_rounding(float(max(abs(right), abs(left))))
    noise = noise.raised(_wavering(target, float(right), float(left)))
    jump, g0 = float(right + left), np.array([-left])
    error = np.sqrt(2) * noise.deviation
    if abs(jump) <= 4 * noise.deviation:
        form = replace(PiecewiseLinear.zero(1), g0=g0, g_error=error)
    else:
        a, sign = np.array([[abs(jump)]]), np.sign([jump])
        form = PiecewiseLinear(g0, a, sign, np.array([error]), error)
    return replace(target, noise=noise), form
