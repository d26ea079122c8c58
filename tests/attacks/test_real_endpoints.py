"""What real endpoints serve is recovered or refused in words: stored weights, short floats."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import unsoftmax as us
from tests.heads import errors, several

Learner = us.learners.MultiHeadLearner


def share_of_the_bounds(recovery, target):
    """Return the largest error, as a share of what the certificate allows."""
    apart, bounds = errors(recovery.model, target), recovery.certificate.errors
    off = {name: apart[f"|{name}|"] for name in "Wvw"}
    off["c"] = abs(recovery.model.c - target.c)
    return max((off[name] / bounds[name] for name in off if off[name]), default=0.0)


# -- low rank, and what storing a matrix adds to it

STORED = {"float32": np.float32, "float16": np.float16}


def tail_of(kind, W, rng):
    """Return something of rank more than W's, of norm 1 for each head."""
    E = rng.standard_normal(W.shape)
    if kind == "rank one":
        E = rng.standard_normal((*W.shape[:2], 1)) * rng.standard_normal((len(W), 1, W.shape[1]))
    elif kind == "one entry":
        E = np.zeros(W.shape)
        E[:, 0, 0] = 1.0
    elif kind == "one column":
        E[:, :, 1:] = 0.0
    return E / np.linalg.norm(E, axis=(1, 2), keepdims=True)


def low_rank(kind, seed):
    """Draw heads of low rank and a tail of 1e-15 to 1e-6, or as they are stored; and the rank."""
    rng = np.random.default_rng([seed, 13])
    heads, dim, biases = int(rng.integers(1, 5)), int(rng.integers(4, 17)), bool(rng.integers(2))
    rank = int(rng.integers(1, max(2, dim // 2 + 1)))
    drawn = several(heads, dim, seed, rank, biases)
    if kind in STORED:
        W = drawn.W.astype(STORED[kind]).astype(np.float64)
    else:
        size = 10.0 ** rng.uniform(-15, -6) * np.linalg.norm(drawn.W, axis=(1, 2), keepdims=True)
        W = drawn.W + size * tail_of(kind, drawn.W, rng)
    return us.MultiHead(W, drawn.v, drawn.w, drawn.c), rank, biases


@pytest.mark.parametrize("given", [False, True], ids=["rank found", "rank given"])
@pytest.mark.parametrize("kind", ["noise", "rank one", "one entry", "one column", *STORED])
def test_a_tail_beside_low_rank_is_read_or_in_the_bound(kind, given, trials, evidence):
    count, worst, refused = trials(8, 200), 0.0, Counter()
    for seed in range(count):
        target, rank, biases = low_rank(kind, seed)
        learner = Learner(
            target.dim, target.H + 3, biases=biases, rank=rank if given else None, seed=seed
        )
        try:
            recovery = us.learn(lambda X, target=target: target(X), learner)
        except us.ModelMismatch as error:
            refused[str(error)[:60]] += 1
            continue
        worst = max(worst, share_of_the_bounds(recovery, target))
        assert worst <= 1, (seed, recovery.notes)
        assert recovery.evidence.passed
    assert refused.total() <= count / 200, refused
    evidence(
        f"MultiHeadLearner, low rank and a tail ({kind}), rank {'given' if given else 'found'}, "
        f"{count} targets",
        error_over_bound=f"{worst:.2f}",
        refused=refused.total(),
    )


def test_what_a_stored_matrix_adds_to_its_rank_is_said_where_the_rank_was_given():
    target, rank, biases = low_rank("float32", 3)
    learner = Learner(target.dim, target.H + 3, biases=biases, rank=rank)
    recovery = us.learn(lambda X: target(X), learner)
    assert any("a tail that answers show" in note for note in recovery.notes)
    assert errors(recovery.model, target)["W"] <= 1e-10


def test_exact_ranks_cost_no_more_than_their_parameters(trials):
    for seed in range(trials(2, 50)):
        for rank in (8, 16):
            target = several(2, 96, seed, rank)
            recovery = us.learn(lambda X, target=target: target(X), Learner(96, 4, seed=seed))
            assert recovery.queries - 32 <= 1.15 * 2 * (rank * (2 * 96 - rank) + 96)
            assert errors(recovery.model, target)["W"] <= 1e-8
