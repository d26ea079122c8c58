"""What to ask, and what the answers mean: one module per theorem, all pure.

`BY_NAME` is how the command line calls the learners.
"""

from unsoftmax.learners.approximate_head import ApproximateHead
from unsoftmax.learners.exact_head import ExactHead

__all__ = ["BY_NAME", "ApproximateHead", "ExactHead"]

BY_NAME = {"exact": ExactHead, "approximate": ApproximateHead}
