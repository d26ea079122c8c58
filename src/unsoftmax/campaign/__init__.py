"""The runner: feeds any learner from any oracle, pays every answer once, keeps all of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unsoftmax.campaign.budget import Budget
    from unsoftmax.campaign.many import Recoveries, learn_many
    from unsoftmax.campaign.recovery import Recovery
    from unsoftmax.campaign.retries import Retries
    from unsoftmax.campaign.runner import learn
    from unsoftmax.campaign.watching import Progress, Watcher

__all__ = [
    "Budget",
    "Progress",
    "Recoveries",
    "Recovery",
    "Retries",
    "Watcher",
    "learn",
    "learn_many",
]

# Where the names are: who needs a budget's limits does not wait for the ledger.
_MODULES = {
    "Budget": "budget",
    "Progress": "watching",
    "Recoveries": "many",
    "Recovery": "recovery",
    "Retries": "retries",
    "Watcher": "watching",
    "learn": "runner",
    "learn_many": "many",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
