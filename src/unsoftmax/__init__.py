"""Recover the parameters of attention models from black-box queries, and prove how well.

>>> import numpy as np, unsoftmax as us
>>> target = us.SingleHead(W=[[1.0, 2.0], [0.0, 1.0]], v=[1.0, -1.0])
>>> recovery = us.learn(target, us.learners.ExactHead(dim=2))
>>> bool(us.equivalent(recovery.model, target))
True
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from unsoftmax import learners, oracles, theory
    from unsoftmax.campaign import Budget, Progress, Recovery, Retries, learn
    from unsoftmax.errors import (
        AlgorithmError,
        BudgetExceeded,
        DimensionRefused,
        LedgerError,
        LedgerMismatch,
        ModelMismatch,
        NotIdentifiable,
        OracleError,
        RetryLater,
        Terminated,
        UnsoftmaxError,
    )
    from unsoftmax.models import (
        Equivalence,
        MultiHead,
        ReluNetwork,
        SingleHead,
        Transformer,
        canonical,
        equivalent,
        load,
    )

__version__ = "0.1.0"

__all__ = [
    "AlgorithmError",
    "Budget",
    "BudgetExceeded",
    "DimensionRefused",
    "Equivalence",
    "LedgerError",
    "LedgerMismatch",
    "ModelMismatch",
    "MultiHead",
    "NotIdentifiable",
    "OracleError",
    "Progress",
    "Recovery",
    "ReluNetwork",
    "Retries",
    "RetryLater",
    "SingleHead",
    "Terminated",
    "Transformer",
    "UnsoftmaxError",
    "canonical",
    "equivalent",
    "learn",
    "learners",
    "load",
    "oracles",
    "theory",
]

# The public names by the module that has them. They are imported when first named: what needs
# one alone (the command line, a worker process) does not wait for all.
_OWNERS = {
    "unsoftmax.campaign": ("Budget", "Progress", "Recovery", "Retries", "learn"),
    "unsoftmax.errors": (
        "AlgorithmError",
        "BudgetExceeded",
        "DimensionRefused",
        "LedgerError",
        "LedgerMismatch",
        "ModelMismatch",
        "NotIdentifiable",
        "OracleError",
        "RetryLater",
        "Terminated",
        "UnsoftmaxError",
    ),
    "unsoftmax.models": (
        "Equivalence",
        "MultiHead",
        "ReluNetwork",
        "SingleHead",
        "Transformer",
        "canonical",
        "equivalent",
        "load",
    ),
}


def __getattr__(name: str) -> _typing.Any:
    """Import a public name on first use (PEP 562)."""
    if name in ("learners", "oracles", "theory"):
        return _importlib.import_module(f"{__name__}.{name}")
    for owner, names in _OWNERS.items():
        if name in names:
            value = globals()[name] = getattr(_importlib.import_module(owner), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
