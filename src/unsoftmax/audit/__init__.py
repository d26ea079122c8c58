"""Questions about a target that are built on models, oracles and the runner."""

from unsoftmax.audit.defence.defence_comparison import (
    AttackOutcome,
    DefenceComparison,
    DefenceTrial,
)
from unsoftmax.audit.defence.defending import defend
from unsoftmax.audit.verification import Verification, Verifier, verify

__all__ = [
    "AttackOutcome",
    "DefenceComparison",
    "DefenceTrial",
    "Verification",
    "Verifier",
    "defend",
    "verify",
]
