"""The attention before a learned network: W and w, one query per entry (Section 4.1, "local").

Recovers W (and w) of T(X) = g(Σ_i α_i x_i), g known, from r(2d − r) logits where W has rank r, d²
where it has full rank, and r (d) more for w; one query each, d more for g at the query tokens.
Unlike the paper's reduction it needs no antisymmetry: g may have biases, and A w_o may be 0.
With query tokens x_j = β_j b_j, b_j orthonormal, and u_j = W x_j + w:

    1. u_j at r tokens (d at full rank)              d logits each
    2. Q, an orthonormal basis of their span         none: it is the range of [W w]
    3. k_j = Qᵀu_j at the other tokens               r logits each
    4. k_0 at x_0 = γ b_1, where w is looked for     r logits
    5. QᵀW b_j = (k_j − Qᵀw)/β_j, so W and w         none

W and w are determined unless g is constant.

*Error.* Vectors read within the span miss what the span itself is off by: with E the error of
C = (u_j/β_j)_j and k = Qᵀ C K, that is at most ‖E‖·‖K‖ to first order
(`unsoftmax.solve.skeleton`), and twice that is assumed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.transformer.attention_scale import (
    SCALE_ROUNDS,
    SCALED_TOKENS,
    find_token_lengths,
    guess_bias,
)
from unsoftmax.measure import offsets
from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.through_network.aim import AimedSegments, TokenLines, aim_from
from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.measure.through_network.network_reader import NetworkReader
from unsoftmax.measure.through_network.segment_answers import SegmentAnswers, ThroughNetworkTuning
from unsoftmax.models import ReluNetwork, Transformer
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.solve import dense
from unsoftmax.solve.skeleton import Skeleton

# Tokens γ b_1 at which w may be read, as multiples of β_1. At 0 it is read by itself, but there g
# may be flat or turn.
PLACES = (0.0, -1.0, 0.5, -0.5, 2.0, -2.0, 8.0, -8.0, 64.0, -64.0)
# Draws of query tokens' directions where g is flat around 0: of one neuron that is asleep there a
# direction nearly orthogonal to it sees nothing, and one draw in 100 has one.
ROTATIONS = 32
# Octaves, from the length of the network, in which the end of the flat part is looked for.
FLAT_OCTAVES = (-20, 21)
# Longest offsets of the token 0, in lengths of the network: where w is tiny, its logits stay small
# rather than ask for endless offsets.
BIAS_REACH = 16.0


@dataclass(frozen=True, slots=True)
class LocalAttentionTuning:
    """How the attention is read through its network."""

    reading: ThroughNetworkTuning = field(default=ThroughNetworkTuning())
    """How a logit is read."""


@dataclass(frozen=True, slots=True)
class AssumedAttention:
    """What W and w are taken to be.

    Attributes
    ----------
    dim : int
        d.
    rank : int or None
        Of W, of [W w] with biases; full where None.
    biases : bool
        Whether there may be a w.
    """

    dim: int
    rank: int | None
    biases: bool

    @property
    def columns(self) -> int:
        """Number of query tokens at which all of W x + w is read."""
        return self.dim if self.rank is None else min(self.rank, self.dim)

    @property
    def full(self) -> bool:
        """Whether W may have full rank."""
        return self.columns == self.dim


@dataclass(frozen=True, slots=True)
class RecoveredAttention:
    """What was recovered, with bounds on its errors."""

    model: Transformer
    W_error: float
    w_error: float


def recover_attention(
    learned: LearnedNetwork,
    assumed: AssumedAttention,
    anchored: bool,
    rng: np.random.Generator,
    reading: ThroughNetworkTuning,
) -> Generator[Round, Answers, RecoveredAttention]:
    """Ask for W and w.

    Parameters
    ----------
    learned : LearnedNetwork
        The network, not constant.
    assumed : AssumedAttention
        Rank of W, and whether there may be a w.
    anchored : bool
        Ask g once more for every logit.
    rng : Generator
        Makes the query tokens.
    reading : ThroughNetworkTuning
        How logits are read.
    """
    reader = NetworkReader(learned, anchored, reading)
    T = _steep_rotation(learned, rng, reading.aim.error_share)
    if assumed.rank == 0:
        none = np.zeros((0, assumed.dim))
        return RecoveredAttention(Transformer.from_factors(none, none, learned.network), 0.0, 0.0)
    B = T.rows[np.arange(assumed.dim)]
    bias = np.zeros(assumed.dim)
    if assumed.biases:
        bias = yield from guess_bias(reader)
    scale = yield from find_token_lengths(reader, B[:SCALED_TOKENS], bias)
    lines = TokenLines.alike(B, *scale)
    found, span = yield from _read_vectors(reader, lines, assumed, bias)
    beside = None
    if assumed.biases:
        first = _offsets_of_first(found, B[:1], learned.length, assumed.columns)
        beside = yield from _read_beside(reader, first, span, bias)
    return _solved(T, learned.network, span, found, beside)


def most_queries(assumed: AssumedAttention, anchored: bool, reading: ThroughNetworkTuning) -> int:
    """Bound the queries of `recover_attention`, all that are asked again among them."""
    dim, r = assumed.dim, assumed.columns
    blocks = [(r, dim)]  # query tokens, logits of each
    if assumed.full:
        blocks += [(1, dim)] * assumed.biases
    else:
        blocks += [(dim - r + assumed.biases, r)]
    once = sum(k * n + (k * n if anchored else k + k * n // reading.spare) for k, n in blocks)
    again = sum(reading.most_again(k * n) for k, n in blocks)
    scales = reading.pilots * (SCALED_TOKENS + 1 + assumed.biases) * SCALE_ROUNDS
    return once + again + scales


def most_rounds(reading: ThroughNetworkTuning) -> int:
    """Bound the rounds of `recover_attention`: guess of w, scale, columns, rows, and beside."""
    return 5 * max(SCALE_ROUNDS, reading.most_rounds)


def _steep_rotation(
    learned: LearnedNetwork, rng: np.random.Generator, error_share: float
) -> Offsets:
    """Draw query tokens' directions: where g is flat around 0, all are to lead out of there soon.

    Farther out answers are larger, so less precise, and logits ask for shorter offsets.
    """
    lengths = learned.length * 2.0 ** np.arange(*FLAT_OCTAVES)
    best: tuple[float, Offsets] | None = None
    for _ in range(ROTATIONS):
        T = offsets.rotation(learned.dim, rng)
        B = T.rows[np.arange(learned.dim)]
        x = lengths[:, None, None] * np.concatenate([B, -B])
        h = np.linalg.norm(learned.gradients(x.reshape(-1, learned.dim)), axis=1)
        steep = (h > learned.slope / error_share).reshape(len(lengths), 2, -1)
        first = np.argmax(np.vstack([steep.any(axis=1), np.ones((1, learned.dim))]), axis=0)
        if best is None or first.max() < best[0]:
            best = first.max(), T
        if not first.any():
            break
    assert best is not None
    return best[1]


def _read_vectors(
    reader: NetworkReader, lines: TokenLines, assumed: AssumedAttention, bias: Array
) -> Generator[Round, Answers, tuple[ScoreVectors, ScoreSpan | None]]:
    """Read W x + w at r tokens, and Qᵀ(W x + w) within their span at the others (steps 1 to 3)."""
    columns = lines.pick(slice(0, assumed.columns))
    found = ScoreVectors.of((yield from reader.read(columns, None, bias, "W")))
    if assumed.full:
        return found, None
    span = ScoreSpan.of(found)
    d, r = span.basis.shape
    rest = lines.pick(slice(r, None))
    # unit offsets within the span see √(d/r) times as much of W x as those of all of R^d
    less = np.full(len(rest.beta), (r / d) ** 0.25)
    answers = yield from reader.read(rest.scaled(less, less), span.basis, bias, "W, rows")
    return span.coordinates(found) + span.tilted(ScoreVectors.of(answers)), span


def _offsets_of_first(found: ScoreVectors, b: Array, length: float, columns: int) -> TokenLines:
    """Return token β_1 b_1 and a length of offsets at which its logits are about 1."""
    first = found.vectors[0]
    moderate = float(np.sqrt(columns) / np.linalg.norm(first)) if np.any(first) else length
    return TokenLines(b, found.beta[:1], np.array([moderate]))


def _read_beside(
    reader: NetworkReader,
    first: TokenLines,
    span: ScoreSpan | None,
    bias: Array,
) -> Generator[Round, Answers, ScoreVectors]:
    """Read Qᵀ(W x_0 + w) at x_0 = γ b_1, wherever on b_1's line logits say most (step 4)."""
    learned, best = reader.learned, None
    typical = float(np.linalg.norm(bias)) / np.sqrt(len(bias))
    reach = min(1 / typical if typical else np.inf, BIAS_REACH * learned.length)
    for share in PLACES:
        longest = first.reach / max(1.0, abs(share)) if share else np.array([reach])
        line = TokenLines(first.b, share * first.beta, longest)
        basis = None if span is None else span.basis
        aimed = aim_from(learned, line, basis, reader.tuning.aim)
        signal = _least_signal(aimed, learned.network)
        if best is None or signal > best[0]:
            best = signal, aimed
    assert best is not None
    answers = reader.answers(reader.refuse_flat(best[1]), "w")
    yield from answers.ask(answers.pilots, "pilot")
    found = ScoreVectors.of((yield from reader.complete(answers)))
    return found if span is None else span.tilted(found)


