"""What a claimed model says of any sequence: its answer, how far that may round, what moves it.

A *claim* is a model with known parameters that a target may or may not serve. All that it says
comes from the maps that the model is composed of and their linearisation:

- the answer f̂(X), and how many roundoffs a target that computes it as libraries do may be off;
- the *moves* ‖∂f/∂θ‖ for every tensor θ. A change of θ in a random direction by ε‖θ‖ moves the
  answer by about ε‖θ‖·‖∂f/∂θ‖/√n, n being the number of entries of θ;
- what a recovery's certificate leaves open of it: recovered weights are off by up to
  some bounds δ. An answer to random tokens meets an error of norm δ in ‖∂f/∂θ‖·δ/√n as a rule;
  errors of several tensors are independent. A function's bound, constant + slope·‖x‖, holds whole;
- at which length tokens meet the bends of the function, on which side of each a sequence is
  (`NeuronSides`), and which vectors score tokens.

A neuron that was changed shows where it is on, x·A_j + b_j > 0; one that was replaced by its linear
part, as optimisers do with neurons that seem never to be off, shows where it is off. So a network
is tested where its points lie on both sides of every hyperplane.

Random points of a hyperplane's own distance leave a share of the sides out. `aimed` solves for
points on those that are left: with unit normals n_j and distances t_j, the point nearest to a
random one for which x·n_j = t_j + s_j, for up to d sides at once; s_j is as large as t_j, or as
random tokens' x·n_j.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from unsoftmax import models
from unsoftmax.models import LayerNorm, Rotary
from unsoftmax.models.attention_map import BIASES, WHOLE, Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.neurons import Neurons
from unsoftmax.probes import Array, Flags
from unsoftmax.validate.head_comparison import SHORT_SUMS

SINGLE_TOKENS = "Only single tokens were asked; sequences of several tokens were not tested."
# What heads of a group share.
_OF_GROUPS = ("K", "k_bias", "V", "frequencies")
# Where positions count, certificates bound all W(Δ), the biases' part of the scores, and products.
_WHOLE = {"W": WHOLE, "w": BIASES, "M": "M"}

# Points that are aimed at so many different groups of sides, for every size of group.
_GROUPS = 4
# Ridge of the equations for a point on several sides: of two that exclude each other neither is
# met, rather than both far away.
_SOFT = 1e-3
# A side counts as met from this depth on, in units of what random tokens have: the change of a
# neuron must show beside the rounding of all others.
_DEEP = 0.125
# What meeting a neuron where it is off is worth, beside meeting it where it is on.
_OFF = 0.25

Given: TypeAlias = tuple[str, Map] | None
Weights: TypeAlias = dict[tuple[str, int | None], float]
"""By the path of an array, and the head or group; 0 where all share it."""


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


class Claim:
    """A model as the claim that a target serves it.

    Parameters
    ----------
    model : FrozenModel
        The weights.
    errors : mapping of str to float, optional
        What their certificate bounds their errors by.

    Raises
    ------
    TypeError
        It is no model of the library's.
    ValueError
        A bound is no number of 0 or more.
    """

    alignment: ClassVar[float] = 2.0
    """Errors may move an answer by so many standard deviations of random directions, as in
    `validate.head_comparison`; ``different`` is said from twice that on."""
    _numbers_at_once: ClassVar[int] = 2**22
    """Of derivatives of answers: 32 MiB. Larger: more memory; smaller: more calls into NumPy."""

    def __init__(self, model: FrozenModel, errors: Mapping[str, float] | None = None) -> None:
        if not can_be_claimed(model):
            kinds = [
                kind for name in models.__all__ if isinstance(kind := getattr(models, name), type)
            ]
            known = [kind.__name__ for kind in kinds if issubclass(kind, FrozenModel)]
            known.sort(key="SingleHead".__ne__)
            raise TypeError(
                f"model must be one of {', '.join(known)}; it is {type(model).__name__}."
            )
        for name, bound in (errors or {}).items():
            if not bound >= 0:
                raise ValueError(f"errors: the bound on {name} must be 0 or more; it is {bound!r}.")
        self.model: Any = model
        self.errors = dict(errors or {})
        self.dim, self.outputs = model.dim, model.outputs
        """How many numbers a token has, and an answer; None where it is one that is no vector."""
        self.leaves = self._leaves()
        chain = [*self.leaves.values()]
        heads = [one for one in chain if isinstance(one, Attention)]
        self.heads = heads[0] if heads else None
        """The first heads that tokens meet."""
        self.before = chain[0] if chain and isinstance(chain[0], LayerNorm) and chain[1:] else None
        """What normalises tokens before anything else sees them."""
        turned = any(one.frequencies is not None for one in heads)
        self.ordered = turned or any(one.causal for one in heads[:-1])
        """Whether the order of tokens counts: in another order a sequence means another one."""
        self.affine = len(heads) == len(chain)
        """Whether answers to single tokens are x·v + c."""
        switched = [one.activation == "relu" for one in chain if isinstance(one, Neurons)]
        self.smooth = not all(switched) or any(isinstance(one, LayerNorm) for one in chain)
        """Whether answers to single tokens curve, where no bend is between them."""
        self.behind = next((one for one in chain[-1:] if isinstance(one, LayerNorm)), None)
        """What normalises answers, behind all else."""
        self.bends = Bends.of(chain)
        """Hyperplanes at which the function bends; None where there are none, or not known."""

    def _leaves(self) -> Mapping[str, Map]:
        """Return the maps that the model is made of."""
        leaves: Mapping[str, Map] = self.model.maps.leaves
        return leaves

    @property
    def attends(self) -> bool:
        """Whether there are scores: whether sequences may have more than one token."""
        return self.heads is not None

    def bound(self, tensor: str) -> float:
        """Return the bound on a tensor's error, 0 without one: "W of head 2" has that on W."""
        return self.errors.get(tensor.split(" of ")[0], 0.0)

    def units(self) -> dict[str, float]:
        """Return what changes of each tensor are told in: its norm, 1 where it may be 0."""
        tensors = self.model.tensors.items()
        return {name: 1.0 if x.norm <= self.bound(name) else x.norm for name, x in tensors}

    def weighty(self) -> dict[str, float]:
        """Return how large a change of each tensor must be to count beside the others, absolutely.

        A bias counts beside what it is added to for tokens of norm 1; a tensor that answers do not
        depend on is left out. ``same`` is said only where half of that would have shown.
        """
        found, tensors = Weights(), self.model.tensors
        _weigh(self.model.maps, "", 0.0, None, float(np.sqrt(self.dim)), found)
        paths = ((name, x.path.removesuffix(".T"), x.place or 0) for name, x in tensors.items())
        return {name: found[path, k] for name, path, k in paths if (path, k) in found}

    def separate(self, tensor: str, moves: Array) -> Array:
        """Choose of what a random change of a tensor moves, (B,) or (B, m), what moves by itself.

        One change of a score moves all numbers of an answer: the one counts that shows it best.
        """
        path = self.model.tensors[tensor].path
        prefix, own = path.removesuffix(".T").rpartition(".")[::2]
        if own == "eps":
            return np.array([np.max(moves)])
        if moves.ndim == 1 or moves.shape[1] == 1:
            return moves.reshape(-1)
        # what makes up the answer's numbers, and a norm behind that, moves them one by one
        places = [name for name, one in self.leaves.items() if not isinstance(one, LayerNorm)]
        after = [*self.leaves][[*self.leaves].index(places[-1]) :]
        by_number = f"{prefix}." in after and own in ("O", "M", "B", "c", "scale", "shift")
        return np.asarray(moves.max(axis=0 if by_number else 1))

    def slope(self) -> Array:
        """Return ∂f/∂x (d,) at single tokens, of the number that changes most."""
        back = self.model.maps.linearise(np.zeros((1, 1, self.dim))).every.X
        rows = back[:, 0, 0]
        return np.asarray(rows[np.argmax(np.linalg.norm(rows, axis=1))])

    def seen_tokens(self, X: Array) -> Array:
        """Return tokens as heads and neurons see them."""
        return X if self.before is None else self.before(X)

    def presented(self, X: Array, number: int) -> Array:
        """Return a random sequence, the ``number``-th, at the size that is asked."""
        # every other one where eps counts: it is seen nowhere else
        if self.before is None or not self.before.eps or number % 2 == 0:
            return X
        return np.asarray(X * 2.0 ** np.round(np.log2(np.sqrt(self.before.eps))))

    def vectors(self, x: Array) -> Array:
        """Map query tokens (B, d) to what the token before them is scored with, (B, H, d)."""
        if self.heads is None:
            return np.zeros((len(x), 0, self.dim))
        u = self.heads.scored(self.seen_tokens(x))
        if self.before is None:
            return u
        # what tokens beside x are scored with, to first order
        z, scale = self.before.normalised(x)[:, None], self.before.scale
        u = u / np.where(scale, scale, 1.0)
        u = u - u.mean(axis=2, keepdims=True) if self.before.centred else u
        u = u - z * np.mean(u * z, axis=2, keepdims=True)
        spread = np.linalg.norm(x, axis=1) / np.sqrt(self.dim)
        return np.asarray(scale / spread[:, None, None] * u * scale)

    def bend_bounds(self, at: ClaimedAnswers, bounds: Array) -> Array:
        """Return what a bend must change an answer by to show, (B,), of what answers hide."""
        if self.outputs is None or self.bends is None:
            return bounds
        path = next(name for name, one in self.leaves.items() if isinstance(one, Neurons))
        [by_c] = [n for n, tensor in self.model.tensors.items() if tensor.path == f"{path}c"]
        with np.errstate(divide="ignore", invalid="ignore"):
            before = np.where(at.moves[by_c] > 0, bounds / at.moves[by_c], np.inf)
        return np.asarray(np.median(before, axis=1))

    def at(self, X: Array) -> ClaimedAnswers:
        """Evaluate the claim at sequences (B, N, d)."""
        predicted, m = self.model(X), self.outputs or 1
        roundings, left_open = np.empty_like(predicted), np.zeros((len(X), m))
        moves = {name: np.empty((len(X), m)) for name in self.model.tensors}
        for part, some in self._parts(X.shape[1], len(X), m):
            at, units = self.model.linearise(X[part]), np.eye(m)[some, None]
            roundings[part] = at.rounding
            y = np.broadcast_to(units, (len(units), len(X[part]), m))
            back = at.vjp(y if self.outputs is not None else y[:, :, 0])
            for name in moves:
                moves[name][part, some] = back.by[name][0].norms.T
            if self.errors:
                left_open[part, some] = self._open(X[part], y)
        if self.errors:
            left_open = self._left_open(X, moves, left_open)
        moves = {name: found.reshape(predicted.shape) for name, found in moves.items()}
        return ClaimedAnswers(predicted, roundings, moves, left_open.reshape(predicted.shape))

    def _parts(self, N: int, B: int, m: int) -> Iterator[tuple[slice, slice]]:
        """Divide sequences, and the numbers of their answers, into parts that memory holds."""
        deep = sum(isinstance(one, Attention) for one in self.leaves.values()) > 1
        each = N * max(self.dim, N * len(self.heads.Q) if deep and self.heads else 1)
        numbers = max(1, min(m, self._numbers_at_once // each))
        sequences = max(1, self._numbers_at_once // (each * numbers))
        for start in range(0, B, sequences):
            for first in range(0, m, numbers):
                yield slice(start, start + sequences), slice(first, first + numbers)

    def _open(self, X: Array, y: Array) -> Array:
        """Return squares of what bounds on whole scores and products leave open, (B, C)."""
        squares = np.zeros((len(X), len(y)))
        owned = {name.split(" of ")[0] for name in self.model.tensors}
        whole = {name: own for name, own in _WHOLE.items() if name in self.errors.keys() - owned}
        if not whole:
            return squares
        back = self.model.maps.linearise(X).vjp(y[:, :, None])
        longer = max(1.0, X.shape[1] / SHORT_SUMS)
        for prefix, leaf in self.leaves.items():
            for name, own in whole.items():
                size = leaf.size("M") if name == "M" else None
                if prefix + own not in back.by or (size and not size.shape):
                    continue
                rows = size.shape[1] if size else self.dim
                met = min(1.0, self.alignment / np.sqrt(rows * self.dim)) * self.errors[name]
                met = met if name == "M" else met * longer
                for gradient in back.by[prefix + own]:
                    squares += _times(met, gradient.norms.T) ** 2
        return squares

    def _left_open(self, X: Array, moves: Mapping[str, Array], squares: Array) -> Array:
        """Return what right answers may miss the claim by, (B, m)."""
        for name, tensor in self.model.tensors.items():
            share = min(1.0, self.alignment / np.sqrt(max(1, tensor.entries)))
            squares = squares + np.square(_times(share * self.bound(name), moves[name]))
        seen = self.seen_tokens(X)
        if self.bends is not None and self.before is None:
            seen = self.bends.given(X)[:, None]
        longest = np.linalg.norm(seen, axis=2).max(axis=1)
        whole = self.errors.get("constant", 0.0) + _times(self.errors.get("slope", 0.0), longest)
        return np.asarray(np.sqrt(squares) + whole[:, None])


def can_be_claimed(model: object) -> bool:
    """Tell whether a model is one that a target can be said to serve."""
    return isinstance(model, FrozenModel)


def _times(bound: float, x: Array) -> Array:
    """Multiply, with 0 where an infinite bound meets nothing."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(x > 0, bound * x, 0.0)


# -- what counts


def _weigh(
    part: Map, prefix: str, beside: float, given: Given, token: float, found: Weights
) -> None:
    """Add how large changes of a map's arrays must be to count, by path and place.

    ``beside`` is the size of what its answer is added to, ``token`` that of tokens, ``given`` the
    map before it.
    """
    if isinstance(part, Composition):
        for name, one in part.parts:
            own = f"{prefix}{name}." if name else prefix
            added = beside + token * part.residual if one is part.parts[-1][1] else 0.0
            _weigh(one, own, added, given, token, found)
            given = own, one
    elif isinstance(part, Attention):
        _weigh_heads(part, prefix, beside, found)
    elif isinstance(part, Neurons):
        _weigh_neurons(part, prefix, beside, given, found)
    elif isinstance(part, LayerNorm):
        scale, shift = (float(np.linalg.norm(x)) for x in (part.scale, part.shift))
        found[f"{prefix}scale", 0] = scale or shift or 1.0
        found[f"{prefix}shift", 0] = max(scale, shift) or 1.0


def _weigh_heads(heads: Attention, prefix: str, beside: float, found: Weights) -> None:
    H = len(heads.Q)
    places = range(H) if heads.groups is None else heads.groups.tolist()
    norms = {name: heads.size(name).norms for name in (*heads.arrays, "W")}
    values = heads.size("M").norms if heads.O is not None else (1.0,) * H
    added = max(0.0, *norms.get("c", ()), *values, beside)
    found[f"{prefix}c", 0] = added or 1.0
    for h in np.flatnonzero(values).tolist():
        at = {name: places[h] if name in _OF_GROUPS else h for name in norms}
        own = {name: norms[name][place] for name, place in at.items() if name not in ("c", "R")}
        keys, queries = (max(own.get(x, 0.0), own.get(f"{x.lower()}_bias", 0.0)) for x in "KQ")
        W, w = own["W"], own.get("w", 0.0)
        sizes = {"M": values[h], "W": W or w or 1.0, "w": max(W, w) or 1.0}
        sizes |= {name: own[name] for name in "OV" if name in own}
        if queries:
            sizes["K"] = own.get("K", 0.0) or queries
        if keys:
            sizes |= {"Q": own["Q"] or keys, "q_bias": max(keys, queries)}
        turns = heads.frequencies is not None and np.any(
            Rotary(heads.frequencies[places[h]]).folded
        )
        if keys and queries and turns:
            sizes |= {"k_bias": max(keys, queries), "frequencies": own["frequencies"]}
        for name, size in sizes.items():
            found[f"{prefix}{name}", places[h] if name in _OF_GROUPS else h] = size
        if "frequencies" in sizes:  # which all groups may share
            found.setdefault((f"{prefix}frequencies", 0), sizes["frequencies"])
    if heads.R is not None and np.any(heads.R):
        found[f"{prefix}R", 0] = norms["R"][0]


def _weigh_neurons(
    neurons: Neurons, prefix: str, beside: float, given: Given, found: Weights
) -> None:
    norms = {name: float(np.linalg.norm(array)) for name, array in neurons.arrays.items()}
    A, a, biases = norms.get("A", 0.0), norms["a"], f"{prefix}a"
    if neurons.A is None and given is not None and isinstance(given[1], Attention):
        # what heads answer with is given to neurons: their values are its first layer
        heads, biases = given[1], f"{given[0]}c"
        A = float(np.linalg.norm([*heads.size("M").norms, *heads.size("R").norms]))
        a = max(a, *heads.size("c").norms, 0.0)
    answers = norms["B"] * max(A, a, norms.get("g", 0.0))
    if not answers and not beside:  # then nothing before it counts
        found.clear()
    found[f"{prefix}c", 0] = max(norms["c"], answers, beside) or 1.0
    if answers:
        found |= {(f"{prefix}A", 0): A or a, (f"{prefix}B", 0): norms["B"], (biases, 0): max(A, a)}
        if "G" in norms:
            gate = max(norms["G"], norms["g"])
            found |= {(f"{prefix}G", 0): norms["G"] or gate, (f"{prefix}g", 0): gate}


# -- where it bends


@dataclass(frozen=True, slots=True)
class NeuronSides:
    """Both sides of the hyperplanes of a network: those where neurons are on, then the others.

    Attributes
    ----------
    normals : ndarray, shape (2n, d)
        Unit normals, which point into the side.
    distances : ndarray, shape (2n,)
        How far the hyperplane is from 0 along the normal; negative where 0 is on the side.
    weights : ndarray, shape (2n,)
        By how much an answer changes per unit of depth if the neuron is left out, or is linear.
    """

    normals: Array
    distances: Array
    weights: Array

    @classmethod
    def of(cls, A: Array, a: Array, heights: Array) -> NeuronSides:
        """Return those of neurons x·A_j + a_j, A (n, d), that add ``heights`` (n,) to answers.

        One that never switches is infinitely far away.
        """
        norms = np.linalg.norm(A, axis=1)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            normals = np.where(norms[:, None] > 0, A / norms[:, None], 0.0)
            distances = np.where(norms > 0, -a / norms, np.inf)
            weights = norms * np.abs(heights)
        both = np.vstack([normals, -normals]), np.append(distances, -distances)
        return cls(*both, np.append(weights, weights))

    @property
    def neurons(self) -> int:
        """How many neurons there are."""
        return len(self.weights) // 2

    def depths(self, x: Array) -> Array:
        """Return how far points (B, d) are inside each side, (B, 2n)."""
        n = self.neurons
        on = x @ self.normals[:n].T - self.distances[:n]
        return np.hstack([on, -on])

    def met(self, x: Array) -> Flags:
        """Say which sides points (B, d) lie on, and not merely at their edge, (B, 2n)."""
        sizes = np.linalg.norm(x, axis=1)[:, None] + np.abs(self.distances)
        share = _DEEP / np.sqrt(x.shape[1])
        return np.asarray(self.depths(x) > share * sizes)

    @property
    def worth(self) -> Array:
        """What it is worth to meet each side, (2n,)."""
        return np.repeat([1.0, _OFF], self.neurons)

    def hidden(self, x: Array, bounds: Array) -> Flags:
        """Say on which sides no answer to points (B, d) shows a neuron beyond ``bounds`` (B,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            shown = self.weights * np.maximum(self.depths(x), 0.0) > bounds[:, None]
        return np.asarray(~np.any(shown, axis=0))

    def aimed(self, wanted: Flags, length: float, rng: np.random.Generator) -> Array:
        """Return points (K, d) on groups of the sides that are wanted, none where none is.

        Points have about the norm ``length`` or, where hyperplanes are further away, a larger one.
        """
        places = np.flatnonzero(wanted & np.isfinite(self.distances))
        found, size, d = [], 1, self.normals.shape[1]
        typical = length / float(np.sqrt(d))
        while size <= min(d, len(places)):
            for _ in range(_GROUPS):
                group = rng.choice(places, size, replace=False)
                near = np.asarray(typical * rng.standard_normal(d))
                deep = np.maximum(np.abs(self.distances[group]), typical)
                # the point nearest to a random one that is so deep in all sides of the group
                normals, depth = self.normals[group], self.distances[group] + deep
                gram = normals @ normals.T + _SOFT * np.eye(size)
                found.append(near + normals.T @ np.linalg.solve(gram, depth - normals @ near))
            size *= 2
        return np.array(found).reshape(-1, d)


@dataclass(frozen=True, slots=True)
class Bends:
    """Where a model bends: the hyperplanes of its first neurons, in what these are given.

    Attributes
    ----------
    sides : NeuronSides
        Those of the neurons that switch, and move answers.
    single : NeuronSides
        The same in single tokens.
    lengths : ndarray
        Lengths at which single tokens meet hyperplanes.
    before : LayerNorm, Attention or None
        What gives the neurons what they are given: tokens of size 1, or what heads pool.
    """

    sides: NeuronSides
    single: NeuronSides
    lengths: Array
    before: Map | None

    @classmethod
    def of(cls, maps: Sequence[Map]) -> Bends | None:
        """Find them in maps, one after the other; None where there are none, or not known.

        They are known of ReLUs that are given tokens, what a norm makes of them, or what heads
        pool.
        """
        before = maps[0] if len(maps) > 1 and not isinstance(maps[0], Neurons) else None
        neurons = maps[before is not None] if maps else None
        if not isinstance(neurons, Neurons):
            return None
        if neurons.activation != "relu" or neurons.G is not None:
            return None
        A, a = neurons.A, neurons.a
        alone, lengths = None, None
        if isinstance(before, Attention) and before.O is not None:
            if A is not None or before.V is not None:
                return None
            a = a if before.c is None else a + before.c
            layers = [*before.O, *([] if before.R is None else [before.R])]
            none = np.zeros((len(a), before.Q.shape[2]))
            A, alone = np.hstack(layers or [none]), sum(layers, none)
        assert A is not None
        if isinstance(before, LayerNorm):  # in tokens of size 1
            A, a = A * before.scale, a + A @ before.shift
            A = A - A.mean(axis=1, keepdims=True) if before.centred else A
            lengths = np.array([np.sqrt(A.shape[1])])
        alone = A if alone is None else alone
        heights = np.linalg.norm(neurons.B, axis=0) / np.sqrt(len(neurons.B))
        used = np.any(A, axis=1) & np.any(neurons.B, axis=0)
        own, single = (NeuronSides.of(one[used], a[used], heights[used]) for one in (A, alone))
        if lengths is None:  # √d times the hyperplanes' distances: where random tokens meet them
            norms = np.linalg.norm(alone, axis=1)
            met = (norms > 0) & (a != 0)
            lengths = np.sort(np.abs(a[met]) / norms[met]) * float(np.sqrt(alone.shape[1]))
        return cls(own, single, lengths, before)

    def points(self, sequences: Sequence[Array]) -> Array:
        """Return the points that sequences (N, d) of any lengths give to the neurons, (B, D)."""
        points = np.array([self.given(X[None])[0] for X in sequences])
        return points.reshape(-1, self.sides.normals.shape[1])

    def met(self, sequences: Sequence[Array]) -> Flags:
        """Say on which sides of the hyperplanes sequences lie, (B, 2n)."""
        return self.sides.met(self.points(sequences))

    def given(self, X: Array) -> Array:
        """Return the points that sequences (B, N, d) give to the neurons, (B, D)."""
        if isinstance(self.before, LayerNorm):
            return self.before.normalised(X[:, -1])
        if not isinstance(self.before, Attention):
            return X[:, -1]
        pooled = self.before.pooled(X)
        beside = [] if self.before.R is None else [X[:, -1:]]
        given = np.concatenate([pooled, *beside], axis=1).reshape(len(X), -1)
        return given if given.size else np.zeros((len(X), X.shape[2]))
