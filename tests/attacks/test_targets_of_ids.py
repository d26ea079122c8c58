"""Targets of ids that are not what they are taken for, and ids that are alike."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from tests.behind_vocabularies import Server

REFUSED = {
    "BOS": "COPIES_DIFFER",
    "EOS": "COPIES_DIFFER",
    "positions": "COPIES_DIFFER",
    "turned": "IDS_ORDER_MATTERS",
    "cut on the right": "IDS_ORDER_MATTERS",
    "cut on the left": "IDS_ORDER_MATTERS",
    "noisy": "ANSWERS_VARY",
    "two heads": ("LOGITS_CONTRADICT", "MORE_THAN_PLANNED", "BAGS_MISSED"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_head_of_ids_is_refused_by_name(kind, trials, evidence):
    tried = trials(1, 100)
    for seed in range(tried):
        server = Server(seed, kind, ids=40)
        with pytest.raises(us.ModelMismatch) as refusal:
            us.learn(server, us.learners.TokenHead(40, seed=seed))
        assert refusal.value.reason in REFUSED[kind]
        if kind != "two heads":
            assert server.queries <= 40 + 16
    evidence(f"a target of ids that is no head: {kind}", trials=tried, refused=tried)


@pytest.mark.parametrize("kind", ["other tokenizer", "BOS", "positions"])
def test_a_table_that_is_not_the_targets_is_refused(kind, trials):
    for seed in range(trials(1, 100)):
        server = Server(seed, kind, ids=80)
        with pytest.raises(us.ModelMismatch) as refusal:
            us.learn(server, us.learners.LowRankHead(8, table=server.table, seed=seed))
        assert refusal.value.reason in ("NOT_OF_THE_TABLE", "COPIES_DIFFER", "VALUES_ALIKE")
        assert server.queries <= 9 + 16


@pytest.mark.parametrize("kind", ["other tokenizer", "alias", "huge rows"])
def test_ids_may_be_alike_renamed_or_enormous(kind, trials, evidence):
    """All is true of the ids as they are answered; what cannot be read is said."""
    tried, broken = trials(1, 100), 0
    for seed in range(tried):
        server = Server(seed, kind, ids=60)
        found = us.learn(server, us.learners.TokenHead(60, seed=seed))
        rng = np.random.default_rng(seed)
        for length in (1, 2, 7, 40):
            ids = rng.integers(60, size=(50, length))
            y = server.truth(ids)
            most = found.model.moved_at_most(ids, found.certificate.errors)
            broken += np.sum(np.abs(found.model(ids) - y) > most + 1e-14 * np.abs(y).max())
        if kind == "huge rows":
            assert "of 60 ids could not be read" in " ".join(found.notes)
        else:
            assert found.certificate.errors["G"] < 1e-6
    assert broken == 0
    evidence(f"ids that are hard to tell: {kind}", trials=tried, bounds_broken=broken)


def test_values_that_are_all_alike_are_refused():
    server = Server(0)
    server.v = np.zeros(8)
    with pytest.raises(us.NotIdentifiable) as refusal:
        us.learn(server, us.learners.TokenHead(60))
    assert refusal.value.reason == "VALUES_ALIKE"


def test_a_rank_above_the_given_one_is_refused():
    with pytest.raises(us.ModelMismatch, match="rank 3, above rank = 2"):
        us.learn(Server(0), us.learners.TokenHead(60, rank=2))
    found = us.learn(Server(0), us.learners.TokenHead(60, rank=5))
    assert found.model.rank == 3


def test_weights_that_are_0_or_1_everywhere_are_refused():
    rng = np.random.default_rng(4)
    rho, x = rng.standard_normal((2, 40, 2))
    hard = us.TokenHead(rng.standard_normal(40), 1e6 * rho, x)
    with pytest.raises((us.ModelMismatch, us.NotIdentifiable)) as refusal:
        us.learn(us.oracles.from_ids(hard), us.learners.TokenHead(40))
    reasons = ("BAGS_SATURATED", "BAGS_MISSED", "MORE_THAN_PLANNED")
    assert getattr(refusal.value, "reason", "") in reasons


def test_a_table_of_too_few_ids_is_refused():
    server = Server(0, ids=11)
    with pytest.raises(us.NotIdentifiable) as refusal:
        us.learn(server, us.learners.LowRankHead(8, table=server.table))
    assert refusal.value.reason == "TABLE_TOO_SMALL"
    assert server.queries == 0
