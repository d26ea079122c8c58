"""Step 6 behind a LayerNorm: the scores of all other query tokens, one query each and a few more.

With the values known one sequence has n = ⌊(d − 2)/H⌋ keys. The column space Kt_h has r_h ≥ n
directions, so a block of keys A leaves x = Kt_hᵀA_h b̃ open in r_h − n: x = x0 + N t, N the null
space of AᵀKt_h. Additional tokens, affine combinations Σ_j c_j b̃_j of all tokens beside other
blocks, make one linear system of the t's. Its condition is known before anything is asked.

Coarse answers do not bear that: with them, or where it is cheaper, every token is asked with
⌈r_h/n⌉ blocks instead (`RowRound.whole`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.attention_layer.normalised_keys import KeyRound, ask_keys, weights_of
from unsoftmax.learners.attention_layer.normalised_scores import ScoreColumns, ScoreTokens
from unsoftmax.learners.attention_layer.normalised_singles import NormalisedFrame
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedScoresTuning
from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Array
from unsoftmax.solve.key_blocks import KeyAims, chosen_keys


@dataclass(frozen=True, slots=True)
class RowRound:
    """What was asked for the rows.

    Attributes
    ----------
    keyed : KeyRound
        Tokens by their block; the first of each block are corners, the rest additional.
    corners : tuple of int
        How many of each block's tokens are corners.
    whole : bool
        Whether all blocks were asked with all other corners instead, and no additional tokens.
    """

    keyed: KeyRound
    corners: tuple[int, ...]
    whole: bool = False


def find_rows(
    columns: ScoreColumns,
    tokens: ScoreTokens,
    rng: np.random.Generator,
    tuning: NormalisedScoresTuning,
) -> Asking[RowRound]:
    """Choose blocks of keys, and additional tokens for a well conditioned system, and ask."""
    rest = tokens.tokens[len(columns.scores[0]) :]
    if not len(rest):
        return RowRound(KeyRound((), ()), ())
    n = columns.values.keys(tuning.share)
    rank = max(base.shape[1] for base in columns.bases)
    lacking = max(0, rank - n)
    # an additional token tells nothing of corners that were asked with its own keys
    blocks = min(tuning.blocks, len(rest) + tuning.fewest_extras)
    extras = int(np.ceil(tuning.extras * lacking * len(rest) / min(n, blocks)))
    extras = max(extras, tuning.fewest_extras)
    whole = -(-rank // n)
    if tuning.share > 1 or not lacking or (whole - 1) * len(rest) <= extras:
        seen = KeyAims(columns.values.frames(), [base for base in columns.bases if base.shape[1]])
        keys = _chosen(seen, columns, tokens, (whole, n), rng=rng, tuning=tuning)
        keyed = yield from ask_keys(KeyRound(keys, (rest,) * whole), "rows")
        return RowRound(keyed, (), whole=True)
    aims = [base.T for base in columns.bases if base.shape[1] >= n]
    seen = KeyAims([*columns.values.frames(), *aims], [])
    keys = _chosen(seen, columns, tokens, (blocks, n), rng=rng, tuning=tuning)
    drawn = _best_drawn(rest, keys, extras, columns, tokens, rng=rng, tuning=tuning)
    keyed = yield from ask_keys(drawn.keyed, "rows")
    return RowRound(keyed, drawn.corners)


def _chosen(
    aims: KeyAims,
    columns: ScoreColumns,
    tokens: ScoreTokens,
    size: tuple[int, int],
    *,
    rng: np.random.Generator,
    tuning: NormalisedScoresTuning,
) -> tuple[Array, ...]:
    """Choose keys whose weights, and whose part of every column space, are told apart well."""
    chosen = chosen_keys(aims, *size, rng, tuning.keys)
    # keys along the column spaces have larger logits than others: lengths follow what is known
    pairs = zip(columns.scores, columns.bases, strict=True)
    logits = [
        np.sqrt(np.mean((scores @ base.T @ chosen.reshape(-1, chosen.shape[2]).T) ** 2))
        for scores, base in pairs
    ]
    wanted = np.hypot(tuning.logit, tuning.bias) / max(logits)
    return tuple(tokens.lengths.on_grid(wanted * block) for block in chosen)


def _best_drawn(
    rest: Array,
    keys: tuple[Array, ...],
    extras: int,
    columns: ScoreColumns,
    tokens: ScoreTokens,
    *,
    rng: np.random.Generator,
    tuning: NormalisedScoresTuning,
) -> RowRound:
    """Draw additional tokens until the system of what is open is well conditioned."""
    best, least = None, np.inf
    for _ in range(tuning.tries):
        drawn = _drawn(rest, keys, extras, tokens, rng)
        condition = _condition(drawn, columns, tokens)
        if best is None or condition < least:
            best, least = drawn, condition
        if condition <= tuning.condition:
            break
    assert best is not None
    return best


def _drawn(
    rest: Array,
    keys: tuple[Array, ...],
    extras: int,
    tokens: ScoreTokens,
    rng: np.random.Generator,
) -> RowRound:
    d = rest.shape[1]
    size = np.linalg.norm(tokens.tokens[0])
    further = tokens.lengths.on_grid(size / np.sqrt(d) * rng.standard_normal((extras, d)))
    corners = np.array_split(rest, len(keys))
    additional = np.array_split(further, len(keys))[::-1]
    asked = tuple(np.vstack(pair) for pair in zip(corners, additional, strict=True))
    return RowRound(KeyRound(keys, asked), tuple(len(own) for own in corners))


@dataclass(frozen=True, slots=True)
class OpenScores:
    """One head's system of what single queries leave open.

    Attributes
    ----------
    system : ndarray
        Coefficients of all t's in the readings of the additional tokens.
    null : tuple of ndarray, shape (r, r − n)
        N of every block.
    """

    system: Array
    null: tuple[Array, ...]


def _open_scores(asked: RowRound, basis: Array, tokens: ScoreTokens, known: int) -> OpenScores:
    seen = [keys @ basis for keys in asked.keyed.blocks]
    null = []
    for one in seen:
        right = np.linalg.svd(one)[2]
        null.append(right[min(one.shape) :].T)
    rows = []
    for keys, own, corners in zip(seen, asked.keyed.tokens, asked.corners, strict=True):
        for c in tokens.lifted(own[corners:])[:, known:]:
            parts = np.split(c, np.cumsum(asked.corners)[:-1])
            rows.append(
                np.hstack([np.kron(part, keys @ N) for part, N in zip(parts, null, strict=True)])
            )
    width = sum(n * N.shape[1] for n, N in zip(asked.corners, null, strict=True))
    return OpenScores(np.vstack(rows) if rows else np.zeros((0, width)), tuple(null))


def _condition(asked: RowRound, columns: ScoreColumns, tokens: ScoreTokens) -> float:
    """Return the worst condition of any head's system; 1 where nothing is open."""
    known, worst = len(columns.scores[0]), 1.0
    for basis in columns.bases:
        system = _open_scores(asked, basis, tokens, known).system
        if not system.shape[1]:
            continue
        s = np.linalg.svd(system, compute_uv=False)
        full = len(s) == system.shape[1] and s[-1] > 0
        worst = max(worst, float(s[0] / s[-1]) if full else np.inf)
    return worst


