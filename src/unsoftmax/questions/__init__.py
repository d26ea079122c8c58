"""Questions about a target that are built on models, oracles and the runner."""

from typing import TYPE_CHECKING, Any

from unsoftmax.first_use import first_use

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

# `verify` does not wait for the learners, which the others are built on.
_MODULES = ("verification", "exposure", "defence.defence_comparison", "defence.defending")


def __getattr__(name: str) -> Any:
    return first_use(globals(), name, _MODULES)


def __dir__() -> list[str]:
    return __all__
