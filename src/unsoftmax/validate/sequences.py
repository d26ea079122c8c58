"""What fresh sequences a hold-out asks: sequences that a learner never learns from.

Learners that read v from single tokens divide their ``checks`` queries among four families:

- *opening*, a quarter, asked first: three tokens at sizes 4⁻⁴ … 4³. They depend on all
  parameters, so they also tell this target from another when a run is resumed.
- *straight*, an eighth: one token; f([x]) = x·v + c must be affine. With biases half of them
  are short: their answers are c but for its rounding.
- *repeats*, a quarter: the opening asked again; a deterministic target answers the same.
- *closing*, the rest, last: half of them two to twenty tokens, scaled so that the recovered
  head's logits are moderate, every other one with a query token e_j, so that single columns of W
  are seen; the other half the long sequences of `validate.long_sequences`. Heads with positions
  are asked sequences of their own (`at_distances`).

Learners of several heads, of networks and of labels draw short closing sequences of their own
kind: what makes a wrong model show depends on the class. The long ones are the same for all.
`validate.judge` says what a residual may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import RotaryHead, RotaryHeads, SingleHead
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Purpose, Round, Sequences
from unsoftmax.protocol import Certificate
from unsoftmax.refusals import Reason
from unsoftmax.validate import long_sequences
from unsoftmax.validate.head_comparison import UNBOUNDED, score_shift
from unsoftmax.validate.judge import shortened

# Tokens of closing sequences, in turn. Two tokens show one logit at a time, many show how logits
# compete; longer ones cost more tokens and their answers average more away.
LENGTHS = (2, 3, 7, 20)
# Root mean squares of closing logits, in turn: nearly linear, typical, nearly hard.
LOGITS = (0.5, 2.0, 6.0)
OPEN_BY = 0.01
"""Where possible, sizes are chosen at which the certificate leaves logits open by no more than
this: beyond, a residual says little (`head_comparison.MOST_MOVED`)."""
# Every other sequence of heads with positions, in turn; the others are those of `FAR`.
NEAR = (
    long_sequences.SequenceShape(2, 0.5),
    long_sequences.SequenceShape(3, 2.0),
    long_sequences.SequenceShape(7, 6.0),
    long_sequences.SequenceShape(20, 2.0),
    long_sequences.SequenceShape(33, 0.5),
)
# Sizes of tokens where there are no logits, the next of them by a stride, for a short hold-out asks
# few; the largest is this or more.
POWERS_OF_SIZE, STRIDE, LEAST_SIZE = 8, 3, 4.0**7
# Lengths of their tokens are tried from 2 to minus so many, to 2 to so many.
POWERS = 60
# Fewer repeated questions tell no drift.
LEAST_REPEATS = 4
# Answers have moved alike where their mean move is so many times its standard deviation: with noise
# that is so by chance with a probability of 2e-6 (four answers; eight: 2e-13). A drift of δ a query
# moves all by the same multiple of δ, but for rounding: it is seen from 100 roundoffs between the
# two askings on.
ALIKE = 50.0


def most_tokens(dim: int) -> int:
    """Return how many tokens a head's hold-out has in a sequence at most."""
    return long_sequences.most_tokens(dim, *LENGTHS)


@dataclass(frozen=True, slots=True)
class Shares:
    """How many queries each family gets."""

    opening: int
    straight: int
    repeats: int
    closing: int

    @classmethod
    def of(cls, checks: int) -> Shares:
        """Divide ``checks`` queries."""
        quarter, eighth = checks // 4, checks // 8
        return cls(quarter, eighth, quarter, checks - 2 * quarter - eighth)


def opening(dim: int, count: int, rng: np.random.Generator, radius: float = np.inf) -> Sequences:
    """Three tokens at eight sizes in turn, the middle ones first."""
    powers = np.array([0, -1, 1, -2, 2, -3, 3, -4])[np.arange(count) % 8]
    tokens = rng.standard_normal((count, 3, dim)) / np.sqrt(dim)
    return _checked("opening", 4.0 ** powers[:, None, None] * tokens, radius)


