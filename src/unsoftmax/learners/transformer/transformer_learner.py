"""Section 4.1: a one-layer Transformer, first its network, then its attention.

Recovers T(X) = g(Σ_i α_i x_i), α = softmax_i(x_i·(W x_N + w)), g a ReLU network of one hidden
layer, from its values. The role of A_FFN is open, as in the paper: any learner that finds a
`ReluNetwork` will do, and so will a plain function that asks an oracle and returns one.

    T([x]) = g(x)                                              the network, by ``network``
    T([a+x; x]) = g(x + σ(a·(W x + w))·a), g known             W, w: one query per entry
    T(X) − T(−X) = (A w_o)·Σ_i α_i x_i                         the paper's way, two per entry

Queries: those of the network learner, and d² (d of them more with query biases, d for g at
the query tokens, a few for scales; r(2d − r) where W has rank r), twice as many when anchored
or antisymmetric. W and w are determined unless g is constant, the network up to what its own
learner says. The second line (`local`) goes beyond the paper, whose third needs a network
without biases and A w_o ≠ 0.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from unsoftmax.learners.antisymmetric_part import Cancellation
from unsoftmax.learners.compose import antisymmetric, mapped
from unsoftmax.learners.network_algorithm import Algorithm, NetworkAlgorithm
from unsoftmax.learners.relu_network.relu_learner import ReluNetworkLearner
from unsoftmax.learners.settings import Configured, as_json, flag, one_of, whole_number
from unsoftmax.learners.single_head.exact import ExactHead
from unsoftmax.learners.single_head.low_rank import LowRankHead
from unsoftmax.learners.transformer import attention_recovery, hold_out
from unsoftmax.learners.transformer.learned_network import LearnedNetwork
from unsoftmax.measure.precision import KAPPA, Precision, why
from unsoftmax.models import ReluNetwork, SingleHead, Transformer, canonical
from unsoftmax.models.model import FrozenModel
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Certificate, Found, Learner, Plan, Steps
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.drawn_models import SAFETY
from unsoftmax.validate.judge import Judgement
from unsoftmax.validate.long_sequences import MOST_ROUNDS, most_tokens

Head: TypeAlias = ExactHead | LowRankHead

# A w_o counts as 0 where it is smaller than this share of what its terms add up to, and a network
# as unbiased where its biases are: a learned network's errors leave as much.
CANCELLED = 1e-9


@dataclass(frozen=True, slots=True)
class TransformerLearner(Configured):
    """Learn a one-layer Transformer from its values: the network, then the attention.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    network : Learner of a ReluNetwork, or callable, optional
        Learns g from single tokens; `ReluNetworkLearner` by default. Its certificate may bound
        ``|ĝ(x) − g(x)|`` by "constant" + "slope"·‖x‖: without that W has no bound. A function,
        ``algorithm(oracle) → ReluNetwork``, becomes a `NetworkAlgorithm`.
    head : ExactHead or LowRankHead, optional
        Says what W is like: full rank, `ExactHead`, by default, or its rank; and whether
        there are query biases. With ``attention="antisymmetric"`` it is the learner that asks.
    attention : {"local", "antisymmetric"}
        Read W through the known network, one query per entry; or the paper's reduction to a
        single head, two per entry, for networks without biases and A w_o ≠ 0.
    anchored : bool
        Ask g once more for every entry of W ("local" only): its error falls from the
        network's, about 1e-10, to below 1e-12.
    seed : int
        Decides query tokens and the hold-out, and the default learners' seeds.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type, or does not go with another.

    Notes
    -----
    *Queries*: the network's, about m·d + 6m + 300 + m²d/4000 for m neurons, and 1.0 to 1.2 per
    entry of W; 2.0 to 2.2 anchored. *Determined up to* the function of the network; W and w are
    free when it is constant. *Certificate*: of W and w; and of the network alone ``|ĝ(p) − g(p)|``
    ≤ constant + slope·‖p‖, where p is what the head pools. It does not bound the answer to a
    sequence: errors of W and w change p. *Source*: Section 4.1 of arXiv 2601.16873 for
    "antisymmetric"; "local" is beyond it.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(0)
    >>> network = us.ReluNetwork(rng.standard_normal((4, 8)), np.ones(8), rng.standard_normal(8))
    >>> target = us.Transformer(rng.standard_normal((4, 4)), network)
    >>> recovery = us.learn(target, us.learners.TransformerLearner(4))
    >>> bool(np.allclose(recovery.model.W, target.W, rtol=0, atol=1e-7))
    True
    """

    dim: int
    network: Learner[ReluNetwork] | Algorithm | None = None
    head: Head | None = None
    attention: Literal["local", "antisymmetric"] = "local"
    anchored: bool = False
    seed: int = 0

    revision: ClassVar[int] = 5
    far: ClassVar[str] = "beyond every bend of the network"
    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {
        "head": (ExactHead, LowRankHead),
        "network": (ReluNetworkLearner, NetworkAlgorithm),
    }
    """What the settings that are learners may be, the first by default."""

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)
        flag("anchored", self.anchored)
        one_of("attention", self.attention, ("local", "antisymmetric"))
        if self.head is not None and not isinstance(self.head, ExactHead | LowRankHead):
            raise TypeError(f"head must be an ExactHead or a LowRankHead; it is {self.head!r}.")
        if self.head is not None and self.head.table is not None:
            raise ValueError("head must learn from vectors: leave its table out.")
        for name, part in (("network", self._network), ("head", self._head)):
            if getattr(part, "dim", None) != self.dim:
                raise ValueError(f"{name} must learn {self.dim} dimensions; it is {part!r}.")
        if self.attention == "local":
            self._check_local()
        elif self.anchored:
            raise ValueError('anchored goes with attention="local" alone.')
        elif self._head.biases:
            raise ValueError(
                'attention="antisymmetric" does not allow query biases: they change the scores of '
                '−X. Use "local".'
            )

    def _check_local(self) -> None:
        if isinstance(self.head, ExactHead) and self.head.probes != "balanced":
            raise ValueError('attention="local" has probes of its own: leave probes out.')
        if isinstance(self.head, LowRankHead) and self.head.tolerance is not None:
            raise ValueError('attention="local" takes no tolerance: leave it out.')
        if isinstance(self.head, LowRankHead) and self.head.rank is None:
            raise ValueError(
                'attention="local" needs the rank: head=LowRankHead(dim, rank); for a '
                "trained head it is the key dimension."
            )

    @property
    def _network(self) -> Learner[ReluNetwork]:
        network = self.network
        if network is None:
            biases = self.attention == "local"
            return ReluNetworkLearner(self.dim, biases=biases, seed=self.seed)
        if callable(getattr(network, "steps", None)):
            return cast("Learner[ReluNetwork]", network)
        if isinstance(network, FrozenModel | type) or not callable(network):
            raise TypeError(
                "network must be a learner of a network, or a function from an oracle to a "
                f"ReluNetwork; it is {network!r}."
            )
        return NetworkAlgorithm(self.dim, network, seed=self.seed)

    @property
    def _head(self) -> Head:
        return ExactHead(self.dim, seed=self.seed) if self.head is None else self.head

    @property
    def _assumed(self) -> attention_recovery.AssumedAttention:
        rank = self.head.rank if isinstance(self.head, LowRankHead) else None
        return attention_recovery.AssumedAttention(int(self.dim), rank, bool(self._head.biases))

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        parts = {"network": as_json(self._network), "head": as_json(self._head)}
        return {**Configured.settings(self), **parts}

    def plan(self) -> Plan:
        """Say what learning costs at most; what the network takes depends on its neurons."""
        first = self._network.plan()
        if self.attention == "antisymmetric":
            head = self._head.plan()
            asked, rounds, formula = 2 * head.at_most, head.rounds, f"2·({head.formula})"
        else:
            asked = attention_recovery.most_queries(self._assumed, bool(self.anchored))
            rounds, formula = attention_recovery.MOST_ATTENTION_ROUNDS, self._formula
        cost = (
            Cost.of_plan(first)
            + Cost.of(asked, tokens=2, rounds=rounds)
            + Cost(rounds=2 + MOST_ROUNDS)
        )
        formula = f"network: {first.formula}; attention: {formula}"
        return cost.plan(formula, most_tokens(int(self.dim), *hold_out.TOKENS), known=False)

    @property
    def _formula(self) -> str:
        """Where the queries of attention="local" come from."""
        full, biases = self._assumed.rank is None, self._assumed.biases
        entries = "d²" if full else "r(2d − r)"
        entries += (" + d" if full else " + r") if biases else ""
        return (f"2·({entries})" if self.anchored else f"{entries} + d") + " and a few for scales"

    def steps(self, checks: int) -> Steps[Transformer]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng = np.random.default_rng(self.seed)
        part = checks // hold_out.OPENING_PART
        held = yield from hold_out.open_hold_out(self.dim, checks, part, rng)
        found = yield from self._network.steps(part)
        learned = learned_network(found, held.precision(), held.answers)
        if self.attention == "local":
            attention = yield from attention_recovery.recover_attention(
                learned, self._assumed, bool(self.anchored), rng
            )
        else:
            pairs = held.left // 4  # half of what is left checks the head, two queries each
            held = replace(held, left=held.left - 2 * pairs)
            head = self._head.steps(pairs)
            attention = yield from recover_antisymmetric(learned, head)
        local = self.attention == "local"
        parts = TransformerParts(attention, learned, found, self._assumed, local)
        return (yield from conclude_transformer(parts, held, rng))


@dataclass(frozen=True, slots=True)
class TransformerParts:
    """Everything that was learned of a Transformer.

    Attributes
    ----------
    attention : RecoveredAttention
        The model, and bounds on W and w.
    learned : LearnedNetwork
        Its network, with what bounds its error and the answers'.
    network : Found of ReluNetwork
        What the network's learner returned.
    assumed : AssumedAttention
        What W and w were taken to be.
    local : bool
        Whether they were read through the network.
    """

    attention: attention_recovery.RecoveredAttention
    learned: LearnedNetwork
    network: Found[ReluNetwork]
    assumed: attention_recovery.AssumedAttention
    local: bool = True

    @property
    def errors(self) -> dict[str, float]:
        """Bounds for the certificate."""
        return {
            "constant": self.learned.constant,
            "slope": self.learned.slope,
            "W": self.attention.W_error,
            "w": self.attention.w_error,
        }

    def assumes(self, looked: str) -> tuple[str, ...]:
        """Say what the bounds rest on; ``looked`` is how far the hold-out looked."""
        learned, rank = self.learned, self.assumed.rank
        given = [
            "The target is one softmax head followed by the network: the hold-out tests this but "
            "cannot prove it."
        ]
        if rank is not None:
            given.append(f"{'[W w]' if self.assumed.biases else 'W'} has rank {rank} or less.")
        if not np.isfinite(learned.constant + learned.slope):
            given.append(
                "No bound on W: the network's certificate does not bound its function by constant "
                "+ slope·‖x‖."
            )
        elif self.local:
            given.append(
                f"The bounds on W and w are {SAFETY:.0f} times what they move by when the same "
                "answers are read with drawn errors, through networks that differ from the learned "
                "one by as much as single tokens show it to be off."
            )
        return (*self.network.certificate.assumes, *given, *learned.precision.why, looked)


def conclude_transformer(
    parts: TransformerParts, held: hold_out.TransformerHoldOut, rng: np.random.Generator
) -> Steps[Transformer]:
    """Ask the closing hold-out and return what was found.

    Raises
    ------
    ModelMismatch
        A fresh answer is farther off than the certificate allows.
    NotIdentifiable
        The answers are too coarse to say anything of W.
    """
    model, errors = parts.attention.model, parts.errors
    found = hold_out.HeadsBeforeNetwork.of(model, parts.learned, errors)
    judgement, looked = yield from found.judged(held, rng)
    if judgement.refuses:
        raise _refusal(found, judgement)
    notes = parts.network.notes
    if not np.isfinite(errors["W"]):
        notes = (*notes, "There is no finite bound on W: see the certificate's assumptions.")
    return Found(model, Certificate(errors, parts.assumes(looked)), judgement.evidence, notes)


def _refusal(found: hold_out.HeadsBeforeNetwork, judgement: Judgement) -> Exception:
    """Say why fresh answers do not support the model."""
    precision = found.learned.precision
    if judgement.blunt or (precision != Precision() and not found.bounded):
        return Reason.NO_TEST_TELLS.error(
            {"network": found.learned.network},
            also=why(precision),
            lacking="they are too coarse",
            known="The network",
        )
    residual, tolerance = judgement.worst
    return Reason.FRESH_ANSWERS_MISSED.error(
        model="model",
        missed=residual,
        allowed=tolerance,
        contrary="not one softmax head followed by a ReLU network, or it has query biases, or "
        "[W w] a higher rank than was said",
    )


def learned_network(
    found: Found[ReluNetwork], precision: Precision, answers: Array
) -> LearnedNetwork:
    """Return the network that was found, with bounds on what it and the answers are off by.

    ``answers`` are the hold-out's first, to sequences of several tokens.

    Raises
    ------
    TypeError
        What was found is no ReluNetwork.
    NotIdentifiable, ModelMismatch
        The network is constant: W is free, or the target is no Transformer.
    """
    network, errors = found.model, found.certificate.errors
    if not isinstance(network, ReluNetwork):
        raise TypeError(f"network must learn a ReluNetwork; it found {network!r}.")
    constant, slope = (float(errors.get(name, np.inf)) for name in ("constant", "slope"))
    learned = LearnedNetwork(network, constant, slope, precision)
    if not canonical(network).A.shape[1]:
        raise _constant_network(learned, answers)
    return learned


def _constant_network(learned: LearnedNetwork, answers: Array) -> Exception:
    """Say what a constant network means: nothing depends on the attention."""
    c = learned.network.c
    off = learned.constant + learned.answer_error(np.zeros((1, learned.dim)), np.array([c]))[0]
    if np.any(np.abs(answers - c) > 2 * off):
        return Reason.LONGER_SEQUENCES_CONTRADICT.error(
            how=f"by {c:g} alone", contrary="not one softmax head followed by a ReLU network"
        )
    return Reason.NETWORK_IS_CONSTANT.error({"network": learned.network}, c=c)


# -- the paper's way: T(X) − T(−X) = (A w_o)·Σ_i α_i x_i, of T without biases, is a head with
# v = A w_o, two queries each: any learner of a single head finds W. It needs a network without
# biases, and A w_o ≠ 0; both are looked up in the network that was learned. The head's bound is for
# answers whose errors are relative to the differences' size: it is wider by how much larger the
# answers are, or the terms that they are sums of.


def recover_antisymmetric(
    learned: LearnedNetwork, head: Steps[SingleHead]
) -> Generator[Round, Answers, attention_recovery.RecoveredAttention]:
    """Learn the single head that T(X) − T(−X) is.

    Parameters
    ----------
    learned : LearnedNetwork
        The network, not constant.
    head : generator
        The steps of a learner of that head.
    """
    _refuse_biased(learned)
    _refuse_cancelled(learned)
    loss = Cancellation()
    found: Found[SingleHead] = yield from mapped(antisymmetric(head), answer=loss.noted)
    errors, network = found.certificate.errors, learned.network
    scores = {name: x for name, x in found.model.arrays().items() if name in "WKQ"}
    arrays = {f"network.{name}": x for name, x in network.arrays().items()}
    model = Transformer.from_arrays({**scores, **arrays})
    lost = max(loss.ratio, _terms(learned) / float(np.linalg.norm(_value(network))))
    # noise is estimated from few answers, and not from these
    coarse = 1.0 if learned.precision == Precision() else KAPPA
    return attention_recovery.RecoveredAttention(model, coarse * lost * errors["W"], 0.0)


def _value(network: ReluNetwork) -> Array:
    """Return A w_o."""
    return np.asarray(network.A @ network.w_o)


def _terms(learned: LearnedNetwork) -> float:
    """Return Σ_k ‖A_k‖·|w_k|, what the terms of A w_o add up to."""
    network = learned.network
    return float(np.linalg.norm(network.A, axis=0) @ np.abs(network.w_o))


def _refuse_biased(learned: LearnedNetwork) -> None:
    network = learned.network
    biases = float(np.abs(network.w_o) @ np.abs(network.b))
    if biases > learned.constant + CANCELLED * _terms(learned):
        raise Reason.NETWORK_HAS_BIASES.error()


def _refuse_cancelled(learned: LearnedNetwork) -> None:
    network = learned.network
    if np.linalg.norm(_value(network)) <= CANCELLED * _terms(learned):
        raise Reason.DIFFERENCE_IS_0.error({"network": network})
