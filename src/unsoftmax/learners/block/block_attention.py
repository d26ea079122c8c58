"""The attention of a block, whatever its feed-forward part is: what is asked, and how it ends.

1. Seven sequences: which norm is before attention, how precise answers are (`far_tokens`).
2. Heads and their maps, beside far tokens of s coordinates (`gate_reading`).
3. Scores, beside far tokens of one coordinate (`far_scores`).
4. eps of the norm: one key of nine lengths, then four keys at the length that it bends most.
5. Whether F sees what attention adds: two sequences of short tokens.
6. Fresh far tokens, of two to d/2 coordinates, beside keys of all lengths.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer.attention_search import (
    SHARED,
    RecoveredLayer,
    said_of,
    tried,
)
from unsoftmax.learners.attention_layer.group_reading import GivenPositions
from unsoftmax.learners.attention_layer.group_scores import GroupAnswers
from unsoftmax.learners.attention_layer.search_limits import LEAN
from unsoftmax.learners.attention_layer.value_answers import LayerMap, groups_of
from unsoftmax.learners.block import key_lengths
from unsoftmax.learners.block.far_groups import FarGroupReading
from unsoftmax.learners.block.far_scores import FarScoreReading, FarScores
from unsoftmax.learners.block.far_tokens import FarTokens, find_far_tokens
from unsoftmax.learners.block.gate_reading import GateReading
from unsoftmax.learners.block.gated_fit import ranks_of_maps
from unsoftmax.learners.block.key_lengths import BESIDE, DRAWN_KEYS, KeyLengths, read_lengths
from unsoftmax.learners.block.offset_fits import GatedMaps
from unsoftmax.learners.block.zero_gates import TurnedMaps, ZeroGates
from unsoftmax.learners.compose import Asking, T
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.token_map import with_errors
from unsoftmax.models import LayerNorm
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Round, Sequences, Singles
from unsoftmax.protocol import Certificate, Found
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.conclude import CONFIRMING, SHORT, Conclusion, LayerSequences, Said
from unsoftmax.validate.drawn_models import DRAWN, SAFETY, DrawnModels, Layer
from unsoftmax.validate.long_sequences import SequenceShape, in_rounds, shapes_of
from unsoftmax.validate.sequences import by_length

# Searches along other tokens before a target is refused; one more where scores turn with distance.
SEARCHES = 2
_FAILED = ModelMismatch, NotIdentifiable, np.linalg.LinAlgError
# How gates without positions are refused. Where they are found, with copies of tokens at several
# distances, there are none.
_GATES_UNFOUND = (
    "NO_MODERATE_WEIGHTS",
    "MORE_HEADS",
    "BLOCK_HEADS_FILL",
    "SOFT_GATES_UNFOUND",
    "SOFT_GATES_UNFOUND_ELSEWHERE",
)
# Answers to a short token that attention by itself explains but for this share: F sees nothing of
# what it adds. And how long the key beside it is.
_UNSEEN, _LONG_KEY = 1e-6, 2.0**10
# Share of an answer that attention adds there, at least, for that to be told.
_SHOWN = 1e-6
# Answers that are off by more of what attention adds may be why it is not found. Measured: no right
# block is refused below, all are at a hundred times as much.
_FAINT = 1e-10
# Roundoffs of eps that its bound has at least.
_ROUNDOFFS = 16.0
# Fresh keys between b and the ball, in turn until logits are nearest to those wanted.
_NEARER = 2.0 ** -np.arange(9)


def cost() -> Cost:
    """Bound what a search asks beside maps and scores: keys that show eps, and fresh sequences."""
    fresh = Cost.of(2 * CONFIRMING, tokens=max(shape.tokens for shape in SHORT), rounds=1)
    return key_lengths.cost() + fresh


@dataclass(frozen=True, slots=True)
class PlainAnswers:
    """All answers that heads without positions are computed from."""

    gates: GatedMaps
    scores: FarScores
    whole: int
    """Tokens that were asked with keys in all directions."""
    ranks: tuple[int, ...]
    """Of the maps."""

    def solved(self) -> RecoveredLayer:
        """Compute the heads, as those of a layer of normalised tokens, its constant 0."""
        maps = self.gates.maps()
        scores, weighed = self.scores.solved(maps, self.gates, self.whole)
        values = self.scores.whole_maps(maps, self.ranks, self.gates, weighed)
        d = self.gates.frame.shape[1]
        nothing = LayerMap(np.zeros(d), np.zeros((d, d)), False)
        return RecoveredLayer(nothing, values, scores, (), (0.0, 0.0))


@dataclass(frozen=True, slots=True)
class TurnedAnswers:
    """All answers that heads with rotary positions are computed from."""

    maps: TurnedMaps
    scores: GroupAnswers

    def solved(self) -> RecoveredLayer:
        """Compute the heads, as those of a layer of normalised tokens, its constant 0."""
        layer, values = self.maps.layer(), self.maps.solved()
        scores = self.scores.solved(layer, values)
        return RecoveredLayer(layer, values, scores, self.scores.groups, (0.0, 0.0))


def _model(heads: PlainAnswers | TurnedAnswers, tokens: FarTokens) -> Layer:
    """Compute attention as a layer of normalised tokens, its constant 0."""
    found = heads.solved()
    if not all(np.isfinite(x).all() for x in found.scores.arrays):
        raise Reason.ERRORS_LEAVE_NO_WEIGHTS.error(
            noise=tokens.noise.relative, heads=len(found.values.U)
        )
    return found.model()


@dataclass(frozen=True, slots=True)
class BlockAnswers:
    """All answers that a block's attention is computed from."""

    tokens: FarTokens
    heads: PlainAnswers | TurnedAnswers
    lengths: KeyLengths

    def inner(self) -> Layer:
        """Compute attention as a layer of normalised tokens, its constant 0."""
        return _model(self.heads, self.tokens)

    def eps(self, inner: Layer) -> tuple[float, float]:
        """Compute eps, and its standard error by what keys say each."""
        return self.lengths.mean_eps(inner, self.tokens)


