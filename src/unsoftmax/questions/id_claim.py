"""A head behind a vocabulary as a claim: what it says of sequences of ids, and what was changed.

With α the weights of f = Σ_n α_n u_n and j the last id, the rows of id t move the answer by

    ∂f/∂u_t = Σ_{n: t_n = t} α_n,   ∂f/∂ρ_t = Σ_{n: t_n = t} α_n (u_n − f)·x_j,
    ∂f/∂x_j = Σ_n α_n (u_n − f) ρ_n.

A row of x counts where its id is the last one, so every id is the last one once: V questions beside
the usual ones. To name what was changed, k = r + 2 ids are asked alone, and in all k(k − 1) pairs:
lone ids show u, pairs the logits G_ij = (ρ_i − ρ_j)·x_j that the target has. Where x alone was
changed these are linear in x_j, r unknowns per column; where ρ alone was, in all ρ.
"""

from collections.abc import Mapping

import numpy as np

from unsoftmax.measure.bags import ASKED_AGAIN, BagReader
from unsoftmax.models import TokenHead
from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.models.attention import softmax
from unsoftmax.models.composition import Map
from unsoftmax.models.model import FrozenModel
from unsoftmax.probes import Array, Ids, Indices
from unsoftmax.questions.answer_errors import AnswerErrors, Seen
from unsoftmax.questions.claim import Claim, ClaimedAnswers
from unsoftmax.questions.claim_probes import COVERING
from unsoftmax.questions.tensor_search import Located, Search

# So many questions name what was changed, at most: of heads of rank 16.
_MOST = 1000
# Logits are others where they differ by so many times their errors.
_OTHERS = 3.0

_TOO_MANY = "{count:,} more questions would tell what of u, rho and x it is, or learning it anew."
_EITHER = "what was changed of rho is also a change of x: only their products are determined."
_NO_LONGER = "ids that were asked again are answered as these weights do."


class IdClaim(Claim):
    """A `TokenHead` as the claim that a target serves it; tokens (B, N, 1) are ids.

    Parameters
    ----------
    model : TokenHead
        The weights.
    errors : mapping of str to float, optional
        What their certificate bounds u and every logit G by.
    """

    def _leaves(self) -> Mapping[str, Map]:
        """Return none: a head behind a vocabulary is no map of vectors."""
        return {}

    @property
    def attends(self) -> bool:
        """Sequences of several ids are asked."""
        return True

    def weighty(self) -> dict[str, float]:
        """Return how large each is; of rho and x neither counts where the other one is 0."""
        norms = {name: one.norm for name, one in self.model.tensors.items()}
        scored = norms["rho"] > 0 and norms["x"] > 0
        return norms if scored else {"u": norms["u"]}

    def separate(self, tensor: str, moves: Array) -> Array:
        """Answers are numbers: each moves by itself."""
        return moves

    def at(self, X: Array) -> ClaimedAnswers:
        """Evaluate the claim at sequences (B, N, 1)."""
        ids = X[:, :, 0].astype(np.intp)
        u, rho, x = self.model.u[ids], self.model.rho[ids], self.model.x[ids[:, -1]]
        alpha = softmax(np.einsum("bnr,br->bn", rho, x))
        f = np.einsum("bn,bn->b", alpha, u)
        own = alpha * (u - f[:, None])
        size = np.linalg.norm(x, axis=1)
        terms = np.einsum("bnr,br->bn", np.abs(rho), np.abs(x))
        roundings = np.sum(alpha * np.abs(u) + np.abs(own) * terms, axis=1)
        moves = {
            "u": _by_id(ids, alpha),
            "rho": size * _by_id(ids, own),
            "x": np.linalg.norm(np.einsum("bn,bnr->br", own, rho), axis=1),
        }
        left = self.model.moved_at_most(ids, {"u": 0.0, "G": 0.0} | dict(self.errors))
        return ClaimedAnswers(f, roundings, moves, left)


