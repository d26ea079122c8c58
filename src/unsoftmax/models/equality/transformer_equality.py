"""Do two Transformers compute the same function? Decided on their networks and on [W w].

T([(a+b); b]) = g(b + σ(a·(W b + w))·a) determines W and w wherever g is not constant, and g is
T at single tokens. So the canonical form is the network's own, with W = 0 and w = 0 where it is
constant; and with an affine network, g(p) = l·p + c, a Transformer is the head with v = l.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention import token_scores
from unsoftmax.models.equality.equivalence import Equivalence, ModelEquality, Tolerance
from unsoftmax.models.equality.exact_products import same_scores
from unsoftmax.models.equality.head_matching import canonical_heads
from unsoftmax.models.equality.relu_network_equality import ReluNetworkEquality, sum_of_sizes
from unsoftmax.models.equality.witnesses import WitnessTuning, candidates, witness_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.single_head import SingleHead
from unsoftmax.models.transformer import Transformer
from unsoftmax.probes import Array


class SingleTokensOnly(Transformer):
    """A Transformer with W = 0 that answers single tokens, and only these, as several heads do."""


@dataclass(frozen=True, slots=True)
class TransformerEquality(ModelEquality[Transformer]):
    """Transformers are equal if their networks and [W w] are."""

    model: ClassVar[type[FrozenModel]] = Transformer

    roundoffs: float = 128.0
    """Rounding of an answer, in roundoffs of its terms and per dimension. Too small: rounding
    passes for a difference; too large: small differences stay undecided."""
    networks: ReluNetworkEquality = field(default=ReluNetworkEquality())
    witnesses: WitnessTuning = field(default=WitnessTuning())

    def canonical(self, model: Transformer) -> Transformer:
        """Return the Transformer that stands for all that compute the same function."""
        network = self.networks.canonical(model.network)
        if network.A.shape[1]:
            return model.before(network)
        return Transformer(np.zeros((model.dim, model.dim)), network)

    def simplest(self, model: Transformer) -> FrozenModel:
        """Return a Transformer with an affine network as the head that it is."""
        if (affine := self.networks.affine_part(model.network)) is None:
            return model
        scores = {name: x for name, x in model.arrays().items() if name in "WKQw"}
        return SingleHead.from_arrays({**scores, "v": affine[0], "c": affine[1]})

    def read(self, model: FrozenModel) -> Transformer | None:
        """Return a head as a Transformer; of several heads what they answer to single tokens.

        A Transformer that is no head has a network that is not affine, so single tokens tell it
        from several heads.
        """
        if isinstance(model, Transformer):
            return model
        if isinstance(model, MultiHead):
            model = canonical_heads(model)
            if model.H > 1:
                network = _linear_network(model.v.sum(axis=0), model.c)
                return SingleTokensOnly(np.zeros((model.dim, model.dim)), network)
            W, v, w = (x.sum(axis=0) for x in (model.W, model.v, model.w))  # of one head or none
            model = SingleHead(W, v, w, model.c)
        if isinstance(model, SingleHead):
            return Transformer(model.W, _linear_network(model.v, model.c), model.w)
        return None

    def compare(self, a: Transformer, b: Transformer, tolerance: Tolerance) -> Equivalence:
        """Compare the networks, then [W w] as one block."""
        networks = self.networks.compare(a.network, b.network, tolerance)
        single_tokens = isinstance(a, SingleTokensOnly) or isinstance(b, SingleTokensOnly)
        a, b = self.canonical(a), self.canonical(b)
        mine, other = (np.column_stack([model.W, model.w]) for model in (a, b))
        within, gap = tolerance.compare(mine, other)
        if tolerance.exact:
            within = same_scores(a, b)
        gap = max(gap, networks.gap)
        if within and networks and not single_tokens:
            return Equivalence("equal", None, gap, networks.by)
        witness = networks.witness
        if witness is None and not single_tokens:
            witness = witness_of(a, b, self._sequences(a, b), self._rounding)
        return Equivalence.unequal(witness, gap)

    def _sequences(self, a: Transformer, b: Transformer) -> Iterator[Array]:
        """Make sequences that tell two attentions apart, as for heads with v = A w_o or A|w_o|."""
        network = a.network
        for weights in (network.w_o, np.abs(network.w_o)):
            v = network.A @ weights
            heads = [SingleHead(model.W, v, model.w) for model in (a, b)]
            yield from candidates(heads[0], heads[1], self.witnesses)

    def _rounding(self, model: Transformer, X: Array) -> Array:
        """Bound the rounding of a Transformer's answers: of the network, and of scores."""
        network, longest = model.network, np.linalg.norm(X, axis=2).max(axis=1)
        scores = np.abs(token_scores(X, model.scores_of(X[:, -1]))).max(axis=1)
        steep = float(np.abs(network.w_o) @ np.linalg.norm(network.A, axis=0))
        size = sum_of_sizes(network, np.abs(X).max(axis=1)) + longest * steep * (1 + scores)
        return np.asarray(self.roundoffs * UNIT * model.dim * size)


def _linear_network(v: Array, c: float) -> ReluNetwork:
    """Return x·v + c as a network."""
    return ReluNetwork(np.column_stack([v, -v]), [1.0, -1.0], None, c)
