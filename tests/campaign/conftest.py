"""What most runs of these tests have: a ledger's place, and one worker or several."""

from pathlib import Path

import pytest


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The place of a ledger that is not there yet."""
    return tmp_path / "ledger"


@pytest.fixture(params=[1, 3])
def workers(request: pytest.FixtureRequest) -> int:
    """One after the other, or three at a time."""
    return int(request.param)
