"""How often tests repeat: a few times in `make test`, as often as claimed in `make evidence`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--trials", choices=["few", "claimed"], default="few", help="how often tests repeat"
    )


def pytest_configure(config: pytest.Config) -> None:
    claimed = config.getoption("--trials") == "claimed"
    settings.register_profile(
        "ours",
        max_examples=1000 if claimed else 100,
        derandomize=not claimed,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("ours")


@pytest.fixture
def trials(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """``trials(few, claimed)``: how often to repeat."""
    claimed = request.config.getoption("--trials") == "claimed"
    return lambda few, many: many if claimed else few
