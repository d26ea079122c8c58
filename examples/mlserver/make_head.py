"""Draw a head of 16 dimensions and write it as head.npz."""

import numpy as np

rng = np.random.default_rng()
np.savez(
    "head.npz",
    W=rng.standard_normal((16, 16)) / 4,
    v=rng.standard_normal(16),
    w=rng.standard_normal(16) / 4,
    c=rng.standard_normal(),
)
