"""The hold-out of heads before a network: which fresh answers, and how far they may be off.

Its first sequences are asked before anything is learned: they tell the precision of the answers,
and whether the same question is answered alike. The others are drawn from what was learned.

f̂(X) = ĝ(p̂), p̂ what all heads pool, and the last token with a residual. An answer may differ by

    own       constant + slope·‖p̂‖, what ĝ may be off by, and the precision of the answer,
    allowed   Σ_h s_h·Σ_i α̂_hi ‖x_i − p̂_h‖ m_hi,    m: what errors of W_h and w_h move scores by,

s_h being what ĝ may move with p_h. Of one head that is the largest ‖∇ĝ‖ at the tokens and at p̂,
doubled; of several, whose p̂ no token is, Σ_j |w_o[j]|·‖B_h[j]‖.

g may be flat where tokens are short, so lengths of query tokens span four decades, and of many
sequences tried those are asked whose answer differs most from that of the tokens' mean. Half of
all query tokens are ±e_j, so that single columns of W count, and half of the offsets are
orthogonal to w, so that W counts where w is large. Each head has its turn, before the network that
single tokens show. The long sequences of `unsoftmax.validate.long_sequences` are chosen alike.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.transformer.learned_network import LearnedNetwork, network_gradients
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.models import MultiHeadTransformer, Transformer
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.protocol import Answers
from unsoftmax.validate import long_sequences
from unsoftmax.validate import sequences as holdout
from unsoftmax.validate.head_comparison import UNBOUNDED, mean_shift, score_shift, sum_rounding
from unsoftmax.validate.judge import Answered, Judgement, Residuals, fresh_answers, judge
from unsoftmax.validate.sequences import by_length

# One in so many queries of the hold-out goes to the network's learner, and as many to the first
# sequences, which tell the precision of the answers; half as many repeat these.
OPENING_PART = 4

# Of closing sequences, in turn.

# Numbers of tokens. Two alone do not tell several heads from one.
TOKENS = (2, 3, 5, 8)
# Range of log₁₀ of the query tokens' lengths, in lengths of the network: hyperplanes far from 0
# bend g only out there.
LOG_LENGTHS = (-1.0, 3.0)
# Root mean squares of the logits: even, moderate and nearly hard attention.
LOGITS = (0.5, 2.0, 6.0)
# Sequences drawn for each that is asked: of networks that are flat near 0 few depend on the
# attention.
TRIED = 32
# The same for each long one: of many tokens some are where the network is not flat.
TRIED_LONG = 8

# A sequence one of whose scores the certificate lets move by more says nothing of the model and is
# left out. Where there is no certificate, the network must be right to this share.
MOST_MOVED = 0.01
# Factor on ‖∇ĝ‖: ĝ may be steeper on the way from p̂ to the true pooled token than at any of the
# points where its gradient is taken.
STEEPER = 2.0


@dataclass(frozen=True, slots=True)
class TransformerHoldOut:
    """The hold-out after its first rounds.

    Attributes
    ----------
    opening : Sequences
        The first sequences.
    answers, repeated : ndarray
        Their answers, and the answers when some were asked again.
    left, queries : int
        Queries that are left of the hold-out, and all of them.
    """

    opening: Sequences
    answers: Array
    repeated: Array
    left: int
    queries: int

    def precision(self) -> Precision:
        """Return the precision of the first answers.

        Where g is flat few different answers come; each counts once.
        """
        y = self.answers
        precision = Precision.of_format([np.unique(y)])
        noise = holdout.noise_of(y[: len(self.repeated)], self.repeated)
        return precision.with_noise(noise, len(self.repeated))


def open_hold_out(
    dim: int, queries: int, part: int, rng: np.random.Generator
) -> Generator[Round, Answers, TransformerHoldOut]:
    """Ask the first ``part`` sequences, and half of them again; keep as many for the network.

    Raises
    ------
    ModelMismatch
        Answers drift.
    """
    opening = holdout.opening(dim, part, rng)
    answers = repeated = np.zeros(0)
    if part:
        [answers] = yield [opening]
    if repeats := part // 2:
        [repeated] = yield [holdout.repeated(opening, repeats)]
        holdout.refuse_drift(answers[:repeats], repeated)
    left = queries - 2 * part - len(repeated)
    return TransformerHoldOut(opening, answers, repeated, left, queries)


# Certificates are loose. Where answers are exact, no residual may be larger than this share of what
# attention may move, max‖x_i − x_N‖·‖∇g‖, … (recoveries leave 1e-8 of it, or less; as many times
# more where scores are left open by more than MOST_MOVED: with W = 0 tokens may be so long that W
# is not known to 1e-6 of a logit)
MOST_OF_SPREAD = 1e-6
# … or, where that is more, than this share of what scores are left open by, up to MOST_MOVED unless
# W is 0 within its bound. That is a share of the certificate, which is loose. (Of 470 recoveries of
# wide families two leave 1.3e-3 of it, with W = 0 and 1e-6 beside a query bias: 1e-3 would refuse
# them.) …
MOST_OF_OPEN = 2e-3
# … plus this share of the answer's natural size, max‖x_i‖·‖∇g‖ + |g(0)| (recoveries of one head
# leave 3e-9 of it, or less).
MOST_OF_SIZE = 1e-8


@dataclass(frozen=True, slots=True)
class HeadsBeforeNetwork:
    """Heads and a network that were learned, and bounds on what they are off by.

    Attributes
    ----------
    layer : MultiHeadTransformer
        All of it.
    views : tuple of Transformer
        Each head before the network that single tokens show.
    learned : LearnedNetwork
        That network, and the precision of the answers.
    errors : mapping
        Bounds on "constant" and "slope" of the network on all pooled tokens, and on "W" and "w"
        of every head.
    most_of_open, most_of_size : float
        See `MOST_OF_OPEN` and `MOST_OF_SIZE`.
    """

    layer: MultiHeadTransformer
    views: tuple[Transformer, ...]
    learned: LearnedNetwork
    errors: Mapping[str, float]
    most_of_open: float = MOST_OF_OPEN
    most_of_size: float = MOST_OF_SIZE

    @classmethod
    def of(
        cls,
        model: Transformer | MultiHeadTransformer,
        learned: LearnedNetwork,
        errors: Mapping[str, float],
        **most: float,
    ) -> HeadsBeforeNetwork:
        """Take a model with its network and its bounds."""
        if isinstance(model, Transformer):
            return cls(MultiHeadTransformer.of(model), (model,), learned, errors, **most)
        network = model.on_single_tokens
        views = tuple(Transformer(W, network, w) for W, w in zip(model.W, model.w, strict=True))
        return cls(model, views, learned, errors, **most)

    @property
    def bounded(self) -> bool:
        """Whether all bounds are finite."""
        return bool(np.isfinite(sum(self.errors.values())))

    def short(self, count: int, rng: np.random.Generator) -> list[Sequences]:
        """Draw sequences whose answers depend on the attention, one family per length."""
        drawn = list[Array]()
        errors = [min(self.errors[name], UNBOUNDED) for name in "Ww"]
        for h, view in enumerate(self.views):

            def tells(X: Array, view: Transformer = view) -> bool:
                known = bool(score_shift(X[None], *errors).max() <= MOST_MOVED)
                return known and bool(_moved(view, self.learned, X[None])[0] > 0)

            def ordinary(n: int, view: Transformer = view) -> Array:
                # the n-th of a head is of another kind than the one before
                tried = [_drawn(view, self.learned, n, rng) for _ in range(TRIED)]
                return _most_telling(view, self.learned, tried)

            asked = len(range(h, count, len(self.views)))
            drawn += long_sequences.LongTokens(view, tells).among(asked, rng, ordinary)
        return by_length(drawn, "hold-out, closing")

    def long(self, count: int, rng: np.random.Generator) -> list[Sequences]:
        """Draw the long sequences of a closing of ``count``, at logits of the strongest head."""
        if not self.views:
            return []
        view = max(self.views, key=lambda one: one.parameter_norm("W"))

        def scaled(offsets: Array, query: Array, logits: float) -> Array:
            size = 10.0 ** rng.uniform(*LOG_LENGTHS)
            return _scaled(view, self.learned, offsets, size * query, logits)

        shapes = long_sequences.shapes_of(count, view.dim)
        tried = [
            long_sequences.draw_long(view, count, rng, scaled)
            for _ in range(TRIED_LONG if shapes else 0)
        ]
        chosen = []
        for shape, *some in zip(shapes, *tried, strict=True):
            high = some
            if shape.logits >= long_sequences.SHOWN and shape.tokens > 1:
                high = [
                    X for X in some if long_sequences.second_score(view, X) >= long_sequences.SHOWN
                ] or some
            chosen.append(_most_telling(view, self.learned, high))
        return by_length(chosen, "hold-out, long")

    def judged(
        self, held: TransformerHoldOut, rng: np.random.Generator
    ) -> Generator[Round, Answers, tuple[Judgement, str]]:
        """Ask the rest of the hold-out; return the verdict, and how far the hold-out looked."""
        long = self.long(held.left, rng)
        short = self.short(held.left - sum(map(len, long)), rng)
        rounds = long_sequences.in_rounds(long)
        answered = yield from fresh_answers(short, [(held.opening.X, held.answers)], rounds)
        looked = "Nothing depends on attention."
        if not held.queries:
            looked = "Nothing was checked: exact float64 answers are assumed."
        elif self.views:
            looked = long_sequences.looked_at(self.layer, answered, long)
        return judge(self.residuals(answered), held.queries), looked

    def residuals(self, answered: Sequence[Answered]) -> Residuals:
        """Compare answers with the model's, and with what bounds on its parts allow."""
        points = [LayerAt.of(self.layer, X, y) for X, y in answered if len(y)]
        # g may be flat at some sequences: its steepest piece sets the size of all
        steepest = max((float(at.slope.max()) for at in points), default=0.0)
        return Residuals.of_lengths((at.X.shape[1], self._compared(at, steepest)) for at in points)

    def _compared(self, at: LayerAt, steepest: float) -> Residuals:
        """Compare answers to sequences of one length; ``steepest`` is the largest ‖∇ĝ‖ of all."""
        X, H, layer, errors = at.X, self.layer.H, self.layer, self.errors
        exact = self.learned.precision == Precision()
        bound = [np.full((1, H), min(errors[name], UNBOUNDED)) for name in "Ww"]
        # softmax ignores what all scores share, the query token's
        offsets = np.linalg.norm(X - X[:, -1:], axis=2)[:, None]
        vectors = np.linalg.norm(layer.scores_of(X[:, -1]), axis=2)[..., None]
        moved = score_shift(X, *bound) + KAPPA * UNIT * offsets * vectors
        most_moved = np.max(moved, axis=(1, 2), initial=0.0)
        per_input = np.linalg.norm(layer.first_layers, axis=2) @ np.abs(layer.w_o)
        one = H == 1 and layer.residual is None
        steep = STEEPER * at.slope[:, None] if one else per_input[:H]
        away = np.linalg.norm(X[:, None] - at.given[:, :H, None], axis=3)
        shift = mean_shift(at.weights, away, np.minimum(moved, MOST_MOVED))
        lengths = np.linalg.norm(X, axis=2)
        constants = float(np.abs(layer.w_o) @ np.abs(layer.b) + abs(layer.c))
        terms = np.linalg.norm(at.given, axis=2) @ per_input + constants
        own = MOST_MOVED * np.abs(at.y)
        if self.bounded:
            own = errors["constant"] + errors["slope"] * np.linalg.norm(at.given, axis=(1, 2))
        own = own + self.learned.precision.error(terms, at.y)
        own = own + np.sum(sum_rounding(at.weights, lengths[:, None], UNIT) * steep, axis=1)
        size = lengths.max(axis=1) * steepest
        size = size + abs(float(np.maximum(layer.b, 0.0) @ layer.w_o + layer.c))
        size = np.where(size > 0, size, 1.0)
        spread = np.linalg.norm(X - X[:, -1:], axis=2).max(axis=1)
        left_open = most_moved / MOST_MOVED
        # W = 0 may be asked at any length
        known = 1.0 if errors["W"] < layer.parameter_norm("W") else np.inf
        share = self.most_of_open * MOST_MOVED * np.minimum(left_open, known)
        share = np.maximum(MOST_OF_SPREAD * np.maximum(left_open, 1.0), share)
        most = share * spread * steepest / size + self.most_of_size
        return Residuals.of(
            at.y - layer(X),
            own=own,
            allowed=np.sum(shift * steep, axis=1),
            size=size,
            telling=not self.bounded or exact or most_moved <= MOST_MOVED,
            most=most if exact else np.inf,
        )


