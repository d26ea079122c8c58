"""A layer of attention behind a LayerNorm: y = β + γ ⊙ n(x_N + o(X)), all of it, from vectors.

No answer says how long u = x_N + o(X) is: it tells d − 1 numbers, the direction of Pu, so every
linear system has one more unknown per answer (`measure.normalised`). The steps are those of a
plain layer all the same:

1. single tokens: β, γ up to its sign, (I + M), c (`normalised_singles`);
2. long tokens: the number of heads and what each makes of one offset (`normalised_heads`);
3. query tokens at which one head alone looks at the offset (`normalised_one_hot`);
4. the subspaces that heads answer in (`normalised_values`);
5. keys by the dozen: values, column spaces of scores (`normalised_keys`, `normalised_scores`);
6. the scores of all other query tokens (`normalised_rows`);
7. eps (`normalised_eps`); of coarse answers the subspaces once more (`normalised_polish`);
8. fresh sequences, and a certificate (`normalised_conclusion`).

*Queries*: about d + 13 + 24 + 45 + H(⌈d/H⌉ + 4) + (d_h + 4)⌈d/n⌉ + (d − d_h − 3)(1 + 2/12) + 10
for H heads of d_h = d/H, n = ⌊(d − H − 1)/H⌋; MiniLM (12 heads of 32): 1,786, and 3,300 of float32,
where answers of d − 2 numbers allow no fewer than 1,483. *Determined up to* the order of heads,
factors of M_h and W_h, and the part of M_h and c that is the same in all outputs. It may not know
anything of the target but its answers.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.layer_cost import LayerCost
from unsoftmax.learners.attention_layer.normalised_conclusion import concluded
from unsoftmax.learners.attention_layer.normalised_eps import find_eps
from unsoftmax.learners.attention_layer.normalised_heads import (
    NormalisedHeads,
    PatternRound,
    find_heads,
    read_heads,
    too_few,
)
from unsoftmax.learners.attention_layer.normalised_keys import open_values
from unsoftmax.learners.attention_layer.normalised_one_hot import find_one_hot
from unsoftmax.learners.attention_layer.normalised_polish import find_polish, polished_spaces
from unsoftmax.learners.attention_layer.normalised_rows import find_rows, read_rows
from unsoftmax.learners.attention_layer.normalised_scores import (
    ScoreTokens,
    find_columns,
    find_lengths,
    read_columns,
)
from unsoftmax.learners.attention_layer.normalised_singles import (
    SingleRound,
    ask_more_singles,
    ask_singles,
    read_singles,
)
from unsoftmax.learners.attention_layer.normalised_solution import (
    NormalisedRounds,
    SolvedLayer,
    layer_of,
)
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedTuning
from unsoftmax.learners.attention_layer.normalised_values import (
    find_values,
    find_whole_values,
    read_values,
)
from unsoftmax.learners.compose import Asking
from unsoftmax.models import AttentionLayer
from unsoftmax.protocol import Found
from unsoftmax.validate.fresh_sequences import LONG
from unsoftmax.validate.judge import fresh_answers
from unsoftmax.validate.sequences import opening


def normalised_cost(dim: int, max_heads: int, tuning: NormalisedTuning) -> LayerCost:
    """Bound queries, tokens and rounds, the hold-out's apart.

    Every search may ask offsets in all directions, keys one by one for all query tokens, and as
    many additional tokens as there are corners.
    """
    d, heads, values = dim, tuning.heads, tuning.values
    patterns = len(heads.longer) * (heads.queries + heads.rounds * heads.more)
    gates = len(tuning.one_hot.pilots) + tuning.one_hot.plane + 1
    offsets = min(max_heads, d) * (2**values.rounds + 1) * (d + values.spare)
    keys = 2 * tuning.scores.shorter + (d + 1) * d + (d + 1) + 2 * d + tuning.scores.fewest_extras
    search = gates + offsets + keys + len(tuning.eps.variances)
    queries = d + 16 + patterns + tuning.tries * search
    rounds = 8 + len(heads.longer) * (heads.rounds + 1)
    rounds += tuning.tries * (8 + 2 * values.rounds + tuning.scores.shorter)
    rounds += LONG.most_rounds + 1
    return LayerCost(queries, 2 * queries + tuning.tries * 4 * (d + 1) ** 2, rounds)


def normalised_steps(
    dim: int,
    seed: int,
    checks: int,
    *,
    tuning: NormalisedTuning,
    max_heads: int | None = None,
    profile: str = "auto",
) -> Asking[Found[AttentionLayer]]:
    """Recover a layer behind a LayerNorm, of no more than ``max_heads`` heads where that is given.

    Raises
    ------
    ModelMismatch
        The target is none.
    NotIdentifiable
        The answers cannot determine it: an entry of γ is 0, d is too small, no residual.
    """
    rng = np.random.default_rng(seed)
    first = [opening(dim, checks // 4, rng)] if checks // 4 else []
    earlier = yield from fresh_answers(first)
    singles = yield from ask_singles(dim, rng, tuning.singles)
    frame = read_singles(singles, tuning.singles)
    tuning = tuning.beside(frame.noise, profile)
    if tuning.polish.asked:
        singles = yield from ask_more_singles(singles, rng, tuning.singles)
        frame = read_singles(singles, tuning.singles)
    patterns = yield from find_heads(frame, rng, tuning.heads)
    heads = read_heads(frame, patterns, tuning.heads)
    H = len(heads.values)
    if max_heads is not None and max_heads < H:
        raise ModelMismatch(f"There are {H} heads: raise max_heads from {max_heads}.")
    try:
        found = yield from _searched(heads, (singles, patterns), rng, tuning)
        return (yield from concluded(*found, frame.noise, checks, earlier, rng=rng, tuning=tuning))
    except ModelMismatch as error:
        if dim > tuning.heads.few:
            raise
        # heads may open together along a line, which is all there is room for
        raise too_few(frame) from error


def _searched(
    heads: NormalisedHeads,
    before: tuple[SingleRound, PatternRound],
    rng: np.random.Generator,
    tuning: NormalisedTuning,
) -> Asking[tuple[SolvedLayer, NormalisedRounds]]:
    """Go on from the heads, again with other tokens where these were unlucky."""
    failure: ModelMismatch | None = None
    for _ in range(tuning.tries):
        try:
            return (yield from _of_heads(heads, before, rng, tuning))
        except ModelMismatch as error:
            failure = error
    assert failure is not None
    raise failure


def _of_heads(
    heads: NormalisedHeads,
    before: tuple[SingleRound, PatternRound],
    rng: np.random.Generator,
    tuning: NormalisedTuning,
) -> Asking[tuple[SolvedLayer, NormalisedRounds]]:
    """Go on from the heads: values, scores, eps."""
    frame = heads.frame
    one_hot = yield from find_one_hot(heads, rng, tuning.one_hot)
    offsets = yield from find_values(heads, one_hot, rng, tuning.values)
    spaces = read_values(heads, offsets, tuning.values)
    values = open_values(frame, spaces, tuning.scores)
    if tuning.scores.dense * values.keys() < values.most_keys():
        share = one_hot.share
        offsets = yield from find_whole_values(heads, offsets, share, rng, tuning.values)
        spaces = read_values(heads, offsets, tuning.values)
        values = open_values(frame, spaces, tuning.scores)
    if values.keys() < 1:
        raise too_few(frame)
    lengths = yield from find_lengths(frame, values, one_hot, rng, tuning.scores)
    tokens = ScoreTokens.drawn(frame.dim, lengths, rng)
    keys = yield from find_columns(frame, spaces, tokens, rng, tuning.scores)
    columns = read_columns(frame, spaces, keys, tuning.scores)
    rows = yield from find_rows(columns, tokens, rng, tuning.scores)
    scores = read_rows(frame, columns, tokens, rows, tuning.scores)
    polish = None
    if tuning.polish.asked and spaces.values is None:
        polish = yield from find_polish(columns, tokens, scores, tuning.polish)
    if polish is not None:
        spaces = polished_spaces(frame, spaces, polish)
        columns = read_columns(frame, spaces, keys, tuning.scores, columns)
        scores = read_rows(frame, columns, tokens, rows, tuning.scores)
    eps = yield from find_eps(frame, rng, tuning.eps)
    asked = NormalisedRounds(*before, offsets, tokens, keys, rows, polish, eps)
    return layer_of(heads, (spaces, columns), (tokens, scores), eps, tuning), asked
