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

*Ordinary* sequences have all 53 bits, as float64 inputs have: a target that is right for float32
numbers alone is found out. They are half of what is asked first, or sequences like the user's own.
The rest are float32 numbers, of which every target makes the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.tokens.table_head import TokenTable
from unsoftmax.models.attention import softmax
from unsoftmax.probes import Array
from unsoftmax.questions.answer_errors import (
    AnswerErrors,
    Defect,
    Seen,
    measured,
    seen_of,
    with_steps,
)
from unsoftmax.questions.claim import Claim

# Points that are drawn for each random sequence of a claim that bends.
_DRAWS = 32
# Heads count as isolated where their logits come within this of what was wanted.
_APART = 0.5
# Bits of the entries of tokens that are added up: sums must be float32 numbers, and targets that
# round their inputs to float16 or bfloat16 must show it.
_BITS = 20
# Steps within which a network must be affine, in units of its tokens, and bits of their entries.
_STEP, _STEP_BITS = 2.0**-10, 9
# Points that are drawn, of which one is taken around which the claim is affine.
_TRIES = 16
# Points that are aimed at neurons have in turn the lengths at which random tokens meet this share
# of the bends.
_SPREAD = (0.5, 0.9, 0.25, 0.75)
# Tokens are no longer, and no shorter than its inverse: their answers stay in range.
LONGEST = 2.0**100
# Random sequences that are asked again: what answers vary by.
_AGAIN = 2
# Of so many sequences two other wordings are asked; of five tokens and more, for short sums round
# alike in any order.
_REWORDED = 2
# Questions in all: those that are left are aimed at neurons that the others do not meet.
_MOST = 20
# Shares of the bends that tokens meet at the lengths at which a network is tested to be straight.
_STRAIGHT = (1 / 3, 2 / 3)
# Root mean square of the scores of random sequences: the softmax bends most at about 1.5.
LOGIT = 1.5
# S: e⁻³⁶ is a roundoff of float64. On lines heads are seen there, and further by so much: the two
# give two numbers of v.
_SATURATED, _FURTHER = 36.0, 1.5
# Random sequences (more find smaller changes: the largest of more misses is seen), and their
# lengths in turn: many tokens show windows and what depends on the length.
_RANDOM, _TOKENS = 7, (5, 8, 2, 128, 3)
# Lone ids, where ids are asked: as few as there are single tokens elsewhere.
_LONE = 6
# Ids of the sequences that end in every id of a vocabulary; of so many each is chosen.
COVERING = 6
_TRIED_BESIDE = 64
# One random sequence in so many keeps to float32 numbers. With those asked again and in other words
# half of all questions are ordinary; identities, whose sums must be exact, are not.
_SINGLE = 3


def random_sequences(
    claim: Claim, rng: np.random.Generator, count: int = _RANDOM, tokens: tuple[int, ...] = _TOKENS
) -> list[Array]:
    """Draw sequences (N, d) at which every tensor of the claim moves the answer.

    Of several draws each the one is taken that meets most neurons which those before leave out.
    """
    draws = 1 if claim.bends is None else _DRAWS
    found: list[Array] = []
    for n in range(count):
        N = tokens[n % len(tokens)] if claim.attends else 1
        length = _bend_length(claim, (n + 0.5) / count)
        drawn = (_random_sequence(claim, rng, N, (n, count), length) for _ in range(draws))
        found.append(by_worth(claim, found, [claim.presented(X, n) for X in drawn])[0])
    return found


