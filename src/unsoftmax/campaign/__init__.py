"""The runner: feeds any learner from any oracle, pays every answer once, keeps all of them."""

from typing import TYPE_CHECKING, Any

from unsoftmax.first_use import first_use

if TYPE_CHECKING:
    from unsoftmax.campaign.bar import progress_bar
    from unsoftmax.campaign.limits import Budget, Retries
    from unsoftmax.campaign.many import Recoveries, learn_many
    from unsoftmax.campaign.recovery import Recovery
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
    "progress_bar",
]

# Who needs a budget's limits does not wait for the ledger.
_MODULES = ("limits", "watching", "recovery", "runner", "many", "bar")


def __getattr__(name: str) -> Any:
    return first_use(globals(), name, _MODULES)


def __dir__() -> list[str]:
    return __all__
