"""The example that recovers a trained head from ids, at a vocabulary that is cut."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.cli.minilm import minilm_head
from unsoftmax.theory import counts

PLACE = Path(__file__).parent.parent / "examples" / "tokens" / "recover_from_ids.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("recover_from_ids", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