def _least_signal(aimed: AimedSegments, network: ReluNetwork) -> float:
    """Return how well the poorest segment tells u: what a logit moves the answer, and u a logit."""
    rise = np.abs(aimed.pieces(network, np.arange(len(aimed.alpha))).rise)
    return float(np.min(np.maximum(aimed.steep, 0.0) * rise * aimed.alpha))


def _solved(
    T: Offsets,
    network: ReluNetwork,
    span: ScoreSpan | None,
    found: ScoreVectors,
    beside: ScoreVectors | None,
) -> RecoveredAttention:
    """Solve for W and w, and bound their errors (step 5)."""
    columns, error, w, w_error = without_bias(found, beside)
    solution = dense.solve(T, columns.T)
    bound = solution.error(float(np.linalg.norm(error)))
    within = solution.matrix.T  # QᵀW
    if span is None:
        return RecoveredAttention(Transformer(within, network, w), bound, w_error)
    bound += 8 * UNIT * float(np.linalg.norm(within))
    Q = span.basis
    model = Transformer.from_factors(Q.T, within, network, Q @ w)
    return RecoveredAttention(model, bound, w_error)


@dataclass(frozen=True, slots=True)
class ScoreVectors:
    """k_j = Qᵀ(W x_j + w) at query tokens x_j = β_j b_j.

    Attributes
    ----------
    beta : ndarray (k,)
        Signed lengths of the tokens.
    vectors : ndarray (k, r)
        k_j; all of W x_j + w where there is no Q.
    errors : ndarray (k,)
        Bounds on ‖Δk_j‖.
    """

    beta: Array
    vectors: Array
    errors: Array

    @classmethod
    def of(cls, answers: SegmentAnswers) -> ScoreVectors:
        """Solve the logits of every token."""
        return cls(answers.aimed.beta, *answers.vectors())

    def __add__(self, other: ScoreVectors) -> ScoreVectors:
        """Return the vectors of both, one after the other."""
        return ScoreVectors(
            np.append(self.beta, other.beta),
            np.vstack([self.vectors, other.vectors]),
            np.concatenate([self.errors, other.errors]),
        )


