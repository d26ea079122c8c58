"""A real MLServer on loopback, serving the head of examples/mlserver."""

import shutil

import numpy as np
import pytest

import unsoftmax as us
from tests.oracles.servers import DIM, EXAMPLE, MLSERVER, head, learned_across_a_kill, mlserver

pytestmark = pytest.mark.skipif(not MLSERVER, reason="MLSERVER names no installed mlserver")
pytest.importorskip("httpx", reason="the extra http")


@pytest.fixture
def server(tmp_path):
    running = mlserver(shutil.copytree(EXAMPLE, tmp_path / "served"))
    running.serve_head(head(0))
    yield running
    running.kill()


def test_a_served_head_is_recovered(server):
    oracle = us.oracles.from_url(server.url)
    assert oracle.dim == DIM
    assert not oracle.signature.binary
    recovery = us.learn(oracle, us.learners.ExactHead(DIM, biases=True), workers=4, batch=16)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)
    assert not oracle.signature.binary  # asked for, and never given


def test_answers_that_are_not_finite_and_models_that_are_not_there(server):
    oracle = us.oracles.from_url(server.url)
    assert np.isnan(oracle(np.full((1, 1, DIM), np.nan))).all()
    broken = lambda X: oracle(X / np.zeros(()) if len(X[0]) > 1 else X)  # noqa: E731
    with np.errstate(all="ignore"), pytest.raises(us.OracleError, match="nan"):
        us.learn(broken, us.learners.ExactHead(DIM), retries=2)
    with pytest.raises(us.OracleError, match="answered 404"):
        us.oracles.from_url(f"{server.root}/models/absent")


def test_a_server_that_is_killed_and_restarted_mid_run(server):
    learned_across_a_kill(server)


def test_a_run_goes_on_with_the_restarted_server_and_not_with_another_model(server, tmp_path):
    learner, ledger = us.learners.ExactHead(DIM, biases=True), tmp_path / "ledger.sqlite"
    oracle = us.oracles.from_url(server.url)
    with pytest.raises(us.BudgetExceeded):
        us.learn(oracle, learner, ledger=ledger, budget=150)
    server.kill()
    with pytest.raises(us.OracleError):
        us.learn(oracle, learner, ledger=ledger, retries=1)
    server.serve_head(head(1))
    with pytest.raises(us.LedgerMismatch):
        us.learn(us.oracles.from_url(server.url), learner, ledger=ledger)
    server.kill()
    server.serve_head(head(0))
    recovery = us.learn(us.oracles.from_url(server.url), learner, ledger=ledger)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)