def straight(
    dim: int,
    count: int,
    rng: np.random.Generator,
    radius: float = np.inf,
    norms: tuple[float, float] = (1.0, 1.0),
) -> Sequences:
    """Single tokens of about the first norm, then as many of about the second."""
    tokens = rng.standard_normal((count, 1, dim)) / np.sqrt(dim)
    tokens[: (count + 1) // 2] *= norms[0]
    tokens[(count + 1) // 2 :] *= norms[1]
    return _checked("straight", tokens, radius)


def repeated(probes: Sequences, count: int) -> Sequences:
    """Ask the first of earlier probes again."""
    return _checked("repeats", probes[:count], np.inf)


def noise_of(first: Array, second: Array) -> float:
    """Estimate the standard deviation of what changed between two answers to the same questions."""
    return float(np.sqrt(np.mean((first - second) ** 2) / 2)) if len(first) else 0.0


def refuse_drift(first: Array, second: Array) -> None:
    """Refuse answers that have all moved alike between two askings.

    Noise moves every answer otherwise; a drift moves all by the same share, or all by the same.
    Learners that know the answers' natural sizes bound a drift instead
    (`learners.single_head.first_round`); this is for those whose network is still to be
    learned, by a learner that may know of no drift.

    Raises
    ------
    ModelMismatch
        They have.
    """
    if len(first) < LEAST_REPEATS or not np.all(first):
        return
    moved = second - first
    for alike in (moved / first, moved):
        mean, deviation = float(np.mean(alike)), float(np.std(alike, ddof=1))
        if abs(mean) > ALIKE * deviation:
            raise Reason.ANSWERS_DRIFT.error(share=np.max(np.abs(moved / first)))


def closing(
    model: SingleHead,
    certificate: Certificate,
    count: int,
    rng: np.random.Generator,
    radius: float = np.inf,
    *,
    gain: float = 1.0,
    open_by: float = OPEN_BY,
) -> tuple[list[Sequences], list[Sequences]]:
    """Draw ``count`` sequences, one family per length: short ones at moderate logits, long ones.

    Offsets are ``gain`` times as long as the logits ask for, or as ``radius`` allows, and query
    tokens as much shorter: logits without a bias stay, answers grow beside their noise.
    """
    longest = min(radius, long_sequences.LONGEST)
    scale = ClosingScale(model, certificate.errors, longest, gain, open_by)

    def scaled(offsets: Array, query: Array, logits: float) -> Array:
        return scale.sequence(offsets, query, logits, 0)

    long = long_sequences.draw_long(model, count, rng, scaled)

    def short(n: int) -> Array:
        length, wanted = LENGTHS[n % len(LENGTHS)], LOGITS[n % len(LOGITS)]
        return scale.sequence(*_directions(model.dim, length, n, rng), wanted, n)

    tokens = long_sequences.LongTokens(model, scale.known, longest)
    sequences = tokens.among(count - len(long), rng, short)
    families = [by_length(some, "") for some in (sequences, long)]
    near, further = ([_checked("closing", one.X, radius) for one in some] for some in families)
    return near, further


def by_length(
    sequences: Iterable[Array], phase: str, purpose: Purpose = "check"
) -> list[Sequences]:
    """Collect sequences (N, d) into one family per length, in order of first appearance."""
    lengths: dict[int, list[Array]] = {}
    for X in sequences:
        lengths.setdefault(len(X), []).append(X)
    return [Sequences(np.array(X), phase=phase, purpose=purpose) for X in lengths.values()]


def _directions(dim: int, length: int, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw offsets and the n-th query token: a unit vector e_j, or every other time any vector."""
    offsets = rng.standard_normal((length - 1, dim)) / np.sqrt(dim)
    query = np.zeros(dim)
    query[rng.integers(dim)] = 1.0
    if n % 2:
        query = rng.standard_normal(dim) / np.sqrt(dim)
    return offsets, query


@dataclass(frozen=True, slots=True)
class ClosingScale:
    """How long the tokens of closing sequences are."""

    model: SingleHead
    errors: Mapping[str, float]
    longest: float
    gain: float
    open_by: float

    def sequence(self, offsets: Array, query: Array, wanted: float, n: int) -> Array:
        """Make the n-th sequence of offsets and a query token at logits of an rms."""
        alpha, beta, most = self._scales(offsets, query, wanted, n)
        longest = alpha * np.linalg.norm(offsets, axis=1).max() + beta * np.linalg.norm(query)
        room = 2.0 ** np.floor(np.log2(self.longest / longest))
        gain = max(1.0, min(most, room))
        b = beta / gain * query
        return np.vstack([gain * alpha * offsets + b, b])

    def known(self, X: Array) -> bool:
        """Tell whether the certificate leaves logits of a sequence (N, d) nearly as they are."""
        W_error, w_error = (min(self.errors[name], UNBOUNDED) for name in "Ww")
        return bool(score_shift(X[None], W_error, w_error).max() <= self.open_by)

    def _scales(
        self, offsets: Array, query: Array, wanted: float, n: int
    ) -> tuple[float, float, float]:
        """Find α and β for which the logits α·(a·w + β·a·W b) have the RMS that is wanted.

        As in the learner, offsets are scaled up and query tokens down. Where W is known too
        coarsely (W = 0 and rounded answers, say) sizes stay where its error moves no logit. Where
        the model has no logits, sizes go in turn through eight powers of 4: whatever a wrong W
        does shows at some size.
        """
        norm = np.linalg.norm(offsets, axis=1).max()
        powers = np.arange(-100.0, 101.0)
        alpha, beta = np.exp2(np.maximum(powers, 0)), np.exp2(np.minimum(powers, 0))
        logits = logit_sizes(self.model, offsets, query, alpha, beta)
        if not np.any(logits) or self._may_have_none():
            return self._without_logits(n)
        W_error, w_error = (min(self.errors[name], UNBOUNDED) for name in "Ww")
        open_by = alpha * norm * (w_error + beta * W_error * np.linalg.norm(query))
        known = open_by <= self.open_by / 2
        if not known.any():
            # offsets so short that even the bounds move no logit by much: little is told, not none
            most = norm * (w_error + W_error * np.linalg.norm(query))
            short = float(np.exp2(np.floor(np.log2(self.open_by / 2 / most))))
            return short, 1.0, self.gain
        best = _nearest(np.where(known, logits, np.inf), wanted)
        # a large bias leaves no size at which logits are moderate: shrink the offsets as well
        shrink = min(1.0, wanted / max(logits[best], TINY))
        return float(alpha[best] * shrink), float(beta[best] * shrink), self.gain

    def _may_have_none(self) -> bool:
        """Tell whether W and w may be 0, and are known that well."""
        within = (self.model.parameter_norm(name) <= self.errors[name] for name in "Ww")
        return all(within) and self._known_up_to() > LEAST_SIZE

    def _known_up_to(self) -> float:
        """Return the size of tokens up to which the certificate leaves logits as they are."""
        W_error, w_error = (max(self.errors[name], TINY) for name in "Ww")
        return float(min(np.sqrt(self.open_by / W_error), self.open_by / w_error))

    def _without_logits(self, n: int) -> tuple[float, float, float]:
        """Return sizes for the n-th sequence of a model that has no logits.

        They go through eight powers up to where the certificate leaves logits open, so that
        whatever a wrong W does shows at some size. All but the least are those of keys and query
        tokens alike: scores that stop growing with long keys are small beside short query tokens.
        """
        longest = min(self.longest, self._known_up_to())
        power = n * STRIDE % POWERS_OF_SIZE
        size = max(LEAST_SIZE, longest) ** (power / (POWERS_OF_SIZE - 1))
        size = float(np.exp2(np.floor(np.log2(size))))
        return size, size, 1.0 if power else self.gain


def logit_sizes(
    model: SingleHead | RotaryHead, offsets: Array, query: Array, alpha: Array, beta: Array
) -> Array:
    """Return the root mean square of the logits of tokens αa_i + βb before βb, for every α and β.

    They are polynomials: αβ and α with what offsets score; β², β and 1 with what distance makes of
    b and of a key bias. Without positions the sizes of W b and w are added: where they cancel it
    is by chance, and only at this very β.
    """
    if isinstance(model, SingleHead):
        from_query, from_bias = model.scores_of(query[None])[0] - model.w, model.w
        return alpha * (beta * _rms(offsets @ from_query) + _rms(offsets @ from_bias))
    away = np.arange(len(offsets), 0, -1)
    keys, own, a, b = offsets @ model.K.T, model.K @ query, alpha[:, None], beta[:, None]
    logits = np.zeros((len(alpha), len(offsets)))
    for times, asked in ((b, model.Q @ query), (1.0, model.q_bias)):
        turned = model.rotary.turned(np.tile(asked, (len(away), 1)), away)
        of_own, of_bias = ((turned - asked) @ key for key in (own, model.k_bias))
        logits += times * (a * np.sum(keys * turned, axis=1) + b * of_own + of_bias)
    return _rms(logits)


def _rms(x: Array) -> Array:
    return np.asarray(np.sqrt(np.mean(x**2, axis=-1)))


def _nearest(logits: Array, wanted: float) -> int:
    """Return which logits are nearest to those wanted, by their quotient."""
    return int(np.argmin(np.abs(np.log2(np.maximum(logits, TINY) / wanted))))


def at_distances(
    model: RotaryHead | RotaryHeads,
    count: int,
    rng: np.random.Generator,
    tells: Callable[[Array], bool],
) -> tuple[list[Sequences], list[Round]]:
    """Draw ``count`` sequences for heads with positions: short ones, and rounds of longer ones.

    One family for each length, the shortest first. Logits are those of each head in turn. Long
    sequences look at all distances up to their length: windows and frequencies that change beyond
    one show there or nowhere. ``tells``: whether a model with this one's errors answers a sequence
    (N, d) nearly alike.
    """
    dim, heads = model.dim, model.heads if isinstance(model, RotaryHeads) else [model]

    def ordinary(n: int) -> Array:
        shapes = long_sequences.FAR if n % 2 == 0 else NEAR
        shape = shapes[n // 2 % len(shapes)]
        tokens = min(shape.tokens, long_sequences.most_at(dim))
        X = rng.standard_normal((tokens, dim)) / np.sqrt(dim)
        if heads:
            # each head meets each shape
            head = heads[(n // 2 + n // (2 * len(shapes))) % len(heads)]
            if head.scores.norm and len(X) > 1:
                s = np.exp2(np.arange(-POWERS, POWERS + 1.0))
                logits = logit_sizes(head, X[:-1] - X[-1], X[-1], s, s)
                # of all tokens: the last one's logit is 0
                X *= s[_nearest(logits * np.sqrt(1 - 1 / len(X)), shape.logits)]
        return np.asarray(X.astype(np.float32), dtype=np.float64)

    drawn = long_sequences.LongTokens(model, tells).among(count, rng, ordinary)
    families = sorted(by_length(drawn, "hold-out, closing"), key=lambda part: part.tokens)
    near = [part for part in families if part.tokens <= long_sequences.TOGETHER]
    return near, [[part] for part in families if part.tokens > long_sequences.TOGETHER]


def _checked(phase: str, X: Array, radius: float) -> Sequences:
    """Round tokens to float32 numbers that every target reads alike; shorten those beyond."""
    told = X.astype(np.float32).astype(np.float64)
    return shortened(Sequences(told, phase=f"hold-out, {phase}", purpose="check"), radius)
