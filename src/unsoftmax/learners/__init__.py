"""What to ask, and what the answers mean: one module per theorem, all pure.

`BY_NAME` is how the command line calls the learners.
"""

from unsoftmax.learners.exact_head import ExactHead
from unsoftmax.learners.sensing_head import SensingHead

__all__ = ["BY_NAME", "ExactHead", "SensingHead"]

BY_NAME = {"exact": ExactHead, "sensing": SensingHead}
