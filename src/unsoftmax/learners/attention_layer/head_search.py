"""How many heads there are, and beside which query tokens one of them alone is open.

Two tokens [b + a; b] are answered by c + M b + Σ_h σ(l_h) M_h a with l_h = a·(W_h b + w_h). For
long a and b every gate σ(l_h) is 0 or 1: the answers z_k to random b_k, and M a, where all gates
are 1, are sums of the H vectors M_h a. Their rank is H, and the columns of zeros and ones in the
span of their left singular vectors are the gates (`solve.gate_columns`); A residual connection is
a head whose gate is always 0 and whose vector is a itself. 24 queries, 8 more until columns are
unique.

Beyond 15 heads query tokens are those of half a circle, b(θ) = cos θ b₁ + sin θ b₂: a gate's logit
is a sinusoid along it and changes its sign once. So the answers are constant between H jumps of
±M_h a, in any order: intervals whose ends differ are halved until there are H of them. The signs of
the jumps are those for which they add up to M a. About H·(4 + log₂ H) queries.

Heads whose [W_h w_h] are positive multiples of each other, such as W beside 2W, open and close
together where tokens are long, and pass for one. Where logits are moderate they do not: a few dozen
b show their number as a rank. What is no sum of heads (a nonlinearity, a second layer) has no rank
below the number of b.

**Query tokens that open one head's gate** and close all others', and how far offsets may move from
where they do: logits l_h = a·(W_h b + w_h) are affine in b. With the vectors M_h a known, one
answer at a scale where gates are between 0 and 1 gives all of them: at b = 0 and at 32 random b
they give every head's logit on the span of these b. The shortest b there with l_h ≥ r_h and l_g ≤
−r_g for all other heads, r_g the head's typical logit, has margins of 1/‖b‖ typical logits, and
offsets within a fifth of that keep all gates. About 36 queries.

Where keys and queries have biases, [b + a; b] has the logit a·(W(1) b + w) + t(b), where t, of the
key bias and the query token's own score, is not affine in b. [b − a; b] has t(b) beside the
negative of the first part, so half the difference of both logits is affine: two queries for each
query token. Where tokens are long, t is next to nothing.

With positions [2⁴⁰ a_1; …; 2⁴⁰ a_n; 2⁻⁴⁰ b] has the scores a_i·W(Δ_i) b, and 2⁻⁸⁰ of them for b
itself, whose own values are as little beside those of the offsets. So with z = (o − c)/2⁴⁰ what is
asked of a layer without positions, [b + a_1; …; b + a_n; b] ↦ c + M b + z, is answered for one with
them: its heads have other W_h at every place, and everything else is as it was. A token b among the
offsets is asked as a zero token, which scores 0 as the query token does.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer import value_answers
from unsoftmax.learners.attention_layer.search_limits import PLAIN, Pilots
from unsoftmax.learners.compose import Asking, T, mapped
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices, Purpose, Round, Sequences
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason
from unsoftmax.solve.gate_columns import MOST, OFF_BY, gate_columns
from unsoftmax.solve.least_distance import shortest_within
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.drawn_models import Layer

_GAIN = 2.0**40


def asked_beside(a: Array, b: Array, phase: str) -> Asking[Array]:
    """Ask all offsets (J, d) beside all query tokens (K, d): answers (K, J, m)."""
    X = np.empty((len(b), len(a), 2, b.shape[1]))
    X[:, :, 0] = b[:, None] + a
    X[:, :, 1] = b[:, None]
    [y] = yield [Sequences(X.reshape(-1, 2, b.shape[1]), phase=phase, purpose="data")]
    return np.asarray(y.reshape(len(b), len(a), -1))


def asked_in_pairs(a: Array, b: Array, phase: str, purpose: Purpose = "data") -> Asking[Array]:
    """Ask each offset (K, d) beside the query token (K, d) of its own: answers (K, m)."""
    [y] = yield [Sequences(np.stack([b + a, b], axis=1), phase=phase, purpose=purpose)]
    return np.asarray(y)


def with_long_offsets(steps: Asking[T], layer: value_answers.LayerMap) -> Asking[T]:
    """Run a generator that asks offsets beside query tokens, 2⁸⁰ times as long as these.

    Parameters
    ----------
    steps : generator
        Yields rounds of `Sequences`, the query token added to every token of them.
    layer : LayerMap
        What single tokens are answered with.
    """
    queries: list[Array] = []

    def ask(asked: Round) -> Round:
        queries.clear()
        apart: Round = []
        for probes in asked:
            X = probes[0 : len(probes)]
            b = X[:, -1:]
            queries.append(X[:, -1])
            tokens = np.concatenate([_GAIN * (X[:, :-1] - b), b / _GAIN], axis=1)
            apart.append(Sequences(tokens, phase=probes.phase, purpose=probes.purpose))
        return apart

    def answer(answers: Answers) -> Answers:
        return [
            layer.c + b @ layer.M.T + (y - layer.c) / _GAIN
            for b, y in zip(queries, answers, strict=True)
        ]

    return mapped(steps, ask, answer)


# Query tokens of each further round, while columns are not unique. g_1 + g_2 − g_3 is a column of
# zeros and ones with probability (3/4)^K.
_MORE_QUERIES = 8
# Further rounds of one length.
_HEAD_ROUNDS = 6
# Query tokens on half a circle per head, where heads are too many for the columns; intervals with
# jumps are halved until every jump is alone.
_HALF_CIRCLE = 4
# Halvings at most: jumps nearer than 2⁻²⁴ are those of one head.
_HALVINGS = 24
# Root mean square of logits at which heads are counted that long tokens do not tell apart: σ(l)
# and σ(2l) are then as different as they are anywhere.
_UNSEEN_LOGITS = 2.0


class HeadsAlike(NotIdentifiable):
    """Heads whose gates of 0 and 1 are no others', or never are."""


