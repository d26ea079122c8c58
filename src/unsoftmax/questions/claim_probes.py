"""Sequences at which a claimed model shows whether it is another one.

*Random* sequences have two to eight tokens whose scores, by the claim, are about 1.5, so that every
tensor moves the answer; where heads or hyperplanes live at different lengths, each is met in turn.

*Identities* hold for every model of the class, whatever its parameters: a sequence means the same
in another order (its query token stays last), with every token twice; answers to single tokens are
affine, or affine between two bends. What a target misses them by is its own arithmetic.

*Isolating* sequences show one tensor alone. With u_h = W_h b + w_h, two tokens [b + a; b] give head
h the logit a·u_h. Where a·u_k = −S for all other heads these answer with their values of b, and
along a line of offsets with a·u_h = l head h takes a share σ(l) of the offset's value: at l ≫ 1
only v_h is seen, at l ≈ 1.5 the scores as well. With the query token 0 only w_h scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.probes import Array
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.neuron_sides import Bends, Sides, SideTuning
from unsoftmax.questions.operand_rounding import with_steps


@dataclass(frozen=True, slots=True)
class ClaimProbeTuning:
    """Knobs of the sequences that a claim is tested with."""

    random: int = 7
    """Random sequences. More find smaller changes: the largest of more misses is seen."""
    tokens: tuple[int, ...] = (5, 8, 2, 128, 3)
    """Their lengths, in turn: many tokens show windows and what depends on the length."""
    words: int = 2
    """Of so many sequences two other wordings are asked; of five tokens and more, for short sums
    round alike in any order."""
    logit: float = 1.5
    """Root mean square of their scores: the softmax bends most at scores of about 1.5."""
    again: int = 2
    """Random sequences that are asked again: what answers vary by."""
    saturated: float = 36.0
    """S: e⁻³⁶ is a roundoff of float64."""
    apart: float = 0.5
    """Heads count as isolated where their logits come within this of what was wanted."""
    bits: int = 20
    """Bits of the entries of tokens that are added up: sums must be float32 numbers, and targets
    that round their inputs to float16 or bfloat16 must show it."""
    step: float = 2.0**-10
    """Steps within which a network must be affine, in units of its tokens."""
    step_bits: int = 9
    """Bits of the steps' entries."""
    tries: int = 16
    """Points that are drawn, of which one is taken around which the claim is affine."""
    most: int = 20
    """Questions in all: those that are left are aimed at neurons that the others do not meet."""
    sides: SideTuning = field(default=SideTuning())
    """How neurons are met."""
    spread: tuple[float, ...] = (0.5, 0.9, 0.25, 0.75)
    """Points that are aimed at neurons have in turn the lengths at which random tokens meet this
    share of the bends."""
    longest: float = 2.0**100
    """Tokens are no longer, and no shorter than its inverse: their answers stay in range."""

    @property
    def hasty(self) -> ClaimProbeTuning:
        """The same questions in number and length, at whatever points come first."""
        return replace(self, sides=replace(self.sides, draws=1, groups=0), tries=1)


def random_sequences(
    claim: Claim, rng: np.random.Generator, tuning: ClaimProbeTuning
) -> list[Array]:
    """Draw sequences (N, d) at which every tensor of the claim moves the answer.

    Of several draws each the one is taken that meets most neurons which those before leave out.
    """
    draws = 1 if claim.bends is None else tuning.sides.draws
    found: list[Array] = []
    for n in range(tuning.random):
        length = _bend_length(claim, (n + 0.5) / tuning.random, tuning)
        drawn = [
            claim.presented(_random_sequence(claim, rng, n, length, tuning), n)
            for _ in range(draws)
        ]
        found.append(by_worth(claim, found, drawn, tuning)[0])
    return found


