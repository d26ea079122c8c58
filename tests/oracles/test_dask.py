"""Replicas on a real Dask cluster of two processes on this machine."""

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.test_many import layer
from tests.oracles.dask_targets import HEAD, Replica, busy_once

distributed = pytest.importorskip("distributed", reason="the extra dask")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as connected,
    ):
        yield connected


def asked(folder):
    return {path.name: list(map(int, path.read_text().split())) for path in folder.glob("*.txt")}


def test_calls_are_shared_by_all_workers(client, tmp_path):
    oracle = us.oracles.on_dask(client, Replica(tmp_path))
    recovery = us.learn(oracle, us.learners.ExactHead(4), batch=1, workers=4)
    assert us.equivalent(recovery.model, HEAD)
    calls = asked(tmp_path)
    assert len(calls) == 2
    assert sum(map(sum, calls.values())) == recovery.queries


def test_a_worker_that_is_killed_loses_nothing(client, tmp_path):
    oracle = us.oracles.on_dask(client, Replica(tmp_path, dies_at=9))
    recovery = us.learn(oracle, us.learners.ExactHead(4), batch=1, workers=2)
    assert us.equivalent(recovery.model, HEAD)
    assert len(asked(tmp_path)) >= 2
    # Dask makes the calls of the dead worker again, unseen by the runner: at most both in flight
    assert recovery.queries < sum(map(sum, asked(tmp_path).values())) <= recovery.queries + 2


def test_errors_of_a_replica_arrive(client, tmp_path):
    waiting = us.oracles.on_dask(client, busy_once(str(tmp_path)))
    recovery = us.learn(waiting, us.learners.ExactHead(4))
    assert us.equivalent(recovery.model, HEAD)
    assert any("put off 1 call" in note for note in recovery.notes)
    with pytest.raises(us.OracleError):
        us.learn(us.oracles.on_dask(client, np.linalg.inv), us.learners.ExactHead(4), retries=1)


def test_answers_at_all_positions_where_the_oracle_has_them(client):
    X = np.random.default_rng(0).standard_normal((2, 3, 4))
    blocks = us.Stack([us.LayerNorm(np.ones(4), np.arange(4.0), 1e-5)])
    np.testing.assert_array_equal(us.oracles.on_dask(client, blocks).all(X), blocks.all(X))
    np.testing.assert_array_equal(us.oracles.on_dask(client, HEAD).all(X), HEAD(X))


def test_what_is_no_client():
    with pytest.raises(TypeError, match="must be a dask"):
        us.oracles.on_dask("tcp://127.0.0.1:1", HEAD)


# -- many targets


def test_many_targets_on_a_cluster(client, tmp_path):
    targets = layer()
    found = us.learn_many(targets, us.learners.ExactHead(4), client, tmp_path)
    assert list(found) == list(targets)
    assert [*found.refused] == ["no head"]
    for name, recovery in found.recovered.items():
        assert us.equivalent(recovery.model, targets[name])
        assert (tmp_path / name.replace(" ", "_") / "ledger.sqlite").exists()
