"""The example that recovers a trained head from ids, at a vocabulary that is cut."""

import numpy as np
import pytest

import unsoftmax as us
from tests.scripts import script
from unsoftmax.cli.minilm import minilm_head
from unsoftmax.theory import counts


@pytest.fixture(scope="module")
def example():
    return script("tokens/recover_from_ids")


@pytest.fixture(scope="module")
def layer_example():
    return script("tokens/layer_from_ids")


def test_answers_are_those_of_the_head(example):
    table, head = example.real_table(50), minilm_head(0, 0)
    ids = np.random.default_rng(0).integers(50, size=(20, 7))
    np.testing.assert_allclose(example.endpoint(head, table)(ids), head(table[ids]), atol=1e-14)


def test_a_trained_head_is_recovered_without_its_table(example, trials, evidence):
    count = trials(200, 6000)
    answer = example.endpoint(minilm_head(0, 0), example.real_table(count))
    found = us.learn(us.oracles.from_ids(answer, count), us.learners.TokenHead(vocabulary=count))
    assert found.model.rank == 32
    bound = counts.token_head(count, 32)
    assert found.queries <= (1.6 if count < 1000 else 1.1) * bound
    ids = np.random.default_rng(1).integers(count, size=(200, 40))
    missed = float(np.abs(found.model(ids) - answer(ids)).max())
    assert missed < 1e-12
    evidence(
        f"MiniLM's head 0 from ids, {count} of its vocabulary, table unknown",
        queries=found.queries,
        predictions_off_by_at_most=missed,
    )


@pytest.mark.claimed
def test_the_whole_example(example, capsys):
    example.main(2000, 0)
    said = capsys.readouterr().out
    assert "rank 32" in said
    assert "Table known: 28," in said


@pytest.mark.claimed
def test_twelve_trained_heads_behind_their_table(example, evidence):
    """One at a time, from one number: head 2, whose weights are nearly 0 or 1, takes more."""
    table = example.real_table(6000)
    over, off = {}, {}
    span = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)[2][:383]
    for k in range(12):
        truth = minilm_head(0, k)
        target = us.oracles.from_ids(example.endpoint(truth, table), len(table))
        found = us.learn(target, us.learners.LowRankHead(384, table=table))
        over[k] = (found.queries - 32) / counts.table_head(383, 32)
        missed = np.linalg.norm(span @ (found.model.W - truth.W) @ span.T)
        assert missed <= found.certificate.errors["W"]
        off[k] = float(missed / np.linalg.norm(truth.W))
    evidence(
        "MiniLM's twelve heads of layer 0 one by one from ids, 6000 of its vocabulary, table known",
        queries_over_the_count=sorted(over.values())[9],
        at_worst=max(over.values()),
        W_off_by=sorted(off.values())[9],
        W_at_worst=max(off.values()),
    )
    assert sorted(over.values())[9] <= 1.25
    assert sorted(off.values())[9] <= 1e-10


def test_the_layers_heads_are_compared_on_the_span(layer_example):
    table = layer_example.real_table(500)
    layer = layer_example.minilm_layer(0)
    for missed in layer_example.misses(layer, layer, table).values():
        assert missed == (0.0, 0.0)


@pytest.mark.claimed
def test_a_trained_layer_is_recovered_from_ids(layer_example, evidence):
    found, heads = layer_example.recovered(6000)
    W = sorted(one.W for one in heads.values())
    evidence(
        "MiniLM's layer 0 from ids, 6000 of its vocabulary, table known",
        queries=found.queries,
        M_off_by_at_most=max(one.M for one in heads.values()),
        W_of_eleven_heads=W[10],
        W_of_the_saturated_one=W[11],
    )
    assert sorted(heads) == list(range(12))
    assert found.queries <= 3000
    assert max(one.M for one in heads.values()) <= 1e-9
    assert W[10] <= 1e-6
    assert W[11] <= 1e-6
