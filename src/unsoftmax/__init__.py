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
    from unsoftmax.campaign import (
        Budget,
        Progress,
        Recoveries,
        Recovery,
        Retries,
        learn,
        learn_many,
    )
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
        AttentionLayer,
        Equivalence,
        FeedForward,
        LayerHead,
        LayerNorm,
        MultiHead,
        MultiHeadTransformer,
        ReluNetwork,
        Rotary,
        RotaryHead,
        RotaryHeads,
        RotaryLayer,
        SingleHead,
        Stack,
        Transformer,
        canonical,
        equivalent,
        find_projections,
        from_projections,
        load,
        load_weights,
        to_projections,
    )
    from unsoftmax.questions import (
        Audit,
        DefenceComparison,
        Verification,
        audit,
        defend,
        verify,
    )

__version__ = "0.1.0"

__all__ = [
    "AlgorithmError",
    "AttentionLayer",
    "Audit",
    "Budget",
    "BudgetExceeded",
    "DefenceComparison",
    "DimensionRefused",
    "Equivalence",
    "FeedForward",
    "LayerHead",
    "LayerNorm",
    "LedgerError",
    "LedgerMismatch",
    "ModelMismatch",
    "MultiHead",
    "MultiHeadTransformer",
    "NotIdentifiable",
    "OracleError",
    "Progress",
    "Recoveries",
    "Recovery",
    "ReluNetwork",
    "Retries",
    "RetryLater",
    "Rotary",
    "RotaryHead",
    "RotaryHeads",
    "RotaryLayer",
    "SingleHead",
    "Stack",
    "Terminated",
    "Transformer",
    "UnsoftmaxError",
    "Verification",
    "audit",
    "canonical",
    "defend",
    "equivalent",
    "find_projections",
    "from_projections",
    "learn",
    "learn_many",
    "learners",
    "load",
    "load_weights",
    "oracles",
    "theory",
    "to_projections",
    "verify",
]

# Where the public names are, by how long these take to import. A name is looked up when it is
# first used: what needs one alone (the command line, a worker process) does not wait for all.
_OWNERS = ("errors", "models", "campaign", "questions")


def __getattr__(name: str) -> _typing.Any:
    """Import a public name on first use (PEP 562)."""
    if name in ("learners", "oracles", "theory"):
        return _importlib.import_module(f"{__name__}.{name}")
    for owner in _OWNERS if name in __all__ else ():
        module = _importlib.import_module(f"{__name__}.{owner}")
        if hasattr(module, name):
            value = globals()[name] = getattr(module, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
