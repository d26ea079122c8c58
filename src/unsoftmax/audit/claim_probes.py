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

from dataclasses import dataclass

import numpy as np

from unsoftmax.audit.claimed_models import Claim
from unsoftmax.probes import Array


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
    again: int = 3
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
    """Points that are drawn until the claim is affine around one."""
    longest: float = 2.0**100
    """Tokens are no longer, and no shorter than its inverse: their answers stay in range."""


def random_sequences(
    claim: Claim, rng: np.random.Generator, tuning: ClaimProbeTuning
) -> list[Array]:
    """Draw sequences (N, d) at which every tensor of the claim moves the answer."""
    count = tuning.random
    bends = claim.lengths
    found = []
    for n in range(count):
        N = tuning.tokens[n % len(tuning.tokens)] if claim.attends else 1
        directions = rng.standard_normal((N, claim.dim)) / np.sqrt(claim.dim)
        offsets, query = directions[:-1], directions[-1]
        length = None
        if len(bends):
            length = float(np.quantile(bends, (n + 0.5) / count))
            length = float(np.clip(length, 1 / tuning.longest, tuning.longest))
        if not claim.attends:
            found.append((length or 1.0) * directions)
            continue
        alpha, beta = _scales(claim, offsets, query, n, length, tuning)
        found.append(np.vstack([alpha * offsets + beta * query, beta * query]))
    return [_as_float32(X) for X in found]


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
    alpha = float(np.sort(scales)[(n * len(scales)) // max(1, tuning.random)])
    alpha = float(np.clip(alpha, 1 / tuning.longest, tuning.longest))
    return alpha, alpha if length is None else length


@dataclass(frozen=True, slots=True)
class Identities:
    """Sums Σ_k c_k f(X_k) that are 0 for every model of the class: a row of coefficients each."""

    sequences: list[Array]
    coefficients: tuple[tuple[int, ...], ...]


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
    x, y = scale * _few_bits(signs * sizes, tuning.bits)
    tokens = (0 * x, x, y, x + y, x - y, -x - y)
    coefficients = ((1, -1, -1, 1, 0, 0), (0, -2, 0, 1, 1, 0), (-2, 0, 0, 1, 0, 1))
    return Identities([token[None] for token in tokens], coefficients)


def straight(
    claim: Claim, rng: np.random.Generator, n: int, tuning: ClaimProbeTuning
) -> Identities:
    """Return f(x − δ) − 2f(x) + f(x + δ) where the claim has no bend between: f is affine there.

    Steps are short, so that other networks of the class have no bend between either, as a rule.
    """
    lengths = claim.lengths
    length = float(np.quantile(lengths, (n + 1) / 3)) if len(lengths) else 1.0
    length = float(2.0 ** np.round(np.log2(length))) / np.sqrt(claim.dim)
    tokens: tuple[Array, ...] = ()
    for _ in range(tuning.tries):
        x = _few_bits(rng.standard_normal(claim.dim), tuning.bits) * length
        step = _few_bits(rng.standard_normal(claim.dim), tuning.step_bits) * length * tuning.step
        tokens = (x - step, x, x + step)
        if _affine_between(claim, np.array(tokens)[:, None]):
            break
    return Identities([token[None] for token in tokens], ((1, -2, 1),))


def _affine_between(claim: Claim, X: Array) -> bool:
    at = claim.at(X)
    missed = abs(at.predicted[0] - 2 * at.predicted[1] + at.predicted[2])
    return bool(missed <= np.finfo(np.float64).eps * np.sum(at.roundings))


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