@dataclass(frozen=True, slots=True)
class ScoreSpan:
    """The range of [W w], from the columns u_j/β_j at r query tokens."""

    skeleton: Skeleton
    """Q, asked with its own columns as rows: its core is the identity."""
    columns: Array
    """u_j/β_j, (d, r)."""
    error: float
    """Bound on the columns' error, doubled: the true range may tilt against the one found."""

    @classmethod
    def of(cls, found: ScoreVectors) -> ScoreSpan:
        """Return the span of the vectors at r tokens."""
        columns = (found.vectors / found.beta[:, None]).T
        Q = np.linalg.qr(columns)[0]
        return cls(Skeleton(Q, Q.T), columns, 2 * float(np.linalg.norm(found.errors / found.beta)))

    @property
    def basis(self) -> Array:
        """Q, (d, r)."""
        return self.skeleton.basis

    def coordinates(self, found: ScoreVectors) -> ScoreVectors:
        """Return Qᵀu for the vectors u that the span came from."""
        return ScoreVectors(found.beta, found.vectors @ self.basis, found.errors)

    def tilted(self, found: ScoreVectors) -> ScoreVectors:
        """Add to the errors of vectors k, read within the span, what the span is off by."""
        dependence = self.skeleton.in_columns(self.columns, found.vectors.T)
        off = self.error * np.linalg.norm(dependence, axis=0)
        return ScoreVectors(found.beta, found.vectors, found.errors + off)


def without_bias(
    found: ScoreVectors, beside: ScoreVectors | None
) -> tuple[Array, Array, Array, float]:
    """Return QᵀW b_j (k, r) with errors (k,), and Qᵀw with its error, from k_j = Qᵀ(W x_j + w).

    ``beside`` is read at x_0 = γ b_1: two vectors on one line give W b_1 by their difference, and
    w by going on to 0. Without it w is 0.
    """
    beta, k, error = found.beta, found.vectors, found.errors
    if beside is None:
        return k / beta[:, None], error / np.abs(beta), np.zeros(k.shape[1]), 0.0
    gamma = float(beside.beta[0])
    w, w_error = beside.vectors[0], float(beside.errors[0])
    first = (k[0] - w) / (beta[0] - gamma)
    first_error = (error[0] + w_error) / abs(beta[0] - gamma)
    if gamma:
        w, w_error = w - gamma * first, float(w_error + abs(gamma) * first_error)
    columns, off = (k - w) / beta[:, None], (error + w_error) / np.abs(beta)
    columns[0], off[0] = first, first_error
    return columns, off, w, w_error