class HeadsStill(HeadsAlike):
    """Heads whose gates are the same beside every query token: W = 0, or a long query bias."""


class FoundHeads(NamedTuple):
    """The gates of all heads in some answers, and whether there is a residual connection."""

    gates: value_answers.GateAnswers
    residual: bool


@dataclass(frozen=True, slots=True)
class HeadSearch:
    """The search for the gates' columns."""

    layer: value_answers.LayerMap
    noise: AnswerNoise
    most: int
    rng: np.random.Generator
    pilots: Pilots = PLAIN

    def run(self) -> Asking[FoundHeads]:
        """Ask offsets of several lengths until every gate is 0 or 1."""
        refusal: ModelMismatch | NotIdentifiable | None = None
        for length in limits.OFFSET_LENGTHS:
            try:
                return (yield from self._at(length))
            except HeadsAlike:
                raise
            except (ModelMismatch, NotIdentifiable) as error:
                refusal = error
        assert refusal is not None
        raise refusal

    def _at(self, length: float) -> Asking[FoundHeads]:
        d = self.layer.M.shape[1]
        a = length * self.rng.standard_normal(d) / np.sqrt(d)
        b, y = np.zeros((0, d)), np.zeros((0, len(self.layer.c)))
        count, K = self.pilots.heads, 0
        for _ in range(1 + _HEAD_ROUNDS):
            fresh = length * limits.SHORTER * self.rng.standard_normal((count, d)) / np.sqrt(d)
            a, fresh = on_one_grid(a, fresh)
            y_fresh = yield from asked_beside(a[None], fresh, "heads")
            b, y, K = np.vstack([b, fresh]), np.vstack([y, y_fresh[:, 0]]), K + count
            span, rank = self._span(a, b, y)
            count = _MORE_QUERIES
            if rank > K - limits.TESTED_BY:
                count = K
                continue
            if rank > self.most + 1:
                raise Reason.MORE_HEADS.error(heads=f"{rank - 1} or more", most=self.most)
            if rank > MOST:
                return (yield from self._on_half_circle(a, y, b, length))
            self._refuse_uniform(span, self.layer.M @ a, self.layer.beyond(y, b), y)
            columns = gate_columns(span)
            if columns.shape[1] == rank:
                return self._named(a, b, y, columns[1:])
        whole, z = self.layer.M @ a, self.layer.beyond(y, b)
        sums = [whole, whole - a] if len(whole) == len(a) else [whole]  # a: a residual connection
        largest = float(np.max(np.linalg.norm(z, axis=1)))
        value_answers.refuse_cancelling(float(np.min(np.linalg.norm(sums, axis=1))) / largest)
        many = f", there are more heads than an answer's {rank} numbers" * (rank == y.shape[1])
        raise Reason.GATES_NOT_0_OR_1.error(norm=length, rank=rank, many=many)

    def _span(self, a: Array, b: Array, y: Array) -> tuple[Array, int]:
        """Return an orthonormal basis of the gates' columns, the row of M a first."""
        z = self.layer.beyond(y, b)
        rows = np.vstack([self.layer.M @ a, z])
        left = np.linalg.svd(rows, full_matrices=False)[0]
        rank = self._rank(rows, y)
        if not rank or not self._rank(z, y):
            raise Reason.FIRST_TOKEN_DOES_NOT_COUNT.error({"c": self.layer.c, "M": self.layer.M})
        return left[:, :rank], rank

    def _rank(self, rows: Array, y: Array) -> int:
        """Count the singular values of differences of answers ``y`` that are above the errors."""
        singular = np.linalg.svd(rows, compute_uv=False)
        noise = limits.RANK_NOISE * float(np.max(self.noise.of(y)))
        share = limits.RANK_SHARE * float(np.linalg.norm(y))
        return int(np.count_nonzero(singular > max(noise, share)))

    def _refuse_uniform(self, span: Array, whole: Array, z: Array, y: Array) -> None:
        """Refuse a head whose weights are 1/2 everywhere, or two whose weights add up to 1."""
        half = np.full(len(span), 1 / 2)
        half[0] = 1.0
        half /= np.linalg.norm(half)
        if np.linalg.norm(half - span @ (span.T @ half)) <= OFF_BY:
            known = {"c": self.layer.c, "M": self.layer.M}
            if self._rank(z - z[0], y):
                raise Reason.TOKENS_WEIGHED_ALIKE.error(known, kind=HeadsAlike)
            missed = np.linalg.norm(z[0] - whole / 2)
            if missed <= OFF_BY * np.linalg.norm(whole):
                raise Reason.TOKENS_WEIGHED_ALIKE.error(known, kind=HeadsStill)
            raise Reason.QUERY_TOKEN_DOES_NOT_COUNT.error(
                known, kind=HeadsStill, tokens=len(z), missed=missed / np.linalg.norm(whole)
            )

    def _on_half_circle(self, a: Array, y: Array, b: Array, length: float) -> Asking[FoundHeads]:
        """Find the gates of as many heads as open somewhere: a residual connection does not."""
        heads = self._rank(self.layer.beyond(y, b), y)
        plane = self.rng.standard_normal((2, len(a))) / np.sqrt(len(a))
        plane *= length * limits.SHORTER

        def tokens(angles: Array) -> Array:
            b = np.outer(np.cos(angles), plane[0]) + np.outer(np.sin(angles), plane[1])
            return on_one_grid(a, b)[1]

        angles = np.linspace(0, np.pi, _HALF_CIRCLE * heads + 1)
        b = tokens(angles)
        y = (yield from asked_beside(a[None], b, "heads on half a circle"))[:, 0]
        for _ in range(_HALVINGS):
            jumps = self._jumps(b, y)
            if len(jumps) >= heads:
                break
            middle = (angles[jumps] + angles[jumps + 1]) / 2
            fresh = tokens(middle)
            y_fresh = (yield from asked_beside(a[None], fresh, "heads on half a circle"))[:, 0]
            order = np.argsort(np.concatenate([angles, middle]), kind="stable")
            angles = np.concatenate([angles, middle])[order]
            b, y = np.vstack([b, fresh])[order], np.vstack([y, y_fresh])[order]
        if len(jumps) != heads:
            raise Reason.JUMPS_DO_NOT_COUNT_HEADS.error(rank=heads, jumps=len(jumps))
        return self._named(a, b, y, self._signed(a, b, y, jumps))

    def _jumps(self, b: Array, y: Array) -> Indices:
        """Return the intervals whose ends are answered differently."""
        z = self.layer.beyond(y, b)
        noise = limits.RANK_NOISE * float(np.max(self.noise.of(y)))
        return np.flatnonzero(np.linalg.norm(np.diff(z, axis=0), axis=1) > noise).astype(np.intp)

    def _signed(self, a: Array, b: Array, y: Array, jumps: Indices) -> Array:
        """Return every head's gate, by the signs for which the jumps add up to M a."""
        z = self.layer.beyond(y, b)
        whole = self.layer.M @ a
        steps = z[jumps + 1] - z[jumps]
        rows = [*steps, a] if len(whole) == len(a) else [*steps]  # a: a residual connection
        signs = np.linalg.lstsq(np.array(rows).T, whole, rcond=None)[0]
        opens = signs[: len(jumps)] > 0
        after = np.arange(len(b))[:, None] > jumps
        gates = np.where(opens, after, ~after).astype(np.float64)
        if len(signs) > len(jumps) and abs(signs[-1]) > 1 / 2:
            gates = np.hstack([gates, np.zeros((len(b), 1))])
        return gates

    def _named(self, a: Array, b: Array, y: Array, gates: Array) -> FoundHeads:
        """Tell heads from a residual connection; refuse heads whose gates never move."""
        still = (gates == gates[0]).all(axis=0)
        answers = value_answers.GateAnswers(a, b, y, gates)
        if not still.any():
            return self._within(FoundHeads(answers, False))
        vector = answers.vectors(self.layer)[still][0]
        if not self._is_residual(a, vector, gates[0, still], y):
            raise HeadsStill(
                "A head has the same weights for every query token: its W is 0 or far below its "
                "w, so query tokens do not separate it from other heads.",
                determined={"c": self.layer.c, "M": self.layer.M},
            )
        return self._within(FoundHeads(value_answers.GateAnswers(a, b, y, gates[:, ~still]), True))

    def _is_residual(self, a: Array, vector: Array, gate: Array, y: Array) -> bool:
        if len(gate) != 1 or gate[0] or len(vector) != len(a):
            return False
        allowed = limits.RANK_NOISE * float(np.max(self.noise.of(y)))
        return bool(np.linalg.norm(vector - a) <= allowed + 1e-9 * np.linalg.norm(a))

    def _within(self, found: FoundHeads) -> FoundHeads:
        if (count := found.gates.gates.shape[1]) > self.most:
            raise Reason.MORE_HEADS.error(heads=count, most=self.most)
        return found