def read_rows(
    frame: NormalisedFrame,
    columns: ScoreColumns,
    tokens: ScoreTokens,
    asked: RowRound,
    tuning: NormalisedScoresTuning,
) -> tuple[Array, ...]:
    """Return Kt_hᵀA_h b̃ (d + 1, r_h) of every head, for all corners of the simplex."""
    keyed = asked.keyed
    logits = [
        weights_of(frame, columns.values, keys, own, y).logits(tuning.least_weight)
        for keys, own, y in zip(keyed.blocks, keyed.tokens, keyed.y, strict=True)
    ]
    return tuple(
        np.vstack(
            [
                scores,
                _completed(asked, tokens, basis, scores, [block[:, h] for block in logits]),
            ]
        )
        for h, (basis, scores) in enumerate(zip(columns.bases, columns.scores, strict=True))
    )


def _completed(
    asked: RowRound, tokens: ScoreTokens, basis: Array, scores: Array, logits: list[Array]
) -> Array:
    """Return one head's scores of the corners that were asked here."""
    known = len(scores)
    if asked.whole:
        seen = np.vstack(asked.keyed.blocks) @ basis
        return np.asarray(np.linalg.lstsq(seen, np.hstack(logits).T, rcond=None)[0].T)
    if not asked.corners:
        return np.zeros((0, basis.shape[1]))
    open_scores = _open_scores(asked, basis, tokens, known)
    keyed = asked.keyed
    parts = [
        np.linalg.lstsq(keys @ basis, own[:corners].T, rcond=None)[0].T
        for keys, own, corners in zip(keyed.blocks, logits, asked.corners, strict=True)
    ]
    if not open_scores.system.shape[1]:
        return np.vstack(parts)
    every = np.vstack([scores, *parts])
    missed = [
        (own[corners:] - tokens.lifted(of[corners:]) @ every @ (keys @ basis).T).ravel()
        for keys, of, own, corners in zip(
            keyed.blocks, keyed.tokens, logits, asked.corners, strict=True
        )
    ]
    t = np.linalg.lstsq(open_scores.system, np.concatenate(missed), rcond=None)[0]
    cuts = np.cumsum([n * N.shape[1] for n, N in zip(asked.corners, open_scores.null, strict=True)])
    each = zip(parts, np.split(t, cuts[:-1]), open_scores.null, strict=True)
    return np.vstack([part + one.reshape(len(part), N.shape[1]) @ N.T for part, one, N in each])
