"""Many targets: a ledger for each, and one table."""

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import unsoftmax as us

HEAD = us.SingleHead(np.arange(16.0).reshape(4, 4) / 8, [1.0, -1.0, 2.0, 0.5])


def layer():
    rng = np.random.default_rng(1)
    heads = {
        f"head {h}": us.SingleHead(rng.standard_normal((4, 4)), rng.standard_normal(4))
        for h in range(3)
    }
    return {**heads, "no head": us.SingleHead(np.eye(4), np.zeros(4))}


class Client:
    """What is needed of a cluster's client: jobs become futures, which are let go in the end."""

    def __init__(self):
        self.left: list[Any] = []

    def submit(self, job, pure):
        assert not pure
        future: Future[Any] = Future()
        future.set_result(job())
        return future

    def cancel(self, futures):
        self.left += futures


@pytest.mark.parametrize("client", [None, Client()])
def test_many_targets_have_a_ledger_each_and_one_table(client, tmp_path):
    targets = layer()
    found = us.learn_many(targets, us.learners.ExactHead(4), client, tmp_path)
    assert list(found) == list(targets)
    assert [*found.refused] == ["no head"]
    for name, recovery in found.recovered.items():
        assert found[name] is recovery
        assert us.equivalent(recovery.model, targets[name])
        again = us.Recovery.load(tmp_path / name.replace(" ", "_"))
        assert us.equivalent(again.model, recovery.model, rtol=0)
        assert (tmp_path / name.replace(" ", "_") / "ledger.sqlite").exists()
    lines = str(found).splitlines()
    assert len(lines) == len(found) + 1 == 5
    assert "NotIdentifiable" in lines[-1]
    assert repr(found) == "Recoveries(3 of 4 targets recovered)"
    assert client is None or len(client.left) == 4


def test_many_targets_may_have_learners_of_their_own():
    targets = {"low": HEAD, "exact": HEAD}
    kinds: dict[str, Any] = {"low": us.learners.LowRankHead(4), "exact": us.learners.ExactHead(4)}
    found = us.learn_many(targets, kinds.__getitem__, holdout=0)
    assert [row["refused"] for row in found.rows()] == ["unchecked"] * 2
    assert {x.learner["learner"] for x in found.recovered.values()} == {"LowRankHead", "ExactHead"}


def test_names_that_are_one_folder(tmp_path):
    with pytest.raises(ValueError, match="names that are one folder"):
        us.learn_many({"a b": HEAD, "a_b": HEAD}, us.learners.ExactHead(4), folder=tmp_path)
    with pytest.raises(ValueError, match="no target"):
        us.learn_many({}, us.learners.ExactHead(4))