def search_cost(heads: int) -> Cost:
    """Bound the search for so many heads."""
    lengths = len(limits.OFFSET_LENGTHS)
    doubled = 4 * (heads + limits.TESTED_BY + PLAIN.heads)
    circle = heads * (_HALF_CIRCLE + _HALVINGS) + 1
    queries = doubled + _HEAD_ROUNDS * _MORE_QUERIES + circle
    return lengths * Cost.of(queries, tokens=2, rounds=2 + _HEAD_ROUNDS + _HALVINGS)


def unseen_cost(heads: int) -> int:
    """Return how many queries are asked where so many heads were found."""
    return 2 * heads + 3 * limits.TESTED_BY


def heads_at_moderate_logits(
    model: Layer, layer: value_answers.LayerMap, noise: AnswerNoise, rng: np.random.Generator
) -> Asking[int]:
    """Ask for the rank of what one offset adds; 0 where it has none below the number of answers."""
    d, spare = model.dim, limits.TESTED_BY
    count = unseen_cost(model.H)
    a, b = rng.standard_normal(d), rng.standard_normal((count, d))
    bias, whole = model.vectors(np.zeros((1, d))), model.vectors(b)
    linear = float(np.sqrt(np.mean((bias @ a) ** 2)))
    square = float(np.sqrt(np.mean(((whole - bias) @ a) ** 2)))
    wanted = _UNSEEN_LOGITS
    length = 2 * wanted / max(linear + np.sqrt(linear**2 + 4 * square * wanted), TINY)
    a, b = on_one_grid(length * a[None], length * b)
    y = yield from asked_in_pairs(np.repeat(a, count, axis=0), b, "heads, unseen", "pilot")
    rows = np.vstack([layer.heads @ a[0], layer.beyond(y, b)])
    floor = limits.RANK_NOISE * float(np.max(noise.of(y)))
    rank = int(np.count_nonzero(np.linalg.svd(rows, compute_uv=False) > floor))
    return rank if rank <= min(count - spare, rows.shape[1] - 1) else 0