def _random_sequence(
    claim: Claim, rng: np.random.Generator, n: int, length: float | None, tuning: ClaimProbeTuning
) -> Array:
    N = tuning.tokens[n % len(tuning.tokens)] if claim.attends else 1
    directions = rng.standard_normal((N, claim.dim)) / np.sqrt(claim.dim)
    offsets, query = directions[:-1], directions[-1]
    if not claim.attends:
        return _as_float32((length or 1.0) * directions)
    if claim.before is not None:
        offsets, query = (np.sqrt(claim.dim) * x for x in (offsets, query))
        alpha, beta = _share_of_query(claim, offsets, query, n, tuning), 1.0
    else:
        alpha, beta = _scales(claim, offsets, query, n, length, tuning)
    return _as_float32(np.vstack([alpha * offsets + beta * query, beta * query]))


def _bend_length(claim: Claim, share: float, tuning: ClaimProbeTuning) -> float | None:
    """Return the length at which random tokens meet this share of what bends the function."""
    if claim.bends is None or not len(lengths := claim.bends.lengths):
        return None
    return float(np.clip(np.quantile(lengths, share), 1 / tuning.longest, tuning.longest))


def by_worth(
    claim: Claim, asked: list[Array], candidates: list[Array], tuning: ClaimProbeTuning
) -> list[Array]:
    """Order sequences by how many neurons they meet that those asked leave out, most first."""
    if (bends := claim.bends) is None:
        return candidates
    wanted = bends.sides.worth(tuning.sides) * ~met(bends, asked, tuning)
    every = np.concatenate([bends.given(X[None]) for X in candidates])
    worth = bends.sides.met(every, tuning.sides) @ wanted
    return [candidates[k] for k in np.argsort(-worth, kind="stable")]


def met(bends: Bends, asked: list[Array], tuning: ClaimProbeTuning) -> Sides:
    """Say on which sides of neurons' hyperplanes the sequences that are asked lie."""
    points = np.array([bends.given(X[None])[0] for X in asked])
    points = points.reshape(-1, bends.sides.normals.shape[1])
    return np.asarray(np.any(bends.sides.met(points, tuning.sides), axis=0))


def beside(
    claim: Claim, asked: list[Array], most: int, rng: np.random.Generator, tuning: ClaimProbeTuning
) -> list[Array]:
    """Return up to ``most`` single tokens at neurons that no sequence meets that is asked."""
    found: list[Array] = []
    while len(found) < most:
        every = [*asked, *found]
        share = tuning.spread[len(found) % len(tuning.spread)]
        points = _aimed(claim, every, _bend_length(claim, share, tuning) or 1.0, rng, tuning)
        if not len(points):
            break
        tokens = [_as_float32(x[None]) for x in points]
        found.append(by_worth(claim, every, tokens, tuning)[0])
    return found


def _aimed(
    claim: Claim,
    asked: list[Array],
    length: float,
    rng: np.random.Generator,
    tuning: ClaimProbeTuning,
) -> Array:
    """Return points (K, d) aimed at neurons that the sequences asked do not meet."""
    if (bends := claim.bends) is None:
        return np.zeros((0, claim.dim))
    sides = bends.sides
    missing = ~met(bends, asked, tuning) & (sides.distances < tuning.longest)
    # neurons are off at most points: where they are on comes first
    first = missing & (sides.worth(tuning.sides) == 1)
    wanted = first if np.any(first) else missing
    return bends.single.aimed(wanted, length, rng, tuning.sides)


def _scales(
    claim: Claim,
    offsets: Array,
    query: Array,
    n: int,
    length: float | None,
    tuning: ClaimProbeTuning,
) -> tuple[float, float]:
    """Find α and β for which α·(β·a·W b + a·w) is as large as wanted for one of the heads.

    α = β unless something else than scores says how long query tokens are.
    """
    u, w = claim.vectors(np.array([query, 0.0 * query]))
    by_query = np.sqrt(np.mean((offsets @ (u - w).T) ** 2, axis=0))
    by_bias = np.sqrt(np.mean((offsets @ w.T) ** 2, axis=0))
    wanted = tuning.logit
    if length is None:
        # β m_W α + m_w α = L with α = β, in the form that no difference cancels in
        root = by_bias + np.sqrt(by_bias**2 + 4 * wanted * by_query)
        scales = 2 * wanted / root[root > 0]
    else:
        sizes = length * by_query + by_bias
        scales = wanted / sizes[sizes > 0]
    if not len(scales):
        return length or 1.0, length or 1.0
    alpha = _in_turn(scales, n, tuning)
    alpha = float(np.clip(alpha, 1 / tuning.longest, tuning.longest))
    return alpha, alpha if length is None else length


