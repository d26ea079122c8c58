"""Ledgers of tests lie in memory where that can be: a run commits hundreds of times.

For what a killed process leaves behind it makes no difference; what a power cut does is not
tested here.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of its own for every test."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        yield tmp_path_factory.mktemp("ledgers")
        return
    folder = Path(tempfile.mkdtemp(dir=_MEMORY, prefix="unsoftmax-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
