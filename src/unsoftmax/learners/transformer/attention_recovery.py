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

*Error.* The same answers, with errors drawn as large as theirs may be, are read again through
networks that differ from ĝ as much as g was seen to where it was asked by itself.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.transformer.aimed_segments import AimedSegments, TokenLines, aim_from
from unsoftmax.learners.transformer.learned_network import ERROR_SHARE, LearnedNetwork
from unsoftmax.learners.transformer.network_reader import (
    MOST_ROUNDS,
    PILOTS,
    SPARE,
    NetworkReader,
    SegmentAnswers,
    most_again,
)
from unsoftmax.measure import offsets
from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.precision import UNIT
from unsoftmax.models import ReluNetwork, Transformer
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.validate.drawn_models import DRAWN, ROUNDOFFS, SAFETY

# Tokens γ b_1 at which w may be read, as multiples of β_1. At 0 it is read by itself, but there g
# may be flat or turn.
PLACES = (0.0, -1.0, 0.5, -0.5, 2.0, -2.0, 8.0, -8.0, 64.0, -64.0)
# Draws of query tokens' directions where g is flat around 0: of one neuron that is asleep there a
# direction nearly orthogonal to it sees nothing, and one draw in 100 has one.
ROTATIONS = 32
# Octaves, from the length of the network, in which the end of the flat part is looked for.
FLAT_OCTAVES = (-20, 21)
# Errors are drawn until so many numbers of W were seen to move: the largest of few may be small by
# chance.
ENTRIES = 64
# Longest offsets of the token 0, in lengths of the network: where w is tiny, its logits stay small
# rather than ask for endless offsets.
BIAS_REACH = 16.0


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
    learned: LearnedNetwork, assumed: AssumedAttention, anchored: bool, rng: np.random.Generator
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
    """
    reader = NetworkReader(learned, anchored)
    T = _steep_rotation(learned, rng)
    if assumed.rank == 0:
        none = np.zeros((0, assumed.dim))
        return RecoveredAttention(Transformer.from_factors(none, none, learned.network), 0.0, 0.0)
    B = T.rows[np.arange(assumed.dim)]
    bias = np.zeros(assumed.dim)
    if assumed.biases:
        bias = yield from guess_bias(reader)
    scale = yield from find_token_lengths(reader, B[:SCALED_TOKENS], bias)
    lines = TokenLines.alike(B, *scale)
    columns = yield from reader.read(lines.pick(slice(assumed.columns)), None, bias, "W")
    u, basis, rest, beside = columns.vectors(), None, None, None
    if not assumed.full:
        basis = np.linalg.qr((u / columns.aimed.beta[:, None]).T)[0]
        left = lines.pick(slice(assumed.columns, None))
        # unit offsets within the span see √(d/r) times as much of W x as those of all of R^d
        less = np.full(len(left.beta), (assumed.columns / assumed.dim) ** 0.25)
        rest = yield from reader.read(left.scaled(less, less), basis, bias, "W, rows")
    if assumed.biases:
        first = u[0] if basis is None else u[0] @ basis
        moderate = learned.length
        if np.any(first):
            moderate = float(np.sqrt(assumed.columns) / np.linalg.norm(first))
        line = TokenLines(B[:1], columns.aimed.beta[:1], np.array([moderate]))
        beside = yield from _read_beside(reader, line, basis, bias)
    return AttentionReadings(T, columns, rest, beside).recovered()


def most_queries(assumed: AssumedAttention, anchored: bool) -> int:
    """Bound the queries of `recover_attention`, all that are asked again among them."""
    dim, r = assumed.dim, assumed.columns
    blocks = [(r, dim)]  # query tokens, logits of each
    if assumed.full:
        blocks += [(1, dim)] * assumed.biases
    else:
        blocks += [(dim - r + assumed.biases, r)]
    once = sum(k * n + (k * n if anchored else k + k * n // SPARE) for k, n in blocks)
    again = sum(most_again(k * n) for k, n in blocks)
    scales = PILOTS * (SCALED_TOKENS + 1 + assumed.biases) * SCALE_ROUNDS
    return once + again + scales


def _steep_rotation(learned: LearnedNetwork, rng: np.random.Generator) -> Offsets:
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
        steep = (h > learned.slope / ERROR_SHARE).reshape(len(lengths), 2, -1)
        first = np.argmax(np.vstack([steep.any(axis=1), np.ones((1, learned.dim))]), axis=0)
        if best is None or first.max() < best[0]:
            best = first.max(), T
        if not first.any():
            break
    assert best is not None
    return best[1]


def _read_beside(
    reader: NetworkReader, first: TokenLines, basis: Array | None, bias: Array
) -> Generator[Round, Answers, SegmentAnswers]:
    """Read Qᵀ(W x_0 + w) at x_0 = γ b_1, wherever on b_1's line logits say most (step 4)."""
    learned, best = reader.learned, None
    typical = float(np.linalg.norm(bias)) / np.sqrt(len(bias))
    reach = min(1 / typical if typical else np.inf, BIAS_REACH * learned.length)
    for share in PLACES:
        longest = first.reach / max(1.0, abs(share)) if share else np.array([reach])
        line = TokenLines(first.b, share * first.beta, longest)
        aimed = aim_from(learned, line, basis)
        signal = _least_signal(aimed, learned.network)
        if best is None or signal > best[0]:
            best = signal, aimed
    assert best is not None
    answers = reader.answers(reader.refuse_flat(best[1]), "w")
    yield from answers.ask(answers.pilots, "pilot")
    return (yield from reader.complete(answers))


