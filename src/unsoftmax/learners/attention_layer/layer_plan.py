"""What recovering a layer takes at most, and about what it takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.head_search import search_cost, unseen_cost
from unsoftmax.learners.attention_layer.search_limits import PLAIN, POSITIONED, Pilots
from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Plan
from unsoftmax.theory import counts
from unsoftmax.validate.conclude import CONFIRMING
from unsoftmax.validate.layer_sequences import LONG, SHORT

# Rounds in which keys and query tokens are asked, each again as often as weights are small.
_KEY_ROUNDS = 14 * (1 + limits.AGAIN)


class LayerCost(NamedTuple):
    """What recovery takes at most, the hold-out apart; named as in a `Plan`."""

    at_most: int
    tokens: int
    rounds: int


def layer_plan(
    dim: int, heads: int, rank: int | None, place: str | None, attempts: int, shares: int
) -> Plan:
    """Say what a layer of so many heads costs at most; what it takes is known only with them.

    Parameters
    ----------
    dim, heads : int
        d, and H at most.
    rank : int, optional
        Of every M_h.
    place : {"none", "post", "pre", "rotary"}, optional
        Where a norm stands, or that there are positions; None if that is found.
    attempts : int
        Searches of a layer without a norm.
    shares : int
        Lengths of tokens in a search by copies.
    """
    d, H, r = dim, heads, max(1, dim // heads) if rank is None else rank
    most_tokens = max(d + 1, LONG.most_tokens(d, *(shape.tokens for shape in SHORT)))
    if place == "rotary":
        cost, longest = _with_positions(d, H, attempts)
        queries = counts.rotary_layer_queries(d, H, H, r)
        biased = counts.rotary_layer_queries(d, H, H, r, biases=True)
        formula = (
            "about 2d + 61 + (H − 1)r + 2⌈d/r⌉(⌈rG/H⌉ + 1) for H heads of rank r with rotary "
            f"positions that share the keys and values of G groups: {queries:,} for {H} of "
            f"rank {r} that share nothing, {biased:,} where keys and queries have biases"
        )
        most_tokens = max(longest, most_tokens)
    elif place == "post":
        cost = _behind(d, H)
        formula = (
            "about d + 24 + rank M + 8H + (r + 2)·d/n + 1.14(d − r − 1), n = (d − H − 1)/H, "
            "for H heads of rank r with exact answers, twice that behind float32: "
            f"{counts.normalised_layer_queries(d, H, r):,} for {H} of rank {r}"
        )
    elif place == "pre":
        cost = _after(d, H)
        formula = (
            "about d + 79 + (⌈rank M/H⌉ + 3)(H + 10) + (r + 4)·d/r + (d − r − 3) for H heads "
            "of rank r with exact answers: "
            f"{counts.prenorm_layer_queries(d, H, r):,} for {H} of rank {r}"
        )
    else:
        plain, behind = _plain(d, H, attempts, shares), _behind(d, H)
        cost = LayerCost(*map(max, plain, behind))
        queries = counts.attention_layer_queries(d, H, r)
        formula = (
            "about d + 76 + (H − 1)(r + 3) + (r + 4)·d/r + (d − r − 3) for H heads of rank r with "
            f"exact answers, twice that behind float32: {queries:,} for {H} of rank {r}"
        )
        if place is None:
            behind_norm = counts.normalised_layer_queries(d, H, r)
            after_norm = counts.prenorm_layer_queries(d, H, r)
            formula += f"; {behind_norm:,} behind a norm, {after_norm:,} after one"
    return Plan(
        queries=None,
        formula=formula,
        longest_token=FARTHEST,
        most_tokens=most_tokens,
        **cost._asdict(),
    )


def _search(d: int, H: int, pilots: Pilots) -> int:
    """Bound one search for heads, query tokens that open one gate, and maps."""
    asked = limits.PILOT_ROUNDS * (pilots.tokens + 2) + 3 * limits.SCORE_PILOTS
    maps = limits.TRIES * (H * d + limits.CHECKED)
    return search_cost(H)[0] + asked + maps + CONFIRMING


def _rounds(attempts: int) -> int:
    """Bound the rounds of so many searches."""
    maps = limits.TRIES * (limits.OFFSET_ROUNDS + 1)
    scores = limits.SCORE_PILOTS + _KEY_ROUNDS
    every = search_cost(0)[1] + 2 * limits.PILOT_ROUNDS + maps + scores + 4
    return 1 + attempts * every + 1 + LONG.most_rounds


def _plain(d: int, H: int, attempts: int, shares: int) -> LayerCost:
    """Bound a layer without a norm, or after one that is found, or searched by copies."""
    scores = (2 + limits.AGAIN) * d * (d + 1)
    search = _search(d, H, PLAIN) + H * d + scores + unseen_cost(H)
    # by copies with a residual and without, of lengths that are more
    soft = 2 * -(-shares // len(limits.SOFT_SHARES)) * np.array(_after(d, H))
    queries = d + 8 + attempts * search + int(soft[0])
    tokens = 2 * max(queries, _behind(d, H).at_most) + attempts * scores + int(soft[1])
    return LayerCost(queries, tokens, _rounds(attempts) + int(soft[2]))


def _with_positions(d: int, H: int, attempts: int) -> tuple[LayerCost, int]:
    """Bound a layer with positions; return the tokens of its longest sequence as well."""
    keys = (1 + limits.AGAIN) * 4 * d * (d + 1)
    # as many searches again, for biases
    queries = d + 8 + 2 * attempts * (_search(d, H, POSITIONED) + keys)
    longest = max(limits.LONGEST, limits.LONGEST_COARSE) + d + 1
    tokens = 2 * queries + 2 * attempts * keys * longest
    return LayerCost(queries, tokens, _rounds(2 * attempts) + LONG.most_rounds), longest


def _behind(d: int, H: int) -> LayerCost:
    """Bound a layer behind a norm.

    Every search may ask offsets in all directions, keys one by one for all query tokens, and as
    many additional tokens as there are corners.
    """
    lengths, tries = len(limits.PLANE_LONGER), limits.TRIES_BEHIND
    patterns = lengths * (limits.PLANE_QUERIES + limits.PLANE_ROUNDS * limits.PLANE_MORE)
    gates = limits.PILOT_ROUNDS * (PLAIN.tokens + 2)
    offsets = (1 + limits.FLIP_ROUNDS) * limits.TRIES * min(H, d) * d
    keys = (2 + limits.AGAIN) * (d + 1) * d + 2 * limits.SCORE_PILOTS + 2 * d
    search = patterns + gates + offsets + keys + d + min(H, d) + limits.EPS_TOKENS + CONFIRMING
    queries = d + 16 + 2 * limits.SINGLE_PAIRS + tries * search
    maps = limits.TRIES * limits.OFFSET_ROUNDS * (1 + limits.FLIP_ROUNDS)
    asked = 2 * limits.PILOT_ROUNDS + maps + limits.SCORE_PILOTS + _KEY_ROUNDS + 2
    asked += lengths * (limits.PLANE_ROUNDS + 1) + limits.EPS_TOKENS
    rounds = 11 + tries * asked + LONG.most_rounds + 1
    tokens = 2 * queries + tries * (4 + limits.AGAIN) * (d + 1) ** 2
    return LayerCost(queries, tokens, rounds)


def _after(d: int, H: int) -> LayerCost:
    """Bound a layer after a norm."""
    shares, tries = len(limits.SOFT_SHARES), limits.BALL_TRIES
    beside = limits.SOFT_COORDINATES + limits.SOFT_SPARE_TOKENS
    heads = shares * (limits.SOFT_FIRST + 2 * (H + beside + limits.SOFT_TESTED_BY))
    maps = heads + (1 + limits.SOFT_AGAIN) * d * (H + beside)
    scores = (2 + limits.AGAIN) * d * (d + 1) + 3 * limits.SCORE_PILOTS
    queries = d + 14 + limits.BALL_RUNGS + 2 * limits.BALL_REFINED
    queries += tries * (maps + scores + CONFIRMING)
    tokens = 2 * queries + tries * (max(map(sum, limits.SOFT_COPIES)) * maps + scores)
    tokens += tries * CONFIRMING * max(shape.tokens for shape in SHORT)
    offsets = (2 + limits.SOFT_AGAIN) * (1 + int(np.log2(d + 1)))
    searched = shares * (1 + int(np.log2(H + 2))) + offsets
    asked = limits.SCORE_PILOTS + _KEY_ROUNDS + 4
    return LayerCost(queries, tokens, 6 + tries * (searched + asked) + 1 + LONG.most_rounds)
