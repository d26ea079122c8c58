"""A real MLServer process on loopback, where the environment variable MLSERVER names one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

MLSERVER = os.environ.get("MLSERVER", "")
EXAMPLE = Path(__file__).parents[2] / "examples" / "mlserver"


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """Serves the models of a folder; it can be killed and started again at the same address."""

    def __init__(self, folder, names=("head",)):
        self.folder, self.names = folder, names
        settings = json.loads((EXAMPLE / "settings.json").read_text())
        settings |= {"http_port": _free_port(), "grpc_port": _free_port()}
        (folder / "settings.json").write_text(json.dumps(settings))
        self.root = f"http://127.0.0.1:{settings['http_port']}/v2"
        self.start()

    def url(self, name="head"):
        return f"{self.root}/models/{name}"

    def start(self):
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [MLSERVER, "start", "."], cwd=self.folder, stdout=log, stderr=log
            )
        for name in self.names:
            self._wait_for(name)

    def _wait_for(self, name):
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.url(name)}/ready", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.1)
        raise AssertionError("MLServer did not start in a minute.")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
