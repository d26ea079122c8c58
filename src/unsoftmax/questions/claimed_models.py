"""What a claimed model says of any sequence: its answer, how far that may round, what moves it.

A *claim* is a model with known parameters that a target may or may not serve. Every class of
`known_claims.CLAIMS` knows:

- the answer f̂(X), and how many roundoffs a target that computes it as libraries do may be off;
- the *moves* ‖∂f/∂θ‖ for every tensor θ. A change of θ in a random direction by ε‖θ‖ moves the
  answer by about ε‖θ‖·‖∂f/∂θ‖/√n, n being the number of entries of θ;
- at which length tokens meet the bends of the function, on which side of each a sequence is, and
  which vectors score tokens.

Here are models that answer with a number; `questions.claimed_layers` has those of vectors. Answers
are those of `unsoftmax.models.attention`: with g_i = ∂f/∂s_i the moves of a head are
Σ g_i x_i x_Nᵀ by W, Σ g_i x_i by w and the pooled token Σ α_i x_i by v.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import (
    MultiHead,
    MultiHeadTransformer,
    ReluNetwork,
    SingleHead,
    Transformer,
)
from unsoftmax.models.attention import pooled_tokens, score_gradient, softmax, token_scores
from unsoftmax.models.model import FrozenModel
from unsoftmax.probes import Array
from unsoftmax.questions.left_open import LeftOpen
from unsoftmax.questions.neuron_sides import NeuronSides, Sides, SideTuning, seen_neurons
from unsoftmax.validate.head_comparison import SHORT_SUMS


@dataclass(frozen=True, slots=True)
class ClaimedAnswers:
    """A claim at sequences X (B, N, d); where answers are vectors, every array is (B, m)."""

    predicted: Array
    """f̂(X), (B,)."""
    roundings: Array
    """Size of the terms of each answer, (B,): its rounding error in units of the roundoff."""
    moves: Mapping[str, Array]
    """‖∂f/∂θ‖ by tensor, (B,)."""
    open: Array
    """What a recovery's certificate leaves open of f̂(X), (B,); 0 of weights that are known."""


class Claim(ABC):
    """A model of one class as the claim that a target serves it."""

    attends: bool = True
    """Whether there are scores: whether sequences may have more than one token."""
    outputs: int | None = None
    """How many numbers an answer has; None where it is one that is no vector."""
    ordered: bool = False
    """Whether the order of tokens counts: a sequence in another order then means another one."""
    affine: bool = False
    """Whether answers to single tokens are x·v + c."""
    smooth: bool = False
    """Whether answers to single tokens curve, where no bend is between them."""
    sides: NeuronSides | None = None
    """Sides of the hyperplanes at which the function bends; None where there are none."""
    note: str = ""
    """What a test of the claim cannot see."""
    left_open: LeftOpen = LeftOpen()
    """What a certificate leaves open of the claim's parameters."""

    def __init__(self, model: FrozenModel) -> None:
        self.model = model
        self.dim: int = model.dim

    @abstractmethod
    def at(self, X: Array) -> ClaimedAnswers:
        """Evaluate the claim at sequences (B, N, d)."""

    @abstractmethod
    def tensors(self) -> dict[str, tuple[float, int]]:
        """Return each tensor's norm and its number of entries."""

    def units(self) -> dict[str, float]:
        """Return what changes of each tensor are told in: its norm, 1 where it may be 0."""
        return {
            name: 1.0 if norm <= self.left_open.bound(name) else norm
            for name, (norm, _) in self.tensors().items()
        }

    @abstractmethod
    def weighty(self) -> dict[str, float]:
        """Return how large a change of each tensor must be to count beside the others, absolutely.

        A bias counts beside what it is added to for tokens of norm 1; a tensor that answers do not
        depend on is left out. ``same`` is said only where half of that would have shown.
        """

    def separate(self, tensor: str, moves: Array) -> Array:
        """Choose of what a random change of a tensor moves, (B,) or (B, m), what moves by itself.

        One change of a score moves all numbers of an answer: the one counts that shows it best.
        """
        return moves

    def slope(self) -> Array:
        """Return ∂f/∂x (d,) at single tokens, of the first number; for a class that is affine."""
        zero = np.zeros((1, 1, self.dim))
        return self.at(np.eye(self.dim)[:, None]).predicted - self.at(zero).predicted

    @property
    def normalises(self) -> bool:
        """Whether tokens are normalised before scores see them: their lengths do not count."""
        return False

    def presented(self, X: Array, number: int) -> Array:
        """Return a random sequence, the ``number``-th, at the size that is asked."""
        return X

    def bend_bounds(self, at: ClaimedAnswers, bounds: Array) -> Array:
        """Return what a bend must change an answer by to show, (B,), of what answers hide."""
        return bounds

    def given(self, X: Array) -> Array:
        """Return the points that sequences (B, N, d) give to what bends the function, (B, d)."""
        return X[:, -1]

    def aimed(
        self, wanted: Sides, length: float, rng: np.random.Generator, tuning: SideTuning
    ) -> Array:
        """Return single tokens (K, d) on groups of the ``sides`` that are wanted."""
        if self.sides is None:
            return np.zeros((0, self.dim))
        return self.sides.aimed(wanted, length, rng, tuning)

    @property
    def lengths(self) -> Array:
        """Lengths at which single tokens meet what bends the function; empty where nothing does."""
        return np.zeros(0)

    def _answers(
        self, predicted: Array, roundings: Array, moves: dict[str, Array], lengths: Array
    ) -> ClaimedAnswers:
        """Add what the certificate leaves open, its slope counted at ``lengths``."""
        entries = {name: n for name, (_, n) in self.tensors().items()}
        left_open = self.left_open.at(moves, entries, lengths)
        return ClaimedAnswers(predicted, roundings, moves, left_open)

    def vectors(self, x: Array) -> Array:
        """Map query tokens (B, d) to what their sequences' tokens are scored with, (B, H, d)."""
        raise NotImplementedError


