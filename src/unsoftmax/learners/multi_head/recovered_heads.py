"""Heads as one search found them: put together, with what the errors of each may be."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.multi_head.columns import HeadColumns
from unsoftmax.learners.multi_head.orientation import OrientedHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.window_sweeps import TokenHeads
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class RecoveredHeads:
    """A recovered model, not in canonical form, and what the errors of each head may be."""

    model: MultiHead
    errors: dict[str, Array]
    length: float
    """Norm of the query tokens that were asked."""
    low_rank: bool = False
    notes: tuple[str, ...] = ()
    times_off: float = 1.0
    """How many times ``errors`` the values miss Σ v_h by, at least 1. The certificate counts it;
    the judgement does not: a model that lacks a head misses Σ v_h as well."""

    def vague(self, most: float) -> bool:
        """Tell whether the error of some head is more than ``most`` of it.

        Such a head is made of what others miss, or its values are too small for these answers.
        """
        size = np.linalg.norm(self.model.W, axis=(1, 2))
        size = size + np.linalg.norm(self.model.w, axis=1) / self.length
        return bool(np.any((self.errors["W"][: len(size)] > most * size) & (size > 0)))

    def above(self, rank: int | None, errors: float) -> bool:
        """Tell whether some [W_h w_h] has a rank above the one that was given.

        Singular values above so many ``errors`` count to it.
        """
        if rank is None:
            return False
        both = np.concatenate([self.model.W, self.model.w[:, :, None] / self.length], axis=2)
        sizes = np.linalg.svd(both, compute_uv=False)
        error = (self.errors["W"] + self.errors["w"] / self.length)[: len(sizes), None]
        return bool(np.any(sizes[:, rank:] > errors * error))

    @property
    def largest(self) -> dict[str, float]:
        """The largest error of each parameter over heads."""
        return {name: float(np.max(error, initial=0.0)) for name, error in self.errors.items()}

    def with_note(self, note: str) -> RecoveredHeads:
        """Add a sentence to the notes."""
        return replace(self, notes=(*self.notes, note))


def no_heads(reduced: ReducedAnswers) -> RecoveredHeads:
    """Return what answers that are all one constant tell: nothing."""
    d = reduced.dim
    model = MultiHead(np.zeros((0, d, d)), np.zeros((0, d)), c=reduced.c)
    return RecoveredHeads(model, dict.fromkeys("Wvw", np.zeros(0)), reduced.lengths.length)


def assembled(
    token: TokenHeads, columns: HeadColumns, directions: Array, found: OrientedHeads, biases: bool
) -> RecoveredHeads:
    """Put the heads together: W from its columns along ``directions`` (k, d), signs and values.

    With biases w_h = u_h − W_h b; without them u_h = W_h b is the column along b.
    """
    d, length, u = token.reduced.dim, token.length, token.seen.u
    W = columns.W @ directions
    w = np.zeros_like(u)
    if biases:
        w = u - W @ token.b
    else:
        W = W + u[:, :, None] * (token.b / length**2)
    sign = np.array(found.sign)
    W, w = sign[:, None, None] * W[found.index], sign[:, None] * w[found.index]
    v = np.array(found.v).reshape(len(found.index), d)
    W_error = columns.error[found.index]
    if found.constant is not None:
        W, w = np.concatenate([W, np.zeros((1, d, d))]), np.concatenate([w, np.zeros((1, d))])
        v = np.concatenate([v, found.constant[None]])
        W_error = np.append(W_error, found.unswitched / length)
    errors = {"W": W_error, "v": np.full(len(v), found.v_error), "w": W_error * length * biases}
    ranks = sorted({int(rank) for rank in columns.ranks if rank < d})
    model = MultiHead(W, v, w, token.reduced.c)
    notes, times_off = _notes(len(found), ranks, d), found.times_off(token.reduced.s)
    return RecoveredHeads(model, errors, length, bool(ranks), notes, times_off)


def _notes(heads: int, low_ranks: list[int], d: int) -> tuple[str, ...]:
    low = f" Ranks below {d}: {', '.join(map(str, low_ranks))}." if low_ranks else ""
    count = "1 head" if heads == 1 else f"{heads} heads"
    return (
        f"{count}; those of equal W and w are one, whose v is the sum of theirs "
        f"(Proposition 7.1).{low}",
    )
