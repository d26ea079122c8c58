"""Certificates of close heads hold, with biases that are tiny beside W as well."""

import numpy as np
import pytest

import unsoftmax as us
from tests.attacks.test_real_endpoints import share_of_the_bounds
from tests.heads import several
from tests.networks import covered
from tests.truth import hidden

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
    def share_at(seed):
        target = close(heads, seed, size)
        learner = Learner(target.dim, heads + 3, biases=True, seed=seed)
        return share_of_the_bounds(us.learn(hidden(target), learner), target)

    count = trials(1, 400)
    claim = f"MultiHeadLearner, {heads} heads, two of them close, biases, W times {size:g}, {count}"
    refused = covered(claim, count, share_at, evidence, us.ModelMismatch)
    assert len(refused) <= 0.25 * count + trials(1, 0)
