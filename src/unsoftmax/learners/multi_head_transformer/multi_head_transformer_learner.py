"""Several heads before a ReLU network, from one number per query: the whole one-layer Transformer.

Target f(X) = Σ_j w_o[j] relu(Σ_h B_h[j]·p_h + R[j]·x_N + b[j]) + c, p_h = Σ_i α_hi x_i,
α_h = softmax_i(x_i·(W_h x_N + w_h)), with or without a residual R. Section 4.1 of arXiv 2601.16873
has one head; several, which it leaves open, are beyond it.

1. Single tokens show the network of A = Σ_h B_h + R (`relu_network`):   f([x]) = g(x).
2. Within a cell of that network, S being its active neurons, the target is a sum of heads,

       f([b+a; b]) = g(b) + Σ_h σ(a·(W_h b + w_h)) v_h·a,   v_h = ℓ_h + Σ_{k∈S} ε_k B_h[k]:

   logits grow with ‖a‖·‖b‖, so long b and short a switch all heads inside one wide cell. There the
   steps of `multi_head` find W_h, w_h and the v_h (`first_cell`): H(d² + d) queries and more.
3. In K other cells, K the number of distinct neurons, only the v_h are left: (H − 1)d + 2 queries
   each (`cell_values`). Σ_h v_h = ∇g spares one head; a residual is one more, of gate 0.
4. One linear system gives all B_h (`solve_layer`).
5. Fresh sequences confirm or refuse (`layer_evidence`).
6. Where no half circle tells the heads apart poles may (`heads_by_poles`); where nothing is found
   it is asked whether a neuron shows in sequences alone (`neurons_beyond_tokens`).

It may not know anything of the target but its answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.arrangement.kinks import TooManyBreakpoints
from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking, as_planned, named
from unsoftmax.learners.multi_head.pole_search import POLE_LENGTHS, pole_cost
from unsoftmax.learners.multi_head.search_outcomes import ENDINGS
from unsoftmax.learners.multi_head.token_search import SoughtHeads
from unsoftmax.learners.multi_head_transformer import layer_evidence, layer_search
from unsoftmax.learners.multi_head_transformer.cell_values import CHECKS
from unsoftmax.learners.multi_head_transformer.first_cell import HEADS, NothingPooled
from unsoftmax.learners.multi_head_transformer.layer_polish import LARGEST, SPARE, polished_layer
from unsoftmax.learners.multi_head_transformer.neurons_beyond_tokens import (
    CANCELLING_AT_MOST,
    POINTS,
    RAYS,
)
from unsoftmax.learners.relu_network.relu_learner import Fresh, ReluNetworkLearner, usual_limit
from unsoftmax.learners.settings import Configured, flag, rank_up_to, whole_number
from unsoftmax.learners.transformer.hold_out import OPENING_PART, TOKENS, open_hold_out
from unsoftmax.learners.transformer.learned_network import LearnedNetwork
from unsoftmax.measure.precision import UNIT, Precision, why
from unsoftmax.models import MultiHeadTransformer
from unsoftmax.protocol import Plan, Steps
from unsoftmax.refusals import Reason, RefusalError
from unsoftmax.theory import counts
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.judge import Answered
from unsoftmax.validate.long_sequences import most_tokens

# A network known no better than to this share of its size comes of answers that are too coarse:
# 1e-9 is usual of float64.
COARSEST = 1e-6
# Where no layer was found and a hyperplane is farther from 0, in units in which W is about 1, that
# is why: 10³ are usually recovered, 10⁴ now and then.
FARTHEST_HYPERPLANE = 3e3
# Noise up to this share of the answers is that of float64 in batches of other sizes.
NOISE = 1e-13
# A layer that misses a fresh answer by a larger share of its size is polished, asked for or not:
# 1e-10 is usual.
PRECISE = 5e-9
# So is one whose W_h may be off by more than this share: 1e-8 is usual.
VAGUE = 1e-6
# What misses by more than this is no layer that only lacks digits.
NEARLY = 1e-3
# Limits of one search: queries per head beside its parameters, times these, and rounds.
PER_HEAD, TIMES, ROUNDS = 200, 3, 2000


class _FirstNetwork(ReluNetworkLearner):
    """Tries its network at fewer fresh tokens: the whole layer is tried later."""

    __slots__ = ()
    _fresh = Fresh(first=10, later=12, rehearsed=0)


@dataclass(frozen=True, slots=True)
class MultiHeadTransformerLearner(Configured):
    """Learn several heads before a ReLU network from scalar values: a one-layer Transformer.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    max_heads : int
        More distinct heads than this are refused. What is asked does not grow with it, only what
        `plan` bounds.
    biases : bool
        The layer has biases b, c and w_h. Without them it is asked a little less.
    rank : int, optional
        Rank of all W_h, of [W_h w_h] with biases. Found if it is not given.
    polish : bool
        Correct all parameters from as many moderate sequences again: errors of 1e-14.
    seed : int
        Decides cells, offsets and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: those of the network, about m·d + 6m + 260 + m²d/4000 for m neurons, and
    H(d² + 3d) + 5H + 2d + 20 + m((H − 1)d + 2): 1.1 to 1.5 times the H·d·(d + m + 1) + m + 1
    parameters from 2,000 of these on. Fewer where W_h or values have a low rank, or all B_h are
    A V_h, which is found. As many again as there are parameters, up to 2,500 of them, where a
    layer is polished: asked for, or because it misses fresh answers by more than usual (far
    biases, Σ B_h much smaller than the B_h).
    With a residual, which is found, (m + 2)d more. Heads that switch together, as W and 2W do, take
    350 + 2.6·H·d(d + 2) more after five searches in vain.
    *Certificate*: of W and w, the largest over heads; and of the network alone ``|ĝ(p) − g(p)|`` ≤
    constant + slope·‖p‖, where p are the H·d numbers that all heads pool. It does not bound the
    answer to a sequence: errors of W and w change p.
    Answers have to be float64. *Determined up to* order of heads and neurons, and a positive
    factor and flips of neurons; heads of equal W and w are one. *Source*: beyond Section 4.1 of
    arXiv 2601.16873, which has one head.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(0)
    >>> W, B = rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 6, 4))
    >>> target = us.MultiHeadTransformer(W, B, np.ones(6), rng.standard_normal(6))
    >>> recovery = us.learn(target, us.learners.MultiHeadTransformerLearner(4, max_heads=4))
    >>> bool(us.equivalent(recovery.model, target, rtol=1e-7))
    True
    """

    dim: int
    max_heads: int = 64
    biases: bool = True
    rank: int | None = None
    polish: bool = False
    seed: int = 0

    revision: ClassVar[int] = 8
    far: ClassVar[str] = "beyond every bend of the network"

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("max_heads", self.max_heads, 1)
        whole_number("seed", self.seed, 0)
        flag("biases", self.biases)
        flag("polish", self.polish)
        if self.rank is not None:
            rank_up_to(self.dim, self.rank, 1)

    @property
    def _network(self) -> ReluNetworkLearner:
        return _FirstNetwork(self.dim, self.biases, seed=self.seed)

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with heads and neurons."""
        d, H = int(self.dim), int(self.max_heads)
        m = usual_limit(d)
        cells = (m + 1) * ((H + 1) * d + CHECKS + 1)
        tries = sum(1 for _ in self._searches())
        one = TIMES * (H * d * (d + 3) + cells) + PER_HEAD * (H + 1) + 16 * d
        one += int(SPARE * LARGEST) + 2 * len(layer_evidence.SIDES) * m
        beside = RAYS * (POINTS + 7) * (layer_search.BY_POLES + 1) + CANCELLING_AT_MOST
        poles = pole_cost(H, d, True, layer_search.LINES)
        cost = (
            Cost.of_plan(self._network.plan())
            + tries * Cost.of(one, tokens=4, rounds=ROUNDS)
            + Cost.of(beside, tokens=2)
            + layer_search.BY_POLES * (poles + Cost(tokens=2 * poles.queries))
        )
        formula = (
            "about m·d + 6m + 260 + m²d/4000 for the network of m neurons, and "
            "H(d² + 3d) + 5H + 2d + 20 + m((H − 1)d + 2) for H heads, (m + 2)d with a residual: "
            f"{counts.multi_head_transformer_queries(d, H, 4 * d):,} for {H} heads and {4 * d} "
            "neurons"
        )
        return cost.plan(formula, most_tokens(d, *TOKENS, *POLE_LENGTHS), known=False)

    def steps(self, checks: int) -> Steps[MultiHeadTransformer]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        excess = "the target is not several heads before a ReLU network, or its answers are noisy"
        contrary = "not several heads before a ReLU network"
        return (yield from as_planned(self._steps(checks), self.plan(), excess, contrary))

    def _steps(self, checks: int) -> Steps[MultiHeadTransformer]:
        rng = np.random.default_rng(self.seed)
        part = checks // OPENING_PART
        held = yield from open_hold_out(self.dim, checks, part, rng)
        precision = held.precision()
        size = float(np.max(np.abs(held.answers), initial=0.0)) or 1.0
        coarse = self._coarse(precision, size)
        try:
            found = yield from named(self._network.steps(part), "network")
        except (ModelMismatch, NotIdentifiable) as refusal:
            if coarse:
                raise self._too_coarse(precision) from refusal
            raise
        errors = found.certificate.errors
        learned = LearnedNetwork(found.model, errors["constant"], errors["slope"], precision)
        hinges = NetworkHinges.of(found.model)
        if coarse and len(hinges):
            raise self._too_coarse(precision, learned)
        opening = [(held.opening.X, held.answers)]
        layer = yield from self._layer(learned, hinges, opening, rng)
        return (yield from layer_evidence.conclude_layer(layer, learned, held, rng))

    def _layer(
        self,
        learned: LearnedNetwork,
        hinges: NetworkHinges,
        answered: list[Answered],
        rng: np.random.Generator,
    ) -> Asking[layer_search.RecoveredTransformer]:
        """Find heads and first layers that predict what was answered, or say why not."""
        if not len(hinges):
            return self._without_neurons(learned, hinges)
        if self.dim == 1:  # half a circle needs a plane
            raise Reason.NO_CELL_BETWEEN_NEURONS.error({"network": learned.network})
        if learned.slope > COARSEST * hinges.steepness:
            raise self._too_coarse(learned.precision, learned)
        sought = SoughtHeads(self.max_heads, True, self.rank, HEADS)
        search = layer_search.LayerSearch(learned, hinges, sought, bool(self.biases), rng)
        too_many = unpooled = apart = 0
        for number, together in self._searches():
            try:
                layer = yield from search.run(number, together)
            except layer_search.DependentCells:
                self._refuse_far(learned, hinges)
                raise Reason.NO_CELL_BETWEEN_NEURONS.error({"network": learned.network}) from None
            except tuple(ENDINGS) as ending:
                too_many += isinstance(ending, TooManyBreakpoints)
                unpooled += isinstance(ending, NothingPooled)
                continue
            if together and (yield from search.meets_unseen_neuron()):
                # the ball in which heads were read may lie beside its kinks
                raise Reason.NEURON_UNSEEN_BY_TOKENS.error()
            layer, seen = yield from self._looked_at(layer, learned, answered, rng)
            answered = seen.answered
            suspect = seen.judgement.refuses or seen.outlying
            switched = suspect and (yield from seen.switches_apart(hinges))
            if not seen.judgement.refuses and not switched:
                if self.max_heads < layer.model.H:
                    raise Reason.MORE_HEADS.error(
                        heads=f"{layer.model.H} distinct", most=self.max_heads
                    )
                return layer
            apart += switched
            if apart > 1:  # the first one may have left its cell
                raise Reason.NEURONS_SWITCH_APART.error({"network": learned.network})
        if unpooled == sum(1 for _ in self._searches()):
            raise Reason.LAST_TOKEN_ALONE.error()
        if (yield from search.meets_unseen_neuron()):
            raise Reason.NEURON_UNSEEN_BY_TOKENS.error()
        if apart:
            raise Reason.NEURONS_SWITCH_APART.error({"network": learned.network})
        if (yield from search.meets_cancelling_neurons()):
            raise Reason.NEURONS_CANCEL.error({"network": learned.network})
        self._refuse_far(learned, hinges)
        if too_many == len(layer_search.STARTS):
            raise Reason.MORE_CHANGES_THAN_HEADS.error(
                most=self.max_heads, contrary="not several heads before a ReLU network"
            )
        neurons = learned.network.A.shape[1]
        rank = "" if self.rank is None else f"; some W_h has a rank above {self.rank}"
        raise Reason.NO_SEARCH_FOUND_HEADS.error(
            searches=f"{len(layer_search.STARTS)} searches in cells of the network that single "
            f"tokens show, of {neurons} neurons,",
            what="heads that predict fresh answers",
            reasons=f"there are more than max_heads = {self.max_heads}; heads are too close to "
            "each other; first layers nearly cancel in their sum; a neuron shows at no single "
            "token, or shares its hyperplane with another one there; the target is not several "
            f"softmax heads followed by a ReLU network{rank}",
        )

    def _searches(self) -> Iterator[tuple[int, bool]]:
        """Give the searches in turn, by number, the last ones for heads that switch together."""
        yield from ((number, False) for number in range(len(layer_search.STARTS)))
        yield from ((number, True) for number in range(layer_search.BY_POLES))

    def _looked_at(
        self,
        layer: layer_search.RecoveredTransformer,
        learned: LearnedNetwork,
        answered: list[Answered],
        rng: np.random.Generator,
    ) -> Asking[tuple[layer_search.RecoveredTransformer, layer_evidence.LayerLook]]:
        """Compare a layer with fresh answers; polish it where that is wanted or needed."""
        seen = yield from layer_evidence.first_look(layer, learned, answered, rng)
        missed = seen.judgement.evidence.max_residual
        vague = layer.vagueness > VAGUE or missed > PRECISE
        wanted = self.polish or seen.judgement.refuses or vague
        if not wanted or missed > NEARLY:
            return layer, seen
        better = yield from polished_layer(layer, learned, bool(self.biases), rng)
        if better is not None:
            again = yield from layer_evidence.first_look(better, learned, seen.answered, rng)
            if seen.judgement.refuses or not again.judgement.refuses:
                return better, again
        note = "Polishing the layer gained nothing, or it has too many parameters for it."
        return replace(layer, notes=(*layer.notes, note)), seen

    def _without_neurons(
        self, learned: LearnedNetwork, hinges: NetworkHinges
    ) -> layer_search.RecoveredTransformer:
        """Return a constant as a layer without heads; refuse what is linear in single tokens."""
        if np.linalg.norm(hinges.linear) > learned.slope:
            raise Reason.NO_KINK.error()
        errors = {"W": 0.0, "w": 0.0, "slope": 0.0, "constant": learned.constant}
        note = f"The network is constant, {learned.network.c:g}: no head shows."
        return layer_search.RecoveredTransformer(
            layer_search.without_heads(learned), errors, notes=(note,)
        )

    def _coarse(self, precision: Precision, size: float) -> bool:
        """Tell whether answers of this size are too coarse to show heads behind a network."""
        rounded = precision.unit > UNIT or precision.relative > 0
        return rounded or precision.absolute > NOISE * size

    def _too_coarse(
        self, precision: Precision, learned: LearnedNetwork | None = None
    ) -> RefusalError:
        """Refuse coarse answers, with the network that they tell all the same."""
        network = "of single tokens is not determined either."
        if learned is not None:
            network = f"of single tokens is, to {learned.slope:.0e} for each unit of a token."
        return Reason.TOO_COARSE_FOR_GATES.error(
            {} if learned is None else {"network": learned.network},
            also=why(precision),
            network=network,
        )

    def _refuse_far(self, learned: LearnedNetwork, hinges: NetworkHinges) -> None:
        """Refuse hyperplanes so far out that heads do not show there."""
        away = float(np.max(np.abs(hinges.b) / np.linalg.norm(hinges.A, axis=1)))
        if away > FARTHEST_HYPERPLANE:
            raise Reason.HYPERPLANE_TOO_FAR.error({"network": learned.network}, away=away)
