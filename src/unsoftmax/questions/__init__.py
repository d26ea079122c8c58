"""Questions about a target that are built on models, oracles and the runner."""

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
