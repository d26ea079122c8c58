"""Real servers on loopback: processes that can be killed and started again at the same address."""

import json
import os
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

import unsoftmax as us

MLSERVER = os.environ.get("MLSERVER", "")
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
    """A process of one command in a folder, which serves models by name."""

    def __init__(self, folder, command, port, names=("head",), ready=None):
        self.folder, self.command = folder, command
        self.root = f"http://127.0.0.1:{port}/v2"
        self.url = self.url_of(names[0])
        self.ready = ready or [f"{self.url_of(name)}/ready" for name in names]

    def url_of(self, name):
        return f"{self.root}/models/{name}"

    def start(self):
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        for url in self.ready:
            self._wait_for(url)

    def _wait_for(self, url):
        for _ in range(600):
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.1)
        self.kill()
        raise AssertionError("The server did not start in a minute.")

    def serve(self, **arrays):
        np.savez(self.folder / "head.npz", **arrays)
        self.start()

    def serve_head(self, target):
        self.serve(W=target.W, v=target.v, w=target.w, c=target.c)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def mlserver(folder, names=("head",)):
    """Return an MLServer, not yet started, for the models of a folder."""
    settings = json.loads((EXAMPLE / "settings.json").read_text())
    settings |= {"http_port": free_port(), "grpc_port": free_port()}
    (folder / "settings.json").write_text(json.dumps(settings))
    return Server(folder, [MLSERVER, "start", "."], settings["http_port"], names)


@contextmanager
def dying_after(oracle, server, calls):
    """The oracle, whose server is killed after so many calls and comes back a second later."""
    lock, seen = threading.Lock(), []

    def back():
        time.sleep(1)
        server.serve_head(head(0))

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


def learned_across_a_kill(server):
    """Recover the head of a server that dies at its 20th call: nothing is paid twice."""
    with dying_after(us.oracles.from_url(server.url), server, 20) as (oracle, seen):
        patient = us.Retries(tries=12, pause_s=0.2)
        learner = us.learners.ExactHead(DIM, biases=True)
        recovery = us.learn(oracle, learner, batch=8, workers=2, retries=patient)
    assert us.equivalent(recovery.model, head(0), rtol=1e-10)
    assert recovery.queries == sum(seen)
    asked_once = recovery.queries - recovery.counts["failed"]
    assert asked_once == (learner.plan().queries or 0) + 32 + recovery.counts.get("again", 0)
