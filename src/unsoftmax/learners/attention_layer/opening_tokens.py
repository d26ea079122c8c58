"""Query tokens that open one head's gate and close all others', and how far offsets may move.

Logits l_h = a·(W_h b + w_h) are affine in b. With the vectors M_h a known, one answer at a scale
where gates are between 0 and 1 gives all of them: at b = 0 and at 32 random b they give every
head's logit on the span of these b. The shortest b there with l_h ≥ r_h and l_g ≤ −r_g for all
other heads, r_g the head's typical logit, has margins of 1/‖b‖ typical logits, and offsets within
a seventh of that keep all gates. About 36 queries.

Where keys and queries have biases, [b + a; b] has the logit a·(W(1) b + w) + t(b), where t, of the
key bias and the query token's own score, is not affine in b. [b − a; b] has t(b) beside the
negative of the first part, so half the difference of both logits is affine: two queries for each
query token. Where tokens are long, t is next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.offset_questions import asked_beside
from unsoftmax.learners.attention_layer.search_limits import Pilots
from unsoftmax.learners.attention_layer.value_answers import GateAnswers, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.probes import Array
from unsoftmax.solve.least_distance import shortest_within

# Length of the offset of the first pilot; the next ones are scaled by what it shows.
_PILOT_LENGTH = 2.0**6
# Largest logit of the pilots: weights of heads with much smaller ones are seen as well.
_PILOT_LOGIT = 0.5


class OpeningTokens(NamedTuple):
    """One query token for each head, and the offset beside which it opens that head's gate."""

    a: Array
    """(d,), a power of two times the offset that heads were found with."""
    b: Array
    """(H, d)."""
    margins: Array
    """The smallest logit of each token, in typical logits of its head, (H,)."""
    typical: tuple[float, float]
    """Root mean square logit of unit offsets beside unit query tokens, in the head where it is
    largest, and the same of the bias alone, as one offset shows it."""


