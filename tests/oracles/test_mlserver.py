"""A real MLServer on loopback, serving the head of examples/mlserver."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import unsoftmax as us
from tests.oracles.mlserver_process import EXAMPLE, MLSERVER, Server

pytestmark = pytest.mark.skipif(not MLSERVER, reason="MLSERVER names no installed mlserver")
pytest.importorskip("httpx", reason="the extra http")

DIM = 16


def head(seed):
    rng = np.random.default_rng(seed)
    W, w = rng.standard_normal((DIM, DIM)) / 4, rng.standard_normal(DIM) / 4
    return us.SingleHead(W, rng.standard_normal(DIM), w, 0.5)


class HeadServer(Server):
    """Serves the example's runtime with a head of ours."""

    def __init__(self, folder, target):
        shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
        self.target = target
        super().__init__(folder)

    def start(self):
        head = self.target
        np.savez(self.folder / "head.npz", W=head.W, v=head.v, w=head.w, c=head.c)
        super().start()

    def serve(self, target):
        self.target = target
        self.start()


@pytest.fixture
def server(tmp_path):
    running = HeadServer(tmp_path / "served", head(0))
    yield running
    running.kill()


def test_a_served_head_is_recovered(server):
    oracle = us.oracles.from_url(server.url())
    assert oracle.dim == DIM
    recovery = us.learn(oracle, us.learners.ExactHead(DIM, biases=True), workers=4, batch=16)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)


def test_answers_that_are_not_finite_and_models_that_are_not_there(server):
    oracle = us.oracles.from_url(server.url())
    assert np.isnan(oracle(np.full((1, 1, DIM), np.nan))).all()
    broken = lambda X: oracle(X / np.zeros(()) if len(X[0]) > 1 else X)  # noqa: E731
    with (
        np.errstate(all="ignore"),
        pytest.raises(us.OracleError, match="nan"),
    ):
        us.learn(broken, us.learners.ExactHead(DIM), retries=2)
    with pytest.raises(us.OracleError, match="answered 404"):
        us.oracles.from_url(f"{server.root}/models/absent")


@contextmanager
def dying_after(oracle, server, calls):
    """The oracle, whose server is killed after so many calls and comes back a second later."""
    lock, seen = threading.Lock(), []

    def back():
        time.sleep(1)
        server.serve(head(0))

    thread = threading.Thread(target=back)

    def asked(X):
        with lock:
            seen.append(len(X))
            if len(seen) == calls:
                server.kill()
                thread.start()
        return oracle(X)

    yield asked, seen
    thread.join()


def test_a_server_that_is_killed_and_restarted_mid_run(server):
    with dying_after(us.oracles.from_url(server.url()), server, 20) as (oracle, seen):
        patient = us.Retries(tries=12, pause_s=0.2)
        learner = us.learners.ExactHead(DIM, biases=True)
        recovery = us.learn(oracle, learner, batch=8, workers=2, retries=patient)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)
    assert recovery.queries == sum(seen)
    asked_once = recovery.queries - recovery.counts["failed"]
    assert asked_once == (learner.plan().queries or 0) + 32 + recovery.counts.get("again", 0)


def test_a_run_goes_on_with_the_restarted_server_and_not_with_another_model(server, tmp_path):
    learner, ledger = us.learners.ExactHead(DIM, biases=True), tmp_path / "ledger.sqlite"
    oracle = us.oracles.from_url(server.url())
    with pytest.raises(us.BudgetExceeded):
        us.learn(oracle, learner, ledger=ledger, budget=150)
    server.kill()
    with pytest.raises(us.OracleError):
        us.learn(oracle, learner, ledger=ledger, retries=1)
    server.serve(head(1))
    with pytest.raises(us.LedgerMismatch):
        us.learn(us.oracles.from_url(server.url()), learner, ledger=ledger)
    server.kill()
    server.serve(head(0))
    recovery = us.learn(us.oracles.from_url(server.url()), learner, ledger=ledger)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)
