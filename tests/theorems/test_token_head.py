"""Heads behind a vocabulary: V + r(2V − 1 − r) without a table, D + 1 + r(2D + 1 − r) with one."""

import contextlib

import numpy as np
import pytest

import unsoftmax as us
from tests.behind_vocabularies import Server
from unsoftmax.theory import counts

# (kind, V, rank, scale of W): queries over the count in the median and at worst, logits and
# predictions in the median and at worst
PROMISED = {
    ("plain", 200, 4, 0.5): ((1.3, 1.45), (4e-12, 2e-10), (5e-14, 5e-13)),
    ("plain", 200, 8, 1.0): ((1.4, 1.5), (5e-9, 5e-8), (1e-10, 2e-9)),
    ("plain", 1000, 8, 0.35): ((1.2, 1.3), (1e-11, 6e-11), (6e-13, 2e-12)),
    ("float32 answers", 200, 4, 0.5): ((1.3, 1.45), (2e-4, 4e-3), (1e-5, 2e-4)),
}


@pytest.mark.parametrize("shape", PROMISED, ids=str)
def test_the_function_on_all_sequences_of_ids(shape, trials, evidence):
    kind, V, rank, scale = shape
    tried = trials(2 if V < 1000 else 1, 20)
    over, logits, predicted, broken = [], [], [], 0
    for seed in range(tried):
        server = Server(seed, kind, V, 2 * rank, rank, scale)
        found = us.learn(server, us.learners.TokenHead(vocabulary=V, seed=seed))
        model, errors = found.model, found.certificate.errors
        assert found.evidence.passed
        assert found.queries == server.queries
        assert model.rank == rank
        over.append((server.queries - 32) / counts.token_head(V, rank))
        G = model.rho @ model.x.T
        logits.append(float(np.abs(G - np.diag(G) - server.logits()).max()))
        broken += logits[-1] > errors["G"]
        rng, missed = np.random.default_rng([7, seed]), 0.0
        for length in (1, 2, 5, 30, 200, 800):
            ids = rng.integers(V, size=(60, length))
            apart = np.abs(model(ids) - server.truth(ids))
            rounding = 1e-15 * np.sqrt(length) * np.abs(model.u).max()
            broken += np.sum(apart > model.moved_at_most(ids, errors) + rounding)
            missed = max(missed, float(apart.max()) / float(np.abs(model.u).max()))
        predicted.append(missed)
    assert broken == 0
    for seen, (median, worst) in zip((over, logits, predicted), PROMISED[shape], strict=True):
        assert np.median(seen) <= median
        assert max(seen) <= worst
    evidence(
        f"head behind a vocabulary of {V}, rank {rank}, W times {scale:g}, {kind}",
        trials=tried,
        queries_over_the_count=float(np.median(over)),
        logits_off_by_at_most=max(logits),
        predictions_off_by_at_most=max(predicted),
        bounds_broken=broken,
    )


def test_values_of_two_kinds_are_read_beside_references(trials):
    for seed in range(trials(2, 20)):
        rng = np.random.default_rng([72, seed])
        rho, x = rng.standard_normal((2, 120, 3))
        truth = us.TokenHead(np.where(rng.random(120) < 0.5, 0.3, -0.8), rho, x)
        found = us.learn(us.oracles.from_ids(truth), us.learners.TokenHead(120, seed=seed))
        assert us.equivalent(found.model, truth, rtol=1e-9)
        assert found.queries - 32 <= 1.65 * counts.token_head(120, 3)


@pytest.mark.parametrize("learner", ["LowRankHead", "ExactHead"])
def test_a_known_table_gives_W_on_its_span(learner, trials, evidence):
    tried, over, off = trials(2, 20), [], []
    for seed in range(tried):
        server = Server(seed, ids=200, dim=12, rank=3)
        made = getattr(us.learners, learner)(12, table=server.table, seed=seed)
        found = us.learn(server, made)
        assert found.queries == server.queries <= made.plan().at_most + 32
        over.append((server.queries - 32) / counts.table_head(12, 3))
        off.append(float(np.abs(found.model.W - server.W).max()))
        for name in ("W", "v", "w", "c"):
            true = getattr(server, name)
            apart = np.linalg.norm(getattr(found.model, name) - true)
            assert apart <= found.certificate.errors[name]
        assert found.evidence.passed
    assert max(off) < 1e-9
    evidence(f"{learner} behind a table", trials=tried, W_off_by_at_most=max(off))


def test_a_table_that_lies_in_a_hyperplane(trials):
    """Outputs of a LayerNorm: W counts on the span, and so do predictions."""
    for seed in range(trials(1, 20)):
        server = Server(seed, ids=300, dim=16, rank=4)
        x = server.table - server.table.mean(axis=1, keepdims=True)
        server.table = x / x.std(axis=1, keepdims=True) * 1.3 + 0.2
        found = us.learn(server, us.learners.LowRankHead(16, table=server.table, seed=seed))
        ids = np.random.default_rng(seed).integers(300, size=(200, 9))
        predicted = found.model(server.table[ids])
        np.testing.assert_allclose(predicted, server.truth(ids), rtol=0, atol=1e-9)


def test_positions_that_are_known(trials):
    """Vectors by position and id: W to the last digits that pairs without counts can show."""
    for seed in range(trials(1, 20)):
        server = Server(seed, "positions", ids=200, dim=8, rank=2, scale=0.5)
        table = server.table + server._places[:6, None]
        found = us.learn(server, us.learners.LowRankHead(8, table=table, seed=seed))
        assert np.abs(found.model.W - server.W).max() < 1e-6
        ids = np.random.default_rng(seed).integers(200, size=(200, 6))
        predicted = found.model(table[np.arange(6), ids])
        np.testing.assert_allclose(predicted, server.truth(ids), rtol=0, atol=1e-5)


def test_bounds_of_strong_scores_behind_float32_hold(trials):
    """Where logits are not known to 1 their first order says nothing, and bounds are infinite."""
    broken = 0
    for seed in range(82, trials(84, 282)):
        rng = np.random.default_rng([97, seed])
        V, r = int(rng.choice([20, 40, 80])), int(rng.integers(1, 5))
        u, rho = rng.standard_normal(V), 2 * rng.standard_normal((V, r))
        true = us.TokenHead(u, rho, rng.standard_normal((V, r)))
        oracle = us.oracles.from_ids(lambda ids, true=true: np.float32(true(ids)), V)
        with contextlib.suppress(us.NotIdentifiable):
            found = us.learn(oracle, us.learners.TokenHeadLearner(V, seed=seed))
            errors = found.certificate.errors
            assert errors["G"] <= 1 or errors["G"] == np.inf
            ids = rng.integers(V, size=(500, 5))
            most = found.model.moved_at_most(ids, errors) + 1e-12
            broken += int(np.any(np.abs(found.model(ids) - true(ids)) > most))
    assert broken == 0
