"""Certificates of close heads hold, with biases that are tiny beside W as well."""

import numpy as np
import pytest

import unsoftmax as us
from tests.attacks.test_real_endpoints import share_of_the_bounds
from tests.heads import several

Learner = us.learners.MultiHeadLearner


def close(heads, seed, size):
    """Draw heads with biases, two of them 1e-4 to 1e-1 apart, W of about ``size``."""
    rng = np.random.default_rng([heads, seed, 21])
    drawn = several(heads, int(rng.integers(4, 9)), seed, biases=True)
    W, w, apart = size * drawn.W, drawn.w.copy(), 10.0 ** rng.uniform(-4, -1)
    W[1] = W[0] + apart * W[1]
    if rng.integers(2):
        w[1] = w[0] + apart * w[1]
    return us.MultiHead(W, drawn.v, w, drawn.c)


@pytest.mark.few
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("heads", [2, 3])
def test_certificates_of_close_heads_hold_whatever_their_size(heads, size, trials, evidence):
    count, worst, refused = trials(1, 400), 0.0, 0
    for seed in range(count):
        target = close(heads, seed, size)
        learner = Learner(target.dim, heads + 3, biases=True, seed=seed)
        try:
            recovery = us.learn(lambda X, target=target: target(X), learner)
        except us.ModelMismatch:
            refused += 1
            continue
        worst = max(worst, share_of_the_bounds(recovery, target))
        assert worst <= 1, seed
    assert refused <= 0.25 * count + trials(1, 0)
    evidence(
        f"MultiHeadLearner, {heads} heads, two of them close, biases, W times {size:g}, {count}",
        broken=0,
        error_over_bound=worst,
        refused=refused,
    )
