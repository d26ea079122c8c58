"""What to ask, and what the answers mean: one module per theorem, all pure.

`BY_NAME` is how the command line calls the learners.
"""

from unsoftmax.learners.exact_head import ExactHead
from unsoftmax.learners.label_head import LabelHead

__all__ = ["BY_NAME", "ExactHead", "LabelHead"]

BY_NAME: dict[str, type[ExactHead] | type[LabelHead]] = {"exact": ExactHead, "labels": LabelHead}
