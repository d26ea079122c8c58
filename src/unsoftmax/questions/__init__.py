"""Questions about a target that are built on models, oracles and the runner."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unsoftmax.questions.defence.defence_comparison import (
        AttackOutcome,
        DefenceComparison,
        DefenceTrial,
    )
    from unsoftmax.questions.defence.defending import defend
    from unsoftmax.questions.exposure import Audit, audit
    from unsoftmax.questions.verification import Verification, Verifier, verify

__all__ = [
    "AttackOutcome",
    "Audit",
    "DefenceComparison",
    "DefenceTrial",
    "Verification",
    "Verifier",
    "audit",
    "defend",
    "verify",
]

# Where the names are: `verify` does not wait for the learners, which the others are built on.
_MODULES = {
    "AttackOutcome": "defence.defence_comparison",
    "Audit": "exposure",
    "DefenceComparison": "defence.defence_comparison",
    "DefenceTrial": "defence.defence_comparison",
    "Verification": "verification",
    "Verifier": "verification",
    "audit": "exposure",
    "defend": "defence.defending",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
