"""Do two Transformers of several heads compute the same function? On their heads and network.

The model is a network of Hd inputs on what the heads pool, p = (p_1, …, p_H). If n copies of a
token y join a sequence with a small weight, p_h moves by a multiple of (y − p_h)·e^{y·u_h}, with
u_h = W_h x_N + w_h: of distinct u_h such functions of y are linearly independent, so p moves in
every direction. Sequences therefore show the network in open sets of R^{Hd}. With p_h the gradient
of log Σ_i e^{x_i·u} at u_h, p at x_N = b and at −b, both long, are of opposite order along the
W_h b: where all W_h differ every hyperplane is crossed. So functions are equal exactly if the
heads are, those with equal (W, w) merged, and networks are as `relu_network_equality` says. With a
residual the last token is d inputs more. It stays where others move, so p and x_N move
independently, and no head can stand for it: it is an input of its own.

With one head left this is a Transformer, with an affine network several heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention import token_scores
from unsoftmax.models.equality.equivalence import (
    Equivalence,
    ModelEquality,
    Tolerance,
    norm_of,
    share_of,
)
from unsoftmax.models.equality.head_matching import (
    distances,
    distinct_heads,
    match,
    places_exactly,
    places_nearly,
    score_rows,
    sum_of_rows,
)
from unsoftmax.models.equality.relu_network_equality import (
    ReluNetworkEquality,
    points_in_cells,
    sum_of_sizes,
)
from unsoftmax.models.equality.transformer_equality import TransformerEquality
from unsoftmax.models.equality.witnesses import WitnessTuning, candidates, witness_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.multi_head_transformer import MultiHeadTransformer
from unsoftmax.models.relu_network import ReluNetwork, typical_length
from unsoftmax.models.single_head import SingleHead
from unsoftmax.models.transformer import Transformer
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class MultiHeadTransformerEquality(ModelEquality[MultiHeadTransformer]):
    """Models are equal if their heads are, matched one to one, and the networks behind them."""

    model: ClassVar[type[FrozenModel]] = MultiHeadTransformer

    roundoffs: float = 128.0
    """Rounding of an answer, in roundoffs of its terms and per dimension. Too small: rounding
    passes for a difference; too large: small differences stay undecided."""
    pairs_tried: int = 8
    """Pairs of heads, those that differ most, that sequences are made for. With fewer a difference
    in another pair may stay undecided."""
    sequences: int = 128
    """Random sequences of each length and size: for networks that differ where single tokens show
    nothing. With fewer a small difference may stay undecided."""
    powers_of_four: int = 8
    """Sizes of random sequences go up and down so far, where neurons far from 0 are reached."""
    enough: float = 2.0**10
    """The search ends at a sequence that differs by this many times the rounding: larger ones
    show no more."""
    networks: ReluNetworkEquality = field(default=ReluNetworkEquality())
    heads: TransformerEquality = field(default=TransformerEquality())
    witnesses: WitnessTuning = field(default=WitnessTuning())

    def canonical(self, model: MultiHeadTransformer) -> MultiHeadTransformer:
        """Return the model that stands for all that compute the same function.

        Heads with equal (W, w) are one and their B is added up; they are ordered by W, then w,
        entry by entry. The network on all of them is in its canonical form; heads that it does
        not see are left out.
        """
        scores, d = score_rows(model) + 0.0, model.dim  # −0 becomes 0
        groups = distinct_heads(scores)
        first = [group[0] for group in groups]
        H, m, _ = model.B.shape
        rows = model.B.reshape(H, m * d)
        B = np.array([sum_of_rows(rows[group]) for group in groups]).reshape(len(groups), m, d)
        if model.residual is not None:
            B = np.concatenate([B, model.residual[None]])
        network = self.networks.canonical(_network(B, model))
        B = network.A.T.reshape(len(network.b), max(1, len(B)), d).transpose(1, 0, 2)
        seen = [h for h in range(len(groups)) if np.any(B[h])]
        kept = scores[[first[h] for h in seen]]
        W, w = kept[:, : d * d].reshape(-1, d, d), kept[:, d * d :]
        R = B[-1] if model.residual is not None and np.any(B[-1]) else None
        return MultiHeadTransformer(W, B[seen], network.w_o, network.b, w, network.c, R)

    def simplest(self, model: MultiHeadTransformer) -> FrozenModel:
        """Return one head before a network as a Transformer, an affine network as its heads."""
        if model.H != 1 or model.residual is not None:
            form = self.canonical(model)
            if form.residual is not None:
                return model
            affine = self.networks.affine_part(_network(form.B, form))
            if form.H > 1 and affine is None:
                return model
            if form.H > 1 and affine is not None:
                v = affine[0].reshape(form.H, form.dim)
                return MultiHead(form.W, v, form.w, affine[1])
            model = form if form.H else _constant(form)
        scores = {name: array[0] for name, array in model.arrays().items() if name in "WKQw"}
        parts = {f"network.{name}": array for name, array in model.network.arrays().items()}
        return self.heads.simplest(Transformer.from_arrays({**scores, **parts}))

    def read(self, model: FrozenModel) -> MultiHeadTransformer | None:
        """Return a head, several, or a Transformer, as several heads before a network."""
        if isinstance(model, MultiHeadTransformer):
            return model
        if isinstance(model, MultiHead):
            B, c = np.stack([model.v, -model.v], axis=1), model.c
            return MultiHeadTransformer(model.W, B, [1.0, -1.0], None, model.w, c)
        one = self.heads.read(model)
        return None if one is None else MultiHeadTransformer.of(one)

    def compare(
        self, a: MultiHeadTransformer, b: MultiHeadTransformer, tolerance: Tolerance
    ) -> Equivalence:
        """Match the heads, then compare the networks on what all of them pool."""
        if tolerance.exact:
            places, worst = places_exactly([*_heads(a), *_heads(b)]), 0.0
        else:
            a, b = self.canonical(a), self.canonical(b)
            relative, close = distances(score_rows(a), score_rows(b), tolerance)
            places, worst = _matched(np.where(close, relative, np.inf))
        by, gap = self.networks.agreement(*self._networks(a, b, places), tolerance)
        if by is not None:
            return Equivalence("equal", None, max(gap, worst), by)
        if self._equal_if_merged(a, b, places, tolerance):
            return Equivalence.unequal(None, max(gap, worst))
        relative, _ = distances(score_rows(a), score_rows(b), tolerance)
        nearest, worst = _matched(relative)
        if nearest != places:
            gap = self.networks.agreement(*self._networks(a, b, nearest), Tolerance(0.0, 0.0))[1]
        families = self._sequences(a, b, nearest)
        witness = witness_of(a, b, families, self._rounding, self.enough)
        return Equivalence.unequal(witness, max(gap, worst))

    def _equal_if_merged(
        self,
        a: MultiHeadTransformer,
        b: MultiHeadTransformer,
        places: Sequence[int],
        tolerance: Tolerance,
    ) -> bool:
        """Tell whether the models are equal if heads of one model within the tolerance are one."""
        scores = np.concatenate([score_rows(a), score_rows(b)])
        merged = places_nearly(scores, tolerance)
        if tolerance.exact or len({*merged}) >= len({*places}):
            return False
        return bool(self.networks.agreement(*self._networks(a, b, merged), tolerance)[0])

    def share(
        self, a: MultiHeadTransformer, b: MultiHeadTransformer, errors: Mapping[str, float]
    ) -> float:
        """Compare W and w head by head, and networks' values, with the bound on each.

        ``constant`` + ``slope``·‖p‖ bounds the network at what all heads pool, p of Hd numbers.
        """
        a, b = self.canonical(a), self.canonical(b)
        relative, _ = distances(score_rows(a), score_rows(b), Tolerance(0.0, 0.0))
        places, _ = _matched(relative)
        shares = [self.networks.share(*self._networks(a, b, places), errors)]
        for g, h in _pairs(places, a.H):
            for name in ("W", "w"):
                mine, other = getattr(a, name)[g], getattr(b, name)[h]
                shares.append(share_of(norm_of(mine - other), errors, name))
        return max(shares)

    def _networks(
        self, a: MultiHeadTransformer, b: MultiHeadTransformer, places: Sequence[int]
    ) -> tuple[ReluNetwork, ReluNetwork]:
        """Return both networks on the heads of both, put where ``places`` says: first a's.

        Where one has a residual, the last token follows in both.
        """
        count = 1 + max([0, *places])
        residual = a.residual is not None or b.residual is not None
        mine, other = places[: a.H], places[a.H :]
        placed = _placed(a, mine, count, residual), _placed(b, other, count, residual)
        return _network(placed[0], a), _network(placed[1], b)

    def _sequences(
        self, a: MultiHeadTransformer, b: MultiHeadTransformer, places: Sequence[int]
    ) -> Iterator[Array]:
        """Make single tokens, pairs for heads that differ, and random sequences of all sizes."""
        shown = [model.on_single_tokens for model in (a, b)]
        length = typical_length(*shown)
        yield points_in_cells([(g.A.T, g.b) for g in shown], length, self.sequences)[:, None]
        yield from self._random(a.dim, length)
        for g, h in _pairs(places, a.H)[: self.pairs_tried]:
            for weights in (a.w_o, np.abs(a.w_o)):
                heads = [
                    SingleHead(model.W[k], a.B[g].T @ weights, model.w[k])
                    for model, k in ((a, g), (b, h))
                ]
                for X in candidates(heads[0], heads[1], self.witnesses):
                    yield X
                    if X.shape[1] == 2:
                        yield X[:, [0, 0, 1]]

    def _random(self, dim: int, length: float) -> Iterator[Array]:
        rng = np.random.default_rng(2)
        sizes = length * 4.0 ** np.arange(-self.powers_of_four, self.powers_of_four + 1)
        for tokens in (2, 3, 6):
            X = rng.standard_normal((self.sequences, tokens, dim))
            yield from (size * X for size in sizes)
            # few large tokens: gates are neither all open nor all closed
            X *= 10.0 ** rng.uniform(-3, 3, (self.sequences, tokens, 1))
            yield from (size * X for size in sizes)

    def _rounding(self, model: MultiHeadTransformer, X: Array) -> Array:
        """Bound the rounding of answers: of the network, and of scores, which move the weights."""
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        scores = np.abs(token_scores(X, model.scores_of(X[:, -1]))).max(axis=2)
        steep = np.linalg.norm(model.first_layers, axis=2) @ np.abs(model.w_o)
        size = longest * (steep.sum() + scores @ steep[: model.H])
        for first in model.first_layers:
            network = ReluNetwork(first.T, model.w_o, model.b, model.c)
            size = size + sum_of_sizes(network, np.abs(X).max(axis=1))
        return np.asarray(self.roundoffs * UNIT * model.dim * size)


def _network(B: Array, model: MultiHeadTransformer) -> ReluNetwork:
    """Return the network behind first layers (H, m, d), of d inputs where there is no head."""
    if not len(B):
        B = np.zeros((1, *model.B.shape[1:]))
    A = B.transpose(0, 2, 1).reshape(len(B) * model.dim, len(model.b))
    return ReluNetwork(A, model.w_o, model.b, model.c)


def _placed(
    model: MultiHeadTransformer, places: Sequence[int], count: int, residual: bool
) -> Array:
    """Return first layers in their places among ``count``, and that of the last token behind.

    Heads of one place are added up.
    """
    placed = np.zeros((count + residual, *model.B.shape[1:]))
    for place, first in zip(places, model.B, strict=True):
        placed[place] += first
    if model.residual is not None:
        placed[-1] = model.residual
    return placed


def _matched(cost: Array) -> tuple[list[int], float]:
    """Place the heads of two models, and return the largest cost of a pair.

    A pair that costs more than two heads without a partner is none.
    """
    rows, columns = cost.shape
    places, worst = list(range(rows)) + [-1] * columns, 0.0
    fresh = rows
    for share, g, h in match(cost, np.ones(rows), np.ones(columns)):
        if h < 0:
            continue
        places[rows + h] = fresh if g < 0 else g
        fresh, worst = fresh + (g < 0), worst if g < 0 else max(worst, share)
    return places, worst


def _pairs(places: Sequence[int], rows: int) -> list[tuple[int, int]]:
    """Return the heads of the first model with those of the second in the same place."""
    return [(g, h) for h, g in enumerate(places[rows:]) if g < rows]


def _heads(model: MultiHeadTransformer) -> list[SingleHead]:
    """Return the heads' scores one by one."""
    arrays = {name: array for name, array in model.arrays().items() if name in "WKQw"}
    v = np.zeros(model.dim)
    return [
        SingleHead.from_arrays({**{name: array[h] for name, array in arrays.items()}, "v": v})
        for h in range(model.H)
    ]


def _constant(model: MultiHeadTransformer) -> MultiHeadTransformer:
    """Return a model without heads as one with a head that its network does not see."""
    d, m = model.dim, len(model.w_o)
    return MultiHeadTransformer(
        np.zeros((1, d, d)), np.zeros((1, m, d)), model.w_o, model.b, None, model.c
    )