def _random_sequence(
    claim: Claim, rng: np.random.Generator, N: int, turn: tuple[int, int], length: float | None
) -> Array:
    directions = rng.standard_normal((N, claim.dim)) / np.sqrt(claim.dim)
    if not claim.attends:
        return as_float32((length or 1.0) * directions)
    if claim.before is not None:  # tokens' lengths do not count
        directions, length = np.sqrt(claim.dim) * directions, 1.0
    offsets, query = directions[:-1], directions[-1]
    scales, alpha = _scales(claim, offsets, query, length), length or 1.0
    if len(scales):  # that of one of the heads, in turn
        # beyond 1, tokens that are normalised are as far from the query token as they can be
        most = LONGEST if claim.before is None else 1.0
        of_head = np.sort(scales)[turn[0] * len(scales) // turn[1]]
        alpha = float(np.clip(of_head, 1 / LONGEST, most))
    beta = length or alpha
    return as_float32(np.vstack([alpha * offsets + beta * query, beta * query]))


def _scales(claim: Claim, offsets: Array, query: Array, length: float | None) -> Array:
    """Return α for which α·(β·a·W b + a·w) is as large as wanted, for each of the heads that score.

    β = α unless something else than scores says how long query tokens are.
    """
    wanted = LOGIT

    def sizes(vectors: Array) -> Array:
        return np.asarray(np.sqrt(np.mean((offsets @ vectors.T) ** 2, axis=0)))

    if claim.before is not None:
        of_scores = sizes(claim.vectors(query[None])[0])
    else:
        u, w = claim.vectors(np.array([query, 0.0 * query]))
        by_query, by_bias = sizes(u - w), sizes(w)
        if length is None:
            # β m_W α + m_w α = L with α = β, in the form that no difference cancels in
            of_scores = by_bias + np.sqrt(by_bias**2 + 4 * wanted * by_query)
            wanted = 2 * wanted
        else:
            of_scores = length * by_query + by_bias
    return np.asarray(wanted / of_scores[of_scores > 0])


def _bend_length(claim: Claim, share: float) -> float | None:
    """Return the length at which random tokens meet this share of what bends the function."""
    if claim.bends is None or not len(lengths := claim.bends.lengths):
        return None
    return float(np.clip(np.quantile(lengths, share), 1 / LONGEST, LONGEST))


def by_worth(claim: Claim, asked: list[Array], candidates: list[Array]) -> list[Array]:
    """Order sequences by how many neurons they meet that those asked leave out, most first."""
    if claim.bends is None:
        return candidates
    worth = claim.bends.sides.worth * ~np.any(claim.bends.met(asked), axis=0)
    order = np.argsort(-(claim.bends.met(candidates) @ worth), kind="stable")
    return [candidates[k] for k in order]


def beside(claim: Claim, asked: list[Array], most: int, rng: np.random.Generator) -> list[Array]:
    """Return up to ``most`` single tokens at neurons that no sequence meets that is asked."""
    found: list[Array] = []
    while len(found) < most:
        every = [*asked, *found]
        length = _bend_length(claim, _SPREAD[len(found) % len(_SPREAD)]) or 1.0
        tokens = [as_float32(x[None]) for x in _aimed(claim, every, length, rng)]
        if not tokens:
            break
        found.append(by_worth(claim, every, tokens)[0])
    return found


def _aimed(claim: Claim, asked: list[Array], length: float, rng: np.random.Generator) -> Array:
    """Return points (K, d) aimed at neurons that the sequences asked do not meet."""
    if claim.bends is None:
        return np.zeros((0, claim.dim))
    sides = claim.bends.sides
    missing = ~np.any(claim.bends.met(asked), axis=0) & (sides.distances < LONGEST)
    # neurons are off at most points: where they are on comes first
    first = missing & (sides.worth == 1)
    return claim.bends.single.aimed(first if np.any(first) else missing, length, rng)


@dataclass(frozen=True, slots=True)
class Identities:
    """Sums Σ_k c_k f(X_k) that are 0 for every model of the class: a row of coefficients each."""

    sequences: list[Array]
    coefficients: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...] = ()
    """Places of the tokens that show whether operands are rounded (`with_steps`)."""
    curved: bool = False
    """Whether they hold but for what curves within short steps, for the claim as for the target."""
    nearly: tuple[tuple[int, ...], ...] = ()
    """Sums that are the same for any two models, but for a share of what these differ by."""


def additive(claim: Claim, random: list[Array], rng: np.random.Generator) -> Identities:
    """Return identities of single tokens for a class that is affine there: its v and its c.

    Tokens are as long as those of random sequences: what rounds there shows here.
    """
    typical = _typical(random)
    scale = 2.0 ** np.round(np.log2(typical / np.sqrt(claim.dim))) if typical else 1.0
    # entries of one size: each rounds by itself, and so does their sum
    signs, sizes = rng.choice([-1.0, 1.0], (2, claim.dim)), rng.uniform(1, 2, (2, claim.dim))
    x, near, further = with_steps(scale * signs[0] * sizes[0], scale, claim.slope())
    y = scale * _few_bits(signs[1] * sizes[1], _BITS)
    tokens = (0 * x, x, y, x + y, -x - y, near, further)
    coefficients = ((1, -1, -1, 1, 0, 0, 0), (-2, 0, 0, 1, 1, 0, 0), (0, 7, 0, 0, 0, -8, 1))
    return Identities([token[None] for token in tokens], coefficients, (1, 5, 6))