@dataclass(frozen=True, slots=True)
class LayerAt:
    """A layer at sequences of one length."""

    X: Array
    """(B, N, d)."""
    y: Array
    """The target's answers, (B,)."""
    weights: Array
    """α̂, (B, H, N)."""
    given: Array
    """What the network is given, (B, H, d): all p̂_h; and x_N with a residual."""
    slope: Array
    """‖∇ĝ‖ at p̂, (B,); of one head the largest at the tokens and p̂."""

    @classmethod
    def of(cls, layer: MultiHeadTransformer, X: Array, y: Array) -> LayerAt:
        """Put sequences (B, N, d) with answers (B,) through a layer."""
        given, slope = layer.given(X), np.zeros(len(X))
        points = given.reshape(len(X), 1, -1)
        if points.shape[2] == layer.dim:
            points = np.concatenate([X, points], axis=1)
        if points.size:
            gradients = network_gradients(layer.network, points.reshape(-1, points.shape[2]))
            slope = np.linalg.norm(gradients, axis=1).reshape(points.shape[:2]).max(axis=1)
        return cls(X, y, layer.attention(X), given, slope)


def _most_telling(model: Transformer, learned: LearnedNetwork, tried: list[Array]) -> Array:
    """Return the sequence whose answer differs most from that of the tokens' mean."""
    X = np.array(tried)
    longest = np.linalg.norm(X, axis=2).max(axis=1)
    return np.asarray(X[int(np.argmax(_moved(model, learned, X) / longest))])


