"""A real MLServer on loopback, serving the head of examples/mlserver."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us

MLSERVER = os.environ.get("MLSERVER", "")
pytestmark = pytest.mark.skipif(not MLSERVER, reason="MLSERVER names no installed mlserver")
pytest.importorskip("httpx", reason="the extra http")

EXAMPLE = Path(__file__).parents[2] / "examples" / "mlserver"
DIM = 16


def head(seed):
    rng = np.random.default_rng(seed)
    W, w = rng.standard_normal((DIM, DIM)) / 4, rng.standard_normal(DIM) / 4
    return us.SingleHead(W, rng.standard_normal(DIM), w, 0.5)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """An MLServer process that can be killed and started again at the same address."""

    def __init__(self, folder, target):
        self.folder = folder
        shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
        settings = json.loads((folder / "settings.json").read_text())
        settings |= {"http_port": free_port(), "grpc_port": free_port()}
        (folder / "settings.json").write_text(json.dumps(settings))
        self.root = f"http://127.0.0.1:{settings['http_port']}/v2"
        self.url = f"{self.root}/models/head"
        self.serve(target)

    def serve(self, target):
        np.savez(self.folder / "head.npz", W=target.W, v=target.v, w=target.w, c=target.c)
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [MLSERVER, "start", "."], cwd=self.folder, stdout=log, stderr=log
            )
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.url}/ready", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.1)
        raise AssertionError("MLServer did not start in a minute.")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    running = Server(tmp_path / "served", head(0))
    yield running
    running.kill()


def test_a_served_head_is_recovered(server):
    oracle = us.oracles.from_url(server.url)
    assert oracle.dim == DIM
    recovery = us.learn(oracle, us.learners.ExactHead(DIM, biases=True), workers=4, batch=16)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)


def test_answers_that_are_not_finite_and_models_that_are_not_there(server):
    oracle = us.oracles.from_url(server.url)
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
    with dying_after(us.oracles.from_url(server.url), server, 20) as (oracle, seen):
        patient = us.Retries(tries=12, pause_s=0.2)
        learner = us.learners.ExactHead(DIM, biases=True)
        recovery = us.learn(oracle, learner, batch=8, workers=2, retries=patient)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)
    assert recovery.queries == sum(seen)
    asked_once = recovery.queries - recovery.counts["failed"]
    assert asked_once == (learner.plan().queries or 0) + 32 + recovery.counts.get("again", 0)


def test_a_run_goes_on_with_the_restarted_server_and_not_with_another_model(server, tmp_path):
    learner, ledger = us.learners.ExactHead(DIM, biases=True), tmp_path / "ledger.sqlite"
    oracle = us.oracles.from_url(server.url)
    with pytest.raises(us.BudgetExceeded):
        us.learn(oracle, learner, ledger=ledger, budget=150)
    server.kill()
    with pytest.raises(us.OracleError):
        us.learn(oracle, learner, ledger=ledger, retries=1)
    server.serve(head(1))
    with pytest.raises(us.LedgerMismatch):
        us.learn(us.oracles.from_url(server.url), learner, ledger=ledger)
    server.kill()
    server.serve(head(0))
    recovery = us.learn(us.oracles.from_url(server.url), learner, ledger=ledger)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)
