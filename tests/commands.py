"""The command line, run in this process: what starting another hundreds of times would cost."""

import io
import os
import signal
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from unsoftmax import cli
from unsoftmax.cli import console

COMMAND = Path(sys.executable).parent / "unsoftmax"


@dataclass
class Done:
    """What `subprocess.run` would say of it."""

    returncode: Any
    stdout: str
    stderr: str


def run(folder: Path, *words: Any, columns: int = 200) -> Done:
    """Run a command in a folder; modules that it imports from there are forgotten."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    handlers = [(number, signal.getsignal(number)) for number in numbers]
    loaded = set(sys.modules)
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(err),
        warnings.catch_warnings(action="error"),
    ):
        patch.chdir(folder)
        patch.setattr(cli, "leave", sys.exit)  # it would end this process
        patch.setattr(sys, "argv", ["unsoftmax", *map(str, words)])
        patch.setattr(sys, "path", [*sys.path])
        for name, value in {"COLUMNS": str(columns), "NO_COLOR": "1"}.items():
            patch.setitem(os.environ, name, value)
        for shown in (console.stdout, console.stderr):
            patch.setattr(shown, "width", columns)  # it was read where the module was imported
        try:
            cli.main()
        except SystemExit as end:
            status = end.code
        finally:
            for number, handler in handlers:
                signal.signal(number, handler)
            for name in set(sys.modules) - loaded:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                    del sys.modules[name]
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return Done(status, *texts)


def started(folder: Path, *words: Any, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command as the process that a user starts."""
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [str(COMMAND), *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
