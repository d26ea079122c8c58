"""What an error that nobody expected says: a bug in unsoftmax, and all that a report of it needs.

A user gets a sentence; who mends the fault gets the traceback, the command and the versions, in a
file, since after a run of hours nobody can be asked to provoke it again. Needs the standard library
alone: what fails may be an import.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import tempfile
import traceback

FAULT = 70
"""EX_SOFTWARE of sysexits.h: no other end has it, and 1 is the "no" of compare and verify."""

_PACKAGES = ("unsoftmax", "numpy", "scipy", "safetensors", "typer", "rich")


def tell(error: Exception, words: list[str]) -> int:
    """Say what happened, on stderr and with --json on stdout too; return the exit status."""
    name = type(error).__name__
    trace = "".join(traceback.format_exception(error))
    message = " ".join([f"{name}: {error}".rstrip(": "), *getattr(error, "__notes__", ())])
    if isinstance(error, MemoryError):
        message += " There was not enough memory; a smaller --batch needs less, where there is one."
    else:
        message += f" {_request(trace, words)}"
    with contextlib.suppress(OSError, ValueError):  # a terminal that has gone
        if "--debug" in words:
            print(trace, file=sys.stderr)
        print(message, file=sys.stderr)
        if "--json" in words:
            print(json.dumps({"error": name, "message": message, "status": FAULT}))
    return FAULT


def _request(trace: str, words: list[str]) -> str:
    """Ask for a report, and keep what it needs."""
    said = "This is a bug in unsoftmax, not a usage error. Please report it"
    try:
        handle, path = tempfile.mkstemp(prefix="unsoftmax-fault-", suffix=".txt", text=True)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{_circumstances(words)}\n\n{trace}")
    except OSError:
        return f"{said} with what --debug adds."
    return f"{said} with {path}, which holds the command, the versions and where it happened."


def _circumstances(words: list[str]) -> str:
    """Return the command and the versions."""
    lines = [shlex.join(["unsoftmax", *words]), f"Python {sys.version}", platform.platform()]
    for package in _PACKAGES:
        try:
            lines.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{package} is not installed")
    return "\n".join(lines)
