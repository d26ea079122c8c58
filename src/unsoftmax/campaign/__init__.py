"""The runner: feeds any learner from any oracle, pays every answer once, keeps all of them."""

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