# Length of the offset of the first pilot; the next ones are scaled by what it shows.
_PILOT_LENGTH = 2.0**6
# Where the tokens asked leave a smaller margin, in typical logits, more are asked.
_MARGIN = 1.2
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

    layer: value_answers.LayerMap
    noise: AnswerNoise
    gates: value_answers.GateAnswers
    rng: np.random.Generator
    pilots: Pilots

    def run(self) -> Asking[OpeningTokens]:
        """Ask pilots, then one query token for each direction of their span."""
        d = len(self.gates.a)
        octaves = float(np.log2(np.linalg.norm(self.gates.a) / _PILOT_LENGTH))
        most = min(self.pilots.tokens, d)
        K = min(self.pilots.first or most, most)
        basis = np.linalg.qr(self.rng.standard_normal((d, most)))[0].T
        down = round(octaves)
        down = yield from self._pilot(basis[0], down)
        for _ in range(limits.PILOT_ROUNDS):
            a, b = self._scaled(basis, down)
            share, beside = self._beside(a, b[:K])
            logits = yield from self._logits(a, np.vstack([beside, b[:K]]), "opening tokens")
            at_zero = (logits[0] - share * logits[1:].sum(axis=0)) / (1 - share * K)
            while np.isfinite(logits).all():
                asked = len(logits) - 1
                chosen = self._chosen(a, b[:asked], at_zero, logits[1:] - at_zero)
                if asked == most or min(chosen.margins) >= _MARGIN:
                    return chosen
                further = b[asked : asked + self.pilots.more]
                more = yield from self._logits(a, further, "opening tokens")
                logits = np.vstack([logits, more])
            down += 1
        raise Reason.NO_NORM_OPENS_ALL_GATES.error()

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
        raise Reason.NO_NORM_OPENS_ALL_GATES.error()

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
            raise Reason.GATES_NEVER_OPEN_ALONE.error()
        b, margins = np.zeros((H, directions.shape[1])), np.zeros(H)
        for h in range(H):
            signs = np.where(np.arange(H) == h, 1.0, -1.0)
            y = shortest_within((signs * slopes / rms).T)
            if y is None:
                raise Reason.GATES_NEVER_OPEN_ALONE.error()
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