def _moved(model: Transformer, learned: LearnedNetwork, X: Array) -> Array:
    """Return by how much attention moves the answers to sequences (B, N, d): (B,)."""
    return np.asarray(np.abs(model(X) - learned.network(X.mean(axis=1))))


def _drawn(model: Transformer, learned: LearnedNetwork, n: int, rng: np.random.Generator) -> Array:
    """Draw a candidate for the n-th sequence, (N, d)."""
    d, tokens = model.dim, TOKENS[n % len(TOKENS)]
    direction = rng.standard_normal(d) / np.sqrt(d)
    if n % 2:
        direction = np.eye(1, d, int(rng.integers(d)))[0]
    size = 10.0 ** rng.uniform(*LOG_LENGTHS) * rng.choice([-1.0, 1.0])
    offsets = rng.standard_normal((tokens - 1, d)) / np.sqrt(d)
    if n % 4 > 1 and d > 1:
        across = model.w / (np.linalg.norm(model.w) or 1.0)
        offsets -= np.outer(offsets @ across, across)
    wanted = LOGITS[n % len(LOGITS)]
    return _scaled(model, learned, offsets, size * direction, wanted)


def _scaled(
    model: Transformer, learned: LearnedNetwork, offsets: Array, query: Array, wanted: float
) -> Array:
    b = learned.length * query
    return at_logits(model.scores_of(b[None])[0], learned.length, offsets, b, wanted)


def at_logits(u: Array, length: float, offsets: Array, b: Array, wanted: float) -> Array:
    """Make a sequence with logits of an rms, u being W b + w (d,).

    Of less where offsets would be longer than b and than hyperplanes are far, ``length``.
    """
    rms = float(np.sqrt(np.mean((offsets @ u) ** 2)))
    reach = max(float(np.linalg.norm(b)), length)
    alpha = min(wanted / rms, reach) if rms > 0 else reach
    return np.vstack([b + alpha * offsets, b])
