"""Do two feed-forward layers compute the same function? Decided on their hinge sums.

As of networks (`relu_network_equality`): neurons up to order, parallel ones merged, a positive
factor free between (A, b) and B, and B_j relu(z) = B_j z + B_j relu(−z) turns one around at the
price of a linear part, which x of a residual belongs to. A norm's scale and shift before are part
of A and b; behind, the mean over outputs is invisible, and the sum is known up to its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.models.equality.equivalence import Equivalence, ModelEquality, Tolerance
from unsoftmax.models.equality.hinge_sum import HingeSum, squared_distance
from unsoftmax.models.equality.witnesses import witness_of
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.model import FrozenModel
from unsoftmax.probes import Array
