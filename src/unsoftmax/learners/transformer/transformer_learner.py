"""Section 4.1: a one-layer Transformer, first its network, then its attention.

Recovers T(X) = g(Σ_i α_i x_i), α = softmax_i(x_i·(W x_N + w)), g a ReLU network of one hidden
layer, from its values. The role of A_FFN is open, as in the paper: any learner that finds a
`ReluNetwork` will do.

    T([x]) = g(x)                                              the network, by ``network``
    T([a+x; x]) = g(x + σ(a·(W x + w))·a), g known             W, w: one query per entry
    T(X) − T(−X) = (A w_o)·Σ_i α_i x_i                         the paper's way, two per entry

Queries: those of the network learner, and d² (d of them more with query biases, d for g at
the query tokens, a few for scales; r(2d − r) where W has rank r), twice as many when anchored
or antisymmetric. W and w are determined unless g is constant, the network up to what its own
learner says. The second line (`local`) goes beyond the paper, whose third needs a network
without biases and A w_o ≠ 0.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import antisymmetric
from unsoftmax.learners.relu_network.relu_learner import ReluNetworkLearner
from unsoftmax.learners.settings import Configured, as_json, flag, one_of, whole
from unsoftmax.learners.single_head.exact import ExactHead
from unsoftmax.learners.single_head.low_rank import LowRankHead
from unsoftmax.learners.transformer.known import Known
from unsoftmax.learners.transformer.local import Attention, most_queries, recover_attention
from unsoftmax.learners.transformer.verdict import conclude
from unsoftmax.measure.precision import Precision
from unsoftmax.models import ReluNetwork, SingleHead, Transformer, canonical
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.protocol import Answers, Found, Learner, Plan, Steps
from unsoftmax.validate import sequences as holdout

# Where A w_o is smaller than this share of what its terms add up to, it is what rounding left.
_CANCELLED = 1e-9
# So many queries of the hold-out go to the network, and as many to the first sequences.
_SHARE = 4
_LOCAL_ROUNDS = 40

Head: TypeAlias = ExactHead | LowRankHead


@dataclass(frozen=True, slots=True)
class TransformerLearner(Configured):
    """Learn a one-layer Transformer from its values: the network, then the attention.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    network : Learner of a ReluNetwork, optional
        Learns g from single tokens; `ReluNetworkLearner` by default. Its certificate may bound
        ``|ĝ(x) − g(x)|`` by "constant" + "slope"·‖x‖: without that W has no bound.
    head : ExactHead or LowRankHead, optional
        Says what W is like: full rank, `ExactHead`, by default, or its rank; and whether
        there are query biases. With ``attention="antisymmetric"`` it is the learner that asks.
    attention : {"local", "antisymmetric"}
        Read W through the known network, one query per entry; or the paper's reduction to a
        single head, two per entry, for networks without biases and A w_o ≠ 0.
    anchored : bool
        Ask g once more for every entry of W ("local" only): its error falls from the
        network's, about 1e-10, to 1e-14.
    seed : int
        Decides query tokens and the hold-out, and the default learners' seeds.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type, or does not go with another.

    Notes
    -----
    *Queries*: the network's, about m·d + 12m + 300 for m neurons, and 1.0 to 1.2 per entry of
    W; 2.0 to 2.2 anchored. *Determined up to* the function of the network; W and w are free
    when it is constant. *Source*: Section 4.1 of arXiv 2601.16873 for "antisymmetric"; "local"
    is beyond it.

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
    network: Learner[ReluNetwork] | None = None
    head: Head | None = None
    attention: Literal["local", "antisymmetric"] = "local"
    anchored: bool = False
    seed: int = 0

    revision: ClassVar[int] = 1
    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {
        "head": (ExactHead, LowRankHead),
        "network": (ReluNetworkLearner,),
    }
    """What the settings that are learners may be, the first by default."""

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1)
        whole("seed", self.seed, 0)
        flag("anchored", self.anchored)
        one_of("attention", self.attention, ("local", "antisymmetric"))
        if self.head is not None and not isinstance(self.head, ExactHead | LowRankHead):
            raise TypeError(f"head must be an ExactHead or a LowRankHead; it is {self.head!r}.")
        if self.network is not None and not callable(getattr(self.network, "steps", None)):
            raise TypeError(f"network must be a learner of a network; it is {self.network!r}.")
        for name in ("network", "head"):
            part = getattr(self, name)
            if part is not None and getattr(part, "dim", None) != self.dim:
                raise ValueError(f"{name} must learn {self.dim} dimensions; it is {part!r}.")
        if self.attention == "local":
            self._check_local()
        elif self.anchored:
            raise ValueError('anchored goes with attention="local" alone.')
        elif self._head.biases:
            raise ValueError(
                'attention="antisymmetric" knows no query biases: −X would have other scores. Use '
                '"local".'
            )

    def _check_local(self) -> None:
        if isinstance(self.head, ExactHead) and self.head.probes != "balanced":
            raise ValueError('attention="local" has probes of its own: leave probes out.')
        if isinstance(self.head, LowRankHead) and self.head.tolerance is not None:
            raise ValueError('A tolerance is of no use to attention="local".')
        if isinstance(self.head, LowRankHead) and self.head.rank is None:
            raise ValueError(
                'attention="local" needs the rank: head=LowRankHead(dim, rank) (--rank); for a '
                "trained head it is the key dimension."
            )

    @property
    def _network(self) -> Learner[ReluNetwork]:
        if self.network is not None:
            return self.network
        biases = self.attention == "local"
        return ReluNetworkLearner(self.dim, biases=biases, seed=self.seed)

    @property
    def _head(self) -> Head:
        return ExactHead(self.dim, seed=self.seed) if self.head is None else self.head

    @property
    def _rank(self) -> int | None:
        return self.head.rank if isinstance(self.head, LowRankHead) else None

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        parts = {"network": as_json(self._network), "head": as_json(self._head)}
        return {**Configured.settings(self), **parts}

    def plan(self) -> Plan:
        """Say what learning costs at most; what the network takes depends on its neurons."""
        d, first = int(self.dim), self._network.plan()
        if self.attention == "antisymmetric":
            head = self._head.plan()
            asked, rounds, formula = 2 * head.at_most, head.rounds, f"2·({head.formula})"
        else:
            biases = bool(self._head.biases)
            asked = most_queries(d, self._rank, biases, bool(self.anchored))
            rounds = _LOCAL_ROUNDS
            entries = "d²" if self._rank is None else "r(2d − r)"
            entries += (" + d" if self._rank is None else " + r") if biases else ""
            formula = f"2·({entries})" if self.anchored else f"{entries} + d"
            formula += " and a few for scales"
        return Plan(
            queries=None,
            at_most=first.at_most + asked,
            tokens=first.tokens + 2 * asked,
            rounds=first.rounds + rounds + 2,
            formula=f"network: {first.formula}; attention: {formula}",
        )

    def steps(self, checks: int) -> Steps[Transformer]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng = np.random.default_rng(self.seed)
        share = checks // _SHARE
        opening = holdout.opening(self.dim, share, rng)
        opened = again = np.zeros(0)
        if share:
            [opened] = yield [opening]
        if repeats := share // 2:
            [again] = yield [holdout.repeated(opening, repeats)]
        found = yield from self._network.steps(share)
        network, errors = found.model, found.certificate.errors
        if not isinstance(network, ReluNetwork):
            raise TypeError(f"network must learn a ReluNetwork; it found {network!r}.")
        known = Known(
            network,
            float(errors.get("constant", np.inf)),
            float(errors.get("slope", np.inf)),
            _precision(opened, again),
        )
        if not canonical(network).A.shape[1]:
            _refuse_constant(known, opening, opened)
        left = checks - 2 * share - repeats
        if self.attention == "local":
            attention = yield from recover_attention(
                known, self._rank, bool(self._head.biases), bool(self.anchored), rng
            )
        else:
            used = 2 * (left // 4)
            attention = yield from self._reduced(known, used // 2)
            left -= used
        return (
            yield from conclude(
                attention,
                known,
                found,
                (opening, opened),
                left,
                checks,
                rng,
                self._rank,
                bool(self._head.biases),
            )
        )

    def _reduced(self, known: Known, checks: int) -> Generator[Round, Answers, Attention]:
        """Learn the single head that T(X) − T(−X) is."""
        network = known.network
        v, terms = network.A @ network.w_o, np.linalg.norm(network.A, axis=0) @ np.abs(network.w_o)
        if float(np.abs(network.w_o) @ np.abs(network.b)) > known.constant + _CANCELLED * terms:
            raise ModelMismatch(
                "The network has biases: T(X) − T(−X) is not a single head. Use "
                'attention="local", which allows them.'
            )
        if np.linalg.norm(v) <= _CANCELLED * terms:
            raise NotIdentifiable(
                "A w_o = 0: T(X) − T(−X) is 0 whatever W is, and the antisymmetric part "
                'determines nothing. attention="local" learns W all the same.',
                determined={"network": network},
            )
        found: Found[SingleHead] = yield from antisymmetric(self._head.steps(checks))
        head, errors = found.model, found.certificate.errors
        scores = {name: x for name, x in head.arrays().items() if name in "WKQ"}
        model = Transformer.from_arrays(
            {**scores, **{f"network.{name}": x for name, x in network.arrays().items()}}
        )
        # answers are differences of two: what is seen of their precision counts twice
        coarse = 1.0 if known.precision == Precision() else 2.0
        return Attention(model, coarse * errors["W"], 0.0)


def _precision(opened: Array, again: Array) -> Precision:
    """Read the precision off the first answers, unless they are few: g may be flat there."""
    precision = Precision()
    if len(np.unique(opened)) == len(opened) and np.all(opened != 0):
        precision = Precision.of_format([opened])
    return precision.with_noise(holdout.noise_of(opened[: len(again)], again), len(again))


def _refuse_constant(known: Known, probes: Sequences, answers: Array) -> None:
    """Refuse a network that is constant: nothing depends on the attention."""
    c = known.network.c
    off = known.constant + known.rounding(np.zeros((1, known.network.dim)), np.array([c]))[0]
    if np.any(np.abs(answers - c) > 2 * off):
        raise ModelMismatch(
            f"Single tokens are all answered by {c:g}, longer sequences are not: the target is "
            "not one softmax head followed by a ReLU network."
        )
    raise NotIdentifiable(
        f"The network is constant, {c:g}: no answer depends on the attention, and W is free.",
        determined={"network": known.network},
    )
