"""A whole layer from ids whose vectors are known, without positions: counts tell its heads apart.

y are the whitened coordinates of the table, D of them; a layer of tokens x is one of tokens y.

1. D + 1 lone tokens: c and M = Σ M_h.
2. Some tokens beside one query token, each with H + 4 ratios of counts: a pole for each head
   (`count_curves`). Mixtures tell which heads of several tokens belong together, and fix their
   odds.
3. The V_hi = M_h (y_i − y_j) of all these tokens show every range U_h; V_h = (U⁺)_h M.
4. Keys and query tokens are ids now: [t_1 … t_n, j] is one joint least squares problem of all
   weights (`key_answers`, around a base token at 0), so (y_t − y_j)·(W_h y_j + w_h). Query tokens
   beside D keys give the column spaces, two blocks of keys all others, and these [W_h w_h].
5. Fresh sequences confirm or refuse; the certificate is what drawn errors do.

Everything that is computed from answers is computed again from answers with errors, as in layers
of vectors; only what is asked differs.

Of a layer behind a LayerNorm heads are not learned from ids; lone ids tell its norm. A lone id t is
answered by o_t = γ ⊙ n_t + β, n_t = LN(L x_t + c), L = I + M with a residual connection. Numbers of
n_t sum to 0, and their squares to m (eps counts for nothing):

    Σ_k (o_tk − β_k)/γ_k = 0        1/γ spans what answers, less their mean, never show
    Σ_k (o_tk − β_k)²/γ_k² = m      linear in β, and in the factor of 1/γ
    a_t n_t = P(L x_t + c)          P takes the mean out; for every number k the a_t n_tk are an
                                    affine map of x_t, so a is the least eigenvector of
                                    (I − QQᵀ)∘nnᵀ, Q an orthonormal basis of [y 1]

So γ, β and P[L c] up to one factor: *queries* d + D + 24 further ids, of up to d numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from unsoftmax.errors import ModelMismatch, OracleError
from unsoftmax.learners.attention_layer import attention_search, id_answers
from unsoftmax.learners.attention_layer.id_reading import SPARE_TOKENS, IdReading
from unsoftmax.learners.attention_layer.id_scores import MORE_QUERIES, SPARE_KEYS, IdScoreReading
from unsoftmax.learners.attention_layer.key_answers import HeadScores
from unsoftmax.learners.compose import Asking, mapped, read_as
from unsoftmax.learners.tokens.asked_ids import COPIED, MIXED, fresh_bags
from unsoftmax.learners.tokens.table_head import Affine, TokenTable, ask_spanning, spanning
from unsoftmax.models import AttentionLayer, LayerHead
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.probes import Array, Ids, Indices, Purpose, Round
from unsoftmax.protocol import Answers, Plan, Steps
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.conclude import Conclusion, LayerSequences
from unsoftmax.validate.drawn_models import Layer

# Tables of fewer ids for each dimension leave too few beside the keys.
_LEAST_IDS = 3


@dataclass(frozen=True, slots=True)
class LookedUp(Ids):
    """Sequences of ids as a layer sees them: their vectors."""

    table: TokenTable

    @property
    def dim(self) -> int:  # noqa: D102
        return int(self.table.vectors.shape[-1])

    @property
    def of_ids(self) -> bool:  # noqa: D102
        return False

    def __getitem__(self, span: slice) -> Array:
        return self.table.at(self.ids[span])


def as_ids(asked: Round) -> Round:
    """Ask ids instead of their vectors."""
    families: Round = []
    for probes in asked:
        if not isinstance(probes, LookedUp):
            raise OracleError("The target does not answer as long sequences as before.")
        families.append(Ids(probes.ids, phase=probes.phase, purpose=probes.purpose))
    return families


@dataclass(frozen=True, slots=True)
class IdSequences(LayerSequences):
    """Sequences of ids that a layer is tried with."""

    table: TokenTable = field(kw_only=True)
    context: int = field(kw_only=True)

    def confirming(self, count: int) -> list[Any]:
        """Draw sequences that are asked before the hold-out."""
        return self._drawn_ids(count, "confirmation", "pilot")

    def holdout(self, count: int, tells: Any) -> tuple[list[Any], list[Round]]:
        """Draw a hold-out; half of it fills the context."""
        return self._drawn_ids(count, "hold-out", "check"), []

    def _drawn_ids(self, count: int, phase: str, purpose: Purpose) -> list[Any]:
        fresh = fresh_bags(count, np.arange(len(self.table)), self.context, self.rng)
        return [LookedUp(one.ids, self.table, phase=phase, purpose=purpose) for one in fresh]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAnswers(attention_search.LayerAnswers):
    """All answers that a layer of ids is computed from, and what takes coordinates to vectors."""

    to: Array
    middle: Array
    residual: bool

    def solved(self) -> LiftedLayer:
        """Compute the layer."""
        found = super(TableAnswers, self).solved()
        parts = (found.layer, found.values, found.scores, found.groups, found.eps)
        return LiftedLayer(*parts, self.to, self.middle, self.residual)


@dataclass(frozen=True, slots=True)
class LiftedLayer(attention_search.RecoveredLayer):
    """A layer of coordinates (x − middle) to, as one of vectors x."""

    to: Array
    middle: Array
    with_residual: bool

    def model(self, moved: float = 0.0) -> AttentionLayer:
        """Return it as a model."""
        assert isinstance(self.scores, HeadScores)
        heads, shifted = [], np.zeros(len(self.layer.c))
        each = zip(self.values.U, self.values.V, self.scores.C, self.scores.R, strict=True)
        for U, V, C, R in each:
            K, Q, own = (self.to @ C).T, R[:, :-1] @ self.to.T, V @ self.to.T
            w = K.T @ (R[:, -1] - Q @ self.middle)
            heads.append(LayerHead.from_factors(O=U, V=own, K=K, Q=Q, w=w))
            shifted += U @ (own @ self.middle)
        return AttentionLayer(heads, self.layer.c - shifted, self.with_residual)


@dataclass(frozen=True, slots=True)
class TableLayer:
    """Learn a layer from ids whose vectors are known; `AttentionLayerLearner` is it then."""

    table: TokenTable
    most: int
    """Heads at most."""
    rank: int | None
    context: int
    seed: int

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with the heads."""
        D = self.table.affine.y.shape[1]
        H = min(self.most, D)
        r = min(D, -(-D // H) if self.rank is None else int(self.rank))
        per_token = 2 * (H + 8) + H
        counted = 2 * (D + SPARE_TOKENS + 6) * per_token + 5 * H
        scores = (2 * D + SPARE_KEYS) * (D + 1 + MORE_QUERIES)
        cost = (
            Cost.of(D + 1 + COPIED + MIXED, rounds=1)
            + Cost.of(counted, tokens=self.context, rounds=40)
            + Cost.of(scores, tokens=min(1 + r, self.context), rounds=20)
            + Cost(rounds=3)
        )
        formula = (
            "about D + 17 + (r + 8)(5H/3 + 6) + 4(D + 8)(r + 4)/3r + 2(D + 21 − r) for H heads of "
            "rank r behind a table of D dimensions"
        )
        return replace(cost.plan(formula, self.context, known=False), vocabulary=len(self.table))

    def steps(self, checks: int) -> Steps[Layer]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng, affine = np.random.default_rng(self.seed), self.table.affine
        among = affine.candidates(rng, len(self.table))
        reading = yield from self._opened(among, rng)
        counted = yield from reading.opened()
        heads, residual = reading.heads(counted), False
        if reading.single.y.shape[1] == self.table.vectors.shape[1]:
            # the identity is a head that is always on: fewer are left without it
            other = reading.without_residual(counted)
            residual = other[0].heads(other[1]) < heads
            if residual:
                reading, counted = other
        rest = self._rest(reading, counted, among)
        values, scores = yield from (read_as(rest, self._without_last) if residual else rest)
        answers = TableAnswers(
            values=values, scores=scores, to=affine.to, middle=affine.middle, residual=residual
        )
        drawn = replace(answers.drawn(values.noise, rng), noise=reading.noise)
        fresh = IdSequences(drawn.model, rng, table=self.table, context=self.context)
        conclusion = Conclusion(drawn, fresh, attention_search.said_of(drawn.model))
        return (yield from mapped(_concluded(conclusion, checks), ask=as_ids))

    def _rest(
        self, reading: IdReading, counted: id_answers.CountAnswers, among: Indices
    ) -> Asking[tuple[id_answers.CountAnswers, id_answers.TableScores]]:
        """Ask for maps and scores."""
        yield from reading.refuse_what_the_last_adds(counted)
        heads = reading.heads(counted)
        if heads > self.most:
            raise Reason.MORE_HEADS.error(heads=heads, most=self.most)
        maps = yield from reading.maps(counted, self.rank)
        known = reading.lone, maps, maps.layer(), maps.solved()
        scores = IdScoreReading(self.table.affine, among, *known, reading.context, reading.rng)
        return maps, (yield from scores.run())

    def _without_last(self, asked: Round, answers: Answers) -> Answers:
        """Leave out what a residual connection adds to answers."""
        last = [self.table.vectors[probes[0:][:, -1, 0].astype(np.intp)] for probes in asked]
        return [y - x for x, y in zip(last, answers, strict=True)]

    def _opened(self, among: Indices, rng: np.random.Generator) -> Asking[IdReading]:
        """Ask lone tokens."""
        affine, V = self.table.affine, len(self.table)
        D, lifted = affine.y.shape[1], affine.lifted
        if len(among) < _LEAST_IDS * D + 2 * COPIED:
            raise Reason.TABLE_TOO_SMALL.error(ids=V, dimension=D)
        lone = among[spanning(lifted[among], D + 1)]
        # short tokens first, as their logits are moderate
        lone = lone[np.argsort(np.linalg.norm(affine.y[lone], axis=1), kind="stable")]
        context = int(self.context)
        try:
            told = yield from ask_spanning(affine, lone, among, context, rng)
        except ModelMismatch as refusal:
            if refusal.reason == Reason.NOT_OF_THE_TABLE.name:
                yield from refuse_behind_norm(affine, among, rng)
            raise
        if told.y.ndim == 1 or told.y.shape[1] == 1:
            raise Reason.ONE_NUMBER.error(
                instead="LowRankHead(dim, table=E) learns one head from one number, of ids"
            )
        noise = id_answers.noise_beside(told)
        single = id_answers.LoneVectors(lifted[lone], told.y, noise)
        return IdReading(self.table, lone, single, noise, context, rng)


def _concluded(conclusion: Conclusion[Layer], checks: int) -> Steps[Layer]:
    """Ask a few fresh sequences, and then the hold-out."""
    yield from conclusion.confirmed()
    return (yield from conclusion.run(checks))


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