@dataclass(frozen=True, slots=True)
class KeyedModels(DrawnModels[Layer]):
    """Drawn models whose keys may be longer or shorter, as another eps of the norm makes them."""

    eps_off: float = 0.0
    """What eps may be off by, relatively."""

    def _moved(self, X: Array, predicted: Array) -> Array:
        left = 1 - np.sum(X * X, axis=2, keepdims=True) / X.shape[2]
        other = self.model(X / np.sqrt(1 + self.eps_off * np.maximum(left, 0.0)))
        drawn = super(KeyedModels, self)._moved(X, predicted)
        return np.asarray(drawn + self._measured(other - predicted))


@dataclass(frozen=True, slots=True)
class FarSequences(LayerSequences):
    """Fresh sequences of normalised tokens behind which a far one is asked."""

    tokens: FarTokens | None = None

    def confirming(self, count: int) -> list[Sequences]:  # noqa: D102
        return by_length(map(self._far, self._short(count)), "confirmation", "pilot")

    def holdout(self, count: int, tells: Any) -> tuple[list[Sequences], list[Round]]:  # noqa: D102
        long = [shape for shape in shapes_of(count, self.model.dim) if shape.tokens > 1]
        short = by_length(map(self._far, self._short(count - len(long))), "hold-out")
        families = by_length(map(self._far, long), "hold-out, long")
        return short, in_rounds(families)

    def _far(self, shape: SequenceShape) -> Array:
        """Draw keys between a far token and the ball, at about the logits wanted."""
        assert self.tokens is not None
        d, rng = self.model.dim, self.rng
        x = np.zeros(d)
        few = rng.permutation(d)[: rng.integers(2, max(3, d // 2))]
        x[few] = rng.standard_normal(len(few))
        x /= np.linalg.norm(x)
        b = self.tokens.of(x[None])[0]
        kinds = 4 if shape.kind == "repeats" else shape.tokens - 1
        keys = self.tokens.on_sphere(rng.standard_normal((kinds, d)))
        keys *= np.minimum(2 * rng.uniform(size=(kinds, 1)) ** (1 / 3), 1 - 2.0**-12)
        keys = keys[rng.integers(kinds, size=shape.tokens - 1)] if kinds < len(keys) else keys
        near = (_NEARER[:, None, None] * (keys - b)) + b
        X = np.concatenate([near, np.broadcast_to(b, (len(near), 1, d))], axis=1)
        scores = self.model.scored(X)
        logits = scores[..., :-1] - scores[..., -1:]
        sizes = np.sqrt(np.max(np.mean(logits**2, axis=2), axis=1))
        return np.asarray(X[np.argmin(np.abs(np.log(np.maximum(sizes, TINY) / shape.logits)))])


def attention_of_block(
    dim: int, most: int, rng: np.random.Generator, checks: int
) -> Asking[Found[Layer]]:
    """Recover the attention of a block.

    Raises
    ------
    ModelMismatch
        The target is no such block, or answers are too coarse.
    NotIdentifiable
        The answers cannot determine it.
    """
    block = yield from attention_searched(dim, most, rng)
    note = yield from block.seen(rng)
    found = yield from block.asked(block.conclusion.run(checks // 2))
    return block.found(found, checks, note)


def attention_searched(dim: int, most: int, rng: np.random.Generator) -> Asking[ReadBlock]:
    """Read the attention of a block, and compare a few fresh answers."""
    tokens = yield from find_far_tokens(dim, rng)

    def searched(turned: bool) -> Asking[ReadBlock]:
        plain = tokens.differences(_plain(tokens, most, rng))
        reading = _turned(tokens, most, rng) if turned else plain
        block = ReadBlock.of(BlockAnswers(tokens, *(yield from reading)), rng)
        yield from block.asked(block.conclusion.confirmed())
        return block

    turned = bool(tokens.by_place)
    try:
        return (yield from tried(SEARCHES + turned, lambda _: searched(turned)))
    except _FAILED as error:
        unseen = isinstance(error, ModelMismatch) and error.reason in _GATES_UNFOUND
        if unseen and not (turned or tokens.centred):
            # weights of 0 and 1 beside the first far token hid what depends on places
            with suppress(*_FAILED):
                return (yield from searched(True))
        if tokens.coarse > _FAINT:
            raise Reason.BLOCK_ATTENTION_FAINT.error(coarse=tokens.coarse, why=error) from error
        if not tokens.by_place:
            raise
        raise Reason.BLOCK_BY_PLACE.error(apart=tokens.by_place, why=error) from error


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """Attention as it was read, beside others of the same answers, and what is left to ask."""

    tokens: FarTokens
    conclusion: Conclusion[Layer]
    eps: tuple[float, float]
    """Of the norm before attention, and about what it is off by."""

    @classmethod
    def of(cls, answers: BlockAnswers, rng: np.random.Generator) -> ReadBlock:
        """Compute attention, and again from answers with drawn errors."""
        tokens, inner = answers.tokens, answers.inner()
        eps, spread = answers.eps(inner)
        drawn = [with_errors(answers, tokens.noise, rng) for _ in range(DRAWN)]
        others = [one.inner() for one in drawn]
        # few draws of one number may all be small by chance
        moved = [abs(one.eps(own)[0] - eps) for one, own in zip(drawn, others, strict=True)]
        off = max(spread, *moved)
        models = KeyedModels(inner, others, tokens.noise, eps_off=off / eps)
        own = said_of(inner)
        said = Said(_KIND, _OTHERWISE, own.assumed, own.notes)
        fresh = FarSequences(inner, rng, tokens=tokens)
        return cls(tokens, Conclusion(models, fresh, said), (eps, off))

    @property
    def inner(self) -> Layer:
        """Attention as a layer of normalised tokens."""
        return self.conclusion.drawn.model

    def layer(self, inner: Layer | None = None, c: Array | None = None) -> Layer:
        """Return the layer of tokens as they are asked."""
        inner = inner or self.inner
        norm = LayerNorm(
            np.ones(inner.dim), None, self.eps[0], before=True, centred=self.tokens.centred
        )
        around = {f"norm.{name}": array for name, array in norm.arrays().items()}
        c = inner.c if c is None else c
        return type(inner).from_arrays({**inner.arrays(), "c": c, "residual": True, **around})

    @property
    def eps_bound(self) -> float:
        """What eps is off by at most."""
        eps, off = self.eps
        return SAFETY * off + _ROUNDOFFS * UNIT * eps

    def asked(self, steps: Asking[T]) -> Asking[T]:
        """Run steps that compare answers with attention's own, on differences."""

        def read(X: Array, difference: Array) -> Array:
            shown = self.tokens.shown(X[:, -1])
            return np.where(shown, self.inner(X[:, -1:]) + difference, self.inner(X))

        return self.tokens.differences(steps, self.eps[0], read)

    def seen(self, rng: np.random.Generator) -> Asking[str]:
        """Ask a short token with two keys and by itself: whether F sees what attention adds."""
        x, key = rng.standard_normal((2, self.tokens.dim))
        X = np.array([_LONG_KEY * key, -_LONG_KEY * key, x])[None]
        phase = "attention and what follows"
        beside, alone = yield [
            Sequences(X, phase=phase, purpose="pilot"),
            Singles(x[None], phase=phase, purpose="pilot"),
        ]
        n = self.tokens.within(X)
        n = n / np.sqrt(np.sum(n**2, axis=2, keepdims=True) / self.tokens.dim + self.eps[0])
        adds = self.inner(n) - self.inner(n[:, -1:])
        if not np.linalg.norm(adds) > _SHOWN * np.linalg.norm(beside):
            return _UNKNOWN
        missed = np.linalg.norm(beside - alone - adds)
        return IN_PARALLEL if missed <= _UNSEEN * np.linalg.norm(adds) else _BEHIND

    def found(self, found: Found[Any], checks: int, note: str) -> Found[Layer]:
        """Return the layer of tokens as they are asked."""
        own = found.certificate
        errors = {**own.errors, "c": np.inf, "eps": self.eps_bound}
        assumed = tuple(one for one in own.assumes if "moved_at_most" not in one)
        evidence = replace(found.evidence, queries=2 * (checks // 2))
        certificate = Certificate(errors, (*assumed, *_ASSUMED))
        return Found(
            self.layer(found.model), certificate, evidence, (*found.notes, note, _UNDETERMINED)
        )


_KIND = "block with a LayerNorm or RMSNorm before its attention and a residual connection around it"
_OTHERWISE = "a window, other positions, a nonlinearity in the values, a second block"
_ASSUMED = (
    "Answers are compared beside query tokens of length 2⁵⁶, where what follows attention is the "
    "same whatever attention adds. Of shorter query tokens attention is taken to be the same "
    "function of what the norm before it makes of them.",
    "Tokens are normalised before the heads see them: M, W and w contain the scale and the shift "
    "of that norm.",
)
_UNDETERMINED = (
    "c is not determined, and is 0 in the model: answers contain it beside what follows attention. "
    "The model's answers to two sequences with one query token differ as the target's attention's "
    "do."
)
_BEHIND = "What follows attention in the block sees what attention adds. It is not recovered."
_UNKNOWN = (
    "Whether what follows attention in the block sees what attention adds was not seen. It is not "
    "recovered."
)
IN_PARALLEL = (
    "What stands beside attention in the block does not see what attention adds: it is in parallel "
    "to it, or nothing is there. It is not recovered."
)


def _plain(
    tokens: FarTokens, most: int, rng: np.random.Generator
) -> Asking[tuple[PlainAnswers, KeyLengths]]:
    """Ask for maps and scores without positions, and for eps."""
    gates = yield from GateReading(tokens, most, rng).run()
    ranks, maps = ranks_of_maps(gates, tokens.noise, rng), gates.maps()
    scores, whole = yield from FarScoreReading(tokens, gates, maps, ranks, rng).run()
    heads = PlainAnswers(gates, scores, whole, ranks)
    units = tokens.on_sphere(rng.standard_normal((DRAWN_KEYS, tokens.dim)))
    far = scores.tokens[:BESIDE]
    return heads, (yield from read_lengths(tokens, _model(heads, tokens), far, units))


def _turned(
    tokens: FarTokens, most: int, rng: np.random.Generator
) -> Asking[tuple[TurnedAnswers, KeyLengths]]:
    """Ask for maps with rotary positions, for eps, and for scores, with keys of any length."""

    def with_maps() -> Asking[tuple[TurnedMaps, KeyLengths]]:
        maps = yield from ZeroGates(tokens, most, rng).run()
        inner, b, keys = maps.beside_one()
        return maps, (yield from read_lengths(tokens, inner, tokens.of(b), keys))

    maps, lengths = yield from tokens.differences(with_maps())
    reading = FarGroupReading.of(
        maps,
        tokens.noise,
        LEAN,
        (maps.typical(maps.layer()), 0.0),
        rng,
        groups=groups_of(maps.solved(), SHARED),
        given=GivenPositions(),
        far=tokens,
    )
    eps, _ = lengths.mean_eps(maps.beside_one()[0], tokens)
    return TurnedAnswers(maps, (yield from tokens.differences(reading.run(), eps))), lengths