@dataclass(frozen=True, slots=True)
class OpeningSearch:
    """The search for these tokens."""

    layer: LayerMap
    noise: AnswerNoise
    gates: GateAnswers
    rng: np.random.Generator
    pilots: Pilots

    def run(self) -> Asking[OpeningTokens]:
        """Ask pilots, then one query token for each direction of their span."""
        d = len(self.gates.a)
        octaves = float(np.log2(np.linalg.norm(self.gates.a) / _PILOT_LENGTH))
        K = min(self.pilots.tokens, d)
        basis = np.linalg.qr(self.rng.standard_normal((d, K)))[0].T
        down = round(octaves)
        down = yield from self._pilot(basis[0], down)
        for _ in range(limits.PILOT_ROUNDS):
            a, b = self._scaled(basis, down)
            share, beside = self._beside(a, b)
            logits = yield from self._logits(a, np.vstack([beside, b]), "opening tokens")
            if np.isfinite(logits).all():
                at_zero = (logits[0] - share * logits[1:].sum(axis=0)) / (1 - share * K)
                return self._chosen(a, b, at_zero, logits[1:] - at_zero)
            down += 1
        raise _unreadable()

    def _beside(self, a: Array, b: Array) -> tuple[float, Array]:
        """Return one query token more, (d,), and how many times the sum of all others it is."""
        if not self.layer.up_to_factor:
            return 0.0, np.zeros(b.shape[1])
        # 0 tells nothing where an answer's size is unknown and c = 0
        share = -1 / np.sqrt(len(b))
        return share, on_one_grid(a, share * b.sum(axis=0))[1]

    def _scaled(self, directions: Array, down: int) -> tuple[Array, Array]:
        """Return the offset 2^−down times as long, and query tokens as long as it allows."""
        a = self.gates.a * 2.0**-down
        length = float(np.linalg.norm(a)) * limits.SHORTER
        _, b = on_one_grid(a, length * directions)
        return a, b

    def _pilot(self, direction: Array, down: int) -> Asking[int]:
        """Find the scale at which the largest logit is about ``pilot_logit``."""
        least = 2 * self.pilots.gate_off
        for _ in range(limits.PILOT_ROUNDS):
            a, b = self._scaled(direction[None], down)
            logits = yield from self._logits(a, b, "opening tokens, scale")
            largest = float(np.max(np.abs(logits))) if np.isfinite(logits).all() else np.inf
            if least <= largest < np.inf:
                # logits grow as the square of the scale
                return down + round(float(np.log2(largest / _PILOT_LOGIT)) / 2)
            down += 3 if largest == np.inf else -3
        raise _unreadable()

    def _logits(self, a: Array, b: Array, phase: str) -> Asking[Array]:
        """Ask one offset beside query tokens (K, d); return logits (K, H), NaN where saturated."""
        signs = (1, -1) if self.pilots.mirrored else (1,)
        y = yield from asked_beside(np.array([sign * a for sign in signs]), b, phase)
        read = (sign * self._logits_of(sign * a, b, y[:, k]) for k, sign in enumerate(signs))
        return np.asarray(sum(read) / len(signs))

    def _logits_of(self, a: Array, b: Array, y: Array) -> Array:
        """Return logits (K, H) of an offset along that of the gates, NaN where saturated."""
        vectors = self.gates.vectors(self.layer)
        along = self.gates.a
        vectors *= float(a @ along) / float(along @ along)
        z = self.layer.beyond(self.layer.read(y, b, vectors.T), b)
        gates = np.linalg.lstsq(vectors.T, z.T, rcond=None)[0].T
        off = self.pilots.gate_off
        open_ = (gates > off) & (gates < 1 - off)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(open_, np.log(gates / (1 - gates)), np.nan)

    def _chosen(self, a: Array, directions: Array, at_zero: Array, slopes: Array) -> OpeningTokens:
        """Choose the tokens, and how long they and the offset are.

        Of one offset logits (H,) at 0 are affine in the span of query tokens (K, d), with slopes
        (K, H).
        """
        H = len(at_zero)
        rms = np.sqrt(np.mean(slopes**2, axis=0))
        if not rms.all():
            raise _still()
        b, margins = np.zeros((H, directions.shape[1])), np.zeros(H)
        for h in range(H):
            signs = np.where(np.arange(H) == h, 1.0, -1.0)
            y = shortest_within((signs * slopes / rms).T)
            if y is None:
                raise _still()
            margins[h] = 1 / np.linalg.norm(y)
            b[h] = margins[h] * y @ directions
        least = float(margins.min())
        # the bias may take a quarter of a margin, and what is left must saturate; the ratio of
        # both lengths stays, or the grid of the offset takes the query token's last bits
        over_bias = limits.OVER_BIAS * float(np.max(np.abs(at_zero) / rms)) / least
        needed = 2 * limits.SATURATED / (least * float(rms.min()))
        longer = max(1.0, over_bias, float(np.sqrt(needed)))
        stretch = max(needed / longer, longer)
        lengths = np.linalg.norm(a), np.linalg.norm(directions[0])
        a, b = on_one_grid(a * 2.0 ** np.ceil(np.log2(stretch)), longer * b)
        typical = float(np.max(rms / (lengths[0] * lengths[1])))
        bias = float(np.max(np.abs(at_zero) / lengths[0]))
        return OpeningTokens(a, b, margins, (typical, bias))


def _unreadable() -> ModelMismatch:
    return ModelMismatch(
        "At no norm of tokens are the gates of all heads between 0 and 1: scores are no x·(W x_N "
        "+ w), those of some heads are a million times those of others, or answers are too coarse."
    )


def _still() -> NotIdentifiable:
    return NotIdentifiable(
        "No query token opens the gate of a single head: two heads switch together for every query "
        "token (W and 2W, or more heads than dimensions), or a head has no W.",
        determined={},
    )