def straight(
    claim: Claim, asked: list[Array], rng: np.random.Generator, share: float
) -> Identities:
    """Return f(x − δ) − 2f(x) + f(x + δ) where the claim has no bend between: f is affine there.

    A smooth f curves by δ². Where answers are vectors, f(x + δ) − f(x) as well: a wrong claim
    misses it by δ as a share of what it misses f by; a target that rounds what it multiplies
    misses it by more. Steps are short, so that other networks of the class have no bend between
    either, as a rule.

    Of points at the length where random tokens meet this share of the bends, that one is taken
    which meets most neurons that the sequences asked leave out.
    """
    length = _bend_length(claim, share) or (_typical(asked) if claim.smooth else 0.0) or 1.0
    drawn = length / np.sqrt(claim.dim) * rng.standard_normal((_TRIES, claim.dim))
    points = [*drawn, *_aimed(claim, asked, length, rng)]
    tokens = [(_grid(x) * _few_bits(x / _grid(x), _BITS))[None] for x in points]
    curved = 4 * _STEP**2 if claim.smooth else 0.0
    for x in by_worth(claim, asked, tokens):
        step = _STEP * _few_bits(rng.standard_normal(claim.dim), _STEP_BITS)
        found = [x - _grid(x) * step, x, x + _grid(x) * step]
        at = claim.at(np.array(found))
        missed = np.abs(at.predicted[0] - 2 * at.predicted[1] + at.predicted[2])
        sizes = np.sum(at.roundings, axis=0)
        if np.all(missed <= (np.finfo(np.float64).eps + curved) * sizes):
            break
    nearly = ((-1, 1, 0), (0, -1, 1)) if claim.outputs is not None else ()
    return Identities(found, ((1, -2, 1),), curved=claim.smooth, nearly=nearly)


def _typical(sequences: list[Array]) -> float:
    """Return the median length of the longest tokens."""
    return float(np.median([np.linalg.norm(X, axis=1).max() for X in sequences]))


def _grid(x: Array) -> float:
    """Return the power of two of which the largest entry is two to four times as large."""
    return float(2.0 ** np.ceil(np.log2(np.abs(x).max() / 4)))


def as_float32(X: Array) -> Array:
    """Round entries to numbers that every target reads alike."""
    return np.asarray(X.astype(np.float32), dtype=np.float64)


def _few_bits(x: Array, bits: int) -> Array:
    """Round entries to multiples of 2^(2 − bits)."""
    return np.asarray(np.round(np.clip(x, -4, 4) * 2.0 ** (bits - 2)) * 2.0 ** (2 - bits))


def lines(claim: Claim, query: Array, both: bool, rng: np.random.Generator) -> list[Array] | None:
    """Return sequences [b + a; b] at offsets that isolate every head; None where there are none.

    Along a line of offsets one head's logit is a·(W_h b + w_h) = l, that of all others −S. First
    an offset that no head takes, then every head's at l = 1.5, at S and at 1.5·S. Where ``both``,
    W and w score by themselves: at l = 1.5, a·w_h = l and a·W_h b = −2 l, and the first and these
    are asked at the query token 0 as well. There are none where these vectors are linearly
    dependent, or nearly.
    """
    u, w = claim.vectors(np.array([query, 0.0 * query]))
    H, d = u.shape
    rows = np.vstack([w, u - w]) if both else u
    if not H or len(rows) > d or not np.all(np.any(rows, axis=1)):
        return None
    # rows of any lengths: their directions decide how well they are told apart
    lengths = np.linalg.norm(rows, axis=1)
    inverse = np.linalg.pinv(rows / lengths[:, None]) / lengths
    wanted = np.repeat([-_SATURATED, 0.0], H)[: len(rows)]
    base = inverse @ wanted
    # what no head scores: its values are seen all the same
    spare = rng.standard_normal(d)
    spare -= inverse @ (rows @ spare)
    norm = float(np.linalg.norm(spare))
    if len(rows) < d and norm > 0:
        base = base + spare * (np.linalg.norm(base) / norm)
    missed = np.abs(rows @ base - wanted).max()
    apart = np.abs(rows @ inverse - np.eye(len(rows))).max() * _SATURATED
    if not max(missed, apart) < _APART:
        return None
    queries = [0.0 * query, query] if both else [query]
    turns = -2 * LOGIT * inverse.T[H:] if both else np.zeros((H, d))

    def on_line(h: int, level: float, b: Array) -> Array:
        a = base + (_SATURATED + level) * inverse.T[h] + turns[h]
        return np.vstack([b + a, b])

    asked = [np.vstack([b + base, b]) for b in queries]
    asked += [on_line(h, LOGIT, b) for b in queries for h in range(H)]
    far = (_SATURATED, _FURTHER * _SATURATED)
    return [*asked, *(on_line(h, level, queries[0]) for level in far for h in range(H))]


