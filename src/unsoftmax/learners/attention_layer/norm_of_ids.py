"""What lone ids tell of a layer behind a LayerNorm, whose heads are not learned from ids.

A lone id t is answered by o_t = γ ⊙ n_t + β, n_t = LN(L x_t + c), L = I + M with a residual
connection. Numbers of n_t sum to 0, and their squares to m (eps counts for nothing):

    Σ_k (o_tk − β_k)/γ_k = 0        1/γ spans what answers, less their mean, never show
    Σ_k (o_tk − β_k)²/γ_k² = m      linear in β, and in the factor of 1/γ
    a_t n_t = P(L x_t + c)          P takes the mean out; for every number k the a_t n_tk are an
                                    affine map of x_t, so a is the least eigenvector of
                                    (I − QQᵀ)∘nnᵀ, Q an orthonormal basis of [y 1]

So γ, β and P[L c] up to one factor: *queries* d + D + 24 further ids, of up to d numbers.
"""

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.tokens.asked_ids import COPIED
from unsoftmax.learners.tokens.table_head import Affine
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.probes import Array, Ids, Indices
from unsoftmax.refusals import Reason

# Fresh ids may be missed by this share of the answers' spread. Smaller: float32 answers are refused
# without a norm's name.
_MISSED = 1e-4


def refuse_behind_norm(affine: Affine, among: Indices, rng: np.random.Generator) -> Asking[None]:
    """Refuse a layer behind a LayerNorm by that name, with what lone ids determine.

    Nothing is asked where there are too few ids.

    Raises
    ------
    NotIdentifiable
        There is such a norm; ``.determined`` has its scale and shift, and M and c up to one factor.
    """
    D, d = affine.y.shape[1], affine.x.shape[1]
    count = d + D + COPIED
    if len(among) < count + COPIED:
        return
    ids = rng.permutation(among)[: count + COPIED]
    [o] = yield [Ids(ids[:, None], phase="lone tokens behind a norm", purpose="pilot")]
    if o.ndim == 1 or not 3 <= o.shape[1] <= d:
        return
    lifted = affine.lifted[ids]
    with np.errstate(all="ignore"):
        scale, shift = _norm_of(o[:count])
        n = (o[:count] - shift) / scale
        if not np.all(np.isfinite(n)):
            return
        mapped = _map_of(lifted[:count], n)
        norm = LayerNorm(scale, shift, eps=0.0)
        missed = np.abs(norm(lifted[count:] @ mapped) - o[count:])
    if not np.max(missed) <= _MISSED * np.max(np.ptp(o, axis=0)):
        return
    M = (affine.to @ mapped[:-1]).T
    found = {"scale": scale, "shift": shift, "M": M, "c": mapped[-1] - M @ affine.middle}
    raise Reason.BEHIND_A_NORM.error(found)


def _norm_of(o: Array) -> tuple[Array, Array]:
    """Return γ and β of answers (T, m): γ up to the sign of all, of which the mean is above 0."""
    m, middle = o.shape[1], o.mean(axis=0)
    g = np.linalg.svd(o - middle)[2][-1]  # 1/γ up to a factor
    z = (o - middle) * g
    # Σ (z − b)² = w: z² = 2 b·z + (w − b²), and b sums to 0 as z does
    rows = np.column_stack([2 * z, np.ones(len(z))])
    solved = np.linalg.lstsq(rows, np.sum(z**2, axis=1), rcond=None)[0]
    b = solved[:-1]
    size = np.sqrt((solved[-1] + b @ b) / m)
    return size / g * np.sign(np.sum(1 / g)), middle + b / g


def _map_of(lifted: Array, n: Array) -> Array:
    """Return (D + 1, m) that takes [y 1] to a_t n_t, up to one factor above 0."""
    Q = np.linalg.qr(lifted)[0]
    a = np.linalg.eigh((np.eye(len(n)) - Q @ Q.T) * (n @ n.T))[1][:, 0]
    return np.asarray(np.linalg.lstsq(lifted, (a * np.sign(a.sum()))[:, None] * n, rcond=None)[0])