def claim_of(model: FrozenModel, errors: Mapping[str, float] | None = None) -> Claim:
    """Return a model as the claim that a target serves it, of vectors or of ids."""
    return IdClaim(model, errors) if isinstance(model, TokenHead) else Claim(model, errors)


def _by_id(ids: Indices, each: Array) -> Array:
    """Return the norms of what positions (B, N) add up to for their ids."""
    alike = ids[:, :, None] == ids[:, None, :]
    return np.asarray(np.sqrt(np.maximum(0.0, np.einsum("bn,bnm,bm->b", each, alike, each))))


def most_to_name(model: TokenHead) -> int:
    """Return how many questions at most name what was changed of a head; 0: it is not named."""
    k = _named_by(model)
    most = k + ASKED_AGAIN * k * (k - 1)
    return most if most <= _MOST else 0


def _named_by(model: TokenHead) -> int:
    return min(model.vocabulary, max(COVERING, model.rank + 2))


def changed_factor(claim: IdClaim, errors: AnswerErrors, asked: list[Array], one: Seen) -> Search:
    """Find which of u, rho and x was changed."""
    k = _named_by(claim.model)
    if not most_to_name(claim.model):
        return Located(None, _TOO_MANY.format(count=k * k))
    ids = _suspects(claim.model, asked, np.abs(one.missed) / np.maximum(errors.of(one), TINY))
    [u] = yield [Ids(ids[:, None], phase="what was changed", purpose="check")]
    known = claim.model.u[ids]
    off = errors.precision.error(np.abs(known), u)
    names = ["u"] if np.any(np.abs(u - known) > 2 * off) else []
    reader = BagReader(u, u, errors.precision, context=2 + COVERING, names=ids)
    i, j = np.nonzero(~np.eye(len(ids), dtype=bool))
    read = yield from reader.read(i, j, "what was changed")
    rho, x = claim.model.rho[ids], claim.model.x[ids]
    served = np.isfinite(read.error)
    i, j, gap = i[served], j[served], rho[i[served]] - rho[j[served]]
    r, k, m = claim.model.rank, len(ids), np.arange(len(i))
    # what answers tell to the last digit the claim's own sums round, and those of a fit
    terms = np.einsum("mr,mr->m", np.abs(rho[i]) + np.abs(rho[j]), np.abs(x[j]))
    weight = 1 / np.maximum(read.error[served] + (r + 2) * UNIT * terms, TINY)
    changed = weight * (read.G[served] - np.einsum("mr,mr->m", gap, x[j]))
    if not np.any(np.abs(changed) > _OTHERS):
        return Located.of(names, _NO_LONGER)
    by_x, by_rho = np.zeros((2, len(i), k, r))
    by_x[m, j] = gap
    by_rho[m, i], by_rho[m, j] = x[j], -x[j]
    fits = {"rho": by_rho, "x": by_x}
    alone = [name for name, A in fits.items() if _explains(A * weight[:, None, None], changed)]
    if len(alone) == 2:
        return Located.of(names, _EITHER)
    return Located.of([*names, *(alone or fits)])


def _suspects(model: TokenHead, asked: list[Array], missed: Array) -> Indices:
    """Return ids of the sequences that miss most, short ones first of those that miss."""
    order = sorted(range(len(asked)), key=lambda n: (len(asked[n]) > COVERING, -missed[n]))
    every = np.concatenate([asked[n][:, 0] for n in order]).astype(np.intp)
    first = np.unique(every, return_index=True)[1]
    return every[np.sort(first)][: _named_by(model)]


def _explains(A: Array, changed: Array) -> bool:
    """Tell whether changes are linear in what an array may have been changed by."""
    A = A.reshape(len(A), -1)
    solution = np.linalg.lstsq(A, changed, rcond=1e-12)[0]
    return bool(np.all(np.abs(A @ solution - changed) <= _OTHERS))