class ServedHeads(Claim):
    """One head or several."""

    affine = True

    def __init__(self, model: SingleHead | MultiHead) -> None:
        super().__init__(model)
        self._single = isinstance(model, SingleHead)
        self.v = np.atleast_2d(model.v)
        self.c = model.c
        self._attention = model

    def named(self, tensor: str, head: int) -> str:
        """Return what a head's tensor is called."""
        return tensor if self._single else f"{tensor} of head {head}"

    def vectors(self, x: Array) -> Array:  # noqa: D102
        u = self._attention.scores_of(x)
        return u[:, None] if self._single else u

    def tensors(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        d, heads = self.dim, range(len(self.v))
        W = [self._attention] if isinstance(self._attention, SingleHead) else self._attention.heads
        w = np.atleast_2d(self._attention.w)
        found = {self.named("W", h): (W[h].parameter_norm("W"), d * d) for h in heads}
        found |= {self.named("w", h): (float(np.linalg.norm(w[h])), d) for h in heads}
        found |= {self.named("v", h): (float(np.linalg.norm(self.v[h])), d) for h in heads}
        return found | {"c": (abs(self.c), 1)}

    def weighty(self) -> dict[str, float]:  # noqa: D102
        norms = {name: norm for name, (norm, _) in self.tensors().items()}
        values = [norms[self.named("v", h)] for h in range(len(self.v))]
        found = {"c": max(norms["c"], *values, 0.0) or 1.0}
        for h in np.flatnonzero(values).tolist():
            W, w = norms[self.named("W", h)], norms[self.named("w", h)]
            found[self.named("v", h)] = values[h]
            found[self.named("W", h)] = W or w or 1.0
            found[self.named("w", h)] = max(W, w) or 1.0
        return found

    def at(self, X: Array) -> ClaimedAnswers:  # noqa: D102
        u = self.vectors(X[:, -1])
        weights = softmax(token_scores(X, u))
        v = np.broadcast_to(self.v, u.shape)
        gradients, roundings = _scores_at(X, weights, u, v)
        queries, pooled = np.linalg.norm(X[:, -1], axis=1), pooled_tokens(X, weights)
        moves = {}
        for h in range(len(self.v)):
            moves[self.named("W", h)] = gradients[:, h] * queries
            moves[self.named("w", h)] = gradients[:, h]
            moves[self.named("v", h)] = np.linalg.norm(pooled[:, h], axis=1)
        moves["c"] = np.ones(len(X))
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        values = longest * np.sum(np.linalg.norm(self.v, axis=1)) * long_sums(X) + abs(self.c)
        return self._answers(self._attention(X), roundings + values, moves, longest)


class ServedNetwork(Claim):
    """A ReLU network of single tokens."""

    attends = False
    note = "Only single tokens were asked: what the target does with several is not tested."

    def __init__(self, model: ReluNetwork) -> None:
        super().__init__(model)
        self.network = model
        self.sides = NeuronSides.of(model)

    @property
    def lengths(self) -> Array:  # noqa: D102
        return hyperplane_lengths(self.network)

    def tensors(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        arrays = self.network.arrays()
        return {name: (float(np.linalg.norm(x)), x.size) for name, x in arrays.items()}

    def weighty(self) -> dict[str, float]:  # noqa: D102
        return _weighty(self.network)

    def at(self, X: Array) -> ClaimedAnswers:  # noqa: D102
        x = X[:, -1]
        _, roundings, moves = _network_at(self.network, x)
        return self._answers(self.network(x), roundings, moves, np.linalg.norm(x, axis=1))


class ServedTransformer(Claim):
    """A head before a ReLU network."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self.network = model.network
        self.sides = NeuronSides.of(model.network)
        self._attention = model

    def given(self, X: Array) -> Array:  # noqa: D102
        return self.pooled(X)

    @property
    def lengths(self) -> Array:  # noqa: D102
        return hyperplane_lengths(self.network)

    def vectors(self, x: Array) -> Array:  # noqa: D102
        return self._attention.scores_of(x)[:, None]

    def tensors(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        arrays, d = self.network.arrays(), self.dim
        norms = {
            f"network.{name}": (float(np.linalg.norm(x)), x.size) for name, x in arrays.items()
        }
        W, w = self._attention.parameter_norm("W"), self._attention.parameter_norm("w")
        return {"W": (W, d * d), "w": (w, d), **norms}

    def weighty(self) -> dict[str, float]:  # noqa: D102
        found = {f"network.{name}": size for name, size in _weighty(self.network).items()}
        if len(found) > 1:
            W, w = self._attention.parameter_norm("W"), self._attention.parameter_norm("w")
            found |= {"W": W or w or 1.0, "w": max(W, w) or 1.0}
        return found

    def pooled(self, X: Array) -> Array:
        """Return the token that the network is given, (B, d)."""
        weights = self._attention.attention(X)
        return pooled_tokens(X, weights)

    def at(self, X: Array) -> ClaimedAnswers:  # noqa: D102
        u = self.vectors(X[:, -1])
        weights = softmax(token_scores(X, u))
        pooled = pooled_tokens(X, weights[:, 0])
        slopes, roundings, moves = _network_at(self.network, pooled)
        gradients, scored = _scores_at(X, weights, u, slopes[:, None])
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        roundings = roundings + scored + longest * np.linalg.norm(slopes, axis=1) * long_sums(X)
        gradient = gradients[:, 0]
        own = {"W": gradient * np.linalg.norm(X[:, -1], axis=1), "w": gradient}
        named = {f"network.{name}": move for name, move in moves.items()}
        lengths = np.linalg.norm(pooled, axis=1)
        return self._answers(self._attention(X), roundings, own | named, lengths)


class ServedHeadsAndNetwork(Claim):
    """Several heads before a ReLU network, which sees what all of them pool.

    And the last token, where there is a residual.
    """

    def __init__(self, model: MultiHeadTransformer) -> None:
        super().__init__(model)
        inputs, d, m = len(model.first_layers), model.dim, len(model.b)
        # of no inputs: as with one head that the network does not see
        nothing = ReluNetwork(np.zeros((d, m)), model.w_o, model.b, model.c)
        self.network = model.network if inputs else nothing
        self.attention = model
        self.sides = NeuronSides.of(self.network)
        seen = seen_neurons(self.network)
        self._alone = NeuronSides.of_neurons(model.on_single_tokens, seen)

    def given(self, X: Array) -> Array:
        """Return what the network is given: all that heads pool, and x_N with a residual."""
        given = self.attention.given(X).reshape(len(X), -1)
        return given if given.size else np.zeros((len(X), self.dim))

    def aimed(  # noqa: D102
        self, wanted: Sides, length: float, rng: np.random.Generator, tuning: SideTuning
    ) -> Array:
        return self._alone.aimed(wanted, length, rng, tuning)

    @property
    def lengths(self) -> Array:  # noqa: D102
        return hyperplane_lengths(self.attention.on_single_tokens)

    def vectors(self, x: Array) -> Array:  # noqa: D102
        return self.attention.scores_of(x)

    def tensors(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        model, found = self.attention, {}
        for name in ("W", "w", "B"):
            for h, array in enumerate(getattr(model, name)):
                found[f"{name} of head {h}"] = (float(np.linalg.norm(array)), array.size)
        arrays = model.arrays()
        for name in ("w_o", "b", "c", "residual"):
            if name in arrays:
                found[name] = (float(np.linalg.norm(arrays[name])), arrays[name].size)
        return found

    def weighty(self) -> dict[str, float]:  # noqa: D102
        norms = {name: norm for name, (norm, _) in self.tensors().items()}
        found = _weighty(self.network)
        if found.pop("A", None) is None:
            return found
        for h in range(self.attention.H):
            W, w, B = (norms[f"{name} of head {h}"] for name in "WwB")
            if B:
                found[f"B of head {h}"] = B
                found[f"W of head {h}"] = W or w or 1.0
                found[f"w of head {h}"] = max(W, w) or 1.0
        if norms.get("residual"):
            found["residual"] = norms["residual"]
        return found

    def at(self, X: Array) -> ClaimedAnswers:  # noqa: D102
        model, u = self.attention, self.vectors(X[:, -1])
        weights = softmax(token_scores(X, u))
        pooled, given = pooled_tokens(X, weights), self.given(X)
        _, roundings, moves = _network_at(self.network, given)
        slopes = np.einsum(
            "bj,hjk->bhk", (given @ self.network.A + model.b > 0) * model.w_o, model.B
        )
        gradients, scored = _scores_at(X, weights, u, slopes)
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        steep = np.linalg.norm(slopes, axis=2).sum(axis=1)
        roundings = roundings + scored + longest * steep * long_sums(X)
        queries = np.linalg.norm(X[:, -1], axis=1)
        found = {name: moves[name] for name in ("w_o", "b", "c")}
        if model.residual is not None:
            found["residual"] = queries * moves["b"]
        for h in range(model.H):
            found[f"W of head {h}"] = gradients[:, h] * queries
            found[f"w of head {h}"] = gradients[:, h]
            found[f"B of head {h}"] = np.linalg.norm(pooled[:, h], axis=1) * moves["b"]
        return self._answers(model(X), roundings, found, np.linalg.norm(given, axis=1))


def _scores_at(X: Array, weights: Array, u: Array, v: Array) -> tuple[Array, Array]:
    """Return ‖Σ g_i x_i‖ per head, (B, H), and the scores' rounding in the answers, (B,).

    ``weights`` are (B, H, N), ``u`` and the value vectors ``v`` (B, H, d).
    """
    g = score_gradient(weights, token_scores(X, v))
    lengths = np.linalg.norm(X, axis=2)[:, None]
    rounded = np.sum(np.abs(g) * lengths, axis=2) * np.linalg.norm(u, axis=2)
    return np.linalg.norm(g @ X, axis=2), rounded.sum(axis=1)


def long_sums(X: Array) -> float:
    """Return how much more than few terms the sums over a sequence's tokens may round."""
    return float(max(1.0, X.shape[1] / SHORT_SUMS))


def _network_at(network: ReluNetwork, x: Array) -> tuple[Array, Array, dict[str, Array]]:
    """Return a network's slopes (B, d), its rounding (B,) and its moves at points (B, d)."""
    z = x @ network.A + network.b
    on = (z > 0) * network.w_o
    lengths = np.linalg.norm(x, axis=1)
    terms = lengths[:, None] * np.linalg.norm(network.A, axis=0) + np.abs(network.b)
    active = np.linalg.norm(on, axis=1)
    moves = {
        "A": lengths * active,
        "w_o": np.linalg.norm(np.maximum(z, 0.0), axis=1),
        "b": active,
        "c": np.ones(len(x)),
    }
    return on @ network.A.T, terms @ np.abs(network.w_o) + abs(network.c), moves


def _weighty(network: ReluNetwork) -> dict[str, float]:
    """Return how large a change of a network's tensors must be to count, c alone if it is one."""
    A, b, w_o = (float(np.linalg.norm(x)) for x in (network.A, network.b, network.w_o))
    answers = w_o * max(A, b)
    found = {"c": max(abs(network.c), answers) or 1.0}
    return found | ({"A": A or b, "w_o": w_o, "b": max(A, b)} if answers else {})


def hyperplane_lengths(network: ReluNetwork) -> Array:
    """Return √d times the hyperplanes' distances: lengths at which random tokens meet them."""
    norms = np.linalg.norm(network.A, axis=0)
    used = (norms > 0) & (network.b != 0)
    distances: Array = np.abs(network.b[used]) / norms[used]
    return np.sort(distances) * float(np.sqrt(network.dim))