# -- ordinary inputs


def ordinary(sequences: list[Array], rng: np.random.Generator) -> list[Array]:
    """Give all but every third sequence the bits that float32 numbers do not have.

    Entries change by less than float32 rounds them by.
    """
    return [
        X if n % _SINGLE == 2 else X * (1 + rng.uniform(-(2.0**-25), 2.0**-25, X.shape))
        for n, X in enumerate(sequences)
    ]


def alike(sequences: list[Array], like: Array, rng: np.random.Generator) -> list[Array]:
    """Put inputs like the user's own, (n, N, d), in the place of ordinary sequences.

    One has the last tokens of a sequence of theirs, the next tokens drawn from all of them, at most
    as many as the sequence whose place it takes.
    """
    found, tokens = [*sequences], like.reshape(-1, like.shape[2])
    for n in (n for n in range(len(found)) if n % _SINGLE != 2):
        count = len(found[n])
        found[n] = like[rng.integers(len(like))][-count:]
        if n % 2 or like.shape[1] == 1:
            found[n] = tokens[rng.integers(len(tokens), size=count)]
    return found


# -- what is asked, in two rounds


@dataclass(frozen=True, slots=True)
class Design:
    """The questions that are asked of every target, and which of them say the same."""

    random: list[Array]
    """The last are asked twice."""
    words: list[Array]
    """The first random sequences in another order, then with every token three times."""
    within: list[Identities]
    """Single tokens whose answers satisfy identities."""
    beside: list[Array]
    """Single tokens at neurons that nothing else meets."""

    @classmethod
    def of(cls, claim: Claim, seed: int, like: Array | None = None) -> Design:
        """Draw them; ordinary sequences like those given, (n, N, d), if there are any."""
        rng, bits = np.random.default_rng(seed), np.random.default_rng([seed, 2])
        random = ordinary(random_sequences(claim, rng), bits)
        random = random if like is None else alike(random, like, bits)
        if not claim.attends:  # the last are asked again: an answer of 0 shows no noise
            at, shape = claim.at(np.array(random)), (len(random), -1)
            sizes, answers = at.roundings.reshape(shape), np.abs(at.predicted).reshape(shape)
            shares = np.max(answers / np.where(sizes > 0, sizes, 1.0), axis=1)
            random = [random[k] for k in np.argsort(shares, kind="stable")]
        some = random[: _reworded(claim)]
        words = [np.vstack([X[-2::-1], X[-1:]]) for X in some]
        words += [np.repeat(X, 3, axis=0) for X in some]
        within = [additive(claim, random, rng)] if claim.affine else []
        for share in () if claim.affine else _STRAIGHT:
            asked = [*random, *(X for some in within for X in some.sequences)]
            within.append(straight(claim, asked, rng, share))
        design = cls(random, words, within, [])
        room = _MOST - len(design.first) - len(design.second)
        return replace(design, beside=ordinary(beside(claim, design.first, room, rng), bits))

    @classmethod
    def of_ids(cls, claim: Claim, table: TokenTable, seed: int) -> Design:
        """Draw sequences of ids of a table, and lone ones; scores are what they are there."""
        rng, positions = np.random.default_rng(seed), table.positions
        longest = positions if positions > 1 else max(_TOKENS)
        lengths = [min(N, longest) for N in np.resize(_TOKENS, _RANDOM).tolist()]
        random = [table.at(rng.integers(len(table), size=(1, N)))[0] for N in lengths]
        some = random[: _reworded(claim)] if positions == 1 else []
        words = [np.vstack([X[-2::-1], X[-1:]]) for X in some]
        words += [np.repeat(X, 3, axis=0) for X in some]
        lone = [table.at(rng.integers(len(table), size=(1, 1)))[0] for _ in range(_LONE)]
        return cls(random, words, [], lone)

    @classmethod
    def of_vocabulary(cls, claim: Claim, numbers: TokenTable, seed: int) -> Design:
        """Draw sequences of ids (N, 1) and lone ones, and some that end in every id once.

        Of several ids before it those are asked beside which an id weighs neither 0 nor 1, as near
        as the claim has any: a change of its row would not show where weights are hard.
        """
        vocabulary, rng = len(numbers), np.random.default_rng([seed, 1])
        model, ids, best = claim.model, np.arange(vocabulary), np.full(vocabulary, -1.0)
        ends = np.zeros((vocabulary, COVERING))
        for _ in range(_TRIED_BESIDE):
            tried = np.column_stack(
                [rng.integers(vocabulary, size=(vocabulary, COVERING - 1)), ids]
            )
            weights = softmax(np.einsum("bnr,br->bn", model.rho[tried], model.x[ids]))
            own = np.sum(weights * (tried == ids[:, None]), axis=1)
            better = own * (1 - own) > best
            ends[better], best[better] = tried[better], (own * (1 - own))[better]
        found = cls.of_ids(claim, numbers, seed)
        return replace(found, beside=[*found.beside, *ends[:, :, None]])

    def read(self, claim: Claim, one: Seen, two: Seen) -> tuple[Seen, Seen]:
        """Return what is seen where a target rounds inputs to float32, if it seems to.

        Of the two readings the one whose largest miss is smaller is taken, for all questions.
        """
        rounded = [[as_float32(X) for X in asked] for asked in (self.first, self.second)]
        single = seen_of(claim, rounded[0], one.y), seen_of(claim, rounded[1], two.y)
        largest = [max(map(_largest_miss, seen)) for seen in ((one, two), single)]
        return single if largest[1] < largest[0] else (one, two)

    @property
    def first(self) -> list[Array]:
        """Random sequences, then single tokens."""
        return [*self.random, *(X for some in self.within for X in some.sequences), *self.beside]

    @property
    def second(self) -> list[Array]:
        """What is asked again, and in other words."""
        return [*self.random[-_AGAIN:], *self.words]

    def unmet(self, claim: Claim, bounds: Array) -> str:
        """Say how many neurons could be others without a miss beyond ``bounds``; "" if none."""
        if (bends := claim.bends) is None:
            return ""
        hidden = bends.sides.hidden(bends.points(self.first), bounds)
        off, on = (int(np.sum(some)) for some in np.split(hidden, 2))
        said = [
            f"{count} of {bends.sides.neurons} neurons are {where} at every sequence that was "
            f"asked, or hardly {other}: a change that shows only where they are {other} is not "
            "detected."
            for count, where, other in ((off, "off", "on"), (on, "on", "off"))
            if count
        ]
        return " ".join([*said, "Another seed asks other sequences."] if said else [])

    def errors(self, one: Seen, two: Seen, sharp: bool = False) -> AnswerErrors:
        """Measure what answers may be off by; ``sharp``, without what a wrong claim may add."""
        defects, start, steps = [], len(self.random), []
        nearly: list[Defect] = []
        for some in self.within:
            stop = start + len(some.sequences)
            steps += [start + k for k in some.steps]
            within = one[start:stop]
            defects += [Defect(row, within, some.curved) for row in some.coefficients]
            nearly += [Defect(row, within, curved=True) for row in some.nearly if not sharp]
            start = stop
        for n in range(len(self.words)):
            defects.append(Defect((1, -1), one[[n % _REWORDED]].beside(two[[_AGAIN + n]])))
        generic, last = one[: len(self.random)], len(self.random) - _AGAIN
        found = measured(one.y, generic, (generic[last:], two[:_AGAIN]), defects, nearly)
        return found.with_operands(one[steps], self.random[0].shape[1]) if steps else found


def _largest_miss(seen: Seen) -> float:
    """Return the largest miss in units of what rounding an answer's terms may move it by."""
    sizes = np.where(seen.at.roundings > 0, seen.at.roundings, np.inf)
    return float(np.max(np.abs(seen.missed) / sizes))


def lengths(claim: Claim) -> tuple[list[int], list[int]]:
    """Return how many tokens the sequences of both rounds have, as many as there may be."""
    random = np.resize(_TOKENS if claim.attends else 1, _RANDOM).tolist()
    some = random[: _reworded(claim)]
    second = [*random[-_AGAIN:], *some, *(3 * N for N in some)]
    single = 7 if claim.affine else 3 * len(_STRAIGHT)
    if claim.bends is not None:
        single = max(single, _MOST - len(random) - len(second))
    return [*random, *[1] * single], second


def _reworded(claim: Claim) -> int:
    return _REWORDED if claim.attends and not claim.ordered else 0
