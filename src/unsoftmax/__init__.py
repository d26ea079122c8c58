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
        progress_bar,
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
        TokensRefused,
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
        QkNormLayer,
        ReluNetwork,
        Rotary,
        RotaryHead,
        RotaryHeads,
        RotaryLayer,
        SingleHead,
        Stack,
        TokenHead,
        Transformer,
        canonical,
        equivalent,
        find_projections,
        from_checkpoint,
        from_projections,
        load,
        load_weights,
        to_projections,
    )
    from unsoftmax.questions import Audit, DefenceComparison, Verification, audit, defend, verify

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
    "QkNormLayer",
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
    "TokenHead",
    "TokensRefused",
    "Transformer",
    "UnsoftmaxError",
    "Verification",
    "audit",
    "canonical",
    "defend",
    "equivalent",
    "find_projections",
    "from_checkpoint",
    "from_projections",
    "learn",
    "learn_many",
    "learners",
    "load",
    "load_weights",
    "oracles",
    "progress_bar",
    "theory",
    "to_projections",
    "verify",
]


def __getattr__(name: str) -> _typing.Any:
    """Import a public name when it is first used: what needs one alone does not wait for all."""
    if name in ("learners", "oracles", "theory"):
        return _importlib.import_module(f"{__name__}.{name}")
    from unsoftmax.first_use import first_use

    # by how long these take to import
    return first_use(globals(), name, ("errors", "models", "campaign", "questions"))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
