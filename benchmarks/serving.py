"""Real servers on loopback for benchmarks: the examples, in environments of their own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import unsoftmax as us
from measuring import ROOT

EXAMPLES = ROOT / "examples"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def mlserver(target: us.SingleHead) -> Iterator[str]:
    """Serve a head by the MLServer that $MLSERVER names; yields its URL."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name, "served"), free_port()
        shutil.copytree(EXAMPLES / "mlserver", folder)
        settings = json.loads((folder / "settings.json").read_text())
        settings |= {"http_port": port, "grpc_port": free_port()}
        (folder / "settings.json").write_text(json.dumps(settings))
        model = json.loads((folder / "model-settings.json").read_text())
        model["inputs"][0]["shape"][2] = target.dim
        (folder / "model-settings.json").write_text(json.dumps(model))
        with running([os.environ["MLSERVER"], "start", "."], folder, port, target) as url:
            yield url


@contextmanager
def kserve(target: us.SingleHead) -> Iterator[str]:
    """Serve a head by the KServe of the Python that $KSERVE names; yields its URL."""
    server, port = str(EXAMPLES / "kserve" / "head_server.py"), free_port()
    command = [os.environ["KSERVE"], server, "head.npz", str(port)]
    with (
        tempfile.TemporaryDirectory() as folder,
        running(command, Path(folder), port, target) as url,
    ):
        yield url


@contextmanager
def running(
    command: Sequence[str], folder: Path, port: int, target: us.SingleHead
) -> Iterator[str]:
    """Start a server, wait until it is ready, and end it."""
    np.savez(folder / "head.npz", W=target.W, v=target.v, w=target.w, c=target.c)
    url = f"http://127.0.0.1:{port}/v2/models/head"
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        wait_for(f"{url}/ready", process)
        yield url
    finally:
        process.kill()
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return when a server is ready, within a minute."""
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("The server did not start.")
