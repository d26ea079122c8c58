"""Recover the parameters of attention models from black-box queries, and prove how well.

>>> import numpy as np, unsoftmax as us
>>> target = us.SingleHead(W=[[1.0, 2.0], [0.0, 1.0]], v=[1.0, -1.0])
>>> recovery = us.learn(target, us.learners.ExactHead(dim=2))
>>> bool(us.equivalent(recovery.model, target))
True
"""

from unsoftmax import learners, oracles, theory
from unsoftmax.campaign import Budget, Progress, Recoveries, Recovery, Retries, learn, learn_many
from unsoftmax.errors import (
    BudgetExceeded,
    DimensionRefused,
    LedgerError,
    LedgerMismatch,
    ModelMismatch,
    NotIdentifiable,
    OracleError,
    RetryLater,
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
    find_projections,
    from_projections,
    load,
    load_weights,
)

__version__ = "0.1.0"

__all__ = [
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
    "Recoveries",
    "Recovery",
    "ReluNetwork",
    "Retries",
    "RetryLater",
    "SingleHead",
    "Transformer",
    "UnsoftmaxError",
    "canonical",
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
]
