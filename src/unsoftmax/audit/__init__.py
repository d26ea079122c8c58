"""Questions about a target that are built on models, oracles and the runner.

`unsoftmax.audit` is this room and the function `audit` in it: Python sets a package's name in its
parent when the package is imported, so the room is callable.
"""

import sys
from types import ModuleType
from typing import Any

from unsoftmax.audit.defence.defence_comparison import (
    AttackOutcome,
    DefenceComparison,
    DefenceTrial,
)
from unsoftmax.audit.defence.defending import defend
from unsoftmax.audit.exposure import Audit, audit
from unsoftmax.audit.verification import Verification, Verifier, verify

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


class _CallableRoom(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Audit:
        return audit(*args, **kwargs)


_CallableRoom.__call__.__doc__ = audit.__doc__
sys.modules[__name__].__class__ = _CallableRoom