def _least_signal(aimed: AimedSegments, network: ReluNetwork) -> float:
    """Return how well the poorest segment tells u: what a logit moves the answer, and u a logit."""
    rise = np.abs(aimed.pieces(network, np.arange(len(aimed.alpha))).rise)
    return float(np.min(np.maximum(aimed.steep, 0.0) * rise * aimed.alpha))


@dataclass(frozen=True, slots=True)
class AttentionReadings:
    """All answers that tell W and w: k_j = Qᵀ(W x_j + w) at query tokens x_j = β_j b_j.

    Attributes
    ----------
    T : Offsets
        The directions b_j, a row each.
    columns : SegmentAnswers
        At r tokens, where all of W x + w is read.
    rest : SegmentAnswers or None
        At the others, within the span of the first; None where W may have full rank.
    beside : SegmentAnswers or None
        At γ b_1; None where w is 0.
    """

    T: Offsets
    columns: SegmentAnswers
    rest: SegmentAnswers | None = None
    beside: SegmentAnswers | None = None

    @property
    def parts(self) -> list[SegmentAnswers]:
        """All of them."""
        return [part for part in (self.columns, self.rest, self.beside) if part is not None]

    @property
    def basis(self) -> Array | None:
        """Q (d, r), an orthonormal basis of the range of [W w]; None where that may be R^d."""
        return None if self.rest is None else self.rest.aimed.offsets.basis

    def solved(self) -> tuple[Array, Array, Array]:
        """Return C (d, r) in the span that was read, QᵀC = 1, and QᵀW (r, d), Qᵀw (r,)."""
        beta, k, Q = self.columns.aimed.beta, self.columns.vectors(), self.basis
        C = np.eye(k.shape[1])
        if self.rest is not None and Q is not None:
            within = k @ Q
            C = Q + np.linalg.solve(within, k - within @ Q.T).T
            beta, k = (
                np.append(beta, self.rest.aimed.beta),
                np.vstack([within, self.rest.vectors()]),
            )
        beside = None
        if self.beside is not None:
            beside = float(self.beside.aimed.beta[0]), self.beside.vectors()[0]
        columns, w = without_bias(beta, k, beside)
        return C, self.T.solve(columns.T).T, w

    def recovered(self) -> RecoveredAttention:
        """Solve for W and w, and bound their errors."""
        network = self.columns.learned.network
        C, within, w = self.solved()
        Q = self.basis
        if Q is None:
            model = Transformer(within, network, w)
        else:
            model = Transformer.from_factors(Q.T, within, network, Q @ w)
        moved = np.full(2, np.inf)
        if np.isfinite(self.columns.learned.constant + self.columns.learned.slope):
            drawn = self.drawn(max(DRAWN, -(-ENTRIES // within.size)))
            try:
                off = [
                    (D @ V - C @ within, D @ u - C @ w) for D, V, u in (x.solved() for x in drawn)
                ]
                moved = np.max([[np.linalg.norm(W), np.linalg.norm(w)] for W, w in off], axis=0)
            except (NotIdentifiable, ModelMismatch):  # errors may saturate a logit
                pass
        rounded = ROUNDOFFS * UNIT * np.array([np.linalg.norm(within), np.linalg.norm(w)])
        W_error, w_error = SAFETY * moved + rounded
        return RecoveredAttention(model, float(W_error), float(w_error) if self.beside else 0.0)

    def drawn(self, draws: int) -> Iterator[AttentionReadings]:
        """Draw what the same answers would say, off by other errors, of another network.

        Neurons are moved at random, each by a share of its size, such that networks miss g where
        single tokens were asked by as much as the learned one does.
        """
        rng, learned = np.random.default_rng(0), self.columns.learned
        alone = [part.alone() for part in self.parts]
        x, missed = (np.concatenate(each) for each in zip(*alone, strict=True))
        typical = learned.typical_share(x, missed, sum(len(part.aimed.x) for part in self.parts))
        for n in range(draws):
            moved = learned.moved(x, typical, rng, biases=n % 2 == 1)
            columns, *others = (
                part and part.drawn(moved, rng) for part in (self.columns, self.rest, self.beside)
            )
            assert columns is not None
            yield AttentionReadings(self.T, columns, *others)


def without_bias(beta: Array, k: Array, beside: tuple[float, Array] | None) -> tuple[Array, Array]:
    """Return QᵀW b_j (n, r), and Qᵀw (r,), from k_j = Qᵀ(W x_j + w) at x_j = β_j b_j.

    ``beside`` are γ and Qᵀ(W x_0 + w) at x_0 = γ b_1: two vectors on one line give W b_1 by their
    difference, and w by going on to 0. Without it w is 0.
    """
    if beside is None:
        return k / beta[:, None], np.zeros(k.shape[1])
    gamma, w = beside
    first = (k[0] - w) / (beta[0] - gamma)
    w = w - gamma * first
    columns = (k - w) / beta[:, None]
    columns[0] = first
    return columns, w


# -- At which lengths of tokens and offsets logits through a network are moderate.
#
# A logit αa·(W βb + w) grows as αβ, and its part from w as α alone. A few pilots of two query
# tokens find lengths β and α at which the logits' part from W is near 1: far below, answers hardly
# depend on it; far above, softmax saturates. How large w is, is guessed before from two offsets of
# the token 0.


# Query tokens that are asked. One alone may be nearly in W's kernel; more cost queries.
SCALED_TOKENS = 2
# Rounds at most. Each makes saturated logits 64 times as small, or invisible ones a million times
# as large: 16 reach down to 1e-28, where hyperplanes are 1e10 away and tokens start out as long
# (seven, to 1e-13, refused one in 15 of those), and up to the longest tokens.
SCALE_ROUNDS = 16
# Rounds of `recover_attention` at most: guess of w, scale, columns, rows, and beside.
MOST_ATTENTION_ROUNDS = 5 * max(SCALE_ROUNDS, MOST_ROUNDS)
# Root mean square of the logits at which the search ends. Wider: other tokens' scales have to be
# changed one by one.
GOOD = (0.1, 1.0)
# Where the logits' root mean square is brought to: few are then above 6 or below 0.05.
WANTED = 0.5
# A smaller root mean square may be rounding alone: only the largest step is taken then.
UNSEEN = 1e-6
# Factor on tokens and offsets at most, in one round.
LARGEST_STEP = 1e3
# Factor on tokens and offsets where half of the pilots or more are saturated.
SATURATED_TOKENS = 1 / 8
# Offsets stay so many times as long as the network's error at the token 0 needs; tokens are
# shortened instead, whose lengths no answer depends on but by the logit.
READABLE = 10.0
# Tokens of so many lengths of the network are near 0; at 0 itself neurons may bend.
NEAR = 1e-6
# Longest tokens, in lengths of the network: its biases are 1e-6 of an answer out there.
LONGEST = 1e6


def guess_bias(reader: NetworkReader) -> Generator[Round, Answers, Array]:
    """Guess how large w is from two offsets of the token 0: a vector of its typical entry.

    Only its norm matters to `find_token_lengths`. 0 where the network is flat around 0, or where
    all offsets tried saturate.
    """
    learned = reader.learned
    dim, reach = learned.dim, np.array([learned.length])
    at_zero = TokenLines(np.zeros((1, dim)), np.ones(1), reach)
    aimed = aim_from(learned, at_zero, None)
    for _ in range(SCALE_ROUNDS):
        if not aimed.usable:
            break
        answers = reader.answers(aimed, "w, scale")
        yield from answers.ask(answers.pilots, "pilot")
        t = answers.logits(answers.pilots).value
        if np.all(np.isfinite(t)):
            size = float(np.sqrt(np.mean((t / aimed.alpha[answers.pilots]) ** 2)))
            return np.full(dim, size)
        aimed = replace(aimed, alpha=SATURATED_TOKENS * aimed.alpha)
    return np.zeros(dim)


def find_token_lengths(
    reader: NetworkReader, B: Array, bias: Array
) -> Generator[Round, Answers, tuple[float, float]]:
    """Find lengths of tokens and of offsets for which logits are moderate.

    Parameters
    ----------
    reader : NetworkReader
        Reads the logits.
    B : ndarray (k, d)
        Unit vectors of the query tokens that are asked.
    bias : ndarray (d,)
        w as far as it is known: its part of a logit does not grow with the token, so offsets are
        no longer than it allows.
    """
    length = reader.learned.length
    beta = reach = length
    biased = float(np.linalg.norm(bias))
    longest = np.sqrt(reader.learned.dim) / biased if biased else np.inf
    shortest = min(reach, _readable(reader, B))
    for _ in range(SCALE_ROUNDS):
        reach = min(reach, longest)
        size = yield from _logit_size(reader, TokenLines.alike(B, beta, reach), bias)
        if GOOD[0] <= size <= GOOD[1]:
            break
        factor = _scale_factor(size)
        if factor > 1 and beta * np.sqrt(factor) > LONGEST * length:
            break
        wanted = beta * reach * factor
        reach = min(max(float(np.sqrt(wanted)), shortest), longest)
        beta = wanted / reach
    return beta, reach


def _readable(reader: NetworkReader, B: Array) -> float:
    """Return how long offsets of short tokens must be to show in answers; 0 where none would."""
    learned = reader.learned
    near = NEAR * learned.length * B
    slope = float(np.linalg.norm(learned.gradients(near), axis=1).max())
    least = float(learned.difference_error(near, near).max()) / ERROR_SHARE
    needed = READABLE * least / slope if slope else np.inf
    # flat but for rounding
    return needed if needed <= learned.length else 0.0


def _logit_size(
    reader: NetworkReader, lines: TokenLines, bias: Array
) -> Generator[Round, Answers, float]:
    """Ask pilots; return the root mean square of the logits' part from W, inf where saturated."""
    aimed = reader.aim(lines, None)
    answers = reader.answers(aimed, "scale")
    rows = answers.pilots
    yield from answers.ask(rows, "pilot")
    t = answers.logits(rows).value
    t = t - aimed.alpha[rows] * (aimed.offsets[rows] @ bias)
    seen = np.abs(t[np.isfinite(t)])
    return float(np.sqrt(np.mean(seen**2))) if len(seen) > len(t) // 2 else np.inf


def _scale_factor(size: float) -> float:
    """Return what logits of a root mean square should be multiplied by."""
    if not np.isfinite(size):
        return SATURATED_TOKENS**2
    if size <= UNSEEN:
        return LARGEST_STEP**2
    return min(WANTED / size, LARGEST_STEP**2)
