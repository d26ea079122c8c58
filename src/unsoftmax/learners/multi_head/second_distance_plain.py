"""W_h(2) of all heads beside W_h(1), and with it the planes that turn: r² queries a head.

All heads but one are shut by a token between (`measure.opened_heads`). Head h is then asked as one
head with positions is: W_h(1) = B L, r offsets in the span of B beside its values, r query tokens
in the span of its rows; T = (Bᵀ W_h(2) X)(L X)⁻¹ turns its planes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.compose import Asking, together
from unsoftmax.learners.multi_head.recovered_heads import RecoveredHeads
from unsoftmax.learners.single_head.distances import StepReadings
from unsoftmax.measure import offsets
from unsoftmax.measure.opened_heads import FillerTuning, OpenedAnswers, fillers
from unsoftmax.measure.precision import Precision
from unsoftmax.probes import Array, Indices, Sequences
from unsoftmax.solve.skeleton import rank_by_gap

# Root mean square of the logits of a head's first token, if a step of distance leaves scores of
# their size; where keys are nearly dependent it makes them up to 30 times as large.
PILOT = 0.3
# The same of the others, as the first one tells.
LOGIT = 1.0
# Tokens with larger logits are asked again with shorter offsets: weights near 0 and 1 have few
# digits.
LARGEST = 8.0
# So many times shorter.
SHORTER = 4.0
# Times that a token is asked at most.
TRIES = 8
# Draws of query tokens, of which those with the shortest fillers are asked: long ones cost
# digits.
DRAWS = 8
# Singular values of W_h(1) above so many times its error count to its rank.
COUNTED = 3.0


DEPENDENT = (
    "No token shuts all heads but one: for every query token what some heads score by, W(1) b, "
    "depends on what others do. How they turn with distance is not read."
)


@dataclass(frozen=True, slots=True)
class SteppedHead:
    """What is asked of one head, and with which offsets and tokens."""

    place: int
    """Among the heads with scores."""
    basis: Array
    """B, (d, r)."""
    L: Array
    """Bᵀ W_h(1), (r, d)."""
    rows: Array
    """Offsets (r, d)."""
    tokens: Array
    """Query tokens (r, d)."""
    alpha: Array
    """How many times as long offsets are asked with each token, (r,)."""

    def shut_by(self, W: Array, v: Array) -> Array | None:
        """Return the tokens that shut all other heads, (r, d)."""
        lengths = self.alpha * float(np.linalg.norm(self.rows, axis=1).max())
        others = np.delete(W, self.place, axis=0)
        u = np.einsum("gij,mj->mgi", np.concatenate([W[[self.place]], others]), self.tokens)
        return fillers(u, v[self.place], lengths)

    def probes(self, z: Array, picked: Indices, gain: float) -> Sequences:
        """Ask all offsets with some query tokens."""
        r, d = self.rows.shape
        X = np.empty((len(picked), r, 3, d))
        X[:, :, 0] = gain * self.alpha[picked, None, None] * self.rows
        X[:, :, 1] = gain * z[picked, None]
        X[:, :, 2] = self.tokens[picked, None] / gain
        return Sequences(X.reshape(-1, 3, d), phase="W(2)", purpose="data")


def read_steps(
    found: RecoveredHeads,
    precision_and_c: tuple[Precision, float],
    gain: float,
    rng: np.random.Generator,
) -> Asking[tuple[StepReadings | None, ...]]:
    """Read W_h(2) of all heads; None of a head whose scores are 0.

    Raises
    ------
    NotIdentifiable
        There are more heads than dimensions, or nothing opens them one by one.
    """
    precision, c = precision_and_c
    model, W_error = found.model, found.errors["W"] * found.times_off
    ranks = [_rank(W, error) for W, error in zip(model.W, W_error, strict=True)]
    scored = [h for h, rank in enumerate(ranks) if rank]
    _refuse_more_heads(len(scored), model.dim, found)
    W, v = model.W[scored], model.v[scored]
    constant = model.v.sum(axis=0) - v.sum(axis=0)
    heads = [_head(W, v, (place, ranks[h]), rng) for place, h in enumerate(scored)]
    asking = [_answered(head, W, (v, constant, c), gain) for head in heads]
    answered = yield from together(asking)
    v_error = float(np.max(found.errors["v"] * found.times_off, initial=0.0))
    readings: list[StepReadings | None] = [None] * model.H
    for h, head, answers in zip(scored, heads, answered, strict=True):
        inverse = np.linalg.inv(head.rows @ head.basis)
        there = inverse @ answers.scores.T
        error = answers.error(precision, v_error) * float(np.linalg.norm(inverse, 2))
        # a range that is off by as much as W_h(1) leaves as much of W_h(2) out
        longest = float(np.linalg.norm(head.tokens, axis=1).max())
        off = error + float(W_error[h]) * longest
        readings[h] = StepReadings(
            model.v[h], 0.0, head.basis, head.L, head.tokens, there, float(W_error[h]), off
        )
    return tuple(readings)


def _answered(
    head: SteppedHead,
    W: Array,
    values: tuple[Array, Array, float],
    gain: float,
) -> Asking[OpenedAnswers]:
    """Ask one head; tokens with large logits again, with shorter offsets."""
    (v, constant, c), left = values, float(np.exp(-FillerTuning().closed))
    alpha, y = np.array(head.alpha), np.full((len(head.tokens), len(head.rows)), np.nan)
    z = head.shut_by(W, v)
    # the first token tells how long offsets of the others had better be
    missing = np.arange(min(1, len(y)))
    for _ in range(TRIES):
        if z is None:
            raise NotIdentifiable(DEPENDENT, determined={"v": v})
        [given] = yield [replace(head, alpha=alpha).probes(z, missing, gain)]
        y[missing] = np.reshape((given - c) / gain, (len(missing), -1))
        read = OpenedAnswers(head.rows, alpha.copy(), z.copy(), y, v, head.place, constant, left)
        logits = read.logits
        well = np.all(np.abs(logits) < LARGEST, axis=1)
        if np.all(well):
            return read
        asked = ~np.isnan(y[:, 0])
        if well[0] and not np.any(asked[1:]):
            alpha[1:] *= LOGIT / np.sqrt(np.mean(logits[0] ** 2))
        alpha[asked & ~well] /= SHORTER
        missing = np.flatnonzero(~well) if well[0] else missing
        shut = replace(head, alpha=alpha).shut_by(W, v)
        if shut is not None:
            z[missing] = shut[missing]
    raise NotIdentifiable(
        "Scores of a token two before the query token were not read: answers to [a; z; b], with a "
        "token z that takes all other heads' weight, are no head's. The target is no sum of "
        "attention heads with rotary positions, or has biases.",
        determined={"v": v},
    )


def _head(
    W: Array,
    v: Array,
    place_and_rank: tuple[int, int],
    rng: np.random.Generator,
) -> SteppedHead:
    """Choose offsets and query tokens of one head."""
    place, rank = place_and_rank
    basis = np.linalg.svd(W[place])[0][:, :rank]
    L = basis.T @ W[place]
    direction = v[place] / np.linalg.norm(v[place])
    within = basis.T @ direction
    outside = direction - basis @ within
    rows = offsets.balanced(within, rng).made() @ basis.T + outside
    best, chosen = np.inf, None
    for _ in range(DRAWS):
        tokens = _tokens(L, rng)
        alpha = PILOT * np.sqrt(rank) / np.linalg.norm(tokens @ L.T, axis=1)
        drawn = SteppedHead(place, basis, L, rows, tokens, alpha)
        z = drawn.shut_by(W, v)
        longest = np.inf if z is None else float(np.linalg.norm(z, axis=1).max())
        if chosen is None or longest < best:
            best, chosen = longest, drawn
    assert chosen is not None
    return chosen


def _tokens(L: Array, rng: np.random.Generator) -> Array:
    """Draw orthonormal query tokens in the span of L's rows, (r, d); half as long beside it."""
    r, d = L.shape
    rows = np.linalg.svd(L, full_matrices=False)[2]
    within = np.linalg.qr(rng.standard_normal((r, r)))[0] @ rows
    other = rng.standard_normal((r, d)) / np.sqrt(d)
    return np.asarray(within + (other - other @ rows.T @ rows) / 2)


def _rank(W: Array, error: float) -> int:
    singular = np.asarray(np.linalg.svd(W, compute_uv=False))
    return rank_by_gap(singular, COUNTED * float(error))


def _refuse_more_heads(heads: int, dim: int, found: RecoveredHeads) -> None:
    if heads > dim:
        raise NotIdentifiable(
            f"The target has {heads} heads with scores, more than its {dim} dimensions: with "
            "rotary positions heads are opened one by one by a token that shuts the others, and "
            "there is none for so many. What they are at a distance of one token is known, not "
            "how they turn.",
            determined={"v": found.model.v, "W(1)": found.model.W},
        )
