"""Keys and queries with positions beside far query tokens: the readers of a layer, on the sphere.

`attention_layer.group_reading` reads keys and queries of a layer whose query tokens may be next to
0. Here they are √d e_j, on the sphere, and have scores of their own, o_h(e_j). These are known from
answers to tokens 0 (`zero_gates`). With ρ_h = e^o/(e^o + m), m tokens 0 between, an answer is

    z + Σ_h (1 − ρ_h) M_h b = Σ_h Σ_i p_h,i (M_h a_i − ρ_h M_h b),
    log(p_h,i/(1 − Σ p_h)) + log(m + e^o) = (K a_i)·R(Δ_i) Q_h b,

linear in the weights again, in the d − 1 coordinates that e_j does not hide; the rest is as there.
Keys are as long as scores are moderate, at most √d.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.attention_layer.group_reading import GroupReading
from unsoftmax.learners.attention_layer.key_answers import KeyAnswers, KeyedTokens, Weights
from unsoftmax.learners.attention_layer.score_reading import Lengths
from unsoftmax.learners.attention_layer.search_limits import AGAIN, LONGEST
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.block.far_tokens import FarTokens
from unsoftmax.learners.block.zero_gates import SphereMap
from unsoftmax.learners.compose import Asking
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices, Probes, Purpose
from unsoftmax.theory.costs import Cost

# Equations for each weight that is solved for, at least 1: fewer keys leave smaller errors.
EQUATIONS = 1 / 0.85
# Logits of keys, as root mean square of the strongest head; answers with a smaller weight than the
# second number are asked again with shorter keys: a weight's error is that of the answer.
_LOGITS, _LEAST_WEIGHT = 1.0, 1e-3


def cost(dim: int) -> Cost:
    """Bound the reading of scores: one key at a time, beside all tokens near and far."""
    parts, again = 2 + 3, 1 + AGAIN
    asked = Cost.of(again * parts * dim * dim, tokens=LONGEST + dim + 1)
    return asked + Cost.of(dim, rounds=again * (4 + int(np.log2(dim + 1))))


@dataclass(frozen=True, slots=True)
class FarKeyAnswers(KeyAnswers):
    """Answers to keys beside tokens √d e_j."""

    def asked(self, which: Indices, phase: str, purpose: Purpose) -> Probes:  # noqa: D102
        places = self.block[which], self.token[which], self.scale[which]
        asked, at_0 = (self.keys, self.tokens, *places, self.between), np.zeros(self.keys.shape[2])
        return KeyedTokens(*asked, base=at_0, phase=phase, purpose=purpose)

    def weights(self, layer: LayerMap, values: HeadMaps) -> list[tuple[Indices, Weights]]:
        """Decode every answer; a query's weight is as if it scored 0, as those between do."""
        assert isinstance(layer, SphereMap)
        H, n = len(values.U), self.keys.shape[1]
        corner = np.argmax(self.tokens @ layer.b.T, axis=1)
        beside, along = values.through(self.tokens), [values.through(keys) for keys in self.keys]
        keys, query = np.zeros((len(self.y), H, n)), np.zeros((len(self.y), H))
        for q, (block, token, y) in enumerate(zip(self.block, self.token, self.y, strict=True)):
            shown, others = layer.b[corner[token]] == 0, self.between
            own = np.exp(layer.own[corner[token]])
            share, b = own / (own + others), beside[:, :, token]
            columns = self.scale[q] * along[block] - (share * b)[:, :, None]
            right = y + b @ (1 - share)
            found = np.linalg.lstsq(columns.reshape(len(y), -1)[shown], right[shown], rcond=None)[0]
            keys[q] = found.reshape(H, n)
            query[q] = (1 - keys[q].sum(axis=1)) * (1 + others) / (own + others)
        return [(np.arange(len(self.y)), Weights(keys, query))]


@dataclass(frozen=True, slots=True)
class FarGroupReading(GroupReading):
    """What keys and queries are read with."""

    far: FarTokens = field(kw_only=True)

    @staticmethod
    def _most_keys(layer: LayerMap, values: HeadMaps, noise: float, share: int) -> int:
        most = int((len(layer.c) - 1) / len(values.ranks) / EQUATIONS)
        return max(1, min(most, *values.ranks))

    def _directions(self, d: int) -> Array:
        """Return the query tokens, of length 1."""
        assert isinstance(self.layer, SphereMap)
        return self.layer.b[self.rng.permutation(d)] / self.far.radius

    def piloted(self, units: Array, directions: Array) -> Asking[Lengths]:
        """Return the longest lengths; beside each token keys are scaled (`grid`)."""
        yield from ()
        return Lengths(self.far.radius, self.far.radius)

    def tokens(self, units: Array, directions: Array, lengths: Lengths) -> tuple[Array, Array]:
        """Return keys of one length, and query tokens on the sphere."""
        return lengths.keys / self.far.radius * self.far.on_sphere(units), self.far.of(directions)

    def grid(self, keys: Array, tokens: Array, between: int = 0) -> KeyAnswers:
        """Pair every block with every query token, not yet answered."""
        plain = GroupReading.grid(self, keys, tokens, between)
        logits = self.typical[0] * np.linalg.norm(tokens @ self.layer.M.T, axis=1)[plain.token]
        scale = np.minimum(1.0, 2.0 ** np.rint(np.log2(_LOGITS / np.maximum(logits, TINY))))
        asked = plain.keys, plain.tokens, plain.block, plain.token, scale, plain.y
        return FarKeyAnswers(*asked, between)

    def _small(self, answers: KeyAnswers, least: float) -> Indices:
        return GroupReading._small(self, answers, _LEAST_WEIGHT if least else least)