def _share_of_query(
    claim: Claim, offsets: Array, query: Array, n: int, tuning: ClaimProbeTuning
) -> float:
    """Find α for which α·a·u is as large as wanted, where tokens' lengths do not count.

    Beyond 1 tokens are as far from the query token as they can be.
    """
    [u] = claim.vectors(query[None])
    sizes = np.sqrt(np.mean((offsets @ u.T) ** 2, axis=0))
    shares = tuning.logit / sizes[sizes > 0]
    return min(1.0, _in_turn(shares, n, tuning)) if len(shares) else 1.0


def _in_turn(scales: Array, n: int, tuning: ClaimProbeTuning) -> float:
    """Return the scale of one of the heads, the n-th sequence's."""
    return float(np.sort(scales)[(n * len(scales)) // max(1, tuning.random)])


@dataclass(frozen=True, slots=True)
class Identities:
    """Sums Σ_k c_k f(X_k) that are 0 for every model of the class: a row of coefficients each."""

    sequences: list[Array]
    coefficients: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...] = ()
    """Places of the tokens that show whether operands are rounded (`operand_rounding`)."""
    curved: bool = False
    """Whether they hold but for what curves within short steps, for the claim as for the target."""
    nearly: tuple[tuple[int, ...], ...] = ()
    """Sums that are the same for any two models, but for a share of what these differ by."""


def in_other_words(sequences: list[Array]) -> list[Array]:
    """Return sequences (N, d) in another order, then the same with every token three times."""
    turned = [np.vstack([X[-2::-1], X[-1:]]) for X in sequences]
    return [*turned, *(np.repeat(X, 3, axis=0) for X in sequences)]


def additive(
    claim: Claim, random: list[Array], rng: np.random.Generator, tuning: ClaimProbeTuning
) -> Identities:
    """Return identities of single tokens for a class that is affine there: its v and its c.

    Tokens are as long as those of random sequences: what rounds there shows here.
    """
    typical = float(np.median([np.linalg.norm(X, axis=1).max() for X in random]))
    scale = 2.0 ** np.round(np.log2(typical / np.sqrt(claim.dim))) if typical else 1.0
    # entries of one size: each rounds by itself, and so does their sum
    signs, sizes = rng.choice([-1.0, 1.0], (2, claim.dim)), rng.uniform(1, 2, (2, claim.dim))
    x, near, further = with_steps(scale * signs[0] * sizes[0], scale, claim.slope())
    y = scale * _few_bits(signs[1] * sizes[1], tuning.bits)
    tokens = (0 * x, x, y, x + y, -x - y, near, further)
    coefficients = ((1, -1, -1, 1, 0, 0, 0), (-2, 0, 0, 1, 1, 0, 0), (0, 7, 0, 0, 0, -8, 1))
    return Identities([token[None] for token in tokens], coefficients, (1, 5, 6))


def straight(
    claim: Claim,
    asked: list[Array],
    rng: np.random.Generator,
    share: float,
    tuning: ClaimProbeTuning,
) -> Identities:
    """Return f(x − δ) − 2f(x) + f(x + δ) where the claim has no bend between: f is affine there.

    A smooth f curves by δ². Where answers are vectors, f(x + δ) − f(x) as well: a wrong claim
    misses it by δ as a share of what it misses f by; a target that rounds what it multiplies
    misses it by more. Steps are short, so that other networks of the class have no bend between
    either, as a rule.

    Of points at the length where random tokens meet this share of the bends, that one is taken
    which meets most neurons that the sequences asked leave out.
    """
    length = _bend_length(claim, share, tuning) or _typical(claim, asked)
    drawn = length / np.sqrt(claim.dim) * rng.standard_normal((tuning.tries, claim.dim))
    points = [*drawn, *_aimed(claim, asked, length, rng, tuning)]
    tokens = [(_grid(x) * _few_bits(x / _grid(x), tuning.bits))[None] for x in points]
    for x in by_worth(claim, asked, tokens, tuning):
        step = tuning.step * _few_bits(rng.standard_normal(claim.dim), tuning.step_bits)
        found = [x - _grid(x) * step, x, x + _grid(x) * step]
        if _affine_between(claim, np.array(found), tuning.step):
            break
    nearly = ((-1, 1, 0), (0, -1, 1)) if claim.outputs is not None else ()
    return Identities(found, ((1, -2, 1),), curved=claim.smooth, nearly=nearly)


def _typical(claim: Claim, asked: list[Array]) -> float:
    """Return the length of tokens where nothing bends the function."""
    if not claim.smooth:
        return 1.0
    return float(np.median([np.linalg.norm(X, axis=1).max() for X in asked])) or 1.0


def _grid(x: Array) -> float:
    """Return the power of two of which the largest entry is two to four times as large."""
    return float(2.0 ** np.ceil(np.log2(np.abs(x).max() / 4)))


def _affine_between(claim: Claim, X: Array, step: float) -> bool:
    at = claim.at(X)
    missed = np.abs(at.predicted[0] - 2 * at.predicted[1] + at.predicted[2])
    curved = 4 * step**2 if claim.smooth else 0.0
    sizes = np.sum(at.roundings, axis=0)
    return bool(np.all(missed <= (np.finfo(np.float64).eps + curved) * sizes))


def _as_float32(X: Array) -> Array:
    """Round entries to numbers that every target reads alike."""
    return np.asarray(X.astype(np.float32), dtype=np.float64)


def _few_bits(x: Array, bits: int) -> Array:
    """Round entries to multiples of 2^(2 − bits)."""
    return np.asarray(np.round(np.clip(x, -4, 4) * 2.0 ** (bits - 2)) * 2.0 ** (2 - bits))


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of offsets a_h(l) = base + (S + l)·rises_h + turns_h, one per head."""

    base: Array
    """An offset that no head takes."""
    rises: Array
    turns: Array
    saturated: float
    """S."""

    def sequence(self, head: int | None, logit: float, query: Array) -> Array:
        """Return [q + a; q] with the logit of one head; with that of none, all are saturated."""
        a = self.base
        if head is not None:
            a = a + (self.saturated + logit) * self.rises[head] + self.turns[head]
        return np.vstack([query + a, query])


def lines(
    claim: Claim,
    query: Array,
    turn: float | None,
    rng: np.random.Generator,
    tuning: ClaimProbeTuning,
) -> Lines | None:
    """Find lines of offsets that isolate every head; None where there are none.

    Without ``turn`` an offset has the logit a·(W_h b + w_h) = l at the query token b. With it
    a·w_h = l and a·W_h b = ``turn``: one offset has the logits l and l + turn at the query tokens 0
    and b. There are none where these vectors are linearly dependent, or nearly.
    """
    u, w = claim.vectors(np.array([query, 0.0 * query]))
    H = len(u)
    rows = u if turn is None else np.vstack([w, u - w])
    if not H or len(rows) > claim.dim or not np.all(np.any(rows, axis=1)):
        return None
    # rows of any lengths: their directions decide how well they are told apart
    lengths = np.linalg.norm(rows, axis=1)
    inverse = np.linalg.pinv(rows / lengths[:, None]) / lengths
    wanted = np.repeat([-tuning.saturated, 0.0], H)[: len(rows)]
    base = inverse @ wanted
    # what no head scores: its values are seen all the same
    spare = rng.standard_normal(claim.dim)
    spare -= inverse @ (rows @ spare)
    norm = float(np.linalg.norm(spare))
    if len(rows) < claim.dim and norm > 0:
        base = base + spare * (np.linalg.norm(base) / norm)
    missed = np.abs(rows @ base - wanted).max()
    apart = np.abs(rows @ inverse - np.eye(len(rows))).max() * tuning.saturated
    if not max(missed, apart) < tuning.apart:
        return None
    turns = np.zeros((H, claim.dim)) if turn is None else turn * inverse.T[H:]
    return Lines(base, inverse.T[:H], turns, tuning.saturated)
